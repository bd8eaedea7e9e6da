//! What this host shows of its RDMA devices, and why one cannot be used.

use std::fmt;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A device of the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// Whether a program can use it.
    pub status: DeviceStatus,
    /// The memory node that it is close to, if the host says so.
    pub numa_node: Option<u32>,
}

/// Whether a program can use a device of the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceStatus {
    /// It can be opened.
    Usable,
    /// No provider library claims it.
    NoProvider {
        /// What would.
        library: String,
    },
    /// Its node is not there, while those of other devices are.
    NodeMissing {
        /// Where it would be.
        path: PathBuf,
    },
    /// There is no folder of nodes at all: a container or a service sandbox hides it.
    NodesHidden {
        /// The folder.
        path: PathBuf,
        /// Bytes that this process may pin; `None` = no limit.
        memlock: Option<u64>,
    },
    /// Its node is there and this process may not open it.
    Permission {
        /// The node.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// Its owner.
        owner: u32,
        /// This process's user.
        uid: u32,
    },
}

impl Found {
    /// Whether a program can use it.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.status == DeviceStatus::Usable
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.status)
    }
}

impl fmt::Display for DeviceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceStatus::Usable => f.write_str("usable"),
            DeviceStatus::NoProvider { library } => write!(
                f,
                "kernel device without user library: {library} is missing; install it (package \
                 ibverbs-providers)"
            ),
            DeviceStatus::NodeMissing { path } => {
                write!(f, "device node missing: {}", path.display())
            }
            DeviceStatus::NodesHidden { path, memlock } => {
                write!(
                    f,
                    "device nodes are hidden: {} does not exist (container or service sandbox); \
                     this process may pin ",
                    path.display()
                )?;
                match memlock {
                    Some(bytes) => write!(f, "{bytes} bytes"),
                    None => f.write_str("without limit"),
                }
            }
            DeviceStatus::Permission { path, mode, owner, uid } => {
                write!(
                    f,
                    "permission denied: {} has mode {mode:04o} and owner {owner}, this process is \
                     user {uid}",
                    path.display()
                )?;
                // Whoever may read and write by the mode is kept out by something else.
                let by_mode = mode & 0o006 == 0o006 || *uid == 0;
                let by_else = if by_mode { "; the container's device rules forbid it" } else { "" };
                f.write_str(by_else)
            }
        }
    }
}

/// The files of a host that tell of its devices and of this process.
#[derive(Clone, Debug)]
pub struct Host {
    pub(super) root: PathBuf,
    may_open: fn(&Path) -> bool,
}

impl Host {
    /// This host.
    #[must_use]
    pub fn this() -> Host {
        // Tried, not asked: a device controller refuses what permission bits allow.
        let may_open = |p: &Path| {
            let opened = File::options().read(true).write(true).open(p);
            !opened.is_err_and(|e| e.kind() == ErrorKind::PermissionDenied)
        };
        Host { root: PathBuf::from("/"), may_open }
    }

    /// The host whose root is this folder, for tests and for looking into a container; it counts as
    /// one whose nodes may be opened.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Host {
        Host { root: root.into(), may_open: |_| true }
    }

    /// Whether the kernel lets programs at RDMA devices.
    #[must_use]
    pub fn has_verbs(&self) -> bool {
        self.root.join(UVERBS).join("abi_version").exists()
    }

    /// The kernel's devices by name. `known` are those that the library has a provider for.
    #[must_use]
    pub fn devices(&self, known: &[String]) -> Vec<Found> {
        let mut names = entries(&self.root.join(DEVICES));
        names.sort();
        names.into_iter().map(|name| self.look(name, known)).collect()
    }

    /// The user that this process acts as.
    fn user(&self) -> Option<u32> {
        fs::metadata(self.root.join("proc/self")).ok().map(|m| m.uid())
    }

    /// A path as the host itself calls it.
    pub(super) fn shown(&self, path: &Path) -> PathBuf {
        let inside = path.strip_prefix(&self.root);
        inside.map_or_else(|_| path.to_owned(), |inside| Path::new("/").join(inside))
    }

    fn look(&self, name: String, known: &[String]) -> Found {
        let folder = self.root.join(DEVICES).join(&name);
        let node = fs::read_to_string(folder.join("device/numa_node")).ok();
        let numa_node = node.and_then(|n| n.trim().parse().ok());
        let status = self.status(&name, &folder, known);
        Found { name, status, numa_node }
    }

    fn status(&self, name: &str, folder: &Path, known: &[String]) -> DeviceStatus {
        let nodes = self.root.join(NODES);
        if !nodes.is_dir() {
            let memlock = self.pinning().limit;
            return DeviceStatus::NodesHidden { path: self.shown(&nodes), memlock };
        }
        let Some(path) = self.node(name).map(|n| nodes.join(n)) else {
            return DeviceStatus::NodeMissing { path: self.shown(&nodes.join("uverbs*")) };
        };
        let shown = self.shown(&path);
        let Ok(meta) = fs::metadata(&path) else {
            return DeviceStatus::NodeMissing { path: shown };
        };
        if !(self.may_open)(&path) {
            let (mode, owner) = (meta.mode() & 0o7777, meta.uid());
            let uid = self.user().unwrap_or(u32::MAX);
            return DeviceStatus::Permission { path: shown, mode, owner, uid };
        }
        if known.iter().any(|k| k == name) {
            return DeviceStatus::Usable;
        }
        DeviceStatus::NoProvider { library: provider(name, folder) }
    }

    /// The name of a device's node.
    fn node(&self, name: &str) -> Option<String> {
        let all = self.root.join(UVERBS);
        entries(&all).into_iter().find(|node| {
            let device = fs::read_to_string(all.join(node).join("ibdev"));
            device.is_ok_and(|d| d.trim() == name)
        })
    }
}

/// The library that would drive the device: named after the driver, which a software device does
/// not show; its name is then the best guess.
fn provider(name: &str, folder: &Path) -> String {
    let driver = fs::read_link(folder.join("device/driver")).ok();
    let driver = driver.and_then(|d| Some(d.file_name()?.to_str()?.to_owned()));
    let guess = || name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
    let driver = driver.unwrap_or_else(guess);
    let short = driver.split('_').next().unwrap_or(&driver);
    format!("lib{short}-rdmav*.so with its entry {short}.driver in /etc/libibverbs.d")
}

/// The names in a folder; none if it cannot be read.
pub(super) fn entries(folder: &Path) -> Vec<String> {
    let Ok(list) = fs::read_dir(folder) else { return vec![] };
    list.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect()
}

const DEVICES: &str = "sys/class/infiniband";
const UVERBS: &str = "sys/class/infiniband_verbs";
const NODES: &str = "dev/infiniband";

#[cfg(test)]
pub(super) mod tests;
