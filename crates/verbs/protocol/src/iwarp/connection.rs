//! One end of a connection, from the end of MPA's start on.

use core::time::Duration;

use sluice_wire::iwarp::terminate::{Culprit, Rdmap, UntaggedError};
use sluice_wire::iwarp::{Cause, Kind, Segment, Terminate, fpdu};

use super::counters::Counters;
use super::frame::{Frame, Payload, terminate};
use super::keepalive::Keepalive;
use super::memory::{Direct, Memory, Refusal};
use super::receive::{Fault, Intake, Receiver};
use super::send::Sender;
use super::startup::Settings;
use crate::request::{Completion, PostError, Request, Status};
use crate::time::{Instant, earlier};

/// What an end is like.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// What both ends have agreed on.
    pub settings: Settings,
    /// Bytes of a ULPDU at most: [`fpdu::mulpdu`] of what a segment of TCP carries, or more where
    /// [`Settings::long_frames`] allows that.
    pub mulpdu: usize,
    /// Requests at a time.
    pub depth: usize,
    /// How long a SEND waits for a receive. Zero: not at all, as RFC 5041 has it.
    pub receive_wait: Duration,
    /// How long the peer has to close the stream after it was given up, until it is reset.
    pub close_wait: Duration,
    /// After how long a peer that does not answer is sent a WRITE of nothing. Zero: never.
    pub keepalive: Duration,
}

/// Why a connection is over before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// This end gave it up, and says so to the peer.
    Own(Cause),
    /// The peer did, and said why.
    Peer(Terminate),
    /// TCP's connection ended in the middle of something, or was reset.
    Lost,
}

/// What the driver is to do with TCP's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Go on.
    Open,
    /// Close our direction, when all that [`Connection::transmit`] gave is written.
    Finish,
    /// Reset it.
    Reset,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    receiver: Receiver,
    sender: Sender,
    counters: Counters,
    keepalive: Keepalive,
    failure: Option<Failure>,
    /// To be sent, as the last frame.
    terminate: Option<Terminate>,
    /// When the stream is reset.
    close_at: Option<Instant>,
    /// Until when a message waits for a receive, and its segment.
    stalled: Option<(Instant, Option<Culprit>)>,
    reset: bool,
    closing: bool,
    peer_closed: bool,
    /// [`Stream::Finish`] was said.
    finished: bool,
}

impl Connection {
    /// Right after MPA's start.
    pub fn new(config: &Config) -> Self {
        let mulpdu = config
            .mulpdu
            .clamp(fpdu::MULPDU_BYTES_MIN, fpdu::ULPDU_BYTES_MAX);
        Self {
            config: *config,
            receiver: Receiver::new(&config.settings),
            sender: Sender::new(&config.settings, mulpdu, config.depth),
            counters: Counters::default(),
            keepalive: Keepalive::new(config.keepalive),
            failure: None,
            terminate: None,
            close_at: None,
            stalled: None,
            reset: false,
            closing: false,
            peer_closed: false,
            finished: false,
        }
    }

    /// Takes a request.
    pub fn post(&mut self, request: Request) -> Result<(), PostError> {
        if self.failure.is_some() || self.closing || self.peer_closed {
            return Err(PostError::Failed);
        }
        self.sender.post(request)
    }

    /// Bytes from the front of the stream; how many were taken. The others are to be given again,
    /// with those that follow them: where CRCs are off at least the head of a frame is needed, else
    /// the whole frame, [`fpdu::BYTES_MAX`] bytes at most. When the stream has failed all bytes are
    /// taken, and nothing is done with them.
    pub fn receive(&mut self, now: Instant, stream: &[u8], memory: &mut impl Memory) -> usize {
        let mut used = 0;
        // Each turn takes bytes, or is the last.
        while self.failure.is_none() {
            let rest = stream.get(used..).unwrap_or_default();
            match self.intake(memory).step(rest) {
                Ok(0) => return used,
                Ok(bytes) => {
                    used += bytes;
                    self.stalled = None;
                    self.keepalive.heard();
                    if self.finished && !self.sender.owed.is_empty() {
                        // What our direction is closed for cannot be answered, nor refused.
                        self.lost(memory);
                    }
                }
                Err(Fault::NotReady(culprit)) => {
                    if self.stall(now, culprit, memory) {
                        return used;
                    }
                }
                Err(Fault::Wrong(cause, culprit)) => self.give_up(now, cause, culprit, memory),
                Err(Fault::Over(terminate)) => {
                    self.close_at = Some(now.after(self.config.close_wait));
                    self.fail(Failure::Peer(terminate), memory);
                }
            }
        }
        stream.len()
    }

