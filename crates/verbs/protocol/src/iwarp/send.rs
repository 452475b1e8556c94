//! What leaves: requests cut into segments, responses to READs and atomics, and the state of
//! requests until they end (RFC 5041 §5.2, RFC 5040 §5).

use alloc::collections::VecDeque;

use sluice_wire::extended::Reth;
use sluice_wire::iwarp::message::{
    AtomicRequest, AtomicResponse, IMMEDIATE_BYTES, Operation as Op, ReadRequest,
};
use sluice_wire::iwarp::segment::{TAGGED_BYTES, UNTAGGED_BYTES};
use sluice_wire::iwarp::{Header, Kind, Tagged, Untagged};

use super::frame::{Frame, Payload};
use super::startup::{First, Rtr, Settings};
use crate::request::{Completion, Operation, PostError, Remote, Request, Status};

/// What an end owes its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owed {
    /// The bytes that a READ asked for.
    Read(ReadRequest),
    /// The value that an atomic found.
    Atomic(AtomicResponse),
}

/// No key is looked at where there are no bytes (RFC 6581 has these messages be empty).
const NOWHERE: Remote = Remote {
    address: 0,
    rkey: 0,
};

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// So many bytes of it were given out.
    Sending(u32),
    /// Of a WRITE, all; its immediate data follow.
    Immediate,
    /// All; it is done when the stream is let go of up to there.
    Sent {
        /// Bytes of the stream.
        end: u64,
        /// Its number, if it is of the queue of SENDs.
        msn: u32,
    },
    /// A request for data, of that number: so many bytes came.
    Waiting { msn: u32, came: u32 },
    /// It has ended.
    Done(Status),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    request: Request,
    progress: Progress,
    /// Our own RTR, of which no program knows.
    hidden: bool,
}

/// The READ whose response comes next.
pub(super) struct Expected {
    pub seq: u64,
    pub stag: u32,
    pub done: u32,
    pub left: u32,
}

/// What a message is being sent of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Request,
    /// The first that is owed, of which so many bytes were given out.
    Response(u32),
}

/// The outgoing half.
#[derive(Debug)]
pub(super) struct Sender {
    crc: bool,
    /// Bytes of a ULPDU at most.
    mulpdu: usize,
    depth: usize,
    ord: usize,
    queue: VecDeque<Entry>,
    /// Responses in the order of their requests.
    pub owed: VecDeque<Owed>,
    /// Of these, in front, all was given out.
    sent: usize,
    /// READs and atomics that wait for their answers.
    waiting: usize,
    /// The message under way; None between two.
    turn: Option<Turn>,
    /// Whose turn is next if both have something.
    response_next: bool,
    send_msn: u32,
    read_msn: u32,
    atomic_msn: u32,
    /// Bytes of the stream that were given out, and that were let go of.
    end: u64,
    released: u64,
    /// This end waits until the peer has sent something.
    waits: bool,
    empty_rtr: bool,
    /// A WRITE of nothing is to be sent, between messages.
    keepalive: bool,
    /// Frames were given out that are of the program's requests or of its peer's.
    spoken: bool,
}

impl Sender {
    pub fn new(settings: &Settings, mulpdu: usize, depth: usize) -> Self {
        let mut sender = Self {
            crc: settings.crc,
            mulpdu,
            depth,
            ord: usize::from(settings.ord),
            queue: VecDeque::new(),
            owed: VecDeque::new(),
            sent: 0,
            waiting: 0,
            turn: None,
            response_next: false,
            send_msn: 1,
            read_msn: 1,
            atomic_msn: 1,
            end: 0,
            released: 0,
            waits: settings.first == First::Peer,
            empty_rtr: settings.first == First::Own(Some(Rtr::Empty)),
            keepalive: false,
            spoken: false,
        };
        let operation = match settings.first {
            First::Own(Some(Rtr::Write)) => Operation::Write(NOWHERE),
            First::Own(Some(Rtr::Read)) => Operation::Read(NOWHERE),
            _ => return sender,
        };
        sender.queue.push_back(Entry {
            request: Request {
                seq: 0,
                operation,
                length: 0,
                solicited: false,
                srq: None,
            },
            progress: Progress::Sending(0),
            hidden: true,
        });
        sender
    }

