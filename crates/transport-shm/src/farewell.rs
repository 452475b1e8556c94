//! What is done when the process ends in the ordinary way. One that is killed leaves its names to
//! whoever claims numbers next ([`sluice_rendezvous`]).
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, Once, Weak};

use crate::link::lock;
use crate::node::Node;

/// The transports of this process, and the process: a child of a fork ends as well, and its
/// parent's names are not its own.
static NODES: Mutex<Vec<(u32, Weak<Node>)>> = Mutex::new(Vec::new());

/// Takes the names of `node` away when the process ends.
pub fn remember(node: &Arc<Node>) {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: the handler is a function of this library that takes nothing.
        unsafe { libc::atexit(leave) };
    });
    let mut nodes = lock(&NODES);
    nodes.retain(|(_, node)| node.strong_count() > 0);
    nodes.push((std::process::id(), Arc::downgrade(node)));
}

extern "C" fn leave() {
    // In a child of a fork the lock may be held by a thread that is not there.
    let Ok(nodes) = NODES.try_lock() else { return };
    for (pid, node) in nodes.iter() {
        if *pid == std::process::id()
            && let Some(node) = node.upgrade()
        {
            node.take_names_away();
        }
    }
}
