//! The smallest core that still has everything: a send queue of four, two regions, two exposures.

use super::book::KeyBook;
use memreg_core::DmaBuf;
use memreg_core::device::fault::{FaultPlan, Faulty};
use memreg_core::device::sim::{Fabric, SimDevice};
use memreg_core::device::trace::{Call, Trace, Traced};
use memreg_core::device::{Caps, Device, DeviceError, Wc, WrOp};
use memreg_core::drive::{connect_pair, settle};
use memreg_core::memreg::{
    Control, Event, MapError, MemReg, Poison, RegionId, Reject, SegList, WrBatch,
};
use memreg_core::sizing::{Ask, Limits, SizeError};
use memreg_core::transport::{
    Exposed, ExposureState, LocalOp, NoReply, OpenOptions, Reply, State, Transport,
};
use memreg_core::types::{Grant, QpId, Segment, Tick, WrId};
use memreg_strategies::{Fmr, Frwr};
use std::fmt::Write;

/// `frwr` on queues of four.
pub struct Small(Frwr);

impl MemReg for Small {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn check(&self, caps: &Caps) -> Result<(), Reject> {
        self.0.check(caps)
    }

    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
        let limits = self.0.open(caps, ask)?;
        Ok(Limits {
            regions_per_request: 1,
            wr_per_request: 3,
            credits: 1,
            max_send_wr: 4,
            max_recv_wr: 2,
            cq_entries: 6,
            ..limits
        })
    }

    fn fill(&mut self, ctl: &mut dyn Control, regions: usize) -> Result<(), DeviceError> {
        self.0.fill(ctl, regions)
    }

    fn map(
        &mut self,
        ctl: &mut dyn Control,
        segs: &SegList<'_>,
        out: &mut WrBatch,
    ) -> Result<(), MapError> {
        self.0.map(ctl, segs, out)
    }

    fn unmap(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        out: &mut WrBatch,
    ) -> Result<(), Poison> {
        self.0.unmap(ctl, live, out)
    }

    fn on_event(&mut self, region: RegionId, event: Event) -> Result<(), Poison> {
        self.0.on_event(region, event)
    }

    fn recover(&mut self, ctl: &mut dyn Control, budget: usize) -> Result<usize, DeviceError> {
        self.0.recover(ctl, budget)
    }

    fn on_drained(&mut self) {
        self.0.on_drained();
    }
}

/// One move in the small world; `u8` says which of the two exposures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {
    Expose(usize),
    Flush,
    /// A message whose reply may invalidate the exposure.
    Mark(usize),
    Revoke(usize),
    RevokeSure(usize),
    Cancel(usize),
    Drop(usize),
    Reclaim(usize),
    Run,
    Poll,
    /// The peer invalidates the exposure's key: rightly, twice, or before it is registered.
    Invalidate(usize),
    PeerWrites(usize),
    PeerPolls,
    /// The QP goes to error: what is queued is flushed.
    Fail,
    Disconnect,
    Reconnect,
}

pub const MOVES: [Move; 25] = [
    Move::Expose(0),
    Move::Expose(1),
    Move::Flush,
    Move::Mark(0),
    Move::Mark(1),
    Move::Revoke(0),
    Move::Revoke(1),
    Move::RevokeSure(0),
    Move::RevokeSure(1),
    Move::Cancel(0),
    Move::Cancel(1),
    Move::Drop(0),
    Move::Drop(1),
    Move::Reclaim(0),
    Move::Reclaim(1),
    Move::Run,
    Move::Poll,
    Move::Invalidate(0),
    Move::Invalidate(1),
    Move::PeerWrites(0),
    Move::PeerWrites(1),
    Move::PeerPolls,
    Move::Fail,
    Move::Disconnect,
    Move::Reconnect,
];

/// An exposure and what is known of it.
struct Slot {
    handle: Exposed,
    seg: Segment,
    marked: bool,
    invalidated: bool,
}

/// An owner with two exposures at most, and a peer.
pub struct SmallWorld {
    fabric: Fabric,
    node: SimDevice,
    owner: Transport<Traced<Faulty<SimDevice>>, Small>,
    peer: Transport<SimDevice, Fmr>,
    trace: Trace,
    /// WRs on the send queue as the calls show: what they are and for which key index.
    queue: Vec<(WrId, char, u32)>,
    slots: [Option<Slot>; 2],
    writes: Vec<LocalOp>,
    book: KeyBook,
    lives: u32,
}

impl SmallWorld {
    pub fn new(windows: bool) -> SmallWorld {
        let mut caps = Caps { max_mr: 4, ..Caps::default() };
        if windows {
            caps.max_fast_reg_page_list_len = 0;
            (caps.mem_window_type_2b, caps.max_mw) = (true, 2);
        }
        let fabric = Fabric::new(1);
        let node = fabric.add_node("owner", caps);
        let ask = Ask { max_message_bytes: 64, max_payload_bytes: 4096, ..Ask::default() };
        let options = OpenOptions { ask, drain_limit_ns: 100, ..OpenOptions::default() };
        let trace = Trace::new();
        let device = Traced::new(Faulty::new(node.clone(), FaultPlan::new()), trace.clone());
        let owner = Transport::open(device, Small(Frwr::new()), &options).unwrap();
        let few = OpenOptions { ask: Ask { credits: 3, ..ask }, ..options };
        let peer = fabric.add_node("peer", Caps::default());
        let peer = Transport::open(peer, Fmr::new(), &few).unwrap();
        let slots = [None, None];
        let (book, queue, writes) = (KeyBook::default(), vec![], vec![]);
        let mut w =
            SmallWorld { fabric, node, owner, peer, trace, queue, slots, writes, book, lives: 1 };
        connect_pair(&mut w.owner, &mut w.peer).unwrap();
        w.trace.take();
        w
    }

