//! A queue pair: its state and the WRs that it holds.

use super::mr::Registration;
use super::mw::Bind;
use crate::device::{
    AsyncEvent, Caps, DeviceError, LimitInfo, PageEntry, Payload, QpCaps, QpState, RecvWr,
    RtsAttrs, Sge, Verb, Wr, WrChain, WrOp, errno,
};
use crate::types::{CqId, PdId, QpId, Rkey, WrId};
use std::collections::VecDeque;

/// A reliably connected QP.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) pd: PdId,
    pub(super) cq: CqId,
    pub(super) state: QpState,
    /// Node and QP number of the other end, from RTR on.
    pub(super) peer: Option<(u64, QpId)>,
    pub(super) attrs: RtsAttrs,
    pub(super) granted: QpCaps,
    /// Events of this QP, its CQ and its device that nobody has asked for yet.
    pub(super) events: VecDeque<AsyncEvent>,
    pub(super) sq: SendQueue,
    pub(super) rq: RecvQueue,
}

/// The send queue: a slot is taken by each accepted WR and given back by a polled WC of that or a
/// later WR, so a WR that succeeded unsignaled holds its slot after it ran.
#[derive(Debug)]
pub(super) struct SendQueue {
    depth: u32,
    /// WRs ever accepted; the sequence of the next one.
    accepted: u64,
    /// WRs ever retired by a polled WC.
    retired: u64,
    /// How often the head found no receive at the peer.
    tries: u8,
    /// WRs that have not run; the tables below hold their parts in the same order.
    work: VecDeque<Wqe>,
    sges: VecDeque<Sge>,
    pages: VecDeque<PageEntry>,
    inline: VecDeque<u8>,
}

/// The receive queue: a slot is taken by each receive and given back when its WC is polled.
#[derive(Debug)]
pub(super) struct RecvQueue {
    depth: u32,
    held: u32,
    pub(super) work: VecDeque<RecvWr>,
}

/// A WR in the send queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wqe {
    pub(super) wr_id: WrId,
    pub(super) signaled: bool,
    pub(super) seq: u64,
    pub(super) work: Work,
    /// SGEs in the queue's table.
    sges: usize,
    /// Bytes in the queue's inline table; `None` where the payload is in SGEs.
    pub(super) inline: Option<usize>,
    /// Entries in the queue's page table.
    pages: usize,
}

/// What a WR does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Send { invalidate: Option<Rkey> },
    Write { addr: u64, rkey: Rkey },
    Read { addr: u64, rkey: Rkey },
    Register(Registration),
    Invalidate(Rkey),
    Bind(Bind),
}

impl Qp {
    pub(super) fn new(pd: PdId, cq: CqId, granted: QpCaps) -> Qp {
        Qp {
            pd,
            cq,
            state: QpState::Reset,
            peer: None,
            attrs: RtsAttrs::default(),
            granted,
            events: VecDeque::new(),
            sq: SendQueue {
                depth: granted.max_send_wr,
                accepted: 0,
                retired: 0,
                tries: 0,
                work: VecDeque::new(),
                sges: VecDeque::new(),
                pages: VecDeque::new(),
                inline: VecDeque::new(),
            },
            rq: RecvQueue { depth: granted.max_recv_wr, held: 0, work: VecDeque::new() },
        }
    }

    /// Takes one WR of a chain, or says why not.
    pub(super) fn accept_send(
        &mut self,
        wr: &Wr,
        chain: &WrChain,
        dev: &Caps,
    ) -> Result<(), DeviceError> {
        let parts = Parts::of(wr, chain);
        parts.check(&self.granted, dev)?;
        let sq = &mut self.sq;
        if sq.in_use() >= sq.depth {
            return Err(full(Verb::PostSend, "max_send_wr", sq.depth, sq.in_use()));
        }
        sq.sges.extend(parts.sges);
        sq.pages.extend(parts.pages);
        sq.inline.extend(parts.inline.unwrap_or(&[]));
        sq.work.push_back(Wqe {
            wr_id: wr.wr_id,
            signaled: wr.signaled,
            seq: sq.accepted,
            work: parts.work,
            sges: parts.sges.len(),
            inline: parts.inline.map(<[u8]>::len),
            pages: parts.pages.len(),
        });
        sq.accepted += 1;
        Ok(())
    }

    /// Takes one receive, or says why not.
    pub(super) fn accept_recv(&mut self, wr: &RecvWr) -> Result<(), DeviceError> {
        let rq = &mut self.rq;
        if rq.held >= rq.depth {
            return Err(full(Verb::PostRecv, "max_recv_wr", rq.depth, rq.held));
        }
        rq.held += 1;
        rq.work.push_back(*wr);
        Ok(())
    }
}

impl SendQueue {
    /// Slots taken.
    pub(super) fn in_use(&self) -> u32 {
        // Never more than the depth, which has 32 bits.
        (self.accepted - self.retired) as u32
    }

    /// WRs that have not run.
    pub(super) fn waiting(&self) -> impl Iterator<Item = WrId> {
        self.work.iter().map(|w| w.wr_id)
    }

    /// The WR that runs next.
    pub(super) fn head(&self) -> Option<&Wqe> {
        self.work.front()
    }

    /// The SGEs of the head.
    pub(super) fn head_sges(&self, head: &Wqe) -> impl Iterator<Item = &Sge> {
        self.sges.iter().take(head.sges)
    }

