//! Completion channels.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sluice_verbs_model::error::{Error, Result};

use crate::domain::Opened;
use crate::events::ChannelQueue;

/// A completion channel (`ibv_comp_channel`). Its fd is an eventfd in semaphore mode: readable
/// while there are events, one event per read, blocking or not as the program set it.
pub struct Channel {
    opened: Arc<Opened>,
    pub(crate) queue: ChannelQueue,
    /// CQs that use it.
    pub(crate) users: AtomicU32,
}

impl Channel {
    pub(crate) fn new(opened: &Arc<Opened>) -> Result<Arc<Channel>> {
        Ok(Arc::new(Channel {
            opened: opened.clone(),
            queue: ChannelQueue::new()?,
            users: AtomicU32::new(0),
        }))
    }

    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }

    /// The program may poll it, set O_NONBLOCK and duplicate it, but not read or close it.
    pub fn fd(&self) -> RawFd {
        self.queue.fd()
    }

    /// The cookie of a CQ that was armed and got a completion. Blocks, unless the fd is
    /// non-blocking: then `Error::WouldBlock`. `Error::System(EINTR)` when a signal came. Each
    /// event must be acknowledged with [`crate::Cq::ack_events`].
    ///
    /// A cancellation point as read(2) is: the caller should hold nothing that needs undoing.
    pub fn get_event(&self) -> Result<u64> {
        self.queue.next()
    }

    /// EBUSY while CQs use it.
    pub fn destroy(&self) -> Result<()> {
        match self.users.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(Error::Busy),
        }
    }
}
