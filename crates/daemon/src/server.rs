//! The daemon's one thread: waits for clients, reads what they say, and never blocks on any.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{Timespec, epoll};
use sluice_control::message::{
    DecodeError, FromDaemon, Hello, MESSAGE_BYTES_MAX, Reason, ToDaemon, VERSION,
};
use sluice_sys::errno::Errno;
use sluice_sys::unix::{self, Credentials, Fd, Received};

use crate::closer::Closer;
use crate::config::{Config, Limits};
use crate::counters::Counters;
use crate::fabric::Fabric;
use crate::gateway::Gateway;
use crate::lanes::Lanes;
use crate::listener::{ListenError, Listener};
use crate::matching::{ClientId, EndKey, Matcher};
use crate::metrics::collect::Seen;
use crate::metrics::exporter::Exporter;
use crate::namespace::{Homes, Namespace, Prover};
use crate::options::Options;
use crate::program::{EndTable, Program};
use crate::shares::{Payer, Shares};

mod announce;
mod figures;
mod gateway;
mod reload;
mod remote;
mod report;
mod sweep;

/// Messages of one client that are read before others get their turn.
const MESSAGES_PER_TURN_MAX: usize = 64;
/// Events taken from the kernel at a time.
const EVENTS_MAX: usize = 256;

const LISTENER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;
const FABRIC: u64 = u64::MAX - 2;
const METRICS: u64 = u64::MAX - 3;
const RELOAD: u64 = u64::MAX - 4;

