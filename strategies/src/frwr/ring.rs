//! The usable regions of one kind, in the order of their use.

use super::pool::{Regions, Whereabouts};
use memreg_core::memreg::RegionId;
use slotmap::Key;

/// A place in the list of a [`Ring`].
pub(super) type Place = usize;

/// The regions that are idle, and behind them those that are handed out, in a ring.
///
/// The idle are a queue: the first is handed out, and what comes back is the last. Regions mostly
/// come back in the order in which they went: then nothing moves but the border between the handed
/// out and the idle. One that comes back out of turn changes places with the one at that border.
#[derive(Debug, Default)]
pub(super) struct Ring {
    list: Vec<RegionId>,
    /// The place of the first idle one.
    head: Place,
    /// How many are idle.
    idle: usize,
}

impl Ring {
    #[inline]
    pub(super) fn idle(&self) -> usize {
        self.idle
    }

    /// How many are handed out.
    #[inline]
    pub(super) fn busy(&self) -> usize {
        self.list.len() - self.idle
    }

    /// Whether the one at a place is idle.
    #[inline]
    pub(super) fn is_idle(&self, at: Place) -> bool {
        let behind_head = at.checked_sub(self.head).unwrap_or(at + self.list.len() - self.head);
        behind_head < self.idle
    }

    /// The first `count` idle ones, in two parts where the list ends between them; `None` if there
    /// are not so many.
    #[inline]
    pub(super) fn first(&self, count: usize) -> Option<(&[RegionId], &[RegionId])> {
        if count > self.idle {
            return None;
        }
        Some(match self.list.get(self.head..self.head + count) {
            Some(all) => (all, &[]),
            None => self.parts(self.head, count),
        })
    }

    /// Hands out the first `count` idle ones, which the caller has seen.
    #[inline]
    pub(super) fn hand_out(&mut self, count: usize) {
        let count = count.min(self.idle);
        self.head = self.behind_head(count);
        self.idle -= count;
    }

    /// Takes back these, if they are just the ones that have been out longest, in that order; else
    /// nothing changes.
    #[inline]
    pub(super) fn take_back_in_turn(&mut self, regions: &[RegionId]) -> bool {
        let from = self.behind_head(self.idle);
        let in_turn = regions.len() <= self.busy()
            && match self.list.get(from..from + regions.len()) {
                Some(out_longest) => are_same(out_longest, regions),
                None => self.are_same_parts(from, regions),
            };
        if in_turn {
            self.idle += regions.len();
        }
        in_turn
    }

    /// Takes back the one at a place, whenever it was handed out.
    pub(super) fn take_back(&mut self, at: Place, regions: &mut Regions) {
        if !self.is_idle(at) {
            self.swap(at, self.behind_head(self.idle), regions);
            self.idle += 1;
        }
    }

    /// Takes back the one at a place as the first to be handed out again.
    pub(super) fn put_first(&mut self, at: Place, regions: &mut Regions) {
        if !self.is_idle(at) {
            let before = self.head.checked_sub(1).unwrap_or(self.list.len() - 1);
            self.swap(at, before, regions);
            self.head = before;
            self.idle += 1;
        }
    }

    /// Puts a new one behind the idle ones.
    ///
    /// # Cost
    /// The first after one was handed out goes through the list, others do not.
    pub(super) fn add(&mut self, region: RegionId, regions: &mut Regions) {
        if self.head != 0 {
            self.rebuild(regions);
        }
        self.list.push(region);
        self.swap(self.idle, self.list.len() - 1, regions);
        self.idle += 1;
    }

    /// Strikes out what is no longer usable, and lets the list begin with the idle ones.
    pub(super) fn rebuild(&mut self, regions: &mut Regions) {
        self.list.rotate_left(self.head);
        let known = &*regions;
        let stays = |id: &RegionId| {
            known.get(*id).is_some_and(|r| matches!(r.whereabouts, Whereabouts::Ring(_)))
        };
        let idle = self.list.iter().take(self.idle).filter(|&id| stays(id)).count();
        self.list.retain(stays);
        (self.head, self.idle) = (0, idle);
        for (at, &region) in self.list.iter().enumerate() {
            if let Some(r) = regions.get_mut(region) {
                r.whereabouts = Whereabouts::Ring(at);
            }
        }
    }

