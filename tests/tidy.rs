//! What no compiler checks: lengths, banned words, where `unsafe` may stand, who may depend on
//! whom, and under which licences.

#[allow(dead_code, reason = "each check uses its own part of the scanner")]
#[path = "scan/source.rs"]
mod source;

use serde::Deserialize;
use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::process::Command;

const COLUMNS: usize = 100;
const FILE_LINES: usize = 900;
const FUNCTION_LINES: usize = 100;
/// Longer functions are listed, so that a reader can look at them first.
const FUNCTION_LINES_NOTED: usize = 70;

#[test]
fn lengths() {
    let mut problems = vec![];
    for file in source::files(&[".rs"]) {
        let path = &file.path;
        let lines = file.text.lines().count();
        if lines > FILE_LINES {
            problems.push(format!("{path}: {lines} lines, at most {FILE_LINES}"));
        }
        for (index, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS {
                let line = index + 1;
                problems.push(format!("{path}:{line}: {columns} columns, at most {COLUMNS}"));
            }
        }
        for f in source::functions(&file.text) {
            let (name, line, lines) = (f.name, f.line, f.lines);
            if lines > FUNCTION_LINES {
                problems.push(format!(
                    "{path}:{line}: fn {name} has {lines} lines, at most {FUNCTION_LINES}"
                ));
            } else if lines > FUNCTION_LINES_NOTED {
                println!("note: {path}:{line}: fn {name} has {lines} lines");
            }
        }
    }
    report(&problems);
}

#[test]
fn banned_words() {
    // In pieces, so that this file does not contain them.
    let machine_path = concat!("/", "work", "/");
    let in_code = [concat!("todo", "!"), concat!("unimplemented", "!")];
    let anywhere = [concat!("FIX", "ME"), concat!("XX", "X")];
    let mut problems = vec![];
    let texts = [".rs", ".md", ".toml", ".sh", ".yml", ".ci/run", "LICENSE-MIT", "LICENSE-APACHE"];
    for file in source::files(&texts) {
        for (index, line) in file.text.lines().enumerate() {
            let is_path = line.match_indices(machine_path).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                before.is_none_or(|c| !c.is_alphanumeric() && !"_.~$}*".contains(c))
            });
            let word = source::words(line).any(|(_, w)| anywhere.contains(&w));
            if is_path || word {
                problems.push(format!("{}:{}: {}", file.path, index + 1, line.trim()));
            }
        }
        if file.path.ends_with(".rs") {
            let code = source::code_only(&file.text);
            for word in in_code.iter().filter(|w| code.contains(**w)) {
                problems.push(format!("{}: {word}", file.path));
            }
            let name = file.path.rsplit('/').next().unwrap_or_default();
            if ["utils.rs", "util.rs", "common.rs", "helpers.rs"].contains(&name) {
                problems.push(format!("{}: names no concept", file.path));
            }
        }
    }
    report(&problems);
}

/// The only places that may hold `unsafe` code: the owner of raw bytes and the binding to
/// libibverbs.
const UNSAFE_ISLANDS: [&str; 2] = ["core/src/mem.rs", "core/src/device/verbs/"];

#[test]
fn unsafe_stays_on_its_islands() {
    let mut problems = vec![];
    for file in source::files(&[".rs"]) {
        if UNSAFE_ISLANDS.iter().any(|island| file.path.starts_with(island)) {
            continue;
        }
        for (index, line) in source::code_only(&file.text).lines().enumerate() {
            if source::words(line).any(|(_, w)| w == "unsafe") {
                problems.push(format!("{}:{}: unsafe", file.path, index + 1));
            }
        }
    }
    report(&problems);
}

