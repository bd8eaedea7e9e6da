//! Two connected QPs and short words for what tests do with them.

use crate::device::sim::{Fabric, SimDevice, Syndrome};
use crate::device::{
    Caps, Device, FastMrKind, MrKeys, MwKeys, PageEntry, Payload, QpCaps, RecvWr, RtsAttrs, Sge,
    Wc, WcStatus, Wr, WrChain, WrOp,
};
use crate::mem::{DmaBuf, ExposedBytes};
use crate::types::{Access, CqId, DmaAddr, Lkey, PdId, QpId, Rkey, WrId};

pub(in crate::device) const RW: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// Rights of a window's parent, and nothing for a peer.
pub(in crate::device) const PARENT: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);

pub(in crate::device) const DEPTHS: QpCaps =
    QpCaps { max_send_wr: 8, max_recv_wr: 8, max_sge: 4, max_inline_data: 64 };

/// One end of a connection.
pub(in crate::device) struct Side {
    pub(in crate::device) dev: SimDevice,
    pub(in crate::device) pd: PdId,
    pub(in crate::device) cq: CqId,
    pub(in crate::device) qp: QpId,
}

/// Mapped memory with an ordinary MR over all of it.
pub(in crate::device) struct Mem {
    pub(in crate::device) bytes: ExposedBytes,
    pub(in crate::device) addr: DmaAddr,
    pub(in crate::device) keys: MrKeys,
}

pub(in crate::device) fn pair() -> (Side, Side) {
    pair_with(Caps::default(), DEPTHS, 64)
}

/// Two nodes, a connected QP on each.
pub(in crate::device) fn pair_with(caps: Caps, depths: QpCaps, cqe: u32) -> (Side, Side) {
    let fabric = Fabric::new(1);
    let a = Side::open(fabric.add_node("a", caps.clone()), depths, cqe);
    let b = Side::open(fabric.add_node("b", caps), depths, cqe);
    a.connect(&b);
    b.connect(&a);
    (a, b)
}

/// `generic` with a few windows.
pub(in crate::device) fn window_caps() -> Caps {
    Caps { mem_window_type_2b: true, max_mw: 8, ..Caps::default() }
}

/// One node whose QP is connected to itself.
pub(in crate::device) fn looped() -> Side {
    let side = Side::open(Fabric::new(1).add_node("loop", Caps::default()), DEPTHS, 64);
    side.connect(&side);
    side
}

impl Side {
    pub(in crate::device) fn open(dev: SimDevice, depths: QpCaps, cqe: u32) -> Side {
        let pd = dev.alloc_pd().unwrap();
        let (cq, _) = dev.create_cq(cqe).unwrap();
        let (qp, _) = dev.create_qp(pd, cq, depths).unwrap();
        dev.qp_to_init(qp).unwrap();
        Side { dev, pd, cq, qp }
    }

    pub(in crate::device) fn connect(&self, to: &Side) {
        self.connect_with(to, RtsAttrs::default());
    }

    pub(in crate::device) fn connect_with(&self, to: &Side, attrs: RtsAttrs) {
        self.dev.qp_to_rts(self.qp, to.dev.endpoint(to.qp).unwrap(), attrs).unwrap();
    }

    /// Another QP of the same PD and CQ, connected to `to`, which is not connected back.
    pub(in crate::device) fn sibling(&self, pd: PdId) -> Side {
        let (qp, _) = self.dev.create_qp(pd, self.cq, DEPTHS).unwrap();
        self.dev.qp_to_init(qp).unwrap();
        Side { dev: self.dev.clone(), pd, cq: self.cq, qp }
    }

    pub(in crate::device) fn mem(&self, len: usize, access: Access) -> Mem {
        let bytes = DmaBuf::new(len).unwrap().into_exposed().0;
        let addr = self.dev.dma_map(&bytes, None).unwrap();
        let keys = self.dev.reg_mr(self.pd, addr, len as u64, access).unwrap();
        Mem { bytes, addr, keys }
    }

    pub(in crate::device) fn fast(&self, depth: u32, kind: FastMrKind) -> MrKeys {
        self.dev.alloc_fast_mr(self.pd, depth, kind).unwrap()
    }

    pub(in crate::device) fn window(&self) -> MwKeys {
        self.dev.alloc_mw(self.pd).unwrap()
    }

    /// Posts one WR.
    pub(in crate::device) fn post(&self, id: u64, op: impl FnOnce(&mut WrChain) -> WrOp) {
        self.dev.post_send(self.qp, &chain(id, true, op)).unwrap();
    }

    /// Posts one WR that asks for no WC.
    pub(in crate::device) fn post_quiet(&self, id: u64, op: impl FnOnce(&mut WrChain) -> WrOp) {
        self.dev.post_send(self.qp, &chain(id, false, op)).unwrap();
    }

