//! What a strategy is: the [`MemReg`] trait and the only three things it may touch.
//!
//! A strategy is a state machine without I/O. It sees shapes ([`SegList`]), never addresses; it
//! wishes for registrations and invalidations by handle ([`WrBatch`]), never by key; it makes and
//! ends regions through [`Control`]. The engine turns wishes into WRs, owns keys and rights, and
//! alone decides when a key is dead. So a wrong strategy costs its connection, and never gives
//! bytes back early.

mod batch;

pub use batch::{BatchFull, Wish, WrBatch};

use crate::device::{Caps, DeviceError, FastMrKind};
use crate::error::Disposition;
use crate::sizing::{Ask, Limits, SizeError};
use std::ops::Range;

slotmap::new_key_type! {
    /// Names one region: an MR or window with a key of its own. Generational: the id of an ended
    /// region never names another.
    pub struct RegionId;
}

/// Regions of one exposure at most: what fits a message header.
pub const MAX_REGIONS: usize = 16;

/// A way of granting a peer access to memory and taking it back.
///
/// # Shape
/// One value per connection, in the order `check`, `open`, `fill`, then any of the others, from one
/// thread at a time. `map` and `unmap` are called once per exposure, with the regions of that
/// exposure only.
/// # Errors
/// A [`Poison`] from any method ends the connection: QP to ERR, drain, every key destroyed, then
/// the bytes return. A panic does the same.
pub trait MemReg: Send {
    /// The name used in the configuration and in reports.
    fn name(&self) -> &'static str;

    /// Whether the strategy can work on such a device; the reason if not. Must not allocate device
    /// objects.
    fn check(&self, caps: &Caps) -> Result<(), Reject>;

    /// Sizes the queues for what was asked. Pure: the same answer every time, no device object
    /// made.
    ///
    /// # Errors
    /// [`SizeError`] when not even one operation fits, with the numbers.
    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError>;

    /// Makes regions until the pool holds at least `regions` usable ones. Called before the first
    /// `map` and after each reconnect; later a strategy makes what it lacks in `map` or `recover`.
    fn fill(&mut self, ctl: &mut dyn Control, regions: usize) -> Result<(), DeviceError>;

    /// Covers the bytes `0..segs.total()` exactly once, in order, with regions: by
    /// [`WrBatch::register`] and the granting calls of [`Control`], or by
    /// [`WrBatch::register_each`] alone.
    ///
    /// # Errors
    /// On error, and when the batch does not cover the bytes, the engine undoes this call: each
    /// region named in the batch gets [`Event::NeverPosted`], each region granted through `Control`
    /// is ended.
    fn map(
        &mut self,
        ctl: &mut dyn Control,
        segs: &SegList<'_>,
        out: &mut WrBatch,
    ) -> Result<(), MapError>;

    /// Starts taking back every region in `live`: each must be named exactly once, in the batch
    /// ([`WrBatch::invalidate`]) or to [`Control::dereg`]. [`WrBatch::invalidate_all`] names all.
    fn unmap(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        out: &mut WrBatch,
    ) -> Result<(), Poison>;

    /// Hears what became of a region. Costs no verbs call.
    fn on_event(&mut self, region: RegionId, event: Event) -> Result<(), Poison>;

    /// Hears of several regions that the same became of, in this order. Overridden only to do in
    /// one go what [`on_event`](MemReg::on_event) does for each.
    ///
    /// # Errors
    /// The first error; the others have been told all the same.
    fn on_events(&mut self, regions: &[RegionId], event: Event) -> Result<(), Poison> {
        let mut heard = Ok(());
        for &region in regions {
            heard = heard.and(self.on_event(region, event));
        }
        heard
    }

    /// Rebuilds at most `budget` condemned regions and returns how many were rebuilt.
    ///
    /// # Errors
    /// The first device error; regions already rebuilt stay so.
    fn recover(&mut self, ctl: &mut dyn Control, budget: usize) -> Result<usize, DeviceError>;

    /// The QP is drained and gone: no WR of it is outstanding. Events for its regions have been
    /// given.
    fn on_drained(&mut self);
}

