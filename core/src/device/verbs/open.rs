//! Which device, which port, which GID; and every reason why not.

use super::context::{Context, names};
use super::host::{Found, Host};
use crate::device::{PortAddr, TransportKind, errno};
use crate::error::Disposition;
use std::fmt;
use std::sync::Arc;

/// What to open. Unset means: find one that works.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VerbsOptions {
    /// The device's exact name.
    pub name: Option<String>,
    /// The port, counted from 1.
    pub port: Option<u8>,
    /// The entry of the port's GID table.
    pub gid_index: Option<u8>,
}

/// The state of a port, as `ibv_query_port(3)` has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PortState {
    /// No link.
    Down,
    /// Link, and no address yet.
    Init,
    /// Addressed, and not yet released for traffic.
    Armed,
    /// Usable.
    Active,
    /// A number that this build does not name.
    Unknown(u32),
}

impl PortState {
    /// From the number in the attributes.
    #[must_use]
    pub const fn from_raw(n: u32) -> PortState {
        match n {
            1 => PortState::Down,
            2 => PortState::Init,
            3 => PortState::Armed,
            4 => PortState::Active,
            n => PortState::Unknown(n),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortState::Down => f.write_str("down"),
            PortState::Init => f.write_str("init"),
            PortState::Armed => f.write_str("armed"),
            PortState::Active => f.write_str("active"),
            PortState::Unknown(n) => write!(f, "in state {n}"),
        }
    }
}

/// One port of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortInfo {
    /// Counted from 1.
    pub num: u8,
    /// Whether it can be used.
    pub state: PortState,
    /// Its address on an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// Bytes of the longest packet.
    pub mtu: u16,
    /// Ethernet, where every peer is addressed by GID.
    pub ethernet: bool,
}

impl fmt::Display for PortInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {} is {}", self.num, self.state)
    }
}

/// What carries a GID's packets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum GidKind {
    Ib,
    RoceV1,
    RoceV2,
}

/// One entry of a port's GID table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GidEntry {
    pub(super) index: u32,
    pub(super) gid: [u8; 16],
    pub(super) kind: GidKind,
}

impl GidEntry {
    fn is_link_local(&self) -> bool {
        self.gid[0] == 0xfe && self.gid[1] & 0xc0 == 0x80
    }

    fn is_ipv4(&self) -> bool {
        self.gid[..10] == [0; 10] && self.gid[10..12] == [0xff; 2]
    }
}

/// The port that a device's QPs use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Port {
    pub(super) num: u8,
    pub(super) gid_index: u8,
    pub(super) addr: PortAddr,
    /// The GID reaches no farther than the link: named when a connection times out.
    pub(super) link_local: bool,
    /// RDMA READs of the peer that are served at once.
    pub(super) reads_served: u8,
    /// RDMA READs that are asked of the peer at once.
    pub(super) reads_asked: u8,
}

/// No device could be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel has no user access to RDMA devices.
    #[error(
        "the kernel shows no RDMA devices to programs: load ib_uverbs and the device's driver \
         (or, in a container, hand the devices in)"
    )]
    NoKernelSupport,
    /// There is no device, or none that can be used.
    #[error("no usable RDMA device: {}", listed(.found, "the kernel has none"))]
    NoDevice {
        /// What the kernel has, each with the reason.
        found: Vec<Found>,
    },
    /// The named device does not exist.
    #[error("RDMA device {name:?} does not exist; there are: {}", listed(.found, "none"))]
    Unknown {
        /// The name asked for.
        name: String,
        /// What the kernel has.
        found: Vec<Found>,
    },
    /// The named device exists and cannot be used.
    #[error("RDMA device {0}")]
    Unusable(Found),
    /// The library would not open the device.
    #[error("RDMA device {name:?}: open: errno {errno}")]
    Open {
        /// The device.
        name: String,
        /// The library's errno.
        errno: i32,
    },
    /// An attribute could not be read.
    #[error("RDMA device {name:?}: {what}: errno {errno}")]
    Query {
        /// The device.
        name: String,
        /// The call.
        what: &'static str,
        /// The library's errno.
        errno: i32,
    },
    /// No port of the device is up.
    #[error("RDMA device {name:?}: no active port: {}", listed(.ports, "it has none"))]
    NoActivePort {
        /// The device.
        name: String,
        /// Its ports.
        ports: Vec<PortInfo>,
    },
    /// The named port does not exist.
    #[error("RDMA device {name:?} has no port {port}: {}", listed(.ports, "it has none"))]
    NoSuchPort {
        /// The device.
        name: String,
        /// The port asked for.
        port: u8,
        /// Its ports.
        ports: Vec<PortInfo>,
    },
    /// The named GID does not exist.
    #[error(
        "gid_index {asked} is not present on {name} port {port}; the table has: {}",
        listed(.present, "nothing")
    )]
    NoSuchGid {
        /// The device.
        name: String,
        /// The port.
        port: u8,
        /// The index asked for.
        asked: u8,
        /// Indices that exist.
        present: Vec<u32>,
    },
}

