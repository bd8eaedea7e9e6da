//! Hostile input under libFuzzer: `fuzz/run`.
#![forbid(unsafe_code)]

pub mod targets;