    pub fn post(&mut self, request: Request) -> Result<(), PostError> {
        let illegal = match request.operation {
            Operation::SendImmediate(_) => true,
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => {
                request.length != 8 || self.ord == 0
            }
            Operation::Read(_) => request.length > Reth::LENGTH_MAX || self.ord == 0,
            _ => request.length > Reth::LENGTH_MAX,
        };
        if illegal {
            return Err(PostError::Illegal);
        }
        let hidden = self.queue.iter().filter(|entry| entry.hidden).count();
        if self.queue.len() - hidden >= self.depth {
            return Err(PostError::Full);
        }
        self.queue.push_back(Entry {
            request,
            progress: Progress::Sending(0),
            hidden: false,
        });
        Ok(())
    }

    /// Nothing is left to send, and no answer to come.
    pub fn is_idle(&self) -> bool {
        self.sent == self.queue.len()
            && self.turn.is_none()
            && !self.awaits()
            && !self.empty_rtr
            && self.owed.is_empty()
    }

    /// A request waits for its answer.
    pub const fn awaits(&self) -> bool {
        self.waiting > 0
    }

    pub fn released(&mut self, end: u64) {
        self.released = self.released.max(end.min(self.end));
    }

    pub fn count(&mut self, mut frame: Frame) -> Frame {
        self.end += frame.bytes() as u64;
        frame.end = self.end;
        frame
    }

    pub fn uncount(&mut self, frame: &Frame) {
        self.end = self.end.saturating_sub(frame.bytes() as u64);
    }

    pub fn completion(&mut self) -> Option<Completion> {
        loop {
            let entry = *self.queue.front()?;
            let status = match entry.progress {
                Progress::Done(status) => status,
                Progress::Sent { end, .. } if end <= self.released => Status::Success,
                _ => return None,
            };
            self.queue.pop_front();
            self.sent = self.sent.saturating_sub(1);
            if !entry.hidden {
                return Some(Completion {
                    seq: entry.request.seq,
                    status,
                    length: entry.request.length,
                });
            }
        }
    }

    /// The oldest request that waits for an answer. They come in the order of the requests (RFC
    /// 5040 §5.5).
    fn oldest(&mut self) -> Option<&mut Entry> {
        self.queue
            .iter_mut()
            .find(|entry| matches!(entry.progress, Progress::Waiting { .. }))
    }

    pub fn expected_read(&mut self) -> Option<Expected> {
        let entry = self.oldest()?;
        match (entry.request.operation, entry.progress) {
            (Operation::Read(_), Progress::Waiting { came, .. }) => Some(Expected {
                seq: entry.request.seq,
                stag: tag(&entry.request),
                done: came,
                left: entry.request.length - came, // No more is let in.
            }),
            _ => None,
        }
    }

    /// Bytes of that READ are in their place; it has ended when these are all.
    pub fn read_came(&mut self, bytes: u32) {
        if let Some(entry) = self.oldest()
            && let Progress::Waiting { msn, came } = entry.progress
        {
            let came = came.saturating_add(bytes);
            if came >= entry.request.length {
                self.answered();
            } else {
                entry.progress = Progress::Waiting { msn, came };
            }
        }
    }

    pub fn expected_atomic(&mut self, id: u32) -> Option<u64> {
        let entry = self.oldest()?;
        let ours = entry.request.operation.is_atomic() && tag(&entry.request) == id;
        ours.then_some(entry.request.seq)
    }

    /// The oldest request that waits for an answer has it.
    pub fn answered(&mut self) {
        if let Some(entry) = self.oldest() {
            entry.progress = Progress::Done(Status::Success);
            self.waiting -= 1;
        }
    }

