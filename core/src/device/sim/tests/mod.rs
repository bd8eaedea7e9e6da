//! Behaviour of the software device.

mod access;
mod fast;
mod queues;
pub(in crate::device) mod rig;
