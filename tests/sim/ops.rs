//! What a step does.

use super::bytes::{Write, pattern};
use super::log::note;
use super::plan::{DRAIN_LIMIT_NS, Op};
use super::side::{Access, Lent, Side, Taken, What};
use super::world::World;
use memreg_core::transport::error::{Refusal, TakeRefusal};
use memreg_core::transport::{ExposureState, NoReply, Reply};
use memreg_core::types::{Grant, Segment};
use std::ops::Range;

impl World {
    pub fn act(&mut self, op: Op, c: usize, s: usize) {
        match op {
            Op::Expose => self.expose(c, s, false),
            Op::ExposeUntil => self.expose(c, s, true),
            Op::Renew => self.renew(c, s),
            Op::Send => self.send(c, s, false),
            Op::SendMarked => self.send(c, s, true),
            Op::Flush => {
                let r = self.conns[c].sides[s].t.flush();
                note!(self.log, "  {r:?}");
            }
            Op::Access => self.access(c, s, false),
            Op::RacingAccess => self.access(c, s, true),
            Op::Reply => self.reply(c, s),
            Op::BadInvalidation => self.bad_invalidation(c, s),
            Op::Recv => {
                self.recv(c, s);
            }
            Op::Revoke => self.revoke(c, s),
            Op::RevokeAll => self.revoke_all(c, s),
            Op::Cancel => self.cancel(c, s),
            Op::DropHandle | Op::ForgetHandle => self.let_go(op, c, s),
            Op::Reclaim => self.reclaim(c, s),
            Op::Take => self.take(c, s),
            Op::DropAccess => self.drop_access(c, s),
            Op::StaleAccess => self.stale_access(c, s),
            Op::ForeignAccess => self.foreign_access(c, s),
            Op::Poll => {
                self.poll(c, s);
                if self.rng.bool() {
                    self.poll(c, 1 - s);
                }
            }
            Op::Step => {
                let most = self.rng.usize(1..=6);
                let ran = self.fabric.run(most);
                note!(self.log, "  {ran}");
            }
            Op::Tick => self.tick(),
            Op::Disconnect => self.conns[c].sides[s].t.disconnect(),
            Op::Reconnect => self.reconnect(c),
            Op::Recover => {
                let budget = self.rng.usize(..4);
                let r = self.conns[c].sides[s].t.recover(budget);
                note!(self.log, "  {r:?}");
                assert!(r.is_ok_and(|done| done <= budget) || r.is_err(), "more than was asked");
            }
            Op::PassBuffer => self.pass_buffer(c, s),
            Op::Kill => self.kill(c, s),
            Op::Unplug => self.unplug(c, s),
        }
    }

    fn expose(&mut self, c: usize, s: usize, lease: bool) {
        let serial = self.number();
        let side = &mut self.conns[c].sides[s];
        // A lease ends whatever the peer does, which an owner that trusts its peer must not want.
        if side.out.len() >= 12 || (lease && side.physical()) {
            return;
        }
        let Taken { buffers, parts } = side.take(&mut self.rng, None, self.plan.buffer_len);
        let grant = if self.rng.bool() { Grant::PeerReads } else { Grant::PeerWrites };
        let exposed = if lease {
            let until = self.now.after(self.rng.u64(1..3 * DRAIN_LIMIT_NS));
            side.t.expose_until(buffers, grant, until)
        } else {
            side.t.expose(buffers, grant)
        };
        match exposed {
            Ok(handle) => {
                self.tally.exposures += 1;
                let segs = side.t.segments(&handle).unwrap().to_vec();
                let len: u64 = segs.iter().map(|s| s.len).sum();
                assert_eq!(len, super::bytes::payload_len(&parts) as u64, "every byte once");
                assert!(segs.iter().all(|s| s.grant == grant && s.epoch == side.t.epoch()));
                note!(self.log, "  {serial} {grant:?} {segs:?}");
                let state = side.t.exposure_state(&handle).unwrap();
                side.out.push(Lent {
                    serial,
                    handle,
                    grant,
                    segs,
                    parts,
                    writes: vec![],
                    state,
                    marked: false,
                    token: None,
                    told: false,
                    answered: false,
                });
            }
            Err(e) => {
                note!(self.log, "  {}", e.why);
                side.refused(parts, e);
            }
        }
    }

