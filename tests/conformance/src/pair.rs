//! Owner and peer: two transports on one fabric, and what the checks do with them.

use crate::audit::Books;
use crate::initiator::Initiator;
use crate::machine::{Node, counters, software};
use crate::verdict::{Because, Stop, Verdict, ensure, ensure_eq, fail};
use memreg_core::device::fault::{FaultPlan, Faulty};
use memreg_core::device::sim::SimCounters;
use memreg_core::device::{AnyDevice, WcStatus};
use memreg_core::drive::{Driven, connect_pair};
use memreg_core::sizing::Ask;
use memreg_core::transport::{
    Buffers, ExposureState, LocalDone, LocalOp, NoReply, OpenOptions, Received, Reply, State,
};
use memreg_core::{DmaBuf, Exposed, Grant, MemReg, Segment, Tick, Transport};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Two connected transports.
pub(crate) struct Pair<S: MemReg> {
    pub(crate) owner: Transport<Node, S>,
    pub(crate) peer: Transport<Node, Initiator>,
    /// What shall go wrong on the owner's device.
    pub(crate) plan: FaultPlan,
    pub(crate) books: Books,
    pub(crate) now: Tick,
    /// False once the peer's process is dead: nobody drives it any more.
    pub(crate) peer_alive: bool,
}

/// What became of an access that the peer tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// It went through; for a read these are the bytes.
    Moved(Vec<u8>),
    /// The owner's device refused, or the peer's connection was down.
    Refused(WcStatus),
}

/// How long a drain waits before it destroys the QP.
pub(crate) const DRAIN_LIMIT_NS: u64 = 1_000;

/// A real device is at rest when nothing has happened for this long.
const QUIET: Duration = Duration::from_millis(2);
/// Longer than a connection tries to reach a peer that is gone.
const RETRIES: Duration = Duration::from_secs(20);
/// How long a completion may take that is owed.
const PATIENCE: Duration = Duration::from_millis(500);

/// Rounds without end are a failure, not a hang.
const ROUNDS: usize = 100_000;

impl<S: MemReg> Pair<S> {
    /// Opens and connects both.
    pub(crate) fn open(
        strategy: S,
        owner: AnyDevice,
        peer: AnyDevice,
        ask: &Ask,
    ) -> Result<Pair<S>, Stop> {
        let plan = FaultPlan::new();
        let owner = Faulty::new(owner, plan.clone());
        let peer = Faulty::new(peer, FaultPlan::new());
        // A message must hold the wire form of every segment of an exposure.
        let most = (memreg_core::memreg::MAX_REGIONS * Segment::WIRE_LEN) as u32;
        let max_message_bytes = ask.max_message_bytes.max(most);
        let ask = Ask { max_message_bytes, ..*ask };
        let drain_limit_ns = DRAIN_LIMIT_NS;
        let options = OpenOptions { ask, drain_limit_ns, ..OpenOptions::default() };
        let mut owner = Transport::open(owner, strategy, &options).because("opening the owner")?;
        let mut peer = Transport::open(peer, Initiator, &options).because("opening the peer")?;
        let books = Books::open(owner.device().inner());
        connect_pair(&mut owner, &mut peer).because("connecting")?;
        Ok(Pair { owner, peer, plan, books, now: Tick(0), peer_alive: true })
    }

    /// Whether a fence kills keys; a strategy on a bounce arena never revokes.
    pub(crate) fn revokes(&self) -> bool {
        self.owner.limits().arena_bytes == 0
    }

    /// Whether an operation costs more WRs than its SEND, so that keys are granted on the queue.
    pub(crate) fn by_wr(&self) -> bool {
        self.owner.limits().wr_per_request > 1
    }

    /// Counters of the owner's node.
    pub(crate) fn node(&self) -> SimCounters {
        counters(self.owner.device().inner())
    }

    /// Whether nobody can look into the devices, and they run by themselves.
    pub(crate) fn is_real(&self) -> bool {
        software(self.owner.device().inner()).is_none()
    }

