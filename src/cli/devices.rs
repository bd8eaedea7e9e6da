//! `memreg devices`: the profiles of the software device, the devices of libibverbs, and what the
//! configuration selects.

use super::failure::Failure;
use super::table::layout;
use super::{Answer, SCHEMA, json};
use crate::{open_device, profile_of};
use memreg_config::{DeviceSettings, Settings};
use memreg_core::device::Caps;
use memreg_core::device::sim::{Profile, profile};
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt::Write as _;

#[derive(Serialize)]
struct Report {
    schema: u32,
    command: &'static str,
    devices: Vec<Device>,
    /// Those of libibverbs; empty in a build without it.
    real: Vec<Real>,
    /// What the configuration makes of the profile it selects; `None` if it selects hardware.
    selected: Option<Device>,
}

#[derive(Serialize)]
struct Device {
    kind: &'static str,
    profile: String,
    about: String,
    source: String,
    selected: bool,
    attributes: Map<String, Value>,
}

/// A device of the kernel.
#[derive(Serialize)]
pub(super) struct Real {
    kind: &'static str,
    name: String,
    usable: bool,
    /// Why not.
    status: String,
    /// The memory node that it is close to.
    numa_node: Option<u32>,
    ports: Vec<Port>,
    selected: bool,
    attributes: Option<Map<String, Value>>,
}

/// One of its ports.
#[derive(Serialize)]
struct Port {
    port: u8,
    state: String,
    mtu: u16,
    gids: Vec<String>,
}

/// Lists the profiles and the devices.
pub(super) fn run(settings: &Settings, as_json: bool) -> Result<Answer, Failure> {
    let (base, selected, failure) = match &settings.device {
        DeviceSettings::Sim(sim) => (sim.base(), Some(profile_of(sim)?), None),
        DeviceSettings::Verbs(_) => ("", None, open_device(settings).err().map(Failure::from)),
    };
    let real = real(settings);
    let builtin: Vec<Profile> =
        profile::names().iter().filter_map(|name| profile::builtin(name)).collect();
    // A built-in profile is selected as it stands, or something was made of it.
    let plain = selected.as_ref().is_some_and(|s| builtin.contains(s));
    let mut devices: Vec<Device> =
        builtin.iter().map(|p| device(p, plain && p.name == base)).collect();
    let selected = selected.map(|p| device(&p, true));
    if as_json {
        let report = Report { schema: SCHEMA, command: "devices", devices, real, selected };
        return Ok(Answer { stdout: json(&report), failure });
    }
    if let Some(mut own) = selected.filter(|_| !plain) {
        if builtin.iter().any(|p| p.name == own.profile) {
            own.profile += " + device.caps";
        }
        devices.push(own);
    }
    Ok(Answer { stdout: text(&devices) + &real_text(&real), failure })
}

fn device(p: &Profile, selected: bool) -> Device {
    Device {
        kind: "sim",
        profile: p.name.to_string(),
        about: p.about.to_string(),
        source: p.source.to_string(),
        selected,
        attributes: attributes(&p.caps),
    }
}

#[cfg(not(all(feature = "verbs", target_os = "linux")))]
pub(super) fn real(_: &Settings) -> Vec<Real> {
    vec![]
}

/// The devices of the kernel with their ports, whether or not they can be used.
#[cfg(all(feature = "verbs", target_os = "linux"))]
pub(super) fn real(settings: &Settings) -> Vec<Real> {
    use memreg_core::device::Device as _;
    use memreg_core::device::host::choose;
    use memreg_core::device::verbs::{VerbsDevice, VerbsOptions, facts};
    let selected = match &settings.device {
        DeviceSettings::Sim(_) => None,
        DeviceSettings::Verbs(_) => open_device(settings).ok().map(|d| d.name()),
    };
    let all = facts();
    let shown = |one: &memreg_core::device::host::Facts| {
        let name = one.found.name.clone();
        let options = VerbsOptions { name: Some(name.clone()), ..VerbsOptions::default() };
        // A node that can be opened is not yet a port that is up.
        let fits = choose(&all, &options, None).and_then(|_| VerbsDevice::open(&options));
        let (usable, status, attributes) = match fits {
            Err(_) if !one.found.is_usable() => (false, one.found.status.to_string(), None),
            Err(e) => (false, e.to_string(), None),
            Ok(d) => (true, one.found.status.to_string(), Some(attributes(&d.caps()))),
        };
        let selected = selected.as_ref() == Some(&name);
        let ports = one.ports.iter().flatten().map(port).collect();
        let numa_node = one.found.numa_node;
        Real { kind: "verbs", name, usable, status, numa_node, ports, selected, attributes }
    };
    all.iter().map(shown).collect()
}

