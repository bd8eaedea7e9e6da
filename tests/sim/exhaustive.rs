//! Every interleaving of the small core, breadth first, until no new state comes up.
//!
//! A state is reached again by making its moves from the start. In each state the invariants hold
//! after every move, and from each everything comes to its end when the connection is taken down.

use super::small::{MOVES, SmallWorld};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// States of a plain `cargo test`; `MEMREG_TEST_STATES` asks for more.
const STATES: usize = 2000;

#[test]
fn page_lists() {
    search("page lists", false);
}

#[test]
fn windows() {
    search("windows", true);
}

fn search(name: &str, windows: bool) {
    let limit = super::number("MEMREG_TEST_STATES").map_or(STATES, |n| n as usize);
    let mut seen = BTreeSet::new();
    let mut paths: Vec<Vec<u8>> = vec![vec![]];
    seen.insert(SmallWorld::new(windows).fingerprint());
    let (mut next, mut transitions, mut deepest) = (0, 0u64, 0);
    while next < paths.len() && paths.len() < limit {
        let path = paths[next].clone();
        let here = reached(windows, &path).fingerprint();
        next += 1;
        for m in 0..MOVES.len() as u8 {
            let (state, world) = after(windows, &path, m);
            transitions += u64::from(state != here);
            if seen.insert(state) {
                let mut longer = path.clone();
                longer.push(m);
                deepest = deepest.max(longer.len());
                guarded(&longer, || world.come_to_rest());
                paths.push(longer);
            }
        }
    }
    let whole = if next == paths.len() { "no new state" } else { "stopped at the limit" };
    println!(
        "\nexhaustive: {name}: {} states, {next} of them with every move, {transitions} \
         transitions, {deepest} moves deep, {whole}, 0 violations",
        paths.len()
    );
}

/// Makes the moves of a path and one more, which may change nothing.
fn after(windows: bool, path: &[u8], last: u8) -> (String, SmallWorld) {
    let moves: Vec<u8> = path.iter().chain([&last]).copied().collect();
    guarded(&moves, || {
        let world = reached(windows, &moves);
        (world.fingerprint(), world)
    })
}

fn reached(windows: bool, moves: &[u8]) -> SmallWorld {
    let mut world = SmallWorld::new(windows);
    for &m in moves {
        world.make(MOVES[m as usize]);
    }
    world
}

/// Says which moves led to a violation.
fn guarded<T>(moves: &[u8], run: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        let names: Vec<_> = moves.iter().map(|&m| MOVES[m as usize]).collect();
        panic!("after {names:?}")
    })
}
