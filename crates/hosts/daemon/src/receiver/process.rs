//! The process that receives what the programs of one user send. It may stand still at any
//! descriptor; sluiced does not wait for it.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::net::{Shutdown, shutdown};
use sluice_control::message::gateway::Ask;
use sluice_control::message::{MESSAGE_BYTES_MAX, ToDaemon, hello_fd};
use sluice_lane::table::table_bytes;
use sluice_sys::capability::{Capability, keep_only};
use sluice_sys::errno::Errno;
use sluice_sys::unix::{self, Fd, Received};
use sluice_sys::{memfd, tcp};

use super::closer::Closer;
use super::{Brought, Order, Report, WORD_BYTES_MAX};
use crate::gateway;
use crate::matching::ClientId;
use crate::namespace;
use crate::socket::SocketFacts;

/// Messages of one client that are read before others get their turn.
const MESSAGES_PER_TURN_MAX: usize = 64;
/// Turns after which a client counts as heard that always has more to say: what it had said when it was to be heard is
/// read by then, as some 300 messages fit its socket.
const TURNS_TO_HEAR_MAX: u32 = 16;
/// Events taken from the kernel at a time.
const EVENTS_MAX: usize = 256;
const CHANNEL: u64 = u64::MAX;
/// Bytes of each file of a `Hello` at most: the end table of a library is the largest, and one of another version may be
/// larger.
const MEMORY_BYTES_MAX: u64 = 2 * table_bytes() as u64;
/// How often descriptors are sent again that the kernel has no room for, and how long it is given
/// (`ETOOMANYREFS`, unix(7): as many are on their way as a process may have open).
const PASSED_MAX: u32 = 100;
const PASS_AGAIN: Duration = Duration::from_millis(1);

/// Descriptors that go to sluiced with a report.
type Enclosed = Vec<Fd>;

#[derive(Debug)]
struct Process {
    channel: Fd,
    poll: OwnedFd,
    clients: HashMap<ClientId, Fd>,
    closer: Closer,
    /// The network namespace that sluiced knows without being given it.
    own_netns: Option<u64>,
    /// Everybody is to be heard, then this is to be said.
    hear: Option<Hearing>,
}

#[derive(Clone, Copy, Debug)]
struct Hearing {
    number: u64,
    turns: u32,
}

/// Serves until sluiced, at the other end of `channel`, has gone.
///
/// # Errors
/// The kernel refuses to wait.
pub fn serve(channel: OwnedFd) -> io::Result<()> {
    // A signal for all processes of a service or a terminal means sluiced, which says what it
    // means for this one.
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let _ = rustix::thread::set_name(c"sluiced-clients");
    // To find out which network namespace a socket is in.
    if let Err(Errno(code)) = keep_only(Capability::NetAdmin.bit()) {
        let error = io::Error::from_raw_os_error(code);
        tracing::warn!(reason = %error, "capabilities cannot be given up: {error}");
    }
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(
        &poll,
        &channel,
        epoll::EventData::new_u64(CHANNEL),
        epoll::EventFlags::IN,
    )?;
    let mut process = Process {
        own_netns: tcp::netns_cookie(channel.as_raw_fd()).ok(),
        channel: channel.into(),
        poll,
        clients: HashMap::new(),
        closer: Closer::default(),
        hear: None,
    };
    let ended = process.run();
    // Their programs see the end now, also where a close takes its time.
    for socket in process.clients.values() {
        let _ = shutdown(socket, Shutdown::Both);
    }
    // What lies in their queues and in the channel's is closed with them, and may linger; not so when a
    // process ends, as this one is about to.
    mem::forget(process);
    ended
}

