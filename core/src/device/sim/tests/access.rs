//! Remote access: who may reach what, and that a refusal moves nothing.

use super::rig::*;
use crate::device::sim::Syndrome;
use crate::device::{AsyncEvent, Device, Payload, QpState, Sge, Wc, WcStatus, WrOp};
use crate::mem::{DmaBuf, Fenced};
use crate::types::{Access, DmaAddr, Rkey};

/// Writes 4 bytes from `a` to `addr` under `rkey` and expects it to be refused for `reason`.
fn refused(a: &Side, b: &Side, addr: u64, rkey: Rkey, reason: Syndrome) {
    let src = a.mem(8, Access::empty());
    src.fill(&[7; 8]);
    a.post(1, |c| write(c, src.sge(0, 4), addr, rkey));
    a.run();
    let wcs = a.poll();
    assert_eq!(wcs.iter().map(status).collect::<Vec<_>>(), [WcStatus::RemAccessErr]);
    assert_eq!(why(&wcs), Some(reason));
    for side in [a, b] {
        assert_eq!(side.dev.qp_state(side.qp), Ok(QpState::Err));
    }
    let counters = b.dev.counters();
    assert_eq!((counters.bytes_written, counters.remote_refusals), (0, 1));
    assert_eq!(b.dev.next_event(b.qp), Some(AsyncEvent::QpFatal(b.qp)));
}

#[test]
fn write_and_read_move_the_bytes_they_name() {
    let (a, b) = pair();
    let (local, remote) = (a.mem(9000, RW), b.mem(9000, RW));
    let data: Vec<u8> = (0..9000).map(|i| (i % 253) as u8).collect();
    local.fill(&data);
    a.post(1, |c| write(c, local.sge(1, 8000), remote.addr.0 + 5, remote.keys.rkey));
    assert_eq!(a.outcome(), [(1, WcStatus::Success)]);
    assert_eq!(remote.read(5, 8000), data[1..8001]);
    assert_eq!((remote.read(4, 1), remote.read(8005, 1)), (vec![0], vec![0]));
    let back = a.mem(9000, Access::LOCAL_WRITE);
    a.post(2, |c| read(c, back.sge(3, 8000), remote.addr.0 + 5, remote.keys.rkey));
    a.run();
    let [Wc::Success(wc)] = a.poll()[..] else { panic!("no success") };
    assert_eq!(wc.byte_len, 8000);
    assert_eq!(back.read(3, 8000), data[1..8001]);
    let c = b.dev.counters();
    assert_eq!((c.bytes_written, c.bytes_read), (8000, 8000));
    let c = a.dev.counters();
    assert_eq!((c.rdma_writes, c.rdma_reads, c.send_doorbells), (1, 1, 2));
}

#[test]
fn gather_of_several_pieces_and_inline_writes() {
    let (a, b) = pair();
    let (x, y, remote) = (a.mem(10, RW), a.mem(10, RW), b.mem(64, RW));
    x.fill(b"0123456789");
    y.fill(b"abcdefghij");
    let (addr, rkey) = (remote.addr.0, remote.keys.rkey);
    a.post(1, |c| {
        let sges = c.add_sges([x.sge(2, 3), y.sge(0, 0), y.sge(5, 2), x.sge(9, 1)]);
        WrOp::RdmaWrite { payload: Payload::Sges(sges), remote_addr: addr, rkey }
    });
    a.post(2, |c| {
        let payload = Payload::Inline(c.add_inline(b"inline"));
        WrOp::RdmaWrite { payload, remote_addr: addr + 10, rkey }
    });
    assert_eq!(a.outcome().len(), 2);
    assert_eq!(remote.read(0, 17), b"234fg9\0\0\0\0inline\0");
}

#[test]
fn b47_range_check_does_not_wrap() {
    for (at, len, ok) in [(0x800, 0x1801, false), (0x800, 0x1800, true), (0x2000, 1, false)] {
        let (a, b) = pair();
        let (src, target) = (a.mem(0x4000, RW), b.mem(0x2000, RW));
        a.post(1, |c| write(c, src.sge(0, len), target.addr.0 + at, target.keys.rkey));
        let wanted = if ok { WcStatus::Success } else { WcStatus::RemAccessErr };
        assert_eq!(a.outcome(), [(1, wanted)], "{at:#x} {len:#x}");
    }
    for addr in [u64::MAX, u64::MAX - 3, 0, 1] {
        let (a, b) = pair();
        let target = b.mem(0x2000, RW);
        refused(&a, &b, addr, target.keys.rkey, Syndrome::OutOfRange);
    }
}

