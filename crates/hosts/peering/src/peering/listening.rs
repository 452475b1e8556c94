//! Accepting connections.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};

use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use super::{Connection, Peering, PeeringError, Stage};
use crate::channel::Channel;
use crate::event::Why;
use crate::limits::ACCEPTS_PER_TURN_MAX;
use crate::proof::Side;
use crate::strangers::Admission;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 128;

/// Events of listeners have the highest numbers; connections never get there.
const FIRST_LISTENER: u64 = u64::MAX - crate::config::LISTEN_MAX as u64;

/// Which listener an event is about.
pub(super) fn index_of(token: u64) -> Option<usize> {
    let index = token.checked_sub(FIRST_LISTENER)?;
    usize::try_from(index).ok()
}

/// A socket that listens.
#[derive(Debug)]
pub(super) struct Listener {
    socket: TcpListener,
}

impl Listener {
    fn bind(address: SocketAddr, v6_only: bool) -> io::Result<Listener> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        // Connections of a daemon that ended a moment ago are no obstacle.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, v6_only)?;
        }
        bind(&socket, &address)?;
        listen(&socket, BACKLOG)?;
        Ok(Listener {
            socket: socket.into(),
        })
    }

    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }
}

impl Peering {
    /// Binds all of the addresses and watches them.
    pub(super) fn listen(&self, addresses: &[SocketAddr]) -> Result<Vec<Listener>, PeeringError> {
        let has_v4 = addresses.iter().any(SocketAddr::is_ipv4);
        let mut listeners = Vec::with_capacity(addresses.len());
        for address in addresses {
            let everywhere = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
            let bound = match Listener::bind(*address, has_v4) {
                // A kernel without IPv6.
                Err(error)
                    if everywhere
                        && !has_v4
                        && (error.raw_os_error()
                            == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
                            || error.kind() == ErrorKind::AddrNotAvailable) =>
                {
                    let v4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
                    Listener::bind(v4, false)
                }
                bound => bound,
            };
            let listener = bound.map_err(|error| PeeringError::Listen(*address, error))?;
            let data = epoll::EventData::new_u64(FIRST_LISTENER + listeners.len() as u64);
            epoll::add(&self.poll, &listener.socket, data, epoll::EventFlags::IN)
                .map_err(|error| PeeringError::System(error.into()))?;
            listeners.push(listener);
        }
        Ok(listeners)
    }

    pub(super) fn watch_listeners(&self, wanted: bool) {
        for (at, listener) in self.listeners.iter().enumerate() {
            let data = epoll::EventData::new_u64(FIRST_LISTENER + at as u64);
            let mut flags = epoll::EventFlags::empty();
            flags.set(epoll::EventFlags::IN, wanted);
            // It is in the set, and modifying needs no memory.
            let _ = epoll::modify(&self.poll, &listener.socket, data, flags);
        }
    }

    pub(super) fn accept_from(&mut self, at: usize) {
        for _ in 0..ACCEPTS_PER_TURN_MAX {
            let Some(listener) = self.listeners.get(at) else {
                return;
            };
            match listener.socket.accept() {
                Ok((socket, from)) => self.welcome(socket, from),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // It has given up meanwhile, accept(2).
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                    ) => {}
                Err(error) => {
                    // No descriptor or no memory: the connection stays where it is, and would
                    // keep the thread busy.
                    tracing::warn!(reason = %error, "a connection cannot be accepted: {error}");
                    self.watch_listeners(false);
                    let until = self.now + self.timing.accept_pause;
                    self.listeners_paused_until = Some(until);
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, socket: TcpStream, from: SocketAddr) {
        self.counters.accepted += 1;
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let (token, random) = (self.new_token(), self.random());
        match self.strangers.admit(token, from.ip(), random, self.now) {
            Admission::Admitted => {}
            Admission::InsteadOf(other) => {
                self.counters.crowded += 1;
                self.finish(other, Why::Crowded, None);
            }
            Admission::Refused => {
                self.counters.crowded += 1;
                return;
            }
        }
        let channel = socket
            .set_nonblocking(true)
            .map_err(|error| Why::Io(error.kind()))
            .and_then(|()| {
                Channel::new(
                    socket,
                    Side::Acceptor,
                    &self.identity.tls,
                    self.identity.method,
                )
            });
        let began = channel.and_then(|channel| {
            let deadline = self.handshake_deadline();
            let connection = Connection::new(
                channel,
                Side::Acceptor,
                from,
                Stage::Tls,
                deadline,
                self.now,
            );
            self.register(token, connection)
        });
        if let Err(why) = began {
            tracing::warn!(reason = %why, "{from} cannot be served: {why}");
            self.strangers.leave(token);
        }
    }
}
