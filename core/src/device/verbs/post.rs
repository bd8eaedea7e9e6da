//! Chains into the library's WRs, and WCs out of it.
#![allow(unsafe_code)] // see the obligations in the parent module

use super::context::last_errno;
use super::objects::{Cq, Qp};
use super::tables::Tables;
use crate::device::{
    DeviceError, Payload, PostError, RecvWr, Sge, Verb, Wc, WcError, WcStatus, WcSuccess, Wr,
    WrChain, WrOp, errno,
};
use crate::types::{QpId, Rkey, WrId};
use ibverbs::ibv_wc;
use ibverbs_sys as ffi;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ptr;

/// The library's form of one chain. Reused, so that a warmed-up QP allocates nothing.
pub(super) struct Scratch {
    wrs: Vec<ffi::ibv_send_wr>,
    recvs: Vec<ffi::ibv_recv_wr>,
    sges: Vec<ffi::ibv_sge>,
}

// SAFETY: the pointers in it are set and used within one call, under the lock it stands in (O4);
// between calls the lists are empty.
unsafe impl Send for Scratch {}

impl Scratch {
    pub(super) fn new() -> Scratch {
        Scratch { wrs: vec![], recvs: vec![], sges: vec![] }
    }

    fn clear(&mut self) {
        self.wrs.clear();
        self.recvs.clear();
        self.sges.clear();
    }

