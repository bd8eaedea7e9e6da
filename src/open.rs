//! From settings to an open transport: device, strategy, queues.

use crate::Transport;
use memreg_config::{
    DeviceSettings, ProfileSource, Settings, SimSettings, StrategyChoice, VerbsSettings,
};
use memreg_core::device::sim::{Fabric, Profile, profile};
use memreg_core::device::{AnyDevice, Device, OrderingConflict, OrderingPlan};
use memreg_core::error::Disposition;
use memreg_core::transport::{OpenOptions, SharedPd, SharedPdError, error};
use memreg_selector::{
    Candidate, NotQpBound, SelectError, Tried, Wanted, prove_qp_bound_keys, rechoose,
};
use memreg_strategies::{BuildOptions, Registry, RegistryError, Strategy};

/// An open transport, and how its strategy came to be chosen.
#[derive(Debug)]
pub struct Opened {
    /// Ready to be connected.
    pub transport: Transport,
    /// Every known strategy with the reason why it was taken or not; one that the device turned out
    /// not to support says `tried, failed: …`.
    pub candidates: Vec<Candidate>,
}

/// Nothing could be opened; nothing is left over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The configuration names a profile that this build does not have.
    #[error(
        "device.profile: no profile is named {name:?}; known are {}",
        profile::names().join(", ")
    )]
    UnknownProfile {
        /// The name.
        name: String,
    },
    /// The configuration asks for hardware, which this build cannot drive.
    #[error(
        "device.kind = \"verbs\": this build has no libibverbs support; build it with --features \
         verbs, or use device.kind = \"sim\""
    )]
    VerbsNotBuilt,
    /// The device of libibverbs could not be opened.
    #[cfg(target_os = "linux")]
    #[error("device.kind = \"verbs\": {0}; the software device needs none: device.kind = \"sim\"")]
    Verbs(memreg_core::device::host::OpenError),
    /// Two strategies linked into this program collide.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The ordering that is wanted and the device contradict each other.
    #[error("{device}: {why}")]
    Ordering {
        /// The device.
        device: String,
        /// The setting, and why it cannot be had.
        why: OrderingConflict,
    },
    /// No strategy to use; it has the reason for each.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// The transport failed for a reason that no other strategy would mend.
    #[error(transparent)]
    Transport(#[from] error::OpenError),
}

impl OpenError {
    /// What to do about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            OpenError::Transport(e) => e.disposition(),
            _ => Disposition::Fatal,
        }
    }

    /// All known strategies with their reasons; empty if it did not come to a choice.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        match self {
            OpenError::Select(e) => e.candidates(),
            _ => &[],
        }
    }
}

/// Opens the device that the settings describe, and a transport on it with the strategy they ask
/// for.
///
/// # Shape
/// A software device gets a fabric of its own; its peer opens with [`open_beside`].
/// # Errors
/// [`OpenError`]. With `strategy.name = "auto"` a strategy that the device announces and then
/// refuses is passed over, and [`Opened::candidates`] says so; a strategy that was named is never
/// replaced.
pub fn open(settings: &Settings) -> Result<Opened, OpenError> {
    open_on(open_device(settings)?, settings)
}

/// Opens a transport that can be the peer of `other`: on a new software device of the same fabric,
/// or on the same device of libibverbs.
///
/// # Errors
/// As [`open`].
pub fn open_beside(other: &Transport, settings: &Settings) -> Result<Opened, OpenError> {
    match other.device() {
        AnyDevice::Sim(device) => {
            open_on(sim_node(device.fabric(), "sim-peer", settings)?, settings)
        }
        // A real device reaches itself.
        #[cfg(all(feature = "verbs", target_os = "linux"))]
        AnyDevice::Verbs(device) => open_on(device.clone().into(), settings),
    }
}

/// Opens the device that the settings describe.
///
/// # Errors
/// [`OpenError::UnknownProfile`]; `OpenError::VerbsNotBuilt`, or, in a build with the feature
/// `verbs`, `OpenError::Verbs` with the cause.
pub fn open_device(settings: &Settings) -> Result<AnyDevice, OpenError> {
    match &settings.device {
        DeviceSettings::Sim(sim) => sim_node(&Fabric::new(sim.seed), "sim", settings),
        DeviceSettings::Verbs(verbs) => verbs_device(verbs),
    }
}

#[cfg(all(feature = "verbs", target_os = "linux"))]
fn verbs_device(settings: &VerbsSettings) -> Result<AnyDevice, OpenError> {
    use memreg_core::device::verbs::{VerbsDevice, VerbsOptions};
    let options = VerbsOptions {
        name: settings.name.clone(),
        port: settings.port,
        gid_index: settings.gid_index,
        numa_node: settings.numa_node,
    };
    Ok(VerbsDevice::open(&options).map_err(OpenError::Verbs)?.into())
}

