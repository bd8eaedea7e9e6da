//! The send queue as the engine sees it: what is outstanding, in post order.
//!
//! One structure answers four questions: which WR a WC belongs to, which unsignaled WRs it retires,
//! how many slots are free, and whether a WC is of this connection at all.

use crate::engine::exposure::LocalId;
use crate::memreg::RegionId;
use crate::mutants::mutant;
use crate::types::{Epoch, WrId};
use std::collections::VecDeque;

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
fn pack(epoch: Epoch, kind: u64, seq: u64) -> WrId {
    WrId((u64::from(epoch.0 & 0xffff) << 48) | (kind << SEQ_BITS) | (seq & SEQ_MASK))
}

/// The cookie of receive slot `slot`.
pub(crate) fn recv_id(epoch: Epoch, slot: u32) -> WrId {
    pack(epoch, KIND_RECV, u64::from(slot))
}

/// What a cookie names, or `None` if it is of another epoch or not ours.
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

/// The outstanding WRs of one QP.
#[derive(Debug)]
pub(crate) struct SendRing {
    depth: usize,
    epoch: Epoch,
    entries: VecDeque<Entry>,
    /// Sequence of the front entry.
    front: u64,
    /// Entries behind the last signaled one.
    unsignaled: usize,
}

impl SendRing {
    /// An empty ring over a queue of `depth` slots, one of which is the sentinel's for ever.
    pub(crate) fn new(depth: u32, epoch: Epoch) -> SendRing {
        let depth = depth as usize;
        let entries = VecDeque::with_capacity(depth);
        SendRing { depth, epoch, entries, front: 0, unsignaled: 0 }
    }

    /// Slots of the queue.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// WRs that may still be on the queue.
    pub(crate) fn outstanding(&self) -> usize {
        self.entries.len()
    }

    /// WRs whose completion the device owes.
    pub(crate) fn owed(&self) -> usize {
        self.entries.iter().filter(|e| e.signaled).count()
    }

    /// WRs that no later signal covers yet.
    pub(crate) fn unsignaled(&self) -> usize {
        self.unsignaled
    }

    /// Enters a WR before it is posted; returns its cookie and whether it must be signaled.
    ///
    /// At least every half queue one is (rule 9), whoever asked for what. The caller has checked
    /// that it fits.
    pub(crate) fn push(&mut self, op: RingOp, want_signal: bool) -> (WrId, bool) {
        let due = self.unsignaled + 1 >= (self.depth / 2).max(1) && !mutant!("rule-9");
        let signaled = want_signal || due;
        let seq = self.front + self.entries.len() as u64;
        self.entries.push_back(Entry { op, signaled });
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
        (pack(self.epoch, KIND_SEND, seq), signaled)
    }

    /// Takes back the newest entry, which the device refused, and its cookie.
    pub(crate) fn take_back(&mut self) -> Option<(RingOp, WrId)> {
        let e = self.entries.pop_back()?;
        let seq = self.front + self.entries.len() as u64;
        self.unsignaled = self.entries.iter().rev().take_while(|e| !e.signaled).count();
        Some((e.op, pack(self.epoch, KIND_SEND, seq)))
    }

    /// Whether `seq` (the low bits, as in a cookie) is outstanding; its position from the front.
    pub(crate) fn position(&self, seq: u64) -> Option<usize> {
        let ahead = seq.wrapping_sub(self.front) & SEQ_MASK;
        usize::try_from(ahead).ok().filter(|&i| i < self.entries.len())
    }

    /// Retires the oldest entry.
    pub(crate) fn retire_front(&mut self) -> Option<RingOp> {
        let e = self.entries.pop_front()?;
        self.front += 1;
        self.unsignaled = self.unsignaled.min(self.entries.len());
        Some(e.op)
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
