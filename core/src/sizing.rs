//! Queue sizes as pure functions of the device's limits and the user's wish (spec §1.4 with D-05,
//! D-06 and D-08 mended).

use crate::device::Caps;
use crate::memreg::MAX_REGIONS;

/// What the user wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Largest operation, in bytes.
    pub max_payload_bytes: u64,
    /// Operations in flight.
    pub credits: u32,
    /// Extra send and receive slots for calls of the peer.
    pub backchannel: u32,
    /// Contiguous ranges per operation, for strategies that count ranges instead of pages.
    pub ranges_per_request: u32,
    /// Bytes of the largest message by SEND.
    pub max_message_bytes: u32,
    /// The user's word that the peer may keep access for ever.
    pub danger_trust_peer: bool,
}

impl Default for Ask {
    fn default() -> Ask {
        Ask {
            max_payload_bytes: 1 << 20,
            credits: 128,
            backchannel: 0,
            ranges_per_request: 4,
            max_message_bytes: 4096,
            danger_trust_peer: false,
        }
    }
}

/// How far a key reaches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KeyScope {
    /// Usable through its own QP only; dead once that QP is destroyed.
    Qp,
    /// Usable through every QP of the PD; outlives each of them.
    Pd,
}

/// A value that a limit lowered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clamp {
    /// What.
    pub what: &'static str,
    /// Asked.
    pub asked: u64,
    /// Granted.
    pub got: u64,
    /// The limit that did it.
    pub by: &'static str,
}

/// The sizes that a strategy works with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Page-list entries of one region; 0 where a region is a contiguous range.
    pub page_list_depth: u32,
    /// Regions of one operation (R).
    pub regions_per_request: u32,
    /// Send-queue slots of one operation: register and invalidate each region, and one SEND.
    pub wr_per_request: u32,
    /// Operations in flight.
    pub credits: u32,
    /// Extra slots for calls of the peer.
    pub backchannel: u32,
    /// Send-queue slots: `credits * wr_per_request + backchannel + 1`, the last for the drain
    /// sentinel.
    pub max_send_wr: u32,
    /// Receive-queue slots.
    pub max_recv_wr: u32,
    /// CQ entries: every send and every receive at once.
    pub cq_entries: u32,
    /// Segments of one operation that the peer may have to be told of.
    pub max_segments: u32,
    /// Bytes of the largest operation.
    pub max_payload_bytes: u64,
    /// Bytes of the bounce arena; 0 for a strategy that registers the memory itself.
    pub arena_bytes: u64,
    /// How far its keys reach.
    pub key_scope: KeyScope,
    /// Whether the peer may invalidate its keys with SEND_WITH_INV.
    pub remote_invalidation: bool,
    /// Everything that a limit lowered.
    pub clamped: Vec<Clamp>,
}

/// Not even one operation fits.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SizeError {
    /// The send queue is too short.
    #[error(
        "one operation needs {need} send-queue slots ({wr} WRs, {backchannel} backchannel, \
         1 drain), max_qp_wr is {limit}"
    )]
    SendQueue {
        /// Slots of the whole queue for one operation.
        need: u64,
        /// WRs of the operation.
        wr: u32,
        /// Backchannel slots.
        backchannel: u32,
        /// The device's limit.
        limit: u32,
    },
    /// The CQ is too short for every WR that can be outstanding.
    #[error(
        "{need} completions can be outstanding ({send} send, {recv} receive), max_cqe is {limit}"
    )]
    Cq {
        /// Entries needed.
        need: u64,
        /// Send-queue slots.
        send: u32,
        /// Receive-queue slots.
        recv: u32,
        /// The device's limit.
        limit: u32,
    },
    /// A number must be at least 1.
    #[error("{0} is zero")]
    Zero(&'static str),
    /// The page size is not a power of two of at least 512.
    #[error("page size {0} is not a power of two of at least 512")]
    PageSize(u32),
    /// The strategy's own reason.
    #[error("{0}")]
    Other(&'static str),
}

/// What one operation of a strategy needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PerRequest {
    /// Page-list entries of one region (d); 0 where a region is a contiguous range.
    pub page_list_depth: u32,
    /// Regions (R).
    pub regions: u32,
    /// WRs on the send queue.
    pub wr: u32,
    /// Largest payload.
    pub payload_bytes: u64,
}

