//! Messages by SEND and RECV, and what they say about keys.

use super::error::{DownCause, Refusal};
use super::{State, Transport};
use crate::device::{Device, DeviceError, Payload, PostError, RecvWr, Sge, Verb, WrOp, errno};
use crate::engine::Engine;
use crate::engine::exposure::{Awaited, Exposed, ExposureState};
use crate::engine::ring::{RingOp, recv_id};
use crate::engine::stage::{PostFailure, empty_payload};
use crate::error::ApiMisuse;
use crate::mem::{AllocError, DmaBuf, ExposedBytes, Fenced};
use crate::memreg::MemReg;
use crate::mutants::mutant;
use crate::types::{Access, DmaAddr, Epoch, Lkey, MrId, Rkey, Segment, SegmentError, TransportId};
use std::collections::VecDeque;

/// What the reply to a message may do to this side's keys.
#[derive(Clone, Copy, Debug)]
pub enum Reply<'a> {
    /// No reply, or one that invalidates nothing.
    InvalidatesNothing,
    /// The reply may invalidate a key of one of these (SEND_WITH_INV): until it has come, they are
    /// not invalidated from this side (rule 5).
    MayInvalidate(&'a [&'a Exposed]),
}

/// Proof that a reply has arrived; `revoke` asks for it where a reply may have invalidated a key.
///
/// The core cannot match replies to requests: give the token of the reply that answered *this*
/// request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyToken {
    pub(super) transport: TransportId,
    pub(super) epoch: Epoch,
    pub(super) nth: u64,
}

/// A message that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Bytes.
    pub len: usize,
    /// Whether it invalidated a key of this side; that key is dead already.
    pub invalidated: bool,
    /// For [`Transport::revoke`].
    pub token: ReplyToken,
}

/// Registered memory cut into message-size slots.
#[derive(Debug)]
struct SlotMemory {
    bytes: ExposedBytes,
    addr: DmaAddr,
    mr: MrId,
    lkey: Lkey,
    slot_len: usize,
}

impl SlotMemory {
    fn open<D: Device>(eng: &Engine<D>, slots: u32, slot_len: u32) -> Result<Self, MemoryError> {
        let slot_len = slot_len as usize;
        let size = slot_len.saturating_mul(slots as usize);
        let (bytes, _) = DmaBuf::new(size)?.into_exposed();
        let addr = eng.device.dma_map(&bytes, None)?;
        match eng.device.reg_mr(eng.pd, addr, size as u64, Access::LOCAL_WRITE) {
            Ok(k) => Ok(SlotMemory { bytes, addr, mr: k.mr, lkey: k.lkey, slot_len }),
            Err(e) => {
                let _ = eng.device.dma_unmap(&bytes, addr, Fenced::mint());
                Err(e.into())
            }
        }
    }

    fn sge(&self, slot: u32, len: usize) -> Sge {
        let addr = DmaAddr(self.addr.0 + slot as u64 * self.slot_len as u64);
        Sge { addr, len: len as u32, lkey: self.lkey }
    }

    /// Returns the memory, if the device lets go of it.
    fn close<D: Device>(self, eng: &mut Engine<D>, qp_gone: bool) {
        let free = qp_gone
            && eng.dereg_mr(self.mr).is_ok()
            && eng.device.dma_unmap(&self.bytes, self.addr, Fenced::mint()).is_ok();
        if !free {
            eng.stats.bytes_leaked += self.bytes.len() as u64;
            std::mem::forget(self.bytes);
        }
    }
}

#[derive(Debug)]
enum MemoryError {
    Alloc(AllocError),
    Device(DeviceError),
}

impl From<AllocError> for MemoryError {
    fn from(e: AllocError) -> Self {
        MemoryError::Alloc(e)
    }
}

impl From<DeviceError> for MemoryError {
    fn from(e: DeviceError) -> Self {
        MemoryError::Device(e)
    }
}

/// A message that arrived and was not taken yet.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    slot: u32,
    len: usize,
    invalidated: bool,
    nth: u64,
}

/// The message buffers of both directions.
#[derive(Debug, Default)]
pub(super) struct Messages {
    send: Option<SlotMemory>,
    recv: Option<SlotMemory>,
    inbox: VecDeque<Waiting>,
    recv_slots: u32,
    limit: usize,
    /// Bytes that the peer's receives have room for.
    send_limit: usize,
    /// Messages received in this epoch.
    pub(super) received: u64,
    /// Slots to post again, and which ones are with the device.
    idle: Vec<u32>,
    posted: Vec<bool>,
    scratch: Vec<RecvWr>,
}

