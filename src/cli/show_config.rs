//! `memreg config`: every value, where it came from, and what it could be.

use super::{Answer, SCHEMA, json};
use memreg_config::{Loaded, Shown};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    command: &'static str,
    config: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    key: &'a str,
    /// As a JSON value; null if unset.
    value: Value,
    origin: &'a str,
    about: &'a str,
    range: &'a str,
}

/// Shows the merged configuration.
pub(super) fn run(loaded: &Loaded, as_json: bool) -> Answer {
    if as_json {
        let config = loaded.origins.iter().map(row).collect();
        return Answer::done(json(&Report { schema: SCHEMA, command: "config", config }));
    }
    let mut out = String::new();
    for s in &loaded.origins {
        let _ = writeln!(out, "{} = {}  [{}]", s.key, s.value, s.origin);
        let _ = writeln!(out, "    {}", s.about);
        let _ = writeln!(out, "    {}", s.range);
    }
    Answer::done(out)
}

/// Shows the commented defaults.
pub(super) fn reference(as_json: bool) -> Answer {
    let reference = memreg_config::reference();
    if as_json {
        let object = serde_json::json!({
            "schema": SCHEMA, "command": "config", "reference": reference
        });
        return Answer::done(json(&object));
    }
    Answer::done(reference)
}

fn row(s: &Shown) -> Row<'_> {
    Row { key: &s.key, value: typed(&s.value), origin: &s.origin, about: s.about, range: &s.range }
}

/// The value of a shown setting as JSON: it is shown as TOML, whose scalars and lists are JSON but
/// for rare escapes, and a size also in its largest unit.
pub(super) fn typed(shown: &str) -> Value {
    if shown == "unset" {
        return Value::Null;
    }
    let number = shown.split_once(" (").map_or(shown, |(bytes, _)| bytes);
    serde_json::from_str(shown)
        .or_else(|_| serde_json::from_str(number))
        .unwrap_or_else(|_| Value::from(shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_have_their_types() {
        for (shown, value) in [
            ("unset", Value::Null),
            ("true", json!(true)),
            ("18446744073709551615", json!(u64::MAX)),
            ("1048576 (1 MiB)", json!(1_048_576)),
            ("\"a (b).toml\"", json!("a (b).toml")),
            ("[\"frwr\", \"fmr\"]", json!(["frwr", "fmr"])),
            ("\"\\u{7f}\"", json!("\"\\u{7f}\"")),
        ] {
            assert_eq!(typed(shown), value, "{shown}");
        }
    }
}
