//! The result, as data; its serialized form is the JSON output.

use super::bench::Bench;
use super::data::Data;
use super::figures::Figures;
use super::plan::{Contender, Plan};
use crate::cli::SCHEMA;
use crate::cli::devices::attributes;
use crate::cli::show_config::typed;
use memreg_config::{Loaded, Shown};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Everything that `compare` found out.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub schema: u32,
    pub command: &'static str,
    pub header: Header,
    pub data: DataShown,
    /// The strategy that this configuration opens; `None` if it opens none.
    pub selected: Option<&'static str>,
    pub strategies: Vec<StrategyShown>,
}

/// Under which circumstances.
#[derive(Debug, Serialize)]
pub(super) struct Header {
    pub version: &'static str,
    /// `release` or `debug`: the figures of a debug build say little.
    pub build: &'static str,
    pub device: &'static str,
    pub name: String,
    /// Of the software device; a real one has none.
    pub profile: Option<String>,
    pub profile_source: Option<String>,
    pub peer_profile: Option<&'static str>,
    /// Where the peer was, if in another process.
    pub connect: Option<String>,
    pub seed: Option<u64>,
    pub cpu: Option<String>,
    /// Key to value and origin, for every key of the configuration.
    pub settings: Map<String, Value>,
    pub attributes: Map<String, Value>,
}

/// What was transferred.
#[derive(Debug, Serialize)]
pub(super) struct DataShown {
    /// `file` or `seeded`.
    pub source: &'static str,
    pub path: Option<String>,
    pub file_bytes: Option<u64>,
}

/// One strategy.
#[derive(Debug, Serialize)]
pub(super) struct StrategyShown {
    pub name: &'static str,
    /// What its regions are made of; `None` if it does not work here.
    pub mechanism: Option<&'static str>,
    /// The name as text shows it.
    #[serde(skip)]
    pub label: String,
    pub eligible: bool,
    pub selected: bool,
    pub reason: String,
    /// One direction of one operation each; only those that were verified.
    pub transfers: u64,
    pub bytes: u64,
    /// Something was transferred, and every byte was right.
    pub verified: bool,
    pub error: Option<String>,
    /// The file with the ledger of its keys.
    pub trace: Option<String>,
    pub max_payload_bytes: Option<u64>,
    /// One buffer at the owner.
    pub sizes: Vec<Figures>,
    /// Three buffers that do not join at page boundaries; empty if the device has no gaps.
    pub gaps: Vec<Figures>,
}

impl Report {
    pub fn new(loaded: &Loaded, plan: &Plan, data: &Data) -> Report {
        let (source, path, file_bytes) = match data {
            Data::Seeded { .. } => ("seeded", None, None),
            Data::File { path, len, .. } => ("file", Some(path.display().to_string()), Some(*len)),
        };
        Report {
            schema: SCHEMA,
            command: "compare",
            header: Header::new(loaded, plan),
            data: DataShown { source, path, file_bytes },
            selected: plan.selected,
            strategies: plan.contenders.iter().map(strategy).collect(),
        }
    }
}

impl Header {
    fn new(loaded: &Loaded, plan: &Plan) -> Header {
        let setting = |s: &Shown| json!({ "value": typed(&s.value), "origin": s.origin });
        let rows = loaded.origins.iter();
        let (profile, seed) = match &plan.bench {
            Bench::Sim { profile, seed } => (Some(profile), Some(*seed)),
            Bench::Real { .. } => (None, None),
        };
        Header {
            version: env!("CARGO_PKG_VERSION"),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            device: plan.bench.kind(),
            name: plan.bench.name(),
            profile: profile.map(|p| p.name.to_string()),
            profile_source: profile.map(|p| p.source.to_string()),
            peer_profile: profile.map(|_| "generic"),
            connect: plan.connect.map(|to| to.to_string()),
            seed,
            cpu: cpu(),
            settings: rows.map(|s| (s.key.clone(), setting(s))).collect(),
            attributes: attributes(plan.bench.caps()),
        }
    }
}

fn strategy(c: &Contender) -> StrategyShown {
    let all = || c.figures.iter().chain(&c.gaps);
    let transfers = all().map(|f| 2 * f.ops as u64).sum();
    StrategyShown {
        name: c.candidate.name,
        mechanism: c.candidate.limits.as_ref().map(|l| l.mechanism),
        label: c.candidate.label(),
        eligible: c.candidate.eligible,
        selected: c.candidate.chosen,
        reason: c.candidate.reason.clone(),
        transfers,
        bytes: all().map(|f| f.bytes).sum(),
        verified: transfers > 0 && c.fault.is_none(),
        error: c.fault.clone(),
        trace: c.trace.as_ref().map(|path| path.display().to_string()),
        max_payload_bytes: c.candidate.limits.as_ref().map(|l| l.max_payload_bytes),
        sizes: c.figures.clone(),
        gaps: c.gaps.clone(),
    }
}

/// The host's CPU, where the system tells.
fn cpu() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("model name"))?;
    let name = line.split_once(':')?.1.trim();
    (!name.is_empty()).then(|| name.to_owned())
}
