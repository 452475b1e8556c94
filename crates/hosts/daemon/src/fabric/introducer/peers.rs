//! Peers, and the queue pairs with them: each carrier has one of its own with each peer, up to the number
//! that both have. The n-th carrier's goes to the peer's n-th carrier, and fails and comes back by itself.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_fabric::wire::LinkId;
use sluice_peering::config::Network;

use super::direct::Stage;
use super::links::LinkNumbers;
use super::{Action, Introducer, PeerName, Programs, Progress};
use crate::fabric::carrier::Command;
use crate::fabric::traffic::Traffic;
use crate::fabric::words::{Life, NUMBERS_VERSION, SEVERAL_VERSION, Token, Word};

/// Time between a link's failure and the next attempt; it doubles up to the maximum.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Time between two queue pairs in one place, however often the peer asks for another one. Shorter than [`RETRY`]:
/// a peer that keeps to that does not wait.
const MAKE_INTERVAL: Duration = Duration::from_millis(50);

/// Addresses of one peer.
const ADDRESSES_MAX: usize = 64;

/// Peers that are remembered, with a session or without. Of those without one the longest gone is forgotten: a
/// host that has the common key can have many names.
pub(super) const PEERS_MAX: usize = 4 * sluice_peering::limits::SESSIONS_MAX;

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
    /// Said in this session.
    has_said_hello: bool,
    pub(super) life: Option<Life>,
    /// The last one that it had, whatever became of it.
    pub(super) last_life: Option<Life>,
    /// Each carrier has its link to the peer by this number.
    pub(super) link: LinkId,
    /// Of each carrier, also of those that the peer has no counterpart of.
    queue_pairs: Vec<QueuePair>,
    /// How many of them the peer can have, too.
    theirs_max: usize,
    /// How many of them are used.
    pub(super) agreed: usize,
    /// It speaks of more than one.
    speaks_of_several: bool,
    /// It takes two ends for one connection's only if their numbers agree.
    pub(super) compares_numbers: bool,
    /// It was said that it does not.
    pub(super) is_known_as_old: bool,
    /// Questions of it that wait for an answer.
    pub(super) questions: usize,
    /// The log has said that one of the two daemons alone can read sequence numbers.
    pub(super) is_known_as_unlike: bool,
}

/// A carrier's queue pair with a peer.
#[derive(Debug)]
struct QueuePair {
    /// How many were made in its place so far; 0: none.
    attempt: u32,
    /// The carrier was told to make one, and has not answered yet.
    is_being_made: bool,
    /// The next one is not made before, however often the peer asks for it.
    not_before: Option<Instant>,
    /// The attempt that the carrier was told to connect.
    connected: u32,
    /// The peer's one of the present attempt, until ours is made.
    theirs: Option<sluice_rdma::Endpoint>,
    is_connected: bool,
    /// Something has come over the present one.
    is_proven: bool,
    retry_at: Option<Instant>,
    retry: Duration,
    traffic: Arc<Traffic>,
    losses: u64,
    failure: Option<String>,
}

impl Default for QueuePair {
    fn default() -> Self {
        Self {
            attempt: 0,
            is_being_made: false,
            not_before: None,
            connected: 0,
            theirs: None,
            is_connected: false,
            is_proven: false,
            retry_at: None,
            retry: RETRY,
            traffic: Arc::default(),
            losses: 0,
            failure: None,
        }
    }
}

/// How far the link to a peer has come: as far as the best of its queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// Of the link, by their places.
    pub queue_pairs: Vec<KnownPair>,
    /// Why one of them has failed that has not come back.
    pub failure: Option<&'a str>,
    pub lanes: u32,
    /// Ends here that wait for their other ones.
    pub waiting: u32,
}

