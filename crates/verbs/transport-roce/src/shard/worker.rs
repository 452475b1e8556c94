//! Who works on a shard, and with what: its ports, its scheduler, and what is still to be sent or told.
//!
//! A packet that comes by the ports of another shard than its queue pair's is handed over
//! ([`Gate::hand_over`]): nobody but the shard's holder works on its queue pairs, whose machines only the shard's
//! key opens. A datagram to a group is handed over to each shard that has a member.

use std::sync::Arc;

use sluice_packet::{Kept, Port, Received};
use sluice_planner::{End, Planner, Step};
use sluice_protocol::Instant;
use sluice_sys::clock::now_ns;
use sluice_verbs::transport::{MAD_BYTES, MadPath};
use sluice_verbs::{Aftermath, SendDone};
use sluice_xdp::Left;

use crate::gsi;
use crate::keyed::Key;
use crate::network::path::UDP_PORT;
use crate::queue_pair::part::Part;
use crate::queue_pair::table::Table;
use crate::shard::common::Common;
use crate::shard::emit::{emit, put_alone};
use crate::shard::gate::Gate;
use crate::shard::intake::Intake;
use crate::shard_set::Set;

/// Bytes of a small request: it has one packet or few.
pub const SMALL_BYTES: u64 = 1024;
/// Deadlines are looked at in every so many rounds of a poller that finds nothing.
const TIMER_ROUNDS: u32 = 32;
/// Where there are faster ports the UDP socket is asked in every so many rounds of a poller: if they say
/// what they leave to it, as packets may come by interfaces that have none; and if they do not.
const UDP_ROUNDS: u32 = 1024;
const UDP_ROUNDS_BLIND: u32 = 16;
/// And in each of so many behind one in which it had something, or is about to have.
const UDP_ROUNDS_WARM: u32 = 32;
/// Batches of the faster ports in front of what the socket had, at most: packets may come as fast as they
/// are taken.
const PAST_BATCHES: usize = 8;

/// Who works on a shard.
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
    /// Says what leaves next.
    pub planner: Planner<Kept>,
    /// Opens the machines of the shard's queue pairs.
    pub key: Key,
    table: Arc<Table>,
    generation: u64,
    /// Queue pairs with news for the engine that a poster could not tell.
    unreported: Vec<usize>,
    rounds: u32,
    /// What the interfaces of the faster ports leave to the UDP socket.
    left: Vec<Arc<Left>>,
    /// How much that was when it was last looked at.
    left_to_udp: Option<u64>,
    /// Rounds of a poller in which the UDP socket is asked still.
    udp_warm: u32,
    gsi: gsi::Sender,
    /// Datagrams for whoever manages connections.
    pub mads: Vec<(MadPath, [u8; MAD_BYTES])>,
    /// Shards that were handed something in this round.
    pub handed: Set,
    /// What is to be done for the engine when the shard has been let go.
    pub after: Aftermath,
}

impl State {
    pub fn new(ports: Vec<Box<dyn Port>>) -> Self {
        Self {
            ports,
            planner: Planner::default(),
            key: Key::new(),
            table: Arc::default(),
            generation: 0,
            unreported: Vec::new(),
            rounds: 0,
            left: Vec::new(),
            left_to_udp: None,
            udp_warm: 0,
            gsi: gsi::Sender::default(),
            mads: Vec::new(),
            handed: Set::default(),
            after: Aftermath::new(),
        }
    }

    /// When somebody must look at the shard again, nanoseconds; [`u64::MAX`]: no need.
    pub fn due(&self) -> u64 {
        if !self.unreported.is_empty() {
            return 0;
        }
        match self.planner.due(now) {
            Some(None) => 0,
            Some(Some(then)) => then.nanos(),
            None => u64::MAX,
        }
    }

    fn part(&self, index: usize) -> Option<Arc<Part>> {
        // The place of one that is gone may be another shard's by now.
        let part = self.table.by_index.get(index)?.clone()?;
        part.is_of(&self.key).then_some(part)
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
            && self.unreported.is_empty()
            && self.planner.is_idle()
            && !gate.may_have_notes()
            && !(gate.number == 0 && common.gsi.has_waiting())
    }

    /// One more way in and out. Its place among the ports.
    pub fn serve(&mut self, port: Box<dyn Port>, left: Option<Arc<Left>>) -> usize {
        self.left.extend(left);
        self.ports.push(port);
        self.ports.len() - 1
    }

