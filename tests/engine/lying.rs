//! Strategies that break their contract: it costs their connection, and never a byte.

use super::rig::Rig;
use memreg_core::device::{Caps, DeviceError, FastMrKind, WcStatus, errno};
use memreg_core::memreg::{
    Control, Event, MapError, MemReg, Poison, RegionId, Reject, SegList, Wish, WrBatch,
};
use memreg_core::sizing::{Ask, Limits, SizeError};
use memreg_core::transport::error::Refusal;
use memreg_core::transport::{Buffers, KeyEvent, LedgerEntry, LedgerEvent, NoReply};
use memreg_core::types::Grant;
use memreg_core::{Disposition, DmaBuf};
use memreg_strategies::Frwr;

/// How it lies.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Lie {
    /// None, and it says so in as few words as there are.
    None,
    RevokeNothing,
    RevokeHalf,
    RevokeTwice,
    RevokeOnceMore,
    RevokeAndDereg,
    RevokeOthers,
    RegisterInUnmap,
    RegisterEachInUnmap,
    RevokeAllAndDereg,
    GiveUp,
    GiveUpWhenTold,
    MapNothing,
    MapHalf,
    MapTwice,
    MapTooMuch,
    MapReordered,
    MapLiveRegion,
    MapUnknownRegion,
    InvalidateInMap,
    InvalidateAllInMap,
    MapEachTooFew,
    MapEachTooMany,
    MapEachTwice,
    MapEachLiveRegion,
    MapEachUnknownRegion,
    MapEachAndFail,
}

/// An honest `frwr` but for one lie.
struct Liar {
    honest: Frwr,
    lie: Lie,
    /// A region of the first exposure.
    first: Option<RegionId>,
    armed: bool,
    /// Regions that it has heard are dead.
    dead: usize,
}

impl Liar {
    fn new(lie: Lie) -> Liar {
        Liar { honest: Frwr::default(), lie, first: None, armed: false, dead: 0 }
    }
}

