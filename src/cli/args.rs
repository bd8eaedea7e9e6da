//! The arguments.

use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Expose memory to a remote peer over RDMA, fast, and take it back safely.
#[derive(Debug, Parser)]
#[command(name = "memreg", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  memreg compare                               every strategy on the software device
  memreg compare --file data.bin --json        the content of a file, the result as JSON
  memreg compare --set device.profile=shallow  on a device with page lists of 16
  memreg plan                                  which strategy, with which queues, and why
  memreg probe                                 what the device does of what it says
  memreg serve 192.168.77.1                    wait there for compare --connect 192.168.77.1
  memreg compare --trace traces                also keep each ledger of keys
  memreg audit traces/frwr.trace               and check one
  memreg --config memreg.toml config           every value and where it came from
  memreg config --reference > memreg.toml      a commented file to start from

Exit codes: 0 ok, 1 the workload failed, 2 usage or configuration, 3 no suitable device or strategy.
";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the same transfers through every strategy, verify every byte and show what each costs.
    Compare(Compare),
    /// Be the other process of compare --connect, on a real device.
    Serve(Serve),
    /// Show which strategy would be opened, with which sizes, and why not another.
    Plan(Plan),
    /// Try on the device itself what each strategy needs, beside what the device says of itself.
    Probe(Probe),
    /// Check a trace of granted keys: by the device's answers alone, was every key dead when its
    /// bytes were given back?
    Audit(Audit),
    /// List the profiles of the software device, and which one the configuration selects.
    Devices(Devices),
    /// List the strategies that are linked into this program, plugins included.
    Strategies(Strategies),
    /// Show every value of the configuration with its origin, meaning and range.
    Config(Config),
}

/// Arguments of every command, before or after its name.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Common {
    /// Read this TOML file; can be repeated, a later one wins. No file is read without being named.
    #[arg(long, value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// Set one value, over files and environment; can be repeated.
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = COMPARE_EXAMPLES)]
pub(super) struct Compare {
    #[command(flatten)]
    common: Common,
    /// Transfer the content of this file; without it, bytes made from device.seed.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Bytes of one operation [default: those of 4KiB,64KiB,1MiB up to memory.max_payload].
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    pub sizes: Vec<String>,
    /// Operations of each size [default: 1000, in a debug build 50; with --file, as many as
    /// cover it]. A file is always
    /// covered whole, also if that takes more.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=OPS_MOST))]
    pub ops: Option<u32>,
    /// Compare against memreg serve at this address, in another process or on another host; needs a
    /// real device on both sides. Names, IPv4, and IPv6 in brackets; port 18517 unless told
    /// otherwise.
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub connect: Option<String>,
    /// Write the ledger of each strategy's keys to DIR/<strategy>.trace, for memreg audit: the last
    /// few thousand events.
    #[arg(long, value_name = "DIR")]
    pub trace: Option<PathBuf>,
}

/// Every sample is kept, so there is an end.
const OPS_MOST: i64 = 10_000_000;

const COMPARE_EXAMPLES: &str = "\
Examples:
  memreg compare
  memreg compare --file Cargo.lock --sizes 4KiB,64KiB
  memreg compare --set strategy.danger_trust_peer=true      physical as well
  memreg compare --set device.profile=no-fast-registration  why frwr is out there
  memreg compare --ops 100 --trace traces                   traces/frwr.trace and others
  memreg compare --set device.kind=verbs --connect 192.168.77.1   against memreg serve there

With --connect this process owns the memory, and the other reads and writes it. Every byte is looked
at on both sides: the other compares a sum of all that it has read, this one every byte that the
other writes back.
";

#[derive(Debug, clap::Args)]
#[command(after_help = SERVE_EXAMPLES)]
pub(super) struct Serve {
    #[command(flatten)]
    common: Common,
    /// Listen here: an address of the RDMA device, or 0.0.0.0 or [::] for all; port 18517 unless
    /// told otherwise, 0 for a free one.
    #[arg(value_name = "ADDR[:PORT]")]
    pub address: String,
    /// End when the first client has left, and print what was done.
    #[arg(long)]
    pub once: bool,
    /// Give a client up that is silent for so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub patience: u64,
}

