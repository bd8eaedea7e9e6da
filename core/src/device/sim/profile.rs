//! Built-in profiles: attributes of devices worth trying things on.

use crate::device::Caps;
use std::borrow::Cow;

/// The attributes of a kind of device, under a name.
///
/// # Divergence
/// No profile has memory windows: the software device has none.
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
pub fn names() -> [&'static str; 4] {
    ["generic", "connectx-5-like", "shallow", "no-fast-registration"]
}

/// The built-in profile of a name.
#[must_use]
pub fn builtin(name: &str) -> Option<Profile> {
    let generic = Caps::default();
    let (name, about, caps, source) = match name {
        "generic" => ("generic", "fast registration without gaps, round numbers", generic, MADE_UP),
        "connectx-5-like" => (
            "connectx-5-like",
            "fast registration with gaps, deep queues",
            Caps {
                sg_gaps: true,
                max_mr_size: u64::MAX,
                max_mr: 1 << 24,
                max_qp_wr: 32_768,
                max_cqe: (1 << 22) - 1,
                max_sge: 30,
                max_sge_rd: 30,
                ..generic
            },
            "max_mr_size, max_qp_wr and MEM_MGT_EXTENSIONS: the ibv_devinfo listing in \
             openucx/ucx#9830; max_mr, max_cqe, max_sge and max_sge_rd: that of an older device of \
             the family in ofiwg/libfabric#9940; the page list, inline size and sg_gaps: made up",
        ),
        "shallow" => (
            "shallow",
            "page lists of 16, no gaps: many keys per operation",
            Caps { max_fast_reg_page_list_len: 16, ..generic },
            MADE_UP,
        ),
        "no-fast-registration" => (
            "no-fast-registration",
            "no REG_MR, LOCAL_INV or SEND_WITH_INV: ordinary MRs only",
            Caps { mem_mgt_extensions: false, max_fast_reg_page_list_len: 0, ..generic },
            MADE_UP,
        ),
        _ => return None,
    };
    let of = Cow::Borrowed;
    Some(Profile { name: of(name), about: of(about), caps, source: of(source) })
}

const MADE_UP: &str = "made up";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_profile_of_that_name() {
        for name in names() {
            let p = builtin(name).unwrap();
            assert_eq!(p.name, name);
            assert!(!p.about.is_empty() && !p.source.is_empty());
            assert!(!p.caps.mem_window_type_2b && p.caps.max_mw == 0);
        }
        assert_eq!(builtin("generic").map(|p| p.caps), Some(Caps::default()));
        assert_eq!(builtin("Generic"), None);
    }
}
