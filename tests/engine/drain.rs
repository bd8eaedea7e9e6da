//! Going down: everything outstanding is accounted for, keys die, and only then bytes return.

use super::rig::Rig;
use memreg_core::device::trace::Call;
use memreg_core::device::{Verb, WcStatus, errno};
use memreg_core::drive::connect_pair;
use memreg_core::transport::error::{ConnectError, DownCause, ReclaimRefusal};
use memreg_core::transport::{ExposureState, KeyEvent, LedgerEvent, NoReply, Reply, State};
use memreg_core::types::{Grant, Tick};
use memreg_core::{Disposition, DmaBuf};

#[test]
fn rule_8_poisoned_with_only_unsignaled_wrs_outstanding_drains() {
    let mut rig = Rig::frwr();
    let (e, _) = rig.exposed(4096, 0, Grant::PeerWrites);
    rig.owner.send(b"unsignaled", Reply::InvalidatesNothing).unwrap();
    rig.settle();
    assert_eq!(rig.owner.send_queue().0, 2, "both succeeded without a completion");
    rig.owner.disconnect();
    assert_eq!(rig.owner.state(), &State::Draining);
    rig.settle();
    assert_eq!(rig.owner.state(), &State::Down(DownCause::Local));
    assert_eq!(rig.owner.send_queue().0, 0);
    assert_eq!(rig.owner.stats().drains_forced, 0, "the sentinel came back");
    rig.owner.reclaim(e).unwrap();
    rig.assert_clean();
}

#[test]
fn m_08_h_02_disconnect_in_every_state_returns_every_byte() {
    let mut rig = Rig::frwr();
    let expose =
        |rig: &mut Rig<_>| rig.owner.expose(DmaBuf::new(4096).unwrap(), Grant::PeerWrites).unwrap();
    let exposed = expose(&mut rig);
    let revoking = expose(&mut rig);
    let fenced = expose(&mut rig);
    rig.owner.flush().unwrap();
    rig.settle();
    rig.owner.revoke(&fenced, NoReply::Unmarked).unwrap();
    rig.settle();
    let in_flight = expose(&mut rig);
    rig.owner.flush().unwrap();
    rig.owner.revoke(&revoking, NoReply::Unmarked).unwrap();
    let staged = expose(&mut rig);
    let keys: Vec<_> = [&exposed, &revoking, &fenced, &in_flight, &staged]
        .into_iter()
        .map(|e| rig.owner.segments(e).unwrap()[0])
        .collect();
    rig.owner.disconnect();
    let too_early = rig.owner.reconnect().unwrap_err();
    assert!(matches!(too_early, ConnectError::Misuse(_)), "M-08: drained first");
    rig.settle();
    rig.peer.disconnect();
    rig.settle();
    for e in [exposed, revoking, fenced, in_flight, staged] {
        assert_eq!(rig.owner.exposure_state(&e), Ok(ExposureState::Fenced));
        rig.owner.reclaim(e).unwrap();
    }
    rig.assert_clean();
    rig.owner.reconnect().unwrap();
    rig.peer.reconnect().unwrap();
    connect_pair(&mut rig.owner, &mut rig.peer).unwrap();
    let fresh: Vec<_> = (0..5).map(|_| rig.exposed(64, 0, Grant::PeerWrites)).collect();
    for (_, s) in &fresh {
        assert!(keys.iter().all(|k| k.rkey != s.rkey), "no key from before");
    }
    for old in keys.iter().take(1) {
        let forged = rig.forged(old);
        assert_eq!(rig.probe(&forged), WcStatus::RemAccessErr);
    }
}

#[test]
fn h_04_h_05_st_12_flushed_keys_stay_live_until_their_mr_is_gone() {
    let mut rig = Rig::frwr();
    let (revoking, _) = rig.exposed(64, 0, Grant::PeerWrites);
    let registering = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    // The QP goes to error under the owner's feet: both WRs are flushed.
    let qp = rig.owner.queue_pair().unwrap();
    use memreg_core::device::Device;
    rig.node.qp_to_err(qp).unwrap();
    rig.owner.flush().unwrap();
    rig.owner.revoke(&revoking, NoReply::Unmarked).unwrap();
    rig.plan.fail(Verb::DeregMr, 2, errno::EBUSY);
    rig.settle();
    assert!(rig.is_down());
    assert_eq!(rig.owner.stats().regions_leaked_now, 2);
    let unknown = |l: &memreg_core::transport::LedgerEntry| {
        matches!(l.event, LedgerEvent::Key { what: KeyEvent::Unknown, .. })
    };
    assert_eq!(rig.owner.ledger().iter().filter(unknown).count(), 2);
    let refused = rig.owner.reclaim(revoking).unwrap_err();
    assert_eq!(refused.why, ReclaimRefusal::NotFenced { open: 1 }, "H-56");
    let registering = rig.owner.reclaim(registering).unwrap_err().exposed;
    rig.trace.take();
    rig.owner.recover(usize::MAX).unwrap();
    let deregs = rig.trace.take().iter().filter(|c| matches!(c, Call::DeregMr(_))).count();
    assert_eq!(deregs, 2, "D-02: once each");
    rig.owner.reclaim(refused.exposed).unwrap();
    rig.owner.reclaim(registering).unwrap();
    rig.assert_clean();
    rig.owner.reconnect().unwrap();
}

