//! What a list of buffers must be like for any operation.

use super::error::Refusal;
use crate::engine::buffers::{Buffers, Lent};
use crate::memreg::SegShape;
use std::ops::Range;

/// What the ranges of a list come to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checked {
    /// Bytes of all of them together.
    pub(super) bytes: u64,
    /// Whether a buffer is mapped for reading only.
    pub(super) read_only: bool,
}

/// Checks a list, and makes `shapes` a shape for each range, as if every buffer began where a page
/// of `page` bytes does.
///
/// # Errors
/// The first range that is empty, overlaps the one before it or leaves its buffer, or the first
/// buffer without one.
#[inline]
pub(super) fn check(
    buffers: &Buffers,
    page: u32,
    shapes: &mut Vec<SegShape>,
) -> Result<Checked, Refusal> {
    let in_page = in_page(page);
    shapes.resize(buffers.count(), SegShape { page_offset: 0, len: 0 });
    let mut checked = Checked { bytes: 0, read_only: false };
    let mut shapes = &mut shapes[..];
    for (buf, ranges) in buffers.bufs.iter().zip(buffers.of_each()) {
        let Some((of_buffer, rest)) = shapes.split_at_mut_checked(ranges.len()) else { break };
        shapes = rest;
        // If they ascend and do not overlap, all are inside the buffer if the last one is, and so
        // is their sum.
        let (mut end, mut sum) = (0, 0);
        for (range, shape) in ranges.iter().zip(of_buffer) {
            if range.start >= range.end || range.start < end {
                return Err(wrong(buffers));
            }
            let len = range.end - range.start;
            shape.page_offset = (range.start as u64 & in_page) as u32;
            shape.len = len as u64;
            sum += len;
            end = range.end;
        }
        if end == 0 || end > buf.len() {
            return Err(wrong(buffers));
        }
        checked.bytes = checked.bytes.saturating_add(sum as u64);
        checked.read_only |= buf.is_read_only();
    }
    // Each range has a byte.
    if checked.bytes == 0 { Err(Refusal::Empty) } else { Ok(checked) }
}

/// Refuses a list with a buffer that is mapped for reading only: `what` is refused.
#[cold]
pub(super) fn read_only(buffers: &Buffers, what: &'static str) -> Refusal {
    let before = buffers.bufs.iter().zip(buffers.of_each()).take_while(|(b, _)| !b.is_read_only());
    Refusal::ReadOnly { index: before.map(|(_, ranges)| ranges.len()).sum(), what }
}

/// Adds to the shapes of the ranges where in its page each buffer lies for the device. One that is
/// not lent is copied, and each of its ranges begins a page then.
#[inline]
pub(super) fn place(buffers: &Buffers, lent: &[Lent], page: u32, shapes: &mut [SegShape]) {
    let in_page = in_page(page);
    if !lent.iter().all(|one| one.mapped.is_some_and(|addr| addr.0 & in_page == 0)) {
        place_each(buffers, lent, in_page, shapes);
    }
}

#[cold]
fn place_each(buffers: &Buffers, lent: &[Lent], in_page: u64, shapes: &mut [SegShape]) {
    let mut shapes = shapes.iter_mut();
    for (pieces, lent) in buffers.of_each().zip(lent) {
        for (piece, shape) in pieces.iter().zip(&mut shapes) {
            let at = lent.mapped.map_or(0, |addr| addr.0.wrapping_add(piece.start as u64));
            shape.page_offset = (at & in_page) as u32;
        }
    }
}

/// The bits of an address that say where in its page it is. Sizes are refused for pages that are no
/// power of two.
fn in_page(page: u32) -> u64 {
    u64::from(page).wrapping_sub(1)
}

/// What is wrong with a list first.
#[cold]
fn wrong(buffers: &Buffers) -> Refusal {
    let mut index = 0;
    for (buffer, (buf, ranges)) in buffers.bufs.iter().zip(buffers.of_each()).enumerate() {
        if ranges.is_empty() {
            return Refusal::NoRanges { buffer };
        }
        let mut last_end = 0;
        for &Range { start, end } in ranges {
            if start >= end {
                return Refusal::ZeroLength { index };
            }
            if start < last_end {
                return Refusal::Overlap { index, start, end: last_end };
            }
            if end > buf.len() {
                return Refusal::OutOfRange { index, end, len: buf.len() };
            }
            last_end = end;
            index += 1;
        }
    }
    Refusal::Empty
}
