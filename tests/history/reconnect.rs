//! Connections that come back: nothing of the last one works in the new one, and nothing of it is
//! missing.

use crate::rig::{Rig, posts};
use memreg_core::DmaBuf;
use memreg_core::device::fault::{FaultPlan, Faulty};
use memreg_core::device::sim::{Fabric, SimDevice};
use memreg_core::device::trace::Call;
use memreg_core::device::{AsyncEvent, Caps, Device, Wc, WcError, WcStatus, WcSuccess};
use memreg_core::drive::{connect_pair, settle};
use memreg_core::error::Disposition;
use memreg_core::sizing::Ask;
use memreg_core::transport::error::DownCause;
use memreg_core::transport::{
    Exposed, ExposureState, NoReply, OpenOptions, Reply, State, Transport,
};
use memreg_core::types::{Grant, SegmentError, Tick};
use memreg_strategies::Frwr;

/// The QP goes to error under the owner's feet, and the connection down with it.
fn kill_queue_pair(rig: &mut Rig<Frwr>) {
    rig.node.qp_to_err(rig.owner.queue_pair().unwrap()).unwrap();
    rig.settle();
    assert!(rig.is_down());
}

fn windows() -> Caps {
    let list = Caps::default();
    Caps { max_fast_reg_page_list_len: 0, mem_window_type_2b: true, max_mw: 4096, ..list }
}

#[test]
fn h_01_keys_on_the_wire_differ_after_a_reconnect() {
    for caps in [Caps::default(), windows()] {
        let mut rig = Rig::new(Frwr::default(), caps, Ask::default());
        let e = rig.owner.expose(DmaBuf::new(4096).unwrap(), Grant::PeerWrites).unwrap();
        let first = rig.owner.segments(&e).unwrap()[0];
        rig.owner.send(&first.to_wire(), Reply::InvalidatesNothing).unwrap();
        kill_queue_pair(&mut rig);
        rig.reconnect();
        // The request is built anew from the same bytes and sent again.
        let bytes = rig.owner.reclaim(e).unwrap();
        let e = rig.owner.expose(bytes, Grant::PeerWrites).unwrap();
        let second = rig.owner.segments(&e).unwrap()[0];
        rig.owner.send(&second.to_wire(), Reply::InvalidatesNothing).unwrap();
        rig.settle();
        let mut message = vec![];
        rig.peer.recv(&mut message).unwrap();
        assert_eq!(message, second.to_wire());
        assert_ne!(first.rkey, second.rkey);
        let stale = rig.peer.import(&first.to_wire()).unwrap_err();
        assert!(matches!(stale, SegmentError::StaleEpoch { .. }), "{stale}");
        let seg = rig.peer.import(&message).unwrap();
        assert_eq!(rig.peer_write(&seg, 0, &[7; 16]), Ok(16));
        assert_eq!(&rig.back(e).into_first().unwrap()[..16], [7; 16]);
    }
}

#[test]
fn h_06_hundred_reconnects_keep_the_pool_at_its_size() {
    for caps in [Caps::default(), windows()] {
        let mut rig = Rig::new(Frwr::default(), caps, Ask::default());
        let mut size = None;
        for cycle in 0..100u32 {
            let expose = |rig: &mut Rig<Frwr>| {
                rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap()
            };
            let held: Vec<Exposed> = (0..64).map(|_| expose(&mut rig)).collect();
            rig.owner.flush().unwrap();
            match cycle % 3 {
                0 => kill_queue_pair(&mut rig),
                1 => rig.peer.disconnect(),
                _ => rig.settle(),
            }
            rig.reconnect();
            for e in held {
                rig.owner.reclaim(e).unwrap();
            }
            let (s, c) = (rig.owner.strategy().stats(), rig.node.counters());
            let now = (s.free, c.fast_mrs + c.mws, c.mapped_ranges, c.qps);
            assert_eq!((s.busy, s.condemned), (0, 0));
            assert_eq!(*size.get_or_insert(now), now, "cycle {cycle}");
        }
        rig.peer.recv(&mut vec![]);
        rig.trace.take();
        rig.assert_clean();
    }
}

