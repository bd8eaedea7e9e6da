//! `memreg audit`, and `compare --trace` that gives it something to read.

use crate::{Shape, check, json, memreg, run, scratch, strategy};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A folder of its own for one test, without what an earlier run left.
fn folder(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

fn audit(trace: &Path, flags: &str) -> crate::Ran {
    run(memreg(&format!("audit {flags}")).arg(trace))
}

const AUDIT: &[Shape] = &[
    ("schema", |v| v == 1),
    ("command", |v| v == "audit"),
    ("trace", Value::is_string),
    ("safe", Value::is_boolean),
    ("lines", Value::is_u64),
    ("complete", Value::is_boolean),
    ("keys_granted", Value::is_u64),
    ("keys_live_at_end", Value::is_u64),
    ("exposures_back", Value::is_u64),
    ("violations", Value::is_array),
    ("keys", |v| v.is_array() || v.is_null()),
];

#[test]
fn the_trace_of_every_strategy_is_safe() {
    let dir = folder("traces");
    let args = "compare --json --ops 3 --sizes 4KiB,64KiB --set strategy.danger_trust_peer=true";
    // The last two have regions that the owner ends itself, and windows.
    for device in ["generic", "shallow", "rxe"] {
        let set = format!("--set device.profile={device} --trace {}", dir.display());
        let report = json(&format!("{args} {set}"));
        for name in ["frwr", "fmr", "physical"] {
            let path = dir.join(name).with_extension("trace");
            assert_eq!(strategy(&report, name)["trace"], path.display().to_string());
            let ran = audit(&path, "--json --keys");
            assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{}", ran.stdout);
            let found: Value = serde_json::from_str(&ran.stdout).unwrap();
            check(AUDIT, &found);
            assert_eq!((&found["safe"], &found["complete"]), (&true.into(), &true.into()));
            assert_eq!(found["keys_live_at_end"], 0);
            // Both directions, two sizes, one warm-up each.
            assert_eq!(found["exposures_back"], 2 * 2 * 4);
            let keys = found["keys"].as_array().unwrap();
            assert_eq!(found["keys_granted"], keys.len());
            assert!(keys.iter().all(|k| k["rule"].is_string() && k["proven_by_line"].is_u64()));
        }
    }
}

#[test]
fn each_key_has_its_line_if_asked_for() {
    let dir = folder("keys");
    let set = format!("--ops 1 --sizes 4KiB --trace {}", dir.display());
    assert_eq!(run(&mut memreg(&format!("compare {set}"))).code, Some(0));
    let trace = dir.join("fmr.trace");
    let (short, long) = (audit(&trace, ""), audit(&trace, "--keys"));
    assert!(short.stdout.starts_with("safe: ") && short.stdout.lines().count() == 1);
    assert_eq!(long.stdout.lines().count(), 1 + 4, "{}", long.stdout);
    let last = long.stdout.lines().last().unwrap();
    assert!(last.contains("granted by a verb, dead by dereg (line "), "{last}");
}

#[test]
fn a_trace_that_was_tampered_with_names_the_line() {
    let dir = folder("tampered");
    let set = format!(
        "--ops 1 --sizes 64KiB --set device.caps.max_fast_reg_page_list_len=4 \
                       --trace {}",
        dir.display()
    );
    assert_eq!(run(&mut memreg(&format!("compare {set}"))).code, Some(0));
    let trace = std::fs::read_to_string(dir.join("frwr.trace")).unwrap();
    let lines: Vec<&str> = trace.lines().collect();
    let at = |what: &str| lines.iter().position(|l| l.contains(what)).unwrap();
    let (completed, killed) = (at(" completed "), at(" killed ").max(at("rule=local-inv")));

    // A line is gone.
    let gone: Vec<&str> = [&lines[..completed], &lines[completed + 1..]].concat();
    // The key is called dead before the completion that proves it.
    let mut early: Vec<String> = lines.iter().map(ToString::to_string).collect();
    let bare = |l: &str| l.split_once(' ').unwrap().1.to_owned();
    let number = |i: usize| lines[i].split_once(' ').unwrap().0;
    assert!(completed < killed);
    early.remove(killed);
    early.insert(completed, bare(lines[killed]));
    for (i, line) in early.iter_mut().enumerate().take(killed + 1).skip(completed) {
        let body = if i == completed { line.clone() } else { bare(line) };
        *line = format!("{} {body}", number(i));
    }
    for (name, text, line, what) in [
        ("gone", gone.join("\n"), completed, "is missing"),
        ("early", early.join("\n"), completed, "no completion proves its LOCAL_INV"),
    ] {
        let file = scratch(&format!("{name}.trace"), &text);
        let ran = audit(&file, "");
        assert_eq!(ran.code, Some(1), "{name}: {}", ran.stdout);
        assert!(ran.stdout.starts_with("NOT SAFE: "), "{}", ran.stdout);
        assert!(ran.stdout.contains(what) && ran.stderr.contains("not safe"), "{}", ran.stdout);
        assert!(ran.stdout.contains(&format!("line {}", number(line))), "{}", ran.stdout);
    }
}

#[test]
fn a_strategy_that_failed_leaves_its_trace() {
    let dir = folder("failed");
    let set = "--set device.caps.max_mr=3 --set device.caps.sg_gaps=true";
    let args = format!("compare --ops 2 --sizes 4KiB {set} --trace {}", dir.display());
    let ran = run(&mut memreg(&args));
    assert_eq!(ran.code, Some(1));
    let trace = dir.join("fmr.trace");
    assert!(ran.stderr.contains(&trace.display().to_string()), "{}", ran.stderr);
    assert_eq!(audit(&trace, "").code, Some(0));
    assert!(!dir.join("frwr.trace").exists(), "it was never opened");
}

#[test]
fn a_trace_comes_from_stdin_as_well() {
    let file = scratch("empty.trace", "memreg-trace 1 lines=0\n");
    let ran = run(memreg("audit -").stdin(std::fs::File::open(file).unwrap()));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let binary = scratch("binary.trace", "");
    std::fs::write(&binary, [0xff, 0xfe]).unwrap();
    assert_eq!(audit(&binary, "").code, Some(2));
}
