//! Granting a peer access to bytes, and taking it back.

use super::error::{BufferError, DownCause, ReclaimError, ReclaimRefusal, Refusal};
use super::exchange::ReplyToken;
use super::parts;
use super::{State, Transport};
use crate::device::Device;
use crate::engine::buffers::Buffers;
use crate::engine::control::{Ctl, Scope};
use crate::engine::exposure::{Awaited, Exposed, Exposure, ExposureId, ExposureState};
use crate::engine::keys::KeyState;
use crate::engine::stage::BadMap;
use crate::error::ApiMisuse;
use crate::memreg::{MAX_REGIONS, MapError, MemReg, Poison, RegionId, SegList, Wish};
use crate::mutants::mutant;
use crate::sync::{Arc, Ordering};
use crate::types::Grant;
use smallvec::SmallVec;

/// Regions of one exposure.
type Regions = SmallVec<[RegionId; MAX_REGIONS]>;

const NOT_TO_REVOKE: &str = "it wished for something else than to revoke this exposure";

/// Why no reply can invalidate a key of the exposure any more.
#[derive(Clone, Copy, Debug)]
pub enum NoReply<'a> {
    /// None was announced with [`Reply::MayInvalidate`](super::Reply::MayInvalidate). Refused if
    /// one was.
    Unmarked,
    /// It has arrived: this is its token.
    Arrived(&'a ReplyToken),
    /// The caller's word that none can come, for instance because the peer has said so. If one
    /// comes all the same, the connection goes down.
    NoneCanCome,
}

impl<D: Device, S: MemReg> Transport<D, S> {
    /// Moves the buffers into the transport and stages access to them for the peer, in one
    /// direction.
    ///
    /// # Units
    /// Each range is in bytes of its buffer; together they are one run of bytes for the peer. Other
    /// bytes of the buffers are granted to nobody, though a device that does not hold windows to
    /// their bounds (`rdma_rxe`) lets a peer reach on to the end of the buffer. Ranges of one
    /// buffer ascend and do not overlap.
    /// # Shape
    /// The buffers belong to the transport until [`reclaim`](Transport::reclaim). Nothing is
    /// posted: `send` or `flush` does that. A strategy that registers by a verb (fmr) does so here.
    /// # Errors
    /// [`BufferError`] returns the buffers. `QueueFull` and `NoRegion`: poll, then try again.
    /// # Cost
    /// No system call for `frwr` once its pool is warm; one per range for `fmr`. A buffer is lent
    /// and, under windows, registered once, whatever the number of its ranges. No allocation up to
    /// four buffers. (Once in 255 registrations of a region, taking it back costs two verbs: it
    /// gets a new key index, so that no old key can ever open anything again.)
    pub fn expose(
        &mut self,
        buffers: impl Into<Buffers>,
        grant: Grant,
    ) -> Result<Exposed, BufferError> {
        let mut e = self.eng.slots.new_exposure(grant);
        // It has an empty list that was never filled, so that there is nothing to drop.
        std::mem::forget(std::mem::replace(&mut e.buffers, buffers.into()));
        let bytes = match self.check_and_lend(&mut e) {
            Ok(bytes) => bytes,
            Err(why) => return Err(BufferError { buffers: self.eng.slots.recycle(e), why }),
        };
        // Held by this call, so that no event below can fence it half-made.
        e.open = 1;
        let (id, flag) = self.eng.slots.insert(e);
        match self.map(id, bytes) {
            Ok(()) => {
                if let Some(e) = self.eng.slots.exposures.get_mut(id) {
                    e.open -= 1;
                    e.counted = true;
                    match e.staged {
                        0 => e.state = ExposureState::Exposed,
                        _ => self.eng.staged.push(id),
                    }
                }
                self.eng.count_exposure();
                self.deliver();
                Ok(Exposed { transport: self.eng.id, id, flag: Some(flag) })
            }
            Err((why, poison)) => Err(self.failed_map(id, flag, why, poison)),
        }
    }

