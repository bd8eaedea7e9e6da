//! The program as its users meet it: the plugin is listed, selected by name with options from TOML,
//! and compared with every byte verified.
#![allow(clippy::unwrap_used, reason = "a test")]

use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs the program with arguments split at spaces, and no configuration from the environment.
fn memreg(args: &str) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memreg-threshold"));
    command.args(args.split(' '));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MEMREG_") {
            command.env_remove(name);
        }
    }
    let out = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: out.status.code(), stdout: text(out.stdout), stderr: text(out.stderr) }
}

fn json(args: &str) -> Value {
    let ran = memreg(args);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{args}");
    serde_json::from_str(&ran.stdout).unwrap()
}

fn toml(name: &str, text: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn row<'v>(report: &'v Value, name: &str) -> &'v Value {
    let rows = report["strategies"].as_array().unwrap();
    rows.iter().find(|r| r["name"] == name).unwrap()
}

#[test]
fn it_is_listed_beside_the_built_in_ones() {
    let report = json("strategies --json");
    assert_eq!(row(&report, "threshold")["plugin"], true);
    for name in ["frwr", "fmr", "physical"] {
        assert_eq!(row(&report, name)["plugin"], false);
    }
    let text = memreg("strategies").stdout;
    let line = text.lines().find(|l| l.contains("threshold")).unwrap();
    assert!(line.contains("plugin") && line.contains("small operations by work request"), "{line}");
}

#[test]
fn it_is_selected_by_name_from_toml_and_verified_beside_the_others() {
    let file = toml(
        "selected.toml",
        "[strategy]\nname = \"threshold\"\ndanger_trust_peer = true\n\n\
         [strategy.options]\nthreshold_bytes = 8192\n",
    );
    let report = json(&format!("--config {file} compare --json --ops 3 --sizes 4KiB,64KiB"));
    assert_eq!(report["selected"], "threshold");
    for name in ["threshold", "frwr", "fmr", "physical"] {
        let row = row(&report, name);
        assert_eq!((&row["eligible"], &row["error"]), (&Value::Bool(true), &Value::Null), "{name}");
        assert!(row["transfers"].as_u64().unwrap() > 0, "{name}");
    }
    // The option counts: up to 8 KiB there is a WR to grant and one to revoke, above it none.
    let sizes = row(&report, "threshold")["sizes"].as_array().unwrap();
    let verbs: Vec<f64> = sizes.iter().map(|s| s["verb_calls_per_op"].as_f64().unwrap()).collect();
    assert!(verbs[0] < 1.0 && verbs[1] >= 2.0, "{verbs:?}");
}

#[test]
fn an_option_of_the_wrong_type_is_named() {
    for (option, said) in [
        ("threshold_bytes = \"64KiB\"", "option threshold_bytes: \"64KiB\" is text"),
        ("threshold_bytes = 0", "option threshold_bytes: 0 is not in 1..="),
        ("treshold_bytes = 1", "option treshold_bytes: not known; known are threshold_bytes"),
    ] {
        let text = format!("[strategy]\nname = \"threshold\"\n[strategy.options]\n{option}\n");
        let file = toml("wrong.toml", &text);
        let ran = memreg(&format!("--config {file} compare --ops 1 --sizes 4KiB"));
        assert_eq!(ran.code, Some(2), "{option}: configuration");
        assert_eq!(ran.stdout, "", "said before anything runs");
        assert!(ran.stderr.contains(said), "{option}: {}", ran.stderr);
    }
}

#[test]
fn a_misspelt_name_is_an_error_with_a_near_miss() {
    let ran = memreg("--set strategy.name=treshold strategies");
    let ran = if ran.code == Some(0) { memreg("--set strategy.name=treshold config") } else { ran };
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("threshold"), "{}", ran.stderr);
}
