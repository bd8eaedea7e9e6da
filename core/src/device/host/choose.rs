//! Which device, which port, which GID: from facts alone, with the reason.

use super::found::Found;
use super::open_error::OpenError;
use super::port::{GidEntry, PortFacts, PortInfo, PortState};

/// What to open. Unset means: find one that works.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VerbsOptions {
    /// The device's exact name.
    pub name: Option<String>,
    /// The port, counted from 1.
    pub port: Option<u8>,
    /// The entry of the port's GID table.
    pub gid_index: Option<u8>,
    /// The memory node to be near where no device is named. Unset: that of this process.
    pub numa_node: Option<u32>,
}

/// What is known of one device before the choice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// What the host shows of it.
    pub found: Found,
    /// Its ports, or why they cannot be known.
    pub ports: Result<Vec<PortFacts>, OpenError>,
}

/// What is used, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The device.
    pub name: String,
    /// Its port.
    pub port: PortInfo,
    /// The port's GID; `None` if it has none, as on an InfiniBand subnet without them.
    pub gid: Option<GidEntry>,
    /// The whole table that the GID is from.
    pub gids: Vec<GidEntry>,
    /// Why this device.
    pub why: String,
    /// The GID reaches no farther than the link: the first suspect when nobody answers.
    pub link_local: bool,
}

impl Choice {
    /// What the user should know of a choice that works, and may not be what was meant.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let gid = self.gid.filter(|_| self.link_local)?;
        let best = farthest(&self.gids).filter(|best| !best.is_link_local());
        let instead = match best {
            Some(best) => format!("device.gid_index = {} reaches farther", best.index),
            None => "the port has no other kind: give it an address".to_owned(),
        };
        Some(format!(
            "{} port {}: gid_index {} is link-local, peers beyond this link cannot be reached; \
             {instead}",
            self.name, self.port.num, gid.index
        ))
    }
}

/// Chooses. A device, port or GID that is named is that one or an error; among devices that may be
/// chosen, those near the memory come first, then the lowest name. `here` is the memory node of
/// this process, if it is known.
///
/// # Errors
/// [`OpenError`], with the states of all that could have been chosen.
pub fn choose(all: &[Facts], wish: &VerbsOptions, here: Option<u32>) -> Result<Choice, OpenError> {
    if let Some(name) = &wish.name {
        let Some(one) = all.iter().find(|f| f.found.name == *name) else {
            let found = all.iter().map(|f| f.found.clone()).collect();
            return Err(OpenError::Unknown { name: name.clone(), found });
        };
        return settle(one, wish, "named by device.name".to_owned());
    }
    let mut fit = vec![];
    let mut reasons = vec![];
    for facts in all {
        match settle(facts, wish, String::new()) {
            Ok(choice) => fit.push((facts.found.numa_node, choice)),
            Err(e) => reasons.push(e),
        }
    }
    let Some((at, why)) = nearest(&fit, wish.numa_node.or(here)) else {
        return Err(none(all, reasons));
    };
    let (_, choice) = fit.swap_remove(at);
    Ok(Choice { why, ..choice })
}

/// Port and GID of one device.
fn settle(facts: &Facts, wish: &VerbsOptions, why: String) -> Result<Choice, OpenError> {
    if !facts.found.is_usable() {
        return Err(OpenError::Unusable(facts.found.clone()));
    }
    let name = &facts.found.name;
    let ports = facts.ports.as_ref().map_err(Clone::clone)?;
    let port = choose_port(name, ports, wish.port)?;
    let gid = choose_gid(name, port, wish.gid_index)?;
    Ok(Choice {
        name: name.clone(),
        port: port.info,
        gid,
        gids: port.gids.clone(),
        why,
        link_local: port.info.ethernet && gid.is_some_and(|g| g.is_link_local()),
    })
}

