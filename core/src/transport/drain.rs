//! Poison: QP to ERR, drain, destroy every key, and only then give memory back.

use super::error::DownCause;
use super::{State, Transport};
use crate::device::{AsyncEvent, Device, WcError, WcStatus, WrOp};
use crate::engine::Stray;
use crate::engine::exposure::{ExposureId, ExposureState, LocalId};
use crate::engine::keys::{KeyState, RegionKind};
use crate::engine::ledger::{LedgerEvent, Rule};
use crate::engine::ring::RingOp;
use crate::engine::stage::empty_payload;
use crate::memreg::{Event, MemReg, RegionId};
use crate::mutants::mutant;
use crate::types::{Rkey, WrId};

impl<D: Device, S: MemReg> Transport<D, S> {
    /// Takes the connection down; idempotent. `poll` finishes the drain.
    pub(super) fn poison(&mut self, cause: DownCause) {
        let Some(qp) = self.eng.qp else { return };
        if !matches!(self.state, State::Ready | State::Up) {
            return;
        }
        if cause == DownCause::Local {
            tracing::info!(qp = qp.0, "disconnecting");
        } else {
            tracing::warn!(qp = qp.0, %cause, "connection poisoned");
            self.eng.stats.poisons += 1;
        }
        self.keep_poison(&cause);
        self.state = State::Draining;
        self.cause = Some(cause);
        (self.drain_until, self.drain_forced) = (None, false);
        while let Some(&id) = self.eng.staged.first() {
            self.eng.unstage(id);
        }
        // If the QP cannot be moved to ERR, the sentinel may never come: the limit ends that.
        if let Err(e) = self.eng.device.qp_to_err(qp) {
            tracing::warn!(error = %e, "QP not moved to ERR");
        }
        self.post_sentinel();
    }

    /// One signaled WR in the slot that is kept for it; everything posted before is out when it is
    /// flushed (rule 8). A write of no bytes: should the QP not be in error after all, the peer
    /// sees nothing of it, where a SEND would be a message.
    fn post_sentinel(&mut self) {
        let payload = empty_payload(&mut self.eng.chain);
        let (remote_addr, rkey) = (0, Rkey::from_bits(0));
        let write = WrOp::RdmaWrite { payload, remote_addr, rkey };
        self.eng.chain_wr(write, RingOp::Sentinel, true);
        if self.eng.post_chain().is_err() {
            // Rule 8: if that post fails, destroy the QP.
            self.force_drain();
        }
    }

    /// Goes on without the sentinel.
    fn force_drain(&mut self) {
        if !std::mem::replace(&mut self.drain_forced, true) {
            self.eng.stats.drains_forced += 1;
        }
        self.finish_drain();
    }

    /// Called by `poll` while draining: done, or past the limit?
    #[inline]
    pub(super) fn drive_drain(&mut self) {
        if self.state == State::Draining {
            self.drive();
        }
    }

    #[cold]
    fn drive(&mut self) {
        // The clock starts here: the moment known when it was poisoned may be long past.
        let now = self.eng.keys.ledger.now;
        let until = *self.drain_until.get_or_insert(now.after(self.drain_limit_ns));
        if self.sentinel_seen || mutant!("rule-8") {
            self.finish_drain();
        } else if self.drain_forced || self.eng.gone || now >= until {
            let outstanding = self.eng.ring.outstanding();
            tracing::warn!(outstanding, "not drained; destroying the QP");
            self.force_drain();
        }
    }

    /// No WR runs any more, or the QP is destroyed so that none can: keys next, then the bytes.
    fn finish_drain(&mut self) {
        self.hear_removal();
        // A bound window holds its QP, and a QP with bound windows may not go (spec §5.3, rule 8).
        self.destroy_windows();
        self.destroy_qp();
        if self.eng.qp.is_some() {
            // The QP is still there: nothing is proven. Everything stays, and `poll` tries again.
            return;
        }
        // Before the ring is settled, which counts the sentinel as seen.
        self.cq_doubtful |= !self.sentinel_seen;
        self.settle_ring();
        self.bury_windows();
        self.destroy_keys();
        self.strategy_drained();
        let cause = self.cause.take().unwrap_or(DownCause::Local);
        let cause = if self.eng.gone { DownCause::DeviceGone } else { cause };
        tracing::info!(%cause, open_keys = self.open_keys(), "connection down");
        self.keep_poison(&cause);
        self.state = State::Down(cause);
    }

