//! Every interleaving of the small core, breadth first, until no new state comes up.
//!
//! A state is reached again by making its moves from the start. In each state the invariants hold
//! after every move, and from each everything comes to its end when the connection is taken down.
//!
//! States count as one if they have the same fingerprint. That this leaves nothing out is tried,
//! too: of the states that were reached in two ways a sample (`twins`) makes every move from both,
//! and what they lead to must be the same.
//!
//! - `MEMREG_TEST_STATES=n`: stop there. Without it the search ends when it is done, in a build
//!   without optimisation after the first few thousand states.
//! - `MEMREG_TEST_TWINS=n`: one in so many of the states that were reached again is compared.

use super::small::{MOVES, SmallWorld};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn page_lists() {
    search(false);
}

#[test]
fn windows() {
    search(true);
}

fn search(windows: bool) {
    let name = SmallWorld::new(windows).kind();
    let limit = super::number("MEMREG_TEST_STATES").map_or(STATES, |n| n as usize);
    let mut found = Found::new(windows);
    let mut next = 0;
    while next < found.states.len() && found.states.len() < limit {
        found.expand(next);
        next += 1;
    }
    let whole = if next == found.states.len() { "no new state" } else { "stopped at the limit" };
    let twins = found.compare_twins();
    println!(
        "\nexhaustive: {name}: {} states, {next} of them with every move, {} transitions, \
         {} moves deep, {whole}, {twins} states reached twice go on alike, 0 violations",
        found.states.len(),
        found.transitions,
        found.deepest,
    );
}

/// States of a run that nobody has asked for more.
const STATES: usize = if cfg!(debug_assertions) { 8000 } else { usize::MAX };

/// The states found so far.
struct Found {
    windows: bool,
    /// By fingerprint.
    seen: BTreeMap<u128, usize>,
    /// How each state was first reached: from which one, by which move.
    states: Vec<(usize, u8)>,
    prints: Vec<u128>,
    transitions: u64,
    deepest: usize,
    /// States that were reached again: from which one, by which move.
    again: Vec<(usize, u8, usize)>,
}

impl Found {
    fn new(windows: bool) -> Found {
        let start = SmallWorld::new(windows).fingerprint();
        let (seen, states) = (BTreeMap::from([(start, 0)]), vec![(0, 0)]);
        let prints = vec![start];
        Found { windows, seen, states, prints, transitions: 0, deepest: 0, again: vec![] }
    }

    /// Makes every move in a state.
    fn expand(&mut self, state: usize) {
        for (m, there, world) in leads_to(self.windows, self.path(state), self.prints[state], true)
        {
            self.transitions += 1;
            if let Some(&twin) = self.seen.get(&there) {
                self.again.push((state, m, twin));
                continue;
            }
            self.seen.insert(there, self.states.len());
            self.states.push((state, m));
            self.prints.push(there);
            let path = self.path(self.states.len() - 1);
            self.deepest = self.deepest.max(path.len());
            let audited = self.states.len().is_multiple_of(AUDITED);
            guarded(&path, world, |world| {
                world.come_to_rest();
                if audited {
                    world.audit();
                }
            });
        }
    }

    /// The moves that lead to a state.
    fn path(&self, mut state: usize) -> Vec<u8> {
        let mut moves = vec![];
        while state > 0 {
            let (from, m) = self.states[state];
            moves.push(m);
            state = from;
        }
        moves.reverse();
        moves
    }

    /// Of states that were reached in two ways a sample makes every move from both.
    fn compare_twins(&self) -> usize {
        let one_in = super::number("MEMREG_TEST_TWINS").unwrap_or(TWINS) as usize;
        let sample = self.again.iter().step_by(one_in);
        for &(from, m, state) in sample.clone() {
            let (mut other, first) = (self.path(from), self.path(state));
            other.push(m);
            let end = |path: &Vec<u8>| -> BTreeSet<u128> {
                let all = leads_to(self.windows, path.clone(), self.prints[state], false);
                all.map(|(_, there, _)| there).collect()
            };
            let (a, b) = (end(&first), end(&other));
            assert!(
                a == b,
                "one fingerprint, two futures:\n{:?}\n{:?}\n{}",
                names(&first),
                names(&other),
                reached(self.windows, &first).print()
            );
        }
        sample.len()
    }
}

/// Of one state in so many the ledger is audited, at the end of what follows.
const AUDITED: usize = 16;

/// One in so many is compared.
const TWINS: u64 = 2000;

/// Every move that changes something after `path`, whose end has the fingerprint `before`: the
/// move, the new fingerprint and the world.
fn leads_to(
    windows: bool,
    path: Vec<u8>,
    before: u128,
    check: bool,
) -> impl Iterator<Item = (u8, u128, SmallWorld)> {
    let mut spare = None;
    (0..MOVES.len() as u8).filter_map(move |m| {
        let world = spare.take().unwrap_or_else(|| reached(windows, &path));
        let mut longer = path.clone();
        longer.push(m);
        let (there, world) = guarded(&longer, world, |world| {
            let m = MOVES[m as usize];
            if check {
                world.make(m)
            } else {
                world.make_again(m)
            }
            world.fingerprint()
        });
        if there == before {
            // It changed nothing: the next move goes from the same world.
            spare = Some(world);
            return None;
        }
        Some((m, there, world))
    })
}

fn reached(windows: bool, moves: &[u8]) -> SmallWorld {
    let mut world = SmallWorld::new(windows);
    for &m in moves {
        world.make_again(MOVES[m as usize]);
    }
    world
}

/// Says which moves led to a violation.
fn guarded<T>(
    moves: &[u8],
    mut world: SmallWorld,
    run: impl FnOnce(&mut SmallWorld) -> T,
) -> (T, SmallWorld) {
    match catch_unwind(AssertUnwindSafe(|| run(&mut world))) {
        Ok(got) => (got, world),
        Err(_) => {
            let owner = format!("owner of {}", world.kind());
            super::keep::traces("exhaustive", [(owner, world.ledger())].into_iter());
            panic!("after {:?}", names(moves))
        }
    }
}

fn names(moves: &[u8]) -> Vec<super::small::Move> {
    moves.iter().map(|&m| MOVES[m as usize]).collect()
}
