//! Tests of the `frwr` state machine, table by table and then at random.

use super::*;
use crate::mock::{Call, Mock, map, map_into};
use memreg_core::device::Verb;
use memreg_core::memreg::{SegShape, Wish};
use proptest::prelude::*;

fn open(caps: &Caps, credits: u32) -> Frwr {
    let mut s = Frwr::new();
    s.check(caps).unwrap();
    s.open(caps, &Ask { credits, ..Ask::default() }).unwrap();
    s
}

/// One credit, no gaps, page list of 16: R = 16.
fn small() -> Frwr {
    open(&Caps { max_fast_reg_page_list_len: 16, ..Caps::default() }, 1)
}

fn gappy() -> Frwr {
    open(&Caps { sg_gaps: true, ..Caps::default() }, 4)
}

const ONE: &[(u32, u64)] = &[(0, 4096)];
const HOLE: &[(u32, u64)] = &[(0, 4096), (512, 1024), (0, 4096)];

#[test]
fn sup_01_sup_02_flag_before_length() {
    let with = |ext, len| {
        Frwr::new().check(&Caps {
            mem_mgt_extensions: ext,
            max_fast_reg_page_list_len: len,
            ..Caps::default()
        })
    };
    assert_eq!(with(true, 1), Ok(()));
    assert_eq!(with(true, 0), Err(Reject::NoWindows { type_2b: false, max_mw: 0 }));
    assert_eq!(with(false, 0), Err(Reject::Missing("MEM_MGT_EXTENSIONS")));
    assert_eq!(with(false, 512), Err(Reject::Missing("MEM_MGT_EXTENSIONS")));
}

#[test]
fn b13_page_list_length_zero_is_an_error_with_its_reason() {
    let caps = Caps { max_fast_reg_page_list_len: 0, ..Caps::default() };
    let text = Frwr::new().check(&caps).unwrap_err().to_string();
    assert!(text.contains("page list length 0"), "{text}");
    let e = Frwr::new().open(&caps, &Ask::default());
    assert_eq!(e, Err(SizeError::Zero("max_fast_reg_page_list_len")));
}

#[test]
fn opn_09_open_is_pure_and_can_be_repeated() {
    let mut s = Frwr::new();
    let a = s.open(&Caps::default(), &Ask::default()).unwrap();
    assert_eq!(Ok(&a), s.open(&Caps::default(), &Ask::default()).as_ref());
    assert!(a.remote_invalidation && a.key_scope == KeyScope::Pd && a.arena_bytes == 0);
    assert_eq!(s.stats(), FrwrStats::default());
}

/// Every state × every event, each given twice: the state after.
#[test]
fn st_table() {
    use Event::*;
    use State::*;
    let prepare = |state: State| {
        let (mut s, mut ctl) = (small(), Mock::new());
        let (ids, _) = map(&mut s, &mut ctl, ONE).unwrap();
        match state {
            Valid => {}
            Invalid => s.on_event(ids[0], Invalidated).unwrap(),
            FlushedFr => s.on_event(ids[0], RegUnknown).unwrap(),
            FlushedLi => s.on_event(ids[0], InvUnknown).unwrap(),
        }
        assert_eq!(s.state(ids[0]), Some(state));
        (s, ids[0])
    };
    #[rustfmt::skip]
    let rows = [
        //           Registered RegUnknown Invalidated InvUnknown RemoteInvalidated NeverPosted
        (Invalid,   [Invalid,   FlushedFr, Invalid,    FlushedLi, Invalid,          Invalid]),
        (Valid,     [Valid,     FlushedFr, Invalid,    FlushedLi, Invalid,          Invalid]),
        (FlushedFr, [FlushedFr, FlushedFr, FlushedFr,  FlushedFr, FlushedFr,        FlushedFr]),
        (FlushedLi, [FlushedLi, FlushedLi, FlushedLi,  FlushedLi, FlushedLi,        FlushedLi]),
    ];
    let events = [Registered, RegUnknown, Invalidated, InvUnknown, RemoteInvalidated, NeverPosted];
    for (from, after) in rows {
        for (event, want) in events.into_iter().zip(after) {
            let (mut s, id) = prepare(from);
            for twice in 0..2 {
                assert_eq!(s.on_event(id, event), Ok(()));
                assert_eq!(s.state(id), Some(want), "{from:?} {event:?} {twice}");
                s.pool.assert_sound();
            }
        }
    }
}