/// A queue pair with a peer, for people. Counts are since the start of sluiced, whoever the peer was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownPair {
    pub link: LinkState,
    /// Times that it has failed.
    pub losses: u64,
    /// Sent and received.
    pub bytes: (u64, u64),
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
            // What those have counted that are not used any more counts, too.
            let is_known =
                |at, it: &QueuePair| at < peer.agreed || it.attempt > 0 || it.has_counted();
            let known = peer.queue_pairs.iter().enumerate();
            let known = known.filter(|(at, it)| is_known(*at, it));
            let queue_pairs: Vec<KnownPair> = known.map(|(_, it)| it.known(peer.is_up)).collect();
            let used = peer.queue_pairs.iter().take(peer.agreed);
            Known {
                name,
                link: queue_pairs
                    .iter()
                    .map(|it| it.link)
                    .max()
                    .unwrap_or(LinkState::Down),
                queue_pairs,
                failure: { used }.find_map(|it| it.failure.as_deref()),
                lanes,
                waiting,
            }
        });
        known.collect()
    }

    /// There is a control connection of this version with a peer.
    pub fn peer_up(&mut self, name: &PeerName, addresses: Vec<Network>, version: u16) {
        let (life, carriers) = (self.life, self.carriers);
        if !self.peers.contains_key(name) {
            self.make_room_for_peer();
        }
        let peer = self.peers.entry(name.clone()).or_insert_with(|| Peer {
            own: life,
            addresses: Vec::new(),
            is_up: false,
            absent_since: None,
            has_said_hello: false,
            life: None,
            last_life: None,
            link: self.links.take(),
            queue_pairs: (0..carriers).map(|_| QueuePair::default()).collect(),
            theirs_max: 1,
            agreed: 1,
            speaks_of_several: false,
            compares_numbers: false,
            is_known_as_old: false,
            is_known_as_unlike: false,
            questions: 0,
        });
        peer.has_said_hello = false;
        // Until it says otherwise, before it says hello.
        peer.theirs_max = 1;
        peer.speaks_of_several = version >= SEVERAL_VERSION;
        peer.compares_numbers = version >= NUMBERS_VERSION;
        peer.is_known_as_old = false;
        peer.is_known_as_unlike = false;
        let is_one_of_several = carriers > 1 && peer.speaks_of_several;
        peer.addresses = addresses;
        peer.is_up = true;
        peer.absent_since = None;
        let life = peer.own;
        if is_one_of_several {
            let count = carriers as u8;
            self.say(name, Word::QueuePairs { count });
        }
        self.say(name, Word::Hello { life });
    }

    /// Forgets the peer that has been gone for longest where there are too many.
    fn make_room_for_peer(&mut self) {
        while self.peers.len() >= PEERS_MAX {
            let gone = self.peers.iter().filter(|(_, peer)| !peer.is_up);
            let oldest = gone.min_by_key(|(_, peer)| peer.absent_since);
            let Some(name) = oldest.map(|(name, _)| name.clone()) else {
                return;
            };
            if let Some(peer) = self.peers.remove(&name) {
                self.actions.extend(peer.lose_link(&mut self.links));
            }
            self.actions.push(Action::Forget(name));
        }
    }

    /// So many queue pairs the peer can have with this host.
    pub(super) fn heard_queue_pairs(&mut self, name: &PeerName, count: u8) {
        if let Some(peer) = self.peers.get_mut(name) {
            peer.theirs_max = usize::from(count.max(1));
        }
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
        self.foreign.peer_down(name);
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

    pub(super) fn hello(
        &mut self,
        name: &PeerName,
        life: Life,
        programs: &mut dyn Programs,
        now: Instant,
    ) {
        let Some(peer) = self.peers.get_mut(name) else {
            return;
        };
        // A daemon has one life, and says it once. Each other one would cost a link.
        if std::mem::replace(&mut peer.has_said_hello, true) {
            tracing::debug!(peer = %name, "{name} says hello again");
            return;
        }
        let own = peer.own;
        if peer.life.is_some_and(|former| former != life) {
            // Another daemon, which knows nothing of the lanes with the one before.
            self.actions.extend(peer.forget_life(&mut self.links));
        }
        peer.agreed = peer.theirs_max.min(peer.queue_pairs.len());
        peer.life = Some(life);
        let former = peer.last_life.replace(life);
        let is_successor = former.is_some_and(|former| former != life);
        let seats = programs.seats();
        for at in 0..peer.agreed {
            peer.queue_pairs[at].retry = RETRY;
            if own.0 > life.0 && !peer.queue_pairs[at].is_connected {
                self.actions.extend(peer.make_link(at, now));
            }
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
            self.say_end(name, token);
            self.look_for_match(token, programs);
        }
    }

    /// The daemon with the greater life leads: it decides when there is another queue pair.
    pub(super) fn heard_link(
        &mut self,
        name: &PeerName,
        at: u8,
        attempt: u32,
        endpoint: sluice_rdma::Endpoint,
        now: Instant,
    ) {
        let at = usize::from(at);
        let Some(peer) = self.peers.get_mut(name) else {
            return;
        };
        let own = peer.own;
        let (Some(life), link) = (peer.life, peer.link) else {
            return;
        };
        if at >= peer.agreed {
            self.drop_peer(name, "has more queue pairs than there are");
            return;
        }
        let queue_pair = &mut peer.queue_pairs[at];
        if own.0 > life.0 {
            if attempt == queue_pair.attempt && queue_pair.connected != attempt {
                queue_pair.connected = attempt;
                queue_pair.is_connected = true;
                let connect = Command::ConnectLink { link, endpoint };
                self.actions.push(Action::Carry(at, connect));
            }
        } else if attempt > queue_pair.attempt {
            queue_pair.attempt = attempt - 1;
            queue_pair.is_connected = false;
            queue_pair.theirs = Some(endpoint);
            self.actions.extend(peer.make_link(at, now));
        }
    }

    pub(super) fn heard_broken(&mut self, name: &PeerName, at: u8, attempt: u32, now: Instant) {
        if let Some(peer) = self.peers.get_mut(name)
            && peer.life.is_some_and(|life| peer.own.0 > life.0)
            && let Some(queue_pair) = peer.queue_pairs.get_mut(usize::from(at))
            && queue_pair.attempt == attempt
        {
            queue_pair.retry_later(now);
        }
    }

    pub(super) fn link_made(
        &mut self,
        (link, at): (LinkId, usize),
        attempt: u32,
        endpoint: sluice_rdma::Endpoint,
    ) {
        let Some(name) = self.peer_of(link) else {
            return;
        };
        let peer = self.peers.get_mut(&name);
        let Some(queue_pair) = peer.and_then(|peer| peer.queue_pairs.get_mut(at)) else {
            return;
        };
        queue_pair.is_being_made = false;
        if queue_pair.attempt != attempt {
            return;
        }
        if let Some(endpoint) = queue_pair.theirs.take() {
            queue_pair.is_connected = true;
            let connect = Command::ConnectLink { link, endpoint };
            self.actions.push(Action::Carry(at, connect));
        }
        let word = Word::Link {
            at: at as u8,
            attempt,
            endpoint,
        };
        self.say(&name, word);
    }

    /// The network lets the fabric through.
    pub(super) fn link_proven(&mut self, (link, at): (LinkId, usize)) {
        let Some(name) = self.peer_of(link) else {
            return;
        };
        if let Some(peer) = self.peers.get_mut(&name)
            && let Some(queue_pair) = peer.queue_pairs.get_mut(at)
        {
            tracing::info!(peer = %name, "{}the link to {name} is up", which(at, peer.agreed));
            queue_pair.is_proven = true;
            queue_pair.retry = RETRY;
            queue_pair.failure = None;
        }
    }

    pub(super) fn link_failed(&mut self, (link, at): (LinkId, usize), why: &str, now: Instant) {
        let Some(name) = self.peer_of(link) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&name) else {
            return;
        };
        let Some(queue_pair) = peer.queue_pairs.get_mut(at) else {
            return;
        };
        let which = which(at, peer.agreed);
        // Every attempt may fail in the same way, for days.
        if queue_pair.is_proven || queue_pair.failure.as_deref() != Some(why) {
            tracing::info!(peer = %name, reason = why, "{which}the link to {name} failed: {why}");
        } else {
            tracing::debug!(peer = %name, reason = why, "{which}the link to {name} failed again: {why}");
        }
        queue_pair.is_being_made = false;
        queue_pair.is_connected = false;
        queue_pair.losses += 1;
        queue_pair.failure = Some(why.to_owned());
        if peer.life.is_some_and(|life| peer.own.0 > life.0) {
            queue_pair.retry_later(now);
        } else {
            let attempt = queue_pair.attempt;
            let at = at as u8;
            self.say(&name, Word::Broken { at, attempt });
        }
    }
}

