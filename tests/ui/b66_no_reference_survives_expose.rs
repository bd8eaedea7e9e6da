//! A reference into a buffer cannot be kept across `expose`.

use memreg_core::device::Device;
use memreg_core::{DmaBuf, Grant, MemReg, Transport};

fn promise<D: Device, S: MemReg>(transport: &mut Transport<D, S>, mut buf: DmaBuf) {
    let kept: &mut [u8] = &mut buf;
    let _exposed = transport.expose(buf, Grant::PeerWrites);
    kept[0] = 1;
}

fn main() {}