    /// The page list of the head.
    pub(super) fn head_pages(&self, head: &Wqe) -> impl ExactSizeIterator<Item = &PageEntry> {
        self.pages.iter().take(head.pages)
    }

    /// The inline bytes of the head, in two parts.
    pub(super) fn head_inline(&self, head: &Wqe) -> [&[u8]; 2] {
        let len = head.inline.unwrap_or(0);
        let (a, b) = self.inline.as_slices();
        let a = a.get(..len).unwrap_or(a);
        [a, b.get(..len - a.len()).unwrap_or(b)]
    }

    /// Removes the head and its parts. Its slot stays taken.
    pub(super) fn pop(&mut self) {
        self.tries = 0;
        if let Some(head) = self.work.pop_front() {
            drop_front(&mut self.sges, head.sges);
            drop_front(&mut self.pages, head.pages);
            drop_front(&mut self.inline, head.inline.unwrap_or(0));
        }
    }

    /// The head has found no receive at the peer; false if it may not be tried again.
    pub(super) fn try_again(&mut self, rnr_retry: u8) -> bool {
        let left = self.tries < rnr_retry;
        self.tries += u8::from(left);
        left
    }

    /// A WC of the WR `seq` was polled: its slot and all earlier ones are free.
    pub(super) fn retire(&mut self, seq: u64) {
        self.retired = self.retired.max((seq + 1).min(self.accepted));
    }
}

impl RecvQueue {
    /// A WC of a receive was polled: its slot is free.
    pub(super) fn retire(&mut self) {
        self.held = self.held.saturating_sub(1);
    }
}

/// A WR with the parts that its spans name.
struct Parts<'a> {
    work: Work,
    sges: &'a [Sge],
    inline: Option<&'a [u8]>,
    pages: &'a [PageEntry],
}

impl<'a> Parts<'a> {
    fn of(wr: &Wr, chain: &'a WrChain) -> Parts<'a> {
        let bare = |work| Parts { work, sges: &[], inline: None, pages: &[] };
        let carrying = |work, payload| match payload {
            Payload::Sges(s) => Parts { sges: chain.sges(s), ..bare(work) },
            Payload::Inline(s) => Parts { inline: Some(chain.inline(s)), ..bare(work) },
        };
        match wr.op {
            WrOp::Send(payload) => carrying(Work::Send { invalidate: None }, payload),
            WrOp::SendWithInv(payload, rkey) => {
                carrying(Work::Send { invalidate: Some(rkey) }, payload)
            }
            WrOp::RdmaWrite { payload, remote_addr, rkey } => {
                carrying(Work::Write { addr: remote_addr, rkey }, payload)
            }
            WrOp::RdmaRead { sges, remote_addr, rkey } => {
                Parts { sges: chain.sges(sges), ..bare(Work::Read { addr: remote_addr, rkey }) }
            }
            WrOp::RegMr { mr, rkey, access, iova, len, pages } => Parts {
                pages: chain.pages(pages),
                ..bare(Work::Register(Registration { mr, rkey, access, iova, len }))
            },
            WrOp::LocalInv(rkey) => bare(Work::Invalidate(rkey)),
            WrOp::BindMw { mw, rkey, mr, addr, len, access } => {
                bare(Work::Bind(Bind { mw, rkey, mr, addr, len, access }))
            }
        }
    }

    /// What the device refuses before it takes the WR.
    fn check(&self, qp: &QpCaps, dev: &Caps) -> Result<(), DeviceError> {
        let (sge_name, sge_limit) = match self.work {
            Work::Read { .. } if dev.max_sge_rd < qp.max_sge => ("max_sge_rd", dev.max_sge_rd),
            _ => ("max_sge", qp.max_sge),
        };
        at_most(sge_name, self.sges.len(), sge_limit)?;
        at_most("max_inline_data", self.inline.map_or(0, <[u8]>::len), qp.max_inline_data)?;
        let lists = dev.max_fast_reg_page_list_len;
        // Both kinds of revocable key bring the invalidation with them.
        let invalidates = dev.mem_mgt_extensions || dev.has_windows();
        let supported = match self.work {
            Work::Send { invalidate: None } | Work::Write { .. } | Work::Read { .. } => true,
            Work::Send { invalidate: Some(_) } | Work::Invalidate(_) => invalidates,
            Work::Register(_) => dev.mem_mgt_extensions && lists > 0,
            Work::Bind(_) => dev.has_windows(),
        };
        if !supported {
            return Err(DeviceError::new(Verb::PostSend, errno::EOPNOTSUPP));
        }
        at_most("max_fast_reg_page_list_len", self.pages.len(), lists)
    }
}

fn at_most(what: &'static str, need: usize, limit: u32) -> Result<(), DeviceError> {
    let (need, limit) = (need as u64, u64::from(limit));
    if need <= limit {
        return Ok(());
    }
    let info = LimitInfo { what, need, limit, in_use: 0 };
    Err(DeviceError::limit(Verb::PostSend, errno::EINVAL, info))
}

fn full(verb: Verb, what: &'static str, depth: u32, in_use: u32) -> DeviceError {
    let (limit, in_use) = (u64::from(depth), u64::from(in_use));
    DeviceError::limit(verb, errno::ENOMEM, LimitInfo { what, need: 1, limit, in_use })
}

/// Removes the first `n` entries; keeps the memory.
fn drop_front<T>(queue: &mut VecDeque<T>, n: usize) {
    queue.drain(..n.min(queue.len()));
}
