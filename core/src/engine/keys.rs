//! Which keys are live. The only place where a key's state changes, and where the ledger is
//! written.

use crate::device::FastMrKind;
use crate::engine::exposure::ExposureId;
use crate::engine::ledger::{KeyEvent, KeyName, Ledger, LedgerEvent, Rule};
use crate::memreg::RegionId;
use crate::mutants::mutant;
use crate::types::{Grant, MrId, MwId, Rkey, WrId};
use slotmap::{Key, KeyData, SlotMap};
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) kind: RegionKind,
    pub(crate) rkey: Rkey,
    /// In the table, of a key that is in step with others it means nothing.
    pub(crate) state: KeyState,
    /// Whether its state is that of its exposure's [`Step`].
    in_step: bool,
    /// Counts registrations.
    pub(crate) turn: u32,
    /// The registration that takes the last tag of its MR or window.
    last_turn: u32,
    owner: Owner,
}

/// The exposure that a region is for, or none: one word to compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owner(u64);

impl Owner {
    const NOBODY: Owner = Owner(0);

    #[inline]
    fn of(id: ExposureId) -> Owner {
        // Never 0: it has a generation.
        Owner(id.data().as_ffi())
    }

    /// Where the exposure stands among all.
    #[inline]
    fn slot(self) -> usize {
        self.0 as u32 as usize
    }

    #[inline]
    fn exposure(self) -> Option<ExposureId> {
        (self != Owner::NOBODY).then(|| KeyData::from_ffi(self.0).into())
    }
}

/// The state of the keys of one exposure that were staged together and of which nothing else is
/// known: most live and die so. A key to which something happens alone leaves the others.
///
/// Once they are dead, nothing is written to their regions. One still names its exposure then, and
/// is idle all the same: its exposure's step says so, or there is none any more, for an exposure
/// does not go before its keys are dead.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// The exposure; nobody's step is free.
    owner: Owner,
    state: KeyState,
    /// Keys that have not left.
    keys: usize,
    /// Whether any key has used every tag.
    worn: bool,
}

/// The steps of all exposures, each in the place of its exposure's slot. A later exposure in that
/// slot takes the place over.
#[derive(Debug, Default)]
struct Steps(Vec<Step>);

impl Steps {
    const FREE: Step = Step { owner: Owner::NOBODY, state: KeyState::Dead, keys: 0, worn: false };

    /// That many keys are staged in step for an exposure that had none.
    #[inline]
    fn begin(&mut self, owner: Owner, keys: usize, worn: bool) {
        if owner.slot() >= self.0.len() {
            self.grow(owner);
        }
        if let Some(step) = self.0.get_mut(owner.slot()) {
            *step = Step { owner, state: KeyState::Staged, keys, worn };
        }
    }

    #[cold]
    fn grow(&mut self, owner: Owner) {
        self.0.resize(owner.slot() + 1, Steps::FREE);
    }

    #[inline]
    fn get(&self, owner: Owner) -> Option<&Step> {
        self.0.get(owner.slot()).filter(|step| step.owner == owner)
    }

    #[inline]
    fn get_mut(&mut self, owner: Owner) -> Option<&mut Step> {
        self.0.get_mut(owner.slot()).filter(|step| step.owner == owner)
    }

    /// The state of the keys that are in step for an exposure.
    #[inline]
    fn state(&self, of: Owner) -> KeyState {
        self.get(of).map_or(KeyState::Dead, |step| step.state)
    }
}

impl Region {
    /// Tags of one MR or window: one less than there are, so that the one it was made with is never
    /// told to a peer either.
    const TAGS: u32 = u8::MAX as u32;

    /// What it is part of, if anything.
    #[inline]
    pub(crate) fn exposure(&self) -> Option<ExposureId> {
        self.owner.exposure()
    }

    /// What the ledger says of it.
    #[inline]
    fn line(&self, region: RegionId, what: KeyEvent) -> LedgerEvent {
        LedgerEvent::Key { region, rkey: self.rkey, turn: self.turn, what }
    }

    /// Idle, and every tag was used.
    #[inline]
    fn is_worn(&self) -> bool {
        self.is_used_up() && self.state == KeyState::Dead && self.kind.by_wr()
    }

    /// Whether every tag was used.
    #[inline]
    fn is_used_up(&self) -> bool {
        self.turn == self.last_turn && !mutant!("D-11")
    }

