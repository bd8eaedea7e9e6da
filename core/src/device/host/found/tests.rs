use super::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// A host of files in a folder of its own.
pub(in super::super) struct Files(pub(in super::super) PathBuf);

impl Files {
    pub(in super::super) fn new(devices: &[&str]) -> Files {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("host-{}-{n}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let files = Files(root);
        for (i, name) in devices.iter().enumerate() {
            fs::create_dir_all(files.0.join(DEVICES).join(name).join("device")).unwrap();
            let at = format!("{UVERBS}/uverbs{i}/ibdev");
            files.write(&at, &format!("{name}\n"));
        }
        files
    }

    pub(in super::super) fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(in super::super) fn host(&self) -> Host {
        Host::at(&self.0)
    }

    fn node(self, i: usize) -> Files {
        self.write(&format!("{NODES}/uverbs{i}"), "");
        self
    }

    fn look(&self, known: &[&str], may_open: fn(&Path) -> bool) -> Vec<Found> {
        let known: Vec<String> = known.iter().map(|&k| k.to_owned()).collect();
        Host { may_open, ..self.host() }.devices(&known)
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
    assert!(text.contains("rxe0 (kernel device without user library: librxe-rdmav*.so"), "{text}");
    let e = super::super::OpenError::NoDevice { found }.to_string();
    assert!(e.starts_with("no usable RDMA device: rxe0 (kernel device without"), "{e}");
}

#[test]
fn b92_nodes_that_are_missing_do_not_stop_the_others() {
    let host = Files::new(&["a0", "a1", "a2", "a3"]).node(0).node(2);
    let found = host.look(&["a0", "a1", "a2", "a3"], |_| true);
    let usable: Vec<_> = found.iter().filter(|f| f.is_usable()).map(|f| &f.name[..]).collect();
    assert_eq!(usable, ["a0", "a2"]);
    assert_eq!(found[1].to_string(), "a1 (device node missing: /dev/infiniband/uverbs1)");
    assert_eq!(found[3].to_string(), "a3 (device node missing: /dev/infiniband/uverbs3)");
}

#[test]
fn b94_hidden_nodes_are_a_sandbox_and_not_a_missing_driver() {
    let files = Files::new(&["mlx5_0"]);
    files.write("proc/self/limits", "Max locked memory    65536    65536    bytes\n");
    let found = files.look(&["mlx5_0"], |_| true);
    assert_eq!(
        found[0].to_string(),
        "mlx5_0 (device nodes are hidden: /dev/infiniband does not exist (container or service \
         sandbox); this process may pin 65536 bytes)"
    );
}

#[test]
fn b95_permission_is_told_with_path_mode_owner_and_user() {
    let host = Files::new(&["mlx5_0"]).node(0);
    host.write("proc/self/status", "");
    let found = host.look(&["mlx5_0"], |_| false);
    let DeviceStatus::Permission { path, mode, owner, uid } = &found[0].status else {
        panic!("neither a missing node nor a missing device: {found:?}")
    };
    assert_eq!(path, Path::new("/dev/infiniband/uverbs0"));
    assert_eq!(owner, uid, "this process made the file");
    let text = format!(
        "mlx5_0 (permission denied: /dev/infiniband/uverbs0 has mode {mode:04o} and owner {owner}, \
         this process is user {uid}"
    );
    assert!(found[0].to_string().starts_with(&text), "{}", found[0]);
    let of = |mode, uid| {
        let path = PathBuf::from("/dev/infiniband/uverbs0");
        DeviceStatus::Permission { path, mode, owner: 0, uid }.to_string()
    };
    assert!(of(0o600, 1000).ends_with("mode 0600 and owner 0, this process is user 1000"));
    for forbidden in [of(0o666, 1000), of(0o600, 0)] {
        assert!(forbidden.ends_with("the container's device rules forbid it"), "{forbidden}");
    }
}

#[test]
fn b100_the_node_that_a_device_is_close_to_is_known_or_unknown() {
    let host = Files::new(&["n0", "n1"]).node(0).node(1);
    let numa = |name: &str, text: &str| {
        host.write(&format!("{DEVICES}/{name}/device/numa_node"), text);
    };
    numa("n0", "1\n");
    numa("n1", "-1\n");
    let found = host.look(&[], |_| true);
    assert_eq!((found[0].numa_node, found[1].numa_node), (Some(1), None));
}
