//! Picks a strategy for a device, sizes it, and says of every other one why it was not picked.
//!
//! [`choose`] and [`Plan`] work from reported attributes and touch no device. If the device then
//! breaks its promise, so that the strategy chosen cannot be set up, [`rechoose`] goes on without
//! it and keeps the reason. [`probe()`] finds out beforehand, by doing.
#![forbid(unsafe_code)]

mod explain;
mod plan;
pub mod probe;

pub use plan::{Plan, Sizing};
pub use probe::{NotQpBound, ProbeReport, probe, probe_telling, prove_qp_bound_keys};

use memreg_core::MemReg;
use memreg_core::device::Caps;
use memreg_core::error::Disposition;
use memreg_core::sizing::{Ask, Limits, check_messages};
use memreg_strategies::{BuildOptions, Registry, Strategy};

/// Which strategy the user wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// By name, or by trying.
    pub name: Name,
    /// What [`Name::Auto`] tries, in order.
    pub order: Vec<String>,
}

/// How the strategy is named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Name {
    /// The first of [`Wanted::order`] that works.
    Auto,
    /// This one, or an error: never another.
    Explicit(String),
}

impl Wanted {
    /// From the values of `strategy.name`, where `auto` has its meaning, and `strategy.order`.
    #[must_use]
    pub fn new(name: &str, order: Vec<String>) -> Wanted {
        let name = match name {
            "auto" => Name::Auto,
            other => Name::Explicit(other.to_owned()),
        };
        Wanted { name, order }
    }
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted::new("auto", vec!["frwr".to_owned(), "fmr".to_owned()])
    }
}

/// A strategy that was chosen before and could not be set up on the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tried {
    /// Its name.
    pub name: String,
    /// The device's answer.
    pub failed: String,
}

/// What became of one known strategy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Its name.
    pub name: &'static str,
    /// Whether it works on this device with these sizes, wanted or not.
    pub eligible: bool,
    /// Whether it is the one.
    pub chosen: bool,
    /// Why it is chosen, or why not.
    pub reason: String,
    /// Its sizes, if it works.
    pub limits: Option<Limits>,
}

/// The strategy to use, opened, and how it came to be chosen.
#[derive(Debug)]
pub struct Choice {
    /// Opened with the sizes in `limits`.
    pub strategy: Strategy,
    /// Its sizes.
    pub limits: Limits,
    /// Every known strategy: those of `strategy.order` first, then the others by name.
    pub candidates: Vec<Candidate>,
}

/// No strategy to use. Every variant carries all candidates with their reasons.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    /// The configuration names a strategy that this program does not have.
    #[error("{key}: no strategy is named {name:?}; known are {}", explain::names(candidates))]
    Unknown {
        /// The configuration key that names it.
        key: &'static str,
        /// The name.
        name: String,
        /// All known strategies.
        candidates: Vec<Candidate>,
    },
    /// The strategy named does not work here, and no other is taken in its place.
    #[error("strategy {name} cannot be used: {reason}")]
    Explicit {
        /// Its name.
        name: String,
        /// Why not.
        reason: String,
        /// All known strategies.
        candidates: Vec<Candidate>,
    },
    /// Nothing in `strategy.order` works here.
    #[error("no strategy in strategy.order can be used: {}", explain::list(candidates))]
    NoneEligible {
        /// All known strategies.
        candidates: Vec<Candidate>,
    },
}

impl SelectError {
    /// All known strategies, each with the reason why it was not taken.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        match self {
            SelectError::Unknown { candidates, .. }
            | SelectError::Explicit { candidates, .. }
            | SelectError::NoneEligible { candidates } => candidates,
        }
    }

    /// What to do about it: the same device and configuration give the same answer.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        Disposition::Fatal
    }
}

/// Picks and opens the strategy that `wanted` names, or the first of its order that works.
///
/// `physical`, and any other strategy that never takes a key back, is taken by name only; it needs
/// the user's word both in `ask` and in `options`.
///
/// # Errors
/// [`SelectError`], with the reason for every candidate.
pub fn choose(
    registry: &Registry,
    caps: &Caps,
    ask: &Ask,
    wanted: &Wanted,
    options: &BuildOptions,
) -> Result<Choice, SelectError> {
    rechoose(registry, caps, ask, wanted, options, &[])
}

