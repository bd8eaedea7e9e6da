//! What is wrong with a configuration, or odd about it.

use std::fmt;

use memreg_core::Disposition;

/// One thing that is wrong, or, among the warnings, has no effect.
///
/// `Display` prints it on one line: source, key, value, message, allowed values, near miss.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Where it was said: `path:line`, the variable's name, `--set`, `command line` or `default`.
    pub source: String,
    /// The key's path, such as `queues.credits`; empty if the source as a whole is at fault.
    pub key: String,
    /// The value as given, escaped and shortened; empty if there is none.
    pub value: String,
    /// What is wrong.
    pub message: String,
    /// What would be right; empty if there is nothing to list.
    pub allowed: String,
    /// The nearest valid name.
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.source)?;
        if !self.key.is_empty() {
            f.write_str(&self.key)?;
            if !self.value.is_empty() {
                write!(f, " = {}", self.value)?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.message)?;
        if !self.allowed.is_empty() {
            write!(f, "; allowed: {}", self.allowed)?;
        }
        if let Some(hint) = &self.hint {
            write!(f, " (did you mean {hint}?)")?;
        }
        Ok(())
    }
}

/// Everything that is wrong with a configuration, in the order of its sources.
///
/// `Display` prints one problem a line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", Lines(problems, warnings))]
pub struct ConfigErrors {
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl ConfigErrors {
    pub(crate) fn new(problems: Vec<Problem>, warnings: Vec<Problem>) -> ConfigErrors {
        ConfigErrors { problems, warnings }
    }

    /// What must be mended; never empty.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// What was also found, but would not have stopped the load.
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// Loading the same sources again cannot succeed.
    pub fn disposition(&self) -> Disposition {
        Disposition::Fatal
    }
}

/// Escapes what would break the line or the terminal, and shortens.
pub(crate) fn printable(text: &str) -> String {
    let mut out = escaped(&text.chars().take(SHOWN_CHARS).collect::<String>(), "'");
    if text.chars().nth(SHOWN_CHARS).is_some() {
        out.push_str("...");
    }
    out
}

/// Escapes what cannot be printed, and quotes and backslashes unless they are to be `kept`.
pub(crate) fn escaped(text: &str, kept: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if kept.contains(c) { out.push(c) } else { out.extend(c.escape_debug()) }
    }
    out
}

/// Problems, then warnings, one a line.
struct Lines<'a>(&'a [Problem], &'a [Problem]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            let newline = if i == 0 { "" } else { "\n" };
            write!(f, "{newline}{problem}")?;
        }
        for warning in self.1 {
            write!(f, "\nwarning: {warning}")?;
        }
        Ok(())
    }
}

/// Longer texts are cut in messages: they may be a whole file pasted into a variable.
const SHOWN_CHARS: usize = 80;
