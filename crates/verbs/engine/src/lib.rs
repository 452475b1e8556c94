//! The verbs engine: objects, rules and checks of the InfiniBand Architecture (chapters 9 to
//! 11), for any [`Transport`]. It knows no transport by name.
//!
//! # Who calls what
//!
//! A [`Device`] has a transport. `Device::open` gives a [`Context`], that makes [`Pd`]s, [`Cq`]s,
//! [`Channel`]s and [`Xrcd`]s; a [`Pd`] makes [`Mr`]s, [`Mw`]s, [`Qp`]s, [`Srq`]s and [`Ah`]s.
//! All are `Arc`s with an explicit `destroy` that answers EBUSY while others use them. The C
//! interface keeps one `Arc` per C object; what a C program gets its `cookie` back for is stored
//! here and never looked at. Errors are [`Error`]; [`Error::errno`] is the number for C.
//!
//! # Who knows whom
//!
//! Each line names only what is above it, and `sluice-verbs-model`, which has the words.
//!
//! | modules | what |
//! |---|---|
//! | [`locks`], `sync`; `loans`, `front`, `shared_ring`, `random`, `memory`, `events`, `keys`, `gids` | means, without objects |
//! | `moderator`, `report`, `windows` | who is called back: each says by a small trait as what it knows an object |
//! | [`aftermath`] | what follows from calls of a transport, until it holds no lock |
//! | `adapter`, `domain` | what objects share: of the device, of the context, of the protection domain |
//! | [`channel`], [`xrcd`], [`ah`], [`mr`]; [`mw`]; [`cq`]; `rq`, [`srq`]; [`wr`], `records`, `pair`, `sq`; [`qp`] | the objects, each with what a transport adds to it |
//! | `transfer`; [`message`] | for transports that copy bytes themselves: methods of what they get from the objects, and a whole message |
//! | [`iw_cm`], [`transport`] | the seam: what makes the transport's parts of all these, and what a connection manager asks of one with streams |
//! | [`device`], [`context`], [`pd`] | what a program starts from, and makes the others with |
//!
//! An object that is made late and needed early, as a window by whoever takes its key away or a QP by
//! the CQ that becomes smaller, is behind the trait of the one that needs it.
//!
//! # The life of a piece of memory, from post_send to completion
//!
//! *Requester.* The program calls [`Qp::post_send`] with a [`SendWr`] whose [`Sge`]s name memory
//! by key.
//!
//! 1. What makes the call itself fail is looked at first: state, opcode, number of pieces,
//!    inline length, room in the queue (`Err`, nothing happened).
//! 2. Then the local keys: region, bounds, rights, domain. A fault here does not fail the call:
//!    as with hardware it is a request that completes with LOC_PROT_ERR in its turn.
//!    Addresses in the region (`iova`) become addresses of the process.
//! 3. The request gets the next number, `seq`, and is handed to [`QpTransport::post`] as a
//!    [`Wqe`] that borrows the program's own list; nothing was copied. A transport that can do
//!    it at once answers [`Posted::Done`]. Else it answers [`Posted::Pending`], the engine
//!    copies list and inline data to the request's record, and [`Qp::complete_send`] ends it later,
//!    in any order and from any thread. A transport that works on requests then has that record lent
//!    ([`LentRecords`]) until the request has ended, and hears of it by [`QpTransport::posted`]: there is no
//!    other copy.
//! 4. The engine completes requests in the order of posting: it waits for the oldest, writes a
//!    [`Wc`] if it was signalled or failed, and forgets the others. The first failure moves the
//!    QP to ERR (UC, UD: SQE) and flushes what is behind it.
//! 5. [`Cq::poll`] gives the completion to the program, and with it the queue's room for that
//!    request and the unsignalled ones before it.
//!
//! *Responder.* The transport has a message for a QP of this process.
//!
//! 1. RDMA and atomics: [`Qp::check_remote`] looks at state, right, key, bounds, domain and
//!    alignment, and gives a [`RemoteMemory`](responder::RemoteMemory) that keeps the region
//!    registered while it lives (`dereg_mr` waits for it). A refusal is a [`NakReason`], which the
//!    transport carries back and the requester's transport turns into
//!    [`NakReason::requester_status`].
//! 2. SENDs and WRITE_WITH_IMM: [`Qp::take_recv`] fills a [`RecvWqe`](responder::RecvWqe) with
//!    the oldest receive, checked and with addresses in place of keys, from the QP's own queue or its SRQ. When there
//!    is none the answer is RNR, and [`QpTransport::receives_posted`] comes when it is worth to
//!    try again. The transport scatters the bytes and calls [`Qp::complete_recv`], which makes
//!    the completion and the event for who sleeps.
//! 3. What breaks the connection: [`Qp::responder_failed`].
//!
//! *Waiting.* [`Cq::poll`] asks [`CqTransport::progress`] when it has nothing to give. A program
//! that wants to sleep arms the CQ and reads its [`Channel`]'s fd; while a CQ is armed the
//! transport's own thread makes the progress.

mod adapter;
pub mod aftermath;
pub mod ah;
pub mod channel;
pub mod context;
pub mod cq;
pub mod device;
mod domain;
pub mod events;
mod front;
mod gids;
pub mod iw_cm;
pub mod keys;
mod loans;
pub mod locks;
mod memory;
pub mod message;
mod moderator;
pub mod mr;
pub mod mw;
mod pair;
pub mod pd;
pub mod qp;
mod random;
mod records;
pub mod report;
mod rq;
mod shared_ring;
mod sq;
pub mod srq;
mod sync;
mod transfer;
pub mod transport;
mod windows;
pub mod wr;
pub mod xrcd;

pub use aftermath::{Aftermath, with_aftermath};
pub use ah::Ah;
pub use channel::Channel;
pub use context::Context;
pub use cq::Cq;
pub use device::Device;
pub use message::Message;
pub use mr::Mr;
pub use mw::Mw;
pub use pd::Pd;
pub use qp::{LocalMemory, Qp, QpInit, responder};
pub use records::LentRecords;
pub use srq::{Srq, SrqInit};
pub use transport::{CqTransport, QpTransport, Transport};
pub use wr::{Handed, MwBind, SendWr, UdDestination, Wqe};
pub use xrcd::Xrcd;

pub use sluice_verbs_model::events::{AsyncEvent, Element};
/// The words that all of this is said with.
pub use sluice_verbs_model::{error, opcode, refusal, states, types};

pub use error::{Error, Result};
pub use refusal::{LocalFault, NakReason};
pub use sluice_verbs_model::transport::{Posted, SendDone};
pub use types::*;
