//! Several transports in one protection domain.

use memreg_core::device::sim::{Fabric, SimDevice};
use memreg_core::device::{Caps, Device, RelaxedOrdering, TransportKind, WcStatus};
use memreg_core::drive::{connect_pair, settle};
use memreg_core::memreg::MemReg;
use memreg_core::transport::error::OpenError;
use memreg_core::transport::{
    NoReply, OpenOptions, QpBoundKeys, SharedPd, SharedPdError, Transport,
};
use memreg_core::types::{Grant, Segment, Tick};
use memreg_core::{DmaBuf, Exposed};
use memreg_strategies::{Fmr, Frwr, Physical};

fn windows() -> Caps {
    Caps {
        max_fast_reg_page_list_len: 0,
        mem_window_type_2b: true,
        max_mw: 1000,
        ..Caps::default()
    }
}

fn shared(node: &SimDevice) -> SharedPd<SimDevice> {
    SharedPd::new(node.clone(), QpBoundKeys::seen_on(node.id())).unwrap()
}

/// A connection whose owner is in the shared PD.
struct Conn {
    owner: Transport<SimDevice, Frwr>,
    peer: Transport<SimDevice, Fmr>,
}

impl Conn {
    fn open(pd: &SharedPd<SimDevice>, peers: &SimDevice) -> Conn {
        let options = OpenOptions::default();
        let mut owner = Transport::open_in(pd, Frwr::new(), &options).unwrap();
        let mut peer = Transport::open(peers.clone(), Fmr::new(), &options).unwrap();
        connect_pair(&mut owner, &mut peer).unwrap();
        Conn { owner, peer }
    }

    fn settle(&mut self) {
        settle(Tick(0), &mut [&mut self.owner, &mut self.peer]).unwrap();
    }

    fn expose(&mut self, buf: DmaBuf) -> (Exposed, Segment) {
        let e = self.owner.expose(buf, Grant::PeerWrites).unwrap();
        self.owner.flush().unwrap();
        self.settle();
        let segment = self.owner.segments(&e).unwrap()[0];
        (e, segment)
    }

    fn back(&mut self, e: Exposed) -> DmaBuf {
        self.owner.revoke(&e, NoReply::Unmarked).unwrap();
        self.settle();
        self.owner.reclaim(e).unwrap().into_first().unwrap()
    }

    fn write(&mut self, segment: &Segment) -> WcStatus {
        let op = self.peer.write(segment, 0, DmaBuf::from_bytes(&[7]).unwrap()).unwrap();
        self.settle();
        match self.peer.take(op).unwrap().result {
            Ok(_) => WcStatus::Success,
            Err(e) => e.wc.status,
        }
    }
}

fn nodes() -> (SimDevice, SimDevice) {
    let fabric = Fabric::new(1);
    (fabric.add_node("owner", windows()), fabric.add_node("peer", Caps::default()))
}

#[test]
fn a_buffer_is_registered_once_for_all_connections_of_the_pd() {
    let (node, peers) = nodes();
    let pd = shared(&node);
    let mut conns: Vec<Conn> = (0..10).map(|_| Conn::open(&pd, &peers)).collect();
    assert_eq!(node.counters().pds, 1);
    let mut buf = DmaBuf::new(4096).unwrap();
    for c in &mut conns {
        let (e, segment) = c.expose(buf);
        assert_eq!(c.write(&segment), WcStatus::Success);
        buf = c.back(e);
    }
    let stats = conns.iter().map(|c| c.owner.stats());
    let (made, found) =
        stats.fold((0, 0), |(made, found), s| (made + s.local_registrations, found + s.local_hits));
    assert_eq!((made, found), (1, 9));
}

#[test]
fn a_key_is_refused_through_another_connection_of_the_pd() {
    let (node, peers) = nodes();
    let pd = shared(&node);
    let (mut a, mut b) = (Conn::open(&pd, &peers), Conn::open(&pd, &peers));
    let (e, segment) = a.expose(DmaBuf::new(64).unwrap());
    assert_eq!(b.write(&segment), WcStatus::RemAccessErr);
    assert_eq!(a.write(&segment), WcStatus::Success, "its own connection goes on");
    assert_eq!(a.back(e)[0], 7);
}

