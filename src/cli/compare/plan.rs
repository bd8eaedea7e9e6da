//! What is compared: the device, the strategies, the sizes.

use super::bench::Bench;
use super::data::Data;
use super::figures::{Figures, Running};
use super::pair::{Layout, Pair, PairError};
use crate::OpenError;
use crate::cli::failure::{Failure, chain};
use crate::cli::serve::needs_a_real_device;
use crate::cli::{address, args};
use crate::open::{build_options, open_options, wanted};
use anyhow::anyhow;
use memreg_config::{Settings, parse_size, rounded_size};
use memreg_core::transport::error::OpenError as TransportError;
use memreg_selector::{Candidate, SelectError, Tried, candidates, rechoose};
use memreg_strategies::{Registry, Strategy};
use std::net::SocketAddr;
use std::path::PathBuf;

/// All that is known before the first transfer.
#[derive(Debug)]
pub(super) struct Plan {
    /// The devices.
    pub bench: Bench,
    /// What the configuration would open.
    pub selected: Option<&'static str>,
    /// Every known strategy.
    pub contenders: Vec<Contender>,
    /// In the order in which they were asked for.
    pub sizes: Vec<Size>,
    /// Where the peer is, if it is in another process.
    pub connect: Option<SocketAddr>,
    /// Why nothing is transferred at all.
    pub refusal: Option<Failure>,
}

/// One size to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Size {
    pub bytes: usize,
    pub ops: u32,
}

/// One known strategy.
#[derive(Debug)]
pub(super) struct Contender {
    pub candidate: Candidate,
    pair: Option<Pair>,
    /// The size being measured.
    pub running: Option<Running>,
    /// The sizes measured with one buffer.
    pub figures: Vec<Figures>,
    /// The sizes measured with gaps.
    pub gaps: Vec<Figures>,
    /// What went wrong.
    pub fault: Option<String>,
    /// Where the ledger of its keys was written.
    pub trace: Option<PathBuf>,
}

impl Contender {
    /// Its transports, unless it is out.
    pub fn live(&mut self) -> Option<&mut Pair> {
        self.pair.as_mut().filter(|_| self.fault.is_none())
    }

    /// Whether it is still in.
    pub fn is_live(&self) -> bool {
        self.pair.is_some() && self.fault.is_none()
    }

    /// Its transports, also after it went wrong.
    pub fn pair(&self) -> Option<&Pair> {
        self.pair.as_ref()
    }

    /// Notes what went wrong and where.
    pub fn fail(&mut self, size: usize, op: u32, fault: &anyhow::Error) {
        let name = self.candidate.name;
        self.fault =
            Some(format!("strategy {name}, size {size}, operation {op}: {}", chain(fault)));
    }

    /// Closes the figures of a size.
    pub fn finish_size(&mut self, layout: Layout) {
        if let (Some(running), Some(pair)) = (self.running.take(), &self.pair) {
            let into = match layout {
                Layout::Whole => &mut self.figures,
                Layout::Gaps => &mut self.gaps,
            };
            into.extend(running.finish(pair.counters()));
        }
    }
}

impl Plan {
    /// Gap-capable keys cost more than plain ones on real devices, so where there are both, both
    /// are measured.
    pub fn layouts(&self) -> &'static [Layout] {
        if self.bench.caps().sg_gaps { &[Layout::Whole, Layout::Gaps] } else { &[Layout::Whole] }
    }

    /// Opens the device once per strategy and asks each whether it can work there.
    pub fn make(settings: &Settings, args: &args::Compare, data: &Data) -> Result<Plan, Failure> {
        let sizes = sizes(settings, args, data)?;
        let connect = connect(settings, args)?;
        let bench = Bench::open(settings)?;
        let registry = Registry::new().map_err(Failure::usage)?;
        let (pairs, tried) =
            open_pairs(&registry, settings, &bench, connect.map(|to| (to, &sizes[..])))?;
        let options = build_options(settings);
        let (ask, wanted) = (&settings.ask, wanted(settings));
        let choice = rechoose(&registry, bench.caps(), ask, &wanted, &options, &tried);
        let (selected, candidates, refusal) = match choice {
            Ok(c) => {
                let name = c.candidates.iter().find(|c| c.chosen).map(|c| c.name);
                (name, c.candidates, None)
            }
            Err(e @ SelectError::Unknown { .. }) => return Err(OpenError::from(e).into()),
            // Another strategy may still be worth measuring, unless the user named this one.
            Err(SelectError::NoneEligible { candidates }) if !pairs.is_empty() => {
                (None, candidates, None)
            }
            Err(e) => (None, e.candidates().to_vec(), Some(refuse(&e))),
        };
        let contenders = contenders(candidates, pairs);
        Ok(Plan { bench, selected, contenders, sizes, connect, refusal })
    }
}

fn refuse(e: &SelectError) -> Failure {
    let remedy = match e {
        SelectError::Explicit { .. } => "; strategy.name = \"auto\" compares the others",
        _ => "; memreg devices lists what the profiles offer",
    };
    Failure::unsuitable(anyhow!("{e}{remedy}"))
}

