//! Fast registration, invalidation, and translation through page lists.

use super::rig::*;
use crate::device::sim::Syndrome;
use crate::device::{
    Caps, Device, FastMrKind, MrKeys, PageEntry, QpState, Wc, WcStatus, WrChain, WrOp,
};
use crate::mem::Fenced;
use crate::types::{Access, DmaAddr, MrId, Rkey};

const OK: WcStatus = WcStatus::Success;
const WRITE: Access = Access::REMOTE_WRITE.union(Access::LOCAL_WRITE);

fn gap_caps() -> Caps {
    Caps { sg_gaps: true, ..Caps::default() }
}

/// Registers `pages` on `b` at iova 0x5000 and gives the key.
fn registered(b: &Side, keys: &MrKeys, access: Access, pages: &[PageEntry]) -> Rkey {
    b.post(1, |c| reg(c, keys, access, 0x5000, pages));
    assert_eq!(b.outcome(), [(1, OK)]);
    keys.rkey.next_tag()
}

#[test]
fn map_06_page_list_joins_scattered_pages() {
    let (a, b) = pair();
    let mem = b.mem(8 * 4096, Access::empty());
    let keys = b.fast(4, FastMrKind::Pages);
    // Tail of page 6, page 2, page 3, head of page 0: adjacent pages join, others do not.
    let pages = [
        mem.page(6 * 4096 + 4000, 96),
        mem.page(2 * 4096, 4096),
        mem.page(3 * 4096, 4096),
        mem.page(0, 10),
    ];
    let rkey = registered(&b, &keys, WRITE, &pages);
    let src = a.mem(10_000, RW);
    let data: Vec<u8> = (0..10_000).map(|i| (i % 249 + 1) as u8).collect();
    src.fill(&data);
    let len = 96 + 8192 + 10;
    a.post(2, |c| write(c, src.sge(0, len), 0x5000, rkey));
    assert_eq!(a.outcome(), [(2, OK)]);
    let len = len as usize;
    assert_eq!(mem.read(6 * 4096 + 4000, 96), data[..96]);
    assert_eq!(mem.read(2 * 4096, 8192), data[96..96 + 8192]);
    assert_eq!(mem.read(0, 11), [&data[len - 10..len], &[0]].concat());
    assert_eq!(mem.read(6 * 4096 + 3999, 1), [0]);
    // A part in the middle, across the seam of two runs.
    a.post(3, |c| write(c, src.sge(0, 4), 0x5000 + 96 + 8190, rkey));
    assert_eq!(a.outcome(), [(3, OK)]);
    assert_eq!(
        (mem.read(4 * 4096 - 2, 3), mem.read(0, 3)),
        (vec![1, 2, 0], vec![3, 4, data[len - 8]])
    );
    // One byte more than the region.
    a.post(4, |c| write(c, src.sge(0, 4), 0x5000 + len as u64 - 3, rkey));
    assert_eq!(a.outcome(), [(4, WcStatus::RemAccessErr)]);
}

#[test]
fn b45_one_list_reaches_as_far_as_the_page_size_says() {
    for (page_size, reach) in [(4096, 1 << 20), (65_536, 16 << 20)] {
        let caps = Caps { max_fast_reg_page_list_len: 256, page_size, ..Caps::default() };
        let (a, b) = pair_with(caps, DEPTHS, 64);
        let mem = b.mem(16 << 20, Access::empty());
        let keys = b.fast(256, FastMrKind::Pages);
        let page = u64::from(page_size);
        let pages: Vec<_> = (0..256).map(|i| mem.page(i * page, page_size)).collect();
        let rkey = registered(&b, &keys, WRITE, &pages);
        let src = a.mem(2, RW);
        src.fill(&[9, 9]);
        a.post(2, |c| write(c, src.sge(0, 1), 0x5000 + reach - 1, rkey));
        assert_eq!((a.outcome(), mem.read(reach as usize - 1, 1)), (vec![(2, OK)], vec![9]));
        a.post(3, |c| write(c, src.sge(0, 2), 0x5000 + reach - 1, rkey));
        assert_eq!(a.outcome(), [(3, WcStatus::RemAccessErr)]);
    }
}

#[test]
fn d_04_adjacent_pages_join_and_no_byte_is_lost() {
    let (a, b) = pair();
    let (mem, src) = (b.mem(8192, Access::empty()), a.mem(4196, RW));
    src.fill(&[8; 4196]);
    let keys = b.fast(2, FastMrKind::Pages);
    let rkey = registered(&b, &keys, WRITE, &[mem.page(100, 3996), mem.page(4096, 200)]);
    a.post(2, |c| write(c, src.sge(0, 4196), 0x5000, rkey));
    assert_eq!(a.outcome(), [(2, OK)]);
    assert_eq!(mem.read(100, 4197), [&[8u8; 4196][..], &[0]].concat());
    assert_eq!(a.dev.counters().copies, 2, "one run: only the chunk size splits it");
}

