//! Faults as a wrapper around any device.
//!
//! [`Faulty`] passes every call on, except where its [`FaultPlan`] says otherwise. The device
//! inside knows nothing of it.

use super::{
    AsyncEvent, Caps, Device, DeviceError, Endpoint, FastMrKind, MrKeys, MwKeys, PostError, QpCaps,
    QpState, RecvWr, RtsAttrs, Verb, Wc, WcStatus, WrChain, sealed,
};
use crate::mem::{ExposedBytes, Fenced, Unmapped};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};
use crate::types::{Access, CqId, DeviceId, DmaAddr, MrId, MwId, PdId, QpId};
use std::collections::VecDeque;

/// A device that goes wrong as planned. A handle: clones are one device with one plan.
#[derive(Clone, Debug)]
pub struct Faulty<D> {
    inner: D,
    plan: FaultPlan,
}

/// What shall go wrong. A handle: clones are one plan, so a test keeps one and hands the device on.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    plan: Arc<Mutex<Plan>>,
}

#[derive(Debug, Default)]
struct Plan {
    failures: Vec<Failure>,
    posts: Vec<PostRefusal>,
    swallow_late_sends: bool,
    swallows: Vec<Swallow>,
    duplicates: usize,
    pauses: usize,
    held_qps: Vec<QpId>,
    held: VecDeque<(CqId, Wc)>,
    pending: VecDeque<(CqId, Wc)>,
    events: VecDeque<(QpId, AsyncEvent)>,
    /// The CQ of each QP.
    cqs: Vec<(QpId, CqId)>,
    /// CQs that lose every WC.
    overrun: Vec<CqId>,
    merges: usize,
    steps_before_arm: usize,
    /// The page after the last mapping.
    last_end: Option<DmaAddr>,
    counts: FaultCounts,
}

/// What has gone wrong so far: faults that took effect, not those that are planned.
///
/// # Units
/// Calls, posts, WRs, WCs, polls or events, as named.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct FaultCounts {
    /// Calls that failed, by verb, in the order in which the verbs first did.
    pub failed: Vec<(Verb, u64)>,
    /// Posts refused whole.
    pub posts_refused: u64,
    /// Posts of which a prefix was accepted.
    pub posts_cut: u64,
    /// Sends to a QP in error that were never heard of again.
    pub sends_swallowed: u64,
    /// WCs lost.
    pub wcs_swallowed: u64,
    /// WCs that came twice.
    pub wcs_duplicated: u64,
    /// WCs made up.
    pub wcs_injected: u64,
    /// WCs held back.
    pub wcs_held: u64,
    /// Polls that found nothing whatever there was.
    pub polls_paused: u64,
    /// Events made up.
    pub events_injected: u64,
    /// CQs overrun.
    pub cqs_overrun: u64,
    /// WCs that an overrun CQ had no room for.
    pub wcs_overrun: u64,
    /// Buffers mapped without a gap behind the one before.
    pub dma_merged: u64,
    /// Waits for an event, which is no fault, and tells who would have hung.
    pub waits: u64,
    /// How long the last of them was to last at most, in nanoseconds.
    pub last_wait_ns: u64,
}

impl FaultCounts {
    /// Calls of `verb` that failed.
    #[must_use]
    pub fn failed(&self, verb: Verb) -> u64 {
        self.failed.iter().find(|(v, _)| *v == verb).map_or(0, |(_, n)| *n)
    }

    fn add_failed(&mut self, verb: Verb) {
        match self.failed.iter_mut().find(|(v, _)| *v == verb) {
            Some((_, n)) => *n += 1,
            None => self.failed.push((verb, 1)),
        }
    }
}

#[derive(Debug)]
struct Failure {
    verb: Verb,
    skip: usize,
    left: usize,
    errno: i32,
}

#[derive(Debug)]
struct PostRefusal {
    skip: usize,
    accept: usize,
    errno: i32,
}

#[derive(Debug)]
struct Swallow {
    matches: fn(&Wc) -> bool,
    left: usize,
}

