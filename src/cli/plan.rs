//! `memreg plan`: what would be opened, with which sizes, and why not another.

use super::failure::Failure;
use super::host::{ChoiceShown, PinLimit};
use super::table::layout;
use super::target::Target;
use super::{Answer, SCHEMA, json};
use crate::OpenError;
use crate::open::{build_options, wanted};
use memreg_config::Settings;
use memreg_core::device::Device;
use memreg_core::sizing::{Ask, pinned};
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
    /// Why this device; `None` for the software device.
    choice: Option<ChoiceShown>,
    /// `None` if nothing would be opened.
    chosen: Option<&'static str>,
    /// Why nothing would be opened.
    refusal: Option<String>,
    candidates: Vec<CandidateShown>,
    sizing: Option<SizingShown>,
    /// `None` if nothing would be opened.
    pinned: Option<PinnedShown>,
}

/// Bytes that the connection pins, and how many this process may.
#[derive(Serialize)]
struct PinnedShown {
    buffers_bytes: u64,
    payload_bytes: u64,
    /// `None`: no limit, or a device that pins nothing.
    limit_bytes: Option<u64>,
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
    Ok(answer(&target, plan, &settings.ask, target.pin_limit(), as_json))
}

/// The plan, held against what this process may pin.
fn answer(target: &Target, plan: Plan, ask: &Ask, limit: PinLimit, as_json: bool) -> Answer {
    let limits = plan.candidates.iter().find(|c| c.chosen).and_then(|c| c.limits.as_ref());
    let pinned = limits.map(|limits| pinned(limits, ask));
    let refused = pinned.and_then(|p| limit.check(p).err());
    let pinned = pinned.map(|p| PinnedShown {
        buffers_bytes: p.buffers,
        payload_bytes: p.payload,
        limit_bytes: limit.most(),
    });
    let stdout = match as_json {
        true => json(&report(target, &plan, pinned, refused.as_deref())),
        false => text(target, &plan, pinned.as_ref()),
    };
    let refusal = plan.refusal.map(|e| OpenError::from(e).into());
    let pinning = refused.map(|why| Failure::unsuitable(anyhow::anyhow!("{why}")));
    Answer { stdout, failure: refusal.or(pinning) }
}

fn report(
    target: &Target,
    plan: &Plan,
    pinned: Option<PinnedShown>,
    refused: Option<&str>,
) -> Report {
    let refusal = plan.refusal.as_ref().map(ToString::to_string);
    Report {
        schema: SCHEMA,
        command: "plan",
        device: target.kind,
        name: target.device.name(),
        profile: target.profile.clone(),
        choice: target.choice.clone(),
        chosen: plan.chosen,
        refusal: refusal.or(refused.map(str::to_owned)),
        candidates: plan.candidates.iter().map(candidate).collect(),
        sizing: plan.sizing.as_ref().map(sizing),
        pinned,
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

fn text(target: &Target, plan: &Plan, pinned: Option<&PinnedShown>) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "memreg {} plan, {}", env!("CARGO_PKG_VERSION"), target.title());
    out.extend(target.choice.as_ref().map(ChoiceShown::text));
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
    if let Some(p) = pinned
        && let Some(limit) = p.limit_bytes
    {
        let (buffers, payload) = (p.buffers_bytes, p.payload_bytes);
        let _ = writeln!(
            out,
            "pinned    {buffers} bytes for messages and arenas and {payload} for one operation, \
             of {limit} that this process may pin"
        );
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

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use memreg_config::Loader;
    use memreg_core::device::host::Pinning;

    fn planned(limit: Option<u64>, as_json: bool) -> Answer {
        let settings = Loader::new().set("memory.max_payload=16MiB").load().unwrap().settings;
        let target = Target::open(&settings).unwrap();
        let (wanted, options) = (wanted(&settings), build_options(&settings));
        let caps = target.device.caps();
        let registry = Registry::builtin();
        let plan = Plan::new(&registry, &caps, &settings.ask, &wanted, &options, &[]);
        let limit = PinLimit::of(Pinning { limit, exempt: false });
        answer(&target, plan, &settings.ask, limit, as_json)
    }

    #[test]
    fn b02_a_plan_that_pins_more_than_this_process_may_is_refused_with_its_own_limit() {
        let refused = planned(Some(8 << 20), false);
        let failure = refused.failure.unwrap();
        assert_eq!(failure.code(), super::super::failure::UNSUITABLE);
        let text = failure.lines().join("\n");
        assert!(text.contains("RLIMIT_MEMLOCK of this process is 8388608 bytes"), "{text}");
        assert!(text.contains("16777216 for one operation"), "{text}");
        assert!(!text.contains("limits.conf"), "{text}");
        assert!(refused.stdout.contains("of 8388608 that this process may pin"));
        let shown: serde_json::Value =
            serde_json::from_str(&planned(Some(8 << 20), true).stdout).unwrap();
        assert_eq!(shown["pinned"]["limit_bytes"], 8 << 20);
        assert!(shown["refusal"].as_str().unwrap().starts_with("RLIMIT_MEMLOCK"));
        assert!(planned(None, false).failure.is_none());
        assert!(planned(Some(1 << 30), false).failure.is_none());
    }
}
