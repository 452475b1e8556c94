//! What stands behind `struct rdma_cm_id`, `rdma_event_channel` and `rdma_cm_event`.
//!
//! Each is one allocation that begins with the C structure. A program's pointer is
//! trusted as the manual pages demand; what its fields say is not: a program may change
//! `qp_type` or `channel` as it likes.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use super::abi::*;
use super::address::Address;
use super::agent::{Agent, Info};
use super::channel::{Channel, Key};
use super::connector::Limits;
use super::message::ConnParams;
use super::path::{HOP_LIMIT, PACKET_LIFE_TIME};
use super::rendezvous::Rendezvous;
use super::{Errno, c_address, device};
use crate::ffi::*;

/// Private data of an event, padded with zeros; the longest is that of REP.
pub const EVENT_PRIVATE_MAX: usize = 256;

#[repr(C)]
pub struct ChannelObject {
    pub c: rdma_event_channel,
    pub channel: Arc<Channel>,
}

/// Events of one identifier that a program has and that it has given back.
#[derive(Default)]
pub struct Outstanding {
    count: Mutex<usize>,
    changed: Condvar,
}

#[repr(C)]
pub struct EventObject {
    pub c: rdma_cm_event,
    private: [u8; EVENT_PRIVATE_MAX],
    /// Whose destruction waits for this event.
    pub owner: Arc<Outstanding>,
    /// A request: whose QP attributes apply.
    pub listener: *mut rdma_cm_id,
}

/// A group that was joined.
pub struct Group {
    pub address: Address,
    pub mgid: ibv_gid,
    /// The join event was taken and the QP attached.
    pub attached: bool,
    pub send_only: bool,
    /// Names the join of the event that is under way.
    pub context: usize,
}

/// The attributes that `rdma_create_ep` keeps for the identifiers of a listener.
#[derive(Clone, Copy)]
pub struct Template {
    pub pd: *mut ibv_pd,
    pub qp: ibv_qp_init_attr,
}

/// What of an identifier stands on a protection domain.
#[derive(Clone, Copy)]
pub enum PdUser {
    Qp,
    Srq,
}

/// What only calls on the identifier itself use. A program makes one of them at a time,
/// and the lock holds it to that.
#[derive(Default)]
pub struct Inner {
    pub channel: Option<Arc<Channel>>,
    /// Made for this identifier, because the program gave no channel.
    pub own_channel: Option<Box<ChannelObject>>,
    pub path: Option<Box<ibv_sa_path_rec>>,
    pub template: Option<Template>,
    /// Goes in front of the program's private data (`ai_connect`).
    pub connect_prefix: Vec<u8>,
    pub groups: Vec<Group>,
    pub device: Option<&'static device::Device>,
    /// The default protection domain, for each [`PdUser`] that holds it.
    pub pds: [Option<usize>; 2],
    /// This side asked for the connection.
    pub active: bool,
    /// RDMA reads and atomics agreed on, as far as this side knows.
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub qkey: u32,
    pub psn: u32,
}

#[repr(C)]
pub struct Id {
    /// What the program has a pointer to, and we write through that.
    c: UnsafeCell<rdma_cm_id>,
    pub key: Key,
    pub outstanding: Arc<Outstanding>,
    inner: Mutex<Inner>,
}

/// Identifiers by key, for events.
struct Registry(Mutex<HashMap<Key, IdPointer>>);

#[derive(Clone, Copy)]
struct IdPointer(*mut Id);
// SAFETY: the registry's lock is held whenever a pointer from it is first used, and
// `forget` takes it out before it is freed.
unsafe impl Send for IdPointer {}

static REGISTRY: OnceLock<Registry> = OnceLock::new();

fn registry() -> MutexGuard<'static, HashMap<Key, IdPointer>> {
    let registry = REGISTRY.get_or_init(|| Registry(Mutex::default()));
    registry.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Channels by the address of their object. A thread may ask a channel that another one has destroyed
/// a moment ago, as rping's does at its end. A library that asks the kernel gets EBADF for a
/// descriptor that is closed by then, and so does ours.
static CHANNELS: OnceLock<Mutex<HashMap<usize, Arc<Channel>>>> = OnceLock::new();

