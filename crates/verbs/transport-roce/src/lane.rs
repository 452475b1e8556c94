//! A lane: packet ports and the queue pairs whose packets leave by them, worked on by one thread
//! at a time, whichever has the time.
//!
//! A packet that comes by the ports of another lane than its queue pair's is handed over
//! ([`Lane::hand_over`]): nobody but the lane's holder works on its queue pairs. Datagrams to groups
//! are the exception; they are given to all members where they come, and nobody answers them.
//!
//! **Order of locks:** a lane, then a machine, then the engine's own (a send half among them). Who
//! holds a lane takes no other, but may put packets into what another waits with.
//! Whoever posts holds a send half already. So it only tries the other two, reports nothing, and
//! leaves a note ([`Lane::inbox`]) that the lane's present holder reads when it lets go.

#[cfg(target_arch = "x86_64")]
use core::sync::atomic::compiler_fence;
#[cfg(not(target_arch = "x86_64"))]
use core::sync::atomic::fence;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use sluice_packet::{Port, Received, SendError};
use sluice_protocol::{Instant, Scheduler};
use sluice_sys::errno::Errno;
use sluice_sys::process::now_ns;
use sluice_verbs::SendDone;
use sluice_verbs::transport::{MAD_BYTES, MadPath};

use crate::brought::Brought;
use crate::burst::Burst;
use crate::counters::{LaneCounters, count};
use crate::gsi;
use crate::held::Held;
use crate::intake::Intake;
use crate::lanes::Set;
use crate::locks::{lock, try_lock};
use crate::machine::Machine;
use crate::node::{Node, Table};
use crate::part::Part;
use crate::path::UDP_PORT;
use crate::sleeper::Sleeper;

/// Packets that one queue pair sends in a turn, at most.
const TURN_PACKETS: usize = 32;
/// Turns in one round, so that what comes in is looked at in between.
const TURNS: usize = 64;
/// Packets that are gathered at most.
const BURST_PACKETS: u32 = 32;
/// Bytes of a small request: it has one packet or few.
pub const SMALL_BYTES: u64 = 1024;
/// Packets of a round whose acknowledgements wait for what the program does next: it may post an
/// answer, and then both leave by one call of the kernel.
const PROMPT_PACKETS: usize = 4;

/// So many packets from another lane are taken in by who brings them, if the lane's thread sleeps:
/// to wake it takes longer. Behind more there are more to come, and two threads are better.
pub const BROUGHT_FEW: usize = 8;

/// When a port that took nothing more is tried again.
const BLOCKED_NS: u64 = 100_000;
/// Deadlines are looked at in every so many rounds of a poller that finds nothing.
const TIMER_ROUNDS: u32 = 32;
/// Where there are faster ports the UDP socket is asked in every so many rounds of a poller: if they say
/// what they leave to it, as packets may come by interfaces that have none; and if they do not.
const UDP_ROUNDS: u32 = 1024;
const UDP_ROUNDS_BLIND: u32 = 16;
/// And in each of so many behind one in which it had something, or is about to have.
const UDP_ROUNDS_WARM: u32 = 32;

/// How long who ends waits for whoever is at it.
const SETTLE_NS: u64 = 20_000_000;

/// Who works on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker {
    /// A program that polls.
    Poller,
    /// The transport's own thread. `udp`: there may be something in the UDP sockets.
    Engine { udp: bool },
    /// Who wants everything sent that is owed.
    Leaver,
    /// Who has brought packets from elsewhere, and takes them in at once. Ports are not looked at,
    /// so that nothing is handed over from there in turn.
    Bringer,
}

/// The request that a poster is just posting.
#[derive(Clone, Copy, Debug)]
pub struct Posting {
    /// [`Part::index`].
    pub index: usize,
    pub seq: u64,
    /// It has no more than [`SMALL_BYTES`].
    pub small: bool,
}

/// For whom packets are sent.
#[derive(Clone, Copy, Debug)]
struct Poster<'a> {
    posting: &'a Posting,
    /// Packets wait for more.
    gathers: bool,
}

/// Packet ports and whose packets leave by them.
pub struct Lane {
    /// Its place among the node's.
    pub number: usize,
    /// By what its thread is woken.
    pub sleeper: Sleeper,
    state: Mutex<State>,
    /// Queue pairs that may have something to send.
    inbox: Mutex<Vec<usize>>,
    /// How many, to look without the lock.
    pending: AtomicUsize,
    /// Packets that other processes got, or other lanes.
    brought: Brought,
    /// Lanes that have handed packets over to this one.
    fed_by: AtomicU64,
    /// When somebody must look at the lane again, nanoseconds; [`u64::MAX`]: no need.
    pub deadline: AtomicU64,
    /// Packets that pollers have found.
    pub polled: AtomicU64,
    burst: Burst,
    pub counters: LaneCounters,
}

