//! Where every region is: idle, handed out, or condemned.

use super::ring::{Place, Ring};
use memreg_core::device::FastMrKind;
use memreg_core::memreg::{BatchFull, MAX_REGIONS, RegionId, WrBatch};
use slotmap::SecondaryMap;
use std::collections::VecDeque;

/// What is known of a region. It follows from where the region is: there is no second book to
/// disagree with (H-46).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Its key is dead; it is idle.
    Invalid,
    /// Handed out by `map` and not yet known to be dead.
    Valid,
    /// Nobody knows whether its registration took effect; condemned.
    FlushedFr,
    /// Nobody knows whether its invalidation took effect; condemned.
    FlushedLi,
}

/// Where a region is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whereabouts {
    /// In the ring of its kind, which knows whether it is handed out.
    Ring(Place),
    /// In the list of the condemned.
    Condemned(Doubt),
}

/// Why a region is condemned: what of it may or may not have taken effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doubt {
    Registration,
    Invalidation,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Region {
    pub(super) whereabouts: Whereabouts,
    kind: FastMrKind,
}

impl Region {
    /// One that a ring is about to take in.
    pub(super) fn new(kind: FastMrKind) -> Region {
        Region { whereabouts: Whereabouts::Ring(0), kind }
    }
}

pub(super) type Regions = SecondaryMap<RegionId, Region>;

/// All regions of one strategy.
///
/// The idle ones are first in, first out: a region just invalidated is the last to be used again,
/// which gives a late user of its old key the longest time to be refused (POOL-03).
#[derive(Debug, Default)]
pub(super) struct Pool {
    regions: Regions,
    rings: [Ring; 2],
    total: [usize; 2],
    /// The most there have been, less what was given up: what `recover` goes back to.
    peak: [usize; 2],
    condemned: VecDeque<RegionId>,
}

impl Pool {
    /// Takes in a new region as idle.
    pub(super) fn add(&mut self, region: RegionId, kind: FastMrKind) {
        if self.regions.contains_key(region) {
            return;
        }
        let before = self.regions.len();
        self.regions.insert(region, Region::new(kind));
        if self.regions.len() == before {
            // The engine ended an older region by itself and gave its slot to this one.
            self.drop_replaced();
        } else {
            self.total[slot(kind)] += 1;
        }
        self.peak[slot(kind)] = self.peak[slot(kind)].max(self.total[slot(kind)]);
        self.rings[slot(kind)].add(region, &mut self.regions);
    }

    /// A region that has ended is not made up for.
    pub(super) fn give_up(&mut self, kind: FastMrKind) {
        let least = self.total[slot(kind)];
        self.peak[slot(kind)] = self.peak[slot(kind)].saturating_sub(1).max(least);
    }

    /// Regions of `kind` that are missing, because newer ones have taken over their ids' slots.
    pub(super) fn missing(&self, kind: FastMrKind) -> usize {
        self.peak[slot(kind)].saturating_sub(self.total[slot(kind)])
    }

    /// Strikes regions from the lists that are no longer in the table.
    fn drop_replaced(&mut self) {
        self.rebuild_rings();
        let regions = &self.regions;
        self.condemned.retain(|&id| regions.contains_key(id));
        self.total = [0; 2];
        for r in self.regions.values() {
            self.total[slot(r.kind)] += 1;
        }
    }

    fn rebuild_rings(&mut self) {
        self.rings.iter_mut().for_each(|ring| ring.rebuild(&mut self.regions));
    }

    /// Hands out the region that has been idle longest.
    #[inline]
    pub(super) fn take(&mut self, kind: FastMrKind) -> Option<RegionId> {
        let ring = &mut self.rings[slot(kind)];
        let &region = ring.first(1)?.0.first()?;
        ring.hand_out(1);
        Some(region)
    }

    /// Hands out the `count` regions that have been idle longest, in that order, as
    /// [`WrBatch::register_each`] takes them: all, or on an error none.
    #[inline]
    pub(super) fn take_each(
        &mut self,
        kind: FastMrKind,
        count: usize,
        out: &mut WrBatch,
    ) -> Result<(), BatchFull> {
        let ring = &mut self.rings[slot(kind)];
        match ring.first(count).ok_or(BatchFull)? {
            (all, []) => out.register_each(all)?,
            (some, others) => register_parts(some, others, out)?,
        }
        ring.hand_out(count);
        Ok(())
    }

    /// Undoes [`take`](Pool::take).
    pub(super) fn untake(&mut self, region: RegionId) {
        if let Some((ring, at)) = self.in_ring(region) {
            self.rings[ring].put_first(at, &mut self.regions);
        }
    }

    /// The ring that a region is in, and where.
    fn in_ring(&self, region: RegionId) -> Option<(usize, Place)> {
        let r = self.regions.get(region)?;
        match r.whereabouts {
            Whereabouts::Ring(at) => Some((slot(r.kind), at)),
            Whereabouts::Condemned(_) => None,
        }
    }

    /// What [`give_back`](Pool::give_back) does, if these are just the ones that have been out
    /// longest, as they usually are; else nothing changes.
    #[inline]
    pub(super) fn give_back_in_turn(&mut self, regions: &[RegionId]) -> bool {
        self.rings[slot(FastMrKind::Pages)].take_back_in_turn(regions)
    }

