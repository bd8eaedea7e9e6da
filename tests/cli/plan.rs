//! `memreg plan` and `memreg probe`.

use crate::{Shape, check, json, memreg, run};
use serde_json::Value;

const PLAN: &[Shape] = &[
    ("schema", |v| v == 1),
    ("command", |v| v == "plan"),
    ("device", |v| v == "software device"),
    ("name", Value::is_string),
    ("profile", Value::is_string),
    ("chosen", |v| v.is_string() || v.is_null()),
    ("refusal", |v| v.is_string() || v.is_null()),
    ("candidates", Value::is_array),
    ("sizing", |v| v.is_object() || v.is_null()),
];

const CANDIDATE: &[Shape] = &[
    ("name", Value::is_string),
    ("eligible", Value::is_boolean),
    ("chosen", Value::is_boolean),
    ("mechanism", |v| v.is_string() || v.is_null()),
    ("reason", |v| v.as_str().is_some_and(|s| !s.is_empty())),
];

const SIZING: &[Shape] = &[
    ("mechanism", Value::is_string),
    ("page_list_depth", Value::is_u64),
    ("regions_per_request", Value::is_u64),
    ("wr_per_request", Value::is_u64),
    ("credits", Value::is_u64),
    ("max_send_wr", Value::is_u64),
    ("max_recv_wr", Value::is_u64),
    ("cq_entries", Value::is_u64),
    ("max_segments", Value::is_u64),
    ("max_payload_bytes", Value::is_u64),
    ("parts", Value::is_object),
    ("clamped", Value::is_array),
];

/// The plan and its exit code, whatever that is.
fn plan(args: &str) -> (Value, Option<i32>, String) {
    let ran = run(&mut memreg(&format!("plan --json {args}")));
    let plan: Value = serde_json::from_str(&ran.stdout).unwrap();
    check(PLAN, &plan);
    for candidate in plan["candidates"].as_array().unwrap() {
        check(CANDIDATE, candidate);
    }
    if plan["sizing"].is_object() {
        check(SIZING, &plan["sizing"]);
        let part = |name: &str| plan["sizing"]["parts"][name].as_u64().unwrap();
        let sum: u64 =
            ["register", "invalidate", "send", "backchannel", "drain"].map(part).iter().sum();
        assert_eq!(plan["sizing"]["max_send_wr"], sum);
    }
    (plan, ran.code, ran.stderr)
}

/// What one page list gives, for 128 operations of 1 MiB.
struct Row {
    page_list: u64,
    regions: u64,
    wr: u64,
    /// Payload pages of one operation.
    pages: u64,
    /// Credits and `max_send_wr`, for each of [`QUEUES`].
    by_queue: [(u64, u64); 4],
}

const fn row(page_list: u64, regions: u64, wr: u64, pages: u64, by: [(u64, u64); 4]) -> Row {
    Row { page_list, regions, wr, pages, by_queue: by }
}

const QUEUES: [u64; 4] = [100, 128, 1024, 32768];
const TABLE: [Row; 6] = [
    row(1, 16, 33, 14, [(3, 100), (3, 100), (31, 1024), (128, 4225)]),
    row(16, 16, 33, 224, [(3, 100), (3, 100), (31, 1024), (128, 4225)]),
    row(30, 11, 23, 257, [(4, 93), (5, 116), (44, 1013), (128, 2945)]),
    row(64, 7, 15, 257, [(6, 91), (8, 121), (68, 1021), (128, 1921)]),
    row(256, 4, 9, 257, [(11, 100), (14, 127), (113, 1018), (128, 1153)]),
    row(257, 3, 7, 257, [(14, 99), (18, 127), (128, 897), (128, 897)]),
];

fn device(page_list: u64, max_qp_wr: u64) -> String {
    format!(
        "--set device.caps.max_fast_reg_page_list_len={page_list} \
         --set device.caps.max_qp_wr={max_qp_wr}"
    )
}

