//! What the device can reach at all: the mapped ranges of one node and their addresses.

use crate::device::errno;
use crate::mem::ExposedBytes;
use crate::types::DmaAddr;

/// The address space of one node.
///
/// # Divergence
/// - Addresses come from a counter and have nothing to do with pointers; an address is given to
///   other bytes never, unless the caller passes it as their home.
/// - A mapping ends at its last byte, not at its last page, and an unmapped page follows it: any
///   access past the end is a fault.
#[derive(Debug)]
pub(super) struct Iommu {
    maps: Vec<Mapping>,
    next: u64,
    page: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Mapping {
    start: u64,
    bytes: ExposedBytes,
}

/// Part of one mapping, found and checked; valid until the next map or unmap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    map: usize,
    at: usize,
    len: usize,
}

impl Iommu {
    /// An empty address space with pages of `page` bytes, a power of two.
    pub(super) fn new(page: u64) -> Iommu {
        Iommu { maps: Vec::new(), next: FIRST_ADDR.next_multiple_of(page), page, bytes: 0 }
    }

    /// Maps the bytes at `home`, or at a new address. The error is an errno.
    pub(super) fn map(
        &mut self,
        bytes: &ExposedBytes,
        home: Option<DmaAddr>,
    ) -> Result<DmaAddr, i32> {
        let len = bytes.len() as u64;
        let (start, at) = match home {
            Some(home) => (home.0, self.place_at_home(home.0, len)?),
            None => {
                let start = self.next;
                let pages = len.checked_next_multiple_of(self.page);
                let end = pages.and_then(|l| l.checked_add(self.page)?.checked_add(start));
                self.next = end.filter(|&e| e < LAST_ADDR).ok_or(errno::ENOMEM)?;
                (start, self.maps.len())
            }
        };
        self.maps.insert(at, Mapping { start, bytes: bytes.clone() });
        self.bytes += len;
        Ok(DmaAddr(start))
    }

    /// Drops the mapping that starts at `addr`; false if there is none.
    pub(super) fn unmap(&mut self, addr: DmaAddr) -> bool {
        let Ok(at) = self.maps.binary_search_by_key(&addr.0, |m| m.start) else { return false };
        let mapping = self.maps.remove(at);
        self.bytes -= mapping.bytes.len() as u64;
        true
    }

    /// Finds a range; `None` unless it lies within one mapping.
    pub(super) fn locate(&self, addr: u64, len: u64) -> Option<Piece> {
        let map = self.maps.partition_point(|m| m.start <= addr).checked_sub(1)?;
        let mapping = &self.maps[map];
        let at = usize::try_from(addr - mapping.start).ok()?;
        let len = usize::try_from(len).ok()?;
        (at.checked_add(len)? <= mapping.bytes.len()).then_some(Piece { map, at, len })
    }

    /// Whether the memory there is mapped for reading only.
    pub(super) fn is_read_only(&self, piece: Piece) -> bool {
        self.maps.get(piece.map).is_some_and(|m| m.bytes.is_read_only())
    }

    pub(super) fn ranges(&self) -> u64 {
        self.maps.len() as u64
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn clear(&mut self) {
        self.maps.clear();
        self.bytes = 0;
    }

    /// Where a mapping at `home` goes in the table: the address must have been handed out here and
    /// be free now.
    fn place_at_home(&self, home: u64, len: u64) -> Result<usize, i32> {
        let end = home.checked_add(len).ok_or(errno::EINVAL)?;
        if !home.is_multiple_of(self.page) || home < FIRST_ADDR || end > self.next {
            return Err(errno::EINVAL);
        }
        let at = self.maps.partition_point(|m| m.start < home);
        let before = at.checked_sub(1).map(|i| &self.maps[i]);
        let hit = before.is_some_and(|m| m.start + m.bytes.len() as u64 > home)
            || self.maps.get(at).is_some_and(|m| m.start < end);
        if hit { Err(errno::EINVAL) } else { Ok(at) }
    }
}

/// Copies between mapped pieces of equal total length, through `buf`. Returns how many copies it
/// took, or `None` if the pieces do not belong to these address spaces.
pub(super) fn copy(
    src: (&Iommu, &[Piece]),
    dst: (&Iommu, &[Piece]),
    buf: &mut Vec<u8>,
) -> Option<u64> {
    buf.resize(CHUNK, 0);
    let mut sink = Sink::new(dst);
    for from in src.1 {
        let bytes = &src.0.maps.get(from.map)?.bytes;
        let mut done = 0;
        while done < from.len {
            let n = (from.len - done).min(CHUNK);
            let chunk = buf.get_mut(..n)?;
            if !bytes.copy_out(from.at + done, chunk) {
                return None;
            }
            sink.write(chunk)?;
            done += n;
        }
    }
    Some(sink.copies)
}

/// Writes a stream of bytes into consecutive pieces.
pub(super) struct Sink<'a> {
    iommu: &'a Iommu,
    pieces: &'a [Piece],
    done: usize,
    pub(super) copies: u64,
}

