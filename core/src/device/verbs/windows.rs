//! The key of every window, where it is bound, and what must never be posted.
#![allow(unsafe_code)] // see the obligations in the parent module

use super::objects::Mw;
use crate::device::{Wr, WrOp};
use crate::types::{MrId, MwId, QpId, Rkey, Segment};
use ibverbs_sys::ibv_mw;
use std::collections::BTreeMap;
use std::ptr;

/// All windows of one device. The id of a window is the index of its keys, which no two have at
/// the same time.
#[derive(Default)]
pub(super) struct Windows {
    owned: BTreeMap<u32, Mw>,
    states: Pages,
    /// What the chain that is being posted has changed so far.
    changed: Vec<Change>,
    /// Whether a bind is among them.
    binds: bool,
    /// For the chain that is being put straight into the queue: by the place of a bind in it, what
    /// was before.
    before: Vec<Binding>,
}

/// What a post needs of one window: half a cache line.
pub(super) struct Window {
    binding: Binding,
    /// Valid while the window is in the table.
    handle: *mut ibv_mw,
    /// Its id; `NOBODY`, which no id equals, where there is no window.
    id: u32,
}

// SAFETY: O1, O5, O6.
unsafe impl Send for Window {}

/// What is known of a window without asking the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Binding {
    key: Rkey,
    /// Onto what it was bound last.
    onto: MrId,
    /// A bind on this QP with this key was posted, and no invalidation of it; else `NOWHERE`.
    bound_on: QpId,
    /// Where it was bound last. A WR may have been flushed, so an invalidation that was posted does
    /// not end this; the next bind and the end of the window do.
    last_on: QpId,
}

impl Binding {
    const fn free(key: Rkey) -> Binding {
        Binding { key, onto: MrId(0), bound_on: NOWHERE, last_on: NOWHERE }
    }

    /// A bind that was posted on this QP.
    #[inline]
    pub(super) fn bound(key: Rkey, onto: MrId, qp: QpId) -> Binding {
        Binding { key, onto, bound_on: qp, last_on: qp }
    }
}

/// The number of no QP: numbers have 24 bits.
pub(super) const NOWHERE: QpId = QpId(u32::MAX);
/// The id of no window: key indexes have 24 bits.
const NOBODY: u32 = u32::MAX;

impl Window {
    const NONE: Window =
        Window { binding: Binding::free(Rkey::from_bits(0)), handle: ptr::null_mut(), id: NOBODY };

    /// Whether a LOCAL_INV of this key may be posted on this QP.
    #[inline]
    fn may_invalidate(&self, key: Rkey, qp: QpId) -> bool {
        self.binding.key == key && self.binding.bound_on == qp
    }

    /// The key in the handle: what a bind tells the device that the key was so far.
    fn handle_key(&self) -> Rkey {
        if self.handle.is_null() {
            return self.binding.key;
        }
        // SAFETY: O1, O5.
        Rkey::from_bits(unsafe { (*self.handle).rkey })
    }

    /// Stores the key of an accepted bind, also in the handle, which the library leaves to its
    /// caller.
    #[inline]
    fn set_key(&mut self, key: Rkey) {
        debug_assert!(self.id != NOBODY);
        self.binding.key = key;
        // SAFETY: O1, O5: called for windows that are in the table.
        unsafe { (*self.handle).rkey = key.to_bits() };
    }
}

/// What one WR of a chain changes.
struct Change {
    /// Its place in the chain.
    place: usize,
    index: u32,
    bind: bool,
    before: Binding,
}

impl Windows {
    /// Takes a new window in; hands it back if another one has its key index.
    pub(super) fn insert(&mut self, object: Mw) -> Result<(MwId, Rkey), Mw> {
        let key = object.key();
        if !self.states.add(object.ptr(), Binding::free(key)) {
            return Err(object);
        }
        self.owned.insert(key.index(), object);
        Ok((MwId(key.index()), key))
    }

    /// Takes a window out to end it.
    pub(super) fn remove(&mut self, mw: MwId) -> Option<Removed> {
        let object = self.owned.remove(&mw.0)?;
        let binding = self.states.take(mw.0)?;
        Some(Removed { object, binding })
    }

    /// Puts a window back that the device would not end.
    pub(super) fn restore(&mut self, removed: Removed) {
        let Removed { object, binding } = removed;
        // Its place is taken only if the device has given its key away meanwhile.
        if self.states.add(object.ptr(), binding) {
            self.owned.insert(binding.key.index(), object);
        }
    }

