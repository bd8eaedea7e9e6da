//! What granting and revoking costs in the engine: WRs and posts here, instructions when
//! `tests/instructions` runs this under callgrind.
#![allow(clippy::unwrap_used)] // a test

use memreg_core::DmaBuf;
use memreg_core::device::Device;
use memreg_core::device::sim::{Fabric, SimDevice, profile};
use memreg_core::drive::connect_pair;
use memreg_core::sizing::Ask;
use memreg_core::transport::{Buffers, Exposed, NoReply, OpenOptions, Transport};
use memreg_core::types::{Grant, Tick};
use memreg_strategies::{Fmr, Frwr, Strategy};

/// Regions of one exposure: windows of a page each onto one buffer, which is lent and registered
/// once. The C program that this is held against (`tests/rdma/floor.c`) binds all its windows onto
/// one MR too.
const EACH: usize = 16;
const PAGE: usize = 4096;
/// Makes the local MRs and fills the pools.
const WARM_UP: usize = 100;

type Side = Transport<SimDevice, Strategy>;

/// MEMREG_TEST_CHAIN: regions of one post; MEMREG_TEST_ROUNDS: how often.
#[test]
fn p3_a_chain_of_regions_is_granted_with_one_post_and_revoked_with_one() {
    let number = |name: &str| std::env::var(name).ok().map(|n| n.parse::<usize>().unwrap());
    let rounds = number("MEMREG_TEST_ROUNDS").unwrap_or(2);
    let chains = number("MEMREG_TEST_CHAIN").map_or(vec![16, 64], |n| vec![n]);
    for chain in chains {
        let (mut owner, _peer) = pair();
        let mut buffers: Vec<Buffers> = (0..chain / EACH).map(|_| every_second_page()).collect();
        let mut exposed = Vec::with_capacity(chain / EACH);
        for _ in 0..WARM_UP {
            round(&mut owner, &mut buffers, &mut exposed);
        }
        let before = *owner.stats();
        for _ in 0..rounds {
            measured(&mut owner, &mut buffers, &mut exposed);
        }
        let (s, regions) = (owner.stats(), (rounds * chain) as u64);
        assert_eq!(s.posts - before.posts, 2 * rounds as u64);
        assert_eq!(s.registrations - before.registrations, regions);
        assert_eq!(s.invalidations - before.invalidations, regions);
        assert_eq!(s.wrs_signaled - before.wrs_signaled, rounds as u64);
        assert_eq!(s.wcs - before.wcs, rounds as u64);
        let buffers = regions / EACH as u64;
        assert_eq!(s.local_hits - before.local_hits, buffers, "one parent for all windows");
        assert_eq!(s.local_registrations, (chain / EACH) as u64);
    }
}

/// Pages that do not touch, so that no two of them are one region.
fn every_second_page() -> Buffers {
    let mut list = Buffers::new();
    let pages = (0..EACH).map(|k| 2 * k * PAGE..(2 * k + 1) * PAGE);
    list.push_ranges(DmaBuf::new(2 * EACH * PAGE).unwrap(), pages);
    list
}

fn pair() -> (Side, Side) {
    let fabric = Fabric::new(1);
    let caps = profile::builtin("rxe").unwrap().caps;
    let ask = Ask {
        max_payload_bytes: (EACH * PAGE) as u64,
        credits: 8,
        ranges_per_request: EACH as u32,
        ..Ask::default()
    };
    let options = OpenOptions { ask, ..OpenOptions::default() };
    let open = |name: &str, strategy: Strategy| {
        Transport::open(fabric.add_node(name, caps.clone()), strategy, &options).unwrap()
    };
    let mut owner = open("owner", Frwr::new().into());
    let mut peer = open("peer", Fmr::new().into());
    connect_pair(&mut owner, &mut peer).unwrap();
    (owner, peer)
}

/// Instructions are collected in here alone.
#[inline(never)]
fn measured(owner: &mut Side, buffers: &mut Vec<Buffers>, exposed: &mut Vec<Exposed>) {
    round(owner, buffers, exposed);
    std::hint::black_box(());
}

#[inline(never)]
fn round(owner: &mut Side, buffers: &mut Vec<Buffers>, exposed: &mut Vec<Exposed>) {
    step_expose(owner, buffers, exposed);
    step_flush(owner);
    device_runs(owner);
    step_revoke(owner, exposed);
    device_runs(owner);
    step_poll(owner);
    step_reclaim(owner, buffers, exposed);
}

/// Not part of the cost.
#[inline(never)]
fn device_runs(owner: &Side) {
    while owner.device().step() {}
}

#[inline(never)]
fn step_expose(owner: &mut Side, buffers: &mut Vec<Buffers>, exposed: &mut Vec<Exposed>) {
    for list in buffers.drain(..) {
        exposed.push(owner.expose(list, Grant::PeerWrites).unwrap());
    }
}

#[inline(never)]
fn step_flush(owner: &mut Side) {
    owner.flush().unwrap();
}

#[inline(never)]
fn step_revoke(owner: &mut Side, exposed: &[Exposed]) {
    owner.revoke_all(exposed, NoReply::Unmarked).unwrap();
}

#[inline(never)]
fn step_poll(owner: &mut Side) {
    owner.poll(Tick(0)).unwrap();
}

#[inline(never)]
fn step_reclaim(owner: &mut Side, buffers: &mut Vec<Buffers>, exposed: &mut Vec<Exposed>) {
    for e in exposed.drain(..) {
        buffers.push(owner.reclaim(e).unwrap());
    }
}