struct State {
    ports: Vec<Box<dyn Port>>,
    scheduler: Scheduler,
    table: Arc<Table>,
    generation: u64,
    /// Queue pairs that got something in this round.
    touched: Vec<usize>,
    /// Queue pairs with news for the engine that a poster could not tell.
    unreported: Vec<usize>,
    /// Something waits for room in a port.
    blocked: bool,
    /// Packets in the ports that the kernel has not been told of.
    gathered: u32,
    /// Of these, when the ports last handed on what need not wait.
    handed_on: u32,
    /// How often the kernel was told of packets.
    flushes: u32,
    /// A poller has left answers to be sent.
    owes: bool,
    /// Acknowledgements that wait for what the program posts.
    held: Held,
    rounds: u32,
    /// What the ports had left to the UDP socket when they were last asked.
    left_to_udp: Option<u64>,
    /// Rounds of a poller in which the UDP socket is asked still.
    udp_warm: u32,
    gsi: gsi::Sender,
    /// Datagrams for whoever manages connections.
    mads: Vec<(MadPath, [u8; MAD_BYTES])>,
    /// Lanes that were handed something in this round.
    handed: Set,
}

impl Lane {
    pub fn new(number: usize, ports: Vec<Box<dyn Port>>) -> Result<Self, Errno> {
        Ok(Self {
            number,
            sleeper: Sleeper::new()?,
            state: Mutex::new(State {
                ports,
                scheduler: Scheduler::new(64 << 10),
                table: Arc::default(),
                generation: 0,
                touched: Vec::new(),
                unreported: Vec::new(),
                blocked: false,
                gathered: 0,
                handed_on: 0,
                flushes: 0,
                owes: false,
                held: Held::default(),
                rounds: 0,
                left_to_udp: None,
                udp_warm: 0,
                gsi: gsi::Sender::default(),
                mads: Vec::new(),
                handed: Set::default(),
            }),
            inbox: Mutex::default(),
            pending: AtomicUsize::new(0),
            brought: Brought::default(),
            fed_by: AtomicU64::new(0),
            deadline: AtomicU64::new(u64::MAX),
            polled: AtomicU64::new(0),
            burst: Burst::default(),
            counters: LaneCounters::default(),
        })
    }

    /// Lanes by whose ports packets for this one have come.
    pub fn fed_by(&self) -> Set {
        Set(self.fed_by.load(Ordering::Relaxed))
    }

    /// A queue pair may have something to send.
    pub fn note(&self, index: usize) {
        lock(&self.inbox).push(index);
        // Behind it whoever tries the lane's lock in vain, see `is_noted`.
        self.pending.fetch_add(1, Ordering::SeqCst);
        // On x86-64 the addition is one already.
        #[cfg(not(target_arch = "x86_64"))]
        fence(Ordering::SeqCst);
    }

    /// Whether somebody has left a note since the lane was taken. To be asked after it was let
    /// go: who left one in the meantime did not get it.
    fn is_noted(&self) -> bool {
        lock_let_go();
        self.pending.load(Ordering::SeqCst) != 0 || !self.brought.is_empty()
    }

    /// Receives, answers, sends, and has other lanes take what came for them. How many packets
    /// came; None: somebody else is at it.
    pub fn progress(&self, node: &Node, worker: Worker) -> Option<usize> {
        let mut handed = Set::default();
        let came = self.work(node, worker, &mut handed);
        for other in handed {
            node.lanes[other].expect_brought(node, came.unwrap_or(0) <= BROUGHT_FEW);
        }
        came
    }