/// The first active port, or the one asked for if it is active.
fn choose_port<'a>(
    name: &str,
    ports: &'a [PortFacts],
    asked: Option<u8>,
) -> Result<&'a PortFacts, OpenError> {
    let active = |p: &&PortFacts| p.info.state == PortState::Active;
    let states = || (name.to_owned(), ports.iter().map(|p| p.info).collect());
    match asked {
        None => ports.iter().find(active).ok_or_else(|| {
            let (name, ports) = states();
            OpenError::NoActivePort { name, ports }
        }),
        Some(port) => {
            let one = ports.iter().find(|p| p.info.num == port);
            let one = one.ok_or_else(|| {
                let (name, ports) = states();
                OpenError::NoSuchPort { name, port, ports }
            })?;
            Some(one).filter(active).ok_or_else(|| {
                let (name, ports) = states();
                match ports.iter().any(|p: &PortInfo| p.state == PortState::Active) {
                    true => OpenError::PortNotActive { name, port, ports },
                    false => OpenError::NoActivePort { name, ports },
                }
            })
        }
    }
}

/// The entry asked for, or the one that reaches farthest. `None` only for an empty table.
fn choose_gid(
    name: &str,
    port: &PortFacts,
    asked: Option<u8>,
) -> Result<Option<GidEntry>, OpenError> {
    let Some(asked) = asked else { return Ok(farthest(&port.gids)) };
    let entry = port.gids.iter().find(|g| g.index == u32::from(asked)).copied();
    entry.map(Some).ok_or_else(|| OpenError::NoSuchGid {
        name: name.to_owned(),
        port: port.info.num,
        asked,
        present: port.gids.clone(),
    })
}

/// Routable over link-local, RoCE v2 over v1, IPv4 over IPv6, then the first.
fn farthest(gids: &[GidEntry]) -> Option<GidEntry> {
    // The last of equals wins in `max_by_key`: walk backwards for the first.
    gids.iter().rev().max_by_key(|g| g.rank()).copied()
}

/// The place of the one to take, and why it is that one.
fn nearest(fit: &[(Option<u32>, Choice)], here: Option<u32>) -> Option<(usize, String)> {
    let near = |at: &usize| here.is_some() && fit.get(*at).is_some_and(|f| f.0 == here);
    let close: Vec<usize> = (0..fit.len()).filter(near).collect();
    let pool = if close.is_empty() { (0..fit.len()).collect() } else { close.clone() };
    let first = *pool.iter().min_by_key(|&&at| fit.get(at).map(|f| &f.1.name))?;
    let names = || {
        let mut names: Vec<&str> =
            pool.iter().filter_map(|&at| fit.get(at)).map(|f| f.1.name.as_str()).collect();
        names.sort_unstable();
        names.join(", ")
    };
    let why = match (fit.len(), here, close.len()) {
        (1, _, _) => "the only usable device with an active port".to_owned(),
        (_, Some(node), 1) => format!("it is on memory node {node}, where this memory is"),
        (_, Some(node), 0) => {
            format!("none is known to be on memory node {node}: the lowest name of {}", names())
        }
        (_, Some(node), _) => {
            format!("equally near on memory node {node}: the lowest name of {}", names())
        }
        (_, None, _) => {
            format!("the memory node of this process is unknown: the lowest name of {}", names())
        }
    };
    Some((first, why))
}

fn none(all: &[Facts], mut reasons: Vec<OpenError>) -> OpenError {
    let usable = all.iter().any(|f| f.found.is_usable());
    match (usable, reasons.len()) {
        (true, 1) => reasons.swap_remove(0),
        (true, _) => OpenError::NoneSuitable { reasons },
        (false, _) => OpenError::NoDevice { found: all.iter().map(|f| f.found.clone()).collect() },
    }
}

#[cfg(test)]
mod tests {
    use super::super::found::DeviceStatus;
    use super::super::port::GidKind;
    use super::*;
    use PortState::{Active, Down};
    use std::path::PathBuf;

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

