//! Connections of programs that cannot be preloaded (docs/decisions/0019).
//!
//! The [`relay`] is a process of its own, which sluiced starts, tells which peers there are, and
//! starts again when it has ended. Here is sluiced's side.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::rand::{GetRandomFlags, getrandom};
use sluice_control::files;
use sluice_peering::config::{Capture as Choice, Network};

use crate::peer::PeerName;

pub mod advertisement;
pub mod header;
pub mod orders;
pub mod relay;

use advertisement::Advertisement;
use header::Secret;
use orders::{Counts, Heard, Notice, Order, hear, tell};

/// The hidden option by which sluiced is the relay.
pub const RELAY_OPTION: &str = "--capture-relay";

/// From the end of a relay to the next one: doubled each time, until one has lived for long.
const RESTART_MIN: Duration = Duration::from_millis(100);
const RESTART_MAX: Duration = Duration::from_secs(60);
/// Orders that a relay does not take, at most.
const ORDERS_MAX: usize = 64 * 1024;
const LONG_LIFE: Duration = Duration::from_secs(120);

/// How relays are started.
#[derive(Clone, Debug)]
pub struct Start {
    /// The configuration file, which the relay reads itself.
    pub config: PathBuf,
    /// sluiced's socket, for the relay's preload library.
    pub socket: PathBuf,
    /// `--log` and the like.
    pub arguments: Vec<OsString>,
    /// Whether sluiced keeps nothing of who started it: then the relay does not have its standard
    /// error either.
    pub is_detached: bool,
}

/// sluiced's side of capture.
#[derive(Debug)]
pub struct Capture {
    start: Start,
    choice: Choice,
    /// Readable when the relay says something, whichever it is.
    poll: OwnedFd,
    relay: Option<Running>,
    restart_at: Option<Instant>,
    restart_after: Duration,
    sessions: HashMap<PeerName, Session>,
    next_peer: u64,
    /// Programs that have lanes of their own.
    programs: Vec<u32>,
    /// Whether the kernel's programs number processes as this one does.
    is_first_pid_namespace: bool,
    /// Relays that may still have connections.
    ending: Vec<Ending>,
    /// For peers.
    words: Vec<(PeerName, Vec<u8>)>,
    /// Of relays that have ended.
    former: Counts,
    counts: Counts,
}

#[derive(Debug)]
struct Running {
    process: Child,
    socket: OwnedFd,
    /// For which there was no room.
    orders: VecDeque<Order>,
    since: Instant,
    ready: Option<Ready>,
}

/// It has left us, and ends with its last connection.
#[derive(Debug)]
struct Ending {
    process: Child,
    /// Readable when it has ended (pidfd_open(2)).
    _end: Option<OwnedFd>,
}

#[derive(Clone, Debug)]
struct Ready {
    port_v4: u16,
    port_v6: u16,
    addresses: Vec<IpAddr>,
}

/// A peer whose control connection is up.
#[derive(Debug)]
struct Session {
    number: u64,
    /// What it must have to connect to our relay.
    own: Secret,
    /// Connections with these addresses end there.
    addresses: Vec<Network>,
    /// Its relay.
    advertisement: Option<Advertisement>,
    /// Of which ours has not been told yet.
    is_changed: bool,
}

impl Capture {
    /// Starts a relay. It says later whether it can capture.
    pub fn new(start: Start, choice: Choice) -> io::Result<Self> {
        let mut capture = Self {
            start,
            choice,
            poll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            relay: None,
            restart_at: None,
            restart_after: RESTART_MIN,
            sessions: HashMap::new(),
            next_peer: 1,
            programs: Vec::new(),
            is_first_pid_namespace: is_first_pid_namespace(),
            ending: Vec::new(),
            words: Vec::new(),
            former: Counts::default(),
            counts: Counts::default(),
        };
        capture.start_relay()?;
        Ok(capture)
    }

    /// Readable when [`Capture::turn`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }

