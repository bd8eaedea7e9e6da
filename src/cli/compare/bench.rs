//! The devices that owners and peers are opened on.

use crate::cli::failure::Failure;
use crate::cli::target::{Target, kind_of};
use crate::{OpenError, open_device, profile_of};
use memreg_config::{DeviceSettings, Settings};
use memreg_core::device::sim::{Fabric, Profile};
use memreg_core::device::{AnyDevice, Caps, Device};

/// Where every pair is made.
#[derive(Debug)]
pub(super) enum Bench {
    /// A fabric for each pair, with a node for each end.
    Sim {
        /// The owners' device.
        profile: Profile,
        seed: u64,
    },
    /// A device that reaches itself, opened anew for each end, so that each counts its own.
    Real { device: AnyDevice, caps: Caps, settings: Box<Settings> },
}

impl Bench {
    pub fn open(settings: &Settings) -> Result<Bench, Failure> {
        match &settings.device {
            DeviceSettings::Sim(sim) => {
                Ok(Bench::Sim { profile: profile_of(sim)?, seed: sim.seed })
            }
            DeviceSettings::Verbs(_) => {
                let device = Target::open(settings)?.device;
                let caps = device.caps();
                Ok(Bench::Real { device, caps, settings: Box::new(settings.clone()) })
            }
        }
    }

    /// The owners' attributes.
    pub fn caps(&self) -> &Caps {
        match self {
            Bench::Sim { profile, .. } => &profile.caps,
            Bench::Real { caps, .. } => caps,
        }
    }

    /// The devices of an owner and of its peer. The peer never exposes, so a software one is always
    /// the same: profile `generic`.
    pub fn ends(&self) -> Result<(AnyDevice, AnyDevice), OpenError> {
        Ok(match self {
            Bench::Sim { profile, seed } => {
                let fabric = Fabric::new(*seed);
                let owner = fabric.add_node("sim", profile.caps.clone());
                (owner.into(), fabric.add_node("sim-peer", Caps::default()).into())
            }
            Bench::Real { settings, .. } => (open_device(settings)?, open_device(settings)?),
        })
    }

    /// What every figure says of where it was measured.
    pub fn kind(&self) -> &'static str {
        match self {
            Bench::Sim { .. } => crate::cli::target::SOFTWARE_DEVICE,
            Bench::Real { device, .. } => kind_of(device),
        }
    }

    pub fn name(&self) -> String {
        match self {
            Bench::Sim { .. } => "sim".to_owned(),
            Bench::Real { device, .. } => device.name(),
        }
    }
}

/// Registration calls that a device has served: a system call each on hardware.
pub(super) fn verb_calls(device: &AnyDevice) -> u64 {
    match device {
        AnyDevice::Sim(sim) => {
            let c = sim.counters();
            c.reg_mr_calls + c.alloc_mr_calls + c.dereg_mr_calls
        }
        #[cfg(all(feature = "verbs", target_os = "linux"))]
        AnyDevice::Verbs(device) => device.registration_calls(),
    }
}
