//! Random operations against a naive model: a map of rkeys to byte positions.

use super::rig::*;
use crate::device::{Caps, Device, FastMrKind, MrKeys, PageEntry, QpState, WcStatus, WrOp};
use crate::mem::Fenced;
use crate::types::{Access, Rkey};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::BTreeMap;

const PAGES: u64 = 4;
const PAGE: u64 = 4096;
const BUFS: usize = 2;

#[derive(Clone, Debug)]
enum Op {
    /// Registers MR `mr` over some pieces of the buffers, `(buffer, page, offset, length)`.
    Register {
        mr: usize,
        pieces: Vec<(usize, u64, u64, u64)>,
        rights: usize,
    },
    LocalInv {
        mr: usize,
    },
    /// The peer writes under the `key`-th key ever granted, from `at` relative to the region.
    Write {
        key: usize,
        at: i64,
        len: u64,
    },
    Read {
        key: usize,
        at: i64,
        len: u64,
    },
    SendInv {
        key: usize,
    },
    /// Ends MR `mr` and makes another in its place.
    Renew {
        mr: usize,
    },
    /// Unmaps a buffer, or maps it again.
    Toggle {
        buf: usize,
    },
}

fn ops() -> impl Strategy<Value = Op> {
    let piece = (0..BUFS, 0..PAGES, 0..PAGE, 1..PAGE).prop_map(|(b, page, offset, len)| {
        let offset = if offset < PAGE / 2 { 0 } else { offset };
        (b, page, offset, len.min(PAGE - offset))
    });
    let pieces = proptest::collection::vec(piece, 1..5);
    let at = prop_oneof![8 => 0i64..9000, 1 => -8i64..0];
    let access = (0usize..40, at, 0u64..9000);
    prop_oneof![
        3 => (0usize..3, pieces, 0usize..4)
            .prop_map(|(mr, pieces, rights)| Op::Register { mr, pieces, rights }),
        1 => (0usize..3).prop_map(|mr| Op::LocalInv { mr }),
        4 => access.clone().prop_map(|(key, at, len)| Op::Write { key, at, len }),
        2 => access.prop_map(|(key, at, len)| Op::Read { key, at, len }),
        1 => (0usize..40).prop_map(|key| Op::SendInv { key }),
        1 => (0usize..3).prop_map(|mr| Op::Renew { mr }),
        1 => (0..BUFS).prop_map(|buf| Op::Toggle { buf }),
    ]
}

/// What the model knows of a granted key.
#[derive(Clone, Debug)]
struct Region {
    access: Access,
    /// Buffer and position of every byte.
    bytes: Vec<(usize, usize)>,
}

struct World {
    a: Side,
    b: Side,
    bufs: Vec<Mem>,
    mapped: [bool; BUFS],
    shadow: Vec<Vec<u8>>,
    src: Mem,
    mrs: Vec<MrKeys>,
    /// Keys granted and not revoked.
    live: BTreeMap<u32, Region>,
    granted: Vec<Rkey>,
    stamp: u8,
}

const IOVA: u64 = 1 << 20;

impl World {
    fn new() -> World {
        let (a, b) = pair_with(Caps { sg_gaps: true, ..Caps::default() }, DEPTHS, 64);
        let len = (PAGES * PAGE) as usize;
        let bufs = (0..BUFS).map(|_| b.mem(len, Access::empty())).collect();
        let (src, mrs) = (a.mem(9000, RW), (0..3).map(|_| b.fast(4, FastMrKind::Gaps)).collect());
        World {
            bufs,
            src,
            mrs,
            a,
            b,
            mapped: [true; BUFS],
            shadow: vec![vec![0; len]; BUFS],
            live: BTreeMap::new(),
            granted: vec![],
            stamp: 0,
        }
    }

    /// Fresh QPs in the same PDs after an error has taken the old ones down.
    fn mend(&mut self) {
        let down = |s: &Side| s.dev.qp_state(s.qp) == Ok(QpState::Err);
        if down(&self.a) || down(&self.b) {
            self.a.run();
            let (a, b) = (self.a.sibling(self.a.pd), self.b.sibling(self.b.pd));
            a.connect(&b);
            b.connect(&a);
            for old in [std::mem::replace(&mut self.a, a), std::mem::replace(&mut self.b, b)] {
                old.dev.destroy_qp(old.qp).unwrap();
            }
        }
        self.a.poll();
        self.b.poll();
    }

    fn play(&mut self, op: &Op) {
        self.mend();
        match op {
            Op::Register { mr, pieces, rights } => self.register(*mr, pieces, *rights),
            Op::LocalInv { mr } => {
                let rkey = self.mrs[*mr].rkey;
                let was = self.live.remove(&rkey.to_bits()).is_some();
                self.b.post(1, |_| WrOp::LocalInv(rkey));
                let wanted = if was { WcStatus::Success } else { WcStatus::LocQpOpErr };
                assert_eq!(self.b.outcome(), [(1, wanted)]);
            }
            Op::Write { key, at, len } => self.access(*key, *at, *len, Access::REMOTE_WRITE),
            Op::Read { key, at, len } => self.access(*key, *at, *len, Access::REMOTE_READ),
            Op::SendInv { key } => self.send_inv(*key),
            Op::Renew { mr } => {
                self.live.remove(&self.mrs[*mr].rkey.to_bits());
                self.b.dev.dereg_mr(self.mrs[*mr].mr).unwrap();
                self.mrs[*mr] = self.b.fast(4, FastMrKind::Gaps);
            }
            Op::Toggle { buf } => self.toggle(*buf),
        }
    }

