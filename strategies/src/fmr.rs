//! `fmr`: an ordinary registration per operation, ended before the bytes come back.
//!
//! Works wherever memory can be registered at all: it looks neither at `max_fmr` nor at `max_mw`
//! (B16, B23). A key exists exactly as long as its exposure; none is kept for later, so an idle
//! buffer has no remote key.

use crate::shape::check_lengths;
use memreg_core::device::{Caps, DeviceError};
use memreg_core::memreg::{
    Control, Event, MAX_REGIONS, MapError, MemReg, Poison, RegionId, Reject, SegList, WrBatch,
};
use memreg_core::sizing::{self, Ask, Clamp, KeyScope, Limits, PerRequest, SizeError};
use std::ops::Range;

/// Registers by verb; see the module.
///
/// # Cost
/// One system call per segment to grant and one to revoke, no WR.
#[derive(Debug, Default)]
pub struct Fmr {
    /// Bytes of one MR; set by `open`.
    max_mr_size: u64,
    /// Bytes of the pieces of what the device has no room for as a whole; 0 = none are made.
    split_bytes: u64,
}

impl Fmr {
    /// A strategy that has not been opened.
    #[must_use]
    pub fn new() -> Fmr {
        Fmr::default()
    }

    /// Registers one range; in pieces only if the device has no room for it as a whole, and the
    /// user has said how large they may be.
    fn register(&self, ctl: &mut dyn Control, bytes: Range<u64>) -> Result<(), MapError> {
        let Err(e) = ctl.reg_mr(bytes.clone()) else { return Ok(()) };
        let len = bytes.end - bytes.start;
        if !e.is_no_room() || self.split_bytes == 0 || len <= self.split_bytes {
            return Err(e.into());
        }
        if len.div_ceil(self.split_bytes) > MAX_REGIONS as u64 {
            return Err(MapError::TooManyRegions);
        }
        let mut start = bytes.start;
        while start < bytes.end {
            let end = bytes.end.min(start.saturating_add(self.split_bytes));
            ctl.reg_mr(start..end)?;
            start = end;
        }
        Ok(())
    }

    /// Regions for `segs`, a segment longer than one MR taking several: it is never shortened.
    fn regions(&self, segs: &SegList<'_>) -> u64 {
        segs.segs().iter().map(|s| s.len.div_ceil(self.max_mr_size)).fold(0, u64::saturating_add)
    }
}

