//! An owner with the strategy under comparison, a peer, and one operation between them. The peer
//! is here, in this process, or there, in another one.

use super::bench::verb_calls;
use super::figures::{Counters, Done};
use crate::Transport;
use crate::cli::clock;
use anyhow::anyhow;
use memreg_core::device::AnyDevice;
#[cfg(all(feature = "verbs", target_os = "linux"))]
use memreg_core::device::verbs::cm::CmError;
use memreg_core::drive::{connect_pair, settle};
use memreg_core::mem::DmaBuf;
use memreg_core::sizing::Ask;
use memreg_core::transport::error::{ConnectError, OpenError};
use memreg_core::transport::{
    Buffers, Exposed, ExposureState, LocalDone, LocalOp, NoReply, OpenOptions, Reply, State,
};
use memreg_core::types::{Grant, Segment, Tick};
use memreg_strategies::{Fmr, Strategy};
use std::ops::Range;
use std::time::Duration;

/// Both ends.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) owner: Transport,
    /// `None`: it is in another process, where `memreg serve` does what it is told.
    here: Option<Here>,
    layout: Layout,
    /// All are there between operations; an operation that fails keeps them.
    owner_bufs: Vec<DmaBuf>,
    pub(super) message: Vec<u8>,
    segments: Vec<Segment>,
}

/// The other end, in this process, which drives it too.
#[derive(Debug)]
struct Here {
    t: Transport,
    /// Away only during an operation, or after one that failed.
    buf: Option<DmaBuf>,
}

/// How the owner's bytes lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Layout {
    /// One buffer from its first byte on.
    Whole,
    /// Three buffers that do not join at page boundaries: what takes a gap-capable key, or several
    /// keys.
    Gaps,
}

impl Layout {
    /// Where in its buffer each piece of `len` bytes lies.
    fn ranges(self, len: usize) -> Vec<Range<usize>> {
        let third = len / 3;
        match self {
            Layout::Gaps if third > 0 => {
                vec![0..third, OFF_PAGE..OFF_PAGE + third, 0..len - 2 * third]
            }
            _ => std::iter::once(0..len).collect(),
        }
    }
}

/// Where the middle piece starts: no page boundary.
const OFF_PAGE: usize = 512;

/// A byte that arrived is not the one that was sent.
#[derive(Debug, thiserror::Error)]
#[error("{direction}: wrong byte at offset {offset}: expected {expected:#04x}, got {got:#04x}")]
struct WrongByte {
    direction: &'static str,
    offset: usize,
    expected: u8,
    got: u8,
}

/// Why there is no pair.
#[derive(Debug, thiserror::Error)]
pub(super) enum PairError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[cfg(all(feature = "verbs", target_os = "linux"))]
    #[error(transparent)]
    Cm(#[from] CmError),
    #[cfg(all(feature = "verbs", target_os = "linux"))]
    #[error(transparent)]
    Answer(anyhow::Error),
}

/// The software device has no clock; nothing here waits for one.
const NOW: Tick = Tick(0);

impl Pair {
    /// Opens and connects both ends. The peer never exposes, so its strategy is always the same:
    /// ordinary registrations.
    pub fn open(
        (owner, peer): (AnyDevice, AnyDevice),
        options: &OpenOptions,
        strategy: Strategy,
    ) -> Result<Pair, PairError> {
        let mut owner = Transport::open(owner, strategy, options)?;
        let ask = Ask { credits: PEER_CREDITS, ..Ask::default() };
        let options = OpenOptions { ask, ..OpenOptions::default() };
        let mut peer = Transport::open(peer, Fmr::new().into(), &options)?;
        connect_pair(&mut owner, &mut peer)?;
        Ok(Pair::new(owner, Some(Here { t: peer, buf: None })))
    }

    /// Takes over an owner that is connected to a peer in another process.
    #[cfg(any(test, all(feature = "verbs", target_os = "linux")))]
    pub fn across(owner: Transport) -> Pair {
        Pair::new(owner, None)
    }

