//! Connections end; bytes come back, keys die, and the next connection works.

use crate::machine::software;
use crate::pair::{DRAIN_LIMIT_NS, Pair, pattern, unaligned, zeroed};
use crate::subject::Subject;
use crate::verdict::{Because, Stop, Verdict, ensure, ensure_eq, fail, skip};
use memreg_core::device::{Verb, errno};
use memreg_core::sizing::KeyScope;
use memreg_core::transport::error::{ConnectError, DownCause, Refusal};
use memreg_core::transport::{Buffers, ExposureState, NoReply, Reply, State};
use memreg_core::types::SegmentError;
use memreg_core::{Disposition, Exposed, Grant, MemReg, Segment};

/// A disconnect with one exposure in every state: all come back, and no old key works on the next
/// connection, neither as told nor with a forged epoch.
pub(super) fn st_11_h_01_m_08_states_at_disconnect<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let (held, old) = one_in_every_state(&mut pair)?;
    let epoch = pair.owner.epoch();
    pair.owner.disconnect();
    ensure_eq!(*pair.owner.state(), State::Draining, "state after disconnect");
    pair.wait_down()?;
    ensure_eq!(*pair.owner.state(), State::Down(DownCause::Local), "state at the end");
    ensure_eq!(pair.owner.send_queue().0, 0, "WRs outstanding when down");
    ensure_eq!(pair.node().fast_mrs_valid, 0, "valid keys when down");
    for exposed in held {
        ensure_eq!(pair.state(&exposed)?, ExposureState::Fenced, "state of an exposure when down");
        drop(pair.reclaim(exposed)?);
    }
    let refused = pair.owner.expose(zeroed(1)?, Grant::PeerReads).err().map(|e| e.why);
    let down = matches!(refused, Some(Refusal::NotConnected { .. }));
    ensure!(down, "expose while down: {refused:?}");

    pair.reconnect()?;
    ensure!(pair.owner.epoch() != epoch, "the epoch did not change");
    pair.cycle(5, 9000)?;
    let first = *old.first().because("no segment")?;
    let stale = SegmentError::StaleEpoch { got: epoch.0, current: pair.owner.epoch().0 };
    let refused = pair.peer.write(&first, 0, zeroed(1)?).err().map(|e| e.why);
    ensure_eq!(refused, Some(Refusal::Segment(stale)), "an old segment");
    ensure_eq!(pair.peer.import(&first.to_wire()), Err(stale), "an old segment off the wire");
    for stale in old {
        // Something is exposed meanwhile, perhaps under the same region.
        let (exposed, _) = pair.expose_told(zeroed(9000)?, Grant::PeerWrites)?;
        pair.must_refuse(stale, "a key of the last connection with a forged epoch")?;
        pair.wait_down()?;
        let buf = pair.reclaim(exposed)?.into_first().because("no buffer came back")?;
        ensure!(buf.iter().all(|&b| b == 0), "a refused write changed the bytes");
        pair.reconnect()?;
    }
    pair.close()
}

/// Exposures that are fenced, revoking, exposed and staged, and the segments of all of them.
fn one_in_every_state<S: MemReg>(pair: &mut Pair<S>) -> Result<(Vec<Exposed>, Vec<Segment>), Stop> {
    let mut old = vec![];
    let mut held = vec![];
    for _ in 0..3 {
        let (exposed, segments) = pair.expose_told(zeroed(5000)?, Grant::PeerWrites)?;
        old.extend(segments);
        held.push(exposed);
    }
    let [fenced, revoking, _] = &held[..] else {
        return fail("three exposures were made");
    };
    pair.owner.revoke(fenced, NoReply::Unmarked).because("revoke")?;
    pair.settle()?;
    pair.owner.revoke(revoking, NoReply::Unmarked).because("revoke")?;
    let staged = pair.expose(zeroed(5000)?, Grant::PeerWrites)?;
    old.extend(pair.owner.segments(&staged).because("segments")?);
    held.push(staged);
    Ok((held, old))
}

/// Registrations and invalidations that were flushed: their regions are rebuilt before they serve
/// again.
pub(super) fn st_11_flushed_work_is_rebuilt<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    for round in 0..10 {
        let parts: Buffers = unaligned()?.into_iter().collect();
        let (revoking, _) = pair.expose_told(parts, Grant::PeerWrites)?;
        let registered = pair.expose(zeroed(5000)?, Grant::PeerReads)?;
        // Neither the registration nor the invalidation runs before the QP is in ERR.
        pair.owner.send(b"x", Reply::InvalidatesNothing).because("send")?;
        pair.owner.revoke(&revoking, NoReply::Unmarked).because("revoke")?;
        pair.owner.disconnect();
        pair.wait_down()?;
        drop(pair.reclaim(revoking)?);
        drop(pair.reclaim(registered)?);
        pair.reconnect()?;
        pair.cycle(round, 5000)?;
    }
    pair.close()
}

/// The peer's process dies: the owner hears of it, and every byte comes back.
pub(super) fn dead_peer_gives_all_bytes_back<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let (held, _) = one_in_every_state(&mut pair)?;
    let Some(node) = software(pair.peer.device().inner()) else {
        return skip("a real device is not killed from inside its process");
    };
    node.kill();
    pair.peer_alive = false;
    pair.wait_down()?;
    let cause = pair.owner.state().clone();
    let gone = matches!(cause, State::Down(DownCause::PeerGone | DownCause::Wc(_)));
    ensure!(gone, "the owner went down for another reason: {cause:?}");
    for exposed in held {
        drop(pair.reclaim(exposed)?);
    }
    pair.close()
}

