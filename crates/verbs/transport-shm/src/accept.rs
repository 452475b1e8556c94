//! From a peer: who connects, how many may, and the link of one that says who it is.

use std::sync::Arc;
use std::time::Duration;

use sluice_rendezvous::check_peer;
use sluice_shmem::verbs::directory::BLOCKS_MAX;
use sluice_sys::errno::Errno;
use sluice_sys::unix::{self, Fd};

use crate::hello::{MESSAGE_BYTES, Message};
use crate::link::{Incoming, Peer, response_area};
use crate::node::{LinkTable, Node};
use crate::os::{self, LocalFd};
use crate::watched::Watched;
use sluice_verbs::locks::lock;

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
const EXHAUSTED: Duration = Duration::from_millis(1);

/// Somebody connects to one of our blocks.
pub fn accept(node: &Node, block: u32) {
    let Some(listener) = node.names.listener(block) else {
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
        if node
            .epoll
            .add(socket.raw(), Watched::Greeting(id).token())
            .is_ok()
        {
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

/// Somebody who has connected says who it is.
pub fn greet(node: &Node, id: u64) {
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
    let Ok(incoming) = welcome(node, socket, pid) else {
        return;
    };
    let watched = node
        .epoll
        .add(incoming.socket.raw(), Watched::IncomingSocket(id).token())
        .and_then(|()| {
            node.epoll
                .add(incoming.bell.raw(), Watched::IncomingBell(id).token())
        });
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

/// The link of who greets, and our answer.
fn welcome(node: &Node, socket: LocalFd, pid: i32) -> Result<Incoming, Errno> {
    let mut buffer = [0; MESSAGE_BYTES];
    let mut received = unix::receive_with_fds(socket.raw(), &mut buffer)?;
    let Some(Message::Hello(who)) = Message::decode(&buffer[..received.len]) else {
        return Err(Errno::PROTO);
    };
    let take = |place: Option<Fd>| place.ok_or(Errno::PROTO);
    let directory = take(received.take_fd(0))?;
    let requests = take(received.take_fd(1))?;
    let peer_bell = take(received.take_fd(2))?;
    let peer = Peer::new(node.file, &directory, peer_bell, pid, &who)?;
    let can_read = peer.memory.is_some();
    let own = response_area()?;
    let bell = os::eventfd()?;
    let raw = socket.raw();
    let welcome = Message::Welcome(node.identity(can_read));
    let fds = [node.area.fd.raw(), own.fd.raw(), bell.raw()];
    let incoming = Incoming::new(own.mapping, &requests, socket, LocalFd::own(bell), peer)?;
    unix::send_with_fds(raw, &welcome.encode(), &fds)?;
    node.pass_regions(&incoming);
    Ok(incoming)
}
