//! Connections by RDMA CM: an address and a port instead of hand-exchanged endpoints.
//!
//! ```text
//! Listener::bind ─request─► Request ─accept─► the transport is up        (or refuse, or reject)
//! Connecting::start ─poll, poll─► the transport is up                 (or an error with its cause)
//! ```
//! The connection belongs to the transport's QP: `disconnect`, a poison or the drop of the
//! transport end it at the peer too, and the peer's end is heard by `poll` (`DownCause::PeerGone`).
//! To come back, `reconnect` the transport and connect it again.
//!
//! librdmacm is loaded when it is first needed, so a program that never connects this way runs
//! without it. QPs stay ours: the CM tells the attributes of each step, and moves no QP itself.
//!
//! - `connecting`, `listener`: the two sides
//! - `hello`: what they tell each other about themselves
//! - `link`: a connection as its QP holds it, and the steps of the QP
//! - `channel`, `address`, `library`: librdmacm's objects, addresses and functions
//! - `error`: what can go wrong, and what to do
//!
//! # Divergence
//! Tried on rdma_rxe alone. Over iWARP the kernel takes the QP through its states by itself, which
//! this module does not provide for.
//! # Source
//! rdma_cm(7), RFC 8797 for what others put into private data
//! # Example
//! One step of each side; a program goes on until it has what it wants.
//! ```no_run
//! use memreg_core::device::verbs::cm::{CmError, Connected, Connecting, Data, Listener};
//! use memreg_core::device::verbs::VerbsDevice;
//! use memreg_core::{MemReg, Tick, Transport};
//!
//! fn serve<S: MemReg>(
//!     listener: &mut Listener,
//!     t: &mut Transport<VerbsDevice, S>,
//! ) -> Result<Option<Connected>, CmError> {
//!     match listener.request()? {
//!         Some(request) if request.hello().is_ok_and(|h| h.data == b"my program") => {
//!             request.accept(t, Data::Hello(b"welcome")).map(Some)
//!         }
//!         Some(request) => request.refuse("this port is for my program").map(|()| None),
//!         None => Ok(None),
//!     }
//! }
//!
//! fn dial<S: MemReg>(
//!     t: &mut Transport<VerbsDevice, S>,
//!     mut clock: impl FnMut() -> Tick,
//! ) -> Result<Connected, CmError> {
//!     let to = ([192, 168, 77, 1], 7000).into();
//!     let mut connecting = Connecting::start(t, to, Data::Hello(b"my program"), 5_000_000_000)?;
//!     loop {
//!         if let Some(connected) = connecting.poll(t, clock())? {
//!             return Ok(connected);
//!         }
//!         connecting.wait(std::time::Duration::from_millis(100))?;
//!     }
//! }
//! ```

mod address;
mod channel;
mod connecting;
mod error;
mod hello;
mod library;
mod link;
mod listener;

pub use connecting::Connecting;
pub use error::CmError;
pub use hello::{Data, Hello, HelloError, PRIVATE_MOST, REFUSAL_MOST, REPLY_MOST};
pub(super) use link::Link;
pub use link::{CmDevice, Connected};
pub use listener::{Listener, Request};
