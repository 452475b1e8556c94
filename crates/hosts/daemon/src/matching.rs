//! Finds the two ends of a connection among all ends that programs announced.
//!
//! An end is known by its addresses and its network namespace. Within a namespace the kernel has
//! at most one live socket for a pair of addresses (and interface, for sockets bound to one).
//! The one with the mirrored addresses is the other end of the same connection, unless packets are
//! redirected on the way, or it has been removed since: sluiced closes its copy of a socket before
//! it looks for a match, or it would keep the connection open. What is found here are candidates,
//! which [`crate::namespace::prove`] accepts or not.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::config::{WAITING_MAX, WAITING_PER_CLIENT_MAX};
use crate::shares::Payer;

/// The number of a client connection; no two in sluiced's life have the same.
pub type ClientId = u32;

/// Ends with the same addresses at a time that may be matched with one in another namespace. A
/// bound on loops. Whoever has most of them gives way; in its own namespace an end is found
/// however many there are elsewhere.
pub const SAME_ADDRESSES_MAX: usize = 16;

/// An end, by the names that its program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndKey {
    pub client: ClientId,
    pub end: u32,
}

/// The addresses of a connection as one end sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tuple {
    pub local: SocketAddr,
    pub peer: SocketAddr,
}

impl Tuple {
    /// As the other end sees them.
    pub fn mirrored(&self) -> Tuple {
        Tuple {
            local: self.peer,
            peer: self.local,
        }
    }
}

/// Where addresses are unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Domain {
    /// `SO_NETNS_COOKIE`.
    pub netns: u64,
    /// The interface or VRF that the socket is bound to, 0 for none.
    pub interface: u32,
}

/// An announcement whose socket was looked at.
#[derive(Clone, Copy, Debug)]
pub struct Announced {
    pub key: EndKey,
    pub generation: u32,
    pub tuple: Tuple,
    pub domain: Domain,
    /// `SO_COOKIE`.
    pub cookie: u64,
}

/// Why an end that was announced has no lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The other end has not been announced.
    Peer,
    /// An end with the mirrored addresses is there, and the kernel does not say whether it belongs to
    /// this one.
    Proof,
    /// An end with the mirrored addresses is there, and is another connection's. The other end has
    /// not been announced.
    Other,
    /// There was a match, but all lanes that there may be are in use.
    Full,
    /// There was a match, but no memory or descriptor for its lane.
    Memory,
    /// There was a match, but one of the programs has so many messages to read that the lane could not
    /// be told to it.
    Unread,
    /// There was a match, but one of the users has as many lanes as it may.
    Share,
    /// There was a match, but the control group of one of the programs is near its limit of memory.
    Limit,
}

/// What is known of an end.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub announced: Announced,
    /// Counts announcements: the lower of two was first.
    pub order: u64,
    /// The end at the other side of the newest lane, as long as it is known.
    pub partner: Option<EndKey>,
    /// It had a lane at some time.
    pub laned: bool,
    pub waiting: Waiting,
    /// Whose program announced it, where users have shares.
    pub user: Payer,
}

/// What follows from an announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No other end yet.
    Waits,
    /// One of these ends, of which at most the first is in the same namespace, could be it.
    Mirrored(Vec<EndKey>),
    /// Another process has announced the same socket and has its lane.
    Duplicate,
}

/// What an announcement did to other entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Displaced {
    /// Ends that gave way to another socket with their addresses.
    pub replaced: u64,
    /// Ends that were forgotten because too many wait.
    pub forgotten: u64,
}

/// The tables always keep room for `ROOM_KEPT` ends. They shrink when they have room for `ROOM_PARTS` times as many ends
/// as there are.
const ROOM_KEPT: usize = 256;
const ROOM_PARTS: usize = 4;

/// All announced ends.
#[derive(Debug, Default)]
pub struct Matcher {
    entries: HashMap<EndKey, Entry>,
    by_place: HashMap<(Tuple, Domain), EndKey>,
    /// Those that have no partner, by their addresses; at most [`SAME_ADDRESSES_MAX`] each.
    candidates: HashMap<Tuple, Vec<EndKey>>,
    by_client: HashMap<ClientId, ClientEnds>,
    waiting: usize,
    next_order: u64,
}

