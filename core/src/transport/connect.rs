//! Open, connect, disconnect, reconnect, close.

use super::error::{ConnectError, DownCause, OpenError};
use super::exchange::Messages;
use super::shared_pd::{self, OTHER_ORDERING, SharedPd};
use super::{State, Transport};
use crate::device::{Device, DeviceError, Endpoint, RelaxedOrdering, RtsAttrs};
use crate::engine::arena::Arena;
use crate::engine::control::{Ctl, Scope};
use crate::engine::domain::Domain;
use crate::engine::keys::KeyState;
use crate::engine::{Engine, Stray};
use crate::error::ApiMisuse;
use crate::memreg::{MemReg, WrBatch};
use crate::mutants::mutant;
use crate::sizing::{Ask, KeyScope, Limits, check_messages};
use crate::sync::Arc;
use crate::types::{Access, Grant, QpId};
use std::collections::BTreeSet;

/// What to open.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Sizes wanted.
    pub ask: Ask,
    /// How long a drain waits for the sentinel before it destroys the QP, in nanoseconds.
    pub drain_limit_ns: u64,
    /// Bytes of the largest inline payload; `None` takes what the device grants.
    pub max_inline_data: Option<u32>,
    /// How often a message is tried again that found no receive at the peer; 7 = without end.
    pub rnr_retry: u8,
    /// Whether registrations of data let the device write out of order.
    pub relaxed_ordering: RelaxedOrdering,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        let rnr_retry = RtsAttrs::default().rnr_retry;
        OpenOptions {
            ask: Ask::default(),
            drain_limit_ns: 5_000_000_000,
            max_inline_data: None,
            rnr_retry,
            relaxed_ordering: RelaxedOrdering::default(),
        }
    }
}

impl<D: Device, S: MemReg> Transport<D, S> {
    /// Opens a transport: checks and sizes the strategy, makes PD, CQ, QP and message buffers,
    /// fills the pool.
    ///
    /// # Shape
    /// Ready afterwards. On error everything made on the way is gone again.
    /// # Errors
    /// [`OpenError`] with the reason, the numbers, or the verb.
    pub fn open(device: D, strategy: S, options: &OpenOptions) -> Result<Self, OpenError> {
        Self::open_with(device, None, strategy, options)
    }

    /// As [`open`](Transport::open), in a PD that others share.
    ///
    /// # Errors
    /// [`OpenError::SharedPd`] for a strategy whose keys are not bound to its connection.
    pub fn open_in(
        pd: &SharedPd<D>,
        strategy: S,
        options: &OpenOptions,
    ) -> Result<Self, OpenError> {
        Self::open_with(pd.device().clone(), Some(pd), strategy, options)
    }

    fn open_with(
        device: D,
        pd: Option<&SharedPd<D>>,
        mut strategy: S,
        options: &OpenOptions,
    ) -> Result<Self, OpenError> {
        let caps = device.caps();
        let name = strategy.name();
        let rejected = |source| OpenError::Rejected { name, device: device.name(), source };
        strategy.check(&caps).map_err(rejected)?;
        let sized = |source| OpenError::Size { name, device: device.name(), source };
        let limits = strategy.open(&caps, &options.ask).map_err(sized)?;
        check_limits(&limits, &options.ask).map_err(|what| OpenError::BadLimits { name, what })?;
        check_messages(&caps, &options.ask, &limits).map_err(sized)?;
        let ordering = options.relaxed_ordering.plan(&caps);
        let ordering =
            ordering.map_err(|why| OpenError::Ordering { device: device.name(), why })?;
        if let Some(note) = ordering.note {
            tracing::info!(device = device.name(), "device.relaxed_ordering: {note}");
        }
        let broke = |source| OpenError::Device { name, source };

        let domain = match pd {
            None => Arc::new(Domain::open(device).map_err(broke)?),
            Some(pd) => match shared_pd::refusal(caps.transport, &limits) {
                None if pd.domain.agrees(ordering.relaxed) => Arc::clone(&pd.domain),
                None => return Err(OpenError::SharedPd { name, why: OTHER_ORDERING }),
                Some(why) => return Err(OpenError::SharedPd { name, why }),
            },
        };
        let (cq, _) = domain.device.create_cq(limits.cq_entries).map_err(broke)?;
        let mut eng = Engine::new(domain, pd.is_some(), caps, limits, cq);
        if ordering.relaxed {
            eng.ordering = Access::RELAXED_ORDERING;
        }
        // From here on, `Drop` undoes what was made.
        let mut t = Transport {
            eng,
            strategy,
            messages: Messages::default(),
            state: State::Down(DownCause::Local),
            peer: None,
            batch: WrBatch::new(),
            drain_until: None,
            drain_forced: false,
            cause: None,
            poisoned: None,
            sentinel_seen: false,
            cq_doubtful: false,
            ports_down: BTreeSet::new(),
            drain_limit_ns: options.drain_limit_ns,
            rnr_retry: options.rnr_retry,
            ask_inline: 0,
            wcs: Vec::with_capacity(64),
            shapes: vec![],
            gave_up: None,
        };
        t.first_qp(name, options.max_inline_data)?;
        if t.eng.limits.arena_bytes > 0 {
            for grant in [Grant::PeerReads, Grant::PeerWrites] {
                let len = t.eng.limits.arena_bytes;
                let arena = Arena::open(&t.eng, grant, len).map_err(broke)?;
                t.eng.arenas.push(arena);
            }
        }
        t.messages = Messages::open(&mut t.eng, options.ask.max_message_bytes)?;
        t.ready().map_err(broke)?;
        tracing::info!(
            strategy = name,
            device = t.eng.device.name(),
            credits = t.eng.limits.credits,
            max_send_wr = t.eng.limits.max_send_wr,
            "transport opened"
        );
        Ok(t)
    }