impl OpenError {
    /// What to do about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        Disposition::Fatal
    }
}

fn listed<T: fmt::Display>(all: &[T], none: &str) -> String {
    if all.is_empty() {
        return none.to_owned();
    }
    all.iter().map(T::to_string).collect::<Vec<_>>().join("; ")
}

/// The devices of the kernel, by name, each with the reason if it cannot be used.
#[must_use]
pub fn devices() -> Vec<Found> {
    // Without a list from the library no device has a provider.
    Host::this().devices(&names().unwrap_or_default())
}

/// An opened device and the port to use.
pub(super) struct Opened {
    pub(super) context: Arc<Context>,
    pub(super) name: String,
    pub(super) port: Port,
    pub(super) attr: ibverbs_sys::ibv_device_attr,
    pub(super) transport: TransportKind,
}

/// Opens what the options say. A device that is named is that one or an error; unset takes the
/// first by name that has an active port, and one that cannot be opened does not stop the others.
pub(super) fn open(options: &VerbsOptions) -> Result<Opened, OpenError> {
    let known = match names() {
        Ok(known) => known,
        Err(e) if e.raw_os_error() == Some(ENOSYS) => vec![],
        Err(e) => {
            let errno = e.raw_os_error().unwrap_or(errno::EIO);
            let name = options.name.clone().unwrap_or_default();
            return Err(OpenError::Query { name, what: "list of devices", errno });
        }
    };
    let found = Host::this().devices(&known);
    if let Some(name) = &options.name {
        let Some(one) = found.iter().find(|f| f.name == *name) else {
            return Err(match found.is_empty() && !Host::this().has_verbs() {
                true => OpenError::NoKernelSupport,
                false => OpenError::Unknown { name: name.clone(), found },
            });
        };
        if !one.is_usable() {
            return Err(OpenError::Unusable(one.clone()));
        }
        return open_named(name, options);
    }
    if found.is_empty() && !Host::this().has_verbs() {
        return Err(OpenError::NoKernelSupport);
    }
    let mut first = None;
    for one in found.iter().filter(|f| f.is_usable()) {
        match open_named(&one.name, options) {
            Ok(opened) => return Ok(opened),
            Err(e) => {
                tracing::info!(device = one.name, reason = %e, "device passed over");
                first = first.or(Some(e));
            }
        }
    }
    Err(first.unwrap_or(OpenError::NoDevice { found }))
}

fn open_named(name: &str, options: &VerbsOptions) -> Result<Opened, OpenError> {
    let failed = |errno| OpenError::Open { name: name.to_owned(), errno };
    let context = Context::open(name).map_err(failed)?;
    let context = context.ok_or(failed(errno::ENODEV))?;
    let query = |what| move |errno| OpenError::Query { name: name.to_owned(), what, errno };
    let attr = context.attributes().map_err(query("query_device"))?;
    let ports: Vec<PortInfo> = (1..=attr.phys_port_cnt)
        .map(|num| context.port(num))
        .collect::<Result<_, _>>()
        .map_err(query("query_port"))?;
    let info = choose_port(name, ports, options.port)?;
    let gids = context.gids(info.num).map_err(query("query_gid_table"))?;
    let gid = choose_gid(name, info.num, &gids, options.gid_index)?;
    if gid.is_some_and(|g| info.ethernet && g.is_link_local()) {
        tracing::warn!(device = name, "the GID in use is link-local: peers beyond are not reached");
    }
    let addr = PortAddr { gid: gid.map_or([0; 16], |g| g.gid), lid: info.lid, mtu: info.mtu };
    let reads = |max: i32, most: u8| u8::try_from(max.clamp(1, i32::from(most))).unwrap_or(1);
    let port = Port {
        num: info.num,
        gid_index: gid.and_then(|g| u8::try_from(g.index).ok()).unwrap_or(0),
        addr,
        link_local: gid.is_some_and(|g| info.ethernet && g.is_link_local()),
        reads_served: reads(attr.max_qp_rd_atom, READS_SERVED),
        reads_asked: reads(attr.max_qp_init_rd_atom, READS_ASKED),
    };
    let transport = match (context.is_iwarp(), info.ethernet) {
        (true, _) => TransportKind::Iwarp,
        (false, true) => TransportKind::Roce,
        (false, false) => TransportKind::Ib,
    };
    Ok(Opened { context, name: name.to_owned(), port, attr, transport })
}