#[test]
fn b81_rec_04_four_states_at_disconnect_are_told_apart() {
    let mut rig = Rig::frwr();
    let (registered, s0) = rig.exposed(64, 0, Grant::PeerWrites);
    let (invalidating, s1) = rig.exposed(64, 0, Grant::PeerWrites);
    let (one, _) = rig.exposed(64, 0, Grant::PeerWrites);
    let (idle, _) = rig.exposed(64, 0, Grant::PeerWrites);
    rig.back(one);
    let s2 = rig.owner.segments(&idle).unwrap()[0];
    rig.back(idle);
    rig.node.qp_to_err(rig.owner.queue_pair().unwrap()).unwrap();
    let registering = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    let s3 = rig.owner.segments(&registering).unwrap()[0];
    rig.owner.flush().unwrap();
    rig.owner.revoke(&invalidating, NoReply::Unmarked).unwrap();
    rig.settle();
    assert!(rig.is_down());
    let s = rig.owner.strategy().stats();
    assert_eq!((s.free, s.busy, s.condemned, s.recovered), (1, 0, 3, 0));
    for e in [registered, invalidating, registering] {
        rig.owner.reclaim(e).unwrap();
    }
    rig.reconnect();
    let s = rig.owner.strategy().stats();
    assert_eq!((s.free, s.condemned, s.recovered, s.orphaned), (4, 0, 3, 0));
    let old = [s0, s1, s2, s3];
    for seg in old {
        let new: Vec<_> = (0..4).map(|_| rig.exposed(64, 0, Grant::PeerWrites)).collect();
        for (_, s) in &new {
            assert!(old.iter().all(|o| o.rkey != s.rkey), "no key from before");
        }
        let forged = rig.forged(&seg);
        assert_eq!(rig.probe(&forged), WcStatus::RemAccessErr);
        rig.reconnect();
        for (e, _) in new {
            rig.owner.reclaim(e).unwrap();
        }
    }
    rig.assert_clean();
}

#[test]
fn h_02_a_completion_of_the_last_connection_fences_nothing_in_this_one() {
    let mut rig = Rig::frwr();
    let revoking = |rig: &mut Rig<Frwr>| {
        let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
        rig.trace.take();
        rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
        (e, posts(&rig.trace.take())[0][0].wr_id)
    };
    let (old, wr_id) = revoking(&mut rig);
    rig.reconnect();
    rig.owner.reclaim(old).unwrap();
    // The same calls again: the same places in the queue.
    let (e, again) = revoking(&mut rig);
    assert_ne!(wr_id, again);
    let qp = rig.owner.queue_pair().unwrap();
    let late = Wc::Success(WcSuccess { wr_id, qp, byte_len: 0, invalidated: None });
    rig.plan.inject_wc(rig.owner.completion_queue(), late);
    rig.owner.poll(rig.now).unwrap();
    assert_eq!(rig.owner.stats().wcs_stale, 1);
    assert_eq!(rig.owner.exposure_state(&e), Ok(ExposureState::Revoking));
    rig.settle();
    rig.owner.reclaim(e).unwrap();
    rig.assert_clean();
}

