//! Tests of the sizes: worked values, the cases one by one, then at random.

use super::*;
use crate::memreg::{MAX_REGIONS, SegList, SegShape};
use proptest::prelude::*;

/// The table of the design: page list, R, WRs, payload pages, then credits/max_send_wr at each
/// `max_qp_wr`.
#[test]
fn opn_table_of_worked_values() {
    #[rustfmt::skip]
    #[allow(clippy::type_complexity)] // one row of the table
    let rows: [(u32, u32, u32, u64, [(u32, u32); 4]); 6] = [
        (1,   16, 33, 14,  [(3, 100),  (3, 100),  (31, 1024),  (128, 4225)]),
        (16,  16, 33, 224, [(3, 100),  (3, 100),  (31, 1024),  (128, 4225)]),
        (30,  11, 23, 257, [(4, 93),   (5, 116),  (44, 1013),  (128, 2945)]),
        (64,  7,  15, 257, [(6, 91),   (8, 121),  (68, 1021),  (128, 1921)]),
        (256, 4,  9,  257, [(11, 100), (14, 127), (113, 1018), (128, 1153)]),
        (257, 3,  7,  257, [(14, 99),  (18, 127), (128, 897),  (128, 897)]),
    ];
    for (list, r, wr, pages, sizes) in rows {
        for (qp_wr, (credits, send)) in [100, 128, 1024, 32768].into_iter().zip(sizes) {
            let caps =
                Caps { max_fast_reg_page_list_len: list, max_qp_wr: qp_wr, ..Caps::default() };
            let per = page_list_request(&caps, &Ask::default()).unwrap();
            assert_eq!((per.regions, per.wr), (r, wr));
            let payload = if pages == 257 { 1 << 20 } else { pages * 4096 };
            assert_eq!(per.payload_bytes, payload);
            let l = queues(&caps, &Ask::default(), per, KeyScope::Pd).unwrap();
            assert_eq!((l.credits, l.max_send_wr), (credits, send), "{list} {qp_wr}");
            assert_eq!(l.clamped.iter().any(|c| c.what == "credits"), credits < 128);
        }
        let caps = Caps { max_fast_reg_page_list_len: list, max_qp_wr: 6, ..Caps::default() };
        let per = page_list_request(&caps, &Ask::default()).unwrap();
        let e = queues(&caps, &Ask::default(), per, KeyScope::Pd).unwrap_err();
        assert_eq!(
            e,
            SizeError::SendQueue { need: u64::from(wr) + 1, wr, backchannel: 0, limit: 6 }
        );
    }
}

#[test]
fn d_05_fixed_slots_are_added_after_the_clamp() {
    let caps = Caps { max_qp_wr: 128, ..Caps::default() };
    let ask = Ask { backchannel: 8, ..Ask::default() };
    let per = page_list_request(&caps, &ask).unwrap();
    let l = queues(&caps, &ask, per, KeyScope::Pd).unwrap();
    assert_eq!(l.max_send_wr, l.credits * per.wr + 8 + 1);
    assert!(l.max_send_wr <= 128);
}

fn sized(caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
    queues(caps, ask, page_list_request(caps, ask)?, KeyScope::Pd)
}

fn asked(credits: u32) -> Ask {
    Ask { credits, ..Ask::default() }
}

#[test]
fn opn_07_a_queue_of_exactly_max_qp_wr_is_accepted() {
    // 128 operations of 3 regions and the drain.
    for (max_qp_wr, credits) in [(898, 128), (897, 128), (896, 127)] {
        let l = sized(&Caps { max_qp_wr, ..Caps::default() }, &asked(128)).unwrap();
        assert_eq!((l.credits, l.clamped.is_empty()), (credits, credits == 128));
    }
}