/// Each planted defect of the list stands somewhere in the code, and each that stands there is in
/// the list: a change of the code around one must not lose it.
#[test]
fn planted_defects_are_those_of_the_list() {
    let between = |text: &str, before: &str, after: &str| -> BTreeSet<String> {
        let rest = text.split(before).skip(1);
        rest.filter_map(|t| t.split_once(after)).map(|(id, _)| id.to_owned()).collect()
    };
    let (mut listed, mut planted) = (BTreeSet::new(), BTreeSet::new());
    for file in source::files(&[".rs"]).iter().filter(|f| f.path.starts_with("core/src/")) {
        if file.path.ends_with("/mutants.rs") {
            listed = between(&file.text, "\n    (\"", "\", \"");
        } else {
            planted.extend(between(&file.text, "mutant!(\"", "\")"));
        }
    }
    assert!(listed.len() >= 30, "{listed:?}");
    assert_eq!(listed, planted);
}

/// Who may depend on whom inside the workspace: a crate may use anything to its right.
const LAYERS: [(&str, &[&str]); 8] = [
    ("memreg", &["memreg-config", "memreg-selector", "memreg-strategies", "memreg-core"]),
    ("memreg-config", &["memreg-selector", "memreg-strategies", "memreg-core"]),
    ("memreg-selector", &["memreg-strategies", "memreg-core"]),
    ("memreg-strategies", &["memreg-core"]),
    ("memreg-conformance", &["memreg-core"]),
    ("memreg-core", &[]),
    ("plugin-strategy", &["memreg-core"]),
    ("plugin-strategy-bin", &["memreg", "plugin-strategy"]),
];

/// Crates that only some layers may use.
const RESERVED: [(&str, &[&str]); 8] = [
    ("anyhow", &["memreg"]),
    ("clap", &["memreg"]),
    ("comfy-table", &["memreg"]),
    ("indicatif", &["memreg"]),
    ("serde_json", &["memreg"]),
    ("serde", &["memreg", "memreg-config"]),
    ("config", &["memreg-config"]),
    ("tokio", &[]),
];

#[test]
fn layers() {
    let metadata = Metadata::read(&["--no-deps"]).unwrap();
    let ours: BTreeSet<&str> = metadata.packages.iter().map(|p| p.name.as_str()).collect();
    let mut problems = vec![];
    for package in &metadata.packages {
        let name = package.name.as_str();
        let Some((_, may_use)) = LAYERS.iter().find(|(layer, _)| *layer == name) else {
            problems.push(format!("{name}: which layer is it? add it to the list"));
            continue;
        };
        for dependency in &package.dependencies {
            let on = dependency.name.as_str();
            // Every layer may test itself with the suite, and the suite itself with every layer.
            let for_tests = dependency.kind.as_deref() == Some("dev");
            let is_suite = [name, on].contains(&"memreg-conformance");
            if ours.contains(on) && !may_use.contains(&on) && !(for_tests && is_suite) {
                problems.push(format!("{name} -> {on}: against the layers"));
            }
            let reserved = RESERVED.iter().find(|(crate_name, _)| *crate_name == on);
            if reserved.is_some_and(|(_, users)| !users.contains(&name)) && !for_tests {
                problems.push(format!("{name} -> {on}: not for this layer"));
            }
        }
    }
    report(&problems);
}

/// Needs no line in CONTRIBUTING: what the project was asked to use, and what every crate may use.
const BASE_DEPENDENCIES: [&str; 10] = [
    "ibverbs",
    "enum_dispatch",
    "inventory",
    "config",
    "anyhow",
    "slotmap",
    "thiserror",
    "tracing",
    "bitflags",
    "serde",
];

#[test]
fn dependencies_are_declared_once_and_explained() {
    let contributing = fs::read_to_string(source::root().join("CONTRIBUTING.md")).unwrap();
    let mut problems = vec![];
    for file in source::files(&["Cargo.toml"]) {
        let manifest: toml::Table = toml::from_str(&file.text).unwrap();
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let table = manifest.get(section).and_then(toml::Value::as_table);
            for (name, value) in table.into_iter().flatten() {
                let shared = value.get("workspace").and_then(toml::Value::as_bool);
                if shared != Some(true) {
                    problems.push(format!("{}: {name} is not from the workspace", file.path));
                }
            }
        }
        let shared = manifest.get("workspace").and_then(|w| w.get("dependencies"));
        for (name, _) in shared.and_then(toml::Value::as_table).into_iter().flatten() {
            let ours = LAYERS.iter().any(|(layer, _)| layer == name);
            let known = ours || BASE_DEPENDENCIES.contains(&name.as_str());
            if !known && !contributing.contains(&format!("`{name}`")) {
                problems.push(format!("CONTRIBUTING.md: no line for the dependency `{name}`"));
            }
        }
    }
    report(&problems);
}