    /// Translates a chain; the windows it names change in `tables` as if all of it were accepted.
    ///
    /// # Errors
    /// Nothing was posted; the caller undoes the windows.
    pub(super) fn build(
        &mut self,
        qp: QpId,
        chain: &WrChain,
        tables: &mut Tables,
    ) -> Result<(), DeviceError> {
        self.clear();
        for (i, wr) in chain.iter().enumerate() {
            let from = self.sges.len();
            let mut raw = self.translate(chain, &wr);
            match wr.op {
                WrOp::BindMw { mw, rkey, mr, addr, len, access } => {
                    let refused = DeviceError::new(Verb::PostSend, errno::EINVAL);
                    let parent = tables.mrs.get(mr.0).ok_or(refused)?.ptr();
                    let window = tables.windows.bind(i, mw, rkey, qp, mr).ok_or(refused)?;
                    raw.__bindgen_anon_2.bind_mw = ffi::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
                        mw: window,
                        rkey: rkey.to_bits(),
                        bind_info: ffi::ibv_mw_bind_info {
                            mr: parent,
                            addr: addr.0,
                            length: len,
                            mw_access_flags: access.bits(),
                        },
                    };
                }
                // The guard of spec'd behaviour: a provider may take the whole machine down when a
                // free window is invalidated.
                WrOp::LocalInv(rkey) if !tables.windows.invalidate(i, rkey, qp) => {
                    return Err(DeviceError::new(Verb::PostSend, errno::EINVAL));
                }
                WrOp::RegMr { .. } => {
                    return Err(DeviceError::new(Verb::PostSend, errno::EOPNOTSUPP));
                }
                _ => {}
            }
            raw.num_sge = count(self.sges.len() - from);
            self.wrs.push(raw);
        }
        self.link();
        Ok(())
    }

    fn translate(&mut self, chain: &WrChain, wr: &Wr) -> ffi::ibv_send_wr {
        use ffi::ibv_send_flags as flag;
        use ffi::ibv_wr_opcode as code;
        let signaled = if wr.signaled { flag::IBV_SEND_SIGNALED.0 } else { 0 };
        let mut raw =
            ffi::ibv_send_wr { wr_id: wr.wr_id.0, send_flags: signaled, ..Default::default() };
        match wr.op {
            WrOp::Send(payload) => {
                raw.opcode = code::IBV_WR_SEND;
                raw.send_flags |= self.payload(chain, payload);
            }
            WrOp::SendWithInv(payload, rkey) => {
                raw.opcode = code::IBV_WR_SEND_WITH_INV;
                raw.__bindgen_anon_1.invalidate_rkey = rkey.to_bits();
                raw.send_flags |= self.payload(chain, payload);
            }
            WrOp::RdmaWrite { payload, remote_addr, rkey } => {
                raw.opcode = code::IBV_WR_RDMA_WRITE;
                raw.wr.rdma = remote(remote_addr, rkey);
                raw.send_flags |= self.payload(chain, payload);
            }
            WrOp::RdmaRead { sges, remote_addr, rkey } => {
                raw.opcode = code::IBV_WR_RDMA_READ;
                raw.wr.rdma = remote(remote_addr, rkey);
                self.add_sges(chain.sges(sges));
            }
            WrOp::BindMw { .. } | WrOp::RegMr { .. } => raw.opcode = code::IBV_WR_BIND_MW,
            WrOp::LocalInv(rkey) => {
                raw.opcode = code::IBV_WR_LOCAL_INV;
                raw.__bindgen_anon_1.invalidate_rkey = rkey.to_bits();
            }
        }
        raw
    }

    /// Adds the SGEs of a payload and returns its flags.
    fn payload(&mut self, chain: &WrChain, payload: Payload) -> u32 {
        match payload {
            Payload::Sges(span) => {
                self.add_sges(chain.sges(span));
                0
            }
            Payload::Inline(span) => {
                let bytes = chain.inline(span);
                if bytes.is_empty() {
                    return 0;
                }
                let addr = bytes.as_ptr().expose_provenance() as u64;
                self.sges.push(ffi::ibv_sge { addr, length: len(bytes.len()), lkey: 0 });
                ffi::ibv_send_flags::IBV_SEND_INLINE.0
            }
        }
    }

    fn add_sges(&mut self, sges: &[Sge]) {
        self.sges.extend(sges.iter().map(raw_sge));
    }

    /// Sets the pointers, now that the lists do not grow any more.
    fn link(&mut self) {
        let mut sge = self.sges.as_mut_ptr();
        let (first, n) = (self.wrs.as_mut_ptr(), self.wrs.len());
        for (i, wr) in self.wrs.iter_mut().enumerate() {
            let used = usize::try_from(wr.num_sge).unwrap_or(0);
            wr.sg_list = if used == 0 { ptr::null_mut() } else { sge };
            sge = sge.wrapping_add(used);
            let next = first.wrapping_add(i + 1);
            wr.next = if i + 1 == n { ptr::null_mut() } else { next };
        }
    }

    /// Hands what was built to the device with one doorbell. `_chain`, which it was built from,
    /// holds the inline bytes.
    ///
    /// # Errors
    /// How many WRs were taken.
    pub(super) fn post(&mut self, qp: &Qp, _chain: &WrChain) -> Result<(), PostError> {
        let n = self.wrs.len();
        if n == 0 {
            return Ok(());
        }
        let post = qp.context.ops().post_send;
        let first = self.wrs.as_mut_ptr();
        let mut bad = ptr::null_mut();
        // SAFETY: O1, O4, O5: a chain with windows in it is posted under the lock of the tables.
        let rc = unsafe { post(qp.ptr(), first, &mut bad) };
        let refused = refusal(Verb::PostSend, rc, position(first, bad, n), n);
        self.clear();
        refused
    }

    /// Posts receives.
    ///
    /// # Errors
    /// How many were taken.
    pub(super) fn post_recv(&mut self, qp: &Qp, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.clear();
        self.sges.extend(wrs.iter().map(|w| raw_sge(&w.sge)));
        let recv = |w: &RecvWr| ffi::ibv_recv_wr { wr_id: w.wr_id.0, ..Default::default() };
        self.recvs.extend(wrs.iter().map(recv));
        let (sges, first, n) = (self.sges.as_mut_ptr(), self.recvs.as_mut_ptr(), wrs.len());
        if n == 0 {
            return Ok(());
        }
        for (i, wr) in self.recvs.iter_mut().enumerate() {
            wr.num_sge = 1;
            wr.sg_list = sges.wrapping_add(i);
            wr.next = if i + 1 == n { ptr::null_mut() } else { first.wrapping_add(i + 1) };
        }
        let post = qp.context.ops().post_recv;
        let mut bad = ptr::null_mut();
        // SAFETY: O1, O4.
        let rc = unsafe { post(qp.ptr(), first, &mut bad) };
        let refused = refusal(Verb::PostRecv, rc, position(first, bad, n), n);
        self.clear();
        refused
    }
}

