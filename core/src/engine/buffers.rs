//! Buffers and the ranges of them that count: in the program's hands, and while a device is lent
//! them.
//!
//! A buffer is lent whole and once, however many ranges of it an operation names; the list of
//! ranges stays as the program gave it.

use crate::mem::{DeregQueue, DmaBuf, ExposedBytes, LocalMr, Placement};
use crate::mutants::mutant;
use crate::sync::Arc;
use crate::types::{DmaAddr, MrId};
use smallvec::SmallVec;
use std::ops::Range;

/// The buffers of a list, each once.
pub(crate) type Bufs = SmallVec<[DmaBuf; 4]>;

/// Buffers with the ranges of each that count, in the order of the bytes. Up to four buffers and
/// four ranges need no allocation.
///
/// A whole buffer: `buf.into()`; a range: `(buf, range).into()`; more:
/// [`push`](Buffers::push), [`push_ranges`](Buffers::push_ranges) or `collect()`.
///
/// # Shape
/// What comes back from a transport names the ranges that were given. Only a buffer that the
/// device would not let go of is missing, and its ranges with it.
/// # Cost
/// A transport lends and registers each buffer once, whatever the number of its ranges, and copies
/// no list of ranges.
/// # Example
/// ```
/// use memreg_core::{DmaBuf, transport::Buffers};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Every second page of one buffer, and a part of another.
/// let mut list = Buffers::new();
/// list.push_ranges(DmaBuf::new(6 * 4096)?, (0..3).map(|k| k * 8192..k * 8192 + 4096));
/// list.push(DmaBuf::new(100)?, 10..60);
/// assert_eq!((list.bufs().len(), list.count()), (2, 4));
///
/// let lens: Vec<_> = list.iter().map(|(_, range)| range.len()).collect();
/// assert_eq!(lens, [4096, 4096, 4096, 50]);
/// assert_eq!(list.ranges(0).last(), Some(16384..20480));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Buffers {
    /// Those that the program sees. Empty while they are lent.
    pub(crate) bufs: Bufs,
    /// In the order of the bytes: those of the first buffer, those of the second...
    pub(crate) pieces: SmallVec<[Piece; 4]>,
    /// For each buffer, where the pieces of the next one begin.
    ends: SmallVec<[usize; 4]>,
}

/// One range of one buffer.
pub(crate) type Piece = Range<usize>;

impl Buffers {
    /// No buffer yet.
    #[must_use]
    #[inline]
    pub fn new() -> Buffers {
        Buffers::default()
    }

    /// Appends a buffer of which one range counts.
    #[inline]
    pub fn push(&mut self, buf: DmaBuf, range: Range<usize>) {
        self.push_ranges(buf, [range]);
    }

    /// Appends a buffer of which several ranges count. The bytes between them are not the peer's
    /// business.
    ///
    /// # Units
    /// Bytes of the buffer. Each range begins where the one before it ends, or later: a transport
    /// refuses any other list, and one without a range.
    pub fn push_ranges(&mut self, buf: DmaBuf, ranges: impl IntoIterator<Item = Range<usize>>) {
        // All first: the program's own iterator may panic, and must leave no range behind.
        let ranges: SmallVec<[Piece; 16]> = ranges.into_iter().collect();
        self.pieces.extend(ranges);
        self.ends.push(self.pieces.len());
        self.bufs.push(buf);
    }

    /// How many ranges.
    #[must_use]
    #[inline]
    pub fn count(&self) -> usize {
        self.pieces.len()
    }

    /// The buffers, each once.
    #[must_use]
    pub fn bufs(&self) -> &[DmaBuf] {
        &self.bufs
    }

    /// The buffers, each once, to fill them for another operation over the same ranges.
    #[must_use]
    pub fn bufs_mut(&mut self) -> &mut [DmaBuf] {
        &mut self.bufs
    }

    /// The ranges of one of [`bufs`](Buffers::bufs), in order.
    pub fn ranges(&self, buf: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        self.of_each().nth(buf).unwrap_or_default().iter().cloned()
    }

    /// The ranges in the order of the bytes, each with its buffer: a buffer of several ranges comes
    /// several times.
    pub fn iter(&self) -> impl Iterator<Item = (&DmaBuf, &Range<usize>)> {
        let each = self.bufs.iter().zip(self.of_each());
        each.flat_map(|(buf, ranges)| ranges.iter().map(move |range| (buf, range)))
    }

    /// The first buffer; for those who gave one.
    #[must_use]
    pub fn into_first(self) -> Option<DmaBuf> {
        self.bufs.into_iter().next()
    }

