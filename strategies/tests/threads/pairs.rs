//! Both ends of a connection, each driven by a thread of its own, on one fabric.

use super::explore::many;
use super::rig::{End, NOW, Rig, assert_clean, exposed, quiet};
use memreg_core::DmaBuf;
use memreg_core::drive::{Driven, settle};
use memreg_core::memreg::MemReg;
use memreg_core::transport::{LocalOp, NoReply, Reply, State};
use memreg_core::types::Grant;
use memreg_strategies::{Fmr, Frwr};
use shuttle::thread;

const SCHEDULES: usize = 500;

/// What the peer writes.
const MARK: [u8; 64] = [0xee; 64];

#[test]
fn two_threads_exchange_a_segment_and_its_bytes() {
    fn scenario<S: MemReg + Default + 'static>() {
        let Rig { mut owner, mut peer, node, peer_node } = Rig::<S>::new();
        let one = thread::spawn(move || {
            let e = owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
            let wire = owner.segments(&e).unwrap()[0].to_wire();
            owner.send(&wire, Reply::InvalidatesNothing).unwrap();
            quiet(&mut owner);
            (owner, e)
        });
        let two = thread::spawn(move || {
            let mut op = None;
            for _ in 0..4 {
                peer.drive(NOW).unwrap();
                op = op.or_else(|| answer(&mut peer));
            }
            (peer, op)
        });
        let ((mut owner, e), (mut peer, op)) = (one.join().unwrap(), two.join().unwrap());
        settle(NOW, &mut [&mut owner, &mut peer]).unwrap();
        let op = op.or_else(|| answer(&mut peer)).expect("the message is lost");
        settle(NOW, &mut [&mut owner, &mut peer]).unwrap();
        assert_eq!(peer.take(op).unwrap().result, Ok(64));
        assert_eq!(super::rig::back(&mut owner, e).into_first().unwrap()[..], MARK);
        quiet(&mut peer);
        assert_clean(&owner, &node);
        assert_clean(&peer, &peer_node);
    }
    many("two threads talk, frwr", SCHEDULES, scenario::<Frwr>);
    many("two threads talk, fmr", SCHEDULES, scenario::<Fmr>);
}

#[test]
fn two_threads_that_wait_miss_nothing() {
    fn scenario() {
        let Rig { mut owner, mut peer, node, peer_node } = Rig::<Frwr>::new();
        let (e, segment) = exposed(&mut owner, Grant::PeerWrites);
        owner.send(&segment.to_wire(), Reply::InvalidatesNothing).unwrap();
        let two = thread::spawn(move || {
            // Whoever steps the fabric, the message is there when nothing moves any more.
            wait(&mut peer);
            let op = answer(&mut peer).expect("it was woken for the message");
            wait(&mut peer);
            assert_eq!(peer.take(op).unwrap().result, Ok(64));
            peer
        });
        wait(&mut owner);
        let mut peer = two.join().unwrap();
        assert_eq!(super::rig::back(&mut owner, e).into_first().unwrap()[..], MARK);
        quiet(&mut peer);
        assert_clean(&owner, &node);
        assert_clean(&peer, &peer_node);
    }
    many("two threads wait", SCHEDULES, scenario);
}

/// Waits until there is nothing more to wait for. An event that a poll has overtaken ends one wait
/// with nothing.
fn wait<S: MemReg>(end: &mut End<S>) {
    let mut nothing = 0;
    while nothing < 2 {
        nothing = if end.wait(NOW, 0).unwrap().any() { 0 } else { nothing + 1 };
    }
}

/// The peer's half: writes into the segment that a message brings.
fn answer(peer: &mut End<Fmr>) -> Option<LocalOp> {
    let mut message = vec![];
    peer.recv(&mut message)?;
    let segment = peer.import(&message).unwrap();
    Some(peer.write(&segment, 0, DmaBuf::from_bytes(&MARK).unwrap()).unwrap())
}

#[test]
fn a_write_that_races_the_revoke_lands_whole_or_not_at_all() {
    fn scenario<S: MemReg + Default + 'static>() {
        let Rig { mut owner, mut peer, node, peer_node } = Rig::<S>::new();
        let (e, segment) = exposed(&mut owner, Grant::PeerWrites);
        quiet(&mut owner);
        let two = thread::spawn(move || {
            let op = peer.write(&segment, 0, DmaBuf::from_bytes(&MARK).unwrap()).unwrap();
            quiet(&mut peer);
            (peer, op)
        });
        owner.revoke(&e, NoReply::Unmarked).unwrap();
        quiet(&mut owner);
        let buf = owner.reclaim(e).unwrap().into_first().unwrap();
        let seen = buf[..].to_vec();
        let (mut peer, op) = two.join().unwrap();
        settle(NOW, &mut [&mut owner, &mut peer]).unwrap();
        assert_eq!(buf[..], seen, "bytes changed after they were given back");
        let written = peer.take(op).unwrap().result.is_ok();
        assert_eq!(seen, if written { MARK } else { [7; 64] });
        assert_eq!(matches!(peer.state(), State::Up), written, "a late access costs the peer");
        for node in [&node, &peer_node] {
            assert_eq!(node.counters().iommu_faults, 0, "a key outlived its mapping");
        }
        assert_eq!(node.counters().mapped_ranges, 2);
        assert_eq!(owner.stats().bytes_leaked + peer.stats().bytes_leaked, 0);
    }
    many("a write races a revoke, frwr", SCHEDULES, scenario::<Frwr>);
    many("a write races a revoke, fmr", SCHEDULES, scenario::<Fmr>);
}

