//! Running one WR: checks first, bytes and state after, so a refused WR has changed nothing.

use super::cq::{Cqe, Pushed, Retires};
use super::fabric::{At, Scratch, State};
use super::iommu::{self, Sink};
use super::mr::{Reach, Registration};
use super::mw::Bind;
use super::node::{Life, Node};
use super::qp::{Qp, Work, Wqe};
use super::syndrome::Syndrome;
use crate::device::{
    AsyncEvent, Purpose, QpState, RecvWr, RtsAttrs, Wc, WcError, WcStatus, WcSuccess,
};
use crate::types::{Access, CqId, QpId, Rkey, WrId};

/// Why a WR did not succeed in this step.
enum Stop {
    /// It waits for the peer.
    Wait,
    /// It has used up one of its retries.
    Retry,
    /// It failed, and its QP with it.
    Fail(WcStatus, Syndrome),
}

/// Bytes of a message at most, as InfiniBand allows.
const MESSAGE_MAX: u64 = 1 << 31;

impl State {
    /// Runs or flushes one WR of a QP; false if it has none that can run.
    pub(super) fn step_qp(&mut self, at: At, scratch: &mut Scratch) -> bool {
        let (_, qp) = self.nodes[at.node].qps.at(at.qp);
        match qp.state {
            QpState::Err | QpState::Sqe => self.flush_one(at),
            QpState::Rts => match qp.sq.head().copied() {
                Some(wqe) => self.run(at, &wqe, scratch),
                None => false,
            },
            QpState::Reset | QpState::Init | QpState::Rtr | QpState::Sqd => false,
        }
    }

    /// Runs the head of a send queue; false if it has to wait.
    fn run(&mut self, at: At, wqe: &Wqe, scratch: &mut Scratch) -> bool {
        let result = match wqe.work {
            Work::Send { invalidate } => self.send(at, wqe, invalidate, scratch),
            Work::Write { addr, rkey } => self.write(at, wqe, addr, rkey, scratch),
            Work::Read { addr, rkey } => self.read(at, wqe, addr, rkey, scratch),
            Work::Register(reg) => self.register(at, wqe, reg),
            Work::Invalidate(rkey) => self.local_inv(at, rkey),
            Work::Bind(bind) => self.bind(at, bind),
        };
        let (id, qp) = self.nodes[at.node].qps.at_mut(at.qp);
        match result {
            Err(Stop::Wait) => return false,
            Err(Stop::Retry) => {}
            Ok(byte_len) => {
                qp.sq.pop();
                if wqe.signaled {
                    let wr_id = wqe.wr_id;
                    let ok = WcSuccess { wr_id, qp: QpId(id), byte_len, invalidated: None };
                    self.complete(at, Wc::Success(ok), Retires::Send(wqe.seq));
                }
            }
            Err(Stop::Fail(status, why)) => {
                qp.sq.pop();
                qp.state = QpState::Err;
                self.nodes[at.node].counters.send_errors += 1;
                self.complete_error(at, wqe.wr_id, status, why, Retires::Send(wqe.seq));
            }
        }
        true
    }

    /// Flushes one WR of a QP in error: sends first, in order, then receives.
    fn flush_one(&mut self, at: At) -> bool {
        let node = &mut self.nodes[at.node];
        let (_, qp) = node.qps.at_mut(at.qp);
        let (wr_id, retires) = if let Some(wqe) = qp.sq.head().copied() {
            qp.sq.pop();
            node.counters.sends_flushed += 1;
            (wqe.wr_id, Retires::Send(wqe.seq))
        } else if let Some(recv) = qp.rq.work.pop_front() {
            node.counters.recvs_flushed += 1;
            (recv.wr_id, Retires::Recv)
        } else {
            return false;
        };
        self.complete_error(at, wr_id, WcStatus::WrFlushErr, Syndrome::Flushed, retires);
        true
    }

