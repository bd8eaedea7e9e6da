//! One value against one key: the value in its final type, or what is wrong with it.

use std::path::{Path, PathBuf};

use config::{Value, ValueKind};
use toml::de::DeValue;

use crate::file;
use crate::given::{Entry, Given};
use crate::near::{nearest, nearest_path};
use crate::problem::Problem;
use crate::schema::{BUILT_IN, Key, Kind, Schema};
use crate::size;

/// What the checks of one source need to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules<'a> {
    /// The sections and keys there are.
    pub schema: &'static Schema,
    /// Where relative paths start; `None` = the working directory.
    pub dir: Option<&'a Path>,
    /// Names of the plugins there are; `None` = not known here, any name passes.
    pub plugins: Option<&'a [String]>,
}

/// What is wrong with a value, without where it stands.
#[derive(Debug)]
struct Fault {
    message: String,
    hint: Option<String>,
}

/// Checks one entry.
///
/// # Errors
/// The problem, complete with source, key and the allowed values.
pub(crate) fn check(entry: &Entry, rules: Rules<'_>) -> Result<Value, Box<Problem>> {
    let Some(key) = rules.schema.key(&entry.path) else {
        return Err(Box::new(unknown(entry, rules.schema)));
    };
    match value(&entry.given, key, rules) {
        Ok(kind) => Ok(Value::new(Some(&entry.origin), kind)),
        Err(Fault { message, hint }) => Err(Box::new(Problem {
            source: entry.origin.clone(),
            key: entry.key(),
            value: entry.given.shown(),
            message,
            allowed: key.kind.allowed(),
            hint,
        })),
    }
}

fn unknown(entry: &Entry, schema: &'static Schema) -> Problem {
    let is_section = schema.is_section(&entry.path);
    let message = match (is_section, &entry.given) {
        (true, given) => format!("is a section, and was given {}", given.noun()),
        (false, Given::Table) => "no such section".to_owned(),
        (false, _) => "no such key".to_owned(),
    };
    let key = entry.key();
    let sections = schema.sections.iter().map(|(name, _)| *name);
    let keys = schema.keys().map(|key| key.path).filter(|path| !path.ends_with('*'));
    let hint = match (is_section, &entry.given) {
        (true, _) => None,
        (false, Given::Table) => nearest_path(&key, sections),
        (false, _) => nearest_path(&key, keys),
    };
    let mut inside = entry.path.clone();
    if is_section {
        inside.push(String::new());
    }
    Problem {
        source: entry.origin.clone(),
        value: entry.given.shown(),
        message,
        allowed: schema.siblings(&inside).join(", ").replace('*', "any name"),
        hint: hint.map(str::to_owned),
        key,
    }
}

fn value(given: &Given, key: &Key, rules: Rules<'_>) -> Result<ValueKind, Fault> {
    let typed;
    let given = match given {
        Given::Raw(text) => {
            typed = read(text, key.kind)?;
            &typed
        }
        given => given,
    };
    match (key.kind, given) {
        (Kind::Bool, Given::Bool(b)) => Ok(ValueKind::Boolean(*b)),
        (Kind::Int { min, max, .. }, Given::Int(i)) => in_range(*i, min, max).map(ValueKind::U64),
        (Kind::AutoOr { .. }, Given::Text(text)) if text == "auto" => Ok(text_kind(text)),
        (Kind::AutoOr { .. }, Given::Text(text)) if text.eq_ignore_ascii_case("auto") => {
            Err(Fault { message: "differs in case".into(), hint: Some("auto".into()) })
        }
        (Kind::AutoOr { min, max }, Given::Int(i)) => in_range(*i, min, max).map(ValueKind::U64),
        (Kind::Int { .. } | Kind::AutoOr { .. } | Kind::Size { .. }, Given::Huge(_)) => {
            fault("is out of range")
        }
        (Kind::Size { .. }, Given::Float(_)) => fault("has a fraction; use a smaller unit"),
        (Kind::Size { min, max, power_of_two }, Given::Int(i)) => {
            sized(in_range(*i, min, max)?, power_of_two)
        }
        (Kind::Size { min, max, power_of_two }, Given::Text(text)) => {
            let bytes = size::parse(text)
                .map_err(|e| Fault { message: e.message.to_owned(), hint: e.hint })?;
            sized(in_range(i128::from(bytes), min, max)?, power_of_two)
        }
        (Kind::Word(words), Given::Text(text)) => word(text, words),
        (Kind::Strategy, Given::Text(text)) => strategy(text, rules, true).map(text_kind),
        (Kind::Order, Given::List(items)) => order(items, rules),
        (Kind::Profile, Given::Text(text)) => profile(text, rules.dir),
        (Kind::Device, Given::Text(text)) => device(text),
        (Kind::Line, Given::Text(text)) if text.contains(char::is_control) => {
            fault("holds a control character")
        }
        (Kind::Line, Given::Text(text)) => Ok(text_kind(text)),
        (Kind::Scalar, given) => scalar(given),
        (kind, given) => Err(wrong_type(kind, given)),
    }
}

