//! The peer of the small world: a bare QP without an engine, which can do everything that a key
//! allows and everything that it does not.
//!
//! Each of its acts is posted and run at once. That is every interleaving: what a WR of the peer
//! does to the owner is decided when it runs, and a peer that waits is one that acts later.

use memreg_core::device::sim::{Fabric, SimDevice};
use memreg_core::device::{
    Caps, Device, Endpoint, Payload, QpCaps, QpState, RecvWr, RtsAttrs, Sge, Wr, WrChain, WrOp,
};
use memreg_core::types::{CqId, DmaAddr, Lkey, PdId, QpId, Rkey, Segment, WrId};

/// One QP at a time.
pub struct Peer {
    node: SimDevice,
    pd: PdId,
    cq: CqId,
    qp: Option<QpId>,
}

impl Peer {
    pub fn new(fabric: &Fabric) -> Peer {
        let node = fabric.add_node("peer", Caps::default());
        let pd = node.alloc_pd().unwrap();
        let (cq, _) = node.create_cq(64).unwrap();
        Peer { node, pd, cq, qp: None }
    }

    /// A new QP that can receive, in the place of the last one.
    pub fn endpoint(&mut self) -> Endpoint {
        self.leave();
        let caps =
            QpCaps { max_send_wr: 4, max_recv_wr: RECEIVES, max_sge: 1, max_inline_data: 16 };
        let (qp, _) = self.node.create_qp(self.pd, self.cq, caps).unwrap();
        self.node.qp_to_init(qp).unwrap();
        self.qp = Some(qp);
        self.node.endpoint(qp).unwrap()
    }

    pub fn connect(&self, owner: Endpoint) {
        // A message that finds no receive fails at once.
        let attrs = RtsAttrs { rnr_retry: 0 };
        self.node.qp_to_rts(self.qp.unwrap(), owner, attrs).unwrap();
        self.receive();
    }

    /// `None` once it has left.
    pub fn state(&self) -> Option<QpState> {
        self.qp.and_then(|qp| self.node.qp_state(qp).ok())
    }

    /// Its end is told to the owner.
    pub fn leave(&mut self) {
        if let Some(qp) = self.qp.take() {
            self.node.destroy_qp(qp).unwrap();
        }
    }

    /// An empty message, which invalidates a key or not.
    pub fn sends(&self, invalidate: Option<Rkey>) {
        self.act(|chain| {
            let empty = Payload::Inline(chain.add_inline(&[]));
            match invalidate {
                Some(rkey) => WrOp::SendWithInv(empty, rkey),
                None => WrOp::Send(empty),
            }
        });
    }

    /// Writes one byte to the start of a segment.
    pub fn writes(&self, seg: &Segment, byte: u8) {
        let (remote_addr, rkey) = (seg.addr, seg.rkey);
        self.act(|chain| {
            let payload = Payload::Inline(chain.add_inline(&[byte]));
            WrOp::RdmaWrite { payload, remote_addr, rkey }
        });
    }

    fn act(&self, op: impl FnOnce(&mut WrChain) -> WrOp) {
        let Some(qp) = self.qp.filter(|_| self.state() == Some(QpState::Rts)) else { return };
        let mut chain = WrChain::new();
        let op = op(&mut chain);
        chain.push(Wr { wr_id: WrId(0), signaled: true, op });
        self.node.post_send(qp, &chain).unwrap();
        assert!(self.node.step_qp(qp), "it waits for nothing");
        self.receive();
    }

    /// Forgets what has completed, and has as many receives posted as ever.
    pub fn receive(&self) {
        self.node.poll_cq(self.cq, 64, &mut vec![]).unwrap();
        let Some(view) = self.qp.and_then(|qp| self.node.look_at(qp)) else { return };
        // The owner's messages are empty: no byte goes there.
        let sge = Sge { addr: DmaAddr(0), len: 64, lkey: Lkey::from_bits(0) };
        let missing = RECEIVES as usize - view.receives;
        let wrs = vec![RecvWr { wr_id: WrId(0), sge }; missing];
        if view.state == QpState::Rts {
            self.node.post_recv(self.qp.unwrap(), &wrs).unwrap();
        }
    }
}

const RECEIVES: u32 = 4;
