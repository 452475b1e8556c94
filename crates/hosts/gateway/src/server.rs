//! The loop: clients outside, connections being made inside, and the daemon.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sluice_control::message::Reason;
use sluice_control::message::gateway::{Ask, Tell};
use sluice_control::preface::Key;
use sluice_relay::{Event, EventLoop, Interest, PairId, socket};

use crate::balance::Balance;
use crate::daemon::{Daemon, Said};
use crate::outward::{self, Outward};

mod clients;

/// Keys of what is watched besides pairs.
mod key {
    pub const DAEMON: u64 = 0;
    pub const STOP: u64 = 1;
    /// The daemon's socket again, for what did not fit.
    pub const ROOM: u64 = 2;
    /// Above: numbers of listeners.
    pub const LISTENER: u64 = 1 << 60;
    /// Above: numbers of attempts.
    pub const ATTEMPT: u64 = 1 << 61;
}

/// Clients accepted from one listener before others have their turn.
const ACCEPTS_PER_TURN_MAX: usize = 64;
/// Time between attempts to reach the daemon.
const SEEK_DAEMON: Duration = Duration::from_millis(500);
/// A daemon that comes again does not know at once what nodes publish: listeners that it does not
/// name stay open for so long.
const STALE_MAX: Duration = Duration::from_secs(10);
/// From here on numbers of what a former daemon has named: each counts from one.
const FORMER: u32 = 1 << 31;
/// How long no client is accepted when no descriptor is left for it.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long clients of a port that was just opened wait for a node: it is named behind the port. Where
/// there is none, they are not to wait.
const FIRST_BACKEND_MAX: Duration = Duration::from_secs(1);

/// What can be chosen.
#[derive(Clone, Debug)]
pub struct Options {
    /// The daemon's control socket.
    pub socket: PathBuf,
    /// How long a node may take to answer before another one is asked.
    pub connect: Duration,
    /// How long connections may go on when the process is told to end.
    pub linger: Duration,
    /// Clients that may wait to be accepted (listen(2)).
    pub backlog: i32,
}

impl Options {
    /// Three seconds to connect, ten to end.
    pub fn new(socket: PathBuf) -> Options {
        Options {
            socket,
            connect: Duration::from_secs(3),
            linger: Duration::from_secs(10),
            backlog: 4096,
        }
    }
}

/// Why a gateway does not serve. The text says what to do.
#[derive(Debug)]
pub enum Error {
    /// The daemon cannot be reached.
    NoDaemon(PathBuf, io::Error),
    /// It does not want this process, and will not later.
    Refused(Reason),
    /// The kernel refuses to wait.
    System(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDaemon(path, error) => write!(
                f,
                "no daemon answers on {} ({error}); 'sluice up --config FILE' starts one",
                path.display()
            ),
            Self::Refused(Reason::Protocol) => {
                f.write_str("the daemon has no [gateway] in its configuration")
            }
            Self::Refused(reason) => reason.fmt(f),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::System(error)
    }
}

/// Where connections of a listener may go.
#[derive(Clone, Copy, Debug)]
struct Backend {
    number: u32,
    target: SocketAddr,
    source: IpAddr,
    key: Key,
}

#[derive(Debug)]
struct Listener {
    fd: OwnedFd,
    address: SocketAddr,
    backends: Vec<Backend>,
    /// The daemon of now has not named it.
    is_stale: bool,
    /// Its clients are accepted, unless that is paused.
    is_accepting: bool,
}

/// A client for whom a connection is being made.
#[derive(Debug)]
struct Attempt {
    client: OwnedFd,
    from: SocketAddr,
    /// Of the listener.
    service: u32,
    inside: OwnedFd,
    backend: Backend,
    /// Those that did not answer.
    tried: Vec<u32>,
    /// Its time is over. The kernel goes on with it as long as there is no other node, as it does for who connects
    /// without a gateway.
    is_overdue: bool,
}

