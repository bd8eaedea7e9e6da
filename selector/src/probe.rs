//! The probe: what a device says of itself, proven by doing.
//!
//! A capability bit is a promise (B17), and some devices do not keep what they promise: a window
//! whose bounds are not checked, a page list that is refused. So every strategy is run on the
//! device itself, on connections between two QPs of it: expose, transfer, compare, revoke, and
//! then try the old key.
//!
//! - `pair`: the two ends of one such connection
//! - `steps`: what is tried on them
//! - `shared`: whether connections may share a protection domain

mod pair;
mod shared;
mod steps;

pub use shared::{NotQpBound, prove_qp_bound_keys};

use crate::Tried;
use memreg_core::device::{Caps, Device};
use memreg_core::sizing::{Ask, Limits};
use memreg_core::types::Grant;
use memreg_strategies::{BuildOptions, Registry, Strategy};
use std::fmt;

/// What a device says of itself, and what each known strategy has shown on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProbeReport {
    /// As reported by the device.
    pub attributes: Caps,
    /// Every known strategy, by name.
    pub strategies: Vec<StrategyProof>,
}

/// What one strategy has shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StrategyProof {
    /// Its name.
    pub name: &'static str,
    /// What its regions are made of; `None` if it did not come to that.
    pub mechanism: Option<&'static str>,
    /// Entries of the longest page list that the device made, of those that the workload can use;
    /// `None` for a strategy without page lists.
    pub page_list_depth: Option<u32>,
    /// What was tried, in order. After a step that [must](Step::is_required) hold and does not,
    /// nothing more is tried.
    pub proofs: Vec<Proof>,
}

/// One thing that was tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proof {
    /// What.
    pub step: Step,
    /// What came of it.
    pub outcome: Outcome,
}

/// What is tried.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Step {
    /// The reported attributes suffice, also for the sizes asked.
    Attributes,
    /// The device makes an MR with a page list as long as it says.
    PageList,
    /// Both ends open and connect.
    Open,
    /// A peer reads, or writes, what it was granted, and every byte is right.
    Transfer(Grant),
    /// The access is taken back, and the owner's bytes are as they should be.
    Revoke(Grant),
    /// The peer is refused with the key that was taken back.
    OldKey(Grant),
    /// One key describes segments that do not join at page boundaries.
    Gaps,
    /// A window's key does not reach beyond the window.
    Bounds,
    /// A window's key does not work through another QP of the same protection domain.
    OtherQp,
}

/// What came of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It holds: it was seen.
    Proven,
    /// It was not seen to hold; this is what happened.
    NotProven(String),
    /// It was not tried; this is why.
    Skipped(&'static str),
}

/// Runs every known strategy on the device and reports what it has seen. Errors are part of the
/// report.
///
/// # Shape
/// Makes its own PDs, CQs and QPs and ends them; connections of others on the device go on.
/// Nothing is left behind, unless the device refuses to end an object.
/// # Cost
/// A few connections, kilobytes of transfers and some hundred verbs per strategy. Waits by polling,
/// a bounded number of times.
pub fn probe<D: Device + Clone>(
    device: &D,
    registry: &Registry,
    ask: &Ask,
    options: &BuildOptions,
) -> ProbeReport {
    probe_telling(device, registry, ask, options, &mut |_| ())
}

