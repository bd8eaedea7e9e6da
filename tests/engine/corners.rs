//! Corners where bytes were stranded, lost or given back early, or a connection stalled.

use super::rig::{Rig, is_inv, posts};
use memreg_core::DmaBuf;
use memreg_core::device::trace::Call;
use memreg_core::device::{Caps, Device, DeviceError, Verb, WcStatus, errno};
use memreg_core::memreg::{
    Control, Event, MapError, MemReg, Poison, RegionId, Reject, SegList, WrBatch,
};
use memreg_core::sizing::{Ask, Limits, SizeError};
use memreg_core::transport::error::Refusal;
use memreg_core::transport::{Buffers, NoReply, OpenOptions, Reply, State, Transport};
use memreg_core::types::{Grant, Tick};
use memreg_strategies::{Fmr, Frwr};

/// The flush WC of a LOCAL_INV is lost (CQ overrun, faulty device). The sentinel's WC must not
/// "retire it as a success": its key is alive in the PD and opens memory after the reconnect.
#[test]
fn lost_completion_of_a_flushed_inv_is_not_a_success() {
    let mut rig = Rig::frwr();
    let (e, old) = rig.exposed(4096, 1, Grant::PeerWrites);
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    let qp = rig.owner.queue_pair().unwrap();
    rig.node.qp_to_err(qp).unwrap();
    rig.plan.swallow_wcs(1, |wc| wc.status() == WcStatus::WrFlushErr);
    rig.settle();
    assert!(rig.is_down());
    let valid = rig.node.counters().fast_mrs_valid;
    let buf = rig.owner.reclaim(e).map(|b| b.into_first().unwrap());
    let reached = buf.ok().map(|buf| {
        rig.peer.disconnect();
        rig.settle();
        rig.owner.reconnect().unwrap();
        rig.peer.reconnect().unwrap();
        memreg_core::drive::connect_pair(&mut rig.owner, &mut rig.peer).unwrap();
        // The same bytes, now for reading only; the peer uses the key that is said to be dead.
        let e = rig.owner.expose(buf, Grant::PeerReads).unwrap();
        rig.owner.flush().unwrap();
        rig.settle();
        let forged = rig.forged(&old);
        let status = rig.probe(&forged);
        drop(e);
        status
    });
    assert_ne!(reached, Some(WcStatus::Success), "the peer wrote with a key that was 'dead'");
    assert_eq!(valid, 0, "bytes came back while their key was valid");
}

/// An honest frwr that grants and ends a region inside one `map`.
struct EndsInMap(Frwr, bool);

impl MemReg for EndsInMap {
    fn name(&self) -> &'static str {
        "ends-in-map"
    }
    fn check(&self, caps: &Caps) -> Result<(), Reject> {
        self.0.check(caps)
    }
    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
        self.0.open(caps, ask)
    }
    fn fill(&mut self, ctl: &mut dyn Control, n: usize) -> Result<(), DeviceError> {
        self.0.fill(ctl, n)
    }
    fn map(
        &mut self,
        ctl: &mut dyn Control,
        segs: &SegList<'_>,
        out: &mut WrBatch,
    ) -> Result<(), MapError> {
        if !self.1 {
            return self.0.map(ctl, segs, out);
        }
        let region = ctl.reg_mr(0..segs.total())?;
        ctl.dereg(region)?;
        Ok(())
    }
    fn unmap(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        out: &mut WrBatch,
    ) -> Result<(), Poison> {
        self.0.unmap(ctl, live, out)
    }
    fn on_event(&mut self, region: RegionId, event: Event) -> Result<(), Poison> {
        self.0.on_event(region, event)
    }
    fn on_events(&mut self, regions: &[RegionId], event: Event) -> Result<(), Poison> {
        self.0.on_events(regions, event)
    }
    fn recover(&mut self, ctl: &mut dyn Control, budget: usize) -> Result<usize, DeviceError> {
        self.0.recover(ctl, budget)
    }
    fn on_drained(&mut self) {
        self.0.on_drained();
    }
}

