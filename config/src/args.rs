//! The command line as entries: `--set key=value`, and flags that the caller maps to keys.

use crate::given::{Entry, Given};
use crate::problem::{Problem, printable};

/// Entries of the `--set` arguments, and the arguments that are none.
pub(crate) fn sets(args: &[String]) -> (Vec<Entry>, Vec<Problem>) {
    let (mut entries, mut problems) = (vec![], vec![]);
    for arg in args {
        match arg.split_once('=') {
            Some((key, value)) if !key.is_empty() => entries.push(entry(key, value, "--set")),
            _ => problems.push(Problem {
                source: "--set".to_owned(),
                key: String::new(),
                value: String::new(),
                message: format!("\"{}\" is not key=value", printable(arg)),
                allowed: "section.key=value".to_owned(),
                hint: None,
            }),
        }
    }
    (entries, problems)
}

/// Entries of the flags.
pub(crate) fn flags(pairs: &[(String, String)]) -> Vec<Entry> {
    pairs.iter().map(|(key, value)| entry(key, value, "command line")).collect()
}

/// An entry of a source without types.
pub(crate) fn entry(key: &str, value: &str, origin: &str) -> Entry {
    Entry {
        path: key.split('.').map(str::to_owned).collect(),
        given: Given::Raw(value.to_owned()),
        origin: origin.to_owned(),
    }
}
