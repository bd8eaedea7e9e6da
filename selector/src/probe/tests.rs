//! Tests of the probe on the software device, whole and broken.

use super::*;
use memreg_core::MemReg;
use memreg_core::device::fault::{FaultPlan, Faulty};
use memreg_core::device::sim::{Fabric, SimCounters, SimDevice, profile};
use memreg_core::device::{AnyDevice, Verb, errno};
use memreg_core::plugin::{API, Entry};

fn sim(caps: Caps) -> SimDevice {
    Fabric::new(7).add_node("sim", caps)
}

fn run<D: Device + Clone>(device: &D) -> ProbeReport {
    probe(device, &Registry::builtin(), &Ask::default(), &BuildOptions::default())
}

fn steps(s: &StrategyProof) -> Vec<(Step, bool)> {
    s.proofs.iter().map(|p| (p.step, p.outcome == Outcome::Proven)).collect()
}

/// What is live on the device.
fn live(device: &SimDevice) -> [u64; 7] {
    let c: SimCounters = device.counters();
    [c.pds, c.cqs, c.qps, c.mrs, c.fast_mrs, c.mws, c.mapped_ranges]
}

const LIFE: [Step; 7] = [
    Step::Open,
    Step::Transfer(Grant::PeerReads),
    Step::Revoke(Grant::PeerReads),
    Step::OldKey(Grant::PeerReads),
    Step::Transfer(Grant::PeerWrites),
    Step::Revoke(Grant::PeerWrites),
    Step::OldKey(Grant::PeerWrites),
];

#[test]
fn every_strategy_is_proven_in_both_directions_and_nothing_is_left() {
    let device = sim(Caps { sg_gaps: true, ..Caps::default() });
    let report = run(&AnyDevice::from(device.clone()));
    assert_eq!(report.attributes, device.caps());
    let names: Vec<_> = report.strategies.iter().map(|s| s.name).collect();
    assert_eq!(names, ["fmr", "frwr", "physical"]);

    let frwr = report.strategy("frwr").unwrap();
    let want = [Step::Attributes, Step::PageList].into_iter().chain(LIFE).chain([Step::Gaps]);
    assert_eq!(steps(frwr), want.map(|s| (s, true)).collect::<Vec<_>>());
    assert_eq!((frwr.mechanism, frwr.page_list_depth), (Some("page list"), Some(257)));
    let fmr = report.strategy("fmr").unwrap();
    let want = [Step::Attributes].into_iter().chain(LIFE);
    assert_eq!(steps(fmr), want.map(|s| (s, true)).collect::<Vec<_>>());

    let physical = report.strategy("physical").unwrap();
    assert!(!physical.works());
    assert!(physical.proofs[0].to_string().contains("danger_trust_peer"));
    assert!(report.tried().is_empty(), "it was never eligible");
    assert_eq!(report.proven(), report.attributes);
    assert_eq!(live(&device), [0; 7]);
}

#[test]
fn b57_the_old_key_was_really_tried() {
    let device = sim(Caps::default());
    run(&device);
    // Two strategies, two directions: nothing else was refused.
    assert_eq!(device.counters().remote_refusals, 4);
    assert_eq!(device.counters().iommu_faults, 0);
}

fn windows() -> SimDevice {
    sim(profile::builtin("rxe").unwrap().caps)
}

#[test]
fn b16_windows_are_proven_with_their_bounds_and_their_qp() {
    let device = windows();
    let report = run(&device);
    let frwr = report.strategy("frwr").unwrap();
    let facts = [Step::Bounds, Step::OtherQp];
    let want = [Step::Attributes].into_iter().chain(LIFE).chain(facts);
    assert_eq!(steps(frwr), want.map(|s| (s, true)).collect::<Vec<_>>());
    assert_eq!((frwr.mechanism, frwr.page_list_depth), (Some("window"), None));
    assert!(frwr.has_proven(Step::OtherQp) && !frwr.has_proven(Step::Gaps));
    // Two old keys, the bounds and the other QP; two old keys of fmr.
    assert_eq!(device.counters().remote_refusals, 6);
    assert_eq!((device.counters().iommu_faults, live(&device)), (0, [0; 7]));
}

#[test]
fn b23_fmr_makes_no_window_and_frwr_none_without_need() {
    let device = sim(Caps { mem_window_type_2b: true, max_mw: 100, ..Caps::default() });
    let report = run(&device);
    assert!(report.strategies.iter().filter(|s| s.works()).count() == 2);
    assert_eq!(device.counters().alloc_mw_calls, 0);
}

#[test]
fn every_profile_is_probed_to_the_end() {
    for name in profile::names() {
        let device = sim(profile::builtin(name).unwrap().caps);
        let report = run(&device);
        for s in &report.strategies {
            // What the attributes promise, the software device keeps.
            let failure = s.failure().map(|p| (p.step, p.to_string()));
            assert!(
                failure.as_ref().is_none_or(|(step, _)| *step == Step::Attributes),
                "{name} {}: {failure:?}",
                s.name
            );
        }
        assert_eq!(live(&device), [0; 7], "{name}");
    }
}