    /// When it has something to do in any case.
    pub const fn next_deadline(&self) -> Option<Instant> {
        self.restart_at
    }

    /// Whether this process is the relay: its connections get lanes whatever rules say.
    pub fn is_relay(&self, pid: u32) -> bool {
        let relay = self.relay.as_ref();
        relay.is_some_and(|relay| relay.process.id() == pid)
    }

    /// What all relays of this sluiced have done.
    pub fn counts(&self) -> Counts {
        let (now, former) = (&self.counts, &self.former);
        Counts {
            open: now.open,
            captured: former.captured + now.captured,
            lost: former.lost + now.lost,
            direct: former.direct + now.direct,
            served_open: now.served_open,
            served: former.served + now.served,
            refused: former.refused + now.refused,
            reasons: former.reasons.plus(&now.reasons),
        }
    }

    /// What is to be said to peers.
    pub fn take_words(&mut self) -> Vec<(PeerName, Vec<u8>)> {
        std::mem::take(&mut self.words)
    }

    /// Hears the relay, and starts another one when it is time.
    pub fn turn(&mut self, now: Instant) {
        self.ending
            .retain_mut(|ending| matches!(ending.process.try_wait(), Ok(None)));
        self.send_orders();
        self.tell_of_peers();
        while let Some(relay) = &mut self.relay {
            match hear::<Notice>(&relay.socket) {
                Ok(Heard::Message(notice)) => self.heard_relay(notice),
                Ok(Heard::Nothing) => break,
                Ok(Heard::End) => self.relay_gone(now),
                Err(error) => {
                    tracing::error!("the relay says what makes no sense: {error}");
                    let _ = relay.process.kill();
                    self.relay_gone(now);
                }
            }
        }
        if self.restart_at.is_some_and(|at| at <= now) {
            self.restart_at = None;
            if let Err(error) = self.start_relay() {
                tracing::error!("the relay cannot be started: {error}");
                self.restart_later(now);
            }
        }
    }

    /// A control connection is up.
    pub fn peer_up(&mut self, name: &PeerName, addresses: Vec<Network>) -> io::Result<()> {
        self.peer_down(name);
        let own = new_secret()?;
        let number = self.next_peer;
        self.next_peer += 1;
        let session = Session {
            number,
            own,
            addresses,
            advertisement: None,
            is_changed: false,
        };
        self.order(&Order::Admit(own));
        if self.ready().is_some() {
            self.words
                .push((name.clone(), self.advertisement(own).encode()));
        }
        self.sessions.insert(name.clone(), session);
        Ok(())
    }

    /// It is not any more.
    pub fn peer_down(&mut self, name: &PeerName) {
        self.words.retain(|(to, _)| to != name);
        if let Some(session) = self.sessions.remove(name) {
            self.order(&Order::Expel {
                secret: session.own.id,
            });
            self.order(&session.leave());
        }
    }

    /// A peer says where its relay is.
    pub fn heard(&mut self, name: &PeerName, advertisement: Advertisement) {
        let Some(session) = self.sessions.get_mut(name) else {
            return;
        };
        session.is_changed |= session.advertisement.as_ref() != Some(&advertisement);
        session.advertisement = Some(advertisement);
    }

    /// Tells the relay of what peers have said: the last word of each, when it has taken all that it was told before.
    fn tell_of_peers(&mut self) {
        let relay = self.relay.as_ref();
        if relay.is_some_and(|relay| !relay.orders.is_empty()) {
            return;
        }
        let changed = self.sessions.values_mut();
        let changed = changed.filter_map(|session| {
            let is_changed = std::mem::take(&mut session.is_changed);
            is_changed.then(|| session.reach())
        });
        for order in changed.collect::<Vec<Order>>() {
            self.order(&order);
        }
    }

    /// A program that has lanes of its own has come: what it connects to is left alone.
    pub fn program_came(&mut self, pid: u32) {
        if !self.is_first_pid_namespace {
            return;
        }
        self.programs.push(pid);
        self.order(&Order::Leave { pid });
    }