/// One connection to the control socket.
#[derive(Debug)]
struct Client {
    socket: Fd,
    credentials: Credentials,
    /// Whom it and its lanes count for.
    payer: Payer,
    /// After its `Hello`.
    program: Option<Program>,
    /// Until then: the end table of the program that introduced it.
    introducer: Option<Arc<EndTable>>,
    /// The network namespaces of its ends, as long as it lives.
    namespaces: HashMap<u64, Namespace>,
    /// It was given sluiced's own board.
    has_our_board: bool,
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
    next_client: ClientId,
    matcher: Matcher,
    lanes: Lanes,
    prover: Prover,
    homes: Homes,
    retries: Vec<announce::Retry>,
    /// When ends are looked for that were closed without a word.
    sweep_at: Option<Instant>,
    /// Ends that ask whether a peer may still come, and their generations.
    settling: Vec<(EndKey, u32)>,
    closer: Closer,
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
        Server::on(listener, config, limits, fabric)
    }

    /// Serves whom a listener lets connect.
    pub fn on(
        listener: Listener,
        config: Config,
        limits: Limits,
        fabric: Option<Fabric>,
    ) -> Result<Server, ListenError> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| ListenError::Socket(config.socket.clone(), error.into()))?;
        let now = Instant::now();
        let server = Server {
            lanes: Lanes::new(
                config.ring_bytes,
                config.lanes_max,
                limits.chunks_max,
                config.user_share,
            ),
            client_shares: Shares::new(limits.clients_max, config.user_share),
            limits,
            uid: unix::effective_uid(),
            listener,
            poll,
            clients: HashMap::new(),
            next_client: 1,
            matcher: Matcher::default(),
            prover: Prover::new(config.one_namespace, !config.allow_all_users),
            homes: Homes::new(),
            retries: Vec::new(),
            sweep_at: None,
            settling: Vec::new(),
            closer: Closer::default(),
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
                match event.data.u64() {
                    LISTENER => self.accept_all(),
                    STOP => self.stopping = true,
                    FABRIC => {}
                    METRICS => self.give_figures(),
                    RELOAD => self.reload_if_told(),
                    // Client numbers are 32-bit.
                    id => self.read_client(id as ClientId),
                }
            }
            if events.is_empty() {
                // Everybody was heard.
                self.settle();
            }
            self.turn_fabric();
            self.turn_gateway();
            self.retry_proofs();
            self.sweep();
            if self.is_idle_for_long() {
                self.leave_unless_somebody_comes()?;
            }
        }
        tracing::info!("ends");
        Ok(())
    }

    /// How long to wait at most; `None`: until something happens.
    fn patience(&self) -> Option<Duration> {
        let has_questions = self.fabric.as_ref().is_some_and(Fabric::has_questions);
        if has_questions || !self.settling.is_empty() {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let retry = self
            .next_retry()
            .map(|due| due.saturating_duration_since(now));
        let idle = self.config.idle_exit.filter(|_| self.clients.is_empty());
        let idle = idle.map(|limit| limit.saturating_sub(now.duration_since(self.idle_since)));
        let fabric = self.fabric.as_ref().and_then(Fabric::next_deadline);
        let fabric = fabric.map(|due| due.saturating_duration_since(now));
        let gateway = self.gateway.as_ref().and_then(Gateway::next_deadline);
        let gateway = gateway.map(|due| due.saturating_duration_since(now));
        let sweep = self.sweep_at.map(|due| due.saturating_duration_since(now));
        let all = [retry, idle, fabric, gateway, sweep];
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
        self.accept_all();
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

    fn accept_all(&mut self) {
        loop {
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
            return false;
        }
        let accepted = self.listener.accept();
        if let Ok(socket) = &accepted {
            refuse(socket, Reason::Full);
            self.counters.clients_refused += 1;
        }
        let turned_away = accepted.is_ok();
        drop(accepted);
        self.spare = File::open("/dev/null").ok();
        turned_away
    }

    /// A new connection to the control socket.
    fn welcome(&mut self, socket: Fd) {
        let credentials = match unix::peer_credentials(socket.raw()) {
            Ok(credentials) => credentials,
            Err(error) => {
                tracing::debug!(reason = %error, "a client's credentials cannot be read: {error}");
                self.counters.clients_refused += 1;
                return;
            }
        };
        let known = credentials.uid == self.uid || credentials.uid == 0;
        if !known && !self.config.allow_all_users {
            tracing::info!("refuses uid {}", credentials.uid);
            self.counters.clients_refused += 1;
            refuse(&socket, Reason::User);
            return;
        }
        // Without other users there is nobody to share with.
        let payer = (!known).then_some(credentials.uid);
        self.admit(socket, credentials, payer, None);
    }

    /// A connection that may be served, accepted or introduced by somebody who is.
    fn admit(
        &mut self,
        socket: Fd,
        credentials: Credentials,
        payer: Payer,
        introducer: Option<Arc<EndTable>>,
    ) {
        let is_full = self.clients.len() >= self.limits.clients_max;
        if is_full || !self.client_shares.have_room(&[payer]) {
            self.counters.clients_refused += 1;
            refuse(&socket, Reason::Full);
            return;
        }
        while self.clients.contains_key(&self.next_client) {
            self.next_client = self.next_client.wrapping_add(1);
        }
        let id = self.next_client;
        self.next_client = self.next_client.wrapping_add(1);
        if let Err(error) = self.watch(&socket, u64::from(id)) {
            tracing::warn!(reason = %error, "a client cannot be watched: {error}");
            self.counters.clients_refused += 1;
            return;
        }
        self.counters.clients_accepted += 1;
        let client = Client {
            socket,
            credentials,
            payer,
            program: None,
            introducer,
            namespaces: HashMap::new(),
            has_our_board: false,
        };
        self.client_shares.take(&[payer]);
        self.lanes.set_payer(id, payer);
        self.clients.insert(id, client);
    }

    fn read_client(&mut self, id: ClientId) {
        self.documents.expire();
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        for _ in 0..MESSAGES_PER_TURN_MAX {
            let Some(client) = self.clients.get(&id) else {
                return;
            };
            match unix::receive_with_fds(client.socket.raw(), &mut buffer) {
                Ok(received) if received.len == 0 => return self.remove(id),
                Ok(received) => {
                    let message = &buffer[..received.len];
                    let message = if received.truncated {
                        Err(DecodeError::Length)
                    } else {
                        ToDaemon::decode(message)
                    };
                    if let Err(reason) = self.dispatch(id, message, received) {
                        return self.turn_out(id, reason);
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(_) => return self.remove(id),
            }
        }
    }

    /// Does what one message asks for. An error ends the connection. Descriptors that nobody
    /// took are closed with `received`.
    fn dispatch(
        &mut self,
        id: ClientId,
        message: Result<ToDaemon, DecodeError>,
        mut received: Received,
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
            ToDaemon::Introduce if is_program => self.introduce(id, &mut received),
            ToDaemon::Announce(announce) if is_program => {
                self.announce(id, &announce, received);
                Ok(())
            }
            ToDaemon::Release { end, generation } if is_program => {
                self.release(id, end, generation);
                self.note_change();
                Ok(())
            }
            ToDaemon::Settle { end, generation } if is_program => {
                self.will_settle(id, end, generation);
                Ok(())
            }
            ToDaemon::Ping => {
                self.send(id, &self.pong(), &[]);
                Ok(())
            }
            ToDaemon::Status => {
                self.report(id);
                Ok(())
            }
            ToDaemon::Shutdown => self.shut_down(id),
            ToDaemon::Gateway(ask) => self.asked_of_gateways(id, ask, &mut received),
            _ => Err(Reason::Protocol),
        }
    }

    fn hello(&mut self, id: ClientId, hello: &Hello, mut received: Received) -> Result<(), Reason> {
        let Some(client) = self.clients.get_mut(&id) else {
            return Ok(());
        };
        let introducer = client.introducer.take();
        let program = Program::new(hello, client.credentials, &mut received, introducer);
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
    fn introduce(&mut self, by: ClientId, received: &mut Received) -> Result<(), Reason> {
        let socket = received.take_fd(0).ok_or(Reason::Descriptors)?;
        if !is_seqpacket(&socket) {
            return Err(Reason::Descriptors);
        }
        match unix::peer_credentials(socket.raw()) {
            Ok(credentials) => {
                let payer = self.clients.get(&by).and_then(|client| client.payer);
                let program = self.clients.get(&by).and_then(|it| it.program.as_ref());
                let table = program.map(|program| program.end_table.clone());
                self.admit(socket, credentials, payer, table);
            }
            Err(_) => return Err(Reason::Descriptors),
        }
        Ok(())
    }

    fn shut_down(&mut self, id: ClientId) -> Result<(), Reason> {
        let uid = self.clients.get(&id).map(|client| client.credentials.uid);
        if uid != Some(self.uid) && uid != Some(0) {
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

    /// Sends without waiting and, to a program, rings its mailbox. Returns whether it went.
    fn send(&self, id: ClientId, message: &FromDaemon, fds: &[i32]) -> bool {
        let Some(client) = self.clients.get(&id) else {
            return false;
        };
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let bytes = message.encode(&mut buffer);
        match unix::send_with_fds(client.socket.raw(), bytes, fds) {
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

    /// The client is gone, and everything that it had.
    fn remove(&mut self, id: ClientId) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        // Not left to the close: somebody else may hold the same socket open.
        let _ = epoll::delete(&self.poll, &client.socket);
        self.client_shares.give_back(&[client.payer]);
        let pid = client.program.as_ref().map(|program| program.pid);
        if let Some(program) = &client.program {
            self.seen.note_end(&program.end_table);
        }
        drop(client);
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
}

/// Tells a client that is not going to be one why.
fn refuse(socket: &Fd, reason: Reason) {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let message = FromDaemon::Refused { reason };
    let _ = unix::send_with_fds(socket.raw(), message.encode(&mut buffer), &[]);
}

fn is_seqpacket(socket: &Fd) -> bool {
    let option = |name, expected: i32| {
        let mut value = [0; 4];
        let got = unix::get_option(socket.raw(), libc::SOL_SOCKET, name, &mut value);
        matches!(got, Ok(4)) && i32::from_ne_bytes(value) == expected
    };
    option(libc::SO_DOMAIN, libc::AF_UNIX)
        && option(libc::SO_TYPE, libc::SOCK_SEQPACKET)
        && option(libc::SO_ACCEPTCONN, 0)
}
