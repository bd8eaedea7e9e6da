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
    for (buffer, (buf, pieces)) in buffers.bufs.iter().zip(buffers.of_each()).enumerate() {
        let (Some(one), Some(last)) = (pieces.first(), pieces.last()) else {
            return Err(Refusal::NoRanges { buffer });
        };
        let (len, mut end) = (buf.len(), one.range.start);
        for Piece { range, .. } in pieces {
            if range.start >= range.end || range.start < end {
                return Err(wrong(pieces, first, len));
            }
            bytes = bytes.saturating_add((range.end - range.start) as u64);
            end = range.end;
        }
        if last.range.end > len {
            return Err(wrong(pieces, first, len));
        }
        may(first, buf)?;
        first += pieces.len();
    }
    Ok(bytes)
}

/// What is wrong with the ranges of one buffer of `len` bytes, of which the first has this index.
#[cold]
fn wrong(pieces: &[Piece], first: usize, len: usize) -> Refusal {
    let mut last_end = 0;
    for (index, Piece { range: Range { start, end }, .. }) in (first..).zip(pieces) {
        let (start, end) = (*start, *end);
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
