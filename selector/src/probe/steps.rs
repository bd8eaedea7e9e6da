//! What is tried, one scenario after the other, each on a connection of its own: a refused access
//! ends its connection.

use super::pair::{Access, Pair, Peer, buffer, drive_alone, peer, start, text};
use super::{Bench, Outcome, Proof, Step, StrategyProof};
use memreg_core::device::{Device, DeviceError, Endpoint, FastMrKind, QpCaps, RtsAttrs, WcStatus};
use memreg_core::sizing::Limits;
use memreg_core::transport::Buffers;
use memreg_core::types::{CqId, Grant, QpId, Segment};

/// Tries everything that there is to try with one strategy.
pub(super) fn prove<D: Device + Clone>(bench: &Bench<'_, D>, name: &'static str) -> StrategyProof {
    let mut proof = StrategyProof { name, mechanism: None, page_list_depth: None, proofs: vec![] };
    let limits = match bench.sized(name) {
        Ok(limits) => limits,
        Err(reason) => {
            proof.note(Step::Attributes, Err(reason));
            return proof;
        }
    };
    proof.note(Step::Attributes, Ok(()));
    proof.mechanism = Some(limits.mechanism);
    page_list(bench, &limits, &mut proof);
    for grant in [Grant::PeerReads, Grant::PeerWrites] {
        if proof.works() {
            grant_and_revoke(bench, &limits, grant, &mut proof);
        }
    }
    if proof.works() {
        facts(bench, &limits, &mut proof);
    }
    for p in &proof.proofs {
        tracing::debug!(strategy = name, proof = %p, "probed");
    }
    proof
}

impl StrategyProof {
    fn note(&mut self, step: Step, result: Result<(), String>) {
        let outcome = match result {
            Ok(()) => Outcome::Proven,
            Err(what) => Outcome::NotProven(what),
        };
        self.proofs.push(Proof { step, outcome });
    }

    fn skip(&mut self, step: Step, why: &'static str) {
        self.proofs.push(Proof { step, outcome: Outcome::Skipped(why) });
    }
}

/// Makes one MR with the page list that the workload would use; a shorter one if that is refused.
fn page_list<D: Device + Clone>(bench: &Bench<'_, D>, limits: &Limits, proof: &mut StrategyProof) {
    let announced = limits.page_list_depth;
    if announced == 0 {
        return;
    }
    let mut first = None;
    let mut depth = announced;
    while depth > 0 {
        match make_one(bench.device, depth) {
            Ok(()) => break,
            Err(e) => drop(first.get_or_insert(e)),
        }
        depth /= 2;
    }
    proof.page_list_depth = Some(depth);
    let result = match first {
        None => Ok(()),
        Some(e) if depth == 0 => Err(format!("{announced} entries: {e}")),
        Some(e) => Err(format!("{announced} entries: {e}; {depth} work")),
    };
    proof.note(Step::PageList, result);
}

fn make_one<D: Device>(device: &D, depth: u32) -> Result<(), DeviceError> {
    let pd = device.alloc_pd()?;
    let made = device.alloc_fast_mr(pd, depth, FastMrKind::Pages);
    // Only the making is in question.
    let ended = made.map(|keys| device.dereg_mr(keys.mr));
    for end in [ended.unwrap_or(Ok(())), device.dealloc_pd(pd)] {
        if let Err(e) = end {
            tracing::warn!(error = %e, "an object of the probe stays");
        }
    }
    made.map(|_| ())
}

/// The life of an exposure, and of its key afterwards.
fn grant_and_revoke<D: Device + Clone>(
    bench: &Bench<'_, D>,
    limits: &Limits,
    grant: Grant,
    proof: &mut StrategyProof,
) {
    let pair = Pair::open(bench, proof.name);
    let opened = pair.as_ref().map(|_| ()).map_err(Clone::clone);
    if grant == Grant::PeerReads || opened.is_err() {
        proof.note(Step::Open, opened);
    }
    let Ok(mut pair) = pair else { return };
    let moved = transfer(&mut pair, bench.len(), grant);
    let (exposed, segments) = match moved {
        Ok(exposed) => {
            proof.note(Step::Transfer(grant), Ok(()));
            exposed
        }
        Err(what) => return proof.note(Step::Transfer(grant), Err(what)),
    };
    let back = pair.take_back(exposed).and_then(|ours| is(&ours, OWNER, "owner's bytes"));
    let revoked = back.is_ok();
    proof.note(Step::Revoke(grant), back);
    if !revoked {
        return;
    }
    if limits.arena_bytes > 0 {
        return proof.skip(Step::OldKey(grant), "the strategy never takes a key back");
    }
    let refused = segments.first().ok_or_else(|| "no key".to_owned()).and_then(|segment| {
        let one = Segment { len: 1, ..*segment };
        pair.access(&one, buffer(1, |_| 0)?).and_then(|(access, _)| is_refused(access))
    });
    proof.note(Step::OldKey(grant), refused);
}

