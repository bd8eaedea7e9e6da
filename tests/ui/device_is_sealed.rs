//! Devices answer for memory safety, so only the core crate can make one.

struct Mine;

impl memreg_core::device::sealed::Sealed for Mine {}

fn main() {}
