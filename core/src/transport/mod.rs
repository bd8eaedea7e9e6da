//! One connection: expose, send, revoke, reclaim; read and write; drain and recover.

/// Placeholder until the transport lands.
pub struct Transport(());
/// Placeholder until the transport lands.
pub struct Exposed(());