    /// Whether it is a window whose key is proven dead (rule 2), by itself.
    fn is_idle_window(&self) -> bool {
        let dead = self.state == KeyState::Dead || mutant!("D-09");
        dead && matches!(self.kind, RegionKind::Window { .. })
    }

    /// The key of the next registration.
    #[inline]
    fn next_key(&mut self) {
        if !mutant!("tag") {
            self.rkey = self.rkey.next_tag();
        }
        self.turn = self.turn.wrapping_add(1);
    }

    /// Takes `next_key` back: nobody has seen the key, so it will be the next one again.
    fn last_key(&mut self) {
        if !mutant!("tag") {
            self.rkey = self.rkey.last_tag();
        }
        self.turn = self.turn.wrapping_sub(1);
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
        let dead = r.state == KeyState::Dead || mutant!("D-09");
        if !r.kind.by_wr() || !dead || r.is_used_up() {
            return None;
        }
        r.next_key();
        r.state = KeyState::Staged;
        r.owner = Owner::of(to);
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

/// All regions of one transport.
#[derive(Debug)]
pub(crate) struct KeyTable {
    regions: SlotMap<RegionId, Region>,
    steps: Steps,
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
            steps: Steps::default(),
            by_index: ByIndex::default(),
            inv_slots: 0,
            ended_live: VecDeque::with_capacity(ENDED_KEPT),
            ledger: Ledger::new(),
        }
    }

