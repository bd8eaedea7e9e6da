//! The command line: parse, run, print.
//!
//! stdout carries the result and nothing else, stderr everything else. A plugin's own program is
//! three lines: `use the_plugin as _;` and a `main` that returns [`run`].

mod address;
mod args;
mod audit;
mod bytes;
mod clock;
mod compare;
mod devices;
mod failure;
mod host;
mod plan;
mod probe;
mod progress;
mod serve;
mod show_config;
mod strategies;
mod table;
mod target;

use args::{Args, Command, Common};
use clap::Parser;
use failure::Failure;
use memreg_config::{Loaded, Loader, Settings, StrategyChoice};
use memreg_strategies::{BuildError, Registry};
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Runs the command line of this process and returns its exit code.
///
/// # Errors
/// 0: done. 1: the workload failed, such as one wrong byte. 2: usage or configuration. 3: no
/// suitable device or strategy. A closed stdout is not an error.
pub fn run() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) => {
            // Help and version are the result, and go to stdout; who closed it did not want it.
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(failure::USAGE));
        }
    };
    let answer = dispatch(&args).unwrap_or_else(Answer::from);
    let printed = print(&answer.stdout);
    for line in answer.failure.iter().flat_map(|f| f.lines()) {
        diagnose(&format!("error: {line}"));
    }
    match (&answer.failure, printed) {
        (Some(failure), _) => ExitCode::from(failure.code()),
        (None, Ok(())) => ExitCode::SUCCESS,
        (None, Err(e)) => {
            diagnose(&format!("error: writing the result: {e}"));
            ExitCode::from(failure::WORKLOAD)
        }
    }
}

/// What a command has to say: a result, a failure, or, after half of the work, both.
#[derive(Debug, Default)]
struct Answer {
    stdout: String,
    failure: Option<Failure>,
}

impl Answer {
    fn done(stdout: String) -> Answer {
        Answer { stdout, failure: None }
    }
}

impl From<Failure> for Answer {
    fn from(failure: Failure) -> Answer {
        Answer { stdout: String::new(), failure: Some(failure) }
    }
}

fn dispatch(args: &Args) -> Result<Answer, Failure> {
    let common = args.common();
    match &args.command {
        Command::Config(c) if c.reference => Ok(show_config::reference(common.json)),
        Command::Config(_) => Ok(show_config::run(&load(&common, &[])?, common.json)),
        Command::Devices(_) => devices::run(&load(&common, &[])?.settings, common.json),
        Command::Strategies(_) => strategies::run(common.json),
        Command::Plan(_) => plan::run(&load(&common, ALSO_USES)?.settings, common.json),
        Command::Probe(_) => probe::run(&load(&common, ALSO_USES)?.settings, common.json),
        Command::Audit(c) => audit::run(c, common.json),
        Command::Serve(c) => serve::run(&load(&common, ALSO_USES)?.settings, c, common.json),
        Command::Compare(c) => compare::run(&load(&common, ALSO_USES)?, c, common.json),
    }
}

/// Keys that count where every strategy is a candidate, although `auto` does not look at them.
const ALSO_USES: &[&str] = &["strategy.danger_trust_peer", "strategy.order"];

/// The configuration of this process: files named, environment, `--set`.
///
/// Keys in `also_used` have an effect in this command even where one open transport would not look
/// at them, so that there is nothing to warn of.
fn load(common: &Common, also_used: &[&str]) -> Result<Loaded, Failure> {
    let registry = Registry::new().map_err(Failure::usage)?;
    let plugins = registry.known().filter(|k| k.plugin).map(|k| k.name);
    let mut loader = Loader::new().env(std::env::vars_os()).plugins(plugins);
    for file in &common.config {
        loader = loader.file(file);
    }
    for set in &common.set {
        loader = loader.set(set);
    }
    let loaded = loader.load().map_err(Failure::config)?;
    check_plugins(&registry, &loaded.settings)?;
    for warning in loaded.warnings.iter().filter(|w| !also_used.contains(&w.key.as_str())) {
        diagnose(&format!("warning: {warning}"));
    }
    Ok(loaded)
}

/// Builds each plugin that the configuration may take: what it says of its options is an error of
/// the configuration, not a property of the device.
fn check_plugins(registry: &Registry, settings: &Settings) -> Result<(), Failure> {
    let wanted = match &settings.strategy.choice {
        StrategyChoice::Named(name) => std::slice::from_ref(name),
        StrategyChoice::Auto { order } => order.as_slice(),
    };
    let options = crate::open::build_options(settings);
    for known in registry.known().filter(|k| k.plugin) {
        if wanted.iter().any(|w| w == known.name)
            && let Err(e @ BuildError::Plugin { .. }) = registry.build(known.name, &options)
        {
            return Err(Failure::usage(anyhow::anyhow!("strategy.options: {e}")));
        }
    }
    Ok(())
}

/// Writes the result; that the reader has gone is not an error.
fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Writes one line for people. There is nobody to tell if stderr is closed.
fn diagnose(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// One JSON object and a line break.
fn json(value: &impl serde::Serialize) -> String {
    // Only maps with keys that are not text could fail, and there are none.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// Version of every JSON object that is printed. Fields may join; a field that goes or changes its
/// meaning raises it.
const SCHEMA: u32 = 1;
