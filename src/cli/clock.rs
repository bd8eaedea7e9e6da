//! The one place that reads the host's clock.

use std::time::Instant;

/// The moment now. Measurements and the progress bar need it; nothing else here knows of time.
#[allow(
    clippy::disallowed_methods,
    reason = "the command line measures; the library takes time as an argument"
)]
pub(super) fn now() -> Instant {
    Instant::now()
}
