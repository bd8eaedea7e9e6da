//! Steady state allocates nothing: neither the transport, nor the strategy, nor the software
//! device.
#![allow(clippy::unwrap_used)] // a test

use memreg_core::DmaBuf;
use memreg_core::device::Caps;
use memreg_core::device::sim::{Fabric, SimDevice};
use memreg_core::drive::{connect_pair, settle};
use memreg_core::memreg::MemReg;
use memreg_core::sizing::Ask;
use memreg_core::transport::{Buffers, NoReply, OpenOptions, Reply, Transport};
use memreg_core::types::{Grant, Tick};
use memreg_strategies::{Fmr, Frwr};

type Pair<S> = (Transport<SimDevice, S>, Transport<SimDevice, Fmr>);

fn pair<S: MemReg>(strategy: S, caps: Caps) -> Pair<S> {
    let fabric = Fabric::new(1);
    // Send queue of 16 (of 20 over windows): see the design's formula with two credits and one
    // backchannel slot.
    let ask = Ask { credits: 2, backchannel: 1, ..Ask::default() };
    let options = OpenOptions { ask, ..OpenOptions::default() };
    let owner = fabric.add_node("owner", caps);
    let mut owner = Transport::open(owner, strategy, &options).unwrap();
    let peer = fabric.add_node("peer", Caps::default());
    let mut peer = Transport::open(peer, Fmr::default(), &options).unwrap();
    connect_pair(&mut owner, &mut peer).unwrap();
    (owner, peer)
}

/// One whole operation: expose, tell, peer writes, peer answers, fence, reclaim.
fn cycle<S: MemReg>(
    p: &mut Pair<S>,
    bytes: DmaBuf,
    data: DmaBuf,
    v: &mut Vec<u8>,
) -> (DmaBuf, DmaBuf) {
    let (owner, peer) = p;
    let e = owner.expose(bytes, Grant::PeerWrites).unwrap();
    let wire = owner.segments(&e).unwrap()[0].to_wire();
    owner.send(&wire, Reply::InvalidatesNothing).unwrap();
    settle(Tick(1), &mut [owner, peer]).unwrap();
    peer.recv(v).unwrap();
    let seg = peer.import(v).unwrap();
    let op = peer.write(&seg, 0, data).unwrap();
    settle(Tick(1), &mut [owner, peer]).unwrap();
    let data = peer.take(op).unwrap().buffers.into_first().unwrap();
    peer.send(b"done", Reply::InvalidatesNothing).unwrap();
    settle(Tick(1), &mut [owner, peer]).unwrap();
    owner.recv(v).unwrap();
    owner.revoke(&e, NoReply::Unmarked).unwrap();
    settle(Tick(1), &mut [owner, peer]).unwrap();
    (owner.reclaim(e).unwrap().into_first().unwrap(), data)
}

/// Heap allocations of the cycles, and how many regions were renewed in them.
fn allocations<S: MemReg>(strategy: S, caps: Caps, cycles: usize) -> (u64, u64) {
    let mut p = pair(strategy, caps);
    let mut v = Vec::with_capacity(4096);
    let mut bufs = Some((DmaBuf::new(4096).unwrap(), DmaBuf::new(4096).unwrap()));
    let mut once = |p: &mut Pair<S>| {
        let (bytes, data) = bufs.take().unwrap();
        bufs = Some(cycle(p, bytes, data, &mut v));
    };
    // More than the ledger holds, and more than the key's tags.
    for _ in 0..5000 {
        once(&mut p);
    }
    let before = p.0.stats().renewals;
    let info = allocation_counter::measure(|| {
        for _ in 0..cycles {
            once(&mut p);
        }
    });
    (info.count_total, p.0.stats().renewals - before)
}

#[test]
fn p4_chains_of_sixty_four_regions_allocate_nothing() {
    let windows = Caps {
        max_fast_reg_page_list_len: 0,
        mem_window_type_2b: true,
        max_mw: 1000,
        ..Caps::default()
    };
    let ask = Ask { credits: 16, ranges_per_request: 16, ..Ask::default() };
    let options = OpenOptions { ask, ..OpenOptions::default() };
    let fabric = Fabric::new(1);
    let open = |name: &str| fabric.add_node(name, windows.clone());
    let mut owner = Transport::open(open("owner"), Frwr::default(), &options).unwrap();
    let mut peer = Transport::open(open("peer"), Fmr::default(), &options).unwrap();
    connect_pair(&mut owner, &mut peer).unwrap();
    let new = || (DmaBuf::new(64).unwrap(), 0..64);
    let mut lists: Vec<Buffers> = (0..2).map(|_| (0..16).map(|_| new()).collect()).collect();
    let one_buffer = || {
        let mut list = Buffers::new();
        list.push_ranges(DmaBuf::new(16 * 64).unwrap(), (0..16).map(|k| k * 64..k * 64 + 32));
        list
    };
    lists.extend((0..2).map(|_| one_buffer()));
    let mut exposed = Vec::with_capacity(4);
    let mut round = || {
        let all = lists.drain(..).map(|l| owner.expose(l, Grant::PeerWrites).unwrap());
        exposed.extend(all);
        owner.flush().unwrap();
        owner.revoke_all(&exposed, NoReply::Unmarked).unwrap();
        settle(Tick(1), &mut [&mut owner, &mut peer]).unwrap();
        lists.extend(exposed.drain(..).map(|e| owner.reclaim(e).unwrap()));
    };
    // More than the ledger holds, and more than a key's tags.
    (0..1200).for_each(|_| round());
    let used = allocation_counter::measure(|| (0..300).for_each(|_| round()));
    assert_eq!(used.count_total, 0);
}

#[test]
fn p4_ten_thousand_cycles_allocate_nothing() {
    let (frwr, renewed) = allocations(Frwr::default(), Caps::default(), 10_000);
    let (fmr, _) = allocations(Fmr::default(), Caps::default(), 10_000);
    let windows = Caps {
        max_fast_reg_page_list_len: 0,
        mem_window_type_2b: true,
        max_mw: 1000,
        ..Caps::default()
    };
    let (windows, windows_renewed) = allocations(Frwr::default(), windows, 10_000);
    println!(
        "heap allocations in 10000 cycles after warm-up: frwr {frwr}, over windows {windows}, \
         fmr {fmr}; regions renewed {renewed} and {windows_renewed}"
    );
    assert!(renewed > 0 && windows_renewed > 0);
    assert_eq!((frwr, windows, fmr), (0, 0, 0));
}
