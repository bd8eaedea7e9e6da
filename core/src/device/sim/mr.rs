//! Memory regions: keys, page lists, translation, and the checks of every access.

use super::iommu::{Iommu, Piece};
use super::mw::FIRST_INDEX;
use super::syndrome::Syndrome;
use super::table::Table;
use crate::device::{FastMrKind, MrKeys, PageEntry};
use crate::types::{Access, Lkey, MrId, PdId, Rkey};
use std::collections::VecDeque;

/// A memory region of either kind.
#[derive(Debug)]
pub(super) struct Mr {
    pd: PdId,
    fast: Option<Fast>,
    lkey: Lkey,
    rkey: Rkey,
    /// Whether the keys open anything now. An ordinary MR is valid for life.
    valid: bool,
    access: Access,
    iova: u64,
    len: u64,
    /// Address runs in the order of the region's own address space; adjacent pages are one run. For
    /// an ordinary MR this is empty: its address space is the device's.
    runs: Vec<Run>,
}

/// What a fast-registration MR was allocated for.
#[derive(Clone, Copy, Debug)]
struct Fast {
    depth: u32,
    kind: FastMrKind,
}

/// Contiguous device addresses from offset `at` of the region.
#[derive(Clone, Copy, Debug)]
struct Run {
    at: u64,
    addr: u64,
}

/// A registration as its WR states it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registration {
    pub(super) mr: MrId,
    pub(super) rkey: Rkey,
    pub(super) access: Access,
    pub(super) iova: u64,
    pub(super) len: u64,
}

/// What an access asks of a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    pub(super) pd: PdId,
    pub(super) need: Access,
    pub(super) addr: u64,
    pub(super) len: u64,
}

/// Page lists kept for reuse.
const SPARE_LISTS: usize = 64;

/// All MRs of one node.
///
/// A slot owns two key indices, an even one for the rkey and the odd one after it for the lkey, so
/// the two never have the same number. A slot that is used again goes on with the next tag, and is
/// used again only after [`RESTING_SLOTS`] others: an old key does not soon open a new MR.
///
/// # Divergence
/// - Many devices give the lkey and the rkey of an MR one number; here they never match (B60).
/// - The lkey of a fast MR keeps its tag; it opens the region while the rkey is valid.
#[derive(Debug)]
pub(super) struct MrTable {
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    /// Page lists of ended MRs.
    spare: Vec<Vec<Run>>,
    ids: Table<u32>,
    /// The even key index of slot 0.
    base: u32,
    fast: u64,
}

#[derive(Debug, Default)]
struct Slot {
    ltag: u8,
    rtag: u8,
    mr: Option<Mr>,
}

