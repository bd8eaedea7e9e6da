//! Waiting: armed, polled again, and only then asleep.

use crate::rig::*;
use memreg_core::device::{Verb, errno};
use memreg_core::transport::error::DownCause;
use memreg_core::transport::{NoReply, Reply, State};
use memreg_core::types::Grant;

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