/// A strategy chosen at run time, where the cost of a virtual call does not matter.
impl<T: MemReg + ?Sized> MemReg for Box<T> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn check(&self, caps: &Caps) -> Result<(), Reject> {
        (**self).check(caps)
    }

    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
        (**self).open(caps, ask)
    }

    fn fill(&mut self, ctl: &mut dyn Control, regions: usize) -> Result<(), DeviceError> {
        (**self).fill(ctl, regions)
    }

    fn map(
        &mut self,
        ctl: &mut dyn Control,
        segs: &SegList<'_>,
        out: &mut WrBatch,
    ) -> Result<(), MapError> {
        (**self).map(ctl, segs, out)
    }

    fn unmap(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        out: &mut WrBatch,
    ) -> Result<(), Poison> {
        (**self).unmap(ctl, live, out)
    }

    fn on_event(&mut self, region: RegionId, event: Event) -> Result<(), Poison> {
        (**self).on_event(region, event)
    }

    fn on_events(&mut self, regions: &[RegionId], event: Event) -> Result<(), Poison> {
        (**self).on_events(regions, event)
    }

    fn recover(&mut self, ctl: &mut dyn Control, budget: usize) -> Result<usize, DeviceError> {
        (**self).recover(ctl, budget)
    }

    fn on_drained(&mut self) {
        (**self).on_drained();
    }
}

/// What became of a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// Its registration took effect.
    Registered,
    /// Its registration was flushed or failed, or the region was ended by the engine: nobody knows
    /// its key's state. It must not be used until `recover` has rebuilt it.
    RegUnknown,
    /// Its invalidation took effect: the key is dead and the region can be used again.
    Invalidated,
    /// Its invalidation was flushed or failed: as `RegUnknown`.
    InvUnknown,
    /// The peer invalidated it: the key is dead and the region can be used again.
    RemoteInvalidated,
    /// Its registration was wished for and never reached the device: the region can be used again
    /// at once.
    NeverPosted,
}

/// Makes and ends regions. Every call may cost a system call.
///
/// # Errors
/// A region outside this call's reach, or a call that does not fit (granting outside `map`), is
/// `EINVAL` and changes nothing.
pub trait Control {
    /// Makes a region for [`WrBatch::register`] with room for `depth` page-list entries. Its key is
    /// dead.
    fn alloc_region(&mut self, depth: u32, kind: FastMrKind) -> Result<RegionId, DeviceError>;

    /// Makes a type-2 window for [`WrBatch::register`]; its key is dead. It covers a contiguous
    /// range of one segment. Windows are made after the QP that they are bound on: without one,
    /// `EAGAIN`.
    fn alloc_window(&mut self) -> Result<RegionId, DeviceError>;

    /// In `map`: registers `bytes` with the rights of the exposure as an ordinary MR. The key is
    /// live at once. The bytes must lie within one segment.
    fn reg_mr(&mut self, bytes: Range<u64>) -> Result<RegionId, DeviceError>;

    /// Ends a region and its key, in whatever state it is. In `map`: regions of this call and idle
    /// ones; in `unmap`: regions of this exposure; else: idle or condemned ones. Ending one that
    /// the engine has already ended is fine.
    fn dereg(&mut self, region: RegionId) -> Result<(), DeviceError>;

    /// In `map`: takes part of the bounce arena for `bytes` and copies them in. The region's key is
    /// that of the arena: it is never revoked. `dereg` gives the part back, copying out if the peer
    /// was to write.
    ///
    /// Needs [`Limits::arena_bytes`] > 0 and the caller's `danger_trust_peer`.
    fn bounce(&mut self, bytes: Range<u64>) -> Result<RegionId, DeviceError>;
}

/// The shape of one segment of an exposure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegShape {
    /// Where in its page the first byte is.
    pub page_offset: u32,
    /// Bytes, at least 1.
    pub len: u64,
}

/// The shapes of an exposure's segments, in order. Byte positions count through all of them.
#[derive(Clone, Copy, Debug)]
pub struct SegList<'a> {
    segs: &'a [SegShape],
    page_size: u32,
    total: u64,
    /// One less than each length, in one. Of a length of zero that has the top bit, and else only
    /// of one beyond all memory.
    less_one: u64,
}

/// How far one region can reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Bytes from the start of the run.
    pub bytes: u64,
    /// Page-list entries that they need.
    pub entries: u32,
    /// Whether it has a joint that only a gap-capable region can describe.
    pub gaps: bool,
}

