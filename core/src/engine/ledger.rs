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
///
/// An exposure's keys are granted and killed together, in lines that differ by the key alone. Such
/// a run is kept as its first line and the keys' names; a line written alone is a run of one. So a
/// region costs the copy of its name.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// The first line of each run, in a ring: as each run has a line, no more than
    /// [`Ledger::CAPACITY`] of the newest reach into the lines kept.
    runs: Vec<LedgerEntry>,
    /// The key of line `seq` stands at `seq % CAPACITY`, but for the first of a run, which tells it
    /// itself.
    names: Vec<KeyName>,
    /// The next line's `seq`.
    next: u64,
    /// Runs so far.
    begun: u64,
    pub(crate) now: Tick,
}

/// Runs that room is made for at once.
const GROWTH: usize = 64;

impl Ledger {
    /// Lines kept.
    pub const CAPACITY: usize = 4096;

    pub(crate) fn new() -> Ledger {
        // Filled as lines come: a transport that lives for a short time touches little of it.
        Ledger {
            runs: Vec::with_capacity(Ledger::CAPACITY),
            names: Vec::with_capacity(Ledger::CAPACITY),
            next: 0,
            begun: 0,
            now: Tick(0),
        }
    }

    /// One line.
    #[inline]
    pub(crate) fn write(&mut self, event: LedgerEvent) {
        let seq = self.next;
        let at = place(self.begun);
        if at >= self.runs.len() {
            self.grow();
        }
        if let Some(oldest) = self.runs.get_mut(at) {
            *oldest = LedgerEntry { seq, at: self.now, event };
        }
        self.next = seq + 1;
        self.begun += 1;
    }

    /// Makes room for the next runs, the first time round.
    #[cold]
    fn grow(&mut self) {
        let event = LedgerEvent::QpDestroyed(QpId(0));
        let room = (self.runs.len() + GROWTH).min(Ledger::CAPACITY);
        self.runs.resize(room, LedgerEntry { seq: self.next, at: self.now, event });
    }

    /// A line for each key: granted to this exposure, by WRs that follow on each other.
    #[inline]
    pub(crate) fn granted(
        &mut self,
        exposure: u64,
        first: WrId,
        qp_bound: bool,
        names: &[KeyName],
    ) {
        self.write_run(KeyEvent::Granted { exposure, wr: Some(first), qp_bound }, names);
    }

    /// A line for each key: its LOCAL_INV is about to be handed to the device; they follow on each
    /// other.
    #[inline]
    pub(crate) fn inv_posted(&mut self, first: WrId, names: &[KeyName]) {
        self.write_run(KeyEvent::InvPosted(first), names);
    }

    /// A line for each key: dead by this rule.
    #[inline]
    pub(crate) fn killed(&mut self, rule: Rule, names: &[KeyName]) {
        self.write_run(KeyEvent::Killed(rule), names);
    }

    /// What happened to the first of these keys, and then to each next one (see [`KeyEvent::nth`]).
    #[inline]
    fn write_run(&mut self, what: KeyEvent, names: &[KeyName]) {
        let Some(&KeyName { region, rkey, turn }) = names.first() else { return };
        let at = place(self.next);
        self.write(LedgerEvent::Key { region, rkey, turn, what });
        self.next += names.len() as u64 - 1;
        match self.names.get_mut(at..at + names.len()) {
            Some(room) => room.copy_from_slice(names),
            None => self.place_names(at, names),
        }
    }

    /// Copies names of which some go to the ring's start, or to places that are there only from now
    /// on: the first time round.
    #[cold]
    fn place_names(&mut self, at: usize, names: &[KeyName]) {
        let end = (at + names.len()).min(Ledger::CAPACITY);
        if let Some(name) = names.first()
            && self.names.len() < end
        {
            self.names.resize(end, *name);
        }
        for (n, name) in names.iter().enumerate() {
            if let Some(place) = self.names.get_mut((at + n) % Ledger::CAPACITY) {
                *place = *name;
            }
        }
    }

    /// The lines, oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = LedgerEntry> {
        let capacity = Ledger::CAPACITY as u64;
        let runs = self.runs.get(..self.begun.min(capacity) as usize).unwrap_or_default();
        let (newer, older) =
            runs.split_at(if self.begun > capacity { place(self.begun) } else { 0 });
        let seq = self.next.saturating_sub(Ledger::CAPACITY as u64);
        let mut lines = Lines { names: &self.names, older, newer, run: 0, seq, end: self.next };
        if seq > 0 {
            lines.go_to(seq);
        }
        lines
    }
}

const fn place(seq: u64) -> usize {
    (seq % Ledger::CAPACITY as u64) as usize
}

