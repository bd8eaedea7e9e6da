//! Waiting: armed, polled again, and only then asleep.

use crate::rig::*;
use memreg_core::DmaBuf;
use memreg_core::device::{Verb, errno};
use memreg_core::transport::error::DownCause;
use memreg_core::transport::{NoReply, OpenOptions, Reply, State};
use memreg_core::types::{Grant, Tick};

const LIMIT: u64 = 1_000_000_000;

#[test]
fn h_10_a_completion_between_poll_and_arm_is_found_without_waiting() {
    let mut rig = Rig::frwr();
    let (e, _) = rig.exposed(4096, 1, Grant::PeerWrites);
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    rig.plan.work_before_arm(100);
    let progress = rig.owner.wait(rig.now, LIMIT).unwrap();
    assert_eq!((progress.fenced, rig.plan.counts().waits), (1, 0), "it would have slept");
    rig.owner.reclaim(e).unwrap();
    rig.assert_clean();
}

#[test]
fn h_10_a_completion_after_the_arming_ends_the_wait() {
    let mut rig = Rig::frwr();
    let (e, _) = rig.exposed(4096, 1, Grant::PeerWrites);
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    let progress = rig.owner.wait(rig.now, LIMIT).unwrap();
    assert_eq!((progress.fenced, rig.plan.counts().waits), (1, 1));
    let nothing = rig.owner.wait(rig.now, LIMIT).unwrap();
    assert!(!nothing.any(), "the time was over");
    rig.owner.reclaim(e).unwrap();
    rig.assert_clean();
}

#[test]
fn a_message_that_waits_to_be_taken_is_not_waited_for() {
    let mut rig = Rig::frwr();
    rig.peer.send(b"hello", Reply::InvalidatesNothing).unwrap();
    assert_eq!(rig.owner.wait(rig.now, LIMIT).unwrap().messages, 1);
    assert_eq!(rig.owner.wait(rig.now, LIMIT).unwrap().messages, 1);
    assert_eq!(rig.plan.counts().waits, 1, "the second call has not slept");
    let mut message = vec![];
    rig.owner.recv(&mut message).unwrap();
    assert_eq!(message, b"hello");
}

#[test]
fn the_end_of_the_peer_or_of_the_device_ends_the_wait() {
    let mut rig = Rig::frwr();
    rig.peer_node.kill();
    while !rig.is_down() {
        rig.owner.wait(rig.now, LIMIT).unwrap();
    }
    assert_eq!(rig.owner.state(), &State::Down(DownCause::PeerGone));
    rig.owner.wait(rig.now, LIMIT).unwrap();
    let waits = rig.plan.counts().waits;
    rig.owner.wait(rig.now, LIMIT).unwrap();
    assert_eq!(rig.plan.counts().waits, waits, "without a QP nothing can come");
}

#[test]
fn a_lease_that_a_drain_will_end_does_not_cut_the_wait_short() {
    let mut rig = Rig::frwr();
    let buf = DmaBuf::new(64).unwrap();
    let e = rig.owner.expose_until(buf, Grant::PeerWrites, Tick(10)).unwrap();
    rig.owner.flush().unwrap();
    rig.owner.wait(Tick(4), LIMIT).unwrap();
    assert_eq!(rig.plan.counts().last_wait_ns, 6);
    rig.plan.swallow_sends_in_error(true);
    rig.owner.disconnect();
    for now in [11, 12] {
        rig.owner.wait(Tick(now), LIMIT).unwrap();
        assert_eq!(rig.owner.state(), &State::Draining);
    }
    assert_eq!(rig.plan.counts().last_wait_ns, LIMIT, "not over and over");
    rig.now = rig.now.after(2 * OpenOptions::default().drain_limit_ns);
    rig.settle();
    rig.owner.reclaim(e).unwrap();
    rig.assert_clean();
}

#[test]
fn a_drain_of_an_earlier_connection_does_not_cut_the_wait_short() {
    let mut rig = Rig::frwr();
    rig.owner.disconnect();
    rig.peer.disconnect();
    rig.settle();
    assert!(rig.is_down());
    rig.reconnect();
    let later = rig.now.after(2 * OpenOptions::default().drain_limit_ns);
    rig.owner.wait(later, LIMIT).unwrap();
    rig.owner.wait(later, LIMIT).unwrap();
    assert_eq!(rig.plan.counts().last_wait_ns, LIMIT);
}

#[test]
fn a_device_that_cannot_wait_is_an_error_and_costs_nothing() {
    let mut rig = Rig::frwr();
    for verb in [Verb::ArmCq, Verb::WaitCq] {
        rig.plan.fail(verb, 1, errno::EOPNOTSUPP);
        assert_eq!(rig.owner.wait(rig.now, LIMIT).unwrap_err().verb, verb);
        assert_eq!(rig.owner.state(), &State::Up);
    }
    let (e, _) = rig.exposed(64, 1, Grant::PeerReads);
    rig.back(e);
    rig.assert_clean();
}