/// The ends of one client.
#[derive(Debug, Default)]
struct ClientEnds {
    /// Those that never had a lane, by the order of their announcement.
    waiting: BTreeMap<u64, u32>,
    /// The others. Each holds a lane, so the limit of lanes bounds them.
    laned: HashSet<u32>,
}

impl Matcher {
    /// The entry of an end.
    pub fn entry(&self, key: EndKey) -> Option<&Entry> {
        self.entries.get(&key)
    }

    /// How many ends are known.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no end is known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The ends of one client, in no order.
    pub fn entries_of(&self, client: ClientId) -> impl Iterator<Item = &Entry> {
        let ends = self.by_client.get(&client);
        ends.into_iter()
            .flat_map(|ends| ends.waiting.values().chain(&ends.laned))
            .filter_map(move |end| self.entries.get(&EndKey { client, end: *end }))
    }

    /// The life that an end is in, if it is known.
    pub fn generation_of(&self, end: EndKey) -> Option<u32> {
        Some(self.entries.get(&end)?.announced.generation)
    }

    /// Takes an announcement of a program of this user in and looks for the other end.
    pub fn announce(&mut self, announced: Announced, user: Payer) -> (Outcome, Displaced) {
        let mut displaced = Displaced::default();
        // The same number again: a new life of it, or another attempt.
        self.remove(announced.key);
        let place = (announced.tuple, announced.domain);
        if let Some(same) = self.by_place.get(&place).copied() {
            let other = &self.entries[&same];
            if other.announced.cookie == announced.cookie && other.partner.is_some() {
                return (Outcome::Duplicate, displaced);
            }
            // Either its socket is gone, or the same socket has changed hands.
            displaced.replaced += u64::from(other.announced.cookie != announced.cookie);
            self.remove(same);
        }
        displaced.forgotten += self.make_room(announced.key.client);
        self.insert(announced, user);
        (self.other_end(&announced), displaced)
    }

    /// Records that two ends got a lane. Both must be known.
    pub fn pair(&mut self, a: EndKey, b: EndKey) {
        for (key, partner) in [(a, b), (b, a)] {
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            entry.partner = Some(partner);
            let tuple = entry.announced.tuple;
            if !entry.laned {
                entry.laned = true;
                let ends = self.by_client.entry(key.client).or_default();
                ends.waiting.remove(&entry.order);
                ends.laned.insert(key.end);
                self.waiting -= 1;
            }
            self.remove_candidate(key, tuple);
        }
    }

    /// Records that an end got a lane to another host.
    pub fn pair_remote(&mut self, key: EndKey) {
        // The other end is nobody's here, so that it cannot be found by this name.
        let elsewhere = EndKey { client: 0, end: 0 };
        self.pair(key, elsewhere);
    }

