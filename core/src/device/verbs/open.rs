//! Facts of the devices, and the one that the choice falls on.

use super::context::{Context, names};
use crate::device::host::{
    Choice, Facts, Found, Host, OpenError, PortFacts, PortInfo, VerbsOptions, choose,
};
use crate::device::{PortAddr, TransportKind, errno};
use std::sync::Arc;

/// The port that a device's QPs use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Port {
    pub(super) num: u8,
    pub(super) gid_index: u8,
    pub(super) addr: PortAddr,
    /// RDMA READs of the peer that are served at once.
    pub(super) reads_served: u8,
    /// RDMA READs that are asked of the peer at once.
    pub(super) reads_asked: u8,
}

/// The devices of the kernel, by name, each with the reason if it cannot be used.
#[must_use]
pub fn devices() -> Vec<Found> {
    // Without a list from the library no device has a provider.
    Host::this().devices(&names().unwrap_or_default())
}

/// What is known of each device of the kernel, by name: its ports and GIDs, where it can be opened.
#[must_use]
pub fn facts() -> Vec<Facts> {
    devices().into_iter().map(|found| look(found).0).collect()
}

/// An opened device and the port to use.
pub(super) struct Opened {
    pub(super) context: Arc<Context>,
    pub(super) choice: Choice,
    pub(super) port: Port,
    pub(super) attr: ibverbs_sys::ibv_device_attr,
    pub(super) transport: TransportKind,
}

/// Opens what the options say. A device that is named is that one or an error; among the others,
/// one that cannot be opened does not stop the next.
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
    let host = Host::this();
    let found = host.devices(&known);
    if found.is_empty() && !host.has_verbs() {
        return Err(OpenError::NoKernelSupport);
    }
    // Others than the one that is named are not even opened.
    let of_interest = |f: &Found| options.name.as_ref().is_none_or(|name| f.name == *name);
    let (all, mut contexts): (Vec<Facts>, Vec<_>) =
        found
            .into_iter()
            .map(|f| {
                if of_interest(&f) {
                    look(f)
                } else {
                    (Facts { found: f, ports: Ok(vec![]) }, None)
                }
            })
            .unzip();
    let choice = choose(&all, options, host.memory_node())?;
    let at = all.iter().position(|f| f.found.name == choice.name);
    let context = at.and_then(|at| contexts.get_mut(at)).and_then(Option::take);
    let name = choice.name.clone();
    let context = context.ok_or(OpenError::Open { name, errno: errno::ENODEV })?;
    finish(context, choice)
}

/// Opens one device and reads its ports.
fn look(found: Found) -> (Facts, Option<Arc<Context>>) {
    if !found.is_usable() {
        return (Facts { found, ports: Ok(vec![]) }, None);
    }
    let opened = open_context(&found.name);
    let ports = opened.as_ref().map_err(Clone::clone).and_then(|c| ports(&found.name, c));
    (Facts { found, ports }, opened.ok())
}

fn open_context(name: &str) -> Result<Arc<Context>, OpenError> {
    let failed = |errno| OpenError::Open { name: name.to_owned(), errno };
    Context::open(name).map_err(failed)?.ok_or(failed(errno::ENODEV))
}

fn ports(name: &str, context: &Context) -> Result<Vec<PortFacts>, OpenError> {
    let query = |what| move |errno| OpenError::Query { name: name.to_owned(), what, errno };
    let count = context.attributes().map_err(query("query_device"))?.phys_port_cnt;
    let port = |num| {
        let info: PortInfo = context.port(num).map_err(query("query_port"))?;
        let gids = context.gids(num).map_err(query("query_gid_table"))?;
        Ok(PortFacts { info, gids })
    };
    (1..=count).map(port).collect()
}

fn finish(context: Arc<Context>, choice: Choice) -> Result<Opened, OpenError> {
    let failed = |errno| {
        let (name, what) = (choice.name.clone(), "query_device");
        OpenError::Query { name, what, errno }
    };
    let attr = context.attributes().map_err(failed)?;
    if let Some(warning) = choice.warning() {
        tracing::warn!(device = choice.name, "{warning}");
    }
    let (info, gid) = (choice.port, choice.gid);
    let reads = |max: i32, most: u8| u8::try_from(max.clamp(1, i32::from(most))).unwrap_or(1);
    let port = Port {
        num: info.num,
        gid_index: gid.and_then(|g| u8::try_from(g.index).ok()).unwrap_or(0),
        addr: PortAddr { gid: gid.map_or([0; 16], |g| g.gid), lid: info.lid, mtu: info.mtu },
        reads_served: reads(attr.max_qp_rd_atom, READS_SERVED),
        reads_asked: reads(attr.max_qp_init_rd_atom, READS_ASKED),
    };
    let transport = match (context.is_iwarp(), info.ethernet) {
        (true, _) => TransportKind::Iwarp,
        (false, true) => TransportKind::Roce,
        (false, false) => TransportKind::Ib,
    };
    Ok(Opened { context, choice, port, attr, transport })
}

const ENOSYS: i32 = 38;
const READS_SERVED: u8 = 16;
/// Below what any peer of this library serves.
const READS_ASKED: u8 = 4;
