//! The responder's side: requests out of rings, and whom each is for.

mod connected;
mod described;

use core::sync::atomic::Ordering;

use sluice_shmem::verbs::record::Record;
use sluice_verbs::Aftermath;

use crate::datagram;
use crate::hold::Taken;
use crate::link::{Incoming, IncomingState, LOOKS, requests_max};
use crate::node::{Links, Node};
use crate::os;
use crate::part::Part;
use crate::wire::request;
use sluice_verbs::locks::{lock, try_lock};

/// Requests carried out in one go.
const BATCH: usize = 64;
/// Requests after which the position is published within a batch.
const PUBLISH_EVERY: usize = 16;

/// Carries out what peers have asked. How much was done.
pub fn progress_all(node: &Node, links: &Links, after: &mut Aftermath) -> usize {
    let each = links.incoming.iter();
    each.map(|incoming| progress(node, incoming, after)).sum()
}

/// Carries out what waits in a link. How many requests there were.
///
/// Whoever has the link's lock does the work. Another that finds it locked goes to sleep, so
/// the holder looks once more after it has let go.
pub fn progress(node: &Node, incoming: &Incoming, after: &mut Aftermath) -> usize {
    let mut done = 0;
    for _ in 0..LOOKS {
        if !incoming.is_waiting() {
            return done;
        }
        done += progress_once(node, incoming, after);
        if after.breaks_any() {
            break;
        }
    }
    node.hand_over();
    done
}

fn progress_once(node: &Node, incoming: &Incoming, after: &mut Aftermath) -> usize {
    let Some(mut state) = try_lock(&incoming.state) else {
        return 0;
    };
    let done = carry_out(node, incoming, &mut state, after);
    drop(state);
    if done > 0 {
        incoming.peer.ring_if_asleep();
    }
    done
}

/// Carries out everything of a peer that has ended. False: there is still something that waits
/// for a receive.
pub fn finish(node: &Node, incoming: &Incoming, after: &mut Aftermath) -> bool {
    for _ in 0..requests_max() {
        // Waits for whoever is at it: nothing may be left behind when the link is forgotten.
        let mut state = lock(&incoming.state);
        if !incoming.is_waiting() {
            break;
        }
        carry_out(node, incoming, &mut state, after);
    }
    if incoming.is_waiting() {
        // It has not ended, it has only hung up.
        incoming.broken.store(true, Ordering::Relaxed);
    }
    !incoming.has_requests()
}

/// The process at the other end of a link has ended. Who has sent it something hears of that from
/// [`crate::requester::route_ended`]; this is for who has only taken, as the target of an extended
/// connection does.
pub fn peer_ended(part: &Part, incoming: &Incoming, after: &mut Aftermath) {
    if !part.is_reliable() || lock(&part.send).route.is_some() {
        return;
    }
    let (qp, peer_qpn) = {
        let side = lock(&part.recv);
        if !side.ready {
            return;
        }
        (side.qp.clone(), side.peer_qpn)
    };
    if incoming.peer.has_connected(part.qpn, peer_qpn)
        && let Some(qp) = qp
    {
        qp.fail(None, after);
    }
}

/// Carries out the first requests of a ring. How many there were.
fn carry_out(
    node: &Node,
    incoming: &Incoming,
    state: &mut IncomingState,
    after: &mut Aftermath,
) -> usize {
    let mut done = 0;
    while done < BATCH {
        let taken = match state.requests.peek() {
            Ok(Some(record)) => {
                let taken = take(node, incoming, state, &record, after);
                if matches!(taken, Taken::Done) {
                    state.requests.advance(&record);
                    done += 1;
                    // It may have got its receive just before its wait was announced.
                    if incoming.holds_until().is_some() {
                        incoming.hold_no_longer();
                    }
                }
                taken
            }
            Ok(None) => break,
            Err(_) => Taken::Broken,
        };
        match taken {
            Taken::Done => {}
            Taken::Held { new: true } => continue,
            Taken::Held { new: false } => break,
            Taken::Broken => {
                incoming.broken.store(true, Ordering::Relaxed);
                os::shutdown(incoming.socket.raw());
                return done;
            }
        }
        if after.breaks_any() {
            // Run before anything else is done for that queue pair.
            break;
        }
        if done.is_multiple_of(PUBLISH_EVERY) {
            incoming.publish_head(state.requests.head());
        }
    }
    // Also without a request: the reader may have gone past the ring's end.
    incoming.publish_head(state.requests.head());
    done
}

/// Carries out one request.
fn take(
    node: &Node,
    incoming: &Incoming,
    state: &mut IncomingState,
    record: &Record,
    after: &mut Aftermath,
) -> Taken {
    if record.header.kind == request::DATAGRAM {
        return datagram::take(node, incoming, state, record, after);
    }
    match connected::take(node, incoming, state, record, after) {
        Ok(true) => Taken::Done,
        Ok(false) => Taken::Broken,
        Err(held) => held,
    }
}