pub(super) fn changes_a_window(op: &WrOp) -> bool {
    matches!(op, WrOp::BindMw { .. } | WrOp::LocalInv(_))
}

thread_local! {
    /// Room for the WCs of one poll. A provider may leave out what a WC does not have, so there is
    /// something in it from the start.
    static ROOM: RefCell<[ibv_wc; WCS]> = const {
        // SAFETY: every bit pattern of these plain integers is valid.
        RefCell::new(unsafe { MaybeUninit::zeroed().assume_init() })
    };
}

/// Takes at most `max` WCs of the CQ and hands each to `take`; returns how many.
#[inline]
pub(super) fn poll(cq: &Cq, max: usize, take: impl FnMut(&ibv_wc)) -> Result<usize, i32> {
    ROOM.with_borrow_mut(|wcs| {
        let (wcs, _) = wcs.split_at_mut(max.min(WCS));
        let poll = cq.context.ops().poll_cq;
        // SAFETY: O1, O4: at most as many entries are written as there are.
        let rc = unsafe { poll(cq.ptr(), count(wcs.len()), wcs.as_mut_ptr()) };
        let Ok(n) = usize::try_from(rc) else { return Err(refused(rc)) };
        let got = wcs.get(..n).unwrap_or(wcs);
        got.iter().for_each(take);
        Ok(got.len())
    })
}

/// One WC as the engine takes it.
///
/// `kernel_flags` says that the provider hands the kernel's flag word through, where the bit for an
/// invalidated key is another one (rdma_rxe).
#[inline]
pub(super) fn completion(wc: &ibv_wc, kernel_flags: bool) -> Wc {
    let (wr_id, qp) = (WrId(wc.wr_id()), QpId(wc.qp_num));
    if let Some((status, vendor_err)) = wc.error() {
        return Wc::Error(WcError { wr_id, status: WcStatus::from_raw(status), qp, vendor_err });
    }
    let received = wc.opcode() & ffi::ibv_wc_opcode::IBV_WC_RECV != 0;
    let byte_len = u32::try_from(wc.len()).unwrap_or(u32::MAX);
    let flags = wc.wc_flags.0;
    let with_inv = || {
        flags & ffi::ibv_wc_flags::IBV_WC_WITH_INV.0 != 0
            || (kernel_flags && flags & KERNEL_WITH_INV != 0)
    };
    let invalidated = (received && with_inv()).then(|| Rkey::from_bits(wc.imm_data));
    Wc::Success(WcSuccess { wr_id, qp, byte_len, invalidated })
}

/// A WC whose bytes a provider has written, decoded. For tests of hostile input.
#[doc(hidden)]
#[must_use]
pub fn decode(raw: &[u8; size_of::<ibv_wc>()], kernel_flags: bool) -> Wc {
    // SAFETY: the sizes are equal, and every bit pattern of these plain integers is valid.
    completion(
        &unsafe { std::mem::transmute::<[u8; size_of::<ibv_wc>()], ibv_wc>(*raw) },
        kernel_flags,
    )
}

fn remote(remote_addr: u64, rkey: Rkey) -> ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
    ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey: rkey.to_bits() }
}

fn raw_sge(s: &Sge) -> ffi::ibv_sge {
    ffi::ibv_sge { addr: s.addr.0, length: s.len, lkey: s.lkey.to_bits() }
}

