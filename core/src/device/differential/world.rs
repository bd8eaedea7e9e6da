//! One device with the objects that the operations name, and what each operation came to.

#![allow(clippy::disallowed_methods, reason = "hardware runs by itself: tests must wait for it")]

use super::ops::{Bound, Key, Local, MEMORIES, Op, Range, Side, WINDOWS, Work};
use crate::device::{
    Device, DeviceErrorKind, MrKeys, MwKeys, Payload, PostError, QpCaps, QpState, RecvWr, RtsAttrs,
    Sge, Wc, WcStatus, Wr, WrChain, WrOp,
};
use crate::mem::{DmaBuf, ExposedBytes, Fenced};
use crate::types::{CqId, DmaAddr, Lkey, PdId, QpId, Rkey, WrId};
use std::time::{Duration, Instant};

/// What can be compared between devices.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Outcome {
    /// A call that was refused: how much of it was accepted, and what kind of error it was.
    pub(super) refused: Option<(usize, DeviceErrorKind)>,
    /// The completions of this post, in its order; `None` if there was none.
    pub(super) sends: Vec<Option<WcStatus>>,
    /// The receives that completed in this operation.
    pub(super) receives: Vec<Received>,
    /// The owner's QP, the peer's and the stranger's.
    pub(super) states: Vec<QpState>,
    /// A digest of all memory.
    pub(super) bytes: u64,
}

