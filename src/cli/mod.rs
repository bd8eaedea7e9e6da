//! The command line.

/// Runs the command line of this process.
pub fn run() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