/// Reads text from a source without types.
fn read(text: &str, kind: Kind) -> Result<Given, Fault> {
    Ok(match kind {
        Kind::Bool => match text {
            "true" => Given::Bool(true),
            "false" => Given::Bool(false),
            _ => return fault("is neither true nor false"),
        },
        Kind::AutoOr { .. } if text.eq_ignore_ascii_case("auto") => Given::Text(text.to_owned()),
        Kind::Int { .. } | Kind::AutoOr { .. } => {
            let digits = text.strip_prefix('-').unwrap_or(text);
            let leading_zero = digits.len() > 1 && digits.starts_with('0');
            if digits.is_empty() || leading_zero || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return fault("is not a whole number in plain decimal digits");
            }
            text.parse().map_or_else(|_| Given::Huge(text.to_owned()), Given::Int)
        }
        Kind::Order if text.is_empty() => Given::List(vec![]),
        Kind::Order => {
            Given::List(text.split(',').map(|name| Given::Text(name.to_owned())).collect())
        }
        Kind::Scalar => toml_scalar(text),
        Kind::Size { .. }
        | Kind::Word(_)
        | Kind::Strategy
        | Kind::Profile
        | Kind::Device
        | Kind::Line => Given::Text(text.to_owned()),
    })
}

/// Reads an option as TOML would, and what TOML would not, as text: `12` is a number, `"12"` and
/// `fast` are text.
fn toml_scalar(text: &str) -> Given {
    match DeValue::parse(text).map(|value| file::given(value.get_ref())) {
        Ok(given @ (Given::Bool(_) | Given::Int(_) | Given::Huge(_) | Given::Text(_))) => given,
        Ok(Given::Float(x)) if x.is_finite() => Given::Float(x),
        _ => Given::Text(text.to_owned()),
    }
}

fn in_range(i: i128, min: u64, max: u64) -> Result<u64, Fault> {
    match u64::try_from(i) {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ if i < 0 => fault("is negative"),
        _ => fault("is out of range"),
    }
}

fn sized(bytes: u64, power_of_two: bool) -> Result<ValueKind, Fault> {
    if power_of_two && !bytes.is_power_of_two() {
        return fault("is not a power of two");
    }
    Ok(ValueKind::U64(bytes))
}

