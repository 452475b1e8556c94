//! Peers, and the links to them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_fabric::wire::LinkId;
use sluice_peering::config::Network;

use super::direct::Stage;
use super::{Action, Introducer, PeerName, Programs, Progress};
use crate::fabric::carrier::Command;
use crate::fabric::traffic::Traffic;
use crate::fabric::words::{Life, Token, Word};

/// Time between a link's failure and the next attempt; it doubles up to the maximum.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Addresses of one peer.
const ADDRESSES_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Peer {
    /// This daemon's life as the peer knows it: another one when what the two have in common was
    /// given up.
    pub(super) own: Life,
    /// Connections with these addresses end at its host.
    pub(super) addresses: Vec<Network>,
    /// It has a control connection.
    pub(super) is_up: bool,
    pub(super) absent_since: Option<Instant>,
    pub(super) life: Option<Life>,
    /// The last one that it had, whatever became of it.
    pub(super) last_life: Option<Life>,
    pub(super) link: LinkId,
    /// Queue pairs made for this link so far; 0: none.
    pub(super) attempt: u32,
    /// The peer's queue pair of the present attempt, until ours is made.
    pub(super) theirs: Option<sluice_rdma::Endpoint>,
    pub(super) is_connected: bool,
    /// Something has come over the present queue pair.
    pub(super) is_proven: bool,
    pub(super) retry_at: Option<Instant>,
    pub(super) retry: Duration,
    pub(super) traffic: Arc<Traffic>,
    pub(super) losses: u64,
    pub(super) failure: Option<String>,
}

/// How far the link to a peer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    Down,
    /// Nothing has come over it yet.
    Trying,
    Up,
}

/// A peer, for people.
#[derive(Clone, Debug)]
pub struct Known<'a> {
    pub name: &'a str,
    pub link: LinkState,
    /// Times that the link has failed, and why the last time.
    pub losses: u64,
    pub failure: Option<&'a str>,
    pub lanes: u32,
    /// Ends here that wait for their other ones.
    pub waiting: u32,
    pub traffic: &'a Traffic,
}

