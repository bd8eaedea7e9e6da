//! One connection: expose, send, revoke, reclaim; read and write; drain and recover.
//!
//! A [`Transport`] is driven by its owner: nothing happens unless [`poll`](Transport::poll) is
//! called. It is `Send`, and no lock is shared between two of them (the software device's fabric
//! apart).
//!
//! - `connect`: open, connect, disconnect, reconnect, close
//! - `shared_pd`: one protection domain for many transports
//! - `queue_pair`: making a QP that the device takes
//! - `expose`: expose, revoke, cancel, reclaim
//! - `lease`: exposures that end by themselves
//! - `exchange`: messages both ways, with and without invalidation
//! - `local`: read and write of a remote segment
//! - `complete`: poll, and where each WC goes
//! - `wait`: sleeping until there is something to poll
//! - `drain`: poison, drain, destroy every key
//! - `poisoned`: what is kept of a connection that went wrong
//! - [`error`]: what can go wrong, and what to do

mod complete;
mod connect;
mod drain;
pub mod error;
mod exchange;
mod expose;
mod lease;
mod local;
mod parts;
mod poisoned;
mod queue_pair;
mod shared_pd;
mod wait;

pub use crate::engine::buffers::{Buffers, IntoIter};
pub use crate::engine::exposure::{Exposed, ExposureState, LocalOp, RemoteAccess};
pub use crate::engine::ledger::{KeyEvent, Ledger, LedgerEntry, LedgerEvent, Rule};
pub use crate::engine::stats::Stats;
pub use complete::Progress;
pub use connect::OpenOptions;
pub use exchange::{Received, Reply, ReplyToken};
pub use expose::NoReply;
pub use local::LocalDone;
pub use poisoned::Poisoned;
pub use shared_pd::{QpBoundKeys, SharedPd, SharedPdError};

use crate::device::{Caps, Device, Endpoint};
use crate::engine::Engine;
use crate::memreg::{MemReg, Poison, SegShape, WrBatch};
use crate::sizing::Limits;
use crate::types::{CqId, Epoch, PdId, QpId, Tick};
use error::DownCause;
use exchange::Messages;
use std::collections::BTreeSet;

/// Where a transport stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// It has a QP with an address, and no peer yet.
    Ready,
    /// Connected.
    Up,
    /// Going down: waits for the QP's last completion.
    Draining,
    /// Down: no WR is outstanding and every key that could be destroyed is.
    Down(DownCause),
}

/// One connection with one strategy on one device.
///
/// # Shape
/// Ready → Up → Draining → Down → (reconnect) Ready. Buffers move in with `expose`, `read` and
/// `write`, and out with `reclaim` and `take`. Dropping it destroys the QP and every key; what
/// cannot be proven dead is leaked and logged.
/// # Ordering
/// WRs run in the order of the calls that post them: `flush`, `send`, `revoke`, `read`, `write`.
pub struct Transport<D: Device, S: MemReg> {
    eng: Engine<D>,
    strategy: S,
    messages: Messages,
    state: State,
    peer: Option<Endpoint>,
    batch: WrBatch,
    /// While draining: when to stop waiting for the sentinel.
    drain_until: Option<Tick>,
    /// While draining: the sentinel is not waited for.
    drain_forced: bool,
    /// While draining: why.
    cause: Option<DownCause>,
    poisoned: Option<Box<Poisoned>>,
    /// What the strategy answered to an event that it heard out of the queue.
    gave_up: Option<Poison>,
    sentinel_seen: bool,
    /// The CQ has lost completions, or may have: the next connection gets a new one.
    cq_doubtful: bool,
    /// Ports that the device has said are down, for this QP.
    ports_down: BTreeSet<u8>,
    drain_limit_ns: u64,
    rnr_retry: u8,
    /// Inline bytes to ask of a QP; what the first one was made with.
    ask_inline: u32,
    wcs: Vec<crate::device::Wc>,
    /// Of the ranges that were checked last.
    shapes: Vec<SegShape>,
}

impl<D: Device, S: MemReg> Transport<D, S> {
    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The sizes that the strategy was opened with.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.eng.limits
    }

    /// The strategy's name.
    #[must_use]
    pub fn strategy_name(&self) -> &'static str {
        self.strategy.name()
    }

    /// The strategy, to look at its own counters.
    #[must_use]
    pub fn strategy(&self) -> &S {
        &self.strategy
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.eng.device
    }

    /// The device's attributes as they were at open.
    #[must_use]
    pub fn caps(&self) -> &Caps {
        &self.eng.caps
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.eng.stats
    }

    /// Every grant and end of a key, as far back as it is kept.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.eng.keys.ledger
    }

    /// The epoch of this connection, which its segments carry.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.eng.epoch
    }

    /// The QP, while there is one.
    #[must_use]
    pub fn queue_pair(&self) -> Option<QpId> {
        self.eng.qp
    }

    /// Whether the device has said nothing to the contrary of a port of it since the QP was made.
    ///
    /// A port that is down costs only the connections that go through it, and those only when the
    /// device gives up on a WR: until then it may come back.
    #[must_use]
    pub fn port_is_up(&self, port: u8) -> bool {
        !self.ports_down.contains(&port)
    }

    /// See [`OpenOptions::rnr_retry`].
    #[must_use]
    pub fn rnr_retry(&self) -> u8 {
        self.rnr_retry
    }

    /// The PD of its QP and of every registration.
    #[must_use]
    pub fn protection_domain(&self) -> PdId {
        self.eng.pd
    }

    /// The CQ of both queues.
    #[must_use]
    pub fn completion_queue(&self) -> CqId {
        self.eng.cq
    }

    /// WRs outstanding on the send queue, and slots of the queue.
    #[must_use]
    pub fn send_queue(&self) -> (usize, usize) {
        (self.eng.ring.outstanding(), self.eng.ring.depth())
    }

    /// Completions of the send queue that the device owes, for those who wait for hardware.
    #[must_use]
    pub fn completions_owed(&self) -> usize {
        self.eng.ring.owed()
    }

    /// Delivers what the strategy has not heard; a strategy that gives up costs the connection.
    #[inline]
    fn deliver(&mut self) {
        if !self.eng.events.is_empty() || self.gave_up.is_some() {
            self.deliver_all();
        }
    }

    #[inline(never)]
    fn deliver_all(&mut self) {
        if let Some(p) = self.gave_up.take() {
            self.poison(DownCause::Strategy(p));
        }
        while let Some((regions, event)) = self.eng.events.pop_run() {
            if let Err(p) = self.strategy.on_events(regions, event) {
                self.poison(DownCause::Strategy(p));
            }
        }
    }
}

impl<D: Device, S: MemReg> std::fmt::Debug for Transport<D, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transport")
            .field("device", &self.eng.device.name())
            .field("strategy", &self.strategy.name())
            .field("state", &self.state)
            .field("epoch", &self.eng.epoch)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::AnyDevice;

    fn is_send<T: Send>() {}

    #[test]
    fn what_a_program_stores_can_change_threads() {
        is_send::<Transport<AnyDevice, Box<dyn MemReg>>>();
        is_send::<Exposed>();
        is_send::<LocalOp>();
        is_send::<Buffers>();
    }
}