    /// Drives both until nothing happens any more.
    pub(crate) fn settle(&mut self) -> Verdict {
        if self.is_real() {
            return self.settle_real();
        }
        let mut idle = 0;
        for _ in 0..ROUNDS {
            let mut any = self.owner.drive(self.now).because("driving the owner")?;
            if self.peer_alive {
                any |= self.peer.drive(self.now).because("driving the peer")?;
            }
            // What the last poll posted shows in the next round only.
            idle = if any { 0 } else { idle + 1 };
            if idle == 2 {
                return Ok(());
            }
        }
        fail(format!("still busy after {ROUNDS} rounds, owner {:?}", self.owner))
    }

    /// As `settle`, where things take time: until no completion is owed and nothing has happened
    /// for a while. A completion that a fault has swallowed is not waited for without end.
    #[allow(clippy::disallowed_methods, reason = "a real device runs by itself")]
    fn settle_real(&mut self) -> Verdict {
        let start = Instant::now();
        let mut last = start;
        loop {
            let mut any = self.owner.drive(self.now).because("driving the owner")?;
            any |= self.peer.drive(self.now).because("driving the peer")?;
            let now = Instant::now();
            if any {
                last = now;
            }
            let owed = self.owner.completions_owed() + self.peer.completions_owed();
            let quiet = now.duration_since(last);
            if quiet > QUIET && (owed == 0 || quiet > PATIENCE) {
                return Ok(());
            }
        }
    }

    /// Moves `buffers` in.
    pub(crate) fn expose(
        &mut self,
        buffers: impl Into<Buffers>,
        grant: Grant,
    ) -> Result<Exposed, Stop> {
        let buffers = buffers.into();
        self.books.lent += buffers.count();
        let result = self.owner.expose(buffers, grant);
        if let Err(e) = &result {
            self.books.returned += e.buffers.count();
        }
        result.because("expose")
    }

    /// Sends the segments of an exposure and decodes them at the peer.
    pub(crate) fn tell(
        &mut self,
        exposed: &Exposed,
        reply: Reply<'_>,
    ) -> Result<Vec<Segment>, Stop> {
        let segments = self.owner.segments(exposed).because("segments")?.to_vec();
        let message: Vec<u8> = segments.iter().flat_map(Segment::to_wire).collect();
        self.owner.send(&message, reply).because("send")?;
        self.settle()?;
        let got = self.peer_gets()?;
        ensure!(got.1 == message, "the peer got another message than was sent");
        let parts = got.1.chunks(Segment::WIRE_LEN);
        let imported: Result<Vec<_>, _> = parts.map(|wire| self.peer.import(wire)).collect();
        imported.because("import of a segment")
    }

    /// Exposes and tells the peer.
    pub(crate) fn expose_told(
        &mut self,
        buffers: impl Into<Buffers>,
        grant: Grant,
    ) -> Result<(Exposed, Vec<Segment>), Stop> {
        let exposed = self.expose(buffers, grant)?;
        let segments = self.tell(&exposed, Reply::InvalidatesNothing)?;
        Ok((exposed, segments))
    }

    /// The oldest message that the peer has.
    pub(crate) fn peer_gets(&mut self) -> Result<(Received, Vec<u8>), Stop> {
        let mut bytes = vec![];
        let got = self.peer.recv(&mut bytes).because("no message arrived at the peer")?;
        Ok((got, bytes))
    }

    /// The oldest message that the owner has.
    pub(crate) fn owner_gets(&mut self) -> Result<(Received, Vec<u8>), Stop> {
        let mut bytes = vec![];
        let got = self.owner.recv(&mut bytes).because("no message arrived at the owner")?;
        Ok((got, bytes))
    }

    /// The peer replies with a message that invalidates nothing.
    pub(crate) fn peer_replies(&mut self) -> Result<Received, Stop> {
        self.peer.send(b"done", Reply::InvalidatesNothing).because("the peer's reply")?;
        self.settle()?;
        Ok(self.owner_gets()?.0)
    }

    /// The peer writes `data` over the segments, in order.
    pub(crate) fn write_all(&mut self, segments: &[Segment], data: &[u8]) -> Verdict {
        let mut rest = data;
        for segment in segments {
            let len = usize::try_from(segment.len).because("segment length")?;
            ensure!(rest.len() >= len, "segments are longer than the exposure");
            let (part, tail) = rest.split_at(len);
            let reach = self.write(segment, 0, part)?;
            ensure_eq!(reach, Reach::Moved(vec![]), "a write within the grant");
            rest = tail;
        }
        ensure!(rest.is_empty(), "segments are shorter than the exposure by {}", rest.len());
        Ok(())
    }