#[cfg(all(feature = "verbs", target_os = "linux"))]
fn port(p: &memreg_core::device::host::PortFacts) -> Port {
    let gids = p.gids.iter().map(ToString::to_string).collect();
    Port { port: p.info.num, state: p.info.state.to_string(), mtu: p.info.mtu, gids }
}

/// The same for people.
pub(super) fn real_text(all: &[Real]) -> String {
    let mut out = String::new();
    if !cfg!(all(feature = "verbs", target_os = "linux")) {
        return out;
    }
    out.push_str("\nDevices of libibverbs (device.kind = \"verbs\", device.name):\n");
    if all.is_empty() {
        out.push_str("    the kernel has none\n");
    }
    for d in all {
        let mark = if d.selected { "  <- selected by the configuration" } else { "" };
        let _ = writeln!(out, "\n{}{mark}\n    {}", d.name, d.status);
        for p in &d.ports {
            let _ = writeln!(out, "    port {} {}, mtu {}", p.port, p.state, p.mtu);
            for gid in &p.gids {
                let _ = writeln!(out, "        gid {gid}");
            }
        }
        let of = |(name, value): (&String, &Value)| vec![name.clone(), value.to_string()];
        if let Some(list) = &d.attributes {
            let rows: Vec<Vec<String>> = list.iter().map(of).collect();
            out.push_str(&layout(&["attribute", "reported"], &rows, 1));
        }
    }
    out
}

fn text(devices: &[Device]) -> String {
    let mut out = String::from("Profiles of the software device (device.profile):\n");
    for d in devices {
        let mark = if d.selected { "  <- selected by the configuration" } else { "" };
        let _ = writeln!(out, "\n{}{mark}\n    {}", d.profile, d.about);
        let _ = writeln!(out, "    source of the numbers: {}", d.source);
    }
    for group in devices.chunks(PROFILES_A_TABLE) {
        out.push('\n');
        out.push_str(&table(group));
    }
    out
}

/// Attributes of a few devices side by side.
fn table(devices: &[Device]) -> String {
    let mut headers = vec!["attribute"];
    headers.extend(devices.iter().map(|d| d.profile.as_str()));
    let names = devices.first().map(|d| d.attributes.keys()).into_iter().flatten();
    let rows: Vec<Vec<String>> = names
        .map(|name| {
            let cells = devices.iter().map(|d| match d.attributes.get(name) {
                Some(Value::String(text)) => text.clone(),
                Some(value) => value.to_string(),
                None => String::new(),
            });
            std::iter::once(name.clone()).chain(cells).collect()
        })
        .collect();
    layout(&headers, &rows, 1)
}

/// As many as fit a terminal's width.
const PROFILES_A_TABLE: usize = 4;

/// The attributes by name. Taken apart in full, so that a new one cannot be forgotten here.
pub(super) fn attributes(caps: &Caps) -> Map<String, Value> {
    let Caps {
        transport,
        mem_mgt_extensions,
        sg_gaps,
        max_fast_reg_page_list_len,
        mem_window_type_2b,
        max_mw,
        max_mr,
        max_mr_size,
        iommu_mr_size,
        relaxed_ordering,
        relaxed_ordering_always,
        max_qp_wr,
        wide_sge,
        max_qp_wr_wide,
        max_cqe,
        max_sge,
        max_sge_rd,
        max_inline_data,
        page_size,
    } = caps.clone();
    let list: [(&str, Value); 19] = [
        ("transport", transport.to_string().into()),
        ("mem_mgt_extensions", mem_mgt_extensions.into()),
        ("sg_gaps", sg_gaps.into()),
        ("max_fast_reg_page_list_len", max_fast_reg_page_list_len.into()),
        ("mem_window_type_2b", mem_window_type_2b.into()),
        ("max_mw", max_mw.into()),
        ("max_mr", max_mr.into()),
        ("max_mr_size", max_mr_size.into()),
        ("iommu_mr_size", iommu_mr_size.into()),
        ("relaxed_ordering", relaxed_ordering.into()),
        ("relaxed_ordering_always", relaxed_ordering_always.into()),
        ("max_qp_wr", max_qp_wr.into()),
        ("wide_sge", wide_sge.into()),
        ("max_qp_wr_wide", max_qp_wr_wide.into()),
        ("max_cqe", max_cqe.into()),
        ("max_sge", max_sge.into()),
        ("max_sge_rd", max_sge_rd.into()),
        ("max_inline_data", max_inline_data.into()),
        ("page_size", page_size.into()),
    ];
    list.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
