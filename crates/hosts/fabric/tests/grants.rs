//! How long a ring stays granted to a program that waits for several connections at once.
#![allow(unsafe_code, dead_code)]

#[path = "../../../sockets/lane/tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{DONTWAIT, Pair, SMALL_RING};
use sluice_fabric::down::Down;
use sluice_fabric::engine::{Engine, Rest};
use sluice_fabric::halves::{Far, Near};
use sluice_fabric::message::{LaneNumber, Note, Record, records};
use sluice_fabric::watched::Waiter;
use sluice_fabric::wire::{Full, LinkId, Local, Remote, Wire};
use sluice_shmem::direction::Words;

const MS: u64 = 1_000_000;

/// A lane whose reader is a program and whose writer is the daemon, with bytes that came by the ring
/// at 1 ms and were read.
fn granted_and_used() -> (Pair, Down) {
    let pair = Pair::announced(SMALL_RING);
    assert!(pair.a.attach() && pair.b.attach_remote());
    assert!(pair.b.look().is_some(), "it enables its lane");
    let mut down = Down::new(pair.there(), None, true);
    let said = look(&mut down, MS, 0);
    assert!(matches!(said[..], [Note::Grant]), "{said:?}");
    down.hear(Note::Segment(0), MS).expect("granted");
    down.arrive(10, MS).expect("granted, and room");
    assert_eq!(pair.b.recv(&mut [0; 100], DONTWAIT), Ok(10));
    (pair, down)
}

fn look(down: &mut Down, now_ns: u64, waiter_busy_ns: u64) -> Vec<Note> {
    let mut waiter = Waiter {
        busy_ns: waiter_busy_ns,
        ..Waiter::default()
    };
    let mut said = Vec::new();
    down.look(now_ns, Some(&mut waiter), &mut |note| said.push(note));
    said.retain(|note| !matches!(note, Note::Consumed(_)));
    said
}

#[test]
fn an_idle_connection_keeps_its_grant_while_its_reader_gets_bytes_by_others() {
    let (_pair, mut down) = granted_and_used();
    for now in [2 * MS, 10 * MS, 80 * MS] {
        assert!(look(&mut down, now, now - MS / 10).is_empty(), "at {now}");
    }
    let said = look(&mut down, 80 * MS, 79 * MS);
    assert!(matches!(said[..], [Note::Revoke]), "{said:?}");
}

#[test]
fn a_grant_ends_at_some_time_all_the_same() {
    let (_pair, mut down) = granted_and_used();
    assert!(look(&mut down, 100 * MS, 100 * MS).is_empty());
    let said = look(&mut down, 102 * MS, 102 * MS);
    assert!(matches!(said[..], [Note::Revoke]), "{said:?}");
}

#[test]
fn a_reader_that_wants_to_sleep_polls_on_while_bytes_come_by_other_connections() {
    let (pair, mut down) = granted_and_used();
    pair.there().announce_sleep();
    let now = MS + MS / 2;
    assert!(look(&mut down, now, now - MS / 10).is_empty());
    let said = look(&mut down, now, MS);
    assert!(matches!(said[..], [Note::Revoke]), "{said:?}");
}

/// A link on which everything goes: all that was said.
#[derive(Debug, Default)]
struct Messages(Vec<u8>);

impl Wire for Messages {
    fn write(&mut self, _: LinkId, _: Local, _: Remote, _: u32) -> Result<(), Full> {
        Ok(())
    }

    fn send(&mut self, _: LinkId, message: &[u8]) -> Result<(), Full> {
        self.0.extend(message);
        Ok(())
    }
}

/// A lane whose program reads often enough for a grant, when it is asked next.
struct Lively {
    pair: Pair,
    down: Down,
    at: u64,
}

impl Lively {
    fn new() -> Self {
        let pair = Pair::announced(SMALL_RING);
        assert!(pair.a.attach() && pair.b.attach_remote());
        assert!(pair.b.look().is_some(), "it enables its lane");
        let down = Down::new(pair.there(), None, false);
        Self { pair, down, at: 0 }
    }

    /// The program reads so many bytes that come by TCP.
    fn read(&mut self, len: usize) {
        let bytes = common::bytes_at(self.at, len);
        assert_eq!(common::kernel_send(self.pair.a.fd, &bytes, 0), Ok(len));
        self.at += len as u64;
        let mut left = len;
        let deadline = Instant::now() + Duration::from_secs(60);
        while left > 0 {
            match self.pair.b.recv(&mut vec![0; left], DONTWAIT) {
                Ok(got) => left -= got,
                Err(errno) => assert_eq!(errno, sluice_sys::errno::Errno::AGAIN),
            }
            assert!(Instant::now() < deadline, "{left} bytes do not come");
        }
    }

    fn look(&mut self, now_ns: u64, waiter: &mut Waiter) -> Vec<Note> {
        let mut said = Vec::new();
        self.down
            .look(now_ns, Some(waiter), &mut |note| said.push(note));
        said.retain(|note| !matches!(note, Note::Consumed(_)));
        said
    }