    fn swap(&mut self, a: Place, b: Place, regions: &mut Regions) {
        self.list.swap(a, b);
        for at in [a, b] {
            if let Some(r) = self.list.get(at).and_then(|&region| regions.get_mut(region)) {
                r.whereabouts = Whereabouts::Ring(at);
            }
        }
    }

    /// The place `count` behind the first idle one, for a count within the list.
    #[inline]
    fn behind_head(&self, count: usize) -> Place {
        let at = self.head + count;
        if at < self.list.len() { at } else { at - self.list.len() }
    }

    /// The `count` from a place on: those up to the end of the list, and those from its start.
    #[inline(never)]
    fn parts(&self, from: Place, count: usize) -> (&[RegionId], &[RegionId]) {
        let (start, end) = self.list.split_at(from.min(self.list.len()));
        let left = count.saturating_sub(end.len());
        (end, start.get(..left).unwrap_or(start))
    }

    #[inline(never)]
    fn are_same_parts(&self, from: Place, regions: &[RegionId]) -> bool {
        let (one, two) = self.parts(from, regions.len());
        let (first, second) = regions.split_at(one.len().min(regions.len()));
        are_same(one, first) && are_same(two, second)
    }

    /// All of them, where they stand.
    #[cfg(test)]
    pub(super) fn places(&self) -> impl Iterator<Item = (Place, RegionId)> + '_ {
        assert!(self.idle <= self.list.len() && self.head <= self.list.len());
        self.list.iter().copied().enumerate()
    }
}

/// Whether they are the same, with no way out at the first that is not: so several are compared at
/// once.
#[inline]
fn are_same(a: &[RegionId], b: &[RegionId]) -> bool {
    let differ = |(a, b): (&RegionId, &RegionId)| a.data().as_ffi() ^ b.data().as_ffi();
    a.len() == b.len() && a.iter().zip(b).map(differ).fold(0, |all, d| all | d) == 0
}

