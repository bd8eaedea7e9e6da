//! The suite that every strategy must pass: on the software device, with real bytes.
//!
//! ```text
//! Subject (how to make the strategy, on which device) ──run──► Report: one outcome a check
//! ```
//! Each check opens an owner, whose strategy is under test, and a peer on a node of its own, and
//! looks at what the peer can and cannot reach. At its end the books must balance: every buffer
//! returned, every loan of the device ended, no key live, nothing leaked.
//!
//! A strategy's author needs one test of three lines:
//!
//! ```ignore
//! let caps = memreg_core::device::Caps::default();
//! let subject = memreg_conformance::Subject::new("mine on generic", caps, Mine::new);
//! memreg_conformance::assert_passes(&subject);
//! ```
//!
//! Checks that do not apply are skipped, never passed, and only for what the strategy declares in
//! its `Limits`: `remote_invalidation = false`, `arena_bytes > 0` (it copies, and never revokes its
//! key), `wr_per_request = 1` (it grants and revokes by verb).
#![forbid(unsafe_code)]

mod audit;
mod checks;
mod initiator;
mod machine;
mod pair;
mod report;
mod subject;
mod verdict;

pub use report::{Outcome, Report};
pub use subject::Subject;

use memreg_core::MemReg;
use std::panic::{AssertUnwindSafe, catch_unwind};
use verdict::{Stop, Verdict};

/// Runs every check on `subject`; a panic inside one is that check's failure.
#[must_use]
pub fn run<S: MemReg>(subject: &Subject<S>) -> Report {
    let outcomes = checks::all::<S>().into_iter().map(|(name, check)| {
        let verdict = catch_unwind(AssertUnwindSafe(|| check(subject)));
        (name, outcome(verdict))
    });
    Report { label: subject.label.clone(), results: outcomes.collect() }
}

/// The names of all checks, in the order in which they run.
#[must_use]
pub fn names() -> Vec<&'static str> {
    checks::all::<initiator::Initiator>().into_iter().map(|(name, _)| name).collect()
}

/// Runs every check, prints the report's line, and fails the calling test if a check failed.
///
/// # Panics
/// If a check failed; the text has one line for each.
#[allow(clippy::panic, clippy::print_stdout, reason = "called from tests, to fail and to report")]
pub fn assert_passes<S: MemReg>(subject: &Subject<S>) {
    let report = run(subject);
    println!("{report}");
    if !report.passed() {
        panic!("{report}");
    }
}

fn outcome(verdict: std::thread::Result<Verdict>) -> Outcome {
    match verdict {
        Ok(Ok(())) => Outcome::Passed,
        Ok(Err(Stop::Skip(why))) => Outcome::Skipped(why),
        Ok(Err(Stop::Fail(what))) => Outcome::Failed(what),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Outcome::Failed(format!("panicked: {}", text.unwrap_or_default()))
        }
    }
}
