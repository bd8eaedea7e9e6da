//! Leases: exposures that end by themselves.

use super::error::{BufferError, Refusal};
use super::{State, Transport};
use crate::device::Device;
use crate::engine::buffers::Buffers;
use crate::engine::exposure::{Exposed, ExposureId, ExposureState};
use crate::error::ApiMisuse;
use crate::memreg::MemReg;
use crate::types::{Grant, Tick};

impl<D: Device, S: MemReg> Transport<D, S> {
    /// As [`expose`](Transport::expose), and `poll` takes the access back once `until` has passed.
    ///
    /// # Shape
    /// When it ends, the exposure is revoked, or cancelled if a reply may still invalidate one of
    /// its keys (rule 5); the handle stays valid and `reclaim` returns the bytes.
    /// # Errors
    /// As `expose`.
    pub fn expose_until(
        &mut self,
        buffers: impl Into<Buffers>,
        grant: Grant,
        until: Tick,
    ) -> Result<Exposed, BufferError> {
        let exposed = self.expose(buffers, grant)?;
        self.set_lease(exposed.id, Some(until));
        Ok(exposed)
    }

    /// Moves the end of an exposure, or gives it one, or (with `None`) takes it away.
    ///
    /// # Errors
    /// [`Refusal::LeaseOver`] if the access is being taken back already.
    pub fn renew(&mut self, exposed: &Exposed, until: Option<Tick>) -> Result<(), Refusal> {
        if exposed.transport != self.eng.id {
            return Err(Refusal::Misuse(ApiMisuse::ForeignHandle));
        }
        let state = self.eng.slots.exposures.get(exposed.id).map(|e| e.state);
        if !matches!(state, Some(ExposureState::Staged | ExposureState::Exposed)) {
            return Err(Refusal::LeaseOver);
        }
        self.set_lease(exposed.id, until);
        Ok(())
    }

    fn set_lease(&mut self, id: ExposureId, until: Option<Tick>) {
        if let Some(e) = self.eng.slots.exposures.get_mut(id) {
            e.lease = until;
        }
        if let Some(t) = until {
            self.eng.next_lease = Some(self.eng.next_lease.map_or(t, |n| n.min(t)));
        }
    }

    /// Called by `poll`: takes back what was exposed longer than asked.
    #[inline]
    pub(super) fn end_leases(&mut self) {
        let now = self.eng.keys.ledger.now;
        if self.eng.next_lease.is_some_and(|t| t <= now) && self.state == State::Up {
            self.end_leases_until(now);
        }
    }

    #[cold]
    fn end_leases_until(&mut self, now: Tick) {
        let held = |s: ExposureState| matches!(s, ExposureState::Staged | ExposureState::Exposed);
        let over: Vec<ExposureId> = self
            .eng
            .slots
            .exposures
            .iter()
            .filter(|(_, e)| held(e.state) && e.lease.is_some_and(|t| t <= now))
            .map(|(id, _)| id)
            .collect();
        for id in over {
            // Taking the one before back has failed: now the drain fences them.
            if self.state != State::Up {
                break;
            }
            self.eng.stats.leases_expired += 1;
            self.take_back(id);
        }
        let left = self.eng.slots.exposures.values().filter(|e| held(e.state));
        self.eng.next_lease = left.filter_map(|e| e.lease).min();
    }
}
