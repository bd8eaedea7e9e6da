//! What a list of buffers must be like for any operation.

use super::error::Refusal;
use crate::engine::buffers::{Buffers, Piece};
use crate::mem::DmaBuf;
use std::ops::Range;

/// The bytes of all ranges together. `may` is asked once for each buffer, with the index of its
/// first range.
///
/// # Errors
/// The first range that is empty, overlaps the one before it or leaves its buffer, or the first
/// buffer without one; and what `may` says.
pub(super) fn check(
    buffers: &Buffers,
    may: impl Fn(usize, &DmaBuf) -> Result<(), Refusal>,
) -> Result<u64, Refusal> {
    if buffers.bufs.is_empty() {
        return Err(Refusal::Empty);
    }
    let (mut bytes, mut first) = (0u64, 0);
    for (buffer, (buf, ranges)) in buffers.bufs.iter().zip(buffers.of_each()).enumerate() {
        let Some(start) = ranges.first().map(|r| r.start) else {
            return Err(Refusal::NoRanges { buffer });
        };
        // If they ascend and do not overlap, all are inside the buffer if the last one is, and so
        // is their sum.
        let (mut end, mut sum) = (start, 0);
        for range in ranges {
            if range.start >= range.end || range.start < end {
                return Err(wrong(ranges, first, buf.len()));
            }
            sum += range.end - range.start;
            end = range.end;
        }
        if end > buf.len() {
            return Err(wrong(ranges, first, buf.len()));
        }
        may(first, buf)?;
        bytes = bytes.saturating_add(sum as u64);
        first += ranges.len();
    }
    Ok(bytes)
}

/// What is wrong with the ranges of one buffer of `len` bytes, of which the first has this index.
#[cold]
fn wrong(ranges: &[Piece], first: usize, len: usize) -> Refusal {
    let mut last_end = 0;
    for (index, &Range { start, end }) in (first..).zip(ranges) {
        if start >= end {
            return Refusal::ZeroLength { index };
        }
        if start < last_end {
            return Refusal::Overlap { index, start, end: last_end };
        }
        if end > len {
            return Refusal::OutOfRange { index, end, len };
        }
        last_end = end;
    }
    Refusal::OutOfRange { index: first, end: last_end, len }
}
