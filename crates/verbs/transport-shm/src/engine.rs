//! What the transport's thread does ([`sluice_transport::worker`]).
//!
//! A peer that publishes something rings only if the thread has announced that it sleeps. It
//! announces, looks once more, and then blocks; so it sees whatever was published before the
//! announcement was visible, and is rung for the rest. For one that watches nobody rings.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use sluice_shmem::verbs::directory::{ENGINE_ASLEEP, ENGINE_AWAKE, ENGINE_WATCHING};
use sluice_sys::errno::Errno;
use sluice_transport::worker::{self, Control, Look, Manner, WATCH_NS, Woken, Work};
use sluice_verbs::Aftermath;
use sluice_verbs::locks::lock;

use crate::node::{ANSWERS, Links, Node, REQUESTS};
use crate::os;
use crate::watched::Watched;
use crate::{accept, connect, ended, progress, requester};

/// Starts the thread.
pub fn start(node: &Arc<Node>) -> Result<(), Errno> {
    let rings = Rings {
        after: Aftermath::new(),
        is_held: false,
        tokens: [0; 64],
    };
    worker::start(node, "sluice-verbs".to_owned(), rings)
}

/// The rings of all links. Their sides are what peers have answered and what they ask; both come
/// in this order: what a peer says next comes after its acknowledgements.
struct Rings {
    after: Aftermath,
    /// All that is there waits for receives.
    is_held: bool,
    tokens: [u64; 64],
}

impl Rings {
    /// What peers have answered.
    fn outgoing(&mut self, node: &Node, links: &Links) -> usize {
        let done = progress::outgoing(node, links, &mut self.after);
        self.after.run();
        done
    }

    /// What they ask.
    fn incoming(&mut self, node: &Node, links: &Links) -> usize {
        let done = progress::incoming(node, links, &mut self.after);
        self.after.run();
        done
    }
}

impl Work<2> for Rings {
    type Node = Node;

    const MANNER: Manner = Manner::RUNG;

    fn control(node: &Node) -> &Control {
        &node.control
    }

    fn polled(&self, node: &Node) -> [u64; 2] {
        node.polled
            .each_ref()
            .map(|side| side.load(Ordering::Relaxed))
    }

    fn awakes(&mut self, node: &Node) {
        set_state(node, ENGINE_AWAKE);
    }

    /// A side that the program polls is left to it.
    fn look(&mut self, node: &Node, look: Look<2>) -> Option<[usize; 2]> {
        let polled = match look {
            Look::Round { polled } => polled,
            Look::Again { .. } => [false; 2],
        };
        let links = node.links();
        ended::forget(node, &links);
        let mut found = [0; 2];
        if !polled[ANSWERS] {
            found[ANSWERS] = self.outgoing(node, &links);
        }
        if !polled[REQUESTS] {
            found[REQUESTS] = self.incoming(node, &links);
        }
        let mut incoming = links.incoming.iter();
        self.is_held = found == [0; 2] && incoming.any(|link| link.holds_until().is_some());
        Some(found)
    }

    fn is_spared(&self) -> bool {
        self.is_held
    }

    fn announce(&mut self, node: &Node, sleeps: bool) -> bool {
        if !sleeps {
            set_state(node, ENGINE_WATCHING);
            return false;
        }
        set_state(node, ENGINE_ASLEEP);
        let links = node.links();
        self.outgoing(node, &links) + self.incoming(node, &links) > 0
    }

    fn until(&mut self, node: &Node, sleeps: bool, now: u64) -> Option<u64> {
        let timer = node.timers.next();
        let until = if sleeps {
            timer
        } else {
            timer.min(now + WATCH_NS)
        };
        node.timers.may_sleep(until).then_some(until)
    }

    fn wait(&mut self, node: &Node, _sleeps: bool, timeout_ns: Option<u64>) -> Woken {
        Woken::by(&node.epoll, &mut self.tokens, &node.timers, timeout_ns)
    }

    fn events(&mut self, node: &Node, woken: Woken) {
        for token in self.tokens.iter().take(woken.count) {
            if let Some(watched) = Watched::of_token(*token) {
                event(node, watched, &mut self.after);
                self.after.run();
            }
        }
    }
}

/// Publishes the state with a number, by which peers tell one sleep from the next.
fn set_state(node: &Node, state: u32) {
    let number = node.engine_sleeps.fetch_add(1, Ordering::Relaxed);
    node.directory.set_engine_state(number << 2 | state);
}

fn event(node: &Node, watched: Watched, after: &mut Aftermath) {
    match watched {
        Watched::Kick => os::drain(node.kick.raw()),
        Watched::Listener(block) => accept::accept(node, block),
        Watched::RouteSocket(id) => route_socket(node, id, after),
        Watched::RouteBell(id) => {
            if let Some(route) = lock(&node.table).routes.get(&id) {
                os::drain(route.bell.raw());
            }
        }
        Watched::Greeting(id) => accept::greet(node, id),
        Watched::IncomingSocket(id) => incoming_socket(node, id, after),
        Watched::IncomingBell(id) => {
            if let Some(incoming) = lock(&node.table).incoming.get(&id) {
                os::drain(incoming.bell.raw());
            }
        }
    }
}

fn route_socket(node: &Node, id: u64, after: &mut Aftermath) {
    let Some(route) = lock(&node.table).routes.get(&id).cloned() else {
        return;
    };
    let goes_on = match route.link() {
        Some(link) => link.peer.read_socket(route.socket.raw()),
        None => match connect::welcome(node, &route) {
            Ok(()) => {
                let table = lock(&node.table);
                node.links_changed(&table);
                drop(table);
                for slot in route.take_waiting() {
                    if let Some(part) = node.parts.get(slot) {
                        requester::pump(&part, after);
                    }
                }
                true
            }
            Err(Errno::AGAIN) => true,
            Err(_) => false,
        },
    };
    if !goes_on {
        ended::route(node, &route, after);
    }
}

fn incoming_socket(node: &Node, id: u64, after: &mut Aftermath) {
    let Some(incoming) = lock(&node.table).incoming.get(&id).cloned() else {
        return;
    };
    if incoming.peer.read_socket(incoming.socket.raw()) {
        return;
    }
    ended::incoming(node, id, &incoming, after);
}
