//! Which of two ways a connection's packets take: bulk by a socket, which the kernel is handed in
//! large pieces, and all else past the kernel, packet by packet (decision 0012). Bulk is a large
//! message, or many small ones.
//!
//! What goes one way may overtake what went the other, and a reliable connection takes what comes
//! out of order for lost. So requests change their way only when all before them are answered:
//! bulk waits for that, others go on behind it. Who answers never hears when an answer has
//! come; so answers stay with the way of the last bulk for a while.

use sluice_protocol::Instant;

/// Packets of a message from which on it is bulk. Past the kernel the first comes sooner, and each
/// costs more.
const PACKETS: u64 = 5;

/// Packets of small messages that wait together from which on they are bulk, where they are alike.
/// Fewer are there sooner past the kernel.
const BATCH: u64 = 8;

/// How long answers stay where bulk was.
const LINGER_NS: u64 = 2_000_000;

/// What is seen of a connection in front of its next packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Every request packet that was sent has its answer.
    pub is_quiet: bool,
    /// The request that would begin with the next packet.
    pub begins: Option<Begins>,
    /// Request packets that were never sent.
    pub waiting: u64,
    /// Packets with data of an answer that the next one is the first of; 0 if it is none.
    pub reply_packets: u64,
    /// Bytes of a packet's payload, at most.
    pub mtu: u64,
    /// The program posts much at a time, perhaps to other connections, so that what waits here is soon
    /// a batch.
    pub flows: bool,
}

/// A request that is about to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begins {
    /// Bytes.
    pub length: u64,
    /// They are sent with it, and do not come back.
    pub is_sent: bool,
}

/// Where the packets of one connection go.
#[derive(Debug, Default)]
pub struct Ways {
    requests: bool,
    /// Answers are bulk until then.
    replies: Option<Instant>,
    /// Of the packet that leaves now, if it is an answer.
    reply: bool,
    /// Since answers are bulk, an acknowledgement was.
    has_acknowledged: bool,
    /// Bulk follows that packet.
    precedes: bool,
}

impl Ways {
    /// In front of every look for the next packet. Whether requests that have not begun are to wait, until
    /// all that were sent are answered; None: as before.
    pub fn look(&mut self, seen: &Seen, now: Instant) -> Option<bool> {
        if seen.reply_packets >= PACKETS {
            self.replies = Some(now.after_nanos(LINGER_NS));
        }
        self.reply = self.replies.is_some_and(|until| now < until);
        self.has_acknowledged &= self.reply;
        let mut holds = None;
        // Behind bulk all goes its way.
        if (seen.is_quiet || !self.requests)
            && let Some(request) = seen.begins
        {
            let large = request.length > (PACKETS - 1) * seen.mtu;
            let alike = is_alike(request.length, seen.mtu);
            let batch = alike && seen.waiting >= BATCH;
            // It may be the answer to what was acknowledged by the socket.
            let bulk = request.is_sent && (large || batch || self.has_acknowledged);
            if seen.is_quiet {
                self.requests = bulk || request.is_sent && alike && seen.flows;
            }
            holds = Some(bulk && !self.requests);
        }
        self.precedes = self.requests && seen.begins.is_some();
        holds
    }

    /// Whether a request's packet goes by the socket.
    pub fn request(&self) -> bool {
        self.requests
    }

    /// The same of an answer. An acknowledgement goes with bulk that follows it: whoever has got it may
    /// look for that no more. It says nothing that one before or behind it on the other way does not.
    pub fn reply(&mut self, is_acknowledgement: bool) -> bool {
        self.has_acknowledged |= self.reply && is_acknowledgement;
        self.reply || self.precedes && is_acknowledgement
    }
}

/// Whether the packets of such a message go on in one piece with those of the next: a piece is made of
/// packets of one length. With a short one at its end each message is a piece by itself, which costs
/// the kernel as much as its few packets past it.
fn is_alike(length: u64, mtu: u64) -> bool {
    length <= mtu || length.is_multiple_of(mtu)
}
