//! Why the software device refused something.

use std::fmt;

/// The reason behind a WC that is not a success, carried in its `vendor_err`.
///
/// # Divergence
/// A real responder tells the requester a status and nothing else; here the requester's WC carries
/// the responder's reason, because both ends are one program under test.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[repr(u32)]
pub enum Syndrome {
    /// The QP was in error before the WR could run.
    Flushed = 0x01,
    /// The peer's QP does not answer: gone, in error, or connected to another QP.
    PeerSilent = 0x02,
    /// The peer had no receive posted, as often as it was tried.
    NoReceive = 0x03,
    /// No MR or window has a key with this index.
    UnknownKey = 0x10,
    /// The index is that of an MR or window whose key now has another tag.
    StaleKey = 0x11,
    /// The key is the MR's and it is invalidated, or it is the window's and that is free.
    InvalidatedKey = 0x12,
    /// The MR or window belongs to another PD than the QP.
    WrongPd = 0x13,
    /// The MR or window does not carry the right that the access or the bind needs.
    MissingRight = 0x14,
    /// The range is not inside the MR or window, or wraps.
    OutOfRange = 0x15,
    /// The MR names memory that is not mapped for the device.
    NotMapped = 0x16,
    /// The message does not fit the receive, or is longer than any message may be.
    TooLong = 0x17,
    /// The window is bound on another QP.
    WrongQp = 0x18,
    /// The MR was not allocated for fast registration.
    NotFastMr = 0x20,
    /// A registration or bind names an MR or window that does not exist, or a key that is not its.
    ForeignKey = 0x21,
    /// A registration of an MR whose key is still valid, or a bind of a window that is bound.
    StillValid = 0x22,
    /// A page list that is empty, too long, misaligned, or whose sum is not the length.
    BadPageList = 0x23,
    /// Rights that no registration or no window may carry.
    BadAccess = 0x24,
    /// A bind over an MR for fast registration.
    NotOrdinaryMr = 0x25,
    /// A bind of no bytes.
    EmptyWindow = 0x26,
}

impl Syndrome {
    /// The number in `vendor_err`.
    #[must_use]
    pub const fn to_raw(self) -> u32 {
        self as u32
    }

    /// From the number in `vendor_err`; `None` for one that no WC of this device carries.
    #[must_use]
    pub fn from_raw(raw: u32) -> Option<Syndrome> {
        ALL.iter().copied().find(|s| s.to_raw() == raw)
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Syndrome::Flushed => "QP in error",
            Syndrome::PeerSilent => "peer QP does not answer",
            Syndrome::NoReceive => "peer has no receive posted",
            Syndrome::UnknownKey => "no MR or window has this key",
            Syndrome::StaleKey => "key of an earlier registration",
            Syndrome::InvalidatedKey => "key is invalidated",
            Syndrome::WrongPd => "MR or window of another PD",
            Syndrome::MissingRight => "MR or window lacks the right",
            Syndrome::OutOfRange => "range is not inside the MR or window",
            Syndrome::NotMapped => "memory is not mapped for the device",
            Syndrome::TooLong => "message too long",
            Syndrome::WrongQp => "window is bound on another QP",
            Syndrome::NotFastMr => "MR is not for fast registration",
            Syndrome::ForeignKey => "key is not of this MR or window",
            Syndrome::StillValid => "MR or window is still in use",
            Syndrome::BadPageList => "page list is not valid",
            Syndrome::BadAccess => "rights are not valid",
            Syndrome::NotOrdinaryMr => "MR is for fast registration",
            Syndrome::EmptyWindow => "window of no bytes",
        })
    }
}

const ALL: [Syndrome; 19] = [
    Syndrome::Flushed,
    Syndrome::PeerSilent,
    Syndrome::NoReceive,
    Syndrome::UnknownKey,
    Syndrome::StaleKey,
    Syndrome::InvalidatedKey,
    Syndrome::WrongPd,
    Syndrome::MissingRight,
    Syndrome::OutOfRange,
    Syndrome::NotMapped,
    Syndrome::TooLong,
    Syndrome::WrongQp,
    Syndrome::NotFastMr,
    Syndrome::ForeignKey,
    Syndrome::StillValid,
    Syndrome::BadPageList,
    Syndrome::BadAccess,
    Syndrome::NotOrdinaryMr,
    Syndrome::EmptyWindow,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for s in ALL {
            assert_eq!(Syndrome::from_raw(s.to_raw()), Some(s));
            assert!(!s.to_string().is_empty());
        }
        assert_eq!(Syndrome::from_raw(0), None);
    }
}