    /// Lends the buffers, unless something about them or the transport forbids it. Answers how many
    /// bytes their ranges have; `shapes` are those of the ranges then.
    #[inline]
    fn check_and_lend(&mut self, e: &mut Exposure) -> Result<u64, Refusal> {
        self.check_up()?;
        let bytes = self.check_list(&e.buffers, e.grant)?;
        let bounced = !self.eng.arenas.is_empty();
        self.eng.lend(&mut e.buffers, &mut e.lent, !bounced).map_err(Refusal::Device)?;
        parts::place(&e.buffers, &e.lent, self.eng.caps.page_size, &mut self.shapes);
        Ok(bytes)
    }

    /// Asks the strategy for regions over the shapes and stages what it wishes for.
    fn map(&mut self, id: ExposureId, bytes: u64) -> Result<(), (Refusal, bool)> {
        let segs = SegList::of_sum(&self.shapes, self.eng.caps.page_size, bytes);
        self.batch.clear();
        let mut ctl = Ctl::new(&mut self.eng, Scope::Map(id));
        let mapped = self.strategy.map(&mut ctl, &segs, &mut self.batch);
        match mapped {
            Err(e) => Err((Refusal::Map(e), false)),
            Ok(()) => match self.eng.stage_batch(id, &segs, &mut self.batch) {
                Err(BadMap::Device(e)) => Err((Refusal::Map(MapError::Device(e)), false)),
                Err(BadMap::Lie(what)) => {
                    tracing::error!(strategy = self.strategy.name(), what, "strategy misbehaved");
                    Err((Refusal::Map(MapError::Other(what)), true))
                }
                Ok(()) => self.check_reserve(id).map_err(|e| (e, false)),
            },
        }
    }

    /// Rule 7: with the staged WRs and a LOCAL_INV for each, and the sentinel, it must fit the
    /// queue.
    fn check_reserve(&self, id: ExposureId) -> Result<(), Refusal> {
        let depth = self.eng.ring.depth();
        let claimed = self.eng.ring.outstanding() + self.eng.staged_wrs + self.eng.keys.inv_slots();
        if claimed < depth {
            return Ok(());
        }
        let mine = self.eng.slots.exposures.get(id).map_or(0, |e| 2 * e.staged);
        if mine + 1 > depth {
            return Err(Refusal::NeverFits { need: mine + 1, depth });
        }
        let free = depth.saturating_sub(claimed - mine + 1);
        Err(Refusal::QueueFull { need: mine, free, depth })
    }

    fn failed_map(
        &mut self,
        id: ExposureId,
        flag: Arc<crate::engine::exposure::SlotFlag>,
        why: Refusal,
        misbehaved: bool,
    ) -> BufferError {
        self.eng.undo_map(id, &self.batch);
        self.eng.release(id, 1);
        self.nudge(&why);
        let slot = self.eng.slots.exposures.get_mut(id).filter(|e| e.open > 0);
        let kept = slot.map(|e| e.counted = true).is_some();
        if kept {
            self.eng.count_exposure();
        }
        if misbehaved || kept {
            self.poison(DownCause::Strategy(Poison("it broke the contract of map")));
        }
        self.deliver();
        match self.eng.slots.exposures.get_mut(id) {
            Some(e) if e.open > 0 => {
                // A key would not die: whoever fences the bytes frees them, for nobody holds a
                // handle.
                drop(Exposed { transport: self.eng.id, id, flag: Some(flag) });
                BufferError { buffers: Buffers::new(), why }
            }
            e => {
                let buffers = e.map(|e| std::mem::take(&mut e.buffers)).unwrap_or_default();
                self.eng.free_exposure(id);
                BufferError { buffers, why }
            }
        }
    }

    fn check_list(&mut self, buffers: &Buffers, grant: Grant) -> Result<u64, Refusal> {
        let page = self.eng.caps.page_size;
        let checked = parts::check(buffers, page, &mut self.shapes)?;
        if checked.read_only {
            self.check_read_only(buffers, grant)?;
        }
        let (need, limit) = (checked.bytes, self.eng.limits.max_payload_bytes);
        if need > limit {
            return Err(Refusal::TooLong { need, limit });
        }
        Ok(need)
    }