    /// Whether a window may still be bound on this QP, which then must not be destroyed.
    pub(super) fn any_on(&self, qp: QpId) -> bool {
        self.states.bindings().any(|b| b.last_on == qp)
    }

    /// Whether a bind onto this MR may be in force.
    pub(super) fn any_onto(&self, mr: MrId) -> bool {
        self.states.bindings().any(|b| b.bound_on != NOWHERE && b.onto == mr)
    }

    pub(super) fn count(&self) -> usize {
        self.owned.len()
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
        let w = self.states.get_mut(key.index())?;
        // The handle gets its key when the chain was posted.
        if w.id != mw.0 || w.handle_key() != w.binding.key {
            return None;
        }
        self.changed.push(Change { place: i, index: mw.0, bind: true, before: w.binding });
        w.binding = Binding::bound(key, onto, qp);
        self.binds = true;
        Some(w.handle)
    }

    /// WR `i` of the chain invalidates this key. False, and it must not be posted, unless the key
    /// is that of a window bound on this very QP and not invalidated since: a provider may follow a
    /// null pointer otherwise, inside the kernel.
    pub(super) fn invalidate(&mut self, i: usize, key: Rkey, qp: QpId) -> bool {
        let Some(w) = self.states.get_mut(key.index()) else { return false };
        if !w.may_invalidate(key, qp) {
            return false;
        }
        let before = w.binding;
        w.binding.bound_on = NOWHERE;
        self.changed.push(Change { place: i, index: key.index(), bind: false, before });
        true
    }

    /// A chain of this many WRs is about to be put straight into the queue.
    #[inline]
    pub(super) fn begin_direct(&mut self, wrs: usize) {
        if self.before.len() < wrs {
            self.make_room(wrs);
        }
    }

    #[cold]
    fn make_room(&mut self, wrs: usize) {
        self.before.resize(wrs, Binding::free(Rkey::from_bits(0)));
    }

    /// As [`bind`](Windows::bind) for the windows at the front of a run, the first of which stands
    /// at place `from` of the chain: those of one page, up to the first that cannot be bound.
    /// Returns how many. `bound` is what they are then but for the key. `put` puts each straight
    /// into the queue: its handle has the new key from then on, so a chain may bind it again.
    #[inline]
    pub(super) fn bind_run(
        &mut self,
        from: usize,
        segments: &[Segment],
        bound: &Binding,
        mut put: impl FnMut(*mut ibv_mw, &Segment),
    ) -> usize {
        let Some(&Segment { rkey: first, .. }) = segments.first() else { return 0 };
        let Some(page) = self.states.page_mut(page_of(first)) else { return 0 };
        let before = self.before.get_mut(from..).unwrap_or(&mut []);
        let all = segments.len().min(before.len());
        for (seg, before) in segments.iter().zip(before) {
            let key = seg.rkey;
            let w = &mut page[place_of(key)];
            // The whole index, so also a window of this page.
            if w.id != key.index() {
                return place_in(segments, seg);
            }
            *before = w.binding;
            w.binding = *bound;
            put(w.handle, seg);
            w.set_key(key);
        }
        all
    }

    /// As [`invalidate`](Windows::invalidate) for the windows at the front of a run: those of one
    /// page, up to the first whose key must not be invalidated. Returns how many. `put` puts each
    /// straight into the queue.
    #[inline]
    pub(super) fn invalidate_run(
        &mut self,
        segments: &[Segment],
        qp: QpId,
        mut put: impl FnMut(Rkey),
    ) -> usize {
        let Some(first) = segments.first() else { return 0 };
        let Some(page) = self.states.page_mut(page_of(first.rkey)) else { return 0 };
        for seg in segments {
            let rkey = seg.rkey;
            let w = &mut page[place_of(rkey)];
            // Bound, with this whole key: so also a window of this page.
            if !w.may_invalidate(rkey, qp) {
                return place_in(segments, seg);
            }
            w.binding.bound_on = NOWHERE;
            put(rkey);
        }
        segments.len()
    }

    /// Nothing of the chain was posted: what these WRs, its first, changed is as before.
    #[cold]
    pub(super) fn undo_direct(&mut self, wrs: &[Wr]) {
        for (wr, before) in wrs.iter().zip(&self.before).rev() {
            match wr.op {
                WrOp::BindMw { rkey, .. } => {
                    if let Some(w) = self.states.get_mut(rkey.index()) {
                        w.binding = *before;
                        w.set_key(before.key);
                    }
                }
                WrOp::LocalInv(key) => {
                    if let Some(w) = self.states.get_mut(key.index()) {
                        w.binding.bound_on = w.binding.last_on;
                    }
                }
                _ => {}
            }
        }
    }

