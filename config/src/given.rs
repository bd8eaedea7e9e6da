//! A value as its source gave it, before anything was checked.

use crate::problem::printable;

/// A value and where it stands.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Entry {
    /// The key's segments. A segment may hold anything, dots included: a quoted key of TOML is one
    /// segment.
    pub path: Vec<String>,
    /// The value.
    pub given: Given,
    /// Who gave it, as messages name it.
    pub origin: String,
}

impl Entry {
    /// The path as a message shows it.
    pub fn key(&self) -> String {
        let segments: Vec<String> = self.path.iter().map(|s| segment(s)).collect();
        segments.join(".")
    }
}

/// A value with the type that its source has for it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Given {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number of at most 128 bits, so that the range check sees the number itself.
    Int(i128),
    /// A whole number beyond that, as written.
    Huge(String),
    /// A number with a fraction.
    Float(f64),
    /// Text.
    Text(String),
    /// A date or time, as written; no key takes one.
    Date(String),
    /// A list.
    List(Vec<Given>),
    /// A table where a value is expected, or in a section that does not exist.
    Table,
    /// Text from a source without types; the key's type decides how it reads.
    Raw(String),
}

impl Given {
    /// What it is, for "is …, not …".
    pub fn noun(&self) -> &'static str {
        match self {
            Given::Bool(_) => "a boolean",
            Given::Int(_) | Given::Huge(_) => "a whole number",
            Given::Float(_) => "a floating-point number",
            Given::Text(_) | Given::Raw(_) => "text",
            Given::Date(_) => "a date or time",
            Given::List(_) => "a list",
            Given::Table => "a table",
        }
    }

    /// The value as a message shows it.
    pub fn shown(&self) -> String {
        match self {
            Given::Bool(b) => b.to_string(),
            Given::Int(i) => i.to_string(),
            Given::Float(x) => format!("{x:?}"),
            Given::Huge(s) | Given::Date(s) => printable(s),
            Given::Text(s) => format!("\"{}\"", printable(s)),
            Given::Raw(s) if is_plain(s) => printable(s),
            Given::Raw(s) => format!("\"{}\"", printable(s)),
            Given::List(items) => {
                let items: Vec<String> = items.iter().take(16).map(Given::shown).collect();
                format!("[{}]", items.join(", "))
            }
            Given::Table => String::new(),
        }
    }
}

/// Quotes what TOML would have quoted.
fn segment(s: &str) -> String {
    if is_plain(s) && !s.contains('.') { printable(s) } else { format!("\"{}\"", printable(s)) }
}

fn is_plain(s: &str) -> bool {
    !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}
