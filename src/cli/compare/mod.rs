//! `memreg compare`: the same real transfers through every eligible strategy, every byte verified.
//!
//! - [`plan`]: which strategies, sizes and operations
//! - [`bench`]: the devices
//! - [`data`]: the bytes
//! - [`pair`]: an owner and a peer, and one operation between them
//! - `dial`, `there`: with a peer in another process
//! - [`figures`]: what it cost
//! - [`report`], [`text`]: the result
//! - [`traces`]: the ledgers of the owners' keys
//!
//! The strategies take turns at every operation, so that whatever else the host does meets all of
//! them alike.

mod bench;
mod data;
#[cfg(all(feature = "verbs", target_os = "linux"))]
mod dial;
mod figures;
mod pair;
mod plan;
mod report;
mod text;
#[cfg(any(test, all(feature = "verbs", target_os = "linux")))]
mod there;
mod traces;

use super::failure::Failure;
use super::progress::Progress;
use super::{Answer, args, json};
use data::Data;
use figures::Running;
use memreg_config::Loaded;
use pair::Layout;
use plan::{Contender, Plan};
use report::Report;

/// Compares the strategies.
pub(super) fn run(loaded: &Loaded, args: &args::Compare, as_json: bool) -> Result<Answer, Failure> {
    let mut data = Data::open(args.file.as_deref(), &loaded.settings)?;
    let mut plan = Plan::make(&loaded.settings, args, &data)?;
    if let Some(dir) = &args.trace {
        traces::prepare(dir)?;
    }
    if plan.refusal.is_none() {
        measure(&mut plan, &mut data)?;
    }
    let unwritten = args.trace.as_ref().and_then(|dir| traces::write(&mut plan, dir).err());
    let report = Report::new(loaded, &plan, &data);
    let stdout = if as_json { json(&report) } else { text::render(&report) };
    let failure = plan.refusal.take().or_else(|| failed(&plan)).or(unwritten);
    Ok(Answer { stdout, failure })
}

/// Runs every operation of every size; a strategy that goes wrong is out from then on.
fn measure(plan: &mut Plan, data: &mut Data) -> Result<(), Failure> {
    let per_layout: u64 = plan.sizes.iter().map(|s| u64::from(s.ops)).sum();
    let layouts = plan.layouts();
    let mut progress = Progress::new(per_layout * layouts.len() as u64, "operations");
    let mut bytes = vec![];
    for &layout in layouts {
        for size in &plan.sizes {
            for c in &mut plan.contenders {
                warm_up(c, size.bytes, layout, data, &mut bytes)?;
            }
            for op in 0..size.ops {
                data.chunk(op, size.bytes, &mut bytes)?;
                for c in &mut plan.contenders {
                    one(c, size.bytes, op, &bytes);
                }
                progress.step(|| format!("{} bytes each", size.bytes));
                if !plan.contenders.iter().any(Contender::is_live) {
                    // Nobody is left, for instance because the other process is gone.
                    break;
                }
            }
            for c in &mut plan.contenders {
                c.finish_size(layout);
            }
        }
    }
    Ok(())
}

/// One operation that is verified and not counted: it makes what later ones find made.
fn warm_up(
    c: &mut Contender,
    size: usize,
    layout: Layout,
    data: &mut Data,
    bytes: &mut Vec<u8>,
) -> Result<(), Failure> {
    let Some(pair) = c.live() else { return Ok(()) };
    data.chunk(0, size, bytes)?;
    let outcome = pair.resize(size, layout).and_then(|()| pair.operation(bytes));
    let before = pair.counters();
    match outcome {
        Ok(_) => c.running = Some(Running::new(size, before)),
        Err(fault) => c.fail(size, 0, &fault),
    }
    Ok(())
}

fn one(c: &mut Contender, size: usize, op: u32, bytes: &[u8]) {
    let Some(pair) = c.live() else { return };
    match pair.operation(bytes) {
        Ok(done) => {
            if let Some(running) = &mut c.running {
                running.add(done, bytes.len());
            }
        }
        Err(fault) => c.fail(size, op, &fault),
    }
}

/// Every strategy that went wrong, in one failure, each with its trace or the way to one.
fn failed(plan: &Plan) -> Option<Failure> {
    let of = |c: &Contender| {
        let fault = c.fault.as_deref()?;
        Some(match &c.trace {
            Some(path) => format!("{fault}; its keys are in {}", path.display()),
            None => format!("{fault}; --trace DIR keeps the ledger of its keys"),
        })
    };
    let faults: Vec<String> = plan.contenders.iter().filter_map(of).collect();
    (!faults.is_empty()).then(|| Failure::workload(anyhow::anyhow!("{}", faults.join("\n"))))
}
