//! The device that a command looks at, and how its report names it.

use super::diagnose;
use super::failure::Failure;
use super::host::{ChoiceShown, PinLimit, choice, pin_limit};
use crate::open::ordering;
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
    /// Why this device, if there was a choice.
    pub choice: Option<ChoiceShown>,
}

/// What every figure says of where it was measured.
pub(super) const SOFTWARE_DEVICE: &str = "software device";

/// What a device is made of, for every figure that is measured on it.
pub(super) fn kind_of(device: &AnyDevice) -> &'static str {
    match device {
        AnyDevice::Sim(_) => SOFTWARE_DEVICE,
        #[cfg(all(feature = "verbs", target_os = "linux"))]
        AnyDevice::Verbs(device) if device.is_software() => "software device of the kernel",
        #[cfg(all(feature = "verbs", target_os = "linux"))]
        AnyDevice::Verbs(_) => "hardware",
    }
}

impl Target {
    /// Opens the device that the configuration describes.
    pub fn open(settings: &Settings) -> Result<Target, Failure> {
        let profile = match &settings.device {
            DeviceSettings::Sim(sim) => Some(profile_of(sim)?.name.to_string()),
            DeviceSettings::Verbs(_) => None,
        };
        let device = open_device(settings)?;
        let choice = choice(&device);
        if let Some(choice) = &choice {
            choice.warn();
        }
        let ordering = ordering(&device, settings)?;
        if let Some(note) = ordering.note {
            diagnose(&format!("note: device.relaxed_ordering: {note}"));
        }
        Ok(Target { kind: kind_of(&device), device, profile, choice })
    }

    /// What this process may pin for this device.
    pub fn pin_limit(&self) -> PinLimit {
        pin_limit(&self.device)
    }

    /// For the title of a report.
    pub fn title(&self) -> String {
        match &self.profile {
            Some(profile) => format!("{}, profile {profile}", self.kind),
            None => format!("{} {}", self.kind, self.device.name()),
        }
    }
}
