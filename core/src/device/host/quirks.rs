//! Where the kernel's software RoCE differs from hardware, by kernel version, and what this library
//! does about it.

use std::fmt;

/// A difference, and what is done about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quirk {
    /// What the device does.
    pub what: &'static str,
    /// What this library does about it.
    pub guard: &'static str,
    /// The first kernel that has it, and the first that has not.
    kernels: (Kernel, Kernel),
}

/// A kernel's version, as far as it counts here.
type Kernel = (u32, u32);

const FIRST: Kernel = (0, 0);
const NONE_YET: Kernel = (u32::MAX, 0);

/// # Source
/// Seen on Linux 6.1; the versions: commits 425e1c9018fd (6.5) and 3225717f6dfa (5.14) of the
/// kernel. None of them is believed to be gone before a later kernel was seen.
const RXE: &[Quirk] = &[
    Quirk {
        what: "there are no memory windows",
        guard: "frwr is refused, and auto takes fmr",
        kernels: (FIRST, (5, 14)),
    },
    Quirk {
        what: "a bind is checked against the rights that the window had before",
        guard: "parents of windows allow every bind, so that no check can go wrong",
        kernels: ((5, 14), (6, 5)),
    },
    Quirk {
        what: "the bounds of a window are not enforced",
        guard: "a peer that is granted a part of a buffer is taken to reach all of it: the whole \
                buffer is exposed",
        kernels: ((5, 14), NONE_YET),
    },
    Quirk {
        what: "invalidating a window that is free panics the kernel",
        guard: "such a request is refused before it is posted",
        kernels: ((5, 14), NONE_YET),
    },
    Quirk {
        what: "ending a queue pair with a window bound on it waits for most of a minute",
        guard: "windows are ended first; until then the queue pair is busy",
        kernels: ((5, 14), NONE_YET),
    },
    Quirk {
        what: "a remote invalidation has the flag of another meaning",
        guard: "both flags are believed, on this device only",
        kernels: (FIRST, NONE_YET),
    },
    Quirk {
        what: "7 retries are without end, so that a dead peer is never noticed",
        guard: "6 are asked for",
        kernels: (FIRST, NONE_YET),
    },
];

/// What to expect of rdma_rxe on a kernel of this release, such as `6.1.0-44-amd64`. Of a release
/// that cannot be read, everything.
#[must_use]
pub fn rxe_quirks(release: &str) -> Vec<Quirk> {
    let kernel = version(release);
    let has = |q: &&Quirk| kernel.is_none_or(|k| q.kernels.0 <= k && k < q.kernels.1);
    RXE.iter().filter(has).copied().collect()
}

fn version(release: &str) -> Option<Kernel> {
    let mut parts = release.trim().split(|c: char| !c.is_ascii_digit());
    let mut next = || parts.next()?.parse().ok();
    Some((next()?, next()?))
}

impl fmt::Display for Quirk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; here, {}", self.what, self.guard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h_68_quirks_of_software_roce_depend_on_the_kernel() {
        let has = |release: &str, part: &str| {
            rxe_quirks(release).iter().any(|q| q.to_string().contains(part))
        };
        for (release, windows, stale) in [
            ("5.10.0-33-amd64", false, false),
            ("5.13.19", false, false),
            ("5.14.0", true, true),
            ("6.1.0-44-amd64", true, true),
            ("6.4", true, true),
            ("6.5.0-rc1", true, false),
            ("6.12.9+", true, false),
        ] {
            assert_eq!(has(release, "no memory windows"), !windows, "{release}");
            assert_eq!(has(release, "bounds of a window"), windows, "{release}");
            assert_eq!(has(release, "rights that the window had before"), stale, "{release}");
            assert!(has(release, "7 retries"), "{release}");
        }
        for odd in ["", "linux", "6", "v6.1", "-"] {
            assert_eq!(rxe_quirks(odd).len(), RXE.len(), "{odd}");
        }
    }
}
