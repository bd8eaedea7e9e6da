//! Whether the message buffers fit the device: one MR for each direction, a slot for each WR.

use super::{Ask, Limits, SizeError};
use crate::device::Caps;

/// MRs of a connection before it exposes anything: the message buffers of both directions.
const MESSAGE_MRS: u32 = 2;

/// Checks the message buffers of a transport of these sizes against the device's limits.
///
/// # Errors
/// [`SizeError::Messages`] if those of one direction are larger than an MR can be,
/// [`SizeError::Regions`] if they leave no MR for what is exposed.
pub fn check_messages(caps: &Caps, ask: &Ask, limits: &Limits) -> Result<(), SizeError> {
    let need = MESSAGE_MRS + 1;
    if caps.max_mr < need {
        return Err(SizeError::Regions { need, limit: caps.max_mr });
    }
    for (queue, slots) in [("send", limits.max_send_wr), ("receive", limits.max_recv_wr)] {
        let bytes = ask.max_message_bytes;
        let need = u64::from(slots) * u64::from(bytes);
        if need > caps.max_mr_size {
            let limit = caps.max_mr_size;
            return Err(SizeError::Messages { need, slots, queue, bytes, limit });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizing::{KeyScope, PerRequest, queues};

    fn check(caps: &Caps, ask: &Ask) -> Result<(), SizeError> {
        let per = PerRequest { page_list_depth: 257, regions: 3, wr: 7, payload_bytes: 1 << 20 };
        check_messages(caps, ask, &queues(caps, ask, per, KeyScope::Pd).unwrap())
    }

    #[test]
    fn message_buffers_that_fit_no_mr_are_refused_with_the_numbers() {
        let ask = Ask::default();
        let of = |max_mr_size| Caps { max_mr_size, ..Caps::default() };
        assert_eq!(check(&of(897 * 4096), &ask), Ok(()));
        assert_eq!(
            check(&of(897 * 4096 - 1), &ask).unwrap_err().to_string(),
            "message buffers need 3674112 bytes in one MR (897 send slots of 4096 bytes), \
             max_mr_size is 3674111"
        );
        let large = Ask { max_message_bytes: u32::MAX, ..ask };
        assert!(matches!(check(&of(1 << 30), &large), Err(SizeError::Messages { .. })));
    }

    #[test]
    fn messages_leave_an_mr_for_the_data() {
        let of = |max_mr| Caps { max_mr, ..Caps::default() };
        assert_eq!(check(&of(3), &Ask::default()), Ok(()));
        assert_eq!(
            check(&of(2), &Ask::default()).unwrap_err().to_string(),
            "a connection needs 3 MRs at least (2 for message buffers, 1 for what is exposed), \
             max_mr is 2"
        );
    }
}
