//! The send queue as the engine sees it: what is outstanding, in post order.
//!
//! One structure answers four questions: which WR a WC belongs to, which unsignaled WRs it retires,
//! how many slots are free, and whether a WC is of this connection at all.

use crate::engine::exposure::LocalId;
use crate::memreg::RegionId;
use crate::mutants::mutant;
use crate::types::{Epoch, WrId};

/// What a WR on the send queue was for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RingOp {
    /// A registration; the number tells which registration of that region.
    Reg(RegionId, u32),
    /// An invalidation of that registration.
    Inv(RegionId, u32),
    /// A message; the slot of its bytes, if it was not inline.
    Send(Option<u32>),
    /// Part of a read or write; `true` for its last WR.
    Local(LocalId, bool),
    /// The marker behind which nothing of this QP is outstanding.
    Sentinel,
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

#[derive(Clone, Copy, Debug)]
struct Entry {
    op: RingOp,
    signaled: bool,
}

impl Entry {
    const NONE: Entry = Entry { op: RingOp::Send(None), signaled: false };
}

/// Places in the ring, one behind the other, that are being filled.
#[derive(Debug)]
pub(crate) struct Run {
    place: usize,
    /// Places that are left.
    pub(crate) left: usize,
    /// Cookie of the next WR, and of the first.
    id: u64,
    first: u64,
    /// Whether its WRs must be signaled: then it is only one.
    pub(crate) signaled: bool,
}

impl Run {
    /// Cookie of the next WR.
    #[inline]
    pub(crate) fn next_id(&self) -> WrId {
        WrId(self.id)
    }
}

/// The outstanding WRs of one QP.
#[derive(Debug)]
pub(crate) struct SendRing {
    depth: usize,
    epoch: Epoch,
    /// A power of two, at least the depth. The entry of `seq` stands at `seq` modulo their number.
    entries: Vec<Entry>,
    /// Sequence of the front entry.
    front: u64,
    /// Entries from the front one.
    count: usize,
    /// Entries behind the last signaled one.
    unsignaled: usize,
    /// How many unsignaled entries may come in a row.
    unsignaled_limit: usize,
}

impl SendRing {
    /// An empty ring over a queue of `depth` slots, one of which is the sentinel's for ever.
    pub(crate) fn new(depth: u32, epoch: Epoch) -> SendRing {
        let depth = depth as usize;
        let entries = vec![Entry::NONE; depth.next_power_of_two()];
        let unsignaled_limit = (depth / 2).max(1) - 1;
        SendRing { depth, epoch, entries, front: 0, count: 0, unsignaled: 0, unsignaled_limit }
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
        (0..self.count).filter(|&i| self.entry(i).signaled).count()
    }

    /// WRs that no later signal covers yet.
    #[inline]
    pub(crate) fn unsignaled(&self) -> usize {
        self.unsignaled
    }

    /// Enters a WR before it is posted; returns its cookie and whether it must be signaled.
    #[inline]
    pub(crate) fn push(&mut self, op: RingOp, want_signal: bool) -> (WrId, bool) {
        let mut run = self.run(1);
        run.signaled |= want_signal;
        let id = self.enter(&mut run, op);
        self.end_run(&run);
        (id, run.signaled)
    }

    /// Places for at most `want` WRs in a row that need no signal, or for one that does.
    ///
    /// At least every half queue one is signaled (rule 9), whoever asked for what. The caller has
    /// checked that they fit.
    #[inline]
    pub(crate) fn run(&mut self, want: usize) -> Run {
        let unforced = self.unsignaled_limit.saturating_sub(self.unsignaled);
        let signaled = unforced == 0 && !mutant!("rule-9");
        if self.count == self.entries.len() {
            self.grow();
        }
        let seq = self.front + self.count as u64;
        let place = self.place(seq);
        let id = pack(self.epoch, KIND_SEND, seq).0;
        // Not past the end of the list, nor past the last number.
        let in_a_row = (self.entries.len() - place).min(self.entries.len() - self.count);
        let numbers = (SEQ_MASK - (seq & SEQ_MASK)) as usize + 1;
        let most = if signaled { 1 } else { unforced.max(1).min(in_a_row).min(numbers) };
        Run { place, left: want.min(most), id, first: id, signaled }
    }