impl FaultPlan {
    /// A plan in which nothing goes wrong.
    #[must_use]
    pub fn new() -> FaultPlan {
        FaultPlan::default()
    }

    /// The next `times` calls of `verb` fail with `errno` and do not reach the device.
    ///
    /// Posts are refused whole; `endpoint` and `qp_state` are [`Verb::QueryQp`].
    pub fn fail(&self, verb: Verb, times: usize, errno: i32) {
        self.fail_nth(verb, 1, times, errno);
    }

    /// As [`fail`](FaultPlan::fail), from the `nth` next call on (1 is the next).
    pub fn fail_nth(&self, verb: Verb, nth: usize, times: usize, errno: i32) {
        let skip = nth.saturating_sub(1);
        self.lock().failures.push(Failure { verb, skip, left: times, errno });
    }

    /// The `nth` next non-empty `post_send` (1 is the next) is refused after `accept` WRs were
    /// accepted; at least one WR is refused, however short the chain.
    pub fn refuse_post(&self, nth: usize, accept: usize, errno: i32) {
        let skip = nth.saturating_sub(1);
        self.lock().posts.push(PostRefusal { skip, accept, errno });
    }

    /// The device does `steps` of its work while the next call is on its way to arm a CQ.
    pub fn work_before_arm(&self, steps: usize) {
        self.lock().steps_before_arm = steps;
    }

    /// From now on sends that are posted to a QP in error are accepted and never heard of again.
    pub fn swallow_sends_in_error(&self, on: bool) {
        self.lock().swallow_late_sends = on;
    }

    /// The next `times` polled WCs that match are lost.
    pub fn swallow_wcs(&self, times: usize, matches: fn(&Wc) -> bool) {
        self.lock().swallows.push(Swallow { matches, left: times });
    }

    /// The next WC that is polled comes a second time, in a later poll.
    pub fn duplicate_next_wc(&self) {
        self.lock().duplicates += 1;
    }

    /// The next poll of `cq` gives this WC first. Destroying its QP before that drops it.
    pub fn inject_wc(&self, cq: CqId, wc: Wc) {
        let mut plan = self.lock();
        plan.counts.wcs_injected += 1;
        plan.pending.push_back((cq, wc));
    }

    /// The next `polls` polls find nothing.
    pub fn pause_polls(&self, polls: usize) {
        self.lock().pauses += polls;
    }

    /// WCs of this QP are held back, so that those of other QPs overtake them.
    pub fn hold_qp(&self, qp: QpId) {
        self.lock().held_qps.push(qp);
    }

    /// Ends [`hold_qp`](FaultPlan::hold_qp): what was held back comes in the next polls, in order.
    pub fn release_qp(&self, qp: QpId) {
        let mut plan = self.lock();
        let plan = &mut *plan;
        plan.held_qps.retain(|&q| q != qp);
        let (free, held) = plan.held.drain(..).partition(|(_, wc)| wc.qp() == qp);
        let free: VecDeque<(CqId, Wc)> = free;
        plan.pending.extend(free);
        plan.held = held;
    }

    /// The next event that is asked for of this QP is this one.
    pub fn inject_event(&self, qp: QpId, event: AsyncEvent) {
        self.lock().events.push_back((qp, event));
    }

    /// This CQ overruns: it gives no more WCs, ever, also not after [`heal`](FaultPlan::heal). With
    /// the next poll its QPs are in error, and each hears of it. Nothing happens to a CQ without a
    /// QP, to which no WC can come.
    pub fn overrun_cq(&self, cq: CqId) {
        let mut plan = self.lock();
        let plan = &mut *plan;
        if plan.overrun.contains(&cq) || !plan.cqs.iter().any(|&(_, of)| of == cq) {
            return;
        }
        plan.overrun.push(cq);
        plan.counts.cqs_overrun += 1;
        plan.pending.retain(|&(of, _)| of != cq);
        plan.held.retain(|&(of, _)| of != cq);
        let of_this = plan.cqs.iter().filter(|&&(_, of)| of == cq);
        plan.events.extend(of_this.map(|&(qp, _)| (qp, AsyncEvent::CqOverrun(cq))));
    }

