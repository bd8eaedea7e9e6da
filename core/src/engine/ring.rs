//! The send queue as the engine sees it: what is outstanding, in post order.
//!
//! One structure answers four questions: which WR a WC belongs to, which unsignaled WRs it retires,
//! how many slots are free, and whether a WC is of this connection at all.

use crate::engine::exposure::{ExposureId, LocalId};
use crate::mutants::mutant;
use crate::types::{Epoch, WrId};

/// What a WR on the send queue was for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RingOp {
    /// The registration of an exposure's key, by its place in the exposure. The exposure outlives
    /// the key, so a WR of one that is gone changes nothing any more.
    Reg(ExposureId, u32),
    /// The invalidation of that key.
    Inv(ExposureId, u32),
    /// A message; the slot of its bytes, if it was not inline.
    Send(Option<u32>),
    /// Part of a read or write; `true` for its last WR.
    Local(LocalId, bool),
    /// The marker behind which nothing of this QP is outstanding.
    Sentinel,
}

impl RingOp {
    /// The same for the key that is `by` places further on.
    #[inline]
    fn further(self, by: u32) -> RingOp {
        match self {
            RingOp::Reg(id, k) => RingOp::Reg(id, k + by),
            RingOp::Inv(id, k) => RingOp::Inv(id, k + by),
            alone => alone,
        }
    }
}

/// Which queue a WC came from, and where in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cookie {
    /// Entry of the send ring.
    Send(u64),
    /// Receive slot.
    Recv(u32),
}

const SEQ_BITS: u32 = 40;
const SEQ_MASK: u64 = (1 << SEQ_BITS) - 1;
const KIND_SEND: u64 = 1;
const KIND_RECV: u64 = 2;

/// Packs epoch (16 bits), kind (8) and sequence (40).
#[inline]
fn pack(epoch: Epoch, kind: u64, seq: u64) -> WrId {
    WrId((u64::from(epoch.0 & 0xffff) << 48) | (kind << SEQ_BITS) | (seq & SEQ_MASK))
}

/// The cookie of receive slot `slot`.
pub(crate) fn recv_id(epoch: Epoch, slot: u32) -> WrId {
    pack(epoch, KIND_RECV, u64::from(slot))
}

/// What a cookie names, or `None` if it is of another epoch or not ours.
#[inline]
pub(crate) fn decode(epoch: Epoch, id: WrId) -> Option<Cookie> {
    if id.0 >> 48 != u64::from(epoch.0 & 0xffff) && !mutant!("epoch") {
        return None;
    }
    let seq = id.0 & SEQ_MASK;
    match (id.0 >> SEQ_BITS) & 0xff {
        KIND_SEND => Some(Cookie::Send(seq)),
        KIND_RECV => u32::try_from(seq).ok().map(Cookie::Recv),
        _ => None,
    }
}

/// WRs in a row that are for the keys of one exposure in a row, or one of anything.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// What the first is for.
    op: RingOp,
    /// WRs, at least 1.
    count: u32,
    /// Whether the last is signaled; the others are not.
    signaled: bool,
}

/// WRs that were entered together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Cookie of the first; each next one's is one more.
    pub(crate) first: WrId,
    /// WRs, at least 1.
    pub(crate) count: usize,
    /// Whether the last must be signaled.
    pub(crate) signaled: bool,
}

/// The outstanding WRs of one QP.
#[derive(Debug)]
pub(crate) struct SendRing {
    depth: usize,
    epoch: Epoch,
    /// The oldest at `head`; those before it are gone.
    entries: Vec<Entry>,
    head: usize,
    /// Sequence of the oldest WR.
    front: u64,
    /// WRs from that one on.
    count: usize,
    /// WRs behind the last signaled one.
    unsignaled: usize,
    /// How many unsignaled WRs may come in a row.
    unsignaled_limit: usize,
}

impl SendRing {
    /// An empty ring over a queue of `depth` slots, one of which is the sentinel's for ever.
    pub(crate) fn new(depth: u32, epoch: Epoch) -> SendRing {
        let depth = depth as usize;
        let unsignaled_limit = (depth / 2).max(1) - 1;
        // Twice the depth: as many are gone at least whenever it is full, so that making room costs
        // each of them no more than one move.
        let entries = Vec::with_capacity(2 * depth);
        let (head, front, count, unsignaled) = (0, 0, 0, 0);
        SendRing { depth, epoch, entries, head, front, count, unsignaled, unsignaled_limit }
    }

    /// Slots of the queue.
    #[inline]
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// WRs that may still be on the queue.
    #[inline]
    pub(crate) fn outstanding(&self) -> usize {
        self.count
    }

