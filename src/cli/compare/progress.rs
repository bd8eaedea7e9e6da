//! A progress bar for those who wait for more than a second in front of a terminal.

use crate::cli::clock;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Counts operations; draws on stderr, and only on a terminal.
#[derive(Debug)]
pub(super) struct Progress {
    start: Instant,
    bar: ProgressBar,
    hidden: bool,
}

const PATIENCE: Duration = Duration::from_secs(1);

impl Progress {
    pub fn new(total: u64) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        let hidden = std::io::stderr().is_terminal();
        Progress { start: clock::now(), bar, hidden }
    }

    /// One operation of `size` bytes is done by all strategies.
    pub fn step(&mut self, size: usize) {
        if self.hidden && self.start.elapsed() > PATIENCE {
            self.hidden = false;
            let template = "software device: {bar:30} {pos}/{len} operations, {msg}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                self.bar.set_style(style);
            }
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        if !self.bar.is_hidden() {
            self.bar.set_message(format!("{size} bytes each"));
        }
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