    /// Makes a move; one that does not apply here changes nothing.
    pub fn make(&mut self, m: Move) {
        self.try_move(m);
        self.follow_queue();
        self.check(m);
    }

    fn try_move(&mut self, m: Move) {
        match m {
            Move::Expose(i) => {
                self.expose(i);
            }
            Move::Flush => drop(self.owner.flush()),
            Move::Mark(i) => {
                let Some(slot) = self.slots[i].as_mut().filter(|s| !s.marked) else { return };
                let marks = [&slot.handle];
                slot.marked = self.owner.send(b"", Reply::MayInvalidate(&marks)).is_ok();
            }
            Move::Revoke(i) => {
                self.revoke(i, NoReply::Unmarked);
            }
            Move::RevokeSure(i) => {
                self.revoke(i, NoReply::NoneCanCome);
            }
            Move::Cancel(i) => {
                if let Some(slot) = &self.slots[i] {
                    drop(self.owner.cancel(&slot.handle));
                }
            }
            Move::Drop(i) => drop(self.slots[i].take()),
            Move::Reclaim(i) => {
                self.reclaim(i);
            }
            Move::Run => {
                let _ = self.fabric.step();
            }
            Move::Poll => drop(self.owner.poll(Tick(0)).unwrap()),
            Move::Invalidate(i) => {
                let Some(slot) = self.slots[i].as_mut() else { return };
                slot.invalidated |= self.peer.send_with_inv(b"", &slot.seg).is_ok();
            }
            Move::PeerWrites(i) => {
                if let Some(slot) = self.slots[i].as_ref().filter(|_| self.writes.is_empty()) {
                    let buf = DmaBuf::from_bytes(&[1]).unwrap();
                    self.writes.extend(self.peer.write(&slot.seg, 0, buf).ok());
                }
            }
            Move::PeerPolls => {
                self.peer.poll(Tick(0)).unwrap();
                self.peer.recv(&mut vec![]);
                self.owner.recv(&mut vec![]);
                self.take_writes();
            }
            Move::Fail => {
                if let Some(qp) = self.owner.queue_pair() {
                    let _ = self.node.qp_to_err(qp);
                }
            }
            Move::Disconnect => self.owner.disconnect(),
            Move::Reconnect => self.reconnect(),
        }
    }

    fn expose(&mut self, i: usize) -> bool {
        if self.slots[i].is_some() {
            return false;
        }
        let Ok(handle) = self.owner.expose(DmaBuf::new(8).unwrap(), Grant::PeerWrites) else {
            return false;
        };
        let seg = self.owner.segments(&handle).unwrap()[0];
        self.slots[i] = Some(Slot { handle, seg, marked: false, invalidated: false });
        true
    }

    fn revoke(&mut self, i: usize, reply: NoReply<'_>) -> bool {
        self.slots[i].as_ref().is_some_and(|slot| self.owner.revoke(&slot.handle, reply).is_ok())
    }

    fn reclaim(&mut self, i: usize) -> bool {
        let Some(slot) = self.slots[i].take() else { return false };
        match self.owner.reclaim(slot.handle) {
            Ok(back) => back.count() == 1,
            Err(e) => {
                self.slots[i] = Some(Slot { handle: e.exposed, ..slot });
                false
            }
        }
    }

    fn take_writes(&mut self) {
        for op in std::mem::take(&mut self.writes) {
            if let Err(e) = self.peer.take(op) {
                self.writes.push(e.op);
            }
        }
    }

    /// Both ends go down and up again; once, so that the states are finite.
    fn reconnect(&mut self) {
        if self.lives > 1 || !matches!(self.owner.state(), State::Down(_)) {
            return;
        }
        self.lives += 1;
        self.peer.disconnect();
        settle(Tick(0), &mut [&mut self.owner, &mut self.peer]).unwrap();
        self.take_writes();
        self.owner.reconnect().unwrap();
        self.peer.reconnect().unwrap();
        connect_pair(&mut self.owner, &mut self.peer).unwrap();
    }