#[test]
fn b48_refused_loopback_write_is_an_error() {
    let side = looped();
    let (src, target) = (side.mem(16, RW), side.mem(16, RW));
    src.fill(&[9; 16]);
    side.post(1, |c| write(c, src.sge(0, 16), target.addr.0, Rkey::from_bits(0xdead_be01)));
    assert_eq!(side.outcome(), [(1, WcStatus::RemAccessErr)]);
    assert_eq!(target.read(0, 16), [0; 16]);
    let c = side.dev.counters();
    assert_eq!((c.bytes_written, c.rdma_writes, c.copies, c.remote_refusals), (0, 0, 0, 1));
}

#[test]
fn b48_loopback_carries_writes_and_messages() {
    let side = looped();
    let (src, target) = (side.mem(16, RW), side.mem(16, RW));
    src.fill(&[9; 16]);
    side.recv(10, &target, 8);
    side.post(1, |c| write(c, src.sge(0, 4), target.addr.0 + 8, target.keys.rkey));
    side.post(2, |c| send(c, b"hi"));
    let ok = WcStatus::Success;
    assert_eq!(side.outcome(), [(1, ok), (10, ok), (2, ok)]);
    assert_eq!(target.read(0, 16), b"hi\0\0\0\0\0\0\x09\x09\x09\x09\0\0\0\0");
}

#[test]
fn b50_offsets_have_64_bits() {
    let (a, b) = pair();
    let big = b.mem(8 << 30, RW);
    let src = a.mem(8, RW);
    src.fill(b"far away");
    let at = 4_294_967_312u64;
    a.post(1, |c| write(c, src.sge(0, 8), big.addr.0 + at, big.keys.rkey));
    assert_eq!(a.outcome(), [(1, WcStatus::Success)]);
    assert_eq!(big.read(at as usize, 8), b"far away");
    assert_eq!(big.read(16, 8), [0; 8]);
}

#[test]
fn b57_local_registration_lets_no_peer_in() {
    for need in [Access::LOCAL_WRITE, Access::empty(), Access::LOCAL_WRITE | Access::MW_BIND] {
        let (a, b) = pair();
        let target = b.mem(64, need);
        refused(&a, &b, target.addr.0, target.keys.rkey, Syndrome::MissingRight);
        assert_eq!(target.read(0, 64), [0; 64]);
    }
}