    /// What is said while the program reads a little every tenth of a millisecond for a millisecond,
    /// or until there is a grant.
    fn be_lively(&mut self, from_ns: u64, waiter: &mut Waiter) -> Vec<Note> {
        let mut said = Vec::new();
        for step in 0..10 {
            self.read(10);
            let now = from_ns + step * MS / 10;
            for note in self.look(now, waiter) {
                if matches!(note, Note::Call) {
                    self.down.hear(Note::Here, now).expect("was called");
                }
                said.push(note);
            }
            if said.contains(&Note::Grant) {
                break;
            }
        }
        said
    }

    /// The daemon lets the program be for 10 ms, in which it reads that much.
    fn measure(&mut self, from_ns: u64, kilobytes: u64, waiter: &mut Waiter) {
        self.down.count(Some(waiter));
        waiter.ab_test.begin_alone(from_ns);
        for _ in 0..kilobytes / 10 {
            self.read(10_000);
        }
        self.down.count(Some(waiter));
        waiter.ab_test.end_alone(from_ns + 10 * MS);
    }
}

#[test]
fn no_ring_is_tried_before_it_is_known_what_moves_without() {
    let (mut one, mut waiter) = (Lively::new(), Waiter::default());
    let said = one.be_lively(MS, &mut waiter);
    assert!(said.is_empty(), "{said:?}");
    one.measure(2 * MS, 0, &mut waiter);
    let said = one.be_lively(12 * MS, &mut waiter);
    assert!(said.is_empty(), "it was away: {said:?}");
    one.measure(14 * MS, 10, &mut waiter);
    let said = one.be_lively(24 * MS, &mut waiter);
    assert!(matches!(said[..], [Note::Call, Note::Grant]), "{said:?}");
}

#[test]
fn that_a_ring_does_not_pay_holds_for_all_that_the_same_reader_waits_for() {
    let (mut one, mut other) = (Lively::new(), Lively::new());
    let (mut waiter, mut stranger) = (Waiter::default(), Waiter::default());
    one.measure(0, 1_000, &mut waiter);
    let said = one.be_lively(10 * MS, &mut waiter);
    assert!(matches!(said[..], [Note::Call, Note::Grant]), "{said:?}");
    // By the ring next to nothing comes.
    let now = 11 * MS;
    one.down.hear(Note::Segment(one.at), now).expect("granted");
    one.down.arrive(10, now).expect("granted, and room");
    assert_eq!(one.pair.b.recv(&mut [0; 100], DONTWAIT), Ok(10));
    for (now, ends) in [(11 * MS, false), (17 * MS, true)] {
        waiter.busy_ns = now;
        let said = one.look(now, &mut waiter);
        assert_eq!(said == [Note::Revoke], ends, "{said:?}");
    }
    for now in [20, 100, 400] {
        other.measure((now - 10) * MS, 10, &mut waiter);
        let said = other.be_lively(now * MS, &mut waiter);
        assert!(said.is_empty(), "{said:?} at {now} ms");
    }
    other.measure(430 * MS, 10, &mut stranger);
    let said = other.be_lively(440 * MS, &mut stranger);
    assert!(said.contains(&Note::Grant), "another reader's: {said:?}");
    let mut other = Lively::new();
    other.measure(430 * MS, 10, &mut waiter);
    let said = other.be_lively(440 * MS, &mut waiter);
    assert!(said.contains(&Note::Grant), "tried again: {said:?}");
}

/// A daemon with a lane, whose program reads by TCP.
struct Host {
    one: Lively,
    engine: Engine<Messages>,
    number: LaneNumber,
    now: u64,
}

impl Host {
    fn new() -> Self {
        let one = Lively::new();
        let mut engine = Engine::new(Messages::default(), one.pair.a.parking);
        engine.link_up(LinkId(0));
        let number = open(&mut engine, &one, 0);
        Self {
            one,
            engine,
            number,
            now: 0,
        }
    }

    /// Polls as long as there is something to poll for. Until when it sleeps then.
    fn poll(&mut self) -> u64 {
        loop {
            match self.engine.rest(self.now) {
                Rest::Sleep(until) => return until,
                Rest::Poll => self.engine.turn(self.now),
            }
            self.now += MS / 100;
        }
    }

    /// Sleeps until then.
    fn sleep(&mut self, until: u64) {
        assert!(self.engine.announce_sleep(), "nothing to do");
        self.now = self.now.max(until);
        self.engine.withdraw_sleep(self.now);
    }

    fn hear(&mut self, note: Note) {
        self.hear_of(self.number, note);
    }

    fn hear_of(&mut self, lane: LaneNumber, note: Note) {
        let message = Record { lane, note }.encode();
        let heard = self.engine.heard(LinkId(0), &message, self.now);
        heard.expect("it may say that");
    }

    /// What was said since the last time.
    fn said(&mut self) -> Vec<Note> {
        let said = self.said_of_all();
        said.into_iter().map(|(_, note)| note).collect()
    }

    /// The same, and of which lane.
    fn said_of_all(&mut self) -> Vec<(LaneNumber, Note)> {
        self.engine.turn(self.now);
        let sent = std::mem::take(&mut self.engine.wire.0);
        let all = records(&sent).map(|record| record.expect("legal"));
        all.map(|record| (record.lane, record.note))
            .filter(|(_, note)| matches!(note, Note::Call | Note::Here | Note::Grant))
            .collect()
    }
}

