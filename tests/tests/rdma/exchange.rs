//! The payload case: both ends write into a ring of the other's at the same time, pieces of all
//! sizes with a number each, and say by messages what they have taken out and what they have put in.
//! Every byte and every order is checked.

use std::collections::VecDeque;
use std::time::Instant;

use sluice_rdma::{Access, Event, MESSAGE_BYTES_MAX, PostError, Remote};

use crate::side::{LIMIT, Memory, Outcome, Side};

const RING_BYTES: usize = 1 << 20;
const PIECE_BYTES_MAX: usize = 64 << 10;
/// What was taken out is said after so many bytes at the latest.
const CREDIT_BYTES: usize = RING_BYTES / 4;
/// A message follows each so-and-so-many-th write.
const MESSAGE_INTERVAL: u32 = 97;

/// xorshift64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// What each end knows of the pieces of one direction: sizes, places and bytes follow from the
/// number.
struct Pieces {
    random: Random,
    table: Vec<u8>,
    next: u32,
    at: usize,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    number: u32,
    at: usize,
    length: usize,
    /// What it takes of the ring, with what is left out at the end.
    room: usize,
}

impl Pieces {
    fn new(seed: u64) -> Pieces {
        let mut random = Random::new(seed);
        let table = (0..PIECE_BYTES_MAX + 4096)
            .map(|_| random.below(256) as u8)
            .collect();
        Pieces {
            random,
            table,
            next: 0,
            at: 0,
        }
    }

    fn next(&mut self) -> Piece {
        let length = match self.random.below(64) {
            0..40 => 1 + self.random.below(256),
            40..58 => 257 + self.random.below(3840),
            58..62 => 4097 + self.random.below(12_288),
            62 => self.random.below(2),
            _ => 1 + self.random.below(PIECE_BYTES_MAX as u64),
        } as usize;
        let skipped = match self.at + length <= RING_BYTES {
            true => 0,
            false => RING_BYTES - self.at,
        };
        let at = (self.at + skipped) % RING_BYTES;
        self.at = at + length;
        let number = self.next;
        self.next += 1;
        Piece {
            number,
            at,
            length,
            room: length + skipped,
        }
    }

    fn bytes(&self, piece: Piece) -> &[u8] {
        let from = piece.number as usize * 7 % 4096;
        &self.table[from..from + piece.length]
    }
}

