//! Streams until a queue pair has them: TCP's connection is made or taken, then the ends agree by
//! MPA's frames (RFC 5044 §7.1, RFC 6581), and the connection manager is told.
//!
//! All sockets here are worked on by the transport's first thread.

use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sluice_protocol::iwarp::{
    self, Arrived, Obstacle, Settings, Wishes, accept, acceptable, arrived, established,
};
use sluice_sys::errno::Errno;
use sluice_trace::Direction;
use sluice_verbs::error::{Error, Result};
use sluice_verbs::iw_cm::{ConnectionParameters, Event, EventSink};
use sluice_verbs::locks::{lock, try_lock};
use sluice_wire::iwarp::{Enhanced, Revision, Role, Startup};

use crate::part::Part;
use crate::socket::{Interest, Polls, Socket, descriptors_max, would_block};
use crate::trace::Trace;

/// Connections that a listener lets wait in the kernel.
const BACKLOG: i32 = 1024;
/// How long a peer that has connected may take to say what it wants, if nothing else is said.
const REQUEST_WAIT: Duration = Duration::from_secs(10);
/// How long a socket whose queue pair has gone waits for the peer's end.
const LINGER_WAIT: Duration = Duration::from_secs(2);
/// Connections that have not said what they want, at a time. The oldest gives way to the next one: who is honest says it
/// with the first bytes.
const STRANGERS_MAX: usize = 512;
/// The part of the limit of open files that they may have: the program needs the rest.
const STRANGERS_PART: usize = 4;
/// Connections that are taken before others have their turn.
const ACCEPTS_MAX: usize = 64;
/// For how long a listener is not looked at that cannot take a connection: the connection stays, and would make it
/// ready again at once.
const REST: Duration = Duration::from_millis(100);
/// READs and atomics that a queue pair can answer at a time, whatever the program asks for.
pub const IRD_MAX: u16 = 128;
/// Numbers have 24 bits, as those of queue pairs.
const NUMBER_MASK: u32 = 0x00ff_ffff;

const INPUT: Interest = Interest {
    input: true,
    output: false,
    end: false,
};
const OUTPUT: Interest = Interest {
    input: false,
    output: true,
    end: false,
};
const END: Interest = Interest {
    input: false,
    output: false,
    end: true,
};

/// How far a stream is.
enum Phase {
    /// The kernel is connecting; then this is sent.
    Connecting { request: Vec<u8>, wishes: Wishes },
    /// So much of the peer's answer has come.
    AwaitsReply { wishes: Wishes, came: Vec<u8> },
    /// So much of the peer's request, for that listener.
    AwaitsRequest { listener: u32, came: Vec<u8> },
    /// The connection manager has the request; these are its bytes and those behind.
    Requested { request: Vec<u8>, rest: Vec<u8> },
    /// Both ends agree, and no queue pair has come for it.
    Ready { settings: Settings, rest: Vec<u8> },
    /// A queue pair has it.
    Bound,
    /// Nobody has it any more; what comes is thrown away until the peer closes.
    Lingers,
}

struct Entry {
    socket: Arc<Socket>,
    trace: Trace,
    phase: Phase,
    /// Who waits for it to be accepted, or has it.
    part: Option<Arc<Part>>,
    deadline: Option<Instant>,
    /// That is over, and what has come by then is still to be taken.
    is_late: bool,
    /// Nobody wants to hear of it.
    forgotten: bool,
}

/// A socket that takes connections.
struct Listener {
    socket: Socket,
    /// It could take none, for want of descriptors or memory, and is not looked at before.
    rests_until: Option<Instant>,
}

/// A queue pair's part of what was made here.
pub struct Made {
    pub part: Arc<Part>,
    socket: Arc<Socket>,
    trace: Trace,
    settings: Settings,
    rest: Vec<u8>,
}

impl Made {
    /// Gives it the stream. Without any lock of the manager's.
    pub fn start(self, stream: u32) {
        let carrier = (self.socket, self.trace);
        self.part.start(stream, carrier, self.settings, &self.rest);
    }
}

/// All streams and listeners of a transport.
pub struct Manager {
    streams: Mutex<HashMap<u32, Entry>>,
    listeners: Mutex<HashMap<u32, Listener>>,
    sink: Mutex<Option<Arc<dyn EventSink>>>,
    last: AtomicU32,
    /// How long a peer that has connected may take to say what it wants.
    request_wait: Mutex<Duration>,
    /// CRCs are asked for.
    crc: bool,
}

