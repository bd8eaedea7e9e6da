//! The rules: when a key is dead, what may be posted, who gets bytes back.
//!
//! The engine holds the device and everything that a strategy must not touch. It never calls the
//! strategy: what the strategy has to hear is queued in `Engine::events` and delivered by the
//! transport.
//!
//! - `ring`: what is on the send queue, and which WC retires what
//! - `keys`: which keys are live; the ledger
//! - [`buffers`]: which bytes of which buffers
//! - [`exposure`]: slots that hold bytes, and their handles
//! - `stage`: wishes into WRs, and undo
//! - `control`: what a strategy may do to regions
//! - `events`: what the strategy has not heard yet
//! - `domain`: the PD, which several transports may share

pub(crate) mod arena;
pub mod buffers;
pub(crate) mod control;
pub(crate) mod domain;
pub(crate) mod events;
pub mod exposure;
pub(crate) mod keys;
pub mod ledger;
pub(crate) mod ring;
pub(crate) mod stage;
pub mod stats;

use crate::device::{
    Caps, Device, DeviceError, DeviceErrorKind, MrKeys, Purpose, Verb, WrChain, errno,
};
use crate::mem::{DmaBuf, ExposedBytes, Fenced, LocalMr, Placement, Unmapped};
use crate::memreg::{Event, MAX_REGIONS, RegionId};
use crate::mutants::mutant;
use crate::sizing::Limits;
use crate::sync::Arc;
use crate::types::{
    Access, CqId, DeviceId, DmaAddr, Epoch, Lkey, MrId, MwId, PdId, QpId, Tick, TransportId,
};
use arena::Arena;
use buffers::{Buffers, Lent};
use domain::Domain;
use events::EventQueue;
use exposure::{Exposure, ExposureId, ExposureState, LocalId, Slots};
use keys::{KeyTable, RegionKind};
use ledger::{KeyEvent, LedgerEvent, Rule};
use ring::SendRing;
use slotmap::Key;
use smallvec::SmallVec;
use stats::Stats;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Everything of one transport but its strategy.
#[derive(Debug)]
pub(crate) struct Engine<D: Device> {
    pub(crate) device: D,
    /// The device was removed: whatever it answers to a release, the object is gone with it (B84).
    pub(crate) gone: bool,
    pub(crate) device_id: DeviceId,
    pub(crate) id: TransportId,
    pub(crate) caps: Caps,
    pub(crate) limits: Limits,
    pub(crate) domain: Arc<Domain<D>>,
    /// Other transports may be in the PD: no key may be valid in all of it.
    pub(crate) shared: bool,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    pub(crate) qp: Option<QpId>,
    pub(crate) max_inline: u32,
    pub(crate) epoch: Epoch,
    pub(crate) ring: SendRing,
    pub(crate) keys: KeyTable,
    pub(crate) slots: Slots,
    /// Exposures with staged WRs, in the order of `expose`.
    pub(crate) staged: Vec<ExposureId>,
    /// Sum of their staged WRs.
    pub(crate) staged_wrs: usize,
    /// The chain being built. Each of its WRs is in the ring already.
    pub(crate) chain: WrChain,
    /// Registrations and invalidations in it.
    pub(crate) chained_staged: usize,
    pub(crate) chained_inv: usize,
    pub(crate) chained_signaled: usize,
    /// No lease ends before this.
    pub(crate) next_lease: Option<Tick>,
    /// What the strategy has not heard yet.
    pub(crate) events: EventQueue,
    /// Rights of a buffer's local MR: local write, and parent of windows where there are any.
    pub(crate) local_access: Access,
    /// Added to every registration of data: relaxed ordering, or nothing.
    pub(crate) ordering: Access,
    /// Objects that nobody uses any more and that the device has not let go of.
    pub(crate) strays: Vec<Stray>,
    /// None, or one for each direction.
    pub(crate) arenas: Vec<Arena>,
    pub(crate) send_slots: Vec<u32>,
    pub(crate) stats: Stats,
}