fn channels() -> MutexGuard<'static, HashMap<usize, Arc<Channel>>> {
    let channels = CHANNELS.get_or_init(Mutex::default);
    channels.lock().unwrap_or_else(PoisonError::into_inner)
}

static AGENT: Mutex<Option<(u32, &'static Agent)>> = Mutex::new(None);

/// The connection manager of this process. A forked child gets its own: the parent's
/// thread is not in it.
pub fn agent() -> Result<&'static Agent, Errno> {
    let mut agent = AGENT.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if let Some((owner, running)) = *agent
        && owner == pid
    {
        return Ok(running);
    }
    let started = Agent::start(Rendezvous::open()?, Limits::default(), device::ways)?;
    let started: &'static Agent = Box::leak(Box::new(started));
    let first = agent.is_none();
    *agent = Some((pid, started));
    if first {
        // SAFETY: the handler of the fork does what a child of a threaded process may do: it tries
        // locks, never waits for one, and closes descriptors.
        unsafe {
            libc::pthread_atfork(None, None, Some(forked));
            libc::atexit(leave);
        }
    }
    Ok(started)
}

/// At the end of the process: peers on other hosts see nothing else of it. A forked child that
/// has made no agent of its own leaves its parent's alone.
extern "C" fn leave() {
    let Ok(agent) = AGENT.try_lock() else {
        return;
    };
    if let Some((owner, running)) = *agent
        && owner == std::process::id()
    {
        running.leave();
    }
}

/// In a forked child: lets go of the parent's connections. The parent's agent is never
/// used or dropped here, so nothing closes these numbers a second time.
extern "C" fn forked() {
    let Ok(agent) = AGENT.try_lock() else {
        return;
    };
    if let Some((_, parents)) = *agent {
        for fd in parents.descriptors() {
            // A descriptor that is not open any more is what was wanted.
            let _ = sluice_sys::unix::close(fd);
        }
    }
}

impl ChannelObject {
    pub fn new() -> Result<Box<Self>, Errno> {
        let channel = Arc::new(Channel::new()?);
        let object = Box::new(Self {
            c: rdma_event_channel { fd: channel.fd() },
            channel,
        });
        let address = (&raw const *object).addr();
        channels().insert(address, Arc::clone(&object.channel));
        Ok(object)
    }

    /// The channel that a program names, which goes on as long as somebody waits for it; EBADF if
    /// the program has destroyed it. The pointer is compared only.
    pub fn find(pointer: *mut rdma_event_channel) -> Result<Arc<Channel>, Errno> {
        let found = channels().get(&pointer.addr()).cloned();
        found.ok_or(Errno::BADF)
    }

    /// Takes back a channel that was given to a program; `None` if it has been taken back already.
    ///
    /// # Safety
    /// What stands at `pointer`, if a channel does, was given away by `Box::into_raw`.
    pub unsafe fn take(pointer: *mut rdma_event_channel) -> Option<Box<Self>> {
        // Out of the table before it is freed: of two threads that destroy it one finds it.
        channels().remove(&pointer.addr())?;
        // SAFETY: it stood in the table, so it was made and not freed; the caller's contract.
        Some(unsafe { Box::from_raw(pointer.cast::<Self>()) })
    }
}

impl Drop for ChannelObject {
    fn drop(&mut self) {
        channels().remove(&(&raw const *self).addr());
    }
}

impl Outstanding {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self) {
        *self.count() += 1;
    }

    pub fn done(&self) {
        let mut count = self.count();
        *count = count.saturating_sub(1);
        self.changed.notify_all();
    }

    /// Blocks while the program has events of this identifier.
    pub fn wait(&self) {
        let count = self.count();
        let waited = self.changed.wait_while(count, |count| *count > 0);
        drop(waited);
    }
}

