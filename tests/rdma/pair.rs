//! Owner and peer on one device, connected to each other.

use memreg_core::device::verbs::{VerbsDevice, VerbsObjects, VerbsOptions};
use memreg_core::device::{Device, WcStatus};
use memreg_core::drive::{Driven, connect_pair};
use memreg_core::sizing::Ask;
use memreg_core::transport::{
    Buffers, ExposureState, NoReply, OpenOptions, Received, Reply, SharedPd, State,
};
use memreg_core::{DmaBuf, Exposed, Grant, Segment, Tick, Transport};
use memreg_strategies::{Fmr, Frwr, Physical, Strategy};
use std::time::{Duration, Instant};

/// The device that the environment names, or the reason for a skip, which is printed.
pub fn device() -> Option<VerbsDevice> {
    let Ok(name) = std::env::var("MEMREG_TEST_RDMA_DEV") else {
        skip("MEMREG_TEST_RDMA_DEV names no device");
        return None;
    };
    let options = VerbsOptions { name: Some(name), ..VerbsOptions::default() };
    Some(VerbsDevice::open(&options).unwrap_or_else(|e| panic!("{e}")))
}

/// Prints why a test cannot run here, which is a failure where none may be left out.
pub fn skip(why: &str) {
    let required = std::env::var("MEMREG_TEST_REQUIRE_RDMA").is_ok_and(|v| v == "1");
    assert!(!required, "MEMREG_TEST_REQUIRE_RDMA=1, and skipped: {why}");
    println!("skipped: {why}");
}

/// The built-in strategies.
pub fn strategies() -> Vec<Strategy> {
    vec![Frwr::new().into(), Fmr::new().into(), Physical::new(true).into()]
}

pub type Side = Transport<VerbsDevice, Strategy>;

pub struct Pair {
    pub owner: Side,
    pub peer: Side,
    start: Instant,
}

pub const ASK: Ask = Ask {
    max_payload_bytes: 1 << 20,
    credits: 8,
    backchannel: 0,
    ranges_per_request: 4,
    max_message_bytes: 4096,
    danger_trust_peer: true,
    split_bytes: 0,
};

impl Pair {
    pub fn open(dev: &VerbsDevice, strategy: Strategy) -> Pair {
        let options = OpenOptions { ask: ASK, ..OpenOptions::default() };
        let open = |s| Transport::open(dev.clone(), s, &options).unwrap_or_else(|e| panic!("{e}"));
        let (mut owner, mut peer) = (open(strategy), open(Fmr::new().into()));
        connect_pair(&mut owner, &mut peer).unwrap();
        Pair { owner, peer, start: Instant::now() }
    }

    /// Whose owner is in a PD that others share.
    pub fn open_in(pd: &SharedPd<VerbsDevice>) -> Pair {
        let options = OpenOptions { ask: ASK, ..OpenOptions::default() };
        let mut owner = Transport::open_in(pd, Frwr::new().into(), &options).unwrap();
        let mut peer = Transport::open(pd.device().clone(), Fmr::new().into(), &options).unwrap();
        connect_pair(&mut owner, &mut peer).unwrap();
        Pair { owner, peer, start: Instant::now() }
    }

    pub fn drive(&mut self) {
        let now = Tick(u64::try_from(self.start.elapsed().as_nanos()).unwrap());
        self.owner.drive(now).unwrap();
        self.peer.drive(now).unwrap();
    }

