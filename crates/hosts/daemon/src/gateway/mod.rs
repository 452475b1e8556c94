//! Gateways (docs/decisions/0020): what programs of this host publish at others, and what other hosts
//! publish here.
//!
//! The daemons agree on who may publish what and say to the gateway's process where to listen and
//! where to connect to. They have no part in a connection.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Instant;

use sluice_control::message::Reason;
use sluice_control::message::gateway::{Ask, Name, Range, Ranges, Tell};
use sluice_control::preface::Key;
use sluice_peering::config::Network;
use sluice_peering::config::gateway::Publishing;
use sluice_sys::errno::Errno;
use sluice_sys::tcp;
use sluice_sys::unix::Fd;

pub mod host;
mod kept;
mod listeners;
pub mod node;
mod outbox;
#[cfg(test)]
mod tests;
pub mod words;

use crate::matching::ClientId;
use crate::peer::PeerName;
use crate::shares::Payer;
use host::{Host, NodePlace, Publish};
use node::{Listening, Publications};
use outbox::Outbox;
use words::{PublicationId, Word};

/// Something to do.
#[expect(
    clippy::large_enum_variant,
    reason = "few at a time, and moved once: nothing is worth an allocation each"
)]
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell a client.
    Tell(ClientId, Tell),
    /// Say something on the control connection of a peer.
    Say(PeerName, Word),
    /// The peer breaks the rules: end its control connection.
    Drop(PeerName, &'static str),
}

/// Who asks for something.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    pub client: ClientId,
    /// It is root, or this daemon's own user.
    pub is_owner: bool,
    /// Whom it counts for.
    pub payer: Payer,
    /// The user who asks, now; None where the kernel does not say.
    pub user: Option<u32>,
}

/// What gateways need to know of peers.
pub trait Peers {
    /// Its daemon is there.
    fn is_up(&self, name: &str) -> bool;
    /// Where it talks from, and which connections end there. `None`: it is not known.
    fn place(&self, name: &str) -> Option<NodePlace>;
    /// This host's address on the way there.
    fn source_towards(&self, target: SocketAddr) -> Option<IpAddr>;
}

/// What a gateway has said of connecting out.
#[derive(Clone, Copy, Debug)]
struct Exit {
    number: u32,
    address: SocketAddr,
    key: Key,
}

/// Both sides of gateways.
#[derive(Debug)]
pub struct Gateway {
    publishing: Publishing,
    publications: Publications,
    host: Option<Host>,
    /// For the gateway's process.
    outbox: Outbox,
    /// Where programs of this host connect out, by gateways.
    exits: HashMap<PeerName, Exit>,
    /// Where publications outlive this daemon.
    file: PathBuf,
    actions: Vec<Action>,
}

impl Gateway {
    /// Takes up what an earlier life of this daemon has left in the file. One user may have
    /// `share_percent` of what may be published.
    pub fn new(
        config: &sluice_peering::Config,
        file: PathBuf,
        share_percent: u32,
        now: Instant,
    ) -> Gateway {
        let mut publications = Publications::new(share_percent);
        if !config.publishing.gateways.is_empty() {
            let mut kept = kept::read(&file);
            kept.retain(|it| {
                config
                    .publishing
                    .gateways
                    .iter()
                    .any(|name| **name == *it.gateway)
            });
            publications.resume(kept, now);
        }
        Gateway {
            publishing: config.publishing.clone(),
            publications,
            host: config.gateway.clone().map(Host::new),
            outbox: Outbox::default(),
            exits: HashMap::new(),
            file,
            actions: Vec::new(),
        }
    }

    /// What is to be done, in this order.
    pub fn take_actions(&mut self, now: Instant) -> Vec<Action> {
        if self.publications.must_write(now) {
            self.write();
        }
        std::mem::take(&mut self.actions)
    }

    fn write(&self) {
        if let Err(error) = kept::write(&self.file, &self.publications.all) {
            tracing::warn!(
                "{}: {error}; the next sluiced will not know what is published",
                self.file.display()
            );
        }
    }

