//! Whole transports in several threads, under many schedules: `RUSTFLAGS="--cfg shuttle"`.
//!
//! Nothing here waits for another thread but by `join`: every party can finish alone, whatever the
//! others do. What crosses threads inside the core is in `core/src/threads`.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test

#[path = "../../../core/src/threads/explore.rs"]
mod explore;
mod handles;
mod pairs;
#[cfg(mutants)]
#[path = "../../../core/src/threads/planted.rs"]
mod planted;
mod rig;
mod shared;

/// Each planted defect that takes a whole transport is found.
#[cfg(mutants)]
#[test]
fn planted_defects_are_found() {
    let test = "handles::a_handle_dropped_by_another_thread_is_never_overlooked";
    planted::finds("bell-first", test);
    planted::finds("bell-late", test);
    let test = "shared::an_mr_that_gets_the_id_of_an_ended_one_is_not_forgotten";
    planted::finds("end-first", test);
    planted::finds("early-fence", "pairs::a_write_that_races_the_revoke_lands_whole_or_not_at_all");
    planted::finds("abandon", "pairs::a_write_that_races_a_dropped_handle_reaches_no_freed_bytes");
}