    /// WRs whose completion the device owes.
    pub(crate) fn owed(&self) -> usize {
        self.open().iter().filter(|e| e.signaled).count()
    }

    /// The entries of WRs that may still be on the queue.
    fn open(&self) -> &[Entry] {
        self.entries.get(self.head..).unwrap_or_default()
    }

    /// Forgets the entries that are gone.
    #[cold]
    fn make_room(&mut self) {
        self.entries.drain(..self.head);
        self.head = 0;
    }

    /// WRs that no later signal covers yet.
    #[inline]
    pub(crate) fn unsignaled(&self) -> usize {
        self.unsignaled
    }

    /// Enters a WR before it is posted; returns its cookie and whether it must be signaled.
    #[inline]
    pub(crate) fn push(&mut self, op: RingOp, want_signal: bool) -> (WrId, bool) {
        let run = self.push_run(op, 1);
        if want_signal && !run.signaled {
            self.signal_last();
        }
        (run.first, run.signaled || want_signal)
    }

    /// Enters WRs for keys in a row before they are posted: as many of `want` (at least 1) as come
    /// before the next signal, and the one that has it.
    ///
    /// At least every half queue one is signaled (rule 9), whoever asked for what. The caller has
    /// checked that they fit, or the device will refuse them and they are taken back from here.
    #[inline]
    pub(crate) fn push_run(&mut self, op: RingOp, want: usize) -> Run {
        let seq = self.front + self.count as u64;
        let unforced = self.unsignaled_limit.saturating_sub(self.unsignaled);
        // Cookies count up within a run: not past the last number.
        let numbers = (SEQ_MASK - (seq & SEQ_MASK)) as usize + 1;
        let count = want.min(numbers).min(unforced + 1);
        let signaled = count > unforced && !mutant!("rule-9");
        if self.entries.len() == self.entries.capacity() {
            self.make_room();
        }
        self.entries.push(Entry { op, count: count as u32, signaled });
        self.count += count;
        self.unsignaled = if signaled { 0 } else { self.unsignaled + count };
        Run { first: pack(self.epoch, KIND_SEND, seq), count, signaled }
    }

    /// The newest WR is to be signaled too.
    pub(crate) fn signal_last(&mut self) {
        if self.count > 0
            && let Some(last) = self.entries.last_mut()
        {
            last.signaled = true;
            self.unsignaled = 0;
        }
    }

    /// Takes back the newest WR, which the device refused, and its cookie.
    pub(crate) fn take_back(&mut self) -> Option<(RingOp, WrId)> {
        let last = self.entries.get_mut(self.head..)?.last_mut()?;
        last.count -= 1;
        last.signaled = false;
        let op = last.op.further(last.count);
        if last.count == 0 {
            self.entries.pop();
        }
        self.count -= 1;
        let seq = self.front + self.count as u64;
        let covered = self.open().iter().rev().take_while(|e| !e.signaled);
        self.unsignaled = covered.map(|e| e.count as usize).sum();
        Some((op, pack(self.epoch, KIND_SEND, seq)))
    }

    /// Whether `seq` (the low bits, as in a cookie) is outstanding; its position from the front.
    #[inline]
    pub(crate) fn position(&self, seq: u64) -> Option<usize> {
        let ahead = seq.wrapping_sub(self.front) & SEQ_MASK;
        usize::try_from(ahead).ok().filter(|&i| i < self.count)
    }

    /// The oldest `count` WRs, or all if they are fewer, are off the queue. To be called once for
    /// them, with [`pop_retired`](SendRing::pop_retired) for each run of them behind it.
    #[inline]
    pub(crate) fn retire(&mut self, count: usize) {
        let count = count.min(self.count);
        self.front += count as u64;
        self.count -= count;
        self.unsignaled = self.unsignaled.min(self.count);
    }

    /// Removes the oldest WRs, which are retired, at most `most` (at least 1) and not more than are
    /// in a row: what the first was for, and how many they are.
    #[inline]
    pub(crate) fn pop_retired(&mut self, most: usize) -> Option<(RingOp, usize)> {
        let front = self.entries.get_mut(self.head)?;
        let (op, count) = (front.op, front.count as usize);
        if count > most {
            front.op = op.further(most as u32);
            front.count -= most as u32;
            return Some((op, most));
        }
        self.head += 1;
        Some((op, count))
    }