    /// A buffer of one side's program becomes another's, with what it was registered for.
    fn pass_buffer(&mut self, c: usize, s: usize) {
        let (to_c, to_s) = (self.rng.usize(..self.conns.len()), self.rng.usize(..2));
        if let Some(spare) = self.conns[c].sides[s].spare.pop() {
            note!(self.log, "  to {to_c}.{to_s}");
            self.conns[to_c].sides[to_s].spare.insert(0, spare);
        }
    }

    /// Moves the end of an exposure; never to one where the owner trusts its peer, or is orderly.
    fn renew(&mut self, c: usize, s: usize) {
        let now = self.now;
        let side = &mut self.conns[c].sides[s];
        if side.out.is_empty() {
            return;
        }
        let i = self.rng.usize(..side.out.len());
        let ends = !self.plan.calm && !side.physical() && self.rng.bool();
        let until = ends.then(|| now.after(self.rng.u64(..DRAIN_LIMIT_NS)));
        let r = side.t.renew(&side.out[i].handle, until);
        note!(self.log, "  {} {until:?}: {r:?}", side.out[i].serial);
    }

    /// A message that tells of up to three exposures. Marked: its reply may invalidate one of them.
    fn send(&mut self, c: usize, s: usize, marked: bool) {
        let side = &mut self.conns[c].sides[s];
        let start = self.rng.usize(..=side.out.len());
        let epoch = side.t.epoch();
        let held = [ExposureState::Staged, ExposureState::Exposed];
        let may = |l: &Lent| !l.told && held.contains(&l.state) && l.segs[0].epoch == epoch;
        let most = if marked { 1 } else { 3 };
        let new: Vec<usize> =
            (start..side.out.len()).filter(|&i| may(&side.out[i])).take(most).collect();
        if marked && (new.is_empty() || !side.t.limits().remote_invalidation) {
            return;
        }
        let serials: Vec<u64> = new.iter().map(|&i| side.out[i].serial).collect();
        let limit = side.plan.options.ask.max_message_bytes as usize;
        let pad = self.rng.usize(..=limit - 60);
        let message = super::message::encode(side.messages.sent, &serials, marked, pad);
        let marks: Vec<_> = new.iter().map(|&i| &side.out[i].handle).collect();
        let reply = if marked { Reply::MayInvalidate(&marks) } else { Reply::InvalidatesNothing };
        let sent = side.t.send(&message, reply);
        note!(self.log, "  {serials:?} {marked} {}: {sent:?}", message.len());
        assert!(!matches!(sent, Err(Refusal::MessageTooLong { .. })));
        if sent.is_ok() {
            side.messages.sent += 1;
            for i in new {
                side.out[i].told = true;
                side.out[i].marked = marked;
            }
        }
    }

    /// Takes one message; false if there is none.
    pub fn recv(&mut self, c: usize, s: usize) -> bool {
        let lossy = self.conns[c].lossy;
        let side = &mut self.conns[c].sides[s];
        let mut bytes = vec![];
        let Some(received) = side.t.recv(&mut bytes) else { return false };
        note!(self.log, "  {} {}", bytes.len(), received.invalidated);
        assert_eq!(received.len, bytes.len());
        let Some(m) = super::message::decode(&bytes) else {
            assert!(lossy, "a message was damaged");
            return true;
        };
        if !lossy {
            assert_eq!(m.number, side.messages.got, "messages arrive once and in order");
        }
        side.messages.got = side.messages.got.wrapping_add(1);
        match m.answers {
            Some(serial) => {
                if let Some(l) = side.lent(serial) {
                    l.token = Some(received.token);
                }
            }
            None => side.told.extend(m.serials),
        }
        true
    }

