//! Many exposures with one post: granted together and taken back together.

use super::rig::{Rig, is_inv, posts, sq16};
use memreg_core::DmaBuf;
use memreg_core::device::trace::Call;
use memreg_core::device::{Caps, errno};
use memreg_core::error::{ApiMisuse, Disposition};
use memreg_core::memreg::MemReg;
use memreg_core::sizing::Ask;
use memreg_core::transport::error::Refusal;
use memreg_core::transport::{Buffers, Exposed, ExposureState, NoReply, Reply};
use memreg_core::types::Grant;
use memreg_strategies::Frwr;
use std::cell::Cell;

/// Windows, one a buffer.
fn windows() -> Caps {
    Caps {
        max_fast_reg_page_list_len: 0,
        mem_window_type_2b: true,
        max_mw: 1000,
        ..Caps::default()
    }
}

/// An exposure of that many buffers, no two of which one region could cover; staged.
fn staged<S: MemReg>(rig: &mut Rig<S>, buffers: usize) -> Exposed {
    let list: Buffers = (0..buffers).map(|_| (DmaBuf::new(64).unwrap(), 1..3)).collect();
    rig.owner.expose(list, Grant::PeerWrites).unwrap()
}

/// The counters say what was posted.
#[track_caller]
fn assert_counted<S: MemReg>(rig: &Rig<S>, calls: &[Call]) {
    let wrs = posts(calls).concat();
    let invs = wrs.iter().filter(|w| is_inv(w)).count();
    let s = rig.owner.stats();
    assert_eq!((s.posts, s.wrs), (posts(calls).len() as u64, wrs.len() as u64));
    assert_eq!(s.wrs_signaled, wrs.iter().filter(|w| w.signaled).count() as u64);
    assert_eq!((s.registrations, s.invalidations), ((wrs.len() - invs) as u64, invs as u64));
}

#[test]
fn uns_04_sig_02_sixty_four_regions_cost_two_posts_and_one_completion() {
    for caps in [Caps::default(), windows()] {
        let ask = Ask { credits: 64, ranges_per_request: 16, ..Ask::default() };
        let mut rig = Rig::new(Frwr::default(), caps, ask);
        let all: Vec<_> = (0..4).map(|_| staged(&mut rig, 16)).collect();
        rig.owner.flush().unwrap();
        rig.settle();
        rig.owner.revoke_all(&all, NoReply::Unmarked).unwrap();
        assert!(all.iter().all(|e| rig.owner.exposure_state(e) == Ok(ExposureState::Revoking)));
        rig.settle();
        let calls = rig.trace.take();
        let signals =
            |wrs: &[_]| wrs.iter().filter(|w: &&memreg_core::device::Wr| w.signaled).count();
        let sizes: Vec<_> = posts(&calls).iter().map(|p| (p.len(), signals(p))).collect();
        assert_eq!(sizes, [(64, 0), (64, 1)]);
        assert!(posts(&calls)[1][63].signaled, "the last of all");
        assert_counted(&rig, &calls);
        let s = rig.owner.stats();
        assert_eq!((s.wcs, s.fences, s.local_inv_needed), (1, 4, 4));
        for e in all {
            assert_eq!(rig.owner.reclaim(e).unwrap().count(), 16);
        }
        rig.assert_clean();
    }
}

#[test]
fn rule_5_one_refused_exposure_leaves_all_as_they_were() {
    let mut rig = Rig::frwr();
    let (mine, other) = (staged(&mut rig, 2), staged(&mut rig, 1));
    rig.owner.flush().unwrap();
    let waits = staged(&mut rig, 1);
    rig.owner.send(b"request", Reply::MayInvalidate(&[&waits])).unwrap();
    let mut two = Rig::frwr();
    let foreign = staged(&mut two, 1);
    rig.settle();
    rig.trace.take();
    let all = |last| [&mine, &other, last];
    let refused = rig.owner.revoke_all(all(&waits), NoReply::Unmarked).unwrap_err();
    assert_eq!(refused, Refusal::ReplyOutstanding);
    let refused = rig.owner.revoke_all(all(&foreign), NoReply::NoneCanCome).unwrap_err();
    assert_eq!(refused, Refusal::Misuse(ApiMisuse::ForeignHandle));
    assert!(posts(&rig.trace.take()).is_empty());
    for e in [&mine, &other, &waits] {
        assert_eq!(rig.owner.exposure_state(e), Ok(ExposureState::Exposed));
    }
    rig.owner.revoke_all(all(&waits), NoReply::NoneCanCome).unwrap();
    assert_eq!(posts(&rig.trace.take()).len(), 1);
    rig.settle();
    for e in [mine, other, waits] {
        rig.owner.reclaim(e).unwrap();
    }
    rig.assert_clean();
}

