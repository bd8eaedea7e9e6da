//! What a list of buffers must be like for any operation.

use super::error::Refusal;
use crate::engine::buffers::{Buffers, Piece};
use crate::mem::DmaBuf;

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
    let (mut bytes, mut bufs, mut len, mut last_end) = (0u64, 0, 0, 0);
    for (index, Piece { buf, range }) in buffers.pieces.iter().enumerate() {
        let (start, end) = (range.start, range.end);
        if start >= end {
            return Err(Refusal::ZeroLength { index });
        }
        if *buf >= bufs {
            let next = buffers.bufs.get(bufs).filter(|_| *buf == bufs);
            let next = next.ok_or(Refusal::NoRanges { buffer: bufs })?;
            may(index, next)?;
            (bufs, len, last_end) = (bufs + 1, next.len(), 0);
        }
        if start < last_end {
            return Err(Refusal::Overlap { index, start, end: last_end });
        }
        if end > len {
            return Err(Refusal::OutOfRange { index, end, len });
        }
        bytes = bytes.saturating_add((end - start) as u64);
        last_end = end;
    }
    match bufs < buffers.bufs.len() {
        true => Err(Refusal::NoRanges { buffer: bufs }),
        false => Ok(bytes),
    }
}
