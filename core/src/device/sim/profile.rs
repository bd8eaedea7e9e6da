//! Built-in profiles: attributes of devices worth trying things on.

use crate::device::{Caps, TransportKind};
use std::borrow::Cow;

/// The attributes of a kind of device, under a name.
///
/// # Divergence
/// A profile gives the software device the numbers of another device, not its behaviour: no profile
/// has that device's quirks. Those of rxe, which the tests that compare the two go by:
/// - the bounds of a window are not enforced, only those of its parent;
/// - a window can be bound onto an MR of another PD;
/// - a peer can invalidate a window that is bound on another QP;
/// - a message longer than the receive ends in a remote operation error (11) for its sender, where
///   the specification has a remote invalid request error (9);
/// - a WR under an lkey that no MR has ends in a local QP operation error (2), not in a local
///   protection error (4);
/// - the sink of a READ is checked when the answer arrives, so a refusal by the peer comes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The name in the configuration.
    pub name: Cow<'static, str>,
    /// One line for a list.
    pub about: Cow<'static, str>,
    /// The attributes.
    pub caps: Caps,
    /// Where the numbers come from.
    pub source: Cow<'static, str>,
}

/// The names of the built-in profiles, the default first.
#[must_use]
pub fn names() -> [&'static str; COUNT] {
    PROFILES.map(|row| row.name)
}

/// The built-in profile of a name.
#[must_use]
pub fn builtin(name: &str) -> Option<Profile> {
    let row = PROFILES.into_iter().find(|row| row.name == name)?;
    let of = Cow::Borrowed;
    Some(Profile {
        name: of(row.name),
        about: of(row.about),
        caps: row.caps,
        source: of(row.source),
    })
}

struct Row {
    name: &'static str,
    about: &'static str,
    caps: Caps,
    source: &'static str,
}

const COUNT: usize = 12;

const MADE_UP: &str = "made up";

