//! When something has run out, the answer is to try again, and it works.

use crate::pair::{Pair, unaligned, zeroed};
use crate::subject::Subject;
use crate::verdict::{Because, Stop, Verdict, ensure, ensure_eq, fail};
use memreg_core::device::Caps;
use memreg_core::transport::{Buffers, NoReply, Reply, State};
use memreg_core::{Disposition, Exposed, Grant, MemReg};

/// Exposures that fit a device of this many MRs are fewer.
const MRS: u32 = 48;

/// Expose until refused: retry later; after revoke and poll it works again, and nothing is lost.
pub(super) fn h_16_h_48_pool_exhaustion_is_retry<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let caps = Caps { max_mr: MRS.min(subject.caps.max_mr), ..subject.caps.clone() };
    let mut pair = subject.pair_with(&caps, &subject.ask)?;
    let mut first = [None, None];
    for round in 0..20_usize {
        // By turns one long part and three short ones, of which the last two may find no room.
        let held = expose_until_refused(&mut pair, round % 2 == 1)?;
        let count = *first[round % 2].get_or_insert(held.len());
        ensure_eq!(held.len(), count, "exposures until refused in round {round}");
        pair.owner.flush().because("flush")?;
        pair.settle()?;
        for exposed in &held {
            pair.owner.revoke(exposed, NoReply::Unmarked).because("revoke")?;
        }
        pair.settle()?;
        for exposed in held {
            drop(pair.reclaim(exposed)?);
        }
    }
    ensure_eq!(*pair.owner.state(), State::Up, "state after exhaustion");
    pair.cycle(1, 5000)?;
    pair.close()
}

/// Fills the pool, the queue or the arena; the refusal must say to try again and return its buffer.
fn expose_until_refused<S: MemReg>(pair: &mut Pair<S>, short: bool) -> Result<Vec<Exposed>, Stop> {
    let len = usize::try_from(pair.owner.limits().max_payload_bytes).because("payload")?;
    let mut held = vec![];
    while held.len() <= 2 * MRS as usize {
        let parts: Buffers =
            if short { unaligned()?.into_iter().collect() } else { zeroed(len)?.into() };
        let count = parts.count();
        pair.books.lent += count;
        match pair.owner.expose(parts, Grant::PeerWrites) {
            Ok(exposed) => held.push(exposed),
            Err(e) => {
                pair.books.returned += e.buffers.count();
                ensure_eq!(e.buffers.count(), count, "buffers returned by the refusal");
                ensure_eq!(e.disposition(), Disposition::Retry, "disposition of {:?}", e.why);
                ensure!(!held.is_empty(), "the first exposure is refused");
                return Ok(held);
            }
        }
    }
    fail(format!("{} exposures on a device of {MRS} MRs", held.len()))
}

/// With every slot claimed, each exposure can still be revoked, and the connection drained.
pub(super) fn rule_7_full_queue_never_prevents_a_fence<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let caps = Caps { max_mr: MRS.min(subject.caps.max_mr), ..subject.caps.clone() };
    let mut pair = subject.pair_with(&caps, &subject.ask)?;
    let held = expose_until_refused(&mut pair, false)?;
    pair.owner.flush().because("flush")?;
    // Fill what is left with messages; the peer takes none of them.
    while pair.owner.send(b"x", Reply::InvalidatesNothing).is_ok() {}
    for exposed in &held {
        pair.owner.revoke(exposed, NoReply::Unmarked).because("revoke on a full queue")?;
    }
    // The messages wait for the peer to take them, and with them the revocations behind them.
    for _ in 0..10_000 {
        pair.settle()?;
        let mut bytes = vec![];
        if pair.peer.recv(&mut bytes).is_none() {
            break;
        }
    }
    for exposed in held {
        drop(pair.reclaim(exposed)?);
    }
    let depth = pair.owner.limits().max_send_wr;
    ensure!(pair.node().sq_in_use_max <= depth, "more slots taken than were asked for");

    // And again, with a disconnect instead of the revokes.
    let held = expose_until_refused(&mut pair, false)?;
    pair.owner.flush().because("flush")?;
    while pair.owner.send(b"x", Reply::InvalidatesNothing).is_ok() {}
    pair.owner.disconnect();
    pair.wait_down()?;
    ensure_eq!(pair.owner.stats().drains_forced, 0, "drains that destroyed the QP");
    for exposed in held {
        drop(pair.reclaim(exposed)?);
    }
    pair.close()
}
