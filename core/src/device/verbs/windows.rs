//! The key of every window, where it is bound, and what must never be posted.

use super::objects::Mw;
use crate::types::{MrId, MwId, QpId, Rkey};
use ibverbs_sys::ibv_mw;
use std::collections::BTreeMap;

/// All windows of one device, by the index of their keys, which is also their id.
#[derive(Default)]
pub(super) struct Windows {
    all: BTreeMap<u32, Window>,
    /// What the chain that is being posted has changed so far.
    changed: Vec<Change>,
}

struct Window {
    object: Mw,
    binding: Binding,
    /// Named by a bind of the chain that is being posted: its handle still has the old key.
    posting: bool,
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
    before: Binding,
    /// The new key, if the WR is a bind.
    bind: Option<Rkey>,
}

impl Windows {
    /// Takes a new window in; hands it back if another one has its key index.
    pub(super) fn insert(&mut self, object: Mw) -> Result<(MwId, Rkey), Mw> {
        let key = object.key();
        let id = key.index();
        if self.all.contains_key(&id) {
            return Err(object);
        }
        let binding = Binding { key, bound: false, at: None };
        self.all.insert(id, Window { object, binding, posting: false });
        Ok((MwId(id), key))
    }

    /// Takes a window out to end it.
    pub(super) fn remove(&mut self, mw: MwId) -> Option<Removed> {
        self.all.remove(&mw.0).map(|w| Removed { window: w, id: mw.0 })
    }

    /// Puts a window back that the device would not end.
    pub(super) fn restore(&mut self, removed: Removed) {
        self.all.insert(removed.id, removed.window);
    }

    /// Whether a window may still be bound on this QP, which then must not be destroyed.
    pub(super) fn any_on(&self, qp: QpId) -> bool {
        self.all.values().any(|w| w.binding.at.is_some_and(|(q, _)| q == qp))
    }

    /// Whether a bind onto this MR may be in force.
    pub(super) fn any_onto(&self, mr: MrId) -> bool {
        self.all.values().any(|w| w.binding.bound && w.binding.at.is_some_and(|(_, m)| m == mr))
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// WR `i` of the chain binds this window: returns its handle for the WR. `None`: the window is
    /// unknown, the key is not its, or the chain binds it twice, which one handle cannot express.
    pub(super) fn bind(
        &mut self,
        i: usize,
        mw: MwId,
        key: Rkey,
        qp: QpId,
        onto: MrId,
    ) -> Option<*mut ibv_mw> {
        let w = self.all.get_mut(&mw.0)?;
        if key.index() != mw.0 || w.posting {
            return None;
        }
        let (before, bind) = (w.binding, Some(key));
        self.changed.push(Change { place: i, window: mw.0, before, bind });
        w.binding = Binding { key, bound: true, at: Some((qp, onto)) };
        w.posting = true;
        Some(w.object.ptr())
    }

    /// WR `i` of the chain invalidates this key. False, and it must not be posted, unless the key
    /// is that of a window bound on this very QP and not invalidated since: a provider may follow a
    /// null pointer otherwise, inside the kernel.
    pub(super) fn invalidate(&mut self, i: usize, key: Rkey, qp: QpId) -> bool {
        let Some(w) = self.all.get_mut(&key.index()) else { return false };
        let on = w.binding.at.is_some_and(|(q, _)| q == qp);
        if !w.binding.bound || !on || w.binding.key != key {
            return false;
        }
        let before = w.binding;
        self.changed.push(Change { place: i, window: key.index(), before, bind: None });
        w.binding.bound = false;
        true
    }

    /// A peer has invalidated this key.
    pub(super) fn invalidated(&mut self, key: Rkey) {
        if let Some(w) = self.all.get_mut(&key.index())
            && w.binding.key == key
        {
            w.binding.bound = false;
        }
    }

    /// The chain was posted up to `posted`: the changes behind it are undone, and the handles of
    /// accepted binds get their new key.
    pub(super) fn settle(&mut self, posted: usize) {
        while let Some(Change { place, window, before, bind }) = self.changed.pop() {
            let Some(w) = self.all.get_mut(&window) else { continue };
            if place >= posted {
                w.binding = before;
            } else if let Some(key) = bind {
                w.object.set_key(key);
            }
            w.posting &= bind.is_none();
        }
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
