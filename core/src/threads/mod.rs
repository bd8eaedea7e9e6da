//! What crosses threads, under every schedule (`RUSTFLAGS="--cfg shuttle"`) and with every value
//! that its orderings allow (`RUSTFLAGS="--cfg loom"`).
//!
//! The scenarios of whole transports are in `strategies/tests/threads`.

#[cfg(shuttle)]
mod explore;
#[cfg(loom)]
#[path = "orderings.rs"]
mod explore;
mod flags;
mod memory;
#[cfg(mutants)]
mod planted;
#[cfg(shuttle)]
mod queue;

#[cfg(loom)]
use loom::thread;
#[cfg(shuttle)]
use shuttle::thread;

/// Each planted defect that this crate can find alone is found.
#[cfg(mutants)]
#[test]
fn planted_defects_are_found() {
    let bell = "threads::flags::every_drop_rings_the_bell_for_somebody";
    planted::finds("bell-first", bell);
    planted::finds("flag-reuse", "threads::flags::no_flag_has_two_masters");
    planted::finds("view-shared", "threads::memory::bytes_come_back_to_their_last_holder_alone");
    #[cfg(shuttle)]
    planted::finds("close-torn", "threads::queue::no_mr_is_forgotten_while_its_queue_closes");
    #[cfg(loom)]
    planted::finds("bell-relaxed", bell);
}