#[test]
fn ep_01_the_least_device_is_one_operation_and_one_sge() {
    let caps = Caps { max_sge: 1, max_qp_wr: 8, ..Caps::default() };
    assert_eq!(sized(&caps, &asked(128)).map(|l| (l.credits, l.max_send_wr)), Ok((1, 8)));
    let e = sized(&Caps { max_qp_wr: 7, ..caps.clone() }, &asked(128)).unwrap_err();
    assert_eq!(e, SizeError::SendQueue { need: 8, wr: 7, backchannel: 0, limit: 7 });
    let e = sized(&Caps { max_sge: 0, ..caps }, &asked(128)).unwrap_err();
    assert_eq!(e, SizeError::Zero("max_sge"));
}

#[test]
fn ep_02_the_receive_queue_follows_the_credits_after_clamping() {
    let ask = Ask { backchannel: 8, ..asked(128) };
    let l = sized(&Caps { max_qp_wr: 100, ..Caps::default() }, &ask).unwrap();
    assert_eq!((l.credits, l.max_recv_wr), (13, 13 + 8));
    assert_eq!(l.cq_entries, l.max_send_wr + l.max_recv_wr, "EP-03");
}

#[test]
fn d_06_mxp_01_regions_are_rounded_up_with_head_and_tail() {
    let at = |list| {
        let caps = Caps { max_fast_reg_page_list_len: list, ..Caps::default() };
        let l = sized(&caps, &asked(1)).unwrap();
        (l.max_segments, l.max_payload_bytes / 4096)
    };
    // The right column of the worked values, at most 16; then the payload in pages.
    assert_eq!(
        [1, 30, 64, 256, 257, 9999].map(at),
        [(16, 14), (11, 256), (7, 256), (4, 256), (3, 256), (3, 256),]
    );
    let none = Caps { max_fast_reg_page_list_len: 0, ..Caps::default() };
    assert_eq!(sized(&none, &asked(1)), Err(SizeError::Zero("max_fast_reg_page_list_len")));
}

#[test]
fn opn_02_a_payload_of_odd_length_touches_one_page_more() {
    let caps = Caps { max_fast_reg_page_list_len: 11, ..Caps::default() };
    let per = |max_payload_bytes| {
        page_list_request(&caps, &Ask { max_payload_bytes, ..Ask::default() }).unwrap()
    };
    // 40,960 bytes are 10 pages, and 11 at an odd offset; with two bytes more they can be 12.
    assert_eq!((per(40_960).regions, per(40_961).regions, per(40_962).regions), (3, 3, 4));
    assert_eq!((per(1).page_list_depth, per(2).page_list_depth), (1, 2));
}

#[test]
fn b14_the_longest_payload_at_any_offset() {
    let reach = |list| {
        let caps = Caps { max_fast_reg_page_list_len: list, ..Caps::default() };
        page_list_reach(&caps, 1).map(|r| (r.any_offset, r.aligned))
    };
    assert_eq!(reach(256), Some((1_044_481, 1_048_576)));
    assert_eq!(reach(1), Some((1, 4096)));
    assert_eq!(reach(0), None);
    // Where an allocation of 256 fails and one of 128 works, 128 is what is planned with.
    assert_eq!(reach(128), Some((520_193, 524_288)));
    let no_flag = Caps { mem_mgt_extensions: false, ..Caps::default() };
    assert_eq!(page_list_reach(&no_flag, 1), None);
    let huge = Caps { max_fast_reg_page_list_len: u32::MAX, page_size: 1 << 31, ..Caps::default() };
    assert_eq!(page_list_reach(&huge, u32::MAX), None, "no wrap");
}

#[test]
fn b32_the_send_queue_has_room_for_registering_invalidating_and_sending() {
    let caps = Caps { mem_window_type_2b: true, max_mw: 1000, ..Caps::default() };
    let l = window_limits(&caps, &Ask { ranges_per_request: 2, ..asked(32) }).unwrap();
    let want = SendParts { register: 64, invalidate: 64, send: 32, backchannel: 0, drain: 1 };
    assert_eq!(l.parts(), want);
    assert_eq!((l.max_send_wr, l.parts().total()), (161, 161));
}

