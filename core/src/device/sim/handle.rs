//! The handle of one node: what the engine holds.

use super::counters::SimCounters;
use super::fabric::{Fabric, State, gone};
use super::node::{Life, Node};
use crate::device::{
    AsyncEvent, Caps, Device, DeviceError, Endpoint, FastMrKind, MrKeys, MwKeys, PostError, QpCaps,
    QpState, RecvWr, RtsAttrs, Verb, Wc, WcStatus, WrChain, errno, sealed,
};
use crate::mem::{ExposedBytes, Fenced, Unmapped};
use crate::types::{Access, CqId, DeviceId, DmaAddr, MrId, MwId, PdId, QpId};
use std::sync::Arc;

/// A software device: one node of a [`Fabric`]. A handle: clones are one device.
///
/// # Errors
/// Once the node is gone ([`kill`](SimDevice::kill), [`unplug`](SimDevice::unplug)) calls answer
/// ENODEV. Those that release something answer EIO, and what they name is released; `dma_unmap`
/// succeeds, for a device that is gone reaches nothing.
#[derive(Clone, Debug)]
pub struct SimDevice {
    fabric: Fabric,
    node: usize,
    id: DeviceId,
    fixed: Arc<Fixed>,
}

/// What never changes.
#[derive(Debug)]
struct Fixed {
    name: String,
    caps: Caps,
}

impl SimDevice {
    pub(super) fn new(fabric: Fabric, node: usize, name: &str, caps: Caps) -> SimDevice {
        let id = DeviceId::fresh();
        SimDevice { fabric, node, id, fixed: Arc::new(Fixed { name: name.to_owned(), caps }) }
    }

    /// The fabric that it is on.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The process dies: all its objects and mappings vanish at once, and peers hear of it.
    pub fn kill(&self) {
        self.fabric.lock().kill(self.node);
    }

    /// The device is removed under its process, which hears [`AsyncEvent::DeviceFatal`].
    pub fn unplug(&self) {
        self.fabric.lock().unplug(self.node);
    }

    /// The counters now.
    #[must_use]
    pub fn counters(&self) -> SimCounters {
        self.with(|n| n.snapshot())
    }

    /// Send-queue slots of a QP that are taken.
    #[must_use]
    pub fn sq_in_use(&self, qp: QpId) -> Option<u32> {
        self.with(|n| n.qps.get(qp.0).map(|qp| qp.sq.in_use()))
    }

    pub(super) fn index(&self) -> usize {
        self.node
    }

    pub(super) fn with<T>(&self, call: impl FnOnce(&mut Node) -> T) -> T {
        call(&mut self.fabric.lock().nodes[self.node])
    }

    /// A call that only a living device answers.
    fn live<T>(
        &self,
        verb: Verb,
        call: impl FnOnce(&mut Node) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        self.with(|n| if n.life == Life::Up { call(n) } else { Err(gone(verb)) })
    }

    /// A call that releases something; on a dead device the object is gone whatever the answer.
    fn release(
        &self,
        verb: Verb,
        call: impl FnOnce(&mut State, usize) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut state = self.fabric.lock();
        let life = state.nodes[self.node].life;
        let result = call(&mut state, self.node);
        if life == Life::Up { result } else { Err(DeviceError::new(verb, errno::EIO)) }
    }

    fn post(
        &self,
        verb: Verb,
        call: impl FnOnce(&mut Node) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        self.with(|n| match n.life {
            Life::Up => call(n),
            Life::Unplugged | Life::Killed => Err(PostError { posted: 0, cause: gone(verb) }),
        })
    }
}

impl sealed::Sealed for SimDevice {}

