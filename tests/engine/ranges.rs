//! Several ranges of one buffer: lent and registered once, each reachable, nothing between them.

use super::rig::{Rig, posts};
use memreg_core::DmaBuf;
use memreg_core::device::trace::Call;
use memreg_core::device::{Caps, TransportKind, Verb, WcStatus, errno};
use memreg_core::memreg::MemReg;
use memreg_core::sizing::Ask;
use memreg_core::transport::error::Refusal;
use memreg_core::transport::{Buffers, ExposureState, NoReply};
use memreg_core::types::{Grant, Segment};
use memreg_strategies::{Fmr, Frwr, Physical};
use std::ops::Range;

const LEN: usize = 6 * 4096;
const RANGES: [Range<usize>; 3] = [100..4000, 8192..12_288, 20_000..20_010];

/// Where a byte is, as far as one byte can say it.
fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

fn filled() -> DmaBuf {
    DmaBuf::from_bytes(&(0..LEN).map(byte).collect::<Vec<u8>>()).unwrap()
}

fn list(buf: DmaBuf, ranges: &[Range<usize>]) -> Buffers {
    let mut list = Buffers::new();
    list.push_ranges(buf, ranges.iter().cloned());
    list
}

/// The bytes of the ranges, one after the other.
fn payload() -> Vec<u8> {
    RANGES.into_iter().flatten().map(byte).collect()
}

fn given(buffers: &Buffers) -> Vec<Range<usize>> {
    assert_eq!(buffers.bufs().len(), 1);
    buffers.iter().map(|(_, range)| range.clone()).collect()
}

fn windows() -> Caps {
    Caps { max_fast_reg_page_list_len: 0, mem_window_type_2b: true, max_mw: 64, ..Caps::default() }
}

/// Of the owner's device: buffers lent, loans ended, ordinary MRs made.
fn loans<S: MemReg>(rig: &Rig<S>) -> [usize; 3] {
    let calls = rig.trace.take();
    let count = |of: fn(&Call) -> bool| calls.iter().filter(|c| of(c)).count();
    [
        count(|c| matches!(c, Call::DmaMap(_))),
        count(|c| matches!(c, Call::DmaUnmap(_))),
        count(|c| matches!(c, Call::RegMr(..))),
    ]
}

/// Exposes the ranges to be read and then to be written. `keys`: how many that takes; `mrs`: how
/// many ordinary MRs the first time, and the second.
fn reads_and_writes<S: MemReg>(mut rig: Rig<S>, keys: usize, mrs: [usize; 2]) {
    let e = rig.owner.expose(list(filled(), &RANGES), Grant::PeerReads).unwrap();
    rig.owner.flush().unwrap();
    let segments = rig.owner.segments(&e).unwrap().to_vec();
    assert_eq!(segments.len(), keys);
    let mut seen = vec![];
    for s in &segments {
        seen.extend(rig.peer_read(s, 0, s.len as usize).unwrap());
    }
    assert!(seen == payload(), "every byte reachable, in order");
    let back = rig.back(e);
    assert_eq!(given(&back), RANGES);
    let copied = rig.owner.limits().arena_bytes > 0;
    let lent = usize::from(!copied);
    assert_eq!(loans(&rig), [lent, lent, mrs[0]]);

    let e = rig.owner.expose(back, Grant::PeerWrites).unwrap();
    rig.owner.flush().unwrap();
    let segments = rig.owner.segments(&e).unwrap().to_vec();
    for s in &segments {
        rig.peer_write(s, 0, &vec![0xee; s.len as usize]).unwrap();
    }
    let back = rig.back(e);
    assert_eq!(given(&back), RANGES);
    assert_eq!(loans(&rig), [lent, lent, mrs[1]]);
    for (at, &b) in back.bufs()[0].iter().enumerate() {
        let inside = RANGES.iter().any(|r| r.contains(&at));
        assert_eq!(b, if inside { 0xee } else { byte(at) }, "byte {at}");
    }
    if copied {
        // The arenas stay.
        let (s, c) = (rig.owner.stats(), rig.node.counters());
        assert_eq!((s.exposures_now, s.bytes_leaked, c.mapped_ranges), (0, 0, 4));
    } else {
        rig.assert_clean();
    }
}

