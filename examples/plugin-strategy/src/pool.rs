//! The regions of one connection: idle, out, or condemned.

use memreg_core::device::{DeviceError, DeviceErrorKind, FastMrKind};
use memreg_core::memreg::{Control, MapError, RegionId};
use std::collections::{BTreeMap, VecDeque};

/// Regions of one depth.
///
/// # Shape
/// idle → (`take`) out → (`give_back`) idle, or (`condemn`) condemned → (`rebuild`) a new idle one.
/// A region that the pool does not have changes nothing, and so does news that comes twice.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    depth: u32,
    limit: usize,
    regions: BTreeMap<RegionId, State>,
    /// First in, first out: a late user of an old key is refused for as long as possible.
    idle: VecDeque<RegionId>,
    condemned: VecDeque<RegionId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    Out,
    Condemned,
}

impl Pool {
    /// An empty pool of at most `limit` regions, each of `depth` page-list entries.
    pub(crate) fn new(depth: u32, limit: usize) -> Pool {
        Pool { depth, limit, ..Pool::default() }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    pub(crate) fn has(&self, region: RegionId) -> bool {
        self.regions.contains_key(&region)
    }

    /// Makes regions until `count` are idle or the limit is reached; true if that many are idle.
    pub(crate) fn grow(
        &mut self,
        ctl: &mut dyn Control,
        count: usize,
    ) -> Result<bool, DeviceError> {
        while self.idle.len() < count {
            if self.regions.len() >= self.limit {
                return Ok(false);
            }
            self.make(ctl)?;
        }
        Ok(true)
    }

    /// As [`grow`](Pool::grow); what may be mended by waiting is said to be so.
    pub(crate) fn reserve(&mut self, ctl: &mut dyn Control, count: usize) -> Result<(), MapError> {
        match self.grow(ctl, count) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.exhausted()),
            Err(e) => {
                let some_return = self.idle.len() < self.regions.len();
                Err(if is_full(&e) && some_return { self.exhausted() } else { e.into() })
            }
        }
    }

    pub(crate) fn exhausted(&self) -> MapError {
        let condemned = self.condemned.len();
        MapError::NoRegion { condemned, busy: self.regions.len() - self.idle.len() - condemned }
    }

    pub(crate) fn take(&mut self) -> Option<RegionId> {
        let region = self.idle.pop_front()?;
        self.regions.insert(region, State::Out);
        Some(region)
    }

    /// The key of a region that was out is dead.
    pub(crate) fn give_back(&mut self, region: RegionId) {
        if let Some(state) = self.regions.get_mut(&region)
            && *state == State::Out
        {
            *state = State::Idle;
            self.idle.push_back(region);
        }
    }

    /// Nobody knows the state of the region's key: it is not used again.
    pub(crate) fn condemn(&mut self, region: RegionId) {
        let Some(state) = self.regions.get_mut(&region) else { return };
        let was = std::mem::replace(state, State::Condemned);
        if was == State::Idle {
            self.idle.retain(|&r| r != region);
        }
        if was != State::Condemned {
            self.condemned.push_back(region);
        }
    }

    /// Replaces at most `budget` condemned regions by new ones.
    pub(crate) fn rebuild(
        &mut self,
        ctl: &mut dyn Control,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        let mut rebuilt = 0;
        while rebuilt < budget {
            let Some(&region) = self.condemned.front() else { break };
            // To the back if it will not end: the others may.
            self.condemned.rotate_left(1);
            ctl.dereg(region)?;
            self.condemned.pop_back();
            self.regions.remove(&region);
            self.make(ctl)?;
            rebuilt += 1;
        }
        Ok(rebuilt)
    }

    /// Ends the region that has been idle longest; false if none is.
    pub(crate) fn end_idle(&mut self, ctl: &mut dyn Control) -> Result<bool, DeviceError> {
        let Some(&region) = self.idle.front() else { return Ok(false) };
        ctl.dereg(region)?;
        self.idle.pop_front();
        self.regions.remove(&region);
        Ok(true)
    }

    fn make(&mut self, ctl: &mut dyn Control) -> Result<(), DeviceError> {
        let region = ctl.alloc_region(self.depth, FastMrKind::Pages)?;
        self.regions.insert(region, State::Idle);
        self.idle.push_back(region);
        Ok(())
    }
}

/// Whether the device has no room for one more region now.
pub(crate) fn is_full(e: &DeviceError) -> bool {
    matches!(e.kind(), DeviceErrorKind::Limit | DeviceErrorKind::OutOfMemory)
}
