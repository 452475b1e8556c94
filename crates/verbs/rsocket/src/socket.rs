//! A stream rsocket: its life from `rsocket` to `rclose`, and how its calls wait.

use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::stream::{Sizes, Stream};
use super::wire::{CONN_DATA_LEN, ConnData};
use crate::ffi::*;
use sluice_rdmacm::abi::*;
use sluice_rdmacm::address::Address;
use sluice_rdmacm::channel::{Body, Event, EventKind};
use sluice_rdmacm::object::{ChannelObject, EventObject, Id, agent};
use sluice_rdmacm::verbs::{check, check_pointer};
use sluice_rdmacm::{Errno, calls, cm_calls, device, errno_of, events, qp};
use sluice_verbs_calls::errno::{errno, set_errno};

/// Wakes threads that sleep: the connection manager has no such event.
const WAKE: EventKind = EventKind::AddrChange;
/// How long a call polls before it sleeps, as rsocket(7)'s polling_time.
const POLLING: Duration = Duration::from_micros(10);
/// How long `rclose` waits for what was sent, when SO_LINGER does not say.
const LINGER: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    New,
    Bound,
    Listening,
    Connecting,
    Connected,
    /// It was connected, or could not be.
    Ended,
    /// By `rclose`, while other threads are in a call with it.
    Closed,
}

pub struct State {
    pub phase: Phase,
    id: *mut rdma_cm_id,
    cq: *mut ibv_cq,
    pub comp: *mut ibv_comp_channel,
    pub stream: Option<Stream>,
    pub sizes: Sizes,
    /// SO_ERROR: of a connection that failed.
    pub error: i32,
    pub nonblocking: bool,
    pub read_closed: bool,
    pub write_closed: bool,
    pub reuse: bool,
    pub family_only: bool,
    pub nodelay: bool,
    pub keepalive: bool,
    pub oob_inline: bool,
    pub linger: Option<u32>,
    /// Threads that sleep on the descriptors.
    sleepers: usize,
    /// Those among them that went to sleep before the last change, and the number of that.
    stale: usize,
    changes: u64,
    /// Completion events that were asked for and did not come yet.
    armed: bool,
}

// SAFETY: the C objects may be used from every thread; the rest is behind the lock.
unsafe impl Send for State {}

pub struct Socket {
    pub domain: i32,
    /// The event channel, whose descriptor is the socket's number.
    channel: Box<ChannelObject>,
    state: Mutex<State>,
}

impl Socket {
    pub fn new(domain: i32) -> Result<Arc<Self>, Errno> {
        let mut channel = ChannelObject::new()?;
        // SAFETY: the channel lives as long as the socket, and the identifier less long.
        let id =
            unsafe { cm_calls::create(&raw mut channel.c, null_mut(), RDMA_PS_TCP, IBV_QPT_RC)? };
        Ok(Self::with(domain, channel, id, Sizes::default()))
    }

    fn with(
        domain: i32,
        channel: Box<ChannelObject>,
        id: *mut rdma_cm_id,
        sizes: Sizes,
    ) -> Arc<Self> {
        Arc::new(Self {
            domain,
            channel,
            state: Mutex::new(State {
                phase: Phase::New,
                id,
                cq: null_mut(),
                comp: null_mut(),
                stream: None,
                sizes,
                error: 0,
                nonblocking: false,
                read_closed: false,
                write_closed: false,
                reuse: false,
                family_only: false,
                nodelay: false,
                keepalive: false,
                oob_inline: false,
                linger: None,
                sleepers: 0,
                stale: 0,
                changes: 0,
                armed: false,
            }),
        })
    }

