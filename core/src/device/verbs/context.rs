//! An opened device of libibverbs: its attributes, ports, GIDs and events.
#![allow(unsafe_code)] // see the obligations in the parent module

use crate::device::errno;
use crate::device::host::{GidEntry, GidKind, PortInfo, PortState};
use ibverbs_sys as ffi;
use rustix::fs::OFlags;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// A pointer to an object of the library. Its owner is the struct that holds it.
pub(super) struct Object<T>(pub(super) NonNull<T>);

// SAFETY: O6.
unsafe impl<T> Send for Object<T> {}
// SAFETY: O6.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    /// What a verb returned; null is its errno.
    pub(super) fn made(ptr: *mut T) -> Result<Object<T>, i32> {
        NonNull::new(ptr).map(Object).ok_or_else(last_errno)
    }

    pub(super) fn ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

/// The errno of the verb that has just failed; never 0.
pub(super) fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().filter(|&e| e != 0).unwrap_or(errno::EIO)
}

/// The outcome of a verb: 0, a positive errno, -1 with errno set, or a negative errno, for
/// providers differ.
pub(super) fn outcome(rc: i32) -> Result<(), i32> {
    match rc {
        0 => Ok(()),
        -1 => Err(last_errno()),
        n => Err(n.checked_abs().unwrap_or(errno::EIO)),
    }
}

/// The fast calls of a provider, which are not symbols of the library.
#[derive(Clone, Copy)]
pub(super) struct Ops {
    pub(super) post_send: unsafe extern "C" fn(
        *mut ffi::ibv_qp,
        *mut ffi::ibv_send_wr,
        *mut *mut ffi::ibv_send_wr,
    ) -> i32,
    pub(super) post_recv: unsafe extern "C" fn(
        *mut ffi::ibv_qp,
        *mut ffi::ibv_recv_wr,
        *mut *mut ffi::ibv_recv_wr,
    ) -> i32,
    pub(super) poll_cq: unsafe extern "C" fn(*mut ffi::ibv_cq, i32, *mut ffi::ibv_wc) -> i32,
    pub(super) arm_cq: Option<unsafe extern "C" fn(*mut ffi::ibv_cq, i32) -> i32>,
    pub(super) windows: Option<WindowOps>,
}

/// The calls that make and end windows.
#[derive(Clone, Copy)]
pub(super) struct WindowOps {
    pub(super) alloc: unsafe extern "C" fn(*mut ffi::ibv_pd, ffi::ibv_mw_type) -> *mut ffi::ibv_mw,
    pub(super) dealloc: unsafe extern "C" fn(*mut ffi::ibv_mw) -> i32,
}

/// What the device said without being asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RawEvent {
    Qp(u32),
    Cq(*mut ffi::ibv_cq),
    PortDown(u8),
    PortUp(u8),
    Fatal,
    Other(u32),
}

/// Attributes that the older query does not have, beside two that both have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extended {
    /// As in [`Caps`](crate::device::Caps).
    pub max_mr_size: u64,
    /// As in [`Caps`](crate::device::Caps).
    pub max_qp_wr: u32,
    /// All capability bits: the lower half is that of the older query.
    pub cap_flags: u64,
    /// Memory can be registered without pinning it. This library never does.
    pub on_demand_paging: bool,
    /// Bytes of memory on the device itself.
    pub max_dm_size: u64,
}

type QueryDeviceEx = unsafe extern "C" fn(
    *mut ffi::ibv_context,
    *const std::ffi::c_void,
    *mut ffi::ibv_device_attr_ex,
    usize,
) -> i32;

/// An opened device.
pub(super) struct Context {
    object: Object<ffi::ibv_context>,
    ops: Ops,
}

/// The names of the devices that have a provider.
pub(super) fn names() -> io::Result<Vec<String>> {
    let list = ibverbs::devices()?;
    let name = |d: ibverbs::Device<'_>| d.name().map(|n| n.to_string_lossy().into_owned());
    let mut names: Vec<String> = list.iter().filter_map(name).collect();
    names.sort();
    Ok(names)
}