/// The region covers the bytes and is gone: nothing ever fences the exposure, not even a drain.
#[test]
fn region_ended_in_its_own_map_does_not_strand_the_bytes() {
    let mut rig = Rig::new(EndsInMap(Frwr::default(), true), Caps::default(), Ask::default());
    let e = match rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerReads) {
        Err(refused) => return assert_eq!(refused.buffers.count(), 1),
        Ok(e) => e,
    };
    println!("segments told to the peer: {}", rig.owner.segments(&e).unwrap().len());
    let _ = rig.owner.flush();
    let _ = rig.owner.revoke(&e, NoReply::Unmarked);
    let _ = rig.owner.cancel(&e);
    rig.settle();
    let e = match rig.owner.reclaim(e) {
        Ok(_) => return,
        Err(why) => {
            println!("after revoke and cancel: {why}");
            why.exposed
        }
    };
    rig.owner.disconnect();
    rig.settle();
    assert!(rig.is_down());
    let back = rig.owner.reclaim(e).map_err(|e| e.why);
    assert!(back.is_ok(), "down, no key open, and the bytes are held for ever: {back:?}");
}

/// Unsignaled WRs that nothing will ever retire, and an operation longer than
/// `wr_per_request`: "poll, then try again" is for ever.
#[test]
fn rule_9_queue_full_does_not_last_for_ever() {
    let mut rig = Rig::frwr_sq16();
    for _ in 0..5 {
        rig.owner.send(b"m", Reply::InvalidatesNothing).unwrap();
    }
    rig.settle();
    // Six regions: 12 slots of 16 and the sentinel. It fits an idle queue.
    let mut list: Buffers = (0..6).map(|_| (DmaBuf::new(64).unwrap(), 1..3)).collect();
    for _ in 0..100 {
        match rig.owner.expose(list, Grant::PeerReads) {
            Ok(_) => return,
            Err(e) => {
                if matches!(e.why, Refusal::NeverFits { .. }) {
                    return; // at least it says so
                }
                assert!(matches!(e.why, Refusal::QueueFull { .. }), "{e}");
                list = e.buffers;
            }
        }
        rig.settle();
    }
    panic!("stalled with {:?} on an idle connection", rig.owner.send_queue());
}

/// The same for a write of several WRs, where `wr_per_request` is 1 (fmr).
#[test]
fn rule_9_queue_full_does_not_last_for_ever_for_writes() {
    let caps = Caps { max_sge: 1, max_sge_rd: 1, ..Caps::default() };
    let mut rig = Rig::new(Fmr::default(), caps, Ask { credits: 15, ..Ask::default() });
    assert_eq!(rig.owner.send_queue().1, 16);
    let theirs = rig.peer.expose(DmaBuf::new(160).unwrap(), Grant::PeerWrites).unwrap();
    let seg = rig.peer.segments(&theirs).unwrap()[0];
    for _ in 0..6 {
        rig.owner.send(b"m", Reply::InvalidatesNothing).unwrap();
    }
    rig.settle();
    let mut list: Buffers = (0..10).map(|_| (DmaBuf::new(8).unwrap(), 0..8)).collect();
    for _ in 0..100 {
        match rig.owner.write(&seg, 0, list) {
            Ok(_) => return,
            Err(e) => {
                if matches!(e.why, Refusal::NeverFits { .. }) {
                    return; // at least it says so
                }
                assert!(matches!(e.why, Refusal::QueueFull { .. }), "{e}");
                list = e.buffers;
            }
        }
        rig.settle();
    }
    panic!("stalled with {:?} on an idle connection", rig.owner.send_queue());
}

/// The limit of a drain is counted from the last poll, which may be long ago.
#[test]
fn drain_limit_starts_when_the_drain_is_first_driven() {
    let mut rig = Rig::frwr();
    let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
    // Nothing to do for ten seconds, then the program disconnects.
    rig.owner.disconnect();
    rig.now = Tick(10_000_000_000);
    rig.owner.poll(rig.now).unwrap();
    assert_eq!(rig.owner.state(), &State::Draining, "its sentinel has had no time at all");
    rig.settle();
    assert_eq!(rig.owner.stats().drains_forced, 0);
    rig.owner.reclaim(e).unwrap();
}

