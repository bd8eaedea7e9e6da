//! What the device's attributes promise, it keeps.

use super::rig::*;
use crate::device::sim::{Fabric, profile};
use crate::device::{
    Caps, Device, DeviceError, DeviceErrorKind, FastMrKind, LimitInfo, MwKeys, QpCaps, Verb, WrOp,
    errno,
};
use crate::mem::DmaBuf;
use crate::types::{Access, DmaAddr, MwId, PdId, Rkey};

fn side(caps: Caps) -> Side {
    Side::open(Fabric::new(3).add_node("n", caps), DEPTHS, 8)
}

fn shown<T: std::fmt::Debug>(r: Result<T, DeviceError>) -> (i32, &'static str, u64, u64, u64) {
    let e = r.unwrap_err();
    let LimitInfo { what, need, limit, in_use } = e.limit.unwrap();
    assert_eq!(e.kind(), DeviceErrorKind::Limit);
    (e.errno, what, need, limit, in_use)
}

#[test]
fn max_mr_counts_both_kinds() {
    let s = side(Caps { max_mr: 2, ..Caps::default() });
    let a = s.mem(8, RW);
    s.fast(1, FastMrKind::Pages);
    let full = (errno::ENOMEM, "max_mr", 1, 2, 2);
    assert_eq!(shown(s.dev.reg_mr(s.pd, a.addr, 8, RW)), full);
    assert_eq!(shown(s.dev.alloc_fast_mr(s.pd, 1, FastMrKind::Pages)), full);
    s.dev.dereg_mr(a.keys.mr).unwrap();
    s.dev.reg_mr(s.pd, a.addr, 8, RW).unwrap();
}

#[test]
fn sizes_and_depths_above_a_limit_name_it() {
    let s = side(Caps { max_mr_size: 4096, max_cqe: 100, ..Caps::default() });
    let bytes = DmaBuf::new(8192).unwrap().into_exposed().0;
    let addr = s.dev.dma_map(&bytes, None).unwrap();
    let e = shown(s.dev.reg_mr(s.pd, addr, 4097, RW));
    assert_eq!(e, (errno::EINVAL, "max_mr_size", 4097, 4096, 0));
    assert_eq!(shown(s.dev.create_cq(101)), (errno::EINVAL, "max_cqe", 101, 100, 0));
    assert_eq!(s.dev.create_cq(100).unwrap().1, 100);
    assert_eq!(s.dev.create_cq(0).unwrap_err().errno, errno::EINVAL);
    let qp = |ask| shown(s.dev.create_qp(s.pd, s.cq, ask));
    let e = qp(QpCaps { max_sge: 17, ..DEPTHS });
    assert_eq!(e, (errno::EINVAL, "max_sge", 17, 16, 0));
    let e = qp(QpCaps { max_recv_wr: 16_385, ..DEPTHS });
    assert_eq!(e, (errno::EINVAL, "max_qp_wr", 16_385, 16_384, 0));
}

#[test]
fn b35_too_much_inline_data_is_a_bare_einval() {
    let s = side(Caps { max_inline_data: 101, ..Caps::default() });
    let qp = |max_inline_data| {
        let ask = QpCaps { max_inline_data, ..DEPTHS };
        s.dev.create_qp(s.pd, s.cq, ask).map(|(_, got)| got.max_inline_data)
    };
    assert_eq!(qp(220), Err(DeviceError::new(Verb::CreateQp, errno::EINVAL)));
    assert_eq!((qp(101), qp(0)), (Ok(101), Ok(0)), "a retry with 0 finds the field");
}

#[test]
fn b36_depth_with_many_sges_is_a_bare_einval_above_its_own_limit() {
    let caps = Caps { max_qp_wr: 4096, wide_sge: 4, max_qp_wr_wide: 1000, ..Caps::default() };
    let s = side(caps);
    let qp = |max_send_wr, max_recv_wr, max_sge| {
        let ask = QpCaps { max_send_wr, max_recv_wr, max_sge, ..DEPTHS };
        s.dev.create_qp(s.pd, s.cq, ask).map(|(_, got)| (got.max_send_wr, got.max_recv_wr))
    };
    let bare = Err(DeviceError::new(Verb::CreateQp, errno::EINVAL));
    assert_eq!(qp(4096, 1, 4), Ok((4096, 1)));
    assert_eq!((qp(4096, 1, 8), qp(1, 4096, 8), qp(1001, 1, 5)), (bare, bare, bare));
    assert_eq!(qp(1000, 600, 8), Ok((1000, 1000)), "granted depths stay within the limit");
    let e = shown(s.dev.create_qp(s.pd, s.cq, QpCaps { max_send_wr: 4097, max_sge: 8, ..DEPTHS }));
    assert_eq!(e, (errno::EINVAL, "max_qp_wr", 4097, 4096, 0));
}

