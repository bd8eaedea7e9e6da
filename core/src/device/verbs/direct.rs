//! Binds and invalidations straight into the send queue: the calls of ibv_wr_post(3), for providers
//! that have them. They save the list of WRs, and the provider's reading of it.
#![allow(unsafe_code)] // see the obligations in the parent module

use super::context::{Context, Object};
use crate::device::Wr;
use crate::types::Rkey;
use ibverbs_sys as ffi;
use std::mem::offset_of;
use std::ptr;

type Create =
    unsafe extern "C" fn(*mut ffi::ibv_context, *mut ffi::ibv_qp_init_attr_ex) -> *mut ffi::ibv_qp;
type Plain = unsafe extern "C" fn(*mut ffi::ibv_qp_ex);
type End = unsafe extern "C" fn(*mut ffi::ibv_qp_ex) -> i32;
type Bind =
    unsafe extern "C" fn(*mut ffi::ibv_qp_ex, *mut ffi::ibv_mw, u32, *const ffi::ibv_mw_bind_info);
type Invalidate = unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32);

/// The calls of one QP.
pub(super) struct Direct {
    qp: Object<ffi::ibv_qp_ex>,
    start: Plain,
    bind: Bind,
    invalidate: Invalidate,
    complete: End,
    abort: Plain,
}

impl Direct {
    /// Makes a QP with these calls; null if the provider has none, or made no QP.
    pub(super) fn create_qp(
        context: &Context,
        pd: *mut ffi::ibv_pd,
        init: &mut ffi::ibv_qp_init_attr,
    ) -> *mut ffi::ibv_qp {
        let Some(create) = create_call(context) else { return ptr::null_mut() };
        let mut attr = ffi::ibv_qp_init_attr_ex {
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
            cap: init.cap,
            comp_mask: ffi::IBV_QP_INIT_ATTR_PD | ffi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd,
            send_ops_flags: u64::from(ffi::IBV_QP_EX_WITH_BIND_MW | ffi::IBV_QP_EX_WITH_LOCAL_INV),
            ..Default::default()
        };
        // SAFETY: O1, O2, O4.
        let qp = unsafe { create(context.ptr(), &mut attr) };
        if !qp.is_null() {
            init.cap = attr.cap;
        }
        qp
    }

    /// The calls of a QP that [`Direct::create_qp`] has made.
    pub(super) fn of(qp: *mut ffi::ibv_qp) -> Option<Direct> {
        // SAFETY: O1.
        let ex = unsafe { ffi::ibv_qp_to_qp_ex(qp) };
        let object = Object::made(ex).ok()?;
        // SAFETY: O1: the library keeps it with the QP.
        let of = unsafe { &*ex };
        let (start, bind, invalidate) = (of.wr_start?, of.wr_bind_mw?, of.wr_local_inv?);
        let (complete, abort) = (of.wr_complete?, of.wr_abort?);
        Some(Direct { qp: object, start, bind, invalidate, complete, abort })
    }

    /// Begins a section.
    #[inline]
    pub(super) fn start(&self) -> Section<'_> {
        // SAFETY: O1, O8.
        unsafe { (self.start)(self.qp.ptr()) };
        Section { of: self, open: true }
    }
}

/// WRs that are posted together. Dropped, none of them is.
pub(super) struct Section<'a> {
    of: &'a Direct,
    open: bool,
}

impl Section<'_> {
    #[inline]
    pub(super) fn bind(
        &self,
        wr: &Wr,
        window: *mut ffi::ibv_mw,
        key: Rkey,
        info: &ffi::ibv_mw_bind_info,
    ) {
        self.name(wr);
        // SAFETY: O1, O4, O5, O8.
        unsafe { (self.of.bind)(self.of.qp.ptr(), window, key.to_bits(), info) };
    }

    #[inline]
    pub(super) fn invalidate(&self, wr: &Wr, key: Rkey) {
        self.name(wr);
        // SAFETY: O1, O8.
        unsafe { (self.of.invalidate)(self.of.qp.ptr(), key.to_bits()) };
    }

    /// Posts them with one doorbell; what the provider answers.
    #[inline]
    pub(super) fn complete(mut self) -> i32 {
        self.open = false;
        // SAFETY: O1, O8.
        unsafe { (self.of.complete)(self.of.qp.ptr()) }
    }

    /// Cookie and flags of the next WR.
    #[inline]
    fn name(&self, wr: &Wr) {
        let signaled = if wr.signaled { ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        // SAFETY: O1, O8: the provider reads these in the call that follows, of this section.
        unsafe { (*self.of.qp.ptr()).wr_id = wr.wr_id.0 };
        // SAFETY: as above.
        unsafe { (*self.of.qp.ptr()).wr_flags = signaled };
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        if self.open {
            // SAFETY: O1, O8.
            unsafe { (self.of.abort)(self.of.qp.ptr()) };
        }
    }
}

/// The end of `struct verbs_context`, which only grows in front of this, and which an extended
/// context is the last member of.
#[repr(C)]
struct Around {
    create_qp_ex: Option<Create>,
    others: [usize; 5],
    size: usize,
    context: ffi::ibv_context,
}

/// What `abi_compat` of an extended context holds: all ones.
const EXTENDED: usize = usize::MAX;

fn create_call(context: &Context) -> Option<Create> {
    // SAFETY: O1.
    let compat = unsafe { (*context.ptr()).abi_compat };
    if compat.addr() != EXTENDED {
        return None;
    }
    let around = context.ptr().wrapping_byte_sub(offset_of!(Around, context)).cast::<Around>();
    // SAFETY: an extended context has its size in front of it (verbs.h).
    let size = unsafe { (*around).size };
    if size < size_of::<Around>() {
        return None;
    }
    // SAFETY: the size says that the struct begins at this member or before it.
    unsafe { (*around).create_qp_ex }
}
