//! Every id of the contract has a disposition, and every test that a disposition names exists.
//!
//! `contract-ids.txt` lists the ids, `contract.toml` says what became of each.

#[allow(dead_code, reason = "each check uses its own part of the scanner")]
#[path = "scan/source.rs"]
mod source;

use serde::Deserialize;
use source::SourceFile;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Contract {
    /// While true, a closed id may be open for the reason that its test is pending.
    #[serde(default)]
    tests_pending: bool,
    ids: BTreeMap<String, Row>,
}

/// What became of one id. Exactly one of the four, except that a replacement may name tests of its
/// own.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Row {
    test: Option<Vec<String>>,
    replaced: Option<String>,
    na: Option<String>,
    open: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Disposition {
    Test,
    Replaced,
    NotApplicable,
    Open,
}

#[test]
fn every_id_has_a_disposition() {
    let ids = listed_ids(include_str!("contract-ids.txt")).unwrap();
    let contract: Contract = toml::from_str(include_str!("contract.toml")).unwrap();
    let known = Tests::find();
    let mut problems = vec![];
    let mut count = BTreeMap::new();
    for (id, closed) in &ids {
        let Some(row) = contract.ids.get(id) else {
            problems.push(format!("{id}: no row"));
            continue;
        };
        match disposition(row, &known) {
            Ok(d) => {
                *count.entry(d).or_insert(0) += 1;
                let pending = contract.tests_pending && is_pending(row);
                if *closed && d == Disposition::Open && !pending {
                    problems.push(format!("{id}: must not be open"));
                }
            }
            Err(why) => problems.push(format!("{id}: {why}")),
        }
    }
    for id in contract.ids.keys().filter(|id| !ids.contains_key(*id)) {
        problems.push(format!("{id}: not an id of the contract"));
    }
    let of = |d| count.get(&d).copied().unwrap_or(0);
    // On a line of its own, whatever the harness has printed before.
    println!(
        "\ncontract: {} ids, {} tested, {} replaced, {} n/a, {} open",
        ids.len(),
        of(Disposition::Test),
        of(Disposition::Replaced),
        of(Disposition::NotApplicable),
        of(Disposition::Open)
    );
    let pending = contract.ids.values().filter(|row| is_pending(row)).count();
    if pending > 0 {
        println!("contract: {pending} of the open ids wait for a test that is being written");
    }
    assert!(problems.is_empty(), "tests/contract.toml:\n{}", problems.join("\n"));
}

#[test]
fn the_checker_refuses_what_it_should() {
    let known = Tests {
        functions: BTreeSet::from([("core/src/a.rs".into(), "a_01_x".into())]),
        checks: BTreeSet::from(["b_01_y".into()]),
        compile_fail: BTreeSet::from(["c".into()]),
    };
    let verdict = |text: &str| {
        let row: Row = toml::from_str(text).map_err(|e| e.to_string())?;
        disposition(&row, &known)
    };
    for good in [
        "test = ['core:a_01_x']",
        "test = ['core/src/a.rs:a_01_x', 'conformance:b_01_y', 'ui:c']",
        "replaced = 'by the other rule'\ntest = ['core:a_01_x']",
        "na = 'there is no kernel here'",
        "open = 'claimed with something later'",
    ] {
        assert!(verdict(good).is_ok(), "{good}: {:?}", verdict(good));
    }
    for bad in [
        "",
        "test = []",
        "test = ['a_01_x']",
        "test = ['cor:a_01_x']",
        "test = ['core:a_01']",
        "test = ['core/src/b.rs:a_01_x']",
        "test = ['conformance:a_01_x']",
        "test = ['ui:d']",
        "test = ['core:a_01_x']\nna = 'there is no kernel here'",
        "replaced = 'rule'",
        "na = ''",
        "na = 'a reason of words'\nopen = 'a reason of words'",
        "nonsense = 'a reason of words'",
    ] {
        assert!(verdict(bad).is_err(), "accepted: {bad}");
    }
}

#[test]
fn the_id_list_is_read_as_written() {
    let ids = listed_ids("# a comment\nclosed M-09..10 REC-W5\n B99..101\n").unwrap();
    let expect = [("B100", false), ("B101", false), ("B99", false), ("M-09", true), ("M-10", true)];
    let expect = expect.into_iter().chain([("REC-W5", true)]);
    assert_eq!(ids, expect.map(|(id, closed)| (id.to_owned(), closed)).collect());
    for bad in ["M-", "M-01..x", "M-05..01", "M-01 M-01"] {
        assert!(listed_ids(bad).is_err(), "accepted: {bad}");
    }
}

