//! Connections of programs here.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use sluice_bpf::Original;
use sluice_relay::{Interest, socket};

use super::{Relay, Whose};
use crate::capture::header::{ANSWER_BYTES, Answer, Between, Header, Secret};

/// What a peer's relay may take until it says that the destination has accepted. Then the
/// connection is made directly.
const REACH_LIMIT: Duration = Duration::from_secs(2);

/// A program's connection, on its way.
#[derive(Debug)]
pub(super) enum Step {
    /// To the peer's relay.
    Reaching {
        program: Captured,
        relay: OwnedFd,
        sealed: Sealed,
    },
    /// The header is said.
    Asking {
        program: Captured,
        relay: OwnedFd,
        sealed: Sealed,
        between: Between,
        answer: Vec<u8>,
    },
    /// To the destination itself.
    Direct { program: Captured, to: OwnedFd },
}

/// Of a header: by which secret, and which number it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sealed {
    secret: Secret,
    number: u64,
}

/// What was accepted on loopback.
#[derive(Debug)]
pub(super) struct Captured {
    socket: OwnedFd,
    original: Original,
}

impl Step {
    pub fn waits_for(&self) -> BorrowedFd<'_> {
        match self {
            Self::Reaching { relay, .. } | Self::Asking { relay, .. } => relay.as_fd(),
            Self::Direct { to, .. } => to.as_fd(),
        }
    }

    fn into_program(self) -> Captured {
        match self {
            Self::Reaching { program, .. }
            | Self::Asking { program, .. }
            | Self::Direct { program, .. } => program,
        }
    }
}

impl Relay {
    /// Somebody has connected to the listener on loopback.
    pub(super) fn program_comes(&mut self, accepted: OwnedFd, from: SocketAddr) {
        let original = socket::reset_on_close(accepted.as_fd(), true)
            .and_then(|()| socket::local_address(accepted.as_fd()))
            .and_then(|local| {
                let found = self.programs.original(self.netns, from, local);
                found.map_err(io::Error::other)
            });
        let original = match original {
            Ok(Some(original)) => original,
            // It meant the listener itself: there is nothing for it here.
            Ok(None) => return,
            Err(error) => {
                tracing::warn!("a captured connection is lost: {error}");
                return;
            }
        };
        self.counts.captured += 1;
        self.counted();
        let program = Captured {
            socket: accepted,
            original,
        };
        if self.is_full() || !self.wants(original.destination) {
            return self.go_directly(program);
        }
        self.reach(program);
    }

    /// Begins to connect to the peer's relay.
    fn reach(&mut self, program: Captured) {
        let destination = program.original.destination;
        let peer = self
            .peers
            .values_mut()
            .find(|peer| peer.addresses.contains(&destination.ip()));
        let Some(peer) = peer else {
            return self.go_directly(program);
        };
        peer.number += 1;
        let sealed = Sealed {
            secret: peer.secret,
            number: peer.number,
        };
        let port = match destination {
            SocketAddr::V4(_) => peer.port_v4,
            SocketAddr::V6(_) => peer.port_v6,
        };
        let at = SocketAddr::new(destination.ip(), port);
        let begun = self.own_socket(&at).and_then(|relay| {
            socket::send_at_once(relay.as_fd())?;
            socket::connect(relay.as_fd(), &at)?;
            Ok(relay)
        });
        match begun {
            Ok(relay) => {
                let step = Step::Reaching {
                    program,
                    relay,
                    sealed,
                };
                let deadline = Instant::now() + REACH_LIMIT;
                self.wait(super::Step::Near(step), Interest::Writable, Some(deadline));
            }
            Err(error) => {
                tracing::debug!("no relay at {at}: {error}");
                self.go_directly(program);
            }
        }
    }

    /// Begins to connect to where the program wanted to.
    fn go_directly(&mut self, program: Captured) {
        let to = program.original.destination;
        self.counts.direct += 1;
        let begun = self.own_socket(&to).and_then(|fd| {
            if let Some(source) = program.original.source {
                // As the program has chosen it, perhaps; the port is loopback's.
                let _ = socket::bind(fd.as_fd(), &SocketAddr::new(source.ip(), 0));
            }
            socket::connect(fd.as_fd(), &to)?;
            Ok(fd)
        });
        match begun {
            Ok(to) => {
                let step = super::Step::Near(Step::Direct { program, to });
                self.wait(step, Interest::Writable, None);
            }
            Err(error) => tracing::debug!("{to} is not reached: {error}"),
        }
    }

    pub(super) fn near_ready(&mut self, step: Step, deadline: Option<Instant>) {
        match step {
            Step::Reaching {
                program,
                relay,
                sealed,
            } => self.ask(program, relay, sealed, deadline),
            Step::Asking {
                program,
                relay,
                sealed,
                between,
                mut answer,
            } => {
                let mut rest = vec![0; ANSWER_BYTES.saturating_sub(answer.len())];
                match socket::read(relay.as_fd(), &mut rest) {
                    Ok(0) => return self.go_directly(program),
                    Ok(count) => answer.extend(rest.iter().take(count)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return self.go_directly(program),
                }
                let Some(whole) = answer.first_chunk::<ANSWER_BYTES>() else {
                    let step = Step::Asking {
                        program,
                        relay,
                        sealed,
                        between,
                        answer,
                    };
                    return self.wait(super::Step::Near(step), Interest::Readable, deadline);
                };
                match Answer::open(whole, &sealed.secret, sealed.number, &between) {
                    Some(Answer::Connected) => {
                        self.join(program.socket, relay, Whose::Captured);
                    }
                    Some(Answer::Refused) => self.go_directly(program),
                    None => {
                        tracing::warn!("{} is not the relay of its host", between.to);
                        self.go_directly(program);
                    }
                }
            }
            Step::Direct { program, to } => match socket::take_error(to.as_fd()) {
                Ok(()) => self.join(program.socket, to, Whose::Captured),
                // The program gets a reset: its connect() has succeeded.
                Err(error) => {
                    let destination = program.original.destination;
                    tracing::debug!("{destination} is not reached: {error}");
                }
            },
        }
    }

    /// The peer's relay has accepted: says for whom.
    fn ask(
        &mut self,
        program: Captured,
        relay: OwnedFd,
        sealed: Sealed,
        deadline: Option<Instant>,
    ) {
        let Original {
            destination,
            source,
            ..
        } = program.original;
        let said = socket::take_error(relay.as_fd()).and_then(|()| {
            let between = Between {
                from: socket::local_address(relay.as_fd())?,
                to: socket::remote_address(relay.as_fd())?,
            };
            let header = Header {
                secret: sealed.secret.id,
                number: sealed.number,
                destination,
                client: source.unwrap_or(between.from),
            };
            let bytes = header.seal(&sealed.secret, &between);
            let count = socket::write(relay.as_fd(), &bytes)?;
            if count < bytes.len() {
                return Err(io::Error::from(io::ErrorKind::WriteZero));
            }
            Ok(between)
        });
        match said {
            Ok(between) => {
                let step = Step::Asking {
                    program,
                    relay,
                    sealed,
                    between,
                    answer: Vec::new(),
                };
                self.wait(super::Step::Near(step), Interest::Readable, deadline);
            }
            Err(error) => {
                tracing::debug!("the relay for {destination} is not reached: {error}");
                self.go_directly(program);
            }
        }
    }

    pub(super) fn near_late(&mut self, step: Step) {
        self.go_directly(step.into_program());
    }
}
