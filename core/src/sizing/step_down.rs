//! A shorter send queue, for a device that refuses the length it has announced.

use super::{Clamp, Limits, SizeError};

/// The sizes to try next after the device has refused a QP with those of `limits`.
///
/// The depth that a device really has depends on the size of its WRs, hence on SGEs and inline
/// bytes, and no attribute tells it: one finds out by making a QP. Hardware counts in powers of
/// two, so the next depth is the next power of two below, and one operation's need at the end. What
/// was asked before the first step stays in the note.
///
/// # Shape
/// Pure. Repeated until the device accepts it, or until the error: at most 33 times.
/// # Errors
/// [`SizeError::Refused`] when `limits` are for one operation already.
pub fn step_down(limits: &Limits) -> Result<Limits, SizeError> {
    let (wr, backchannel) = (limits.wr_per_request, limits.backchannel);
    let fixed = u64::from(backchannel) + 1;
    let one = u64::from(wr) + fixed;
    if limits.credits <= 1 {
        let need = u32::try_from(one).unwrap_or(u32::MAX);
        return Err(SizeError::Refused { need, wr, backchannel });
    }
    let depth = u64::from(power_of_two_below(limits.max_send_wr)).max(one);
    let credits = ((depth - fixed) / u64::from(wr.max(1))) as u32;
    let credits = credits.clamp(1, limits.credits - 1);
    let max_send_wr = (u64::from(credits) * u64::from(wr) + fixed) as u32;
    let mut next = limits.clone();
    next.arena_bytes = limits.arena_bytes / u64::from(limits.credits) * u64::from(credits);
    next.credits = credits;
    next.max_send_wr = max_send_wr;
    next.max_recv_wr = credits.saturating_add(backchannel);
    next.cq_entries = max_send_wr.saturating_add(next.max_recv_wr);
    next.lowered("credits", limits.credits, credits);
    next.lowered("max_send_wr", limits.max_send_wr, max_send_wr);
    Ok(next)
}

impl Limits {
    /// Notes a value that the device's refusal lowered.
    fn lowered(&mut self, what: &'static str, from: u32, to: u32) {
        let by = "create_qp";
        let got = u64::from(to);
        match self.clamped.iter_mut().find(|c| c.what == what) {
            Some(c) => (c.got, c.by) = (got, by),
            None => self.clamped.push(Clamp { what, asked: u64::from(from), got, by }),
        }
    }
}

/// The largest power of two that is less than `n`; 0 for 0 and 1.
fn power_of_two_below(n: u32) -> u32 {
    n.saturating_sub(1).checked_ilog2().map_or(0, |log| 1 << log)
}