const SERVE_EXAMPLES: &str = "\
Examples:
  memreg serve 192.168.77.1 --set device.kind=verbs
  memreg serve 0.0.0.0:7000 --set device.kind=verbs --set memory.max_payload=16MiB
  memreg serve 192.168.77.1 --once --json --set device.kind=verbs

Serves any number of clients, one operation of memory.max_payload bytes at most each, until it is
ended by a signal; nothing is left on the device. A client that says what makes no sense, falls
silent or dies is told apart on stderr, and the next one is served.
Exit codes: 0 the client of --once was served, 1 something went wrong with it, 2 usage or
configuration, 3 no suitable device, or no RDMA CM.
";

#[derive(Debug, clap::Args)]
#[command(after_help = PLAN_EXAMPLES)]
pub(super) struct Plan {
    #[command(flatten)]
    common: Common,
}

const PLAN_EXAMPLES: &str = "\
Examples:
  memreg plan
  memreg plan --json --set device.caps.max_fast_reg_page_list_len=30
  memreg plan --set strategy.name=frwr --set device.caps.max_qp_wr=6   exit 3: too few for frwr

With strategy.name = \"auto\" a strategy that does not fit is passed over, with its numbers as the
reason, and the next of strategy.order is planned. A strategy that is named fits, or it is exit 3.
";

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  memreg probe\n  \
                        memreg probe --json --set strategy.danger_trust_peer=true\n\n\
                        Exit 3 if the strategy that the configuration asks for did not pass.\n")]
pub(super) struct Probe {
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
#[command(after_help = AUDIT_EXAMPLES)]
pub(super) struct Audit {
    #[command(flatten)]
    common: Common,
    /// The trace; - reads it from stdin.
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// Also show every key: the WRs that granted and ended it, the rule, the line that proves it.
    #[arg(long)]
    pub keys: bool,
}

const AUDIT_EXAMPLES: &str = "\
Examples:
  memreg compare --trace traces && memreg audit traces/frwr.trace
  memreg audit --keys traces/frwr.trace
  memreg audit --json - < traces/fmr.trace

Lines are named by the number that they start with.
Exit codes: 0 safe, 1 not safe, 2 the file cannot be read or is no trace.
";

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  memreg devices --set device.profile=connectx-5-like\n")]
pub(super) struct Devices {
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
pub(super) struct Strategies {
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  memreg config --set queues.credits=64\n  \
                        MEMREG__QUEUES__CREDITS=64 memreg config --json\n")]
pub(super) struct Config {
    #[command(flatten)]
    common: Common,
    /// Print a commented TOML file that sets every default.
    #[arg(long)]
    pub reference: bool,
}

impl Args {
    /// What stood before the command's name, then what stood after it.
    ///
    /// clap's own global arguments would drop the first where both are given.
    pub fn common(&self) -> Common {
        let after = match &self.command {
            Command::Compare(c) => &c.common,
            Command::Serve(c) => &c.common,
            Command::Plan(c) => &c.common,
            Command::Probe(c) => &c.common,
            Command::Audit(c) => &c.common,
            Command::Devices(c) => &c.common,
            Command::Strategies(c) => &c.common,
            Command::Config(c) => &c.common,
        };
        let mut all = self.common.clone();
        all.config.extend(after.config.iter().cloned());
        all.set.extend(after.set.iter().cloned());
        all.json |= after.json;
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn common_arguments_count_on_both_sides_of_the_command() {
        let line = "memreg --set a.b=1 --json config --set a.b=2 --config f.toml";
        let c = Args::try_parse_from(line.split(' ')).unwrap().common();
        assert_eq!(c.set, ["a.b=1", "a.b=2"]);
        assert_eq!((c.json, c.config.len()), (true, 1));
    }
}
