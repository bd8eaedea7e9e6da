//! Runs a scenario under every schedule with every value that the orderings allow a load to give.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Tries every execution there is.
///
/// # Panics
/// In the first one in which the scenario does.
pub fn every(name: &str, scenario: impl Fn() + Send + Sync + 'static) {
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let counted = move || {
        count.fetch_add(1, Ordering::Relaxed);
        scenario();
    };
    let run = catch_unwind(AssertUnwindSafe(|| loom::model(counted)));
    let n = begun.load(Ordering::Relaxed);
    if let Err(panic) = run {
        println!("\nthreads: {name}: fails in execution {n}");
        resume_unwind(panic);
    }
    println!("\nthreads: {name}: all {n} executions");
}
