//! What every report says of the host: which device was chosen and why, and which software is
//! between it and this program.

use super::diagnose;
use super::table::layout;
use memreg_core::device::AnyDevice;
use memreg_core::sizing::Pinned;
use serde::Serialize;
use std::fmt::Write as _;

/// Why this device, port and GID. There is none for the software device, which needs no choice.
#[derive(Clone, Serialize)]
pub(super) struct ChoiceShown {
    device: String,
    port: u8,
    gid_index: Option<u32>,
    /// The GID in use, with what carries it.
    gid: Option<String>,
    why: String,
    /// What may not be as it was meant.
    warning: Option<String>,
    /// The port's whole table.
    gids: Vec<String>,
    /// Where the device is known to differ from hardware, and what is done about it.
    quirks: Vec<String>,
}

/// The software between this program and its devices.
#[derive(Serialize)]
pub(super) struct StackShown {
    memreg: &'static str,
    bindings: &'static str,
    kernel: String,
    libraries: Vec<LibraryShown>,
    /// Provider entries without a library.
    stray_providers: Vec<String>,
    /// RLIMIT_MEMLOCK of this process; `None` = no limit.
    memlock_bytes: Option<u64>,
    /// This process is exempt from that limit.
    memlock_exempt: bool,
    /// Where this process's memory comes from, if that is one node.
    memory_node: Option<u32>,
}

#[derive(Serialize)]
struct LibraryShown {
    path: String,
    version: String,
}

/// What this process may pin, for devices that pin memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PinLimit {
    #[cfg(target_os = "linux")]
    pinning: Option<memreg_core::device::host::Pinning>,
}

#[cfg(target_os = "linux")]
impl PinLimit {
    /// This limit.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "for devices that pin memory"))]
    pub fn of(pinning: memreg_core::device::host::Pinning) -> PinLimit {
        PinLimit { pinning: Some(pinning) }
    }

    /// The most bytes; `None` = no limit.
    pub fn most(self) -> Option<u64> {
        self.pinning?.most()
    }

    /// Whether a connection can be had.
    ///
    /// # Errors
    /// Why not.
    pub fn check(self, p: Pinned) -> Result<(), String> {
        let check = |limit: memreg_core::device::host::Pinning| limit.check(p.buffers, p.payload);
        self.pinning.map_or(Ok(()), check).map_err(|e| e.to_string())
    }
}

#[cfg(not(target_os = "linux"))]
impl PinLimit {
    /// The most bytes; `None` = no limit.
    pub fn most(self) -> Option<u64> {
        None
    }

    /// Whether a connection can be had.
    ///
    /// # Errors
    /// Never.
    pub fn check(self, _: Pinned) -> Result<(), String> {
        Ok(())
    }
}

/// What applies to this device: the software device pins nothing.
pub(super) fn pin_limit(device: &AnyDevice) -> PinLimit {
    match device {
        AnyDevice::Sim(_) => PinLimit::default(),
        #[cfg(all(feature = "verbs", target_os = "linux"))]
        AnyDevice::Verbs(_) => PinLimit::of(memreg_core::device::host::Host::this().pinning()),
    }
}

/// Why this device, if it was chosen among others.
pub(super) fn choice(device: &AnyDevice) -> Option<ChoiceShown> {
    match device {
        AnyDevice::Sim(_) => None,
        #[cfg(all(feature = "verbs", target_os = "linux"))]
        AnyDevice::Verbs(device) => Some(shown(device.choice(), &device.quirks())),
    }
}

#[cfg(target_os = "linux")]
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "chosen with the feature verbs"))]
fn shown(
    choice: &memreg_core::device::host::Choice,
    quirks: &[memreg_core::device::host::Quirk],
) -> ChoiceShown {
    ChoiceShown {
        device: choice.name.clone(),
        port: choice.port.num,
        gid_index: choice.gid.map(|g| g.index),
        gid: choice.gid.map(|g| g.to_string()),
        why: choice.why.clone(),
        warning: choice.warning(),
        gids: choice.gids.iter().map(ToString::to_string).collect(),
        quirks: quirks.iter().map(ToString::to_string).collect(),
    }
}

impl ChoiceShown {
    /// The lines of a report.
    pub fn text(&self) -> String {
        let gid = self.gid.as_deref().unwrap_or("none");
        format!(
            "device    {} port {}, chosen: {}\ngid       {gid}\n",
            self.device, self.port, self.why
        )
    }

    /// Where the device differs from hardware, a line each.
    pub fn quirks(&self) -> String {
        self.quirks.iter().map(|q| format!("quirk     {q}\n")).collect()
    }

    /// Tells of what may not be as it was meant.
    pub fn warn(&self) {
        if let Some(warning) = &self.warning {
            diagnose(&format!("warning: {warning}"));
        }
    }
}

