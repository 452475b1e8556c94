//! The threads that make progress when nobody polls, and sleep when there is nothing to do: one for
//! each lane.
//!
//! Packets announce themselves: a port's descriptor is readable as long as there are some. So the
//! thread sleeps on these descriptors, unless a program polls its completion queues, and takes the
//! packets itself: to be woken for each of them would cost more than the packet. Then the thread
//! only watches, every millisecond, whether the program still does.
//!
//! Where packets come soon after each other it looks for the next one for a while before it sleeps
//! ([`Patience`]): a peer that reads and writes here waits for each answer.
//!
//! Deadlines (repetitions, pacing) are met to the millisecond by this thread, and sooner by
//! programs that poll.

use std::sync::{Arc, Weak};
use std::time::Duration;

use sluice_sys::errno::Errno;
use sluice_sys::process::{ask_for_slices, block_signals, change_processor, now_ns};
use sluice_sys::wake::Epoll;
use sluice_verbs::settled;

use crate::lane::worker::Worker;
use crate::node::Node;
use crate::sleeper::{
    self, KICK, LISTENER, NEIGHBOUR, NETWORK, PORT, Sleeper, UDP, WATCHED, XDP, token,
};

/// Of so many looks at AF_XDP one is at the UDP sockets as well.
const UDP_LOOKS: u32 = 64;
/// After so many it lets others have the processor, if any want it.
const YIELD_LOOKS: u32 = 8;
/// How long a watching thread waits.
const WATCH_NS: u64 = 1_000_000;
/// So many looks in a row are left to programs that poll.
const WATCHES_LEFT_OUT: u32 = 64;
/// Packets of one look from which on more are expected soon ([`Stream`]).
const BULK_PACKETS: usize = 12;
/// How long a nap is, about; the kernel may make it 50 µs longer. No window is that short.
const BULK_NAP_NS: u64 = 20_000;
/// Watches without traffic before the thread sleeps.
const QUIET_WATCHES: u32 = 4;

/// The slice of a processor that the thread asks for: one batch takes less. The programs that it
/// serves may spin on both processors, with slices of 3 ms.
const SLICE_NS: u64 = 100_000;

/// Starts the threads. They end when the node is gone or told to stop.
pub fn start(node: &Arc<Node>) -> Result<(), Errno> {
    for lane in 0..node.lanes.count() {
        let weak = Arc::downgrade(node);
        let name = match lane {
            0 => "sluice-roce".to_owned(),
            _ => format!("sluice-roce-{lane}"),
        };
        std::thread::Builder::new()
            .name(name)
            .spawn(move || {
                block_signals();
                // A peer waits for what it is woken for; without, it is only served later.
                let _ = ask_for_slices(SLICE_NS);
                run(&weak, lane);
            })
            .map_err(|error| {
                // Those that run must not stay.
                node.stop();
                Errno(error.raw_os_error().unwrap_or(libc::EAGAIN))
            })?;
    }
    Ok(())
}

/// How sure the thread is that programs leave packets to it: above the middle it sleeps on the
/// ports, below it watches.
#[derive(Clone, Copy)]
struct Alone(i32);

impl Alone {
    const MAX: i32 = 8;
    /// Where packets were left for long: one that waits for the next look costs as much time as the
    /// thread takes that is woken some tens of times in vain.
    const LEFT: i32 = 64;

    /// It has looked, and found so many packets that nobody had taken.
    fn looked(&mut self, found: usize, polled: bool) {
        // What it finds has waited for it. Finding nothing says something only while others do.
        let step = match (found, polled) {
            (0, true) => -1,
            (0, false) => 0,
            _ => 2,
        };
        self.0 = (self.0 + step).clamp(0, Self::MAX.max(self.0));
    }

    /// It has found packets after a watch in which programs took none: they poll until a request is
    /// complete, and leave what comes behind to it.
    fn was_left(&mut self) {
        self.0 = Self::LEFT;
    }