#[test]
fn h_20_rec_02_rec_03_mixed_flushes_unmap_once_and_after_the_key() {
    // One invalidation runs, then the QP fails: in one chain of three, or in three chains.
    for chains in [1, 3] {
        let mut rig = Rig::frwr();
        rig.trace.take();
        let list = |n: usize| (0..n).map(|_| (DmaBuf::new(64).unwrap(), 1..3));
        let held: Vec<Exposed> = (0..chains)
            .map(|_| {
                let buffers = list(3 / chains).collect::<memreg_core::transport::Buffers>();
                rig.owner.expose(buffers, Grant::PeerWrites).unwrap()
            })
            .collect();
        rig.owner.flush().unwrap();
        rig.settle();
        for e in &held {
            rig.owner.revoke(e, NoReply::Unmarked).unwrap();
        }
        assert!(rig.node.fabric().step());
        rig.node.qp_to_err(rig.owner.queue_pair().unwrap()).unwrap();
        rig.settle();
        assert!(rig.is_down());
        let calls = rig.trace.take();
        let mapped = addresses(&calls, |c| match c {
            Call::DmaMap(a) => Some(a.0),
            _ => None,
        });
        let unmapped = addresses(&calls, |c| match c {
            Call::DmaUnmap(a) => Some(a.0),
            _ => None,
        });
        assert_eq!(mapped, unmapped, "each once: {chains} chains");
        assert_eq!(mapped.len(), 3);
        let last_dereg = calls.iter().rposition(|c| matches!(c, Call::DeregMr(_))).unwrap();
        let last_unmap = calls.iter().rposition(|c| matches!(c, Call::DmaUnmap(_))).unwrap();
        assert!(last_dereg < last_unmap, "the key first, then the mapping");
        for e in held {
            rig.owner.reclaim(e).unwrap();
        }
        rig.assert_clean();
    }
}

fn addresses(calls: &[Call], pick: fn(&Call) -> Option<u64>) -> Vec<u64> {
    let mut found: Vec<u64> = calls.iter().filter_map(pick).collect();
    found.sort_unstable();
    found
}

#[test]
fn h_04_a_flushed_registration_before_and_after_it_took_effect() {
    for applied in [false, true] {
        let mut rig = Rig::frwr();
        let qp = rig.owner.queue_pair().unwrap();
        if !applied {
            rig.node.qp_to_err(qp).unwrap();
        }
        let e = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
        let s = rig.owner.segments(&e).unwrap()[0];
        rig.owner.flush().unwrap();
        if applied {
            let wr_id = posts(&rig.trace.take())[0][0].wr_id;
            rig.node.fabric().run(10);
            assert_eq!(rig.node.counters().fast_mrs_valid, 1, "the device has the key");
            let flushed = WcError { wr_id, status: WcStatus::WrFlushErr, qp, vendor_err: 0 };
            rig.plan.inject_wc(rig.owner.completion_queue(), Wc::Error(flushed));
        }
        rig.settle();
        assert!(rig.is_down());
        assert_eq!(rig.owner.strategy().stats().condemned, 1);
        rig.owner.reclaim(e).unwrap();
        rig.assert_clean();
        rig.reconnect();
        assert_eq!(rig.owner.strategy().stats().recovered, 1);
        // All of the pool, the rebuilt region among them.
        let all: Vec<_> = (0..3).map(|_| rig.exposed(64, 0, Grant::PeerWrites)).collect();
        for (_, new) in &all {
            assert_eq!(rig.peer_write(new, 0, &[1]), Ok(1));
        }
        let forged = rig.forged(&s);
        assert_eq!(rig.probe(&forged), WcStatus::RemAccessErr);
    }
}

#[test]
fn h_52_credits_start_anew_and_receives_come_first() {
    let fabric = Fabric::new(1);
    let open = |name| -> Transport<SimDevice, Frwr> {
        let ask = Ask { credits: 8, ..Ask::default() };
        // No message is ever tried again.
        let options = OpenOptions { ask, rnr_retry: 0, ..OpenOptions::default() };
        Transport::open(fabric.add_node(name, Caps::default()), Frwr::default(), &options).unwrap()
    };
    let (mut a, mut b) = (open("a"), open("b"));
    for round in 0..20u8 {
        let (ea, eb) = (a.endpoint().unwrap(), b.endpoint().unwrap());
        a.connect(eb).unwrap();
        // A burst of all credits before the other side has even connected.
        for _ in 0..8 {
            a.send(&[round; 300], Reply::InvalidatesNothing).unwrap();
        }
        b.connect(ea).unwrap();
        for _ in 0..8 {
            b.send(&[round; 10], Reply::InvalidatesNothing).unwrap();
        }
        settle(Tick(1), &mut [&mut a, &mut b]).unwrap();
        assert_eq!((a.state(), b.state()), (&State::Up, &State::Up), "round {round}");
        assert_eq!((a.messages_waiting(), b.messages_waiting()), (8, 8));
        // Half of them are never taken: they must not count against the next connection.
        let mut bytes = vec![];
        for _ in 0..4 {
            b.recv(&mut bytes).unwrap();
            assert_eq!(bytes, [round; 300]);
        }
        a.disconnect();
        settle(Tick(1), &mut [&mut a, &mut b]).unwrap();
        a.reconnect().unwrap();
        b.reconnect().unwrap();
        assert_eq!((a.messages_waiting(), b.messages_waiting()), (0, 0));
    }
}

