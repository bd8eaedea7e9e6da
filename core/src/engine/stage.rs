//! From wishes to WRs: checks a batch, stages it, builds the chain, and takes back what was not
//! posted.

use super::Engine;
use super::buffers::{Lent, Place};
use super::exposure::{Exposure, ExposureId, ExposureState, LocalId, Part};
use super::keys::{KeyState, Region, RegionKind};
use super::ledger::Rule;
use super::ring::{RingOp, Run};
use crate::device::{
    Bind, Device, DeviceError, DeviceErrorKind, FastMrKind, PageEntry, Payload, PostError, Verb,
    WindowRun, Wr, WrChain, WrOp, errno,
};
use crate::memreg::{Event, MAX_REGIONS, RegionId, SegList, Wish, WrBatch};
use crate::mutants::mutant;
use crate::types::{Access, DmaAddr, Segment};
use smallvec::SmallVec;
use std::ops::Range;

/// Why a batch cannot be staged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BadMap {
    /// What the strategy did wrong.
    Lie(&'static str),
    /// The device refused what the batch needs.
    Device(DeviceError),
}

const NOT_COVERED: BadMap = BadMap::Lie("strategy did not cover the bytes exactly once");

const TOO_MUCH: &str = "strategy asked one region for more than it can describe";

/// How a post ended that did not take every WR.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PostFailure {
    /// The device took nothing for lack of slots; the chain is undone and its registrations are
    /// staged again.
    Full(PostError),
    /// Anything else: the connection cannot be trusted with more.
    Broken(PostError),
}

impl<D: Device> Engine<D> {
    /// Checks that the batch and the regions granted in `map` cover the exposure exactly once and
    /// in order, and stages the registrations.
    ///
    /// # Errors
    /// What the strategy did wrong. Call [`undo_map`](Engine::undo_map) then.
    #[inline]
    pub(crate) fn stage_batch(
        &mut self,
        id: ExposureId,
        segs: &SegList<'_>,
        batch: &mut WrBatch,
    ) -> Result<(), BadMap> {
        if batch.is_all() {
            return Err(BadMap::Lie("strategy wished for an invalidation in map"));
        }
        if !batch.each().is_empty() {
            if self.stage_each(id, batch.each()) {
                // One window on each piece: nothing is left to check.
                return Ok(());
            }
            batch.spell_out_each(segs);
        }
        self.stage_listed(id, segs, batch)
    }

    /// Checks and stages wishes that stand one by one.
    fn stage_listed(
        &mut self,
        id: ExposureId,
        segs: &SegList<'_>,
        batch: &WrBatch,
    ) -> Result<(), BadMap> {
        let before = self.slots.exposures.get(id).map_or(0, |e| e.regions.len());
        let staged = self.stage_wishes(id, segs, batch.wishes());
        let Some(e) = self.slots.exposures.get_mut(id) else { return Err(NOT_COVERED) };
        // Also after an error: those that were staged must be undone.
        let count = e.regions.len() - before;
        e.open += count;
        e.staged += count;
        self.staged_wrs += count;
        staged?;
        // Usually the strategy wished in order and granted nothing by a verb: then the segments
        // stand as they were staged.
        let mut as_staged = e.parts.len() == batch.wishes().len();
        if !e.parts.is_sorted_by_key(|p| p.bytes.start) {
            let parts = e.parts.drain(..).zip(e.regions.drain(..));
            let mut parts: SmallVec<[(Part, RegionId); MAX_REGIONS]> = parts.collect();
            parts.sort_unstable_by_key(|(p, _)| p.bytes.start);
            (e.parts, e.regions) = parts.into_iter().unzip();
            as_staged = false;
        }
        let mut at = 0;
        for (p, region) in e.parts.iter().zip(&e.regions) {
            // What was just staged is this exposure's.
            let granted =
                as_staged || self.keys.get(*region).is_some_and(|r| r.exposure() == Some(id));
            if (p.bytes.start != at || !granted) && !mutant!("rule-6-map") {
                return Err(NOT_COVERED);
            }
            at = p.bytes.end;
        }
        let whole = at == segs.total() || mutant!("rule-6-map");
        if !whole || e.parts.len() > MAX_REGIONS {
            return Err(NOT_COVERED);
        }
        if !as_staged || mutant!("D-04") {
            self.fill_segments(id);
        }
        Ok(())
    }

