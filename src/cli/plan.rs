//! `memreg plan`: what would be opened, with which sizes, and why not another.

use super::failure::Failure;
use super::table::layout;
use super::target::Target;
use super::{Answer, SCHEMA, json};
use crate::OpenError;
use crate::open::{build_options, wanted};
use memreg_config::Settings;
use memreg_core::device::Device;
use memreg_selector::{Candidate, Plan, SelectError, Sizing};
use memreg_strategies::Registry;
use serde::Serialize;
use std::fmt::Write as _;

#[derive(Serialize)]
struct Report {
    schema: u32,
    command: &'static str,
    device: &'static str,
    name: String,
    profile: Option<String>,
    /// `None` if nothing would be opened.
    chosen: Option<&'static str>,
    /// Why nothing would be opened.
    refusal: Option<String>,
    candidates: Vec<CandidateShown>,
    sizing: Option<SizingShown>,
}

#[derive(Serialize)]
struct CandidateShown {
    name: &'static str,
    eligible: bool,
    chosen: bool,
    /// What its regions are made of; `None` if it does not work here.
    mechanism: Option<&'static str>,
    reason: String,
}

#[derive(Serialize)]
struct SizingShown {
    mechanism: &'static str,
    page_list_depth: u32,
    regions_per_request: u32,
    wr_per_request: u32,
    credits: u32,
    max_send_wr: u32,
    max_recv_wr: u32,
    cq_entries: u32,
    max_segments: u32,
    max_payload_bytes: u64,
    /// What the slots of the send queue are for; their sum is `max_send_wr`.
    parts: PartsShown,
    /// The longest contiguous payload of one key; `None` without page lists.
    one_key: Option<ReachShown>,
    clamped: Vec<ClampShown>,
}

#[derive(Serialize)]
struct PartsShown {
    register: u64,
    invalidate: u64,
    send: u64,
    backchannel: u64,
    drain: u64,
}

#[derive(Serialize)]
struct ReachShown {
    any_offset_bytes: u64,
    aligned_bytes: u64,
}

#[derive(Serialize)]
struct ClampShown {
    what: &'static str,
    asked: u64,
    got: u64,
    by: &'static str,
}

/// Plans for the device that the configuration describes.
pub(super) fn run(settings: &Settings, as_json: bool) -> Result<Answer, Failure> {
    let target = Target::open(settings)?;
    let registry = Registry::new().map_err(Failure::usage)?;
    let (wanted, options) = (wanted(settings), build_options(settings));
    let caps = target.device.caps();
    let plan = Plan::new(&registry, &caps, &settings.ask, &wanted, &options, &[]);
    if let Some(e @ SelectError::Unknown { .. }) = plan.refusal {
        return Err(OpenError::from(e).into());
    }
    let stdout = match as_json {
        true => json(&report(&target, &plan)),
        false => text(&target, &plan),
    };
    Ok(Answer { stdout, failure: plan.refusal.map(|e| OpenError::from(e).into()) })
}

fn report(target: &Target, plan: &Plan) -> Report {
    Report {
        schema: SCHEMA,
        command: "plan",
        device: target.kind,
        name: target.device.name(),
        profile: target.profile.clone(),
        chosen: plan.chosen,
        refusal: plan.refusal.as_ref().map(ToString::to_string),
        candidates: plan.candidates.iter().map(candidate).collect(),
        sizing: plan.sizing.as_ref().map(sizing),
    }
}

fn candidate(c: &Candidate) -> CandidateShown {
    CandidateShown {
        name: c.name,
        eligible: c.eligible,
        chosen: c.chosen,
        mechanism: c.limits.as_ref().map(|l| l.mechanism),
        reason: c.reason.clone(),
    }
}

fn sizing(s: &Sizing) -> SizingShown {
    let p = &s.parts;
    SizingShown {
        mechanism: s.mechanism,
        page_list_depth: s.page_list_depth,
        regions_per_request: s.regions_per_request,
        wr_per_request: s.wr_per_request,
        credits: s.credits,
        max_send_wr: s.max_send_wr,
        max_recv_wr: s.max_recv_wr,
        cq_entries: s.cq_entries,
        max_segments: s.max_segments,
        max_payload_bytes: s.max_payload_bytes,
        parts: PartsShown {
            register: p.register,
            invalidate: p.invalidate,
            send: p.send,
            backchannel: p.backchannel,
            drain: p.drain,
        },
        one_key: s
            .one_key
            .as_ref()
            .map(|r| ReachShown { any_offset_bytes: r.any_offset, aligned_bytes: r.aligned }),
        clamped: s
            .clamped
            .iter()
            .map(|c| ClampShown { what: c.what, asked: c.asked, got: c.got, by: c.by })
            .collect(),
    }
}

fn text(target: &Target, plan: &Plan) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "memreg {} plan, {}", env!("CARGO_PKG_VERSION"), target.title());
    let _ = writeln!(out, "chosen    {}\n", plan.chosen.unwrap_or("none"));
    out.push_str(&candidates(&plan.candidates));
    if let (Some(name), Some(s)) = (plan.chosen, &plan.sizing) {
        let _ = writeln!(out, "\nSizes of {name}:");
        out.push_str(&layout(&["size", "value", "what"], &sizes(s), 3));
        for c in &s.clamped {
            let _ =
                writeln!(out, "lowered: {} {} of {} asked, by {}", c.what, c.got, c.asked, c.by);
        }
    }
    out
}

/// Every known strategy with its reason, as a table.
pub(super) fn candidates(all: &[Candidate]) -> String {
    let row = |c: &Candidate| {
        let mechanism = c.limits.as_ref().map_or("-", |l| l.mechanism);
        let eligible = if c.eligible { "yes" } else { "no" };
        vec![c.label(), eligible.to_owned(), mechanism.to_owned(), c.reason.clone()]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    layout(&["strategy", "eligible", "mechanism", "reason"], &rows, 4)
}

fn sizes(s: &Sizing) -> Vec<Vec<String>> {
    let p = &s.parts;
    let send = format!(
        "send-queue slots: {} to register, {} to invalidate, {} messages, {} backchannel, {} drain",
        p.register, p.invalidate, p.send, p.backchannel, p.drain
    );
    let payload = match &s.one_key {
        Some(r) => format!(
            "bytes of one operation at most; one key: {} at any offset, {} from a page's start",
            r.any_offset, r.aligned
        ),
        None => "bytes of one operation at most".to_owned(),
    };
    let depth = match s.page_list_depth {
        0 => "pages of one region: it takes a contiguous range",
        _ => "pages of one region",
    };
    [
        ("page_list_depth", u64::from(s.page_list_depth), depth),
        ("regions_per_request", s.regions_per_request.into(), "keys of one operation"),
        ("wr_per_request", s.wr_per_request.into(), "send-queue slots of one operation"),
        ("credits", s.credits.into(), "operations in flight"),
        ("max_send_wr", s.max_send_wr.into(), &send),
        ("max_recv_wr", s.max_recv_wr.into(), "receive-queue slots"),
        ("cq_entries", s.cq_entries.into(), "completions that can be outstanding"),
        ("max_segments", s.max_segments.into(), "segments that the peer is told of"),
        ("max_payload_bytes", s.max_payload_bytes, &payload),
    ]
    .map(|(name, value, what)| vec![name.to_owned(), value.to_string(), what.to_owned()])
    .to_vec()
}
