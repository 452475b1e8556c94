//! A queue pair: what was posted, and the stream that one thread at a time works on.
//!
//! Nobody waits for that thread who posts: it leaves a note, and whoever has the stream looks for
//! one when it lets go. A note is in front of an attempt to take the stream, and the look behind
//! letting go of it, with a full fence between the two on either side: so one of them sees the
//! other.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, Weak};

use sluice_protocol::iwarp::{Failure, Settings};
use sluice_protocol::{Instant, PostError};
use sluice_sys::clock::now_ns;
use sluice_transport::inbound::Inbound;
use sluice_transport::request::status;
use sluice_verbs::locks::{Guard, lock, try_lock};
use sluice_verbs::transport::QpParams;
use sluice_verbs::{Aftermath, EventType, NakReason, Qp, QpState, SendDone, WcStatus};
use sluice_wire::iwarp::Cause;

use crate::completions::{Member, Sources};
use crate::gather::{Fate, Gather};
use crate::memory::{Bridge, Source};
use crate::requests::Requests;
use crate::socket::{Interest, Socket};
use crate::stream::Stream;
use crate::trace::Trace;

/// When a stream is looked at again whose queue pair is on its way to RTR. It mostly goes on to RTS
/// at once, which is sooner.
const EARLY_NS: u64 = 1_000_000;

/// Who works for queue pairs when nobody polls.
pub trait Helper: Send + Sync {
    /// Waits for this at the queue pair's socket from now on. None: for nothing any more.
    fn watch(&self, part: &Part, socket: &Socket, interest: Option<Interest>);

    /// The queue pair is to be looked at soon.
    fn call(&self, part: &Part);

    /// It is to be looked at then.
    fn call_at(&self, part: &Part, when_ns: u64);

    /// Its stream has ended; `still`: the peer may have something to say.
    fn ended(&self, stream: u32, still: bool);
}

/// A queue pair.
pub struct Part {
    pub qpn: u32,
    /// Of the transport's threads the one that works for it.
    pub worker: usize,
    helper: Weak<dyn Helper>,
    sources: Vec<Arc<Sources>>,
    machine: Mutex<Machine>,
    /// Something was left for whoever has the machine.
    noted: AtomicBool,
    /// When it is to be looked at, nanoseconds; [`u64::MAX`]: no need.
    due_ns: AtomicU64,
}

/// What came of a look at a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub struct Worked {
    /// There is more to do at once.
    pub more: bool,
    /// Frames that came.
    pub frames: u64,
}

/// What one thread at a time works on.
struct Machine {
    qp: Option<Arc<Qp>>,
    depth: usize,
    stream: Option<Stream>,
    requests: Requests,
    inbound: Inbound,
    /// The queue pair does not receive yet: nothing is looked at.
    early: bool,
    /// The engine was told of the end of the stream.
    told: bool,
    gather: Gather,
    /// Scratch for what has ended.
    ended: Vec<(u64, SendDone)>,
}

impl Part {
    pub fn new(
        qpn: u32,
        worker: usize,
        helper: Weak<dyn Helper>,
        sources: Vec<Arc<Sources>>,
        params: &QpParams,
    ) -> Arc<Self> {
        Arc::new(Self {
            qpn,
            worker,
            helper,
            sources,
            machine: Mutex::new(Machine {
                qp: None,
                // One more than the queue has, so that the protocol never is the narrow place.
                depth: params.cap.max_send_wr as usize + 1,
                stream: None,
                requests: Requests::default(),
                inbound: Inbound::default(),
                early: false,
                told: false,
                gather: Gather::default(),
                ended: Vec::new(),
            }),
            noted: AtomicBool::new(false),
            due_ns: AtomicU64::new(u64::MAX),
        })
    }

    pub fn sources(&self) -> &[Arc<Sources>] {
        &self.sources
    }

    pub fn due_ns(&self) -> u64 {
        self.due_ns.load(Ordering::SeqCst)
    }

    pub fn bind(&self, qp: &Arc<Qp>) {
        self.with(|machine| {
            machine.requests.bind(qp.lent_records());
            machine.qp = Some(Arc::clone(qp));
        });
    }

    /// Its stream is there. What came behind the peer's start is `rest`.
    pub fn start(&self, id: u32, carrier: (Arc<Socket>, Trace), settings: Settings, rest: &[u8]) {
        self.with(|machine| {
            let depth = machine.depth;
            machine.stream = Some(Stream::new(id, carrier, settings, rest, depth));
            machine.told = false;
            // The queue pair is on its way to RTR, and its state changes behind this.
            machine.early = true;
            self.tell(machine);
        });
        self.leave();
    }