    fn device(name: &str, node: Option<u32>, states: &[PortState]) -> Facts {
        let port = |(i, &state): (usize, &PortState)| PortFacts {
            info: PortInfo { num: i as u8 + 1, state, lid: 0, mtu: 1024, ethernet: true },
            gids: table(),
        };
        let found = Found { name: name.into(), status: DeviceStatus::Usable, numa_node: node };
        Facts { found, ports: Ok(states.iter().enumerate().map(port).collect()) }
    }

    fn unusable(name: &str) -> Facts {
        let status = DeviceStatus::NodeMissing { path: PathBuf::from("/dev/infiniband/uverbs1") };
        let found = Found { name: name.into(), status, numa_node: None };
        Facts { found, ports: Ok(vec![]) }
    }

    fn named(name: &str) -> VerbsOptions {
        VerbsOptions { name: Some(name.into()), ..VerbsOptions::default() }
    }

    fn auto() -> VerbsOptions {
        VerbsOptions::default()
    }

    #[test]
    fn b97_auto_takes_the_gid_that_reaches_farthest_and_a_link_local_one_is_a_warning() {
        let all = [device("d", None, &[Active])];
        let c = choose(&all, &auto(), None).unwrap();
        assert_eq!((c.gid.unwrap().index, c.link_local, c.warning()), (3, false, None));
        let one = VerbsOptions { gid_index: Some(1), ..auto() };
        let c = choose(&all, &one, None).unwrap();
        assert_eq!((c.gid.unwrap().index, c.link_local), (1, true));
        assert_eq!(
            c.warning().unwrap(),
            "d port 1: gid_index 1 is link-local, peers beyond this link cannot be reached; \
             device.gid_index = 3 reaches farther"
        );
        let mut only = device("d", None, &[Active]);
        only.ports.as_mut().unwrap()[0].gids.truncate(2);
        let c = choose(&[only.clone()], &auto(), None).unwrap();
        assert_eq!(c.gid.unwrap().index, 1);
        assert!(c.warning().unwrap().contains("no other kind"));
        only.ports.as_mut().unwrap()[0].gids.clear();
        assert_eq!(choose(&[only], &auto(), None).unwrap().gid, None);
    }

    #[test]
    fn b98_an_index_that_is_not_in_the_table_is_not_a_port_that_is_down() {
        let mut one = device("d", None, &[Active]);
        one.ports.as_mut().unwrap()[0].gids = vec![gid(0, true, GidKind::RoceV2)];
        let wish = VerbsOptions { gid_index: Some(1), ..named("d") };
        let e = choose(&[one], &wish, None).unwrap_err();
        assert!(matches!(e, OpenError::NoSuchGid { .. }));
        assert_eq!(
            e.to_string(),
            "gid_index 1 is not present on d port 1; the table has: \
             0: ::ffff:200.0.209.6 RoCE v2"
        );
        let e = choose(&[device("d", None, &[Down])], &wish, None).unwrap_err();
        assert!(matches!(e, OpenError::NoActivePort { .. }));
        assert_eq!(e.to_string(), "RDMA device \"d\": no active port: port 1 is down");
    }

    #[test]
    fn b99_a_port_that_is_down_is_never_taken_and_nothing_named_is_replaced() {
        let all = [
            device("a", Some(0), &[Down, Active]),
            device("b", Some(1), &[Active]),
            device("c", Some(0), &[Down, Down]),
        ];
        let c = choose(&all, &auto(), Some(0)).unwrap();
        assert_eq!((c.name.as_str(), c.port.num), ("a", 2));
        let c = choose(&all[1..], &auto(), Some(0)).unwrap();
        assert_eq!(c.name, "b", "near, with no port up, is no candidate");
        let e = choose(&all[2..], &auto(), Some(0)).unwrap_err().to_string();
        assert_eq!(e, "RDMA device \"c\": no active port: port 1 is down; port 2 is down");
        assert_eq!(choose(&all, &named("c"), Some(0)).unwrap_err().to_string(), e);
        let port = |n| VerbsOptions { port: Some(n), ..named("a") };
        assert_eq!(choose(&all, &port(2), None).unwrap().port.num, 2);
        let e = choose(&all, &port(1), None).unwrap_err().to_string();
        assert!(e.contains("device.port = 1 is not active: port 1 is down; port 2 is act"), "{e}");
        assert!(matches!(choose(&all, &port(3), None), Err(OpenError::NoSuchPort { .. })));
        let e = choose(&[all[2].clone(), unusable("x")], &auto(), None).unwrap_err().to_string();
        assert!(e.contains("no active port") && e.contains("device node missing"), "{e}");
    }

