//! What every strategy asks of a list before it touches anything.

use memreg_core::memreg::{MapError, SegList};

/// Refuses a list without bytes, or with a segment without bytes: devices disagree about such a
/// registration, so none is ever made (B46).
pub(crate) fn check_lengths(segs: &SegList<'_>) -> Result<(), MapError> {
    if segs.segs().is_empty() || segs.has_empty() {
        return Err(MapError::Other("length is zero"));
    }
    Ok(())
}
