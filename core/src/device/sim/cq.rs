//! A completion queue.

use crate::device::Wc;
use crate::types::QpId;
use std::collections::VecDeque;

/// WCs that wait to be polled.
///
/// # Divergence
/// After an overrun the CQ takes no more WCs, ever; what is in it can still be polled. Real devices
/// differ: some go on, some put the CQ into error.
#[derive(Debug)]
pub(super) struct Cq {
    entries: u32,
    queue: VecDeque<Cqe>,
    overrun: bool,
    /// The next WC raises an event, once.
    armed: bool,
    event: bool,
}

/// A WC and the queue slot that polling it gives back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cqe {
    pub(super) wc: Wc,
    pub(super) qp: QpId,
    pub(super) retires: Retires,
}

/// Which slots a polled WC gives back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Retires {
    /// The send with this sequence and all before it.
    Send(u64),
    /// One receive.
    Recv,
}

/// What became of a WC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pushed {
    Queued,
    /// Lost, and the first one that was.
    Overrun,
    Lost,
}

impl Cq {
    pub(super) fn new(entries: u32) -> Cq {
        Cq { entries, queue: VecDeque::new(), overrun: false, armed: false, event: false }
    }

    pub(super) fn push(&mut self, cqe: Cqe) -> Pushed {
        if self.overrun {
            return Pushed::Lost;
        }
        if self.queue.len() >= self.entries as usize {
            self.overrun = true;
            return Pushed::Overrun;
        }
        self.queue.push_back(cqe);
        self.event |= std::mem::take(&mut self.armed);
        Pushed::Queued
    }

    /// What is queued already raises nothing.
    pub(super) fn arm(&mut self) {
        self.armed = true;
    }

    pub(super) fn take_event(&mut self) -> bool {
        std::mem::take(&mut self.event)
    }

    pub(super) fn pop(&mut self) -> Option<Cqe> {
        self.queue.pop_front()
    }

    /// The WCs that nobody has polled.
    pub(super) fn waiting(&self) -> impl Iterator<Item = Wc> {
        self.queue.iter().map(|c| c.wc)
    }

    /// Drops the WCs of a QP that is gone.
    pub(super) fn forget(&mut self, qp: QpId) {
        self.queue.retain(|c| c.qp != qp);
    }
}
