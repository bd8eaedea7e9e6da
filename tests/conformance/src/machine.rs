//! The device under a check: a software node, or a real device that the checks cannot look into.

use memreg_core::device::AnyDevice;
use memreg_core::device::fault::Faulty;
use memreg_core::device::sim::{SimCounters, SimDevice};

/// The owner's and the peer's device: one that can be made to go wrong.
pub(crate) type Node = Faulty<AnyDevice>;

/// The software node, if it is one.
pub(crate) fn software(device: &AnyDevice) -> Option<&SimDevice> {
    match device {
        AnyDevice::Sim(sim) => Some(sim),
        #[allow(unreachable_patterns, reason = "reachable with the feature verbs")]
        _ => None,
    }
}

/// What is on the device now; of a real one, only what it can tell: objects and loans.
pub(crate) fn counters(device: &AnyDevice) -> SimCounters {
    match device {
        AnyDevice::Sim(sim) => sim.counters(),
        #[cfg(all(feature = "verbs", target_os = "linux"))]
        AnyDevice::Verbs(real) => {
            let o = real.objects();
            let mut c = SimCounters::default();
            (c.pds, c.cqs, c.qps) = (o.pds as u64, o.cqs as u64, o.qps as u64);
            (c.mrs, c.mapped_ranges) = (o.mrs as u64, o.lent as u64);
            c
        }
    }
}
