//! Send, receive and completion queues: slots, order, signals, flushes.

use super::rig::*;
use crate::device::sim::Syndrome;
use crate::device::{
    AsyncEvent, Caps, Device, FastMrKind, LimitInfo, Payload, PostError, QpCaps, QpState, RecvWr,
    RtsAttrs, Verb, Wc, WcStatus, Wr, WrChain, WrOp, errno,
};
use crate::types::{Access, WrId};

const OK: WcStatus = WcStatus::Success;
const FLUSH: WcStatus = WcStatus::WrFlushErr;

/// A chain of `n` empty unsignaled writes, the last signaled if asked.
fn writes(first_id: u64, n: u64, last_signaled: bool) -> WrChain {
    let mut chain = WrChain::new();
    for i in 0..n {
        let payload = Payload::Inline(chain.add_inline(&[]));
        let rkey = crate::types::Rkey::from_bits(1);
        let op = WrOp::RdmaWrite { payload, remote_addr: 0, rkey };
        let signaled = last_signaled && i + 1 == n;
        chain.push(Wr { wr_id: WrId(first_id + i), signaled, op });
    }
    chain
}

fn limit_of(e: PostError) -> (usize, i32, LimitInfo) {
    (e.posted, e.cause.errno, e.cause.limit.unwrap())
}

#[test]
fn b30_three_refusals_are_three_errors() {
    let (a, _b) = pair();
    a.dev.post_send(a.qp, &writes(0, 8, false)).unwrap();
    let e = a.dev.post_send(a.qp, &writes(8, 1, true)).unwrap_err();
    let full = LimitInfo { what: "max_send_wr", need: 1, limit: 8, in_use: 8 };
    assert_eq!(limit_of(e), (0, errno::ENOMEM, full));
    assert_eq!(e.cause.kind(), crate::device::DeviceErrorKind::QueueFull);

    let (a, _b) = pair();
    let mem = a.mem(64, RW);
    let five = chain(1, true, |c| WrOp::Send(Payload::Sges(c.add_sges([mem.sge(0, 1); 5]))));
    let info = LimitInfo { what: "max_sge", need: 5, limit: 4, in_use: 0 };
    assert_eq!(limit_of(a.dev.post_send(a.qp, &five).unwrap_err()), (0, errno::EINVAL, info));
    let long = chain(1, true, |c| send(c, &[0; 100]));
    let info = LimitInfo { what: "max_inline_data", need: 100, limit: 64, in_use: 0 };
    assert_eq!(limit_of(a.dev.post_send(a.qp, &long).unwrap_err()), (0, errno::EINVAL, info));
    assert_eq!((a.dev.sq_in_use(a.qp), a.dev.counters().send_doorbells), (Some(0), 0));
}

#[test]
fn post_accepts_the_prefix_that_fits() {
    let (a, _b) = pair();
    a.dev.post_send(a.qp, &writes(0, 5, false)).unwrap();
    let e = a.dev.post_send(a.qp, &writes(5, 7, true)).unwrap_err();
    assert_eq!((e.posted, e.cause.errno), (3, errno::ENOMEM));
    assert_eq!(a.dev.sq_in_use(a.qp), Some(8));
    a.run();
    assert_eq!(a.poll(), [], "the signaled one was refused");
    assert_eq!(a.dev.counters().rdma_writes, 8);
    assert_eq!(a.dev.sq_in_use(a.qp), Some(8), "ran, and still in their slots");
}

#[test]
fn h_57_unsignaled_wrs_hold_their_slots_until_a_later_wc_is_polled() {
    let (a, _b) = pair();
    a.dev.post_send(a.qp, &writes(0, 7, false)).unwrap();
    a.dev.post_send(a.qp, &writes(7, 1, true)).unwrap();
    a.run();
    assert_eq!(a.dev.sq_in_use(a.qp), Some(8), "completed, not yet polled");
    assert_eq!(a.outcome(), [(7, OK)]);
    assert_eq!(a.dev.sq_in_use(a.qp), Some(0));
    for round in 0..100 {
        a.dev.post_send(a.qp, &writes(round * 4, 4, true)).unwrap();
        assert_eq!(a.outcome(), [(round * 4 + 3, OK)]);
    }
    assert_eq!(a.dev.counters().sq_in_use_max, 8);
}

