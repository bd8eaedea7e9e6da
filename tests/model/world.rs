//! An owner, a peer and the model side by side.

use crate::op::Op;
use crate::plain::{Exposure, Plain};
use memreg::core::device::WcStatus;
use memreg::core::device::sim::SimCounters;
use memreg::core::error::ApiMisuse;
use memreg::core::sizing::Ask;
use memreg::core::types::Rkey;
use memreg::error::{ReclaimRefusal, Refusal};
use memreg::strategies::Fmr;
use memreg::{
    Buffers, Caps, Disposition, DmaBuf, Exposed, ExposureState, Fabric, Grant, NoReply,
    OpenOptions, Reply, ReplyToken, Segment, SimDevice, State, Strategy, Tick, connect_pair,
    settle,
};

type Owner = memreg::core::Transport<SimDevice, Strategy>;
type Peer = memreg::core::Transport<SimDevice, Fmr>;

/// A strategy on a device, and what may be expected of it.
pub struct Subject {
    pub name: &'static str,
    caps: Caps,
    make: fn() -> Strategy,
    way: Way,
    credits: u32,
}

/// How keys are granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// By WR: nothing is open before the post, and the peer can invalidate.
    Wr,
    /// By verb, at once.
    Verb,
    /// Copies under one key for all, which is never revoked.
    Copy,
}

impl Subject {
    pub fn by_wr(name: &'static str, caps: Caps, make: fn() -> Strategy) -> Subject {
        Subject { name, caps, make, way: Way::Wr, credits: 3 }
    }

    pub fn by_verb(name: &'static str, caps: Caps, make: fn() -> Strategy) -> Subject {
        Subject { name, caps, make, way: Way::Verb, credits: 3 }
    }

    pub fn by_copy(name: &'static str, caps: Caps, make: fn() -> Strategy) -> Subject {
        Subject { name, caps, make, way: Way::Copy, credits: 3 }
    }

    /// The same with queues for so many operations.
    pub fn credits(self, credits: u32) -> Subject {
        Subject { credits, ..self }
    }
}

/// A handle and what the model says of it.
struct Held {
    handle: Exposed,
    e: Exposure,
    /// The last message since it was first announced that a reply may invalidate, and its number.
    token: Option<(ReplyToken, u64)>,
    /// What was in the buffers.
    given: Vec<Vec<u8>>,
}

pub struct World {
    way: Way,
    owner: Owner,
    peer: Peer,
    plain: Plain,
    held: Vec<Held>,
    /// Whether the connection is up.
    up: bool,
    /// Nothing is under way.
    settled: bool,
    exposures: u8,
    /// Messages that the owner got on this connection.
    received: u64,
    /// Objects and mappings of an owner that exposes nothing.
    idle: SimCounters,
}

const NOW: Tick = Tick(0);

impl World {
    pub fn new(subject: &Subject) -> World {
        let fabric = Fabric::new(1);
        let node = fabric.add_node("owner", subject.caps.clone());
        let ask = Ask {
            max_payload_bytes: 64 << 10,
            credits: subject.credits,
            danger_trust_peer: true,
            ..Ask::default()
        };
        let options = OpenOptions { ask, ..OpenOptions::default() };
        let mut owner = Owner::open(node, (subject.make)(), &options).unwrap();
        let peer_node = fabric.add_node("peer", Caps::default());
        let options = OpenOptions { ask: Ask { credits: 64, ..ask }, ..options };
        let mut peer = Peer::open(peer_node, Fmr::new(), &options).unwrap();
        let idle = owner.device().counters();
        connect_pair(&mut owner, &mut peer).unwrap();
        World {
            way: subject.way,
            owner,
            peer,
            plain: Plain::default(),
            held: vec![],
            up: true,
            settled: true,
            exposures: 0,
            received: 0,
            idle,
        }
    }

    /// Does all of `list` and then takes everything back.
    pub fn run(mut self, list: &[Op]) {
        for op in list {
            self.step(op);
            self.compare();
        }
        self.finish();
    }

