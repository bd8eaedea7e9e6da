//! What this process may pin, and which memory node it is on.

use super::found::{Host, entries};
use crate::device::LimitInfo;
use std::fs;

/// How much memory this process may pin. The kernel's answer for the running process: what a file
/// says that is read at log-in is not in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pinning {
    /// RLIMIT_MEMLOCK, in bytes; `None` = none.
    pub limit: Option<u64>,
    /// The process is exempt from it (CAP_IPC_LOCK).
    pub exempt: bool,
}

/// More would have to be pinned than this process may.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{} is {limit} bytes, and {need} must be pinned: {buffers} for message buffers and arenas, \
     {payload} for one operation; {}",
    LimitInfo::MEMLOCK,
    LimitInfo::MEMLOCK_REMEDY
)]
pub struct PinningRefused {
    /// Bytes that have to be pinned at once, at least.
    pub need: u64,
    /// Of these, what a connection has pinned for as long as it lives.
    pub buffers: u64,
    /// Of these, the largest operation.
    pub payload: u64,
    /// The limit.
    pub limit: u64,
}

impl Pinning {
    /// The most bytes that can be pinned; `None` = as many as there are.
    #[must_use]
    pub fn most(&self) -> Option<u64> {
        self.limit.filter(|_| !self.exempt)
    }

    /// Checks a connection that pins `buffers` bytes for as long as it lives, and `payload` more
    /// for one operation.
    ///
    /// # Errors
    /// [`PinningRefused`] with the numbers and the remedy.
    pub fn check(&self, buffers: u64, payload: u64) -> Result<(), PinningRefused> {
        let need = buffers.saturating_add(payload);
        match self.most() {
            Some(limit) if need > limit => Err(PinningRefused { need, buffers, payload, limit }),
            _ => Ok(()),
        }
    }
}

impl Host {
    /// What this process may pin.
    #[must_use]
    pub fn pinning(&self) -> Pinning {
        let limits = self.read("proc/self/limits");
        let line = limits.lines().find_map(|l| l.strip_prefix("Max locked memory"));
        let soft = line.and_then(|l| l.split_whitespace().next());
        // In a user namespace of its own a process can have the capability and not the exemption.
        let of_the_host = self.read("proc/self/uid_map").split_whitespace().eq(WHOLE_RANGE);
        let caps = self.own_status("CapEff:").and_then(|c| u64::from_str_radix(&c, 16).ok());
        let exempt = of_the_host && caps.is_some_and(|c| c & IPC_LOCK != 0);
        Pinning { limit: soft.and_then(|s| s.parse().ok()), exempt }
    }

    /// The memory node that this process's memory comes from, if all its CPUs are on one; memory
    /// is taken where it is first touched.
    #[must_use]
    pub fn memory_node(&self) -> Option<u32> {
        let cpus = ranges(&self.own_status("Cpus_allowed_list:")?);
        let mems = ranges(&self.own_status("Mems_allowed_list:")?);
        let nodes = entries(&self.root.join(NODES));
        let nodes = nodes.iter().filter_map(|n| n.strip_prefix("node")?.parse::<u32>().ok());
        let mut mine = nodes.filter(|n| {
            let theirs = ranges(&self.read(&format!("{NODES}/node{n}/cpulist")));
            meet(&mems, &[(*n, *n)]) && meet(&theirs, &cpus)
        });
        let one = mine.next()?;
        mine.next().is_none().then_some(one)
    }

    /// One line of this process's status.
    fn own_status(&self, name: &str) -> Option<String> {
        let text = self.read("proc/self/status");
        text.lines().find_map(|l| l.strip_prefix(name)).map(|v| v.trim().to_owned())
    }

    /// A file of the host; empty if it cannot be read.
    pub(super) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }
}

/// A list such as `0-3,8`.
fn ranges(list: &str) -> Vec<(u32, u32)> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    list.trim().split(',').filter_map(range).collect()
}