#[test]
fn receives_hold_their_slots_until_polled() {
    let (a, b) = pair();
    let inbox = b.mem(64, RW);
    for i in 0..8 {
        b.recv(i, &inbox, 64);
    }
    let sge = inbox.sge(0, 1);
    let more = [RecvWr { wr_id: WrId(8), sge }];
    let e = b.dev.post_recv(b.qp, &more).unwrap_err();
    let full = LimitInfo { what: "max_recv_wr", need: 1, limit: 8, in_use: 8 };
    assert_eq!(limit_of(e), (0, errno::ENOMEM, full));
    a.post(0, |c| send(c, b"m"));
    a.run();
    assert!(b.dev.post_recv(b.qp, &more).is_err());
    assert_eq!(b.outcome(), [(0, OK)]);
    b.dev.post_recv(b.qp, &more).unwrap();
}

#[test]
fn depths_are_granted_rounded_up_within_the_limit() {
    let caps = Caps { max_qp_wr: 100, ..Caps::default() };
    let (a, _b) = pair_with(caps, DEPTHS, 64);
    let ask = |send, recv| {
        let ask = QpCaps { max_send_wr: send, max_recv_wr: recv, ..DEPTHS };
        a.dev.create_qp(a.pd, a.cq, ask).map(|(_, c)| (c.max_send_wr, c.max_recv_wr))
    };
    assert_eq!(ask(5, 1), Ok((8, 1)));
    assert_eq!(ask(64, 65), Ok((64, 100)));
    assert_eq!(ask(100, 0), Ok((100, 0)));
    let e = ask(101, 1).unwrap_err();
    let info = LimitInfo { what: "max_qp_wr", need: 101, limit: 100, in_use: 0 };
    assert_eq!((e.verb, e.errno, e.limit), (Verb::CreateQp, errno::EINVAL, Some(info)));
}

#[test]
fn message_reaches_the_oldest_receive() {
    let (a, b) = pair();
    let (x, y) = (b.mem(8, RW), b.mem(8, RW));
    b.recv(1, &x, 8);
    b.recv(2, &y, 8);
    a.post(5, |c| send(c, b"first"));
    a.post(6, |c| send(c, b"2nd"));
    assert_eq!(a.outcome(), [(5, OK), (6, OK)]);
    let lens: Vec<u32> = b
        .poll()
        .iter()
        .map(|wc| match wc {
            Wc::Success(s) => s.byte_len,
            Wc::Error(e) => panic!("{e}"),
        })
        .collect();
    assert_eq!(y.read(0, 4), b"2nd\0");
    assert_eq!((lens, x.read(0, 5)), (vec![5, 3], b"first".to_vec()));
}

#[test]
fn send_waits_for_a_receive_and_holds_up_what_follows() {
    let (a, b) = pair();
    let inbox = b.mem(8, RW);
    a.post(1, |c| send(c, b"x"));
    a.dev.post_send(a.qp, &writes(2, 1, true)).unwrap();
    assert_eq!(a.dev.fabric().run(100), 0, "waiting is not progress");
    assert_eq!(a.poll(), []);
    b.recv(9, &inbox, 8);
    assert_eq!(a.outcome(), [(1, OK), (2, OK)]);
}

#[test]
fn wr_waits_until_the_peer_is_connected() {
    let (a, b) = pair();
    let (a2, b2) = (a.sibling(a.pd), b.sibling(b.pd));
    let inbox = b2.mem(8, RW);
    b2.recv(1, &inbox, 8);
    a2.connect(&b2);
    a2.post(2, |c| send(c, b"early"));
    assert_eq!(a2.dev.fabric().run(100), 0);
    b2.connect(&a2);
    assert_eq!(a2.outcome(), [(2, OK)]);
    // A QP that is connected to somebody else does not answer.
    let a3 = a.sibling(a.pd);
    a3.connect(&b2);
    a3.post(3, |c| send(c, b"stray"));
    assert_eq!(a3.outcome(), [(3, WcStatus::RetryExcErr)]);
    assert_eq!(b2.dev.qp_state(b2.qp), Ok(QpState::Rts));
}

