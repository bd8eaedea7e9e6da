//! Real devices, through the system's libibverbs. This is one of the two modules with `unsafe`
//! code; nothing outside it names libibverbs or librdmacm.
//!
//! - `open`: facts of the devices, and the one that [`host`](super::host) chooses from them
//! - `context`, `objects`: the library's objects, each owned once
//! - `dmabuf`: registration of device memory
//! - `post`: chains into the library's WRs, and exact accounts of what was taken
//! - `wait`: sleeping until a CQ, the device or a connection has news
//! - `direct`: WRs straight into the queue, where the provider has calls for that
//! - `windows`: the key of every window, which the library does not keep
//! - [`cm`]: connections by address and port, through librdmacm
//! - `tables`, `handle`: the [`Device`](super::Device) that all this makes
//!
//! # Safety
//! What the unsafe blocks of this module rely on, and what upholds it:
//! - O1: a pointer to an object of the library is valid from the verb that made it to the verb that
//!   ends it. One owner struct holds it, and ends it once: `end`, or its `Drop`.
//! - O2: parents outlive children: every object holds its parents by `Arc`, so the library never
//!   sees a child whose parent has ended.
//! - O3: memory stays mapped while an MR covers it: the MR holds its allocation, and gives it up
//!   only after the library has deregistered it. If that fails the allocation is leaked.
//! - O4: lists handed to a verb (WRs, SGEs, inline bytes, WCs) live in buffers that are borrowed
//!   for the whole call and not moved in it; their lengths are those of the buffers.
//! - O5: a window's handle is written by one thread at a time, under the lock of the tables, which
//!   every post that reads such a handle holds too.
//! - O6: verbs may be called from any thread: objects are safe for multi-threaded access unless
//!   made in a thread domain, which this module never uses (ibv_alloc_td(3)).
//! - O7: librdmacm is loaded by the name of its ABI, and its functions are called with the
//!   signatures of its header; the sizes of the structs are asserted. It stays loaded for good.
//! - O8: the calls of ibv_wr_post(3) stand between the start and the end of one section, on a QP
//!   that was made for them. A section borrows its QP and ends once: `complete`, or its `Drop`.
//!
//! # Divergence
//! `dma_unmap` ends the loan of the bytes in this process; a verbs device has no call to revoke an
//! address. What keeps the device away is the `Fenced` proof, and O3 keeps the memory.

pub mod cm;
mod context;
mod direct;
mod dmabuf;
mod handle;
mod objects;
mod open;
mod post;
mod tables;
#[cfg(test)]
mod tests;
mod wait;
mod windows;

pub use super::host::{
    Choice, DeviceStatus, Found, Host, OpenError, PortInfo, PortState, VerbsOptions,
};
pub use context::Extended;
pub use dmabuf::{DmabufMr, DmabufSegment};
pub use handle::{VerbsDevice, VerbsObjects};
pub use open::{devices, facts};
#[doc(hidden)]
pub use post::decode as decode_wc;
#[cfg(test)]
pub(super) use tests::device as test_device;
