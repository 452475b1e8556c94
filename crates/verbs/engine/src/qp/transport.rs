//! A transport's half of a queue pair.

use std::sync::Arc;

use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::transport::{Posted, QpChange, SendDone};
use sluice_verbs_model::types::Gid;

use super::Qp;
use crate::aftermath::Aftermath;
use crate::wr::{Handed, Wqe};

/// A transport's new queue pair.
pub struct NewQp {
    /// 24 bits, neither 0 nor 1, unique on the fabric and not soon used again.
    pub qpn: u32,
    pub transport: Box<dyn QpTransport>,
}

/// A transport's part of a queue pair.
pub trait QpTransport: Send + Sync {
    /// Called once, before the program gets the QP.
    fn bind(&self, qp: &Arc<Qp>);

    /// A request to carry out. Calls for one QP come one at a time and in posting order, with
    /// the send half's lock held: no call into this QP's requester side from here, and no
    /// waiting. What `wqe` borrows is valid during the call only; after [`Posted::Pending`] the
    /// pieces of memory themselves stay the transport's until it completes the request or the
    /// QP leaves RTS by [`QpTransport::modify`].
    ///
    /// Bindings, local invalidations and requests with bad local keys never come here. A fence
    /// is the engine's: the request comes when earlier READs and atomics are complete.
    fn post(&self, qp: &Qp, wqe: &Wqe<'_>) -> Posted;

    /// Whether it works on requests by their records: it has taken [`Qp::lent_records`] when it was bound,
    /// and finds there what it has answered [`Posted::Pending`] to. Always the same.
    fn is_by_record(&self) -> bool {
        false
    }

    /// Requests wait in the records, without any lock. Who calls this may be another thread than the one
    /// that posted the next requests, and come later than the requests do. What it gives is the end of the last request,
    /// if it has ended already and the engine has not been told; others are told by [`Qp::complete_lent`].
    fn posted(&self, _handed: &Handed, _after: &mut Aftermath) -> Option<SendDone> {
        None
    }

    /// A state change or new attributes. Before `to` is RTR, RTS, INIT or SQD the engine asks
    /// first and changes the state when the transport agrees: an error becomes the call's.
    ///
    /// For ERR, SQE and RESET the state has changed already, nothing new is handed over, and
    /// the answer is ignored. When the call returns the transport has stopped using the memory
    /// of handed-over requests (ERR, RESET: also of taken receives, each given back by
    /// [`Qp::complete_recv`]); what it has not completed the engine flushes. `complete_send`
    /// for those is ignored from then on. It must not wait for a peer that may be dead.
    fn modify(&self, qp: &Qp, change: &QpChange<'_>, after: &mut Aftermath) -> Result<()>;

    /// The program posted receives while a message had found none ([`TakeError::Empty`](sluice_verbs_model::responder::TakeError::Empty)).
    fn receives_posted(&self, _after: &mut Aftermath) {}

    /// UD: messages to this group are to come to the QP now.
    fn attach_multicast(&self, _gid: &Gid) -> Result<()> {
        Err(Error::NotSupported)
    }

    fn detach_multicast(&self, _gid: &Gid) {}

    /// The program destroys a UD QP that still holds requests after [`Posted::Busy`], or makes
    /// the completion queue smaller that their completions are to come to. A device would have
    /// sent them in the meantime: wait a moment, of a bounded length, for the way to be free and
    /// [`Qp::resume`] to be called. Comes without any lock, once for each such QP.
    fn linger(&self) {}

    /// The QP is in RESET and about to be gone. Let go of the `Arc` from `bind`.
    fn destroy(&self, after: &mut Aftermath);
}
