//! Why no device could be opened; each cause is an error of its own.

use super::found::Found;
use super::port::{GidEntry, PortInfo};
use crate::error::Disposition;
use std::fmt;

/// No device could be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel has no user access to RDMA devices.
    #[error(
        "the kernel shows no RDMA devices to programs: load ib_uverbs and the device's driver \
         (or, in a container, hand the devices in)"
    )]
    NoKernelSupport,
    /// There is no device, or none that can be used.
    #[error("no usable RDMA device: {}", listed(.found, "the kernel has none"))]
    NoDevice {
        /// What the kernel has, each with the reason.
        found: Vec<Found>,
    },
    /// There are several devices, and none of them will do.
    #[error("no usable RDMA device: {}", listed(.reasons, "the kernel has none"))]
    NoneSuitable {
        /// Why not, for each.
        reasons: Vec<OpenError>,
    },
    /// The named device does not exist.
    #[error("RDMA device {name:?} does not exist; there are: {}", listed(.found, "none"))]
    Unknown {
        /// The name asked for.
        name: String,
        /// What the kernel has.
        found: Vec<Found>,
    },
    /// The named device exists and cannot be used.
    #[error("RDMA device {0}")]
    Unusable(Found),
    /// The library would not open the device.
    #[error("RDMA device {name:?}: open: errno {errno}")]
    Open {
        /// The device.
        name: String,
        /// The library's errno.
        errno: i32,
    },
    /// An attribute could not be read.
    #[error("RDMA device {name:?}: {what}: errno {errno}")]
    Query {
        /// The device.
        name: String,
        /// The call.
        what: &'static str,
        /// The library's errno.
        errno: i32,
    },
    /// No port of the device is up.
    #[error("RDMA device {name:?}: no active port: {}", listed(.ports, "it has none"))]
    NoActivePort {
        /// The device.
        name: String,
        /// Its ports.
        ports: Vec<PortInfo>,
    },
    /// The named port is not up.
    #[error("RDMA device {name:?}: device.port = {port} is not active: {}", listed(.ports, "-"))]
    PortNotActive {
        /// The device.
        name: String,
        /// The port asked for.
        port: u8,
        /// Its ports.
        ports: Vec<PortInfo>,
    },
    /// The named port does not exist.
    #[error("RDMA device {name:?} has no port {port}: {}", listed(.ports, "it has none"))]
    NoSuchPort {
        /// The device.
        name: String,
        /// The port asked for.
        port: u8,
        /// Its ports.
        ports: Vec<PortInfo>,
    },
    /// The named GID does not exist.
    #[error(
        "gid_index {asked} is not present on {name} port {port}; the table has: {}",
        listed(.present, "nothing")
    )]
    NoSuchGid {
        /// The device.
        name: String,
        /// The port.
        port: u8,
        /// The index asked for.
        asked: u8,
        /// Entries that exist.
        present: Vec<GidEntry>,
    },
}

impl OpenError {
    /// What to do about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        Disposition::Fatal
    }
}

/// The items, or what to say of none.
pub(super) fn listed<T: fmt::Display>(all: &[T], none: &str) -> String {
    if all.is_empty() {
        return none.to_owned();
    }
    all.iter().map(T::to_string).collect::<Vec<_>>().join("; ")
}
