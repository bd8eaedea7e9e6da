//! Thin drivers for those who have nothing else to do than wait.
//!
//! A transport does nothing unless polled, and the software device nothing unless stepped. These
//! functions do both. On hardware [`settle`] polls and never steps.

use crate::device::{Device, DeviceError};
use crate::memreg::MemReg;
use crate::transport::Transport;
use crate::transport::error::ConnectError;
use crate::types::Tick;

/// Something that moves when it is driven.
pub trait Driven {
    /// Steps the device, if it is one that needs it, and polls; true if anything happened.
    ///
    /// # Errors
    /// As [`Transport::poll`].
    fn drive(&mut self, now: Tick) -> Result<bool, DeviceError>;
}

impl<D: Device, S: MemReg> Driven for Transport<D, S> {
    fn drive(&mut self, now: Tick) -> Result<bool, DeviceError> {
        let stepped = self.device().step();
        Ok(self.poll(now)?.any() || stepped)
    }
}

/// Drives all parties until a whole round changes nothing; returns the rounds.
///
/// # Errors
/// The first one of any party.
/// # Cost
/// Bounded by the work that is posted: a round without work ends it.
pub fn settle(now: Tick, parties: &mut [&mut dyn Driven]) -> Result<usize, DeviceError> {
    let mut rounds = 0;
    loop {
        let mut any = false;
        for p in parties.iter_mut() {
            any |= p.drive(now)?;
        }
        if !any {
            return Ok(rounds);
        }
        rounds += 1;
    }
}

/// Connects two transports that this program holds both ends of.
///
/// # Errors
/// [`ConnectError`] of either side.
pub fn connect_pair<D1, S1, D2, S2>(
    a: &mut Transport<D1, S1>,
    b: &mut Transport<D2, S2>,
) -> Result<(), ConnectError>
where
    D1: Device,
    S1: MemReg,
    D2: Device,
    S2: MemReg,
{
    let (ea, eb) = (a.endpoint()?, b.endpoint()?);
    a.connect(eb)?;
    b.connect(ea)
}
