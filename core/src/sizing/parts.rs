//! What the slots of a send queue are for.

use super::Limits;

/// The parts of a send queue.
///
/// # Units
/// Slots. Their sum is the least `max_send_wr` for these credits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendParts {
    /// Registrations.
    pub register: u64,
    /// Invalidations.
    pub invalidate: u64,
    /// Messages.
    pub send: u64,
    /// Calls of the peer.
    pub backchannel: u64,
    /// The marker behind which nothing is outstanding.
    pub drain: u64,
}

impl SendParts {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.register + self.invalidate + self.send + self.backchannel + self.drain
    }
}

impl Limits {
    /// What the slots of the send queue are for.
    #[must_use]
    pub fn parts(&self) -> SendParts {
        let credits = u64::from(self.credits);
        // One message an operation; the others come in pairs, but for a plugin that revokes
        // otherwise.
        let others = u64::from(self.wr_per_request.saturating_sub(1));
        SendParts {
            register: credits * others.div_ceil(2),
            invalidate: credits * (others / 2),
            send: credits,
            backchannel: u64::from(self.backchannel),
            drain: 1,
        }
    }
}
