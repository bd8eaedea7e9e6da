//! What a node counts.

/// Counters of one node. Gauges say what is live now; totals only grow.
///
/// # Units
/// Objects, WRs, WCs or bytes, as named. A remote access counts at the node that it reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimCounters {
    /// Gauge: PDs.
    pub pds: u64,
    /// Gauge: CQs.
    pub cqs: u64,
    /// Gauge: QPs.
    pub qps: u64,
    /// Gauge: MRs of both kinds.
    pub mrs: u64,
    /// Gauge: MRs for fast registration.
    pub fast_mrs: u64,
    /// Gauge: MRs for fast registration whose key is valid.
    pub fast_mrs_valid: u64,
    /// Gauge: windows.
    pub mws: u64,
    /// Gauge: windows that are bound.
    pub mws_bound: u64,
    /// Gauge: mapped ranges.
    pub mapped_ranges: u64,
    /// Gauge: mapped bytes.
    pub mapped_bytes: u64,

    /// Calls of `reg_mr` that made an MR.
    pub reg_mr_calls: u64,
    /// Calls of `alloc_fast_mr` that made an MR.
    pub alloc_mr_calls: u64,
    /// Calls of `dereg_mr` that ended an MR.
    pub dereg_mr_calls: u64,
    /// Calls of `alloc_mw`, those that were refused too.
    pub alloc_mw_calls: u64,
    /// Calls of `dealloc_mw` that ended a window.
    pub dealloc_mw_calls: u64,
    /// Calls of `post_send` that put at least one WR in the queue: doorbells.
    pub send_doorbells: u64,
    /// Calls of `post_recv` that put at least one receive in the queue.
    pub recv_doorbells: u64,
    /// Send WRs accepted.
    pub send_wrs_posted: u64,
    /// Send WRs accepted that ask for a WC of their success.
    pub send_wrs_signaled: u64,
    /// Receives accepted.
    pub recv_wrs_posted: u64,
    /// QPs destroyed while a send WR was accepted whose end nobody had polled yet.
    pub qps_destroyed_undrained: u64,
    /// Most send-queue slots ever taken on one QP.
    pub sq_in_use_max: u32,

    /// SENDs that succeeded, SEND_WITH_INV included.
    pub sends: u64,
    /// SENDs with invalidation that succeeded for the sender.
    pub sends_with_inv: u64,
    /// RDMA WRITEs that succeeded.
    pub rdma_writes: u64,
    /// RDMA READs that succeeded.
    pub rdma_reads: u64,
    /// REG_MRs that succeeded.
    pub reg_mrs: u64,
    /// BIND_MWs that succeeded.
    pub binds: u64,
    /// LOCAL_INVs that succeeded.
    pub local_invs: u64,
    /// Keys that a peer's message invalidated.
    pub remote_invs: u64,
    /// Receives that got a message.
    pub recvs: u64,
    /// Send WRs that ended in an error of their own.
    pub send_errors: u64,
    /// Send WRs flushed.
    pub sends_flushed: u64,
    /// Receives flushed.
    pub recvs_flushed: u64,

    /// Bytes that peers wrote into this node's memory.
    pub bytes_written: u64,
    /// Bytes that peers read from this node's memory.
    pub bytes_read: u64,
    /// Bytes that messages brought.
    pub bytes_received: u64,
    /// Copies between two stretches of memory that this node's WRs took.
    pub copies: u64,
    /// Remote accesses refused: key, range, right, PD or QP.
    pub remote_refusals: u64,
    /// Accesses to memory that is not mapped, local and remote.
    pub iommu_faults: u64,
    /// WCs put in a CQ.
    pub wcs: u64,
    /// WCs that found their CQ full or dead.
    pub wcs_lost: u64,
}
