//! The two ends of one connection between two QPs of the device.

use super::Bench;
use memreg_core::device::{Device, WcStatus};
use memreg_core::drive::{Driven, connect_pair, settle};
use memreg_core::mem::DmaBuf;
use memreg_core::sizing::Ask;
use memreg_core::transport::{
    Buffers, Exposed, ExposureState, LocalOp, NoReply, OpenOptions, Reply, State, Transport,
};
use memreg_core::types::{Grant, Segment, Tick};
use memreg_strategies::{Fmr, Strategy};
use std::error::Error;

/// An owner with the strategy under test, and a peer.
pub(super) struct Pair<D: Device> {
    pub(super) owner: Transport<D, Strategy>,
    pub(super) peer: Peer<D>,
}

/// An end that only reads and writes.
pub(super) type Peer<D> = Transport<D, Fmr>;

/// How an access by the peer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    /// As if it were allowed.
    Done,
    /// With this status.
    Refused(WcStatus),
}

/// The probe has no clock; nothing here waits for one.
const NOW: Tick = Tick(0);

/// How often a transport is polled for something that has to come. A device that runs by itself
/// needs some microseconds for each transfer here.
const POLLS: usize = 200_000;

impl<D: Device + Clone> Pair<D> {
    /// Opens and connects both ends.
    pub(super) fn open(bench: &Bench<'_, D>, name: &str) -> Result<Pair<D>, String> {
        let strategy = bench.build(name)?;
        let owner = Transport::open(bench.device.clone(), strategy, &small(bench))
            .map_err(|e| text("owner", &e))?;
        let mut pair = Pair { owner, peer: peer(bench)? };
        connect_pair(&mut pair.owner, &mut pair.peer).map_err(|e| text("connect", &e))?;
        Ok(pair)
    }

    /// Exposes buffers and lets the peer hear of it by a message, behind which every key is there.
    pub(super) fn expose(
        &mut self,
        buffers: Buffers,
        grant: Grant,
    ) -> Result<(Exposed, Vec<Segment>), String> {
        let exposed = self.owner.expose(buffers, grant).map_err(|e| text("expose", &e))?;
        let segments = self.owner.segments(&exposed).map_err(|e| text("expose", &e))?;
        let wire: Vec<u8> = segments.iter().flat_map(Segment::to_wire).collect();
        let sent = self.owner.send(&wire, Reply::InvalidatesNothing);
        sent.map_err(|e| text("send", &e))?;
        let mut message = vec![];
        self.wait("the message with the keys", |pair| pair.peer.recv(&mut message))?;
        let import = |wire| self.peer.import(wire).map_err(|e| text("segment", &e));
        let segments = message.chunks(Segment::WIRE_LEN).map(import).collect::<Result<_, _>>()?;
        Ok((exposed, segments))
    }

    /// The peer reads `segment` into `part`, or writes `part` into it.
    pub(super) fn access(
        &mut self,
        segment: &Segment,
        part: Buffers,
    ) -> Result<(Access, Buffers), String> {
        let op = start(&mut self.peer, segment, part)?;
        let mut op = Some(op);
        self.wait("the peer's access", |pair| finish(&mut pair.peer, &mut op))
    }

    /// Takes the access back and the bytes with it.
    pub(super) fn take_back(&mut self, exposed: Exposed) -> Result<Buffers, String> {
        self.owner.revoke(&exposed, NoReply::Unmarked).map_err(|e| text("revoke", &e))?;
        self.wait("the revocation", |pair| {
            let state = pair.owner.exposure_state(&exposed);
            (state == Ok(ExposureState::Fenced)).then_some(())
        })?;
        self.owner.reclaim(exposed).map_err(|e| text("reclaim", &e))
    }

    /// Drives both ends until `done` finds what it looks for.
    fn wait<T>(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Pair<D>) -> Option<T>,
    ) -> Result<T, String> {
        for _ in 0..POLLS {
            let driven = settle(NOW, &mut [&mut self.owner, &mut self.peer]);
            // An access that is refused takes the connection down: the result comes first.
            if let Some(found) = done(self) {
                return Ok(found);
            }
            driven.map_err(|e| text(what, &e))?;
            self.is_up(what)?;
        }
        Err(format!("{what} never came"))
    }

    fn is_up(&self, what: &str) -> Result<(), String> {
        for (end, state) in [("owner", self.owner.state()), ("peer", self.peer.state())] {
            if let State::Down(cause) = state {
                return Err(format!("{what}: {end}: {cause}"));
            }
        }
        Ok(())
    }
}