#[test]
fn b33_the_cq_holds_every_completion_or_open_is_refused() {
    // 32 operations of 2 ranges: 160 slots, the drain, and 32 receives.
    let ask = Ask { ranges_per_request: 2, ..asked(32) };
    let caps = Caps { max_mw: 1000, max_cqe: 4096, ..Caps::default() };
    assert_eq!(window_limits(&caps, &ask).unwrap().cq_entries, 161 + 32);
    let e = window_limits(&Caps { max_cqe: 128, ..caps.clone() }, &ask).unwrap_err();
    assert_eq!(
        e.to_string(),
        "193 completions can be outstanding (161 send, 32 receive), max_cqe is 128; it has room \
         for 21 operations"
    );
    // The advice is right.
    let fits =
        |credits| window_limits(&Caps { max_cqe: 128, ..caps.clone() }, &Ask { credits, ..ask });
    assert!(fits(21).is_ok() && fits(22).is_err());
}

#[test]
fn b37_a_small_max_qp_wr_lowers_the_operations_in_flight() {
    let ask = asked(32);
    let l = sized(&Caps { max_qp_wr: 100, ..Caps::default() }, &ask).unwrap();
    let parts = l.parts();
    assert_eq!((l.credits, parts.register + parts.invalidate + parts.send), (14, 98));
    assert_eq!(l.clamped, [Clamp { what: "credits", asked: 32, got: 14, by: "max_qp_wr" }]);
    let e = sized(&Caps { max_qp_wr: 6, ..Caps::default() }, &ask).unwrap_err().to_string();
    assert!(e.contains("7 WRs") && e.contains("max_qp_wr is 6"), "{e}");
}

#[test]
fn b38_sizes_come_from_the_plan_and_one_slot_is_not_enough() {
    let caps = Caps { mem_window_type_2b: true, max_mw: 10_000, ..Caps::default() };
    let l = window_limits(&caps, &Ask::default()).unwrap();
    assert_eq!((l.max_send_wr, l.max_recv_wr), (128 * 9 + 1, 128));
    let short = Caps { max_qp_wr: 1, ..caps };
    let one = Ask { ranges_per_request: 1, ..asked(1) };
    let e = window_limits(&short, &one).unwrap_err();
    assert_eq!(e, SizeError::SendQueue { need: 4, wr: 3, backchannel: 0, limit: 1 });
}

#[test]
fn b45_pages_are_counted_in_the_devices_page_size() {
    let ask = Ask { max_payload_bytes: 16 << 20, ..asked(1) };
    let at = |page_size| {
        let caps = Caps { page_size, max_fast_reg_page_list_len: 256, ..Caps::default() };
        let l = sized(&caps, &ask).unwrap();
        (l.page_list_depth, l.regions_per_request, l.max_payload_bytes)
    };
    // 16 lists of 256 small pages would leave none for head and tail.
    assert_eq!(at(4096), (256, 16, 14 << 20));
    assert_eq!(at(65536), (256, 4, 16 << 20));
}

#[test]
fn windows_are_bounded_by_what_the_device_has() {
    let caps = Caps { max_mw: 1000, max_mr_size: 1 << 20, ..Caps::default() };
    let ask = Ask { max_payload_bytes: 1 << 40, ..Ask::default() };
    let l = window_limits(&caps, &ask).unwrap();
    let by = "max_mr_size";
    let note = Clamp { what: "max_payload_bytes", asked: 1 << 40, got: 1 << 20, by };
    assert_eq!((&l.clamped[..], l.max_payload_bytes), (&[note][..], 1 << 20));
    let l = window_limits(&Caps { max_mr_size: u64::MAX, ..caps.clone() }, &ask).unwrap();
    assert_eq!((l.max_payload_bytes, l.clamped[0].by), (2 << 30, "one window"));

    let few = window_limits(&Caps { max_mw: 10, ..caps.clone() }, &Ask::default()).unwrap();
    assert_eq!((few.credits, few.regions_per_request), (2, 4));
    assert_eq!(few.clamped, [Clamp { what: "credits", asked: 128, got: 2, by: "max_mw" }]);
    let fewer = window_limits(&Caps { max_mw: 3, ..caps.clone() }, &Ask::default()).unwrap();
    assert_eq!((fewer.credits, fewer.regions_per_request, fewer.wr_per_request), (1, 3, 7));
    let note = Clamp { what: "ranges_per_request", asked: 4, got: 3, by: "max_mw" };
    assert_eq!(fewer.clamped[1], note);
    let wide = Ask { ranges_per_request: 99, ..Ask::default() };
    let wide = window_limits(&caps, &wide).unwrap();
    assert_eq!((wide.regions_per_request, wide.clamped[1].by), (16, "header"));

    let none = Caps { max_mw: 0, ..caps.clone() };
    assert_eq!(window_limits(&none, &Ask::default()), Err(SizeError::Zero("max_mw")));
    let none = Caps { max_mr_size: 0, ..caps };
    assert_eq!(window_limits(&none, &Ask::default()), Err(SizeError::Zero("max_mr_size")));
}

