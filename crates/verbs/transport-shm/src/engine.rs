//! The thread that makes progress when nobody polls, and sleeps when there is nothing to do.
//!
//! A peer that publishes something rings only if the thread has announced that it sleeps. It
//! announces, looks once more, and then blocks; so it sees whatever was published before the
//! announcement was visible, and is rung for the rest. While a polling program does the work
//! the thread stays out of the way: it announces that it watches, for which nobody rings, and
//! looks again after a millisecond. With no traffic it goes to sleep for good.

use core::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use sluice_shmem::verbs::directory::{BLOCKS_MAX, ENGINE_ASLEEP, ENGINE_AWAKE, ENGINE_WATCHING};
use sluice_sys::errno::Errno;
use sluice_sys::unix;

use crate::link::Incoming;
use crate::lock::lock;
use crate::node::{LinkTable, Links, Node};
use crate::os::{self, LocalFd};
use crate::route::{self, Route};
use crate::work::Work;
use crate::{requester, responder};
use sluice_rendezvous::check_peer;

pub const KICK: u64 = 0;
pub const LISTENER: u64 = 1;
pub const ROUTE_SOCKET: u64 = 2;
pub const ROUTE_BELL: u64 = 3;
const GREETING: u64 = 4;
const IN_SOCKET: u64 = 5;
const IN_BELL: u64 = 6;

/// How long a watching thread waits.
const WATCH_NS: u64 = 1_000_000;
/// Watches without traffic before the thread sleeps.
const QUIET_WATCHES: u32 = 4;
/// Connections accepted in one go.
const ACCEPT_MAX: usize = 64;
/// Links that one process may have to this one, and connections that have not said who they are
/// yet: it connects once for each block of numbers here that it does not know to be this process's.
const LINKS_OF_A_PROCESS_MAX: usize = BLOCKS_MAX;
/// The same for all processes of other pid namespaces together, which have no number here.
const LINKS_OF_UNSEEN_MAX: usize = 1024;
/// Connections that have not said who they are, of all processes together. Who is honest says so
/// at once.
const GREETING_MAX: usize = 256;
/// How long the thread waits when no descriptor is left even to turn somebody away.
const EXHAUSTED: std::time::Duration = std::time::Duration::from_millis(1);

pub fn token(kind: u64, id: u64) -> u64 {
    kind << 56 | (id & ((1 << 56) - 1))
}

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
    // All that this thread does is.
    let _work = Work::begin();
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
        forget_ended(&node, &links);
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
                node.progress_outgoing(&links)
            } else {
                node.progress_incoming(&links)
            };
            alone[side] |= done > 0;
            own += done;
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
            if node.progress_outgoing(&links) + node.progress_incoming(&links) > 0 {
                continue;
            }
        } else {
            set_state(&node, ENGINE_WATCHING);
        }
        let timer = node.next_timer.load(Ordering::SeqCst);
        let now = os::now_ns();
        let until = if asleep {
            timer
        } else {
            timer.min(now + WATCH_NS)
        };
        node.engine_until.store(until, Ordering::SeqCst);
        // A timer that was set in between did not see for how long we sleep.
        if node.next_timer.load(Ordering::SeqCst) < until {
            continue;
        }
        let timeout = (until != u64::MAX).then(|| until.saturating_sub(now));
        let ready = node.epoll.wait(&mut tokens, timeout);
        node.engine_until.store(0, Ordering::SeqCst);
        for token in ready.unwrap_or(&[]) {
            event(&node, *token);
        }
    }
}

/// Publishes the state with a turn, by which peers tell one sleep from the next.
fn set_state(node: &Node, state: u32) {
    let turn = node.engine_turn.fetch_add(1, Ordering::Relaxed);
    node.directory.set_engine_state(turn << 2 | state);
}

fn event(node: &Arc<Node>, token: u64) {
    let id = token & ((1 << 56) - 1);
    match token >> 56 {
        KICK => os::drain(node.kick.raw()),
        LISTENER => accept(node, id as u32),
        ROUTE_SOCKET => route_socket(node, id),
        ROUTE_BELL => {
            if let Some(route) = lock(&node.table).routes.get(&id) {
                os::drain(route.bell.raw());
            }
        }
        GREETING => greet(node, id),
        IN_SOCKET => incoming_socket(node, id),
        IN_BELL => {
            if let Some(incoming) = lock(&node.table).incoming.get(&id) {
                os::drain(incoming.bell.raw());
            }
        }
        _ => {}
    }
}

fn accept(node: &Node, block: u32) {
    let Some(listener) = node.listener(block) else {
        return;
    };
    for _ in 0..ACCEPT_MAX {
        let socket = match unix::accept(listener) {
            Ok(socket) => socket,
            Err(Errno(libc::EMFILE | libc::ENFILE)) => {
                turn_away(node, listener);
                continue;
            }
            Err(_) => return,
        };
        let Ok(pid) = check_peer(socket.raw()) else {
            continue;
        };
        let socket = LocalFd::own(socket);
        let mut table = lock(&node.table);
        make_room(node, &mut table, pid);
        table.next_id += 1;
        let id = table.next_id;
        if node.epoll.add(socket.raw(), token(GREETING, id)).is_ok() {
            table.greeting.insert(id, (socket, pid));
        }
    }
}