    /// QP → INIT, message slots anew, and the pool filled.
    fn ready(&mut self) -> Result<(), DeviceError> {
        let Some(qp) = self.eng.qp else { return Ok(()) };
        self.eng.device.qp_to_init(qp)?;
        self.messages.reset(&mut self.eng);
        let want = self.eng.limits.regions_per_request as usize;
        let mut ctl = Ctl::new(&mut self.eng, Scope::Pool);
        // Windows can be rebuilt only now; for the rest there is nothing left to do.
        self.strategy.recover(&mut ctl, usize::MAX)?;
        self.strategy.fill(&mut ctl, want)?;
        self.state = State::Ready;
        Ok(())
    }

    /// How the peer addresses this side. Exchange it with the peer's by any channel.
    ///
    /// # Errors
    /// [`ConnectError::Misuse`] when there is no QP: reconnect first.
    pub fn endpoint(&self) -> Result<Endpoint, ConnectError> {
        let needs = ApiMisuse::WrongState { call: "endpoint", needs: "ready or up" };
        let qp = self.eng.qp.ok_or(needs)?;
        Ok(Endpoint { epoch: self.eng.epoch, ..self.eng.device.endpoint(qp)? })
    }

    /// Connects to the peer. Receives are posted before the QP can send (H-52).
    ///
    /// # Shape
    /// Ready → Up. On error the connection goes down as if it had failed later.
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(&mut self, peer: Endpoint) -> Result<(), ConnectError> {
        self.connect_by(peer, |device, qp, attrs| device.qp_to_rts(qp, peer, attrs))
    }

    /// As [`connect`](Transport::connect), where something else than an endpoint's address takes
    /// the QP to RTS.
    pub(crate) fn connect_by(
        &mut self,
        peer: Endpoint,
        to_rts: impl FnOnce(&D, QpId, RtsAttrs) -> Result<(), DeviceError>,
    ) -> Result<(), ConnectError> {
        let (State::Ready, Some(qp)) = (&self.state, self.eng.qp) else {
            return Err(ApiMisuse::WrongState { call: "connect", needs: "ready" }.into());
        };
        if let Err(e) = self.messages.post_all(&mut self.eng) {
            self.poison(DownCause::Post(e));
            return Err(e.into());
        }
        let attrs = RtsAttrs { rnr_retry: self.rnr_retry };
        if let Err(e) = to_rts(&self.eng.device, qp, attrs) {
            self.poison(DownCause::Device(e));
            return Err(e.into());
        }
        self.peer = Some(peer);
        self.state = State::Up;
        tracing::info!(qp = qp.0, epoch = self.eng.epoch.0, "connected");
        Ok(())
    }

    /// Starts taking the connection down; `poll` finishes it.
    ///
    /// # Shape
    /// Ready or Up → Draining; a no-op in the other states.
    pub fn disconnect(&mut self) {
        self.poison(DownCause::Local);
        self.deliver();
    }

    /// Makes a new QP for a new epoch. Every key of the last one is dead: a PD gets no new QP
    /// before (rule 4).
    ///
    /// # Shape
    /// Down → Ready. Fenced exposures stay reclaimable; handles of the last epoch never reach the
    /// new one.
    /// # Errors
    /// [`ConnectError::KeysNotDead`] while the device refuses to destroy a key: `recover`, then try
    /// again.
    pub fn reconnect(&mut self) -> Result<(), ConnectError> {
        if !matches!(self.state, State::Down(_)) {
            return Err(ApiMisuse::WrongState { call: "reconnect", needs: "down" }.into());
        }
        let recovered = self.recover(usize::MAX);
        let count = self.open_keys();
        if count > 0 || self.eng.qp.is_some() {
            return Err(ConnectError::KeysNotDead { count });
        }
        recovered?;
        self.renew_cq()?;
        let mut arenas = std::mem::take(&mut self.eng.arenas);
        let registered = arenas.iter_mut().try_for_each(|a| a.register(&self.eng));
        self.eng.arenas = arenas;
        registered?;
        self.peer = None;
        self.cause = None;
        self.sentinel_seen = false;
        // What happened while there was no QP was told to nobody.
        self.ports_down.clear();
        if let Err(e) = self.new_qp().and_then(|()| self.ready()) {
            // Windows first: they belong to this QP.
            self.destroy_windows();
            self.destroy_qp();
            if self.eng.qp.is_none() {
                self.bury_windows();
            }
            self.deliver();
            return Err(e.into());
        }
        self.deliver();
        Ok(())
    }

