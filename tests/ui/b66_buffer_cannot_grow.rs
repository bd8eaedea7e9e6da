//! A buffer has the length it was made with: nothing can push to it or resize it.

use memreg_core::DmaBuf;

fn promise(mut buf: DmaBuf) {
    buf.push(1);
}

fn promise_resize(mut buf: DmaBuf) {
    buf.resize(100, 0);
}

fn main() {}
