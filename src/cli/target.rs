//! The device that a command looks at, and how its report names it.

use super::failure::Failure;
use crate::{open_device, profile_of};
use memreg_config::{DeviceSettings, Settings};
use memreg_core::device::{AnyDevice, Device};

/// An open device.
pub(super) struct Target {
    pub device: AnyDevice,
    /// What every report says of where it comes from.
    pub kind: &'static str,
    /// What the software device resembles.
    pub profile: Option<String>,
}

/// What every figure says of where it was measured.
pub(super) const SOFTWARE_DEVICE: &str = "software device";

impl Target {
    /// Opens the device that the configuration describes.
    pub fn open(settings: &Settings) -> Result<Target, Failure> {
        let (kind, profile) = match &settings.device {
            DeviceSettings::Sim(sim) => (SOFTWARE_DEVICE, Some(profile_of(sim)?.name.to_string())),
            DeviceSettings::Verbs(_) => ("libibverbs device", None),
        };
        Ok(Target { device: open_device(settings)?, kind, profile })
    }

    /// For the title of a report.
    pub fn title(&self) -> String {
        match &self.profile {
            Some(profile) => format!("{}, profile {profile}", self.kind),
            None => format!("{} {}", self.kind, self.device.name()),
        }
    }
}
