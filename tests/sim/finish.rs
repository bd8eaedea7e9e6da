//! The end of a run: nothing goes wrong any more, and everything must come to its end.

use super::life::count_side;
use super::log::note;
use super::side::Side;
use super::world::World;
use memreg_core::DmaBuf;
use memreg_core::device::Device;
use memreg_core::transport::error::Refusal;
use memreg_core::transport::{Buffers, Exposed, ExposureState, NoReply, Reply, State};
use memreg_core::types::{Grant, Segment};
use std::ops::Range;

/// What is in the buffers of the operation at the end, and which part of them is exposed.
const CLEAN: u8 = 3;
const CLEAN_RANGE: Range<usize> = 9..600;

/// Rounds within which everything must have ended.
const ROUNDS: usize = 3000;

impl World {
    pub fn finish(&mut self) {
        note!(self.log, "healed");
        for side in self.conns.iter().flat_map(|c| &c.sides) {
            side.faults.heal();
            side.honesty.swear();
        }
        self.settle();
        for c in 0..self.conns.len() {
            self.end_exposures(c);
        }
        for c in 0..self.conns.len() {
            self.take_all(c);
        }
        self.own_buffers = true;
        for c in 0..self.conns.len() {
            self.reconnected(c);
            for s in 0..2 {
                self.clean_operation(c, s);
                self.full_house(c, s);
            }
        }
        self.settle();
        self.check();
        for side in self.conns.iter().flat_map(|c| &c.sides) {
            let s = side.t.stats();
            assert_eq!(s.exposures_now, side.forgotten, "abandoned exposures are still there");
            let gone = side.bytes.missing;
            assert!(
                gone <= s.bytes_leaked && s.bytes_leaked <= gone + side.bytes.left,
                "{} bytes leaked, {gone} missing, {} left",
                s.bytes_leaked,
                side.bytes.left
            );
        }
        self.close();
    }

    /// Drives everything until nothing moves; taking messages keeps the other side going.
    fn settle(&mut self) {
        for _ in 0..ROUNDS {
            let mut moved = self.fabric.step();
            self.now = self.now.after(40);
            for c in 0..self.conns.len() {
                for s in 0..2 {
                    moved |= self.poll(c, s);
                    while self.recv(c, s) {
                        moved = true;
                    }
                    moved |= *self.conns[c].sides[s].t.state() == State::Draining;
                }
            }
            self.check();
            if !moved {
                return;
            }
        }
        let states: Vec<_> =
            self.conns.iter().flat_map(|c| &c.sides).map(|s| s.t.state().clone()).collect();
        panic!("not at rest after {ROUNDS} rounds: {states:?}");
    }

    /// Every exposure is fenced: revoked where the connection works, else by taking it down.
    fn end_exposures(&mut self, c: usize) {
        let conn = &mut self.conns[c];
        let forgotten = conn.sides.iter().any(|s| s.forgotten_now > 0);
        if conn.is_up() && !conn.lossy && !forgotten {
            for side in &mut conn.sides {
                for lent in &side.out {
                    // All messages have been taken: no reply can come any more.
                    let r = side.t.revoke(&lent.handle, NoReply::NoneCanCome);
                    note!(self.log, "  {}: {r:?}", lent.serial);
                    let done = rank_fenced(lent.state) || r.is_ok();
                    assert!(done, "not revoked on a working connection: {r:?}");
                }
            }
            self.settle();
        }
        let conn = &mut self.conns[c];
        if !conn.is_up() || conn.lossy || forgotten {
            conn.sides.iter_mut().for_each(|s| s.t.disconnect());
            self.settle();
            for s in 0..2 {
                let side = &mut self.conns[c].sides[s];
                assert!(side.is_down(), "{:?} after a disconnect", side.t.state());
                let r = side.t.recover(usize::MAX);
                note!(self.log, "  {c}.{s} {r:?}");
                assert!(r.is_ok() || side.node_gone, "{r:?}");
            }
            self.check();
        }
        for side in &self.conns[c].sides {
            let open = side.out.iter().filter(|l| !rank_fenced(l.state)).count();
            // A device that went away while nothing was connected has told nobody.
            let told = !side.node_gone || side.t.stats().releases_without_device > 0;
            assert!(open == 0 || !told, "{open} exposures are not fenced");
        }
    }

    fn take_all(&mut self, c: usize) {
        for s in 0..2 {
            for i in (0..self.conns[c].sides[s].accesses.len()).rev() {
                let taken = self.take_access(c, s, i);
                assert!(taken || self.conns[c].lossy, "an access never ended");
            }
            let side = &mut self.conns[c].sides[s];
            for i in (0..side.out.len()).rev() {
                let back = side.reclaim(i);
                assert!(back || side.node_gone, "not reclaimed");
            }
            side.past.clear();
            side.spare.clear();
        }
        self.settle();
    }

    /// Both ends are up, whatever happened before.
    fn reconnected(&mut self, c: usize) {
        if self.conns[c].is_up() {
            return;
        }
        for side in &mut self.conns[c].sides {
            side.t.disconnect();
        }
        self.settle();
        self.reconnect(c);
        // One of them may be new.
        self.conns[c].sides.iter().for_each(|s| s.honesty.swear());
        self.settle();
        let states = [0, 1].map(|s: usize| self.conns[c].sides[s].t.state().clone());
        assert!(self.conns[c].is_up(), "not up again: {states:?}");
        self.conns[c].lossy = false;
    }

