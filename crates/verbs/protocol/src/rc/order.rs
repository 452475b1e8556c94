//! What a driver needs to know that has two ways to the peer, of which one may overtake the other.

use super::Connection;
use crate::request::Request;

impl Connection {
    /// Every request packet that was sent has its answer: what goes by another way from now on
    /// overtakes none.
    pub fn is_quiet(&self) -> bool {
        self.requester.oldest == self.requester.sent
    }

    /// The request whose first packet would be the next that is sent for the first time. None in
    /// the middle of a request, and when there is no more.
    pub fn begins(&self) -> Option<&Request> {
        let next = self.requester.next;
        if next != self.requester.sent {
            return None;
        }
        let entry = self.requester.entry(next)?;
        (entry.first == next).then_some(&entry.request)
    }

    /// Request packets that were never sent, of all requests that were posted.
    pub fn waiting(&self) -> u64 {
        self.requester.waiting()
    }

    /// Requests that have not begun wait until this is called with false; what is sent again and
    /// what is answered does not. To be decided anew whenever something has come, so not for
    /// longer than until [`Connection::is_quiet`].
    pub fn hold(&mut self, hold: bool) {
        self.requester.held = hold;
    }

    /// Packets with READ data that the next packet of the responder is the first of; 0 if it is
    /// none.
    pub fn reply_packets(&self) -> u64 {
        self.responder.reply_packets()
    }
}
