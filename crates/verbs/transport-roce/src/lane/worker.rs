//! Who works on a lane, and with what: its ports, its scheduler, and what is still to be sent or told.
//!
//! A packet that comes by the ports of another lane than its queue pair's is handed over
//! ([`Gate::hand_over`]): nobody but the lane's holder works on its queue pairs. Datagrams to groups
//! are the exception; they are given to all members where they come, and nobody answers them.

use std::sync::Arc;

use sluice_packet::{Port, SendError};
use sluice_protocol::{Instant, Scheduler};
use sluice_sys::process::now_ns;
use sluice_verbs::transport::{MAD_BYTES, MadPath};
use sluice_verbs::{Aftermath, SendDone};

use crate::counters::count;
use crate::gsi;
use crate::lane::common::Common;
use crate::lane::gate::Gate;
use crate::lane::held::Held;
use crate::lane::intake::Intake;
use crate::lane_set::Set;
use crate::network::path::UDP_PORT;
use crate::queue_pair::machine::{Machine, Outgoing};
use crate::queue_pair::part::Part;
use crate::queue_pair::table::Table;

/// Packets that one queue pair sends in a turn, at most.
const TURN_PACKETS: usize = 32;
/// Turns in one round, so that what comes in is looked at in between.
const TURNS: usize = 64;
/// Packets that are gathered at most.
const BURST_PACKETS: u32 = 32;
/// Bytes of a small request: it has one packet or few.
pub const SMALL_BYTES: u64 = 1024;
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
pub struct Poster<'a> {
    pub posting: &'a Posting,
    /// Packets wait for more.
    pub gathers: bool,
}

/// What one of them has in hand.
pub struct State {
    pub ports: Vec<Box<dyn Port>>,
    pub scheduler: Scheduler,
    table: Arc<Table>,
    generation: u64,
    /// Queue pairs that got something in this round.
    touched: Vec<usize>,
    /// Queue pairs with news for the engine that a poster could not tell.
    unreported: Vec<usize>,
    /// Something waits for room in a port.
    blocked: bool,
    /// Packets in the ports that the kernel has not been told of.
    pub gathered: u32,
    /// Of these, when the ports last handed on what need not wait.
    handed_on: u32,
    /// How often the kernel was told of packets.
    flushes: u32,
    /// A poller has left answers to be sent.
    pub owes: bool,
    /// Acknowledgements that wait for what the program posts.
    held: Held,
    rounds: u32,
    /// What the ports had left to the UDP socket when they were last asked.
    left_to_udp: Option<u64>,
    /// Rounds of a poller in which the UDP socket is asked still.
    udp_warm: u32,
    gsi: gsi::Sender,
    /// Datagrams for whoever manages connections.
    pub mads: Vec<(MadPath, [u8; MAD_BYTES])>,
    /// Lanes that were handed something in this round.
    pub handed: Set,
    /// What is to be done for the engine when the lane has been let go.
    pub after: Aftermath,
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
    pub fn new(ports: Vec<Box<dyn Port>>) -> Self {
        Self {
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
            after: Aftermath::new(),
        }
    }

    /// When somebody must look at the lane again, nanoseconds; [`u64::MAX`]: no need.
    pub fn due(&self) -> u64 {
        if !self.unreported.is_empty() || self.owes || self.gathered > 0 {
            0
        } else if self.blocked {
            // Nobody says when there is room again.
            now_ns() + BLOCKED_NS
        } else if !self.scheduler.is_idle() {
            0
        } else {
            let first = [self.scheduler.deadline(), self.held.until()];
            let first = first.into_iter().flatten().min();
            first.map_or(u64::MAX, Instant::nanos)
        }
    }

    fn part(&self, index: usize) -> Option<Arc<Part>> {
        self.table.by_index.get(index)?.clone()
    }

    fn look_at_table(&mut self, common: &Common) {
        let generation = common.queue_pairs.generation();
        if generation != self.generation {
            self.generation = generation;
            self.table = common.queue_pairs.table();
        }
    }

    /// Whether there is nothing to do for a poller. Timers are looked at now and then.
    pub fn has_nothing(&self, gate: &Gate, common: &Common) -> bool {
        !self.rounds.is_multiple_of(TIMER_ROUNDS)
            && self.gathered == 0
            && !self.blocked
            && self.unreported.is_empty()
            && self.scheduler.is_idle()
            && !gate.may_have_notes()
            && !(gate.number == 0 && common.gsi.has_waiting())
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
    pub fn receive(&mut self, gate: &Gate, common: &Common, worker: Worker) -> usize {
        self.look_at_table(common);
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
            after,
            ..
        } = self;
        *udp_warm = udp_warm.saturating_sub(1);
        let mut came = 0;
        let ports = match worker {
            Worker::Bringer => &mut [],
            _ => ports.get_mut(usize::from(skip_udp)..).unwrap_or_default(),
        };
        let mut intake = Intake {
            gate,
            common,
            table,
            touched,
            held,
            mads,
            handed,
            after,
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
        if !gate.brought.is_empty() {
            let now = Instant::from_nanos(now_ns());
            came += gate.brought.take(|received| intake.packet(now, received));
        }
        if intake.steerable > 0 {
            common.network.note_came(intake.steerable);
        }
        came
    }

    /// Acknowledgements that have waited long enough are to be sent now, or all of them.
    pub fn release(&mut self, all: bool) {
        if all || self.held.is_due(|| Instant::from_nanos(now_ns())) {
            for index in self.held.release() {
                self.scheduler.wake(index);
                self.owes = true;
            }
        }
    }

    /// Tells the engine what posters could not tell, and lets those send that got something.
    pub fn report(&mut self) {
        while let Some(index) = self.unreported.pop() {
            self.scheduler.wake(index);
            if let Some(part) = self.part(index) {
                part.lock().report(&mut self.after);
            }
        }
        for index in self.touched.drain(..) {
            self.scheduler.wake(index);
        }
    }

    /// Sends whatever may be sent, as far as there is room. `poster`: for whom, if it is by a thread that
    /// posts and so holds a send half: the engine is not called then.
    pub fn send(
        &mut self,
        gate: &Gate,
        common: &Common,
        poster: Option<Poster<'_>>,
    ) -> Option<SendDone> {
        self.look_at_table(common);
        gate.take_notes(|index| self.scheduler.wake(index));
        self.blocked = false;
        self.owes = false;
        if gate.number == 0 {
            self.gsi.send(&common.gsi, self.ports[UDP_PORT].as_mut());
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
            let (end, posted) = self.turn(gate, &part, now, poster);
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
        gate: &Gate,
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
        let flows = gate.burst.flows();
        let mut packets = 0;
        let end = loop {
            if packets == TURN_PACKETS {
                break Turn::More;
            }
            if !machine.way_has_room(&self.ports) {
                break Turn::Blocked;
            }
            let Some(outgoing) = machine.transmit(now, flows, &mut self.after) else {
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
            emit(&mut self.ports, gate, &mut machine, &outgoing);
        };
        let mut done = None;
        match poster {
            // What is done has left: it is told after the flush.
            None if machine.is_unreliable() => {}
            None => machine.report(&mut self.after),
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
fn emit(ports: &mut [Box<dyn Port>], gate: &Gate, machine: &mut Machine, outgoing: &Outgoing) {
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
            count(&gate.counters.unreachable);
        }
    }
}
