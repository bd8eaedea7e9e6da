//! The strategy of the small world: `frwr` on queues of four.

use memreg_core::device::{Caps, DeviceError};
use memreg_core::memreg::{
    Control, Event, MapError, MemReg, Poison, RegionId, Reject, SegList, WrBatch,
};
use memreg_core::sizing::{Ask, Limits, SizeError};
use memreg_strategies::Frwr;

/// `frwr` on queues of four.
pub struct Small(pub Frwr);

impl MemReg for Small {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn check(&self, caps: &Caps) -> Result<(), Reject> {
        self.0.check(caps)
    }

    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
        let limits = self.0.open(caps, ask)?;
        Ok(Limits {
            regions_per_request: 1,
            wr_per_request: 3,
            credits: 1,
            max_send_wr: 4,
            max_recv_wr: 2,
            cq_entries: 6,
            ..limits
        })
    }

    fn fill(&mut self, ctl: &mut dyn Control, regions: usize) -> Result<(), DeviceError> {
        // Both regions exist from the start, so that every connection has both.
        self.0.fill(ctl, regions.max(2))
    }

    fn map(
        &mut self,
        ctl: &mut dyn Control,
        segs: &SegList<'_>,
        out: &mut WrBatch,
    ) -> Result<(), MapError> {
        self.0.map(ctl, segs, out)
    }

    fn unmap(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        out: &mut WrBatch,
    ) -> Result<(), Poison> {
        self.0.unmap(ctl, live, out)
    }

    fn on_event(&mut self, region: RegionId, event: Event) -> Result<(), Poison> {
        self.0.on_event(region, event)
    }

    fn on_events(&mut self, regions: &[RegionId], event: Event) -> Result<(), Poison> {
        self.0.on_events(regions, event)
    }

    fn recover(&mut self, ctl: &mut dyn Control, budget: usize) -> Result<usize, DeviceError> {
        self.0.recover(ctl, budget)
    }

    fn on_drained(&mut self) {
        self.0.on_drained();
    }
}
