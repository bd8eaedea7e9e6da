//! A device whose completions and events are made up.

use super::input::Input;
use super::rig::{By, Rig, buffer};
use memreg::core::device::{AsyncEvent, Wc, WcError, WcStatus, WcSuccess};
use memreg::core::types::{QpId, Rkey, WrId};
use memreg::{Exposed, ExposureState, Grant, LocalOp, NoReply, Reply};

/// A list of operations, and among them completions and events that the device makes up.
///
/// Whatever it says: no panic, no endless drain, every buffer is given back or counted, and the
/// ledger claims nothing beyond what the device has answered.
pub fn completions(data: &[u8]) {
    let mut input = Input(data);
    let by = match input.byte() & 3 {
        0 => By::PageLists,
        1 => By::Windows,
        2 => By::Verbs,
        _ => By::BounceArena,
    };
    let mut run = Run { rig: Rig::new(by), held: vec![], ops: vec![], lied_gone: false };
    for _ in 0..OPS {
        if input.is_empty() {
            break;
        }
        run.step(&mut input);
    }
    run.finish();
}

struct Run {
    rig: Rig,
    held: Vec<Exposed>,
    ops: Vec<LocalOp>,
    /// The device has said that it is gone, and was not.
    lied_gone: bool,
}

impl Run {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0 => self.expose(input),
            1 => self.revoke(input),
            2 => self.reclaim(input),
            3 => self.drop_handle(input),
            4 => self.local(input),
            5 => self.take(input),
            6 => {
                let message = input.bytes::<8>();
                let marked: Vec<&Exposed> = self.held.iter().take(1).collect();
                let reply = match input.byte() & 1 {
                    0 => Reply::InvalidatesNothing,
                    _ => Reply::MayInvalidate(&marked),
                };
                let _ = self.rig.owner.send(&message, reply);
            }
            7 => {
                let mut message = vec![];
                let _ = self.rig.owner.recv(&mut message);
                assert!(message.len() <= 64);
            }
            8 => self.success(input),
            9 => self.error(input),
            10 => self.event(input),
            11 => self.rig.plan.duplicate_next_wc(),
            12 => self.rig.plan.swallow_wcs(1, |_| true),
            13 => self.hold_or_release(),
            14 => self.reconnect(),
            _ => self.drive(input),
        }
    }

    fn expose(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let grant = if choice & 1 == 0 { Grant::PeerReads } else { Grant::PeerWrites };
        let owner = &mut self.rig.owner;
        let exposed = match choice & 4 {
            0 => owner.expose(buffer(LEN, 7), grant),
            _ => {
                let until = self.rig.now.after(input.byte().into());
                owner.expose_until(buffer(LEN, 7), grant, until)
            }
        };
        self.held.extend(exposed);
        if choice & 2 == 0 {
            let _ = self.rig.owner.flush();
        }
    }

    fn revoke(&mut self, input: &mut Input<'_>) {
        let Some(i) = input.index(self.held.len()) else { return };
        let e = &self.held[i];
        let _ = match input.byte() % 3 {
            0 => self.rig.owner.revoke(e, NoReply::Unmarked),
            1 => self.rig.owner.revoke(e, NoReply::NoneCanCome),
            _ => self.rig.owner.cancel(e),
        };
    }

    fn reclaim(&mut self, input: &mut Input<'_>) {
        let Some(i) = input.index(self.held.len()) else { return };
        match self.rig.owner.reclaim(self.held.swap_remove(i)) {
            Ok(back) => assert_eq!(back.count(), 1),
            Err(e) => self.held.push(e.exposed),
        }
    }

    fn drop_handle(&mut self, input: &mut Input<'_>) {
        if let Some(i) = input.index(self.held.len()) {
            drop(self.held.swap_remove(i));
        }
    }

    /// The owner reads from or writes to the peer.
    fn local(&mut self, input: &mut Input<'_>) {
        let Ok(exposed) = self.rig.peer.expose(buffer(LEN, 3), Grant::PeerWrites) else { return };
        let Ok(Some(segment)) = self.rig.peer.segments(&exposed).map(|s| s.first().copied()) else {
            return;
        };
        let started = match input.byte() & 1 {
            0 => self.rig.owner.write(&segment, 0, buffer(LEN, 4)),
            _ => self.rig.owner.read(&segment, 0, buffer(LEN, 4)),
        };
        self.ops.extend(started);
    }

    fn take(&mut self, input: &mut Input<'_>) {
        let Some(i) = input.index(self.ops.len()) else { return };
        match self.rig.owner.take(self.ops.swap_remove(i)) {
            Ok(done) => assert_eq!(done.buffers.count(), 1),
            Err(e) => self.ops.push(e.op),
        }
    }

    /// A WC that says that something went well.
    fn success(&mut self, input: &mut Input<'_>) {
        let wr_id = self.wr_id(input);
        let invalidated = match input.byte() % 3 {
            0 => None,
            1 => Some(Rkey::from_bits(input.u32())),
            _ => self.key(input),
        };
        let byte_len = match input.byte() {
            255 => input.u32(),
            small => small.into(),
        };
        self.inject(Wc::Success(WcSuccess { wr_id, qp: self.qp(), byte_len, invalidated }));
    }

    fn error(&mut self, input: &mut Input<'_>) {
        let wr_id = self.wr_id(input);
        let status = WcStatus::from_raw(input.byte().into());
        let vendor_err = input.byte().into();
        self.inject(Wc::Error(WcError { wr_id, status, qp: self.qp(), vendor_err }));
    }

    /// Any cookie, or one of the connection of today.
    fn wr_id(&mut self, input: &mut Input<'_>) -> WrId {
        let choice = input.byte();
        if choice == 0 {
            return WrId(input.u64());
        }
        let epoch = u64::from(self.rig.owner.epoch().0.wrapping_sub(u32::from(choice >> 7)));
        let queue = 1 + u64::from(choice & 1);
        WrId((epoch & 0xffff) << 48 | queue << 40 | u64::from(input.byte()))
    }

    /// A key of this side, or one with another tag.
    fn key(&self, input: &mut Input<'_>) -> Option<Rkey> {
        let i = input.index(self.held.len())?;
        let segment = *self.rig.owner.segments(&self.held[i]).ok()?.first()?;
        let wrong = input.byte() & 1 == 1;
        Some(if wrong { segment.rkey.next_tag() } else { segment.rkey })
    }

    fn qp(&self) -> QpId {
        self.rig.owner.queue_pair().unwrap_or(QpId(0))
    }

    fn inject(&self, wc: Wc) {
        self.rig.plan.inject_wc(self.rig.owner.completion_queue(), wc);
    }

    fn event(&mut self, input: &mut Input<'_>) {
        let qp = self.qp();
        let event = match input.byte() % 6 {
            0 => AsyncEvent::PeerGone(qp),
            1 => AsyncEvent::QpFatal(qp),
            2 => AsyncEvent::CqOverrun(self.rig.owner.completion_queue()),
            3 => AsyncEvent::PortDown(input.byte()),
            4 => AsyncEvent::PortUp(input.byte()),
            _ => AsyncEvent::DeviceFatal,
        };
        self.lied_gone |= event == AsyncEvent::DeviceFatal;
        self.rig.plan.inject_event(qp, event);
    }

    fn hold_or_release(&mut self) {
        let qp = self.qp();
        self.rig.plan.hold_qp(qp);
        let _ = self.rig.owner.poll(self.rig.now);
        self.rig.plan.release_qp(qp);
    }

    fn reconnect(&mut self) {
        self.rig.take_down();
        let up = [self.rig.owner.reconnect().is_ok(), self.rig.peer.reconnect().is_ok()];
        if up == [true; 2] {
            let _ = memreg::connect_pair(&mut self.rig.owner, &mut self.rig.peer);
        }
    }

    fn drive(&mut self, input: &mut Input<'_>) {
        match input.byte() & 3 {
            0 => drop(self.rig.owner.poll(self.rig.now)),
            1 => drop(self.rig.node.fabric().step()),
            2 => self.rig.now = self.rig.now.after(input.byte().into()),
            _ => self.rig.settle(),
        }
    }

    /// From here on the device is honest.
    fn finish(mut self) {
        self.rig.plan.heal();
        self.rig.take_down();
        let owner = &mut self.rig.owner;
        for op in self.ops {
            let done = owner.take(op).expect("a read or write outlives its connection");
            assert_eq!(done.buffers.count(), 1);
        }
        let mut held = 0;
        for e in self.held {
            let state = owner.exposure_state(&e);
            match owner.reclaim(e) {
                Ok(back) => assert_eq!(back.count(), 1),
                Err(_) if state == Ok(ExposureState::Held) => held += 1,
                Err(e) => panic!("neither back nor held: {state:?}, {e}"),
            }
        }
        let leaked = owner.stats().bytes_leaked;
        assert!(leaked >= held * LEN as u64, "held and not counted");
        let audit = memreg::audit::audit(&owner.ledger().to_string()).unwrap();
        assert!(audit.violations.is_empty(), "{audit}");
        assert_eq!(owner.stats().exposures_now, held, "an exposure is left over");
        drop(self.rig.owner);
        let mapped = self.rig.node.counters().mapped_ranges;
        assert!(mapped == 0 || leaked > 0 || self.lied_gone, "{mapped} ranges stay mapped");
    }
}

/// Bytes of each buffer.
const LEN: usize = 64;
/// Operations of one input at most.
const OPS: usize = 200;
