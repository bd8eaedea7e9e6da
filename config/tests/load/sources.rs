//! Layers, origins, defaults, the environment and the files.

use super::*;

#[test]
fn environment_traps() {
    for (name, near) in [
        ("MEMREG_QUEUES__CREDITS", Some("MEMREG__QUEUES__CREDITS")),
        ("MEMREG_QUEUES_CREDITS", Some("MEMREG__QUEUES__CREDITS")),
        ("MEMREG__QUEUES_CREDITS", Some("MEMREG__QUEUES__CREDITS")),
        ("MEMREG___QUEUES__CREDITS", Some("MEMREG__QUEUES__CREDITS")),
        ("MEMREG__QUEUES__CREDIT", Some("MEMREG__QUEUES__CREDITS")),
        ("MEMREG__QUEUES__CREDITS__", Some("MEMREG__QUEUES__CREDITS")),
        ("MEMREG__queues__credits", Some("MEMREG__QUEUES__CREDITS")),
        ("memreg__queues__credits", Some("MEMREG__QUEUES__CREDITS")),
        ("Memreg__Queues__Credits", Some("MEMREG__QUEUES__CREDITS")),
        ("MEMREG__DEVICE__CAPS__MAX_QPWR", Some("MEMREG__DEVICE__CAPS__MAX_QP_WR")),
        ("MEMREG_CONFIG", None),
        ("MEMREG_", None),
        ("MEMREG__", None),
        ("MEMREG_TESTS", None),
        ("MEMREG__STRATEGY__OPTIONS__", None),
        ("MEMREG__STRATEGY__OPTIONS__A__B", None),
    ] {
        let p = only(env(name, "1"));
        assert_eq!((p.source.as_str(), p.message.as_str()), (name, "no such variable"));
        assert_eq!(p.hint.as_deref(), near, "{name}");
    }
    for name in ["MEMREG_TEST_SEED", "MEMREG_TEST_", "MEMREG", "MEMREGX", "memreg_x", "XMEMREG__A"]
    {
        ok(env(name, "1"));
    }
    assert_eq!(only(env("MEMREG__QUEUES", "1")).message, "is a section, and was given text");
}

#[test]
fn a_later_source_wins_key_by_key() {
    let first = "[queues]\ncredits = 1\nbackchannel = 1\nranges_per_request = 1\n[strategy]\n\
                 order = ['fmr', 'frwr']\
                 \nname = 'plug'\n[strategy.options]\na = 1\nb = 1";
    let second = "queues.credits = 2\nstrategy.options.b = 2";
    let base = Loader::new().text("one", first);
    let loaded = ok(base.clone().load());
    assert_eq!(loaded.settings.ask.credits, 1);
    assert_eq!(origin(&loaded, "queues.credits"), "one:2");
    let base = base.text("two", second);
    assert_eq!(ok(base.clone().load()).settings.ask.credits, 2);
    let base = base.env([("MEMREG__QUEUES__CREDITS", "3"), ("MEMREG__STRATEGY__ORDER", "frwr")]);
    assert_eq!(ok(base.clone().load()).settings.ask.credits, 3);
    let base = base.set("queues.credits=4").set("queues.credits=5");
    assert_eq!(ok(base.clone().load()).settings.ask.credits, 5);
    let loaded = ok(base.flag("queues.credits", "6").load());
    let ask = loaded.settings.ask;
    assert_eq!((ask.credits, ask.backchannel, ask.ranges_per_request), (6, 1, 1));
    for (key, from, v) in [
        ("queues.credits", "command line", "6"),
        ("queues.backchannel", "one:3", "1"),
        ("memory.max_payload", "default", "1048576 (1 MiB)"),
        ("strategy.order", "MEMREG__STRATEGY__ORDER", "[\"frwr\"]"),
        ("strategy.options.a", "one:9", "1"),
        ("strategy.options.b", "two:2", "2"),
        ("device.name", "default", "unset"),
    ] {
        assert_eq!((origin(&loaded, key), value(&loaded, key)), (from.into(), v.into()), "{key}");
    }
}

#[test]
fn an_overridden_mistake_is_still_a_mistake() {
    let p = only(Loader::new().text("t", "queues.credits = 0").set("queues.credits=1").load());
    assert_eq!(p.source, "t:1");
}

#[test]
fn the_defaults_of_the_table_are_those_of_the_types() {
    let loaded = ok(Loader::new().load());
    assert_eq!(loaded.settings, Settings::default());
    assert!(loaded.warnings.is_empty());
    assert!(loaded.origins.iter().all(|row| row.origin == "default"));
    let DeviceSettings::Sim(sim) = loaded.settings.device else { panic!("not sim") };
    assert_eq!(sim.caps, CapsOverride::default());
    assert_eq!(sim.caps_over(Caps::default()), Caps::default());
}

#[test]
fn the_reference_is_a_configuration_that_sets_the_defaults() {
    let text = reference();
    let loaded = ok(toml(&text));
    assert_eq!(loaded.settings, Settings::default());
    assert!(loaded.warnings.is_empty());
    assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    // What is commented out must be right too, and be every key without a default.
    let all: String = text.lines().map(|line| format!("{}\n", uncomment(line))).collect();
    let loaded = ok(toml(&all));
    assert!(loaded.origins.iter().all(|row| row.origin != "default"), "{all}");
    let DeviceSettings::Sim(sim) = loaded.settings.device else { panic!("not sim") };
    assert_eq!(sim.caps_over(Caps::default()), Caps::default(), "the examples are the profile");
}

fn uncomment(line: &str) -> &str {
    line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line)
}

#[test]
fn a_profile_file_is_relative_to_the_file_that_names_it_and_checked_alike() {
    temp(
        "p/nic.toml",
        "name = 'lab'\nabout = 'ours'\n[caps]\nmax_qp_wr = 100\nmax_mr = 7\npage_size = '64KiB'",
    );
    let file = temp("p/main.toml", "[device]\nprofile = './nic.toml'\n[device.caps]\nmax_mr = 9");
    let loaded = ok(Loader::new().file(&file).load());
    let DeviceSettings::Sim(sim) = &loaded.settings.device else { panic!("not sim") };
    let ProfileSource::File(profile) = &sim.profile else { panic!("not a file") };
    assert_eq!((profile.name.as_str(), profile.about.as_str()), ("lab", "ours"));
    assert_eq!((sim.base(), profile.caps.max_qp_wr), ("generic", Some(100)));
    let expected = Caps { max_qp_wr: 100, max_mr: 9, page_size: 65_536, ..Caps::default() };
    assert_eq!(sim.caps_over(Caps::default()), expected);
    let bad =
        temp("p/bad.toml", "base = 1\nabuot = 'x'\n[caps]\nmax_qpwr = 1\nmax_mr = 0\n[device]\n");
    let e = Loader::new().flag("device.profile", bad.display().to_string()).load().unwrap_err();
    let found: Vec<(&str, Option<&str>)> =
        e.problems().iter().map(|p| (p.key.as_str(), p.hint.as_deref())).collect();
    let expected = [
        ("base", None),
        ("abuot", Some("about")),
        ("caps.max_qpwr", Some("caps.max_qp_wr")),
        ("caps.max_mr", None),
        ("device", None),
        ("name", None),
    ];
    assert_eq!(found, expected, "{e}");
}
