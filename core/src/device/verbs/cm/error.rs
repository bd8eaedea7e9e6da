//! Why a connection did not come about; each with its cause and what to do.

use super::hello::HelloError;
use super::library::LIBRARY;
use crate::device::DeviceError;
use crate::error::{ApiMisuse, Disposition};
use crate::transport::error::ConnectError;
use std::net::SocketAddr;

/// Connecting, listening or accepting by RDMA CM failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The library is not there.
    #[error(
        "RDMA CM needs {LIBRARY}, which cannot be loaded ({why}): install it (on Debian, package \
         librdmacm1)"
    )]
    NoLibrary {
        /// What the loader says.
        why: String,
    },
    /// The kernel does not let programs at its CM.
    #[error(
        "the kernel has no RDMA CM for programs (errno {errno}): load rdma_ucm (or, in a \
         container, hand /dev/infiniband/rdma_cm in)"
    )]
    NoKernelSupport {
        /// The library's errno.
        errno: i32,
    },
    /// A call failed for a reason that has no name here.
    #[error("{call}: errno {errno}")]
    Call {
        /// The call.
        call: &'static str,
        /// Its errno.
        errno: i32,
    },
    /// The transport is on the software device.
    #[error(
        "RDMA CM connects real devices (device.kind = \"verbs\"), and this is the software device"
    )]
    NotVerbs,
    /// More private data than the message has room for.
    #[error("{len} bytes of private data, {message} takes {most}: send them once connected")]
    PrivateData {
        /// Bytes given.
        len: usize,
        /// Bytes that fit.
        most: usize,
        /// The message of the CM.
        message: &'static str,
    },
    /// Something listens on the port already.
    #[error("{addr} is taken: another program listens there; choose another port")]
    AddressInUse {
        /// The address.
        addr: SocketAddr,
    },
    /// No interface has the address, or the one that has it is not of an RDMA device.
    #[error(
        "{addr} is no address of an RDMA device of this host (errno {errno}): `rdma link` shows \
         its interface, `ip addr` the addresses"
    )]
    NotLocal {
        /// The address.
        addr: SocketAddr,
        /// The library's errno.
        errno: i32,
    },
    /// The address leads nowhere.
    #[error("{to}: {} (errno {errno})", unresolved(*.errno))]
    Unresolved {
        /// The peer.
        to: SocketAddr,
        /// The kernel's errno.
        errno: i32,
    },
    /// The device has no path to the peer.
    #[error(
        "{to}: the RDMA device finds no path there (errno {errno}): is the fabric up, and is its \
         subnet manager running?"
    )]
    NoRoute {
        /// The peer.
        to: SocketAddr,
        /// The kernel's errno.
        errno: i32,
    },
    /// The address leads through another device than the transport's.
    #[error(
        "the peer is reached through {found}, and the transport is on {used}: open it on the \
         former (device.name), or use an address of the latter"
    )]
    WrongDevice {
        /// Device and port of the address.
        found: String,
        /// Device and port of the transport.
        used: String,
    },
    /// The host is there and nobody listens.
    #[error("{to}: nobody listens there: start the peer first, or check the port")]
    NobodyListens {
        /// The peer.
        to: SocketAddr,
    },
    /// The peer said no.
    #[error("{to}: the peer refused: {}", .text.as_deref().unwrap_or("it gave no reason"))]
    Rejected {
        /// The peer.
        to: SocketAddr,
        /// The reason as a number; 28 is the peer's program.
        reason: i32,
        /// The reason in words, if the peer is this library.
        text: Option<String>,
        /// Its private data, padded with zeros.
        data: Vec<u8>,
    },
    /// The kernel gave the peer up.
    #[error("{to}: the host does not answer requests for connections (errno {errno})")]
    Unreachable {
        /// The peer.
        to: SocketAddr,
        /// The kernel's errno.
        errno: i32,
    },
    /// The time that the caller gave is over.
    #[error(
        "{to}: no answer in time while {step}: is the host up, and does the network let RDMA \
         through (RoCE: UDP port 4791)?"
    )]
    TimedOut {
        /// The peer.
        to: SocketAddr,
        /// What was waited for.
        step: &'static str,
    },
    /// The peer's private data is not what this side needs.
    #[error("the peer's greeting")]
    Hello(#[from] HelloError),
    /// The transport could not be brought up.
    #[error(transparent)]
    Transport(#[from] ConnectError),
    /// The transport is not the one that the connection was started for, or not ready any more.
    #[error(transparent)]
    Misuse(#[from] ApiMisuse),
}

impl From<DeviceError> for CmError {
    fn from(e: DeviceError) -> CmError {
        CmError::Transport(e.into())
    }
}

impl CmError {
    /// What to do about it: `Retry` where the peer may be there later.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            CmError::NobodyListens { .. }
            | CmError::Unresolved { .. }
            | CmError::NoRoute { .. }
            | CmError::Unreachable { .. }
            | CmError::TimedOut { .. } => Disposition::Retry,
            CmError::Rejected { reason, .. } if *reason == STALE => Disposition::Retry,
            CmError::Transport(e) => e.disposition(),
            _ => Disposition::Fatal,
        }
    }

    /// A call failed; `-1` of the library with its errno.
    pub(super) fn call(call: &'static str, errno: i32) -> CmError {
        CmError::Call { call, errno }
    }

    /// The peer's answer to a request is a rejection.
    pub(super) fn rejected(to: SocketAddr, reason: i32, data: Vec<u8>) -> CmError {
        match reason {
            NO_SERVICE | CONNECTION_REFUSED => CmError::NobodyListens { to },
            _ => {
                let text = super::hello::refusal_text(&data).or_else(|| {
                    (reason == STALE).then(|| {
                        "it takes this QP for one of an earlier connection; try again".to_owned()
                    })
                });
                CmError::Rejected { to, reason, text, data }
            }
        }
    }
}

