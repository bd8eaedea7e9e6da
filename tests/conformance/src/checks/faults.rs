//! Verbs that fail: buffers come back or are kept and counted, and the connection recovers.

use crate::pair::{DRAIN_LIMIT_NS, Pair, unaligned, zeroed};
use crate::subject::Subject;
use crate::verdict::{Because, Stop, Verdict, ensure, ensure_eq, fail, skip};
use memreg_core::device::fault::FaultPlan;
use memreg_core::device::{Device, Verb, errno};
use memreg_core::transport::error::{ReclaimRefusal, Refusal};
use memreg_core::transport::{Buffers, ExposureState, NoReply, Reply, State};
use memreg_core::{Disposition, Exposed, Grant, MemReg};

/// The device refuses to map a buffer: everything comes back, a thousand times.
pub(super) fn map_10_h_25_dma_map_failure_gives_all_back<S: MemReg>(
    subject: &Subject<S>,
) -> Verdict {
    let mut pair = subject.pair()?;
    if !pair.revokes() {
        return skip("limits.arena_bytes > 0: buffers are copied, never mapped");
    }
    let before = (pair.node().mrs, pair.node().mapped_ranges, pair.node().dereg_mr_calls);
    for _ in 0..1000 {
        pair.plan.fail(Verb::DmaMap, 1, errno::ENOMEM);
        let parts: Buffers = unaligned()?.into_iter().collect();
        pair.books.lent += 3;
        let refused = pair.owner.expose(parts, Grant::PeerWrites);
        let e = refused.err().because("the failure of dma_map is not reported")?;
        pair.books.returned += e.buffers.count();
        let device = matches!(&e.why, Refusal::Device(d) if d.verb == Verb::DmaMap);
        ensure!(device, "refused with {:?}", e.why);
    }
    let after = (pair.node().mrs, pair.node().mapped_ranges, pair.node().dereg_mr_calls);
    ensure_eq!(after, before, "MRs, mapped ranges and deregistrations");
    ensure_eq!(*pair.owner.state(), State::Up, "state");
    pair.cycle(1, 5000)?;
    pair.close()
}

/// The step of an exposure's life in which something fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Expose,
    Send,
    Revoke,
    Cancel,
    Disconnect,
    Reconnect,
}

const PHASES: [Phase; 6] =
    [Phase::Expose, Phase::Send, Phase::Revoke, Phase::Cancel, Phase::Disconnect, Phase::Reconnect];

/// Each verb fails once or three times in each step.
pub(super) fn one_failing_verb_loses_nothing<S: MemReg>(subject: &Subject<S>) -> Verdict {
    for (verb, errno) in [
        (Verb::DmaMap, errno::ENOMEM),
        (Verb::RegMr, errno::ENOMEM),
        (Verb::AllocMr, errno::ENOMEM),
        (Verb::DeregMr, errno::EBUSY),
        (Verb::PostSend, errno::ENOMEM),
        (Verb::PostSend, errno::EINVAL),
        (Verb::PostRecv, errno::ENOMEM),
        (Verb::PollCq, errno::EIO),
        (Verb::ModifyQp, errno::EINVAL),
        (Verb::CreateQp, errno::ENOMEM),
        (Verb::DestroyQp, errno::EBUSY),
    ] {
        for phase in PHASES {
            for times in [1, 3] {
                let arm = |plan: &FaultPlan| plan.fail(verb, times, errno);
                let label = format!("{verb} fails {times}x with {errno} in {phase:?}");
                live_through(subject, phase, &arm, &label)?;
            }
        }
    }
    Ok(())
}

/// Posts are refused after a prefix of every length in each step.
pub(super) fn one_refused_post_loses_nothing<S: MemReg>(subject: &Subject<S>) -> Verdict {
    for errno in [errno::ENOMEM, errno::EINVAL] {
        for accept in 0..4 {
            for nth in 1..3 {
                for phase in PHASES {
                    let arm = |plan: &FaultPlan| plan.refuse_post(nth, accept, errno);
                    let label =
                        format!("post {nth} refused after {accept} with {errno} in {phase:?}");
                    live_through(subject, phase, &arm, &label)?;
                }
            }
        }
    }
    Ok(())
}