    /// The gateway's process, and what it is to be told when there is room.
    pub fn outbox(&mut self) -> Option<(ClientId, &mut Outbox)> {
        let process = self.host.as_ref()?.process()?;
        Some((process, &mut self.outbox))
    }

    /// Whether the client is the gateway's process, and the word waits for room from now on. An
    /// error: it does not take what it is told.
    pub fn tell_process(&mut self, client: ClientId, tell: Tell) -> Result<bool, NotAllowed> {
        match self.host.as_ref().filter(|host| host.is_process(client)) {
            Some(host) if self.outbox.push(tell, host.words_max()) => Ok(true),
            Some(_) => Err(NotAllowed),
            None => Ok(false),
        }
    }

    /// When [`Gateway::pass_time`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.publications.next_deadline()
    }

    /// Does what is due.
    pub fn pass_time(&mut self, now: Instant, peers: &dyn Peers) {
        let listening = || match listeners::listening() {
            Ok(listening) => Some(listening),
            Err(error) => {
                tracing::warn!("who listens cannot be found out: {error}");
                None
            }
        };
        let sources = |name: &PeerName| sources(peers, name);
        self.publications
            .pass_time(now, listening, sources, &mut self.actions);
    }

    /// Somebody asks for something; what came with it to be published is `listening`. An error ends
    /// the connection.
    pub fn ask(
        &mut self,
        asker: Asker,
        ask: Ask,
        listening: Result<Listening, Errno>,
        peers: &dyn Peers,
        now: Instant,
    ) -> Result<(), Reason> {
        let Asker {
            client, is_owner, ..
        } = asker;
        match ask {
            Ask::Publish { gateway } => {
                let published = self.publish(asker, gateway, listening, peers, now);
                if let Err(errno) = published {
                    let tell = Tell::Published {
                        errno: errno.0 as u16,
                        key: Key([0; 32]),
                        sources: Ranges::new([]),
                    };
                    self.actions.push(Action::Tell(client, tell));
                }
            }
            Ask::Serve => {
                let host = self.host.as_mut().filter(|_| is_owner).ok_or(NotAllowed)?;
                if !host.serve(client, &mut self.actions) {
                    return Err(Reason::Taken);
                }
            }
            Ask::Opened { service, errno } => {
                let host = self.process_of(client)?;
                let mut actions = Vec::new();
                host.opened(service, errno, &mut actions);
                self.actions.append(&mut actions);
            }
            Ask::Unreachable { backend } => {
                let host = self.process_of(client)?;
                let mut actions = Vec::new();
                host.unreachable(backend, &mut actions);
                self.actions.append(&mut actions);
            }
            Ask::Way { gateway } => {
                let tell = self.way(gateway);
                self.actions.push(Action::Tell(client, tell));
            }
            Ask::Exit { exit, port } => {
                let host = self.process_of(client)?;
                let mut actions = Vec::new();
                host.exit_opened(exit, port, &mut actions);
                self.actions.append(&mut actions);
            }
            Ask::Drain { node, is_drained } => {
                let done = match self.host.as_mut() {
                    _ if !is_owner => Err(libc::EPERM),
                    None => Err(libc::EOPNOTSUPP),
                    Some(host) => match str::from_utf8(node.as_bytes()) {
                        Ok(node) => host.drain(node, is_drained, &mut self.actions),
                        Err(_) => Err(libc::ENOENT),
                    },
                };
                let errno = done.err().unwrap_or(0) as u16;
                self.actions
                    .push(Action::Tell(client, Tell::Done { errno }));
            }
        }
        Ok(())
    }

    fn process_of(&mut self, client: ClientId) -> Result<&mut Host, NotAllowed> {
        let host = self.host.as_mut();
        host.filter(|host| host.is_process(client))
            .ok_or(NotAllowed)
    }

    fn way(&self, gateway: Name) -> Tell {
        let name = str::from_utf8(gateway.as_bytes()).unwrap_or_default();
        let is_ours = self.publishing.gateways.iter().any(|it| it == name);
        let exit = self.exits.get(name).filter(|_| is_ours);
        let direct = self.publishing.direct.iter();
        Tell::Way {
            errno: match exit {
                Some(_) => 0,
                None if is_ours => libc::ENETUNREACH as u16,
                None => libc::EACCES as u16,
            },
            address: exit.map_or(sluice_control::preface::NOWHERE, |exit| exit.address),
            exit: exit.map_or(0, |exit| exit.number),
            key: exit.map_or(Key([0; 32]), |exit| exit.key),
            direct: Ranges::new(direct.map(|network| range(*network))),
        }
    }

    fn publish(
        &mut self,
        asker: Asker,
        gateway: Name,
        listening: Result<Listening, Errno>,
        peers: &dyn Peers,
        now: Instant,
    ) -> Result<(), Errno> {
        let client = asker.client;
        let name = str::from_utf8(gateway.as_bytes()).map_err(|_| Errno::INVAL)?;
        if !self.publishing.gateways.iter().any(|it| it == name) {
            tracing::info!(
                "client {client} asks for the gateway {name}, which [node] does not have"
            );
            return Err(Errno(libc::EACCES));
        }
        let listening = listening?;
        if !node::is_reachable(listening.address.ip()) {
            return Err(Errno(libc::EADDRNOTAVAIL));
        }
        let (id, key) = (sluice_sys::process::random()?[0], random_key()?);
        let name = PeerName::from(name);
        self.publications.publish(
            asker,
            &name,
            listening,
            sources(peers, &name),
            peers.is_up(&name),
            (PublicationId(id), key),
            now,
            &mut self.actions,
        );
        Ok(())
    }

    /// A client is gone.
    pub fn client_gone(&mut self, client: ClientId, now: Instant) {
        self.publications.forget(client);
        // What it has listened at may have gone with it.
        self.publications.look_soon(now);
        if let Some(host) = &mut self.host
            && host.forget(client)
        {
            self.outbox = Outbox::default();
        }
    }

    /// A peer's daemon is there.
    pub fn peer_up(&mut self, name: &PeerName, peers: &dyn Peers) {
        self.publications.gateway_up(name, &mut self.actions);
        if let Some(host) = &mut self.host
            && let Some(place) = peers.place(name)
            && let Some(address) = peers.source_towards(SocketAddr::new(place.session, 1))
        {
            match random_key() {
                Ok(key) => {
                    let session = Network::single(place.session);
                    let all = [session].into_iter().chain(place.addresses);
                    let sources = Ranges::new(all.map(range));
                    host.node_up(name, address, sources, key, &mut self.actions);
                }
                Err(error) => tracing::warn!("no key for {name}: {error}"),
            }
        }
    }

    /// A peer's daemon is gone.
    pub fn peer_down(&mut self, name: &PeerName) {
        self.publications.gateway_down(name);
        if let Some(host) = &mut self.host {
            host.node_down(name, &mut self.actions);
        }
    }

    /// A peer's daemon says something about gateways.
    pub fn heard(&mut self, name: &PeerName, message: &[u8], peers: &dyn Peers, now: Instant) {
        let Some(word) = Word::decode(message) else {
            let why = "says something of gateways that makes no sense";
            self.actions.push(Action::Drop(name.clone(), why));
            return;
        };
        match (word, &mut self.host) {
            (Word::Published { id, errno, source }, _) => {
                let sources = sources(peers, name);
                let is_expected = sources.contain(source) || errno != 0;
                self.publications.heard_published(
                    name,
                    id,
                    is_expected.then_some(errno),
                    sources,
                    now,
                    &mut self.actions,
                );
            }
            (Word::Exit { exit, address, key }, _) => {
                // Programs would be sent to somebody else.
                if sources(peers, name).contain(address.ip()) {
                    let number = exit;
                    let exit = Exit {
                        number,
                        address,
                        key,
                    };
                    self.exits.insert(name.clone(), exit);
                }
            }
            (Word::Look { id }, _) => {
                if self.publications.has(name, id) {
                    self.publications.look_soon(now);
                }
            }
            (
                Word::Publish {
                    id,
                    listener,
                    only_v6,
                    key,
                },
                Some(host),
            ) => {
                let Some(place) = peers.place(name) else {
                    return;
                };
                let publish = Publish {
                    id,
                    listener,
                    only_v6,
                    key,
                };
                let source = |target| peers.source_towards(target);
                host.publish(name, publish, &place, source, &mut self.actions);
            }
            (Word::Publish { id, .. }, None) => {
                tracing::info!(peer = %name, "{name} takes this host for a gateway");
                let word = Word::Published {
                    id,
                    errno: libc::EACCES as u16,
                    source: IpAddr::from([0; 4]),
                };
                self.actions.push(Action::Say(name.clone(), word));
            }
            (Word::Withdraw { id }, host) => {
                if let Some(host) = host {
                    host.withdraw(name, id, &mut self.actions);
                }
            }
        }
    }
}

