//! The process that captured connections go through: it accepts them from programs here, makes
//! connections to the relays of peers, and accepts theirs for programs here.
//!
//! It runs under the preload library like any program, so its connections with other relays get
//! lanes; nothing here knows of them. It holds the BPF programs, which go with it, and no
//! capability once they are attached.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use sluice_bpf::{Capture as Programs, Destination, Listener};
use sluice_peering::config::Capture as Choice;
use sluice_relay::{Event, EventLoop, Interest, PairId, Readiness, socket};

use super::header::{Numbers, Secret};
use super::orders::{Counts, Heard, Notice, Order, hear, tell};

mod far;
mod near;
mod room;
mod seldom;
mod setup;
mod shown;
mod wanted;

use room::Room;
use seldom::Seldom;
pub use setup::serve;
use shown::Shown;
use wanted::Wanted;

/// How often sluiced hears of counts that change.
const COUNTS_INTERVAL: Duration = Duration::from_secs(1);
/// How often it looks at what only the kernel counts, and at how many connections there may be.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Connections that are taken from a listener before others get their turn.
const ACCEPTS_PER_TURN_MAX: usize = 64;

/// How often so many are taken at the end: a full queue of the listener's, and whoever connects to
/// it himself meanwhile.
const ACCEPTS_AT_END_MAX: usize = 2 * setup::BACKLOG as usize / ACCEPTS_PER_TURN_MAX;

/// Keys of what the event loop watches; tasks have those from [`FIRST_TASK`].
const SLUICED: u64 = 0;
const PROGRAMS_V4: u64 = 1;
const PROGRAMS_V6: u64 = 2;
const PEERS_V4: u64 = 3;
const PEERS_V6: u64 = 4;
const FIRST_TASK: u64 = 16;

/// Where a peer's relay is, and how it knows us.
#[derive(Debug)]
struct Peer {
    addresses: Vec<IpAddr>,
    port_v4: u16,
    port_v6: u16,
    secret: Secret,
    /// The last one that was used with this secret.
    number: u64,
    /// Until when nothing is captured for it, as its relay was not reached.
    left_alone: Option<Instant>,
    /// For how long it was left alone the last time; None: its relay has answered since.
    patience: Option<Duration>,
}

impl Peer {
    /// Of its relay, for connections to this address of its; 0: it has none.
    const fn port(&self, address: IpAddr) -> u16 {
        match address {
            IpAddr::V4(_) => self.port_v4,
            IpAddr::V6(_) => self.port_v6,
        }
    }
}

/// Something that is not a pair yet.
#[derive(Debug)]
struct Task {
    step: Step,
    deadline: Option<Instant>,
}

#[derive(Debug)]
enum Step {
    Near(near::Step),
    Far(far::Step),
}

/// Whose connections a pair joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// A program's here, with a peer's relay or with its destination.
    Captured,
    /// A peer's program's, with a program here.
    Served,
}

/// The relay.
struct Relay {
    event_loop: EventLoop,
    programs: Programs,
    shown: Shown,
    /// The network namespace's cookie.
    netns: u64,
    choice: Choice,
    wanted: Wanted,
    room: Room,
    look_at: Instant,
    /// The socket with sluiced; None: it is gone.
    sluiced: Option<OwnedFd>,
    /// By the keys under which they are watched.
    listeners: HashMap<u64, OwnedFd>,
    /// Ports that nobody reaches through a relay: its own and those of daemons.
    own_ports: Vec<u16>,
    peers: HashMap<u64, Peer>,
    /// The kernel is to hear of it, once for all that happens in a turn.
    peers_changed: bool,
    admitted: HashMap<u64, (Secret, Numbers)>,
    tasks: HashMap<u64, Task>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// Of these, peers' connections that have proven nothing; the oldest first.
    unproven: BTreeSet<(Instant, u64)>,
    /// What the log hears of those who are refused.
    refusals: Seldom,
    losses: Seldom,
    next_task: u64,
    pairs: HashMap<PairId, Whose>,
    /// Pairs and tasks at most, so that descriptors are enough.
    connections_max: usize,
    counts: Counts,
    told: Counts,
    tell_at: Option<Instant>,
    /// No new connections: until when the present ones may last.
    draining: Option<Option<Instant>>,
}

