//! One node: a device of one process, with its objects and limits.

use super::counters::SimCounters;
use super::cq::{Cq, Cqe, Retires};
use super::iommu::{Iommu, Piece};
use super::mr::{MrTable, Reach, rights_are_valid};
use super::mw::MwTable;
use super::qp::Qp;
use super::syndrome::Syndrome;
use super::table::Table;
use crate::device::{
    Caps, DeviceError, Endpoint, FastMrKind, LimitInfo, MemoryUse, MrKeys, MwKeys, PortAddr,
    PostError, QpCaps, QpState, RecvWr, RtsAttrs, Verb, Wc, WrChain, errno,
};
use crate::types::{Access, CqId, DmaAddr, Epoch, MrId, MwId, PdId, QpId, Rkey};

/// The state of one node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) caps: Caps,
    pub(super) life: Life,
    pub(super) pds: Table<()>,
    pub(super) cqs: Table<Cq>,
    pub(super) qps: Table<Qp>,
    pub(super) mrs: MrTable,
    pub(super) mws: MwTable,
    pub(super) iommu: Iommu,
    pub(super) counters: SimCounters,
}

/// Whether the node still runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    Up,
    /// The device was removed; its process lives and can release objects.
    Unplugged,
    /// The process died.
    Killed,
}

impl Node {
    pub(super) fn new(mut caps: Caps, seed: u64) -> Node {
        caps.page_size = caps.page_size.clamp(PAGE_MIN, PAGE_MAX).next_power_of_two();
        Node {
            life: Life::Up,
            pds: Table::new(u32::MAX),
            cqs: Table::new(u32::MAX),
            qps: Table::new(QP_NUMBER_MAX),
            mrs: MrTable::new(seed, caps.max_mr),
            mws: MwTable::new(),
            iommu: Iommu::new(u64::from(caps.page_size)),
            counters: SimCounters::default(),
            caps,
        }
    }

    /// The totals, with the gauges of this moment.
    pub(super) fn snapshot(&self) -> SimCounters {
        let (fast_mrs, fast_mrs_valid) = self.mrs.fast();
        SimCounters {
            pds: self.pds.len() as u64,
            cqs: self.cqs.len() as u64,
            qps: self.qps.len() as u64,
            mrs: self.mrs.len() as u64,
            fast_mrs,
            fast_mrs_valid,
            mws: self.mws.len() as u64,
            mws_bound: self.mws.bound(),
            mapped_ranges: self.iommu.ranges(),
            mapped_bytes: self.iommu.bytes(),
            ..self.counters.clone()
        }
    }

    pub(super) fn alloc_pd(&mut self) -> Result<PdId, DeviceError> {
        self.pds.insert(()).map(PdId).ok_or(DeviceError::new(Verb::AllocPd, errno::ENOMEM))
    }

    pub(super) fn dealloc_pd(&mut self, pd: PdId) -> Result<(), DeviceError> {
        let keys = self.mrs.any_in(pd) || self.mws.any_in(pd);
        if keys || self.qps.iter().any(|(_, qp)| qp.pd == pd) {
            return Err(DeviceError::new(Verb::DeallocPd, errno::EBUSY));
        }
        let gone = self.pds.remove(pd.0);
        gone.ok_or(DeviceError::new(Verb::DeallocPd, errno::EINVAL))
    }

    pub(super) fn create_cq(&mut self, entries: u32) -> Result<(CqId, u32), DeviceError> {
        within(Verb::CreateCq, "max_cqe", u64::from(entries), u64::from(self.caps.max_cqe))?;
        if entries == 0 {
            return Err(DeviceError::new(Verb::CreateCq, errno::EINVAL));
        }
        let id = self.cqs.insert(Cq::new(entries));
        id.map(|id| (CqId(id), entries)).ok_or(DeviceError::new(Verb::CreateCq, errno::ENOMEM))
    }