impl Manager {
    pub fn new(crc: bool) -> Self {
        Self {
            streams: Mutex::default(),
            listeners: Mutex::default(),
            sink: Mutex::default(),
            last: AtomicU32::new(1),
            request_wait: Mutex::new(REQUEST_WAIT),
            crc,
        }
    }

    pub fn set_request_wait(&self, wait: Duration) {
        *lock(&self.request_wait) = wait;
    }

    pub fn set_sink(&self, sink: Arc<dyn EventSink>) {
        *lock(&self.sink) = Some(sink);
    }

    fn tell(&self, stream: u32, event: Event) {
        // Not with the lock held: who is told may replace the sink.
        let sink = lock(&self.sink).clone();
        if let Some(sink) = sink {
            sink.happened(stream, event);
        }
    }

    /// A number that no stream and no listener has; never 0 or 1.
    fn number(&self, taken: impl Fn(u32) -> bool) -> u32 {
        loop {
            let number = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1) & NUMBER_MASK;
            if number > 1 && !taken(number) {
                return number;
            }
        }
    }

    /// Of bytes that both ends have to agree on.
    fn wishes(&self, parameters: &ConnectionParameters) -> Wishes {
        let number = |number: u16| number.min(Enhanced::UNSPECIFIED - 1);
        Wishes {
            crc: self.crc,
            ird: number(parameters.ird),
            ird_max: IRD_MAX,
            ord: number(parameters.ord),
            peer_to_peer: true,
            long_frames: true,
        }
    }

    pub fn listen(&self, poll: &Polls, address: SocketAddr, v6_only: bool) -> Result<u32> {
        let socket = Socket::listening(address, v6_only, BACKLOG).map_err(system)?;
        let mut listeners = lock(&self.listeners);
        let number = self.number(|number| listeners.contains_key(&number));
        poll.add(socket.raw(), INPUT, token(Kind::Listener, number))
            .map_err(system)?;
        let rests_until = None;
        listeners.insert(
            number,
            Listener {
                socket,
                rests_until,
            },
        );
        Ok(number)
    }

    pub fn end_listening(&self, listener: u32) {
        lock(&self.listeners).remove(&listener);
        // Who has not said what it wants finds nobody.
        lock(&self.streams).retain(|_, entry| {
            !matches!(entry.phase, Phase::AwaitsRequest { listener: of, .. } if of == listener)
        });
    }

    pub fn connect(
        &self,
        poll: &Polls,
        (source, destination): (SocketAddr, SocketAddr),
        tos: u8,
        parameters: &ConnectionParameters,
    ) -> Result<u32> {
        let wishes = self.wishes(parameters);
        let request = emit(&iwarp::request(&wishes, &parameters.private_data))?;
        let socket = Socket::connecting(source, destination, tos).map_err(system)?;
        let mut streams = lock(&self.streams);
        let number = self.number(|number| streams.contains_key(&number));
        poll.add(socket.raw(), OUTPUT, token(Kind::Stream, number))
            .map_err(system)?;
        let phase = Phase::Connecting { request, wishes };
        streams.insert(number, Entry::new(socket, phase, None));
        Ok(number)
    }

    /// A connection has come to a listener, or several have.
    pub fn came(&self, poll: &Polls, listener: u32) {
        self.take(poll, listener, Instant::now(), Socket::accept);
    }

    /// The same with another `accept`, for tests.
    fn take(
        &self,
        poll: &Polls,
        listener: u32,
        now: Instant,
        accept: impl Fn(&Socket) -> io::Result<Socket>,
    ) {
        let mut listeners = lock(&self.listeners);
        let Some(Listener {
            socket: listening,
            rests_until,
        }) = listeners.get_mut(&listener)
        else {
            return;
        };
        let wait = *lock(&self.request_wait);
        let mut streams = lock(&self.streams);
        let strange = |entry: &Entry| matches!(entry.phase, Phase::AwaitsRequest { .. });
        let strangers = streams.iter().filter(|(_, entry)| strange(entry));
        let mut strangers: Vec<_> = strangers
            .map(|(number, entry)| (entry.deadline, *number))
            .collect();
        strangers.sort_unstable();
        let mut strangers: VecDeque<u32> = strangers.into_iter().map(|(_, it)| it).collect();
        let strangers_max = STRANGERS_MAX.min(descriptors_max() / STRANGERS_PART).max(1);
        // Those behind the last keep the listener ready. Of those that come now none gives way: they have not been read.
        for _ in 0..ACCEPTS_MAX.min(strangers_max) {
            let socket = match accept(listening) {
                Ok(socket) => socket,
                Err(error) if would_block(&error) => return,
                // That one has gone.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(_) => {
                    let at_rest = Interest::default();
                    poll.change(listening.raw(), at_rest, token(Kind::Listener, listener));
                    *rests_until = Some(now + REST);
                    return;
                }
            };
            if strangers.len() >= strangers_max
                && let Some(oldest) = strangers.pop_front()
            {
                streams.remove(&oldest);
            }
            let number = self.number(|number| streams.contains_key(&number));
            if poll
                .add(socket.raw(), INPUT, token(Kind::Stream, number))
                .is_ok()
            {
                let came = Vec::new();
                let phase = Phase::AwaitsRequest { listener, came };
                let deadline = now + wait;
                let mut entry = Entry::new(socket, phase, Some(deadline));
                entry.trace = Trace::begin(&entry.socket, false);
                streams.insert(number, entry);
                strangers.push_back(number);
            }
        }
    }

    /// Looks again at listeners that have rested. When the next one has.
    pub fn resume(&self, poll: &Polls, now: Instant) -> Option<Instant> {
        let mut next = None;
        for (number, listener) in lock(&self.listeners).iter_mut() {
            match listener.rests_until {
                Some(until) if until > now => {
                    next = Some(next.map_or(until, |it: Instant| it.min(until)));
                }
                Some(_) => {
                    listener.rests_until = None;
                    let token = token(Kind::Listener, *number);
                    poll.change(listener.socket.raw(), INPUT, token);
                }
                None => {}
            }
        }
        next
    }

    /// Something has come for a stream that is here.
    pub fn ready(&self, poll: &Polls, number: u32) {
        let mut streams = lock(&self.streams);
        let Some(entry) = streams.get_mut(&number) else {
            return;
        };
        let outcome = match &mut entry.phase {
            Phase::Connecting { .. } => entry.connected(),
            Phase::AwaitsReply { .. } => entry.replied(),
            Phase::AwaitsRequest { .. } => entry.requested(),
            // Who accepts it finds it gone.
            Phase::Requested { .. } => Outcome::Gone,
            Phase::Ready { .. } => Outcome::Over(Event::Closed),
            Phase::Bound => return,
            Phase::Lingers => entry.drained(),
        };
        let interest = entry.interest();
        match outcome {
            Outcome::Waits => {
                poll.change(entry.socket.raw(), interest, token(Kind::Stream, number));
            }
            Outcome::Tell(event) => {
                poll.change(entry.socket.raw(), interest, token(Kind::Stream, number));
                drop(streams);
                self.tell(number, event);
            }
            Outcome::Over(event) => {
                let entry = streams.remove(&number);
                drop(streams);
                if entry.is_some_and(|entry| !entry.forgotten) {
                    self.tell(number, event);
                }
            }
            Outcome::Gone => {
                streams.remove(&number);
            }
        }
    }

    pub fn is_requested(&self, number: u32) -> bool {
        let streams = lock(&self.streams);
        let entry = streams.get(&number);
        entry.is_some_and(|entry| matches!(entry.phase, Phase::Requested { .. }))
    }

    /// Agrees to a request.
    pub fn accept(
        &self,
        poll: &Polls,
        number: u32,
        parameters: &ConnectionParameters,
    ) -> Result<Option<Made>> {
        let wishes = self.wishes(parameters);
        let mut streams = lock(&self.streams);
        let entry = streams.get_mut(&number).ok_or(Error::NotFound)?;
        let Phase::Requested { request, rest } = &mut entry.phase else {
            return Err(Error::WrongState);
        };
        let Ok(Some(Arrived { startup, .. })) = arrived(Role::Request, request) else {
            return Err(Error::BadValue);
        };
        let (reply, settings) = accept(&startup, &wishes, &parameters.private_data);
        let reply = emit(&reply)?;
        let rest = core::mem::take(rest);
        // The first bytes on the connection, and few: there is room for them.
        if entry.socket.send_bytes(&reply).ok() != Some(reply.len()) {
            streams.remove(&number);
            return Err(Error::System(Errno(libc::ECONNRESET)));
        }
        entry.trace.bytes(Direction::Outbound, &reply);
        entry.phase = Phase::Ready { settings, rest };
        Ok(entry.hand_over(poll))
    }

    /// Turns a request down.
    pub fn reject(&self, number: u32, private_data: &[u8]) {
        let Some(mut entry) = lock(&self.streams).remove(&number) else {
            return;
        };
        if let Phase::Requested { request, .. } = &entry.phase
            && let Ok(Some(Arrived { startup, .. })) = arrived(Role::Request, request)
            && let Ok(reply) = emit(&iwarp::reject(&startup, private_data))
        {
            let _ = entry.socket.send_bytes(&reply);
            entry.trace.bytes(Direction::Outbound, &reply);
            entry.socket.finish();
            entry.trace.finish(Direction::Outbound);
        }
    }

    /// A queue pair comes for a stream; what it is given, if that is made already.
    pub fn bind(&self, poll: &Polls, number: u32, part: &Arc<Part>) -> Result<Option<Made>> {
        let mut streams = lock(&self.streams);
        let entry = streams.get_mut(&number).ok_or(Error::NotFound)?;
        let free = matches!(entry.phase, Phase::Requested { .. } | Phase::Ready { .. });
        if !free || entry.part.is_some() {
            return Err(Error::BadValue);
        }
        entry.part = Some(Arc::clone(part));
        Ok(entry.hand_over(poll))
    }

    /// The queue pair that was to have it goes, before it did.
    pub fn unbind(&self, part: &Arc<Part>) {
        for entry in lock(&self.streams).values_mut() {
            if !matches!(entry.phase, Phase::Bound)
                && entry
                    .part
                    .as_ref()
                    .is_some_and(|own| Arc::ptr_eq(own, part))
            {
                entry.part = None;
            }
        }
    }

    /// Ends a connection in order; who has it is to do so.
    pub fn close(&self, number: u32) -> Option<Arc<Part>> {
        let mut streams = lock(&self.streams);
        let entry = streams.get_mut(&number)?;
        if matches!(entry.phase, Phase::Bound) {
            return entry.part.clone();
        }
        let entry = streams.remove(&number)?;
        drop(streams);
        entry.socket.finish();
        if !entry.forgotten {
            self.tell(number, Event::Closed);
        }
        None
    }

    pub fn forget(&self, number: u32) {
        let mut streams = lock(&self.streams);
        if let Some(entry) = streams.get_mut(&number) {
            entry.forgotten = true;
            // Others end when their time is over.
            if !matches!(entry.phase, Phase::Bound | Phase::Lingers) {
                streams.remove(&number);
            }
        }
    }

    /// A queue pair's stream has ended. `still`: only for the queue pair.
    pub fn ended(&self, poll: &Polls, number: u32, still: bool) {
        let mut streams = lock(&self.streams);
        let Some(entry) = streams.get_mut(&number) else {
            return;
        };
        let forgotten = core::mem::replace(&mut entry.forgotten, true);
        let lingers = still
            && poll
                .add(entry.socket.raw(), INPUT, token(Kind::Stream, number))
                .is_ok();
        if lingers {
            entry.part = None;
            entry.phase = Phase::Lingers;
            entry.deadline = Some(Instant::now() + LINGER_WAIT);
            entry.is_late = false;
        } else {
            streams.remove(&number);
        }
        drop(streams);
        if !forgotten {
            self.tell(number, Event::Closed);
        }
    }

    /// Ends what has taken too long, at the second look behind its time: what came while this thread stood still, it
    /// takes between the two. When to look again.
    pub fn expire(&self, now: Instant) -> Option<Instant> {
        let mut streams = lock(&self.streams);
        streams.retain(|_, entry| {
            let in_time = entry.deadline.is_none_or(|deadline| deadline > now);
            in_time || !core::mem::replace(&mut entry.is_late, true)
        });
        streams.values().filter_map(|entry| entry.deadline).min()
    }

    /// The process ends: peers hear of it, and the rest of what is on its way gets there. Waits
    /// for no lock, and a moment for the peers.
    pub fn leave(&self, patience: Duration) {
        let Some(streams) = try_lock(&self.streams) else {
            return;
        };
        let mut left: Vec<&Socket> = Vec::new();
        for entry in streams.values() {
            if matches!(entry.phase, Phase::Bound | Phase::Lingers) {
                entry.socket.finish();
                left.push(&entry.socket);
            }
        }
        let end = Instant::now() + patience;
        // Closing a socket with bytes that were not read would reset the connection, and what the
        // peer has not read yet would be gone.
        while !left.is_empty() && Instant::now() < end {
            left.retain(|socket| drain(socket));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn count(&self) -> usize {
        lock(&self.streams).len()
    }
}

/// What became of a stream.
enum Outcome {
    /// It is to be waited for.
    Waits,
    /// The manager is told, and it stays.
    Tell(Event),
    /// The manager is told, and it goes.
    Over(Event),
    /// It goes.
    Gone,
}

impl Entry {
    fn new(socket: Socket, phase: Phase, deadline: Option<Instant>) -> Self {
        Self {
            socket: Arc::new(socket),
            trace: Trace::default(),
            phase,
            part: None,
            deadline,
            is_late: false,
            forgotten: false,
        }
    }

    fn interest(&self) -> Interest {
        match self.phase {
            Phase::Connecting { .. } => OUTPUT,
            Phase::AwaitsReply { .. } | Phase::AwaitsRequest { .. } | Phase::Lingers => INPUT,
            Phase::Requested { .. } | Phase::Ready { .. } => END,
            Phase::Bound => Interest::default(),
        }
    }

    /// The queue pair gets it, if both are there.
    fn hand_over(&mut self, poll: &Polls) -> Option<Made> {
        let part = self.part.clone()?;
        let Phase::Ready { settings, rest } = &mut self.phase else {
            return None;
        };
        let made = Made {
            part,
            socket: Arc::clone(&self.socket),
            trace: core::mem::take(&mut self.trace),
            settings: *settings,
            rest: core::mem::take(rest),
        };
        poll.remove(self.socket.raw());
        self.phase = Phase::Bound;
        Some(made)
    }

    /// The kernel has made the connection, or could not.
    fn connected(&mut self) -> Outcome {
        let Phase::Connecting { request, wishes } = &mut self.phase else {
            return Outcome::Waits;
        };
        let error = match self.socket.error() {
            Ok(None) => None,
            Ok(Some(error)) | Err(error) => error.raw_os_error(),
        };
        if let Some(error) = error {
            return Outcome::Over(Event::Failed(error));
        }
        match self.socket.send_bytes(request) {
            Ok(bytes) if bytes == request.len() => {
                self.trace = Trace::begin(&self.socket, true);
                self.trace.bytes(Direction::Outbound, request);
                let (wishes, came) = (*wishes, Vec::new());
                self.phase = Phase::AwaitsReply { wishes, came };
                Outcome::Waits
            }
            Err(error) if would_block(&error) => Outcome::Waits,
            _ => Outcome::Over(Event::Failed(libc::ECONNRESET)),
        }
    }

    fn replied(&mut self) -> Outcome {
        let Phase::AwaitsReply { wishes, came } = &mut self.phase else {
            return Outcome::Waits;
        };
        let over = collect(&self.socket, &mut self.trace, came);
        let reply = match arrived(Role::Reply, came) {
            Ok(Some(reply)) => reply,
            Ok(None) if over => return Outcome::Over(Event::Failed(libc::ECONNRESET)),
            Ok(None) => return Outcome::Waits,
            Err(_) => return Outcome::Over(Event::Failed(libc::EPROTO)),
        };
        match established(wishes, &reply.startup) {
            Ok(settings) => {
                let parameters = parameters_of(&reply.startup);
                let bytes = reply.bytes;
                let rest = came.split_off(bytes);
                self.phase = Phase::Ready { settings, rest };
                Outcome::Tell(Event::Accepted(parameters))
            }
            Err(Obstacle::Rejected) => {
                Outcome::Over(Event::Rejected(reply.startup.private_data.to_vec()))
            }
            Err(obstacle) => {
                // The responder takes the connection for made.
                if let Some(cause) = obstacle.cause()
                    && let Some(frame) = iwarp::terminate(
                        &sluice_wire::iwarp::Terminate {
                            cause,
                            culprit: None,
                        },
                        reply.startup.crc || wishes.crc,
                    )
                {
                    let bytes = [frame.head(), frame.trailer(frame.sum()).bytes()].concat();
                    let _ = self.socket.send_bytes(&bytes);
                    self.trace.bytes(Direction::Outbound, &bytes);
                }
                Outcome::Over(Event::Failed(libc::EPROTO))
            }
        }
    }

    fn requested(&mut self) -> Outcome {
        let Phase::AwaitsRequest { listener, came } = &mut self.phase else {
            return Outcome::Waits;
        };
        let over = collect(&self.socket, &mut self.trace, came);
        let request = match arrived(Role::Request, came) {
            Ok(Some(request)) => request,
            Ok(None) if !over => return Outcome::Waits,
            Ok(None) | Err(_) => return Outcome::Gone,
        };
        if acceptable(&request.startup).is_err() {
            if let Ok(reply) = emit(&iwarp::reject(&request.startup, &[])) {
                let _ = self.socket.send_bytes(&reply);
                self.trace.bytes(Direction::Outbound, &reply);
            }
            return Outcome::Gone;
        }
        let (Ok(local), Ok(peer)) = (self.socket.local(), self.socket.peer()) else {
            return Outcome::Gone;
        };
        let event = Event::Requested {
            listener: *listener,
            local,
            peer,
            parameters: parameters_of(&request.startup),
        };
        let bytes = request.bytes;
        let rest = came.split_off(bytes);
        let request = core::mem::take(came);
        self.phase = Phase::Requested { request, rest };
        self.deadline = None;
        Outcome::Tell(event)
    }

    fn drained(&self) -> Outcome {
        match drain(&self.socket) {
            true => Outcome::Waits,
            false => Outcome::Gone,
        }
    }
}

/// What a peer says of READs: how many it takes, and how many it will have open. RFC 5044 has no
/// place for that: then as many as there can be.
fn parameters_of(startup: &Startup<'_>) -> ConnectionParameters {
    let number = |number: u16| match number {
        Enhanced::UNSPECIFIED => IRD_MAX,
        number => number,
    };
    let (ird, ord) = match startup.revision {
        Revision::Two(Some(said)) => (number(said.ird), number(said.ord)),
        _ => (IRD_MAX, IRD_MAX),
    };
    ConnectionParameters {
        ird,
        ord,
        private_data: startup.private_data.to_vec(),
    }
}

/// Reads what has come of a frame of the start. True: nothing comes any more.
fn collect(socket: &Socket, trace: &mut Trace, came: &mut Vec<u8>) -> bool {
    let mut bytes = [0; 2 * Startup::BYTES_MAX];
    // No more than a frame: what is behind it may be for a queue pair, and stay in the socket.
    while came.len() < Startup::BYTES_MAX {
        match socket.receive_bytes(&mut bytes[..Startup::BYTES_MAX - came.len()]) {
            Ok(0) => return true,
            Ok(count) => {
                trace.bytes(Direction::Inbound, &bytes[..count]);
                came.extend_from_slice(&bytes[..count]);
            }
            Err(error) => return !would_block(&error),
        }
    }
    false
}

/// Throws away what has come. False: nothing comes any more.
fn drain(socket: &Socket) -> bool {
    let mut bytes = [0; 16 << 10];
    loop {
        match socket.receive_bytes(&mut bytes) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return would_block(&error),
        }
    }
}

fn emit(startup: &Startup<'_>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; Startup::BYTES_MAX];
    let used = startup.emit(&mut bytes).map_err(|_| Error::BadValue)?;
    bytes.truncate(used);
    Ok(bytes)
}

fn system(error: io::Error) -> Error {
    Error::System(Errno(error.raw_os_error().unwrap_or(libc::EIO)))
}

/// What a token of [`Polls`] names. Queue pairs' are their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Part,
    Listener,
    Stream,
    Kick,
}

const KINDS: [Kind; 4] = [Kind::Part, Kind::Listener, Kind::Stream, Kind::Kick];

pub fn token(kind: Kind, number: u32) -> u64 {
    (kind as u64) << 32 | u64::from(number)
}

pub fn parse(token: u64) -> (Kind, u32) {
    let kind = KINDS.get((token >> 32) as usize).copied();
    (kind.unwrap_or(Kind::Kick), token as u32)
}

#[cfg(test)]
mod tests;