impl Relay {
    /// Until there is nothing left to do.
    fn run(mut self) -> io::Result<()> {
        let mut events = Vec::new();
        loop {
            let now = Instant::now();
            if let Some(end) = self.draining {
                let is_over = end.is_some_and(|end| end <= now);
                if is_over {
                    self.event_loop.reset_all();
                }
                if is_over || self.pairs.is_empty() && self.tasks.is_empty() {
                    return Ok(());
                }
            }
            let patience = self
                .next_deadline()
                .map(|due| due.saturating_duration_since(now));
            self.event_loop.turn(patience, &mut events)?;
            for event in events.drain(..) {
                match event {
                    Event::Ready { key, readiness } => self.ready(key, readiness),
                    Event::Ended { pair, .. } => self.ended(pair),
                }
            }
            // As of before the look: should this process have stood still, what came in time is heard first.
            self.pass_time(now);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let task = self.deadlines.first().map(|(due, _)| *due);
        let left_alone = self.peers.values().filter_map(|peer| peer.left_alone).min();
        let look = self.draining.is_none().then_some(self.look_at);
        [
            task,
            self.tell_at,
            left_alone,
            look,
            self.draining.flatten(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn pass_time(&mut self, now: Instant) {
        while let Some((due, key)) = self.deadlines.first().copied()
            && due <= now
        {
            self.deadlines.pop_first();
            if let Some(task) = self.take(key) {
                self.late(task.step);
            }
        }
        for peer in self.peers.values_mut() {
            if peer.left_alone.is_some_and(|until| until <= now) {
                peer.left_alone = None;
                self.peers_changed = true;
            }
        }
        if std::mem::take(&mut self.peers_changed) && self.draining.is_none() {
            self.set_destinations();
        }
        if self.look_at <= now && self.draining.is_none() {
            self.look_at = now + LOOK_INTERVAL;
            self.look_at_room(now);
            self.look_at_counters();
            self.counted();
        }
        if self.tell_at.is_some_and(|at| at <= now) {
            self.tell_at = None;
            self.look_at_counters();
            self.tell(&Notice::Counts(self.counts));
            self.told = self.counts;
        }
    }

    /// Programs find a port for what is captured.
    fn look_at_room(&mut self, now: Instant) {
        if let Some(connections) = self.room.change(now)
            && let Err(error) = self.programs.set_limit(connections)
        {
            tracing::warn!("more than {connections} connections may be captured: {error}");
            self.room.has_failed();
        }
    }

    /// What the programs in the kernel have left alone.
    fn look_at_counters(&mut self) {
        if let Ok(counters) = self.programs.counters() {
            let reasons = &mut self.counts.reasons;
            reasons.left_terms = counters.own_terms;
            reasons.left_full = counters.full;
            reasons.left_no_listener = counters.no_listener;
        }
    }

    /// Sluiced hears of it, soon.
    fn counted(&mut self) {
        if self.counts != self.told && self.tell_at.is_none() {
            self.tell_at = Some(Instant::now() + COUNTS_INTERVAL);
        }
    }

    fn tell(&self, notice: &Notice) {
        if let Some(sluiced) = &self.sluiced
            && let Err(error) = tell(sluiced, notice)
        {
            tracing::debug!("sluiced does not listen: {error}");
        }
    }

    fn ready(&mut self, key: u64, readiness: Readiness) {
        match key {
            SLUICED => self.hear_sluiced(),
            PROGRAMS_V4 | PROGRAMS_V6 => {
                self.look_at_room(Instant::now());
                self.accept(key);
            }
            PEERS_V4 | PEERS_V6 => {
                self.accept(key);
            }
            // Its task may have ended in this turn.
            key => {
                if let Some(task) = self.take(key) {
                    match task.step {
                        Step::Near(step) => self.near_ready(step, task.deadline),
                        Step::Far(step) => self.far_ready(step, readiness, task.deadline),
                    }
                }
            }
        }
    }

    fn late(&mut self, step: Step) {
        match step {
            Step::Near(step) => self.near_late(step),
            Step::Far(step) => self.far_late(step),
        }
    }

    fn ended(&mut self, pair: PairId) {
        match self.pairs.remove(&pair) {
            Some(Whose::Captured) => self.counts.open = self.counts.open.saturating_sub(1),
            Some(Whose::Served) => {
                self.counts.served_open = self.counts.served_open.saturating_sub(1);
            }
            None => {}
        }
        self.counted();
    }

    /// True: there may be more.
    fn accept(&mut self, key: u64) -> bool {
        for _ in 0..ACCEPTS_PER_TURN_MAX {
            let Some(listener) = self.listeners.get(&key) else {
                return false;
            };
            match socket::accept(listener.as_fd()) {
                Ok(Some((socket, from))) => match key {
                    PROGRAMS_V4 | PROGRAMS_V6 => self.program_comes(socket, from),
                    _ => self.peer_comes(socket),
                },
                Ok(None) => return false,
                Err(error) => {
                    // Descriptors or memory, of this process or of the host: it passes, and who
                    // waits in the listener's queue is let in then.
                    if self.event_loop.pause(key) {
                        tracing::warn!("connections are not accepted for now: {error}");
                    }
                    return false;
                }
            }
        }
        true
    }

    fn hear_sluiced(&mut self) {
        loop {
            let Some(sluiced) = &self.sluiced else {
                return;
            };
            match hear::<Order>(sluiced) {
                Ok(Heard::Message(order)) => self.obey(order),
                Ok(Heard::Nothing) => return,
                // Connections that there are go on.
                Ok(Heard::End) => return self.drain(None),
                Err(error) => {
                    tracing::error!("sluiced says what makes no sense: {error}");
                    return self.drain(None);
                }
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Reach {
                peer,
                addresses,
                port_v4,
                port_v6,
                secret,
            } => {
                let former = self.peers.get(&peer);
                // Said again: with the same secret it is the same relay.
                let former = former.filter(|former| former.secret == secret);
                let number = former.map_or_else(first_number, |former| former.number);
                let left_alone = former.and_then(|former| former.left_alone);
                let patience = former.and_then(|former| former.patience);
                let reach = Peer {
                    addresses,
                    port_v4,
                    port_v6,
                    secret,
                    number,
                    left_alone,
                    patience,
                };
                self.peers.insert(peer, reach);
                self.peers.retain(|_, peer| !peer.addresses.is_empty());
                self.peers_changed = true;
            }
            Order::Admit(secret) => {
                self.admitted
                    .insert(secret.id, (secret, Numbers::default()));
            }
            Order::Expel { secret } => drop(self.admitted.remove(&secret)),
            Order::Leave { pid } => {
                if let Err(error) = self.programs.leave_process(pid) {
                    tracing::debug!("connections of {pid} are captured: {error}");
                }
            }
            Order::Forget { pid } => {
                let _ = self.programs.forget_process(pid);
            }
            Order::Drain { seconds } => {
                self.drain(Some(Duration::from_secs(seconds)));
            }
        }
    }

    /// New connections go their own way from now on. What shows addresses to programs stays until
    /// the end of this process.
    fn drain(&mut self, limit: Option<Duration>) {
        if let Err(error) = self.programs.remove_listener(self.netns) {
            tracing::error!("connections are still captured: {error}");
        }
        let Some(sluiced) = self.sluiced.take() else {
            return;
        };
        let _ = self.event_loop.unwatch(sluiced.as_fd(), SLUICED);
        // Who has come is let in: programs that were told that they are connected, all of them.
        for key in [PROGRAMS_V4, PROGRAMS_V6] {
            let _ = (0..ACCEPTS_AT_END_MAX).all(|_| self.accept(key));
        }
        for (key, listener) in self.listeners.drain() {
            let _ = self.event_loop.unwatch(listener.as_fd(), key);
        }
        self.admitted.clear();
        self.peers.clear();
        self.draining = Some(limit.map(|limit| Instant::now() + limit));
        let count = self.pairs.len();
        tracing::info!("takes no new connections, and has {count}");
    }

    /// Tells the programs in the kernel what is wanted now.
    fn set_destinations(&mut self) {
        let mut destinations = Vec::new();
        let all = self.peers.values();
        for peer in all.filter(|peer| peer.left_alone.is_none()) {
            for &address in &peer.addresses {
                let is_host = !address.is_loopback() && !address.is_unspecified();
                if peer.port(address) != 0 && is_host {
                    destinations.push(Destination {
                        address,
                        port: None,
                        source: source_towards(address).ok(),
                    });
                }
            }
        }
        let Some(change) = self.wanted.change(destinations) else {
            return;
        };
        let set = self
            .programs
            .set_ports(&change.ports)
            .and_then(|()| self.programs.set_destinations(&change.destinations));
        if let Err(error) = set {
            tracing::warn!("not everything is captured: {error}");
            self.wanted.has_failed();
        }
    }

    // Tasks.

    fn is_full(&self) -> bool {
        self.tasks.len() + self.pairs.len() >= self.connections_max
    }

    /// Waits with a step for its socket.
    fn wait(&mut self, step: Step, interest: Interest, deadline: Option<Instant>) {
        let key = self.next_task;
        self.next_task += 1;
        if let Err(error) = self.event_loop.watch(step.waits_for(), interest, key) {
            tracing::warn!("a connection is given up: {error}");
            return;
        }
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, key));
            if matches!(step, Step::Far(far::Step::Hearing { .. })) {
                self.unproven.insert((deadline, key));
            }
        }
        self.tasks.insert(key, Task { step, deadline });
    }

    /// Ends the waiting.
    fn take(&mut self, key: u64) -> Option<Task> {
        let task = self.tasks.remove(&key)?;
        let _ = self.event_loop.unwatch(task.step.waits_for(), key);
        if let Some(deadline) = task.deadline {
            self.deadlines.remove(&(deadline, key));
            self.unproven.remove(&(deadline, key));
        }
        Some(task)
    }

    fn join(&mut self, left: OwnedFd, right: OwnedFd, whose: Whose) {
        match self.event_loop.pair(left, right) {
            Ok(pair) => {
                self.pairs.insert(pair, whose);
                match whose {
                    Whose::Captured => self.counts.open += 1,
                    Whose::Served => {
                        self.counts.served += 1;
                        self.counts.served_open += 1;
                    }
                }
                self.counted();
            }
            Err(error) => tracing::debug!("a connection is given up: {error}"),
        }
    }

    /// A socket of ours, whose connection is not captured in turn.
    fn own_socket(&self, to: &SocketAddr) -> io::Result<OwnedFd> {
        let fd = socket::tcp(to)?;
        let cookie = sluice_sys::tcp::cookie(fd.as_raw_fd())?;
        self.programs.exempt(cookie).map_err(io::Error::other)?;
        socket::reset_on_close(fd.as_fd(), true)?;
        Ok(fd)
    }
}

impl Step {
    fn waits_for(&self) -> BorrowedFd<'_> {
        match self {
            Self::Near(step) => step.waits_for(),
            Self::Far(step) => step.waits_for(),
        }
    }
}

/// Greater than all numbers that a relay before this one can have used, with the same secret: they
/// count up from the microseconds since the start of the machine.
fn first_number() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, nanoseconds) = (now.tv_sec as u64, now.tv_nsec as u64);
    seconds * 1_000_000 + nanoseconds / 1_000
}

/// From where the kernel would connect to an address; nothing is sent.
fn source_towards(address: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    // Any port: routes do not depend on it, as a rule.
    socket.connect((address, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// What the limit of descriptors leaves room for: each connection has two.
fn connections_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    usize::try_from(descriptors.saturating_sub(64) / 2).unwrap_or(usize::MAX)
}

fn listener_of(fds: &HashMap<u64, OwnedFd>, v4: u64, v6: u64) -> io::Result<Listener> {
    let port = |key| -> io::Result<Option<u16>> {
        let fd: Option<&OwnedFd> = fds.get(&key);
        let address = fd.map(|fd| socket::local_address(fd.as_fd())).transpose()?;
        Ok(address.map(|address| address.port()))
    };
    Ok(Listener {
        v4: port(v4)?,
        v6: port(v6)?,
    })
}