#[test]
fn rule_4_no_new_queue_pair_while_a_key_is_not_dead() {
    let mut rig = Rig::frwr();
    let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
    rig.plan.fail(Verb::DeregMr, 3, errno::EBUSY);
    rig.owner.disconnect();
    rig.settle();
    let why = rig.owner.reconnect().unwrap_err();
    assert!(matches!(why, ConnectError::KeysNotDead { count: 1 }), "{why}");
    assert_eq!(why.disposition(), Disposition::Retry);
    let refused = rig.owner.reclaim(e).unwrap_err();
    rig.plan.heal();
    rig.owner.reconnect().unwrap();
    rig.owner.reclaim(refused.exposed).unwrap();
    rig.assert_clean();
}

#[test]
fn b85_swallowed_sentinel_ends_at_the_limit_by_destroying_the_queue_pair() {
    let mut rig = Rig::frwr();
    let (e, s) = rig.exposed(64, 0, Grant::PeerWrites);
    rig.plan.swallow_sends_in_error(true);
    rig.owner.disconnect();
    rig.settle();
    assert_eq!(rig.owner.state(), &State::Draining);
    let refused = rig.owner.reclaim(e).unwrap_err();
    rig.now = Tick(6_000_000_000);
    rig.settle();
    assert!(rig.is_down());
    assert_eq!(rig.owner.stats().drains_forced, 1);
    assert!(rig.trace.take().iter().any(|c| matches!(c, Call::DestroyQp(_))));
    rig.owner.reclaim(refused.exposed).unwrap();
    rig.assert_clean();
    rig.peer.disconnect();
    rig.settle();
    rig.plan.heal();
    rig.owner.reconnect().unwrap();
    rig.peer.reconnect().unwrap();
    connect_pair(&mut rig.owner, &mut rig.peer).unwrap();
    let forged = rig.forged(&s);
    assert_eq!(rig.probe(&forged), WcStatus::RemAccessErr);
}

#[test]
fn rule_8_refused_sentinel_destroys_the_queue_pair_at_once() {
    let mut rig = Rig::frwr();
    let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
    rig.plan.refuse_post(1, 0, errno::EINVAL);
    rig.owner.disconnect();
    assert!(rig.is_down(), "nothing to wait for");
    rig.owner.reclaim(e).unwrap();
    rig.assert_clean();
}

#[test]
fn queue_pair_that_is_not_destroyed_keeps_everything() {
    let mut rig = Rig::frwr();
    let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
    rig.plan.fail(Verb::DestroyQp, 2, errno::EBUSY);
    rig.owner.disconnect();
    for _ in 0..2 {
        rig.node.fabric().run(100);
        rig.owner.poll(rig.now).unwrap();
        assert_eq!(rig.owner.state(), &State::Draining);
    }
    let refused = rig.owner.reclaim(e).unwrap_err();
    assert_eq!(refused.why, ReclaimRefusal::NotFenced { open: 1 });
    rig.settle();
    rig.owner.poll(rig.now).unwrap();
    assert!(rig.is_down());
    rig.owner.reclaim(refused.exposed).unwrap();
    rig.assert_clean();
}

#[test]
fn peer_death_is_an_event_and_returns_every_byte() {
    let mut rig = Rig::frwr();
    let (e, _) = rig.exposed(64, 7, Grant::PeerReads);
    rig.peer_node.kill();
    rig.owner.poll(rig.now).unwrap();
    assert_eq!(rig.owner.state(), &State::Draining);
    while !rig.is_down() {
        let _ = rig.node.fabric().step();
        rig.owner.poll(rig.now).unwrap();
    }
    assert_eq!(rig.owner.state(), &State::Down(DownCause::PeerGone));
    let back = rig.owner.reclaim(e).unwrap().into_first().unwrap();
    assert!(back.iter().all(|&b| b == 7));
    rig.assert_clean();
}

