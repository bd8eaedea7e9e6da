//! Runs a scenario under many schedules, and says how many.
#![allow(clippy::unwrap_used)] // a test

use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Tries every schedule there is.
///
/// # Panics
/// In the first schedule in which the scenario does, with what replays it.
#[allow(dead_code, reason = "each crate explores in its own way")]
pub fn every(name: &str, scenario: impl Fn() + Send + Sync + 'static) {
    let n = run(name, DfsScheduler::new(Some(MOST), false), scenario);
    assert!(n < MOST, "{name}: more schedules than can be tried");
    println!("\nthreads: {name}: all {n} schedules");
}

/// Tries `n` schedules that switch at random and `n` that switch rarely, at the worst moments.
///
/// # Panics
/// As [`every`].
#[allow(dead_code, reason = "each crate explores in its own way")]
pub fn many(name: &str, n: usize, scenario: impl Fn() + Send + Sync + 'static) {
    let scenario = Arc::new(scenario);
    let again = Arc::clone(&scenario);
    run(name, RandomScheduler::new_from_seed(SEED, n), move || scenario());
    run(name, PctScheduler::new_from_seed(SEED, PREEMPTIONS, n), move || again());
    println!("\nthreads: {name}: {} schedules", 2 * n);
}

fn run(
    name: &str,
    scheduler: impl Scheduler + 'static,
    scenario: impl Fn() + Send + Sync + 'static,
) -> usize {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.silence_warnings = true;
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let counted = move || {
        count.fetch_add(1, Ordering::Relaxed);
        scenario();
    };
    catch_unwind(AssertUnwindSafe(|| Runner::new(scheduler, config).run(counted))).unwrap_or_else(
        |panic| {
            println!("\nthreads: {name}: fails in schedule {}", begun.load(Ordering::Relaxed));
            resume_unwind(panic)
        },
    )
}

/// The same schedules in every run.
const SEED: u64 = 0x7468_7265_6164;
/// Context switches that a rare-switch schedule forces.
const PREEMPTIONS: usize = 3;
/// A scenario with all its schedules has fewer.
const MOST: usize = 2_000_000;
/// Bytes: unoptimised frames of a whole transport are large.
const STACK: usize = 1 << 19;
