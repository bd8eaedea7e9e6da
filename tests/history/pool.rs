//! The regions of a transport: made when needed, waited for without a clock, rebuilt when damaged.

use crate::rig::{Rig, is_inv, posts};
use memreg_core::DmaBuf;
use memreg_core::device::trace::Call;
use memreg_core::device::{Caps, Device, Verb, WcStatus, errno};
use memreg_core::error::Disposition;
use memreg_core::memreg::MapError;
use memreg_core::sizing::Ask;
use memreg_core::transport::error::Refusal;
use memreg_core::transport::{Buffers, Exposed, NoReply};
use memreg_core::types::Grant;
use memreg_strategies::Frwr;
use std::collections::BTreeSet;

fn pieces(n: usize) -> Buffers {
    (0..n).map(|_| (DmaBuf::new(64).unwrap(), 1..3)).collect()
}

fn cancelled(rig: &mut Rig<Frwr>, n: usize) {
    let held: Vec<Exposed> = (0..n).map(|_| rig.exposed(64, 0, Grant::PeerWrites).0).collect();
    for e in held {
        rig.owner.cancel(&e).unwrap();
        rig.owner.reclaim(e).unwrap();
    }
}

#[test]
fn h_37_pool_07_a_waiter_gets_its_region_without_a_clock() {
    // The device has room for the message buffers and one operation's regions.
    let caps = Caps { max_mr: 2 + 3, ..Caps::default() };
    let mut rig = Rig::new(Frwr::default(), caps, Ask::default());
    let now = rig.now;
    let mut running = Some(rig.owner.expose(pieces(3), Grant::PeerReads).unwrap());
    let mut waiting: Vec<Buffers> = (0..7).map(|_| pieces(3)).collect();
    let mut done = 0;
    while let Some(e) = running.take() {
        waiting = waiting
            .into_iter()
            .map(|list| {
                let refused = rig.owner.expose(list, Grant::PeerReads).unwrap_err();
                assert!(matches!(refused.why, Refusal::Map(MapError::NoRegion { busy: 3, .. })));
                assert_eq!(refused.disposition(), Disposition::Retry);
                refused.buffers
            })
            .collect();
        rig.owner.flush().unwrap();
        rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
        rig.node.fabric().run(100);
        let p = rig.owner.poll(now).unwrap();
        assert_eq!(p.fenced, 1, "this is the wake-up");
        // Whoever is first gets it, before the bytes are even taken back.
        running = waiting.pop().map(|l| rig.owner.expose(l, Grant::PeerReads).unwrap());
        rig.owner.reclaim(e).unwrap();
        done += 1;
    }
    assert_eq!((done, rig.now), (8, now));
    rig.assert_clean();
}

#[test]
fn h_38_pool_05_one_refill_is_enough_for_one_full_operation() {
    let caps = Caps { max_fast_reg_page_list_len: 30, ..Caps::default() };
    let mut rig = Rig::new(Frwr::default(), caps, Ask::default());
    assert_eq!(rig.node.counters().alloc_mr_calls, 11, "filled at open, for one operation");
    let full = || (DmaBuf::new((1 << 20) + 4096).unwrap(), 1..(1 << 20) + 1);
    // The second finds the pool nearly empty and is made to fit by the one call.
    let held: Vec<Exposed> =
        (0..3).map(|_| rig.owner.expose(full(), Grant::PeerReads).unwrap()).collect();
    assert_eq!(rig.node.counters().alloc_mr_calls, 27);
    for e in held {
        assert_eq!(rig.owner.segments(&e).unwrap().len(), 9);
        rig.owner.flush().unwrap();
        rig.back(e);
    }
    // So it is after a connection that left every region damaged.
    let e = rig.owner.expose(full(), Grant::PeerReads).unwrap();
    rig.owner.flush().unwrap();
    rig.reconnect();
    rig.owner.reclaim(e).unwrap();
    let e = rig.owner.expose(full(), Grant::PeerReads).unwrap();
    rig.back(e);
    rig.assert_clean();
}