#[test]
fn st_01_st_02_new_regions_are_invalid_and_mapped_ones_valid() {
    let (mut s, mut ctl) = (small(), Mock::new());
    s.fill(&mut ctl, 3).unwrap();
    assert_eq!((s.stats().free, s.stats().busy), (3, 0));
    let (ids, out) = map(&mut s, &mut ctl, ONE).unwrap();
    assert_eq!(out.wishes(), [Wish::Register(ids[0], 0..4096)]);
    assert_eq!(s.state(ids[0]), Some(State::Valid));
    assert_eq!((s.stats().free, s.stats().busy, s.stats().allocated), (2, 1, 3));
}

#[test]
fn pool_03_reuse_is_first_in_first_out() {
    let (mut s, mut ctl) = (small(), Mock::new());
    s.fill(&mut ctl, 3).unwrap();
    let mut order = vec![];
    for _ in 0..6 {
        let (ids, _) = map(&mut s, &mut ctl, ONE).unwrap();
        order.push(ids[0]);
        s.on_event(ids[0], Event::Invalidated).unwrap();
    }
    assert_eq!(order[..3], order[3..]);
    assert_ne!(order[0], order[1]);
}

#[test]
fn pool_04_a_failed_fill_keeps_what_it_has() {
    let (mut s, mut ctl) = (small(), Mock::new());
    ctl.fail_alloc(3);
    assert_eq!(s.fill(&mut ctl, 5).unwrap_err().verb, Verb::AllocMr);
    assert_eq!((s.stats().free, ctl.live()), (2, 2));
    s.fill(&mut ctl, 5).unwrap();
    assert_eq!((s.stats().free, ctl.live()), (5, 5));
}

#[test]
fn pool_06_the_pool_is_bounded() {
    let (mut s, mut ctl) = (small(), Mock::new());
    s.fill(&mut ctl, 1_000_000).unwrap();
    assert_eq!(ctl.live(), 16);
    for _ in 0..16 {
        map(&mut s, &mut ctl, ONE).unwrap();
    }
    let e = map(&mut s, &mut ctl, ONE).unwrap_err();
    assert_eq!(e, MapError::NoRegion { condemned: 0, busy: 16 });
    assert_eq!(ctl.live(), 16);
    let few = open(&Caps { max_mr: 2, ..Caps::default() }, 128);
    assert!(matches!(few.mechanism, Some(Mechanism::PageList { pool_limit: 2, .. })));
}

#[test]
fn h_38_one_list_of_many_pieces_fits_the_smallest_pool() {
    let mut s = open(&Caps::default(), 1);
    let mut ctl = Mock::new();
    let (ids, _) = map(&mut s, &mut ctl, &[(512, 100); MAX_REGIONS]).unwrap();
    assert_eq!(ids.len(), MAX_REGIONS);
}

#[test]
fn map_01_an_empty_pool_says_what_it_waits_for() {
    let (mut s, mut ctl) = (small(), Mock::new());
    let mut ids = vec![];
    for _ in 0..16 {
        ids.extend(map(&mut s, &mut ctl, ONE).unwrap().0);
    }
    for &id in &ids[..5] {
        s.on_event(id, Event::RegUnknown).unwrap();
    }
    let e = map(&mut s, &mut ctl, ONE).unwrap_err();
    assert_eq!(e, MapError::NoRegion { condemned: 5, busy: 11 });
    assert_eq!(s.recover(&mut ctl, 2), Ok(2));
    map(&mut s, &mut ctl, ONE).unwrap();
}

#[test]
fn map_01_a_full_device_is_waited_for_only_if_regions_return() {
    let (mut s, mut ctl) = (small(), Mock::new());
    ctl.max = Some(0);
    assert!(matches!(map(&mut s, &mut ctl, ONE), Err(MapError::Device(_))));
    ctl.max = Some(1);
    map(&mut s, &mut ctl, ONE).unwrap();
    let e = map(&mut s, &mut ctl, ONE).unwrap_err();
    assert_eq!(e, MapError::NoRegion { condemned: 0, busy: 1 });
    // A refusal that waiting does not mend is shown as it is.
    ctl.max = None;
    ctl.fail_alloc(1);
    assert!(matches!(map(&mut s, &mut ctl, ONE), Err(MapError::Device(_))));
}

#[test]
fn h_16_a_failed_map_takes_nothing() {
    let (mut s, mut ctl) = (open(&Caps::default(), 4), Mock::new());
    s.fill(&mut ctl, 3).unwrap();
    for _ in 0..1000 {
        ctl.fail_alloc(1);
        let mut out = WrBatch::new();
        assert!(map_into(&mut s, &mut ctl, &[(512, 100); 7], &mut out).is_err());
        assert!(out.wishes().is_empty());
    }
    let n = s.stats();
    assert_eq!((n.free, n.busy, n.condemned, ctl.live()), (3, 0, 0, 3));
}

