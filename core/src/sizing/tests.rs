//! Tests of the sizes: worked values, the cases one by one, then at random.

use super::*;

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
