//! Two QPs of one device that are connected to each other.

#![allow(clippy::disallowed_methods, reason = "hardware runs by itself: tests must wait for it")]

use crate::device::verbs::{VerbsDevice, VerbsOptions};
use crate::device::{
    Device, MrKeys, MwKeys, Payload, PostError, QpCaps, RecvWr, RtsAttrs, Sge, Wc, WcStatus,
    WcSuccess, Wr, WrChain, WrOp,
};
use crate::mem::{DmaBuf, ExposedBytes, Fenced};
use crate::types::{Access, CqId, DmaAddr, PdId, QpId, Rkey, WrId};
use std::time::{Duration, Instant};

/// The device that the environment names.
pub(in crate::device) fn device() -> Option<VerbsDevice> {
    let Ok(name) = std::env::var("MEMREG_TEST_RDMA_DEV") else {
        skip("MEMREG_TEST_RDMA_DEV names no device");
        return None;
    };
    let options = VerbsOptions { name: Some(name), ..VerbsOptions::default() };
    Some(VerbsDevice::open(&options).unwrap_or_else(|e| panic!("{e}")))
}

/// Prints why a test cannot run here, which is a failure where none may be left out.
pub(super) fn skip(why: &str) {
    let required = std::env::var("MEMREG_TEST_REQUIRE_RDMA").is_ok_and(|v| v == "1");
    assert!(!required, "MEMREG_TEST_REQUIRE_RDMA=1, and skipped: {why}");
    println!("skipped: {why}");
}

/// The owner's QP is where keys are granted; the peer's uses them.
pub(super) struct Rig {
    pub(super) dev: VerbsDevice,
    pub(super) pd: PdId,
    pub(super) cq: CqId,
    pub(super) owner: QpId,
    pub(super) peer: QpId,
    pub(super) wcs: Vec<Wc>,
    next: u64,
}

/// Memory that the device is lent, and its MR.
pub(super) struct Memory {
    pub(super) bytes: ExposedBytes,
    pub(super) addr: DmaAddr,
    pub(super) keys: MrKeys,
}

pub(super) const LOCAL: Access = Access::LOCAL_WRITE;
pub(super) const PARENT: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);
pub(super) const BOTH: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

impl Rig {
    pub(super) fn new(dev: VerbsDevice) -> Rig {
        let pd = dev.alloc_pd().unwrap();
        let (cq, _) = dev.create_cq(1024).unwrap();
        let (owner, peer) = connect(&dev, pd, cq);
        Rig { dev, pd, cq, owner, peer, wcs: vec![], next: 1 }
    }

    pub(super) fn memory(&self, len: usize, access: Access) -> Memory {
        let (bytes, _) = DmaBuf::new(len).unwrap().into_exposed();
        let addr = self.dev.dma_map(&bytes, None).unwrap();
        let keys = self.dev.reg_mr(self.pd, addr, len as u64, access).unwrap();
        Memory { bytes, addr, keys }
    }

    pub(super) fn release(&self, m: Memory) {
        self.dev.dereg_mr(m.keys.mr).unwrap();
        let _ = self.dev.dma_unmap(&m.bytes, m.addr, Fenced::mint()).unwrap();
    }

    pub(super) fn window(&self) -> MwKeys {
        self.dev.alloc_mw(self.pd).unwrap()
    }

    /// Posts WRs, the last one signaled; returns their ids.
    pub(super) fn post(&mut self, qp: QpId, ops: &[WrOp]) -> Result<Vec<WrId>, PostError> {
        let mut chain = WrChain::new();
        self.post_chain(qp, &mut chain, ops)
    }

    pub(super) fn post_chain(
        &mut self,
        qp: QpId,
        chain: &mut WrChain,
        ops: &[WrOp],
    ) -> Result<Vec<WrId>, PostError> {
        let mut ids = vec![];
        for (i, &op) in ops.iter().enumerate() {
            let wr_id = WrId(self.next);
            self.next += 1;
            chain.push(Wr { wr_id, signaled: i + 1 == ops.len(), op });
            ids.push(wr_id);
        }
        self.dev.post_send(qp, chain).map(|()| ids)
    }

    /// Waits for the WC of one WR; others are kept in `wcs`.
    pub(super) fn wait(&mut self, id: WrId) -> Wc {
        let start = Instant::now();
        loop {
            if let Some(at) = self.wcs.iter().position(|w| w.wr_id() == id) {
                return self.wcs.remove(at);
            }
            self.dev.poll_cq(self.cq, 64, &mut self.wcs).unwrap();
            assert!(start.elapsed() < Duration::from_secs(20), "no completion of {id:?}");
        }
    }