    /// Drives both until `done` says so.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Pair) -> bool) {
        let start = Instant::now();
        while !done(self) {
            self.drive();
            let late = start.elapsed() > Duration::from_secs(20);
            assert!(!late, "{what}: owner {:?}, peer {:?}", self.owner, self.peer);
        }
    }

    /// Exposes, and the peer hears of it.
    pub fn expose_told(&mut self, buf: DmaBuf, grant: Grant) -> (Exposed, Vec<Segment>) {
        let exposed = self.owner.expose(buf, grant).unwrap_or_else(|e| panic!("{e}"));
        let segments = self.tell(&exposed, false);
        (exposed, segments)
    }

    pub fn tell(&mut self, exposed: &Exposed, may_invalidate: bool) -> Vec<Segment> {
        let segments = self.owner.segments(exposed).unwrap().to_vec();
        let message: Vec<u8> = segments.iter().flat_map(Segment::to_wire).collect();
        let marks = [exposed];
        let reply =
            if may_invalidate { Reply::MayInvalidate(&marks) } else { Reply::InvalidatesNothing };
        self.owner.send(&message, reply).unwrap();
        let got = self.peer_gets().1;
        assert_eq!(got, message);
        got.chunks(Segment::WIRE_LEN).map(|w| self.peer.import(w).unwrap()).collect()
    }

    pub fn peer_gets(&mut self) -> (Received, Vec<u8>) {
        self.until("message to the peer", |p| p.peer.messages_waiting() > 0);
        let mut bytes = vec![];
        (self.peer.recv(&mut bytes).unwrap(), bytes)
    }

    pub fn owner_gets(&mut self) -> (Received, Vec<u8>) {
        self.until("message to the owner", |p| p.owner.messages_waiting() > 0);
        let mut bytes = vec![];
        (self.owner.recv(&mut bytes).unwrap(), bytes)
    }

    /// The peer's access in the segment's direction; the bytes that it then has.
    pub fn access(
        &mut self,
        segment: &Segment,
        offset: u64,
        buf: DmaBuf,
    ) -> Result<DmaBuf, WcStatus> {
        let op = match segment.grant {
            Grant::PeerReads => self.peer.read(segment, offset, buf),
            Grant::PeerWrites => self.peer.write(segment, offset, buf),
        };
        let mut op = Some(op.unwrap_or_else(|e| panic!("{e}")));
        let mut result = None;
        self.until("the peer's access", |p| {
            match p.peer.take(op.take().unwrap()) {
                Ok(done) => result = Some(done),
                Err(e) => op = Some(e.op),
            }
            result.is_some()
        });
        let done = result.unwrap();
        match done.result {
            Ok(_) => Ok(done.buffers.into_first().unwrap()),
            Err(e) => Err(e.wc.status),
        }
    }

    /// Revokes and takes the buffers back.
    pub fn fence(&mut self, exposed: Exposed) -> Buffers {
        self.owner.revoke(&exposed, NoReply::Unmarked).unwrap();
        self.until("the fence", |p| {
            p.owner.exposure_state(&exposed).unwrap() == ExposureState::Fenced
        });
        self.owner.reclaim(exposed).unwrap_or_else(|e| panic!("{e}"))
    }

    /// A key of the past is refused: forged for the present epoch, so that only the device can.
    pub fn must_refuse(&mut self, stale: &Segment) {
        let forged = Segment { epoch: self.owner.epoch(), ..*stale };
        let buf = DmaBuf::from_bytes(&vec![0xee; 64.min(stale.len as usize)]).unwrap();
        assert_eq!(self.access(&forged, 0, buf).unwrap_err(), WcStatus::RemAccessErr);
    }

    pub fn reconnect(&mut self) {
        self.owner.disconnect();
        self.peer.disconnect();
        self.until("down", |p| is_down(&p.owner) && is_down(&p.peer));
        self.owner.reconnect().unwrap();
        self.peer.reconnect().unwrap();
        connect_pair(&mut self.owner, &mut self.peer).unwrap();
    }

    /// Whether a fence kills keys; a strategy on a bounce arena never revokes.
    pub fn revokes(&self) -> bool {
        self.owner.limits().arena_bytes == 0
    }

    /// Closes both; nothing may be left on the device.
    pub fn close(self) {
        let dev = self.owner.device().clone();
        assert_eq!(self.owner.stats().bytes_leaked, 0);
        drop(self);
        assert_eq!(dev.objects(), VerbsObjects::default(), "left on {}", dev.name());
    }
}

pub fn is_down(side: &Side) -> bool {
    matches!(side.state(), State::Down(_))
}

/// Bytes that repeat only after a prime number of them.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i % 251) as u8).wrapping_mul(7).wrapping_add(seed)).collect()
}
