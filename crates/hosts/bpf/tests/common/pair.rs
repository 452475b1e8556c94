//! Two hosts with a [`Finder`] each.

use sluice_bpf::{Connection, Event, Finder, FinderOptions, Rules};

use super::segment::{SYN, Segment};
use super::{Agent, End, Group, Net, net, until};

/// All events that have come.
pub fn events(finder: &mut Finder) -> Vec<Event> {
    let mut all = Vec::new();
    finder.read(&mut |event| all.push(event));
    all
}

/// What comes of the connection with this cookie.
pub fn established(finder: &mut Finder, cookie: u64) -> Connection {
    let mut found = None;
    until("an event", || {
        for event in events(finder) {
            if let Event::Established(connection) = event
                && connection.cookie == cookie
            {
                found = Some(connection);
            }
        }
        found.is_some()
    });
    found.expect("just found")
}

/// Two hosts, each with a cgroup of its own.
pub struct Pair {
    pub net: Net,
    pub groups: [Group; 2],
}

impl Pair {
    pub fn new() -> Self {
        Self {
            net: net(),
            groups: [Group::new(), Group::new()],
        }
    }

    pub fn finders(&self) -> [Finder; 2] {
        [0, 1].map(|end| {
            let cgroup = self.groups[end].open();
            Finder::attach(&cgroup, &FinderOptions::default(), &Rules::all()).expect("attaches")
        })
    }

    /// A client at the first host, a server at the second.
    pub fn agents(&self) -> (Agent, Agent) {
        (
            Agent::start(&self.net.a, Some(&self.groups[0])),
            Agent::start(&self.net.b, Some(&self.groups[1])),
        )
    }
}

pub fn meet(client: &mut Agent, server: &mut Agent, listener: &End) -> (End, End) {
    let connected = client.connect(listener.local).expect("connects");
    let accepted = server.accept(listener.id);
    assert_eq!(connected.local, accepted.peer);
    (connected, accepted)
}

/// SipHash-2-4, of the standard library.
#[allow(deprecated)]
pub fn answer_to(key: [u8; 16], nonce: u64) -> u64 {
    use std::hash::{Hasher, SipHasher};
    let half = |at: usize| u64::from_le_bytes(key[at..at + 8].try_into().expect("eight"));
    let mut hasher = SipHasher::new_with_keys(half(0), half(8));
    hasher.write(&nonce.to_le_bytes());
    hasher.write(&2_u64.to_le_bytes());
    hasher.finish()
}

pub fn default_answer(nonce: u64) -> u64 {
    answer_to(FinderOptions::default().key, nonce)
}

pub fn is_syn(segment: &Segment) -> bool {
    segment.flags & SYN != 0
}
