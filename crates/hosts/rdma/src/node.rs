//! A device with its queues, and its links from beginning to end.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use sluice_verbs_abi::*;

use crate::choice::DeviceChoice;
use crate::device::{Device, Port};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::event::DeviceEvents;
use crate::library::{Library, check, object};
use crate::limits::Limits;
use crate::link::{Link, LinkId, Links, RECEIVE, State, request_id};
use crate::pages::Pages;
use crate::queue::SendQueue;
use crate::receive::ReceiveQueue;
use crate::region::{Access, Paging, Region};
use crate::request::post_marker;
use crate::status::Status;

/// Work completions that are taken with one call.
pub(crate) const COMPLETIONS_AT_ONCE: usize = 32;

/// What [`Node::events_fd`] says of the completion channel, and of the device.
pub(crate) const CHANNEL: u64 = 0;
const DEVICE: u64 = 1;

/// Routers between the hosts.
const HOP_LIMIT: u8 = 64;
/// Who finds no receive buffer asks again after 0.16 ms (IBTA table 45): time for a busy node to
/// poll, and little for a sender to lose.
const RNR_TIMER_CODE: u8 = 8;
/// Asks again without an end: a peer that is slow to poll is not dead.
const RNR_RETRIES_FOREVER: u8 = 7;

/// `vendor_id` of what the kernel emulates: rxe in older kernels, rxe, siw
/// (`drivers/infiniband/sw`). Adapters have the OUI of who made them.
const EMULATORS: [u32; 3] = [0, 0xff_ffff, 0x62_6d74];

/// A device with one completion queue, one shared receive queue if it can have one, and its links.
pub struct Node {
    pub(crate) links: Links,
    pub(crate) limits: Limits,
    /// Bytes of payload that a request can carry along.
    pub(crate) inline_bytes: u32,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) channel: *mut ibv_comp_channel,
    /// Readable when the channel or the device has an event.
    pub(crate) events_fd: OwnedFd,
    pub(crate) completions: Box<[ibv_wc]>,
    /// Slots of links that may need a marker.
    pub(crate) marker_due: Vec<u16>,
    /// Links that fail, until that was told.
    pub(crate) failing: Vec<LinkId>,
    /// Links that were destroyed, and whose last completions may not have come.
    pub(crate) retiring: Vec<LinkId>,
    /// Happened and not told.
    pub(crate) device_events: DeviceEvents,
    /// The device is gone.
    pub(crate) lost: bool,
    is_adapter: bool,
    pub(crate) polls: u32,
    /// `None`: the device has no such queue, and each link has receive buffers of its own.
    pub(crate) receive: Option<ReceiveQueue>,
    pub(crate) messages: MessagePool,
    port: Port,
    // Last: everything before is of this device.
    pub(crate) device: Arc<Device>,
}

// SAFETY: the objects behind the pointers may be used by any thread (rdma-core,
// Documentation/libibverbs.md, "Thread safety"), and belong to this node alone.
unsafe impl Send for Node {}

/// A place in the order of a link's requests ([`Node::queue_position`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePosition {
    link: LinkId,
    position: u32,
}

/// The buffers of messages that are sent, the same number for each link.
pub(crate) struct MessagePool {
    pub region: Region,
    // Last: the device uses it as long as the region is there.
    pub pages: Pages,
}

