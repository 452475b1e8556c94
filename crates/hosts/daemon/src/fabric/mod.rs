//! Lanes to other hosts (docs/decisions/0016).
//!
//! [`introducer`] finds the ends of connections between hosts, over the control connections of
//! `sluice-peering`; each [`carrier`] moves bytes in a thread of its own; this is what ties them to
//! the rest of sluiced.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use sluice_fabric::oversubscribed::Oversubscribed;
use sluice_peering::config::{Action as RuleAction, Candidate, Changes, Config, Device, Network};
use sluice_peering::{Event, Identity, PeerId, Peering, PeeringError, Why};
use sluice_rdma::{DeviceChoice, Library, Limits, Node};
use sluice_sys::errno::Errno;
use sluice_sys::unix::Fd;

use crate::capture::Capture;
use crate::capture::advertisement::{ADVERTISEMENT_KIND, Advertisement};
use crate::matching::{Announced, ClientId, EndKey};
use crate::memory_limits::MemoryLimits;
use crate::namespace::{Namespace, Numbers, Origin};
use crate::peer::PeerName;
use crate::program::Program;

pub mod carrier;
pub mod finding;
mod gateway;
pub mod introducer;
pub mod memory;
mod oversubscription;
pub mod report;
pub mod traffic;
pub mod window;
pub mod words;

use carrier::Carrier;
use finding::{Advice, Finding};
use introducer::{Action, GivenDirect, GivenLane, Introducer, Programs, Windowed};
use memory::{ForeignParkingTable, Memory, OwnParkingTable};
use window::pieces::Notice;
use window::{DirectLane, Given, Loan, Seat, SlotProof, Windows};
use words::{Life, NUMBERS_VERSION, Word};

pub use gateway::Heard;

/// Reports of one carrier that are heard before others get their turn.
const REPORTS_PER_TURN_MAX: usize = 1024;

/// Why there are no lanes to other hosts. The text says what to do where something can be done.
#[derive(Debug)]
pub enum FabricError {
    Peering(String),
    /// No address of this host leads to the peers.
    NoAddress(io::Error),
    Device(sluice_rdma::Error),
    System(io::Error),
}

impl std::fmt::Display for FabricError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Peering(error) => f.write_str(error),
            Self::NoAddress(error) => write!(
                f,
                "which address leads to the peers is not known ({error}): name one in `listen`"
            ),
            Self::Device(error) => write!(f, "the device of the fabric: {error}"),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FabricError {}

impl From<io::Error> for FabricError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// Everything that makes lanes to other hosts.
#[derive(Debug)]
pub struct Fabric {
    config: Config,
    /// What carries the bytes, and from which address.
    device: String,
    address: IpAddr,
    peering: Peering,
    sessions: HashMap<PeerId, PeerName>,
    ids: HashMap<PeerName, PeerId>,
    introducer: Introducer,
    /// By their numbers.
    carriers: Vec<Carrier>,
    parking: Arc<OwnParkingTable>,
    parking_tables: ParkingTables,
    capture: Option<Capture>,
    /// Why nothing is captured although the configuration wanted it when this began.
    left_to_tcp: Option<String>,
    /// Where handshakes have an option.
    finding: Option<Finding>,
    /// For gateways.
    heard: Vec<Heard>,
    /// Programs, and numbers of their pieces of windows that get no new lanes.
    gone: Vec<(ClientId, u32)>,
}

/// The parking tables of programs, mapped when the first lane needs them.
#[derive(Debug)]
struct ParkingTables {
    windows: Windows,
    mapped: HashMap<ClientId, Arc<ForeignParkingTable>>,
    /// Of the program that is announcing something now, or was announced before.
    files: HashMap<ClientId, Fd>,
    /// The network namespaces of its ends, by their cookies.
    namespaces: HashMap<ClientId, HashMap<u64, Namespace>>,
}

impl Windowed for ParkingTables {
    fn seats(&self) -> Vec<Seat> {
        self.windows.seats()
    }

    fn heard_seat(&mut self, peer: &PeerName, seat: Seat) {
        self.windows.heard_seat(peer, seat);
    }

    fn heard_proof(&mut self, peer: &PeerName, proof: SlotProof) {
        self.windows.heard_proof(peer, proof);
    }