#[test]
fn map_05_gaps_need_a_gap_mr() {
    let pages = |m: &Mem| [m.page(100, 50), m.page(4096 + 7, 9), m.page(2 * 4096, 1)];
    let (a, b) = pair_with(gap_caps(), DEPTHS, 64);
    let mem = b.mem(3 * 4096, Access::empty());
    let rkey = registered(&b, &b.fast(3, FastMrKind::Gaps), Access::REMOTE_READ, &pages(&mem));
    assert!(mem.bytes.copy_in(100, &[1; 50]) && mem.bytes.copy_in(4096 + 7, &[2; 9]));
    assert!(mem.bytes.copy_in(2 * 4096, &[3]));
    let sink = a.mem(60, RW);
    a.post(2, |c| read(c, sink.sge(0, 60), 0x5000, rkey));
    assert_eq!(a.outcome(), [(2, OK)]);
    assert_eq!(sink.read(0, 60), [&[1u8; 50][..], &[2; 9], &[3]].concat());

    let (_a, b) = pair_with(gap_caps(), DEPTHS, 64);
    let mem = b.mem(3 * 4096, Access::empty());
    let keys = b.fast(3, FastMrKind::Pages);
    b.post(1, |c| reg(c, &keys, WRITE, 0, &pages(&mem)));
    assert_eq!(b.outcome(), [(1, WcStatus::MwBindErr)]);
}

#[test]
fn reg_mr_takes_effect_in_queue_order_before_the_send_that_tells_of_it() {
    let (a, b) = pair();
    let (mem, inbox) = (b.mem(4096, Access::empty()), a.mem(64, RW));
    let keys = b.fast(1, FastMrKind::Pages);
    a.recv(9, &inbox, 64);
    b.post_quiet(1, |c| reg(c, &keys, WRITE, 0, &[mem.page(0, 4096)]));
    b.post_quiet(2, |c| send(c, b"key"));
    assert_eq!(b.dev.counters().reg_mrs, 0, "nothing runs before a step");
    assert_eq!(a.outcome(), [(9, OK)]);
    let src = a.mem(4, RW);
    src.fill(b"data");
    a.post(3, |c| write(c, src.sge(0, 4), 8, keys.rkey.next_tag()));
    assert_eq!(a.outcome(), [(3, OK)]);
    assert_eq!(mem.read(8, 4), b"data");
    assert_eq!(b.poll(), [], "unsignaled successes make no WC");
}

