//! Relaxed ordering: asked for where it was wanted and can be had, and nowhere else.

use memreg_core::DmaBuf;
use memreg_core::device::fault::Faulty;
use memreg_core::device::sim::Fabric;
use memreg_core::device::trace::{Call, Trace, Traced};
use memreg_core::device::{Caps, RelaxedOrdering, WrOp};
use memreg_core::memreg::MemReg;
use memreg_core::transport::error::OpenError;
use memreg_core::transport::{OpenOptions, Transport};
use memreg_core::types::{Access, Grant};
use memreg_strategies::{Fmr, Frwr};

fn caps(relaxed_ordering: bool, relaxed_ordering_always: bool) -> Caps {
    Caps { relaxed_ordering, relaxed_ordering_always, ..Caps::default() }
}

fn open(caps: Caps, relaxed_ordering: RelaxedOrdering) -> Result<(), OpenError> {
    let node = Fabric::new(1).add_node("mlx9", caps);
    let options = OpenOptions { relaxed_ordering, ..OpenOptions::default() };
    Transport::open(node, Fmr::new(), &options).map(drop)
}

/// The rights of every registration that one exposure costs.
fn rights<S: MemReg>(strategy: S, wanted: RelaxedOrdering) -> Vec<Access> {
    let fabric = Fabric::new(1);
    let (trace, plan) = (Trace::new(), memreg_core::device::fault::FaultPlan::new());
    let node = Faulty::new(fabric.add_node("owner", caps(true, false)), plan);
    let node = Traced::new(node, trace.clone());
    let peer = fabric.add_node("peer", Caps::default());
    let options = OpenOptions { relaxed_ordering: wanted, ..OpenOptions::default() };
    let mut owner = Transport::open(node, strategy, &options).unwrap();
    let mut peer = Transport::open(peer, Fmr::new(), &OpenOptions::default()).unwrap();
    memreg_core::drive::connect_pair(&mut owner, &mut peer).unwrap();
    trace.take();
    let _exposed = owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    owner.flush().unwrap();
    let of = |c: Call| match c {
        Call::RegMr(_, access) => vec![access],
        Call::PostSend(wrs, _) => wrs
            .iter()
            .filter_map(|w| if let WrOp::RegMr { access, .. } = w.op { Some(access) } else { None })
            .collect(),
        _ => vec![],
    };
    trace.take().into_iter().flat_map(of).collect()
}

#[test]
fn b58_relaxed_ordering_is_asked_for_where_it_is_wanted_and_changes_no_right() {
    let write = Grant::PeerWrites.access();
    for wanted in [RelaxedOrdering::Try, RelaxedOrdering::Require] {
        assert_eq!(rights(Fmr::new(), wanted), [write | Access::RELAXED_ORDERING]);
        assert_eq!(rights(Frwr::new(), wanted), [write | Access::RELAXED_ORDERING]);
    }
    for wanted in [RelaxedOrdering::Auto, RelaxedOrdering::Off] {
        assert_eq!(rights(Fmr::new(), wanted), [write]);
    }
}

#[test]
fn b58_without_it_try_works_and_require_is_an_error_at_open() {
    open(caps(false, false), RelaxedOrdering::Try).unwrap();
    let e = open(caps(false, false), RelaxedOrdering::Require).unwrap_err();
    assert!(e.to_string().contains("mlx9: device.relaxed_ordering = \"require\""), "{e}");
}

#[test]
fn b59_off_on_a_device_that_always_relaxes_is_a_conflict_at_open_that_names_both() {
    let e = open(caps(true, true), RelaxedOrdering::Off).unwrap_err();
    assert_eq!(
        e.to_string(),
        "mlx9: device.relaxed_ordering = \"off\" cannot be had: the device has relaxed keys only"
    );
    for works in [RelaxedOrdering::Auto, RelaxedOrdering::Try, RelaxedOrdering::Require] {
        open(caps(true, true), works).unwrap();
    }
}
