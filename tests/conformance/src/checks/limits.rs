//! Bad input, long lists, short queues, and keys that come round again.

use super::rights::NOT_REVOKED;
use crate::pair::{Pair, zeroed};
use crate::subject::Subject;
use crate::verdict::{Because, Stop, Verdict, ensure, ensure_eq, fail, skip};
use memreg_core::memreg::{MAX_REGIONS, MapError};
use memreg_core::sizing::Ask;
use memreg_core::transport::error::Refusal;
use memreg_core::transport::{Buffers, NoReply};
use memreg_core::{Disposition, Grant, MemReg, Segment};
use std::ops::Range;

/// Length of a buffer, and the range of it that is given.
type Part = (usize, Range<usize>);

/// Every strategy refuses the same bad lists with the same errors, and nothing is used up.
pub(super) fn b46_bad_lists_are_refused_alike<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let (earlier, segments) = pair.expose_told(zeroed(64)?, Grant::PeerWrites)?;
    let before = (*pair.owner.stats(), pair.node());
    let limit = pair.owner.limits().max_payload_bytes;
    let long = usize::try_from(limit).because("max_payload_bytes")? + 1;
    let backwards = Range { start: 9, end: 3 };
    let bad: [(&[Part], Refusal); 8] = [
        (&[], Refusal::Empty),
        (&[(8, 0..0)], Refusal::ZeroLength { index: 0 }),
        (&[(8, 0..8), (8, 5..5), (8, 0..8)], Refusal::ZeroLength { index: 1 }),
        (&[(8, 0..8), (16, backwards)], Refusal::ZeroLength { index: 1 }),
        (&[(8, 0..9)], Refusal::OutOfRange { index: 0, end: 9, len: 8 }),
        (
            &[(8, 0..8), (8, 1..usize::MAX)],
            Refusal::OutOfRange { index: 1, end: usize::MAX, len: 8 },
        ),
        (&[(long, 0..long)], Refusal::TooLong { need: limit + 1, limit }),
        (&[(long, 0..long - 1), (8, 0..1)], Refusal::TooLong { need: limit + 1, limit }),
    ];
    for (list, want) in bad {
        for grant in [Grant::PeerReads, Grant::PeerWrites] {
            let parts = list.iter().map(|(len, r)| Ok((zeroed(*len)?, r.clone())));
            let parts: Buffers = parts.collect::<Result<_, Stop>>()?;
            match pair.owner.expose(parts, grant) {
                Ok(_) => return fail(format!("accepted; expected {want}")),
                Err(e) => {
                    ensure_eq!(e.why, want, "refusal of a bad list");
                    ensure_eq!(e.disposition(), Disposition::Fatal, "disposition of {want}");
                    ensure_eq!(e.buffers.count(), list.len(), "buffers that came back");
                }
            }
        }
    }
    ensure_eq!(*pair.owner.stats(), before.0, "counters after refusals");
    ensure_eq!(pair.node(), before.1, "the device after refusals");
    pair.write_all(&segments, &[7; 64])?;
    let buf = pair.fence(earlier)?.into_first().because("no buffer came back")?;
    ensure!(buf.iter().all(|&b| b == 7), "an earlier exposure no longer works");
    pair.close()
}

/// A list of more parts than regions fit a message: it works, or is refused for good with nothing
/// used up.
pub(super) fn d_08_too_many_regions_grants_nothing<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    for _ in 0..20 {
        let count = MAX_REGIONS + 1;
        let parts = (0..count).map(|_| Ok((zeroed(200)?, 50..100)));
        let parts: Buffers = parts.collect::<Result<_, Stop>>()?;
        let before = (pair.owner.stats().registrations, pair.node());
        pair.books.lent += count;
        match pair.owner.expose(parts, Grant::PeerWrites) {
            Ok(exposed) => {
                drop(pair.fence(exposed)?);
            }
            Err(e) => {
                pair.books.returned += e.buffers.count();
                ensure_eq!(e.why, Refusal::Map(MapError::TooManyRegions), "refusal");
                ensure_eq!(e.disposition(), Disposition::Fatal, "disposition");
                let after = (pair.owner.stats().registrations, pair.node());
                ensure_eq!(after.0, before.0, "registrations of a refused list");
                ensure_eq!(after.1.mrs, before.1.mrs, "MRs after a refused list");
            }
        }
    }
    pair.cycle(1, 5000)?;
    pair.close()
}

