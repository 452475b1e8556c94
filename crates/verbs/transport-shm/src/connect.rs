//! To a peer: the one route to the process that has a queue pair, made when it is first needed.

use std::sync::Arc;

use sluice_rendezvous::check_peer;
use sluice_shmem::verbs::directory::BLOCK_QPS;
use sluice_sys::errno::Errno;
use sluice_sys::unix;

use crate::hello::{MESSAGE_BYTES, Message};
use crate::link::{Outgoing, Peer, request_area};
use crate::node::Node;
use crate::os::{self, LocalFd};
use crate::route::Route;
use crate::watched::Watched;
use sluice_verbs::locks::lock;

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
    let socket = node.names.connect(block)?;
    let own = request_area()?;
    let bell = os::eventfd()?;
    let hello = Message::Hello(node.identity(false));
    unix::send_with_fds(
        socket.raw(),
        &hello.encode(),
        &[node.area.fd.raw(), own.fd.raw(), bell.raw()],
    )?;
    node.epoll
        .add(socket.raw(), Watched::RouteSocket(id).token())?;
    Ok(Route::new(id, socket, LocalFd::own(bell), own))
}

/// The peer's answer has come: the link is up, unless the peer is not what it should be. `EAGAIN`
/// if there is no answer yet.
pub fn welcome(node: &Node, route: &Route) -> Result<(), Errno> {
    let socket = route.socket.raw();
    let mut buffer = [0; MESSAGE_BYTES];
    let mut received = unix::receive_with_fds(socket, &mut buffer)?;
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
    let pid = check_peer(socket)?;
    let peer = Peer::new(node.file, &directory, bell, pid, &identity)?;
    let own = route.take_own().ok_or(Errno::PROTO)?;
    let link = Outgoing::new(own, &responses, peer)?;
    if !link.peer.read_socket(socket) {
        return Err(Errno::PROTO);
    }
    node.epoll
        .add(route.bell.raw(), Watched::RouteBell(route.id).token())?;
    route.set_up(link);
    Ok(())
}
