//! Every object of one device by id.

use super::objects::{Cq, Mr, Pd, Qp};
use super::windows::Windows;
use crate::device::errno;
use crate::mem::Allocation;
use crate::types::DeviceId;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// All objects. Behind one lock, which the slow verbs do not hold.
#[derive(Default)]
pub(super) struct Tables {
    // Dropped in this order: windows before their QPs, everything before its PD.
    pub(super) windows: Windows,
    pub(super) qps: Numbered<Qp>,
    pub(super) mrs: Ids<Mr>,
    pub(super) cqs: Ids<Cq>,
    pub(super) pds: Ids<Pd>,
    pub(super) memories: Memories,
}

/// Objects of one kind under numbers that the device gave them.
pub(super) struct Numbered<T> {
    /// In the order of their numbers.
    all: Vec<(u32, Arc<T>)>,
    /// Where the one stands that was asked for last, which mostly is the next one asked for.
    last: usize,
}

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered { all: vec![], last: 0 }
    }
}

impl<T> Numbered<T> {
    #[inline]
    pub(super) fn get(&mut self, num: u32) -> Option<&Arc<T>> {
        if self.all.get(self.last).is_none_or(|(n, _)| *n != num) {
            self.last = self.place(num).ok()?;
        }
        self.all.get(self.last).map(|(_, object)| object)
    }

    /// Where it stands, or would.
    #[inline(never)]
    fn place(&self, num: u32) -> Result<usize, usize> {
        self.all.binary_search_by_key(&num, |(n, _)| *n)
    }

    /// In the place of the one that had the number, if any.
    pub(super) fn insert(&mut self, num: u32, object: Arc<T>) {
        match self.place(num) {
            Ok(at) => self.all[at].1 = object,
            Err(at) => self.all.insert(at, (num, object)),
        }
    }

