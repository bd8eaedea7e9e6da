//! Errors of a device: which verb, which errno, and what was needed against what limit.

use super::{Caps, QpCaps};
use crate::error::Disposition;
use std::fmt;

/// The verbs call that failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[allow(missing_docs)] // each is the verb of its name
pub enum Verb {
    AllocPd,
    DeallocPd,
    CreateCq,
    DestroyCq,
    CreateQp,
    ModifyQp,
    QueryQp,
    DestroyQp,
    DmaMap,
    DmaUnmap,
    RegMr,
    AllocMr,
    DeregMr,
    AllocMw,
    DeallocMw,
    PostSend,
    PostRecv,
    PollCq,
    ArmCq,
    WaitCq,
    RegDmabufMr,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verb::AllocPd => "alloc_pd",
            Verb::DeallocPd => "dealloc_pd",
            Verb::CreateCq => "create_cq",
            Verb::DestroyCq => "destroy_cq",
            Verb::CreateQp => "create_qp",
            Verb::ModifyQp => "modify_qp",
            Verb::QueryQp => "query_qp",
            Verb::DestroyQp => "destroy_qp",
            Verb::DmaMap => "dma_map",
            Verb::DmaUnmap => "dma_unmap",
            Verb::RegMr => "reg_mr",
            Verb::AllocMr => "alloc_mr",
            Verb::DeregMr => "dereg_mr",
            Verb::AllocMw => "alloc_mw",
            Verb::DeallocMw => "dealloc_mw",
            Verb::PostSend => "post_send",
            Verb::PostRecv => "post_recv",
            Verb::PollCq => "poll_cq",
            Verb::RegDmabufMr => "reg_dmabuf_mr",
            Verb::ArmCq => "req_notify_cq",
            Verb::WaitCq => "get_cq_event",
        })
    }
}

/// The number that was exceeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitInfo {
    /// The limit's name, such as `max_mr`.
    pub what: &'static str,
    /// What this call needed.
    pub need: u64,
    /// The limit.
    pub limit: u64,
    /// What was in use already.
    pub in_use: u64,
}

impl LimitInfo {
    /// [`what`](LimitInfo::what) of the process's limit on pinned memory.
    pub const MEMLOCK: &'static str = "RLIMIT_MEMLOCK of this process";
    /// What can be done about that limit.
    pub const MEMLOCK_REMEDY: &'static str =
        "raise it where the process is started: `ulimit -l`, or LimitMEMLOCK= of its service";

    /// What a user can do about it, where there is one thing to do.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        (self.what == LimitInfo::MEMLOCK).then_some(LimitInfo::MEMLOCK_REMEDY)
    }
}

/// What is registered on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryUse {
    /// Live MRs.
    pub mrs: u64,
    /// Bytes that they cover.
    pub bytes: u64,
    /// Bytes that the refused call asked for; 0 for an MR without memory of its own.
    pub asked: u64,
}

impl MemoryUse {
    /// Which limit a registration that found no memory has most likely met. `may_pin` is what the
    /// process may pin; `None` = as much as there is.
    #[must_use]
    pub fn limit_met(&self, caps: &Caps, may_pin: Option<u64>) -> Option<LimitInfo> {
        let (need, max_mr) = (self.asked, u64::from(caps.max_mr));
        if self.mrs >= max_mr {
            return Some(LimitInfo { what: "max_mr", need: 1, limit: max_mr, in_use: self.mrs });
        }
        if need > caps.max_mr_size {
            let limit = caps.max_mr_size;
            return Some(LimitInfo { what: "max_mr_size", need, limit, in_use: 0 });
        }
        let limit = may_pin.filter(|&limit| need.saturating_add(self.bytes) > limit)?;
        Some(LimitInfo { what: LimitInfo::MEMLOCK, need, limit, in_use: self.bytes })
    }
}

/// A verbs call that the device refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceError {
    /// The call.
    pub verb: Verb,
    /// Positive errno.
    pub errno: i32,
    /// The limit behind it, where known.
    pub limit: Option<LimitInfo>,
    /// Of a registration that found no memory: what was live on the device.
    pub memory: Option<MemoryUse>,
    /// Of a QP that was refused: what was asked for.
    pub queues: Option<QpCaps>,
}