    /// Stages windows on the pieces, one on each, in step. False, and nothing is staged, if that is
    /// not what these regions and pieces allow: `stage_wishes` then says why, or does what it
    /// takes.
    #[inline(never)]
    fn stage_each(&mut self, id: ExposureId, each: &[RegionId]) -> bool {
        let Some(e) = self.slots.exposures.get_mut(id) else { return false };
        let Exposure { buffers, lent, regions, names, segments, grant, .. } = &mut **e;
        let count = buffers.count();
        if !self.arenas.is_empty() || !regions.is_empty() || each.len() != count {
            return false;
        }
        let (grant, epoch) = (*grant, self.epoch);
        let (mut staged, mut found, mut worn) = (0, 0, false);
        for (pieces, lent) in buffers.of_each().zip(&*lent) {
            if lent.local(&self.domain.queue).is_none() {
                break;
            }
            let of_buffer = staged..staged + pieces.len();
            let Some(each) = each.get(of_buffer.clone()) else { break };
            let Some(names) = names.get_mut(of_buffer.clone()) else { break };
            let Some(segments) = segments.get_mut(of_buffer) else { break };
            let (more, last_tag) = self.keys.stage_in_step(id, each, names);
            (staged, worn) = (staged + more, worn | last_tag);
            if more < each.len() {
                break;
            }
            let base = lent.mapped.map_or(0, |a| a.0);
            for ((range, name), segment) in pieces.iter().zip(names).zip(segments) {
                let (addr, len) = (base + range.start as u64, (range.end - range.start) as u64);
                *segment = Segment { rkey: name.rkey, addr, len, grant, epoch };
            }
            found += 1;
        }
        if staged < count {
            self.keys.unstage_in_step(each.get(..staged).unwrap_or_default());
            return false;
        }
        self.keys.staged_in_step(id, staged, worn);
        regions.extend_from_slice(each);
        e.open += count;
        e.staged += count;
        self.staged_wrs += count;
        self.stats.local_hits += found;
        true
    }

    /// Checks each wish and stages it: a part and a segment of the exposure.
    fn stage_wishes(
        &mut self,
        id: ExposureId,
        segs: &SegList<'_>,
        wishes: &[Wish],
    ) -> Result<(), BadMap> {
        let lie = |what| Err(BadMap::Lie(what));
        if !wishes.is_empty() && !self.arenas.is_empty() {
            return lie("strategy wished to register memory that is not lent to the device");
        }
        // `parent`: the buffer whose MR was found or made last.
        let (mut at, mut next, mut parent) = (Place::default(), 0, None);
        loop {
            let Some(e) = self.slots.exposures.get_mut(id) else { return Err(NOT_COVERED) };
            let Exposure { buffers, lent, regions, parts, segments, grant, .. } = &mut **e;
            let without_parent = loop {
                let Some(wish) = wishes.get(next) else { return Ok(()) };
                let Wish::Register(region, bytes) = wish else {
                    return lie("strategy wished for an invalidation in map");
                };
                let Some(staging) = self.keys.staging(*region) else {
                    return lie("strategy named an unknown region");
                };
                if bytes.start >= bytes.end || bytes.end > segs.total() {
                    return lie("strategy named bytes outside the exposure");
                }
                at = at.seek(&buffers.pieces, bytes.start);
                let Some(piece) = buffers.pieces.get(at.piece) else { return Err(NOT_COVERED) };
                let buf = buffers.buf_of(at.piece);
                let Some(lent) = lent.get(buf) else { return Err(NOT_COVERED) };
                if let RegionKind::Window { .. } = staging.region().kind {
                    if bytes.end - at.start > piece.len() as u64 {
                        return lie(TOO_MUCH);
                    }
                    if lent.local(&self.domain.queue).is_none() {
                        break buf;
                    }
                    self.stats.local_hits += u64::from(parent != Some(buf));
                    parent = Some(buf);
                } else {
                    fits_page_list(segs, bytes, staging.region().kind).map_err(BadMap::Lie)?;
                }
                let Some(rkey) = staging.stage(id) else {
                    return lie(
                        "strategy wished to register a region whose key is not proven dead",
                    );
                };
                let base = lent.mapped.map_or(0, |a| a.0 + piece.start as u64);
                let (addr, len) = (base + (bytes.start - at.start), bytes.end - bytes.start);
                if let Some(slot) = segments.get_mut(regions.len()) {
                    *slot = Segment { rkey, addr, len, grant: *grant, epoch: self.epoch };
                }
                regions.push(*region);
                parts.push(Part { bytes: bytes.clone(), at });
                next += 1;
            };
            self.make_parent(id, without_parent).map_err(BadMap::Device)?;
            parent = Some(without_parent);
        }
    }

