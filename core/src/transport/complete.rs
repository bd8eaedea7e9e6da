//! Poll: where each completion goes.

use super::error::DownCause;
use super::{State, Transport};
use crate::device::{AsyncEvent, Device, DeviceError, Wc, WcError, WcSuccess};
use crate::engine::exposure::{ExposureId, LocalId};
use crate::engine::keys::KeyState;
use crate::engine::ledger::{KeyEvent, LedgerEvent, Rule};
use crate::engine::ring::{Cookie, RingOp, decode};
use crate::error::Bug;
use crate::memreg::{Event, MemReg};
use crate::mutants::mutant;
use crate::types::{Rkey, Tick};

/// What one `poll` did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// WCs taken.
    pub wcs: usize,
    /// Exposures that became fenced.
    pub fenced: u64,
    /// Messages that wait for `recv`.
    pub messages: usize,
    /// Chains posted, for instance to fence what a dropped handle left behind.
    pub posts: u64,
}

impl Progress {
    /// Whether anything happened.
    #[must_use]
    pub fn any(&self) -> bool {
        self.wcs > 0 || self.fenced > 0 || self.posts > 0
    }
}

/// WCs asked of the CQ at once.
const BATCH: usize = 64;

impl<D: Device, S: MemReg> Transport<D, S> {
    /// Takes completions and events, fences what they prove dead, and moves a drain on.
    ///
    /// # Ordering
    /// `now` must not go back; a smaller one counts as the latest. Drains and leases depend on it.
    /// # Errors
    /// The CQ itself could not be polled. The connection goes down; keep polling until it is
    /// [`State::Down`].
    /// # Cost
    /// No system call on the fast path, no allocation.
    pub fn poll(&mut self, now: Tick) -> Result<Progress, DeviceError> {
        self.eng.keys.ledger.now = self.eng.keys.ledger.now.max(now);
        let (fences, posts) = (self.eng.stats.fences, self.eng.stats.posts);
        self.take_events();
        let polled = self.take_completions();
        self.deliver();
        self.sweep_abandoned();
        self.end_leases();
        if !self.eng.domain.queue.is_empty() {
            self.eng.drain_local_queue(BATCH);
        }
        self.drive_drain();
        self.deliver();
        let wcs = match polled {
            Ok(wcs) => wcs,
            Err(e) => return Err(self.poll_failed(e)),
        };
        Ok(Progress {
            wcs,
            fenced: self.eng.stats.fences - fences,
            messages: self.messages_waiting(),
            posts: self.eng.stats.posts - posts,
        })
    }

    #[cold]
    fn poll_failed(&mut self, e: DeviceError) -> DeviceError {
        self.poison(DownCause::Device(e));
        self.deliver();
        e
    }

    fn take_events(&mut self) {
        while let Some(qp) = self.eng.qp
            && let Some(event) = self.eng.device.next_event(qp)
        {
            self.heard(event);
        }
    }

    #[cold]
    fn heard(&mut self, event: AsyncEvent) {
        tracing::debug!(?event, "device event");
        match event {
            AsyncEvent::PeerGone(_) => self.poison(DownCause::PeerGone),
            AsyncEvent::DeviceFatal => {
                self.eng.gone = true;
                self.poison(DownCause::DeviceGone);
            }
            AsyncEvent::QpFatal(_) => self.poison(DownCause::DeviceEvent),
            AsyncEvent::CqOverrun(_) => {
                self.cq_doubtful = true;
                self.poison(DownCause::DeviceEvent);
            }
            // Nothing is taken down: the device tries again what is under way, and if the port
            // stays down, that ends in an error of its own.
            AsyncEvent::PortDown(port) => {
                tracing::warn!(port, "port down");
                self.ports_down.insert(port);
            }
            AsyncEvent::PortUp(port) => {
                self.ports_down.remove(&port);
            }
        }
    }

    /// Polls until the CQ was empty, but never more WCs than it can hold.
    fn take_completions(&mut self) -> Result<usize, DeviceError> {
        if self.eng.gone || self.eng.qp.is_none() {
            return Ok(0);
        }
        match self.take_batch()? {
            BATCH => self.take_more(),
            // It had no more.
            taken => Ok(taken),
        }
    }

