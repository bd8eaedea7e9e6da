//! Checks a trace of the fence ledger without believing it.
//!
//! A trace claims when each key was granted and by which rule it died; beside that it records what
//! the device answered. The checker replays the answers alone and holds every claim against them.
//! It shares no code with the engine that wrote the trace.
//!
//! - `line`: text into events
//! - `check`: what the evidence proves
//! - `report`: per region key, WR, completion and rule

mod check;
mod line;
mod report;

pub use check::{Audit, KeyLife, Violation, audit};
pub use line::TraceError;