    /// The peer answers a marked message, and invalidates a key or not.
    fn reply(&mut self, c: usize, s: usize) {
        let (me, owner) = self.conns[c].pair(s);
        let told = &me.told;
        let ready = |l: &&mut Lent| l.marked && !l.answered && told.contains(&l.serial);
        let calm = self.plan.calm;
        let Some(lent) = owner.out.iter_mut().find(ready) else { return };
        // An orderly peer answers when its accesses have ended.
        if calm && me.is_using(lent.serial) {
            return;
        }
        let seg = lent.segs[self.rng.usize(..lent.segs.len())];
        let message = super::message::encode_reply(me.messages.sent, lent.serial);
        let with_inv = self.rng.bool() && me.t.caps().mem_mgt_extensions;
        let sent = if with_inv {
            me.t.send_with_inv(&message, &seg)
        } else {
            me.t.send(&message, Reply::InvalidatesNothing)
        };
        note!(self.log, "  {} {with_inv}: {sent:?}", lent.serial);
        if sent.is_ok() {
            me.messages.sent += 1;
            lent.answered = true;
        }
    }

    /// The peer invalidates a key that is dead, unknown, or not announced for it.
    fn bad_invalidation(&mut self, c: usize, s: usize) {
        let (me, owner) = self.conns[c].pair(s);
        if !me.t.caps().mem_mgt_extensions {
            return;
        }
        let epoch = owner.t.epoch();
        let keys: Vec<Segment> = owner
            .dead
            .iter()
            .chain(owner.out.iter().flat_map(|l| &l.segs))
            .map(|k| Segment { epoch, ..*k })
            .collect();
        if keys.is_empty() {
            return;
        }
        let mut seg = keys[self.rng.usize(..keys.len())];
        if self.rng.u32(..4) == 0 {
            seg.rkey = seg.rkey.next_tag();
        }
        let sent = me.t.send_with_inv(&super::message::noise(me.messages.sent), &seg);
        note!(self.log, "  {:#x} {sent:?}", seg.rkey.to_bits());
        if sent.is_ok() {
            me.messages.sent += 1;
            self.tally.fault("bad remote invalidation", 1);
        }
    }

    fn revoke(&mut self, c: usize, s: usize) {
        let calm = self.plan.calm;
        let (me, peer) = self.conns[c].pair(s);
        if me.out.is_empty() {
            return;
        }
        let i = self.rng.usize(..me.out.len());
        let lent = &me.out[i];
        if calm && lent.marked && lent.token.is_none() {
            return;
        }
        if (calm || me.physical()) && peer.is_using(lent.serial) {
            return;
        }
        let reply = match &lent.token {
            Some(token) if lent.marked => NoReply::Arrived(token),
            _ if lent.marked && self.rng.u32(..3) == 0 => NoReply::NoneCanCome,
            _ => NoReply::Unmarked,
        };
        let r = me.t.revoke(&lent.handle, reply);
        note!(self.log, "  {}: {r:?}", lent.serial);
        let unproven = lent.marked && matches!(reply, NoReply::Unmarked);
        let waits = !unproven || lent.state != ExposureState::Exposed || r.is_err();
        // What is fenced already, or down, has no key that a reply could meet.
        let open = me.t.exposure_state(&lent.handle) == Ok(ExposureState::Revoking);
        assert!(waits || !open, "rule 5: a key was invalidated while its reply may still come");
        let reserved = !matches!(r, Err(Refusal::QueueFull { .. } | Refusal::NeverFits { .. }));
        assert!(reserved, "rule 7: no slot for a fence");
    }