    /// The peer reads all segments, in order.
    pub(crate) fn read_all(&mut self, segments: &[Segment]) -> Result<Vec<u8>, Stop> {
        let mut all = vec![];
        for segment in segments {
            let len = usize::try_from(segment.len).because("segment length")?;
            match self.read(segment, 0, len)? {
                Reach::Moved(bytes) => all.extend(bytes),
                Reach::Refused(s) => return fail(format!("a read within the grant: {s}")),
            }
        }
        Ok(all)
    }

    /// The peer writes into a segment, whatever comes of it.
    pub(crate) fn write(
        &mut self,
        segment: &Segment,
        offset: u64,
        data: &[u8],
    ) -> Result<Reach, Stop> {
        let buf = DmaBuf::from_bytes(data).because("peer's buffer")?;
        let op = self.peer.write(segment, offset, buf).because("the peer's write")?;
        self.settle()?;
        let done = self.peer.take(op).because("the peer's write")?;
        Ok(match done.result {
            Ok(_) => Reach::Moved(vec![]),
            Err(e) => Reach::Refused(e.wc.status),
        })
    }

    /// The peer reads from a segment, whatever comes of it.
    pub(crate) fn read(
        &mut self,
        segment: &Segment,
        offset: u64,
        len: usize,
    ) -> Result<Reach, Stop> {
        let buf = DmaBuf::new(len).because("peer's buffer")?;
        let op = self.peer.read(segment, offset, buf).because("the peer's read")?;
        self.settle()?;
        let done = self.peer.take(op).because("the peer's read")?;
        match done.result {
            Ok(_) => {
                let buf = done.buffers.into_first().because("the peer's buffer is lost")?;
                Ok(Reach::Moved(buf.to_vec()))
            }
            Err(e) => Ok(Reach::Refused(e.wc.status)),
        }
    }

    /// The peer forges `segment` for the connection as it is and tries it in its direction: the
    /// owner's device must refuse and move no byte. That costs both connections.
    pub(crate) fn must_refuse(&mut self, segment: Segment, what: &str) -> Verdict {
        let before = self.node();
        let forged = Segment { epoch: self.owner.epoch(), ..segment };
        let len = usize::try_from(forged.len).because("segment length")?;
        let reach = match forged.grant {
            Grant::PeerWrites => self.write(&forged, 0, &vec![0xa5; len])?,
            Grant::PeerReads => self.read(&forged, 0, len)?,
        };
        ensure_eq!(reach, Reach::Refused(WcStatus::RemAccessErr), "{what}");
        if self.is_real() {
            return Ok(());
        }
        let after = self.node();
        ensure_eq!(after.remote_refusals, before.remote_refusals + 1, "{what}: refusals counted");
        let moved = (after.bytes_written, after.bytes_read);
        ensure_eq!(moved, (before.bytes_written, before.bytes_read), "{what}: bytes moved");
        Ok(())
    }

    /// Revokes, waits for the fence and returns the buffers.
    pub(crate) fn fence(&mut self, exposed: Exposed) -> Result<Buffers, Stop> {
        self.owner.revoke(&exposed, NoReply::Unmarked).because("revoke")?;
        self.settle()?;
        self.reclaim(exposed)
    }

    /// Returns the buffers of a fenced exposure.
    pub(crate) fn reclaim(&mut self, exposed: Exposed) -> Result<Buffers, Stop> {
        let back = self.owner.reclaim(exposed).because("reclaim")?;
        self.books.returned += back.count();
        Ok(back)
    }

    /// Where an exposure stands.
    pub(crate) fn state(&self, exposed: &Exposed) -> Result<ExposureState, Stop> {
        self.owner.exposure_state(exposed).because("state of an exposure")
    }

    /// Waits until the peer has a message, if one is on its way.
    pub(crate) fn await_message(&mut self) -> Verdict {
        self.settle_until(|pair| pair.peer.messages_waiting() > 0)
    }

    /// Settles once, and on a real device again until `done`: a peer's retries, and what the other
    /// end of a connection hears of a refusal, take milliseconds.
    #[allow(clippy::disallowed_methods, reason = "a real device runs by itself")]
    fn settle_until(&mut self, done: impl Fn(&Self) -> bool) -> Verdict {
        let start = Instant::now();
        self.settle()?;
        while self.is_real() && !done(self) && start.elapsed() < RETRIES {
            self.settle()?;
        }
        Ok(())
    }