    /// SEND, with or without invalidation.
    fn send(
        &mut self,
        at: At,
        wqe: &Wqe,
        invalidate: Option<Rkey>,
        s: &mut Scratch,
    ) -> Result<u32, Stop> {
        let total = self.gather(at, wqe, Access::empty(), s)?;
        let to = self.peer_of(at)?;
        let (peer_id, peer) = self.nodes[to.node].qps.at(to.qp);
        let Some(recv) = peer.rq.work.front().copied() else { return Err(self.not_ready(at)) };
        self.check_receive(to, &recv, total, s)?;
        let node = &mut self.nodes[to.node];
        let refused = invalidate.and_then(|rkey| node.invalidate(to.qp, rkey, true).err());
        node.qps.at_mut(to.qp).1.rq.work.pop_front();
        // The sender has been acknowledged either way: the invalidation is the owner's affair.
        let counters = &mut self.nodes[at.node].counters;
        counters.sends += 1;
        counters.sends_with_inv += u64::from(invalidate.is_some());
        if let Some(why) = refused {
            self.nodes[to.node].counters.remote_refusals += 1;
            self.nodes[to.node].qps.at_mut(to.qp).1.state = QpState::Err;
            let status = WcStatus::RemInvReqErr;
            self.complete_error(to, recv.wr_id, status, why, Retires::Recv);
            return Ok(total);
        }
        self.deliver(at, wqe, to.node, s)?;
        let counters = &mut self.nodes[to.node].counters;
        counters.recvs += 1;
        counters.bytes_received += u64::from(total);
        counters.remote_invs += u64::from(invalidate.is_some());
        let qp = QpId(peer_id);
        let wc = WcSuccess { wr_id: recv.wr_id, qp, byte_len: total, invalidated: invalidate };
        self.complete(to, Wc::Success(wc), Retires::Recv);
        Ok(total)
    }

    /// What becomes of a SEND that has found no receive.
    fn not_ready(&mut self, at: At) -> Stop {
        let (_, qp) = self.nodes[at.node].qps.at_mut(at.qp);
        match qp.attrs.rnr_retry {
            RtsAttrs::RNR_RETRY_FOREVER => Stop::Wait,
            limit if qp.sq.try_again(limit) => Stop::Retry,
            _ => Stop::Fail(WcStatus::RnrRetryExcErr, Syndrome::NoReceive),
        }
    }

    /// RDMA WRITE.
    fn write(
        &mut self,
        at: At,
        wqe: &Wqe,
        addr: u64,
        rkey: Rkey,
        s: &mut Scratch,
    ) -> Result<u32, Stop> {
        let total = self.gather(at, wqe, Access::empty(), s)?;
        let to = self.peer_of(at)?;
        self.reach_peer(to, rkey, Access::REMOTE_WRITE, (addr, total), s)?;
        self.deliver(at, wqe, to.node, s)?;
        self.nodes[at.node].counters.rdma_writes += 1;
        self.nodes[to.node].counters.bytes_written += u64::from(total);
        Ok(total)
    }

    /// RDMA READ.
    fn read(
        &mut self,
        at: At,
        wqe: &Wqe,
        addr: u64,
        rkey: Rkey,
        s: &mut Scratch,
    ) -> Result<u32, Stop> {
        let sink = self.nodes[at.node].caps.rights_for(Purpose::ReadSink);
        let total = self.gather(at, wqe, sink, s)?;
        let to = self.peer_of(at)?;
        self.reach_peer(to, rkey, Access::REMOTE_READ, (addr, total), s)?;
        let (from, into) = (&self.nodes[to.node].iommu, &self.nodes[at.node].iommu);
        let copies = iommu::copy((from, &s.remote), (into, &s.local), &mut s.chunk);
        self.nodes[at.node].counters.copies += copies.ok_or(LOST_TRACK)?;
        self.nodes[at.node].counters.rdma_reads += 1;
        self.nodes[to.node].counters.bytes_read += u64::from(total);
        Ok(total)
    }

    /// REG_MR.
    fn register(&mut self, at: At, wqe: &Wqe, reg: Registration) -> Result<u32, Stop> {
        let node = &mut self.nodes[at.node];
        let (_, qp) = node.qps.at(at.qp);
        let (pages, page) = (qp.sq.head_pages(wqe), u64::from(node.caps.page_size));
        let result = node.mrs.register(&node.iommu, qp.pd, reg, page, pages);
        match result {
            Ok(()) => node.counters.reg_mrs += 1,
            Err(why) => {
                node.counters.iommu_faults += u64::from(why == Syndrome::NotMapped);
                return Err(Stop::Fail(WcStatus::MwBindErr, why));
            }
        }
        Ok(0)
    }

