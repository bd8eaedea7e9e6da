//! Memory that is mapped for reading only: what works with it, and what is refused by name.

use crate::rig::*;
use memreg_core::DmaBuf;
use memreg_core::device::trace::Call;
use memreg_core::device::{Caps, WcStatus};
use memreg_core::memreg::MemReg;
use memreg_core::sizing::Ask;
use memreg_core::transport::error::Refusal;
use memreg_core::transport::{Reply, State};
use memreg_core::types::{Access, Grant};
use memreg_strategies::{Fmr, Frwr, Physical};

fn constant() -> DmaBuf {
    DmaBuf::read_only(&[7; 5000]).unwrap()
}

/// A peer reads it; the rights asked of the device.
fn read_by_the_peer<S: MemReg>(strategy: S, caps: Caps) -> Vec<Access> {
    let ask = Ask { danger_trust_peer: true, credits: 2, ..Ask::default() };
    let mut rig = Rig::new(strategy, caps, ask);
    let e = rig.owner.expose((constant(), 100..4200), Grant::PeerReads).unwrap();
    rig.owner.flush().unwrap();
    rig.settle();
    let s = rig.owner.segments(&e).unwrap()[0];
    assert_eq!(rig.peer_read(&s, 0, 4100).unwrap(), [7; 4100]);
    let back = rig.back(e).into_first().unwrap();
    assert!(back.is_read_only() && back[..] == [7; 5000]);
    let made = |c: Call| if let Call::RegMr(_, access) = c { Some(access) } else { None };
    rig.trace.take().into_iter().filter_map(made).collect()
}

#[test]
fn b55_a_peer_reads_memory_that_is_mapped_for_reading() {
    assert_eq!(read_by_the_peer(Fmr::new(), Caps::default()), [Access::REMOTE_READ]);
    assert_eq!(read_by_the_peer(Frwr::new(), Caps::default()), [], "a page list needs no MR");
    assert_eq!(read_by_the_peer(Physical::new(true), Caps::default()), [], "it is copied");
}

#[test]
fn b55_rights_to_write_are_refused_as_read_only_and_not_as_out_of_memory() {
    let windows = Caps {
        max_fast_reg_page_list_len: 0,
        mem_window_type_2b: true,
        max_mw: 64,
        ..Caps::default()
    };
    let mut rig = Rig::new(Frwr::new(), windows, Ask::default());
    let e = rig.owner.expose(constant(), Grant::PeerReads).unwrap_err();
    assert_eq!(
        e.to_string(),
        "memory is read-only (item 0), and a window onto it (strategy fmr needs none) needs the \
         right to write"
    );
    let mut rig = Rig::frwr();
    let list = [(DmaBuf::new(8).unwrap(), 0..8), (constant(), 0..8)];
    let e = rig
        .owner
        .expose(list.into_iter().collect::<memreg_core::transport::Buffers>(), Grant::PeerWrites);
    let e = e.unwrap_err();
    assert_eq!(e.why, Refusal::ReadOnly { index: 1, what: "a grant of writing" });
    assert_eq!(e.buffers.count(), 2, "they come back");
    assert!(e.to_string().starts_with("memory is read-only (item 1)"), "{e}");
    let (exposed, segment) = rig.exposed(64, 1, Grant::PeerReads);
    let segment_of_peer = segment;
    let e = rig.peer.read(&segment_of_peer, 0, (constant(), 0..64)).unwrap_err();
    assert_eq!(e.why, Refusal::ReadOnly { index: 0, what: "a read into it" });
    rig.back(exposed);
    assert_eq!(rig.owner.state(), &State::Up);
    rig.assert_clean();
}

#[test]
fn b56_a_source_of_writes_is_registered_without_any_right() {
    let mut rig = Rig::new(Fmr::new(), Caps::default(), Ask::default());
    // The traced end writes, from constant memory, into what the other end grants.
    let exposed = rig.peer.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    let segment = rig.peer.segments(&exposed).unwrap()[0];
    let op = rig.owner.write(&segment, 0, (constant(), 1..65)).unwrap();
    rig.settle();
    let done = rig.owner.take(op).unwrap();
    assert_eq!(done.result, Ok(64));
    let source = done.buffers.into_first().unwrap();
    let made = |c: Call| if let Call::RegMr(_, access) = c { Some(access) } else { None };
    let rights: Vec<_> = rig.trace.take().into_iter().filter_map(made).collect();
    assert_eq!(rights, [Access::empty()]);
    // Registered it stays, with no right; granting it widens nothing.
    let e = rig.owner.expose(source, Grant::PeerReads).unwrap();
    rig.owner.send(b"x", Reply::InvalidatesNothing).unwrap();
    rig.settle();
    let s = rig.owner.segments(&e).unwrap()[0];
    let forged = memreg_core::Segment { grant: Grant::PeerWrites, ..s };
    assert_eq!(rig.probe(&forged), WcStatus::RemAccessErr);
}
