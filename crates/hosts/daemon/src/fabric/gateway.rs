//! The control connections of peers, for what is said of gateways.

use std::net::{IpAddr, SocketAddr};

use sluice_peering::config::Network;
use sluice_peering::{Config, Why};

use super::{Fabric, towards};
use crate::gateway::Peers;
use crate::gateway::host::NodePlace;
use crate::gateway::words::Word;
use crate::peer::PeerName;

/// What has happened on the control connections of peers.
#[derive(Debug)]
pub enum Heard {
    Up(PeerName),
    Down(PeerName),
    /// A message about gateways.
    Word(PeerName, Vec<u8>),
}

impl Fabric {
    /// What the file says.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What has happened since the last time.
    pub fn take_heard(&mut self) -> Vec<Heard> {
        std::mem::take(&mut self.heard)
    }

    /// Says something about gateways.
    pub fn say_of_gateways(&mut self, name: &PeerName, word: &Word) {
        self.send(name, &word.encode());
    }

    /// The peer breaks the rules.
    pub fn drop_peer(&mut self, name: &PeerName, why: &str) {
        tracing::warn!(peer = %name, "{name} {why}");
        if let Some(peer) = self.ids.get(name) {
            self.peering.hang_up(*peer, Why::Unexpected);
        }
    }
}

impl Peers for Fabric {
    fn is_up(&self, name: &str) -> bool {
        self.ids.contains_key(name)
    }

    fn place(&self, name: &str) -> Option<NodePlace> {
        let configured = self.config.peer(name);
        let session = self.peering.status().into_iter().find(|it| it.name == name);
        let session = session.map(|it| it.address.ip().to_canonical());
        let first = session.or_else(|| configured.map(|peer| peer.control.ip().to_canonical()))?;
        let mut addresses = vec![Network::single(first)];
        let named = configured
            .into_iter()
            .flat_map(|peer| peer.addresses.iter());
        addresses.extend(named.filter(|network| Network::single(first) != **network));
        Some(NodePlace {
            session: first,
            addresses,
        })
    }

    fn source_towards(&self, target: SocketAddr) -> Option<IpAddr> {
        towards(target).ok().map(|ip| ip.to_canonical())
    }
}
