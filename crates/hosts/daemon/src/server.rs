//! The daemon's one thread: hears what clients say, by the processes that read them, and never blocks
//! on any.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{Timespec, epoll};
use sluice_control::message::{
    DecodeError, FromDaemon, Hello, MESSAGE_BYTES_MAX, Reason, ToDaemon, VERSION,
};
use sluice_sys::errno::Errno;
use sluice_sys::tcp;
use sluice_sys::unix::{self, Credentials, Fd, Received};

use crate::config::{Config, Limits, VISITORS_MAX};
use crate::counters::Counters;
use crate::disposal::dispose;
use crate::fabric::Fabric;
use crate::gateway::Gateway;
use crate::lanes::Lanes;
use crate::listener::{ListenError, Listener};
use crate::matching::{ClientId, Matcher};
use crate::memory_limits::MemoryLimits;
use crate::metrics::collect::Seen;
use crate::metrics::exporter::Exporter;
use crate::namespace::{Homes, Namespace, Prover};
use crate::options::Options;
use crate::owners::Owners;
use crate::program::{EndTable, Program};
use crate::receiver::Brought;
use crate::receiver::pool::{Heard, Origin, Pool};
use crate::shares::{Payer, Shares};

mod announce;
mod figures;
mod gateway;
mod reload;
mod remote;
mod report;
mod sweep;

/// Reports of one receiving process that are heard before others get their turn.
const REPORTS_PER_TURN_MAX: usize = 64;
/// Events taken from the kernel at a time.
const EVENTS_MAX: usize = 256;
/// Connections that are accepted before others get their turn. Those behind them keep the listener ready.
const ACCEPTS_PER_TURN_MAX: usize = 16;

/// How long the thread rests when no descriptor is left even to turn somebody away.
const EXHAUSTED: Duration = Duration::from_millis(1);

const LISTENER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;
const FABRIC: u64 = u64::MAX - 2;
const METRICS: u64 = u64::MAX - 3;
const RELOAD: u64 = u64::MAX - 4;
/// With the number of a receiving process in the lower half. Clients have numbers of 32 bits alone.
const RECEIVER: u64 = 1 << 32;

/// What sluiced itself wants to know of a client's socket, other than that the client has gone.
const WATCHED: epoll::EventFlags = epoll::EventFlags::ET;

/// One connection to the control socket.
#[derive(Debug)]
struct Client {
    credentials: Credentials,
    /// Whom it and its lanes count for.
    payer: Payer,
    /// After its `Hello`.
    program: Option<Program>,
    /// Until then: the end table of the program that introduced it.
    introducer: Option<Arc<EndTable>>,
    /// Somebody else has passed its socket, whose credentials are those of whoever made it.
    is_introduced: bool,
    /// The network namespaces of its ends, as long as it lives.
    namespaces: HashMap<u64, Namespace>,
    /// It was given sluiced's own parking table.
    has_our_parking: bool,
}

/// A running sluiced.
#[derive(Debug)]
pub struct Server {
    config: Config,
    limits: Limits,
    uid: u32,
    listener: Listener,
    poll: OwnedFd,
    clients: HashMap<ClientId, Client>,
    receivers: Pool,
    owners: Owners,
    next_client: ClientId,
    matcher: Matcher,
    lanes: Lanes,
    memory_limits: MemoryLimits,
    prover: Prover,
    homes: Homes,
    /// When ends are looked for that were closed without a word.
    sweep_at: Option<Instant>,
    asking: VecDeque<announce::Asking>,
    /// How many questions of peers are answered after which hearing.
    questions: VecDeque<(u64, usize)>,
    /// Lanes to other hosts.
    fabric: Option<Fabric>,
    reload: Option<reload::Reload>,
    exporter: Option<Exporter>,
    seen: Seen,
    documents: report::Documents,
    gateway: Option<Gateway>,
    client_shares: Shares,
    counters: Counters,
    started: Instant,
    started_at: SystemTime,
    /// For the status.
    options: Options,
    /// Since when there has been no client.
    idle_since: Instant,
    stopping: bool,
    /// Given up for a moment to turn a client away when no descriptor is left.
    spare: Option<File>,
}