impl MrTable {
    /// An empty table; `seed` decides where the key indices start. Ids of MRs come round after
    /// `max_mr`, as handles of a kernel do.
    pub(super) fn new(seed: u64, max_mr: u32) -> MrTable {
        let base = 2 + 2 * ((seed ^ (seed >> 31)) & 0x7fff) as u32;
        MrTable {
            // As many as rest before the first is used again, and those in use beside them.
            slots: Vec::with_capacity(2 * RESTING_SLOTS),
            free: VecDeque::with_capacity(2 * RESTING_SLOTS),
            spare: Vec::with_capacity(SPARE_LISTS),
            ids: Table::new(max_mr),
            base,
            fast: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Bytes that all of them cover.
    pub(super) fn bytes(&self) -> u64 {
        let lens = self.slots.iter().filter_map(|s| s.mr.as_ref()).map(|m| m.len);
        lens.fold(0, u64::saturating_add)
    }

    /// MRs for fast registration, and how many of them are valid now.
    pub(super) fn fast(&self) -> (u64, u64) {
        let valid = |s: &Slot| s.mr.as_ref().is_some_and(|m| m.fast.is_some() && m.valid);
        (self.fast, self.slots.iter().filter(|s| valid(s)).count() as u64)
    }

    pub(super) fn any_in(&self, pd: PdId) -> bool {
        self.slots.iter().any(|s| s.mr.as_ref().is_some_and(|m| m.pd == pd))
    }

    /// Makes an ordinary MR; `None` when the key space is full.
    pub(super) fn add_plain(
        &mut self,
        pd: PdId,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Option<MrKeys> {
        self.add(|lkey, rkey| Mr {
            pd,
            fast: None,
            lkey,
            rkey,
            valid: true,
            access,
            iova: addr,
            len,
            runs: Vec::new(),
        })
    }

    /// Makes an invalid MR with room for `depth` pages; `None` when memory or key space is full.
    pub(super) fn add_fast(&mut self, pd: PdId, depth: u32, kind: FastMrKind) -> Option<MrKeys> {
        // A page list that was given back serves the next MR.
        let mut runs = self.spare.pop().unwrap_or_default();
        runs.try_reserve_exact(depth as usize).ok()?;
        let keys = self.add(|lkey, rkey| Mr {
            pd,
            fast: Some(Fast { depth, kind }),
            lkey,
            rkey,
            valid: false,
            access: Access::empty(),
            iova: 0,
            len: 0,
            runs,
        })?;
        self.fast += 1;
        Some(keys)
    }

    /// Ends an MR and its keys; false if there is none of this id.
    pub(super) fn remove(&mut self, id: MrId) -> bool {
        let Some(slot) = self.ids.remove(id.0) else { return false };
        let entry = &mut self.slots[slot as usize];
        if let Some(mr) = entry.mr.take() {
            entry.rtag = mr.rkey.tag();
            self.fast -= u64::from(mr.fast.is_some());
            if mr.fast.is_some() && self.spare.len() < SPARE_LISTS {
                let mut runs = mr.runs;
                runs.clear();
                self.spare.push(runs);
            }
        }
        self.free.push_back(slot);
        true
    }

    /// Finds what a local key lets a WR reach, and appends it to `out`.
    pub(super) fn reach_local(
        &self,
        iommu: &Iommu,
        lkey: Lkey,
        ask: Reach,
        out: &mut Vec<Piece>,
    ) -> Result<(), Syndrome> {
        let (slot, odd) = self.slot_of(lkey.to_bits() >> 8).ok_or(Syndrome::UnknownKey)?;
        let mr = self.slots.get(slot).and_then(|s| s.mr.as_ref()).filter(|_| odd);
        let mr = mr.ok_or(Syndrome::UnknownKey)?;
        if mr.lkey != lkey {
            return Err(Syndrome::StaleKey);
        }
        mr.reach(iommu, ask, out)
    }

    /// Finds what a peer's key lets it reach, and appends it to `out`.
    pub(super) fn reach_remote(
        &self,
        iommu: &Iommu,
        rkey: Rkey,
        ask: Reach,
        out: &mut Vec<Piece>,
    ) -> Result<(), Syndrome> {
        self.by_rkey(rkey)?.reach(iommu, ask, out)
    }

    /// Whether exactly this key lets a peer in now.
    pub(super) fn is_valid(&self, rkey: Rkey) -> bool {
        self.by_rkey(rkey).is_ok_and(|mr| mr.valid && mr.access.intersects(Access::REMOTE))
    }

    /// Checks that a window can be bound over a range of an MR, whose own rights are `ask.need`.
    pub(super) fn check_parent(&self, mr: MrId, ask: Reach) -> Result<(), Syndrome> {
        let slot = self.ids.get(mr.0).and_then(|slot| self.slots.get(*slot as usize));
        let mr = slot.and_then(|s| s.mr.as_ref()).ok_or(Syndrome::ForeignKey)?;
        if mr.fast.is_some() {
            return Err(Syndrome::NotOrdinaryMr);
        }
        mr.admits(ask).map(drop)
    }

    /// Gives an invalid fast MR a page list and a key, as a REG_MR of a QP in `pd` asks.
    ///
    /// # Divergence
    /// The address that the peer uses need not have the page offset of the first page.
    pub(super) fn register<'a>(
        &mut self,
        iommu: &Iommu,
        pd: PdId,
        reg: Registration,
        page: u64,
        pages: impl ExactSizeIterator<Item = &'a PageEntry>,
    ) -> Result<(), Syndrome> {
        let slot = self.ids.get(reg.mr.0).ok_or(Syndrome::ForeignKey)?;
        let mr = self.slots.get_mut(*slot as usize).and_then(|s| s.mr.as_mut());
        let mr = mr.filter(|m| m.rkey.index() == reg.rkey.index()).ok_or(Syndrome::ForeignKey)?;
        let fast = mr.fast.ok_or(Syndrome::NotFastMr)?;
        if mr.pd != pd {
            return Err(Syndrome::WrongPd);
        }
        if mr.valid {
            return Err(Syndrome::StillValid);
        }
        if !rights_are_valid(reg.access) {
            return Err(Syndrome::BadAccess);
        }
        if reg.iova.checked_add(reg.len).is_none() {
            return Err(Syndrome::OutOfRange);
        }
        if pages.len() > fast.depth as usize {
            return Err(Syndrome::BadPageList);
        }
        let total = join_pages(pages, page, fast.kind, &mut mr.runs)?;
        if total != reg.len {
            return Err(Syndrome::BadPageList);
        }
        mr.len = total;
        if !mr.run_spans(0, total).all(|(addr, len)| iommu.locate(addr, len).is_some()) {
            return Err(Syndrome::NotMapped);
        }
        mr.rkey = reg.rkey;
        mr.access = reg.access;
        mr.iova = reg.iova;
        mr.valid = true;
        Ok(())
    }

    /// Makes a fast MR's key invalid. `remote`: for a peer, which may only end what lets a peer in.
    pub(super) fn invalidate(
        &mut self,
        pd: PdId,
        rkey: Rkey,
        remote: bool,
    ) -> Result<(), Syndrome> {
        let mr = self.by_rkey(rkey)?;
        if mr.fast.is_none() {
            return Err(Syndrome::NotFastMr);
        }
        if mr.pd != pd {
            return Err(Syndrome::WrongPd);
        }
        if !mr.valid {
            return Err(Syndrome::InvalidatedKey);
        }
        if remote && !mr.access.intersects(Access::REMOTE) {
            return Err(Syndrome::MissingRight);
        }
        let slot = self.slot_of(rkey.index()).and_then(|(slot, _)| self.slots.get_mut(slot));
        if let Some(mr) = slot.and_then(|s| s.mr.as_mut()) {
            mr.valid = false;
        }
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
        self.ids.clear();
        self.fast = 0;
    }

    fn add(&mut self, make: impl FnOnce(Lkey, Rkey) -> Mr) -> Option<MrKeys> {
        let slot = self.take_slot()?;
        let Some(id) = self.ids.insert(slot) else {
            self.free.push_back(slot);
            return None;
        };
        let entry = &mut self.slots[slot as usize];
        entry.ltag = entry.ltag.wrapping_add(1);
        entry.rtag = entry.rtag.wrapping_add(1);
        let index = self.base + 2 * slot;
        let lkey = Lkey::from_bits(((index + 1) << 8) | u32::from(entry.ltag));
        let rkey = Rkey::from_bits((index << 8) | u32::from(entry.rtag));
        entry.mr = Some(make(lkey, rkey));
        Some(MrKeys { mr: MrId(id), lkey, rkey })
    }

    /// The slot that has rested longest, once enough rest; else a new one.
    fn take_slot(&mut self) -> Option<u32> {
        let fresh = self.slots.len() as u32;
        let index_left = self.base + 2 * fresh + 1 < KEY_INDEX_END;
        if self.free.len() < RESTING_SLOTS && index_left {
            self.slots.push(Slot::default());
            return Some(fresh);
        }
        self.free.pop_front()
    }

    fn by_rkey(&self, rkey: Rkey) -> Result<&Mr, Syndrome> {
        let (slot, odd) = self.slot_of(rkey.index()).ok_or(Syndrome::UnknownKey)?;
        let mr = self.slots.get(slot).and_then(|s| s.mr.as_ref()).filter(|_| !odd);
        let mr = mr.ok_or(Syndrome::UnknownKey)?;
        if mr.rkey == rkey { Ok(mr) } else { Err(Syndrome::StaleKey) }
    }

    /// The slot that owns a key index, and whether the index is its odd one.
    fn slot_of(&self, index: u32) -> Option<(usize, bool)> {
        let offset = index.checked_sub(self.base)?;
        Some((offset as usize / 2, offset % 2 == 1))
    }
}

impl Mr {
    /// Checks an access and appends what it reaches to `out`. An access of no bytes needs no key.
    fn reach(&self, iommu: &Iommu, ask: Reach, out: &mut Vec<Piece>) -> Result<(), Syndrome> {
        let (offset, end) = self.admits(ask)?;
        if self.fast.is_none() {
            out.push(iommu.locate(ask.addr, ask.len).ok_or(Syndrome::NotMapped)?);
            return Ok(());
        }
        for (addr, len) in self.run_spans(offset, end) {
            out.push(iommu.locate(addr, len).ok_or(Syndrome::NotMapped)?);
        }
        Ok(())
    }

    /// Checks state, PD, rights and range; gives the range as offsets.
    fn admits(&self, ask: Reach) -> Result<(u64, u64), Syndrome> {
        if !self.valid {
            return Err(Syndrome::InvalidatedKey);
        }
        if self.pd != ask.pd {
            return Err(Syndrome::WrongPd);
        }
        if !self.access.contains(ask.need) {
            return Err(Syndrome::MissingRight);
        }
        let offset = ask.addr.checked_sub(self.iova).ok_or(Syndrome::OutOfRange)?;
        let end = offset.checked_add(ask.len).ok_or(Syndrome::OutOfRange)?;
        if end > self.len {
            return Err(Syndrome::OutOfRange);
        }
        Ok((offset, end))
    }

    /// The device address ranges of the offsets `from..to`, in order.
    fn run_spans(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
        let first = self.runs.partition_point(|r| r.at <= from).saturating_sub(1);
        let runs = self.runs.get(first..).unwrap_or(&[]);
        runs.iter().enumerate().take_while(move |(_, run)| run.at < to).map(move |(i, run)| {
            let run_end = runs.get(i + 1).map_or(self.len, |next| next.at);
            let start = run.at.max(from);
            (run.addr + (start - run.at), run_end.min(to) - start)
        })
    }
}

/// Whether a registration may carry these rights: what lets a peer write lets the owner write.
pub(super) fn rights_are_valid(access: Access) -> bool {
    let writes = access.intersects(Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC));
    !writes || access.contains(Access::LOCAL_WRITE)
}

/// Checks a page list and joins it to runs; returns the sum of its lengths.
fn join_pages<'a>(
    pages: impl ExactSizeIterator<Item = &'a PageEntry>,
    page: u64,
    kind: FastMrKind,
    runs: &mut Vec<Run>,
) -> Result<u64, Syndrome> {
    runs.clear();
    let (mut at, mut end) = (0u64, None);
    let last = pages.len().checked_sub(1).ok_or(Syndrome::BadPageList)?;
    for (i, entry) in pages.enumerate() {
        let (addr, len) = (entry.addr.0, u64::from(entry.len));
        let offset = addr % page;
        let full = kind == FastMrKind::Gaps
            || ((i == 0 || offset == 0) && (i == last || offset + len == page));
        if len == 0 || offset + len > page || !full {
            return Err(Syndrome::BadPageList);
        }
        if end != Some(addr) {
            runs.push(Run { at, addr });
        }
        at += len;
        end = Some(addr.checked_add(len).ok_or(Syndrome::OutOfRange)?);
    }
    Ok(at)
}

