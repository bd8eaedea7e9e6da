//! `expose`: what reaches the device, what is told to the peer, and what is undone.

use super::rig::{Rig, posts};
use memreg_core::DmaBuf;
use memreg_core::device::{Caps, LimitInfo, Verb, WrOp, errno};
use memreg_core::error::Disposition;
use memreg_core::memreg::MapError;
use memreg_core::sizing::Ask;
use memreg_core::transport::error::Refusal;
use memreg_core::transport::{Buffers, NoReply, Reply};
use memreg_core::types::Grant;
use memreg_strategies::{Fmr, Frwr};

fn three_segments() -> Buffers {
    let mut list = Buffers::new();
    for (fill, range) in [(1, 0..4096), (2, 512..4608), (3, 0..4096)] {
        let mut buf = DmaBuf::new(8192).unwrap();
        buf.fill(fill);
        list.push(buf, range);
    }
    list
}

#[test]
fn b19_h_27_three_segments_are_three_regions_without_gaps_and_one_with() {
    for (sg_gaps, regions) in [(false, 3), (true, 1)] {
        let caps = Caps { sg_gaps, ..Caps::default() };
        let mut rig = Rig::new(Frwr::default(), caps, Ask::default());
        let e = rig.owner.expose(three_segments(), Grant::PeerReads).unwrap();
        rig.owner.flush().unwrap();
        let segs = rig.owner.segments(&e).unwrap().to_vec();
        assert_eq!(segs.len(), regions, "sg_gaps {sg_gaps}");
        assert_eq!(segs.iter().map(|s| s.len).sum::<u64>(), 12288);
        let mut seen = vec![];
        for s in &segs {
            seen.extend(rig.peer_read(s, 0, s.len as usize).unwrap());
        }
        let expected: Vec<u8> = [1, 2, 3].iter().flat_map(|&b| [b; 4096]).collect();
        assert!(seen == expected, "every byte reachable, in order");
        assert_eq!(rig.node.counters().fast_mrs_valid, regions as u64);
        rig.back(e);
        rig.assert_clean();
        println!("three segments, unaligned middle: {regions} regions, sg_gaps {sg_gaps}");
    }
}

#[test]
fn b20_two_buffers_join_only_at_a_page_boundary() {
    for (first, regions, offset) in [(2096..4096, 1, 2096), (0..2000, 2, 0)] {
        let mut rig = Rig::frwr();
        let mut list = Buffers::new();
        list.push(DmaBuf::new(4096).unwrap(), first);
        list.push(DmaBuf::new(4096).unwrap(), 0..2096);
        let e = rig.owner.expose(list, Grant::PeerReads).unwrap();
        let segs = rig.owner.segments(&e).unwrap();
        assert_eq!(segs.len(), regions);
        assert_eq!(segs[0].addr % 4096, offset);
        rig.back(e);
    }
}

#[test]
fn b51_piece_of_an_allocation_exposes_nothing_else() {
    let mut rig = Rig::frwr();
    let buf = DmaBuf::new(1 << 20).unwrap();
    let e = rig.owner.expose((buf, 1_044_480..1_048_576), Grant::PeerWrites).unwrap();
    rig.owner.flush().unwrap();
    let s = rig.owner.segments(&e).unwrap()[0];
    assert_eq!(s.len, 4096);
    assert_eq!(rig.peer_write(&s, 0, &[7; 4096]), Ok(4096));
    let longer = memreg_core::Segment { len: 8192, addr: s.addr - 1, ..s };
    assert!(rig.peer_write(&longer, 0, &[9; 2]).is_err());
    rig.settle();
    let back = rig.owner.reclaim(e).unwrap().into_first().unwrap();
    assert!(back[1_044_480..].iter().all(|&b| b == 7));
    assert!(back[..1_044_480].iter().all(|&b| b == 0));
}

#[test]
fn b46_zero_length_names_the_item_and_costs_nothing() {
    fn check<S: memreg_core::MemReg>(mut rig: Rig<S>) {
        let e = rig.owner.expose(Buffers::new(), Grant::PeerReads).unwrap_err();
        assert_eq!(e.why, Refusal::Empty);
        let mut list = Buffers::new();
        list.push(DmaBuf::new(4096).unwrap(), 0..4096);
        list.push(DmaBuf::new(4096).unwrap(), 8..8);
        list.push(DmaBuf::new(4096).unwrap(), 0..1);
        let e = rig.owner.expose(list, Grant::PeerReads).unwrap_err();
        assert_eq!(e.why, Refusal::ZeroLength { index: 1 });
        assert_eq!(e.why.to_string(), "length is zero (item 1)");
        assert_eq!(e.buffers.count(), 3, "everything comes back");
        assert_eq!(e.disposition(), Disposition::Fatal);
        assert_eq!(rig.owner.stats().registrations, 0);
        rig.assert_clean();
    }
    check(Rig::frwr());
    check(Rig::new(Fmr::default(), Caps::default(), Ask::default()));
    let ask = Ask { danger_trust_peer: true, credits: 4, ..Ask::default() };
    let mut rig = Rig::new(memreg_strategies::Physical::new(true), Caps::default(), ask);
    let zero = (DmaBuf::new(8).unwrap(), 3..3);
    let e = rig.owner.expose(zero, Grant::PeerReads).unwrap_err();
    assert_eq!(e.why, Refusal::ZeroLength { index: 0 });
}

