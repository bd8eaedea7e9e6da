//! A peer in a process of its own: told over its standard input, heard on its standard output.

use crate::pair::{Side, device, is_down, pattern};
use memreg_core::device::{Device, Endpoint, PortAddr};
use memreg_core::drive::Driven;
use memreg_core::sizing::Ask;
use memreg_core::transport::{LocalOp, OpenOptions, Reply};
use memreg_core::types::{Epoch, QpId};
use memreg_core::{DmaBuf, Grant, Segment, Tick, Transport};
use memreg_strategies::{Fmr, Strategy};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Instant;

/// What a message from the owner asks for, in its first byte; segments follow.
pub const USE_ONCE: u8 = 1;
pub const USE_UNTIL_IT_FAILS: u8 = 2;
/// What the peer answers to [`USE_ONCE`].
pub const DONE: &[u8] = b"done";
/// The bytes that it writes.
pub const SEED: u8 = 77;

pub fn options() -> OpenOptions {
    let ask = Ask {
        max_payload_bytes: 4096,
        credits: 96,
        backchannel: 0,
        ranges_per_request: 1,
        max_message_bytes: 4096,
        danger_trust_peer: true,
        split_bytes: 0,
    };
    OpenOptions { ask, ..OpenOptions::default() }
}

/// The owner's handle of such a process.
pub struct PeerProcess {
    child: Child,
    tell: ChildStdin,
    hear: BufReader<ChildStdout>,
}

impl PeerProcess {
    pub fn start() -> PeerProcess {
        let program = std::env::current_exe().unwrap();
        let test = "peer_process::serves_its_parent";
        let mut child = Command::new(program)
            .args(["--ignored", "--exact", "--nocapture", test])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (tell, hear) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        PeerProcess { child, tell, hear: BufReader::new(hear) }
    }

    /// Sends a command and returns the answer.
    pub fn ask(&mut self, command: &str) -> String {
        writeln!(self.tell, "{command}").unwrap();
        loop {
            let mut line = String::new();
            assert!(self.hear.read_line(&mut line).unwrap() > 0, "the peer process has ended");
            if let Some((_, answer)) = line.split_once("@peer ") {
                return answer.trim_end().to_owned();
            }
        }
    }

    /// Connects both to each other, each with a new QP.
    pub fn connect(&mut self, owner: &mut Side) {
        let theirs = parse(&self.ask("endpoint"));
        let ours = owner.endpoint().unwrap();
        owner.connect(theirs).unwrap();
        assert_eq!(self.ask(&format!("connect {}", text(&ours))), "connected");
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn end(mut self) {
        drop(self.tell);
        assert!(self.child.wait().unwrap().success());
    }
}

fn text(e: &Endpoint) -> String {
    let gid = u128::from_be_bytes(e.port.gid);
    format!("{} {gid} {} {} {} {}", e.node, e.port.lid, e.port.mtu, e.qp.0, e.epoch.0)
}

fn parse(text: &str) -> Endpoint {
    let n: Vec<u128> = text.split(' ').map(|word| word.parse().unwrap()).collect();
    let [node, gid, lid, mtu, qp, epoch] = n[..] else { panic!("{text}") };
    let (lid, mtu) = (lid.try_into().unwrap(), mtu.try_into().unwrap());
    let port = PortAddr { gid: gid.to_be_bytes(), lid, mtu };
    let (qp, epoch) = (QpId(qp.try_into().unwrap()), Epoch(epoch.try_into().unwrap()));
    Endpoint { node: node.try_into().unwrap(), port, qp, epoch }
}

/// The other process: ends when its input does.
#[test]
#[ignore = "is a process of its own: faults::st_11_rec_fifty_faults_lose_no_buffer starts it"]
fn serves_its_parent() {
    let Some(dev) = device() else { return };
    let strategy = Strategy::from(Fmr::new());
    let side = Transport::open(dev, strategy, &options()).unwrap_or_else(|e| panic!("{e}"));
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if line.is_err() || send.send(line.unwrap()).is_err() {
                return;
            }
        }
    });
    Served { side, start: Instant::now(), jobs: vec![], turn: 0, running: None }.run(&lines);
}

struct Served {
    side: Side,
    start: Instant,
    jobs: Vec<(u8, Segment)>,
    turn: usize,
    running: Option<LocalOp>,
}

impl Served {
    fn run(mut self, lines: &Receiver<String>) {
        loop {
            match lines.try_recv() {
                Ok(line) => self.command(&line),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return,
            }
            self.drive();
            self.hear();
            self.work();
        }
    }

    fn command(&mut self, line: &str) {
        let answer = match line.split_once(' ') {
            Some(("connect", owner)) => {
                self.side.connect(parse(owner)).unwrap();
                "connected".to_owned()
            }
            _ if line == "endpoint" => {
                self.begin_anew();
                text(&self.side.endpoint().unwrap())
            }
            _ if line == "error" => {
                if let Some(qp) = self.side.queue_pair() {
                    self.side.device().qp_to_err(qp).unwrap();
                }
                "in error".to_owned()
            }
            _ => panic!("{line}"),
        };
        println!("@peer {answer}");
        std::io::stdout().flush().unwrap();
    }

    fn begin_anew(&mut self) {
        (self.jobs, self.turn) = (vec![], 0);
        self.side.disconnect();
        while !is_down(&self.side) {
            self.drive();
        }
        if let Some(op) = self.running.take() {
            let _ = self.side.take(op);
        }
        self.side.reconnect().unwrap();
    }

    fn drive(&mut self) {
        let now = Tick(u64::try_from(self.start.elapsed().as_nanos()).unwrap());
        self.side.drive(now).unwrap();
    }

    fn hear(&mut self) {
        let mut bytes = vec![];
        while self.side.recv(&mut bytes).is_some() {
            let Some((&kind, wire)) = bytes.split_first() else { continue };
            for segment in wire.chunks(Segment::WIRE_LEN) {
                if let Ok(segment) = self.side.import(segment) {
                    self.jobs.push((kind, segment));
                }
            }
            bytes.clear();
        }
    }

    /// One access at a time, in turn over all segments.
    fn work(&mut self) {
        if let Some(op) = self.running.take() {
            match self.side.take(op) {
                Err(e) => return self.running = Some(e.op),
                Ok(done) if done.result.is_err() => self.jobs.clear(),
                Ok(_) => self.finished(),
            }
        }
        if self.jobs.is_empty() {
            return;
        }
        let (_, segment) = self.jobs[self.turn % self.jobs.len()];
        let op = match segment.grant {
            Grant::PeerReads => self.side.read(&segment, 0, DmaBuf::new(2048).unwrap()),
            Grant::PeerWrites => {
                let buf = DmaBuf::from_bytes(&pattern(SEED, 2048)).unwrap();
                self.side.write(&segment, 0, buf)
            }
        };
        self.running = op.ok();
    }

    fn finished(&mut self) {
        let at = self.turn % self.jobs.len();
        self.turn += 1;
        if self.jobs[at].0 == USE_ONCE {
            self.jobs.remove(at);
            let _ = self.side.send(DONE, Reply::InvalidatesNothing);
        }
    }
}
