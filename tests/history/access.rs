//! Peers that are late, wrong or hostile.

use crate::rig::Rig;
use memreg_core::DmaBuf;
use memreg_core::device::trace::Call;
use memreg_core::device::{Caps, Wc, WcStatus, WcSuccess};
use memreg_core::sizing::Ask;
use memreg_core::transport::error::DownCause;
use memreg_core::transport::{Buffers, ExposureState, NoReply, Reply, State};
use memreg_core::types::{Grant, Segment, WrId};
use memreg_strategies::{Frwr, Physical};

/// In each round the cancel meets the reply at another moment: before it is sent, on its way,
/// arrived and not seen, seen, or handled.
#[test]
fn h_21_cancel_races_with_the_reply_and_the_bytes_return_once() {
    let mut rig = Rig::frwr_sq16();
    let mut bytes = vec![];
    let (mut maps, mut unmaps, mut lost) = (0, 0, 0);
    for round in 0..10_000u32 {
        let e = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
        rig.owner.send(b"request", Reply::MayInvalidate(&[&e])).unwrap();
        rig.settle();
        rig.peer.recv(&mut bytes).unwrap();
        let s = rig.owner.segments(&e).unwrap()[0];
        let moment = round % 5;
        if moment > 0 {
            rig.peer.send_with_inv(b"reply", &s).unwrap();
        }
        if moment > 1 {
            rig.node.fabric().run(100);
        }
        if moment > 2 {
            rig.owner.poll(rig.now).unwrap();
        }
        if moment > 3 {
            let got = rig.owner.recv(&mut bytes).unwrap();
            rig.owner.revoke(&e, NoReply::Arrived(&got.token)).unwrap();
        }
        rig.owner.cancel(&e).unwrap();
        assert_eq!(rig.owner.exposure_state(&e), Ok(ExposureState::Fenced));
        assert_eq!(rig.owner.reclaim(e).unwrap().count(), 1);
        rig.settle();
        while rig.owner.recv(&mut bytes).is_some() {}
        if rig.owner.state() != &State::Up {
            lost += 1;
            rig.reconnect();
        }
        rig.owner.recover(usize::MAX).unwrap();
        for call in rig.trace.take() {
            maps += u32::from(matches!(call, Call::DmaMap(_)));
            unmaps += u32::from(matches!(call, Call::DmaUnmap(_)));
        }
        assert_eq!((maps, unmaps), (round + 1, round + 1));
    }
    assert_eq!(lost, 2000, "only an invalidation that finds its key ended costs the connection");
    rig.assert_clean();
}

#[test]
fn h_53_joined_buffers_are_unmapped_one_for_one() {
    let mut rig = Rig::frwr();
    rig.trace.take();
    // Two buffers that join at a page boundary are one region, and stay two mappings.
    let mut list = Buffers::new();
    list.push(DmaBuf::from_bytes(&[1; 4096]).unwrap(), 0..4096);
    list.push(DmaBuf::from_bytes(&[2; 8192]).unwrap(), 0..8192);
    list.push(DmaBuf::from_bytes(&[3; 100]).unwrap(), 0..100);
    let e = rig.owner.expose(list, Grant::PeerReads).unwrap();
    rig.owner.flush().unwrap();
    let segs = rig.owner.segments(&e).unwrap().to_vec();
    assert_eq!((segs.len(), segs[0].len), (1, 12_388), "every input byte is in it");
    assert_eq!(rig.node.counters().mapped_ranges, 2 + 3);
    let seen = rig.peer_read(&segs[0], 4095, 8194).unwrap();
    assert_eq!((seen[0], seen[1], seen[8193]), (1, 2, 3));
    rig.back(e);
    let calls = rig.trace.take();
    let maps = calls.iter().filter(|c| matches!(c, Call::DmaMap(_))).count();
    let unmaps = calls.iter().filter(|c| matches!(c, Call::DmaUnmap(_))).count();
    assert_eq!((maps, unmaps), (3, 3));
    rig.assert_clean();
}

#[test]
fn h_65_short_and_malformed_messages_are_bounded_and_use_nothing_up() {
    let mut rig = Rig::frwr_sq16();
    let (e, s) = rig.exposed(64, 0, Grant::PeerReads);
    let good = s.to_wire();
    let (mut bytes, mut word) = (vec![], 1u64);
    for round in 0..2000usize {
        let len = round % 41;
        let mut message = vec![0; len];
        for (i, b) in message.iter_mut().enumerate() {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Mostly well-formed, so that every field is reached.
            let noise = (word >> 56) as u8;
            *b = if noise < 40 { noise } else { good.get(i).copied().unwrap_or(noise) };
        }
        rig.peer.send(&message, Reply::InvalidatesNothing).unwrap();
        rig.settle();
        let got = rig.owner.recv(&mut bytes).unwrap();
        assert_eq!((got.len, &bytes), (len, &message));
        match rig.owner.import(&bytes) {
            Ok(seg) => {
                assert!(len == Segment::WIRE_LEN && seg.len > 0);
                assert!(seg.addr.checked_add(seg.len).is_some());
            }
            Err(e) => assert!(!e.to_string().is_empty()),
        }
    }
    assert_eq!(rig.owner.state(), &State::Up);
    rig.back(e);
    rig.assert_clean();
}

