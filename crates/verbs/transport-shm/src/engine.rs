//! The thread that makes progress when nobody polls, and sleeps when there is nothing to do.
//!
//! A peer that publishes something rings only if the thread has announced that it sleeps. It
//! announces, looks once more, and then blocks; so it sees whatever was published before the
//! announcement was visible, and is rung for the rest. While a polling program does the work
//! the thread stays out of the way: it announces that it watches, for which nobody rings, and
//! looks again after a millisecond. With no traffic it goes to sleep for good.

use core::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use sluice_shmem::verbs::directory::{ENGINE_ASLEEP, ENGINE_AWAKE, ENGINE_WATCHING};
use sluice_sys::errno::Errno;
use sluice_verbs::Aftermath;

use crate::lock::lock;
use crate::node::Node;
use crate::os;
use crate::watched::Watched;
use crate::{accept, connect, ended, progress, requester};

/// How long a watching thread waits.
const WATCH_NS: u64 = 1_000_000;
/// Watches without traffic before the thread sleeps.
const QUIET_WATCHES: u32 = 4;

/// Starts the thread. It ends when the node is gone or told to stop.
pub fn start(node: &Arc<Node>) -> Result<(), Errno> {
    let weak = Arc::downgrade(node);
    std::thread::Builder::new()
        .name("sluice-verbs".into())
        .spawn(move || {
            os::block_signals();
            run(&weak);
        })
        .map(drop)
        .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))
}

fn run(weak: &Weak<Node>) {
    let mut after = Aftermath::new();
    let mut tokens = [0; 64];
    let mut quiet = 0;
    let mut before = (0, 0);
    let mut alone = [false; 2];
    while let Some(node) = weak.upgrade() {
        if node.stop.load(Ordering::Acquire) {
            return;
        }
        set_state(&node, ENGINE_AWAKE);
        let now = (
            node.polled_incoming.load(Ordering::Relaxed),
            node.polled_outgoing.load(Ordering::Relaxed),
        );
        let links = node.links();
        ended::forget(&node, &links);
        // A side that the program polls is left to it. One where this thread found work is on
        // its own until polls do it again, so peers have to ring.
        let mut own = 0;
        let sides = [now.1 != before.1, now.0 != before.0];
        for (side, polled) in sides.into_iter().enumerate() {
            if polled {
                alone[side] = false;
                continue;
            }
            // Acknowledgements first: what a peer says next comes after them.
            let done = if side == 0 {
                progress::outgoing(&node, &links, &mut after)
            } else {
                progress::incoming(&node, &links, &mut after)
            };
            alone[side] |= done > 0;
            own += done;
            after.settle();
        }
        if own > 0 || now != before {
            quiet = 0;
        } else {
            quiet = (quiet + 1).min(QUIET_WATCHES);
        }
        before = now;
        // While all that is there waits for receives, peers need not ring for what they add.
        let held = own == 0
            && links
                .incoming
                .iter()
                .any(|link| link.holds_until().is_some());
        let asleep = node.is_armed() || !held && (alone != [false; 2] || quiet >= QUIET_WATCHES);
        if asleep {
            set_state(&node, ENGINE_ASLEEP);
            let links = node.links();
            let done = progress::outgoing(&node, &links, &mut after)
                + progress::incoming(&node, &links, &mut after);
            after.settle();
            if done > 0 {
                continue;
            }
        } else {
            set_state(&node, ENGINE_WATCHING);
        }
        let timer = node.timers.next();
        let now = os::now_ns();
        let until = if asleep {
            timer
        } else {
            timer.min(now + WATCH_NS)
        };
        if !node.timers.may_sleep(until) {
            continue;
        }
        let timeout = (until != u64::MAX).then(|| until.saturating_sub(now));
        let ready = node.epoll.wait(&mut tokens, timeout);
        node.timers.awake();
        for token in ready.unwrap_or(&[]) {
            if let Some(watched) = Watched::of_token(*token) {
                event(&node, watched, &mut after);
                after.settle();
            }
        }
    }
}

/// Publishes the state with a turn, by which peers tell one sleep from the next.
fn set_state(node: &Node, state: u32) {
    let turn = node.engine_turn.fetch_add(1, Ordering::Relaxed);
    node.directory.set_engine_state(turn << 2 | state);
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