#[test]
fn message_longer_than_the_receive_fails_at_both_ends() {
    let (a, b) = pair();
    let inbox = b.mem(64, RW);
    b.recv(1, &inbox, 4);
    b.recv(2, &inbox, 64);
    a.post(3, |c| send(c, b"12345"));
    a.post(4, |c| send(c, b"1"));
    assert_eq!(a.outcome(), [(3, WcStatus::RemInvReqErr), (4, FLUSH)]);
    assert_eq!(b.outcome(), [(1, WcStatus::LocLenErr), (2, FLUSH)]);
    assert_eq!(inbox.read(0, 5), [0; 5]);
}

#[test]
fn receive_into_memory_that_is_not_writable_fails_at_both_ends() {
    let (a, b) = pair();
    let inbox = b.mem(64, Access::REMOTE_READ);
    b.recv(1, &inbox, 64);
    a.post(3, |c| send(c, b"12345"));
    assert_eq!(a.outcome(), [(3, WcStatus::RemOpErr)]);
    b.run();
    let wcs = b.poll();
    assert_eq!((status(&wcs[0]), why(&wcs)), (WcStatus::LocProtErr, Some(Syndrome::MissingRight)));
}

#[test]
fn error_flushes_sends_then_receives_in_order() {
    let (a, _b) = pair();
    let mem = a.mem(8, RW);
    for i in 10..13 {
        a.recv(i, &mem, 8);
    }
    a.dev.post_send(a.qp, &writes(0, 2, false)).unwrap();
    a.run();
    a.dev.post_send(a.qp, &writes(2, 3, false)).unwrap();
    a.dev.qp_to_err(a.qp).unwrap();
    a.dev.post_send(a.qp, &writes(5, 1, false)).unwrap();
    let got = a.outcome();
    // 0 and 1 succeeded unsignaled before: no WC, then or later.
    let wanted: Vec<_> = [2, 3, 4, 5, 10, 11, 12].map(|id| (id, FLUSH)).into();
    assert_eq!(got, wanted);
    assert_eq!(a.dev.sq_in_use(a.qp), Some(0));
    a.recv(13, &mem, 8);
    a.dev.post_send(a.qp, &writes(6, 1, true)).unwrap();
    assert_eq!(a.outcome(), [(6, FLUSH), (13, FLUSH)]);
    assert_eq!(a.dev.counters().rdma_writes, 2);
}

#[test]
fn flushed_registration_did_not_run() {
    let (_a, b) = pair();
    let (mem, keys) = (b.mem(4096, RW), b.fast(1, FastMrKind::Pages));
    b.post(1, |c| reg(c, &keys, RW, 0, &[mem.page(0, 4096)]));
    b.dev.qp_to_err(b.qp).unwrap();
    assert_eq!(b.outcome(), [(1, FLUSH)]);
    assert_eq!(b.dev.counters().fast_mrs_valid, 0);
}

#[test]
fn failed_unsignaled_wr_has_a_wc() {
    let (a, b) = pair();
    let src = a.mem(8, RW);
    let stray = crate::types::Rkey::from_bits(77);
    a.post_quiet(1, |c| write(c, src.sge(0, 8), b.qp.0.into(), stray));
    assert_eq!(a.outcome(), [(1, WcStatus::RemAccessErr)]);
}