    fn step(&mut self, op: &Op) {
        // These may fall into the middle of a revoke or of a drain; the others find peace.
        let any_time = matches!(
            op,
            Op::Cancel { .. } | Op::Reclaim { .. } | Op::Drop { .. } | Op::Revoke { .. }
        );
        if !any_time {
            self.settle();
        }
        match op {
            Op::Expose { grant, parts, one } => self.expose(*grant, parts, *one),
            Op::Flush => self.flush(),
            Op::Send { pick, mark } => self.send(*pick, *mark),
            Op::Reply => self.reply(),
            Op::Access { pick, from, len, fill } => self.access(*pick, *from, *len, *fill),
            Op::Trespass { pick, shift, len, write } => {
                self.trespass(*pick, *shift, *len, *write);
            }
            Op::RemoteInvalidate { pick } => self.remote_invalidate(*pick),
            Op::Revoke { pick, wait, word } => self.revoke(*pick, *wait, *word),
            Op::Cancel { pick } => self.cancel(*pick),
            Op::Reclaim { pick } => self.reclaim(*pick),
            Op::Drop { pick } => self.drop_handle(*pick),
            Op::Recover { budget } => {
                let rebuilt = self.owner.recover(*budget).unwrap();
                assert!(rebuilt <= *budget);
            }
            Op::Disconnect { owner, wait } => self.disconnect(*owner, *wait),
            Op::Reconnect => self.reconnect(),
        }
    }

    // ---- the owner

    fn expose(&mut self, grant: Grant, parts: &[(usize, usize)], one: bool) {
        self.exposures = self.exposures.wrapping_add(1);
        let (mut given, mut buffers, mut all) = (vec![], Buffers::new(), vec![]);
        for parts in parts.chunks(if one { parts.len() } else { 1 }) {
            let (mut ranges, mut end) = (vec![], 0);
            for &(skip, len) in parts {
                ranges.push(end + skip..end + skip + len);
                end += skip + len;
            }
            let bytes = pattern(self.exposures, end);
            ranges.iter().for_each(|r| all.extend(&bytes[r.clone()]));
            buffers.push_ranges(DmaBuf::from_bytes(&bytes).unwrap(), ranges);
            given.push(bytes);
        }
        match self.owner.expose(buffers, grant) {
            Ok(handle) => {
                assert!(self.up);
                self.exposed(handle, grant, all, given);
            }
            Err(e) => {
                let same = e.buffers.bufs().iter().zip(&given).all(|(b, g)| b[..] == g[..]);
                let count = (e.buffers.bufs().len(), e.buffers.count());
                assert!(count == (given.len(), parts.len()) && same, "the bytes came back changed");
                if !self.up {
                    assert!(matches!(e.why, Refusal::NotConnected { .. }), "{}", e.why);
                    return;
                }
                assert_eq!(e.disposition(), Disposition::Retry, "{:?}", e.why);
                if self.held.iter().any(|h| h.e.state != ExposureState::Fenced) {
                    return;
                }
                // Nothing is out, so there is room once condemned regions are rebuilt.
                self.owner.recover(usize::MAX).unwrap();
                drop(self.owner.expose(e.buffers, grant).unwrap());
                self.settle();
            }
        }
    }

    fn exposed(&mut self, handle: Exposed, grant: Grant, all: Vec<u8>, given: Vec<Vec<u8>>) {
        let segments = self.owner.segments(&handle).unwrap().to_vec();
        assert_eq!(segments.iter().map(|s| s.len).sum::<u64>(), all.len() as u64);
        let (mut content, mut at) = (vec![], 0);
        for s in &segments {
            assert_eq!((s.grant, s.epoch), (grant, self.owner.epoch()));
            content.push(all[at..at + s.len as usize].to_vec());
            at += s.len as usize;
            // Tags come round after 256 registrations of a region; no list is that long.
            let known = self.plain.known.iter().any(|k| k.rkey == s.rkey);
            assert!(!known || self.way == Way::Copy, "a key was granted twice");
        }
        self.plain.known.extend(&segments);
        let state = ExposureState::Staged;
        let open = vec![false; segments.len()];
        let mut e = Exposure { state, segments, content, open, awaits: None, staged: true };
        if self.way != Way::Wr {
            self.plain.grant(&mut e);
        }
        self.held.push(Held { handle, e, token: None, given });
    }

