//! Text of a user: TOML, variables and arguments.

use memreg::config::{ConfigErrors, Loader};
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// Sources, separated by zero bytes: `S` and an argument of `--set`, `E` and a variable with its
/// value, `F` and a flag with its value, anything else TOML.
///
/// Whatever they say, it loads or every problem fits on its line.
pub fn config(data: &[u8]) {
    let mut loader = Loader::new();
    for source in data.split(|b| *b == 0) {
        let text = String::from_utf8_lossy(source);
        let (kind, rest) = (source.first(), text.get(1..).unwrap_or_default());
        let (name, value) = rest.split_once('=').unwrap_or((rest, ""));
        loader = match kind {
            Some(b'S') => loader.set(rest),
            Some(b'E') => loader.env([(name.to_owned(), value.to_owned())]),
            Some(b'F') => loader.flag(name, value),
            _ => loader.text("a file", text),
        };
    }
    match loader.load() {
        Err(e) => errors_are_printable(&e),
        Ok(loaded) => {
            loaded.warnings.iter().for_each(is_one_line);
            for row in &loaded.origins {
                is_one_line(&row.key);
                is_one_line(&row.value);
                is_one_line(&row.origin);
            }
            assert_eq!(loader.load().as_ref(), Ok(&loaded), "the same sources, another result");
        }
    }
}

/// A profile's file, named by a configuration.
pub fn profile(data: &[u8]) {
    // Each thread writes its own, over and over.
    thread_local!(static FILE: PathBuf = {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        std::env::temp_dir().join(format!("memreg-fuzz-{}-{n}.toml", std::process::id()))
    });
    FILE.with(|file| {
        std::fs::write(file, data).unwrap();
        let named = format!("device.profile={}", file.display());
        let loaded = Loader::new().set(named).load();
        std::fs::remove_file(file).unwrap();
        match loaded {
            Err(e) => errors_are_printable(&e),
            Ok(loaded) => {
                loaded.warnings.iter().for_each(is_one_line);
                // A profile that was taken is one that a device can be made of, or that is refused.
                if let Ok(opened) = memreg::open(&loaded.settings) {
                    assert!(opened.transport.limits().max_payload_bytes > 0);
                }
            }
        }
    });
}

/// Every problem has words, fits on a line, and does nothing to a terminal.
fn errors_are_printable(e: &ConfigErrors) {
    assert!(!e.problems().is_empty());
    for problem in e.problems().iter().chain(e.warnings()) {
        assert!(!problem.message.is_empty() && !problem.source.is_empty());
        is_one_line(problem);
    }
}

fn is_one_line(text: &impl Display) {
    let text = text.to_string();
    assert!(!text.contains(char::is_control), "{text:?}");
}