    fn new(owner: Transport, here: Option<Here>) -> Pair {
        let (owner_bufs, message, segments) = (vec![], vec![], vec![]);
        Pair { owner, here, layout: Layout::Whole, owner_bufs, message, segments }
    }

    /// Replaces the buffers with some for operations of at most this size.
    pub fn resize(&mut self, size: usize, layout: Layout) -> anyhow::Result<()> {
        self.layout = layout;
        self.owner_bufs.clear();
        for range in layout.ranges(size) {
            self.owner_bufs.push(DmaBuf::new(range.end)?);
        }
        if let Some(here) = &mut self.here {
            here.buf = Some(DmaBuf::new(size)?);
        }
        Ok(())
    }

    /// What owner and device have counted.
    pub fn counters(&self) -> Counters {
        Counters { stats: *self.owner.stats(), verb_calls: verb_calls(self.owner.device()) }
    }

    /// The owner's ledger of keys, as a trace.
    pub fn trace(&self) -> String {
        self.owner.ledger().to_string()
    }

    /// Carries `data` in both directions and compares every byte at both ends.
    ///
    /// Data longer than the strategy takes at once is carried in several exposures, one after the
    /// other, as a program would have to.
    pub fn operation(&mut self, data: &[u8]) -> anyhow::Result<Done> {
        let most = usize::try_from(self.owner.limits().max_payload_bytes).unwrap_or(usize::MAX);
        let mut done = Done::default();
        let mut at = 0;
        while at < data.len() {
            let part = &data[at..data.len().min(at.saturating_add(most))];
            for grant in [Grant::PeerReads, Grant::PeerWrites] {
                done.time += self.pass(grant, part, part).map_err(|e| moved(e, at))?;
                done.exposures += 1;
            }
            at += part.len();
        }
        Ok(done)
    }

    /// One exposure: `data` is sent, `expected` must arrive. Returns the time without filling and
    /// comparing buffers.
    pub(super) fn pass(
        &mut self,
        grant: Grant,
        data: &[u8],
        expected: &[u8],
    ) -> anyhow::Result<Duration> {
        let reads = grant == Grant::PeerReads;
        // What is not transferred can then not be right by chance.
        let wrong: Vec<u8> = expected.iter().map(|b| !b).collect();
        let (at_owner, at_peer) = if reads { (data, &wrong[..]) } else { (&wrong[..], data) };
        let ranges = self.layout.ranges(data.len());
        let mut ours = self.take_buffers(&ranges)?;
        scatter(at_owner, &mut ours, &ranges);
        let ours: Buffers = ours.into_iter().zip(ranges).collect();
        let (ours, time) = match self.here {
            Some(_) => self.pass_here(ours, grant, at_peer, expected)?,
            None => self.pass_there(ours, grant, expected)?,
        };
        let what = if reads { "owner's bytes after the peer read" } else { "peer writes" };
        let mut at = 0;
        for (buf, range) in ours {
            let piece = expected.get(at..at + range.len()).unwrap_or_default();
            at += range.len();
            compare(what, at - range.len(), buf.get(range).unwrap_or_default(), piece)?;
            self.owner_bufs.push(buf);
        }
        if at == expected.len() {
            return Ok(time);
        }
        Err(anyhow!("{what}: {at} bytes of {} came back", expected.len()))
    }

    /// With a peer in this process, whose bytes are compared as well.
    fn pass_here(
        &mut self,
        ours: Buffers,
        grant: Grant,
        at_peer: &[u8],
        expected: &[u8],
    ) -> anyhow::Result<(Buffers, Duration)> {
        let reads = grant == Grant::PeerReads;
        let theirs = self.here.as_mut().and_then(|here| here.buf.take());
        let mut theirs = theirs.ok_or_else(lost)?;
        theirs[..at_peer.len()].copy_from_slice(at_peer);
        let start = clock::now();
        let exposed = self.announce(ours, grant, &[])?;
        let arrived = |p: &mut Pair| (p.here.as_ref()?.t.messages_waiting() > 0).then_some(());
        self.wait("the peer got no message", arrived)?;
        let theirs = self.access(theirs, at_peer.len(), reads)?;
        let mut time = start.elapsed();
        if reads {
            compare("peer reads", 0, &theirs, expected)?;
        }
        if let Some(here) = &mut self.here {
            here.buf = Some(theirs);
        }
        let start = clock::now();
        self.reply()?;
        let ours = self.take_back(exposed)?;
        time += start.elapsed();
        Ok((ours, time))
    }