    /// The next `times` buffers that are new to the device get the page after the last buffer's
    /// last, without a gap, as when an IOMMU merges entries; where it is not free they get an
    /// address of their own.
    pub fn merge_dma(&self, times: usize) {
        self.lock().merges += times;
    }

    /// Nothing more goes wrong; WCs that are held back come in the next polls.
    pub fn heal(&self) {
        let mut plan = self.lock();
        let mut old = std::mem::take(&mut *plan);
        old.pending.append(&mut old.held);
        // What has overrun stays so, and whoever has not heard of it yet will.
        old.events
            .retain(|(_, e)| matches!(e, AsyncEvent::CqOverrun(cq) if old.overrun.contains(cq)));
        let Plan { pending, events, cqs, overrun, last_end, counts, .. } = old;
        *plan = Plan { pending, events, cqs, overrun, last_end, counts, ..Plan::default() };
    }

    /// What has gone wrong so far.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        self.lock().counts.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plan {
    /// The errno with which this call fails, if it does.
    fn failure(&mut self, verb: Verb) -> Option<i32> {
        self.failures.retain(|f| f.left > 0);
        let failure = self.failures.iter_mut().find(|f| f.verb == verb)?;
        if failure.skip > 0 {
            failure.skip -= 1;
            return None;
        }
        failure.left -= 1;
        let errno = failure.errno;
        self.counts.add_failed(verb);
        Some(errno)
    }

    /// How this post is refused, if it is.
    fn refusal(&mut self) -> Option<PostRefusal> {
        let due = self.posts.iter().position(|p| p.skip == 0);
        let due = due.map(|i| self.posts.remove(i));
        for post in &mut self.posts {
            post.skip = post.skip.saturating_sub(1);
        }
        due
    }

    /// Hands out what is not from the device itself.
    fn take_pending(&mut self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> usize {
        let (mut taken, mut i) = (0, 0);
        while taken < max && i < self.pending.len() {
            match self.pending.get(i) {
                Some(&(of, wc)) if of == cq => {
                    out.push(wc);
                    taken += 1;
                    self.pending.remove(i);
                }
                _ => i += 1,
            }
        }
        taken
    }

    /// Drops, holds back or doubles the WCs from `start` on.
    fn filter(&mut self, cq: CqId, start: usize, out: &mut Vec<Wc>) {
        let mut i = start;
        while let Some(&wc) = out.get(i) {
            if self.swallows(&wc) {
                out.remove(i);
                self.counts.wcs_swallowed += 1;
            } else if self.held_qps.contains(&wc.qp()) {
                out.remove(i);
                self.held.push_back((cq, wc));
                self.counts.wcs_held += 1;
            } else {
                if self.duplicates > 0 {
                    self.duplicates -= 1;
                    self.counts.wcs_duplicated += 1;
                    self.pending.push_back((cq, wc));
                }
                i += 1;
            }
        }
    }

    fn swallows(&mut self, wc: &Wc) -> bool {
        self.swallows.retain(|s| s.left > 0);
        let rule = self.swallows.iter_mut().find(|s| (s.matches)(wc));
        rule.map(|s| s.left -= 1).is_some()
    }
}

impl<D: Device> Faulty<D> {
    /// Wraps a device; the plan can be changed at any time through a clone.
    #[must_use]
    pub fn new(inner: D, plan: FaultPlan) -> Faulty<D> {
        Faulty { inner, plan }
    }

    /// The device inside.
    #[must_use]
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &FaultPlan {
        &self.plan
    }

    fn gate(&self, verb: Verb) -> Result<(), DeviceError> {
        match self.plan.lock().failure(verb) {
            Some(errno) => Err(DeviceError::new(verb, errno)),
            None => Ok(()),
        }
    }

