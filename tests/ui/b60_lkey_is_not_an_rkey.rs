//! A local key cannot stand where the peer's key is expected.

use memreg_core::types::Lkey;
use memreg_core::{Grant, Segment};

fn promise(segment: Segment, lkey: Lkey) -> Segment {
    Segment { rkey: lkey, grant: Grant::PeerReads, ..segment }
}

fn main() {}
