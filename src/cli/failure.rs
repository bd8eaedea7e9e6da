//! Why a command failed, and the exit code that says so.

use crate::OpenError;
use memreg_config::ConfigErrors;
use memreg_core::device::{OrderingConflict, RelaxedOrdering};
use memreg_selector::SelectError;

/// The workload failed.
pub(super) const WORKLOAD: u8 = 1;
/// Usage or configuration.
pub(super) const USAGE: u8 = 2;
/// No suitable device or strategy.
pub(super) const UNSUITABLE: u8 = 3;

/// A failure for people, and its exit code for programs.
#[derive(Debug)]
pub(super) struct Failure {
    code: u8,
    error: anyhow::Error,
}

impl Failure {
    /// The workload ran and went wrong.
    pub fn workload(error: impl Into<anyhow::Error>) -> Failure {
        Failure { code: WORKLOAD, error: error.into() }
    }

    /// The user's request makes no sense as it stands.
    pub fn usage(error: impl Into<anyhow::Error>) -> Failure {
        Failure { code: USAGE, error: error.into() }
    }

    /// The request makes sense, but not here.
    pub fn unsuitable(error: impl Into<anyhow::Error>) -> Failure {
        Failure { code: UNSUITABLE, error: error.into() }
    }

    /// Every problem of the configuration.
    pub fn config(errors: ConfigErrors) -> Failure {
        Failure::usage(errors)
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// What to print, a line each.
    pub fn lines(&self) -> Vec<String> {
        if let Some(e) = self.error.downcast_ref::<ConfigErrors>() {
            let warnings = e.warnings().iter().map(|w| format!("(warning) {w}"));
            return e.problems().iter().map(ToString::to_string).chain(warnings).collect();
        }
        chain(&self.error).lines().map(str::to_owned).collect()
    }
}

/// The error and its causes on one line; a cause that says what its error has said is left out.
pub(super) fn chain(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = error.chain().map(ToString::to_string).collect();
    parts.dedup();
    parts.join(": ")
}

impl From<OpenError> for Failure {
    fn from(e: OpenError) -> Failure {
        match e {
            OpenError::UnknownProfile { .. }
            | OpenError::Ordering {
                why: OrderingConflict { setting: RelaxedOrdering::Off, .. },
                ..
            }
            | OpenError::Registry(_)
            | OpenError::Select(SelectError::Unknown { .. }) => Failure::usage(e),
            _ => Failure::unsuitable(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let e = anyhow::anyhow!("inner").context("outer").context("outer");
        assert_eq!(Failure::workload(e).lines(), ["outer: inner"]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn b93_b88_a_device_that_cannot_be_had_is_exit_3_and_never_another_one() {
        use memreg_core::device::host::{DeviceStatus, Found, OpenError as No};
        let library = "librxe-rdmav*.so".to_owned();
        let status = DeviceStatus::NoProvider { library };
        let found = Found { name: "rxe0".into(), status, numa_node: None };
        for (why, part) in [
            (No::Open { name: "mlx5_bond_0".into(), errno: 1 }, "\"mlx5_bond_0\": open: errno 1"),
            (No::NoDevice { found: vec![found.clone()] }, "librxe-rdmav*.so is missing"),
            (No::Unusable(found), "rxe0 (kernel device without user library"),
        ] {
            let failure = Failure::from(OpenError::Verbs(why));
            let text = failure.lines().join("\n");
            assert_eq!(failure.code(), UNSUITABLE);
            assert!(text.contains(part), "{text}");
            assert!(text.contains("device.kind = \"sim\""), "offered, not taken: {text}");
        }
    }

    #[test]
    fn each_line_of_an_error_is_a_line() {
        let f = Failure::usage(anyhow::anyhow!("a\nb"));
        assert_eq!((f.lines().len(), f.code()), (2, USAGE));
    }
}
