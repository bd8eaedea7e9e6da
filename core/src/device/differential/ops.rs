//! Operations that mean the same on every device, and the list of them that a seed stands for.

use crate::types::Access;

/// Buffers, each with one MR: how long, and with which rights.
pub(super) const MEMORIES: [(u64, Access); 6] = [
    (8192, Access::LOCAL_WRITE.union(Access::MW_BIND)),
    (4096, Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ)),
    (5000, Access::REMOTE_READ),
    (4096, Access::MW_BIND),
    (4096, Access::LOCAL_WRITE),
    // In another PD.
    (4096, Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::MW_BIND)),
];
/// What the peer sends from and reads into.
pub(super) const SOURCE: usize = 4;
pub(super) const WINDOWS: usize = 3;

/// Which end of which connection posts. The stranger's connection is in the same PD, and its far
/// end is not the owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Owner,
    Peer,
    Stranger,
}

/// A key by what it belongs to; the numbers differ from device to device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    Mr(usize),
    /// The key before the last re-registration.
    OldMr(usize),
    Window(usize),
    /// The window's key with another tag.
    OtherTag(usize),
    /// The key of the window that was there before.
    OldWindow(usize),
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Range {
    pub(super) memory: usize,
    /// From the start of the memory, and it may lie before.
    pub(super) offset: i64,
    pub(super) len: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Local {
    pub(super) range: Range,
    /// An lkey that no MR has.
    pub(super) bad_key: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    Bind { window: usize, same_tag: bool, onto: Range, access: Access },
    Inv(Key),
    Write { key: Key, to: Range, from: Local },
    Read { key: Key, from: Range, into: Local },
    Send(Local),
    SendInv(Key),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Op {
    /// One post of several WRs, all signaled.
    Post(Side, Vec<Work>),
    /// A receive at the owner.
    Receive(Local),
    ToError(Side),
    /// Ends an MR and registers the same memory again.
    Reregister(usize),
    /// Ends a window and makes another.
    Renew(usize),
    /// A registration that no device accepts: of no bytes, or beyond the memory.
    BadRegistration {
        memory: usize,
        len: u64,
    },
}

/// What the windows are bound to, and on whose QP.
///
/// The generator must know, so that no list holds what the kernel does not survive: an invalidation
/// by the peer of a window that is free.
pub(super) type Bound = [Option<(Side, Range)>; WINDOWS];

/// A small generator of numbers (the SplitMix64 steps).
pub(super) struct Rng {
    state: u64,
    /// The operation after a receive that was made for it.
    due: Option<Op>,
}

impl Rng {
    pub(super) fn new(seed: u64) -> Rng {
        Rng { state: seed, due: None }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// The next operation.
    pub(super) fn op(&mut self, bound: Bound) -> Op {
        if let Some(op) = self.due.take() {
            return op;
        }
        match self.below(24) {
            0 => Op::ToError(if self.one_in(2) { Side::Owner } else { Side::Peer }),
            1 => Op::Reregister(self.index(SOURCE)),
            2 => Op::Renew(self.index(WINDOWS)),
            3 => {
                let memory = self.index(MEMORIES.len());
                let len = if self.one_in(2) { 0 } else { MEMORIES[memory].0 + (1 << 20) };
                Op::BadRegistration { memory, len }
            }
            4..=12 => self.grants(bound),
            _ => self.uses(bound),
        }
    }

    /// Binds and invalidations by the owner, each window once.
    fn grants(&mut self, bound: Bound) -> Op {
        let mut works = vec![];
        for (window, binding) in bound.iter().enumerate() {
            if binding.is_some() && !self.one_in(12) {
                if self.one_in(2) {
                    works.push(Work::Inv(Key::Window(window)));
                }
            } else if !self.one_in(3) {
                works.push(self.bind(window));
                if self.one_in(6) {
                    works.push(Work::Inv(Key::Window(window)));
                }
            }
        }
        if self.one_in(20) {
            works.push(Work::Inv(self.key()));
        }
        if works.is_empty() {
            works.push(self.bind(0));
        }
        Op::Post(if self.one_in(24) { Side::Stranger } else { Side::Owner }, works)
    }

    fn bind(&mut self, window: usize) -> Work {
        let good = !self.one_in(5);
        let memory = if good { 0 } else { self.index(MEMORIES.len()) };
        let range = self.range(memory, if good { 0 } else { 3 });
        let access = match self.below(8) {
            0..=3 => Access::REMOTE_WRITE.union(Access::REMOTE_READ),
            4 => Access::REMOTE_READ,
            5 | 6 => Access::REMOTE_WRITE,
            _ => Access::REMOTE_READ,
        };
        Work::Bind { window, same_tag: self.one_in(10), onto: range, access }
    }

    /// Accesses and messages by the peer or a stranger.
    fn uses(&mut self, bound: Bound) -> Op {
        let side = if self.one_in(12) { Side::Stranger } else { Side::Peer };
        if side == Side::Peer && self.one_in(3) {
            let mut works = vec![self.message(bound)];
            let good = matches!(works[0], Work::Send(_) | Work::SendInv(Key::Window(_)));
            if self.one_in(if good { 3 } else { 20 }) {
                works.push(self.access(bound));
            }
            let post = Op::Post(side, works);
            if self.one_in(8) {
                return post;
            }
            self.due = Some(post);
            return Op::Receive(self.local());
        }
        let count = 1 + self.below(3);
        Op::Post(side, (0..count).map(|_| self.access(bound)).collect())
    }

    fn access(&mut self, bound: Bound) -> Work {
        let key = match self.index(WINDOWS) {
            w if bound[w].is_some() && !self.one_in(3) => Key::Window(w),
            _ if self.one_in(2) => Key::Mr(1),
            _ => self.key(),
        };
        let memory = match key {
            Key::Mr(m) | Key::OldMr(m) => m,
            _ => 0,
        };
        let there = self.range(memory, 12);
        let mut here = self.local();
        here.range.len = there.len;
        if here.range.offset + i64::from(here.range.len) > 4096 && !self.one_in(10) {
            here.range.offset = 0;
        }
        if self.one_in(2) {
            Work::Write { key, to: there, from: here }
        } else {
            Work::Read { key, from: there, into: here }
        }
    }

    fn message(&mut self, bound: Bound) -> Work {
        let window = self.index(WINDOWS);
        if bound[window].is_some() && !self.one_in(3) {
            return Work::SendInv(Key::Window(window));
        }
        match self.below(8) {
            0 => Work::SendInv(Key::OtherTag(window)),
            1 => Work::SendInv(Key::Unknown),
            2 => Work::SendInv(Key::Mr(self.index(SOURCE))),
            _ => Work::Send(self.local()),
        }
    }

    fn key(&mut self) -> Key {
        match self.below(24) {
            0..=11 => Key::Window(self.index(WINDOWS)),
            12..=17 => Key::Mr(1 + self.index(2)),
            18 => Key::Mr(self.index(MEMORIES.len())),
            19 => Key::OldMr(self.index(SOURCE)),
            20 => Key::OtherTag(self.index(WINDOWS)),
            21 => Key::OldWindow(self.index(WINDOWS)),
            22 => Key::Mr(1),
            _ => Key::Unknown,
        }
    }

    /// A range of a memory; one in `bad` is not inside it (0: never).
    fn range(&mut self, memory: usize, bad: u64) -> Range {
        let whole = MEMORIES[memory].0;
        let offset = self.below(whole / 2);
        let len = self.below(whole / 2) as u32 + 1;
        let range = Range { memory, offset: offset as i64, len };
        if bad == 0 || !self.one_in(bad) {
            return range;
        }
        match self.below(3) {
            0 => Range { offset: -8, ..range },
            1 => Range { offset: whole as i64 - 1, len: 2 + len, ..range },
            _ => Range { offset: whole as i64 + 4096, ..range },
        }
    }

    fn local(&mut self) -> Local {
        let len = self.below(3000) as u32 + 1;
        let offset = self.below(1000) as i64;
        Local { range: Range { memory: SOURCE, offset, len }, bad_key: self.one_in(40) }
    }
}