    /// Retires the oldest WR.
    pub(crate) fn retire_front(&mut self) -> Option<RingOp> {
        self.retire(1);
        self.pop_retired(1).map(|(op, _)| op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send_seq(epoch: Epoch, id: WrId) -> u64 {
        match decode(epoch, id) {
            Some(Cookie::Send(s)) => s,
            other => panic!("{other:?}"),
        }
    }

    fn retire_run(r: &mut SendRing, most: usize) -> Option<(RingOp, usize)> {
        let before = r.outstanding();
        let run = r.open().first().map_or(0, |e| e.count as usize);
        r.retire(most.min(run));
        let retired = r.pop_retired(most);
        assert_eq!(before - r.outstanding(), retired.map_or(0, |(_, n)| n));
        retired
    }

    #[test]
    fn cookies_of_another_epoch_or_kind_miss() {
        let id = recv_id(Epoch(3), 9);
        assert_eq!(decode(Epoch(3), id), Some(Cookie::Recv(9)));
        assert_eq!(decode(Epoch(4), id), None);
        assert_eq!(decode(Epoch(0), WrId(0)), None);
        assert_eq!(decode(Epoch(3), WrId(id.0 | (0x80 << SEQ_BITS))), None);
    }

    #[test]
    fn rule_2_a_success_retires_all_earlier_entries() {
        let mut r = SendRing::new(16, Epoch(1));
        r.push(RingOp::Send(Some(0)), false);
        r.push(RingOp::Send(Some(1)), false);
        let (id, signaled) = r.push(RingOp::Send(Some(2)), true);
        assert!(signaled);
        let at = r.position(send_seq(Epoch(1), id)).unwrap();
        let ops: Vec<_> = (0..=at).filter_map(|_| r.retire_front()).collect();
        assert_eq!(ops.len(), 3);
        assert_eq!(r.outstanding(), 0);
        assert_eq!(r.position(send_seq(Epoch(1), id)), None, "a second WC for it is stale");
    }

    #[test]
    fn rule_9_sig_a_signal_at_least_every_half_queue() {
        for depth in 1..40 {
            let mut r = SendRing::new(depth, Epoch(1));
            let mut run = 0;
            for _ in 0..depth {
                let (_, s) = r.push(RingOp::Sentinel, false);
                run = if s { 0 } else { run + 1 };
                assert!(run < (depth as usize / 2).max(1), "depth {depth} run {run}");
                assert_eq!(run, r.unsignaled());
            }
        }
    }

    #[test]
    fn runs_end_with_a_signal_and_are_retired_and_taken_back_one_by_one() {
        let id = ExposureId::default();
        let mut r = SendRing::new(16, Epoch(1));
        let (a, b) = (r.push_run(RingOp::Reg(id, 0), 12), r.push_run(RingOp::Reg(id, 8), 4));
        assert_eq!((a.count, a.signaled, b.count, b.signaled), (8, true, 4, false), "rule 9");
        assert_eq!(b.first, WrId(a.first.0 + 8));
        assert_eq!((r.outstanding(), r.unsignaled(), r.owed()), (12, 4, 1));
        assert_eq!(r.take_back(), Some((RingOp::Reg(id, 11), WrId(b.first.0 + 3))));
        assert_eq!(retire_run(&mut r, 5), Some((RingOp::Reg(id, 0), 5)));
        assert_eq!(r.retire_front(), Some(RingOp::Reg(id, 5)));
        assert_eq!(retire_run(&mut r, 9), Some((RingOp::Reg(id, 6), 2)));
        assert_eq!((r.outstanding(), r.unsignaled(), r.owed()), (3, 3, 0));
        r.signal_last();
        assert_eq!((r.unsignaled(), r.owed()), (0, 1));
        r.take_back();
        assert_eq!((r.unsignaled(), r.owed()), (2, 0), "the signal went with its WR");
        assert_eq!(retire_run(&mut r, 9), Some((RingOp::Reg(id, 8), 2)));
        assert_eq!((retire_run(&mut r, 9), r.take_back()), (None, None));
    }

    #[test]
    fn entries_beyond_the_depth_are_kept_in_order() {
        let mut r = SendRing::new(4, Epoch(1));
        for round in 0..3u32 {
            (0..9).for_each(|i| {
                r.push(RingOp::Send(Some(round * 9 + i)), false);
            });
            assert_eq!(r.outstanding(), 9);
            (0..9).for_each(|i| {
                assert_eq!(r.retire_front(), Some(RingOp::Send(Some(round * 9 + i))));
            });
        }
        assert_eq!(r.retire_front(), None);
    }

    #[test]
    fn d_07_take_back_counts_exactly() {
        let mut r = SendRing::new(16, Epoch(1));
        r.push(RingOp::Sentinel, true);
        for _ in 0..3 {
            r.push(RingOp::Sentinel, false);
        }
        r.push(RingOp::Sentinel, true);
        assert_eq!(r.unsignaled(), 0);
        r.take_back();
        assert_eq!((r.unsignaled(), r.outstanding()), (3, 4));
        r.take_back();
        assert_eq!((r.unsignaled(), r.outstanding()), (2, 3));
    }
}