    /// Side `s` exposes, the other one reads, writes and answers; every byte must be right.
    fn clean_operation(&mut self, c: usize, s: usize) {
        let (owner, peer) = self.conns[c].pair(s);
        let marked = owner.t.limits().remote_invalidation && peer.t.caps().mem_mgt_extensions;
        let (source, from) = self.clean_exposure(c, s, Grant::PeerReads, marked);
        let (_, peer) = self.conns[c].pair(s);
        let read = peer.t.read(&from, 0, DmaBuf::new(from.len as usize).unwrap()).unwrap();
        self.settle();
        let (_, peer) = self.conns[c].pair(s);
        let got = peer.t.take(read).unwrap();
        assert_eq!(got.result.unwrap(), from.len);
        assert!(got.buffers.iter().all(|(b, _)| b.iter().all(|&x| x == CLEAN)));
        if marked {
            let message = super::message::noise(peer.messages.sent);
            peer.t.send_with_inv(&message, &from).unwrap();
            peer.messages.sent += 1;
            self.settle();
        }
        let back = self.clean_back(c, s, source);
        assert!(back.iter().all(|&x| x == CLEAN));

        let (sink, to) = self.clean_exposure(c, s, Grant::PeerWrites, false);
        let (_, peer) = self.conns[c].pair(s);
        let n = to.len as usize;
        let write = peer.t.write(&to, 0, DmaBuf::from_bytes(&vec![!CLEAN; n]).unwrap()).unwrap();
        self.settle();
        let (_, peer) = self.conns[c].pair(s);
        assert_eq!(peer.t.take(write).unwrap().result.unwrap(), to.len);
        let back = self.clean_back(c, s, sink);
        let inside = CLEAN_RANGE.start..CLEAN_RANGE.start + n;
        let right = |(i, &b): (usize, &u8)| b == if inside.contains(&i) { !CLEAN } else { CLEAN };
        assert!(back.iter().enumerate().all(right), "the write is not where it belongs");
    }

    /// As many operations of the largest size as there are credits find room in the queue (D-05,
    /// D-06): each has a payload at the worst offset, a head and a tail.
    fn full_house(&mut self, c: usize, s: usize) {
        let (owner, _) = self.conns[c].pair(s);
        let limits = owner.t.limits().clone();
        let page = owner.t.caps().page_size as usize;
        let most = limits.max_payload_bytes as usize;
        if limits.mechanism != "page list" || most < 3 {
            return;
        }
        let mut held = vec![];
        for _ in 0..limits.credits {
            let (small, large) = (|| DmaBuf::new(16).unwrap(), DmaBuf::new(most + page).unwrap());
            let payload = (large, page - 1..page + most - 3);
            let parts = [(small(), 3..4), payload, (small(), 3..4)];
            match owner.t.expose(parts.into_iter().collect::<Buffers>(), Grant::PeerReads) {
                Ok(e) => held.push(e),
                Err(e) => {
                    let full =
                        matches!(e.why, Refusal::QueueFull { .. } | Refusal::NeverFits { .. });
                    assert!(!full, "operation {} of {}: {}", held.len(), limits.credits, e.why);
                    // Regions may be fewer: other connections on the device have some.
                    break;
                }
            }
            owner.t.flush().unwrap();
        }
        for e in &held {
            owner.t.revoke(e, NoReply::NoneCanCome).unwrap();
        }
        self.settle();
        let (owner, _) = self.conns[c].pair(s);
        held.into_iter().for_each(|e| drop(owner.t.reclaim(e).unwrap()));
    }

    /// Exposes a buffer and tells the peer; returns the first segment.
    fn clean_exposure(
        &mut self,
        c: usize,
        s: usize,
        grant: Grant,
        marked: bool,
    ) -> (Exposed, Segment) {
        let (owner, _) = self.conns[c].pair(s);
        let buf = DmaBuf::from_bytes(&[CLEAN; 700]).unwrap();
        let e = owner.t.expose((buf, CLEAN_RANGE), grant).unwrap();
        let marks = [&e];
        let reply = if marked { Reply::MayInvalidate(&marks) } else { Reply::InvalidatesNothing };
        owner.t.send(&super::message::noise(owner.messages.sent), reply).unwrap();
        owner.messages.sent += 1;
        let seg = owner.t.segments(&e).unwrap()[0];
        self.settle();
        (e, seg)
    }

    fn clean_back(&mut self, c: usize, s: usize, e: Exposed) -> DmaBuf {
        let (owner, _) = self.conns[c].pair(s);
        owner.t.revoke(&e, NoReply::NoneCanCome).unwrap();
        self.settle();
        let (owner, _) = self.conns[c].pair(s);
        owner.t.reclaim(e).unwrap().into_first().unwrap()
    }

    /// Transports go; the bytes left on the nodes are those that were counted as leaked.
    fn close(&mut self) {
        for side in self.conns.iter_mut().flat_map(|c| &mut c.sides) {
            side.t.disconnect();
            count_side(&mut self.tally, side);
        }
        let mut nodes = vec![];
        for conn in std::mem::take(&mut self.conns) {
            for side in conn.sides {
                let Side { node, t, .. } = side;
                let kept = t.stats().bytes_leaked;
                drop(t);
                match nodes.iter_mut().find(|(n, _): &&mut (_, u64)| Device::id(n) == node.id()) {
                    Some((_, sum)) => *sum += kept,
                    None => nodes.push((node, kept)),
                }
            }
        }
        for (node, kept) in nodes {
            let c = node.counters();
            assert_eq!(super::life::gauges(&c)[..5], [0; 5], "objects are left over");
            assert_eq!(c.mapped_bytes, kept, "mappings are left over");
        }
    }
}

fn rank_fenced(state: ExposureState) -> bool {
    matches!(state, ExposureState::Fenced | ExposureState::Held)
}
