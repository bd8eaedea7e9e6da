//! The slots that hold buffers while something may reach them, and the handles that name the slots.

use super::buffers::{Buffers, Lent, Place};
use crate::device::WcError;
use crate::engine::ledger::KeyName;
use crate::memreg::{MAX_REGIONS, RegionId};
use crate::mutants::mutant;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering};
use crate::types::{Epoch, Grant, Rkey, Segment, Tick, TransportId};
use slotmap::{Key, SlotMap, new_key_type};
use std::ops::Range;

new_key_type! {
    /// Slot of an exposure.
    pub(crate) struct ExposureId;
    /// Slot of a read or write.
    pub(crate) struct LocalId;
}

/// What a handle and its slot share; slots recycle it.
#[derive(Debug)]
pub(crate) struct SlotFlag {
    abandoned: AtomicBool,
    /// Counts abandoned handles of the transport, so that `poll` looks only when there are any.
    bell: Arc<AtomicUsize>,
}

impl SlotFlag {
    pub(crate) fn new(bell: &Arc<AtomicUsize>) -> Arc<SlotFlag> {
        Arc::new(SlotFlag { abandoned: AtomicBool::new(false), bell: Arc::clone(bell) })
    }

    #[inline]
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// The mark first: whoever hears the bell finds it.
    fn abandon(&self) {
        if mutant!("bell-first") {
            self.bell.fetch_add(1, Ordering::Release);
        }
        if mutant!("bell-relaxed") {
            self.abandoned.store(true, Ordering::Relaxed);
            self.bell.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.abandoned.store(true, Ordering::Release);
        if !mutant!("bell-first") {
            self.bell.fetch_add(1, Ordering::Release);
        }
    }
}

/// Bytes that a peer may reach. Holds no memory: the transport does.
///
/// # Shape
/// Dropped, it abandons the exposure: `poll` takes the access back and then frees the memory.
/// Forgotten (`mem::forget`), the bytes stay with the transport until it is closed.
#[derive(Debug)]
pub struct Exposed {
    pub(crate) transport: TransportId,
    pub(crate) id: ExposureId,
    pub(crate) flag: Option<Arc<SlotFlag>>,
}

impl Exposed {
    /// Lets the handle go without abandoning anything.
    pub(crate) fn disarm(mut self) -> Option<Arc<SlotFlag>> {
        self.flag.take()
    }
}

impl Drop for Exposed {
    fn drop(&mut self) {
        if let Some(flag) = self.flag.take() {
            flag.abandon();
        }
    }
}

/// A read or write in flight; the transport holds its buffers.
///
/// # Shape
/// Dropped, the buffers are freed once the operation has ended.
#[derive(Debug)]
pub struct LocalOp {
    pub(crate) transport: TransportId,
    pub(crate) id: LocalId,
    pub(crate) flag: Option<Arc<SlotFlag>>,
}

impl LocalOp {
    pub(crate) fn disarm(mut self) -> Option<Arc<SlotFlag>> {
        self.flag.take()
    }
}

impl Drop for LocalOp {
    fn drop(&mut self) {
        if let Some(flag) = self.flag.take() {
            flag.abandon();
        }
    }
}

/// Where an exposure stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExposureState {
    /// Keys are chosen; the device has not seen them.
    Staged,
    /// The peer may reach the bytes.
    Exposed,
    /// Taking the access back has started.
    Revoking,
    /// No key reaches the bytes; `reclaim` returns them.
    Fenced,
    /// No key reaches the bytes, but the device did not give its mapping back: they are kept and
    /// counted.
    Held,
}

/// What a region of an exposure covers.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) bytes: Range<u64>,
    /// Where the first of them lies.
    pub(crate) at: Place,
}