    /// The pieces of each buffer in turn.
    #[inline]
    pub(crate) fn of_each(&self) -> impl Iterator<Item = &[Piece]> {
        let (mut rest, mut start) = (&self.pieces[..], 0);
        self.ends.iter().map(move |&end| {
            let split = rest.split_at_checked(end.wrapping_sub(start));
            let (pieces, behind) = split.unwrap_or_default();
            (rest, start) = (behind, end);
            pieces
        })
    }

    /// Which buffer a piece is of.
    #[inline]
    pub(crate) fn buf_of(&self, piece: usize) -> usize {
        self.ends.partition_point(|&end| end <= piece)
    }

    /// Where the payload bytes `range` lie, of which none lies before `from`: for each piece that
    /// has some of them the index of its buffer, and the bytes there.
    pub(crate) fn spans(
        &self,
        from: Place,
        range: Range<u64>,
    ) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        let Place { piece: first, mut start } = from.seek(&self.pieces, range.start);
        self.pieces.iter().enumerate().skip(first).map_while(move |(i, p)| {
            let end = start + p.len() as u64;
            let from = range.start.max(start);
            let to = range.end.min(end);
            let hit = (from < to).then(|| {
                let at = p.start + (from - start) as usize;
                (self.buf_of(i), at..at + (to - from) as usize)
            });
            start = end;
            hit
        })
    }

    /// Drops the ranges of a buffer that did not come back; those behind it are one buffer further
    /// in front from then on.
    #[cold]
    pub(crate) fn forget(&mut self, buf: usize) {
        let start = buf.checked_sub(1).and_then(|b| self.ends.get(b)).copied().unwrap_or(0);
        if buf < self.ends.len() {
            let count = self.ends.remove(buf) - start;
            self.pieces.drain(start..start + count);
            self.ends.iter_mut().skip(buf).for_each(|end| *end -= count);
        }
    }

    /// Empties the list and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.bufs.clear();
        self.pieces.clear();
        self.ends.clear();
    }
}

impl From<DmaBuf> for Buffers {
    fn from(buf: DmaBuf) -> Buffers {
        let range = 0..buf.len();
        (buf, range).into()
    }
}

impl From<(DmaBuf, Range<usize>)> for Buffers {
    fn from((buf, range): (DmaBuf, Range<usize>)) -> Buffers {
        let mut list = Buffers::new();
        list.push(buf, range);
        list
    }
}

impl FromIterator<(DmaBuf, Range<usize>)> for Buffers {
    fn from_iter<I: IntoIterator<Item = (DmaBuf, Range<usize>)>>(iter: I) -> Buffers {
        let mut list = Buffers::new();
        for (buf, range) in iter {
            list.push(buf, range);
        }
        list
    }
}

/// Takes a list apart: each buffer once, with the bytes from the start of its first range to the
/// end of its last one.
///
/// Of a buffer with several ranges these are more bytes than counted: look at
/// [`ranges`](Buffers::ranges) first, or keep the list, to expose the same ones again.
#[derive(Debug)]
pub struct IntoIter {
    bufs: smallvec::IntoIter<[DmaBuf; 4]>,
    pieces: smallvec::IntoIter<[Piece; 4]>,
    ends: smallvec::IntoIter<[usize; 4]>,
    /// Pieces that came already.
    at: usize,
}

impl Iterator for IntoIter {
    type Item = (DmaBuf, Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        let (buf, end) = (self.bufs.next()?, self.ends.next()?);
        let ranges = self.pieces.by_ref().take(end - self.at);
        self.at = end;
        let all = ranges.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        Some((buf, all.unwrap_or_default()))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.bufs.size_hint()
    }
}

impl ExactSizeIterator for IntoIter {}

impl IntoIterator for Buffers {
    type Item = (DmaBuf, Range<usize>);
    type IntoIter = IntoIter;

    fn into_iter(self) -> IntoIter {
        let Buffers { bufs, pieces, ends } = self;
        let (bufs, pieces, ends) = (bufs.into_iter(), pieces.into_iter(), ends.into_iter());
        IntoIter { bufs, pieces, ends, at: 0 }
    }
}

/// One buffer inside a slot.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) bytes: ExposedBytes,
    pub(crate) place: Option<Box<Placement>>,
    /// Where the device sees it, while it is lent.
    pub(crate) mapped: Option<DmaAddr>,
    /// MRs of this one operation, to be ended before the loan is.
    pub(crate) once: Vec<MrId>,
}

impl Lent {
    /// A buffer that the transport has, and the device not yet.
    #[inline]
    pub(crate) fn new(buf: DmaBuf) -> Lent {
        let (bytes, place) = buf.into_exposed();
        Lent { bytes, place, mapped: None, once: vec![] }
    }

