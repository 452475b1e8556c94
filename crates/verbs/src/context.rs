//! An opened device.

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::types::QpInit;
use crate::{AsyncEvent, Channel, Cq, Device, Pd, Qp, Result, Xrcd};

pub struct Context {
    device: Arc<Device>,
}

impl Context {
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>> {
        todo!()
    }

    pub fn create_channel(self: &Arc<Self>) -> Result<Arc<Channel>> {
        todo!()
    }

    /// A CQ of at least `entries` entries; [`Cq::entries`] says how many it got. `cookie` is
    /// what [`Channel::get_event`] and asynchronous events give back.
    pub fn create_cq(
        self: &Arc<Self>,
        entries: u32,
        cookie: u64,
        channel: Option<&Arc<Channel>>,
        comp_vector: u32,
    ) -> Result<Arc<Cq>> {
        let _ = (entries, cookie, channel, comp_vector);
        todo!()
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
        let _ = (inode, create, exclusive);
        todo!()
    }

    /// An XRC target, which has a domain (`init.xrcd`) instead of a PD.
    pub fn create_xrc_recv(self: &Arc<Self>, init: &QpInit) -> Result<Arc<Qp>> {
        let _ = init;
        todo!()
    }

    /// An XRC target of this process by its number (`ibv_open_qp`).
    pub fn open_qp(self: &Arc<Self>, xrcd: &Arc<Xrcd>, qpn: u32) -> Result<Arc<Qp>> {
        let _ = (xrcd, qpn);
        todo!()
    }

    /// Readable while there are asynchronous events; the rules of [`Channel::fd`].
    pub fn async_fd(&self) -> RawFd {
        todo!()
    }

    /// The next asynchronous event; blocks as [`Channel::get_event`] does. It must be
    /// acknowledged on the object it is about (`ack_async_event`).
    pub fn get_async_event(&self) -> Result<AsyncEvent> {
        todo!()
    }
}
