//! Type-2B memory windows: keys for parts of ordinary MRs, each good on one QP.

use super::iommu::{Iommu, Piece};
use super::mr::{MrTable, Reach};
use super::syndrome::Syndrome;
use super::table::Table;
use crate::device::MwKeys;
use crate::types::{Access, DmaAddr, MrId, MwId, PdId, QpId, Rkey};

/// A window: free, or bound.
#[derive(Debug)]
struct Mw {
    pd: PdId,
    rkey: Rkey,
    bound: Option<Bound>,
}

/// What a bound window opens, and to whom.
#[derive(Clone, Copy, Debug)]
struct Bound {
    qp: QpId,
    mr: MrId,
    addr: u64,
    len: u64,
    access: Access,
}

/// A bind as its WR states it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bind {
    pub(super) mw: MwId,
    pub(super) rkey: Rkey,
    pub(super) mr: MrId,
    pub(super) addr: DmaAddr,
    pub(super) len: u64,
    pub(super) access: Access,
}

/// All windows of one node.
///
/// Key indices of windows start where those of
/// MRs end, so a number is never both.
///
/// # Divergence
/// - A bind does not look at whether the range is mapped; an access does.
/// - The tag is the caller's: binding with the tag of the last bind is accepted.
/// - A window is accessed by the addresses of its parent, never from zero.
#[derive(Debug)]
pub(super) struct MwTable {
    windows: Table<Mw>,
}

impl MwTable {
    pub(super) fn new() -> MwTable {
        MwTable { windows: Table::new(LAST_INDEX - FIRST_INDEX + 1) }
    }

    /// Whether a key with this number is a window's, if it is anything's.
    pub(super) fn owns(rkey: Rkey) -> bool {
        rkey.index() >= FIRST_INDEX
    }

    pub(super) fn len(&self) -> usize {
        self.windows.len()
    }

    pub(super) fn bound(&self) -> u64 {
        self.bounds().count() as u64
    }

    pub(super) fn any_in(&self, pd: PdId) -> bool {
        self.windows.iter().any(|(_, w)| w.pd == pd)
    }

    /// Whether a window is bound to this MR.
    pub(super) fn any_over(&self, mr: MrId) -> bool {
        self.bounds().any(|b| b.mr == mr)
    }

    /// Whether a window is bound on this QP.
    pub(super) fn any_on(&self, qp: QpId) -> bool {
        self.bounds().any(|b| b.qp == qp)
    }

    /// Makes a free window; `None` when the key space is full.
    pub(super) fn add(&mut self, pd: PdId) -> Option<MwKeys> {
        let id = self.windows.insert(Mw { pd, rkey: Rkey::from_bits(0), bound: None })?;
        let rkey = Rkey::from_bits((FIRST_INDEX + (id - 1)) << 8);
        self.windows.get_mut(id)?.rkey = rkey;
        Some(MwKeys { mw: MwId::of(rkey), rkey })
    }

    /// Ends a window, bound or free; false if there is none of this id.
    pub(super) fn remove(&mut self, mw: MwId) -> bool {
        place(mw).and_then(|id| self.windows.remove(id)).is_some()
    }

    /// Binds a free window, as a BIND_MW of QP `qp` in `pd` asks.
    pub(super) fn bind(
        &mut self,
        mrs: &MrTable,
        (qp, pd): (QpId, PdId),
        bind: Bind,
    ) -> Result<(), Syndrome> {
        let window = place(bind.mw).and_then(|id| self.windows.get_mut(id));
        let window = window.ok_or(Syndrome::ForeignKey)?;
        if window.rkey.index() != bind.rkey.index() {
            return Err(Syndrome::ForeignKey);
        }
        if window.pd != pd {
            return Err(Syndrome::WrongPd);
        }
        if window.bound.is_some() {
            return Err(Syndrome::StillValid);
        }
        if !Access::REMOTE.contains(bind.access) {
            return Err(Syndrome::BadAccess);
        }
        let Bind { mr, addr: DmaAddr(addr), len, access, .. } = bind;
        mrs.check_parent(mr, Reach { pd, need: parent_rights(access), addr, len })?;
        if len == 0 {
            return Err(Syndrome::EmptyWindow);
        }
        window.rkey = bind.rkey;
        window.bound = Some(Bound { qp, mr, addr, len, access });
        Ok(())
    }