/// A gateway that serves.
#[derive(Debug)]
pub struct Server {
    options: Options,
    event_loop: EventLoop,
    daemon: Daemon,
    /// A copy of its socket, watched while something waits for room in it.
    room: Option<OwnedFd>,
    seek_at: Option<Instant>,
    /// A daemon has said what there is to serve.
    has_served: bool,
    /// It was said that the daemon of now does not want this process.
    refusal_said: bool,
    listeners: HashMap<u32, Listener>,
    stale_until: Option<Instant>,
    /// Until then listeners without a node may be unwatched.
    first_backend_until: Option<Instant>,
    next_former: u32,
    paused_until: Option<Instant>,
    attempts: HashMap<u64, Attempt>,
    /// By when each must be connected, the first first.
    deadlines: VecDeque<(Instant, u64)>,
    next_attempt: u64,
    pairs: HashMap<PairId, u32>,
    balance: Balance,
    outward: Outward,
}

impl Server {
    /// Reaches the daemon.
    pub fn new(options: Options) -> Result<Server, Error> {
        let mut daemon = Daemon::new(&options.socket);
        let connected = daemon.connect();
        connected.map_err(|error| Error::NoDaemon(options.socket.clone(), error))?;
        let mut event_loop = EventLoop::new(sluice_relay::Options::default())?;
        if let Some(fd) = daemon.fd() {
            event_loop.watch(fd, Interest::Readable, key::DAEMON)?;
        }
        Ok(Server {
            options,
            event_loop,
            daemon,
            room: None,
            seek_at: None,
            has_served: false,
            refusal_said: false,
            listeners: HashMap::new(),
            stale_until: None,
            first_backend_until: None,
            next_former: FORMER,
            paused_until: None,
            attempts: HashMap::new(),
            deadlines: VecDeque::new(),
            next_attempt: 0,
            pairs: HashMap::new(),
            balance: Balance::default(),
            outward: Outward::default(),
        })
    }

    /// Serves until `stop` becomes readable. Then connections have some time to end by themselves. `ready` is called once,
    /// when all is open of what a daemon has to serve.
    pub fn run(mut self, stop: BorrowedFd<'_>, ready: impl FnOnce()) -> Result<(), Error> {
        let mut ready = Some(ready);
        self.event_loop.watch(stop, Interest::Readable, key::STOP)?;
        let mut events = Vec::new();
        let mut ends_at = None;
        loop {
            if let Some(ends_at) = ends_at {
                let is_done = self.event_loop.counters().pairs == 0
                    && self.attempts.is_empty()
                    && self.outward.is_idle();
                if is_done || Instant::now() >= ends_at {
                    break;
                }
            }
            let due = [self.next_deadline(), ends_at].into_iter().flatten().min();
            let before = Instant::now();
            let timeout = due.map(|due| due.saturating_duration_since(before));
            events.clear();
            self.event_loop.turn(timeout, &mut events)?;
            let now = Instant::now();
            for event in &events {
                match *event {
                    Event::Ended { pair, .. } => self.ended(pair),
                    Event::Ready { key: key::STOP, .. } => {
                        self.event_loop.unwatch(stop, key::STOP)?;
                        ends_at = Some(now + self.options.linger);
                        self.end_listening();
                        // The next gateway's.
                        self.leave_daemon();
                    }
                    Event::Ready {
                        key: key::DAEMON, ..
                    } => self.hear(now)?,
                    Event::Ready { key: key::ROOM, .. } => {
                        let is_there = self.daemon.say_waiting();
                        self.said(is_there, now);
                    }
                    Event::Ready { key, .. } if outward::is_ours(key) => {
                        self.outward.ready(&mut self.event_loop, key, now);
                    }
                    Event::Ready { key, .. } if key & key::ATTEMPT != 0 => {
                        self.connected(key & !key::ATTEMPT, now);
                    }
                    Event::Ready { key, .. } => self.accept((key & !key::LISTENER) as u32, now),
                }
            }
            if self.has_served
                && let Some(ready) = ready.take()
            {
                ready();
            }
            // Not up to now: should this process have stood still, what came in time is heard first.
            self.pass_time(before, ends_at.is_some());
        }
        let counters = self.event_loop.counters();
        tracing::info!(
            "ends: {} connections finished, {} reset, {} cut off",
            counters.finished,
            counters.reset,
            counters.pairs
        );
        self.event_loop.reset_all();
        Ok(())
    }

