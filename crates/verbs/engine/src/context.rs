//! An opened device.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::events::{About, AsyncQueue};
use crate::qp::QpInit;
use crate::{Channel, Cq, Device, Error, Pd, Qp, Result, Xrcd};
use sluice_verbs_model::events::AsyncEvent;
use sluice_verbs_model::types::{EventType, QpType};

/// An opened device (`ibv_context`).
pub struct Context {
    device: Arc<Device>,
    pub(crate) async_queue: AsyncQueue,
}

impl Context {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Arc<Context>> {
        let async_queue = AsyncQueue::new()?;
        device.contexts.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Context {
            device: device.clone(),
            async_queue,
        }))
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>> {
        Pd::new(self)
    }

    pub fn create_channel(self: &Arc<Self>) -> Result<Arc<Channel>> {
        Channel::new(self)
    }

    /// A CQ of at least `entries` entries; [`Cq::entries`] says how many it got. `cookie` is
    /// what [`Channel::get_event`] and asynchronous events give back. There is one completion
    /// vector, 0.
    pub fn create_cq(
        self: &Arc<Self>,
        entries: u32,
        cookie: u64,
        channel: Option<&Arc<Channel>>,
        comp_vector: u32,
    ) -> Result<Arc<Cq>> {
        if comp_vector != 0 {
            return Err(Error::BadValue);
        }
        Cq::new(self, entries, cookie, channel)
    }

    /// An XRC domain. `inode` is the (device, inode) of the file that names it: the same one
    /// opened again gives the same domain. None: a domain of its own. `create` and `exclusive`
    /// are O_CREAT and O_EXCL.
    pub fn open_xrcd(
        self: &Arc<Self>,
        inode: Option<(u64, u64)>,
        create: bool,
        exclusive: bool,
    ) -> Result<Arc<Xrcd>> {
        Xrcd::open(self, inode, create, exclusive)
    }

    /// An XRC target, which has a domain (`init.xrcd`) instead of a PD.
    pub fn create_xrc_recv(self: &Arc<Self>, init: &QpInit) -> Result<Arc<Qp>> {
        if init.qp_type != QpType::XrcRecv {
            return Err(Error::WrongObject);
        }
        Qp::create(self, None, init)
    }

    /// An XRC target of this process by its number (`ibv_open_qp`).
    pub fn open_qp(self: &Arc<Self>, xrcd: &Arc<Xrcd>, qpn: u32) -> Result<Arc<Qp>> {
        let qp = self.device.xrc_target(qpn).ok_or(Error::NotFound)?;
        match qp.xrcd() {
            Some(of) if of.id() == xrcd.id() => Ok(qp),
            _ => Err(Error::WrongObject),
        }
    }

    /// Looks at the host's addresses again; a change is an asynchronous event of the port.
    pub fn refresh_gids(&self) -> bool {
        let changed = self.device.refresh_gids();
        if changed {
            let event = (EventType::GidChange, About::Port(1));
            self.async_queue.push(event);
        }
        changed
    }

    /// Readable while there are asynchronous events; the rules of [`Channel::fd`].
    pub fn async_fd(&self) -> RawFd {
        self.async_queue.fd()
    }

    /// The next asynchronous event; blocks as [`Channel::get_event`] does. It must be
    /// acknowledged on the object it is about (`ack_async_event`).
    pub fn get_async_event(&self) -> Result<AsyncEvent> {
        self.async_queue.next()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.device.contexts.fetch_sub(1, Ordering::Relaxed);
    }
}
