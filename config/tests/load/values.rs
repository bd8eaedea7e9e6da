//! What single keys take and refuse, from every source.

use super::*;

/// A key, TOML values that it takes, TOML values that it refuses.
type Row = (&'static str, &'static [&'static str], &'static [&'static str]);

const NOT_TEXT: &[&str] = &["1", "true", "1.5", "['x']", "{ a = 1 }", "2020-01-01"];
const NOT_BOOL: &[&str] = &["1", "0", "'true'", "'yes'", "1.0", "[true]", "{}", "2020-01-01"];

const ROWS: &[Row] = &[
    ("device.kind", &["'sim'", "'verbs'"], &["'simm'", "'SIM'", "''", "' sim'"]),
    ("device.name", &["'rxe0'", "'mlx5_1'", "' odd*name '"], &["''", "'a/b'", "\"a\\n\""]),
    (
        "device.port",
        &["'auto'", "1", "255"],
        &["0", "300", "-1", "'abc'", "' 1'", "'1'", "'AUTO'", "''", "true", "1.0", "[1]", "{}"],
    ),
    ("device.gid_index", &["'auto'", "0", "255"], &["256", "-1", "'3'", "'none'", "true", "0.0"]),
    ("device.numa_node", &["'auto'", "0", "1023"], &["1024", "-1", "'0'", "'any'", "false"]),
    (
        "device.relaxed_ordering",
        &["'auto'", "'try'", "'require'", "'off'"],
        &["'on'", "true", "''"],
    ),
    (
        "memory.split",
        &["4096", "'1GiB'", "1099511627776"],
        &["0", "4095", "-1", "'1G'", "true", "'2TiB'"],
    ),
    (
        "device.caps.iommu_mr_size",
        &["0", "4096", "'2GiB'", "0xffffffffffffffff"],
        &["-1", "'2G'", "true", "0.0"],
    ),
    ("device.caps.relaxed_ordering", &["true", "false"], NOT_BOOL),
    ("device.caps.relaxed_ordering_always", &["true", "false"], NOT_BOOL),
    (
        "device.profile",
        &["'generic'", "'no-such-name'"],
        &["''", "\"a\\u0000\"", "'no/file'", "'no.toml'"],
    ),
    (
        "device.seed",
        &["0", "1", "9223372036854775807", "18446744073709551615", "0xff", "1_000"],
        &["-1", "18446744073709551616", "'1'", "true", "1.0", "inf", "[1]", "{}", "10:00:00"],
    ),
    (
        "strategy.name",
        &["'auto'", "'frwr'", "'fmr'", "'my_plugin'"],
        &["''", "'FRWR'", "'a b'", "'a,b'", "\"\\n\""],
    ),
    (
        "strategy.order",
        &["['frwr']", "['fmr', 'frwr']", "['plug', 'fmr']"],
        &[
            "[]",
            "'frwr'",
            "['frwr', 'frwr']",
            "['physical']",
            "['auto']",
            "['Fmr']",
            "[1]",
            "[['fmr']]",
            "['']",
            "true",
        ],
    ),
    ("strategy.danger_trust_peer", &["true", "false"], NOT_BOOL),
    (
        "strategy.options.depth",
        &["1", "-1", "true", "1.5", "'text'", "nan", "9223372036854775807"],
        &["[1]", "{ a = 1 }", "2020-01-01", "9223372036854775808", "-9223372036854775809", "1e999"],
    ),
    (
        "queues.credits",
        &["1", "128", "65535"],
        &[
            "0",
            "-1",
            "65536",
            "70000",
            "'12'",
            "'abc'",
            "true",
            "1.9",
            "1.0",
            "[1]",
            "{}",
            "2020-01-01",
            "99999999999999999999999999999999999999999999999999",
        ],
    ),
    ("queues.backchannel", &["0", "65535"], &["-1", "65536", "'0'", "false", "0.0"]),
    ("queues.ranges_per_request", &["1", "14"], &["0", "15", "-4", "'4'", "true", "4.0"]),
    (
        "memory.max_payload",
        &["1", "1048576", "1099511627776", "'1TiB'", "'4096'", "'4 GiB'", "'4KB'"],
        &[
            "0",
            "-1",
            "1099511627777",
            "'2TiB'",
            "1.5",
            "true",
            "''",
            "'0'",
            "'4G'",
            "'4gb'",
            "'-1'",
            "'1.5GiB'",
            "' 1MiB'",
            "'1MiB '",
            "[1]",
            "{}",
            "2020-01-01",
        ],
    ),
    ("device.caps.mem_mgt_extensions", &["true", "false"], NOT_BOOL),
    ("device.caps.sg_gaps", &["true", "false"], NOT_BOOL),
    (
        "device.caps.max_fast_reg_page_list_len",
        &["0", "65535"],
        &["-1", "65536", "'1'", "true", "1.9"],
    ),
    ("device.caps.mem_window_type_2b", &["true", "false"], NOT_BOOL),
    ("device.caps.max_mw", &["0", "16777216"], &["-1", "16777217", "'1'", "true", "1.9"]),
    ("device.caps.max_mr", &["1", "16777216"], &["0", "16777217", "'1'", "true", "1.9"]),
    (
        "device.caps.max_mr_size",
        &["4096", "0xffffffffffffffff", "'1GiB'"],
        &["4095", "-1", "'4G'", "true", "4096.0"],
    ),
    ("device.caps.max_qp_wr", &["1", "1048576"], &["0", "1048577", "'1'", "true", "1.9"]),
    ("device.caps.wide_sge", &["0", "1024"], &["-1", "1025", "'1'", "true", "1.9"]),
    ("device.caps.max_qp_wr_wide", &["1", "1048576"], &["0", "1048577", "'1'", "true", "1.9"]),
    ("device.caps.max_cqe", &["1", "16777216"], &["0", "16777217", "'1'", "true", "1.9"]),
    ("device.caps.max_sge", &["1", "1024"], &["0", "1025", "'1'", "true", "1.9"]),
    ("device.caps.max_sge_rd", &["1", "1024"], &["0", "1025", "'1'", "true", "1.9"]),
    (
        "device.caps.max_inline_data",
        &["0", "65536", "'64KiB'"],
        &["-1", "65537", "'64K'", "true", "0.0"],
    ),
    (
        "device.caps.page_size",
        &["512", "4096", "'2MiB'", "1073741824"],
        &["0", "256", "4095", "12288", "2147483648", "'4K'", "true", "4096.0"],
    ),
];

#[test]
fn b106_every_key_takes_its_range_and_refuses_the_rest() {
    let keys: Vec<String> = ok(toml("")).origins.into_iter().map(|row| row.key).collect();
    for key in &keys {
        assert!(ROWS.iter().any(|row| row.0 == key), "no row for {key}");
    }
    for (key, good, bad) in ROWS {
        for v in *good {
            ok(toml(&format!("{key} = {v}")));
        }
        let text =
            matches!(*key, "device.kind" | "device.name" | "device.profile" | "strategy.name");
        for v in bad.iter().chain(if text { NOT_TEXT } else { &[] }) {
            let p = only(toml(&format!("\n{key} = {v}")));
            if !matches!(*v, "'no/file'" | "'no.toml'") {
                assert_eq!((p.source.as_str(), p.key.as_str()), ("t.toml:2", *key), "{v}: {p}");
                assert!(!p.allowed.is_empty() && !p.message.is_empty(), "{p}");
            }
            assert_eq!(p.to_string().lines().count(), 1, "{p}");
        }
    }
}

#[test]
fn b106_a_number_is_never_guessed_from_text_and_nothing_falls_back() {
    for (v, shown, message) in [
        ("0", "0", "is out of range"),
        ("'abc'", "\"abc\"", "is text, not a whole number"),
        ("' 1'", "\" 1\"", "is text, not a whole number"),
        ("'1'", "\"1\"", "is text, not a whole number; write it without quotes"),
        ("70000", "70000", "is out of range"),
        ("true", "true", "is a boolean, not a whole number"),
        ("1.9", "1.9", "is a floating-point number, not a whole number"),
    ] {
        let p = only(toml(&format!("[queues]\ncredits = {v}")));
        let expected = Problem {
            source: "t.toml:2".into(),
            key: "queues.credits".into(),
            value: shown.into(),
            message: message.into(),
            allowed: "1..=65535 operations".into(),
            hint: None,
        };
        assert_eq!(p, expected);
    }
    let not_digits = "is not a whole number in plain decimal digits";
    for (v, message) in [
        ("0", "is out of range"),
        ("abc", not_digits),
        (" 1", not_digits),
        ("1 ", not_digits),
        ("+1", not_digits),
        ("", not_digits),
        ("-", not_digits),
        ("007", not_digits),
        ("1_000", not_digits),
        ("0x10", not_digits),
        ("1.9", not_digits),
        ("true", not_digits),
        ("70000", "is out of range"),
        ("-5", "is negative"),
        ("99999999999999999999999999999999999999999999999999", "is out of range"),
    ] {
        let name = "MEMREG__QUEUES__CREDITS";
        let set = Loader::new().set(format!("queues.credits={v}")).load();
        let flag = Loader::new().flag("queues.credits", v).load();
        for (result, source) in [(env(name, v), name), (set, "--set"), (flag, "command line")] {
            let p = only(result);
            assert_eq!((p.source.as_str(), p.key.as_str()), (source, "queues.credits"));
            assert_eq!((p.message.as_str(), p.allowed.as_str()), (message, "1..=65535 operations"));
        }
    }
}

#[test]
fn b108_sizes_mean_what_is_written() {
    for (v, bytes, shown) in [
        ("'4GB'", 4_000_000_000, "4000000000 (3906250 KiB)"),
        ("'4GiB'", 4 << 30, "4294967296 (4 GiB)"),
        ("'4 GiB'", 4 << 30, "4294967296 (4 GiB)"),
        ("4294967296", 4 << 30, "4294967296 (4 GiB)"),
        ("4097", 4097, "4097"),
    ] {
        let loaded = ok(toml(&format!("memory.max_payload = {v}")));
        assert_eq!(loaded.settings.ask.max_payload_bytes, bytes);
        assert_eq!(value(&loaded, "memory.max_payload"), shown);
        let same = ok(env("MEMREG__MEMORY__MAX_PAYLOAD", v.trim_matches('\'')));
        assert_eq!(same.settings, loaded.settings);
    }
    for v in ["4G", "4gb", "-1", "1.5GiB", "8XB", "1e9"] {
        assert_eq!(only(toml(&format!("memory.max_payload = '{v}'"))).key, "memory.max_payload");
        only(env("MEMREG__MEMORY__MAX_PAYLOAD", v));
    }
}

#[test]
fn b110_a_device_name_is_taken_verbatim() {
    for name in ["mlx5_1", "mlx5_11", "mlx5_*", "MLX5_1", " mlx5_1", "^mlx5_1$"] {
        let loaded = ok(toml(&format!("[device]\nkind = 'verbs'\nname = '{name}'")));
        let DeviceSettings::Verbs(verbs) = loaded.settings.device else { panic!("not verbs") };
        assert_eq!(verbs.name.as_deref(), Some(name));
    }
}

#[test]
fn every_key_reads_from_every_source() {
    for (key, good, _) in ROWS {
        for v in *good {
            let plain = v.replace(['\'', '[', ']'], "").replace(", ", ",");
            // Untyped sources take plain decimal digits only.
            if plain.starts_with("0x") || plain.contains("1_000") || plain == "nan" {
                continue;
            }
            let by_file = ok(toml(&format!("{key} = {v}"))).settings;
            assert_eq!(ok(env(&variable(key), &plain)).settings, by_file, "{key} {v}");
            let set = Loader::new().set(format!("{key}={plain}")).load();
            assert_eq!(ok(set).settings, by_file, "{key} {v}");
            assert_eq!(ok(Loader::new().flag(*key, plain).load()).settings, by_file, "{key} {v}");
        }
    }
}

#[test]
fn options_keep_their_types() {
    let loaded = ok(Loader::new()
        .text("t", "[strategy]\nname = 'plug'\n[strategy.options]\n'a.b' = 1\nc = 'x'\nd = 1.0")
        .env([
            ("MEMREG__STRATEGY__OPTIONS__DEPTH", "12"),
            ("MEMREG__STRATEGY__OPTIONS__TEXT", "\"12\""),
            ("MEMREG__STRATEGY__OPTIONS__MODE", "fast = true"),
            ("MEMREG__STRATEGY__OPTIONS__NAN", "nan"),
        ])
        .set("strategy.options.on=true")
        .set("strategy.options.rate=0.5")
        .set("strategy.options.empty=")
        .load());
    let text = |s: &str| OptionValue::Text(s.into());
    let expected = BTreeMap::from([
        ("a.b".to_owned(), OptionValue::Int(1)),
        ("c".to_owned(), text("x")),
        ("d".to_owned(), OptionValue::Float(1.0)),
        ("depth".to_owned(), OptionValue::Int(12)),
        ("text".to_owned(), text("12")),
        ("mode".to_owned(), text("fast = true")),
        ("nan".to_owned(), text("nan")),
        ("on".to_owned(), OptionValue::Bool(true)),
        ("rate".to_owned(), OptionValue::Float(0.5)),
        ("empty".to_owned(), text("")),
    ]);
    assert_eq!(loaded.settings.strategy.options, expected);
}

#[test]
fn known_plugins_refute_other_names() {
    let load = |name: &str| {
        Loader::new().plugins(["echo", "ring"]).set(format!("strategy.name={name}")).load()
    };
    for name in ["auto", "frwr", "echo", "ring"] {
        ok(load(name));
    }
    let p = only(load("frwrr"));
    assert_eq!(p.message, "no such strategy; the plugins are echo, ring");
    assert_eq!(p.hint.as_deref(), Some("frwr"));
    assert_eq!(only(load("ecko")).hint.as_deref(), Some("echo"));
    let order = Loader::new().plugins(["echo"]).set("strategy.order=frwr,eco").load();
    assert_eq!(only(order).hint.as_deref(), Some("echo"));
    let none = Loader::new().plugins([] as [&str; 0]).set("strategy.name=echo").load();
    assert!(only(none).message.contains("no plugin is linked"));
}

#[test]
fn b106_a_port_is_a_number_or_auto_and_nothing_falls_back_to_0() {
    let verbs = |text: &str| match ok(toml(&format!("[device]\nkind = 'verbs'\n{text}"))) {
        Loaded { settings: Settings { device: DeviceSettings::Verbs(v), .. }, .. } => v,
        other => panic!("{other:?}"),
    };
    assert_eq!(verbs(""), VerbsSettings::default());
    let set = verbs("name = 'mlx5_1'\nport = 2\ngid_index = 0\nnuma_node = 1");
    let (port, gid_index, numa_node) = (Some(2), Some(0), Some(1));
    assert_eq!(set, VerbsSettings { name: Some("mlx5_1".into()), port, gid_index, numa_node });
    let same = verbs("port = 'auto'\ngid_index = 'auto'\nnuma_node = 'auto'");
    assert_eq!(same, VerbsSettings::default());
    for (value, message) in [
        ("0", "is out of range"),
        ("abc", "is not a whole number in plain decimal digits"),
        (" 1", "is not a whole number in plain decimal digits"),
        ("300", "is out of range"),
    ] {
        let p = only(Loader::new().env([("MEMREG__DEVICE__PORT", value)]).load());
        assert_eq!((p.source.as_str(), p.message.as_str()), ("MEMREG__DEVICE__PORT", message));
        assert_eq!(p.allowed, "auto or 1..=255");
    }
}