/// No descriptor is free, and the listener would stay readable: whoever waits hears that there is
/// no way, by the end of the connection, with a descriptor that is kept for this.
fn turn_away(node: &Node, listener: i32) {
    let mut spare = lock(&node.spare);
    drop(spare.take());
    drop(unix::accept(listener));
    *spare = os::eventfd().ok().map(LocalFd::own);
    if spare.is_none() {
        std::thread::sleep(EXHAUSTED);
    }
}

fn links_max(pid: i32) -> usize {
    if pid > 0 {
        LINKS_OF_A_PROCESS_MAX
    } else {
        LINKS_OF_UNSEEN_MAX
    }
}

/// Before one more connection of the process `pid`: the oldest that have said nothing go, of that
/// process or of all.
fn make_room(node: &Node, table: &mut LinkTable, pid: i32) {
    let oldest = |table: &LinkTable, whose: Option<i32>, max: usize| {
        let of = |other: i32| whose.is_none_or(|pid| pid == other);
        let silent = table.greeting.iter().filter(|(_, (_, other))| of(*other));
        let (count, oldest) = silent.fold((0, u64::MAX), |(count, oldest), (id, _)| {
            (count + 1, oldest.min(*id))
        });
        (count >= max).then_some(oldest)
    };
    let own = oldest(table, Some(pid), links_max(pid));
    let gone = own.or_else(|| oldest(table, None, GREETING_MAX));
    if let Some((socket, _)) = gone.and_then(|id| table.greeting.remove(&id)) {
        node.epoll.remove(socket.raw());
    }
}

fn greet(node: &Node, id: u64) {
    let Some((socket, pid)) = lock(&node.table).greeting.remove(&id) else {
        return;
    };
    node.epoll.remove(socket.raw());
    let has = {
        let table = lock(&node.table);
        let links = table.incoming.values();
        links.filter(|incoming| incoming.peer.pid == pid).count()
    };
    if has >= links_max(pid) {
        return;
    }
    let Ok(incoming) = route::accept_greeting(node, socket, pid) else {
        return;
    };
    let watched = node
        .epoll
        .add(incoming.socket.raw(), token(IN_SOCKET, id))
        .and_then(|()| node.epoll.add(incoming.bell.raw(), token(IN_BELL, id)));
    if watched.is_err() {
        return;
    }
    let incoming = Arc::new(incoming);
    let mut table = lock(&node.table);
    table.incoming.insert(id, incoming.clone());
    node.links_changed(&table);
    drop(table);
    // A key published between the greeting and the insertion.
    node.pass_regions(&incoming);
}

fn route_socket(node: &Arc<Node>, id: u64) {
    let Some(route) = lock(&node.table).routes.get(&id).cloned() else {
        return;
    };
    let goes_on = match route.link() {
        Some(link) => link.peer.read_socket(route.socket.raw()),
        None => match route.welcome(node) {
            Ok(()) => {
                let table = lock(&node.table);
                node.links_changed(&table);
                drop(table);
                for slot in route.take_waiting() {
                    if let Some(part) = node.part(slot) {
                        requester::link_changed(node, &part);
                    }
                }
                true
            }
            Err(Errno::AGAIN) => true,
            Err(_) => false,
        },
    };
    if !goes_on {
        end_route(node, &route);
    }
}

fn end_route(node: &Arc<Node>, route: &Arc<Route>) {
    // What the peer answered before it ended still counts, and what it had sent still arrives:
    // this may be the first that is heard of its end.
    requester::finish(node, route);
    if let Some(link) = route.up.get() {
        let links = node.links();
        let same = |incoming: &&Arc<Incoming>| incoming.peer.file == link.peer.file;
        for incoming in links.incoming.iter().filter(same) {
            responder::finish(node, incoming);
        }
    }
    route.set_down();
    node.epoll.remove(route.socket.raw());
    node.epoll.remove(route.bell.raw());
    {
        let mut table = lock(&node.table);
        table.routes.remove(&route.id);
        table.by_block.retain(|_, other| !Arc::ptr_eq(other, route));
        node.links_changed(&table);
    }
    for part in node.all_parts() {
        requester::route_ended(node, &part, route);
    }
}

fn incoming_socket(node: &Node, id: u64) {
    let Some(incoming) = lock(&node.table).incoming.get(&id).cloned() else {
        return;
    };
    if incoming.peer.read_socket(incoming.socket.raw()) {
        return;
    }
    end_incoming(node, id, &incoming);
}

fn end_incoming(node: &Node, id: u64, incoming: &Incoming) {
    incoming.ended.store(true, Ordering::Relaxed);
    node.epoll.remove(incoming.socket.raw());
    node.epoll.remove(incoming.bell.raw());
    // What the peer had sent completely still arrives, now or when there are receives for it.
    if responder::finish(node, incoming) {
        forget_incoming(node, id);
    }
    for part in node.all_parts() {
        responder::peer_ended(&part, incoming);
    }
}

/// Forgets links of peers that have ended, when there is nothing left in them.
fn forget_ended(node: &Node, links: &Links) {
    let over = |incoming: &Arc<Incoming>| {
        incoming.ended.load(Ordering::Relaxed) && !incoming.has_requests()
    };
    if !links.incoming.iter().any(over) {
        return;
    }
    let ended: Vec<u64> = {
        let table = lock(&node.table);
        let ended = table.incoming.iter().filter(|(_, link)| over(link));
        ended.map(|(id, _)| *id).collect()
    };
    for id in ended {
        forget_incoming(node, id);
    }
}

fn forget_incoming(node: &Node, id: u64) {
    let mut table = lock(&node.table);
    table.incoming.remove(&id);
    node.links_changed(&table);
}
