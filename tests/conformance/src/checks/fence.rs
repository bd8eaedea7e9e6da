//! Access ends before the bytes come back, however it is ended.

use super::rights::NOT_REVOKED;
use crate::pair::{Pair, Reach, pattern, unaligned, zeroed};
use crate::subject::Subject;
use crate::verdict::{Because, Stop, Verdict, ensure, ensure_eq, fail, skip};
use memreg_core::device::{Device, WcStatus};
use memreg_core::transport::error::{ReclaimRefusal, Refusal};
use memreg_core::transport::{Buffers, ExposureState, NoReply, Reply, State};
use memreg_core::{DmaBuf, Exposed, Grant, MemReg, Segment};

/// Between revoke and fence `reclaim` gives nothing; right after it, the old key is refused.
pub(super) fn uns_01_h_12_bytes_return_only_after_the_fence<S: MemReg>(
    subject: &Subject<S>,
) -> Verdict {
    let mut pair = subject.pair()?;
    let parts: Buffers = unaligned()?.into_iter().collect();
    let (exposed, segments) = pair.expose_told(parts, Grant::PeerWrites)?;
    let total: u64 = segments.iter().map(|s| s.len).sum();
    let exposed = not_yet(&mut pair, exposed, "exposed")?;
    let data = pattern(4, usize::try_from(total).because("length")?);
    pair.write_all(&segments, &data)?;
    pair.owner.revoke(&exposed, NoReply::Unmarked).because("revoke")?;
    let exposed = match pair.state(&exposed)? {
        ExposureState::Fenced => exposed,
        ExposureState::Revoking => not_yet(&mut pair, exposed, "revoking")?,
        other => return fail(format!("after revoke the state is {other:?}")),
    };
    pair.settle()?;
    let back = pair.reclaim(exposed)?;
    let mut at = 0;
    for (buf, range) in back.iter() {
        ensure!(buf[range.clone()] == data[at..at + range.len()], "other bytes at {at}");
        at += range.len();
    }
    if pair.revokes() {
        let last = *segments.last().because("no segment")?;
        pair.must_refuse(last, "the old key right after reclaim")?;
    }
    let mut at = 0;
    for (buf, range) in back.iter() {
        ensure!(buf[range.clone()] == data[at..at + range.len()], "a late write changed the bytes");
        at += range.len();
    }
    pair.close()
}

/// `reclaim` must refuse and hand the handle back.
fn not_yet<S: MemReg>(pair: &mut Pair<S>, exposed: Exposed, when: &str) -> Result<Exposed, Stop> {
    match pair.owner.reclaim(exposed) {
        Ok(_) => fail(format!("bytes given back while {when}")),
        Err(e) => {
            let not_fenced = matches!(e.why, ReclaimRefusal::NotFenced { open } if open > 0);
            ensure!(not_fenced, "reclaim while {when}: {}", e.why);
            Ok(e.exposed)
        }
    }
}

/// The same buffer exposed again and again: each earlier segment is refused, also while the buffer
/// is exposed under another key.
pub(super) fn map_14_stale_keys_are_refused<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    if !pair.revokes() {
        return skip(NOT_REVOKED);
    }
    let mut buf = zeroed(5000)?;
    let mut old: Vec<Segment> = vec![];
    for _ in 0..6 {
        let (exposed, segments) = pair.expose_told(buf, Grant::PeerWrites)?;
        old.extend(&segments);
        buf = pair.fence(exposed)?.into_first().because("no buffer came back")?;
    }
    for (i, stale) in old.iter().enumerate() {
        let (exposed, segments) = pair.expose_told(buf, Grant::PeerWrites)?;
        let current = segments.iter().any(|s| s.rkey == stale.rkey);
        ensure!(!current, "the key of exposure {i} is used again within 12 exposures");
        pair.must_refuse(*stale, "a key of an earlier exposure of the same buffer")?;
        pair.wait_down()?;
        buf = pair.reclaim(exposed)?.into_first().because("no buffer came back")?;
        ensure!(buf.iter().all(|&b| b == 0), "a refused write changed the bytes");
        pair.reconnect()?;
    }
    pair.cycle(1, 100)?;
    pair.close()
}

