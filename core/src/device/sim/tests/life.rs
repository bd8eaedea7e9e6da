//! Ends of things: objects still in use, destroyed QPs, dead processes, removed devices.

use super::rig::*;
use crate::device::sim::SimCounters;
use crate::device::{
    AsyncEvent, Caps, Device, DeviceError, FastMrKind, QpState, RecvWr, RtsAttrs, Verb, WcStatus,
    errno,
};
use crate::mem::{DmaBuf, Fenced};
use crate::types::{Access, CqId, MrId, PdId, QpId, WrId};

const OK: WcStatus = WcStatus::Success;

fn errno_of<T>(result: Result<T, DeviceError>) -> i32 {
    result.map(drop).unwrap_err().errno
}

fn gauges(c: &SimCounters) -> [u64; 6] {
    [c.pds, c.cqs, c.qps, c.mrs, c.fast_mrs, c.mapped_ranges]
}

#[test]
fn objects_in_use_are_busy() {
    let (a, _b) = pair();
    let mem = a.mem(8, RW);
    let fast = a.fast(1, FastMrKind::Pages);
    assert_eq!(errno_of(a.dev.destroy_cq(a.cq)), errno::EBUSY);
    assert_eq!(errno_of(a.dev.dealloc_pd(a.pd)), errno::EBUSY);
    a.dev.destroy_qp(a.qp).unwrap();
    a.dev.destroy_cq(a.cq).unwrap();
    assert_eq!(errno_of(a.dev.dealloc_pd(a.pd)), errno::EBUSY, "two MRs are left");
    a.dev.dereg_mr(mem.keys.mr).unwrap();
    assert_eq!(errno_of(a.dev.dealloc_pd(a.pd)), errno::EBUSY, "one MR is left");
    a.dev.dereg_mr(fast.mr).unwrap();
    a.dev.dealloc_pd(a.pd).unwrap();
    assert!(a.dev.dma_unmap(&mem.bytes, mem.addr, Fenced::mint()).is_ok());
    assert_eq!(gauges(&a.dev.counters()), [0; 6]);
    assert_eq!(a.dev.counters().mapped_bytes, 0);
}

#[test]
fn unknown_objects_are_invalid() {
    let (a, _b) = pair();
    let gone = QpId(999);
    assert_eq!(errno_of(a.dev.dealloc_pd(PdId(9))), errno::EINVAL);
    assert_eq!(errno_of(a.dev.destroy_cq(CqId(9))), errno::EINVAL);
    assert_eq!(errno_of(a.dev.destroy_qp(gone)), errno::EINVAL);
    assert_eq!(errno_of(a.dev.dereg_mr(MrId(9))), errno::EINVAL);
    assert_eq!(errno_of(a.dev.qp_to_init(gone)), errno::EINVAL);
    assert_eq!(errno_of(a.dev.qp_to_err(gone)), errno::EINVAL);
    assert_eq!(errno_of(a.dev.qp_state(gone)), errno::EINVAL);
    assert_eq!(errno_of(a.dev.endpoint(gone)), errno::EINVAL);
    assert_eq!(errno_of(a.dev.poll_cq(CqId(9), 1, &mut Vec::new())), errno::EINVAL);
    assert_eq!(errno_of(a.dev.create_qp(PdId(9), a.cq, DEPTHS)), errno::EINVAL);
    assert_eq!(errno_of(a.dev.create_qp(a.pd, CqId(9), DEPTHS)), errno::EINVAL);
    assert_eq!(a.dev.next_event(gone), None);
    assert_eq!(a.dev.sq_in_use(gone), None);
    let chain = chain(1, true, |c| send(c, b"x"));
    assert_eq!(a.dev.post_send(gone, &chain).unwrap_err().cause.errno, errno::EINVAL);
}

#[test]
fn destroyed_qp_takes_its_wcs_along_and_its_peer_hears_of_it() {
    let (a, b) = pair();
    let inbox = b.mem(8, RW);
    b.recv(1, &inbox, 8);
    a.post(2, |c| send(c, b"x"));
    a.post(3, |c| send(c, b"waits"));
    a.run();
    b.dev.destroy_qp(b.qp).unwrap();
    assert_eq!(b.poll(), []);
    assert_eq!(a.dev.next_event(a.qp), Some(AsyncEvent::PeerGone(a.qp)));
    assert_eq!(a.outcome(), [(2, OK), (3, WcStatus::RetryExcErr)]);
    assert_eq!(a.dev.qp_state(a.qp), Ok(QpState::Err));
}

#[test]
fn a_new_qp_is_not_taken_for_the_destroyed_one() {
    let (a, b) = pair();
    b.dev.destroy_qp(b.qp).unwrap();
    let b2 = b.sibling(b.pd);
    b2.connect(&a);
    assert_ne!(b2.qp, b.qp);
    a.post(1, |c| send(c, b"x"));
    assert_eq!(a.outcome(), [(1, WcStatus::RetryExcErr)]);
}

