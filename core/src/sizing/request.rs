//! What one operation needs, by the way in which memory is granted.

use super::{Ask, Clamp, KeyScope, Limits, SizeError, check_ask, queues};
use crate::device::Caps;
use crate::memreg::MAX_REGIONS;
use crate::mutants::mutant;

/// Bytes of one window at most.
///
/// # Source
/// The bind of mlx5 refuses more than 2 GiB (spec §5.3, rule 10).
pub const WINDOW_BYTES_LIMIT: u64 = 1 << 31;

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
/// With P = pages of the largest payload at any offset and d = min(P, page list), the regions are
/// `R = min(ceil(P / d) + 2, 16)` for payload, head and tail; the WRs `2 * R + 1`; and the pages of
/// the payload `min(P, (R - 2) * d)`.
///
/// A payload that the 16 regions have lowered is in whole pages: at a page boundary it leaves room
/// for a head and a tail, elsewhere for one of them.
///
/// # Errors
/// [`SizeError::Zero`], [`SizeError::PageSize`].
pub fn page_list_request(caps: &Caps, ask: &Ask) -> Result<PerRequest, SizeError> {
    check_ask(caps, ask)?;
    let page = u64::from(caps.page_size);
    // At the worst offset the first byte is the last one of its page.
    let pages = (ask.max_payload_bytes - 1).div_ceil(page) + 1;
    let list = u64::from(caps.max_fast_reg_page_list_len);
    if list == 0 {
        return Err(SizeError::Zero("max_fast_reg_page_list_len"));
    }
    let depth = pages.min(list);
    let regions = (pages.div_ceil(depth)).saturating_add(2).min(MAX_REGIONS as u64);
    let payload_pages = pages.min((regions - 2) * depth);
    let payload = if payload_pages == pages {
        ask.max_payload_bytes
    } else {
        (payload_pages * page).min(ask.max_payload_bytes)
    };
    let regions = if mutant!("D-06") { (pages / depth).max(1) } else { regions };
    Ok(PerRequest {
        page_list_depth: u32::try_from(depth).unwrap_or(u32::MAX),
        regions: regions as u32,
        wr: 2 * regions as u32 + 1,
        payload_bytes: payload,
    })
}

/// Regions and WRs of one operation for a strategy that binds a window on each contiguous range.
///
/// R = ranges asked, at most 16 and `max_mw`; 2R + 1 WRs; the payload is at most one MR, the
/// parent, and at most one window.
///
/// # Errors
/// [`SizeError::Zero`], [`SizeError::PageSize`].
pub fn window_request(caps: &Caps, ask: &Ask) -> Result<PerRequest, SizeError> {
    check_ask(caps, ask)?;
    for (name, v) in [("max_mw", u64::from(caps.max_mw)), ("max_mr_size", caps.max_mr_size)] {
        if v == 0 {
            return Err(SizeError::Zero(name));
        }
    }
    let regions = ask.ranges_per_request.min(MAX_REGIONS as u32).min(caps.max_mw);
    let payload_bytes = ask.max_payload_bytes.min(caps.max_mr_size).min(WINDOW_BYTES_LIMIT);
    Ok(PerRequest { page_list_depth: 0, regions, wr: 2 * regions + 1, payload_bytes })
}

/// Sizes everything for windows: beside the queues, `max_mw` bounds the operations in flight.
///
/// # Errors
/// As [`window_request`] and [`queues`].
pub fn window_limits(caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
    let per = window_request(caps, ask)?;
    let lowered = Ask {
        credits: ask.credits.min(caps.max_mw / per.regions),
        max_payload_bytes: per.payload_bytes,
        ..*ask
    };
    let mut limits = queues(caps, &lowered, per, KeyScope::Qp)?;
    limits.mechanism = "window";
    limits.remote_invalidation = true;
    let too_long = if caps.max_mr_size < WINDOW_BYTES_LIMIT { "max_mr_size" } else { "one window" };
    limits.restate(ask, "max_mw", too_long);
    let (asked, got) = (u64::from(ask.ranges_per_request), u64::from(per.regions));
    if got < asked {
        let by = if caps.max_mw < MAX_REGIONS as u32 { "max_mw" } else { "header" };
        limits.clamped.push(Clamp { what: "ranges_per_request", asked, got, by });
    }
    Ok(limits)
}

/// The longest contiguous payload that a number of page-list regions can describe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach {
    /// Bytes, wherever in a page the first one is.
    pub any_offset: u64,
    /// Bytes, when the first one starts a page.
    pub aligned: u64,
}

/// How far `regions` regions with the device's longest page lists reach; `None` for a device
/// without page lists.
#[must_use]
pub fn page_list_reach(caps: &Caps, regions: u32) -> Option<Reach> {
    let page = u64::from(caps.page_size);
    let entries = u64::from(caps.max_fast_reg_page_list_len) * u64::from(regions);
    let aligned = entries.checked_mul(page)?;
    // A start at the last byte of a page uses up an entry for that byte.
    let any_offset = aligned.checked_sub(page.checked_sub(1)?)?;
    caps.mem_mgt_extensions.then_some(Reach { any_offset, aligned })
}