#[test]
fn h_16_a_full_batch_takes_nothing() {
    let (mut s, mut ctl) = (small(), Mock::new());
    let mut out = WrBatch::new();
    for _ in 0..MAX_REGIONS - 1 {
        out.invalidate(RegionId::default()).unwrap();
    }
    let e = map_into(&mut s, &mut ctl, &[(512, 100), (0, 1)], &mut out).unwrap_err();
    assert_eq!(e, MapError::TooManyRegions);
    // The region named before the batch was full comes back by its event, the other came back at
    // once.
    let Some(Wish::Register(named, _)) = out.wishes().last().cloned() else { panic!() };
    s.on_event(named, Event::NeverPosted).unwrap();
    assert_eq!((s.stats().free, s.stats().busy), (2, 0));
    s.pool.assert_sound();
}

#[test]
fn h_25_h_48_regions_never_posted_are_idle_again_without_any_call() {
    let (mut s, mut ctl) = (small(), Mock::new());
    for _ in 0..100 {
        let (ids, _) = map(&mut s, &mut ctl, &[(512, 100), (0, 1)]).unwrap();
        for id in ids {
            s.on_event(id, Event::NeverPosted).unwrap();
        }
    }
    assert_eq!(ctl.calls, [Call::Alloc(16, FastMrKind::Pages), Call::Alloc(16, FastMrKind::Pages)]);
}

