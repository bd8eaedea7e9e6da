//! From wishes to WRs: checks a batch, stages it, builds the chain, and takes back what was not
//! posted.

use super::exposure::{ExposureId, ExposureState, LocalId, Part, Piece};
use super::keys::{KeyState, RegionKind};
use super::ledger::Rule;
use super::ring::RingOp;
use super::{Engine, spans};
use crate::device::{
    Device, DeviceError, DeviceErrorKind, FastMrKind, PageEntry, Payload, PostError, Verb, Wr,
    WrChain, WrOp, errno,
};
use crate::memreg::{Event, MAX_REGIONS, RegionId, SegList, SegShape, Wish, WrBatch};
use crate::mutants::mutant;
use crate::types::{Access, DmaAddr, MrId, Rkey, Segment, WrId};
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
    /// The shapes of an exposure's pieces, in the engine's scratch list.
    pub(crate) fn take_shapes(&mut self, id: ExposureId) -> Vec<SegShape> {
        let mut shapes = std::mem::take(&mut self.shapes);
        shapes.clear();
        let page = u64::from(self.caps.page_size);
        if let Some(e) = self.slots.exposures.get(id) {
            shapes.extend(e.pieces.iter().map(|p| {
                // A bounced piece is copied to the start of a page.
                let addr = p.mapped.map_or(0, |a| a.0 + p.range.start as u64);
                SegShape { page_offset: (addr % page) as u32, len: p.range.len() as u64 }
            }));
        }
        shapes
    }

    /// Checks that the batch and the regions granted in `map` cover the exposure exactly once and
    /// in order, and stages the registrations.
    ///
    /// # Errors
    /// What the strategy did wrong. Call [`undo_map`](Engine::undo_map) then.
    pub(crate) fn stage_batch(
        &mut self,
        id: ExposureId,
        segs: &SegList<'_>,
        batch: &WrBatch,
    ) -> Result<(), BadMap> {
        for wish in batch.wishes() {
            let Wish::Register(region, bytes) = wish else {
                return Err(BadMap::Lie("strategy wished for an invalidation in map"));
            };
            self.check_wish(segs, *region, bytes).map_err(BadMap::Lie)?;
            self.ready_parent(id, *region, bytes)?;
            if self.keys.stage(*region, id).is_none() {
                let lie = "strategy wished to register a region whose key is not proven dead";
                return Err(BadMap::Lie(lie));
            }
            let Some(e) = self.slots.exposures.get_mut(id) else { return Err(NOT_COVERED) };
            e.parts.push(Part { region: *region, bytes: bytes.clone() });
            e.open += 1;
            e.staged += 1;
            self.staged_wrs += 1;
        }
        let Some(e) = self.slots.exposures.get_mut(id) else { return Err(NOT_COVERED) };
        e.parts.sort_unstable_by_key(|p| p.bytes.start);
        let mut at = 0;
        for p in &e.parts {
            let granted = self.keys.get(p.region).is_some_and(|r| r.exposure == Some(id));
            if (p.bytes.start != at || !granted) && !mutant!("rule-6-map") {
                return Err(NOT_COVERED);
            }
            at = p.bytes.end;
        }
        let whole = at == segs.total() || mutant!("rule-6-map");
        if !whole || e.parts.len() > MAX_REGIONS {
            return Err(NOT_COVERED);
        }
        self.fill_segments(id);
        Ok(())
    }

    /// A window needs its parent registered before it can be bound.
    fn ready_parent(
        &mut self,
        id: ExposureId,
        region: RegionId,
        bytes: &Range<u64>,
    ) -> Result<(), BadMap> {
        let kind = self.keys.get(region).map(|r| r.kind);
        let (Some(RegionKind::Window { .. }), Some(e)) = (kind, self.slots.exposures.get_mut(id))
        else {
            return Ok(());
        };
        let mut pieces = std::mem::take(&mut e.pieces);
        let hit = spans(&pieces, bytes.clone()).next();
        let made = match hit {
            // The kernel counts the binding of windows among the rights to write.
            Some((i, _)) if pieces[i].bytes.is_read_only() => {
                Err(DeviceError::new(Verb::RegMr, errno::EACCES))
            }
            Some((i, _)) => self.local_mr(&mut pieces[i]).map(|_| ()),
            None => Ok(()),
        };
        if let Some(e) = self.slots.exposures.get_mut(id) {
            e.pieces = pieces;
        }
        made.map_err(BadMap::Device)
    }

    fn check_wish(
        &self,
        segs: &SegList<'_>,
        region: RegionId,
        bytes: &Range<u64>,
    ) -> Result<(), &'static str> {
        let Some(r) = self.keys.get(region) else { return Err("strategy named an unknown region") };
        if !self.arenas.is_empty() {
            return Err("strategy wished to register memory that is not lent to the device");
        }
        if bytes.start >= bytes.end || bytes.end > segs.total() {
            return Err("strategy named bytes outside the exposure");
        }
        let fits = match r.kind {
            RegionKind::Fast { depth, kind, .. } => {
                let run = segs.run(bytes.start, depth, kind == FastMrKind::Gaps);
                run.bytes >= bytes.end - bytes.start
            }
            RegionKind::Window { .. } => segs.within_one(bytes),
            _ => return Err("strategy wished to register a region that no WR registers"),
        };
        if fits { Ok(()) } else { Err("strategy asked one region for more than it can describe") }
    }

    /// What the peer is to be told, in payload order.
    fn fill_segments(&mut self, id: ExposureId) {
        let epoch = self.epoch;
        let arenas = &self.arenas;
        let keys = &self.keys;
        let Some(e) = self.slots.exposures.get_mut(id) else { return };
        let (pieces, grant, segments) = (&e.pieces, e.grant, &mut e.segments);
        segments.clear();
        for part in &e.parts {
            let Some(r) = keys.get(part.region) else { continue };
            let addr = match r.kind {
                RegionKind::Bounce { at, grant, .. } => {
                    arenas.iter().find(|a| a.grant == grant).map_or(0, |a| a.addr.0 + at)
                }
                _ => spans(pieces, part.bytes.clone())
                    .next()
                    .and_then(|(i, s)| pieces[i].mapped.map(|a| a.0 + s.start as u64))
                    .unwrap_or(0),
            };
            let mut len = part.bytes.end - part.bytes.start;
            if mutant!("D-04") {
                len = spans(pieces, part.bytes.clone()).next().map_or(len, |(_, s)| s.len() as u64);
            }
            segments.push(Segment { rkey: r.rkey, addr, len, grant, epoch });
        }
    }

    /// Ends every region of a failed `map`: named ones go back to the strategy, granted ones are
    /// ended.
    pub(crate) fn undo_map(&mut self, id: ExposureId, batch: &WrBatch) {
        self.unstage(id);
        for wish in batch.wishes() {
            // Named and refused before it was staged: the strategy must hear of it all the same.
            if let Wish::Register(region, _) = wish
                && self.keys.get(*region).is_some_and(|r| r.exposure.is_none())
                && !self.events.contains(&(*region, Event::NeverPosted))
            {
                self.events.push_back((*region, Event::NeverPosted));
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
        let mine = |r: &RegionId| self.keys.get(*r).is_some_and(|r| r.exposure == Some(id));
        e.parts.iter().map(|p| p.region).filter(mine).collect()
    }

    /// Takes the staged registrations of an exposure back; the device never saw them.
    pub(crate) fn unstage(&mut self, id: ExposureId) {
        self.staged.retain(|&s| s != id);
        let Some(e) = self.slots.exposures.get_mut(id) else { return };
        self.staged_wrs -= std::mem::take(&mut e.staged);
        for region in self.part_regions(id) {
            if self.keys.get(region).is_some_and(|r| r.state == KeyState::Staged) {
                self.closed(region, Rule::NeverPosted);
                self.events.push_back((region, Event::NeverPosted));
                self.renew_if_worn(region);
            }
        }
    }

    /// Puts the staged registrations of all exposures into the (empty) chain, in the order of
    /// `expose`.
    pub(crate) fn chain_staged(&mut self) {
        for k in 0..self.staged.len() {
            let id = self.staged[k];
            let Some(e) = self.slots.exposures.get(id) else { continue };
            for (part, seg) in e.parts.iter().zip(&e.segments) {
                let Some(r) = self.keys.get(part.region) else { continue };
                if r.state != KeyState::Staged || r.exposure != Some(id) {
                    continue;
                }
                let op = match r.kind {
                    RegionKind::Fast { mr, .. } => {
                        let page = u64::from(self.caps.page_size);
                        let runs = spans(&e.pieces, part.bytes.clone()).flat_map(|(i, s)| {
                            let base = e.pieces[i].mapped.map_or(0, |a| a.0);
                            page_entries(base + s.start as u64, s.len() as u64, page)
                        });
                        let pages = self.chain.add_pages(runs);
                        let (mut access, iova, len) =
                            (seg.grant.access() | self.ordering, seg.addr, seg.len);
                        if mutant!("rights") {
                            access |= Access::REMOTE | Access::LOCAL_WRITE;
                        }
                        WrOp::RegMr { mr, rkey: r.rkey, access, iova, len, pages }
                    }
                    RegionKind::Window { mw } => {
                        let Some(mr) = parent(&e.pieces, part.bytes.clone()) else { continue };
                        // One remote right and no local one: that is the parent's.
                        let access = seg.grant.access() & Access::REMOTE;
                        let (addr, len) = (DmaAddr(seg.addr), seg.len);
                        WrOp::BindMw { mw, rkey: r.rkey, mr, addr, len, access }
                    }
                    RegionKind::Ordinary { .. } | RegionKind::Bounce { .. } => continue,
                };
                push(&mut self.chain, op);
                self.chain_ops.push((RingOp::Reg(part.region, r.turn), false));
            }
        }
    }

    /// Appends a WR to the chain.
    pub(crate) fn chain_wr(&mut self, op: WrOp, what: RingOp, signal: bool) {
        push(&mut self.chain, op);
        self.chain_ops.push((what, signal));
    }

    /// Appends the LOCAL_INV of a region to the chain.
    pub(crate) fn chain_inv(&mut self, region: RegionId, last: bool) {
        if let Some(r) = self.keys.get(region) {
            let (rkey, turn): (Rkey, u32) = (r.rkey, r.turn);
            self.chain_wr(WrOp::LocalInv(rkey), RingOp::Inv(region, turn), last);
        }
    }

    /// Posts the chain with one doorbell and empties it. Keys count as live from just before (rule
    /// 1).
    ///
    /// # Errors
    /// Exactly the refused WRs are taken back; see [`PostFailure`].
    pub(crate) fn post_chain(&mut self) -> Result<(), PostFailure> {
        let n = self.chain_ops.len();
        let Some(qp) = self.qp else {
            self.clear_chain();
            return Ok(());
        };
        if n == 0 {
            return Ok(());
        }
        let last_signal = self.must_cover(n);
        for i in 0..n {
            let (op, want) = self.chain_ops[i];
            let (wr_id, signaled) = self.ring.push(op, want || (last_signal && i + 1 == n));
            let wr = &mut self.chain.wrs_mut()[i];
            (wr.wr_id, wr.signaled) = (wr_id, signaled);
            match op {
                RingOp::Reg(region, _) => self.keys.grant(region, wr_id),
                RingOp::Inv(region, _) => {
                    self.keys.invalidating(region, wr_id);
                    if mutant!("early-fence") {
                        self.closed(region, Rule::LocalInv);
                    }
                }
                _ => {}
            }
        }
        let out = self.ring.outstanding() as u64;
        self.stats.outstanding_max = self.stats.outstanding_max.max(out);
        let result = self.device.post_send(qp, &self.chain);
        let result = if mutant!("D-01") { Ok(()) } else { result };
        let posted = match &result {
            Ok(()) => n,
            Err(_) if mutant!("rule-1") => 0,
            Err(e) => e.posted.min(n),
        };
        self.count_posted(posted);
        for _ in posted + usize::from(mutant!("D-07"))..n {
            self.take_back_one();
        }
        self.settle_staged();
        self.clear_chain();
        match result {
            Ok(()) => Ok(()),
            Err(e) if posted == 0 && e.cause.kind() == DeviceErrorKind::QueueFull => {
                Err(PostFailure::Full(e))
            }
            Err(e) => Err(PostFailure::Broken(e)),
        }
    }

    /// Whether the last of `n` more WRs must be signaled: if a full-size operation would no longer
    /// fit behind it, slots must come back without anyone posting anything (so that remote
    /// invalidation alone cannot stall).
    fn must_cover(&self, n: usize) -> bool {
        let claimed = self.ring.outstanding() + n + self.keys.inv_slots() + 1;
        let free = self.ring.depth().saturating_sub(claimed);
        free < self.limits.wr_per_request as usize && !mutant!("rule-9")
    }

    fn count_posted(&mut self, posted: usize) {
        self.stats.posts += u64::from(posted > 0);
        self.stats.wrs += posted as u64;
        for (wr, (op, _)) in self.chain.wrs().iter().zip(&self.chain_ops).take(posted) {
            self.stats.wrs_signaled += u64::from(wr.signaled);
            match op {
                RingOp::Reg(..) => self.stats.registrations += 1,
                RingOp::Inv(..) => self.stats.invalidations += 1,
                _ => {}
            }
        }
    }

    /// Undoes the newest ring entry, which the device refused.
    fn take_back_one(&mut self) {
        let Some((op, wr)) = self.ring.take_back() else { return };
        match op {
            RingOp::Reg(region, _) => self.keys.take_back(region, wr),
            RingOp::Inv(region, _) => self.keys.not_invalidating(region, wr),
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

    /// After a post: exposures whose registrations are all out are exposed; the others stay staged.
    fn settle_staged(&mut self) {
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
        self.chain_ops.clear();
    }
}

/// The MR that a window over `bytes` is bound onto.
fn parent(pieces: &[Piece], bytes: Range<u64>) -> Option<MrId> {
    let (i, _) = spans(pieces, bytes).next()?;
    pieces[i].place.as_ref()?.local.as_ref().map(|l| l.mr)
}

fn push(chain: &mut WrChain, op: WrOp) {
    chain.push(Wr { wr_id: WrId(0), signaled: false, op });
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
