//! A connection as its QP holds it, and the steps that take the QP there.

use super::channel::{Channel, EventKind, Id};
use super::error::CmError;
use super::hello::{Data, Hello, HelloError};
use crate::device::verbs::VerbsDevice;
use crate::device::verbs::objects::{ACK_TIMEOUT, RETRIES, RNR_TIMER};
use crate::device::{
    AnyDevice, AsyncEvent, Device, DeviceError, Endpoint, PortAddr, RtsAttrs, TransportKind, Verb,
};
use crate::error::ApiMisuse;
use crate::memreg::MemReg;
use crate::transport::{State, Transport};
use crate::types::{Access, Epoch, QpId};
use ffi::ibv_qp_attr_mask as mask;
use ffi::ibv_qp_state as state;
use ibverbs_sys as ffi;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

/// A device whose transports RDMA CM can connect, if it is a real one.
pub trait CmDevice: Device {
    /// The device of libibverbs behind it.
    fn verbs(&self) -> Option<&VerbsDevice>;
}

impl CmDevice for VerbsDevice {
    fn verbs(&self) -> Option<&VerbsDevice> {
        Some(self)
    }
}

impl CmDevice for AnyDevice {
    fn verbs(&self) -> Option<&VerbsDevice> {
        match self {
            AnyDevice::Verbs(device) => Some(device),
            AnyDevice::Sim(_) => None,
        }
    }
}

/// What the peer said when it connected or accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connected {
    /// Its address.
    pub peer: Option<SocketAddr>,
    /// The bytes of its program; with [`Data::Raw`] all of its private data, padded with zeros.
    pub data: Vec<u8>,
}

/// The connection of a QP. Its end is told to the QP's transport as an event.
#[derive(Debug)]
pub(in crate::device::verbs) struct Link {
    id: Id,
    looked: u32,
    hung_up: bool,
}

impl Link {
    fn new(id: Id) -> Link {
        Link { id, looked: 0, hung_up: false }
    }

    /// Tells the peer, once.
    pub(in crate::device::verbs) fn hang_up(&mut self) {
        if !std::mem::replace(&mut self.hung_up, true) {
            self.id.disconnect();
        }
    }

    /// Where its news come from.
    pub(in crate::device::verbs) fn channel(&self) -> Arc<Channel> {
        Arc::clone(self.id.channel())
    }

    /// There is something to hear: it is time to look.
    pub(in crate::device::verbs) fn look_soon(&mut self) {
        self.looked = LOOK_EVERY - 1;
    }

    /// What the QP has to hear, if it is time to look: that is a system call.
    pub(in crate::device::verbs) fn news(&mut self, qp: QpId) -> Option<AsyncEvent> {
        self.looked = self.looked.wrapping_add(1);
        if !self.looked.is_multiple_of(LOOK_EVERY) {
            return None;
        }
        loop {
            let event = match self.id.channel().next() {
                Ok(Some(event)) => event,
                Ok(None) => return None,
                Err(e) => {
                    // Nothing more would ever be heard of the peer.
                    tracing::warn!(error = %e, "CM channel");
                    return Some(AsyncEvent::PeerGone(qp));
                }
            };
            match event.kind {
                EventKind::Disconnected
                | EventKind::Unreachable
                | EventKind::ConnectError
                | EventKind::Rejected => return Some(AsyncEvent::PeerGone(qp)),
                EventKind::DeviceRemoval => return Some(AsyncEvent::DeviceFatal),
                other => tracing::debug!(event = ?other, status = event.status, "CM event"),
            }
        }
    }
}

/// What both sides need of a transport: a real device and a QP that waits for its peer.
pub(super) fn ready<D: CmDevice, S: MemReg>(
    t: &Transport<D, S>,
    call: &'static str,
) -> Result<(VerbsDevice, QpId), CmError> {
    let device = t.device().verbs().ok_or(CmError::NotVerbs)?;
    match (t.state(), t.queue_pair()) {
        (State::Ready, Some(qp)) => Ok((device.clone(), qp)),
        _ => Err(ApiMisuse::WrongState { call, needs: "ready" }.into()),
    }
}

/// The private data that `t` sends.
pub(super) fn greeting<D: CmDevice, S: MemReg>(t: &Transport<D, S>, data: Data<'_>) -> Vec<u8> {
    match data {
        Data::Raw(bytes) => bytes.to_vec(),
        Data::Hello(bytes) => {
            let max_message_bytes = u32::try_from(t.max_message_bytes()).unwrap_or(u32::MAX);
            Hello { epoch: t.epoch(), max_message_bytes, data: bytes.to_vec() }.to_wire()
        }
    }
}

/// What the peer's private data says, read as this side has sent its own.
pub(super) struct Heard {
    epoch: Epoch,
    max_message_bytes: Option<u32>,
    pub(super) data: Vec<u8>,
}

