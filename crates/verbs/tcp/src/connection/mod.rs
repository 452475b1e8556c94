//! One connection.

mod input;
mod output;
mod timers;

use sluice_wire::tcp::{Flags, SCALE_MAX};

use crate::congestion::{Algorithm, Congestion};
use crate::reassembly::Reassembly;
use crate::rtt::Rtt;
use crate::scoreboard::Scoreboard;
use crate::segment::{Segment, Transmit};
use crate::sequence::Numbers;
use crate::time::{Instant, MILLISECOND, SECOND};

/// A smaller MSS of a peer counts as this: what is left for payload beside all options is more
/// than nothing, and a peer cannot make us send a header for every byte.
const MSS_MIN: u16 = 128;
/// The MSS of a peer that says nothing (RFC 9293 §3.7.1, MUST-15).
const MSS_DEFAULT: u16 = 536;
/// Challenge acknowledgements in a second at most (RFC 5961 §7).
const CHALLENGES_PER_SECOND: u32 = 10;

/// What a connection may take and how it behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes that the caller keeps for the peer's stream, at most 1 GiB (RFC 7323 §2.3).
    pub receive_buffer: u32,
    /// Bytes that the path takes, without IP and TCP headers; options count as payload
    /// (RFC 9293 §3.7.1). At least 128.
    pub mss: u16,
    /// Congestion control.
    pub algorithm: Algorithm,
    /// Whether to offer and accept ECN (RFC 3168 §6.1.1).
    pub ecn: bool,
    /// Whether to offer and accept SACK.
    pub sack: bool,
    /// Whether to offer and accept timestamps.
    pub timestamps: bool,
    /// How long an acknowledgement may wait, in nanoseconds; below 500 ms (RFC 1122 §4.2.3.2).
    pub delayed_ack: u64,
    /// The connection ends when nothing that was sent is acknowledged for so many nanoseconds
    /// (RFC 9293 §3.8.3), or none that is sent to a peer with a closed window is answered.
    pub user_timeout: u64,
    /// Twice the lifetime of a segment, in nanoseconds (RFC 9293 §3.4.2).
    pub time_wait: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            receive_buffer: 1 << 20,
            mss: 1460,
            algorithm: Algorithm::Cubic,
            ecn: true,
            sack: true,
            timestamps: true,
            delayed_ack: 40 * MILLISECOND,
            user_timeout: 300 * SECOND,
            time_wait: 60 * SECOND,
        }
    }
}

/// RFC 9293 §3.3.2. LISTEN is the caller's: [`Connection::accept`].
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
    Closed,
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both streams ended.
    Finished,
    /// The peer refused it.
    Refused,
    /// The peer reset it.
    Reset,
    /// The peer did not answer for [`Config::user_timeout`].
    TimedOut,
    /// [`Connection::abort`].
    Aborted,
}

/// What happened, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Segments that took the fast path.
    pub fast: u64,
    /// Segments that did not.
    pub slow: u64,
    /// Segments sent again.
    pub retransmitted: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Tail loss probes.
    pub probes: u64,
    /// Challenge acknowledgements (RFC 5961).
    pub challenges: u64,
    /// Segments that arrived with a mark of congestion.
    pub marked: u64,
}

/// Timestamps (RFC 7323 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Timestamps {
    recent: u32,
    recent_at: Instant,
}

/// The stream that we send, by positions.
#[derive(Clone, Debug, PartialEq)]
struct Send {
    numbers: Numbers,
    una: u64,
    nxt: u64,
    /// The right edge of the peer's window.
    edge: u64,
    window_max: u64,
    /// Of the segment that the window is from: its position, and what it acknowledged.
    updated: (u64, u64),
    scale: u8,
    mss: u16,
    /// Bytes that the application has given.
    written: u64,
    /// No more will come.
    closed: bool,
}

impl Send {
    /// The position of the FIN.
    fn fin(&self) -> u64 {
        self.written + 1
    }

    fn fin_is_sent(&self) -> bool {
        self.closed && self.nxt > self.fin()
    }
}

