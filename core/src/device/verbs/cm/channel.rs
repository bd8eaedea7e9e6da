//! Event channels and identifiers of librdmacm. Each struct owns one and ends it once.
#![allow(unsafe_code)] // see the obligations in the module above this folder

use super::address::RawAddr;
use super::error::CmError;
use super::hello::{PRIVATE_MOST, REFUSAL_MOST, REPLY_MOST};
use super::library::{Functions, RawChannel, RawEvent, RawId, RawParam, cm};
use crate::device::errno;
use crate::device::verbs::context::{Object, last_errno, outcome};
use ibverbs_sys as ffi;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use std::ffi::CStr;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// Where the events of some identifiers arrive. Reading one never blocks.
pub(in crate::device::verbs) struct Channel {
    object: Object<RawChannel>,
    cm: &'static Functions,
}

/// One side of a connection, or a listener.
pub(super) struct Id {
    object: Object<RawId>,
    cm: &'static Functions,
    channel: Arc<Channel>,
}

/// What the CM says.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) kind: EventKind,
    /// 0, a negative errno, or the reason of a rejection.
    pub(super) status: i32,
    pub(super) data: Vec<u8>,
    /// RDMA READs at once that this side is to serve, and may ask.
    pub(super) reads: (u8, u8),
}

/// Of `enum rdma_cm_event_type`, what connections meet.
#[derive(Debug)]
pub(super) enum EventKind {
    AddrResolved,
    AddrError,
    RouteResolved,
    RouteError,
    /// With the identifier of the new connection, still on the listener's channel.
    Request(Id),
    Response,
    ConnectError,
    Unreachable,
    Rejected,
    Established,
    Disconnected,
    DeviceRemoval,
    Other,
}

/// What is said of this side in a request or its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer<'a> {
    pub(super) data: &'a [u8],
    pub(super) reads_served: u8,
    pub(super) reads_asked: u8,
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    pub(super) qp: u32,
}

impl Channel {
    pub(super) fn open() -> Result<Arc<Channel>, CmError> {
        let cm = cm()?;
        // SAFETY: O7.
        let made = Object::made(unsafe { (cm.rdma_create_event_channel)() });
        let object = made.map_err(|errno| CmError::NoKernelSupport { errno })?;
        let channel = Channel { object, cm };
        let flags = rustix::fs::fcntl_getfl(&channel);
        flags
            .and_then(|flags| rustix::fs::fcntl_setfl(&channel, flags | OFlags::NONBLOCK))
            .map_err(|e| CmError::call("fcntl", e.raw_os_error()))?;
        Ok(Arc::new(channel))
    }

    /// The next event, acknowledged; `None` if there is none.
    pub(super) fn next(self: &Arc<Channel>) -> Result<Option<Event>, CmError> {
        let mut event = ptr::null_mut();
        // SAFETY: O1, O4, O7. The descriptor does not block.
        if unsafe { (self.cm.rdma_get_cm_event)(self.object.ptr(), &mut event) } != 0 {
            return match last_errno() {
                errno::EAGAIN | EINTR => Ok(None),
                errno => Err(CmError::call("rdma_get_cm_event", errno)),
            };
        }
        // SAFETY: O1: the library's event, alive until it is acknowledged.
        let read = self.read(unsafe { &*event });
        // SAFETY: O1: got once, acknowledged once; what was read of it is a copy.
        unsafe { (self.cm.rdma_ack_cm_event)(event) };
        Ok(Some(read))
    }

    fn read(self: &Arc<Channel>, event: &RawEvent) -> Event {
        let kind = match event.event {
            0 => EventKind::AddrResolved,
            1 => EventKind::AddrError,
            2 => EventKind::RouteResolved,
            3 => EventKind::RouteError,
            4 => match Object::made(event.id) {
                Ok(object) => {
                    EventKind::Request(Id { object, cm: self.cm, channel: Arc::clone(self) })
                }
                Err(_) => EventKind::Other,
            },
            5 => EventKind::Response,
            6 => EventKind::ConnectError,
            7 => EventKind::Unreachable,
            8 => EventKind::Rejected,
            9 => EventKind::Established,
            10 => EventKind::Disconnected,
            11 => EventKind::DeviceRemoval,
            other => {
                tracing::debug!(event = other, status = event.status, "CM event");
                EventKind::Other
            }
        };
        let conn = &event.conn;
        let with_data =
            matches!(kind, EventKind::Request(_) | EventKind::Response | EventKind::Rejected);
        let mut data = vec![];
        if with_data && !conn.private_data.is_null() {
            // SAFETY: O1: events of these kinds carry that many bytes, until acknowledged.
            let bytes = unsafe {
                std::slice::from_raw_parts(conn.private_data, conn.private_data_len.into())
            };
            data.extend_from_slice(bytes);
        }
        let reads = (conn.responder_resources, conn.initiator_depth);
        Event { kind, status: event.status, data, reads }
    }

