//! A request that finds no receive, and how long it waits for one.

use core::sync::atomic::Ordering;

use sluice_verbs::Qp;

use crate::link::{Incoming, IncomingState};
use crate::node::Node;
use crate::os;
use crate::part::{Part, RecvSide};
use crate::wire;

/// By how many of these times it is prolonged while the program has completions to poll.
const EXTENSIONS_MAX: u32 = 7;
/// How long a reliable one waits at most before its sender is told to try again, which costs
/// more than the wait.
const RELIABLE_HOLD_NS: u64 = 1_000_000;

/// What becomes of the first request of a ring.
pub enum Taken {
    /// It is over.
    Done,
    /// It stays: there is no receive for it now. `new`: look once more, because a receive that
    /// was posted before the wait was announced released nothing.
    Held { new: bool },
    /// The link is to be broken.
    Broken,
}

/// There is no receive for the first request of the ring: whether it waits for one. While it
/// waits the requests behind it do as well, the ring fills up, and the sender is held back, as
/// by the flow control of a lossless link. None: it has waited long enough.
pub fn wait_for_receive(
    node: &Node,
    part: &Part,
    qp: &Qp,
    side: &mut RecvSide,
    incoming: &Incoming,
    state: &mut IncomingState,
) -> Option<Taken> {
    if side.dry {
        return None;
    }
    let now = os::now_ns();
    let patience = if part.is_reliable() {
        (wire::rnr_us(side.rnr_code) * 1000).min(RELIABLE_HOLD_NS)
    } else {
        node.hold_ns.load(Ordering::Relaxed)
    };
    match incoming.holds_until() {
        Some(until) if now < until => return Some(Taken::Held { new: false }),
        Some(_) => {
            // Completions that nobody has polled: the program is late and will post again.
            let late = qp.recv_cq().is_some_and(|cq| cq.filled() > 0);
            if part.is_reliable() || !late || state.extensions >= EXTENSIONS_MAX {
                incoming.hold_no_longer();
                side.dry = true;
                return None;
            }
            state.extensions += 1;
        }
        None => state.extensions = 0,
    }
    incoming.hold(part.slot, now + patience);
    node.held_until(now + patience);
    Some(Taken::Held { new: true })
}