    /// A window needs its parent registered before it can be bound.
    #[cold]
    fn make_parent(&mut self, id: ExposureId, buf: usize) -> Result<(), DeviceError> {
        let Some(e) = self.slots.exposures.get_mut(id) else { return Ok(()) };
        let mut lent = std::mem::take(&mut e.lent);
        let made = match lent.get_mut(buf) {
            // The kernel counts the binding of windows among the rights to write.
            Some(l) if l.bytes.is_read_only() => Err(DeviceError::new(Verb::RegMr, errno::EACCES)),
            Some(l) => self.local_mr(l).map(drop),
            None => Ok(()),
        };
        if let Some(e) = self.slots.exposures.get_mut(id) {
            e.lent = lent;
        }
        made
    }

    /// What the peer is to be told, in payload order.
    fn fill_segments(&mut self, id: ExposureId) {
        let epoch = self.epoch;
        let arenas = &self.arenas;
        let keys = &self.keys;
        let Some(e) = self.slots.exposures.get_mut(id) else { return };
        let (lent, grant, segments) = (&e.lent, e.grant, &mut e.segments);
        let buffers = &e.buffers;
        for ((part, region), segment) in e.parts.iter().zip(&e.regions).zip(segments) {
            let Some(r) = keys.get(*region) else { continue };
            let addr = match r.kind {
                RegionKind::Bounce { at, grant, .. } => {
                    arenas.iter().find(|a| a.grant == grant).map_or(0, |a| a.addr.0 + at)
                }
                _ => buffers
                    .spans(part.at, part.bytes.clone())
                    .next()
                    .and_then(|(i, s)| Some(lent.get(i)?.mapped?.0 + s.start as u64))
                    .unwrap_or(0),
            };
            let mut len = part.bytes.end - part.bytes.start;
            if mutant!("D-04") {
                let first = buffers.spans(part.at, part.bytes.clone()).next();
                len = first.map_or(len, |(_, s)| s.len() as u64);
            }
            *segment = Segment { rkey: r.rkey, addr, len, grant, epoch };
        }
    }

    /// Ends every region of a failed `map`: named ones go back to the strategy, granted ones are
    /// ended.
    pub(crate) fn undo_map(&mut self, id: ExposureId, batch: &WrBatch) {
        self.unstage(id);
        for region in batch.registered() {
            // Named and refused before it was staged: the strategy must hear of it all the same.
            if self.keys.get(region).is_some_and(|r| r.exposure().is_none())
                && !self.events.contains(region, Event::NeverPosted)
            {
                self.events.push(region, Event::NeverPosted);
            }
        }
        let parts = self.part_regions(id);
        for region in parts {
            if let Err(e) = self.end_region(region) {
                tracing::error!(error = %e, "a region of a failed map stays; its bytes are kept");
            }
        }
    }

    /// The regions that still belong to an exposure, without an allocation. A region that died may
    /// already serve another one.
    pub(crate) fn part_regions(&self, id: ExposureId) -> SmallVec<[RegionId; MAX_REGIONS]> {
        let Some(e) = self.slots.exposures.get(id) else { return SmallVec::new() };
        let mine = |r: &RegionId| self.keys.get(*r).is_some_and(|r| r.exposure() == Some(id));
        e.regions.iter().copied().filter(mine).collect()
    }

    /// Takes the staged registrations of an exposure back; the device never saw them.
    pub(crate) fn unstage(&mut self, id: ExposureId) {
        self.staged.retain(|&s| s != id);
        let Some(e) = self.slots.exposures.get_mut(id) else { return };
        self.staged_wrs -= std::mem::take(&mut e.staged);
        for region in self.part_regions(id) {
            if self.keys.get(region).is_some_and(|r| r.state == KeyState::Staged) {
                self.closed(region, Rule::NeverPosted);
                self.events.push(region, Event::NeverPosted);
                self.renew_if_worn(region);
            }
        }
    }

    /// Puts the staged registrations of all exposures into the chain, in the order of `expose`.
    pub(crate) fn chain_staged(&mut self) {
        let chained_before = self.chain.len();
        for k in 0..self.staged.len() {
            self.chain_exposure(self.staged[k]);
        }
        self.chained_staged += self.chain.len() - chained_before;
    }

