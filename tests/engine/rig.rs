//! An owner and a peer on one fabric.

use memreg_core::device::fault::{FaultPlan, Faulty};
use memreg_core::device::sim::{Fabric, SimDevice};
use memreg_core::device::trace::{Call, Trace, Traced};
use memreg_core::device::{Caps, Wr, WrOp};
use memreg_core::drive::{connect_pair, settle};
use memreg_core::memreg::MemReg;
use memreg_core::sizing::Ask;
use memreg_core::transport::error::AccessError;
use memreg_core::transport::{Buffers, Exposed, NoReply, OpenOptions, State, Transport};
use memreg_core::types::{Grant, Segment, Tick};
use memreg_core::{DmaBuf, device::WcStatus};
use memreg_strategies::{Fmr, Frwr};

pub type Device = Traced<Faulty<SimDevice>>;

pub struct Rig<S: MemReg> {
    pub owner: Transport<Device, S>,
    pub peer: Transport<SimDevice, Fmr>,
    pub plan: FaultPlan,
    pub trace: Trace,
    pub node: SimDevice,
    pub peer_node: SimDevice,
    pub now: Tick,
}

/// A send queue of exactly 16 for operations of up to three regions.
pub fn sq16() -> Ask {
    Ask { credits: 2, backchannel: 1, ..Ask::default() }
}

impl Rig<Frwr> {
    pub fn frwr() -> Self {
        Rig::new(Frwr::default(), Caps::default(), Ask::default())
    }

    pub fn frwr_sq16() -> Self {
        let rig = Rig::new(Frwr::default(), Caps::default(), sq16());
        assert_eq!(rig.owner.send_queue(), (0, 16));
        rig
    }
}

impl<S: MemReg> Rig<S> {
    pub fn new(strategy: S, caps: Caps, ask: Ask) -> Self {
        let mut rig = Rig::unconnected(strategy, caps, ask);
        connect_pair(&mut rig.owner, &mut rig.peer).unwrap();
        rig.trace.take();
        rig
    }

    pub fn unconnected(strategy: S, caps: Caps, ask: Ask) -> Self {
        let fabric = Fabric::new(1);
        let node = fabric.add_node("owner", caps);
        let peer_node = fabric.add_node("peer", Caps::default());
        let (plan, trace) = (FaultPlan::new(), Trace::new());
        let device = Traced::new(Faulty::new(node.clone(), plan.clone()), trace.clone());
        let options = OpenOptions { ask, ..OpenOptions::default() };
        let owner = Transport::open(device, strategy, &options).unwrap();
        let peer = OpenOptions { ask: Ask { credits: 512, ..Ask::default() }, ..options };
        let peer = Transport::open(peer_node.clone(), Fmr::default(), &peer).unwrap();
        Rig { owner, peer, plan, trace, node, peer_node, now: Tick(1) }
    }

    pub fn settle(&mut self) {
        settle(self.now, &mut [&mut self.owner, &mut self.peer]).unwrap();
    }

    /// Exposes a new buffer of `len` bytes of `fill` and posts its registration.
    pub fn exposed(&mut self, len: usize, fill: u8, grant: Grant) -> (Exposed, Segment) {
        let mut buf = DmaBuf::new(len).unwrap();
        buf.fill(fill);
        let e = self.owner.expose(buf, grant).unwrap();
        self.owner.flush().unwrap();
        self.settle();
        let s = self.owner.segments(&e).unwrap()[0];
        (e, s)
    }

    /// The peer writes `bytes` and waits.
    pub fn peer_write(&mut self, seg: &Segment, at: u64, bytes: &[u8]) -> Result<u64, AccessError> {
        let buf = DmaBuf::from_bytes(bytes).unwrap();
        let op = self.peer.write(seg, at, buf).unwrap();
        self.settle();
        self.peer.take(op).unwrap().result
    }

    /// The peer reads `len` bytes and waits.
    pub fn peer_read(
        &mut self,
        seg: &Segment,
        at: u64,
        len: usize,
    ) -> Result<Vec<u8>, AccessError> {
        let op = self.peer.read(seg, at, DmaBuf::new(len).unwrap()).unwrap();
        self.settle();
        let done = self.peer.take(op).unwrap();
        done.result.map(|_| done.buffers.into_first().unwrap().to_vec())
    }

    /// Revokes, waits and returns the bytes.
    pub fn back(&mut self, e: Exposed) -> Buffers {
        self.owner.revoke(&e, NoReply::Unmarked).unwrap();
        self.settle();
        self.owner.reclaim(e).unwrap()
    }

    /// The status with which the peer's write of one byte ends; the connection is gone afterwards
    /// if it is an error.
    pub fn probe(&mut self, seg: &Segment) -> WcStatus {
        match self.peer_write(seg, 0, &[0xee]) {
            Ok(_) => WcStatus::Success,
            Err(e) => e.wc.status,
        }
    }

    /// Takes the connection down on both sides and up again.
    pub fn reconnect(&mut self) {
        self.owner.disconnect();
        self.peer.disconnect();
        self.settle();
        self.owner.reconnect().unwrap();
        self.peer.reconnect().unwrap();
        connect_pair(&mut self.owner, &mut self.peer).unwrap();
    }

    /// The segment as a peer would forge it for the connection of today.
    pub fn forged(&self, old: &Segment) -> Segment {
        Segment { epoch: self.owner.epoch(), ..*old }
    }

    pub fn is_down(&self) -> bool {
        matches!(self.owner.state(), State::Down(_))
    }

    /// Nothing is left of all exposures: no live key, no mapping but the message buffers, nothing
    /// leaked.
    #[track_caller]
    pub fn assert_clean(&self) {
        let (s, c) = (self.owner.stats(), self.node.counters());
        assert_eq!((s.exposures_now, s.bytes_leaked, s.regions_leaked_now), (0, 0, 0));
        assert_eq!((c.fast_mrs_valid, c.mapped_ranges, c.iommu_faults), (0, 2, 0));
        let audit = memreg::audit::audit(&self.owner.ledger().to_string()).unwrap();
        assert!(audit.violations.is_empty(), "{audit}");
        assert_eq!(audit.live, 0, "{audit}");
    }
}

/// The WRs of every post in a trace.
pub fn posts(calls: &[Call]) -> Vec<Vec<Wr>> {
    let posted = |c: &Call| match c {
        Call::PostSend(wrs, n) => Some(wrs[..*n].to_vec()),
        _ => None,
    };
    calls.iter().filter_map(posted).collect()
}

pub fn is_inv(wr: &Wr) -> bool {
    matches!(wr.op, WrOp::LocalInv(_))
}