    /// Its local MR, if that is of the transport whose queue this is.
    #[inline]
    pub(crate) fn local(&self, owner: &Arc<DeregQueue>) -> Option<&LocalMr> {
        self.place
            .as_ref()?
            .local
            .as_ref()
            .filter(|l| Arc::ptr_eq(&l.owner, owner) || mutant!("D-13"))
    }

    /// The MR that a window over its bytes is bound onto.
    #[inline]
    pub(crate) fn parent(&self) -> Option<MrId> {
        self.place.as_ref()?.local.as_ref().map(|l| l.mr)
    }
}

/// A piece of an exposure, and the payload byte that it begins with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) piece: usize,
    pub(crate) start: u64,
}

impl Place {
    /// The piece that payload byte `byte` lies in: found from this one on if it lies there, else
    /// from the first.
    #[inline]
    pub(crate) fn seek(mut self, pieces: &[Piece], byte: u64) -> Place {
        if byte < self.start {
            self = Place::default();
        }
        while let Some(p) = pieces.get(self.piece) {
            let end = self.start + p.len() as u64;
            if byte < end {
                break;
            }
            self = Place { piece: self.piece + 1, start: end };
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> Buffers {
        let mut list = Buffers::new();
        list.push(DmaBuf::new(10).unwrap(), 1..9);
        list.push_ranges(DmaBuf::new(20).unwrap(), [2..4, 4..5, 18..20]);
        list.push_ranges(DmaBuf::new(30).unwrap(), []);
        list.push(DmaBuf::new(40).unwrap(), 0..40);
        list
    }

    #[test]
    fn a_list_is_taken_apart_buffer_of_each_and_looked_at_range_by_range() {
        let seen: Vec<_> = list().iter().map(|(buf, range)| (buf.len(), range.clone())).collect();
        assert_eq!(seen, [(10, 1..9), (20, 2..4), (20, 4..5), (20, 18..20), (40, 0..40)]);
        assert_eq!((list().count(), list().bufs().len()), (5, 4));
        let apart = list().into_iter();
        assert_eq!(apart.len(), 4);
        let apart: Vec<_> = apart.map(|(buf, range)| (buf.len(), range)).collect();
        assert_eq!(apart, [(10, 1..9), (20, 2..20), (30, 0..0), (40, 0..40)]);
        assert_eq!(list().ranges(1).collect::<Vec<_>>(), [2..4, 4..5, 18..20]);
        assert_eq!(list().ranges(2).count() + list().ranges(4).count(), 0);
    }

    #[test]
    fn ranges_of_lost_buffers_go_with_them() {
        let mut left = list();
        let bufs: Bufs = std::mem::take(&mut left.bufs);
        left.bufs = bufs.into_iter().filter(|b| [20, 40].contains(&b.len())).collect();
        left.forget(0);
        left.forget(1);
        let seen: Vec<_> = left.iter().map(|(buf, range)| (buf.len(), range.clone())).collect();
        assert_eq!(seen, [(20, 2..4), (20, 4..5), (20, 18..20), (40, 0..40)]);
    }

    #[test]
    fn payload_bytes_are_found_in_ranges_of_one_buffer_and_of_the_next() {
        let list = list();
        let find = |range| list.spans(Place::default(), range).collect::<Vec<_>>();
        assert_eq!(find(0..8), [(0, 1..9)]);
        assert_eq!(find(7..12), [(0, 8..9), (1, 2..4), (1, 4..5), (1, 18..19)]);
        assert_eq!(find(12..14), [(1, 19..20), (3, 0..1)]);
        let at = Place::default().seek(&list.pieces, 11);
        assert_eq!((at.piece, at.start), (3, 11));
        assert_eq!(list.spans(at, 11..12).collect::<Vec<_>>(), [(1, 18..19)]);
        assert_eq!(list.spans(at, 0..1).collect::<Vec<_>>(), [(0, 1..2)]);
    }

    #[test]
    fn a_list_whose_ranges_panicked_has_none_of_them() {
        let mut list = Buffers::new();
        list.push(DmaBuf::new(10).unwrap(), 0..10);
        let bad = (0..2).map(|k| if k == 1 { panic!("the program's") } else { 3..7 });
        let buf = DmaBuf::new(20).unwrap();
        let caught =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| list.push_ranges(buf, bad)));
        assert!(caught.is_err());
        list.push(DmaBuf::new(40).unwrap(), 30..40);
        let seen: Vec<_> = list.iter().map(|(b, r)| (b.len(), r.clone())).collect();
        assert_eq!(seen, [(10, 0..10), (40, 30..40)]);
    }
}
