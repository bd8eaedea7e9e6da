//! Hostile input without a fuzzer: every file of `fuzz/corpus`, and mutations of them.
//!
//! The targets say what must hold; they are the files that `fuzz/run` gives to libFuzzer.
//!
//! - `MEMREG_TEST_SEED_BASE=text`: which mutations, such as a commit hash.
//! - `MEMREG_TEST_FUZZ_COUNT=n`: how many of each target.
//! - `MEMREG_TEST_FUZZ=hex`: only this input; name the target, too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test

mod mutate;
#[path = "../../fuzz/src/targets/mod.rs"]
mod targets;

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

#[test]
fn config() {
    run("config", targets::config, 2000);
}

#[test]
fn profile() {
    run("profile", targets::profile, 1000);
}

#[test]
fn trace() {
    run("trace", targets::trace, 20_000);
}

#[test]
fn segment() {
    run("segment", targets::segment, 4000);
}

#[test]
fn completions() {
    run("completions", targets::completions, 4000);
}

#[cfg(feature = "verbs")]
#[test]
fn wc() {
    run("wc", targets::wc, 20_000);
}

#[cfg(feature = "verbs")]
#[test]
fn hello() {
    run("hello", targets::hello, 20_000);
}

fn run(name: &str, target: fn(&[u8]), mutations: u64) {
    if let Ok(hex) = std::env::var("MEMREG_TEST_FUZZ") {
        target(&from_hex(&hex));
        return;
    }
    let corpus = corpus(name);
    let count = match std::env::var("MEMREG_TEST_FUZZ_COUNT") {
        Ok(n) => n.parse().unwrap(),
        Err(_) => mutations,
    };
    let mut rng = fastrand::Rng::with_seed(seed(name));
    let mutated = (0..count).map(|_| mutate::mutate(&corpus, &mut rng));
    let (mut tried, mut failed) = (0, 0);
    for input in corpus.iter().cloned().chain(mutated) {
        tried += 1;
        if catch_unwind(|| target(&input)).is_err() {
            failed += 1;
            println!("MEMREG_TEST_FUZZ={} cargo test --test fuzz {name}", to_hex(&input));
        }
    }
    println!("\nfuzz: {name}: {} inputs kept, {tried} tried, {failed} failed", corpus.len());
    assert_eq!(failed, 0, "each line above repeats one");
}

/// The inputs that are kept, in the order of their names.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 4, "{name}: the corpus is gone");
    files.iter().map(|f| fs::read(f).unwrap()).collect()
}

/// A number from the target and the seed base; without one, the same in every run.
fn seed(name: &str) -> u64 {
    let base = std::env::var("MEMREG_TEST_SEED_BASE").unwrap_or_default();
    let bytes = base.bytes().chain(name.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn from_hex(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().map(|d| (d as char).to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}
