//! What a strategy wishes for in one call.

use super::{MAX_REGIONS, RegionId, SegList};
use std::ops::Range;

/// One wish of a strategy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wish {
    /// Register the region over these bytes of the exposure.
    Register(RegionId, Range<u64>),
    /// Invalidate the region's key.
    Invalidate(RegionId),
}

/// The wishes of one `map` or `unmap`, of fixed capacity.
///
/// # Shape
/// One of three forms: single [`wishes`](WrBatch::wishes); a region for
/// [`each`](WrBatch::each) segment; or [all](WrBatch::is_all) live regions. The last two say in one
/// call what single wishes say one by one, cost less, and stand alone.
#[derive(Debug, Default)]
pub struct WrBatch {
    wishes: Vec<Wish>,
    /// The first `each_len` of them stand.
    each: [RegionId; MAX_REGIONS],
    each_len: usize,
    all: bool,
}

/// A strategy wished for more than one batch holds: more than [`MAX_REGIONS`], or anything beside
/// [`WrBatch::register_each`] or [`WrBatch::invalidate_all`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("more than {MAX_REGIONS} regions in one operation, or a wish beside one that stands alone")]
pub struct BatchFull;

impl WrBatch {
    /// An empty batch with all the memory it will ever need.
    #[must_use]
    pub fn new() -> WrBatch {
        WrBatch { wishes: Vec::with_capacity(MAX_REGIONS), ..WrBatch::default() }
    }

    /// Wishes that `region` be registered over `bytes`, with the rights of the exposure.
    ///
    /// # Errors
    /// [`BatchFull`]; nothing was added.
    #[inline]
    pub fn register(&mut self, region: RegionId, bytes: Range<u64>) -> Result<(), BatchFull> {
        self.push(Wish::Register(region, bytes))
    }

    /// Wishes that the k-th of `regions` be registered over the whole k-th segment of the list, for
    /// every segment.
    ///
    /// # Errors
    /// [`BatchFull`] for more than [`MAX_REGIONS`], or if something was wished for before; nothing
    /// was added.
    #[inline]
    pub fn register_each(&mut self, regions: &[RegionId]) -> Result<(), BatchFull> {
        let alone = self.is_empty();
        let room = self.each.get_mut(..regions.len()).filter(|_| alone).ok_or(BatchFull)?;
        room.copy_from_slice(regions);
        self.each_len = regions.len();
        Ok(())
    }

    /// Wishes that `region`'s key be invalidated.
    ///
    /// # Errors
    /// [`BatchFull`]; nothing was added.
    #[inline]
    pub fn invalidate(&mut self, region: RegionId) -> Result<(), BatchFull> {
        self.push(Wish::Invalidate(region))
    }

    /// Wishes that the key of every region that `unmap` was given be invalidated, in that order.
    ///
    /// # Errors
    /// [`BatchFull`] if something was wished for before; nothing was added.
    #[inline]
    pub fn invalidate_all(&mut self) -> Result<(), BatchFull> {
        if !self.is_empty() {
            return Err(BatchFull);
        }
        self.all = true;
        Ok(())
    }

    /// The single wishes in order.
    #[must_use]
    #[inline]
    pub fn wishes(&self) -> &[Wish] {
        &self.wishes
    }

    /// The regions of [`register_each`](WrBatch::register_each), in the order of the segments.
    #[must_use]
    #[inline]
    pub fn each(&self) -> &[RegionId] {
        self.each.get(..self.each_len).unwrap_or_default()
    }

    /// Whether [`invalidate_all`](WrBatch::invalidate_all) was called.
    #[must_use]
    #[inline]
    pub fn is_all(&self) -> bool {
        self.all
    }

