//! `memreg serve`: the other process of `memreg compare --connect`.
//!
//! - [`wire`]: what the two say to each other
//! - [`session`]: one connection of a client
//! - [`server`]: the port, and all sessions
//!
//! The client owns the memory and decides what is transferred; this side reads and writes it, and
//! compares sums of every byte that it reads. A client is any program that reaches the port: what
//! it says is checked, what it asks for is bounded, and its end is its own.

#[cfg(all(feature = "verbs", target_os = "linux"))]
mod server;
#[cfg(any(test, all(feature = "verbs", target_os = "linux")))]
pub(super) mod session;
#[cfg(any(test, all(feature = "verbs", target_os = "linux")))]
pub(super) mod wire;

use super::failure::Failure;
use super::{Answer, address, args};
use anyhow::anyhow;
use memreg_config::{DeviceSettings, Settings};

/// Serves until it is ended, or, with `--once`, until the first client has left.
pub(super) fn run(
    settings: &Settings,
    args: &args::Serve,
    as_json: bool,
) -> Result<Answer, Failure> {
    let addr = address::parse(&args.address, "ADDR")?;
    needs_a_real_device(settings, "memreg serve")?;
    #[cfg(all(feature = "verbs", target_os = "linux"))]
    return server::run(settings, args, addr, as_json);
    #[cfg(not(all(feature = "verbs", target_os = "linux")))]
    {
        let _ = (addr, as_json);
        Err(crate::OpenError::VerbsNotBuilt.into())
    }
}

/// Refuses the software device, whose fabric no other process reaches.
pub(super) fn needs_a_real_device(settings: &Settings, what: &str) -> Result<(), Failure> {
    match &settings.device {
        DeviceSettings::Verbs(_) => Ok(()),
        DeviceSettings::Sim(_) => Err(Failure::usage(anyhow!(
            "{what}: device.kind = \"sim\", and the software device lives inside one process, \
             where no other process reaches it; use --set device.kind=verbs with an RDMA device \
             (tests/rdma/rxe-vm has one), or memreg compare without --connect"
        ))),
    }
}