    /// As [`take_completions`](Transport::take_completions), after a first batch that was full.
    #[cold]
    fn take_more(&mut self) -> Result<usize, DeviceError> {
        let mut total = BATCH;
        let most = self.eng.limits.cq_entries as usize + BATCH;
        while total < most {
            let taken = self.take_batch()?;
            total += taken;
            if taken < BATCH {
                break;
            }
        }
        Ok(total)
    }

    #[inline(always)] // Nearly always there is one.
    fn take_batch(&mut self) -> Result<usize, DeviceError> {
        self.wcs.clear();
        let taken = self.eng.device.poll_cq(self.eng.cq, BATCH, &mut self.wcs)?;
        self.eng.stats.wcs += taken as u64;
        let mut next = 0;
        while let Some(&wc) = self.wcs.get(next) {
            self.route(&wc);
            next += 1;
        }
        Ok(taken)
    }

    #[inline]
    fn route(&mut self, wc: &Wc) {
        match decode(self.eng.epoch, wc.wr_id()) {
            Some(Cookie::Send(seq)) => match self.eng.ring.position(seq) {
                Some(ahead) => {
                    let (id, status) = (wc.wr_id(), wc.status());
                    self.eng.keys.ledger.write(LedgerEvent::Completed(id, status));
                    // It retires every earlier WR as a success, and its own as what it says (rule
                    // 2).
                    match wc {
                        Wc::Success(_) => self.succeeded_up_to(ahead + 1),
                        Wc::Error(e) => self.failed_behind(ahead, *e),
                    }
                }
                None => self.stale(wc),
            },
            Some(Cookie::Recv(slot)) => self.route_receive(slot, wc),
            None => self.stale(wc),
        }
        self.deliver();
    }

    #[inline(never)]
    fn route_receive(&mut self, slot: u32, wc: &Wc) {
        match wc {
            Wc::Success(s) => self.received(slot, s),
            Wc::Error(e) => self.recv_failed(e),
        }
    }

    /// A WC of an earlier connection, a duplicate, or one that this side never asked for: counted,
    /// never guessed.
    #[cold]
    fn stale(&mut self, wc: &Wc) {
        tracing::debug!(wr_id = wc.wr_id().0, "stale completion ignored");
        self.eng.stats.wcs_stale += 1;
    }

    /// The oldest `ahead` WRs succeeded, or so an error WC for the one behind them says.
    #[cold]
    fn failed_behind(&mut self, ahead: usize, e: WcError) {
        for _ in 0..ahead {
            if let Some(op) = self.eng.ring.retire_front() {
                self.passed_over(op);
            }
        }
        let Some(op) = self.eng.ring.retire_front() else { return };
        self.failed(op, Some(e));
        if op != RingOp::Sentinel {
            self.poison(self.cause_of(e));
        }
    }

    /// The oldest `count` WRs succeeded.
    #[inline(never)]
    fn succeeded_up_to(&mut self, count: usize) {
        self.eng.ring.retire(count);
        let mut left = count;
        while left > 0
            && let Some((op, n)) = self.eng.ring.pop_retired(left)
        {
            left -= n;
            self.succeeded(op, n);
        }
    }

    /// Why a WR failed, with what the device's set-up has to do with it.
    fn cause_of(&self, wc: WcError) -> DownCause {
        match self.eng.device.advice(wc.status) {
            Some(advice) => DownCause::WcWithAdvice { wc, advice },
            None => DownCause::Wc(wc),
        }
    }

    /// An error WC came for a later WR. This one succeeded, unless its own error WC was lost;
    /// nothing is lost by not believing it, for the connection goes down and that proves more.
    #[cold]
    fn passed_over(&mut self, op: RingOp) {
        match op {
            RingOp::Inv(..) if !mutant!("rule-2-passed") => self.failed(op, None),
            RingOp::Local(_, true) => self.failed(op, None),
            _ => self.succeeded(op, 1),
        }
    }

    #[inline(always)] // Called for each run that is retired, and from a cold place.
    fn succeeded(&mut self, op: RingOp, count: usize) {
        match op {
            RingOp::Reg(id, k) => self.registered(id, k as usize, count),
            RingOp::Inv(id, k) => self.invalidated(id, k as usize, count),
            RingOp::Send(slot) => self.eng.send_slots.extend(slot),
            RingOp::Local(id, _) => self.local_retired(id, None),
            RingOp::Sentinel => self.sentinel_seen = true,
        }
    }

