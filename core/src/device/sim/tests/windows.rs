//! Type-2B windows, rule by rule.

use super::rig::*;
use crate::device::sim::{SimCounters, Syndrome};
use crate::device::{
    Device, DeviceError, FastMrKind, MwKeys, QpState, RecvWr, Sge, Verb, Wc, WcStatus, Wr, WrChain,
    WrOp, errno,
};
use crate::mem::Fenced;
use crate::types::{Access, DmaAddr, Lkey, MrId, MwId, Rkey, WrId};

const OK: WcStatus = WcStatus::Success;
const FLUSH: WcStatus = WcStatus::WrFlushErr;
const READS: Access = Access::REMOTE_READ;
const WRITES: Access = Access::REMOTE_WRITE;

/// `a` is the peer; `b` owns a page that lets no peer in, and a window.
struct World {
    a: Side,
    b: Side,
    parent: Mem,
    window: MwKeys,
    peer: Mem,
}

impl World {
    fn new() -> World {
        World::with_parent(PARENT)
    }

    fn with_parent(access: Access) -> World {
        let (a, b) = pair_with(window_caps(), DEPTHS, 64);
        let (parent, window, peer) = (b.mem(4096, access), b.window(), a.mem(4096, RW));
        World { a, b, parent, window, peer }
    }

    /// Binds the window to a part of the parent; gives the key.
    fn bound(&self, at: u64, len: u64, access: Access) -> Rkey {
        self.b.post(900, |_| bind(&self.window, &self.parent, at, len, access));
        assert_eq!(self.b.outcome(), [(900, OK)]);
        self.window.rkey.next_tag()
    }

    /// What becomes of a write by the peer.
    fn write(&self, at: u64, len: u32, rkey: Rkey) -> WcStatus {
        self.tried(|c| write(c, self.peer.sge(0, len), self.parent.addr.0 + at, rkey))
    }

    fn read(&self, at: u64, len: u32, rkey: Rkey) -> WcStatus {
        self.tried(|c| read(c, self.peer.sge(0, len), self.parent.addr.0 + at, rkey))
    }

    fn tried(&self, op: impl FnOnce(&mut WrChain) -> WrOp) -> WcStatus {
        self.a.post(901, op);
        let got = self.a.outcome();
        assert_eq!((got.len(), got[0].0), (1, 901));
        got[0].1
    }

    /// Why a write by the peer is refused.
    fn refused(&self, at: u64, len: u32, rkey: Rkey) -> Option<Syndrome> {
        let to = self.parent.addr.0.wrapping_add(at);
        self.a.post(902, |c| write(c, self.peer.sge(0, len), to, rkey));
        self.a.run();
        let wcs = self.a.poll();
        assert_eq!(wcs.iter().map(status).collect::<Vec<_>>(), [WcStatus::RemAccessErr]);
        why(&wcs)
    }

    fn counters(&self) -> SimCounters {
        self.b.dev.counters()
    }
}

fn errno_of<T>(result: Result<T, DeviceError>) -> i32 {
    result.map(drop).unwrap_err().errno
}

#[test]
fn mw_01_a_bound_window_opens_its_bytes_and_the_parent_opens_none() {
    let w = World::new();
    assert_eq!((w.counters().mws, w.counters().mws_bound), (1, 0));
    let rkey = w.bound(100, 50, WRITES);
    assert_ne!(rkey, w.window.rkey);
    w.peer.fill(&[7; 50]);
    assert_eq!(w.write(100, 50, rkey), OK);
    assert_eq!(w.parent.read(99, 52), [&[0][..], &[7; 50], &[0]].concat());
    assert_eq!((w.counters().mws_bound, w.counters().binds), (1, 1));
    assert_eq!(w.refused(100, 1, w.parent.keys.rkey), Some(Syndrome::MissingRight));
}

