//! What a strategy wishes for in one call.

use super::{MAX_REGIONS, RegionId};
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
#[derive(Debug, Default)]
pub struct WrBatch {
    wishes: Vec<Wish>,
}

/// A strategy wished for more than [`MAX_REGIONS`] in one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("more than {MAX_REGIONS} regions in one operation")]
pub struct BatchFull;

impl WrBatch {
    /// An empty batch with all the memory it will ever need.
    #[must_use]
    pub fn new() -> WrBatch {
        WrBatch { wishes: Vec::with_capacity(MAX_REGIONS) }
    }

    /// Wishes that `region` be registered over `bytes`, with the rights of the exposure.
    ///
    /// # Errors
    /// [`BatchFull`]; nothing was added.
    #[inline]
    pub fn register(&mut self, region: RegionId, bytes: Range<u64>) -> Result<(), BatchFull> {
        self.push(Wish::Register(region, bytes))
    }

    /// Wishes that `region`'s key be invalidated.
    ///
    /// # Errors
    /// [`BatchFull`]; nothing was added.
    #[inline]
    pub fn invalidate(&mut self, region: RegionId) -> Result<(), BatchFull> {
        self.push(Wish::Invalidate(region))
    }

    /// The wishes in order.
    #[must_use]
    #[inline]
    pub fn wishes(&self) -> &[Wish] {
        &self.wishes
    }

    /// Forgets the wishes.
    #[inline]
    pub fn clear(&mut self) {
        self.wishes.clear();
    }

    #[inline]
    fn push(&mut self, wish: Wish) -> Result<(), BatchFull> {
        if self.wishes.len() >= MAX_REGIONS {
            return Err(BatchFull);
        }
        self.wishes.push(wish);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_has_a_fixed_capacity() {
        let mut b = WrBatch::new();
        for _ in 0..MAX_REGIONS {
            b.invalidate(RegionId::default()).unwrap();
        }
        assert_eq!(b.invalidate(RegionId::default()), Err(BatchFull));
    }
}