impl KeyEvent {
    /// What the line says that stands `n` lines behind this one in a run.
    const fn nth(self, n: u64) -> KeyEvent {
        match self {
            KeyEvent::Granted { exposure, wr: Some(first), qp_bound } => {
                let wr = Some(WrId(first.0.wrapping_add(n)));
                KeyEvent::Granted { exposure, wr, qp_bound }
            }
            KeyEvent::InvPosted(first) => KeyEvent::InvPosted(WrId(first.0.wrapping_add(n))),
            same => same,
        }
    }
}

/// The lines from `seq` to `end`.
struct Lines<'a> {
    names: &'a [KeyName],
    /// First lines of the runs, all of these before all of `newer`.
    older: &'a [LedgerEntry],
    newer: &'a [LedgerEntry],
    /// The run of the line before `seq`, or of `seq`; counted through both.
    run: usize,
    seq: u64,
    end: u64,
}

impl<'a> Lines<'a> {
    fn go_to(&mut self, seq: u64) {
        let begun = |run: &LedgerEntry| run.seq <= seq;
        let begun = self.older.partition_point(begun) + self.newer.partition_point(begun);
        (self.seq, self.run) = (seq, begun.saturating_sub(1));
    }

    fn first_of(&self, run: usize) -> Option<&'a LedgerEntry> {
        self.older.get(run).or_else(|| self.newer.get(run - self.older.len()))
    }
}

impl Iterator for Lines<'_> {
    type Item = LedgerEntry;

    fn next(&mut self) -> Option<LedgerEntry> {
        if self.seq == self.end {
            return None;
        }
        if self.first_of(self.run + 1).is_some_and(|next| next.seq == self.seq) {
            self.run += 1;
        }
        let first = *self.first_of(self.run)?;
        let seq = self.seq;
        self.seq += 1;
        let LedgerEvent::Key { what, .. } = first.event else { return Some(first) };
        if seq == first.seq {
            return Some(first);
        }
        let &KeyName { region, rkey, turn } = self.names.get(place(seq))?;
        let what = what.nth(seq - first.seq);
        Some(LedgerEntry { seq, event: LedgerEvent::Key { region, rkey, turn, what }, ..first })
    }

    /// Without a look at the lines between, for who reads only what is new.
    fn nth(&mut self, n: usize) -> Option<LedgerEntry> {
        let seq = self.seq.saturating_add(n as u64);
        if seq >= self.end {
            self.seq = self.end;
            return None;
        }
        self.go_to(seq);
        self.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.end - self.seq) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Lines<'_> {}