    pub fn fd(&self) -> RawFd {
        self.channel.c.fd
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn bind(&self, address: Address) -> Result<(), Errno> {
        let mut state = self.lock();
        if state.phase != Phase::New {
            return Err(Errno::INVAL);
        }
        let key = state.key();
        let (reuse, family_only) = (state.reuse, state.family_only);
        agent()?.set_options(key, |options| {
            options.reuse = reuse;
            options.family_only = family_only;
        })?;
        // bind(2) of a stream socket has one error for a taken port.
        agent()?.bind(key, address).map_err(|errno| match errno.0 {
            libc::EADDRNOTAVAIL if address.is_any() => Errno(libc::EADDRINUSE),
            _ => errno,
        })?;
        state.phase = Phase::Bound;
        Ok(())
    }

    pub fn listen(&self, backlog: i32) -> Result<(), Errno> {
        let mut state = self.lock();
        match state.phase {
            Phase::New | Phase::Bound => {
                agent()?.listen(state.key(), backlog)?;
                state.phase = Phase::Listening;
                Ok(())
            }
            Phase::Listening => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }

    pub fn connect(&self, address: Address) -> Result<(), Errno> {
        let mut state = self.lock();
        match state.phase {
            Phase::New | Phase::Bound => {
                agent()?.resolve_addr(state.key(), None, address)?;
                state.phase = Phase::Connecting;
            }
            Phase::Connecting if state.nonblocking => {
                state.step(&self.channel);
                if state.phase == Phase::Connecting {
                    return Err(Errno(libc::EALREADY));
                }
            }
            Phase::Connecting => {}
            Phase::Connected => return Err(Errno(libc::EISCONN)),
            Phase::Listening | Phase::Ended => return Err(Errno::INVAL),
            Phase::Closed => return Err(Errno::BADF),
        }
        state.step(&self.channel);
        if state.nonblocking && state.phase == Phase::Connecting {
            return Err(Errno(libc::EINPROGRESS));
        }
        let mut state = self.wait(state, false, |state| state.phase != Phase::Connecting)?;
        match state.phase {
            Phase::Connected => Ok(()),
            Phase::Closed => Err(Errno::BADF),
            _ => Err(state.take_error().unwrap_or(Errno(libc::ECONNREFUSED))),
        }
    }

    /// Takes a connection request and accepts it.
    pub fn accept(&self) -> Result<Arc<Self>, Errno> {
        loop {
            let state = self.lock();
            match state.phase {
                Phase::Listening => {}
                Phase::Closed => return Err(Errno::BADF),
                _ => return Err(Errno::INVAL),
            }
            let sizes = state.sizes;
            let Some(event) = self.channel.channel.try_next() else {
                if state.nonblocking {
                    return Err(Errno::AGAIN);
                }
                let mut items = state.descriptors(self.fd());
                drop(state);
                sleep(&mut items)?;
                continue;
            };
            drop(state);
            // A request that went away meanwhile leaves nothing behind.
            let Some(event) = events::prepare(event)? else {
                continue;
            };
            if event.c.event != EventKind::ConnectRequest as u32 {
                event.owner.done();
                continue;
            }
            match self.accept_request(event, sizes) {
                Ok(socket) => return Ok(socket),
                // Not one of ours, or gone: the next one.
                Err(Errno(libc::EPROTO | libc::EINVAL)) => continue,
                Err(errno) => return Err(errno),
            }
        }
    }

    fn accept_request(&self, event: Box<EventObject>, sizes: Sizes) -> Result<Arc<Self>, Errno> {
        let id = event.c.id;
        // SAFETY: the id has type RC, so the parameters are those of a connection.
        let conn = unsafe { event.c.param.conn };
        let mut bytes = [0; CONN_DATA_LEN];
        let peer =
            if conn.private_data.is_null() || usize::from(conn.private_data_len) < bytes.len() {
                None
            } else {
                // SAFETY: the event has so many bytes of private data.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        conn.private_data.cast::<u8>(),
                        bytes.as_mut_ptr(),
                        bytes.len(),
                    );
                }
                ConnData::parse(&bytes)
            };
        event.owner.done();
        let prepared = (|| {
            let peer = peer.ok_or(Errno(libc::EPROTO))?;
            let mut channel = ChannelObject::new()?;
            // SAFETY: the event brought the identifier, and nobody else knows it.
            unsafe { cm_calls::migrate(id, &raw mut channel.c)? };
            Ok((peer, channel))
        })();
        let (peer, channel) = prepared.inspect_err(|_| {
            // SAFETY: nobody else knows the identifier.
            unsafe { cm_calls::rdma_destroy_id(id) };
        })?;
        let socket = Self::with(self.domain, channel, id, sizes);
        let mut state = socket.lock();
        state.open()?;
        if let Some(stream) = state.stream.as_mut() {
            stream.connected(&peer);
            let data = stream.conn_data().emit();
            let param = conn_param(&data);
            // SAFETY: the identifier is the request's and `param` lives through the call.
            unsafe { cm_calls::accept(id, &raw const param)? };
        }
        state.phase = Phase::Connected;
        drop(state);
        Ok(socket)
    }

