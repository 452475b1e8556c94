//! Who says where packets go: the kernel, or nobody.

use std::net::IpAddr;
use std::os::fd::RawFd;

use sluice_packet::routes::{Hop, Interface, RouteError, Routes};

/// The source of all that is known of the network.
pub enum Directions {
    /// The kernel's tables.
    Kernel(Box<Routes>),
    /// Whoever made the ports: they reach every address, in IP packets of so many bytes, and
    /// nothing changes.
    Everywhere { mtu: u32 },
}

impl Directions {
    /// Readable when something has changed.
    pub fn descriptor(&self) -> Option<RawFd> {
        match self {
            Self::Kernel(routes) => Some(routes.descriptor()),
            Self::Everywhere { .. } => None,
        }
    }

    /// Takes in what has changed. Whether something has.
    pub fn process(&mut self) -> bool {
        match self {
            Self::Kernel(routes) => routes.process(),
            Self::Everywhere { .. } => false,
        }
    }

    /// The host's interfaces.
    pub fn interfaces(&self) -> Vec<Interface> {
        match self {
            Self::Kernel(routes) => routes.interfaces(),
            Self::Everywhere { mtu } => vec![Interface {
                index: 1,
                name: "ports".to_owned(),
                mtu: *mtu,
                up: true,
                loopback: false,
                mac: None,
                kind: None,
                addresses: vec![(IpAddr::from([0, 0, 0, 0]), 0)],
            }],
        }
    }

    /// The way from an address to another.
    pub fn lookup(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        interface: u32,
    ) -> Result<Hop, RouteError> {
        match self {
            Self::Kernel(routes) => routes.lookup(Some(source), destination, interface),
            Self::Everywhere { mtu } => Ok(Hop {
                interface: 1,
                mtu: *mtu,
                source,
                local: false,
                gateway: None,
                ethernet: None,
            }),
        }
    }

    /// Has the kernel look for a neighbour, which is not waited for.
    pub fn resolve(&mut self, interface: u32, neighbour: IpAddr) {
        if let Self::Kernel(routes) = self {
            // Until it is found the kernel sends.
            let _ = routes.resolve(interface, neighbour);
        }
    }
}