/// Numbers that a row does not set are those of `generic`.
const PROFILES: [Row; COUNT] = [
    Row {
        name: "generic",
        about: "fast registration without gaps, round numbers",
        caps: Caps::GENERIC,
        source: MADE_UP,
    },
    Row {
        name: "connectx-5-like",
        about: "fast registration with gaps, deep queues",
        caps: Caps {
            sg_gaps: true,
            max_mr_size: u64::MAX,
            max_mr: 1 << 24,
            max_qp_wr: 32_768,
            max_cqe: (1 << 22) - 1,
            max_sge: 30,
            max_sge_rd: 30,
            ..Caps::GENERIC
        },
        source: "max_mr_size, max_qp_wr and MEM_MGT_EXTENSIONS: the ibv_devinfo listing in \
             openucx/ucx#9830; max_mr, max_cqe, max_sge and max_sge_rd: that of an older device of \
             the family in ofiwg/libfabric#9940; the page list, inline size and sg_gaps: made up",
    },
    Row {
        name: "shallow",
        about: "page lists of 16, no gaps: many keys per operation",
        caps: Caps { max_fast_reg_page_list_len: 16, ..Caps::GENERIC },
        source: MADE_UP,
    },
    Row {
        name: "no-fast-registration",
        about: "no REG_MR, LOCAL_INV or SEND_WITH_INV: ordinary MRs only",
        caps: Caps { mem_mgt_extensions: false, max_fast_reg_page_list_len: 0, ..Caps::GENERIC },
        source: MADE_UP,
    },
    Row {
        name: "connectx-3",
        about: "fast registration without gaps; the flag of windows, and none to be had",
        caps: Caps {
            max_fast_reg_page_list_len: 511,
            mem_window_type_2b: true,
            max_mw: 0,
            max_mr: 524_032,
            max_mr_size: u64::MAX,
            max_qp_wr: 16_351,
            max_cqe: 4_194_303,
            max_sge: 32,
            max_sge_rd: 30,
            ..Caps::GENERIC
        },
        source: "the ibv_devinfo listing in claudebarthels/infinity#5; the page list and the \
             absence of gaps: the kernel's mlx4 driver; the inline size: made up",
    },
    Row {
        name: "iwarp",
        about: "an iWARP adapter: READ sinks need remote write, one SGE a READ",
        caps: Caps {
            transport: TransportKind::Iwarp,
            max_fast_reg_page_list_len: 128,
            max_mr_size: u64::MAX,
            max_qp_wr: 1024,
            max_sge: 4,
            max_sge_rd: 1,
            ..Caps::GENERIC
        },
        source: "the right of READ sinks: the kernel's ib_core; the page list, max_mr_size, \
             max_sge and max_sge_rd: the kernel's cxgb4 driver; the other numbers: made up",
    },
    Row {
        name: "rxe",
        about: "the kernel's software RoCE as a user program sees it: windows, no REG_MR",
        caps: Caps {
            transport: TransportKind::Roce,
            max_fast_reg_page_list_len: 0,
            mem_window_type_2b: true,
            max_mw: 524_287,
            max_mr: 524_287,
            max_mr_size: u64::MAX,
            max_qp_wr: 1 << 20,
            max_cqe: 32_767,
            max_sge: 32,
            max_sge_rd: 32,
            max_inline_data: 512,
            ..Caps::GENERIC
        },
        source: "MEM_WINDOW_TYPE_2B, MEM_MGT_EXTENSIONS and max_mw: ibv_query_device on Linux 6.1; \
             the other numbers: the kernel's rxe_param.h; the page list of 512 that it gives the \
             kernel is not for user programs",
    },
    Row {
        name: "siw",
        about: "the kernel's software iWARP as a user program sees it: ordinary MRs only",
        caps: Caps {
            transport: TransportKind::Iwarp,
            max_fast_reg_page_list_len: 0,
            max_mr: 1_024_000,
            max_mr_size: u64::MAX,
            max_qp_wr: 32_768,
            max_cqe: 3_276_800,
            max_sge: 6,
            max_sge_rd: 1,
            max_inline_data: 80,
            ..Caps::GENERIC
        },
        source: "the kernel's siw.h, siw-abi.h and siw_verbs.c; the page list of 256 that it gives \
             the kernel is not for user programs",
    },
    Row {
        name: "efa-like",
        about: "no MEM_MGT_EXTENSIONS and no windows, two SGEs, 32 inline bytes",
        caps: Caps {
            transport: TransportKind::Roce,
            mem_mgt_extensions: false,
            max_fast_reg_page_list_len: 0,
            max_mr: 262_144,
            max_mr_size: 96 << 30,
            max_qp_wr: 4096,
            max_cqe: 32_768,
            max_sge: 2,
            max_sge_rd: 1,
            max_inline_data: 32,
            ..Caps::GENERIC
        },
        source: "the EFA device attributes in NVIDIA's ibmock for UCX; RC QPs and RoCE: made up, \
             since EFA has a transport of its own",
    },
    Row {
        name: "irdma",
        about: "fast registration without gaps on queues of odd depth; no windows to be had",
        caps: Caps {
            transport: TransportKind::Roce,
            max_fast_reg_page_list_len: 512,
            mem_window_type_2b: true,
            max_mw: 0,
            max_mr: 4_194_301,
            max_mr_size: 1 << 45,
            max_qp_wr: 8127,
            max_cqe: 1_048_574,
            max_sge: 6,
            max_sge_rd: 6,
            max_inline_data: 101,
            ..Caps::GENERIC
        },
        source: "the ibv_devinfo listing in deepseek-ai/3FS#192; the page list: the kernel's \
             irdma driver when it was added, and the inline size: its defs.h",
    },
    Row {
        name: "page-list-0",
        about: "MEM_MGT_EXTENSIONS without a page list and without windows: a promise of nothing",
        caps: Caps { max_fast_reg_page_list_len: 0, ..Caps::GENERIC },
        source: MADE_UP,
    },
    Row {
        name: "tiny-queue",
        about: "queues of 6 WRs: too few for one operation of three regions",
        caps: Caps { max_qp_wr: 6, max_qp_wr_wide: 6, ..Caps::GENERIC },
        source: MADE_UP,
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_name_has_a_profile_of_that_name() {
        let mut seen = BTreeSet::new();
        for name in names() {
            let p = builtin(name).unwrap();
            assert!(p.name == name && seen.insert(name));
            assert!(!p.about.is_empty() && !p.source.is_empty());
            assert!(p.caps.mem_mgt_extensions || p.caps.max_fast_reg_page_list_len == 0);
            assert!(p.caps.max_mw == 0 || p.caps.mem_window_type_2b);
        }
        assert_eq!(builtin("generic").map(|p| p.caps), Some(Caps::default()));
        assert_eq!(builtin("Generic"), None);
    }

    #[test]
    fn b13_profiles_tell_the_ways_to_a_revocable_key_apart() {
        let with = |f: fn(&Caps) -> bool| -> Vec<&str> {
            names().into_iter().filter(|n| builtin(n).is_some_and(|p| f(&p.caps))).collect()
        };
        let lists = with(|c| c.mem_mgt_extensions && c.max_fast_reg_page_list_len > 0);
        let listed = ["generic", "connectx-5-like", "shallow", "connectx-3", "iwarp", "irdma"];
        assert_eq!(lists, [&listed[..], &["tiny-queue"]].concat());
        assert_eq!(with(Caps::has_windows), ["rxe"]);
        assert_eq!(with(|c| c.mem_window_type_2b && c.max_mw == 0), ["connectx-3", "irdma"]);
        let only =
            with(|c| c.mem_mgt_extensions && c.max_fast_reg_page_list_len == 0 && !c.has_windows());
        assert_eq!(only, ["siw", "page-list-0"]);
        assert_eq!(with(|c| c.transport == TransportKind::Iwarp), ["iwarp", "siw"]);
    }
}