/// An iterator that yields something else than its clone.
#[derive(Clone)]
struct Fickle<'a> {
    looks: &'a Cell<usize>,
    list: [&'a Exposed; 2],
    left: bool,
}

impl<'a> Iterator for Fickle<'a> {
    type Item = &'a Exposed;

    fn next(&mut self) -> Option<&'a Exposed> {
        std::mem::take(&mut self.left).then(|| {
            let look = self.looks.get();
            self.looks.set(look + 1);
            self.list[look]
        })
    }
}

#[test]
fn rule_5_what_was_not_looked_at_is_not_revoked() {
    let mut rig = Rig::frwr();
    let plain = staged(&mut rig, 1);
    let waits = staged(&mut rig, 1);
    rig.owner.send(b"request", Reply::MayInvalidate(&[&waits])).unwrap();
    let mut two = Rig::frwr();
    let foreign = staged(&mut two, 1);
    rig.settle();
    rig.trace.take();
    for other in [&waits, &foreign] {
        let fickle = Fickle { looks: &Cell::new(0), list: [&plain, other], left: true };
        rig.owner.revoke_all(fickle, NoReply::Unmarked).unwrap_err();
        assert!(posts(&rig.trace.take()).is_empty());
    }
    for e in [&plain, &waits] {
        assert_eq!(rig.owner.exposure_state(e), Ok(ExposureState::Exposed));
    }
}

#[test]
fn uns_05_staged_revoked_and_doubly_named_ones_cost_no_wr() {
    let mut rig = Rig::frwr();
    let (live, gone) = (staged(&mut rig, 2), staged(&mut rig, 1));
    rig.owner.flush().unwrap();
    rig.owner.revoke(&gone, NoReply::Unmarked).unwrap();
    let never = staged(&mut rig, 3);
    rig.trace.take();
    let list = [&never, &live, &gone, &live];
    rig.owner.revoke_all(list, NoReply::Unmarked).unwrap();
    let posted = posts(&rig.trace.take());
    assert_eq!(posted.iter().map(Vec::len).collect::<Vec<_>>(), [2]);
    assert_eq!(rig.owner.exposure_state(&never), Ok(ExposureState::Fenced));
    rig.owner.revoke_all([&never], NoReply::Unmarked).unwrap();
    rig.owner.revoke_all([], NoReply::Unmarked).unwrap();
    assert!(posts(&rig.trace.take()).is_empty());
    rig.settle();
    for e in [live, gone, never] {
        rig.owner.reclaim(e).unwrap();
    }
    rig.assert_clean();
}

#[test]
fn d_01_d_07_a_post_of_many_revokes_that_is_refused_in_part() {
    for accepted in 0..5 {
        let mut rig = Rig::frwr();
        let all = [staged(&mut rig, 2), staged(&mut rig, 1), staged(&mut rig, 2)];
        rig.owner.flush().unwrap();
        rig.settle();
        rig.plan.refuse_post(1, accepted, errno::EINVAL);
        let why = rig.owner.revoke_all(&all, NoReply::Unmarked).unwrap_err();
        assert_eq!(why.disposition(), Disposition::Reconnect);
        let (out, _) = rig.owner.send_queue();
        assert_eq!(out, 5 + accepted + 1, "binds, the accepted ones and the sentinel");
        assert_eq!(rig.owner.stats().invalidations, accepted as u64);
        rig.settle();
        assert!(rig.is_down());
        for (e, count) in all.into_iter().zip([2, 1, 2]) {
            assert_eq!(rig.owner.reclaim(e).unwrap().count(), count);
        }
        rig.assert_clean();
    }
}

#[test]
fn rule_9_long_chains_are_signaled_once_a_half_queue() {
    for caps in [Caps::default(), windows()] {
        let mut rig = Rig::new(Frwr::default(), caps, sq16());
        let half = rig.owner.send_queue().1 / 2;
        let mut calls = vec![];
        for _ in 0..100 {
            let all: Vec<_> = (0..half - 1).map(|_| staged(&mut rig, 1)).collect();
            rig.owner.flush().unwrap();
            rig.owner.revoke_all(&all, NoReply::Unmarked).unwrap();
            rig.settle();
            all.into_iter().for_each(|e| drop(rig.owner.reclaim(e).unwrap()));
            calls.extend(rig.trace.take());
        }
        let wrs = posts(&calls).concat();
        let longest = wrs.split(|w| w.signaled).map(<[_]>::len).max();
        assert!(longest.is_some_and(|n| n > 0 && n < half), "{longest:?} of {half}");
        assert_counted(&rig, &calls);
        rig.assert_clean();
    }
}
