//! Looks for the planted defect that `MEMREG_TEST_MUTANT` names. Only in a build with `--cfg
//! mutants`; the script `mutants` beside this file runs it for each.

use super::world::World;
use memreg_core::mutants::ALL;

#[test]
fn list() {
    // On a line of its own, whatever the harness has printed before.
    println!();
    for (id, what) in ALL {
        println!("planted: {id} | {what}");
    }
}

/// Fresh seeds until one fails.
#[test]
fn sweep() {
    let count = super::number("MEMREG_TEST_SEED_COUNT").unwrap_or(1);
    let at = super::fresh_seeds(count).position(|seed| World::run(seed, false).is_err());
    match at {
        Some(before) => println!("\nfound after {} seeds", before + 1),
        None => println!("\nnot found in {count} seeds"),
    }
}
