//! One list of operations on two devices, completion by completion.
//!
//! The software device is compared with itself everywhere, and with a real one where there is one.
//! A difference is either one of [`notes::NOTES`], each of which a `# Divergence` section tells, or
//! a failure.

mod notes;
mod ops;
mod world;

use super::Device;
use super::sim::{Fabric, SimDevice, profile};
use ops::{Bound, Op, Rng};
use std::collections::BTreeMap;
use world::{Outcome, World, follow};

/// Operations of one seed.
const OPS: usize = 400;

/// What several lists came to.
#[derive(Default, Debug)]
struct Tally {
    operations: usize,
    /// How often the software device gave each outcome.
    outcomes: BTreeMap<String, u32>,
    /// How often each note was needed.
    noted: BTreeMap<&'static str, u32>,
    /// Differences that no note tells.
    unknown: Vec<String>,
}

impl Tally {
    /// Runs the list of a seed on the software device and on another.
    fn compare<B: Device>(&mut self, seed: u64, a: &mut World<SimDevice>, b: &mut World<B>) {
        let (mut rng, mut bound) = (Rng::new(seed), Bound::default());
        for i in 0..OPS {
            let op = rng.op(bound);
            let on_a = a.run(&op, None);
            let on_b = b.run(&op, Some(&on_a));
            self.operations += 1;
            self.count(&on_a);
            let same = on_a == on_b;
            if !same {
                self.differs(&format!("seed {seed} operation {i}"), &op, bound, (&on_a, &on_b));
            }
            if !same || on_a.is_broken() || on_b.is_broken() {
                let flushed = (a.recover(), b.recover());
                if same && flushed.0 != flushed.1 {
                    match notes::explain_receives(&flushed.0, &flushed.1) {
                        Some(note) => *self.noted.entry(note.name).or_default() += 1,
                        None => {
                            self.unknown.push(format!("seed {seed} at {i} {op:?}: {flushed:?}"))
                        }
                    }
                }
                bound = Bound::default();
            } else {
                follow(&mut bound, &op, &on_a);
            }
        }
    }

    fn differs(&mut self, place: &str, op: &Op, bound: Bound, (a, b): (&Outcome, &Outcome)) {
        match notes::explain(op, bound, a, b) {
            Some(note) => *self.noted.entry(note.name).or_default() += 1,
            None => {
                let what = format!("{place} {op:?}\n  software device {a:?}\n  device {b:?}");
                println!("DIFFERENCE {what}");
                self.unknown.push(what);
            }
        }
    }

    fn count(&mut self, out: &Outcome) {
        let mut add = |what: String| *self.outcomes.entry(what).or_default() += 1;
        for s in &out.sends {
            add(s.map_or("no completion".into(), |s| s.to_string()));
        }
        for r in &out.receives {
            add(format!("receive: {}", r.status));
        }
        if let Some((_, kind)) = out.refused {
            add(format!("call refused: {kind:?}"));
        }
    }
}

fn sim(seed: u64) -> World<SimDevice> {
    let caps = profile::builtin("rxe").unwrap().caps;
    World::new(Fabric::new(seed).add_node("sim", caps), true)
}

#[test]
fn the_same_list_comes_to_the_same_on_the_software_device() {
    let (mut a, mut b, mut tally) = (sim(1), sim(2), Tally::default());
    for seed in 0..5 {
        tally.compare(seed, &mut a, &mut b);
    }
    assert!(tally.unknown.is_empty() && tally.noted.is_empty(), "{tally:#?}");
    // The lists are worth comparing.
    for outcome in [
        "call refused: Busy",
        "call refused: Invalid",
        "local protection error (4)",
        "memory bind error (6)",
        "receive: remote invalid request error (9)",
        "receive: success (0)",
        "receiver-not-ready retry count exceeded (13)",
        "remote access error (10)",
        "remote invalid request error (9)",
        "success (0)",
        "transport retry count exceeded (12)",
        "work request flushed (5)",
    ] {
        assert!(tally.outcomes.get(outcome).is_some_and(|&n| n > 1), "{outcome}: {tally:#?}");
    }
    a.close();
    b.close();
}

#[cfg(all(feature = "verbs", target_os = "linux"))]
#[test]
fn every_completion_is_that_of_a_real_device_or_a_noted_difference() {
    let Some(dev) = super::verbs::test_device() else { return };
    let mut tally = Tally::default();
    for seed in 0..3 {
        let (mut a, mut b) = (sim(seed), World::new(dev.clone(), false));
        tally.compare(seed, &mut a, &mut b);
        a.close();
        b.close();
    }
    println!("{tally:#?}");
    println!("differential: {} operations, {} unknown", tally.operations, tally.unknown.len());
    assert!(tally.unknown.is_empty(), "{} differences that no note tells", tally.unknown.len());
    // A note that nothing needs any more is wrong; other devices have other differences.
    if dev.name().starts_with("rxe") {
        for note in &notes::NOTES {
            assert!(tally.noted.contains_key(note.name), "not seen: {}", note.name);
        }
    }
}