    /// Waits until `done`. Polls for a while, then sleeps on the socket's descriptors;
    /// `EAGAIN` at once when `nonblocking`, `EINTR` after a signal handler.
    pub fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        nonblocking: bool,
        mut done: impl FnMut(&mut State) -> bool,
    ) -> Result<MutexGuard<'a, State>, Errno> {
        let started = Instant::now();
        loop {
            state.step(&self.channel);
            if done(&mut state) {
                return Ok(state);
            }
            if nonblocking {
                return Err(Errno::AGAIN);
            }
            if started.elapsed() < POLLING {
                drop(state);
                std::hint::spin_loop();
                state = self.lock();
                continue;
            }
            state.arm()?;
            state.step(&self.channel);
            if done(&mut state) {
                return Ok(state);
            }
            let seen = self.fall_asleep(&mut state);
            let mut items = state.descriptors(self.fd());
            drop(state);
            let slept = sleep(&mut items);
            state = self.lock();
            self.wake_up(&mut state, seen);
            slept?;
        }
    }

    /// Comes before a sleep on the descriptors, under the lock under which the thread has armed the CQ and looked.
    /// Gives what `wake_up` is told behind it.
    pub fn fall_asleep(&self, state: &mut State) -> u64 {
        // All who were to wake up have done so.
        if state.stale == 0 && state.phase != Phase::Closed {
            self.channel.channel.take(|event| event.kind == WAKE);
        }
        state.sleepers += 1;
        state.changes
    }

    pub fn wake_up(&self, state: &mut State, seen: u64) {
        state.sleepers -= 1;
        state.stale -= usize::from(seen != state.changes);
        state.take_completion_events();
        state.step(&self.channel);
    }

    /// Looks at everything that has come.
    pub fn step(&self, state: &mut State) {
        state.step(&self.channel);
    }

    pub fn addresses(&self) -> Result<(Option<Address>, Option<Address>), Errno> {
        let key = self.lock().key();
        let info = agent()?.info(key)?;
        Ok((info.source, info.destination))
    }

    pub fn shutdown(&self, read: bool, write: bool) -> Result<(), Errno> {
        let mut state = self.lock();
        state.was_connected()?;
        if read {
            state.read_closed = true;
        }
        if write && !state.write_closed {
            state.write_closed = true;
            let all = state.read_closed && read;
            if let Some(stream) = state.stream.as_mut() {
                stream.progress();
                stream.close_write(all);
            }
        }
        state.wake_others(&self.channel);
        Ok(())
    }

    /// Ends the connection in order: what was sent arrives first, within the linger time.
    pub fn close(&self) {
        let mut state = self.lock();
        let linger = match state.linger {
            Some(seconds) => Duration::from_secs(u64::from(seconds)),
            None => LINGER,
        };
        // Other threads begin nothing any more.
        let phase = std::mem::replace(&mut state.phase, Phase::Closed);
        if phase == Phase::Connected {
            if let Some(stream) = state.stream.as_mut() {
                stream.progress();
                stream.close_write(true);
            }
            let deadline = Instant::now() + linger;
            let mut pause = Duration::from_micros(1);
            while let Some(stream) = state.stream.as_mut()
                && stream.broken.is_none()
                && !stream.drained()
                && Instant::now() < deadline
            {
                drop(state);
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(1));
                state = self.lock();
                state.step(&self.channel);
                state.take_events(&self.channel);
            }
            // SAFETY: the socket's identifier.
            let _ = unsafe { qp::fail_qp(Id::of(state.id)) };
            let _ = agent().and_then(|agent| agent.disconnect(state.key()));
        }
        state.wake_others(&self.channel);
    }
}

