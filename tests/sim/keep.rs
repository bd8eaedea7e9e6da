//! What is kept of a failure: the ledger of each side, as a trace that `memreg audit` reads.

use memreg_core::transport::Ledger;
use std::path::{Path, PathBuf};

/// Writes the traces of one failure to files named after it, and says where, each with what the
/// auditor finds.
pub fn traces<'a>(of: &str, ledgers: impl Iterator<Item = (String, &'a Ledger)>) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("traces");
    std::fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    ledgers
        .map(|(side, ledger)| {
            let path = folder.join(format!("{of}-{side}.trace").replace(' ', "-"));
            let text = ledger.to_string();
            std::fs::write(&path, &text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let audit = memreg::audit::audit(&text).unwrap_or_else(|e| panic!("{side}: {e}"));
            let first = audit.violations.first().map(|v| format!(": line {}: {}", v.seq, v.what));
            let found = first.map_or("safe".to_owned(), |v| format!("NOT SAFE{v}"));
            eprintln!("trace of {side}: {}: {found}", path.display());
            path
        })
        .collect()
}