    fn flush(&mut self) {
        let posted = self.owner.flush();
        self.posted(posted);
        self.settle();
    }

    /// After a post: staged keys are live, unless it was refused.
    fn posted(&mut self, result: Result<(), Refusal>) -> bool {
        match result {
            Ok(()) => {
                assert!(self.up);
                for h in self.held.iter_mut().filter(|h| h.e.staged) {
                    self.plain.grant(&mut h.e);
                }
                true
            }
            Err(Refusal::NotConnected { .. }) => {
                assert!(!self.up);
                false
            }
            Err(e) => {
                assert_eq!(e.disposition(), Disposition::Retry, "{e}");
                let claimed = self.held.iter().any(|h| h.e.state != ExposureState::Fenced);
                assert!(claimed, "nothing claims the queue: {e}");
                false
            }
        }
    }

    fn send(&mut self, pick: usize, mark: bool) {
        let Some(i) = self.pick(pick) else { return };
        let h = &self.held[i];
        let mut message: Vec<u8> = h.e.segments.iter().flat_map(Segment::to_wire).collect();
        // Every other message is too long to go inline, and takes a slot of the message buffers.
        message.resize(if pick.is_multiple_of(2) { message.len() } else { 1000 }, 0);
        let list = [&h.handle];
        let reply = if mark { Reply::MayInvalidate(&list) } else { Reply::InvalidatesNothing };
        let sent = self.owner.send(&message, reply);
        if !self.posted(sent) {
            return;
        }
        if mark {
            // Each announcement has a reply of its own.
            let e = &mut self.held[i].e;
            e.awaits = Some(e.awaits.map_or(self.received, |n| n.max(self.received)) + 1);
        }
        self.settle();
        let mut got = vec![];
        self.peer.recv(&mut got).unwrap();
        assert_eq!(got, message);
    }

    fn revoke(&mut self, pick: usize, wait: bool, word: bool) {
        let Some(i) = self.pick(pick) else { return };
        let h = &mut self.held[i];
        let reply = match (&h.token, word) {
            (Some((token, _)), _) => NoReply::Arrived(token),
            (None, true) => NoReply::NoneCanCome,
            (None, false) => NoReply::Unmarked,
        };
        let token_is_old = match (h.e.awaits, h.token) {
            (Some(nth), Some((_, token))) => token < nth,
            _ => false,
        };
        let waits = h.e.awaits.is_some() && h.token.is_none() && !word;
        match self.owner.revoke(&h.handle, reply) {
            Ok(()) if h.e.state == ExposureState::Staged => self.plain.kill_all(&mut h.e),
            Ok(()) if h.e.state == ExposureState::Exposed => {
                assert!(!waits && !token_is_old);
                if self.way == Way::Wr {
                    h.e.state = ExposureState::Revoking;
                    self.settled = false;
                } else {
                    self.plain.kill_all(&mut h.e);
                }
            }
            Ok(()) => {}
            Err(Refusal::ReplyOutstanding) => {
                assert!(waits && h.e.state == ExposureState::Exposed);
            }
            Err(Refusal::Misuse(ApiMisuse::WrongToken)) => {
                assert!(token_is_old && h.e.state == ExposureState::Exposed);
            }
            // The drain does it, under way or yet to come.
            Err(Refusal::NotConnected { .. }) => {
                assert!(!self.up && !self.settled && h.e.state != ExposureState::Fenced);
            }
            Err(e) => panic!("revoke: {e}"),
        }
        if wait {
            self.settle();
        }
    }