    /// Keeps the list of what is on the send queue from the calls to the device alone.
    fn follow_queue(&mut self) {
        for call in self.trace.take() {
            match call {
                Call::PostSend(wrs, posted) => {
                    self.queue.extend(wrs.iter().take(posted).map(|wr| {
                        let (kind, key) = match wr.op {
                            WrOp::RegMr { rkey, .. } => ('R', rkey.index()),
                            WrOp::BindMw { rkey, .. } => ('B', rkey.index()),
                            WrOp::LocalInv(rkey) => ('I', rkey.index()),
                            _ => ('S', 0),
                        };
                        let kind = if wr.signaled { kind.to_ascii_lowercase() } else { kind };
                        (wr.wr_id, kind, key)
                    }));
                }
                Call::Wc(wc) => {
                    let at = self.queue.iter().position(|w| w.0 == Wc::wr_id(&wc));
                    self.queue.drain(..at.map_or(0, |i| i + 1));
                }
                Call::DestroyQp(_) => self.queue.clear(),
                _ => {}
            }
        }
    }

    /// What must hold after every move.
    fn check(&mut self, m: Move) {
        self.book.read(self.owner.ledger());
        let c = self.node.counters();
        assert_eq!(c.iommu_faults, 0, "{m:?}: a live key reached memory that was taken back");
        let valid = c.fast_mrs_valid + c.mws_bound;
        assert!(valid <= self.book.live_by_wr(), "{m:?}: a dead key is valid on the device");
        assert!(c.fast_mrs + c.mws <= 2, "{m:?}: more than two regions");
        let (outstanding, depth) = self.owner.send_queue();
        assert!(outstanding <= depth && depth == 4, "{m:?}: {outstanding} of {depth}");
        for slot in self.slots.iter().flatten() {
            let state = self.owner.exposure_state(&slot.handle).unwrap();
            let live = self.book.is_live(slot.seg.rkey.to_bits());
            assert!(state != ExposureState::Fenced || !live, "{m:?}: fenced with a live key");
        }
        let s = self.owner.stats();
        assert_eq!((s.bytes_leaked, s.regions_leaked_now), (0, 0), "{m:?}");
    }

    /// Everything that can make a difference later, without numbers that only count up.
    pub fn fingerprint(&self) -> String {
        let mut f = String::new();
        let c = self.node.counters();
        let ran = c.reg_mrs + c.binds + c.local_invs + c.sends + c.rdma_writes;
        let ran = ran + c.send_errors + c.sends_flushed;
        let qp = |q: Option<QpId>, d: &SimDevice| q.map(|q| d.qp_state(q).ok());
        let _ = write!(
            f,
            "{:?} {:?} {} {:?} {:?} {} ",
            std::mem::discriminant(self.owner.state()),
            std::mem::discriminant(self.peer.state()),
            self.lives,
            qp(self.owner.queue_pair(), &self.node),
            qp(self.peer.queue_pair(), self.peer.device()),
            c.send_wrs_posted - ran,
        );
        let label = |key: u32| {
            let of = |s: &Option<Slot>| s.as_ref().is_some_and(|s| s.seg.rkey.index() == key);
            self.slots.iter().position(of)
        };
        for &(_, kind, key) in &self.queue {
            let _ = write!(f, "{kind}{:?}", label(key));
        }
        for slot in &self.slots {
            let Some(s) = slot else {
                f.push_str(" -");
                continue;
            };
            let state = self.owner.exposure_state(&s.handle).unwrap();
            let live = self.book.is_live(s.seg.rkey.to_bits());
            let current = s.seg.epoch == self.owner.epoch();
            let _ = write!(f, " {state:?}{live}{current}{}{}", s.marked, s.invalidated);
        }
        let frwr = self.owner.strategy().0.stats();
        let (p, s) = (self.peer.device().counters(), self.owner.stats());
        let _ = write!(
            f,
            " {} {} {} {} {} {} {} {:?} {} {} {}",
            frwr.free,
            frwr.busy,
            frwr.condemned,
            c.fast_mrs_valid + c.mws_bound,
            s.exposures_now,
            c.wcs - s.wcs.min(c.wcs),
            self.owner.messages_waiting(),
            self.peer.send_queue(),
            p.wcs - self.peer.stats().wcs.min(p.wcs),
            self.peer.messages_waiting(),
            self.writes.len(),
        );
        f
    }

    /// From here, everything comes to its end, and a new connection works.
    pub fn come_to_rest(mut self) {
        self.owner.disconnect();
        self.peer.disconnect();
        settle(Tick(1000), &mut [&mut self.owner, &mut self.peer]).unwrap();
        assert!(matches!(self.owner.state(), State::Down(_)), "{:?}", self.owner.state());
        for i in 0..2 {
            let had = self.slots[i].is_some();
            assert_eq!(self.reclaim(i), had, "not reclaimed after the end");
        }
        self.owner.poll(Tick(1000)).unwrap();
        assert_eq!(self.owner.stats().exposures_now, 0, "an exposure is left over");
        self.take_writes();
        self.owner.reconnect().unwrap();
        self.peer.reconnect().unwrap();
        connect_pair(&mut self.owner, &mut self.peer).unwrap();
        assert!(self.expose(0) && self.owner.flush().is_ok());
        settle(Tick(1000), &mut [&mut self.owner, &mut self.peer]).unwrap();
        assert!(self.revoke(0, NoReply::Unmarked));
        settle(Tick(1000), &mut [&mut self.owner, &mut self.peer]).unwrap();
        assert!(self.reclaim(0), "a new connection does not work");
    }
}
