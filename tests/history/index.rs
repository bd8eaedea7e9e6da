//! Every row of the history has a test of its name, or its reason in the contract table.

use crate::source;
use std::collections::BTreeMap;

/// Bugs in the list.
const ROWS: u32 = 69;

#[test]
fn index() {
    let mut held: BTreeMap<u32, String> = BTreeMap::new();
    for file in source::files(&[".rs"]) {
        for f in source::functions(&file.text) {
            let is_check = file.path.starts_with("tests/conformance/src/checks/");
            if !f.runs_as_test && !is_check {
                continue;
            }
            for row in rows_in(&f.name) {
                let place = format!("{}:{}", file.path, f.name);
                let of_row = held.entry(row).or_default();
                if of_row.is_empty() || rank(&place) < rank(of_row) {
                    *of_row = place;
                }
            }
        }
    }
    let table: toml::Table = toml::from_str(include_str!("../contract.toml")).unwrap();
    let mut missing = vec![];
    println!();
    for row in 1..=ROWS {
        let id = format!("H-{row:02}");
        let disposition = table["ids"][&id].as_table().unwrap();
        let reason = ["replaced", "na", "open"].into_iter().find(|k| disposition.contains_key(*k));
        match (held.get(&row), reason) {
            (Some(place), _) => println!("{id} {place}"),
            (None, Some(key)) => println!("{id} {key}: {}", disposition[key].as_str().unwrap()),
            (None, None) => missing.push(id),
        }
    }
    assert!(missing.is_empty(), "no test is named after {missing:?}");
}

/// The test here comes first; a check of the suite, which has no test of its own, comes last.
fn rank(place: &str) -> u8 {
    match place {
        p if p.starts_with("tests/history/") => 0,
        p if p.starts_with("tests/conformance/") => 2,
        _ => 1,
    }
}

/// The rows in a name such as `uns_13_h_13_h_41_invalidate`.
fn rows_in(name: &str) -> Vec<u32> {
    let words: Vec<&str> = name.split('_').collect();
    let rows = words.windows(2).filter(|w| w[0] == "h" && w[1].len() == 2);
    rows.filter_map(|w| w[1].parse().ok()).collect()
}

#[test]
fn a_name_is_read_as_written() {
    assert_eq!(rows_in("uns_13_h_13_h_41_invalidate_then"), [13, 41]);
    assert!(rows_in("map_06_hundred_cycles").is_empty());
}