    fn take_buffers(&mut self, ranges: &[Range<usize>]) -> anyhow::Result<Vec<DmaBuf>> {
        if self.owner_bufs.len() < ranges.len() {
            return Err(lost());
        }
        // A short last operation may need fewer pieces; the others are not needed again.
        self.owner_bufs.truncate(ranges.len());
        Ok(std::mem::take(&mut self.owner_bufs))
    }

    /// Owner: exposes and tells the peer the segments, after what else it has to say.
    pub(super) fn announce(
        &mut self,
        buffers: Buffers,
        grant: Grant,
        head: &[u8],
    ) -> anyhow::Result<Exposed> {
        let exposed = self.owner.expose(buffers, grant)?;
        self.message.clear();
        self.message.extend_from_slice(head);
        for segment in self.owner.segments(&exposed)? {
            self.message.extend_from_slice(&segment.to_wire());
        }
        if self.owner.limits().remote_invalidation {
            self.owner.send(&self.message, Reply::MayInvalidate(&[&exposed]))?;
        } else {
            self.owner.send(&self.message, Reply::InvalidatesNothing)?;
        }
        Ok(exposed)
    }

    /// Peer: reads the segments it was told of into its buffer, or writes the buffer into them.
    fn access(&mut self, mut buf: DmaBuf, len: usize, reads: bool) -> anyhow::Result<DmaBuf> {
        let here = self.here.as_mut().ok_or_else(lost)?;
        here.t.recv(&mut self.message);
        self.segments.clear();
        for wire in self.message.chunks(Segment::WIRE_LEN) {
            self.segments.push(here.t.import(wire)?);
        }
        let mut at = 0usize;
        for i in 0..self.segments.len() {
            let segment = self.segments[i];
            let end = usize::try_from(segment.len).ok().and_then(|n| at.checked_add(n));
            let end = end.filter(|end| *end <= len).ok_or_else(|| anyhow!("segments overlap"))?;
            let part = (buf, at..end);
            let peer = &mut self.here.as_mut().ok_or_else(lost)?.t;
            let op = match reads {
                true => peer.read(&segment, 0, part)?,
                false => peer.write(&segment, 0, part)?,
            };
            let mut op = Some(op);
            let done =
                self.wait("the peer's access did not end", |p| p.here.as_mut()?.taken(&mut op))?;
            done.result?;
            buf = done.buffers.into_first().ok_or_else(|| anyhow!("the peer's buffer is lost"))?;
            at = end;
        }
        if at != len {
            return Err(anyhow!("segments hold {at} bytes of {len}"));
        }
        Ok(buf)
    }

    /// Peer: replies; invalidates the first key on the way where the strategy allows it.
    fn reply(&mut self) -> anyhow::Result<()> {
        let first = self.segments.first().filter(|_| self.owner.limits().remote_invalidation);
        let here = self.here.as_mut().ok_or_else(lost)?;
        match first {
            Some(first) => here.t.send_with_inv(&[], first)?,
            None => here.t.send(&[], Reply::InvalidatesNothing)?,
        }
        Ok(())
    }

    /// Owner: takes the reply, which is then in `message`, and after it the access and the bytes
    /// back.
    pub(super) fn take_back(&mut self, exposed: Exposed) -> anyhow::Result<Buffers> {
        let mut bytes = std::mem::take(&mut self.message);
        let reply = self.wait("the owner got no message", |p| p.owner.recv(&mut bytes))?;
        self.message = bytes;
        self.owner.revoke(&exposed, NoReply::Arrived(&reply.token))?;
        self.wait("the owner's access did not end", |p| {
            (p.owner.exposure_state(&exposed) == Ok(ExposureState::Fenced)).then_some(())
        })?;
        Ok(self.owner.reclaim(exposed)?)
    }

