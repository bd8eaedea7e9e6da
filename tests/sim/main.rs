//! The whole transport under faults, from one seed a run.
//!
//! A seed decides workload, strategies, device attributes, sizes, order and faults; time is
//! virtual and everything runs in one thread. Each seed runs twice and must give the same log.
//! A violation prints the line that repeats it.
//!
//! - `MEMREG_TEST_SEED=n`: only this seed, with every step printed.
//! - `MEMREG_TEST_SEED_BASE=text`: where the fresh seeds start, such as a commit hash.
//! - `MEMREG_TEST_SEED_COUNT=n`: how many fresh seeds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test

mod book;
mod bytes;
mod check;
mod exhaustive;
mod faults;
mod finish;
mod four;
mod life;
mod log;
mod message;
mod ops;
mod peer;
mod plan;
mod print;
mod side;
mod small;
mod tally;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use tally::Tally;
use world::World;

/// Fresh seeds of a plain `cargo test`.
const FRESH: u64 = 150;

#[test]
fn seeds() {
    if let Some(seed) = number("MEMREG_TEST_SEED") {
        World::run(seed, true);
        return;
    }
    let fixed = include_str!("../seeds.txt").lines().filter(|l| !l.starts_with('#'));
    let fixed = fixed.filter_map(|l| l.split_whitespace().next()).map(|l| l.parse().unwrap());
    let base = base(&std::env::var("MEMREG_TEST_SEED_BASE").unwrap_or_default());
    let count = number("MEMREG_TEST_SEED_COUNT").unwrap_or(FRESH);
    let fresh = (0..count).map(|i| base.wrapping_add(i));
    let (mut tally, mut failed) = (Tally::default(), vec![]);
    for seed in fixed.chain(fresh) {
        match run_twice(seed) {
            Ok(t) => tally.add(t),
            Err(()) => failed.push(seed),
        }
    }
    // On a line of its own, whatever the harness has printed before.
    println!("\n{}", tally.line(failed.len()));
    for seed in &failed {
        println!("MEMREG_TEST_SEED={seed} cargo test --test sim -- --nocapture");
    }
    assert!(failed.is_empty(), "{} seeds failed", failed.len());
}

/// Runs a seed twice; both runs must tell the same story.
fn run_twice(seed: u64) -> Result<Tally, ()> {
    let run = || catch_unwind(AssertUnwindSafe(|| World::run(seed, false)));
    let (first, second) = (run().map_err(drop)?, run().map_err(drop)?);
    if first.0 != second.0 {
        eprintln!("seed {seed}: two runs differ");
        return Err(());
    }
    Ok(first.1)
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

/// A number from any text; equal texts give equal numbers.
fn base(text: &str) -> u64 {
    let mut log = log::Log::new(false);
    log.line(format_args!("{text}"));
    // Short numbers are easier to hand on.
    log.hash() >> 24
}