    /// A peer has invalidated this key.
    pub(super) fn invalidated(&mut self, key: Rkey) {
        if let Some(w) = self.states.get_mut(key.index())
            && w.binding.key == key
        {
            w.binding.bound_on = NOWHERE;
        }
    }

    /// The whole chain was posted: the handles of its binds get their new key.
    pub(super) fn settle(&mut self) {
        if self.binds {
            for change in self.changed.iter().filter(|c| c.bind) {
                if let Some(w) = self.states.get_mut(change.index) {
                    w.set_key(w.binding.key);
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
            if let Some(w) = self.states.get_mut(last.index) {
                w.binding = last.before;
            }
        }
        self.settle();
    }
}

/// A window that is not in the table; dropping it ends it.
pub(super) struct Removed {
    object: Mw,
    binding: Binding,
}

impl Removed {
    pub(super) fn end(&mut self) -> Result<(), i32> {
        self.object.end()
    }
}

/// Where one of these segments stands among them. By its address, which saves the loops that ask
/// for it a register.
#[cold]
#[inline(never)]
fn place_in(all: &[Segment], one: &Segment) -> usize {
    (ptr::from_ref(one).addr() - all.as_ptr().addr()) / size_of::<Segment>()
}

/// The window of each key index, in pages of which only those in use exist.
#[derive(Default)]
struct Pages {
    all: Vec<Option<Box<Page>>>,
}

type Page = [Window; PAGE];
const PAGE: usize = 256;

#[inline]
fn page_of(key: Rkey) -> usize {
    key.index() as usize / PAGE
}

#[inline]
fn place_of(key: Rkey) -> usize {
    key.index() as usize % PAGE
}

impl Pages {
    #[inline]
    fn page_mut(&mut self, page: usize) -> Option<&mut Page> {
        self.all.get_mut(page)?.as_deref_mut()
    }

    /// The window of this key index.
    fn get_mut(&mut self, index: u32) -> Option<&mut Window> {
        let page = self.page_mut(index as usize / PAGE)?;
        Some(&mut page[index as usize % PAGE]).filter(|w| w.id != NOBODY)
    }

    /// False, and nothing changed, if there is one with this key index.
    fn add(&mut self, handle: *mut ibv_mw, binding: Binding) -> bool {
        let page = page_of(binding.key);
        if self.all.len() <= page {
            self.all.resize_with(page + 1, || None);
        }
        let page = self.all[page].get_or_insert_with(|| Box::new([const { Window::NONE }; PAGE]));
        let place = &mut page[place_of(binding.key)];
        if place.id != NOBODY {
            return false;
        }
        *place = Window { binding, handle, id: binding.key.index() };
        true
    }

    fn take(&mut self, index: u32) -> Option<Binding> {
        let window = self.get_mut(index)?;
        let taken = std::mem::replace(window, Window::NONE).binding;
        // A device may hand out indexes from anywhere: a page goes with its last window.
        if let Some(page) = self.all.get_mut(index as usize / PAGE) {
            page.take_if(|page| page.iter().all(|w| w.id == NOBODY));
        }
        Some(taken)
    }

    fn bindings(&self) -> impl Iterator<Item = &Binding> {
        let windows = self.all.iter().flatten().flat_map(|page| page.iter());
        windows.filter(|w| w.id != NOBODY).map(|w| &w.binding)
    }
}

#[cfg(test)]
impl Windows {
    /// Takes in a window that nobody ends.
    pub(super) fn add(&mut self, handle: *mut ibv_mw, key: Rkey) -> bool {
        self.states.add(handle, Binding::free(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QP: QpId = QpId(7);
    const MR: MrId = MrId(3);

    fn key(index: u32, tag: u32) -> Rkey {
        Rkey::from_bits(index << 8 | tag)
    }

    /// Windows with these key indexes and the tag 0.
    fn table(handles: &mut [ibv_mw], indexes: &[u32]) -> Windows {
        let mut t = Windows::default();
        for (handle, &index) in handles.iter_mut().zip(indexes) {
            handle.rkey = key(index, 0).to_bits();
            assert!(t.add(handle, key(index, 0)));
        }
        t
    }

    #[test]
    fn every_key_index_has_a_place_of_its_own() {
        let all = [0, 1, 255, 256, 0x1_0000, 0xff_ffff];
        let mut handles = [ibv_mw::default(); 7];
        let mut t = table(&mut handles, &all);
        for index in all {
            assert!(!t.add(&mut handles[6], key(index, 9)), "taken");
            assert_eq!(t.states.get_mut(index).unwrap().binding, Binding::free(key(index, 0)));
        }
        assert!(t.states.take(255).is_some() && t.states.take(255).is_none());
        assert!(t.states.get_mut(255).is_none() && t.states.get_mut(2).is_none());
        assert_eq!(t.states.bindings().count(), all.len() - 1);
        assert!(t.add(&mut handles[6], key(255, 9)));
    }

    #[test]
    fn a_page_goes_with_its_last_window() {
        let mut handles = [ibv_mw::default(); 3];
        let mut t = table(&mut handles[..2], &[300, 301]);
        for n in 0..1000u32 {
            let index = n.wrapping_mul(0x9e_3779) & 0xff_0000;
            assert!(t.add(&mut handles[2], key(index, 0)) && t.states.take(index).is_some());
        }
        let pages = |t: &Windows| t.states.all.iter().flatten().count();
        assert_eq!((pages(&t), t.states.bindings().count()), (1, 2));
        assert!(t.states.take(300).is_some() && pages(&t) == 1);
        assert!(t.states.take(301).is_some() && pages(&t) == 0);
    }

    #[test]
    fn a_window_is_known_to_be_on_a_qp_until_its_next_bind_and_onto_an_mr_while_bound() {
        let mut handles = [ibv_mw::default(); 2];
        let mut t = table(&mut handles, &[300, 301]);
        assert!(!t.any_on(QP) && !t.any_onto(MrId(0)));
        assert!(t.bind(0, MwId(301), key(301, 1), QP, MR).is_some());
        t.settle();
        assert!(t.any_on(QP) && t.any_onto(MR) && !t.any_on(QpId(8)) && !t.any_onto(MrId(4)));
        assert!(t.invalidate(0, key(301, 1), QP));
        t.settle();
        assert!(t.any_on(QP) && !t.any_onto(MR), "the invalidation may have been flushed");
        assert!(t.bind(0, MwId(301), key(301, 2), QpId(8), MR).is_some());
        t.settle();
        t.invalidated(key(301, 1));
        assert!(!t.any_on(QP) && t.any_on(QpId(8)) && t.any_onto(MR), "another key");
        t.invalidated(key(301, 2));
        assert!(!t.any_onto(MR) && !t.invalidate(0, key(301, 2), QpId(8)));
    }

    #[test]
    fn a_free_window_is_never_invalidated_nor_one_that_is_bound_elsewhere() {
        let mut handles = [ibv_mw::default(); 1];
        let mut t = table(&mut handles, &[300]);
        assert!(!t.invalidate(0, key(300, 0), QP), "never bound");
        assert!(t.bind(0, MwId(300), key(300, 1), QP, MR).is_some());
        assert!(!t.invalidate(1, key(300, 0), QP), "the key before");
        assert!(!t.invalidate(1, key(300, 1), QpId(8)), "bound on another QP");
        assert!(!t.invalidate(1, key(299, 1), QP) && !t.invalidate(1, key(0xff_ffff, 1), QP));
        assert!(t.invalidate(1, key(300, 1), QP));
        assert!(!t.invalidate(2, key(300, 1), QP), "twice");
    }

    #[test]
    fn what_was_not_posted_of_a_list_is_undone() {
        let mut handles = [ibv_mw::default(); 2];
        let mut t = table(&mut handles, &[300, 301]);
        assert!(t.bind(0, MwId(300), key(300, 1), QP, MR).is_some());
        assert!(t.bind(1, MwId(300), key(300, 2), QP, MR).is_none(), "one handle, two keys");
        assert!(t.bind(1, MwId(301), key(302, 1), QP, MR).is_none(), "not its key");
        assert!(t.bind(1, MwId(301), key(301, 1), QP, MR).is_some());
        assert!(t.invalidate(2, key(300, 1), QP));
        t.settle_prefix(1);
        assert_eq!((handles[0].rkey, handles[1].rkey), (300 << 8 | 1, 301 << 8));
        assert!(!t.invalidate(0, key(301, 1), QP) && t.invalidate(0, key(300, 1), QP));
        t.settle();
        assert!(t.bind(0, MwId(301), key(301, 3), QP, MR).is_some(), "free to be bound again");
    }
}
