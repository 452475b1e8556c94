//! What TCP handshakes say of the hosts at the other ends (docs/decisions/0026): whether to ask one
//! for its sluiced. A hint and no more; who is there the daemons prove to each other.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use serde::Serialize;
use sluice_bpf::{
    Cgroup, Error, Event, Finder, FinderOptions, Network, Peer, PortSet, Rules, Verdict,
};
use sluice_peering::Identity;
use sluice_peering::config::{Action, Config, Rule};
use sluice_sys::unix::{self, Fd};

use unheard::Unheard;

mod unheard;

/// Only SYNs that were not heard are told of: hundreds at a time.
const EVENTS_BYTES: u32 = 32 * 1024;

/// How unknown hosts are found, where the configuration wants the option in handshakes.
#[derive(Debug)]
pub struct Finding {
    /// Or why every host is asked.
    state: Result<InUse, String>,
    not_asked: u64,
}

#[derive(Debug)]
struct InUse {
    finder: Finder,
    /// The finder's descriptor again, for epoll.
    events: Fd,
    /// What the configuration says.
    rules: Rules,
    unheard: Unheard,
}

/// What follows for the host at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Its handshake says nothing.
    Ask,
    /// It has answered with the key: a sluiced is there now, whatever was found before.
    AskAnew,
    /// Nobody there can do lanes, or something in between does not let them be found.
    Leave,
}

/// The option, for people and figures.
#[derive(Debug, Default, Serialize)]
pub struct FindingReport {
    pub in_use: bool,
    /// Why every host is asked.
    pub reason: Option<String>,
    /// SYNs and SYN-ACKs with the option, and those that had no room for it.
    pub offered: u64,
    pub answered: u64,
    pub no_room: u64,
    /// Connections, by what their handshakes have shown.
    pub can: u64,
    pub cannot: u64,
    pub echoed: u64,
    pub foreign: u64,
    pub unheard: u64,
    /// Addresses with which the option is not used for a while.
    pub left_alone: usize,
    /// Ends whose hosts were not asked because of what their handshakes have shown.
    pub not_asked: u64,
}

impl Finding {
    /// Attaches the program, for which it takes CAP_BPF and CAP_NET_ADMIN, and CAP_PERFMON for
    /// listeners that are older. Where that is not possible the log says so, and hosts are asked.
    pub fn start(config: &Config, identity: &Identity) -> Self {
        let state = InUse::start(config, identity).map_err(|error| error.to_string());
        match &state {
            Ok(_) => tracing::info!("finds other hosts by an option in handshakes"),
            Err(reason) => tracing::warn!(%reason, "{UNUSED}: {reason}"),
        }
        Self {
            state,
            not_asked: 0,
        }
    }

    /// Readable when [`Finding::turn`] has something to do.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        let in_use = self.state.as_ref().ok()?;
        Some(in_use.events.as_fd())
    }

    /// When it has something to do in any case.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.state.as_ref().ok()?.unheard.next_deadline()
    }

    /// Leaves addresses alone that the option keeps from being reached, for a while.
    pub fn turn(&mut self, now: Instant) {
        self.attempt(|in_use| in_use.turn(now));
    }

    /// Whether to ask the host at the other end of the socket with this cookie.
    pub fn advice(&mut self, cookie: u64) -> Advice {
        let verdict = self.attempt(|in_use| in_use.finder.verdict(cookie).map_err(text));
        verdict.flatten().map_or(Advice::Ask, advice)
    }

    /// A host was not asked for an end that is connected to it, as [`Advice::Leave`] says.
    pub const fn count_not_asked(&mut self) {
        self.not_asked += 1;
    }

    /// Takes another configuration, for connections from now on.
    pub fn reload(&mut self, config: &Config, key: [u8; 16]) {
        self.attempt(|in_use| {
            in_use.rules = rules(config);
            let rules = in_use.rules_now();
            in_use.finder.set_key(key, &rules).map_err(text)
        });
    }

    /// How things are now.
    pub fn report(&self) -> FindingReport {
        let not_asked = self.not_asked;
        let in_use = match &self.state {
            Ok(in_use) => in_use,
            Err(reason) => {
                return FindingReport {
                    reason: Some(reason.clone()),
                    not_asked,
                    ..FindingReport::default()
                };
            }
        };
        let counters = in_use.finder.counters().unwrap_or_default();
        let of = |peer| {
            let all = Peer::ALL.iter().zip(counters.verdicts);
            let mut same = all.filter(|(one, _)| **one == peer);
            same.next().map_or(0, |(_, count)| count)
        };
        FindingReport {
            in_use: true,
            reason: None,
            offered: counters.offered,
            answered: counters.answered,
            no_room: counters.no_room,
            can: of(Peer::Can),
            cannot: of(Peer::Cannot),
            echoed: of(Peer::Echoed),
            foreign: of(Peer::Foreign),
            unheard: of(Peer::Unheard),
            left_alone: in_use.unheard.left_alone().count(),
            not_asked,
        }
    }

    /// Does something with the program, if it is in use. After an error it is not any more.
    fn attempt<T>(&mut self, body: impl FnOnce(&mut InUse) -> Result<T, String>) -> Option<T> {
        let reason = match body(self.state.as_mut().ok()?) {
            Ok(done) => return Some(done),
            Err(reason) => reason,
        };
        tracing::error!(%reason, "{UNUSED}: {reason}");
        self.state = Err(reason);
        None
    }
}