    /// Waits until there is an event, at most so long; false if there is none.
    pub(super) fn wait(&self, limit: Duration) -> Result<bool, CmError> {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        match poll(&mut fds, Some(&limit)) {
            Ok(ready) => Ok(ready > 0),
            Err(e) if e.raw_os_error() == EINTR => Ok(false),
            Err(e) => Err(CmError::call("poll", e.raw_os_error())),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: O1.
        let fd = unsafe { (*self.object.ptr()).fd };
        // SAFETY: the descriptor is the channel's, which is open for the whole borrow.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: O1, O2: every identifier on it holds it.
        unsafe { (self.cm.rdma_destroy_event_channel)(self.object.ptr()) };
    }
}

impl Id {
    pub(super) fn create(channel: &Arc<Channel>) -> Result<Id, CmError> {
        let (cm, channel) = (channel.cm, Arc::clone(channel));
        let mut id = ptr::null_mut();
        let on = channel.object.ptr();
        // SAFETY: O1, O4, O7; no user pointer.
        let rc = unsafe { (cm.rdma_create_id)(on, &mut id, ptr::null_mut(), PORT_SPACE_TCP) };
        called("rdma_create_id", rc)?;
        let object = Object::made(id).map_err(|e| CmError::call("rdma_create_id", e))?;
        Ok(Id { object, cm, channel })
    }

    pub(super) fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Gives an identifier of a request a channel of its own, so that it outlives the listener.
    pub(super) fn migrate(&mut self) -> Result<(), CmError> {
        let channel = Channel::open()?;
        // SAFETY: O1, O2. No event of it is unacknowledged, so the call does not wait.
        let rc = unsafe { (self.cm.rdma_migrate_id)(self.object.ptr(), channel.object.ptr()) };
        called("rdma_migrate_id", rc)?;
        self.channel = channel;
        Ok(())
    }

    pub(super) fn bind(&self, addr: SocketAddr) -> Result<(), i32> {
        let mut raw = RawAddr::new(addr);
        // SAFETY: O1, O4.
        outcome(unsafe { (self.cm.rdma_bind_addr)(self.object.ptr(), &mut raw) })
    }

    pub(super) fn listen(&self, backlog: u16) -> Result<(), i32> {
        // SAFETY: O1.
        outcome(unsafe { (self.cm.rdma_listen)(self.object.ptr(), backlog.into()) })
    }

    /// The port that it is bound to.
    pub(super) fn port(&self) -> u16 {
        // SAFETY: O1.
        u16::from_be(unsafe { (self.cm.rdma_get_src_port)(self.object.ptr()) })
    }

    pub(super) fn resolve_addr(&self, to: SocketAddr) -> Result<(), i32> {
        let mut raw = RawAddr::new(to);
        let (id, from) = (self.object.ptr(), ptr::null_mut());
        // SAFETY: O1, O4; any source address.
        outcome(unsafe { (self.cm.rdma_resolve_addr)(id, from, &mut raw, RESOLVE_MS) })
    }

    pub(super) fn resolve_route(&self) -> Result<(), i32> {
        // SAFETY: O1.
        outcome(unsafe { (self.cm.rdma_resolve_route)(self.object.ptr(), RESOLVE_MS) })
    }

    /// Name of the device and port that the address leads through, once known.
    pub(super) fn device(&self) -> Option<(String, u8)> {
        // SAFETY: O1: set by the event that was read, and not changed by others.
        let verbs = unsafe { (*self.object.ptr()).verbs };
        if verbs.is_null() {
            return None;
        }
        // SAFETY: O1.
        let port = unsafe { (*self.object.ptr()).port_num };
        // SAFETY: O1: the library's context, open as long as the identifier.
        let device = unsafe { (*verbs).device };
        // SAFETY: O1: the context keeps its device.
        let name = unsafe { ffi::ibv_get_device_name(device) };
        if name.is_null() {
            return None;
        }
        // SAFETY: a terminated string inside the device, alive as long as the context.
        let name = unsafe { CStr::from_ptr(name) };
        Some((name.to_string_lossy().into_owned(), port))
    }