    /// Waits until the owner is down.
    pub(crate) fn wait_down(&mut self) -> Verdict {
        self.settle_until(|pair| matches!(pair.owner.state(), State::Down(_)))?;
        let down = matches!(self.owner.state(), State::Down(_));
        ensure!(down, "the owner is {:?}, not down", self.owner.state());
        Ok(())
    }

    /// Takes both down if they are not, and connects them anew.
    pub(crate) fn reconnect(&mut self) -> Verdict {
        self.owner.disconnect();
        self.peer.disconnect();
        self.settle()?;
        self.owner.reconnect().because("reconnecting the owner")?;
        self.peer.reconnect().because("reconnecting the peer")?;
        connect_pair(&mut self.owner, &mut self.peer).because("connecting again")
    }

    /// Drives both for a while, whatever errors a fault brings, and until after any drain's limit.
    pub(crate) fn drive_some(&mut self) {
        for _ in 0..200 {
            let _ = self.owner.drive(self.now);
            let _ = self.peer.drive(self.now);
        }
    }

    /// After a fault has ended: takes both down, lets the owner destroy what it could not before,
    /// and connects them anew.
    pub(crate) fn mend(&mut self) -> Verdict {
        self.owner.disconnect();
        self.peer.disconnect();
        self.now = self.now.after(DRAIN_LIMIT_NS);
        self.wait_down()?;
        self.reconnect()
    }

    /// One exposure of `len` bytes that the peer writes; proves that the pair works.
    pub(crate) fn cycle(&mut self, seed: u8, len: usize) -> Verdict {
        let data = pattern(seed, len);
        let (exposed, segments) = self.expose_told(zeroed(len)?, Grant::PeerWrites)?;
        self.write_all(&segments, &data)?;
        let back = self.fence(exposed)?;
        let buf = back.into_first().because("no buffer came back")?;
        ensure!(buf[..] == data[..], "the owner sees other bytes than the peer wrote");
        Ok(())
    }

    /// Checks that the books balance, closes both, and checks that nothing is left on the devices.
    pub(crate) fn close(mut self) -> Verdict {
        self.settle()?;
        self.books.balance(&self.owner)?;
        let (a, b) = (self.owner.device().inner().clone(), self.peer.device().inner().clone());
        let alive = self.peer_alive;
        drop(self);
        crate::audit::nothing_left("owner", &a)?;
        if alive {
            crate::audit::nothing_left("peer", &b)?;
        }
        Ok(())
    }
}

/// The peer's access to an owner that is not there any more, once it has ended.
#[allow(clippy::disallowed_methods, reason = "a real device runs by itself")]
pub(crate) fn alone(
    peer: &mut Transport<Node, Initiator>,
    now: Tick,
    mut op: LocalOp,
) -> Result<LocalDone, Stop> {
    let start = Instant::now();
    loop {
        while peer.drive(now).because("driving the peer")? {}
        match peer.take(op) {
            Ok(done) => return Ok(done),
            // Retries take a while before a real device gives up.
            Err(e) if software(peer.device().inner()).is_some() || start.elapsed() > RETRIES => {
                return Err(e).because("the peer's access");
            }
            Err(e) => op = e.op,
        }
    }
}

/// A buffer of zeroes.
pub(crate) fn zeroed(len: usize) -> Result<DmaBuf, Stop> {
    DmaBuf::new(len).because("buffer")
}

/// A buffer that holds `data`.
pub(crate) fn filled(data: &[u8]) -> Result<DmaBuf, Stop> {
    DmaBuf::from_bytes(data).because("buffer")
}

/// Three parts whose joints are off page boundaries, so that a page list without gaps needs three
/// regions.
pub(crate) fn unaligned() -> Result<Vec<(DmaBuf, Range<usize>)>, Stop> {
    Ok(vec![(zeroed(4096)?, 0..4096), (zeroed(8192)?, 512..4608), (zeroed(8192)?, 4096..8192)])
}

/// Bytes that repeat only after a prime number of them.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i % 251) as u8).wrapping_mul(7).wrapping_add(seed)).collect()
}
