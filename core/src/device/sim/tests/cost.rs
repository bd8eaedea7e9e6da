//! What running costs: no heap allocation once warm.

use super::rig::*;
use crate::device::{Caps, Device, FastMrKind, MrKeys, QpCaps, RecvWr, Wc, Wr, WrChain, WrOp};
use crate::mem::Fenced;
use crate::types::{Access, WrId};

/// One operation of every kind: register, write, read, invalidate from either end.
struct Round {
    a: Side,
    b: Side,
    mem: Mem,
    inbox: Mem,
    other: Mem,
    keys: MrKeys,
    chain: WrChain,
    wcs: Vec<Wc>,
}

impl Round {
    fn new() -> Round {
        let (a, b) = pair_with(Caps::default(), QpCaps { max_send_wr: 16, ..DEPTHS }, 64);
        let (mem, inbox) = (a.mem(3 * 4096, Access::empty()), a.mem(64, RW));
        let (other, keys) = (b.mem(8192, RW), a.fast(4, FastMrKind::Pages));
        let (chain, wcs) = (WrChain::new(), Vec::with_capacity(16));
        Round { a, b, mem, inbox, other, keys, chain, wcs }
    }

    fn go(&mut self) {
        self.register();
        let sge = self.inbox.sge(0, 64);
        self.a.dev.post_recv(self.a.qp, &[RecvWr { wr_id: WrId(1), sge }]).unwrap();
        let (rkey, sge) = (self.keys.rkey, self.other.sge(0, 8192));
        self.peer(|c| write(c, sge, 64, rkey));
        self.peer(|c| read(c, sge, 64, rkey));
        self.peer(|c| send_inv(c, b"done", rkey));
        settle(&self.a, &mut self.wcs);
        self.register();
        let rkey = self.keys.rkey;
        fill(&mut self.chain, true, |_| WrOp::LocalInv(rkey));
        self.a.dev.post_send(self.a.qp, &self.chain).unwrap();
        settle(&self.a, &mut self.wcs);
    }

    /// Registers two runs that are not adjacent under the next key.
    fn register(&mut self) {
        let (m, keys) = (&self.mem, self.keys);
        let pages = [m.page(4096, 4096), m.page(8192, 4096), m.page(0, 64)];
        fill(&mut self.chain, false, |c| reg(c, &keys, RW, 0, &pages));
        self.a.dev.post_send(self.a.qp, &self.chain).unwrap();
        self.a.run();
        self.keys.rkey = keys.rkey.next_tag();
    }

    fn peer(&mut self, op: impl FnOnce(&mut WrChain) -> WrOp) {
        fill(&mut self.chain, true, op);
        self.b.dev.post_send(self.b.qp, &self.chain).unwrap();
        settle(&self.b, &mut self.wcs);
    }
}

fn fill(chain: &mut WrChain, signaled: bool, op: impl FnOnce(&mut WrChain) -> WrOp) {
    chain.clear();
    let op = op(chain);
    chain.push(Wr { wr_id: WrId(3), signaled, op });
}

/// Runs until the one WC that is due is there.
fn settle(side: &Side, wcs: &mut Vec<Wc>) {
    side.run();
    wcs.clear();
    side.dev.poll_cq(side.cq, 16, wcs).unwrap();
    assert!(matches!(wcs[..], [Wc::Success(_)]), "{wcs:?}");
}

#[test]
fn steady_state_allocates_nothing() {
    let mut round = Round::new();
    for _ in 0..3 {
        round.go();
    }
    let used = allocation_counter::measure(|| {
        for _ in 0..300 {
            round.go();
        }
    });
    assert_eq!(used.count_total, 0);
    assert_eq!(round.a.dev.counters().bytes_written, 303 * 8192);
}

#[test]
fn binding_and_invalidating_allocate_nothing() {
    let (a, b) = pair_with(window_caps(), DEPTHS, 64);
    let (parent, src, inbox) = (b.mem(4096, PARENT), a.mem(64, RW), b.mem(64, RW));
    let (mut window, mut chain, mut wcs) = (b.window(), WrChain::new(), Vec::with_capacity(16));
    let mut cycle = || {
        for remote in [false, true] {
            let op = bind(&window, &parent, 8, 64, Access::REMOTE_WRITE);
            fill(&mut chain, false, |_| op);
            b.dev.post_send(b.qp, &chain).unwrap();
            b.run();
            window.rkey = window.rkey.next_tag();
            let (rkey, to) = (window.rkey, parent.addr.0 + 8);
            fill(&mut chain, true, |c| write(c, src.sge(0, 64), to, rkey));
            a.dev.post_send(a.qp, &chain).unwrap();
            settle(&a, &mut wcs);
            if remote {
                let sge = inbox.sge(0, 64);
                b.dev.post_recv(b.qp, &[RecvWr { wr_id: WrId(1), sge }]).unwrap();
                fill(&mut chain, true, |c| send_inv(c, b"done", rkey));
                a.dev.post_send(a.qp, &chain).unwrap();
                settle(&a, &mut wcs);
            } else {
                fill(&mut chain, true, |_| WrOp::LocalInv(rkey));
                b.dev.post_send(b.qp, &chain).unwrap();
            }
            settle(&b, &mut wcs);
        }
    };
    (0..3).for_each(|_| cycle());
    let used = allocation_counter::measure(|| (0..300).for_each(|_| cycle()));
    assert_eq!(used.count_total, 0);
    assert_eq!((b.dev.counters().binds, b.dev.counters().mws_bound), (606, 0));
}

#[test]
fn mapping_and_ordinary_registration_allocate_nothing_once_warm() {
    let (a, _b) = pair();
    let (m, other) = (a.mem(4096, RW), a.mem(4096, RW));
    let cycle = || {
        let keys = a.dev.reg_mr(a.pd, m.addr, 4096, Access::REMOTE_READ).unwrap();
        a.dev.dereg_mr(keys.mr).unwrap();
        assert!(a.dev.dma_unmap(&m.bytes, m.addr, Fenced::mint()).is_ok());
        a.dev.dma_map(&m.bytes, Some(m.addr)).unwrap();
    };
    (0..100).for_each(|_| cycle());
    let used = allocation_counter::measure(|| (0..1000).for_each(|_| cycle()));
    assert_eq!(used.count_total, 0);
    assert_eq!(other.read(0, 1), [0]);
}