#[test]
fn reg_mr_refusals_take_the_qp_down() {
    type Make = fn(&mut WrChain, &MrKeys, &Mem) -> WrOp;
    let cases: [(Make, Syndrome); 17] = [
        (
            |c, k, m| reg(c, &MrKeys { mr: MrId(99), ..*k }, WRITE, 0, &[m.page(0, 9)]),
            Syndrome::ForeignKey,
        ),
        (
            |c, k, m| reg(c, &MrKeys { mr: m.keys.mr, ..*k }, WRITE, 0, &[m.page(0, 9)]),
            Syndrome::ForeignKey,
        ),
        (|c, _, m| reg(c, &m.keys, WRITE, 0, &[m.page(0, 9)]), Syndrome::NotFastMr),
        (|c, k, m| reg(c, k, Access::REMOTE_WRITE, 0, &[m.page(0, 9)]), Syndrome::BadAccess),
        (|c, k, m| reg(c, k, Access::REMOTE_ATOMIC, 0, &[m.page(0, 9)]), Syndrome::BadAccess),
        (|c, k, _| reg(c, k, WRITE, 0, &[]), Syndrome::BadPageList),
        (|c, k, m| reg(c, k, WRITE, 0, &[m.page(0, 0)]), Syndrome::BadPageList),
        (|c, k, m| reg(c, k, WRITE, 0, &[m.page(0, 4097)]), Syndrome::BadPageList),
        (|c, k, m| reg(c, k, WRITE, 0, &[m.page(1, 4096)]), Syndrome::BadPageList),
        (|c, k, m| reg(c, k, WRITE, 0, &[m.page(0, 4096), m.page(4097, 1)]), Syndrome::BadPageList),
        (|c, k, m| reg(c, k, WRITE, 0, &[m.page(0, 4095), m.page(4096, 1)]), Syndrome::BadPageList),
        // H-30: one entry more than the MR was made for.
        (|c, k, m| reg(c, k, WRITE, 0, &[m.page(0, 4096); 3]), Syndrome::BadPageList),
        (|c, k, m| reg(c, k, WRITE, u64::MAX - 3, &[m.page(0, 9)]), Syndrome::OutOfRange),
        (
            |c, k, m| reg(c, k, WRITE, 0, &[m.page(0, 4096), m.page(3 * 4096, 1)]),
            Syndrome::NotMapped,
        ),
        (
            |c, k, _| reg(c, k, WRITE, 0, &[PageEntry { addr: DmaAddr(u64::MAX), len: 1 }]),
            Syndrome::OutOfRange,
        ),
        (
            |c, k, m| match reg(c, k, WRITE, 0, &[m.page(0, 9)]) {
                WrOp::RegMr { mr, rkey, access, iova, pages, .. } => {
                    WrOp::RegMr { mr, rkey, access, iova, len: 10, pages }
                }
                other => other,
            },
            Syndrome::BadPageList,
        ),
        (
            |c, k, m| {
                let keys = MrKeys { rkey: Rkey::from_bits(k.rkey.to_bits() + 0x200), ..*k };
                reg(c, &keys, WRITE, 0, &[m.page(0, 9)])
            },
            Syndrome::ForeignKey,
        ),
    ];
    for (i, (op, reason)) in cases.into_iter().enumerate() {
        let (a, b) = pair();
        let (mem, keys) = (b.mem(2 * 4096, Access::empty()), b.fast(2, FastMrKind::Pages));
        b.post(1, |c| op(c, &keys, &mem));
        b.run();
        let wcs = b.poll();
        assert_eq!(wcs.iter().map(status).collect::<Vec<_>>(), [WcStatus::MwBindErr], "case {i}");
        assert_eq!(why(&wcs), Some(reason), "case {i}");
        assert_eq!(b.dev.qp_state(b.qp), Ok(QpState::Err));
        assert_eq!(a.dev.qp_state(a.qp), Ok(QpState::Rts));
        assert_eq!(b.dev.counters().fast_mrs_valid, 0);
    }
}

#[test]
fn reg_mr_of_a_valid_mr_or_of_another_pd_is_refused() {
    let (_a, b) = pair();
    let (mem, keys) = (b.mem(4096, Access::empty()), b.fast(1, FastMrKind::Pages));
    registered(&b, &keys, WRITE, &[mem.page(0, 9)]);
    b.post(2, |c| {
        reg(c, &MrKeys { rkey: keys.rkey.next_tag(), ..keys }, WRITE, 0, &[mem.page(0, 9)])
    });
    b.run();
    assert_eq!(why(&b.poll()), Some(Syndrome::StillValid));

    let (_a, b) = pair();
    let mem = b.mem(4096, Access::empty());
    let other = b.dev.alloc_pd().unwrap();
    let keys = b.dev.alloc_fast_mr(other, 1, FastMrKind::Pages).unwrap();
    b.post(2, |c| reg(c, &keys, WRITE, 0, &[mem.page(0, 9)]));
    b.run();
    assert_eq!(why(&b.poll()), Some(Syndrome::WrongPd));
}

#[test]
fn b86_invalidated_key_lets_nobody_in() {
    let (a, b) = pair();
    let (mem, keys) = (b.mem(4096, Access::empty()), b.fast(1, FastMrKind::Pages));
    let rkey = registered(&b, &keys, WRITE, &[mem.page(0, 4096)]);
    b.post(2, |_| WrOp::LocalInv(rkey));
    assert_eq!(b.outcome(), [(2, OK)]);
    let src = a.mem(4, RW);
    src.fill(&[5; 4]);
    a.post(3, |c| write(c, src.sge(0, 4), 0x5000, rkey));
    a.run();
    let wcs = a.poll();
    assert_eq!(
        (status(&wcs[0]), why(&wcs)),
        (WcStatus::RemAccessErr, Some(Syndrome::InvalidatedKey))
    );
    assert_eq!(mem.read(0, 4), [0; 4]);
}