    /// Rights are never widened behind anybody's back: what would write to memory that is mapped
    /// for reading is refused before anything is registered (B55).
    #[cold]
    fn check_read_only(&self, buffers: &Buffers, grant: Grant) -> Result<(), Refusal> {
        let what = match grant {
            Grant::PeerWrites => "a grant of writing",
            Grant::PeerReads if self.eng.limits.mechanism == "window" => {
                "a window onto it (strategy fmr needs none)"
            }
            Grant::PeerReads => return Ok(()),
        };
        Err(parts::read_only(buffers, what))
    }

    /// Starts taking the peer's access back.
    ///
    /// # Shape
    /// Exposed → Revoking → (poll) Fenced. An exposure that was never posted, or whose keys the
    /// peer has already invalidated, is fenced at once and costs no WR. On error nothing changed
    /// and access is still possible.
    /// # Ordering
    /// Later WRs of this QP run after the invalidation; other QPs do not.
    /// # Errors
    /// [`Refusal::ReplyOutstanding`] (rule 5): a reply that may invalidate one of its keys is still
    /// to come.
    /// # Cost
    /// One chain of at most one LOCAL_INV a region, from the reserve, the last one signaled. No
    /// allocation.
    /// # Source
    /// ibv_post_send(3), LOCAL_INV
    pub fn revoke(&mut self, exposed: &Exposed, reply: NoReply<'_>) -> Result<(), Refusal> {
        self.check_handle(exposed)?;
        self.check_revoke(exposed.id, reply)?;
        self.unmap(exposed.id)
    }

