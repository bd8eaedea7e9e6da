//! `physical`: one key a direction for the life of the connection, over bounce arenas that every
//! operation is copied through.
//!
//! Nothing is ever revoked: a peer can read what ended operations have left in the arena that it
//! may read, and write into the other one after an operation has ended, and so spoil the bytes of a
//! later one. It cannot reach the program's own buffers. That is the danger which
//! `danger_trust_peer` names.

use crate::shape::check_lengths;
use memreg_core::device::{Caps, DeviceError};
use memreg_core::memreg::{
    Control, Event, MapError, MemReg, Poison, RegionId, Reject, SegList, WrBatch,
};
use memreg_core::sizing::{self, Ask, KeyScope, Limits, PerRequest, SizeError};

/// Bytes of the largest bounce arena, of which there is one for each direction. They are pinned for
/// as long as the connection lives, so they are bounded whatever was asked.
pub const ARENA_BYTES_LIMIT: u64 = 256 << 20;

/// Copies through memory that the peer may keep; see the module.
///
/// # Cost
/// No WR and no system call per operation; one copy of every byte the peer reads, two of every byte
/// that it writes.
#[derive(Debug)]
pub struct Physical {
    danger_trust_peer: bool,
}

impl Physical {
    /// A strategy that works only if the user has agreed to trust the peer.
    #[must_use]
    pub fn new(danger_trust_peer: bool) -> Physical {
        Physical { danger_trust_peer }
    }
}