#[test]
fn b23_no_window_without_the_flag_and_a_count() {
    for caps in [
        Caps { mem_window_type_2b: true, max_mw: 0, ..Caps::default() },
        Caps { mem_window_type_2b: false, max_mw: 8, ..Caps::default() },
    ] {
        let (_a, b) = pair_with(caps, DEPTHS, 8);
        let parent = b.mem(8, PARENT);
        assert_eq!(b.dev.counters().alloc_mw_calls, 0, "nobody has asked");
        let e = b.dev.alloc_mw(b.pd).unwrap_err();
        assert_eq!(e, DeviceError::new(Verb::AllocMw, errno::EOPNOTSUPP));
        let none = MwKeys { mw: MwId(1), rkey: Rkey::from_bits(0) };
        let op = chain(1, true, |_| bind(&none, &parent, 0, 8, Access::REMOTE_READ));
        let e = b.dev.post_send(b.qp, &op).unwrap_err();
        assert_eq!((e.posted, e.cause.errno), (0, errno::EOPNOTSUPP));
        assert_eq!(b.dev.counters().alloc_mw_calls, 1, "refused calls count");
    }
}

#[test]
fn max_mw_is_a_limit_on_windows_that_exist() {
    let s = side(Caps { max_mw: 2, ..window_caps() });
    let (first, _second) = (s.window(), s.window());
    assert_eq!(shown(s.dev.alloc_mw(s.pd)), (errno::ENOMEM, "max_mw", 1, 2, 2));
    assert_eq!(s.dev.alloc_mw(PdId(77)).unwrap_err().errno, errno::EINVAL);
    s.dev.dealloc_mw(first.mw).unwrap();
    assert_eq!(s.dev.dealloc_mw(first.mw).unwrap_err().errno, errno::EINVAL);
    s.window();
    let c = s.dev.counters();
    assert_eq!((c.mws, c.alloc_mw_calls, c.dealloc_mw_calls), (2, 5, 1));
}

#[test]
fn reg_mr_wants_a_mapped_range_and_sane_rights() {
    let s = side(Caps::default());
    let m = s.mem(8, RW);
    let reg = |pd, at: u64, len, access| {
        s.dev.reg_mr(pd, DmaAddr(m.addr.0.wrapping_add(at)), len, access).map(drop)
    };
    let error = |errno| Err(DeviceError::new(Verb::RegMr, errno));
    assert_eq!(reg(s.pd, 0, 9, RW), error(errno::EFAULT));
    assert_eq!(reg(s.pd, u64::MAX, 4, RW), error(errno::EFAULT));
    assert_eq!(reg(s.pd, 1, 1 << 40, RW), error(errno::EFAULT));
    assert_eq!(reg(s.pd, 0, 0, RW), error(errno::EINVAL));
    assert_eq!(reg(PdId(77), 0, 8, RW), error(errno::EINVAL));
    assert_eq!(reg(s.pd, 0, 8, Access::REMOTE_WRITE), error(errno::EINVAL));
    assert_eq!(reg(s.pd, 0, 8, Access::REMOTE_ATOMIC), error(errno::EINVAL));
    assert_eq!(reg(s.pd, 2, 6, Access::empty()), Ok(()));
    assert_eq!(s.dev.counters().reg_mr_calls, 2);
}

#[test]
fn h_30_page_list_longer_than_the_device_allows() {
    let s = side(Caps { max_fast_reg_page_list_len: 16, ..Caps::default() });
    let e = shown(s.dev.alloc_fast_mr(s.pd, 17, FastMrKind::Pages));
    assert_eq!(e, (errno::EINVAL, "max_fast_reg_page_list_len", 17, 16, 0));
    let alloc = |depth, kind| s.dev.alloc_fast_mr(s.pd, depth, kind).map(drop);
    let invalid = Err(DeviceError::new(Verb::AllocMr, errno::EINVAL));
    assert_eq!(alloc(16, FastMrKind::Pages), Ok(()));
    assert_eq!(alloc(16, FastMrKind::Gaps), invalid, "no SG_GAPS");
    assert_eq!(alloc(0, FastMrKind::Pages), invalid);
    let (_a, b) = pair_with(Caps { max_fast_reg_page_list_len: 2, ..Caps::default() }, DEPTHS, 8);
    let (mem, keys) = (b.mem(3 * 4096, RW), b.fast(2, FastMrKind::Pages));
    let pages = [mem.page(0, 4096), mem.page(4096, 4096), mem.page(8192, 4096)];
    let e = b.dev.post_send(b.qp, &chain(1, true, |c| reg(c, &keys, RW, 0, &pages)));
    assert_eq!(shown(e.map_err(|e| e.cause)).1, "max_fast_reg_page_list_len");
    assert_eq!(b.dev.sq_in_use(b.qp), Some(0));
}

