//! Queue pair 1 as the connection manager sees it.

use std::sync::Arc;

use sluice_packet::Path;
use sluice_verbs::Result;
use sluice_verbs::transport::{self, MAD_BYTES, MadPath, MadReceiver};
use sluice_wire::udp::ENTROPY_PORTS;

use crate::node::Node;

type Mad = [u8; MAD_BYTES];

/// What the connection manager is given.
pub struct Port1(pub Arc<Node>);

impl transport::Gsi for Port1 {
    fn send(&self, path: &MadPath, mad: &Mad) -> Result<()> {
        let node = &self.0;
        let path = Path {
            source: path.source.address(),
            destination: path.destination.address(),
            interface: path.interface,
            ethernet: None,
            source_port: *ENTROPY_PORTS.start(),
            dscp: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        let common = node.common();
        let way = common.network.way(&path, 0)?;
        common.gsi.post(way.path, mad);
        node.shards.send_waiting();
        Ok(())
    }

    fn set_receiver(&self, receiver: Arc<dyn MadReceiver>) {
        self.0.common().gsi.set_receiver(receiver);
    }

    fn tag(&self) -> Result<u16> {
        Ok(self.0.tag()?)
    }

    fn pass_on(&self, tag: Option<u16>, path: &MadPath, mad: &Mad) {
        let common = self.0.common();
        common.forward.pass_on_mad(&common.names, tag, path, mad);
    }
}
