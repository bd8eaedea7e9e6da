//! There is one owner of a buffer's bytes.

use memreg_core::DmaBuf;

fn promise(buf: &DmaBuf) -> DmaBuf {
    DmaBuf::clone(buf)
}

fn main() {}
