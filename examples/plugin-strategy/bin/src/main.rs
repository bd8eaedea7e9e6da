//! The whole of `memreg`, and one strategy more.

// Named so that the linker keeps the crate: nothing else here speaks of it.
use plugin_strategy as _;

fn main() -> std::process::ExitCode {
    memreg::cli::run()
}
