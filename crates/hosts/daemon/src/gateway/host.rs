//! This host as a gateway: which nodes have published what, and what its process is to do.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use sluice_control::message::gateway::{Ranges, Tell};
use sluice_control::preface::Key;
use sluice_peering::config::Network;
use sluice_peering::config::gateway::Gateway;

use super::words::{PublicationId, Word};
use super::{Action, PeerName};
use crate::matching::ClientId;

/// Publications of one node at most.
const PUBLICATIONS_PER_NODE_MAX: usize = 1_024;

/// What a node wants to be published.
#[derive(Clone, Copy, Debug)]
pub struct Publish {
    pub id: PublicationId,
    pub listener: SocketAddr,
    pub only_v6: bool,
    pub key: Key,
}

/// What is known of a node besides.
#[derive(Clone, Debug)]
pub struct NodePlace {
    /// From where its daemon talks to us.
    pub session: IpAddr,
    /// Connections with these addresses end there.
    pub addresses: Vec<Network>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listener {
    /// The process is to open it, and has not answered, or is not there.
    Asked,
    Open,
    Failed(u16),
}

/// An address and port outside.
#[derive(Debug)]
struct Service {
    number: u32,
    listener: Listener,
}

/// One publication of a node.
#[derive(Debug)]
struct Backend {
    node: PeerName,
    id: PublicationId,
    target: SocketAddr,
    source: IpAddr,
    key: Key,
    services: Vec<SocketAddr>,
    /// Services of which the process knows that it serves them.
    given: BTreeSet<u32>,
    /// The node has its answer.
    is_answered: bool,
}

/// The gateway of this host.
#[derive(Debug)]
pub struct Host {
    config: Gateway,
    process: Option<ClientId>,
    services: HashMap<SocketAddr, Service>,
    backends: BTreeMap<u32, Backend>,
    drained: BTreeSet<PeerName>,
    exits: BTreeMap<PeerName, Exit>,
    next_number: u32,
}

/// Where programs of one node connect out.
#[derive(Debug)]
struct Exit {
    number: u32,
    address: IpAddr,
    key: Key,
    allowed: Ranges,
    sources: Ranges,
}

impl Exit {
    fn tell(&self) -> Tell {
        Tell::Exit {
            exit: self.number,
            address: self.address,
            key: self.key,
            allowed: self.allowed,
            sources: self.sources,
        }
    }
}

impl Host {
    /// Nobody has published anything.
    pub fn new(config: Gateway) -> Host {
        Host {
            config,
            process: None,
            services: HashMap::new(),
            backends: BTreeMap::new(),
            drained: BTreeSet::new(),
            exits: BTreeMap::new(),
            next_number: 1,
        }
    }

    /// The process is there. False: another one is.
    pub fn serve(&mut self, client: ClientId, actions: &mut Vec<Action>) -> bool {
        if self.process.is_some() {
            return false;
        }
        tracing::info!("the gateway's process is there");
        self.process = Some(client);
        for (address, service) in &self.services {
            let (service, address) = (service.number, *address);
            actions.push(Action::Tell(client, Tell::Open { service, address }));
        }
        for exit in self.exits.values() {
            actions.push(Action::Tell(client, exit.tell()));
        }
        actions.push(Action::Tell(client, Tell::Complete));
        true
    }

    /// A client is gone. True: it was the process, and everything is opened again by the next one.
    pub fn forget(&mut self, client: ClientId) -> bool {
        if self.process != Some(client) {
            return false;
        }
        tracing::warn!("the gateway's process has gone: 'sluice gateway' starts it");
        self.process = None;
        for service in self.services.values_mut() {
            service.listener = Listener::Asked;
        }
        for backend in self.backends.values_mut() {
            backend.given.clear();
        }
        true
    }

    /// The process, if it is there.
    pub fn process(&self) -> Option<ClientId> {
        self.process
    }

    /// How much there is to say to a process that begins.
    pub fn words_max(&self) -> usize {
        let given: usize = self.backends.values().map(|it| it.services.len()).sum();
        self.services.len() + given + self.exits.len() + 1
    }

    /// Whether this client is the process.
    pub fn is_process(&self, client: ClientId) -> bool {
        self.process == Some(client)
    }

    /// A node publishes.
    pub fn publish(
        &mut self,
        node: &PeerName,
        publish: Publish,
        place: &NodePlace,
        source_towards: impl Fn(SocketAddr) -> Option<IpAddr>,
        actions: &mut Vec<Action>,
    ) {
        // Said again: it may have another key, and wants another answer.
        self.withdraw(node, publish.id, actions);
        match self.admit(node, publish, place, source_towards) {
            Ok(backend) => {
                let services = backend.services.clone();
                let number = self.number();
                self.backends.insert(number, backend);
                for address in services {
                    self.open(address, actions);
                }
                self.answer_node(number, actions);
            }
            Err(errno) => {
                let why = std::io::Error::from_raw_os_error(errno);
                tracing::info!(peer = %node, "{node} may not publish {}: {why}", publish.listener);
                let errno = errno as u16;
                say_published(node, publish.id, errno, place.session, actions);
            }
        }
    }

