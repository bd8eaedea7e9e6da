//! `memreg probe`: what a device says of itself, beside what it was seen to do.

use super::devices::{Real, attributes, real, real_text};
use super::failure::Failure;
use super::host::{ChoiceShown, StackShown, stack};
use super::plan::candidates;
use super::progress::Progress;
use super::table::layout;
use super::target::Target;
use super::{Answer, SCHEMA, json};
use crate::OpenError;
use crate::open::{build_options, wanted};
use memreg_config::{DeviceSettings, Settings};
use memreg_core::device::Device;
use memreg_selector::probe::{Outcome, ProbeReport, Proof, Step, StrategyProof};
use memreg_selector::{Plan, SelectError, probe_telling};
use memreg_strategies::Registry;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt::Write as _;

#[derive(Serialize)]
struct Report {
    schema: u32,
    command: &'static str,
    device: &'static str,
    name: String,
    profile: Option<String>,
    /// Why this device; `None` for the software device.
    choice: Option<ChoiceShown>,
    /// The software between this program and its devices.
    stack: Option<StackShown>,
    /// What would be opened after this; `None` if nothing would.
    chosen: Option<&'static str>,
    attributes: Vec<AttributeShown>,
    strategies: Vec<StrategyShown>,
}

/// What is left to say where no device could be opened.
#[derive(Serialize)]
struct Nothing {
    schema: u32,
    command: &'static str,
    error: String,
    devices: Vec<Real>,
    stack: Option<StackShown>,
}

#[derive(Serialize)]
struct AttributeShown {
    name: String,
    reported: Value,
    /// What to plan with: less than reported where the device did not keep its word.
    usable: Value,
    /// What was seen; `None` where nothing was tried.
    seen: Option<String>,
}

#[derive(Serialize)]
struct StrategyShown {
    name: &'static str,
    works: bool,
    mechanism: Option<&'static str>,
    page_list_depth: Option<u32>,
    steps: Vec<StepShown>,
}

#[derive(Serialize)]
struct StepShown {
    step: String,
    /// Whether the strategy is of no use without it.
    required: bool,
    /// `proven`, `not_proven` or `not_tried`.
    outcome: &'static str,
    detail: Option<String>,
}

/// Whether this build knows of real devices.
const REAL: bool = cfg!(all(feature = "verbs", target_os = "linux"));

/// Probes the device that the configuration describes.
pub(super) fn run(settings: &Settings, as_json: bool) -> Result<Answer, Failure> {
    let target = match Target::open(settings) {
        Ok(target) => target,
        Err(failure) if matches!(settings.device, DeviceSettings::Verbs(_)) && REAL => {
            return Ok(nothing_to_probe(settings, failure, as_json));
        }
        Err(failure) => return Err(failure),
    };
    let registry = Registry::new().map_err(Failure::usage)?;
    let (wanted, options) = (wanted(settings), build_options(settings));
    let mut progress = Progress::new(registry.names().count() as u64, "strategies");
    let next = &mut |name: &'static str| progress.step(|| name.to_owned());
    let found = probe_telling(&target.device, &registry, &settings.ask, &options, next);
    drop(progress);
    let (usable, tried) = (found.proven(), found.tried());
    let plan = Plan::new(&registry, &usable, &settings.ask, &wanted, &options, &tried);
    if let Some(e @ SelectError::Unknown { .. }) = plan.refusal {
        return Err(OpenError::from(e).into());
    }
    let report = report(&target, &found, &plan);
    let stdout = if as_json { json(&report) } else { text(&target, &report, &plan) };
    Ok(Answer { stdout, failure: plan.refusal.map(|e| OpenError::from(e).into()) })
}

/// No device could be opened: what there is to know all the same.
fn nothing_to_probe(settings: &Settings, failure: Failure, as_json: bool) -> Answer {
    let (devices, stack) = (real(settings), stack());
    let stdout = if as_json {
        let error = failure.lines().join("\n");
        json(&Nothing { schema: SCHEMA, command: "probe", error, devices, stack })
    } else {
        real_text(&devices) + "\n" + &stack.map(|s| s.text()).unwrap_or_default()
    };
    Answer { stdout, failure: Some(failure) }
}