/// An exposure that was never posted costs no WR, and its key never works.
pub(super) fn never_posted_comes_back_at_once<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let wrs = pair.owner.stats().wrs;
    let mut last = vec![];
    for _ in 0..100 {
        let exposed = pair.expose(zeroed(5000)?, Grant::PeerWrites)?;
        last = pair.owner.segments(&exposed).because("segments")?.to_vec();
        pair.owner.revoke(&exposed, NoReply::Unmarked).because("revoke")?;
        ensure_eq!(pair.state(&exposed)?, ExposureState::Fenced, "state at once after revoke");
        drop(pair.reclaim(exposed)?);
    }
    ensure_eq!(pair.owner.stats().wrs, wrs, "WRs posted for what was never posted");
    if pair.revokes() {
        let never = *last.first().because("no segment")?;
        pair.must_refuse(never, "a key that was never granted")?;
        pair.reconnect()?;
    }
    pair.cycle(2, 5000)?;
    pair.close()
}

/// Cancel ends access before it returns: while staged, exposed, with a reply out, and revoking.
pub(super) fn h_14_h_31_cancel_fences_at_once<S: MemReg>(subject: &Subject<S>) -> Verdict {
    for when in [When::Staged, When::Exposed, When::ReplyOut, When::Revoking] {
        let mut pair = subject.pair()?;
        let (exposed, segments) = bring_to(&mut pair, when)?;
        let (wrs, now) = (pair.owner.stats().wrs, pair.state(&exposed)?);
        pair.owner.cancel(&exposed).because(format!("cancel while {now:?}"))?;
        let state = pair.state(&exposed)?;
        ensure_eq!(state, ExposureState::Fenced, "state at once after cancel while {now:?}");
        ensure_eq!(pair.owner.stats().wrs, wrs, "WRs posted by cancel while {now:?}");
        let back = pair.reclaim(exposed)?;
        // The key is refused now, before anything else has been driven; if a WR of the cancelled
        // exposure was still out, it fails first and the connection is gone, which is as good.
        let up = pair.owner.device().step() || *pair.owner.state() == State::Up;
        if pair.revokes() && up {
            let last = *segments.last().because("no segment")?;
            let forged = Segment { epoch: pair.owner.epoch(), ..last };
            let reach = pair.write(&forged, 0, &[1])?;
            ensure!(reach != Reach::Moved(vec![]), "a key works after cancel while {now:?}");
        }
        let clean = back.iter().all(|(b, _)| b.iter().all(|&x| x == 0));
        ensure!(clean, "bytes changed after cancel while {now:?}");
        pair.reconnect()?;
        pair.cycle(6, 4097)?;
        pair.close()?;
    }
    Ok(())
}

/// Where an exposure is when it is cancelled or dropped.
#[derive(Clone, Copy, Debug)]
enum When {
    Staged,
    Exposed,
    ReplyOut,
    Revoking,
}

fn bring_to<S: MemReg>(pair: &mut Pair<S>, when: When) -> Result<(Exposed, Vec<Segment>), Stop> {
    let parts: Buffers = unaligned()?.into_iter().collect();
    let exposed = pair.expose(parts, Grant::PeerWrites)?;
    let segments = match when {
        When::Staged => pair.owner.segments(&exposed).because("segments")?.to_vec(),
        When::Exposed => pair.tell(&exposed, Reply::InvalidatesNothing)?,
        When::ReplyOut => pair.tell(&exposed, Reply::MayInvalidate(&[&exposed]))?,
        When::Revoking => {
            let segments = pair.tell(&exposed, Reply::InvalidatesNothing)?;
            pair.owner.revoke(&exposed, NoReply::Unmarked).because("revoke")?;
            segments
        }
    };
    Ok((exposed, segments))
}

/// Every region of a cancelled exposure is ended, and the pool fills again.
pub(super) fn saf_01_cancel_ends_every_region<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    for round in 0..100 {
        let parts: Buffers = unaligned()?.into_iter().collect();
        let (exposed, segments) = pair.expose_told(parts, Grant::PeerWrites)?;
        let before = pair.owner.stats().deregistrations;
        pair.owner.cancel(&exposed).because("cancel")?;
        if pair.revokes() {
            let ended = pair.owner.stats().deregistrations - before;
            ensure_eq!(ended, segments.len() as u64, "regions ended in round {round}");
        }
        ensure_eq!(pair.node().fast_mrs_valid, 0, "valid keys after cancel");
        drop(pair.reclaim(exposed)?);
        pair.owner.recover(usize::MAX).because("recover")?;
    }
    pair.cycle(1, 4096)?;
    pair.close()
}