/// The software at work now; `None` where a host shows nothing of it.
pub(super) fn stack() -> Option<StackShown> {
    #[cfg(not(target_os = "linux"))]
    return None;
    #[cfg(target_os = "linux")]
    Some(stack_of(&memreg_core::device::host::Host::this()))
}

#[cfg(target_os = "linux")]
fn stack_of(host: &memreg_core::device::host::Host) -> StackShown {
    let (stack, pinning) = (host.stack(), host.pinning());
    let library = |l: memreg_core::device::host::LoadedLibrary| LibraryShown {
        path: l.path.display().to_string(),
        version: l.version,
    };
    StackShown {
        memreg: stack.memreg,
        bindings: stack.bindings,
        kernel: stack.kernel,
        libraries: stack.libraries.into_iter().map(library).collect(),
        stray_providers: stack.stray_providers,
        memlock_bytes: pinning.limit,
        memlock_exempt: pinning.exempt,
        memory_node: host.memory_node(),
    }
}

impl StackShown {
    /// The block of a report.
    pub fn text(&self) -> String {
        let mut rows = vec![
            ["memreg".to_owned(), self.memreg.to_owned()],
            ["bindings".to_owned(), self.bindings.to_owned()],
            ["kernel".to_owned(), self.kernel.clone()],
        ];
        let library =
            |l: &LibraryShown| ["library".to_owned(), format!("{} ({})", l.path, l.version)];
        rows.extend(self.libraries.iter().map(library));
        if self.libraries.is_empty() {
            rows.push(["library".to_owned(), "none of RDMA is loaded".to_owned()]);
        }
        let limit = match (self.memlock_bytes, self.memlock_exempt) {
            (None, _) => "no limit".to_owned(),
            (Some(n), true) => format!("{n} bytes, from which this process is exempt"),
            (Some(n), false) => format!("{n} bytes for this process"),
        };
        rows.push(["memlock".to_owned(), limit]);
        let node = self.memory_node.map_or("not one alone".to_owned(), |n| n.to_string());
        rows.push(["memory node".to_owned(), node]);
        let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
        let mut out = layout(&["software", "at work"], &rows, 2);
        for entry in &self.stray_providers {
            let _ = writeln!(
                out,
                "note: {entry} names a provider that is not installed; devices \
                 of other providers work without it"
            );
        }
        out
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use memreg_core::device::host::{Choice, GidEntry, GidKind, PortInfo, PortState};

    #[test]
    fn b97_b93_h_68_the_choice_is_told_with_its_reason_its_warning_and_its_quirks() {
        let mut gid = [0; 16];
        (gid[0], gid[1], gid[15]) = (0xfe, 0x80, 1);
        let gid = GidEntry { index: 1, gid, kind: GidKind::RoceV2 };
        let state = PortState::Active;
        let choice = Choice {
            name: "n1".into(),
            port: PortInfo { num: 2, state, lid: 0, mtu: 1024, ethernet: true },
            gid: Some(gid),
            gids: vec![gid],
            why: "the only usable device with an active port".into(),
            link_local: true,
        };
        let quirks = memreg_core::device::host::rxe_quirks("6.1.0-44-amd64");
        let shown = shown(&choice, &quirks);
        assert_eq!(
            shown.text(),
            "device    n1 port 2, chosen: the only usable device with an active port\n\
             gid       1: fe80::1 RoCE v2, link-local\n"
        );
        let bounds = "quirk     the bounds of a window are not enforced; here, ";
        assert!(shown.quirks().lines().any(|l| l.starts_with(bounds)), "{}", shown.quirks());
        assert!(shown.warning.unwrap().contains("gid_index 1 is link-local"));
        assert_eq!(shown.gids, ["1: fe80::1 RoCE v2, link-local"]);
    }

    #[test]
    fn b96_b91_the_block_of_a_report_has_every_version_and_says_what_is_no_failure() {
        let root = std::env::temp_dir().join(format!("cli-host-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/sys/kernel/osrelease", "6.1.0-44-amd64\n");
        write("proc/self/maps", "7f r-xp 0 0:0 1 /usr/lib/libibverbs.so.1.14.44.0\n");
        write("proc/self/limits", "Max locked memory  8388608  8388608  bytes\n");
        write("etc/libibverbs.d/bnxt_re.driver", "driver bnxt_re\n");
        let text = stack_of(&memreg_core::device::host::Host::at(&root)).text();
        let _ = std::fs::remove_dir_all(&root);
        for part in [
            env!("CARGO_PKG_VERSION"),
            "ibverbs-sys",
            "6.1.0-44-amd64",
            "/usr/lib/libibverbs.so.1.14.44.0 (1.14.44.0)",
            "8388608 bytes for this process",
            "note: bnxt_re.driver names a provider that is not installed",
        ] {
            assert!(text.contains(part), "no {part} in:\n{text}");
        }
        assert!(!text.contains("error") && !text.contains("warning"), "{text}");
    }
}
