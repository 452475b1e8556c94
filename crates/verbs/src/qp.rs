//! Queue pairs.

use std::sync::Arc;

use crate::transport::SendDone;
use crate::types::{EventType, Gid, QpAttr, QpCap, QpState, QpType, Sge};
use crate::wr::{SendWr, Wqe};
use crate::{Context, Cq, Pd, QpTransport, Result, Srq, Xrcd};

pub struct Qp {
    context: Arc<Context>,
}

/// What a QP has done, for statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCounters {
    pub sends_posted: u64,
    pub send_bytes: u64,
    pub sends_failed: u64,
    pub receives_posted: u64,
    pub receives_done: u64,
    pub receive_bytes: u64,
    /// A message found no receive.
    pub rnr: u64,
    /// Requests of the peer that were refused.
    pub refused: u64,
}

/// The send half, locked for posting several requests at once.
pub struct Sender<'a> {
    qp: &'a Qp,
}

impl Sender<'_> {
    /// As [`Qp::post_send`].
    pub fn post(&mut self, wr: &SendWr<'_>) -> Result<()> {
        self.qp.post_send(wr)
    }
}

/// For the program.
impl Qp {
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub fn num(&self) -> u32 {
        todo!()
    }

    pub fn qp_type(&self) -> QpType {
        todo!()
    }

    pub fn state(&self) -> QpState {
        todo!()
    }

    /// None for an XRC target.
    pub fn pd(&self) -> Option<&Arc<Pd>> {
        todo!()
    }

    pub fn send_cq(&self) -> Option<&Arc<Cq>> {
        todo!()
    }

    pub fn recv_cq(&self) -> Option<&Arc<Cq>> {
        todo!()
    }

    pub fn srq(&self) -> Option<&Arc<Srq>> {
        todo!()
    }

    pub fn xrcd(&self) -> Option<&Arc<Xrcd>> {
        todo!()
    }

    pub fn cap(&self) -> QpCap {
        todo!()
    }

    pub fn sq_sig_all(&self) -> bool {
        todo!()
    }

    pub fn cookie(&self) -> u64 {
        todo!()
    }

    pub fn set_cookie(&self, cookie: u64) {
        let _ = cookie;
        todo!()
    }

    /// `ibv_modify_qp`; `mask` of [`crate::types::qp_mask`].
    pub fn modify(&self, attr: &QpAttr, mask: u32) -> Result<()> {
        let _ = (attr, mask);
        todo!()
    }

    /// All attributes as they are (`ibv_query_qp`), the state and `sq_draining` among them.
    pub fn query(&self) -> QpAttr {
        todo!()
    }

    /// Posts one request. The C interface gives the first one that fails as `bad_wr`.
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        let _ = wr;
        todo!()
    }

    /// Locks the send half for several posts.
    pub fn sender(&self) -> Sender<'_> {
        Sender { qp: self }
    }

    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        let _ = (wr_id, sges);
        todo!()
    }

    pub fn attach_multicast(&self, gid: &Gid, lid: u16) -> Result<()> {
        let _ = (gid, lid);
        todo!()
    }

    pub fn detach_multicast(&self, gid: &Gid, lid: u16) -> Result<()> {
        let _ = (gid, lid);
        todo!()
    }

    pub fn counters(&self) -> QpCounters {
        todo!()
    }

    pub fn ack_async_event(&self) {
        todo!()
    }

    /// Waits until its asynchronous events are acknowledged. EBUSY while it is attached to
    /// multicast groups. Completions that were not polled are gone afterwards.
    pub fn destroy(&self) -> Result<()> {
        todo!()
    }
}

/// For the transport, requester's side.
impl Qp {
    pub fn transport(&self) -> &dyn QpTransport {
        todo!()
    }

    /// All attributes; a snapshot.
    pub fn attr(&self) -> QpAttr {
        self.query()
    }

    /// Ends the request `seq` that was [`crate::Posted::Pending`]. Requests may end in any
    /// order; an unknown or flushed `seq` is ignored. May call [`QpTransport::post`] and, after
    /// a failure, [`QpTransport::modify`] from inside.
    pub fn complete_send(&self, seq: u64, done: SendDone) {
        let _ = (seq, done);
        todo!()
    }

    /// There is room again after [`crate::Posted::Busy`].
    pub fn resume(&self) {
        todo!()
    }

    /// Looks at a pending request again; None when it is complete or flushed. Runs with the
    /// send half's lock held.
    pub fn with_wqe<R>(&self, seq: u64, look: impl FnOnce(&Wqe<'_>) -> R) -> Option<R> {
        let _ = (seq, look);
        todo!()
    }

    /// The QP breaks by itself: it moves to ERR, flushes, and raises `event` if there is one
    /// (a transport whose peer died completes the oldest request with RETRY_EXC_ERR instead, if
    /// there is a request).
    pub fn fail(&self, event: Option<EventType>) {
        let _ = event;
        todo!()
    }
}