    /// It is gone.
    pub fn program_gone(&mut self, pid: u32) {
        if let Some(at) = self.programs.iter().position(|known| *known == pid) {
            self.programs.swap_remove(at);
        }
        if !self.programs.contains(&pid) {
            self.order(&Order::Forget { pid });
        }
    }

    fn ready(&self) -> Option<&Ready> {
        self.relay.as_ref()?.ready.as_ref()
    }

    /// Our relay, for the peer with this secret.
    fn advertisement(&self, secret: Secret) -> Advertisement {
        match self.ready() {
            Some(ready) => Advertisement {
                port_v4: ready.port_v4,
                port_v6: ready.port_v6,
                secret,
                addresses: ready.addresses.clone(),
            },
            None => Advertisement {
                port_v4: 0,
                port_v6: 0,
                secret,
                addresses: Vec::new(),
            },
        }
    }

    fn order(&mut self, order: &Order) {
        if let Some(relay) = &mut self.relay {
            relay.orders.push_back(order.clone());
            self.send_orders();
        }
    }

    /// Sends what there is room for.
    fn send_orders(&mut self) {
        let Some(relay) = &mut self.relay else {
            return;
        };
        let had_none = relay.orders.len() <= 1;
        while let Some(order) = relay.orders.front() {
            match tell(&relay.socket, order) {
                Ok(()) => drop(relay.orders.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Its end is heard of.
                Err(_) => relay.orders.clear(),
            }
        }
        let is_stuck = relay.orders.len() >= ORDERS_MAX;
        if is_stuck {
            tracing::error!("the relay does not listen any more and is ended");
            let _ = relay.process.kill();
            relay.orders.clear();
        }
        let waits = !relay.orders.is_empty();
        if waits || !had_none {
            let mut events = epoll::EventFlags::IN;
            events.set(epoll::EventFlags::OUT, waits);
            let data = epoll::EventData::new_u64(0);
            let _ = epoll::modify(&self.poll, &relay.socket, data, events);
        }
    }

    fn heard_relay(&mut self, notice: Notice) {
        match notice {
            Notice::Ready {
                port_v4,
                port_v6,
                addresses,
            } => {
                tracing::info!("captures connections; relay at ports {port_v4} and {port_v6}");
                if let Some(relay) = &mut self.relay {
                    relay.ready = Some(Ready {
                        port_v4,
                        port_v6,
                        addresses,
                    });
                }
                self.advertise_to_all();
            }
            Notice::Failed { why } => tracing::error!("nothing is captured: {why}"),
            Notice::Counts(counts) => self.counts = counts,
        }
    }

    fn advertise_to_all(&mut self) {
        let advertisements: Vec<_> = self
            .sessions
            .iter()
            .map(|(name, session)| (name.clone(), self.advertisement(session.own).encode()))
            .collect();
        self.words.extend(advertisements);
    }

    fn relay_gone(&mut self, now: Instant) {
        let Some(mut relay) = self.relay.take() else {
            return;
        };
        let _ = epoll::delete(&self.poll, &relay.socket);
        // Without a socket it ends with its last connection.
        let status = relay.process.try_wait();
        match status {
            Ok(Some(status)) => tracing::warn!("the relay has ended: {status}"),
            // It may still have connections, or be about to end.
            _ => {
                let end = self.watch_end(&relay.process);
                if let Err(error) = &end {
                    tracing::debug!("the end of a relay is seen later: {error}");
                }
                self.ending.push(Ending {
                    process: relay.process,
                    _end: end.ok(),
                });
            }
        }
        if relay.since + LONG_LIFE < now {
            self.restart_after = RESTART_MIN;
        }
        self.former = Counts {
            open: 0,
            served_open: 0,
            ..self.counts()
        };
        self.counts = Counts::default();
        // The next one does not know which numbers were there.
        for session in self.sessions.values_mut() {
            match new_secret() {
                Ok(secret) => session.own = secret,
                Err(error) => tracing::error!("no random numbers: {error}"),
            }
        }
        self.advertise_to_all();
        self.restart_later(now);
    }

    /// There is a [`Capture::turn`] when it ends, for its parent to take its status.
    fn watch_end(&self, process: &Child) -> io::Result<OwnedFd> {
        let end = pidfd_open(Pid::from_child(process), PidfdFlags::empty())?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.poll, &end, data, epoll::EventFlags::IN)?;
        Ok(end)
    }