#[test]
fn o_02_invalidate_then_register_runs_in_that_order() {
    let (a, b) = pair();
    let (mem, keys) = (b.mem(2 * 4096, Access::empty()), b.fast(1, FastMrKind::Pages));
    let first = registered(&b, &keys, WRITE, &[mem.page(0, 4096)]);
    b.post_quiet(2, |_| WrOp::LocalInv(first));
    let next = MrKeys { rkey: first, ..keys };
    b.post(3, |c| reg(c, &next, WRITE, 0x5000, &[mem.page(4096, 4096)]));
    assert_eq!(b.outcome(), [(3, OK)]);
    let src = a.mem(4, RW);
    src.fill(&[5; 4]);
    a.post(4, |c| write(c, src.sge(0, 4), 0x5000, first.next_tag()));
    assert_eq!(a.outcome(), [(4, OK)]);
    assert_eq!((mem.read(0, 1), mem.read(4096, 1)), (vec![0], vec![5]));
    a.post(5, |c| write(c, src.sge(0, 4), 0x5000, first));
    a.run();
    assert_eq!(why(&a.poll()), Some(Syndrome::StaleKey));
}

#[test]
fn map_13_tag_wraps_and_the_index_stays() {
    let (a, b) = pair();
    let (mem, mut keys) = (b.mem(4096, Access::empty()), b.fast(1, FastMrKind::Pages));
    let src = a.mem(4, RW);
    for i in 0..300 {
        let rkey = registered(&b, &keys, WRITE, &[mem.page(0, 4096)]);
        assert_eq!(rkey.index(), keys.rkey.index());
        a.post(i, |c| write(c, src.sge(0, 4), 0x5000, rkey));
        assert_eq!(a.outcome(), [(i, OK)]);
        b.post(2, |_| WrOp::LocalInv(rkey));
        assert_eq!(b.outcome(), [(2, OK)]);
        keys.rkey = rkey;
    }
}

#[test]
fn local_inv_needs_the_exact_valid_key() {
    type Pick = fn(&Side, Rkey) -> Rkey;
    let cases: [(Pick, Syndrome); 5] = [
        (|_, k| k.next_tag(), Syndrome::StaleKey),
        (|_, _| Rkey::from_bits(0xffff_0000), Syndrome::UnknownKey),
        (|b, _| b.mem(8, RW).keys.rkey, Syndrome::NotFastMr),
        (|b, _| b.fast(1, FastMrKind::Pages).rkey, Syndrome::InvalidatedKey),
        (
            |b, _| {
                let pd = b.dev.alloc_pd().unwrap();
                b.dev.alloc_fast_mr(pd, 1, FastMrKind::Pages).unwrap().rkey
            },
            Syndrome::WrongPd,
        ),
    ];
    for (key, reason) in cases {
        let (_a, b) = pair();
        let (mem, keys) = (b.mem(4096, Access::empty()), b.fast(1, FastMrKind::Pages));
        let rkey = registered(&b, &keys, WRITE, &[mem.page(0, 4096)]);
        b.post(2, |_| WrOp::LocalInv(key(&b, rkey)));
        b.run();
        let wcs = b.poll();
        assert_eq!((status(&wcs[0]), why(&wcs)), (WcStatus::LocQpOpErr, Some(reason)));
        assert_eq!(b.dev.qp_state(b.qp), Ok(QpState::Err));
        assert_eq!(b.dev.counters().fast_mrs_valid, 1, "the key survives its QP");
    }
}

#[test]
fn send_with_inv_ends_the_key_and_says_which() {
    let (a, b) = pair();
    let (mem, inbox) = (b.mem(4096, Access::empty()), b.mem(64, RW));
    let keys = b.fast(1, FastMrKind::Pages);
    let rkey = registered(&b, &keys, WRITE, &[mem.page(0, 4096)]);
    b.recv(7, &inbox, 64);
    a.post(2, |c| send_inv(c, b"reply", rkey));
    assert_eq!(a.outcome(), [(2, OK)]);
    let [Wc::Success(wc)] = b.poll()[..] else { panic!("no success") };
    assert_eq!((wc.wr_id.0, wc.byte_len, wc.invalidated), (7, 5, Some(rkey)));
    assert_eq!(inbox.read(0, 5), b"reply");
    assert_eq!(b.dev.counters().fast_mrs_valid, 0);
    // The MR can be registered again with the next key.
    registered(&b, &MrKeys { rkey, ..keys }, WRITE, &[mem.page(0, 4096)]);
}

