//! `frwr` over windows, whole: transport, engine and the software device that has windows and no
//! page list.
#![allow(clippy::unwrap_used)] // a test

use memreg_core::device::sim::{Fabric, SimDevice, profile};
use memreg_core::device::{Caps, WcStatus};
use memreg_core::drive::{connect_pair, settle};
use memreg_core::sizing::Ask;
use memreg_core::transport::{
    Buffers, Exposed, ExposureState, NoReply, OpenOptions, Reply, State, Transport,
};
use memreg_core::types::{Grant, Segment, Tick};
use memreg_core::{DmaBuf, memreg::MemReg};
use memreg_strategies::{Fmr, Frwr};

const NOW: Tick = Tick(1);

struct Rig {
    owner: Transport<SimDevice, Frwr>,
    peer: Transport<SimDevice, Fmr>,
    node: SimDevice,
}

impl Rig {
    fn new(credits: u32) -> Rig {
        Rig::on(profile::builtin("rxe").unwrap().caps, credits)
    }

    fn on(caps: Caps, credits: u32) -> Rig {
        let fabric = Fabric::new(3);
        let node = fabric.add_node("owner", caps);
        let ask = Ask { credits, ..Ask::default() };
        let options = OpenOptions { ask, ..OpenOptions::default() };
        let mut owner = Transport::open(node.clone(), Frwr::new(), &options).unwrap();
        let peer_node = fabric.add_node("peer", Caps::default());
        let mut peer = Transport::open(peer_node, Fmr::new(), &options).unwrap();
        connect_pair(&mut owner, &mut peer).unwrap();
        Rig { owner, peer, node }
    }

    fn settle(&mut self) {
        settle(NOW, &mut [&mut self.owner, &mut self.peer]).unwrap();
    }

    fn expose(&mut self, buffers: impl Into<Buffers>, grant: Grant) -> (Exposed, Vec<Segment>) {
        let e = self.owner.expose(buffers, grant).unwrap();
        self.owner.flush().unwrap();
        self.settle();
        let segments = self.owner.segments(&e).unwrap().to_vec();
        (e, segments)
    }

    fn write(&mut self, segment: &Segment, at: u64, bytes: &[u8]) -> WcStatus {
        let op = self.peer.write(segment, at, DmaBuf::from_bytes(bytes).unwrap()).unwrap();
        self.settle();
        match self.peer.take(op).unwrap().result {
            Ok(_) => WcStatus::Success,
            Err(e) => e.wc.status,
        }
    }

    fn back(&mut self, e: Exposed) -> Buffers {
        self.owner.revoke(&e, NoReply::Unmarked).unwrap();
        self.settle();
        self.owner.reclaim(e).unwrap()
    }

    fn reconnect(&mut self) {
        self.owner.disconnect();
        self.peer.disconnect();
        self.settle();
        assert!(matches!(self.owner.state(), State::Down(_)));
        let c = self.node.counters();
        assert_eq!((c.mws, c.qps), (0, 0), "windows end before their QP");
        self.owner.reconnect().unwrap();
        self.peer.reconnect().unwrap();
        connect_pair(&mut self.owner, &mut self.peer).unwrap();
    }
}

#[test]
fn m_03_cycles_make_no_window_once_the_pool_is_warm() {
    let mut rig = Rig::new(2);
    let made = rig.node.counters().alloc_mw_calls;
    assert_eq!(made, 4, "one operation's worth");
    let mut buf = Some(DmaBuf::new(8192).unwrap());
    for i in 0..2000u32 {
        let (e, s) = rig.expose((buf.take().unwrap(), 100..5000), Grant::PeerWrites);
        assert_eq!(s.len(), 1);
        assert_eq!(rig.write(&s[0], 0, &i.to_le_bytes()), WcStatus::Success);
        let back = rig.back(e).into_first().unwrap();
        assert_eq!(back[100..104], i.to_le_bytes());
        assert_eq!((back[99], back[104]), (0, 0));
        buf = Some(back);
    }
    let c = rig.node.counters();
    let renewed = rig.owner.stats().renewals;
    assert_eq!(renewed, 4, "each has used its tags once (D-11)");
    assert_eq!((c.alloc_mw_calls, c.mws, c.mws_bound), (made + renewed, 4, 0));
    assert_eq!((c.remote_refusals, c.iommu_faults), (0, 0));
    // The parent is registered once and stays.
    assert_eq!(rig.owner.stats().local_registrations, 1);
}

#[test]
fn a_window_ends_where_the_exposure_ends() {
    for (at, len) in [(4900, 1), (0, 4901)] {
        let mut rig = Rig::new(2);
        let (e, s) = rig.expose((DmaBuf::new(8192).unwrap(), 100..5000), Grant::PeerWrites);
        let longer = Segment { len: 8000, ..s[0] };
        assert_eq!(rig.write(&longer, at, &vec![7; len]), WcStatus::RemAccessErr);
        rig.settle();
        let back = rig.owner.reclaim(e).unwrap().into_first().unwrap();
        assert!(back.iter().all(|b| *b == 0), "the parent's other bytes are safe");
    }
}

