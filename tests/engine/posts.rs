//! The send queue: slots, signals, partial posts, completions that are late, double or foreign.

use super::rig::{Rig, is_inv, posts, sq16};
use memreg_core::DmaBuf;
use memreg_core::device::{Caps, DeviceErrorKind, LimitInfo, Verb, Wc, WcError, WcStatus, errno};
use memreg_core::error::Disposition;
use memreg_core::sizing::Ask;
use memreg_core::transport::error::Refusal;
use memreg_core::transport::{Buffers, ExposureState, NoReply, Reply};
use memreg_core::types::{Grant, QpId, WrId};
use memreg_strategies::Frwr;

#[test]
fn m_03_map_17_b31_ten_thousand_cycles_on_a_queue_of_16() {
    let mut rig = Rig::frwr_sq16();
    let mut buf = DmaBuf::new(4096).unwrap();
    for i in 0..10_000u32 {
        buf[0] = i as u8;
        let e = rig.owner.expose(buf, Grant::PeerReads).unwrap();
        rig.owner.flush().unwrap();
        rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
        rig.settle();
        buf = rig.owner.reclaim(e).unwrap().into_first().unwrap();
    }
    let s = rig.owner.stats();
    let in_use = rig.node.counters().sq_in_use_max;
    println!(
        "10000 map/unmap cycles, SQ 16: at most {} outstanding ({in_use} slots), {} signaled WRs",
        s.outstanding_max, s.wrs_signaled
    );
    assert_eq!((s.wrs, s.wrs_signaled), (20_000, 10_000), "the last of each unmap");
    assert!(s.outstanding_max <= 16 && in_use <= 16);
    assert!(rig.trace.take().iter().all(|c| match c {
        memreg_core::device::trace::Call::PostSend(wrs, _) =>
            wrs.iter().all(|w| w.signaled == is_inv(w)),
        _ => true,
    }));
    rig.assert_clean();
}

#[test]
fn b31_thousand_pairs_one_after_another_never_find_the_queue_full() {
    let caps = Caps { max_qp_wr: 128, ..Caps::default() };
    let mut rig = Rig::new(Frwr::default(), caps, Ask::default());
    let depth = rig.owner.send_queue().1;
    let mut free_after_peer = None;
    for _ in 0..1000 {
        let e = rig.owner.expose(DmaBuf::new(4096).unwrap(), Grant::PeerReads).unwrap();
        rig.owner.flush().unwrap();
        if free_after_peer.is_none() {
            // A message of the peer frees no slot.
            let before = rig.owner.send_queue().0;
            rig.peer.send(b"ack", Reply::InvalidatesNothing).unwrap();
            rig.settle();
            assert_eq!(rig.owner.send_queue().0, before);
            free_after_peer = Some(before);
        }
        rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
        rig.node.fabric().run(4);
        rig.owner.poll(rig.now).unwrap();
        rig.owner.reclaim(e).unwrap();
    }
    assert!(rig.owner.stats().outstanding_max as usize <= depth);
    rig.assert_clean();
}

#[test]
fn rule_9_ten_thousand_cycles_invalidated_by_the_peer_never_stall() {
    let mut rig = Rig::frwr_sq16();
    let mut bytes = vec![];
    let mut buf = DmaBuf::new(4096).unwrap();
    let mut run = 0;
    let mut longest = 0;
    for _ in 0..10_000 {
        let e = rig.owner.expose(buf, Grant::PeerWrites).unwrap();
        rig.owner.send(b"request", Reply::MayInvalidate(&[&e])).unwrap();
        for wr in posts(&rig.trace.take()).concat() {
            run = if wr.signaled { 0 } else { run + 1 };
            longest = longest.max(run);
        }
        rig.settle();
        let s = rig.owner.segments(&e).unwrap()[0];
        rig.peer.recv(&mut bytes).unwrap();
        rig.peer.send_with_inv(b"reply", &s).unwrap();
        rig.settle();
        let got = rig.owner.recv(&mut bytes).unwrap();
        rig.owner.revoke(&e, NoReply::Arrived(&got.token)).unwrap();
        buf = rig.owner.reclaim(e).unwrap().into_first().unwrap();
    }
    let s = rig.owner.stats();
    println!(
        "10000 cycles invalidated by the peer, SQ 16: {} signaled of {} WRs, \
         longest unsignaled run {longest}",
        s.wrs_signaled, s.wrs
    );
    assert_eq!((s.remote_invalidations, s.invalidations), (10_000, 0));
    assert!(longest < 8, "a signal at least every half queue");
    assert!(s.outstanding_max <= 16);
    rig.assert_clean();
}

