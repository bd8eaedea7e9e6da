//! `frwr`: fast registration by work request, and invalidation by work request or by the peer.
//!
//! ```text
//! INVALID ── map ──► VALID ── Invalidated, RemoteInvalidated, NeverPosted ──► INVALID (tail)
//!    └───────┬─────────┘
//!            ├── RegUnknown ──► FLUSHED_FR ──┐
//!            └── InvUnknown ──► FLUSHED_LI ──┴── recover: dereg, alloc ──► a new INVALID region
//! ```
//! The strategy is a free list, the rule of where a list must be cut, and four states. Keys, rights
//! and the proof that a key is dead belong to the engine.
//!
//! A region is an MR for REG_MR where the device has page lists, else a type-2 window, which the
//! engine binds onto the buffer's own MR. Windows belong to one QP: the engine ends them all, idle
//! ones too, before it ends the QP, so after a reconnect `recover` finds every one condemned.

mod cut;
mod pool;
mod ring;

use self::cut::Cuts;
pub use self::pool::State;
use self::pool::{Doubt, Pool};
use crate::shape::check_lengths;
use memreg_core::device::{Caps, DeviceError, DeviceErrorKind, FastMrKind};
use memreg_core::memreg::{
    Control, Event, MAX_REGIONS, MapError, MemReg, Poison, RegionId, Reject, SegList, WrBatch,
};
use memreg_core::sizing::{self, Ask, KeyScope, Limits, SizeError};

/// Registers by work request; see the module.
///
/// # Cost
/// One region per contiguous run of pages (with windows: per segment): one WR to grant and one to
/// revoke, no system call once the pool is warm.
#[derive(Debug, Default)]
pub struct Frwr {
    /// Set by `open`.
    mechanism: Option<Mechanism>,
    pool: Pool,
    counters: Counters,
}

/// Counters and gauges of one [`Frwr`].
///
/// # Units
/// Regions. `free + busy + condemned` are all that exist; the rest only counts up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrwrStats {
    /// Idle in the pool, of both kinds.
    pub free: u64,
    /// Handed out.
    pub busy: u64,
    /// Waiting for `recover`.
    pub condemned: u64,
    /// Made since the start, replacements included.
    pub allocated: u64,
    /// Replaced by `recover`.
    pub recovered: u64,
    /// Ended by `recover` with no replacement, because the device refused one.
    pub orphaned: u64,
    /// Ended by `unmap`, because only that ends a key of unknown state.
    pub ended: u64,
    /// Events for a region that this strategy no longer has, but for `Registered`, which changes
    /// nothing for any.
    pub strays: u64,
}

#[derive(Debug, Default)]
struct Counters {
    allocated: u64,
    recovered: u64,
    orphaned: u64,
    ended: u64,
    strays: u64,
}

/// How regions are granted.
#[derive(Clone, Copy, Debug)]
enum Mechanism {
    /// REG_MR of a page list.
    PageList {
        /// Entries of one list.
        depth: u32,
        /// Whether the device describes gaps.
        gaps: bool,
        /// Regions of each kind that may exist.
        pool_limit: usize,
    },
    /// BIND_MW of a type-2 window.
    Windows {
        /// Bytes of one window.
        most: u64,
        /// Windows that may exist.
        pool_limit: usize,
    },
}

impl Mechanism {
    fn pool_limit(&self) -> usize {
        match *self {
            Mechanism::PageList { pool_limit, .. } | Mechanism::Windows { pool_limit, .. } => {
                pool_limit
            }
        }
    }

    /// Makes a region; windows know no kinds.
    fn make(&self, ctl: &mut dyn Control, kind: FastMrKind) -> Result<RegionId, DeviceError> {
        match *self {
            Mechanism::PageList { depth, .. } => ctl.alloc_region(depth, kind),
            Mechanism::Windows { .. } => ctl.alloc_window(),
        }
    }

    fn cut(&self, segs: &SegList<'_>) -> Result<Cuts, MapError> {
        match *self {
            Mechanism::PageList { depth, gaps, .. } => Cuts::by_pages(segs, depth, gaps),
            Mechanism::Windows { most, .. } => Cuts::by_segment(segs, most),
        }
    }
}

