//! Connections that end: by themselves, in the middle of something, or with their device.

use crate::rig::{Rig, is_inv, posts};
use memreg_core::DmaBuf;
use memreg_core::device::{Device, DeviceErrorKind, Verb, errno};
use memreg_core::error::Disposition;
use memreg_core::transport::error::{DownCause, ReclaimRefusal, Refusal};
use memreg_core::transport::{
    Buffers, Exposed, ExposureState, LocalOp, NoReply, OpenOptions, Reply, State,
};
use memreg_core::types::Grant;
use memreg_strategies::Frwr;

fn pieces(n: usize) -> Buffers {
    (0..n).map(|_| (DmaBuf::new(64).unwrap(), 1..3)).collect()
}

#[test]
fn h_03_no_invalidation_is_posted_after_a_failed_registration() {
    for accepted in 0..5 {
        let mut rig = Rig::frwr();
        let e = rig.owner.expose(pieces(5), Grant::PeerWrites).unwrap();
        rig.plan.refuse_post(1, accepted, errno::EINVAL);
        rig.owner.flush().unwrap_err();
        // With none accepted there is nothing to revoke; else the connection is gone.
        assert_eq!(rig.owner.revoke(&e, NoReply::Unmarked).is_ok(), accepted == 0);
        rig.settle();
        assert!(rig.is_down());
        assert_eq!(posts(&rig.trace.take()).concat().iter().filter(|w| is_inv(w)).count(), 0);
        assert_eq!(rig.owner.reclaim(e).unwrap().count(), 5);
        rig.assert_clean();
    }
}

#[test]
fn h_09_nothing_runs_after_a_transport_with_work_in_flight_is_dropped() {
    let mut rig = Rig::frwr();
    let theirs = rig.peer.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    let seg = rig.peer.segments(&theirs).unwrap()[0];
    let held: Vec<(LocalOp, Exposed)> = (0..25)
        .map(|_| {
            let op = rig.owner.write(&seg, 0, DmaBuf::new(64).unwrap()).unwrap();
            let e = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
            rig.owner.flush().unwrap();
            (op, e)
        })
        .collect();
    assert_eq!(rig.owner.send_queue().0, 50);
    let Rig { owner, node, peer_node, .. } = rig;
    drop(owner);
    let wcs = node.counters().wcs;
    node.fabric().run(1000);
    let c = node.counters();
    assert_eq!((c.wcs, peer_node.counters().bytes_written), (wcs, 0));
    assert_eq!((c.mrs, c.qps, c.cqs, c.pds, c.mapped_ranges), (0, 0, 0, 0, 0));
    drop(held);
}

#[test]
fn h_22_h_40_a_refused_invalidation_leaves_the_mappings_balanced() {
    for accepted in 0..3 {
        let mut rig = Rig::frwr();
        let e = rig.owner.expose(pieces(3), Grant::PeerWrites).unwrap();
        rig.owner.flush().unwrap();
        rig.settle();
        assert_eq!(rig.node.counters().mapped_ranges, 2 + 3);
        rig.plan.refuse_post(1, accepted, errno::EINVAL);
        rig.owner.revoke(&e, NoReply::Unmarked).unwrap_err();
        rig.settle();
        assert_eq!(rig.node.counters().mapped_ranges, 2);
        let s = rig.owner.strategy().stats();
        assert_eq!((s.free, s.busy, s.condemned), (0, 0, 3), "each is in one place");
        rig.owner.reclaim(e).unwrap();
        rig.assert_clean();
    }
}

#[test]
fn h_56_a_flushed_last_invalidation_is_not_done_and_the_memory_stays() {
    let mut rig = Rig::frwr();
    let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
    rig.node.qp_to_err(rig.owner.queue_pair().unwrap()).unwrap();
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    rig.node.fabric().run(100);
    rig.owner.poll(rig.now).unwrap();
    assert_eq!(rig.owner.state(), &State::Draining);
    assert_eq!(rig.owner.exposure_state(&e), Ok(ExposureState::Revoking));
    assert_eq!(rig.node.counters().mapped_ranges, 3, "the bytes are still lent");
    let refused = rig.owner.reclaim(e).unwrap_err();
    assert_eq!(refused.why, ReclaimRefusal::NotFenced { open: 1 });
    assert_eq!(refused.why.disposition(), Disposition::Retry);
    rig.settle();
    assert!(rig.is_down());
    rig.owner.reclaim(refused.exposed).unwrap();
    let again = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerReads).unwrap_err();
    assert_eq!(again.disposition(), Disposition::Reconnect);
    rig.assert_clean();
}