/// Sleeps until a descriptor is readable; `EINTR` after a signal handler.
fn sleep(items: &mut [libc::pollfd]) -> Result<(), Errno> {
    // SAFETY: the slice is a valid array of its length.
    match unsafe { libc::poll(items.as_mut_ptr(), items.len() as libc::nfds_t, -1) } {
        -1 => Err(errno_of(&std::io::Error::last_os_error())),
        _ => Ok(()),
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The last call that used it has its answer already.
        let answered = errno();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: nobody else has the socket any more. The QP goes before the memory that
        // it uses, and both before the CQ.
        unsafe {
            qp::rdma_destroy_qp(state.id);
            state.stream = None;
            if !state.cq.is_null() {
                state.take_completion_events();
                (calls().destroy_cq)(state.cq);
                (calls().destroy_comp_channel)(state.comp);
            }
            cm_calls::rdma_destroy_id(state.id);
        }
        set_errno(answered);
    }
}

fn conn_param(data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: data.as_ptr().cast(),
        private_data_len: data.len() as u8,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    }
}

impl State {
    pub fn key(&self) -> sluice_rdmacm::channel::Key {
        // SAFETY: the identifier lives as long as the socket.
        unsafe { Id::of(self.id) }.key
    }

    /// There is a connection, or there was one.
    pub fn was_connected(&self) -> Result<(), Errno> {
        match self.phase {
            Phase::Connected | Phase::Ended => Ok(()),
            Phase::Closed => Err(Errno::BADF),
            _ => Err(Errno::NOTCONN),
        }
    }

    pub fn take_error(&mut self) -> Option<Errno> {
        let error = std::mem::take(&mut self.error);
        (error != 0).then_some(Errno(error))
    }

    /// The connection manager's descriptor and, once there is a CQ, that of its channel.
    pub fn descriptors(&self, fd: RawFd) -> [libc::pollfd; 2] {
        let comp = match self.comp.is_null() {
            true => -1,
            // SAFETY: the channel lives as long as the socket.
            false => unsafe { (*self.comp).fd },
        };
        [fd, comp].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
    }

    /// Asks for an event with the next completion.
    pub fn arm(&mut self) -> Result<(), Errno> {
        if self.cq.is_null() {
            return Ok(());
        }
        // SAFETY: the CQ lives as long as the socket.
        check(unsafe { (calls().req_notify_cq)(self.cq, 0) })?;
        self.armed = true;
        Ok(())
    }

    /// Takes the events that were asked for off their descriptor.
    fn take_completion_events(&mut self) {
        if self.comp.is_null() || !self.armed {
            return;
        }
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel lives as long as the socket and does not block.
        unsafe {
            while (calls().get_cq_event)(self.comp, &raw mut cq, &raw mut context) == 0 {
                (calls().ack_cq_events)(cq, 1);
            }
        }
        self.armed = false;
    }