#[cfg(not(all(feature = "verbs", target_os = "linux")))]
fn verbs_device(_: &VerbsSettings) -> Result<AnyDevice, OpenError> {
    Err(OpenError::VerbsNotBuilt)
}

/// Opens a transport on a device that is open already.
///
/// # Errors
/// As [`open`].
pub fn open_on(device: AnyDevice, settings: &Settings) -> Result<Opened, OpenError> {
    open_with(&device, settings, |s, options| Transport::open(device.clone(), s, options))
}

/// Chooses until one opens.
fn open_with(
    device: &AnyDevice,
    settings: &Settings,
    open: impl Fn(Strategy, &OpenOptions) -> Result<Transport, error::OpenError>,
) -> Result<Opened, OpenError> {
    ordering(device, settings)?;
    let registry = Registry::new()?;
    let caps = device.caps();
    let (wanted, options) = (wanted(settings), build_options(settings));
    let open_options = open_options(settings);
    let mut tried: Vec<Tried> = vec![];
    loop {
        let choice = rechoose(&registry, &caps, &settings.ask, &wanted, &options, &tried)?;
        let name = memreg_core::MemReg::name(&choice.strategy);
        match open(choice.strategy, &open_options) {
            Ok(transport) => return Ok(Opened { transport, candidates: choice.candidates }),
            Err(error::OpenError::Device { source, .. }) => {
                tracing::warn!(strategy = name, error = %source, "strategy tried, failed");
                tried.push(Tried { name: name.to_owned(), failed: source.to_string() });
            }
            Err(e @ error::OpenError::SharedPd { .. }) => {
                tried.push(Tried { name: name.to_owned(), failed: e.to_string() });
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// Makes a protection domain that transports on this device can share, if the device is seen to
/// bind a window's key to its connection.
///
/// # Errors
/// [`ShareError`]; transports then need a PD each, as [`open_on`] makes them.
/// # Cost
/// Three connections of the device to itself.
pub fn share_pd(device: AnyDevice, settings: &Settings) -> Result<SharedPd<AnyDevice>, ShareError> {
    let registry = Registry::new()?;
    let proof = prove_qp_bound_keys(&device, &registry, &settings.ask)?;
    Ok(SharedPd::new(device, proof)?)
}

/// Opens a transport in a shared protection domain.
///
/// # Errors
/// As [`open`]. A strategy whose keys are valid in the whole PD counts as tried and failed.
pub fn open_in(pd: &SharedPd<AnyDevice>, settings: &Settings) -> Result<Opened, OpenError> {
    open_with(pd.device(), settings, |strategy, options| Transport::open_in(pd, strategy, options))
}

/// No protection domain to share.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// Two strategies linked into this program collide.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The device was not seen to bind keys to their QP.
    #[error(transparent)]
    NotQpBound(#[from] NotQpBound),
    /// It could not be made.
    #[error(transparent)]
    Pd(#[from] SharedPdError),
}

/// What the device makes of `device.relaxed_ordering`.
///
/// # Errors
/// [`OpenError::Ordering`].
pub(crate) fn ordering(device: &AnyDevice, settings: &Settings) -> Result<OrderingPlan, OpenError> {
    let plan = settings.relaxed_ordering.plan(&device.caps());
    plan.map_err(|why| OpenError::Ordering { device: device.name(), why })
}

/// What the software device of these settings resembles: profile, file and overrides merged.
///
/// # Errors
/// [`OpenError::UnknownProfile`].
pub fn profile_of(sim: &SimSettings) -> Result<Profile, OpenError> {
    let name = sim.base();
    let base = profile::builtin(name)
        .ok_or_else(|| OpenError::UnknownProfile { name: name.to_owned() })?;
    let caps = sim.caps_over(base.caps.clone());
    Ok(match &sim.profile {
        ProfileSource::Builtin(_) => Profile { caps, ..base },
        ProfileSource::File(file) => Profile {
            name: file.name.clone().into(),
            about: file.about.clone().into(),
            caps,
            source: format!("{}, over profile {name}", file.path.display()).into(),
        },
    })
}

/// The strategy that the settings ask for, as the selector takes it.
pub(crate) fn wanted(settings: &Settings) -> Wanted {
    match &settings.strategy.choice {
        StrategyChoice::Auto { order } => Wanted::new("auto", order.clone()),
        StrategyChoice::Named(name) => Wanted::new(name, Wanted::default().order),
    }
}

/// What transports are opened with.
pub(crate) fn open_options(settings: &Settings) -> OpenOptions {
    let relaxed_ordering = settings.relaxed_ordering;
    OpenOptions { ask: settings.ask, relaxed_ordering, ..OpenOptions::default() }
}

/// What strategies are built with.
pub(crate) fn build_options(settings: &Settings) -> BuildOptions {
    BuildOptions {
        danger_trust_peer: settings.ask.danger_trust_peer,
        options: settings.strategy.options.clone(),
    }
}

fn sim_node(fabric: &Fabric, name: &str, settings: &Settings) -> Result<AnyDevice, OpenError> {
    match &settings.device {
        DeviceSettings::Sim(sim) => Ok(fabric.add_node(name, profile_of(sim)?.caps).into()),
        DeviceSettings::Verbs(verbs) => verbs_device(verbs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memreg_config::Loader;

    fn settings(sets: &[&str]) -> Settings {
        sets.iter().fold(Loader::new(), |l, s| l.set(*s)).load().unwrap().settings
    }

    fn reason<'a>(candidates: &'a [Candidate], name: &str) -> &'a str {
        &candidates.iter().find(|c| c.name == name).unwrap().reason
    }

    fn left_over(device: &AnyDevice) -> u64 {
        #[allow(irrefutable_let_patterns, reason = "refutable with the feature verbs")]
        let AnyDevice::Sim(sim) = device else { panic!("not a software device") };
        let c = sim.counters();
        c.pds + c.cqs + c.qps + c.mrs + c.mapped_ranges
    }

    #[test]
    fn opens_what_the_settings_ask_for() {
        let o = open(&settings(&[])).unwrap();
        assert_eq!(o.transport.strategy_name(), "frwr");
        let o = open(&settings(&["strategy.name=fmr"])).unwrap();
        assert_eq!(o.transport.strategy_name(), "fmr");
        let o = open(&settings(&["device.profile=no-fast-registration"])).unwrap();
        assert_eq!(o.transport.strategy_name(), "fmr");
        assert_eq!(reason(&o.candidates, "frwr"), "device has no MEM_MGT_EXTENSIONS");
    }

    /// Room for the message buffers, and not for one operation's regions: announced, then refused.
    const TOO_FEW_MRS: &str = "device.caps.max_mr=4";

    #[test]
    fn b17_auto_falls_back_and_says_so() {
        let s = settings(&[TOO_FEW_MRS]);
        let device = open_device(&s).unwrap();
        let o = open_on(device.clone(), &s).unwrap();
        assert_eq!(o.transport.strategy_name(), "fmr");
        let why = reason(&o.candidates, "frwr");
        assert!(why.starts_with("tried, failed: alloc_mr: ENOMEM (12)"), "{why}");
        drop(o);
        assert_eq!(left_over(&device), 0);
    }

    #[test]
    fn b17_a_named_strategy_is_an_error_with_the_same_code() {
        let s = settings(&[TOO_FEW_MRS, "strategy.name=frwr"]);
        let device = open_device(&s).unwrap();
        let e = open_on(device.clone(), &s).unwrap_err();
        assert!(e.to_string().contains("tried, failed: alloc_mr: ENOMEM (12)"), "{e}");
        assert_eq!(left_over(&device), 0);
    }

    #[test]
    fn connections_share_a_pd_where_keys_were_seen_to_be_bound_to_their_qp() {
        let s = settings(&["device.profile=rxe"]);
        let pd = share_pd(open_device(&s).unwrap(), &s).unwrap();
        let all: Vec<_> = (0..3).map(|_| open_in(&pd, &s).unwrap().transport).collect();
        let first = all[0].protection_domain();
        assert!(all.iter().all(|t| t.protection_domain() == first && t.strategy_name() == "frwr"));
        let named = settings(&["device.profile=rxe", "strategy.name=fmr"]);
        let e = open_in(&pd, &named).unwrap_err().to_string();
        assert!(e.contains("fmr cannot share a protection domain: its keys"), "{e}");
    }

    #[test]
    fn no_pd_is_shared_where_keys_are_valid_in_all_of_it() {
        let s = settings(&[]);
        let device = open_device(&s).unwrap();
        let e = share_pd(device.clone(), &s).unwrap_err().to_string();
        let why = "frwr uses page lists here, whose keys are valid in the PD";
        assert_eq!(e, format!("not seen that keys are bound to their QP: {why}"));
        assert_eq!(left_over(&device), 0);
    }

    #[test]
    fn unknown_profiles_list_the_known_ones() {
        let e = open(&settings(&["device.profile=connectx"])).unwrap_err().to_string();
        assert!(e.contains("\"connectx\"") && e.contains("connectx-5-like, shallow"), "{e}");
    }

    #[test]
    #[cfg(not(feature = "verbs"))]
    fn hardware_without_the_feature_is_an_error_that_names_it() {
        let e = open(&settings(&["device.kind=verbs"])).unwrap_err();
        assert!(matches!(e, OpenError::VerbsNotBuilt));
    }
}