impl Messages {
    pub(super) fn open<D: Device>(
        eng: &mut Engine<D>,
        max_message: u32,
    ) -> Result<Messages, super::error::OpenError> {
        let to_open = |e: MemoryError| match e {
            MemoryError::Alloc(a) => super::error::OpenError::Memory(a),
            MemoryError::Device(source) => {
                super::error::OpenError::Device { name: "message buffers", source }
            }
        };
        let recv_slots = eng.limits.max_recv_wr;
        let recv = SlotMemory::open(eng, recv_slots, max_message).map_err(to_open)?;
        let send = match SlotMemory::open(eng, eng.limits.max_send_wr, max_message) {
            Ok(m) => m,
            Err(e) => {
                recv.close(eng, true);
                return Err(to_open(e));
            }
        };
        Ok(Messages {
            send: Some(send),
            recv: Some(recv),
            inbox: VecDeque::with_capacity(recv_slots as usize),
            recv_slots,
            limit: max_message as usize,
            send_limit: max_message as usize,
            ..Messages::default()
        })
    }

    /// For a new QP: every slot is free again; messages of the last epoch that nobody took are
    /// dropped.
    pub(super) fn reset<D: Device>(&mut self, eng: &mut Engine<D>) {
        self.inbox.clear();
        self.send_limit = self.limit;
        self.received = 0;
        self.idle.clear();
        self.idle.extend((0..self.recv_slots).rev());
        self.posted.clear();
        self.posted.resize(self.recv_slots as usize, false);
        eng.send_slots.clear();
        eng.send_slots.extend((0..eng.limits.max_send_wr).rev());
    }

    /// Posts every idle receive slot.
    pub(super) fn post_all<D: Device>(&mut self, eng: &mut Engine<D>) -> Result<(), PostError> {
        let (Some(qp), Some(memory)) = (eng.qp, &self.recv) else { return Ok(()) };
        self.scratch.clear();
        for &slot in &self.idle {
            let sge = memory.sge(slot, self.limit);
            self.scratch.push(RecvWr { wr_id: recv_id(eng.epoch, slot), sge });
        }
        if self.scratch.is_empty() {
            return Ok(());
        }
        eng.device.post_recv(qp, &self.scratch)?;
        eng.stats.recv_posts += 1;
        for slot in self.idle.drain(..) {
            self.posted[slot as usize] = true;
        }
        Ok(())
    }

    /// A receive completed. False if the device names a slot or a length that cannot be.
    pub(super) fn arrived(&mut self, slot: u32, len: u32, invalidated: bool) -> bool {
        let len = len as usize;
        let posted = self.posted.get_mut(slot as usize).is_some_and(std::mem::take);
        if !posted || len > self.limit {
            return false;
        }
        self.received += 1;
        self.inbox.push_back(Waiting { slot, len, invalidated, nth: self.received });
        true
    }

    pub(super) fn close<D: Device>(&mut self, eng: &mut Engine<D>, qp_gone: bool) {
        for m in [self.send.take(), self.recv.take()].into_iter().flatten() {
            m.close(eng, qp_gone);
        }
    }
}

impl<D: Device, S: MemReg> Transport<D, S> {
    /// Posts everything staged and then a message, as one chain with one doorbell.
    ///
    /// # Shape
    /// Staged exposures become exposed: the peer can only learn their keys from this or a later
    /// message, and by then they are registered (O-4).
    /// # Errors
    /// [`Refusal`]; unless it says that the connection went down, nothing was posted and everything
    /// stays staged.
    /// # Cost
    /// One post; the message is copied. No allocation.
    pub fn send(&mut self, message: &[u8], reply: Reply<'_>) -> Result<(), Refusal> {
        self.send_marked(message, reply)
    }

    /// As [`send`](Transport::send), and refuses a message that the QP does not take inline: such a
    /// one costs the device no read of memory.
    ///
    /// # Errors
    /// [`Refusal::InlineTooLong`] before anything is posted; else as `send`.
    pub fn send_inline(&mut self, message: &[u8], reply: Reply<'_>) -> Result<(), Refusal> {
        let limit = self.eng.max_inline as usize;
        if message.len() > limit {
            return Err(Refusal::InlineTooLong { need: message.len(), limit });
        }
        self.send_marked(message, reply)
    }

