//! Handles and buffers that leave the owner's thread.

use super::explore::many;
use super::rig::{Rig, assert_clean, back, exposed, quiet};
use memreg_core::DmaBuf;
use memreg_core::memreg::MemReg;
use memreg_core::transport::ExposureState;
use memreg_core::types::Grant;
use memreg_strategies::{Fmr, Frwr};
use shuttle::thread;

/// One run with each kind of strategy: keys that die by a WR, and keys that die by a verb.
macro_rules! both {
    ($name:literal, $scenario:ident) => {
        many(concat!($name, ", frwr"), SCHEDULES, $scenario::<Frwr>);
        many(concat!($name, ", fmr"), SCHEDULES, $scenario::<Fmr>);
    };
}

const SCHEDULES: usize = 1000;

#[test]
fn a_handle_dropped_by_another_thread_is_never_overlooked() {
    fn scenario<S: MemReg + Default>() {
        let mut rig = Rig::<S>::new();
        let (first, _) = exposed(&mut rig.owner, Grant::PeerReads);
        let (second, _) = exposed(&mut rig.owner, Grant::PeerWrites);
        let one = thread::spawn(move || drop(first));
        let two = thread::spawn(move || drop(second));
        quiet(&mut rig.owner);
        one.join().unwrap();
        two.join().unwrap();
        quiet(&mut rig.owner);
        assert_eq!(rig.owner.stats().abandoned, 2);
        assert_clean(&rig.owner, &rig.node);
    }
    both!("handles are dropped while the owner polls", scenario);
}

#[test]
fn a_slot_that_is_used_again_is_not_taken_for_its_last_exposure() {
    fn scenario<S: MemReg + Default>() {
        let mut rig = Rig::<S>::new();
        let (old, _) = exposed(&mut rig.owner, Grant::PeerReads);
        let other = thread::spawn(move || drop(old));
        // Rounds of other exposures, so that the freed slot is soon used again.
        for _ in 0..2 {
            let (new, _) = exposed(&mut rig.owner, Grant::PeerWrites);
            quiet(&mut rig.owner);
            assert_eq!(rig.owner.exposure_state(&new), Ok(ExposureState::Exposed));
            let buf = back(&mut rig.owner, new).into_first().unwrap();
            assert_eq!(buf[..], [7; 64]);
        }
        let (new, _) = exposed(&mut rig.owner, Grant::PeerWrites);
        other.join().unwrap();
        quiet(&mut rig.owner);
        assert_eq!(rig.owner.exposure_state(&new), Ok(ExposureState::Exposed));
        back(&mut rig.owner, new);
        assert_eq!(rig.owner.stats().abandoned, 1);
        assert_clean(&rig.owner, &rig.node);
    }
    both!("slots are used again while a handle is dropped", scenario);
}

#[test]
fn an_owner_that_closes_gives_everything_back_while_handles_are_dropped() {
    fn scenario<S: MemReg + Default>() {
        let mut rig = Rig::<S>::new();
        let (dropped, _) = exposed(&mut rig.owner, Grant::PeerReads);
        let (forgotten, _) = exposed(&mut rig.owner, Grant::PeerWrites);
        let other = thread::spawn(move || {
            drop(dropped);
            std::mem::forget(forgotten);
        });
        quiet(&mut rig.owner);
        drop(rig.owner);
        other.join().unwrap();
        let c = rig.node.counters();
        assert_eq!((c.mapped_ranges, c.fast_mrs_valid, c.iommu_faults), (0, 0, 0));
    }
    both!("the owner closes while handles are dropped", scenario);
}

#[test]
fn a_read_whose_handle_is_dropped_meanwhile_frees_its_buffer_once() {
    fn scenario<S: MemReg + Default>() {
        let mut rig = Rig::<S>::new();
        let (e, segment) = exposed(&mut rig.owner, Grant::PeerReads);
        let op = rig.peer.read(&segment, 0, DmaBuf::new(64).unwrap()).unwrap();
        let kept = rig.peer.read(&segment, 0, DmaBuf::new(64).unwrap()).unwrap();
        let other = thread::spawn(move || drop(op));
        quiet(&mut rig.peer);
        other.join().unwrap();
        quiet(&mut rig.peer);
        let done = rig.peer.take(kept).unwrap();
        assert_eq!(done.result, Ok(64));
        assert_eq!(done.buffers.into_first().unwrap()[..], [7; 64]);
        quiet(&mut rig.peer);
        assert_clean(&rig.peer, &rig.peer_node);
        back(&mut rig.owner, e);
        assert_clean(&rig.owner, &rig.node);
    }
    both!("the handle of a read is dropped while it ends", scenario);
}

#[test]
fn a_buffer_dropped_by_another_thread_leaves_its_mr_to_the_owner() {
    fn scenario<S: MemReg + Default>(closes: bool) {
        let mut rig = Rig::<S>::new();
        let (e, segment) = exposed(&mut rig.owner, Grant::PeerReads);
        let used = |peer: &mut super::rig::End<Fmr>| {
            let op = peer.read(&segment, 0, DmaBuf::new(64).unwrap()).unwrap();
            quiet(peer);
            peer.take(op).unwrap().buffers.into_first().unwrap()
        };
        let (one, two) = (used(&mut rig.peer), used(&mut rig.peer));
        assert_eq!(rig.peer.stats().local_registrations, 2);
        let others = [one, two].map(|buf| thread::spawn(move || drop(buf)));
        if closes {
            quiet(&mut rig.peer);
            drop(rig.peer);
            others.into_iter().for_each(|o| o.join().unwrap());
            assert_eq!(rig.peer_node.counters().mrs, 0);
        } else {
            quiet(&mut rig.peer);
            others.into_iter().for_each(|o| o.join().unwrap());
            quiet(&mut rig.peer);
            // The two of the message buffers.
            assert_eq!(rig.peer_node.counters().mrs, 2);
            assert_clean(&rig.peer, &rig.peer_node);
        }
        drop(e);
    }
    many("buffers are dropped while the owner polls", SCHEDULES, || scenario::<Frwr>(false));
    many("buffers are dropped while the owner closes", SCHEDULES, || scenario::<Frwr>(true));
}
