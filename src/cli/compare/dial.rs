//! Connecting to a peer in another process.

use super::pair::{Pair, PairError};
use crate::Transport;
use crate::cli::clock;
use crate::cli::serve::wire::Terms;
use anyhow::anyhow;
use memreg_core::device::AnyDevice;
use memreg_core::device::verbs::cm::{Connecting, Data};
use memreg_core::transport::OpenOptions;
use memreg_core::types::Tick;
use memreg_strategies::Strategy;
use std::net::SocketAddr;
use std::time::Duration;

impl Pair {
    /// Opens an owner and connects it to `memreg serve` at that address, for operations of at
    /// most so many bytes.
    pub fn dial(
        device: AnyDevice,
        options: &OpenOptions,
        strategy: Strategy,
        to: SocketAddr,
        op_bytes_most: u64,
    ) -> Result<Pair, PairError> {
        let mut owner = Transport::open(device, strategy, options)?;
        let terms = Terms { op_bytes_most }.to_wire();
        let limit = u64::try_from(LIMIT.as_nanos()).unwrap_or(u64::MAX);
        let mut c = Connecting::start(&owner, to, Data::Hello(&terms), limit)?;
        let start = clock::now();
        loop {
            let now = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            if let Some(connected) = c.poll(&mut owner, Tick(now))? {
                let answered = Terms::from_wire(&connected.data);
                answered.map_err(|why| PairError::Answer(anyhow!("{to}: {why}")))?;
                return Ok(Pair::across(owner));
            }
            c.wait(Duration::from_millis(10))?;
        }
    }
}

/// For address, path and answer together.
const LIMIT: Duration = Duration::from_secs(10);
