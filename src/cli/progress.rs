//! A progress bar for those who wait for more than a second in front of a terminal.

use super::clock;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Counts what is done; draws on stderr, and only on a terminal.
#[derive(Debug)]
pub(super) struct Progress {
    start: Instant,
    bar: ProgressBar,
    what: &'static str,
    hidden: bool,
}

const PATIENCE: Duration = Duration::from_secs(1);

impl Progress {
    /// Nothing of `total` is done; `what` is counted, in the plural.
    pub fn new(total: u64, what: &'static str) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        let hidden = std::io::stderr().is_terminal();
        Progress { start: clock::now(), bar, what, hidden }
    }

    /// One more is done; `at` says what it was.
    pub fn step(&mut self, at: impl FnOnce() -> String) {
        if self.hidden && self.start.elapsed() > PATIENCE {
            self.hidden = false;
            let template = format!("{{bar:30}} {{pos}}/{{len}} {}, {{msg}}", self.what);
            if let Ok(style) = ProgressStyle::with_template(&template) {
                self.bar.set_style(style);
            }
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        if !self.bar.is_hidden() {
            self.bar.set_message(at());
        }
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