#[test]
fn b18_gap_regions_have_their_own_pool() {
    let (mut s, mut ctl) = (gappy(), Mock::new());
    s.fill(&mut ctl, 2).unwrap();
    let kinds: Vec<_> = ctl
        .calls
        .iter()
        .map(|c| match c {
            Call::Alloc(_, kind) => *kind,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, [FastMrKind::Pages, FastMrKind::Pages, FastMrKind::Gaps]);
    ctl.calls.clear();
    let (hole, _) = map(&mut s, &mut ctl, HOLE).unwrap();
    let (full, _) = map(&mut s, &mut ctl, &[(0, 16 * 4096)]).unwrap();
    assert_eq!((hole.len(), full.len()), (1, 1), "one key each");
    assert!(ctl.calls.is_empty());
    map(&mut s, &mut ctl, HOLE).unwrap();
    assert!(matches!(ctl.calls[..], [Call::Alloc(_, FastMrKind::Gaps)]), "made on demand");
    s.pool.assert_sound();
}

#[test]
fn b18_no_gap_region_without_the_capability() {
    let (mut s, mut ctl) = (open(&Caps::default(), 4), Mock::new());
    s.fill(&mut ctl, 2).unwrap();
    assert_eq!(map(&mut s, &mut ctl, HOLE).unwrap().0.len(), 3);
    assert!(!ctl.calls.iter().any(|c| matches!(c, Call::Alloc(_, FastMrKind::Gaps))));
}

#[test]
fn uns_04_every_live_region_is_named_once() {
    let (mut s, mut ctl) = (small(), Mock::new());
    let (ids, _) = map(&mut s, &mut ctl, &[(512, 100), (0, 1), (7, 1)]).unwrap();
    // The peer has invalidated the second; the engine does not list it any more (H-28).
    s.on_event(ids[1], Event::RemoteInvalidated).unwrap();
    let mut out = WrBatch::new();
    s.unmap(&mut ctl, &[ids[0], ids[2]], &mut out).unwrap();
    assert_eq!(out.wishes(), [Wish::Invalidate(ids[0]), Wish::Invalidate(ids[2])]);
    assert_eq!(s.state(ids[0]), Some(State::Valid), "until the engine has the proof");
}

#[test]
fn h_03_h_04_a_region_of_unknown_key_is_ended_not_invalidated() {
    let (mut s, mut ctl) = (small(), Mock::new());
    let (ids, _) = map(&mut s, &mut ctl, &[(512, 100), (0, 1)]).unwrap();
    s.on_event(ids[0], Event::RegUnknown).unwrap();
    let mut out = WrBatch::new();
    s.unmap(&mut ctl, &ids, &mut out).unwrap();
    assert_eq!(out.wishes(), [Wish::Invalidate(ids[1])]);
    assert_eq!(ctl.calls.last(), Some(&Call::Dereg(ids[0])));
    assert_eq!((s.state(ids[0]), s.stats().ended), (None, 1));
    // It is not ended a second time, and late news of it harms nothing.
    assert_eq!(s.recover(&mut ctl, 10), Ok(0));
    s.on_event(ids[0], Event::Invalidated).unwrap();
    assert_eq!(s.stats().strays, 1);
    s.pool.assert_sound();
}

#[test]
fn unmap_poisons_when_it_cannot_name_a_region() {
    let (mut s, mut ctl) = (small(), Mock::new());
    let (ids, _) = map(&mut s, &mut ctl, ONE).unwrap();
    let mut out = WrBatch::new();
    assert!(s.unmap(&mut ctl, &[RegionId::default()], &mut out).is_err());
    assert!(s.unmap(&mut ctl, &[ids[0]; 17], &mut out).is_err());
    s.on_event(ids[0], Event::InvUnknown).unwrap();
    ctl.fail_dereg(1);
    assert!(s.unmap(&mut ctl, &ids, &mut out).is_err());
    assert_eq!(s.state(ids[0]), Some(State::FlushedLi), "it may still end");
    assert_eq!(s.recover(&mut ctl, 1), Ok(1));
    let idle = s.pool.take(FastMrKind::Pages).unwrap();
    s.pool.untake(idle);
    assert!(s.unmap(&mut ctl, &[idle], &mut out).is_err());
}

#[test]
fn st_08_rst_01_rst_03_h_39_recovery_makes_a_new_region() {
    for event in [Event::RegUnknown, Event::InvUnknown] {
        let (mut s, mut ctl) = (gappy(), Mock::new());
        let (ids, _) = map(&mut s, &mut ctl, HOLE).unwrap();
        s.on_event(ids[0], event).unwrap();
        ctl.calls.clear();
        assert_eq!(s.recover(&mut ctl, 5), Ok(1));
        assert_eq!(ctl.calls, [Call::Dereg(ids[0]), Call::Alloc(257, FastMrKind::Gaps)]);
        assert_eq!((s.state(ids[0]), s.stats().recovered), (None, 1));
        let (again, _) = map(&mut s, &mut ctl, HOLE).unwrap();
        assert_ne!(again, ids);
        s.pool.assert_sound();
    }
}

#[test]
fn d_02_st_09_rec_05_failures_of_recovery() {
    let (mut s, mut ctl) = (small(), Mock::new());
    let (ids, _) = map(&mut s, &mut ctl, &[(512, 100), (0, 1)]).unwrap();
    s.on_event(ids[0], Event::RegUnknown).unwrap();
    s.on_event(ids[1], Event::InvUnknown).unwrap();
    // Dereg fails: the region stays condemned, and the other gets its turn first.
    ctl.fail_dereg(1);
    assert_eq!(s.recover(&mut ctl, 5).unwrap_err().verb, Verb::DeregMr);
    assert_eq!((s.stats().condemned, s.state(ids[0])), (2, Some(State::FlushedFr)));
    // Alloc fails after dereg: the region is gone, and is not ended twice (the mock checks).
    ctl.fail_alloc(1);
    assert_eq!(s.recover(&mut ctl, 5).unwrap_err().verb, Verb::AllocMr);
    assert_eq!((s.state(ids[1]), s.stats().orphaned, s.stats().condemned), (None, 1, 1));
    assert_eq!(s.recover(&mut ctl, 5), Ok(1));
    assert_eq!((s.stats().free, ctl.live()), (1, 1));
    // The pool grows back on demand.
    s.fill(&mut ctl, 16).unwrap();
    assert_eq!(ctl.live(), 16);
    s.pool.assert_sound();
}

#[test]
fn d_12_recovery_keeps_to_its_budget() {
    let (mut s, mut ctl) = (small(), Mock::new());
    let (ids, _) = map(&mut s, &mut ctl, &[(512, 100); 10]).unwrap();
    for id in ids {
        s.on_event(id, Event::RegUnknown).unwrap();
    }
    assert_eq!(s.recover(&mut ctl, 0), Ok(0));
    assert_eq!(s.recover(&mut ctl, 4), Ok(4));
    assert_eq!(s.recover(&mut ctl, 40), Ok(6));
}

#[test]
fn h_18_regions_that_do_not_end_stay_within_the_bound() {
    let (mut s, mut ctl) = (small(), Mock::new());
    for round in 0..500 {
        while let Ok((ids, _)) = map(&mut s, &mut ctl, ONE) {
            s.on_event(ids[0], Event::RegUnknown).unwrap();
        }
        if round % 10 == 0 {
            ctl.fail_dereg(1);
        }
        let _ = s.recover(&mut ctl, 3);
        assert!(ctl.live() <= 16);
    }
}

#[test]
fn h_55_regions_still_out_when_the_qp_is_gone_are_rebuilt() {
    let (mut s, mut ctl) = (small(), Mock::new());
    s.fill(&mut ctl, 4).unwrap();
    let (ids, _) = map(&mut s, &mut ctl, &[(512, 100), (0, 1)]).unwrap();
    s.on_event(ids[0], Event::Registered).unwrap();
    s.on_drained();
    let n = s.stats();
    assert_eq!((n.free, n.busy, n.condemned), (2, 0, 2));
    assert_eq!(s.recover(&mut ctl, 10), Ok(2));
    assert_eq!(s.stats().free, 4);
}

#[test]
fn a_region_that_the_engine_ended_by_itself_leaves_no_trace() {
    let (mut s, mut ctl) = (small(), Mock::new());
    s.fill(&mut ctl, 2).unwrap();
    let (ids, _) = map(&mut s, &mut ctl, ONE).unwrap();
    ctl.engine_ends(ids[0]);
    s.on_event(ids[0], Event::RegUnknown).unwrap();
    // The next region takes over the slot of the old one.
    s.fill(&mut ctl, 2).unwrap();
    s.pool.assert_sound();
    assert_eq!((s.stats().condemned, ctl.live()), (0, 2));
    assert_eq!(s.recover(&mut ctl, 9), Ok(0));
}

/// Windows and no page list: what hardware shows to a program.
fn windowed(credits: u32) -> (Frwr, Caps) {
    let caps = Caps {
        max_fast_reg_page_list_len: 0,
        mem_window_type_2b: true,
        max_mw: 1000,
        ..Caps::default()
    };
    (open(&caps, credits), caps)
}

#[test]
fn b13_b23_windows_are_used_only_where_they_exist_and_are_needed() {
    let (_, windows) = windowed(1);
    assert_eq!(Frwr::new().check(&windows), Ok(()));
    let none = Caps { max_mw: 0, ..windows.clone() };
    let e = Frwr::new().check(&none).unwrap_err();
    assert_eq!(e, Reject::NoWindows { type_2b: true, max_mw: 0 });
    let text = "device announces MEM_MGT_EXTENSIONS with page list length 0, and no type-2 windows \
                (2B announced, max_mw 0)";
    assert_eq!(e.to_string(), text);
    let flag = Caps { mem_mgt_extensions: false, ..windows.clone() };
    assert_eq!(Frwr::new().check(&flag), Err(Reject::Missing("MEM_MGT_EXTENSIONS")));
    // With a page list, REG_MR it is.
    let both = Caps { max_fast_reg_page_list_len: 512, ..windows };
    let l = Frwr::new().open(&both, &Ask::default()).unwrap();
    assert_eq!((l.mechanism, l.key_scope), ("page list", KeyScope::Pd));
    let (mut s, mut ctl) = (open(&both, 1), Mock::new());
    map(&mut s, &mut ctl, ONE).unwrap();
    assert!(!ctl.calls.contains(&Call::AllocWindow));
}

#[test]
fn opn_09_windows_count_ranges_and_their_keys_are_qp_bound() {
    let (_, caps) = windowed(1);
    let l = Frwr::new().open(&caps, &Ask::default()).unwrap();
    assert_eq!((l.mechanism, l.page_list_depth), ("window", 0));
    assert_eq!((l.regions_per_request, l.wr_per_request, l.credits), (4, 9, 128));
    assert_eq!((l.key_scope, l.remote_invalidation), (KeyScope::Qp, true));
    assert!(l.clamped.is_empty());
}

#[test]
fn map_06_a_window_a_segment_and_never_one_for_two() {
    let (mut s, mut ctl) = (windowed(4).0, Mock::new());
    // Joined at page boundaries: one page list would do for all.
    let (ids, out) = map(&mut s, &mut ctl, &[(0, 8192), (0, 4096), (512, 100)]).unwrap();
    let want = [(0, 8192), (8192, 12288), (12288, 12388)];
    let want: Vec<_> =
        ids.iter().zip(want).map(|(&id, (from, to))| Wish::Register(id, from..to)).collect();
    assert_eq!(out.wishes(), want);
    assert_eq!(ctl.calls, [const { Call::AllocWindow }; 3]);
    let mut inv = WrBatch::new();
    s.unmap(&mut ctl, &ids, &mut inv).unwrap();
    inv.spell_out_all(&ids);
    assert_eq!(inv.wishes(), ids.iter().map(|&i| Wish::Invalidate(i)).collect::<Vec<_>>());
    for id in ids {
        s.on_event(id, Event::Invalidated).unwrap();
    }
    map(&mut s, &mut ctl, ONE).unwrap();
    assert_eq!(ctl.calls.len(), 3, "a warm pool makes none");
}

/// Maps segments of these lengths and returns the batch as it is.
fn batch(s: &mut Frwr, ctl: &mut Mock, lens: &[u64]) -> Result<WrBatch, MapError> {
    let segs: Vec<_> = lens.iter().map(|&len| SegShape { page_offset: 0, len }).collect();
    let mut out = WrBatch::new();
    s.map(ctl, &SegList::new(&segs, 4096), &mut out).map(|()| out)
}

#[test]
fn one_window_on_each_segment_is_one_wish() {
    let (mut s, mut ctl) = (windowed(128).0, Mock::new());
    let out = batch(&mut s, &mut ctl, &[1, (2 << 30) - 4097, 4096]).unwrap();
    assert_eq!((out.each().len(), out.wishes().len()), (3, 0));
    assert!(out.each().iter().all(|&id| s.state(id) == Some(State::Valid)));
    let full = batch(&mut s, &mut ctl, &[9; MAX_REGIONS]).unwrap();
    assert_eq!(full.each().len(), MAX_REGIONS);
    // Where a segment needs two windows, single wishes say which bytes; what cannot be mapped is
    // refused as ever.
    let cut = batch(&mut s, &mut ctl, &[1, (2 << 30) + 1]).unwrap();
    assert_eq!((cut.each().len(), cut.wishes().len()), (0, 3));
    for (lens, why) in [
        (&[][..], MapError::Other("length is zero")),
        (&[0], MapError::Other("length is zero")),
        (&[4096, 0, 1], MapError::Other("length is zero")),
        (&[1; MAX_REGIONS + 1], MapError::TooManyRegions),
    ] {
        let before = s.stats();
        assert_eq!(batch(&mut s, &mut ctl, lens).unwrap_err(), why, "{lens:?}");
        assert_eq!(s.stats(), before);
    }
    // In a batch that somebody has used already it cannot stand alone.
    let mut out = WrBatch::new();
    out.invalidate(RegionId::default()).unwrap();
    map_into(&mut s, &mut ctl, ONE, &mut out).unwrap();
    assert_eq!((out.each().len(), out.wishes().len()), (0, 2));
    s.pool.assert_sound();
}

#[test]
fn h_16_a_failed_map_of_windows_takes_nothing() {
    let (mut s, mut ctl) = (windowed(4).0, Mock::new());
    s.fill(&mut ctl, 3).unwrap();
    ctl.fail_alloc(2);
    assert!(batch(&mut s, &mut ctl, &[1; 7]).is_err());
    let n = s.stats();
    assert_eq!((n.free, n.busy, ctl.live()), (4, 0, 4));
    s.pool.assert_sound();
}

#[test]
fn pool_03_many_windows_are_reused_first_in_first_out() {
    let (mut s, mut ctl) = (windowed(4).0, Mock::new());
    s.fill(&mut ctl, 7).unwrap();
    let mut order = vec![];
    for _ in 0..7 {
        let ids = batch(&mut s, &mut ctl, &[1; 4]).unwrap().each().to_vec();
        s.on_events(&ids, Event::Registered).unwrap();
        s.on_events(&ids, Event::Invalidated).unwrap();
        order.extend(ids);
    }
    assert_eq!(order[..21], order[7..]);
    assert_eq!(s.stats().free, 7);
    s.pool.assert_sound();
}

#[test]
fn h_03_windows_are_revoked_in_one_wish_unless_one_is_condemned() {
    let (mut s, mut ctl) = (windowed(4).0, Mock::new());
    let ids = batch(&mut s, &mut ctl, &[1; 3]).unwrap().each().to_vec();
    let (mut all, mut some) = (WrBatch::new(), WrBatch::new());
    s.unmap(&mut ctl, &ids, &mut all).unwrap();
    assert!(all.is_all() && all.wishes().is_empty());
    assert!(ids.iter().all(|&id| s.state(id) == Some(State::Valid)), "until there is proof");
    s.on_events(&ids[1..2], Event::RegUnknown).unwrap();
    s.unmap(&mut ctl, &ids, &mut some).unwrap();
    assert!(!some.is_all());
    assert_eq!(some.wishes(), [Wish::Invalidate(ids[0]), Wish::Invalidate(ids[2])]);
    assert_eq!(ctl.calls.last(), Some(&Call::Dereg(ids[1])));
    // More than were handed out: what the engine lists is not of this pool.
    let unknown = [ids[0], ids[2], RegionId::default()];
    assert!(s.unmap(&mut ctl, &unknown, &mut WrBatch::new()).is_err());
    s.pool.assert_sound();
}

/// Regions in every state, of both kinds, and one that is not of this pool.
#[test]
fn events_of_many_are_those_of_each() {
    use Event::*;
    let prepare = || {
        let (mut s, mut ctl) = (gappy(), Mock::new());
        let mut ids = vec![RegionId::default()];
        for list in [ONE, ONE, ONE, HOLE, ONE, HOLE] {
            ids.extend(map(&mut s, &mut ctl, list).unwrap().0);
        }
        s.on_event(ids[1], Invalidated).unwrap();
        s.on_event(ids[2], InvUnknown).unwrap();
        // The same one twice, too.
        ids.push(ids[3]);
        (s, ids)
    };
    for event in [Registered, RegUnknown, Invalidated, InvUnknown, RemoteInvalidated, NeverPosted] {
        let ((mut many, ids), (mut single, _)) = (prepare(), prepare());
        many.on_events(&ids, event).unwrap();
        ids.iter().for_each(|&id| single.on_event(id, event).unwrap());
        assert_eq!(many.stats(), single.stats(), "{event:?}");
        assert_eq!(format!("{:?}", many.pool), format!("{:?}", single.pool), "{event:?}");
        assert_eq!(many.stats().strays, u64::from(event != Registered));
        many.pool.assert_sound();
    }
}

#[test]
fn windows_longer_than_the_bind_takes_are_several() {
    let (mut s, mut ctl) = (windowed(1).0, Mock::new());
    let (_, out) = map(&mut s, &mut ctl, &[(7, (5 << 30) + 1), (0, 1)]).unwrap();
    let bytes: Vec<_> = out
        .wishes()
        .iter()
        .map(|w| match w {
            Wish::Register(_, bytes) => bytes.end - bytes.start,
            Wish::Invalidate(_) => panic!(),
        })
        .collect();
    assert_eq!(bytes, [2 << 30, 2 << 30, (1 << 30) + 1, 1]);
    let e = map(&mut s, &mut ctl, &[(0, u64::MAX)]).unwrap_err();
    assert_eq!(e, MapError::TooManyRegions);
    assert_eq!(map(&mut s, &mut ctl, &[(0, 1); 17]).unwrap_err(), MapError::TooManyRegions);
}

#[test]
fn pool_06_windows_are_bounded_by_max_mw() {
    let (_, caps) = windowed(1);
    let caps = Caps { max_mw: 5, ..caps };
    let (mut s, mut ctl) = (open(&caps, 128), Mock::new());
    s.fill(&mut ctl, 100).unwrap();
    assert_eq!(ctl.live(), 5);
    // Not "no region is free": waiting would be for ever.
    let e = map(&mut s, &mut ctl, &[(0, 1); 6]).unwrap_err();
    assert_eq!(e.disposition(), memreg_core::Disposition::Fatal);
    map(&mut s, &mut ctl, &[(0, 1); 5]).unwrap();
    let e = map(&mut s, &mut ctl, ONE).unwrap_err();
    assert_eq!(e, MapError::NoRegion { condemned: 0, busy: 5 });
}

#[test]
fn rst_03_h_55_all_windows_are_rebuilt_after_a_reconnect() {
    let (mut s, mut ctl) = (windowed(4).0, Mock::new());
    s.fill(&mut ctl, 4).unwrap();
    let (ids, _) = map(&mut s, &mut ctl, &[(0, 1), (0, 1)]).unwrap();
    s.on_event(ids[0], Event::Registered).unwrap();
    // The engine ends every window before the QP, and says so of each.
    let all: Vec<_> = ctl.regions().collect();
    for id in all {
        ctl.engine_ends(id);
        s.on_event(id, Event::RegUnknown).unwrap();
    }
    s.on_drained();
    assert_eq!((s.stats().condemned, s.stats().free, ctl.live()), (4, 0, 0));
    assert_eq!(s.recover(&mut ctl, usize::MAX), Ok(4));
    assert_eq!((s.stats().free, ctl.live()), (4, 4));
    s.pool.assert_sound();
}

#[test]
fn windows_are_not_lost_when_there_is_no_qp_to_make_them_after() {
    let (mut s, mut ctl) = (windowed(4).0, Mock::new());
    let (ids, _) = map(&mut s, &mut ctl, &[(0, 1), (0, 1)]).unwrap();
    for &id in &ids {
        s.on_event(id, Event::RegUnknown).unwrap();
    }
    ctl.no_qp = true;
    let e = s.recover(&mut ctl, 9).unwrap_err();
    assert_eq!((e.verb, e.errno), (Verb::AllocMw, memreg_core::device::errno::EAGAIN));
    assert!(map(&mut s, &mut ctl, ONE).is_err());
    ctl.no_qp = false;
    assert_eq!(s.recover(&mut ctl, 9), Ok(1));
    s.fill(&mut ctl, 4).unwrap();
    assert_eq!((s.stats().free, ctl.live()), (4, 4));
    s.pool.assert_sound();
}

#[derive(Clone, Debug)]
enum Step {
    Map(Vec<(u32, u64)>),
    /// Of one exposure, chosen by number: unmap it, then this event for each of its regions in
    /// turn.
    Unmap(usize, Vec<Event>),
    Event(usize, Event),
    Fill(usize),
    Recover(usize),
    Drained,
    FailAlloc(usize),
    FailDereg(usize),
}

fn step() -> impl Strategy<Value = Step> {
    use Event::*;
    let event = prop::sample::select(vec![
        Registered,
        RegUnknown,
        Invalidated,
        InvUnknown,
        RemoteInvalidated,
        NeverPosted,
    ]);
    let seg = (prop_oneof![Just(0u32), 0..4096u32], prop_oneof![Just(4096u64), 1..20_000u64]);
    prop_oneof![
        6 => prop::collection::vec(seg, 1..6).prop_map(Step::Map),
        4 => (any::<usize>(), prop::collection::vec(event.clone(), 1..6))
            .prop_map(|(n, e)| Step::Unmap(n, e)),
        4 => (any::<usize>(), event).prop_map(|(n, e)| Step::Event(n, e)),
        1 => (0..40usize).prop_map(Step::Fill),
        3 => (0..6usize).prop_map(Step::Recover),
        1 => Just(Step::Drained),
        1 => (1..4usize).prop_map(Step::FailAlloc),
        1 => (1..4usize).prop_map(Step::FailDereg),
    ]
}

proptest! {
    #[test]
    fn h_35_every_region_is_in_exactly_one_place(
        steps in prop::collection::vec(step(), 1..80),
        gaps: bool,
        windows: bool,
    ) {
        let caps = Caps { sg_gaps: gaps, max_fast_reg_page_list_len: 4, ..Caps::default() };
        let caps = if windows { Caps { max_mw: 20, ..windowed(1).1 } } else { caps };
        let (mut s, mut ctl) = (open(&caps, 1), Mock::new());
        // Exposures as the engine sees them: regions that may be live. Which ever handed out:
        let mut exposures: Vec<Vec<RegionId>> = vec![];
        for st in steps {
            match st {
                Step::Map(list) => {
                    let mut out = WrBatch::new();
                    match map_into(&mut s, &mut ctl, &list, &mut out) {
                        Ok(ids) => {
                            for id in &ids {
                                prop_assert!(exposures.iter().flatten().all(|e| e != id));
                            }
                            exposures.push(ids);
                        }
                        Err(_) => prop_assert!(out.wishes().is_empty()),
                    }
                }
                Step::Unmap(n, events) if !exposures.is_empty() => {
                    let at = n % exposures.len();
                    let ids = exposures.swap_remove(at);
                    let live: Vec<_> =
                        ids.into_iter().filter(|&i| s.state(i).is_some()).collect();
                    let _ = s.unmap(&mut ctl, &live, &mut WrBatch::new());
                    match events[..] {
                        [event] => s.on_events(&live, event).unwrap(),
                        _ => live
                            .into_iter()
                            .zip(events.into_iter().cycle())
                            .for_each(|(id, event)| s.on_event(id, event).unwrap()),
                    }
                }
                Step::Event(n, event) => {
                    let all: Vec<_> = exposures.iter().flatten().copied().collect();
                    let id = all.get(n % all.len().max(1)).copied().unwrap_or_default();
                    s.on_event(id, event).unwrap();
                    if s.state(id) != Some(State::Valid) {
                        exposures.iter_mut().for_each(|e| e.retain(|&i| i != id));
                    }
                }
                Step::Fill(n) => drop(s.fill(&mut ctl, n)),
                Step::Recover(n) => drop(s.recover(&mut ctl, n)),
                Step::Drained => {
                    s.on_drained();
                    exposures.clear();
                }
                Step::FailAlloc(k) => ctl.fail_alloc(k),
                Step::FailDereg(k) => ctl.fail_dereg(k),
                Step::Unmap(..) => {}
            }
            exposures.retain(|e| !e.is_empty());
            s.pool.assert_sound();
            let n = s.stats();
            // None is lost: what the device has is what the pool knows (H-16).
            prop_assert_eq!(n.free + n.busy + n.condemned, ctl.live() as u64);
        }
    }
}