impl MemReg for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }

    fn check(&self, caps: &Caps) -> Result<(), Reject> {
        self.honest.check(caps)
    }

    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
        self.honest.open(caps, ask)
    }

    fn fill(&mut self, ctl: &mut dyn Control, n: usize) -> Result<(), DeviceError> {
        self.honest.fill(ctl, n)
    }

    fn map(
        &mut self,
        ctl: &mut dyn Control,
        segs: &SegList<'_>,
        out: &mut WrBatch,
    ) -> Result<(), MapError> {
        let mut truth = WrBatch::new();
        self.honest.map(ctl, segs, &mut truth)?;
        truth.spell_out_each(segs);
        let regions: Vec<(RegionId, std::ops::Range<u64>)> = truth
            .wishes()
            .iter()
            .filter_map(|w| match w {
                Wish::Register(r, b) => Some((*r, b.clone())),
                Wish::Invalidate(_) => None,
            })
            .collect();
        if self.first.is_none() || !self.armed {
            self.first = Some(regions[0].0);
            self.armed = true;
            for (r, b) in regions {
                out.register(r, b)?;
            }
            return Ok(());
        }
        let each: Vec<_> = regions.iter().map(|(r, _)| *r).collect();
        let (r, b) = regions[0].clone();
        match self.lie {
            Lie::MapNothing => {}
            Lie::None => out.register_each(&each)?,
            Lie::MapHalf => out.register(r, b.start..b.end / 2)?,
            Lie::MapTwice => {
                out.register(r, b.clone())?;
                out.register(r, b)?;
            }
            Lie::MapTooMuch => out.register(r, b.start..b.end + 1)?,
            Lie::MapReordered => {
                out.register(r, 1..b.end)?;
                out.register(regions.last().unwrap().0, 0..2)?;
            }
            Lie::MapLiveRegion => out.register(self.first.unwrap(), b)?,
            Lie::MapUnknownRegion => out.register(RegionId::default(), b)?,
            Lie::InvalidateInMap => out.invalidate(self.first.unwrap())?,
            Lie::InvalidateAllInMap => out.invalidate_all()?,
            Lie::MapEachTooFew => out.register_each(&[r])?,
            Lie::MapEachTooMany => {
                let fast = ctl.alloc_region(1, FastMrKind::Pages);
                let one_more = fast.or_else(|_| ctl.alloc_window())?;
                out.register_each(&[&each[..], &[one_more]].concat())?;
            }
            Lie::MapEachTwice => out.register_each(&[r, r])?,
            Lie::MapEachLiveRegion => out.register_each(&[r, self.first.unwrap()])?,
            Lie::MapEachUnknownRegion => out.register_each(&[r, RegionId::default()])?,
            Lie::MapEachAndFail => {
                out.register_each(&each)?;
                return Err(MapError::Other("changes its mind"));
            }
            _ => {
                for (r, b) in regions {
                    out.register(r, b)?;
                }
            }
        }
        Ok(())
    }

    fn unmap(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        out: &mut WrBatch,
    ) -> Result<(), Poison> {
        let full = |_| Poison("full");
        match self.lie {
            Lie::RevokeNothing => Ok(()),
            Lie::None => out.invalidate_all().map_err(full),
            Lie::RevokeHalf => out.invalidate(live[0]).map_err(full),
            Lie::RevokeTwice => {
                live.iter().chain(live).try_for_each(|&r| out.invalidate(r).map_err(full))
            }
            Lie::RevokeOnceMore => {
                live.iter().chain(&live[..1]).try_for_each(|&r| out.invalidate(r).map_err(full))
            }
            Lie::RevokeAndDereg => {
                ctl.dereg(live[0]).unwrap();
                live.iter().try_for_each(|&r| out.invalidate(r).map_err(full))
            }
            Lie::RevokeOthers => out.invalidate(self.first.unwrap()).map_err(full),
            Lie::RegisterInUnmap => out.register(live[0], 0..1).map_err(full),
            Lie::RegisterEachInUnmap => out.register_each(live).map_err(full),
            Lie::RevokeAllAndDereg => {
                ctl.dereg(live[0]).unwrap();
                out.invalidate_all().map_err(full)
            }
            Lie::GiveUp => Err(Poison("gives up")),
            _ => self.honest.unmap(ctl, live, out),
        }
    }

    fn on_event(&mut self, region: RegionId, event: Event) -> Result<(), Poison> {
        self.honest.on_event(region, event)
    }

    fn on_events(&mut self, regions: &[RegionId], event: Event) -> Result<(), Poison> {
        self.honest.on_events(regions, event)?;
        self.dead += if event == Event::Invalidated { regions.len() } else { 0 };
        let enough = self.lie == Lie::GiveUpWhenTold && self.dead > 6;
        if enough { Err(Poison("it has heard enough")) } else { Ok(()) }
    }

    fn recover(&mut self, ctl: &mut dyn Control, budget: usize) -> Result<usize, DeviceError> {
        self.honest.recover(ctl, budget)
    }

    fn on_drained(&mut self) {
        self.honest.on_drained();
    }
}

fn two_regions() -> Buffers {
    (0..2).map(|_| (DmaBuf::new(64).unwrap(), 1..3)).collect()
}

/// A device with page lists, and one with windows.
fn devices() -> [Caps; 2] {
    let windows = Caps {
        max_fast_reg_page_list_len: 0,
        mem_window_type_2b: true,
        max_mw: 64,
        ..Caps::default()
    };
    [Caps::default(), windows]
}

/// Every such lie on every such device.
fn on_devices(lies: &[Lie]) -> impl Iterator<Item = (Lie, Caps)> + '_ {
    devices().into_iter().flat_map(|caps| lies.iter().map(move |&lie| (lie, caps.clone())))
}