impl Device for SimDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn caps(&self) -> Caps {
        self.fixed.caps.clone()
    }

    fn name(&self) -> String {
        self.fixed.name.clone()
    }

    fn alloc_pd(&self) -> Result<PdId, DeviceError> {
        self.live(Verb::AllocPd, Node::alloc_pd)
    }

    fn dealloc_pd(&self, pd: PdId) -> Result<(), DeviceError> {
        self.release(Verb::DeallocPd, |s, n| s.nodes[n].dealloc_pd(pd))
    }

    fn create_cq(&self, entries: u32) -> Result<(CqId, u32), DeviceError> {
        self.live(Verb::CreateCq, |n| n.create_cq(entries))
    }

    fn destroy_cq(&self, cq: CqId) -> Result<(), DeviceError> {
        self.release(Verb::DestroyCq, |s, n| s.nodes[n].destroy_cq(cq))
    }

    fn create_qp(&self, pd: PdId, cq: CqId, ask: QpCaps) -> Result<(QpId, QpCaps), DeviceError> {
        self.live(Verb::CreateQp, |n| n.create_qp(pd, cq, ask))
    }

    fn qp_to_init(&self, qp: QpId) -> Result<(), DeviceError> {
        self.live(Verb::ModifyQp, |n| n.qp_to_init(qp))
    }

    fn endpoint(&self, qp: QpId) -> Result<Endpoint, DeviceError> {
        self.live(Verb::QueryQp, |n| n.endpoint(self.node as u64, qp))
    }

    fn qp_to_rts(&self, qp: QpId, peer: Endpoint, attrs: RtsAttrs) -> Result<(), DeviceError> {
        self.live(Verb::ModifyQp, |n| n.qp_to_rts(qp, peer, attrs))
    }

    fn qp_to_err(&self, qp: QpId) -> Result<(), DeviceError> {
        self.live(Verb::ModifyQp, |n| n.qp_to_err(qp))
    }

    fn qp_state(&self, qp: QpId) -> Result<QpState, DeviceError> {
        self.live(Verb::QueryQp, |n| n.qp_state(qp))
    }

    fn destroy_qp(&self, qp: QpId) -> Result<(), DeviceError> {
        self.release(Verb::DestroyQp, |s, n| s.destroy_qp(n, qp))
    }

    fn dma_map(&self, bytes: &ExposedBytes, home: Option<DmaAddr>) -> Result<DmaAddr, DeviceError> {
        self.live(Verb::DmaMap, |n| {
            n.iommu.map(bytes, home).map_err(|errno| DeviceError::new(Verb::DmaMap, errno))
        })
    }

    fn dma_unmap(
        &self,
        _bytes: &ExposedBytes,
        addr: DmaAddr,
        proof: Fenced,
    ) -> Result<Unmapped, (DeviceError, Fenced)> {
        // The mapping's clone of the bytes is dropped in here, before the proof is given.
        let ended = self.with(|n| n.iommu.unmap(addr) || n.life == Life::Killed);
        if ended {
            Ok(Unmapped::after(proof))
        } else {
            Err((DeviceError::new(Verb::DmaUnmap, errno::EINVAL), proof))
        }
    }

    fn reg_mr(
        &self,
        pd: PdId,
        addr: DmaAddr,
        len: u64,
        access: Access,
    ) -> Result<MrKeys, DeviceError> {
        self.live(Verb::RegMr, |n| n.reg_mr(pd, addr, len, access))
    }

    fn alloc_fast_mr(&self, pd: PdId, depth: u32, kind: FastMrKind) -> Result<MrKeys, DeviceError> {
        self.live(Verb::AllocMr, |n| n.alloc_fast_mr(pd, depth, kind))
    }

    fn dereg_mr(&self, mr: MrId) -> Result<(), DeviceError> {
        self.release(Verb::DeregMr, |s, n| s.nodes[n].dereg_mr(mr))
    }

    fn alloc_mw(&self, pd: PdId) -> Result<MwKeys, DeviceError> {
        self.live(Verb::AllocMw, |n| n.alloc_mw(pd))
    }

    fn dealloc_mw(&self, mw: MwId) -> Result<(), DeviceError> {
        self.release(Verb::DeallocMw, |s, n| s.nodes[n].dealloc_mw(mw))
    }

    fn post_send(&self, qp: QpId, chain: &WrChain) -> Result<(), PostError> {
        self.post(Verb::PostSend, |n| n.post_send(qp, chain))
    }

    fn post_recv(&self, qp: QpId, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.post(Verb::PostRecv, |n| n.post_recv(qp, wrs))
    }

    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize, DeviceError> {
        self.live(Verb::PollCq, |n| n.poll_cq(cq, max, out))
    }

    fn arm_cq(&self, cq: CqId) -> Result<(), DeviceError> {
        self.live(Verb::ArmCq, |n| n.arm_cq(cq))
    }

    /// # Divergence
    /// Time does not pass: all devices of the fabric work until this one has an event, or there is
    /// no more work, which counts as the limit.
    fn wait_cq(&self, cq: CqId, _limit_ns: u64) -> Result<bool, DeviceError> {
        loop {
            if self.live(Verb::WaitCq, |n| n.take_cq_event(cq))? {
                return Ok(true);
            }
            if !self.step() {
                return Ok(false);
            }
        }
    }

    fn advice(&self, _: WcStatus) -> Option<&'static str> {
        None
    }

    fn is_gone(&self) -> bool {
        self.with(|n| n.life != Life::Up)
    }

    fn next_event(&self, qp: QpId) -> Option<AsyncEvent> {
        self.with(|n| n.qps.get_mut(qp.0)?.events.pop_front())
    }

    fn step(&self) -> bool {
        self.fabric.step()
    }
}
