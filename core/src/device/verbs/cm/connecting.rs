//! The side that connects.

use super::channel::{Channel, Event, EventKind, Id, Offer, REQUEST, fits};
use super::error::CmError;
use super::hello::{Data, PRIVATE_MOST};
use super::link::{CmDevice, Connected, Heard, bring_up, greeting, ready};
use crate::device::Device;
use crate::device::verbs::VerbsDevice;
use crate::device::verbs::objects::RETRIES;
use crate::error::ApiMisuse;
use crate::memreg::MemReg;
use crate::transport::Transport;
use crate::types::{Epoch, QpId, Tick};
use std::net::SocketAddr;
use std::time::Duration;

/// A connection that is being made, step by step.
///
/// # Shape
/// Dropped before it is done, it is called off: the peer hears a rejection, and the transport is
/// ready as before.
#[derive(Debug)]
pub struct Connecting {
    /// Until the QP holds it.
    id: Option<Id>,
    device: VerbsDevice,
    qp: QpId,
    epoch: Epoch,
    to: SocketAddr,
    step: Step,
    raw: bool,
    private: Vec<u8>,
    limit_ns: u64,
    until: Option<Tick>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Address,
    Route,
    Answer,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Address => "its address was resolved",
            Step::Route => "a path was looked for",
            Step::Answer => "it was asked for a connection",
        }
    }
}

impl Connecting {
    /// Starts connecting a transport that is ready; [`poll`](Connecting::poll) goes on with it.
    ///
    /// # Units
    /// `limit_ns` from the first `poll` to the last.
    /// # Errors
    /// [`CmError`]: no library, no kernel support, too much private data, an address that leads
    /// nowhere. The transport is as before.
    pub fn start<D: CmDevice, S: MemReg>(
        t: &Transport<D, S>,
        to: SocketAddr,
        data: Data<'_>,
        limit_ns: u64,
    ) -> Result<Connecting, CmError> {
        let (device, qp) = ready(t, "Connecting::start")?;
        let private = greeting(t, data);
        fits(&private, PRIVATE_MOST, REQUEST)?;
        let id = Id::create(&Channel::open()?)?;
        id.resolve_addr(to).map_err(|errno| CmError::Unresolved { to, errno })?;
        let raw = matches!(data, Data::Raw(_));
        let step = Step::Address;
        let id = Some(id);
        let epoch = t.epoch();
        Ok(Connecting { id, device, qp, epoch, to, step, raw, private, limit_ns, until: None })
    }

    /// Does what can be done now. `Some` once the transport is up.
    ///
    /// # Errors
    /// [`CmError`]; drop the connection then. Unless it says that the transport failed, the
    /// transport is still ready, and can be connected again.
    /// # Cost
    /// A system call, and a few more at each step.
    pub fn poll<D: CmDevice, S: MemReg>(
        &mut self,
        t: &mut Transport<D, S>,
        now: Tick,
    ) -> Result<Option<Connected>, CmError> {
        let (device, qp) = ready(t, "Connecting::poll")?;
        // QP numbers come again, on another device and after a reconnect.
        if (device.id(), qp, t.epoch()) != (self.device.id(), self.qp, self.epoch) {
            return Err(ApiMisuse::ForeignHandle.into());
        }
        let until = *self.until.get_or_insert(now.after(self.limit_ns));
        while let Some(event) = self.id()?.channel().next()? {
            if let Some(connected) = self.step(t, event)? {
                return Ok(Some(connected));
            }
        }
        if now >= until {
            return Err(CmError::TimedOut { to: self.to, step: self.step.name() });
        }
        Ok(None)
    }

    /// Waits until `poll` has something to do, at most so long; for those who have nothing else to
    /// do. False if nothing came.
    ///
    /// # Errors
    /// The wait itself failed.
    pub fn wait(&self, limit: Duration) -> Result<bool, CmError> {
        self.id()?.channel().wait(limit)
    }

    fn step<D: CmDevice, S: MemReg>(
        &mut self,
        t: &mut Transport<D, S>,
        event: Event,
    ) -> Result<Option<Connected>, CmError> {
        let to = self.to;
        let errno = event.status.checked_abs().unwrap_or(0);
        match (self.step, event.kind) {
            (Step::Address, EventKind::AddrResolved) => {
                let id = self.id()?;
                self.device.cm_check(id)?;
                id.resolve_route().map_err(|errno| CmError::NoRoute { to, errno })?;
                self.step = Step::Route;
            }
            (Step::Route, EventKind::RouteResolved) => {
                self.device.cm_init(self.qp, self.id()?)?;
                self.ask(t.rnr_retry())?;
                self.step = Step::Answer;
            }
            (Step::Answer, EventKind::Response) => {
                return self.answered(t, &event.data, event.reads).map(Some);
            }
            (_, EventKind::AddrError) => return Err(CmError::Unresolved { to, errno }),
            (_, EventKind::RouteError) => return Err(CmError::NoRoute { to, errno }),
            (_, EventKind::Unreachable | EventKind::ConnectError) => {
                return Err(CmError::Unreachable { to, errno });
            }
            (_, EventKind::Rejected) => {
                return Err(CmError::rejected(to, event.status, event.data));
            }
            (_, EventKind::Disconnected) => return Err(CmError::Unreachable { to, errno }),
            (_, other) => tracing::debug!(event = ?other, status = event.status, "CM event"),
        }
        Ok(None)
    }

    fn ask(&self, rnr_retries: u8) -> Result<(), CmError> {
        let (reads_served, reads_asked) = self.device.cm_reads((u8::MAX, u8::MAX));
        let (retries, qp, data) = (RETRIES, self.qp.0, &self.private[..]);
        let offer = Offer { data, reads_served, reads_asked, retries, rnr_retries, qp };
        self.id()?.connect(&offer)
    }

    /// The peer has accepted: the QP goes up, and the peer hears that it has.
    fn answered<D: CmDevice, S: MemReg>(
        &mut self,
        t: &mut Transport<D, S>,
        private: &[u8],
        reads: (u8, u8),
    ) -> Result<Connected, CmError> {
        let heard = Heard::of(self.raw, private)?;
        let id = self.id.take().ok_or(DONE)?;
        bring_up(t, &self.device, &id, &heard, self.device.cm_reads(reads))?;
        let told = id.establish();
        // From here on the transport tells the peer when it goes down.
        self.device.cm_hold(self.qp, id)?;
        told.inspect_err(|_| t.disconnect())?;
        Ok(Connected { peer: Some(self.to), data: heard.data })
    }

    fn id(&self) -> Result<&Id, CmError> {
        self.id.as_ref().ok_or(CmError::Misuse(DONE))
    }
}

const DONE: ApiMisuse = ApiMisuse::WrongState { call: "Connecting::poll", needs: "not done" };
