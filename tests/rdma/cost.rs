//! What granting and revoking costs through the whole stack, for `tests/rdma/icount`.

use crate::pair::{Side, device};
use memreg_core::drive::connect_pair;
use memreg_core::sizing::Ask;
use memreg_core::transport::{Buffers, Exposed, ExposureState, NoReply, OpenOptions};
use memreg_core::{DmaBuf, Grant, Tick, Transport};
use memreg_strategies::{Fmr, Frwr, Strategy};
use std::time::Instant;

/// Regions of one exposure: windows of a page each onto one buffer, which is lent and registered
/// once. The C program that this is held against (`tests/rdma/floor.c`) binds all its windows onto
/// one MR too.
const EACH: usize = 16;
const PAGE: usize = 4096;

#[test]
#[ignore = "prints a cost: tests/rdma/icount runs it and holds it against C"]
fn p3_frwr_grants_and_revokes_in_chains() {
    let Some(dev) = device() else { return };
    let rounds = std::env::var("MEMREG_TEST_ROUNDS").map_or(100, |n| n.parse().unwrap());
    let ask = Ask {
        max_payload_bytes: (EACH * PAGE) as u64,
        credits: 8,
        ranges_per_request: EACH as u32,
        ..Ask::default()
    };
    let options = OpenOptions { ask, ..OpenOptions::default() };
    let open = |s: Strategy| Transport::open(dev.clone(), s, &options).unwrap();
    let (mut owner, mut peer) = (open(Frwr::new().into()), open(Fmr::new().into()));
    connect_pair(&mut owner, &mut peer).unwrap();
    for chain in [16, 64] {
        let mut buffers: Vec<Buffers> = (0..chain / EACH).map(|_| every_second_page()).collect();
        let mut exposed = Vec::with_capacity(buffers.len());
        for _ in 0..WARM_UP {
            turn(&mut owner, &mut buffers, &mut exposed, |_| ());
        }
        let mut samples = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let start = Instant::now();
            turn(&mut owner, &mut buffers, &mut exposed, |_| ());
            samples.push(nanoseconds(start));
        }
        println!("@stack chain {chain} {}", median(samples) / chain as u64);
        // In rounds of their own, for a look at the clock costs too.
        let mut parts: [Vec<u64>; PARTS.len()] = Default::default();
        for _ in 0..rounds {
            let mut start = Instant::now();
            turn(&mut owner, &mut buffers, &mut exposed, |part| {
                parts[part].push(nanoseconds(start));
                start = Instant::now();
            });
        }
        for (name, part) in PARTS.iter().zip(parts) {
            println!("@stack part of {chain} {name} {}", median(part) / chain as u64);
        }
    }
}

/// Makes the parents' registrations, fills the pools, and touches all memory of the ledger.
const WARM_UP: usize = 1000;

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap()
}

fn median(mut samples: Vec<u64>) -> u64 {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

/// Pages that do not touch, so that no two of them are one region.
fn every_second_page() -> Buffers {
    let mut list = Buffers::new();
    let pages = (0..EACH).map(|k| 2 * k * PAGE..(2 * k + 1) * PAGE);
    list.push_ranges(DmaBuf::new(2 * EACH * PAGE).unwrap(), pages);
    list
}

const PARTS: [&str; 4] = ["expose", "flush", "revoke", "poll-and-reclaim"];

/// Everything exposed with one post and revoked with one; `done` hears of each part.
fn turn(
    owner: &mut Side,
    buffers: &mut Vec<Buffers>,
    exposed: &mut Vec<Exposed>,
    mut done: impl FnMut(usize),
) {
    while let Some(list) = buffers.pop() {
        exposed.push(owner.expose(list, Grant::PeerWrites).unwrap());
    }
    done(0);
    owner.flush().unwrap();
    done(1);
    owner.revoke_all(&*exposed, NoReply::Unmarked).unwrap();
    done(2);
    // The last one is fenced last.
    owner.poll(Tick(0)).unwrap();
    while exposed.last().is_some_and(|e| owner.exposure_state(e) != Ok(ExposureState::Fenced)) {
        owner.poll(Tick(0)).unwrap();
    }
    while let Some(e) = exposed.pop() {
        buffers.push(owner.reclaim(e).unwrap());
    }
    done(3);
}
