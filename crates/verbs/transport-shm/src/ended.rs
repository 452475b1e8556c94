//! A peer has ended: what it did still counts, and who was connected to it hears of its end.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use sluice_verbs::Aftermath;

use crate::link::Incoming;
use crate::node::{Links, Node};
use crate::route::Route;
use crate::{requester, responder};
use sluice_verbs::locks::lock;

/// The peer of a link to it has ended, or broken the protocol.
pub fn route(node: &Node, route: &Arc<Route>, after: &mut Aftermath) {
    // What the peer answered before it ended still counts, and what it had sent still arrives:
    // this may be the first that is heard of its end.
    requester::finish(node, route, after);
    if let Some(link) = route.up.get() {
        let links = node.links();
        let same = |incoming: &&Arc<Incoming>| incoming.peer.file == link.peer.file;
        for incoming in links.incoming.iter().filter(same) {
            responder::finish(node, incoming, after);
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
    for part in node.parts.all() {
        requester::route_ended(&part, route, after);
    }
}

/// The peer of a link from it has ended.
pub fn incoming(node: &Node, id: u64, incoming: &Incoming, after: &mut Aftermath) {
    incoming.ended.store(true, Ordering::Relaxed);
    node.epoll.remove(incoming.socket.raw());
    node.epoll.remove(incoming.bell.raw());
    // What the peer had sent completely still arrives, now or when there are receives for it.
    if responder::finish(node, incoming, after) {
        forget_incoming(node, id);
    }
    for part in node.parts.all() {
        responder::peer_ended(&part, incoming, after);
    }
}

/// Forgets links of peers that have ended, when there is nothing left in them.
pub fn forget(node: &Node, links: &Links) {
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
