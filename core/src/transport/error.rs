//! Errors of a transport; each says what to do and hands back what it was given.

use crate::device::{DeviceError, OrderingConflict, PostError, QpCaps, WcError};
use crate::engine::buffers::Buffers;
use crate::engine::exposure::{Exposed, LocalOp, RemoteAccess};
use crate::error::{ApiMisuse, Bug, Disposition};
use crate::mem::AllocError;
use crate::memreg::{MapError, Poison, Reject};
use crate::sizing::SizeError;
use crate::types::SegmentError;

/// Why a connection went down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DownCause {
    /// `disconnect` was called.
    #[error("disconnected by this side")]
    Local,
    /// The peer's process died or it disconnected.
    #[error("the peer is gone")]
    PeerGone,
    /// The device reported that this QP or its CQ is broken.
    #[error("the device reported a fatal event")]
    DeviceEvent,
    /// The device was removed; open a new transport when it is back.
    #[error("the device is gone")]
    DeviceGone,
    /// A WR failed.
    #[error("a work request failed: {0}")]
    Wc(WcError),
    /// A WR failed, and the device's set-up may be the reason.
    #[error("a work request failed: {wc}; {advice}")]
    WcWithAdvice {
        /// How it ended.
        wc: WcError,
        /// What to look at first.
        advice: &'static str,
    },
    /// A post was refused.
    #[error("a post was refused: {0}")]
    Post(PostError),
    /// A verb failed that must not.
    #[error("a verb failed: {0}")]
    Device(DeviceError),
    /// The strategy gave up, or broke its contract.
    #[error("{0}")]
    Strategy(Poison),
    /// The peer claimed to have invalidated a key that is not live.
    #[error("the peer invalidated key {index:#x}.., which is not live")]
    BadRemoteInvalidation {
        /// Index of the key.
        index: u32,
    },
    /// The device said something that cannot be, such as the completion of a receive that was never
    /// posted.
    #[error("internal error: {0}")]
    Bug(Bug),
}

/// Opening failed; nothing is left over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The strategy does not work on this device.
    #[error("strategy {name} cannot work on {device}")]
    Rejected {
        /// The strategy.
        name: &'static str,
        /// The device.
        device: String,
        /// Why.
        source: Reject,
    },
    /// Not even one operation fits.
    #[error("strategy {name} cannot be sized for {device}")]
    Size {
        /// The strategy.
        name: &'static str,
        /// The device.
        device: String,
        /// The numbers.
        source: SizeError,
    },
    /// The strategy asked for sizes that make no sense.
    #[error("strategy {name} sized itself wrongly: {what}")]
    BadLimits {
        /// The strategy.
        name: &'static str,
        /// What is wrong.
        what: &'static str,
    },
    /// Others are in the PD, and the strategy would let their peers in.
    #[error("strategy {name} cannot share a protection domain: {why}")]
    SharedPd {
        /// The strategy.
        name: &'static str,
        /// Why.
        why: &'static str,
    },
    /// The inline size that was named is more than the device takes; without it the QP is made.
    #[error(
        "create_qp refused {} send and {} receive WRs, {} SGEs, {} inline bytes (device limits: \
         {}, {}, {}, {}); with 0 inline bytes it works: lower max_inline_data or leave it out",
        ask.max_send_wr, ask.max_recv_wr, ask.max_sge, ask.max_inline_data,
        limits.max_send_wr, limits.max_recv_wr, limits.max_sge, limits.max_inline_data
    )]
    Inline {
        /// The strategy.
        name: &'static str,
        /// What was asked.
        ask: QpCaps,
        /// What the device announces.
        limits: QpCaps,
        /// Its answer.
        source: DeviceError,
    },
    /// The ordering that is wanted and the device contradict each other.
    #[error("{device}: {why}")]
    Ordering {
        /// The device.
        device: String,
        /// The setting, and why it cannot be had.
        why: OrderingConflict,
    },
    /// A verb failed.
    #[error("opening a transport with strategy {name}")]
    Device {
        /// The strategy.
        name: &'static str,
        /// The verb and errno.
        source: DeviceError,
    },
    /// No memory for the message buffers.
    #[error("message buffers")]
    Memory(#[from] AllocError),
}

impl OpenError {
    /// What to do about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            OpenError::Device { source, .. } => source.disposition(),
            _ => Disposition::Fatal,
        }
    }
}