fn word(text: &str, words: &[&'static str]) -> Result<ValueKind, Fault> {
    if words.contains(&text) {
        return Ok(text_kind(text));
    }
    let hint = nearest(text, words.iter().copied()).map(str::to_owned);
    Err(Fault { message: "is not one of the choices".to_owned(), hint })
}

/// A strategy's name. What no built-in has is taken for a plugin's; only the list of plugins can
/// refute that.
fn strategy<'t>(text: &'t str, rules: Rules<'_>, auto: bool) -> Result<&'t str, Fault> {
    if BUILT_IN.contains(&text) || (auto && text == "auto") {
        return Ok(text);
    }
    let known = BUILT_IN.iter().copied().chain(auto.then_some("auto"));
    if let Some(name) = known.clone().find(|name| name.eq_ignore_ascii_case(text)) {
        return Err(Fault { message: "differs in case".into(), hint: Some(name.into()) });
    }
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == ',';
    if text.is_empty() || text.len() > 64 || text.contains(odd) {
        return fault("is not a name: 1..=64 bytes without spaces and commas");
    }
    let Some(plugins) = rules.plugins else {
        return Ok(text);
    };
    if plugins.iter().any(|name| name == text) {
        return Ok(text);
    }
    let hint = nearest(text, known.chain(plugins.iter().map(String::as_str)));
    let message = match plugins {
        [] => "no such strategy; no plugin is linked into this program".to_owned(),
        _ => format!("no such strategy; the plugins are {}", plugins.join(", ")),
    };
    Err(Fault { message, hint: hint.map(str::to_owned) })
}

fn order(items: &[Given], rules: Rules<'_>) -> Result<ValueKind, Fault> {
    let mut names: Vec<String> = vec![];
    for item in items {
        let Given::Text(name) = item else {
            return fault(&format!("holds {}, not a name", item.noun()));
        };
        match name.as_str() {
            "physical" => return fault("names physical, which auto never takes"),
            "auto" => return fault("names auto itself"),
            _ => {}
        }
        let name = strategy(name, rules, false).map_err(|e| Fault {
            message: format!("{} {}", item.shown(), e.message),
            hint: e.hint,
        })?;
        if names.iter().any(|n| n == name) {
            return fault(&format!("names {} twice", item.shown()));
        }
        names.push(name.to_owned());
    }
    if names.is_empty() {
        return fault("is empty");
    }
    Ok(names.into())
}

fn profile(text: &str, dir: Option<&Path>) -> Result<ValueKind, Fault> {
    if text.is_empty() || text.contains(char::is_control) {
        return fault("is neither a name nor a path");
    }
    if !is_path(text) {
        return Ok(text_kind(text));
    }
    let path = dir.map_or_else(|| PathBuf::from(text), |dir| dir.join(text));
    match path.into_os_string().into_string() {
        Ok(path) => Ok(ValueKind::String(path)),
        Err(_) => fault("is relative to a directory whose name is not UTF-8"),
    }
}

/// Whether a profile is the path of a file, not a built-in's name.
pub(crate) fn is_path(profile: &str) -> bool {
    profile.contains(['/', '\\']) || profile.ends_with(".toml")
}

/// A device's name is compared byte by byte later; here only what no device can be called is
/// refused.
fn device(text: &str) -> Result<ValueKind, Fault> {
    let possible = (1..=63).contains(&text.len());
    if !possible || text.contains(|c: char| c == '/' || c.is_control()) {
        return fault("cannot be a device's name");
    }
    Ok(text_kind(text))
}

fn scalar(given: &Given) -> Result<ValueKind, Fault> {
    match given {
        Given::Bool(b) => Ok(ValueKind::Boolean(*b)),
        Given::Int(i) => match i64::try_from(*i) {
            Ok(i) => Ok(ValueKind::I64(i)),
            Err(_) => fault("is out of range"),
        },
        Given::Huge(_) => fault("is out of range"),
        Given::Float(x) => Ok(ValueKind::Float(*x)),
        Given::Text(text) => Ok(text_kind(text)),
        given => Err(wrong_type(Kind::Scalar, given)),
    }
}

fn wrong_type(kind: Kind, given: &Given) -> Fault {
    let mut message = format!("is {}, not {}", given.noun(), kind.noun());
    if let (Kind::Bool | Kind::Int { .. } | Kind::AutoOr { .. }, Given::Text(text)) = (kind, given)
        && read(text, kind).is_ok()
    {
        message.push_str("; write it without quotes");
    }
    Fault { message, hint: None }
}

fn text_kind(text: &str) -> ValueKind {
    ValueKind::String(text.to_owned())
}

fn fault<T>(message: &str) -> Result<T, Fault> {
    Err(Fault { message: message.to_owned(), hint: None })
}