impl Peer {
    pub(super) fn is_at(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|it| it.contains(address))
    }

    /// Another queue pair in this place, if there is one. At once, or as soon as it is time.
    fn make_link(&mut self, at: usize, now: Instant) -> Option<Action> {
        let link = self.link;
        let queue_pair = self.queue_pairs.get_mut(at)?;
        let not_before = queue_pair.not_before.filter(|at| *at > now);
        if queue_pair.is_being_made || not_before.is_some() {
            let due = not_before.unwrap_or(now + queue_pair.retry);
            if not_before.is_none() {
                // The carrier stands still, or has ended.
                queue_pair.retry = (2 * queue_pair.retry).min(RETRY_MAX);
            }
            queue_pair.retry_at = Some(queue_pair.retry_at.map_or(due, |at| at.min(due)));
            return None;
        }
        queue_pair.is_being_made = true;
        queue_pair.not_before = Some(now + MAKE_INTERVAL);
        queue_pair.retry_at = None;
        queue_pair.attempt += 1;
        queue_pair.is_proven = false;
        let command = Command::MakeLink {
            link,
            attempt: queue_pair.attempt,
            traffic: queue_pair.traffic.clone(),
        };
        Some(Action::Carry(at, command))
    }

    /// When [`Peer::retry`] has something to do.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.queue_pairs.iter().filter_map(|it| it.retry_at).min()
    }

    /// Tries again what is due.
    pub(super) fn retry(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        for at in 0..self.queue_pairs.len() {
            let queue_pair = &mut self.queue_pairs[at];
            if queue_pair.retry_at.take_if(|due| *due <= now).is_some() && self.is_up {
                actions.extend(self.make_link(at, now));
            }
        }
        actions
    }

    /// There was, or was to be, a queue pair.
    pub(super) fn has_tried(&self) -> bool {
        self.queue_pairs.iter().any(|it| it.attempt > 0)
    }

    /// The place of the queue pair for a new lane: of those that work, or else of all, the one of the carrier
    /// that has the fewest lanes.
    pub(super) fn choose(&self, lanes: impl Fn(usize) -> u32) -> usize {
        let used = self.queue_pairs.iter().take(self.agreed).enumerate();
        let best = used.min_by_key(|(at, it)| {
            let is_up = it.state(self.is_up) == LinkState::Up;
            (!is_up, lanes(*at))
        });
        best.map_or(0, |(at, _)| at)
    }

    /// Its daemon is gone for good: the next one gets another link. What the carriers are told.
    pub(super) fn forget_life(&mut self, links: &mut LinkNumbers) -> Vec<Action> {
        let actions = self.lose_link(links);
        self.life = None;
        for queue_pair in &mut self.queue_pairs {
            queue_pair.attempt = 0;
            queue_pair.is_being_made = false;
            queue_pair.connected = 0;
            queue_pair.theirs = None;
            queue_pair.is_connected = false;
            queue_pair.retry_at = None;
        }
        self.link = links.take();
        actions
    }

    /// The carriers give its link up, which has no number any more.
    fn lose_link(&self, links: &mut LinkNumbers) -> Vec<Action> {
        let link = self.link;
        links.give_up(link);
        let lose = |at| Action::Carry(at, Command::LoseLink { link });
        (0..self.queue_pairs.len()).map(lose).collect()
    }
}

/// Which of a link's queue pairs it is about, where there are several.
fn which(at: usize, agreed: usize) -> String {
    match agreed {
        0 | 1 => String::new(),
        _ => format!("queue pair {at} of "),
    }
}

impl QueuePair {
    fn known(&self, is_peer_up: bool) -> KnownPair {
        KnownPair {
            link: self.state(is_peer_up),
            losses: self.losses,
            bytes: self.traffic.bytes(),
        }
    }

    fn has_counted(&self) -> bool {
        self.losses > 0 || self.traffic.bytes() != (0, 0)
    }

    fn state(&self, is_peer_up: bool) -> LinkState {
        match self.is_connected {
            true if self.is_proven => LinkState::Up,
            true => LinkState::Trying,
            false if self.attempt > 0 && is_peer_up => LinkState::Trying,
            false => LinkState::Down,
        }
    }

    fn retry_later(&mut self, now: Instant) {
        self.is_connected = false;
        if self.retry_at.is_none() {
            self.retry_at = Some(now + self.retry);
            self.retry = (2 * self.retry).min(RETRY_MAX);
        }
    }
}
