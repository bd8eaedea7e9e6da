//! The README says what is so: its configuration reference, its commands, its links, its tables.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use memreg::Registry;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn readme() -> String {
    std::fs::read_to_string(root().join("README.md")).unwrap()
}

/// The text of the first fenced block of this language, and where it lies.
fn block<'a>(text: &'a str, language: &str) -> (usize, &'a str) {
    let open = format!("```{language}\n");
    let start = text.find(&open).unwrap() + open.len();
    let end = start + text[start..].find("```").unwrap();
    (start, &text[start..end])
}

#[test]
fn the_configuration_reference_is_the_generated_one() {
    let text = readme();
    let (start, shown) = block(&text, "toml");
    let generated = memreg::config::reference();
    if std::env::var_os("MEMREG_TEST_BLESS").is_some() {
        let (before, after) = (&text[..start], &text[start + shown.len()..]);
        let text = format!("{before}{generated}{after}");
        std::fs::write(root().join("README.md"), text).unwrap();
        return;
    }
    let same = shown == generated;
    assert!(same, "out of date: MEMREG_TEST_BLESS=1 cargo test --test readme");
}

#[test]
fn the_first_screen_has_the_two_commands_and_a_result() {
    let text = readme();
    let screen: Vec<&str> = text.lines().take(40).collect();
    for line in ["cargo run --release -- compare", "cargo test"] {
        assert!(screen.contains(&line), "{line}");
    }
    assert!(screen.iter().any(|l| l.starts_with("| software device ")));
    // What it is, before how to run it: a heading and three lines.
    assert!(screen[2..5].iter().all(|l| !l.is_empty()) && screen[5].is_empty());
}

#[test]
fn links_lead_somewhere() {
    let text = readme();
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let broken: Vec<&str> = links.filter(|l| !root().join(l).exists()).collect();
    assert_eq!(broken, Vec::<&str>::new());
}

#[test]
fn every_strategy_has_its_column() {
    let text = readme();
    let header = text.lines().find(|l| l.starts_with("| |")).unwrap();
    for name in Registry::new().unwrap().names() {
        assert!(header.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn examples_are_short_and_start_with_what_they_show() {
    let dir = std::fs::read_dir(root().join("examples")).unwrap();
    let mut files: Vec<PathBuf> = dir.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "rs"));
    assert!(files.len() >= 4);
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("//! ") && text.lines().count() < 100, "{}", path.display());
    }
}