    /// BIND_MW.
    fn bind(&mut self, at: At, bind: Bind) -> Result<u32, Stop> {
        let node = &mut self.nodes[at.node];
        let (id, qp) = node.qps.at(at.qp);
        let done = node.mws.bind(&node.mrs, (QpId(id), qp.pd), bind);
        done.map_err(|why| Stop::Fail(WcStatus::MwBindErr, why))?;
        node.counters.binds += 1;
        Ok(0)
    }

    /// LOCAL_INV.
    fn local_inv(&mut self, at: At, rkey: Rkey) -> Result<u32, Stop> {
        let node = &mut self.nodes[at.node];
        let done = node.invalidate(at.qp, rkey, false);
        done.map_err(|why| Stop::Fail(WcStatus::LocQpOpErr, why))?;
        node.counters.local_invs += 1;
        Ok(0)
    }

    /// Checks the local side of the head WR and finds its bytes; returns how many there are.
    fn gather(&mut self, at: At, wqe: &Wqe, need: Access, s: &mut Scratch) -> Result<u32, Stop> {
        s.local.clear();
        let node = &mut self.nodes[at.node];
        let (_, qp) = node.qps.at(at.qp);
        let mut total = wqe.inline.unwrap_or(0) as u64;
        for sge in qp.sq.head_sges(wqe).filter(|sge| sge.len > 0) {
            let len = u64::from(sge.len);
            let ask = Reach { pd: qp.pd, need, addr: sge.addr.0, len };
            if let Err(why) = node.mrs.reach_local(&node.iommu, sge.lkey, ask, &mut s.local) {
                node.counters.iommu_faults += u64::from(why == Syndrome::NotMapped);
                return Err(Stop::Fail(WcStatus::LocProtErr, why));
            }
            total += len;
        }
        match u32::try_from(total) {
            Ok(len) if total <= MESSAGE_MAX => Ok(len),
            _ => Err(Stop::Fail(WcStatus::LocLenErr, Syndrome::TooLong)),
        }
    }

    /// The QP at the other end, if it answers.
    fn peer_of(&self, at: At) -> Result<At, Stop> {
        let silent = Stop::Fail(WcStatus::RetryExcErr, Syndrome::PeerSilent);
        let (id, qp) = self.nodes[at.node].qps.at(at.qp);
        let Some((node, peer_id)) = qp.peer else { return Err(silent) };
        let Ok(node) = usize::try_from(node) else { return Err(silent) };
        let there = self.nodes.get(node).filter(|n| n.life == Life::Up);
        let Some((there, position)) = there.and_then(|n| Some((n, n.qps.position(peer_id.0)?)))
        else {
            return Err(silent);
        };
        let (_, peer) = there.qps.at(position);
        match peer.state {
            QpState::Reset | QpState::Init => Err(Stop::Wait),
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
                if peer.peer == Some((at.node as u64, QpId(id))) =>
            {
                Ok(At { node, qp: position })
            }
            _ => Err(silent),
        }
    }

    /// Checks a remote access at the peer and finds its bytes. A refusal takes the peer's QP down
    /// too. An access of no bytes needs no key.
    fn reach_peer(
        &mut self,
        to: At,
        rkey: Rkey,
        need: Access,
        (addr, len): (u64, u32),
        s: &mut Scratch,
    ) -> Result<(), Stop> {
        s.remote.clear();
        if len == 0 {
            return Ok(());
        }
        let node = &mut self.nodes[to.node];
        let (_, qp) = node.qps.at(to.qp);
        let ask = Reach { pd: qp.pd, need, addr, len: u64::from(len) };
        let Err(why) = node.reach_remote(to.qp, rkey, ask, &mut s.remote) else {
            return Ok(());
        };
        let (id, qp) = node.qps.at_mut(to.qp);
        qp.state = QpState::Err;
        qp.events.push_back(AsyncEvent::QpFatal(QpId(id)));
        if why == Syndrome::NotMapped {
            node.counters.iommu_faults += 1;
            return Err(Stop::Fail(WcStatus::RemOpErr, why));
        }
        node.counters.remote_refusals += 1;
        Err(Stop::Fail(WcStatus::RemAccessErr, why))
    }