/// Pairs of grant and revoke on a short queue, with no more polling than one a pair.
pub(super) fn b31_thousand_pairs_without_a_full_queue<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let ask = Ask { credits: 1, max_payload_bytes: 4096, ..subject.ask };
    let mut pair = subject.pair_with(&subject.caps, &ask)?;
    let mut buf = zeroed(4096)?;
    for i in 0..1000 {
        let exposed = pair.expose(buf, Grant::PeerWrites)?;
        pair.owner.flush().because(format!("flush {i}"))?;
        pair.owner.revoke(&exposed, NoReply::Unmarked).because(format!("revoke {i}"))?;
        pair.settle()?;
        buf = pair.reclaim(exposed)?.into_first().because("no buffer came back")?;
    }
    let (node, stats) = (pair.node(), *pair.owner.stats());
    let depth = pair.owner.limits().max_send_wr;
    ensure!(node.sq_in_use_max <= depth, "{} of {depth} slots taken", node.sq_in_use_max);
    ensure!(
        stats.wrs_signaled >= stats.wrs / u64::from(depth),
        "{} of {} WRs signaled on a queue of {depth}",
        stats.wrs_signaled,
        stats.wrs
    );
    pair.close()
}

/// Through more registrations than a key has tags: keys of late never work again.
pub(super) fn map_13_map_14_old_keys_after_the_tag_wraps<S: MemReg>(
    subject: &Subject<S>,
) -> Verdict {
    // One region, as far as the strategy lets us, so that its tags come round.
    let ask = Ask { credits: 1, max_payload_bytes: 4096, ..subject.ask };
    let mut pair = subject.pair_with(&subject.caps, &ask)?;
    if !pair.revokes() {
        return skip(NOT_REVOKED);
    }
    let mut keys: Vec<Segment> = vec![];
    let mut buf = zeroed(4096)?;
    for _ in 0..600 {
        let exposed = pair.expose(buf, Grant::PeerWrites)?;
        keys.extend(pair.owner.segments(&exposed).because("segments")?);
        pair.owner.flush().because("flush")?;
        buf = pair.fence(exposed)?.into_first().because("no buffer came back")?;
    }
    let late: Vec<Segment> = keys.iter().rev().take(200).copied().collect();
    let mut seen: Vec<u32> = late.iter().map(|s| s.rkey.to_bits()).collect();
    seen.sort_unstable();
    seen.dedup();
    ensure_eq!(seen.len(), late.len(), "different keys among the last 200");
    for stale in late.iter().step_by(9) {
        refused_while_exposed(&mut pair, *stale)?;
    }
    pair.cycle(1, 4096)?;
    pair.close()
}

/// An old key is refused although its region may be exposed again under a newer one.
fn refused_while_exposed<S: MemReg>(pair: &mut Pair<S>, stale: Segment) -> Verdict {
    let mut held = vec![];
    // As many as fit, so that every region of the pool is in use.
    while held.len() < 64 {
        pair.books.lent += 1;
        match pair.owner.expose(zeroed(4096)?, Grant::PeerWrites) {
            Ok(exposed) => held.push(exposed),
            Err(e) => {
                pair.books.returned += e.buffers.count();
                break;
            }
        }
    }
    ensure!(!held.is_empty(), "nothing can be exposed");
    pair.owner.flush().because("flush")?;
    pair.must_refuse(stale, "a key of an earlier registration")?;
    pair.wait_down()?;
    for exposed in held {
        let buf = pair.reclaim(exposed)?.into_first().because("no buffer came back")?;
        ensure!(buf.iter().all(|&b| b == 0), "a refused write changed the bytes");
    }
    pair.reconnect()
}
