//! Keys against each other: contradictions are problems, settings without effect are warnings.

use crate::load::Draft;
use crate::problem::Problem;
use crate::schema::BUILT_IN;
use crate::shown::Merged;

/// Checks the layered values. What depends on a refused or unreadable value is left out: it would
/// be noise.
pub(crate) fn check(merged: &Merged, draft: &mut Draft<'_>, warnings: &mut Vec<Problem>) {
    if draft.incomplete {
        return;
    }
    let sure = |keys: &[&str]| !keys.iter().any(|key| draft.rejected.contains(*key));
    if sure(&["device.kind"]) {
        device(merged, warnings);
    }
    if sure(&["strategy.name", "strategy.order"]) {
        strategy(merged, warnings);
    }
    if sure(&["strategy.name", "strategy.danger_trust_peer"]) {
        draft.problems.extend(untrusted_physical(merged));
    }
}

fn device(merged: &Merged, warnings: &mut Vec<Problem>) {
    let (useless, why): (&[&str], _) = match merged.text("device.kind") {
        Some("verbs") => {
            (&["device.profile", "device.seed", "device.caps"], "device.kind = \"verbs\"")
        }
        _ => (
            &["device.name", "device.port", "device.gid_index", "device.numa_node"],
            "device.kind = \"sim\"",
        ),
    };
    // `auto` asks for nothing that could be missed.
    for key in useless.iter().filter(|key| merged.text(key) != Some("auto")) {
        warnings.extend(no_effect(merged, key, why));
    }
}

fn strategy(merged: &Merged, warnings: &mut Vec<Problem>) {
    let name = merged.text("strategy.name").unwrap_or_default();
    let order = merged.texts("strategy.order");
    let shown = format!("strategy.name = \"{name}\"");
    if name != "auto" {
        warnings.extend(no_effect(merged, "strategy.order", &shown));
    }
    let candidates = if name == "auto" { order } else { vec![name] };
    let built_in = candidates.iter().all(|name| BUILT_IN.contains(name));
    let why = if name == "auto" {
        format!("{shown} and only built-in strategies in strategy.order")
    } else {
        shown
    };
    if built_in {
        warnings.extend(no_effect(merged, "strategy.options", &why));
    }
    // A plugin may need the trust too, so only built-in strategies are known not to.
    if built_in && name != "physical" && merged.is_true("strategy.danger_trust_peer") {
        warnings.extend(no_effect(merged, "strategy.danger_trust_peer", &why));
    }
}

fn untrusted_physical(merged: &Merged) -> Option<Problem> {
    let trusted = merged.is_true("strategy.danger_trust_peer");
    if trusted || merged.text("strategy.name") != Some("physical") {
        return None;
    }
    let (name, trust) =
        (merged.origin("strategy.name")?, merged.origin("strategy.danger_trust_peer")?);
    Some(Problem {
        source: name.source().to_owned(),
        key: "strategy.name".to_owned(),
        value: name.shown(),
        message: format!(
            "conflicts with strategy.danger_trust_peer = false ({}): it can never take access back",
            trust.source()
        ),
        allowed: "physical with strategy.danger_trust_peer = true, or auto, frwr, fmr, a plugin"
            .to_owned(),
        hint: None,
    })
}

fn no_effect(merged: &Merged, prefix: &str, why: &str) -> Vec<Problem> {
    let set = merged.set_below(prefix);
    let warning = |(key, origin): (&str, crate::shown::Origin<'_>)| Problem {
        source: origin.source().to_owned(),
        key: key.to_owned(),
        value: origin.shown(),
        message: format!("has no effect with {why}"),
        allowed: String::new(),
        hint: None,
    };
    set.map(warning).collect()
}