    /// The binds of windows if they are staged in step.
    #[inline]
    fn chain_exposure(&mut self, id: ExposureId) {
        let Some(e) = self.slots.exposures.get(id) else { return };
        let count = e.regions.len();
        if self.keys.all_in_step(id, count) != Some(KeyState::Staged) {
            return self.chain_single(id);
        }
        // One remote right and no local one: that is the parent's.
        let access = e.grant.access() & Access::REMOTE;
        let (mut at, all) = (0, count);
        for (pieces, lent) in e.buffers.of_each().zip(&e.lent) {
            let end = at + pieces.len();
            // Every buffer had one when its windows were staged.
            let Some(mr) = lent.parent() else { break };
            let bind = Some(Bind { mr, access });
            while at < end {
                let Run { first, count, signaled } =
                    self.ring.push_run(RingOp::Reg(id, at as u32), end - at);
                let segments = e.segments.get(at..at + count).unwrap_or_default();
                self.chain.push_run(WindowRun { first, signaled, segments, bind });
                self.chained_signaled += usize::from(signaled);
                let names = e.names.get(at..at + count).unwrap_or_default();
                self.keys.grant_in_step(id, first, names);
                at += count;
            }
        }
        if at < all {
            self.chain_single(id);
        }
    }

    /// The staged registrations of an exposure, of whatever kind, one by one.
    #[inline(never)]
    fn chain_single(&mut self, id: ExposureId) {
        let Some(e) = self.slots.exposures.get(id) else { return };
        let page = u64::from(self.caps.page_size);
        for (k, (&region, seg)) in e.regions.iter().zip(&e.segments).enumerate() {
            let Some(granting) = self.keys.staged(region, id) else { continue };
            let r = granting.region();
            let op = registration(&mut self.chain, e, k, seg, r, page, self.ordering);
            let Some(op) = op else { continue };
            let (wr_id, signaled) = self.ring.push(RingOp::Reg(id, k as u32), false);
            self.chained_signaled += usize::from(signaled);
            self.chain.push(Wr { wr_id, signaled, op });
            granting.grant(wr_id);
        }
    }

    /// Appends a WR to the chain, and enters it into the ring.
    #[inline]
    pub(crate) fn chain_wr(&mut self, op: WrOp, what: RingOp, signal: bool) {
        let (wr_id, signaled) = self.ring.push(what, signal);
        self.chained_signaled += usize::from(signaled);
        self.chain.push(Wr { wr_id, signaled, op });
    }

    /// Appends the LOCAL_INVs of all regions of an exposure, whose keys are live in step.
    #[inline(never)]
    pub(crate) fn chain_all_invs(&mut self, id: ExposureId) {
        let Some(e) = self.slots.exposures.get(id) else { return };
        let all = e.regions.len();
        let mut at = 0;
        while at < all {
            let Run { first, count, signaled } =
                self.ring.push_run(RingOp::Inv(id, at as u32), all - at);
            let segments = e.segments.get(at..at + count).unwrap_or_default();
            self.chain.push_run(WindowRun { first, signaled, segments, bind: None });
            self.chained_signaled += usize::from(signaled);
            let names = e.names.get(at..at + count).unwrap_or_default();
            self.keys.invalidating_in_step(id, first, names);
            at += count;
        }
        self.chained_inv += all;
        if mutant!("early-fence") {
            self.part_regions(id).into_iter().for_each(|r| self.closed(r, Rule::LocalInv));
        }
    }

    /// Appends the LOCAL_INVs that a strategy wished for, of regions of this exposure.
    pub(crate) fn chain_invs(&mut self, id: ExposureId, wishes: &[Wish]) {
        let Some(e) = self.slots.exposures.get(id) else { return };
        for wish in wishes {
            let Wish::Invalidate(region) = wish else { continue };
            let Some(k) = e.regions.iter().position(|r| r == region) else { continue };
            if !self.keys.get(*region).is_some_and(|r| r.kind.by_wr()) {
                continue;
            }
            let (wr_id, signaled) = self.ring.push(RingOp::Inv(id, k as u32), false);
            self.chained_signaled += usize::from(signaled);
            if let Some(rkey) = self.keys.invalidating(*region, wr_id) {
                self.chain.push(Wr { wr_id, signaled, op: WrOp::LocalInv(rkey) });
                self.chained_inv += 1;
            }
        }
        if mutant!("early-fence") {
            for wish in wishes {
                if let Wish::Invalidate(region) = wish {
                    self.closed(*region, Rule::LocalInv);
                }
            }
        }
    }

