//! Addresses of the other process, as a user writes them.

use super::failure::Failure;
use anyhow::anyhow;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// Where `serve` listens and `compare --connect` looks, unless told otherwise.
pub(super) const DEFAULT_PORT: u16 = 18517;

/// `ADDR` or `ADDR:PORT`; an address or a name, IPv6 in brackets where a port follows.
pub(super) fn parse(text: &str, what: &str) -> Result<SocketAddr, Failure> {
    let trimmed = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = trimmed.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, DEFAULT_PORT));
    }
    if let Ok(addr) = text.parse() {
        return Ok(addr);
    }
    let refused = |why: String| {
        let shown = text.escape_debug();
        let forms = "give ADDR or ADDR:PORT, such as 192.168.77.1:18517 or [fe80::1%2]:18517";
        Failure::usage(anyhow!("{what} {shown}: {why}; {forms}"))
    };
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => match port.parse() {
            Ok(port) => (host, port),
            Err(_) => return Err(refused(format!("{port:?} is no port of 0..=65535"))),
        },
        None => (text, DEFAULT_PORT),
    };
    if host.is_empty() {
        return Err(refused("there is no address".to_owned()));
    }
    match (host, port).to_socket_addrs().map(|mut found| found.next()) {
        Ok(Some(addr)) => Ok(addr),
        Ok(None) => Err(refused(format!("no address is known for {host:?}"))),
        Err(e) => Err(refused(format!("no address is known for {host:?} ({e})"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_and_without_a_port() {
        let of = |text| parse(text, "ADDR").unwrap().to_string();
        assert_eq!(of("192.168.77.1"), "192.168.77.1:18517");
        assert_eq!(of("192.168.77.1:7"), "192.168.77.1:7");
        assert_eq!(of("fe80::1"), "[fe80::1]:18517");
        assert_eq!(of("[fe80::1]"), "[fe80::1]:18517");
        assert_eq!(of("[fe80::1%2]:7"), "[fe80::1%2]:7");
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_forms() {
        for text in ["", ":7", "192.168.77.1:x", "192.168.77.1:65536", "fe80::1]:7"] {
            let lines = parse(text, "ADDR").unwrap_err().lines();
            assert!(lines[0].starts_with("ADDR ") && lines[0].contains("ADDR:PORT"), "{lines:?}");
        }
    }
}
