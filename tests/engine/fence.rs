//! Taking access back: the fence, what it costs, and that nothing works after it.

use super::rig::{Rig, is_inv, posts};
use memreg_core::device::trace::Call;
use memreg_core::device::{Caps, TransportKind, WcStatus, WrOp};
use memreg_core::sizing::Ask;
use memreg_core::transport::error::{ReclaimRefusal, Refusal};
use memreg_core::transport::{Buffers, ExposureState, KeyEvent, LedgerEvent, NoReply, Reply, Rule};
use memreg_core::types::{Access, Grant, Segment};
use memreg_core::{ApiMisuse, DmaBuf};
use memreg_strategies::{Fmr, Frwr};

#[test]
fn h_12_uns_01_bytes_return_only_after_the_fence() {
    let mut rig = Rig::frwr();
    let (e, s) = rig.exposed(4096, 0, Grant::PeerWrites);
    let refused = rig.owner.reclaim(e).unwrap_err();
    assert_eq!(refused.why, ReclaimRefusal::NotFenced { open: 1 });
    let e = refused.exposed;
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    assert_eq!(rig.owner.exposure_state(&e), Ok(ExposureState::Revoking));
    let refused = rig.owner.reclaim(e).unwrap_err();
    rig.settle();
    let bytes = rig.owner.reclaim(refused.exposed).unwrap().into_first().unwrap();
    assert_eq!(rig.probe(&s), WcStatus::RemAccessErr);
    assert!(bytes.iter().all(|&b| b == 0), "the late write moved nothing");
    assert_eq!(rig.node.counters().bytes_written, 0);
}

#[test]
fn stale_key_wrong_pd_wrap_and_wrong_right_all_end_in_remote_access_error() {
    type Forge = fn(&mut Rig<Frwr>) -> Segment;
    let cases: [(&str, Forge); 5] = [
        ("stale rkey", |rig| {
            let (e, s) = rig.exposed(4096, 0, Grant::PeerWrites);
            rig.back(e);
            s
        }),
        ("key of another PD", |rig| {
            let (_, s) = rig.exposed(4096, 0, Grant::PeerWrites);
            // The second owner lives on the same node, in a PD of its own.
            let caps = memreg_core::sizing::Ask::default();
            let options = memreg_core::transport::OpenOptions {
                ask: caps,
                ..memreg_core::transport::OpenOptions::default()
            };
            let mut other =
                memreg_core::Transport::open(rig.node.clone(), Frwr::default(), &options).unwrap();
            let mut far =
                memreg_core::Transport::open(rig.peer_node.clone(), Fmr::default(), &options)
                    .unwrap();
            memreg_core::drive::connect_pair(&mut other, &mut far).unwrap();
            let buf = DmaBuf::new(4096).unwrap();
            let e = other.expose(buf, Grant::PeerWrites).unwrap();
            other.flush().unwrap();
            memreg_core::drive::settle(rig.now, &mut [&mut other, &mut far]).unwrap();
            let theirs = other.segments(&e).unwrap()[0];
            assert_ne!(theirs.rkey, s.rkey);
            // Both stay alive for the rest of the test.
            std::mem::forget((other, far, e));
            rig.forged(&theirs)
        }),
        ("range that wraps", |rig| {
            let (_, s) = rig.exposed(4096, 0, Grant::PeerWrites);
            Segment { addr: u64::MAX, len: u64::MAX, ..s }
        }),
        ("range past the end", |rig| {
            let (_, s) = rig.exposed(4096, 0, Grant::PeerWrites);
            Segment { addr: s.addr + 4096, ..s }
        }),
        ("write with read rights", |rig| {
            let (_, s) = rig.exposed(4096, 0, Grant::PeerReads);
            Segment { grant: Grant::PeerWrites, ..s }
        }),
    ];
    for (name, forge) in cases {
        let mut rig = Rig::frwr();
        let seg = forge(&mut rig);
        let before = rig.node.counters().bytes_written;
        let error = rig.peer_write(&seg, 0, &[0xee; 16]).unwrap_err();
        assert_eq!(error.wc.status, WcStatus::RemAccessErr, "{name}");
        assert_eq!(rig.node.counters().bytes_written, before, "{name} moved a byte");
        assert_eq!(rig.node.counters().remote_refusals, 1, "{name}");
        println!("{name}: {}", error.wc.status);
    }
}

