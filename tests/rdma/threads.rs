//! Several threads on one device, each with connections of its own, and one that drops what they
//! give it.

use crate::pair::{Pair, device};
use crate::transfers::carries;
use memreg_core::device::verbs::{VerbsDevice, VerbsObjects};
use memreg_core::transport::{QpBoundKeys, SharedPd};
use memreg_core::{DmaBuf, Exposed, Grant, device::Device};
use memreg_strategies::{Fmr, Frwr, Strategy};
use std::sync::mpsc::{Sender, channel};

#[test]
fn threads_share_a_device_and_leave_nothing_on_it() {
    let Some(dev) = device() else { return };
    let strategies: [Strategy; 3] = [Frwr::new().into(), Frwr::new().into(), Fmr::new().into()];
    let pairs = strategies.map(|s| Pair::open(&dev, s));
    in_threads(&dev, Vec::from(pairs));
}

#[test]
fn threads_share_a_protection_domain_and_leave_nothing_in_it() {
    let Some(dev) = device() else { return };
    let pd = SharedPd::new(dev.clone(), QpBoundKeys::seen_on(dev.id())).unwrap();
    let pairs = (0..3).map(|_| Pair::open_in(&pd)).collect();
    drop(pd);
    in_threads(&dev, pairs);
}

fn in_threads(dev: &VerbsDevice, pairs: Vec<Pair>) {
    let (mut dropped, threads) = (0, pairs.len() as u64);
    std::thread::scope(|s| {
        let (to_drop, dropper) = channel();
        for pair in pairs {
            let to_drop = to_drop.clone();
            s.spawn(move || work(pair, &to_drop));
        }
        drop(to_drop);
        for thing in dropper {
            drop(thing);
            dropped += 1;
        }
    });
    assert_eq!(dropped, threads * 2 * ROUNDS);
    assert_eq!(dev.objects(), VerbsObjects::default(), "left on {}", dev.name());
    println!(
        "{threads} threads on {}: {dropped} handles and buffers dropped by another",
        dev.name()
    );
}

/// What another thread drops, with the registration of the buffer.
enum Thing {
    Handle(#[expect(dead_code, reason = "dropped is what it is")] Exposed),
    Buffer(#[expect(dead_code, reason = "dropped is what it is")] DmaBuf),
}

/// Transfers both ways, and in between an exposure whose handle, and a buffer, go elsewhere.
fn work(mut pair: Pair, to_drop: &Sender<Thing>) {
    for round in 0..ROUNDS {
        carries(&mut pair, 4000 + 100 * round as usize);
        let (handle, segments) = pair.expose_told(DmaBuf::new(4096).unwrap(), Grant::PeerReads);
        let used = pair.access(&segments[0], 0, DmaBuf::new(4096).unwrap()).unwrap();
        to_drop.send(Thing::Handle(handle)).unwrap();
        to_drop.send(Thing::Buffer(used)).unwrap();
        if round % 8 == 7 {
            pair.until("the dropped handles", |p| p.owner.stats().abandoned == round + 1);
            pair.reconnect();
        }
    }
    pair.until("the last dropped handle", |p| p.owner.stats().abandoned == ROUNDS);
    assert_eq!(pair.owner.stats().bytes_leaked + pair.peer.stats().bytes_leaked, 0);
    assert_eq!(pair.owner.stats().poisons + pair.peer.stats().poisons, 0);
}

const ROUNDS: u64 = 24;
