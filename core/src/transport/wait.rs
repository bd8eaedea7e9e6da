//! Waiting for the device instead of asking it over and over.

use super::{Progress, State, Transport};
use crate::device::{Device, DeviceError};
use crate::memreg::MemReg;
use crate::types::Tick;

impl<D: Device, S: MemReg> Transport<D, S> {
    /// Polls; if nothing has happened, waits until something does, at most `limit_ns`, and polls
    /// again. Returns early for a lease or a drain that ends sooner, and now and then with nothing:
    /// a poll may have overtaken the event that ends the wait.
    ///
    /// # Units
    /// Nanoseconds. `now` is the moment of the call: what ends by itself in the meantime is found
    /// by the next call, with a later moment.
    /// # Ordering
    /// The CQ is armed, polled again and only then waited for: a completion that comes between the
    /// first poll and the arming raises no event (H-10).
    /// # Errors
    /// As [`poll`](Transport::poll). If the device cannot wait, nothing is lost: poll.
    /// # Cost
    /// Two system calls where it has to wait, and the thread sleeps. The software device does the
    /// work of all devices of its fabric instead, until this one has a completion.
    /// # Source
    /// ibv_get_cq_event(3)
    pub fn wait(&mut self, now: Tick, limit_ns: u64) -> Result<Progress, DeviceError> {
        let first = self.poll(now)?;
        if self.is_worth_telling(&first) {
            return Ok(first);
        }
        self.eng.device.arm_cq(self.eng.cq)?;
        let missed = self.poll(now)?;
        if self.is_worth_telling(&missed) {
            return Ok(missed);
        }
        self.eng.device.wait_cq(self.eng.cq, self.until_something_ends(now, limit_ns))?;
        self.poll(now)
    }

    /// There is something to look at, or nothing that could ever come.
    fn is_worth_telling(&self, progress: &Progress) -> bool {
        progress.any() || progress.messages > 0 || self.eng.gone || self.eng.qp.is_none()
    }

    fn until_something_ends(&self, now: Tick, limit_ns: u64) -> u64 {
        let end = match self.state {
            State::Up => self.eng.next_lease,
            State::Draining => self.drain_until,
            State::Ready | State::Down(_) => None,
        };
        end.map_or(limit_ns, |end| end.0.saturating_sub(now.0).min(limit_ns))
    }
}