#[test]
fn mw_01_read_only_windows_need_no_writable_parent() {
    let w = World::with_parent(Access::MW_BIND);
    let rkey = w.bound(0, 4096, READS);
    assert!(w.parent.bytes.copy_in(9, b"text"));
    assert_eq!(w.read(9, 4, rkey), OK);
    assert_eq!(w.peer.read(0, 4), b"text");
}

/// One bind that is refused: what is asked, of what world, and why not.
type Case = (fn(&World) -> WrOp, Access, Syndrome);

fn changed(w: &World, change: impl FnOnce(&mut Fields)) -> WrOp {
    let mut f = Fields {
        mw: w.window.mw,
        rkey: w.window.rkey.next_tag(),
        mr: w.parent.keys.mr,
        addr: w.parent.addr.0,
        len: 64,
        access: READS,
    };
    change(&mut f);
    let Fields { mw, rkey, mr, addr, len, access } = f;
    WrOp::BindMw { mw, rkey, mr, addr: DmaAddr(addr), len, access }
}

struct Fields {
    mw: MwId,
    rkey: Rkey,
    mr: MrId,
    addr: u64,
    len: u64,
    access: Access,
}

#[test]
fn mw_01_mw_03_mw_05_refused_binds_take_the_qp_down_and_bind_nothing() {
    let cases: [Case; 19] = [
        // The window and its key.
        (|w| changed(w, |f| f.mw = MwId(99)), PARENT, Syndrome::ForeignKey),
        (|w| changed(w, |f| f.rkey = w.b.window().rkey), PARENT, Syndrome::ForeignKey),
        (|w| changed(w, |f| f.rkey = w.parent.keys.rkey), PARENT, Syndrome::ForeignKey),
        (
            |w| {
                let pd = w.b.dev.alloc_pd().unwrap();
                let k = w.b.dev.alloc_mw(pd).unwrap();
                changed(w, |f| (f.mw, f.rkey) = (k.mw, k.rkey))
            },
            PARENT,
            Syndrome::WrongPd,
        ),
        // Rights of the window.
        (|w| changed(w, |f| f.access |= Access::LOCAL_WRITE), PARENT, Syndrome::BadAccess),
        (|w| changed(w, |f| f.access |= Access::MW_BIND), PARENT, Syndrome::BadAccess),
        // The parent.
        (|w| changed(w, |f| f.mr = MrId(99)), PARENT, Syndrome::ForeignKey),
        (
            |w| changed(w, |f| f.mr = w.b.fast(1, FastMrKind::Pages).mr),
            PARENT,
            Syndrome::NotOrdinaryMr,
        ),
        (
            |w| {
                let pd = w.b.dev.alloc_pd().unwrap();
                let other = w.b.dev.reg_mr(pd, w.parent.addr, 4096, PARENT).unwrap();
                changed(w, |f| f.mr = other.mr)
            },
            PARENT,
            Syndrome::WrongPd,
        ),
        (|w| changed(w, |_| ()), RW, Syndrome::MissingRight),
        (|w| changed(w, |f| f.access = WRITES), Access::MW_BIND, Syndrome::MissingRight),
        (
            |w| changed(w, |f| f.access = Access::REMOTE_ATOMIC),
            Access::MW_BIND,
            Syndrome::MissingRight,
        ),
        // The range.
        (|w| changed(w, |f| f.len = 0), PARENT, Syndrome::EmptyWindow),
        (|w| changed(w, |f| f.len = 4097), PARENT, Syndrome::OutOfRange),
        (|w| changed(w, |f| f.addr += 4096), PARENT, Syndrome::OutOfRange),
        (|w| changed(w, |f| f.addr -= 1), PARENT, Syndrome::OutOfRange),
        (|w| changed(w, |f| f.addr = 0), PARENT, Syndrome::OutOfRange),
        (|w| changed(w, |f| f.len = u64::MAX), PARENT, Syndrome::OutOfRange),
        (|w| changed(w, |f| f.addr = u64::MAX), PARENT, Syndrome::OutOfRange),
    ];
    for (i, (op, parent, reason)) in cases.into_iter().enumerate() {
        let w = World::with_parent(parent);
        let op = op(&w);
        w.b.post_quiet(1, |_| op);
        w.b.run();
        let wcs = w.b.poll();
        assert_eq!(wcs.iter().map(status).collect::<Vec<_>>(), [WcStatus::MwBindErr], "case {i}");
        assert_eq!(why(&wcs), Some(reason), "case {i}");
        assert_eq!(w.b.dev.qp_state(w.b.qp), Ok(QpState::Err), "case {i}");
        assert_eq!((w.counters().mws_bound, w.counters().binds), (0, 0), "case {i}");
    }
}

