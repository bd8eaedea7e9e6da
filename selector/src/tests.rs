//! Tests of the choice: who is taken, and what is said of the others.

use super::*;
use memreg_core::plugin::{API, Entry};

const NO_FRWR: Caps = Caps {
    mem_mgt_extensions: false,
    sg_gaps: false,
    max_fast_reg_page_list_len: 0,
    mem_window_type_2b: false,
    max_mw: 0,
    max_mr: 1000,
    max_mr_size: 1 << 30,
    max_qp_wr: 1024,
    max_cqe: 4096,
    max_sge: 4,
    max_sge_rd: 4,
    max_inline_data: 0,
    page_size: 4096,
    ..Caps::GENERIC
};

fn pick(caps: &Caps, name: &str) -> Result<Choice, SelectError> {
    let wanted = Wanted { name: Wanted::new(name, vec![]).name, ..Wanted::default() };
    choose(&Registry::builtin(), caps, &Ask::default(), &wanted, &BuildOptions::default())
}

fn reason<'a>(candidates: &'a [Candidate], name: &str) -> &'a str {
    &candidates.iter().find(|c| c.name == name).unwrap().reason
}

fn trusting() -> (Ask, BuildOptions) {
    let ask = Ask { danger_trust_peer: true, ..Ask::default() };
    (ask, BuildOptions { danger_trust_peer: true, ..BuildOptions::default() })
}

#[test]
fn auto_takes_the_first_that_works_and_reports_all() {
    let c = pick(&Caps::default(), "auto").unwrap();
    assert_eq!(c.strategy.name(), "frwr");
    let names: Vec<_> = c.candidates.iter().map(|c| (c.name, c.eligible, c.chosen)).collect();
    let want = [("frwr", true, true), ("fmr", true, false), ("physical", false, false)];
    assert_eq!(names, want);
    assert_eq!(reason(&c.candidates, "frwr"), "chosen: the first in strategy.order that works");
    assert_eq!(reason(&c.candidates, "fmr"), "frwr comes first in strategy.order");
    assert!(reason(&c.candidates, "physical").contains("strategy.danger_trust_peer"));
    assert_eq!(c.candidates[0].limits.as_ref(), Some(&c.limits));
    assert!(c.candidates[1].limits.is_some());
}

#[test]
fn auto_falls_back_and_says_why() {
    let c = pick(&NO_FRWR, "auto").unwrap();
    assert_eq!(c.strategy.name(), "fmr");
    assert_eq!(reason(&c.candidates, "frwr"), "device has no MEM_MGT_EXTENSIONS");
}

#[test]
fn b13_page_list_length_zero() {
    let caps = Caps { max_fast_reg_page_list_len: 0, ..Caps::default() };
    let c = pick(&caps, "auto").unwrap();
    assert_eq!(c.strategy.name(), "fmr");
    assert!(reason(&c.candidates, "frwr").contains("page list length 0"));
    let e = pick(&caps, "frwr").unwrap_err();
    assert!(e.to_string().contains("page list length 0"), "{e}");
    assert_eq!(e.disposition(), Disposition::Fatal);
}

#[test]
fn b16_b23_fmr_by_name_on_a_device_of_any_kind() {
    for caps in [Caps { mem_window_type_2b: true, max_mw: 100, ..Caps::default() }, NO_FRWR] {
        let c = pick(&caps, "fmr").unwrap();
        assert_eq!(c.strategy.name(), "fmr");
        assert_eq!(reason(&c.candidates, "fmr"), "chosen: strategy.name names it");
    }
}

#[test]
fn b17_a_device_that_breaks_its_promise() {
    let tried = [Tried { name: "frwr".into(), failed: "alloc_mr: EOPNOTSUPP (95)".into() }];
    let again = |name: &str| {
        let wanted = Wanted { name: Wanted::new(name, vec![]).name, ..Wanted::default() };
        let (caps, ask) = (Caps::default(), Ask::default());
        let options = BuildOptions::default();
        rechoose(&Registry::builtin(), &caps, &ask, &wanted, &options, &tried)
    };
    let c = again("auto").unwrap();
    assert_eq!(c.strategy.name(), "fmr");
    let why = "tried, failed: alloc_mr: EOPNOTSUPP (95)";
    assert_eq!(reason(&c.candidates, "frwr"), why);
    let e = again("frwr").unwrap_err();
    assert_eq!(e.to_string(), format!("strategy frwr cannot be used: {why}"));
}

#[test]
fn b18_the_gap_bit_changes_no_choice() {
    let gaps = Caps { sg_gaps: true, ..Caps::default() };
    let (a, b) = (pick(&gaps, "auto").unwrap(), pick(&Caps::default(), "auto").unwrap());
    assert_eq!((a.strategy.name(), &a.limits), (b.strategy.name(), &b.limits));
}

