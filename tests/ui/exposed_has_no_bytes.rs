//! A handle shows no byte of what it names.

use memreg_core::Exposed;

fn promise(exposed: &Exposed) -> u8 {
    exposed[0]
}

fn main() {}
