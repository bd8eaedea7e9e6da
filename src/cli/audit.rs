//! `memreg audit`: whether the evidence in a trace bears out what it claims.

use super::failure::Failure;
use super::{Answer, SCHEMA, args, json};
use crate::audit::{Audit, KeyLife, audit};
use anyhow::{Context, anyhow};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    command: &'static str,
    trace: String,
    safe: bool,
    lines: usize,
    /// Whether the trace starts with its transport.
    complete: bool,
    keys_granted: usize,
    keys_live_at_end: usize,
    exposures_back: usize,
    violations: Vec<ViolationShown<'a>>,
    /// `None` unless asked for: there can be thousands.
    keys: Option<Vec<KeyShown<'a>>>,
}

#[derive(Serialize)]
struct ViolationShown<'a> {
    line: u64,
    what: &'a str,
}

#[derive(Serialize)]
struct KeyShown<'a> {
    region: u64,
    key: &'a str,
    exposure: u64,
    granted_by_wr: Option<u64>,
    invalidated_by_wr: Option<u64>,
    rule: Option<&'a str>,
    proven_by_line: Option<u64>,
}

/// Audits one trace.
pub(super) fn run(args: &args::Audit, as_json: bool) -> Result<Answer, Failure> {
    let path = args.trace.as_path();
    let name = path.display().to_string();
    let text = read(path).with_context(|| name.clone()).map_err(Failure::usage)?;
    let found = audit(&text).with_context(|| name.clone()).map_err(Failure::usage)?;
    let stdout = match as_json {
        true => json(&report(&found, &name, args.keys)),
        false => shown(&found, args.keys),
    };
    let failure = found.violations.first().map(|first| {
        let n = found.violations.len();
        let more = if n > 1 { format!(", the first of {n} violations") } else { String::new() };
        Failure::workload(anyhow!("{name}: not safe: line {}: {}{more}", first.seq, first.what))
    });
    Ok(Answer { stdout, failure })
}

fn read(path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text)?;
        return Ok(text);
    }
    Ok(std::fs::read_to_string(path)?)
}

fn shown(found: &Audit, keys: bool) -> String {
    let mut out = format!("{found}\n");
    for key in found.keys.iter().filter(|_| keys) {
        let _ = writeln!(out, "{key}");
    }
    out
}

fn report<'a>(found: &'a Audit, name: &str, keys: bool) -> Report<'a> {
    let violation = |v: &'a crate::audit::Violation| ViolationShown { line: v.seq, what: &v.what };
    Report {
        schema: SCHEMA,
        command: "audit",
        trace: name.to_owned(),
        safe: found.violations.is_empty(),
        lines: found.lines,
        complete: found.complete,
        keys_granted: found.keys.len(),
        keys_live_at_end: found.live,
        exposures_back: found.exposures_back,
        violations: found.violations.iter().map(violation).collect(),
        keys: keys.then(|| found.keys.iter().map(key_shown).collect()),
    }
}

fn key_shown(key: &KeyLife) -> KeyShown<'_> {
    KeyShown {
        region: key.region,
        key: &key.key,
        exposure: key.exposure,
        granted_by_wr: key.granted_by,
        invalidated_by_wr: key.invalidated_by,
        rule: key.rule.as_deref(),
        proven_by_line: key.evidence,
    }
}
