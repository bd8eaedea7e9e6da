//! Where every region is: idle, handed out, or condemned.

use super::fifo::Fifo;
use memreg_core::device::FastMrKind;
use memreg_core::memreg::{BatchFull, RegionId, WrBatch};
use slotmap::SecondaryMap;
use std::collections::VecDeque;

/// What is known of a region, and with it where the region is: there is no second book to disagree
/// with (H-46).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Its key is dead; it is in the free list.
    Invalid,
    /// Handed out by `map` and not yet known to be dead.
    Valid,
    /// Nobody knows whether its registration took effect; condemned.
    FlushedFr,
    /// Nobody knows whether its invalidation took effect; condemned.
    FlushedLi,
}

impl State {
    const fn is_condemned(self) -> bool {
        matches!(self, State::FlushedFr | State::FlushedLi)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Region {
    state: State,
    kind: FastMrKind,
}

/// All regions of one strategy.
///
/// The free lists are first in, first out: a region just invalidated is the last to be used again,
/// which gives a late user of its old key the longest time to be refused (POOL-03).
#[derive(Debug, Default)]
pub(super) struct Pool {
    regions: SecondaryMap<RegionId, Region>,
    free: [Fifo; 2],
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
        self.regions.insert(region, Region { state: State::Invalid, kind });
        if self.regions.len() == before {
            // The engine ended an older region by itself and gave its slot to this one.
            self.drop_replaced();
        } else {
            self.total[slot(kind)] += 1;
        }
        self.peak[slot(kind)] = self.peak[slot(kind)].max(self.total[slot(kind)]);
        let free = &mut self.free[slot(kind)];
        free.reserve_for(self.total[slot(kind)]);
        free.push(&[region]);
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
        let regions = &self.regions;
        self.free.iter_mut().for_each(|list| list.retain(|&id| regions.contains_key(id)));
        self.condemned.retain(|&id| regions.contains_key(id));
        self.total = [0; 2];
        for r in self.regions.values() {
            self.total[slot(r.kind)] += 1;
        }
    }

    /// Hands out the region that has been idle longest.
    #[inline]
    pub(super) fn take(&mut self, kind: FastMrKind) -> Option<RegionId> {
        let region = self.free[slot(kind)].pop()?;
        self.regions.get_mut(region)?.state = State::Valid;
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
        let free = &mut self.free[slot(kind)];
        let taken = free.as_slice().get(..count).ok_or(BatchFull)?;
        out.register_each(taken)?;
        for &region in taken {
            if let Some(r) = self.regions.get_mut(region) {
                r.state = State::Valid;
            }
        }
        free.drop_first(count);
        Ok(())
    }

    /// Undoes [`take`](Pool::take).
    pub(super) fn untake(&mut self, region: RegionId) {
        if let Some(r) = self.regions.get_mut(region)
            && r.state == State::Valid
        {
            r.state = State::Invalid;
            self.free[slot(r.kind)].push_first(region);
        }
    }

    /// Handed-out regions are dead and idle again, in this order; of any other nothing changes, so
    /// an event that comes twice does not list it twice, and a condemned one stays so. Returns how
    /// many are in the table.
    #[inline]
    pub(super) fn give_back(&mut self, regions: &[RegionId]) -> usize {
        let kind = FastMrKind::Pages;
        let out = Region { state: State::Valid, kind };
        // Usually that is true of all of them, and then they are listed in one go.
        let mut others = regions;
        while let [region, rest @ ..] = others
            && let Some(r) = self.regions.get_mut(*region)
            && *r == out
        {
            r.state = State::Invalid;
            others = rest;
        }
        let plain = regions.len() - others.len();
        self.free[slot(kind)].push(regions.get(..plain).unwrap_or_default());
        plain + others.iter().filter(|&&region| self.give_back_one(region)).count()
    }

    fn give_back_one(&mut self, region: RegionId) -> bool {
        let Some(r) = self.regions.get_mut(region) else { return false };
        if r.state == State::Valid {
            r.state = State::Invalid;
            self.free[slot(r.kind)].push(&[region]);
        }
        true
    }

    /// Takes regions out of use, wherever they are, until they are rebuilt. Returns how many are in
    /// the table.
    pub(super) fn condemn(&mut self, regions: &[RegionId], why: State) -> usize {
        let mut known = 0;
        for &region in regions {
            let Some(r) = self.regions.get_mut(region) else { continue };
            known += 1;
            if r.state.is_condemned() {
                continue;
            }
            if r.state == State::Invalid {
                self.free[slot(r.kind)].retain(|&f| f != region);
            }
            r.state = why;
            self.condemned.push_back(region);
        }
        known
    }

    /// Condemns everything that is handed out.
    pub(super) fn condemn_busy(&mut self) {
        for (region, r) in &mut self.regions {
            if r.state == State::Valid {
                r.state = State::FlushedFr;
                self.condemned.push_back(region);
            }
        }
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
        match r.state {
            State::Invalid => self.free[slot(r.kind)].retain(|&f| f != region),
            State::Valid => {}
            State::FlushedFr | State::FlushedLi => self.condemned.retain(|&c| c != region),
        }
        Some(r.kind)
    }

    #[inline]
    pub(super) fn state(&self, region: RegionId) -> Option<State> {
        self.regions.get(region).map(|r| r.state)
    }

    /// Idle regions of `kind`.
    pub(super) fn free(&self, kind: FastMrKind) -> usize {
        self.free[slot(kind)].len()
    }

    /// All regions of `kind`.
    pub(super) fn total(&self, kind: FastMrKind) -> usize {
        self.total[slot(kind)]
    }

    pub(super) fn condemned(&self) -> usize {
        self.condemned.len()
    }

    /// Regions handed out.
    pub(super) fn busy(&self) -> usize {
        let all: usize = self.total.iter().sum();
        let free: usize = self.free.iter().map(Fifo::len).sum();
        all.saturating_sub(free + self.condemned.len())
    }

    /// Every region is in exactly one place, and its state says which (H-35).
    #[cfg(test)]
    pub(super) fn assert_sound(&self) {
        let mut seen = SecondaryMap::new();
        let mut once = |id: RegionId| assert!(seen.insert(id, ()).is_none(), "listed twice");
        for kind in [FastMrKind::Pages, FastMrKind::Gaps] {
            for &id in self.free[slot(kind)].as_slice() {
                once(id);
                let r = self.regions[id];
                assert!(r.state == State::Invalid && r.kind == kind);
            }
        }
        for &id in &self.condemned {
            once(id);
            assert!(self.regions[id].state.is_condemned());
        }
        for (id, r) in &self.regions {
            assert_eq!(seen.contains_key(id), r.state != State::Valid, "{r:?}");
        }
        assert_eq!(self.regions.len(), self.total[0] + self.total[1]);
        let valid = self.regions.values().filter(|r| r.state == State::Valid).count();
        assert_eq!(self.busy(), valid);
    }
}

const fn slot(kind: FastMrKind) -> usize {
    match kind {
        FastMrKind::Pages => 0,
        FastMrKind::Gaps => 1,
    }
}