    /// That request ends so.
    pub fn fail(&mut self, seq: u64, status: Status) {
        let found = |entry: &&mut Entry| entry.request.seq == seq && !entry.hidden;
        if let Some(entry) = self.queue.iter_mut().find(found) {
            entry.progress = Progress::Done(status);
        }
    }

    /// The request for data of that number, or the oldest, ends so.
    pub fn fail_read(&mut self, number: Option<u32>, status: Status) {
        let found = |entry: &&mut Entry| match entry.progress {
            Progress::Waiting { msn, .. } => number.is_none_or(|number| number == msn),
            _ => false,
        };
        if let Some(entry) = self.queue.iter_mut().find(found) {
            entry.progress = Progress::Done(status);
        }
    }

    /// The SEND of that number ends so, if it has not yet.
    pub fn fail_send(&mut self, number: u32, status: Status) {
        let (released, next) = (self.released, self.send_msn);
        let found = |entry: &&mut Entry| match entry.progress {
            Progress::Sent { end, msn } => end > released && msn == number,
            Progress::Sending(bytes) => bytes > 0 && number == next && is_send(&entry.request),
            _ => false,
        };
        if let Some(entry) = self.queue.iter_mut().find(found) {
            entry.progress = Progress::Done(status);
        }
    }

    /// The WRITE that is under way to that place ends so: a peer may refuse its first bytes while the last
    /// have not left.
    pub fn fail_write(&mut self, place: Tagged, status: Status) {
        let released = self.released;
        let found = |entry: &&mut Entry| {
            let under_way = match entry.progress {
                Progress::Sending(bytes) => bytes > 0,
                Progress::Immediate => true,
                Progress::Sent { end, .. } => end > released,
                _ => false,
            };
            under_way && !entry.hidden && writes_to(&entry.request, place)
        };
        if let Some(entry) = self.queue.iter_mut().find(found) {
            entry.progress = Progress::Done(status);
        }
    }

    /// All that has not ended ends now, and nothing is owed any more.
    pub fn flush(&mut self) {
        for entry in &mut self.queue {
            match entry.progress {
                Progress::Done(_) => {}
                Progress::Sent { end, .. } if end <= self.released => {}
                _ => entry.progress = Progress::Done(Status::Flushed),
            }
        }
        self.owed.clear();
        self.sent = self.queue.len();
        self.waiting = 0;
        self.turn = None;
        self.empty_rtr = false;
        self.keepalive = false;
    }

    /// The peer is to be sent something, whatever it is.
    pub fn keep_alive(&mut self) {
        self.keepalive = true;
    }

    /// Whether frames were given out since the last call, keepalives apart.
    pub const fn take_spoken(&mut self) -> bool {
        core::mem::replace(&mut self.spoken, false)
    }
}

const fn is_send(request: &Request) -> bool {
    matches!(
        request.operation,
        Operation::Send | Operation::SendInvalidate(_)
    )
}

const fn writes_to(request: &Request, place: Tagged) -> bool {
    match request.operation {
        Operation::Write(remote) | Operation::WriteImmediate(remote, _) => {
            let offset = place.offset.wrapping_sub(remote.address);
            remote.rkey == place.stag && offset < request.length as u64
        }
        _ => false,
    }
}

/// What names a request to the peer where it has to be named: the low bits of its number, which
/// differ from those of any other that is open.
const fn tag(request: &Request) -> u32 {
    request.seq as u32
}

