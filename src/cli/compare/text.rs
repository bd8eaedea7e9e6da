//! The result for people.

use super::figures::Figures;
use super::report::{Report, StrategyShown};
use crate::cli::table::layout;
use serde_json::Value;
use std::fmt::Write as _;

/// Header, strategies, figures.
pub(super) fn render(r: &Report) -> String {
    let mut out = String::new();
    let h = &r.header;
    let _ = writeln!(out, "memreg {} compare, {}, {} build", h.version, h.device, h.build);
    match (&h.profile, &h.profile_source, h.peer_profile, h.seed) {
        (Some(profile), Some(numbers), Some(peer), Some(seed)) => {
            let _ = writeln!(out, "profile   {profile} (numbers: {})", source(numbers));
            let _ = writeln!(out, "peer      profile {peer}, strategy fmr");
            let _ = writeln!(out, "seed      {seed}");
        }
        _ => {
            let _ = writeln!(out, "device    {}", h.name);
            let peer = h.connect.as_ref().map(|to| format!("memreg serve at {to}"));
            let peer = peer.as_deref().unwrap_or("the same device");
            let _ = writeln!(out, "peer      {peer}, strategy fmr");
        }
    }
    let _ = writeln!(out, "cpu       {}", h.cpu.as_deref().unwrap_or("unknown"));
    let _ = writeln!(out, "settings  {}", settings(r));
    let _ = writeln!(out, "data      {}", data(r));
    let traces: Vec<&str> = r.strategies.iter().filter_map(|s| s.trace.as_deref()).collect();
    if !traces.is_empty() {
        let _ = writeln!(out, "traces    {}", traces.join(", "));
    }
    let _ = writeln!(out, "selected  {}\n", r.selected.unwrap_or("none"));
    let rows: Vec<Vec<String>> = r.strategies.iter().map(strategy).collect();
    out.push_str(&layout(&STRATEGY_HEADERS, &rows, STRATEGY_HEADERS.len()));
    let figures_of = |s: &StrategyShown| {
        let whole = s.sizes.iter().map(|f| figures(h.device, &s.label, 1, f));
        let gaps = s.gaps.iter().map(|f| figures(h.device, &s.label, 3, f));
        whole.chain(gaps).collect::<Vec<_>>()
    };
    let rows: Vec<Vec<String>> = r.strategies.iter().flat_map(figures_of).collect();
    if !rows.is_empty() {
        let _ = writeln!(out, "\n{TITLE}");
        out.push_str(&layout(&FIGURE_HEADERS, &rows, 2));
        let ns = if h.connect.is_some() { NS_ACROSS } else { NS_HERE };
        let _ = writeln!(out, "\n{ns}\n{FOOTNOTE}");
    }
    out
}

const STRATEGY_HEADERS: [&str; 7] =
    ["strategy", "mechanism", "eligible", "verified", "transfers", "bytes", "reason"];

const TITLE: &str = "\
Cost of one operation: expose, tell the peer, the peer reads, replies;
revoke, reclaim; then the same with the peer writing. Counts are per operation, at the owner.";

const NS_HERE: &str = "\
ns: host time of both ends in this process, without filling and comparing the buffers; that of a
software device cannot be compared with hardware.";

const NS_ACROSS: &str = "\
ns: time at this side from expose to reclaim, less the other's for filling and checking its buffer;
that of a software device cannot be compared with hardware.";

const FOOTNOTE: &str = "\
buffers: three are three that do not join at page boundaries. WRs: work requests on the send queue.
posts: doorbells. events: completions taken. verbs: registration calls, system calls on hardware;
frwr's few give a region a new MR before the 256 tags of its key repeat. keys: granted; then how
they ended: by LOCAL_INV, by the peer's reply, by deregistration.";

const FIGURE_HEADERS: [&str; 18] = [
    "device",
    "strategy",
    "bytes",
    "buffers",
    "ops",
    "ns min",
    "ns p50",
    "ns p99",
    "exposures",
    "WRs",
    "posts",
    "events",
    "verbs",
    "copies",
    "keys",
    "LOCAL_INV",
    "by peer",
    "dereg",
];

/// A long list of sources does not belong in a header.
fn source(source: &str) -> &str {
    if source.len() <= 40 { source } else { "see memreg devices" }
}

fn settings(r: &Report) -> String {
    let set: Vec<String> = r
        .header
        .settings
        .iter()
        .filter_map(|(key, s)| {
            let (value, origin) = (s.get("value")?, s.get("origin").and_then(Value::as_str)?);
            (origin != "default").then(|| format!("{key} = {value} [{origin}]"))
        })
        .collect();
    if set.is_empty() { "defaults".to_owned() } else { set.join(", ") }
}

fn data(r: &Report) -> String {
    match (&r.data.path, r.data.file_bytes) {
        (Some(path), Some(len)) => format!("{path}, {len} bytes, covered whole at each size"),
        _ => "pseudo-random bytes from the seed".to_owned(),
    }
}

fn strategy(s: &StrategyShown) -> Vec<String> {
    let yes = |b: bool| if b { "yes" } else { "no" }.to_owned();
    let verified = match (&s.error, s.transfers) {
        (Some(_), _) => "FAILED".to_owned(),
        (None, 0) => "-".to_owned(),
        (None, _) => "every byte".to_owned(),
    };
    vec![
        s.label.clone(),
        s.mechanism.unwrap_or("-").to_owned(),
        yes(s.eligible),
        verified,
        s.transfers.to_string(),
        s.bytes.to_string(),
        s.reason.clone(),
    ]
}

fn figures(device: &str, name: &str, buffers: u64, f: &Figures) -> Vec<String> {
    let per_op = [
        f.exposures_per_op,
        f.wr_per_op,
        f.posts_per_op,
        f.cq_events_per_op,
        f.verb_calls_per_op,
        f.copies_per_op,
        f.each(f.registrations),
        f.each(f.invalidations),
        f.each(f.remote_invalidations),
        f.each(f.deregistrations),
    ];
    let mut row = vec![device.to_owned(), name.to_owned()];
    row.extend([f.size_bytes as u64, buffers, f.ops as u64].map(|n| n.to_string()));
    row.extend([f.ns_per_op_min, f.ns_per_op_p50, f.ns_per_op_p99].map(|n| n.to_string()));
    row.extend(per_op.map(short));
    row
}

/// Whole numbers without a fraction, others with two digits.
fn short(x: f64) -> String {
    if x.fract() == 0.0 { format!("{x:.0}") } else { format!("{x:.2}") }
}