#[test]
fn b18_gaps_are_not_tried_without_the_capability() {
    let report = run(&sim(Caps::default()));
    let gaps = report.strategy("frwr").unwrap().proofs.last().unwrap().clone();
    let why = "the device has no SG_GAPS";
    assert_eq!(gaps, Proof { step: Step::Gaps, outcome: Outcome::Skipped(why) });
}

#[test]
fn phy_04_a_strategy_that_never_revokes_says_so() {
    let ask = Ask { danger_trust_peer: true, ..Ask::default() };
    let options = BuildOptions { danger_trust_peer: true, ..BuildOptions::default() };
    let device = sim(Caps::default());
    let report = probe(&device, &Registry::builtin(), &ask, &options);
    let physical = report.strategy("physical").unwrap();
    assert!(physical.works());
    assert!(!physical.has_proven(Step::OldKey(Grant::PeerWrites)));
    assert_eq!(physical.mechanism, Some("bounce"));
    assert_eq!(live(&device), [0; 7]);
    // One word alone is not enough.
    let report = probe(&device, &Registry::builtin(), &ask, &BuildOptions::default());
    assert!(!report.strategy("physical").unwrap().works());
}

#[test]
fn b13_the_reason_is_in_the_report() {
    let report = run(&sim(Caps { max_fast_reg_page_list_len: 0, ..Caps::default() }));
    let frwr = report.strategy("frwr").unwrap();
    assert_eq!(frwr.proofs.len(), 1);
    let text = frwr.failure().unwrap().to_string();
    assert!(text.contains("page list length 0"), "{text}");
    assert!(report.strategy("fmr").unwrap().works());
}

#[test]
fn b14_a_page_list_that_is_refused_is_planned_with_at_half() {
    let plan = FaultPlan::new();
    let sim = sim(Caps { max_fast_reg_page_list_len: 256, ..Caps::default() });
    let device = Faulty::new(sim.clone(), plan.clone());
    plan.fail(Verb::AllocMr, 1, errno::ENOMEM);
    let report = run(&device);
    let frwr = report.strategy("frwr").unwrap();
    let shorter = frwr.proofs[1].to_string();
    assert_eq!(
        shorter,
        "page list as long as announced: 256 entries: alloc_mr: ENOMEM (12); 128 work"
    );
    assert!(frwr.works(), "only shorter");
    let caps = report.proven();
    assert_eq!(caps.max_fast_reg_page_list_len, 128);
    let reach = memreg_core::sizing::page_list_reach(&caps, 1).unwrap();
    assert_eq!((reach.any_offset, reach.aligned), (520_193, 524_288));
    assert_eq!(live(&sim), [0; 7]);
}

#[test]
fn b17_a_promise_that_is_broken_is_found_out_beforehand() {
    let plan = FaultPlan::new();
    let sim = sim(Caps::default());
    let device = Faulty::new(sim.clone(), plan.clone());
    plan.fail(Verb::AllocMr, 1_000_000, errno::EOPNOTSUPP);
    let report = run(&device);
    let tried = report.tried();
    assert_eq!(tried.len(), 1);
    assert_eq!(tried[0].name, "frwr");
    assert!(tried[0].failed.contains("alloc_mr: EOPNOTSUPP (95)"), "{}", tried[0].failed);
    let caps = report.proven();
    assert_eq!(caps.max_fast_reg_page_list_len, 0);
    let (registry, ask) = (Registry::builtin(), Ask::default());
    let options = BuildOptions::default();
    let c = crate::rechoose(&registry, &caps, &ask, &crate::Wanted::default(), &options, &tried);
    assert_eq!(c.unwrap().strategy.name(), "fmr");
    assert_eq!(live(&sim), [0; 7]);
}

#[test]
fn a_strategy_that_revokes_nothing_is_found_out() {
    use memreg_core::device::DeviceError;
    use memreg_core::memreg::{
        Control, Event, MapError, Poison, RegionId, Reject, SegList, WrBatch,
    };
    use memreg_core::sizing::SizeError;

    /// Bounces like `physical`, so its key lives on, and says of itself that it revokes.
    struct Keeps(memreg_strategies::Physical);
    impl MemReg for Keeps {
        fn name(&self) -> &'static str {
            "keeps"
        }
        fn check(&self, caps: &Caps) -> Result<(), Reject> {
            self.0.check(caps)
        }
        fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
            self.0.open(caps, ask)
        }
        fn fill(&mut self, c: &mut dyn Control, n: usize) -> Result<(), DeviceError> {
            self.0.fill(c, n)
        }
        fn map(
            &mut self,
            c: &mut dyn Control,
            segs: &SegList<'_>,
            out: &mut WrBatch,
        ) -> Result<(), MapError> {
            self.0.map(c, segs, out)
        }
        fn unmap(
            &mut self,
            _: &mut dyn Control,
            _: &[RegionId],
            _: &mut WrBatch,
        ) -> Result<(), Poison> {
            Ok(())
        }
        fn on_event(&mut self, _: RegionId, _: Event) -> Result<(), Poison> {
            Ok(())
        }
        fn recover(&mut self, _: &mut dyn Control, _: usize) -> Result<usize, DeviceError> {
            Ok(0)
        }
        fn on_drained(&mut self) {}
    }
    let mut registry = Registry::builtin();
    let entry = Entry {
        name: "keeps",
        api: API,
        about: "revokes nothing",
        check: |_| Ok(()),
        build: |_| Ok(Box::new(Keeps(memreg_strategies::Physical::new(true)))),
    };
    registry.register(entry).unwrap();
    let ask = Ask { danger_trust_peer: true, ..Ask::default() };
    let options = BuildOptions { danger_trust_peer: true, ..BuildOptions::default() };
    let device = sim(Caps::default());
    let report = probe(&device, &registry, &ask, &options);
    let keeps = report.strategy("keeps").unwrap();
    let why = keeps.failure().unwrap();
    assert_eq!(why.step, Step::Revoke(Grant::PeerReads));
    assert!(why.to_string().contains("left a live key unrevoked"), "{why}");
    assert_eq!(live(&device), [0; 7]);
}

