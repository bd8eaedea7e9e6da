//! Keys that the peer invalidates, and replies that may do so.

use crate::pair::{Pair, unaligned, zeroed};
use crate::subject::Subject;
use crate::verdict::{Because, Stop, Verdict, ensure, ensure_eq, skip};
use memreg_core::transport::error::{DownCause, Refusal};
use memreg_core::transport::{Buffers, ExposureState, NoReply, Received, Reply, State};
use memreg_core::{ApiMisuse, Grant, MemReg, Segment};

/// Why the checks of remote invalidation do not apply.
const NO_REMOTE_INV: &str = "limits.remote_invalidation = false";

/// What the peer has invalidated is not invalidated again; what it has not, is.
pub(super) fn uns_03_h_28_remote_invalidation_needs_no_local_inv<S: MemReg>(
    subject: &Subject<S>,
) -> Verdict {
    let mut pair = remote(subject)?;
    // One exposure of several regions, of which the peer invalidates one.
    let parts: Buffers = unaligned()?.into_iter().collect();
    let exposed = pair.expose(parts, Grant::PeerWrites)?;
    let segments = pair.tell(&exposed, Reply::MayInvalidate(&[&exposed]))?;
    let first = *segments.first().because("no segment")?;
    let reply = peer_invalidates(&mut pair, &first)?;
    let before = pair.owner.stats().invalidations;
    pair.owner.revoke(&exposed, NoReply::Arrived(&reply.token)).because("revoke")?;
    pair.settle()?;
    let posted = pair.owner.stats().invalidations - before;
    ensure_eq!(posted, segments.len() as u64 - 1, "LOCAL_INVs for the rest");
    drop(pair.reclaim(exposed)?);

    // Two exposures told in one message: exactly one LOCAL_INV for both.
    let one = pair.expose(zeroed(100)?, Grant::PeerWrites)?;
    let two = pair.expose(zeroed(100)?, Grant::PeerReads)?;
    let told = pair.tell(&one, Reply::MayInvalidate(&[&one, &two]))?;
    let first = *told.first().because("no segment")?;
    let reply = peer_invalidates(&mut pair, &first)?;
    let before = *pair.owner.stats();
    for exposed in [&one, &two] {
        pair.owner.revoke(exposed, NoReply::Arrived(&reply.token)).because("revoke")?;
    }
    pair.settle()?;
    let after = *pair.owner.stats();
    ensure_eq!(after.invalidations - before.invalidations, 1, "LOCAL_INVs for 1 of 2 keys");
    let ran = pair.node().local_invs;
    ensure!(pair.is_real() || ran == after.invalidations, "{ran} LOCAL_INVs ran on the device");
    ensure_eq!(after.remote_invalidations, 2, "remote invalidations counted");
    drop(pair.reclaim(one)?);
    drop(pair.reclaim(two)?);
    pair.must_refuse(first, "a key that the peer has invalidated")?;
    pair.close()
}

/// All keys invalidated by the peer: revoke posts nothing, and reclaim works.
pub(super) fn uns_05_nothing_to_invalidate_posts_nothing<S: MemReg>(
    subject: &Subject<S>,
) -> Verdict {
    let mut pair = remote(subject)?;
    for _ in 0..300 {
        let exposed = pair.expose(zeroed(5000)?, Grant::PeerWrites)?;
        let segments = pair.tell(&exposed, Reply::MayInvalidate(&[&exposed]))?;
        ensure_eq!(segments.len(), 1, "segments of one part");
        let first = *segments.first().because("no segment")?;
        let reply = peer_invalidates(&mut pair, &first)?;
        ensure!(reply.invalidated, "the message does not say that it invalidated a key");
        ensure_eq!(pair.state(&exposed)?, ExposureState::Fenced, "state after the reply");
        let wrs = pair.owner.stats().wrs;
        pair.owner.revoke(&exposed, NoReply::Arrived(&reply.token)).because("revoke")?;
        ensure_eq!(pair.owner.stats().wrs, wrs, "WRs posted by a revoke of dead keys");
        drop(pair.reclaim(exposed)?);
    }
    ensure_eq!(pair.owner.stats().local_inv_needed, 0, "revokes that needed a LOCAL_INV");
    pair.close()
}

