//! The kit on strategies that are wrong in one way each: it says so, and survives.

use memreg_conformance::{Outcome, Report, Subject, names, run};
use memreg_core::device::{Caps, DeviceError};
use memreg_core::memreg::{
    Control, Event, MAX_REGIONS, MapError, MemReg, Poison, RegionId, Reject, SegList, WrBatch,
};
use memreg_core::sizing::{self, Ask, KeyScope, Limits, PerRequest, SizeError};
use std::ops::Range;

/// What is wrong with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flaw {
    None,
    /// Registers the last byte of a list on its own, and takes the others back only.
    LeavesOneLive,
    /// Covers all but the last byte.
    StopsShort,
    /// Panics in `unmap`.
    Panics,
    /// Says that the peer may invalidate its keys, which are of ordinary MRs.
    OffersRemoteInvalidation,
    /// Accepts any number of parts until the batch is full, and then gives up half-way.
    ForgetsTheLimit,
}

/// Registers each part of a list by verb.
struct ByVerb(Flaw);

impl MemReg for ByVerb {
    fn name(&self) -> &'static str {
        "by-verb"
    }

    fn check(&self, _: &Caps) -> Result<(), Reject> {
        Ok(())
    }

    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
        let per = PerRequest {
            page_list_depth: 0,
            regions: MAX_REGIONS as u32,
            wr: 1,
            payload_bytes: ask.max_payload_bytes,
        };
        let mut limits = sizing::queues(caps, ask, per, KeyScope::Pd)?;
        limits.remote_invalidation = self.0 == Flaw::OffersRemoteInvalidation;
        Ok(limits)
    }

    fn fill(&mut self, _: &mut dyn Control, _: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn map(
        &mut self,
        ctl: &mut dyn Control,
        segs: &SegList<'_>,
        _: &mut WrBatch,
    ) -> Result<(), MapError> {
        let mut parts: Vec<Range<u64>> = vec![];
        for seg in segs.segs() {
            let start = parts.last().map_or(0, |p| p.end);
            parts.push(start..start + seg.len);
        }
        if parts.len() > MAX_REGIONS && self.0 != Flaw::ForgetsTheLimit {
            return Err(MapError::TooManyRegions);
        }
        if self.0 == Flaw::StopsShort
            && let Some(last) = parts.last_mut()
            && last.end - last.start > 1
        {
            last.end -= 1;
        }
        for part in parts {
            ctl.reg_mr(part)?;
        }
        Ok(())
    }

    fn unmap(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        _: &mut WrBatch,
    ) -> Result<(), Poison> {
        assert_ne!(self.0, Flaw::Panics, "a flaw");
        let spared = usize::from(self.0 == Flaw::LeavesOneLive && live.len() > 1);
        for &region in &live[spared..] {
            ctl.dereg(region).map_err(|_| Poison("a region did not end"))?;
        }
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

fn report(flaw: Flaw) -> Report {
    run(&Subject::new(format!("{flaw:?}"), Caps::default(), move || ByVerb(flaw)))
}

fn failure(report: &Report, check: &str) -> Option<String> {
    let (_, outcome) = report.results.iter().find(|(name, _)| *name == check)?;
    match outcome {
        Outcome::Failed(what) => Some(what.clone()),
        _ => None,
    }
}

#[test]
fn a_sound_strategy_of_another_crate_passes() {
    let caps = Caps::default();
    let subject = Subject::new("by-verb on generic", caps, || ByVerb(Flaw::None));
    memreg_conformance::assert_passes(&subject);
}

#[test]
fn a_key_left_live_is_found() {
    let r = report(Flaw::LeavesOneLive);
    assert!(failure(&r, "uns_01_h_12_bytes_return_only_after_the_fence").is_some(), "{r}");
}

#[test]
fn bytes_left_out_are_found() {
    let r = report(Flaw::StopsShort);
    assert!(failure(&r, "m_02_normal_cycle").is_some(), "{r}");
}

#[test]
fn a_panic_is_a_failure_of_its_check() {
    let r = report(Flaw::Panics);
    let what = failure(&r, "m_02_normal_cycle").expect("it panics there");
    assert!(what.contains("panicked") && what.contains("a flaw"), "{what}");
    assert_eq!(r.results.len(), names().len(), "the others have run all the same");
}

#[test]
fn a_capability_that_is_not_there_is_found() {
    let r = report(Flaw::OffersRemoteInvalidation);
    assert!(failure(&r, "uns_05_nothing_to_invalidate_posts_nothing").is_some(), "{r}");
}

#[test]
fn a_list_given_up_half_way_is_found() {
    let r = report(Flaw::ForgetsTheLimit);
    assert!(failure(&r, "d_08_too_many_regions_grants_nothing").is_some(), "{r}");
}

#[test]
fn every_check_has_its_own_name_and_a_skip_its_reason() {
    let mut all = names();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), names().len());
    for (name, outcome) in report(Flaw::None).results {
        if let Outcome::Skipped(why) = outcome {
            assert!(why.contains("limits.") || why.contains("caps."), "{name}: {why}");
        }
    }
}
