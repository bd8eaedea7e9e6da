//! Memory that was registered for a read or write of this side has no remote key to give away.

use memreg_core::DmaBuf;
use memreg_core::transport::LocalOp;
use memreg_core::types::Rkey;

fn promise_of_a_buffer(buf: &DmaBuf) -> Rkey {
    buf.rkey()
}

fn promise_of_an_operation(op: &LocalOp) -> Rkey {
    op.rkey()
}

fn main() {}