impl<'a> SegList<'a> {
    /// A list over shapes; the caller has checked that no length is zero and that the sum fits.
    #[must_use]
    #[inline]
    pub fn new(segs: &'a [SegShape], page_size: u32) -> SegList<'a> {
        let (mut total, mut less_one) = (0, 0);
        for s in segs {
            total += s.len;
            less_one |= s.len.wrapping_sub(1);
        }
        SegList { segs, page_size, total, less_one }
    }

    /// As `new`, of lengths that are known to have this sum and none of which is zero.
    #[inline]
    pub(crate) fn of_sum(segs: &'a [SegShape], page_size: u32, total: u64) -> SegList<'a> {
        let list = SegList { segs, page_size, total, less_one: 0 };
        debug_assert!(segs.iter().all(|s| s.len > 0));
        debug_assert_eq!(total, segs.iter().map(|s| s.len).sum());
        list
    }

    /// The segments.
    #[must_use]
    #[inline]
    pub fn segs(&self) -> &'a [SegShape] {
        self.segs
    }

    /// Bytes of all segments.
    #[must_use]
    #[inline]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether some segment has no bytes.
    #[must_use]
    #[inline]
    pub fn has_empty(&self) -> bool {
        self.less_one >> 63 != 0 && self.segs.iter().any(|s| s.len == 0)
    }

    /// The device's page size.
    #[must_use]
    #[inline]
    pub fn page_size(&self) -> u32 {
        self.page_size
    }

    /// Whether the bytes lie within one segment.
    #[must_use]
    pub fn within_one(&self, bytes: &Range<u64>) -> bool {
        let mut end = 0;
        self.segs.iter().any(|s| {
            let start = end;
            end += s.len;
            start <= bytes.start && bytes.end <= end
        })
    }

    /// How many bytes from `from` one region of `depth` page-list entries can cover.
    ///
    /// Without `gaps` it stops at the first joint where a segment does not end, or the next does
    /// not start, on a page boundary (MAP-06). At least one byte is always covered while `from <
    /// total` and `depth > 0` (MAP-08).
    #[must_use]
    pub fn run(&self, from: u64, depth: u32, gaps: bool) -> Run {
        let page = u64::from(self.page_size);
        let mut run = Run { bytes: 0, entries: 0, gaps: false };
        let mut seg_start = 0;
        for (i, seg) in self.segs.iter().enumerate() {
            let seg_end = seg_start + seg.len;
            if seg_end <= from {
                seg_start = seg_end;
                continue;
            }
            let skip = from.saturating_sub(seg_start);
            let offset = (u64::from(seg.page_offset) + skip) % page;
            if run.bytes > 0 {
                // The joint between the previous segment's end and this one's start.
                let prev = self.segs[i - 1];
                let prev_end = (u64::from(prev.page_offset) + prev.len) % page;
                if prev_end != 0 || offset != 0 {
                    if !gaps {
                        return run;
                    }
                    run.gaps = true;
                }
            }
            let left = u64::from(depth - run.entries);
            let want = seg.len - skip;
            let entries = (offset + want).div_ceil(page);
            if entries > left {
                if left > 0 {
                    run.bytes += left * page - offset;
                    run.entries = depth;
                } else if run.bytes > 0 {
                    // No room for the joint's next page: the gap seen just now is not part of the
                    // run.
                    run.gaps &= self.run_has_gap(from, run.bytes);
                }
                return run;
            }
            run.bytes += want;
            run.entries += u32::try_from(entries).unwrap_or(u32::MAX);
            seg_start = seg_end;
        }
        run
    }

    /// Whether some joint strictly inside `from..from + bytes` is off a page boundary.
    fn run_has_gap(&self, from: u64, bytes: u64) -> bool {
        let page = u64::from(self.page_size);
        let mut end = 0;
        self.segs.windows(2).any(|w| {
            end += w[0].len;
            let inside = end > from && end < from + bytes;
            let prev_end = (u64::from(w[0].page_offset) + w[0].len) % page;
            inside && (prev_end != 0 || w[1].page_offset != 0)
        })
    }
}

/// Why a strategy cannot work on a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reject {
    /// A capability flag is not set.
    #[error("device has no {0}")]
    Missing(&'static str),
    /// REG_MR is announced, but its page list has no entries, and there are no windows to bind
    /// instead.
    #[error(
        "device announces MEM_MGT_EXTENSIONS with page list length 0, and no type-2 windows \
         (2B {}, max_mw {max_mw})", if *type_2b { "announced" } else { "not announced" }
    )]
    NoWindows {
        /// Whether the device announces windows of type 2B.
        type_2b: bool,
        /// Windows that it says may exist.
        max_mw: u32,
    },
    /// The strategy trusts the peer with memory that it cannot take back; the user has not agreed.
    #[error("it cannot take a key back; set strategy.danger_trust_peer = true to use it")]
    NeedsTrust,
    /// Anything that a plugin checks.
    #[error("{0}")]
    Other(String),
}

