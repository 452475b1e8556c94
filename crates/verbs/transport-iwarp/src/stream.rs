//! A connection that is made: TCP's socket under the protocol's state machine.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use sluice_protocol::Instant;
use sluice_protocol::iwarp::{Config, Connection, Failure, Frame, Settings, Stream as Verdict};
use sluice_trace::Direction;
use sluice_wire::iwarp::fpdu;

use crate::memory::{Bridge, Source};
use crate::outgoing::{Outgoing, Sent};
use crate::pins::Pins;
use crate::socket::{Interest, Piece, Socket, piece, would_block};
use crate::staged::Staged;
use crate::trace::Trace;

/// How long a message waits for a receive: peers that wait for ever (an RNR retry count of 7) are
/// common, and TCP holds the sender back meanwhile.
const RECEIVE_WAIT: Duration = Duration::from_secs(60);
/// How long the peer has to close its direction after ours.
const CLOSE_WAIT: Duration = Duration::from_secs(5);
/// After how long a peer that does not answer is sent a WRITE of nothing: some miss what came while they were
/// busy. As long as TCP waits at least before it repeats.
const KEEPALIVE: Duration = Duration::from_millis(200);
/// Bytes that are taken before others have their turn.
const TURN_BYTES: usize = 1 << 20;
/// From so many bytes on that go straight to their place, what is behind them is taken to be of the same
/// kind, and read only so far that the next head is there: bytes that are staged are copied once more.
const LONG_BYTES: usize = 8 << 10;
const BEHIND_LONG_BYTES: usize = 256;
/// Pieces of memory of our own in a call that receives.
const OWN_PIECES: usize = 1;

/// One end of a connection.
pub struct Stream {
    /// Its number.
    pub id: u32,
    pub socket: Arc<Socket>,
    pub connection: Connection,
    trace: Trace,
    staged: Staged,
    out: Outgoing,
    /// A frame whose payload could not be had where nobody could be told of it.
    unsent: Option<Frame>,
    /// The stream broke where nobody could be told of it.
    broken: bool,
    /// It goes on sending when the socket takes more.
    blocked: bool,
    /// Nothing comes any more.
    ended: bool,
    /// When our direction was closed, if it is.
    finished_at: Option<Instant>,
    /// What is waited for at the socket, as the pollers were last told, if they were.
    pub told: Option<Interest>,
}

impl Stream {
    /// With bytes that came behind the peer's start.
    pub fn new(
        id: u32,
        (socket, trace): (Arc<Socket>, Trace),
        settings: Settings,
        rest: &[u8],
        depth: usize,
    ) -> Self {
        let mulpdu = match settings.long_frames {
            true => fpdu::ULPDU_BYTES_MAX,
            false => fpdu::mulpdu(socket.segment_bytes()),
        };
        Self {
            id,
            socket,
            connection: Connection::new(&Config {
                settings,
                mulpdu,
                depth,
                receive_wait: RECEIVE_WAIT,
                close_wait: CLOSE_WAIT,
                keepalive: KEEPALIVE,
            }),
            trace,
            staged: Staged::new(rest, settings.crc),
            out: Outgoing::default(),
            unsent: None,
            broken: false,
            blocked: false,
            ended: false,
            finished_at: None,
            told: None,
        }
    }

    /// What is to be waited for at the socket.
    pub fn interest(&self) -> Interest {
        Interest {
            input: !self.ended && !self.connection.is_stalled(),
            output: self.blocked,
            end: false,
        }
    }

    /// Takes what has come. True: there may be more.
    pub fn receive(&mut self, now: Instant, memory: &mut Bridge<'_>) -> bool {
        let mut taken = 0;
        // A receive may have come for what waits.
        self.look(now, memory);
        while !self.ended && !self.connection.is_stalled() {
            match self.read(now, memory) {
                Read::Bytes { more, bytes } => {
                    taken += bytes;
                    self.look(now, memory);
                    if !more {
                        return false;
                    }
                    if taken >= TURN_BYTES {
                        return true;
                    }
                }
                Read::Nothing => return false,
                Read::End => {
                    self.trace.finish(Direction::Inbound);
                    self.ended = true;
                    self.connection.peer_closed(memory);
                }
                Read::Broken => self.lost(memory),
            }
        }
        false
    }

    /// TCP's connection broke.
    pub fn lost(&mut self, memory: &mut Bridge<'_>) {
        if !self.ended {
            self.trace.reset(Direction::Inbound);
            self.ended = true;
            self.connection.lost(memory);
        }
    }

    /// Gives the protocol what is staged.
    fn look(&mut self, now: Instant, memory: &mut Bridge<'_>) {
        if !self.staged.is_empty() {
            let used = self.connection.receive(now, self.staged.bytes(), memory);
            self.staged.taken(used);
        }
    }

