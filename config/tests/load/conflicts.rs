//! Keys against each other.

use super::*;

#[test]
fn b109_physical_without_trust_is_a_conflict_that_names_both_keys() {
    for text in [
        "strategy.name = 'physical'",
        "strategy.name = 'physical'\nstrategy.danger_trust_peer = false",
    ] {
        let p = only(toml(text));
        assert_eq!(p.key, "strategy.name");
        assert!(p.message.contains("strategy.danger_trust_peer = false"), "{p}");
    }
    let loaded = ok(toml("[strategy]\nname = 'physical'\ndanger_trust_peer = true"));
    assert_eq!(loaded.settings.strategy.choice, StrategyChoice::Named("physical".into()));
    assert!(loaded.settings.ask.danger_trust_peer && loaded.warnings.is_empty());
}

#[test]
fn b109_settings_without_effect_are_warnings() {
    for (text, keys) in [
        ("device.name = 'rxe0'", &["device.name"][..]),
        ("[device]\nport = 2\ngid_index = 3", &["device.port", "device.gid_index"]),
        (
            "[device]\nkind = 'verbs'\nprofile = 'x/none.toml'\nseed = 1\ncaps.max_mr = 1",
            &["device.profile", "device.seed", "device.caps.max_mr"],
        ),
        ("strategy.name = 'frwr'\nstrategy.options.depth = 1", &["strategy.options.depth"]),
        ("strategy.options.depth = 1", &["strategy.options.depth"]),
        ("strategy.name = 'fmr'\nstrategy.order = ['fmr']", &["strategy.order"]),
        ("strategy.danger_trust_peer = true", &["strategy.danger_trust_peer"]),
        ("strategy.danger_trust_peer = false", &[]),
        ("device.kind = 'verbs'\ndevice.name = 'rxe0'", &[]),
        ("strategy.name = 'plug'\nstrategy.options.depth = 1", &[]),
        ("strategy.order = ['plug', 'fmr']\nstrategy.options.depth = 1", &[]),
        ("strategy.name = 'plug'\nstrategy.danger_trust_peer = true", &[]),
    ] {
        let loaded = ok(toml(text));
        let found: Vec<&str> = loaded.warnings.iter().map(|w| w.key.as_str()).collect();
        assert_eq!(found, *keys, "{text}");
        for w in &loaded.warnings {
            assert!(
                w.message.starts_with("has no effect with ") && w.source.starts_with("t.toml:")
            );
        }
    }
}

#[test]
fn b109_a_refused_value_is_not_blamed_twice() {
    let p = only(toml("[strategy]\nname = 'physical'\ndanger_trust_peer = 'yes'"));
    assert_eq!(p.key, "strategy.danger_trust_peer");
    let broken = only(toml("[strategy]\nname = 'physical'\ndanger_trust_peer = ?"));
    assert_eq!(broken.source, "t.toml:3");
    let e = toml("device.kind = 'verb'\ndevice.seed = 2").unwrap_err();
    assert!(e.warnings().is_empty(), "{e}");
}