    /// As [`revoke`](Transport::revoke), of many exposures with one post; `reply` is true of each.
    ///
    /// # Shape
    /// Each as in `revoke`. One that is named twice counts once. On a refusal nothing changed for
    /// any of them.
    /// # Ordering
    /// Invalidations run in the order of the list. The last one of all is signaled, so one
    /// completion fences every exposure.
    /// # Errors
    /// As `revoke`, for the first exposure that is refused.
    /// # Cost
    /// One chain with one doorbell; no allocation once the chain was that long before.
    pub fn revoke_all<'e, I>(&mut self, exposed: I, reply: NoReply<'_>) -> Result<(), Refusal>
    where
        I: IntoIterator<Item = &'e Exposed>,
        I::IntoIter: Clone,
    {
        let exposed = exposed.into_iter();
        // All refusals first: behind them nothing is refused.
        for e in exposed.clone() {
            self.check_handle(e)?;
            self.check_revoke(e.id, reply)?;
        }
        let (mut refused, mut chained) = (Ok(()), Ok(()));
        for e in exposed {
            // Unless the list has others in it now than its clone had.
            refused = self.check_handle(e).and_then(|()| self.check_revoke(e.id, reply));
            if refused.is_err() {
                break;
            }
            chained = chained.and_then(|()| self.chain_unmap(e.id));
        }
        self.post_unmap(chained)?;
        refused
    }

    /// Whether `revoke` would be refused.
    fn check_revoke(&self, id: ExposureId, reply: NoReply<'_>) -> Result<(), Refusal> {
        let Some(e) = self.eng.slots.exposures.get(id) else { return Ok(()) };
        // What is only staged goes away without a word to the device.
        let live = match e.state {
            ExposureState::Exposed => e.open > 0,
            ExposureState::Staged => e.open > e.staged,
            _ => false,
        };
        if !live {
            return Ok(());
        }
        self.check_reply(e.reply_after, reply)?;
        self.check_up()
    }

    /// Rule 5.
    fn check_reply(&self, after: Option<Awaited>, reply: NoReply<'_>) -> Result<(), Refusal> {
        let Some(after) = after.filter(|_| !mutant!("rule-5")) else { return Ok(()) };
        match reply {
            NoReply::NoneCanCome => Ok(()),
            NoReply::Unmarked => Err(Refusal::ReplyOutstanding),
            NoReply::Arrived(t) => {
                let ours = t.transport == self.eng.id && t.epoch == self.eng.epoch;
                if ours && t.nth > after.after && t.nth >= after.nth {
                    return Ok(());
                }
                Err(Refusal::Misuse(ApiMisuse::WrongToken))
            }
        }
    }

    /// Takes one exposure back with a chain of its own.
    fn unmap(&mut self, id: ExposureId) -> Result<(), Refusal> {
        let chained = self.chain_unmap(id);
        self.post_unmap(chained)
    }

    /// Asks the strategy to revoke the live regions and chains what it wishes for; every one must
    /// be named once.
    fn chain_unmap(&mut self, id: ExposureId) -> Result<(), Poison> {
        let slots = &self.eng.slots;
        if !self.eng.staged.is_empty() && slots.exposures.get(id).is_some_and(|e| e.staged > 0) {
            self.eng.unstage(id);
        }
        let Some(e) = self.eng.slots.exposures.get_mut(id) else { return Ok(()) };
        if !matches!(e.state, ExposureState::Exposed | ExposureState::Staged) || e.open == 0 {
            return Ok(());
        }
        e.state = ExposureState::Revoking;
        let in_step = self.eng.keys.all_in_step(id, e.regions.len()) == Some(KeyState::Live);
        if !in_step {
            return self.chain_unmap_each(id);
        }
        // The strategy looks at the list itself and not at a copy. Meanwhile the slot has none: of
        // windows, nothing that the strategy can do asks for it there.
        let regions = std::mem::take(&mut e.regions);
        let wished = match self.ask_to_unmap(id, &regions) {
            Ok(None) => None,
            asked => Some((Regions::from_slice(&regions), asked)),
        };
        if let Some(e) = self.eng.slots.exposures.get_mut(id) {
            e.regions = regions;
        }
        let Some((live, ended)) = wished else {
            self.eng.stats.local_inv_needed += 1;
            self.eng.chain_all_invs(id);
            return Ok(());
        };
        self.chain_wished(id, &live, &ended?.unwrap_or_default())
    }

    /// Of regions that are not in step, those that are still live.
    #[inline(never)]
    fn chain_unmap_each(&mut self, id: ExposureId) -> Result<(), Poison> {
        let Some(e) = self.eng.slots.exposures.get(id) else { return Ok(()) };
        let keys = &self.eng.keys;
        let live: Regions = e.regions.iter().copied().filter(|&r| keys.is_live(r, id)).collect();
        let ended = self.ask_to_unmap(id, &live)?.unwrap_or_default();
        self.chain_wished(id, &live, &ended)
    }

    /// Chains what the strategy has wished for, if that is what it may.
    #[cold]
    fn chain_wished(
        &mut self,
        id: ExposureId,
        live: &[RegionId],
        ended: &[RegionId],
    ) -> Result<(), Poison> {
        self.batch.spell_out_all(live);
        self.check_unmap(live, ended)?;
        let wishes = self.batch.wishes();
        self.eng.stats.local_inv_needed += u64::from(!wishes.is_empty());
        self.eng.chain_invs(id, wishes);
        Ok(())
    }

    /// Asks the strategy to revoke the live regions. `None` if all that it wants is a WR for each,
    /// else those that it has ended.
    #[inline(always)]
    fn ask_to_unmap(
        &mut self,
        id: ExposureId,
        live: &[RegionId],
    ) -> Result<Option<Regions>, Poison> {
        self.batch.clear();
        let mut ctl = Ctl::new(&mut self.eng, Scope::Unmap(id));
        self.strategy.unmap(&mut ctl, live, &mut self.batch)?;
        if ctl.twice {
            return Err(Poison("it ended a region twice"));
        }
        let by_wrs = self.batch.is_all() && ctl.ended.is_empty();
        Ok(if by_wrs { None } else { Some(ctl.ended) })
    }

    /// Posts the chained invalidations, the last one signaled.
    fn post_unmap(&mut self, chained: Result<(), Poison>) -> Result<(), Refusal> {
        self.eng.signal_last();
        // Also after a strategy has given up: what was chained before is in the ring, and goes out
        // before the connection does.
        let posted = self.post();
        self.deliver();
        if posted.is_ok() && chained.is_ok() {
            return Ok(());
        }
        self.unmap_failed(posted, chained)
    }

    #[cold]
    fn unmap_failed(
        &mut self,
        posted: Result<(), Refusal>,
        chained: Result<(), Poison>,
    ) -> Result<(), Refusal> {
        let cause = match (posted, chained) {
            (Ok(()), Ok(())) => return Ok(()),
            (Ok(()), Err(p)) => {
                tracing::error!(strategy = self.strategy.name(), what = p.0, "revoke failed");
                DownCause::Strategy(p)
            }
            // Its slots were reserved (rule 7): a device that has none counts otherwise than this
            // side, and nothing that is outstanding need ever free one.
            (Err(Refusal::Device(e)), _) => DownCause::Device(e),
            (Err(other), _) => return Err(other),
        };
        self.poison(cause.clone());
        self.deliver();
        Err(Refusal::Down(cause))
    }

    /// Every live region named exactly once, and nothing else (rule 6).
    fn check_unmap(&self, live: &[RegionId], ended: &[RegionId]) -> Result<(), Poison> {
        if !self.batch.each().is_empty() {
            return Err(Poison(NOT_TO_REVOKE));
        }
        for wish in self.batch.wishes() {
            match wish {
                Wish::Invalidate(r) if live.contains(r) && !ended.contains(r) => {
                    if !self.by_wr(*r) {
                        return Err(Poison("it invalidated a region that has no LOCAL_INV"));
                    }
                }
                _ => return Err(Poison(NOT_TO_REVOKE)),
            }
        }
        for region in live {
            let wished = self.batch.wishes().iter().filter(|w| **w == Wish::Invalidate(*region));
            match wished.count() + usize::from(ended.contains(region)) {
                1 => {}
                0 if mutant!("rule-6-unmap") => {}
                0 => return Err(Poison("it left a live key unrevoked")),
                _ => return Err(Poison("it revoked a key twice")),
            }
        }
        Ok(())
    }

    /// Takes the access back although a reply may still come: deregisters, which is allowed at any
    /// time (rule 2).
    ///
    /// # Shape
    /// Fenced at once. A WR of this exposure that has not run yet, or a late SEND_WITH_INV, then
    /// fails and costs the connection: never memory. If the device refuses, the connection goes
    /// down, and the fence comes with that.
    /// # Errors
    /// [`Refusal::Down`] in that last case.
    /// # Cost
    /// One verb a region, and the regions must be rebuilt: prefer [`revoke`](Transport::revoke).
    pub fn cancel(&mut self, exposed: &Exposed) -> Result<(), Refusal> {
        self.check_handle(exposed)?;
        self.cancel_slot(exposed.id)
    }

    fn cancel_slot(&mut self, id: ExposureId) -> Result<(), Refusal> {
        self.eng.stats.cancels += 1;
        self.eng.unstage(id);
        let mut refused = None;
        for region in self.eng.part_regions(id) {
            let Some(r) = self.eng.keys.get(region) else { continue };
            if r.exposure() != Some(id) {
                continue;
            }
            let event = match r.state {
                KeyState::Invalidating => crate::memreg::Event::InvUnknown,
                _ => crate::memreg::Event::RegUnknown,
            };
            if mutant!("cancel") {
                self.eng.closed(region, crate::engine::ledger::Rule::Dereg);
            } else if let Err(e) = self.eng.end_region_and_tell(region, event) {
                refused = Some(e);
            }
        }
        self.deliver();
        match refused {
            None => Ok(()),
            Some(e) => {
                self.poison(DownCause::Device(e));
                self.deliver();
                Err(Refusal::Down(DownCause::Device(e)))
            }
        }
    }

    /// Returns the bytes of a fenced exposure. The only way to see them again.
    ///
    /// # Shape
    /// Consumes the handle; on error it comes back.
    /// # Errors
    /// [`ReclaimRefusal::NotFenced`]: revoke and poll first.
    /// # Cost
    /// No system call, no allocation up to four buffers.
    pub fn reclaim(&mut self, exposed: Exposed) -> Result<Buffers, ReclaimError> {
        if exposed.transport != self.eng.id {
            let why = ReclaimRefusal::Misuse(ApiMisuse::ForeignHandle);
            return Err(ReclaimError { exposed, why });
        }
        let foreign = ReclaimRefusal::Misuse(ApiMisuse::ForeignHandle);
        let why = match self.eng.slots.exposures.get(exposed.id) {
            None => foreign,
            // Of a held one, what the device did let go of.
            Some(e)
                if e.state == ExposureState::Fenced
                    || e.state == ExposureState::Held && !e.buffers.bufs.is_empty() =>
            {
                match self.eng.slots.exposures.remove(exposed.id) {
                    Some(body) => {
                        drop(exposed.disarm());
                        self.eng.stats.exposures_now = self.eng.slots.exposures.len() as u64;
                        return Ok(self.eng.slots.recycle(body));
                    }
                    None => foreign,
                }
            }
            Some(e) if e.state == ExposureState::Held => ReclaimRefusal::Held,
            Some(e) => ReclaimRefusal::NotFenced { open: e.open },
        };
        Err(ReclaimError { exposed, why })
    }

    fn check_handle(&self, exposed: &Exposed) -> Result<(), Refusal> {
        if exposed.transport == self.eng.id {
            return Ok(());
        }
        Err(Refusal::Misuse(ApiMisuse::ForeignHandle))
    }

    /// Fences what dropped handles have left behind.
    #[inline]
    pub(super) fn sweep_abandoned(&mut self) {
        if self.eng.slots.bell_rang() {
            self.sweep();
        }
    }

    #[cold]
    fn sweep(&mut self) {
        let gone: Vec<ExposureId> = self
            .eng
            .slots
            .exposures
            .iter()
            .filter(|(_, e)| e.flag.is_abandoned())
            .map(|(id, _)| id)
            .collect();
        if mutant!("bell-late") {
            self.eng.slots.bell.store(0, Ordering::Release);
        }
        for id in gone {
            if mutant!("leak") {
                continue;
            }
            if mutant!("abandon") {
                for region in self.eng.part_regions(id) {
                    self.eng.closed(region, crate::engine::ledger::Rule::Dereg);
                }
            }
            match self.eng.slots.exposures.get(id).map(|e| e.state) {
                Some(ExposureState::Fenced | ExposureState::Held) => self.eng.free_abandoned(id),
                Some(ExposureState::Staged | ExposureState::Exposed) if self.state == State::Up => {
                    self.take_back(id);
                }
                // Being revoked, or going down: the fence frees it.
                _ => {}
            }
        }
        let done: Vec<_> = self
            .eng
            .slots
            .locals
            .iter()
            .filter(|(_, l)| l.done && l.flag.is_abandoned())
            .map(|(id, _)| id)
            .collect();
        for id in done {
            self.eng.slots.free_local(id);
        }
    }

    /// Takes an exposure back on nobody's order: its handle was dropped, or its lease is over.
    pub(super) fn take_back(&mut self, id: ExposureId) {
        self.eng.unstage(id);
        let Some(e) = self.eng.slots.exposures.get(id) else { return self.deliver() };
        let taken = match (e.open, e.reply_after) {
            (0, _) => Ok(()),
            // A reply may still invalidate a key: only deregistration is safe (rule 5).
            (_, Some(_)) => self.cancel_slot(id),
            (_, None) => self.unmap(id),
        };
        if let Err(e) = taken {
            tracing::warn!(error = %e, "an exposure was not taken back; the next poll tries again");
            self.eng.slots.bell.fetch_add(1, Ordering::Relaxed);
        }
        self.deliver();
    }

    /// Whether a region's key is revoked by a WR.
    fn by_wr(&self, region: RegionId) -> bool {
        self.eng.keys.get(region).is_some_and(|r| r.kind.by_wr())
    }
}
