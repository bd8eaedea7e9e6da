//! Socket addresses as the system's libraries take them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// `struct sockaddr_in` or `struct sockaddr_in6`, by the family in front.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RawAddr {
    family: u16,
    /// Big-endian.
    port: [u8; 2],
    /// IPv4: the address. IPv6: flow information, the address, the scope.
    rest: [u32; 6],
}

const _: () = assert!(size_of::<RawAddr>() == 28 && align_of::<RawAddr>() == 4);

impl RawAddr {
    pub(super) fn new(addr: SocketAddr) -> RawAddr {
        let port = addr.port().to_be_bytes();
        match addr {
            SocketAddr::V4(v4) => {
                let mut rest = [0; 6];
                rest[0] = u32::from_ne_bytes(v4.ip().octets());
                RawAddr { family: AF_INET, port, rest }
            }
            SocketAddr::V6(v6) => {
                let word = |i: usize| {
                    let o = v6.ip().octets();
                    u32::from_ne_bytes([o[i], o[i + 1], o[i + 2], o[i + 3]])
                };
                let rest =
                    [v6.flowinfo().to_be(), word(0), word(4), word(8), word(12), v6.scope_id()];
                RawAddr { family: AF_INET6, port, rest }
            }
        }
    }

    /// The address, if it is one of IP.
    pub(super) fn get(&self) -> Option<SocketAddr> {
        let port = u16::from_be_bytes(self.port);
        let [first, a, b, c, d, scope] = self.rest;
        match self.family {
            AF_INET => {
                let ip = IpAddr::V4(Ipv4Addr::from_octets(first.to_ne_bytes()));
                Some(SocketAddr::new(ip, port))
            }
            AF_INET6 => {
                let mut octets = [0; 16];
                for (to, word) in octets.chunks_exact_mut(4).zip([a, b, c, d]) {
                    to.copy_from_slice(&word.to_ne_bytes());
                }
                let ip = Ipv6Addr::from_octets(octets);
                Some(SocketAddrV6::new(ip, port, u32::from_be(first), scope).into())
            }
            _ => None,
        }
    }
}

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_keep_every_part() {
        let scoped = SocketAddrV6::new("fe80::1:2".parse().unwrap(), 65535, 3, 4);
        for addr in ["192.168.77.1:20886".parse().unwrap(), SocketAddr::V6(scoped)] {
            assert_eq!(RawAddr::new(addr).get(), Some(addr));
        }
        assert_eq!(RawAddr { family: 1, port: [0; 2], rest: [0; 6] }.get(), None);
    }

    #[test]
    fn the_layout_is_that_of_the_system() {
        let raw = RawAddr::new("1.2.3.4:258".parse().unwrap());
        assert_eq!((raw.family, raw.port), (2, [1, 2]));
        assert_eq!(raw.rest[0].to_ne_bytes(), [1, 2, 3, 4]);
        let raw = RawAddr::new("[102:304::f]:1".parse().unwrap());
        assert_eq!((raw.family, raw.rest[1].to_ne_bytes()), (10, [1, 2, 3, 4]));
        assert_eq!(raw.rest[4].to_ne_bytes(), [0, 0, 0, 15]);
    }
}