    /// The last WR of the chain, if it has one, is to be signaled.
    pub(crate) fn signal_last(&mut self) {
        if self.chain.signal_last() {
            self.chained_signaled += 1;
            self.ring.signal_last();
        }
    }

    /// Posts the chain with one doorbell and empties it. Its keys count as live since they were
    /// chained (rule 1), so nothing but this may follow that.
    ///
    /// # Errors
    /// Exactly the refused WRs are taken back; see [`PostFailure`].
    pub(crate) fn post_chain(&mut self) -> Result<(), PostFailure> {
        let n = self.chain.len();
        if n == 0 {
            return Ok(());
        }
        let Some(qp) = self.qp else {
            self.take_back(n);
            return Ok(());
        };
        if self.must_cover() {
            self.signal_last();
        }
        let out = self.ring.outstanding() as u64;
        self.stats.outstanding_max = self.stats.outstanding_max.max(out);
        let result = self.device.post_send(qp, &self.chain);
        let result = if mutant!("D-01") { Ok(()) } else { result };
        if let Err(e) = result {
            return Err(self.post_refused(n, e));
        }
        self.stats.posts += 1;
        self.stats.wrs += n as u64;
        self.stats.registrations += self.chained_staged as u64;
        self.stats.invalidations += self.chained_inv as u64;
        self.stats.wrs_signaled += self.chained_signaled as u64;
        if self.chained_staged > 0 {
            self.settle_staged();
        }
        self.clear_chain();
        Ok(())
    }

    /// The device did not take all of the chain's `n` WRs.
    #[cold]
    fn post_refused(&mut self, n: usize, e: PostError) -> PostFailure {
        let posted = if mutant!("rule-1") { 0 } else { e.posted.min(n) };
        self.count_posted(posted);
        self.take_back(n - (posted + usize::from(mutant!("D-07"))).min(n));
        if posted == 0 && e.cause.kind() == DeviceErrorKind::QueueFull {
            return PostFailure::Full(e);
        }
        PostFailure::Broken(e)
    }

    /// The last `refused` WRs of the chain were not posted. Empties it.
    #[cold]
    fn take_back(&mut self, refused: usize) {
        (0..refused).for_each(|_| self.take_back_one());
        if self.chained_staged > 0 {
            self.settle_singly();
        }
        self.clear_chain();
    }

    /// Whether the last WR of the chain must be signaled: if a full-size operation would no longer
    /// fit behind it, slots must come back without anyone posting anything (so that remote
    /// invalidation alone cannot stall).
    fn must_cover(&self) -> bool {
        // The slots of the chain's own invalidations are not free yet, whoever reserved them.
        let reserved = self.keys.inv_slots() + self.chained_inv;
        let claimed = self.ring.outstanding() + reserved + 1;
        let free = self.ring.depth().saturating_sub(claimed);
        free < self.limits.wr_per_request as usize && !mutant!("rule-9")
    }

    /// Counts a part of the chain as posted.
    fn count_posted(&mut self, posted: usize) {
        self.stats.posts += u64::from(posted > 0);
        self.stats.wrs += posted as u64;
        for wr in self.chain.iter().take(posted) {
            self.stats.wrs_signaled += u64::from(wr.signaled);
            match wr.op {
                WrOp::RegMr { .. } | WrOp::BindMw { .. } => self.stats.registrations += 1,
                WrOp::LocalInv(_) => self.stats.invalidations += 1,
                _ => {}
            }
        }
    }

    /// Undoes the newest ring entry, which the device refused.
    fn take_back_one(&mut self) {
        let Some((op, wr)) = self.ring.take_back() else { return };
        match op {
            RingOp::Reg(id, k) => {
                if let Some(region) = self.slots.region(id, k) {
                    self.keys.take_back(region, wr);
                }
            }
            RingOp::Inv(id, k) => {
                if let Some(region) = self.slots.region(id, k) {
                    self.keys.not_invalidating(region, wr);
                }
            }
            RingOp::Send(Some(slot)) => self.send_slots.push(slot),
            RingOp::Local(id, _) => self.local_refused(id),
            RingOp::Send(None) | RingOp::Sentinel => {}
        }
    }

    fn local_refused(&mut self, id: LocalId) {
        if let Some(op) = self.slots.locals.get_mut(id) {
            op.open -= 1;
        }
    }