    /// Whether this CQ has overrun; then what is in it is lost and its QPs go to error.
    fn overruns(&self, cq: CqId) -> Result<bool, DeviceError> {
        let plan = self.plan.lock();
        if !plan.overrun.contains(&cq) {
            return Ok(false);
        }
        let qps: Vec<QpId> =
            plan.cqs.iter().filter(|&&(_, of)| of == cq).map(|&(qp, _)| qp).collect();
        drop(plan);
        for qp in qps {
            if self.inner.qp_state(qp)? == QpState::Rts {
                self.inner.qp_to_err(qp)?;
            }
        }
        let mut lost = Vec::new();
        while self.inner.poll_cq(cq, 16, &mut lost)? > 0 {}
        self.plan.lock().counts.wcs_overrun += lost.len() as u64;
        Ok(true)
    }

    /// Maps right behind the last mapping, if that is planned and the device can.
    fn map_merged(&self, bytes: &ExposedBytes) -> Option<DmaAddr> {
        let mut plan = self.plan.lock();
        plan.merges = plan.merges.checked_sub(1)?;
        let addr = self.inner.dma_map(bytes, Some(plan.last_end?)).ok()?;
        plan.counts.dma_merged += 1;
        Some(addr)
    }
}

impl<D: Device> sealed::Sealed for Faulty<D> {}

impl<D: Device> Device for Faulty<D> {
    fn id(&self) -> DeviceId {
        self.inner.id()
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn alloc_pd(&self) -> Result<PdId, DeviceError> {
        self.gate(Verb::AllocPd)?;
        self.inner.alloc_pd()
    }

    fn dealloc_pd(&self, pd: PdId) -> Result<(), DeviceError> {
        self.gate(Verb::DeallocPd)?;
        self.inner.dealloc_pd(pd)
    }

    fn create_cq(&self, entries: u32) -> Result<(CqId, u32), DeviceError> {
        self.gate(Verb::CreateCq)?;
        self.inner.create_cq(entries)
    }

    fn destroy_cq(&self, cq: CqId) -> Result<(), DeviceError> {
        self.gate(Verb::DestroyCq)?;
        self.inner.destroy_cq(cq)?;
        self.plan.lock().overrun.retain(|&of| of != cq);
        Ok(())
    }

    fn create_qp(&self, pd: PdId, cq: CqId, ask: QpCaps) -> Result<(QpId, QpCaps), DeviceError> {
        self.gate(Verb::CreateQp)?;
        let (qp, granted) = self.inner.create_qp(pd, cq, ask)?;
        self.plan.lock().cqs.push((qp, cq));
        Ok((qp, granted))
    }

    fn qp_to_init(&self, qp: QpId) -> Result<(), DeviceError> {
        self.gate(Verb::ModifyQp)?;
        self.inner.qp_to_init(qp)
    }

    fn endpoint(&self, qp: QpId) -> Result<Endpoint, DeviceError> {
        self.gate(Verb::QueryQp)?;
        self.inner.endpoint(qp)
    }

    fn qp_to_rts(&self, qp: QpId, peer: Endpoint, attrs: RtsAttrs) -> Result<(), DeviceError> {
        self.gate(Verb::ModifyQp)?;
        self.inner.qp_to_rts(qp, peer, attrs)
    }

    fn qp_to_err(&self, qp: QpId) -> Result<(), DeviceError> {
        self.gate(Verb::ModifyQp)?;
        self.inner.qp_to_err(qp)
    }

    fn qp_state(&self, qp: QpId) -> Result<QpState, DeviceError> {
        self.gate(Verb::QueryQp)?;
        self.inner.qp_state(qp)
    }

    fn destroy_qp(&self, qp: QpId) -> Result<(), DeviceError> {
        self.gate(Verb::DestroyQp)?;
        self.inner.destroy_qp(qp)?;
        let mut plan = self.plan.lock();
        plan.held.retain(|(_, wc)| wc.qp() != qp);
        plan.pending.retain(|(_, wc)| wc.qp() != qp);
        plan.held_qps.retain(|&q| q != qp);
        plan.cqs.retain(|&(q, _)| q != qp);
        Ok(())
    }

    fn dma_map(&self, bytes: &ExposedBytes, home: Option<DmaAddr>) -> Result<DmaAddr, DeviceError> {
        self.gate(Verb::DmaMap)?;
        let merged = if home.is_none() { self.map_merged(bytes) } else { None };
        let addr = match merged {
            Some(addr) => addr,
            None => self.inner.dma_map(bytes, home)?,
        };
        let page = u64::from(self.inner.caps().page_size).max(1);
        let end = addr.0.checked_add(bytes.len() as u64);
        self.plan.lock().last_end = end.and_then(|e| e.checked_next_multiple_of(page)).map(DmaAddr);
        Ok(addr)
    }

    fn dma_unmap(
        &self,
        bytes: &ExposedBytes,
        addr: DmaAddr,
        proof: Fenced,
    ) -> Result<Unmapped, (DeviceError, Fenced)> {
        match self.gate(Verb::DmaUnmap) {
            Ok(()) => self.inner.dma_unmap(bytes, addr, proof),
            Err(e) => Err((e, proof)),
        }
    }

    fn reg_mr(
        &self,
        pd: PdId,
        addr: DmaAddr,
        len: u64,
        access: Access,
    ) -> Result<MrKeys, DeviceError> {
        self.gate(Verb::RegMr)?;
        self.inner.reg_mr(pd, addr, len, access)
    }

    fn alloc_fast_mr(&self, pd: PdId, depth: u32, kind: FastMrKind) -> Result<MrKeys, DeviceError> {
        self.gate(Verb::AllocMr)?;
        self.inner.alloc_fast_mr(pd, depth, kind)
    }

    fn dereg_mr(&self, mr: MrId) -> Result<(), DeviceError> {
        self.gate(Verb::DeregMr)?;
        self.inner.dereg_mr(mr)
    }

    fn alloc_mw(&self, pd: PdId) -> Result<MwKeys, DeviceError> {
        self.gate(Verb::AllocMw)?;
        self.inner.alloc_mw(pd)
    }

    fn dealloc_mw(&self, mw: MwId) -> Result<(), DeviceError> {
        self.gate(Verb::DeallocMw)?;
        self.inner.dealloc_mw(mw)
    }

    fn post_send(&self, qp: QpId, chain: &WrChain) -> Result<(), PostError> {
        let verb = Verb::PostSend;
        self.gate(verb).map_err(|cause| PostError { posted: 0, cause })?;
        let mut plan = self.plan.lock();
        let refusal = if chain.is_empty() { None } else { plan.refusal() };
        let swallow = plan.swallow_late_sends;
        drop(plan);
        if swallow && self.inner.qp_state(qp) == Ok(QpState::Err) {
            self.plan.lock().counts.sends_swallowed += chain.len() as u64;
            return Ok(());
        }
        let Some(PostRefusal { accept, errno, .. }) = refusal else {
            return self.inner.post_send(qp, chain);
        };
        let posted = accept.min(chain.len().saturating_sub(1));
        let mut prefix = chain.clone();
        prefix.truncate(posted);
        let mut plan = self.plan.lock();
        let counts = &mut plan.counts;
        *(if posted > 0 { &mut counts.posts_cut } else { &mut counts.posts_refused }) += 1;
        drop(plan);
        self.inner.post_send(qp, &prefix)?;
        Err(PostError { posted, cause: DeviceError::new(verb, errno) })
    }

    fn post_recv(&self, qp: QpId, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.gate(Verb::PostRecv).map_err(|cause| PostError { posted: 0, cause })?;
        self.inner.post_recv(qp, wrs)
    }

    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize, DeviceError> {
        self.gate(Verb::PollCq)?;
        if self.overruns(cq)? {
            return Ok(0);
        }
        let mut plan = self.plan.lock();
        if plan.pauses > 0 {
            plan.pauses -= 1;
            plan.counts.polls_paused += 1;
            return Ok(0);
        }
        let pending = plan.take_pending(cq, max, out);
        if pending > 0 {
            return Ok(pending);
        }
        let start = out.len();
        self.inner.poll_cq(cq, max, out)?;
        plan.filter(cq, start, out);
        Ok(out.len() - start)
    }

    fn arm_cq(&self, cq: CqId) -> Result<(), DeviceError> {
        self.gate(Verb::ArmCq)?;
        // What runs now ends before the CQ is armed, and raises no event.
        let late = std::mem::take(&mut self.plan.lock().steps_before_arm);
        (0..late).for_each(|_| _ = self.inner.step());
        self.inner.arm_cq(cq)
    }

    fn wait_cq(&self, cq: CqId, limit_ns: u64) -> Result<bool, DeviceError> {
        self.gate(Verb::WaitCq)?;
        let mut plan = self.plan.lock();
        plan.counts.waits += 1;
        plan.counts.last_wait_ns = limit_ns;
        drop(plan);
        self.inner.wait_cq(cq, limit_ns)
    }

    fn advice(&self, status: WcStatus) -> Option<&'static str> {
        self.inner.advice(status)
    }

