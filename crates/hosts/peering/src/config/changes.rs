//! What is different between two configurations.

use super::{Config, Peer};

/// From one configuration to the next. Names are those of peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub came: Vec<String>,
    pub went: Vec<String>,
    /// The same name with other addresses, another key or another certificate.
    pub changed: Vec<String>,
    /// How daemons prove who they are, or the name of this one. The contents of the files that
    /// are named are not looked at.
    pub authentication: bool,
    pub listen: bool,
    pub discovery: bool,
    pub rules: bool,
    /// The fabric's device: takes effect when sluiced is started again.
    pub device: bool,
    /// Its threads: take effect when sluiced is started again.
    pub threads: bool,
    /// An option in handshakes that there was not, or for other programs: takes effect when sluiced is
    /// started again. It ends at once.
    pub option: bool,
    /// What is captured: takes effect when sluiced is started again.
    pub capture: bool,
    /// `[gateway]` or `[node]`: takes effect when sluiced is started again.
    pub gateway: bool,
    /// Windows, or their users: takes effect when sluiced is started again.
    pub windows: bool,
}

impl Changes {
    /// From `old` to `new`.
    pub fn between(old: &Config, new: &Config) -> Changes {
        let names = |peers: Vec<&Peer>| peers.into_iter().map(|peer| peer.name.clone()).collect();
        let absent = |peer: &&Peer, from: &Config| from.peer(&peer.name).is_none();
        Changes {
            came: names(new.peers.iter().filter(|p| absent(p, old)).collect()),
            went: names(old.peers.iter().filter(|p| absent(p, new)).collect()),
            changed: names(
                new.peers
                    .iter()
                    .filter(|peer| old.peer(&peer.name).is_some_and(|before| before != *peer))
                    .collect(),
            ),
            authentication: old.authentication != new.authentication || old.name != new.name,
            listen: old.listen != new.listen,
            discovery: old.discovery != new.discovery,
            rules: old.rules != new.rules,
            option: new.discovery.option
                && (!old.discovery.option || old.discovery.cgroup != new.discovery.cgroup),
            device: old.device != new.device,
            threads: old.threads != new.threads,
            capture: old.capture != new.capture,
            windows: old.windows != new.windows,
            gateway: old.gateway != new.gateway || old.publishing != new.publishing,
        }
    }

    /// Whether nothing is different.
    pub fn is_empty(&self) -> bool {
        *self == Changes::default()
    }
}
