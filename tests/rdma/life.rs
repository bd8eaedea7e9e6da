//! Connections that end and begin again, and what they leave behind.

use crate::pair::{Pair, device, is_down, pattern, strategies};
use memreg_core::device::Device;
use memreg_core::device::verbs::VerbsObjects;
use memreg_core::transport::{ExposureState, NoReply, Reply};
use memreg_core::{DmaBuf, Grant};
use memreg_strategies::{Fmr, Frwr};

#[test]
fn st_11_h_01_a_disconnect_with_exposures_in_every_state_gives_all_back() {
    let Some(dev) = device() else { return };
    for strategy in strategies() {
        let mut pair = Pair::open(&dev, strategy);
        for round in 0..3u8 {
            let new = || DmaBuf::new(8192).unwrap();
            let (told, segments) = pair.expose_told(new(), Grant::PeerWrites);
            let (revoking, more) = pair.expose_told(new(), Grant::PeerReads);
            let staged =
                pair.owner.expose(new(), Grant::PeerReads).unwrap_or_else(|e| panic!("{e}"));
            pair.owner.send(b"registers the staged one", Reply::InvalidatesNothing).unwrap();
            pair.owner.revoke(&revoking, NoReply::Unmarked).unwrap();
            let late = pair.owner.expose(new(), Grant::PeerReads).unwrap_or_else(|e| panic!("{e}"));
            pair.owner.disconnect();
            pair.until("the owner down", |p| is_down(&p.owner));
            for exposed in [told, revoking, staged, late] {
                let state = pair.owner.exposure_state(&exposed).unwrap();
                assert_eq!(state, ExposureState::Fenced);
                drop(pair.owner.reclaim(exposed).unwrap_or_else(|e| panic!("{e}")));
            }
            pair.reconnect();
            if pair.revokes() {
                for stale in segments.iter().chain(&more) {
                    pair.must_refuse(stale);
                    pair.reconnect();
                }
            }
            works(&mut pair, round);
        }
        pair.close();
    }
}

/// One exposure that the peer writes.
fn works(pair: &mut Pair, seed: u8) {
    let data = pattern(seed, 4096);
    let (exposed, segments) = pair.expose_told(DmaBuf::new(4096).unwrap(), Grant::PeerWrites);
    pair.access(&segments[0], 0, DmaBuf::from_bytes(&data).unwrap()).unwrap();
    assert_eq!(pair.fence(exposed).into_first().unwrap()[..], data[..]);
}

#[test]
fn a_forged_access_costs_the_connection_and_nothing_else() {
    let Some(dev) = device() else { return };
    for strategy in strategies() {
        let mut pair = Pair::open(&dev, strategy);
        let (exposed, segments) = pair.expose_told(DmaBuf::new(4096).unwrap(), Grant::PeerWrites);
        let outside = memreg_core::Segment { addr: 4096, len: 64, ..segments[0] };
        pair.must_refuse(&outside);
        // The responder's QP is in error too, but only its next WR hears of it.
        pair.owner.disconnect();
        pair.until("the owner down", |p| is_down(&p.owner));
        let back = pair.owner.reclaim(exposed).unwrap_or_else(|e| panic!("{e}"));
        assert!(back.into_first().unwrap().iter().all(|&b| b == 0));
        pair.reconnect();
        works(&mut pair, 1);
        pair.close();
    }
}

#[test]
fn h_06_a_thousand_connections_leave_nothing_behind() {
    let Some(dev) = device() else { return };
    let mut pair = Pair::open(&dev, Fmr::new().into());
    for round in 0..900u32 {
        if round % 100 == 0 {
            works(&mut pair, round as u8);
        }
        pair.reconnect();
    }
    pair.close();
    let mut pair = Pair::open(&dev, Frwr::new().into());
    for round in 0..100u8 {
        works(&mut pair, round);
        pair.reconnect();
    }
    pair.close();
}

#[test]
fn a_transport_that_is_dropped_in_use_leaves_nothing_behind() {
    let Some(dev) = device() else { return };
    for strategy in strategies() {
        let mut pair = Pair::open(&dev, strategy);
        let (exposed, _) = pair.expose_told(DmaBuf::new(8192).unwrap(), Grant::PeerWrites);
        std::mem::forget(exposed);
        drop(pair);
        assert_eq!(dev.objects(), VerbsObjects::default(), "left on {}", dev.name());
    }
}

/// For the virtual machine's script: binds windows, says so, and waits to be killed.
#[test]
#[ignore = "waits to be killed: tests/rdma/guest-suite starts it and does that"]
fn holds_bound_windows() {
    let Some(dev) = device() else { return };
    let mut pair = Pair::open(&dev, Frwr::new().into());
    let held: Vec<_> =
        (0..4).map(|_| pair.expose_told(DmaBuf::new(8192).unwrap(), Grant::PeerWrites)).collect();
    println!("holding {} exposures", held.len());
    std::fs::write("/tmp/holding", "").unwrap();
    loop {
        std::thread::park();
    }
}
