//! Descriptors that clients send, received where it does no harm.
//!
//! A descriptor of somebody else's can stop who has it: its last close waits for what its owner
//! wants (`SO_LINGER`), each close asks its file system (FUSE), which need not answer, and to look
//! at a socket takes a lock that its owner can hold. Nothing of that ends at a signal. So sluiced
//! itself receives none: a process for each user ([`process`]) reads what the user's programs say,
//! looks at what comes with it, closes it, and passes on what it was. If it stands still, that
//! user's programs stay on TCP.
//!
//! It also has a copy of each client's socket, so that sluiced's own is never the last: with the
//! last one, descriptors that nobody has read are closed. What passes between the two ([`pool`] is
//! sluiced's side) are messages on a socket of their own, as JSON, with descriptors that can be
//! closed at once: sealed memory, network namespaces, and clients' sockets.

use serde::{Deserialize, Serialize};

use crate::gateway::node::Listening;
use crate::matching::ClientId;
use crate::socket::SocketFacts;

mod closer;
pub mod pool;
pub mod process;

/// Bytes of a message at most: a client's, with up to four characters for each byte, and facts.
const WORD_BYTES_MAX: usize = 4096;

/// From sluiced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Order {
    /// Read what this client says; its socket comes with the order.
    Read { client: ClientId },
    /// Close the socket that comes with the order, and the one of this client.
    Close { client: Option<ClientId> },
    /// Say [`Report::Heard`] when everybody has been heard who had something to say.
    Hear { number: u64 },
}

/// To sluiced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Report {
    /// A client has said this.
    Said {
        client: ClientId,
        message: Vec<u8>,
        brought: Brought,
        /// The user who has sent it, as the kernel says; None: it does not.
        sender: Option<u32>,
    },
    /// A client has ended its connection, and nothing is unread.
    Ended { client: ClientId },
    /// A client cannot be read.
    Failed { client: ClientId },
    /// The answer to [`Order::Hear`].
    Heard { number: u64 },
}

/// What came with a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Brought {
    /// Nothing, or nothing that belongs to the message.
    Nothing,
    /// The memory of a `Hello`, which comes with the report.
    Memory,
    /// An established TCP connection; its network namespace comes with the report where it is not
    /// sluiced's own and can be had.
    Connection(SocketFacts),
    /// A listening socket, or the error number that stands for what it is.
    Listening(Result<Listening, i32>),
    /// The connection of a new client, which comes with the report.
    Client,
}
