//! Whether the writes of a device may pass each other on their way to memory.

use super::Caps;
use std::fmt;

/// What is wanted of a registration's ordering.
///
/// Relaxed, a device may write the bytes of one operation to memory in any order. This library
/// looks at bytes only after the completion behind them, so either is right; on some hosts relaxed
/// is much faster.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RelaxedOrdering {
    /// Whatever the device does by itself: nothing is asked for.
    #[default]
    Auto,
    /// Relaxed where the device can.
    Try,
    /// Relaxed, or an error.
    Require,
    /// Strict, or an error.
    Off,
}

/// What a device makes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrderingPlan {
    /// Registrations of data ask for it.
    pub relaxed: bool,
    /// What is not as it was wished, and works.
    pub note: Option<&'static str>,
}

/// The setting and the device contradict each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("device.relaxed_ordering = \"{setting}\" cannot be had: {why}")]
pub struct OrderingConflict {
    /// What was wanted.
    pub setting: RelaxedOrdering,
    /// Why not.
    pub why: &'static str,
}

impl RelaxedOrdering {
    /// What a device of these attributes makes of it.
    ///
    /// # Errors
    /// [`OrderingConflict`].
    pub fn plan(self, caps: &Caps) -> Result<OrderingPlan, OrderingConflict> {
        let (can, must) = (caps.relaxed_ordering, caps.relaxed_ordering_always);
        let conflict = |why| Err(OrderingConflict { setting: self, why });
        let relaxed = matches!(self, RelaxedOrdering::Try | RelaxedOrdering::Require);
        match self {
            RelaxedOrdering::Off if must => conflict("the device has relaxed keys only"),
            RelaxedOrdering::Require if !can && !must => {
                conflict("the device has no relaxed ordering; \"try\" goes without")
            }
            RelaxedOrdering::Try if !can && !must => {
                let note = Some("the device has no relaxed ordering: it works without");
                Ok(OrderingPlan { relaxed: false, note })
            }
            _ => Ok(OrderingPlan { relaxed: relaxed && can, note: None }),
        }
    }
}

impl fmt::Display for RelaxedOrdering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RelaxedOrdering::Auto => "auto",
            RelaxedOrdering::Try => "try",
            RelaxedOrdering::Require => "require",
            RelaxedOrdering::Off => "off",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RelaxedOrdering::{Auto, Off, Require, Try};

    fn device(can: bool, must: bool) -> Caps {
        Caps { relaxed_ordering: can, relaxed_ordering_always: must, ..Caps::default() }
    }

    #[test]
    fn b58_try_works_without_and_require_is_an_error() {
        let none = device(false, false);
        let tried = Try.plan(&none).unwrap();
        assert!(!tried.relaxed && tried.note.unwrap().contains("works without"));
        assert_eq!(
            Require.plan(&none).unwrap_err().to_string(),
            "device.relaxed_ordering = \"require\" cannot be had: the device has no relaxed \
             ordering; \"try\" goes without"
        );
        let can = device(true, false);
        for (setting, relaxed) in [(Auto, false), (Try, true), (Require, true), (Off, false)] {
            assert_eq!(setting.plan(&can), Ok(OrderingPlan { relaxed, note: None }), "{setting}");
        }
    }

    #[test]
    fn b59_off_conflicts_with_a_device_that_only_has_relaxed_keys() {
        let must = device(true, true);
        assert_eq!(
            Off.plan(&must).unwrap_err().to_string(),
            "device.relaxed_ordering = \"off\" cannot be had: the device has relaxed keys only"
        );
        assert!([Auto, Try, Require].iter().all(|s| s.plan(&must).is_ok()));
        assert_eq!(Off.plan(&device(false, false)), Auto.plan(&device(false, false)));
    }
}