    /// Enters the next WR of a run that has a place left; returns its cookie.
    #[inline]
    pub(crate) fn enter(&mut self, run: &mut Run, op: RingOp) -> WrId {
        if let Some(e) = self.entries.get_mut(run.place) {
            *e = Entry { op, signaled: run.signaled };
        }
        let id = run.id;
        run.place += 1;
        run.left -= 1;
        run.id += 1;
        WrId(id)
    }

    /// The WRs of a run are all entered that will be; nothing else was entered since it began.
    /// Returns how many of them are signaled.
    #[inline]
    pub(crate) fn end_run(&mut self, run: &Run) -> usize {
        let entered = (run.id - run.first) as usize;
        self.count += entered;
        if !run.signaled || entered == 0 {
            self.unsignaled += entered;
            return 0;
        }
        self.unsignaled = 0;
        entered
    }

    /// The newest entry is to be signaled too.
    pub(crate) fn signal_last(&mut self) {
        let Some(last) = self.count.checked_sub(1) else { return };
        let place = self.place(self.front + last as u64);
        if let Some(e) = self.entries.get_mut(place) {
            e.signaled = true;
            self.unsignaled = 0;
        }
    }

    /// Takes back the newest entry, which the device refused, and its cookie.
    pub(crate) fn take_back(&mut self) -> Option<(RingOp, WrId)> {
        self.count = self.count.checked_sub(1)?;
        let op = self.entry(self.count).op;
        let seq = self.front + self.count as u64;
        self.unsignaled = (0..self.count).rev().take_while(|&i| !self.entry(i).signaled).count();
        Some((op, pack(self.epoch, KIND_SEND, seq)))
    }

    /// Whether `seq` (the low bits, as in a cookie) is outstanding; its position from the front.
    #[inline]
    pub(crate) fn position(&self, seq: u64) -> Option<usize> {
        let ahead = seq.wrapping_sub(self.front) & SEQ_MASK;
        usize::try_from(ahead).ok().filter(|&i| i < self.count)
    }

    /// What the WR at a position from the front is for.
    #[inline]
    pub(crate) fn peek(&self, i: usize) -> Option<RingOp> {
        let e = self.entries.get(self.place(self.front + i as u64))?;
        (i < self.count).then_some(e.op)
    }

    /// Retires that many of the oldest entries.
    #[inline]
    pub(crate) fn retire(&mut self, count: usize) {
        let count = count.min(self.count);
        self.count -= count;
        self.front += count as u64;
        self.unsignaled = self.unsignaled.min(self.count);
    }

    /// Retires the oldest entry.
    pub(crate) fn retire_front(&mut self) -> Option<RingOp> {
        self.count = self.count.checked_sub(1)?;
        let op = self.entries.get(self.place(self.front))?.op;
        self.front += 1;
        self.unsignaled = self.unsignaled.min(self.count);
        Some(op)
    }

    #[inline]
    fn place(&self, seq: u64) -> usize {
        seq as usize & (self.entries.len() - 1)
    }

    /// The entry at a position from the front.
    fn entry(&self, i: usize) -> Entry {
        self.entries.get(self.place(self.front + i as u64)).copied().unwrap_or(Entry::NONE)
    }

    /// More WRs than the queue has slots: the device will refuse them, and they are taken back from
    /// here.
    #[cold]
    fn grow(&mut self) {
        let old: Vec<Entry> = (0..self.count).map(|i| self.entry(i)).collect();
        self.entries = vec![Entry::NONE; (self.entries.len() + 1).next_power_of_two()];
        for (i, entry) in old.into_iter().enumerate() {
            let place = self.place(self.front + i as u64);
            self.entries[place] = entry;
        }
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