/// One EBUSY for the local MR of a dropped buffer leaks its memory, uncounted and unretried.
#[test]
fn local_mr_that_is_busy_once_is_tried_again_or_counted() {
    let mut rig = Rig::frwr();
    let theirs = rig.peer.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    let seg = rig.peer.segments(&theirs).unwrap()[0];
    let before = rig.node.counters().mrs;
    let op = rig.owner.write(&seg, 0, DmaBuf::new(64).unwrap()).unwrap();
    rig.settle();
    rig.plan.fail(Verb::DeregMr, 1, errno::EBUSY);
    drop(rig.owner.take(op).unwrap());
    rig.settle();
    rig.owner.poll(rig.now).unwrap();
    let ended = rig.node.counters().mrs == before;
    let counted = rig.owner.stats().bytes_leaked == 64;
    assert!(ended || counted, "memory given up, and no counter says so");
}

/// A write that is posted in part takes the buffers away for good.
#[test]
fn partly_posted_write_gives_its_buffers_back() {
    let caps = Caps { max_sge: 1, max_sge_rd: 1, ..Caps::default() };
    let mut rig = Rig::new(Frwr::default(), caps, Ask::default());
    let theirs = rig.peer.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    let seg = rig.peer.segments(&theirs).unwrap()[0];
    let list: Buffers = (0..3).map(|_| (DmaBuf::new(8).unwrap(), 0..8)).collect();
    rig.plan.refuse_post(1, 1, errno::EINVAL);
    let back = match rig.owner.write(&seg, 0, list) {
        Err(e) => {
            rig.settle();
            e.buffers.count()
        }
        Ok(op) => {
            rig.settle();
            rig.owner.take(op).unwrap().buffers.count()
        }
    };
    let leaked = rig.owner.stats().bytes_leaked;
    assert!(back == 3 || leaked == 24, "{back} of 3 buffers back, {leaked} bytes counted");
}

/// The device is removed while the connection is down.
#[test]
fn b84_device_removed_while_down_loses_nothing() {
    let mut rig = Rig::frwr();
    let (e, _) = rig.exposed(64, 7, Grant::PeerReads);
    rig.plan.fail(Verb::DeregMr, 1, errno::EBUSY);
    rig.owner.disconnect();
    rig.settle();
    assert!(rig.is_down());
    let refused = rig.owner.reclaim(e).unwrap_err();
    rig.node.unplug();
    let polled = rig.owner.poll(rig.now).map(|_| ());
    let recovered = rig.owner.recover(usize::MAX);
    println!("poll: {polled:?}, recover: {recovered:?}");
    let back = rig.owner.reclaim(refused.exposed).map_err(|e| e.why);
    assert!(back.is_ok(), "the device is gone, the bytes never come back: {back:?}");
}

fn windows() -> Caps {
    Caps { max_fast_reg_page_list_len: 0, mem_window_type_2b: true, max_mw: 64, ..Caps::default() }
}

/// Windows of a QP that failed half-way are kept and used on the next QP.
#[test]
fn windows_of_a_failed_reconnect_do_not_outlive_its_queue_pair() {
    for busy in [false, true] {
        windows_of_a_failed_reconnect(busy);
    }
}

/// If `busy`, neither the windows nor the QP end when they are first asked to.
fn windows_of_a_failed_reconnect(busy: bool) {
    let mut rig = Rig::new(Frwr::default(), windows(), Ask::default());
    rig.owner.disconnect();
    rig.peer.disconnect();
    rig.settle();
    assert_eq!(rig.node.counters().mws, 0);
    rig.trace.take();
    rig.plan.fail_nth(Verb::AllocMw, 3, 1, errno::ENOMEM);
    if busy {
        rig.plan.fail(Verb::DeallocMw, 2, errno::EBUSY);
        rig.plan.fail(Verb::DestroyQp, 1, errno::EBUSY);
    }
    rig.owner.reconnect().unwrap_err();
    let c = rig.node.counters();
    println!("after the failed reconnect: {} QPs, {} windows", c.qps, c.mws);
    rig.owner.reconnect().unwrap();
    let mut qps = 0;
    let mut made = std::collections::BTreeMap::new();
    for call in rig.trace.take() {
        match call {
            Call::CreateQp(_) => qps += 1,
            Call::AllocMw(mw) => drop(made.insert(mw, qps)),
            Call::DeallocMw(mw) => drop(made.remove(&mw)),
            _ => {}
        }
    }
    assert!(made.values().all(|&q| q == qps), "windows made before QP {qps}: {made:?}");
}

