//! What the peer was not granted is out of its reach.

use crate::initiator::Initiator;
use crate::pair::{filled, pattern, zeroed};
use crate::subject::Subject;
use crate::verdict::{Because, Verdict, ensure, ensure_eq, skip};
use memreg_core::device::sim::Syndrome;
use memreg_core::device::{Caps, DeviceError, WcStatus};
use memreg_core::memreg::{Control, Event, MapError, Poison, RegionId, Reject, SegList, WrBatch};
use memreg_core::sizing::{Ask, Limits, SizeError};
use memreg_core::transport::error::Refusal;
use memreg_core::types::Rkey;
use memreg_core::{Grant, MemReg, Segment};

/// Why the checks of this file do not apply to a strategy on a bounce arena.
pub(super) const NOT_REVOKED: &str = "limits.arena_bytes > 0: its key reaches the arena for ever";

/// A key for reading refuses writes and the other way round.
pub(super) fn map_16_one_direction_only<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let data = pattern(9, 5000);
    for (grant, other, verb) in [
        (Grant::PeerReads, Grant::PeerWrites, "write"),
        (Grant::PeerWrites, Grant::PeerReads, "read"),
    ] {
        let mut pair = subject.pair()?;
        let (exposed, segments) = pair.expose_told(filled(&data)?, grant)?;
        let first = *segments.first().because("no segment")?;
        let wrong = match other {
            Grant::PeerWrites => pair.peer.write(&first, 0, zeroed(1)?),
            Grant::PeerReads => pair.peer.read(&first, 0, zeroed(1)?),
        };
        let why = wrong.err().map(|e| e.why);
        ensure_eq!(why, Some(Refusal::WrongGrant(verb)), "the wrong direction, as told");
        pair.must_refuse(Segment { grant: other, ..first }, "the wrong direction, forged")?;
        pair.wait_down()?;
        let buf = pair.reclaim(exposed)?.into_first().because("no buffer came back")?;
        ensure!(buf[..] == data[..], "a refused access changed the bytes");
        pair.close()?;
    }
    Ok(())
}

/// Bytes before, behind and across the ends of the exposed range are refused, in one buffer.
pub(super) fn neighbours_are_out_of_reach<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let pair = subject.pair()?;
    if !pair.revokes() {
        return skip(NOT_REVOKED);
    }
    if pair.is_real() && pair.owner.limits().mechanism == "window" {
        // The whole buffer is exposed then, also for a part of it; probing tells which devices.
        return skip("a real device may not enforce the bounds of windows");
    }
    pair.close()?;
    let data = pattern(7, 3 * 4096);
    let range = 4096 + 100..4096 + 1100;
    for (what, at, len) in [
        ("just before", -1, 1),
        ("far before", -4196, 100),
        ("across the start", -1, 2),
        ("across the end", 999, 2),
        ("just behind", 1000, 1),
        ("the rest of the page", 1000, 2996),
        ("the next page", 3996, 100),
        ("all and one more", 0, 1001),
    ] {
        for grant in [Grant::PeerWrites, Grant::PeerReads] {
            let mut pair = subject.pair()?;
            let (exposed, segments) = pair.expose_told((filled(&data)?, range.clone()), grant)?;
            let first = *segments.first().because("no segment")?;
            let addr = first.addr.wrapping_add_signed(at);
            pair.must_refuse(Segment { addr, len, ..first }, what)?;
            pair.wait_down()?;
            let buf = pair.reclaim(exposed)?.into_first().because("no buffer came back")?;
            ensure!(buf[..] == data[..], "{what}: a refused access changed the bytes");
            pair.close()?;
        }
    }
    outside_of_a_segment_is_not_posted(subject)
}

/// The peer's own side refuses what its segment does not cover, before anything is posted.
fn outside_of_a_segment_is_not_posted<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let (exposed, segments) = pair.expose_told(zeroed(1000)?, Grant::PeerWrites)?;
    let first = *segments.first().because("no segment")?;
    let posts = pair.peer.stats().posts;
    for (offset, len) in [(1000, 1), (999, 2), (u64::MAX, 1), (0, 1001)] {
        let e = pair.peer.write(&first, offset, zeroed(len)?).err();
        let refused = e.as_ref().is_some_and(|e| matches!(e.why, Refusal::OutsideSegment { .. }));
        ensure!(refused, "{len} bytes at {offset} of a segment of 1000: {e:?}");
    }
    ensure_eq!(pair.peer.stats().posts, posts, "posts of refused writes");
    drop(pair.fence(exposed)?);
    pair.close()
}

/// The number that would be the remote key of memory registered for local use opens nothing.
///
/// No call gives that number, so it is learned from a twin: the same calls on a fabric of the same
/// seed, but for the last, which grants there what it only registers locally here.
pub(super) fn b57_local_memory_has_no_remote_key<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let by_verb = Subject::new("twin", subject.caps.clone(), || ByVerb);
    let mut twin = by_verb.pair()?;
    let (exposed, segments) = twin.expose_told(zeroed(4096)?, Grant::PeerWrites)?;
    let learned = *segments.first().because("no segment")?;
    drop(twin.fence(exposed)?);
    twin.close()?;

    let mut pair = by_verb.pair()?;
    let nowhere = Segment { rkey: Rkey::from_bits(0), ..learned };
    let mrs = pair.node().mrs;
    // The peer refuses, which costs the connection; the buffer comes back with its registration.
    // Not a read: on iWARP its sink lets the peer in, and is not kept.
    let data = pattern(2, 4096);
    let op = pair.owner.write(&nowhere, 0, filled(&data)?).because("the owner's write")?;
    pair.wait_down()?;
    let done = pair.owner.take(op).because("the owner's write")?;
    let buf = done.buffers.into_first().because("no buffer came back")?;
    pair.reconnect()?;
    ensure_eq!(pair.node().mrs, mrs + 1, "MRs after a write");

    let forged = Segment { epoch: pair.owner.epoch(), ..learned };
    let op = pair.peer.write(&forged, 0, zeroed(4096)?).because("the peer's write")?;
    pair.settle()?;
    let refused = pair.peer.take(op).because("the peer's write")?.result.err();
    let why = refused.map(|e| (e.wc.status, Syndrome::from_raw(e.wc.vendor_err)));
    let want = (WcStatus::RemAccessErr, Some(Syndrome::MissingRight));
    ensure_eq!(why, Some(want), "a write with the number of a local key");
    ensure!(buf[..] == data[..], "the bytes changed");
    drop(buf);
    pair.close()
}

/// Registers by verb, one region for a list of one part.
struct ByVerb;

impl MemReg for ByVerb {
    fn name(&self) -> &'static str {
        "by-verb"
    }

    fn check(&self, _: &Caps) -> Result<(), Reject> {
        Ok(())
    }

    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
        Initiator.open(caps, ask)
    }

    fn fill(&mut self, _: &mut dyn Control, _: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn map(
        &mut self,
        ctl: &mut dyn Control,
        segs: &SegList<'_>,
        _: &mut WrBatch,
    ) -> Result<(), MapError> {
        ctl.reg_mr(0..segs.total())?;
        Ok(())
    }

    fn unmap(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        _: &mut WrBatch,
    ) -> Result<(), Poison> {
        live.iter().try_for_each(|&r| ctl.dereg(r)).map_err(|_| Poison("dereg"))
    }

    fn on_event(&mut self, _: RegionId, _: Event) -> Result<(), Poison> {
        Ok(())
    }

    fn recover(&mut self, _: &mut dyn Control, _: usize) -> Result<usize, DeviceError> {
        Ok(0)
    }

    fn on_drained(&mut self) {}
}