    fn sleeps(self) -> bool {
        self.0 > Self::MAX / 2
    }
}

/// Whether many packets come. The thread then does not listen for the next ones when it has taken
/// all, but naps and looks, so that senders need not wake it, which costs both more than the
/// packets. When a nap was in vain it sleeps.
#[derive(Default)]
struct Stream(bool);

impl Stream {
    /// It has looked, and found so many packets. Whether it is to look again soon.
    fn looked(&mut self, found: usize) -> bool {
        let before = core::mem::replace(&mut self.0, found >= BULK_PACKETS);
        before || self.0
    }
}

/// For how long the thread looks for the next packet before it sleeps. As long as packets come
/// within a time that is worth it, sleeping costs more than looking; some that come later end that. So
/// a rate below one packet in [`Patience::most_ns`] costs nothing but its packets. One alone does not:
/// each of the next ones would wake the thread until the window has grown again.
struct Patience {
    window_ns: u64,
    most_ns: u64,
    /// To yield the processor takes longer only if somebody else wants it.
    yield_ns_max: u64,
    /// Yields in a row that took longer.
    lost: u32,
    moved_ns: u64,
}

impl Patience {
    /// What looking may cost at most for one packet, in system calls that do nothing: to be put to
    /// sleep and woken costs some tens, and delays the packet by more.
    const CALLS: u64 = 250;
    /// The same, whatever a system call takes.
    const LIMITS_NS: core::ops::RangeInclusive<u64> = 20_000..=1_000_000;
    /// What yielding the processor to nobody may cost, in such calls, and in any case.
    const YIELD_CALLS: u64 = 10;
    const YIELD_NS_MIN: u64 = 3_000;
    /// So many yields in a row that took longer are no accident.
    const LOST_MIN: u32 = 2;
    /// Time between two moves to another processor.
    const MOVE_NS: u64 = 2_000_000;

    /// `call_ns`: what a system call takes that does nothing.
    fn new(call_ns: u64, processors: usize) -> Self {
        let most = (call_ns * Self::CALLS).clamp(*Self::LIMITS_NS.start(), *Self::LIMITS_NS.end());
        Self {
            window_ns: 0,
            // Who looks keeps the only processor from whoever sends.
            most_ns: if processors > 1 { most } else { 0 },
            yield_ns_max: (call_ns * Self::YIELD_CALLS).max(Self::YIELD_NS_MIN),
            lost: 0,
            moved_ns: 0,
        }
    }

    /// It has yielded the processor, which took so long. Whether somebody else wants it, and not for a
    /// moment only.
    fn yielded(&mut self, ns: u64) -> bool {
        self.lost = if ns > self.yield_ns_max {
            self.lost + 1
        } else {
            0
        };
        self.lost >= Self::LOST_MIN
    }

    /// Somebody else wants the processor that it looks on, perhaps the one who waits for our answer.
    /// Whether it may look for another: who is woken by packets is woken on the processor of whoever
    /// sends them, and stays there however idle others are. Not if there is none either.
    fn may_move(&mut self, now: u64) -> bool {
        let may = now.saturating_sub(self.moved_ns) >= Self::MOVE_NS;
        if may {
            self.moved_ns = now;
            self.lost = 0;
        }
        may
    }

    /// Others want this processor and all that it has tried. Says how many packets came: none.
    fn crowded(&mut self) -> usize {
        self.window_ns = 0;
        self.lost = 0;
        0
    }

    /// A packet woke it, so long after the last one.
    fn woken(&mut self, gap_ns: u64) {
        let least = self.most_ns / 8;
        self.window_ns = if gap_ns <= self.most_ns {
            (2 * self.window_ns).clamp(least, self.most_ns)
        } else if self.window_ns > least {
            self.window_ns / 2
        } else {
            0
        };
    }
}

