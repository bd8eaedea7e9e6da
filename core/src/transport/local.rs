//! The initiator's side: read and write between a local buffer and a segment of the peer.

use super::Transport;
use super::error::{AccessError, BufferError, Refusal, TakeError, TakeRefusal};
use crate::device::{Device, DeviceError, Payload, Purpose, Sge, Span, WrOp};
use crate::engine::exposure::{Buffers, LocalId, LocalOp, Piece, RemoteAccess};
use crate::engine::ring::RingOp;
use crate::error::ApiMisuse;
use crate::mem::Fenced;
use crate::memreg::MemReg;
use crate::types::{Access, DmaAddr, Grant, Segment};
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
type Cuts = SmallVec<[(Span, u64); 4]>;

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
    /// One post; more than `max_sge_rd` buffers become several WRs, of which the last is signaled.
    /// A buffer that was used on this transport before needs no registration.
    pub fn read(
        &mut self,
        segment: &Segment,
        offset: u64,
        buffers: impl Into<Buffers>,
    ) -> Result<LocalOp, BufferError> {
        self.access(segment, offset, buffers.into(), false, false)
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
        self.access(segment, offset, buffers.into(), true, false)
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
        self.access(segment, offset, buffers.into(), true, true)
    }

    fn access(
        &mut self,
        segment: &Segment,
        offset: u64,
        buffers: Buffers,
        write: bool,
        one_wr: bool,
    ) -> Result<LocalOp, BufferError> {
        let what = match self.check_access(segment, offset, &buffers, write) {
            Ok(what) => what,
            Err(why) => return Err(BufferError { buffers, why }),
        };
        if let Err(why) = self.check_cuts(&buffers, write, one_wr) {
            self.nudge(&why);
            return Err(BufferError { buffers, why });
        }
        let mut pieces = match self.eng.lend(buffers, true) {
            Ok(pieces) => pieces,
            Err((buffers, e)) => return Err(BufferError { buffers, why: Refusal::Device(e) }),
        };
        let sges = match self.sges(&mut pieces, write) {
            Ok(sges) => sges,
            Err(e) => return Err(self.give_all_back(pieces, Refusal::Device(e))),
        };
        let cuts = self.cut(&sges, write);
        let (id, flag) = self.eng.slots.new_local(what);
        if let Some(op) = self.eng.slots.locals.get_mut(id) {
            op.pieces = pieces;
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
        &self,
        segment: &Segment,
        offset: u64,
        buffers: &Buffers,
        write: bool,
    ) -> Result<RemoteAccess, Refusal> {
        self.check_up()?;
        self.check_epoch(segment)?;
        let (needs, word) =
            if write { (Grant::PeerWrites, "write") } else { (Grant::PeerReads, "read") };
        if segment.grant != needs {
            return Err(Refusal::WrongGrant(word));
        }
        if buffers.0.is_empty() {
            return Err(Refusal::Empty);
        }
        let mut len = 0u64;
        for (index, (buf, range)) in buffers.0.iter().enumerate() {
            if range.start >= range.end {
                return Err(Refusal::ZeroLength { index });
            }
            if !write && buf.is_read_only() {
                return Err(Refusal::ReadOnly { index, what: "a read into it" });
            }
            if range.end > buf.len() {
                return Err(Refusal::OutOfRange { index, end: range.end, len: buf.len() });
            }
            len = len.saturating_add((range.end - range.start) as u64);
        }
        let end = offset.saturating_add(len);
        let remote_addr = segment.addr.checked_add(offset);
        match remote_addr {
            Some(remote_addr) if end <= segment.len => {
                Ok(RemoteAccess { write, remote_addr, len, rkey: segment.rkey })
            }
            _ => Err(Refusal::OutsideSegment { start: offset, end, len: segment.len }),
        }
    }

    /// Refuses what needs more WRs than may be posted, before anything is lent or registered
    /// (D-08).
    fn check_cuts(&self, buffers: &Buffers, write: bool, one_wr: bool) -> Result<(), Refusal> {
        let lens = buffers.0.iter().map(|(_, r)| (r.end - r.start) as u64);
        let sges = lens.clone().map(|n| n.div_ceil(WR_BYTES)).sum::<u64>() as usize;
        let (limit, total) = (self.sges_of_one(write), lens.sum::<u64>());
        if one_wr && (sges > limit || total > WR_BYTES) {
            return Err(Refusal::TooManySges { need: sges, limit });
        }
        // A cut ends because it is full in SGEs, or because the next SGE is too many bytes for it:
        // then the two are more than WR_BYTES, and a byte counts in two such pairs at most.
        let by_bytes = if total <= WR_BYTES { 0 } else { (2 * total / WR_BYTES) as usize + 1 };
        let most = sges.div_ceil(limit) + by_bytes;
        self.check_slots(most.min(sges))
    }

    /// SGEs of one WR at most.
    fn sges_of_one(&self, write: bool) -> usize {
        let c = &self.eng.caps;
        (if write { c.max_sge } else { c.max_sge.min(c.max_sge_rd) }).max(1) as usize
    }

    /// SGEs over the buffers, each with the key of its own local MR.
    fn sges(&mut self, pieces: &mut [Piece], write: bool) -> Result<Sges, DeviceError> {
        // A right of the peer is never left on a registration that stays (B24).
        let sink = self.eng.caps.rights_for(Purpose::ReadSink);
        let once = !write && sink != Access::LOCAL_WRITE;
        let mut sges = Sges::new();
        for piece in pieces {
            let lkey = if once { self.eng.sink_mr(piece)? } else { self.eng.local_mr(piece)?.1 };
            let base = piece.mapped.map_or(0, |a| a.0);
            let mut at = piece.range.start as u64;
            let end = piece.range.end as u64;
            while at < end {
                let len = (end - at).min(WR_BYTES);
                sges.push(Sge { addr: DmaAddr(base + at), len: len as u32, lkey });
                at += len;
            }
        }
        Ok(sges)
    }

    /// Cuts the SGEs into WRs that the device takes, and puts them into the chain's table.
    fn cut(&mut self, sges: &[Sge], write: bool) -> Cuts {
        let most = self.sges_of_one(write);
        let mut cuts = Cuts::new();
        let mut from = 0;
        while from < sges.len() {
            let mut to = from;
            let mut bytes = 0u64;
            while to < sges.len() && to - from < most && bytes + u64::from(sges[to].len) <= WR_BYTES
            {
                bytes += u64::from(sges[to].len);
                to += 1;
            }
            // An SGE has at most WR_BYTES, so at least one is taken.
            to = to.max(from + 1);
            let span = self.eng.chain.add_sges(sges[from..to].iter().copied());
            cuts.push((span, bytes));
            from = to;
        }
        cuts
    }

    fn chain_access(&mut self, id: LocalId, what: &RemoteAccess, cuts: &Cuts) {
        let mut done = 0;
        for (i, &(sges, bytes)) in cuts.iter().enumerate() {
            // Wraps only for a forged segment, which the peer's device then refuses.
            let remote_addr = what.remote_addr.wrapping_add(done);
            let rkey = what.rkey;
            let op = if what.write {
                WrOp::RdmaWrite { payload: Payload::Sges(sges), remote_addr, rkey }
            } else {
                WrOp::RdmaRead { sges, remote_addr, rkey }
            };
            let last = i + 1 == cuts.len();
            self.eng.chain_wr(op, RingOp::Local(id, last), last);
            done += bytes;
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
            buffers = std::mem::take(&mut op.back);
        }
        self.eng.slots.free_local(id);
        Some(BufferError { buffers, why })
    }

    fn give_all_back(&mut self, pieces: SmallVec<[Piece; 4]>, why: Refusal) -> BufferError {
        let mut buffers = Buffers::new();
        for piece in pieces {
            // Nothing was posted: no WR names these bytes.
            self.eng.give_back(piece, Fenced::mint(), &mut buffers);
        }
        BufferError { buffers, why }
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
        let buffers = std::mem::take(&mut body.back);
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