#[test]
fn posting_needs_the_right_state() {
    let (a, b) = pair();
    let mem = a.mem(8, RW);
    let recv = [RecvWr { wr_id: WrId(1), sge: mem.sge(0, 8) }];
    let (qp, _) = a.dev.create_qp(a.pd, a.cq, DEPTHS).unwrap();
    assert_eq!(a.dev.post_recv(qp, &recv).unwrap_err().cause.errno, errno::EINVAL);
    assert_eq!(a.dev.post_send(qp, &writes(0, 1, true)).unwrap_err().cause.errno, errno::EINVAL);
    assert!(a.dev.endpoint(qp).is_err(), "no address before INIT");
    assert_eq!(
        a.dev.qp_to_rts(qp, b.dev.endpoint(b.qp).unwrap(), RtsAttrs::default()).unwrap_err().errno,
        errno::EINVAL
    );
    a.dev.qp_to_init(qp).unwrap();
    assert_eq!(a.dev.qp_state(qp), Ok(QpState::Init));
    assert!(a.dev.qp_to_init(qp).is_err(), "INIT to INIT is not a transition here");
    a.dev.post_recv(qp, &recv).unwrap();
    assert_eq!(a.dev.post_send(qp, &writes(0, 1, true)).unwrap_err().cause.errno, errno::EINVAL);
    assert!(
        a.dev.qp_to_init(a.qp).is_err()
            && a.dev.qp_to_rts(a.qp, b.dev.endpoint(b.qp).unwrap(), RtsAttrs::default()).is_err()
    );
    a.dev.qp_to_err(qp).unwrap();
    a.dev.qp_to_err(qp).unwrap();
    assert!(a.dev.qp_to_init(qp).is_err());
    assert_eq!(a.outcome(), [(1, FLUSH)]);
}

#[test]
fn two_qps_interleave_wr_by_wr() {
    let (a, b) = pair();
    let (a2, b2) = (a.sibling(a.pd), b.sibling(b.pd));
    a2.connect(&b2);
    b2.connect(&a2);
    for i in 0..3 {
        a.dev.post_send(a.qp, &writes(i, 1, true)).unwrap();
        a2.dev.post_send(a2.qp, &writes(10 + i, 1, true)).unwrap();
    }
    assert_eq!(a.outcome(), [0, 10, 1, 11, 2, 12].map(|id| (id, OK)));
}

#[test]
fn b33_cq_overrun_loses_wcs_and_takes_its_qps_down() {
    let (a, _b) = pair_with(Caps::default(), DEPTHS, 2);
    let mem = a.mem(8, RW);
    a.recv(9, &mem, 8);
    for i in 0..3 {
        a.dev.post_send(a.qp, &writes(i, 1, true)).unwrap();
    }
    assert_eq!(a.outcome(), [(0, OK), (1, OK)]);
    assert_eq!(a.dev.qp_state(a.qp), Ok(QpState::Err));
    assert_eq!(a.dev.next_event(a.qp), Some(AsyncEvent::CqOverrun(a.cq)));
    assert_eq!(a.dev.next_event(a.qp), Some(AsyncEvent::QpFatal(a.qp)));
    assert_eq!(a.dev.next_event(a.qp), None);
    assert_eq!((a.dev.counters().wcs, a.dev.counters().wcs_lost), (2, 2));
    assert_eq!(a.outcome(), [], "the CQ stays dead");
}

#[test]
fn b33_cq_overrun_takes_down_every_qp_of_that_cq_and_no_other() {
    let (a, b) = pair_with(Caps::default(), DEPTHS, 2);
    let idle = a.sibling(a.pd);
    let (cq, _) = a.dev.create_cq(8).unwrap();
    let (apart, _) = a.dev.create_qp(a.pd, cq, DEPTHS).unwrap();
    for i in 0..3 {
        a.dev.post_send(a.qp, &writes(i, 1, true)).unwrap();
    }
    a.run();
    let events = |qp| std::iter::from_fn(|| a.dev.next_event(qp)).collect::<Vec<_>>();
    for qp in [a.qp, idle.qp] {
        assert_eq!(events(qp), [AsyncEvent::CqOverrun(a.cq), AsyncEvent::QpFatal(qp)]);
        assert_eq!(a.dev.qp_state(qp), Ok(QpState::Err));
    }
    assert_eq!((events(apart), a.dev.qp_state(apart)), (vec![], Ok(QpState::Reset)));
    assert_eq!(b.dev.qp_state(b.qp), Ok(QpState::Rts), "the peer is not told");
}

