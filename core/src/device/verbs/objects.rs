//! PDs, CQs, QPs, MRs and windows of libibverbs. Each struct owns one and ends it once.
#![allow(unsafe_code)] // see the obligations in the parent module

use super::cm::Link;
use super::context::{Context, Object, outcome};
use super::direct::Direct;
use super::open::Port;
use super::post::Scratch;
use super::wait::CompChannel;
use crate::device::{AsyncEvent, PortAddr, QpCaps, QpState, errno};
use crate::mem::{Allocation, DmaBuf};
use crate::types::{Access, Lkey, Rkey};
use ibverbs_sys as ffi;
use std::collections::VecDeque;
use std::ptr;
use std::sync::{Arc, Mutex};

/// Ends objects that are dropped on the way; a failure then is logged, for nobody can be told.
macro_rules! end_on_drop {
    ($type:ident, $what:literal) => {
        impl Drop for $type {
            fn drop(&mut self) {
                if let Err(e) = self.end() {
                    tracing::error!(errno = e, concat!($what, " not ended"));
                }
            }
        }
    };
}

/// A protection domain.
pub(super) struct Pd {
    object: Option<Object<ffi::ibv_pd>>,
    context: Arc<Context>,
}

impl Pd {
    pub(super) fn alloc(context: &Arc<Context>) -> Result<Pd, i32> {
        // SAFETY: O1.
        let object = Object::made(unsafe { ffi::ibv_alloc_pd(context.ptr()) })?;
        Ok(Pd { object: Some(object), context: Arc::clone(context) })
    }

    pub(super) fn ptr(&self) -> *mut ffi::ibv_pd {
        self.object.as_ref().map_or(ptr::null_mut(), Object::ptr)
    }

    pub(super) fn end(&mut self) -> Result<(), i32> {
        let Some(object) = self.object.take() else { return Ok(()) };
        // SAFETY: O1, O2.
        outcome(unsafe { ffi::ibv_dealloc_pd(object.ptr()) }).inspect_err(|_| {
            self.object = Some(object);
        })
    }
}

end_on_drop!(Pd, "PD");

/// A completion queue.
pub(super) struct Cq {
    object: Option<Object<ffi::ibv_cq>>,
    // Declared, so ended, after the CQ that is on it.
    pub(super) channel: CompChannel,
    pub(super) context: Arc<Context>,
    pub(super) entries: u32,
}

impl Cq {
    pub(super) fn create(context: &Arc<Context>, entries: u32) -> Result<Cq, i32> {
        let ask = i32::try_from(entries).map_err(|_| errno::EINVAL)?;
        let (user, channel) = (ptr::null_mut(), CompChannel::create(context)?);
        // SAFETY: O1, O2; no user pointer.
        let cq = unsafe { ffi::ibv_create_cq(context.ptr(), ask, user, channel.ptr(), 0) };
        let object = Object::made(cq)?;
        // SAFETY: O1.
        let got = unsafe { (*object.ptr()).cqe };
        Ok(Cq {
            object: Some(object),
            channel,
            context: Arc::clone(context),
            entries: u32::try_from(got).unwrap_or(entries),
        })
    }

    pub(super) fn ptr(&self) -> *mut ffi::ibv_cq {
        self.object.as_ref().map_or(ptr::null_mut(), Object::ptr)
    }

    pub(super) fn end(&mut self) -> Result<(), i32> {
        let Some(object) = self.object.take() else { return Ok(()) };
        // SAFETY: O1, O2.
        outcome(unsafe { ffi::ibv_destroy_cq(object.ptr()) }).inspect_err(|_| {
            self.object = Some(object);
        })
    }
}

end_on_drop!(Cq, "CQ");

/// A reliable-connected queue pair.
pub(super) struct Qp {
    object: Option<Object<ffi::ibv_qp>>,
    pub(super) context: Arc<Context>,
    pub(super) num: u32,
    pub(super) scratch: Mutex<Scratch>,
    /// The quicker way for binds and invalidations, if the provider has it.
    pub(super) direct: Option<Direct>,
    pub(super) events: Mutex<VecDeque<AsyncEvent>>,
    /// The connection, if RDMA CM made it.
    pub(super) link: Mutex<Option<Link>>,
    pub(super) cq: Arc<Cq>,
    _pd: Arc<Pd>,
}