#[test]
fn b57_b60_local_keys_open_nothing() {
    let mut rig = Rig::frwr();
    let (_e, s) = rig.exposed(4096, 0, Grant::PeerWrites);
    // The owner reads from the peer, so that one of its buffers has a local registration.
    let src = rig.peer.expose(DmaBuf::new(64).unwrap(), Grant::PeerReads).unwrap();
    let theirs = rig.peer.segments(&src).unwrap()[0];
    let op = rig.owner.read(&theirs, 0, DmaBuf::new(64).unwrap()).unwrap();
    let local = rig.trace.take().into_iter().find_map(|c| match c {
        Call::RegMr(keys, access) => Some((keys, access)),
        _ => None,
    });
    let (keys, access) = local.unwrap();
    assert_eq!(access, Access::LOCAL_WRITE);
    rig.settle();
    rig.owner.take(op).unwrap();
    // The local key's number, given to the peer as if it were a remote key.
    assert_ne!(keys.lkey.to_bits(), keys.rkey.to_bits());
    let rkey = memreg_core::types::Rkey::from_bits(keys.lkey.to_bits());
    assert_eq!(rig.probe(&Segment { rkey, ..s }), WcStatus::RemAccessErr);
}

#[test]
fn sig_04_uns_06_last_invalidation_retires_the_chain() {
    let mut rig = Rig::frwr();
    let list: Buffers = (0..3).map(|_| (DmaBuf::new(64).unwrap(), 1..3)).collect();
    let e = rig.owner.expose(list, Grant::PeerWrites).unwrap();
    rig.owner.flush().unwrap();
    rig.settle();
    assert_eq!(rig.owner.send_queue().0, 3, "unsignaled registrations hold their slots");
    rig.trace.take();
    let keys: Vec<_> = rig.owner.segments(&e).unwrap().iter().map(|s| s.rkey).collect();
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    let chains = posts(&rig.trace.take());
    assert_eq!(chains.len(), 1, "one doorbell");
    let signals: Vec<_> = chains[0].iter().map(|w| w.signaled).collect();
    assert_eq!(signals, [false, false, true]);
    let named: Vec<_> = chains[0]
        .iter()
        .map(|w| match w.op {
            WrOp::LocalInv(k) => k,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(named, keys, "UNS-04: the granted keys, each once");
    rig.settle();
    assert_eq!(rig.owner.send_queue().0, 0, "one WC retired all six");
    rig.owner.reclaim(e).unwrap();
    assert_eq!(rig.owner.stats().local_inv_needed, 1, "UNS-09: per call");
    rig.assert_clean();
}

#[test]
fn uns_13_h_13_h_41_invalidate_then_unmap_once_then_free() {
    let ends: [fn(&mut Rig<Frwr>, &memreg_core::Exposed); 4] = [
        |rig, e| rig.owner.revoke(e, NoReply::Unmarked).unwrap(),
        |rig, e| rig.owner.cancel(e).unwrap(),
        |rig, _| rig.owner.disconnect(),
        |rig, e| {
            let s = rig.owner.segments(e).unwrap()[0];
            rig.peer.send_with_inv(b"done", &s).unwrap();
        },
    ];
    for (i, end) in ends.into_iter().enumerate() {
        let mut rig = Rig::frwr();
        let (e, s) = rig.exposed(4096, 0, Grant::PeerWrites);
        rig.trace.take();
        end(&mut rig, &e);
        rig.settle();
        let calls = rig.trace.take();
        let unmaps: Vec<usize> =
            (0..calls.len()).filter(|&k| matches!(calls[k], Call::DmaUnmap(_))).collect();
        assert_eq!(unmaps.len(), 1, "way {i}: unmapped exactly once");
        let death = calls.iter().position(|c| match c {
            Call::Wc(wc) => wc.is_success(),
            Call::DeregMr(_) => true,
            _ => false,
        });
        assert!(death.unwrap() < unmaps[0], "way {i}: key dead first: {calls:?}");
        rig.owner.reclaim(e).unwrap();
        let ends = rig.owner.ledger().iter().filter_map(|l| match l.event {
            LedgerEvent::Key { rkey, what: KeyEvent::Killed(rule), .. } => Some((rkey, rule)),
            _ => None,
        });
        let (rkey, rule) = ends.last().unwrap();
        assert_eq!(rkey, s.rkey);
        let rules = [Rule::LocalInv, Rule::Dereg, Rule::Dereg, Rule::RemoteInv];
        assert_eq!(rule, rules[i]);
    }
}

#[test]
fn uns_03_uns_05_h_28_remote_invalidation_saves_its_local_inv() {
    let mut rig = Rig::frwr();
    let list: Buffers = (0..2).map(|_| (DmaBuf::new(64).unwrap(), 1..3)).collect();
    let e = rig.owner.expose(list, Grant::PeerWrites).unwrap();
    rig.owner.send(b"request", Reply::MayInvalidate(&[&e])).unwrap();
    rig.settle();
    let refused = rig.owner.revoke(&e, NoReply::Unmarked).unwrap_err();
    assert_eq!(refused, Refusal::ReplyOutstanding, "rule 5");
    let s = rig.owner.segments(&e).unwrap()[0];
    rig.peer.send_with_inv(b"reply", &s).unwrap();
    rig.settle();
    rig.trace.take();
    let mut bytes = vec![];
    let got = rig.owner.recv(&mut bytes).unwrap();
    assert_eq!((&bytes[..], got.invalidated), (&b"reply"[..], true));
    rig.owner.revoke(&e, NoReply::Arrived(&got.token)).unwrap();
    let invs = posts(&rig.trace.take()).concat().iter().filter(|w| is_inv(w)).count();
    assert_eq!(invs, 1, "only for the key that the peer left");
    rig.settle();
    rig.owner.reclaim(e).unwrap();

    let e = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    rig.owner.send(b"request", Reply::MayInvalidate(&[&e])).unwrap();
    let s = rig.owner.segments(&e).unwrap()[0];
    rig.peer.recv(&mut bytes);
    rig.peer.send_with_inv(b"reply", &s).unwrap();
    rig.settle();
    rig.trace.take();
    let got = rig.owner.recv(&mut bytes).unwrap();
    rig.owner.revoke(&e, NoReply::Arrived(&got.token)).unwrap();
    assert!(posts(&rig.trace.take()).is_empty(), "UNS-05: nothing to invalidate");
    rig.owner.reclaim(e).unwrap();
    rig.assert_clean();
}

#[test]
fn rule_5_a_token_of_an_older_message_or_connection_is_refused() {
    let mut rig = Rig::frwr();
    let mut bytes = vec![];
    rig.peer.send(b"early", Reply::InvalidatesNothing).unwrap();
    rig.settle();
    let early = rig.owner.recv(&mut bytes).unwrap().token;
    let e = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    rig.owner.send(b"request", Reply::MayInvalidate(&[&e])).unwrap();
    rig.settle();
    let refused = rig.owner.revoke(&e, NoReply::Arrived(&early)).unwrap_err();
    assert_eq!(refused, Refusal::Misuse(ApiMisuse::WrongToken));
    rig.owner.revoke(&e, NoReply::NoneCanCome).unwrap();
    rig.settle();
    rig.owner.reclaim(e).unwrap();
    rig.assert_clean();
}

#[test]
fn h_14_h_31_saf_03_cancel_fences_before_it_returns() {
    let mut rig = Rig::frwr();
    let (e, s) = rig.exposed(4096, 0, Grant::PeerWrites);
    rig.trace.take();
    rig.owner.cancel(&e).unwrap();
    assert!(posts(&rig.trace.take()).is_empty(), "SAF-02: no WR");
    let bytes = rig.owner.reclaim(e).unwrap().into_first().unwrap();
    assert_eq!(rig.probe(&s), WcStatus::RemAccessErr);
    assert!(bytes.iter().all(|&b| b == 0));
}

#[test]
fn cancel_works_with_the_queue_pair_dead_and_while_revoking() {
    let mut rig = Rig::frwr();
    let (dead, _) = rig.exposed(4096, 0, Grant::PeerWrites);
    let (e, _) = rig.exposed(4096, 0, Grant::PeerWrites);
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    rig.owner.cancel(&e).unwrap();
    rig.owner.reclaim(e).unwrap();
    rig.owner.disconnect();
    rig.owner.cancel(&dead).unwrap();
    rig.owner.reclaim(dead).unwrap();
    rig.settle();
    rig.assert_clean();
}

#[test]
fn dropped_handles_are_fenced_by_poll() {
    let mut rig = Rig::frwr();
    let (e, s) = rig.exposed(4096, 0, Grant::PeerWrites);
    drop(e);
    let staged = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerReads).unwrap();
    drop(staged);
    let marked = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerReads).unwrap();
    rig.settle();
    rig.owner.send(b"m", Reply::MayInvalidate(&[&marked])).unwrap();
    rig.settle();
    drop(marked);
    rig.settle();
    assert_eq!(rig.owner.stats().abandoned, 3);
    rig.assert_clean();
    assert_eq!(rig.probe(&s), WcStatus::RemAccessErr);
}

