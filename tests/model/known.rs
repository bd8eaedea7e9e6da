//! Short lists that once told a right engine from a wrong one: what random lists shrank to when a
//! rule was taken out of the engine. They run first, for every subject.

use crate::op::Op;
use memreg::Grant::{self, PeerReads, PeerWrites};

pub fn known() -> Vec<Vec<Op>> {
    let mut all = of_bytes();
    all.extend(of_keys());
    all
}

fn expose(grant: Grant, parts: &[(usize, usize)]) -> Op {
    Op::Expose { grant, parts: parts.to_vec(), one: false }
}

fn one() -> Op {
    expose(PeerReads, &[(0, 1)])
}

fn revoke(wait: bool, word: bool) -> Op {
    Op::Revoke { pick: 0, wait, word }
}

/// Where the bytes end up, and which of them a key reaches.
fn of_bytes() -> Vec<Vec<Op>> {
    vec![
        // Two exposures with one key between them (physical); the peer then costs the connection.
        vec![one(), revoke(false, false), one(), Op::RemoteInvalidate { pick: 0 }],
        // Revoked while the connection drains.
        vec![one(), Op::Disconnect { owner: true, wait: false }, revoke(false, false)],
        // Written in part, after another operation left its bytes in the same place.
        vec![
            expose(PeerReads, &[(0, 4096)]),
            revoke(true, true),
            Op::Reclaim { pick: 0 },
            expose(PeerWrites, &[(0, 4096)]),
            Op::Access { pick: 0, from: 10, len: 20, fill: 0xaa },
            revoke(true, true),
            Op::Reclaim { pick: 0 },
        ],
        // A key before its WR has run.
        vec![one(), Op::Trespass { pick: 0, shift: 0, len: 1, write: false }],
        // One byte too many; the wrong direction; one byte before.
        vec![
            expose(PeerReads, &[(0, 3584)]),
            Op::Flush,
            Op::Trespass { pick: 0, shift: 0, len: 3585, write: false },
            Op::Reconnect,
            expose(PeerReads, &[(512, 100)]),
            Op::Flush,
            Op::Trespass { pick: 1, shift: 0, len: 1, write: true },
            Op::Reconnect,
            expose(PeerWrites, &[(512, 100)]),
            Op::Flush,
            Op::Trespass { pick: 2, shift: -1, len: 1, write: true },
        ],
    ]
}

/// When a key ends.
fn of_keys() -> Vec<Vec<Op>> {
    vec![
        // The peer invalidates one of two keys.
        vec![
            expose(PeerReads, &[(512, 1), (0, 1)]),
            Op::Flush,
            one(),
            Op::RemoteInvalidate { pick: 0 },
            revoke(true, false),
        ],
        // The only key is invalidated, and used again.
        vec![one(), Op::Flush, Op::RemoteInvalidate { pick: 0 }, one()],
        // A reply is out; it comes; and then the key of an earlier exposure is tried.
        vec![
            one(),
            Op::Send { pick: 0, mark: true },
            revoke(false, false),
            Op::Reply,
            revoke(true, false),
            Op::Reclaim { pick: 0 },
            one(),
            Op::Flush,
            Op::Trespass { pick: 0, shift: 0, len: 1, write: false },
        ],
        // Cancelled in the middle of a revoke; the handle dropped in the middle of another.
        vec![
            one(),
            Op::Flush,
            revoke(false, true),
            Op::Cancel { pick: 0 },
            Op::Reconnect,
            one(),
            Op::Flush,
            Op::Revoke { pick: 1, wait: false, word: true },
            Op::Drop { pick: 1 },
        ],
    ]
}
