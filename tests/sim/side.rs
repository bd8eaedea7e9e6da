//! One end of a connection: a transport, and everything that the program knows of it.

use super::book::KeyBook;
use super::bytes::{Part, Returned, Spare, Write, check_back, explained};
use super::liar::Honesty;
use super::plan::{Kind, SidePlan};
use fastrand::Rng;
use memreg_core::device::fault::{FaultPlan, Faulty};
use memreg_core::device::sim::SimDevice;
use memreg_core::transport::error::{BufferError, OpenError};
use memreg_core::transport::{
    Buffers, Exposed, ExposureState, LocalOp, ReplyToken, State, Transport,
};
use memreg_core::types::{Epoch, Grant, Segment};
use memreg_strategies::Strategy;
use std::collections::BTreeMap;

pub type Device = Faulty<SimDevice>;

/// One end.
pub struct Side {
    pub plan: SidePlan,
    pub node: SimDevice,
    /// The node was unplugged or its process killed; nothing new can be made on it.
    pub node_gone: bool,
    pub faults: FaultPlan,
    pub honesty: Honesty,
    pub t: Transport<Device, Strategy>,
    pub book: KeyBook,
    pub spare: Vec<Spare>,
    pub out: Vec<Lent>,
    /// Writes of the peer into exposures that came back before the writes had ended.
    pub past: BTreeMap<u64, Vec<Write>>,
    pub accesses: Vec<Access>,
    /// Exposures of the other side that it has told us of.
    pub told: Vec<u64>,
    /// Keys of this side that are dead.
    pub dead: Vec<Segment>,
    pub forgotten: u64,
    /// Of these, in the current epoch.
    pub forgotten_now: u64,
    pub messages: Sequence,
    pub bytes: Account,
}

/// Numbers of the messages in both directions.
#[derive(Default)]
pub struct Sequence {
    pub sent: u32,
    pub got: u32,
}

/// Where the bytes of this side went that its program no longer has.
#[derive(Default)]
pub struct Account {
    /// Did not come back with the rest: leaked by a device that kept its mapping.
    pub missing: u64,
    /// Left to the transport by dropping or forgetting the handle.
    pub left: u64,
}

/// An exposure whose handle the program has.
pub struct Lent {
    pub serial: u64,
    pub handle: Exposed,
    pub grant: Grant,
    pub segs: Vec<Segment>,
    pub parts: Vec<Part>,
    pub writes: Vec<Write>,
    pub state: ExposureState,
    /// A reply may invalidate a key of it.
    pub marked: bool,
    pub token: Option<ReplyToken>,
    /// The peer has been told in a message.
    pub told: bool,
    /// The peer has answered the message.
    pub answered: bool,
}

/// A read or write of the other side's memory, in flight.
pub struct Access {
    pub op: LocalOp,
    pub parts: Vec<Part>,
    pub what: What,
    pub serial: u64,
    pub id: u64,
}

/// What an access is to do.
pub enum What {
    Write,
    /// Bring these bytes.
    Read(Vec<u8>),
    /// Be refused: its key is dead, or not this connection's.
    Nothing {
        rkey: u32,
        grants: u64,
    },
}

impl Side {
    pub fn open(plan: SidePlan, node: SimDevice) -> Result<Side, OpenError> {
        Side::open_with(plan, node, FaultPlan::new())
    }

    pub fn open_with(
        plan: SidePlan,
        node: SimDevice,
        faults: FaultPlan,
    ) -> Result<Side, OpenError> {
        let device = Faulty::new(node.clone(), faults.clone());
        let honesty = Honesty::default();
        let strategy = plan.kind.build(plan.lies, honesty.clone());
        let t = Transport::open(device, strategy, &plan.options)?;
        Ok(Side {
            plan,
            node,
            node_gone: false,
            faults,
            honesty,
            t,
            book: KeyBook::default(),
            spare: vec![],
            out: vec![],
            past: BTreeMap::new(),
            accesses: vec![],
            told: vec![],
            dead: vec![],
            forgotten: 0,
            forgotten_now: 0,
            messages: Sequence::default(),
            bytes: Account::default(),
        })
    }

    pub fn is_up(&self) -> bool {
        *self.t.state() == State::Up
    }

    pub fn is_down(&self) -> bool {
        matches!(self.t.state(), State::Down(_))
    }

    pub fn physical(&self) -> bool {
        self.plan.kind == Kind::Physical
    }

    /// One to four buffers with odd ranges, of `total` bytes or a random number.
    pub fn take(&mut self, rng: &mut Rng, total: Option<usize>, longest: usize) -> Taken {
        let count = rng.usize(1..=4);
        let mut left = total.unwrap_or(usize::MAX);
        let mut taken = Taken { buffers: Buffers::new(), parts: vec![] };
        for i in 0..count {
            if left == 0 {
                break;
            }
            let last = i + 1 == count;
            let want = match total {
                Some(_) if last => left,
                Some(_) => rng.usize(1..=left),
                None => rng.usize(1..=longest),
            };
            let (offset, tail) = match rng.u32(..3) {
                0 => (0, 0),
                1 => (rng.usize(..600), rng.usize(..600)),
                _ => (rng.usize(..9), rng.usize(..9)),
            };
            let need = offset + want + tail;
            let fit = self.spare.iter().position(|s| s.buf.len() >= need);
            let spare = match fit {
                Some(i) if rng.bool() => self.spare.swap_remove(i),
                _ => Spare::new(need, rng.u8(..)),
            };
            let range = offset..offset + want;
            taken.parts.push(Part { shadow: spare.shadow, range: range.clone() });
            taken.buffers.push(spare.buf, range);
            left = left.saturating_sub(want);
        }
        taken
    }