impl EventObject {
    /// An event for the program, counted on `owner` until it is given back.
    pub fn new(id: *mut rdma_cm_id, kind: u32, status: i32, owner: &Arc<Outstanding>) -> Box<Self> {
        Box::new(Self {
            c: rdma_cm_event {
                id,
                listen_id: null_mut(),
                event: kind,
                status,
                // SAFETY: all zeros is a valid value of every member.
                param: unsafe { std::mem::zeroed() },
            },
            private: [0; EVENT_PRIVATE_MAX],
            owner: Arc::clone(owner),
            listener: null_mut(),
        })
    }

    /// Puts private data into the event and gives its place and length: at least `len`
    /// bytes, as a message of InfiniBand has them, the rest zeros.
    pub fn keep_private(&mut self, bytes: &[u8], len: usize) -> (*const c_void, u8) {
        let room = bytes.len().min(EVENT_PRIVATE_MAX);
        self.private[..room].copy_from_slice(&bytes[..room]);
        let len = len.max(room).min(255);
        (self.private.as_ptr().cast(), len as u8)
    }

    /// # Safety
    /// `event` came from [`EventObject::give`], and the program does not use it again.
    pub unsafe fn take(event: *mut rdma_cm_event) -> Box<Self> {
        // SAFETY: the caller's contract.
        unsafe { Box::from_raw(event.cast::<Self>()) }
    }

    pub fn give(self: Box<Self>) -> *mut rdma_cm_event {
        Box::into_raw(self).cast()
    }
}

impl Id {
    /// Makes the identifier of a key. `channel` NULL: it gets one of its own and is
    /// synchronous.
    pub fn make(
        key: Key,
        port_space: u16,
        qp_type: u32,
        context: *mut c_void,
        channel: Arc<Channel>,
        channel_object: *mut rdma_event_channel,
        own_channel: Option<Box<ChannelObject>>,
    ) -> *mut rdma_cm_id {
        // SAFETY: all zeros is a valid rdma_cm_id: null pointers and numbers.
        let mut c: rdma_cm_id = unsafe { std::mem::zeroed() };
        c.channel = channel_object;
        c.context = context;
        c.ps = u32::from(port_space);
        c.qp_type = qp_type;
        let id = Box::new(Self {
            c: UnsafeCell::new(c),
            key,
            outstanding: Arc::default(),
            inner: Mutex::new(Inner {
                channel: Some(channel),
                own_channel,
                responder_resources: RDMA_MAX_RESP_RES,
                initiator_depth: RDMA_MAX_INIT_DEPTH,
                psn: random_psn(),
                ..Inner::default()
            }),
        });
        let id = Box::into_raw(id);
        registry().insert(key, IdPointer(id));
        id.cast()
    }

    /// # Safety
    /// `pointer` came from `rdma_create_id` or an event and was not destroyed.
    pub unsafe fn of<'a>(pointer: *mut rdma_cm_id) -> &'a Self {
        // SAFETY: the caller's contract.
        unsafe { &*pointer.cast::<Self>() }
    }

    /// The queue pair that the program or `rdma_create_qp` has put in.
    pub fn qp(&self) -> *mut ibv_qp {
        // SAFETY: the field is written by calls for this identifier, which a program makes one after the other.
        unsafe { (*self.c.get()).qp }
    }

    pub fn context(&self) -> *mut c_void {
        // SAFETY: the field is written when the identifier is made, and by the program.
        unsafe { (*self.c.get()).context }
    }

    pub fn channel_object(&self) -> *mut rdma_event_channel {
        // SAFETY: the field is written by calls for this identifier, which a program makes one after the other.
        unsafe { (*self.c.get()).channel }
    }

    pub fn qp_type(&self) -> u32 {
        // SAFETY: the field is written when the identifier is made, and by nobody else.
        unsafe { (*self.c.get()).qp_type }
    }

    pub fn has_srq(&self) -> bool {
        // SAFETY: the field is written by calls for this identifier, which a program makes one after the other.
        unsafe { !(*self.c.get()).srq.is_null() }
    }

    pub fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn synchronous(&self) -> bool {
        self.inner().own_channel.is_some()
    }

    /// Takes the identifier out of the registry, so that no event finds it any more, and
    /// waits for the events that the program has.
    pub fn forget(&self) {
        registry().remove(&self.key);
        self.outstanding.wait();
    }

