//! A protection domain, and the local MRs of buffers in it.

use crate::device::{Device, DeviceError, DeviceErrorKind};
use crate::mem::DeregQueue;
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};
use crate::types::{MrId, PdId};
use std::collections::BTreeSet;
use std::sync::OnceLock;

/// A PD of one transport, or of several that share it; the last one that goes ends it.
///
/// A buffer's local MR belongs to the PD, so every transport in it finds a buffer registered that
/// any of them has used.
#[derive(Debug)]
pub(crate) struct Domain<D: Device> {
    pub(crate) device: D,
    pub(crate) pd: PdId,
    /// Local MRs whose buffers are gone.
    pub(crate) queue: Arc<DeregQueue>,
    /// All local MRs that exist.
    live: Mutex<BTreeSet<MrId>>,
    /// Whether they ask for relaxed ordering: as the first transport in the PD wanted.
    relaxed: OnceLock<bool>,
}

impl<D: Device> Domain<D> {
    pub(crate) fn open(device: D) -> Result<Domain<D>, DeviceError> {
        let pd = device.alloc_pd()?;
        let (queue, live, relaxed) = (Arc::default(), Mutex::default(), OnceLock::new());
        Ok(Domain { device, pd, queue, live, relaxed })
    }

    /// Whether a transport that wants this ordering can use the local MRs of the others.
    pub(crate) fn agrees(&self, relaxed: bool) -> bool {
        *self.relaxed.get_or_init(|| relaxed) == relaxed
    }

    pub(crate) fn registered(&self, mr: MrId) {
        self.live().insert(mr);
    }

    /// To be called before the MR is deregistered: once it is, another transport's new MR may have
    /// its id.
    pub(crate) fn ending(&self, mr: MrId) {
        self.live().remove(&mr);
    }

    fn live(&self) -> MutexGuard<'_, BTreeSet<MrId>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dereg(&self, mr: MrId) -> bool {
        match self.device.dereg_mr(mr) {
            Err(e) => e.kind() == DeviceErrorKind::Gone && self.device.is_gone(),
            Ok(()) => true,
        }
    }
}

impl<D: Device> Drop for Domain<D> {
    /// Deregisters every local MR, also of buffers that the program still has. Memory under one
    /// that stays registered is never freed.
    fn drop(&mut self) {
        let mut stuck = std::mem::take(&mut *self.live());
        stuck.retain(|&mr| !self.dereg(mr));
        let mrs = stuck.len();
        let bytes = self.queue.close(stuck);
        if mrs > 0 {
            tracing::error!(mrs, bytes, "the device keeps local MRs; dropped memory stays mapped");
        }
        if let Err(e) = self.device.dealloc_pd(self.pd)
            && !self.device.is_gone()
        {
            tracing::warn!(error = %e, "a protection domain stays: something is still in it");
        }
    }
}