    fn may_share(&self, client: ClientId, peer: &PeerName) -> bool {
        self.windows.may_share(client, peer)
    }

    fn lend(
        &mut self,
        client: ClientId,
        peer: &PeerName,
        theirs: u32,
    ) -> Option<(DirectLane, Loan)> {
        let lane = self.windows.lend(client, peer, theirs)?;
        Some((lane, self.windows.loan(&lane)?))
    }

    fn borrow(
        &mut self,
        client: ClientId,
        peer: &PeerName,
        loan: &Loan,
    ) -> Result<DirectLane, Option<&'static str>> {
        self.windows.borrow(client, peer, loan)
    }

    fn returned(&mut self, peer: &PeerName, piece: u32, lane: u32) {
        self.windows.returned(peer, piece, lane);
    }

    fn foreign_gone(&mut self, peer: &PeerName, theirs: u32) {
        self.windows.foreign_gone(peer, theirs);
    }

    fn withdrawn(&mut self, peer: &PeerName, piece: u32) {
        self.windows.withdrawn(peer, piece);
    }

    fn released(&mut self, peer: &PeerName, piece: u32) {
        self.windows.released(peer, piece);
    }

    fn peer_lost(&mut self, peer: &PeerName) {
        self.windows.peer_lost(peer);
    }
}

impl Programs for ParkingTables {
    fn parking(&mut self, client: ClientId) -> Result<Arc<ForeignParkingTable>, Errno> {
        if let Some(parking) = self.mapped.get(&client) {
            return Ok(parking.clone());
        }
        let file = self.files.get(&client).ok_or(Errno::INVAL)?;
        let parking = Arc::new(ForeignParkingTable::map(file)?);
        self.mapped.insert(client, parking.clone());
        Ok(parking)
    }

    fn is_here(&self, announced: &Announced, numbers: Option<Numbers>) -> bool {
        let namespaces = self.namespaces.get(&announced.key.client);
        let place = namespaces.and_then(|all| all.get(&announced.domain.netns));
        place.is_some_and(|place| place.has(announced, numbers))
    }
}

/// How the configuration's device is named where it is opened.
pub fn device_choice(device: Option<&Device>) -> DeviceChoice {
    match device {
        Some(Device::Shm) => DeviceChoice::Shm,
        Some(Device::Roce) => DeviceChoice::Roce,
        Some(Device::Window(path)) => DeviceChoice::Window(path.clone()),
        Some(Device::Hardware(name)) => DeviceChoice::Hardware(name.clone()),
        Some(Device::RoceUdp) => DeviceChoice::RoceUdp,
        // As root AF_XDP is tried first.
        None if sluice_sys::unix::effective_uid() == 0 => DeviceChoice::Roce,
        None => DeviceChoice::RoceUdp,
    }
}

impl Fabric {
    /// Opens the device and listens for peers. `library` is our libibverbs. The environment of the
    /// process says already which device it shows ([`DeviceChoice::environment`]).
    pub fn start(
        config: Config,
        library: &Path,
        ring_bytes: u32,
        lanes_max: u32,
        is_eager: bool,
    ) -> Result<Fabric, FabricError> {
        let choice = device_choice(config.device.as_ref());
        let local = local_address(&config).map_err(FabricError::NoAddress)?;
        let library = Library::load(&choice, library).map_err(FabricError::Device)?;
        let threads = config.fabric_threads();
        let nodes = open_nodes(&library, &choice, local, threads).map_err(FabricError::Device)?;
        let node = &nodes[0];
        if !node.shares_receive_queue() {
            tracing::info!(device = %choice, "{choice} has no shared receive queue: each link has its own");
        }
        let left_to_tcp = config.capture_remark(node.is_adapter());
        let identity =
            Identity::load(&config).map_err(|error| FabricError::Peering(error.to_string()))?;
        let peering = Peering::new(config.clone(), identity)
            .map_err(|error| FabricError::Peering(error.to_string()))?;
        let parking = Arc::new(OwnParkingTable::new().map_err(io::Error::from)?);
        let oversubscribed = Oversubscribed::default();
        let mut carriers = Vec::new();
        for (number, node) in nodes.into_iter().enumerate() {
            let said = oversubscribed.clone();
            let carrier = Carrier::start(number, node, parking.clone(), said, is_eager)?;
            carriers.push(carrier);
        }
        tracing::info!(
            device = %choice, address = %local, threads = carriers.len(),
            "lanes to other hosts by {choice} from {local}, threads: {}", carriers.len()
        );
        Ok(Fabric {
            parking_tables: ParkingTables {
                windows: Windows::new(&config.windows, &config.name, ring_bytes),
                mapped: HashMap::new(),
                files: HashMap::new(),
                namespaces: HashMap::new(),
            },
            introducer: Introducer::new(
                Life(random()?),
                Memory::new(ring_bytes, lanes_max),
                carriers.len(),
            ),
            config,
            device: choice.to_string(),
            address: local,
            peering,
            sessions: HashMap::new(),
            ids: HashMap::new(),
            carriers,
            parking,
            capture: None,
            left_to_tcp,
            finding: None,
            heard: Vec::new(),
            gone: Vec::new(),
        })
    }

