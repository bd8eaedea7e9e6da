//! Fifty faults of a connection between two processes: nothing is lost, and it comes back.
//!
//! `MEMREG_TEST_RDMA_LINK` names the network link under the device, which the test takes down and
//! up; without it there are no partitions.

use crate::pair::{Side, device, is_down, pattern};
use crate::peer_process::{DONE, PeerProcess, SEED, USE_ONCE, USE_UNTIL_IT_FAILS, options};
use memreg_core::device::Device;
use memreg_core::device::verbs::VerbsObjects;
use memreg_core::drive::Driven;
use memreg_core::transport::{ExposureState, NoReply, Reply};
use memreg_core::{Disposition, DmaBuf, Exposed, Grant, Tick, Transport};
use memreg_strategies::{Frwr, Strategy};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;
use std::time::{Duration, Instant};

const ROUNDS: u64 = 50;
const REGIONS: [usize; 4] = [1, 4, 16, 64];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fault {
    Partition,
    PeerKilled,
    OwnerQpToErr,
    PeerQpToErr,
}

#[test]
fn st_11_rec_fifty_faults_lose_no_buffer() {
    let Some(dev) = device() else { return };
    let link = std::env::var("MEMREG_TEST_RDMA_LINK").ok();
    if link.is_none() {
        println!("no partitions: MEMREG_TEST_RDMA_LINK names no link");
    }
    let mut run = Run::new(link);
    for round in 0..ROUNDS {
        run.round(round);
    }
    run.report();
    run.end();
    assert_eq!(dev.objects(), VerbsObjects::default(), "left on {}", dev.name());
}

struct Run {
    owner: Side,
    peer: Option<PeerProcess>,
    link: Option<String>,
    start: Instant,
    random: u64,
    buffers_in: u64,
    buffers_out: u64,
    /// The owner's ledger, line by line, and the next line to take.
    trace: String,
    next_line: u64,
    /// Nanoseconds from heal to the first completed operation, by fault and regions exposed.
    recovery: BTreeMap<(Fault, usize), Vec<u64>>,
}

impl Run {
    fn new(link: Option<String>) -> Run {
        let Some(dev) = device() else { panic!("no device") };
        let strategy = Strategy::from(Frwr::new());
        let mut owner = Transport::open(dev, strategy, &options()).unwrap();
        let mut peer = PeerProcess::start();
        peer.connect(&mut owner);
        let trace = String::new();
        Run {
            owner,
            peer: Some(peer),
            link,
            start: Instant::now(),
            random: 0x6d65_6d72_6567,
            buffers_in: 0,
            buffers_out: 0,
            trace,
            next_line: 0,
            recovery: BTreeMap::new(),
        }
    }

    fn round(&mut self, round: u64) {
        let regions = REGIONS[(round % 4) as usize];
        let mut exposed: Vec<Exposed> =
            (0..regions).map(|i| self.expose(i, USE_UNTIL_IT_FAILS)).collect();
        for _ in 0..self.below(200) {
            self.drive();
        }
        // Some are being taken back while it happens, and some binds are still to run.
        for e in &exposed {
            if self.below(3) == 0 {
                self.owner.revoke(e, NoReply::Unmarked).unwrap();
            }
        }
        let late = self.owner.expose(DmaBuf::new(4096).unwrap(), Grant::PeerReads);
        self.buffers_in += 1;
        exposed.push(late.unwrap_or_else(|e| panic!("{e}")));
        if self.below(2) == 0 {
            self.owner.flush().unwrap();
        }
        let fault = self.fault(round / 4 + round);
        self.until_down(fault);
        for e in exposed {
            assert_eq!(self.owner.exposure_state(&e).unwrap(), ExposureState::Fenced);
            self.take_back(e);
        }
        self.heal(fault);
        let healed = Instant::now();
        self.owner.reconnect().unwrap();
        let mut peer = self.peer.take().unwrap();
        peer.connect(&mut self.owner);
        self.peer = Some(peer);
        self.works();
        let took = u64::try_from(healed.elapsed().as_nanos()).unwrap();
        self.recovery.entry((fault, regions)).or_default().push(took);
        self.take_lines();
    }

    /// Exposes one buffer and tells the peer.
    fn expose(&mut self, i: usize, what: u8) -> Exposed {
        let grant = if i.is_multiple_of(2) { Grant::PeerWrites } else { Grant::PeerReads };
        let mut buf = DmaBuf::new(4096).unwrap();
        self.buffers_in += 1;
        let exposed = loop {
            match self.owner.expose(buf, grant) {
                Ok(exposed) => break exposed,
                Err(e) => {
                    assert_eq!(e.disposition(), Disposition::Retry, "{e}");
                    buf = e.buffers.into_first().unwrap();
                    self.drive();
                }
            }
        };
        let segments = self.owner.segments(&exposed).unwrap();
        let message: Vec<u8> =
            [what].into_iter().chain(segments.iter().flat_map(|s| s.to_wire())).collect();
        while let Err(e) = self.owner.send(&message, Reply::InvalidatesNothing) {
            assert_eq!(e.disposition(), Disposition::Retry, "{e}");
            self.drive();
        }
        exposed
    }

