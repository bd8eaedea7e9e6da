//! Random operations on windows against a naive model: who may touch which byte through which QP.

use super::rig::*;
use crate::device::{Device, DeviceError, MwKeys, QpState, Verb, WcStatus, WrOp, errno};
use crate::types::{Access, DmaAddr, Rkey};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const LEN: u64 = 4096;
const PAIRS: usize = 2;
const WINDOWS: usize = 3;
/// Rights of the parents: one can be written to through a window.
const PARENTS: [Access; 2] = [PARENT, Access::MW_BIND];

#[derive(Clone, Debug)]
enum Op {
    /// Binds a window with the tag that is `step` later, over a part of a parent.
    Bind {
        pair: usize,
        window: usize,
        step: u8,
        parent: usize,
        at: u64,
        len: u64,
        access: Access,
    },
    LocalInv {
        pair: usize,
        key: usize,
    },
    SendInv {
        pair: usize,
        key: usize,
    },
    /// The peer writes or reads under the `key`-th key ever seen.
    Touch {
        pair: usize,
        key: usize,
        at: u64,
        len: u64,
        writes: bool,
    },
    Renew {
        window: usize,
    },
    Dereg {
        parent: usize,
    },
}

fn ops() -> impl Strategy<Value = Op> {
    let at = || prop_oneof![4 => 0..64u64, 1 => 0..LEN, 1 => (LEN - 32)..LEN];
    let len = || prop_oneof![1 => Just(0u64), 6 => 1..64u64, 1 => 0..=LEN];
    let access = prop_oneof![
        Just(Access::REMOTE_READ),
        Just(Access::REMOTE_WRITE),
        Just(Access::REMOTE_READ | Access::REMOTE_WRITE),
        Just(Access::LOCAL_WRITE),
    ];
    let which = || (0..PAIRS, 0usize..24);
    prop_oneof![
        6 => (0..PAIRS, 0..WINDOWS, 1u8..3, 0..PARENTS.len(), at(), len(), access).prop_map(
            |(pair, window, step, parent, at, len, access)| Op::Bind {
                pair, window, step, parent, at, len, access,
            }
        ),
        2 => which().prop_map(|(pair, key)| Op::LocalInv { pair, key }),
        2 => which().prop_map(|(pair, key)| Op::SendInv { pair, key }),
        6 => (which(), at(), len(), any::<bool>()).prop_map(
            |((pair, key), at, len, writes)| Op::Touch { pair, key, at, len, writes }
        ),
        1 => (0..WINDOWS).prop_map(|window| Op::Renew { window }),
        1 => (0..PARENTS.len()).prop_map(|parent| Op::Dereg { parent }),
    ]
}

/// What the model knows of a bind that is in effect.
#[derive(Clone, Copy, Debug)]
struct Bound {
    pair: usize,
    rkey: Rkey,
    parent: usize,
    at: u64,
    len: u64,
    access: Access,
}

struct World {
    pairs: Vec<(Side, Side)>,
    parents: Vec<Mem>,
    shadow: Vec<Vec<u8>>,
    peer: Mem,
    inbox: Mem,
    windows: Vec<(MwKeys, Option<Bound>)>,
    /// Every key ever seen, with the parent that it was for.
    keys: Vec<(Rkey, usize)>,
    stamp: u8,
}

impl World {
    fn new() -> World {
        let (a, b) = pair_with(window_caps(), DEPTHS, 64);
        let parents: Vec<Mem> = PARENTS.iter().map(|r| b.mem(LEN as usize, *r)).collect();
        let (peer, inbox) = (a.mem(2 * LEN as usize, RW), b.mem(64, RW));
        let windows: Vec<_> = (0..WINDOWS).map(|_| (b.window(), None)).collect();
        let keys = windows.iter().map(|(k, _): &(MwKeys, _)| (k.rkey, 0)).collect();
        let (a2, b2) = (a.sibling(a.pd), b.sibling(b.pd));
        a2.connect(&b2);
        b2.connect(&a2);
        let (pairs, shadow) = (vec![(a, b), (a2, b2)], vec![vec![0; LEN as usize]; PARENTS.len()]);
        World { pairs, parents, shadow, peer, inbox, windows, keys, stamp: 0 }
    }