    /// Why connections are not to be captured although the configuration has `[capture]`.
    pub fn left_to_tcp(&self) -> Option<&str> {
        self.left_to_tcp.as_deref()
    }

    /// Gives lanes to connections of programs that cannot be preloaded, too.
    pub fn set_capture(&mut self, capture: Capture) {
        self.capture = Some(capture);
    }

    /// Asks hosts as their handshakes advise.
    pub fn set_finding(&mut self, finding: Finding) {
        self.finding = Some(finding);
    }

    /// Heeds the limits of the groups that programs are in.
    pub fn heed(&mut self, limits: MemoryLimits) {
        self.introducer.heed(limits);
    }

    /// What was captured, if anything is.
    pub fn capture(&mut self) -> Option<&mut Capture> {
        self.capture.as_mut()
    }

    /// Readable when [`Fabric::turn`] has something to do.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = vec![self.peering.fd()];
        fds.extend(self.carriers.iter().map(|it| it.reported().as_fd()));
        fds.extend(self.capture.as_ref().map(Capture::fd));
        fds.extend(self.finding.as_ref().and_then(Finding::fd));
        fds
    }

    /// When it has something to do in any case.
    pub fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [
            self.peering.next_deadline(),
            self.introducer.next_deadline(),
            self.parking_tables.windows.next_deadline(),
            self.capture.as_ref().and_then(Capture::next_deadline),
            self.finding.as_ref().and_then(Finding::next_deadline),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// sluiced's own parking table, for programs with a lane to another host.
    pub fn parking(&self) -> &Fd {
        &self.parking.memory
    }

    /// Takes what has come, and says which programs have a lane now.
    pub fn turn(&mut self, now: Instant) -> Vec<GivenLane> {
        let mut events = Vec::new();
        self.peering.advance(now, &mut |event| events.push(event));
        for event in events {
            self.take(event, now);
        }
        for (number, carrier) in self.carriers.iter().enumerate() {
            // What is left keeps its descriptor readable.
            let reports = std::iter::from_fn(|| carrier.next_report());
            for report in reports.take(REPORTS_PER_TURN_MAX) {
                self.introducer.carried(number, report, now);
            }
        }
        self.introducer.pass_time(now);
        if self.parking_tables.windows.turn(now) {
            self.introducer
                .tell_seats(&self.parking_tables.windows.seats());
        }
        if let Some(finding) = &mut self.finding {
            finding.turn(now);
        }
        if let Some(capture) = &mut self.capture {
            capture.turn(now);
            for (name, bytes) in capture.take_words() {
                self.send(&name, &bytes);
            }
        }
        self.act();
        self.introducer.take_given()
    }

    /// A program has announced an end, in this namespace, for which there is none on this host.
    pub fn announced(
        &mut self,
        announced: Announced,
        namespace: &Namespace,
        (program, user): (&Program, u32),
        parking: impl FnOnce() -> Option<Fd>,
    ) {
        let tuple = announced.tuple;
        let candidate = |port| Candidate {
            port,
            remote: tuple.peer.ip(),
            program: Some(&program.name),
        };
        // Which of the two ports was connected to is not known here: the lower one, as a rule.
        let port = tuple.local.port().min(tuple.peer.port());
        let capture = self.capture.as_ref();
        let is_relay = capture.is_some_and(|capture| capture.is_relay(program.pid));
        let is_left = !is_relay && self.config.rules.decide(&candidate(port)) == RuleAction::Leave;
        if is_left || tuple.peer.ip().is_loopback() {
            return;
        }
        let numbers = match namespace.settled_origin(&announced) {
            Origin::At(numbers) => Some(numbers),
            Origin::Believed => None,
            // Closed meanwhile, or not to be proven to anybody.
            Origin::Nowhere | Origin::Unknown => return,
        };
        let client = announced.key.client;
        if let Entry::Vacant(entry) = self.parking_tables.files.entry(client) {
            let Some(parking) = parking() else {
                return;
            };
            entry.insert(parking);
        }
        let namespaces = self.parking_tables.namespaces.entry(client).or_default();
        namespaces.insert(announced.domain.netns, namespace.clone());
        self.parking_tables.windows.program_came(client, user);
        self.introducer
            .announced(announced, numbers, &mut self.parking_tables);
        self.act();
    }

    /// A program has closed a connection.
    pub fn released(&mut self, key: EndKey) {
        self.introducer.released(key);
        self.act();
    }

    /// A program is gone.
    pub fn program_gone(&mut self, client: ClientId) {
        self.introducer.program_gone(client);
        self.act();
        self.parking_tables.windows.program_gone(client);
        self.parking_tables.mapped.remove(&client);
        self.parking_tables.files.remove(&client);
        self.parking_tables.namespaces.remove(&client);
        self.act();
    }

    /// Whether the other end of this one may still be announced, on another host, which is asked if
    /// so. [`Fabric::take_alone`] has the answer.
    pub fn may_come(&mut self, key: EndKey) -> bool {
        let may_come = self.introducer.may_come(key);
        self.act();
        // A daemon that is being asked for may know of it.
        let unknown = self.introducer.unknown_host(key);
        may_come || unknown.is_some_and(|address| self.peering.is_asking(address))
    }

    /// Ends whose other ends are nobody's, as the hosts where they would be have said.
    pub fn take_alone(&mut self) -> Vec<Announced> {
        self.introducer.take_alone()
    }

    /// Questions of peers that wait for [`Fabric::answer`].
    pub fn questions(&self) -> usize {
        self.introducer.questions()
    }

    /// Answers the first of what peers want to know of ends here; every program was heard since.
    pub fn answer(&mut self, count: usize) {
        self.introducer.answer(count, &self.parking_tables);
        self.act();
    }

    /// Whether the program has the descriptor of the lane's chunk.
    pub fn is_given(&mut self, lane: &GivenLane) -> bool {
        self.introducer.is_given(lane)
    }

    /// It has it now.
    pub fn set_given(&mut self, lane: &GivenLane) {
        self.introducer.set_given(lane);
    }

    /// Direct lanes of which programs are to be told.
    pub fn take_given_direct(&mut self) -> Vec<GivenDirect> {
        self.introducer.take_given_direct()
    }

    /// What the program is told of a direct lane.
    ///
    /// # Errors
    /// As [`Windows::given`].
    pub fn given_direct(&self, lane: &DirectLane) -> Result<Given, Errno> {
        self.parking_tables.windows.given(lane)
    }

    /// It has the memory now.
    pub fn set_given_direct(&mut self, lane: &DirectLane) {
        self.parking_tables.windows.set_given(lane);
    }

    /// Programs that are to be told that a piece of theirs, by its number, gets no new lanes.
    pub fn take_gone(&mut self) -> Vec<(ClientId, u32)> {
        std::mem::take(&mut self.gone)
    }

    /// The window that the direct lane of this end lies in.
    pub fn window_of_end(&self, key: EndKey) -> Option<&Path> {
        let lane = self.introducer.direct_lane(key)?;
        self.parking_tables.windows.path_of(lane)
    }

    /// Takes another configuration, but for the device.
    ///
    /// # Errors
    /// As [`Peering::reload`]; then everything is as it was.
    pub fn reload(&mut self, config: Config, identity: Identity) -> Result<Changes, PeeringError> {
        let key = identity.cluster();
        let changes = self.peering.reload(config.clone(), identity)?;
        self.config = config;
        if !self.config.discovery.option {
            self.finding = None;
        } else if let Some(finding) = &mut self.finding {
            finding.reload(&self.config, key);
        }
        for session in self.peering.status() {
            if let Some(name) = self.sessions.get(&session.peer).cloned() {
                let addresses = self.addresses_of(&name, session.address);
                self.introducer
                    .set_addresses(&name, addresses, &mut self.parking_tables);
            }
        }
        self.act();
        Ok(changes)
    }

    /// Connections with these addresses end at the peer's host.
    fn addresses_of(&self, name: &str, control: SocketAddr) -> Vec<Network> {
        let configured = self.config.peer(name);
        let mut addresses = configured.map_or(Vec::new(), |peer| peer.addresses.clone());
        addresses.push(Network::single(control.ip()));
        addresses
    }

    /// The host where the other end of this one's lane is.
    pub fn peer_of_end(&self, key: EndKey) -> Option<&str> {
        self.introducer.peer_of_end(key)
    }

    fn take(&mut self, event: Event, now: Instant) {
        match event {
            Event::Up {
                peer,
                name,
                address,
                version,
                binding,
                ..
            } => {
                tracing::debug!(peer = name, address = %address, "{name} at {address}");
                let name: PeerName = name.into();
                let addresses = self.addresses_of(&name, address);
                self.sessions.insert(peer, name.clone());
                self.ids.insert(name.clone(), peer);
                let binding = (version >= NUMBERS_VERSION).then_some(binding);
                self.parking_tables.windows.peer_up(&name, binding);
                self.introducer.peer_up(&name, addresses.clone(), version);
                if let Some(capture) = &mut self.capture
                    && let Err(error) = capture.peer_up(&name, addresses)
                {
                    tracing::error!(peer = %name, reason = %error, "{name}: nothing is captured: {error}");
                }
                self.heard.push(Heard::Up(name));
            }
            Event::Address { peer, address } => {
                if let Some(name) = self.sessions.get(&peer) {
                    let network = Network::single(address);
                    self.introducer
                        .peer_is_at(name, network, &mut self.parking_tables);
                }
            }
            Event::Down { peer, why } => {
                if let Some(name) = self.sessions.remove(&peer) {
                    tracing::info!(peer = %name, reason = %why, "{name} is down: {why}");
                    if self.ids.get(&name) == Some(&peer) {
                        self.ids.remove(&name);
                        self.introducer.peer_down(&name, now);
                        self.parking_tables.windows.peer_down(&name);
                        if let Some(capture) = &mut self.capture {
                            capture.peer_down(&name);
                        }
                        self.heard.push(Heard::Down(name));
                    }
                }
            }
            Event::Message { peer, bytes } => {
                let Some(name) = self.sessions.get(&peer) else {
                    return;
                };
                if crate::gateway::words::is_one(&bytes) {
                    self.heard.push(Heard::Word(name.clone(), bytes));
                } else if bytes.first() != Some(&ADVERTISEMENT_KIND) {
                    self.introducer
                        .heard(name, &bytes, &mut self.parking_tables, now);
                } else if let (Some(capture), Some(advertisement)) =
                    (&mut self.capture, Advertisement::decode(&bytes))
                {
                    capture.heard(name, advertisement);
                }
            }
            Event::Unreachable { address, why } => {
                tracing::debug!(reason = %why, address = %address, "no sluiced at {address}: {why}");
            }
        }
    }

    fn act(&mut self) {
        self.act_once();
        for (name, proof) in self.parking_tables.windows.take_proofs() {
            self.introducer.tell(&name, Word::Proof(proof));
        }
        // What is to be told of pieces is known when lanes are over.
        for notice in self.parking_tables.windows.take_notices() {
            match notice {
                Notice::Program(client, number) => self.gone.push((client, number)),
                Notice::Returned(name, piece, lane) => {
                    self.introducer.tell(&name, Word::Returned { piece, lane });
                }
                Notice::Gone(name, client) => {
                    self.introducer.tell(&name, Word::ClientGone { client });
                }
                Notice::Withdrawn(name, piece) => {
                    self.introducer.tell(&name, Word::Withdrawn { piece });
                }
                Notice::Released(name, piece) => {
                    self.introducer.tell(&name, Word::Released { piece });
                }
            }
        }
        self.act_once();
    }

    fn act_once(&mut self) {
        for action in self.introducer.take_actions() {
            match action {
                Action::Say(name, word) => self.say(&name, &word),
                Action::Seek { address, cookie } => self.seek(address, cookie),
                Action::EndDirect(lane, ended) => self.parking_tables.windows.over(&lane, ended),
                Action::Carry(number, command) => {
                    if let Some(carrier) = self.carriers.get(number) {
                        carrier.tell(command);
                    }
                }
                // It may have come back meanwhile.
                Action::Forget(name) if self.ids.contains_key(&name) => {}
                Action::Forget(name) => self.parking_tables.windows.forget(&name),
                Action::Drop(name, why) => {
                    tracing::warn!(peer = %name, reason = why, "{name} {why}");
                    if let Some(peer) = self.ids.get(&name) {
                        self.peering.hang_up(*peer, Why::Unexpected);
                    }
                }
            }
        }
    }

    /// Asks the host with this address for its sluiced, unless the handshake of the socket with this
    /// cookie advises against it.
    fn seek(&mut self, address: IpAddr, cookie: u64) {
        let advice = self.finding.as_mut();
        let advice = advice.map_or(Advice::Ask, |finding| finding.advice(cookie));
        match advice {
            Advice::Ask => drop(self.peering.seek(address, Instant::now())),
            Advice::AskAnew => drop(self.peering.seek_anew(address, Instant::now())),
            Advice::Leave => {
                tracing::debug!(%address, "{address} is not asked, as its handshake advises");
                if let Some(finding) = &mut self.finding {
                    finding.count_not_asked();
                }
            }
        }
    }

    fn say(&mut self, name: &PeerName, word: &Word) {
        self.send(name, &word.encode());
    }

    fn send(&mut self, name: &PeerName, bytes: &[u8]) {
        let Some(peer) = self.ids.get(name).copied() else {
            return;
        };
        if self.peering.send(peer, bytes).is_err() {
            // A megabyte that it does not read: it has stopped.
            tracing::warn!(peer = %name, "{name} does not read what it is told");
            self.peering.hang_up(peer, Why::Full);
        }
    }
}