/// One exposure of three parts through all its steps, with a fault in one of them. Afterwards all
/// buffers are back, and the pair works.
fn live_through<S: MemReg>(
    subject: &Subject<S>,
    phase: Phase,
    arm: &dyn Fn(&FaultPlan),
    label: &str,
) -> Verdict {
    let run = || {
        let mut pair = subject.pair()?;
        let arm_in = |pair: &Pair<S>, now: Phase| {
            if now == phase {
                arm(&pair.plan);
            }
        };
        arm_in(&pair, Phase::Expose);
        let exposed = try_expose(&mut pair);
        arm_in(&pair, Phase::Send);
        // Whatever is refused here is put right below; what counts is where the bytes are.
        let _ = pair.owner.send(b"hello", Reply::InvalidatesNothing);
        pair.drive_some();
        if let Some(exposed) = &exposed {
            arm_in(&pair, Phase::Cancel);
            if phase == Phase::Cancel {
                let _ = pair.owner.cancel(exposed);
            }
            arm_in(&pair, Phase::Revoke);
            let _ = pair.owner.revoke(exposed, NoReply::Unmarked);
            pair.drive_some();
        }
        if matches!(phase, Phase::Disconnect | Phase::Reconnect) {
            arm_in(&pair, Phase::Disconnect);
            pair.owner.disconnect();
            pair.drive_some();
            arm_in(&pair, Phase::Reconnect);
            let _ = pair.owner.reconnect();
        }
        pair.plan.heal();
        bring_back(&mut pair, exposed)?;
        pair.cycle(3, 5000)?;
        pair.close()
    };
    run().map_err(|stop| match stop {
        Stop::Fail(what) => Stop::Fail(format!("{label}: {what}")),
        skip @ Stop::Skip(_) => skip,
    })
}

fn try_expose<S: MemReg>(pair: &mut Pair<S>) -> Option<Exposed> {
    let parts: Buffers = unaligned().ok()?.into_iter().collect();
    pair.books.lent += parts.count();
    match pair.owner.expose(parts, Grant::PeerWrites) {
        Ok(exposed) => Some(exposed),
        Err(e) => {
            pair.books.returned += e.buffers.count();
            // A region that would not end keeps the bytes; the transport frees them when it does.
            pair.books.let_go += 3 - e.buffers.count();
            None
        }
    }
}

/// With nothing failing any more: fences, reconnects if it must, and reclaims.
fn bring_back<S: MemReg>(pair: &mut Pair<S>, exposed: Option<Exposed>) -> Verdict {
    pair.settle()?;
    if let Some(exposed) = &exposed
        && *pair.owner.state() == State::Up
        && pair.state(exposed)? != ExposureState::Fenced
    {
        pair.owner.revoke(exposed, NoReply::Unmarked).because("revoke after the fault")?;
        pair.settle()?;
    }
    if *pair.owner.state() != State::Up || *pair.peer.state() != State::Up {
        pair.mend()?;
    }
    if let Some(exposed) = exposed {
        drop(pair.reclaim(exposed)?);
    }
    // The message of the run, if it arrived.
    let mut bytes = vec![];
    while pair.peer.recv(&mut bytes).is_some() {}
    Ok(())
}