    /// After an error: the windows of that QP are ended, both QPs are made anew.
    fn mend(&mut self) {
        for i in 0..PAIRS {
            let (a, b) = &self.pairs[i];
            let down = |s: &Side| s.dev.qp_state(s.qp) == Ok(QpState::Err);
            if !down(a) && !down(b) {
                continue;
            }
            b.run();
            let lost: Vec<usize> = (0..WINDOWS)
                .filter(|w| self.windows[*w].1.is_some_and(|bound| bound.pair == i))
                .collect();
            let ended = b.dev.destroy_qp(b.qp);
            let busy = Err(DeviceError::new(Verb::DestroyQp, errno::EBUSY));
            assert_eq!(ended, if lost.is_empty() { Ok(()) } else { busy });
            let (a2, b2) = (a.sibling(a.pd), b.sibling(b.pd));
            let old = (a.dev.clone(), a.qp, b.dev.clone(), b.qp);
            for w in &lost {
                self.renew(*w);
            }
            if !lost.is_empty() {
                old.2.destroy_qp(old.3).unwrap();
            }
            old.0.destroy_qp(old.1).unwrap();
            a2.connect(&b2);
            b2.connect(&a2);
            self.pairs[i] = (a2, b2);
        }
        self.pairs[0].0.poll();
        self.pairs[0].1.poll();
    }

    fn play(&mut self, op: &Op) {
        self.mend();
        match *op {
            Op::Bind { pair, window, step, parent, at, len, access } => {
                self.bind(pair, window, step, (parent, at, len, access));
            }
            Op::LocalInv { pair, key } => {
                let rkey = self.key(key).0;
                let ok = self.free(pair, rkey);
                let (_, b) = &self.pairs[pair];
                b.post(1, |_| WrOp::LocalInv(rkey));
                let wanted = if ok { WcStatus::Success } else { WcStatus::LocQpOpErr };
                assert_eq!(b.outcome(), [(1, wanted)]);
            }
            Op::SendInv { pair, key } => {
                let rkey = self.key(key).0;
                let ok = self.free(pair, rkey);
                let (a, b) = &self.pairs[pair];
                b.recv(2, &self.inbox, 64);
                a.post(1, |c| send_inv(c, b"", rkey));
                assert_eq!(a.outcome(), [(1, WcStatus::Success)]);
                let wanted = if ok { WcStatus::Success } else { WcStatus::RemInvReqErr };
                assert_eq!(b.outcome(), [(2, wanted)]);
            }
            Op::Touch { pair, key, at, len, writes } => self.touch(pair, key, (at, len), writes),
            Op::Renew { window } => self.renew(window),
            Op::Dereg { parent } => {
                let b = &self.pairs[0].1;
                let mem = &mut self.parents[parent];
                let used = self.windows.iter().any(|w| w.1.is_some_and(|x| x.parent == parent));
                let busy = Err(DeviceError::new(Verb::DeregMr, errno::EBUSY));
                assert_eq!(b.dev.dereg_mr(mem.keys.mr), if used { busy } else { Ok(()) });
                if !used {
                    mem.keys = b.dev.reg_mr(b.pd, mem.addr, LEN, PARENTS[parent]).unwrap();
                }
            }
        }
    }

    fn key(&self, key: usize) -> (Rkey, usize) {
        self.keys[key % self.keys.len()]
    }

    /// Takes the bind of this key away, if it may be ended through this pair.
    fn free(&mut self, pair: usize, rkey: Rkey) -> bool {
        let ends = |b: &Bound| b.pair == pair && b.rkey == rkey;
        let hit = self.windows.iter_mut().find(|w| w.1.as_ref().is_some_and(ends));
        hit.is_some_and(|w| w.1.take().is_some())
    }

