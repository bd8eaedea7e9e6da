//! A buffer cannot be used while the device fills it: `read` has moved it.

use memreg_core::device::Device;
use memreg_core::{DmaBuf, MemReg, Segment, Transport};

fn promise<D: Device, S: MemReg>(t: &mut Transport<D, S>, segment: &Segment, buf: DmaBuf) {
    let _op = t.read(segment, 0, buf);
    println!("{}", buf[0]);
}

fn main() {}