/// Why an exposure could not be mapped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The pool has no usable region (ENOBUFS): poll and recover, then try again (MAP-01).
    #[error("no region is free: {condemned} condemned, {busy} in use")]
    NoRegion {
        /// Regions that wait for `recover`.
        condemned: usize,
        /// Regions of other exposures.
        busy: usize,
    },
    /// The list needs more regions than one message can name.
    #[error("the list needs more than {MAX_REGIONS} regions")]
    TooManyRegions,
    /// The device refused.
    #[error("device refused a region")]
    Device(#[from] DeviceError),
    /// The strategy cannot map such a list, by its own rules.
    #[error("{0}")]
    Other(&'static str),
}

impl From<BatchFull> for MapError {
    fn from(_: BatchFull) -> MapError {
        MapError::TooManyRegions
    }
}

impl MapError {
    /// What to do about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            MapError::NoRegion { .. } => Disposition::Retry,
            MapError::Device(e) => e.disposition(),
            MapError::TooManyRegions | MapError::Other(_) => Disposition::Fatal,
        }
    }
}

impl Reject {
    /// What to do about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        Disposition::Fatal
    }
}

/// A strategy gives up on the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("strategy poisoned the connection: {0}")]
pub struct Poison(pub &'static str);

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u32 = 4096;

    fn shapes(list: &[(u32, u64)]) -> Vec<SegShape> {
        list.iter().map(|&(page_offset, len)| SegShape { page_offset, len }).collect()
    }

    fn split(list: &[(u32, u64)], depth: u32, gaps: bool) -> Vec<Run> {
        let s = shapes(list);
        let l = SegList::new(&s, PAGE);
        let (mut at, mut out) = (0, vec![]);
        while at < l.total() {
            let r = l.run(at, depth, gaps);
            assert!(r.bytes > 0 && r.entries <= depth);
            at += r.bytes;
            out.push(r);
        }
        assert_eq!(at, l.total());
        out
    }

    #[test]
    fn b19_unaligned_middle() {
        let list = [(0, 4096), (512, 4096), (0, 4096)];
        assert_eq!(split(&list, 16, false).len(), 3);
        assert_eq!(split(&list, 16, true), [Run { bytes: 12288, entries: 4, gaps: true }]);
    }

    #[test]
    fn b20_two_buffers() {
        let a = split(&[(2096, 2000), (0, 2096)], 16, false);
        assert_eq!(a, [Run { bytes: 4096, entries: 2, gaps: false }]);
        assert_eq!(split(&[(0, 2000), (0, 2096)], 16, false).len(), 2);
    }

    #[test]
    fn map_06_first_and_last_are_free() {
        assert_eq!(split(&[(100, 3996), (0, 4096), (0, 7)], 16, false).len(), 1);
        assert_eq!(split(&[(100, 3995), (0, 4096)], 16, false).len(), 2);
        assert_eq!(split(&[(0, 4096), (1, 7)], 16, false).len(), 2);
    }

    #[test]
    fn long_segment_splits_at_page_boundaries() {
        let runs = split(&[(512, 1 << 20)], 16, false);
        assert_eq!(runs.len(), 17);
        assert_eq!(runs[0], Run { bytes: 16 * 4096 - 512, entries: 16, gaps: false });
        assert_eq!(runs[16], Run { bytes: 512, entries: 1, gaps: false });
    }

    #[test]
    fn gap_at_the_depth_limit_is_not_counted() {
        let runs = split(&[(0, 4096), (512, 100)], 1, true);
        assert!(runs.iter().all(|r| !r.gaps));
    }
}