#[test]
fn forgotten_handle_keeps_its_bytes_until_the_transport_is_dropped() {
    let mut rig = Rig::frwr();
    let (e, s) = rig.exposed(4096, 0, Grant::PeerWrites);
    std::mem::forget(e);
    rig.settle();
    assert_eq!(rig.owner.stats().exposures_now, 1);
    assert_eq!(rig.probe(&s), WcStatus::Success);
    let node = rig.node.clone();
    drop(rig);
    let c = node.counters();
    assert_eq!((c.mrs, c.qps, c.pds, c.cqs, c.mapped_ranges), (0, 0, 0, 0, 0));
}

#[test]
fn foreign_handles_are_refused() {
    let (mut one, mut two) = (Rig::frwr(), Rig::frwr());
    let (e, _) = one.exposed(64, 0, Grant::PeerReads);
    let foreign = Refusal::Misuse(ApiMisuse::ForeignHandle);
    assert_eq!(two.owner.revoke(&e, NoReply::Unmarked).unwrap_err(), foreign);
    assert_eq!(two.owner.cancel(&e).unwrap_err(), foreign);
    let e = two.owner.reclaim(e).unwrap_err().exposed;
    one.back(e);
}

#[test]
fn old_key_is_refused_through_the_new_queue_pair_of_the_same_pd() {
    let mut rig = Rig::frwr();
    let (e, old) = rig.exposed(4096, 0, Grant::PeerWrites);
    rig.reconnect();
    let stale = rig.peer.write(&old, 0, DmaBuf::new(1).unwrap()).unwrap_err();
    assert!(matches!(stale.why, Refusal::Segment(_)), "H-01: refused before anything is posted");
    let bytes = rig.owner.reclaim(e).unwrap().into_first().unwrap();
    let forged = rig.forged(&old);
    assert_eq!(rig.probe(&forged), WcStatus::RemAccessErr, "rule 4");
    assert!(bytes.iter().all(|&b| b == 0));
}

