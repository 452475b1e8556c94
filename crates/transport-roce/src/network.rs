//! What the transport knows of the host's network.

use std::os::fd::RawFd;

use sluice_packet::Path;
use sluice_verbs::Result;
use sluice_wire::Mtu;

use crate::path::{UDP_PORT, Way};

/// The host's network, as far as the transport looks at it.
pub struct Network {
    mtu: Mtu,
}

impl Network {
    /// Looks at the interfaces.
    pub fn open() -> Self {
        Self {
            mtu: Mtu::Bytes1024,
        }
    }

    /// Readable when something has changed.
    pub fn descriptor(&self) -> Option<RawFd> {
        None
    }

    /// Takes in what has changed.
    pub fn process(&self) {}

    /// A block of queue pair numbers is this process's now.
    pub fn add_block(&self, _block: u16) {}

    /// The port's MTU.
    pub fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// The way of a path. `mtu`: the path MTU's code, or 0.
    pub fn way(&self, path: &Path, _mtu: u32) -> Result<Way> {
        Ok(Way {
            path: *path,
            port: UDP_PORT,
        })
    }

    /// Interfaces that take part in multicast.
    pub fn multicast_interfaces(&self) -> Vec<u32> {
        Vec::new()
    }
}