#[test]
fn b36_a_refused_depth_is_stepped_down_to_what_the_device_has() {
    // One WR an operation: 4095 operations and the drain are 4096 slots.
    let per = PerRequest { page_list_depth: 0, regions: 16, wr: 1, payload_bytes: 1 << 20 };
    let caps = Caps { max_qp_wr: 4096, ..Caps::default() };
    let mut l = queues(&caps, &asked(8000), per, KeyScope::Pd).unwrap();
    assert_eq!(l.max_send_wr, 4096);
    while l.max_send_wr > 1024 {
        l = step_down(&l).unwrap();
    }
    assert_eq!((l.max_send_wr, l.credits, l.max_recv_wr, l.cq_entries), (1024, 1023, 1023, 2047));
    assert_eq!(
        l.clamped,
        [
            Clamp { what: "credits", asked: 8000, got: 1023, by: "create_qp" },
            Clamp { what: "max_send_wr", asked: 4096, got: 1024, by: "create_qp" },
        ]
    );
    // Below one operation it is an error with the numbers.
    let one = sized(&Caps { max_qp_wr: 14, ..caps }, &asked(128)).unwrap();
    let e = step_down(&one).unwrap_err();
    assert_eq!(e, SizeError::Refused { need: 8, wr: 7, backchannel: 0 });
}

#[test]
fn b36_the_steps_end_where_the_software_device_accepts() {
    use crate::device::sim::Fabric;
    use crate::device::{Device, QpCaps};
    let caps =
        Caps { max_qp_wr: 4096, wide_sge: 4, max_qp_wr_wide: 1024, max_sge: 8, ..Caps::default() };
    let device = Fabric::new(1).add_node("sim", caps.clone());
    let pd = device.alloc_pd().unwrap();
    let (cq, _) = device.create_cq(10_000).unwrap();
    let per = PerRequest { page_list_depth: 0, regions: 16, wr: 1, payload_bytes: 1 << 20 };
    let mut l = queues(&caps, &asked(4095), per, KeyScope::Pd).unwrap();
    let mut refused = 0;
    let granted = loop {
        let ask = QpCaps {
            max_send_wr: l.max_send_wr,
            max_recv_wr: l.max_recv_wr,
            max_sge: caps.max_sge,
            max_inline_data: 0,
        };
        match device.create_qp(pd, cq, ask) {
            Ok((_, got)) => break got,
            Err(_) => l = step_down(&l).unwrap(),
        }
        refused += 1;
    };
    assert_eq!((refused, granted.max_send_wr, l.max_send_wr, l.credits), (2, 1024, 1024, 1023));
    let note = l.clamped.iter().find(|c| c.what == "max_send_wr").unwrap();
    assert_eq!((note.asked, note.got), (4096, 1024));
}

