//! Completion queues.

use std::mem::MaybeUninit;
use std::sync::Arc;

use crate::types::Wc;
use crate::{Channel, Context, CqTransport, Result};

pub struct Cq {
    context: Arc<Context>,
}

impl Cq {
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub fn channel(&self) -> Option<&Arc<Channel>> {
        todo!()
    }

    /// Small and unique among the CQs of the device that exist.
    pub fn id(&self) -> u32 {
        todo!()
    }

    pub fn cookie(&self) -> u64 {
        todo!()
    }

    pub fn set_cookie(&self, cookie: u64) {
        let _ = cookie;
        todo!()
    }

    pub fn transport(&self) -> &dyn CqTransport {
        todo!()
    }

    pub fn entries(&self) -> u32 {
        todo!()
    }

    /// Takes completions, oldest first, and says how many. The first so many of `out` are
    /// written. Never blocks; asks the transport for progress when there is nothing.
    pub fn poll(&self, out: &mut [MaybeUninit<Wc>]) -> usize {
        let _ = out;
        todo!()
    }

    pub fn poll_one(&self) -> Option<Wc> {
        todo!()
    }

    /// The next completion (only a solicited or failed one, if so wished) makes one event on the
    /// channel. Asking for any after asking for solicited counts as any.
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        let _ = solicited_only;
        todo!()
    }

    /// At least `entries`; EINVAL if more completions than that wait.
    pub fn resize(&self, entries: u32) -> Result<()> {
        let _ = entries;
        todo!()
    }

    /// `ibv_modify_cq`: an event only after `count` completions or `period_us`.
    pub fn moderate(&self, count: u16, period_us: u16) -> Result<()> {
        let _ = (count, period_us);
        todo!()
    }

    /// The program is done with so many events from the channel.
    pub fn ack_events(&self, count: u32) {
        let _ = count;
        todo!()
    }

    pub fn ack_async_event(&self) {
        todo!()
    }

    /// EBUSY while QPs or SRQs use it. Waits until all its events are acknowledged.
    pub fn destroy(&self) -> Result<()> {
        todo!()
    }
}
