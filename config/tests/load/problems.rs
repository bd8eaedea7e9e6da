//! Every problem at once, each on one line, whatever the input.

use proptest::sample::select;
use proptest::test_runner::Config;

use super::*;

#[test]
fn b107_all_problems_of_all_sources_at_once() {
    let file = temp(
        "b107.toml",
        "[queues]\ncredits = 0\nbackchanel = 1\n[memory]\nmax_payload = '4G'\n\
         [sgtrategy]\nname = 1\n\
         [device]\nkind = 'verbs'\nseed = 2\n",
    );
    let e = Loader::new()
        .file(&file)
        .env([("MEMREG__QUEUES__CREDITS", "abc"), ("MEMREG_QUEUES__CREDITS", "1"), ("HOME", "/")])
        .set("strategy.name=physical")
        .set("nonsense")
        .set("queues=1")
        .flag("device.kind", "simm")
        .flag("queues.ranges_per_request", "15")
        .load()
        .unwrap_err();
    let at = file.display().to_string();
    let expected = format!(
        "\
        {at}:2: queues.credits = 0: is out of range; allowed: 1..=65535 operations
        {at}:3: queues.backchanel = 1: no such key; allowed: credits, backchannel, \
            ranges_per_request (did you mean queues.backchannel?)
        {at}:5: memory.max_payload = \"4G\": has a unit that is not known; allowed: \
            1..=1099511627776 bytes, or with KiB, MiB, GiB, TiB, KB, MB, GB, TB \
            (did you mean 4GB or 4GiB?)
        {at}:6: sgtrategy: no such section; allowed: device, strategy, queues, memory \
            (did you mean strategy?)
        MEMREG_QUEUES__CREDITS: no such variable; allowed: MEMREG__SECTION__KEY in upper case, \
            for a key of the reference (did you mean MEMREG__QUEUES__CREDITS?)
        MEMREG__QUEUES__CREDITS: queues.credits = abc: is not a whole number in plain decimal \
            digits; allowed: 1..=65535 operations
        --set: \"nonsense\" is not key=value; allowed: section.key=value
        --set: queues = 1: is a section, and was given text; allowed: credits, backchannel, \
            ranges_per_request
        command line: device.kind = simm: is not one of the choices; allowed: sim, verbs \
            (did you mean sim?)
        command line: queues.ranges_per_request = 15: is out of range; allowed: 1..=14 ranges
        --set: strategy.name = \"physical\": conflicts with strategy.danger_trust_peer = false \
            (default): it can never take access back; allowed: physical with \
            strategy.danger_trust_peer = true, or auto, frwr, fmr, a plugin"
    );
    let expected = expected.replace("\n        ", "\n");
    assert_eq!(e.to_string(), expected);
    assert_eq!(e.disposition(), memreg_core::Disposition::Fatal);
}

#[test]
fn b107_text_that_is_not_toml_is_listed_by_line_beside_the_rest() {
    let e = toml("[queues]\ncredits = \nbackchannel = -1\nranges_per_request == 4\n").unwrap_err();
    let sources: Vec<&str> = e.problems().iter().map(|p| p.source.as_str()).collect();
    assert_eq!(sources, ["t.toml:2", "t.toml:4", "t.toml:3"], "{e}");
    let twice = only(toml("[queues]\ncredits = 1\ncredits = 2\n"));
    assert_eq!(twice.source, "t.toml:3");
}