fn report(target: &Target, found: &ProbeReport, plan: &Plan) -> Report {
    let mut usable: Map<String, Value> = attributes(&found.proven());
    let shown = |(name, reported): (String, Value)| AttributeShown {
        usable: usable.remove(&name).unwrap_or_default(),
        seen: seen(&name, found),
        name,
        reported,
    };
    Report {
        schema: SCHEMA,
        command: "probe",
        device: target.kind,
        name: target.device.name(),
        profile: target.profile.clone(),
        choice: target.choice.clone(),
        stack: stack(),
        chosen: plan.chosen,
        attributes: attributes(&found.attributes).into_iter().map(shown).collect(),
        strategies: found.strategies.iter().map(strategy).collect(),
    }
}

/// What the steps have shown of one attribute.
fn seen(attribute: &str, found: &ProbeReport) -> Option<String> {
    let all = || found.strategies.iter();
    let any = |step: Step| all().flat_map(|s| &s.proofs).find(|p| p.step == step);
    match attribute {
        "max_fast_reg_page_list_len" => {
            let depth = all().find_map(|s| s.page_list_depth)?;
            Some(format!("{depth} entries work; no more were needed"))
        }
        "sg_gaps" => any(Step::Gaps).map(|p| result(&p.outcome)),
        "mem_mgt_extensions" => fast(found).map(|s| works(s).to_owned()),
        "mem_window_type_2b" => {
            fast(found).filter(|s| s.mechanism == Some("window")).map(|s| works(s).to_owned())
        }
        _ => None,
    }
}

/// A strategy that grants by work requests.
fn fast(found: &ProbeReport) -> Option<&StrategyProof> {
    let by_wr = |s: &&StrategyProof| matches!(s.mechanism, Some("page list" | "window"));
    found.strategies.iter().find(by_wr)
}

fn works(s: &StrategyProof) -> &'static str {
    if s.works() { "registered, invalidated, old key refused" } else { "announced, does not work" }
}

fn strategy(s: &StrategyProof) -> StrategyShown {
    StrategyShown {
        name: s.name,
        works: s.works(),
        mechanism: s.mechanism,
        page_list_depth: s.page_list_depth,
        steps: s.proofs.iter().map(step).collect(),
    }
}

fn step(p: &Proof) -> StepShown {
    let (outcome, detail) = match &p.outcome {
        Outcome::Proven => ("proven", None),
        Outcome::NotProven(what) => ("not_proven", Some(what.clone())),
        Outcome::Skipped(why) => ("not_tried", Some((*why).to_owned())),
    };
    StepShown { step: p.step.to_string(), required: p.step.is_required(), outcome, detail }
}

fn result(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Proven => "proven".to_owned(),
        Outcome::NotProven(what) => what.clone(),
        Outcome::Skipped(why) => format!("not tried: {why}"),
    }
}

fn text(target: &Target, report: &Report, plan: &Plan) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "memreg {} probe, {}", env!("CARGO_PKG_VERSION"), target.title());
    out.extend(report.choice.as_ref().map(|c| c.text() + &c.quirks()));
    let _ = writeln!(out, "chosen    {}\n", report.chosen.unwrap_or("none"));
    let attribute = |a: &AttributeShown| {
        let seen = a.seen.clone().unwrap_or_else(|| "-".to_owned());
        vec![a.name.clone(), a.reported.to_string(), a.usable.to_string(), seen]
    };
    let rows: Vec<Vec<String>> = report.attributes.iter().map(attribute).collect();
    out.push_str(&layout(&["attribute", "reported", "usable", "seen by doing"], &rows, 4));
    let row = |s: &StrategyShown, p: &StepShown| {
        let required = if p.required { "yes" } else { "no" };
        let (outcome, detail) = (p.outcome.replace('_', " "), p.detail.clone());
        let detail = detail.unwrap_or_default();
        [s.name, &p.step, &outcome, required, &detail].map(str::to_owned).to_vec()
    };
    let of = |s: &StrategyShown| s.steps.iter().map(|p| row(s, p)).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = report.strategies.iter().flat_map(of).collect();
    out.push('\n');
    out.push_str(&layout(&["strategy", "step", "outcome", "must hold", "detail"], &rows, 5));
    let _ = write!(out, "\nThe choice after this:\n{}", candidates(&plan.candidates));
    if let Some(stack) = &report.stack {
        let _ = write!(out, "\n{}", stack.text());
    }
    out
}