    /// Ends every window, free ones too: none may be bound on another QP than the one it was made
    /// after.
    pub(super) fn destroy_windows(&mut self) {
        for (region, state) in self.windows() {
            let ended = match state {
                KeyState::Unknown => self.eng.end_region(region),
                KeyState::Invalidating => self.eng.end_region_and_tell(region, Event::InvUnknown),
                _ => self.eng.end_region_and_tell(region, Event::RegUnknown),
            };
            if let Err(e) = ended {
                tracing::error!(error = %e, "a window is not deallocated; its QP must go first");
            }
        }
    }

    /// Windows that would not be deallocated: their keys died with the QP (rule 2). The objects
    /// wait for the next try.
    pub(super) fn bury_windows(&mut self) {
        for (region, state) in self.windows() {
            if let Some(RegionKind::Window { mw }) = self.eng.keys.get(region).map(|r| r.kind) {
                self.eng.strays.push(Stray::Window(mw));
            }
            self.eng.closed(region, Rule::QpDestroyed);
            self.eng.keys.remove(region);
            if state != KeyState::Unknown {
                self.eng.events.push(region, Event::RegUnknown);
            }
        }
    }

    fn windows(&self) -> Vec<(RegionId, KeyState)> {
        let of = |id| self.eng.keys.get(id).map(|r| (id, r.kind, r.state));
        let all = self.eng.keys.ids().filter_map(of);
        all.filter(|(_, k, _)| matches!(k, RegionKind::Window { .. }))
            .map(|(id, _, s)| (id, s))
            .collect()
    }

    fn strategy_drained(&mut self) {
        self.deliver();
        self.strategy.on_drained();
    }

    /// Events of a QP go with it: the device's removal must be heard before, or no release on it
    /// would ever count; and that its CQ has overrun, for the next QP would be on it.
    fn hear_removal(&mut self) {
        while let Some(qp) = self.eng.qp
            && let Some(event) = self.eng.device.next_event(qp)
        {
            self.eng.gone |= event == AsyncEvent::DeviceFatal;
            self.cq_doubtful |= matches!(event, AsyncEvent::CqOverrun(_));
        }
    }

    /// Destroys the QP; `eng.qp` is `None` if and only if that succeeded.
    pub(super) fn destroy_qp(&mut self) {
        self.hear_removal();
        if let Some(qp) = self.eng.qp {
            let destroyed = self.eng.device.destroy_qp(qp);
            match self.eng.released(destroyed) {
                Ok(()) => {
                    self.eng.qp = None;
                    self.eng.keys.ledger.write(LedgerEvent::QpDestroyed(qp));
                }
                Err(e) => {
                    tracing::error!(qp = qp.0, error = %e, "QP not destroyed; memory is kept")
                }
            }
        }
    }

    /// The QP is gone: WRs whose completion never came are unknown, and reads and writes have
    /// ended.
    pub(super) fn settle_ring(&mut self) {
        while let Some(op) = self.eng.ring.retire_front() {
            self.failed(op, None);
        }
        let running: Vec<LocalId> =
            self.eng.slots.locals.iter().filter(|(_, l)| !l.done).map(|(id, _)| id).collect();
        let never_heard = self.never_heard();
        for id in running {
            if let Some(op) = self.eng.slots.locals.get_mut(id) {
                op.failed = op.failed.or(Some(never_heard));
            }
            self.eng.finish_local(id);
        }
    }