impl Sender {
    /// The next frame, if there is one. `has_received`: a frame of the peer's has come.
    pub fn next_frame(&mut self, has_received: bool) -> Option<Frame> {
        if core::mem::take(&mut self.empty_rtr) {
            self.spoken = true;
            return Some(Frame::empty(self.crc));
        }
        // A responder's first frame comes after the initiator's (RFC 5044 §7.1.2).
        if self.waits && !has_received {
            return None;
        }
        let turn = match self.turn {
            Some(turn) => turn,
            None if core::mem::take(&mut self.keepalive) => {
                let header = Header {
                    last: true,
                    kind: Kind::Write(Tagged {
                        stag: NOWHERE.rkey,
                        offset: NOWHERE.address,
                    }),
                };
                return Frame::new(&header, &[], Payload::None, self.crc);
            }
            None => self.choose()?,
        };
        self.spoken = true;
        let frame = match turn {
            Turn::Request => self.request_frame()?,
            Turn::Response(done) => self.response_frame(done)?,
        };
        Some(frame)
    }

    /// Which message is next: they take turns where there are both.
    fn choose(&self) -> Option<Turn> {
        let response = !self.owed.is_empty();
        let request = self.may_begin();
        if response && (self.response_next || !request) {
            Some(Turn::Response(0))
        } else {
            request.then_some(Turn::Request)
        }
    }

    fn response_frame(&mut self, done: u32) -> Option<Frame> {
        let (frame, last) = match *self.owed.front()? {
            Owed::Read(request) => {
                let length = piece(self.mulpdu, TAGGED_BYTES, request.length - done);
                let last = done + length == request.length;
                let header = Header {
                    last,
                    kind: Kind::ReadResponse(Tagged {
                        stag: request.sink_stag,
                        offset: request.sink_offset.wrapping_add(u64::from(done)),
                    }),
                };
                let payload = match length {
                    0 => Payload::None,
                    _ => Payload::Region {
                        remote: Remote {
                            address: request.source_offset.wrapping_add(u64::from(done)),
                            rkey: request.source_stag,
                        },
                        length,
                    },
                };
                (Frame::new(&header, &[], payload, self.crc)?, last)
            }
            Owed::Atomic(response) => {
                let header = Header {
                    last: true,
                    kind: Kind::AtomicResponse(Untagged {
                        msn: self.atomic_msn,
                        offset: 0,
                    }),
                };
                self.atomic_msn = self.atomic_msn.wrapping_add(1);
                let value = response.emit();
                (Frame::new(&header, &value, Payload::None, self.crc)?, true)
            }
        };
        self.turn = if last {
            self.owed.pop_front();
            self.response_next = false;
            None
        } else {
            Some(Turn::Response(done + frame.payload.length()))
        };
        Some(frame)
    }

