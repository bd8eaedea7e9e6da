//! Work requests and work completions, independent of any device.

use crate::error::Disposition;
use crate::types::{Access, DmaAddr, Lkey, MrId, MwId, QpId, Rkey, WrId};
use std::ops::Range;

/// A local range in a WR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sge {
    /// First byte.
    pub addr: DmaAddr,
    /// Bytes; 32 bits on the wire of every verbs device.
    pub len: u32,
    /// The local key of an MR that covers the range.
    pub lkey: Lkey,
}

/// One entry of a REG_MR page list: the part of one page that belongs to the region.
///
/// Every entry but the first starts on a page boundary and every entry but the last ends on one,
/// unless the MR was allocated for gaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageEntry {
    /// First byte.
    pub addr: DmaAddr,
    /// Bytes, at most one page.
    pub len: u32,
}

/// A run of entries in one of the chain's side tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// A chain holds fewer than 2^32 entries: its makers are bounded by queue depth and page-list
    /// length.
    pub(super) fn between(start: usize, end: usize) -> Span {
        let to = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Span { start: to(start), end: to(end) }
    }

    pub(super) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Entries in the run.
    #[must_use]
    pub fn count(self) -> usize {
        (self.end - self.start) as usize
    }
}

/// The bytes that a SEND or RDMA WRITE carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    /// Gathered from registered memory.
    Sges(Span),
    /// Copied out of the caller's memory when posted.
    Inline(Span),
}

/// What a WR asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WrOp {
    /// A message into the peer's next receive.
    Send(Payload),
    /// A message that also invalidates one of the peer's keys.
    SendWithInv(Payload, Rkey),
    /// Writes into the peer's memory.
    RdmaWrite {
        /// What is written.
        payload: Payload,
        /// Where, in the address space of the peer's region.
        remote_addr: u64,
        /// The peer's key.
        rkey: Rkey,
    },
    /// Reads from the peer's memory.
    RdmaRead {
        /// Where the bytes go.
        sges: Span,
        /// Where from, in the address space of the peer's region.
        remote_addr: u64,
        /// The peer's key.
        rkey: Rkey,
    },
    /// Fast registration: gives an invalid MR a page list, an address and a new key.
    RegMr {
        /// The MR, allocated with [`Device::alloc_fast_mr`](super::Device::alloc_fast_mr).
        mr: MrId,
        /// The key from now on; only its tag may differ from the MR's.
        rkey: Rkey,
        /// Rights.
        access: Access,
        /// Address of the first byte as the peer names it.
        iova: u64,
        /// Bytes.
        len: u64,
        /// The pages.
        pages: Span,
    },
    /// Binds a free type-2 window onto a part of an ordinary MR, with a new key for this QP.
    BindMw {
        /// The window.
        mw: MwId,
        /// The key from now on; only its tag may differ from the window's.
        rkey: Rkey,
        /// The parent, registered with `MW_BIND` (and `LOCAL_WRITE` if the window is writable).
        mr: MrId,
        /// First byte.
        addr: DmaAddr,
        /// Bytes.
        len: u64,
        /// Rights of the window.
        access: Access,
    },
    /// Makes a key invalid; the MR stays and can be registered again.
    LocalInv(Rkey),
}

/// One work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wr {
    /// Comes back in the WC.
    pub wr_id: WrId,
    /// Whether success makes a WC; an error or a flush always does.
    pub signaled: bool,
    /// What to do.
    pub op: WrOp,
}

/// A receive: memory for one incoming message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvWr {
    /// Comes back in the WC.
    pub wr_id: WrId,
    /// Where the message goes.
    pub sge: Sge,
}

/// The state of a QP, in the order of the specification.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpState {
    /// Nothing can be posted.
    Reset,
    /// Receives can be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained.
    Sqd,
    /// Send queue error.
    Sqe,
    /// Everything posted is flushed.
    Err,
}

/// How a WR ended, with the numbers of `ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WcStatus {
    /// 0
    Success,
    /// 1: a message longer than the receive
    LocLenErr,
    /// 2: the WR itself is not valid on this QP
    LocQpOpErr,
    /// 4: an SGE is not covered by its lkey
    LocProtErr,
    /// 5: the QP was in error before the WR could run
    WrFlushErr,
    /// 6: a bind or fast registration was refused
    MwBindErr,
    /// 9: the peer found the request invalid, e.g. a key that it could not invalidate
    RemInvReqErr,
    /// 10: the peer's key, range, rights, PD or QP did not allow the access
    RemAccessErr,
    /// 11: the peer could not carry it out
    RemOpErr,
    /// 12: the peer does not answer
    RetryExcErr,
    /// 13: the peer has no receive posted
    RnrRetryExcErr,
    /// 21
    GeneralErr,
    /// A number that this build does not name.
    Unknown(u32),
}

