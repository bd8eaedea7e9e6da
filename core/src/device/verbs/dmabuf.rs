//! Registration of device memory, such as a GPU's, that is shared as a dmabuf.
#![allow(unsafe_code)] // see the obligations in the parent module

use super::VerbsDevice;
use super::context::Object;
use super::objects::{Mr, Pd};
use crate::device::device_memory::{
    Descriptor, DeviceMemoryError, MemoryKind, UNSUPPORTED, register_each,
};
use crate::device::{Device, DeviceError, MrKeys, Verb, errno};
use crate::types::{Access, PdId};
use ibverbs_sys as ffi;
use libloading::os::unix::Library;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

/// Part of a dmabuf.
#[derive(Clone, Copy, Debug)]
pub struct DmabufSegment<'a> {
    /// The dmabuf.
    pub fd: BorrowedFd<'a>,
    /// First byte in it.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Where the segment starts in the address space of its keys.
    pub iova: u64,
    /// Whose memory the program takes it for.
    pub declared: MemoryKind,
}

/// A registered part of a dmabuf. Dropping it ends the registration; the kernel keeps the memory
/// for as long as it lasts, whatever its exporter does.
#[derive(Debug)]
pub struct DmabufMr {
    device: VerbsDevice,
    keys: MrKeys,
}

impl DmabufMr {
    /// Its keys: what WRs of this side and peers name it by.
    #[must_use]
    pub fn keys(&self) -> MrKeys {
        self.keys
    }
}

impl Drop for DmabufMr {
    fn drop(&mut self) {
        if let Err(e) = self.device.dereg_mr(self.keys.mr) {
            tracing::error!(error = %e, "the registration of a dmabuf stays");
        }
    }
}

impl VerbsDevice {
    /// Registers parts of dmabufs, all or none of them, with exactly these rights.
    ///
    /// # Shape
    /// They live in the PD, such as that of a transport
    /// ([`protection_domain`](crate::Transport::protection_domain)), which stays until they end.
    /// No engine knows of them: who gives their keys to a peer ends them by dropping them.
    /// # Errors
    /// [`DeviceMemoryError`]: memory that is not what it was declared to be, before anything is
    /// registered; a device without support.
    /// # Safety
    /// 1. While a registration with a right to write lasts, nobody in this process holds a
    ///    reference to the bytes.
    /// 2. While one with a right to read lasts, nobody holds a mutable reference to them.
    /// # Source
    /// ibv_reg_dmabuf_mr(3)
    pub unsafe fn register_dmabufs(
        &self,
        pd: PdId,
        segments: &[DmabufSegment<'_>],
        access: Access,
    ) -> Result<Vec<DmabufMr>, DeviceMemoryError> {
        let described = segments.iter().map(|s| (describe(s.fd), s.declared));
        register_each(described, |index| {
            let s =
                segments.get(index).ok_or(DeviceError::new(Verb::RegDmabufMr, errno::EINVAL))?;
            // SAFETY: obligations 1 and 2 are the caller's.
            unsafe { self.register_dmabuf(pd, s, access) }
        })
    }

    /// Leaves the kind of memory to the device.
    ///
    /// # Safety
    /// As `register_dmabufs`.
    pub(super) unsafe fn register_dmabuf(
        &self,
        pd: PdId,
        segment: &DmabufSegment<'_>,
        access: Access,
    ) -> Result<DmabufMr, DeviceError> {
        let pd = self.pd(Verb::RegDmabufMr, pd)?;
        // SAFETY: the obligations of this function are those of the call.
        let made = unsafe { register(&pd, segment, access) };
        let keys = self.keep(Verb::RegDmabufMr, made)?;
        Ok(DmabufMr { device: self.clone(), keys })
    }
}

/// The call, as the library's header has it. Libraries before version 34 have none, and a program
/// that were linked with it would not start there.
type Register =
    unsafe extern "C" fn(*mut ffi::ibv_pd, u64, usize, u64, i32, i32) -> *mut ffi::ibv_mr;

/// # Safety
/// As `register_dmabufs`.
unsafe fn register(pd: &Arc<Pd>, s: &DmabufSegment<'_>, access: Access) -> Result<Mr, i32> {
    let this = Library::this();
    // SAFETY: the symbol, if it is there, is a function of that signature since it exists.
    let call = unsafe { this.get::<Register>(b"ibv_reg_dmabuf_mr\0") };
    let call = call.map_err(|_| UNSUPPORTED.errno)?;
    let bytes = usize::try_from(s.len).map_err(|_| errno::EINVAL)?;
    let rights = i32::try_from(access.bits()).map_err(|_| errno::EINVAL)?;
    let fd = s.fd.as_raw_fd();
    // SAFETY: O1, O2; the descriptor is open for the call, and the kernel takes a reference of its
    // own to the memory. What else holds of the bytes is the caller's obligation.
    let made = Object::made(unsafe { call(pd.ptr(), s.offset, bytes, s.iova, fd, rights) })?;
    Ok(Mr::over(made, None, s.len, pd))
}

fn describe(fd: BorrowedFd<'_>) -> Descriptor {
    let fd = fd.as_raw_fd();
    let link = fs::read_link(format!("/proc/self/fd/{fd}"));
    let link = link.map(|l| l.to_string_lossy().into_owned()).unwrap_or_default();
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
    Descriptor::new(&link, &info)
}
