//! Transports on a real device: every built-in strategy, in a loop of one device with itself.
//!
//! Skipped, with a printed reason, unless `MEMREG_TEST_RDMA_DEV` names a device; with
//! `MEMREG_TEST_REQUIRE_RDMA=1` a skip is a failure. `tests/rdma/rxe-vm` has a device for those who
//! have none.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "hardware runs by itself: tests must wait for it")]

mod cm;
mod conformance;
mod cost;
mod faults;
mod host;
mod life;
mod pair;
mod peer_process;
mod shared_pd;
mod threads;
mod transfers;
