//! The configuration after layering, as serde sees it.
//!
//! `config` itself would turn "12", `true` and 1.9 into 12, 1 and 2 here. Nothing of the kind
//! arrives: `check` has let only values of the final type into the layers. What remains to serde is
//! the shape, and it denies what the table in `schema` has and this mirror lacks.

use std::collections::BTreeMap;

use memreg_core::device::RelaxedOrdering;
use memreg_core::plugin::OptionValue;
use serde::Deserialize;

use crate::settings::CapsOverride;

/// All sections.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Raw {
    pub device: Device,
    pub strategy: Strategy,
    pub queues: Queues,
    pub memory: Memory,
}

/// `[device]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Device {
    pub kind: Kind,
    pub name: Option<String>,
    pub port: AutoOr,
    pub gid_index: AutoOr,
    pub numa_node: AutoOr,
    pub relaxed_ordering: Ordering,
    pub profile: String,
    pub seed: u64,
    #[serde(default)]
    pub caps: CapsOverride,
}

/// `device.kind`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Sim,
    Verbs,
}

/// A number, or the word `auto`; `check` lets no other word through.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum AutoOr {
    Number(u64),
    Word(Auto),
}

/// The word.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Auto {
    Auto,
}

impl AutoOr {
    /// The number, of whatever width its range fits.
    pub fn number<T: TryFrom<u64>>(&self) -> Option<T> {
        match self {
            AutoOr::Number(n) => T::try_from(*n).ok(),
            AutoOr::Word(Auto::Auto) => None,
        }
    }
}

/// `device.relaxed_ordering`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Ordering {
    Auto,
    Try,
    Require,
    Off,
}

impl From<Ordering> for RelaxedOrdering {
    fn from(ordering: Ordering) -> RelaxedOrdering {
        match ordering {
            Ordering::Auto => RelaxedOrdering::Auto,
            Ordering::Try => RelaxedOrdering::Try,
            Ordering::Require => RelaxedOrdering::Require,
            Ordering::Off => RelaxedOrdering::Off,
        }
    }
}

/// `[strategy]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Strategy {
    pub name: String,
    pub order: Vec<String>,
    pub danger_trust_peer: bool,
    #[serde(default)]
    pub options: BTreeMap<String, Scalar>,
}

/// A plugin's option.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Scalar {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

impl From<Scalar> for OptionValue {
    fn from(scalar: Scalar) -> OptionValue {
        match scalar {
            Scalar::Bool(b) => OptionValue::Bool(b),
            Scalar::Int(i) => OptionValue::Int(i),
            Scalar::Float(x) => OptionValue::Float(x),
            Scalar::Text(text) => OptionValue::Text(text),
        }
    }
}

/// `[queues]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Queues {
    pub credits: u32,
    pub backchannel: u32,
    pub ranges_per_request: u32,
}

/// `[memory]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Memory {
    pub max_payload: u64,
    pub split: Option<u64>,
}

/// A profile's file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    pub name: String,
    pub about: String,
    pub base: String,
    #[serde(default)]
    pub caps: CapsOverride,
}
