//! Connections of peers' programs to programs here.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use sluice_relay::{Interest, Readiness, socket};

use super::{Relay, Whose};
use crate::capture::header::{Answer, Between, HEADER_BYTES, Header, Secret};

/// What a header may take.
const HEADER_LIMIT: Duration = Duration::from_secs(5);
/// What the program here may take to accept. The peer's relay is told in time if it does not: it must
/// not have gone to the program directly when this connection comes about.
pub(super) const ACCEPT_LIMIT: Duration = Duration::from_millis(1500);
/// Connections from whom nothing is proven yet, at most: the oldest gives way to another one, since a
/// peer proves itself at once.
const UNPROVEN_MAX: usize = 1024;
/// Ports that are tried so that a connection does not meet itself.
const BIND_ATTEMPTS_MAX: usize = 4;

/// A peer's connection, on its way.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing is proven.
    Hearing { relay: OwnedFd, heard: Vec<u8> },
    /// To the program here.
    Reaching {
        relay: OwnedFd,
        proven: Proven,
        program: OwnedFd,
        from: SocketAddr,
        to: SocketAddr,
    },
}

/// To which header an answer is owed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proven {
    secret: Secret,
    number: u64,
    between: Between,
}

impl Step {
    pub fn waits_for(&self) -> BorrowedFd<'_> {
        match self {
            Self::Hearing { relay, .. } => relay.as_fd(),
            Self::Reaching { program, .. } => program.as_fd(),
        }
    }
}

/// Why the program here is not connected to in a client's place.
#[derive(Debug)]
enum Problem {
    Port,
    Cgroup,
    Terms,
    Unreached(io::Error),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Unreached(error)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port => f.write_str("not a port for peers' programs"),
            Self::Cgroup => f.write_str(
                "the program there is not in the cgroup of [capture], and would not see the client's address",
            ),
            Self::Terms => f.write_str(
                "the program there has set a key (TCP-MD5, TCP-AO), a TTL or IP options by which it tells its clients",
            ),
            Self::Unreached(error) => error.fmt(f),
        }
    }
}

impl Relay {
    /// Somebody has connected to the port for peers' relays.
    pub(super) fn peer_comes(&mut self, relay: OwnedFd) {
        if self.is_full() {
            self.counts.reasons.refused_full += 1;
            return self.count_refusal();
        }
        if self.unproven.len() >= UNPROVEN_MAX
            && let Some(&(_, oldest)) = self.unproven.first()
        {
            self.take(oldest);
            self.count_unproven();
        }
        let made = socket::send_at_once(relay.as_fd())
            .and_then(|()| socket::reset_on_close(relay.as_fd(), true));
        if made.is_err() {
            return;
        }
        let heard = Vec::new();
        self.wait(
            super::Step::Far(Step::Hearing { relay, heard }),
            Interest::Readable,
            Some(Instant::now() + HEADER_LIMIT),
        );
    }

    /// Whoever can connect to us can cause this: the log hears of one a minute.
    fn say_refusal(&mut self, why: fmt::Arguments<'_>) {
        match self.refusals.is_due(Instant::now()) {
            Some(0) => tracing::warn!("refuses {why}"),
            Some(others) => tracing::warn!("refuses {why}; and {others} others before"),
            None => tracing::debug!("refuses {why}"),
        }
    }

    fn count_unproven(&mut self) {
        self.counts.reasons.refused_unproven += 1;
        self.count_refusal();
    }

    fn count_refusal(&mut self) {
        self.counts.refused += 1;
        self.counted();
    }

    pub(super) fn far_ready(
        &mut self,
        step: Step,
        readiness: Readiness,
        deadline: Option<Instant>,
    ) {
        match step {
            Step::Hearing { relay, heard } => self.hear_header(relay, heard, deadline),
            Step::Reaching {
                relay,
                proven,
                program,
                from,
                to,
            } => {
                let failed = socket::take_error(program.as_fd()).err();
                if failed.is_none() && readiness.writable && !readiness.failed {
                    self.answer(&relay, &proven, Answer::Connected);
                    return self.join(relay, program, Whose::Served);
                }
                tracing::debug!("{to} has not accepted: {failed:?}");
                let _ = self.programs.withdraw(self.netns, from, to);
                self.counts.reasons.refused_unaccepted += 1;
                self.refuse(relay, &proven);
            }
        }
    }