/// An object that is of no use any more and that the device would not end when it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stray {
    /// Its key died with its QP.
    Window(MwId),
    /// The sink of a read on iWARP; its bytes are given up and counted.
    Sink(MrId),
    /// A CQ that has overrun, or may have.
    Cq(CqId),
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl<D: Device> Engine<D> {
    /// An engine with PD and CQ, and no QP yet.
    pub(crate) fn new(
        domain: Arc<Domain<D>>,
        shared: bool,
        caps: Caps,
        limits: Limits,
        cq: CqId,
    ) -> Engine<D> {
        let (device, pd) = (domain.device.clone(), domain.pd);
        Engine {
            device_id: device.id(),
            gone: false,
            id: TransportId(NEXT_ID.fetch_add(1, Ordering::Relaxed)),
            domain,
            shared,
            pd,
            cq,
            qp: None,
            max_inline: 0,
            epoch: Epoch(0),
            ring: SendRing::new(1, Epoch(0)),
            keys: KeyTable::new(),
            slots: Slots::new(),
            staged: vec![],
            staged_wrs: 0,
            chain: WrChain::new(),
            chained_staged: 0,
            chained_inv: 0,
            chained_signaled: 0,
            next_lease: None,
            events: EventQueue::default(),
            local_access: local_access(&caps),
            ordering: Access::empty(),
            strays: vec![],
            arenas: vec![],
            send_slots: vec![],
            stats: Stats::default(),
            caps,
            limits,
            device,
        }
    }

    /// Takes the CPU's view of every buffer and lends it to the device if `map` (a bounced exposure
    /// stays home). `buffers` keeps its ranges.
    ///
    /// # Errors
    /// The device's; every buffer is back in its place.
    #[inline]
    pub(crate) fn lend(
        &mut self,
        buffers: &mut Buffers,
        lent: &mut Vec<Lent>,
        map: bool,
    ) -> Result<(), DeviceError> {
        // Taken from the end, one by one, which needs none of a drain's care for the rest.
        buffers.bufs.reverse();
        while let Some(buf) = buffers.bufs.pop() {
            let mut one = Lent::new(buf);
            let mapped = if map { self.map_one(&mut one) } else { Ok(()) };
            lent.push(one);
            if let Err(e) = mapped {
                self.take_home(buffers, lent);
                return Err(e);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn map_one(&self, one: &mut Lent) -> Result<(), DeviceError> {
        // A placement of another device names an address that means something else here.
        let home = one.place.as_ref().filter(|p| p.device == self.device_id).map(|p| p.addr);
        let addr = self.device.dma_map(&one.bytes, home)?;
        one.mapped = Some(addr);
        if home.is_none() {
            one.place = Some(Box::new(Placement { device: self.device_id, addr, local: None }));
        }
        Ok(())
    }

    /// Ends a loan that got no further than `lent`.
    #[cold]
    fn take_home(&mut self, buffers: &mut Buffers, lent: &mut Vec<Lent>) {
        lent.extend(buffers.bufs.drain(..).rev().map(Lent::new));
        // No key was ever made for these: the proof is that nothing happened.
        self.give_back(lent, Fenced::mint, buffers);
    }

    /// Ends the device's loans and puts each buffer, with the CPU's view of it, back into its list;
    /// `proof` is asked for every one.
    pub(crate) fn give_back(
        &mut self,
        lent: &mut Vec<Lent>,
        proof: impl Fn() -> Fenced,
        buffers: &mut Buffers,
    ) {
        end_loans(&self.device, &mut self.stats, lent, proof, buffers);
    }

    /// Ends the MRs of one operation over these buffers, as must be before the loans end. Those
    /// that do not end are strays, and their buffers will not come back.
    pub(crate) fn end_once(&mut self, lent: &mut [Lent]) {
        for one in lent.iter_mut().filter(|one| !one.once.is_empty()) {
            one.once.retain(|&mr| match self.dereg_mr(mr) {
                Ok(()) => false,
                Err(e) => {
                    tracing::error!(error = %e, "an MR of one operation does not end");
                    self.strays.push(Stray::Sink(mr));
                    true
                }
            });
        }
    }

    /// A region's key is dead by `rule`; its exposure may be fenced by that.
    #[inline]
    pub(crate) fn closed(&mut self, region: RegionId, rule: Rule) {
        if let Some(id) = self.keys.kill(region, rule) {
            self.release(id, 1);
        }
    }

    /// The key of an idle region is dead. If its tags are used up, the region gets a new MR or
    /// window, so that no key of long ago ever opens anything again (D-11). If the device refuses,
    /// the strategy hears that it must be rebuilt.
    ///
    /// # Cost
    /// Two verbs, once in 255 registrations of a region.
    #[inline(never)]
    pub(crate) fn renew_if_worn(&mut self, region: RegionId) {
        if !self.keys.is_worn(region) || self.qp.is_none() {
            return;
        }
        if let Err(e) = self.renew(region) {
            tracing::warn!(error = %e, "region not renewed");
            self.events.push(region, Event::RegUnknown);
        }
    }

    /// As `renew_if_worn`, of every region that was of this exposure.
    #[cold]
    pub(crate) fn renew_worn(&mut self, of: ExposureId) {
        let Some(e) = self.slots.exposures.get(of) else { return };
        let regions: SmallVec<[RegionId; MAX_REGIONS]> = e.regions.iter().copied().collect();
        regions.into_iter().for_each(|region| self.renew_if_worn(region));
    }

    fn renew(&mut self, region: RegionId) -> Result<(), DeviceError> {
        let Some(old) = self.keys.get(region).map(|r| r.kind) else { return Ok(()) };
        match old {
            RegionKind::Fast { mr, .. } => self.dereg_mr(mr)?,
            RegionKind::Window { mw } => {
                let freed = self.device.dealloc_mw(mw);
                self.released(freed)?;
            }
            RegionKind::Ordinary { .. } | RegionKind::Bounce { .. } => return Ok(()),
        }
        self.stats.deregistrations += 1;
        self.keys.note(region, KeyEvent::Ended);
        let made = match old {
            RegionKind::Fast { depth, kind, .. } => {
                let made = self.device.alloc_fast_mr(self.pd, depth, kind);
                made.map(|k| (RegionKind::Fast { mr: k.mr, depth, kind }, k.rkey))
            }
            _ => {
                let made = self.device.alloc_mw(self.pd);
                made.map(|k| (RegionKind::Window { mw: k.mw }, k.rkey))
            }
        };
        match made {
            Ok((kind, rkey)) => {
                self.keys.renew(region, kind, rkey);
                self.stats.renewals += 1;
                Ok(())
            }
            Err(e) => {
                self.keys.remove(region);
                Err(e)
            }
        }
    }

    /// That many reasons less to keep an exposure's bytes. If none is left, its live set is empty:
    /// mints the proofs and takes the bytes back.
    #[inline(never)]
    pub(crate) fn release(&mut self, id: ExposureId, count: usize) {
        let Some(e) = self.slots.exposures.get_mut(id) else { return };
        e.open = e.open.saturating_sub(count);
        if e.open > 0 {
            return;
        }
        let Exposure { lent, buffers, .. } = &mut **e;
        let (bytes, all) = end_loans(&self.device, &mut self.stats, lent, Fenced::mint, buffers);
        self.stats.fences += u64::from(e.counted);
        e.state = if all { ExposureState::Fenced } else { ExposureState::Held };
        let abandoned = e.flag.is_abandoned();
        let exposure = id.data().as_ffi();
        self.keys.ledger.write(LedgerEvent::BytesBack { exposure, bytes });
        if abandoned {
            self.free_abandoned(id);
        }
    }

    /// Counts an exposure that exists from now on.
    pub(crate) fn count_exposure(&mut self) {
        self.stats.exposures += 1;
        self.stats.exposures_now = self.slots.exposures.len() as u64;
    }

    /// Frees a fenced slot that nobody will reclaim.
    pub(crate) fn free_abandoned(&mut self, id: ExposureId) {
        self.stats.abandoned += 1;
        self.free_exposure(id);
    }

    /// Frees a slot and counts.
    pub(crate) fn free_exposure(&mut self, id: ExposureId) {
        self.slots.free_exposure(id);
        self.stats.exposures_now = self.slots.exposures.len() as u64;
    }

    /// Ends a region: deregisters its MR, or gives its part of the bounce arena back. The key is
    /// dead afterwards.
    ///
    /// # Errors
    /// The device's; then nothing changed and the key counts as it did.
    pub(crate) fn end_region(&mut self, region: RegionId) -> Result<(), DeviceError> {
        let Some(r) = self.keys.get(region) else { return Ok(()) };
        let (kind, exposure) = (r.kind, r.exposure());
        self.keys.ending(region);
        let rule = match kind {
            RegionKind::Fast { mr, .. } | RegionKind::Ordinary { mr } => {
                self.dereg_mr(mr)?;
                self.stats.deregistrations += 1;
                Rule::Dereg
            }
            RegionKind::Window { mw } => {
                let freed = self.device.dealloc_mw(mw);
                self.released(freed)?;
                self.stats.deregistrations += 1;
                Rule::Dealloc
            }
            RegionKind::Bounce { at, len, grant } => {
                if let Some(id) = exposure {
                    self.bounce_out(id, region);
                }
                if let Some(arena) = self.arenas.iter_mut().find(|a| a.grant == grant) {
                    arena.free(at, len);
                }
                Rule::BounceReleased
            }
        };
        if rule != Rule::BounceReleased {
            self.keys.note(region, KeyEvent::Ended);
        }
        self.closed(region, rule);
        self.keys.remove(region);
        Ok(())
    }

    /// A region of the pool that the engine ends by itself: the strategy hears that it must be
    /// rebuilt.
    pub(crate) fn end_region_and_tell(
        &mut self,
        region: RegionId,
        event: Event,
    ) -> Result<(), DeviceError> {
        let pooled = self.keys.get(region).is_some_and(|r| r.kind.by_wr());
        self.end_region(region)?;
        if pooled {
            self.events.push(region, event);
        }
        Ok(())
    }

    /// Tries again to end what the device has not let go of.
    pub(crate) fn end_strays(&mut self) {
        let mut strays = std::mem::take(&mut self.strays);
        strays.retain(|&stray| {
            let ended = match stray {
                Stray::Window(mw) => self.device.dealloc_mw(mw),
                Stray::Sink(mr) => self.device.dereg_mr(mr),
                Stray::Cq(cq) => self.device.destroy_cq(cq),
            };
            self.released(ended).is_err()
        });
        self.strays = strays;
    }

    /// Sinks of reads that are still registered: a peer may write into them (rule 4).
    pub(crate) fn open_sinks(&self) -> usize {
        self.strays.iter().filter(|s| matches!(s, Stray::Sink(_))).count()
    }

    /// Ends an MR.
    pub(crate) fn dereg_mr(&mut self, mr: MrId) -> Result<(), DeviceError> {
        let ended =
            self.device.dereg_mr(mr).or_else(|e| if mutant!("D-02") { Ok(()) } else { Err(e) });
        self.released(ended)
    }

    /// The outcome of a release: an object of a removed device is released whatever the device
    /// says.
    pub(crate) fn released(&mut self, r: Result<(), DeviceError>) -> Result<(), DeviceError> {
        match r {
            Err(e) if e.kind() == DeviceErrorKind::Gone && (self.gone || self.device.is_gone()) => {
                self.gone = true;
                self.stats.releases_without_device += 1;
                Ok(())
            }
            other => other,
        }
    }

    /// Slots of the send queue that nothing has a claim on.
    pub(crate) fn free_slots(&self) -> usize {
        let claimed = self.ring.outstanding() + self.staged_wrs + self.keys.inv_slots() + 1;
        self.ring.depth().saturating_sub(claimed)
    }

    /// The local MR of a lent buffer, made anew unless the buffer carries one of this very PD.
    pub(crate) fn local_mr(&mut self, lent: &mut Lent) -> Result<(MrId, Lkey), DeviceError> {
        if let Some(local) = lent.local(&self.domain.queue) {
            self.stats.local_hits += 1;
            return Ok((local.mr, local.lkey));
        }
        let Some(place) = lent.place.as_mut() else {
            return Err(DeviceError::new(Verb::RegMr, errno::EFAULT));
        };
        let len = lent.bytes.len() as u64;
        // Local rights only: no peer gets in through it, so it may stay registered.
        let access = match lent.bytes.is_read_only() {
            true => self.caps.rights_for(Purpose::Source),
            false => self.local_access,
        } | self.ordering;
        let MrKeys { mr, lkey, .. } = self.device.reg_mr(self.pd, place.addr, len, access)?;
        self.stats.local_registrations += 1;
        self.domain.registered(mr);
        let owner = Arc::clone(&self.domain.queue);
        place.local = Some(LocalMr { mr, lkey, owner, memory: lent.bytes.lifetime() });
        Ok((mr, lkey))
    }

    /// An MR for one RDMA READ into a range of a lent buffer: on iWARP the peer's response comes as
    /// an RDMA WRITE, so the sink must grant remote write. It covers the bytes of the read alone
    /// and ends with it.
    pub(crate) fn sink_mr(
        &mut self,
        lent: &mut Lent,
        range: &Range<usize>,
    ) -> Result<Lkey, DeviceError> {
        let lkey = self.mr_once(lent, range, Purpose::ReadSink)?;
        self.stats.sink_registrations += 1;
        Ok(lkey)
    }

    /// An MR for one operation over a range of a lent buffer that it needs, where the device has no
    /// room for the whole buffer. It ends with the operation.
    pub(crate) fn range_mr(
        &mut self,
        lent: &mut Lent,
        range: &Range<usize>,
    ) -> Result<Lkey, DeviceError> {
        let purpose = if lent.bytes.is_read_only() { Purpose::Source } else { Purpose::Receive };
        let lkey = self.mr_once(lent, range, purpose)?;
        self.stats.range_registrations += 1;
        Ok(lkey)
    }

    fn mr_once(
        &mut self,
        lent: &mut Lent,
        range: &Range<usize>,
        purpose: Purpose,
    ) -> Result<Lkey, DeviceError> {
        let base = lent.mapped.ok_or(DeviceError::new(Verb::RegMr, errno::EFAULT))?;
        let addr = DmaAddr(base.0 + range.start as u64);
        let access = self.caps.rights_for(purpose) | self.ordering;
        let keys = self.device.reg_mr(self.pd, addr, range.len() as u64, access)?;
        lent.once.push(keys.mr);
        Ok(keys.lkey)
    }

    /// Deregisters MRs of buffers that are gone, at most `budget` of them.
    pub(crate) fn drain_local_queue(&mut self, budget: usize) {
        for _ in 0..budget {
            let Some((mr, memory)) = self.domain.queue.pop() else { return };
            if !mutant!("end-first") {
                self.domain.ending(mr);
            }
            if let Err(e) = self.dereg_mr(mr) {
                tracing::warn!(error = %e, "a local MR stays registered; tried again later");
                self.domain.registered(mr);
                self.domain.queue.push(mr, memory);
                return;
            }
            if mutant!("end-first") {
                self.domain.ending(mr);
            }
        }
    }

    /// Ends a read or write whose WRs are all retired: its buffers are nobody else's any more.
    pub(crate) fn finish_local(&mut self, id: LocalId) {
        let Some(op) = self.slots.locals.get_mut(id) else { return };
        let mut lent = std::mem::take(&mut op.lent);
        self.end_once(&mut lent);
        let Some(op) = self.slots.locals.get_mut(id) else { return };
        end_loans(&self.device, &mut self.stats, &mut lent, Fenced::mint, &mut op.buffers);
        op.lent = lent;
        op.done = true;
        if op.flag.is_abandoned() {
            self.slots.free_local(id);
        }
    }
}

/// As `give_back`. Answers the bytes of the buffers that are back, and whether all are. What the
/// device does not let go of may still be reached: it is leaked on purpose, and counted.
#[inline(always)]
fn end_loans<D: Device>(
    device: &D,
    stats: &mut Stats,
    lent: &mut Vec<Lent>,
    proof: impl Fn() -> Fenced,
    buffers: &mut Buffers,
) -> (u64, bool) {
    let (mut bytes, mut all) = (0, true);
    // As in `lend`.
    lent.reverse();
    while let Some(one) = lent.pop() {
        match end_loan(device, one, proof()) {
            Ok(buf) => {
                bytes += buf.len() as u64;
                buffers.bufs.push(buf);
            }
            Err(kept) => {
                all = false;
                stats.bytes_leaked += leak(kept);
                buffers.forget(buffers.bufs.len());
            }
        }
    }
    (bytes, all)
}

/// What the device does not let go of.
type Kept = (ExposedBytes, Option<Box<Placement>>, Option<DeviceError>);

#[inline(always)]
fn end_loan<D: Device>(device: &D, lent: Lent, proof: Fenced) -> Result<DmaBuf, Kept> {
    let Lent { bytes, place, mapped, once } = lent;
    if !once.is_empty() {
        return Err((bytes, place, None));
    }
    let unmapped = match mapped {
        None => Ok(Unmapped::after(proof)),
        Some(addr) => device.dma_unmap(&bytes, addr, proof),
    };
    match unmapped {
        Ok(unmapped) => bytes.into_buf(unmapped, place).map_err(|(bytes, p)| (bytes, p, None)),
        Err((e, _)) => Err((bytes, place, Some(e))),
    }
}

/// Leaks bytes that may still be reached. Answers how many.
#[cold]
fn leak((bytes, place, why): Kept) -> u64 {
    let len = bytes.len() as u64;
    if let Some(e) = why {
        tracing::error!(error = %e, len, "device keeps a mapping; its bytes are leaked");
    }
    std::mem::forget((bytes, place));
    len
}

/// Parents of windows need one right more; nobody else gets it.
fn local_access(caps: &Caps) -> Access {
    caps.rights_for(if caps.has_windows() { Purpose::WindowParent } else { Purpose::Receive })
}