#[test]
fn h_66_invalidation_of_a_key_that_is_not_live_costs_the_connection_only() {
    let mut rig = Rig::frwr();
    let (e, s) = rig.exposed(64, 0, Grant::PeerWrites);
    let wrong = memreg_core::Segment { rkey: s.rkey.next_tag(), ..s };
    rig.peer.send_with_inv(b"bogus", &wrong).unwrap();
    rig.settle();
    assert!(rig.is_down());
    rig.owner.reclaim(e).unwrap();
    rig.assert_clean();
}

#[test]
fn reads_and_writes_in_flight_return_their_buffers_with_the_error() {
    let mut rig = Rig::frwr();
    let theirs = rig.peer.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    let seg = rig.peer.segments(&theirs).unwrap()[0];
    let op = rig.owner.write(&seg, 0, DmaBuf::new(64).unwrap()).unwrap();
    let abandoned = rig.owner.write(&seg, 0, DmaBuf::new(64).unwrap()).unwrap();
    drop(abandoned);
    rig.owner.disconnect();
    rig.settle();
    let done = rig.owner.take(op).unwrap();
    let error = done.result.unwrap_err();
    assert_eq!(error.wc.status, WcStatus::WrFlushErr);
    assert_eq!((error.what.len, error.what.rkey), (64, seg.rkey));
    assert_eq!(done.buffers.count(), 1);
    rig.assert_clean();
}

#[test]
fn b86_refused_access_says_what_where_and_why() {
    let mut rig = Rig::frwr();
    let (e, s) = rig.exposed(4096, 0, Grant::PeerWrites);
    rig.back(e);
    let error = rig.peer_write(&s, 16, &[1; 100]).unwrap_err();
    let text = error.to_string();
    let addr = format!("{:#x}", s.addr + 16);
    for part in ["RDMA WRITE", "100 bytes", &addr, "remote access error (10)", "invalidated"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn h_51_twenty_reconnects_ask_for_the_same_queue() {
    let mut rig = Rig::frwr();
    let depth = rig.owner.send_queue().1;
    for _ in 0..20 {
        let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
        rig.reconnect();
        assert_eq!(rig.owner.send_queue(), (0, depth));
        rig.owner.reclaim(e).unwrap();
    }
    rig.assert_clean();
    assert_eq!(rig.node.counters().qps, 1);
}

#[test]
fn dropping_a_transport_leaves_nothing_on_the_device() {
    let mut rig = Rig::frwr();
    let (_exposed, _) = rig.exposed(64, 0, Grant::PeerWrites);
    let _staged = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerReads).unwrap();
    let theirs = rig.peer.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    let seg = rig.peer.segments(&theirs).unwrap()[0];
    let op = rig.owner.write(&seg, 0, DmaBuf::new(64).unwrap()).unwrap();
    rig.settle();
    let kept = rig.owner.take(op).unwrap().buffers.into_first().unwrap();
    let node = rig.node.clone();
    drop(rig);
    let c = node.counters();
    assert_eq!((c.mrs, c.qps, c.pds, c.cqs, c.mapped_ranges), (0, 0, 0, 0, 0));
    drop(kept);
}

#[test]
fn b84_removed_device_ends_everything_and_loses_nothing() {
    let mut rig = Rig::frwr();
    let held: Vec<_> = (0..3).map(|_| rig.exposed(4096, 3, Grant::PeerReads).0).collect();
    let theirs = rig.peer.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    let seg = rig.peer.segments(&theirs).unwrap()[0];
    let running: Vec<_> =
        (0..5).map(|_| rig.owner.write(&seg, 0, DmaBuf::new(64).unwrap()).unwrap()).collect();
    rig.node.unplug();
    rig.owner.poll(rig.now).unwrap();
    assert_eq!(rig.owner.state(), &State::Down(DownCause::DeviceGone));
    for op in running {
        let done = rig.owner.take(op).unwrap();
        assert!(done.result.is_err());
        assert_eq!(done.buffers.count(), 1);
    }
    for e in held {
        let back = rig.owner.reclaim(e).unwrap().into_first().unwrap();
        assert!(back.iter().all(|&b| b == 3));
    }
    let s = *rig.owner.stats();
    assert_eq!((s.bytes_leaked, s.regions_leaked_now, s.exposures_now), (0, 0, 0));
    assert!(s.releases_without_device > 0, "EIO is counted");
    assert!(rig.owner.reconnect().is_err());
    drop(rig.owner);
    let c = rig.node.counters();
    assert_eq!((c.mrs, c.qps, c.pds, c.cqs), (0, 0, 0, 0));
    // It comes back as a new device.
    let again =
        rig.peer_node.fabric().add_node("owner again", memreg_core::device::Caps::default());
    let options = memreg_core::transport::OpenOptions::default();
    memreg_core::Transport::open(again, memreg_strategies::Frwr::default(), &options).unwrap();
}