    /// Drives both ends until `done` finds what it looks for. The software device has come to rest
    /// after one round; hardware takes its time, and loses a connection sooner than that is over.
    fn wait<T>(
        &mut self,
        missing: &str,
        mut done: impl FnMut(&mut Pair) -> Option<T>,
    ) -> anyhow::Result<T> {
        let (start, mut rounds) = (clock::now(), 0u64);
        loop {
            match &mut self.here {
                Some(here) => settle(NOW, &mut [&mut self.owner, &mut here.t])?,
                None => settle(NOW, &mut [&mut self.owner])?,
            };
            if let Some(found) = done(self) {
                return Ok(found);
            }
            let down = |t: &Transport| matches!(t.state(), State::Down(_));
            let over = self.here.as_ref().is_some_and(|here| {
                down(&here.t) || matches!(self.owner.device(), AnyDevice::Sim(_))
            });
            if over || down(&self.owner) || start.elapsed() > PATIENCE {
                return Err(self.silence(missing));
            }
            // Where there are few processors, the other process needs one too.
            rounds += 1;
            if self.here.is_none() && rounds > SPINS {
                std::thread::yield_now();
            }
        }
    }

    /// Nothing connects to another process in this build.
    #[cfg(not(any(test, all(feature = "verbs", target_os = "linux"))))]
    fn pass_there(
        &mut self,
        _: Buffers,
        _: Grant,
        _: &[u8],
    ) -> anyhow::Result<(Buffers, Duration)> {
        Err(lost())
    }

    /// What should have come did not: says why, if a connection knows.
    fn silence(&self, missing: &str) -> anyhow::Error {
        let mut states = vec![("owner", self.owner.state())];
        if let Some(here) = &self.here {
            states.push(("peer", here.t.state()));
        }
        let down = states.iter().find_map(|(side, state)| match state {
            State::Down(cause) => Some(format!(": the {side}'s connection is down: {cause}")),
            _ => None,
        });
        anyhow!("{missing}{}", down.unwrap_or_default())
    }
}

impl Here {
    /// An access, once it has ended.
    fn taken(&mut self, op: &mut Option<LocalOp>) -> Option<LocalDone> {
        match self.t.take(op.take()?) {
            Ok(done) => Some(done),
            Err(e) => {
                *op = Some(e.op);
                None
            }
        }
    }
}

fn lost() -> anyhow::Error {
    anyhow!("buffers of an earlier operation are lost")
}

/// Longer than any retry of a connection.
const PATIENCE: Duration = Duration::from_secs(30);
/// Rounds without news before the processor is offered to others.
const SPINS: u64 = 1000;
/// One operation is in flight at a time.
const PEER_CREDITS: u32 = 4;

/// The same error, of a part that starts at `base`.
fn moved(error: anyhow::Error, base: usize) -> anyhow::Error {
    match error.downcast::<WrongByte>() {
        Ok(wrong) => WrongByte { offset: base + wrong.offset, ..wrong }.into(),
        Err(other) => other,
    }
}

/// Copies `bytes` into consecutive pieces.
fn scatter(mut bytes: &[u8], pieces: &mut [DmaBuf], ranges: &[Range<usize>]) {
    for (buf, range) in pieces.iter_mut().zip(ranges) {
        let (head, tail) = bytes.split_at(range.len().min(bytes.len()));
        buf[range.start..range.start + head.len()].copy_from_slice(head);
        bytes = tail;
    }
}

