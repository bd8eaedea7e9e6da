//! What the strategy has not heard yet.

use crate::memreg::{Event, RegionId};

/// What the strategy has to hear, in order. Keeps its memory.
///
/// Regions that the same became of, one after the other, are one run: most events come to all
/// regions of an exposure at once.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    regions: Vec<RegionId>,
    /// What became of them, and where in `regions` each run ends.
    runs: Vec<(Event, usize)>,
    /// How many runs are heard, and where the last of those ends.
    heard: usize,
    heard_end: usize,
}

impl EventQueue {
    #[inline]
    pub(crate) fn push(&mut self, region: RegionId, event: Event) {
        self.push_run(&[region], event);
    }

    /// The same became of all these regions.
    #[inline]
    pub(crate) fn push_run(&mut self, regions: &[RegionId], event: Event) {
        let before = self.regions.len();
        self.regions.extend_from_slice(regions);
        let end = self.regions.len();
        match self.runs.last_mut() {
            // A run that is being heard gets no longer.
            Some((of, last)) if *of == event && *last > self.heard_end => *last = end,
            _ if end > before => self.runs.push((event, end)),
            _ => {}
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.heard == self.runs.len()
    }

    /// The next run; nothing is left of the queue once there is none.
    #[inline]
    pub(crate) fn pop_run(&mut self) -> Option<(&[RegionId], Event)> {
        let Some(&(event, end)) = self.runs.get(self.heard) else {
            self.regions.clear();
            self.runs.clear();
            (self.heard, self.heard_end) = (0, 0);
            return None;
        };
        let start = std::mem::replace(&mut self.heard_end, end);
        self.heard += 1;
        Some((self.regions.get(start..end).unwrap_or_default(), event))
    }

    pub(crate) fn contains(&self, region: RegionId, event: Event) -> bool {
        let mut start = self.heard_end;
        self.runs.iter().skip(self.heard).any(|&(of, end)| {
            let run = self.regions.get(std::mem::replace(&mut start, end)..end);
            of == event && run.unwrap_or_default().contains(&region)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Event::{Invalidated, NeverPosted, Registered};

    fn ids(n: usize) -> Vec<RegionId> {
        let mut map = slotmap::SlotMap::with_key();
        (0..n).map(|_| map.insert(())).collect()
    }

    #[test]
    fn the_same_event_in_a_row_is_one_run() {
        let (r, mut q) = (ids(5), EventQueue::default());
        assert!(q.is_empty() && q.pop_run().is_none());
        q.push_run(&[], Registered);
        assert!(q.is_empty());
        q.push(r[0], Registered);
        q.push_run(&r[1..3], Registered);
        q.push_run(&[], Invalidated);
        q.push(r[3], Invalidated);
        q.push(r[0], Registered);
        assert!(!q.is_empty() && q.contains(r[2], Registered) && q.contains(r[3], Invalidated));
        assert!(!q.contains(r[3], Registered) && !q.contains(r[4], Registered));
        assert_eq!(q.pop_run(), Some((&r[..3], Registered)));
        assert!(!q.contains(r[2], Registered) && q.contains(r[0], Registered));
        assert_eq!(q.pop_run(), Some((&r[3..4], Invalidated)));
        assert_eq!(q.pop_run(), Some((&r[..1], Registered)));
        assert!(q.is_empty() && !q.contains(r[0], Registered));
        assert_eq!(q.pop_run(), None);
    }

    #[test]
    fn a_run_that_was_heard_gets_no_longer() {
        let (r, mut q) = (ids(3), EventQueue::default());
        q.push(r[0], NeverPosted);
        assert_eq!(q.pop_run(), Some((&r[..1], NeverPosted)));
        q.push(r[1], NeverPosted);
        q.push_run(&[], NeverPosted);
        q.push(r[2], NeverPosted);
        assert!(!q.contains(r[0], NeverPosted) && q.contains(r[1], NeverPosted));
        assert_eq!(q.pop_run(), Some((&r[1..], NeverPosted)));
        assert_eq!(q.pop_run(), None);
    }
}