/// Slots that must be free before the oldest of them is used again.
const RESTING_SLOTS: usize = 64;
/// Key indices of MRs end where those of windows start.
const KEY_INDEX_END: u32 = FIRST_INDEX;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn b60_no_lkey_has_the_number_of_an_rkey() {
        let mut t = MrTable::new(7, u32::MAX);
        let mut seen = BTreeSet::new();
        for _ in 0..1000 {
            let k = t.add_plain(PdId(1), 0, 1, Access::empty()).unwrap();
            assert!(seen.insert(k.lkey.to_bits() >> 8) && seen.insert(k.rkey.index()));
        }
    }

    #[test]
    fn h_39_ids_and_recent_keys_do_not_come_back() {
        let mut t = MrTable::new(3, u32::MAX);
        let (mut ids, mut keys) = (BTreeSet::new(), BTreeSet::new());
        for i in 0..10_000 {
            let k = t.add_fast(PdId(1), 4, FastMrKind::Pages).unwrap();
            assert!(ids.insert(k.mr), "MR id reused at {i}");
            assert!(keys.insert(k.rkey.to_bits()) && keys.insert(k.lkey.to_bits()), "key at {i}");
            assert!(t.remove(k.mr) && !t.remove(k.mr));
        }
        assert_eq!(t.slots.len(), RESTING_SLOTS);
    }

    #[test]
    fn full_key_space_is_an_error_not_a_wrap() {
        let mut t = MrTable::new(0, u32::MAX);
        t.base = KEY_INDEX_END - 4;
        let a = t.add_plain(PdId(1), 0, 1, Access::empty()).unwrap();
        let b = t.add_plain(PdId(1), 0, 1, Access::empty()).unwrap();
        assert_eq!(b.lkey.to_bits() >> 8, KEY_INDEX_END - 1);
        assert!(t.add_plain(PdId(1), 0, 1, Access::empty()).is_none());
        assert!(t.remove(a.mr));
        assert!(t.add_plain(PdId(1), 0, 1, Access::empty()).is_some());
    }
}