#[test]
fn sig_06_ten_thousand_messages_on_a_short_queue() {
    let mut rig = Rig::frwr_sq16();
    let mut bytes = vec![];
    for i in 0..10_000u32 {
        rig.owner.send(&i.to_be_bytes(), Reply::InvalidatesNothing).unwrap();
        rig.settle();
        rig.peer.recv(&mut bytes).unwrap();
        assert_eq!(bytes, i.to_be_bytes());
    }
    assert!(rig.owner.stats().outstanding_max <= 16);
}

#[test]
fn rule_7_a_full_queue_refuses_new_work_and_never_a_fence() {
    let mut rig = Rig::frwr_sq16();
    let mut held = vec![];
    let refused = loop {
        match rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerReads) {
            Ok(e) => {
                rig.owner.flush().unwrap();
                held.push(e);
            }
            Err(e) => break e,
        }
    };
    assert!(matches!(refused.why, Refusal::QueueFull { need: 2, depth: 16, .. }), "{refused}");
    assert_eq!(refused.disposition(), Disposition::Retry);
    // Nothing is polled in between: every fence has its slot.
    for e in &held {
        rig.owner.revoke(e, NoReply::Unmarked).unwrap();
    }
    assert_eq!(held.len(), 7, "7 pairs and the sentinel in 16 slots");
    rig.settle();
    for e in held {
        rig.owner.reclaim(e).unwrap();
    }
    rig.assert_clean();
}

#[test]
fn d_01_h_24_partial_posts_of_an_unmap_cannot_hang() {
    for accepted in 0..4 {
        let mut rig = Rig::frwr();
        let list: Buffers = (0..4).map(|_| (DmaBuf::new(64).unwrap(), 1..3)).collect();
        let e = rig.owner.expose(list, Grant::PeerWrites).unwrap();
        rig.owner.flush().unwrap();
        rig.settle();
        rig.plan.refuse_post(1, accepted, errno::EINVAL);
        let why = rig.owner.revoke(&e, NoReply::Unmarked).unwrap_err();
        assert_eq!(why.disposition(), Disposition::Reconnect);
        assert!(rig.owner.send_queue().0 <= 4 + accepted + 1, "D-07: the accepted ones only");
        rig.settle();
        assert!(rig.is_down());
        assert_eq!(rig.owner.reclaim(e).unwrap().count(), 4);
        rig.assert_clean();
        rig.peer.disconnect();
        rig.settle();
        rig.owner.reconnect().unwrap();
        rig.peer.reconnect().unwrap();
        memreg_core::drive::connect_pair(&mut rig.owner, &mut rig.peer).unwrap();
        let (e, s) = rig.exposed(64, 5, Grant::PeerReads);
        assert_eq!(rig.peer_read(&s, 0, 64).unwrap(), [5; 64]);
        rig.back(e);
        rig.assert_clean();
    }
}