impl Node {
    /// Opens the device and makes everything but links.
    ///
    /// `local` is an address of this host: links are with peers that can be reached from it. The
    /// choice is the one that the library was loaded for.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::NoAddress`], [`Error::Limits`], [`Error::Device`] if the
    /// device is too small for the limits, [`Error::Call`].
    pub fn open(
        library: &Library,
        choice: &DeviceChoice,
        local: IpAddr,
        limits: Limits,
    ) -> Result<Self, Error> {
        limits.check()?;
        let device = Arc::new(Device::open(library, choice)?);
        let attr = device.attributes()?;
        let receive = match has_shared_queues(&attr, &limits) {
            true => ReceiveQueue::shared(&device, limits.receive_depth, RECEIVE)?,
            false => None,
        };
        let is_shared = receive.is_some();
        fits(&attr, &limits, is_shared)?;
        let port = device.find(local)?;
        let messages = MessagePool::new(&device, &limits)?;
        let events_fd = epoll()?;
        let (channel, cq) = completion_queue(&device, limits.completions(is_shared))?;
        // From here on dropping it takes everything back.
        let node = Self {
            links: Links::new(limits.links_max),
            limits,
            inline_bytes: 0,
            cq,
            channel,
            events_fd,
            // SAFETY: plain numbers, for which zero is a value.
            completions: vec![unsafe { std::mem::zeroed() }; COMPLETIONS_AT_ONCE].into(),
            marker_due: Vec::with_capacity(limits.links_max.into()),
            failing: Vec::with_capacity(limits.links_max.into()),
            retiring: Vec::with_capacity(limits.links_max.into()),
            device_events: DeviceEvents::default(),
            lost: false,
            is_adapter: !device.is_software && !EMULATORS.contains(&attr.vendor_id),
            polls: 0,
            receive,
            messages,
            port,
            device,
        };
        // SAFETY: both objects exist.
        let (channel_fd, device_fd) =
            unsafe { ((*node.channel).fd, (*node.device.context).async_fd) };
        for (fd, data) in [(channel_fd, CHANNEL), (device_fd, DEVICE)] {
            never_block(fd)?;
            watch(&node.events_fd, fd, data)?;
        }
        Ok(node)
    }

    /// The name of the device.
    pub fn device_name(&self) -> &str {
        &self.device.name
    }

    /// Whether it is an RDMA adapter: neither our own library nor what the kernel emulates (rxe, siw).
    pub fn is_adapter(&self) -> bool {
        self.is_adapter
    }

    /// Whether links share one receive queue; the device may have none such.
    pub fn shares_receive_queue(&self) -> bool {
        self.receive.is_some()
    }