#[test]
fn what_one_leaves_in_the_pd_is_ended_by_another_or_by_the_last() {
    let (node, peers) = nodes();
    let pd = shared(&node);
    let (mut a, mut b) = (Conn::open(&pd, &peers), Conn::open(&pd, &peers));
    let (e, _) = a.expose(DmaBuf::new(64).unwrap());
    let (gone, kept) = (a.back(e), DmaBuf::new(64).unwrap());
    let (e, _) = a.expose(kept);
    let kept = a.back(e);
    let before = node.counters().mrs;
    drop((a, pd));
    drop(gone);
    b.settle();
    let message_buffers = 2;
    assert_eq!(node.counters().mrs, before - 1 - message_buffers);
    // The other connection's keys and QP do not know that one has gone.
    let (e, segment) = b.expose(kept);
    assert_eq!(b.write(&segment), WcStatus::Success);
    assert_eq!(b.owner.stats().local_registrations, 0);
    let kept = b.back(e);
    drop(b);
    let c = node.counters();
    assert_eq!((c.mrs, c.mws, c.qps, c.cqs, c.pds, c.mapped_ranges), (0, 0, 0, 0, 0, 0));
    drop(kept);
}

#[test]
fn rule_4_keys_of_the_whole_pd_are_kept_out() {
    let fabric = Fabric::new(1);
    let refused = |caps: Caps, strategy: fn(&SharedPd<SimDevice>) -> Option<OpenError>| {
        let node = fabric.add_node("owner", caps);
        let pd = shared(&node);
        let e = strategy(&pd).expect("refused").to_string();
        let c = node.counters();
        assert_eq!((c.pds, c.cqs, c.qps, c.mrs), (1, 0, 0, 0));
        e
    };
    fn open<S: MemReg>(pd: &SharedPd<SimDevice>, strategy: S) -> Option<OpenError> {
        let mut options = OpenOptions::default();
        options.ask.danger_trust_peer = true;
        Transport::open_in(pd, strategy, &options).err()
    }
    let whole = "cannot share a protection domain: its keys are valid in the whole PD";
    assert_eq!(refused(windows(), |pd| open(pd, Fmr::new())), format!("strategy fmr {whole}"));
    let e = refused(windows(), |pd| open(pd, Physical::new(true)));
    assert_eq!(e, format!("strategy physical {whole}"));
    let page_lists = |pd: &SharedPd<_>| open(pd, Frwr::new());
    assert_eq!(refused(Caps::default(), page_lists), format!("strategy frwr {whole}"));
    let iwarp = Caps { transport: TransportKind::Iwarp, ..windows() };
    let e = refused(iwarp, page_lists);
    assert!(e.ends_with("the sink of a read over iWARP grants remote write"), "{e}");
}

#[test]
fn what_was_seen_on_one_device_says_nothing_of_another() {
    let (node, peers) = nodes();
    let e = SharedPd::new(node.clone(), QpBoundKeys::seen_on(peers.id())).unwrap_err();
    assert_eq!(e, SharedPdError::OtherDevice { seen: peers.id(), this: node.id() });
    assert_eq!(node.counters().pds, 0);
}

#[test]
fn b59_a_registration_of_another_ordering_is_nobodys() {
    let caps = Caps { relaxed_ordering: true, ..windows() };
    let node = Fabric::new(1).add_node("owner", caps);
    let pd = shared(&node);
    let open = |relaxed_ordering| {
        let options = OpenOptions { relaxed_ordering, ..OpenOptions::default() };
        Transport::open_in(&pd, Frwr::new(), &options)
    };
    let _first = open(RelaxedOrdering::Require).unwrap();
    let _like_it = open(RelaxedOrdering::Try).unwrap();
    let e = open(RelaxedOrdering::Off).unwrap_err().to_string();
    assert!(e.ends_with("registered in it with another relaxed_ordering than is wanted"), "{e}");
}