#[test]
fn d_07_partial_posts_of_a_map_take_back_exactly_the_rest() {
    for accepted in 0..4 {
        let mut rig = Rig::frwr();
        let list: Buffers = (0..3).map(|_| (DmaBuf::new(64).unwrap(), 1..3)).collect();
        let e = rig.owner.expose(list, Grant::PeerWrites).unwrap();
        rig.plan.refuse_post(1, accepted, errno::EINVAL);
        let why = rig.owner.send(b"m", Reply::InvalidatesNothing).unwrap_err();
        assert_eq!(why.disposition(), Disposition::Reconnect);
        let (out, _) = rig.owner.send_queue();
        assert_eq!(out, accepted + 1, "the accepted ones and the sentinel");
        assert_eq!(rig.owner.stats().registrations, accepted.min(3) as u64);
        rig.settle();
        assert_eq!(rig.owner.reclaim(e).unwrap().count(), 3);
        rig.assert_clean();
    }
}

#[test]
fn d_03_h_33_wc_02_a_late_registration_wc_fences_nothing() {
    // One credit: the queue is so short that a registration is signaled.
    let mut rig = Rig::new(Frwr::default(), Caps::default(), Ask { credits: 1, ..sq16() });
    let e = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    rig.owner.flush().unwrap();
    assert!(posts(&rig.trace.take())[0][0].signaled);
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    // Only the registration has run when its completion is polled.
    let _ = rig.node.fabric().step();
    let p = rig.owner.poll(rig.now).unwrap();
    assert_eq!((p.wcs, p.fenced), (1, 0));
    assert_eq!(rig.owner.exposure_state(&e), Ok(ExposureState::Revoking));
    rig.settle();
    rig.owner.reclaim(e).unwrap();
    rig.assert_clean();
}

#[test]
fn stale_double_and_foreign_completions_are_counted_and_ignored() {
    let mut rig = Rig::frwr();
    let (e, s) = rig.exposed(64, 0, Grant::PeerWrites);
    rig.plan.duplicate_next_wc();
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    rig.settle();
    rig.settle();
    assert_eq!(rig.owner.stats().wcs_stale, 1);
    rig.owner.reclaim(e).unwrap();
    let (e, s2) = rig.exposed(64, 0, Grant::PeerWrites);
    let cq = rig.owner.completion_queue();
    for id in [0, u64::MAX, 1 << 48, (1 << 48) | (1 << 40) | 77, (1 << 48) | (2 << 40) | 9999] {
        let wc =
            WcError { wr_id: WrId(id), status: WcStatus::Unknown(99), qp: QpId(1), vendor_err: 0 };
        rig.plan.inject_wc(cq, Wc::Error(wc));
        rig.owner.poll(rig.now).unwrap();
        if rig.is_down() || rig.owner.state() != &memreg_core::transport::State::Up {
            break;
        }
    }
    rig.settle();
    // Whatever came, the bytes come back and the keys are dead.
    if !rig.is_down() {
        rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
        rig.settle();
    }
    rig.owner.reclaim(e).unwrap();
    rig.assert_clean();
    assert_ne!(s.rkey, s2.rkey);
}

#[test]
fn b30_three_post_faults_are_told_apart() {
    let caps = Caps { max_sge: 4, max_inline_data: 64, ..Caps::default() };
    let mut rig = Rig::new(Frwr::default(), caps, Ask { credits: 1, ..sq16() });
    // (a) the queue is full: retry, with both numbers
    let depth = rig.owner.send_queue().1;
    let full = (0..=depth).find_map(|_| rig.owner.send(b"m", Reply::InvalidatesNothing).err());
    let full = full.unwrap();
    assert_eq!(full, Refusal::QueueFull { need: 1, free: 0, depth });
    assert_eq!(full.disposition(), Disposition::Retry);
    rig.settle();
    rig.owner.send(b"m", Reply::InvalidatesNothing).unwrap();
    // (b) five SGEs in one WR that must not be cut: refused before the device sees it
    let theirs = rig.peer.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    let seg = rig.peer.segments(&theirs).unwrap()[0];
    rig.settle();
    rig.trace.take();
    let five: Buffers = (0..5).map(|_| (DmaBuf::new(8).unwrap(), 0..8)).collect();
    let e = rig.owner.write_one(&seg, 0, five).unwrap_err();
    assert_eq!(e.why, Refusal::TooManySges { need: 5, limit: 4 });
    assert_eq!((e.disposition(), e.buffers.count()), (Disposition::Fatal, 5));
    // (c) inline too long
    let e = rig.owner.send_inline(&[0; 100], Reply::InvalidatesNothing).unwrap_err();
    assert_eq!(e, Refusal::InlineTooLong { need: 100, limit: 64 });
    assert_eq!(e.disposition(), Disposition::Fatal);
    assert!(posts(&rig.trace.take()).is_empty(), "neither reached the device");
    println!("{full}\n{e}");
}