    pub(super) fn destroy_cq(&mut self, cq: CqId) -> Result<(), DeviceError> {
        if self.qps.iter().any(|(_, qp)| qp.cq == cq) {
            return Err(DeviceError::new(Verb::DestroyCq, errno::EBUSY));
        }
        let gone = self.cqs.remove(cq.0);
        gone.map(drop).ok_or(DeviceError::new(Verb::DestroyCq, errno::EINVAL))
    }

    /// Makes a QP.
    ///
    /// # Divergence
    /// Real devices answer EINVAL and no more for any field that they do not like. Here a number
    /// beyond an attribute that a device reports is named; one beyond what it does not report is
    /// not, so that who asks has to find out as on hardware (B35, B36).
    pub(super) fn create_qp(
        &mut self,
        pd: PdId,
        cq: CqId,
        ask: QpCaps,
    ) -> Result<(QpId, QpCaps), DeviceError> {
        let caps = &self.caps;
        let deepest = ask.max_send_wr.max(ask.max_recv_wr);
        for (what, need, limit) in
            [("max_qp_wr", deepest, caps.max_qp_wr), ("max_sge", ask.max_sge, caps.max_sge)]
        {
            within(Verb::CreateQp, what, u64::from(need), u64::from(limit))?;
        }
        let depth_limit = caps.max_qp_wr_for(ask.max_sge);
        let fits = deepest <= depth_limit && ask.max_inline_data <= caps.max_inline_data;
        if !fits || self.pds.get(pd.0).is_none() || self.cqs.get(cq.0).is_none() {
            return Err(DeviceError::new(Verb::CreateQp, errno::EINVAL));
        }
        let granted = QpCaps {
            max_send_wr: rounded(ask.max_send_wr, depth_limit),
            max_recv_wr: rounded(ask.max_recv_wr, depth_limit),
            ..ask
        };
        let id = self.qps.insert(Qp::new(pd, cq, granted));
        id.map(|id| (QpId(id), granted)).ok_or(DeviceError::new(Verb::CreateQp, errno::ENOMEM))
    }

    pub(super) fn qp_to_init(&mut self, qp: QpId) -> Result<(), DeviceError> {
        let qp = self.qp_in(qp, QpState::Reset)?;
        qp.state = QpState::Init;
        Ok(())
    }

    pub(super) fn qp_to_rts(
        &mut self,
        qp: QpId,
        peer: Endpoint,
        attrs: RtsAttrs,
    ) -> Result<(), DeviceError> {
        let qp = self.qp_in(qp, QpState::Init)?;
        if attrs.rnr_retry > RtsAttrs::RNR_RETRY_FOREVER {
            return Err(DeviceError::new(Verb::ModifyQp, errno::EINVAL));
        }
        qp.attrs = attrs;
        qp.peer = Some((peer.node, peer.qp));
        qp.state = QpState::Rts;
        Ok(())
    }

    pub(super) fn qp_to_err(&mut self, qp: QpId) -> Result<(), DeviceError> {
        let qp = self.qps.get_mut(qp.0);
        qp.ok_or(DeviceError::new(Verb::ModifyQp, errno::EINVAL))?.state = QpState::Err;
        Ok(())
    }

    pub(super) fn endpoint(&self, node: u64, qp: QpId) -> Result<Endpoint, DeviceError> {
        match self.qp_state(qp)? {
            QpState::Reset => Err(DeviceError::new(Verb::QueryQp, errno::EINVAL)),
            _ => Ok(Endpoint { node, port: PortAddr::default(), qp, epoch: Epoch(0) }),
        }
    }

    pub(super) fn qp_state(&self, qp: QpId) -> Result<QpState, DeviceError> {
        let qp = self.qps.get(qp.0).ok_or(DeviceError::new(Verb::QueryQp, errno::EINVAL))?;
        Ok(qp.state)
    }

