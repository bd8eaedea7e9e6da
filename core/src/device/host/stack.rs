//! Which libraries and which kernel are at work: what a report of a problem must say.

use super::found::{Host, entries};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The software between this program and its devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SoftwareStack {
    /// This crate's version.
    pub memreg: &'static str,
    /// The crates that declare the system's library.
    pub bindings: &'static str,
    /// The kernel's release.
    pub kernel: String,
    /// Libraries of RDMA that are loaded into this process. Two of one name are two copies.
    pub libraries: Vec<LoadedLibrary>,
    /// Provider entries whose library is not there. The system's library warns of each; that says
    /// nothing of the devices that do work.
    pub stray_providers: Vec<String>,
}

/// A library in this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadedLibrary {
    /// Where it was loaded from.
    pub path: PathBuf,
    /// Its version: of its file's name, else of the symbols that it has.
    pub version: String,
}

impl Host {
    /// What is at work now; libraries of providers appear once the devices have been listed.
    #[must_use]
    pub fn stack(&self) -> SoftwareStack {
        SoftwareStack {
            memreg: env!("CARGO_PKG_VERSION"),
            bindings: BINDINGS,
            kernel: self.kernel(),
            libraries: self.libraries(),
            stray_providers: self.stray_providers(),
        }
    }

    /// The kernel's release, such as `6.1.0-44-amd64`.
    #[must_use]
    pub fn kernel(&self) -> String {
        self.read("proc/sys/kernel/osrelease").trim().to_owned()
    }

    fn libraries(&self) -> Vec<LoadedLibrary> {
        let maps = self.read("proc/self/maps");
        let paths = maps.lines().filter_map(|l| l.find('/').map(|at| &l[at..]));
        let ours = |path: &&str| {
            let name = path.rsplit('/').next().unwrap_or_default();
            ["libibverbs.", "librdmacm."].iter().any(|n| name.starts_with(n))
                || name.contains("-rdmav")
        };
        let paths: BTreeSet<&str> = paths.filter(ours).collect();
        let loaded = |path| LoadedLibrary { version: self.version(path), path: path.into() };
        paths.into_iter().map(loaded).collect()
    }

    /// `libibverbs.so.1.14.44.0` says it in its name; a file that was renamed has its symbols.
    fn version(&self, path: &str) -> String {
        let name = path.rsplit('/').next().unwrap_or_default();
        if let Some((_, version)) = name.split_once(".so.")
            && version.contains('.')
        {
            return version.to_owned();
        }
        if let Some((_, abi)) = name.split_once("-rdmav") {
            return format!("provider ABI {}", abi.trim_end_matches(".so"));
        }
        let bytes = self.bytes(path);
        let newest = numbers_after(&bytes, b"IBVERBS_1.").max();
        let provider = numbers_after(&bytes, b"IBVERBS_PRIVATE_").max();
        match (newest, provider) {
            (Some(n), Some(p)) => format!("symbols up to IBVERBS_1.{n}, provider ABI {p}"),
            (Some(n), None) => format!("symbols up to IBVERBS_1.{n}"),
            _ => "unknown".to_owned(),
        }
    }

    fn bytes(&self, path: &str) -> Vec<u8> {
        let mut bytes = vec![];
        if let Ok(file) = File::open(self.root.join(path.trim_start_matches('/'))) {
            let _ = file.take(LIBRARY_BYTES_MOST).read_to_end(&mut bytes);
        }
        bytes
    }

    /// Entries of `libibverbs.d` without a library in any of the usual folders.
    fn stray_providers(&self) -> Vec<String> {
        let lib = self.root.join("usr/lib");
        let mut folders = vec![self.root.join("usr/lib64"), lib.clone()];
        folders.extend(entries(&lib).iter().map(|name| lib.join(name)));
        let libraries: Vec<String> =
            folders.iter().flat_map(|f| entries(&f.join("libibverbs"))).collect();
        let mut files = entries(&self.root.join(DRIVERS));
        files.sort();
        let stray = files.into_iter().filter(|file| file.ends_with(".driver")).filter(|file| {
            let text = self.read(&format!("{DRIVERS}/{file}"));
            let mut words = text.split_whitespace();
            let (Some("driver"), Some(driver)) = (words.next(), words.next()) else { return false };
            if Path::new(driver).is_absolute() {
                let at = format!("{}-rdmav", driver.trim_start_matches('/'));
                let folder = self.root.join(&at);
                let name = folder.file_name().map(|n| n.to_string_lossy().into_owned());
                let there = folder.parent().map(entries).unwrap_or_default();
                return !name.is_some_and(|n| there.iter().any(|f| f.starts_with(&n)));
            }
            let start = format!("lib{driver}-rdmav");
            !libraries.iter().any(|l| l.starts_with(&start))
        });
        stray.collect()
    }
}