    /// After a post of the whole chain: exposures whose registrations are all out are exposed; the
    /// others stay staged.
    fn settle_staged(&mut self) {
        if self.chained_staged != self.staged_wrs {
            return self.settle_singly();
        }
        for &id in &self.staged {
            if let Some(e) = self.slots.exposures.get_mut(id) {
                e.staged = 0;
                if e.state == ExposureState::Staged {
                    e.state = ExposureState::Exposed;
                }
            }
        }
        self.staged.clear();
        self.staged_wrs = 0;
    }

    /// The same after any post.
    #[cold]
    fn settle_singly(&mut self) {
        let mut k = 0;
        while k < self.staged.len() {
            let id = self.staged[k];
            let left = self
                .part_regions(id)
                .into_iter()
                .filter(|&r| self.keys.get(r).is_some_and(|r| r.state == KeyState::Staged))
                .count();
            let Some(e) = self.slots.exposures.get_mut(id) else {
                self.staged.remove(k);
                continue;
            };
            self.staged_wrs = self.staged_wrs - e.staged + left;
            e.staged = left;
            if left == 0 {
                if e.state == ExposureState::Staged {
                    e.state = ExposureState::Exposed;
                }
                self.staged.remove(k);
            } else {
                k += 1;
            }
        }
    }

    fn clear_chain(&mut self) {
        self.chain.clear();
        (self.chained_staged, self.chained_inv, self.chained_signaled) = (0, 0, 0);
    }
}

/// Whether the region's page list is long enough.
#[inline(never)]
fn fits_page_list(
    segs: &SegList<'_>,
    bytes: &Range<u64>,
    region: RegionKind,
) -> Result<(), &'static str> {
    let RegionKind::Fast { depth, kind, .. } = region else {
        return Err("strategy wished to register a region that no WR registers");
    };
    let run = segs.run(bytes.start, depth, kind == FastMrKind::Gaps);
    if run.bytes >= bytes.end - bytes.start { Ok(()) } else { Err(TOO_MUCH) }
}

/// The WR of the k-th region; `None` for one that no WR registers.
#[inline(never)]
fn registration(
    chain: &mut WrChain,
    e: &Exposure,
    k: usize,
    seg: &Segment,
    region: &Region,
    page: u64,
    ordering: Access,
) -> Option<WrOp> {
    let (rkey, len) = (region.rkey, seg.len);
    let mr = match region.kind {
        RegionKind::Fast { mr, .. } => mr,
        RegionKind::Window { mw } => {
            let piece = e.parts.get(k).map_or(k, |part| part.at.piece);
            let mr = e.lent_at(piece).and_then(Lent::parent)?;
            let access = e.grant.access() & Access::REMOTE;
            return Some(WrOp::BindMw { mw, rkey, mr, addr: DmaAddr(seg.addr), len, access });
        }
        RegionKind::Ordinary { .. } | RegionKind::Bounce { .. } => return None,
    };
    let part = e.parts.get(k)?;
    let runs = e.buffers.spans(part.at, part.bytes.clone());
    let pages = chain.add_pages(runs.flat_map(|(i, s)| {
        let base = e.lent.get(i).and_then(|l| l.mapped).map_or(0, |a| a.0);
        page_entries(base + s.start as u64, s.len() as u64, page)
    }));
    let mut access = e.grant.access() | ordering;
    if mutant!("rights") {
        access |= Access::REMOTE | Access::LOCAL_WRITE;
    }
    Some(WrOp::RegMr { mr, rkey, access, iova: seg.addr, len, pages })
}

/// The page-list entries of a run of bytes.
fn page_entries(addr: u64, len: u64, page: u64) -> impl Iterator<Item = PageEntry> {
    let mut at = addr;
    let end = addr + len;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let next = (at - at % page + page).min(end);
            let entry = PageEntry { addr: DmaAddr(at), len: (next - at) as u32 };
            at = next;
            entry
        })
    })
}

/// An empty message, for WRs that only mark a place.
pub(crate) fn empty_payload(chain: &mut WrChain) -> Payload {
    Payload::Inline(chain.add_inline(&[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_entries_cut_at_page_boundaries() {
        let v: Vec<_> = page_entries(4096 + 512, 8192, 4096).map(|p| (p.addr.0, p.len)).collect();
        assert_eq!(v, [(4608, 3584), (8192, 4096), (12288, 512)]);
        assert_eq!(page_entries(0, 4096, 4096).count(), 1);
    }
}