    /// Removes a QP with its WCs and events.
    ///
    /// # Divergence
    /// A QP on which a window is bound is busy; rxe makes the caller wait for 50 s and then lets it
    /// go.
    pub(super) fn destroy_qp(&mut self, qp: QpId) -> Result<(), DeviceError> {
        if self.mws.any_on(qp) {
            return Err(DeviceError::new(Verb::DestroyQp, errno::EBUSY));
        }
        let gone = self.qps.remove(qp.0);
        let gone = gone.ok_or(DeviceError::new(Verb::DestroyQp, errno::EINVAL))?;
        self.counters.qps_destroyed_undrained += u64::from(gone.sq.in_use() > 0);
        if let Some(cq) = self.cqs.get_mut(gone.cq.0) {
            cq.forget(qp);
        }
        Ok(())
    }

    /// Makes an ordinary MR.
    ///
    /// # Divergence
    /// Memory that is mapped for reading only is EACCES where rights to write are asked, before
    /// anything else is tried; kernels answer EFAULT or ENOMEM.
    pub(super) fn reg_mr(
        &mut self,
        pd: PdId,
        addr: DmaAddr,
        len: u64,
        access: Access,
    ) -> Result<MrKeys, DeviceError> {
        let error = |errno| DeviceError::new(Verb::RegMr, errno);
        if self.pds.get(pd.0).is_none() || len == 0 || !rights_are_valid(access) {
            return Err(error(errno::EINVAL));
        }
        if access.contains(Access::RELAXED_ORDERING) && !self.caps.relaxed_ordering {
            return Err(error(errno::EINVAL));
        }
        within(Verb::RegMr, "max_mr_size", len, self.caps.max_mr_size)?;
        self.room_for_mr(Verb::RegMr, len)?;
        let room = self.caps.iommu_mr_size;
        if room > 0 && len > room {
            // Which limit it was, nobody is told; what there is, everybody can count.
            return Err(DeviceError { memory: Some(self.memory(len)), ..error(errno::ENOMEM) });
        }
        let memory = self.iommu.locate(addr.0, len).ok_or(error(errno::EFAULT))?;
        if access.intersects(Access::WRITING) && self.iommu.is_read_only(memory) {
            return Err(error(errno::EACCES));
        }
        let keys = self.mrs.add_plain(pd, addr.0, len, access).ok_or(error(errno::ENOMEM))?;
        self.counters.reg_mr_calls += 1;
        Ok(keys)
    }

    pub(super) fn alloc_fast_mr(
        &mut self,
        pd: PdId,
        depth: u32,
        kind: FastMrKind,
    ) -> Result<MrKeys, DeviceError> {
        let error = |errno| DeviceError::new(Verb::AllocMr, errno);
        let list_max = self.caps.max_fast_reg_page_list_len;
        if !self.caps.mem_mgt_extensions || list_max == 0 {
            return Err(error(errno::EOPNOTSUPP));
        }
        let gaps_missing = kind == FastMrKind::Gaps && !self.caps.sg_gaps;
        if self.pds.get(pd.0).is_none() || depth == 0 || gaps_missing {
            return Err(error(errno::EINVAL));
        }
        let (need, limit) = (u64::from(depth), u64::from(list_max));
        within(Verb::AllocMr, "max_fast_reg_page_list_len", need, limit)?;
        self.room_for_mr(Verb::AllocMr, 0)?;
        let keys = self.mrs.add_fast(pd, depth, kind).ok_or(error(errno::ENOMEM))?;
        self.counters.alloc_mr_calls += 1;
        Ok(keys)
    }

