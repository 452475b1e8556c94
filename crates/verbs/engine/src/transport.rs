//! The seam: what the engine asks of a transport.
//!
//! A transport is one per device ([`Transport`]), with a part per completion queue
//! ([`CqTransport`]) and per queue pair ([`QpTransport`]), which are called with the object that they
//! are a part of and therefore stand beside it. The other direction, what a transport
//! asks of the engine, are methods of [`Qp`](crate::Qp) and [`Srq`]:
//!
//! | side | calls |
//! |---|---|
//! | requester | [`Qp::complete_send`](crate::Qp::complete_send), [`Qp::complete_sends`](crate::Qp::complete_sends), [`Qp::resume`](crate::Qp::resume), [`Qp::with_wqe`](crate::Qp::with_wqe); by record [`Qp::lent_records`](crate::Qp::lent_records), [`Qp::complete_lent`](crate::Qp::complete_lent) |
//! | responder | [`Qp::check_remote`](crate::Qp::check_remote), [`Qp::take_recv`](crate::Qp::take_recv), [`Qp::take_recv_xrc`](crate::Qp::take_recv_xrc), [`Qp::complete_recv`](crate::Qp::complete_recv), [`Qp::invalidate`](crate::Qp::invalidate), [`Qp::responder_failed`](crate::Qp::responder_failed) |
//! | responder, with the whole message | [`Qp::carry_out`](crate::Qp::carry_out), which makes these calls |
//! | both | [`Qp::state`](crate::Qp::state), [`Qp::attr`](crate::Qp::attr), [`Qp::fail`](crate::Qp::fail) |
//!
//! **One way.** No call of a transport into the engine leads back into the transport. What
//! follows from it, requests that can be handed over now and queue pairs that break, is written
//! down in an [`Aftermath`](crate::Aftermath), which is run when no lock of the transport is held: by the engine
//! behind the calls that it gives one along, by the transport's own threads at the end of their
//! turns. Until then the queue pair is in the state that it was in: a transport that has let it fail
//! does no more for it by itself.
//!
//! **Locks.** The engine calls [`QpTransport::post`] with the send half's lock held, and every
//! other method with none, except where a method says so. `complete_send` and `resume` take that
//! lock: call them without any lock that `post` takes. `complete_lent` mostly takes none. All calls of a
//! transport into the engine are short and none waits for a peer.
//!
//! **Two ways to hand a request over.** A transport that can do a request in the call does so in
//! [`QpTransport::post`], from the program's own list. One that works on it later does so
//! [by record](QpTransport::is_by_record): `post` only looks at the request, the engine writes its record, and
//! [`QpTransport::posted`] comes with no lock held (decision 0037).
//!
//! **References.** A transport may keep the `Arc<Qp>` that [`QpTransport::bind`] gave it until
//! [`QpTransport::destroy`]; then it must let go of it. Afterwards calls into that QP are
//! harmless and do nothing.

use std::sync::Arc;

use sluice_verbs_model::error::Result;
use sluice_verbs_model::keys::KeyInfo;
use sluice_verbs_model::report::TransportReport;
use sluice_verbs_model::types::Gid;

use crate::iw_cm::IwCm;
use crate::srq::Srq;

pub use crate::cq::{ArmedQueues, CqTransport};
pub use crate::qp::{NewQp, QpTransport};
pub use sluice_verbs_model::transport::{
    Identity, MAD_BYTES, MadPath, Posted, QpChange, QpParams, SendDone, TransportCaps,
};

/// One per device.
pub trait Transport: Send + Sync {
    /// Constant for the life of the device.
    fn caps(&self) -> TransportCaps;

    /// Makes the transport's part of a QP and chooses its number.
    fn create_qp(&self, params: &QpParams) -> Result<NewQp>;

    /// Makes the transport's part of a CQ. `id` is [`Cq::id`](crate::Cq::id).
    fn create_cq(&self, id: u32) -> Result<Box<dyn CqTransport>>;