impl Server {
    /// Listens at the socket of `config`. Clients can connect when this returns.
    pub fn bind(
        config: Config,
        limits: Limits,
        fabric: Option<Fabric>,
    ) -> Result<Server, ListenError> {
        let listener = Listener::bind(&config.socket, config.allow_all_users)?;
        let prover = Prover::new(config.one_namespace, !config.allow_all_users);
        Server::on((listener, prover), config, limits, fabric)
    }

    /// Serves whom a listener lets connect.
    pub fn on(
        (listener, prover): (Listener, Prover),
        config: Config,
        limits: Limits,
        mut fabric: Option<Fabric>,
    ) -> Result<Server, ListenError> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| ListenError::Socket(config.socket.clone(), error.into()))?;
        let now = Instant::now();
        let memory_limits = MemoryLimits::of_this_machine();
        let mut lanes = Lanes::new(
            config.ring_bytes,
            config.lanes_max,
            limits.chunks_max,
            config.user_share,
        );
        lanes.heed(memory_limits.clone());
        if let Some(fabric) = &mut fabric {
            fabric.heed(memory_limits.clone());
        }
        let server = Server {
            lanes,
            memory_limits,
            client_shares: Shares::new(limits.clients_max, config.user_share),
            limits,
            uid: unix::effective_uid(),
            owners: Owners::of_this_machine(unix::effective_uid()),
            listener,
            poll,
            clients: HashMap::new(),
            receivers: Pool::new(RECEIVER, unix::effective_uid(), now),
            next_client: 1,
            matcher: Matcher::default(),
            prover,
            homes: Homes::new(),
            sweep_at: None,
            asking: VecDeque::new(),
            questions: VecDeque::new(),
            gateway: gateway::begin(fabric.as_ref(), &config, now),
            config,
            fabric,
            reload: None,
            exporter: None,
            seen: Seen::default(),
            documents: report::Documents::default(),
            counters: Counters::default(),
            started: now,
            started_at: SystemTime::now(),
            options: Options::default(),
            idle_since: now,
            stopping: false,
            spare: File::open("/dev/null").ok(),
        };
        server
            .watch(server.listener.socket(), LISTENER)
            .map_err(|error| ListenError::Socket(server.config.socket.clone(), error))?;
        for fd in server.fabric.iter().flat_map(Fabric::fds) {
            let data = epoll::EventData::new_u64(FABRIC);
            epoll::add(&server.poll, fd, data, epoll::EventFlags::IN)
                .map_err(|error| ListenError::Socket(server.config.socket.clone(), error.into()))?;
        }
        Ok(server)
    }

    /// What it was started with, for the status.
    pub fn set_options(&mut self, options: Options) {
        self.options = options;
    }

    /// Serves until `stop` becomes readable, a client asks for the end, or nobody has been
    /// there for the configured time. Removes the socket.
    ///
    /// Errors: the kernel refuses to wait, or to let us listen again.
    pub fn run(mut self, stop: impl AsFd) -> io::Result<()> {
        epoll::add(
            &self.poll,
            &stop,
            epoll::EventData::new_u64(STOP),
            epoll::EventFlags::IN,
        )?;
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while !self.stopping {
            events.clear();
            let timeout = self.patience().map(|time| Timespec {
                tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(time.subsec_nanos()),
            });
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.poll, spare, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let (data, flags) = (event.data, event.flags);
                match data.u64() {
                    LISTENER => self.accept(ACCEPTS_PER_TURN_MAX),
                    STOP => self.stopping = true,
                    FABRIC => {}
                    METRICS => self.give_figures(),
                    RELOAD => self.reload_if_told(),
                    number if number & RECEIVER != 0 => {
                        let receiver = number as u32;
                        if flags.contains(epoll::EventFlags::OUT) {
                            self.receivers.has_room(&self.poll, receiver);
                        }
                        self.hear(receiver);
                    }
                    client => {
                        if flags.contains(epoll::EventFlags::HUP) {
                            self.receivers.has_gone(client as ClientId, Instant::now());
                        }
                    }
                }
            }
            for client in self.receivers.turn(&self.poll, Instant::now()) {
                self.remove(client);
            }
            self.turn_out_who_is_not_read();
            self.answer_due();
            self.turn_fabric();
            self.turn_gateway();
            self.sweep();
            if self.is_idle_for_long() {
                self.leave_unless_somebody_comes()?;
            }
        }
        tracing::info!("ends");
        self.end_connections();
        Ok(())
    }

    /// Nobody waits for us, nor we for what they sent.
    fn end_connections(&mut self) {
        self.listener.refuse_new();
        while let Ok(socket) = self.listener.accept() {
            self.close(socket);
        }
        self.receivers.end_all();
    }

    /// How long to wait at most; `None`: until something happens.
    fn patience(&self) -> Option<Duration> {
        let now = Instant::now();
        let receivers = self.receivers.next_deadline(now);
        let receivers = receivers.map(|due| due.saturating_duration_since(now));
        let idle = self.config.idle_exit.filter(|_| self.clients.is_empty());
        let idle = idle.map(|limit| limit.saturating_sub(now.duration_since(self.idle_since)));
        let fabric = self.fabric.as_ref().and_then(Fabric::next_deadline);
        let fabric = fabric.map(|due| due.saturating_duration_since(now));
        let gateway = self.gateway.as_ref().and_then(Gateway::next_deadline);
        let gateway = gateway.map(|due| due.saturating_duration_since(now));
        let sweep = self.sweep_at.map(|due| due.saturating_duration_since(now));
        let all = [receivers, idle, fabric, gateway, sweep];
        all.into_iter().flatten().min()
    }

    fn is_idle_for_long(&self) -> bool {
        self.clients.is_empty()
            && self
                .config
                .idle_exit
                .is_some_and(|limit| self.idle_since.elapsed() >= limit)
    }

    /// A client that connects at this very moment is either refused by the kernel, so that it
    /// starts a sluiced of its own, or it is served by this one.
    fn leave_unless_somebody_comes(&mut self) -> io::Result<()> {
        self.listener.refuse_new();
        // Nobody comes after those who wait.
        self.accept(usize::MAX);
        if self.clients.is_empty() {
            tracing::info!("nobody needs me");
            self.stopping = true;
            return Ok(());
        }
        // Closing the former socket takes it out of the poll set.
        self.listener.listen_again()?;
        self.watch(self.listener.socket(), LISTENER)
    }

    fn watch(&self, socket: &Fd, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.poll, socket, data, epoll::EventFlags::IN)?;
        Ok(())
    }

    /// Takes connections, so many at most.
    fn accept(&mut self, max: usize) {
        for _ in 0..max {
            match self.listener.accept() {
                Ok(socket) => self.welcome(socket),
                Err(Errno(libc::EMFILE | libc::ENFILE)) => {
                    if !self.turn_one_away() {
                        return;
                    }
                }
                // Nobody waits, or somebody has given up meanwhile.
                Err(Errno(libc::ECONNABORTED)) => {}
                Err(_) => return,
            }
        }
    }

    /// Without this a connection that cannot be accepted would keep the listener ready and
    /// sluiced busy.
    fn turn_one_away(&mut self) -> bool {
        if self.spare.take().is_none() {
            // What took its place may have gone meanwhile. If not, the listener stays ready.
            self.spare = File::open("/dev/null").ok();
            if self.spare.take().is_none() {
                thread::sleep(EXHAUSTED);
                return false;
            }
        }
        let accepted = self.listener.accept();
        let turned_away = accepted.is_ok();
        if let Ok(socket) = accepted {
            self.refuse(socket, Reason::Full);
        }
        self.spare = File::open("/dev/null").ok();
        turned_away
    }

    /// A new connection to the control socket.
    fn welcome(&mut self, socket: Fd) {
        let credentials = match unix::peer_credentials(socket.raw()) {
            Ok(credentials) => credentials,
            Err(error) => {
                tracing::debug!(reason = %error, "a client's credentials cannot be read: {error}");
                self.refuse(socket, Reason::User);
                return;
            }
        };
        let known = credentials.uid == self.uid || credentials.uid == 0;
        if !known && !self.config.allow_all_users {
            tracing::info!("refuses uid {}", credentials.uid);
            self.refuse(socket, Reason::User);
            return;
        }
        let origin = self.origin_of(&socket, credentials);
        // Without other users there is nobody to share with.
        let payer = (!known).then_some(origin.owner);
        self.admit(socket, credentials, payer, origin, None);
    }

    /// A connection that may be served, accepted or introduced by somebody who is: then with the
    /// end table of that one.
    fn admit(
        &mut self,
        socket: Fd,
        credentials: Credentials,
        payer: Payer,
        origin: Origin,
        introducer: Option<Arc<EndTable>>,
    ) {
        let is_full = self.clients.len() >= self.limits.clients_max + VISITORS_MAX;
        if is_full || !self.client_shares.have_room(&[payer]) {
            self.refuse(socket, Reason::Full);
            return;
        }
        while self.clients.contains_key(&self.next_client) {
            self.next_client = self.next_client.wrapping_add(1);
        }
        let id = self.next_client;
        self.next_client = self.next_client.wrapping_add(1);
        let data = epoll::EventData::new_u64(u64::from(id));
        if let Err(error) = epoll::add(&self.poll, &socket, data, WATCHED) {
            tracing::warn!(reason = %error, "a client cannot be watched: {error}");
            self.refuse(socket, Reason::Full);
            return;
        }
        self.counters.clients_accepted += 1;
        let client = Client {
            credentials,
            payer,
            program: None,
            is_introduced: introducer.is_some(),
            introducer,
            namespaces: HashMap::new(),
            has_our_parking: false,
        };
        self.client_shares.take(&[payer]);
        self.lanes.set_payer(id, payer);
        self.memory_limits.came(id, credentials.pid);
        self.clients.insert(id, client);
        self.receivers.read(&self.poll, id, origin, socket);
    }

    /// Tells somebody who is not going to be a client why.
    fn refuse(&mut self, socket: Fd, reason: Reason) {
        self.counters.clients_refused += 1;
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let message = FromDaemon::Refused { reason };
        let _ = unix::send_with_fds(socket.raw(), message.encode(&mut buffer), &[]);
        self.close(socket);
    }

    /// What lies unread in a client's socket is closed with it, so that is not for us to do.
    fn close(&mut self, socket: Fd) {
        let nobody = Credentials {
            pid: 0,
            uid: u32::MAX,
            gid: u32::MAX,
        };
        let credentials = unix::peer_credentials(socket.raw()).unwrap_or(nobody);
        let origin = self.origin_of(&socket, credentials);
        self.receivers.close(&self.poll, origin, socket);
    }

    /// Hears what clients say whom one process reads.
    fn hear(&mut self, receiver: u32) {
        self.documents.expire();
        for _ in 0..REPORTS_PER_TURN_MAX {
            match self.receivers.next(receiver) {
                None => return,
                Some(Heard::Ended(client) | Heard::Failed(client)) => self.remove(client),
                Some(Heard::Said {
                    client,
                    message,
                    brought,
                    sender,
                    mut newcomer,
                    mut received,
                }) => {
                    // It may have been turned out meanwhile.
                    if self.clients.contains_key(&client) {
                        let message = ToDaemon::decode(&message);
                        let with = (&brought, &mut newcomer, &mut received);
                        if let Err(reason) = self.dispatch((client, sender), message, with) {
                            self.turn_out(client, reason);
                        }
                    }
                    if brought == Brought::Memory {
                        dispose(received);
                    }
                    if let Some(socket) = newcomer {
                        self.close(socket);
                    }
                }
            }
        }
    }

    /// Does what one message asks for, whose sender is the user `sender` now. An error ends the connection.
    fn dispatch(
        &mut self,
        (id, sender): (ClientId, Option<u32>),
        message: Result<ToDaemon, DecodeError>,
        (brought, newcomer, received): (&Brought, &mut Option<Fd>, &mut Received),
    ) -> Result<(), Reason> {
        let message = message.map_err(|error| {
            self.counters.messages_malformed += 1;
            tracing::debug!(reason = %error, "client {id}: {error}");
            match error {
                DecodeError::Version(_) => Reason::Version,
                _ => Reason::Protocol,
            }
        })?;
        let is_program = self.clients.get(&id).is_some_and(|c| c.program.is_some());
        match message {
            ToDaemon::Hello(hello) if !is_program => self.hello(id, &hello, received),
            ToDaemon::Introduce if is_program => self.introduce(id, newcomer.take()),
            ToDaemon::Announce(announce) if is_program => {
                self.announce(id, &announce, brought, received);
                Ok(())
            }
            ToDaemon::Release { end, generation } if is_program => {
                self.release(id, end, generation);
                self.note_change();
                Ok(())
            }
            ToDaemon::AskPeer { end, generation } if is_program => {
                self.will_answer(id, end, generation);
                Ok(())
            }
            ToDaemon::Ping => {
                self.send(id, &self.pong(), &[]);
                Ok(())
            }
            ToDaemon::Status => {
                let asker = sender.filter(|_| !self.is_introduced(id));
                self.report(id, asker.ok_or(Reason::User)?);
                Ok(())
            }
            ToDaemon::Shutdown => self.shut_down(id, sender),
            ToDaemon::Gateway(ask) => self.asked_of_gateways((id, sender), ask, brought),
            _ => Err(Reason::Protocol),
        }
    }

    fn hello(
        &mut self,
        id: ClientId,
        hello: &Hello,
        received: &mut Received,
    ) -> Result<(), Reason> {
        // Visitors may be among them; counting takes long, and is seldom needed.
        let is_full = self.clients.len() > self.limits.clients_max
            && self
                .clients
                .values()
                .filter(|it| it.program.is_some())
                .count()
                >= self.limits.clients_max;
        let Some(client) = self.clients.get_mut(&id) else {
            return Ok(());
        };
        if is_full {
            self.counters.clients_refused += 1;
            return Err(Reason::Full);
        }
        let introducer = client.introducer.take();
        let program = Program::new(hello, client.credentials, received, introducer);
        let program = program.map_err(|error| {
            tracing::debug!(reason = %error, "client {id} came with descriptors that do not serve: {error}");
            Reason::Descriptors
        })?;
        tracing::debug!("client {id} is {} ({})", program.name, program.pid);
        client.program = Some(program);
        self.counters.programs += 1;
        self.program_came(id);
        let welcome = FromDaemon::Welcome {
            version: VERSION,
            client: id,
        };
        self.send(id, &welcome, &[]);
        Ok(())
    }

    /// Whoever is introduced counts for the user who introduced it: a server of root that gives
    /// its children to another user keeps its place, and nobody gets a place by another name.
    fn introduce(&mut self, by: ClientId, newcomer: Option<Fd>) -> Result<(), Reason> {
        let socket = newcomer.ok_or(Reason::Descriptors)?;
        let client = self.clients.get(&by);
        let payer = client.and_then(|client| client.payer);
        let program = client.and_then(|client| client.program.as_ref());
        let table = program.map(|program| program.end_table.clone());
        let origin = self.receivers.origin(by);
        match (unix::peer_credentials(socket.raw()), origin) {
            (Ok(credentials), Some(origin)) => {
                self.admit(socket, credentials, payer, origin, table);
            }
            _ => {
                self.close(socket);
                return Err(Reason::Descriptors);
            }
        }
        Ok(())
    }

    /// A worker that has given its user up may hold the end of a pair that its master made.
    fn is_introduced(&self, id: ClientId) -> bool {
        self.clients.get(&id).is_some_and(|it| it.is_introduced)
    }

    /// Whether who has sent a message may do what root and sluiced's own user may. Who was that when it connected may have
    /// given it up, and may have given the connection away.
    fn is_owner(&self, id: ClientId, sender: Option<u32>) -> bool {
        !self.is_introduced(id) && (sender == Some(self.uid) || sender == Some(0))
    }

    fn shut_down(&mut self, id: ClientId, sender: Option<u32>) -> Result<(), Reason> {
        if !self.is_owner(id, sender) {
            return Err(Reason::User);
        }
        self.send(id, &self.pong(), &[]);
        tracing::info!("is asked to end");
        self.stopping = true;
        Ok(())
    }

    fn pong(&self) -> FromDaemon {
        FromDaemon::Pong {
            pid: std::process::id(),
            clients: self.clients.len() as u32,
        }
    }

    /// Sends without waiting and, to a program, rings its event flag. Returns whether it went.
    fn send(&self, id: ClientId, message: &FromDaemon, fds: &[i32]) -> bool {
        let Some(client) = self.clients.get(&id) else {
            return false;
        };
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let bytes = message.encode(&mut buffer);
        let Some(socket) = self.receivers.socket(id) else {
            return false;
        };
        match unix::send_with_fds(socket.raw(), bytes, fds) {
            Ok(_) => {
                if let Some(program) = &client.program {
                    program.ring();
                }
                true
            }
            Err(error) => {
                tracing::debug!(reason = %error, "client {id} cannot be told: {error}");
                false
            }
        }
    }

    fn turn_out(&mut self, id: ClientId, reason: Reason) {
        self.send(id, &FromDaemon::Refused { reason }, &[]);
        self.remove(id);
    }

    /// Refuses new clients when no process can be started that reads their messages: they would wait for an answer in
    /// vain. A program that has introduced itself waits for the next such process, and keeps its lanes.
    fn turn_out_who_is_not_read(&mut self) {
        for client in self.receivers.take_unread() {
            let has_program = |it: &Client| it.program.is_some() || it.is_introduced;
            if !self.clients.get(&client).is_none_or(has_program) {
                self.turn_out(client, Reason::Full);
            }
        }
    }

    /// The client is gone, and everything that it had.
    fn remove(&mut self, id: ClientId) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        self.receivers.end(&self.poll, id);
        self.memory_limits.gone(id);
        self.client_shares.give_back(&[client.payer]);
        let pid = client.program.as_ref().map(|program| program.pid);
        if let Some(program) = &client.program {
            self.seen.note_end(&program.end_table);
        }
        dispose((client.program, client.introducer));
        if let Some(pid) = pid {
            self.program_went(pid);
        }
        if let Some(gateway) = &mut self.gateway {
            gateway.client_gone(id, Instant::now());
        }
        self.matcher.remove_client(id);
        if let Some(fabric) = &mut self.fabric {
            fabric.program_gone(id);
        }
        for peer in self.lanes.remove_client(id) {
            self.send(peer, &FromDaemon::PeerGone { peer: id }, &[]);
        }
        if self.clients.is_empty() {
            self.idle_since = Instant::now();
        }
    }

    /// Whose process reads a client.
    fn origin_of(&mut self, socket: &Fd, credentials: Credentials) -> Origin {
        let uid = credentials.uid;
        let is_known = uid == self.uid || uid == 0;
        Origin {
            uid,
            owner: match is_known {
                true => uid,
                false => self.owners.owner(uid, Instant::now()),
            },
            netns: tcp::netns_cookie(socket.raw()).unwrap_or(0),
        }
    }
}