    fn restart_later(&mut self, now: Instant) {
        self.restart_at = Some(now + self.restart_after);
        self.restart_after = (self.restart_after * 2).min(RESTART_MAX);
    }

    fn start_relay(&mut self) -> io::Result<()> {
        let library = files::find(files::LIBRARY)
            .map_err(|missing| io::Error::new(io::ErrorKind::NotFound, missing.what()))?;
        let (socket, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let errors = if self.start.is_detached {
            Stdio::null()
        } else {
            Stdio::inherit()
        };
        let process = Command::new(std::env::current_exe()?)
            .arg(RELAY_OPTION)
            .arg("--config")
            .arg(&self.start.config)
            .args(&self.start.arguments)
            .env("LD_PRELOAD", library)
            // Its ports are this host's, not ones to be published.
            .env_remove("SLUICE_GATEWAY")
            .env("SLUICE_SOCKET", &self.start.socket)
            // There is no reason to wait and see: what it connects to is another relay.
            .env("SLUICE_MIN_OPS", "1")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(errors)
            .current_dir("/")
            // What a terminal sends is for sluiced, which says what is to be done.
            .process_group(0)
            .spawn()?;
        epoll::add(
            &self.poll,
            &socket,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )?;
        self.relay = Some(Running {
            process,
            socket,
            orders: VecDeque::new(),
            since: Instant::now(),
            ready: None,
        });
        let orders: Vec<Order> = self
            .programs
            .iter()
            .map(|&pid| Order::Leave { pid })
            .chain(
                self.sessions
                    .values()
                    .flat_map(|session| [Order::Admit(session.own), session.reach()]),
            )
            .collect();
        for order in &orders {
            self.order(order);
        }
        Ok(())
    }
}

fn new_secret() -> io::Result<Secret> {
    let mut id = [0; 8];
    let mut key = [0; 32];
    for part in [&mut id[..], &mut key[..]] {
        let count = getrandom(&mut *part, GetRandomFlags::empty())?;
        if count < part.len() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
    }
    let id = u64::from_ne_bytes(id);
    Ok(Secret { id, key })
}

/// The first one has always had this number (include/linux/proc_ns.h, PROC_PID_INIT_INO).
fn is_first_pid_namespace() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]")
}

impl Drop for Capture {
    /// sluiced ends cleanly: new connections go their own way, others have their time.
    fn drop(&mut self) {
        let seconds = self.choice.drain.as_secs();
        self.order(&Order::Drain { seconds });
    }
}

impl Session {
    /// Connections to its relay: those that can be captured and end there.
    fn reach(&self) -> Order {
        let Some(advertisement) = &self.advertisement else {
            return self.leave();
        };
        let is_there = |address: &&IpAddr| {
            let mut networks = self.addresses.iter();
            networks.any(|network| network.contains(**address))
        };
        Order::Reach {
            peer: self.number,
            addresses: advertisement
                .addresses
                .iter()
                .filter(is_there)
                .copied()
                .collect(),
            port_v4: advertisement.port_v4,
            port_v6: advertisement.port_v6,
            secret: advertisement.secret,
        }
    }

    const fn leave(&self) -> Order {
        Order::Reach {
            peer: self.number,
            addresses: Vec::new(),
            port_v4: 0,
            port_v6: 0,
            secret: self.own,
        }
    }
}
