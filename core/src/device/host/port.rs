//! Ports and their GIDs.

use std::fmt;
use std::net::Ipv6Addr;

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

/// One port and the entries of its GID table that are in use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortFacts {
    /// The port.
    pub info: PortInfo,
    /// Its GIDs, by index.
    pub gids: Vec<GidEntry>,
}

/// What carries a GID's packets. Later ones reach farther.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum GidKind {
    /// InfiniBand.
    Ib,
    /// Ethernet frames: not routed.
    RoceV1,
    /// UDP packets: routed.
    RoceV2,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidKind::Ib => "IB",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        })
    }
}

/// One entry of a port's GID table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GidEntry {
    /// Its index in the table.
    pub index: u32,
    /// The address.
    pub gid: [u8; 16],
    /// What carries it.
    pub kind: GidKind,
}

impl GidEntry {
    /// Whether it reaches no farther than the link: `fe80::/10`.
    #[must_use]
    pub fn is_link_local(&self) -> bool {
        self.gid[0] == 0xfe && self.gid[1] & 0xc0 == 0x80
    }

    /// Whether it is an IPv4 address: `::ffff:0:0/96`.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.gid[..10] == [0; 10] && self.gid[10..12] == [0xff; 2]
    }

    /// How far it reaches; more is farther.
    pub(super) fn rank(&self) -> (bool, GidKind, bool) {
        (!self.is_link_local(), self.kind, self.is_ipv4())
    }
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let local = if self.is_link_local() { ", link-local" } else { "" };
        write!(f, "{}: {} {}{local}", self.index, Ipv6Addr::from(self.gid), self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_is_shown_as_an_address_with_what_carries_it() {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 200, 0, 209, 6]);
        let entry = GidEntry { index: 3, gid, kind: GidKind::RoceV2 };
        assert_eq!(entry.to_string(), "3: ::ffff:200.0.209.6 RoCE v2");
        let mut gid = [0; 16];
        (gid[0], gid[1], gid[15]) = (0xfe, 0x80, 1);
        let entry = GidEntry { index: 0, gid, kind: GidKind::RoceV1 };
        assert_eq!(entry.to_string(), "0: fe80::1 RoCE v1, link-local");
    }
}
