//! A queue of regions that lie in one piece.

use memreg_core::memreg::RegionId;

/// First in, first out. Many are looked at, taken and given in one go, because they stand side by
/// side: what was taken leaves a hole at the front, which is closed once there is no room behind.
#[derive(Debug, Default)]
pub(super) struct Fifo {
    list: Vec<RegionId>,
    /// Where the queue begins in the list.
    head: usize,
}

impl Fifo {
    /// Memory for a queue that never holds more than `most`.
    ///
    /// # Cost
    /// With as much room again, closing the hole moves each region at most once for each that was
    /// taken.
    pub(super) fn reserve_for(&mut self, most: usize) {
        let room = most.saturating_mul(2);
        if room > self.list.capacity() {
            self.list.reserve(room.saturating_sub(self.list.len()));
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.list.len().saturating_sub(self.head)
    }

    /// All of them, the first first.
    #[inline]
    pub(super) fn as_slice(&self) -> &[RegionId] {
        self.list.get(self.head..).unwrap_or_default()
    }

    /// Takes the first away.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<RegionId> {
        let first = self.as_slice().first().copied()?;
        self.head += 1;
        Some(first)
    }

    /// Takes the first `count` away, which the caller has seen in [`as_slice`](Fifo::as_slice).
    #[inline]
    pub(super) fn drop_first(&mut self, count: usize) {
        self.head = self.list.len().min(self.head.saturating_add(count));
    }

    /// Puts one in front of all others.
    pub(super) fn push_first(&mut self, region: RegionId) {
        match self.head.checked_sub(1) {
            None => self.list.insert(0, region),
            Some(before) => {
                self.head = before;
                if let Some(place) = self.list.get_mut(before) {
                    *place = region;
                }
            }
        }
    }

    /// Puts these behind the others.
    #[inline]
    pub(super) fn push(&mut self, regions: &[RegionId]) {
        if regions.len() > self.list.capacity() - self.list.len() {
            self.close_hole();
        }
        self.list.extend_from_slice(regions);
    }

    /// Strikes out what does not stay.
    pub(super) fn retain(&mut self, stays: impl Fn(&RegionId) -> bool) {
        self.close_hole();
        self.list.retain(stays);
    }

    #[cold]
    fn close_hole(&mut self) {
        self.list.drain(..self.head);
        self.head = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        DropFirst(usize),
        Pop,
        Unpop,
        Strike(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..9usize).prop_map(Step::Push),
            (0..9usize).prop_map(Step::DropFirst),
            Just(Step::Pop),
            Just(Step::Unpop),
            (0..40usize).prop_map(Step::Strike),
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_queue_and_needs_no_memory_within_its_bound(
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let mut ids = slotmap::SlotMap::with_key();
            let ids: Vec<RegionId> = (0..40).map(|_| ids.insert(())).collect();
            let (mut plain, mut q) = (VecDeque::new(), Fifo::default());
            let mut idle = ids.clone();
            q.reserve_for(40);
            let room = q.list.capacity();
            for step in steps {
                match step {
                    Step::Push(n) => {
                        let more = idle.split_off(idle.len().saturating_sub(n));
                        plain.extend(&more);
                        q.push(&more);
                    }
                    Step::DropFirst(n) => {
                        idle.extend(plain.drain(..n.min(plain.len())));
                        q.drop_first(n);
                    }
                    Step::Pop => {
                        let first = plain.pop_front();
                        idle.extend(first);
                        prop_assert_eq!(q.pop(), first);
                    }
                    Step::Unpop => {
                        if let Some(id) = idle.pop() {
                            plain.push_front(id);
                            q.push_first(id);
                        }
                    }
                    Step::Strike(k) => {
                        if plain.contains(&ids[k]) {
                            idle.push(ids[k]);
                        }
                        plain.retain(|&id| id != ids[k]);
                        q.retain(|&id| id != ids[k]);
                    }
                }
                prop_assert_eq!(q.as_slice(), &plain.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!((q.len(), q.list.capacity()), (plain.len(), room));
            }
        }
    }
}