#[test]
fn rule_6_lies_in_unmap_cost_the_connection_and_no_byte() {
    for (lie, caps) in on_devices(&[
        Lie::RevokeNothing,
        Lie::RevokeHalf,
        Lie::RevokeTwice,
        Lie::RevokeOnceMore,
        Lie::RevokeAndDereg,
        Lie::RevokeOthers,
        Lie::RegisterInUnmap,
        Lie::RegisterEachInUnmap,
        Lie::RevokeAllAndDereg,
        Lie::GiveUp,
    ]) {
        let mut rig = Rig::new(Liar::new(lie), caps, Ask::default());
        let other = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
        let e = rig.owner.expose(two_regions(), Grant::PeerWrites).unwrap();
        rig.owner.flush().unwrap();
        rig.settle();
        let segs = rig.owner.segments(&e).unwrap().to_vec();
        let why = rig.owner.revoke(&e, NoReply::Unmarked).unwrap_err();
        assert!(matches!(why, Refusal::Down(_)), "{lie:?}: {why}");
        let early = rig.owner.reclaim(e).unwrap_err();
        rig.settle();
        assert!(rig.is_down(), "{lie:?}");
        let bytes = rig.owner.reclaim(early.exposed).unwrap();
        assert_eq!(bytes.count(), 2, "{lie:?}");
        rig.owner.reclaim(other).unwrap();
        rig.assert_clean();
        rig.peer.disconnect();
        rig.settle();
        rig.owner.reconnect().unwrap();
        rig.peer.reconnect().unwrap();
        memreg_core::drive::connect_pair(&mut rig.owner, &mut rig.peer).unwrap();
        let forged = rig.forged(&segs[0]);
        assert_eq!(rig.probe(&forged), WcStatus::RemAccessErr, "{lie:?}: the key is dead");
        assert!(bytes.iter().all(|(b, _)| b.iter().all(|&x| x == 0)));
    }
}

#[test]
fn rule_6_a_lie_about_one_of_many_still_posts_what_was_honest() {
    // Of one region a half is the whole: it lies about the second exposure only.
    let mut rig = Rig::new(Liar::new(Lie::RevokeHalf), Caps::default(), Ask::default());
    let single = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    let (double, last) =
        (rig.owner.expose(two_regions(), Grant::PeerWrites).unwrap(), two_regions());
    let last = rig.owner.expose(last, Grant::PeerWrites).unwrap();
    rig.owner.flush().unwrap();
    rig.settle();
    let why = rig.owner.revoke_all([&single, &double, &last], NoReply::Unmarked).unwrap_err();
    assert!(matches!(why, Refusal::Down(_)), "{why}");
    assert_eq!(rig.owner.stats().invalidations, 1);
    rig.settle();
    assert!(rig.is_down());
    for (e, count) in [(single, 1), (double, 2), (last, 2)] {
        assert_eq!(rig.owner.reclaim(e).unwrap().count(), count);
    }
    rig.assert_clean();
}

/// It gives up on the first of several exposures that one completion proves dead, and the sentinel
/// cannot be posted: what is behind is believed all the same.
#[test]
fn giving_up_on_an_event_takes_no_proof_from_the_others() {
    for (caps, refused) in devices().into_iter().flat_map(|c| [(c.clone(), false), (c, true)]) {
        let mut rig = Rig::new(Liar::new(Lie::GiveUpWhenTold), caps, Ask::default());
        let mut lists = vec![two_regions(), two_regions(), two_regions()];
        // The second time all regions of an exposure are granted and revoked in one step.
        for again in [false, true] {
            let all = lists.drain(..).map(|l| rig.owner.expose(l, Grant::PeerWrites).unwrap());
            let all: Vec<_> = all.collect();
            rig.owner.flush().unwrap();
            rig.owner.revoke_all(&all, NoReply::Unmarked).unwrap();
            if refused && again {
                rig.plan.refuse_post(1, 0, errno::EINVAL);
            }
            rig.settle();
            for e in all {
                lists.push(rig.owner.reclaim(e).unwrap());
            }
        }
        assert!(rig.is_down());
        let doubtful = |line: &LedgerEntry| {
            matches!(line.event, LedgerEvent::Key { what: KeyEvent::Unknown, .. })
        };
        assert!(!rig.owner.ledger().iter().any(|line| doubtful(&line)), "refused: {refused}");
        rig.assert_clean();
    }
}

