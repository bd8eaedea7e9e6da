//! What a device says of itself.

use crate::types::{Access, Grant};
use std::fmt;

/// Attributes of a device, as reported; a promise, not a proof.
///
/// # Units
/// Queue depths in WRs, sizes in bytes, counts in objects.
/// # Source
/// `ibv_query_device(3)`. `max_fast_reg_page_list_len` and `sg_gaps` exist in the kernel's device
/// attributes and on the software device only; libibverbs does not show them. No device says
/// `wide_sge`, `max_qp_wr_wide` or `max_inline_data`: one finds out by making a QP; nor
/// `iommu_mr_size`: one finds out by registering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// What its RC transport runs on.
    pub transport: TransportKind,
    /// LOCAL_INV, SEND_WITH_INV and (where there is a page list) REG_MR.
    pub mem_mgt_extensions: bool,
    /// One REG_MR may describe pieces that do not join at page boundaries.
    pub sg_gaps: bool,
    /// Entries of one REG_MR page list; 0 = no REG_MR.
    pub max_fast_reg_page_list_len: u32,
    /// Type-2B windows: bound by a WR, checked for PD and QP.
    pub mem_window_type_2b: bool,
    /// Windows that may exist at once; 0 makes the flag above a lie.
    pub max_mw: u32,
    /// MRs of every kind that may exist at once.
    pub max_mr: u32,
    /// Bytes of one MR.
    pub max_mr_size: u64,
    /// Bytes of one MR for which there is really room, such as in an IOMMU; 0 = all that
    /// `max_mr_size` says.
    pub iommu_mr_size: u64,
    /// A registration may let the device write out of order.
    pub relaxed_ordering: bool,
    /// The device writes out of order whether it is asked to or not.
    pub relaxed_ordering_always: bool,
    /// WRs of one send or receive queue.
    pub max_qp_wr: u32,
    /// SGEs of one WR above which a queue has `max_qp_wr_wide` WRs at most; 0 = no such limit.
    pub wide_sge: u32,
    /// WRs of one send or receive queue whose WRs have more SGEs than `wide_sge`.
    pub max_qp_wr_wide: u32,
    /// Entries of one CQ.
    pub max_cqe: u32,
    /// SGEs of one WR.
    pub max_sge: u32,
    /// SGEs of one RDMA READ.
    pub max_sge_rd: u32,
    /// Bytes of one inline payload.
    pub max_inline_data: u32,
    /// Page size in bytes, a power of two.
    pub page_size: u32,
}

/// What carries the RC transport: the wire decides some rights.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum TransportKind {
    /// InfiniBand.
    Ib,
    /// RDMA over Converged Ethernet.
    Roce,
    /// Over TCP: the sink of an RDMA READ needs the right of remote write.
    Iwarp,
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TransportKind::Ib => "ib",
            TransportKind::Roce => "roce",
            TransportKind::Iwarp => "iwarp",
        })
    }
}

/// What memory is registered for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Purpose {
    /// The source of a send or write.
    Source,
    /// A receive.
    Receive,
    /// The sink of a read.
    ReadSink,
    /// What windows are bound onto.
    WindowParent,
    /// What a peer may do with it.
    Granted(Grant),
}

impl Caps {
    /// The software device's `generic` profile, for constants.
    pub const GENERIC: Caps = Caps {
        transport: TransportKind::Ib,
        mem_mgt_extensions: true,
        sg_gaps: false,
        max_fast_reg_page_list_len: 512,
        mem_window_type_2b: false,
        max_mw: 0,
        max_mr: 65_536,
        max_mr_size: 1 << 40,
        iommu_mr_size: 0,
        relaxed_ordering: false,
        relaxed_ordering_always: false,
        max_qp_wr: 16_384,
        wide_sge: 0,
        max_qp_wr_wide: 16_384,
        max_cqe: 65_536,
        max_sge: 16,
        max_sge_rd: 16,
        max_inline_data: 256,
        page_size: 4096,
    };

    /// WRs of one queue whose WRs have up to `sges` SGEs.
    #[must_use]
    pub fn max_qp_wr_for(&self, sges: u32) -> u32 {
        let wide = self.wide_sge > 0 && sges > self.wide_sge;
        if wide { self.max_qp_wr_wide.min(self.max_qp_wr) } else { self.max_qp_wr }
    }

    /// Whether type-2B windows can be had: the flag and at least one window.
    #[must_use]
    pub fn has_windows(&self) -> bool {
        self.mem_window_type_2b && self.max_mw > 0
    }

    /// The rights that memory needs for a purpose, and no more.
    ///
    /// | purpose | rights |
    /// |---|---|
    /// | source of a send or write | none |
    /// | receive | local write |
    /// | sink of a read | local write; over iWARP remote write too |
    /// | parent of windows | local write, and the binding of windows |
    /// | what a peer may read | remote read |
    /// | what a peer may write | remote write, local write |
    ///
    /// # Source
    /// `ibv_reg_mr(3)`; RFC 5040: over iWARP a read response is a tagged write by the peer.
    #[must_use]
    pub fn rights_for(&self, purpose: Purpose) -> Access {
        match purpose {
            Purpose::Source => Access::empty(),
            Purpose::ReadSink if self.transport == TransportKind::Iwarp => {
                Access::LOCAL_WRITE.union(Access::REMOTE_WRITE)
            }
            Purpose::Receive | Purpose::ReadSink => Access::LOCAL_WRITE,
            Purpose::WindowParent => Access::LOCAL_WRITE.union(Access::MW_BIND),
            Purpose::Granted(grant) => grant.access(),
        }
    }
}

impl Default for Caps {
    /// The software device's `generic` profile: round numbers, no gaps.
    fn default() -> Caps {
        Caps::GENERIC
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b56_each_purpose_has_its_rights_and_only_iwarp_differs() {
        let (ib, iwarp) =
            (Caps::default(), Caps { transport: TransportKind::Iwarp, ..Caps::default() });
        let write = Access::LOCAL_WRITE;
        for (purpose, rights, over_iwarp) in [
            (Purpose::Source, Access::empty(), Access::empty()),
            (Purpose::Receive, write, write),
            (Purpose::ReadSink, write, write | Access::REMOTE_WRITE),
            (Purpose::WindowParent, write | Access::MW_BIND, write | Access::MW_BIND),
            (Purpose::Granted(Grant::PeerReads), Access::REMOTE_READ, Access::REMOTE_READ),
            (
                Purpose::Granted(Grant::PeerWrites),
                write | Access::REMOTE_WRITE,
                write | Access::REMOTE_WRITE,
            ),
        ] {
            assert_eq!((ib.rights_for(purpose), iwarp.rights_for(purpose)), (rights, over_iwarp));
            let reads = matches!(purpose, Purpose::Source | Purpose::Granted(Grant::PeerReads));
            assert_eq!(rights.intersects(Access::WRITING), !reads, "{purpose:?}");
        }
    }

    #[test]
    fn b36_depth_depends_on_the_sge_count() {
        let caps = Caps { max_qp_wr: 4096, wide_sge: 4, max_qp_wr_wide: 1024, ..Caps::default() };
        assert_eq!([1, 4, 5, 8].map(|n| caps.max_qp_wr_for(n)), [4096, 4096, 1024, 1024]);
        let none = Caps { wide_sge: 0, ..caps.clone() };
        assert_eq!(none.max_qp_wr_for(u32::MAX), 4096);
        let odd = Caps { max_qp_wr_wide: 5000, ..caps };
        assert_eq!(odd.max_qp_wr_for(5), 4096, "never more than max_qp_wr");
    }
}
