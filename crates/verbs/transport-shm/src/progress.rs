//! The transport's work on all links, for whoever does it: a poll or the engine thread.

use sluice_verbs::Aftermath;

use crate::node::{Due, Links, Node};
use crate::{datagram, os, requester, responder};

/// When a ring that somebody else works on is looked at again.
const LOOK_AGAIN_NS: u64 = 1_000_000;

/// Carries out what peers have asked. How much was done.
pub fn incoming(node: &Node, links: &Links, after: &mut Aftermath) -> usize {
    responder::progress_all(node, links, after)
}

/// Takes what peers have answered, and runs due timers. How much was done. Not from inside
/// of a request: timers look at rings.
pub fn outgoing(node: &Node, links: &Links, after: &mut Aftermath) -> usize {
    let done = requester::progress_all(node, links, after);
    if node.timers.is_any_set() {
        return done + run_timers(node, after);
    }
    done
}

fn run_timers(node: &Node, after: &mut Aftermath) -> usize {
    let now = os::now_ns();
    let mut done = 0;
    while let Some(due) = node.timers.take_due(now) {
        match due {
            Due::Rings => look_at_rings(node, after),
            Due::Part(slot) => {
                if let Some(part) = node.parts.get(slot) {
                    datagram::release_held(node, &part, now);
                    requester::timer(&part, now, after);
                }
            }
        }
        done += 1;
    }
    done
}

fn look_at_rings(node: &Node, after: &mut Aftermath) {
    // Who holds a request from now on sets a timer, or is seen below.
    node.looks.begin();
    let links = node.links();
    incoming(node, &links, after);
    let held = links.incoming.iter();
    if let Some(next) = held.filter_map(|link| link.holds_until()).min() {
        // One that is due is in the hands of another thread.
        node.held_until(next.max(os::now_ns() + LOOK_AGAIN_NS));
    }
}
