//! What carries a registration out: the [`Device`] trait, its vocabulary, and the devices.
//!
//! Devices are ours (the trait is sealed); strategies are anybody's. A wrapper ([`fault`]) changes
//! a device's behaviour for tests; no device has a branch for tests inside.

mod any;
mod caps;
mod chain;
pub mod device_memory;
#[cfg(test)]
mod differential;
mod error;
pub mod fault;
#[cfg(target_os = "linux")]
pub mod host;
mod ordering;
pub mod sim;
pub mod trace;
#[cfg(all(feature = "verbs", target_os = "linux"))]
pub mod verbs;
mod wr;

pub use any::AnyDevice;
pub use caps::{Caps, Purpose, TransportKind};
pub use chain::WrChain;
pub(crate) use chain::{Bind, WindowRun};
pub use error::{DeviceError, DeviceErrorKind, LimitInfo, MemoryUse, PostError, Verb, errno};
pub use ordering::{OrderingConflict, OrderingPlan, RelaxedOrdering};
pub use wr::{
    PageEntry, Payload, QpState, RecvWr, Sge, Span, Wc, WcError, WcStatus, WcSuccess, Wr, WrOp,
};

// The impl that `enum_dispatch` writes below names these.
use self::sim::SimDevice;
#[cfg(all(feature = "verbs", target_os = "linux"))]
use self::verbs::VerbsDevice;
use crate::mem::{ExposedBytes, Fenced, Unmapped};
use crate::types::{Access, CqId, DeviceId, DmaAddr, Epoch, Lkey, MrId, MwId, PdId, QpId, Rkey};

pub(crate) mod sealed {
    /// Devices answer for memory safety, so they live in this crate.
    pub trait Sealed {}
}

/// Depths and sizes of a QP: asked for in [`Device::create_qp`], granted in its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpCaps {
    /// WRs of the send queue.
    pub max_send_wr: u32,
    /// WRs of the receive queue.
    pub max_recv_wr: u32,
    /// SGEs of one WR.
    pub max_sge: u32,
    /// Bytes of one inline payload.
    pub max_inline_data: u32,
}

/// The port behind an [`Endpoint`]. All zero on a software device, which needs none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PortAddr {
    /// The global address of the port: the GID of the table entry that is in use.
    pub gid: [u8; 16],
    /// The local address on an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// Bytes of the longest packet.
    pub mtu: u16,
}

/// How a peer's QP is addressed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Endpoint {
    /// The node on its fabric; of a verbs device its GUID.
    pub node: u64,
    /// The port there.
    pub port: PortAddr,
    /// The QP there.
    pub qp: QpId,
    /// The epoch that the peer's segments will carry.
    pub epoch: Epoch,
}

/// How a QP is connected, apart from the peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RtsAttrs {
    /// How often a message is tried again that found no receive at the peer: 0..=6 times, or 7 for
    /// without end.
    pub rnr_retry: u8,
}

impl RtsAttrs {
    /// The value of `rnr_retry` that means without end.
    pub const RNR_RETRY_FOREVER: u8 = 7;
}

impl Default for RtsAttrs {
    /// Tries again without end.
    fn default() -> RtsAttrs {
        RtsAttrs { rnr_retry: RtsAttrs::RNR_RETRY_FOREVER }
    }
}

/// An MR and its keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrKeys {
    /// The object.
    pub mr: MrId,
    /// For SGEs of local WRs.
    pub lkey: Lkey,
    /// For peers. Of an MR without remote rights it opens nothing.
    pub rkey: Rkey,
}

/// A type-2 window and its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MwKeys {
    /// The object.
    pub mw: MwId,
    /// Its key before the first bind, which opens nothing; each bind brings a new tag.
    pub rkey: Rkey,
}

/// What a fast-registration MR can describe.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FastMrKind {
    /// Pieces that join at page boundaries (`MEM_REG`); the cheaper key.
    Pages,
    /// Any pieces (`SG_GAPS`).
    Gaps,
}

/// What a device says without being asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The QP went to error by itself.
    QpFatal(QpId),
    /// The peer of this QP is gone: its process died or it disconnected.
    PeerGone(QpId),
    /// The CQ lost entries.
    CqOverrun(CqId),
    /// The port went down.
    PortDown(u8),
    /// The port came up.
    PortUp(u8),
    /// The device is gone; every object on it is dead.
    DeviceFatal,
}

/// An RDMA device as the engine needs it. A handle: methods take `&self`, clones of a handle are
/// one device.
///
/// # Errors
/// Every method names verb and errno in [`DeviceError`]. A failed call changed nothing,
/// [`PostError`] excepted.
/// # Cost
/// `post_send`, `post_recv` and `poll_cq` are the fast path; all others may cost a system call.
#[enum_dispatch::enum_dispatch]
pub trait Device: sealed::Sealed + Clone + Send {
    /// Which opened device this is.
    fn id(&self) -> DeviceId;

    /// The device's attributes.
    fn caps(&self) -> Caps;

    /// A name for messages, such as `sim` or `rxe0`.
    fn name(&self) -> String;

    /// Makes a protection domain.
    fn alloc_pd(&self) -> Result<PdId, DeviceError>;

    /// Ends a protection domain; EBUSY while anything is in it.
    fn dealloc_pd(&self, pd: PdId) -> Result<(), DeviceError>;

