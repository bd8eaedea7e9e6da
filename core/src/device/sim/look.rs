//! Looking into a node without changing it, and moving one QP alone: for checkers of what runs on
//! it.

use super::fabric::At;
use super::handle::SimDevice;
use super::node::Life;
use crate::device::{AsyncEvent, QpState, Wc};
use crate::types::{CqId, QpId, Rkey, WrId};

/// What a QP holds at this moment.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QpView {
    /// Its state.
    pub state: QpState,
    /// Send WRs that have not run, in order.
    pub sends: Vec<WrId>,
    /// Receives that no message has taken.
    pub receives: usize,
    /// Slots of the send queue that are taken, also by WRs that have run.
    pub slots: u32,
    /// Events that nobody has asked for.
    pub events: Vec<AsyncEvent>,
}

impl SimDevice {
    /// What a QP holds; `None` for one that does not exist.
    #[must_use]
    pub fn look_at(&self, qp: QpId) -> Option<QpView> {
        self.with(|n| {
            n.qps.get(qp.0).map(|qp| QpView {
                state: qp.state,
                sends: qp.sq.waiting().collect(),
                receives: qp.rq.work.len(),
                slots: qp.sq.in_use(),
                events: qp.events.iter().copied().collect(),
            })
        })
    }

    /// The WCs that wait in a CQ, oldest first; they stay there.
    #[must_use]
    pub fn waiting_wcs(&self, cq: CqId) -> Vec<Wc> {
        self.with(|n| n.cqs.get(cq.0).map(|cq| cq.waiting().collect()).unwrap_or_default())
    }

    /// Whether a peer gets in with this key now, through some QP.
    #[must_use]
    pub fn opens(&self, rkey: Rkey) -> bool {
        self.with(|n| n.life == Life::Up && (n.mrs.is_valid(rkey) || n.mws.is_bound(rkey)))
    }

    /// Lets this QP alone run one WR, or flush one; false if it has none that can run.
    ///
    /// # Ordering
    /// A step of the [`Fabric`](super::Fabric) gives every QP its turn; with this, a test decides
    /// which one is ahead of the others.
    pub fn step_qp(&self, qp: QpId) -> bool {
        let (node, mut state) = (self.index(), self.fabric().lock());
        let here = &state.nodes[node];
        let Some(at) = here.qps.position(qp.0).filter(|_| here.life == Life::Up) else {
            return false;
        };
        let mut scratch = std::mem::take(&mut state.scratch);
        let moved = state.step_qp(At { node, qp: at }, &mut scratch);
        state.scratch = scratch;
        moved
    }
}

#[cfg(test)]
mod tests {
    use crate::device::sim::tests::rig::*;
    use crate::device::{Device, Payload, QpState, Wr, WrChain, WrOp};
    use crate::types::{Rkey, WrId};

    #[test]
    fn one_qp_moves_alone_and_looking_changes_nothing() {
        let (a, b) = pair();
        let write = |id| {
            let mut chain = WrChain::new();
            let payload = Payload::Inline(chain.add_inline(&[]));
            let op = WrOp::RdmaWrite { payload, remote_addr: 0, rkey: Rkey::from_bits(1) };
            chain.push(Wr { wr_id: WrId(id), signaled: true, op });
            chain
        };
        a.dev.post_send(a.qp, &write(1)).unwrap();
        b.dev.post_send(b.qp, &write(2)).unwrap();
        assert!(a.dev.step_qp(a.qp) && !a.dev.step_qp(a.qp));
        let (at_a, at_b) = (a.dev.look_at(a.qp).unwrap(), b.dev.look_at(b.qp).unwrap());
        assert_eq!((at_a.sends, at_a.slots, at_a.state), (vec![], 1, QpState::Rts));
        assert_eq!((at_b.sends, at_b.slots), (vec![WrId(2)], 1), "it has not moved");
        assert_eq!(a.dev.waiting_wcs(a.cq).len(), 1);
        assert_eq!(a.dev.waiting_wcs(a.cq), a.poll());
        assert!(!a.dev.opens(Rkey::from_bits(1)));
    }
}
