//! The file that all processes of a round have mapped (`tests/apps/chaos/chaos.h`): 64-bit words, and texts.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use sluice_tests::suite::{Verdict, ensure};

const CONNECTIONS_MAX: usize = 16;
const PROCESSES_MAX: usize = 96;
pub const EVENTS_MAX: u64 = 1024;
const VIOLATIONS_MAX: u64 = 32;
const VIOLATION_BYTES: usize = 512;

// Words of `struct state`.
const SEED: usize = 0;
const CONNECTIONS: usize = 1;
const CLIENTS: usize = 2;
const PORT: usize = 3;
const IS_OVER: usize = 4;
const MAY_BE_CUT: usize = 5;
const MUTATION: usize = 6;
const MUTATED: usize = 7;
const ALLOWED: usize = 8;
const VIOLATIONS: usize = 9;
const COUNTS: usize = 16;
const COUNTS_MAX: usize = 64;
const CONNECTION: usize = COUNTS + COUNTS_MAX;
const CONNECTION_WORDS: usize = 36;
const DIRECTION_WORDS: usize = 16;
const PROCESS: usize = CONNECTION + CONNECTIONS_MAX * CONNECTION_WORDS;
const PROCESS_HEAD_WORDS: usize = 8;
const EVENT_WORDS: usize = 4;
const PROCESS_WORDS: usize = PROCESS_HEAD_WORDS + EVENT_WORDS * EVENTS_MAX as usize;
const VIOLATION: usize = PROCESS + PROCESSES_MAX * PROCESS_WORDS;
const WORD_BYTES: usize = 8;
const STATE_BYTES: usize = VIOLATION * WORD_BYTES + VIOLATIONS_MAX as usize * VIOLATION_BYTES;