#[test]
fn mw_02_binding_a_bound_window_kills_the_qp_and_leaves_the_bind() {
    let w = World::new();
    let first = w.bound(0, 64, WRITES);
    let again = MwKeys { rkey: first, ..w.window };
    w.b.post(2, |_| bind(&again, &w.parent, 64, 64, READS));
    w.b.run();
    let wcs = w.b.poll();
    assert_eq!((status(&wcs[0]), why(&wcs)), (WcStatus::MwBindErr, Some(Syndrome::StillValid)));
    assert_eq!((w.counters().mws_bound, w.counters().binds), (1, 1));
}

#[test]
fn mw_02_invalidate_and_bind_again_in_one_chain() {
    let w = World::new();
    let first = w.bound(0, 64, WRITES);
    let mut chain = WrChain::new();
    let next = bind(&MwKeys { rkey: first, ..w.window }, &w.parent, 64, 64, WRITES);
    for (id, op) in [(1, WrOp::LocalInv(first)), (2, next)] {
        chain.push(Wr { wr_id: WrId(id), signaled: id == 2, op });
    }
    w.b.dev.post_send(w.b.qp, &chain).unwrap();
    assert_eq!(w.b.outcome(), [(2, OK)]);
    let second = first.next_tag();
    assert_eq!(w.write(64, 64, second), OK);
    assert_eq!(w.refused(64, 1, first), Some(Syndrome::StaleKey));
}

#[test]
fn mw_04_mw_05_b64_only_the_key_of_the_last_bind_opens_it() {
    let w = World::new();
    assert_eq!(w.refused(0, 1, w.window.rkey), Some(Syndrome::InvalidatedKey), "before any bind");
    let w = World::new();
    let mut window = w.window;
    for round in 0..300 {
        w.b.post(round, |_| bind(&window, &w.parent, 0, 64, WRITES));
        assert_eq!(w.b.outcome(), [(round, OK)]);
        window.rkey = window.rkey.next_tag();
        assert_eq!(window.rkey.index(), w.window.rkey.index(), "the tag wraps, the index stays");
        assert_eq!(w.write(0, 64, window.rkey), OK);
        w.b.post(round, |_| WrOp::LocalInv(window.rkey));
        assert_eq!(w.b.outcome(), [(round, OK)]);
    }
    assert_eq!(w.refused(0, 1, window.rkey), Some(Syndrome::InvalidatedKey));
}

#[test]
fn mw_05_the_tag_is_the_callers_choice() {
    let w = World::new();
    let rkey = Rkey::from_bits(w.window.rkey.to_bits() | 0xa5);
    let op = changed(&w, |f| (f.rkey, f.access) = (rkey, WRITES));
    w.b.post(1, |_| op);
    assert_eq!((w.b.outcome(), w.write(0, 8, rkey)), (vec![(1, OK)], OK));
}

