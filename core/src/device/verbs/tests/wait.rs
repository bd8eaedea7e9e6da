//! Waiting for a completion channel.

#![allow(clippy::disallowed_methods, reason = "hardware runs by itself: tests must wait for it")]

use super::rig::{LOCAL, Rig, device, sge, skip, status};
use crate::device::{Device, Payload, RecvWr, WcStatus, WrChain, WrOp};
use crate::types::WrId;
use std::time::{Duration, Instant};

const SECOND: u64 = 1_000_000_000;

#[test]
fn h_10_what_comes_between_poll_and_arm_raises_no_event_and_is_there_to_be_polled() {
    let Some(dev) = device() else { return };
    let mut rig = Rig::new(dev);
    let into = rig.memory(64, LOCAL);
    let recv = |rig: &Rig, id| {
        rig.dev.post_recv(rig.owner, &[RecvWr { wr_id: WrId(id), sge: sge(&into) }]).unwrap();
    };
    let send = |rig: &mut Rig| {
        let mut chain = WrChain::new();
        let payload = Payload::Inline(chain.add_inline(b"x"));
        rig.post_chain(rig.peer, &mut chain, &[WrOp::Send(payload)]).unwrap();
    };
    recv(&rig, 1 << 40);
    send(&mut rig);
    // Both completions are in the CQ now.
    let mut wcs = vec![];
    while wcs.len() < 2 {
        rig.dev.poll_cq(rig.cq, 64, &mut wcs).unwrap();
    }
    recv(&rig, 1 << 41);
    send(&mut rig);
    let came = Instant::now();
    while came.elapsed() < Duration::from_millis(50) {
        std::hint::spin_loop();
    }
    rig.dev.arm_cq(rig.cq).unwrap();
    let (start, told) = (Instant::now(), rig.dev.wait_cq(rig.cq, SECOND / 5).unwrap());
    assert!(!told && start.elapsed() >= Duration::from_millis(190), "no event for the past");
    assert_eq!(rig.dev.poll_cq(rig.cq, 64, &mut wcs).unwrap(), 2, "polling finds it");
    // Still armed: what comes now ends the wait long before its limit.
    recv(&rig, 1 << 42);
    send(&mut rig);
    let (start, told) = (Instant::now(), rig.dev.wait_cq(rig.cq, 20 * SECOND).unwrap());
    assert!(told && start.elapsed() < Duration::from_secs(10));
    while wcs.len() < 6 {
        rig.dev.poll_cq(rig.cq, 64, &mut wcs).unwrap();
    }
    assert!(wcs.iter().all(|wc| status(wc) == WcStatus::Success));
    rig.release(into);
    rig.close();
}

#[test]
fn an_event_of_the_device_ends_the_wait() {
    let Some(dev) = device() else { return };
    let mut rig = Rig::new(dev);
    rig.dev.arm_cq(rig.cq).unwrap();
    let Ok(link) = std::env::var("MEMREG_TEST_RDMA_LINK") else {
        skip("MEMREG_TEST_RDMA_LINK names no network interface");
        rig.reconnect();
        return rig.close();
    };
    let set = |state: &str| {
        let done = std::process::Command::new("ip").args(["link", "set", &link, state]).status();
        assert!(done.unwrap().success());
    };
    set("down");
    let (start, told) = (Instant::now(), rig.dev.wait_cq(rig.cq, 20 * SECOND).unwrap());
    set("up");
    assert!(told && start.elapsed() < Duration::from_secs(10));
    let heard = (0..1000).find_map(|_| rig.dev.next_event(rig.owner));
    assert!(heard.is_some());
    rig.close();
}