    /// Registrations of keys in a row succeeded: of those that are still live the strategy hears.
    #[inline]
    fn registered(&mut self, id: ExposureId, from: usize, count: usize) {
        let Some(e) = self.eng.slots.exposures.get(id) else { return };
        match self.eng.keys.all_in_step(id, e.regions.len()) {
            None | Some(KeyState::Live) => self.tell_registered(id, from, count),
            Some(_) => {}
        }
    }

    #[inline(never)]
    fn tell_registered(&mut self, id: ExposureId, from: usize, count: usize) {
        let Some(e) = self.eng.slots.exposures.get(id) else { return };
        for &region in e.regions.iter().skip(from).take(count) {
            if self.eng.keys.is_live(region, id) {
                self.eng.events.push(region, Event::Registered);
            }
        }
        if mutant!("D-03") {
            for region in self.eng.part_regions(id).into_iter().skip(from).take(count) {
                if self.eng.keys.is_live(region, id) {
                    self.eng.closed(region, Rule::LocalInv);
                }
            }
        }
    }

    /// Invalidations of keys in a row succeeded.
    #[inline]
    fn invalidated(&mut self, id: ExposureId, from: usize, count: usize) {
        let Some(e) = self.eng.slots.exposures.get(id) else { return };
        let all = from == 0 && count == e.regions.len();
        if all && self.eng.keys.all_in_step(id, count) == Some(KeyState::Invalidating) {
            let names = e.names.get(..count).unwrap_or_default();
            let worn = self.eng.keys.invalidated_in_step(id, names);
            // At once, if there is nothing that it must hear before. Should it give up, that must
            // wait: other WRs are still to be retired.
            if !self.eng.events.is_empty() {
                self.eng.events.push_run(&e.regions, Event::Invalidated);
            } else if let Err(p) = self.strategy.on_events(&e.regions, Event::Invalidated) {
                self.gave_up.get_or_insert(p);
            }
            if worn {
                self.eng.renew_worn(id);
            }
            return self.eng.release(id, count);
        }
        self.invalidated_singly(id, from, count);
    }

    #[inline(never)]
    fn invalidated_singly(&mut self, id: ExposureId, from: usize, count: usize) {
        let mut dead = 0;
        for k in from..from + count {
            let Some(region) = self.eng.slots.region(id, k as u32) else { break };
            let Some(worn) = self.eng.keys.invalidated(region, id) else { continue };
            self.eng.events.push(region, Event::Invalidated);
            dead += 1;
            if worn {
                self.eng.renew_if_worn(region);
            }
        }
        if dead > 0 {
            self.eng.release(id, dead);
        }
    }

    /// One WR of a read or write is off the queue; with the last one the buffers are free.
    pub(super) fn local_retired(&mut self, id: LocalId, failed: Option<WcError>) {
        let Some(op) = self.eng.slots.locals.get_mut(id) else { return };
        op.open = op.open.saturating_sub(1);
        op.failed = op.failed.or(failed);
        if op.open == 0 {
            self.eng.finish_local(id);
        }
    }

    fn received(&mut self, slot: u32, wc: &WcSuccess) {
        // The key first: by the time the message can be seen, what it invalidated is dead (and no
        // LOCAL_INV for it will be posted).
        if let Some(rkey) = wc.invalidated {
            self.remotely_invalidated(rkey);
        }
        if !self.messages.arrived(slot, wc.byte_len, wc.invalidated.is_some()) {
            self.poison(DownCause::Bug(Bug("a receive completed that was not posted")));
        }
    }

    fn remotely_invalidated(&mut self, rkey: Rkey) {
        match self.eng.keys.live_by_key(rkey) {
            Some(region) => {
                self.eng.stats.remote_invalidations += 1;
                self.eng.keys.note(region, KeyEvent::RemoteInv);
                self.eng.closed(region, Rule::RemoteInv);
                self.eng.events.push(region, Event::RemoteInvalidated);
                self.eng.renew_if_worn(region);
            }
            // This side has cancelled, and the peer's invalidation came first: both were right.
            None if self.eng.keys.was_ended_live(rkey) => {
                self.eng.stats.remote_invalidations += 1;
            }
            None => {
                self.eng.stats.remote_invalidations_bad += 1;
                self.poison(DownCause::BadRemoteInvalidation { index: rkey.index() });
            }
        }
    }

    fn recv_failed(&mut self, e: &WcError) {
        if matches!(self.state, State::Up | State::Ready) {
            self.poison(DownCause::Wc(*e));
        }
    }
}