    fn send_marked(&mut self, message: &[u8], reply: Reply<'_>) -> Result<(), Refusal> {
        let marks = match reply {
            Reply::InvalidatesNothing => &[][..],
            Reply::MayInvalidate(list) => list,
        };
        if marks.iter().any(|e| e.transport != self.eng.id) {
            return Err(Refusal::Misuse(ApiMisuse::ForeignHandle));
        }
        self.send_message(message, None)?;
        let received = self.messages.received;
        for mark in marks {
            if let Some(e) = self.eng.slots.exposures.get_mut(mark.id) {
                // Each of them has a reply of its own.
                let nth = e.reply_after.map_or(received, |a| a.nth.max(received)) + 1;
                e.reply_after = Some(Awaited { after: received, nth });
            }
        }
        Ok(())
    }

    /// Bytes of the largest message that this side's receives have room for: what a peer that was
    /// opened otherwise has to know.
    #[must_use]
    pub fn max_message_bytes(&self) -> usize {
        self.messages.limit
    }

    /// Says that the peer's receives have room for no more than `bytes`: longer messages are
    /// refused until the next reconnect. A connection by RDMA CM says so by itself.
    pub fn limit_messages(&mut self, bytes: usize) {
        self.messages.send_limit = self.messages.limit.min(bytes);
    }

    /// As [`send`](Transport::send), and invalidates one of the peer's keys when it arrives
    /// (SEND_WITH_INV).
    ///
    /// # Errors
    /// As `send`; [`Refusal::Segment`] for a segment of an earlier connection.
    pub fn send_with_inv(&mut self, message: &[u8], segment: &Segment) -> Result<(), Refusal> {
        self.check_epoch(segment)?;
        if !self.eng.caps.mem_mgt_extensions {
            return Err(Refusal::Unsupported("SEND_WITH_INV (MEM_MGT_EXTENSIONS)"));
        }
        self.send_message(message, Some(segment))
    }

    /// Posts everything staged, without a message.
    ///
    /// # Errors
    /// As [`send`](Transport::send).
    pub fn flush(&mut self) -> Result<(), Refusal> {
        self.check_up()?;
        self.eng.chain_staged();
        self.post()
    }

    fn send_message(&mut self, message: &[u8], inv: Option<&Segment>) -> Result<(), Refusal> {
        self.check_up()?;
        if message.len() > self.messages.send_limit {
            let (need, limit) = (message.len(), self.messages.send_limit);
            return Err(Refusal::MessageTooLong { need, limit });
        }
        self.check_slots(1).inspect_err(|e| self.nudge(e))?;
        let (payload, slot) = self.stage_message(message)?;
        self.eng.chain_staged();
        let op = match inv {
            None => WrOp::Send(payload),
            Some(segment) => WrOp::SendWithInv(payload, segment.rkey),
        };
        if mutant!("send-slot") {
            self.eng.send_slots.extend(slot);
        }
        self.eng.chain_wr(op, RingOp::Send(slot), false);
        self.post()?;
        self.eng.stats.messages_sent += 1;
        Ok(())
    }

    /// The message's bytes in the chain, inline if the QP takes them so, or in a send slot until it
    /// is retired (H-62).
    fn stage_message(&mut self, message: &[u8]) -> Result<(Payload, Option<u32>), Refusal> {
        if message.len() <= self.eng.max_inline as usize {
            return Ok((Payload::Inline(self.eng.chain.add_inline(message)), None));
        }
        let full = DeviceError::new(Verb::PostSend, errno::ENOMEM);
        let (Some(memory), Some(slot)) = (&self.messages.send, self.eng.send_slots.pop()) else {
            // There are as many slots as the send ring has entries, so a checked post never gets
            // here.
            return Err(Refusal::Device(full));
        };
        if !memory.bytes.copy_in(slot as usize * memory.slot_len, message) {
            return Err(Refusal::Device(full));
        }
        let sge = memory.sge(slot, message.len());
        Ok((Payload::Sges(self.eng.chain.add_sges([sge])), Some(slot)))
    }

    /// Takes the oldest message that arrived: its bytes replace what is in `out`, and its receive
    /// is posted again.
    ///
    /// # Cost
    /// One copy, one post. No allocation once `out` has the capacity.
    pub fn recv(&mut self, out: &mut Vec<u8>) -> Option<Received> {
        let w = self.messages.inbox.pop_front()?;
        out.resize(w.len, 0);
        if let Some(memory) = &self.messages.recv {
            let _ = memory.bytes.copy_out(w.slot as usize * memory.slot_len, out);
        }
        self.messages.idle.push(w.slot);
        if self.state == State::Up
            && let Err(e) = self.messages.post_all(&mut self.eng)
        {
            self.poison(DownCause::Post(e));
            self.deliver();
        }
        self.eng.stats.messages_received += 1;
        let token = ReplyToken { transport: self.eng.id, epoch: self.eng.epoch, nth: w.nth };
        Some(Received { len: w.len, invalidated: w.invalidated, token })
    }