    /// CQ, QP and stream for a connection.
    fn open(&mut self) -> Result<(), Errno> {
        // SAFETY: the identifier lives as long as the socket.
        let c = unsafe { &mut *self.id };
        // That of the address that it is bound to, or goes to.
        let context = match c.verbs.is_null() {
            true => device::first()?.context(),
            false => c.verbs,
        };
        let (sends, receives) = Stream::queue_sizes(&self.sizes);
        // SAFETY: the context is open; what is made is released in Drop.
        unsafe {
            self.comp = check_pointer((calls().create_comp_channel)(context))?;
            let flags = libc::fcntl((*self.comp).fd, libc::F_GETFL);
            libc::fcntl((*self.comp).fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
            let entries = (sends + receives) as i32;
            let cq = (calls().create_cq)(context, entries, null_mut(), self.comp, 0);
            self.cq = match check_pointer(cq) {
                Ok(cq) => cq,
                Err(errno) => {
                    (calls().destroy_comp_channel)(self.comp);
                    self.comp = null_mut();
                    return Err(errno);
                }
            };
        }
        // SAFETY: all zeros is a valid value of the plain C structure.
        let mut attr: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        attr.send_cq = self.cq;
        attr.recv_cq = self.cq;
        attr.qp_type = IBV_QPT_RC;
        attr.cap = ibv_qp_cap {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: self.sizes.inline,
        };
        // SAFETY: the identifier is bound to the device, the CQ is its.
        unsafe { qp::create_plain(self.id, null_mut(), &mut attr)? };
        self.sizes.inline = self.sizes.inline.min(attr.cap.max_inline_data);
        self.stream = Some(Stream::new(c.qp, self.cq, c.pd, self.sizes)?);
        Ok(())
    }

    /// Looks at what the connection manager and the CQ have.
    fn step(&mut self, channel: &ChannelObject) {
        if let Some(stream) = self.stream.as_mut()
            && self.phase != Phase::Connecting
        {
            let mut has_changed = stream.progress();
            if stream.broken.is_some() && self.phase == Phase::Connected {
                self.phase = Phase::Ended;
                has_changed = true;
            }
            if has_changed {
                self.wake_others(channel);
            }
        }
        if !matches!(self.phase, Phase::Listening | Phase::Closed) {
            self.take_events(channel);
        }
    }

    /// What this thread took or changed, others that sleep may wait for. Each of them wakes up once, for the event
    /// stays until all have left.
    fn wake_others(&mut self, channel: &ChannelObject) {
        let is_raised = self.stale > 0;
        self.changes += 1;
        self.stale = self.sleepers;
        if !is_raised && (self.stale > 0 || self.phase == Phase::Closed) {
            let wake = Event::with(self.key(), WAKE, 0, Body::None);
            channel.channel.push(wake);
        }
    }

    fn take_events(&mut self, channel: &ChannelObject) {
        loop {
            let events = channel.channel.take(|event| event.kind != WAKE);
            if events.is_empty() {
                return;
            }
            for event in events {
                if let Some(event) = events::prepare(event).ok().flatten() {
                    self.take_event(&event);
                    event.owner.done();
                }
            }
            self.wake_others(channel);
        }
    }

    fn take_event(&mut self, event: &EventObject) {
        if let Err(errno) = self.event(event) {
            self.error = errno.0;
            self.phase = Phase::Ended;
            // There is no connection, so nothing comes from the peer either.
            // SAFETY: the identifier lives as long as the socket; the QP goes before the memory that it uses.
            unsafe { qp::rdma_destroy_qp(self.id) };
            self.stream = None;
        }
    }

    fn event(&mut self, event: &EventObject) -> Result<(), Errno> {
        let is = |kind: EventKind| event.c.event == kind as u32;
        if self.phase != Phase::Connecting {
            let is_goodbye = is(EventKind::Disconnected);
            // The peer asked for this connection, and then did not take it.
            let is_left = is(EventKind::Rejected)
                || is(EventKind::Unreachable)
                || is(EventKind::ConnectError);
            if let Some(stream) = self.stream.as_mut()
                && (is_goodbye || is_left)
            {
                // What had arrived before can still be read.
                stream.progress();
                stream.peer_closed |= is_goodbye;
                stream.broken.get_or_insert(match is_goodbye {
                    true => Errno::PIPE,
                    false => Errno(libc::ECONNRESET),
                });
                if self.phase == Phase::Connected {
                    self.phase = Phase::Ended;
                }
            }
            return Ok(());
        }
        if is(EventKind::AddrResolved) {
            return agent()?.resolve_route(self.key());
        }
        if is(EventKind::RouteResolved) {
            self.open()?;
            let data = self.stream.as_ref().ok_or(Errno::INVAL)?.conn_data().emit();
            let param = conn_param(&data);
            // SAFETY: the identifier lives as long as the socket, `param` through the call.
            return unsafe { cm_calls::connect(self.id, &raw const param) };
        }
        if is(EventKind::Established) {
            // SAFETY: the identifier has type RC, so these are the parameters.
            let conn = unsafe { event.c.param.conn };
            let len = usize::from(conn.private_data_len);
            if conn.private_data.is_null() {
                return Err(Errno(libc::EPROTO));
            }
            // SAFETY: the event has so many bytes of private data.
            let bytes = unsafe { std::slice::from_raw_parts(conn.private_data.cast(), len) };
            let peer = ConnData::parse(bytes).ok_or(Errno(libc::EPROTO))?;
            if let Some(stream) = self.stream.as_mut() {
                stream.connected(&peer);
            }
            self.phase = Phase::Connected;
            return Ok(());
        }
        Err(if is(EventKind::Rejected) {
            Errno(libc::ECONNREFUSED)
        } else if event.c.status < 0 {
            Errno(-event.c.status)
        } else {
            Errno(libc::ECONNREFUSED)
        })
    }
}

#[cfg(test)]
mod liars;
