//! Which keys are live. The only place where a key's state changes, and where the ledger is
//! written.

use crate::device::FastMrKind;
use crate::engine::exposure::ExposureId;
use crate::engine::ledger::{KeyEvent, Ledger, LedgerEvent, Rule};
use crate::memreg::RegionId;
use crate::mutants::mutant;
use crate::types::{Grant, MrId, MwId, Rkey, WrId};
use slotmap::{Key, SlotMap};
use std::collections::VecDeque;

/// What a region is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RegionKind {
    /// An MR for REG_MR.
    Fast { mr: MrId, depth: u32, kind: FastMrKind },
    /// A type-2 window, bound onto the parent MR of a buffer.
    Window { mw: MwId },
    /// An ordinary MR with remote rights, for one exposure.
    Ordinary { mr: MrId },
    /// A part of the bounce arena, for one exposure.
    Bounce { at: u64, len: u64, grant: Grant },
}

impl RegionKind {
    /// Whether its key is granted and revoked by WRs.
    #[inline]
    pub(crate) fn by_wr(self) -> bool {
        matches!(self, RegionKind::Fast { .. } | RegionKind::Window { .. })
    }
}

/// What the engine knows of a region's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyState {
    /// Proven dead: nothing opens with it.
    Dead,
    /// Chosen for an exposure; the device has not seen it.
    Staged,
    /// Handed to the device.
    Live,
    /// Live, and its LOCAL_INV is on the send queue.
    Invalidating,
    /// A WR that changes it was flushed or failed: live until the MR is gone.
    Unknown,
}

/// One region.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) kind: RegionKind,
    pub(crate) rkey: Rkey,
    pub(crate) state: KeyState,
    /// Counts registrations, so that a late completion of an earlier one changes nothing.
    pub(crate) turn: u32,
    /// Tags that the key has had since its MR or window was made.
    tags: u8,
    pub(crate) exposure: Option<ExposureId>,
}

impl Region {
    /// Tags of one MR or window: one less than there are, so that the one it was made with is never
    /// told to a peer either.
    const TAGS: u8 = u8::MAX;

    /// What the ledger says of it.
    #[inline]
    fn line(&self, region: RegionId, what: KeyEvent) -> LedgerEvent {
        LedgerEvent::Key { region, rkey: self.rkey, turn: self.turn, what }
    }

    /// Idle, and every tag was used.
    #[inline]
    fn is_worn(&self) -> bool {
        self.tags == Region::TAGS && self.state == KeyState::Dead && self.kind.by_wr()
    }

    /// Whether a fence of this region would take a send-queue slot.
    #[inline]
    fn needs_inv_slot(&self) -> bool {
        self.kind.by_wr()
            && !mutant!("rule-7")
            && matches!(self.state, KeyState::Staged | KeyState::Live)
    }
}

/// A region that a strategy wants registered.
pub(crate) struct Staging<'a> {
    r: &'a mut Region,
    inv_slots: &'a mut usize,
}

impl Staging<'_> {
    #[inline]
    pub(crate) fn region(&self) -> &Region {
        self.r
    }

    /// Dead → Staged with a new tag. `None`, and no change, for a key not proven dead (rule 2) or
    /// whose tags are used up (D-11): the engine refuses a registration on it.
    #[inline]
    pub(crate) fn stage(self, to: ExposureId) -> Option<Rkey> {
        let r = self.r;
        let dead = r.state == KeyState::Dead && r.exposure.is_none();
        let worn = r.tags == Region::TAGS && !mutant!("D-11");
        if !r.kind.by_wr() || !(dead || mutant!("D-09")) || worn {
            return None;
        }
        r.tags = r.tags.wrapping_add(1);
        if !mutant!("tag") {
            r.rkey = r.rkey.next_tag();
        }
        r.turn = r.turn.wrapping_add(1);
        r.state = KeyState::Staged;
        r.exposure = Some(to);
        *self.inv_slots += usize::from(!mutant!("rule-7"));
        Some(r.rkey)
    }
}