#[test]
fn b51_three_ranges_of_one_buffer_are_lent_and_registered_once() {
    let gaps = Caps { sg_gaps: true, ..Caps::default() };
    reads_and_writes(Rig::frwr(), 3, [0, 0]);
    reads_and_writes(Rig::new(Frwr::default(), gaps, Ask::default()), 1, [0, 0]);
    // One parent for all windows; it stays.
    reads_and_writes(Rig::new(Frwr::default(), windows(), Ask::default()), 3, [1, 0]);
    reads_and_writes(Rig::new(Fmr::default(), Caps::default(), Ask::default()), 3, [3, 3]);
    let ask = Ask { danger_trust_peer: true, credits: 4, ..Ask::default() };
    reads_and_writes(Rig::new(Physical::new(true), Caps::default(), ask), 1, [0, 0]);
}

/// Each key one byte past its end and one byte before its start, in both directions.
fn nothing_between<S: MemReg>(new: fn() -> Rig<S>) {
    for (grant, write) in [(Grant::PeerReads, false), (Grant::PeerWrites, true)] {
        for k in 0..RANGES.len() {
            for before in [false, true] {
                let mut rig = new();
                let e = rig.owner.expose(list(filled(), &RANGES), grant).unwrap();
                rig.owner.flush().unwrap();
                let s = rig.owner.segments(&e).unwrap()[k];
                let at = if before { 0 } else { s.len };
                let addr = s.addr - u64::from(before);
                let wider = Segment { addr, len: s.len + 1, ..s };
                let ended = match write {
                    true => rig.peer_write(&wider, at, &[0xee]).map(drop),
                    false => rig.peer_read(&wider, at, 1).map(drop),
                };
                assert_eq!(ended.unwrap_err().wc.status, WcStatus::RemAccessErr);
                rig.settle();
                let back = rig.owner.reclaim(e).unwrap();
                assert_eq!(given(&back), RANGES);
                assert!(back.bufs()[0].iter().enumerate().all(|(at, &b)| b == byte(at)));
                rig.assert_clean();
            }
        }
    }
}

#[test]
fn b51_bytes_between_ranges_are_neither_readable_nor_writable() {
    nothing_between(Rig::frwr);
    nothing_between(|| Rig::new(Frwr::default(), windows(), Ask::default()));
    nothing_between(|| Rig::new(Fmr::default(), Caps::default(), Ask::default()));
}

#[test]
fn b20_pages_of_one_buffer_that_do_not_touch_join_in_one_page_list() {
    let mut rig = Rig::frwr();
    let pages = [4096..8192, 12_288..16_384];
    let e = rig.owner.expose(list(filled(), &pages), Grant::PeerReads).unwrap();
    rig.owner.flush().unwrap();
    let segments = rig.owner.segments(&e).unwrap().to_vec();
    assert_eq!(segments.len(), 1);
    let expected: Vec<u8> = pages.into_iter().flatten().map(byte).collect();
    assert!(rig.peer_read(&segments[0], 0, 8192).unwrap() == expected);
    rig.back(e);
    rig.assert_clean();
}