    /// Posts and waits for the last WR.
    pub(super) fn run(&mut self, qp: QpId, ops: &[WrOp]) -> WcStatus {
        let ids = self.post(qp, ops).unwrap();
        status(&self.wait(*ids.last().unwrap()))
    }

    pub(super) fn bind(
        &self,
        mw: MwKeys,
        rkey: Rkey,
        m: &Memory,
        span: (u64, u64),
        access: Access,
    ) -> WrOp {
        let addr = DmaAddr(m.addr.0 + span.0);
        WrOp::BindMw { mw: mw.mw, rkey, mr: m.keys.mr, addr, len: span.1, access }
    }

    /// The peer writes its whole memory to `at` under `rkey`.
    pub(super) fn write(&mut self, from: &Memory, at: u64, rkey: Rkey) -> WcStatus {
        let mut chain = WrChain::new();
        let sges = chain.add_sges([sge(from)]);
        let payload = Payload::Sges(sges);
        let op = WrOp::RdmaWrite { payload, remote_addr: at, rkey };
        let ids = self.post_chain(self.peer, &mut chain, &[op]).unwrap();
        status(&self.wait(ids[0]))
    }

    /// The peer reads into its whole memory from `at` under `rkey`.
    pub(super) fn read(&mut self, into: &Memory, at: u64, rkey: Rkey) -> WcStatus {
        let mut chain = WrChain::new();
        let sges = chain.add_sges([sge(into)]);
        let op = WrOp::RdmaRead { sges, remote_addr: at, rkey };
        let ids = self.post_chain(self.peer, &mut chain, &[op]).unwrap();
        status(&self.wait(ids[0]))
    }

    /// The peer sends an empty message that invalidates `rkey`; returns its end and the owner's
    /// receive.
    pub(super) fn send_with_inv(&mut self, into: &Memory, rkey: Rkey) -> (WcStatus, Wc) {
        let id = WrId(1 << 40 | self.next);
        self.next += 1;
        self.dev.post_recv(self.owner, &[RecvWr { wr_id: id, sge: sge(into) }]).unwrap();
        let mut chain = WrChain::new();
        let payload = Payload::Inline(chain.add_inline(b"done"));
        let op = WrOp::SendWithInv(payload, rkey);
        let ids = self.post_chain(self.peer, &mut chain, &[op]).unwrap();
        let sent = status(&self.wait(ids[0]));
        (sent, self.wait(id))
    }

    /// New QPs in place of broken ones, as a reconnect makes them.
    pub(super) fn reconnect(&mut self) {
        for qp in [self.owner, self.peer] {
            self.dev.qp_to_err(qp).unwrap();
            self.dev.destroy_qp(qp).unwrap();
        }
        self.wcs.clear();
        (self.owner, self.peer) = connect(&self.dev, self.pd, self.cq);
    }

    /// Ends what `new` made; nothing else may be left.
    pub(super) fn close(self) {
        let Rig { dev, pd, cq, owner, peer, .. } = self;
        for qp in [owner, peer] {
            dev.qp_to_err(qp).unwrap();
            dev.destroy_qp(qp).unwrap();
        }
        dev.destroy_cq(cq).unwrap();
        dev.dealloc_pd(pd).unwrap();
        assert_eq!(dev.objects(), crate::device::verbs::VerbsObjects::default());
    }
}

pub(super) fn connect(dev: &VerbsDevice, pd: PdId, cq: CqId) -> (QpId, QpId) {
    let ask = QpCaps { max_send_wr: 256, max_recv_wr: 16, max_sge: 2, max_inline_data: 64 };
    let make = || {
        let (qp, got) = dev.create_qp(pd, cq, ask).unwrap();
        assert!(got.max_send_wr >= 256 && got.max_recv_wr >= 16 && got.max_sge >= 2);
        dev.qp_to_init(qp).unwrap();
        qp
    };
    let (a, b) = (make(), make());
    dev.qp_to_rts(a, dev.endpoint(b).unwrap(), RtsAttrs::default()).unwrap();
    dev.qp_to_rts(b, dev.endpoint(a).unwrap(), RtsAttrs::default()).unwrap();
    (a, b)
}

pub(super) fn sge(m: &Memory) -> Sge {
    Sge { addr: m.addr, len: m.bytes.len() as u32, lkey: m.keys.lkey }
}

pub(super) fn status(wc: &Wc) -> WcStatus {
    match wc {
        Wc::Success(_) => WcStatus::Success,
        Wc::Error(e) => e.status,
    }
}

pub(super) fn success(wc: &Wc) -> WcSuccess {
    match wc {
        Wc::Success(s) => *s,
        Wc::Error(e) => panic!("{e}"),
    }
}

pub(super) fn content(m: &Memory) -> Vec<u8> {
    let mut out = vec![0; m.bytes.len()];
    assert!(m.bytes.copy_out(0, &mut out));
    out
}
