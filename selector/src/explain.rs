//! Why each candidate was taken or not, in words.

use crate::{Candidate, Name, Trial, Wanted};
use std::fmt;

/// Reports on one trial, `winner` being the strategy taken, if any.
pub(crate) fn candidate(trial: &Trial, wanted: &Wanted, winner: Option<&str>) -> Candidate {
    let limits = match &trial.outcome {
        Err(reason) => return trial.report(false, reason.clone(), None),
        Ok((_, limits)) => limits,
    };
    let chosen = winner == Some(trial.name);
    let reason = match &wanted.name {
        Name::Explicit(_) if chosen => "chosen: strategy.name names it".to_owned(),
        Name::Explicit(name) => format!("strategy.name asks for {name}"),
        Name::Auto if chosen => "chosen: the first in strategy.order that works".to_owned(),
        Name::Auto if trial.keeps_keys() => {
            "never chosen by auto: it cannot take a key back; name it in strategy.name".to_owned()
        }
        Name::Auto if !wanted.order.iter().any(|o| o == trial.name) => {
            "not in strategy.order".to_owned()
        }
        Name::Auto => match winner {
            Some(other) => format!("{other} comes first in strategy.order"),
            None => "strategy.order names an unknown strategy".to_owned(),
        },
    };
    Candidate { chosen, ..trial.report(true, reason, Some(limits)) }
}

/// All candidates with their reasons, on one line.
pub(crate) fn list(candidates: &[Candidate]) -> String {
    candidates.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// All names, sorted, on one line.
pub(crate) fn names(candidates: &[Candidate]) -> String {
    let mut names: Vec<_> = candidates.iter().map(|c| c.name).collect();
    names.sort_unstable();
    names.join(", ")
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.reason)
    }
}
