//! Expose memory to a remote peer over RDMA, fast, and take it back safely.
fn main() -> std::process::ExitCode {
    memreg::cli::run()
}