    /// Receives, answers, sends. `handed` gets the lanes that packets came for; somebody must see
    /// to these.
    fn work(&self, node: &Node, worker: Worker, handed: &mut Set) -> Option<usize> {
        let mut came = 0;
        let mut rounds = 0;
        loop {
            let Some(mut state) = try_lock(&self.state) else {
                return (rounds > 0).then_some(came);
            };
            self.burst.end();
            match worker {
                Worker::Poller => self.burst.polled(true),
                Worker::Engine { .. } if self.has_left(&state) => self.burst.polled(false),
                _ => {}
            }
            state.release(false);
            if state.owes || state.gathered > 0 {
                state.send(self, node, None);
            }
            let now_came = state.receive(self, node, worker);
            if worker == Worker::Leaver {
                state.release(true);
            }
            came += now_came;
            let idle = now_came == 0 && worker == Worker::Poller && state.has_nothing(self, node);
            if idle {
                drop(state);
            } else {
                state.report();
                if worker == Worker::Poller && (1..=PROMPT_PACKETS).contains(&now_came) {
                    state.owes = !state.scheduler.is_idle();
                } else {
                    state.send(self, node, None);
                }
                self.set_deadline(&state);
                let mads = core::mem::take(&mut state.mads);
                handed.add(core::mem::take(&mut state.handed));
                drop(state);
                for (path, mad) in mads {
                    node.gsi.came(&path, &mad, false);
                }
            }
            rounds += 1;
            // A note of the meantime is read, also by who found nothing.
            if !self.is_noted() {
                break;
            }
        }
        if worker == Worker::Poller && came > 0 {
            self.polled.fetch_add(came as u64, Ordering::Relaxed);
        }
        Some(came)
    }

    /// A program polls. How many packets came, and in `handed` which lanes some were for.
    pub fn poll(&self, node: &Node, handed: &mut Set) -> usize {
        let came = self.work(node, Worker::Poller, handed).unwrap_or(0);
        if came > 0 {
            self.wake_for_deadline();
        }
        came
    }

    /// Sees to it that the engine thread does not sleep for long while something is due.
    pub fn wake_for_deadline(&self) {
        self.sleeper.wake_for(self.deadline.load(Ordering::SeqCst));
    }

    /// Takes in a packet that another process got, or has whoever is at it take it. By an engine
    /// thread.
    pub fn inject(&self, node: &Node, received: &Received<'_>) {
        self.bring(received);
        self.progress(node, Worker::Engine { udp: false });
    }

    fn bring(&self, received: &Received<'_>) {
        if !self.brought.put(received) {
            count(&self.counters.crowded);
        }
    }

    /// Another lane's holder got a packet for this one. [`Lane::expect_brought`] must follow.
    pub fn hand_over(&self, from: usize, received: &Received<'_>) {
        self.bring(received);
        let mut fed_by = self.fed_by();
        fed_by.insert(from);
        if fed_by != self.fed_by() {
            self.fed_by.fetch_or(fed_by.0, Ordering::Relaxed);
        }
    }

    /// Has what was handed over taken in: by whoever is at it, who finds it when he lets go; by
    /// who polls next, which costs no call of the kernel; where nobody does by this thread, which
    /// holds no lane, or by the lane's own. `few`: it is not worth waking that.
    pub fn expect_brought(&self, node: &Node, few: bool) {
        if few && self.sleeper.is_asleep() {
            self.progress(node, Worker::Bringer);
        } else {
            self.deadline.store(0, Ordering::SeqCst);
        }
        self.wake_for_deadline();
    }

