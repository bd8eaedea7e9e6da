//! There is one handle to an exposure.

use memreg_core::Exposed;

fn promise(exposed: &Exposed) -> Exposed {
    Exposed::clone(exposed)
}

fn main() {}
