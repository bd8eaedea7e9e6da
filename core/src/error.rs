//! What all errors of this crate share: what the caller should do next.

use std::fmt;

/// What to do about an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Disposition {
    /// The same call can succeed later on this connection, after polling.
    Retry,
    /// The connection is down or going down; the operation can be repeated after a reconnect.
    Reconnect,
    /// Repeating the call cannot succeed.
    Fatal,
}

impl fmt::Display for Disposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Disposition::Retry => "retry later",
            Disposition::Reconnect => "retry after reconnect",
            Disposition::Fatal => "do not retry",
        })
    }
}

/// The caller broke an order that the types could not express. Nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApiMisuse {
    /// The handle belongs to another transport.
    #[error("handle of another transport")]
    ForeignHandle,
    /// The reply token is of an earlier connection, or older than the message that it is said to
    /// answer.
    #[error("reply token does not belong to a reply received after the message was sent")]
    WrongToken,
    /// The call does not fit the connection's state.
    #[error("{call} needs a transport that is {needs}")]
    WrongState {
        /// The call.
        call: &'static str,
        /// The state it needs.
        needs: &'static str,
    },
}

impl ApiMisuse {
    /// What to do about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        Disposition::Fatal
    }
}

/// A broken invariant of this crate: the connection is poisoned; please report it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("internal invariant broken: {0}; please report this with the ledger trace")]
pub struct Bug(pub &'static str);
