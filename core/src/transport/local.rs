//! The initiator's side: read and write between a local buffer and a segment of the peer.

use super::error::{AccessError, BufferError, Refusal, TakeError, TakeRefusal};
use super::{Transport, parts};
use crate::device::{Device, DeviceError, Payload, Purpose, Sge, Span, WrOp};
use crate::engine::buffers::{Buffers, Lent, Piece};
use crate::engine::exposure::{LocalId, LocalOp, RemoteAccess};
use crate::engine::ring::RingOp;
use crate::error::ApiMisuse;
use crate::mem::Fenced;
use crate::memreg::MemReg;
use crate::types::{Access, DmaAddr, Grant, Lkey, Rkey, Segment};
use smallvec::SmallVec;

/// A finished read or write.
#[derive(Debug)]
pub struct LocalDone {
    /// The buffers that were moved in.
    pub buffers: Buffers,
    /// Bytes moved, or how the device or the peer refused. After an error the buffers of a read
    /// hold anything.
    pub result: Result<u64, AccessError>,
}

/// Bytes of one WR at most: half of what the specification allows a message.
const WR_BYTES: u64 = 1 << 30;

/// SGEs of one operation, and the WRs that they are cut into.
type Sges = SmallVec<[Sge; 16]>;
type Cuts = SmallVec<[Cut; 4]>;
/// The bytes of an operation at the peer, in order, each run under one key.
type Runs = SmallVec<[RemoteRun; 4]>;

/// One WR of an operation.
#[derive(Clone, Copy)]
struct Cut {
    sges: Span,
    addr: u64,
    rkey: Rkey,
}

/// Bytes of the peer under one key.
#[derive(Clone, Copy)]
struct RemoteRun {
    addr: u64,
    rkey: Rkey,
    len: u64,
}

/// Where `len` bytes from `offset` lie in the segments.
fn runs(segments: &[Segment], offset: u64, len: u64) -> Result<Runs, Refusal> {
    let total = segments.iter().fold(0u64, |sum, s| sum.saturating_add(s.len));
    let end = offset.saturating_add(len);
    let outside = Refusal::OutsideSegment { start: offset, end, len: total };
    let mut runs = Runs::new();
    let (mut skip, mut left) = (offset, len);
    for s in segments {
        if left == 0 {
            break;
        }
        if skip >= s.len {
            skip -= s.len;
            continue;
        }
        let take = left.min(s.len - skip);
        let addr = s.addr.checked_add(skip).ok_or(outside.clone())?;
        runs.push(RemoteRun { addr, rkey: s.rkey, len: take });
        (skip, left) = (0, left - take);
    }
    if left > 0 || runs.is_empty() { Err(outside) } else { Ok(runs) }
}

impl<D: Device, S: MemReg> Transport<D, S> {
    /// Reads `buffers` full from the peer's segment, starting `offset` bytes into it.
    ///
    /// # Shape
    /// The buffers belong to the transport until [`take`](Transport::take).
    /// # Errors
    /// [`BufferError`] returns the buffers; nothing was posted. If the device took a part of
    /// several WRs, the answer is a handle: `take` says that it failed. Its bytes may have moved
    /// in part.
    /// # Cost
    /// One post; more than `max_sge_rd` ranges become several WRs, of which the last is signaled.
    /// A buffer that was used on this transport before needs no registration.
    pub fn read(
        &mut self,
        segment: &Segment,
        offset: u64,
        buffers: impl Into<Buffers>,
    ) -> Result<LocalOp, BufferError> {
        self.access(std::slice::from_ref(segment), offset, buffers.into(), false, false)
    }

    /// Writes `buffers` into the peer's segment, starting `offset` bytes into it. As
    /// [`read`](Transport::read).
    ///
    /// # Errors
    /// As `read`.
    pub fn write(
        &mut self,
        segment: &Segment,
        offset: u64,
        buffers: impl Into<Buffers>,
    ) -> Result<LocalOp, BufferError> {
        self.access(std::slice::from_ref(segment), offset, buffers.into(), true, false)
    }