/// Cancel works with the QP in ERR: it posts nothing.
pub(super) fn saf_02_cancel_posts_nothing<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let (exposed, _) = pair.expose_told(zeroed(5000)?, Grant::PeerWrites)?;
    let (second, _) = pair.expose_told(zeroed(5000)?, Grant::PeerWrites)?;
    // The peer goes, and so does the owner's QP; one is cancelled before the owner hears of it,
    // the other while it drains.
    pair.peer.disconnect();
    while pair.peer.device().step() {}
    let wrs = pair.owner.stats().wrs;
    pair.owner.cancel(&exposed).because("cancel before the event")?;
    ensure_eq!(pair.owner.stats().wrs, wrs, "WRs posted by cancel");
    drop(pair.reclaim(exposed)?);
    pair.owner.disconnect();
    let wrs = pair.owner.stats().wrs;
    pair.owner.cancel(&second).because("cancel while draining")?;
    ensure_eq!(pair.owner.stats().wrs, wrs, "WRs posted by cancel while draining");
    drop(pair.reclaim(second)?);
    pair.wait_down()?;
    pair.close()
}

/// `poll` fences what a dropped handle has left, staged, exposed or revoking.
pub(super) fn dropped_handle_is_fenced_by_poll<S: MemReg>(subject: &Subject<S>) -> Verdict {
    for when in [When::Staged, When::Exposed, When::Revoking] {
        let mut pair = subject.pair()?;
        let mapped = pair.node().mapped_ranges;
        let (exposed, segments) = bring_to(&mut pair, when)?;
        pair.books.let_go += 3;
        drop(exposed);
        pair.settle()?;
        let stats = *pair.owner.stats();
        ensure_eq!(stats.exposures_now, 0, "exposures after the drop of one {when:?}");
        ensure_eq!(stats.abandoned, 1, "abandoned handles counted");
        ensure_eq!(pair.node().mapped_ranges, mapped, "ranges mapped after {when:?}");
        ensure_eq!(*pair.owner.state(), State::Up, "state after the drop of one {when:?}");
        if pair.revokes() {
            let last = *segments.last().because("no segment")?;
            pair.must_refuse(last, "the key of a dropped handle")?;
        }
        pair.close()?;
    }
    Ok(())
}

/// A forgotten handle keeps its bytes exposed until the transport is closed, and no longer.
pub(super) fn forgotten_handle_leaks_nothing<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let (exposed, segments) = pair.expose_told(zeroed(5000)?, Grant::PeerWrites)?;
    std::mem::forget(exposed);
    let staged = pair.expose(zeroed(100)?, Grant::PeerReads)?;
    std::mem::forget(staged);
    pair.settle()?;
    ensure_eq!(pair.owner.stats().exposures_now, 2, "exposures of forgotten handles");
    pair.write_all(&segments, &pattern(1, 5000))?;
    let (owner, peer) = (pair.owner.device().inner().clone(), pair.peer.device().inner().clone());
    let forged: DmaBuf = zeroed(1)?;
    drop(pair.owner);
    let first = *segments.first().because("no segment")?;
    let op = pair.peer.write(&first, 0, forged).because("the peer's write")?;
    let done = crate::pair::alone(&mut pair.peer, pair.now, op)?;
    let status = done.result.map_err(|e| e.wc.status);
    ensure!(status.is_err(), "the peer writes after the owner has closed");
    ensure!(status != Err(WcStatus::Success), "an error WC says success");
    drop(pair.peer);
    crate::audit::nothing_left("owner", &owner)?;
    crate::audit::nothing_left("peer", &peer)
}

/// `poll` takes an exposure back once its lease is over: staged, exposed, or with a reply out.
pub(super) fn lease_ends_access<S: MemReg>(subject: &Subject<S>) -> Verdict {
    for when in [When::Staged, When::Exposed, When::ReplyOut] {
        let mut pair = subject.pair()?;
        let (exposed, segments) = bring_to(&mut pair, when)?;
        let until = pair.now.after(1000);
        pair.owner.renew(&exposed, Some(until)).because("renew")?;
        let before = pair.state(&exposed)?;
        pair.now = pair.now.after(999);
        pair.settle()?;
        ensure_eq!(pair.state(&exposed)?, before, "state of one {when:?} before its lease is over");
        pair.now = until;
        pair.settle()?;
        ensure_eq!(pair.state(&exposed)?, ExposureState::Fenced, "state of one {when:?} after it");
        ensure_eq!(pair.owner.stats().leases_expired, 1, "expired leases counted");
        let late = pair.owner.renew(&exposed, None);
        ensure_eq!(late, Err(Refusal::LeaseOver), "renew of a lease that is over");
        let back = pair.reclaim(exposed)?;
        ensure_eq!(*pair.owner.state(), State::Up, "state after a lease of one {when:?}");
        if pair.revokes() {
            let last = *segments.last().because("no segment")?;
            pair.must_refuse(last, "a key whose lease is over")?;
        }
        let clean = back.iter().all(|(b, _)| b.iter().all(|&x| x == 0));
        ensure!(clean, "bytes changed after the lease of one {when:?}");
        pair.close()?;
    }
    Ok(())
}
