//! Bytes both ways, and keys that end.

use crate::pair::{Pair, device, pattern, strategies};
use memreg_core::transport::{NoReply, Reply};
use memreg_core::{DmaBuf, Grant, Segment};
use memreg_strategies::Frwr;

#[test]
fn every_strategy_carries_every_byte_both_ways() {
    let Some(dev) = device() else { return };
    for strategy in strategies() {
        let mut pair = Pair::open(&dev, strategy);
        for len in [1, 100, 4096, 4097, 64 << 10, 1 << 20] {
            carries(&mut pair, len);
        }
        println!("{}: verified", pair.owner.strategy_name());
        pair.close();
    }
}

pub fn carries(pair: &mut Pair, len: usize) {
    let data = pattern(3, len);
    let buf = DmaBuf::from_bytes(&data).unwrap();
    let (exposed, segments) = pair.expose_told(buf, Grant::PeerReads);
    let mut got = vec![];
    for s in &segments {
        let part = pair.access(s, 0, DmaBuf::new(s.len as usize).unwrap()).unwrap();
        got.extend_from_slice(&part);
    }
    assert_eq!(got, data, "the peer's copy of {len} bytes");
    drop(pair.fence(exposed));

    let data = pattern(91, len);
    let (exposed, segments) = pair.expose_told(DmaBuf::new(len).unwrap(), Grant::PeerWrites);
    let mut rest = &data[..];
    for s in &segments {
        let (part, tail) = rest.split_at(s.len as usize);
        pair.access(s, 0, DmaBuf::from_bytes(part).unwrap()).unwrap();
        rest = tail;
    }
    // What the peer says after its writes arrives after them.
    pair.peer.send(b"written", Reply::InvalidatesNothing).unwrap();
    assert_eq!(pair.owner_gets().1, b"written");
    let back = pair.fence(exposed).into_first().unwrap();
    assert_eq!(back[..], data[..], "the owner's copy of {len} bytes");
}

#[test]
fn map_14_stale_keys_are_refused_by_the_device() {
    let Some(dev) = device() else { return };
    for strategy in strategies() {
        let mut pair = Pair::open(&dev, strategy);
        if !pair.revokes() {
            continue;
        }
        for grant in [Grant::PeerReads, Grant::PeerWrites] {
            let (exposed, segments) = pair.expose_told(DmaBuf::new(8192).unwrap(), grant);
            let back = pair.fence(exposed).into_first().unwrap();
            pair.must_refuse(&segments[0]);
            assert!(back.iter().all(|&b| b == 0), "a refused write changed the bytes");
            pair.reconnect();
            carries(&mut pair, 4096);
        }
        pair.close();
    }
}

#[test]
fn uns_03_h_28_the_peer_invalidates_and_the_owner_posts_nothing() {
    let Some(dev) = device() else { return };
    let mut pair = Pair::open(&dev, Frwr::new().into());
    assert!(pair.owner.limits().remote_invalidation);
    for round in 0..20u8 {
        let exposed = pair.owner.expose(DmaBuf::new(4096).unwrap(), Grant::PeerWrites);
        let exposed = exposed.unwrap_or_else(|e| panic!("{e}"));
        let segment = pair.tell(&exposed, true)[0];
        let data = pattern(round, 4096);
        pair.access(&segment, 0, DmaBuf::from_bytes(&data).unwrap()).unwrap();
        pair.peer.send_with_inv(b"taken", &segment).unwrap();
        let (reply, text) = pair.owner_gets();
        assert!(reply.invalidated && text == b"taken");
        pair.owner.revoke(&exposed, NoReply::Arrived(&reply.token)).unwrap();
        let back = pair.owner.reclaim(exposed).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(back.into_first().unwrap()[..], data[..]);
    }
    let stats = pair.owner.stats();
    assert_eq!((stats.remote_invalidations, stats.invalidations), (20, 0));
    pair.close();
}

#[test]
fn map_13_map_14_three_hundred_binds_per_window_and_no_key_comes_twice() {
    let Some(dev) = device() else { return };
    let mut pair = Pair::open(&dev, Frwr::new().into());
    let mut old: Vec<Segment> = vec![];
    let mut buf = DmaBuf::new(4096).unwrap();
    let windows = pair.owner.limits().regions_per_request as usize;
    for round in 0..300 * windows {
        let (exposed, segments) = pair.expose_told(buf, Grant::PeerWrites);
        let data = pattern(round as u8, 64);
        pair.access(&segments[0], 0, DmaBuf::from_bytes(&data).unwrap()).unwrap();
        old.extend(segments);
        buf = pair.fence(exposed).into_first().unwrap();
        assert_eq!(buf[..64], data[..]);
    }
    // A window is made anew before its tags come round, so an old key stays dead for good.
    let mut keys: Vec<u32> = old.iter().map(|s| s.rkey.to_bits()).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), old.len(), "a key came twice");
    for stale in old.iter().rev().step_by(40).take(4) {
        pair.must_refuse(stale);
        pair.reconnect();
    }
    pair.close();
}
