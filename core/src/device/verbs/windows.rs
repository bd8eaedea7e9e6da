//! The key of every window, where it is bound, and what must never be posted.

use super::objects::Mw;
use crate::types::{MrId, MwId, QpId, Rkey};
use ibverbs_sys::ibv_mw;

/// All windows of one device, by id and by the index of their keys.
#[derive(Default)]
pub(super) struct Windows {
    all: Vec<Option<Window>>,
    /// Ids that name nothing.
    free: Vec<u32>,
    by_index: KeyIndex,
    count: usize,
    /// What the chain that is being posted has changed so far.
    changed: Vec<Change>,
    /// Whether a bind is among them.
    binds: bool,
    /// Number of the chain that is being put straight into the queue.
    chain: u64,
}

struct Window {
    object: Mw,
    binding: Binding,
    /// Named by a bind of the chain that is being posted: its handle still has the old key.
    posting: bool,
    /// The last chain put straight into the queue that changed it, and what was before.
    changed_by: u64,
    before: Binding,
}

impl Window {
    #[inline]
    fn change(&mut self, chain: u64, to: Binding) {
        if self.changed_by != chain {
            (self.changed_by, self.before) = (chain, self.binding);
        }
        self.binding = to;
    }

    /// Whether a LOCAL_INV of this key may be posted on this QP.
    #[inline]
    fn may_invalidate(&self, key: Rkey, qp: QpId) -> bool {
        let on = self.binding.at.is_some_and(|(q, _)| q == qp);
        self.binding.bound && on && self.binding.key == key
    }
}

/// What is known of a window without asking the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Binding {
    key: Rkey,
    /// A bind with this key was posted, and no invalidation of it.
    bound: bool,
    /// Where it was bound last, and onto what. A WR may have been flushed, so an invalidation that
    /// was posted does not end this; the next bind and the end of the window do.
    at: Option<(QpId, MrId)>,
}

/// What one WR of a chain changes.
struct Change {
    /// Its place in the chain.
    place: usize,
    window: u32,
    bind: bool,
    before: Binding,
}

impl Windows {
    /// Takes a new window in; hands it back if another one has its key index.
    pub(super) fn insert(&mut self, object: Mw) -> Result<(MwId, Rkey), Mw> {
        let key = object.key();
        if self.by_index.get(key.index()).is_some() {
            return Err(object);
        }
        let id = match self.free.pop() {
            Some(id) => id,
            None => match u32::try_from(self.all.len()) {
                Ok(id) => {
                    self.all.push(None);
                    id
                }
                Err(_) => return Err(object),
            },
        };
        let binding = Binding { key, bound: false, at: None };
        let before = binding;
        self.put(id, Window { object, binding, posting: false, changed_by: 0, before });
        Ok((MwId(id), key))
    }

    fn put(&mut self, id: u32, window: Window) {
        self.by_index.set(window.binding.key.index(), Some(id));
        if let Some(slot) = self.all.get_mut(id as usize) {
            *slot = Some(window);
            self.count += 1;
        }
    }

    /// Takes a window out to end it. Until [`Windows::release`] its id names nothing else.
    pub(super) fn remove(&mut self, mw: MwId) -> Option<Removed> {
        let window = self.all.get_mut(mw.0 as usize)?.take()?;
        self.count -= 1;
        self.by_index.set(window.binding.key.index(), None);
        Some(Removed { window, id: mw.0 })
    }

    /// A window that was taken out is gone: its id is free.
    pub(super) fn release(&mut self, mw: MwId) {
        self.free.push(mw.0);
    }

    /// Puts a window back that the device would not end.
    pub(super) fn restore(&mut self, removed: Removed) {
        self.put(removed.id, removed.window);
    }

    /// Whether a window may still be bound on this QP, which then must not be destroyed.
    pub(super) fn any_on(&self, qp: QpId) -> bool {
        self.bindings().any(|b| b.at.is_some_and(|(q, _)| q == qp))
    }

    /// Whether a bind onto this MR may be in force.
    pub(super) fn any_onto(&self, mr: MrId) -> bool {
        self.bindings().any(|b| b.bound && b.at.is_some_and(|(_, m)| m == mr))
    }