#[test]
fn b37_the_plan_of_frwr_is_the_table() {
    for row in &TABLE {
        for (max_qp_wr, (credits, max_send_wr)) in QUEUES.into_iter().zip(row.by_queue) {
            let args = format!("--set strategy.name=frwr {}", device(row.page_list, max_qp_wr));
            let (plan, code, stderr) = plan(&args);
            assert_eq!((code, stderr.as_str()), (Some(0), ""), "{args}");
            assert_eq!((&plan["chosen"], &plan["refusal"]), (&"frwr".into(), &Value::Null));
            let n = |name: &str| plan["sizing"][name].as_u64().unwrap();
            let one = (n("page_list_depth"), n("regions_per_request"), n("wr_per_request"));
            assert_eq!(one, (row.page_list, row.regions, row.wr), "{args}");
            assert_eq!((n("credits"), n("max_send_wr")), (credits, max_send_wr), "{args}");
            assert_eq!(n("cq_entries"), max_send_wr + n("max_recv_wr"), "{args}");
            let bytes = (row.pages * 4096).min(1 << 20);
            assert_eq!(n("max_payload_bytes"), bytes, "{args}");
            let asked = [("credits", 128, credits), ("max_payload_bytes", 1 << 20, bytes)];
            let lowered: Vec<_> = asked.into_iter().filter(|(_, asked, got)| got < asked).collect();
            assert_eq!(clamped(&plan["sizing"]), lowered, "{args}");
        }
    }
}

/// What was lowered: what, asked, got.
fn clamped(sizing: &Value) -> Vec<(&str, u64, u64)> {
    let one = |c: &'_ Value| (c["asked"].as_u64().unwrap(), c["got"].as_u64().unwrap());
    let all = sizing["clamped"].as_array().unwrap().iter();
    all.map(|c| (c["what"].as_str().unwrap(), one(c).0, one(c).1)).collect()
}

#[test]
fn b37_a_queue_of_six_is_too_short_for_frwr_and_the_numbers_say_so() {
    for Row { page_list, wr, .. } in TABLE {
        let args = format!("--set strategy.name=frwr {}", device(page_list, 6));
        let (plan, code, stderr) = plan(&args);
        assert_eq!((code, &plan["chosen"], &plan["sizing"]), (Some(3), &Value::Null, &Value::Null));
        let need = format!("needs {} send-queue slots ({wr} WRs", wr + 1);
        for text in [plan["refusal"].as_str().unwrap(), &stderr] {
            assert!(text.contains(&need) && text.contains("max_qp_wr is 6"), "{text}");
        }
    }
}

#[test]
fn auto_goes_on_with_what_needs_less_and_says_why() {
    let (plan, code, _) = plan(&device(257, 6));
    assert_eq!((code, &plan["chosen"]), (Some(0), &"fmr".into()));
    assert_eq!(
        (&plan["sizing"]["credits"], &plan["sizing"]["max_send_wr"]),
        (&5.into(), &6.into())
    );
    let frwr = &plan["candidates"][0];
    assert_eq!((&frwr["name"], &frwr["eligible"]), (&"frwr".into(), &false.into()));
    assert!(frwr["reason"].as_str().unwrap().contains("max_qp_wr is 6"));
}

#[test]
fn message_buffers_are_part_of_the_plan() {
    let (plan, code, _) = plan("--set device.caps.max_mr_size=1MiB");
    assert_eq!((code, &plan["chosen"]), (Some(0), &"fmr".into()));
    let why = plan["candidates"][0]["reason"].as_str().unwrap();
    assert!(why.contains("3674112 bytes in one MR (897 send slots of 4096 bytes)"), "{why}");
    assert!(why.ends_with("max_mr_size is 1048576"), "{why}");
    // What is planned is what opens.
    let report = json("compare --json --ops 1 --sizes 4KiB --set device.caps.max_mr_size=1MiB");
    let frwr = crate::strategy(&report, "frwr");
    assert_eq!((&frwr["eligible"], &frwr["reason"]), (&false.into(), &why.into()));
}

