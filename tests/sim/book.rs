//! The simulation's own record of keys, kept from the ledger's lines and from nothing else.

use memreg_core::memreg::RegionId;
use memreg_core::transport::{KeyEvent, Ledger, LedgerEvent, Rule};
use memreg_core::types::WrId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Which keys count as live.
#[derive(Default)]
pub struct KeyBook {
    next: u64,
    live: BTreeMap<RegionId, Live>,
    /// How often each key number was granted by a WR or verb that the device took.
    granted: BTreeMap<u32, u64>,
    /// Keys that each region has had since its MR or window was made.
    tags: BTreeMap<RegionId, BTreeSet<u32>>,
    /// Keys ended by each rule.
    ends: BTreeMap<&'static str, u64>,
    /// Keys that a verb ended while they were live, as many as the engine remembers.
    ended_live: VecDeque<u32>,
}

/// What the engine believes of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyNow {
    Live,
    Invalidating,
    Unknown,
}

struct Live {
    rkey: u32,
    /// Granted by a WR.
    by_wr: bool,
    unknown: bool,
    /// Its LOCAL_INV, while that is on the queue.
    inv: Option<WrId>,
}

impl KeyBook {
    /// Reads the lines that are new, and checks each against those before it.
    pub fn read(&mut self, ledger: &Ledger) {
        let first = ledger.iter().next().map_or(0, |l| l.seq);
        let known = usize::try_from(self.next.saturating_sub(first)).unwrap();
        for line in ledger.iter().skip(known) {
            assert_eq!(line.seq, self.next, "the ledger lost lines");
            self.next += 1;
            if let LedgerEvent::Key { region, rkey, what, .. } = line.event {
                self.key(region, rkey.to_bits(), what);
            }
        }
    }

    fn key(&mut self, region: RegionId, rkey: u32, what: KeyEvent) {
        match what {
            KeyEvent::Granted { wr, .. } => {
                *self.granted.entry(rkey).or_insert(0) += 1;
                let new = wr.is_none() || self.tags.entry(region).or_default().insert(rkey);
                assert!(new, "D-11: a key comes again that a peer was told before");
                let live = Live { rkey, by_wr: wr.is_some(), unknown: false, inv: None };
                let before = self.live.insert(region, live);
                assert!(before.is_none(), "a key was granted on a region whose key was live");
            }
            KeyEvent::Unknown => {
                self.live.get_mut(&region).expect("a dead key became unknown").unknown = true;
            }
            KeyEvent::Killed(rule) => {
                let live = self.live.remove(&region).expect("a key ended twice");
                assert_eq!(live.rkey, rkey, "another key ended than was granted");
                let unknown_ends = !matches!(rule, Rule::LocalInv | Rule::NeverPosted);
                assert!(!live.unknown || unknown_ends, "rule 3: {rule:?} ended a flushed key");
                *self.ends.entry(rule.word()).or_insert(0) += 1;
                if rule == Rule::NeverPosted {
                    *self.granted.entry(rkey).or_insert(1) -= 1;
                    self.tags.entry(region).or_default().remove(&rkey);
                }
                if live.by_wr && !live.unknown && matches!(rule, Rule::Dereg | Rule::Dealloc) {
                    self.ended_live.push_back(rkey);
                    self.ended_live.drain(..self.ended_live.len().saturating_sub(ENDED_KEPT));
                }
            }
            KeyEvent::InvPosted(wr) => {
                self.live.get_mut(&region).expect("a dead key is invalidated").inv = Some(wr);
            }
            KeyEvent::Refused(wr) => {
                if let Some(live) = self.live.get_mut(&region) {
                    live.inv = live.inv.filter(|inv| *inv != wr);
                }
            }
            KeyEvent::Ended => drop(self.tags.remove(&region)),
            KeyEvent::RemoteInv => {}
        }
    }

    /// Live keys that WRs granted.
    pub fn live_by_wr(&self) -> u64 {
        self.live.values().filter(|l| l.by_wr).count() as u64
    }

    pub fn is_live(&self, rkey: u32) -> bool {
        self.live.values().any(|l| l.rkey == rkey)
    }

    /// What the engine believes of a key; `None` for one that is dead.
    pub fn state(&self, rkey: u32) -> Option<KeyNow> {
        let live = self.live.values().find(|l| l.rkey == rkey)?;
        Some(match live {
            Live { unknown: true, .. } => KeyNow::Unknown,
            Live { inv: Some(_), .. } => KeyNow::Invalidating,
            _ => KeyNow::Live,
        })
    }

    /// Whether it was granted by a WR and nothing has been posted to end it.
    pub fn is_left_open(&self, rkey: u32) -> bool {
        let open = |l: &Live| l.rkey == rkey && l.by_wr && !l.unknown && l.inv.is_none();
        self.live.values().any(open)
    }

    /// Whether a verb ended it while it was live, not long ago.
    pub fn ended_live(&self, rkey: u32) -> bool {
        self.ended_live.contains(&rkey)
    }

    /// How often the key was granted so far.
    pub fn grants(&self, rkey: u32) -> u64 {
        self.granted.get(&rkey).copied().unwrap_or(0)
    }

    pub fn ends(&self) -> &BTreeMap<&'static str, u64> {
        &self.ends
    }
}

/// Keys remembered that were ended while live.
const ENDED_KEPT: usize = 64;
