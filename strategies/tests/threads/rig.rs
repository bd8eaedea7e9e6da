//! An owner and a peer on one fabric, as small as they can be.

use memreg_core::device::Caps;
use memreg_core::device::sim::{Fabric, SimDevice};
use memreg_core::drive::{Driven, connect_pair};
use memreg_core::memreg::MemReg;
use memreg_core::sizing::Ask;
use memreg_core::transport::{Exposed, NoReply, OpenOptions, State, Transport};
use memreg_core::types::{Grant, Segment, Tick};
use memreg_core::{DmaBuf, transport::Buffers};
use memreg_strategies::Fmr;

pub type End<S> = Transport<SimDevice, S>;

pub struct Rig<S: MemReg> {
    pub owner: End<S>,
    pub peer: End<Fmr>,
    pub node: SimDevice,
    pub peer_node: SimDevice,
}

pub const NOW: Tick = Tick(1);

impl<S: MemReg + Default> Rig<S> {
    pub fn new() -> Rig<S> {
        let fabric = Fabric::new(1);
        let node = fabric.add_node("owner", Caps::default());
        let peer_node = fabric.add_node("peer", Caps::default());
        let ask =
            Ask { credits: 4, max_payload_bytes: 4096, max_message_bytes: 64, ..Ask::default() };
        let options = OpenOptions { ask, ..OpenOptions::default() };
        let mut owner = Transport::open(node.clone(), S::default(), &options).unwrap();
        let mut peer = Transport::open(peer_node.clone(), Fmr::default(), &options).unwrap();
        connect_pair(&mut owner, &mut peer).unwrap();
        Rig { owner, peer, node, peer_node }
    }
}

/// Exposes a new buffer and posts its registration.
pub fn exposed<S: MemReg>(t: &mut End<S>, grant: Grant) -> (Exposed, Segment) {
    let e = t.expose(DmaBuf::from_bytes(&[7; 64]).unwrap(), grant).unwrap();
    t.flush().unwrap();
    let segment = t.segments(&e).unwrap()[0];
    (e, segment)
}

/// Takes an exposure back and returns its bytes.
pub fn back<S: MemReg>(t: &mut End<S>, e: Exposed) -> Buffers {
    t.revoke(&e, NoReply::Unmarked).unwrap();
    quiet(t);
    t.reclaim(e).unwrap()
}

/// Drives one end until a round changes nothing. Other ends may move in between.
pub fn quiet<S: MemReg>(t: &mut End<S>) {
    while t.drive(NOW).unwrap() {}
}

/// Nothing is left of any exposure or read or write.
#[track_caller]
pub fn assert_clean<S: MemReg>(t: &End<S>, node: &SimDevice) {
    let (s, c) = (t.stats(), node.counters());
    assert_eq!(*t.state(), State::Up);
    assert_eq!((s.exposures_now, s.bytes_leaked, s.regions_leaked_now), (0, 0, 0));
    // The message buffers of both directions stay lent.
    assert_eq!((c.fast_mrs_valid, c.mapped_ranges, c.iommu_faults), (0, 2, 0));
}
