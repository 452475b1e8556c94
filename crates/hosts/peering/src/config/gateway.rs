//! Gateways: what this host lets others publish as one, and whom its own programs may use.

use std::net::IpAddr;

use super::{Network, Ports};

/// Outside addresses of one gateway at most.
pub const ADDRESSES_MAX: usize = 32;

/// `[gateway]`: this host is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Where clients connect to; `0.0.0.0` and `::` are all addresses of the family.
    pub addresses: Vec<IpAddr>,
    pub nodes: Vec<Node>,
}

/// `[[gateway.node]]`: what programs of another host may do here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The daemon's name.
    pub name: String,
    /// Which ports it may publish.
    pub ports: Option<Ports>,
    /// At which of the gateway's addresses.
    pub addresses: Vec<IpAddr>,
    /// Where its programs may connect to.
    pub connect: Vec<Network>,
}

/// `[node]`: programs of this host may use gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publishing {
    /// Names of peers.
    pub gateways: Vec<String>,
    /// Connections with these addresses do not go by a gateway.
    pub direct: Vec<Network>,
}

impl Gateway {
    /// What the host with that name may do.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name)
    }
}

impl Node {
    /// Whether it may publish that port.
    pub fn may_publish(&self, port: u16) -> bool {
        self.ports
            .as_ref()
            .is_some_and(|ports| ports.contains(port))
    }

    /// Whether its programs may connect to that address.
    pub fn may_connect(&self, address: IpAddr) -> bool {
        self.connect.iter().any(|network| network.contains(address))
    }
}