    /// Whether the node may, and what that means.
    fn admit(
        &self,
        node: &PeerName,
        publish: Publish,
        place: &NodePlace,
        source_towards: impl Fn(SocketAddr) -> Option<IpAddr>,
    ) -> Result<Backend, i32> {
        let port = publish.listener.port();
        let rule = self.config.node(node).filter(|rule| rule.may_publish(port));
        let rule = rule.ok_or(libc::EACCES)?;
        let theirs = self.backends.values().filter(|it| it.node == *node).count();
        if theirs >= PUBLICATIONS_PER_NODE_MAX {
            return Err(libc::ENOBUFS);
        }
        let (wants_v4, wants_v6) = match publish.listener {
            SocketAddr::V4(_) => (true, false),
            SocketAddr::V6(_) => (!publish.only_v6, true),
        };
        let fits = |ip: &IpAddr| if ip.is_ipv4() { wants_v4 } else { wants_v6 };
        let ip = publish.listener.ip();
        let target = if ip.is_unspecified() {
            let single = place.addresses.iter().filter_map(Network::as_single);
            let mut all = [place.session].into_iter().chain(single);
            all.find(fits).ok_or(libc::EADDRNOTAVAIL)?
        } else if place.addresses.iter().any(|network| network.contains(ip)) {
            ip
        } else {
            // It would have us connect to somebody else.
            return Err(libc::EACCES);
        };
        let target = SocketAddr::new(target, port);
        let outside = rule.addresses.iter().filter(|ip| {
            // An IPv6 listener that is bound to one address has no IPv4.
            fits(ip) && (publish.listener.ip().is_unspecified() || ip.is_ipv4() == target.is_ipv4())
        });
        let services: Vec<SocketAddr> = outside.map(|ip| SocketAddr::new(*ip, port)).collect();
        if services.is_empty() {
            return Err(libc::EADDRNOTAVAIL);
        }
        Ok(Backend {
            node: node.clone(),
            id: publish.id,
            target,
            source: source_towards(target).ok_or(libc::ENETUNREACH)?,
            key: publish.key,
            services,
            given: BTreeSet::new(),
            is_answered: false,
        })
    }

    fn open(&mut self, address: SocketAddr, actions: &mut Vec<Action>) {
        let is_new = match self.services.get_mut(&address) {
            Some(service) => {
                let has_failed = matches!(service.listener, Listener::Failed(_));
                if has_failed {
                    service.listener = Listener::Asked;
                }
                has_failed
            }
            None => {
                let number = self.number();
                let listener = Listener::Asked;
                self.services.insert(address, Service { number, listener });
                true
            }
        };
        if let (true, Some(process), Some(service)) =
            (is_new, self.process, self.services.get(&address))
        {
            let service = service.number;
            actions.push(Action::Tell(process, Tell::Open { service, address }));
        }
    }

    /// The process has opened a listener, or could not.
    pub fn opened(&mut self, service: u32, errno: u16, actions: &mut Vec<Action>) {
        let mut all = self.services.iter_mut();
        let Some((address, found)) = all.find(|(_, it)| it.number == service) else {
            return;
        };
        let address = *address;
        found.listener = match errno {
            0 => Listener::Open,
            errno => {
                let why = std::io::Error::from_raw_os_error(errno.into());
                let wanting = self.backends.values();
                let wanting = { wanting }.find(|it| it.services.contains(&address));
                let peer = wanting.map_or("", |it| &*it.node);
                tracing::warn!(peer, "cannot listen at {address}: {why}");
                Listener::Failed(errno)
            }
        };
        for number in self.numbers(|it| it.services.contains(&address)) {
            self.answer_node(number, actions);
        }
    }

    /// Answers the node, if all is known, and gives the backend to the process.
    fn answer_node(&mut self, number: u32, actions: &mut Vec<Action>) {
        let Some(backend) = self.backends.get(&number) else {
            return;
        };
        let listeners: Vec<(u32, Listener)> = backend
            .services
            .iter()
            .filter_map(|address| self.services.get(address))
            .map(|service| (service.number, service.listener))
            .collect();
        let (node, id, source) = (backend.node.clone(), backend.id, backend.source);
        let failed = listeners.iter().find_map(|(_, listener)| match listener {
            Listener::Failed(errno) => Some(*errno),
            _ => None,
        });
        if let Some(errno) = failed {
            say_published(&node, id, errno, source, actions);
            self.remove(number, actions);
            return;
        }
        let is_open = listeners.iter().all(|(_, it)| *it == Listener::Open);
        let is_drained = self.drained.contains(&node);
        let Some(backend) = self.backends.get_mut(&number) else {
            return;
        };
        if (is_open || self.process.is_none()) && !backend.is_answered {
            backend.is_answered = true;
            say_published(&node, id, 0, source, actions);
        }
        let Some(process) = self.process.filter(|_| !is_drained) else {
            return;
        };
        for (service, _) in listeners.iter().filter(|(_, it)| *it == Listener::Open) {
            if backend.given.insert(*service) {
                let tell = Tell::Backend {
                    service: *service,
                    backend: number,
                    target: backend.target,
                    source,
                    key: backend.key,
                };
                actions.push(Action::Tell(process, tell));
            }
        }
    }