    /// All, or a part, with one post: none of them if one may not.
    fn revoke_all(&mut self, c: usize, s: usize) {
        let calm = self.plan.calm;
        let (me, peer) = self.conns[c].pair(s);
        let some = self.rng.bool();
        let mut chosen = vec![];
        for (i, lent) in me.out.iter().enumerate() {
            let orderly = calm || me.physical();
            let waits = orderly && (peer.is_using(lent.serial) || (calm && lent.marked));
            let left_out = waits || (some && self.rng.bool());
            if !left_out {
                chosen.push(i);
            }
        }
        let sure = !calm && self.rng.bool();
        let reply = if sure { NoReply::NoneCanCome } else { NoReply::Unmarked };
        let r = me.t.revoke_all(chosen.iter().map(|&i| &me.out[i].handle), reply);
        note!(self.log, "  {chosen:?} {sure}: {r:?}");
        let unproven = |l: &Lent| l.marked && !sure && l.state == ExposureState::Exposed;
        let waits = chosen.iter().map(|&i| &me.out[i]).any(unproven);
        let kept = |l: &Lent| me.t.exposure_state(&l.handle) == Ok(l.state);
        let same = chosen.iter().all(|&i| kept(&me.out[i]));
        assert!(
            !waits || r.is_err(),
            "rule 5: a key was invalidated while its reply may still come"
        );
        assert!(same || matches!(r, Ok(()) | Err(Refusal::Down(_))), "refused in part: {r:?}");
        let reserved = !matches!(r, Err(Refusal::QueueFull { .. } | Refusal::NeverFits { .. }));
        assert!(reserved, "rule 7: no slot for a fence");
    }

    fn cancel(&mut self, c: usize, s: usize) {
        let (side, peer) = self.conns[c].pair(s);
        if side.out.is_empty() {
            return;
        }
        let i = self.rng.usize(..side.out.len());
        if side.physical() && peer.is_using(side.out[i].serial) {
            return;
        }
        let r = side.t.cancel(&side.out[i].handle);
        note!(self.log, "  {}: {r:?}", side.out[i].serial);
    }

    fn let_go(&mut self, op: Op, c: usize, s: usize) {
        let (side, peer) = self.conns[c].pair(s);
        if side.out.is_empty() {
            return;
        }
        let i = self.rng.usize(..side.out.len());
        if side.physical() && peer.is_using(side.out[i].serial) {
            return;
        }
        note!(self.log, "  {}", side.out[i].serial);
        if op == Op::DropHandle {
            side.drop_handle(i);
        } else {
            side.forget_handle(i);
        }
    }

    fn reclaim(&mut self, c: usize, s: usize) {
        let side = &mut self.conns[c].sides[s];
        if side.out.is_empty() {
            return;
        }
        let i = self.rng.usize(..side.out.len());
        let serial = side.out[i].serial;
        let back = side.reclaim(i);
        note!(self.log, "  {serial}: {back}");
    }

    /// The peer reads or writes what it has been told of. Racing: also what it should not (yet or
    /// any more). The owner of a key that is never revoked trusts its peer, and there the peer is
    /// orderly.
    fn access(&mut self, c: usize, s: usize, racing: bool) {
        let (me, owner) = self.conns[c].pair(s);
        if me.accesses.len() >= 6 {
            return;
        }
        let told = &me.told;
        let open =
            |l: &Lent| l.state == ExposureState::Exposed && told.contains(&l.serial) && !l.answered;
        let fit: Vec<usize> = (0..owner.out.len())
            .filter(|&i| owner.out[i].segs[0].epoch == owner.t.epoch())
            .filter(|&i| (racing && !owner.physical()) || open(&owner.out[i]))
            .collect();
        if fit.is_empty() {
            return;
        }
        let lent_at = fit[self.rng.usize(..fit.len())];
        let segs = &owner.out[lent_at].segs;
        let seg_at = self.rng.usize(..segs.len());
        let before: u64 = segs[..seg_at].iter().map(|s| s.len).sum();
        let seg = segs[seg_at];
        let from = self.rng.usize(..seg.len as usize);
        let len = self.rng.usize(1..=seg.len as usize - from);
        let at = before as usize + from;
        let lent = &owner.out[lent_at];
        let write = lent.grant == Grant::PeerWrites;
        let serial = lent.serial;
        let what = if write {
            What::Write
        } else {
            What::Read(super::bytes::payload(&lent.parts)[at..at + len].to_vec())
        };
        let id = self.start_access(c, s, &seg, from as u64, at..at + len, what, serial);
        if let (Some((id, fill)), true) = (id, write) {
            let (_, owner) = self.conns[c].pair(s);
            let (payload, succeeded, arrived) = (at..at + len, false, None);
            owner.out[lent_at].writes.push(Write { id, payload, fill, succeeded, arrived });
        }
    }

