//! Faults as a wrapper around any device.
//!
//! [`Faulty`] passes every call on, except where its [`FaultPlan`] says otherwise. The device
//! inside knows nothing of it.

use super::{
    AsyncEvent, Caps, Device, DeviceError, Endpoint, FastMrKind, MrKeys, PostError, QpCaps,
    QpState, RecvWr, Verb, Wc, WrChain, sealed,
};
use crate::mem::{ExposedBytes, Fenced, Unmapped};
use crate::types::{Access, CqId, DeviceId, DmaAddr, MrId, PdId, QpId};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

    /// The next poll of `cq` gives this WC first.
    pub fn inject_wc(&self, cq: CqId, wc: Wc) {
        self.lock().pending.push_back((cq, wc));
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

    /// Nothing more goes wrong; WCs that are held back come in the next polls.
    pub fn heal(&self) {
        let mut plan = self.lock();
        let mut pending = std::mem::take(&mut plan.pending);
        pending.append(&mut plan.held);
        *plan = Plan { pending, ..Plan::default() };
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
        Some(failure.errno)
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
            } else if self.held_qps.contains(&wc.qp()) {
                out.remove(i);
                self.held.push_back((cq, wc));
            } else {
                if self.duplicates > 0 {
                    self.duplicates -= 1;
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
        self.inner.destroy_cq(cq)
    }

    fn create_qp(&self, pd: PdId, cq: CqId, ask: QpCaps) -> Result<(QpId, QpCaps), DeviceError> {
        self.gate(Verb::CreateQp)?;
        self.inner.create_qp(pd, cq, ask)
    }

    fn qp_to_init(&self, qp: QpId) -> Result<(), DeviceError> {
        self.gate(Verb::ModifyQp)?;
        self.inner.qp_to_init(qp)
    }

    fn endpoint(&self, qp: QpId) -> Result<Endpoint, DeviceError> {
        self.gate(Verb::QueryQp)?;
        self.inner.endpoint(qp)
    }

    fn qp_to_rts(&self, qp: QpId, peer: Endpoint) -> Result<(), DeviceError> {
        self.gate(Verb::ModifyQp)?;
        self.inner.qp_to_rts(qp, peer)
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
        plan.held_qps.retain(|&q| q != qp);
        Ok(())
    }

    fn dma_map(&self, bytes: &ExposedBytes, home: Option<DmaAddr>) -> Result<DmaAddr, DeviceError> {
        self.gate(Verb::DmaMap)?;
        self.inner.dma_map(bytes, home)
    }

    fn dma_unmap(&self, addr: DmaAddr, proof: Fenced) -> Result<Unmapped, (DeviceError, Fenced)> {
        match self.gate(Verb::DmaUnmap) {
            Ok(()) => self.inner.dma_unmap(addr, proof),
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

    fn post_send(&self, qp: QpId, chain: &WrChain) -> Result<(), PostError> {
        let verb = Verb::PostSend;
        self.gate(verb).map_err(|cause| PostError { posted: 0, cause })?;
        let mut plan = self.plan.lock();
        let refusal = if chain.wrs().is_empty() { None } else { plan.refusal() };
        let swallow = plan.swallow_late_sends;
        drop(plan);
        if swallow && self.inner.qp_state(qp) == Ok(QpState::Err) {
            return Ok(());
        }
        let Some(PostRefusal { accept, errno, .. }) = refusal else {
            return self.inner.post_send(qp, chain);
        };
        let posted = accept.min(chain.wrs().len().saturating_sub(1));
        let mut prefix = chain.clone();
        prefix.truncate(posted);
        self.inner.post_send(qp, &prefix)?;
        Err(PostError { posted, cause: DeviceError::new(verb, errno) })
    }

    fn post_recv(&self, qp: QpId, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.gate(Verb::PostRecv).map_err(|cause| PostError { posted: 0, cause })?;
        self.inner.post_recv(qp, wrs)
    }

    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize, DeviceError> {
        self.gate(Verb::PollCq)?;
        let mut plan = self.plan.lock();
        if plan.pauses > 0 {
            plan.pauses -= 1;
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

    fn next_event(&self, qp: QpId) -> Option<AsyncEvent> {
        let mut plan = self.plan.lock();
        let injected = plan.events.iter().position(|&(of, _)| of == qp);
        let injected = injected.and_then(|i| plan.events.remove(i));
        drop(plan);
        injected.map(|(_, event)| event).or_else(|| self.inner.next_event(qp))
    }

    fn step(&self) -> bool {
        self.inner.step()
    }
}