/// Messages that are refused for want of a slot cost nothing, however many: each can go again.
pub(super) fn refused_messages_use_nothing_up<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    // Too long to go inline, so that it needs a slot of registered memory.
    let long = vec![9; pair.owner.caps().max_inline_data as usize + 1];
    let exposed = pair.expose(zeroed(100)?, Grant::PeerWrites)?;
    let before = pair.state(&exposed)?;
    for _ in 0..2 * pair.owner.limits().max_send_wr {
        pair.plan.fail(Verb::PostSend, 1, errno::ENOMEM);
        let refused = pair.owner.send(&long, Reply::InvalidatesNothing);
        let retry = refused.as_ref().err().map(Refusal::disposition);
        ensure_eq!(retry, Some(Disposition::Retry), "disposition of {refused:?}");
    }
    ensure_eq!(pair.state(&exposed)?, before, "state of what was staged");
    pair.owner.send(&long, Reply::InvalidatesNothing).because("the same message at last")?;
    pair.settle()?;
    let (_, bytes) = pair.peer_gets()?;
    ensure!(bytes == long, "another message arrived");
    ensure_eq!(pair.peer.messages_waiting(), 0, "more messages at the peer");
    drop(pair.fence(exposed)?);
    pair.close()
}

/// The device takes two of the LOCAL_INVs and refuses the rest: the revoke ends all the same.
pub(super) fn d_01_h_22_h_24_partial_revoke_cannot_hang<S: MemReg>(
    subject: &Subject<S>,
) -> Verdict {
    let mut pair = subject.pair()?;
    if !pair.by_wr() {
        return skip("limits.wr_per_request = 1: it revokes by verb");
    }
    for accept in 0..3 {
        let parts: Buffers = unaligned()?.into_iter().collect();
        let (exposed, segments) = pair.expose_told(parts, Grant::PeerWrites)?;
        pair.plan.refuse_post(1, accept, errno::EINVAL);
        let refused = pair.owner.revoke(&exposed, NoReply::Unmarked);
        let down = matches!(refused, Err(Refusal::Down(_)));
        ensure!(down, "{accept} of {} accepted: {refused:?}", segments.len());
        pair.wait_down()?;
        drop(pair.reclaim(exposed)?);
        pair.reconnect()?;
        let last = *segments.last().because("no segment")?;
        pair.must_refuse(last, "the key whose LOCAL_INV was refused")?;
        pair.reconnect()?;
    }
    ensure_eq!(pair.owner.stats().drains_forced, 0, "drains that destroyed the QP");
    pair.cycle(1, 100)?;
    pair.close()
}

/// The device swallows the sentinel: the drain ends at its limit by destroying the QP.
pub(super) fn b85_swallowed_sentinel_ends_at_its_limit<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let (exposed, _) = pair.expose_told(zeroed(5000)?, Grant::PeerWrites)?;
    pair.plan.swallow_sends_in_error(true);
    pair.owner.disconnect();
    pair.settle()?; // the limit counts from the first poll
    pair.now = pair.now.after(DRAIN_LIMIT_NS - 1);
    pair.settle()?;
    ensure_eq!(*pair.owner.state(), State::Draining, "state before the limit");
    let exposed = match pair.owner.reclaim(exposed) {
        Ok(_) => return fail("bytes given back while draining"),
        Err(e) => e.exposed,
    };
    pair.now = pair.now.after(1);
    pair.wait_down()?;
    ensure_eq!(pair.owner.stats().drains_forced, 1, "drains that destroyed the QP");
    drop(pair.reclaim(exposed)?);
    pair.plan.heal();
    pair.reconnect()?;
    pair.cycle(1, 5000)?;
    pair.close()
}

/// The sentinel's post is refused: the QP is destroyed at once.
pub(super) fn rule_8_refused_sentinel_destroys_the_qp<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    let (exposed, _) = pair.expose_told(zeroed(5000)?, Grant::PeerWrites)?;
    pair.plan.fail(Verb::PostSend, 1, errno::ENOMEM);
    pair.owner.disconnect();
    let down = matches!(pair.owner.state(), State::Down(_));
    ensure!(down, "state after disconnect: {:?}", pair.owner.state());
    ensure_eq!(pair.owner.stats().drains_forced, 1, "drains that destroyed the QP");
    drop(pair.reclaim(exposed)?);
    pair.reconnect()?;
    pair.cycle(1, 5000)?;
    pair.close()
}