    pub(super) fn alloc_mw(&mut self, pd: PdId) -> Result<MwKeys, DeviceError> {
        self.counters.alloc_mw_calls += 1;
        let error = |errno| DeviceError::new(Verb::AllocMw, errno);
        if !self.caps.has_windows() {
            return Err(error(errno::EOPNOTSUPP));
        }
        if self.pds.get(pd.0).is_none() {
            return Err(error(errno::EINVAL));
        }
        let (limit, in_use) = (u64::from(self.caps.max_mw), self.mws.len() as u64);
        if in_use >= limit {
            let info = LimitInfo { what: "max_mw", need: 1, limit, in_use };
            return Err(DeviceError::limit(Verb::AllocMw, errno::ENOMEM, info));
        }
        self.mws.add(pd).ok_or(error(errno::ENOMEM))
    }

    /// Ends a window, bound or free, whatever state its QP is in.
    pub(super) fn dealloc_mw(&mut self, mw: MwId) -> Result<(), DeviceError> {
        if !self.mws.remove(mw) {
            return Err(DeviceError::new(Verb::DeallocMw, errno::EINVAL));
        }
        self.counters.dealloc_mw_calls += 1;
        Ok(())
    }

    /// Ends an MR of either kind.
    ///
    /// # Divergence
    /// An MR with a bound window is busy, as `ibv_dereg_mr(3)` says; rxe calls it invalid (EINVAL).
    pub(super) fn dereg_mr(&mut self, mr: MrId) -> Result<(), DeviceError> {
        if self.mws.any_over(mr) {
            return Err(DeviceError::new(Verb::DeregMr, errno::EBUSY));
        }
        if !self.mrs.remove(mr) {
            return Err(DeviceError::new(Verb::DeregMr, errno::EINVAL));
        }
        self.counters.dereg_mr_calls += 1;
        Ok(())
    }

    pub(super) fn post_send(&mut self, id: QpId, chain: &WrChain) -> Result<(), PostError> {
        let refused = |posted, cause| PostError { posted, cause };
        let invalid = DeviceError::new(Verb::PostSend, errno::EINVAL);
        let qp = self.qps.get_mut(id.0).ok_or(refused(0, invalid))?;
        match qp.state {
            QpState::Reset | QpState::Init | QpState::Rtr => return Err(refused(0, invalid)),
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => {}
        }
        let (mut posted, mut result) = (0, Ok(()));
        for wr in chain.iter() {
            if let Err(cause) = qp.accept_send(&wr, chain, &self.caps) {
                result = Err(refused(posted, cause));
                break;
            }
            posted += 1;
            self.counters.send_wrs_signaled += u64::from(wr.signaled);
        }
        let counters = &mut self.counters;
        counters.send_doorbells += u64::from(posted > 0);
        counters.send_wrs_posted += posted as u64;
        counters.sq_in_use_max = counters.sq_in_use_max.max(qp.sq.in_use());
        result
    }

    pub(super) fn post_recv(&mut self, id: QpId, wrs: &[RecvWr]) -> Result<(), PostError> {
        let refused = |posted, cause| PostError { posted, cause };
        let invalid = DeviceError::new(Verb::PostRecv, errno::EINVAL);
        let qp = self.qps.get_mut(id.0).ok_or(refused(0, invalid))?;
        if qp.state == QpState::Reset {
            return Err(refused(0, invalid));
        }
        let (mut posted, mut result) = (0, Ok(()));
        for wr in wrs {
            if let Err(cause) = qp.accept_recv(wr) {
                result = Err(refused(posted, cause));
                break;
            }
            posted += 1;
        }
        self.counters.recv_doorbells += u64::from(posted > 0);
        self.counters.recv_wrs_posted += posted as u64;
        result
    }

    pub(super) fn arm_cq(&mut self, cq: CqId) -> Result<(), DeviceError> {
        let cq = self.cqs.get_mut(cq.0).ok_or(DeviceError::new(Verb::ArmCq, errno::EINVAL))?;
        cq.arm();
        Ok(())
    }

    /// Whether there is a reason to stop waiting.
    pub(super) fn take_cq_event(&mut self, cq: CqId) -> Result<bool, DeviceError> {
        let told = self.qps.iter().any(|(_, qp)| qp.cq == cq && !qp.events.is_empty());
        let queue = self.cqs.get_mut(cq.0);
        let queue = queue.ok_or(DeviceError::new(Verb::WaitCq, errno::EINVAL))?;
        Ok(queue.take_event() || told)
    }