/// The numbers that follow each place where `start` stands.
fn numbers_after<'a>(bytes: &'a [u8], start: &'a [u8]) -> impl Iterator<Item = u32> + 'a {
    let at = bytes.windows(start.len()).enumerate().filter(move |(_, w)| *w == start);
    at.filter_map(move |(i, _)| {
        let digits = bytes.get(i + start.len()..)?;
        let count = digits.iter().take(9).take_while(|b| b.is_ascii_digit()).count();
        std::str::from_utf8(digits.get(..count)?).ok()?.parse().ok()
    })
}

/// Versions of the crates that the lock file names; a test compares.
const BINDINGS: &str = "ibverbs 0.9.2, ibverbs-sys 0.3.2+55.0";
const DRIVERS: &str = "etc/libibverbs.d";
/// libibverbs has a hundred kilobytes.
const LIBRARY_BYTES_MOST: u64 = 8 << 20;

#[cfg(test)]
mod tests {
    use super::super::found::tests::Files;
    use super::*;

    #[test]
    fn b96_the_libraries_in_this_process_are_told_with_path_and_version() {
        let files = Files::new(&[]);
        files.write("proc/sys/kernel/osrelease", "6.1.0-44-amd64\n");
        files.write(
            "proc/self/maps",
            "7f00-7f01 r--p 0 fe:01 1    /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0\n\
             7f01-7f02 r-xp 0 fe:01 1    /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0\n\
             7f03-7f04 r--p 0 fe:01 2    /opt/ofed/libibverbs.so.1\n\
             7f05-7f06 r--p 0 fe:01 3    /usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so\n\
             7f07-7f08 r--p 0 fe:01 4    /usr/lib/x86_64-linux-gnu/libc.so.6\n\
             7f09-7f0a rw-p 0 00:00 0    [heap]\n",
        );
        files.write("opt/ofed/libibverbs.so.1", "\0IBVERBS_1.1\0IBVERBS_1.14\0IBVERBS_PRIVATE_34");
        let stack = files.host().stack();
        assert_eq!(stack.kernel, "6.1.0-44-amd64");
        assert_eq!(stack.memreg, env!("CARGO_PKG_VERSION"));
        let shown: Vec<_> =
            stack.libraries.iter().map(|l| format!("{} {}", l.path.display(), l.version)).collect();
        assert_eq!(
            shown,
            [
                "/opt/ofed/libibverbs.so.1 symbols up to IBVERBS_1.14, provider ABI 34",
                "/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0 1.14.44.0",
                "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so provider ABI 34",
            ]
        );
    }

    #[test]
    fn b96_the_versions_of_the_bindings_are_those_of_the_lock_file() {
        let lock = include_str!("../../../../Cargo.lock");
        let version = |name: &str| {
            let from = lock.split(&format!("name = \"{name}\"\nversion = \"")).nth(1).unwrap();
            format!("{name} {}", from.split('"').next().unwrap())
        };
        assert_eq!(BINDINGS, format!("{}, {}", version("ibverbs"), version("ibverbs-sys")));
    }

    #[test]
    fn b91_an_entry_without_a_library_is_told_apart_from_devices_that_work() {
        let files = Files::new(&["rxe0"]);
        files.write("dev/infiniband/uverbs0", "");
        files.write("etc/libibverbs.d/rxe.driver", "driver rxe\n");
        files.write("etc/libibverbs.d/bnxt_re.driver", "driver bnxt_re\n");
        files.write("etc/libibverbs.d/own.driver", "driver /opt/own/libown\n");
        files.write("etc/libibverbs.d/gone.driver", "driver /opt/own/libgone\n");
        files.write("etc/libibverbs.d/README", "driver none\n");
        files.write("usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "");
        files.write("opt/own/libown-rdmav34.so", "");
        let stray = files.host().stack().stray_providers;
        assert_eq!(stray, ["bnxt_re.driver", "gone.driver"]);
        assert!(files.host().devices(&["rxe0".into()]).iter().all(|f| f.is_usable()));
    }
}
