//! Whether ends find each other in the handshake, and whom they take for one.

mod common;

use common::{Agent, End, Group, Net, can_run, until};
use sluice_bpf::{Connection, Event, Finder, FinderOptions, Peer, Rules};

#[test]
fn agent() {
    common::run_as_agent();
}

/// All events that have come.
fn events(finder: &mut Finder) -> Vec<Event> {
    let mut all = Vec::new();
    finder.read(&mut |event| all.push(event));
    all
}

/// What comes of the connection with this cookie.
fn established(finder: &mut Finder, cookie: u64) -> Connection {
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
struct Pair {
    net: Net,
    groups: [Group; 2],
}

impl Pair {
    fn new() -> Self {
        Self {
            net: Net::new(),
            groups: [Group::new(), Group::new()],
        }
    }

    fn finders(&self) -> [Finder; 2] {
        [0, 1].map(|end| {
            let cgroup = self.groups[end].open();
            Finder::attach(&cgroup, &FinderOptions::default(), &Rules::all()).expect("attaches")
        })
    }

    /// A client at the first host, a server at the second.
    fn agents(&self) -> (Agent, Agent) {
        (
            Agent::start(&self.net.a, Some(&self.groups[0])),
            Agent::start(&self.net.b, Some(&self.groups[1])),
        )
    }
}

fn meet(client: &mut Agent, server: &mut Agent, listener: &End) -> (End, End) {
    let connected = client.connect(listener.local).expect("connects");
    let accepted = server.accept(listener.id);
    assert_eq!(connected.local, accepted.peer);
    (connected, accepted)
}

#[test]
fn both_ends_find_each_other() {
    if !can_run("both_ends_find_each_other") {
        return;
    }
    let pair = Pair::new();
    let [mut a, mut b] = pair.finders();
    let (mut client, mut server) = pair.agents();
    for address in [pair.net.b.v4_any(), pair.net.b.v6_any()] {
        let listener = server.listen(address);
        let (connected, accepted) = meet(&mut client, &mut server, &listener);
        let active = established(&mut a, connected.cookie);
        let passive = established(&mut b, accepted.cookie);
        assert_eq!(active.verdict.peer, Peer::Can);
        assert_eq!(passive.verdict.peer, Peer::Can);
    }
}
