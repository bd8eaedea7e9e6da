//! Bytes that a device may change are copied in and out, never borrowed.

use memreg_core::mem::ExposedBytes;

fn promise(bytes: &ExposedBytes) -> &[u8] {
    bytes
}

fn main() {}
