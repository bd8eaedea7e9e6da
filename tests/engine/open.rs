//! Opening on a device that takes less than it announces.

use memreg_core::Transport;
use memreg_core::device::Caps;
use memreg_core::device::sim::{Fabric, SimDevice};
use memreg_core::sizing::{Ask, SizeError};
use memreg_core::transport::OpenOptions;
use memreg_core::transport::error::OpenError;
use memreg_strategies::Frwr;

fn open(caps: Caps, options: &OpenOptions) -> Result<Transport<SimDevice, Frwr>, OpenError> {
    let node = Fabric::new(1).add_node("n", caps);
    Transport::open(node, Frwr::default(), options)
}

#[test]
fn b36_open_steps_down_to_the_depth_that_the_device_takes() {
    // 4096 announced, but only 1024 for WRs of more than four SGEs.
    let wide =
        Caps { max_qp_wr: 4096, max_sge: 8, wide_sge: 4, max_qp_wr_wide: 1024, ..Caps::default() };
    let ask = Ask { credits: 585, ..Ask::default() };
    let options = OpenOptions { ask, ..OpenOptions::default() };
    let t = open(wide.clone(), &options).unwrap();
    let l = t.limits();
    assert!(l.max_send_wr <= 1024, "{l:?}");
    assert_eq!(l.max_send_wr, l.credits * l.wr_per_request + 1);
    let note = l.clamped.iter().find(|c| c.what == "max_send_wr").unwrap();
    assert_eq!((note.asked, note.got), (4096, u64::from(l.max_send_wr)));
    assert!(l.clamped.iter().any(|c| c.what == "credits" && c.asked == 585));
    assert_eq!(t.send_queue().1 as u32, l.max_send_wr);
    println!("asked {} / got {}", note.asked, note.got);

    let tiny = Caps { max_qp_wr_wide: 4, ..wide };
    let Err(e) = open(tiny, &options) else { panic!("one operation does not fit") };
    assert!(matches!(e, OpenError::Size { source: SizeError::Refused { .. }, .. }), "{e}");
}

#[test]
fn b35_inline_defaults_to_what_the_device_grants_and_a_named_size_is_blamed() {
    let caps = Caps { max_inline_data: 101, ..Caps::default() };
    open(caps.clone(), &OpenOptions::default()).unwrap();
    let named = OpenOptions { max_inline_data: Some(220), ..OpenOptions::default() };
    let e = open(caps.clone(), &named).unwrap_err();
    assert!(matches!(e, OpenError::Inline { .. }));
    let text = e.to_string();
    for part in ["897 send", "128 receive", "16 SGEs", "220 inline", "101", "max_inline_data"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let fits = OpenOptions { max_inline_data: Some(64), ..OpenOptions::default() };
    open(caps, &fits).unwrap();
}

#[test]
fn b38_sizes_come_from_the_plan_and_never_from_a_constant() {
    let t = open(Caps::default(), &OpenOptions::default()).unwrap();
    assert_eq!(t.send_queue().1 as u32, t.limits().max_send_wr);
    let e = open(Caps { max_qp_wr: 1, ..Caps::default() }, &OpenOptions::default()).unwrap_err();
    assert!(matches!(e, OpenError::Size { .. }), "{e}");
}