/// The first active port, or the one asked for if it is active.
fn choose_port(name: &str, ports: Vec<PortInfo>, asked: Option<u8>) -> Result<PortInfo, OpenError> {
    let name = name.to_owned();
    let one = match asked {
        None => ports.iter().find(|p| p.state == PortState::Active),
        Some(port) => match ports.iter().find(|p| p.num == port) {
            None => return Err(OpenError::NoSuchPort { name, port, ports }),
            Some(p) => Some(p).filter(|p| p.state == PortState::Active),
        },
    };
    one.copied().ok_or(OpenError::NoActivePort { name, ports })
}

/// The entry asked for; or the one that reaches farthest: routable over narrow, IPv4 over IPv6,
/// then the first. `None` only for an empty table.
fn choose_gid(
    name: &str,
    port: u8,
    table: &[GidEntry],
    asked: Option<u8>,
) -> Result<Option<GidEntry>, OpenError> {
    let Some(asked) = asked else {
        let rank = |g: &&GidEntry| (!g.is_link_local(), g.kind, g.is_ipv4());
        // The last of equals wins in `max_by_key`: walk backwards for the first.
        return Ok(table.iter().rev().max_by_key(rank).copied());
    };
    let entry = table.iter().find(|g| g.index == u32::from(asked)).copied();
    match entry {
        Some(g) => Ok(Some(g)),
        None => {
            let present = table.iter().map(|g| g.index).collect();
            Err(OpenError::NoSuchGid { name: name.to_owned(), port, asked, present })
        }
    }
}

const ENOSYS: i32 = 38;
const READS_SERVED: u8 = 16;
/// Below what any peer of this library serves.
const READS_ASKED: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn port(num: u8, state: PortState) -> PortInfo {
        PortInfo { num, state, lid: 0, mtu: 1024, ethernet: true }
    }

    #[test]
    fn b99_a_port_that_is_down_is_never_taken() {
        let two = vec![port(1, PortState::Down), port(2, PortState::Active)];
        assert_eq!(choose_port("a", two.clone(), None).unwrap().num, 2);
        let e = choose_port("a", two.clone(), Some(1)).unwrap_err();
        assert!(e.to_string().contains("port 1 is down; port 2 is active"), "{e}");
        assert!(matches!(choose_port("a", two, Some(3)), Err(OpenError::NoSuchPort { .. })));
        let e = choose_port("c", vec![port(1, PortState::Down)], None).unwrap_err();
        assert!(e.to_string().contains("no active port: port 1 is down"), "{e}");
    }

    fn gid(index: u32, ipv4: bool, kind: GidKind) -> GidEntry {
        let mut gid = [0; 16];
        if ipv4 {
            gid[10..].copy_from_slice(&[0xff, 0xff, 200, 0, 209, 6]);
        } else {
            gid[..2].copy_from_slice(&[0xfe, 0x80]);
        }
        GidEntry { index, gid, kind }
    }

    fn table() -> Vec<GidEntry> {
        use GidKind::{RoceV1, RoceV2};
        vec![
            gid(0, false, RoceV1),
            gid(1, false, RoceV2),
            gid(2, true, RoceV1),
            gid(3, true, RoceV2),
        ]
    }

    #[test]
    fn b97_the_gid_that_can_be_routed_is_taken_and_a_link_local_one_is_known_as_such() {
        assert_eq!(choose_gid("d", 1, &table(), None).unwrap().unwrap().index, 3);
        let one = choose_gid("d", 1, &table(), Some(1)).unwrap().unwrap();
        assert!(one.is_link_local());
        assert_eq!(choose_gid("d", 1, &[], None).unwrap(), None);
    }

    #[test]
    fn b98_an_index_that_is_not_in_the_table_is_not_a_port_that_is_down() {
        let e = choose_gid("d", 1, &table()[..1], Some(1)).unwrap_err();
        let text = "gid_index 1 is not present on d port 1; the table has: 0";
        assert_eq!(e.to_string(), text);
    }
}