    /// Does something with the machine, behind whoever has it. What was noted meanwhile is left to the
    /// transport's thread.
    fn with<R>(&self, work: impl FnOnce(&mut Machine) -> R) -> R {
        let result = work(&mut lock(&self.machine));
        self.see_to_notes();
        result
    }

    /// Behind letting go of the machine.
    fn see_to_notes(&self) {
        fence(Ordering::SeqCst);
        if self.is_noted()
            && let Some(helper) = self.helper.upgrade()
        {
            helper.call(self);
        }
    }

    /// Something is there for whoever has the machine.
    fn note(&self) {
        self.noted.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Requests wait in the records: sends what can be sent at once, and tells the engine what has ended with
    /// that. With the machine in hand: who has it next may find that the peer refused a request, and what had left
    /// before would be flushed.
    pub fn posted(&self, after: &mut Aftermath) {
        self.note();
        while self.is_noted() {
            let Some(mut machine) = try_lock(&self.machine) else {
                break;
            };
            self.noted.store(false, Ordering::SeqCst);
            let posted_ns = now_ns();
            let bytes = machine.hand_over();
            if machine.is_blocked() {
                // Whoever the socket tells of room finds it.
                drop(machine);
                fence(Ordering::SeqCst);
                continue;
            }
            if let Fate::Waits { first } = machine.gather.posted(posted_ns, bytes) {
                drop(machine);
                // Also for whoever left a note meanwhile: the thread that is called looks behind it.
                self.note();
                if first && let Some(helper) = self.helper.upgrade() {
                    helper.call(self);
                }
                return;
            }
            let left = machine.send(Instant::from_nanos(posted_ns));
            machine.gather.returned(now_ns());
            machine.report_ended(after);
            self.tell(&mut machine);
            drop(machine);
            fence(Ordering::SeqCst);
            if left {
                self.leave();
                break;
            }
        }
    }

    /// Something is to be done by a thread that may tell the engine.
    pub fn leave(&self) {
        self.note();
        if let Some(helper) = self.helper.upgrade() {
            helper.call(self);
        }
    }

    /// Takes what has come, answers, sends, tells the engine. `hung`: the kernel says that the
    /// connection is over. None: somebody else is at it.
    pub fn work(&self, hung: bool, after: &mut Aftermath) -> Option<Worked> {
        self.work_on(try_lock(&self.machine), hung, after)
    }

    /// The same by who was called ([`Helper::call`]), behind whoever is at it: that one may have been
    /// there before the call, and let what it is about wait.
    pub fn work_when_called(&self, after: &mut Aftermath) -> Option<Worked> {
        self.work_on(Some(lock(&self.machine)), false, after)
    }

    fn work_on<'a>(
        &'a self,
        mut next: Option<Guard<'a, Machine>>,
        hung: bool,
        after: &mut Aftermath,
    ) -> Option<Worked> {
        let mut worked = None;
        while let Some(mut machine) = next {
            self.noted.store(false, Ordering::SeqCst);
            let before = machine.frames();
            let more = machine.turn(hung, after);
            let Worked { frames, .. } = worked.unwrap_or_default();
            worked = Some(Worked {
                more,
                frames: frames + machine.frames().saturating_sub(before),
            });
            self.tell(&mut machine);
            let ended = machine.take_ended();
            drop(machine);
            self.ended(ended);
            fence(Ordering::SeqCst);
            if !self.is_noted() {
                break;
            }
            next = try_lock(&self.machine);
        }
        worked
    }

    /// The program posted receives while a message waited for one.
    pub fn receives_posted(&self, after: &mut Aftermath) {
        self.note();
        self.work(false, after);
    }

    /// The program wants the connection to end, when all that was posted is sent.
    pub fn close(&self) {
        self.with(|machine| {
            if let Some(stream) = &mut machine.stream {
                stream.connection.close();
            }
        });
        self.leave();
    }

    /// ERR: everything is flushed, the receive that is being filled too.
    pub fn stop(&self, after: &mut Aftermath) {
        let ended = self.with(|machine| {
            machine.stop(after);
            self.tell(machine);
            machine.take_ended()
        });
        self.ended(ended);
    }

