//! Sockets between two connection managers: who is at the other end, and what comes.

use std::os::fd::RawFd;

use sluice_sys::unix::{self, Fd};

use crate::Errno;
use crate::message::{MESSAGE_LEN_MAX, Message};

/// What came in on a socket.
pub enum Input {
    Message(Message),
    /// The peer is gone, or speaks something else.
    HangUp,
    Nothing,
}

/// Whether the process at the other end of a socket is one of this user's.
pub fn same_user(link: &Fd) -> bool {
    unix::peer_credentials(link.raw())
        .is_ok_and(|peer| peer.uid == unix::effective_uid() || peer.uid == 0)
}

/// Takes one packet. Does not block.
pub fn receive(link: RawFd) -> Input {
    // One byte more than the longest message, so that a longer one shows.
    let mut buffer = [0; MESSAGE_LEN_MAX + 1];
    // A peer that closes with something unread leaves an error in front of what it sent.
    for _ in 0..2 {
        match unix::receive_with_fds(link, &mut buffer) {
            Ok(received) if received.len == 0 => return Input::HangUp,
            Ok(received) if received.truncated => return Input::HangUp,
            Ok(received) => {
                return Message::parse(&buffer[..received.len])
                    .map_or(Input::HangUp, Input::Message);
            }
            Err(Errno::AGAIN) => return Input::Nothing,
            Err(_) => {}
        }
    }
    Input::HangUp
}
