//! The requester's way to a peer process: connecting, up, or over.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use sluice_shmem::verbs::directory::BLOCK_QPS;
use sluice_sys::errno::Errno;
use sluice_sys::unix::{self, Fd};

use crate::area::OwnArea;
use crate::engine;
use crate::hello::{Identity, MESSAGE_BYTES, Message};
use crate::link::{Outgoing, Peer, request_area};
use crate::lock::lock;
use crate::node::Node;
use crate::os::{self, LocalFd};
use sluice_rendezvous::check_peer;

const CONNECTING: u32 = 0;
const UP: u32 = 1;
const DOWN: u32 = 2;

/// A way to a peer process.
pub struct Route {
    pub id: u64,
    stage: AtomicU32,
    pub socket: LocalFd,
    /// The peer rings here.
    pub bell: LocalFd,
    own: Mutex<Option<OwnArea>>,
    pub up: OnceLock<Outgoing>,
    /// Places of queue pairs that wait for the connection.
    waiting: Mutex<Vec<u32>>,
}

impl Route {
    /// The link, while it is one.
    pub fn link(&self) -> Option<&Outgoing> {
        if self.stage.load(Ordering::Acquire) == UP {
            self.up.get()
        } else {
            None
        }
    }

    pub fn is_down(&self) -> bool {
        self.stage.load(Ordering::Acquire) == DOWN
    }

    /// Whether it leads to a process that is there. The engine thread may be about to hear that
    /// one has ended whose numbers another one has by now.
    fn leads_on(&self) -> bool {
        !self.is_down() && !unix::has_hung_up(self.socket.raw())
    }

    pub fn set_down(&self) {
        self.stage.store(DOWN, Ordering::Release);
    }

    /// Ends the link; the engine thread sees it and clears up.
    pub fn break_off(&self) {
        os::shutdown(self.socket.raw());
    }

    /// Whether the peer's process ended with its queue pair `peer_qpn` in place. One that
    /// destroyed it before has said goodbye, and receives may go on waiting as on other hardware.
    pub fn ended_connected(&self, own_qpn: u32, peer_qpn: u32) -> bool {
        let Some(link) = self.up.get() else {
            return true;
        };
        link.peer.has_connected(own_qpn, peer_qpn)
    }

    /// Remembers who wants to hear of the connection. False if there is nothing to wait for.
    pub fn wait(&self, slot: u32) -> bool {
        let mut waiting = lock(&self.waiting);
        if self.stage.load(Ordering::Acquire) != CONNECTING {
            return false;
        }
        if !waiting.contains(&slot) {
            waiting.push(slot);
        }
        true
    }

    pub fn take_waiting(&self) -> Vec<u32> {
        core::mem::take(&mut lock(&self.waiting))
    }

    /// The peer's answer has come: the link is up, unless the peer is not what it should be.
    pub fn welcome(&self, node: &Node) -> Result<(), Errno> {
        let mut buffer = [0; MESSAGE_BYTES];
        let mut received = unix::receive_with_fds(self.socket.raw(), &mut buffer)?;
        let Some(Message::Welcome(identity)) = Message::decode(&buffer[..received.len]) else {
            return Err(Errno::PROTO);
        };
        let (Some(directory), Some(responses), Some(bell)) = (
            received.take_fd(0),
            received.take_fd(1),
            received.take_fd(2),
        ) else {
            return Err(Errno::PROTO);
        };
        let pid = check_peer(self.socket.raw())?;
        let peer = Peer::new(node.file, &directory, bell, pid, &identity)?;
        let own = lock(&self.own).take().ok_or(Errno::PROTO)?;
        let link = Outgoing::new(own, &responses, peer)?;
        if !link.peer.read_socket(self.socket.raw()) {
            return Err(Errno::PROTO);
        }
        node.epoll
            .add(self.bell.raw(), engine::token(engine::ROUTE_BELL, self.id))?;
        let _ = self.up.set(link);
        let _guard = lock(&self.waiting);
        self.stage.store(UP, Ordering::Release);
        Ok(())
    }
}

/// The way to the process that has `qpn`; connects if there is none yet. An error means that
/// there is no such process now.
pub fn to(node: &Node, qpn: u32) -> Result<Arc<Route>, Errno> {
    let block = qpn / BLOCK_QPS as u32;
    let mut table = lock(&node.table);
    if let Some(route) = table.by_block.get(&block)
        && route.leads_on()
    {
        return Ok(route.clone());
    }
    let known = table
        .routes
        .values()
        .find(|route| {
            let link = route.link();
            link.is_some_and(|link| link.peer.directory.qp_slot(qpn).is_some()) && route.leads_on()
        })
        .cloned();
    if let Some(route) = known {
        table.by_block.insert(block, route.clone());
        return Ok(route);
    }
    table.next_id += 1;
    let route = Arc::new(connect(node, block, table.next_id)?);
    table.by_block.insert(block, route.clone());
    table.routes.insert(route.id, route.clone());
    Ok(route)
}

fn connect(node: &Node, block: u32, id: u64) -> Result<Route, Errno> {
    let socket = node.rendezvous.connect(block)?;
    let own = request_area()?;
    let bell = os::eventfd()?;
    let hello = Message::Hello(identity(node, false));
    unix::send_with_fds(
        socket.raw(),
        &hello.encode(),
        &[node.area.fd.raw(), own.fd.raw(), bell.raw()],
    )?;
    node.epoll
        .add(socket.raw(), engine::token(engine::ROUTE_SOCKET, id))?;
    Ok(Route {
        id,
        stage: AtomicU32::new(CONNECTING),
        socket,
        bell: LocalFd::own(bell),
        own: Mutex::new(Some(own)),
        up: OnceLock::new(),
        waiting: Mutex::default(),
    })
}

/// What this process says of itself.
pub fn identity(node: &Node, can_read: bool) -> Identity {
    Identity {
        nonce: *node.nonce,
        probe: node.nonce.as_ptr() as u64,
        can_read,
    }
}

/// A greeting has come on an accepted socket.
pub fn accept_greeting(
    node: &Node,
    socket: LocalFd,
    pid: i32,
) -> Result<crate::link::Incoming, Errno> {
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
    let own = crate::link::response_area()?;
    let bell = os::eventfd()?;
    let raw = socket.raw();
    let welcome = Message::Welcome(identity(node, can_read));
    let fds = [node.area.fd.raw(), own.fd.raw(), bell.raw()];
    let incoming =
        crate::link::Incoming::new(own.mapping, &requests, socket, LocalFd::own(bell), peer)?;
    unix::send_with_fds(raw, &welcome.encode(), &fds)?;
    node.pass_regions(&incoming);
    Ok(incoming)
}