/// What the programs of a round are told.
#[derive(Clone, Debug)]
pub struct Head {
    pub seed: u64,
    pub clients: usize,
    /// Of each connection the bytes of its two directions.
    pub totals: Vec<[u64; 2]>,
    pub may_be_cut: bool,
    pub mutation: u64,
    /// One bit for each operation.
    pub allowed: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Direction {
    pub total: u64,
    pub offered: u64,
    pub sent: u64,
    pub received: u64,
    pub is_fin: bool,
    pub is_eof: bool,
    pub sender: u64,
    pub receiver: u64,
    pub sender_ended: bool,
    pub receiver_ended: bool,
    pub send_call: u64,
    pub receive_call: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Connection {
    /// The operation that cuts it.
    pub cut: u64,
    /// By the client, by the server.
    pub is_started: [bool; 2],
    pub directions: [Direction; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u64,
    pub kind: u64,
    pub number: u64,
    pub is_done: bool,
    pub is_killed: bool,
    events: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub at_ns: u64,
    pub operation: u8,
    pub connection: u8,
    pub direction: u8,
    pub thread: u32,
    pub offset: u64,
    pub result: i64,
}

pub struct State(File);

impl State {
    /// What the suite writes before the programs begin.
    pub fn create(path: &Path, head: &Head) -> Verdict<State> {
        ensure(head.totals.len() <= CONNECTIONS_MAX, || {
            "too many connections".to_owned()
        })?;
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        file.set_len(STATE_BYTES as u64)?;
        let state = State(file);
        state.write(SEED, head.seed)?;
        state.write(CONNECTIONS, head.totals.len() as u64)?;
        state.write(CLIENTS, head.clients as u64)?;
        state.write(MAY_BE_CUT, u64::from(head.may_be_cut))?;
        state.write(MUTATION, head.mutation)?;
        state.write(ALLOWED, head.allowed)?;
        for (number, totals) in head.totals.iter().enumerate() {
            let first = CONNECTION + number * CONNECTION_WORDS + 4;
            for (direction, total) in totals.iter().enumerate() {
                state.write(first + direction * DIRECTION_WORDS, *total)?;
            }
        }
        Ok(state)
    }

    fn write(&self, word: usize, value: u64) -> io::Result<()> {
        let at = (word * WORD_BYTES) as u64;
        self.0.write_all_at(&value.to_ne_bytes(), at)
    }

    fn read(&self, word: usize, count: usize) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; count * WORD_BYTES];
        self.0
            .read_exact_at(&mut bytes, (word * WORD_BYTES) as u64)?;
        let (words, _) = bytes.as_chunks::<WORD_BYTES>();
        Ok(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
    }

    /// All programs end.
    pub fn end(&self) -> io::Result<()> {
        self.write(IS_OVER, 1)
    }

    pub fn connections(&self) -> io::Result<Vec<Connection>> {
        let count = self.read(CONNECTIONS, 1)?[0] as usize;
        let words = self.read(CONNECTION, count * CONNECTION_WORDS)?;
        let (all, _) = words.as_chunks::<CONNECTION_WORDS>();
        Ok(all.iter().map(connection).collect())
    }

    /// Both ends may see it end early from now on.
    pub fn cut(&self, connection: usize, why: u64) -> io::Result<()> {
        self.write(CONNECTION + connection * CONNECTION_WORDS, why)
    }

    /// Those that have joined, by their places.
    pub fn processes(&self) -> io::Result<Vec<Process>> {
        let mut all = Vec::new();
        for place in 0..PROCESSES_MAX {
            let head = self.read(PROCESS + place * PROCESS_WORDS, PROCESS_HEAD_WORDS)?;
            let [pid, kind, number, done, killed, events, _, _] = head[..] else {
                break;
            };
            // It has written who it is last.
            if pid == 0 || kind == 0 {
                break;
            }
            all.push(Process {
                pid,
                kind,
                number,
                is_done: done != 0,
                is_killed: killed != 0,
                events,
            });
        }
        Ok(all)
    }

    /// To be said before it is killed.
    pub fn mark_killed(&self, place: usize) -> io::Result<()> {
        self.write(PROCESS + place * PROCESS_WORDS + 4, 1)
    }

    /// The last events of the process at that place, at most so many.
    pub fn events(&self, place: usize, most: u64) -> io::Result<Vec<Event>> {
        let first = PROCESS + place * PROCESS_WORDS;
        let end = self.read(first + 5, 1)?[0];
        let begin = end.saturating_sub(most.min(EVENTS_MAX));
        let mut events = Vec::new();
        for number in begin..end {
            let at = (number % EVENTS_MAX) as usize * EVENT_WORDS;
            let words = self.read(first + PROCESS_HEAD_WORDS + at, EVENT_WORDS)?;
            let what = words[1];
            events.push(Event {
                at_ns: words[0],
                operation: what as u8,
                connection: (what >> 8) as u8,
                direction: (what >> 16) as u8,
                thread: (what >> 32) as u32,
                offset: words[2],
                result: words[3].cast_signed(),
            });
        }
        Ok(events)
    }

    /// Where the server listens; 0 before it does.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.read(PORT, 1)?[0] as u16)
    }

    pub fn counts(&self) -> io::Result<Vec<u64>> {
        self.read(COUNTS, COUNTS_MAX)
    }

    pub fn is_mutated(&self) -> io::Result<bool> {
        Ok(self.read(MUTATED, 1)?[0] != 0)
    }

    /// What the programs have found wrong.
    pub fn violations(&self) -> io::Result<Vec<String>> {
        let count = self.read(VIOLATIONS, 1)?[0].min(VIOLATIONS_MAX);
        let mut all = Vec::new();
        for number in 0..count as usize {
            let mut bytes = [0; VIOLATION_BYTES];
            let at = VIOLATION * WORD_BYTES + number * VIOLATION_BYTES;
            self.0.read_exact_at(&mut bytes, at as u64)?;
            let text = bytes.split(|byte| *byte == 0).next().unwrap_or(&bytes);
            all.push(String::from_utf8_lossy(text).into_owned());
        }
        Ok(all)
    }
}

fn connection(words: &[u64; CONNECTION_WORDS]) -> Connection {
    let (directions, _) = words[4..].as_chunks::<DIRECTION_WORDS>();
    Connection {
        cut: words[0],
        is_started: [words[1] != 0, words[2] != 0],
        directions: [direction(&directions[0]), direction(&directions[1])],
    }
}

fn direction(words: &[u64; DIRECTION_WORDS]) -> Direction {
    Direction {
        total: words[0],
        offered: words[1],
        sent: words[2],
        received: words[3],
        is_fin: words[4] != 0,
        is_eof: words[5] != 0,
        sender: words[6],
        receiver: words[7],
        sender_ended: words[8] != 0,
        receiver_ended: words[9] != 0,
        send_call: words[10],
        receive_call: words[11],
    }
}
