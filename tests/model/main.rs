//! Random operations against a plain map of key → bytes, compared after every one.
//!
//! - `known`: lists that run first
//! - `op`: what can happen, and how often
//! - `plain`: the model: which keys reach which bytes, and what each operation must do to them
//! - `world`: an owner, a peer and the model side by side
//!
//! One test for each strategy and device. A failure shrinks to the fewest operations that show it
//! and leaves its seed in `regressions.txt`, from where it runs first until it is mended. The list
//! then goes to `known`, which does not depend on how lists are drawn.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod known;
mod op;
mod plain;
mod world;

use memreg::core::device::Caps;
use memreg::core::device::sim::profile;
use memreg::strategies::{Fmr, Frwr, Guarded, Physical};
use op::{Op, ops};
use proptest::test_runner::{Config, FileFailurePersistence, TestError, TestRunner};
use world::{Subject, World};

/// Random lists for one subject: some seconds in a debug build.
const CASES: u32 = 300;

fn run(subject: &Subject) {
    for list in known::known() {
        println!("{}:\n{}", subject.name, lines(&list));
        World::new(subject).run(&list);
    }
    let failures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/model/regressions.txt");
    let config = Config {
        cases: CASES,
        max_shrink_iters: 4096,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(failures))),
        source_file: Some(file!()),
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&ops(), |list| {
        World::new(subject).run(&list);
        Ok(())
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, list)) => panic!("{}: {why}\n{}", subject.name, lines(&list)),
        Err(e) => panic!("{}: {e}", subject.name),
    }
}

fn lines(list: &[Op]) -> String {
    list.iter().map(|op| format!("    {op:?},\n")).collect()
}

fn caps(name: &str) -> Caps {
    profile::builtin(name).unwrap().caps
}

#[test]
fn frwr_on_generic() {
    run(&Subject::by_wr("frwr on generic", caps("generic"), || Frwr::new().into()));
}

#[test]
fn frwr_with_gaps() {
    run(&Subject::by_wr("frwr with gaps", caps("connectx-5-like"), || Frwr::new().into()));
}

#[test]
fn frwr_on_shallow_page_lists() {
    let caps = Caps { max_fast_reg_page_list_len: 2, ..caps("shallow") };
    run(&Subject::by_wr("frwr on page lists of 2", caps, || Frwr::new().into()));
}

#[test]
fn frwr_on_a_device_of_few_regions() {
    // The message buffers take two; the pool finds its end now and then.
    let caps = Caps { max_mr: 12, ..caps("generic") };
    run(&Subject::by_wr("frwr on 12 MRs", caps, || Frwr::new().into()));
}

#[test]
fn frwr_on_the_shortest_queue() {
    let subject = Subject::by_wr("frwr, one operation", caps("generic"), || Frwr::new().into());
    run(&subject.credits(1));
}

#[test]
fn frwr_over_windows() {
    run(&Subject::by_wr("frwr over windows", caps("rxe"), || Frwr::new().into()));
}

#[test]
fn frwr_over_few_windows() {
    let caps = Caps { max_mw: 4, ..caps("rxe") };
    run(&Subject::by_wr("frwr over 4 windows", caps, || Frwr::new().into()));
}

#[test]
fn frwr_as_a_plugin() {
    let guarded = || Guarded::new("plugin", Box::new(Frwr::new())).into();
    run(&Subject::by_wr("frwr as a plugin", caps("generic"), guarded));
}

#[test]
fn fmr_on_generic() {
    run(&Subject::by_verb("fmr on generic", caps("generic"), || Fmr::new().into()));
}

#[test]
fn fmr_without_fast_registration() {
    let caps = caps("no-fast-registration");
    run(&Subject::by_verb("fmr without fast registration", caps, || Fmr::new().into()));
}

#[test]
fn physical_on_generic() {
    run(&Subject::by_copy("physical", caps("generic"), || Physical::new(true).into()));
}
