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
use std::iter::{Enumerate, Peekable};
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
    /// In the order of the bytes; those of one buffer are neighbours.
    pub(crate) pieces: SmallVec<[Piece; 4]>,
    /// Where in that list the ones of each buffer end.
    ends: SmallVec<[u32; 4]>,
}

/// One range of one buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Which of the list's buffers.
    pub(crate) buf: usize,
    pub(crate) range: Range<usize>,
}

impl Buffers {
    /// No buffer yet.
    #[must_use]
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
        let index = self.bufs.len();
        self.pieces.extend(ranges.into_iter().map(|range| Piece { buf: index, range }));
        self.ends.push(u32::try_from(self.pieces.len()).unwrap_or(u32::MAX));
        self.bufs.push(buf);
    }

    /// How many ranges.
    #[must_use]
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
        self.pieces.iter().filter(move |p| p.buf == buf).map(|p| p.range.clone())
    }

    /// The ranges in the order of the bytes, each with its buffer: a buffer of several ranges comes
    /// several times.
    pub fn iter(&self) -> impl Iterator<Item = (&DmaBuf, &Range<usize>)> {
        self.pieces.iter().filter_map(|p| Some((self.bufs.get(p.buf)?, &p.range)))
    }

    /// The first buffer; for those who gave one.
    #[must_use]
    pub fn into_first(self) -> Option<DmaBuf> {
        self.bufs.into_iter().next()
    }

    /// Drops the ranges of buffers that did not come back; `lost` are their indices among all that
    /// were lent, in order.
    pub(crate) fn forget(&mut self, lost: &[usize]) {
        if lost.is_empty() {
            return;
        }
        let left = self.of_each().enumerate().filter(|(buf, _)| lost.binary_search(buf).is_err());
        let mut end = 0;
        let ends = left.map(|(_, pieces)| {
            end += pieces.len() as u32;
            end
        });
        self.ends = ends.collect();
        self.pieces.retain(|p| lost.binary_search(&p.buf).is_err());
        for p in &mut self.pieces {
            p.buf -= lost.partition_point(|&l| l < p.buf);
        }
    }

    /// The pieces of each buffer, also while they are lent.
    #[inline]
    pub(crate) fn of_each(&self) -> impl Iterator<Item = &[Piece]> {
        let (pieces, mut start) = (&self.pieces[..], 0);
        self.ends.iter().map(move |&end| {
            let of_one = pieces.get(start..end as usize).unwrap_or_default();
            start = end as usize;
            of_one
        })
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
    bufs: Enumerate<smallvec::IntoIter<[DmaBuf; 4]>>,
    pieces: Peekable<smallvec::IntoIter<[Piece; 4]>>,
}

impl Iterator for IntoIter {
    type Item = (DmaBuf, Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        let (index, buf) = self.bufs.next()?;
        let mut of_buf = || self.pieces.next_if(|p| p.buf == index).map(|p| p.range);
        let mut all = of_buf().unwrap_or_default();
        while let Some(range) = of_buf() {
            all = all.start.min(range.start)..all.end.max(range.end);
        }
        Some((buf, all))
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
        let (bufs, pieces) = (self.bufs.into_iter(), self.pieces.into_iter());
        IntoIter { bufs: bufs.enumerate(), pieces: pieces.peekable() }
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
            let end = self.start + p.range.len() as u64;
            if byte < end {
                break;
            }
            self = Place { piece: self.piece + 1, start: end };
        }
        self
    }
}

/// Where the payload bytes `range` lie, of which none lies before `from`: for each piece that has
/// some of them the index of its buffer, and the bytes there.
pub(crate) fn spans(
    pieces: &[Piece],
    from: Place,
    range: Range<u64>,
) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
    let Place { piece: first, mut start } = from.seek(pieces, range.start);
    pieces.iter().skip(first).map_while(move |p| {
        let end = start + p.range.len() as u64;
        let from = range.start.max(start);
        let to = range.end.min(end);
        let hit = (from < to).then(|| {
            let at = p.range.start + (from - start) as usize;
            (p.buf, at..at + (to - from) as usize)
        });
        start = end;
        hit
    })
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
    fn a_list_is_taken_apart_buffer_by_buffer_and_looked_at_range_by_range() {
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
        left.forget(&[0, 2]);
        let seen: Vec<_> = left.iter().map(|(buf, range)| (buf.len(), range.clone())).collect();
        assert_eq!(seen, [(20, 2..4), (20, 4..5), (20, 18..20), (40, 0..40)]);
    }

    #[test]
    fn payload_bytes_are_found_in_ranges_of_one_buffer_and_of_the_next() {
        let list = list();
        let find = |range| spans(&list.pieces, Place::default(), range).collect::<Vec<_>>();
        assert_eq!(find(0..8), [(0, 1..9)]);
        assert_eq!(find(7..12), [(0, 8..9), (1, 2..4), (1, 4..5), (1, 18..19)]);
        assert_eq!(find(12..14), [(1, 19..20), (3, 0..1)]);
        let at = Place::default().seek(&list.pieces, 11);
        assert_eq!((at.piece, at.start), (3, 11));
        assert_eq!(spans(&list.pieces, at, 11..12).collect::<Vec<_>>(), [(1, 18..19)]);
        assert_eq!(spans(&list.pieces, at, 0..1).collect::<Vec<_>>(), [(0, 1..2)]);
    }
}
