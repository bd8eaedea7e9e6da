//! The strategies behind one type: [`Strategy`], dispatched without a vtable, and the [`Registry`]
//! that knows them by name.
//!
//! [`frwr`] registers by work request and is the one to use; [`fmr`] registers by verb where the
//! device has no such work requests; [`physical`] copies through memory that the peer may keep for
//! ever; [`guarded`] keeps a plugin from doing more harm than losing its own connection.
#![forbid(unsafe_code)]

pub mod fmr;
pub mod frwr;
pub mod guarded;
pub mod physical;
pub mod registry;
mod shape;

#[cfg(test)]
mod mock;

pub use fmr::Fmr;
pub use frwr::Frwr;
pub use guarded::Guarded;
pub use physical::Physical;
pub use registry::{BuildError, BuildOptions, Known, Registry, RegistryError};

use enum_dispatch::enum_dispatch;
use memreg_core::device::{Caps, DeviceError};
use memreg_core::memreg::{
    Control, Event, MapError, MemReg, Poison, RegionId, Reject, SegList, WrBatch,
};
use memreg_core::sizing::{Ask, Limits, SizeError};
use std::fmt;

/// Tells `enum_dispatch` the methods of the trait, which it can learn within this crate only.
///
/// The impl that it writes names `MemReg` as it is in scope at the enum: the trait of
/// `memreg_core`. So a signature here that drifts from the trait's does not compile; this trait
/// itself is never used. It stands above the enum because the macro writes the impl where it meets
/// the second of the two.
mod teach {
    use super::*;

    #[enum_dispatch]
    #[allow(dead_code, reason = "read by the macro, not by the compiler")]
    trait MemReg: Send {
        fn name(&self) -> &'static str;
        fn check(&self, caps: &Caps) -> Result<(), Reject>;
        fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError>;
        fn fill(&mut self, ctl: &mut dyn Control, regions: usize) -> Result<(), DeviceError>;
        fn map(
            &mut self,
            ctl: &mut dyn Control,
            segs: &SegList<'_>,
            out: &mut WrBatch,
        ) -> Result<(), MapError>;
        fn unmap(
            &mut self,
            ctl: &mut dyn Control,
            live: &[RegionId],
            out: &mut WrBatch,
        ) -> Result<(), Poison>;
        fn on_event(&mut self, region: RegionId, event: Event) -> Result<(), Poison>;
        fn on_events(&mut self, regions: &[RegionId], event: Event) -> Result<(), Poison>;
        fn recover(&mut self, ctl: &mut dyn Control, budget: usize) -> Result<usize, DeviceError>;
        fn on_drained(&mut self);
    }
}

/// Any strategy, chosen at run time.
///
/// # Cost
/// One predictable branch a call; only a plugin adds a vtable.
#[enum_dispatch(MemReg)]
pub enum Strategy {
    /// Fast registration work requests.
    Frwr(Frwr),
    /// Ordinary registrations by verb.
    Fmr(Fmr),
    /// Copies through a bounce arena.
    Physical(Physical),
    /// A strategy of another crate.
    Plugin(Guarded),
}

impl fmt::Debug for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Strategy({})", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::Mock;
    use memreg_core::memreg::SegShape;

    #[test]
    fn the_enum_is_a_strategy_of_core() {
        fn name_of(s: &dyn memreg_core::MemReg) -> &'static str {
            s.name()
        }
        assert_eq!(name_of(&Strategy::from(Frwr::new())), "frwr");
        assert_eq!(name_of(&Strategy::from(Fmr::new())), "fmr");
        assert_eq!(name_of(&Strategy::from(Physical::new(true))), "physical");
    }

    #[test]
    fn b46_zero_length_is_the_same_error_from_all_three() {
        let lists: [&[u64]; 3] = [&[], &[0], &[4096, 0, 4096]];
        for lens in lists {
            let segs: Vec<_> = lens.iter().map(|&len| SegShape { page_offset: 0, len }).collect();
            for mut s in [
                Strategy::from(Frwr::new()),
                Strategy::from(Fmr::new()),
                Strategy::from(Physical::new(true)),
            ] {
                s.open(&Caps::default(), &Ask::default()).unwrap();
                let (mut ctl, mut out) = (Mock::new(), WrBatch::new());
                let e = s.map(&mut ctl, &SegList::new(&segs, 4096), &mut out).unwrap_err();
                assert_eq!(e, MapError::Other("length is zero"), "{s:?} {lens:?}");
                assert!(out.wishes().is_empty() && ctl.calls.is_empty());
            }
        }
    }
}