    fn bind(
        &mut self,
        pair: usize,
        window: usize,
        step: u8,
        (parent, at, len, access): (usize, u64, u64, Access),
    ) {
        let (keys, bound) = self.windows[window];
        let mut rkey = keys.rkey;
        for _ in 0..step {
            rkey = rkey.next_tag();
        }
        let (mem, (_, b)) = (&self.parents[parent], &self.pairs[pair]);
        let (mw, mr, addr) = (keys.mw, mem.keys.mr, DmaAddr(mem.addr.0 + at));
        b.post(1, |_| WrOp::BindMw { mw, rkey, mr, addr, len, access });
        let fits = len > 0 && at + len <= LEN;
        let writable =
            !access.contains(Access::REMOTE_WRITE) || PARENTS[parent].contains(Access::LOCAL_WRITE);
        let ok = bound.is_none() && fits && writable && Access::REMOTE.contains(access);
        let wanted = if ok { WcStatus::Success } else { WcStatus::MwBindErr };
        assert_eq!(b.outcome(), [(1, wanted)]);
        if ok {
            let bound = Bound { pair, rkey, parent, at, len, access };
            self.windows[window] = (MwKeys { rkey, ..keys }, Some(bound));
            self.keys.push((rkey, parent));
        }
    }

    fn touch(&mut self, pair: usize, key: usize, (at, len): (u64, u64), writes: bool) {
        let (rkey, parent) = self.key(key);
        self.stamp = self.stamp.wrapping_add(1);
        let data: Vec<u8> = (0..len).map(|i| self.stamp ^ i as u8).collect();
        self.peer.fill(&data);
        let need = if writes { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        let allowed = self.windows.iter().filter_map(|w| w.1).any(|b| {
            let inside = b.at <= at && at + len <= b.at + b.len;
            (b.pair, b.rkey, b.parent) == (pair, rkey, parent) && inside && b.access.contains(need)
        });
        let (a, _) = &self.pairs[pair];
        let (sge, addr) = (self.peer.sge(0, len as u32), self.parents[parent].addr.0 + at);
        a.post(1, |c| if writes { write(c, sge, addr, rkey) } else { read(c, sge, addr, rkey) });
        let wanted = if allowed || len == 0 { WcStatus::Success } else { WcStatus::RemAccessErr };
        assert_eq!(a.outcome(), [(1, wanted)]);
        if !allowed {
            return;
        }
        let shadow = &mut self.shadow[parent][at as usize..(at + len) as usize];
        if writes {
            shadow.copy_from_slice(&data);
        } else {
            assert_eq!(self.peer.read(0, len as usize), shadow);
        }
    }

    fn renew(&mut self, window: usize) {
        let b = &self.pairs[0].1;
        b.dev.dealloc_mw(self.windows[window].0.mw).unwrap();
        let keys = b.dev.alloc_mw(b.pd).unwrap();
        self.windows[window] = (keys, None);
        self.keys.push((keys.rkey, 0));
    }

    fn check(&self) {
        for (mem, shadow) in self.parents.iter().zip(&self.shadow) {
            assert!(mem.read(0, shadow.len()) == *shadow, "bytes differ from the model");
        }
        let c = self.pairs[0].1.dev.counters();
        let bound = self.windows.iter().filter(|w| w.1.is_some()).count();
        assert_eq!((c.mws, c.mws_bound), (WINDOWS as u64, bound as u64));
    }
}

#[test]
fn random_window_operations_agree_with_the_model() {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let config = Config { cases: 128, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, rng);
    let lists = proptest::collection::vec(ops(), 1..80);
    let outcome = runner.run(&lists, |ops| {
        let mut world = World::new();
        for op in &ops {
            world.play(op);
            world.check();
        }
        Ok(())
    });
    outcome.unwrap();
}
