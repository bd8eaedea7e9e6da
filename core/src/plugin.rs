//! How a strategy from another crate announces itself.

use crate::device::Caps;
use crate::memreg::{MemReg, Reject};

/// Version of the [`MemReg`] contract that this build speaks.
pub const API: u32 = 1;

/// A scalar from `[strategy.options]`.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// Text.
    Text(String),
}

/// The options of a plugin, by name.
pub type Options = std::collections::BTreeMap<String, OptionValue>;

/// Announces a strategy; const-constructible, for `inventory::submit!`.
///
/// `inventory` registers nothing from a crate that nobody names: the binary must say `use
/// plugin_crate as _;`.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The strategy's name in the configuration.
    pub name: &'static str,
    /// [`API`] of the build it was written for.
    pub api: u32,
    /// One line for `memreg strategies`.
    pub about: &'static str,
    /// Whether it works on such a device.
    pub check: fn(&Caps) -> Result<(), Reject>,
    /// Makes one for a connection; the text of an error names the option at fault.
    pub build: fn(&Options) -> Result<Box<dyn MemReg>, String>,
}

inventory::collect!(Entry);

/// All entries that are linked into this program, in no particular order.
pub fn linked() -> impl Iterator<Item = &'static Entry> {
    inventory::iter::<Entry>.into_iter()
}