type Pairs = Vec<(&'static str, Pair)>;

/// Opens a pair for each strategy that says it can work; the device may still know better (B17).
fn open_pairs(
    registry: &Registry,
    settings: &Settings,
    bench: &Bench,
    connect: Option<(SocketAddr, &[Size])>,
) -> Result<(Pairs, Vec<Tried>), Failure> {
    let options = build_options(settings);
    let (mut pairs, mut tried) = (vec![], vec![]);
    for c in candidates(registry, bench.caps(), &settings.ask, &options) {
        if !c.eligible {
            continue;
        }
        let strategy = registry.build(c.name, &options).map_err(Failure::usage)?;
        let opened = match connect {
            None => Pair::open(bench.ends()?, &open_options(settings), strategy),
            Some((to, sizes)) => dial(settings, strategy, to, sizes)?,
        };
        let failed = match opened {
            Ok(pair) => {
                pairs.push((c.name, pair));
                continue;
            }
            Err(PairError::Open(TransportError::Device { source, .. })) => source.to_string(),
            Err(PairError::Open(e)) => return Err(OpenError::from(e).into()),
            Err(e @ PairError::Connect(_)) => chain(&e.into()),
            // What keeps one strategy from the peer keeps them all.
            #[cfg(all(feature = "verbs", target_os = "linux"))]
            Err(PairError::Cm(e)) => return Err(e.into()),
            #[cfg(all(feature = "verbs", target_os = "linux"))]
            Err(PairError::Answer(e)) => return Err(Failure::workload(e)),
        };
        tried.push(Tried { name: c.name.to_owned(), failed });
    }
    Ok((pairs, tried))
}

/// Where the peer is, if not here.
fn connect(settings: &Settings, args: &args::Compare) -> Result<Option<SocketAddr>, Failure> {
    let Some(text) = &args.connect else { return Ok(None) };
    let to = address::parse(text, "--connect")?;
    if to.port() == 0 {
        return Err(Failure::usage(anyhow!("--connect {text}: nobody listens on port 0")));
    }
    needs_a_real_device(settings, "memreg compare --connect")?;
    Ok(Some(to))
}

#[cfg(all(feature = "verbs", target_os = "linux"))]
fn dial(
    settings: &Settings,
    strategy: Strategy,
    to: SocketAddr,
    sizes: &[Size],
) -> Result<Result<Pair, PairError>, Failure> {
    let most = sizes.iter().map(|s| s.bytes as u64).max().unwrap_or(0);
    let device = crate::open_device(settings)?;
    Ok(Pair::dial(device, &open_options(settings), strategy, to, most))
}

#[cfg(not(all(feature = "verbs", target_os = "linux")))]
fn dial(
    _: &Settings,
    _: Strategy,
    _: SocketAddr,
    _: &[Size],
) -> Result<Result<Pair, PairError>, Failure> {
    Err(OpenError::VerbsNotBuilt.into())
}

fn contenders(candidates: Vec<Candidate>, mut pairs: Pairs) -> Vec<Contender> {
    let mut take = |name| {
        let at = pairs.iter().position(|(n, _)| *n == name)?;
        Some(pairs.swap_remove(at).1)
    };
    let new = |candidate: Candidate| Contender {
        pair: take(candidate.name),
        candidate,
        running: None,
        figures: vec![],
        gaps: vec![],
        fault: None,
        trace: None,
    };
    candidates.into_iter().map(new).collect()
}

const DEFAULT_SIZES: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
/// A debug build copies bytes some fifty times slower.
const DEFAULT_OPS: u32 = if cfg!(debug_assertions) { 50 } else { 1000 };
/// One operation is held in memory several times over.
const SIZE_MOST: u64 = 1 << 30;

fn sizes(settings: &Settings, args: &args::Compare, data: &Data) -> Result<Vec<Size>, Failure> {
    let most = settings.ask.max_payload_bytes;
    let mut list: Vec<u64> = vec![];
    for text in &args.sizes {
        let bytes = one_size(text, most)
            .map_err(|why| Failure::usage(anyhow!("--sizes {}: {why}", text.escape_debug())))?;
        if list.contains(&bytes) {
            return Err(Failure::usage(anyhow!("--sizes: {bytes} bytes are given twice")));
        }
        list.push(bytes);
    }
    if list.is_empty() {
        list.extend(DEFAULT_SIZES.iter().filter(|s| **s <= most));
    }
    if list.is_empty() {
        list.push(most);
    }
    list.into_iter().map(|bytes| with_ops(bytes as usize, args, data)).collect()
}

fn one_size(text: &str, most: u64) -> Result<u64, String> {
    let bytes = parse_size(text.trim()).map_err(|e| {
        format!("{e}; allowed: 1..={most} bytes, or with KiB, MiB, GiB, KB, MB, GB")
    })?;
    if bytes == 0 {
        return Err("is zero; give at least 1 byte".to_owned());
    }
    if bytes > SIZE_MOST {
        return Err("is more than the 1 GiB that one operation can have here".to_owned());
    }
    if bytes > most {
        let most = rounded_size(most).unwrap_or_else(|| format!("{most} bytes"));
        return Err(format!(
            "is above memory.max_payload = {most}; raise it with --set memory.max_payload={bytes}"
        ));
    }
    Ok(bytes)
}

fn with_ops(bytes: usize, args: &args::Compare, data: &Data) -> Result<Size, Failure> {
    let cover = data.chunks(bytes).unwrap_or(0);
    let cover = u32::try_from(cover).map_err(|_| {
        Failure::usage(anyhow!("--file: {cover} operations of {bytes} bytes; give larger --sizes"))
    })?;
    let default = if cover > 0 { cover } else { DEFAULT_OPS };
    Ok(Size { bytes, ops: args.ops.unwrap_or(default).max(cover) })
}