#[test]
fn b107_hostile_files_are_errors_and_never_panics() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let big = temp("big.toml", &"#".repeat((1 << 20) + 1));
    let binary = dir.join("binary.toml");
    fs::write(&binary, b"a = \"\xff\"").unwrap();
    for (path, message) in [
        (dir.join("missing.toml"), "cannot be read"),
        (dir.clone(), "cannot be read"),
        (big, "is larger than 1 MiB"),
        (binary, "is not UTF-8 from byte 5 on"),
    ] {
        let p = only(Loader::new().file(&path).load());
        assert_eq!(p.source, path.display().to_string());
        assert!(p.message.starts_with(message), "{p}");
    }
    let depth = 100_000;
    for text in [
        format!("a = {}{}", "[".repeat(depth), "]".repeat(depth)),
        format!("a = {}", "{ a = ".repeat(depth)),
        format!("{}a = 1", "a.".repeat(depth)),
        "\"a[99999999999]\" = 1".to_owned(),
        "a[-99999999999] = 1".to_owned(),
        "\"queues.credits\" = 1".to_owned(),
        "\u{feff}[queues]\ncredits = 0".to_owned(),
        "[[queues]]\ncredits = 1".to_owned(),
        "queues = 1".to_owned(),
        "[strategy.options]\n'' = 1".to_owned(),
        "[strategy.options.a]\nb = 1".to_owned(),
    ] {
        assert!(toml(&text).is_err(), "{}", &text[..text.len().min(60)]);
    }
    let p = only(toml("\"queues.credits\" = 1"));
    assert_eq!((p.key.as_str(), p.hint.as_deref()), ("\"queues.credits\"", Some("queues.credits")));
    for set in ["a[99999999999]=1", "=", "", "queues..credits=1", ".=1", "strategy.options.=1"] {
        assert_eq!(only(Loader::new().set(set).load()).source, "--set");
    }
}

#[test]
fn b107_a_message_stays_on_its_line_whatever_the_value() {
    let long = "x".repeat(5000);
    let p = only(env("MEMREG__DEVICE__KIND", &format!("a\nb\x1b[31m{long}")));
    let line = p.to_string();
    assert!(line.len() < 300 && !line.contains(char::is_control), "{line}");
}

#[cfg(unix)]
#[test]
fn b107_variables_that_are_not_utf8() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let bad = OsStr::from_bytes(b"\xff");
    let value = only(Loader::new().env([(OsStr::new("MEMREG__QUEUES__CREDITS"), bad)]).load());
    assert_eq!((value.key.as_str(), value.message.as_str()), ("queues.credits", "is not UTF-8"));
    let name =
        only(Loader::new().env([(OsStr::from_bytes(b"MEMREG_\xff"), OsStr::new("1"))]).load());
    assert_eq!(name.message, "no such variable");
    ok(Loader::new().env([(bad, OsStr::new("1")), (OsStr::new("OTHER"), bad)]).load());
}

proptest::proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::default() })]

    #[test]
    fn b107_random_text_never_panics(text in "\\PC{0,200}", set in "\\PC{0,40}") {
        let _ = Loader::new().text("t", &*text).set(set).load().map_err(|e| e.to_string());
    }

    #[test]
    fn b107_random_toml_never_panics(
        lines in proptest::collection::vec(
            (select(PIECES), "[ =.\\[\\]{}'\"\n,]{0,3}", select(PIECES)),
            0..12,
        ),
    ) {
        let text: String = lines.iter().map(|(a, b, c)| format!("{a}{b}{c}\n")).collect();
        if let Err(e) = toml(&text) {
            proptest::prop_assert!(!e.problems().is_empty());
            proptest::prop_assert!(!e.to_string().contains("invariant"), "{}", e);
            let expected = e.problems().len() + e.warnings().len();
            proptest::prop_assert_eq!(e.to_string().lines().count(), expected);
        }
    }
}

const PIECES: &[&str] = &[
    "[device]",
    "[device.caps]",
    "[strategy.options]",
    "[queues]",
    "[memory]",
    "credits",
    "kind",
    "'sim'",
    "name",
    "max_payload",
    "'4GiB'",
    "12",
    "-1",
    "1.5",
    "true",
    "order",
    "['fmr']",
    "\"",
    "'''",
    "#",
    "=",
    "",
    "é",
    "caps",
    "strategy",
    ".",
    "a",
];

#[test]
fn b107_the_list_is_bounded_per_source() {
    let unknown: String = (0..50_000).map(|i| format!("credi{i} = 1\n")).collect();
    for text in [unknown, "a = ?\n".repeat(50_000)] {
        let e = toml(&text).unwrap_err();
        assert_eq!(e.problems().len(), 101);
        let last = e.problems().last().unwrap();
        assert_eq!(last.source, "t.toml:101");
        assert!(last.message.contains("was not checked"), "{last}");
    }
    // Another source still has its say.
    let text: String = (0..200).map(|i| format!("credi{i} = 1\n")).collect();
    let e = Loader::new().text("t", text).set("queues.credits=0").load().unwrap_err();
    assert_eq!((e.problems().len(), e.problems()[101].source.as_str()), (102, "--set"));
}