    /// Messages that arrived and wait for [`recv`](Transport::recv).
    #[must_use]
    pub fn messages_waiting(&self) -> usize {
        self.messages.inbox.len()
    }

    /// The segments to tell the peer of, in the order of the bytes.
    ///
    /// # Errors
    /// [`ApiMisuse::ForeignHandle`].
    pub fn segments(&self, exposed: &Exposed) -> Result<&[Segment], ApiMisuse> {
        if exposed.transport != self.eng.id {
            return Err(ApiMisuse::ForeignHandle);
        }
        Ok(self
            .eng
            .slots
            .exposures
            .get(exposed.id)
            .map_or(&[], |e| e.segments.get(..e.regions.len()).unwrap_or_default()))
    }

    /// Where an exposure stands.
    ///
    /// # Errors
    /// [`ApiMisuse::ForeignHandle`].
    pub fn exposure_state(&self, exposed: &Exposed) -> Result<ExposureState, ApiMisuse> {
        let e = self.eng.slots.exposures.get(exposed.id);
        e.filter(|_| exposed.transport == self.eng.id)
            .map(|e| e.state)
            .ok_or(ApiMisuse::ForeignHandle)
    }

    /// Decodes a segment that the peer sent in a message.
    ///
    /// # Errors
    /// [`SegmentError`]: malformed, or of an earlier connection. Nothing is posted.
    pub fn import(&self, wire: &[u8]) -> Result<Segment, SegmentError> {
        Segment::from_wire(wire, self.peer_epoch())
    }

    pub(super) fn peer_epoch(&self) -> Epoch {
        self.peer.map_or(Epoch(0), |p| p.epoch)
    }

    pub(super) fn check_epoch(&self, segment: &Segment) -> Result<(), Refusal> {
        let current = self.peer_epoch();
        if segment.epoch == current {
            return Ok(());
        }
        let stale = SegmentError::StaleEpoch { got: segment.epoch.0, current: current.0 };
        Err(Refusal::Segment(stale))
    }

    pub(super) fn check_up(&self) -> Result<(), Refusal> {
        match &self.state {
            State::Up => Ok(()),
            State::Down(cause) => Err(Refusal::NotConnected { cause: Some(cause.clone()) }),
            _ => Err(Refusal::NotConnected { cause: self.cause.clone() }),
        }
    }

    /// Whether `n` more WRs fit beside what is reserved.
    pub(super) fn check_slots(&self, n: usize) -> Result<(), Refusal> {
        let (free, depth) = (self.eng.free_slots(), self.eng.ring.depth());
        if n + 1 > depth {
            return Err(Refusal::NeverFits { need: n + 1, depth });
        }
        if n > free {
            return Err(Refusal::QueueFull { need: n, free, depth });
        }
        Ok(())
    }

    /// After a refusal for want of slots: WRs that no signal covers would keep theirs until
    /// somebody posts again, which may be never. A signaled write of no bytes makes them come back.
    pub(super) fn nudge(&mut self, why: &Refusal) {
        let full = matches!(why, Refusal::QueueFull { .. });
        if !full || self.eng.ring.unsignaled() == 0 || self.eng.free_slots() == 0 {
            return;
        }
        let payload = empty_payload(&mut self.eng.chain);
        let (remote_addr, rkey) = (0, Rkey::from_bits(0));
        let op = WrOp::RdmaWrite { payload, remote_addr, rkey };
        self.eng.chain_wr(op, RingOp::Send(None), true);
        // The caller has an error already; a refused post has taken the connection down by itself.
        drop(self.post());
    }

    /// Posts the chain that was built; a refusal for anything but a full queue costs the connection
    /// (D-01).
    pub(super) fn post(&mut self) -> Result<(), Refusal> {
        self.eng.post_chain().map_err(|failure| self.post_failed(failure))
    }

    #[cold]
    fn post_failed(&mut self, failure: PostFailure) -> Refusal {
        match failure {
            PostFailure::Full(e) => Refusal::Device(e.cause),
            PostFailure::Broken(e) => {
                self.poison(DownCause::Post(e));
                self.deliver();
                Refusal::Down(DownCause::Post(e))
            }
        }
    }
}