/// Devices and wishes, with a bias to the small and odd.
fn worlds() -> impl Strategy<Value = (Caps, Ask)> {
    let payload = prop_oneof![1u64..5_000_000, Just(1 << 20), 1u64..u64::MAX];
    let page = prop_oneof![Just(4096u32), Just(65536), (9u32..31).prop_map(|n| 1 << n)];
    let list = prop_oneof![1u32..600, 1u32..u32::MAX];
    let credits = prop_oneof![1u32..300, 1u32..u32::MAX];
    let bc = prop_oneof![Just(0u32), 0u32..64, 0u32..u32::MAX];
    let qp_wr = prop_oneof![0u32..200, 0u32..40_000, 0u32..u32::MAX];
    let cqe = prop_oneof![0u32..400, 0u32..100_000, 0u32..u32::MAX];
    let mw = prop_oneof![1u32..40, 1u32..u32::MAX];
    (payload, page, list, credits, bc, qp_wr, cqe, mw, 1u32..40).prop_map(
        |(max_payload_bytes, page_size, list, credits, backchannel, qp_wr, max_cqe, mw, ranges)| {
            let caps = Caps {
                page_size,
                max_fast_reg_page_list_len: list,
                max_qp_wr: qp_wr,
                max_cqe,
                max_mw: mw,
                mem_window_type_2b: true,
                ..Caps::default()
            };
            let ask = Ask {
                max_payload_bytes,
                credits,
                backchannel,
                ranges_per_request: ranges,
                ..Ask::default()
            };
            (caps, ask)
        },
    )
}

/// Whatever the strategy.
fn assert_sound(l: &Limits, caps: &Caps, ask: &Ask) {
    let slots = u64::from(l.credits) * u64::from(l.wr_per_request) + u64::from(ask.backchannel) + 1;
    assert_eq!(u64::from(l.max_send_wr), slots);
    assert_eq!(l.parts().total(), slots);
    assert!(l.max_send_wr <= caps.max_qp_wr && l.max_recv_wr <= caps.max_qp_wr);
    assert_eq!(u64::from(l.max_recv_wr), u64::from(l.credits) + u64::from(ask.backchannel));
    assert!(u64::from(l.cq_entries) >= u64::from(l.max_send_wr) + u64::from(l.max_recv_wr));
    assert!(l.cq_entries <= caps.max_cqe);
    assert!((1..=MAX_REGIONS as u32).contains(&l.regions_per_request));
    assert_eq!(l.wr_per_request, 2 * l.regions_per_request + 1);
    assert!(l.credits >= 1 && l.credits <= ask.credits);
    assert!(l.max_payload_bytes >= 1 && l.max_payload_bytes <= ask.max_payload_bytes);
    let lowered = |what| l.clamped.iter().filter(|c| c.what == what).count();
    assert_eq!(lowered("credits"), usize::from(l.credits < ask.credits));
    let shorter = l.max_payload_bytes < ask.max_payload_bytes;
    assert_eq!(lowered("max_payload_bytes"), usize::from(shorter));
    assert!(l.clamped.iter().all(|c| c.got < c.asked));
}

/// The numbers of an error are those of the device, and it is right.
fn assert_refusal_is_right(e: &SizeError, caps: &Caps, ask: &Ask) {
    match *e {
        SizeError::SendQueue { need, wr, backchannel, limit } => {
            assert_eq!(need, u64::from(wr) + u64::from(ask.backchannel) + 1);
            assert!(need > u64::from(limit));
            assert_eq!((limit, backchannel), (caps.max_qp_wr, ask.backchannel));
        }
        SizeError::Cq { need, send, recv, limit, .. } => {
            assert_eq!(need, u64::from(send) + u64::from(recv));
            assert!(need > u64::from(limit) && limit == caps.max_cqe);
        }
        _ => panic!("{e}"),
    }
    assert!(e.to_string().chars().any(|c| c.is_ascii_digit()));
}

/// Regions that a list takes, cut greedily.
fn regions(list: &[(u64, u64)], page: u64, depth: u32) -> usize {
    let seg = |&(offset, len): &(u64, u64)| SegShape { page_offset: offset as u32, len };
    let segs: Vec<_> = list.iter().filter(|s| s.1 > 0).map(seg).collect();
    let list = SegList::new(&segs, page as u32);
    let (mut at, mut n) = (0, 0);
    while at < list.total() {
        at += list.run(at, depth, false).bytes;
        n += 1;
    }
    n
}

