//! The smallest core that still has everything: a send queue of four, two regions, two exposures
//! with a handle, and a peer that keeps to no rule.

use super::book::KeyBook;
use super::four::Small;
use super::peer::Peer;
use memreg_core::DmaBuf;
use memreg_core::device::fault::{FaultPlan, Faulty};
use memreg_core::device::sim::{Fabric, SimDevice};
use memreg_core::device::trace::{Call, Trace, Traced};
use memreg_core::device::{Caps, Device, Wc, WrOp, errno};
use memreg_core::sizing::Ask;
use memreg_core::transport::error::Refusal;
use memreg_core::transport::{
    Exposed, ExposureState, Ledger, NoReply, OpenOptions, Reply, ReplyToken, State, Transport,
};
use memreg_core::types::{Epoch, Grant, Rkey, Segment, Tick, WrId};
use memreg_strategies::Frwr;

/// One move in the small world; `usize` says which of the two exposures.
///
/// A WR ends in success, in an error of its own, or flushed, as the state demands: `Run` is all
/// three. A move that is a row of others is left out: a peer that answers late answers later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {
    Expose(usize),
    Flush,
    /// The post of what is staged is refused.
    FlushRefused,
    /// A message whose reply may invalidate the exposure.
    Mark(usize),
    /// Its post is cut: what was staged goes, the message does not.
    MarkCut(usize),
    /// With the token of a reply that came after the mark, if there is one.
    Revoke(usize),
    /// On the caller's word, which may be wrong.
    RevokeSure(usize),
    RevokeRefused(usize),
    /// Both with one post, this one first, on the caller's word.
    RevokeBoth(usize),
    /// The post of both is cut after the first.
    RevokeBothCut(usize),
    Cancel(usize),
    Drop(usize),
    /// The owner's QP runs one WR, or flushes one.
    Run,
    Poll,
    /// A drain is given up: its limit passes.
    TimeOut,
    Recv,
    Recover,
    PeerSends,
    /// The peer invalidates the exposure's key: rightly, twice, or before it is registered.
    PeerInvalidates(usize),
    /// The peer writes with the exposure's key, live or dead.
    PeerWrites(usize),
    /// The same with a key that is dead for good.
    PeerInvalidatesDead,
    PeerWritesDead,
    PeerLeaves,
    /// The owner's QP goes to error: what is queued is flushed.
    Fail,
    Disconnect,
    Reconnect,
}

pub const MOVES: [Move; 38] = [
    Move::Expose(0),
    Move::Expose(1),
    Move::Flush,
    Move::FlushRefused,
    Move::Mark(0),
    Move::Mark(1),
    Move::MarkCut(0),
    Move::MarkCut(1),
    Move::Revoke(0),
    Move::Revoke(1),
    Move::RevokeSure(0),
    Move::RevokeSure(1),
    Move::RevokeRefused(0),
    Move::RevokeRefused(1),
    Move::RevokeBoth(0),
    Move::RevokeBoth(1),
    Move::RevokeBothCut(0),
    Move::RevokeBothCut(1),
    Move::Cancel(0),
    Move::Cancel(1),
    Move::Drop(0),
    Move::Drop(1),
    Move::PeerInvalidatesDead,
    Move::PeerWritesDead,
    Move::Run,
    Move::Poll,
    Move::TimeOut,
    Move::Recv,
    Move::Recover,
    Move::PeerSends,
    Move::PeerInvalidates(0),
    Move::PeerInvalidates(1),
    Move::PeerWrites(0),
    Move::PeerWrites(1),
    Move::PeerLeaves,
    Move::Fail,
    Move::Disconnect,
    Move::Reconnect,
];

/// An exposure whose handle is held, and what is known of it.
pub struct Slot {
    pub handle: Exposed,
    pub seg: Segment,
    /// Counts exposures.
    pub serial: u64,
    /// Messages received when a marked message went out.
    pub marked: Option<u64>,
}

/// An exposure whose handle was dropped, until its key is dead.
pub struct Dropped {
    pub seg: Segment,
    pub serial: u64,
    pub marked: bool,
}

/// A WR on the owner's queue.
pub struct Queued {
    pub wr_id: WrId,
    /// What it does; in lower case if it is signaled.
    pub kind: char,
    pub key: u32,
}

