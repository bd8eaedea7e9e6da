//! Where a list of segments must be cut into regions.

use memreg_core::device::FastMrKind;
use memreg_core::memreg::{MAX_REGIONS, MapError, SegList};
use std::ops::Range;

/// Bytes for one region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    start: u64,
    end: u64,
    /// The kind of region that can describe it.
    pub(super) kind: FastMrKind,
}

impl Piece {
    pub(super) fn bytes(&self) -> Range<u64> {
        self.start..self.end
    }
}

/// A whole list cut into pieces, in order and without holes.
#[derive(Debug)]
pub(super) struct Cuts {
    pieces: [Piece; MAX_REGIONS],
    len: usize,
    /// How many of them are of the kind with gaps.
    gaps: usize,
}

impl Cuts {
    /// Cuts `segs` greedily into pieces of at most `depth` page-list entries.
    ///
    /// A piece is of the plain kind unless the device describes `gaps` and a gap inside the piece
    /// makes it longer: keys with gaps cost the device more on every access (B18).
    ///
    /// # Errors
    /// [`MapError::TooManyRegions`], before anything was touched (D-08).
    pub(super) fn by_pages(segs: &SegList<'_>, depth: u32, gaps: bool) -> Result<Cuts, MapError> {
        let mut cuts = Cuts::none();
        let mut start = 0;
        while start < segs.total() {
            let mut run = segs.run(start, depth, false);
            let mut kind = FastMrKind::Pages;
            if gaps && start + run.bytes < segs.total() {
                let longer = segs.run(start, depth, true);
                if longer.gaps && longer.bytes > run.bytes {
                    (run, kind) = (longer, FastMrKind::Gaps);
                }
            }
            if run.bytes == 0 {
                return Err(MapError::Other("page list has no entries"));
            }
            let end = start + run.bytes;
            cuts.push(Piece { start, end, kind })?;
            start = end;
        }
        Ok(cuts)
    }

    /// Cuts `segs` at every joint, and a segment into pieces of at most `most` bytes: a window lies
    /// in one parent, and two segments never have the same.
    ///
    /// # Errors
    /// As [`by_pages`](Cuts::by_pages).
    pub(super) fn by_segment(segs: &SegList<'_>, most: u64) -> Result<Cuts, MapError> {
        let mut cuts = Cuts::none();
        let mut start = 0u64;
        for seg in segs.segs() {
            let seg_end = start.saturating_add(seg.len);
            while start < seg_end {
                let end = seg_end.min(start.saturating_add(most.max(1)));
                cuts.push(Piece { start, end, kind: FastMrKind::Pages })?;
                start = end;
            }
        }
        Ok(cuts)
    }

    fn none() -> Cuts {
        let none = Piece { start: 0, end: 0, kind: FastMrKind::Pages };
        Cuts { pieces: [none; MAX_REGIONS], len: 0, gaps: 0 }
    }

