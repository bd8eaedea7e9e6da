//! The ledgers of the owners' keys, as files for `memreg audit`.

use super::plan::Plan;
use crate::cli::failure::Failure;
use anyhow::Context;
use std::path::Path;

/// Makes the folder, so that what cannot be written is known before the work is done.
pub(super) fn prepare(dir: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(dir)
        .with_context(|| format!("--trace {}", dir.display()))
        .map_err(Failure::usage)
}

/// Writes the trace of every strategy that was opened, also of one that went wrong.
pub(super) fn write(plan: &mut Plan, dir: &Path) -> Result<(), Failure> {
    for c in &mut plan.contenders {
        let Some(trace) = c.pair().map(super::pair::Pair::trace) else { continue };
        let path = dir.join(c.candidate.name).with_extension("trace");
        std::fs::write(&path, trace)
            .with_context(|| format!("--trace: writing {}", path.display()))
            .map_err(Failure::workload)?;
        c.trace = Some(path);
    }
    Ok(())
}
