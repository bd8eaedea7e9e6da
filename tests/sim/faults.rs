//! Drawing faults: each is planned in a wrapper, which counts it when it takes effect.

use super::log::note;
use super::plan::Fault;
use super::world::World;
use memreg_core::device::{AsyncEvent, Device, Verb, Wc, WcError, WcStatus, WcSuccess, errno};
use memreg_core::types::{QpId, Rkey, WrId};

impl World {
    /// Plans one fault on a random side.
    pub fn draw_fault(&mut self) {
        let kinds = &self.plan.faults;
        if kinds.is_empty() {
            return;
        }
        let fault = kinds[self.rng.usize(..kinds.len())];
        let (c, s) = (self.rng.usize(..self.conns.len()), self.rng.usize(..2));
        note!(self.log, "fault {fault:?} at {c}.{s}");
        self.plan_fault(fault, c, s);
    }

    fn plan_fault(&mut self, fault: Fault, c: usize, s: usize) {
        let rng = &mut self.rng;
        let conn = &mut self.conns[c];
        let side = &mut conn.sides[s];
        let plan = &side.faults;
        let times = rng.usize(1..=3);
        match fault {
            Fault::RefusePost => {
                let errno = [errno::ENOMEM, errno::ENOMEM, errno::EINVAL][rng.usize(..3)];
                plan.refuse_post(rng.usize(1..=3), 0, errno);
            }
            Fault::CutPost => {
                let errno = [errno::ENOMEM, errno::EINVAL][rng.usize(..2)];
                plan.refuse_post(rng.usize(1..=3), rng.usize(1..=5), errno);
            }
            Fault::RefuseRecv => plan.fail(Verb::PostRecv, 1, errno::ENOMEM),
            Fault::PausePolls => plan.pause_polls(rng.usize(1..=12)),
            Fault::HoldQp => match (side.t.queue_pair(), rng.bool()) {
                (Some(qp), true) => plan.hold_qp(qp),
                (Some(qp), false) => plan.release_qp(qp),
                (None, _) => {}
            },
            Fault::DuplicateWc => {
                conn.lossy = true;
                plan.duplicate_next_wc();
            }
            Fault::SwallowWc => {
                conn.lossy = true;
                let which: fn(&Wc) -> bool =
                    [any as fn(&Wc) -> bool, Wc::is_success, is_error][rng.usize(..3)];
                plan.swallow_wcs(1, which);
            }
            Fault::SwallowLateSends => plan.swallow_sends_in_error(rng.u32(..3) > 0),
            Fault::StaleWc => {
                let seq = rng.u64(..=side.t.stats().wrs);
                let wc = stale_wc(seq, side.t.epoch().0, rng.bool());
                plan.inject_wc(side.t.completion_queue(), wc);
            }
            Fault::QpToErr => {
                if let Some(qp) = side.t.queue_pair()
                    && side.node.qp_to_err(qp).is_ok()
                {
                    self.tally.fault("QP to ERR", 1);
                }
            }
            Fault::OutOfMemory => {
                let verbs = [Verb::RegMr, Verb::AllocMr, Verb::AllocMw, Verb::CreateQp];
                let verb = verbs[rng.usize(..verbs.len())];
                plan.fail_nth(verb, rng.usize(1..=4), times, errno::ENOMEM);
            }
            Fault::DeregBusy => {
                let verb = [Verb::DeregMr, Verb::DeregMr, Verb::DeallocMw][rng.usize(..3)];
                plan.fail_nth(verb, rng.usize(1..=3), times, errno::EBUSY);
            }
            Fault::MapFails => plan.fail_nth(Verb::DmaMap, rng.usize(1..=3), 1, errno::ENOMEM),
            Fault::UnmapFails => plan.fail_nth(Verb::DmaUnmap, rng.usize(1..=3), 1, errno::EINVAL),
            Fault::DestroyQpFails => plan.fail(Verb::DestroyQp, times, errno::EBUSY),
            Fault::ModifyQpFails => plan.fail(Verb::ModifyQp, 1, errno::EINVAL),
            Fault::CqOverrun => {
                // What was in it is gone: it is a fault that loses completions.
                conn.lossy = true;
                plan.overrun_cq(side.t.completion_queue());
            }
            Fault::WrongInvalidation => {
                let epoch = side.t.epoch();
                let live = side.out.iter().find(|l| l.segs[0].epoch == epoch);
                if let (Some(lent), Some(qp)) = (live, side.t.queue_pair()) {
                    conn.lossy = true;
                    let wc = wrong_invalidation(lent.segs[0].rkey, epoch.0, qp);
                    plan.inject_wc(side.t.completion_queue(), wc);
                }
            }
            Fault::MergedDma => plan.merge_dma(times),
            Fault::PollFails => plan.fail(Verb::PollCq, 1, errno::EIO),
            Fault::Event => {
                if let Some(qp) = side.t.queue_pair() {
                    let cq = side.t.completion_queue();
                    let events = [
                        AsyncEvent::QpFatal(qp),
                        AsyncEvent::PeerGone(qp),
                        AsyncEvent::CqOverrun(cq),
                        AsyncEvent::PortDown(1),
                        AsyncEvent::PortUp(1),
                    ];
                    plan.inject_event(qp, events[rng.usize(..events.len())]);
                }
            }
        }
    }
}

fn any(_: &Wc) -> bool {
    true
}

fn is_error(wc: &Wc) -> bool {
    !wc.is_success()
}

/// A receive of today that says the peer has invalidated a key, with the tag before the live one.
fn wrong_invalidation(live: Rkey, epoch: u32, qp: QpId) -> Wc {
    let bits = live.to_bits();
    let other = Rkey::from_bits((bits & !0xff) | (bits.wrapping_sub(1) & 0xff));
    // The queue is 2: receive; its slot is 0.
    let wr_id = WrId((u64::from(epoch & 0xffff) << 48) | (2 << 40));
    Wc::Success(WcSuccess { wr_id, qp, byte_len: 0, invalidated: Some(other) })
}

/// A completion of an earlier epoch, of a WR whose number may well be outstanding now.
fn stale_wc(seq: u64, epoch: u32, success: bool) -> Wc {
    // A cookie has the epoch in its upper 16 bits, then the queue (1: send), then the number.
    let other = u64::from(epoch.wrapping_sub(1) & 0xffff);
    let wr_id = WrId((other << 48) | (1 << 40) | seq);
    let qp = QpId(1);
    if success {
        Wc::Success(WcSuccess { wr_id, qp, byte_len: 0, invalidated: None })
    } else {
        Wc::Error(WcError { wr_id, status: WcStatus::GeneralErr, qp, vendor_err: 0 })
    }
}