/// As [`choose`], without the strategies in `tried`, whose failures become their reasons.
///
/// A strategy that was named is still never replaced: then this is an error with the failure as its
/// reason.
///
/// # Errors
/// As [`choose`].
pub fn rechoose(
    registry: &Registry,
    caps: &Caps,
    ask: &Ask,
    wanted: &Wanted,
    options: &BuildOptions,
    tried: &[Tried],
) -> Result<Choice, SelectError> {
    let mut trials = try_all(registry, caps, ask, options, tried);
    // Stable: those outside the order stay sorted by name behind it.
    trials.sort_by_key(|t| wanted.order.iter().position(|o| o == t.name).unwrap_or(usize::MAX));
    if let Some((key, name)) = unknown_name(registry, wanted) {
        let candidates = trials.iter().map(|t| explain::candidate(t, wanted, None)).collect();
        return Err(SelectError::Unknown { key, name: name.to_owned(), candidates });
    }
    let picked = trials.iter().position(|t| match &wanted.name {
        Name::Explicit(name) => t.name == name && t.outcome.is_ok(),
        Name::Auto => wanted.order.iter().any(|o| o == t.name) && t.auto_may_take(),
    });
    let winner = picked.map(|at| trials[at].name);
    let candidates: Vec<_> = trials.iter().map(|t| explain::candidate(t, wanted, winner)).collect();
    for c in &candidates {
        tracing::debug!(strategy = c.name, eligible = c.eligible, reason = %c.reason, "candidate");
    }
    match picked.map(|at| trials.swap_remove(at).outcome) {
        Some(Ok((strategy, limits))) => {
            tracing::info!(strategy = strategy.name(), "strategy chosen");
            Ok(Choice { strategy, limits, candidates })
        }
        _ => Err(refusal(wanted, candidates)),
    }
}

/// Every known strategy, by name, and whether it works here, whatever the user wants; none is
/// chosen.
#[must_use]
pub fn candidates(
    registry: &Registry,
    caps: &Caps,
    ask: &Ask,
    options: &BuildOptions,
) -> Vec<Candidate> {
    try_all(registry, caps, ask, options, &[])
        .iter()
        .map(|t| match &t.outcome {
            Ok((_, limits)) => t.report(true, "eligible".to_owned(), Some(limits)),
            Err(reason) => t.report(false, reason.clone(), None),
        })
        .collect()
}

/// One strategy built, checked and opened, as far as it went.
struct Trial {
    name: &'static str,
    outcome: Result<(Strategy, Limits), String>,
}

impl Trial {
    /// Whether it works, and takes its keys back.
    fn auto_may_take(&self) -> bool {
        self.outcome.is_ok() && !self.keeps_keys()
    }

    /// Whether the peer keeps access for ever: whoever lives off the bounce arena never revokes.
    fn keeps_keys(&self) -> bool {
        let arena = self.outcome.as_ref().is_ok_and(|(_, limits)| limits.arena_bytes > 0);
        arena || self.name == "physical"
    }

    fn report(&self, eligible: bool, reason: String, limits: Option<&Limits>) -> Candidate {
        Candidate { name: self.name, eligible, chosen: false, reason, limits: limits.cloned() }
    }
}

fn try_all(
    registry: &Registry,
    caps: &Caps,
    ask: &Ask,
    options: &BuildOptions,
    tried: &[Tried],
) -> Vec<Trial> {
    let agreed = options.danger_trust_peer && ask.danger_trust_peer;
    let options = BuildOptions { danger_trust_peer: agreed, ..options.clone() };
    let ask = Ask { danger_trust_peer: agreed, ..*ask };
    registry
        .names()
        .map(|name| {
            let outcome = match tried.iter().find(|t| t.name == name) {
                Some(t) => Err(format!("tried, failed: {}", t.failed)),
                None => open(registry, name, caps, &ask, &options),
            };
            Trial { name, outcome }
        })
        .collect()
}

fn open(
    registry: &Registry,
    name: &str,
    caps: &Caps,
    ask: &Ask,
    options: &BuildOptions,
) -> Result<(Strategy, Limits), String> {
    let mut strategy = registry.build(name, options).map_err(|e| e.to_string())?;
    strategy.check(caps).map_err(|e| e.to_string())?;
    let limits = strategy.open(caps, ask).map_err(|e| e.to_string())?;
    check_messages(caps, ask, &limits).map_err(|e| e.to_string())?;
    Ok((strategy, limits))
}

/// The first name in the configuration that nobody has, and its key. Not skipped: a misspelt name
/// would silently change what is chosen.
fn unknown_name<'a>(registry: &Registry, wanted: &'a Wanted) -> Option<(&'static str, &'a str)> {
    match &wanted.name {
        Name::Explicit(name) => {
            (!registry.contains(name)).then_some(("strategy.name", name.as_str()))
        }
        Name::Auto => {
            let name = wanted.order.iter().find(|o| !registry.contains(o))?;
            Some(("strategy.order", name))
        }
    }
}

fn refusal(wanted: &Wanted, candidates: Vec<Candidate>) -> SelectError {
    match &wanted.name {
        Name::Auto => SelectError::NoneEligible { candidates },
        Name::Explicit(name) => {
            let reason = candidates.iter().find(|c| c.name == name).map(|c| c.reason.clone());
            let reason = reason.unwrap_or_default();
            SelectError::Explicit { name: name.clone(), reason, candidates }
        }
    }
}

#[cfg(test)]
mod tests;
