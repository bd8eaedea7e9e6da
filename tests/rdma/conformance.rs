//! The conformance kit on a real device.

use crate::pair::device;
use memreg_conformance::{Subject, assert_passes};
use memreg_core::MemReg;
use memreg_core::device::{AnyDevice, Caps};
use memreg_strategies::{Fmr, Frwr, Physical};

fn passes<S: MemReg>(label: &str, make: impl Fn() -> S + 'static) {
    if device().is_none() {
        return;
    }
    let open: fn() -> AnyDevice = || device().unwrap().into();
    assert_passes(&Subject::new(label, Caps::default(), make).on(open));
}

#[test]
fn frwr_passes_the_kit() {
    passes("frwr on a real device", Frwr::new);
}

#[test]
fn fmr_passes_the_kit() {
    passes("fmr on a real device", Fmr::new);
}

#[test]
fn physical_passes_the_kit() {
    passes("physical on a real device", || Physical::new(true));
}
