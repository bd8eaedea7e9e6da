//! The whole transport under faults, from one seed a run.
//!
//! A seed decides workload, strategies, device attributes, sizes, order and faults; time is
//! virtual and everything runs in one thread. Each seed runs twice and must give the same log.
//! A violation prints the line that repeats it, and where the traces of all sides are, which
//! `memreg audit` reads.
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
mod keep;
mod liar;
mod life;
mod log;
mod message;
mod ops;
mod peer;
mod plan;
#[cfg(mutants)]
mod planted;
mod print;
mod side;
mod small;
mod tally;
mod world;

use tally::Tally;
use world::World;

/// Fresh seeds of a plain `cargo test`.
const FRESH: u64 = 150;

/// A long sweep says how far it is each time so many seeds are done.
const PROGRESS: usize = 5000;

#[test]
fn seeds() {
    if let Some(seed) = number("MEMREG_TEST_SEED") {
        assert!(World::run(seed, true).is_ok(), "seed {seed} failed");
        return;
    }
    let fixed = include_str!("../seeds.txt").lines().filter(|l| !l.starts_with('#'));
    let fixed = fixed.filter_map(|l| l.split_whitespace().next()).map(|l| l.parse().unwrap());
    let count = number("MEMREG_TEST_SEED_COUNT").unwrap_or(FRESH);
    let (mut tally, mut failed) = (Tally::default(), vec![]);
    for (i, seed) in fixed.chain(fresh_seeds(count)).enumerate() {
        match run_twice(seed) {
            Ok(t) => tally.add(t),
            Err(()) => failed.push(seed),
        }
        if (i + 1) % PROGRESS == 0 {
            eprintln!("{} of {count} seeds, {} violations", i + 1, failed.len());
        }
    }
    // On a line of its own, whatever the harness has printed before.
    println!("\n{}", tally.line(failed.len()));
    for seed in &failed {
        println!("MEMREG_TEST_SEED={seed} cargo test --test sim seeds -- --nocapture");
    }
    assert!(failed.is_empty(), "{} seeds failed", failed.len());
}

#[test]
fn a_failure_leaves_traces_that_an_audit_reads() {
    let mut steps = 0;
    let run = World::run_with(SAFE, false, |_| {
        steps += 1;
        assert!(steps < 90, "made to fail");
    });
    let traces = run.map(drop).expect_err("it was made to fail");
    assert!(traces.len() >= 2, "a trace a side: {traces:?}");
    for path in traces {
        let text = std::fs::read_to_string(&path).unwrap();
        let audit = memreg::audit::audit(&text).unwrap();
        assert!(audit.violations.is_empty() && audit.lines > 0, "{}: {audit}", path.display());
        std::fs::remove_file(path).unwrap();
    }
}

/// Any seed without violations that no list has.
const SAFE: u64 = 987_654_321;

/// Seeds that no list has, from a base that the caller names.
fn fresh_seeds(count: u64) -> impl Iterator<Item = u64> {
    let base = base(&std::env::var("MEMREG_TEST_SEED_BASE").unwrap_or_default());
    (0..count).map(move |i| base.wrapping_add(i))
}

/// Runs a seed twice; both runs must tell the same story.
fn run_twice(seed: u64) -> Result<Tally, ()> {
    let run = || World::run(seed, false).map_err(drop);
    let (first, second) = (run()?, run()?);
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