/// Connecting or reconnecting failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The call does not fit the state.
    #[error(transparent)]
    Misuse(#[from] ApiMisuse),
    /// Keys of the last connection are not dead yet: call `recover` and try again (rule 4).
    #[error("{count} keys of the last connection are not dead yet; call recover and try again")]
    KeysNotDead {
        /// How many.
        count: usize,
    },
    /// A verb failed.
    #[error("connecting")]
    Device(#[from] DeviceError),
    /// Receives could not be posted.
    #[error("posting receives")]
    Post(#[from] PostError),
}

impl ConnectError {
    /// What to do about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            ConnectError::KeysNotDead { .. } => Disposition::Retry,
            ConnectError::Misuse(_) => Disposition::Fatal,
            ConnectError::Device(e) => e.disposition(),
            ConnectError::Post(e) => e.cause.disposition(),
        }
    }
}

/// Why something was refused. Shared by all calls that put work on the send queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The connection is not up; `cause` if it went down.
    #[error("not connected{}", cause.as_ref().map(|c| format!(": {c}")).unwrap_or_default())]
    NotConnected {
        /// Why it went down.
        cause: Option<DownCause>,
    },
    /// No buffer was given.
    #[error("the buffer list is empty")]
    Empty,
    /// A buffer was given without a range.
    #[error("no range of buffer {buffer} is named")]
    NoRanges {
        /// Which buffer of the list.
        buffer: usize,
    },
    /// A range has no bytes.
    #[error("length is zero (item {index})")]
    ZeroLength {
        /// Which range of the list.
        index: usize,
    },
    /// A range begins before the end of the one before it in the same buffer.
    #[error(
        "item {index} begins at byte {start} of its buffer and the item before it ends at byte \
         {end}; the ranges of a buffer ascend and do not overlap"
    )]
    Overlap {
        /// Which range of the list.
        index: usize,
        /// Where it begins.
        start: usize,
        /// Where the item before it ends.
        end: usize,
    },
    /// A range ends past its buffer.
    #[error("item {index} ends at byte {end} of a buffer of {len}")]
    OutOfRange {
        /// Which range of the list.
        index: usize,
        /// Where it ends.
        end: usize,
        /// Bytes of the buffer.
        len: usize,
    },
    /// The memory is mapped for reading only.
    #[error("memory is read-only (item {index}), and {what} needs the right to write")]
    ReadOnly {
        /// Which range of the list.
        index: usize,
        /// What was asked of it.
        what: &'static str,
    },
    /// More bytes than one operation may have.
    #[error("{need} bytes in one operation, the limit is {limit}")]
    TooLong {
        /// Bytes asked.
        need: u64,
        /// Most that this transport was sized for.
        limit: u64,
    },
    /// The message does not fit the peer's receives.
    #[error("message of {need} bytes, the limit is {limit}")]
    MessageTooLong {
        /// Bytes asked.
        need: usize,
        /// Bytes of a message buffer.
        limit: usize,
    },
    /// A message that was to go inline is too long for that.
    #[error("inline message of {need} bytes, the device takes {limit}")]
    InlineTooLong {
        /// Bytes asked.
        need: usize,
        /// What the QP was granted.
        limit: usize,
    },
    /// One WR would need more SGEs than the device takes.
    #[error("{need} SGEs in one work request, the device takes {limit}")]
    TooManySges {
        /// SGEs asked.
        need: usize,
        /// What the QP was granted.
        limit: usize,
    },
    /// The send queue has no room now; poll, then try again.
    #[error("send queue full: {need} slots needed, {free} of {depth} free")]
    QueueFull {
        /// Slots needed, fences included.
        need: usize,
        /// Slots free.
        free: usize,
        /// Slots of the queue.
        depth: usize,
    },
    /// The operation can never fit the send queue.
    #[error("{need} send-queue slots needed, the queue has {depth}")]
    NeverFits {
        /// Slots needed, fences and sentinel included.
        need: usize,
        /// Slots of the queue.
        depth: usize,
    },
    /// The strategy could not map the list.
    #[error("mapping")]
    Map(#[source] MapError),
    /// A verb failed.
    #[error("device")]
    Device(#[source] DeviceError),
    /// The remote segment cannot be used.
    #[error("remote segment")]
    Segment(#[source] SegmentError),
    /// The remote segment grants the other direction.
    #[error("the segment does not grant a {0}")]
    WrongGrant(&'static str),
    /// The range is not inside the remote segment.
    #[error("bytes {start}..{end} of a remote segment of {len}")]
    OutsideSegment {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// Bytes of the segment.
        len: u64,
    },
    /// A reply that may invalidate this exposure's key is still out: give its token, or cancel
    /// (rule 5).
    #[error("a reply that may invalidate this exposure is outstanding; give its token or cancel")]
    ReplyOutstanding,
    /// The exposure is being taken back, or is back already.
    #[error("the access is being taken back already")]
    LeaseOver,
    /// The device cannot do it.
    #[error("the device has no {0}")]
    Unsupported(&'static str),
    /// The caller broke an order.
    #[error(transparent)]
    Misuse(ApiMisuse),
    /// The post failed and the connection went down with it; retry after a reconnect.
    #[error("the connection went down: {0}")]
    Down(DownCause),
}

impl Refusal {
    /// What to do about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            Refusal::QueueFull { .. } | Refusal::ReplyOutstanding => Disposition::Retry,
            Refusal::NotConnected { .. } | Refusal::Down(_) => Disposition::Reconnect,
            Refusal::Map(e) => e.disposition(),
            Refusal::Device(e) => e.disposition(),
            Refusal::Segment(e) => e.disposition(),
            _ => Disposition::Fatal,
        }
    }
}

/// `expose`, `read` or `write` refused; the buffers come back.
///
/// Some are missing only where the device would not let go of them: behind a key that it did not
/// end they are kept until that is dead and then freed; in a mapping that it did not end they are
/// lost and counted, see [`Stats::bytes_leaked`](crate::engine::stats::Stats::bytes_leaked).
#[derive(Debug)]
pub struct BufferError {
    /// What was given.
    pub buffers: Buffers,
    /// Why.
    pub why: Refusal,
}

/// Says what `why` says; its source is that of `why`, so that a chain says nothing twice.
impl std::error::Error for BufferError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.why.source()
    }
}

