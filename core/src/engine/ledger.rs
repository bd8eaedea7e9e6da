//! The fence ledger: every grant of a key, every end of one, and the evidence, in a bounded ring.
//!
//! Key events are written where a key's state changes (`keys`) and nowhere else; evidence (posts,
//! completions, verbs that succeeded) where the device answered. An auditor that believes only the
//! evidence can so check every claim of the engine. [`Ledger`] prints as one line an event, without
//! any key's tag.

use crate::device::WcStatus;
use crate::memreg::RegionId;
use crate::types::{Epoch, QpId, Rkey, Tick, WrId};
use slotmap::Key;
use std::fmt;

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

impl Rule {
    /// The word that a trace uses.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Rule::LocalInv => "local-inv",
            Rule::RemoteInv => "remote-inv",
            Rule::Dereg => "dereg",
            Rule::Dealloc => "dealloc",
            Rule::QpDestroyed => "qp-destroyed",
            Rule::NeverPosted => "never-posted",
            Rule::BounceReleased => "bounce-released",
        }
    }
}

/// What happened to a key, or what the device did to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyEvent {
    /// From just before its WR was handed to the device (or its verb was called) it counts as live,
    /// for this exposure.
    Granted {
        /// The exposure.
        exposure: u64,
        /// The WR, if it is granted by one.
        wr: Option<WrId>,
        /// Whether it is good on this connection's QP alone, and so ends with it at the latest.
        qp_bound: bool,
    },
    /// A WR that changes it was flushed or failed: it counts as live, and its state is not known.
    Unknown,
    /// It is dead, by this rule.
    Killed(Rule),
    /// Evidence: its LOCAL_INV is about to be handed to the device.
    InvPosted(WrId),
    /// Evidence: the device refused the WR that grants or invalidates it.
    Refused(WrId),
    /// Evidence: a receive WC says that the peer invalidated it.
    RemoteInv,
    /// Evidence: its MR was deregistered, or its window deallocated.
    Ended,
}

/// What a line calls a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeyName {
    pub(crate) region: RegionId,
    pub(crate) rkey: Rkey,
    pub(crate) turn: u32,
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LedgerEvent {
    /// To one key.
    Key {
        /// The region.
        region: RegionId,
        /// Its key at that moment.
        rkey: Rkey,
        /// Counts the registrations of this region.
        turn: u32,
        /// What.
        what: KeyEvent,
    },
    /// Evidence: a completion of the send queue.
    Completed(WrId, WcStatus),
    /// A new QP, for this epoch.
    QpUp(QpId, Epoch),
    /// Evidence: the QP is destroyed.
    QpDestroyed(QpId),
    /// The bytes of an exposure are the program's again.
    BytesBack {
        /// The exposure.
        exposure: u64,
        /// Bytes of its buffers.
        bytes: u64,
    },
}

/// One line of the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LedgerEntry {
    /// Counts up from 0 for the life of the transport; a gap means that older lines were dropped.
    pub seq: u64,
    /// The latest moment that the transport was told.
    pub at: Tick,
    /// What happened.
    pub event: LedgerEvent,
}

/// The last [`Ledger::CAPACITY`] lines.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// Line `seq` stands at `seq % CAPACITY`, until a later one takes its place.
    lines: Vec<LedgerEntry>,
    next: u64,
    pub(crate) now: Tick,
}

impl Ledger {
    /// Lines kept.
    pub const CAPACITY: usize = 4096;

    pub(crate) fn new() -> Ledger {
        Ledger { lines: Vec::with_capacity(Ledger::CAPACITY), next: 0, now: Tick(0) }
    }

    #[inline]
    pub(crate) fn write(&mut self, event: LedgerEvent) {
        let line = LedgerEntry { seq: self.next, at: self.now, event };
        match self.lines.get_mut(place(self.next)) {
            Some(oldest) => *oldest = line,
            None => self.lines.push(line),
        }
        self.next += 1;
    }

    pub(crate) fn granted(
        &mut self,
        exposure: u64,
        first: WrId,
        qp_bound: bool,
        names: &[KeyName],
    ) {
        for (k, n) in (0u64..).zip(names) {
            let what = KeyEvent::Granted { exposure, wr: Some(WrId(first.0 + k)), qp_bound };
            let KeyName { region, rkey, turn } = *n;
            self.write(LedgerEvent::Key { region, rkey, turn, what });
        }
    }

