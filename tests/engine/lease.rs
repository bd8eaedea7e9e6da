//! Leases: what was exposed longer than asked is taken back, and nobody else suffers.

use super::rig::{Rig, is_inv, posts};
use memreg_core::DmaBuf;
use memreg_core::device::sim::{Fabric, SimDevice};
use memreg_core::device::{Caps, WcStatus, errno};
use memreg_core::drive::{Driven, connect_pair, settle};
use memreg_core::sizing::Ask;
use memreg_core::transport::error::Refusal;
use memreg_core::transport::{
    Exposed, ExposureState, NoReply, OpenOptions, Reply, State, Transport,
};
use memreg_core::types::{Grant, Segment, Tick};
use memreg_strategies::{Fmr, Frwr};

#[test]
fn lease_ends_by_revoking_and_the_handle_still_returns_the_bytes() {
    let mut rig = Rig::frwr();
    let buf = DmaBuf::new(4096).unwrap();
    let e = rig.owner.expose_until(buf, Grant::PeerWrites, Tick(1000)).unwrap();
    let (kept, s2) = rig.exposed(4096, 0, Grant::PeerWrites);
    let s = rig.owner.segments(&e).unwrap()[0];
    rig.now = Tick(999);
    rig.settle();
    assert_eq!(rig.probe(&s), WcStatus::Success);
    rig.now = Tick(1000);
    rig.settle();
    assert_eq!(rig.owner.exposure_state(&e), Ok(ExposureState::Fenced));
    assert_eq!(rig.owner.stats().leases_expired, 1);
    assert_eq!(rig.owner.renew(&e, Some(Tick(2000))).unwrap_err(), Refusal::LeaseOver);
    let bytes = rig.owner.reclaim(e).unwrap().into_first().unwrap();
    assert_eq!(bytes[0], 0xee);
    assert_eq!(rig.probe(&s2), WcStatus::Success, "its neighbour is not touched");
    rig.back(kept);
    assert_eq!(rig.probe(&s), WcStatus::RemAccessErr);
}

#[test]
fn renewed_lease_lasts_and_a_removed_one_never_ends() {
    let mut rig = Rig::frwr();
    let until = |rig: &mut Rig<_>, t| {
        rig.owner.expose_until(DmaBuf::new(64).unwrap(), Grant::PeerReads, Tick(t)).unwrap()
    };
    let (a, b) = (until(&mut rig, 10), until(&mut rig, 10));
    rig.owner.flush().unwrap();
    rig.owner.renew(&a, Some(Tick(50))).unwrap();
    rig.owner.renew(&b, None).unwrap();
    rig.now = Tick(49);
    rig.settle();
    assert_eq!(rig.owner.exposure_state(&a), Ok(ExposureState::Exposed));
    rig.now = Tick(1_000_000);
    rig.settle();
    assert_eq!(rig.owner.exposure_state(&a), Ok(ExposureState::Fenced));
    assert_eq!(rig.owner.exposure_state(&b), Ok(ExposureState::Exposed));
    rig.owner.reclaim(a).unwrap();
    rig.back(b);
    rig.assert_clean();
}

#[test]
fn lease_of_an_exposure_whose_reply_may_come_is_cancelled_not_invalidated() {
    let mut rig = Rig::frwr();
    let buf = DmaBuf::new(64).unwrap();
    let e = rig.owner.expose_until(buf, Grant::PeerWrites, Tick(10)).unwrap();
    rig.owner.send(b"request", Reply::MayInvalidate(&[&e])).unwrap();
    rig.settle();
    rig.now = Tick(10);
    rig.settle();
    assert_eq!(rig.owner.stats().invalidations, 0, "rule 5");
    assert_eq!(rig.owner.exposure_state(&e), Ok(ExposureState::Fenced));
    rig.owner.reclaim(e).unwrap();
    rig.assert_clean();
}

#[test]
fn rule_8_nothing_is_posted_behind_the_sentinel_for_leases_that_end_together() {
    let mut rig = Rig::frwr();
    let mut until = || {
        let buf = DmaBuf::new(64).unwrap();
        rig.owner.expose_until(buf, Grant::PeerWrites, Tick(10)).unwrap()
    };
    let both = [until(), until()];
    rig.owner.flush().unwrap();
    rig.settle();
    rig.trace.take();
    rig.plan.refuse_post(1, 0, errno::EINVAL);
    rig.now = Tick(10);
    rig.owner.poll(rig.now).unwrap();
    assert_eq!(rig.owner.state(), &State::Draining);
    let posted = posts(&rig.trace.take()).concat();
    assert!(!posted.iter().any(is_inv), "{posted:?}");
    rig.settle();
    assert!(rig.is_down());
    for e in both {
        rig.owner.reclaim(e).unwrap();
    }
    rig.assert_clean();
}

#[test]
fn staged_lease_ends_without_a_wr() {
    let mut rig = Rig::frwr();
    let buf = DmaBuf::new(64).unwrap();
    let e = rig.owner.expose_until(buf, Grant::PeerReads, Tick(10)).unwrap();
    rig.now = Tick(11);
    rig.owner.poll(rig.now).unwrap();
    rig.owner.reclaim(e).unwrap();
    assert_eq!(rig.owner.stats().wrs, 0);
    rig.assert_clean();
}

