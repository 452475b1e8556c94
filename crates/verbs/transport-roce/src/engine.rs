//! What the transport's threads do, one for each shard ([`sluice_transport::worker`]).
//!
//! Packets announce themselves: a port's descriptor is readable as long as there are some. So a
//! thread that sleeps waits for these descriptors, and one that watches does not. Deadlines (repetitions,
//! pacing) are met to the millisecond by it, and sooner by programs that poll.

use std::sync::Arc;

use sluice_sys::errno::Errno;
use sluice_transport::worker::{
    self, Control, KICK, Look, Manner, PORT, Sleeper, WATCH_NS, WATCHED, Woken, Work, token,
};
use sluice_verbs::with_aftermath;

use crate::node::Node;
use crate::shard::gate::Gate;
use crate::shard::worker::Worker;
use crate::watched::{LISTENER, NEIGHBOUR, NETWORK, UDP, XDP};

/// Of so many looks at AF_XDP one is at the UDP sockets as well: these cost a system call.
const UDP_LOOKS: u32 = 64;

/// Starts the threads.
pub fn start(node: &Arc<Node>) -> Result<(), Errno> {
    for shard in 0..node.shards.count() {
        let name = match shard {
            0 => "sluice-roce".to_owned(),
            _ => format!("sluice-roce-{shard}"),
        };
        let ports = Ports {
            shard,
            looks_at_udp: true,
            steers_at: u64::MAX,
            tokens: [0; 64],
        };
        worker::start(node, name, ports).inspect_err(|_| {
            // Those that run must not stay.
            node.stop();
        })?;
    }
    Ok(())
}

/// The ports of a shard.
struct Ports {
    shard: usize,
    /// The UDP sockets may have something.
    looks_at_udp: bool,
    /// When the steering of packets is to be looked at again, nanoseconds.
    steers_at: u64,
    tokens: [u64; 64],
}

impl Ports {
    fn gate<'a>(&self, node: &'a Node) -> &'a Gate {
        &node.shards[self.shard].gate
    }
}

impl Work<1> for Ports {
    type Node = Node;

    const MANNER: Manner = Manner::HEARD;

    fn control(node: &Node) -> &Control {
        &node.control
    }

    fn polled(&self, node: &Node) -> [u64; 1] {
        [self.gate(node).polled()]
    }

    fn awakes(&mut self, node: &Node) {
        self.gate(node).sleeper.awakes();
    }

    fn look(&mut self, node: &Node, look: Look<1>) -> Option<[usize; 1]> {
        let udp = match look {
            Look::Round { .. } => self.looks_at_udp,
            Look::Again { looks } => looks.is_multiple_of(UDP_LOOKS),
        };
        let worker = Worker::Engine { udp };
        let found = with_aftermath(|after| node.shards.progress(self.shard, worker, after));
        found.map(|found| [found])
    }

    /// One of the threads does what is the transport's.
    fn chores(&mut self, node: &Node, now: u64, busy: bool) {
        let network = &node.common().network;
        if self.shard == 0 {
            self.steers_at = network.steer_on_demand(now);
        }
        if busy {
            network.confirm(now);
        }
    }

    /// Packets that came since the last look have left their port's descriptor readable.
    fn announce(&mut self, node: &Node, sleeps: bool) -> bool {
        self.gate(node).sleeper.listens(sleeps);
        false
    }

    fn until(&mut self, node: &Node, sleeps: bool, now: u64) -> Option<u64> {
        let gate = self.gate(node);
        let deadline = gate.deadline();
        let until = match sleeps {
            // There is more to send at once.
            true if deadline == 0 => now,
            // Others are met in time or a little late; nothing is gained by spinning.
            true if deadline == u64::MAX => u64::MAX,
            true => deadline.max(now + WATCH_NS),
            false => now + WATCH_NS,
        };
        let until = until.min(self.steers_at.max(now + WATCH_NS));
        gate.sleeper.sleeps_until(until, now);
        // One that was set in between did not see for how long it sleeps.
        let sooner = gate.deadline();
        let missed = sleeps && sooner < deadline && sooner.max(now + WATCH_NS) < until;
        (!missed).then_some(until)
    }

    fn wait(&mut self, node: &Node, sleeps: bool, timeout_ns: Option<u64>) -> Woken {
        let sleeper = &self.gate(node).sleeper;
        let ready = sleeper.wait(!sleeps, &mut self.tokens, timeout_ns);
        let by = |kind| ready.contains(&token(PORT, kind));
        let (udp, xdp) = (by(UDP), by(XDP));
        // Who was not woken by another port looks at all.
        self.looks_at_udp = !xdp || udp;
        Woken {
            count: ready.len(),
            by_work: xdp || udp,
        }
    }

    fn events(&mut self, node: &Node, woken: Woken) {
        for token in self.tokens.iter().take(woken.count) {
            event(node, &self.gate(node).sleeper, *token);
        }
    }
}

fn event(node: &Node, sleeper: &Sleeper, token: u64) {
    let (kind, id) = worker::parse(token);
    match kind {
        KICK => {
            sleeper.was_kicked();
            node.serve_wanted();
        }
        WATCHED => {
            let mut tokens = [0; 64];
            for token in sleeper.wait(true, &mut tokens, Some(0)) {
                event(node, sleeper, *token);
            }
        }
        NETWORK => node.network_changed(),
        LISTENER => node.neighbour_came(id as u32),
        NEIGHBOUR => node.neighbour_brings(id),
        _ => {}
    }
}
