//! Registration of memory for remote access: the [`MemReg`] trait, the engine that alone decides
//! when a key is dead, the [`Transport`] that drives both, and the devices
//! they run on.
//!
//! Read the modules in the order in which a buffer travels: [`mem`] (who owns the bytes) →
//! [`transport`] (`expose`, `send`, `revoke`, `reclaim`) → [`memreg`] (what a strategy may wish
//! for) → [`engine`] (keys, ring, ledger: the rules) → [`device`] (what carries it out).
#![deny(unsafe_code)]

pub mod device;
pub mod drive;
pub mod engine;
pub mod error;
pub mod mem;
pub mod memreg;
#[doc(hidden)]
pub mod mutants;
pub mod plugin;
pub mod sizing;
mod sync;
#[cfg(all(test, any(shuttle, loom)))]
mod threads;
pub mod transport;
pub mod types;

pub use error::{ApiMisuse, Disposition};
pub use mem::DmaBuf;
pub use memreg::{Control, Event, MemReg, SegList, WrBatch};
pub use transport::{Exposed, Transport};
pub use types::{Grant, Segment, Tick};
