//! What a device says of itself.

/// Attributes of a device, as reported; a promise, not a proof.
///
/// # Units
/// Queue depths in WRs, sizes in bytes, counts in objects.
/// # Source
/// `ibv_query_device(3)`. `max_fast_reg_page_list_len` and `sg_gaps` exist in the kernel's device
/// attributes and on the software device only; libibverbs does not show them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
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
    /// WRs of one send or receive queue.
    pub max_qp_wr: u32,
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

impl Default for Caps {
    /// The software device's `generic` profile: round numbers, no gaps.
    fn default() -> Caps {
        Caps {
            mem_mgt_extensions: true,
            sg_gaps: false,
            max_fast_reg_page_list_len: 512,
            mem_window_type_2b: false,
            max_mw: 0,
            max_mr: 65_536,
            max_mr_size: 1 << 40,
            max_qp_wr: 16_384,
            max_cqe: 65_536,
            max_sge: 16,
            max_sge_rd: 16,
            max_inline_data: 256,
            page_size: 4096,
        }
    }
}