    /// Posts an access with buffers for it; returns its number and the fill of a write, unless
    /// nothing of it was posted.
    #[allow(clippy::too_many_arguments)] // all of them say what the access is
    fn start_access(
        &mut self,
        c: usize,
        s: usize,
        seg: &Segment,
        offset: u64,
        payload: Range<usize>,
        what: What,
        serial: u64,
    ) -> Option<(u64, u8)> {
        let id = self.number();
        let fill = self.rng.u8(..);
        let me = &mut self.conns[c].sides[s];
        let mut taken = me.take(&mut self.rng, Some(payload.len()), 0);
        let write = seg.grant == Grant::PeerWrites;
        if write {
            taken = filled(taken, fill, payload.start);
        }
        let Taken { buffers, parts } = taken;
        let op =
            if write { me.t.write(seg, offset, buffers) } else { me.t.read(seg, offset, buffers) };
        match op {
            Ok(op) => {
                note!(self.log, "  {id} on {serial} {payload:?} {:#x}", seg.rkey.to_bits());
                self.tally.accesses += 1;
                me.accesses.push(Access { op, parts, what, serial, id });
                Some((id, fill))
            }
            Err(e) => {
                note!(self.log, "  on {serial}: {}", e.why);
                // Of a post that was cut the first WRs run, so some bytes may move.
                let in_part = matches!(e.why, Refusal::Down(_));
                me.refused(parts, e);
                in_part.then_some((id, fill))
            }
        }
    }

    fn take(&mut self, c: usize, s: usize) {
        let side = &self.conns[c].sides[s];
        if !side.accesses.is_empty() {
            let i = self.rng.usize(..side.accesses.len());
            self.take_access(c, s, i);
        }
    }

    /// Takes the result of an access if it has one, and checks what it says.
    pub fn take_access(&mut self, c: usize, s: usize, i: usize) -> bool {
        let (me, owner) = self.conns[c].pair(s);
        let mut access = me.accesses.swap_remove(i);
        let done = match me.t.take(access.op) {
            Ok(done) => done,
            Err(e) => {
                assert!(matches!(e.why, TakeRefusal::Running { .. }), "{e}");
                access.op = e.op;
                me.accesses.push(access);
                return false;
            }
        };
        let ok = done.result.is_ok();
        note!(self.log, "  {}: {:?}", access.id, done.result.as_ref().map_err(|e| e.wc.status));
        owner.book.read(owner.t.ledger());
        match access.what {
            What::Write => {
                settle_write(owner, access.serial, access.id, ok);
                me.back(access.parts, done.buffers, |_, was, is| was == is);
            }
            What::Read(expect) => {
                me.back(access.parts, done.buffers, |p, _, is| !ok || expect[p] == is)
            }
            What::Nothing { rkey, grants } => {
                let again = owner.book.grants(rkey) != grants;
                assert!(!ok || again, "a dead or foreign key worked");
                me.back(access.parts, done.buffers, |_, was, is| again || was == is);
            }
        }
        true
    }

    fn drop_access(&mut self, c: usize, s: usize) {
        let (side, owner) = self.conns[c].pair(s);
        if owner.physical() {
            return;
        }
        if let Some(a) = side.accesses.pop() {
            note!(self.log, "  {}", a.id);
            side.bytes.left += a.parts.iter().map(|p| p.shadow.len() as u64).sum::<u64>();
        }
    }