/// A region whose WR is about to be handed to the device.
pub(crate) struct Granting<'a> {
    id: RegionId,
    of: ExposureId,
    r: &'a mut Region,
    ledger: &'a mut Ledger,
}

impl Granting<'_> {
    #[inline]
    pub(crate) fn region(&self) -> &Region {
        self.r
    }

    /// Staged → Live.
    #[inline]
    pub(crate) fn grant(self, wr: WrId) {
        self.r.state = KeyState::Live;
        let exposure = self.of.data().as_ffi();
        let qp_bound = matches!(self.r.kind, RegionKind::Window { .. });
        let what = KeyEvent::Granted { exposure, wr: Some(wr), qp_bound };
        self.ledger.write(self.r.line(self.id, what));
    }
}

/// What ended with an invalidation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Invalidated {
    /// The exposure that the region was part of.
    pub(crate) exposure: Option<ExposureId>,
    /// Every tag of its key was used.
    pub(crate) worn: bool,
}

/// All regions of one transport.
#[derive(Debug)]
pub(crate) struct KeyTable {
    regions: SlotMap<RegionId, Region>,
    /// Regions that WRs grant, by key index, for the peer's invalidations.
    by_index: ByIndex,
    inv_slots: usize,
    /// Keys that this side has ended while they were live, newest last: a peer's invalidation of
    /// one of them may have been carried out before, and its completion come after.
    ended_live: VecDeque<Rkey>,
    pub(crate) ledger: Ledger,
}

/// Regions by the index of their keys, sorted: keeps its memory when keys come and go.
#[derive(Debug, Default)]
struct ByIndex(Vec<(u32, RegionId)>);

impl ByIndex {
    fn place(&self, index: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&index, |&(i, _)| i)
    }

    fn get(&self, index: u32) -> Option<RegionId> {
        self.place(index).ok().map(|at| self.0[at].1)
    }

    /// The region takes the place of one whose key had the same index.
    fn insert(&mut self, index: u32, id: RegionId) {
        match self.place(index) {
            Ok(at) => self.0[at].1 = id,
            Err(at) => self.0.insert(at, (index, id)),
        }
    }

    /// Unless another region has taken its place.
    fn remove(&mut self, index: u32, id: RegionId) {
        if let Ok(at) = self.place(index)
            && self.0[at].1 == id
        {
            self.0.remove(at);
        }
    }
}

/// Keys remembered that were ended while live.
const ENDED_KEPT: usize = 64;

impl KeyTable {
    pub(crate) fn new() -> KeyTable {
        KeyTable {
            regions: SlotMap::with_key(),
            by_index: ByIndex::default(),
            inv_slots: 0,
            ended_live: VecDeque::with_capacity(ENDED_KEPT),
            ledger: Ledger::new(),
        }
    }

    /// A region whose key is dead, ready for REG_MR or a bind.
    pub(crate) fn add_dead(&mut self, kind: RegionKind, rkey: Rkey) -> RegionId {
        let state = KeyState::Dead;
        let region = Region { kind, rkey, state, turn: 0, tags: 0, exposure: None };
        let id = self.regions.insert(region);
        self.by_index.insert(rkey.index(), id);
        id
    }

    /// A region whose key was granted by a verb and is live already.
    pub(crate) fn add_live(&mut self, kind: RegionKind, rkey: Rkey, to: ExposureId) -> RegionId {
        let id = self.regions.insert(Region {
            kind,
            rkey,
            state: KeyState::Live,
            turn: 0,
            tags: 0,
            exposure: Some(to),
        });
        let exposure = to.data().as_ffi();
        self.note(id, KeyEvent::Granted { exposure, wr: None, qp_bound: false });
        id
    }

    #[inline]
    pub(crate) fn get(&self, id: RegionId) -> Option<&Region> {
        self.regions.get(id)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = RegionId> + '_ {
        self.regions.keys()
    }