#[test]
fn a_write_that_races_a_dropped_handle_reaches_no_freed_bytes() {
    fn scenario<S: MemReg + Default + 'static>() {
        let Rig { mut owner, mut peer, node, peer_node: _ } = Rig::<S>::new();
        let (e, segment) = exposed(&mut owner, Grant::PeerWrites);
        quiet(&mut owner);
        let two = thread::spawn(move || {
            let op = peer.write(&segment, 0, DmaBuf::from_bytes(&MARK).unwrap()).unwrap();
            quiet(&mut peer);
            (peer, op)
        });
        let three = thread::spawn(move || drop(e));
        quiet(&mut owner);
        three.join().unwrap();
        quiet(&mut owner);
        let (mut peer, op) = two.join().unwrap();
        settle(NOW, &mut [&mut owner, &mut peer]).unwrap();
        let _ = peer.take(op).unwrap();
        assert_eq!(owner.stats().abandoned, 1);
        let c = node.counters();
        assert_eq!((c.iommu_faults, c.mapped_ranges), (0, 2), "a key outlived its mapping");
    }
    many("a write races a dropped handle, frwr", SCHEDULES, scenario::<Frwr>);
    many("a write races a dropped handle, fmr", SCHEDULES, scenario::<Fmr>);
}

#[test]
fn a_device_that_goes_at_any_moment_takes_no_bytes_with_it() {
    fn scenario<S: MemReg + Default + 'static>(unplug: bool) {
        let Rig { mut owner, mut peer, node, peer_node } = Rig::<S>::new();
        let (e, segment) = exposed(&mut owner, Grant::PeerWrites);
        let going = if unplug { node.clone() } else { peer_node };
        let three = thread::spawn(move || if unplug { going.unplug() } else { going.kill() });
        let two = thread::spawn(move || {
            // Refused, failed or done; its handle is dropped in any case.
            drop(peer.write(&segment, 0, DmaBuf::from_bytes(&MARK).unwrap()));
            outlive(&mut peer);
        });
        let revoked = owner.revoke(&e, NoReply::Unmarked);
        outlive(&mut owner);
        two.join().unwrap();
        three.join().unwrap();
        outlive(&mut owner);
        assert!(matches!(owner.state(), State::Down(_)), "{:?}, {revoked:?}", owner.state());
        let buf = owner.reclaim(e).unwrap().into_first().unwrap();
        assert!(buf[..] == MARK || buf[..] == [7; 64]);
        drop(owner);
        assert_eq!(node.counters().mapped_ranges, 0);
    }
    many("the peer is killed, frwr", SCHEDULES, || scenario::<Frwr>(false));
    many("the peer is killed, fmr", SCHEDULES, || scenario::<Fmr>(false));
    many("the owner's device is removed, frwr", SCHEDULES, || scenario::<Frwr>(true));
    many("the owner's device is removed, fmr", SCHEDULES, || scenario::<Fmr>(true));
}

/// Drives one end whose device may be gone: then a poll fails, and those after it take it down.
fn outlive<S: MemReg>(t: &mut End<S>) {
    let mut failed = 0;
    while failed < 3 {
        match t.drive(NOW) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) => failed += 1,
        }
    }
}

#[test]
fn a_transport_changes_threads_between_any_two_calls() {
    fn scenario<S: MemReg + Default + 'static>() {
        let Rig { mut owner, mut peer, node, peer_node: _ } = Rig::<S>::new();
        let (e, segment) = exposed(&mut owner, Grant::PeerWrites);
        quiet(&mut owner);
        let op = peer.write(&segment, 0, DmaBuf::from_bytes(&MARK).unwrap()).unwrap();
        let two = thread::spawn(move || {
            quiet(&mut peer);
            peer
        });
        let owner = thread::spawn(move || {
            quiet(&mut owner);
            owner
        });
        let mut owner = owner.join().unwrap();
        let mut peer = two.join().unwrap();
        settle(NOW, &mut [&mut owner, &mut peer]).unwrap();
        assert_eq!(peer.take(op).unwrap().result, Ok(64));
        let last = thread::spawn(move || {
            let buf = super::rig::back(&mut owner, e).into_first().unwrap();
            assert_clean(&owner, &node);
            buf
        });
        assert_eq!(last.join().unwrap()[..], MARK);
    }
    many("transports change threads", SCHEDULES, scenario::<Frwr>);
}