#[test]
fn lists_of_ranges_that_make_no_sense_are_refused_and_come_back() {
    let touching = [0..10, 10..20];
    let overlap = |index, start, end| Refusal::Overlap { index, start, end };
    let bad: [(&[Range<usize>], Refusal); 7] = [
        (&[0..10, 9..20], overlap(1, 9, 10)),
        (&[0..10, 20..30, 20..30], overlap(2, 20, 30)),
        (&[20..30, 0..10], overlap(1, 0, 30)),
        (&[0..10, 20..LEN + 1], Refusal::OutOfRange { index: 1, end: LEN + 1, len: LEN }),
        (&[0..10, 10..10], Refusal::ZeroLength { index: 1 }),
        (&[0..10, Range { start: 30, end: 20 }], Refusal::ZeroLength { index: 1 }),
        (&[], Refusal::NoRanges { buffer: 0 }),
    ];
    let mut rig = Rig::frwr();
    let (theirs, ours) = (Grant::PeerReads, Grant::PeerWrites);
    let there = rig.peer.expose(DmaBuf::new(LEN).unwrap(), theirs).unwrap();
    let to_read = rig.peer.segments(&there).unwrap()[0];
    let there = [there, rig.peer.expose(DmaBuf::new(LEN).unwrap(), ours).unwrap()];
    let to_write = rig.peer.segments(&there[1]).unwrap()[0];
    rig.trace.take();
    for (ranges, why) in bad {
        let e = rig.owner.expose(list(filled(), ranges), ours).unwrap_err();
        assert_eq!((&e.why, given(&e.buffers)), (&why, ranges.to_vec()));
        let e = rig.owner.read(&to_read, 0, e.buffers).unwrap_err();
        assert_eq!((&e.why, given(&e.buffers)), (&why, ranges.to_vec()));
        let e = rig.owner.write(&to_write, 0, e.buffers).unwrap_err();
        assert_eq!((&e.why, given(&e.buffers)), (&why, ranges.to_vec()));
        assert!(e.buffers.bufs()[0].iter().enumerate().all(|(at, &b)| b == byte(at)));
    }
    let text = overlap(1, 9, 10).to_string();
    assert!(
        text.starts_with("item 1 begins at byte 9 of its buffer and the item before"),
        "{text}"
    );
    // A buffer without ranges among others; ranges of different buffers have no order.
    let mut lists = [Buffers::new(), Buffers::new()];
    for (list, last) in lists.iter_mut().zip([&[][..], &touching]) {
        list.push(DmaBuf::new(64).unwrap(), 60..64);
        list.push_ranges(DmaBuf::new(64).unwrap(), last.iter().cloned());
        list.push(DmaBuf::new(64).unwrap(), 1..2);
    }
    let [without, good] = lists;
    let e = rig.owner.expose(without, ours).unwrap_err();
    assert_eq!((e.why, e.buffers.bufs().len()), (Refusal::NoRanges { buffer: 1 }, 3));
    assert_eq!(loans(&rig), [0; 3]);
    let e = rig.owner.expose(good, ours).unwrap();
    assert_eq!(rig.back(e).count(), 4, "touching ranges are two");
    rig.assert_clean();
}

#[test]
fn reads_and_writes_over_several_ranges_of_one_buffer() {
    for transport in [TransportKind::Ib, TransportKind::Iwarp] {
        let caps = Caps { transport, ..Caps::default() };
        let mut rig = Rig::new(Frwr::default(), caps, Ask::default());
        let (len, iwarp) = (payload().len(), transport == TransportKind::Iwarp);
        let from = DmaBuf::from_bytes(&payload()).unwrap();
        let from = rig.peer.expose(from, Grant::PeerReads).unwrap();
        let to = rig.peer.expose(DmaBuf::new(len).unwrap(), Grant::PeerWrites).unwrap();
        let [source, sink] = [&from, &to].map(|e| rig.peer.segments(e).unwrap()[0]);

        let zero = DmaBuf::new(LEN).unwrap();
        let op = rig.owner.read(&source, 0, list(zero, &RANGES)).unwrap();
        rig.settle();
        let done = rig.owner.take(op).unwrap();
        assert_eq!((done.result, given(&done.buffers)), (Ok(len as u64), RANGES.to_vec()));
        for (at, &b) in done.buffers.bufs()[0].iter().enumerate() {
            let inside = RANGES.iter().any(|r| r.contains(&at));
            assert_eq!(b, if inside { byte(at) } else { 0 }, "byte {at}");
        }
        // Over iWARP the peer's right to write is on the ranges alone, and no longer than the read.
        let sinks = if iwarp { RANGES.len() } else { 0 };
        assert_eq!(rig.owner.stats().sink_registrations, sinks as u64);
        let ended = rig.trace.take().iter().filter(|c| matches!(c, Call::DeregMr(_))).count();
        assert_eq!(ended, sinks);

        let op = rig.owner.write(&sink, 0, done.buffers).unwrap();
        rig.settle();
        let done = rig.owner.take(op).unwrap();
        assert_eq!((done.result, given(&done.buffers)), (Ok(len as u64), RANGES.to_vec()));
        assert_eq!(rig.owner.stats().local_registrations, 1, "of the whole buffer, once");
        rig.peer.revoke_all([&from, &to], NoReply::Unmarked).unwrap();
        rig.settle();
        let arrived = rig.peer.reclaim(to).unwrap().into_first().unwrap();
        assert!(arrived[..] == payload());
        rig.assert_clean();
    }
}

