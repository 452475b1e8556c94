//! What comes: frames found in the stream, segments checked, their payload placed, and messages
//! delivered (RFC 5044 §6, RFC 5041 §5 and §7.1, RFC 5040 §5 and §7.2).

use sluice_wire::extended::ImmDt;
use sluice_wire::iwarp::message::{
    AtomicRequest, AtomicResponse, IMMEDIATE_BYTES, Operation as Op, ReadRequest,
};
use sluice_wire::iwarp::segment::UNTAGGED_BYTES;
use sluice_wire::iwarp::terminate::{Culprit, Mpa, Rdmap, TaggedError, UntaggedError};
use sluice_wire::iwarp::{Cause, Header, Kind, Tagged, Terminate, Untagged, fpdu};

use super::counters::Counters;
use super::memory::{Direct, Memory, Place, Refusal, cause_of};
use super::send::{Owed, Sender};
use super::startup::{First, Settings};
use crate::memory::{Access, Atomic, Received, TakeError};
use crate::request::{Remote, Status};

/// Bytes of a message that is no program's, at most: [`Terminate::BYTES_MAX`], and atomics have as
/// many.
const CONTROL_BYTES_MAX: usize = Terminate::BYTES_MAX;

/// Why the stream is not taken further.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// There is no receive for the message of that segment.
    NotReady(Option<Culprit>),
    /// It is wrong.
    Wrong(Cause, Option<Culprit>),
    /// The peer gave it up.
    Over(Terminate),
}

impl Fault {
    /// At that segment, if none is named yet.
    fn at(self, culprit: impl FnOnce() -> Option<Culprit>) -> Self {
        match self {
            Self::NotReady(None) => Self::NotReady(culprit()),
            Self::Wrong(cause, None) => Self::Wrong(cause, culprit()),
            fault => fault,
        }
    }
}

/// The longest value that a program may find whole at the end of a WRITE.
const END_BYTES: usize = size_of::<u64>();

/// A frame whose head has been looked at.
#[derive(Clone, Copy, Debug)]
struct Open {
    header: Header,
    /// Where its payload goes; None where there is no payload.
    place: Option<Place>,
    /// Bytes of the payload, in all and placed.
    length: usize,
    done: usize,
    /// Bytes of pad and CRC that are to come.
    trailer: usize,
}

impl Open {
    /// Bytes of the payload that are to be stored at once, by single stores: programs wait for a WRITE by looking at
    /// its last bytes. What reads from a socket into memory (the kernel) may store them in parts, or twice.
    const fn end(&self) -> usize {
        let is_end = self.header.last && matches!(self.header.kind, Kind::Write(_));
        if is_end { END_BYTES } else { 0 }
    }

    /// What the peer is told of it. All bits of a legal header that count are in it.
    fn culprit(&self) -> Option<Culprit> {
        let mut bytes = [0; UNTAGGED_BYTES];
        let used = self.header.emit(&mut bytes).ok()?;
        let length = u16::try_from(used + self.length).ok()?;
        Culprit::new(bytes.get(..used)?, length)
    }
}

/// A SEND that is under way.
#[derive(Clone, Copy, Debug, Default)]
struct Message {
    /// A receive was taken for it, which takes so many bytes.
    receive: Option<u32>,
    /// Bytes that came.
    done: u32,
}

/// The incoming half.
#[derive(Debug)]
pub(super) struct Receiver {
    crc: bool,
    ird: usize,
    open: Option<Open>,
    message: Message,
    /// Numbers of the next message of each queue (RFC 5041 §4.3).
    send_msn: u32,
    read_msn: u32,
    atomic_msn: u32,
    /// Bytes of the WRITE that ended last, for immediate data right behind it; and of the one that
    /// is under way.
    written: u32,
    writing: u32,
    received: bool,
    /// The peer is an initiator, whose first frame may be empty.
    empty_first: bool,
}

impl Receiver {
    pub fn new(settings: &Settings) -> Self {
        Self {
            crc: settings.crc,
            ird: usize::from(settings.ird),
            open: None,
            message: Message::default(),
            send_msn: 1,
            read_msn: 1,
            atomic_msn: 1,
            written: 0,
            writing: 0,
            received: false,
            empty_first: settings.first == First::Peer,
        }
    }

    /// Whether a frame has come.
    pub const fn has_received(&self) -> bool {
        self.received
    }

    /// Whether the stream is between two frames, and the receiver between two messages.
    pub const fn is_between(&self) -> bool {
        self.open.is_none() && self.message.receive.is_none()
    }