    #[inline]
    fn push(&mut self, piece: Piece) -> Result<(), MapError> {
        let slot = self.pieces.get_mut(self.len).ok_or(MapError::TooManyRegions)?;
        *slot = piece;
        self.len += 1;
        self.gaps += usize::from(piece.kind == FastMrKind::Gaps);
        Ok(())
    }

    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces[..self.len]
    }

    /// Pieces of `kind`.
    pub(super) fn count(&self, kind: FastMrKind) -> usize {
        match kind {
            FastMrKind::Gaps => self.gaps,
            FastMrKind::Pages => self.len - self.gaps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memreg_core::memreg::SegShape;
    use proptest::prelude::*;

    const PAGE: u32 = 4096;

    fn plan(list: &[(u32, u64)], depth: u32, gaps: bool) -> Result<Vec<Piece>, MapError> {
        let segs: Vec<_> =
            list.iter().map(|&(page_offset, len)| SegShape { page_offset, len }).collect();
        Cuts::by_pages(&SegList::new(&segs, PAGE), depth, gaps).map(|c| c.pieces().to_vec())
    }

    #[test]
    fn b18_gap_keys_only_where_there_is_a_gap() {
        let full = plan(&[(0, 16 * 4096)], 16, true).unwrap();
        assert_eq!(full, [Piece { start: 0, end: 65536, kind: FastMrKind::Pages }]);
        let pages = [(0, 4096); 16];
        assert_eq!(plan(&pages, 16, true).unwrap(), full);
        let hole = plan(&[(0, 4096), (512, 1024), (0, 4096)], 16, true).unwrap();
        assert_eq!(hole, [Piece { start: 0, end: 9216, kind: FastMrKind::Gaps }]);
    }

    #[test]
    fn b18_a_gap_behind_the_depth_limit_needs_no_gap_key() {
        let cut = plan(&[(0, 4096), (512, 100)], 1, true).unwrap();
        assert!(cut.iter().all(|p| p.kind == FastMrKind::Pages));
        assert_eq!(cut.len(), 2);
    }

    #[test]
    fn b19_unaligned_middle_is_one_region_a_segment_or_one_with_gaps() {
        let list = [(0, 4096), (512, 4096), (0, 4096)];
        assert_eq!(plan(&list, 16, false).unwrap().len(), 3);
        assert_eq!(plan(&list, 16, true).unwrap().len(), 1);
    }

    #[test]
    fn b20_two_buffers() {
        assert_eq!(plan(&[(2096, 2000), (0, 2096)], 16, false).unwrap().len(), 1);
        assert_eq!(plan(&[(0, 2000), (0, 2096)], 16, false).unwrap().len(), 2);
    }

    #[test]
    fn b45_the_page_size_is_the_devices() {
        let segs = [SegShape { page_offset: 0, len: 16 << 20 }];
        let keys =
            |page| Cuts::by_pages(&SegList::new(&segs, page), 256, false).unwrap().pieces().len();
        assert_eq!((keys(4096), keys(65536)), (16, 1));
    }

    #[test]
    fn d_08_too_many_pieces_are_refused_before_anything() {
        let list = [(512, 100); MAX_REGIONS];
        assert_eq!(plan(&list, 16, false).unwrap().len(), MAX_REGIONS);
        let list = [(512, 100); MAX_REGIONS + 1];
        assert_eq!(plan(&list, 16, false), Err(MapError::TooManyRegions));
        assert_eq!(plan(&list, 0, false), Err(MapError::Other("page list has no entries")));
    }

    /// Entries of `bytes` counted page by page, without the code under test; `None` when a plain
    /// key cannot describe them.
    fn entries(list: &[(u32, u64)], bytes: Range<u64>, gaps: bool) -> Option<u64> {
        let (page, mut at, mut n, mut open) = (u64::from(PAGE), 0, 0, None);
        for &(offset, len) in list {
            let (from, to) = (bytes.start.max(at), bytes.end.min(at + len));
            if from < to {
                let first = u64::from(offset) + from - at;
                let last = u64::from(offset) + to - at;
                if let Some(prev_end) = open {
                    let gap: bool = prev_end % page != 0 || first % page != 0;
                    if gap && !gaps {
                        return None;
                    }
                }
                n += last.div_ceil(page) - first / page;
                open = Some(last);
            }
            at += len;
        }
        Some(n)
    }

    type List = Vec<(u32, u64)>;

    fn lists() -> impl Strategy<Value = List> {
        let offset = prop_oneof![Just(0u32), 0..PAGE];
        let len = prop_oneof![Just(4096u64), Just(8192), 1..40_000u64];
        prop::collection::vec((offset, len), 1..12)
    }

    proptest! {
        #[test]
        fn map_03_windows_cover_all_bytes_in_order_within_one_segment(
            list in lists(),
            most in 1u64..50_000,
        ) {
            let segs: Vec<_> =
                list.iter().map(|&(page_offset, len)| SegShape { page_offset, len }).collect();
            let segs = SegList::new(&segs, PAGE);
            let need: u64 = list.iter().map(|s| s.1.div_ceil(most)).sum();
            let Ok(cut) = Cuts::by_segment(&segs, most) else {
                prop_assert!(need > MAX_REGIONS as u64);
                return Ok(());
            };
            prop_assert_eq!(cut.pieces().len() as u64, need);
            let mut at = 0;
            for p in cut.pieces() {
                prop_assert!(p.start == at && p.end > at && p.end - p.start <= most);
                prop_assert!(segs.within_one(&p.bytes()));
                at = p.end;
            }
            prop_assert_eq!(at, segs.total());
        }

        #[test]
        fn map_03_pieces_cover_all_bytes_in_order_within_the_depth(
            list in lists(),
            depth in 1u32..20,
            gaps: bool,
        ) {
            let total: u64 = list.iter().map(|s| s.1).sum();
            let fits = |n: Option<u64>| n.is_some_and(|n| n <= u64::from(depth));
            let Ok(cut) = plan(&list, depth, gaps) else { return Ok(()) };
            let mut at = 0;
            for p in &cut {
                prop_assert!(p.start == at && p.end > at);
                let with_gaps = p.kind == FastMrKind::Gaps;
                prop_assert!(gaps || !with_gaps);
                prop_assert!(fits(entries(&list, p.bytes(), with_gaps)), "{p:?}");
                if with_gaps {
                    prop_assert_eq!(entries(&list, p.bytes(), false), None, "plain would do");
                }
                // Greedy: one byte more does not fit.
                if p.end < total {
                    let more = entries(&list, p.start..p.end + 1, gaps);
                    prop_assert!(!fits(more), "{p:?} could be longer");
                }
                at = p.end;
            }
            prop_assert_eq!(at, total);
        }
    }
}
