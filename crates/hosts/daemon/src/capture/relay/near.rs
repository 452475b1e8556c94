//! Connections of programs here.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use sluice_bpf::Original;
use sluice_relay::{Interest, socket};

use super::far::ACCEPT_LIMIT;
use super::{Relay, Whose};
use crate::capture::header::{ANSWER_BYTES, Answer, Between, Header, Secret};

/// What a peer's relay may take to accept. Then the connection is made directly.
const REACH_LIMIT: Duration = Duration::from_secs(2);
/// And what it may take to answer that the destination has accepted, or has not. It gives that up
/// long before: a server must not be connected to twice for one connection.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
const _: () = assert!(ACCEPT_LIMIT.as_millis() < ANSWER_LIMIT.as_millis());

/// For how long a peer whose relay does not answer is left alone: at first, then twice as long each
/// time, and at most. Until then nothing is captured for it, so that nothing waits for it.
const LEFT_ALONE: Duration = Duration::from_secs(1);
const LEFT_ALONE_MAX: Duration = Duration::from_secs(60);

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
                let found = self.programs.take_original(self.netns, from, local);
                found.map_err(io::Error::other)
            });
        let original = match original {
            Ok(Some(original)) => original,
            // Where it was to go is not known, so it is reset: its client must not take it for delivered.
            Ok(None) => return self.turn_away(from, "nobody has noted where it was to go"),
            Err(error) => return self.turn_away(from, &error.to_string()),
        };
        self.counts.captured += 1;
        self.counted();
        let program = Captured {
            socket: accepted,
            original,
        };
        let to = original.destination;
        if self.is_full() {
            self.counts.reasons.direct_full += 1;
            return self.go_directly(program);
        }
        if !self.wanted.wants(to.ip(), to.port()) {
            self.counts.reasons.direct_unwanted += 1;
            return self.go_directly(program);
        }
        self.reach(program);
    }

    /// Whoever can connect to the listener on loopback itself can cause this: the log hears of one a minute.
    fn turn_away(&mut self, from: SocketAddr, why: &str) {
        self.counts.lost += 1;
        self.counted();
        match self.losses.is_due(Instant::now()) {
            Some(0) => tracing::warn!("resets a captured connection from {from}: {why}"),
            Some(others) => {
                tracing::warn!(
                    "resets a captured connection from {from}: {why}; and {others} others before"
                );
            }
            None => tracing::debug!("resets a captured connection from {from}: {why}"),
        }
    }

    /// Begins to connect to the peer's relay.
    fn reach(&mut self, program: Captured) {
        let destination = program.original.destination;
        let peer = self
            .peers
            .values_mut()
            .find(|peer| peer.addresses.contains(&destination.ip()));
        let Some(peer) = peer.filter(|peer| peer.left_alone.is_none()) else {
            return self.go_unreached(program);
        };
        peer.number += 1;
        let sealed = Sealed {
            secret: peer.secret,
            number: peer.number,
        };
        let at = SocketAddr::new(destination.ip(), peer.port(destination.ip()));
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
            // For lack of something here, and found out at once: it says nothing of the peer.
            Err(error) => {
                tracing::debug!("no relay at {at}: {error}");
                self.go_unreached(program);
            }
        }
    }

    /// The peer's relay was not to be had.
    fn go_unreached(&mut self, program: Captured) {
        self.counts.reasons.direct_unreached += 1;
        self.go_directly(program);
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
            } => self.ask(program, relay, sealed),
            Step::Asking {
                program,
                relay,
                sealed,
                between,
                mut answer,
            } => {
                let mut rest = vec![0; ANSWER_BYTES.saturating_sub(answer.len())];
                let failed = match socket::read(relay.as_fd(), &mut rest) {
                    Ok(0) => Some("it hangs up".to_owned()),
                    Ok(count) => {
                        answer.extend(rest.iter().take(count));
                        None
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                    Err(error) => Some(error.to_string()),
                };
                if let Some(why) = failed {
                    self.leave_alone(between.to.ip(), &why);
                    return self.go_unreached(program);
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
                let answer = Answer::open(whole, &sealed.secret, sealed.number, &between);
                if answer.is_some() {
                    self.is_reached(between.to.ip());
                }
                match answer {
                    Some(Answer::Connected) => {
                        self.join(program.socket, relay, Whose::Captured);
                    }
                    Some(Answer::Refused) => {
                        self.counts.reasons.direct_refused += 1;
                        self.go_directly(program);
                    }
                    None => {
                        self.leave_alone(between.to.ip(), "somebody else answers");
                        self.go_unreached(program);
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
    fn ask(&mut self, program: Captured, relay: OwnedFd, sealed: Sealed) {
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
                let deadline = Instant::now() + ANSWER_LIMIT;
                self.wait(super::Step::Near(step), Interest::Readable, Some(deadline));
            }
            Err(error) => {
                self.leave_alone(destination.ip(), &error.to_string());
                self.go_unreached(program);
            }
        }
    }

    pub(super) fn near_late(&mut self, step: Step) {
        match &step {
            Step::Reaching { program, .. } | Step::Asking { program, .. } => {
                let address = program.original.destination.ip();
                self.leave_alone(address, "no answer");
            }
            Step::Direct { .. } => {}
        }
        self.go_unreached(step.into_program());
    }

    /// The relay of the peer with this address does not answer: nothing is captured for it for a
    /// while, which would only be held up.
    fn leave_alone(&mut self, address: IpAddr, why: &str) {
        let mut all = self.peers.values_mut();
        let peer = all.find(|peer| peer.addresses.contains(&address));
        // Once for all that were on their way.
        let Some(peer) = peer.filter(|peer| peer.left_alone.is_none()) else {
            return;
        };
        if peer.patience.is_none() {
            tracing::warn!(
                "the relay of {address} is not reached ({why}): connections go their own way; is \
                 its port {} open?",
                peer.port(address)
            );
        }
        let patience = next_patience(peer.patience);
        peer.patience = Some(patience);
        peer.left_alone = Some(Instant::now() + patience);
        self.peers_changed = true;
    }

    fn is_reached(&mut self, address: IpAddr) {
        let mut all = self.peers.values_mut();
        let peer = all.find(|peer| peer.addresses.contains(&address));
        if peer.is_some_and(|peer| peer.patience.take().is_some()) {
            tracing::info!("the relay of {address} is reached again");
        }
    }
}

fn next_patience(former: Option<Duration>) -> Duration {
    former.map_or(LEFT_ALONE, |former| (former * 2).min(LEFT_ALONE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_left_alone_for_longer_and_longer_up_to_a_minute() {
        let all = std::iter::successors(Some(next_patience(None)), |last| {
            Some(next_patience(Some(*last)))
        });
        let seconds: Vec<u64> = all.take(8).map(|it| it.as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
    }
}