#[test]
fn window_bounds_are_enforced_byte_by_byte() {
    for (at, len) in [(99, 1), (99, 2), (150, 1), (149, 2), (99, 52), (0, 4096), (4095, 2)] {
        let w = World::new();
        let rkey = w.bound(100, 50, WRITES);
        assert_eq!(w.refused(at, len, rkey), Some(Syndrome::OutOfRange), "{at} {len}");
        assert_eq!(w.parent.read(0, 4096), [0; 4096]);
        assert_eq!(w.b.dev.qp_state(w.b.qp), Ok(QpState::Err));
    }
    let w = World::new();
    let rkey = w.bound(100, 50, WRITES);
    let wraps = u64::MAX - w.parent.addr.0;
    assert_eq!(w.refused(wraps, 2, rkey), Some(Syndrome::OutOfRange));
    let w = World::new();
    let rkey = w.bound(100, 50, WRITES);
    assert_eq!((w.write(100, 1, rkey), w.write(149, 1, rkey)), (OK, OK));
    assert_eq!(w.write(5000, 0, rkey), OK, "no bytes need no key");
}

#[test]
fn mw_12_window_rights_are_its_own() {
    // The parent may do everything; the window one direction.
    for (grant, other) in [(READS, WRITES), (WRITES, READS)] {
        let w = World::with_parent(RW | Access::MW_BIND);
        let rkey = w.bound(0, 64, grant);
        let go = |access| if access == READS { w.read(0, 8, rkey) } else { w.write(0, 8, rkey) };
        assert_eq!((go(grant), go(other)), (OK, WcStatus::RemAccessErr));
    }
    let w = World::new();
    let rkey = w.bound(0, 64, Access::empty());
    assert_eq!(w.read(0, 8, rkey), WcStatus::RemAccessErr, "a window without rights opens nothing");
}

/// A second connection of the same two nodes.
fn second(w: &World) -> (Side, Side) {
    let (a2, b2) = (w.a.sibling(w.a.pd), w.b.sibling(w.b.pd));
    a2.connect(&b2);
    b2.connect(&a2);
    (a2, b2)
}

#[test]
fn mw_06_the_key_is_good_on_its_qp_only() {
    let w = World::new();
    let rkey = w.bound(0, 64, WRITES);
    let (a2, b2) = second(&w);
    a2.post(1, |c| write(c, w.peer.sge(0, 8), w.parent.addr.0, rkey));
    a2.run();
    let wcs = a2.poll();
    assert_eq!((status(&wcs[0]), why(&wcs)), (WcStatus::RemAccessErr, Some(Syndrome::WrongQp)));
    assert_eq!(b2.dev.qp_state(b2.qp), Ok(QpState::Err));
    assert_eq!(w.write(0, 8, rkey), OK, "its own QP is unharmed");

    // A QP of another PD on the same device.
    let pd = w.b.dev.alloc_pd().unwrap();
    let (a3, b3) = (w.a.sibling(w.a.pd), w.b.sibling(pd));
    a3.connect(&b3);
    b3.connect(&a3);
    a3.post(1, |c| write(c, w.peer.sge(0, 8), w.parent.addr.0, rkey));
    a3.run();
    assert_eq!(why(&a3.poll()), Some(Syndrome::WrongPd));
}

#[test]
fn mw_06_mw_09_local_inv_wants_the_exact_key_of_a_bound_window() {
    type Pick = fn(&World, Rkey) -> Rkey;
    let cases: [(Pick, Syndrome); 5] = [
        (|_, k| k.next_tag(), Syndrome::StaleKey),
        (|w, _| w.window.rkey, Syndrome::StaleKey),
        (|w, _| w.b.window().rkey, Syndrome::InvalidatedKey),
        (|_, k| Rkey::from_bits(k.to_bits() + 0x700), Syndrome::UnknownKey),
        (
            |w, _| {
                let pd = w.b.dev.alloc_pd().unwrap();
                w.b.dev.alloc_mw(pd).unwrap().rkey
            },
            Syndrome::WrongPd,
        ),
    ];
    for (key, reason) in cases {
        let w = World::new();
        let rkey = w.bound(0, 64, WRITES);
        let key = key(&w, rkey);
        w.b.post(2, |_| WrOp::LocalInv(key));
        w.b.run();
        let wcs = w.b.poll();
        assert_eq!((status(&wcs[0]), why(&wcs)), (WcStatus::LocQpOpErr, Some(reason)));
        assert_eq!(w.b.dev.qp_state(w.b.qp), Ok(QpState::Err));
        assert_eq!(w.counters().mws_bound, 1);
    }
}

