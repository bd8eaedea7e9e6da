//! What a strategy may do to regions, and only within the call it was given it for.

use super::Engine;
use super::buffers::Place;
use super::exposure::{Exposure, ExposureId, Part};
use super::keys::{KeyState, RegionKind};
use crate::device::{Device, DeviceError, FastMrKind, Verb, errno};
use crate::memreg::{Control, MAX_REGIONS, RegionId};
use crate::types::{Access, DmaAddr};
use smallvec::SmallVec;
use std::ops::Range;

/// Which call of the strategy is running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    /// `fill` or `recover`.
    Pool,
    /// `map` of this exposure.
    Map(ExposureId),
    /// `unmap` of this exposure.
    Unmap(ExposureId),
}

/// The [`Control`] of one call.
pub(crate) struct Ctl<'a, D: Device> {
    pub(crate) eng: &'a mut Engine<D>,
    pub(crate) scope: Scope,
    /// Regions of the exposure that this call has ended.
    pub(crate) ended: SmallVec<[RegionId; MAX_REGIONS]>,
    /// Set when a region was named twice.
    pub(crate) twice: bool,
}

impl<'a, D: Device> Ctl<'a, D> {
    pub(crate) fn new(eng: &'a mut Engine<D>, scope: Scope) -> Ctl<'a, D> {
        Ctl { eng, scope, ended: SmallVec::new(), twice: false }
    }

    fn may_dereg(&self, region: RegionId) -> bool {
        let Some(r) = self.eng.keys.get(region) else { return true };
        match self.scope {
            Scope::Pool => r.exposure().is_none() || r.state == KeyState::Unknown,
            Scope::Map(id) => match r.exposure() {
                None => true,
                Some(e) => e == id && !matches!(r.state, KeyState::Staged),
            },
            Scope::Unmap(id) => r.exposure() == Some(id),
        }
    }

    /// The exposure of a `map`, and the bytes checked to lie in it.
    fn mapping(&self, bytes: &Range<u64>) -> Result<ExposureId, DeviceError> {
        let invalid = DeviceError::new(Verb::RegMr, errno::EINVAL);
        let Scope::Map(id) = self.scope else { return Err(invalid) };
        let e = self.eng.slots.exposures.get(id).ok_or(invalid)?;
        let inside = bytes.start < bytes.end && bytes.end <= e.len();
        let room = e.regions.len() < MAX_REGIONS;
        if inside && room { Ok(id) } else { Err(invalid) }
    }

    /// Where the device sees `bytes`, if they lie in one range, and the rights of the exposure.
    fn one_range(&self, id: ExposureId, bytes: Range<u64>) -> Option<(DmaAddr, Access)> {
        let e = self.eng.slots.exposures.get(id)?;
        let mut parts = e.buffers.spans(last_place(e), bytes);
        let (i, span) = parts.next()?;
        let base = e.lent.get(i)?.mapped?;
        let alone = parts.next().is_none();
        alone.then(|| (DmaAddr(base.0 + span.start as u64), e.grant.access() | self.eng.ordering))
    }

    fn granted(&mut self, id: ExposureId, region: RegionId, bytes: Range<u64>) {
        if let Some(e) = self.eng.slots.exposures.get_mut(id) {
            let at = last_place(e).seek(&e.buffers.pieces, bytes.start);
            e.regions.push(region);
            e.parts.push(Part { bytes, at });
            e.open += 1;
        }
    }
}

/// Where the part that was granted last begins: the next one is not far.
fn last_place(e: &Exposure) -> Place {
    e.parts.last().map(|p| p.at).unwrap_or_default()
}

impl<D: Device> Control for Ctl<'_, D> {
    fn alloc_region(&mut self, depth: u32, kind: FastMrKind) -> Result<RegionId, DeviceError> {
        if matches!(self.scope, Scope::Unmap(_)) || self.eng.shared {
            return Err(DeviceError::new(Verb::AllocMr, errno::EINVAL));
        }
        let keys = self.eng.device.alloc_fast_mr(self.eng.pd, depth, kind)?;
        let kind = RegionKind::Fast { mr: keys.mr, depth, kind };
        Ok(self.eng.keys.add_dead(kind, keys.rkey))
    }

    fn alloc_window(&mut self) -> Result<RegionId, DeviceError> {
        let refused = |errno| Err(DeviceError::new(Verb::AllocMw, errno));
        if matches!(self.scope, Scope::Unmap(_)) {
            return refused(errno::EINVAL);
        }
        if self.eng.qp.is_none() {
            return refused(errno::EAGAIN);
        }
        let keys = self.eng.device.alloc_mw(self.eng.pd)?;
        Ok(self.eng.keys.add_dead(RegionKind::Window { mw: keys.mw }, keys.rkey))
    }

    fn reg_mr(&mut self, bytes: Range<u64>) -> Result<RegionId, DeviceError> {
        let id = self.mapping(&bytes)?;
        let invalid = DeviceError::new(Verb::RegMr, errno::EINVAL);
        if self.eng.shared {
            return Err(invalid);
        }
        let len = bytes.end - bytes.start;
        let (addr, access) = self.one_range(id, bytes.clone()).ok_or(invalid)?;
        let keys = self.eng.device.reg_mr(self.eng.pd, addr, len, access)?;
        let kind = RegionKind::Ordinary { mr: keys.mr };
        let region = self.eng.keys.add_live(kind, keys.rkey, id);
        self.eng.stats.registrations += 1;
        self.granted(id, region, bytes);
        Ok(region)
    }

    fn dereg(&mut self, region: RegionId) -> Result<(), DeviceError> {
        if self.ended.contains(&region) {
            self.twice = true;
            return Ok(());
        }
        if !self.may_dereg(region) {
            return Err(DeviceError::new(Verb::DeregMr, errno::EINVAL));
        }
        let of_exposure = self.eng.keys.get(region).is_some_and(|r| r.exposure().is_some());
        self.eng.end_region(region)?;
        if of_exposure {
            self.ended.push(region);
        }
        Ok(())
    }

    fn bounce(&mut self, bytes: Range<u64>) -> Result<RegionId, DeviceError> {
        let id = self.mapping(&bytes)?;
        let region = self.eng.bounce_in(id, bytes.clone())?;
        self.granted(id, region, bytes);
        Ok(region)
    }
}