    fn bindings(&self) -> impl Iterator<Item = &Binding> {
        self.all.iter().flatten().map(|w| &w.binding)
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// WR `i` of the chain binds this window: returns its handle for the WR. `None`: the window is
    /// unknown, the key is not its, or the chain binds it twice, which one handle cannot express.
    #[inline]
    pub(super) fn bind(
        &mut self,
        i: usize,
        mw: MwId,
        key: Rkey,
        qp: QpId,
        onto: MrId,
    ) -> Option<*mut ibv_mw> {
        let w = self.all.get_mut(mw.0 as usize)?.as_mut()?;
        if key.index() != w.binding.key.index() || w.posting {
            return None;
        }
        self.changed.push(Change { place: i, window: mw.0, bind: true, before: w.binding });
        w.binding = Binding { key, bound: true, at: Some((qp, onto)) };
        w.posting = true;
        self.binds = true;
        Some(w.object.ptr())
    }

    /// WR `i` of the chain invalidates this key. False, and it must not be posted, unless the key
    /// is that of a window bound on this very QP and not invalidated since: a provider may follow a
    /// null pointer otherwise, inside the kernel.
    #[inline]
    pub(super) fn invalidate(&mut self, i: usize, key: Rkey, qp: QpId) -> bool {
        let Some(id) = self.by_index.get(key.index()) else { return false };
        let Some(Some(w)) = self.all.get_mut(id as usize) else { return false };
        if !w.may_invalidate(key, qp) {
            return false;
        }
        self.changed.push(Change { place: i, window: id, bind: false, before: w.binding });
        w.binding.bound = false;
        true
    }

    /// A chain is about to be put straight into the queue.
    pub(super) fn begin_direct(&mut self) {
        self.chain += 1;
    }

    /// As [`bind`](Windows::bind), of a WR that `put` puts straight into the queue: its handle has
    /// the new key from then on, so a chain may bind it again.
    #[inline]
    pub(super) fn bind_direct(
        &mut self,
        mw: MwId,
        key: Rkey,
        at: (QpId, MrId),
        put: impl FnOnce(*mut ibv_mw),
    ) -> bool {
        let Some(Some(w)) = self.all.get_mut(mw.0 as usize) else { return false };
        if key.index() != w.binding.key.index() {
            return false;
        }
        w.change(self.chain, Binding { key, bound: true, at: Some(at) });
        put(w.object.ptr());
        w.object.set_key(key);
        true
    }

    /// As [`invalidate`](Windows::invalidate), of a WR that goes straight into the queue.
    #[inline]
    pub(super) fn invalidate_direct(&mut self, key: Rkey, qp: QpId) -> bool {
        let Some(id) = self.by_index.get(key.index()) else { return false };
        let Some(Some(w)) = self.all.get_mut(id as usize) else { return false };
        if !w.may_invalidate(key, qp) {
            return false;
        }
        w.change(self.chain, Binding { bound: false, ..w.binding });
        true
    }

    /// Nothing of the chain was posted: what it changed is as before.
    #[cold]
    pub(super) fn undo_direct(&mut self) {
        for w in self.all.iter_mut().flatten().filter(|w| w.changed_by == self.chain) {
            w.binding = w.before;
            w.object.set_key(w.binding.key);
            w.changed_by = 0;
        }
    }

    /// A peer has invalidated this key.
    pub(super) fn invalidated(&mut self, key: Rkey) {
        if let Some(id) = self.by_index.get(key.index())
            && let Some(Some(w)) = self.all.get_mut(id as usize)
            && w.binding.key == key
        {
            w.binding.bound = false;
        }
    }

    /// The whole chain was posted: the handles of its binds get their new key.
    pub(super) fn settle(&mut self) {
        if self.binds {
            for change in self.changed.iter().filter(|c| c.bind) {
                if let Some(Some(w)) = self.all.get_mut(change.window as usize) {
                    w.object.set_key(w.binding.key);
                    w.posting = false;
                }
            }
        }
        self.changed.clear();
        self.binds = false;
    }

    /// The chain was posted up to `posted`: the changes behind it are undone, and the rest is
    /// settled.
    pub(super) fn settle_prefix(&mut self, posted: usize) {
        while let Some(last) = self.changed.pop_if(|c| c.place >= posted) {
            if let Some(Some(w)) = self.all.get_mut(last.window as usize) {
                w.binding = last.before;
                w.posting &= !last.bind;
            }
        }
        self.settle();
    }
}

/// A window that is not in the table; dropping it ends it.
pub(super) struct Removed {
    window: Window,
    id: u32,
}

impl Removed {
    pub(super) fn end(&mut self) -> Result<(), i32> {
        self.window.object.end()
    }
}

/// The window of each key index, in pages of which only those in use exist.
#[derive(Default)]
struct KeyIndex {
    pages: Vec<Option<Box<[u32; PAGE]>>>,
}

const PAGE: usize = 256;
/// No window.
const NONE: u32 = u32::MAX;

impl KeyIndex {
    #[inline]
    fn get(&self, index: u32) -> Option<u32> {
        let page = self.pages.get(index as usize / PAGE)?.as_ref()?;
        Some(page[index as usize % PAGE]).filter(|&id| id != NONE)
    }

    fn set(&mut self, index: u32, id: Option<u32>) {
        let (page, place) = (index as usize / PAGE, index as usize % PAGE);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page].get_or_insert_with(|| Box::new([NONE; PAGE]));
        page[place] = id.unwrap_or(NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_index_has_a_place_of_its_own() {
        let mut keys = KeyIndex::default();
        let all = [0, 1, 255, 256, 0x1_0000, 0xff_ffff];
        for (id, &index) in (0..).zip(&all) {
            assert_eq!(keys.get(index), None);
            keys.set(index, Some(id));
        }
        assert!((0..).zip(&all).all(|(id, &index)| keys.get(index) == Some(id)));
        keys.set(255, None);
        assert_eq!((keys.get(255), keys.get(256)), (None, Some(3)));
    }
}
