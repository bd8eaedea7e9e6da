//! The kit on a strategy that speaks of many regions at once, and on ones that do so wrongly.

use memreg_conformance::{Outcome, Report, Subject, run};
use memreg_core::device::{Caps, DeviceError, FastMrKind};
use memreg_core::memreg::{
    Control, Event, MAX_REGIONS, MapError, MemReg, Poison, RegionId, Reject, SegList, WrBatch,
};
use memreg_core::sizing::{self, Ask, KeyScope, Limits, PerRequest, SizeError};
use std::collections::VecDeque;

/// What is wrong with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flaw {
    None,
    /// Names a region less than there are segments.
    OneTooFew,
    /// Takes all regions of an exposure back by one wish although it has ended one of them itself.
    EndsOneAndAll,
    /// Hears of the first of several only.
    HearsTheFirst,
}

/// One page-list region on each segment.
struct ByEach {
    flaw: Flaw,
    depth: u32,
    most: usize,
    idle: VecDeque<RegionId>,
    out: Vec<RegionId>,
    condemned: Vec<RegionId>,
}

impl ByEach {
    fn new(flaw: Flaw) -> ByEach {
        let (idle, out, condemned) = Default::default();
        ByEach { flaw, depth: 0, most: 0, idle, out, condemned }
    }

    fn make(&mut self, ctl: &mut dyn Control, idle: usize) -> Result<(), DeviceError> {
        let others = self.out.len() + self.condemned.len();
        while self.idle.len() < idle && others + self.idle.len() < self.most {
            self.idle.push_back(ctl.alloc_region(self.depth, FastMrKind::Pages)?);
        }
        Ok(())
    }
}

impl MemReg for ByEach {
    fn name(&self) -> &'static str {
        "by-each"
    }

    fn check(&self, caps: &Caps) -> Result<(), Reject> {
        if caps.max_fast_reg_page_list_len == 0 {
            return Err(Reject::Missing("page lists"));
        }
        Ok(())
    }

    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
        let depth = caps.max_fast_reg_page_list_len;
        // Any first byte, so one page less than the list has.
        let reach = u64::from(depth.saturating_sub(1).max(1)) * u64::from(caps.page_size);
        let payload_bytes = ask.max_payload_bytes.min(reach);
        let per = PerRequest { page_list_depth: depth, regions: 4, wr: 9, payload_bytes };
        let mut limits = sizing::queues(caps, ask, per, KeyScope::Pd)?;
        (limits.remote_invalidation, limits.max_payload_bytes) = (true, payload_bytes);
        let in_flight = (limits.credits * limits.regions_per_request) as usize;
        (self.depth, self.most) = (depth, in_flight.max(MAX_REGIONS));
        Ok(limits)
    }

    fn fill(&mut self, ctl: &mut dyn Control, regions: usize) -> Result<(), DeviceError> {
        self.make(ctl, regions)
    }

    fn map(
        &mut self,
        ctl: &mut dyn Control,
        segs: &SegList<'_>,
        out: &mut WrBatch,
    ) -> Result<(), MapError> {
        let count = segs.segs().len();
        if count > MAX_REGIONS {
            return Err(MapError::TooManyRegions);
        }
        let made = self.make(ctl, count);
        if self.idle.len() < count {
            let (condemned, busy) = (self.condemned.len(), self.out.len());
            return Err(match made {
                Err(e) if busy + condemned == 0 => e.into(),
                _ => MapError::NoRegion { condemned, busy },
            });
        }
        let spared = usize::from(self.flaw == Flaw::OneTooFew && count > 1);
        let regions: Vec<_> = self.idle.drain(..count - spared).collect();
        out.register_each(&regions)?;
        self.out.extend(regions);
        Ok(())
    }

    fn unmap(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        out: &mut WrBatch,
    ) -> Result<(), Poison> {
        if self.flaw == Flaw::EndsOneAndAll
            && let [first, _, ..] = live
        {
            ctl.dereg(*first).map_err(|_| Poison("a region did not end"))?;
        }
        out.invalidate_all().map_err(|_| Poison("the batch was not empty"))
    }

    fn on_event(&mut self, region: RegionId, event: Event) -> Result<(), Poison> {
        let list = match event {
            Event::Registered => return Ok(()),
            Event::RegUnknown | Event::InvUnknown => &mut self.condemned,
            _ if self.out.contains(&region) => {
                self.idle.push_back(region);
                &mut vec![]
            }
            _ => return Ok(()),
        };
        if !list.contains(&region) {
            list.push(region);
        }
        self.out.retain(|&r| r != region);
        self.idle.retain(|r| !self.condemned.contains(r));
        Ok(())
    }

    fn on_events(&mut self, regions: &[RegionId], event: Event) -> Result<(), Poison> {
        let heard = if self.flaw == Flaw::HearsTheFirst { 1 } else { regions.len() };
        regions.iter().take(heard).try_for_each(|&region| self.on_event(region, event))
    }

    fn recover(&mut self, ctl: &mut dyn Control, budget: usize) -> Result<usize, DeviceError> {
        let mut rebuilt = 0;
        while rebuilt < budget && !self.condemned.is_empty() {
            self.condemned.rotate_left(1);
            let Some(&region) = self.condemned.last() else { break };
            ctl.dereg(region)?;
            self.condemned.pop();
            self.make(ctl, self.idle.len() + 1)?;
            rebuilt += 1;
        }
        Ok(rebuilt)
    }

    fn on_drained(&mut self) {
        self.condemned.append(&mut self.out);
    }
}

fn report(flaw: Flaw) -> Report {
    run(&Subject::new(format!("{flaw:?}"), Caps::default(), move || ByEach::new(flaw)))
}

fn failed(report: &Report, check: &str) -> bool {
    let of =
        |(name, outcome): &(_, Outcome)| *name == check && matches!(outcome, Outcome::Failed(_));
    report.results.iter().any(of)
}

#[test]
fn a_strategy_that_speaks_of_many_at_once_passes() {
    let subject = Subject::new("by-each", Caps::default(), || ByEach::new(Flaw::None));
    memreg_conformance::assert_passes(&subject);
}

#[test]
fn a_segment_left_out_is_found() {
    let r = report(Flaw::OneTooFew);
    assert!(failed(&r, "map_21_segments_are_in_order"), "{r}");
}

#[test]
fn a_region_ended_and_revoked_is_found() {
    let r = report(Flaw::EndsOneAndAll);
    assert!(failed(&r, "uns_01_h_12_bytes_return_only_after_the_fence"), "{r}");
}

#[test]
fn events_not_heard_are_found() {
    let r = report(Flaw::HearsTheFirst);
    assert!(failed(&r, "h_16_h_48_pool_exhaustion_is_retry"), "{r}");
}