#[test]
fn h_66_unknown_and_dead_keys_that_a_peer_invalidates_cost_its_connection() {
    let cases: [fn(&mut Rig<Frwr>) -> Segment; 3] = [
        // Nothing was ever exposed under it.
        |rig| {
            let (_, s) = rig.exposed(64, 0, Grant::PeerWrites);
            let rkey = memreg_core::types::Rkey::from_bits(s.rkey.to_bits() ^ 0x5a5a_0000);
            Segment { rkey, ..s }
        },
        // Exposed once, and taken back.
        |rig| {
            let (e, s) = rig.exposed(64, 0, Grant::PeerWrites);
            rig.back(e);
            s
        },
        // No region at all.
        |rig| {
            let (e, s) = rig.exposed(64, 0, Grant::PeerWrites);
            rig.owner.cancel(&e).unwrap();
            rig.owner.reclaim(e).unwrap();
            s
        },
    ];
    for case in cases {
        let mut rig = Rig::frwr();
        let s = case(&mut rig);
        let (neighbour, _) = rig.exposed(64, 5, Grant::PeerReads);
        rig.peer.send_with_inv(b"bogus", &s).unwrap();
        rig.settle();
        assert!(rig.is_down());
        assert_ne!(rig.owner.state(), &State::Down(DownCause::Local));
        let back = rig.owner.reclaim(neighbour).unwrap().into_first().unwrap();
        assert_eq!(back[..], [5; 64]);
        rig.assert_clean();
    }
}

#[test]
fn h_66_a_completion_that_names_another_tag_is_no_fence() {
    let mut rig = Rig::frwr();
    let (e, s) = rig.exposed(64, 0, Grant::PeerWrites);
    // The first receive of this connection completes, and with it a key that was never granted.
    let wr_id = WrId(u64::from(rig.owner.epoch().0) << 48 | 2 << 40);
    let qp = rig.owner.queue_pair().unwrap();
    let invalidated = Some(s.rkey.next_tag());
    let wc = Wc::Success(WcSuccess { wr_id, qp, byte_len: 0, invalidated });
    rig.plan.inject_wc(rig.owner.completion_queue(), wc);
    rig.owner.poll(rig.now).unwrap();
    assert_eq!(rig.owner.stats().remote_invalidations_bad, 1);
    assert_eq!(rig.owner.state(), &State::Draining);
    let refused = rig.owner.reclaim(e).unwrap_err();
    assert_eq!(rig.node.counters().fast_mrs_valid, 1, "the device still has the key");
    rig.settle();
    rig.owner.reclaim(refused.exposed).unwrap();
    rig.assert_clean();
}

#[test]
fn phy_04_a_late_write_reaches_the_arena_and_no_buffer() {
    let ask = Ask { danger_trust_peer: true, credits: 1, ..Ask::default() };
    let mut rig = Rig::new(Physical::new(true), Caps::default(), ask);
    let (e, late) = rig.exposed(4096, 1, Grant::PeerWrites);
    let mine = rig.back(e).into_first().unwrap();
    assert_eq!(rig.probe(&late), WcStatus::Success, "nothing is ever invalidated");
    assert!(mine.iter().all(|&b| b == 1), "the program's bytes are out of reach");
    // What a peer reads comes from an arena that it cannot write.
    let (e, s) = rig.exposed(4096, 2, Grant::PeerReads);
    assert_eq!(rig.probe(&late), WcStatus::Success);
    assert_eq!(rig.peer_read(&s, 0, 2).unwrap(), [2, 2]);
    let mine = rig.back(e).into_first().unwrap();
    assert!(mine.iter().all(|&b| b == 2));
    // What the setting's name says: what a later operation receives can be spoiled.
    let (e, s) = rig.exposed(4096, 3, Grant::PeerWrites);
    assert_eq!(s.addr, late.addr, "the same part of the arena");
    assert_eq!(rig.probe(&late), WcStatus::Success);
    let mine = rig.back(e).into_first().unwrap();
    assert_eq!(mine[..2], [0xee, 3]);
}