    /// Whether a poller asks the UDP socket, which costs a call of the kernel.
    fn is_udp_due(&mut self) -> bool {
        let is_told = self.left.len() + UDP_PORT + 1 >= self.ports.len();
        let all = || self.left.iter().map(|left| left.get()).sum();
        let left: Option<u64> = is_told.then(all).flatten();
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
            key,
            table,
            planner,
            mads,
            udp_warm,
            handed,
            after,
            ..
        } = self;
        *udp_warm = udp_warm.saturating_sub(1);
        let (sockets, ports) = match worker {
            Worker::Bringer => (None, &mut [][..]),
            _ => match ports.split_first_mut() {
                Some((_, past)) if skip_udp => (None, past),
                Some((sockets, past)) => (Some(sockets), past),
                None => (None, &mut [][..]),
            },
        };
        let mut intake = Intake {
            gate,
            common,
            key,
            brought: false,
            table,
            planner,
            mads,
            handed,
            after,
            steerable: 0,
        };
        // The clock is asked for the first packet only: mostly there is none.
        let mut clock = None;
        let [from_sockets, past] = receive(sockets, ports, &mut |received| {
            let now = *clock.get_or_insert_with(now);
            intake.packet(now, received);
        });
        if from_sockets > 0 {
            *udp_warm = UDP_ROUNDS_WARM;
        }
        let mut came = from_sockets + past;
        if !gate.brought.is_empty() {
            let now = now();
            intake.brought = true;
            came += gate.brought.take(|received| intake.packet(now, received));
        }
        if intake.steerable > 0 {
            common.network.note_came(intake.steerable);
        }
        came
    }

    /// Tells the engine what posters could not tell, and lets those send that got something.
    pub fn report(&mut self) {
        while let Some(index) = self.unreported.pop() {
            self.planner.wake(index);
            if let Some(part) = self.part(index) {
                part.machine(&mut self.key).report(&mut self.after);
            }
        }
    }

    /// Sends whatever may be sent, as far as there is room. `poster`: for whom, if it is by a thread that
    /// posts: the engine is not called then.
    pub fn send(
        &mut self,
        gate: &Gate,
        common: &Common,
        poster: Option<Poster<'_>>,
    ) -> Option<SendDone> {
        self.look_at_table(common);
        gate.take_notes(|index| self.planner.wake(index));
        if gate.number == 0 && common.gsi.has_waiting() {
            self.put_kept(UDP_PORT);
            self.gsi.send(&common.gsi, self.ports[UDP_PORT].as_mut());
        }
        let now = now();
        let gathers = poster.map(|poster| sluice_planner::Poster {
            gathers: poster.gathers,
        });
        self.planner.begin(self.ports.len(), gathers, now);
        let mut done = None;
        loop {
            match self.planner.step(now) {
                Step::Turn(index) => {
                    let Some(part) = self.part(index) else {
                        self.planner.ended(index, End::Nothing(None));
                        continue;
                    };
                    let (end, posted) = self.turn(gate, &part, now, poster);
                    done = done.or(posted);
                    self.planner.ended(index, end);
                }
                Step::Flush(way) => self.flush(way),
                Step::Rest => break,
            }
        }
        if poster.is_none() {
            self.report();
        }
        done
    }

    /// What is kept back in a port is put into it.
    fn put_kept(&mut self, way: usize) {
        if let Some(kept) = self.planner.take_kept(way)
            && let Some(port) = self.ports.get_mut(way)
        {
            put_alone(port.as_mut(), &kept);
        }
    }

    /// Hands the kernel what was put into a port.
    fn flush(&mut self, way: usize) {
        self.put_kept(way);
        if let Some(port) = self.ports.get_mut(way) {
            self.planner.flushed(port.flush());
        }
    }

    fn turn(
        &mut self,
        gate: &Gate,
        part: &Part,
        now: Instant,
        poster: Option<Poster<'_>>,
    ) -> (End, Option<SendDone>) {
        // In the machine meanwhile; back at the end of the turn.
        let mut key = self.key.take();
        let machine = part.machine(&mut key);
        machine.expire(now);
        let flows = gate.burst.flows();
        let end = loop {
            let ways = machine.ports();
            let ways = ways.as_ref().map_or(&[][..], |ways| ways);
            let ports = &self.ports;
            let room = |way: usize| ports.get(way).map_or(usize::MAX, |port| port.room());
            if let Err(end) = self.planner.may_put(ways, room) {
                break end;
            }
            let Some(outgoing) = machine.transmit(now, flows, &mut self.after) else {
                if self.planner.is_prompt() {
                    // What is left to do here is done while the peer looks at it.
                    self.planner.flush_all();
                    while let Some(way) = self.planner.flushes() {
                        self.flush(way);
                    }
                }
                break End::Nothing(machine.deadline());
            };
            emit(
                &mut self.ports,
                &mut self.planner,
                gate,
                part.index,
                machine,
                &outgoing,
            );
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
        self.key = key;
        (end, done)
    }
}

