//! The fingerprint of a state of the small world: two states with the same one have the same
//! future.
//!
//! What is in it comes from outside of the engine: the calls to the device, the device, the ledger
//! and the public getters. Numbers that only count up (keys, WR ids, epochs, tags, QPs, addresses)
//! are replaced by what they are compared with: which exposure a key belongs to, how many messages
//! came before a mark. Left out, because nothing asks for it again:
//!
//! - *Why* a connection goes down: only what the program is told depends on it.
//! - Counters and the ledger: they are written, and no rule reads them.
//! - Tags, as long as they are not used up: after 255 registrations an idle region gets a new key,
//!   which the seeded simulation (`aged`) and the tests of D-11 show.
//! - Which of two idle regions is registered next: they are alike.
//! - The time: nothing has a lease, and the one limit, that of a drain, is a move.
//! - The bytes: the engine never looks at them.
//! - MRs of buffers that are gone and wait to be deregistered: no peer gets in through them.
//! - Of a WR that has run well and whose completion proves nothing more (a message, a registration,
//!   an invalidation of a key that is dead) all but its slot.
//! - Of an error completion the status: the engine treats all alike.
//! - While the connection goes down: the peer, messages, marks, receives and their errors. No
//!   message and no receive is posted any more, `poll` takes back no exposure, and the engine looks
//!   at receive completions only for what they invalidate.
//! - Once its QP is in error or the peer's is, which of the two ways the peer's end took.

use super::small::{Dropped, Queued, Slot, SmallWorld, key};
use memreg_core::device::sim::QpView;
use memreg_core::device::{Device, QpState, Wc};
use memreg_core::transport::{ExposureState, State};
use memreg_core::types::Rkey;
use std::fmt::Write;

impl SmallWorld {
    /// The fingerprint, as 128 bits of hash.
    pub fn fingerprint(&self) -> u128 {
        hash(&self.print())
    }

    /// Everything that can make a difference later. Exposures with the same standing are alike: of
    /// all ways to number them, the least text counts.
    pub fn print(&self) -> String {
        let held: Vec<&Slot> = self.slots.iter().flatten().collect();
        let dropped: Vec<&Dropped> = self.dropped.iter().collect();
        let mut least = self.print_as(&held, &dropped);
        let mut also = |held: &[&Slot], dropped: &[&Dropped]| {
            least = std::mem::take(&mut least).min(self.print_as(held, dropped));
        };
        let (dleh, deppord) = (backwards(&held), backwards(&dropped));
        if held.len() > 1 {
            also(&dleh, &dropped);
        }
        if dropped.len() > 1 {
            also(&held, &deppord);
        }
        if held.len() > 1 && dropped.len() > 1 {
            also(&dleh, &deppord);
        }
        least
    }

    fn print_as(&self, held: &[&Slot], dropped: &[&Dropped]) -> String {
        let phase = self.phase();
        let mut f = String::with_capacity(160);
        let _ = write!(f, "{phase:?}");
        if phase <= Phase::InError {
            let pool = self.owner.strategy().0.stats();
            let _ = write!(f, " {} {}", pool.free, pool.condemned);
        }
        let mut labels = vec![];
        for slot in held {
            let state = self.owner.exposure_state(&slot.handle).unwrap();
            assert!(slot.seg.epoch == self.owner.epoch(), "rule 4: open after its connection");
            labels.push(key(&slot.seg));
            let _ = write!(f, " | {state:?} ");
            self.print_key(&mut f, slot.seg.rkey);
            self.print_mark(&mut f, slot, phase);
        }
        for d in dropped {
            labels.push(key(&d.seg));
            let _ = write!(f, " | dropped {} ", d.marked && phase <= Phase::InError);
            self.print_key(&mut f, d.seg.rkey);
        }
        // A key of nobody has no region any more, or a later registration of it.
        let label = |key: u32| labels.iter().position(|k| *k == key);
        self.print_staged(&mut f, &label);
        self.print_queues(&mut f, phase, &label);
        f
    }

    fn phase(&self) -> Phase {
        let rts = |qp| self.node.qp_state(qp) == Ok(QpState::Rts);
        let works = self.owner.queue_pair().is_some_and(rts);
        match (self.owner.state(), works, self.peer.state()) {
            (State::Up, true, Some(QpState::Rts)) => Phase::Up,
            (State::Up, true, _) => Phase::PeerLost,
            (State::Up, false, _) => Phase::InError,
            (State::Draining, ..) => Phase::Draining,
            (State::Down(_), ..) => Phase::Down,
            (other, ..) => panic!("{other:?} between two moves"),
        }
    }

    fn print_mark(&self, f: &mut String, slot: &Slot, phase: Phase) {
        let Some(at) = slot.marked.filter(|_| phase <= Phase::InError) else { return };
        f.push_str(" m");
        if phase < Phase::InError {
            // How many of the messages that wait for the program came before the mark.
            let before = at.saturating_sub(self.taken);
            let _ = write!(f, "{before}{}", self.has_token(slot));
        }
    }

    /// What the engine believes of a key, and what is true of it.
    fn print_key(&self, f: &mut String, rkey: Rkey) {
        let _ = write!(f, "{:?}{}", self.book.state(rkey.to_bits()), self.node.opens(rkey));
    }