    /// A region whose key is dead, ready for REG_MR or a bind.
    pub(crate) fn add_dead(&mut self, kind: RegionKind, rkey: Rkey) -> RegionId {
        let state = KeyState::Dead;
        let region = Region {
            kind,
            rkey,
            state,
            in_step: false,
            turn: 0,
            last_turn: Region::TAGS,
            owner: Owner::NOBODY,
        };
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
            in_step: false,
            turn: 0,
            last_turn: Region::TAGS,
            owner: Owner::of(to),
        });
        let exposure = to.data().as_ffi();
        self.note(id, KeyEvent::Granted { exposure, wr: None, qp_bound: false });
        id
    }

    /// What is known of a region now.
    #[inline]
    pub(crate) fn get(&self, id: RegionId) -> Option<Region> {
        let mut r = *self.regions.get(id)?;
        if r.in_step {
            r.state = self.steps.state(r.owner);
            if r.state == KeyState::Dead {
                r.owner = Owner::NOBODY;
            }
        }
        Some(r)
    }

    /// A region by itself: it leaves the others of its exposure, with the state that it has.
    fn alone(&mut self, id: RegionId) -> Option<&mut Region> {
        let r = self.regions.get_mut(id)?;
        if std::mem::take(&mut r.in_step) {
            match self.steps.get_mut(r.owner) {
                Some(step) if step.state != KeyState::Dead => {
                    r.state = step.state;
                    step.keys -= 1;
                }
                _ => (r.state, r.owner) = (KeyState::Dead, Owner::NOBODY),
            }
        }
        Some(r)
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
        let r = self.get(id)?;
        let open = matches!(r.state, KeyState::Live | KeyState::Invalidating | KeyState::Unknown);
        let exact = r.rkey == rkey || mutant!("rule-2-tag");
        (exact && open).then_some(id)
    }

    /// A region, to be staged if its key is dead.
    #[inline]
    pub(crate) fn staging(&mut self, id: RegionId) -> Option<Staging<'_>> {
        self.alone(id)?;
        let r = self.regions.get_mut(id)?;
        Some(Staging { r, inv_slots: &mut self.inv_slots })
    }

    /// Dead → Staged, with a new tag each, of windows that will be in step with the others of this
    /// exposure: [`staged_in_step`](KeyTable::staged_in_step) must follow when all are staged,
    /// or [`unstage_in_step`](KeyTable::unstage_in_step).
    /// Returns how many were from the first on, all, or those before the first that is no window,
    /// or whose key is not proven dead, or has no tag left; and whether one has none left now.
    #[inline(never)]
    pub(crate) fn stage_in_step(
        &mut self,
        to: ExposureId,
        windows: &[RegionId],
        names: &mut [KeyName],
    ) -> (usize, bool) {
        // Most of them were of one exposure before.
        let (mut staged, mut worn, mut dead_of) = (0, false, Owner::NOBODY);
        let owner = Owner::of(to);
        for (&region, name) in windows.iter().zip(names) {
            let Some(r) = self.regions.get_mut(region) else { break };
            // Only windows are ever in step.
            if r.in_step {
                if r.owner != dead_of {
                    if r.owner == owner {
                        break;
                    }
                    if self.steps.state(r.owner) != KeyState::Dead && !mutant!("D-09") {
                        break;
                    }
                    dead_of = r.owner;
                }
            } else if !r.is_idle_window() {
                break;
            }
            if r.is_used_up() {
                break;
            }
            r.next_key();
            if r.turn == r.last_turn {
                worn = true;
            }
            (r.in_step, r.owner) = (true, owner);
            *name = KeyName { region, rkey: r.rkey, turn: r.turn };
            staged += 1;
        }
        (staged, worn)
    }

    /// Staged → Dead, as if `stage_in_step` had never been: it used up no tag.
    #[cold]
    pub(crate) fn unstage_in_step(&mut self, windows: &[RegionId]) {
        for &region in windows {
            if let Some(r) = self.regions.get_mut(region) {
                r.last_key();
                (r.in_step, r.state, r.owner) = (false, KeyState::Dead, Owner::NOBODY);
            }
        }
    }

    /// So many windows were staged in step for an exposure that had no key yet; whether any of them
    /// has no tag left.
    #[inline]
    pub(crate) fn staged_in_step(&mut self, of: ExposureId, keys: usize, worn: bool) {
        self.steps.begin(Owner::of(of), keys, worn);
        self.inv_slots += if mutant!("rule-7") { 0 } else { keys };
    }

    /// The state of the keys of an exposure, if exactly that many, at least one, are in step.
    #[inline]
    pub(crate) fn all_in_step(&self, of: ExposureId, keys: usize) -> Option<KeyState> {
        self.steps.get(Owner::of(of)).filter(|s| s.keys == keys && keys > 0).map(|s| s.state)
    }

    /// Dead → Staged, of a region alone.
    #[cfg(test)]
    pub(crate) fn stage(&mut self, id: RegionId, to: ExposureId) -> Option<Rkey> {
        self.staging(id)?.stage(to)
    }

    /// Whether a region is idle and every tag of its key was used: with one more registration a key
    /// of long ago would open something again (D-11).
    pub(crate) fn is_worn(&self, id: RegionId) -> bool {
        self.get(id).is_some_and(|r| r.is_worn())
    }

    /// An idle region has a new MR or window, and with it a key of another index.
    pub(crate) fn renew(&mut self, id: RegionId, kind: RegionKind, rkey: Rkey) {
        if let Some(r) = self.alone(id) {
            let old = r.rkey.index();
            (r.kind, r.rkey) = (kind, rkey);
            r.last_turn = r.turn.wrapping_add(Region::TAGS);
            self.by_index.remove(old, id);
            self.by_index.insert(rkey.index(), id);
        }
    }

    /// A region whose key is staged for this exposure.
    #[inline]
    pub(crate) fn staged(&mut self, id: RegionId, of: ExposureId) -> Option<Granting<'_>> {
        self.alone(id)?;
        let r = self.regions.get_mut(id)?;
        let mine = r.state == KeyState::Staged && r.owner == Owner::of(of);
        mine.then_some(Granting { id, of, r, ledger: &mut self.ledger })
    }

    /// Staged → Live, of all the keys of an exposure, which are in step; `names` are those that the
    /// WRs from `first` on grant.
    #[inline]
    pub(crate) fn grant_in_step(&mut self, of: ExposureId, first: WrId, names: &[KeyName]) {
        if let Some(step) = self.steps.get_mut(Owner::of(of)) {
            step.state = KeyState::Live;
        }
        self.ledger.granted(of.data().as_ffi(), first, true, names);
    }

    /// Staged → Live, of a region alone.
    #[cfg(test)]
    pub(crate) fn grant(&mut self, id: RegionId, wr: WrId) {
        if let Some(of) = self.get(id).and_then(|r| r.exposure())
            && let Some(g) = self.staged(id, of)
        {
            g.grant(wr);
        }
    }

    /// Live → Staged: the device refused the WR and the whole chain stays staged.
    pub(crate) fn take_back(&mut self, id: RegionId, wr: WrId) {
        if let Some(r) = self.alone(id) {
            r.state = KeyState::Staged;
            self.note(id, KeyEvent::Refused(wr));
            self.note(id, KeyEvent::Killed(Rule::NeverPosted));
        }
    }

    /// Live → Invalidating: its LOCAL_INV is about to be handed to the device. Returns its key;
    /// `None`, and no change, for a region that has no LOCAL_INV.
    #[inline]
    pub(crate) fn invalidating(&mut self, id: RegionId, wr: WrId) -> Option<Rkey> {
        let r = *self.alone(id).filter(|r| r.kind.by_wr())?;
        self.change(id, |r| r.state = KeyState::Invalidating);
        self.ledger.write(r.line(id, KeyEvent::InvPosted(wr)));
        Some(r.rkey)
    }

    /// Live → Invalidating, of all the keys of an exposure, which are in step; `names` are those
    /// that the WRs from `first` on invalidate.
    #[inline]
    pub(crate) fn invalidating_in_step(&mut self, of: ExposureId, first: WrId, names: &[KeyName]) {
        if let Some(step) = self.steps.get_mut(Owner::of(of))
            && step.state == KeyState::Live
        {
            step.state = KeyState::Invalidating;
            self.inv_slots -= if mutant!("rule-7") { 0 } else { step.keys };
        }
        self.ledger.inv_posted(first, names);
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
        let r = *self.alone(id)?;
        if r.state != KeyState::Staged && r.state != KeyState::Dead {
            self.ledger.write(r.line(id, KeyEvent::Killed(rule)));
        }
        self.change(id, |r| (r.state, r.owner) = (KeyState::Dead, Owner::NOBODY));
        r.exposure()
    }

    /// Whether the key of this region is live, and for this exposure.
    #[inline]
    pub(crate) fn is_live(&self, id: RegionId, of: ExposureId) -> bool {
        self.get(id).is_some_and(|r| r.owner == Owner::of(of) && r.state == KeyState::Live)
    }

    /// The LOCAL_INV of a region of this exposure succeeded: Invalidating → Dead. Returns whether
    /// every tag of its key was used. `None`, and no change, if the key is dead already, whoever
    /// the region is for now.
    pub(crate) fn invalidated(&mut self, id: RegionId, of: ExposureId) -> Option<bool> {
        let r = self.get(id)?;
        if r.owner != Owner::of(of) || r.state != KeyState::Invalidating {
            return None;
        }
        self.kill(id, Rule::LocalInv);
        Some(r.is_used_up())
    }

    /// As [`invalidated`](KeyTable::invalidated), of all the keys of an exposure, which are in
    /// step. Returns whether any key has used every tag.
    #[inline]
    pub(crate) fn invalidated_in_step(&mut self, of: ExposureId, names: &[KeyName]) -> bool {
        // Their reserved slots were taken by the LOCAL_INVs.
        self.ledger.killed(Rule::LocalInv, names);
        let Some(step) = self.steps.get_mut(Owner::of(of)) else { return false };
        step.state = KeyState::Dead;
        step.worn && !mutant!("D-11")
    }

    /// Writes what happened to a key.
    pub(crate) fn note(&mut self, region: RegionId, what: KeyEvent) {
        if let Some(r) = self.get(region) {
            self.ledger.write(r.line(region, what));
        }
    }

    /// Notes that the engine is about to end a live region by a verb.
    pub(crate) fn ending(&mut self, id: RegionId) {
        let Some(r) = self.get(id) else { return };
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
        self.alone(id);
        if let Some(r) = self.regions.remove(id) {
            debug_assert_eq!(r.state, KeyState::Dead);
            self.by_index.remove(r.rkey.index(), id);
        }
    }

    /// Changes a region and keeps the count of reserved slots true.
    fn change(&mut self, id: RegionId, f: impl FnOnce(&mut Region)) {
        if let Some(r) = self.alone(id) {
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
        let what = |l: LedgerEntry| match l.event {
            LedgerEvent::Key { what, .. } => what,
            other => panic!("{other:?}"),
        };
        let events: Vec<_> = t.ledger.iter().map(what).collect();
        let exposure = E().data().as_ffi();
        let granted = KeyEvent::Granted { exposure, wr: Some(WrId(7)), qp_bound: false };
        assert_eq!(events, [granted, KeyEvent::Unknown, KeyEvent::Killed(Rule::Dereg)]);
    }
}
