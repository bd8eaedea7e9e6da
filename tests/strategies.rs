//! Every built-in strategy passes the conformance kit, on the devices where it has something to
//! prove.

#![allow(clippy::unwrap_used, reason = "a profile that is gone fails the test")]

use memreg_conformance::{Subject, assert_passes};
use memreg_core::device::Caps;
use memreg_core::device::sim::profile;
use memreg_strategies::{Fmr, Frwr, Guarded, Physical};

fn caps(name: &str) -> Caps {
    profile::builtin(name).unwrap().caps
}

#[test]
fn frwr_on_generic() {
    assert_passes(&Subject::new("frwr on generic", caps("generic"), Frwr::new));
}

#[test]
fn frwr_with_gaps() {
    let caps = caps("connectx-5-like");
    assert!(caps.sg_gaps);
    assert_passes(&Subject::new("frwr on connectx-5-like", caps, Frwr::new));
}

#[test]
fn frwr_on_shallow_page_lists() {
    let caps = caps("shallow");
    assert_eq!(caps.max_fast_reg_page_list_len, 16);
    assert_passes(&Subject::new("frwr on shallow", caps, Frwr::new));
}

#[test]
fn frwr_over_windows() {
    let caps = caps("rxe");
    assert!(caps.has_windows() && caps.max_fast_reg_page_list_len == 0);
    assert_passes(&Subject::new("frwr on rxe", caps, Frwr::new));
}

#[test]
fn a_plugin_over_windows() {
    let guarded = || Guarded::new("plugin", Box::new(Frwr::new()));
    assert_passes(&Subject::new("plugin on rxe", caps("rxe"), guarded));
}

#[test]
fn fmr_without_fast_registration() {
    assert_passes(&Subject::new(
        "fmr on no-fast-registration",
        caps("no-fast-registration"),
        Fmr::new,
    ));
}

#[test]
fn physical_with_trust() {
    assert_passes(&Subject::new("physical on generic", caps("generic"), || Physical::new(true)));
}
