//! An opened device.

use std::os::fd::RawFd;
use std::sync::Arc;

use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::events::AsyncEvent;
use sluice_verbs_model::types::{EventType, QpType};

use crate::channel::Channel;
use crate::cq::Cq;
use crate::device::Device;
use crate::domain::{Domain, Opened};
use crate::events::About;
use crate::qp::{Qp, QpInit};
use crate::xrcd::Xrcd;

/// An opened device (`ibv_context`).
pub struct Context {
    device: Arc<Device>,
    opened: Arc<Opened>,
}

impl Context {
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }

    pub fn create_channel(self: &Arc<Self>) -> Result<Arc<Channel>> {
        Channel::new(&self.opened)
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
        let make = |id| self.device.transport().create_cq(id);
        Cq::new(&self.opened, entries, cookie, channel, make)
    }

    /// An XRC domain. `inode` is the (device, inode) of the file that names it: the same one
    /// opened again gives the same domain. None: a domain of its own. `create` and `exclusive`
    /// are O_CREAT and O_EXCL. EOPNOTSUPP where the device has no XRC.
    pub fn open_xrcd(
        self: &Arc<Self>,
        inode: Option<(u64, u64)>,
        create: bool,
        exclusive: bool,
    ) -> Result<Arc<Xrcd>> {
        if !self.device.caps().xrc {
            return Err(Error::NotSupported);
        }
        Xrcd::open(&self.device.xrcds, &self.opened, inode, create, exclusive)
    }

    /// An XRC target, which has a domain (`init.xrcd`) instead of a PD.
    pub fn create_xrc_recv(self: &Arc<Self>, init: &QpInit) -> Result<Arc<Qp>> {
        if init.qp_type != QpType::XrcRecv {
            return Err(Error::WrongObject);
        }
        self.create_qp_in(None, init)
    }

    pub(crate) fn create_qp_in(
        &self,
        domain: Option<&Arc<Domain>>,
        init: &QpInit,
    ) -> Result<Arc<Qp>> {
        let make = |params: &_| self.device.transport().create_qp(params);
        Qp::create(&self.opened, &self.device.directory, domain, init, make)
    }

    /// An XRC target of this process by its number (`ibv_open_qp`).
    pub fn open_qp(self: &Arc<Self>, xrcd: &Arc<Xrcd>, qpn: u32) -> Result<Arc<Qp>> {
        let qp = self.device.directory.target(qpn).ok_or(Error::NotFound)?;
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
            self.opened.async_queue.push(event);
        }
        changed
    }

    /// Readable while there are asynchronous events; the rules of [`Channel::fd`].
    pub fn async_fd(&self) -> RawFd {
        self.opened.async_queue.fd()
    }

    /// The next asynchronous event; blocks as [`Channel::get_event`] does. It must be
    /// acknowledged on the object it is about (`ack_async_event`).
    pub fn get_async_event(&self) -> Result<AsyncEvent> {
        self.opened.async_queue.next()
    }
}

impl Device {
    pub fn open(self: &Arc<Self>) -> Result<Arc<Context>> {
        self.refresh_gids();
        Ok(Arc::new(Context {
            device: self.clone(),
            opened: Opened::new(&self.adapter)?,
        }))
    }
}
