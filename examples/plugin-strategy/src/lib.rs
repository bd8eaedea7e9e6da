//! `threshold`: small operations are registered by work request, large ones by verb.
//!
//! A strategy of page lists reserves send-queue slots for the largest operation, for each of those
//! in flight: with short page lists that is most of the queue. This one reserves them for
//! operations of up to `threshold_bytes` and makes an ordinary MR for each segment of a larger one,
//! so that more operations fit the same queue. The price is a system call to grant and one to
//! revoke, for the large ones; and since such a key is ended by a verb only, the peer is never
//! asked to invalidate.
//!
//! The crate knows `memreg-core` and nothing else of the workspace.
#![forbid(unsafe_code)]

mod pool;

use memreg_core::device::{Caps, DeviceError};
use memreg_core::memreg::{
    Control, Event, MAX_REGIONS, MapError, MemReg, Poison, RegionId, Reject, SegList, WrBatch,
};
use memreg_core::plugin::{API, Entry, OptionReader, Options};
use memreg_core::sizing::{self, Ask, Clamp, KeyScope, Limits, SizeError};
use pool::Pool;
use std::ops::Range;

inventory::submit!(ENTRY);

/// How the strategy announces itself to a program that links it.
pub const ENTRY: Entry = Entry {
    name: "threshold",
    api: API,
    about: "small operations by work request, those above threshold_bytes by verb",
    check,
    build: |options| Ok(Box::new(Threshold::from_options(options)?)),
};

/// Operations of up to this many bytes go by work request, if the options do not say otherwise.
pub const THRESHOLD_BYTES: u64 = 64 << 10;

/// Registers by work request or by verb, by size; see the crate.
///
/// # Cost
/// Up to the threshold one WR a region to grant and one to revoke, no system call once the pool is
/// warm; above it one system call a segment to grant and one to revoke, no WR.
#[derive(Debug)]
pub struct Threshold {
    threshold_bytes: u64,
    /// Regions that one operation may take from the pool; 0 until `open`.
    regions_limit: usize,
    pool: Pool,
}

impl Threshold {
    /// A strategy that has not been opened.
    #[must_use]
    pub fn new(threshold_bytes: u64) -> Threshold {
        Threshold { threshold_bytes, regions_limit: 0, pool: Pool::default() }
    }

    /// A strategy as `[strategy.options]` describes it: `threshold_bytes`, at least 1.
    ///
    /// # Errors
    /// A text that names the option at fault.
    pub fn from_options(options: &Options) -> Result<Threshold, String> {
        let mut options = OptionReader::new(options);
        let threshold_bytes = options.int("threshold_bytes", THRESHOLD_BYTES, 1..=1 << 40)?;
        options.finish()?;
        Ok(Threshold::new(threshold_bytes))
    }

    /// How many regions of the pool would cover `segs`; `None` if a verb is to do it.
    fn by_wr(&self, segs: &SegList<'_>) -> Option<usize> {
        if segs.total() > self.threshold_bytes {
            return None;
        }
        // Many small pieces cost more WRs than the queue has been sized for.
        let count = pieces(segs, self.pool.depth()).take(self.regions_limit + 1).count();
        (count <= self.regions_limit).then_some(count)
    }

    /// One ordinary MR a segment.
    fn by_verb(&mut self, ctl: &mut dyn Control, segs: &SegList<'_>) -> Result<(), MapError> {
        if segs.segs().len() > MAX_REGIONS {
            return Err(MapError::TooManyRegions);
        }
        let mut at = 0;
        for seg in segs.segs() {
            while let Err(e) = ctl.reg_mr(at..at + seg.len) {
                // A device full of idle regions has room all the same.
                if !pool::is_full(&e) || !self.pool.end_idle(ctl)? {
                    return Err(e.into());
                }
            }
            at += seg.len;
        }
        Ok(())
    }
}

/// The bytes of each page-list region that `segs` needs, in order.
fn pieces(segs: &SegList<'_>, depth: u32) -> impl Iterator<Item = Range<u64>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let piece = at..at + segs.run(at, depth, false).bytes;
        at = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

fn check(caps: &Caps) -> Result<(), Reject> {
    if !caps.mem_mgt_extensions {
        return Err(Reject::Missing("MEM_MGT_EXTENSIONS"));
    }
    if caps.max_fast_reg_page_list_len == 0 {
        return Err(Reject::Other("device has page list length 0".to_owned()));
    }
    Ok(())
}

impl MemReg for Threshold {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn check(&self, caps: &Caps) -> Result<(), Reject> {
        check(caps)
    }

    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
        // The send queue is sized for the small operations ...
        let max_payload_bytes = ask.max_payload_bytes.min(self.threshold_bytes);
        let small = Ask { max_payload_bytes, ..*ask };
        let mut per = sizing::page_list_request(caps, &small)?;
        // ... and the large ones need no more of it than their SEND.
        per.payload_bytes = ask.max_payload_bytes;
        let mut limits = sizing::queues(caps, ask, per, KeyScope::Pd)?;
        limits.max_segments = MAX_REGIONS as u32;
        if caps.max_mr_size < limits.max_payload_bytes {
            limits.clamped.push(Clamp {
                what: "max_payload_bytes",
                asked: limits.max_payload_bytes,
                got: caps.max_mr_size,
                by: "max_mr_size",
            });
            limits.max_payload_bytes = caps.max_mr_size;
        }
        let in_flight = u64::from(per.regions) * u64::from(limits.credits);
        let limit = in_flight.min(u64::from(caps.max_mr).max(1));
        self.regions_limit = per.regions as usize;
        self.pool = Pool::new(per.page_list_depth, usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(limits)
    }

    fn fill(&mut self, ctl: &mut dyn Control, regions: usize) -> Result<(), DeviceError> {
        self.pool.grow(ctl, regions).map(|_| ())
    }

    fn map(
        &mut self,
        ctl: &mut dyn Control,
        segs: &SegList<'_>,
        out: &mut WrBatch,
    ) -> Result<(), MapError> {
        let Some(count) = self.by_wr(segs) else { return self.by_verb(ctl, segs) };
        // All that it needs or nothing: an operation that waits must not hold what others wait for.
        self.pool.reserve(ctl, count)?;
        for piece in pieces(segs, self.pool.depth()) {
            let region = self.pool.take().ok_or_else(|| self.pool.exhausted())?;
            out.register(region, piece)?;
        }
        Ok(())
    }

    fn unmap(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        out: &mut WrBatch,
    ) -> Result<(), Poison> {
        let mut failed = false;
        for &region in live {
            if self.pool.has(region) {
                failed |= out.invalidate(region).is_err();
            } else {
                failed |= ctl.dereg(region).is_err();
            }
        }
        // Every region was tried: each that ends is one less for the drain to prove.
        if failed { Err(Poison("a region could not be taken back")) } else { Ok(()) }
    }

    fn on_event(&mut self, region: RegionId, event: Event) -> Result<(), Poison> {
        match event {
            Event::Registered => {}
            Event::Invalidated | Event::RemoteInvalidated | Event::NeverPosted => {
                self.pool.give_back(region);
            }
            Event::RegUnknown | Event::InvUnknown => self.pool.condemn(region),
        }
        Ok(())
    }

    fn recover(&mut self, ctl: &mut dyn Control, budget: usize) -> Result<usize, DeviceError> {
        self.pool.rebuild(ctl, budget)
    }

    fn on_drained(&mut self) {
        // Whatever was out has had its event by now.
    }
}