const UNUSED: &str = "no option in handshakes, hosts are found by asking each";

fn text(error: Error) -> String {
    error.to_string()
}

impl InUse {
    fn start(config: &Config, identity: &Identity) -> Result<Self, Error> {
        let cgroup = match &config.discovery.cgroup {
            Some(path) => Cgroup::open(path)?,
            None => Cgroup::root()?,
        };
        let rules = rules(config);
        let options = FinderOptions {
            key: identity.cluster(),
            only_unheard: true,
            events_bytes: EVENTS_BYTES,
            ..FinderOptions::default()
        };
        let finder = Finder::attach(&cgroup, &options, &rules)?;
        if let Err(error) = finder.enroll_listeners() {
            tracing::warn!(
                reason = %error,
                "servers that listen already do not answer by the option until they listen anew: \
                 {error}"
            );
        }
        let events = unix::duplicate(finder.raw()).map_err(|errno| Error::System {
            call: "dup",
            errno: errno.0,
        })?;
        Ok(Self {
            finder,
            events,
            rules,
            unheard: Unheard::default(),
        })
    }

    fn turn(&mut self, now: Instant) -> Result<(), String> {
        let mut unheard = Vec::new();
        self.finder.read(&mut |event| match event {
            Event::Established(it) if it.verdict.peer == Peer::Unheard => {
                unheard.push(it.remote.ip());
            }
            Event::Established(_) | Event::Closed { .. } => {}
        });
        let mut has_changed = self.unheard.expire(now);
        for address in unheard {
            if self.unheard.note(address, now)? {
                has_changed = true;
                tracing::warn!(
                    %address,
                    "handshakes with {address} take a second longer with the option: something on \
                     the way drops it. They go without for ten minutes"
                );
            }
        }
        if has_changed {
            let rules = self.rules_now();
            self.finder.set_rules(&rules).map_err(text)?;
        }
        Ok(())
    }

    /// What the configuration says, without those who are left alone.
    fn rules_now(&self) -> Rules {
        let mut rules = self.rules.clone();
        let left = self.unheard.left_alone().filter_map(single);
        rules.networks.extend(left.map(|network| (network, false)));
        rules
    }
}

fn single(address: IpAddr) -> Option<Network> {
    Network::new(address, if address.is_ipv4() { 32 } else { 128 })
}

/// What a handshake's verdict advises.
fn advice(verdict: Verdict) -> Advice {
    match verdict.peer {
        // What the end that accepts was offered, anybody can offer.
        Peer::Can if verdict.active => Advice::AskAnew,
        Peer::Can => Advice::Ask,
        Peer::Cannot | Peer::Echoed | Peer::Foreign | Peer::Unheard => Advice::Leave,
    }
}

/// The option is for connections with hosts that would be asked otherwise: those of the networks of
/// discovery, but for the peers of the configuration, which are asked all the time.
fn rules(config: &Config) -> Rules {
    let network = |network: &sluice_peering::config::Network| {
        let (first, prefix) = network.parts();
        Network::new(first, prefix)
    };
    let found = config.discovery.networks.iter().filter_map(network);
    let peers = config.peers.iter().flat_map(|peer| &peer.addresses);
    let known = peers.filter_map(network);
    Rules {
        enabled: config.discovery.enabled,
        networks: found
            .map(|network| (network, true))
            .chain(known.map(|network| (network, false)))
            .collect(),
        other_networks: false,
        ports: ports(config),
    }
}

/// Not those that rules leave to the kernel whatever else is known of a connection, nor the one at
/// which daemons are asked.
fn ports(config: &Config) -> PortSet {
    let decides = |rule: &Rule| {
        rule.action == Action::Accelerate || rule.programs.is_none() && rule.networks.is_none()
    };
    let is_left = |port: &u16| {
        let about = |rule: &&Rule| rule.ports.is_none_or(|ports| ports.contains(*port));
        let mut rules = config.rules.0.iter().filter(about);
        rules
            .find(|rule| decides(rule))
            .is_some_and(|rule| rule.action == Action::Leave)
    };
    let asked = config.discovery.port;
    let left = (0..=u16::MAX).filter(is_left);
    left.chain([asked])
        .fold(PortSet::all(), |ports, port| ports.with(port..=port, false))
}

#[cfg(test)]
mod tests;