    pub(in crate::device) fn recv(&self, id: u64, mem: &Mem, len: u32) {
        let sge = Sge { addr: mem.addr, len, lkey: mem.keys.lkey };
        self.dev.post_recv(self.qp, &[RecvWr { wr_id: WrId(id), sge }]).unwrap();
    }

    /// Steps until nothing moves.
    pub(in crate::device) fn run(&self) {
        assert!(self.dev.fabric().run(10_000) < 10_000);
    }

    pub(in crate::device) fn poll(&self) -> Vec<Wc> {
        let mut out = Vec::new();
        self.dev.poll_cq(self.cq, 1 << 20, &mut out).unwrap();
        out
    }

    /// Runs, polls, and gives the id and status of each WC.
    pub(in crate::device) fn outcome(&self) -> Vec<(u64, WcStatus)> {
        self.run();
        self.poll().iter().map(|wc| (wc.wr_id().0, status(wc))).collect()
    }
}

impl Mem {
    pub(in crate::device) fn fill(&self, data: &[u8]) {
        assert!(self.bytes.copy_in(0, data));
    }

    pub(in crate::device) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        assert!(self.bytes.copy_out(at, &mut out));
        out
    }

    pub(in crate::device) fn sge(&self, at: u64, len: u32) -> Sge {
        Sge { addr: DmaAddr(self.addr.0 + at), len, lkey: self.keys.lkey }
    }

    /// The page-list entry for `len` bytes at `at`.
    pub(in crate::device) fn page(&self, at: u64, len: u32) -> PageEntry {
        PageEntry { addr: DmaAddr(self.addr.0 + at), len }
    }
}

pub(in crate::device) fn chain(
    id: u64,
    signaled: bool,
    op: impl FnOnce(&mut WrChain) -> WrOp,
) -> WrChain {
    let mut chain = WrChain::new();
    let op = op(&mut chain);
    chain.push(Wr { wr_id: WrId(id), signaled, op });
    chain
}

pub(in crate::device) fn send(c: &mut WrChain, bytes: &[u8]) -> WrOp {
    WrOp::Send(Payload::Inline(c.add_inline(bytes)))
}

pub(in crate::device) fn send_inv(c: &mut WrChain, bytes: &[u8], rkey: Rkey) -> WrOp {
    WrOp::SendWithInv(Payload::Inline(c.add_inline(bytes)), rkey)
}

pub(in crate::device) fn write(c: &mut WrChain, sge: Sge, remote_addr: u64, rkey: Rkey) -> WrOp {
    WrOp::RdmaWrite { payload: Payload::Sges(c.add_sges([sge])), remote_addr, rkey }
}

pub(in crate::device) fn read(c: &mut WrChain, sge: Sge, remote_addr: u64, rkey: Rkey) -> WrOp {
    WrOp::RdmaRead { sges: c.add_sges([sge]), remote_addr, rkey }
}

/// REG_MR with the next key; address and length are those of the pages.
pub(in crate::device) fn reg(
    c: &mut WrChain,
    keys: &MrKeys,
    access: Access,
    iova: u64,
    pages: &[PageEntry],
) -> WrOp {
    let len = pages.iter().map(|p| u64::from(p.len)).sum();
    let pages = c.add_pages(pages.iter().copied());
    WrOp::RegMr { mr: keys.mr, rkey: keys.rkey.next_tag(), access, iova, len, pages }
}

/// BIND_MW with the next key.
pub(in crate::device) fn bind(
    window: &MwKeys,
    parent: &Mem,
    at: u64,
    len: u64,
    access: Access,
) -> WrOp {
    let (mw, rkey) = (window.mw, window.rkey.next_tag());
    WrOp::BindMw { mw, rkey, mr: parent.keys.mr, addr: DmaAddr(parent.addr.0 + at), len, access }
}

pub(in crate::device) fn status(wc: &Wc) -> WcStatus {
    match wc {
        Wc::Success(_) => WcStatus::Success,
        Wc::Error(e) => e.status,
    }
}

/// The reason that the only WC in error gives.
pub(in crate::device) fn why(wcs: &[Wc]) -> Option<Syndrome> {
    let mut errors = wcs.iter().filter_map(|wc| match wc {
        Wc::Error(e) if e.status != WcStatus::WrFlushErr => Some(e.vendor_err),
        _ => None,
    });
    let first = errors.next()?;
    assert_eq!(errors.next(), None, "more than one error");
    Syndrome::from_raw(first)
}

/// A key of the right form that no MR has.
pub(in crate::device) fn bogus_lkey() -> Lkey {
    Lkey::from_bits(0xffff_ff01)
}
