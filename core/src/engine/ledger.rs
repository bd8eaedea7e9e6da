//! The fence ledger: every grant of a key and every end of one, in a bounded ring.

use crate::memreg::RegionId;
use crate::types::{Rkey, Tick, WrId};
use std::collections::VecDeque;

/// Why a key is dead: the only ways there are (rule 2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Rule {
    /// A LOCAL_INV that names it succeeded.
    LocalInv,
    /// The peer invalidated it, and the key in the receive WC is exactly this one.
    RemoteInv,
    /// Its MR was deregistered.
    Dereg,
    /// Its window was deallocated.
    Dealloc,
    /// It is bound to a QP that is drained and destroyed.
    QpDestroyed,
    /// Its registration was refused by the device, so the key never opened anything.
    NeverPosted,
    /// It is part of a bounce arena: the bytes were copied out and no longer are what the key
    /// reaches.
    BounceReleased,
}

/// What happened to a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LedgerEvent {
    /// From just before its WR was handed to the device (or its verb was called) it counts as live.
    Granted(Option<WrId>),
    /// It is dead, by this rule.
    Killed(Rule),
    /// A WR that changes it was flushed or failed: it counts as live, and its state is not known.
    Unknown,
}

/// One line of the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LedgerEntry {
    /// Counts up from 0 for the life of the transport; a gap means that older lines were dropped.
    pub seq: u64,
    /// The latest moment that the transport was told.
    pub at: Tick,
    /// The region.
    pub region: RegionId,
    /// Its key at that moment.
    pub rkey: Rkey,
    /// What happened.
    pub event: LedgerEvent,
}

/// The last [`Ledger::CAPACITY`] lines.
#[derive(Debug)]
pub struct Ledger {
    lines: VecDeque<LedgerEntry>,
    next: u64,
}

impl Ledger {
    /// Lines kept.
    pub const CAPACITY: usize = 4096;

    pub(crate) fn new() -> Ledger {
        Ledger { lines: VecDeque::with_capacity(Ledger::CAPACITY), next: 0 }
    }

    pub(crate) fn write(&mut self, at: Tick, region: RegionId, rkey: Rkey, event: LedgerEvent) {
        if self.lines.len() == Ledger::CAPACITY {
            self.lines.pop_front();
        }
        self.lines.push_back(LedgerEntry { seq: self.next, at, region, rkey, event });
        self.next += 1;
    }

    /// The lines, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &LedgerEntry> {
        self.lines.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledger_is_bounded_and_says_so_in_the_sequence() {
        let mut l = Ledger::new();
        let key = Rkey::from_bits(0x100);
        for i in 0..5000 {
            l.write(Tick(i), RegionId::default(), key, LedgerEvent::Killed(Rule::Dereg));
        }
        assert_eq!(l.iter().count(), Ledger::CAPACITY);
        assert_eq!(l.iter().next().map(|e| e.seq), Some(5000 - Ledger::CAPACITY as u64));
    }
}