/// Body of an exposure; recycled.
#[derive(Debug)]
pub(crate) struct Exposure {
    pub(crate) state: ExposureState,
    /// `expose` has counted it; one that failed is neither an exposure nor a fence.
    pub(crate) counted: bool,
    pub(crate) grant: Grant,
    /// What was given: the ranges all the time, the buffers once they are back.
    pub(crate) buffers: Buffers,
    /// The buffers, until no key reaches them.
    pub(crate) lent: Vec<Lent>,
    /// In the order of the bytes they cover, once `map` is done.
    pub(crate) regions: Vec<RegionId>,
    /// One for each region, or none if each covers one whole piece.
    pub(crate) parts: Vec<Part>,
    /// What the ledger calls the keys, if they were staged in step.
    pub(crate) names: [KeyName; MAX_REGIONS],
    /// What the peer is told of each region; those behind them mean nothing.
    pub(crate) segments: [Segment; MAX_REGIONS],
    /// Regions whose key is staged or not proven dead.
    pub(crate) open: usize,
    /// WRs that are staged for it.
    pub(crate) staged: usize,
    /// Set by `send`: a reply is out that may invalidate a key of this one.
    pub(crate) reply_after: Option<Awaited>,
    /// When `poll` takes the access back by itself.
    pub(crate) lease: Option<Tick>,
    pub(crate) flag: Arc<SlotFlag>,
}

/// Stands where there is none.
fn no_name() -> KeyName {
    KeyName { region: RegionId::null(), rkey: Rkey::from_bits(0), turn: 0 }
}

/// Stands where there is none.
const NO_SEGMENT: Segment =
    Segment { rkey: Rkey::from_bits(0), addr: 0, len: 0, grant: Grant::PeerReads, epoch: Epoch(0) };

/// Replies that may invalidate a key of an exposure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaited {
    /// Messages received when the last such message went out.
    pub(crate) after: u64,
    /// The last of their replies is this message at the earliest.
    pub(crate) nth: u64,
}

/// What a read or write was, for its error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteAccess {
    /// True for RDMA WRITE, false for RDMA READ.
    pub write: bool,
    /// First remote byte, as the peer's segment names it.
    pub remote_addr: u64,
    /// Bytes.
    pub len: u64,
    /// The peer's key.
    pub rkey: Rkey,
}

/// Body of a read or write.
#[derive(Debug)]
pub(crate) struct Local {
    /// What was given: the ranges all the time, the buffers once they are back.
    pub(crate) buffers: Buffers,
    /// The buffers, until its WRs are retired.
    pub(crate) lent: Vec<Lent>,
    pub(crate) what: RemoteAccess,
    /// WRs not yet retired.
    pub(crate) open: usize,
    pub(crate) failed: Option<WcError>,
    pub(crate) done: bool,
    pub(crate) flag: Arc<SlotFlag>,
}

/// The slots of both kinds, with bodies that recycle.
#[derive(Debug)]
pub(crate) struct Slots {
    pub(crate) exposures: SlotMap<ExposureId, Box<Exposure>>,
    pub(crate) locals: SlotMap<LocalId, Box<Local>>,
    // Boxes in both lists, so that a body moves into its slot as one pointer.
    #[allow(clippy::vec_box)]
    spare_exposures: Vec<Box<Exposure>>,
    #[allow(clippy::vec_box)]
    spare_locals: Vec<Box<Local>>,
    pub(crate) bell: Arc<AtomicUsize>,
}

/// Spare bodies kept of each kind; more are freed.
const SPARE: usize = 256;

impl Slots {
    pub(crate) fn new() -> Slots {
        Slots {
            exposures: SlotMap::with_key(),
            locals: SlotMap::with_key(),
            spare_exposures: vec![],
            spare_locals: vec![],
            bell: Arc::new(AtomicUsize::new(0)),
        }
    }

    /// A new exposure, without bytes yet and in no slot.
    #[inline]
    pub(crate) fn new_exposure(&mut self, grant: Grant) -> Box<Exposure> {
        let mut body = self.spare_exposures.pop().unwrap_or_else(|| {
            Box::new(Exposure {
                state: ExposureState::Staged,
                counted: false,
                grant,
                buffers: Buffers::new(),
                lent: Vec::with_capacity(4),
                regions: Vec::with_capacity(MAX_REGIONS),
                parts: Vec::with_capacity(MAX_REGIONS),
                names: [no_name(); MAX_REGIONS],
                segments: [NO_SEGMENT; MAX_REGIONS],
                open: 0,
                staged: 0,
                reply_after: None,
                lease: None,
                flag: SlotFlag::new(&self.bell),
            })
        });
        body.state = ExposureState::Staged;
        body.counted = false;
        body.grant = grant;
        (body.reply_after, body.lease) = (None, None);
        body
    }