    fn fault(&mut self, turn: u64) -> Fault {
        let fault = match turn % 4 {
            0 if self.link.is_some() => Fault::Partition,
            0 | 1 => Fault::OwnerQpToErr,
            2 => Fault::PeerKilled,
            _ => Fault::PeerQpToErr,
        };
        match fault {
            Fault::Partition => self.set_link("down"),
            Fault::PeerKilled => self.peer.take().unwrap().kill(),
            Fault::OwnerQpToErr => {
                let qp = self.owner.queue_pair().unwrap();
                self.owner.device().qp_to_err(qp).unwrap();
            }
            Fault::PeerQpToErr => assert_eq!(self.peer.as_mut().unwrap().ask("error"), "in error"),
        }
        fault
    }

    /// The owner goes on sending until it hears that nobody is there.
    fn until_down(&mut self, fault: Fault) {
        let start = Instant::now();
        while !is_down(&self.owner) {
            let _ = self.owner.send(&[0], Reply::InvalidatesNothing);
            self.drive();
            assert!(start.elapsed() < PATIENCE, "{fault:?}: {:?}", self.owner);
        }
    }

    fn heal(&mut self, fault: Fault) {
        match fault {
            Fault::Partition => self.set_link("up"),
            Fault::PeerKilled => self.peer = Some(PeerProcess::start()),
            Fault::OwnerQpToErr | Fault::PeerQpToErr => {}
        }
    }

    fn set_link(&self, state: &str) {
        let link = self.link.as_deref().unwrap();
        let set = Command::new("ip").args(["link", "set", link, state]).status().unwrap();
        assert!(set.success());
    }

    /// One exposure that the peer writes, as if nothing had happened.
    fn works(&mut self) {
        let exposed = self.expose(0, USE_ONCE);
        let start = Instant::now();
        let mut answer = vec![];
        while self.owner.recv(&mut answer).is_none() {
            self.drive();
            assert!(start.elapsed() < PATIENCE, "no answer: {:?}", self.owner);
        }
        assert_eq!(answer, DONE);
        self.owner.revoke(&exposed, NoReply::Unmarked).unwrap();
        while self.owner.exposure_state(&exposed).unwrap() != ExposureState::Fenced {
            self.drive();
            assert!(start.elapsed() < PATIENCE, "no fence: {:?}", self.owner);
        }
        let buf = self.take_back(exposed);
        assert_eq!(buf[..2048], pattern(SEED, 2048)[..]);
    }

    fn take_back(&mut self, exposed: Exposed) -> DmaBuf {
        let back = self.owner.reclaim(exposed).unwrap_or_else(|e| panic!("{e}"));
        self.buffers_out += 1;
        back.into_first().unwrap()
    }

    fn drive(&mut self) {
        let now = Tick(u64::try_from(self.start.elapsed().as_nanos()).unwrap());
        self.owner.drive(now).unwrap();
    }

    fn take_lines(&mut self) {
        let next = self.next_line;
        for line in self.owner.ledger().iter().filter(|l| l.seq >= next) {
            writeln!(self.trace, "{line}").unwrap();
            self.next_line = line.seq + 1;
        }
    }

    fn report(&self) {
        println!(
            "fault, regions exposed: times, and ms from heal to the first completed operation"
        );
        let mut faults = 0;
        for ((fault, regions), times) in &self.recovery {
            let mut ms: Vec<f64> = times.iter().map(|&ns| ns as f64 / 1e6).collect();
            ms.sort_by(f64::total_cmp);
            let (min, med, max) = (ms[0], ms[ms.len() / 2], ms[ms.len() - 1]);
            println!(
                "{fault:?}, {regions}: {} times, min {min:.0} median {med:.0} max {max:.0}",
                ms.len()
            );
            faults += ms.len() as u64;
        }
        let leaked = self.owner.stats().bytes_leaked;
        println!(
            "faults {faults}, buffers in {} = out {} + leaked bytes {leaked}",
            self.buffers_in, self.buffers_out
        );
        assert_eq!((faults, leaked), (ROUNDS, 0));
        assert_eq!(self.buffers_in, self.buffers_out);
        let audit = {
            let lines = self.trace.lines().count();
            let text = format!("memreg-trace 1 lines={lines}\n{}", self.trace);
            memreg::audit::audit(&text).unwrap()
        };
        println!("audit of the owner's ledger: {audit}");
        assert!(audit.violations.is_empty() && audit.complete && audit.live == 0, "{audit}");
    }

    fn end(mut self) {
        self.peer.take().unwrap().end();
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % n
    }
}

const PATIENCE: Duration = Duration::from_secs(30);
