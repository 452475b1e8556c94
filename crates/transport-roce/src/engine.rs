//! The thread that makes progress when nobody polls, and sleeps when there is nothing to do.
//!
//! Packets announce themselves: a port's descriptor is readable as long as there are some. So the
//! thread sleeps on these descriptors, unless a program polls its completion queues, and takes the
//! packets itself: to be woken for each of them would cost more than the packet. Then the thread
//! only watches, every millisecond, whether the program still does.
//!
//! Deadlines (repetitions, pacing) are met to the millisecond by this thread, and sooner by
//! programs that poll.

use core::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use sluice_sys::errno::Errno;
use sluice_sys::process::{block_signals, now_ns};
use sluice_sys::wake::drain;

use crate::lane::Worker;
use crate::node::Node;

pub const KICK: u64 = 0;
pub const WATCHED: u64 = 1;
pub const PORT: u64 = 2;
pub const NETWORK: u64 = 3;
pub const LISTENER: u64 = 4;
pub const NEIGHBOUR: u64 = 5;

/// Kinds of [`PORT`]s.
pub const UDP: u64 = 0;
pub const XDP: u64 = 1;

/// How long a watching thread waits.
const WATCH_NS: u64 = 1_000_000;
/// Watches without traffic before the thread sleeps.
const QUIET_WATCHES: u32 = 4;

pub fn token(kind: u64, id: u64) -> u64 {
    kind << 56 | (id & ((1 << 56) - 1))
}

/// Starts the thread. It ends when the node is gone or told to stop.
pub fn start(node: &Arc<Node>) -> Result<(), Errno> {
    let weak = Arc::downgrade(node);
    std::thread::Builder::new()
        .name("sluice-roce".into())
        .spawn(move || {
            block_signals();
            run(&weak);
        })
        .map(drop)
        .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))
}

/// How sure the thread is that programs leave packets to it: above the middle it sleeps on the
/// ports, below it watches.
#[derive(Clone, Copy)]
struct Alone(i32);

impl Alone {
    const MAX: i32 = 8;

    /// It has looked, and found so many packets that nobody had taken.
    fn looked(&mut self, found: usize, polled: bool) {
        // What it finds has waited for it. Finding nothing says something only while others do.
        let step = match (found, polled) {
            (0, true) => -1,
            (0, false) => 0,
            _ => 2,
        };
        self.0 = (self.0 + step).clamp(0, Self::MAX);
    }

    fn sleeps(self) -> bool {
        self.0 > Self::MAX / 2
    }
}

fn run(weak: &Weak<Node>) {
    let mut tokens = [0; 64];
    let mut before = 0;
    // Rounds without anything; starts as if there had been none for long.
    let mut quiet = QUIET_WATCHES;
    let mut alone = Alone(Alone::MAX);
    let mut udp = true;
    while let Some(node) = weak.upgrade() {
        if node.stop.load(Ordering::Acquire) {
            return;
        }
        node.engine_until.store(0, Ordering::SeqCst);
        let polled = node.lane.polled.load(Ordering::Relaxed);
        let others = polled != before;
        before = polled;
        // Somebody else may be at it this very moment.
        let found = node.lane.progress(&node, Worker::Engine { udp });
        alone.looked(found.unwrap_or(0), others || found.is_none());
        quiet = match found {
            Some(0) if !others => (quiet + 1).min(QUIET_WATCHES),
            _ => 0,
        };
        let armed = node.armed.load(Ordering::SeqCst) != 0;
        let asleep = armed || alone.sleeps() || quiet >= QUIET_WATCHES;
        let now = now_ns();
        if quiet < QUIET_WATCHES {
            node.network.confirm(now);
        }
        let deadline = node.lane.deadline.load(Ordering::SeqCst);
        let until = match asleep {
            // There is more to send at once.
            true if deadline == 0 => now,
            // Others are met in time or a little late; nothing is gained by spinning.
            true if deadline == u64::MAX => u64::MAX,
            true => deadline.max(now + WATCH_NS),
            false => now + WATCH_NS,
        };
        node.engine_until.store(until, Ordering::SeqCst);
        // One that was set in between did not see for how long we sleep.
        if asleep && node.lane.deadline.load(Ordering::SeqCst) < until && until == u64::MAX {
            continue;
        }
        let timeout = (until != u64::MAX).then(|| until.saturating_sub(now));
        let epoll = if asleep {
            &node.sleeping
        } else {
            &node.watching
        };
        let ready = epoll.wait(&mut tokens, timeout).unwrap_or(&[]);
        // Who was not woken by another port looks at all.
        udp = !ready.contains(&token(PORT, XDP)) || ready.contains(&token(PORT, UDP));
        for token in ready {
            event(&node, *token);
        }
    }
}

fn event(node: &Arc<Node>, token: u64) {
    let id = token & ((1 << 56) - 1);
    match token >> 56 {
        KICK => drain(node.kick.raw()),
        WATCHED => {
            let mut tokens = [0; 64];
            for token in node.watching.wait(&mut tokens, Some(0)).unwrap_or(&[]) {
                event(node, *token);
            }
        }
        NETWORK => node.network_changed(),
        LISTENER => node.forward.accept(node, id as u32),
        NEIGHBOUR => node.forward.take(node, id),
        _ => {}
    }
}
