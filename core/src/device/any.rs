//! One type over all devices, for those who choose at run time.

use super::sealed;
use super::sim::SimDevice;

/// Any device of this build.
#[enum_dispatch::enum_dispatch(Device)]
#[derive(Clone)]
pub enum AnyDevice {
    /// The software device.
    Sim(SimDevice),
}

impl sealed::Sealed for AnyDevice {}