    /// Whether nothing is wished for.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.each_len == 0 && !self.all && self.wishes.is_empty()
    }

    /// Regions to be registered, in whatever form that was wished for.
    pub fn registered(&self) -> impl Iterator<Item = RegionId> + '_ {
        let single = self.wishes.iter().filter_map(|w| match w {
            Wish::Register(region, _) => Some(*region),
            Wish::Invalidate(_) => None,
        });
        self.each().iter().copied().chain(single)
    }

    /// Turns a region for each segment into single wishes that say the same, for who looks at them
    /// one by one. A region for which there is no segment is wished for over no bytes.
    pub fn spell_out_each(&mut self, segs: &SegList<'_>) {
        let mut start = 0;
        let mut lens = segs.segs().iter().map(|s| s.len);
        for &region in self.each.iter().take(self.each_len) {
            let end = start + lens.next().unwrap_or(0);
            self.wishes.push(Wish::Register(region, start..end));
            start = end;
        }
        self.each_len = 0;
    }

    /// Turns all of `live` into single wishes that say the same.
    pub fn spell_out_all(&mut self, live: &[RegionId]) {
        if std::mem::take(&mut self.all) {
            self.wishes.extend(live.iter().map(|&region| Wish::Invalidate(region)));
        }
    }

    /// Forgets the wishes.
    #[inline]
    pub fn clear(&mut self) {
        self.wishes.clear();
        (self.each_len, self.all) = (0, false);
    }

    #[inline]
    fn push(&mut self, wish: Wish) -> Result<(), BatchFull> {
        if self.wishes.len() >= MAX_REGIONS || self.each_len > 0 || self.all {
            return Err(BatchFull);
        }
        self.wishes.push(wish);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memreg::SegShape;

    fn ids(n: usize) -> Vec<RegionId> {
        let mut map = slotmap::SlotMap::with_key();
        (0..n).map(|_| map.insert(())).collect()
    }

    fn segs(lens: &[u64]) -> Vec<SegShape> {
        lens.iter().map(|&len| SegShape { page_offset: 0, len }).collect()
    }

    #[test]
    fn batch_has_a_fixed_capacity() {
        let mut b = WrBatch::new();
        for _ in 0..MAX_REGIONS {
            b.invalidate(RegionId::default()).unwrap();
        }
        assert_eq!(b.invalidate(RegionId::default()), Err(BatchFull));
        b.clear();
        let ids = ids(MAX_REGIONS + 1);
        assert_eq!(b.register_each(&ids), Err(BatchFull));
        assert!(b.is_empty(), "nothing was added");
        b.register_each(&ids[..MAX_REGIONS]).unwrap();
        assert_eq!(b.each(), &ids[..MAX_REGIONS]);
        assert_eq!(b.registered().collect::<Vec<_>>(), &ids[..MAX_REGIONS]);
    }

    #[test]
    fn two_of_the_forms_stand_alone() {
        let id = ids(1)[0];
        type Form<'a> = &'a dyn Fn(&mut WrBatch) -> Result<(), BatchFull>;
        let single: Form = &|b| b.invalidate(id);
        let forms = [single, &|b| b.register_each(&[id]), &|b| b.invalidate_all()];
        for (i, first) in forms.iter().enumerate() {
            for (k, second) in forms.iter().enumerate().filter(|&(k, _)| (i, k) != (0, 0)) {
                let mut b = WrBatch::new();
                assert!(b.is_empty());
                first(&mut b).unwrap();
                assert_eq!(second(&mut b), Err(BatchFull), "{i} {k}");
                assert_eq!((b.wishes().len(), b.each().len()), ((i == 0) as _, (i == 1) as _));
                assert_eq!((b.is_all(), b.is_empty()), (i == 2, false));
                b.clear();
                second(&mut b).unwrap();
            }
        }
        let mut b = WrBatch::new();
        b.register_each(&[]).unwrap();
        b.invalidate_all().unwrap();
    }

    #[test]
    fn forms_spelt_out_say_the_same() {
        let ids = ids(3);
        let segs = segs(&[4096, 100]);
        let mut b = WrBatch::new();
        b.register_each(&ids).unwrap();
        b.spell_out_all(&ids);
        assert_eq!(b.each(), ids, "there is nothing of that to spell out");
        b.spell_out_each(&SegList::new(&segs, 4096));
        let want = [(0, 0..4096), (1, 4096..4196), (2, 4196..4196)];
        assert_eq!(b.wishes(), want.map(|(k, bytes)| Wish::Register(ids[k], bytes)));
        assert!(b.each().is_empty());
        b.clear();
        b.invalidate_all().unwrap();
        b.spell_out_each(&SegList::new(&segs, 4096));
        assert!(b.is_all());
        b.spell_out_all(&ids);
        assert_eq!(b.wishes(), ids.iter().map(|&r| Wish::Invalidate(r)).collect::<Vec<_>>());
        assert!(!b.is_all());
    }
}
