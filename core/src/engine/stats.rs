//! Counters of one transport.

/// Counters since the transport was opened, and gauges that end in `_now`.
///
/// # Units
/// Counts of what the name says; bytes where it says bytes. One thread owns a transport, so plain
/// integers suffice (D-10).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // the names are the documentation; those that need more have it
pub struct Stats {
    /// Calls of `post_send`: one doorbell each.
    pub posts: u64,
    /// Calls of `post_recv`.
    pub recv_posts: u64,
    /// WRs posted on the send queue.
    pub wrs: u64,
    /// Of these, signaled.
    pub wrs_signaled: u64,
    /// Most WRs outstanding on the send queue at once.
    pub outstanding_max: u64,
    /// WCs taken from the CQ.
    pub wcs: u64,
    /// WCs that belong to nothing that is outstanding; ignored.
    pub wcs_stale: u64,
    /// Keys granted: REG_MR posted or an ordinary MR with remote rights made.
    pub registrations: u64,
    /// LOCAL_INV posted.
    pub invalidations: u64,
    /// Unmaps that needed at least one LOCAL_INV (UNS-09).
    pub local_inv_needed: u64,
    /// Keys that the peer invalidated.
    pub remote_invalidations: u64,
    /// Keys that the peer claimed to invalidate and that it could not have; each costs the
    /// connection.
    pub remote_invalidations_bad: u64,
    /// MRs of exposures that were deregistered.
    pub deregistrations: u64,
    /// Regions that got a new MR or window because every tag of their key had been used (D-11).
    pub renewals: u64,
    /// MRs with local rights made of whole buffers, for reads, writes and windows, and how often a
    /// buffer had one already.
    pub local_registrations: u64,
    pub local_hits: u64,
    /// MRs made for one RDMA READ each, because the wire asks for remote write on its sink (iWARP).
    pub sink_registrations: u64,
    /// MRs made for one read or write each, because the device has no room for the whole buffer.
    pub range_registrations: u64,
    /// Copies between buffers and the bounce arena.
    pub copies: u64,
    pub exposures: u64,
    pub exposures_now: u64,
    pub fences: u64,
    /// Exposures whose handle was dropped; counted when they are fenced.
    pub abandoned: u64,
    pub cancels: u64,
    /// Exposures that `poll` took back because their lease had ended.
    pub leases_expired: u64,
    pub messages_sent: u64,
    pub messages_received: u64,
    pub reads: u64,
    pub writes: u64,
    pub poisons: u64,
    /// Drains that ended by destroying the QP because the sentinel did not come back.
    pub drains_forced: u64,
    /// Objects that a removed device would not release; they are gone with it.
    pub releases_without_device: u64,
    /// Regions whose key could not be destroyed yet; their exposures keep their bytes.
    pub regions_leaked_now: u64,
    /// Bytes that are kept because something may still reach them, and are given up as lost.
    pub bytes_leaked: u64,
}