    fn cancel(&mut self, pick: usize) {
        let Some(i) = self.pick(pick) else { return };
        let h = &mut self.held[i];
        self.owner.cancel(&h.handle).unwrap();
        // The LOCAL_INV of a revoke under way may miss its key now, and cost the connection.
        let risky = h.e.state == ExposureState::Revoking;
        self.plain.kill_all(&mut h.e);
        let state = self.owner.exposure_state(&h.handle).unwrap();
        assert_eq!(state, ExposureState::Fenced, "cancel ends access before it returns");
        if risky {
            self.settle_as_it_comes();
        }
    }

    fn reclaim(&mut self, pick: usize) {
        let Some(i) = self.pick(pick) else { return };
        let h = self.held.swap_remove(i);
        match self.owner.reclaim(h.handle) {
            Ok(back) => {
                assert_eq!(h.e.state, ExposureState::Fenced, "bytes given back early");
                assert!(!h.e.open.contains(&true));
                let got: Vec<u8> = back.iter().flat_map(|(b, r)| b[r.clone()].to_vec()).collect();
                assert!(got == h.e.content.concat(), "the owner sees other bytes than the model");
                assert!(back.bufs().len() == h.given.len());
                for (i, (buf, mut given)) in back.bufs().iter().zip(h.given).enumerate() {
                    back.ranges(i).for_each(|r| given[r.clone()].copy_from_slice(&buf[r]));
                    assert!(buf[..] == given[..], "bytes changed that were not exposed");
                }
            }
            Err(e) => {
                assert_ne!(h.e.state, ExposureState::Fenced, "{}", e.why);
                assert!(matches!(e.why, ReclaimRefusal::NotFenced { open } if open > 0));
                self.held.push(Held { handle: e.exposed, ..h });
            }
        }
    }

    fn drop_handle(&mut self, pick: usize) {
        let Some(i) = self.pick(pick) else { return };
        let mut h = self.held.swap_remove(i);
        drop(h.handle);
        self.plain.kill_all(&mut h.e);
        // Fenced by the next polls.
        self.settle();
    }

    // ---- the peer

    fn reply(&mut self) {
        if !self.up {
            return;
        }
        self.peer.send(b"done", Reply::InvalidatesNothing).unwrap();
        self.settle();
        self.take_reply(false);
    }

    fn take_reply(&mut self, invalidated: bool) {
        let mut got = vec![];
        let received = self.owner.recv(&mut got).unwrap();
        assert_eq!((&got[..], received.invalidated), (&b"done"[..], invalidated));
        self.received += 1;
        for h in self.held.iter_mut().filter(|h| h.e.awaits.is_some()) {
            h.token = Some((received.token, self.received));
        }
    }

    fn access(&mut self, pick: usize, from: usize, len: usize, fill: u8) {
        let keys: Vec<(u32, u64)> = self.plain.live.keys().copied().collect();
        if keys.is_empty() {
            return;
        }
        let key = keys[pick % keys.len()];
        let reach = &self.plain.live[&key];
        let whole = reach.bytes.len();
        let from = from % whole;
        let len = len.min(whole - from);
        let (addr, grant) = (reach.addr + from as u64, reach.grant);
        let bytes: Vec<u8> = (0..len).map(|i| fill ^ (i as u8)).collect();
        self.try_access(key.0, addr, grant, bytes);
    }

    fn trespass(&mut self, pick: usize, shift: i64, len: u64, write: bool) {
        if self.plain.known.is_empty() || !self.up || self.way == Way::Copy {
            // Nothing keeps the peer from physical's arena: that is its danger.
            return;
        }
        let s = self.plain.known[pick % self.plain.known.len()];
        let Some(addr) = s.addr.checked_add_signed(shift) else { return };
        let grant = if write { Grant::PeerWrites } else { Grant::PeerReads };
        self.try_access(s.rkey.to_bits(), addr, grant, vec![0xbd; len as usize]);
    }