impl Qp {
    pub(super) fn create(pd: &Arc<Pd>, cq: &Arc<Cq>, ask: QpCaps) -> Result<(Qp, QpCaps), i32> {
        let mut init = ffi::ibv_qp_init_attr {
            send_cq: cq.ptr(),
            recv_cq: cq.ptr(),
            qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
            // Each WR says for itself whether it is signaled.
            sq_sig_all: 0,
            ..Default::default()
        };
        init.cap = ffi::ibv_qp_cap {
            max_send_wr: ask.max_send_wr,
            max_recv_wr: ask.max_recv_wr,
            max_send_sge: ask.max_sge,
            // A receive names one range.
            max_recv_sge: 1,
            max_inline_data: ask.max_inline_data,
        };
        let mut qp = ptr::null_mut();
        let mut direct = None;
        if pd.context.ops().windows.is_some() {
            qp = Direct::create_qp(&pd.context, pd.ptr(), &mut init);
            direct = (!qp.is_null()).then(|| Direct::of(qp)).flatten();
        }
        if qp.is_null() {
            // SAFETY: O1, O2, O4.
            qp = unsafe { ffi::ibv_create_qp(pd.ptr(), &mut init) };
        }
        let object = Object::made(qp)?;
        // SAFETY: O1.
        let num = unsafe { (*object.ptr()).qp_num };
        let got = QpCaps {
            max_send_wr: init.cap.max_send_wr,
            max_recv_wr: init.cap.max_recv_wr,
            max_sge: init.cap.max_send_sge,
            max_inline_data: init.cap.max_inline_data,
        };
        let qp = Qp {
            object: Some(object),
            context: Arc::clone(&pd.context),
            num,
            scratch: Mutex::new(Scratch::new()),
            direct,
            events: Mutex::new(VecDeque::new()),
            link: Mutex::new(None),
            cq: Arc::clone(cq),
            _pd: Arc::clone(pd),
        };
        Ok((qp, got))
    }

    pub(super) fn ptr(&self) -> *mut ffi::ibv_qp {
        self.object.as_ref().map_or(ptr::null_mut(), Object::ptr)
    }

    pub(super) fn to_init(&self, port: &Port) -> Result<(), i32> {
        use ffi::ibv_qp_attr_mask as mask;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let attr = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_INIT,
            port_num: port.num,
            qp_access_flags: rights.bits(),
            ..Default::default()
        };
        let fields = [mask::IBV_QP_STATE, mask::IBV_QP_PKEY_INDEX, mask::IBV_QP_PORT];
        self.modify(attr, &fields, mask::IBV_QP_ACCESS_FLAGS)
    }

    pub(super) fn to_rtr(&self, port: &Port, peer: u32, at: PortAddr) -> Result<(), i32> {
        use ffi::ibv_qp_attr_mask as mask;
        let mut ah = ffi::ibv_ah_attr {
            dlid: at.lid,
            is_global: u8::from(at.gid != [0; 16]),
            port_num: port.num,
            ..Default::default()
        };
        ah.grh.dgid.raw = at.gid;
        ah.grh.sgid_index = port.gid_index;
        ah.grh.hop_limit = 64;
        let attr = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTR,
            path_mtu: path_mtu(port.addr.mtu.min(at.mtu)),
            dest_qp_num: peer,
            max_dest_rd_atomic: port.reads_served,
            min_rnr_timer: RNR_TIMER,
            ah_attr: ah,
            ..Default::default()
        };
        let fields = [
            mask::IBV_QP_STATE,
            mask::IBV_QP_AV,
            mask::IBV_QP_PATH_MTU,
            mask::IBV_QP_DEST_QPN,
            mask::IBV_QP_RQ_PSN,
            mask::IBV_QP_MAX_DEST_RD_ATOMIC,
        ];
        self.modify(attr, &fields, mask::IBV_QP_MIN_RNR_TIMER)
    }

    pub(super) fn to_rts(&self, port: &Port, rnr_retry: u8) -> Result<(), i32> {
        use ffi::ibv_qp_attr_mask as mask;
        let attr = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTS,
            timeout: ACK_TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry,
            max_rd_atomic: port.reads_asked,
            ..Default::default()
        };
        let fields = [
            mask::IBV_QP_STATE,
            mask::IBV_QP_TIMEOUT,
            mask::IBV_QP_RETRY_CNT,
            mask::IBV_QP_RNR_RETRY,
            mask::IBV_QP_SQ_PSN,
        ];
        self.modify(attr, &fields, mask::IBV_QP_MAX_QP_RD_ATOMIC)
    }

    pub(super) fn to_err(&self) -> Result<(), i32> {
        let qp_state = ffi::ibv_qp_state::IBV_QPS_ERR;
        let attr = ffi::ibv_qp_attr { qp_state, ..Default::default() };
        self.modify(attr, &[], ffi::ibv_qp_attr_mask::IBV_QP_STATE)
    }

    fn modify(
        &self,
        attr: ffi::ibv_qp_attr,
        fields: &[ffi::ibv_qp_attr_mask],
        last: ffi::ibv_qp_attr_mask,
    ) -> Result<(), i32> {
        self.modify_masked(attr, fields.iter().fold(last.0, |all, f| all | f.0))
    }

    /// Changes the fields of the mask, which is that of `ibv_modify_qp(3)`.
    pub(super) fn modify_masked(&self, mut attr: ffi::ibv_qp_attr, mask: u32) -> Result<(), i32> {
        let mask = i32::try_from(mask).map_err(|_| errno::EINVAL)?;
        // SAFETY: O1, O4.
        outcome(unsafe { ffi::ibv_modify_qp(self.ptr(), &mut attr, mask) })
    }

    pub(super) fn state(&self) -> Result<QpState, i32> {
        let mut attr = ffi::ibv_qp_attr::default();
        let mut init = ffi::ibv_qp_init_attr::default();
        let mask = ffi::ibv_qp_attr_mask::IBV_QP_STATE.0;
        let mask = i32::try_from(mask).map_err(|_| errno::EINVAL)?;
        // SAFETY: O1, O4.
        outcome(unsafe { ffi::ibv_query_qp(self.ptr(), &mut attr, mask, &mut init) })?;
        Ok(match attr.qp_state {
            ffi::ibv_qp_state::IBV_QPS_RESET => QpState::Reset,
            ffi::ibv_qp_state::IBV_QPS_INIT => QpState::Init,
            ffi::ibv_qp_state::IBV_QPS_RTR => QpState::Rtr,
            ffi::ibv_qp_state::IBV_QPS_RTS => QpState::Rts,
            ffi::ibv_qp_state::IBV_QPS_SQD => QpState::Sqd,
            ffi::ibv_qp_state::IBV_QPS_SQE => QpState::Sqe,
            // A state that is not named here cannot be used either.
            _ => QpState::Err,
        })
    }

    pub(super) fn end(&mut self) -> Result<(), i32> {
        let Some(object) = self.object.take() else { return Ok(()) };
        // SAFETY: O1, O2. No window of ours is bound on it: the tables refuse that before.
        outcome(unsafe { ffi::ibv_destroy_qp(object.ptr()) }).inspect_err(|_| {
            self.object = Some(object);
        })
    }
}