/// Regions and WRs of one operation for a strategy that registers page lists by WR.
///
/// With P = pages of the largest payload at any offset and d = min(P, page list): R = min(ceil(P/d)
/// + 2, 16) for payload, head and tail; 2R + 1 WRs; payload pages = min(P, (R − 2)·d).
///
/// # Errors
/// [`SizeError::Zero`], [`SizeError::PageSize`].
pub fn page_list_request(caps: &Caps, ask: &Ask) -> Result<PerRequest, SizeError> {
    check_ask(caps, ask)?;
    let page = u64::from(caps.page_size);
    let pages = ask.max_payload_bytes / page + 1;
    let list = u64::from(caps.max_fast_reg_page_list_len);
    if list == 0 {
        return Err(SizeError::Zero("max_fast_reg_page_list_len"));
    }
    let depth = pages.min(list);
    let regions = (pages.div_ceil(depth)).saturating_add(2).min(MAX_REGIONS as u64);
    let payload_pages = pages.min((regions - 2) * depth);
    // P counts one page more than the payload has, for a start inside a page.
    let payload = if payload_pages == pages {
        ask.max_payload_bytes
    } else {
        (payload_pages * page).min(ask.max_payload_bytes)
    };
    Ok(PerRequest {
        page_list_depth: u32::try_from(depth).unwrap_or(u32::MAX),
        regions: regions as u32,
        wr: 2 * regions as u32 + 1,
        payload_bytes: payload,
    })
}

/// Sizes the queues for `per` and reports what the device's limits lowered.
///
/// # Errors
/// [`SizeError::SendQueue`] when no credit is left, [`SizeError::Cq`] when the CQ cannot hold every
/// completion.
pub fn queues(
    caps: &Caps,
    ask: &Ask,
    per: PerRequest,
    key_scope: KeyScope,
) -> Result<Limits, SizeError> {
    check_ask(caps, ask)?;
    let fixed = u64::from(ask.backchannel) + 1;
    let wr = u64::from(per.wr.max(1));
    let credits = u64::from(caps.max_qp_wr).saturating_sub(fixed) / wr;
    let credits = credits.min(u64::from(ask.credits)) as u32;
    if credits == 0 {
        return Err(SizeError::SendQueue {
            need: wr + fixed,
            wr: per.wr,
            backchannel: ask.backchannel,
            limit: caps.max_qp_wr,
        });
    }
    let max_send_wr = (u64::from(credits) * wr + fixed) as u32;
    let max_recv_wr = credits.saturating_add(ask.backchannel);
    let need = u64::from(max_send_wr) + u64::from(max_recv_wr);
    if need > u64::from(caps.max_cqe) {
        return Err(SizeError::Cq {
            need,
            send: max_send_wr,
            recv: max_recv_wr,
            limit: caps.max_cqe,
        });
    }
    let mut clamped = vec![];
    let mut note = |what, asked, got, by| {
        if got < asked {
            clamped.push(Clamp { what, asked, got, by });
        }
    };
    note("credits", u64::from(ask.credits), u64::from(credits), "max_qp_wr");
    note("max_payload_bytes", ask.max_payload_bytes, per.payload_bytes, "page list and header");
    Ok(Limits {
        page_list_depth: per.page_list_depth,
        regions_per_request: per.regions,
        wr_per_request: per.wr,
        credits,
        backchannel: ask.backchannel,
        max_send_wr,
        max_recv_wr,
        cq_entries: need as u32,
        max_segments: per.regions,
        max_payload_bytes: per.payload_bytes,
        arena_bytes: 0,
        key_scope,
        remote_invalidation: false,
        clamped,
    })
}

fn check_ask(caps: &Caps, ask: &Ask) -> Result<(), SizeError> {
    if caps.page_size < 512 || !caps.page_size.is_power_of_two() {
        return Err(SizeError::PageSize(caps.page_size));
    }
    for (name, v) in [
        ("max_payload", ask.max_payload_bytes),
        ("credits", u64::from(ask.credits)),
        ("ranges_per_request", u64::from(ask.ranges_per_request)),
        ("max_message", u64::from(ask.max_message_bytes)),
    ] {
        if v == 0 {
            return Err(SizeError::Zero(name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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
}