    /// Checks that a message fits a receive and finds the receive's bytes. A refusal completes the
    /// receive with its own error and takes the peer's QP down.
    fn check_receive(
        &mut self,
        to: At,
        recv: &RecvWr,
        total: u32,
        s: &mut Scratch,
    ) -> Result<(), Stop> {
        s.remote.clear();
        let node = &mut self.nodes[to.node];
        let (_, qp) = node.qps.at_mut(to.qp);
        let (addr, len) = (recv.sge.addr.0, u64::from(total));
        let ask = Reach { pd: qp.pd, need: Access::LOCAL_WRITE, addr, len };
        let (status, why, answer) = if total > recv.sge.len {
            (WcStatus::LocLenErr, Syndrome::TooLong, WcStatus::RemInvReqErr)
        } else if total == 0 {
            return Ok(());
        } else {
            match node.mrs.reach_local(&node.iommu, recv.sge.lkey, ask, &mut s.remote) {
                Ok(()) => return Ok(()),
                Err(why) => (WcStatus::LocProtErr, why, WcStatus::RemOpErr),
            }
        };
        node.counters.iommu_faults += u64::from(why == Syndrome::NotMapped);
        qp.rq.work.pop_front();
        qp.state = QpState::Err;
        self.complete_error(to, recv.wr_id, status, why, Retires::Recv);
        Err(Stop::Fail(answer, why))
    }

    /// Copies the payload of the head WR into the peer's pieces that have been found.
    fn deliver(&mut self, at: At, wqe: &Wqe, to: usize, s: &mut Scratch) -> Result<(), Stop> {
        let (from, into) = (&self.nodes[at.node], &self.nodes[to].iommu);
        let copies = if wqe.inline.is_some() {
            let mut sink = Sink::new((into, &s.remote));
            for part in head_qp(from, at).sq.head_inline(wqe) {
                sink.write(part).ok_or(LOST_TRACK)?;
            }
            sink.copies
        } else {
            let copies = iommu::copy((&from.iommu, &s.local), (into, &s.remote), &mut s.chunk);
            copies.ok_or(LOST_TRACK)?
        };
        self.nodes[at.node].counters.copies += copies;
        Ok(())
    }

    fn complete_error(
        &mut self,
        at: At,
        wr_id: WrId,
        status: WcStatus,
        why: Syndrome,
        retires: Retires,
    ) {
        let qp = QpId(self.nodes[at.node].qps.at(at.qp).0);
        let wc = Wc::Error(WcError { wr_id, status, qp, vendor_err: why.to_raw() });
        self.complete(at, wc, retires);
    }

    /// Puts a WC in the QP's CQ. One that finds it full is lost, and every QP of that CQ goes down.
    fn complete(&mut self, at: At, wc: Wc, retires: Retires) {
        let node = &mut self.nodes[at.node];
        let (id, qp) = node.qps.at(at.qp);
        let cq = qp.cq;
        let Some(queue) = node.cqs.get_mut(cq.0) else { return };
        match queue.push(Cqe { wc, qp: QpId(id), retires }) {
            Pushed::Queued => node.counters.wcs += 1,
            Pushed::Lost => node.counters.wcs_lost += 1,
            Pushed::Overrun => {
                node.counters.wcs_lost += 1;
                overrun(node, cq);
            }
        }
    }
}

/// A CQ lost a WC: whatever reports to it cannot be trusted any more.
fn overrun(node: &mut Node, cq: CqId) {
    for i in 0..node.qps.len() {
        let (id, qp) = node.qps.at_mut(i);
        if qp.cq != cq {
            continue;
        }
        qp.events.push_back(AsyncEvent::CqOverrun(cq));
        if qp.state != QpState::Err {
            qp.state = QpState::Err;
            qp.events.push_back(AsyncEvent::QpFatal(QpId(id)));
        }
    }
}

fn head_qp(node: &Node, at: At) -> &Qp {
    node.qps.at(at.qp).1
}

/// Pieces were checked and then did not hold: a broken invariant of this device.
const LOST_TRACK: Stop = Stop::Fail(WcStatus::GeneralErr, Syndrome::NotMapped);