/// Completions that come twice are counted, and fence nothing that is exposed meanwhile.
pub(super) fn duplicate_completions_fence_nothing<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    for round in 0..50 {
        let (exposed, _) = pair.expose_told(zeroed(5000)?, Grant::PeerWrites)?;
        pair.owner.revoke(&exposed, NoReply::Unmarked).because("revoke")?;
        pair.plan.duplicate_next_wc();
        while pair.owner.device().step() {}
        pair.owner.poll(pair.now).because("poll")?;
        drop(pair.reclaim(exposed)?);
        let next = pair.expose(zeroed(5000)?, Grant::PeerWrites)?;
        let segments = pair.tell(&next, Reply::InvalidatesNothing)?;
        let state = pair.state(&next)?;
        ensure_eq!(state, ExposureState::Exposed, "state of the next exposure in round {round}");
        pair.write_all(&segments, &[1; 5000])?;
        drop(pair.fence(next)?);
    }
    if pair.by_wr() {
        let stale = pair.owner.stats().wcs_stale;
        ensure!(stale >= 50, "{stale} stale completions counted, 50 were made");
    }
    pair.close()
}

/// Deregistration fails once, after a handle was dropped: the memory stays until it succeeds, and
/// the failure costs the connection.
pub(super) fn b68_failed_dereg_keeps_the_memory<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    if !pair.revokes() {
        return skip("limits.arena_bytes > 0: nothing is deregistered for an exposure");
    }
    let mapped = pair.node().mapped_ranges;
    let exposed = pair.expose(zeroed(5000)?, Grant::PeerWrites)?;
    // With a reply out only deregistration can end the access.
    let segments = pair.tell(&exposed, Reply::MayInvalidate(&[&exposed]))?;
    let windows = pair.owner.limits().mechanism == "window";
    let ends = if windows { Verb::DeallocMw } else { Verb::DeregMr };
    pair.plan.fail(ends, 1, errno::EBUSY);
    pair.books.let_go += 1;
    drop(exposed);
    pair.owner.poll(pair.now).because("poll")?;
    ensure_eq!(pair.node().mapped_ranges, mapped + 1, "ranges mapped after the failure");
    ensure_eq!(*pair.owner.state(), State::Draining, "state after the failure");
    ensure_eq!(pair.owner.stats().poisons, 1, "poisoned connections counted");
    pair.wait_down()?;
    ensure_eq!(pair.node().mapped_ranges, mapped, "ranges mapped once it has succeeded");
    pair.reconnect()?;
    let last = *segments.last().because("no segment")?;
    pair.must_refuse(last, "the key whose MR would not end at first")?;
    pair.close()
}

/// The device does not give a mapping back: the bytes are kept from everybody, and counted.
pub(super) fn kept_mapping_is_counted<S: MemReg>(subject: &Subject<S>) -> Verdict {
    let mut pair = subject.pair()?;
    if !pair.revokes() {
        return skip("limits.arena_bytes > 0: buffers are copied, never mapped");
    }
    let (exposed, _) = pair.expose_told(zeroed(5000)?, Grant::PeerWrites)?;
    pair.plan.fail(Verb::DmaUnmap, 1, errno::EBUSY);
    pair.owner.revoke(&exposed, NoReply::Unmarked).because("revoke")?;
    pair.settle()?;
    ensure_eq!(pair.state(&exposed)?, ExposureState::Held, "state");
    match pair.owner.reclaim(exposed) {
        Ok(_) => return fail("bytes given back that the device keeps"),
        Err(e) => ensure_eq!(e.why, ReclaimRefusal::Held, "refusal of reclaim"),
    }
    pair.settle()?;
    ensure_eq!(pair.owner.stats().bytes_leaked, 5000, "bytes leaked");
    ensure_eq!(pair.owner.stats().exposures_now, 0, "exposures after the handle was dropped");
    pair.cycle(1, 5000)?;
    ensure_eq!(*pair.owner.state(), State::Up, "state");
    Ok(())
}