/// While a reply is out that may invalidate a key, revoke needs the token of a later message.
pub(super) fn rule_5_revoke_waits_for_the_reply<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let early = pair.peer_replies()?;
    let exposed = pair.expose(zeroed(5000)?, Grant::PeerWrites)?;
    drop(pair.tell(&exposed, Reply::MayInvalidate(&[&exposed]))?);
    let before = pair.state(&exposed)?;
    let refused = pair.owner.revoke(&exposed, NoReply::Unmarked);
    ensure_eq!(refused, Err(Refusal::ReplyOutstanding), "revoke without a token");
    let wrong = Err(Refusal::Misuse(ApiMisuse::WrongToken));
    let refused = pair.owner.revoke(&exposed, NoReply::Arrived(&early.token));
    ensure_eq!(refused, wrong, "revoke with the token of an earlier message");
    let mut other = subject.pair()?;
    let (a, b) = (other.peer_replies()?, other.peer_replies()?);
    for foreign in [a.token, b.token] {
        let refused = pair.owner.revoke(&exposed, NoReply::Arrived(&foreign));
        ensure_eq!(refused, wrong, "revoke with the token of another transport");
        let refused = other.owner.revoke(&exposed, NoReply::Arrived(&foreign));
        let misuse = Err(Refusal::Misuse(ApiMisuse::ForeignHandle));
        ensure_eq!(refused, misuse, "revoke on another transport");
    }
    ensure_eq!(pair.state(&exposed)?, before, "state after refused revokes");
    let reply = pair.peer_replies()?;
    pair.owner.revoke(&exposed, NoReply::Arrived(&reply.token)).because("revoke")?;
    pair.settle()?;
    drop(pair.reclaim(exposed)?);

    let exposed = pair.expose(zeroed(5000)?, Grant::PeerWrites)?;
    drop(pair.tell(&exposed, Reply::MayInvalidate(&[&exposed]))?);
    pair.owner.revoke(&exposed, NoReply::NoneCanCome).because("revoke on the caller's word")?;
    pair.settle()?;
    drop(pair.reclaim(exposed)?);
    other.close()?;
    pair.close()
}

/// A handle dropped while a reply is out is fenced without a LOCAL_INV (a late invalidation may
/// then cost the connection, never memory).
pub(super) fn rule_5_dropped_handle_with_a_reply_out<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let exposed = pair.expose(zeroed(5000)?, Grant::PeerWrites)?;
    let segments = pair.tell(&exposed, Reply::MayInvalidate(&[&exposed]))?;
    pair.books.let_go += 1;
    drop(exposed);
    pair.settle()?;
    ensure_eq!(pair.owner.stats().exposures_now, 0, "exposures after the drop");
    ensure_eq!(pair.owner.stats().invalidations, 0, "LOCAL_INVs while a reply was out");
    if pair.owner.limits().remote_invalidation {
        let first = *segments.first().because("no segment")?;
        pair.peer.send_with_inv(b"late", &first).because("the late reply")?;
        pair.wait_down()?;
        pair.reconnect()?;
    }
    pair.cycle(1, 100)?;
    pair.close()
}

/// The peer invalidates a key that is not live: the connection ends, the bytes come back.
pub(super) fn h_66_bad_remote_invalidation_costs_the_connection<S: MemReg>(
    subject: &Subject<S>,
) -> Verdict {
    let mut pair = subject.pair()?;
    let (exposed, segments) = pair.expose_told(zeroed(5000)?, Grant::PeerWrites)?;
    let first = *segments.first().because("no segment")?;
    if !subject.caps.mem_mgt_extensions {
        // Without the verb there is nothing to be afraid of: the peer's own side says so.
        let refused = pair.peer.send_with_inv(b"bad", &first);
        let unsupported = matches!(refused, Err(Refusal::Unsupported(_)));
        ensure!(unsupported, "SEND_WITH_INV on a device without it: {refused:?}");
        drop(pair.fence(exposed)?);
        return pair.close();
    }
    let unknown = Segment { rkey: first.rkey.next_tag(), ..first };
    pair.peer.send_with_inv(b"bad", &unknown).because("the peer's message")?;
    pair.wait_down()?;
    let local = matches!(pair.owner.state(), State::Down(DownCause::Local));
    ensure!(!local, "the owner says that it has disconnected by itself");
    drop(pair.reclaim(exposed)?);
    pair.reconnect()?;
    pair.cycle(1, 100)?;
    pair.close()
}

fn remote<S: MemReg>(subject: &Subject<S>) -> Result<Pair<S>, Stop> {
    let pair = subject.pair()?;
    if !pair.owner.limits().remote_invalidation {
        return skip(NO_REMOTE_INV);
    }
    Ok(pair)
}

/// The peer replies with a message that invalidates the key of a segment.
fn peer_invalidates<S: MemReg>(pair: &mut Pair<S>, segment: &Segment) -> Result<Received, Stop> {
    pair.peer.send_with_inv(b"done", segment).because("the peer's reply")?;
    pair.settle()?;
    let (got, bytes) = pair.owner_gets()?;
    ensure_eq!(bytes, b"done", "the reply's bytes");
    Ok(got)
}