#[test]
fn h_48_hundred_failed_requests_make_no_region() {
    let mut rig = Rig::frwr_sq16();
    let made = rig.node.counters().alloc_mr_calls;
    let held: Vec<Exposed> = (0..2).map(|_| rig.exposed(64, 0, Grant::PeerReads).0).collect();
    for _ in 0..100 {
        // Mapped, and then the message is refused: nothing was posted.
        let e = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerReads).unwrap();
        rig.plan.refuse_post(1, 0, errno::ENOMEM);
        let why = rig.owner.flush().unwrap_err();
        assert_eq!(why.disposition(), Disposition::Retry);
        rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
        rig.owner.reclaim(e).unwrap();
    }
    assert_eq!(rig.node.counters().alloc_mr_calls, made);
    assert_eq!(posts(&rig.trace.take()).concat().iter().filter(|w| is_inv(w)).count(), 0);
    for e in held {
        rig.back(e);
    }
    rig.assert_clean();
}

#[test]
fn rec_w1_rec_w2_rebuilding_waits_for_its_owner_and_keeps_to_the_budget() {
    let mut rig = Rig::frwr();
    rig.trace.take();
    cancelled(&mut rig, 10);
    let made = |rig: &Rig<Frwr>| {
        let calls = rig.trace.take();
        calls.iter().filter(|c| matches!(c, Call::AllocFastMr(_))).count()
    };
    made(&rig);
    let s = rig.owner.strategy().stats();
    assert_eq!((s.busy, s.condemned, s.recovered), (0, 10, 0));
    rig.settle();
    assert_eq!(made(&rig), 0, "poll rebuilds nothing");
    let mut steps = vec![];
    loop {
        let rebuilt = rig.owner.recover(3).unwrap();
        assert_eq!(made(&rig), rebuilt);
        if rebuilt == 0 {
            break;
        }
        steps.push(rebuilt);
    }
    assert_eq!(steps, [3, 3, 3, 1], "all of them, a budget at a time");
    let s = rig.owner.strategy().stats();
    assert_eq!((s.busy, s.condemned, s.recovered, s.orphaned), (0, 0, 10, 0));
    assert_eq!(s.free, rig.node.counters().fast_mrs, "every region that exists is idle");
    rig.assert_clean();
}

#[test]
fn rec_04_all_at_once_every_damaged_region_is_counted() {
    let mut rig = Rig::frwr();
    cancelled(&mut rig, 10);
    let s = rig.owner.strategy().stats();
    let total = s.free + s.condemned;
    let rebuilt = rig.owner.recover(usize::MAX).unwrap() as u64;
    let s = rig.owner.strategy().stats();
    assert_eq!((s.free, s.condemned, s.recovered), (total, 0, rebuilt));
    assert_eq!(rig.owner.recover(usize::MAX), Ok(0), "nothing is left");
}

#[test]
fn rec_06_a_region_damaged_twice_is_rebuilt_once() {
    let mut rig = Rig::frwr();
    let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
    rig.node.qp_to_err(rig.owner.queue_pair().unwrap()).unwrap();
    // Its invalidation is flushed, it is cancelled, and its connection ends.
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    rig.owner.cancel(&e).unwrap();
    rig.settle();
    assert!(rig.is_down());
    assert_eq!(rig.owner.strategy().stats().condemned, 1);
    rig.trace.take();
    assert_eq!(rig.owner.recover(usize::MAX), Ok(1));
    assert_eq!(rig.owner.recover(usize::MAX), Ok(0));
    let calls = rig.trace.take();
    assert_eq!(calls.iter().filter(|c| matches!(c, Call::AllocFastMr(_))).count(), 1);
    assert_eq!(calls.iter().filter(|c| matches!(c, Call::DeregMr(_))).count(), 0);
    rig.owner.reclaim(e).unwrap();
    rig.assert_clean();
}

#[test]
fn rec_w3_teardown_with_damaged_regions_leaves_nothing() {
    for refuse in [0, 3] {
        let mut rig = Rig::frwr();
        cancelled(&mut rig, 5);
        let (flushed, _) = rig.exposed(64, 0, Grant::PeerWrites);
        rig.node.qp_to_err(rig.owner.queue_pair().unwrap()).unwrap();
        rig.owner.revoke(&flushed, NoReply::Unmarked).unwrap();
        rig.plan.fail(Verb::DeregMr, refuse, errno::EBUSY);
        rig.settle();
        rig.plan.heal();
        let Rig { owner, node, .. } = rig;
        drop(owner);
        let c = node.counters();
        assert_eq!((c.mrs, c.qps, c.cqs, c.pds, c.mapped_ranges), (0, 0, 0, 0, 0));
        drop(flushed);
    }
}