    /// RESET, and the end: the stream is nobody's any more. The rest of what is on its way goes.
    pub fn clear(&self, after: &mut Aftermath) {
        self.stop(after);
        let stream = self.with(|machine| machine.stream.take());
        if let Some(stream) = stream {
            let still = !stream.is_closed();
            self.ended(Some((stream, still)));
        }
    }

    /// It is in nobody's tables any more.
    pub fn end(&self, after: &mut Aftermath) {
        self.clear(after);
        self.with(|machine| {
            machine.requests.bind(None);
            machine.qp = None;
        });
    }

    /// A stream is not this queue pair's any more; `still`: the peer may have something to say.
    fn ended(&self, ended: Option<(Stream, bool)>) {
        let Some((stream, still)) = ended else { return };
        for sources in &self.sources {
            sources.forget(stream.socket.raw());
        }
        if let Some(helper) = self.helper.upgrade() {
            helper.watch(self, &stream.socket, None);
            helper.ended(stream.id, still);
        }
    }

    /// Tells whoever waits at the socket what for, and when to look.
    fn tell(&self, machine: &mut Machine) {
        let due = machine.stream.as_ref().and_then(Stream::deadline);
        let due = match machine.early {
            true => now_ns() + EARLY_NS,
            false => due.map_or(u64::MAX, Instant::nanos),
        };
        // Also where it is later than it was: who has looked because of that has forgotten it.
        let due =
            (self.due_ns.swap(due, Ordering::SeqCst) != due && due != u64::MAX).then_some(due);
        let changed = machine.stream.as_mut().and_then(|stream| {
            let mut wanted = stream.interest();
            wanted.input &= !machine.early;
            let changed = stream.told.replace(wanted) != Some(wanted);
            changed.then_some((&*stream.socket, wanted))
        });
        if due.is_none() && changed.is_none() {
            return;
        }
        let Some(helper) = self.helper.upgrade() else {
            return;
        };
        if let Some(due) = due {
            helper.call_at(self, due);
        }
        if let Some((socket, wanted)) = changed {
            helper.watch(self, socket, Some(wanted));
            for sources in &self.sources {
                sources.watch(socket.raw(), wanted, self.token());
            }
        }
    }

    /// What the stream has counted.
    pub fn counters(&self) -> Option<sluice_protocol::iwarp::Counters> {
        let machine = try_lock(&self.machine)?;
        let counters = machine
            .stream
            .as_ref()
            .map(|stream| *stream.connection.counters());
        drop(machine);
        self.see_to_notes();
        counters
    }
}

impl Member for Part {
    fn token(&self) -> u64 {
        u64::from(self.qpn)
    }

    fn is_noted(&self) -> bool {
        self.noted.load(Ordering::SeqCst)
    }

    fn watched_by(&self, queue: &Sources) {
        self.with(|machine| {
            if let Some(stream) = &machine.stream
                && let Some(told) = stream.told
            {
                queue.watch(stream.socket.raw(), told, self.token());
            }
        });
    }

    fn progress(&self, after: &mut Aftermath) -> u64 {
        self.work(false, after).map_or(0, |worked| worked.frames)
    }
}

impl Machine {
    /// Frames that have come.
    fn frames(&self) -> u64 {
        let stream = self.stream.as_ref();
        stream.map_or(0, |stream| stream.connection.counters().frames_received)
    }

    /// Whether the socket takes nothing.
    fn is_blocked(&self) -> bool {
        self.stream.as_ref().is_some_and(Stream::is_blocked)
    }

    /// Gives the protocol what it takes of what was posted. Requests that it does not know end. Bytes that
    /// it got.
    fn hand_over(&mut self) -> u64 {
        let mut bytes = 0;
        let Some(stream) = &mut self.stream else {
            return bytes;
        };
        while let Some(request) = self.requests.next() {
            match stream.connection.post(request) {
                Ok(()) => {
                    bytes += u64::from(request.length);
                    self.requests.handed();
                }
                Err(PostError::Illegal) => {
                    self.ended
                        .push((request.seq, SendDone::failed(WcStatus::LocQpOpErr)));
                    self.requests.handed();
                }
                // Flushed by the engine, or tried again after the next completion.
                Err(_) => return bytes,
            }
        }
        bytes
    }

    /// Sends, by a thread that cannot tell the engine. True: something is left for one that can.
    fn send(&mut self, now: Instant) -> bool {
        let (Some(qp), Some(stream)) = (&self.qp, &mut self.stream) else {
            return false;
        };
        let source = Source {
            qp,
            requests: &self.requests,
        };
        stream.transmit(now, &source, None);
        // A message that waits may have its receive: who posted that may have found this thread here.
        stream.has_failed() || stream.connection.is_stalled()
    }