impl Outcome {
    /// Whether a QP is no longer usable, so that [`World::recover`] is next.
    pub(super) fn is_broken(&self) -> bool {
        self.states.iter().any(|&s| s != QpState::Rts)
            || self.sends.iter().any(|s| *s != Some(WcStatus::Success))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Received {
    pub(super) status: WcStatus,
    pub(super) len: u32,
    /// The window that the peer invalidated, or some other key.
    pub(super) invalidated: Option<Option<usize>>,
}

struct Memory {
    bytes: ExposedBytes,
    addr: DmaAddr,
    keys: MrKeys,
    old: Rkey,
}

struct Window {
    keys: MwKeys,
    key: Rkey,
    old: Rkey,
}

pub(super) struct World<D: Device> {
    dev: D,
    pds: [PdId; 2],
    cq: CqId,
    /// Owner, peer, stranger, and the stranger's far end.
    qps: [QpId; 4],
    memories: Vec<Memory>,
    /// What is in them at the start.
    contents: Vec<Vec<u8>>,
    windows: Vec<Window>,
    next: u64,
    receives: Vec<WrId>,
    wcs: Vec<Wc>,
    steps: bool,
}

impl<D: Device> World<D> {
    /// `steps`: the device runs only when it is stepped.
    pub(super) fn new(dev: D, steps: bool) -> World<D> {
        let pds = [dev.alloc_pd().unwrap(), dev.alloc_pd().unwrap()];
        let (cq, _) = dev.create_cq(1024).unwrap();
        let qps = connect(&dev, pds[0], cq);
        let contents: Vec<_> = (0..MEMORIES.len()).map(content).collect();
        let memories = contents.iter().enumerate().map(|(i, c)| memory(&dev, pds, i, c)).collect();
        let windows = (0..WINDOWS).map(|_| window(&dev, pds[0])).collect();
        let (receives, wcs) = (vec![], vec![]);
        World { dev, pds, cq, qps, memories, contents, windows, next: 1, receives, wcs, steps }
    }

    /// Carries one operation out and waits for all of it. `expected`: states that the QPs are given
    /// time to come to.
    pub(super) fn run(&mut self, op: &Op, expected: Option<&Outcome>) -> Outcome {
        let mut out = Outcome::default();
        match op {
            Op::Post(side, works) => self.post(*side, works, &mut out),
            Op::Receive(local) => {
                let wr_id = self.id();
                let wr = RecvWr { wr_id, sge: self.sge(local) };
                match self.dev.post_recv(self.qps[0], &[wr]) {
                    Ok(()) => self.receives.push(wr_id),
                    Err(e) => out.refused = Some((e.posted, e.cause.kind())),
                }
            }
            Op::ToError(side) => self.dev.qp_to_err(self.qp(*side)).unwrap(),
            Op::Reregister(i) => self.reregister(*i, &mut out),
            Op::Renew(i) => {
                let old = self.windows[*i].key;
                self.dev.dealloc_mw(self.windows[*i].keys.mw).unwrap();
                self.windows[*i] = Window { old, ..window(&self.dev, self.pds[0]) };
            }
            Op::BadRegistration { memory, len } => {
                let m = &self.memories[*memory];
                match self.dev.reg_mr(self.pds[0], m.addr, *len, MEMORIES[*memory].1) {
                    Ok(keys) => self.dev.dereg_mr(keys.mr).unwrap(),
                    Err(e) => out.refused = Some((0, e.kind())),
                }
            }
        }
        out.states = self.states(expected);
        out.bytes = self.digest();
        out
    }

    /// Puts all QPs in error, waits for what is flushed, and begins anew: other windows, other QPs,
    /// the bytes of the start. Returns how the receives ended that were still posted.
    pub(super) fn recover(&mut self) -> Vec<Received> {
        for qp in self.qps {
            self.dev.qp_to_err(qp).unwrap();
        }
        let wanted = std::mem::take(&mut self.receives);
        let flushed = self.receives_of(&wanted);
        for i in 0..WINDOWS {
            let old = self.windows[i].key;
            self.dev.dealloc_mw(self.windows[i].keys.mw).unwrap();
            self.windows[i].old = old;
        }
        for qp in self.qps {
            self.dev.destroy_qp(qp).unwrap();
        }
        self.wcs.clear();
        self.qps = connect(&self.dev, self.pds[0], self.cq);
        for i in 0..WINDOWS {
            let old = self.windows[i].old;
            self.windows[i] = Window { old, ..window(&self.dev, self.pds[0]) };
        }
        for (m, content) in self.memories.iter().zip(&self.contents) {
            assert!(m.bytes.copy_in(0, content));
        }
        flushed
    }

    /// Ends everything; nothing may be in use.
    pub(super) fn close(mut self) {
        self.recover();
        for w in &self.windows {
            self.dev.dealloc_mw(w.keys.mw).unwrap();
        }
        for qp in self.qps {
            self.dev.destroy_qp(qp).unwrap();
        }
        for m in self.memories.drain(..) {
            self.dev.dereg_mr(m.keys.mr).unwrap();
            let _ = self.dev.dma_unmap(&m.bytes, m.addr, Fenced::mint()).unwrap();
        }
        self.dev.destroy_cq(self.cq).unwrap();
        for pd in self.pds {
            self.dev.dealloc_pd(pd).unwrap();
        }
    }

    fn reregister(&mut self, i: usize, out: &mut Outcome) {
        let pd = self.pds[usize::from(i + 1 == MEMORIES.len())];
        let m = &mut self.memories[i];
        match self.dev.dereg_mr(m.keys.mr) {
            Ok(()) => {
                m.old = m.keys.rkey;
                m.keys = self.dev.reg_mr(pd, m.addr, MEMORIES[i].0, MEMORIES[i].1).unwrap();
            }
            Err(e) => out.refused = Some((0, e.kind())),
        }
    }

    fn post(&mut self, side: Side, works: &[Work], out: &mut Outcome) {
        let mut chain = WrChain::new();
        let mut ids = vec![];
        let mut keys: Vec<Rkey> = self.windows.iter().map(|w| w.key).collect();
        for work in works {
            let (wr_id, op) = (self.id(), self.wr(work, &mut chain, &mut keys));
            chain.push(Wr { wr_id, signaled: true, op });
            ids.push(wr_id);
        }
        let posted = match self.dev.post_send(self.qp(side), &chain) {
            Ok(()) => works.len(),
            Err(PostError { posted, cause }) => {
                out.refused = Some((posted, cause.kind()));
                posted
            }
        };
        if posted == works.len() {
            self.windows.iter_mut().zip(&keys).for_each(|(w, &key)| w.key = key);
        }
        out.sends = ids[..posted].iter().map(|&id| Some(self.wait(id)?.status())).collect();
        let messages = works.iter().zip(&out.sends).filter(|(w, s)| {
            matches!(w, Work::Send(_) | Work::SendInv(_)) && **s == Some(WcStatus::Success)
        });
        let arrived = messages.count().min(self.receives.len());
        let wanted: Vec<WrId> = self.receives.drain(..arrived).collect();
        out.receives = self.receives_of(&wanted);
    }

    fn wr(&self, work: &Work, chain: &mut WrChain, keys: &mut [Rkey]) -> WrOp {
        match work {
            Work::Bind { window, same_tag, onto, access } => {
                let w = &self.windows[*window];
                if !same_tag {
                    keys[*window] = w.key.next_tag();
                }
                WrOp::BindMw {
                    mw: w.keys.mw,
                    rkey: keys[*window],
                    mr: self.memories[onto.memory].keys.mr,
                    addr: DmaAddr(self.addr(onto)),
                    len: onto.len.into(),
                    access: *access,
                }
            }
            Work::Inv(key) => WrOp::LocalInv(self.key(*key, keys)),
            Work::Write { key, to, from } => {
                let payload = Payload::Sges(chain.add_sges([self.sge(from)]));
                let (remote_addr, rkey) = (self.addr(to), self.key(*key, keys));
                WrOp::RdmaWrite { payload, remote_addr, rkey }
            }
            Work::Read { key, from, into } => {
                let sges = chain.add_sges([self.sge(into)]);
                let (remote_addr, rkey) = (self.addr(from), self.key(*key, keys));
                WrOp::RdmaRead { sges, remote_addr, rkey }
            }
            Work::Send(local) => WrOp::Send(Payload::Sges(chain.add_sges([self.sge(local)]))),
            Work::SendInv(key) => {
                WrOp::SendWithInv(Payload::Inline(chain.add_inline(b"x")), self.key(*key, keys))
            }
        }
    }

    fn key(&self, key: Key, keys: &[Rkey]) -> Rkey {
        match key {
            Key::Mr(i) => self.memories[i].keys.rkey,
            Key::OldMr(i) => self.memories[i].old,
            Key::Window(i) => keys[i],
            Key::OtherTag(i) => Rkey::from_bits(keys[i].to_bits() ^ 0x40),
            Key::OldWindow(i) => self.windows[i].old,
            Key::Unknown => Rkey::from_bits(0x007a_bcde),
        }
    }

    fn addr(&self, range: &Range) -> u64 {
        self.memories[range.memory].addr.0.wrapping_add_signed(range.offset)
    }

    fn sge(&self, local: &Local) -> Sge {
        let good = self.memories[local.range.memory].keys.lkey;
        let lkey = if local.bad_key { Lkey::from_bits(0x007a_bcde) } else { good };
        Sge { addr: DmaAddr(self.addr(&local.range)), len: local.range.len, lkey }
    }

    fn qp(&self, side: Side) -> QpId {
        self.qps[match side {
            Side::Owner => 0,
            Side::Peer => 1,
            Side::Stranger => 2,
        }]
    }

    fn id(&mut self) -> WrId {
        self.next += 1;
        WrId(self.next)
    }

    /// The completion of one WR; `None` if the device does not give one.
    fn wait(&mut self, id: WrId) -> Option<Wc> {
        let start = Instant::now();
        loop {
            if let Some(at) = self.wcs.iter().position(|w| w.wr_id() == id) {
                return Some(self.wcs.remove(at));
            }
            let stepped = self.dev.step();
            let got = self.dev.poll_cq(self.cq, 64, &mut self.wcs).unwrap();
            let over = if self.steps { !stepped } else { start.elapsed() > PATIENCE };
            if got == 0 && over {
                return None;
            }
        }
    }

    fn receives_of(&mut self, ids: &[WrId]) -> Vec<Received> {
        let lost = Received { status: WcStatus::Unknown(0), len: 0, invalidated: None };
        let of = |w: &mut Self, id| match w.wait(id) {
            None => lost,
            Some(Wc::Error(e)) => Received { status: e.status, ..lost },
            Some(Wc::Success(s)) => {
                let name = |key| w.windows.iter().position(|w| w.key == key);
                let invalidated = s.invalidated.map(name);
                Received { status: WcStatus::Success, len: s.byte_len, invalidated }
            }
        };
        ids.iter().map(|&id| of(self, id)).collect()
    }

    fn states(&self, expected: Option<&Outcome>) -> Vec<QpState> {
        let start = Instant::now();
        loop {
            let now: Vec<_> =
                self.qps[..3].iter().map(|&qp| self.dev.qp_state(qp).unwrap()).collect();
            let settled = expected.is_none_or(|e| e.states == now);
            if settled || start.elapsed() > STATE_PATIENCE {
                return now;
            }
        }
    }

    /// FNV-1a over the words of all memory.
    fn digest(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for m in &self.memories {
            let mut copy = vec![0; m.bytes.len()];
            assert!(m.bytes.copy_out(0, &mut copy));
            for word in copy.chunks_exact(8) {
                let word = u64::from_le_bytes(word.try_into().unwrap());
                hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
        hash
    }
}

/// The windows after an operation that broke nothing.
pub(super) fn follow(bound: &mut Bound, op: &Op, out: &Outcome) {
    match op {
        Op::Renew(i) => bound[*i] = None,
        Op::Post(side, works) => {
            for (work, end) in works.iter().zip(&out.sends) {
                match work {
                    _ if *end != Some(WcStatus::Success) => {}
                    Work::Bind { window, onto, .. } => bound[*window] = Some((*side, *onto)),
                    Work::Inv(Key::Window(i)) | Work::SendInv(Key::Window(i)) => bound[*i] = None,
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

fn memory<D: Device>(dev: &D, pds: [PdId; 2], i: usize, content: &[u8]) -> Memory {
    let (len, access) = MEMORIES[i];
    let (bytes, _) = DmaBuf::from_bytes(content).unwrap().into_exposed();
    let addr = dev.dma_map(&bytes, None).unwrap();
    let pd = pds[usize::from(i + 1 == MEMORIES.len())];
    let keys = dev.reg_mr(pd, addr, len, access).unwrap();
    Memory { bytes, addr, keys, old: keys.rkey.next_tag() }
}

fn content(i: usize) -> Vec<u8> {
    (0..MEMORIES[i].0).map(|b| (b % 251) as u8 ^ (i as u8 * 31)).collect()
}

fn window<D: Device>(dev: &D, pd: PdId) -> Window {
    let keys = dev.alloc_mw(pd).unwrap();
    Window { keys, key: keys.rkey, old: keys.rkey }
}

fn connect<D: Device>(dev: &D, pd: PdId, cq: CqId) -> [QpId; 4] {
    let ask = QpCaps { max_send_wr: 64, max_recv_wr: 64, max_sge: 1, max_inline_data: 64 };
    let qps = [(); 4].map(|()| {
        let (qp, _) = dev.create_qp(pd, cq, ask).unwrap();
        dev.qp_to_init(qp).unwrap();
        qp
    });
    // Few retries: a message without a receive must end.
    let attrs = RtsAttrs { rnr_retry: 2 };
    for (a, b) in [(0, 1), (1, 0), (2, 3), (3, 2)] {
        dev.qp_to_rts(qps[a], dev.endpoint(qps[b]).unwrap(), attrs).unwrap();
    }
    qps
}

/// Longer than all retries of an RC QP take.
const PATIENCE: Duration = Duration::from_secs(8);
const STATE_PATIENCE: Duration = Duration::from_millis(200);
