//! The engine's rules, one by one, through the public API on the software device.
//!
//! `rig` connects an owner (device wrapped for faults and traced) with a plain peer.
#![allow(clippy::unwrap_used, clippy::panic)] // a test

mod corners;
mod drain;
mod fence;
mod found;
mod lease;
mod lying;
mod many;
mod map;
mod open;
mod ordering;
mod poisoned;
mod posts;
mod ranges;
mod read_only;
mod rig;
mod rnr;
mod shared_pd;
mod split;
mod threads;
mod wait;