#[test]
fn licences() {
    let deny = fs::read_to_string(source::root().join("deny.toml")).unwrap();
    let deny: toml::Table = toml::from_str(&deny).unwrap();
    let allowed = deny["licenses"]["allow"].as_array().unwrap();
    let allowed: Vec<&str> = allowed.iter().filter_map(toml::Value::as_str).collect();
    // Only what this machine builds has been downloaded; `cargo deny` looks at every platform.
    let metadata = Metadata::read(&["--offline", "--filter-platform", &host().unwrap()]).unwrap();
    let mut problems = vec![];
    for package in &metadata.packages {
        let licence = package.license.as_deref().unwrap_or_default();
        if !is_allowed(licence, &allowed) {
            problems.push(format!("{}: licence {licence:?} is not in deny.toml", package.name));
        }
    }
    report(&problems);
}

#[test]
fn licence_expressions_are_understood() {
    let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"];
    for good in ["MIT", "Unlicense OR MIT", "GPL-2.0/Apache-2.0", "(MIT OR A) AND Unicode-3.0"] {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    for bad in ["", "GPL-2.0", "MIT AND GPL-2.0", "(A OR B) AND MIT", "MIT-0"] {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}

/// Whether a licence expression can be met from the list. `AND` binds more weakly than a bracket,
/// as crates write it.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let text = expression.replace('/', " OR ");
    let all = text.split(" AND ");
    all.into_iter().all(|part| {
        let choices = part.trim().trim_start_matches('(').trim_end_matches(')');
        choices.split(" OR ").any(|licence| allowed.contains(&licence.trim()))
    })
}

fn host() -> Result<String, Box<dyn Error>> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let text = String::from_utf8(Command::new(rustc).arg("-vV").output()?.stdout)?;
    let host = text.lines().find_map(|l| l.strip_prefix("host: "));
    Ok(host.ok_or("rustc names no host")?.to_owned())
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    license: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

impl Metadata {
    fn read(arguments: &[&str]) -> Result<Metadata, Box<dyn Error>> {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let out = Command::new(cargo)
            .current_dir(source::root())
            .args(["metadata", "--format-version", "1"])
            .args(arguments)
            .output()?;
        if !out.status.success() {
            return Err(String::from_utf8_lossy(&out.stderr).into());
        }
        Ok(serde_json::from_slice(&out.stdout)?)
    }
}

fn report(problems: &[String]) {
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn the_scanner_tells_code_from_text() {
    let text = r##"
fn a<'x>(s: &'x str) -> char {
    let _ = ("fn b() {", r#"fn c() { " "#, '{', '\'', b'"', br"\");
    // fn d() { unsafe
    /* fn e() { /* nested */ unsafe */
    '}'
}

#[test]
#[cfg(any(
    unix,
    windows,
))]
// A comment between.
fn f() {}

#[test]
#[ignore = "slow"]
fn g() {}

trait T { fn h(&self, a: [u8; 2]) -> u8; }
#[test] fn i() { let x = [1; 2]; }
"##;
    let found = source::functions(text);
    let brief: Vec<_> = found.iter().map(|f| (&f.name[..], f.lines, f.runs_as_test)).collect();
    let expect = [("a", 6, false), ("f", 1, true), ("g", 1, false), ("h", 1, false)];
    assert_eq!(brief[..4], expect);
    assert_eq!(brief[4..], [("i", 1, true)]);
    assert!(!source::words(&source::code_only(text)).any(|(_, w)| w == "unsafe"));
    let found: Vec<_> = source::words("a fn_b, c").collect();
    assert_eq!(found, [(0, "a"), (2, "fn_b"), (8, "c")]);
}
