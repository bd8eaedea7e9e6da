//! The checked configuration.

use std::path::PathBuf;

use memreg_core::device::{Caps, RelaxedOrdering};
use memreg_core::plugin::Options;
use memreg_core::sizing::Ask;
use serde::Deserialize;

use crate::raw::{self, Raw};

/// Everything that the user wants. What [`Loader`](crate::Loader) returns has passed every check.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Settings {
    /// `[device]`, but for `relaxed_ordering`.
    pub device: DeviceSettings,
    /// `device.relaxed_ordering`.
    pub relaxed_ordering: RelaxedOrdering,
    /// `[strategy]`, but for `danger_trust_peer`.
    pub strategy: StrategySettings,
    /// `[queues]`, `[memory]` and `strategy.danger_trust_peer`, as the sizing takes them.
    pub ask: Ask,
}

/// Which device to open.
#[derive(Clone, PartialEq, Debug)]
pub enum DeviceSettings {
    /// The software device of this process.
    Sim(SimSettings),
    /// A device of libibverbs.
    Verbs(VerbsSettings),
}

impl Default for DeviceSettings {
    fn default() -> DeviceSettings {
        DeviceSettings::Sim(SimSettings::default())
    }
}

/// The software device.
#[derive(Clone, PartialEq, Debug)]
pub struct SimSettings {
    /// What it resembles.
    pub profile: ProfileSource,
    /// Where all its choices come from.
    pub seed: u64,
    /// What differs from the profile.
    pub caps: CapsOverride,
}

impl Default for SimSettings {
    fn default() -> SimSettings {
        SimSettings {
            profile: ProfileSource::Builtin("generic".to_owned()),
            seed: 1,
            caps: CapsOverride::default(),
        }
    }
}

impl SimSettings {
    /// The built-in profile that everything else differs from.
    pub fn base(&self) -> &str {
        match &self.profile {
            ProfileSource::Builtin(name) => name,
            ProfileSource::File(file) => &file.base,
        }
    }

    /// The attributes: those of [`base`](SimSettings::base), then the profile's file, then
    /// `[device.caps]`.
    pub fn caps_over(&self, base: Caps) -> Caps {
        let mut caps = base;
        if let ProfileSource::File(file) = &self.profile {
            file.caps.apply(&mut caps);
        }
        self.caps.apply(&mut caps);
        caps
    }
}

/// Where the software device's attributes come from.
#[derive(Clone, PartialEq, Debug)]
pub enum ProfileSource {
    /// A profile of the library, by name; whether it exists, the library says.
    Builtin(String),
    /// A user's file.
    File(Box<ProfileFile>),
}

/// A user's profile.
#[derive(Clone, PartialEq, Debug)]
pub struct ProfileFile {
    /// Where it was read.
    pub path: PathBuf,
    /// How messages call it.
    pub name: String,
    /// What it resembles.
    pub about: String,
    /// The built-in profile that it differs from.
    pub base: String,
    /// How it differs.
    pub caps: CapsOverride,
}

/// The device of libibverbs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VerbsSettings {
    /// Its exact name, never a prefix or a pattern; `None` = the nearest active one.
    pub name: Option<String>,
    /// The port, counted from 1; `None` = the first active one.
    pub port: Option<u8>,
    /// The entry of the port's GID table; `None` = the one that reaches farthest.
    pub gid_index: Option<u8>,
    /// The memory node to be near; `None` = that of this process, if it is one.
    pub numa_node: Option<u32>,
}

/// How memory is granted.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StrategySettings {
    /// Which strategy.
    pub choice: StrategyChoice,
    /// A plugin's options.
    pub options: Options,
}

/// Which strategy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StrategyChoice {
    /// The first of these that the device supports.
    Auto {
        /// At least one name, none twice, never `physical`.
        order: Vec<String>,
    },
    /// This one or an error. `physical` only together with `ask.danger_trust_peer`.
    Named(String),
}

impl Default for StrategyChoice {
    fn default() -> StrategyChoice {
        StrategyChoice::Auto { order: vec!["frwr".to_owned(), "fmr".to_owned()] }
    }
}

macro_rules! caps_override {
    ($($name:ident: $type:ty,)*) => {
        /// Attributes of the software device that replace those of its profile; `None` = leave as
        /// it is.
        ///
        /// # Units
        /// Those of [`Caps`].
        #[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct CapsOverride {
            $(
                #[doc = concat!("Replaces [`Caps::", stringify!($name), "`].")]
                pub $name: Option<$type>,
            )*
        }

        impl CapsOverride {
            /// Replaces what is set.
            pub fn apply(&self, caps: &mut Caps) {
                $(
                    if let Some(value) = self.$name {
                        caps.$name = value;
                    }
                )*
            }
        }
    };
}

caps_override! {
    mem_mgt_extensions: bool,
    sg_gaps: bool,
    max_fast_reg_page_list_len: u32,
    mem_window_type_2b: bool,
    max_mw: u32,
    max_mr: u32,
    max_mr_size: u64,
    iommu_mr_size: u64,
    relaxed_ordering: bool,
    relaxed_ordering_always: bool,
    max_qp_wr: u32,
    wide_sge: u32,
    max_qp_wr_wide: u32,
    max_cqe: u32,
    max_sge: u32,
    max_sge_rd: u32,
    max_inline_data: u32,
    page_size: u32,
}

/// Turns the layered values into settings.
pub(crate) fn from_raw(raw: Raw, profile: Option<Box<ProfileFile>>) -> Settings {
    let relaxed_ordering = raw.device.relaxed_ordering.into();
    let device = match raw.device.kind {
        raw::Kind::Sim => DeviceSettings::Sim(SimSettings {
            profile: profile
                .map_or(ProfileSource::Builtin(raw.device.profile), ProfileSource::File),
            seed: raw.device.seed,
            caps: raw.device.caps,
        }),
        raw::Kind::Verbs => DeviceSettings::Verbs(VerbsSettings {
            port: raw.device.port.number(),
            gid_index: raw.device.gid_index.number(),
            numa_node: raw.device.numa_node.number(),
            name: raw.device.name,
        }),
    };
    let choice = match raw.strategy.name.as_str() {
        "auto" => StrategyChoice::Auto { order: raw.strategy.order },
        _ => StrategyChoice::Named(raw.strategy.name),
    };
    let options = raw.strategy.options.into_iter().map(|(name, v)| (name, v.into())).collect();
    Settings {
        device,
        relaxed_ordering,
        strategy: StrategySettings { choice, options },
        ask: Ask {
            max_payload_bytes: raw.memory.max_payload,
            credits: raw.queues.credits,
            backchannel: raw.queues.backchannel,
            ranges_per_request: raw.queues.ranges_per_request,
            danger_trust_peer: raw.strategy.danger_trust_peer,
            split_bytes: raw.memory.split.unwrap_or(0),
            ..Ask::default()
        },
    }
}
