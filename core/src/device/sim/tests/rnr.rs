//! SENDs that find no receive at the peer.

use super::rig::*;
use crate::device::sim::Fabric;
use crate::device::sim::Syndrome;
use crate::device::{AsyncEvent, Caps, Device, QpState, RtsAttrs, WcStatus, errno};

const OK: WcStatus = WcStatus::Success;

/// Two connected QPs; the first tries `rnr_retry` times again.
fn pair_trying(rnr_retry: u8) -> (Side, Side) {
    let fabric = Fabric::new(1);
    let a = Side::open(fabric.add_node("a", Caps::default()), DEPTHS, 64);
    let b = Side::open(fabric.add_node("b", Caps::default()), DEPTHS, 64);
    a.connect_with(&b, RtsAttrs { rnr_retry });
    b.connect(&a);
    (a, b)
}

#[test]
fn one_try_a_step_and_then_the_sender_is_in_error() {
    for retries in 0..7 {
        let (a, b) = pair_trying(retries);
        a.post(1, |c| send(c, b"x"));
        a.post(2, |c| send(c, b"y"));
        for step in 0..retries {
            assert!(a.dev.step(), "a try is progress, step {step} of {retries}");
            assert_eq!((a.poll(), a.dev.qp_state(a.qp)), (vec![], Ok(QpState::Rts)));
        }
        assert!(a.dev.step());
        let wcs = a.poll();
        assert_eq!((status(&wcs[0]), wcs.len()), (WcStatus::RnrRetryExcErr, 1), "{retries}");
        assert_eq!(why(&wcs), Some(Syndrome::NoReceive));
        assert_eq!(a.dev.qp_state(a.qp), Ok(QpState::Err));
        assert_eq!(a.outcome(), [(2, WcStatus::WrFlushErr)]);
        assert_eq!(b.dev.qp_state(b.qp), Ok(QpState::Rts), "the receiver has done no wrong");
        assert_eq!(b.dev.next_event(b.qp), None::<AsyncEvent>);
    }
}

#[test]
fn a_receive_in_time_gives_the_next_send_all_its_tries() {
    let (a, b) = pair_trying(2);
    let inbox = b.mem(8, RW);
    for round in 0..5 {
        a.post(round, |c| send(c, b"x"));
        assert!(a.dev.step() && a.dev.step());
        b.recv(100 + round, &inbox, 8);
        assert_eq!(a.outcome(), [(round, OK)], "the third try");
        assert_eq!(b.outcome(), [(100 + round, OK)]);
    }
}

#[test]
fn seven_is_without_end_and_waiting_is_not_progress() {
    assert_eq!(RtsAttrs::default().rnr_retry, 7);
    let (a, b) = pair_trying(7);
    let inbox = b.mem(8, RW);
    a.post(1, |c| send(c, b"x"));
    for _ in 0..1000 {
        assert!(!a.dev.step());
    }
    b.recv(2, &inbox, 8);
    assert_eq!(a.outcome(), [(1, OK)]);
}

#[test]
fn waiting_for_the_peer_to_connect_uses_up_nothing() {
    let fabric = Fabric::new(1);
    let a = Side::open(fabric.add_node("a", Caps::default()), DEPTHS, 64);
    let b = Side::open(fabric.add_node("b", Caps::default()), DEPTHS, 64);
    a.connect_with(&b, RtsAttrs { rnr_retry: 0 });
    a.post(1, |c| send(c, b"x"));
    assert_eq!(fabric.run(100), 0);
    let inbox = b.mem(8, RW);
    b.recv(2, &inbox, 8);
    b.connect(&a);
    assert_eq!(a.outcome(), [(1, OK)]);
}

#[test]
fn writes_need_no_receive() {
    let (a, b) = pair_trying(0);
    let (src, dst) = (a.mem(8, RW), b.mem(8, RW));
    a.post(1, |c| write(c, src.sge(0, 8), dst.addr.0, dst.keys.rkey));
    assert_eq!(a.outcome(), [(1, OK)]);
}

#[test]
fn eight_tries_do_not_exist() {
    let (a, b) = pair();
    let fresh = a.sibling(a.pd);
    let peer = b.dev.endpoint(b.qp).unwrap();
    let e = a.dev.qp_to_rts(fresh.qp, peer, RtsAttrs { rnr_retry: 8 }).unwrap_err();
    assert_eq!(e.errno, errno::EINVAL);
    assert_eq!(a.dev.qp_state(fresh.qp), Ok(QpState::Init), "nothing has changed");
}