    /// The peer accesses memory as no check on its own side can forbid; what comes of it is what
    /// the map says.
    fn try_access(&mut self, rkey: u32, addr: u64, grant: Grant, bytes: Vec<u8>) {
        let len = bytes.len() as u64;
        let rkey_ = Rkey::from_bits(rkey);
        let s = Segment { rkey: rkey_, addr, len, grant, epoch: self.owner.epoch() };
        let allowed = self.plain.reach(rkey, addr, len, grant);
        let write = grant == Grant::PeerWrites;
        let op = if write {
            self.peer.write(&s, 0, DmaBuf::from_bytes(&bytes).unwrap()).unwrap()
        } else {
            self.peer.read(&s, 0, DmaBuf::new(bytes.len()).unwrap()).unwrap()
        };
        settle(NOW, &mut [&mut self.owner, &mut self.peer]).unwrap();
        let done = self.peer.take(op).unwrap();
        match (done.result, allowed) {
            (Ok(_), Some(map)) if write => map.copy_from_slice(&bytes),
            (Ok(_), Some(map)) => {
                let got = done.buffers.into_first().unwrap();
                assert!(got[..] == *map, "the peer reads other bytes than the map has");
            }
            (Ok(_), None) => panic!("no live key allows {s:?}, and it worked"),
            (Err(e), Some(_)) => panic!("a live key allows {s:?}: {e}"),
            (Err(e), None) => {
                assert_eq!(e.wc.status, WcStatus::RemAccessErr);
                self.went_down();
            }
        }
    }

    fn remote_invalidate(&mut self, pick: usize) {
        if self.plain.known.is_empty() || !self.up {
            return;
        }
        let told = self.plain.known[pick % self.plain.known.len()];
        let s = Segment { epoch: self.owner.epoch(), ..told };
        let rkey = s.rkey;
        self.peer.send_with_inv(b"done", &s).unwrap();
        let (plain, held) = (&mut self.plain, &mut self.held);
        let hit = held.iter_mut().find_map(|h| {
            let open = |i: &usize| h.e.open[*i] && h.e.segments[*i].rkey == rkey;
            let i = (0..h.e.segments.len()).find(open)?;
            Some((h, i))
        });
        let Some((h, i)) = hit.filter(|_| self.way == Way::Wr) else {
            // What is not there to invalidate, or not to be invalidated so, costs the connection.
            settle(NOW, &mut [&mut self.owner, &mut self.peer]).unwrap();
            self.went_down();
            return;
        };
        plain.kill(&mut h.e, i);
        if !h.e.open.contains(&true) {
            plain.kill_all(&mut h.e);
        }
        self.settle();
        self.take_reply(true);
    }

    // ---- the connection

    fn disconnect(&mut self, owner: bool, wait: bool) {
        if owner {
            self.owner.disconnect();
            self.settled = !self.up;
            // Until the drain is over nothing is proven; what was never posted is back at once.
            for h in self.held.iter_mut().filter(|h| h.e.staged) {
                self.plain.kill_all(&mut h.e);
            }
            let was_up = std::mem::take(&mut self.up);
            for h in self.held.iter_mut().filter(|h| h.e.state != ExposureState::Fenced) {
                assert!(was_up);
                h.e.state = ExposureState::Exposed;
            }
            if wait {
                self.settle();
            }
        } else {
            self.peer.disconnect();
            settle(NOW, &mut [&mut self.owner, &mut self.peer]).unwrap();
            if self.up {
                self.went_down();
            }
        }
    }

    fn reconnect(&mut self) {
        self.owner.disconnect();
        self.peer.disconnect();
        settle(NOW, &mut [&mut self.owner, &mut self.peer]).unwrap();
        self.went_down();
        self.owner.reconnect().unwrap();
        self.peer.reconnect().unwrap();
        connect_pair(&mut self.owner, &mut self.peer).unwrap();
        (self.up, self.received) = (true, 0);
    }

