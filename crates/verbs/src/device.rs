//! A device: one transport, one port, the addresses of the host.

use std::sync::Arc;

use crate::types::{DeviceAttr, Gid, PortAttr};
use crate::{Context, Result, Transport};

/// The RoCEv2 entry of a GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    pub gid: Gid,
    /// `ibv_gid_type`: 2 is RoCEv2.
    pub gid_type: u32,
    /// The network interface it belongs to.
    pub ndev_ifindex: u32,
}

pub struct Device {}

impl Device {
    pub fn new(name: &str, transport: Arc<dyn Transport>) -> Arc<Device> {
        let _ = (name, transport);
        todo!()
    }

    pub fn name(&self) -> &str {
        todo!()
    }

    pub fn transport(&self) -> &dyn Transport {
        todo!()
    }

    /// Network byte order; the same for all processes of a host.
    pub fn guid(&self) -> u64 {
        todo!()
    }

    pub fn attr(&self) -> DeviceAttr {
        todo!()
    }

    /// Ports count from 1; there is one.
    pub fn port_attr(&self, port: u8) -> Result<PortAttr> {
        let _ = port;
        todo!()
    }

    /// The addresses at the time of the last `open` or [`Device::refresh_gids`].
    pub fn gid_table(&self) -> Arc<[GidEntry]> {
        todo!()
    }

    pub fn gid(&self, port: u8, index: u32) -> Result<GidEntry> {
        let _ = (port, index);
        todo!()
    }

    /// Reads the host's addresses again. Entries keep their index while their address exists;
    /// an address that is gone leaves a zero entry.
    pub fn refresh_gids(&self) {
        todo!()
    }

    /// Network byte order, as `ibv_query_pkey` gives it.
    pub fn pkey(&self, port: u8, index: u32) -> Result<u16> {
        let _ = (port, index);
        todo!()
    }

    pub fn open(self: &Arc<Self>) -> Result<Arc<Context>> {
        todo!()
    }
}