end_on_drop!(Qp, "QP");

/// An ordinary memory region.
pub(super) struct Mr {
    object: Option<Object<ffi::ibv_mr>>,
    memory: Option<Arc<Allocation>>,
    pub(super) len: u64,
    pub(super) lkey: Lkey,
    pub(super) rkey: Rkey,
    _pd: Arc<Pd>,
}

impl Mr {
    /// Registers `len` bytes at `addr`, which the caller has checked to lie in `memory`.
    pub(super) fn register(
        pd: &Arc<Pd>,
        addr: u64,
        len: u64,
        access: Access,
        memory: Arc<Allocation>,
    ) -> Result<Mr, i32> {
        let start = ptr::with_exposed_provenance_mut(usize::try_from(addr).map_err(|_| FAULT)?);
        let bytes = usize::try_from(len).map_err(|_| errno::EINVAL)?;
        let rights = i32::try_from(access.bits()).map_err(|_| errno::EINVAL)?;
        let made = if access.contains(Access::RELAXED_ORDERING) {
            // Optional: the library leaves it out where the kernel does not know it.
            // SAFETY: O1, O2, O3, and as below.
            unsafe { ffi::ibv_reg_mr_iova2(pd.ptr(), start, bytes, addr, access.bits()) }
        } else {
            // SAFETY: O1, O2, O3. The device may write there only while no CPU view exists:
            // `DmaBuf` was given up for the `ExposedBytes` that the range was found in.
            unsafe { ffi::ibv_reg_mr(pd.ptr(), start, bytes, rights) }
        };
        Ok(Mr::over(Object::made(made)?, Some(memory), len, pd))
    }