    fn intake<'a, M>(&'a mut self, memory: &'a mut M) -> Intake<'a, M> {
        Intake {
            receiver: &mut self.receiver,
            sender: &mut self.sender,
            counters: &mut self.counters,
            memory,
        }
    }

    /// Where the next bytes of the stream may be read to, if they are payload of a frame whose
    /// head has come, and CRCs are off.
    pub fn expected(&self) -> Option<Direct> {
        self.receiver.expected()
    }

    /// So many of the bytes that [`Connection::expected`] named are there.
    pub fn placed(&mut self, bytes: usize) {
        if bytes > 0 {
            self.keepalive.heard();
        }
        let bytes = self.receiver.placed(bytes);
        self.counters.bytes_direct += bytes as u64;
    }

    /// What [`Connection::expected`] named is gone.
    pub fn refuse_placement(&mut self, now: Instant, refusal: Refusal, memory: &mut impl Memory) {
        if let Some(Direct { place, .. }) = self.expected() {
            let culprit = self.receiver.culprit();
            let cause = self.intake(memory).refused(place, refusal);
            self.give_up(now, cause, culprit, memory);
        }
    }

    /// A message is waiting for a receive.
    pub const fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    /// The next frame. It is the caller's to write it wholly, or to say
    /// [`Connection::fail_gather`] before the next call.
    pub fn transmit(&mut self) -> Option<Frame> {
        let frame = if self.finished {
            return None;
        } else if self.failure.is_some() {
            let message = self.terminate.take()?;
            terminate(&message, self.config.settings.crc)?
        } else {
            self.sender.next_frame(self.receiver.has_received())?
        };
        self.counters.frames_sent += 1;
        Some(self.sender.count(frame))
    }

    /// The payload of the frame that was given out last cannot be had; nothing of the frame is
    /// written. What is left of the connection is to say so.
    pub fn fail_gather(
        &mut self,
        now: Instant,
        frame: &Frame,
        refusal: Refusal,
        memory: &mut impl Memory,
    ) {
        self.sender.uncount(frame);
        self.counters.frames_sent = self.counters.frames_sent.saturating_sub(1);
        let cause = match frame.payload {
            Payload::Request { seq, .. } => {
                self.sender.fail(seq, Status::LocalProtection);
                Cause::RdmapCatastrophic
            }
            Payload::Region { .. } | Payload::None => refusal.at_request(),
        };
        self.give_up(now, cause, None, memory);
    }

    /// What [`Connection::transmit`] gave is written.
    pub fn sent(&mut self, now: Instant) {
        if self.sender.take_spoken() {
            self.keepalive.sent(now);
        }
    }

    /// The memory of what was written up to that place of the stream is needed no more
    /// ([`Frame::end`]).
    pub fn released(&mut self, end: u64) {
        self.sender.released(end);
    }

    /// What has ended, in the order of posting.
    pub fn completion(&mut self) -> Option<Completion> {
        self.sender.completion()
    }

    /// No more requests: when all are done, our direction is closed.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// The peer closed its direction; no byte comes any more, and all that came was given to
    /// [`Connection::receive`]. Whether that was in order: between frames, and with no request open
    /// that needs an answer.
    pub fn peer_closed(&mut self, memory: &mut impl Memory) -> bool {
        if self.failure.is_some() {
            return true;
        }
        let orderly = self.receiver.is_between() && !self.is_stalled() && !self.sender.awaits();
        if orderly {
            self.peer_closed = true;
            self.sender.flush();
            self.receiver.abort(memory);
        } else {
            self.fail(Failure::Lost, memory);
        }
        orderly
    }

    /// TCP's connection broke.
    pub fn lost(&mut self, memory: &mut impl Memory) {
        self.reset = true;
        self.terminate = None;
        self.fail(Failure::Lost, memory);
    }

