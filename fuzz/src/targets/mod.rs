//! What must hold whatever bytes come in: each target takes any bytes, and panics if it does not.
//!
//! - [`config`]: what a user writes
//! - [`profile`]: a file that describes a device
//! - [`trace`]: what `memreg audit` is given
//! - [`segment`]: what a peer sends
//! - [`completions`]: what a device answers
//! - `wc` and `hello`, with the feature `verbs`: a completion as a provider writes it, and a peer's
//!   greeting
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test

mod completions;
mod config;
mod input;
mod rig;
mod segment;
mod trace;
#[cfg(feature = "verbs")]
mod verbs;

pub use completions::completions;
pub use config::{config, profile};
pub use segment::segment;
pub use trace::trace;
#[cfg(feature = "verbs")]
pub use verbs::{hello, wc};
