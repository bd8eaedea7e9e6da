//! What the user wants: a TOML file, the environment and the command line, layered and checked.
//!
//! A [`Loader`] is given its sources and returns [`Loaded`], whose [`Settings`] cannot hold a bad
//! value, or [`ConfigErrors`] with every problem of every source at once. Nothing is read that was
//! not named, and nothing is guessed: an unknown key, a wrong type, a misspelt variable and a
//! setting that contradicts another are errors; a setting without effect is a warning.
//!
//! Read the modules in the order in which a value travels: `given` (a value as its source gave it,
//! from `file`, `env` or `args`) → `check` (against the table in `schema`) → `load` (layering) →
//! `conflict` (keys against each other) → `settings`. The table in `schema` is the only place that
//! knows a key's type, range, default and meaning; [`reference()`] prints it.
//!
//! # Example
//! ```
//! let loaded = memreg_config::Loader::new()
//!     .env([("MEMREG__QUEUES__CREDITS", "64")])
//!     .set("memory.max_payload=4MiB")
//!     .load()?;
//! assert_eq!(loaded.settings.ask.credits, 64);
//! assert_eq!(loaded.settings.ask.max_payload_bytes, 4 << 20);
//! # Ok::<(), memreg_config::ConfigErrors>(())
//! ```
#![forbid(unsafe_code)]

mod args;
mod check;
mod conflict;
mod env;
mod file;
mod given;
mod load;
mod near;
mod problem;
mod profile;
mod raw;
mod reference;
mod schema;
mod settings;
mod shown;
mod size;

pub use load::{Loaded, Loader};
pub use problem::{ConfigErrors, Problem};
pub use reference::reference;
pub use settings::{
    CapsOverride, DeviceSettings, ProfileFile, ProfileSource, Settings, SimSettings,
    StrategyChoice, StrategySettings, VerbsSettings,
};
pub use shown::Shown;
pub use size::{NoSize, parse as parse_size, rounded as rounded_size};
