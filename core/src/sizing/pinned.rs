//! How much memory a connection pins: what a limit on pinned memory is held against.

use super::{Ask, Limits};
use crate::types::Grant;

/// Bytes that a connection pins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pinned {
    /// For as long as it lives: message buffers of both directions, and arenas.
    pub buffers: u64,
    /// For as long as the largest operation is exposed; 0 where operations go through the arenas.
    pub payload: u64,
}

/// What a connection of these sizes pins.
#[must_use]
pub fn pinned(limits: &Limits, ask: &Ask) -> Pinned {
    let slots = u64::from(limits.max_send_wr) + u64::from(limits.max_recv_wr);
    let messages = slots.saturating_mul(ask.max_message_bytes.into());
    let directions = [Grant::PeerReads, Grant::PeerWrites].len() as u64;
    let arenas = limits.arena_bytes.saturating_mul(directions);
    let payload = if limits.arena_bytes > 0 { 0 } else { limits.max_payload_bytes };
    Pinned { buffers: messages.saturating_add(arenas), payload }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Caps;
    use crate::sizing::{KeyScope, PerRequest, queues};

    #[test]
    fn b02_a_connection_pins_its_messages_and_its_largest_operation_or_its_arenas() {
        let ask = Ask { max_payload_bytes: 16 << 20, ..Ask::default() };
        let per = PerRequest { page_list_depth: 0, regions: 1, wr: 1, payload_bytes: 16 << 20 };
        let limits = queues(&Caps::default(), &ask, per, KeyScope::Pd).unwrap();
        let messages = (129 + 128) * 4096;
        assert_eq!(pinned(&limits, &ask), Pinned { buffers: messages, payload: 16 << 20 });
        let bounced = Limits { arena_bytes: 1 << 20, ..limits };
        let buffers = messages + (2 << 20);
        assert_eq!(pinned(&bounced, &ask), Pinned { buffers, payload: 0 });
    }
}