    pub(super) fn remove(&mut self, num: u32) -> Option<Arc<T>> {
        let at = self.place(num).ok()?;
        Some(self.all.remove(at).1)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<T>> {
        self.all.iter().map(|(_, object)| object)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

/// All memory that the device has ever been lent and that still exists, by the address of its first
/// byte. The memory itself says whether it is lent now.
#[derive(Default)]
pub(super) struct Memories {
    all: BTreeMap<u64, Weak<Allocation>>,
    /// With more than this, those that no longer exist are dropped.
    sweep_at: usize,
}

impl Memories {
    pub(super) fn add(&mut self, memory: &Arc<Allocation>) {
        if self.all.len() >= self.sweep_at {
            self.all.retain(|_, m| m.strong_count() > 0);
            self.sweep_at = 2 * self.all.len() + SWEEP_LEAST;
        }
        self.all.insert(memory.addr(), Arc::downgrade(memory));
    }

    /// The memory that the whole range lies in, if it is lent to this device.
    pub(super) fn holding(&self, addr: u64, len: u64, to: DeviceId) -> Option<Arc<Allocation>> {
        // New memory may lie around the place of some that is gone.
        let mut before = self.all.range(..=addr).rev();
        let (start, memory) = before.find_map(|(start, m)| Some((start, m.upgrade()?)))?;
        if !memory.is_lent_to(to) {
            return None;
        }
        let end = addr.checked_add(len)?;
        let last = start.checked_add(memory.len() as u64)?;
        (end <= last).then_some(memory)
    }

    /// How many are lent to this device.
    pub(super) fn lent_to(&self, device: DeviceId) -> usize {
        let lent = |m: &Weak<Allocation>| m.upgrade().is_some_and(|m| m.is_lent_to(device));
        self.all.values().filter(|m| lent(m)).count()
    }
}

const SWEEP_LEAST: usize = 64;

/// Objects of one kind under ids that count up and are not reused while in use.
pub(super) struct Ids<T> {
    all: Vec<Option<Arc<T>>>,
    free: Vec<u32>,
    count: usize,
}

impl<T> Default for Ids<T> {
    fn default() -> Ids<T> {
        Ids { all: vec![], free: vec![], count: 0 }
    }
}

impl<T> Ids<T> {
    pub(super) fn insert(&mut self, value: T) -> Result<u32, T> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => match u32::try_from(self.all.len()) {
                Ok(id) => {
                    self.all.push(None);
                    id
                }
                Err(_) => return Err(value),
            },
        };
        self.put_back(id, Arc::new(value));
        Ok(id)
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> Option<&Arc<T>> {
        self.all.get(id as usize)?.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Arc<T>)> {
        let used = self.all.iter().enumerate();
        used.filter_map(|(id, v)| Some((u32::try_from(id).ok()?, v.as_ref()?)))
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Takes an object out to end it. Until [`Ids::release`] its id names nothing else.
    ///
    /// # Errors
    /// EINVAL: there is none. EBUSY: something holds on to it.
    pub(super) fn take(&mut self, id: u32) -> Result<T, i32> {
        let slot = self.all.get_mut(id as usize).ok_or(errno::EINVAL)?;
        let object = slot.take().ok_or(errno::EINVAL)?;
        match Arc::try_unwrap(object) {
            Ok(value) => {
                self.count -= 1;
                Ok(value)
            }
            Err(shared) => {
                *slot = Some(shared);
                Err(errno::EBUSY)
            }
        }
    }

    /// The object of an id that was taken is gone: the id is free.
    pub(super) fn release(&mut self, id: u32) {
        self.free.push(id);
    }

    /// Puts an object back that the device would not end.
    pub(super) fn put_back(&mut self, id: u32, value: Arc<T>) {
        if let Some(slot) = self.all.get_mut(id as usize) {
            *slot = Some(value);
            self.count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{DmaBuf, Fenced};

    #[test]
    fn an_object_is_found_by_its_number_whichever_was_asked_for_before() {
        let mut all = Numbered::default();
        for num in [7, 3, 0xff_ffff, 5] {
            all.insert(num, Arc::new(num));
        }
        for before in [3, 5, 7, 9, 0xff_ffff] {
            for num in 0..9 {
                all.get(before);
                assert_eq!(all.get(num).map(|n| **n), [3, 5, 7].contains(&num).then_some(num));
            }
        }
        assert!(all.get(5).is_some());
        assert!(all.remove(3).is_some_and(|n| *n == 3) && all.remove(3).is_none());
        assert_eq!(all.get(5).map(|n| **n), Some(5), "it has moved");
        assert!(all.remove(5).is_some() && all.get(5).is_none());
        all.get(0xff_ffff);
        assert!(all.remove(0xff_ffff).is_some() && all.get(0xff_ffff).is_none());
        all.insert(7, Arc::new(8));
        assert_eq!((all.get(7).map(|n| **n), all.len()), (Some(8), 1));
        assert_eq!(all.values().map(|n| **n).collect::<Vec<_>>(), [8]);
    }

    #[test]
    fn an_object_in_use_is_busy_and_keeps_its_id() {
        let mut t = Ids::default();
        let (a, b) = (t.insert('a').unwrap(), t.insert('b').unwrap());
        let held = Arc::clone(t.get(a).unwrap());
        assert_eq!(t.take(a), Err(errno::EBUSY));
        drop(held);
        assert_eq!(t.take(a), Ok('a'));
        assert_eq!(t.take(a), Err(errno::EINVAL), "already taken");
        assert_eq!((t.insert('c').unwrap(), t.count()), (2, 2), "not reused before its release");
        t.release(a);
        assert_eq!(t.insert('d').unwrap(), a);
        assert_eq!(t.iter().map(|(id, _)| id).collect::<Vec<_>>(), [a, b, 2]);
    }

    #[test]
    fn only_ranges_that_are_lent_whole_can_be_registered() {
        let (mut memories, me) = (Memories::default(), DeviceId(1));
        let (bytes, _) = DmaBuf::new(8192).unwrap().into_exposed();
        let at = bytes.addr();
        memories.add(&bytes.lifetime());
        assert!(memories.holding(at, 8192, me).is_none(), "known and not lent");
        assert!(bytes.lend_to(me));
        memories.all.insert(at + 4096, Weak::new());
        assert!(memories.holding(at, 8192, me).is_some());
        assert!(memories.holding(at + 8191, 1, me).is_some());
        assert!(memories.holding(at, 1, DeviceId(2)).is_none(), "lent to another device");
        assert!(memories.holding(at + 1, 8192, me).is_none());
        assert!(memories.holding(at - 1, 2, me).is_none());
        assert!(memories.holding(at, u64::MAX, me).is_none());
        assert_eq!((memories.lent_to(me), memories.lent_to(DeviceId(2))), (1, 0));
        assert!(bytes.end_loan(me, Fenced::mint()).is_ok());
        assert!(memories.holding(at, 1, me).is_none());
    }

    #[test]
    fn memory_that_is_gone_is_forgotten() {
        let mut memories = Memories::default();
        for _ in 0..1000 {
            let (bytes, _) = DmaBuf::new(8).unwrap().into_exposed();
            memories.add(&bytes.lifetime());
            assert!(memories.all.len() <= SWEEP_LEAST);
        }
    }
}
