//! Completion channels.

use std::os::fd::RawFd;

use crate::Result;

/// A completion channel (`ibv_comp_channel`). Its fd is an eventfd in semaphore mode: readable
/// while there are events, one event per read, blocking or not as the program set it.
pub struct Channel {}

impl Channel {
    /// The program may poll it, set O_NONBLOCK and duplicate it, but not read or close it.
    pub fn fd(&self) -> RawFd {
        todo!()
    }

    /// The cookie of a CQ that was armed and got a completion. Blocks, unless the fd is
    /// non-blocking: then `Error::WouldBlock`. `Error::System(EINTR)` when a signal came. Each
    /// event must be acknowledged with [`crate::Cq::ack_events`].
    pub fn get_event(&self) -> Result<u64> {
        todo!()
    }

    /// EBUSY while CQs use it.
    pub fn destroy(&self) -> Result<()> {
        todo!()
    }
}
