//! The software device: an in-process RDMA fabric, deterministic and without hardware.
//!
//! ```text
//! SimDevice (handle) ──► Fabric ──► node: PDs, CQs, QPs, MRs, windows, mapped ranges
//!                          └─ step: each QP with work runs one WR, in the order of node and QP
//! ```
//! It behaves as InfiniBand says where that can be told from outside: queue slots, order, statuses,
//! QP states, keys and rights, flushes. Where it does not, a `# Divergence` section beside the code
//! says so. It has no faults of its own and no branches for tests:
//! [`fault`](super::fault) wraps it.
//!
//! # Divergence
//! - A SEND whose peer has no receive posted is tried again in the next step; a real device waits
//!   as long as the receiver has asked for.
//! - One receive has one SGE; a QP has one CQ for both queues; windows are of type 2B only; there
//!   are no atomics and no shared receive queues.
//! - A SEND_WITH_INV whose key is refused delivers no byte; on real devices the receive's memory is
//!   undefined.
//! - A LOCAL_INV of a key that is not bound on the QP is accepted and fails when it runs; verbs
//!   devices refuse it when it is posted, since the kernel may not survive it.
//! - A receive's slot is free once its WC is polled; some devices free it when the message arrives.
//! - Removing a device ends its mappings only when they are unmapped, but nothing runs on it.

mod counters;
mod cq;
mod exec;
mod fabric;
mod handle;
mod iommu;
mod look;
mod mr;
mod mw;
mod node;
pub mod profile;
mod qp;
mod syndrome;
mod table;
#[cfg(test)]
pub(super) mod tests;

pub use counters::SimCounters;
pub use fabric::Fabric;
pub use handle::SimDevice;
pub use look::QpView;
pub use profile::Profile;
pub use syndrome::Syndrome;
