//! Environment variables as entries: `MEMREG__SECTION__KEY`.

use std::ffi::OsString;

use crate::given::{Entry, Given};
use crate::near::nearest;
use crate::problem::{Problem, printable};
use crate::schema::Schema;

/// The entries among the variables, and every variable that looks like one and is none.
///
/// A name that starts with `MEMREG_` and is not for tests must be understood: a misspelt one that
/// is ignored in silence is a setting that the user believes in.
pub(crate) fn parse(vars: &[(OsString, OsString)], schema: &Schema) -> (Vec<Entry>, Vec<Problem>) {
    let (mut entries, mut problems) = (vec![], vec![]);
    for (name, value) in vars {
        let shown_name = name.to_string_lossy();
        if !is_ours(&shown_name) {
            continue;
        }
        let Some(path) = name.to_str().and_then(|name| path(name, schema)) else {
            problems.push(unknown(&shown_name, schema));
            continue;
        };
        match value.to_str() {
            Some(value) => entries.push(Entry {
                path,
                given: Given::Raw(value.to_owned()),
                origin: printable(&shown_name),
            }),
            None => problems.push(Problem {
                source: printable(&shown_name),
                key: path.join("."),
                value: format!("\"{}\"", printable(&value.to_string_lossy())),
                message: "is not UTF-8".to_owned(),
                allowed: schema.key(&path).map(|key| key.kind.allowed()).unwrap_or_default(),
                hint: None,
            }),
        }
    }
    (entries, problems)
}

/// The variable that sets a key.
fn variable(path: &str) -> String {
    format!("{PREFIX}{}", path.to_uppercase().replace('.', "__"))
}

fn is_ours(name: &str) -> bool {
    let lower_case = || name.get(..PREFIX.len()).is_some_and(|p| p.eq_ignore_ascii_case(PREFIX));
    (name.starts_with("MEMREG_") && !name.starts_with("MEMREG_TEST_")) || lower_case()
}

/// The key's path, if the name is spelt as a variable should be and leads to a key or a section.
fn path(name: &str, schema: &Schema) -> Option<Vec<String>> {
    let rest = name.strip_prefix(PREFIX)?;
    if rest.contains(char::is_lowercase) {
        return None;
    }
    let path: Vec<String> = rest.split("__").map(str::to_lowercase).collect();
    (schema.key(&path).is_some() || schema.is_section(&path)).then_some(path)
}

fn unknown(name: &str, schema: &Schema) -> Problem {
    let known: Vec<String> =
        schema.keys().filter(|k| !k.path.ends_with('*')).map(|k| variable(k.path)).collect();
    // The number of underscores is the usual slip, so it does not count here.
    let plain = |s: &str| {
        let words = s.split('_').filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join("_").to_uppercase()
    };
    let plain_known: Vec<String> = known.iter().map(|k| plain(k)).collect();
    let near = nearest(&plain(name), plain_known.iter().map(String::as_str));
    let hint =
        near.and_then(|n| plain_known.iter().position(|k| k == n)).and_then(|i| known.get(i));
    Problem {
        source: printable(name),
        key: String::new(),
        value: String::new(),
        message: "no such variable".to_owned(),
        allowed: "MEMREG__SECTION__KEY in upper case, for a key of the reference".to_owned(),
        hint: hint.cloned(),
    }
}

const PREFIX: &str = "MEMREG__";