/// What the owner's bytes are when a peer has read or written all of them.
const OWNER: fn(usize) -> u8 = |i| (i as u8).wrapping_mul(7).wrapping_add(1);

/// What no byte of a transfer is before it.
const BEFORE: fn(usize) -> u8 = |i| !OWNER(i);

/// Exposes and moves bytes; the peer's are compared here, the owner's once they are back.
fn transfer<D: Device + Clone>(
    pair: &mut Pair<D>,
    len: usize,
    grant: Grant,
) -> Result<(memreg_core::Exposed, Vec<Segment>), String> {
    let reads = grant == Grant::PeerReads;
    let (ours, theirs) = if reads { (OWNER, BEFORE) } else { (BEFORE, OWNER) };
    let (exposed, segments) = pair.expose(buffer(len, ours)?, grant)?;
    let mut theirs = buffer(len, theirs)?;
    theirs = through(pair, &segments, theirs)?;
    if reads {
        is(&theirs, OWNER, "peer's bytes")?;
    }
    Ok((exposed, segments))
}

/// Moves a whole buffer through all segments, one after the other.
fn through<D: Device + Clone>(
    pair: &mut Pair<D>,
    segments: &[Segment],
    theirs: Buffers,
) -> Result<Buffers, String> {
    let whole = theirs.iter().map(|(_, range)| range.len()).sum::<usize>();
    let mut buf = theirs.into_first().ok_or("no buffer")?;
    let mut at = 0usize;
    for segment in segments {
        let end = at.saturating_add(usize::try_from(segment.len).unwrap_or(usize::MAX));
        if end > whole {
            return Err("the segments are longer than the buffer".to_owned());
        }
        let (access, back) = pair.access(segment, (buf, at..end).into())?;
        if let Access::Refused(status) = access {
            return Err(format!("the peer was refused: {status}"));
        }
        buf = back.into_first().ok_or("the peer's buffer is lost")?;
        at = end;
    }
    if at != whole {
        return Err(format!("the segments hold {at} bytes of {whole}"));
    }
    Ok((buf, 0..whole).into())
}

/// Compares the bytes that count with what they should be.
fn is(buffers: &Buffers, want: fn(usize) -> u8, whose: &str) -> Result<(), String> {
    let bytes = buffers.iter().flat_map(|(buf, range)| buf.get(range.clone()).unwrap_or(&[]));
    for (i, byte) in bytes.enumerate() {
        let want = want(i);
        if *byte != want {
            return Err(format!("{whose}: byte {i} is {byte:#04x}, expected {want:#04x}"));
        }
    }
    Ok(())
}

fn is_refused(access: Access) -> Result<(), String> {
    match access {
        Access::Refused(WcStatus::RemAccessErr) => Ok(()),
        Access::Refused(status) => Err(format!("ended with {status}")),
        Access::Done => Err("the peer got through".to_owned()),
    }
}

/// What is good to know of the mechanism.
fn facts<D: Device + Clone>(bench: &Bench<'_, D>, limits: &Limits, proof: &mut StrategyProof) {
    let name = proof.name;
    if limits.page_list_depth > 0 {
        if bench.caps.sg_gaps {
            proof.note(Step::Gaps, one_key_over_a_gap(bench, name));
        } else {
            proof.skip(Step::Gaps, "the device has no SG_GAPS");
        }
    }
    if limits.mechanism == "window" {
        proof.note(Step::Bounds, bounds(bench, name));
        proof.note(Step::OtherQp, other_qp(bench, name));
    }
}