#[test]
fn h_58_cn_02_cn_03_messages_survive_the_drain_and_nothing_new_is_posted() {
    let mut rig = Rig::frwr();
    let e = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    rig.owner.send(b"request", Reply::MayInvalidate(&[&e])).unwrap();
    rig.settle();
    for i in 0..3u8 {
        rig.peer.send(&[i; 3], Reply::InvalidatesNothing).unwrap();
    }
    // They have arrived, and nobody has looked.
    rig.node.fabric().run(100);
    rig.owner.disconnect();
    rig.trace.take();
    rig.owner.poll(rig.now).unwrap();
    assert_eq!(rig.owner.state(), &State::Draining);
    let receives = rig.node.counters().recv_wrs_posted;
    let mut bytes = vec![];
    for i in 0..3u8 {
        let got = rig.owner.recv(&mut bytes).unwrap();
        assert_eq!(bytes, [i; 3]);
        // The reply is handled late: it may not post an invalidation any more.
        let late = rig.owner.revoke(&e, NoReply::Arrived(&got.token)).unwrap_err();
        assert_eq!(late, Refusal::NotConnected { cause: Some(DownCause::Local) });
    }
    assert_eq!(rig.node.counters().recv_wrs_posted, receives, "no refill while draining");
    assert!(posts(&rig.trace.take()).is_empty());
    rig.settle();
    assert!(rig.is_down());
    rig.owner.reclaim(e).unwrap();
    rig.assert_clean();
}

#[test]
fn h_59_b83_one_failing_post_is_survived_whatever_it_carried() {
    type Post = fn(&mut Rig<Frwr>, &Exposed) -> Option<Disposition>;
    let calls: [Post; 5] = [
        |rig, _| rig.owner.send(b"m", Reply::InvalidatesNothing).err().map(|e| e.disposition()),
        |rig, _| {
            let e = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerReads).unwrap();
            let refused = rig.owner.flush().err().map(|e| e.disposition());
            rig.settle();
            rig.owner.reclaim(e).unwrap();
            refused
        },
        |rig, e| rig.owner.revoke(e, NoReply::Unmarked).err().map(|e| e.disposition()),
        |rig, _| {
            let theirs = rig.peer.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
            let seg = rig.peer.segments(&theirs).unwrap()[0];
            let refused = rig.owner.write(&seg, 0, DmaBuf::new(64).unwrap()).unwrap_err();
            assert_eq!(refused.buffers.count(), 1);
            Some(refused.disposition())
        },
        |rig, _| {
            rig.plan.heal();
            rig.peer.send(b"m", Reply::InvalidatesNothing).unwrap();
            rig.settle();
            rig.plan.fail(Verb::PostRecv, 1, errno::EINVAL);
            rig.owner.recv(&mut vec![]).unwrap();
            None
        },
    ];
    for (i, call) in calls.into_iter().enumerate() {
        let mut rig = Rig::frwr();
        let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
        rig.plan.fail(Verb::PostSend, 1, errno::EINVAL);
        let told = call(&mut rig, &e);
        assert!(told.is_none_or(|d| d == Disposition::Reconnect), "post {i}: {told:?}");
        rig.settle();
        assert!(matches!(rig.owner.state(), State::Down(DownCause::Post(_))), "post {i}");
        rig.owner.reclaim(e).unwrap();
        rig.assert_clean();
        rig.reconnect();
        let (e, s) = rig.exposed(64, 9, Grant::PeerReads);
        assert_eq!(rig.peer_read(&s, 0, 64).unwrap(), [9; 64]);
        rig.back(e);
        rig.assert_clean();
    }
}

#[test]
fn h_61_allocation_failure_in_a_refill_then_a_disconnect() {
    for fails in 1..4 {
        let mut rig = Rig::frwr();
        let mut held: Vec<Exposed> =
            (0..3).map(|_| rig.exposed(64, 0, Grant::PeerWrites).0).collect();
        // The pool is empty: it is refilled within `expose`, and the k-th region is refused.
        rig.plan.fail_nth(Verb::AllocMr, fails, 1, errno::ENOMEM);
        let refused = rig.owner.expose(pieces(3), Grant::PeerWrites).unwrap_err();
        assert_eq!((refused.disposition(), refused.buffers.count()), (Disposition::Retry, 3));
        // What was made on the way is in the pool, so that the next one has less to make.
        held.push(rig.owner.expose(refused.buffers, Grant::PeerWrites).unwrap());
        rig.plan.fail_nth(Verb::AllocMr, 1, 1, errno::ENOMEM);
        rig.owner.expose(pieces(3), Grant::PeerWrites).unwrap_err();
        rig.owner.disconnect();
        rig.settle();
        assert!(rig.is_down());
        assert_eq!(rig.owner.stats().drains_forced, 0);
        for e in held {
            rig.owner.reclaim(e).unwrap();
        }
        rig.assert_clean();
        rig.reconnect();
    }
}

