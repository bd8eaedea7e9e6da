//! Nobody else can claim that access has ended.

use memreg_core::mem::Fenced;

fn promise() -> Fenced {
    Fenced::mint()
}

fn promise_by_hand() -> Fenced {
    Fenced(())
}

fn main() {}
