//! Two haproxies, one on each host: what a pair of relays costs that somebody else has made.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};

use crate::error::{BenchError, Result};
use crate::process::{Process, Ready};
use crate::session::hosts::{Hosts, Side};
use crate::words::{path_text, words};

const HAPROXY_CFG: &str = include_str!("../../../../../../bench/haproxy-tcp.cfg");

/// Both of them.
#[derive(Debug)]
pub(super) struct Proxies {
    // The client's first: it ends first.
    processes: [Process; 2],
    address: SocketAddrV4,
}

impl Proxies {
    /// Starts both. As captured connections do, those of clients come to the client's host by
    /// loopback, and the server's host connects to `server` from its own address.
    pub fn start(hosts: &Hosts<'_>, server: SocketAddrV4) -> Result<Self> {
        let session = hosts.session();
        let between = SocketAddrV4::new(hosts.address(), session.free_port()?);
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, session.free_port()?);
        let far = start(hosts, Side::Server, between, server)?;
        let near = start(hosts, Side::Client, address, between)?;
        Ok(Self {
            processes: [near, far],
            address,
        })
    }

    /// Where clients connect to, on their host.
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    pub fn processes(&self) -> &[Process] {
        &self.processes
    }
}

fn start(hosts: &Hosts<'_>, side: Side, at: SocketAddrV4, next: SocketAddrV4) -> Result<Process> {
    let folder = hosts.session().folder("haproxy")?;
    let file = folder.join(format!("{}.cfg", at.port()));
    let text = HAPROXY_CFG
        .replace("@ADDRESS@", &at.to_string())
        .replace("@NEXT@", &next.to_string());
    fs::write(&file, text)
        .map_err(|error| BenchError::io(format!("write {}", file.display()), &error))?;
    let words = words!["haproxy", "-db", "-f", path_text(&file)];
    hosts.server_on(side, &words, &Ready::Listens(at.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_holds_every_word_that_is_replaced() {
        for word in ["@ADDRESS@", "@NEXT@"] {
            assert_eq!(HAPROXY_CFG.matches(word).count(), 1, "{word}");
        }
    }
}