    /// A CQ that has overrun gives nothing more on some devices, and one that never gave the
    /// sentinel may be such a one. There is no QP on it now.
    fn renew_cq(&mut self) -> Result<(), DeviceError> {
        if self.cq_doubtful {
            let (new, _) = self.eng.device.create_cq(self.eng.limits.cq_entries)?;
            self.eng.strays.push(Stray::Cq(std::mem::replace(&mut self.eng.cq, new)));
            self.eng.end_strays();
            self.cq_doubtful = false;
        }
        Ok(())
    }

    /// Rebuilds at most `budget` condemned regions, and tries again to destroy keys that the device
    /// held on to.
    ///
    /// # Errors
    /// The device's first error; what was done stays done.
    /// # Cost
    /// One or two verbs a region.
    pub fn recover(&mut self, budget: usize) -> Result<usize, DeviceError> {
        if matches!(self.state, State::Down(_)) {
            // A `reconnect` that failed may have left both; windows first.
            self.destroy_windows();
            self.destroy_qp();
            if self.eng.qp.is_none() {
                self.bury_windows();
                self.destroy_keys();
            }
        }
        self.deliver();
        if self.eng.qp.is_none() && self.eng.limits.key_scope == KeyScope::Qp {
            // Windows are made after their QP: `reconnect` rebuilds them.
            return Ok(0);
        }
        let mut ctl = Ctl::new(&mut self.eng, Scope::Pool);
        let budget = if mutant!("D-12") { usize::MAX } else { budget };
        let done = self.strategy.recover(&mut ctl, budget);
        self.deliver();
        done
    }

    /// Keys of the last epoch that are not proven dead.
    pub(super) fn open_keys(&self) -> usize {
        let live = |r: &crate::engine::keys::Region| r.state != KeyState::Dead;
        let regions = self.eng.keys.ids().filter_map(|id| self.eng.keys.get(id));
        let arenas = self.eng.arenas.iter().filter(|a| !a.is_closed()).count();
        regions.filter(|r| live(r)).count() + arenas + self.eng.open_sinks()
    }
}

/// A plugin's sizes must at least hold one SEND and the sentinel.
fn check_limits(l: &Limits, ask: &Ask) -> Result<(), &'static str> {
    if l.arena_bytes > 0 && !ask.danger_trust_peer {
        return Err("arena_bytes without the user's danger_trust_peer");
    }
    if l.max_send_wr < 2 {
        return Err("max_send_wr is below 2");
    }
    if l.max_recv_wr < 1 || l.credits < 1 {
        return Err("max_recv_wr or credits is zero");
    }
    if u64::from(l.cq_entries) < u64::from(l.max_send_wr) + u64::from(l.max_recv_wr) {
        return Err("cq_entries is below max_send_wr + max_recv_wr");
    }
    if l.max_payload_bytes == 0 || l.wr_per_request == 0 || l.wr_per_request >= l.max_send_wr {
        return Err(
            "max_payload_bytes or wr_per_request is zero, or one operation fills the queue",
        );
    }
    Ok(())
}

impl<D: Device, S: MemReg> Drop for Transport<D, S> {
    /// Destroys the QP and every key without waiting, then returns the memory. What the device will
    /// not destroy is leaked: the memory stays mapped for the life of the process.
    fn drop(&mut self) {
        if let Some(qp) = self.eng.qp {
            let _ = self.eng.device.qp_to_err(qp);
        }
        self.destroy_windows();
        self.destroy_qp();
        let qp_gone = self.eng.qp.is_none();
        if qp_gone {
            self.settle_ring();
            self.bury_windows();
        }
        self.destroy_keys();
        self.leak_what_is_open();
        self.messages.close(&mut self.eng, qp_gone);
        for region in self.eng.keys.ids().collect::<Vec<_>>() {
            let _ = self.eng.end_region(region);
        }
        self.eng.end_strays();
        for arena in std::mem::take(&mut self.eng.arenas) {
            self.eng.stats.bytes_leaked += arena.close(&mut self.eng, qp_gone);
        }
        let _ = self.eng.device.destroy_cq(self.eng.cq);
        let bytes = self.eng.stats.bytes_leaked;
        if bytes > 0 {
            tracing::error!(bytes, "the device did not let go of memory; it stays mapped");
        }
    }
}
