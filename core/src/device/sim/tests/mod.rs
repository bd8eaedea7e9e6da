//! Behaviour of the software device.

mod access;
mod cost;
mod fast;
mod life;
mod limits;
mod model;
mod queues;
pub(in crate::device) mod rig;
mod rnr;
mod window_model;
mod windows;
