//! A strategy that sometimes does other than it should: `frwr`, but for its lies.

use fastrand::Rng;
use memreg_core::device::{Caps, DeviceError};
use memreg_core::memreg::{
    Control, Event, MapError, MemReg, Poison, RegionId, Reject, SegList, Wish, WrBatch,
};
use memreg_core::sizing::{Ask, Limits, SizeError};
use memreg_strategies::Frwr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a strategy may lie. A handle: clones are one switch.
#[derive(Clone, Debug, Default)]
pub struct Honesty(Arc<AtomicBool>);

impl Honesty {
    /// From now on it does not lie.
    pub fn swear(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_sworn(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// See the module.
pub struct Liar {
    truth: Frwr,
    rng: Rng,
    honesty: Honesty,
    /// Regions that were handed out and did not come back.
    live: Vec<RegionId>,
}

/// A lie in so many calls.
const LIES: u32 = 25;

impl Liar {
    pub fn new(seed: u64, honesty: Honesty) -> Liar {
        Liar { truth: Frwr::new(), rng: Rng::with_seed(seed), honesty, live: vec![] }
    }

    fn lies(&mut self) -> bool {
        !self.honesty.is_sworn() && self.rng.u32(..LIES) == 0
    }
}

impl MemReg for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }

    fn check(&self, caps: &Caps) -> Result<(), Reject> {
        self.truth.check(caps)
    }

    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
        self.truth.open(caps, ask)
    }

    fn fill(&mut self, ctl: &mut dyn Control, regions: usize) -> Result<(), DeviceError> {
        self.truth.fill(ctl, regions)
    }

    /// Covers a half, or nothing, or names a region whose key is live.
    fn map(
        &mut self,
        ctl: &mut dyn Control,
        segs: &SegList<'_>,
        out: &mut WrBatch,
    ) -> Result<(), MapError> {
        let mut right = WrBatch::new();
        self.truth.map(ctl, segs, &mut right)?;
        let each = !right.each().is_empty();
        right.spell_out_each(segs);
        let lie = if self.lies() { self.rng.usize(1..=3) } else { 0 };
        let mut told = vec![];
        for (i, wish) in right.wishes().iter().enumerate() {
            let Wish::Register(region, bytes) = wish else { continue };
            let (mut region, mut bytes) = (*region, bytes.clone());
            match lie {
                1 => bytes.end -= (bytes.end - bytes.start) / 2,
                2 => continue,
                3 if i == 0 && !self.live.is_empty() => {
                    region = self.live[self.rng.usize(..self.live.len())];
                }
                _ => {}
            }
            if bytes.start < bytes.end {
                told.push((region, bytes));
            }
            if !self.live.contains(&region) {
                self.live.push(region);
            }
        }
        // A lie about the bytes needs single wishes.
        if each && lie != 1 {
            let told: Vec<_> = told.into_iter().map(|(region, _)| region).collect();
            return Ok(out.register_each(&told)?);
        }
        told.into_iter().try_for_each(|(region, bytes)| Ok(out.register(region, bytes)?))
    }

    /// Revokes nothing, or not all, or one twice.
    fn unmap(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        out: &mut WrBatch,
    ) -> Result<(), Poison> {
        let full = |_| Poison("full");
        if !self.lies() {
            return self.truth.unmap(ctl, live, out);
        }
        match self.rng.u32(..3) {
            0 => Ok(()),
            1 => live.iter().skip(1).try_for_each(|&r| out.invalidate(r).map_err(full)),
            _ => live.iter().chain(live.first()).try_for_each(|&r| out.invalidate(r).map_err(full)),
        }
    }

    fn on_event(&mut self, region: RegionId, event: Event) -> Result<(), Poison> {
        if event != Event::Registered {
            self.live.retain(|r| *r != region);
        }
        self.truth.on_event(region, event)
    }

    fn on_events(&mut self, regions: &[RegionId], event: Event) -> Result<(), Poison> {
        if event != Event::Registered {
            self.live.retain(|r| !regions.contains(r));
        }
        self.truth.on_events(regions, event)
    }

    fn recover(&mut self, ctl: &mut dyn Control, budget: usize) -> Result<usize, DeviceError> {
        self.truth.recover(ctl, budget)
    }

    fn on_drained(&mut self) {
        self.live.clear();
        self.truth.on_drained();
    }
}