const NOT_OPEN: MapError = MapError::Other("strategy is not open");

const KINDS: [FastMrKind; 2] = [FastMrKind::Pages, FastMrKind::Gaps];

/// Bounded by what can be in flight (POOL-06), yet never so small that one list of many pieces has
/// to wait for regions that cannot come.
fn pool_limit(limits: &Limits, device_most: u32) -> usize {
    let in_flight = u64::from(limits.regions_per_request) * u64::from(limits.credits);
    let most = in_flight.max(MAX_REGIONS as u64).min(u64::from(device_most).max(1));
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// Whether one window on each whole segment is all that a `map` has to wish for.
#[inline]
fn whole_segments(segs: &SegList<'_>, most: u64, out: &WrBatch) -> bool {
    let few = (1..=MAX_REGIONS).contains(&segs.segs().len());
    // No segment is longer than all together.
    few && segs.total() <= most && !segs.has_empty() && out.is_empty()
}

impl Frwr {
    /// A strategy with an empty pool.
    #[must_use]
    pub fn new() -> Frwr {
        Frwr::default()
    }

    /// Counters and gauges now.
    #[must_use]
    pub fn stats(&self) -> FrwrStats {
        let n = |n: usize| n as u64;
        FrwrStats {
            free: n(self.pool.free(FastMrKind::Pages) + self.pool.free(FastMrKind::Gaps)),
            busy: n(self.pool.busy()),
            condemned: n(self.pool.condemned()),
            allocated: self.counters.allocated,
            recovered: self.counters.recovered,
            orphaned: self.counters.orphaned,
            ended: self.counters.ended,
            strays: self.counters.strays,
        }
    }

    /// The state of one region; `None` for one that is not in this pool.
    #[must_use]
    pub fn state(&self, region: RegionId) -> Option<State> {
        self.pool.state(region)
    }

    /// Grows the idle regions of `kind` to `want`, within the pool's limit; true if that many are
    /// idle now.
    fn grow(
        &mut self,
        ctl: &mut dyn Control,
        mechanism: Mechanism,
        kind: FastMrKind,
        want: usize,
    ) -> Result<bool, DeviceError> {
        while self.pool.free(kind) < want {
            if self.pool.total(kind) >= mechanism.pool_limit() {
                return Ok(false);
            }
            let region = mechanism.make(ctl, kind)?;
            self.counters.allocated += 1;
            self.pool.add(region, kind);
        }
        Ok(true)
    }

    /// Makes sure that `want` regions of `kind` are idle, so that a `map` takes either all it needs
    /// or none (H-16).
    fn reserve(
        &mut self,
        ctl: &mut dyn Control,
        mechanism: Mechanism,
        kind: FastMrKind,
        want: usize,
    ) -> Result<(), MapError> {
        if want > mechanism.pool_limit() {
            // Waiting would be for ever.
            return Err(MapError::Other("the list needs more regions than the device may have"));
        }
        match self.grow(ctl, mechanism, kind, want) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.no_region()),
            Err(e) => {
                // A full device may be full of regions that come back: then the caller can wait for
                // them.
                let full =
                    matches!(e.kind(), DeviceErrorKind::Limit | DeviceErrorKind::OutOfMemory);
                let some_return = self.pool.busy() + self.pool.condemned() > 0;
                Err(if full && some_return { self.no_region() } else { e.into() })
            }
        }
    }

    /// Makes a region in the place of one that has ended.
    fn replace(
        &mut self,
        ctl: &mut dyn Control,
        mechanism: Mechanism,
        kind: FastMrKind,
    ) -> Result<(), DeviceError> {
        match mechanism.make(ctl, kind) {
            Ok(new) => self.pool.add(new, kind),
            Err(e) => {
                self.counters.orphaned += 1;
                self.pool.give_up(kind);
                tracing::warn!(strategy = "frwr", error = %e, "region not replaced");
                return Err(e);
            }
        }
        self.counters.allocated += 1;
        self.counters.recovered += 1;
        Ok(())
    }

    /// Hands out one window for each segment, where so many are not idle yet.
    #[cold]
    fn map_each_of_more(
        &mut self,
        ctl: &mut dyn Control,
        count: usize,
        out: &mut WrBatch,
    ) -> Result<(), MapError> {
        let mechanism = self.mechanism.ok_or(NOT_OPEN)?;
        self.reserve(ctl, mechanism, FastMrKind::Pages, count)?;
        Ok(self.pool.take_each(FastMrKind::Pages, count, out)?)
    }

    /// Cuts the list into pieces and hands out a region for each.
    #[inline(never)]
    fn map_cuts(
        &mut self,
        ctl: &mut dyn Control,
        segs: &SegList<'_>,
        out: &mut WrBatch,
    ) -> Result<(), MapError> {
        let mechanism = self.mechanism.ok_or(NOT_OPEN)?;
        check_lengths(segs)?;
        let cuts = mechanism.cut(segs)?;
        for kind in KINDS {
            self.reserve(ctl, mechanism, kind, cuts.count(kind))?;
        }
        for piece in cuts.pieces() {
            let Some(region) = self.pool.take(piece.kind) else { return Err(self.no_region()) };
            if let Err(full) = out.register(region, piece.bytes()) {
                self.pool.untake(region);
                return Err(full.into());
            }
        }
        Ok(())
    }

    /// Whether all of `live` are windows with an invalidation to come. While none is condemned,
    /// each region of an exposure is as it was handed out.
    fn all_valid(&self, live: &[RegionId]) -> bool {
        matches!(self.mechanism, Some(Mechanism::Windows { .. }))
            && self.pool.condemned() == 0
            && live.len() <= self.pool.busy()
    }

    #[inline(never)]
    fn unmap_one_by_one(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        out: &mut WrBatch,
    ) -> Result<(), Poison> {
        for &region in live {
            match self.pool.state(region) {
                Some(State::Valid) => out
                    .invalidate(region)
                    .map_err(|_| Poison("more live regions than a batch holds"))?,
                // Nobody knows the key, so an invalidation could miss it or take the QP down
                // (H-03): only ending the region is a fence. It leaves the pool here, or `recover`
                // would end it again (D-02).
                Some(State::FlushedFr | State::FlushedLi) => {
                    ctl.dereg(region).map_err(|_| Poison("a region of unknown key did not end"))?;
                    if let Some(kind) = self.pool.forget(region) {
                        self.pool.give_up(kind);
                    }
                    self.counters.ended += 1;
                }
                Some(State::Invalid) => return Err(Poison("a live region is in the free list")),
                None => return Err(Poison("a live region is not of this pool")),
            }
        }
        Ok(())
    }

    /// One that is not known was ended, and its id is never used again: there is nothing that could
    /// be reused too early.
    fn count_strays(&mut self, regions: &[RegionId], known: usize) {
        self.counters.strays += regions.len().saturating_sub(known) as u64;
    }

    fn no_region(&self) -> MapError {
        MapError::NoRegion { condemned: self.pool.condemned(), busy: self.pool.busy() }
    }
}

