//! An audit for people.

use super::check::{Audit, KeyLife};
use std::fmt;

/// The verdict in one line, then each violation.
impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.violations.is_empty() { "safe" } else { "NOT SAFE" };
        let (keys, dead) = (self.keys.len(), self.keys.len() - self.live.min(self.keys.len()));
        write!(
            f,
            "{verdict}: {} lines, {keys} keys granted, {dead} proven dead, {} live at the end, \
             {} exposures given back, {} violations",
            self.lines,
            self.live,
            self.exposures_back,
            self.violations.len()
        )?;
        if !self.complete {
            write!(f, "\nearlier lines were dropped: nothing is said of keys granted in them")?;
        }
        self.violations.iter().try_for_each(|v| write!(f, "\nline {}: {}", v.seq, v.what))
    }
}

/// One key in one line: WRs, rule and the line that proves it.
impl fmt::Display for KeyLife {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {} key {} exposure {}: ", self.region, self.key, self.exposure)?;
        match self.granted_by {
            Some(wr) => write!(f, "granted by WR {:#x}", wr)?,
            None => write!(f, "granted by a verb")?,
        }
        if let Some(wr) = self.invalidated_by {
            write!(f, ", LOCAL_INV in WR {wr:#x}")?;
        }
        match (&self.rule, self.evidence) {
            (Some(rule), Some(line)) => write!(f, ", dead by {rule} (line {line})"),
            (Some(rule), None) => write!(f, ", claimed dead by {rule}, not proven"),
            (None, _) => write!(f, ", live"),
        }
    }
}