impl MemReg for Fmr {
    fn name(&self) -> &'static str {
        "fmr"
    }

    fn check(&self, caps: &Caps) -> Result<(), Reject> {
        if caps.max_mr == 0 {
            return Err(Reject::Missing("memory regions (max_mr is 0)"));
        }
        Ok(())
    }

    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
        if caps.max_mr_size == 0 {
            return Err(SizeError::Zero("max_mr_size"));
        }
        let per = PerRequest {
            page_list_depth: 0,
            regions: MAX_REGIONS as u32,
            wr: 1, // the SEND: registering costs no WR
            payload_bytes: ask.max_payload_bytes,
        };
        let mut limits = sizing::queues(caps, ask, per, KeyScope::Pd)?;
        limits.mechanism = "ordinary MR";
        let most = caps.max_mr_size.saturating_mul(MAX_REGIONS as u64);
        if most < ask.max_payload_bytes {
            limits.max_payload_bytes = most;
            limits.clamped.push(Clamp {
                what: "max_payload_bytes",
                asked: ask.max_payload_bytes,
                got: most,
                by: "max_mr_size",
            });
        }
        self.max_mr_size = caps.max_mr_size;
        self.split_bytes = ask.split_bytes;
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
        if self.max_mr_size == 0 {
            return Err(MapError::Other("strategy is not open"));
        }
        check_lengths(segs)?;
        if self.regions(segs) > MAX_REGIONS as u64 {
            return Err(MapError::TooManyRegions);
        }
        let mut start = 0;
        for seg in segs.segs() {
            let seg_end = start + seg.len;
            while start < seg_end {
                let end = seg_end.min(start.saturating_add(self.max_mr_size));
                self.register(ctl, start..end)?;
                start = end;
            }
        }
        Ok(())
    }

    fn unmap(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        _: &mut WrBatch,
    ) -> Result<(), Poison> {
        // All of them even if one fails: each that ends is one less for the drain to prove.
        let failed = live.iter().filter(|&&region| ctl.dereg(region).is_err()).count();
        if failed > 0 {
            return Err(Poison("a region could not be deregistered"));
        }
        Ok(())
    }

    fn on_event(&mut self, _: RegionId, _: Event) -> Result<(), Poison> {
        // No region is used twice, so nothing that becomes of one matters here.
        Ok(())
    }

    fn recover(&mut self, _: &mut dyn Control, _: usize) -> Result<usize, DeviceError> {
        Ok(0)
    }

    fn on_drained(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{Call, Mock, map};
    use memreg_core::device::FastMrKind;

    fn open(caps: Caps) -> Fmr {
        let mut s = Fmr::new();
        s.open(&caps, &Ask::default()).unwrap();
        s
    }

    #[test]
    fn b16_b23_fmr_looks_at_no_fast_path_attribute() {
        let caps = Caps {
            mem_mgt_extensions: false,
            max_fast_reg_page_list_len: 0,
            mem_window_type_2b: false,
            max_mw: 0,
            ..Caps::default()
        };
        let mut s = Fmr::new();
        assert_eq!(s.check(&caps), Ok(()));
        let l = s.open(&caps, &Ask::default()).unwrap();
        assert_eq!((l.wr_per_request, l.page_list_depth, l.arena_bytes), (1, 0, 0));
        assert_eq!((l.credits, l.max_send_wr), (128, 129));
        assert!(!l.remote_invalidation && l.clamped.is_empty());

        let mut ctl = Mock::new();
        s.fill(&mut ctl, 100).unwrap();
        let (ids, out) = map(&mut s, &mut ctl, &[(100, 5000), (0, 4096)]).unwrap();
        assert!(out.wishes().is_empty());
        assert_eq!(ctl.calls, [Call::RegMr(0..5000), Call::RegMr(5000..9096)]);
        let mut out = WrBatch::new();
        s.unmap(&mut ctl, &ids, &mut out).unwrap();
        assert!(out.wishes().is_empty());
        assert_eq!(ctl.calls.iter().filter(|c| matches!(c, Call::Dereg(_))).count(), 2);
        assert!(!ctl.calls.iter().any(|c| matches!(c, Call::Alloc(_, FastMrKind::Pages))));
        assert_eq!(ctl.live(), 0);
    }

    #[test]
    fn fmr_07_every_region_of_the_call_is_tried_and_a_failure_poisons() {
        let mut s = open(Caps::default());
        let mut ctl = Mock::new();
        let (ids, _) = map(&mut s, &mut ctl, &[(0, 4096), (512, 100), (7, 9)]).unwrap();
        ctl.fail_dereg(2);
        let e = s.unmap(&mut ctl, &ids, &mut WrBatch::new()).unwrap_err();
        assert_eq!(e, Poison("a region could not be deregistered"));
        assert_eq!(ctl.live(), 1, "the first and the third have ended");
    }

    #[test]
    fn a_segment_longer_than_one_mr_takes_several() {
        let mut s = open(Caps { max_mr_size: 10_000, ..Caps::default() });
        let mut ctl = Mock::new();
        map(&mut s, &mut ctl, &[(100, 25_000), (0, 10_000)]).unwrap();
        let bytes: Vec<_> = [0..10_000, 10_000..20_000, 20_000..25_000, 25_000..35_000]
            .into_iter()
            .map(Call::RegMr)
            .collect();
        assert_eq!(ctl.calls, bytes);
    }

    #[test]
    fn d_08_too_many_regions_are_refused_before_anything() {
        let mut s = open(Caps { max_mr_size: 100, ..Caps::default() });
        let mut ctl = Mock::new();
        for list in [&[(0, 1601)][..], &[(0, u64::MAX)], &[(0, 1); 17]] {
            assert_eq!(map(&mut s, &mut ctl, list).unwrap_err(), MapError::TooManyRegions);
        }
        assert!(ctl.calls.is_empty());
        map(&mut s, &mut ctl, &[(0, 1600)]).unwrap();
    }

    #[test]
    fn a_payload_beyond_all_regions_is_lowered_and_reported() {
        let mut s = Fmr::new();
        let caps = Caps { max_mr_size: 4096, ..Caps::default() };
        let l = s.open(&caps, &Ask::default()).unwrap();
        assert_eq!(l.max_payload_bytes, 65536);
        assert_eq!(l.clamped[0].by, "max_mr_size");
        let none = Caps { max_mr_size: 0, ..Caps::default() };
        assert_eq!(s.open(&none, &Ask::default()), Err(SizeError::Zero("max_mr_size")));
        assert!(s.check(&Caps { max_mr: 0, ..Caps::default() }).is_err());
    }

    #[test]
    fn a_device_that_refuses_the_kth_region_fails_the_map() {
        let mut s = open(Caps::default());
        let mut ctl = Mock::new();
        ctl.fail_reg(2);
        let e = map(&mut s, &mut ctl, &[(0, 1), (0, 1), (0, 1)]).unwrap_err();
        assert!(matches!(e, MapError::Device(_)));
        assert_eq!(ctl.calls.len(), 2, "nothing is tried after the refusal");
    }
}