/// What an errno means from that verb.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DeviceErrorKind {
    /// A work queue has no free slot; it will after completions.
    QueueFull,
    /// A device limit on objects or sizes.
    Limit,
    /// No memory for the object.
    OutOfMemory,
    /// A field of the call is not valid, or the object is in the wrong state.
    Invalid,
    /// The object is still in use.
    Busy,
    /// The memory is mapped for reading only, and the call needs the right to write.
    ReadOnly,
    /// The address range is not accessible.
    Fault,
    /// The device cannot do it.
    NotSupported,
    /// The device or object is gone.
    Gone,
    /// Anything else, by number.
    Other,
}

/// Errno values of the verbs; the same on every platform that has verbs, and what the software
/// device gives.
pub mod errno {
    #![allow(missing_docs)] // names of errno(3)
    pub const EIO: i32 = 5;
    pub const EAGAIN: i32 = 11;
    pub const ENOMEM: i32 = 12;
    pub const EACCES: i32 = 13;
    pub const EFAULT: i32 = 14;
    pub const EBUSY: i32 = 16;
    pub const ENODEV: i32 = 19;
    pub const EINVAL: i32 = 22;
    pub const EOPNOTSUPP: i32 = 95;
}

impl DeviceError {
    /// An error without a known limit.
    #[must_use]
    pub const fn new(verb: Verb, errno: i32) -> DeviceError {
        DeviceError { verb, errno, limit: None, memory: None, queues: None }
    }

    /// An error with the number that was exceeded.
    #[must_use]
    pub const fn limit(verb: Verb, errno: i32, limit: LimitInfo) -> DeviceError {
        DeviceError { verb, errno, limit: Some(limit), memory: None, queues: None }
    }

    /// What it means.
    #[must_use]
    pub fn kind(&self) -> DeviceErrorKind {
        let posting = matches!(self.verb, Verb::PostSend | Verb::PostRecv);
        match self.errno {
            errno::ENOMEM if posting => DeviceErrorKind::QueueFull,
            errno::ENOMEM | errno::EINVAL if self.limit.is_some() => DeviceErrorKind::Limit,
            errno::ENOMEM => DeviceErrorKind::OutOfMemory,
            errno::EINVAL => DeviceErrorKind::Invalid,
            errno::EBUSY | errno::EAGAIN => DeviceErrorKind::Busy,
            errno::EACCES if self.verb == Verb::RegMr => DeviceErrorKind::ReadOnly,
            errno::EFAULT => DeviceErrorKind::Fault,
            errno::EOPNOTSUPP => DeviceErrorKind::NotSupported,
            errno::ENODEV | errno::EIO => DeviceErrorKind::Gone,
            _ => DeviceErrorKind::Other,
        }
    }

    /// Whether a registration of fewer bytes may work where this one did not. A limit that is
    /// named and is not about the size of one MR says no.
    #[must_use]
    pub fn is_no_room(&self) -> bool {
        let of_size = self.limit.is_none_or(|l| l.what == "max_mr_size");
        let full = matches!(self.kind(), DeviceErrorKind::OutOfMemory | DeviceErrorKind::Limit);
        self.verb == Verb::RegMr && full && of_size
    }

    /// What to do about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self.kind() {
            // What would fit an idle device fits again once something is given back.
            DeviceErrorKind::Limit if self.limit.is_some_and(|l| l.need <= l.limit) => {
                Disposition::Retry
            }
            DeviceErrorKind::QueueFull | DeviceErrorKind::Busy | DeviceErrorKind::OutOfMemory => {
                Disposition::Retry
            }
            DeviceErrorKind::Invalid if matches!(self.verb, Verb::PostSend | Verb::PostRecv) => {
                Disposition::Reconnect
            }
            _ => Disposition::Fatal,
        }
    }
}