#[test]
fn thousand_exposures_five_percent_time_out_and_no_neighbour_suffers() {
    let mut rig = Rig::frwr();
    let mut lost = 0;
    for round in 0..1000u64 {
        let late = round % 20 == 0;
        let until = Tick(if late { rig.now.0 + 1 } else { rig.now.0 + 1_000_000 });
        let buf = DmaBuf::new(4096).unwrap();
        let e = rig.owner.expose_until(buf, Grant::PeerWrites, until).unwrap();
        rig.owner.send(b"request", Reply::InvalidatesNothing).unwrap();
        rig.now = Tick(rig.now.0 + 2);
        rig.settle();
        rig.peer.recv(&mut vec![]).unwrap();
        if late {
            rig.owner.reclaim(e).unwrap();
            lost += 1;
        } else {
            rig.back(e);
        }
    }
    assert_eq!((lost, rig.owner.stats().leases_expired), (50, 50));
    assert_eq!(rig.owner.stats().poisons, 0);
    rig.assert_clean();
}

/// One of many connections of two nodes.
struct Conn {
    owner: Transport<SimDevice, Frwr>,
    peer: Transport<SimDevice, Fmr>,
    lent: Option<Exposed>,
    segment: Option<Segment>,
}

impl Conn {
    /// A request whose reply may invalidate, with a lease that ends at 1000.
    fn ask(&mut self) {
        let buf = DmaBuf::new(64).unwrap();
        let e = self.owner.expose_until(buf, Grant::PeerWrites, Tick(1000)).unwrap();
        self.owner.send(b"request", Reply::MayInvalidate(&[&e])).unwrap();
        self.segment = Some(self.owner.segments(&e).unwrap()[0]);
        self.lent = Some(e);
    }

    fn answer(&mut self) {
        self.peer.recv(&mut vec![]).unwrap();
        self.peer.send_with_inv(b"reply", &self.segment.unwrap()).unwrap();
    }

    fn take_back(&mut self) {
        let e = self.lent.take().unwrap();
        self.owner.recv(&mut vec![]);
        assert_eq!(self.owner.reclaim(e).unwrap().count(), 1);
    }

    /// A whole exchange, with the revocation by the owner.
    fn works(&mut self) -> bool {
        let e = self.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
        self.owner.flush().unwrap();
        let segment = self.owner.segments(&e).unwrap()[0];
        let op = self.peer.write(&segment, 0, DmaBuf::from_bytes(&[7]).unwrap()).unwrap();
        settle(Tick(1002), &mut [&mut self.owner, &mut self.peer]).unwrap();
        assert!(self.peer.take(op).unwrap().result.is_ok());
        self.owner.revoke(&e, NoReply::Unmarked).unwrap();
        settle(Tick(1002), &mut [&mut self.owner, &mut self.peer]).unwrap();
        self.owner.reclaim(e).unwrap().into_first().unwrap()[0] == 7
    }
}

fn run(now: u64, conns: &mut [Conn]) {
    let mut all: Vec<&mut dyn Driven> = vec![];
    for c in conns {
        all.push(&mut c.owner);
        all.push(&mut c.peer);
    }
    settle(Tick(now), &mut all).unwrap();
}

/// Connections share their nodes; every 20th peer is too late, and half of those answer after all.
#[test]
fn thousand_connections_five_percent_time_out_and_no_neighbour_suffers() {
    let fabric = Fabric::new(1);
    let owners = fabric.add_node("owner", Caps::default());
    let peers = fabric.add_node("peer", Caps::default());
    let ask = Ask { credits: 2, max_message_bytes: 64, max_payload_bytes: 4096, ..Ask::default() };
    let options = OpenOptions { ask, ..OpenOptions::default() };
    let mut conns: Vec<Conn> = (0..1000)
        .map(|_| {
            let mut owner = Transport::open(owners.clone(), Frwr::new(), &options).unwrap();
            let mut peer = Transport::open(peers.clone(), Fmr::new(), &options).unwrap();
            connect_pair(&mut owner, &mut peer).unwrap();
            Conn { owner, peer, lent: None, segment: None }
        })
        .collect();
    let mapped = owners.counters().mapped_ranges;
    conns.iter_mut().for_each(Conn::ask);
    run(1, &mut conns);
    let late = |i: usize| i % 20 == 7;
    conns.iter_mut().enumerate().filter(|(i, _)| !late(*i)).for_each(|(_, c)| c.answer());
    run(999, &mut conns);
    assert!(conns.iter().all(|c| c.owner.stats().leases_expired == 0));
    run(1000, &mut conns);
    // Dealloc first (rule 5): the lease is over, the bytes are back, and nobody is down.
    conns.iter_mut().for_each(Conn::take_back);
    for (i, c) in conns.iter().enumerate() {
        assert_eq!(c.owner.stats().leases_expired, u64::from(late(i)), "{i}");
        assert_eq!((c.owner.state(), c.owner.stats().poisons), (&State::Up, 0), "{i}");
    }
    // Half of the late ones answer now: that costs each its own connection, and no byte.
    let answered = |i: usize| i % 40 == 7;
    conns.iter_mut().enumerate().filter(|(i, _)| answered(*i)).for_each(|(_, c)| c.answer());
    run(1001, &mut conns);
    for (i, c) in conns.iter_mut().enumerate() {
        assert_eq!(matches!(c.owner.state(), State::Down(_)), answered(i), "{i}");
        if !answered(i) {
            assert!(c.works(), "{i}");
        }
        let s = c.owner.stats();
        assert_eq!((s.bytes_leaked, s.regions_leaked_now, s.exposures_now), (0, 0, 0), "{i}");
    }
    let c = owners.counters();
    assert_eq!((c.mapped_ranges, c.iommu_faults, c.fast_mrs_valid), (mapped, 0, 0));
}