    /// Records why an end has no lane.
    pub fn set_waiting(&mut self, key: EndKey, waiting: Waiting) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.waiting = waiting;
        }
    }

    /// Whether this end still is what it was at this order, and free to be matched.
    pub fn is_free(&self, key: EndKey, order: u64) -> bool {
        self.entries
            .get(&key)
            .is_some_and(|entry| entry.order == order && entry.partner.is_none())
    }

    /// The socket of this end is gone, if it still is what it was at this order.
    pub fn remove_gone(&mut self, key: EndKey, order: u64) {
        if self.is_free(key, order) {
            self.remove(key);
        }
    }

    /// The program does not use the end any more. `None` for one that is not known in this
    /// generation.
    pub fn release(&mut self, key: EndKey, generation: u32) -> Option<Entry> {
        if self.entries.get(&key)?.announced.generation != generation {
            return None;
        }
        self.remove(key)
    }

    /// Forgets all ends of a client.
    pub fn remove_client(&mut self, client: ClientId) {
        let Some(ends) = self.by_client.get(&client) else {
            return;
        };
        let all: Vec<u32> = ends.waiting.values().chain(&ends.laned).copied().collect();
        for end in all {
            self.remove(EndKey { client, end });
        }
    }

    /// Shrinks the tables if there were far more ends once than there are now. Returns whether it did.
    pub fn give_memory_back(&mut self) -> bool {
        let len = self.entries.len().max(ROOM_KEPT);
        if self.entries.capacity() / ROOM_PARTS < len {
            return false;
        }
        self.entries.shrink_to(len);
        self.by_place.shrink_to(len);
        self.candidates.shrink_to(len);
        self.by_client.shrink_to(len);
        for ends in self.by_client.values_mut() {
            ends.laned.shrink_to_fit();
        }
        true
    }

    fn insert(&mut self, announced: Announced, user: Payer) {
        let key = announced.key;
        let order = self.next_order;
        self.next_order += 1;
        self.by_place
            .insert((announced.tuple, announced.domain), key);
        let ends = self.by_client.entry(key.client).or_default();
        ends.waiting.insert(order, key.end);
        self.waiting += 1;
        let entry = Entry {
            announced,
            order,
            partner: None,
            laned: false,
            waiting: Waiting::Peer,
            user,
        };
        self.entries.insert(key, entry);
        self.add_candidate(key, announced.tuple);
    }

    /// Lets an end be found from other namespaces. Of too many with its addresses the user who has
    /// most gives the oldest up.
    fn add_candidate(&mut self, key: EndKey, tuple: Tuple) {
        let same = self.candidates.entry(tuple).or_default();
        same.push(key);
        if same.len() <= SAME_ADDRESSES_MAX {
            return;
        }
        let user = |key: &EndKey| self.entries.get(key).map(|entry| entry.user);
        let count = |at: &usize| {
            let owner = user(&same[*at]);
            same.iter().filter(|key| user(key) == owner).count()
        };
        // Of equals the first, which is the oldest.
        let most = (0..same.len()).rev().max_by_key(count);
        if let Some(at) = most {
            same.remove(at);
        }
    }

    fn remove_candidate(&mut self, key: EndKey, tuple: Tuple) {
        if let Some(same) = self.candidates.get_mut(&tuple) {
            same.retain(|other| *other != key);
            if same.is_empty() {
                self.candidates.remove(&tuple);
            }
        }
    }

    fn remove(&mut self, key: EndKey) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        let place = (entry.announced.tuple, entry.announced.domain);
        if self.by_place.get(&place) == Some(&key) {
            self.by_place.remove(&place);
        }
        self.remove_candidate(key, entry.announced.tuple);
        if let Some(ends) = self.by_client.get_mut(&key.client) {
            ends.laned.remove(&key.end);
            if ends.waiting.remove(&entry.order).is_some() {
                self.waiting -= 1;
            }
            if ends.laned.is_empty() && ends.waiting.is_empty() {
                self.by_client.remove(&key.client);
            }
        }
        // The other end can be matched again, with whoever comes in this one's place.
        if let Some(partner) = entry.partner.and_then(|key| self.entries.get_mut(&key))
            && partner.partner == Some(key)
        {
            partner.partner = None;
            let (key, tuple) = (partner.announced.key, partner.announced.tuple);
            self.add_candidate(key, tuple);
        }
        Some(entry)
    }

    fn other_end(&self, announced: &Announced) -> Outcome {
        let mirrored = announced.tuple.mirrored();
        let is_free = |key: &EndKey| {
            let entry = self.entries.get(key);
            *key != announced.key && entry.is_some_and(|entry| entry.partner.is_none())
        };
        let near = self.by_place.get(&(mirrored, announced.domain));
        let mut found: Vec<EndKey> = near.copied().filter(is_free).into_iter().collect();
        let elsewhere = self.candidates.get(&mirrored).into_iter().flatten();
        found.extend(elsewhere.filter(|key| {
            let domain = self.entries.get(key).map(|entry| entry.announced.domain);
            is_free(key) && domain.is_some_and(|it| it.netns != announced.domain.netns)
        }));
        if found.is_empty() {
            Outcome::Waits
        } else {
            Outcome::Mirrored(found)
        }
    }

    /// Forgets the ends of this client that have waited longest, until one more can be taken in.
    /// Returns how many.
    fn make_room(&mut self, client: ClientId) -> u64 {
        let mut forgotten = 0;
        while self.by_client.get(&client).is_some_and(|ends| {
            let waiting = ends.waiting.len();
            waiting >= WAITING_PER_CLIENT_MAX || (waiting > 0 && self.waiting >= WAITING_MAX)
        }) {
            let oldest = self.by_client[&client].waiting.first_key_value();
            let Some(end) = oldest.map(|(_, end)| *end) else {
                break;
            };
            self.remove(EndKey { client, end });
            forgotten += 1;
        }
        forgotten
    }
}

#[cfg(test)]
mod tests;
