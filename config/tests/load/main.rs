//! The loader from outside: every key, every source, every trap.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail that way")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use memreg_config::{
    CapsOverride, ConfigErrors, DeviceSettings, Loaded, Loader, Problem, ProfileSource, Settings,
    StrategyChoice, VerbsSettings, reference,
};
use memreg_core::device::Caps;
use memreg_core::plugin::OptionValue;

mod conflicts;
mod problems;
mod sources;
mod values;

/// Loads `text` alone.
fn toml(text: &str) -> Result<Loaded, ConfigErrors> {
    Loader::new().text("t.toml", text).load()
}

/// Loads one variable alone.
fn env(name: &str, value: &str) -> Result<Loaded, ConfigErrors> {
    Loader::new().env([(name, value)]).load()
}

/// The only problem that there must be.
fn only(result: Result<Loaded, ConfigErrors>) -> Problem {
    let e = result.unwrap_err();
    assert_eq!(e.problems().len(), 1, "{e}");
    e.problems()[0].clone()
}

fn ok(result: Result<Loaded, ConfigErrors>) -> Loaded {
    result.unwrap_or_else(|e| panic!("{e}"))
}

/// A file of this test run.
fn temp(name: &str, text: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

fn value(loaded: &Loaded, key: &str) -> String {
    loaded.origins.iter().find(|row| row.key == key).unwrap().value.clone()
}

fn origin(loaded: &Loaded, key: &str) -> String {
    loaded.origins.iter().find(|row| row.key == key).unwrap().origin.clone()
}

/// The variable that sets a key.
fn variable(key: &str) -> String {
    format!("MEMREG__{}", key.to_uppercase().replace('.', "__"))
}