/// One batch of each port: how many packets came by the sockets, and how many past them.
///
/// What the sockets had before the others were looked at is given behind what those have. So an
/// acknowledgement that came past the sockets is taken in before the answer behind it, which may be bulk.
fn receive(
    sockets: Option<&mut Box<dyn Port>>,
    past: &mut [Box<dyn Port>],
    take: &mut dyn FnMut(&Received<'_>),
) -> [usize; 2] {
    let mut came = None;
    let from_sockets = sockets.map_or(0, |sockets| {
        sockets.receive(&mut |received| {
            // The sockets' batch is complete.
            came.get_or_insert_with(|| receive_all_past(past, take));
            take(received);
        })
    });
    let came = came.unwrap_or_else(|| receive_past(past, take));
    [from_sockets, came]
}

/// Whatever has come past the sockets: one batch may not be all.
fn receive_all_past(past: &mut [Box<dyn Port>], take: &mut dyn FnMut(&Received<'_>)) -> usize {
    let mut came = 0;
    for _ in 0..PAST_BATCHES {
        let batch = receive_past(past, take);
        came += batch;
        if batch == 0 {
            break;
        }
    }
    came
}

fn receive_past(past: &mut [Box<dyn Port>], take: &mut dyn FnMut(&Received<'_>)) -> usize {
    past.iter_mut().map(|port| port.receive(take)).sum()
}

/// By the system's clock.
pub fn now() -> Instant {
    Instant::from_nanos(now_ns())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::net::IpAddr;
    use std::sync::Mutex;

    use sluice_packet::{Facts, Leaving, SendError};

    use super::*;

    /// Packets that a port gives at once.
    const BATCH: usize = 4;

    /// What has come to two ports, and what comes while the first asks.
    #[derive(Default)]
    struct Wire([VecDeque<u8>; 2], Vec<(usize, u8)>);

    struct Fake(usize, Arc<Mutex<Wire>>);

    impl Port for Fake {
        fn receive(&mut self, each: &mut dyn FnMut(&Received<'_>)) -> usize {
            let Self(place, wire) = self;
            let mut wire = wire.lock().unwrap();
            let batch = wire.0[*place].len().min(BATCH);
            let batch: Vec<u8> = wire.0[*place].drain(..batch).collect();
            let meanwhile = core::mem::take(&mut wire.1);
            for (place, number) in meanwhile {
                wire.0[place].push_back(number);
            }
            drop(wire);
            for number in &batch {
                each(&Received {
                    source: IpAddr::from([192, 0, 2, 1]),
                    destination: IpAddr::from([192, 0, 2, 2]),
                    interface: 1,
                    source_port: 0xc000,
                    traffic_class: 0,
                    hop_limit: 64,
                    packet: &[*number],
                });
            }
            batch.len()
        }

        fn put(
            &mut self,
            _: &Leaving<'_>,
            _: &mut dyn FnMut(&mut [u8]) -> bool,
        ) -> Result<(), SendError> {
            Err(SendError::Unreachable)
        }

        fn flush(&mut self) -> bool {
            true
        }

        fn room(&self) -> usize {
            0
        }

        fn facts(&self) -> Facts {
            Facts::default()
        }
    }

    /// What is given, of what has come to the sockets, past them, and to these places meanwhile.
    fn given(sockets: &[u8], past: &[u8], meanwhile: &[(usize, u8)]) -> (Vec<u8>, [usize; 2]) {
        let queues = [sockets, past].map(|numbers| numbers.iter().copied().collect());
        let wire = Arc::new(Mutex::new(Wire(queues, meanwhile.to_vec())));
        let [mut first, second] =
            [UDP_PORT, 1].map(|place| Box::new(Fake(place, wire.clone())) as Box<dyn Port>);
        let mut all = Vec::new();
        let came = receive(Some(&mut first), &mut [second], &mut |received| {
            all.extend_from_slice(received.packet);
        });
        (all, came)
    }

    #[test]
    fn what_came_past_the_sockets_is_in_front_of_what_they_had() {
        assert_eq!(given(&[1, 2], &[3], &[]), (vec![3, 1, 2], [2, 1]));
        assert_eq!(given(&[], &[3], &[]), (vec![3], [0, 1]));
        let all = (vec![3, 4, 5, 6, 7, 1], [1, 5]);
        assert_eq!(given(&[1], &[3, 4, 5, 6, 7], &[]), all);
        // An acknowledgement, and behind it the answer, while the sockets were asked.
        assert_eq!(given(&[1], &[], &[(1, 3), (0, 4)]), (vec![3, 1], [1, 1]));
        assert_eq!(given(&[], &[], &[(1, 3), (0, 4)]), (vec![3], [0, 1]));
    }
}