proptest! {
    #[test]
    fn opn_mxp_page_list_sizes_are_sound((caps, ask) in worlds()) {
        match sized(&caps, &ask) {
            Ok(l) => assert_sound(&l, &caps, &ask),
            Err(e) => assert_refusal_is_right(&e, &caps, &ask),
        }
    }

    #[test]
    fn opn_mxp_window_sizes_are_sound((caps, ask) in worlds()) {
        match window_limits(&caps, &ask) {
            Ok(l) => {
                assert_sound(&l, &caps, &ask);
                let windows = u64::from(l.credits) * u64::from(l.regions_per_request);
                assert!(windows <= u64::from(caps.max_mw));
            }
            Err(e) => assert_refusal_is_right(&e, &caps, &ask),
        }
    }

    /// A payload of the largest size, wherever it starts, with head and tail of their own, takes
    /// no more regions than planned; one that 16 regions have lowered does so at a page boundary,
    /// or anywhere with one of the two.
    #[test]
    fn d_06_d_08_regions_cover_the_payload(
        payload in 1u64..3_000_000,
        list in 1u32..300,
        offset in 0u64..4096,
        head in 0u64..3,
        tail in 0u64..3,
    ) {
        let caps = Caps { max_fast_reg_page_list_len: list, ..Caps::default() };
        let ask = Ask { max_payload_bytes: payload, ..Ask::default() };
        let per = page_list_request(&caps, &ask).unwrap();
        let needs = |head: u64, tail: u64, offset| {
            let body = per.payload_bytes.saturating_sub(head + tail).max(1);
            // No head ends, and no tail starts, on a page boundary that would join it.
            regions(&[(7, head), (offset, body), (9, tail)], 4096, per.page_list_depth)
        };
        let most = per.regions as usize;
        if per.payload_bytes == payload {
            prop_assert!(needs(head, tail, offset) <= most);
        } else {
            prop_assert!(needs(head, tail, 0) <= most);
            prop_assert!(needs(head, 0, offset) <= most && needs(0, tail, offset) <= most);
        }
    }

    #[test]
    fn opn_06_more_queue_never_means_fewer_operations((caps, ask) in worlds(), more: u32) {
        let roomy = Caps { max_cqe: u32::MAX, ..caps };
        let bigger = Caps { max_qp_wr: roomy.max_qp_wr.saturating_add(more), ..roomy.clone() };
        if let Ok(small) = sized(&roomy, &ask) {
            // Two queues of more than half of all 32-bit numbers do not fit any CQ.
            match sized(&bigger, &ask) {
                Ok(large) => prop_assert!(large.credits >= small.credits),
                Err(e) => prop_assert!(matches!(e, SizeError::Cq { .. }), "{e}"),
            }
        }
    }

    #[test]
    fn b33_the_advice_of_a_refusal_is_the_most_that_fits((caps, ask) in worlds()) {
        if let Err(SizeError::Cq { fit, .. }) = sized(&caps, &ask) {
            let with = |credits| sized(&caps, &Ask { credits, ..ask });
            if fit > 0 {
                prop_assert!(with(fit).is_ok());
            }
            prop_assert!(with(fit.saturating_add(1).min(ask.credits)).is_err());
        }
    }

    #[test]
    fn b36_stepping_down_ends_and_finds_what_fits((caps, ask) in worlds(), depth in 0u32..5000) {
        let Ok(mut l) = sized(&caps, &ask) else { return Ok(()) };
        let first = l.clone();
        for _ in 0..34 {
            if l.max_send_wr <= depth {
                break;
            }
            match step_down(&l) {
                Ok(next) => {
                    prop_assert!(next.max_send_wr < l.max_send_wr);
                    assert_sound(&next, &caps, &ask);
                    l = next;
                }
                Err(SizeError::Refused { need, .. }) => {
                    prop_assert!(need > depth, "one operation would have fitted");
                    return Ok(());
                }
                Err(e) => panic!("{e}"),
            }
        }
        prop_assert!(l.max_send_wr <= depth);
        // Not needlessly short: half of what the device has, but for rounding.
        if first.max_send_wr > depth {
            let operation = l.wr_per_request + l.backchannel + 1;
            prop_assert!(l.max_send_wr + operation >= depth / 2);
        }
    }
}