/// What was not written yet is.
impl Drop for Gateway {
    fn drop(&mut self) {
        if self.publications.is_changed {
            self.write();
        }
    }
}

fn random_key() -> Result<Key, Errno> {
    let (low, high) = (
        sluice_sys::process::random()?,
        sluice_sys::process::random()?,
    );
    let mut key = [0; 32];
    for (bytes, word) in key.chunks_exact_mut(8).zip(low.iter().chain(&high)) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    Ok(Key(key))
}

/// The client may not do that, or not now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAllowed;

impl From<NotAllowed> for Reason {
    fn from(_: NotAllowed) -> Reason {
        Reason::Protocol
    }
}

/// Where connections of a gateway come from.
fn sources(peers: &dyn Peers, name: &str) -> Ranges {
    let place = peers.place(name);
    let networks = place.iter().flat_map(|place| place.addresses.iter());
    Ranges::new(networks.map(|network| range(*network)))
}

fn range(network: Network) -> Range {
    let (first, prefix) = network.parts();
    match first {
        IpAddr::V4(first) => Range {
            first: first.to_ipv6_mapped(),
            prefix: 96 + prefix,
        },
        IpAddr::V6(first) => Range { first, prefix },
    }
}

/// What is to be known of a listening socket.
pub fn look_at(socket: &Fd) -> Result<Listening, Errno> {
    /// `TCP_LISTEN` of `enum` in the kernel's `include/net/tcp_states.h`.
    const STATE_LISTEN: u8 = 10;
    let fd = socket.raw();
    if !tcp::is_tcp(fd)? || tcp::info(fd)?.state != STATE_LISTEN {
        return Err(Errno::INVAL);
    }
    // Another user may listen at the same address by another device, and only one of them gets what comes by it.
    let mut device = [0; libc::IFNAMSIZ];
    let option = libc::SO_BINDTODEVICE;
    if sluice_sys::unix::get_option(fd, libc::SOL_SOCKET, option, &mut device)? > 0
        && device[0] != 0
    {
        return Err(Errno(libc::EADDRNOTAVAIL));
    }
    // Another namespace has other addresses, and its sockets cannot be looked for.
    let own =
        std::net::UdpSocket::bind("127.0.0.1:0").or_else(|_| std::net::UdpSocket::bind("[::1]:0"));
    let own = own.map_err(|_| Errno(libc::EADDRNOTAVAIL))?;
    if tcp::netns_cookie(fd)? != tcp::netns_cookie(std::os::fd::AsRawFd::as_raw_fd(&own))? {
        return Err(Errno(libc::EADDRNOTAVAIL));
    }
    let address = tcp::local_address(fd)?;
    let mut only_v6 = [0; 4];
    if address.is_ipv6() {
        let option = libc::IPV6_V6ONLY;
        sluice_sys::unix::get_option(fd, libc::IPPROTO_IPV6, option, &mut only_v6)?;
    }
    Ok(Listening {
        address: SocketAddr::new(address.ip(), address.port()),
        only_v6: only_v6 != [0; 4],
        cookie: tcp::cookie(fd)?,
    })
}
