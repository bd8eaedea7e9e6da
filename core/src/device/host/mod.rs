//! What this host shows of its RDMA devices and allows this process, and which device that makes
//! the one to use.
//!
//! Files of the kernel and of the system become values, and all decisions are functions of those
//! values: nothing here needs a device, a library or a privilege.
//!
//! - `found`: the kernel's devices, and why one cannot be used
//! - `port`: ports and their GIDs
//! - `choose`: which device, which port, which GID
//! - `open_error`: why none
//! - `process`: what this process may pin, and where its memory is
//! - `quirks`: where the kernel's software RoCE differs from hardware
//! - `stack`: which libraries and which kernel are at work

mod choose;
mod found;
mod open_error;
mod port;
mod process;
mod quirks;
mod stack;

pub use choose::{Choice, Facts, VerbsOptions, choose};
pub use found::{DeviceStatus, Found, Host};
pub use open_error::OpenError;
pub use port::{GidEntry, GidKind, PortFacts, PortInfo, PortState};
pub use process::{Pinning, PinningRefused};
pub use quirks::{Quirk, rxe_quirks};
pub use stack::{LoadedLibrary, SoftwareStack};
