//! What is done when the process ends in the ordinary way: peers that wait for an answer to what
//! the program has seen come get it. Queue pairs that it did not destroy end without a word.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, Once, Weak};

use crate::node::{Node, lock};

/// The transports of this process, and the process: a child of a fork ends as well, and has no
/// ports.
static NODES: Mutex<Vec<(u32, Weak<Node>)>> = Mutex::new(Vec::new());

/// Has the end of the process wait for what `node` sends.
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
            node.settle();
        }
    }
}