#[cfg(test)]
mod tests {
    use super::super::pool::Region;
    use super::*;
    use memreg_core::device::FastMrKind;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Clone, Debug)]
    enum Step {
        Add,
        HandOut(usize),
        TakeBackInTurn(usize),
        /// Of those that are out, a few from a place on, backwards or not.
        TakeBack(usize, usize, bool),
        PutFirst(usize),
        Strike(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => Just(Step::Add),
            4 => (0..9usize).prop_map(Step::HandOut),
            4 => (0..9usize).prop_map(Step::TakeBackInTurn),
            2 => any::<(usize, usize, bool)>().prop_map(|(k, n, b)| Step::TakeBack(k, n % 5, b)),
            1 => any::<usize>().prop_map(Step::PutFirst),
            1 => any::<usize>().prop_map(Step::Strike),
        ]
    }

    fn place(regions: &Regions, id: RegionId) -> Place {
        match regions[id].whereabouts {
            Whereabouts::Ring(at) => at,
            Whereabouts::Condemned(_) => panic!("not in the ring"),
        }
    }

    #[test]
    fn what_comes_back_as_it_went_out_is_taken_back_in_one_go() {
        let mut ids = slotmap::SlotMap::with_key();
        let ids: Vec<RegionId> = (0..10).map(|_| ids.insert(())).collect();
        let (mut ring, mut regions) = (Ring::default(), Regions::new());
        for &id in &ids {
            regions.insert(id, Region::new(FastMrKind::Pages));
            ring.add(id, &mut regions);
        }
        let mut order = ids.iter().cycle().copied();
        let mut hand_out = |ring: &mut Ring| {
            let (one, two) = ring.first(3).unwrap();
            let taken: Vec<_> = one.iter().chain(two).copied().collect();
            ring.hand_out(3);
            assert!(order.by_ref().take(3).eq(taken.iter().copied()));
            taken
        };
        // One at a time and two in one go, wherever the list ends.
        for _ in 0..10 {
            let out = [hand_out(&mut ring), hand_out(&mut ring), hand_out(&mut ring)];
            assert!(!ring.take_back_in_turn(&out[1]));
            assert!(ring.take_back_in_turn(&out[0]) && !ring.take_back_in_turn(&out[0]));
            assert!(ring.take_back_in_turn(&out[1..].concat()));
        }
        // One list that overtakes another leaves that one together.
        let (first, second) = (hand_out(&mut ring), hand_out(&mut ring));
        for &id in &second {
            ring.take_back(place(&regions, id), &mut regions);
        }
        assert!(ring.take_back_in_turn(&first));
    }

    proptest! {
        #[test]
        fn pool_03_the_idle_are_a_queue_whatever_order_the_others_come_back_in(
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let mut ids = slotmap::SlotMap::with_key();
            let (mut ring, mut regions) = (Ring::default(), Regions::new());
            let (mut idle, mut out) = (VecDeque::new(), vec![]);
            for step in steps {
                match step {
                    Step::Add => {
                        let id: RegionId = ids.insert(());
                        regions.insert(id, Region::new(FastMrKind::Pages));
                        ring.add(id, &mut regions);
                        idle.push_back(id);
                    }
                    Step::HandOut(n) => match ring.first(n) {
                        None => prop_assert!(n > idle.len()),
                        Some((one, two)) => {
                            let taken: Vec<_> = idle.drain(..n).collect();
                            prop_assert_eq!([one, two].concat(), &taken[..]);
                            ring.hand_out(n);
                            out.extend(taken);
                        }
                    },
                    Step::TakeBackInTurn(n) => {
                        // If others came back out of turn, the ring has an order of its own.
                        let back = out.get(..n).unwrap_or(&out).to_vec();
                        if ring.take_back_in_turn(&back) {
                            idle.extend(out.drain(..back.len()));
                        }
                        if let Some(&id) = out.first() {
                            prop_assert!(!ring.take_back_in_turn(&[id, id]));
                        }
                        if let Some(&id) = idle.back() {
                            prop_assert!(!ring.take_back_in_turn(&[id]));
                        }
                        prop_assert!(!ring.take_back_in_turn(&[RegionId::default()]));
                    }
                    Step::TakeBack(k, n, backwards) if !out.is_empty() => {
                        let at = k % out.len();
                        let mut back: Vec<_> = out.drain(at..out.len().min(at + n)).collect();
                        if backwards {
                            back.reverse();
                        }
                        for &id in &back {
                            ring.take_back(place(&regions, id), &mut regions);
                            // Twice changes nothing.
                            ring.take_back(place(&regions, id), &mut regions);
                        }
                        idle.extend(back);
                    }
                    Step::PutFirst(k) if !out.is_empty() => {
                        let id = out.swap_remove(k % out.len());
                        ring.put_first(place(&regions, id), &mut regions);
                        ring.put_first(place(&regions, id), &mut regions);
                        idle.push_front(id);
                    }
                    Step::Strike(k) if !regions.is_empty() => {
                        let id = regions.keys().nth(k % regions.len()).unwrap_or_default();
                        regions.remove(id);
                        ring.rebuild(&mut regions);
                        idle.retain(|&i| i != id);
                        out.retain(|&i| i != id);
                    }
                    _ => {}
                }
                prop_assert_eq!((ring.idle(), ring.busy()), (idle.len(), out.len()));
                for (at, id) in ring.places() {
                    prop_assert_eq!(place(&regions, id), at);
                    prop_assert_eq!(ring.is_idle(at), idle.contains(&id));
                    prop_assert!(idle.contains(&id) != out.contains(&id));
                }
                let (one, two) = ring.first(ring.idle()).unwrap_or_default();
                prop_assert!([one, two].concat().iter().eq(&idle));
            }
        }
    }
}