    pub(super) fn poll_cq(
        &mut self,
        cq: CqId,
        max: usize,
        out: &mut Vec<Wc>,
    ) -> Result<usize, DeviceError> {
        let error = DeviceError::new(Verb::PollCq, errno::EINVAL);
        let cq = self.cqs.get_mut(cq.0).ok_or(error)?;
        let mut polled = 0;
        while polled < max {
            let Some(Cqe { wc, qp, retires }) = cq.pop() else { break };
            if let Some(qp) = self.qps.get_mut(qp.0) {
                match retires {
                    Retires::Send(seq) => qp.sq.retire(seq),
                    Retires::Recv => qp.rq.retire(),
                }
            }
            out.push(wc);
            polled += 1;
        }
        Ok(polled)
    }

    /// Finds what a peer's key lets it reach through the QP at this position, and appends it to
    /// `out`.
    pub(super) fn reach_remote(
        &self,
        qp: usize,
        rkey: Rkey,
        ask: Reach,
        out: &mut Vec<Piece>,
    ) -> Result<(), Syndrome> {
        if MwTable::owns(rkey) {
            let qp = QpId(self.qps.at(qp).0);
            return self.mws.reach(&self.iommu, qp, rkey, ask, out);
        }
        self.mrs.reach_remote(&self.iommu, rkey, ask, out)
    }

    /// Ends a key for the QP at this position. `remote`: its peer asks for it.
    pub(super) fn invalidate(
        &mut self,
        qp: usize,
        rkey: Rkey,
        remote: bool,
    ) -> Result<(), Syndrome> {
        let (id, qp) = self.qps.at(qp);
        if MwTable::owns(rkey) {
            return self.mws.invalidate((QpId(id), qp.pd), rkey);
        }
        self.mrs.invalidate(qp.pd, rkey, remote)
    }

    /// The QP, if it is in the one state from which a transition is allowed.
    fn qp_in(&mut self, qp: QpId, state: QpState) -> Result<&mut Qp, DeviceError> {
        let qp = self.qps.get_mut(qp.0).filter(|qp| qp.state == state);
        qp.ok_or(DeviceError::new(Verb::ModifyQp, errno::EINVAL))
    }

    fn room_for_mr(&self, verb: Verb, asked: u64) -> Result<(), DeviceError> {
        let (limit, in_use) = (u64::from(self.caps.max_mr), self.mrs.len() as u64);
        if in_use < limit {
            return Ok(());
        }
        let info = LimitInfo { what: "max_mr", need: 1, limit, in_use };
        let memory = Some(self.memory(asked));
        Err(DeviceError { memory, ..DeviceError::limit(verb, errno::ENOMEM, info) })
    }

    /// What is registered now.
    fn memory(&self, asked: u64) -> MemoryUse {
        MemoryUse { mrs: self.mrs.len() as u64, bytes: self.mrs.bytes(), asked }
    }
}

fn within(verb: Verb, what: &'static str, need: u64, limit: u64) -> Result<(), DeviceError> {
    if need <= limit {
        return Ok(());
    }
    let info = LimitInfo { what, need, limit, in_use: 0 };
    Err(DeviceError::limit(verb, errno::EINVAL, info))
}

/// A depth as devices grant it: the next power of two, within the limit.
fn rounded(ask: u32, limit: u32) -> u32 {
    match ask {
        0 => 0,
        n => n.checked_next_power_of_two().unwrap_or(limit).min(limit),
    }
}

const PAGE_MIN: u32 = 512;
const PAGE_MAX: u32 = 1 << 30;
/// QP numbers have 24 bits.
const QP_NUMBER_MAX: u32 = (1 << 24) - 1;