fn meet(a: &[(u32, u32)], b: &[(u32, u32)]) -> bool {
    a.iter().any(|x| b.iter().any(|y| x.0 <= y.1 && y.0 <= x.1))
}

const NODES: &str = "sys/devices/system/node";
/// Bit of CAP_IPC_LOCK.
const IPC_LOCK: u64 = 1 << 14;
const WHOLE_RANGE: [&str; 3] = ["0", "0", "4294967295"];

#[cfg(test)]
mod tests {
    use super::super::found::tests::Files;
    use super::*;

    fn limits(files: &Files, soft: &str) {
        let text = format!(
            "Limit                     Soft Limit           Hard Limit           Units\n\
             Max locked memory         {soft:<20} unlimited            bytes\n"
        );
        files.write("proc/self/limits", &text);
    }

    #[test]
    fn b02_the_limit_of_the_running_process_counts_and_no_file() {
        let files = Files::new(&[]);
        limits(&files, "8388608");
        files.write("etc/security/limits.conf", "* - memlock unlimited\n");
        let pinning = files.host().pinning();
        assert_eq!(pinning, Pinning { limit: Some(8 << 20), exempt: false });
        assert_eq!(pinning.check(0, 8 << 20), Ok(()));
        let e = pinning.check(4096, 16 << 20).unwrap_err();
        assert_eq!(
            e.to_string(),
            "RLIMIT_MEMLOCK of this process is 8388608 bytes, and 16781312 must be pinned: 4096 \
             for message buffers and arenas, 16777216 for one operation; raise it where the \
             process is started: `ulimit -l`, or LimitMEMLOCK= of its service"
        );
        limits(&files, "unlimited");
        assert_eq!(files.host().pinning().check(u64::MAX, u64::MAX), Ok(()));
    }

    #[test]
    fn b01_whoever_may_lock_memory_has_no_limit_but_not_in_a_namespace_of_his_own() {
        let files = Files::new(&[]);
        limits(&files, "65536");
        files.write("proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
        files.write("proc/self/uid_map", "         0          0 4294967295\n");
        assert_eq!(files.host().pinning().most(), None);
        files.write("proc/self/uid_map", "         0     100000      65536\n");
        assert_eq!(files.host().pinning().most(), Some(65_536));
        files.write("proc/self/uid_map", "         0          0 4294967295\n");
        files.write("proc/self/status", "CapEff:\t0000000000000400\n");
        assert_eq!(files.host().pinning().most(), Some(65_536));
    }

    #[test]
    fn b100_the_node_of_this_process_is_known_only_if_it_is_one() {
        let files = Files::new(&[]);
        let status = |cpus: &str, mems: &str| {
            let text = format!("Cpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{mems}\n");
            files.write("proc/self/status", &text);
            files.host().memory_node()
        };
        assert_eq!(status("0-7", "0-1"), None, "no nodes are shown");
        files.write("sys/devices/system/node/node0/cpulist", "0-3,8-11\n");
        files.write("sys/devices/system/node/node1/cpulist", "4-7,12-15\n");
        files.write("sys/devices/system/node/possible", "0-1\n");
        assert_eq!(status("0-15", "0-1"), None);
        assert_eq!(status("4,13", "0-1"), Some(1));
        assert_eq!(status("0-15", "0"), Some(0));
        assert_eq!(status("9-10", "0-1"), Some(0));
    }

    #[test]
    fn files_that_are_missing_or_odd_are_no_knowledge() {
        let files = Files::new(&[]);
        assert_eq!(files.host().pinning(), Pinning::default());
        assert_eq!(files.host().memory_node(), None);
        limits(&files, "99999999999999999999999");
        files.write("proc/self/status", "CapEff:\tzz\nCpus_allowed_list:\t-,x,5-\n");
        assert_eq!(files.host().pinning(), Pinning::default());
    }
}