    fn request_frame(&mut self) -> Option<Frame> {
        let entry = self.queue.get_mut(self.sent)?;
        let request = entry.request;
        let done = match entry.progress {
            Progress::Sending(done) => done,
            _ => 0,
        };
        let send = Untagged {
            msn: self.send_msn,
            offset: done,
        };
        let ask = Untagged {
            msn: self.read_msn,
            offset: 0,
        };
        let waiting = Progress::Waiting {
            msn: self.read_msn,
            came: 0,
        };
        let (kind, control) = match request.operation {
            Operation::WriteImmediate(_, data) if entry.progress == Progress::Immediate => {
                let kind = Kind::Immediate {
                    place: Untagged { offset: 0, ..send },
                    solicited: request.solicited,
                };
                let [a, b, c, d] = data.0;
                (kind, Control::Immediate([a, b, c, d, 0, 0, 0, 0]))
            }
            Operation::Write(remote) | Operation::WriteImmediate(remote, _) => {
                let kind = Kind::Write(Tagged {
                    stag: remote.rkey,
                    // A range that wraps is the peer's to refuse.
                    offset: remote.address.wrapping_add(u64::from(done)),
                });
                (kind, Control::None)
            }
            Operation::Send | Operation::SendImmediate(_) | Operation::SendInvalidate(_) => {
                let kind = Kind::Send {
                    place: send,
                    solicited: request.solicited,
                    invalidate: match request.operation {
                        Operation::SendInvalidate(stag) => Some(stag),
                        _ => None,
                    },
                };
                (kind, Control::None)
            }
            Operation::Read(remote) => (
                Kind::ReadRequest(ask),
                Control::Read(ReadRequest {
                    sink_stag: tag(&request),
                    sink_offset: 0,
                    length: request.length,
                    source_stag: remote.rkey,
                    source_offset: remote.address,
                }),
            ),
            Operation::CompareSwap {
                remote,
                compare,
                swap,
            } => {
                let operation = Op::CompareSwap {
                    swap,
                    mask: u64::MAX,
                    compare,
                    compare_mask: u64::MAX,
                };
                (
                    Kind::AtomicRequest(ask),
                    atomic(&request, remote, operation),
                )
            }
            Operation::FetchAdd { remote, add } => {
                let operation = Op::FetchAdd { add, mask: 0 };
                (
                    Kind::AtomicRequest(ask),
                    atomic(&request, remote, operation),
                )
            }
        };
        let payload = matches!(control, Control::None);
        let header_bytes = Header { last: true, kind }.bytes();
        let length = match payload {
            true => piece(self.mulpdu, header_bytes, request.length - done),
            false => 0,
        };
        let last = !payload || done + length == request.length;
        let header = Header { last, kind };
        let carried = match length {
            0 => Payload::None,
            _ => Payload::Request {
                seq: request.seq,
                offset: done,
                length,
            },
        };
        let frame = match control {
            Control::None => Frame::new(&header, &[], carried, self.crc),
            Control::Immediate(bytes) => Frame::new(&header, &bytes, carried, self.crc),
            Control::Read(read) => Frame::new(&header, &read.emit(), carried, self.crc),
            Control::Atomic(atomic) => Frame::new(&header, &atomic.emit(), carried, self.crc),
        }?;
        let end = self.end + frame.bytes() as u64;
        entry.progress = match request.operation {
            _ if !last => Progress::Sending(done + length),
            _ if request.operation.has_response_data() => waiting,
            Operation::WriteImmediate(..) if payload => Progress::Immediate,
            _ => Progress::Sent {
                end,
                msn: match kind.untagged() {
                    Some((_, place)) => place.msn,
                    None => 0, // Messages are counted from 1.
                },
            },
        };
        let over = !matches!(entry.progress, Progress::Sending(_) | Progress::Immediate);
        if last {
            match kind {
                Kind::Send { .. } | Kind::Immediate { .. } => {
                    self.send_msn = self.send_msn.wrapping_add(1);
                }
                Kind::ReadRequest(_) | Kind::AtomicRequest(_) => {
                    self.read_msn = self.read_msn.wrapping_add(1);
                    self.waiting += 1;
                }
                _ => {}
            }
        }
        if over {
            self.sent += 1;
            self.turn = None;
            self.response_next = true;
        } else {
            self.turn = Some(Turn::Request);
        }
        Some(frame)
    }

    /// Whether the next request may be sent: READs and atomics only while fewer than ORD wait.
    fn may_begin(&self) -> bool {
        self.queue.get(self.sent).is_some_and(|entry| {
            !entry.request.operation.has_response_data() || self.waiting < self.ord
        })
    }
}

/// What lies in a head behind the header.
enum Control {
    None,
    Immediate([u8; IMMEDIATE_BYTES]),
    Read(ReadRequest),
    Atomic(AtomicRequest),
}

const fn atomic(request: &Request, remote: Remote, operation: Op) -> Control {
    Control::Atomic(AtomicRequest {
        id: tag(request),
        stag: remote.rkey,
        offset: remote.address,
        operation,
    })
}

/// Bytes of the next segment of a message of which so many are left.
fn piece(mulpdu: usize, header: usize, left: u32) -> u32 {
    // MULPDU is at least 128, and fits.
    left.min(mulpdu.saturating_sub(header) as u32)
}

// MULPDU has room for more than a header.
const _: () = assert!(sluice_wire::iwarp::fpdu::MULPDU_BYTES_MIN > UNTAGGED_BYTES);
