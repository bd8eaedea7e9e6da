//! The side that is connected to.

use super::channel::{ANSWER, Channel, EventKind, Id, Offer, fits};
use super::error::CmError;
use super::hello::{Data, Hello, HelloError, REPLY_MOST, refusal};
use super::link::{CmDevice, Connected, Heard, Reads, bring_up, greeting, ready};
use crate::device::errno;
use crate::device::verbs::objects::RETRIES;
use crate::memreg::MemReg;
use crate::transport::Transport;
use std::net::SocketAddr;
use std::time::Duration;

/// A port where peers ask for connections.
///
/// # Shape
/// Dropped, it refuses those that nobody has taken; connections that were accepted live on.
#[derive(Debug)]
pub struct Listener {
    id: Id,
    addr: SocketAddr,
}

/// A peer that asks for a connection. Dropped, it is rejected without a reason.
#[derive(Debug)]
pub struct Request {
    id: Id,
    private: Vec<u8>,
    reads: Reads,
}

impl Listener {
    /// Listens on an address of the device; port 0 takes a free one, and the address `0.0.0.0` or
    /// `::` every RDMA device of the host.
    ///
    /// # Errors
    /// [`CmError`]: no library, no kernel support, an address that is not of an RDMA device or of
    /// another one, a port that is taken.
    pub fn bind<D: CmDevice>(
        device: &D,
        addr: SocketAddr,
        backlog: u16,
    ) -> Result<Listener, CmError> {
        let device = device.verbs().ok_or(CmError::NotVerbs)?;
        let id = Id::create(&Channel::open()?)?;
        let refused = |e| match e {
            EADDRINUSE => CmError::AddressInUse { addr },
            errno::ENODEV | EADDRNOTAVAIL => CmError::NotLocal { addr, errno: e },
            e => CmError::call("rdma_bind_addr", e),
        };
        id.bind(addr).map_err(refused)?;
        if !addr.ip().is_unspecified() {
            device.cm_check(&id)?;
        }
        id.listen(backlog).map_err(|e| match e {
            EADDRINUSE => CmError::AddressInUse { addr },
            e => CmError::call("rdma_listen", e),
        })?;
        let addr = SocketAddr::new(addr.ip(), id.port());
        Ok(Listener { id, addr })
    }

    /// Where it listens, with the port that it got.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// The next request, if there is one.
    ///
    /// # Errors
    /// One request could not be taken, and is rejected; the listener goes on.
    pub fn request(&mut self) -> Result<Option<Request>, CmError> {
        while let Some(event) = self.id.channel().next()? {
            match event.kind {
                EventKind::Request(mut id) => {
                    id.migrate()?;
                    return Ok(Some(Request { id, private: event.data, reads: event.reads }));
                }
                other => tracing::debug!(event = ?other, status = event.status, "CM event"),
            }
        }
        Ok(None)
    }

    /// Waits for a request, at most so long; for those who have nothing else to do. False if none
    /// came.
    ///
    /// # Errors
    /// The wait itself failed.
    pub fn wait(&self, limit: Duration) -> Result<bool, CmError> {
        self.id.channel().wait(limit)
    }
}

impl Request {
    /// The address that it comes from.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.id.peer()
    }

    /// Its private data, padded with zeros.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private
    }

    /// Its private data, as the greeting of this library.
    ///
    /// # Errors
    /// [`HelloError`].
    pub fn hello(&self) -> Result<Hello, HelloError> {
        Hello::from_wire(&self.private)
    }

    /// Accepts with a transport that is ready, and takes it up.
    ///
    /// # Ordering
    /// The peer may need a moment before it can receive; what is sent to it meanwhile is tried
    /// again by the device. If it never comes up, `poll` hears that it is gone.
    /// # Errors
    /// [`CmError`]; the peer is rejected, with the reason in words if its greeting is at fault.
    /// Unless it says that the transport failed, the transport is still ready.
    pub fn accept<D: CmDevice, S: MemReg>(
        self,
        t: &mut Transport<D, S>,
        data: Data<'_>,
    ) -> Result<Connected, CmError> {
        let (device, qp) = ready(t, "Request::accept")?;
        let private = greeting(t, data);
        fits(&private, REPLY_MOST, ANSWER)?;
        let heard = match Heard::of(matches!(data, Data::Raw(_)), &self.private) {
            Ok(heard) => heard,
            Err(e) => {
                let e = CmError::from(e);
                let why = std::error::Error::source(&e).map(ToString::to_string);
                self.refuse(&format!("the greeting {}", why.unwrap_or_default()))?;
                return Err(e);
            }
        };
        device.cm_check(&self.id)?;
        device.cm_init(qp, &self.id)?;
        let (reads_served, reads_asked) = device.cm_reads(self.reads);
        bring_up(t, &device, &self.id, &heard, (reads_served, reads_asked))?;
        let peer = self.id.peer();
        let told = self.id.accept(&Offer {
            data: &private,
            reads_served,
            reads_asked,
            retries: RETRIES,
            rnr_retries: t.rnr_retry(),
            qp: qp.0,
        });
        // From here on the transport tells the peer when it goes down.
        device.cm_hold(qp, self.id)?;
        told.inspect_err(|_| t.disconnect())?;
        Ok(Connected { peer, data: heard.data })
    }

    /// Rejects, with the reason in words for a peer that is this library.
    ///
    /// # Errors
    /// [`CmError::Call`]: the peer has gone meanwhile.
    pub fn refuse(self, why: &str) -> Result<(), CmError> {
        self.id.reject(&refusal(why))
    }

    /// Rejects with private data as it is.
    ///
    /// # Errors
    /// [`CmError::PrivateData`]: more than [`REFUSAL_MOST`](super::REFUSAL_MOST) bytes; as
    /// `refuse`.
    pub fn reject(self, private_data: &[u8]) -> Result<(), CmError> {
        self.id.reject(private_data)
    }
}

const EADDRINUSE: i32 = 98;
const EADDRNOTAVAIL: i32 = 99;