    /// Destroys every key that is not proven dead (rules 3 and 4); exposures are fenced by that.
    pub(super) fn destroy_keys(&mut self) {
        self.eng.end_strays();
        let open: Vec<(RegionId, KeyState)> = self
            .eng
            .keys
            .ids()
            .filter_map(|id| self.eng.keys.get(id).map(|r| (id, r.state)))
            .filter(|(_, s)| *s != KeyState::Dead)
            .collect();
        for (region, state) in open {
            if mutant!("rule-4") {
                self.eng.closed(region, Rule::QpDestroyed);
                continue;
            }
            let ended = match state {
                // The strategy heard when the WR was flushed.
                KeyState::Unknown => self.eng.end_region(region),
                KeyState::Invalidating => self.eng.end_region_and_tell(region, Event::InvUnknown),
                _ => self.eng.end_region_and_tell(region, Event::RegUnknown),
            };
            if let Err(e) = ended {
                tracing::error!(error = %e, "a key is not destroyed; its bytes are kept");
            }
        }
        let mut arenas = std::mem::take(&mut self.eng.arenas);
        for arena in &mut arenas {
            if let Err(e) = arena.deregister(&mut self.eng) {
                tracing::error!(error = %e, "a bounce arena's key is not destroyed");
            }
        }
        self.eng.arenas = arenas;
        self.eng.stats.regions_leaked_now = self.open_keys() as u64;
    }

    /// A WR was flushed, failed, or never heard of again.
    pub(super) fn failed(&mut self, op: RingOp, wc: Option<WcError>) {
        match op {
            RingOp::Reg(id, k) => self.key_unknown(id, k, Event::RegUnknown),
            RingOp::Inv(id, k) if mutant!("rule-3") => {
                if let Some(region) = self.eng.slots.region(id, k) {
                    self.eng.closed(region, Rule::LocalInv);
                }
            }
            RingOp::Inv(id, k) => self.key_unknown(id, k, Event::InvUnknown),
            RingOp::Send(slot) => self.eng.send_slots.extend(slot),
            RingOp::Local(id, _) => self.local_retired(id, Some(wc.unwrap_or(self.never_heard()))),
            RingOp::Sentinel => self.sentinel_seen = true,
        }
    }

    /// Rule 3: a key whose WR did not succeed stays live until its MR is gone; a completion for an
    /// earlier exposure of the region says nothing about this one.
    fn key_unknown(&mut self, of: ExposureId, k: u32, event: Event) {
        let Some(region) = self.eng.slots.region(of, k) else { return };
        let current = self.eng.keys.get(region).is_some_and(|r| {
            r.exposure() == Some(of) && matches!(r.state, KeyState::Live | KeyState::Invalidating)
        });
        if current {
            self.eng.keys.unknown(region);
            self.eng.events.push(region, event);
        }
    }

    pub(super) fn never_heard(&self) -> WcError {
        let qp = self.eng.qp.unwrap_or(crate::types::QpId(0));
        WcError { wr_id: WrId(0), status: WcStatus::WrFlushErr, qp, vendor_err: 0 }
    }

    /// At the very end: whatever still has a live key keeps its memory for ever.
    pub(super) fn leak_what_is_open(&mut self) {
        let open: Vec<_> = self
            .eng
            .slots
            .exposures
            .iter()
            .filter(|(_, e)| !matches!(e.state, ExposureState::Fenced | ExposureState::Held))
            .map(|(id, _)| id)
            .collect();
        for id in open {
            if let Some(body) = self.eng.slots.exposures.remove(id) {
                let bytes: u64 = body.lent.iter().map(|p| p.bytes.len() as u64).sum();
                tracing::error!(bytes, "an exposure is leaked: its keys could not be destroyed");
                self.eng.stats.bytes_leaked += bytes;
                std::mem::forget(body);
            }
        }
        if self.eng.qp.is_some() {
            let ids: Vec<_> = self.eng.slots.locals.keys().collect();
            for id in ids {
                if let Some(body) = self.eng.slots.locals.remove(id) {
                    let bytes = body.lent.iter().map(|p| p.bytes.len() as u64);
                    self.eng.stats.bytes_leaked += bytes.sum::<u64>();
                    std::mem::forget(body);
                }
            }
        }
    }
}