    #[test]
    fn b100_the_device_on_the_memorys_node_is_taken_or_the_lowest_name_and_it_says_so() {
        let all = [device("n0", Some(0), &[Active]), device("n1", Some(1), &[Active])];
        let c = choose(&all, &auto(), Some(1)).unwrap();
        assert_eq!(c.name, "n1");
        assert_eq!(c.why, "it is on memory node 1, where this memory is");
        let c = choose(&all, &auto(), None).unwrap();
        assert_eq!(c.name, "n0");
        assert!(c.why.ends_with("is unknown: the lowest name of n0, n1"), "{}", c.why);
        let wish = VerbsOptions { numa_node: Some(1), ..auto() };
        assert_eq!(choose(&all, &wish, Some(0)).unwrap().name, "n1", "the user's word counts");
        let c = choose(&all, &named("n0"), Some(1)).unwrap();
        assert_eq!((c.name.as_str(), c.why.as_str()), ("n0", "named by device.name"));
        let unknown = [device("z", None, &[Active]), device("y", None, &[Active])];
        let c = choose(&unknown, &auto(), Some(1)).unwrap();
        assert_eq!(c.name, "y");
        assert!(c.why.contains("none is known to be on memory node 1: the lowest name of y, z"));
        let tie = [device("n2", Some(1), &[Active]), all[1].clone(), all[0].clone()];
        let c = choose(&tie, &auto(), Some(1)).unwrap();
        assert_eq!(c.why, "equally near on memory node 1: the lowest name of n1, n2");
        assert_eq!(c.name, "n1");
        let c = choose(&tie[..1], &auto(), None).unwrap();
        assert_eq!(c.why, "the only usable device with an active port");
    }

    #[test]
    fn b92_one_that_cannot_be_opened_does_not_stop_the_others() {
        let mut broken = device("a0", None, &[Active]);
        broken.ports = Err(OpenError::Open { name: "a0".into(), errno: 19 });
        let all = [broken, unusable("a1"), device("a2", None, &[Active]), unusable("a3")];
        assert_eq!(choose(&all, &auto(), None).unwrap().name, "a2");
        let e = choose(&all, &named("a1"), None).unwrap_err().to_string();
        assert_eq!(e, "RDMA device a1 (device node missing: /dev/infiniband/uverbs1)");
    }

    #[test]
    fn b93_a_named_device_is_that_one_or_an_error() {
        let all = [device("mlx5_0", None, &[Active])];
        let e = choose(&all, &named("mlx5_bond_0"), None).unwrap_err().to_string();
        assert_eq!(e, "RDMA device \"mlx5_bond_0\" does not exist; there are: mlx5_0 (usable)");
        let mut closed = device("mlx5_bond_0", None, &[Active]);
        closed.ports = Err(OpenError::Open { name: "mlx5_bond_0".into(), errno: 1 });
        let e = choose(&[all[0].clone(), closed], &named("mlx5_bond_0"), None).unwrap_err();
        assert_eq!(e.to_string(), "RDMA device \"mlx5_bond_0\": open: errno 1");
        assert_eq!(
            choose(&all, &auto(), None).unwrap().why,
            "the only usable device with an \
             active port"
        );
        let e = choose(&[], &auto(), None).unwrap_err().to_string();
        assert_eq!(e, "no usable RDMA device: the kernel has none");
    }
}
