//! The strategy against the suite that every strategy must pass, and what is its own.
#![allow(clippy::unwrap_used, reason = "a test")]

use memreg_conformance::{Subject, assert_passes};
use memreg_core::device::Caps;
use memreg_core::device::sim::{Fabric, SimDevice, profile};
use memreg_core::drive::{connect_pair, settle};
use memreg_core::plugin::{OptionValue, Options};
use memreg_core::sizing::Ask;
use memreg_core::transport::{NoReply, OpenOptions};
use memreg_core::{DmaBuf, Grant, MemReg, Tick, Transport};
use plugin_strategy::{ENTRY, THRESHOLD_BYTES, Threshold};

#[test]
fn threshold_on_generic() {
    let subject =
        Subject::new("threshold on generic", Caps::default(), || Threshold::new(THRESHOLD_BYTES));
    assert_passes(&subject);
}

#[test]
fn threshold_on_shallow_page_lists() {
    let caps = profile::builtin("shallow").unwrap().caps;
    let subject = Subject::new("threshold on shallow", caps, || Threshold::new(THRESHOLD_BYTES));
    assert_passes(&subject);
}

#[test]
fn a_queue_sized_for_small_operations_holds_more_of_them() {
    let caps = Caps { max_fast_reg_page_list_len: 16, max_qp_wr: 128, ..Caps::default() };
    let credits = |threshold| {
        let limits = Threshold::new(threshold).open(&caps, &Ask::default()).unwrap();
        assert_eq!(limits.max_payload_bytes, 1 << 20);
        (limits.wr_per_request, limits.credits)
    };
    assert_eq!(credits(1 << 20), (33, 3));
    assert_eq!(credits(48 << 10), (7, 18));
}

#[test]
fn the_size_decides_the_way() {
    let fabric = Fabric::new(1);
    let mut owner = open(&fabric, "owner");
    let mut peer = open(&fabric, "peer");
    connect_pair(&mut owner, &mut peer).unwrap();
    for (len, by_wr) in [(4096, true), (4097, false)] {
        let before = (owner.stats().invalidations, owner.device().counters().reg_mr_calls);
        let exposed = owner.expose(DmaBuf::new(len).unwrap(), Grant::PeerWrites).unwrap();
        owner.flush().unwrap();
        settle(Tick(0), &mut [&mut owner, &mut peer]).unwrap();
        owner.revoke(&exposed, NoReply::Unmarked).unwrap();
        settle(Tick(0), &mut [&mut owner, &mut peer]).unwrap();
        owner.reclaim(exposed).unwrap();
        let after = (owner.stats().invalidations, owner.device().counters().reg_mr_calls);
        let used = (after.0 - before.0, after.1 - before.1);
        assert_eq!(used, if by_wr { (1, 0) } else { (0, 1) }, "{len} bytes");
    }
}

fn open(fabric: &Fabric, name: &str) -> Transport<SimDevice, Threshold> {
    let node = fabric.add_node(name, Caps::default());
    Transport::open(node, Threshold::new(4096), &OpenOptions::default()).unwrap()
}

#[test]
fn a_wrong_option_is_named() {
    let text = |name: &str, value: OptionValue| {
        let options: Options = [(name.to_owned(), value)].into();
        (ENTRY.build)(&options).err().unwrap_or_default()
    };
    assert_eq!(text("threshold_bytes", OptionValue::Int(1)), "");
    for (value, said) in [
        (OptionValue::Text("64KiB".into()), "\"64KiB\" is text"),
        (OptionValue::Bool(true), "true is a truth value"),
        (OptionValue::Float(1.5), "1.5 is a fraction"),
        (OptionValue::Int(0), "0 is not in 1..=1099511627776"),
        (OptionValue::Int(-1), "-1 is not in"),
    ] {
        let got = text("threshold_bytes", value);
        assert!(got.starts_with("option threshold_bytes: ") && got.contains(said), "{got}");
    }
    let got = text("treshold_bytes", OptionValue::Int(1));
    assert_eq!(got, "option treshold_bytes: not known; known are threshold_bytes");
}
