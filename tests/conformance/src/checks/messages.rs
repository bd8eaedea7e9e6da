//! Messages, alone and behind registrations.

use crate::pair::{pattern, unaligned, zeroed};
use crate::subject::Subject;
use crate::verdict::{Because, Verdict, ensure, ensure_eq, fail, skip};
use memreg_core::device::Device;
use memreg_core::transport::error::Refusal;
use memreg_core::transport::{Buffers, Reply};
use memreg_core::{Disposition, Grant, MemReg};

/// Why a registration cannot fail behind the caller's back.
const BY_VERB: &str = "limits.wr_per_request = 1: it grants by verb, before the message is made";

/// Messages of every size, inline or not, arrive whole and in order, both ways, many times over.
pub(super) fn messages_keep_order_and_size<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let limit = message_limit(subject);
    let inline = pair.owner.caps().max_inline_data as usize;
    let sizes = [0, 1, inline.saturating_sub(1), inline, inline + 1, limit - 1, limit];
    let sizes: Vec<usize> = sizes.into_iter().filter(|&n| n <= limit).collect();
    let slots = pair.peer.limits().max_recv_wr.min(pair.owner.limits().max_recv_wr) as usize;
    for round in 0..40_usize {
        let burst = 1 + round % slots;
        let message = |i: usize| pattern((round + i) as u8, sizes[(round + i) % sizes.len()]);
        for i in 0..burst {
            let none = Reply::InvalidatesNothing;
            pair.owner.send(&message(i), none).because("send by the owner")?;
            pair.peer.send(&message(i + 1), none).because("send by the peer")?;
        }
        pair.settle()?;
        ensure_eq!(pair.owner.messages_waiting(), burst, "messages that wait");
        for i in 0..burst {
            let (got, bytes) = pair.peer_gets()?;
            ensure!(bytes == message(i), "round {round}: message {i} to the peer differs");
            ensure_eq!(got.len, bytes.len(), "its length");
            ensure!(!got.invalidated, "a plain message says that it invalidated a key");
            let (_, bytes) = pair.owner_gets()?;
            ensure!(bytes == message(i + 1), "round {round}: message {i} to the owner differs");
        }
    }
    pair.close()
}

fn message_limit<S: MemReg>(subject: &Subject<S>) -> usize {
    // As `Pair::open` asks for it.
    let most = memreg_core::memreg::MAX_REGIONS * memreg_core::Segment::WIRE_LEN;
    (subject.ask.max_message_bytes as usize).max(most)
}

/// A message one byte too long: both numbers, and nothing posted.
pub(super) fn message_too_long_is_refused<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let limit = message_limit(subject);
    let exposed = pair.expose(zeroed(100)?, Grant::PeerReads)?;
    let before = pair.state(&exposed)?;
    let wrs = pair.owner.stats().wrs;
    let refused = pair.owner.send(&vec![0; limit + 1], Reply::MayInvalidate(&[&exposed]));
    let want = Err(Refusal::MessageTooLong { need: limit + 1, limit });
    ensure_eq!(refused, want, "a message that is too long");
    ensure_eq!(pair.owner.stats().wrs, wrs, "WRs posted by a refused send");
    ensure_eq!(pair.state(&exposed)?, before, "state of what was staged");
    // The refused message is not one whose reply is out.
    drop(pair.fence(exposed)?);
    pair.cycle(1, 10)?;
    pair.close()
}

/// The registrations of an exposure and the message cost one post; a failed expose costs none.
pub(super) fn h_34_one_doorbell_per_message<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    if pair.is_real() {
        return skip("a real device does not count its doorbells");
    }
    let parts: Buffers = unaligned()?.into_iter().collect();
    let exposed = pair.expose(parts, Grant::PeerWrites)?;
    let more = pair.expose(zeroed(5000)?, Grant::PeerReads)?;
    ensure_eq!(pair.node().send_doorbells, 0, "doorbells before the message");
    drop(pair.tell(&exposed, Reply::InvalidatesNothing)?);
    ensure_eq!(pair.node().send_doorbells, 1, "doorbells of two exposures and a message");
    ensure_eq!(pair.owner.stats().posts, 1, "posts counted");
    drop(pair.fence(exposed)?);
    drop(pair.fence(more)?);

    let posts = pair.node().send_doorbells;
    let long = usize::try_from(pair.owner.limits().max_payload_bytes).because("payload")? + 1;
    let buf = zeroed(long)?;
    let refused = pair.expose(buf, Grant::PeerWrites);
    ensure!(refused.is_err(), "an exposure over max_payload_bytes is accepted");
    ensure_eq!(pair.node().send_doorbells, posts, "doorbells of a refused exposure");
    pair.close()
}

/// A registration that does not run takes the message behind it along: the peer never hears of a
/// key that does not work.
pub(super) fn o_5_reply_implies_registration<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    if !pair.by_wr() {
        return skip(BY_VERB);
    }
    if pair.is_real() {
        return skip("a real device runs at once what is posted");
    }
    let exposed = pair.expose(zeroed(5000)?, Grant::PeerWrites)?;
    pair.owner.send(b"never", Reply::InvalidatesNothing).because("send")?;
    // Ends the region while its registration is on the queue, so that the device must refuse it.
    pair.owner.cancel(&exposed).because("cancel")?;
    while pair.peer.device().step() {}
    pair.wait_down()?;
    ensure_eq!(pair.peer.messages_waiting(), 0, "messages at the peer");
    ensure_eq!(pair.node().sends, 0, "SENDs that ran");
    drop(pair.reclaim(exposed)?);
    pair.reconnect()?;
    pair.cycle(1, 100)?;
    pair.close()
}

/// Messages until the queue is full: a refusal with the numbers that says to try again, and that
/// works.
pub(super) fn full_send_queue_is_retry<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let mut sent = 0;
    let refused = loop {
        match pair.owner.send(&[sent as u8], Reply::InvalidatesNothing) {
            Ok(()) => sent += 1,
            Err(e) => break e,
        }
        let (out, depth) = pair.owner.send_queue();
        ensure!(out < depth, "{out} WRs on a queue of {depth}: the sentinel's slot is taken");
        if sent > 100_000 {
            return fail("100 000 messages posted and none refused");
        }
    };
    ensure_eq!(refused.disposition(), Disposition::Retry, "disposition of {refused}");
    ensure!(matches!(refused, Refusal::QueueFull { .. }), "refused with {refused}");
    let mut got = 0;
    while got < sent {
        pair.await_message()?;
        ensure!(pair.peer.messages_waiting() > 0, "{got} of {sent} messages arrived");
        while pair.peer.messages_waiting() > 0 {
            let (_, bytes) = pair.peer_gets()?;
            ensure_eq!(bytes, [got as u8], "message {got}");
            got += 1;
        }
    }
    pair.cycle(1, 100)?;
    let depth = pair.owner.limits().max_send_wr;
    ensure!(pair.node().sq_in_use_max <= depth, "more slots taken than were asked for");
    pair.close()
}