    pub fn expected(&self) -> Option<Direct> {
        let open = self.open.as_ref()?;
        let length = (open.length - open.done).saturating_sub(open.end());
        let place = further(open.place?, open.done);
        (length > 0).then_some(Direct { place, length })
    }

    /// The segment whose payload is being placed.
    pub fn culprit(&self) -> Option<Culprit> {
        self.open.as_ref()?.culprit()
    }

    pub fn placed(&mut self, bytes: usize) -> usize {
        match &mut self.open {
            Some(open) => {
                let bytes = bytes.min(open.length - open.done);
                open.done += bytes;
                bytes
            }
            None => 0,
        }
    }

    /// Nothing more comes.
    pub fn abort(&mut self, memory: &mut impl Memory) {
        self.open = None;
        self.fail_receive(Status::Flushed, memory);
    }

    fn fail_receive(&mut self, status: Status, memory: &mut impl Memory) {
        if core::mem::take(&mut self.message).receive.is_some() {
            memory.complete_receive(&Received {
                status,
                length: 0,
                write: false,
                immediate: None,
                invalidated: None,
                solicited: false,
            });
        }
    }

    /// The receive for the message that is to begin or to go on; how many bytes it takes.
    fn take_receive(&mut self, memory: &mut impl Memory) -> Result<u32, Fault> {
        if let Some(bytes) = self.message.receive {
            return Ok(bytes);
        }
        let bytes = memory.take_receive().map_err(|error| match error {
            TakeError::Empty => Fault::NotReady(None),
            TakeError::Bad => Fault::Wrong(Cause::DdpCatastrophic, None),
        })?;
        self.message.receive = Some(bytes);
        Ok(bytes)
    }
}

/// Further on in the same place.
fn further(place: Place, bytes: usize) -> Place {
    let bytes = bytes as u32; // At most a ULPDU's.
    match place {
        Place::Region(remote) => Place::Region(Remote {
            address: remote.address.wrapping_add(u64::from(bytes)),
            ..remote
        }),
        Place::Receive { offset } => Place::Receive {
            offset: offset.saturating_add(bytes),
        },
        Place::Request { seq, offset } => Place::Request {
            seq,
            offset: offset.saturating_add(bytes),
        },
    }
}

const fn untagged(error: UntaggedError) -> Cause {
    Cause::Untagged(error)
}

/// The incoming half at work on what came, with what that may concern: the requests that are answered
/// by it, and the memory that it goes to.
pub(super) struct Intake<'a, M> {
    pub receiver: &'a mut Receiver,
    pub sender: &'a mut Sender,
    pub counters: &'a mut Counters,
    pub memory: &'a mut M,
}

