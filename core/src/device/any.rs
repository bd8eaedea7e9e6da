//! One type over all devices, for those who choose at run time.

use super::sealed;
use super::sim::SimDevice;
#[cfg(all(feature = "verbs", target_os = "linux"))]
use super::verbs::VerbsDevice;

/// Any device of this build.
#[enum_dispatch::enum_dispatch(Device)]
#[derive(Clone, Debug)]
pub enum AnyDevice {
    /// The software device.
    Sim(SimDevice),
    /// A device of libibverbs.
    #[cfg(all(feature = "verbs", target_os = "linux"))]
    Verbs(VerbsDevice),
}

impl sealed::Sealed for AnyDevice {}