#[test]
fn buffer_used_on_two_devices_registers_anew() {
    let (mut one, mut two) = (Rig::frwr(), Rig::frwr());
    let mut address = vec![];
    let mut buf = DmaBuf::from_bytes(&[1; 4096]).unwrap();
    for round in 0..2 {
        for (i, rig) in [&mut one, &mut two].into_iter().enumerate() {
            // Another buffer of this device lives where the first one may believe to be at home.
            let (victim, _) = rig.exposed(4096, 0x55, Grant::PeerWrites);
            let theirs = rig.peer.expose(DmaBuf::new(4096).unwrap(), Grant::PeerWrites).unwrap();
            let seg = rig.peer.segments(&theirs).unwrap()[0];
            buf.fill(10 * round + i as u8 + 1);
            let sent = buf[0];
            let op = rig.owner.write(&seg, 0, buf).unwrap();
            rig.settle();
            let done = rig.owner.take(op).unwrap();
            assert_eq!(done.result, Ok(4096));
            buf = done.buffers.into_first().unwrap();
            rig.peer.revoke(&theirs, NoReply::Unmarked).unwrap();
            rig.settle();
            let got = rig.peer.reclaim(theirs).unwrap().into_first().unwrap();
            assert!(got.iter().all(|&b| b == sent), "its own bytes, not a neighbour's");
            let registered = rig.owner.stats().local_registrations;
            assert_eq!(registered, u64::from(round) + 1, "anew after each move");
            address.push(registered);
            let e = rig.owner.expose(buf, Grant::PeerReads).unwrap();
            rig.owner.flush().unwrap();
            let s = rig.owner.segments(&e).unwrap()[0];
            assert_eq!(rig.peer_read(&s, 0, 16).unwrap(), [sent; 16]);
            buf = rig.back(e).into_first().unwrap();
            let kept = rig.back(victim).into_first().unwrap();
            assert!(kept.iter().all(|&b| b == 0x55));
        }
    }
    // Used again where it was last, nothing is registered.
    let theirs = two.peer.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    let seg = two.peer.segments(&theirs).unwrap()[0];
    let before = two.owner.stats().local_registrations;
    let op = two.owner.write(&seg, 0, (buf, 0..64)).unwrap();
    two.settle();
    two.owner.take(op).unwrap();
    assert_eq!(two.owner.stats().local_registrations, before);
    assert!(two.owner.stats().local_hits > 0);
    drop(one);
    assert_eq!(address.len(), 4);
}