    /// The other side's address.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: O1.
        let raw = unsafe { (*self.object.ptr()).dst };
        raw.get()
    }

    /// The attributes and their mask that take a QP into `state`.
    pub(super) fn attributes(
        &self,
        state: ffi::ibv_qp_state::Type,
    ) -> Result<(ffi::ibv_qp_attr, i32), i32> {
        let mut attr = ffi::ibv_qp_attr { qp_state: state, ..Default::default() };
        let mut mask = 0;
        // SAFETY: O1, O4.
        let rc = unsafe { (self.cm.rdma_init_qp_attr)(self.object.ptr(), &mut attr, &mut mask) };
        outcome(rc).map(|()| (attr, mask))
    }

    pub(super) fn connect(&self, offer: &Offer<'_>) -> Result<(), CmError> {
        let mut raw = offer.raw(PRIVATE_MOST, REQUEST)?;
        // SAFETY: O1, O4.
        called("rdma_connect", unsafe { (self.cm.rdma_connect)(self.object.ptr(), &mut raw) })
    }

    pub(super) fn accept(&self, offer: &Offer<'_>) -> Result<(), CmError> {
        let mut raw = offer.raw(REPLY_MOST, ANSWER)?;
        // SAFETY: O1, O4.
        called("rdma_accept", unsafe { (self.cm.rdma_accept)(self.object.ptr(), &mut raw) })
    }

    pub(super) fn establish(&self) -> Result<(), CmError> {
        // SAFETY: O1.
        called("rdma_establish", unsafe { (self.cm.rdma_establish)(self.object.ptr()) })
    }

    pub(super) fn reject(&self, data: &[u8]) -> Result<(), CmError> {
        let len = fits(data, REFUSAL_MOST, "a rejection")?;
        // SAFETY: O1, O4.
        let rc = unsafe { (self.cm.rdma_reject)(self.object.ptr(), data.as_ptr().cast(), len) };
        called("rdma_reject", rc)
    }

    /// Tells the peer that it is over; that it was over already is no error.
    pub(super) fn disconnect(&self) {
        // SAFETY: O1.
        let rc = unsafe { (self.cm.rdma_disconnect)(self.object.ptr()) };
        if let Err(e) = outcome(rc) {
            tracing::debug!(errno = e, "rdma_disconnect");
        }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: O1. Every event that was taken is acknowledged, so the call does not wait.
        if let Err(e) = outcome(unsafe { (self.cm.rdma_destroy_id)(self.object.ptr()) }) {
            tracing::error!(errno = e, "CM identifier not ended");
        }
    }
}

impl std::fmt::Debug for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Id({:?})", self.peer())
    }
}

impl Offer<'_> {
    fn raw(&self, most: usize, message: &'static str) -> Result<RawParam, CmError> {
        Ok(RawParam {
            private_data: self.data.as_ptr(),
            private_data_len: fits(self.data, most, message)?,
            responder_resources: self.reads_served,
            initiator_depth: self.reads_asked,
            flow_control: 1,
            retry_count: self.retries,
            rnr_retry_count: self.rnr_retries,
            srq: 0,
            qp_num: self.qp,
        })
    }
}

/// The length of private data, if the message has room for it.
pub(super) fn fits(data: &[u8], most: usize, message: &'static str) -> Result<u8, CmError> {
    let len = data.len();
    let fit = u8::try_from(len).ok().filter(|_| len <= most);
    fit.ok_or(CmError::PrivateData { len, most, message })
}

fn called(call: &'static str, rc: i32) -> Result<(), CmError> {
    outcome(rc).map_err(|errno| CmError::call(call, errno))
}

/// The messages of the CM that carry private data, for people.
pub(super) const REQUEST: &str = "a request";
pub(super) const ANSWER: &str = "an answer";

const EINTR: i32 = 4;
/// `RDMA_PS_TCP`: reliable connections.
const PORT_SPACE_TCP: i32 = 0x0106;
/// For a neighbour's or a subnet manager's answer.
const RESOLVE_MS: i32 = 2000;