    /// Whether the kernel takes the flag of relaxed ordering; one from before it refuses.
    pub(super) fn can_relax(pd: &Arc<Pd>) -> bool {
        let Ok(page) = DmaBuf::new(1) else { return false };
        let (bytes, _) = page.into_exposed();
        let Ok(rights) = i32::try_from(Access::RELAXED_ORDERING.bits()) else { return false };
        let start = ptr::with_exposed_provenance_mut(usize::try_from(bytes.addr()).unwrap_or(0));
        // By this symbol the flag reaches the kernel as it is.
        // SAFETY: O1, O2, O3: the MR below holds the memory, which nobody looks at.
        let made = Object::made(unsafe { ffi::ibv_reg_mr(pd.ptr(), start, 1, rights) });
        made.is_ok_and(|made| Mr::over(made, Some(bytes.lifetime()), 1, pd).end().is_ok())
    }

    /// Takes a registration over; `memory` is what it keeps mapped, if that is this process's.
    pub(super) fn over(
        object: Object<ffi::ibv_mr>,
        memory: Option<Arc<Allocation>>,
        len: u64,
        pd: &Arc<Pd>,
    ) -> Mr {
        // SAFETY: O1.
        let lkey = unsafe { (*object.ptr()).lkey };
        // SAFETY: O1.
        let rkey = unsafe { (*object.ptr()).rkey };
        Mr {
            object: Some(object),
            memory,
            len,
            lkey: Lkey::from_bits(lkey),
            rkey: Rkey::from_bits(rkey),
            _pd: Arc::clone(pd),
        }
    }

    pub(super) fn ptr(&self) -> *mut ffi::ibv_mr {
        self.object.as_ref().map_or(ptr::null_mut(), Object::ptr)
    }

    pub(super) fn end(&mut self) -> Result<(), i32> {
        let Some(object) = self.object.take() else { return Ok(()) };
        // SAFETY: O1; O3: the memory is given up afterwards.
        match outcome(unsafe { ffi::ibv_dereg_mr(object.ptr()) }) {
            Ok(()) => {
                self.memory = None;
                Ok(())
            }
            Err(e) => {
                self.object = Some(object);
                Err(e)
            }
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            tracing::error!(errno = e, len = self.len, "MR not ended; its memory is leaked");
            std::mem::forget(self.memory.take());
        }
    }
}

/// A type-2 window.
pub(super) struct Mw {
    object: Option<Object<ffi::ibv_mw>>,
    context: Arc<Context>,
    _pd: Arc<Pd>,
}

impl Mw {
    pub(super) fn alloc(pd: &Arc<Pd>) -> Result<Mw, i32> {
        let Some(ops) = pd.context.ops().windows else { return Err(errno::EOPNOTSUPP) };
        // SAFETY: O1, O2.
        let object = Object::made(unsafe { (ops.alloc)(pd.ptr(), ffi::IBV_MW_TYPE_2) })?;
        let context = Arc::clone(&pd.context);
        Ok(Mw { object: Some(object), context, _pd: Arc::clone(pd) })
    }

    pub(super) fn ptr(&self) -> *mut ffi::ibv_mw {
        self.object.as_ref().map_or(ptr::null_mut(), Object::ptr)
    }

    /// The key in the handle: what a bind tells the device that the key was so far.
    pub(super) fn key(&self) -> Rkey {
        // SAFETY: O1, O5.
        Rkey::from_bits(self.object.as_ref().map_or(0, |o| unsafe { (*o.ptr()).rkey }))
    }

    pub(super) fn end(&mut self) -> Result<(), i32> {
        let Some(ops) = self.context.ops().windows else { return Ok(()) };
        let Some(object) = self.object.take() else { return Ok(()) };
        // SAFETY: O1.
        outcome(unsafe { (ops.dealloc)(object.ptr()) }).inspect_err(|_| {
            self.object = Some(object);
        })
    }
}

end_on_drop!(Mw, "window");

/// The library's code for a packet size: the largest that is not longer.
fn path_mtu(bytes: u16) -> ffi::ibv_mtu {
    match bytes {
        4096.. => ffi::IBV_MTU_4096,
        2048.. => ffi::IBV_MTU_2048,
        1024.. => ffi::IBV_MTU_1024,
        512.. => ffi::IBV_MTU_512,
        _ => ffi::IBV_MTU_256,
    }
}

const FAULT: i32 = errno::EFAULT;
/// 4.096 us * 2^14 = 67 ms to wait for an answer.
pub(super) const ACK_TIMEOUT: u8 = 14;
/// One less than there may be: rdma_rxe takes 7 as without end, and never gives a dead peer up.
pub(super) const RETRIES: u8 = 6;
/// 12 = 0.64 ms before the sender tries again.
pub(super) const RNR_TIMER: u8 = 12;