    /// Gives an exposure its slot.
    #[inline]
    pub(crate) fn insert(&mut self, mut body: Box<Exposure>) -> (ExposureId, Arc<SlotFlag>) {
        let flag = fresh_flag(&mut body.flag, &self.bell);
        (self.exposures.insert(body), flag)
    }

    /// The k-th region of an exposure that still exists.
    pub(crate) fn region(&self, id: ExposureId, k: u32) -> Option<RegionId> {
        self.exposures.get(id)?.regions.get(k as usize).copied()
    }

    /// Frees a slot; what is still inside is dropped.
    pub(crate) fn free_exposure(&mut self, id: ExposureId) {
        if let Some(body) = self.exposures.remove(id) {
            self.recycle(body);
        }
    }

    /// Keeps the body of an exposure that has no slot any more, for another one. Answers the
    /// buffers that are still inside.
    #[inline]
    pub(crate) fn recycle(&mut self, mut body: Box<Exposure>) -> Buffers {
        body.lent.clear();
        body.regions.clear();
        body.parts.clear();
        (body.open, body.staged) = (0, 0);
        if self.spare_exposures.len() >= SPARE {
            return body.buffers;
        }
        // Taken out last of all, they are copied once.
        self.spare_exposures.push(body);
        match self.spare_exposures.last_mut() {
            Some(body) => std::mem::take(&mut body.buffers),
            None => Buffers::new(),
        }
    }

    /// A slot for a read or write, without bytes yet.
    pub(crate) fn new_local(&mut self, what: RemoteAccess) -> (LocalId, Arc<SlotFlag>) {
        let mut body = self.spare_locals.pop().unwrap_or_else(|| {
            Box::new(Local {
                buffers: Buffers::new(),
                lent: Vec::with_capacity(4),
                what,
                open: 0,
                failed: None,
                done: false,
                flag: SlotFlag::new(&self.bell),
            })
        });
        body.what = what;
        (body.open, body.failed, body.done) = (0, None, false);
        let flag = fresh_flag(&mut body.flag, &self.bell);
        (self.locals.insert(body), flag)
    }

    /// Frees a slot; what is still inside is dropped.
    pub(crate) fn free_local(&mut self, id: LocalId) {
        if let Some(mut body) = self.locals.remove(id) {
            body.buffers.clear();
            body.lent.clear();
            if self.spare_locals.len() < SPARE {
                self.spare_locals.push(body);
            }
        }
    }

    /// Whether any handle was dropped since the last call. Look for it afterwards: one that is
    /// dropped while you look rings again.
    #[inline]
    pub(crate) fn bell_rang(&self) -> bool {
        if mutant!("bell-late") {
            return self.bell.load(Ordering::Acquire) != 0;
        }
        self.bell.load(Ordering::Relaxed) != 0 && self.bell.swap(0, Ordering::Acquire) != 0
    }
}

/// Recycles a flag, or replaces it if a forgotten handle still holds it.
#[inline]
fn fresh_flag(flag: &mut Arc<SlotFlag>, bell: &Arc<AtomicUsize>) -> Arc<SlotFlag> {
    match Arc::get_mut(flag) {
        // Nobody else holds it, so that no ordering is needed.
        Some(f) => f.abandoned.store(false, Ordering::Relaxed),
        None if mutant!("flag-reuse") => flag.abandoned.store(false, Ordering::Release),
        None => *flag = SlotFlag::new(bell),
    }
    Arc::clone(flag)
}

impl Exposure {
    /// Total bytes of all parts.
    pub(crate) fn len(&self) -> u64 {
        self.buffers.pieces.iter().map(|p| p.len() as u64).sum()
    }

    /// The buffer that a piece is a range of.
    pub(crate) fn lent_at(&self, piece: usize) -> Option<&Lent> {
        self.lent.get(self.buffers.buf_of(piece))
    }
}