    /// As [`read`](Transport::read), from bytes that several segments hold one after the other:
    /// `offset` counts through all of them. Each WR stays within one segment and carries its key.
    ///
    /// # Errors
    /// As `read`. An [`AccessError`] tells where the access starts, whichever WR failed.
    pub fn read_across(
        &mut self,
        segments: &[Segment],
        offset: u64,
        buffers: impl Into<Buffers>,
    ) -> Result<LocalOp, BufferError> {
        self.access(segments, offset, buffers.into(), false, false)
    }

    /// As [`write`](Transport::write), into bytes that several segments hold one after the other;
    /// see [`read_across`](Transport::read_across).
    ///
    /// # Errors
    /// As `read_across`.
    pub fn write_across(
        &mut self,
        segments: &[Segment],
        offset: u64,
        buffers: impl Into<Buffers>,
    ) -> Result<LocalOp, BufferError> {
        self.access(segments, offset, buffers.into(), true, false)
    }

    /// As [`write`](Transport::write), in one WR: the peer's device writes all of it or none.
    ///
    /// # Errors
    /// [`Refusal::TooManySges`] where `write` would cut it into several WRs.
    pub fn write_one(
        &mut self,
        segment: &Segment,
        offset: u64,
        buffers: impl Into<Buffers>,
    ) -> Result<LocalOp, BufferError> {
        self.access(std::slice::from_ref(segment), offset, buffers.into(), true, true)
    }

    fn access(
        &mut self,
        segments: &[Segment],
        offset: u64,
        mut buffers: Buffers,
        write: bool,
        one_wr: bool,
    ) -> Result<LocalOp, BufferError> {
        let (what, runs) = match self.check_access(segments, offset, &buffers, write) {
            Ok(checked) => checked,
            Err(why) => return Err(BufferError { buffers, why }),
        };
        if let Err(why) = self.check_cuts(&buffers, runs.len(), write, one_wr) {
            self.nudge(&why);
            return Err(BufferError { buffers, why });
        }
        let (id, flag) = self.eng.slots.new_local(what);
        let sges = match self.lend_local(id, &mut buffers, &runs, write) {
            Ok(sges) => sges,
            Err(e) => {
                self.eng.slots.free_local(id);
                return Err(BufferError { buffers, why: Refusal::Device(e) });
            }
        };
        let cuts = self.cut(&sges, runs, write);
        if let Some(op) = self.eng.slots.locals.get_mut(id) {
            op.buffers = buffers;
            op.open = cuts.len();
        }
        self.chain_access(id, &what, &cuts);
        if let Err(why) = self.post()
            && let Some(refused) = self.refused_access(id, why)
        {
            return Err(refused);
        }
        let counter = if write { &mut self.eng.stats.writes } else { &mut self.eng.stats.reads };
        *counter += 1;
        Ok(LocalOp { transport: self.eng.id, id, flag: Some(flag) })
    }

    fn check_access(
        &mut self,
        segments: &[Segment],
        offset: u64,
        buffers: &Buffers,
        write: bool,
    ) -> Result<(RemoteAccess, Runs), Refusal> {
        self.check_up()?;
        let (needs, word) =
            if write { (Grant::PeerWrites, "write") } else { (Grant::PeerReads, "read") };
        for segment in segments {
            self.check_epoch(segment)?;
            if segment.grant != needs {
                return Err(Refusal::WrongGrant(word));
            }
        }
        let page = self.eng.caps.page_size;
        let parts::Checked { bytes: len, read_only } =
            parts::check(buffers, page, &mut self.shapes)?;
        if read_only && !write {
            return Err(parts::read_only(buffers, "a read into it"));
        }
        let runs = runs(segments, offset, len)?;
        let first = runs.first().copied();
        let (remote_addr, rkey) = first.map_or((0, Rkey::from_bits(0)), |r| (r.addr, r.rkey));
        Ok((RemoteAccess { write, remote_addr, len, rkey }, runs))
    }