    /// Makes a CQ with at least `entries` entries and returns how many it has.
    fn create_cq(&self, entries: u32) -> Result<(CqId, u32), DeviceError>;

    /// Ends a CQ; EBUSY while a QP uses it.
    fn destroy_cq(&self, cq: CqId) -> Result<(), DeviceError>;

    /// Makes an RC QP in RESET, with per-WR signaling and both queues on `cq`; returns what was
    /// granted, which is never less than asked.
    fn create_qp(&self, pd: PdId, cq: CqId, ask: QpCaps) -> Result<(QpId, QpCaps), DeviceError>;

    /// RESET → INIT: receives can be posted.
    fn qp_to_init(&self, qp: QpId) -> Result<(), DeviceError>;

    /// How the peer addresses this QP, but for the epoch, which the caller adds. Valid from INIT.
    fn endpoint(&self, qp: QpId) -> Result<Endpoint, DeviceError>;

    /// INIT → RTR → RTS towards `peer`.
    fn qp_to_rts(&self, qp: QpId, peer: Endpoint, attrs: RtsAttrs) -> Result<(), DeviceError>;

    /// Any state → ERR: everything posted is flushed.
    fn qp_to_err(&self, qp: QpId) -> Result<(), DeviceError>;

    /// The state now.
    fn qp_state(&self, qp: QpId) -> Result<QpState, DeviceError>;

    /// Ends a QP. Afterwards no WR of it runs and no peer reaches memory through it; WCs still
    /// queued are dropped. End the windows that are bound on it first.
    fn destroy_qp(&self, qp: QpId) -> Result<(), DeviceError>;

    /// Lends the device the bytes. `home` is the address they had before on this device, if any;
    /// the same bytes get the same address again.
    ///
    /// # Shape
    /// Until [`dma_unmap`](Device::dma_unmap) the bytes cannot become a `DmaBuf`: the device holds
    /// a clone, or has marked them as lent.
    fn dma_map(&self, bytes: &ExposedBytes, home: Option<DmaAddr>) -> Result<DmaAddr, DeviceError>;

    /// Takes the bytes back; afterwards nothing reaches them, whatever MR still names the range.
    ///
    /// # Errors
    /// Returns the proof with the error: the bytes are still lent.
    fn dma_unmap(
        &self,
        bytes: &ExposedBytes,
        addr: DmaAddr,
        proof: Fenced,
    ) -> Result<Unmapped, (DeviceError, Fenced)>;

    /// Registers `len` bytes at `addr`: an ordinary MR whose address space is the device's.
    fn reg_mr(
        &self,
        pd: PdId,
        addr: DmaAddr,
        len: u64,
        access: Access,
    ) -> Result<MrKeys, DeviceError>;

    /// Makes an invalid MR for REG_MR with room for `depth` page-list entries.
    fn alloc_fast_mr(&self, pd: PdId, depth: u32, kind: FastMrKind) -> Result<MrKeys, DeviceError>;

    /// Ends an MR of either kind, and with it every access through its keys. EBUSY while a window
    /// is bound to it.
    fn dereg_mr(&self, mr: MrId) -> Result<(), DeviceError>;

    /// Makes a free type-2 window. Make it after the QP that it will be bound on.
    fn alloc_mw(&self, pd: PdId) -> Result<MwKeys, DeviceError>;

    /// Ends a window, bound or free, and with it every access through its key. Before its QP is
    /// destroyed.
    fn dealloc_mw(&self, mw: MwId) -> Result<(), DeviceError>;

    /// Posts the WRs in order with one doorbell.
    ///
    /// # Errors
    /// [`PostError::posted`] WRs at the front were accepted and will run; the rest was not.
    fn post_send(&self, qp: QpId, chain: &WrChain) -> Result<(), PostError>;

    /// Posts receives in order.
    ///
    /// # Errors
    /// As [`post_send`](Device::post_send).
    fn post_recv(&self, qp: QpId, wrs: &[RecvWr]) -> Result<(), PostError>;

    /// Appends at most `max` WCs to `out` and returns how many; fewer if there are no more now.
    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize, DeviceError>;

    /// Has the next WC of this CQ raise an event for [`wait_cq`](Device::wait_cq). WCs that are in
    /// the CQ already raise none: poll again after this.
    fn arm_cq(&self, cq: CqId) -> Result<(), DeviceError>;

    /// Waits for an event of this CQ, or of anything else that `next_event` would tell of, at most
    /// `limit_ns`; false if none came. A software device runs meanwhile, and waits no longer than
    /// there is work.
    fn wait_cq(&self, cq: CqId, limit_ns: u64) -> Result<bool, DeviceError>;

    /// What in the device's set-up makes this failure likely, in words for its user.
    fn advice(&self, status: WcStatus) -> Option<&'static str>;

    /// Whether the device was removed: it reaches nothing any more, and whatever it answers to a
    /// release, the object is gone with it. Also without a QP to hear it from.
    fn is_gone(&self) -> bool;

    /// The next asynchronous event of this QP, or of the port or device under it, if any.
    fn next_event(&self, qp: QpId) -> Option<AsyncEvent>;

    /// Lets a software device run for one step; true if anything happened. Hardware runs by itself:
    /// false.
    fn step(&self) -> bool;
}