#[test]
fn mw_06_local_inv_on_another_qp_is_refused() {
    let w = World::new();
    let rkey = w.bound(0, 64, WRITES);
    let (_a2, b2) = second(&w);
    b2.post(1, |_| WrOp::LocalInv(rkey));
    b2.run();
    assert_eq!(why(&b2.poll()), Some(Syndrome::WrongQp));
    assert_eq!((w.counters().mws_bound, w.write(0, 8, rkey)), (1, OK));
}

#[test]
fn mw_09_invalidating_twice_costs_the_qp_and_nothing_else() {
    let w = World::new();
    let rkey = w.bound(0, 64, WRITES);
    w.b.post(1, |_| WrOp::LocalInv(rkey));
    w.b.post(2, |_| WrOp::LocalInv(rkey));
    w.b.run();
    let wcs = w.b.poll();
    let got: Vec<_> = wcs.iter().map(status).collect();
    assert_eq!((got, why(&wcs)), (vec![OK, WcStatus::LocQpOpErr], Some(Syndrome::InvalidatedKey)));
    assert_eq!((w.counters().mws, w.counters().mws_bound, w.counters().local_invs), (1, 0, 1));
}

#[test]
fn mw_11_send_with_inv_frees_the_window_and_the_receive_says_so() {
    let w = World::new();
    let rkey = w.bound(0, 64, WRITES);
    let inbox = w.b.mem(64, RW);
    w.b.recv(7, &inbox, 64);
    w.a.post(2, |c| send_inv(c, b"reply", rkey));
    assert_eq!(w.a.outcome(), [(2, OK)]);
    let [Wc::Success(wc)] = w.b.poll()[..] else { panic!("no success") };
    assert_eq!((wc.wr_id.0, wc.byte_len, wc.invalidated), (7, 5, Some(rkey)));
    assert_eq!((w.counters().mws_bound, w.counters().remote_invs), (0, 1));
    w.b.post(3, |_| bind(&MwKeys { rkey, ..w.window }, &w.parent, 0, 64, WRITES));
    assert_eq!(w.b.outcome(), [(3, OK)], "free, so it can be bound again");
}

#[test]
fn h_66_mw_09_bogus_remote_invalidation_costs_the_owner_its_qp_and_nothing_else() {
    type Pick = fn(&World, Rkey) -> Rkey;
    let cases: [(Pick, Syndrome); 4] = [
        (|_, k| k.next_tag(), Syndrome::StaleKey),
        (|w, _| w.b.window().rkey, Syndrome::InvalidatedKey),
        (|_, _| Rkey::from_bits(0xffff_ff00), Syndrome::UnknownKey),
        (
            |w, k| {
                // Already invalidated: what makes a peer's owner panic on rxe.
                w.b.post_quiet(1, |_| WrOp::LocalInv(k));
                w.b.run();
                k
            },
            Syndrome::InvalidatedKey,
        ),
    ];
    for (key, reason) in cases {
        let w = World::new();
        let rkey = w.bound(0, 64, WRITES);
        let key = key(&w, rkey);
        let inbox = w.b.mem(64, RW);
        w.b.recv(7, &inbox, 64);
        w.a.post(2, |c| send_inv(c, b"reply", key));
        assert_eq!(w.a.outcome(), [(2, OK)], "the sender sees success");
        let wcs = w.b.poll();
        assert_eq!((status(&wcs[0]), why(&wcs)), (WcStatus::RemInvReqErr, Some(reason)));
        assert_eq!(w.b.dev.qp_state(w.b.qp), Ok(QpState::Err));
    }
}