#[test]
fn h_64_teardown_with_only_unsignaled_sends_outstanding() {
    let mut rig = Rig::frwr();
    let most = rig.owner.limits().credits as usize;
    for round in 0..3u8 {
        // Too long to go inline: each holds a slot until its WR is retired.
        for _ in 0..most {
            rig.owner.send(&[round; 3000], Reply::InvalidatesNothing).unwrap();
        }
        let calls = rig.trace.take();
        assert!(posts(&calls).concat().iter().all(|w| !w.signaled));
        let (outstanding, _) = rig.owner.send_queue();
        assert_eq!(outstanding, most);
        rig.reconnect();
        rig.trace.take();
        assert_eq!(rig.owner.stats().drains_forced, 0);
        assert_eq!(rig.owner.send_queue().0, 0);
    }
    rig.assert_clean();
    rig.owner.send(&[9; 3000], Reply::InvalidatesNothing).unwrap();
    let Rig { owner, node, .. } = rig;
    drop(owner);
    assert_eq!((node.counters().mrs, node.counters().mapped_ranges), (0, 0));
}

#[test]
fn cn_06_pool_02_no_region_is_made_while_the_device_goes_away() {
    let mut rig = Rig::frwr();
    let held: Vec<Exposed> = (0..3).map(|_| rig.exposed(64, 1, Grant::PeerReads).0).collect();
    let made = rig.node.counters().alloc_mr_calls;
    rig.node.unplug();
    // Nobody has polled yet: the pool is empty and the device cannot make more.
    let refused = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerReads).unwrap_err();
    assert_eq!(refused.buffers.count(), 1);
    rig.owner.poll(rig.now).unwrap();
    assert_eq!(rig.owner.state(), &State::Down(DownCause::DeviceGone));
    let refused = rig.owner.expose(refused.buffers, Grant::PeerReads).unwrap_err();
    let gone = Refusal::NotConnected { cause: Some(DownCause::DeviceGone) };
    assert_eq!(refused.why, gone);
    let e = rig.owner.recover(usize::MAX);
    assert!(e.is_err_and(|e| e.kind() == DeviceErrorKind::Gone));
    assert_eq!(rig.node.counters().alloc_mr_calls, made);
    for e in held {
        assert_eq!(rig.owner.reclaim(e).unwrap().into_first().unwrap()[..], [1; 64]);
    }
    let Rig { owner, node, .. } = rig;
    drop(owner);
    let c = node.counters();
    assert_eq!((c.mrs, c.qps, c.cqs, c.pds, c.mapped_ranges), (0, 0, 0, 0, 0));
}

#[test]
fn b33_after_an_overrun_the_next_connection_has_a_cq_that_works() {
    let mut rig = Rig::frwr();
    let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    rig.plan.overrun_cq(rig.owner.completion_queue());
    give_up_the_drain(&mut rig);
    // The success of the invalidation was lost, so the key was destroyed instead.
    rig.owner.reclaim(e).unwrap();
    works_with_another_cq(&mut rig);
    rig.assert_clean();
}

#[test]
fn b33_a_cq_that_kept_the_sentinel_without_a_word_is_not_used_again() {
    let mut rig = Rig::frwr();
    let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
    let (cq, qp) = (rig.owner.completion_queue(), rig.owner.queue_pair().unwrap());
    rig.plan.overrun_cq(cq);
    // Nobody hears of it.
    while rig.owner.device().next_event(qp).is_some() {}
    rig.owner.disconnect();
    give_up_the_drain(&mut rig);
    rig.owner.reclaim(e).unwrap();
    works_with_another_cq(&mut rig);
    rig.assert_clean();
}

/// The sentinel never comes, and its limit passes.
fn give_up_the_drain(rig: &mut Rig<Frwr>) {
    rig.settle();
    assert_eq!(rig.owner.state(), &State::Draining, "the sentinel never comes");
    rig.now = rig.now.after(OpenOptions::default().drain_limit_ns);
    rig.settle();
    assert!(rig.is_down());
}

/// The next connection hears of its completions, on the only CQ that there is.
fn works_with_another_cq(rig: &mut Rig<Frwr>) {
    rig.reconnect();
    let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    rig.settle();
    assert!(!rig.is_down(), "{:?}", rig.owner.state());
    assert_eq!(rig.owner.exposure_state(&e), Ok(ExposureState::Fenced));
    rig.owner.reclaim(e).unwrap();
    assert_eq!(rig.node.counters().cqs, 1, "the CQ that overran is gone");
}