#[test]
fn map_06_each_segment_has_a_window_and_a_remote_invalidation_ends_one() {
    let mut rig = Rig::new(4);
    let parts = [0..4096, 7..100, 1..2].map(|r| (DmaBuf::new(4096).unwrap(), r));
    let (e, s) = rig.expose(parts.into_iter().collect::<Buffers>(), Grant::PeerWrites);
    assert_eq!(s.iter().map(|s| s.len).collect::<Vec<_>>(), [4096, 93, 1]);
    for segment in &s {
        assert_eq!(rig.write(segment, 0, &[9]), WcStatus::Success);
    }
    rig.owner.send(b"call", Reply::MayInvalidate(&[&e])).unwrap();
    rig.settle();
    let mut message = vec![];
    rig.peer.recv(&mut message).unwrap();
    rig.peer.send_with_inv(b"reply", &s[1]).unwrap();
    rig.settle();
    let got = rig.owner.recv(&mut message).unwrap();
    assert!(got.invalidated);
    let before = rig.owner.stats().invalidations;
    rig.owner.revoke(&e, NoReply::Arrived(&got.token)).unwrap();
    rig.settle();
    assert_eq!(rig.owner.stats().invalidations - before, 2, "the third is dead already (H-28)");
    let back = rig.owner.reclaim(e).unwrap();
    assert!(back.iter().all(|(buf, range)| buf[range.start] == 9));
    assert_eq!(rig.owner.strategy().stats().busy, 0);
    assert_eq!(rig.node.counters().mws_bound, 0);
}

#[test]
fn h_55_rule_2_bytes_come_back_from_a_lost_connection_and_the_next_one_works() {
    let mut rig = Rig::new(4);
    for round in 0..5 {
        // Staged, bound, and being revoked.
        let staged = rig.owner.expose(DmaBuf::new(4096).unwrap(), Grant::PeerReads).unwrap();
        let (bound, old) = rig.expose(DmaBuf::new(4096).unwrap(), Grant::PeerWrites);
        let (revoking, _) = rig.expose(DmaBuf::new(4096).unwrap(), Grant::PeerWrites);
        rig.owner.revoke(&revoking, NoReply::Unmarked).unwrap();
        rig.reconnect();
        for e in [staged, bound, revoking] {
            assert_eq!(rig.owner.exposure_state(&e), Ok(ExposureState::Fenced), "{round}");
            rig.owner.reclaim(e).unwrap();
        }
        let s = rig.owner.strategy().stats();
        assert_eq!((s.busy, s.condemned), (0, 0));
        assert!(s.free >= 4);
        assert_eq!((s.free, rig.owner.stats().bytes_leaked), (rig.node.counters().mws, 0));
        // The key of the last connection, as a peer would forge it for this one.
        let forged = Segment { epoch: rig.owner.epoch(), ..old[0] };
        assert_eq!(rig.write(&forged, 0, &[1]), WcStatus::RemAccessErr);
        rig.reconnect();
        let (e, s) = rig.expose(DmaBuf::new(4096).unwrap(), Grant::PeerWrites);
        assert_eq!(rig.write(&s[0], 0, b"again"), WcStatus::Success);
        assert_eq!(&rig.back(e).into_first().unwrap()[..5], b"again");
    }
}

#[test]
fn saf_01_cancel_ends_the_windows_and_recovery_replaces_them() {
    let mut rig = Rig::new(4);
    let parts = [0..10, 0..20].map(|r| (DmaBuf::new(4096).unwrap(), r));
    let (e, _) = rig.expose(parts.into_iter().collect::<Buffers>(), Grant::PeerReads);
    rig.owner.cancel(&e).unwrap();
    rig.owner.reclaim(e).unwrap();
    assert_eq!(rig.owner.strategy().stats().condemned, 2);
    assert_eq!(rig.owner.recover(10), Ok(2));
    let s = rig.owner.strategy().stats();
    assert_eq!((s.condemned, s.free, rig.node.counters().mws), (0, 4, 4));
}

#[test]
fn b84_rec_while_down_waits_for_the_next_qp() {
    let mut rig = Rig::new(4);
    let (e, _) = rig.expose(DmaBuf::new(4096).unwrap(), Grant::PeerReads);
    rig.owner.disconnect();
    rig.settle();
    assert_eq!(rig.owner.recover(100), Ok(0), "no window without a QP");
    assert_eq!(rig.node.counters().mws, 0);
    rig.owner.reclaim(e).unwrap();
    rig.owner.reconnect().unwrap();
    assert_eq!(rig.owner.strategy().stats().free, 4);
    assert_eq!(rig.owner.strategy().name(), "frwr");
}

#[test]
fn nothing_is_left_of_a_transport_with_windows() {
    let mut rig = Rig::new(4);
    let (bound, _) = rig.expose(DmaBuf::new(4096).unwrap(), Grant::PeerReads);
    let node = rig.node.clone();
    drop(bound);
    drop(rig);
    let c = node.counters();
    assert_eq!((c.pds, c.cqs, c.qps, c.mrs, c.mws, c.mapped_ranges), (0, 0, 0, 0, 0, 0));
}

#[test]
fn pool_06_few_windows_mean_few_operations() {
    let caps = Caps { max_mw: 5, ..profile::builtin("rxe").unwrap().caps };
    let mut rig = Rig::on(caps, 128);
    assert_eq!(rig.owner.limits().credits, 1);
    let held: Vec<_> = (0..5)
        .map_while(|_| rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerReads).ok())
        .collect();
    assert!(!held.is_empty());
    rig.owner.flush().unwrap();
    rig.settle();
    assert!(rig.node.counters().mws <= 5);
    for e in held {
        rig.back(e);
    }
}