    fn register(&mut self, mr: usize, pieces: &[(usize, u64, u64, u64)], rights: usize) {
        let access = [RW, Access::REMOTE_READ, RW - Access::REMOTE_READ, Access::LOCAL_WRITE];
        let access = access[rights];
        let pages: Vec<PageEntry> = pieces
            .iter()
            .map(|&(buf, page, offset, len)| self.bufs[buf].page(page * PAGE + offset, len as u32))
            .collect();
        let bytes = pieces.iter().flat_map(|&(buf, page, offset, len)| {
            (page * PAGE + offset..page * PAGE + offset + len).map(move |i| (buf, i as usize))
        });
        let keys = self.mrs[mr];
        let fits = !self.live.contains_key(&keys.rkey.to_bits())
            && pieces.iter().all(|p| self.mapped[p.0]);
        self.b.post(1, |c| reg(c, &keys, access, IOVA, &pages));
        let wanted = if fits { WcStatus::Success } else { WcStatus::MwBindErr };
        assert_eq!(self.b.outcome(), [(1, wanted)]);
        if fits {
            let rkey = keys.rkey.next_tag();
            self.mrs[mr].rkey = rkey;
            self.granted.push(rkey);
            self.live.insert(rkey.to_bits(), Region { access, bytes: bytes.collect() });
        }
    }

    fn access(&mut self, key: usize, at: i64, len: u64, need: Access) {
        let Some(&rkey) = self.granted.get(key % self.granted.len().max(1)) else { return };
        self.stamp = self.stamp.wrapping_add(1);
        let data: Vec<u8> = (0..len).map(|i| self.stamp ^ i as u8).collect();
        self.src.fill(&data);
        let reach = self.live.get(&rkey.to_bits()).filter(|r| r.access.contains(need));
        let reach = reach.and_then(|r| {
            let from = usize::try_from(at).ok()?;
            r.bytes.get(from..from + len as usize)
        });
        let (sge, addr) = (self.src.sge(0, len as u32), IOVA.wrapping_add_signed(at));
        self.a.post(1, |c| match need {
            Access::REMOTE_WRITE => write(c, sge, addr, rkey),
            _ => read(c, sge, addr, rkey),
        });
        let wanted = match reach {
            _ if len == 0 => WcStatus::Success,
            None => WcStatus::RemAccessErr,
            Some(bytes) if !bytes.iter().all(|b| self.mapped[b.0]) => WcStatus::RemOpErr,
            Some(_) => WcStatus::Success,
        };
        assert_eq!(self.a.outcome(), [(1, wanted)]);
        if wanted != WcStatus::Success || len == 0 {
            return;
        }
        for (&(buf, i), &byte) in reach.into_iter().flatten().zip(&data) {
            if need == Access::REMOTE_WRITE {
                self.shadow[buf][i] = byte;
            }
        }
        if need == Access::REMOTE_READ {
            let wanted: Vec<u8> =
                reach.into_iter().flatten().map(|&(buf, i)| self.shadow[buf][i]).collect();
            assert_eq!(self.src.read(0, len as usize), wanted);
        }
    }

    fn send_inv(&mut self, key: usize) {
        let Some(&rkey) = self.granted.get(key % self.granted.len().max(1)) else { return };
        let live = self.live.get(&rkey.to_bits());
        let ok = live.is_some_and(|r| r.access.intersects(Access::REMOTE));
        if ok {
            self.live.remove(&rkey.to_bits());
        }
        let inbox = self.b.mem(8, RW);
        self.b.recv(2, &inbox, 8);
        self.a.post(1, |c| send_inv(c, b"", rkey));
        assert_eq!(self.a.outcome(), [(1, WcStatus::Success)]);
        let wanted = if ok { WcStatus::Success } else { WcStatus::RemInvReqErr };
        assert_eq!(self.b.outcome(), [(2, wanted)]);
    }

    fn toggle(&mut self, buf: usize) {
        let mem = &self.bufs[buf];
        if self.mapped[buf] {
            assert!(self.b.dev.dma_unmap(&mem.bytes, mem.addr, Fenced::mint()).is_ok());
        } else {
            assert_eq!(self.b.dev.dma_map(&mem.bytes, Some(mem.addr)), Ok(mem.addr));
        }
        self.mapped[buf] = !self.mapped[buf];
    }

    fn check(&self) {
        for (mem, shadow) in self.bufs.iter().zip(&self.shadow) {
            assert!(mem.read(0, shadow.len()) == *shadow, "bytes differ from the model");
        }
        assert_eq!(self.b.dev.counters().fast_mrs_valid, self.live.len() as u64);
    }
}

#[test]
fn random_operations_agree_with_the_model() {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let config = Config { cases: 96, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, rng);
    let lists = proptest::collection::vec(ops(), 1..60);
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
