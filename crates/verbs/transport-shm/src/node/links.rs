//! The links of a process: all of them, and as whoever works on them sees them.

use core::sync::atomic::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};

use sluice_rendezvous::check_peer;

use super::Node;
use crate::link::Incoming;
use crate::os::LocalFd;
use crate::route::Route;

/// The links at one moment.
#[derive(Default)]
pub struct Links {
    pub routes: Vec<Arc<Route>>,
    pub incoming: Vec<Arc<Incoming>>,
}

/// The table behind [`Links`].
#[derive(Default)]
pub struct LinkTable {
    pub next_id: u64,
    pub by_block: HashMap<u32, Arc<Route>>,
    pub routes: HashMap<u64, Arc<Route>>,
    pub incoming: HashMap<u64, Arc<Incoming>>,
    /// Accepted sockets that have not said who they are.
    pub greeting: HashMap<u64, (LocalFd, i32)>,
}

impl Node {
    /// The links now.
    pub fn links(&self) -> Arc<Links> {
        self.links
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The processes that there are links with, this one among them if it has one with itself.
    pub fn peers(&self) -> Vec<u32> {
        let links = self.links();
        let routes = links.routes.iter().map(|route| route.socket.raw());
        let incoming = links.incoming.iter().map(|link| link.socket.raw());
        let pid = |socket| check_peer(socket).ok().and_then(|pid| pid.try_into().ok());
        // Twice for those that both have connected to.
        let peers: BTreeSet<u32> = routes.chain(incoming).filter_map(pid).collect();
        peers.into_iter().collect()
    }

    /// Takes over a change of the table.
    pub fn links_changed(&self, table: &LinkTable) {
        let links = Links {
            routes: table
                .routes
                .values()
                .filter(|route| route.up.get().is_some())
                .cloned()
                .collect(),
            incoming: table.incoming.values().cloned().collect(),
        };
        *self.links.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(links);
        self.generation.fetch_add(1, Ordering::Release);
    }
}
