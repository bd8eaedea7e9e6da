//! A grant is one direction; two cannot be joined.

use memreg_core::Grant;

fn promise() -> Grant {
    Grant::PeerReads | Grant::PeerWrites
}

fn main() {}