impl Heard {
    pub(super) fn of(raw: bool, private: &[u8]) -> Result<Heard, HelloError> {
        if raw {
            return Ok(Heard { epoch: Epoch(0), max_message_bytes: None, data: private.to_vec() });
        }
        let hello = Hello::from_wire(private)?;
        let max_message_bytes = Some(hello.max_message_bytes);
        Ok(Heard { epoch: hello.epoch, max_message_bytes, data: hello.data })
    }
}

/// Takes a transport whose QP is in INIT up: the receives, RTR, RTS.
pub(super) fn bring_up<D: CmDevice, S: MemReg>(
    t: &mut Transport<D, S>,
    device: &VerbsDevice,
    id: &Id,
    heard: &Heard,
    asked: Reads,
) -> Result<(), CmError> {
    // The CM has the address of the QP; of the endpoint only the epoch is looked at again.
    let nowhere = PortAddr::default();
    let qp = t.queue_pair().unwrap_or(QpId(0));
    let peer = Endpoint { node: 0, port: nowhere, qp, epoch: heard.epoch };
    t.connect_by(peer, |_, qp, attrs| device.cm_up(qp, id, attrs, asked))?;
    if let Some(most) = heard.max_message_bytes {
        t.limit_messages(usize::try_from(most).unwrap_or(usize::MAX));
    }
    Ok(())
}

/// RDMA READs at once: served, and asked.
pub(super) type Reads = (u8, u8);

impl VerbsDevice {
    /// That the CM's path leaves through this device's port.
    pub(super) fn cm_check(&self, id: &Id) -> Result<(), CmError> {
        let (name, port) = (self.name(), self.port().0);
        match id.device() {
            Some((found, at)) if found == name && at == port => Ok(()),
            found => {
                let shown = |(name, port): (String, u8)| format!("{name} port {port}");
                let found = found.map_or_else(|| "no RDMA device".to_owned(), shown);
                Err(CmError::WrongDevice { found, used: shown((name, port)) })
            }
        }
    }

    /// What this side can do and the peer has asked for, at most.
    pub(super) fn cm_reads(&self, peer: Reads) -> Reads {
        let port = self.port_in_use();
        (port.reads_served.min(peer.0), port.reads_asked.min(peer.1))
    }

    /// INIT again, now with what the path needs (the partition); the rights are ours.
    pub(super) fn cm_init(&self, qp: QpId, id: &Id) -> Result<(), DeviceError> {
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        self.cm_step(qp, id, state::IBV_QPS_INIT, |attr, fields| {
            attr.qp_access_flags |= rights.bits();
            *fields |= mask::IBV_QP_ACCESS_FLAGS.0;
        })
    }

    fn cm_up(
        &self,
        qp: QpId,
        id: &Id,
        attrs: RtsAttrs,
        (served, asked): Reads,
    ) -> Result<(), DeviceError> {
        self.cm_step(qp, id, state::IBV_QPS_RTR, |attr, fields| {
            attr.max_dest_rd_atomic = served;
            attr.min_rnr_timer = RNR_TIMER;
            *fields |= mask::IBV_QP_MAX_DEST_RD_ATOMIC.0 | mask::IBV_QP_MIN_RNR_TIMER.0;
        })?;
        let ethernet = self.caps().transport == TransportKind::Roce;
        self.cm_step(qp, id, state::IBV_QPS_RTS, |attr, fields| {
            attr.max_rd_atomic = asked;
            attr.rnr_retry = attrs.rnr_retry;
            attr.retry_cnt = attr.retry_cnt.min(RETRIES);
            *fields |= mask::IBV_QP_MAX_QP_RD_ATOMIC.0
                | mask::IBV_QP_RNR_RETRY.0
                | mask::IBV_QP_RETRY_CNT.0;
            if ethernet {
                // No subnet manager tells how long a packet lives; the kernel makes up seconds.
                attr.timeout = ACK_TIMEOUT;
                *fields |= mask::IBV_QP_TIMEOUT.0;
            }
        })
    }

    fn cm_step(
        &self,
        qp: QpId,
        id: &Id,
        to: state::Type,
        change: impl FnOnce(&mut ffi::ibv_qp_attr, &mut u32),
    ) -> Result<(), DeviceError> {
        let failed = |errno| DeviceError::new(Verb::ModifyQp, errno);
        let (mut attr, fields) = id.attributes(to).map_err(failed)?;
        let mut fields = u32::try_from(fields).unwrap_or(0);
        change(&mut attr, &mut fields);
        self.qp(Verb::ModifyQp, qp)?.modify_masked(attr, fields).map_err(failed)
    }

    /// The QP holds its connection from now on.
    pub(super) fn cm_hold(&self, qp: QpId, id: Id) -> Result<(), DeviceError> {
        let q = self.qp(Verb::ModifyQp, qp)?;
        *q.link.lock().unwrap_or_else(PoisonError::into_inner) = Some(Link::new(id));
        self.has_news();
        Ok(())
    }
}

/// Polls between two looks for events of the CM.
const LOOK_EVERY: u32 = 64;