    /// Refuses what needs more WRs than may be posted, before anything is lent or registered
    /// (D-08).
    fn check_cuts(
        &self,
        buffers: &Buffers,
        runs: usize,
        write: bool,
        one_wr: bool,
    ) -> Result<(), Refusal> {
        let lens = buffers.pieces.iter().map(|p| p.len() as u64);
        let sges = lens.clone().map(|n| n.div_ceil(WR_BYTES)).sum::<u64>() as usize;
        let (limit, total) = (self.sges_of_one(write), lens.sum::<u64>());
        if one_wr && (sges > limit || total > WR_BYTES) {
            return Err(Refusal::TooManySges { need: sges, limit });
        }
        // A cut ends because it is full in SGEs, or because the next SGE is too many bytes for it:
        // then the two are more than WR_BYTES, and a byte counts in two such pairs at most.
        let by_bytes = if total <= WR_BYTES { 0 } else { (2 * total / WR_BYTES) as usize + 1 };
        // The end of a segment cuts an SGE, and ends a WR.
        let (sges, ends) = (sges + runs - 1, runs - 1);
        let most = sges.div_ceil(limit) + by_bytes + ends;
        self.check_slots(most.min(sges))
    }

    /// SGEs of one WR at most.
    fn sges_of_one(&self, write: bool) -> usize {
        let c = &self.eng.caps;
        (if write { c.max_sge } else { c.max_sge.min(c.max_sge_rd) }).max(1) as usize
    }

    /// SGEs over the ranges, each with the key of its buffer's own local MR.
    fn sges(
        &mut self,
        buffers: &Buffers,
        lent: &mut [Lent],
        runs: &Runs,
        write: bool,
    ) -> Result<Sges, DeviceError> {
        // A right of the peer is never left on a registration that stays (B24).
        let sink = self.eng.caps.rights_for(Purpose::ReadSink);
        let once = !write && sink != Access::LOCAL_WRITE;
        let mut sges = Sges::new();
        let mut remote = runs.iter().map(|r| r.len);
        let mut left = remote.next().unwrap_or(0);
        for (pieces, lent) in buffers.of_each().zip(lent) {
            let whole = if once { None } else { self.whole_lkey(pieces, lent)? };
            let base = lent.mapped.map_or(0, |a| a.0);
            for range in pieces {
                let lkey = match whole {
                    Some(lkey) => lkey,
                    None if once => self.eng.sink_mr(lent, range)?,
                    None => self.eng.range_mr(lent, range)?,
                };
                let mut at = range.start as u64;
                let end = range.end as u64;
                while at < end {
                    if left == 0 {
                        left = remote.next().unwrap_or(u64::MAX);
                    }
                    let len = (end - at).min(WR_BYTES).min(left);
                    left -= len;
                    sges.push(Sge { addr: DmaAddr(base + at), len: len as u32, lkey });
                    at += len;
                }
            }
        }
        Ok(sges)
    }

    /// The key of a buffer's local MR; `None` if the device has no room for the whole buffer, of
    /// which only a part is needed.
    fn whole_lkey(
        &mut self,
        pieces: &[Piece],
        lent: &mut Lent,
    ) -> Result<Option<Lkey>, DeviceError> {
        match self.eng.local_mr(lent) {
            Ok((_, lkey)) => Ok(Some(lkey)),
            Err(e) => {
                let needed: usize = pieces.iter().map(|p| p.len()).sum();
                let less = e.is_no_room() && needed < lent.bytes.len();
                if less { Ok(None) } else { Err(e) }
            }
        }
    }

