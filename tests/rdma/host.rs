//! What the host has to do with it: addresses that reach too little, and sleeping until news come.

use crate::pair::{ASK, Pair, device, skip};
use memreg_core::device::verbs::{VerbsDevice, VerbsOptions};
use memreg_core::device::{Device, Endpoint};
use memreg_core::transport::{OpenOptions, Reply, State};
use memreg_core::types::QpId;
use memreg_core::{Tick, Transport};
use memreg_strategies::Fmr;
use std::time::{Duration, Instant};

const SECOND: u64 = 1_000_000_000;

#[test]
fn b97_when_nobody_answers_a_link_local_gid_is_named_again() {
    let Some(dev) = device() else { return };
    let options = VerbsOptions { name: Some(dev.name()), ..VerbsOptions::default() };
    let local = dev.choice().gids.iter().find(|g| g.is_link_local()).map(|g| g.index as u8);
    let Some(local) = local else { return skip("no link-local GID") };
    let options = VerbsOptions { gid_index: Some(local), ..options };
    let dev = VerbsDevice::open(&options).unwrap();
    assert!(dev.choice().warning().unwrap().contains("link-local"));
    let options = OpenOptions { ask: ASK, ..OpenOptions::default() };
    let mut lonely = Transport::open(dev, Fmr::new(), &options).unwrap();
    let here = lonely.endpoint().unwrap();
    // A QP that nobody has.
    lonely.connect(Endpoint { qp: QpId(0x00ab_cdef), ..here }).unwrap();
    lonely.send(b"hello?", Reply::InvalidatesNothing).unwrap();
    let start = Instant::now();
    while !matches!(lonely.state(), State::Down(_)) {
        let now = Tick(u64::try_from(start.elapsed().as_nanos()).unwrap());
        lonely.wait(now, SECOND).unwrap();
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", lonely.state());
    }
    let State::Down(cause) = lonely.state() else { unreachable!() };
    let text = cause.to_string();
    assert!(text.contains("retry count exceeded") && text.contains("link-local"), "{text}");
}

#[test]
fn h_10_both_ends_sleep_until_there_is_something() {
    let Some(dev) = device() else { return };
    let mut pair = Pair::open(&dev, Fmr::new().into());
    let start = Instant::now();
    let now = || Tick(u64::try_from(start.elapsed().as_nanos()).unwrap());
    let mut message = vec![];
    for round in 0u8..50 {
        pair.owner.send(&[round], Reply::InvalidatesNothing).unwrap();
        while pair.peer.messages_waiting() == 0 {
            pair.peer.wait(now(), 10 * SECOND).unwrap();
        }
        pair.peer.recv(&mut message).unwrap();
        assert_eq!(message, [round]);
        pair.peer.send(&message, Reply::InvalidatesNothing).unwrap();
        while pair.owner.messages_waiting() == 0 {
            pair.owner.wait(now(), 10 * SECOND).unwrap();
        }
        pair.owner.recv(&mut message).unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(20), "no wake-up was missed");
    let (quiet, asleep) = (Instant::now(), pair.owner.wait(now(), SECOND / 5).unwrap());
    assert!(!asleep.any() || quiet.elapsed() < Duration::from_millis(190));
    pair.close();
}
