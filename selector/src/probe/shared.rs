//! Whether connections may share a protection domain.

use super::{Bench, steps};
use memreg_core::device::Device;
use memreg_core::sizing::Ask;
use memreg_core::transport::QpBoundKeys;
use memreg_strategies::{BuildOptions, Registry};

/// It was not seen that a window's key is of use to its own connection alone.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not seen that keys are bound to their QP: {why}")]
pub struct NotQpBound {
    /// What was seen, or why nothing was.
    pub why: String,
}

/// Binds a window and tries its key through another QP of the same PD, which must be refused.
///
/// # Shape
/// As [`probe`](super::probe): nothing is left behind.
/// # Errors
/// [`NotQpBound`]: the device has no windows, or the key opened the memory, or it did not come to
/// that. Give every connection a PD of its own then.
/// # Cost
/// Three connections.
pub fn prove_qp_bound_keys<D: Device>(
    device: &D,
    registry: &Registry,
    ask: &Ask,
) -> Result<QpBoundKeys, NotQpBound> {
    let ask = Ask { danger_trust_peer: false, ..*ask };
    let options = BuildOptions::default();
    let bench = Bench { device, registry, ask, options, caps: device.caps() };
    let no = |why| NotQpBound { why };
    let limits = bench.sized(FRWR).map_err(no)?;
    if limits.mechanism != "window" {
        let why = format!("{FRWR} uses {}s here, whose keys are valid in the PD", limits.mechanism);
        return Err(no(why));
    }
    steps::other_qp(&bench, FRWR).map_err(no)?;
    Ok(QpBoundKeys::seen_on(device.id()))
}

/// The strategy that binds windows.
const FRWR: &str = "frwr";
