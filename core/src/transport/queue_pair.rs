//! Making the QP: what was planned, or the next best that the device really takes.
//!
//! A device refuses a QP with one bare `EINVAL`, whichever field was too much; what it really takes
//! depends on SGEs and inline bytes, and only trying tells (B35, B36).

use super::Transport;
use super::error::OpenError;
use crate::device::{Device, DeviceError, QpCaps, errno};
use crate::engine::ledger::LedgerEvent;
use crate::engine::ring::SendRing;
use crate::memreg::MemReg;
use crate::sizing::step_down;
use crate::types::Epoch;

impl<D: Device, S: MemReg> Transport<D, S> {
    /// The first QP of a transport: gives up inline payloads, then queue depth, until one is made.
    ///
    /// # Errors
    /// [`OpenError::Inline`] if an inline size was named and is at fault; [`OpenError::Size`] if
    /// not even one operation fits.
    pub(super) fn first_qp(
        &mut self,
        name: &'static str,
        inline: Option<u32>,
    ) -> Result<(), OpenError> {
        let granted = self.eng.caps.max_inline_data;
        self.ask_inline = inline.unwrap_or(granted);
        loop {
            match self.new_qp() {
                Ok(()) => return Ok(()),
                Err(e) if !is_bare_einval(&e) => {
                    return Err(OpenError::Device { name, source: e });
                }
                Err(source) => {
                    if self.give_way(name, inline, source)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Asks for less after a refusal: without inline payloads (true: that made the QP), then for a
    /// shorter queue next time.
    fn give_way(
        &mut self,
        name: &'static str,
        inline: Option<u32>,
        source: DeviceError,
    ) -> Result<bool, OpenError> {
        let asked = std::mem::take(&mut self.ask_inline);
        if asked > 0 {
            match (self.new_qp(), inline) {
                (Ok(()), Some(_)) => {
                    let (ask, limits) = (self.qp_caps(asked), self.device_limits());
                    return Err(OpenError::Inline { name, ask, limits, source });
                }
                // No size was named: go on without inline payloads.
                (Ok(()), None) => return Ok(true),
                // Something else is too much: inline stays as asked.
                (Err(_), _) => self.ask_inline = asked,
            }
        }
        let device = self.eng.device.name();
        let smaller = step_down(&self.eng.limits);
        self.eng.limits = smaller.map_err(|source| OpenError::Size { name, device, source })?;
        Ok(false)
    }

    /// Makes the QP of the next epoch from a fresh copy of the attributes (H-51).
    pub(super) fn new_qp(&mut self) -> Result<(), DeviceError> {
        let ask = self.qp_caps(self.ask_inline);
        let eng = &mut self.eng;
        let made = eng.device.create_qp(eng.pd, eng.cq, ask);
        let (qp, got) = made.map_err(|e| DeviceError { queues: Some(ask), ..e })?;
        tracing::debug!(?ask, ?got, "queue pair made");
        eng.qp = Some(qp);
        eng.epoch = Epoch(eng.epoch.0.wrapping_add(1));
        // A device may grant more; what was planned is what is used.
        eng.ring = SendRing::new(got.max_send_wr.min(ask.max_send_wr), eng.epoch);
        eng.max_inline = got.max_inline_data;
        eng.keys.ledger.write(LedgerEvent::QpUp(qp, eng.epoch));
        Ok(())
    }

    fn qp_caps(&self, max_inline_data: u32) -> QpCaps {
        QpCaps {
            max_send_wr: self.eng.limits.max_send_wr,
            max_recv_wr: self.eng.limits.max_recv_wr,
            max_sge: self.eng.caps.max_sge,
            max_inline_data,
        }
    }

    fn device_limits(&self) -> QpCaps {
        let c = &self.eng.caps;
        QpCaps {
            max_send_wr: c.max_qp_wr,
            max_recv_wr: c.max_qp_wr,
            max_sge: c.max_sge,
            max_inline_data: c.max_inline_data,
        }
    }
}

/// The one answer of hardware to a QP of which some field is too much.
fn is_bare_einval(e: &DeviceError) -> bool {
    e.errno == errno::EINVAL && e.limit.is_none()
}