impl Introducer {
    /// Everybody with whom there was a control connection.
    pub fn peers(&self) -> Vec<Known<'_>> {
        let mut counts: HashMap<&str, (u32, u32)> = HashMap::new();
        for end in self.ends.values() {
            let Some(name) = end.peer.as_deref() else {
                continue;
            };
            let (lanes, waiting) = counts.entry(name).or_default();
            match end.progress {
                Progress::Open { .. } | Progress::Direct(Stage::Open(_)) => *lanes += 1,
                _ => *waiting += 1,
            }
        }
        let known = self.peers.iter().map(|(name, peer)| {
            let (lanes, waiting) = counts.get(&**name).copied().unwrap_or_default();
            Known {
                name,
                link: match peer.is_connected {
                    true if peer.is_proven => LinkState::Up,
                    true => LinkState::Trying,
                    false if peer.attempt > 0 && peer.is_up => LinkState::Trying,
                    false => LinkState::Down,
                },
                losses: peer.losses,
                failure: peer.failure.as_deref(),
                lanes,
                waiting,
                traffic: &peer.traffic,
            }
        });
        known.collect()
    }

    /// There is a control connection with a peer.
    pub fn peer_up(&mut self, name: &PeerName, addresses: Vec<Network>) {
        let life = self.life;
        let peer = self.peers.entry(name.clone()).or_insert_with(|| {
            let link = LinkId(self.next_link);
            self.next_link += 1;
            Peer {
                own: life,
                addresses: Vec::new(),
                is_up: false,
                absent_since: None,
                life: None,
                last_life: None,
                link,
                attempt: 0,
                theirs: None,
                is_connected: false,
                is_proven: false,
                retry_at: None,
                retry: RETRY,
                traffic: Arc::default(),
                losses: 0,
                failure: None,
            }
        });
        peer.addresses = addresses;
        peer.is_up = true;
        peer.absent_since = None;
        let life = peer.own;
        self.say(name, Word::Hello { life });
    }

    /// The configuration says anew which connections end at the peer's host.
    pub fn set_addresses(
        &mut self,
        name: &PeerName,
        addresses: Vec<Network>,
        programs: &mut dyn Programs,
    ) {
        if let Some(peer) = self.peers.get_mut(name) {
            peer.addresses = addresses;
            self.announce_all(name, programs);
        }
    }

    /// Connections with this address end at the peer's host, too.
    pub fn peer_is_at(&mut self, name: &PeerName, address: Network, programs: &mut dyn Programs) {
        if let Some(peer) = self.peers.get_mut(name)
            && !peer.addresses.contains(&address)
            && peer.addresses.len() < ADDRESSES_MAX
        {
            peer.addresses.push(address);
            self.announce_all(name, programs);
        }
    }

    /// The control connection has ended. The link may go on without it.
    pub fn peer_down(&mut self, name: &PeerName, now: Instant) {
        if let Some(peer) = self.peers.get_mut(name) {
            peer.is_up = false;
            peer.absent_since = Some(now);
        }
        // Said again when the peer comes back.
        self.foreign.retain(|_, (from, _)| from != name);
        for end in self.ends.values_mut() {
            if end.peer.as_ref() != Some(name) {
                continue;
            }
            if let Some(action) = end.give_up_direct() {
                self.actions.push(action);
            }
            if matches!(end.progress, Progress::Waiting) {
                end.peer = None;
            }
        }
    }

    pub(super) fn hello(&mut self, name: &PeerName, life: Life, programs: &mut dyn Programs) {
        let Some(peer) = self.peers.get_mut(name) else {
            return;
        };
        let own = peer.own;
        if peer.life.is_some_and(|former| former != life) {
            // Another daemon, which knows nothing of the lanes with the one before.
            self.actions
                .push(Action::Carry(Command::LoseLink { link: peer.link }));
            peer.forget_life(&mut self.next_link);
        }
        peer.life = Some(life);
        let former = peer.last_life.replace(life);
        let is_successor = former.is_some_and(|former| former != life);
        let seats = programs.seats();
        peer.retry = RETRY;
        if own.0 > life.0 && !peer.is_connected {
            self.actions.push(peer.make_link());
        }
        if is_successor {
            programs.peer_lost(name);
        }
        for seat in seats {
            self.say(name, Word::Seat(seat));
        }
        self.announce_all(name, programs);
    }

    /// Announces every end that could have its other one at a peer.
    pub(super) fn announce_all(&mut self, name: &PeerName, programs: &mut dyn Programs) {
        let Some(peer) = self.peers.get(name) else {
            return;
        };
        let mut waiting: Vec<Token> = Vec::new();
        for (token, end) in &mut self.ends {
            let is_there = end.peer.is_none() && peer.is_at(end.announced.tuple.peer.ip());
            if is_there && matches!(end.progress, Progress::Waiting) {
                end.peer = Some(name.clone());
                waiting.push(*token);
            }
        }
        for token in waiting {
            if let Some(end) = self.ends.get(&token) {
                let tuple = end.announced.tuple;
                self.say(name, Word::End { token, tuple });
                self.look_for_match(token, programs);
            }
        }
    }

    /// The daemon with the greater life leads: it decides when there is another queue pair.
    pub(super) fn heard_link(
        &mut self,
        name: &PeerName,
        attempt: u32,
        endpoint: sluice_rdma::Endpoint,
    ) {
        let Some(peer) = self.peers.get_mut(name) else {
            return;
        };
        let own = peer.own;
        let Some(life) = peer.life else {
            return;
        };
        if own.0 > life.0 {
            if attempt == peer.attempt {
                peer.is_connected = true;
                self.actions.push(Action::Carry(Command::ConnectLink {
                    link: peer.link,
                    endpoint,
                }));
            }
        } else if attempt > peer.attempt {
            peer.attempt = attempt - 1;
            peer.is_connected = false;
            peer.theirs = Some(endpoint);
            self.actions.push(peer.make_link());
        }
    }

    pub(super) fn heard_broken(&mut self, name: &PeerName, attempt: u32, now: Instant) {
        if let Some(peer) = self.peers.get_mut(name)
            && peer.attempt == attempt
            && peer.life.is_some_and(|life| peer.own.0 > life.0)
        {
            peer.retry_later(now);
        }
    }

    pub(super) fn link_made(
        &mut self,
        link: LinkId,
        attempt: u32,
        endpoint: sluice_rdma::Endpoint,
    ) {
        let Some(name) = self.peer_of(link) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&name) else {
            return;
        };
        if peer.attempt != attempt {
            return;
        }
        if let Some(theirs) = peer.theirs.take() {
            peer.is_connected = true;
            self.actions.push(Action::Carry(Command::ConnectLink {
                link,
                endpoint: theirs,
            }));
        }
        self.say(&name, Word::Link { attempt, endpoint });
    }

    /// The network lets the fabric through.
    pub(super) fn link_proven(&mut self, link: LinkId) {
        let Some(name) = self.peer_of(link) else {
            return;
        };
        if let Some(peer) = self.peers.get_mut(&name) {
            tracing::info!(peer = %name, "the link to {name} is up");
            peer.is_proven = true;
            peer.retry = RETRY;
            peer.failure = None;
        }
    }

    pub(super) fn link_failed(&mut self, link: LinkId, why: &str, now: Instant) {
        let Some(name) = self.peer_of(link) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&name) else {
            return;
        };
        // Every attempt may fail in the same way, for days.
        if peer.is_proven || peer.failure.as_deref() != Some(why) {
            tracing::info!(peer = %name, reason = why, "the link to {name} failed: {why}");
        } else {
            tracing::debug!(peer = %name, reason = why, "the link to {name} failed again: {why}");
        }
        peer.is_connected = false;
        peer.losses += 1;
        peer.failure = Some(why.to_owned());
        if peer.life.is_some_and(|life| peer.own.0 > life.0) {
            peer.retry_later(now);
        } else {
            let attempt = peer.attempt;
            self.say(&name, Word::Broken { attempt });
        }
    }
}

impl Peer {
    pub(super) fn is_at(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|it| it.contains(address))
    }

    /// Another queue pair.
    pub(super) fn make_link(&mut self) -> Action {
        self.attempt += 1;
        self.is_proven = false;
        Action::Carry(Command::MakeLink {
            link: self.link,
            attempt: self.attempt,
            traffic: self.traffic.clone(),
        })
    }

    /// Its daemon is gone for good: the next one gets another link.
    pub(super) fn forget_life(&mut self, next_link: &mut u32) {
        self.life = None;
        self.attempt = 0;
        self.theirs = None;
        self.is_connected = false;
        self.retry_at = None;
        self.link = LinkId(*next_link);
        *next_link += 1;
    }

    pub(super) fn retry_later(&mut self, now: Instant) {
        self.is_connected = false;
        if self.retry_at.is_none() {
            self.retry_at = Some(now + self.retry);
            self.retry = (2 * self.retry).min(RETRY_MAX);
        }
    }
}
