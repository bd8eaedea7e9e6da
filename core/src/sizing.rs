//! Queue sizes as pure functions of the device's limits and the user's wish (spec §1.4 with D-05,
//! D-06 and D-08 mended).

mod messages;
mod parts;
mod pinned;
mod request;
mod step_down;

pub use messages::check_messages;
pub use parts::SendParts;
pub use pinned::{Pinned, pinned};
pub use request::{
    PerRequest, Reach, WINDOW_BYTES_LIMIT, page_list_reach, page_list_request, window_limits,
    window_request,
};
pub use step_down::step_down;

use crate::device::Caps;
use crate::mutants::mutant;

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
    /// Bytes of the pieces into which a registration is cut that the device has no room for as a
    /// whole; 0 = it is an error then.
    pub split_bytes: u64,
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
            split_bytes: 0,
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
    /// What a region is made of, in words: "page list", "window", "ordinary MR", "bounce".
    pub mechanism: &'static str,
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
        "{need} completions can be outstanding ({send} send, {recv} receive), max_cqe is {limit}; \
         it has room for {fit} operations"
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
        /// Operations that would fit, 0 if not even one.
        fit: u32,
    },
    /// The device refused every length of the send queue down to this one.
    #[error(
        "the device refuses a send queue of {need} slots, which one operation needs ({wr} WRs, \
         {backchannel} backchannel, 1 drain)"
    )]
    Refused {
        /// Slots of the whole queue for one operation.
        need: u32,
        /// WRs of the operation.
        wr: u32,
        /// Backchannel slots.
        backchannel: u32,
    },
    /// The message buffers of one direction are larger than an MR can be.
    #[error(
        "message buffers need {need} bytes in one MR ({slots} {queue} slots of {bytes} bytes), \
         max_mr_size is {limit}"
    )]
    Messages {
        /// Bytes of the MR.
        need: u64,
        /// Slots of the queue.
        slots: u32,
        /// The queue: send or receive.
        queue: &'static str,
        /// Bytes of the largest message.
        bytes: u32,
        /// The device's limit.
        limit: u64,
    },
    /// The device has too few MRs for any connection.
    #[error(
        "a connection needs {need} MRs at least (2 for message buffers, 1 for what is exposed), \
         max_mr is {limit}"
    )]
    Regions {
        /// MRs needed.
        need: u32,
        /// The device's limit.
        limit: u32,
    },
    /// A limit leaves no whole page.
    #[error("{by} is {limit} bytes, less than a page of {page}")]
    LessThanPage {
        /// The limit's name.
        by: &'static str,
        /// The limit.
        limit: u64,
        /// The page size.
        page: u64,
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

/// Sizes the queues for `per` and reports what the device's limits lowered.
///
/// A send queue that is too short for all operations asked lowers their number, as it does in every
/// implementation. A CQ that is too short is an error: a device whose CQs do not match its queues
/// is a surprise that the user should hear of, and the error says how many operations to ask for.
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
    let fixed = u64::from(ask.backchannel) + u64::from(!mutant!("D-05"));
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
            fit: fitting_credits(caps.max_cqe, ask.backchannel, per.wr),
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
        mechanism: "its own",
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

/// Operations whose completions fit a CQ: each has `wr` sends and one receive.
fn fitting_credits(max_cqe: u32, backchannel: u32, wr: u32) -> u32 {
    let fixed = 2 * u64::from(backchannel) + 1;
    let each = u64::from(wr) + 1;
    (u64::from(max_cqe).saturating_sub(fixed) / each) as u32
}

impl Limits {
    /// Makes the notes of what was lowered speak of what the user asked, where a strategy has
    /// already lowered that before it sized the queues; `credits_by` and `payload_by` say why.
    pub fn restate(&mut self, ask: &Ask, credits_by: &'static str, payload_by: &'static str) {
        for (what, asked, got, by) in [
            ("credits", u64::from(ask.credits), u64::from(self.credits), credits_by),
            ("max_payload_bytes", ask.max_payload_bytes, self.max_payload_bytes, payload_by),
        ] {
            match self.clamped.iter_mut().find(|c| c.what == what) {
                Some(c) => c.asked = asked,
                None if got < asked => self.clamped.push(Clamp { what, asked, got, by }),
                None => {}
            }
        }
    }
}

fn check_ask(caps: &Caps, ask: &Ask) -> Result<(), SizeError> {
    if caps.page_size < 512 || !caps.page_size.is_power_of_two() {
        return Err(SizeError::PageSize(caps.page_size));
    }
    // Longer lists are cut into several WRs, but not even a message goes out without one.
    if caps.max_sge == 0 {
        return Err(SizeError::Zero("max_sge"));
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
mod tests;
