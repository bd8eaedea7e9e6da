//! What this host shows of its RDMA devices, and why one cannot be used.

use rustix::fs::{Access, access};
use rustix::process::{Resource, getrlimit};
use std::fmt;
use std::fs;
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
            DeviceStatus::Permission { path, mode, owner, uid } => write!(
                f,
                "permission denied: {} has mode {mode:04o} and owner {owner}, this process is \
                 user {uid}",
                path.display()
            ),
        }
    }
}

/// The files of a host that tell of its devices.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
    may_open: fn(&Path) -> bool,
}

impl Host {
    /// This host.
    #[must_use]
    pub fn this() -> Host {
        let may_open = |p: &Path| access(p, Access::READ_OK | Access::WRITE_OK).is_ok();
        Host { root: PathBuf::from("/"), may_open }
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
            return DeviceStatus::NodesHidden { path: nodes, memlock: memlock() };
        }
        let Some(path) = self.node(name).map(|n| nodes.join(n)) else {
            return DeviceStatus::NodeMissing { path: nodes.join("uverbs*") };
        };
        let Ok(meta) = fs::metadata(&path) else { return DeviceStatus::NodeMissing { path } };
        if !(self.may_open)(&path) {
            let (mode, owner) = (meta.mode() & 0o7777, meta.uid());
            let uid = rustix::process::getuid().as_raw();
            return DeviceStatus::Permission { path, mode, owner, uid };
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

fn entries(folder: &Path) -> Vec<String> {
    let Ok(list) = fs::read_dir(folder) else { return vec![] };
    list.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect()
}

/// Bytes that this process may pin: its own limit, whatever a file says that is read at log-in.
pub(super) fn memlock() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

const DEVICES: &str = "sys/class/infiniband";
const UVERBS: &str = "sys/class/infiniband_verbs";
const NODES: &str = "dev/infiniband";

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A host of files in a folder of its own.
    struct Files(PathBuf);

    impl Files {
        fn new(devices: &[&str]) -> Files {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let root = std::env::temp_dir().join(format!("host-{}-{n}", std::process::id()));
            for (i, name) in devices.iter().enumerate() {
                fs::create_dir_all(root.join(DEVICES).join(name).join("device")).unwrap();
                let uverbs = root.join(UVERBS).join(format!("uverbs{i}"));
                fs::create_dir_all(&uverbs).unwrap();
                fs::write(uverbs.join("ibdev"), format!("{name}\n")).unwrap();
            }
            Files(root)
        }

        fn node(self, i: usize) -> Files {
            let nodes = self.0.join(NODES);
            fs::create_dir_all(&nodes).unwrap();
            fs::write(nodes.join(format!("uverbs{i}")), "").unwrap();
            self
        }

        fn look(&self, known: &[&str], may_open: fn(&Path) -> bool) -> Vec<Found> {
            let known: Vec<String> = known.iter().map(|&k| k.to_owned()).collect();
            Host { root: self.0.clone(), may_open }.devices(&known)
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn b88_a_kernel_device_without_user_library_names_what_is_missing() {
        let found = Files::new(&["rxe0"]).node(0).look(&[], |_| true);
        let text = found[0].to_string();
        assert!(
            text.contains("rxe0 (kernel device without user library: librxe-rdmav*.so"),
            "{text}"
        );
    }

    #[test]
    fn b92_nodes_that_are_missing_do_not_stop_the_others() {
        let host = Files::new(&["a0", "a1", "a2", "a3"]).node(0).node(2);
        let found = host.look(&["a0", "a1", "a2", "a3"], |_| true);
        let usable: Vec<_> = found.iter().filter(|f| f.is_usable()).map(|f| &f.name[..]).collect();
        assert_eq!(usable, ["a0", "a2"]);
        let DeviceStatus::NodeMissing { path } = &found[1].status else { panic!("{found:?}") };
        assert!(path.ends_with("dev/infiniband/uverbs1"));
    }

    #[test]
    fn b94_hidden_nodes_are_a_sandbox_and_not_a_missing_driver() {
        let found = Files::new(&["mlx5_0"]).look(&["mlx5_0"], |_| true);
        let text = found[0].to_string();
        assert!(text.contains("hidden") && text.contains("may pin"), "{text}");
        assert!(!text.contains("install"), "{text}");
    }

    #[test]
    fn b95_permission_is_told_with_path_mode_owner_and_user() {
        let host = Files::new(&["mlx5_0"]).node(0);
        let found = host.look(&["mlx5_0"], |_| false);
        let DeviceStatus::Permission { path, .. } = &found[0].status else { panic!("{found:?}") };
        assert!(path.ends_with("uverbs0"));
        let text = found[0].to_string();
        assert!(text.contains("mode 0") && text.contains("owner ") && text.contains("is user "));
    }

    #[test]
    fn b100_the_node_that_a_device_is_close_to_is_known_or_unknown() {
        let host = Files::new(&["n0", "n1"]).node(0).node(1);
        let numa = |name: &str, text: &str| {
            fs::write(host.0.join(DEVICES).join(name).join("device/numa_node"), text).unwrap();
        };
        numa("n0", "1\n");
        numa("n1", "-1\n");
        let found = host.look(&[], |_| true);
        assert_eq!((found[0].numa_node, found[1].numa_node), (Some(1), None));
    }
}