/// An owner with two exposures at most, and a peer.
pub struct SmallWorld {
    pub node: SimDevice,
    pub owner: Transport<Traced<Faulty<SimDevice>>, Small>,
    pub peer: Peer,
    faults: FaultPlan,
    trace: Trace,
    /// WRs on the send queue as the calls show, those too that have run and are not retired.
    pub queue: Vec<Queued>,
    pub slots: [Option<Slot>; 2],
    pub dropped: Vec<Dropped>,
    /// The last key that is dead for good; at first one that nothing has.
    dead: Segment,
    /// Handles of fenced exposures that were dropped: the next poll frees the slots.
    unswept: u64,
    /// Messages of this connection that have arrived, and were taken.
    pub arrived: u64,
    pub taken: u64,
    /// Of the message taken last.
    token: Option<ReplyToken>,
    pub book: KeyBook,
    now: Tick,
    serial: u64,
}

impl SmallWorld {
    pub fn new(windows: bool) -> SmallWorld {
        // Two are for messages, and two for page lists.
        let mut caps = Caps { max_mr: 4, ..Caps::default() };
        if windows {
            // As many as parents of windows need that are not deregistered at once.
            caps = Caps { max_fast_reg_page_list_len: 0, max_mr: 1000, max_mw: 2, ..caps };
            caps.mem_window_type_2b = true;
        }
        let fabric = Fabric::new(1);
        let node = fabric.add_node("owner", caps);
        let ask = Ask { max_message_bytes: 64, max_payload_bytes: 4096, ..Ask::default() };
        let options = OpenOptions { ask, drain_limit_ns: LIMIT_NS, ..OpenOptions::default() };
        let (trace, faults) = (Trace::new(), FaultPlan::new());
        let device = Traced::new(Faulty::new(node.clone(), faults.clone()), trace.clone());
        let owner = Transport::open(device, Small(Frwr::new()), &options).unwrap();
        let mut world = SmallWorld {
            node,
            owner,
            peer: Peer::new(&fabric),
            faults,
            trace,
            queue: vec![],
            slots: [None, None],
            dropped: vec![],
            dead: Segment {
                rkey: Rkey::from_bits(0x100),
                addr: 0,
                len: 8,
                grant: Grant::PeerWrites,
                epoch: Epoch(0),
            },
            unswept: 0,
            arrived: 0,
            taken: 0,
            token: None,
            book: KeyBook::default(),
            now: Tick(0),
            serial: 0,
        };
        world.connect();
        world.trace.take();
        world
    }