#[test]
fn h_55_rec_w4_nothing_in_flight_outlives_the_connection() {
    for caps in [Caps::default(), windows()] {
        let mut rig = Rig::new(Frwr::default(), caps, Ask::default());
        let mut held: Vec<Exposed> =
            (0..3).map(|_| rig.exposed(4096, 0, Grant::PeerWrites).0).collect();
        // One whose registration has not run, and one that is being revoked.
        held.push(rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerReads).unwrap());
        rig.owner.flush().unwrap();
        rig.owner.revoke(&held[0], NoReply::Unmarked).unwrap();
        rig.owner.disconnect();
        rig.settle();
        assert!(rig.is_down());
        let c = rig.node.counters();
        assert_eq!((c.fast_mrs_valid, c.mws, c.qps), (0, 0, 0));
        assert_eq!(c.mapped_ranges, 2, "the message buffers alone");
        for e in held {
            rig.owner.reclaim(e).unwrap();
        }
        rig.assert_clean();
    }
}

#[test]
fn cn_01_m_08_the_old_queue_pair_is_gone_before_the_new_one_is_made() {
    let mut rig = Rig::frwr();
    let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
    let before = rig.owner.queue_pair().unwrap();
    let epoch = rig.owner.epoch();
    rig.trace.take();
    rig.reconnect();
    let calls = rig.trace.take();
    let at = |what: fn(&Call) -> bool| calls.iter().position(what).unwrap();
    let order = [
        at(|c| matches!(c, Call::QpToErr(_))),
        at(|c| matches!(c, Call::PostSend(..))),
        at(|c| matches!(c, Call::Wc(wc) if !wc.is_success())),
        at(|c| matches!(c, Call::DestroyQp(_))),
        at(|c| matches!(c, Call::DeregMr(_))),
        at(|c| matches!(c, Call::CreateQp(_))),
    ];
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(calls[order[3]], Call::DestroyQp(before));
    assert_ne!(rig.owner.epoch(), epoch);
    rig.owner.reclaim(e).unwrap();
    rig.assert_clean();
}

#[test]
fn cn_05_d_13_rec_07_pool_and_protection_domain_survive_and_keys_do_not() {
    let mut rig = Rig::frwr();
    let pd = rig.owner.protection_domain();
    let made = rig.node.counters().alloc_mr_calls;
    for _ in 0..20 {
        let (e, s) = rig.exposed(64, 0, Grant::PeerWrites);
        rig.back(e);
        rig.reconnect();
        assert_eq!(rig.owner.protection_domain(), pd);
        let (e, new) = rig.exposed(64, 0, Grant::PeerWrites);
        assert_ne!(s.rkey, new.rkey);
        assert_eq!(rig.peer_write(&new, 0, &[1]), Ok(1));
        rig.back(e);
    }
    let c = rig.node.counters();
    assert_eq!((c.pds, c.cqs, c.qps), (1, 1, 1));
    assert_eq!(c.alloc_mr_calls, made, "idle regions are used again");
    // Damaged ones are rebuilt, in the same PD: they work through the new QP.
    let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
    kill_queue_pair(&mut rig);
    rig.owner.reclaim(e).unwrap();
    rig.reconnect();
    assert_eq!(rig.node.counters().alloc_mr_calls, made + 1);
    let all: Vec<_> = (0..3).map(|_| rig.exposed(64, 0, Grant::PeerWrites)).collect();
    for (e, s) in all {
        assert_eq!(rig.peer_write(&s, 0, &[1]), Ok(1));
        rig.back(e);
    }
    rig.assert_clean();
}