/// A strategy written without care: an arena although nobody trusts the peer.
struct Untrusted(memreg_strategies::Physical);

impl MemReg for Untrusted {
    fn name(&self) -> &'static str {
        "untrusted"
    }
    fn check(&self, caps: &Caps) -> Result<(), Reject> {
        self.0.check(caps)
    }
    fn open(&mut self, caps: &Caps, ask: &Ask) -> Result<Limits, SizeError> {
        self.0.open(caps, ask)
    }
    fn fill(&mut self, ctl: &mut dyn Control, n: usize) -> Result<(), DeviceError> {
        self.0.fill(ctl, n)
    }
    fn map(
        &mut self,
        ctl: &mut dyn Control,
        segs: &SegList<'_>,
        out: &mut WrBatch,
    ) -> Result<(), MapError> {
        self.0.map(ctl, segs, out)
    }
    fn unmap(
        &mut self,
        ctl: &mut dyn Control,
        live: &[RegionId],
        out: &mut WrBatch,
    ) -> Result<(), Poison> {
        self.0.unmap(ctl, live, out)
    }
    fn on_event(&mut self, region: RegionId, event: Event) -> Result<(), Poison> {
        self.0.on_event(region, event)
    }
    fn on_events(&mut self, regions: &[RegionId], event: Event) -> Result<(), Poison> {
        self.0.on_events(regions, event)
    }
    fn recover(&mut self, ctl: &mut dyn Control, budget: usize) -> Result<usize, DeviceError> {
        self.0.recover(ctl, budget)
    }
    fn on_drained(&mut self) {
        self.0.on_drained();
    }
}

/// `Control::bounce` "needs the caller's danger_trust_peer"; core never asks for it.
#[test]
fn bounce_arena_needs_the_callers_word() {
    let node = memreg_core::device::sim::Fabric::new(1).add_node("n", Caps::default());
    let strategy = Untrusted(memreg_strategies::Physical::new(true));
    let options = OpenOptions::default();
    assert!(!options.ask.danger_trust_peer);
    let opened = Transport::open(node.clone(), strategy, &options);
    assert!(opened.is_err(), "a key over {} bytes for ever", node.counters().mapped_bytes);
}

/// A length that no system has is an error, not a panic (and without overflow checks not a
/// slice over the whole address space: see `dmabuf_release.sh`).
#[test]
fn absurd_length_is_refused() {
    for len in [usize::MAX, usize::MAX - 6, isize::MAX as usize + 1] {
        let made = std::panic::catch_unwind(|| DmaBuf::new(len).map(|b| b.len()));
        assert!(matches!(made, Ok(Err(_))), "{len:#x}: {made:?}");
    }
}

/// One mapping that the device keeps takes the exposure's other buffers with it; a write that
/// meets it says Ok and hands back fewer buffers.
#[test]
fn one_held_mapping_does_not_take_the_other_buffers() {
    let mut rig = Rig::frwr();
    let list: Buffers = (0..2).map(|_| (DmaBuf::new(64).unwrap(), 1..3)).collect();
    let e = rig.owner.expose(list, Grant::PeerWrites).unwrap();
    rig.owner.flush().unwrap();
    rig.owner.revoke(&e, NoReply::Unmarked).unwrap();
    rig.plan.fail(Verb::DmaUnmap, 1, errno::EINVAL);
    rig.settle();
    assert_eq!(rig.owner.stats().bytes_leaked, 64);
    let back = rig.owner.reclaim(e).map(|b| b.count()).map_err(|e| e.why);
    assert_eq!(back, Ok(1), "64 bytes are lost and counted, the other 64 lost and not");
}

