//! What a sweep did, for its one line.

use memreg_core::device::fault::FaultCounts;
use std::collections::BTreeMap;

/// Totals over all seeds.
#[derive(Default)]
pub struct Tally {
    pub seeds: u64,
    pub steps: u64,
    pub exposures: u64,
    pub accesses: u64,
    pub connections: u64,
    /// Faults that took effect, by kind.
    pub faults: BTreeMap<String, u64>,
    /// Keys ended by each rule.
    pub ends: BTreeMap<&'static str, u64>,
    pub bytes_leaked: u64,
}

impl Tally {
    pub fn fault(&mut self, kind: &str, times: u64) {
        if times > 0 {
            *self.faults.entry(kind.to_owned()).or_insert(0) += times;
        }
    }

    /// Adds what a wrapper counted.
    pub fn wrapper(&mut self, c: &FaultCounts) {
        for (verb, times) in &c.failed {
            self.fault(&format!("{verb} fails"), *times);
        }
        for (kind, times) in [
            ("post refused", c.posts_refused),
            ("post cut", c.posts_cut),
            ("late send swallowed", c.sends_swallowed),
            ("WC swallowed", c.wcs_swallowed),
            ("WC twice", c.wcs_duplicated),
            ("WC made up", c.wcs_injected),
            ("WC held back", c.wcs_held),
            ("poll paused", c.polls_paused),
            ("event", c.events_injected),
            ("CQ overrun", c.cqs_overrun),
            ("WC overrun", c.wcs_overrun),
            ("DMA entries merged", c.dma_merged),
        ] {
            self.fault(kind, times);
        }
    }

    pub fn add(&mut self, other: Tally) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.exposures += other.exposures;
        self.accesses += other.accesses;
        self.connections += other.connections;
        self.bytes_leaked += other.bytes_leaked;
        for (kind, times) in other.faults {
            *self.faults.entry(kind).or_insert(0) += times;
        }
        for (rule, times) in other.ends {
            *self.ends.entry(rule).or_insert(0) += times;
        }
    }

    /// The line of a sweep.
    pub fn line(&self, violations: usize) -> String {
        let list = |m: Vec<(String, u64)>| {
            m.iter().map(|(k, n)| format!("{k} {n}")).collect::<Vec<_>>().join(", ")
        };
        let faults: u64 = self.faults.values().sum();
        let ends: Vec<_> = self.ends.iter().map(|(k, n)| ((*k).to_owned(), *n)).collect();
        format!(
            "sim: {} seeds (each twice), {} steps, {} connections, {} exposures, {} accesses, \
             {faults} faults ({}), keys ended ({}), {} bytes leaked and counted, \
             {violations} violations",
            self.seeds,
            self.steps,
            self.connections,
            self.exposures,
            self.accesses,
            list(self.faults.clone().into_iter().collect()),
            list(ends),
            self.bytes_leaked,
        )
    }
}