fn windows() -> Caps {
    let list = Caps::default();
    Caps { max_fast_reg_page_list_len: 0, mem_window_type_2b: true, max_mw: 4096, ..list }
}

#[test]
fn d_11_no_key_comes_a_second_time() {
    for caps in [Caps::default(), windows()] {
        let mut rig = Rig::new(Frwr::default(), caps, Ask { credits: 1, ..Ask::default() });
        let (mut seen, mut bytes) = (BTreeSet::new(), vec![]);
        let mut oldest = None;
        for round in 0..3000u32 {
            let e = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
            let s = rig.owner.segments(&e).unwrap()[0];
            assert!(seen.insert(s.rkey.to_bits()), "round {round}");
            oldest = oldest.or(Some(s));
            match round % 3 {
                // Never posted, taken back by this side, and by the peer.
                0 => rig.owner.revoke(&e, NoReply::Unmarked).unwrap(),
                1 => {
                    rig.owner.flush().unwrap();
                    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
                }
                _ => {
                    rig.owner.flush().unwrap();
                    rig.settle();
                    rig.peer.send_with_inv(b"done", &s).unwrap();
                }
            }
            rig.settle();
            rig.owner.recv(&mut bytes);
            rig.owner.reclaim(e).unwrap();
            rig.trace.take();
        }
        let renewals = rig.owner.stats().renewals;
        // Three regions with page lists, four windows.
        assert!((8..=9).contains(&renewals), "{renewals}");
        let s = rig.owner.strategy().stats();
        assert_eq!(
            (s.free, s.condemned, s.recovered),
            (s.allocated, 0, 0),
            "nobody had to rebuild"
        );
        rig.assert_clean();
        // Whatever is exposed now, the key of the first round does not open it.
        let held: Vec<Exposed> = (0..3).map(|_| rig.exposed(64, 0, Grant::PeerWrites).0).collect();
        assert_eq!(rig.probe(&oldest.unwrap()), WcStatus::RemAccessErr);
        drop(held);
    }
}

/// The first window of the list is staged, then the second buffer turns out to have no parent yet,
/// and both are staged again.
#[test]
fn d_11_what_is_staged_at_the_second_attempt_uses_up_one_tag() {
    let mut rig = Rig::new(Frwr::default(), windows(), Ask { credits: 1, ..Ask::default() });
    let mut registered = DmaBuf::new(64).unwrap();
    for round in 0..600u32 {
        let list = [registered, DmaBuf::new(64).unwrap()].map(|buf| (buf, 0..64));
        let e = rig.owner.expose(list.into_iter().collect::<Buffers>(), Grant::PeerReads);
        let e = e.unwrap_or_else(|e| panic!("round {round}: {}", e.why));
        rig.owner.flush().unwrap();
        rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
        rig.settle();
        registered = rig.owner.reclaim(e).unwrap().into_first().unwrap();
        rig.trace.take();
    }
    // 1200 registrations of four windows.
    assert_eq!(rig.owner.stats().renewals, 4);
    rig.assert_clean();
}

#[test]
fn d_11_a_region_that_is_not_renewed_is_set_aside() {
    for verb in [Verb::AllocMr, Verb::DeregMr] {
        let mut rig = Rig::new(Frwr::default(), Caps::default(), Ask::default());
        rig.plan.fail(verb, 1, errno::ENOMEM);
        for _ in 0..3 * 256 {
            let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
            rig.back(e);
        }
        let s = rig.owner.strategy().stats();
        assert_eq!((s.condemned, rig.owner.stats().renewals), (1, 2), "{verb:?}");
        assert_eq!(rig.owner.recover(usize::MAX), Ok(1));
        let s = rig.owner.strategy().stats();
        assert_eq!((s.free, s.busy, s.condemned, s.recovered), (3, 0, 0, 1));
        assert_eq!(rig.node.counters().fast_mrs, 3);
        rig.assert_clean();
    }
}