#[test]
fn huge_limits_do_not_cost_memory() {
    let caps = Caps { max_fast_reg_page_list_len: u32::MAX, max_mr: u32::MAX, ..Caps::default() };
    let s = side(Caps { max_qp_wr: u32::MAX, max_cqe: u32::MAX, ..caps });
    let (cq, entries) = s.dev.create_cq(u32::MAX).unwrap();
    assert_eq!(entries, u32::MAX);
    let ask = QpCaps { max_send_wr: u32::MAX, max_recv_wr: u32::MAX - 1, ..DEPTHS };
    let (_, got) = s.dev.create_qp(s.pd, cq, ask).unwrap();
    assert_eq!((got.max_send_wr, got.max_recv_wr), (u32::MAX, u32::MAX));
}

#[test]
fn device_without_fast_registration_refuses_every_part_of_it() {
    for caps in [
        profile::builtin("no-fast-registration").unwrap().caps,
        Caps { mem_mgt_extensions: false, ..Caps::default() },
    ] {
        let (_a, b) = pair_with(caps, DEPTHS, 8);
        let unsupported = errno::EOPNOTSUPP;
        let e = b.dev.alloc_fast_mr(b.pd, 1, FastMrKind::Pages).unwrap_err();
        assert_eq!(e.errno, unsupported);
        let mem = b.mem(8, RW);
        let key = Rkey::from_bits(1);
        for op in [
            chain(1, true, |_| WrOp::LocalInv(key)),
            chain(1, true, |c| send_inv(c, b"", key)),
            chain(1, true, |c| reg(c, &mem.keys, RW, 0, &[])),
        ] {
            assert_eq!(b.dev.post_send(b.qp, &op).unwrap_err().cause.errno, unsupported);
        }
        b.post(1, |c| write(c, mem.sge(0, 0), 0, key));
        assert_eq!(b.outcome().len(), 1);
    }
    // The flag without a page list: invalidation works, registration does not.
    let (_a, b) = pair_with(Caps { max_fast_reg_page_list_len: 0, ..Caps::default() }, DEPTHS, 8);
    let e = b.dev.alloc_fast_mr(b.pd, 1, FastMrKind::Pages).unwrap_err();
    assert_eq!(e.errno, errno::EOPNOTSUPP);
    b.post(1, |_| WrOp::LocalInv(Rkey::from_bits(1)));
}

#[test]
fn reads_have_an_sge_limit_of_their_own() {
    let (a, _b) = pair_with(Caps { max_sge_rd: 1, ..Caps::default() }, DEPTHS, 8);
    let mem = a.mem(8, RW);
    let two = chain(1, true, |c| WrOp::RdmaRead {
        sges: c.add_sges([mem.sge(0, 1), mem.sge(1, 1)]),
        remote_addr: 0,
        rkey: Rkey::from_bits(1),
    });
    let e = shown(a.dev.post_send(a.qp, &two).map_err(|e| e.cause));
    assert_eq!(e, (errno::EINVAL, "max_sge_rd", 2, 1, 0));
}

#[test]
fn message_longer_than_any_may_be_is_a_length_error() {
    let (a, b) = pair();
    let (src, dst) = (a.mem(1 << 31, RW), b.mem(8, RW));
    let op = |c: &mut crate::device::WrChain| {
        let sges = c.add_sges([src.sge(0, 1 << 31), src.sge(0, 1)]);
        let payload = crate::device::Payload::Sges(sges);
        WrOp::RdmaWrite { payload, remote_addr: dst.addr.0, rkey: dst.keys.rkey }
    };
    a.post(1, op);
    assert_eq!(a.outcome(), [(1, crate::device::WcStatus::LocLenErr)]);
}

#[test]
fn odd_page_sizes_become_powers_of_two() {
    for (asked, got) in [(0, 512), (1, 512), (3000, 4096), (65_536, 65_536), (u32::MAX, 1 << 30)] {
        let s = side(Caps { page_size: asked, ..Caps::default() });
        assert_eq!(s.dev.caps().page_size, got);
        let m = s.mem(8, RW);
        assert!(m.addr.0.is_multiple_of(u64::from(got)));
    }
}