#[test]
fn b83_queue_pair_that_left_rts_is_curable_by_a_reconnect() {
    let mut rig = Rig::frwr();
    rig.peer.disconnect();
    rig.settle();
    assert!(rig.is_down());
    let refused = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerReads).unwrap_err();
    assert_eq!(refused.disposition(), Disposition::Reconnect);
    let bad = rig.owner.expose(memreg_core::transport::Buffers::new(), Grant::PeerReads);
    assert_eq!(bad.unwrap_err().disposition(), Disposition::Reconnect);
    rig.reconnect();
    let bad = rig.owner.expose(memreg_core::transport::Buffers::new(), Grant::PeerReads);
    assert_eq!(bad.unwrap_err().disposition(), Disposition::Fatal, "a bad request is another");
    let e = rig.owner.expose(refused.buffers, Grant::PeerReads).unwrap();
    rig.back(e);
    rig.assert_clean();
}

#[test]
fn h_69_any_error_of_a_registration_takes_the_connection_down() {
    let statuses = [
        WcStatus::MwBindErr,
        WcStatus::LocQpOpErr,
        WcStatus::LocProtErr,
        WcStatus::RemOpErr,
        WcStatus::GeneralErr,
        WcStatus::Unknown(77),
    ];
    for status in statuses {
        let mut rig = Rig::frwr();
        let qp = rig.owner.queue_pair().unwrap();
        let e = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
        rig.owner.flush().unwrap();
        let wr_id = posts(&rig.trace.take())[0][0].wr_id;
        let wc = WcError { wr_id, status, qp, vendor_err: 0x55 };
        rig.plan.inject_wc(rig.owner.completion_queue(), Wc::Error(wc));
        rig.owner.poll(rig.now).unwrap();
        assert_eq!(rig.owner.state(), &State::Draining, "{status}");
        rig.settle();
        assert_eq!(rig.owner.state(), &State::Down(DownCause::Wc(wc)));
        rig.owner.reclaim(e).unwrap();
        rig.reconnect();
        let (e, s) = rig.exposed(64, 3, Grant::PeerReads);
        assert_eq!(rig.peer_read(&s, 0, 64).unwrap(), [3; 64]);
        rig.back(e);
        rig.assert_clean();
    }
}

#[test]
fn b87_one_port_of_two_flaps_and_the_other_works_on() {
    // One connection a port, on the same device.
    let mut rig = Rig::frwr();
    let open = |node: &SimDevice| {
        Transport::open(node.clone(), Frwr::default(), &OpenOptions::default()).unwrap()
    };
    let plan = FaultPlan::new();
    let second = Faulty::new(rig.node.clone(), plan.clone());
    let mut second = Transport::open(second, Frwr::default(), &OpenOptions::default()).unwrap();
    let mut far = open(&rig.peer_node);
    connect_pair(&mut second, &mut far).unwrap();
    let (e, s) = rig.exposed(64, 1, Grant::PeerReads);
    // The device tells both; port 2 is that of the second.
    rig.plan.inject_event(rig.owner.queue_pair().unwrap(), AsyncEvent::PortDown(2));
    plan.inject_event(second.queue_pair().unwrap(), AsyncEvent::PortDown(2));
    rig.settle();
    settle(rig.now, &mut [&mut second, &mut far]).unwrap();
    assert!(!second.port_is_up(2) && second.port_is_up(1));
    assert!(rig.owner.port_is_up(1));
    assert_eq!(rig.peer_read(&s, 0, 64).unwrap(), [1; 64], "port 1 works on");
    assert_eq!((rig.owner.state(), second.state()), (&State::Up, &State::Up));
    rig.back(e);
    plan.inject_event(second.queue_pair().unwrap(), AsyncEvent::PortUp(2));
    settle(rig.now, &mut [&mut second, &mut far]).unwrap();
    assert!(second.port_is_up(2));
    second.send(b"back again", Reply::InvalidatesNothing).unwrap();
    settle(rig.now, &mut [&mut second, &mut far]).unwrap();
    assert_eq!(far.messages_waiting(), 1);
}