/// What a system call takes that does nothing, nanoseconds.
fn call_ns() -> u64 {
    let mut tokens = [0; 64];
    let Ok(nothing) = Epoll::new() else {
        return 0;
    };
    let mut least = u64::MAX;
    for _ in 0..16 {
        let began = now_ns();
        let _ = nothing.wait(&mut tokens, Some(0));
        least = least.min(now_ns().saturating_sub(began));
    }
    least
}

/// Looks for packets until some come or the time is over. How many came. `None`: others want this
/// processor, perhaps the one who waits for our answer, or who is to send the next packet.
fn look(node: &Node, lane: usize, until: u64, patience: &mut Patience) -> Option<usize> {
    let mut looks = 0_u32;
    loop {
        // The sockets cost a system call.
        let udp = looks.is_multiple_of(UDP_LOOKS);
        let found = settled(|after| node.lanes.progress(lane, Worker::Engine { udp }, after));
        if let Some(found) = found
            && found > 0
        {
            return Some(found);
        }
        let now = now_ns();
        if now >= until || node.is_stopped() {
            return Some(0);
        }
        looks += 1;
        if looks.is_multiple_of(YIELD_LOOKS) {
            std::thread::yield_now();
            if patience.yielded(now_ns().saturating_sub(now))
                && !(patience.may_move(now) && change_processor() == Ok(true))
            {
                return None;
            }
        }
        core::hint::spin_loop();
    }
}

fn run(weak: &Weak<Node>, number: usize) {
    let mut tokens = [0; 64];
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut patience = Patience::new(call_ns(), processors);
    // When the thread last found packets.
    let mut found_at = 0;
    let mut before = 0;
    // Rounds without anything; starts as if there had been none for long.
    let mut quiet = QUIET_WATCHES;
    let mut alone = Alone(Alone::MAX);
    // A watch has ended in which programs took nothing.
    let mut unpolled = false;
    let mut stream = Stream::default();
    let mut udp = true;
    while let Some(node) = weak.upgrade() {
        if node.is_stopped() {
            return;
        }
        let gate = &*node.lanes[number].gate;
        let sleeper = &gate.sleeper;
        sleeper.awakes();
        let polled = gate.polled();
        let others = polled != before;
        before = polled;
        // Somebody else may be at it this very moment.
        let found = settled(|after| node.lanes.progress(number, Worker::Engine { udp }, after));
        alone.looked(found.unwrap_or(0), others || found.is_none());
        if core::mem::take(&mut unpolled) && found.is_some_and(|found| found > 0) {
            alone.was_left();
        }
        quiet = match found {
            Some(0) if !others => (quiet + 1).min(QUIET_WATCHES),
            _ => 0,
        };
        let armed = node.is_armed();
        let asleep = armed || alone.sleeps() || quiet >= QUIET_WATCHES;
        let mut now = now_ns();
        let steering = steer_on_demand(&node, number, now);
        if quiet < QUIET_WATCHES {
            node.common().network.confirm(now);
        }
        sleeper.listens(asleep);
        if found.is_some_and(|found| found > 0) {
            found_at = now;
        }
        let naps = asleep && stream.looked(found.unwrap_or(0));
        let window = found_at + patience.window_ns;
        if asleep && !naps && now < window {
            let more = look(&node, number, window, &mut patience);
            let more = more.unwrap_or_else(|| patience.crowded());
            now = now_ns();
            if more > 0 {
                alone.looked(more, false);
                stream.looked(more);
                found_at = now;
                quiet = 0;
                continue;
            }
        }
        let deadline = gate.deadline();
        let until = match asleep {
            // There is more to send at once.
            true if deadline == 0 => now,
            // Others are met in time or a little late; nothing is gained by spinning.
            true if deadline == u64::MAX => u64::MAX,
            true => deadline.max(now + WATCH_NS),
            false => now + WATCH_NS,
        };
        let until = until.min(steering.max(now + WATCH_NS));
        sleeper.sleeps_until(until, now);
        // One that was set in between did not see for how long we sleep.
        let sooner = gate.deadline();
        if asleep && sooner < deadline && sooner.max(now + WATCH_NS) < until {
            continue;
        }
        let mut timeout = (until != u64::MAX).then(|| until.saturating_sub(now));
        if naps && until > now + BULK_NAP_NS {
            if found == Some(0) {
                std::thread::sleep(Duration::from_nanos(BULK_NAP_NS));
            }
            timeout = Some(0);
        }
        let mut ready = sleeper.wait(!asleep, &mut tokens, timeout).len();
        // Programs that have taken packets meanwhile have done everything else, too: a look would
        // only be in their way.
        for _ in 0..WATCHES_LEFT_OUT {
            let polled = gate.polled();
            unpolled = !asleep && ready == 0 && polled == before;
            if asleep || ready > 0 || unpolled {
                break;
            }
            before = polled;
            alone.looked(0, true);
            quiet = 0;
            steer_on_demand(&node, number, now_ns());
            ready = sleeper.wait(!asleep, &mut tokens, timeout).len();
        }
        let ready = &tokens[..ready];
        // Who was not woken by another port looks at all.
        let by = |kind| ready.contains(&token(PORT, kind));
        udp = !by(XDP) || by(UDP);
        if asleep && (by(XDP) || by(UDP)) {
            patience.woken(now_ns().saturating_sub(found_at));
        }
        for token in ready {
            event(&node, sleeper, *token);
        }
    }
}