/// The ids of the list, and whether each must be closed.
fn listed_ids(text: &str) -> Result<BTreeMap<String, bool>, String> {
    let mut ids = BTreeMap::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let (closed, tokens) = match line.strip_prefix("closed ") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        for token in tokens.split_whitespace() {
            for id in expand(token).ok_or_else(|| format!("not an id or a range: {token}"))? {
                if ids.insert(id.clone(), closed).is_some() {
                    return Err(format!("listed twice: {id}"));
                }
            }
        }
    }
    Ok(ids)
}

/// `M-09..10` as `M-09`, `M-10`: the numbers keep the width of the first.
fn expand(token: &str) -> Option<Vec<String>> {
    let (first, last) = token.split_once("..").unwrap_or((token, ""));
    let series = first.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = &first[series.len()..];
    let from: u32 = digits.parse().ok()?;
    let to = if last.is_empty() { from } else { last.parse().ok()? };
    let width = digits.len();
    (from <= to).then(|| (from..=to).map(|n| format!("{series}{n:0width$}")).collect())
}

fn disposition(row: &Row, known: &Tests) -> Result<Disposition, String> {
    for name in row.test.iter().flatten() {
        known.check(name)?;
    }
    let reasons = [&row.replaced, &row.na, &row.open].into_iter().flatten();
    for reason in reasons {
        if reason.split_whitespace().count() < 3 {
            return Err(format!("not a reason: {reason:?}"));
        }
    }
    match (&row.test, &row.replaced, &row.na, &row.open) {
        (Some(t), None, None, None) if !t.is_empty() => Ok(Disposition::Test),
        (_, Some(_), None, None) => Ok(Disposition::Replaced),
        (None, None, Some(_), None) => Ok(Disposition::NotApplicable),
        (None, None, None, Some(_)) => Ok(Disposition::Open),
        _ => Err("needs exactly one of test, replaced, na, open".into()),
    }
}

fn is_pending(row: &Row) -> bool {
    row.open.as_deref().is_some_and(|reason| reason.starts_with("test pending"))
}

/// The tests that the workspace has.
struct Tests {
    /// File and name of each `#[test]` function that is not ignored.
    functions: BTreeSet<(String, String)>,
    /// Checks of the conformance suite, which runs each against every strategy.
    checks: BTreeSet<String>,
    /// Files of `tests/ui` that must not compile.
    compile_fail: BTreeSet<String>,
}

impl Tests {
    fn find() -> Tests {
        let files = source::files(&[".rs"]);
        let functions = files.iter().flat_map(|f| {
            let tests = source::functions(&f.text).into_iter().filter(|t| t.runs_as_test);
            tests.map(|t| (f.path.clone(), t.name))
        });
        let checks = files.iter().filter(|f| f.path.starts_with(CONFORMANCE)).flat_map(check_names);
        let compile_fail = files.iter().filter_map(|f| f.path.strip_prefix("tests/ui/"));
        Tests {
            functions: functions.collect(),
            checks: checks.collect(),
            compile_fail: compile_fail
                .filter_map(|f| f.strip_suffix(".rs"))
                .map(str::to_owned)
                .collect(),
        }
    }

    /// Whether `place:name` exists: `conformance:check`, `ui:file`, or a folder or file and a test
    /// function.
    fn check(&self, reference: &str) -> Result<(), String> {
        let (place, name) = reference
            .rsplit_once(':')
            .ok_or_else(|| format!("{reference:?} is not of the form place:name"))?;
        let found = match place {
            "conformance" => self.checks.contains(name),
            "ui" => self.compile_fail.contains(name),
            _ => self.functions.iter().any(|(file, f)| f == name && is_inside(file, place)),
        };
        found.then_some(()).ok_or_else(|| format!("no such test: {reference}"))
    }
}

const CONFORMANCE: &str = "tests/conformance/src/";

fn is_inside(file: &str, place: &str) -> bool {
    file.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The functions of the suite; a check is one of them, by the name it is listed under.
fn check_names(file: &SourceFile) -> Vec<String> {
    source::functions(&file.text).into_iter().map(|f| f.name).collect()
}
