//! The peer's strategy: it reads, writes and sends, and exposes nothing.

use memreg_core::device::{Caps, DeviceError};
use memreg_core::memreg::{
    Control, Event, MapError, MemReg, Poison, RegionId, Reject, SegList, WrBatch,
};
use memreg_core::sizing::{self, Ask, KeyScope, Limits, PerRequest, SizeError};

/// Never maps anything.
#[derive(Debug)]
pub(crate) struct Initiator;

impl MemReg for Initiator {
    fn name(&self) -> &'static str {
        "initiator"
    }

    fn check(&self, _: &Caps) -> Result<(), Reject> {
        Ok(())
    }

    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
        let payload_bytes = ask.max_payload_bytes;
        // Eight reads, writes and messages an operation, or what a short queue holds.
        let wr = caps.max_qp_wr.saturating_sub(ask.backchannel + 1).clamp(1, 8);
        let per = PerRequest { page_list_depth: 0, regions: 1, wr, payload_bytes };
        sizing::queues(caps, ask, per, KeyScope::Pd)
    }

    fn fill(&mut self, _: &mut dyn Control, _: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn map(
        &mut self,
        _: &mut dyn Control,
        _: &SegList<'_>,
        _: &mut WrBatch,
    ) -> Result<(), MapError> {
        Err(MapError::Other("the peer exposes nothing"))
    }

    fn unmap(
        &mut self,
        _: &mut dyn Control,
        _: &[RegionId],
        _: &mut WrBatch,
    ) -> Result<(), Poison> {
        Ok(())
    }

    fn on_event(&mut self, _: RegionId, _: Event) -> Result<(), Poison> {
        Ok(())
    }

    fn recover(&mut self, _: &mut dyn Control, _: usize) -> Result<usize, DeviceError> {
        Ok(0)
    }

    fn on_drained(&mut self) {}
}
