//! The send queue under pressure, and senders that wait for it.

use crate::rig::{Rig, posts, sq16};
use memreg_core::DmaBuf;
use memreg_core::device::{Caps, Wc};
use memreg_core::error::Disposition;
use memreg_core::sizing::Ask;
use memreg_core::transport::error::{Refusal, TakeRefusal};
use memreg_core::transport::{Buffers, Exposed, NoReply, Reply, State};
use memreg_core::types::Grant;
use memreg_strategies::Frwr;
use std::collections::VecDeque;

/// Random numbers that are the same in every run.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % n
    }
}

#[test]
fn h_26_chains_of_one_to_eight_invalidations_at_the_queue_limit() {
    let caps = Caps { max_qp_wr: 40, ..Caps::default() };
    let mut rig = Rig::new(Frwr::default(), caps, Ask::default());
    let depth = rig.owner.send_queue().1;
    let (mut random, mut held, mut full) = (Lcg(26), VecDeque::<Exposed>::new(), 0);
    let mut bytes = vec![];
    for _ in 0..3000 {
        match random.below(4) {
            0 => match rig.owner.send(b"m", Reply::InvalidatesNothing) {
                Ok(()) => {}
                Err(e) => assert_eq!(e.disposition(), Disposition::Retry, "{e}"),
            },
            1 if !held.is_empty() => {
                // A revoke never waits, however full the queue is.
                let e = held.pop_front().unwrap();
                rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
                drop(e);
            }
            _ => {
                let n = 1 + random.below(8) as usize;
                let list: Buffers = (0..n).map(|_| (DmaBuf::new(64).unwrap(), 1..3)).collect();
                match rig.owner.expose(list, Grant::PeerReads) {
                    Ok(e) => {
                        rig.owner.flush().unwrap();
                        held.push_back(e);
                    }
                    Err(e) => {
                        assert_eq!((e.disposition(), e.buffers.count()), (Disposition::Retry, n));
                        full += 1;
                        rig.settle();
                        while rig.peer.recv(&mut bytes).is_some() {}
                    }
                }
            }
        }
        assert_eq!(rig.owner.state(), &State::Up);
    }
    assert!(full > 100, "the limit was met: {full}");
    let in_use = rig.node.counters().sq_in_use_max as usize;
    assert!(rig.owner.stats().outstanding_max as usize <= depth && in_use <= depth);
    for e in held {
        rig.back(e);
    }
    rig.settle();
    rig.assert_clean();
}

#[test]
fn h_32_a_reply_does_not_free_what_the_send_still_holds() {
    let mut rig = Rig::frwr();
    let theirs = rig.peer.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    let seg = rig.peer.segments(&theirs).unwrap()[0];
    let e = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    rig.owner.send(&[1; 3000], Reply::MayInvalidate(&[&e])).unwrap();
    // The completion of this write comes later than the reply, by a fault.
    rig.plan.swallow_wcs(1, |wc| matches!(wc, Wc::Success(s) if s.wr_id.0 >> 40 & 0xff == 1));
    let op = rig.owner.write(&seg, 0, DmaBuf::new(64).unwrap()).unwrap();
    rig.settle();
    let outstanding = rig.owner.send_queue().0;
    assert_eq!(outstanding, 3);
    let s = rig.owner.segments(&e).unwrap()[0];
    rig.peer.recv(&mut vec![]).unwrap();
    rig.peer.send_with_inv(b"reply", &s).unwrap();
    rig.settle();
    let got = rig.owner.recv(&mut vec![]).unwrap();
    rig.owner.revoke(&e, NoReply::Arrived(&got.token)).unwrap();
    rig.owner.reclaim(e).unwrap();
    // The operation is over for the peer; its message and the written bytes are not yet ours.
    assert_eq!(rig.owner.send_queue().0, outstanding);
    let running = rig.owner.take(op).unwrap_err();
    assert_eq!(running.why, TakeRefusal::Running { open: 1 });
    // As many messages as fit, none of which runs before the last is posted: no slot is shared.
    for i in 0..100u8 {
        rig.owner.send(&[i; 3000], Reply::InvalidatesNothing).unwrap();
    }
    rig.settle();
    let mut bytes = vec![];
    for i in 0..100u8 {
        rig.peer.recv(&mut bytes).unwrap();
        assert_eq!(bytes, [i; 3000]);
    }
    let (e, _) = rig.exposed(64, 0, Grant::PeerReads);
    rig.back(e);
    assert_eq!(rig.owner.take(running.op).unwrap().result, Ok(64), "a later signal retired it");
    rig.assert_clean();
}

#[test]
fn h_34_a_failed_request_has_posted_nothing() {
    let mut rig = Rig::frwr();
    let list: Buffers = (0..3).map(|_| (DmaBuf::new(64).unwrap(), 1..3)).collect();
    let e = rig.owner.expose(list, Grant::PeerWrites).unwrap();
    let long = rig.owner.send(&[0; 5000], Reply::InvalidatesNothing).unwrap_err();
    assert!(matches!(long, Refusal::MessageTooLong { .. }));
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    rig.owner.reclaim(e).unwrap();
    assert!(posts(&rig.trace.take()).is_empty());
    assert_eq!(rig.owner.strategy().stats().free, 3, "its regions are idle again");
    let list: Buffers = (0..3).map(|_| (DmaBuf::new(64).unwrap(), 1..3)).collect();
    let e = rig.owner.expose(list, Grant::PeerWrites).unwrap();
    rig.owner.send(b"fits", Reply::InvalidatesNothing).unwrap();
    let chains = posts(&rig.trace.take());
    assert_eq!((chains.len(), chains[0].len()), (1, 4), "one doorbell for all");
    rig.back(e);
    rig.assert_clean();
}