#[test]
fn peer_death_is_an_event_and_its_memory_is_gone() {
    let (a, b) = pair();
    let (src, buf) = (a.mem(8, RW), DmaBuf::new(64).unwrap());
    let (bytes, place) = buf.into_exposed();
    let addr = b.dev.dma_map(&bytes, None).unwrap();
    let keys = b.dev.reg_mr(b.pd, addr, 64, RW).unwrap();
    a.post(1, |c| write(c, src.sge(0, 8), addr.0, keys.rkey));
    b.dev.kill();
    assert_eq!(a.dev.next_event(a.qp), Some(AsyncEvent::PeerGone(a.qp)));
    assert_eq!(a.dev.next_event(a.qp), None);
    assert_eq!(a.outcome(), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(gauges(&b.dev.counters()), [0; 6]);
    assert_eq!(errno_of(b.dev.alloc_pd()), errno::ENODEV);
    assert_eq!(errno_of(b.dev.dereg_mr(keys.mr)), errno::EIO);
    assert_eq!(b.dev.next_event(b.qp), None);
    // The mapping has gone with the process, so the bytes come back.
    let proof = b.dev.dma_unmap(&bytes, addr, Fenced::mint()).unwrap();
    assert!(bytes.into_buf(proof, place).is_ok());
    b.dev.kill();
    b.dev.unplug();
    assert_eq!(errno_of(b.dev.alloc_pd()), errno::ENODEV);
}

#[test]
fn b84_removed_device_answers_enodev_and_releases_with_eio() {
    let (a, b) = pair();
    let mems: Vec<Mem> = (0..3).map(|_| a.mem(64, RW)).collect();
    let fast = a.fast(1, FastMrKind::Pages);
    let inbox = a.mem(8, RW);
    a.recv(7, &inbox, 8);
    for i in 0..5 {
        a.post(i, |c| send(c, b"in flight"));
    }
    a.dev.unplug();
    a.dev.unplug();
    assert_eq!(a.dev.next_event(a.qp), Some(AsyncEvent::DeviceFatal));
    assert_eq!(a.dev.next_event(a.qp), None, "once");
    assert_eq!(b.dev.next_event(b.qp), Some(AsyncEvent::PeerGone(b.qp)));
    assert_eq!(a.dev.fabric().run(100), 0, "nothing runs on it");

    for result in [
        a.dev.alloc_pd().map(drop),
        a.dev.create_cq(1).map(drop),
        a.dev.create_qp(a.pd, a.cq, DEPTHS).map(drop),
        a.dev.qp_to_init(a.qp),
        a.dev.qp_to_err(a.qp),
        a.dev.qp_state(a.qp).map(drop),
        a.dev.endpoint(a.qp).map(drop),
        a.dev.dma_map(&mems[0].bytes, None).map(drop),
        a.dev.reg_mr(a.pd, mems[0].addr, 1, RW).map(drop),
        a.dev.alloc_fast_mr(a.pd, 1, FastMrKind::Pages).map(drop),
        a.dev.poll_cq(a.cq, 1, &mut Vec::new()).map(drop),
    ] {
        assert_eq!(errno_of(result), errno::ENODEV);
    }
    let wr = chain(9, true, |c| send(c, b"x"));
    assert_eq!(a.dev.post_send(a.qp, &wr).unwrap_err().cause.errno, errno::ENODEV);
    let recv = RecvWr { wr_id: WrId(9), sge: inbox.sge(0, 8) };
    assert_eq!(a.dev.post_recv(a.qp, &[recv]).unwrap_err().cause.errno, errno::ENODEV);

    for mem in mems.iter().chain([&inbox]) {
        assert_eq!(errno_of(a.dev.dereg_mr(mem.keys.mr)), errno::EIO);
        assert!(a.dev.dma_unmap(&mem.bytes, mem.addr, Fenced::mint()).is_ok());
    }
    assert_eq!(errno_of(a.dev.dereg_mr(fast.mr)), errno::EIO);
    assert_eq!(errno_of(a.dev.destroy_qp(a.qp)), errno::EIO);
    assert_eq!(errno_of(a.dev.destroy_cq(a.cq)), errno::EIO);
    assert_eq!(errno_of(a.dev.dealloc_pd(a.pd)), errno::EIO);
    assert_eq!(gauges(&a.dev.counters()), [0; 6]);
    assert_eq!(b.dev.next_event(b.qp), None, "the peer heard of it once");

    // The device comes back as a new one.
    let back = a.dev.fabric().add_node("a", Caps::default());
    assert_ne!(back.id(), a.dev.id());
    let (a2, b2) = (Side::open(back, DEPTHS, 8), b.sibling(b.pd));
    a2.connect(&b2);
    b2.connect(&a2);
    let inbox = b2.mem(8, RW);
    b2.recv(1, &inbox, 8);
    a2.post(2, |c| send(c, b"back"));
    assert_eq!(a2.outcome(), [(2, OK)]);
}

#[test]
fn peer_on_no_node_of_the_fabric_does_not_answer() {
    let (a, b) = pair();
    for node in [2, u64::MAX] {
        let s = a.sibling(a.pd);
        let nowhere = crate::device::Endpoint { node, ..b.dev.endpoint(b.qp).unwrap() };
        s.dev.qp_to_rts(s.qp, nowhere, RtsAttrs::default()).unwrap();
        s.post(1, |c| send(c, b"x"));
        assert_eq!(s.outcome(), [(1, WcStatus::RetryExcErr)]);
    }
}

#[test]
fn handles_are_one_device_and_devices_differ() {
    let (a, b) = pair();
    let clone = a.dev.clone();
    assert_eq!((clone.id(), clone.name()), (a.dev.id(), "a".to_owned()));
    assert_eq!(clone.qp_state(a.qp), Ok(QpState::Rts));
    assert_ne!(a.dev.id(), b.dev.id());
    assert_eq!(a.dev.fabric().seed(), 1);
    let send = |_: &dyn Send| {};
    send(&a.dev);
    assert_eq!(errno_of(a.dev.dealloc_pd(a.pd)), errno::EBUSY);
    let e = a.dev.destroy_cq(a.cq).unwrap_err();
    assert_eq!((e.verb, e.kind()), (Verb::DestroyCq, crate::device::DeviceErrorKind::Busy));
    assert_eq!(a.mem(8, Access::empty()).keys.rkey.index() % 2, 0);
}
