//! `memreg strategies`: what is linked into this program.

use super::failure::Failure;
use super::table::layout;
use super::{Answer, SCHEMA, json};
use memreg_strategies::Registry;
use serde::Serialize;

#[derive(Serialize)]
struct Report {
    schema: u32,
    command: &'static str,
    strategies: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    about: &'static str,
    plugin: bool,
}

/// Lists the strategies by name.
pub(super) fn run(as_json: bool) -> Result<Answer, Failure> {
    let registry = Registry::new().map_err(Failure::usage)?;
    let row = |k: memreg_strategies::Known| Row { name: k.name, about: k.about, plugin: k.plugin };
    let strategies: Vec<Row> = registry.known().map(row).collect();
    if as_json {
        let report = Report { schema: SCHEMA, command: "strategies", strategies };
        return Ok(Answer::done(json(&report)));
    }
    let origin = |r: &Row| if r.plugin { "plugin" } else { "built in" }.to_owned();
    let rows: Vec<Vec<String>> =
        strategies.iter().map(|r| vec![r.name.into(), origin(r), r.about.into()]).collect();
    Ok(Answer::done(layout(&["strategy", "origin", "about"], &rows, 3)))
}