#[test]
fn map_15_registration_wr_shape() {
    let mut rig = Rig::frwr();
    let e = rig.owner.expose(DmaBuf::new(10_000).unwrap(), Grant::PeerWrites).unwrap();
    assert!(posts(&rig.trace.take()).is_empty(), "expose posts nothing");
    let s = rig.owner.segments(&e).unwrap()[0];
    rig.owner.send(b"here it is", Reply::InvalidatesNothing).unwrap();
    let chains = posts(&rig.trace.take());
    assert_eq!(chains.len(), 1, "H-34: one doorbell");
    let [reg, send] = &chains[0][..] else { panic!("{chains:?}") };
    let WrOp::RegMr { rkey, access, iova, len, pages, .. } = reg.op else { panic!("{reg:?}") };
    assert_eq!((rkey, iova, len), (s.rkey, s.addr, s.len));
    assert_eq!(access, Grant::PeerWrites.access());
    assert_eq!(pages.count(), 3);
    assert!(!reg.signaled && !send.signaled, "M-03");
    assert!(matches!(send.op, WrOp::Send(_)));
    rig.back(e);
    rig.assert_clean();
}

#[test]
fn map_10_h_16_h_25_dma_map_failure_gives_all_back() {
    for k in 1..=3 {
        let mut rig = Rig::frwr();
        rig.trace.take();
        for _ in 0..1000 {
            // The k-th buffer of the list cannot be mapped: let k-1 pass.
            rig.plan.heal();
            rig.plan.fail_nth(Verb::DmaMap, k, 1, errno::ENOMEM);
            let e = rig.owner.expose(three_segments(), Grant::PeerReads).unwrap_err();
            assert!(matches!(e.why, Refusal::Device(d) if d.verb == Verb::DmaMap));
            assert_eq!(e.buffers.count(), 3);
        }
        rig.plan.heal();
        rig.assert_clean();
        let e = rig.owner.expose(three_segments(), Grant::PeerReads).unwrap();
        rig.back(e);
        rig.assert_clean();
    }
}

#[test]
fn st_03_h_15_map_failing_half_way_grants_nothing() {
    // One region is made, the second cannot be: the list needs three.
    let caps = Caps { max_mr: 2 + 3 + 1, ..Caps::default() };
    let mut rig = Rig::new(Frwr::default(), caps, Ask::default());
    let (held, _) = rig.exposed(4096, 1, Grant::PeerReads);
    let (held2, _) = rig.exposed(4096, 1, Grant::PeerReads);
    rig.trace.take();
    let e = rig.owner.expose(three_segments(), Grant::PeerReads).unwrap_err();
    assert!(matches!(e.why, Refusal::Map(MapError::NoRegion { .. })), "{:?}", e.why);
    assert_eq!((e.disposition(), e.buffers.count()), (Disposition::Retry, 3));
    assert!(posts(&rig.trace.take()).is_empty(), "H-03, H-34: nothing was posted");
    rig.back(held);
    rig.back(held2);
    let e = rig.owner.expose(e.buffers, Grant::PeerReads).unwrap();
    rig.back(e);
    rig.assert_clean();
}

#[test]
fn map_18_b83_refused_post_gives_everything_back() {
    let mut rig = Rig::frwr();
    let e = rig.owner.expose(three_segments(), Grant::PeerReads).unwrap();
    rig.plan.refuse_post(1, 0, errno::EINVAL);
    let why = rig.owner.flush().unwrap_err();
    assert_eq!(why.disposition(), Disposition::Reconnect, "{why}");
    rig.settle();
    assert!(rig.is_down());
    assert_eq!(rig.owner.reclaim(e).unwrap().count(), 3);
    rig.assert_clean();
    rig.owner.reconnect().unwrap();
}

#[test]
fn map_18_full_queue_keeps_it_staged() {
    let mut rig = Rig::frwr();
    let e = rig.owner.expose(three_segments(), Grant::PeerReads).unwrap();
    rig.plan.refuse_post(1, 0, errno::ENOMEM);
    let why = rig.owner.flush().unwrap_err();
    assert_eq!(why.disposition(), Disposition::Retry, "{why}");
    assert_eq!(rig.owner.send_queue().0, 0, "exactly the refused WRs are taken back");
    rig.owner.flush().unwrap();
    rig.settle();
    let s = rig.owner.segments(&e).unwrap()[1];
    assert_eq!(rig.peer_read(&s, 0, 4096).unwrap(), [2; 4096]);
    rig.back(e);
    rig.assert_clean();
}

