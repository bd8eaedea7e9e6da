//! Waiting without spinning: the channel of one CQ, beside everything else that can wake its owner.
#![allow(unsafe_code)] // see the obligations in the parent module

use super::context::{Context, Object, outcome};
use crate::device::errno;
use ibverbs_sys as ffi;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;

/// A completion channel: its descriptor becomes readable when an armed CQ gets a WC.
pub(super) struct CompChannel {
    object: Option<Object<ffi::ibv_comp_channel>>,
}

impl CompChannel {
    /// The caller keeps the context alive for as long as this lives.
    pub(super) fn create(context: &Context) -> Result<CompChannel, i32> {
        // SAFETY: O1, O2.
        let made = Object::made(unsafe { ffi::ibv_create_comp_channel(context.ptr()) })?;
        let channel = CompChannel { object: Some(made) };
        let raw = rustix::io::Errno::raw_os_error;
        let flags = rustix::fs::fcntl_getfl(&channel).map_err(raw)?;
        rustix::fs::fcntl_setfl(&channel, flags | OFlags::NONBLOCK).map_err(raw)?;
        Ok(channel)
    }

    pub(super) fn ptr(&self) -> *mut ffi::ibv_comp_channel {
        self.object.as_ref().map_or(ptr::null_mut(), Object::ptr)
    }

    /// Takes every event of the one CQ on this channel; true if there was any. Unacknowledged
    /// events would keep the CQ from being destroyed.
    pub(super) fn take(&self) -> bool {
        let mut count = 0;
        let (mut cq, mut user) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: O1, O4. The descriptor does not block.
        while unsafe { ffi::ibv_get_cq_event(self.ptr(), &mut cq, &mut user) } == 0 {
            count += 1;
            // SAFETY: O1: the CQ of the event, which cannot end before this; acknowledged once.
            unsafe { ffi::ibv_ack_cq_events(cq, 1) };
        }
        count > 0
    }

    /// Ends it; no CQ is on it any more.
    pub(super) fn end(&mut self) -> Result<(), i32> {
        let Some(object) = self.object.take() else { return Ok(()) };
        // SAFETY: O1, O2.
        outcome(unsafe { ffi::ibv_destroy_comp_channel(object.ptr()) }).inspect_err(|_| {
            self.object = Some(object);
        })
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            tracing::error!(errno = e, "completion channel not ended");
        }
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: O1. A channel that has ended is not asked.
        let fd = unsafe { (*self.ptr()).fd };
        // SAFETY: the descriptor is the channel's, which is open for the whole borrow.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

/// Waits until one of the descriptors is readable; which ones are. None of them: the time is over,
/// or a signal came.
pub(super) fn readable(fds: &[BorrowedFd<'_>], limit_ns: u64) -> Result<Vec<bool>, i32> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let limit = Timespec {
        tv_sec: i64::try_from(limit_ns / NS).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(limit_ns % NS).unwrap_or(0),
    };
    match poll(&mut polled, Some(&limit)) {
        Ok(_) => Ok(polled.iter().map(|p| !p.revents().is_empty()).collect()),
        Err(e) if e.raw_os_error() == EINTR => Ok(vec![false; fds.len()]),
        Err(e) => Err(e.raw_os_error()),
    }
}

impl Context {
    /// The next WC of an armed CQ raises an event on its channel.
    pub(super) fn arm(&self, cq: *mut ffi::ibv_cq) -> Result<(), i32> {
        let arm = self.ops().arm_cq.ok_or(errno::EOPNOTSUPP)?;
        // SAFETY: O1: a CQ of this context, which its caller holds.
        outcome(unsafe { arm(cq, 0) })
    }
}

const NS: u64 = 1_000_000_000;
const EINTR: i32 = 4;
