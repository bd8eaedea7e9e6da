//! A TOML file as a list of entries, each with its line.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use crate::given::{Entry, Given};
use crate::load::{MOST, and_more};
use crate::problem::{Problem, escaped, printable};
use crate::schema::Schema;

/// Reads a file that the user named.
///
/// # Errors
/// It cannot be read, is larger than 1 MiB, or is not UTF-8.
pub(crate) fn read(path: &Path) -> Result<String, Box<Problem>> {
    let fault = |message: String| {
        Box::new(Problem {
            source: label(path),
            key: String::new(),
            value: String::new(),
            message,
            allowed: String::new(),
            hint: None,
        })
    };
    let mut bytes = vec![];
    File::open(path)
        .and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes))
        .map_err(|e| fault(format!("cannot be read: {e}")))?;
    if bytes.len() as u64 > LONGEST {
        return Err(fault("is larger than 1 MiB".to_owned()));
    }
    String::from_utf8(bytes)
        .map_err(|e| fault(format!("is not UTF-8 from byte {} on", e.utf8_error().valid_up_to())))
}

/// The path as messages name it.
pub(crate) fn label(path: &Path) -> String {
    escaped(&path.display().to_string(), "'\"\\")
}

/// Every value of the text in the order of its lines, and every line that is not TOML.
///
/// The schema says which tables to walk into; any other table is an entry itself.
pub(crate) fn parse(text: &str, label: &str, schema: &Schema) -> (Vec<Entry>, Vec<Problem>) {
    let lines = Lines::new(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    let at = |e: &toml::de::Error| lines.of(e.span().map_or(0, |span| span.start));
    let mut errors: Vec<_> = errors.into_iter().map(|e| (at(&e), e)).collect();
    errors.sort_by_key(|(line, _)| *line);
    let mut problems = vec![];
    let mut broken = BTreeSet::new();
    for (line, e) in errors {
        // One slip can derail the parser more than once in its line.
        if !broken.insert(line) {
            continue;
        }
        if problems.len() == MOST {
            problems.push(and_more(format!("{label}:{line}")));
        }
        if problems.len() < MOST {
            problems.push(Problem {
                source: format!("{label}:{line}"),
                key: String::new(),
                value: String::new(),
                message: format!("not TOML: {}", printable(e.message())),
                allowed: String::new(),
                hint: None,
            });
        }
    }
    let mut found = vec![];
    flatten(table.get_ref(), &mut vec![], schema, &mut found);
    found.sort_by_key(|(at, _, _)| *at);
    let placed = found.into_iter().map(|(at, path, given)| (lines.of(at), path, given));
    // What the parser made of a broken line is not what the user meant.
    let sound = placed.filter(|(line, _, _)| !broken.contains(line));
    let entries = sound
        .map(|(line, path, given)| Entry { path, given, origin: format!("{label}:{line}") })
        .collect();
    (entries, problems)
}

/// Position, path and value.
type Found = (usize, Vec<String>, Given);

fn flatten(table: &DeTable<'_>, path: &mut Vec<String>, schema: &Schema, found: &mut Vec<Found>) {
    for (key, value) in table {
        path.push(key.get_ref().clone().into_owned());
        match value.get_ref() {
            DeValue::Table(inner) if schema.is_section(path) => {
                flatten(inner, path, schema, found);
            }
            value => found.push((key.span().start, path.clone(), given(value))),
        }
        path.pop();
    }
}

/// A value of the parser as ours. Nothing is converted: `12.0` stays a number with a fraction.
pub(crate) fn given(value: &DeValue<'_>) -> Given {
    match value {
        DeValue::String(s) => Given::Text(s.clone().into_owned()),
        DeValue::Integer(i) => match i128::from_str_radix(i.as_str(), i.radix()) {
            Ok(number) => Given::Int(number),
            Err(_) => Given::Huge(i.as_str().to_owned()),
        },
        DeValue::Float(x) => match x.as_str().parse::<f64>() {
            Ok(number) if number.is_finite() || x.as_str().contains(['i', 'n']) => {
                Given::Float(number)
            }
            _ => Given::Huge(x.as_str().to_owned()),
        },
        DeValue::Boolean(b) => Given::Bool(*b),
        DeValue::Datetime(date) => Given::Date(date.to_string()),
        DeValue::Array(items) => Given::List(items.iter().map(|i| given(i.get_ref())).collect()),
        DeValue::Table(_) => Given::Table,
    }
}

/// Where the lines of a text start.
struct Lines(Vec<usize>);

impl Lines {
    fn new(text: &str) -> Lines {
        Lines(text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at).collect())
    }

    /// The line of a byte, from 1.
    fn of(&self, at: usize) -> usize {
        self.0.partition_point(|newline| *newline < at) + 1
    }
}

/// A configuration has a few dozen lines; whatever is longer is another file, perhaps an endless
/// one.
const LONGEST: u64 = 1 << 20;
