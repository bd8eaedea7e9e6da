//! Two threads, each with its end of one connection, and a third one that drops what they give it.
//!
//! Real threads and whatever schedules they get; `strategies/tests/threads` chooses its own.

use super::rig::{Device, Rig};
use memreg_core::device::Caps;
use memreg_core::device::sim::SimDevice;
use memreg_core::drive::Driven;
use memreg_core::memreg::MemReg;
use memreg_core::sizing::Ask;
use memreg_core::transport::{Exposed, ExposureState, LocalOp, NoReply, Reply, State, Transport};
use memreg_core::types::{Grant, Segment, Tick};
use memreg_core::{DmaBuf, transport::Buffers};
use memreg_strategies::{Fmr, Frwr};
use std::sync::mpsc::{Sender, channel};

#[test]
fn d_10_two_threads_do_a_hundred_thousand_operations_and_lose_nothing() {
    run(Frwr::new(), 100_000, true);
}

#[test]
fn two_threads_register_and_deregister_by_verbs_and_lose_nothing() {
    run(Fmr::new(), 10_000, false);
}

/// With `remote`, every other reply takes its key back by itself.
fn run<S: MemReg + 'static>(strategy: S, operations: u32, remote: bool) {
    let ask = Ask { credits: 16, ..Ask::default() };
    let mut rig = Rig::new(strategy, Caps::default(), ask);
    let (owner, peer) = (&mut rig.owner, &mut rig.peer);
    let (mut dropped_handles, mut dropped_buffers) = (0, 0);
    std::thread::scope(|s| {
        let (to_drop, dropper) = channel();
        let one = s.spawn(move || Owner::new(owner, to_drop, remote).run(operations));
        let two = s.spawn(move || answer(peer, operations, remote));
        for thing in dropper {
            match thing {
                Thing::Handle(_) => dropped_handles += 1,
                Thing::Buffers(_) => dropped_buffers += 1,
            }
        }
        one.join().unwrap();
        two.join().unwrap();
    });
    rig.settle();
    let stats = rig.owner.stats();
    assert_eq!(stats.exposures, u64::from(operations));
    assert_eq!(stats.fences, stats.exposures);
    assert_eq!((stats.abandoned, stats.poisons), (dropped_handles, 0));
    assert_eq!(dropped_handles, u64::from(operations.div_ceil(DROP_EACH)));
    assert_eq!(dropped_handles + dropped_buffers, stats.exposures);
    rig.assert_clean();
}

/// What the third thread drops.
enum Thing {
    Handle(#[expect(dead_code, reason = "dropped is what it is")] Exposed),
    Buffers(#[expect(dead_code, reason = "dropped is what it is")] Buffers),
}

struct Owner<'a, S: MemReg> {
    end: &'a mut Transport<Device, S>,
    to_drop: Sender<Thing>,
    remote: bool,
    asked: Vec<(u32, Exposed)>,
    revoked: Vec<(u32, Exposed)>,
    done: u32,
}

impl<'a, S: MemReg> Owner<'a, S> {
    fn new(end: &'a mut Transport<Device, S>, to_drop: Sender<Thing>, remote: bool) -> Self {
        Owner { end, to_drop, remote, asked: vec![], revoked: vec![], done: 0 }
    }

    fn run(mut self, operations: u32) {
        let mut patience = Patience::default();
        let mut next = 0;
        while self.done < operations {
            while next < operations && self.asked.len() + self.revoked.len() < IN_FLIGHT {
                self.ask(next);
                next += 1;
            }
            let moved = self.end.drive(Tick(1)).unwrap();
            self.take_replies();
            self.take_back();
            patience.note(moved);
            assert_eq!(*self.end.state(), State::Up);
        }
    }

    /// Exposes a buffer and tells the peer to write operation `n` into it.
    fn ask(&mut self, n: u32) {
        let e = self.end.expose(DmaBuf::new(LEN).unwrap(), Grant::PeerWrites).unwrap();
        let mut message = self.end.segments(&e).unwrap()[0].to_wire().to_vec();
        message.extend(n.to_be_bytes());
        self.end.send(&message, Reply::MayInvalidate(&[&e])).unwrap();
        self.asked.push((n, e));
    }

    fn take_replies(&mut self) {
        let mut message = vec![];
        while let Some(received) = self.end.recv(&mut message) {
            let n = number(&message);
            let at = self.asked.iter().position(|(asked, _)| *asked == n).unwrap();
            let (_, e) = self.asked.swap_remove(at);
            assert_eq!(received.invalidated, self.remote && n.is_multiple_of(2));
            self.end.revoke(&e, NoReply::Arrived(&received.token)).unwrap();
            if n.is_multiple_of(DROP_EACH) {
                self.to_drop.send(Thing::Handle(e)).unwrap();
                self.done += 1;
            } else {
                self.revoked.push((n, e));
            }
        }
    }

    fn take_back(&mut self) {
        let end = &*self.end;
        let fenced =
            |(_, e): &mut (u32, Exposed)| end.exposure_state(e) == Ok(ExposureState::Fenced);
        let ready: Vec<_> = self.revoked.extract_if(.., fenced).collect();
        for (n, e) in ready {
            let back = self.end.reclaim(e).unwrap();
            let (buf, _) = back.iter().next().unwrap();
            assert_eq!(buf[..], content(n)[..]);
            self.to_drop.send(Thing::Buffers(back)).unwrap();
            self.done += 1;
        }
    }
}

/// The peer: writes what it is told to, and replies when that has happened.
fn answer(end: &mut Transport<SimDevice, Fmr>, operations: u32, remote: bool) {
    let mut patience = Patience::default();
    let mut running: Vec<(u32, Segment, LocalOp)> = vec![];
    let (mut replied, mut message) = (0, vec![]);
    while replied < operations {
        let moved = end.drive(Tick(1)).unwrap();
        while end.recv(&mut message).is_some() {
            let n = number(&message);
            let segment = end.import(&message[..Segment::WIRE_LEN]).unwrap();
            let buf = DmaBuf::from_bytes(&content(n)).unwrap();
            running.push((n, segment, end.write(&segment, 0, buf).unwrap()));
        }
        for (n, segment, op) in std::mem::take(&mut running) {
            match end.take(op) {
                Ok(done) => {
                    assert_eq!(done.result, Ok(LEN as u64));
                    let reply = n.to_be_bytes();
                    match remote && n.is_multiple_of(2) {
                        true => end.send_with_inv(&reply, &segment).unwrap(),
                        false => end.send(&reply, Reply::InvalidatesNothing).unwrap(),
                    }
                    replied += 1;
                }
                Err(still) => running.push((n, segment, still.op)),
            }
        }
        patience.note(moved);
        assert_eq!(*end.state(), State::Up);
    }
}

/// The last four bytes of a message.
fn number(message: &[u8]) -> u32 {
    u32::from_be_bytes(*message.last_chunk().unwrap())
}

fn content(n: u32) -> [u8; LEN] {
    std::array::from_fn(|i| (n as usize + i) as u8)
}

/// Lets the other threads run when nothing moves, but not for ever.
#[derive(Default)]
struct Patience(u64);

impl Patience {
    fn note(&mut self, moved: bool) {
        self.0 = if moved { 0 } else { self.0 + 1 };
        assert!(self.0 < 20_000_000, "nothing moves any more");
        if !moved {
            std::thread::yield_now();
        }
    }
}

/// Bytes.
const LEN: usize = 64;
/// Operations that the owner has under way.
const IN_FLIGHT: usize = 8;
/// Of so many exposures, one is not reclaimed: its handle is dropped.
const DROP_EACH: u32 = 7;