    /// The connection is down: no key opens anything.
    fn went_down(&mut self) {
        assert!(matches!(self.owner.state(), State::Down(_)), "{:?}", self.owner.state());
        for h in &mut self.held {
            self.plain.kill_all(&mut h.e);
            // A token of an earlier connection answers nothing any more; nor need it.
            (h.token, h.e.awaits) = (None, None);
        }
        assert!(self.plain.live.is_empty());
        self.up = false;
        self.settled = true;
    }

    fn settle(&mut self) {
        settle(NOW, &mut [&mut self.owner, &mut self.peer]).unwrap();
        if !self.up && !self.settled {
            self.went_down();
        }
        for h in self.held.iter_mut().filter(|h| h.e.state == ExposureState::Revoking) {
            self.plain.kill_all(&mut h.e);
        }
        self.settled = true;
    }

    /// As `settle`, where the connection may have been lost on the way.
    fn settle_as_it_comes(&mut self) {
        settle(NOW, &mut [&mut self.owner, &mut self.peer]).unwrap();
        if *self.owner.state() != State::Up {
            self.went_down();
        }
        self.settle();
    }

    // ---- what must be the same

    fn compare(&mut self) {
        let is_up = *self.owner.state() == State::Up;
        assert_eq!(is_up, self.up, "the owner is {:?}", self.owner.state());
        for h in &self.held {
            let state = self.owner.exposure_state(&h.handle).unwrap();
            let draining = !self.up && !self.settled;
            let same = state == h.e.state || (draining && state != ExposureState::Staged);
            assert!(same, "an exposure is {state:?}, the model says {:?}", h.e.state);
        }
        let (stats, c) = (*self.owner.stats(), self.owner.device().counters());
        assert_eq!((stats.bytes_leaked, stats.regions_leaked_now), (0, 0));
        assert_eq!((c.iommu_faults, c.wcs_lost), (0, 0));
        if !self.settled {
            return;
        }
        assert_eq!(stats.exposures_now, self.held.len() as u64);
        let live = self.plain.live.len() as u64;
        match self.way {
            Way::Wr => {
                let valid = c.fast_mrs_valid + c.mws_bound;
                assert_eq!(valid, live, "keys that are valid on the device");
            }
            Way::Verb => assert_eq!(c.mrs - self.idle.mrs, live, "MRs on the device"),
            Way::Copy => {}
        }
        self.read_all();
    }

    /// Whatever the peer may read holds what the map says.
    fn read_all(&mut self) {
        let readable = |r: &&crate::plain::Reach| r.grant == Grant::PeerReads;
        let all: Vec<(u32, u64, usize)> = (self.plain.live.iter())
            .filter(|(_, r)| readable(r))
            .map(|(k, r)| (k.0, k.1, r.bytes.len()))
            .collect();
        for (rkey, addr, len) in all {
            self.try_access(rkey, addr, Grant::PeerReads, vec![0; len]);
        }
    }

    /// Takes everything back, closes both ends, and looks at what is left.
    fn finish(mut self) {
        self.settle();
        while let Some(i) = self.held.len().checked_sub(1) {
            // Its token may be too old, but then it is the word that counts.
            self.held[i].token = None;
            self.revoke(i, true, true);
            self.compare();
            self.reclaim(i);
        }
        let audit = memreg::audit::audit(&self.owner.ledger().to_string()).unwrap();
        assert!(audit.violations.is_empty() && audit.live == 0, "{audit}");
        let nodes = [self.owner.device().clone(), self.peer.device().clone()];
        drop((self.owner, self.peer));
        for c in nodes.map(|n| n.counters()) {
            assert_eq!((c.pds, c.cqs, c.qps, c.mrs, c.mapped_ranges), (0, 0, 0, 0, 0));
        }
    }

    fn pick(&self, pick: usize) -> Option<usize> {
        (!self.held.is_empty()).then(|| pick % self.held.len())
    }
}

/// Bytes that repeat only after a prime number of them.
fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i % 251) as u8).wrapping_mul(7).wrapping_add(seed)).collect()
}