    /// Sends what is due, behind whoever is at it now: what came is answered before its queue
    /// pair, or the process, is gone. Not for long: whoever is at it may be further up the stack.
    pub fn settle(&self, node: &Node) {
        let until = now_ns() + SETTLE_NS;
        while now_ns() < until {
            if self.progress(node, Worker::Leaver).is_some() {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Takes in what waits at the ports, the UDP sockets too, until nothing does. Not for long:
    /// peers may send more than that.
    pub fn drain(&self, node: &Node) {
        let until = now_ns() + SETTLE_NS;
        while now_ns() < until {
            match self.progress(node, Worker::Engine { udp: true }) {
                Some(0) => return,
                Some(_) => {}
                None => std::thread::yield_now(),
            }
        }
    }

    /// Sends what was noted, by a thread that posts and so holds a send half: the engine is not
    /// called. The end of the request that is being posted, if it has ended and nothing else has.
    pub fn send_noted(&self, node: &Node, posting: &Posting) -> Option<SendDone> {
        let gathers = false;
        self.send_by_poster(node, Poster { posting, gathers }, None)
    }

    /// The same for a queue pair that has been posted to, and is noted if it cannot send at once.
    pub fn send_posted(&self, node: &Node, posting: &Posting) -> Option<SendDone> {
        let gathers = |post| posting.small && self.burst.gathers(post);
        // A note is in front of the count: who ends the burst takes it, or it counts to the next.
        let noted = gathers(self.burst.next());
        if noted {
            self.note(posting.index);
        }
        let post = self.burst.post();
        if noted && gathers(post) {
            if Burst::begins(post) {
                self.leave();
            }
            return None;
        }
        let mut first = None;
        if !noted {
            first = try_lock(&self.state);
            match &mut first {
                Some(state) => state.scheduler.wake(posting.index),
                None => self.note(posting.index),
            }
        }
        let gathers = !posting.small && self.burst.is_flowing(post);
        self.send_by_poster(node, Poster { posting, gathers }, first)
    }

    /// `state`: the lane, if it has been taken already.
    fn send_by_poster<'a>(
        &'a self,
        node: &Node,
        poster: Poster<'_>,
        mut state: Option<MutexGuard<'a, State>>,
    ) -> Option<SendDone> {
        let mut done = None;
        while let Some(mut state) = state.take().or_else(|| try_lock(&self.state)) {
            let gathered = state.gathered;
            done = done.or(state.send(self, node, Some(poster)));
            let left = gathered == 0 && state.gathered > 0;
            self.set_deadline(&state);
            drop(state);
            if left {
                self.leave();
            }
            lock_let_go();
            if self.pending.load(Ordering::SeqCst) == 0 {
                break;
            }
        }
        if !self.brought.is_empty() {
            // Who brought it found the lane taken, and who posts must not take it in.
            self.deadline.store(0, Ordering::SeqCst);
        }
        self.wake_for_deadline();
        done
    }

    /// Whether a poster has left something.
    fn has_left(&self, state: &State) -> bool {
        state.gathered > 0 || self.pending.load(Ordering::Relaxed) != 0
    }

    /// Something is left for whoever comes next. A program that polls will be that, or posts so
    /// much more that it sends it, or else it is the engine thread when it looks whether the
    /// program still polls. The next time it is woken then.
    fn leave(&self) {
        self.deadline.store(0, Ordering::SeqCst);
        if self.burst.is_polled() {
            self.wake_for_deadline();
        } else {
            self.sleeper.wake();
        }
    }

    fn set_deadline(&self, state: &State) {
        let deadline = if !state.unreported.is_empty() || state.owes || state.gathered > 0 {
            0
        } else if state.blocked {
            // Nobody says when there is room again.
            now_ns() + BLOCKED_NS
        } else if !state.scheduler.is_idle() {
            0
        } else {
            let first = [state.scheduler.deadline(), state.held.until()];
            let first = first.into_iter().flatten().min();
            first.map_or(u64::MAX, Instant::nanos)
        };
        self.deadline.store(deadline, Ordering::SeqCst);
    }

    /// Looks at each port, unless somebody is at work here.
    pub fn try_ports(&self, look: impl FnMut(&dyn Port)) -> Option<()> {
        let state = try_lock(&self.state)?;
        state.ports.iter().map(|port| &**port).for_each(look);
        drop(state);
        if self.is_noted() {
            // Who found the lane taken relies on who had it.
            self.sleeper.wake();
        }
        Some(())
    }

    /// Does something with the ports. Notes of the meantime are not read: wake the engine thread
    /// afterwards, unless nobody can have left one.
    pub fn with_ports<R>(&self, look: impl FnOnce(&mut Vec<Box<dyn Port>>) -> R) -> R {
        look(&mut lock(&self.state).ports)
    }
}

/// A lock was let go in front of this, and what follows is not to be read before.
fn lock_let_go() {
    // On x86-64 that is one already: who lets a lock go for which others may wait exchanges a
    // word, and the processor lets no read pass an exchange.
    #[cfg(target_arch = "x86_64")]
    compiler_fence(Ordering::SeqCst);
    #[cfg(not(target_arch = "x86_64"))]
    fence(Ordering::SeqCst);
}

/// How a queue pair's turn ended.
enum Turn {
    /// It has more.
    More,
    /// Its port has no room.
    Blocked,
    /// It has nothing, until then.
    Nothing(Option<Instant>),
}

impl State {
    fn part(&self, index: usize) -> Option<Arc<Part>> {
        self.table.by_index.get(index)?.clone()
    }

    fn look_at_table(&mut self, node: &Node) {
        let generation = node.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.generation = generation;
            self.table = node.table();
        }
    }

    /// Whether there is nothing to do for a poller. Timers are looked at now and then.
    fn has_nothing(&self, lane: &Lane, node: &Node) -> bool {
        !self.rounds.is_multiple_of(TIMER_ROUNDS)
            && self.gathered == 0
            && !self.blocked
            && self.unreported.is_empty()
            && self.scheduler.is_idle()
            && lane.pending.load(Ordering::Relaxed) == 0
            && !(lane.number == 0 && node.gsi.has_waiting())
    }

    /// Whether a poller asks the UDP socket, which costs a call of the kernel.
    fn is_udp_due(&mut self) -> bool {
        let faster = self.ports.get(UDP_PORT + 1..).unwrap_or_default();
        let left: Option<u64> = faster.iter().map(|port| port.left_to_sockets()).sum();
        if left != self.left_to_udp {
            self.left_to_udp = left;
            self.udp_warm = UDP_ROUNDS_WARM;
        }
        let every = match left {
            Some(_) => UDP_ROUNDS,
            None => UDP_ROUNDS_BLIND,
        };
        self.udp_warm > 0 || self.rounds.is_multiple_of(every)
    }

    /// One batch of each port.
    fn receive(&mut self, lane: &Lane, node: &Node, worker: Worker) -> usize {
        self.look_at_table(node);
        self.rounds = self.rounds.wrapping_add(1);
        let skip_udp = self.ports.len() > 1
            && match worker {
                Worker::Poller => !self.is_udp_due(),
                Worker::Engine { udp } => !udp,
                Worker::Leaver | Worker::Bringer => true,
            };
        let Self {
            ports,
            table,
            touched,
            held,
            mads,
            udp_warm,
            handed,
            ..
        } = self;
        *udp_warm = udp_warm.saturating_sub(1);
        let mut came = 0;
        let ports = match worker {
            Worker::Bringer => &mut [],
            _ => ports.get_mut(usize::from(skip_udp)..).unwrap_or_default(),
        };
        let mut intake = Intake {
            lane,
            node,
            table,
            touched,
            held,
            mads,
            handed,
            steerable: 0,
        };
        // The clock is asked for the first packet only: mostly there is none.
        let mut clock = None;
        // Sockets first and last: what they had before the others were looked at is given behind what
        // those have. So an acknowledgement that came past the sockets is taken in before the answer behind
        // it, which may be bulk.
        if !skip_udp && let Some(port) = ports.first_mut() {
            port.fetch();
        }
        for (place, port) in ports.iter_mut().enumerate().rev() {
            let got = port.receive(&mut |received| {
                let now = *clock.get_or_insert_with(|| Instant::from_nanos(now_ns()));
                intake.packet(now, received);
            });
            if got > 0 && place + usize::from(skip_udp) == UDP_PORT {
                *udp_warm = UDP_ROUNDS_WARM;
            }
            came += got;
        }
        if !lane.brought.is_empty() {
            let now = Instant::from_nanos(now_ns());
            came += lane.brought.take(|received| intake.packet(now, received));
        }
        if intake.steerable > 0 {
            node.network.note_came(intake.steerable);
        }
        came
    }

    /// Acknowledgements that have waited long enough are to be sent now, or all of them.
    fn release(&mut self, all: bool) {
        if all || self.held.is_due(|| Instant::from_nanos(now_ns())) {
            for index in self.held.release() {
                self.scheduler.wake(index);
                self.owes = true;
            }
        }
    }

    /// Tells the engine what posters could not tell, and lets those send that got something.
    fn report(&mut self) {
        while let Some(index) = self.unreported.pop() {
            self.scheduler.wake(index);
            if let Some(part) = self.part(index) {
                part.lock().report();
            }
        }
        for index in self.touched.drain(..) {
            self.scheduler.wake(index);
        }
    }

    /// Sends whatever may be sent, as far as there is room. `poster`: see [`Lane::send_noted`].
    fn send(&mut self, lane: &Lane, node: &Node, poster: Option<Poster<'_>>) -> Option<SendDone> {
        self.look_at_table(node);
        if lane.pending.load(Ordering::SeqCst) != 0 {
            let mut inbox = lock(&lane.inbox);
            lane.pending.store(0, Ordering::SeqCst);
            for index in inbox.drain(..) {
                self.scheduler.wake(index);
            }
        }
        self.blocked = false;
        self.owes = false;
        if lane.number == 0 {
            self.gsi.send(node, self.ports[UDP_PORT].as_mut());
        }
        let now = Instant::from_nanos(now_ns());
        let gathers = poster.is_some_and(|poster| poster.gathers);
        if poster.is_some() {
            self.held.posted(now);
            for index in self.held.release() {
                self.scheduler.wake(index);
            }
        }
        let flushes = self.flushes;
        let mut done = None;
        for _ in 0..TURNS {
            let Some(index) = self.scheduler.turn(now) else {
                break;
            };
            let Some(part) = self.part(index) else {
                self.scheduler.idle(index);
                continue;
            };
            let (end, posted) = self.turn(lane, &part, now, poster);
            done = done.or(posted);
            // Who gets them works on them while the next ones are made.
            if self.gathered - self.handed_on >= BURST_PACKETS {
                self.handed_on = self.gathered;
                for port in &mut self.ports {
                    self.blocked |= !port.hand_on();
                }
            }
            match end {
                Turn::More => {}
                Turn::Nothing(None) => self.scheduler.idle(index),
                Turn::Nothing(Some(until)) => self.scheduler.wait(index, until),
                Turn::Blocked => {
                    if !self.flush() {
                        self.blocked = true;
                        break;
                    }
                }
            }
        }
        let flushed = poster.is_some() && self.gathered == 0 && flushes != self.flushes;
        if !flushed && (!gathers || self.gathered >= BURST_PACKETS) {
            // What the kernel does not take now goes with the next flush.
            self.blocked |= !self.flush();
        }
        if poster.is_none() {
            self.report();
        }
        done
    }

    /// A program posts one request and this is all that leaves with it.
    fn is_prompt(&self, poster: Option<Poster<'_>>) -> bool {
        poster.is_some_and(|poster| !poster.gathers) && self.scheduler.is_last()
    }

    /// Hands the kernel what was put into the ports. False: it did not take all.
    fn flush(&mut self) -> bool {
        (self.gathered, self.handed_on) = (0, 0);
        self.flushes = self.flushes.wrapping_add(1);
        let mut all = true;
        for port in &mut self.ports {
            all &= port.flush();
        }
        all
    }

    fn turn(
        &mut self,
        lane: &Lane,
        part: &Part,
        now: Instant,
        poster: Option<Poster<'_>>,
    ) -> (Turn, Option<SendDone>) {
        let machine = match poster {
            None => Some(part.lock()),
            // The thread that has it may wait for what this one holds.
            Some(_) => part.try_lock(),
        };
        let Some(mut machine) = machine else {
            self.unreported.push(part.index);
            return (Turn::Nothing(None), None);
        };
        part.absorb(&mut machine);
        machine.expire(now);
        let flows = lane.burst.flows();
        let mut packets = 0;
        let end = loop {
            if packets == TURN_PACKETS {
                break Turn::More;
            }
            if !machine.way_has_room(&self.ports) {
                break Turn::Blocked;
            }
            let Some(outgoing) = machine.transmit(now, flows) else {
                if packets > 0 && self.is_prompt(poster) {
                    // What is left to do here is done while the peer looks at it.
                    self.blocked |= !self.flush();
                }
                break Turn::Nothing(machine.deadline());
            };
            packets += 1;
            self.gathered += 1;
            let bytes = outgoing.transmit.link_bytes();
            self.scheduler.sent(part.index, bytes);
            emit(&mut self.ports, lane, &mut machine, &outgoing);
        };
        let mut done = None;
        match poster {
            // What is done has left: it is told after the flush.
            None if machine.is_unreliable() => {}
            None => machine.report(),
            // What is done has left: not so if it waits for more.
            Some(Poster { posting, gathers }) if posting.index == part.index && !gathers => {
                done = machine.take_only(posting.seq);
            }
            Some(_) => {}
        }
        if machine.has_news() {
            self.unreported.push(part.index);
        }
        (end, done)
    }
}

/// Sends one packet.
fn emit(
    ports: &mut [Box<dyn Port>],
    lane: &Lane,
    machine: &mut Machine,
    outgoing: &crate::machine::Outgoing,
) {
    let transmit = &outgoing.transmit;
    let length = transmit.headers.bytes() + transmit.payload.length().next_multiple_of(4) as usize;
    let way = &outgoing.way;
    let Some(port) = ports.get_mut(way.port) else {
        return;
    };
    let sent = port.send(&way.path, transmit.ecn, length, &mut |into| {
        machine.write(transmit, into)
    });
    match sent {
        Ok(()) => {}
        Err(SendError::Nothing) => machine.gather_failed(transmit),
        // As if the network had lost it.
        Err(SendError::NoRoom | SendError::Unreachable | SendError::TooLong) => {
            count(&lane.counters.unreachable);
        }
    }
}
