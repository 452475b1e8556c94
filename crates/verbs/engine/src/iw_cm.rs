//! What a connection manager asks of a transport whose queue pairs are connected by streams: the
//! interface that Linux calls `iw_cm`.
//!
//! A stream is one connection of TCP, from the first segment to the last. It has a number, and a
//! queue pair takes it by that number: [`QpAttr::dest_qp_num`](crate::QpAttr::dest_qp_num) at the
//! way to RTR. Until then, and if no queue pair ever comes, it is the connection manager's.
//!
//! | who asks | who answers |
//! |---|---|
//! | [`IwCm::connect`] | [`Event::Requested`] there; [`IwCm::accept`] or [`IwCm::reject`] |
//! | [`Event::Accepted`], then the queue pair goes to RTR and RTS | the queue pair goes to RTR and RTS, then [`IwCm::accept`] |
//!
//! [`Event::Closed`] comes once for each stream that was accepted, whoever ends it and how ever.

use std::net::SocketAddr;
use std::sync::Arc;

use sluice_verbs_model::error::Result;

/// What one end tells the other when they connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionParameters {
    /// READs and atomics that it answers at a time.
    pub ird: u16,
    /// READs and atomics that it will have open at a time.
    pub ord: u16,
    /// The program's own bytes.
    pub private_data: Vec<u8>,
}

/// What has happened to a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer asks a listener for a connection, which this new stream is to be.
    Requested {
        /// [`IwCm::listen`]'s.
        listener: u32,
        /// The address that the peer connected to.
        local: SocketAddr,
        /// The peer's.
        peer: SocketAddr,
        /// What it says.
        parameters: ConnectionParameters,
    },
    /// The peer has accepted.
    Accepted(ConnectionParameters),
    /// The peer has not, and says why.
    Rejected(Vec<u8>),
    /// There is no connection to the peer: an error number of connect(2).
    Failed(i32),
    /// The connection has ended.
    Closed,
}

/// Who is told of what happens.
pub trait EventSink: Send + Sync {
    /// Called from any thread, and with locks of the transport held: only notes it.
    fn happened(&self, stream: u32, event: Event);
}

/// Connections of a transport over streams. No call waits for a peer.
pub trait IwCm: Send + Sync {
    /// Who is told from now on. Replaces the one before.
    fn set_sink(&self, sink: Arc<dyn EventSink>);

    /// Takes connections to an address; its number. `v6_only`: an IPv6 wildcard address takes no
    /// IPv4 connections.
    fn listen(&self, address: SocketAddr, v6_only: bool) -> Result<u32>;

    /// Takes no more. Streams that were requested stay.
    fn end_listening(&self, listener: u32);

    /// Asks for a connection; the stream's number. A source of port 0 has any port.
    fn connect(
        &self,
        source: SocketAddr,
        destination: SocketAddr,
        tos: u8,
        parameters: &ConnectionParameters,
    ) -> Result<u32>;

    /// Whether the peer still waits for an answer to its request. Nothing is told when it does not
    /// any more: [`IwCm::accept`] fails then, as Linux's.
    fn is_requested(&self, stream: u32) -> bool;

    /// Agrees to a connection that was requested.
    fn accept(&self, stream: u32, parameters: &ConnectionParameters) -> Result<()>;

    /// Does not.
    fn reject(&self, stream: u32, private_data: &[u8]);

    /// Ends a connection in order: what the queue pair has been given is sent before.
    fn close(&self, stream: u32);

    /// Nobody asks for the stream any more, nor wants to hear of it. Where no queue pair has it,
    /// it ends.
    fn forget(&self, stream: u32);
}