/// The stream that we receive, by positions.
#[derive(Clone, Debug, PartialEq)]
struct Receive {
    numbers: Numbers,
    next: u64,
    /// The right edge of the window as promised. It never goes back.
    edge: u64,
    scale: u8,
    /// Bytes that the application has taken.
    read: u64,
    reassembly: Reassembly,
    fin: Option<u64>,
    /// A range that arrived twice, for the next acknowledgement (RFC 2883 §4).
    duplicate: Option<(u64, u64)>,
    /// Bytes since the last acknowledgement, and the position that it said.
    unsaid: u64,
    said: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Timers {
    retransmission: Option<Instant>,
    /// Tail loss probe.
    probe: Option<Instant>,
    /// What was reordered is lost by then.
    reordering: Option<Instant>,
    persist: Option<Instant>,
    acknowledge: Option<Instant>,
    time_wait: Option<Instant>,
}

/// A connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Connection {
    config: Config,
    state: State,
    end: Option<End>,
    passive: bool,
    send: Send,
    receive: Receive,
    timestamps: Option<Timestamps>,
    clock_offset: u32,
    sack: bool,
    scaling: bool,
    ecn: bool,
    /// To be echoed: until CWR arrives, or as long as segments are marked (DCTCP).
    echo: bool,
    /// We have slowed down, and the next new segment says so.
    slowed: bool,
    /// Marks of what was sent before this position are dealt with.
    slowed_at: u64,
    board: Scoreboard,
    rtt: Rtt,
    congestion: Congestion,
    /// Recovering until this position is acknowledged.
    recover: Option<u64>,
    duplicates: u32,
    /// The congestion window held us back when this was the next position.
    limited_at: u64,
    /// A tail loss probe is out: until when, and whether it was sent before.
    tail: Option<(u64, bool)>,
    timers: Timers,
    persisted: u32,
    progress: Instant,
    last_sent: Instant,
    acknowledge_now: bool,
    probe_now: bool,
    persist_now: bool,
    /// [`Self::acceptable`] was last in the window, though more was sent.
    inside: bool,
    reset: Option<Transmit>,
    challenges: (Instant, u32),
    counters: Counters,
}

impl Connection {
    /// Opens actively. `sequence` is the first sequence number ([`crate::initial`]), `clock_offset`
    /// is added to timestamps so that they say nothing of the machine (RFC 7323 §5.4): both from a
    /// keyed hash.
    pub fn connect(config: Config, sequence: u32, clock_offset: u32, now: Instant) -> Self {
        let receive_buffer = config.receive_buffer.clamp(1, 1 << 30);
        let mss = config.mss.max(MSS_MIN);
        let config = Config {
            receive_buffer,
            mss,
            ..config
        };
        // The smallest shift that can say all of the buffer.
        let mut scale = 0;
        while scale < SCALE_MAX && receive_buffer >> scale > 0xffff {
            scale += 1;
        }
        Self {
            config,
            state: State::SynSent,
            end: None,
            passive: false,
            send: Send {
                numbers: Numbers(sequence),
                una: 0,
                nxt: 0,
                edge: 1,
                window_max: 0,
                updated: (0, 0),
                scale: 0,
                mss,
                written: 0,
                closed: false,
            },
            receive: Receive {
                numbers: Numbers(0),
                next: 0,
                edge: 0,
                scale,
                read: 0,
                reassembly: Reassembly::default(),
                fin: None,
                duplicate: None,
                unsaid: 0,
                said: 0,
            },
            timestamps: config.timestamps.then_some(Timestamps {
                recent: 0,
                recent_at: now,
            }),
            clock_offset,
            sack: config.sack,
            scaling: true,
            ecn: config.ecn,
            echo: false,
            slowed: false,
            slowed_at: 0,
            board: Scoreboard::new(),
            rtt: Rtt::new(),
            congestion: Congestion::new(config.algorithm, u64::from(mss)),
            recover: None,
            duplicates: 0,
            limited_at: 0,
            tail: None,
            timers: Timers::default(),
            persisted: 0,
            progress: now,
            last_sent: now,
            acknowledge_now: false,
            probe_now: false,
            persist_now: false,
            inside: false,
            reset: None,
            challenges: (now, 0),
            counters: Counters::default(),
        }
    }

    /// Opens passively: answers a SYN. None if the segment is none (RFC 9293 §3.10.7.2): what is to
    /// be said then, if anything, [`crate::refuse`] says.
    pub fn accept(
        config: Config,
        syn: &Segment,
        sequence: u32,
        clock_offset: u32,
        now: Instant,
    ) -> Option<Self> {
        let flags = syn.header.flags;
        if !flags.has(Flags::SYN)
            || [Flags::ACK, Flags::RST, Flags::FIN]
                .iter()
                .any(|flag| flags.has(*flag))
        {
            return None;
        }
        let mut connection = Self::connect(config, sequence, clock_offset, now);
        connection.passive = true;
        connection.synchronize(syn, now);
        connection.ecn &= flags.has(Flags::ECE.with(Flags::CWR));
        connection.state = State::SynReceived;
        Some(connection)
    }

    /// So many bytes more are ready to be sent. False, and nothing changes, after
    /// [`Self::shutdown`] or when the connection has ended.
    pub fn write(&mut self, bytes: u64) -> bool {
        if self.send.closed || self.end.is_some() {
            return false;
        }
        self.send.written = self.send.written.saturating_add(bytes);
        true
    }

