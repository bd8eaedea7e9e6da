//! The bugs that others had in the years before, each as a scenario that this crate survives.
//!
//! A test is named after its row: `h_20_…`. `cargo test history` runs them all, and its test
//! `index` prints where each row is held: some are natural to test elsewhere and not repeated here.
#![allow(clippy::unwrap_used, clippy::panic)] // a test

#[path = "../engine/rig.rs"]
mod rig;
#[allow(dead_code, reason = "each check uses its own part of the scanner")]
#[path = "../scan/source.rs"]
mod source;

/// In a module of this name, so that the filter `history` finds them.
#[path = "."]
mod history {
    mod access;
    mod drain;
    mod index;
    mod pool;
    mod queue;
    mod reconnect;
    mod setup;
}