/// The whole ring as a trace: a header with the number of lines, then one line an event.
impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "memreg-trace 1 lines={}", self.iter().len())?;
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
    use proptest::prelude::*;
    use slotmap::KeyData;
    use std::collections::VecDeque;

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

    /// What is written, of one kind each time.
    #[derive(Clone, Debug)]
    enum Written {
        Line(LedgerEvent),
        Run(KeyEvent, Vec<KeyName>),
    }

    /// Every line on its own, the last ones kept: what the ledger must say.
    #[derive(Default)]
    struct Plain {
        lines: VecDeque<LedgerEntry>,
        next: u64,
    }

    impl Plain {
        fn write(&mut self, at: Tick, event: LedgerEvent) {
            self.lines.push_back(LedgerEntry { seq: self.next, at, event });
            self.next += 1;
            if self.lines.len() > Ledger::CAPACITY {
                self.lines.pop_front();
            }
        }
    }

    fn write(l: &mut Ledger, plain: &mut Plain, written: &Written) {
        let (what, names) = match written {
            Written::Line(event) => {
                l.write(*event);
                return plain.write(l.now, *event);
            }
            Written::Run(what, names) => (*what, names),
        };
        match what {
            KeyEvent::Granted { exposure, wr: Some(first), qp_bound } => {
                l.granted(exposure, first, qp_bound, names);
            }
            KeyEvent::InvPosted(first) => l.inv_posted(first, names),
            KeyEvent::Killed(rule) => l.killed(rule, names),
            other => panic!("{other:?} has no runs"),
        }
        for (n, &KeyName { region, rkey, turn }) in (0..).zip(names) {
            let what = match what {
                KeyEvent::Granted { exposure, wr: Some(WrId(first)), qp_bound } => {
                    KeyEvent::Granted { exposure, wr: Some(WrId(first + n)), qp_bound }
                }
                KeyEvent::InvPosted(WrId(first)) => KeyEvent::InvPosted(WrId(first + n)),
                same => same,
            };
            plain.write(l.now, LedgerEvent::Key { region, rkey, turn, what });
        }
    }

    fn name() -> impl Strategy<Value = KeyName> {
        let region = any::<u64>().prop_map(|n| KeyData::from_ffi(n).into());
        (region, any::<u32>(), any::<u32>()).prop_map(|(region, rkey, turn)| KeyName {
            region,
            rkey: Rkey::from_bits(rkey),
            turn,
        })
    }

    fn granted() -> impl Strategy<Value = KeyEvent> {
        (any::<u64>(), any::<u32>(), any::<bool>()).prop_map(|(exposure, wr, qp_bound)| {
            KeyEvent::Granted { exposure, wr: Some(WrId(wr.into())), qp_bound }
        })
    }

    fn line() -> impl Strategy<Value = LedgerEvent> {
        let wr = any::<u32>().prop_map(|wr| WrId(wr.into()));
        let of_key = prop_oneof![
            granted(),
            any::<u64>().prop_map(|exposure| KeyEvent::Granted {
                exposure,
                wr: None,
                qp_bound: false
            }),
            wr.clone().prop_map(KeyEvent::InvPosted),
            wr.clone().prop_map(KeyEvent::Refused),
            Just(KeyEvent::Killed(Rule::RemoteInv)),
            Just(KeyEvent::Unknown),
            Just(KeyEvent::Ended),
        ];
        let key = (name(), of_key).prop_map(|(KeyName { region, rkey, turn }, what)| {
            LedgerEvent::Key { region, rkey, turn, what }
        });
        prop_oneof![
            4 => key,
            1 => wr.prop_map(|wr| LedgerEvent::Completed(wr, WcStatus::Success)),
            1 => any::<u32>().prop_map(|n| LedgerEvent::QpUp(QpId(n), Epoch(n))),
            1 => any::<u32>().prop_map(|n| LedgerEvent::QpDestroyed(QpId(n))),
            1 => (any::<u64>(), any::<u64>())
                .prop_map(|(exposure, bytes)| LedgerEvent::BytesBack { exposure, bytes }),
        ]
    }

    fn written() -> impl Strategy<Value = Written> {
        let what = prop_oneof![
            granted(),
            any::<u32>().prop_map(|wr| KeyEvent::InvPosted(WrId(wr.into()))),
            Just(KeyEvent::Killed(Rule::LocalInv)),
            Just(KeyEvent::Killed(Rule::QpDestroyed)),
        ];
        // Mostly of an exposure's length, some as long as the ring, and one in a while longer.
        let count = prop_oneof![40 => 0..70usize, 2 => 70..1500usize, 1 => 4000..9000usize];
        let names = (name(), count).prop_map(|(first, count)| {
            let nth = |n: usize| KeyName { turn: first.turn.wrapping_add(n as u32), ..first };
            (0..count).map(nth).collect()
        });
        prop_oneof![
            line().prop_map(Written::Line),
            (what, names).prop_map(|(what, names)| Written::Run(what, names)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn runs_and_lines_print_as_each_line_on_its_own(
            all in proptest::collection::vec(written(), 1..400),
            skipped in 0..Ledger::CAPACITY,
            lines_alone in any::<bool>(),
        ) {
            let (mut l, mut plain) = (Ledger::new(), Plain::default());
            for (i, written) in all.iter().enumerate() {
                l.now = Tick(i as u64 / 3);
                write(&mut l, &mut plain, written);
                if lines_alone && let Written::Line(_) = written {
                    (0..100).for_each(|_| write(&mut l, &mut plain, written));
                }
            }
            prop_assert!(l.iter().eq(plain.lines.iter().copied()));
            prop_assert_eq!(l.iter().len(), plain.lines.len());
            let rest = plain.lines.iter().skip(skipped).copied();
            prop_assert!(l.iter().skip(skipped).eq(rest));
            let mut text = format!("memreg-trace 1 lines={}\n", plain.lines.len());
            plain.lines.iter().for_each(|line| text += &format!("{line}\n"));
            prop_assert!(l.to_string() == text);
            prop_assert!(l.clone().to_string() == text);
        }
    }

    #[test]
    fn ledger_allocates_nothing_once_it_is_made() {
        let mut l = Ledger::new();
        let name = KeyName { region: RegionId::default(), rkey: Rkey::from_bits(1), turn: 1 };
        let used = allocation_counter::measure(|| {
            for n in 0..3 * Ledger::CAPACITY as u64 {
                l.granted(n, WrId(n), true, &[name; 16]);
                l.write(LedgerEvent::Completed(WrId(n), WcStatus::Success));
                l.killed(Rule::LocalInv, &[name; 5]);
            }
        });
        assert_eq!(used.count_total, 0);
        assert_eq!(l.iter().count(), Ledger::CAPACITY);
    }
}
