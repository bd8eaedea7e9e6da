//! A strategy is told shapes, never addresses or keys.

use memreg_core::memreg::{RegionId, SegShape};
use memreg_core::types::{DmaAddr, Rkey};

fn promise(shape: &SegShape) -> DmaAddr {
    shape.addr
}

fn promise_of_a_region(region: RegionId) -> Rkey {
    region.rkey()
}

fn main() {}
