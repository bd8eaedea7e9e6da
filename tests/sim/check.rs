//! What must hold after every step.

use super::side::Side;
use super::world::World;
use memreg_core::device::sim::SimCounters;
use memreg_core::device::{Device, QpState};
use memreg_core::transport::{ExposureState, State};
use memreg_core::types::Segment;
use std::collections::BTreeMap;

impl World {
    /// All invariants, of every side and every node.
    pub fn check(&mut self) {
        let mut nodes = BTreeMap::new();
        for side in self.conns.iter_mut().flat_map(|c| &mut c.sides) {
            side.book.read(side.t.ledger());
            check_exposures(side);
            check_counts(side);
            side.check_spares();
            let node = nodes.entry(side.node.id().0).or_insert_with(|| OnNode::new(side));
            node.add(side);
        }
        nodes.values().for_each(|node| node.check(self.own_buffers));
        if self.plan.calm {
            for side in self.conns.iter().flat_map(|c| &c.sides) {
                assert_eq!(*side.t.state(), State::Up, "down without a fault");
                let state = side.t.queue_pair().map(|qp| side.node.qp_state(qp));
                assert_eq!(state, Some(Ok(QpState::Rts)), "in error without a fault");
            }
        }
    }
}

/// What a device counts, and the sums of what those on it do.
struct OnNode {
    counters: SimCounters,
    gone: bool,
    live_by_wr: u64,
    wrs: u64,
    drains_forced: u64,
    mapped_least: u64,
    mapped_most: u64,
}

impl OnNode {
    fn new(side: &Side) -> OnNode {
        let (counters, gone) = (side.node.counters(), side.node_gone);
        let (live_by_wr, wrs, drains_forced, mapped_least, mapped_most) = (0, 0, 0, 0, 0);
        OnNode { counters, gone, live_by_wr, wrs, drains_forced, mapped_least, mapped_most }
    }

    fn add(&mut self, side: &Side) {
        self.live_by_wr += side.book.live_by_wr();
        if !self.gone {
            self.wrs += side.t.stats().wrs - side.faults.counts().sends_swallowed;
            self.drains_forced += side.t.stats().drains_forced;
            let (least, most) = side.mapped_bytes();
            self.mapped_least += least;
            self.mapped_most += most;
        }
    }

    fn check(&self, own_buffers: bool) {
        let c = &self.counters;
        assert_eq!(c.iommu_faults, 0, "a live key reached memory that was taken back");
        let (valid, counted) = (c.fast_mrs_valid + c.mws_bound, self.live_by_wr);
        assert!(valid <= counted, "{valid} keys are valid on the device, {counted} count as live");
        if self.gone {
            return;
        }
        assert_eq!(self.wrs, c.send_wrs_posted, "WRs are miscounted");
        // No QP goes with a WR that is not accounted for, unless its drain was given up.
        let (undrained, forced) = (c.qps_destroyed_undrained, self.drains_forced);
        assert!(undrained <= forced, "rule 8: {undrained} QPs not drained, {forced} given up");
        // What is exposed is mapped, and nothing else is but messages, arenas, what is under way,
        // and what was left to the transport or leaked.
        let (mapped, least, most) = (c.mapped_bytes, self.mapped_least, self.mapped_most);
        assert!(least <= mapped, "{mapped} bytes are mapped, {least} are in use");
        let known = mapped <= most || own_buffers;
        assert!(known, "{mapped} bytes are mapped, {most} can be in use");
    }
}

/// States only go forward, and what is fenced has no key left.
fn check_exposures(side: &mut Side) {
    let Side { t, out, book, dead, .. } = side;
    for lent in out.iter_mut() {
        let state = t.exposure_state(&lent.handle).expect("the slot of a held handle is there");
        let was = std::mem::replace(&mut lent.state, state);
        let back = was == ExposureState::Revoking && state == ExposureState::Exposed;
        assert!(rank(state) >= rank(was) || back, "{was:?} became {state:?}");
        let left = |seg: &&Segment| book.is_left_open(seg.rkey.to_bits());
        let left = lent.segs.iter().find(left);
        let revoked = state != ExposureState::Revoking || *t.state() != State::Up;
        assert!(revoked || left.is_none(), "rule 6: revoked, but for {left:?}");
        if rank(was) < 3 && rank(state) == 3 {
            let physical = t.limits().arena_bytes > 0;
            for seg in &lent.segs {
                let open = !physical && book.is_live(seg.rkey.to_bits());
                assert!(!open, "fenced with a live key");
            }
            dead.extend(lent.segs.iter().copied());
            let old = dead.len().saturating_sub(DEAD_KEYS);
            dead.drain(..old);
        }
    }
}

/// Keys that are remembered for a peer to try.
const DEAD_KEYS: usize = 300;

fn rank(state: ExposureState) -> u32 {
    match state {
        ExposureState::Staged => 0,
        ExposureState::Exposed => 1,
        ExposureState::Revoking => 2,
        ExposureState::Fenced | ExposureState::Held => 3,
    }
}

/// Queue slots and counters add up.
fn check_counts(side: &Side) {
    let t = &side.t;
    let (outstanding, depth) = t.send_queue();
    assert!(outstanding <= depth, "{outstanding} WRs on a queue of {depth}");
    if let Some(qp) = t.queue_pair()
        && let Some(device) = side.node.sq_in_use(qp)
    {
        assert!(device as usize <= outstanding, "the device holds {device}, we {outstanding}");
    }
    let s = t.stats();
    assert!(s.wrs_signaled <= s.wrs && s.outstanding_max as usize <= depth);
    let fenced = side.out.iter().filter(|l| rank(l.state) == 3).count() as u64;
    let handles = side.out.len() as u64;
    let held = handles + side.forgotten;
    assert!(s.exposures_now >= held, "{} slots for {held} handles", s.exposures_now);
    let given_up = s.exposures_now - handles;
    let freed = s.exposures - s.exposures_now;
    assert!(s.fences >= freed + fenced, "{s:?}: freed {freed}, fenced {fenced}");
    assert!(s.fences <= freed + fenced + given_up, "{s:?}: an exposure ended twice");
    let ends = side.book.ends();
    let of = |rule| ends.get(rule).copied().unwrap_or(0);
    assert!(of("local-inv") <= s.invalidations && of("remote-inv") <= s.remote_invalidations);
}