impl MemReg for Frwr {
    fn name(&self) -> &'static str {
        "frwr"
    }

    fn check(&self, caps: &Caps) -> Result<(), Reject> {
        // Both conditions, the flag first (SUP-02): a device may announce the flag with no list
        // behind it (B13). Windows need it too: without it there is no LOCAL_INV.
        if !caps.mem_mgt_extensions {
            return Err(Reject::Missing("MEM_MGT_EXTENSIONS"));
        }
        if caps.max_fast_reg_page_list_len == 0 && !caps.has_windows() {
            let (type_2b, max_mw) = (caps.mem_window_type_2b, caps.max_mw);
            return Err(Reject::NoWindows { type_2b, max_mw });
        }
        Ok(())
    }

    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
        if caps.max_fast_reg_page_list_len == 0 && caps.has_windows() {
            let limits = sizing::window_limits(caps, ask)?;
            self.mechanism = Some(Mechanism::Windows {
                most: caps.max_mr_size.min(sizing::WINDOW_BYTES_LIMIT),
                pool_limit: pool_limit(&limits, caps.max_mw),
            });
            return Ok(limits);
        }
        let per = sizing::page_list_request(caps, ask)?;
        let mut limits = sizing::queues(caps, ask, per, KeyScope::Pd)?;
        limits.mechanism = "page list";
        limits.remote_invalidation = true;
        self.mechanism = Some(Mechanism::PageList {
            depth: limits.page_list_depth,
            gaps: caps.sg_gaps,
            pool_limit: pool_limit(&limits, caps.max_mr),
        });
        Ok(limits)
    }

    fn fill(&mut self, ctl: &mut dyn Control, regions: usize) -> Result<(), DeviceError> {
        let Some(mechanism) = self.mechanism else { return Ok(()) };
        self.grow(ctl, mechanism, FastMrKind::Pages, regions)?;
        let gaps = matches!(mechanism, Mechanism::PageList { gaps: true, .. });
        // One is enough to learn whether the device keeps its promise; lists with gaps are rare, so
        // the rest is made when one comes.
        if gaps && regions > 0 && self.pool.total(FastMrKind::Gaps) == 0 {
            self.grow(ctl, mechanism, FastMrKind::Gaps, 1)?;
        }
        Ok(())
    }

    fn map(
        &mut self,
        ctl: &mut dyn Control,
        segs: &SegList<'_>,
        out: &mut WrBatch,
    ) -> Result<(), MapError> {
        match self.mechanism {
            Some(Mechanism::Windows { most, .. }) if whole_segments(segs, most, out) => {
                let count = segs.segs().len();
                match self.pool.take_each(FastMrKind::Pages, count, out) {
                    Ok(()) => Ok(()),
                    Err(_) => self.map_each_of_more(ctl, count, out),
                }
            }
            _ => self.map_cuts(ctl, segs, out),
        }
    }

    fn unmap(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        out: &mut WrBatch,
    ) -> Result<(), Poison> {
        if self.all_valid(live) && out.invalidate_all().is_ok() {
            return Ok(());
        }
        self.unmap_one_by_one(ctl, live, out)
    }

    fn on_event(&mut self, region: RegionId, event: Event) -> Result<(), Poison> {
        self.on_events(&[region], event)
    }

    fn on_events(&mut self, regions: &[RegionId], event: Event) -> Result<(), Poison> {
        match event {
            // It was handed out before, and stays so.
            Event::Registered => {}
            Event::Invalidated | Event::RemoteInvalidated | Event::NeverPosted => {
                if !self.pool.give_back_in_turn(regions) {
                    let known = self.pool.give_back(regions);
                    self.count_strays(regions, known);
                }
            }
            Event::RegUnknown | Event::InvUnknown => {
                let doubt = match event {
                    Event::RegUnknown => Doubt::Registration,
                    _ => Doubt::Invalidation,
                };
                let known = self.pool.condemn(regions, doubt);
                self.count_strays(regions, known);
            }
        }
        Ok(())
    }

    fn recover(&mut self, ctl: &mut dyn Control, budget: usize) -> Result<usize, DeviceError> {
        let Some(mechanism) = self.mechanism else { return Ok(0) };
        let mut rebuilt = 0;
        while rebuilt < budget {
            let Some((region, kind)) = self.pool.next_condemned() else { break };
            if let Err(e) = ctl.dereg(region) {
                // It stays condemned, behind the others: they may still end.
                self.pool.postpone(region);
                return Err(e);
            }
            self.pool.forget(region);
            self.replace(ctl, mechanism, kind)?;
            rebuilt += 1;
        }
        // A new region can take over the slot of another id that the engine has ended by itself, in
        // this call or in an earlier one, and with it that one's place in the pool: it is made up
        // for here.
        for kind in KINDS {
            while rebuilt < budget && self.pool.missing(kind) > 0 {
                self.replace(ctl, mechanism, kind)?;
                rebuilt += 1;
            }
        }
        Ok(rebuilt)
    }

    fn on_drained(&mut self) {
        // Every WR has had its event, so a region that is still out was granted and not taken back:
        // its QP is gone, and nothing but a new region makes it usable.
        self.pool.condemn_busy();
    }
}

#[cfg(test)]
mod tests;
