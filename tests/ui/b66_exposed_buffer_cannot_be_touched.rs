//! A buffer cannot be used while the peer may reach it: `expose` has moved it.

use memreg_core::device::Device;
use memreg_core::{DmaBuf, Grant, MemReg, Transport};

fn promise<D: Device, S: MemReg>(transport: &mut Transport<D, S>, mut buf: DmaBuf) {
    let _exposed = transport.expose(buf, Grant::PeerWrites);
    buf[0] = 1;
}

fn main() {}