impl<M: Memory> Intake<'_, M> {
    /// Takes what it can from the front of the stream; 0 if more is needed.
    pub fn step(&mut self, stream: &[u8]) -> Result<usize, Fault> {
        let Some(open) = self.receiver.open else {
            return self.begin(stream);
        };
        let left = open.length - open.done;
        if left > 0 {
            let bytes = match stream.len() {
                len if len < left => len.min(left.saturating_sub(open.end())),
                _ => left,
            };
            let piece = stream.get(..bytes).unwrap_or_default();
            if let Some(place) = open.place
                && bytes > 0
            {
                let place = further(place, open.done);
                self.put(place, piece)
                    .map_err(|fault| fault.at(|| open.culprit()))?;
            }
            self.counters.bytes_copied += bytes as u64;
            self.receiver.placed(bytes);
            return Ok(bytes);
        }
        // CRCs are off: what is in the trailer does not count.
        let bytes = open.trailer.min(stream.len());
        let trailer = open.trailer - bytes;
        if trailer > 0 {
            self.receiver.open = Some(Open { trailer, ..open });
        } else {
            self.receiver.open = None;
            self.deliver(&open)
                .map_err(|fault| fault.at(|| open.culprit()))?;
        }
        Ok(bytes)
    }

    /// A frame begins here.
    fn begin(&mut self, stream: &[u8]) -> Result<usize, Fault> {
        let Some(length) = fpdu::length(stream) else {
            return Ok(0);
        };
        if self.receiver.crc {
            let Some((ulpdu, used)) =
                fpdu::parse(stream, true).map_err(|_| Fault::Wrong(Cause::Mpa(Mpa::Crc), None))?
            else {
                return Ok(0);
            };
            if let Some(open) = self.look(ulpdu, length)? {
                let payload = ulpdu.get(length - open.length..).unwrap_or_default();
                if let Some(place) = open.place
                    && !payload.is_empty()
                {
                    self.put(place, payload)
                        .map_err(|fault| fault.at(|| open.culprit()))?;
                    self.counters.bytes_copied += payload.len() as u64;
                }
                self.deliver(&open)
                    .map_err(|fault| fault.at(|| open.culprit()))?;
            }
            return Ok(used);
        }
        let ulpdu = stream.get(fpdu::LENGTH_BYTES..).unwrap_or_default();
        let front = ulpdu.get(..length.min(ulpdu.len())).unwrap_or_default();
        // The head of a segment; a message of control wholly, with its pad and CRC.
        let needed = match front.get(..2) {
            _ if length == 0 => fpdu::bytes(0) - fpdu::LENGTH_BYTES,
            Some([ddp, rdmap]) if carries_payload(*ddp, *rdmap) => {
                Header::bytes_of(*ddp).min(length)
            }
            Some(_) => {
                let length = length.min(UNTAGGED_BYTES + CONTROL_BYTES_MAX);
                fpdu::bytes(length) - fpdu::LENGTH_BYTES
            }
            None => length.clamp(1, 2),
        };
        if ulpdu.len() < needed || length >= 2 && front.len() < 2 {
            return Ok(0);
        }
        match self.look(front, length)? {
            Some(open) if open.place.is_some() => {
                let used = fpdu::LENGTH_BYTES + length - open.length;
                self.receiver.open = Some(open);
                Ok(used)
            }
            Some(open) => {
                self.deliver(&open)?;
                Ok(fpdu::bytes(length))
            }
            None => Ok(fpdu::bytes(length)),
        }
    }

    /// Looks at a segment of so many bytes, of which as many are there as have to be. None if there
    /// is nothing in it.
    fn look(&mut self, front: &[u8], length: usize) -> Result<Option<Open>, Fault> {
        if length == 0 && self.receiver.empty_first && !self.receiver.received {
            self.receiver.received = true;
            self.counters.frames_received += 1;
            return Ok(None);
        }
        // Fits, since it is a ULPDU's.
        let blame = |fault: Fault| fault.at(|| Culprit::new(front, length as u16));
        let (header, behind) =
            Header::parse(front).map_err(|error| blame(wrong(cause_of(error))))?;
        let payload = length - header.bytes();
        let place = self.place(&header, behind, payload).map_err(blame)?;
        Ok(Some(Open {
            header,
            place,
            length: if place.is_some() { payload } else { 0 },
            done: 0,
            trailer: fpdu::pad(length) + fpdu::CRC_BYTES,
        }))
    }

    /// Where the payload of a segment goes; what is no program's is carried out, and goes nowhere.
    fn place(
        &mut self,
        header: &Header,
        behind: &[u8],
        payload: usize,
    ) -> Result<Option<Place>, Fault> {
        match header.kind {
            Kind::Write(place) => self.place_write(place, payload),
            Kind::ReadResponse(place) => self.place_response(header.last, place, payload),
            Kind::Send { place, .. } => self.place_send(place, payload),
            Kind::ReadRequest(place) => {
                let message = self.request(header.last, place, behind, payload)?;
                self.read(&ReadRequest::parse(message))?;
                Ok(None)
            }
            Kind::AtomicRequest(place) => {
                let message = self.request(header.last, place, behind, payload)?;
                let request =
                    AtomicRequest::parse(message).map_err(|error| wrong(cause_of(error)))?;
                self.atomic(&request)?;
                Ok(None)
            }
            Kind::AtomicResponse(place) => {
                let expected = &mut self.receiver.atomic_msn;
                let message = whole(header.last, place, *expected, behind, payload)?;
                *expected = expected.wrapping_add(1);
                self.answer(&AtomicResponse::parse(message))?;
                Ok(None)
            }
            Kind::Immediate { place, solicited } => {
                self.immediate(header.last, place, behind, payload, solicited)?;
                Ok(None)
            }
            Kind::Terminate(place) => {
                if place.msn != 1 || place.offset != 0 || !header.last {
                    return Err(wrong(untagged(UntaggedError::MsnRange)));
                }
                let message = behind.get(..payload).unwrap_or(behind);
                match Terminate::parse(message) {
                    Ok(message) => Err(Fault::Over(message)),
                    Err(error) => Err(wrong(cause_of(error))),
                }
            }
        }
    }

    fn place_write(&mut self, place: Tagged, payload: usize) -> Result<Option<Place>, Fault> {
        let remote = Remote {
            address: place.offset,
            rkey: place.stag,
        };
        // No key is looked at where nothing is written (RFC 5040 §5.1).
        if payload > 0 {
            if place.offset.checked_add(payload as u64 - 1).is_none() {
                return Err(wrong(Cause::Tagged(TaggedError::Wrap)));
            }
            self.memory
                .check(Access::Write, remote, payload as u32) // At most a ULPDU's.
                .map_err(|refusal| wrong(refusal.at_write()))?;
        }
        Ok(Some(Place::Region(remote)))
    }

    fn place_response(
        &mut self,
        last: bool,
        place: Tagged,
        payload: usize,
    ) -> Result<Option<Place>, Fault> {
        let Some(read) = self.sender.expected_read() else {
            return Err(wrong(Cause::Operation(Rdmap::Opcode)));
        };
        if place.stag != read.stag {
            return Err(wrong(Cause::Tagged(TaggedError::InvalidStag)));
        }
        let left = u64::from(read.left);
        let fits = payload as u64 <= left && last == (payload as u64 == left);
        // An empty piece that is not the last would never come to an end.
        if place.offset != u64::from(read.done) || !fits || payload == 0 && !last {
            return Err(wrong(Cause::Tagged(TaggedError::Bounds)));
        }
        Ok(Some(Place::Request {
            seq: read.seq,
            offset: read.done,
        }))
    }

    fn place_send(&mut self, place: Untagged, payload: usize) -> Result<Option<Place>, Fault> {
        let receiver = &mut self.receiver;
        if place.msn != receiver.send_msn {
            return Err(wrong(untagged(UntaggedError::MsnRange)));
        }
        if place.offset != receiver.message.done {
            return Err(wrong(untagged(UntaggedError::Offset)));
        }
        let bytes = receiver.take_receive(self.memory)?;
        let end = u64::from(place.offset) + payload as u64;
        if end > u64::from(bytes) {
            receiver.fail_receive(Status::LocalLength, self.memory);
            return Err(wrong(untagged(UntaggedError::TooLong)));
        }
        Ok(Some(Place::Receive {
            offset: place.offset,
        }))
    }

    /// A message of the queue of requests for data, which there may be one more of.
    fn request<'a, const N: usize>(
        &mut self,
        last: bool,
        place: Untagged,
        behind: &'a [u8],
        payload: usize,
    ) -> Result<&'a [u8; N], Fault> {
        let receiver = &mut self.receiver;
        let message = whole(last, place, receiver.read_msn, behind, payload)?;
        if self.sender.owed.len() >= receiver.ird {
            return Err(wrong(untagged(UntaggedError::NoBuffer)));
        }
        receiver.read_msn = receiver.read_msn.wrapping_add(1);
        Ok(message)
    }

    fn read(&mut self, request: &ReadRequest) -> Result<(), Fault> {
        if request.length > 0 {
            let remote = Remote {
                address: request.source_offset,
                rkey: request.source_stag,
            };
            let end = remote.address.checked_add(u64::from(request.length) - 1);
            // The response's own offsets count on from what the request says.
            let sink = request
                .sink_offset
                .checked_add(u64::from(request.length) - 1);
            if end.is_none() || sink.is_none() {
                return Err(wrong(Cause::Protection(Rdmap::Wrap)));
            }
            self.memory
                .check(Access::Read, remote, request.length)
                .map_err(|refusal| wrong(refusal.at_request()))?;
        }
        self.sender.owed.push_back(Owed::Read(*request));
        Ok(())
    }

    fn atomic(&mut self, request: &AtomicRequest) -> Result<(), Fault> {
        let atomic = match request.operation {
            // One field of 64 bits, be its end marked or not.
            Op::FetchAdd { add, mask } if mask << 1 == 0 => Atomic::FetchAdd(add),
            Op::CompareSwap {
                swap,
                mask: u64::MAX,
                compare,
                compare_mask: u64::MAX,
            } => Atomic::CompareSwap { compare, swap },
            // What verbs programs have no call for.
            _ => return Err(wrong(Cause::Operation(Rdmap::Unspecified))),
        };
        let remote = Remote {
            address: request.offset,
            rkey: request.stag,
        };
        let original = self
            .memory
            .atomic(remote, atomic)
            .map_err(|refusal| wrong(refusal.at_request()))?;
        let response = AtomicResponse {
            id: request.id,
            original,
        };
        self.sender.owed.push_back(Owed::Atomic(response));
        Ok(())
    }

    fn answer(&mut self, response: &AtomicResponse) -> Result<(), Fault> {
        let Some(seq) = self.sender.expected_atomic(response.id) else {
            return Err(wrong(Cause::Operation(Rdmap::Opcode)));
        };
        let place = Place::Request { seq, offset: 0 };
        self.put(place, &response.original.to_ne_bytes())?;
        self.sender.answered();
        Ok(())
    }

    fn immediate(
        &mut self,
        last: bool,
        place: Untagged,
        behind: &[u8],
        payload: usize,
        solicited: bool,
    ) -> Result<(), Fault> {
        let receiver = &mut self.receiver;
        let message: &[u8; IMMEDIATE_BYTES] =
            whole(last, place, receiver.send_msn, behind, payload)?;
        if receiver.message.done > 0 {
            return Err(wrong(untagged(UntaggedError::Offset)));
        }
        receiver.take_receive(self.memory)?;
        receiver.message = Message::default();
        receiver.send_msn = receiver.send_msn.wrapping_add(1);
        let [a, b, c, d, ..] = *message;
        self.memory.complete_receive(&Received {
            status: Status::Success,
            length: receiver.written,
            write: true,
            immediate: Some(ImmDt([a, b, c, d])),
            invalidated: None,
            solicited,
        });
        Ok(())
    }

    /// All of a frame is there and placed.
    fn deliver(&mut self, open: &Open) -> Result<(), Fault> {
        self.counters.frames_received += 1;
        let receiver = &mut self.receiver;
        receiver.received = true;
        let last = open.header.last;
        let bytes = open.length as u32; // At most a ULPDU's.
        if !matches!(open.header.kind, Kind::Write(_)) {
            receiver.written = 0;
        }
        match open.header.kind {
            Kind::Write(_) => {
                receiver.writing = receiver.writing.saturating_add(bytes);
                if last {
                    receiver.written = core::mem::take(&mut receiver.writing);
                }
            }
            Kind::ReadResponse(_) => self.sender.read_came(bytes),
            Kind::Send {
                solicited,
                invalidate,
                ..
            } => {
                receiver.message.done += bytes; // At most what the receive takes.
                if last {
                    return self.deliver_send(solicited, invalidate);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn deliver_send(&mut self, solicited: bool, invalidate: Option<u32>) -> Result<(), Fault> {
        if let Some(stag) = invalidate {
            self.memory
                .invalidate(stag)
                .map_err(|refusal| wrong(refusal.at_request()))?;
        }
        let receiver = &mut self.receiver;
        let length = core::mem::take(&mut receiver.message).done;
        receiver.send_msn = receiver.send_msn.wrapping_add(1);
        self.memory.complete_receive(&Received {
            status: Status::Success,
            length,
            write: false,
            immediate: None,
            invalidated: invalidate,
            solicited,
        });
        Ok(())
    }

    fn put(&mut self, place: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.memory
            .put(place, bytes)
            .map_err(|refusal| wrong(self.refused(place, refusal)))
    }

    /// Bytes could not go to their place, though that was allowed. What the peer is told.
    pub(super) fn refused(&mut self, place: Place, refusal: Refusal) -> Cause {
        match place {
            Place::Region(_) => refusal.at_write(),
            Place::Receive { .. } => {
                self.receiver
                    .fail_receive(Status::LocalProtection, self.memory);
                Cause::DdpCatastrophic
            }
            Place::Request { seq, .. } => {
                self.sender.fail(seq, Status::LocalProtection);
                Cause::RdmapCatastrophic
            }
        }
    }
}

/// Whether segments of that head have payload that goes somewhere by itself.
const fn carries_payload(ddp: u8, rdmap: u8) -> bool {
    ddp & 0x80 != 0 || matches!(rdmap & 0xf, 0x3..=0x6)
}

const fn wrong(cause: Cause) -> Fault {
    Fault::Wrong(cause, None)
}

/// The one segment of a message of a known length, which has to have that number.
fn whole<const N: usize>(
    last: bool,
    place: Untagged,
    msn: u32,
    behind: &[u8],
    payload: usize,
) -> Result<&[u8; N], Fault> {
    if place.msn != msn {
        return Err(wrong(untagged(UntaggedError::MsnRange)));
    }
    if place.offset != 0 {
        return Err(wrong(untagged(UntaggedError::Offset)));
    }
    if payload > N {
        return Err(wrong(untagged(UntaggedError::TooLong)));
    }
    if payload < N || !last {
        return Err(wrong(Cause::DdpCatastrophic));
    }
    behind.first_chunk().ok_or(wrong(Cause::DdpCatastrophic))
}
