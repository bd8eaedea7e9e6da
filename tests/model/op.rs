//! What can happen, and how often.

use memreg::Grant;
use proptest::collection::vec;
use proptest::prelude::*;

/// One operation. An index picks among what there is at that moment, modulo its number; where there
/// is nothing to pick from, nothing happens.
#[derive(Clone, Debug)]
pub enum Op {
    /// The owner exposes ranges: bytes before each, and its length. Each in a buffer of its own, or
    /// all in `one`.
    Expose { grant: Grant, parts: Vec<(usize, usize)>, one: bool },
    /// The owner posts what is staged.
    Flush,
    /// The owner tells the peer of an exposure; `mark`: the reply may invalidate its keys.
    Send { pick: usize, mark: bool },
    /// The peer replies with a message that invalidates nothing.
    Reply,
    /// The peer uses a segment as it was told to.
    Access { pick: usize, from: usize, len: usize, fill: u8 },
    /// The peer tries any segment that it has ever heard of, as if it were of today: from `shift`
    /// bytes after its start on (or before it), `len` bytes, in any direction.
    Trespass { pick: usize, shift: i64, len: u64, write: bool },
    /// The peer invalidates the key of any segment that it has ever heard of.
    RemoteInvalidate { pick: usize },
    /// The owner starts taking back; `wait`: until it is done. `word`: that no reply can come.
    Revoke { pick: usize, wait: bool, word: bool },
    /// The owner takes back at once.
    Cancel { pick: usize },
    /// The owner wants its bytes.
    Reclaim { pick: usize },
    /// The owner drops the handle.
    Drop { pick: usize },
    /// The owner rebuilds condemned regions.
    Recover { budget: usize },
    /// One side takes the connection down; `wait`: until it is.
    Disconnect { owner: bool, wait: bool },
    /// Both connect anew.
    Reconnect,
}

/// A list of operations; whatever it does at its end, everything must come back.
pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    vec(op(), 1..40)
}

fn op() -> impl Strategy<Value = Op> {
    let pick = 0..64usize;
    prop_oneof![
        8 => (grant(), vec(part(), 1..4), any::<bool>())
            .prop_map(|(grant, parts, one)| Op::Expose { grant, parts, one }),
        2 => Just(Op::Flush),
        6 => (pick.clone(), any::<bool>()).prop_map(|(pick, mark)| Op::Send { pick, mark }),
        2 => Just(Op::Reply),
        8 => (pick.clone(), 0..30_000usize, 1..30_000usize, any::<u8>())
            .prop_map(|(pick, from, len, fill)| Op::Access { pick, from, len, fill }),
        1 => (pick.clone(), shift(), 1..9000u64, any::<bool>())
            .prop_map(|(pick, shift, len, write)| Op::Trespass { pick, shift, len, write }),
        2 => pick.clone().prop_map(|pick| Op::RemoteInvalidate { pick }),
        6 => (pick.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(pick, wait, word)| Op::Revoke { pick, wait, word }),
        2 => pick.clone().prop_map(|pick| Op::Cancel { pick }),
        6 => pick.clone().prop_map(|pick| Op::Reclaim { pick }),
        1 => pick.prop_map(|pick| Op::Drop { pick }),
        1 => (0..4usize).prop_map(|budget| Op::Recover { budget }),
        1 => (any::<bool>(), any::<bool>())
            .prop_map(|(owner, wait)| Op::Disconnect { owner, wait }),
        3 => Just(Op::Reconnect),
    ]
}

fn grant() -> impl Strategy<Value = Grant> {
    prop_oneof![Just(Grant::PeerReads), Just(Grant::PeerWrites)]
}

/// Page boundaries and what lies just beside them are where lists are cut.
fn part() -> impl Strategy<Value = (usize, usize)> {
    let offset = prop_oneof![3 => Just(0), 1 => Just(512), 1 => Just(4095), 1 => 0..5000usize];
    let len = prop_oneof![Just(1), Just(4096), Just(8192), Just(3584), 1..20_000usize];
    (offset, len)
}

fn shift() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), Just(-1), Just(1), -5000..20_000i64]
}
