//! What crosses threads, under every schedule: `RUSTFLAGS="--cfg shuttle"`.
//!
//! The scenarios of whole transports are in `strategies/tests/threads`.

mod explore;
mod flags;
mod memory;

/// Each planted defect that this crate can find alone is found.
#[cfg(mutants)]
#[test]
fn planted_defects_are_found() {
    explore::finds("bell-first", "threads::flags::every_drop_rings_the_bell_for_somebody");
    explore::finds("flag-reuse", "threads::flags::no_flag_has_two_masters");
    explore::finds("view-shared", "threads::memory::bytes_come_back_to_their_last_holder_alone");
    explore::finds("close-torn", "threads::memory::no_mr_is_forgotten_while_its_queue_closes");
}