    fn read(&mut self, now: Instant, memory: &mut Bridge<'_>) -> Read {
        let direct = match self.staged.is_empty() {
            true => self.connection.expected(),
            false => None,
        };
        let mut pins = Pins::new();
        if let Some(direct) = &direct
            && let Err(refusal) = memory.pin(direct, &mut pins)
        {
            drop(pins);
            self.connection.refuse_placement(now, refusal, memory);
            // What is behind it is not looked at.
            return Read::Bytes {
                more: true,
                bytes: 0,
            };
        }
        // A receive of many pieces: the rest of them, and what is behind, with the next call.
        let placeable = pins.len().min(pins.capacity() - OWN_PIECES);
        let pins = pins.get(..placeable).unwrap_or_default();
        let mut pieces: arrayvec::ArrayVec<Piece, { crate::socket::PIECES_MAX }> =
            pins.iter().map(|pinned| pinned.piece()).collect();
        let in_place: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let whole = direct.is_none_or(|direct| direct.length == in_place);
        if whole {
            let room = self.staged.room();
            let bytes = match in_place {
                LONG_BYTES.. => room.len().min(BEHIND_LONG_BYTES),
                _ => room.len(),
            };
            pieces.push(piece(room.as_mut_ptr(), bytes));
        }
        let wanted: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        // SAFETY: the places are pinned for writing by `pins`, of which no piece is memory of our
        // own, since nobody writes to a request's copy; the staging room is ours, and not
        // borrowed during the call.
        let received = unsafe { self.socket.receive(&pieces) };
        match received {
            Ok(0) => Read::End,
            Ok(bytes) => {
                // SAFETY: the pieces are pinned still, and were written to just now.
                unsafe { self.trace.pieces(Direction::Inbound, &pieces, bytes) };
                let placed = bytes.min(in_place);
                self.connection.placed(placed);
                self.staged.filled(bytes - placed);
                Read::Bytes {
                    more: bytes == wanted,
                    bytes,
                }
            }
            Err(error) if would_block(&error) => Read::Nothing,
            Err(_) => Read::Broken,
        }
    }

    /// Sends what there is. `memory`: whom failures are told of; without it they wait until
    /// somebody has it. What a peer READs has no end of its own, and others wait: after so many bytes it
    /// goes on when the socket is looked at next.
    pub fn transmit(
        &mut self,
        now: Instant,
        source: &Source<'_>,
        mut memory: Option<&mut Bridge<'_>>,
    ) {
        let until = self.out.sent() + TURN_BYTES as u64;
        // Each turn sends bytes, or is the last.
        loop {
            while self.out.has_room() {
                let Some(frame) = self.unsent.take().or_else(|| self.connection.transmit()) else {
                    break;
                };
                let Err(refusal) = self.out.push(&frame, source) else {
                    continue;
                };
                match &mut memory {
                    Some(memory) => {
                        self.connection.fail_gather(now, &frame, refusal, *memory);
                    }
                    None => {
                        self.unsent = Some(frame);
                        break;
                    }
                }
            }
            if self.out.is_empty() {
                self.blocked = false;
                return;
            }
            if self.out.sent() >= until {
                // The kernel says at once that there is room, to whoever waits for it.
                self.blocked = true;
                return;
            }
            let sent = self.out.flush(&self.socket, source, &mut self.trace);
            self.connection.released(self.out.sent());
            self.connection.sent(now);
            self.blocked = sent == Sent::Blocked;
            match (sent, &mut memory) {
                (Sent::All, _) => {}
                (Sent::Blocked, _) => return,
                (Sent::Broken, Some(memory)) => {
                    self.out = Outgoing::default();
                    // The peer may have said why, before it closed.
                    while self.receive(now, memory) {}
                    self.lost(memory);
                    return;
                }
                (Sent::Broken, None) => {
                    self.broken = true;
                    return;
                }
            }
        }
    }

    /// The socket takes no more; whoever it says to that it does goes on.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Something waits for somebody who can tell the engine of it.
    pub fn has_failed(&self) -> bool {
        self.unsent.is_some() || self.broken
    }

    /// The program wants no more of it. In order, if nothing is under way.
    pub fn stop(&mut self, now: Instant, memory: &mut Bridge<'_>) {
        if self.is_over() {
            return;
        }
        self.connection.close();
        if self.connection.stream() == Verdict::Open {
            self.connection.abort(now, memory);
        }
    }

    /// Nothing more is done for its requests.
    pub fn is_over(&self) -> bool {
        self.connection.failure().is_some() || self.ended
    }

    /// Why, if it did not end in order.
    pub fn failure(&self) -> Option<Failure> {
        self.connection.failure().copied()
    }

    /// Both directions have ended.
    pub fn is_closed(&self) -> bool {
        self.finished_at.is_some() && self.ended
    }

    /// Does with TCP's connection what is due. True: it has ended in both directions.
    pub fn advance(&mut self, now: Instant) -> bool {
        match self.connection.stream() {
            Verdict::Open => return false,
            Verdict::Finish => {
                if self.finished_at.is_none() && self.out.is_empty() {
                    self.socket.finish();
                    self.trace.finish(Direction::Outbound);
                    self.finished_at = Some(now);
                }
            }
            Verdict::Reset => {
                self.socket.reset_at_close();
                self.trace.reset(Direction::Outbound);
                self.ended = true;
                self.finished_at = Some(now);
            }
        }
        if let Some(since) = self.finished_at
            && since.after(CLOSE_WAIT) <= now
        {
            self.ended = true;
        }
        self.is_closed()
    }

    /// When it is to be looked at again, if nothing happens.
    pub fn deadline(&self) -> Option<Instant> {
        let closes = self.finished_at.map(|since| since.after(CLOSE_WAIT));
        [self.connection.deadline(), closes]
            .into_iter()
            .flatten()
            .min()
    }
}

enum Read {
    /// Some came; `more`: as many as were asked for, so there may be more.
    Bytes {
        more: bool,
        bytes: usize,
    },
    Nothing,
    /// The peer closed its direction.
    End,
    Broken,
}