/// Verbs that make something or start something; each fails once, at its k-th call, wherever in
/// the probe that is.
#[test]
fn ep_06_a_verb_that_fails_anywhere_leaves_nothing_behind() {
    let verbs = [
        (Verb::AllocPd, errno::ENOMEM),
        (Verb::CreateCq, errno::ENOMEM),
        (Verb::CreateQp, errno::ENOMEM),
        (Verb::ModifyQp, errno::EINVAL),
        (Verb::QueryQp, errno::EINVAL),
        (Verb::DmaMap, errno::ENOMEM),
        (Verb::RegMr, errno::ENOMEM),
        (Verb::AllocMr, errno::ENOMEM),
        (Verb::AllocMw, errno::ENOMEM),
        (Verb::PostSend, errno::ENOMEM),
        (Verb::PostRecv, errno::ENOMEM),
        (Verb::PollCq, errno::EIO),
    ];
    let gaps = Caps { sg_gaps: true, ..Caps::default() };
    let each = [false, true].into_iter().flat_map(|w| verbs.map(|(verb, errno)| (w, verb, errno)));
    for (windowed, verb, errno) in each {
        let mut k = 1;
        loop {
            let plan = FaultPlan::new();
            let sim = if windowed { windows() } else { sim(gaps.clone()) };
            let device = Faulty::new(sim.clone(), plan.clone());
            plan.fail_nth(verb, k, 1, errno);
            let report = run(&device);
            assert_eq!(live(&sim), [0; 7], "{verb} {k}");
            let fine = |s: &StrategyProof| s.name == "physical" || s.proofs.iter().all(whole);
            if report.strategies.iter().all(fine) {
                break;
            }
            k += 1;
            assert!(k < 500, "{verb} is called without end");
        }
        let other_kind = if windowed { Verb::AllocMr } else { Verb::AllocMw };
        assert_eq!(k == 1, verb == other_kind, "{verb} was never called");
    }
}

/// An object that the device does not end at once may stay, but then the report still comes, and
/// what has shown nothing wrong is still proven.
#[test]
fn a_release_that_fails_once_is_no_panic_and_costs_one_connection_at_most() {
    let verbs = [Verb::DeallocPd, Verb::DestroyCq, Verb::DestroyQp, Verb::DmaUnmap, Verb::DeregMr];
    for verb in verbs {
        for k in 1..25 {
            let plan = FaultPlan::new();
            let sim = sim(Caps { sg_gaps: true, ..Caps::default() });
            plan.fail_nth(verb, k, 1, errno::EBUSY);
            let report = run(&Faulty::new(sim.clone(), plan.clone()));
            let failed = report.strategies.iter().filter(|s| !s.works()).count();
            assert!(failed <= 2, "{verb} {k}: physical, and one that met the fault");
            // The last try of an object and of what holds it: PD, CQ, or one MR and its memory.
            let left = live(&sim);
            assert!(left[2] == 0 && left.iter().sum::<u64>() <= 3, "{verb} {k}: {left:?}");
        }
    }
}

fn whole(p: &Proof) -> bool {
    !matches!(p.outcome, Outcome::NotProven(_))
}

#[test]
fn a_workload_of_single_bytes_and_huge_pages_are_no_trouble() {
    let ask = Ask { max_payload_bytes: 1, credits: 1, ranges_per_request: 1, ..Ask::default() };
    for page_size in [512, 1 << 16, 1 << 30] {
        let device = sim(Caps { page_size, sg_gaps: true, ..Caps::default() });
        let options = BuildOptions::default();
        let report = probe(&device, &Registry::builtin(), &ask, &options);
        assert!(report.strategy("frwr").unwrap().works());
        assert!(report.strategy("fmr").unwrap().works());
        let report = run(&device);
        assert!(report.strategy("frwr").unwrap().works());
        assert_eq!(live(&device), [0; 7]);
    }
}