impl Context {
    /// Opens the device of that name; `None` if the library knows none.
    pub(super) fn open(name: &str) -> Result<Option<Arc<Context>>, i32> {
        let list = List::get()?;
        let Some(device) = list.find(name) else { return Ok(None) };
        // SAFETY: O1: the list that the device is in is alive.
        let ptr = unsafe { ffi::ibv_open_device(device) };
        let object = Object::made(ptr)?;
        // SAFETY: O1: just opened; the operations are set by now and do not change (the copy).
        let ops = unsafe { (*object.ptr()).ops };
        let (Some(post_send), Some(post_recv), Some(poll_cq)) =
            (ops.post_send, ops.post_recv, ops.poll_cq)
        else {
            close(&object);
            return Err(errno::EOPNOTSUPP);
        };
        let windows = match (ops.alloc_mw, ops.dealloc_mw) {
            (Some(alloc), Some(dealloc)) => Some(WindowOps { alloc, dealloc }),
            _ => None,
        };
        let arm_cq = ops.req_notify_cq;
        let ops = Ops { post_send, post_recv, poll_cq, arm_cq, windows };
        let context = Context { object, ops };
        context.events_do_not_block()?;
        Ok(Some(Arc::new(context)))
    }

    fn events_do_not_block(&self) -> Result<(), i32> {
        let flags = rustix::fs::fcntl_getfl(self).map_err(rustix::io::Errno::raw_os_error)?;
        rustix::fs::fcntl_setfl(self, flags | OFlags::NONBLOCK)
            .map_err(rustix::io::Errno::raw_os_error)
    }

    pub(super) fn ptr(&self) -> *mut ffi::ibv_context {
        self.object.ptr()
    }

    pub(super) fn ops(&self) -> &Ops {
        &self.ops
    }

    /// Whether the wire is iWARP.
    pub(super) fn is_iwarp(&self) -> bool {
        // SAFETY: O1.
        let device = unsafe { (*self.ptr()).device };
        // SAFETY: O1: the context keeps its device.
        let kind = unsafe { (*device).transport_type };
        kind == ffi::IBV_TRANSPORT_IWARP
    }

    /// `ibv_query_device(3)`.
    pub(super) fn attributes(&self) -> Result<ffi::ibv_device_attr, i32> {
        let mut attr = ffi::ibv_device_attr::default();
        // SAFETY: O1, O4.
        outcome(unsafe { ffi::ibv_query_device(self.ptr(), &mut attr) })?;
        Ok(attr)
    }

    /// `ibv_query_device_ex(3)`, which is no symbol of the library: its header finds the provider's
    /// function at a fixed distance below the context, if a size in front of the context says that
    /// the provider knows it.
    pub(super) fn extended(&self) -> Option<Extended> {
        // SAFETY: O1.
        if unsafe { (*self.ptr()).abi_compat }.addr() != EXTENDED_ABI {
            return None;
        }
        let end = self.ptr().cast::<u8>();
        // SAFETY: O1: an extended context is the last part of a longer struct, whose size is the
        // word before it.
        let size = unsafe { end.wrapping_sub(SIZE_BELOW).cast::<usize>().read() };
        if size < QUERY_BELOW + size_of::<ffi::ibv_context>() {
            return None;
        }
        // SAFETY: as above; the size says that this word is there. A null pointer reads as `None`.
        let query =
            unsafe { end.wrapping_sub(QUERY_BELOW).cast::<Option<QueryDeviceEx>>().read() }?;
        let mut attr = ffi::ibv_device_attr_ex::default();
        let len = size_of::<ffi::ibv_device_attr_ex>();
        // SAFETY: O1, O4: no input is allowed; the length is that of the struct.
        outcome(unsafe { query(self.ptr(), std::ptr::null(), &mut attr, len) }).ok()?;
        Some(Extended {
            max_mr_size: attr.orig_attr.max_mr_size,
            max_qp_wr: u32::try_from(attr.orig_attr.max_qp_wr).unwrap_or(0),
            cap_flags: attr.device_cap_flags_ex,
            on_demand_paging: attr.odp_caps.general_caps & u64::from(ffi::IBV_ODP_SUPPORT) != 0,
            max_dm_size: attr.max_dm_size,
        })
    }

    /// `ibv_query_port(3)`.
    pub(super) fn port(&self, num: u8) -> Result<PortInfo, i32> {
        let mut attr = ffi::ibv_port_attr::default();
        // The library's symbol takes the first fields of the struct only; the others stay zero.
        // SAFETY: O1, O4: the struct is at least as long as the one that the symbol fills.
        let rc = unsafe { ffi::ibv_query_port(self.ptr(), num, (&raw mut attr).cast()) };
        outcome(rc)?;
        Ok(PortInfo {
            num,
            state: PortState::from_raw(attr.state),
            lid: attr.lid,
            mtu: 128u16.checked_shl(attr.active_mtu).unwrap_or(0),
            ethernet: u32::from(attr.link_layer) == ffi::IBV_LINK_LAYER_ETHERNET,
        })
    }