#[test]
fn map_22_errors_say_what_to_do() {
    let mut rig = Rig::frwr();
    let big = DmaBuf::new((1 << 20) + 1).unwrap();
    let e = rig.owner.expose(big, Grant::PeerReads).unwrap_err();
    assert_eq!(e.why, Refusal::TooLong { need: (1 << 20) + 1, limit: 1 << 20 });
    assert_eq!(e.disposition(), Disposition::Fatal);
    let mut list = Buffers::new();
    for _ in 0..17 {
        list.push(DmaBuf::new(64).unwrap(), 1..3);
    }
    let e = rig.owner.expose(list, Grant::PeerReads).unwrap_err();
    assert_eq!(e.why, Refusal::Map(MapError::TooManyRegions), "D-08");
    assert_eq!((e.disposition(), e.buffers.count()), (Disposition::Fatal, 17));
    let out = e.buffers.into_iter().next().unwrap().0;
    let e = rig.owner.expose((out, 60..65), Grant::PeerReads).unwrap_err();
    assert_eq!(e.why, Refusal::OutOfRange { index: 0, end: 65, len: 64 });
    rig.owner.disconnect();
    let e = rig.owner.expose(e.buffers, Grant::PeerReads).unwrap_err();
    assert_eq!(e.disposition(), Disposition::Reconnect);
    rig.settle();
    rig.assert_clean();
}

#[test]
fn staged_and_never_posted_comes_back_at_once_with_no_wr() {
    let mut rig = Rig::frwr();
    for _ in 0..100 {
        let e = rig.owner.expose(three_segments(), Grant::PeerReads).unwrap();
        rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
        assert_eq!(rig.owner.reclaim(e).unwrap().count(), 3);
    }
    assert!(posts(&rig.trace.take()).is_empty());
    assert_eq!(rig.node.counters().alloc_mr_calls, 3, "H-48: no region was made anew");
    rig.assert_clean();
}

#[test]
fn b64_key_is_read_after_its_registration_and_the_first_is_dead() {
    let mut rig = Rig::frwr();
    let (mut e, first) = rig.exposed(4096, 0, Grant::PeerWrites);
    // The pool is a queue: the region comes round again after all others.
    let second = loop {
        rig.back(e);
        let (next, s) = rig.exposed(4096, 0, Grant::PeerWrites);
        e = next;
        if s.rkey.index() == first.rkey.index() {
            break s;
        }
    };
    assert_ne!(first.rkey, second.rkey);
    assert_eq!(rig.peer_write(&second, 0, &[1]), Ok(1));
    assert!(rig.peer_write(&first, 0, &[1]).is_err());
    rig.settle();
    rig.owner.reclaim(e).unwrap();
}

#[test]
fn limits_are_named_with_their_numbers() {
    let mut rig = Rig::new(Fmr::default(), Caps { max_mr: 3, ..Caps::default() }, Ask::default());
    let (e, _) = rig.exposed(4096, 0, Grant::PeerReads);
    let refused = rig.owner.expose(DmaBuf::new(4096).unwrap(), Grant::PeerReads).unwrap_err();
    let Refusal::Map(MapError::Device(d)) = &refused.why else { panic!("{:?}", refused.why) };
    let limit = LimitInfo { what: "max_mr", need: 1, limit: 3, in_use: 3 };
    assert_eq!((d.verb, d.limit), (Verb::RegMr, Some(limit)));
    rig.back(e);
    let e = rig.owner.expose(refused.buffers, Grant::PeerReads).unwrap();
    rig.back(e);
    rig.assert_clean();
}

#[test]
fn b44_pages_of_64_kib_are_covered_whole_and_the_users_range_is_told() {
    let caps = Caps { page_size: 65_536, ..Caps::default() };
    let mut rig = Rig::new(Frwr::default(), caps, Ask::default());
    let buf = DmaBuf::new(32_768 + 100_000).unwrap();
    let e = rig.owner.expose((buf, 32_768..132_768), Grant::PeerReads).unwrap();
    rig.owner.flush().unwrap();
    rig.settle();
    let s = rig.owner.segments(&e).unwrap()[0];
    let chains = posts(&rig.trace.take());
    let WrOp::RegMr { pages, .. } = chains[0][0].op else { panic!("{chains:?}") };
    assert_eq!(pages.count(), 3, "196608 bytes of pages");
    assert_eq!((s.len, s.addr % 65_536), (100_000, 32_768), "the user's own start and length");
    rig.back(e);
    rig.assert_clean();
}