impl MemReg for Physical {
    fn name(&self) -> &'static str {
        "physical"
    }

    fn check(&self, caps: &Caps) -> Result<(), Reject> {
        if !self.danger_trust_peer {
            return Err(Reject::NeedsTrust);
        }
        if caps.max_mr == 0 {
            return Err(Reject::Missing("memory regions (max_mr is 0)"));
        }
        Ok(())
    }

    /// Sizes an arena of whole pages for each credit: payload and then credits are lowered until it
    /// fits [`ARENA_BYTES_LIMIT`] and `max_mr_size`.
    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
        if caps.page_size < 512 || !caps.page_size.is_power_of_two() {
            return Err(SizeError::PageSize(caps.page_size));
        }
        let page = u64::from(caps.page_size);
        let (limit, by) = if caps.max_mr_size < ARENA_BYTES_LIMIT {
            (caps.max_mr_size, "max_mr_size")
        } else {
            (ARENA_BYTES_LIMIT, "bounce arena limit")
        };
        if limit < page {
            return Err(SizeError::LessThanPage { by, limit, page });
        }
        let limit = limit - limit % page;
        // `limit` is whole pages, so rounding the payload up cannot pass it.
        let payload = ask.max_payload_bytes.min(limit);
        let slot = payload.div_ceil(page).max(1) * page;
        let fit = u32::try_from(limit / slot).unwrap_or(u32::MAX);
        let lowered = Ask { credits: ask.credits.min(fit), max_payload_bytes: payload, ..*ask };
        let per = PerRequest { page_list_depth: 0, regions: 1, wr: 1, payload_bytes: payload };
        let mut limits = sizing::queues(caps, &lowered, per, KeyScope::Pd)?;
        limits.arena_bytes = u64::from(limits.credits) * slot;
        limits.mechanism = "bounce";
        limits.restate(ask, by, by);
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
        check_lengths(segs)?;
        // The arena is contiguous, so one part of it takes all segments.
        ctl.bounce(0..segs.total())?;
        Ok(())
    }

    fn unmap(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        _: &mut WrBatch,
    ) -> Result<(), Poison> {
        let failed = live.iter().filter(|&&region| ctl.dereg(region).is_err()).count();
        if failed > 0 {
            return Err(Poison("a part of the bounce arena could not be given back"));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{Call, Mock, map};
    use memreg_core::sizing::Clamp;

    fn limits(caps: &Caps, ask: &Ask) -> Limits {
        Physical::new(true).open(caps, ask).unwrap()
    }

    #[test]
    fn phy_04_works_only_with_the_users_word() {
        assert_eq!(Physical::new(false).check(&Caps::default()), Err(Reject::NeedsTrust));
        assert_eq!(Physical::new(true).check(&Caps::default()), Ok(()));
    }

    #[test]
    fn phy_02_one_part_of_the_arena_takes_all_segments() {
        let mut s = Physical::new(true);
        let mut ctl = Mock::new();
        let (ids, out) = map(&mut s, &mut ctl, &[(100, 5000), (7, 1)]).unwrap();
        assert!(out.wishes().is_empty());
        assert_eq!(ctl.calls, [Call::Bounce(0..5001)]);
        s.unmap(&mut ctl, &ids, &mut WrBatch::new()).unwrap();
        assert_eq!(ctl.live(), 0);
    }

    #[test]
    fn phy_04_a_part_that_stays_out_poisons() {
        let mut s = Physical::new(true);
        let mut ctl = Mock::new();
        let (ids, _) = map(&mut s, &mut ctl, &[(0, 1)]).unwrap();
        ctl.fail_dereg(1);
        assert!(s.unmap(&mut ctl, &ids, &mut WrBatch::new()).is_err());
    }

    #[test]
    fn arena_is_bounded_and_says_what_it_lowered() {
        let caps = Caps::default();
        let l = limits(&caps, &Ask::default());
        assert_eq!((l.arena_bytes, l.credits), (128 << 20, 128));
        assert!(l.clamped.is_empty() && !l.remote_invalidation);

        let odd = limits(&caps, &Ask { max_payload_bytes: 4097, ..Ask::default() });
        assert_eq!(odd.arena_bytes, 128 * 8192);

        let l = limits(&caps, &Ask { max_payload_bytes: 64 << 20, ..Ask::default() });
        assert_eq!((l.credits, l.arena_bytes), (4, ARENA_BYTES_LIMIT));
        let by = "bounce arena limit";
        assert_eq!(l.clamped, [Clamp { what: "credits", asked: 128, got: 4, by }]);

        let l = limits(&caps, &Ask { max_payload_bytes: u64::MAX, ..Ask::default() });
        assert_eq!((l.credits, l.max_payload_bytes), (1, ARENA_BYTES_LIMIT));
        assert_eq!(l.clamped.len(), 2);
        assert_eq!(l.clamped[1].asked, u64::MAX);

        let short = Caps { max_qp_wr: 3, ..caps };
        let l = limits(&short, &Ask { max_payload_bytes: 64 << 20, ..Ask::default() });
        let by = "max_qp_wr";
        assert_eq!(l.clamped, [Clamp { what: "credits", asked: 128, got: 2, by }]);
        assert_eq!(l.arena_bytes, 128 << 20);
    }

    #[test]
    fn sizes_that_make_no_sense_are_errors() {
        let mut s = Physical::new(true);
        let tiny = Caps { max_mr_size: 100, ..Caps::default() };
        let e = s.open(&tiny, &Ask::default()).unwrap_err().to_string();
        assert_eq!(e, "max_mr_size is 100 bytes, less than a page of 4096");
        let huge = Caps { page_size: 1 << 30, ..Caps::default() };
        let e = s.open(&huge, &Ask::default()).unwrap_err().to_string();
        assert_eq!(e, "bounce arena limit is 268435456 bytes, less than a page of 1073741824");
        let page = Caps { page_size: 0, ..Caps::default() };
        assert_eq!(s.open(&page, &Ask::default()), Err(SizeError::PageSize(0)));
        let none = Ask { credits: 0, ..Ask::default() };
        assert_eq!(s.open(&Caps::default(), &none), Err(SizeError::Zero("credits")));
        let none = Ask { max_payload_bytes: 0, ..Ask::default() };
        assert_eq!(s.open(&Caps::default(), &none), Err(SizeError::Zero("max_payload")));
    }
}
