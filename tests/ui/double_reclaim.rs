//! Bytes come back once: `reclaim` consumes the handle.

use memreg_core::device::Device;
use memreg_core::{Exposed, MemReg, Transport};

fn promise<D: Device, S: MemReg>(transport: &mut Transport<D, S>, exposed: Exposed) {
    let _once = transport.reclaim(exposed);
    let _twice = transport.reclaim(exposed);
}

fn main() {}