    /// So many bytes were taken out of the receive buffer, and their place is free. More than are
    /// there count as those that are.
    pub fn read(&mut self, bytes: u64) {
        self.receive.read = self.receive.read.saturating_add(bytes).min(self.readable());
        let buffer = u64::from(self.config.receive_buffer);
        let more = self.right_edge() - self.receive.edge.min(self.right_edge());
        let shut = self.receive.edge - self.receive.next < u64::from(self.send.mss);
        // Only what is worth a segment is told (RFC 9293 §3.8.6.2.2).
        let worth = more >= buffer / 2 || shut && more >= u64::from(self.send.mss);
        if worth && more > 0 && self.is_receiving() {
            self.acknowledge_now = true;
        }
    }

    /// Nothing more will be written: the stream ends behind what was (RFC 9293 §3.10.4).
    pub fn shutdown(&mut self) {
        self.send.closed = true;
    }

    /// Ends the connection with a reset (RFC 9293 §3.10.5).
    pub fn abort(&mut self) {
        if self.end.is_none() {
            self.reset_with(End::Aborted);
        }
    }

    /// The path takes segments of so many bytes, as [`Config::mss`].
    pub fn set_mss(&mut self, mss: u16) {
        self.send.mss = self.send.mss.min(mss.max(MSS_MIN));
        self.congestion.set_mss(u64::from(self.send.mss));
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Why it is closed, once it is.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// The peer's stream is complete up to this offset.
    pub fn readable(&self) -> u64 {
        let fin = u64::from(self.fin_arrived());
        self.receive.next.saturating_sub(1 + fin)
    }

    /// The peer's stream ends where it is readable.
    pub fn fin_arrived(&self) -> bool {
        self.receive.fin.is_some_and(|fin| self.receive.next > fin)
    }

    /// The peer has our stream up to this offset.
    pub fn acknowledged(&self) -> u64 {
        self.send.una.saturating_sub(1).min(self.send.written)
    }

    /// Bytes that were written and not acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        self.send.written - self.acknowledged()
    }

    /// What happened.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The congestion window in bytes.
    pub fn congestion_window(&self) -> u64 {
        self.congestion.window()
    }

    /// Segments in flight and ranges out of order that are remembered: at most twice
    /// [`crate::SEGMENTS_MAX`], and [`crate::RANGES_MAX`].
    pub fn remembered(&self) -> (usize, usize) {
        (self.board.len(), self.receive.reassembly.len())
    }

    /// Whether SACK, timestamps and ECN are in use, and the shifts of our and the peer's windows.
    pub fn negotiated(&self) -> (bool, bool, bool, u8, u8) {
        let timestamps = self.timestamps.is_some();
        (
            self.sack,
            timestamps,
            self.ecn,
            self.receive.scale,
            self.send.scale,
        )
    }

    fn is_receiving(&self) -> bool {
        matches!(
            self.state,
            State::Established | State::FinWait1 | State::FinWait2
        )
    }

    /// The right edge that the buffer would allow.
    fn right_edge(&self) -> u64 {
        1 + self.receive.read + u64::from(self.config.receive_buffer)
    }

    /// Bytes in the network (RFC 6675 §4).
    fn in_network(&self) -> u64 {
        let mut gone = self.board.not_in_network();
        if !self.sack {
            // Each duplicate says that a segment has left (RFC 5681 §3.2).
            gone += u64::from(self.duplicates) * u64::from(self.send.mss);
        }
        (self.send.nxt - self.send.una).saturating_sub(gone)
    }

    /// The position that a segment without data has. If all that was sent lies in the peer's window
    /// as far as it is known, that is the next one. Else the peer may have thrown away what lies
    /// beyond, and takes nothing behind its window (RFC 9293 §3.10.7.4); or it has more room than we
    /// heard of, has taken it, and takes nothing before. No RFC says which; by turns one is right.
    fn acceptable(&mut self) -> u64 {
        let edge = self.send.edge.max(self.send.una);
        if self.send.nxt <= edge {
            return self.send.nxt;
        }
        self.inside = !self.inside;
        if self.inside { edge } else { self.send.nxt }
    }

    fn clock(&self, now: Instant) -> u32 {
        self.clock_offset.wrapping_add((now.0 / MILLISECOND) as u32)
    }

    fn finish(&mut self, end: End) {
        self.state = State::Closed;
        self.end.get_or_insert(end);
        self.timers = Timers::default();
        self.board = Scoreboard::new();
        self.receive.reassembly = Reassembly::default();
        (self.acknowledge_now, self.probe_now, self.persist_now) = (false, false, false);
    }

    /// Ends it and tells the peer, if that knows of it.
    fn reset_with(&mut self, end: End) {
        if !matches!(self.state, State::SynSent | State::TimeWait | State::Closed) {
            let mut reset = Transmit::default();
            reset.header.flags = Flags::RST.with(Flags::ACK);
            self.inside = false;
            let position = self.acceptable();
            reset.header.sequence = self.send.numbers.wire(position);
            reset.header.acknowledgement = self.receive.numbers.wire(self.receive.next);
            self.reset = Some(reset);
        }
        self.finish(end);
    }
}