impl std::fmt::Display for BufferError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.why.fmt(f)
    }
}

impl BufferError {
    /// What to do about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        self.why.disposition()
    }
}

/// `reclaim` refused; the handle comes back.
#[derive(Debug, thiserror::Error)]
#[error("not reclaimed: {why}")]
pub struct ReclaimError {
    /// The handle.
    pub exposed: Exposed,
    /// Why.
    pub why: ReclaimRefusal,
}

/// Why bytes cannot be had back now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReclaimRefusal {
    /// A key may still be live: revoke (if not done yet), then poll.
    #[error("{open} keys may still be live; revoke and poll first")]
    NotFenced {
        /// How many.
        open: usize,
    },
    /// The device did not give its mapping back; the bytes are lost on purpose and counted.
    #[error("the device kept its mapping; the bytes are kept from everybody")]
    Held,
    /// The handle is of another transport.
    #[error(transparent)]
    Misuse(ApiMisuse),
}

impl ReclaimRefusal {
    /// What to do about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            ReclaimRefusal::NotFenced { .. } => Disposition::Retry,
            _ => Disposition::Fatal,
        }
    }
}

/// The result of a read or write is not there yet, or the handle is wrong; the handle comes back.
#[derive(Debug, thiserror::Error)]
#[error("read or write not finished: {why}")]
pub struct TakeError {
    /// The handle.
    pub op: LocalOp,
    /// Why.
    pub why: TakeRefusal,
}

/// Why a read or write cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TakeRefusal {
    /// Its WRs are on the queue: poll.
    #[error("{open} work requests outstanding")]
    Running {
        /// How many.
        open: usize,
    },
    /// The handle is of another transport.
    #[error(transparent)]
    Misuse(ApiMisuse),
}

impl TakeRefusal {
    /// What to do about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            TakeRefusal::Running { .. } => Disposition::Retry,
            TakeRefusal::Misuse(e) => e.disposition(),
        }
    }
}

/// A read or write that the device or the peer refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} of {} bytes at remote address {:#x} with key {:#x}..: {wc}{}",
    if what.write { "RDMA WRITE" } else { "RDMA READ" },
    what.len, what.remote_addr, what.rkey.index(), self.causes()
)]
pub struct AccessError {
    /// What was asked.
    pub what: RemoteAccess,
    /// How its WR ended.
    pub wc: WcError,
}

impl AccessError {
    /// What to do about it: the connection went down with it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        self.wc.disposition()
    }

    /// The usual causes, most frequent first; empty where the status says all.
    #[must_use]
    pub fn causes(&self) -> &'static str {
        match self.wc.status {
            crate::device::WcStatus::RemAccessErr => {
                " (usual causes: key already invalidated, range outside the region, \
                 right not granted, other protection domain)"
            }
            _ => "",
        }
    }
}