impl std::error::Error for DeviceError {}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.errno {
            errno::EIO => "EIO",
            errno::EAGAIN => "EAGAIN",
            errno::ENOMEM => "ENOMEM",
            errno::EACCES => "EACCES",
            errno::EFAULT => "EFAULT",
            errno::EBUSY => "EBUSY",
            errno::ENODEV => "ENODEV",
            errno::EINVAL => "EINVAL",
            errno::EOPNOTSUPP => "EOPNOTSUPP",
            _ => "errno",
        };
        write!(f, "{}: {name} ({})", self.verb, self.errno)?;
        if self.kind() == DeviceErrorKind::ReadOnly {
            f.write_str(": memory is read-only, and the rights asked include writing")?;
        }
        if let Some(l) = self.limit {
            write!(f, ": {} needs {} of {}, {} in use", l.what, l.need, l.limit, l.in_use)?;
        }
        if let Some(m) = self.memory {
            let MemoryUse { asked, mrs, bytes } = m;
            if asked > 0 {
                write!(f, "; {asked} bytes were to be registered")?;
            }
            write!(f, "; registered on the device: {mrs} MRs of {bytes} bytes")?;
        }
        if let Some(q) = self.queues {
            write!(
                f,
                "; asked for {} send and {} receive WRs, {} SGEs, {} inline bytes",
                q.max_send_wr, q.max_recv_wr, q.max_sge, q.max_inline_data
            )?;
        }
        if let Some(remedy) = self.limit.and_then(|l| l.remedy()) {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

/// A post that was refused, perhaps only in part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{posted} WRs posted, then {cause}")]
pub struct PostError {
    /// WRs at the front of the chain that were accepted and will run.
    pub posted: usize,
    /// Why the next one was not.
    pub cause: DeviceError,
}

impl PostError {
    /// What to do about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        self.cause.disposition()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(asked: u64, may_pin: Option<u64>, mrs: u64, bytes: u64) -> DeviceError {
        let caps = Caps { max_mr: 10, max_mr_size: 1 << 31, ..Caps::default() };
        let live = MemoryUse { mrs, bytes, asked };
        let limit = live.limit_met(&caps, may_pin);
        DeviceError { limit, memory: Some(live), ..DeviceError::new(Verb::RegMr, errno::ENOMEM) }
    }

    #[test]
    fn b01_a_registration_over_memlock_names_need_limit_and_remedy() {
        let e = refused(102_400, Some(65_536), 0, 0);
        let limit = e.limit.unwrap();
        assert_eq!((limit.what, limit.need, limit.limit), (LimitInfo::MEMLOCK, 102_400, 65_536));
        assert_eq!((e.kind(), e.disposition()), (DeviceErrorKind::Limit, Disposition::Fatal));
        let text = e.to_string();
        assert!(text.contains("RLIMIT_MEMLOCK of this process needs 102400 of 65536"), "{text}");
        assert!(text.ends_with(LimitInfo::MEMLOCK_REMEDY), "{text}");
        // What others have pinned counts; whoever may lock memory has no limit.
        assert_eq!(refused(4096, Some(65_536), 1, 65_536).limit.unwrap().in_use, 65_536);
        assert_eq!(refused(102_400, None, 0, 0).limit, None);
    }

    #[test]
    fn b06_a_registration_without_memory_tells_what_is_live_and_what_was_asked() {
        let e = refused(4096, None, 3, 12_288);
        assert_eq!(e.kind(), DeviceErrorKind::OutOfMemory);
        assert_eq!(
            e.to_string(),
            "reg_mr: ENOMEM (12); 4096 bytes were to be registered; registered on the device: 3 \
             MRs of 12288 bytes"
        );
    }

    #[test]
    fn device_limits_come_before_the_process_limit() {
        assert_eq!(refused(1, Some(0), 10, 1).limit.unwrap().what, "max_mr");
        assert_eq!(refused(1 << 32, Some(0), 0, 0).limit.unwrap().what, "max_mr_size");
    }

    #[test]
    fn b30_a_queue_pair_that_was_refused_says_what_was_asked() {
        let (max_send_wr, max_recv_wr) = (897, 128);
        let queues = Some(QpCaps { max_send_wr, max_recv_wr, max_sge: 16, max_inline_data: 256 });
        let e = DeviceError { queues, ..DeviceError::new(Verb::CreateQp, errno::ENOMEM) };
        assert_eq!(
            e.to_string(),
            "create_qp: ENOMEM (12); asked for 897 send and 128 receive WRs, 16 SGEs, 256 inline \
             bytes"
        );
    }

    #[test]
    fn map_22_a_limit_says_retry_only_if_the_request_can_ever_fit() {
        let of = |need, in_use| {
            let limit = LimitInfo { what: "max_mr", need, limit: 48, in_use };
            DeviceError::limit(Verb::RegMr, errno::ENOMEM, limit).disposition()
        };
        assert_eq!(of(1, 48), Disposition::Retry, "another MR may end");
        assert_eq!(of(49, 0), Disposition::Fatal, "more than the device has");
    }
}