    /// In the order in which they will be posted.
    fn print_staged(&self, f: &mut String, label: &impl Fn(u32) -> Option<usize>) {
        let staged = |s: &&Slot| self.owner.exposure_state(&s.handle) == Ok(ExposureState::Staged);
        let held = self.slots.iter().flatten().filter(staged).map(|s| (s.serial, key(&s.seg)));
        let dropped = self.dropped.iter().map(|d| (d.serial, key(&d.seg)));
        let dropped = dropped.filter(|(_, k)| self.book.state(*k).is_none());
        let mut all: Vec<_> = held.chain(dropped).collect();
        all.sort_unstable();
        for (_, key) in all {
            let _ = write!(f, " +{:?}", label(key));
        }
    }

    fn print_queues(&self, f: &mut String, phase: Phase, label: &impl Fn(u32) -> Option<usize>) {
        let Some(qp) = self.owner.queue_pair() else { return };
        let view = self.node.look_at(qp).unwrap();
        let wcs = self.node.waiting_wcs(self.owner.completion_queue());
        f.push_str(" | ");
        let mut unheard = false;
        for q in &self.queue {
            let wc = wcs.iter().find(|wc| wc.wr_id() == q.wr_id);
            let end = match (view.sends.contains(&q.wr_id), wc) {
                (true, _) => End::Waits,
                (false, Some(wc)) if !wc.is_success() => End::Failed,
                (false, _) => End::Ran,
            };
            // The sentinel is behind it, and nothing is posted any more.
            let tells = self.is_open(q) && (end != End::Ran || "Ii".contains(q.kind));
            if phase < Phase::Draining || unheard || "Ww".contains(q.kind) || tells {
                print_wr(f, q, end, phase, label);
            }
            unheard |= q.kind == 'I' && end == End::Ran && self.is_open(q);
        }
        self.print_receives(f, phase, &wcs, &view);
        let mut invalidated: Vec<_> =
            wcs.iter().filter_map(|wc| self.print_invalidated(wc, label)).collect();
        invalidated.sort_unstable();
        invalidated.iter().for_each(|text| f.push_str(text));
    }

    fn print_receives(&self, f: &mut String, phase: Phase, wcs: &[Wc], view: &QpView) {
        if phase > Phase::InError {
            return;
        }
        let recvs = wcs.iter().filter(|wc| !self.queue.iter().any(|q| q.wr_id == wc.wr_id()));
        let (arrived, failed): (Vec<&Wc>, Vec<&Wc>) = recvs.partition(|wc| wc.is_success());
        let (arrived, waiting) = (arrived.len(), self.owner.messages_waiting());
        // Each event takes the connection down, and so does each error of a receive.
        let failed = !failed.is_empty() || !view.events.is_empty();
        if phase < Phase::InError {
            let _ = write!(f, " | {arrived} {waiting} {failed}");
            return;
        }
        // Messages say nothing more; but a receive, if there is one, or if one is posted again once
        // a message was taken, will be flushed.
        f.push_str(match (failed, view.receives, waiting, arrived) {
            (true, ..) => " failed",
            (_, 1.., ..) => " receive",
            (_, _, 1.., _) => " message",
            (.., 1..) => " arrival",
            _ => "",
        });
    }

    /// A key that a receive completion says the peer has invalidated. Whether the completion of
    /// this side's invalidation stands before or after it need not be told: for one and the same
    /// key the peer's is first and the other one failed, and different keys have nothing to do with
    /// each other.
    fn print_invalidated(&self, wc: &Wc, label: &impl Fn(u32) -> Option<usize>) -> Option<String> {
        let Wc::Success(s) = wc else { return None };
        let bits = s.invalidated?.to_bits();
        let state = self.book.state(bits);
        // A key that this side has ended meanwhile is known to the engine as such: nothing happens.
        let matters = state.is_some() || !self.book.ended_live(bits);
        matters.then(|| format!(" v{:?}{state:?}", label(bits)))
    }
}

fn backwards<T: Copy>(list: &[T]) -> Vec<T> {
    list.iter().rev().copied().collect()
}

/// One entry of the send queue: what it will change, and what is known of its end.
fn print_wr(
    f: &mut String,
    q: &Queued,
    end: End,
    phase: Phase,
    label: &impl Fn(u32) -> Option<usize>,
) {
    let key = "RrIi".contains(q.kind).then(|| label(q.key)).flatten();
    // A registration that ran is a fact of the device; an invalidation must be heard of as well.
    let open = key.filter(|_| end != End::Ran || "Ii".contains(q.kind));
    let kind = q.kind.to_ascii_lowercase();
    match open {
        // Once the QP is in error, all that has not run has its completion, signaled or not.
        Some(n) if phase < Phase::InError || end == End::Ran => {
            let _ = write!(f, "{}{n}{end:?} ", q.kind);
        }
        Some(n) => drop(write!(f, "{kind}{n}{end:?} ")),
        None if kind == 'w' && end != End::Ran => drop(write!(f, "{kind}{end:?} ")),
        None if end == End::Ran => f.push(if q.kind == kind { 'x' } else { 'X' }),
        // It fails, whatever it is; and until then a message, which may succeed, is one.
        None if phase >= Phase::InError => drop(write!(f, "z{end:?} ")),
        None => drop(write!(f, "{}{end:?} ", q.kind)),
    }
}

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Up,
    /// Up as far as the owner knows; its messages will fail.
    PeerLost,
    /// Up as far as the owner knows; its QP is in error.
    InError,
    Draining,
    Down,
}

/// What became of a WR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Waits,
    Ran,
    Failed,
}

/// FNV-1a.
fn hash(text: &str) -> u128 {
    let start = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    text.bytes().fold(start, |h: u128, b| {
        (h ^ u128::from(b)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}