    pub(crate) fn inv_posted(&mut self, first: WrId, names: &[KeyName]) {
        for (k, n) in (0u64..).zip(names) {
            let what = KeyEvent::InvPosted(WrId(first.0 + k));
            let KeyName { region, rkey, turn } = *n;
            self.write(LedgerEvent::Key { region, rkey, turn, what });
        }
    }

    pub(crate) fn killed(&mut self, rule: Rule, names: &[KeyName]) {
        for n in names {
            let KeyName { region, rkey, turn } = *n;
            self.write(LedgerEvent::Key { region, rkey, turn, what: KeyEvent::Killed(rule) });
        }
    }

    /// The lines, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &LedgerEntry> {
        let full = self.lines.len() == Ledger::CAPACITY;
        let (newer, older) = self.lines.split_at(if full { place(self.next) } else { 0 });
        older.iter().chain(newer)
    }
}

const fn place(seq: u64) -> usize {
    (seq % Ledger::CAPACITY as u64) as usize
}

/// The whole ring as a trace: a header with the number of lines, then one line an event.
impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "memreg-trace 1 lines={}", self.lines.len())?;
        self.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// `seq at event name=value…`; a key is written as index and turn, never with its tag.
impl fmt::Display for LedgerEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.seq, self.at.0)?;
        match self.event {
            LedgerEvent::Key { region, rkey, turn, what } => {
                let (word, rest) = match what {
                    KeyEvent::Granted { exposure, wr, qp_bound } => {
                        let wr = wr.map_or(String::new(), |wr| format!(" wr={}", wr.0));
                        let scope = if qp_bound { " scope=qp" } else { "" };
                        ("granted", format!(" exposure={exposure}{wr}{scope}"))
                    }
                    KeyEvent::Unknown => ("unknown", String::new()),
                    KeyEvent::Killed(rule) => ("killed", format!(" rule={}", rule.word())),
                    KeyEvent::InvPosted(wr) => ("inv-posted", format!(" wr={}", wr.0)),
                    KeyEvent::Refused(wr) => ("refused", format!(" wr={}", wr.0)),
                    KeyEvent::RemoteInv => ("remote-inv", String::new()),
                    KeyEvent::Ended => ("ended", String::new()),
                };
                let region = region.data().as_ffi();
                write!(f, "{word} region={region} key={:#x}.{turn}{rest}", rkey.index())
            }
            LedgerEvent::Completed(wr, status) => {
                write!(f, "completed wr={} status={}", wr.0, status.to_raw())
            }
            LedgerEvent::QpUp(qp, epoch) => write!(f, "qp-up qp={} epoch={}", qp.0, epoch.0),
            LedgerEvent::QpDestroyed(qp) => write!(f, "qp-destroyed qp={}", qp.0),
            LedgerEvent::BytesBack { exposure, bytes } => {
                write!(f, "bytes-back exposure={exposure} bytes={bytes}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledger_is_bounded_and_says_so_in_the_sequence() {
        let mut l = Ledger::new();
        for _ in 0..5000 {
            l.write(LedgerEvent::QpDestroyed(QpId(1)));
        }
        assert_eq!(l.iter().count(), Ledger::CAPACITY);
        let seqs: Vec<u64> = l.iter().map(|e| e.seq).collect();
        assert!(seqs.iter().copied().eq(5000 - Ledger::CAPACITY as u64..5000), "{seqs:?}");
    }

    #[test]
    fn trace_never_shows_a_tag() {
        let mut l = Ledger::new();
        let what = KeyEvent::Granted { exposure: 7, wr: Some(WrId(9)), qp_bound: false };
        let (region, rkey) = (RegionId::default(), Rkey::from_bits(0x1234_56ab));
        l.write(LedgerEvent::Key { region, rkey, turn: 3, what });
        let text = l.to_string();
        assert!(text.starts_with("memreg-trace 1 lines=1\n0 0 granted region="), "{text}");
        assert!(text.contains("key=0x123456.3 exposure=7 wr=9") && !text.contains("ab"), "{text}");
    }
}