#[test]
fn b57_each_direction_needs_its_right() {
    let (a, b) = pair();
    let target = b.mem(64, Access::REMOTE_READ);
    refused(&a, &b, target.addr.0, target.keys.rkey, Syndrome::MissingRight);
    let (a, b) = pair();
    let target = b.mem(64, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let sink = a.mem(64, RW);
    a.post(1, |c| read(c, sink.sge(0, 8), target.addr.0, target.keys.rkey));
    assert_eq!(a.outcome(), [(1, WcStatus::RemAccessErr)]);
}

#[test]
fn b60_local_key_number_opens_nothing_to_a_peer() {
    let (a, b) = pair();
    let target = b.mem(64, RW);
    assert_ne!(target.keys.lkey.to_bits(), target.keys.rkey.to_bits());
    let number = Rkey::from_bits(target.keys.lkey.to_bits());
    refused(&a, &b, target.addr.0, number, Syndrome::UnknownKey);
}

#[test]
fn b86_deregistered_key_names_no_mr() {
    let (a, b) = pair();
    let target = b.mem(64, RW);
    b.dev.dereg_mr(target.keys.mr).unwrap();
    refused(&a, &b, target.addr.0, target.keys.rkey, Syndrome::UnknownKey);
    assert_eq!(target.read(0, 64), [0; 64]);
}

#[test]
fn wrong_tag_and_wrong_pd_are_refused() {
    let (a, b) = pair();
    let target = b.mem(64, RW);
    refused(&a, &b, target.addr.0, target.keys.rkey.next_tag(), Syndrome::StaleKey);
    let (a, b) = pair();
    let bytes = DmaBuf::new(64).unwrap().into_exposed().0;
    let addr = b.dev.dma_map(&bytes, None).unwrap();
    let other = b.dev.alloc_pd().unwrap();
    let keys = b.dev.reg_mr(other, addr, 64, RW).unwrap();
    refused(&a, &b, addr.0, keys.rkey, Syndrome::WrongPd);
}

#[test]
fn local_side_is_checked_first() {
    type Make = fn(&Side) -> Sge;
    let cases: [(Make, Syndrome); 5] = [
        (|s| s.mem(8, RW).sge(0, 9), Syndrome::OutOfRange),
        (|s| s.mem(8, Access::REMOTE_READ).sge(0, 8), Syndrome::MissingRight),
        (|s| Sge { lkey: bogus_lkey(), ..s.mem(8, RW).sge(0, 8) }, Syndrome::UnknownKey),
        (|s| Sge { addr: DmaAddr(u64::MAX), ..s.mem(8, RW).sge(0, 8) }, Syndrome::OutOfRange),
        (
            |s| {
                let m = s.mem(8, RW);
                let lkey = crate::types::Lkey::from_bits(m.keys.rkey.to_bits());
                Sge { lkey, ..m.sge(0, 8) }
            },
            Syndrome::UnknownKey,
        ),
    ];
    for (sge, reason) in cases {
        let (a, b) = pair();
        // A key that the peer would refuse as well: the local fault is the one reported.
        a.post(1, |c| read(c, sge(&a), 0, Rkey::from_bits(1)));
        a.run();
        let wcs = a.poll();
        assert_eq!(wcs.iter().map(status).collect::<Vec<_>>(), [WcStatus::LocProtErr]);
        assert_eq!(why(&wcs), Some(reason));
        assert_eq!(a.dev.qp_state(a.qp), Ok(QpState::Err));
        assert_eq!(b.dev.qp_state(b.qp), Ok(QpState::Rts));
    }
}

#[test]
fn accesses_of_no_bytes_need_no_key() {
    let (a, b) = pair();
    let nowhere = Rkey::from_bits(5);
    let sge = Sge { addr: DmaAddr(3), len: 0, lkey: bogus_lkey() };
    a.post(1, |c| write(c, sge, 77, nowhere));
    a.post(2, |c| read(c, sge, 77, nowhere));
    let ok = WcStatus::Success;
    assert_eq!(a.outcome(), [(1, ok), (2, ok)]);
    assert_eq!(b.dev.counters().remote_refusals, 0);
}

#[test]
fn unmapped_memory_is_not_reached_whatever_mr_names_it() {
    let (a, b) = pair();
    let target = b.mem(64, RW);
    assert!(b.dev.dma_unmap(&target.bytes, target.addr, Fenced::mint()).is_ok());
    let src = a.mem(8, RW);
    src.fill(&[7; 8]);
    a.post(1, |c| write(c, src.sge(0, 8), target.addr.0, target.keys.rkey));
    a.run();
    let wcs = a.poll();
    assert_eq!((status(&wcs[0]), why(&wcs)), (WcStatus::RemOpErr, Some(Syndrome::NotMapped)));
    assert_eq!(target.read(0, 64), [0; 64]);
    assert_eq!((b.dev.counters().iommu_faults, b.dev.counters().remote_refusals), (1, 0));
    assert_eq!(b.dev.qp_state(b.qp), Ok(QpState::Err));

    let (a, b) = pair();
    let (src, target) = (a.mem(64, RW), b.mem(64, RW));
    assert!(a.dev.dma_unmap(&src.bytes, src.addr, Fenced::mint()).is_ok());
    a.post(1, |c| write(c, src.sge(0, 8), target.addr.0, target.keys.rkey));
    assert_eq!(a.outcome(), [(1, WcStatus::LocProtErr)]);
    assert_eq!(a.dev.counters().iommu_faults, 1);
}

#[test]
fn mr_works_again_once_its_bytes_are_back_home() {
    let (a, b) = pair();
    let (src, target) = (a.mem(8, RW), b.mem(64, RW));
    src.fill(&[7; 8]);
    assert!(b.dev.dma_unmap(&target.bytes, target.addr, Fenced::mint()).is_ok());
    assert_eq!(b.dev.dma_map(&target.bytes, Some(target.addr)), Ok(target.addr));
    a.post(1, |c| write(c, src.sge(0, 8), target.addr.0, target.keys.rkey));
    assert_eq!(a.outcome(), [(1, WcStatus::Success)]);
    assert_eq!(target.read(0, 8), [7; 8]);
}

#[test]
fn unmap_gives_the_bytes_up_before_the_proof() {
    let (a, _b) = pair();
    let mut buf = DmaBuf::new(64).unwrap();
    buf[1] = 3;
    let (bytes, place) = buf.into_exposed();
    let addr = a.dev.dma_map(&bytes, None).unwrap();
    let elsewhere = DmaAddr(addr.0 + 4096);
    let (error, fenced) = a.dev.dma_unmap(&bytes, elsewhere, Fenced::mint()).unwrap_err();
    assert_eq!(error.errno, crate::device::errno::EINVAL);
    let proof = a.dev.dma_unmap(&bytes, addr, fenced).unwrap();
    let buf = bytes.into_buf(proof, place).unwrap();
    assert_eq!(buf[1], 3);
}

#[test]
fn b55_read_only_memory_is_registered_for_reading_and_refused_for_writing_by_name() {
    let (a, _b) = pair();
    let (bytes, _) = crate::mem::DmaBuf::read_only(&[7; 64]).unwrap().into_exposed();
    let addr = a.dev.dma_map(&bytes, None).unwrap();
    for rights in [Access::REMOTE_READ, Access::empty()] {
        let keys = a.dev.reg_mr(a.pd, addr, 64, rights).unwrap();
        a.dev.dereg_mr(keys.mr).unwrap();
    }
    let write = Access::LOCAL_WRITE;
    for rights in
        [write | Access::REMOTE_READ, write | Access::REMOTE_WRITE, write | Access::MW_BIND, write]
    {
        let e = a.dev.reg_mr(a.pd, addr, 64, rights).unwrap_err();
        assert_eq!(e.kind(), crate::device::DeviceErrorKind::ReadOnly);
        let text = "reg_mr: EACCES (13): memory is read-only, and the rights asked include writing";
        assert_eq!(e.to_string(), text);
    }
}

#[test]
fn b58_raw_rights_are_registered_as_they_are_and_a_device_without_ordering_says_no() {
    let caps = crate::device::Caps { relaxed_ordering: true, ..crate::device::Caps::default() };
    let (a, _b) = pair_with(caps, DEPTHS, 64);
    let relaxed = Access::LOCAL_WRITE | Access::RELAXED_ORDERING;
    a.mem(64, relaxed);
    let (a, _b) = pair();
    let mem = a.mem(64, Access::LOCAL_WRITE);
    let e = a.dev.reg_mr(a.pd, mem.addr, 64, relaxed).unwrap_err();
    assert_eq!((e.verb, e.errno), (crate::device::Verb::RegMr, crate::device::errno::EINVAL));
}

#[test]
fn b06_live_mrs_and_bytes_are_told_and_return_to_0() {
    let caps = crate::device::Caps { iommu_mr_size: 8192, ..crate::device::Caps::default() };
    let (a, _b) = pair_with(caps, DEPTHS, 64);
    let three: Vec<_> = (0..3).map(|_| a.mem(4096, Access::LOCAL_WRITE)).collect();
    let (large, _) = crate::mem::DmaBuf::new(16_384).unwrap().into_exposed();
    let addr = a.dev.dma_map(&large, None).unwrap();
    let refused = || a.dev.reg_mr(a.pd, addr, 16_384, Access::LOCAL_WRITE).unwrap_err();
    assert_eq!(
        refused().to_string(),
        "reg_mr: ENOMEM (12); 16384 bytes were to be registered; registered on the device: 3 MRs \
         of 12288 bytes"
    );
    for mem in three {
        a.dev.dereg_mr(mem.keys.mr).unwrap();
    }
    let memory = refused().memory.unwrap();
    assert_eq!((memory.mrs, memory.bytes), (0, 0));
}