/// Which WR a provider points at; `None` if it is none of the chain.
fn position<T>(first: *mut T, bad: *mut T, n: usize) -> Option<usize> {
    let at = bad.addr().checked_sub(first.addr())?;
    (at % size_of::<T>() == 0 && at / size_of::<T>() < n).then_some(at / size_of::<T>())
}

/// The outcome of a post of `n` WRs.
#[inline]
pub(super) fn refusal(verb: Verb, rc: i32, bad: Option<usize>, n: usize) -> Result<(), PostError> {
    if rc == 0 { Ok(()) } else { Err(refused_post(verb, refused(rc), bad, n)) }
}

#[cold]
fn refused_post(verb: Verb, errno: i32, bad: Option<usize>, n: usize) -> PostError {
    match bad {
        Some(posted) => PostError { posted, cause: DeviceError::new(verb, errno) },
        // Nobody knows which were taken. All may run; the error says that nothing can be retried.
        None => PostError { posted: n, cause: DeviceError::new(verb, errno::EIO) },
    }
}

/// The errno in a return code that is not 0.
#[cold]
fn refused(rc: i32) -> i32 {
    if rc == -1 { last_errno() } else { rc.checked_abs().unwrap_or(errno::EIO) }
}

/// SGEs and chains are bounded by queue depths, far below 2^31.
fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

fn len(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

const KERNEL_WITH_INV: u32 = 1 << 2;
/// WCs taken with one call.
const WCS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceErrorKind;

    fn of(rc: i32, bad: Option<usize>) -> PostError {
        refusal(Verb::PostSend, rc, bad, 5).unwrap_err()
    }

    #[test]
    fn b30_a_full_queue_is_one_retryable_error_whatever_the_provider_says() {
        assert_eq!(refusal(Verb::PostSend, 0, None, 5), Ok(()));
        for rc in [12, -12] {
            let e = of(rc, Some(2));
            assert_eq!((e.posted, e.cause.kind()), (2, DeviceErrorKind::QueueFull));
        }
    }

    #[test]
    fn d_01_a_refusal_that_names_no_wr_counts_all_as_posted() {
        let e = of(12, None);
        assert_eq!((e.posted, e.cause.kind()), (5, DeviceErrorKind::Gone));
        let mut list = [0u64; 4];
        let first = list.as_mut_ptr();
        assert_eq!(position(first, first.wrapping_add(3), 4), Some(3));
        assert_eq!(position(first, first.wrapping_add(4), 4), None);
        assert_eq!(position(first, ptr::null_mut(), 4), None);
        assert_eq!(position(first, first.wrapping_byte_add(4), 4), None);
    }

    #[test]
    fn remote_invalidation_is_seen_under_both_flag_bits() {
        let key = 0x1234;
        let recv = |flags| {
            let mut raw = [0u8; size_of::<ibv_wc>()];
            // The layout of ibv_poll_cq(3): status at 8, opcode at 12, immediate data at 24,
            // flags at 36.
            raw[12] = 128;
            raw[24..28].copy_from_slice(&u32::to_ne_bytes(key));
            raw[36..40].copy_from_slice(&u32::to_ne_bytes(flags));
            raw
        };
        let seen = |flags, kernel| match decode(&recv(flags), kernel) {
            Wc::Success(s) => s.invalidated.map(Rkey::to_bits),
            Wc::Error(_) => unreachable!(),
        };
        assert_eq!(seen(8 | 1, false), Some(key));
        assert_eq!(seen(4 | 1, true), Some(key), "rdma_rxe");
        assert_eq!(seen(4 | 1, false), None, "a checksum flag on other devices");
    }

    #[test]
    fn wc_06_a_failed_completion_has_status_and_nothing_else() {
        let Wc::Error(e) = completion(&ibv_wc::default(), true) else { unreachable!() };
        assert_eq!(e.status, WcStatus::GeneralErr);
    }
}