#[test]
fn map_12_rule_6_lies_in_map_are_undone() {
    for (lie, caps) in on_devices(&[
        Lie::MapNothing,
        Lie::MapHalf,
        Lie::MapTwice,
        Lie::MapTooMuch,
        Lie::MapReordered,
        Lie::MapLiveRegion,
        Lie::MapUnknownRegion,
        Lie::InvalidateInMap,
        Lie::InvalidateAllInMap,
        Lie::MapEachTooFew,
        Lie::MapEachTooMany,
        Lie::MapEachTwice,
        Lie::MapEachLiveRegion,
        Lie::MapEachUnknownRegion,
    ]) {
        let mut rig = Rig::new(Liar::new(lie), caps, Ask::default());
        let (first, seg) = rig.exposed(64, 1, Grant::PeerReads);
        let refused = rig.owner.expose(two_regions(), Grant::PeerWrites).unwrap_err();
        assert!(matches!(refused.why, Refusal::Map(MapError::Other(_))), "{lie:?}");
        assert_eq!(refused.disposition(), Disposition::Fatal);
        assert_eq!(refused.buffers.count(), 2, "{lie:?}: nothing was granted, so all comes back");
        rig.settle();
        assert!(rig.is_down(), "{lie:?}: it cannot be trusted with more");
        let bytes = rig.owner.reclaim(first).unwrap().into_first().unwrap();
        assert!(bytes.iter().all(|&b| b == 1));
        rig.assert_clean();
        rig.peer.disconnect();
        rig.settle();
        rig.owner.reconnect().unwrap();
        rig.peer.reconnect().unwrap();
        memreg_core::drive::connect_pair(&mut rig.owner, &mut rig.peer).unwrap();
        let forged = rig.forged(&seg);
        assert!(rig.peer_read(&forged, 0, 1).is_err(), "{lie:?}");
    }
}

#[test]
fn map_03_the_truth_in_one_word_is_the_truth() {
    for (lie, caps) in on_devices(&[Lie::None]) {
        let mut rig = Rig::new(Liar::new(lie), caps, Ask::default());
        for round in 1..4 {
            let e = rig.owner.expose(two_regions(), Grant::PeerWrites).unwrap();
            rig.owner.flush().unwrap();
            rig.settle();
            let segs = rig.owner.segments(&e).unwrap().to_vec();
            assert_eq!(segs.iter().map(|s| s.len).collect::<Vec<_>>(), [2, 2]);
            for s in &segs {
                assert_eq!(rig.probe(s), WcStatus::Success);
            }
            rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
            rig.settle();
            assert_eq!(rig.owner.reclaim(e).unwrap().count(), 2);
            assert_eq!(rig.owner.stats().invalidations, 2 * round);
        }
        rig.assert_clean();
    }
}

#[test]
fn h_48_wishes_of_a_failed_map_are_undone_in_every_form() {
    for (lie, caps) in on_devices(&[Lie::MapEachAndFail]) {
        let mut rig = Rig::new(Liar::new(lie), caps, Ask::default());
        let (first, _) = rig.exposed(64, 1, Grant::PeerReads);
        let before = rig.owner.strategy().honest.stats();
        let refused = rig.owner.expose(two_regions(), Grant::PeerWrites).unwrap_err();
        assert!(matches!(refused.why, Refusal::Map(MapError::Other("changes its mind"))));
        assert_eq!(refused.buffers.count(), 2);
        // That was no lie: the regions are idle again, and the connection is up.
        let after = rig.owner.strategy().honest.stats();
        assert_eq!((after.busy, after.condemned), (before.busy, 0));
        rig.owner.revoke(&first, NoReply::Unmarked).unwrap();
        rig.settle();
        rig.owner.reclaim(first).unwrap();
        assert!(!rig.is_down());
        rig.assert_clean();
    }
}

#[test]
fn dropped_handle_of_a_liar_is_fenced_all_the_same() {
    let mut rig = Rig::new(Liar::new(Lie::RevokeNothing), Caps::default(), Ask::default());
    let (e, _) = rig.exposed(64, 1, Grant::PeerReads);
    drop(e);
    rig.settle();
    assert!(rig.is_down());
    rig.assert_clean();
}