#[test]
fn h_45_h_60_a_full_queue_opens_again_whenever_the_completions_come() {
    // The completion may come before the refusal, between it and the next poll, or after that.
    for steps in 0..20 {
        let mut rig = Rig::frwr_sq16();
        let mut sent = 0;
        let refused = loop {
            match rig.owner.send(b"m", Reply::InvalidatesNothing) {
                Ok(()) => sent += 1,
                Err(e) => break e,
            }
        };
        assert!(matches!(refused, Refusal::QueueFull { .. }), "{refused}");
        rig.node.fabric().run(steps);
        rig.owner.poll(rig.now).unwrap();
        // Nobody posts anything that would bring a completion: it has to come by itself.
        while rig.node.fabric().step() {}
        rig.owner.poll(rig.now).unwrap();
        rig.peer.poll(rig.now).unwrap();
        rig.owner.send(b"m", Reply::InvalidatesNothing).unwrap();
        rig.settle();
        let mut arrived = 0;
        while rig.peer.recv(&mut vec![]).is_some() {
            arrived += 1;
        }
        assert_eq!(arrived, sent + 1);
    }
}

#[test]
fn h_45_a_handle_dropped_by_another_thread_is_seen_by_the_next_poll() {
    let mut rig = Rig::frwr();
    for _ in 0..100 {
        let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
        let other = std::thread::spawn(move || drop(e));
        rig.owner.poll(rig.now).unwrap();
        other.join().unwrap();
        rig.settle();
        assert_eq!(rig.owner.stats().exposures_now, 0);
    }
    assert_eq!(rig.owner.stats().abandoned, 100);
    rig.assert_clean();
}

#[test]
fn h_47_one_poll_ends_a_thousand_revokes() {
    let ask = Ask { credits: 1000, ..Ask::default() };
    let mut rig = Rig::new(Frwr::default(), Caps::default(), ask);
    let held: Vec<Exposed> = (0..1000)
        .map(|_| rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap())
        .collect();
    rig.owner.flush().unwrap();
    for e in &held {
        rig.owner.revoke(e, NoReply::Unmarked).unwrap();
    }
    rig.node.fabric().run(10_000);
    assert_eq!(rig.owner.poll(rig.now).unwrap().fenced, 1000);
    for e in held {
        rig.owner.reclaim(e).unwrap();
    }
    rig.assert_clean();
}

#[test]
fn h_67_h_36_every_credit_registers_sends_and_invalidates_with_nothing_polled() {
    for max_qp_wr in [9, 16, 64, 128, 300] {
        for ask in [Ask::default(), Ask { backchannel: 1, ..Ask::default() }] {
            let caps = Caps { max_qp_wr, ..Caps::default() };
            let mut rig = Rig::new(Frwr::default(), caps, ask);
            let l = rig.owner.limits().clone();
            let wr = l.credits * l.wr_per_request;
            assert_eq!(l.max_send_wr, wr + l.backchannel + 1, "{l:?}");
            assert!(l.max_send_wr <= max_qp_wr);
            let operation = |rig: &mut Rig<Frwr>| {
                let list: Buffers = (0..3).map(|_| (DmaBuf::new(64).unwrap(), 1..3)).collect();
                let e = rig.owner.expose(list, Grant::PeerReads).unwrap();
                rig.owner.send(b"request", Reply::InvalidatesNothing).unwrap();
                e
            };
            let held: Vec<Exposed> = (0..l.credits).map(|_| operation(&mut rig)).collect();
            for _ in 0..l.backchannel {
                rig.owner.send(b"answer", Reply::InvalidatesNothing).unwrap();
            }
            for e in &held {
                rig.owner.revoke(e, NoReply::Unmarked).unwrap();
            }
            assert_eq!(rig.owner.send_queue().0 as u32, wr + l.backchannel);
            // And the queue still has room for the end.
            rig.owner.disconnect();
            rig.settle();
            assert_eq!((rig.is_down(), rig.owner.stats().drains_forced), (true, 0));
            for e in held {
                rig.owner.reclaim(e).unwrap();
            }
            rig.assert_clean();
        }
    }
}

#[test]
fn h_07_h_57_unsignaled_registrations_and_sends_never_wrap_the_queue() {
    let mut rig = Rig::new(Frwr::default(), Caps::default(), sq16());
    let mut bytes = vec![];
    for i in 0..10_000u32 {
        // Registrations and a message, none signaled by need; the peer never invalidates.
        let e = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerReads).unwrap();
        rig.owner.send(b"m", Reply::InvalidatesNothing).unwrap();
        assert!(rig.owner.send_queue().0 <= 16);
        rig.settle();
        rig.peer.recv(&mut bytes).unwrap();
        if i % 2 == 0 {
            rig.back(e);
        } else {
            drop(e);
            rig.settle();
        }
        rig.trace.take();
    }
    assert_eq!(rig.owner.stats().wcs_stale, 0, "no completion came twice");
    assert!(rig.node.counters().sq_in_use_max <= 16);
    rig.assert_clean();
}