impl<D: Device> Drop for Pair<D> {
    /// Takes the connection down in good order first, so that whatever the device refuses once is
    /// tried again when the ends are dropped.
    fn drop(&mut self) {
        self.owner.disconnect();
        self.peer.disconnect();
        let _ = settle(NOW, &mut [&mut self.owner, &mut self.peer]);
        let _ = self.owner.recover(usize::MAX);
    }
}

/// Opens an end that only reads and writes.
pub(super) fn peer<D: Device + Clone>(bench: &Bench<'_, D>) -> Result<Peer<D>, String> {
    Transport::open(bench.device.clone(), Fmr::new(), &small(bench)).map_err(|e| text("peer", &e))
}

/// Starts an access by the peer.
pub(super) fn start<D: Device>(
    peer: &mut Peer<D>,
    segment: &Segment,
    part: Buffers,
) -> Result<LocalOp, String> {
    let started = match segment.grant {
        Grant::PeerReads => peer.read(segment, 0, part),
        Grant::PeerWrites => peer.write(segment, 0, part),
    };
    started.map_err(|e| text("peer's access", &e))
}

/// How an access ended, if it has; `op` is empty then.
pub(super) fn finish<D: Device>(
    peer: &mut Peer<D>,
    op: &mut Option<LocalOp>,
) -> Option<(Access, Buffers)> {
    match peer.take(op.take()?) {
        Ok(done) => {
            let access = match done.result {
                Ok(_) => Access::Done,
                Err(e) => Access::Refused(e.wc.status),
            };
            Some((access, done.buffers))
        }
        Err(e) => {
            *op = Some(e.op);
            None
        }
    }
}

/// Drives a peer on a connection of its own until its access has ended.
pub(super) fn drive_alone<D: Device>(
    peer: &mut Peer<D>,
    others: &mut Pair<D>,
    op: LocalOp,
) -> Result<Access, String> {
    let mut op = Some(op);
    for _ in 0..POLLS {
        let parties: &mut [&mut dyn Driven] = &mut [peer, &mut others.owner, &mut others.peer];
        let driven = settle(NOW, parties);
        if let Some((access, _)) = finish(peer, &mut op) {
            return Ok(access);
        }
        driven.map_err(|e| text("the other QP", &e))?;
    }
    Err("the access through the other QP never ended".to_owned())
}

/// A buffer of twice `len` bytes, all `fill`, of which the first half counts. The other half is the
/// parent's, beyond the key.
pub(super) fn buffer(len: usize, fill: impl Fn(usize) -> u8) -> Result<Buffers, String> {
    let mut buf = DmaBuf::new(len.saturating_mul(2)).map_err(|e| text("memory", &e))?;
    buf.iter_mut().enumerate().for_each(|(i, b)| *b = fill(i));
    Ok((buf, 0..len).into())
}

/// One operation in flight, of one small transfer: what is proven does not depend on the sizes.
fn small<D: Device + Clone>(bench: &Bench<'_, D>) -> OpenOptions {
    let ask = Ask {
        max_payload_bytes: bench.len() as u64,
        credits: 1,
        backchannel: 0,
        ranges_per_request: bench.ask.ranges_per_request.max(2),
        max_message_bytes: MESSAGE_BYTES,
        danger_trust_peer: bench.ask.danger_trust_peer,
        split_bytes: bench.ask.split_bytes,
    };
    OpenOptions { ask, ..OpenOptions::default() }
}

/// Room for as many segments as an operation can have.
const MESSAGE_BYTES: u32 = (Segment::WIRE_LEN * memreg_core::memreg::MAX_REGIONS) as u32;

/// What failed, and why down to the last cause; a cause that says the same again is left out.
pub(super) fn text(what: &str, e: &dyn Error) -> String {
    let mut text = format!("{what}: {e}");
    let mut last = e.to_string();
    let mut source = e.source();
    while let Some(e) = source {
        let next = e.to_string();
        if next != last {
            text = format!("{text}: {next}");
        }
        last = next;
        source = e.source();
    }
    text
}
