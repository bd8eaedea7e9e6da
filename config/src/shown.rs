//! The layered values, each with its origin, for people.

use std::collections::BTreeMap;

use config::{Config, Source, Value, ValueKind};

use crate::problem::printable;
use crate::schema::{Key, Kind, Schema};
use crate::size;

/// One row of `memreg config`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// The key's path.
    pub key: String,
    /// The value in effect; sizes in bytes, then rounded; `unset` if there is none.
    pub value: String,
    /// Who gave it, as in [`Problem::source`](crate::Problem::source).
    pub origin: String,
    /// What the key means.
    pub about: &'static str,
    /// What it could be.
    pub range: String,
}

/// The layered values by path.
#[derive(Debug)]
pub(crate) struct Merged(BTreeMap<String, Value>);

impl Merged {
    pub fn of(config: &Config) -> Merged {
        let mut flat = BTreeMap::new();
        // A built configuration is a table and cannot fail to say so.
        let root = config.collect().unwrap_or_default();
        flatten("", Value::new(None, root), &mut flat);
        Merged(flat)
    }

    /// The text at a path.
    pub fn text(&self, path: &str) -> Option<&str> {
        match &self.0.get(path)?.kind {
            ValueKind::String(text) => Some(text),
            _ => None,
        }
    }

    /// Whether a path holds `true`.
    pub fn is_true(&self, path: &str) -> bool {
        self.0.get(path).is_some_and(|value| value.kind == ValueKind::Boolean(true))
    }

    /// The texts of the list at a path.
    pub fn texts(&self, path: &str) -> Vec<&str> {
        let items = match self.0.get(path).map(|value| &value.kind) {
            Some(ValueKind::Array(items)) => items.as_slice(),
            _ => &[],
        };
        let text = |item| match item {
            &Value { kind: ValueKind::String(ref text), .. } => Some(text.as_str()),
            _ => None,
        };
        items.iter().filter_map(text).collect()
    }

    /// Paths at or below `prefix` that somebody has set, with value and origin.
    pub fn set_below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, Origin<'a>)> {
        let below = move |path: &str| {
            let rest = path.strip_prefix(prefix);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let set = self.0.iter().filter(move |(path, _)| below(path));
        set.map(|(path, value)| (path.as_str(), Origin(value))).filter(|(_, o)| !o.is_default())
    }

    /// The value at a path with its origin.
    pub fn origin(&self, path: &str) -> Option<Origin<'_>> {
        self.0.get(path).map(Origin)
    }

    /// Every key of the schema, set or not.
    pub fn rows(&self, schema: &Schema) -> Vec<Shown> {
        let mut rows = vec![];
        for key in schema.keys() {
            match key.path.strip_suffix('*') {
                Some(prefix) => {
                    let options = self.0.iter().filter(|(path, _)| path.starts_with(prefix));
                    rows.extend(
                        options.map(|(path, value)| row(&printable(path), key, Some(value))),
                    );
                }
                None => rows.push(row(key.path, key, self.0.get(key.path))),
            }
        }
        rows
    }
}

/// A value in effect and who gave it.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a>(&'a Value);

impl Origin<'_> {
    pub fn is_default(self) -> bool {
        self.source() == DEFAULT
    }

    pub fn source(&self) -> &str {
        self.0.origin().unwrap_or(DEFAULT)
    }

    pub fn shown(self) -> String {
        toml(&self.0.kind)
    }
}

/// The origin of what nobody has set.
pub(crate) const DEFAULT: &str = "default";

fn flatten(path: &str, value: Value, flat: &mut BTreeMap<String, Value>) {
    if let ValueKind::Table(table) = value.kind {
        for (name, inner) in table {
            let path = if path.is_empty() { name } else { format!("{path}.{name}") };
            flatten(&path, inner, flat);
        }
    } else {
        flat.insert(path.to_owned(), value);
    }
}

fn row(path: &str, key: &Key, value: Option<&Value>) -> Shown {
    let shown = match (key.kind, value.map(|value| &value.kind)) {
        (_, None) => "unset".to_owned(),
        (Kind::Size { .. }, Some(ValueKind::U64(bytes))) => match size::rounded(*bytes) {
            Some(rounded) => format!("{bytes} ({rounded})"),
            None => bytes.to_string(),
        },
        (_, Some(kind)) => toml(kind),
    };
    Shown {
        key: path.to_owned(),
        value: shown,
        origin: value.and_then(Value::origin).unwrap_or(DEFAULT).to_owned(),
        about: key.about,
        range: key.kind.allowed(),
    }
}

/// A value as a file would have it, long texts shortened.
fn toml(kind: &ValueKind) -> String {
    match kind {
        ValueKind::String(text) => format!("\"{}\"", printable(text)),
        ValueKind::Float(x) => format!("{x:?}"),
        ValueKind::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| toml(&item.kind)).collect();
            format!("[{}]", items.join(", "))
        }
        other => other.to_string(),
    }
}