    fn is_gone(&self) -> bool {
        self.inner.is_gone()
    }

    fn next_event(&self, qp: QpId) -> Option<AsyncEvent> {
        let mut plan = self.plan.lock();
        let injected = plan.events.iter().position(|&(of, _)| of == qp);
        let injected = injected.and_then(|i| plan.events.remove(i));
        plan.counts.events_injected += u64::from(injected.is_some());
        drop(plan);
        injected.map(|(_, event)| event).or_else(|| self.inner.next_event(qp))
    }

    fn step(&self) -> bool {
        self.inner.step()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sim::SimDevice;
    use super::super::sim::tests::rig::*;
    use super::super::{WcStatus, errno};
    use super::*;
    use crate::types::WrId;

    const OK: WcStatus = WcStatus::Success;

    fn faulty() -> (Side, Side, Faulty<SimDevice>) {
        let (a, b) = pair();
        let dev = Faulty::new(a.dev.clone(), FaultPlan::new());
        (a, b, dev)
    }

    /// Empty sends: a receive is posted for each at the peer.
    fn chain_of(n: u64) -> WrChain {
        let mut all = WrChain::new();
        for i in 0..n {
            let one = chain(i, true, |c| send(c, b""));
            one.iter().for_each(|wr| all.push(wr));
        }
        all
    }

    fn ids(dev: &Faulty<SimDevice>, side: &Side) -> Vec<u64> {
        let mut out = Vec::new();
        dev.poll_cq(side.cq, 100, &mut out).unwrap();
        out.iter().map(|wc| wc.wr_id().0).collect()
    }

    /// `a` with `n` sends completed and not polled.
    fn completed(n: u64) -> (Side, Side, Faulty<SimDevice>) {
        let (a, b, dev) = faulty();
        let inbox = b.mem(8, RW);
        for i in 0..n {
            b.recv(i, &inbox, 8);
        }
        dev.post_send(a.qp, &chain_of(n)).unwrap();
        a.run();
        (a, b, dev)
    }

    #[test]
    fn h_24_post_is_refused_after_a_prefix() {
        let (a, b, dev) = faulty();
        let inbox = b.mem(8, RW);
        for i in 0..8 {
            b.recv(i, &inbox, 8);
        }
        dev.plan().refuse_post(2, 2, errno::ENOMEM);
        dev.post_send(a.qp, &WrChain::new()).unwrap();
        dev.post_send(a.qp, &chain_of(1)).unwrap();
        let e = dev.post_send(a.qp, &chain_of(4)).unwrap_err();
        assert_eq!((e.posted, e.cause), (2, DeviceError::new(Verb::PostSend, errno::ENOMEM)));
        dev.post_send(a.qp, &chain_of(1)).unwrap();
        assert_eq!(a.outcome(), [(0, OK), (0, OK), (1, OK), (0, OK)]);
        dev.plan().refuse_post(1, 9, errno::EINVAL);
        assert_eq!(dev.post_send(a.qp, &chain_of(2)).unwrap_err().posted, 1);
        dev.plan().refuse_post(1, 0, errno::EINVAL);
        assert_eq!(dev.post_send(a.qp, &chain_of(2)).unwrap_err().posted, 0);
    }

    #[test]
    fn two_planned_refusals_each_hit_their_post() {
        let (a, _b, dev) = faulty();
        dev.plan().refuse_post(1, 0, errno::ENOMEM);
        dev.plan().refuse_post(3, 0, errno::EINVAL);
        let got: Vec<Option<i32>> = (0..4)
            .map(|_| dev.post_send(a.qp, &chain_of(1)).err().map(|e| e.cause.errno))
            .collect();
        assert_eq!(got, [Some(errno::ENOMEM), None, Some(errno::EINVAL), None]);
    }

    #[test]
    fn b68_calls_fail_as_often_as_planned() {
        let (a, _b, dev) = faulty();
        let mem = a.mem(8, RW);
        dev.plan().fail(Verb::DeregMr, 2, errno::EBUSY);
        for _ in 0..2 {
            let e = dev.dereg_mr(mem.keys.mr).unwrap_err();
            assert_eq!(e, DeviceError::new(Verb::DeregMr, errno::EBUSY));
        }
        assert_eq!(a.dev.counters().mrs, 1, "the device was not asked");
        dev.dereg_mr(mem.keys.mr).unwrap();
        dev.plan().fail(Verb::RegMr, 1, errno::ENOMEM);
        dev.plan().fail(Verb::DmaUnmap, 1, errno::EINVAL);
        assert!(dev.reg_mr(a.pd, mem.addr, 8, RW).is_err());
        assert!(dev.reg_mr(a.pd, mem.addr, 8, RW).is_ok());
        let (_, fenced) = dev.dma_unmap(&mem.bytes, mem.addr, Fenced::mint()).unwrap_err();
        assert!(dev.dma_unmap(&mem.bytes, mem.addr, fenced).is_ok());
        dev.plan().fail(Verb::CreateQp, usize::MAX, errno::ENOMEM);
        assert!(dev.create_qp(a.pd, a.cq, DEPTHS).is_err());
        dev.plan().heal();
        assert!(dev.create_qp(a.pd, a.cq, DEPTHS).is_ok());
    }

    #[test]
    fn b85_sends_in_error_state_are_never_heard_of_again() {
        let (a, _b, dev) = faulty();
        dev.plan().swallow_sends_in_error(true);
        dev.post_send(a.qp, &chain_of(1)).unwrap();
        dev.qp_to_err(a.qp).unwrap();
        dev.post_send(a.qp, &chain_of(3)).unwrap();
        assert_eq!(a.outcome(), [(0, WcStatus::WrFlushErr)]);
        dev.plan().swallow_sends_in_error(false);
        dev.post_send(a.qp, &chain_of(1)).unwrap();
        assert_eq!(a.outcome(), [(0, WcStatus::WrFlushErr)]);
    }

    #[test]
    fn wcs_are_lost_doubled_and_made_up() {
        let (a, _b, dev) = completed(4);
        dev.plan().swallow_wcs(1, |wc| wc.wr_id().0 >= 1);
        assert_eq!(ids(&dev, &a), [0, 2, 3]);

        let (a, _b, dev) = completed(2);
        dev.plan().duplicate_next_wc();
        assert_eq!(ids(&dev, &a), [0, 1]);
        assert_eq!(ids(&dev, &a), [0]);
        assert_eq!(ids(&dev, &a), []);
        dev.plan().fail(Verb::PollCq, 1, errno::EIO);
        assert!(dev.poll_cq(a.cq, 1, &mut vec![]).is_err());
        dev.plan().heal();
        let counts = dev.plan().counts();
        assert_eq!((counts.wcs_duplicated, counts.failed(Verb::PollCq)), (1, 1), "kept by heal");

        let stale = crate::device::WcError {
            wr_id: WrId(u64::MAX),
            status: WcStatus::GeneralErr,
            qp: a.qp,
            vendor_err: 0,
        };
        dev.plan().inject_wc(a.cq, Wc::Error(stale));
        dev.plan().inject_wc(CqId(99), Wc::Error(stale));
        assert_eq!(ids(&dev, &a), [u64::MAX]);
        assert_eq!(ids(&dev, &a), []);
    }

    #[test]
    fn wcs_are_delayed_and_overtaken() {
        let (a, _b, dev) = completed(2);
        dev.plan().pause_polls(2);
        assert_eq!((ids(&dev, &a), ids(&dev, &a)), (vec![], vec![]));
        dev.plan().hold_qp(a.qp);
        assert_eq!(ids(&dev, &a), []);
        dev.plan().release_qp(QpId(77));
        assert_eq!(ids(&dev, &a), []);
        dev.plan().release_qp(a.qp);
        let mut out = Vec::new();
        assert_eq!(dev.poll_cq(a.cq, 1, &mut out), Ok(1), "never more than asked");
        assert_eq!(ids(&dev, &a), [1]);
        dev.qp_to_err(a.qp).unwrap();
        dev.post_send(a.qp, &chain_of(1)).unwrap();
        a.run();
        assert_eq!(ids(&dev, &a), [0], "no longer held");

        let (a, _b, dev) = completed(2);
        dev.plan().hold_qp(a.qp);
        assert_eq!(ids(&dev, &a), []);
        dev.destroy_qp(a.qp).unwrap();
        dev.plan().release_qp(a.qp);
        assert_eq!(ids(&dev, &a), [], "a destroyed QP has no WCs");
    }

    #[test]
    fn b33_an_overrun_cq_gives_nothing_more_and_its_qps_are_in_error() {
        let (a, _b, dev) = faulty();
        let (cq, _) = dev.create_cq(8).unwrap();
        let (qp, _) = dev.create_qp(a.pd, cq, DEPTHS).unwrap();
        dev.qp_to_init(qp).unwrap();
        let me = Endpoint { epoch: crate::types::Epoch(1), ..dev.endpoint(qp).unwrap() };
        dev.qp_to_rts(qp, me, RtsAttrs::default()).unwrap();
        dev.plan().overrun_cq(cq);
        dev.plan().overrun_cq(cq);
        assert_eq!(dev.next_event(qp), Some(AsyncEvent::CqOverrun(cq)));
        assert_eq!(dev.poll_cq(cq, 8, &mut vec![]), Ok(0));
        assert_eq!(dev.qp_state(qp), Ok(QpState::Err));
        dev.post_send(qp, &chain_of(2)).unwrap();
        a.run();
        dev.plan().heal();
        assert_eq!(dev.poll_cq(cq, 8, &mut vec![]), Ok(0), "for ever");
        let counts = dev.plan().counts();
        assert_eq!((counts.cqs_overrun, counts.wcs_overrun), (1, 2));
        dev.destroy_qp(qp).unwrap();
        dev.destroy_cq(cq).unwrap();
        assert_eq!(dev.next_event(a.qp), None, "another CQ's QP heard nothing");
    }

    #[test]
    fn d_04_merged_mappings_are_neighbours_and_still_two() {
        let (a, _b, dev) = faulty();
        let page = dev.caps().page_size as usize;
        let bytes = |n| crate::DmaBuf::new(n).unwrap().into_exposed().0;
        let (one, two, three) = (bytes(page), bytes(page), bytes(page));
        let before = a.dev.counters().mapped_ranges;
        dev.plan().merge_dma(2);
        let first = dev.dma_map(&one, None).unwrap();
        let second = dev.dma_map(&two, None).unwrap();
        let third = dev.dma_map(&three, None).unwrap();
        assert_eq!(second.0, first.0 + page as u64);
        assert_eq!(dev.plan().counts().dma_merged, 1, "the first had nothing before it");
        assert_eq!(a.dev.counters().mapped_ranges, before + 3);
        for (bytes, addr) in [(one, first), (two, second), (three, third)] {
            dev.dma_unmap(&bytes, addr, Fenced::mint()).unwrap();
        }
        assert_eq!(a.dev.counters().mapped_ranges, before);
    }

    #[test]
    fn events_are_made_up_for_one_qp() {
        let (a, _b, dev) = faulty();
        dev.plan().inject_event(a.qp, AsyncEvent::PortDown(1));
        assert_eq!(dev.next_event(QpId(99)), None);
        assert_eq!(dev.next_event(a.qp), Some(AsyncEvent::PortDown(1)));
        assert_eq!(dev.next_event(a.qp), None);
    }
}