    fn note_completions(&mut self) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        while let Some(done) = stream.connection.completion() {
            let done_as = SendDone {
                status: status(done.status),
                byte_len: done.length,
                vendor_err: 0,
            };
            self.ended.push((done.seq, done_as));
        }
    }

    /// Everything, by a thread that can tell the engine.
    fn turn(&mut self, hung: bool, after: &mut Aftermath) -> bool {
        let now = Instant::from_nanos(now_ns());
        let mut more = false;
        let state = self.qp.as_ref().map(|qp| qp.state());
        self.early = matches!(state, Some(QpState::Init | QpState::Reset) | None);
        if self.early {
            return false;
        }
        self.hand_over();
        self.gather.looked();
        if let (Some(qp), Some(stream)) = (&self.qp, &mut self.stream) {
            let mut bridge = Bridge {
                qp,
                requests: &self.requests,
                inbound: &mut self.inbound,
                after,
            };
            if stream.connection.deadline().is_some_and(|due| due <= now) {
                stream.connection.expire(now, &mut bridge);
            }
            more = stream.receive(now, &mut bridge);
            if hung && stream.connection.is_stalled() {
                // Nobody reads, so nobody would find it.
                stream.lost(&mut bridge);
            }
            let source = Source {
                qp,
                requests: &self.requests,
            };
            stream.transmit(now, &source, Some(&mut bridge));
            self.inbound.suspend(qp);
        }
        self.report(after);
        more
    }

    /// Tells the engine which requests have ended.
    fn report_ended(&mut self, after: &mut Aftermath) {
        self.note_completions();
        let Some(qp) = &self.qp else {
            self.ended.clear();
            return;
        };
        for (seq, done) in self.ended.drain(..) {
            self.requests.complete(qp, seq, done, after);
        }
    }

    /// Tells the engine what has happened.
    fn report(&mut self, after: &mut Aftermath) {
        self.report_ended(after);
        let (Some(qp), Some(stream)) = (&self.qp, &self.stream) else {
            return;
        };
        if self.told || !stream.is_over() {
            return;
        }
        self.told = true;
        match stream.failure() {
            Some(Failure::Own(cause)) => refused(qp, cause, after),
            // The peer's reason is its own; requests that it was about have ended with it.
            Some(Failure::Peer(_) | Failure::Lost) | None => qp.fail(None, after),
        }
    }

    fn stop(&mut self, after: &mut Aftermath) {
        self.told = true;
        self.early = false;
        let now = Instant::from_nanos(now_ns());
        if self.gather.has_waiting() {
            // What would have left by now if it had been posted alone.
            self.send(now);
        }
        if let (Some(qp), Some(stream)) = (&self.qp, &mut self.stream) {
            let mut bridge = Bridge {
                qp,
                requests: &self.requests,
                inbound: &mut self.inbound,
                after,
            };
            // In order only if no message is half there.
            match bridge.inbound.is_taken() {
                true => stream.connection.abort(now, &mut bridge),
                false => stream.stop(now, &mut bridge),
            }
            let source = Source {
                qp,
                requests: &self.requests,
            };
            stream.transmit(now, &source, Some(&mut bridge));
            while stream.connection.completion().is_some() {}
        }
        self.ended.clear();
        self.requests.clear();
    }

    /// The stream, if it has ended in both directions.
    fn take_ended(&mut self) -> Option<(Stream, bool)> {
        let now = Instant::from_nanos(now_ns());
        if !self.stream.as_mut()?.advance(now) {
            return None;
        }
        Some((self.stream.take()?, false))
    }
}

/// A request of the peer's was refused, or its stream made no sense.
fn refused(qp: &Qp, cause: Cause, after: &mut Aftermath) {
    match cause {
        Cause::Tagged(_) | Cause::Protection(_) => {
            qp.responder_failed(NakReason::RemoteAccess, after);
        }
        Cause::Untagged(_) | Cause::Operation(_) => {
            qp.responder_failed(NakReason::InvalidRequest, after);
        }
        // A receive of ours was bad, whose completion says it.
        Cause::DdpCatastrophic => qp.responder_failed(NakReason::RemoteOperation, after),
        _ => qp.fail(Some(EventType::QpFatal), after),
    }
}