#[test]
fn ia_02_a_name_works_or_is_an_error_never_a_switch() {
    let e = pick(&NO_FRWR, "frwr").unwrap_err();
    assert!(matches!(&e, SelectError::Explicit { name, .. } if name == "frwr"));
    assert_eq!(e.candidates().len(), 3);
    assert!(e.candidates().iter().all(|c| !c.chosen));
    assert_eq!(reason(e.candidates(), "fmr"), "strategy.name asks for frwr");
}

#[test]
fn auto_never_takes_physical() {
    let (ask, options) = trusting();
    let order = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
    let run = |wanted: &Wanted| choose(&Registry::builtin(), &NO_FRWR, &ask, wanted, &options);
    let c = run(&Wanted::new("auto", order(&["physical", "frwr", "fmr"]))).unwrap();
    assert_eq!(c.strategy.name(), "fmr");
    assert!(reason(&c.candidates, "physical").starts_with("never chosen by auto"));
    let e = run(&Wanted::new("auto", order(&["physical"]))).unwrap_err();
    assert!(matches!(e, SelectError::NoneEligible { .. }));
    assert_eq!(reason(e.candidates(), "fmr"), "not in strategy.order");
    assert_eq!(run(&Wanted::new("physical", vec![])).unwrap().strategy.name(), "physical");
}

#[test]
fn physical_needs_the_users_word_in_both_places() {
    let (ask, options) = trusting();
    let wanted = Wanted::new("physical", vec![]);
    let caps = Caps::default();
    for (ask, options) in [(Ask::default(), options), (ask, BuildOptions::default())] {
        let e = choose(&Registry::builtin(), &caps, &ask, &wanted, &options).unwrap_err();
        assert!(e.to_string().contains("danger_trust_peer"), "{e}");
    }
}

#[test]
fn nothing_eligible_names_every_reason() {
    let caps = Caps { max_qp_wr: 1, ..Caps::default() };
    let e = pick(&caps, "auto").unwrap_err();
    let text = e.to_string();
    assert!(text.contains("frwr: one operation needs"), "{text}");
    assert!(text.contains("fmr: one operation needs"), "{text}");
    assert!(text.contains("physical: "), "{text}");
}

#[test]
fn unknown_names_are_errors_that_list_the_known_ones() {
    let e = pick(&Caps::default(), "frw").unwrap_err();
    assert_eq!(
        e.to_string(),
        "strategy.name: no strategy is named \"frw\"; known are fmr, frwr, physical"
    );
    let wanted = Wanted::new("auto", vec!["frwr".into(), "nope".into()]);
    let (caps, ask, options) = (Caps::default(), Ask::default(), BuildOptions::default());
    let e = choose(&Registry::builtin(), &caps, &ask, &wanted, &options).unwrap_err();
    assert!(e.to_string().starts_with("strategy.order: no strategy is named \"nope\""), "{e}");
    assert!(e.candidates().iter().all(|c| !c.chosen));
}

#[test]
fn plugins_are_candidates_like_any_other() {
    let mut r = Registry::builtin();
    let entry = Entry {
        name: "extra",
        api: API,
        about: "a plugin",
        check: |caps| {
            if caps.sg_gaps { Ok(()) } else { Err(memreg_core::memreg::Reject::Missing("SG_GAPS")) }
        },
        build: |_| Ok(Box::new(memreg_strategies::Frwr::new())),
    };
    r.register(entry).unwrap();
    let (ask, options) = (Ask::default(), BuildOptions::default());
    let run = |caps: &Caps, wanted: &Wanted| choose(&r, caps, &ask, wanted, &options);
    let c = run(&Caps::default(), &Wanted::default()).unwrap();
    assert_eq!(reason(&c.candidates, "extra"), "device has no SG_GAPS");
    let gaps = Caps { sg_gaps: true, ..Caps::default() };
    let c = run(&gaps, &Wanted::default()).unwrap();
    assert_eq!(reason(&c.candidates, "extra"), "not in strategy.order");
    let c = run(&gaps, &Wanted::new("auto", vec!["extra".into(), "frwr".into()])).unwrap();
    assert_eq!(c.strategy.name(), "extra");
}

#[test]
fn candidates_judges_each_without_regard_to_the_order() {
    let (ask, options) = trusting();
    let all = candidates(&Registry::builtin(), &NO_FRWR, &ask, &options);
    let short: Vec<_> = all.iter().map(|c| (c.name, c.eligible, c.limits.is_some())).collect();
    assert_eq!(short, [("fmr", true, true), ("frwr", false, false), ("physical", true, true)]);
    assert!(all.iter().all(|c| !c.chosen));
    assert_eq!(reason(&all, "fmr"), "eligible");
}