/// The first byte of `got`, which stands at `base`, that is not the one of `expected`.
fn compare(
    direction: &'static str,
    base: usize,
    got: &[u8],
    expected: &[u8],
) -> anyhow::Result<()> {
    // Whole slices first: that is a memcmp.
    if got.get(..expected.len()) == Some(expected) {
        return Ok(());
    }
    let wrong = got.iter().zip(expected).enumerate().find(|(_, (g, e))| g != e);
    match wrong {
        Some((at, (&got, &expected))) => {
            Err(WrongByte { direction, offset: base + at, expected, got }.into())
        }
        None => Err(anyhow!("{direction}: {} bytes of {}", got.len(), expected.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memreg_core::device::Caps;
    use memreg_core::device::sim::Fabric;
    use memreg_strategies::{Frwr, Physical};

    fn pair(strategy: Strategy, caps: Caps) -> Pair {
        let ask = Ask { danger_trust_peer: true, ..Ask::default() };
        let fabric = Fabric::new(1);
        let ends = (fabric.add_node("a", caps), fabric.add_node("b", Caps::default()));
        let options = OpenOptions { ask, ..OpenOptions::default() };
        let mut pair = Pair::open((ends.0.into(), ends.1.into()), &options, strategy).unwrap();
        pair.resize(200_000, Layout::Whole).unwrap();
        pair
    }

    fn each() -> [Strategy; 3] {
        [Frwr::new().into(), Fmr::new().into(), Physical::new(true).into()]
    }

    #[test]
    fn every_strategy_carries_every_byte_both_ways() {
        for strategy in each() {
            let mut pair = pair(strategy, Caps::default());
            for len in [1, 4096, 4097, 200_000] {
                let data: Vec<u8> = (0..len).map(|i| (i * 7 / 3) as u8).collect();
                let done = pair.operation(&data).unwrap();
                assert_eq!(done.exposures, 2);
            }
            let stats = pair.owner.stats();
            assert_eq!((stats.exposures, stats.fences), (8, 8));
            assert_eq!((stats.exposures_now, stats.bytes_leaked), (0, 0));
        }
    }

    #[test]
    fn b18_gaps_take_one_key_where_the_device_has_them() {
        for (sg_gaps, keys) in [(true, 1), (false, 3)] {
            let caps = Caps { sg_gaps, ..Caps::default() };
            let mut pair = pair(Frwr::new().into(), caps);
            pair.resize(40_000, Layout::Gaps).unwrap();
            for len in [40_000, 12_000, 3] {
                let before = pair.owner.stats().registrations;
                pair.operation(&vec![3; len]).unwrap();
                assert_eq!(pair.owner.stats().registrations - before, 2 * keys, "{len}");
            }
            pair.operation(&[1, 2]).unwrap();
        }
    }

    #[test]
    fn what_a_strategy_cannot_take_at_once_is_carried_in_parts() {
        let caps = Caps { max_fast_reg_page_list_len: 1, ..Caps::default() };
        let mut pair = pair(Frwr::new().into(), caps);
        let done = pair.operation(&vec![9; 200_000]).unwrap();
        assert_eq!(done.exposures, 2 * 200_000u64.div_ceil(14 * 4096));
    }

    #[test]
    fn one_wrong_byte_is_found_in_either_direction() {
        for strategy in each() {
            let mut pair = pair(strategy, Caps::default());
            let grants = [Grant::PeerReads, Grant::PeerWrites];
            let layouts = [Layout::Whole, Layout::Gaps];
            for (grant, layout) in grants.into_iter().flat_map(|g| layouts.map(|l| (g, l))) {
                pair.resize(8192, layout).unwrap();
                let data = vec![5; 8192];
                let mut expected = data.clone();
                expected[8191] = 6;
                let fault = pair.pass(grant, &data, &expected).unwrap_err();
                let text = moved(fault, 10).to_string();
                let wanted = "wrong byte at offset 8201: expected 0x06, got 0x05";
                assert!(text.ends_with(wanted), "{text}");
            }
        }
    }

    #[test]
    fn bytes_that_never_arrive_are_wrong() {
        let e = compare("x", 0, &[!1, !2], &[1, 2]).unwrap_err().to_string();
        assert_eq!(e, "x: wrong byte at offset 0: expected 0x01, got 0xfe");
        assert!(compare("x", 0, &[1], &[1, 2]).is_err());
        assert!(compare("x", 0, &[1, 2, 3], &[1, 2]).is_ok());
    }
}