#[test]
fn h_66_bogus_remote_invalidation_costs_the_owner_its_qp_and_nothing_else() {
    let cases: [fn(&Side, &Mem, Rkey) -> Rkey; 5] = [
        |_, _, _| Rkey::from_bits(0x00ff_ff01),
        |_, _, k| k.next_tag(),
        |_, mem, _| mem.keys.rkey,
        |b, _, _| b.fast(1, FastMrKind::Pages).rkey,
        |b, _, _| {
            let pd = b.dev.alloc_pd().unwrap();
            b.dev.alloc_fast_mr(pd, 1, FastMrKind::Pages).unwrap().rkey
        },
    ];
    for key in cases {
        let (a, b) = pair();
        let (mem, inbox) = (b.mem(4096, RW), b.mem(64, RW));
        let keys = b.fast(1, FastMrKind::Pages);
        let rkey = registered(&b, &keys, WRITE, &[mem.page(0, 4096)]);
        b.recv(7, &inbox, 64);
        b.recv(8, &inbox, 64);
        a.post(2, |c| send_inv(c, b"reply", key(&b, &mem, rkey)));
        assert_eq!(a.outcome(), [(2, OK)], "the sender sees success");
        assert_eq!(b.outcome(), [(7, WcStatus::RemInvReqErr), (8, WcStatus::WrFlushErr)]);
        assert_eq!(inbox.read(0, 5), [0; 5]);
        assert_eq!(b.dev.counters().fast_mrs_valid, 1);
        a.post(3, |c| send(c, b"x"));
        assert_eq!(a.outcome(), [(3, WcStatus::RetryExcErr)]);
    }
}

#[test]
fn peer_cannot_invalidate_what_lets_no_peer_in() {
    let (a, b) = pair();
    let (mem, inbox) = (b.mem(4096, RW), b.mem(64, RW));
    let keys = b.fast(1, FastMrKind::Pages);
    let rkey = registered(&b, &keys, Access::LOCAL_WRITE, &[mem.page(0, 4096)]);
    b.recv(7, &inbox, 64);
    a.post(2, |c| send_inv(c, b"reply", rkey));
    a.run();
    assert_eq!(why(&b.poll()), Some(Syndrome::MissingRight));
}

#[test]
fn fast_key_reaches_nothing_once_its_page_is_unmapped() {
    let (a, b) = pair();
    let (x, y) = (b.mem(4096, Access::empty()), b.mem(4096, Access::empty()));
    let keys = b.fast(2, FastMrKind::Pages);
    let rkey = registered(&b, &keys, WRITE, &[x.page(0, 4096), y.page(0, 4096)]);
    assert!(b.dev.dma_unmap(&y.bytes, y.addr, Fenced::mint()).is_ok());
    let src = a.mem(8192, RW);
    src.fill(&[3; 8192]);
    a.post(2, |c| write(c, src.sge(0, 8192), 0x5000, rkey));
    assert_eq!(a.outcome(), [(2, WcStatus::RemOpErr)]);
    assert_eq!((x.read(0, 4096), y.read(0, 4096)), (vec![0; 4096], vec![0; 4096]));
    assert_eq!(b.dev.counters().iommu_faults, 1);
}

#[test]
fn keys_reach_through_every_qp_of_the_pd_and_outlive_theirs() {
    let (a, b) = pair();
    let (mem, keys) = (b.mem(4096, Access::empty()), b.fast(1, FastMrKind::Pages));
    let rkey = registered(&b, &keys, WRITE, &[mem.page(0, 4096)]);
    let (a2, b2) = (a.sibling(a.pd), b.sibling(b.pd));
    a2.connect(&b2);
    b2.connect(&a2);
    b.dev.qp_to_err(b.qp).unwrap();
    b.run();
    b.dev.destroy_qp(b.qp).unwrap();
    let src = a2.mem(4, RW);
    src.fill(b"late");
    a2.post(3, |c| write(c, src.sge(0, 4), 0x5000, rkey));
    assert_eq!(a2.outcome(), [(3, OK)]);
    assert_eq!(mem.read(0, 4), b"late");
}

#[test]
fn lkey_of_a_fast_mr_opens_it_while_it_is_valid() {
    let (a, b) = pair();
    let (mem, target) = (b.mem(4096, Access::empty()), a.mem(8, RW));
    let keys = b.fast(1, FastMrKind::Pages);
    registered(&b, &keys, Access::REMOTE_READ, &[mem.page(0, 4096)]);
    let sge = crate::device::Sge { addr: DmaAddr(0x5000), len: 8, lkey: keys.lkey };
    b.post(2, |c| write(c, sge, target.addr.0, target.keys.rkey));
    assert_eq!(b.outcome(), [(2, OK)]);
    b.post_quiet(3, |_| WrOp::LocalInv(keys.rkey.next_tag()));
    b.post(4, |c| write(c, sge, target.addr.0, target.keys.rkey));
    b.run();
    assert_eq!(why(&b.poll()), Some(Syndrome::InvalidatedKey));
}