/// Two segments that do not join at a page boundary, under one key.
fn one_key_over_a_gap<D: Device + Clone>(bench: &Bench<'_, D>, name: &str) -> Result<(), String> {
    let mut pair = Pair::open(bench, name)?;
    let len = bench.len();
    let first = (len / 2).saturating_sub(1);
    if first == 0 {
        return Err("the workload's operations are too short for a gap".to_owned());
    }
    let mut ours = Buffers::new();
    for part in [first, len - first] {
        for (buf, range) in buffer(part, BEFORE)? {
            ours.push(buf, range);
        }
    }
    let (exposed, segments) = pair.expose(ours, Grant::PeerWrites)?;
    if segments.len() != 1 {
        return Err(format!("{} keys were used", segments.len()));
    }
    through(&mut pair, &segments, buffer(len, OWNER)?)?;
    is(&pair.take_back(exposed)?, OWNER, "owner's bytes")
}

/// A write that begins in the window and ends in the same buffer behind it.
fn bounds<D: Device + Clone>(bench: &Bench<'_, D>, name: &str) -> Result<(), String> {
    let mut pair = Pair::open(bench, name)?;
    let len = bench.len();
    let (_exposed, segments) = pair.expose(buffer(len, BEFORE)?, Grant::PeerWrites)?;
    let segment = segments.first().ok_or("no key")?;
    let longer = Segment { len: segment.len.saturating_add(1), ..*segment };
    let (access, _) = pair.access(&longer, buffer(len + 1, OWNER)?)?;
    is_refused(access)
}

/// A write with a good key, through another QP of the owner's protection domain.
pub(super) fn other_qp<D: Device + Clone>(bench: &Bench<'_, D>, name: &str) -> Result<(), String> {
    let mut pair = Pair::open(bench, name)?;
    let (_exposed, segments) = pair.expose(buffer(bench.len(), BEFORE)?, Grant::PeerWrites)?;
    let segment = segments.first().ok_or("no key")?;
    let mut stranger = peer(bench)?;
    let second = SecondQp::open(bench, &pair)?;
    second.connect(&pair, &mut stranger)?;
    let op = start(&mut stranger, segment, buffer(bench.len(), OWNER)?)?;
    let access = drive_alone(&mut stranger, &mut pair, op)?;
    is_refused(access)
}

/// A QP of the owner's protection domain that the owner knows nothing of.
struct SecondQp<'a, D: Device> {
    device: &'a D,
    cq: CqId,
    qp: Option<QpId>,
}

impl<'a, D: Device + Clone> SecondQp<'a, D> {
    fn open(bench: &Bench<'a, D>, pair: &Pair<D>) -> Result<SecondQp<'a, D>, String> {
        let device = bench.device;
        let pd = pair.owner.protection_domain();
        let failed = |e: DeviceError| text("the other QP", &e);
        let (cq, _) = device.create_cq(2).map_err(failed)?;
        let mut second = SecondQp { device, cq, qp: None };
        let ask = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_sge: 1, max_inline_data: 0 };
        let (qp, _) = device.create_qp(pd, cq, ask).map_err(failed)?;
        second.qp = Some(qp);
        device.qp_to_init(qp).map_err(failed)?;
        Ok(second)
    }

    /// Connects it to a peer that takes it for the owner.
    fn connect(&self, pair: &Pair<D>, stranger: &mut Peer<D>) -> Result<(), String> {
        let failed = |e: DeviceError| text("the other QP", &e);
        let Some(qp) = self.qp else { return Ok(()) };
        let us = self.device.endpoint(qp).map_err(failed)?;
        let them = stranger.endpoint().map_err(|e| text("the other QP", &e))?;
        let us = Endpoint { epoch: pair.owner.epoch(), ..us };
        stranger.connect(us).map_err(|e| text("the other QP", &e))?;
        self.device.qp_to_rts(qp, them, RtsAttrs::default()).map_err(failed)
    }
}

impl<D: Device> Drop for SecondQp<'_, D> {
    fn drop(&mut self) {
        // If the device does not let go of them, its PD stays too: it says so when it is ended.
        if let Some(qp) = self.qp {
            let _ = self.device.destroy_qp(qp);
        }
        let _ = self.device.destroy_cq(self.cq);
    }
}
