//! A [`Control`] without an engine: records every call, and refuses the k-th on request.

use memreg_core::device::{DeviceError, FastMrKind, Verb, errno};
use memreg_core::memreg::{Control, MapError, MemReg, RegionId, SegList, SegShape, WrBatch};
use slotmap::SlotMap;
use std::ops::Range;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    Alloc(u32, FastMrKind),
    AllocWindow,
    RegMr(Range<u64>),
    Bounce(Range<u64>),
    Dereg(RegionId),
}

/// Counts down to the call that fails.
#[derive(Default)]
struct Fuse(Option<usize>);

impl Fuse {
    fn blows(&mut self) -> bool {
        match &mut self.0 {
            Some(1) => {
                self.0 = None;
                true
            }
            Some(n) => {
                *n -= 1;
                false
            }
            None => false,
        }
    }
}

#[derive(Default)]
pub(crate) struct Mock {
    regions: SlotMap<RegionId, ()>,
    pub(crate) calls: Vec<Call>,
    /// Granted by `reg_mr` and `bounce` since the last look.
    pub(crate) granted: Vec<RegionId>,
    alloc: Fuse,
    reg: Fuse,
    dereg: Fuse,
    /// Regions at once; more is a limit error.
    pub(crate) max: Option<usize>,
    /// As while there is no QP: windows are refused.
    pub(crate) no_qp: bool,
}

impl Mock {
    pub(crate) fn new() -> Mock {
        Mock::default()
    }

    /// Regions that exist.
    pub(crate) fn live(&self) -> usize {
        self.regions.len()
    }

    /// Those regions.
    pub(crate) fn regions(&self) -> impl Iterator<Item = RegionId> + '_ {
        self.regions.keys()
    }

    /// Lets the k-th `alloc_region` or `alloc_window` from now fail.
    pub(crate) fn fail_alloc(&mut self, k: usize) {
        self.alloc = Fuse(Some(k));
    }

    /// Lets the k-th `reg_mr` or `bounce` from now fail.
    pub(crate) fn fail_reg(&mut self, k: usize) {
        self.reg = Fuse(Some(k));
    }

    /// Lets the k-th `dereg` from now fail.
    pub(crate) fn fail_dereg(&mut self, k: usize) {
        self.dereg = Fuse(Some(k));
    }

    /// Ends a region as the engine would, without a call of the strategy.
    pub(crate) fn engine_ends(&mut self, region: RegionId) {
        self.regions.remove(region);
    }

    fn make(&mut self, verb: Verb) -> Result<RegionId, DeviceError> {
        if self.max.is_some_and(|m| self.regions.len() >= m) {
            return Err(DeviceError::new(verb, errno::ENOMEM));
        }
        Ok(self.regions.insert(()))
    }
}

impl Control for Mock {
    fn alloc_region(&mut self, depth: u32, kind: FastMrKind) -> Result<RegionId, DeviceError> {
        self.calls.push(Call::Alloc(depth, kind));
        if self.alloc.blows() {
            return Err(DeviceError::new(Verb::AllocMr, errno::EOPNOTSUPP));
        }
        self.make(Verb::AllocMr)
    }

    fn alloc_window(&mut self) -> Result<RegionId, DeviceError> {
        self.calls.push(Call::AllocWindow);
        if self.no_qp {
            return Err(DeviceError::new(Verb::AllocMw, errno::EAGAIN));
        }
        if self.alloc.blows() {
            return Err(DeviceError::new(Verb::AllocMw, errno::EOPNOTSUPP));
        }
        self.make(Verb::AllocMw)
    }

    fn reg_mr(&mut self, bytes: Range<u64>) -> Result<RegionId, DeviceError> {
        self.calls.push(Call::RegMr(bytes));
        if self.reg.blows() {
            return Err(DeviceError::new(Verb::RegMr, errno::ENOMEM));
        }
        self.make(Verb::RegMr).inspect(|&r| self.granted.push(r))
    }

    fn dereg(&mut self, region: RegionId) -> Result<(), DeviceError> {
        assert!(!self.calls.contains(&Call::Dereg(region)) || self.regions.contains_key(region));
        self.calls.push(Call::Dereg(region));
        if self.dereg.blows() {
            return Err(DeviceError::new(Verb::DeregMr, errno::EBUSY));
        }
        self.regions.remove(region);
        Ok(())
    }

    fn bounce(&mut self, bytes: Range<u64>) -> Result<RegionId, DeviceError> {
        self.calls.push(Call::Bounce(bytes));
        if self.reg.blows() {
            return Err(DeviceError::new(Verb::RegMr, errno::ENOMEM));
        }
        self.make(Verb::RegMr).inspect(|&r| self.granted.push(r))
    }
}

/// Maps a list of (page offset, length) at 4 KiB pages; returns the exposure's regions in order,
/// and the batch, as single wishes.
pub(crate) fn map(
    s: &mut impl MemReg,
    ctl: &mut Mock,
    list: &[(u32, u64)],
) -> Result<(Vec<RegionId>, WrBatch), MapError> {
    let mut out = WrBatch::new();
    let ids = map_into(s, ctl, list, &mut out)?;
    Ok((ids, out))
}

/// As [`map`], into a batch of the caller's, so that it can be looked at after an error.
pub(crate) fn map_into(
    s: &mut impl MemReg,
    ctl: &mut Mock,
    list: &[(u32, u64)],
    out: &mut WrBatch,
) -> Result<Vec<RegionId>, MapError> {
    let segs: Vec<_> =
        list.iter().map(|&(page_offset, len)| SegShape { page_offset, len }).collect();
    // `SegList` sums lengths; its caller checks for overflow, and so do we by keeping one huge
    // segment alone.
    ctl.granted.clear();
    let segs = SegList::new(&segs, 4096);
    s.map(ctl, &segs, out)?;
    out.spell_out_each(&segs);
    Ok(out.registered().chain(ctl.granted.iter().copied()).collect())
}