    /// A node does not publish that any more.
    pub fn withdraw(&mut self, node: &PeerName, id: PublicationId, actions: &mut Vec<Action>) {
        for number in self.numbers(|it| it.node == *node && it.id == id) {
            self.remove(number, actions);
        }
    }

    /// A node's daemon is there: its programs may connect out, if the configuration says so.
    /// `address` is this host's on the way there; they come from `sources`.
    pub fn node_up(
        &mut self,
        node: &PeerName,
        address: IpAddr,
        sources: Ranges,
        key: Key,
        actions: &mut Vec<Action>,
    ) {
        self.end_exit(node, actions);
        let Some(rule) = self.config.node(node).filter(|it| !it.connect.is_empty()) else {
            return;
        };
        let allowed = Ranges::new(rule.connect.iter().map(|network| super::range(*network)));
        let exit = Exit {
            number: self.number(),
            address,
            key,
            allowed,
            sources,
        };
        if let Some(process) = self.process {
            actions.push(Action::Tell(process, exit.tell()));
        }
        self.exits.insert(node.clone(), exit);
    }

    fn end_exit(&mut self, node: &PeerName, actions: &mut Vec<Action>) {
        if let (Some(exit), Some(process)) = (self.exits.remove(node), self.process) {
            let exit = exit.number;
            actions.push(Action::Tell(process, Tell::ExitGone { exit }));
        }
    }

    /// The process listens for programs of a node.
    pub fn exit_opened(&self, number: u32, port: u16, actions: &mut Vec<Action>) {
        let mut all = self.exits.iter();
        let Some((node, exit)) = all.find(|(_, it)| it.number == number) else {
            return;
        };
        if port == 0 {
            tracing::warn!(
                peer = %node,
                "programs of {node} cannot connect out: no port at {}",
                exit.address
            );
            return;
        }
        let word = Word::Exit {
            exit: number,
            address: SocketAddr::new(exit.address, port),
            key: exit.key,
        };
        actions.push(Action::Say(node.clone(), word));
    }

    /// A node is gone, with all that it has published.
    pub fn node_down(&mut self, node: &PeerName, actions: &mut Vec<Action>) {
        for number in self.numbers(|it| it.node == *node) {
            self.remove(number, actions);
        }
        self.end_exit(node, actions);
    }

    fn remove(&mut self, number: u32, actions: &mut Vec<Action>) {
        self.take_back(number, actions);
        let Some(backend) = self.backends.remove(&number) else {
            return;
        };
        for address in backend.services {
            if self
                .backends
                .values()
                .any(|it| it.services.contains(&address))
            {
                continue;
            }
            if let (Some(service), Some(process)) = (self.services.remove(&address), self.process) {
                let service = service.number;
                actions.push(Action::Tell(process, Tell::Shut { service }));
            }
        }
    }

    /// The process gives it no new connections.
    fn take_back(&mut self, number: u32, actions: &mut Vec<Action>) {
        let Some(backend) = self.backends.get_mut(&number) else {
            return;
        };
        for service in std::mem::take(&mut backend.given) {
            if let Some(process) = self.process {
                let backend = number;
                let tell = Tell::BackendGone { service, backend };
                actions.push(Action::Tell(process, tell));
            }
        }
    }

    /// Nobody answered there: its node is to look.
    pub fn unreachable(&mut self, number: u32, actions: &mut Vec<Action>) {
        if let Some(backend) = self.backends.get(&number) {
            let word = Word::Look { id: backend.id };
            actions.push(Action::Say(backend.node.clone(), word));
        }
    }

    /// No new connections for a node, or new ones again. `ENOENT`: there is no such node.
    pub fn drain(
        &mut self,
        node: &str,
        is_drained: bool,
        actions: &mut Vec<Action>,
    ) -> Result<(), i32> {
        self.config.node(node).ok_or(libc::ENOENT)?;
        let name = PeerName::from(node);
        let numbers = self.numbers(|it| it.node == name);
        if is_drained {
            tracing::info!("{node} is drained");
            self.drained.insert(name);
        } else {
            tracing::info!("{node} is not drained any more");
            self.drained.remove(&name);
        }
        for number in numbers {
            if is_drained {
                self.take_back(number, actions);
            } else {
                self.answer_node(number, actions);
            }
        }
        Ok(())
    }

    fn numbers(&self, which: impl Fn(&Backend) -> bool) -> Vec<u32> {
        let found = self.backends.iter().filter(|(_, it)| which(it));
        found.map(|(number, _)| *number).collect()
    }

    fn number(&mut self) -> u32 {
        let number = self.next_number;
        self.next_number = self.next_number.wrapping_add(1);
        number
    }
}

fn say_published(
    node: &PeerName,
    id: PublicationId,
    errno: u16,
    source: IpAddr,
    actions: &mut Vec<Action>,
) {
    let word = Word::Published { id, errno, source };
    actions.push(Action::Say(node.clone(), word));
}