/// As [`probe`], and tells the name of each strategy before it is tried, for those who wait.
pub fn probe_telling<D: Device + Clone>(
    device: &D,
    registry: &Registry,
    ask: &Ask,
    options: &BuildOptions,
    next: &mut dyn FnMut(&'static str),
) -> ProbeReport {
    let agreed = options.danger_trust_peer && ask.danger_trust_peer;
    let bench = Bench {
        device,
        registry,
        ask: Ask { danger_trust_peer: agreed, ..*ask },
        options: BuildOptions { danger_trust_peer: agreed, ..options.clone() },
        caps: device.caps(),
    };
    let prove = |name| {
        next(name);
        steps::prove(&bench, name)
    };
    let strategies = registry.names().map(prove).collect();
    ProbeReport { attributes: bench.caps, strategies }
}

impl ProbeReport {
    /// One strategy's part.
    #[must_use]
    pub fn strategy(&self, name: &str) -> Option<&StrategyProof> {
        self.strategies.iter().find(|s| s.name == name)
    }

    /// Strategies that should work by the attributes and do not, for
    /// [`rechoose`](crate::rechoose).
    #[must_use]
    pub fn tried(&self) -> Vec<Tried> {
        let failed = |s: &StrategyProof| {
            let proof = s.failure().filter(|p| p.step != Step::Attributes)?;
            let name = s.name.to_owned();
            Some(Tried { name, failed: proof.to_string() })
        };
        self.strategies.iter().filter_map(failed).collect()
    }

    /// The attributes, less what was tried and not proven: page lists of a length that the device
    /// refused, and gaps.
    #[must_use]
    pub fn proven(&self) -> Caps {
        let mut caps = self.attributes.clone();
        for s in &self.strategies {
            if s.is_refuted(Step::Gaps) {
                caps.sg_gaps = false;
            }
            if let Some(depth) = s.page_list_depth
                && s.is_refuted(Step::PageList)
            {
                caps.max_fast_reg_page_list_len = depth;
            }
        }
        caps
    }
}

impl StrategyProof {
    /// Whether everything that must hold was seen.
    #[must_use]
    pub fn works(&self) -> bool {
        self.failure().is_none()
    }

    /// The step that must hold and was not seen to.
    #[must_use]
    pub fn failure(&self) -> Option<&Proof> {
        self.proofs.iter().find(|p| self.must_hold(p.step) && p.outcome.is_refuted())
    }

    /// Whether a step was seen to hold.
    #[must_use]
    pub fn has_proven(&self, step: Step) -> bool {
        self.proofs.iter().any(|p| p.step == step && p.outcome == Outcome::Proven)
    }

    fn is_refuted(&self, step: Step) -> bool {
        self.proofs.iter().any(|p| p.step == step && p.outcome.is_refuted())
    }

    /// A shorter page list than announced still works.
    fn must_hold(&self, step: Step) -> bool {
        step.is_required() && !(step == Step::PageList && self.page_list_depth.unwrap_or(0) > 0)
    }
}

impl Step {
    /// Whether a strategy is of no use where this does not hold. The others are facts to plan with.
    #[must_use]
    pub fn is_required(self) -> bool {
        !matches!(self, Step::Gaps | Step::Bounds | Step::OtherQp)
    }
}

impl Outcome {
    fn is_refuted(&self) -> bool {
        matches!(self, Outcome::NotProven(_))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Attributes => "attributes",
            Step::PageList => "page list as long as announced",
            Step::Open => "open and connect",
            Step::Transfer(Grant::PeerReads) => "peer reads",
            Step::Transfer(Grant::PeerWrites) => "peer writes",
            Step::Revoke(Grant::PeerReads) => "revoke after reading",
            Step::Revoke(Grant::PeerWrites) => "revoke after writing",
            Step::OldKey(Grant::PeerReads) => "old key refused for reading",
            Step::OldKey(Grant::PeerWrites) => "old key refused for writing",
            Step::Gaps => "one key over a gap",
            Step::Bounds => "window bounds enforced",
            Step::OtherQp => "key refused through another QP",
        })
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Proven => write!(f, "{}: proven", self.step),
            Outcome::NotProven(what) => write!(f, "{}: {what}", self.step),
            Outcome::Skipped(why) => write!(f, "{}: not tried, {why}", self.step),
        }
    }
}

/// What the steps work with.
struct Bench<'a, D> {
    device: &'a D,
    registry: &'a Registry,
    ask: Ask,
    options: BuildOptions,
    caps: Caps,
}

impl<D: Device + Clone> Bench<'_, D> {
    /// A fresh strategy, for one connection.
    fn build(&self, name: &str) -> Result<Strategy, String> {
        self.registry.build(name, &self.options).map_err(|e| e.to_string())
    }

    /// Judged by the attributes alone, with the sizes of the workload.
    fn sized(&self, name: &str) -> Result<Limits, String> {
        let opened = crate::open(self.registry, name, &self.caps, &self.ask, &self.options);
        opened.map(|(_, limits)| limits)
    }

    /// Bytes of one transfer: enough for two pages, never more than the workload has.
    fn len(&self) -> usize {
        let two_pages = u64::from(self.caps.page_size).saturating_mul(2).min(LEN_MOST);
        two_pages.min(self.ask.max_payload_bytes).max(1) as usize
    }
}

/// Bytes of one transfer at most, whatever the page size.
const LEN_MOST: u64 = 128 << 10;

#[cfg(test)]
mod tests;