#[test]
fn mw_06_send_with_inv_through_another_qp_is_refused() {
    let w = World::new();
    let rkey = w.bound(0, 64, WRITES);
    let (a2, b2) = second(&w);
    let inbox = w.b.mem(64, RW);
    b2.recv(7, &inbox, 64);
    a2.post(2, |c| send_inv(c, b"reply", rkey));
    assert_eq!(a2.outcome(), [(2, OK)]);
    assert_eq!(why(&b2.poll()), Some(Syndrome::WrongQp));
    assert_eq!((w.counters().mws_bound, w.write(0, 8, rkey)), (1, OK));
}

#[test]
fn mw_07_the_parent_is_busy_while_a_window_is_bound_to_it() {
    let w = World::new();
    let rkey = w.bound(0, 64, WRITES);
    let busy = Err(DeviceError::new(Verb::DeregMr, errno::EBUSY));
    assert_eq!(w.b.dev.dereg_mr(w.parent.keys.mr), busy);
    assert_eq!(w.write(0, 8, rkey), OK, "the parent and the window go on working");
    w.b.post(1, |_| WrOp::LocalInv(rkey));
    assert_eq!(w.b.outcome(), [(1, OK)]);
    w.b.dev.dereg_mr(w.parent.keys.mr).unwrap();
}

#[test]
fn mw_08_the_qp_and_the_pd_are_busy_while_a_window_needs_them() {
    let w = World::new();
    let rkey = w.bound(0, 64, WRITES);
    let dev = &w.b.dev;
    assert_eq!(errno_of(dev.destroy_qp(w.b.qp)), errno::EBUSY);
    assert_eq!(w.write(0, 8, rkey), OK, "a refused destroy has changed nothing");
    dev.qp_to_err(w.b.qp).unwrap();
    assert_eq!(errno_of(dev.destroy_qp(w.b.qp)), errno::EBUSY, "also in error");
    dev.dealloc_mw(w.window.mw).unwrap();
    dev.destroy_qp(w.b.qp).unwrap();
    dev.dereg_mr(w.parent.keys.mr).unwrap();
    let free = w.b.window();
    assert_eq!(errno_of(dev.dealloc_pd(w.b.pd)), errno::EBUSY, "one free window is left");
    dev.dealloc_mw(free.mw).unwrap();
    dev.dealloc_pd(w.b.pd).unwrap();
    assert_eq!((w.counters().mws, w.counters().mws_bound), (0, 0));
}

#[test]
fn mw_08_windows_outlive_the_error_of_their_qp_and_open_nothing() {
    let w = World::new();
    let rkey = w.bound(0, 64, WRITES);
    w.b.dev.qp_to_err(w.b.qp).unwrap();
    w.b.post(1, |_| WrOp::LocalInv(rkey));
    let other = w.b.window();
    w.b.post(2, |_| bind(&other, &w.parent, 0, 64, WRITES));
    assert_eq!(w.b.outcome(), [(1, FLUSH), (2, FLUSH)], "flushed, not carried out");
    assert_eq!((w.counters().mws_bound, w.counters().binds), (1, 1));
    assert_eq!(w.write(0, 8, rkey), WcStatus::RetryExcErr);
    // Another QP can neither use, free nor take it.
    let (a2, b2) = second(&w);
    b2.post(3, |_| bind(&MwKeys { rkey, ..w.window }, &w.parent, 0, 64, WRITES));
    b2.run();
    assert_eq!(why(&b2.poll()), Some(Syndrome::StillValid));
    assert_eq!(a2.dev.qp_state(a2.qp), Ok(QpState::Rts));
}