    /// Slots to keep free for fences that may be asked for (rule 7).
    #[inline]
    pub(crate) fn inv_slots(&self) -> usize {
        self.inv_slots
    }

    /// The region that owns exactly this key, if it is not dead.
    pub(crate) fn live_by_key(&self, rkey: Rkey) -> Option<RegionId> {
        let id = self.by_index.get(rkey.index())?;
        let r = self.regions.get(id)?;
        let open = matches!(r.state, KeyState::Live | KeyState::Invalidating | KeyState::Unknown);
        let exact = r.rkey == rkey || mutant!("rule-2-tag");
        (exact && open).then_some(id)
    }

    /// A region, to be staged if its key is dead.
    #[inline]
    pub(crate) fn staging(&mut self, id: RegionId) -> Option<Staging<'_>> {
        let r = self.regions.get_mut(id)?;
        Some(Staging { r, inv_slots: &mut self.inv_slots })
    }

    /// Dead → Staged, of a region alone.
    #[cfg(test)]
    pub(crate) fn stage(&mut self, id: RegionId, to: ExposureId) -> Option<Rkey> {
        self.staging(id)?.stage(to)
    }

    /// Whether a region is idle and every tag of its key was used: with one more registration a key
    /// of long ago would open something again (D-11).
    pub(crate) fn is_worn(&self, id: RegionId) -> bool {
        self.regions.get(id).is_some_and(Region::is_worn) && !mutant!("D-11")
    }

    /// An idle region has a new MR or window, and with it a key of another index.
    pub(crate) fn renew(&mut self, id: RegionId, kind: RegionKind, rkey: Rkey) {
        if let Some(r) = self.regions.get_mut(id) {
            self.by_index.remove(r.rkey.index(), id);
            self.by_index.insert(rkey.index(), id);
            (r.kind, r.rkey, r.tags) = (kind, rkey, 0);
        }
    }

    /// A region whose key is staged for this exposure.
    #[inline]
    pub(crate) fn staged(&mut self, id: RegionId, of: ExposureId) -> Option<Granting<'_>> {
        let r = self.regions.get_mut(id)?;
        let mine = r.state == KeyState::Staged && r.exposure == Some(of);
        mine.then_some(Granting { id, of, r, ledger: &mut self.ledger })
    }

    /// Staged → Live, of a region alone.
    #[cfg(test)]
    pub(crate) fn grant(&mut self, id: RegionId, wr: WrId) {
        if let Some(of) = self.get(id).and_then(|r| r.exposure)
            && let Some(g) = self.staged(id, of)
        {
            g.grant(wr);
        }
    }

    /// Live → Staged: the device refused the WR and the whole chain stays staged.
    pub(crate) fn take_back(&mut self, id: RegionId, wr: WrId) {
        if let Some(r) = self.regions.get_mut(id) {
            r.state = KeyState::Staged;
            self.note(id, KeyEvent::Refused(wr));
            self.note(id, KeyEvent::Killed(Rule::NeverPosted));
        }
    }

    /// Live → Invalidating: its LOCAL_INV is about to be handed to the device. Returns its key and
    /// the number of its registration; `None`, and no change, for a region that has no LOCAL_INV.
    #[inline]
    pub(crate) fn invalidating(&mut self, id: RegionId, wr: WrId) -> Option<(Rkey, u32)> {
        let r = self.regions.get_mut(id).filter(|r| r.kind.by_wr())?;
        self.inv_slots -= usize::from(r.needs_inv_slot());
        r.state = KeyState::Invalidating;
        self.ledger.write(r.line(id, KeyEvent::InvPosted(wr)));
        Some((r.rkey, r.turn))
    }

    /// Invalidating → Live: the device refused the LOCAL_INV.
    pub(crate) fn not_invalidating(&mut self, id: RegionId, wr: WrId) {
        self.change(id, |r| r.state = KeyState::Live);
        self.note(id, KeyEvent::Refused(wr));
    }

    /// → Unknown: a WR that changes the key was flushed or failed (rule 3).
    pub(crate) fn unknown(&mut self, id: RegionId) {
        self.change(id, |r| r.state = KeyState::Unknown);
        self.note(id, KeyEvent::Unknown);
    }

    /// → Dead, by a rule; returns the exposure that it was part of.
    #[inline]
    pub(crate) fn kill(&mut self, id: RegionId, rule: Rule) -> Option<ExposureId> {
        let r = self.regions.get_mut(id)?;
        if r.state != KeyState::Staged && r.state != KeyState::Dead {
            self.ledger.write(r.line(id, KeyEvent::Killed(rule)));
        }
        self.inv_slots -= usize::from(r.needs_inv_slot());
        r.state = KeyState::Dead;
        r.exposure.take()
    }

    /// Whether the registration of this number is the region's last one, and its key is live.
    #[inline]
    pub(crate) fn is_live(&self, id: RegionId, turn: u32) -> bool {
        self.regions.get(id).is_some_and(|r| r.turn == turn && r.state == KeyState::Live)
    }

    /// The LOCAL_INV of one registration of a region succeeded: Invalidating → Dead. `None`, and no
    /// change, for an earlier registration, or if the key is dead already.
    #[inline]
    pub(crate) fn invalidated(&mut self, id: RegionId, turn: u32) -> Option<Invalidated> {
        let r = self.regions.get_mut(id)?;
        if r.turn != turn || r.state != KeyState::Invalidating {
            return None;
        }
        // Its reserved slot was taken by the LOCAL_INV.
        self.ledger.write(r.line(id, KeyEvent::Killed(Rule::LocalInv)));
        r.state = KeyState::Dead;
        let worn = r.tags == Region::TAGS && !mutant!("D-11");
        Some(Invalidated { exposure: r.exposure.take(), worn })
    }

    /// Writes what happened to a key.
    pub(crate) fn note(&mut self, region: RegionId, what: KeyEvent) {
        if let Some(r) = self.regions.get(region) {
            self.ledger.write(r.line(region, what));
        }
    }

    /// Notes that the engine is about to end a live region by a verb.
    pub(crate) fn ending(&mut self, id: RegionId) {
        let Some(r) = self.regions.get(id) else { return };
        if !r.kind.by_wr() || !matches!(r.state, KeyState::Live | KeyState::Invalidating) {
            return;
        }
        if self.ended_live.len() == ENDED_KEPT {
            self.ended_live.pop_front();
        }
        self.ended_live.push_back(r.rkey);
    }

    /// Whether exactly this key was ended while it was live, not long ago.
    pub(crate) fn was_ended_live(&self, rkey: Rkey) -> bool {
        self.ended_live.contains(&rkey)
    }

    /// Forgets a dead region: its MR is gone.
    pub(crate) fn remove(&mut self, id: RegionId) {
        if let Some(r) = self.regions.remove(id) {
            debug_assert_eq!(r.state, KeyState::Dead);
            self.by_index.remove(r.rkey.index(), id);
        }
    }

    /// Changes a region and keeps the count of reserved slots true.
    fn change(&mut self, id: RegionId, f: impl FnOnce(&mut Region)) {
        if let Some(r) = self.regions.get_mut(id) {
            let before = r.needs_inv_slot();
            f(r);
            let after = r.needs_inv_slot();
            self.inv_slots = self.inv_slots + usize::from(after) - usize::from(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ledger::LedgerEntry;

    fn table() -> (KeyTable, RegionId) {
        let mut t = KeyTable::new();
        let kind = RegionKind::Fast { mr: MrId(1), depth: 8, kind: FastMrKind::Pages };
        let id = t.add_dead(kind, Rkey::from_bits(0x1ff));
        (t, id)
    }

    const E: fn() -> ExposureId = ExposureId::default;

    #[test]
    fn rule_2_m_05_a_key_not_proven_dead_is_never_registered_again() {
        let (mut t, id) = table();
        assert_eq!(t.stage(id, E()).map(Rkey::to_bits), Some(0x100), "MAP-13 wraps");
        assert_eq!(t.stage(id, E()), None, "staged");
        t.grant(id, WrId(1));
        assert_eq!(t.stage(id, E()), None, "live");
        t.invalidating(id, WrId(2));
        assert_eq!(t.stage(id, E()), None, "its LOCAL_INV is only queued");
        t.unknown(id);
        assert_eq!(t.stage(id, E()), None, "unknown");
        assert!(t.kill(id, Rule::Dereg).is_some());
        assert!(t.stage(id, E()).is_some());
    }

    #[test]
    fn d_11_a_key_whose_tags_are_used_up_is_not_registered_again() {
        let (mut t, id) = table();
        let mut seen = std::collections::BTreeSet::from([Rkey::from_bits(0x1ff).to_bits()]);
        for _ in 0..255 {
            assert!(!t.is_worn(id));
            assert!(t.stage(id, E()).is_some_and(|k| seen.insert(k.to_bits())));
            t.kill(id, Rule::NeverPosted);
        }
        assert!(t.is_worn(id));
        assert_eq!(t.stage(id, E()), None);
        let kind = RegionKind::Fast { mr: MrId(2), depth: 8, kind: FastMrKind::Pages };
        t.renew(id, kind, Rkey::from_bits(0x2fe));
        assert!(!t.is_worn(id));
        assert_eq!(t.stage(id, E()).map(Rkey::to_bits), Some(0x2ff));
        t.grant(id, WrId(1));
        assert_eq!(t.live_by_key(Rkey::from_bits(0x2ff)), Some(id));
    }

    #[test]
    fn rule_7_slots_are_reserved_from_staging_to_the_invalidation() {
        let (mut t, id) = table();
        assert_eq!(t.inv_slots(), 0);
        t.stage(id, E());
        assert_eq!(t.inv_slots(), 1);
        t.grant(id, WrId(1));
        assert_eq!(t.inv_slots(), 1);
        t.invalidating(id, WrId(2));
        assert_eq!(t.inv_slots(), 0);
        t.not_invalidating(id, WrId(2));
        assert_eq!(t.inv_slots(), 1);
        t.kill(id, Rule::RemoteInv);
        assert_eq!(t.inv_slots(), 0);
    }

    #[test]
    fn h_66_only_the_exact_live_key_is_found() {
        let (mut t, id) = table();
        let first = t.stage(id, E()).unwrap();
        assert_eq!(t.live_by_key(first), None, "staged only");
        t.grant(id, WrId(1));
        assert_eq!(t.live_by_key(first), Some(id));
        assert_eq!(t.live_by_key(first.next_tag()), None);
        t.kill(id, Rule::RemoteInv);
        assert_eq!(t.live_by_key(first), None, "already invalid");
    }

    #[test]
    fn ledger_has_one_end_for_each_grant() {
        let (mut t, id) = table();
        t.stage(id, E());
        t.kill(id, Rule::NeverPosted);
        assert_eq!(t.ledger.iter().count(), 0, "the device never saw it");
        t.stage(id, E());
        t.grant(id, WrId(7));
        t.unknown(id);
        t.kill(id, Rule::Dereg);
        let what = |l: &LedgerEntry| match l.event {
            LedgerEvent::Key { what, .. } => what,
            other => panic!("{other:?}"),
        };
        let events: Vec<_> = t.ledger.iter().map(what).collect();
        let exposure = E().data().as_ffi();
        let granted = KeyEvent::Granted { exposure, wr: Some(WrId(7)), qp_bound: false };
        assert_eq!(events, [granted, KeyEvent::Unknown, KeyEvent::Killed(Rule::Dereg)]);
    }
}