    /// For a transport whose peers reach memory by other ways than [`Qp::check_remote`](crate::Qp::check_remote):
    /// a key now opens memory to peers: a region with a remote right was registered, or a window
    /// bound. Called before the program learns the key. May run under the send half's lock of
    /// the QP that binds.
    fn key_published(&self, _key: &KeyInfo) -> Result<()> {
        Ok(())
    }

    /// A key opens nothing any more. When this returns nobody touches memory by that key, in
    /// this process or another, and nobody will. May run under the send half's lock.
    fn key_withdrawn(&self, _key: &KeyInfo) {}

    /// A 24-bit number for an SRQ, neither 0 nor 1; peers of XRC QPs name SRQs by it. `xrc`:
    /// peers will.
    fn create_srq(&self, xrc: bool) -> Result<u32>;

    /// The SRQ exists now, under its number; kept as [`QpTransport::bind`]'s.
    fn bind_srq(&self, _srq: &Arc<Srq>) {}

    /// The SRQ is gone, its number may be used again some time.
    fn destroy_srq(&self, _srqn: u32) {}

    /// What has happened on the way to and from peers, by name, for whoever looks: counts since
    /// the beginning. May be called at the end of the process; it waits for no peer, and for no
    /// thread for long.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// What it is at the moment, for whoever looks. May be called at any time by any thread without
    /// a lock of the engine's; it waits for no peer.
    fn report(&self) -> TransportReport {
        TransportReport::default()
    }

    /// Queue pair 1 of the port, where peers are on other hosts and connections are made by
    /// management datagrams.
    fn gsi(&self) -> Option<&dyn Gsi> {
        None
    }

    /// Connections by streams, where queue pairs are connected by these.
    fn iw_cm(&self) -> Option<&dyn IwCm> {
        None
    }

    /// Where a trace takes what connection managers say to each other about queue pairs of this
    /// transport, if no packets of it go over the transport itself.
    fn management_trace(&self) -> Option<&dyn ManagementTrace> {
        None
    }
}

/// Management datagrams for a trace of a transport that carries none.
pub trait ManagementTrace: Send + Sync {
    /// Whether somebody traces.
    fn is_on(&self) -> bool;

    /// Puts a datagram into the trace, if there is one: to (`outbound`) or from the peer, between
    /// the GIDs of this end and the other. Does not block.
    fn record(&self, outbound: bool, gids: [Gid; 2], traffic_class: u8, mad: &[u8; MAD_BYTES]);
}

/// The general service interface (IBTA 13.5.1), queue pair 1: management datagrams to and from
/// the fabric. They get lost, come twice and come late. All processes of the host share it.
pub trait Gsi: Send + Sync {
    /// Sends a datagram: from QP 1 to QP 1, with the well-known Q_Key. An error says that there
    /// is no way to the destination now; everything else is like a loss.
    fn send(&self, path: &MadPath, mad: &[u8; MAD_BYTES]) -> Result<()>;

    /// Who gets what comes, from now on. Replaces the one before.
    fn set_receiver(&self, receiver: Arc<dyn MadReceiver>);

    /// The number that answers must carry for this process to get them: it is the upper 16 bits
    /// of every local communication id and every transaction id that this process makes.
    fn tag(&self) -> Result<u16>;

    /// Passes a datagram that came on to the process of this user with that tag, or, with None,
    /// to all others. Best effort.
    fn pass_on(&self, tag: Option<u16>, path: &MadPath, mad: &[u8; MAD_BYTES]);
}

/// Takes management datagrams.
pub trait MadReceiver: Send + Sync {
    /// A datagram came, `path.source` is the peer. `passed_on`: by another process, so that it
    /// must not be passed on again. Called from a thread of the transport without any lock; it
    /// must not wait.
    fn received(&self, path: &MadPath, mad: &[u8; MAD_BYTES], passed_on: bool);
}