/// Opens the device once for each thread. At least once: what it has not for further ones they do without.
fn open_nodes(
    library: &Library,
    choice: &DeviceChoice,
    local: IpAddr,
    threads: u32,
) -> Result<Vec<Node>, sluice_rdma::Error> {
    let open = || Node::open(library, choice, local, Limits::default());
    let mut nodes = vec![open()?];
    while nodes.len() < threads as usize {
        match open() {
            Ok(node) => nodes.push(node),
            Err(error) => {
                let count = nodes.len();
                tracing::warn!(reason = %error, "{choice} is enough for {count} of {threads} threads: {error}");
                break;
            }
        }
    }
    Ok(nodes)
}

/// The address from which peers are reached.
fn local_address(config: &Config) -> io::Result<IpAddr> {
    let named = config.listen.iter().map(SocketAddr::ip);
    if let Some(address) = { named }.find(|ip| !ip.is_unspecified() && !ip.is_loopback()) {
        return Ok(address);
    }
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for peer in &config.peers {
        match towards(peer.control) {
            Ok(address) => return Ok(address),
            Err(error) => last = error,
        }
    }
    // Where unknown hosts are looked for, this one is known by an address of the same network.
    let networks = config.discovery.networks.iter();
    let networks = networks.filter(|_| config.discovery.enabled);
    for network in networks {
        match towards(SocketAddr::new(network.first(), DISCARD_PORT)) {
            Ok(address) if network.contains(address) => return Ok(address),
            Ok(_) => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Any port will do (RFC 863).
const DISCARD_PORT: u16 = 9;

/// The source address that the kernel would use; nothing is sent.
fn towards(peer: SocketAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = if peer.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0_u16; 8], 0).into()
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

fn random() -> io::Result<u64> {
    use rustix::rand::{GetRandomFlags, getrandom};
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
