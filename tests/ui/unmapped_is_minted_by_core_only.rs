//! Nobody else can claim that a device has let go.

use memreg_core::mem::{Fenced, Unmapped};

fn promise(fenced: Fenced) -> Unmapped {
    Unmapped::after(fenced)
}

fn main() {}
