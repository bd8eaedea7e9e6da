//! What the operations of one size cost.

use memreg_core::transport::Stats;
use serde::Serialize;
use std::time::Duration;

/// Counters of the owner and of its device at one moment.
#[derive(Clone, Debug)]
pub(super) struct Counters {
    pub stats: Stats,
    /// See [`Figures::verb_calls_per_op`].
    pub verb_calls: u64,
}

/// One operation that was done and verified.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    /// Host time from expose to reclaim, both directions.
    pub time: Duration,
    /// Exposures, both directions.
    pub exposures: u64,
}

/// The operations of one size so far.
#[derive(Debug)]
pub(super) struct Running {
    size: usize,
    before: Counters,
    samples: Vec<u64>,
    exposures: u64,
    bytes: u64,
}

/// What they cost in the end; the JSON form.
///
/// # Units
/// Nanoseconds of host time; counts per operation or in all, as named. An operation is both
/// directions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    pub size_bytes: usize,
    pub ops: usize,
    pub bytes: u64,
    pub ns_per_op_min: u64,
    pub ns_per_op_p50: u64,
    pub ns_per_op_p99: u64,
    pub exposures_per_op: f64,
    pub wr_per_op: f64,
    pub posts_per_op: f64,
    pub cq_events_per_op: f64,
    /// `reg_mr`, `alloc_mr` and `dereg_mr`: a system call each on hardware.
    pub verb_calls_per_op: f64,
    pub copies_per_op: f64,
    pub registrations: u64,
    pub invalidations: u64,
    pub remote_invalidations: u64,
    pub deregistrations: u64,
}

impl Running {
    pub fn new(size: usize, before: Counters) -> Running {
        Running { size, before, samples: vec![], exposures: 0, bytes: 0 }
    }

    /// Adds an operation on `len` bytes.
    pub fn add(&mut self, done: Done, len: usize) {
        self.samples.push(u64::try_from(done.time.as_nanos()).unwrap_or(u64::MAX));
        self.exposures += done.exposures;
        self.bytes += 2 * len as u64;
    }

    /// The figures, given the counters now; `None` if no operation was done.
    pub fn finish(mut self, now: Counters) -> Option<Figures> {
        self.samples.sort_unstable();
        let ops = self.samples.len();
        let min = *self.samples.first()?;
        let (a, b) = (&self.before.stats, &now.stats);
        let per_op = |n: u64| n as f64 / ops as f64;
        Some(Figures {
            size_bytes: self.size,
            ops,
            bytes: self.bytes,
            ns_per_op_min: min,
            ns_per_op_p50: percentile(&self.samples, 50),
            ns_per_op_p99: percentile(&self.samples, 99),
            exposures_per_op: per_op(self.exposures),
            wr_per_op: per_op(b.wrs - a.wrs),
            posts_per_op: per_op(b.posts - a.posts),
            cq_events_per_op: per_op(b.wcs - a.wcs),
            verb_calls_per_op: per_op(now.verb_calls - self.before.verb_calls),
            copies_per_op: per_op(b.copies - a.copies),
            registrations: b.registrations - a.registrations,
            invalidations: b.invalidations - a.invalidations,
            remote_invalidations: b.remote_invalidations - a.remote_invalidations,
            deregistrations: b.deregistrations - a.deregistrations,
        })
    }
}

impl Figures {
    /// A total, per operation.
    pub fn each(&self, total: u64) -> f64 {
        total as f64 / self.ops as f64
    }
}

/// The smallest sample that at least `percent` of all do not exceed (nearest rank).
fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!((percentile(&hundred, 50), percentile(&hundred, 99)), (50, 99));
        assert_eq!((percentile(&[7], 50), percentile(&[7], 99)), (7, 7));
        assert_eq!((percentile(&[1, 2, 3], 50), percentile(&[1, 2, 3], 99)), (2, 3));
    }
}