    /// The identifier of an event, with one more event outstanding; `None` when it was
    /// destroyed meanwhile.
    pub fn for_event(key: Key) -> Option<*mut rdma_cm_id> {
        let registry = registry();
        let IdPointer(id) = *registry.get(&key)?;
        // SAFETY: `forget` waits for the registry's lock before the identifier is freed,
        // and for the event that is counted here after that.
        unsafe { (*id).outstanding.add() };
        Some(id.cast())
    }

    /// Writes what the connection manager knows of the addresses into the fields that the
    /// program reads, and binds the identifier to the device once it has an address.
    ///
    /// # Safety
    /// As [`Id::of`].
    pub unsafe fn show_addresses(id: *mut rdma_cm_id, info: &Info) {
        // SAFETY: the caller's contract; the fields are in a cell of the identifier, and nothing below reads them by
        // `this`.
        let (c, this) = unsafe { (&mut *id, Self::of(id)) };
        let addr = &mut c.route.addr;
        if let Some(source) = &info.source {
            addr.src_storage = c_address::write(source).0;
            // An identifier that is bound to the loopback's address and goes nowhere yet has no
            // device (Linux drivers/infiniband/core/cma.c, cma_any_addr): libfabric takes its
            // device's own addresses then, and would give away 127.0.0.1 otherwise.
            let has_device = match info.destination {
                Some(_) => !source.is_any(),
                None => !source.is_any() && !source.ip.is_loopback(),
            };
            if has_device && let Ok(device) = device::at(info.device) {
                addr.addr.sgid = device.gid(source).1;
                addr.addr.pkey = u16::MAX.to_be();
                c.verbs = device.context();
                c.port_num = device::PORT;
                this.inner().device = Some(device);
            }
        }
        if let Some(destination) = &info.destination {
            addr.dst_storage = c_address::write(destination).0;
            addr.addr.dgid = ibv_gid {
                raw: info.remote.map_or(destination.gid(), |remote| {
                    if remote.gid == [0; 16] {
                        destination.gid()
                    } else {
                        remote.gid
                    }
                }),
            };
        }
    }

    /// Gives the program the one path that there is.
    ///
    /// # Safety
    /// As [`Id::of`].
    pub unsafe fn show_route(id: *mut rdma_cm_id, info: &Info) {
        // SAFETY: the caller's contract; the fields are in a cell of the identifier, and nothing below reads them by
        // `this`.
        let (c, this) = unsafe { (&mut *id, Self::of(id)) };
        // "Exactly" of the selectors in IBTA 15.2.5.16.
        const EXACTLY: u8 = 2;
        let mut inner = this.inner();
        let path = inner.path.insert(Box::new(ibv_sa_path_rec {
            dgid: c.route.addr.addr.dgid,
            sgid: c.route.addr.addr.sgid,
            dlid: 0,
            slid: 0,
            raw_traffic: 0,
            flow_label: 0,
            hop_limit: HOP_LIMIT,
            traffic_class: info.options.tos,
            reversible: 1,
            numb_path: 1,
            pkey: u16::MAX.to_be(),
            sl: 0,
            mtu_selector: EXACTLY,
            mtu: info.mtu,
            rate_selector: EXACTLY,
            // 10 Gb/s: what a device says that knows no better (ibv_rate 3).
            rate: 3,
            packet_life_time_selector: EXACTLY,
            packet_life_time: PACKET_LIFE_TIME,
            preference: 0,
        }));
        c.route.path_rec = &raw mut **path;
        c.route.num_paths = 1;
    }
}

/// The first PSN of what the peer sends over a connection. It must differ from the connection before, so that packets
/// that are late are not taken for new ones, and strangers should not guess it.
fn random_psn() -> u32 {
    (super::random() >> 40) as u32
}

/// What a REQ, a REP or the state machine calls the parameters of this identifier.
pub fn conn_params(inner: &Inner, qp_num: u32, gid: ibv_gid) -> ConnParams {
    ConnParams {
        qp_num,
        psn: inner.psn,
        gid: gid.raw,
        ..ConnParams::default()
    }
}
