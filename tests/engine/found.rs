//! What the simulation found, each as the smallest scenario that showed it.

use super::rig::Rig;
use memreg_core::DmaBuf;
use memreg_core::device::{AsyncEvent, Device, Verb, Wc, errno};
use memreg_core::transport::error::DownCause;
use memreg_core::transport::{ExposureState, NoReply, Reply, State};
use memreg_core::types::{Grant, Tick};

#[test]
fn an_expose_that_failed_is_neither_an_exposure_nor_a_fence() {
    let mut rig = Rig::frwr_sq16();
    let mut kept = vec![];
    let refused = loop {
        match rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerReads) {
            Ok(e) => kept.push(e),
            Err(e) => break e,
        }
    };
    assert_eq!(refused.buffers.count(), 1);
    let s = rig.owner.stats();
    assert_eq!((s.exposures, s.exposures_now, s.fences), (kept.len() as u64, s.exposures, 0));
}

/// The events of a QP go with it, so the removal must be heard before the QP is destroyed.
#[test]
fn b84_a_removal_behind_another_event_is_heard() {
    let mut rig = Rig::frwr();
    let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
    let qp = rig.owner.queue_pair().unwrap();
    rig.plan.inject_event(qp, AsyncEvent::QpFatal(qp));
    rig.node.unplug();
    rig.owner.poll(rig.now).unwrap();
    assert_eq!(rig.owner.state(), &State::Down(DownCause::DeviceGone));
    rig.owner.reclaim(e).unwrap();
}

#[test]
fn b84_a_removal_that_a_post_meets_first_is_heard() {
    let mut rig = Rig::frwr();
    let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
    rig.node.unplug();
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap_err();
    assert_eq!(rig.owner.state(), &State::Down(DownCause::DeviceGone));
    rig.owner.reclaim(e).unwrap();
}

#[test]
fn rule_8_the_sentinel_is_no_message() {
    let mut rig = Rig::frwr();
    rig.plan.fail(Verb::ModifyQp, 1, errno::EINVAL);
    rig.owner.disconnect();
    rig.settle();
    assert!(rig.is_down());
    assert_eq!(rig.peer.messages_waiting(), 0, "the QP was not in error, so the sentinel ran");
}

/// Rule 2 says that an error retires what came before it as successes. A lost error completion
/// must not make that a lie.
#[test]
fn rule_3_a_flushed_invalidation_whose_completion_was_lost_is_no_fence() {
    let mut rig = Rig::frwr();
    let (e, s) = rig.exposed(64, 0, Grant::PeerWrites);
    rig.node.qp_to_err(rig.owner.queue_pair().unwrap()).unwrap();
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    rig.plan.swallow_wcs(1, |wc: &Wc| !wc.is_success());
    rig.plan.fail(Verb::DeregMr, 1, errno::EBUSY);
    rig.owner.send(b"flushed as well", Reply::InvalidatesNothing).unwrap();
    rig.settle();
    assert!(rig.is_down());
    assert_eq!(rig.node.counters().fast_mrs_valid, 1, "the device still has the key");
    assert_eq!(rig.owner.exposure_state(&e), Ok(ExposureState::Revoking));
    rig.owner.recover(usize::MAX).unwrap();
    rig.owner.reclaim(e).unwrap();
    rig.peer.disconnect();
    rig.reconnect();
    let forged = rig.forged(&s);
    assert_ne!(rig.probe(&forged), memreg_core::device::WcStatus::Success);
    rig.assert_clean();
}

#[test]
fn a_write_whose_error_was_lost_is_not_a_success() {
    let mut rig = Rig::frwr();
    let theirs = rig.peer.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    let seg = rig.peer.segments(&theirs).unwrap()[0];
    rig.peer.revoke(&theirs, NoReply::Unmarked).unwrap();
    rig.settle();
    let refused = rig.owner.write(&seg, 0, DmaBuf::from_bytes(&[1; 64]).unwrap()).unwrap();
    rig.plan.swallow_wcs(1, |wc: &Wc| !wc.is_success());
    rig.owner.send(b"behind it", Reply::InvalidatesNothing).unwrap();
    rig.settle();
    rig.now = Tick(6_000_000_000);
    rig.settle();
    assert!(rig.is_down());
    assert!(rig.owner.take(refused).unwrap().result.is_err());
}

#[test]
fn windows_that_were_not_deallocated_in_time_are_not_lost() {
    let caps = memreg_core::device::sim::profile::builtin("rxe").unwrap().caps;
    let mut rig = Rig::new(memreg_strategies::Frwr::new(), caps, Default::default());
    let windows = rig.node.counters().mws;
    assert!(windows > 0);
    rig.plan.fail(Verb::DeallocMw, 100, errno::EBUSY);
    rig.owner.disconnect();
    rig.settle();
    assert!(rig.is_down());
    assert_eq!(rig.node.counters().mws, windows, "their keys died with the QP");
    rig.plan.heal();
    rig.owner.recover(usize::MAX).unwrap();
    assert_eq!(rig.node.counters().mws, 0);
}

/// On iWARP the sink of a read grants remote write: no new QP before its key is dead (rule 4).
#[test]
fn rule_4_a_sink_that_was_not_deregistered_in_time_is_not_forgotten() {
    let caps = memreg_core::device::sim::profile::builtin("iwarp").unwrap().caps;
    let mut rig = Rig::new(memreg_strategies::Frwr::new(), caps, Default::default());
    let theirs = rig.peer.expose(DmaBuf::new(64).unwrap(), Grant::PeerReads).unwrap();
    let seg = rig.peer.segments(&theirs).unwrap()[0];
    let read = rig.owner.read(&seg, 0, DmaBuf::new(64).unwrap()).unwrap();
    rig.plan.fail(Verb::DeregMr, 100, errno::EBUSY);
    rig.settle();
    assert_eq!(rig.owner.take(read).unwrap().buffers.count(), 0, "kept and counted");
    assert_eq!(rig.owner.stats().bytes_leaked, 64);
    rig.owner.disconnect();
    rig.peer.disconnect();
    rig.settle();
    assert!(rig.owner.reconnect().is_err());
    rig.plan.heal();
    let mrs = rig.node.counters().mrs;
    rig.owner.recover(usize::MAX).unwrap();
    assert!(rig.node.counters().mrs < mrs);
    rig.owner.reconnect().unwrap();
}