    /// Gives the connection up because the program wants that: all requests end, the peer is told,
    /// and the stream is closed.
    pub fn abort(&mut self, now: Instant, memory: &mut impl Memory) {
        let cause = Cause::Operation(Rdmap::CatastrophicStream);
        self.give_up(now, cause, None, memory);
    }

    /// What is to become of TCP's connection. After [`Stream::Finish`] nothing is sent any more.
    pub fn stream(&mut self) -> Stream {
        let ends = match self.failure {
            Some(_) => self.terminate.is_none(),
            None => self.peer_closed || self.closing && self.sender.is_idle(),
        };
        self.finished |= ends;
        if self.finished {
            self.keepalive.stop();
        }
        if self.reset {
            Stream::Reset
        } else if self.finished {
            Stream::Finish
        } else {
            Stream::Open
        }
    }

    /// When [`Connection::expire`] is to be called.
    pub fn deadline(&self) -> Option<Instant> {
        let stalled = self.stalled.as_ref().map(|(until, _)| *until);
        earlier(earlier(stalled, self.close_at), self.keepalive.due())
    }

    /// The deadline has come, or not yet.
    pub fn expire(&mut self, now: Instant, memory: &mut impl Memory) {
        if let Some((until, culprit)) = self.stalled
            && until <= now
        {
            self.give_up(now, NO_RECEIVE, culprit, memory);
        }
        if self.keepalive.expire(now) {
            self.sender.keep_alive();
        }
        if self.close_at.is_some_and(|at| at <= now) {
            self.close_at = None;
            self.terminate = None;
            self.reset = true;
        }
    }

    /// Why the connection is over before its time.
    pub const fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Counts since the beginning.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether a message may go on waiting.
    fn stall(&mut self, now: Instant, culprit: Option<Culprit>, memory: &mut impl Memory) -> bool {
        if self.config.receive_wait.is_zero() {
            self.give_up(now, NO_RECEIVE, culprit, memory);
            return false;
        }
        if self.stalled.is_none() {
            self.counters.stalls += 1;
            self.stalled = Some((now.after(self.config.receive_wait), culprit));
        }
        true
    }

    fn give_up(
        &mut self,
        now: Instant,
        cause: Cause,
        culprit: Option<Culprit>,
        memory: &mut impl Memory,
    ) {
        if self.failure.is_none() {
            self.terminate = Some(Terminate { cause, culprit });
            self.close_at = Some(now.after(self.config.close_wait));
            self.fail(Failure::Own(cause), memory);
        }
    }

    fn fail(&mut self, failure: Failure, memory: &mut impl Memory) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(failure);
        self.stalled = None;
        self.keepalive.stop();
        if let Failure::Peer(message) = &failure {
            self.blame(message);
        }
        self.sender.flush();
        self.receiver.abort(memory);
    }

    /// The request that the peer gave the stream up for ends with its reason, if it can be told.
    fn blame(&mut self, message: &Terminate) {
        let status = match message.cause {
            Cause::Protection(Rdmap::CannotInvalidate) => Status::RemoteInvalidRequest,
            Cause::Protection(_) | Cause::Tagged(_) => Status::RemoteAccess,
            Cause::Untagged(UntaggedError::NoBuffer) => Status::RnrRetryExceeded,
            Cause::Untagged(_) | Cause::Operation(Rdmap::Opcode | Rdmap::Version) => {
                Status::RemoteInvalidRequest
            }
            Cause::Operation(_) | Cause::RdmapCatastrophic => Status::RemoteOperation,
            _ => return,
        };
        let kind = message
            .culprit
            .as_ref()
            .and_then(|culprit| Segment::parse(culprit.header()).ok())
            .map(|segment| segment.header().kind);
        match kind {
            Some(Kind::ReadRequest(place) | Kind::AtomicRequest(place)) => {
                self.sender.fail_read(Some(place.msn), status);
            }
            Some(Kind::Send { place, .. }) => self.sender.fail_send(place.msn, status),
            Some(Kind::Write(place)) => self.sender.fail_write(place, status),
            // One of those that are done with, or none of ours.
            Some(_) => {}
            None if matches!(message.cause, Cause::Protection(_) | Cause::Operation(_)) => {
                self.sender.fail_read(None, status);
            }
            None => {}
        }
    }
}

const NO_RECEIVE: Cause = Cause::Untagged(UntaggedError::NoBuffer);