    /// Frees a bound window, as an invalidation that `qp` runs or receives asks.
    pub(super) fn invalidate(
        &mut self,
        (qp, pd): (QpId, PdId),
        rkey: Rkey,
    ) -> Result<(), Syndrome> {
        let (id, _) = self.by_rkey((qp, pd), rkey)?;
        if let Some(window) = self.windows.get_mut(id) {
            window.bound = None;
        }
        Ok(())
    }

    /// Finds what a key lets the peer of `qp` reach, and appends it to `out`.
    ///
    /// The parent cannot be gone or smaller than the window, since it cannot end before it.
    pub(super) fn reach(
        &self,
        iommu: &Iommu,
        qp: QpId,
        rkey: Rkey,
        ask: Reach,
        out: &mut Vec<Piece>,
    ) -> Result<(), Syndrome> {
        let (_, bound) = self.by_rkey((qp, ask.pd), rkey)?;
        if !bound.access.contains(ask.need) {
            return Err(Syndrome::MissingRight);
        }
        let end = ask.addr.checked_add(ask.len).ok_or(Syndrome::OutOfRange)?;
        if ask.addr < bound.addr || end > bound.addr + bound.len {
            return Err(Syndrome::OutOfRange);
        }
        out.push(iommu.locate(ask.addr, ask.len).ok_or(Syndrome::NotMapped)?);
        Ok(())
    }

    /// Whether exactly this key is that of a bound window.
    pub(super) fn is_bound(&self, rkey: Rkey) -> bool {
        self.windows.iter().any(|(_, w)| w.rkey == rkey && w.bound.is_some())
    }

    /// Frees all windows: the device under them is gone.
    pub(super) fn free_all(&mut self) {
        for i in 0..self.windows.len() {
            self.windows.at_mut(i).1.bound = None;
        }
    }

    pub(super) fn clear(&mut self) {
        self.windows.clear();
    }

    fn bounds(&self) -> impl Iterator<Item = &Bound> {
        self.windows.iter().filter_map(|(_, w)| w.bound.as_ref())
    }

    /// The window that has exactly this key, if it is bound on this QP.
    fn by_rkey(&self, (qp, pd): (QpId, PdId), rkey: Rkey) -> Result<(u32, Bound), Syndrome> {
        let offset = rkey.index().checked_sub(FIRST_INDEX).ok_or(Syndrome::UnknownKey)?;
        let window = self.windows.get(offset + 1).ok_or(Syndrome::UnknownKey)?;
        if window.rkey != rkey {
            return Err(Syndrome::StaleKey);
        }
        if window.pd != pd {
            return Err(Syndrome::WrongPd);
        }
        let bound = window.bound.ok_or(Syndrome::InvalidatedKey)?;
        if bound.qp != qp {
            return Err(Syndrome::WrongQp);
        }
        Ok((offset + 1, bound))
    }
}

/// What the parent has to carry for a window with these rights.
fn parent_rights(window: Access) -> Access {
    let writes = window.intersects(Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC));
    if writes { Access::MW_BIND.union(Access::LOCAL_WRITE) } else { Access::MW_BIND }
}

/// Where a window stands in the table.
fn place(mw: MwId) -> Option<u32> {
    Some(mw.0.checked_sub(FIRST_INDEX)? + 1)
}

/// The first key index of windows; those of MRs are below.
pub(super) const FIRST_INDEX: u32 = 3 << 22;
/// Key indices have 24 bits.
const LAST_INDEX: u32 = (1 << 24) - 1;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn h_39_ids_and_keys_of_ended_windows_do_not_come_back() {
        let mut t = MwTable::new();
        let mut seen = BTreeSet::new();
        for i in 0..10_000 {
            let k = t.add(PdId(1)).unwrap();
            assert!(MwTable::owns(k.rkey) && seen.insert(k.rkey.index()), "key at {i}");
            assert!(t.remove(k.mw) && !t.remove(k.mw));
        }
    }

    #[test]
    fn every_id_has_an_index_of_24_bits() {
        let last = LAST_INDEX - FIRST_INDEX + 1;
        let rkey = Rkey::from_bits((FIRST_INDEX + (last - 1)) << 8);
        assert_eq!((rkey.index(), rkey.tag()), (LAST_INDEX, 0));
        assert!(!MwTable::owns(Rkey::from_bits(((FIRST_INDEX - 1) << 8) | 0xff)));
    }
}
