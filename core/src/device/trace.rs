//! A wrapper that writes down what a device was asked, in order. For tests and for reports of
//! failures.

use super::{
    AsyncEvent, Caps, Device, DeviceError, Endpoint, FastMrKind, MrKeys, MwKeys, PostError, QpCaps,
    QpState, RecvWr, RtsAttrs, Wc, WcStatus, Wr, WrChain, sealed,
};
use crate::mem::{ExposedBytes, Fenced, Unmapped};
use crate::sync::{Arc, Mutex, PoisonError};
use crate::types::{Access, CqId, DeviceId, DmaAddr, MrId, MwId, PdId, QpId};

/// One call that changes something, with its outcome.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Call {
    /// `create_qp` gave this QP.
    CreateQp(QpId),
    /// `qp_to_err`.
    QpToErr(QpId),
    /// `destroy_qp` succeeded.
    DestroyQp(QpId),
    /// `dma_map` gave this address.
    DmaMap(DmaAddr),
    /// `dma_unmap` succeeded.
    DmaUnmap(DmaAddr),
    /// `reg_mr` made this MR, with these keys and rights.
    RegMr(MrKeys, Access),
    /// `alloc_fast_mr` made this MR.
    AllocFastMr(MrId),
    /// `dereg_mr` succeeded.
    DeregMr(MrId),
    /// `alloc_mw` made this window.
    AllocMw(MwId),
    /// `dealloc_mw` succeeded.
    DeallocMw(MwId),
    /// `post_send` accepted this many of these WRs.
    PostSend(Vec<Wr>, usize),
    /// `poll_cq` gave this WC.
    Wc(Wc),
}

/// The calls so far. A handle: clones are one list.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Trace {
    /// An empty list.
    #[must_use]
    pub fn new() -> Trace {
        Trace::default()
    }

    /// Takes the calls since the last time.
    pub fn take(&self) -> Vec<Call> {
        std::mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, call: Call) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }
}

/// A device whose calls are written down.
#[derive(Clone, Debug)]
pub struct Traced<D> {
    inner: D,
    trace: Trace,
}

impl<D> Traced<D> {
    /// Writes the calls of `inner` to `trace`.
    pub fn new(inner: D, trace: Trace) -> Traced<D> {
        Traced { inner, trace }
    }

    /// The device inside.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Writes a call down if it succeeded.
    fn done<T, E>(&self, result: Result<T, E>, call: impl FnOnce(&T) -> Call) -> Result<T, E> {
        if let Ok(v) = &result {
            self.trace.write(call(v));
        }
        result
    }
}

impl<D: Device> sealed::Sealed for Traced<D> {}

impl<D: Device> Device for Traced<D> {
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
        self.inner.alloc_pd()
    }

    fn dealloc_pd(&self, pd: PdId) -> Result<(), DeviceError> {
        self.inner.dealloc_pd(pd)
    }

    fn create_cq(&self, entries: u32) -> Result<(CqId, u32), DeviceError> {
        self.inner.create_cq(entries)
    }

    fn destroy_cq(&self, cq: CqId) -> Result<(), DeviceError> {
        self.inner.destroy_cq(cq)
    }

    fn create_qp(&self, pd: PdId, cq: CqId, ask: QpCaps) -> Result<(QpId, QpCaps), DeviceError> {
        self.done(self.inner.create_qp(pd, cq, ask), |(qp, _)| Call::CreateQp(*qp))
    }

    fn qp_to_init(&self, qp: QpId) -> Result<(), DeviceError> {
        self.inner.qp_to_init(qp)
    }

    fn endpoint(&self, qp: QpId) -> Result<Endpoint, DeviceError> {
        self.inner.endpoint(qp)
    }

    fn qp_to_rts(&self, qp: QpId, peer: Endpoint, attrs: RtsAttrs) -> Result<(), DeviceError> {
        self.inner.qp_to_rts(qp, peer, attrs)
    }

    fn qp_to_err(&self, qp: QpId) -> Result<(), DeviceError> {
        self.done(self.inner.qp_to_err(qp), |()| Call::QpToErr(qp))
    }

    fn qp_state(&self, qp: QpId) -> Result<QpState, DeviceError> {
        self.inner.qp_state(qp)
    }

    fn destroy_qp(&self, qp: QpId) -> Result<(), DeviceError> {
        self.done(self.inner.destroy_qp(qp), |()| Call::DestroyQp(qp))
    }

    fn dma_map(&self, bytes: &ExposedBytes, home: Option<DmaAddr>) -> Result<DmaAddr, DeviceError> {
        self.done(self.inner.dma_map(bytes, home), |addr| Call::DmaMap(*addr))
    }

    fn dma_unmap(
        &self,
        bytes: &ExposedBytes,
        addr: DmaAddr,
        proof: Fenced,
    ) -> Result<Unmapped, (DeviceError, Fenced)> {
        self.done(self.inner.dma_unmap(bytes, addr, proof), |_| Call::DmaUnmap(addr))
    }

    fn reg_mr(
        &self,
        pd: PdId,
        addr: DmaAddr,
        len: u64,
        access: Access,
    ) -> Result<MrKeys, DeviceError> {
        self.done(self.inner.reg_mr(pd, addr, len, access), |k| Call::RegMr(*k, access))
    }

    fn alloc_fast_mr(&self, pd: PdId, depth: u32, kind: FastMrKind) -> Result<MrKeys, DeviceError> {
        self.done(self.inner.alloc_fast_mr(pd, depth, kind), |k| Call::AllocFastMr(k.mr))
    }

    fn dereg_mr(&self, mr: MrId) -> Result<(), DeviceError> {
        self.done(self.inner.dereg_mr(mr), |()| Call::DeregMr(mr))
    }

    fn alloc_mw(&self, pd: PdId) -> Result<MwKeys, DeviceError> {
        self.done(self.inner.alloc_mw(pd), |k| Call::AllocMw(k.mw))
    }

    fn dealloc_mw(&self, mw: MwId) -> Result<(), DeviceError> {
        self.done(self.inner.dealloc_mw(mw), |()| Call::DeallocMw(mw))
    }

    fn post_send(&self, qp: QpId, chain: &WrChain) -> Result<(), PostError> {
        let result = self.inner.post_send(qp, chain);
        let posted = match &result {
            Ok(()) => chain.len(),
            Err(e) => e.posted,
        };
        self.trace.write(Call::PostSend(chain.iter().collect(), posted));
        result
    }

    fn post_recv(&self, qp: QpId, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.inner.post_recv(qp, wrs)
    }

    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize, DeviceError> {
        let before = out.len();
        let n = self.inner.poll_cq(cq, max, out)?;
        for wc in &out[before..] {
            self.trace.write(Call::Wc(*wc));
        }
        Ok(n)
    }

    fn arm_cq(&self, cq: CqId) -> Result<(), DeviceError> {
        self.inner.arm_cq(cq)
    }

    fn wait_cq(&self, cq: CqId, limit_ns: u64) -> Result<bool, DeviceError> {
        self.inner.wait_cq(cq, limit_ns)
    }

    fn advice(&self, status: WcStatus) -> Option<&'static str> {
        self.inner.advice(status)
    }

    fn is_gone(&self) -> bool {
        self.inner.is_gone()
    }

    fn next_event(&self, qp: QpId) -> Option<AsyncEvent> {
        self.inner.next_event(qp)
    }

    fn step(&self) -> bool {
        self.inner.step()
    }
}