#[test]
fn mw_08_dealloc_always_works_and_kills_the_key() {
    let w = World::new();
    let rkey = w.bound(0, 64, WRITES);
    w.b.dev.dealloc_mw(w.window.mw).unwrap();
    assert_eq!(w.refused(0, 1, rkey), Some(Syndrome::UnknownKey));
    let free = w.b.window();
    w.b.dev.dealloc_mw(free.mw).unwrap();
    assert_eq!(errno_of(w.b.dev.dealloc_mw(free.mw)), errno::EINVAL);
    assert_eq!((w.counters().mws, w.counters().dealloc_mw_calls), (0, 2));
    // In flight: the bind of a window that ends before it runs.
    let (_a2, b2) = second(&w);
    let late = b2.window();
    b2.post(1, |_| bind(&late, &w.parent, 0, 64, WRITES));
    b2.dev.dealloc_mw(late.mw).unwrap();
    assert_eq!(b2.outcome(), [(1, WcStatus::MwBindErr)]);
}

#[test]
fn mw_13_the_bind_is_in_effect_before_the_send_behind_it() {
    let w = World::new();
    let inbox = w.a.mem(64, RW);
    w.a.recv(9, &inbox, 64);
    w.b.post_quiet(1, |_| bind(&w.window, &w.parent, 0, 64, WRITES));
    w.b.post_quiet(2, |c| send(c, b"key"));
    assert_eq!(w.counters().binds, 0, "nothing runs before a step");
    assert_eq!(w.a.outcome(), [(9, OK)]);
    assert_eq!(w.write(0, 8, w.window.rkey.next_tag()), OK);
    assert_eq!(w.b.poll(), [], "unsignaled successes make no WC");
}

#[test]
fn unmapped_memory_is_out_of_reach_whatever_window_names_it() {
    let w = World::new();
    let rkey = w.bound(0, 64, WRITES);
    assert!(w.b.dev.dma_unmap(&w.parent.bytes, w.parent.addr, Fenced::mint()).is_ok());
    w.peer.fill(&[3; 64]);
    assert_eq!(w.write(0, 64, rkey), WcStatus::RemOpErr);
    assert_eq!((w.parent.read(0, 64), w.counters().iommu_faults), (vec![0; 64], 1));
}

#[test]
fn b60_window_keys_are_no_other_keys_number() {
    let w = World::new();
    let rkey = w.bound(0, 64, WRITES);
    let mut mr_keys = vec![];
    for _ in 0..200 {
        let k = w.b.fast(1, FastMrKind::Pages);
        mr_keys.extend([k.lkey.to_bits() >> 8, k.rkey.index()]);
    }
    assert!(!mr_keys.contains(&rkey.index()));
    // As a local key it names nothing.
    let lkey = Lkey::from_bits(rkey.to_bits());
    let sge = Sge { addr: w.parent.addr, len: 8, lkey };
    w.b.dev.post_recv(w.b.qp, &[RecvWr { wr_id: WrId(1), sge }]).unwrap();
    w.a.post(2, |c| send(c, b"12345678"));
    w.a.run();
    assert_eq!(why(&w.b.poll()), Some(Syndrome::UnknownKey));
}

#[test]
fn windows_end_with_their_process_and_free_with_their_device() {
    let w = World::new();
    w.bound(0, 64, WRITES);
    w.b.dev.unplug();
    assert_eq!(w.counters().mws_bound, 0, "a device that is gone binds nothing");
    assert_eq!(errno_of(w.b.dev.dealloc_mw(w.window.mw)), errno::EIO);
    assert_eq!(errno_of(w.b.dev.destroy_qp(w.b.qp)), errno::EIO);
    assert_eq!(errno_of(w.b.dev.dereg_mr(w.parent.keys.mr)), errno::EIO);
    assert_eq!((w.counters().mws, w.counters().qps, w.counters().mrs), (0, 0, 0));
    assert_eq!(errno_of(w.b.dev.alloc_mw(w.b.pd)), errno::ENODEV);

    let w = World::new();
    w.bound(0, 64, WRITES);
    w.b.dev.kill();
    assert_eq!((w.counters().mws, w.counters().mws_bound), (0, 0));
}