    /// How much of everything it has.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Makes memory known to the device. With our own devices its pages come into memory
    /// when they are used; with an adapter all of them at once.
    ///
    /// # Errors
    /// [`Error::Call`], mostly because more memory would be locked than the process may
    /// (`RLIMIT_MEMLOCK`, adapters only).
    ///
    /// # Safety
    /// All of the memory stays mapped and readable, and with [`Access::Target`] or
    /// [`Access::Receive`] writable, until the region is dropped, and after that as long as a
    /// [`Slice`](crate::Slice) of it is used. Peers and the device change it at any time: whoever
    /// reads what they may write does that with volatile or atomic accesses.
    pub unsafe fn register(
        &self,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Region, Error> {
        // SAFETY: the caller's contract.
        unsafe { Region::new(&self.device, start, length, access, Paging::OnDemand) }
    }

    /// Makes a link, and what its peer must be told.
    ///
    /// # Errors
    /// [`Error::TooManyLinks`], [`Error::Call`].
    pub fn create_link(&mut self) -> Result<(LinkId, Endpoint), Error> {
        let link = self.links.free_slot().ok_or(Error::TooManyLinks)?;
        let psn = random_24_bits()?;
        let own_receives = self.limits.own_receives(self.receive.is_some());
        let mtu = self.device.mtu(self.port.number)?;
        let mut init = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: self
                .receive
                .as_ref()
                .map_or(ptr::null_mut(), ReceiveQueue::srq),
            cap: ibv_qp_cap {
                max_send_wr: self.limits.queue_depth(),
                max_recv_wr: own_receives,
                max_send_sge: 1,
                max_recv_sge: own_receives.min(1),
                max_inline_data: self.limits.inline_bytes,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let create = self.device.functions.create_qp;
        // SAFETY: the domain, the queues and the structure exist.
        let mut qp = unsafe { create(self.device.pd, &raw mut init) };
        if qp.is_null() && init.cap.max_inline_data > 0 {
            // It cannot do that much inline, and there is no other way to learn it.
            init.cap.max_inline_data = 0;
            // SAFETY: the domain and the queues exist; the first call has made nothing, and the structure is
            // still ours.
            qp = unsafe { create(self.device.pd, &raw mut init) };
        }
        link.qp = object("ibv_create_qp", qp)?;
        // SAFETY: the queue pair exists.
        link.qpn = unsafe { (*qp).qp_num };
        link.psn = psn;
        link.mtu = mtu;
        link.state = State::New;
        link.queue = SendQueue::new(self.limits.send_depth, self.limits.messages_max);
        self.inline_bytes = init.cap.max_inline_data.min(self.limits.inline_bytes);
        let id = link.id;
        let endpoint = Endpoint {
            gid: self.port.gid,
            qpn: link.qpn,
            psn,
            mtu,
        };
        let mut attr = no_attributes();
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = self.port.number;
        attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        let initialised = modify(&self.device, qp, &mut attr, mask).and_then(|()| {
            // A queue pair takes receive buffers from now on (IBTA 10.3.1.2).
            if own_receives > 0 {
                let number = RECEIVE | request_id(id, 0);
                let queue = ReceiveQueue::of_link(&self.device, qp, own_receives, number)?;
                link.receive = Some(queue);
            }
            Ok(())
        });
        self.links.renumber();
        if let Err(error) = initialised {
            self.take_back(id);
            return Err(error);
        }
        Ok((id, endpoint))
    }

    /// Connects a new link with the one that the peer made. Both ends do so, in any order; who
    /// posts to a peer that has not connected yet is repeated until it has, as long as
    /// [`Limits::retries`] allow.
    ///
    /// # Errors
    /// [`Error::NoSuchLink`], [`Error::Connected`], and [`Error::Call`] if there is no way to the
    /// peer; the link can only be destroyed then.
    pub fn connect(&mut self, link: LinkId, peer: &Endpoint) -> Result<(), Error> {
        let link = self.links.get_mut(link).ok_or(Error::NoSuchLink)?;
        if link.state != State::New {
            return Err(Error::Connected);
        }
        let mut attr = no_attributes();
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = u32::from(link.mtu.min(peer.mtu));
        attr.dest_qp_num = peer.qpn;
        attr.rq_psn = peer.psn;
        attr.max_dest_rd_atomic = 1;
        attr.min_rnr_timer = RNR_TIMER_CODE;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = self.port.number;
        attr.ah_attr.grh.dgid.raw = peer.gid;
        attr.ah_attr.grh.sgid_index = self.port.gid_index;
        attr.ah_attr.grh.hop_limit = HOP_LIMIT;
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        modify(&self.device, link.qp, &mut attr, mask)?;
        let mut attr = no_attributes();
        attr.qp_state = IBV_QPS_RTS;
        attr.sq_psn = link.psn;
        attr.timeout = self.limits.ack_timeout;
        attr.retry_cnt = self.limits.retries;
        attr.rnr_retry = RNR_RETRIES_FOREVER;
        attr.max_rd_atomic = 1;
        let mask = IBV_QP_STATE
            | IBV_QP_SQ_PSN
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_MAX_QP_RD_ATOMIC;
        modify(&self.device, link.qp, &mut attr, mask)?;
        link.state = State::Connected;
        Ok(())
    }

    /// Ends a link. No event tells of it any more; its requests may have happened or not. Once this
    /// returns, the peer cannot write by it. The place in [`Limits::links_max`] is free after
    /// [`poll`](Self::poll) has found what was outstanding.
    pub fn destroy_link(&mut self, link: LinkId) {
        let Some(link) = self.links.get_mut(link) else {
            return;
        };
        if link.state == State::Retiring {
            return;
        }
        if !matches!(link.state, State::Failing(_) | State::Failed) {
            end(&self.device, link);
        }
        link.state = State::Retiring;
        self.failing.retain(|failing| *failing != link.id);
        self.retiring.push(link.id);
    }

    /// Requests of the link that no event has told of yet.
    pub fn unfinished(&self, link: LinkId) -> usize {
        self.links
            .get(link)
            .map_or(0, |link| link.queue.unfinished() as usize)
    }

    /// A place in the order of the link's requests: behind all that were posted so far. `None`:
    /// there is no such link.
    pub fn queue_position(&self, link: LinkId) -> Option<QueuePosition> {
        let position = self.links.get(link)?.queue.position();
        Some(QueuePosition { link, position })
    }

    /// Whether every request before the position is over, done or failed, and none of them will be
    /// carried out again: the device does not touch their memory any more.
    pub fn is_past(&self, at: QueuePosition) -> bool {
        let link = self.links.get(at.link);
        link.is_none_or(|link| link.silent || link.queue.is_past(at.position))
    }

    /// Readable when [`poll`](Self::poll) may have something to tell, after [`arm`](Self::arm).
    /// An epoll(7) instance: it can be polled, and be added to another one.
    pub fn fd(&self) -> RawFd {
        self.events_fd.as_raw_fd()
    }

    /// Completions came since the queue was armed. Which, says the queue. It is armed for one event
    /// at a time, so that there is rarely a second one; that makes the descriptor readable again.
    pub(crate) fn take_channel_event(&self) {
        let functions = &self.device.functions;
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel exists, and its descriptor does not block; it has one queue, so the
        // event was of that.
        unsafe {
            if (functions.get_cq_event)(self.channel, &raw mut cq, &raw mut context) == 0 {
                (functions.ack_cq_events)(self.cq, 1);
            }
        }
    }

    /// The link has failed. Its outstanding requests come back.
    pub(crate) fn fail(&mut self, id: LinkId, status: Status) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        if !matches!(link.state, State::New | State::Connected) {
            return;
        }
        end(&self.device, link);
        link.state = State::Failing(status);
        self.failing.push(id);
    }

    /// Frees the places of links whose completions have all been found: to be called when the
    /// completion queue was empty.
    pub(crate) fn reap(&mut self) {
        let mut at = 0;
        while let Some(&id) = self.retiring.get(at) {
            match self.links.get(id) {
                Some(link) if !link.is_drained() => at += 1,
                _ => {
                    self.retiring.swap_remove(at);
                    self.take_back(id);
                }
            }
        }
    }

    fn take_back(&mut self, id: LinkId) {
        let destroy = self.device.functions.destroy_qp;
        if let Some(link) = self.links.get_mut(id) {
            // SAFETY: the queue pair exists, and the place forgets it.
            unsafe { destroy(link.qp) };
            link.clear();
        }
        self.links.renumber();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.take_channel_event();
        let functions = &self.device.functions;
        for link in self.links.iter_mut() {
            if link.state != State::Free {
                // SAFETY: the queue pair exists, and the place forgets it.
                unsafe { (functions.destroy_qp)(link.qp) };
                link.clear();
            }
        }
        // SAFETY: both exist, and nothing uses them any more: every event was acknowledged.
        unsafe {
            (functions.destroy_cq)(self.cq);
            (functions.destroy_comp_channel)(self.channel);
        }
    }
}

impl MessagePool {
    fn new(device: &Arc<Device>, limits: &Limits) -> Result<Self, Error> {
        let pages = Pages::new(limits.message_pool_bytes() / crate::MESSAGE_BYTES_MAX);
        // SAFETY: the pages live as long as the region, which is dropped first.
        let region = unsafe {
            Region::new(
                device,
                pages.start(),
                pages.bytes(),
                Access::Source,
                Paging::AtOnce,
            )
        }?;
        Ok(Self { region, pages })
    }
}

/// Whether the device says that it has shared receive queues that are long enough.
fn has_shared_queues(attr: &ibv_device_attr, limits: &Limits) -> bool {
    let longest = u32::try_from(attr.max_srq_wr).unwrap_or(0);
    attr.max_srq > 0 && limits.receive_depth <= longest
}

/// Whether the device has as much as the limits ask for.
fn fits(attr: &ibv_device_attr, limits: &Limits, is_shared: bool) -> Result<(), Error> {
    for (what, wanted, has) in [
        (
            "requests in a queue pair",
            limits.queue_depth().max(limits.own_receives(is_shared)),
            attr.max_qp_wr,
        ),
        (
            "completions in a queue",
            limits.completions(is_shared),
            attr.max_cqe,
        ),
        ("queue pairs", limits.links_max.into(), attr.max_qp),
    ] {
        let has = u32::try_from(has).unwrap_or(0);
        if wanted > has {
            return Err(Error::Device { what, wanted, has });
        }
    }
    Ok(())
}

fn completion_queue(
    device: &Device,
    completions: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Error> {
    let functions = &device.functions;
    let entries = c_int::try_from(completions).unwrap_or(c_int::MAX);
    // SAFETY: the context is open; the channel is destroyed here if it is not given on.
    unsafe {
        let channel = (functions.create_comp_channel)(device.context);
        let channel = object("ibv_create_comp_channel", channel)?;
        let cq = (functions.create_cq)(device.context, entries, ptr::null_mut(), channel, 0);
        match object("ibv_create_cq", cq) {
            Ok(cq) => Ok((channel, cq)),
            Err(error) => {
                (functions.destroy_comp_channel)(channel);
                Err(error)
            }
        }
    }
}

fn no_attributes() -> ibv_qp_attr {
    // SAFETY: plain numbers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

fn modify(
    device: &Device,
    qp: *mut ibv_qp,
    attr: &mut ibv_qp_attr,
    mask: c_int,
) -> Result<(), Error> {
    // SAFETY: the queue pair exists.
    let answer = unsafe { (device.functions.modify_qp)(qp, attr, mask) };
    check("ibv_modify_qp", answer)
}

/// Nothing goes by the link any more, and what is outstanding comes back: the last request is a
/// marker, which is flushed behind all others (IBTA 10.3.1.5).
fn end(device: &Device, link: &mut Link) {
    let mut attr = no_attributes();
    attr.qp_state = IBV_QPS_ERR;
    // It may be in error already.
    let _ = modify(device, link.qp, &mut attr, IBV_QP_STATE);
    link.silent = !link.queue.is_empty() && post_marker(link).is_err();
}

/// A packet sequence number that a stranger cannot guess.
fn random_24_bits() -> Result<u32, Error> {
    let mut bytes = [0_u8; 4];
    // SAFETY: the buffer has so many bytes. So few come whole (getrandom(2)).
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != bytes.len() as isize {
        return check("getrandom", -1).map(|()| 0);
    }
    Ok(u32::from_ne_bytes(bytes) & 0xff_ffff)
}

fn epoll() -> Result<OwnedFd, Error> {
    // SAFETY: no precondition.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if fd < 0 {
        let error = io::Error::last_os_error();
        return Err(Error::Call {
            call: "epoll_create1",
            error,
        });
    }
    // SAFETY: it is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Has the instance be readable when the descriptor is.
fn watch(instance: &OwnedFd, fd: RawFd, data: u64) -> Result<(), Error> {
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: data,
    };
    // SAFETY: the event is read.
    let answer = unsafe {
        libc::epoll_ctl(
            instance.as_raw_fd(),
            libc::EPOLL_CTL_ADD,
            fd,
            &raw mut event,
        )
    };
    check("epoll_ctl", answer)
}

/// Calls that find no event answer at once.
fn never_block(fd: RawFd) -> Result<(), Error> {
    // SAFETY: no memory is passed.
    let answer = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        match flags {
            -1 => -1,
            flags => libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK),
        }
    };
    check("fcntl", answer)
}

/// What [`Node::fd`] says.
impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events_fd.as_fd()
    }
}