    /// The GIDs of one port.
    pub(super) fn gids(&self, port: u8) -> Result<Vec<GidEntry>, i32> {
        let mut table = vec![ffi::ibv_gid_entry::default(); GIDS_MAX];
        let size = size_of::<ffi::ibv_gid_entry>();
        // SAFETY: O1, O4.
        let got = unsafe {
            ffi::_ibv_query_gid_table(self.ptr(), table.as_mut_ptr(), table.len(), 0, size)
        };
        let Ok(count) = usize::try_from(got) else {
            return Err(i32::try_from(got.unsigned_abs()).unwrap_or(errno::EIO));
        };
        table.truncate(count);
        let mine = table.into_iter().filter(|e| e.port_num == u32::from(port));
        Ok(mine
            .map(|e| GidEntry {
                index: e.gid_index,
                // SAFETY: the union is 16 bytes under either name.
                gid: unsafe { e.gid.raw },
                kind: match e.gid_type {
                    ffi::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
                    ffi::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
                    _ => GidKind::Ib,
                },
            })
            .collect())
    }

    /// The next event, acknowledged; `None` if there is none.
    pub(super) fn next_event(&self) -> Option<RawEvent> {
        let mut event = ffi::ibv_async_event::default();
        // SAFETY: O1, O4. The descriptor does not block.
        if unsafe { ffi::ibv_get_async_event(self.ptr(), &mut event) } != 0 {
            return None;
        }
        let read = read_event(&event);
        // SAFETY: O1; this event was just got and is acknowledged once.
        unsafe { ffi::ibv_ack_async_event(&mut event) };
        Some(read)
    }
}

/// The descriptor of its events.
impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: O1.
        let fd = unsafe { (*self.ptr()).async_fd };
        // SAFETY: the descriptor belongs to the context, which is open for the whole borrow.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

/// Reads an event that is not acknowledged yet, so that its object still exists.
fn read_event(event: &ffi::ibv_async_event) -> RawEvent {
    match event.event_type {
        ffi::IBV_EVENT_QP_FATAL | ffi::IBV_EVENT_QP_REQ_ERR | ffi::IBV_EVENT_QP_ACCESS_ERR => {
            // SAFETY: events of this type carry a QP.
            let qp = unsafe { event.element.qp };
            // SAFETY: O1: the QP cannot be destroyed before the event is acknowledged.
            RawEvent::Qp(unsafe { (*qp).qp_num })
        }
        ffi::IBV_EVENT_CQ_ERR => {
            // SAFETY: events of this type carry a CQ.
            RawEvent::Cq(unsafe { event.element.cq })
        }
        ffi::IBV_EVENT_PORT_ERR | ffi::IBV_EVENT_PORT_ACTIVE => {
            // SAFETY: events of this type carry a port number.
            let num = unsafe { event.element.port_num };
            let num = u8::try_from(num).unwrap_or(0);
            match event.event_type {
                ffi::IBV_EVENT_PORT_ERR => RawEvent::PortDown(num),
                _ => RawEvent::PortUp(num),
            }
        }
        ffi::IBV_EVENT_DEVICE_FATAL => RawEvent::Fatal,
        other => RawEvent::Other(other),
    }
}

fn close(object: &Object<ffi::ibv_context>) {
    // SAFETY: O1, O2: the only owner ends it, after everything made from it.
    if let Err(e) = outcome(unsafe { ffi::ibv_close_device(object.ptr()) }) {
        tracing::error!(errno = e, "device not closed");
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        close(&self.object);
    }
}

/// The library's list of devices.
struct List {
    first: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

impl List {
    fn get() -> Result<List, i32> {
        let mut count = 0;
        // SAFETY: O4.
        let list = unsafe { ffi::ibv_get_device_list(&mut count) };
        let first = NonNull::new(list).ok_or_else(last_errno)?;
        Ok(List { first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn find(&self, name: &str) -> Option<*mut ffi::ibv_device> {
        // SAFETY: O1: the library's array of that many pointers, alive as long as the list.
        let all = unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) };
        all.iter().copied().find(|&device| {
            // SAFETY: O1: an element of the list.
            let ptr = unsafe { ffi::ibv_get_device_name(device) };
            // SAFETY: a terminated string inside the device, alive as long as the list.
            !ptr.is_null() && unsafe { CStr::from_ptr(ptr) }.to_bytes() == name.as_bytes()
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: O1: got once, freed once.
        unsafe { ffi::ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// Entries in use, of all ports together, that are asked for; the kernel takes at most 64 KiB.
const GIDS_MAX: usize = 1024;
/// The mark of a context with a longer struct around it.
const EXTENDED_ABI: usize = usize::MAX;
/// Where the ABI has the size of that struct, in bytes below the context.
const SIZE_BELOW: usize = 8;
/// And the query for extended attributes.
const QUERY_BELOW: usize = 104;