/// By one of the threads. When to be called again, nanoseconds.
fn steer_on_demand(node: &Node, number: usize, now: u64) -> u64 {
    if number == 0 {
        node.common().network.steer_on_demand(now)
    } else {
        u64::MAX
    }
}

fn event(node: &Node, sleeper: &Sleeper, token: u64) {
    let (kind, id) = sleeper::parse(token);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_were_left_are_listened_for() {
        let mut alone = Alone(Alone::MAX);
        // A program takes everything.
        let vain = |alone: &mut Alone, count: i32| (0..count).for_each(|_| alone.looked(0, true));
        vain(&mut alone, Alone::MAX / 2);
        assert!(!alone.sleeps());
        alone.was_left();
        vain(&mut alone, Alone::LEFT - Alone::MAX);
        assert!(alone.sleeps());
        // What it finds while it listens is worth no more than ever.
        alone.looked(3, true);
        vain(&mut alone, Alone::MAX / 2);
        assert!(!alone.sleeps());
    }

    #[test]
    fn only_packets_that_come_soon_are_looked_for() {
        let mut patience = Patience::new(300, 2);
        let most = patience.most_ns;
        assert_eq!((most, patience.window_ns), (75_000, 0));
        // An hour of one packet each millisecond costs no look.
        patience.woken(1_000_000);
        assert_eq!(patience.window_ns, 0);
        let windows = [10_000; 6].map(|gap| {
            patience.woken(gap);
            patience.window_ns
        });
        assert_eq!(
            windows,
            [most / 8, most / 8 * 2, most / 8 * 4, most, most, most]
        );
        let windows = [most + 1; 4].map(|gap| {
            patience.woken(gap);
            patience.window_ns
        });
        assert_eq!(windows, [most / 2, most / 4, most / 8, 0]);
        // One processor is left to whoever sends, however slow it is.
        let mut patience = Patience::new(5_000, 1);
        patience.woken(10);
        assert_eq!(patience.window_ns, 0);
    }

    #[test]
    fn where_all_processors_are_wanted_it_sleeps() {
        let mut patience = Patience::new(300, 2);
        let moves = [10, 11, 12, 13].map(|ms| patience.may_move(ms * 1_000_000));
        assert_eq!(moves, [true, false, true, false]);
    }

    #[test]
    fn a_stream_is_looked_for_until_a_nap_was_in_vain() {
        let mut stream = Stream::default();
        let again = [0, 3, BULK_PACKETS, 60, 0, 60, 5, 0, 0].map(|found| stream.looked(found));
        assert_eq!(
            again,
            [false, false, true, true, true, true, true, false, false]
        );
    }
}
