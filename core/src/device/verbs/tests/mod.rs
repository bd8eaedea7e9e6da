//! What only a real device can show, below the transport. Skipped, with a printed reason, unless
//! `MEMREG_TEST_RDMA_DEV` names a device; with `MEMREG_TEST_REQUIRE_RDMA=1` a skip is a failure.

mod access;
mod host;
mod recovery;
mod rig;
mod wait;
mod window;

pub(in crate::device) use rig::device;
