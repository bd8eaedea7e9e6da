//! Registrations that the device has no room for as a whole, and accesses across their pieces.

use memreg_core::DmaBuf;
use memreg_core::device::sim::{Fabric, SimDevice};
use memreg_core::device::trace::{Call, Trace, Traced};
use memreg_core::device::{Caps, DeviceError, MemoryUse, WrOp};
use memreg_core::drive::{connect_pair, settle};
use memreg_core::memreg::MapError;
use memreg_core::sizing::Ask;
use memreg_core::transport::error::Refusal;
use memreg_core::transport::{NoReply, OpenOptions, Transport};
use memreg_core::types::{Grant, Segment, Tick};
use memreg_strategies::Fmr;

const GIB: u64 = 1 << 30;

struct Rig {
    owner: Transport<SimDevice, Fmr>,
    peer: Transport<Traced<SimDevice>, Fmr>,
    trace: Trace,
}

/// The owner's device has room for `iommu` bytes in one registration; 0 = for all.
fn rig(iommu: u64, split_bytes: u64) -> Rig {
    let fabric = Fabric::new(1);
    let caps = Caps { iommu_mr_size: iommu, ..Caps::default() };
    let trace = Trace::new();
    let peer = Traced::new(fabric.add_node("peer", Caps::default()), trace.clone());
    let ask = Ask { max_payload_bytes: 6 * GIB, credits: 4, split_bytes, ..Ask::default() };
    let options = OpenOptions { ask, ..OpenOptions::default() };
    let mut owner = Transport::open(fabric.add_node("owner", caps), Fmr::new(), &options).unwrap();
    let mut peer = Transport::open(peer, Fmr::new(), &options).unwrap();
    connect_pair(&mut owner, &mut peer).unwrap();
    trace.take();
    Rig { owner, peer, trace }
}

impl Rig {
    fn settle(&mut self) {
        settle(Tick(1), &mut [&mut self.owner, &mut self.peer]).unwrap();
    }
}

/// 5 GiB, of which hardly any is ever touched.
fn large() -> DmaBuf {
    DmaBuf::new(5 << 30).unwrap()
}

#[test]
fn b104_what_fits_no_single_registration_is_split_and_a_write_across_two_pieces_is_two_wrs() {
    let mut rig = rig(2 * GIB, GIB);
    let e = rig.owner.expose(large(), Grant::PeerWrites).unwrap();
    let segments: Vec<Segment> = rig.owner.segments(&e).unwrap().to_vec();
    assert_eq!(segments.iter().map(|s| s.len).collect::<Vec<_>>(), [GIB; 5]);
    let (at, len) = (GIB as usize - (512 << 10), 1 << 20);
    let mut data = DmaBuf::new(len).unwrap();
    data.iter_mut().enumerate().for_each(|(i, b)| *b = (i % 251) as u8 + 1);
    let expected = data.to_vec();
    let op = rig.peer.write_across(&segments, at as u64, data).unwrap();
    rig.settle();
    assert_eq!(rig.peer.take(op).unwrap().result, Ok(1 << 20));
    let written = rig.trace.take().into_iter().find_map(|c| match c {
        Call::PostSend(wrs, n) if n > 0 => Some(wrs),
        _ => None,
    });
    let remote = |op: &WrOp| match *op {
        WrOp::RdmaWrite { remote_addr, rkey, .. } => (remote_addr, rkey),
        ref other => panic!("{other:?}"),
    };
    let wrs: Vec<_> = written.unwrap().iter().map(|wr| (remote(&wr.op), wr.signaled)).collect();
    let first = (segments[0].addr + at as u64, segments[0].rkey);
    let second = (segments[1].addr, segments[1].rkey);
    assert_eq!(wrs, [(first, false), (second, true)]);
    assert_ne!(first.1, second.1);
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    rig.settle();
    let back = rig.owner.reclaim(e).unwrap().into_first().unwrap();
    assert_eq!(back[at..at + len], expected, "524288 bytes on each side of the boundary");
    assert_eq!((back[at - 1], back[at + len]), (0, 0));
}

#[test]
fn b104_one_registration_that_works_is_not_split() {
    for iommu in [0, 5 * GIB] {
        let mut rig = rig(iommu, GIB);
        let e = rig.owner.expose(large(), Grant::PeerWrites).unwrap();
        assert_eq!(rig.owner.segments(&e).unwrap().len(), 1);
    }
}