#[test]
fn windows_are_planned_probed_and_compared_where_there_is_nothing_else() {
    let set = "--set device.profile=rxe";
    let (plan, _, _) = plan(set);
    assert_eq!((&plan["chosen"], &plan["sizing"]["mechanism"]), (&"frwr".into(), &"window".into()));
    assert_eq!(plan["sizing"]["page_list_depth"], 0);
    let report = json(&format!("compare --json --ops 1 --sizes 4KiB {set}"));
    let frwr = crate::strategy(&report, "frwr");
    assert_eq!((&frwr["mechanism"], &frwr["verified"]), (&"window".into(), &true.into()));
    let ran = run(&mut memreg(&format!("compare --ops 1 --sizes 4KiB {set}")));
    assert!(ran.stdout.contains("| frwr (windows) |"), "{}", ran.stdout);
    let generic = run(&mut memreg("compare --ops 1 --sizes 4KiB"));
    assert!(generic.stdout.contains("| page list "), "{}", generic.stdout);
}

const PROBE: &[Shape] = &[
    ("schema", |v| v == 1),
    ("command", |v| v == "probe"),
    ("device", |v| v == "software device"),
    ("name", Value::is_string),
    ("profile", Value::is_string),
    ("chosen", Value::is_string),
    ("attributes", Value::is_array),
    ("strategies", Value::is_array),
];

const ATTRIBUTE: &[Shape] = &[
    ("name", Value::is_string),
    ("reported", |v| !v.is_null()),
    ("usable", |v| !v.is_null()),
    ("seen", |v| v.is_string() || v.is_null()),
];

const STEP: &[Shape] = &[
    ("step", Value::is_string),
    ("required", Value::is_boolean),
    ("outcome", |v| matches!(v.as_str(), Some("proven" | "not_proven" | "not_tried"))),
    ("detail", |v| v.is_string() || v.is_null()),
];

#[test]
fn the_probe_shows_attributes_beside_what_was_seen() {
    for profile in ["generic", "rxe", "connectx-5-like", "efa-like", "page-list-0", "shallow"] {
        let set = format!("--set device.profile={profile} --set strategy.danger_trust_peer=true");
        let report = json(&format!("probe --json {set}"));
        check(PROBE, &report);
        let attributes = report["attributes"].as_array().unwrap();
        for attribute in attributes {
            check(ATTRIBUTE, attribute);
            assert_eq!(attribute["reported"], attribute["usable"], "{profile}: no word was broken");
        }
        let row = |name: &str| attributes.iter().find(|a| a["name"] == name).unwrap();
        let by_windows = profile == "rxe";
        assert_eq!(row("mem_window_type_2b")["seen"].is_string(), by_windows, "{profile}");
        assert!(row("max_cqe")["seen"].is_null(), "nobody tried");
        for strategy in report["strategies"].as_array().unwrap() {
            let steps = strategy["steps"].as_array().unwrap();
            for step in steps {
                check(STEP, step);
            }
            let failed = |s: &&Value| s["required"] == true && s["outcome"] == "not_proven";
            let works = strategy["works"].as_bool().unwrap();
            assert_eq!(works, !steps.iter().any(|s| failed(&s)), "{profile}: {strategy}");
            assert_eq!(works, steps.len() > 1, "{profile}: {strategy}");
        }
        let chosen = report["chosen"].as_str().unwrap();
        assert_eq!(chosen, plan(&set).0["chosen"], "{profile}");
    }
}

#[test]
fn b58_b59_ordering_and_device_are_held_against_each_other() {
    let with = |args: &str| run(&mut memreg(&format!("plan {args}")));
    let tried = with("--set device.relaxed_ordering=try");
    assert_eq!(tried.code, Some(0), "{}", tried.stderr);
    let said = tried.stderr.matches("has no relaxed ordering: it works without").count();
    assert_eq!((said, tried.stderr.lines().count()), (1, 1), "once: {}", tried.stderr);
    let required = with("--set device.relaxed_ordering=require");
    assert_eq!(required.code, Some(3), "{}", required.stderr);
    assert_eq!(required.stderr.matches("cannot be had").count(), 1, "{}", required.stderr);
    let mandatory = "--set device.caps.relaxed_ordering=true \
                     --set device.caps.relaxed_ordering_always=true";
    for setting in ["auto", "try", "require"] {
        let ran = with(&format!("{mandatory} --set device.relaxed_ordering={setting}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{setting}");
    }
    let off = with(&format!("{mandatory} --set device.relaxed_ordering=off"));
    assert_eq!(off.code, Some(2), "a conflict of the configuration: {}", off.stderr);
    assert!(off.stderr.contains("sim: device.relaxed_ordering = \"off\" cannot be had"));
}