#[test]
fn a_sink_that_does_not_end_keeps_its_buffer_and_the_others_end() {
    let caps = Caps { transport: TransportKind::Iwarp, ..Caps::default() };
    let mut rig = Rig::new(Frwr::default(), caps, Ask::default());
    let from = rig.peer.expose(DmaBuf::from_bytes(&payload()).unwrap(), Grant::PeerReads).unwrap();
    let source = rig.peer.segments(&from).unwrap()[0];
    let mut both = list(DmaBuf::new(LEN).unwrap(), &RANGES[..2]);
    both.push(DmaBuf::new(64).unwrap(), 3..13);
    let op = rig.owner.read(&source, 0, both).unwrap();
    rig.trace.take();
    rig.plan.fail(Verb::DeregMr, 1, errno::EBUSY);
    rig.settle();
    let done = rig.owner.take(op).unwrap();
    assert_eq!(done.result, Ok(payload().len() as u64));
    let left: Vec<_> = done.buffers.iter().map(|(b, r)| (b[r.clone()].to_vec(), r.start)).collect();
    assert_eq!(left, [(payload()[payload().len() - 10..].to_vec(), 3)]);
    assert_eq!(rig.owner.stats().bytes_leaked, LEN as u64);
    let ended = rig.trace.take().iter().filter(|c| matches!(c, Call::DeregMr(_))).count();
    assert_eq!(ended, 2, "the third is tried again when the connection is renewed");
}

#[test]
fn what_the_device_keeps_is_missing_with_its_ranges() {
    let mut rig = Rig::frwr();
    let mut both = list(filled(), &RANGES);
    both.push_ranges(DmaBuf::new(64).unwrap(), [3..4, 7..9]);
    let e = rig.owner.expose(both, Grant::PeerWrites).unwrap();
    rig.owner.flush().unwrap();
    rig.plan.fail(Verb::DmaUnmap, 1, errno::EBUSY);
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    rig.settle();
    assert_eq!(rig.owner.exposure_state(&e), Ok(ExposureState::Held));
    let left = rig.owner.reclaim(e).unwrap();
    assert_eq!((given(&left), left.bufs()[0].len()), (vec![3..4, 7..9], 64));
    assert_eq!(left.ranges(0).collect::<Vec<_>>(), [3..4, 7..9]);
    assert_eq!(rig.owner.stats().bytes_leaked, LEN as u64);
    assert!(rig.owner.expose(left, Grant::PeerWrites).is_ok());
    assert!(!posts(&rig.trace.take()).is_empty());
}

/// The ranges of a list panic in the program's own iterator, and the program goes on without them.
#[test]
fn ranges_that_panicked_are_not_exposed() {
    for at_the_end in [true, false] {
        let mut rig = Rig::new(Frwr::default(), windows(), Ask::default());
        let mut list = Buffers::new();
        list.push(filled(), 0..10);
        let bad = (0..2).map(|k| if k == 1 { panic!("the program's own") } else { 3..7 });
        let push = std::panic::AssertUnwindSafe(|| list.push_ranges(filled(), bad));
        assert!(std::panic::catch_unwind(push).is_err());
        if !at_the_end {
            list.push(filled(), 30..40);
        }
        let exposed = rig.owner.expose(list, Grant::PeerReads);
        assert!(!rig.is_down(), "the connection is down: {:?}", exposed.err().map(|e| e.why));
        let lens: Vec<u64> =
            rig.owner.segments(&exposed.unwrap()).unwrap().iter().map(|s| s.len).collect();
        assert_eq!(lens.iter().sum::<u64>(), if at_the_end { 10 } else { 20 });
    }
}
