//! The books of a check: what was lent, what came back, and what is left on the devices.

use crate::machine::{Node, counters};
use crate::verdict::{Verdict, ensure, ensure_eq};
use memreg_core::device::{AnyDevice, Device};
use memreg_core::memreg::RegionId;
use memreg_core::transport::{KeyEvent, Ledger, LedgerEvent};
use memreg_core::{MemReg, Transport};
use std::collections::BTreeMap;

/// What one check has lent, and what the devices held before.
#[derive(Debug)]
pub(crate) struct Books {
    /// Buffers given to `expose`.
    pub(crate) lent: usize,
    /// Buffers that came back.
    pub(crate) returned: usize,
    /// Buffers whose handle the check dropped: freed by the transport, never seen again.
    pub(crate) let_go: usize,
    mapped_ranges: u64,
    mapped_bytes: u64,
    ordinary_mrs: u64,
}

impl Books {
    /// Opens the books of an owner that has exposed nothing yet.
    pub(crate) fn open(owner: &AnyDevice) -> Books {
        let c = counters(owner);
        Books {
            lent: 0,
            returned: 0,
            let_go: 0,
            mapped_ranges: c.mapped_ranges,
            mapped_bytes: c.mapped_bytes,
            ordinary_mrs: c.mrs - c.fast_mrs,
        }
    }

    /// Everything lent has come back, and nothing of it is reachable any more.
    pub(crate) fn balance<D, S>(&self, owner: &Transport<D, S>) -> Verdict
    where
        D: Device + Counted,
        S: MemReg,
    {
        let out = self.returned + self.let_go;
        ensure_eq!(out, self.lent, "buffers that came back of those lent");
        let stats = owner.stats();
        ensure_eq!(stats.exposures_now, 0, "exposures at the end");
        ensure_eq!(stats.bytes_leaked, 0, "bytes leaked");
        ensure_eq!(stats.regions_leaked_now, 0, "regions whose key could not be destroyed");
        every_grant_has_one_end(owner.ledger())?;
        let c = counters(owner.device().node());
        ensure_eq!(c.fast_mrs_valid, 0, "keys that are valid on the device");
        let mapped = (c.mapped_ranges, c.mapped_bytes);
        ensure_eq!(mapped, (self.mapped_ranges, self.mapped_bytes), "ranges and bytes mapped");
        ensure_eq!(c.mws_bound, 0, "windows that are bound on the device");
        // A connection that is down has no arena key, so there may be fewer. A buffer that came
        // back keeps the parent of its windows, which lets no peer in, for the next time.
        let ordinary = c.mrs - c.fast_mrs;
        let windows = owner.limits().mechanism == "window";
        let most = self.ordinary_mrs + if windows { self.returned as u64 } else { 0 };
        ensure!(ordinary <= most, "{ordinary} ordinary MRs at the end, not at most {most}");
        ensure_eq!(c.wcs_lost, 0, "completions lost");
        ensure_eq!(c.iommu_faults, 0, "accesses to memory that was not lent");
        Ok(())
    }
}

/// A device that has a node inside.
pub(crate) trait Counted {
    /// The node.
    fn node(&self) -> &AnyDevice;
}

impl Counted for Node {
    fn node(&self) -> &AnyDevice {
        self.inner()
    }
}

/// Each key that was granted is dead, and died once. Nothing is said of lines that were dropped.
fn every_grant_has_one_end(ledger: &Ledger) -> Verdict {
    let mut open: BTreeMap<(RegionId, u32), usize> = BTreeMap::new();
    let whole = ledger.iter().next().is_none_or(|l| l.seq == 0);
    for line in ledger.iter() {
        let LedgerEvent::Key { region, rkey, what, .. } = line.event else { continue };
        let key = (region, rkey.to_bits());
        match what {
            KeyEvent::Granted { .. } => {
                ensure!(!open.contains_key(&key), "ledger line {}: a live key granted", line.seq);
                open.insert(key, line.seq as usize);
            }
            KeyEvent::Killed(_) => {
                let was = open.remove(&key);
                ensure!(!whole || was.is_some(), "ledger line {}: a dead key ended", line.seq);
            }
            _ => {}
        }
    }
    ensure!(open.is_empty(), "{} keys are live at the end", open.len());
    Ok(())
}

/// No object and no mapping is left on the device of a closed transport.
pub(crate) fn nothing_left(who: &str, device: &AnyDevice) -> Verdict {
    let c = counters(device);
    let left = [
        ("PDs", c.pds),
        ("CQs", c.cqs),
        ("QPs", c.qps),
        ("MRs", c.mrs),
        ("mapped ranges", c.mapped_ranges),
    ];
    for (what, n) in left {
        ensure!(n == 0, "{n} {what} left on the {who}'s device after close");
    }
    Ok(())
}