impl<'a> Sink<'a> {
    pub(super) fn new((iommu, pieces): (&'a Iommu, &'a [Piece])) -> Sink<'a> {
        Sink { iommu, pieces, done: 0, copies: 0 }
    }

    /// Writes the next bytes; `None` if the pieces are too short for them.
    pub(super) fn write(&mut self, mut bytes: &[u8]) -> Option<()> {
        while !bytes.is_empty() {
            let piece = self.pieces.first()?;
            let n = (piece.len - self.done).min(bytes.len());
            let (head, tail) = bytes.split_at(n);
            if !self.iommu.maps.get(piece.map)?.bytes.copy_in(piece.at + self.done, head) {
                return None;
            }
            self.copies += u64::from(n > 0);
            self.done += n;
            if self.done == piece.len {
                self.pieces = &self.pieces[1..];
                self.done = 0;
            }
            bytes = tail;
        }
        Some(())
    }
}

/// The first address; far from zero, so that an address is not taken for an offset.
const FIRST_ADDR: u64 = 0x1000_0000;
/// No address reaches this, so sums of address and length cannot wrap.
const LAST_ADDR: u64 = 1 << 62;
const CHUNK: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::DmaBuf;

    fn bytes(len: usize) -> ExposedBytes {
        DmaBuf::new(len).unwrap().into_exposed().0
    }

    #[test]
    fn a_guard_page_follows_each_mapping() {
        let mut io = Iommu::new(4096);
        let a = io.map(&bytes(5000), None).unwrap();
        let b = io.map(&bytes(1), None).unwrap();
        assert_eq!((a.0, b.0), (FIRST_ADDR, FIRST_ADDR + 3 * 4096));
        assert!(io.locate(a.0, 5000).is_some() && io.locate(a.0 + 5000, 0).is_some());
        for (addr, len) in [(a.0, 5001), (a.0 + 5000, 1), (a.0 - 1, 1), (a.0 + 1, u64::MAX)] {
            assert_eq!(io.locate(addr, len), None, "{addr:#x} {len}");
        }
    }

    #[test]
    fn home_is_the_same_address_again_and_nothing_else() {
        let mut io = Iommu::new(4096);
        let (x, y) = (bytes(8192), bytes(4096));
        let a = io.map(&x, None).unwrap();
        let b = io.map(&y, None).unwrap();
        assert_eq!(io.map(&x, Some(a)), Err(errno::EINVAL), "mapped now");
        assert_eq!(io.map(&y, Some(DmaAddr(a.0 + 4096))), Err(errno::EINVAL), "overlaps");
        assert!(io.unmap(a) && !io.unmap(a));
        assert_eq!(io.map(&bytes(4096 * 4), Some(a)), Err(errno::EINVAL), "reaches the next");
        assert_eq!(io.map(&x, Some(DmaAddr(a.0 + 1))), Err(errno::EINVAL), "off a page");
        assert_eq!(io.map(&x, Some(DmaAddr(4096))), Err(errno::EINVAL), "before the first");
        assert_eq!(io.map(&x, Some(DmaAddr(io.next))), Err(errno::EINVAL), "never handed out");
        assert_eq!(io.map(&x, Some(DmaAddr(u64::MAX - 4095))), Err(errno::EINVAL), "wraps");
        assert_eq!(io.map(&x, Some(a)), Ok(a));
        assert!(io.unmap(b));
        assert_eq!((io.ranges(), io.bytes()), (1, 8192));
    }

    #[test]
    fn copy_joins_pieces_of_different_shapes() {
        let mut io = Iommu::new(4096);
        let (x, y) = (bytes(16384), bytes(16384));
        let (a, b) = (io.map(&x, None).unwrap(), io.map(&y, None).unwrap());
        let data: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
        assert!(x.copy_in(3, &data));
        let from = [io.locate(a.0 + 3, 10_000).unwrap()];
        let to = [
            io.locate(b.0 + 1, 1).unwrap(),
            io.locate(b.0 + 5, 0).unwrap(),
            io.locate(b.0 + 100, 9_999).unwrap(),
        ];
        assert_eq!(copy((&io, &from), (&io, &to), &mut Vec::new()), Some(4));
        let mut got = vec![0; 9_999];
        assert!(y.copy_out(100, &mut got));
        assert_eq!(got, data[1..]);
    }
}