    /// The peer tries a key that is dead, as if it were of today, or a live one the wrong way.
    fn stale_access(&mut self, c: usize, s: usize) {
        if self.rng.u32(..3) == 0 {
            return self.wrong_way(c, s);
        }
        let (_, owner) = self.conns[c].pair(s);
        owner.book.read(owner.t.ledger());
        let epoch = owner.t.epoch();
        let usable: Vec<Segment> = owner
            .dead
            .iter()
            .filter(|k| !owner.physical() || k.epoch != epoch)
            .filter(|k| !owner.book.is_live(k.rkey.to_bits()))
            .copied()
            .collect();
        if usable.is_empty() {
            return;
        }
        let key = usable[self.rng.usize(..usable.len())];
        self.forbidden(c, s, Segment { epoch, ..key });
    }

    /// The peer writes what it may read, or reads what it may write.
    fn wrong_way(&mut self, c: usize, s: usize) {
        let (_, owner) = self.conns[c].pair(s);
        let epoch = owner.t.epoch();
        let today = |l: &&Lent| l.segs[0].epoch == epoch;
        if let Some(lent) = owner.out.iter().find(today) {
            let grant = match lent.grant {
                Grant::PeerReads => Grant::PeerWrites,
                Grant::PeerWrites => Grant::PeerReads,
            };
            let key = Segment { grant, ..lent.segs[0] };
            self.forbidden(c, s, key);
        }
    }

    /// The peer tries a live key of another connection on the same node.
    fn foreign_access(&mut self, c: usize, s: usize) {
        if !self.plan.shared_nodes || self.conns.len() < 2 {
            return;
        }
        let other = (c + 1) % self.conns.len();
        let epoch = self.conns[c].sides[1 - s].t.epoch();
        let theirs = &self.conns[other].sides[1 - s];
        let Some(lent) = theirs.out.first() else { return };
        let key = Segment { epoch, ..lent.segs[0] };
        if self.conns[c].sides[1 - s].book.grants(key.rkey.to_bits()) == 0 {
            self.forbidden(c, s, key);
        }
    }

    fn forbidden(&mut self, c: usize, s: usize, key: Segment) {
        let owner = &self.conns[c].sides[1 - s];
        let rkey = key.rkey.to_bits();
        let what = What::Nothing { rkey, grants: owner.book.grants(rkey) };
        let len = (key.len as usize).min(700);
        if self.start_access(c, s, &key, 0, 0..len, what, 0).is_some() {
            self.tally.fault("dead or foreign key tried", 1);
        }
    }
}

/// The completion of a write said whether it happened.
fn settle_write(owner: &mut Side, serial: u64, id: u64, ok: bool) {
    if let Some(lent) = owner.lent(serial) {
        if let Some(w) = lent.writes.iter_mut().find(|w| w.id == id) {
            w.succeeded = ok;
        }
        return;
    }
    let Some(writes) = owner.past.get_mut(&serial) else { return };
    if let Some(at) = writes.iter().position(|w| w.id == id) {
        let w = writes.swap_remove(at);
        assert!(
            !ok || w.arrived != Some(false),
            "a write succeeded whose bytes were not there when the buffer came back"
        );
    }
    if writes.is_empty() {
        owner.past.remove(&serial);
    }
}

/// The same buffers with the bytes that a write of `fill` at `start` carries.
fn filled(taken: Taken, fill: u8, start: usize) -> Taken {
    let mut position = start;
    let mut out = Taken { buffers: Default::default(), parts: vec![] };
    for ((mut buf, range), mut part) in taken.buffers.into_iter().zip(taken.parts) {
        for at in range.clone() {
            buf[at] = pattern(fill, position);
            part.shadow[at] = buf[at];
            position += 1;
        }
        out.buffers.push(buf, range);
        out.parts.push(part);
    }
    out
}