    fn next_deadline(&self) -> Option<Instant> {
        let attempt = self.deadlines.front().map(|(due, _)| *due);
        let outward = self.outward.next_deadline();
        let all = [
            self.seek_at,
            self.stale_until,
            self.first_backend_until,
            self.paused_until,
            attempt,
            outward,
        ];
        all.into_iter().flatten().min()
    }

    fn pass_time(&mut self, now: Instant, is_ending: bool) {
        while let Some((due, number)) = self.deadlines.front().copied() {
            let is_over = !self.attempts.contains_key(&number);
            if due > now && !is_over {
                break;
            }
            self.deadlines.pop_front();
            if !is_over {
                self.overdue(number, now);
            }
        }
        self.outward.pass_time(&mut self.event_loop, now);
        if is_ending {
            return;
        }
        if self.seek_at.is_some_and(|at| at <= now) {
            self.seek(now);
        }
        if self.stale_until.is_some_and(|until| until <= now) {
            self.stale_until = None;
            let stale: Vec<u32> = self
                .listeners
                .iter()
                .filter(|(_, it)| it.is_stale)
                .map(|(service, _)| *service)
                .collect();
            for service in stale {
                self.shut(service);
            }
            let left: Vec<u32> = self.listeners.keys().copied().collect();
            for service in left {
                self.forget_former_backends(service);
            }
        }
        if self.first_backend_until.is_some_and(|until| until <= now) {
            self.first_backend_until = None;
            let all: Vec<u32> = self.listeners.keys().copied().collect();
            for service in all {
                self.begin_accepting(service);
            }
        }
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            for (service, listener) in self.listeners.iter().filter(|(_, it)| it.is_accepting) {
                let key = key::LISTENER | u64::from(*service);
                let _ = self
                    .event_loop
                    .watch(listener.fd.as_fd(), Interest::Readable, key);
            }
        }
    }

    // The daemon.

    fn seek(&mut self, now: Instant) {
        self.seek_at = None;
        let reached = self.daemon.connect().and_then(|()| match self.daemon.fd() {
            Some(fd) => self.event_loop.watch(fd, Interest::Readable, key::DAEMON),
            None => Ok(()),
        });
        match reached {
            Ok(()) => {
                self.renumber();
                // It gives other keys.
                self.outward.shut_all(&mut self.event_loop);
            }
            Err(_) => {
                self.daemon.forget();
                self.seek_at = Some(now + SEEK_DAEMON);
            }
        }
    }

    /// What there is gets numbers that the daemon that has come does not use: those that it gives are
    /// about something else, and what they do not name is to go on.
    fn renumber(&mut self) {
        let mut numbers = HashMap::new();
        let next = &mut self.next_former;
        let mut former = |number: u32| {
            if number >= FORMER {
                return number;
            }
            *numbers.entry(number).or_insert_with(|| {
                let former = *next;
                *next = FORMER | next.wrapping_add(1);
                former
            })
        };
        for (service, mut listener) in std::mem::take(&mut self.listeners) {
            let number = former(service);
            let old = key::LISTENER | u64::from(service);
            let new = key::LISTENER | u64::from(number);
            // Not watched while accepting is paused, or without a node so far.
            if self.event_loop.unwatch(listener.fd.as_fd(), old).is_ok() {
                let watched = self
                    .event_loop
                    .watch(listener.fd.as_fd(), Interest::Readable, new);
                if let Err(error) = watched {
                    tracing::warn!("{} is not served: {error}", listener.address);
                }
            }
            for backend in &mut listener.backends {
                backend.number = former(backend.number);
            }
            listener.is_stale = true;
            self.listeners.insert(number, listener);
        }
        for attempt in self.attempts.values_mut() {
            attempt.service = former(attempt.service);
            attempt.backend.number = former(attempt.backend.number);
            for tried in &mut attempt.tried {
                *tried = former(*tried);
            }
        }
        for backend in self.pairs.values_mut() {
            *backend = former(*backend);
        }
        self.balance.renumber(former);
    }

    /// The daemon of now has said who serves the port, or has had its time.
    fn forget_former_backends(&mut self, service: u32) {
        let Some(listener) = self.listeners.get_mut(&service) else {
            return;
        };
        let mut gone = Vec::new();
        listener.backends.retain(|it| {
            if it.number >= FORMER {
                gone.push(it.number);
            }
            it.number < FORMER
        });
        for backend in gone {
            if !self.is_known(backend) {
                self.balance.gone(backend);
            }
        }
    }

    /// Clients of the port are accepted from now on.
    fn begin_accepting(&mut self, service: u32) {
        let Some(listener) = self.listeners.get_mut(&service) else {
            return;
        };
        if std::mem::replace(&mut listener.is_accepting, true) || self.paused_until.is_some() {
            return;
        }
        let key = key::LISTENER | u64::from(service);
        let fd = listener.fd.as_fd();
        if let Err(error) = self.event_loop.watch(fd, Interest::Readable, key) {
            tracing::warn!("{} is not served: {error}", listener.address);
        }
    }

    /// Says something to the daemon, if it is there.
    fn say(&mut self, ask: Ask, now: Instant) {
        if self.daemon.is_there() {
            let is_there = self.daemon.say(ask);
            self.said(is_there, now);
        }
    }

    /// What did not fit is said when there is room.
    fn said(&mut self, is_there: bool, now: Instant) {
        if !is_there {
            return self.lose_daemon(now);
        }
        if !self.daemon.has_waiting() {
            self.await_no_room();
        } else if self.room.is_none()
            && let Some(fd) = self.daemon.fd()
        {
            let watched = fd.try_clone_to_owned().and_then(|room| {
                self.event_loop
                    .watch(room.as_fd(), Interest::Writable, key::ROOM)?;
                Ok(room)
            });
            match watched {
                Ok(room) => self.room = Some(room),
                // Without an answer it would wait for ever.
                Err(error) => {
                    tracing::warn!("the daemon cannot be answered: {error}");
                    self.lose_daemon(now);
                }
            }
        }
    }

    fn await_no_room(&mut self) {
        if let Some(room) = self.room.take() {
            let _ = self.event_loop.unwatch(room.as_fd(), key::ROOM);
        }
    }

    fn lose_daemon(&mut self, now: Instant) {
        self.leave_daemon();
        self.seek_at = Some(now + SEEK_DAEMON);
    }

    fn leave_daemon(&mut self) {
        self.await_no_room();
        if let Some(fd) = self.daemon.fd() {
            let _ = self.event_loop.unwatch(fd, key::DAEMON);
        }
        self.daemon.forget();
        self.seek_at = None;
    }

    fn hear(&mut self, now: Instant) -> Result<(), Error> {
        for said in self.daemon.receive() {
            match said {
                Said::Tell(tell) => self.told(tell, now),
                Said::Refused(Reason::Taken) => {
                    if !std::mem::replace(&mut self.refusal_said, true) {
                        tracing::warn!(
                            "another gateway process serves; this one waits until that has ended"
                        );
                    }
                    self.lose_daemon(now);
                }
                Said::Refused(reason) if !self.has_served => {
                    return Err(Error::Refused(reason));
                }
                Said::Refused(reason) => {
                    if !std::mem::replace(&mut self.refusal_said, true) {
                        let refused = Error::Refused(reason);
                        tracing::warn!("{refused}; connections go on, and it is asked again");
                    }
                    self.lose_daemon(now);
                }
                Said::Gone => {
                    tracing::warn!("the daemon has gone; connections go on");
                    self.lose_daemon(now);
                }
            }
        }
        Ok(())
    }

    fn told(&mut self, tell: Tell, now: Instant) {
        match tell {
            Tell::Open { service, address } => {
                let opened = self.open(service, address, now);
                let errno = opened.err().map_or(0, |error| {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    u16::try_from(errno).unwrap_or(libc::EIO as u16)
                });
                self.say(Ask::Opened { service, errno }, now);
            }
            Tell::Shut { service } => self.shut(service),
            Tell::Backend {
                service,
                backend,
                target,
                source,
                key,
            } => {
                self.forget_former_backends(service);
                if let Some(listener) = self.listeners.get_mut(&service) {
                    listener.backends.retain(|it| it.number != backend);
                    listener.backends.push(Backend {
                        number: backend,
                        target,
                        source,
                        key,
                    });
                }
                self.begin_accepting(service);
                self.stop_waiting(service, now);
            }
            Tell::BackendGone { service, backend } => {
                if let Some(listener) = self.listeners.get_mut(&service) {
                    listener.backends.retain(|it| it.number != backend);
                }
                if !self.is_known(backend) {
                    self.balance.gone(backend);
                }
                self.stop_waiting(service, now);
            }
            Tell::Exit {
                exit,
                address,
                key,
                allowed,
                sources,
            } => {
                let event_loop = &mut self.event_loop;
                let rules = outward::Rules {
                    key,
                    allowed,
                    sources,
                };
                let opened = self.outward.open(event_loop, exit, address, rules);
                let port = opened.unwrap_or_else(|error| {
                    tracing::warn!("cannot listen for programs at {address}: {error}");
                    0
                });
                self.say(Ask::Exit { exit, port }, now);
            }
            Tell::ExitGone { exit } => self.outward.shut(&mut self.event_loop, exit),
            Tell::Complete => {
                self.has_served = true;
                self.refusal_said = false;
                let is_former = |it: &Backend| it.number >= FORMER;
                let mut all = self.listeners.values();
                let is_stale = all.any(|it| it.is_stale || it.backends.iter().any(is_former));
                self.stale_until = is_stale.then(|| now + STALE_MAX);
            }
            Tell::Published { .. } | Tell::Way { .. } | Tell::Done { .. } => {}
        }
    }

    /// What is open already stays open, and goes on being served by whom the former daemon has named
    /// until this one names somebody.
    fn open(&mut self, service: u32, address: SocketAddr, now: Instant) -> io::Result<()> {
        let mut all = self.listeners.iter();
        let former = all
            .find(|(_, it)| it.address == address)
            .map(|(key, _)| *key);
        if former == Some(service) {
            return Ok(());
        }
        let former_number = former;
        self.shut(service);
        let former = former.and_then(|former| Some((former, self.listeners.remove(&former)?)));
        let listener = match former {
            Some((former, mut listener)) => {
                let key = key::LISTENER | u64::from(former);
                let _ = self.event_loop.unwatch(listener.fd.as_fd(), key);
                listener.is_stale = false;
                listener.is_accepting = false;
                listener
            }
            None => Listener {
                fd: socket::listen(&address, self.options.backlog)?,
                address,
                backends: Vec::new(),
                is_stale: false,
                is_accepting: false,
            },
        };
        tracing::info!("listens at {address}");
        let is_served = !listener.backends.is_empty();
        self.listeners.insert(service, listener);
        if is_served {
            self.begin_accepting(service);
        } else {
            self.first_backend_until = Some(now + FIRST_BACKEND_MAX);
        }
        for attempt in self.attempts.values_mut() {
            if former_number == Some(attempt.service) {
                attempt.service = service;
            }
        }
        Ok(())
    }

    fn take_listener(&mut self, service: u32) -> Option<Listener> {
        let listener = self.listeners.remove(&service)?;
        let key = key::LISTENER | u64::from(service);
        let _ = self.event_loop.unwatch(listener.fd.as_fd(), key);
        for backend in &listener.backends {
            if !self.is_known(backend.number) {
                self.balance.gone(backend.number);
            }
        }
        Some(listener)
    }

    fn shut(&mut self, service: u32) {
        if let Some(listener) = self.take_listener(service) {
            tracing::info!("does not listen at {} any more", listener.address);
        }
    }

    fn end_listening(&mut self) {
        let all: Vec<u32> = self.listeners.keys().copied().collect();
        for service in all {
            self.shut(service);
        }
        self.outward.shut_all(&mut self.event_loop);
    }

    fn is_known(&self, backend: u32) -> bool {
        let mut all = self.listeners.values().flat_map(|it| it.backends.iter());
        all.any(|it| it.number == backend)
    }
}