    /// Cuts the SGEs into WRs that the device takes, and puts them into the chain's table.
    fn cut(&mut self, sges: &[Sge], runs: Runs, write: bool) -> Cuts {
        let most = self.sges_of_one(write);
        let mut cuts = Cuts::new();
        let mut from = 0;
        let mut runs = runs.into_iter();
        let Some(mut run) = runs.next() else { return cuts };
        while from < sges.len() {
            if run.len == 0 {
                match runs.next() {
                    Some(next) => run = next,
                    None => return cuts,
                }
            }
            let mut to = from;
            let mut bytes = 0u64;
            let room = run.len.min(WR_BYTES);
            while to < sges.len() && to - from < most && bytes + u64::from(sges[to].len) <= room {
                bytes += u64::from(sges[to].len);
                to += 1;
            }
            // An SGE has at most WR_BYTES and ends with its run, so at least one is taken.
            to = to.max(from + 1);
            let span = self.eng.chain.add_sges(sges[from..to].iter().copied());
            cuts.push(Cut { sges: span, addr: run.addr, rkey: run.rkey });
            // Wraps only for a forged segment, which the peer's device then refuses.
            run.addr = run.addr.wrapping_add(bytes);
            run.len = run.len.saturating_sub(bytes);
            from = to;
        }
        cuts
    }

    fn chain_access(&mut self, id: LocalId, what: &RemoteAccess, cuts: &Cuts) {
        for (i, &Cut { sges, addr: remote_addr, rkey }) in cuts.iter().enumerate() {
            let op = if what.write {
                WrOp::RdmaWrite { payload: Payload::Sges(sges), remote_addr, rkey }
            } else {
                WrOp::RdmaRead { sges, remote_addr, rkey }
            };
            let last = i + 1 == cuts.len();
            self.eng.chain_wr(op, RingOp::Local(id, last), last);
        }
    }

    /// The post was refused whole: the buffers come back. `None` if a part of it runs all the same,
    /// which keeps the buffers until it has ended and is then an operation that failed.
    fn refused_access(&mut self, id: LocalId, why: Refusal) -> Option<BufferError> {
        let never_heard = self.never_heard();
        let op = self.eng.slots.locals.get_mut(id)?;
        if op.open > 0 {
            op.failed = Some(never_heard);
            return None;
        }
        let mut buffers = Buffers::new();
        self.eng.finish_local(id);
        if let Some(op) = self.eng.slots.locals.get_mut(id) {
            buffers = std::mem::take(&mut op.buffers);
        }
        self.eng.slots.free_local(id);
        Some(BufferError { buffers, why })
    }

    /// Moves the buffers into the slot and lends them to the device; on error they are back.
    fn lend_local(
        &mut self,
        id: LocalId,
        buffers: &mut Buffers,
        runs: &Runs,
        write: bool,
    ) -> Result<Sges, DeviceError> {
        let slot = self.eng.slots.locals.get_mut(id);
        let mut lent = slot.map(|op| std::mem::take(&mut op.lent)).unwrap_or_default();
        self.eng.lend(buffers, &mut lent, true)?;
        let sges = self.sges(buffers, &mut lent, runs, write).inspect_err(|_| {
            // Nothing was posted: no WR names these bytes.
            self.eng.end_once(&mut lent);
            self.eng.give_back(&mut lent, Fenced::mint, buffers);
        });
        if let Some(op) = self.eng.slots.locals.get_mut(id) {
            op.lent = lent;
        }
        sges
    }

    /// Returns a finished read or write with its buffers.
    ///
    /// # Errors
    /// [`TakeError`] returns the handle while its WRs are on the queue.
    pub fn take(&mut self, op: LocalOp) -> Result<LocalDone, TakeError> {
        let foreign = TakeRefusal::Misuse(ApiMisuse::ForeignHandle);
        if op.transport != self.eng.id {
            return Err(TakeError { op, why: foreign });
        }
        let Some(body) = self.eng.slots.locals.get_mut(op.id) else {
            return Err(TakeError { op, why: foreign });
        };
        if !body.done {
            let why = TakeRefusal::Running { open: body.open };
            return Err(TakeError { op, why });
        }
        let buffers = std::mem::take(&mut body.buffers);
        let what = body.what;
        let result = match body.failed {
            None => Ok(what.len),
            Some(wc) => Err(AccessError { what, wc }),
        };
        let id = op.id;
        drop(op.disarm());
        self.eng.slots.free_local(id);
        Ok(LocalDone { buffers, result })
    }
}