fn unresolved(errno: i32) -> &'static str {
    match errno {
        ENODEV | EADDRNOTAVAIL => {
            "the interface that leads there is of no RDMA device: give an address of the RDMA \
             network"
        }
        ENETUNREACH => "no route leads there: check the address and `ip route`",
        ETIMEDOUT | EHOSTUNREACH => {
            "nobody on the network answers for that address: check it, and that the host is up"
        }
        _ => "the address cannot be resolved",
    }
}

const ENODEV: i32 = 19;
const EADDRNOTAVAIL: i32 = 99;
const ENETUNREACH: i32 = 101;
const ETIMEDOUT: i32 = 110;
const EHOSTUNREACH: i32 = 113;
/// Reasons of the CM's REJ: stale connection, invalid service id.
const STALE: i32 = 10;
const NO_SERVICE: i32 = 8;
/// How iWARP says that nobody listens.
const CONNECTION_REFUSED: i32 = -111;

#[cfg(test)]
mod tests {
    use super::super::hello::refusal;
    use super::*;

    fn to() -> SocketAddr {
        "10.0.0.9:1".parse().unwrap()
    }

    #[test]
    fn every_rejection_says_who_and_why() {
        let e = CmError::rejected(to(), 8, vec![]);
        assert!(matches!(e, CmError::NobodyListens { .. }));
        assert_eq!(e.disposition(), Disposition::Retry);
        let e = CmError::rejected(to(), 28, refusal("too many clients"));
        assert_eq!(e.to_string(), "10.0.0.9:1: the peer refused: too many clients");
        assert_eq!(e.disposition(), Disposition::Fatal);
        let e = CmError::rejected(to(), 28, vec![7; 148]);
        assert!(e.to_string().ends_with("it gave no reason"));
        let e = CmError::rejected(to(), 10, vec![0; 148]);
        assert!(e.to_string().contains("earlier connection"));
        assert_eq!(e.disposition(), Disposition::Retry);
    }

    #[test]
    fn addresses_that_lead_nowhere_have_a_cause_each() {
        for (errno, text) in
            [(19, "no RDMA device"), (101, "no route"), (110, "nobody on the network"), (5, "be")]
        {
            let e = CmError::Unresolved { to: to(), errno }.to_string();
            assert!(e.starts_with("10.0.0.9:1: ") && e.contains(text), "{e}");
        }
    }
}