impl WcStatus {
    /// From the number in a WC.
    #[must_use]
    pub const fn from_raw(n: u32) -> WcStatus {
        match n {
            0 => WcStatus::Success,
            1 => WcStatus::LocLenErr,
            2 => WcStatus::LocQpOpErr,
            4 => WcStatus::LocProtErr,
            5 => WcStatus::WrFlushErr,
            6 => WcStatus::MwBindErr,
            9 => WcStatus::RemInvReqErr,
            10 => WcStatus::RemAccessErr,
            11 => WcStatus::RemOpErr,
            12 => WcStatus::RetryExcErr,
            13 => WcStatus::RnrRetryExcErr,
            21 => WcStatus::GeneralErr,
            n => WcStatus::Unknown(n),
        }
    }

    /// The number in a WC.
    #[must_use]
    pub const fn to_raw(self) -> u32 {
        match self {
            WcStatus::Success => 0,
            WcStatus::LocLenErr => 1,
            WcStatus::LocQpOpErr => 2,
            WcStatus::LocProtErr => 4,
            WcStatus::WrFlushErr => 5,
            WcStatus::MwBindErr => 6,
            WcStatus::RemInvReqErr => 9,
            WcStatus::RemAccessErr => 10,
            WcStatus::RemOpErr => 11,
            WcStatus::RetryExcErr => 12,
            WcStatus::RnrRetryExcErr => 13,
            WcStatus::GeneralErr => 21,
            WcStatus::Unknown(n) => n,
        }
    }
}

impl std::fmt::Display for WcStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self {
            WcStatus::Success => "success",
            WcStatus::LocLenErr => "local length error",
            WcStatus::LocQpOpErr => "local QP operation error",
            WcStatus::LocProtErr => "local protection error",
            WcStatus::WrFlushErr => "work request flushed",
            WcStatus::MwBindErr => "memory bind error",
            WcStatus::RemInvReqErr => "remote invalid request error",
            WcStatus::RemAccessErr => "remote access error",
            WcStatus::RemOpErr => "remote operation error",
            WcStatus::RetryExcErr => "transport retry count exceeded",
            WcStatus::RnrRetryExcErr => "receiver-not-ready retry count exceeded",
            WcStatus::GeneralErr => "general error",
            WcStatus::Unknown(_) => "unknown status",
        };
        write!(f, "{name} ({})", self.to_raw())
    }
}

/// One work completion. Only a success has more than id, status and QP: there is no junk to read
/// (O-6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wc {
    /// The WR and every earlier one of its send queue succeeded.
    Success(WcSuccess),
    /// The WR failed or was flushed; earlier ones of its send queue succeeded.
    Error(WcError),
}

impl Wc {
    /// Whether the WR succeeded.
    #[must_use]
    #[inline]
    pub fn is_success(&self) -> bool {
        matches!(self, Wc::Success(_))
    }

    /// How the WR ended.
    #[must_use]
    pub fn status(&self) -> WcStatus {
        match self {
            Wc::Success(_) => WcStatus::Success,
            Wc::Error(e) => e.status,
        }
    }

    /// The cookie of the WR.
    #[must_use]
    #[inline]
    pub fn wr_id(&self) -> WrId {
        match self {
            Wc::Success(s) => s.wr_id,
            Wc::Error(e) => e.wr_id,
        }
    }

    /// The QP.
    #[must_use]
    pub fn qp(&self) -> QpId {
        match self {
            Wc::Success(s) => s.qp,
            Wc::Error(e) => e.qp,
        }
    }
}

/// The rest of a successful WC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WcSuccess {
    /// The cookie of the WR.
    pub wr_id: WrId,
    /// The QP.
    pub qp: QpId,
    /// Bytes that a receive got or an RDMA READ fetched.
    pub byte_len: u32,
    /// For a receive: the key of ours that the peer's message invalidated.
    pub invalidated: Option<Rkey>,
}

/// All that is valid in a WC that is not a success.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{status} on QP {}, vendor error {vendor_err:#x}", qp.0)]
pub struct WcError {
    /// The cookie of the WR.
    pub wr_id: WrId,
    /// What went wrong; never `Success`.
    pub status: WcStatus,
    /// The QP.
    pub qp: QpId,
    /// The vendor's number.
    pub vendor_err: u32,
}

impl WcError {
    /// What to do about it: a local fault is a fault of this program's WR, which would fail again.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self.status {
            WcStatus::LocLenErr | WcStatus::LocQpOpErr | WcStatus::LocProtErr => Disposition::Fatal,
            _ => Disposition::Reconnect,
        }
    }
}