#[test]
fn fmr_fences_with_one_verb_a_region_and_no_wr() {
    let mut rig = Rig::new(Fmr::default(), Caps::default(), Ask::default());
    let (e, s) = rig.exposed(4096, 3, Grant::PeerReads);
    assert_eq!(rig.peer_read(&s, 0, 4096).unwrap(), [3; 4096]);
    rig.trace.take();
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    assert!(posts(&rig.trace.take()).is_empty());
    rig.owner.reclaim(e).unwrap();
    rig.assert_clean();
    assert!(rig.peer_read(&s, 0, 1).is_err());
}

#[test]
fn b24_read_sinks_grant_remote_write_on_iwarp_alone_and_no_longer_than_the_read() {
    for transport in [TransportKind::Ib, TransportKind::Roce, TransportKind::Iwarp] {
        let caps = Caps { transport, ..Caps::default() };
        let mut rig = Rig::new(Frwr::default(), caps, Ask::default());
        let theirs = rig.peer.expose(DmaBuf::from_bytes(&[9; 64]).unwrap(), Grant::PeerReads);
        let theirs = theirs.unwrap();
        let seg = rig.peer.segments(&theirs).unwrap()[0];
        let op = rig.owner.read(&seg, 0, (DmaBuf::new(4096).unwrap(), 8..72)).unwrap();
        let made = rig.trace.take().into_iter().find_map(|c| match c {
            Call::RegMr(keys, access) => Some((keys, access)),
            _ => None,
        });
        let (keys, access) = made.unwrap();
        let wide = transport == TransportKind::Iwarp;
        assert_eq!(access.contains(Access::REMOTE_WRITE), wide, "{transport}");
        rig.settle();
        let done = rig.owner.take(op).unwrap();
        assert_eq!(done.result, Ok(64));
        assert_eq!(&done.buffers.into_first().unwrap()[8..72], &[9; 64]);
        let ended = rig.trace.take().contains(&Call::DeregMr(keys.mr));
        assert_eq!(ended, wide, "{transport}: a right of the peer ends with the read");
        assert_eq!(rig.owner.stats().sink_registrations, u64::from(wide));
    }
}