/// A message: kind, number, and filling up to a length that follows from the number.
fn message(kind: u8, number: u32) -> Vec<u8> {
    let length = match kind {
        TAKEN => 5,
        _ => 5 + number as usize * 13 % (MESSAGE_BYTES_MAX - 4),
    };
    let mut bytes = vec![number as u8 ^ kind; length];
    bytes[0] = kind;
    bytes[1..5].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// So many bytes of the ring, modulo 2³², were taken out.
const TAKEN: u8 = 1;
/// So many pieces were written before this message.
const WRITTEN: u8 = 2;

struct State {
    out: Pieces,
    outgoing: Memory,
    incoming_pieces: Pieces,
    incoming: Memory,
    count: u32,
    /// Put into the peer's ring, and taken out there.
    put: u32,
    freed: u32,
    waiting: Option<Piece>,
    written: u32,
    /// Rooms of writes that are not done, or nothing for a message.
    posted: VecDeque<usize>,
    done_bytes: u32,
    next_id: u64,
    done: u64,
    arrived: u32,
    taken: u32,
    told: u32,
    to_send: VecDeque<Vec<u8>>,
}

pub fn run(mut side: Side, count: u32) -> Outcome {
    let (mine, other) = if side.is_left { (1, 2) } else { (2, 1) };
    let outgoing = side.memory(RING_BYTES, Access::Source)?;
    let incoming = side.memory(RING_BYTES, Access::Target)?;
    let remote = side.exchange_remote(&incoming.region)?;
    let link = side.link()?;
    let mut state = State {
        out: Pieces::new(mine),
        outgoing,
        incoming_pieces: Pieces::new(other),
        incoming,
        count,
        put: 0,
        freed: 0,
        waiting: None,
        written: 0,
        posted: VecDeque::new(),
        done_bytes: 0,
        next_id: 0,
        done: 0,
        arrived: 0,
        taken: 0,
        told: 0,
        to_send: VecDeque::new(),
    };
    let mut progress = Instant::now();
    while !state.is_finished() {
        state.post(&mut side, link, remote)?;
        let mut problem = None;
        let events = side.node.poll(64, &mut |event| {
            if let Err(error) = state.take(event) {
                problem.get_or_insert(error);
            }
        });
        if let Some(problem) = problem {
            return Err(problem);
        }
        if events > 0 {
            progress = Instant::now();
        } else if progress.elapsed() > LIMIT {
            return Err(format!(
                "stands still: {} of {count} written, {} arrived, {} of {} done",
                state.written, state.arrived, state.done, state.next_id
            )
            .into());
        }
    }
    if side.node.unfinished(link) != 0 {
        return Err("all is done, and something is unfinished".into());
    }
    side.meet()
}

impl State {
    fn is_finished(&self) -> bool {
        self.written == self.count
            && self.arrived == self.count
            && self.to_send.is_empty()
            && self.done == self.next_id
    }

    fn post(&mut self, side: &mut Side, link: sluice_rdma::LinkId, remote: Remote) -> Outcome {
        loop {
            while let Some(message) = self.to_send.front() {
                match side.node.send(link, message, self.next_id) {
                    Ok(()) => {
                        self.to_send.pop_front();
                        self.posted.push_back(0);
                        self.next_id += 1;
                    }
                    Err(PostError::Full) => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
            if self.written == self.count {
                return Ok(());
            }
            let piece = *self.waiting.get_or_insert_with(|| self.out.next());
            let end = self.put.wrapping_add(piece.room as u32);
            // Neither over what the peer has not taken out, nor over what is being sent.
            let fits = |from: u32| end.wrapping_sub(from) as usize <= RING_BYTES;
            if !fits(self.freed) || !fits(self.done_bytes) {
                return Ok(());
            }
            self.outgoing.fill(piece.at, self.out.bytes(piece));
            let region = &self.outgoing.region;
            let slice = region
                .slice(piece.at, piece.length as u32)
                .ok_or("no slice")?;
            let to = Remote {
                address: remote.address + piece.at as u64,
                ..remote
            };
            match side
                .node
                .write(link, slice, to, Some(piece.number), self.next_id)
            {
                Ok(()) => {}
                Err(PostError::Full) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            self.posted.push_back(piece.room);
            self.next_id += 1;
            self.waiting = None;
            self.put = end;
            self.written += 1;
            if self.written.is_multiple_of(MESSAGE_INTERVAL) {
                self.to_send.push_back(message(WRITTEN, self.written));
            }
        }
    }

    fn take(&mut self, event: Event<'_>) -> Outcome {
        match event {
            Event::Done { id, .. } if id == self.done => {
                let room = self.posted.pop_front().ok_or("nothing was posted")?;
                self.done_bytes = self.done_bytes.wrapping_add(room as u32);
                self.done += 1;
                Ok(())
            }
            Event::Arrived { number, bytes, .. } => self.arrive(number, bytes),
            Event::Message { bytes, .. } => self.read(bytes),
            other => Err(format!("{other:?}, {} are done", self.done).into()),
        }
    }

    fn arrive(&mut self, number: u32, bytes: u32) -> Outcome {
        let piece = self.incoming_pieces.next();
        if (number, bytes as usize) != (piece.number, piece.length) {
            return Err(format!("{bytes} bytes came as {number} instead of {piece:?}").into());
        }
        if self.incoming.bytes(piece.at, piece.length) != self.incoming_pieces.bytes(piece) {
            return Err(format!("{piece:?} has other bytes").into());
        }
        // So that bytes of an earlier turn cannot be taken for those of this one.
        self.incoming
            .fill(piece.at, &[0xee; PIECE_BYTES_MAX][..piece.length]);
        self.arrived += 1;
        self.taken = self.taken.wrapping_add(piece.room as u32);
        if self.taken.wrapping_sub(self.told) as usize >= CREDIT_BYTES {
            self.told = self.taken;
            self.to_send.push_back(message(TAKEN, self.taken));
        }
        Ok(())
    }

    fn read(&mut self, bytes: &[u8]) -> Outcome {
        let [kind, a, b, c, d, ..] = *bytes else {
            return Err(format!("a message of {} bytes", bytes.len()).into());
        };
        let number = u32::from_be_bytes([a, b, c, d]);
        if bytes != message(kind, number) {
            return Err(format!("message {kind} {number} has other bytes").into());
        }
        match kind {
            TAKEN => self.freed = number,
            WRITTEN if number == self.arrived => {}
            _ => return Err(format!("{number} were said, {} came", self.arrived).into()),
        }
        Ok(())
    }
}