#[test]
fn b33_a_cq_of_both_depths_holds_every_flush() {
    let depths = QpCaps { max_send_wr: 160, max_recv_wr: 32, ..DEPTHS };
    let (a, _b) = pair_with(Caps { max_cqe: 4096, max_qp_wr: 160, ..Caps::default() }, depths, 192);
    let mem = a.mem(8, RW);
    for i in 0..32 {
        a.recv(1000 + i, &mem, 8);
    }
    a.dev.post_send(a.qp, &writes(0, 160, false)).unwrap();
    a.dev.qp_to_err(a.qp).unwrap();
    let got = a.outcome();
    assert!(got.len() == 192 && got.iter().all(|(_, status)| *status == FLUSH), "unsignaled too");
    assert_eq!((a.dev.counters().wcs_lost, a.dev.next_event(a.qp)), (0, None));

    let (a, _b) = pair_with(Caps { max_cqe: 128, ..Caps::default() }, DEPTHS, 128);
    let e = a.dev.create_cq(192).unwrap_err();
    let info = LimitInfo { what: "max_cqe", need: 192, limit: 128, in_use: 0 };
    assert_eq!((e.errno, e.limit), (errno::EINVAL, Some(info)));
}

#[test]
fn poll_gives_at_most_what_is_asked_and_appends() {
    let (a, _b) = pair();
    for i in 0..3 {
        a.dev.post_send(a.qp, &writes(i, 1, true)).unwrap();
    }
    a.run();
    let mut out = Vec::new();
    assert_eq!(a.dev.poll_cq(a.cq, 2, &mut out), Ok(2));
    assert_eq!(a.dev.sq_in_use(a.qp), Some(1));
    assert_eq!(a.dev.poll_cq(a.cq, 2, &mut out), Ok(1));
    assert_eq!(a.dev.poll_cq(a.cq, 2, &mut out), Ok(0));
    assert_eq!(out.iter().map(|wc| wc.wr_id().0).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn same_calls_give_the_same_wcs() {
    let play = || {
        let (a, b) = pair();
        let (src, target, inbox) = (a.mem(64, RW), b.mem(64, RW), b.mem(8, RW));
        b.recv(1, &inbox, 8);
        a.post(2, |c| write(c, src.sge(0, 64), target.addr.0, target.keys.rkey));
        a.post(3, |c| send(c, b"x"));
        a.post(4, |c| send(c, b"waits"));
        a.post(5, |_| WrOp::LocalInv(target.keys.rkey));
        a.run();
        b.dev.qp_to_err(b.qp).unwrap();
        a.run();
        (a.poll(), b.poll(), a.dev.counters(), b.dev.counters())
    };
    assert_eq!(play(), play());
}

#[test]
fn h_10_an_event_is_raised_by_what_comes_after_the_arming_and_once() {
    let (a, _b) = pair();
    a.dev.post_send(a.qp, &writes(0, 1, true)).unwrap();
    a.run();
    a.dev.arm_cq(a.cq).unwrap();
    assert_eq!(a.dev.wait_cq(a.cq, 1), Ok(false), "it was there before");
    assert_eq!(a.poll().len(), 1, "and only polling finds it");
    a.dev.post_send(a.qp, &writes(1, 1, true)).unwrap();
    assert_eq!(a.dev.wait_cq(a.cq, 1), Ok(true), "still armed");
    a.dev.post_send(a.qp, &writes(2, 1, true)).unwrap();
    assert_eq!(a.dev.wait_cq(a.cq, 1), Ok(false), "armed once, told once");
    assert_eq!(a.poll().len(), 2);
    let nothing = crate::types::CqId(999);
    assert_eq!(a.dev.arm_cq(nothing).unwrap_err().errno, errno::EINVAL);
    assert_eq!(a.dev.wait_cq(nothing, 1).unwrap_err().errno, errno::EINVAL);
}
