//! The bytes that the peer moves are the bytes that the owner sees.

use crate::pair::{Pair, Reach, filled, pattern, unaligned, zeroed};
use crate::subject::Subject;
use crate::verdict::{Because, Stop, Verdict, ensure, ensure_eq};
use memreg_core::transport::Buffers;
use memreg_core::{DmaBuf, Grant, MemReg};
use std::ops::Range;

/// Expose, send, move, reply, revoke, reclaim, in both directions.
pub(super) fn m_02_normal_cycle<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let data = pattern(1, 10_000);
    let (exposed, segments) = pair.expose_told(zeroed(10_000)?, Grant::PeerWrites)?;
    pair.write_all(&segments, &data)?;
    pair.peer_replies()?;
    let back = pair.fence(exposed)?.into_first().because("no buffer came back")?;
    ensure!(back[..] == data[..], "the owner sees other bytes than the peer wrote");

    let (exposed, segments) = pair.expose_told(back, Grant::PeerReads)?;
    let seen = pair.read_all(&segments)?;
    pair.peer_replies()?;
    ensure!(seen == data, "the peer sees other bytes than the owner exposed");
    let back = pair.fence(exposed)?.into_first().because("no buffer came back")?;
    ensure!(back[..] == data[..], "reading changed the bytes");
    ensure_eq!(pair.owner.stats().exposures, 2, "exposures counted");
    ensure_eq!(pair.owner.stats().fences, 2, "fences counted");
    drop(back);
    pair.close()
}

/// Sizes around a page, the largest payload, and starts off every boundary.
fn shapes(max: usize) -> Vec<Range<usize>> {
    let mut shapes = vec![];
    for len in [1, 100, 4096, 4097, max] {
        for start in [0, 1, 511, 4095] {
            // The largest payload may need one page more for an odd start than a region has left.
            if len < max || start == 0 {
                shapes.push(start..start + len);
            }
        }
    }
    shapes
}

fn max_payload<S: MemReg>(pair: &Pair<S>) -> Result<usize, Stop> {
    usize::try_from(pair.owner.limits().max_payload_bytes).because("max_payload_bytes")
}

/// The peer's writes land in the exposed range of the buffer and nowhere else.
pub(super) fn map_19_segments_reach_the_bytes<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    for (i, range) in shapes(max_payload(&pair)?).into_iter().enumerate() {
        let data = pattern(i as u8, range.len());
        let mut buf = zeroed(range.end + 100)?;
        buf.fill(0x5a);
        let (exposed, segments) = pair.expose_told((buf, range.clone()), Grant::PeerWrites)?;
        pair.write_all(&segments, &data)?;
        let buf = pair.fence(exposed)?.into_first().because("no buffer came back")?;
        ensure!(buf[range.clone()] == data[..], "other bytes than were written in {range:?}");
        let mut around = buf[..range.start].iter().chain(&buf[range.end..]);
        ensure!(around.all(|&b| b == 0x5a), "bytes outside {range:?} changed");
    }
    pair.close()
}

/// The peer reads exactly the exposed range.
pub(super) fn map_19_peer_reads_the_bytes<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    for (i, range) in shapes(max_payload(&pair)?).into_iter().enumerate() {
        let data = pattern(i as u8, range.end + 100);
        let (exposed, segments) =
            pair.expose_told((filled(&data)?, range.clone()), Grant::PeerReads)?;
        let seen = pair.read_all(&segments)?;
        ensure!(seen == data[range.clone()], "the peer sees other bytes in {range:?}");
        let buf = pair.fence(exposed)?.into_first().because("no buffer came back")?;
        ensure!(buf[..] == data[..], "reading changed the bytes");
    }
    pair.close()
}

/// Lists of several parts: the segments, in order, are the bytes of the parts, in order.
pub(super) fn map_21_segments_are_in_order<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let many: Vec<(DmaBuf, Range<usize>)> =
        (0..9).map(|i| Ok((zeroed(5000)?, i * 7..i * 7 + 40 + i))).collect::<Result<_, Stop>>()?;
    let joined = vec![(zeroed(4096)?, 100..4096), (zeroed(8192)?, 0..8192), (zeroed(50)?, 0..7)];
    for (seed, parts) in [unaligned()?, many, joined].into_iter().enumerate() {
        let ranges: Vec<Range<usize>> = parts.iter().map(|(_, r)| r.clone()).collect();
        let total = ranges.iter().map(Range::len).sum();
        let data = pattern(seed as u8 + 1, total);
        let granted = pair.owner.stats().registrations;
        let (exposed, segments) =
            pair.expose_told(parts.into_iter().collect::<Buffers>(), Grant::PeerWrites)?;
        let told: u64 = segments.iter().map(|s| s.len).sum();
        ensure_eq!(told, total as u64, "bytes of all segments");
        let granted = pair.owner.stats().registrations - granted;
        // A part of a bounce arena is no registration.
        let want = if pair.revokes() { segments.len() as u64 } else { 0 };
        ensure_eq!(granted, want, "registrations counted");
        pair.write_all(&segments, &data)?;
        let back = pair.fence(exposed)?;
        ensure_eq!(back.count(), ranges.len(), "buffers that came back");
        let mut at = 0;
        for ((buf, range), want) in back.iter().zip(&ranges) {
            ensure_eq!(range, want, "the range of a buffer");
            let bytes = &data[at..at + range.len()];
            ensure!(buf[range.clone()] == *bytes, "other bytes in the part at {at}");
            at += range.len();
        }
    }
    pair.close()
}

/// What the peer does not write stays as it was, also after other bytes went the same way.
pub(super) fn map_19_partial_write_keeps_the_rest<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    for round in 0..20 {
        let before = pattern(round, 9000);
        let (exposed, segments) = pair.expose_told(filled(&before)?, Grant::PeerWrites)?;
        let first = segments.first().because("no segment")?;
        let (at, part) = (usize::from(round) * 11, [0xee; 301]);
        if round % 3 != 0 {
            let reach = pair.write(first, at as u64, &part)?;
            ensure_eq!(reach, Reach::Moved(vec![]), "a write within the grant");
        }
        let buf = pair.fence(exposed)?.into_first().because("no buffer came back")?;
        let mut want = before;
        if round % 3 != 0 {
            want[at..at + part.len()].copy_from_slice(&part);
        }
        ensure!(buf[..] == want[..], "round {round}: bytes that nobody wrote changed");
    }
    pair.close()
}

/// The last page of a 1 MiB buffer: the peer is told of that page alone.
pub(super) fn b51_piece_of_an_allocation<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let (start, len) = (1_044_480, 4096);
    let part = (zeroed(1 << 20)?, start..start + len);
    let (exposed, segments) = pair.expose_told(part, Grant::PeerWrites)?;
    let told: u64 = segments.iter().map(|s| s.len).sum();
    ensure_eq!(told, len as u64, "bytes that the peer is told of");
    let data = pattern(3, len);
    pair.write_all(&segments, &data)?;
    let buf = pair.fence(exposed)?.into_first().because("no buffer came back")?;
    ensure!(buf[start..] == data[..], "other bytes in the piece");
    ensure!(buf[..start].iter().all(|&b| b == 0), "bytes before the piece changed");
    pair.close()
}