    /// Handed-out regions are dead and idle again, in this order; of any other nothing changes, so
    /// an event that comes twice does not list it twice, and a condemned one stays so. Returns how
    /// many are in the table.
    #[inline(never)]
    pub(super) fn give_back(&mut self, regions: &[RegionId]) -> usize {
        let mut known = 0;
        for &region in regions {
            known += usize::from(self.regions.contains_key(region));
            if let Some((ring, at)) = self.in_ring(region) {
                self.rings[ring].take_back(at, &mut self.regions);
            }
        }
        known
    }

    /// Takes regions out of use, wherever they are, until they are rebuilt. Returns how many are in
    /// the table.
    pub(super) fn condemn(&mut self, regions: &[RegionId], why: Doubt) -> usize {
        let mut known = 0;
        for &region in regions {
            let Some(r) = self.regions.get_mut(region) else { continue };
            known += 1;
            if let Whereabouts::Ring(_) = r.whereabouts {
                r.whereabouts = Whereabouts::Condemned(why);
                self.condemned.push_back(region);
            }
        }
        self.rebuild_rings();
        known
    }

    /// Condemns everything that is handed out.
    pub(super) fn condemn_busy(&mut self) {
        for (region, r) in &mut self.regions {
            if let Whereabouts::Ring(at) = r.whereabouts
                && !self.rings[slot(r.kind)].is_idle(at)
            {
                r.whereabouts = Whereabouts::Condemned(Doubt::Registration);
                self.condemned.push_back(region);
            }
        }
        self.rebuild_rings();
    }

    /// The region that has been condemned longest, and its kind. It stays where it is.
    pub(super) fn next_condemned(&self) -> Option<(RegionId, FastMrKind)> {
        let &region = self.condemned.front()?;
        Some((region, self.regions.get(region)?.kind))
    }

    /// Puts the next condemned region behind the others.
    pub(super) fn postpone(&mut self, region: RegionId) {
        if self.condemned.front() == Some(&region) {
            self.condemned.rotate_left(1);
        }
    }

    /// Drops a region that has ended, and returns its kind; its id never comes back.
    pub(super) fn forget(&mut self, region: RegionId) -> Option<FastMrKind> {
        let r = self.regions.remove(region)?;
        self.total[slot(r.kind)] -= 1;
        match r.whereabouts {
            Whereabouts::Ring(_) => self.rings[slot(r.kind)].rebuild(&mut self.regions),
            Whereabouts::Condemned(_) => self.condemned.retain(|&c| c != region),
        }
        Some(r.kind)
    }

    pub(super) fn state(&self, region: RegionId) -> Option<State> {
        let r = self.regions.get(region)?;
        Some(match r.whereabouts {
            Whereabouts::Ring(at) if self.rings[slot(r.kind)].is_idle(at) => State::Invalid,
            Whereabouts::Ring(_) => State::Valid,
            Whereabouts::Condemned(Doubt::Registration) => State::FlushedFr,
            Whereabouts::Condemned(Doubt::Invalidation) => State::FlushedLi,
        })
    }

    /// Idle regions of `kind`.
    #[inline]
    pub(super) fn free(&self, kind: FastMrKind) -> usize {
        self.rings[slot(kind)].idle()
    }

    /// All regions of `kind`.
    pub(super) fn total(&self, kind: FastMrKind) -> usize {
        self.total[slot(kind)]
    }

    #[inline]
    pub(super) fn condemned(&self) -> usize {
        self.condemned.len()
    }

    /// Regions handed out.
    #[inline]
    pub(super) fn busy(&self) -> usize {
        self.rings.iter().map(Ring::busy).sum()
    }

    /// Every region is in exactly one place, and the table says which (H-35).
    #[cfg(test)]
    pub(super) fn assert_sound(&self) {
        let mut seen = SecondaryMap::new();
        let mut once = |id: RegionId| assert!(seen.insert(id, ()).is_none(), "listed twice");
        for kind in [FastMrKind::Pages, FastMrKind::Gaps] {
            for (at, id) in self.rings[slot(kind)].places() {
                once(id);
                assert_eq!(self.regions[id], Region { whereabouts: Whereabouts::Ring(at), kind });
            }
        }
        for &id in &self.condemned {
            once(id);
            assert!(matches!(self.regions[id].whereabouts, Whereabouts::Condemned(_)));
        }
        assert!(self.regions.keys().all(|id| seen.contains_key(id)));
        assert_eq!(self.regions.len(), self.total[0] + self.total[1]);
        let valid = self.regions.keys().filter(|&id| self.state(id) == Some(State::Valid)).count();
        assert_eq!(self.busy(), valid);
    }
}

/// Wishes for regions that do not lie side by side.
#[cold]
fn register_parts(a: &[RegionId], b: &[RegionId], out: &mut WrBatch) -> Result<(), BatchFull> {
    let mut all = [RegionId::default(); MAX_REGIONS];
    let room = all.get_mut(..a.len() + b.len()).ok_or(BatchFull)?;
    room.iter_mut().zip(a.iter().chain(b)).for_each(|(place, &region)| *place = region);
    out.register_each(room)
}

const fn slot(kind: FastMrKind) -> usize {
    match kind {
        FastMrKind::Pages => 0,
        FastMrKind::Gaps => 1,
    }
}