/// A peer that tries what it may not: the owner loses its connection, and nothing else.
pub(super) fn refused_access_gives_all_bytes_back<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let (held, old) = one_in_every_state(&mut pair)?;
    let first = *old.first().because("no segment")?;
    let outside = Segment { addr: 8, len: 8, ..first };
    pair.must_refuse(outside, "an address that nothing is at")?;
    pair.wait_down()?;
    let cause = pair.owner.state().clone();
    ensure!(cause != State::Down(DownCause::Local), "it went down by itself: {cause:?}");
    for exposed in held {
        let buf = pair.reclaim(exposed)?.into_first().because("no buffer came back")?;
        ensure!(buf.iter().all(|&b| b == 0), "a refused write changed the bytes");
    }
    pair.reconnect()?;
    pair.cycle(1, 5000)?;
    pair.close()
}

/// The device is removed under its process: a device that is gone reaches nothing, so every byte
/// comes back, and what it would not release is counted.
pub(super) fn removed_device_gives_all_bytes_back<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let (held, _) = one_in_every_state(&mut pair)?;
    let Some(node) = software(pair.owner.device().inner()) else {
        return skip("a real device is not unplugged by a program");
    };
    node.unplug();
    // Its verbs fail from now on, polling too, so errors are expected on the way down.
    pair.now = pair.now.after(DRAIN_LIMIT_NS);
    pair.drive_some();
    let down = matches!(pair.owner.state(), State::Down(_));
    ensure!(down, "the owner is {:?} on a removed device", pair.owner.state());
    for exposed in held {
        drop(pair.reclaim(exposed)?);
    }
    ensure_eq!(pair.books.returned, pair.books.lent, "buffers that came back of those lent");
    ensure_eq!(pair.owner.stats().bytes_leaked, 0, "bytes leaked");
    let released = pair.owner.stats().releases_without_device;
    ensure!(released > 0, "no release is counted that the device did not answer");
    let refused = pair.owner.expose(zeroed(1)?, Grant::PeerReads).err().map(|e| e.buffers.count());
    ensure_eq!(refused, Some(1), "buffers returned by an expose on a removed device");
    Ok(())
}

/// While the device will not destroy a key, its bytes wait and the PD gets no new QP; once it does,
/// both are there.
pub(super) fn rule_4_no_new_qp_while_a_key_lives<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    if pair.owner.limits().key_scope == KeyScope::Qp {
        return skip("limits.key_scope is the QP: no key outlives it");
    }
    let (exposed, _) = pair.expose_told(zeroed(5000)?, Grant::PeerWrites)?;
    pair.plan.fail(Verb::DeregMr, usize::MAX, errno::EBUSY);
    pair.owner.disconnect();
    pair.wait_down()?;
    let exposed = match (pair.revokes(), pair.owner.reclaim(exposed)) {
        (true, Ok(_)) => return fail("bytes given back while their key lives"),
        (false, Err(e)) => {
            return fail(format!("copied bytes kept for the arena's key: {}", e.why));
        }
        (true, Err(e)) => Some(e.exposed),
        (false, Ok(back)) => {
            pair.books.returned += back.count();
            None
        }
    };
    for _ in 0..3 {
        let refused = pair.owner.reconnect();
        let waits = matches!(refused, Err(ConnectError::KeysNotDead { count }) if count > 0);
        ensure!(waits, "reconnect while a key lives: {refused:?}");
    }
    ensure!(pair.owner.stats().regions_leaked_now > 0, "no region is counted as kept");
    pair.plan.heal();
    pair.reconnect()?;
    if let Some(exposed) = exposed {
        drop(pair.reclaim(exposed)?);
    }
    pair.cycle(1, 5000)?;
    pair.close()
}

/// Connections that end with work on them, a hundred times: the pool stays as large as it was.
pub(super) fn h_06_hundred_reconnects<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let mut mrs = None;
    for round in 0..100 {
        let held = expose_many(&mut pair)?;
        let told = held.last().because("nothing can be exposed")?;
        let segments = pair.tell(told, Reply::InvalidatesNothing)?;
        pair.write_all(&segments, &pattern(round, 100))?;
        if round % 2 == 1 {
            pair.peer.disconnect();
        }
        // Without a connection manager a real device does not tell that the peer has gone.
        if round % 2 == 0 || pair.is_real() {
            pair.owner.disconnect();
        }
        pair.wait_down()?;
        let mut last = None;
        for exposed in held {
            last = pair.reclaim(exposed)?.into_first();
        }
        let last = last.because("no buffer came back")?;
        ensure!(last[..] == pattern(round, 100)[..], "bytes written before the end are lost");
        pair.reconnect()?;
        let now = pair.node().mrs;
        ensure_eq!(now, *mrs.get_or_insert(now), "MRs after reconnect {round}");
    }
    pair.close()
}

/// Up to 64 exposures: fewer if the pool or the queue is full before.
fn expose_many<S: MemReg>(pair: &mut Pair<S>) -> Result<Vec<Exposed>, Stop> {
    let mut held = vec![];
    while held.len() < 64 {
        pair.books.lent += 1;
        match pair.owner.expose(zeroed(100)?, Grant::PeerWrites) {
            Ok(exposed) => held.push(exposed),
            Err(e) => {
                pair.books.returned += e.buffers.count();
                ensure_eq!(e.disposition(), Disposition::Retry, "disposition of {:?}", e.why);
                // A slot for the message.
                let last = held.pop().because("nothing can be exposed")?;
                drop(pair.fence(last)?);
                break;
            }
        }
    }
    Ok(held)
}