/// Has a daemon take a lane, whose far half has the same number.
fn open(engine: &mut Engine<Messages>, one: &Lively, now: u64) -> LaneNumber {
    let near = Near {
        chunk: one.pair.a.chunk(),
        lane: 0,
        side: one.pair.a.number,
        parking: None,
        region: 0,
    };
    let number = engine.open(LinkId(0), near).expect("room");
    let far = Far {
        number,
        ring: Remote {
            address: 4096,
            rkey: 1,
        },
        ring_bytes: SMALL_RING,
    };
    engine.connect(number, far, now).expect("a far lane");
    number
}

#[test]
fn what_a_connection_moves_by_itself_is_measured_before_the_daemon_polls() {
    let mut host = Host::new();
    let mut woken = Vec::new();
    for _ in 0..4 {
        let until = host.poll();
        host.one.read(10);
        host.sleep(until);
        woken.push(host.engine.rest(host.now) == Rest::Poll);
    }
    // A look, and a probe 8 ms later; and so again.
    assert_eq!(woken, [false, true, false, true]);
}

#[test]
fn who_is_called_measures_first_if_its_program_reads() {
    let mut host = Host::new();
    // Nothing to measure: it answers, and polls for the ring that it may get.
    host.poll();
    host.sleep(20 * MS);
    host.hear(Note::Call);
    assert_eq!(host.said(), [Note::Here]);
    assert_eq!(host.engine.rest(host.now), Rest::Poll);
    // Its program reads.
    host.now += 2 * MS;
    host.one.read(10);
    host.said();
    host.one.read(10);
    host.hear(Note::Call);
    assert_eq!(host.said(), []);
    host.now += MS;
    let until = host.poll();
    host.one.read(100);
    host.sleep(until);
    assert_eq!(host.engine.rest(host.now), Rest::Poll, "it is known now");
    host.hear(Note::Call);
    assert_eq!(host.said(), [Note::Here]);
}

#[test]
fn a_reader_is_measured_beside_another_whose_ring_pays() {
    let mut host = Host::new();
    for _ in 0..2 {
        let until = host.poll();
        host.one.read(10);
        host.sleep(until);
    }
    // It reads more and more often, and so it gets a ring.
    let mut said = Vec::new();
    while !said.contains(&Note::Grant) {
        host.now += MS / 20;
        host.one.read(10);
        said = host.said();
        if said.contains(&Note::Call) {
            host.hear(Note::Here);
        }
        assert!(host.now < 30 * MS, "no grant");
    }
    let switch_offset = host.one.at;
    host.hear(Note::Segment(switch_offset));
    let mut other = Lively::new();
    let number = open(&mut host.engine, &other, host.now);
    let end = host.now + 40 * MS;
    let mut granted = false;
    while host.now < end && !granted {
        // The first has all that it reads from the ring.
        let arrived = host.engine.arrived(LinkId(0), host.number.0, 100, host.now);
        arrived.expect("granted, and room");
        assert_eq!(host.one.pair.b.recv(&mut [0; 200], DONTWAIT), Ok(100));
        other.read(10);
        host.now += MS / 20;
        for (lane, note) in host.said_of_all() {
            match note {
                Note::Call if lane == number => host.hear_of(number, Note::Here),
                Note::Grant => granted |= lane == number,
                _ => {}
            }
        }
        assert_eq!(host.engine.rest(host.now), Rest::Poll);
    }
    assert!(granted, "never, while the daemon polls for another");
}

#[test]
fn programs_hear_that_the_machine_is_oversubscribed_while_lanes_are_there_and_no_ring_is_in_use() {
    let mut host = Host::new();
    let parking = host.one.pair.a.parking;
    let until = host.poll();
    host.engine.set_oversubscribed(true);
    host.one.read(10);
    host.sleep(until);
    assert!(parking.is_oversubscribed());
    host.engine.set_oversubscribed(false);
    let until = host.poll();
    host.one.read(10);
    host.sleep(until);
    assert!(!parking.is_oversubscribed());
    host.engine.set_oversubscribed(true);
    let mut said = Vec::new();
    while !said.contains(&Note::Grant) {
        assert!(host.now < 30 * MS, "no grant");
        host.now += MS / 20;
        host.one.read(10);
        said = host.said();
        let is_granted = said.contains(&Note::Grant);
        assert_eq!(
            parking.is_oversubscribed(),
            !is_granted,
            "it would be in its way"
        );
        if said.contains(&Note::Call) {
            host.hear(Note::Here);
        }
    }
    host.engine.link_down(LinkId(0));
    let until = host.poll();
    host.sleep(until);
    assert!(
        parking.is_oversubscribed(),
        "there is no ring without a link"
    );
    host.engine.program_gone(host.number);
    host.engine.link_lost(LinkId(0));
    assert!(host.engine.lanes().next().is_none());
    host.said();
    host.sleep(host.now);
    assert!(!parking.is_oversubscribed(), "nothing is carried any more");
}
