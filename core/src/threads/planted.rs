//! That a wrong order is found, shown by planting it.
#![allow(clippy::unwrap_used)] // a test

/// Runs a test of this binary again with one planted defect; it must fail.
pub fn finds(defect: &str, test: &str) {
    let binary = std::env::current_exe().unwrap();
    let run = std::process::Command::new(binary)
        .args([test, "--exact", "--nocapture"])
        .env("MEMREG_TEST_MUTANT", defect)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    let found = text.lines().find(|l| l.starts_with("threads: ") && l.contains(": fails in "));
    assert!(!run.status.success(), "{defect}: not found by {test}:\n{text}");
    let found = found.unwrap_or("threads: not by a schedule");
    println!("\ndefect {defect}: {}", found.trim_start_matches("threads: "));
}
