//! One protection domain for many transports.

use crate::device::{Device, DeviceError, TransportKind};
use crate::engine::domain::Domain;
use crate::sizing::{KeyScope, Limits};
use crate::sync::Arc;
use crate::types::DeviceId;

/// A protection domain that transports of one device share. A handle: clones are one PD, and the
/// last handle or transport that goes ends it.
///
/// A buffer is registered in it once, whichever of its transports uses it first (as the parent of
/// windows, or for local access); alone, each transport registers it anew.
///
/// # Shape
/// Only what a window grants is bound to one connection. Whatever grants rights in the whole PD
/// would let the peers of all its transports in, so a strategy that does is refused when it is
/// opened here, and so is iWARP, where the sink of a read grants such a right. All ask for the same
/// relaxed ordering, or none.
#[derive(Debug)]
pub struct SharedPd<D: Device> {
    pub(super) domain: Arc<Domain<D>>,
}

impl<D: Device> Clone for SharedPd<D> {
    fn clone(&self) -> Self {
        SharedPd { domain: Arc::clone(&self.domain) }
    }
}

/// Word that on one device a window's key opens nothing through another QP than its own.
///
/// Not every device that says so keeps to it; `memreg_selector::probe` tries it, and who makes one
/// of these without having tried it shares keys between connections where that is not so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpBoundKeys {
    device: DeviceId,
}

impl QpBoundKeys {
    /// The caller has seen it on this device.
    #[must_use]
    pub fn seen_on(device: DeviceId) -> QpBoundKeys {
        QpBoundKeys { device }
    }
}

/// No PD was made to share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedPdError {
    /// What was seen was seen on another device.
    #[error("keys were seen to be QP-bound on {seen:?}, and this is {this:?}")]
    OtherDevice {
        /// Where it was seen.
        seen: DeviceId,
        /// Where the PD was asked for.
        this: DeviceId,
    },
    /// A verb failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl<D: Device> SharedPd<D> {
    /// Makes the PD.
    ///
    /// # Errors
    /// [`SharedPdError`].
    /// # Cost
    /// One verb.
    pub fn new(device: D, proof: QpBoundKeys) -> Result<SharedPd<D>, SharedPdError> {
        let this = device.id();
        if proof.device != this {
            return Err(SharedPdError::OtherDevice { seen: proof.device, this });
        }
        Ok(SharedPd { domain: Arc::new(Domain::open(device)?) })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.domain.device
    }
}

/// Why a transport that wants another ordering than those before it is refused.
pub(super) const OTHER_ORDERING: &str =
    "buffers are registered in it with another relaxed_ordering than is wanted";

/// Why a strategy with these limits may not be in a shared PD.
pub(super) fn refusal(kind: TransportKind, limits: &Limits) -> Option<&'static str> {
    if limits.key_scope != KeyScope::Qp || limits.arena_bytes > 0 {
        return Some("its keys are valid in the whole PD");
    }
    (kind == TransportKind::Iwarp).then_some("the sink of a read over iWARP grants remote write")
}
