//! What the transport's thread does ([`sluice_transport::worker`]).
//!
//! Whoever puts a frame rings if the receiver has said that it sleeps. The thread says so, looks once
//! more, and sleeps then. Where caches do not agree, what both say crosses on the way: there it looks
//! again when everything that was said before must have been seen.

use core::sync::atomic::{Ordering, fence};
use std::sync::Arc;

use sluice_sys::clock::now_ns;
use sluice_sys::errno::Errno;
use sluice_sys::wake::drain;
use sluice_transport::worker::{self, Control, Look, Manner, WATCH_NS, Woken, Work};
use sluice_verbs::with_aftermath;
use sluice_waiting::limits::LIMITS;
use sluice_window::Kind;
use sluice_window::claim::SETTLE_NS;

use crate::channel::sleep;
use crate::host::{IS_WORKER, KICK};
use crate::node::Node;
use crate::peer::ACK_WAIT_NS;

/// Starts the thread.
pub fn start(node: &Arc<Node>) -> Result<(), Errno> {
    let work = Channels {
        turn: 0,
        said: false,
        tokens: [0; 64],
    };
    worker::start(node, "sluice-window".to_owned(), work)
}

struct Channels {
    turn: u64,
    /// Peers were told that it sleeps.
    said: bool,
    tokens: [u64; 64],
}

impl Channels {
    fn say(&mut self, node: &Node, asleep: bool) {
        self.turn += sleep::TURN;
        let word = self.turn | if asleep { sleep::ASLEEP } else { 0 };
        for peer in node.peers.iter().filter(|peer| peer.is_up()) {
            peer.say_sleep(word);
        }
        self.said = asleep;
    }
}

impl Work<1> for Channels {
    type Node = Node;

    const MANNER: Manner = Manner::RUNG_FROM_AFAR;

    fn control(node: &Node) -> &Control {
        &node.host.control
    }

    fn polled(&self, node: &Node) -> [u64; 1] {
        [node.host.polled.load(Ordering::Relaxed)]
    }

    fn awakes(&mut self, node: &Node) {
        IS_WORKER.set(true);
        node.host.asleep.store(false, Ordering::SeqCst);
        if self.said {
            self.say(node, false);
        }
    }

    /// What programs poll for is left to them.
    fn look(&mut self, node: &Node, look: Look<1>) -> Option<[usize; 1]> {
        let found = match look {
            Look::Round { polled: [true] } => 0,
            _ => with_aftermath(|after| node.progress(false, after)),
        };
        let now = now_ns();
        for peer in node.peers.iter() {
            peer.flush_old(now);
        }
        Some([found])
    }

    fn chores(&mut self, node: &Node, now: u64, _busy: bool) {
        with_aftermath(|after| node.fire(now, after));
        node.contacts_if_due();
    }

    fn announce(&mut self, node: &Node, sleeps: bool) -> bool {
        if !sleeps {
            return false;
        }
        node.host.asleep.store(true, Ordering::SeqCst);
        self.say(node, true);
        fence(Ordering::SeqCst);
        let found = with_aftermath(|after| node.progress(true, after));
        let wants = |node: &Node| {
            let mut peers = node.peers.iter().filter(|peer| peer.is_up());
            peers.any(|peer| peer.has_turns.load(Ordering::Acquire))
        };
        if found == 0 && wants(node) {
            // There was no room: peers ring for that too, and it may have come before they knew.
            self.say(node, true);
            fence(Ordering::SeqCst);
            return with_aftermath(|after| node.progress(true, after)) > 0;
        }
        found > 0
    }

    fn until(&mut self, node: &Node, sleeps: bool, now: u64) -> Option<u64> {
        let mut until = node.host.timers.next();
        if !sleeps {
            until = until.min(now + WATCH_NS);
        } else if node.host.bell.is_none() || !node.all_ring() {
            until = until.min(now + LIMITS.unrung_ns);
        } else if node.host.region.header().kind != Kind::Coherent {
            until = until.min(now + SETTLE_NS);
        }
        let owes = node.peers.iter().any(|peer| peer.owes_since() != 0);
        if owes {
            until = until.min(now + ACK_WAIT_NS);
        }
        until = until.min(node.host.contacts_due.load(Ordering::SeqCst));
        node.host.timers.may_sleep(until).then_some(until)
    }

    fn wait(&mut self, node: &Node, _sleeps: bool, timeout_ns: Option<u64>) -> Woken {
        let woken = Woken::by(
            &node.host.epoll,
            &mut self.tokens,
            &node.host.timers,
            timeout_ns,
        );
        let by_work = self.tokens.iter().take(woken.count).any(|it| *it != KICK);
        Woken { by_work, ..woken }
    }

    fn events(&mut self, node: &Node, woken: Woken) {
        for token in self.tokens.iter().take(woken.count) {
            match token {
                &KICK => drain(node.host.kick.raw()),
                _ => {
                    if let Some(bell) = &node.host.bell {
                        bell.drain();
                    }
                    // Somebody may have come, or left.
                    node.host.contacts_due.store(0, Ordering::SeqCst);
                }
            }
        }
    }
}