    /// Takes buffers back that a call refused; nothing in them may have changed.
    pub fn refused(&mut self, parts: Vec<Part>, e: BufferError) {
        let before = self.bytes.missing;
        self.back(parts, e.buffers, |_, was, is| was == is);
        // Kept behind a key that did not end: freed with it, or leaked.
        self.bytes.left += self.bytes.missing - before;
        self.bytes.missing = before;
    }

    /// Takes buffers back and checks them.
    pub fn back(
        &mut self,
        parts: Vec<Part>,
        buffers: Buffers,
        allowed: impl Fn(usize, u8, u8) -> bool,
    ) {
        let Returned { spares, missing } = check_back(parts, buffers, allowed);
        self.bytes.missing += missing;
        self.spare.extend(spares);
        // The program frees what it does not need.
        while self.spare.len() > 10 {
            self.spare.swap_remove(0);
        }
    }

    /// Reclaims one exposure if it can be had; returns whether.
    pub fn reclaim(&mut self, index: usize) -> bool {
        let mut lent = self.out.swap_remove(index);
        match self.t.reclaim(lent.handle) {
            Ok(buffers) => {
                let ended = [ExposureState::Fenced, ExposureState::Held].contains(&lent.state);
                assert!(ended, "bytes came back unfenced");
                let whole = lent.state == ExposureState::Fenced;
                assert_eq!(whole, buffers.count() == lent.parts.len(), "a part is missing");
                let mut writes = std::mem::take(&mut lent.writes);
                note_arrivals(&lent.parts, &buffers, &mut writes);
                self.back(lent.parts, buffers, |p, was, is| explained(&writes, p, was, is));
                writes.retain(|w| !w.succeeded);
                if !writes.is_empty() && !self.physical() {
                    self.past.insert(lent.serial, writes);
                }
                true
            }
            Err(e) => {
                lent.handle = e.exposed;
                let held = lent.state == ExposureState::Held;
                assert_ne!(lent.state, ExposureState::Fenced, "fenced and not returned: {}", e.why);
                if held {
                    // The device kept all of it.
                    self.bytes.missing +=
                        lent.parts.iter().map(|p| p.shadow.len() as u64).sum::<u64>();
                    return true;
                }
                self.out.push(lent);
                false
            }
        }
    }

    /// Gives up a handle: the transport has the bytes until they are fenced.
    pub fn drop_handle(&mut self, index: usize) {
        let lent = self.out.swap_remove(index);
        self.bytes.left += lent.parts.iter().map(|p| p.shadow.len() as u64).sum::<u64>();
        drop(lent.handle);
    }

    pub fn forget_handle(&mut self, index: usize) {
        let lent = self.out.swap_remove(index);
        self.bytes.left += lent.parts.iter().map(|p| p.shadow.len() as u64).sum::<u64>();
        std::mem::forget(lent.handle);
        self.forgotten += 1;
        self.forgotten_now += 1;
    }

    /// The exposure of this serial whose handle is held.
    pub fn lent(&mut self, serial: u64) -> Option<&mut Lent> {
        self.out.iter_mut().find(|l| l.serial == serial)
    }

    /// Whether it has an access in flight to that exposure of the other side.
    pub fn is_using(&self, serial: u64) -> bool {
        self.accesses.iter().any(|a| a.serial == serial)
    }

    /// Bytes that are mapped for this side: at least, and at most.
    pub fn mapped_bytes(&self) -> (u64, u64) {
        let len = |parts: &[Part]| parts.iter().map(|p| p.shadow.len() as u64).sum::<u64>();
        let limits = self.t.limits();
        let slots = u64::from(limits.max_send_wr) + u64::from(limits.max_recv_wr);
        let messages = slots * u64::from(self.plan.options.ask.max_message_bytes);
        let open = |l: &&Lent| {
            !matches!(l.state, ExposureState::Fenced | ExposureState::Held) && !self.physical()
        };
        let lent: u64 = self.out.iter().filter(open).map(|l| len(&l.parts)).sum();
        let least = messages + 2 * limits.arena_bytes + lent;
        let under_way: u64 = self.accesses.iter().map(|a| len(&a.parts)).sum();
        (least, least + under_way + self.bytes.left + self.t.stats().bytes_leaked)
    }

    pub fn epoch(&self) -> Epoch {
        self.t.epoch()
    }

    /// After a (re)connect.
    pub fn connected(&mut self) {
        self.messages = Sequence::default();
        self.told.clear();
        self.forgotten_now = 0;
    }

    /// Nobody but the program may change what it has.
    pub fn check_spares(&self) {
        for s in &self.spare {
            assert!(s.buf[..] == s.shadow[..], "bytes changed in the program's hands");
        }
    }
}

/// Buffers for a call, and what the program remembers of them.
pub struct Taken {
    pub buffers: Buffers,
    pub parts: Vec<Part>,
}

/// For writes whose completion has not been seen: whether their bytes are there now. Later writes
/// over the same bytes hide that.
fn note_arrivals(parts: &[Part], buffers: &Buffers, writes: &mut [Write]) {
    if buffers.count() != parts.len() {
        return;
    }
    let now: Vec<u8> = buffers.iter().flat_map(|(b, r)| &b[r.clone()]).copied().collect();
    for i in 0..writes.len() {
        let (w, later) = (&writes[i], &writes[i + 1..]);
        let hidden = later
            .iter()
            .any(|l| l.payload.start < w.payload.end && w.payload.start < l.payload.end);
        let there = w.payload.clone().all(|p| now[p] == super::bytes::pattern(w.fill, p));
        writes[i].arrived = Some(hidden || there);
    }
}