/// Two messages may be answered by an invalidation of the same key; the first answer is taken
/// for both, and the LOCAL_INV is posted while the second is out (rule 5).
#[test]
fn rule_5_one_token_does_not_answer_two_messages() {
    let mut rig = Rig::frwr();
    let mut bytes = vec![];
    let e = rig.owner.expose(DmaBuf::new(64).unwrap(), Grant::PeerWrites).unwrap();
    rig.owner.send(b"one", Reply::MayInvalidate(&[&e])).unwrap();
    rig.owner.send(b"two", Reply::MayInvalidate(&[&e])).unwrap();
    rig.settle();
    rig.peer.send(b"answer to one", Reply::InvalidatesNothing).unwrap();
    rig.settle();
    let token = rig.owner.recv(&mut bytes).unwrap().token;
    rig.trace.take();
    let answer = rig.owner.revoke(&e, NoReply::Arrived(&token));
    let invs = posts(&rig.trace.take()).concat().iter().filter(|w| is_inv(w)).count();
    assert_eq!(invs, 0, "posted while the reply to 'two' may still invalidate: {answer:?}");
}

/// A drain whose QP will not go counts as forced at each poll.
#[test]
fn forced_drain_is_counted_once() {
    let mut rig = Rig::frwr();
    rig.plan.swallow_sends_in_error(true);
    rig.plan.fail(Verb::DestroyQp, 5, errno::EBUSY);
    rig.owner.disconnect();
    rig.settle();
    rig.now = Tick(6_000_000_000);
    for _ in 0..7 {
        rig.owner.poll(rig.now).unwrap();
    }
    assert!(rig.is_down());
    assert_eq!(rig.owner.stats().drains_forced, 1);
}

/// A message of the peer that was received before the connection went down is not an attack.
#[test]
fn late_poll_of_a_valid_invalidation_after_cancel_accuses_nobody() {
    let mut rig = Rig::frwr();
    let (e, s) = rig.exposed(64, 0, Grant::PeerWrites);
    rig.peer.send_with_inv(b"reply", &s).unwrap();
    // The device has carried it out; the owner has not polled yet and gives up waiting.
    rig.node.fabric().run(100);
    rig.owner.cancel(&e).unwrap();
    rig.settle();
    assert_eq!(rig.owner.stats().remote_invalidations_bad, 0, "{:?}", rig.owner.state());
}

/// A QP that cannot be moved to ERR is still connected: the sentinel is a message to the peer.
#[test]
fn sentinel_never_reaches_the_peer_as_a_message() {
    let mut rig = Rig::frwr();
    rig.plan.fail(Verb::ModifyQp, 1, errno::EINVAL);
    rig.owner.disconnect();
    rig.settle();
    assert!(rig.is_down());
    assert_eq!(rig.peer.messages_waiting(), 0, "the peer got an empty message that nobody sent");
}

/// The arena's one key has both rights, so the bytes of a buffer that the peer may only write
/// can be read, and those of an operation that is over too (MAP-16).
#[test]
fn map_16_bounce_arena_grants_one_direction() {
    let ask = Ask { danger_trust_peer: true, credits: 4, ..Ask::default() };
    let mut rig = Rig::new(memreg_strategies::Physical::new(true), Caps::default(), ask);
    let (e, s) = rig.exposed(64, 0x77, Grant::PeerWrites);
    let forged = memreg_core::Segment { grant: Grant::PeerReads, ..s };
    let read = rig.peer_read(&forged, 0, 64);
    drop(e);
    assert!(read.is_err(), "secret read through a write-only exposure: {:?}", read.map(|b| b[0]));
}

/// A device that says "full" with nothing outstanding: the abandoned exposure is tried for
/// ever, stays open to the peer, and `settle` never returns (each refused post counts as work).
#[test]
fn rule_7_a_full_queue_that_is_empty_ends_the_connection() {
    let mut rig = Rig::frwr();
    let (e, _) = rig.exposed(64, 0, Grant::PeerWrites);
    rig.owner.send(b"m", Reply::InvalidatesNothing).unwrap();
    rig.settle();
    drop(e);
    rig.plan.fail(Verb::PostSend, usize::MAX, errno::ENOMEM);
    let mut refused = 0;
    for _ in 0..1000 {
        let p = rig.owner.poll(rig.now).unwrap();
        refused += p.posts;
        if rig.is_down() {
            return;
        }
    }
    panic!(
        "{:?} after 1000 polls, {refused} refused posts reported as progress",
        rig.owner.state()
    );
}