impl Process {
    fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            events.clear();
            let hear = self.hear.take();
            let at_once = Timespec::default();
            let timeout = hear.is_some().then_some(&at_once);
            match epoll::wait(&self.poll, spare_capacity(&mut events), timeout) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let is_crowded = events.len() == EVENTS_MAX;
            let mut has_more = false;
            for event in &events {
                let outcome = match event.data.u64() {
                    CHANNEL => self.take_orders().map(|()| false),
                    // Client numbers are 32-bit.
                    client => self.read(client as ClientId),
                };
                match outcome {
                    Ok(more) => has_more |= more,
                    Err(_) => return Ok(()),
                }
            }
            let Some(Hearing { number, turns }) = hear else {
                continue;
            };
            if is_crowded || has_more && turns < TURNS_TO_HEAR_MAX {
                // A later question is answered with this one.
                let turns = turns + u32::from(!is_crowded);
                self.hear.get_or_insert(Hearing { number, turns });
            } else if self.report(&Report::Heard { number }, &[]).is_err() {
                return Ok(());
            }
        }
    }

    fn take_orders(&mut self) -> Result<(), Errno> {
        let mut buffer = [0; WORD_BYTES_MAX];
        loop {
            let mut received = match unix::receive_with_fds(self.channel.raw(), &mut buffer) {
                Ok(received) if received.len == 0 => return Err(Errno::PIPE),
                Ok(received) => received,
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            };
            let order = serde_json::from_slice(&buffer[..received.len]);
            match order.map_err(|_| Errno::PROTO)? {
                Order::Read { client } => self.begin(client, received.take_fd(0))?,
                Order::Close { client } => {
                    let known = client.and_then(|client| self.clients.remove(&client));
                    for socket in known.into_iter().chain(received.take_fd(0)) {
                        // Not left to the close: sluiced may still be closing its own copy.
                        let _ = epoll::delete(&self.poll, &socket);
                        self.closer.close(socket);
                    }
                }
                Order::Hear { number } => self.hear = Some(Hearing { number, turns: 0 }),
            }
        }
    }

    fn begin(&mut self, client: ClientId, socket: Option<Fd>) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(u64::from(client));
        let watched = socket
            .as_ref()
            .map(|socket| epoll::add(&self.poll, socket, data, epoll::EventFlags::IN));
        match (socket, watched) {
            (Some(socket), Some(Ok(()))) => {
                // One that was introduced has it from here on. Before, its messages have no sender.
                let _ = unix::pass_credentials(socket.raw());
                self.clients.insert(client, socket);
                Ok(())
            }
            // No descriptor or no memory is left.
            _ => self.report(&Report::Failed { client }, &[]),
        }
    }

    /// Gives a client its turn. Whether it may have more to say.
    fn read(&mut self, client: ClientId) -> Result<bool, Errno> {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        for _ in 0..MESSAGES_PER_TURN_MAX {
            let Some(socket) = self.clients.get(&client) else {
                return Ok(false);
            };
            match unix::receive_with_sender(socket.raw(), &mut buffer) {
                Ok(received) if received.len == 0 => {
                    // sluiced has a copy, for which the kernel would report the end again and again until that is
                    // closed, too.
                    let _ = epoll::delete(&self.poll, socket);
                    // Nothing can come any more that a close would have to close.
                    self.clients.remove(&client);
                    return self.report(&Report::Ended { client }, &[]).map(|()| false);
                }
                Ok(received) => self.pass_on(client, &buffer[..received.len], received)?,
                Err(Errno::AGAIN) => return Ok(false),
                Err(_) => {
                    let _ = epoll::delete(&self.poll, socket);
                    let failed = self.report(&Report::Failed { client }, &[]);
                    return failed.map(|()| false);
                }
            }
        }
        Ok(true)
    }

    fn pass_on(
        &mut self,
        client: ClientId,
        message: &[u8],
        mut received: Received,
    ) -> Result<(), Errno> {
        // A message that was cut is none, which sluiced finds out.
        let message = if received.truncated { &[] } else { message };
        let (brought, enclosed) = self.look(message, &mut received);
        for index in 0..unix::FDS_PER_MESSAGE_MAX {
            if let Some(fd) = received.take_fd(index) {
                self.closer.close(fd);
            }
        }
        let sender = received.sender.map(|sender| sender.uid);
        let said = |brought| Report::Said {
            client,
            message: message.to_vec(),
            brought,
            sender,
        };
        let raw: Vec<i32> = enclosed.iter().map(Fd::raw).collect();
        // A client's own socket may be nested deeper than the kernel passes on. Of other descriptors
        // there are too many on their way, many of them to this process.
        let mut tries = if brought == Brought::Client {
            0
        } else {
            PASSED_MAX
        };
        let report = said(brought);
        let passed = loop {
            match self.report(&report, &raw) {
                Err(Errno(libc::ETOOMANYREFS)) if tries > 0 => {
                    tries -= 1;
                    self.take_orders()?;
                    thread::sleep(PASS_AGAIN);
                }
                Err(Errno(libc::ETOOMANYREFS)) => {
                    break self.report(&said(Brought::Nothing), &[]);
                }
                other => break other,
            }
        };
        for fd in enclosed {
            self.closer.close(fd);
        }
        passed
    }

    /// Takes what belongs to `message` out of what came with it.
    fn look(&mut self, message: &[u8], received: &mut Received) -> (Brought, Enclosed) {
        let nothing = (Brought::Nothing, Vec::new());
        if received.fds_truncated {
            return nothing;
        }
        match ToDaemon::decode(message) {
            Ok(ToDaemon::Hello(_)) if received.fd_count() == hello_fd::COUNT => {
                // The kernel has seals for memory only, whose close waits for nobody. It takes as long as there are
                // pages, and sluiced keeps what it is given.
                let fds: Vec<Fd> = (0..hello_fd::COUNT)
                    .filter_map(|index| received.take_fd(index))
                    .collect();
                let is_ours = |fd: &Fd| memfd::is_small_memory(fd.raw(), MEMORY_BYTES_MAX);
                if fds.iter().all(is_ours) {
                    return (Brought::Memory, fds);
                }
                fds.into_iter().for_each(|fd| self.closer.close(fd));
                nothing
            }
            Ok(ToDaemon::Introduce) => match received.take_fd(0) {
                Some(socket) if is_seqpacket(&socket) => (Brought::Client, vec![socket]),
                Some(other) => {
                    self.closer.close(other);
                    nothing
                }
                None => nothing,
            },
            Ok(ToDaemon::Announce(_)) if received.fd_count() == 1 => {
                let Some(socket) = received.take_fd(0) else {
                    return nothing;
                };
                let facts = SocketFacts::read(socket.raw()).ok().flatten();
                let stranger = facts.filter(|it| Some(it.domain.netns) != self.own_netns);
                let namespace = stranger.and_then(|_| namespace::of_socket(socket.raw()).ok());
                self.closer.close(socket);
                facts.map_or(nothing, |facts| {
                    (Brought::Connection(facts), namespace.into_iter().collect())
                })
            }
            Ok(ToDaemon::Gateway(Ask::Publish { .. })) => match received.take_fd(0) {
                Some(socket) => {
                    let listening = gateway::look_at(&socket).map_err(|Errno(code)| code);
                    self.closer.close(socket);
                    (Brought::Listening(listening), Vec::new())
                }
                None => nothing,
            },
            _ => nothing,
        }
    }

    /// Waits for sluiced where it is slower. An error that is not about the descriptors means that
    /// it has gone.
    fn report(&self, report: &Report, fds: &[i32]) -> Result<(), Errno> {
        let bytes = serde_json::to_vec(report).map_err(|_| Errno::PROTO)?;
        loop {
            match unix::send_with_fds(self.channel.raw(), &bytes, fds) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN) => match unix::wait_writable(self.channel.raw(), -1) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error),
                },
                Err(error) => return Err(error),
            }
        }
    }
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
