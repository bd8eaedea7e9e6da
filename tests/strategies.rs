//! Every built-in strategy against the conformance kit, on every built-in profile that it can work
//! on; where it cannot, the reason is printed, and is the one that the table below expects.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use memreg_conformance::{Subject, assert_passes};
use memreg_core::MemReg;
use memreg_core::device::Caps;
use memreg_core::device::sim::profile;
use memreg_strategies::{BuildOptions, Guarded, Registry, Strategy};

/// Which built-in strategies cannot work on which profile, and a part of the reason.
const INELIGIBLE: [(&str, &str, &str); 5] = [
    ("frwr", "no-fast-registration", "MEM_MGT_EXTENSIONS"),
    ("frwr", "siw", "no type-2 windows"),
    ("frwr", "efa-like", "MEM_MGT_EXTENSIONS"),
    ("frwr", "page-list-0", "page list length 0"),
    ("frwr", "tiny-queue", "max_qp_wr is 6"),
];

fn caps(profile: &str) -> Caps {
    profile::builtin(profile).unwrap().caps
}

fn build(name: &str) -> Strategy {
    let options = BuildOptions { danger_trust_peer: true, ..BuildOptions::default() };
    Registry::builtin().build(name, &options).unwrap()
}

/// The reason why it cannot work there, the sizes of the kit's own subjects asked.
fn refusal(name: &str, subject: &Subject<Strategy>) -> Option<String> {
    let mut strategy = build(name);
    let checked = strategy.check(&subject.caps).map_err(|e| e.to_string());
    let opened = checked
        .and_then(|()| strategy.open(&subject.caps, &subject.ask).map_err(|e| e.to_string()));
    opened.err()
}

/// Runs the kit for one strategy on every profile.
fn on_every_profile(name: &'static str) {
    for profile in profile::names() {
        let label = format!("{name} on {profile}");
        let subject = Subject::new(&label, caps(profile), move || build(name));
        let expected = INELIGIBLE.iter().find(|row| (row.0, row.1) == (name, profile));
        match (refusal(name, &subject), expected) {
            (None, None) => assert_passes(&subject),
            (Some(why), Some(row)) => {
                println!("conformance {label}: not eligible, {why}");
                assert!(why.contains(row.2), "{label}: {why}");
            }
            (why, expected) => panic!("{label}: refused {why:?}, expected {expected:?}"),
        }
    }
}

#[test]
fn frwr_on_every_profile() {
    on_every_profile("frwr");
}

#[test]
fn fmr_on_every_profile() {
    on_every_profile("fmr");
}

#[test]
fn physical_on_every_profile() {
    on_every_profile("physical");
}

/// What each mechanism of frwr needs is among the profiles.
#[test]
fn profiles_show_every_mechanism_of_frwr() {
    let frwr = |profile: &str| {
        let subject = Subject::new(profile, caps(profile), || build("frwr"));
        build("frwr").open(&subject.caps, &subject.ask).unwrap().mechanism
    };
    assert_eq!((frwr("generic"), frwr("rxe")), ("page list", "window"));
    assert!(caps("connectx-5-like").sg_gaps && !caps("connectx-3").sg_gaps);
    assert_eq!(caps("shallow").max_fast_reg_page_list_len, 16);
    assert!(caps("rxe").has_windows() && caps("rxe").max_fast_reg_page_list_len == 0);
}

#[test]
fn a_plugin_over_page_lists_and_over_windows() {
    for profile in ["generic", "rxe"] {
        let guarded = || Guarded::new("plugin", Box::new(build("frwr")));
        assert_passes(&Subject::new(format!("plugin on {profile}"), caps(profile), guarded));
    }
}
