//! Ends and beginnings: reconnects, dead processes, removed devices.

use super::log::note;
use super::side::Side;
use super::tally::Tally;
use super::world::World;
use memreg_core::device::fault::FaultPlan;
use memreg_core::device::sim::{SimCounters, SimDevice};
use memreg_core::device::{Device, Verb, errno};
use memreg_core::transport::{NoReply, State};
use memreg_core::types::Grant;

impl World {
    /// Brings both ends as far as they get.
    pub fn reconnect(&mut self, c: usize) {
        for s in 0..2 {
            let side = &mut self.conns[c].sides[s];
            if !side.is_down() {
                continue;
            }
            if side.node_gone {
                let refused = side.t.reconnect();
                assert!(refused.is_err(), "reconnected on a device that is gone");
                self.replace(c, s);
            } else {
                let r = side.t.reconnect();
                note!(self.log, "  {c}.{s} {r:?}");
            }
        }
        let conn = &mut self.conns[c];
        if conn.sides.iter().all(|s| *s.t.state() == State::Ready) {
            self.tally.connections += 1;
            let ok = conn.connect();
            note!(self.log, "  connected: {ok}");
        }
    }

    /// The device of a side is pulled out; every transport on it will hear.
    pub fn unplug(&mut self, c: usize, s: usize) {
        let node = self.conns[c].sides[s].node.clone();
        if !self.conns[c].sides[s].node_gone {
            node.unplug();
            self.tally.fault("device removed", 1);
            for (c, s) in self.on_node(&node) {
                self.conns[c].sides[s].node_gone = true;
            }
        }
    }

    /// The process of a side dies, and a new one takes its place. What the dead one had is not
    /// looked at any more; it is driven to its end only so that the test gets its memory back.
    pub fn kill(&mut self, c: usize, s: usize) {
        let node = self.conns[c].sides[s].node.clone();
        if self.conns[c].sides[s].node_gone {
            return;
        }
        node.unplug();
        self.tally.fault("process killed", 1);
        for (c, s) in self.on_node(&node) {
            self.conns[c].sides[s].node_gone = true;
            self.end(c, s);
            self.replace(c, s);
        }
        node.kill();
    }

    fn on_node(&self, node: &SimDevice) -> Vec<(usize, usize)> {
        let all = (0..self.conns.len()).flat_map(|c| [(c, 0), (c, 1)]);
        all.filter(|&(c, s)| self.conns[c].sides[s].node.id() == node.id()).collect()
    }

    /// Polls a side whose device is gone until it is down.
    fn end(&mut self, c: usize, s: usize) {
        self.conns[c].sides[s].faults.heal();
        for _ in 0..4 {
            self.now = self.now.after(super::plan::DRAIN_LIMIT_NS);
            self.poll(c, s);
        }
        let side = &self.conns[c].sides[s];
        assert!(
            side.is_down() || *side.t.state() == State::Ready,
            "{:?} {:?}",
            side.t.state(),
            side.t.queue_pair()
        );
    }

    /// A new transport on a new node takes the place of one whose device is gone. All bytes come
    /// back first.
    fn replace(&mut self, c: usize, s: usize) {
        let node = self.conns[c].sides[s].node.clone();
        let node = self.replacement(&node);
        let plan = self.conns[c].sides[s].plan.clone();
        let faults = FaultPlan::new();
        if self.rng.bool() && !self.plan.calm {
            let verbs = [
                Verb::AllocPd,
                Verb::CreateCq,
                Verb::DmaMap,
                Verb::RegMr,
                Verb::CreateQp,
                Verb::ModifyQp,
                Verb::AllocMr,
            ];
            let verb = verbs[self.rng.usize(..verbs.len())];
            faults.fail_nth(verb, self.rng.usize(1..=3), 1, errno::ENOMEM);
        }
        let before = gauges(&node.counters());
        let new = Side::open_with(plan.clone(), node.clone(), faults.clone()).unwrap_or_else(|e| {
            note!(self.log, "  {c}.{s} open: {e}");
            let after = gauges(&node.counters());
            assert_eq!(after, before, "a failed open left something over");
            Side::open(plan, node).expect("the fault is over")
        });
        faults.heal();
        self.tally.wrapper(&faults.counts());
        let mut old = std::mem::replace(&mut self.conns[c].sides[s], new);
        self.empty(&mut old, c, s);
        let conn = &mut self.conns[c];
        conn.linked = None;
        conn.sides[1 - s].told.clear();
    }

    /// Takes everything back from a side that is about to go.
    fn empty(&mut self, old: &mut Side, c: usize, s: usize) {
        old.faults.heal();
        let _ = old.t.recover(usize::MAX);
        for i in (0..old.out.len()).rev() {
            old.out[i].state = old.t.exposure_state(&old.out[i].handle).unwrap();
            let back = old.reclaim(i);
            note!(self.log, "  {c}.{s} back: {back}");
        }
        old.check_spares();
        count_side(&mut self.tally, old);
    }

    /// One exposure there and back, undisturbed.
    pub fn cycle(&mut self, c: usize, s: usize) {
        let side = &mut self.conns[c].sides[s];
        let spare = side.spare.pop().unwrap_or_else(|| super::bytes::Spare::new(64, 1));
        let e = side.t.expose(spare.buf, Grant::PeerWrites).unwrap();
        side.t.flush().unwrap();
        side.t.revoke(&e, NoReply::Unmarked).unwrap();
        self.fabric.run(1000);
        side.t.poll(self.now).unwrap();
        side.book.read(side.t.ledger());
        let buf = side.t.reclaim(e).unwrap().into_first().unwrap();
        side.spare.push(super::bytes::Spare { buf, shadow: spare.shadow });
    }
}

/// Adds what a side counted to the totals.
pub fn count_side(tally: &mut Tally, side: &mut Side) {
    side.book.read(side.t.ledger());
    // The checker of traces must agree; it knows nothing of what the simulation knows.
    let audit = memreg::audit::audit(&side.t.ledger().to_string()).expect("a trace");
    assert!(audit.violations.is_empty(), "{audit}");
    if let Some(poison) = side.t.last_poison() {
        let audit = memreg::audit::audit(&poison.ledger.to_string()).expect("a trace");
        assert!(audit.violations.is_empty(), "of a poison: {audit}");
    }
    tally.wrapper(&side.faults.counts());
    tally.bytes_leaked += side.t.stats().bytes_leaked;
    for (rule, times) in side.book.ends() {
        *tally.ends.entry(rule).or_insert(0) += times;
    }
}

/// What exists on a node now.
pub fn gauges(c: &SimCounters) -> [u64; 7] {
    [c.pds, c.cqs, c.qps, c.mrs, c.mws, c.mapped_ranges, c.mapped_bytes]
}