    /// Reads no byte more than a header: what follows belongs to the program here.
    fn hear_header(&mut self, relay: OwnedFd, mut heard: Vec<u8>, deadline: Option<Instant>) {
        let mut rest = vec![0; HEADER_BYTES.saturating_sub(heard.len())];
        match socket::read(relay.as_fd(), &mut rest) {
            Ok(0) => return self.count_unproven(),
            Ok(count) => heard.extend(rest.iter().take(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return self.count_unproven(),
        }
        let Some(bytes) = heard.first_chunk::<HEADER_BYTES>() else {
            let step = super::Step::Far(Step::Hearing { relay, heard });
            return self.wait(step, Interest::Readable, deadline);
        };
        match self.prove(&relay, bytes) {
            Ok((header, proven)) => self.let_in(relay, &header, proven),
            Err(why) => {
                // To whoever it is, nothing is said.
                self.say_refusal(format_args!("a connection to the relay: {why}"));
                self.count_unproven();
            }
        }
    }

    fn prove(
        &mut self,
        relay: &OwnedFd,
        bytes: &[u8; HEADER_BYTES],
    ) -> Result<(Header, Proven), String> {
        let between = Between {
            from: socket::remote_address(relay.as_fd()).map_err(|error| error.to_string())?,
            to: socket::local_address(relay.as_fd()).map_err(|error| error.to_string())?,
        };
        let from = between.from;
        let Some(header) = Header::parse(bytes) else {
            return Err(format!("{from} says something else"));
        };
        let Some((secret, numbers)) = self.admitted.get_mut(&header.secret) else {
            return Err(format!("{from} has a secret of nobody's"));
        };
        if !Header::is_proven(bytes, secret, &between) {
            return Err(format!("{from} has not made its header"));
        }
        if !numbers.take(header.number) {
            return Err(format!("{from} repeats a header"));
        }
        let proven = Proven {
            secret: *secret,
            number: header.number,
            between,
        };
        Ok((header, proven))
    }

    /// Begins to connect to the program here.
    fn let_in(&mut self, relay: OwnedFd, header: &Header, proven: Proven) {
        let to = header.destination;
        match self.begin_to_reach(header) {
            Ok((program, from)) => {
                let step = Step::Reaching {
                    relay,
                    proven,
                    program,
                    from,
                    to,
                };
                self.wait(
                    super::Step::Far(step),
                    Interest::Writable,
                    Some(Instant::now() + ACCEPT_LIMIT),
                );
            }
            Err(problem) => {
                self.say_refusal(format_args!("a peer's connection to {to}: {problem}"));
                let reasons = &mut self.counts.reasons;
                let reason = match problem {
                    Problem::Port => &mut reasons.refused_port,
                    Problem::Cgroup => &mut reasons.refused_cgroup,
                    Problem::Terms => &mut reasons.refused_terms,
                    Problem::Unreached(_) => &mut reasons.refused_unaccepted,
                };
                *reason += 1;
                self.refuse(relay, &proven);
            }
        }
    }

    fn begin_to_reach(&mut self, header: &Header) -> Result<(OwnedFd, SocketAddr), Problem> {
        let to = header.destination;
        if !self.choice.serves(to.port()) || self.own_ports.contains(&to.port()) {
            return Err(Problem::Port);
        }
        if !self.shown.reaches(to) {
            return Err(Problem::Cgroup);
        }
        self.reach_program(header)
    }

    fn reach_program(&self, header: &Header) -> Result<(OwnedFd, SocketAddr), Problem> {
        let to = header.destination;
        let ip = to.ip();
        if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() {
            let problem = "it is not an address of this host";
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, problem).into());
        }
        for _ in 0..BIND_ATTEMPTS_MAX {
            let fd = self.own_socket(&to)?;
            // From the very address that it goes to: it must be one of this host, and whatever
            // happens to it, nothing leaves this host.
            socket::bind(fd.as_fd(), &SocketAddr::new(ip, 0))?;
            let from = socket::local_address(fd.as_fd())?;
            if from.port() == to.port() {
                // Where nobody listens it would connect to itself (RFC 9293 §3.5).
                continue;
            }
            if self
                .programs
                .has_terms(from, to)
                .map_err(io::Error::other)?
            {
                return Err(Problem::Terms);
            }
            self.programs
                .present(self.netns, from, to, header.client)
                .map_err(io::Error::other)?;
            if let Err(error) = socket::connect(fd.as_fd(), &to) {
                let _ = self.programs.withdraw(self.netns, from, to);
                return Err(error.into());
            }
            return Ok((fd, from));
        }
        Err(io::Error::from(io::ErrorKind::AddrInUse).into())
    }

    fn answer(&self, relay: &OwnedFd, proven: &Proven, answer: Answer) {
        let bytes = answer.seal(&proven.secret, proven.number, &proven.between);
        // There is room: it is the first thing on this connection. Should it be gone already, the
        // pair finds out.
        if let Err(error) = socket::write(relay.as_fd(), &bytes) {
            tracing::debug!("{} is gone: {error}", proven.between.from);
        }
    }

    /// The peer's relay goes its own way.
    fn refuse(&mut self, relay: OwnedFd, proven: &Proven) {
        self.answer(&relay, proven, Answer::Refused);
        // What was said is to arrive.
        let _ = socket::reset_on_close(relay.as_fd(), false);
        self.count_refusal();
    }

    pub(super) fn far_late(&mut self, step: Step) {
        match step {
            Step::Hearing { .. } => self.count_unproven(),
            Step::Reaching {
                relay,
                proven,
                from,
                to,
                ..
            } => {
                let _ = self.programs.withdraw(self.netns, from, to);
                self.counts.reasons.refused_unaccepted += 1;
                self.refuse(relay, &proven);
            }
        }
    }
}
