//! What is kept of a connection that went wrong.

use super::error::DownCause;
use super::{Ledger, Transport};
use crate::device::Device;
use crate::memreg::MemReg;

/// Why a connection went wrong, and its ledger from then, to be attached to a report.
///
/// # Shape
/// Taken at the poison, and once more when the connection is down, so that it shows how each key
/// ended. Later connections write over the transport's own ledger, and not over this one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Poisoned {
    /// Why.
    pub cause: DownCause,
    /// The ledger. It prints as a trace, which `memreg audit` checks.
    pub ledger: Ledger,
}

impl<D: Device, S: MemReg> Transport<D, S> {
    /// The last connection that went down because something went wrong, and not by
    /// [`disconnect`](Self::disconnect).
    ///
    /// # Cost
    /// At most a second [`Ledger::CAPACITY`] lines, from the first such connection on.
    #[must_use]
    pub fn last_poison(&self) -> Option<&Poisoned> {
        self.poisoned.as_deref()
    }

    /// At the poison, and when the connection is down.
    pub(super) fn keep_poison(&mut self, cause: &DownCause) {
        if *cause == DownCause::Local {
            return;
        }
        let ledger = &self.eng.keys.ledger;
        match &mut self.poisoned {
            Some(p) => {
                p.cause.clone_from(cause);
                p.ledger.clone_from(ledger);
            }
            none => {
                let (cause, ledger) = (cause.clone(), ledger.clone());
                *none = Some(Box::new(Poisoned { cause, ledger }));
            }
        }
    }
}
