//! Opening: sizes that fit every device, and every failure undone.

use crate::rig::Rig;
use memreg_core::DmaBuf;
use memreg_core::device::fault::{FaultPlan, Faulty};
use memreg_core::device::sim::{Fabric, SimDevice};
use memreg_core::device::{Caps, Verb, errno};
use memreg_core::memreg::MemReg;
use memreg_core::sizing::Ask;
use memreg_core::transport::error::OpenError;
use memreg_core::transport::{OpenOptions, State, Transport};
use memreg_core::types::{Grant, Tick};
use memreg_strategies::{Fmr, Frwr, Physical};

type Made = Box<dyn MemReg>;

fn strategies() -> [(fn() -> Made, Caps); 4] {
    let list = Caps { sg_gaps: true, ..Caps::default() };
    let windows = Caps { max_fast_reg_page_list_len: 0, mem_window_type_2b: true, ..list.clone() };
    let windows = Caps { max_mw: 1000, sg_gaps: false, ..windows };
    [
        (|| Box::new(Frwr::default()), list.clone()),
        (|| Box::new(Frwr::default()), windows),
        (|| Box::new(Fmr::default()), list.clone()),
        (|| Box::new(Physical::new(true)), list),
    ]
}

fn open(
    device: Faulty<SimDevice>,
    strategy: Made,
) -> Result<Transport<Faulty<SimDevice>, Made>, OpenError> {
    let ask = Ask { credits: 2, danger_trust_peer: true, ..Ask::default() };
    Transport::open(device, strategy, &OpenOptions { ask, ..OpenOptions::default() })
}

#[test]
fn h_44_every_step_of_the_setup_fails_in_turn_and_leaves_nothing() {
    let verbs = [
        Verb::AllocPd,
        Verb::CreateCq,
        Verb::CreateQp,
        Verb::ModifyQp,
        Verb::DmaMap,
        Verb::RegMr,
        Verb::AllocMr,
        Verb::AllocMw,
    ];
    let mut failures = 0;
    for (strategy, caps) in strategies() {
        for verb in verbs {
            for nth in 1.. {
                let node = Fabric::new(1).add_node("n", caps.clone());
                let plan = FaultPlan::new();
                plan.fail_nth(verb, nth, 1, errno::ENOMEM);
                let opened = open(Faulty::new(node.clone(), plan), strategy());
                if opened.is_ok() {
                    break;
                }
                failures += 1;
                let c = node.counters();
                let left = (c.pds, c.cqs, c.qps, c.mrs, c.mws, c.mapped_ranges);
                assert_eq!(left, (0, 0, 0, 0, 0, 0), "{verb:?} {nth}");
                open(Faulty::new(node, FaultPlan::new()), strategy()).unwrap();
            }
        }
    }
    assert!(failures >= 30, "{failures}");
}

#[test]
fn h_44_every_step_of_connecting_fails_in_turn_and_can_be_tried_again() {
    for verb in [Verb::QueryQp, Verb::PostRecv, Verb::ModifyQp] {
        let mut rig = Rig::unconnected(Frwr::default(), Caps::default(), Ask::default());
        rig.plan.fail(verb, 1, errno::ENOMEM);
        let failed = memreg_core::drive::connect_pair(&mut rig.owner, &mut rig.peer);
        assert!(failed.is_err(), "{verb:?}");
        rig.settle();
        if verb == Verb::QueryQp {
            assert_eq!(rig.owner.state(), &State::Ready, "nothing has happened");
        }
        rig.reconnect();
        let (e, s) = rig.exposed(64, 4, Grant::PeerReads);
        assert_eq!(rig.peer_read(&s, 0, 64).unwrap(), [4; 64]);
        rig.back(e);
        rig.assert_clean();
    }
}

#[test]
fn h_42_the_largest_payload_fits_at_the_worst_offset_on_every_page_list() {
    for (list, regions) in [(16, 16), (30, 11), (64, 7), (256, 4), (257, 3), (512, 3)] {
        let caps = Caps { max_fast_reg_page_list_len: list, ..Caps::default() };
        let mut rig = Rig::new(Frwr::default(), caps, Ask::default());
        assert_eq!(rig.owner.limits().regions_per_request, regions);
        let most = rig.owner.limits().max_payload_bytes as usize;
        assert_eq!(most, if list == 16 { 224 * 4096 } else { 1 << 20 });
        let buf = DmaBuf::new(most + 4096).unwrap();
        let e = rig.owner.expose((buf, 4095..most + 4095), Grant::PeerReads).unwrap();
        assert!(rig.owner.segments(&e).unwrap().len() <= regions as usize);
        rig.owner.flush().unwrap();
        rig.back(e);
        rig.assert_clean();
    }
}

#[test]
fn h_43_the_depth_is_what_an_operation_needs_not_what_is_advertised() {
    let caps = Caps { max_fast_reg_page_list_len: 65_535, max_sge_rd: 30, ..Caps::default() };
    let rig = Rig::new(Frwr::default(), caps, Ask::default());
    assert_eq!(rig.owner.limits().page_list_depth, 257);
}

#[test]
fn phy_05_physical_makes_nothing_ahead_and_has_nothing_to_recover() {
    let node = Fabric::new(1).add_node("n", Caps::default());
    let made: Made = Box::new(Physical::new(true));
    let mut t = open(Faulty::new(node.clone(), FaultPlan::new()), made).unwrap();
    assert_eq!((t.strategy_name(), t.limits().remote_invalidation), ("physical", false));
    let c = node.counters();
    assert_eq!((c.fast_mrs, c.mws, c.mrs), (0, 0, 4), "messages, and one key a direction");
    assert_eq!(t.recover(usize::MAX), Ok(0));
    t.disconnect();
    while !matches!(t.state(), State::Down(_)) {
        let _ = node.fabric().step();
        t.poll(Tick(1)).unwrap();
    }
    t.reconnect().unwrap();
    assert_eq!(node.counters().mrs, 4);
}