#[test]
fn b104_b06_without_a_split_it_is_an_error_with_what_was_asked_and_what_is_live() {
    let mut rig = rig(2 * GIB, 0);
    let live = rig.owner.device().counters().mrs;
    let e = rig.owner.expose(large(), Grant::PeerWrites).unwrap_err();
    let Refusal::Map(MapError::Device(DeviceError { memory: Some(m), .. })) = &e.why else {
        panic!("{:?}", e.why)
    };
    let MemoryUse { mrs, asked, .. } = *m;
    assert_eq!((mrs, asked), (live, 5 * GIB));
    assert_eq!(e.buffers.count(), 1);
    assert_eq!(rig.owner.device().counters().mrs, live);
    // Pieces that do not fit either: everything that was made is undone.
    let mut rig = self::rig(2 * GIB, 3 * GIB);
    let e = rig.owner.expose(large(), Grant::PeerWrites).unwrap_err();
    assert!(matches!(e.why, Refusal::Map(MapError::Device(_))), "{:?}", e.why);
    assert_eq!(rig.owner.device().counters().mrs, live);
    let mut rig = self::rig(2 * GIB, 1 << 20);
    let e = rig.owner.expose(large(), Grant::PeerWrites).unwrap_err();
    assert_eq!(e.why, Refusal::Map(MapError::TooManyRegions), "more than a message can tell of");
}

#[test]
fn an_access_across_segments_stays_inside_them_and_reads_like_it_writes() {
    let mut rig = rig(0, 0);
    let buffers = (1..=3u8).map(|i| {
        let mut buf = DmaBuf::new(100).unwrap();
        buf.fill(i);
        (buf, 10..60)
    });
    let buffers = buffers.collect::<memreg_core::transport::Buffers>();
    let e = rig.owner.expose(buffers, Grant::PeerReads).unwrap();
    let segments = rig.owner.segments(&e).unwrap().to_vec();
    assert_eq!(segments.len(), 3);
    let mut read = |offset, len| {
        let op = rig.peer.read_across(&segments, offset, DmaBuf::new(len).unwrap());
        let op = op.map_err(|e| e.why)?;
        settle(Tick(1), &mut [&mut rig.owner, &mut rig.peer]).unwrap();
        let done = rig.peer.take(op).unwrap();
        done.result.unwrap();
        Ok::<Vec<u8>, Refusal>(done.buffers.into_first().unwrap().to_vec())
    };
    let all = [[1; 50], [2; 50], [3; 50]].concat();
    for (offset, len) in [(0, 150), (49, 2), (50, 50), (30, 100), (149, 1), (0, 1)] {
        assert_eq!(read(offset, len).unwrap(), all[offset as usize..offset as usize + len]);
    }
    for (offset, len) in [(150, 1), (149, 2), (0, 151), (u64::MAX, 1)] {
        assert!(matches!(read(offset, len), Err(Refusal::OutsideSegment { .. })), "{offset}");
    }
    let none = rig.peer.read_across(&[], 0, DmaBuf::new(1).unwrap()).unwrap_err();
    assert!(matches!(none.why, Refusal::OutsideSegment { len: 0, .. }));
}

#[test]
fn b104_a_large_buffer_of_this_side_is_registered_by_the_bytes_that_an_operation_needs() {
    let mut rig = rig(2 * GIB, GIB);
    let there = rig.peer.expose(DmaBuf::new(1 << 20).unwrap(), Grant::PeerWrites).unwrap();
    let segment = rig.peer.segments(&there).unwrap()[0];
    let mrs = rig.owner.device().counters().mrs;
    let at = (3 << 30) - 5;
    let mut source = large();
    source[at..at + 10].copy_from_slice(b"0123456789");
    for round in 1..=2 {
        let op = rig.owner.write(&segment, 100, (source, at..at + 10)).unwrap();
        rig.settle();
        let done = rig.owner.take(op).unwrap();
        assert_eq!(done.result, Ok(10));
        assert_eq!(rig.owner.stats().range_registrations, round);
        assert_eq!(rig.owner.device().counters().mrs, mrs, "it has ended with the write");
        source = done.buffers.into_first().unwrap();
    }
    // Several ranges: an MR for each.
    let mut list = memreg_core::transport::Buffers::new();
    list.push_ranges(source, [at..at + 2, at + 4..at + 6, at + 8..at + 10]);
    let op = rig.owner.write(&segment, 200, list).unwrap();
    rig.settle();
    let done = rig.owner.take(op).unwrap();
    assert_eq!((done.result, done.buffers.count()), (Ok(6), 3));
    assert_eq!(rig.owner.stats().range_registrations, 2 + 3);
    assert_eq!(rig.owner.device().counters().mrs, mrs, "all have ended");
    let source = done.buffers.into_first().unwrap();
    let e = rig.owner.write(&segment, 0, source).unwrap_err();
    assert!(matches!(e.why, Refusal::OutsideSegment { .. }), "{:?}", e.why);
    rig.peer.revoke(&there, NoReply::Unmarked).unwrap();
    rig.settle();
    let back = rig.peer.reclaim(there).unwrap().into_first().unwrap();
    assert_eq!(&back[100..110], b"0123456789");
    assert_eq!(&back[200..206], b"014589");
}