    /// How its keys are granted.
    pub fn kind(&self) -> &'static str {
        if self.node.caps().max_mw > 0 { "windows" } else { "page lists" }
    }

    pub fn ledger(&self) -> &Ledger {
        self.owner.ledger()
    }

    /// Makes a move; one that does not apply here changes nothing.
    pub fn make(&mut self, m: Move) {
        self.try_move(m);
        self.follow();
        self.check(m);
        self.take_fenced();
    }

    /// Makes a move of which it is known that nothing goes wrong.
    pub fn make_again(&mut self, m: Move) {
        self.try_move(m);
        self.follow();
        self.take_fenced();
    }

    fn try_move(&mut self, m: Move) {
        match m {
            Move::Expose(i) => {
                self.expose(i);
            }
            Move::Flush => drop(self.owner.flush()),
            Move::FlushRefused => self.with_cut(0, |w| drop(w.owner.flush())),
            Move::Mark(i) => self.mark(i),
            Move::MarkCut(i) => self.with_cut(1, |w| w.mark(i)),
            Move::Revoke(i) => {
                self.revoke(i);
            }
            Move::RevokeSure(i) => self.revoke_sure(i),
            Move::RevokeBoth(i) => self.revoke_both(i),
            Move::RevokeBothCut(i) => self.with_cut(1, |w| w.revoke_both(i)),
            Move::RevokeRefused(i) => self.with_cut(0, |w| w.revoke_sure(i)),
            Move::Cancel(i) => {
                if let Some(slot) = &self.slots[i] {
                    drop(self.owner.cancel(&slot.handle));
                }
            }
            Move::Drop(i) => self.drop_handle(i),
            Move::Run => {
                self.run();
            }
            Move::Poll => {
                self.poll();
            }
            Move::TimeOut => self.time_out(),
            Move::Recv => self.recv(),
            Move::Recover => drop(self.owner.recover(usize::MAX)),
            Move::PeerSends => self.peer.sends(None),
            Move::PeerInvalidates(i) => {
                if let Some(slot) = &self.slots[i] {
                    self.peer.sends(Some(slot.seg.rkey));
                }
            }
            Move::PeerWrites(i) => {
                if let Some(slot) = &self.slots[i] {
                    self.peer.writes(&slot.seg, 1);
                }
            }
            Move::PeerInvalidatesDead => self.peer.sends(Some(self.dead.rkey)),
            Move::PeerWritesDead => self.peer.writes(&self.dead, 1),
            Move::PeerLeaves => self.peer.leave(),
            Move::Fail => {
                if let Some(qp) = self.owner.queue_pair() {
                    let _ = self.node.qp_to_err(qp);
                }
            }
            Move::Disconnect => self.owner.disconnect(),
            Move::Reconnect => {
                if matches!(self.owner.state(), State::Down(_)) {
                    self.owner.reconnect().unwrap();
                    self.connect();
                }
            }
        }
    }

    /// While the connection goes down, messages that are flushed come with what follows them: they
    /// change nothing.
    fn run(&mut self) -> bool {
        let Some(qp) = self.owner.queue_pair() else { return false };
        let draining = *self.owner.state() == State::Draining;
        while draining && self.next_changes_nothing() {
            self.node.step_qp(qp);
        }
        let ran = self.node.step_qp(qp);
        self.peer.receive();
        ran
    }

    /// Unless an invalidation in front of it ran unsignaled: its end is heard of by the completion
    /// of a later WR, whatever that is.
    fn next_changes_nothing(&self) -> bool {
        let view = self.owner.queue_pair().and_then(|qp| self.node.look_at(qp));
        let head = view.and_then(|v| v.sends.first().copied());
        let head = self.queue.iter().position(|q| Some(q.wr_id) == head);
        let Some((before, head)) = head.map(|at| (&self.queue[..at], &self.queue[at])) else {
            return false;
        };
        let wcs = self.node.waiting_wcs(self.owner.completion_queue());
        let heard = |q: &Queued| wcs.iter().any(|wc| wc.wr_id() == q.wr_id);
        let unheard = |q: &Queued| q.kind == 'I' && self.is_open(q) && !heard(q);
        !"Ww".contains(head.kind) && !self.is_open(head) && !before.iter().any(unheard)
    }

    /// Whether a WR registers or invalidates a key of an exposure that is open.
    pub fn is_open(&self, q: &Queued) -> bool {
        let held = self.slots.iter().flatten().map(|s| key(&s.seg));
        let mut open = held.chain(self.dropped.iter().map(|d| key(&d.seg)));
        "RrIi".contains(q.kind) && open.any(|k| k == q.key)
    }

    fn connect(&mut self) {
        let peer = self.peer.endpoint();
        let owner = self.owner.endpoint().unwrap();
        self.owner.connect(peer).unwrap();
        self.peer.connect(owner);
        (self.arrived, self.taken, self.token) = (0, 0, None);
    }

    fn expose(&mut self, i: usize) -> bool {
        if self.slots[i].is_some() {
            return false;
        }
        let Ok(handle) = self.owner.expose(DmaBuf::new(8).unwrap(), Grant::PeerWrites) else {
            return false;
        };
        let seg = self.owner.segments(&handle).unwrap()[0];
        self.serial += 1;
        self.slots[i] = Some(Slot { handle, seg, serial: self.serial, marked: None });
        true
    }

    /// Of the post that `call` makes, if it makes one, the device takes so many WRs at most, and
    /// never all.
    fn with_cut(&mut self, after: usize, call: impl FnOnce(&mut SmallWorld)) {
        self.faults.refuse_post(1, after, errno::ENOMEM);
        call(self);
        self.faults.heal();
    }

    /// Once an exposure: a second mark would only put the reply further away.
    fn mark(&mut self, i: usize) {
        let arrived = self.arrived;
        let Some(slot) = self.slots[i].as_mut().filter(|s| s.marked.is_none()) else { return };
        let state = self.owner.exposure_state(&slot.handle).unwrap();
        if !matches!(state, ExposureState::Staged | ExposureState::Exposed) {
            return;
        }
        let marks = [&slot.handle];
        if self.owner.send(b"", Reply::MayInvalidate(&marks)).is_ok() {
            slot.marked = Some(arrived);
        }
    }

    /// Whether a reply to the marked message may have been the one that was taken last.
    pub fn has_token(&self, slot: &Slot) -> bool {
        slot.marked.is_some_and(|at| self.token.is_some() && self.taken > at)
    }

    fn revoke(&mut self, i: usize) -> bool {
        let Some(slot) = &self.slots[i] else { return false };
        let state = self.owner.exposure_state(&slot.handle).unwrap();
        let reply = match &self.token {
            Some(token) if self.has_token(slot) => NoReply::Arrived(token),
            _ => NoReply::Unmarked,
        };
        let waits = slot.marked.is_some() && matches!(reply, NoReply::Unmarked);
        let r = self.owner.revoke(&slot.handle, reply);
        let open = waits && state == ExposureState::Exposed && self.book.is_live(key(&slot.seg));
        assert!(!open || r == Err(Refusal::ReplyOutstanding), "rule 5: {r:?}");
        let proven = matches!(reply, NoReply::Arrived(_)) && *self.owner.state() == State::Up;
        assert!(!proven || r.is_ok(), "a token was not believed: {r:?}");
        r.is_ok()
    }

    fn revoke_sure(&mut self, i: usize) {
        if let Some(slot) = &self.slots[i] {
            drop(self.owner.revoke(&slot.handle, NoReply::NoneCanCome));
        }
    }

    fn revoke_both(&mut self, first: usize) {
        if let (Some(a), Some(b)) = (&self.slots[first], &self.slots[1 - first]) {
            drop(self.owner.revoke_all([&a.handle, &b.handle], NoReply::NoneCanCome));
        }
    }

    fn drop_handle(&mut self, i: usize) {
        if let Some(Slot { seg, serial, marked, .. }) = self.slots[i].take() {
            self.dropped.push(Dropped { seg, serial, marked: marked.is_some() });
        }
    }

    /// What is fenced is taken at once: that concerns nobody else, so it could be at any time. The
    /// bytes of the first come back, the handle of the second is dropped.
    fn take_fenced(&mut self) {
        for i in 0..2 {
            let Some(slot) = &self.slots[i] else { continue };
            if self.owner.exposure_state(&slot.handle) != Ok(ExposureState::Fenced) {
                continue;
            }
            self.dead = slot.seg;
            if i == 0 {
                assert!(self.reclaim(i), "fenced and not returned");
            } else {
                self.slots[i] = None;
                self.unswept += 1;
            }
        }
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

    /// True if anything happened. What was dropped and never posted is ended by it.
    fn poll(&mut self) -> bool {
        let moved = self.owner.poll(self.now).unwrap().any();
        self.book.read(self.owner.ledger());
        self.dropped.retain(|d| self.book.is_live(key(&d.seg)));
        self.unswept = 0;
        moved
    }

    fn time_out(&mut self) {
        if *self.owner.state() == State::Draining {
            self.poll();
            self.now = self.now.after(LIMIT_NS);
            self.poll();
            assert_ne!(*self.owner.state(), State::Draining, "a drain has no end");
        }
    }

    fn recv(&mut self) {
        if let Some(received) = self.owner.recv(&mut vec![]) {
            self.taken += 1;
            self.token = Some(received.token);
        }
    }

    /// Keeps the lists from the calls to the device and the ledger alone.
    fn follow(&mut self) {
        for call in self.trace.take() {
            match call {
                Call::PostSend(wrs, posted) => {
                    self.queue.extend(wrs.iter().take(posted).map(|wr| {
                        let (kind, key) = match wr.op {
                            WrOp::RegMr { rkey, .. } | WrOp::BindMw { rkey, .. } => ('R', rkey),
                            WrOp::LocalInv(rkey) => ('I', rkey),
                            WrOp::RdmaWrite { rkey, .. } => ('W', rkey),
                            WrOp::Send(_) => ('S', NO_KEY),
                            ref other => panic!("the owner posted {other:?}"),
                        };
                        let kind = if wr.signaled { kind.to_ascii_lowercase() } else { kind };
                        Queued { wr_id: wr.wr_id, kind, key: key.to_bits() }
                    }));
                }
                Call::Wc(wc) => {
                    let at = self.queue.iter().position(|w| w.wr_id == Wc::wr_id(&wc));
                    self.queue.drain(..at.map_or(0, |i| i + 1));
                    self.arrived += u64::from(at.is_none() && wc.is_success());
                }
                Call::DestroyQp(_) => self.queue.clear(),
                _ => {}
            }
        }
        self.book.read(self.owner.ledger());
        let (up, book) = (*self.owner.state() == State::Up, &self.book);
        // One that was never posted is ended by the next poll, or with the connection.
        let waits = |d: &Dropped| book.grants(key(&d.seg)) == 0 && up;
        self.dropped.retain(|d| book.is_live(key(&d.seg)) || waits(d));
    }

    /// What must hold after every move.
    fn check(&mut self, m: Move) {
        let c = self.node.counters();
        assert_eq!(c.iommu_faults, 0, "{m:?}: a live key reached memory that was taken back");
        let valid = c.fast_mrs_valid + c.mws_bound;
        assert!(valid <= self.book.live_by_wr(), "{m:?}: a dead key is valid on the device");
        assert!(c.fast_mrs + c.mws <= 2, "{m:?}: more than two regions");
        let (outstanding, depth) = self.owner.send_queue();
        assert!(outstanding <= depth && depth == 4, "{m:?}: {outstanding} of {depth}");
        assert_eq!(outstanding, self.queue.len(), "{m:?}: the queue is not what was posted");
        for slot in self.slots.iter().flatten() {
            let state = self.owner.exposure_state(&slot.handle).unwrap();
            let live = self.book.is_live(key(&slot.seg)) || self.node.opens(slot.seg.rkey);
            assert!(state != ExposureState::Fenced || !live, "{m:?}: fenced with a live key");
            let held = state == ExposureState::Staged || live;
            assert!(state == ExposureState::Fenced || held, "{m:?}: {state:?} without a key");
        }
        let s = self.owner.stats();
        assert_eq!((s.bytes_leaked, s.regions_leaked_now), (0, 0), "{m:?}");
        assert_eq!(s.wrs, c.send_wrs_posted, "{m:?}: WRs are miscounted");
        assert!(c.qps_destroyed_undrained <= s.drains_forced, "{m:?}: rule 8: not drained");
        let held = (self.slots.iter().flatten().count() + self.dropped.len()) as u64;
        assert_eq!(s.exposures_now, held + self.unswept, "{m:?}: exposures are miscounted");
    }

    /// From here, everything comes to its end, and a new connection works.
    pub fn come_to_rest(&mut self) {
        self.owner.disconnect();
        self.settle();
        assert!(matches!(self.owner.state(), State::Down(_)), "{:?}", self.owner.state());
        assert_eq!(self.book.live_by_wr(), 0, "a key outlives its connection");
        for i in 0..2 {
            let had = self.slots[i].is_some();
            assert_eq!(self.reclaim(i), had, "not reclaimed after the end");
        }
        self.poll();
        assert_eq!(self.owner.stats().exposures_now, 0, "an exposure is left over");
        self.make(Move::Reconnect);
        assert!(self.expose(0) && self.owner.flush().is_ok());
        self.settle();
        assert!(self.revoke(0));
        self.settle();
        assert!(self.reclaim(0), "a new connection does not work");
        self.follow();
    }

    /// The checker of traces agrees; it knows nothing of what this world knows.
    pub fn audit(&self) {
        let audit = memreg::audit::audit(&self.ledger().to_string()).unwrap();
        assert!(audit.violations.is_empty(), "{audit}");
    }

    fn settle(&mut self) {
        for _ in 0..ROUNDS {
            let ran = self.run();
            let moved = self.poll();
            self.follow();
            if !ran && !moved {
                return;
            }
        }
        panic!("not at rest after {ROUNDS} rounds");
    }
}

pub fn key(seg: &Segment) -> u32 {
    seg.rkey.to_bits()
}

const NO_KEY: Rkey = Rkey::from_bits(0);

/// How long a drain may wait, in the world's time.
const LIMIT_NS: u64 = 100;

/// Rounds within which everything must have ended.
const ROUNDS: usize = 30;
