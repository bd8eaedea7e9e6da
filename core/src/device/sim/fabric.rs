//! The fabric: all nodes, and the one clock that moves them.

use super::handle::SimDevice;
use super::iommu::Piece;
use super::node::{Life, Node};
use crate::device::{AsyncEvent, Caps, DeviceError, QpState, Verb, errno};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};
use crate::types::QpId;

/// A network of software devices in this process. A handle: clones are one fabric.
///
/// # Ordering
/// Nothing runs between steps. A step lets each QP that has work run one WR (or flush one), in the
/// order of node and QP number; so the same calls give the same result, WC by WC.
/// # Divergence
/// - A WR runs whole in its step, at both ends; a real one takes many packets, and a peer may see
///   part of a write before its end.
/// - There is no time: a WR that waits for the peer's QP to be connected waits until that happens.
///   A SEND that finds no receive at the peer uses up one of its RNR retries in each step; with
///   retries without end it waits, and waiting is not progress.
/// - The death of a process, the removal of a device and the end of a QP are told to the QPs
///   connected to it ([`AsyncEvent::PeerGone`]), as a connection manager tells of a disconnect.
#[derive(Clone, Debug)]
pub struct Fabric {
    state: Arc<Mutex<State>>,
}

/// What the handles share.
#[derive(Debug)]
pub(super) struct State {
    seed: u64,
    pub(super) nodes: Vec<Node>,
    pub(super) scratch: Scratch,
}

/// Memory of the running WR, kept so that running allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) local: Vec<Piece>,
    pub(super) remote: Vec<Piece>,
    pub(super) chunk: Vec<u8>,
}

/// Position of a QP in its node's table, and of the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct At {
    pub(super) node: usize,
    pub(super) qp: usize,
}

impl Fabric {
    /// A fabric without nodes. The seed decides what no caller should rely on, such as key numbers.
    #[must_use]
    pub fn new(seed: u64) -> Fabric {
        let state = State { seed, nodes: Vec::new(), scratch: Scratch::default() };
        Fabric { state: Arc::new(Mutex::new(state)) }
    }

    /// The seed it was made with.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.lock().seed
    }

    /// Opens a device on a new node. A page size that is not a power of two is rounded up to one.
    #[must_use]
    pub fn add_node(&self, name: &str, caps: Caps) -> SimDevice {
        let mut state = self.lock();
        let index = state.nodes.len();
        let seed = mix(state.seed, index as u64);
        let node = Node::new(caps, seed);
        let caps = node.caps.clone();
        state.nodes.push(node);
        drop(state);
        SimDevice::new(self.clone(), index, name, caps)
    }

    /// Lets every QP with work run one WR; false if none could.
    #[must_use = "false says that nothing is left to do"]
    pub fn step(&self) -> bool {
        self.lock().step()
    }

    /// Steps until nothing can run, at most `max_steps` times; returns how many did something.
    pub fn run(&self, max_steps: usize) -> usize {
        let mut state = self.lock();
        (0..max_steps).take_while(|_| state.step()).count()
    }

    /// The state; a thread that panicked while it held the lock has left it consistent enough to
    /// read, and the software device itself does not panic.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// One step.
    fn step(&mut self) -> bool {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut moved = false;
        for node in 0..self.nodes.len() {
            if self.nodes[node].life != Life::Up {
                continue;
            }
            for qp in 0..self.nodes[node].qps.len() {
                moved |= self.step_qp(At { node, qp }, &mut scratch);
            }
        }
        self.scratch = scratch;
        moved
    }

    /// Ends a QP and tells the QPs that are connected to it.
    pub(super) fn destroy_qp(&mut self, node: usize, qp: QpId) -> Result<(), DeviceError> {
        self.nodes[node].destroy_qp(qp)?;
        // The peers of a dead node have heard of its end already.
        if self.nodes[node].life == Life::Up {
            self.tell_peers(node, |gone| gone == qp);
        }
        Ok(())
    }

    /// The process of a node dies.
    pub(super) fn kill(&mut self, node: usize) {
        self.leave(node, Life::Killed);
        let dead = &mut self.nodes[node];
        dead.pds.clear();
        dead.cqs.clear();
        dead.qps.clear();
        dead.mrs.clear();
        dead.mws.clear();
        dead.iommu.clear();
    }

    /// The device of a node is removed under a living process.
    pub(super) fn unplug(&mut self, node: usize) {
        if self.nodes[node].life != Life::Up {
            return;
        }
        self.leave(node, Life::Unplugged);
        let gone = &mut self.nodes[node];
        gone.mws.free_all();
        for i in 0..gone.qps.len() {
            let (_, qp) = gone.qps.at_mut(i);
            qp.state = QpState::Err;
            qp.events.push_back(AsyncEvent::DeviceFatal);
        }
    }

    fn leave(&mut self, node: usize, life: Life) {
        let was = std::mem::replace(&mut self.nodes[node].life, life);
        if was == Life::Up {
            let qps: Vec<QpId> = self.nodes[node].qps.iter().map(|(id, _)| QpId(id)).collect();
            self.tell_peers(node, |gone| qps.contains(&gone));
        }
    }

    /// Tells all QPs elsewhere, or on the same node, whose peer on `node` has gone.
    fn tell_peers(&mut self, node: usize, gone: impl Fn(QpId) -> bool) {
        for other in self.nodes.iter_mut().filter(|n| n.life == Life::Up) {
            for i in 0..other.qps.len() {
                let (id, qp) = other.qps.at_mut(i);
                if qp.peer.is_some_and(|(n, q)| n == node as u64 && gone(q)) {
                    qp.events.push_back(AsyncEvent::PeerGone(QpId(id)));
                }
            }
        }
    }
}

/// A call on a node that is gone.
pub(super) fn gone(verb: Verb) -> DeviceError {
    DeviceError::new(verb, errno::ENODEV)
}

/// Spreads the seed over the nodes.
fn mix(seed: u64, node: u64) -> u64 {
    let x = (seed ^ node.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^ (x >> 33)
}
