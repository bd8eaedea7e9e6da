//! How a strategy from another crate announces itself.

use crate::device::Caps;
use crate::memreg::{MemReg, Reject};
use std::fmt;
use std::ops::RangeInclusive;

/// Version of the [`MemReg`] contract that this build speaks.
pub const API: u32 = 1;

/// A scalar from `[strategy.options]`.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// Text.
    Text(String),
}

/// The options of a plugin, by name.
pub type Options = std::collections::BTreeMap<String, OptionValue>;

impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionValue::Bool(b) => write!(f, "{b} is a truth value"),
            OptionValue::Int(i) => write!(f, "{i} is a whole number"),
            OptionValue::Float(x) => write!(f, "{x} is a fraction"),
            OptionValue::Text(t) => write!(f, "{t:?} is text"),
        }
    }
}

/// Reads the options of a plugin by name and type, and refuses what nobody asked for.
///
/// # Errors
/// Every text names the option at fault, for [`Entry::build`].
#[derive(Debug)]
pub struct OptionReader<'a> {
    options: &'a Options,
    known: Vec<&'static str>,
}

impl<'a> OptionReader<'a> {
    /// A reader of all options.
    #[must_use]
    pub fn new(options: &'a Options) -> OptionReader<'a> {
        OptionReader { options, known: vec![] }
    }

    /// A whole number within `allowed`.
    ///
    /// # Errors
    /// It has another type, or is out of range.
    pub fn int(
        &mut self,
        name: &'static str,
        default: u64,
        allowed: RangeInclusive<u64>,
    ) -> Result<u64, String> {
        let (min, max) = (allowed.start(), allowed.end());
        match self.value(name) {
            None => Ok(default),
            Some(OptionValue::Int(i)) => u64::try_from(*i)
                .ok()
                .filter(|n| allowed.contains(n))
                .ok_or_else(|| format!("option {name}: {i} is not in {min}..={max}")),
            Some(other) => {
                Err(format!("option {name}: {other}, not a whole number in {min}..={max}"))
            }
        }
    }

    /// `true` or `false`.
    ///
    /// # Errors
    /// It has another type.
    pub fn flag(&mut self, name: &'static str, default: bool) -> Result<bool, String> {
        match self.value(name) {
            None => Ok(default),
            Some(OptionValue::Bool(b)) => Ok(*b),
            Some(other) => Err(format!("option {name}: {other}, not true or false")),
        }
    }

    /// One of `choices`.
    ///
    /// # Errors
    /// It has another type, or is none of them.
    pub fn choice(
        &mut self,
        name: &'static str,
        default: &'static str,
        choices: &[&'static str],
    ) -> Result<&'static str, String> {
        let Some(value) = self.value(name) else { return Ok(default) };
        let found = match value {
            OptionValue::Text(t) => choices.iter().find(|c| **c == t.as_str()),
            _ => None,
        };
        let all = || choices.join(", ");
        found.copied().ok_or_else(|| format!("option {name}: {value}, not one of {}", all()))
    }

    /// Ends reading: what was given and never asked for is an error, so that no typing error passes
    /// in silence.
    ///
    /// # Errors
    /// The first such option, and the names that are known.
    pub fn finish(self) -> Result<(), String> {
        let known = |name: &str| self.known.contains(&name);
        match self.options.keys().find(|name| !known(name)) {
            None => Ok(()),
            Some(name) if self.known.is_empty() => {
                Err(format!("option {name}: not known; this strategy has no options"))
            }
            Some(name) => {
                let all = self.known.join(", ");
                Err(format!("option {name}: not known; known are {all}"))
            }
        }
    }

    fn value(&mut self, name: &'static str) -> Option<&'a OptionValue> {
        self.known.push(name);
        self.options.get(name)
    }
}

/// Announces a strategy; const-constructible, for `inventory::submit!`.
///
/// `inventory` registers nothing from a crate that nobody names: the binary must say `use
/// plugin_crate as _;`.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The strategy's name in the configuration.
    pub name: &'static str,
    /// [`API`] of the build it was written for.
    pub api: u32,
    /// One line for `memreg strategies`.
    pub about: &'static str,
    /// Whether it works on such a device.
    pub check: fn(&Caps) -> Result<(), Reject>,
    /// Makes one for a connection; the text of an error names the option at fault.
    pub build: fn(&Options) -> Result<Box<dyn MemReg>, String>,
}

inventory::collect!(Entry);

/// All entries that are linked into this program, in no particular order.
pub fn linked() -> impl Iterator<Item = &'static Entry> {
    inventory::iter::<Entry>.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(list: &[(&str, OptionValue)]) -> Options {
        list.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }

    #[test]
    fn options_are_read_by_type_and_every_error_names_its_option() {
        use OptionValue::{Bool, Float, Int, Text};
        let given = options(&[("a", Int(7)), ("b", Bool(true)), ("c", Text("x".into()))]);
        let mut r = OptionReader::new(&given);
        assert_eq!(r.int("a", 1, 0..=7), Ok(7));
        assert_eq!(r.flag("b", false), Ok(true));
        assert_eq!(r.choice("c", "y", &["x", "y"]), Ok("x"));
        assert_eq!(r.finish(), Ok(()));
        let none = Options::new();
        let mut r = OptionReader::new(&none);
        assert_eq!((r.int("a", 1, 0..=7), r.flag("b", true)), (Ok(1), Ok(true)));
        assert_eq!(r.choice("c", "y", &["x", "y"]), Ok("y"));

        for value in [Int(-1), Int(8), Float(1.0), Bool(true), Text("7".into())] {
            let given = options(&[("a", value)]);
            let e = OptionReader::new(&given).int("a", 1, 0..=7).unwrap_err();
            assert!(e.starts_with("option a: ") && e.ends_with("in 0..=7"), "{e}");
        }
        for value in [Int(1), Text("true".into())] {
            let given = options(&[("a", value)]);
            let e = OptionReader::new(&given).flag("a", true).unwrap_err();
            assert!(e.starts_with("option a: ") && e.ends_with("not true or false"), "{e}");
            let e = OptionReader::new(&given).choice("a", "x", &["x", "y"]).unwrap_err();
            assert!(e.starts_with("option a: ") && e.ends_with("not one of x, y"), "{e}");
        }
        let given = options(&[("b", Int(1))]);
        let mut r = OptionReader::new(&given);
        r.flag("a", true).unwrap();
        assert_eq!(r.finish().unwrap_err(), "option b: not known; known are a");
        let r = OptionReader::new(&given);
        assert_eq!(r.finish().unwrap_err(), "option b: not known; this strategy has no options");
    }
}
