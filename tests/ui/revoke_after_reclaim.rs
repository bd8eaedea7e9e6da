//! A handle names nothing once its bytes are back.

use memreg_core::device::Device;
use memreg_core::transport::NoReply;
use memreg_core::{Exposed, MemReg, Transport};

fn promise<D: Device, S: MemReg>(transport: &mut Transport<D, S>, exposed: Exposed) {
    let _bytes = transport.reclaim(exposed);
    let _ = transport.revoke(&exposed, NoReply::Unmarked);
}

fn main() {}
