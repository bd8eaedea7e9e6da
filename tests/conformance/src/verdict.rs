//! How a check says that it cannot go on.

use std::error::Error;
use std::fmt::Display;

/// Why a check ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It does not apply.
    Skip(String),
    /// It found something wrong.
    Fail(String),
}

/// The result of a check.
pub(crate) type Verdict = Result<(), Stop>;

/// Ends the check as failed, with a formatted text, unless the condition holds.
macro_rules! ensure {
    ($cond:expr, $($text:tt)+) => {
        if !$cond {
            return Err($crate::verdict::Stop::Fail(format!($($text)+)));
        }
    };
}
pub(crate) use ensure;

/// Ends the check as failed unless both are equal, and shows both.
macro_rules! ensure_eq {
    ($got:expr, $want:expr, $($text:tt)+) => {{
        let (got, want) = (&$got, &$want);
        if got != want {
            let what = format!($($text)+);
            return Err($crate::verdict::Stop::Fail(format!("{what}: {got:?}, not {want:?}")));
        }
    }};
}
pub(crate) use ensure_eq;

/// Ends the check as failed.
pub(crate) fn fail<T>(what: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Fail(what.into()))
}

/// Ends the check as not applicable, for a reason that the strategy has declared.
pub(crate) fn skip<T>(why: &str) -> Result<T, Stop> {
    Err(Stop::Skip(why.to_owned()))
}

/// Turns an error into a failure with its causes.
pub(crate) trait Because<T> {
    /// Fails the check with `what` and the error's chain.
    fn because(self, what: impl Display) -> Result<T, Stop>;
}

impl<T, E: Error> Because<T> for Result<T, E> {
    fn because(self, what: impl Display) -> Result<T, Stop> {
        self.map_err(|e| {
            let mut text = format!("{what}: {e}");
            let mut cause = e.source();
            while let Some(c) = cause {
                text.push_str(": ");
                text.push_str(&c.to_string());
                cause = c.source();
            }
            Stop::Fail(text)
        })
    }
}

impl<T> Because<T> for Option<T> {
    fn because(self, what: impl Display) -> Result<T, Stop> {
        self.ok_or_else(|| Stop::Fail(what.to_string()))
    }
}