#[test]
fn b30_the_device_tells_them_apart_too() {
    let full = memreg_core::device::DeviceError::new(Verb::PostSend, errno::ENOMEM);
    assert_eq!(full.kind(), DeviceErrorKind::QueueFull);
    let limit = LimitInfo { what: "max_sge", need: 5, limit: 4, in_use: 0 };
    let sges = memreg_core::device::DeviceError::limit(Verb::PostSend, errno::EINVAL, limit);
    assert_eq!(sges.kind(), DeviceErrorKind::Limit);
}

#[test]
fn b39_sixteen_pieces_at_three_sges_are_six_work_requests() {
    let caps = Caps { max_sge: 3, max_sge_rd: 3, ..Caps::default() };
    let mut rig = Rig::new(Frwr::default(), caps, Ask::default());
    let theirs = rig.peer.expose(DmaBuf::new(160).unwrap(), Grant::PeerWrites).unwrap();
    let seg = rig.peer.segments(&theirs).unwrap()[0];
    let pieces: Buffers =
        (0..16u8).map(|i| (DmaBuf::from_bytes(&[i; 10]).unwrap(), 0..10)).collect();
    let before = rig.owner.send_queue().0;
    rig.trace.take();
    let op = rig.owner.write(&seg, 0, pieces).unwrap();
    let chains = posts(&rig.trace.take());
    assert_eq!((chains.len(), chains[0].len()), (1, 6));
    assert_eq!(rig.owner.send_queue().0, before + 6, "the queue counts six");
    rig.settle();
    assert_eq!(rig.owner.take(op).unwrap().result, Ok(160));
    rig.peer.revoke(&theirs, NoReply::Unmarked).unwrap();
    rig.settle();
    let got = rig.peer.reclaim(theirs).unwrap().into_first().unwrap();
    let expected: Vec<u8> = (0..16u8).flat_map(|i| [i; 10]).collect();
    assert_eq!(&got[..], &expected[..]);
}

#[test]
fn h_62_a_message_is_copied_before_send_returns() {
    let mut rig = Rig::frwr();
    let mut message = vec![1u8; 3000];
    rig.owner.send(&message, Reply::InvalidatesNothing).unwrap();
    message.fill(2);
    rig.owner.send(&message, Reply::InvalidatesNothing).unwrap();
    rig.settle();
    for fill in [1, 2] {
        let mut got = vec![];
        rig.peer.recv(&mut got).unwrap();
        assert_eq!(got, vec![fill; 3000]);
    }
}

#[test]
fn rule_9_unsignaled_wrs_never_keep_a_list_out_that_fits_the_queue() {
    let mut rig = Rig::frwr_sq16();
    for _ in 0..7 {
        rig.owner.send(b"m", Reply::InvalidatesNothing).unwrap();
    }
    rig.settle();
    assert_eq!(rig.owner.send_queue().0, 7, "all done, none retired: a signal is not due yet");
    // Five regions need ten slots, more than the plan's operation of three: eight are free.
    let list = |_| (DmaBuf::new(64).unwrap(), 1..3);
    let refused = rig.owner.expose((0..5).map(list).collect::<Buffers>(), Grant::PeerReads);
    let refused = refused.unwrap_err();
    assert_eq!(refused.disposition(), Disposition::Retry);
    rig.settle();
    let e = rig.owner.expose(refused.buffers, Grant::PeerReads).unwrap();
    rig.back(e);
    rig.assert_clean();
}
