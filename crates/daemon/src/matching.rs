//! Finds the two ends of a connection among all ends that programs announced.
//!
//! An end is known by its addresses and its network namespace. Within a namespace the kernel has
//! at most one live socket for a pair of addresses (and interface, for sockets bound to one),
//! so the end with the mirrored addresses is the other end of the same connection, provided that
//! both sockets are alive at one instant. sluiced closes its copy of a socket before it looks
//! for a match, or it would keep the connection open. So the earlier end may have been closed,
//! even if nobody said so, and this is settled where it can be: the program compares the cookie
//! in the lane message with its descriptor before it adopts the lane, and the peer's sender
//! does not use a lane that was not adopted. A wrong match costs a lane until the right end is
//! announced, and no byte.
//!
//! Across namespaces, equal addresses prove nothing: see [`crate::namespace`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;

use crate::config::{WAITING_MAX, WAITING_PER_CLIENT_MAX};

/// The number of a client connection; no two in sluiced's life have the same.
pub type ClientId = u32;

/// Ends with the same addresses at a time, in all namespaces together. A bound on loops: a
/// program that makes more of them forgets its own.
pub const SAME_ADDRESSES_MAX: usize = 16;

/// An end, by the names that its program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndKey {
    pub client: ClientId,
    pub end: u32,
}

/// The addresses of a connection as one end sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// An end with the mirrored addresses is in another namespace and nothing proves that it
    /// belongs to this one.
    Proof,
    /// There was a match, but no lane.
    Lane,
    /// There was a match, but one of the users has as many lanes as it may.
    Share,
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
}

/// What follows from an announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No other end yet.
    Waits,
    /// This end, in the same namespace, is the other one.
    Match(EndKey),
    /// These ends, in other namespaces, could be it.
    Perhaps(Vec<EndKey>),
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

/// All announced ends.
#[derive(Debug, Default)]
pub struct Matcher {
    entries: HashMap<EndKey, Entry>,
    by_tuple: HashMap<Tuple, Vec<EndKey>>,
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

    /// Takes an announcement in and looks for the other end.
    pub fn announce(&mut self, announced: Announced) -> (Outcome, Displaced) {
        let mut displaced = Displaced::default();
        // The same number again: a new life of it, or another attempt.
        self.remove(announced.key);
        if let Some(same) = self.find(announced.tuple, announced.domain) {
            let other = &self.entries[&same];
            if other.announced.cookie == announced.cookie && other.partner.is_some() {
                return (Outcome::Duplicate, displaced);
            }
            // Either its socket is gone, or the same socket has changed hands.
            displaced.replaced += u64::from(other.announced.cookie != announced.cookie);
            self.remove(same);
        }
        displaced.forgotten += self.make_room(&announced);
        if self.same_addresses(announced.tuple) < SAME_ADDRESSES_MAX {
            self.insert(announced);
        } else {
            displaced.forgotten += 1;
        }
        (self.other_end(&announced), displaced)
    }

    /// Records that two ends got a lane. Both must be known.
    pub fn pair(&mut self, a: EndKey, b: EndKey) {
        for (key, partner) in [(a, b), (b, a)] {
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            entry.partner = Some(partner);
            if !entry.laned {
                entry.laned = true;
                let ends = self.by_client.entry(key.client).or_default();
                ends.waiting.remove(&entry.order);
                ends.laned.insert(key.end);
                self.waiting -= 1;
            }
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

    fn insert(&mut self, announced: Announced) {
        let key = announced.key;
        let order = self.next_order;
        self.next_order += 1;
        self.by_tuple.entry(announced.tuple).or_default().push(key);
        let ends = self.by_client.entry(key.client).or_default();
        ends.waiting.insert(order, key.end);
        self.waiting += 1;
        let entry = Entry {
            announced,
            order,
            partner: None,
            laned: false,
            waiting: Waiting::Peer,
        };
        self.entries.insert(key, entry);
    }

    fn remove(&mut self, key: EndKey) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        if let Some(same) = self.by_tuple.get_mut(&entry.announced.tuple) {
            same.retain(|other| *other != key);
            if same.is_empty() {
                self.by_tuple.remove(&entry.announced.tuple);
            }
        }
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
        }
        Some(entry)
    }

    /// The end with these very addresses in this domain.
    fn find(&self, tuple: Tuple, domain: Domain) -> Option<EndKey> {
        let same = self.by_tuple.get(&tuple)?;
        same.iter()
            .copied()
            .find(|key| self.entries[key].announced.domain == domain)
    }

    fn same_addresses(&self, tuple: Tuple) -> usize {
        self.by_tuple.get(&tuple).map_or(0, Vec::len)
    }

    fn other_end(&self, announced: &Announced) -> Outcome {
        let Some(mirrors) = self.by_tuple.get(&announced.tuple.mirrored()) else {
            return Outcome::Waits;
        };
        if !self.entries.contains_key(&announced.key) {
            return Outcome::Waits;
        }
        let mut perhaps = Vec::new();
        for key in mirrors {
            let entry = &self.entries[key];
            if *key == announced.key || entry.partner.is_some() {
                continue;
            }
            if entry.announced.domain == announced.domain {
                return Outcome::Match(*key);
            }
            if entry.announced.domain.netns != announced.domain.netns {
                perhaps.push(*key);
            }
        }
        if perhaps.is_empty() {
            Outcome::Waits
        } else {
            Outcome::Perhaps(perhaps)
        }
    }

    /// Forgets the ends that have waited longest, of this client and with these addresses, until
    /// one more can be taken in. Returns how many.
    fn make_room(&mut self, announced: &Announced) -> u64 {
        let client = announced.key.client;
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
        if self.same_addresses(announced.tuple) >= SAME_ADDRESSES_MAX {
            let same = &self.by_tuple[&announced.tuple];
            let waits = same.iter().find(|key| !self.entries[*key].laned).copied();
            if let Some(key) = waits {
                self.remove(key);
                forgotten += 1;
            }
        }
        forgotten
    }
}

#[cfg(test)]
mod tests;
