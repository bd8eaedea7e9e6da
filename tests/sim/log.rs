//! What happened, as a hash: two runs of a seed must give the same one.

use std::fmt::{self, Write};

/// A running hash (FNV-1a) over lines of text, which are printed when asked for.
pub struct Log {
    hash: u64,
    print: bool,
}

impl Log {
    pub fn new(print: bool) -> Log {
        Log { hash: 0xcbf2_9ce4_8422_2325, print }
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Adds a line.
    pub fn line(&mut self, text: fmt::Arguments<'_>) {
        if self.print {
            println!("{text}");
        }
        // Cannot fail: `write_str` below does not.
        let _ = self.write_fmt(text);
        let _ = self.write_char('\n');
    }
}

impl Write for Log {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for &b in s.as_bytes() {
            self.hash = (self.hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}

/// `note!(world.log, "text {}", value)`: one line of the log.
macro_rules! note {
    ($log:expr, $($text:tt)*) => { $log.line(format_args!($($text)*)) };
}
pub(crate) use note;
