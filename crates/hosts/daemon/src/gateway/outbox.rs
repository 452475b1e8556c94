//! What the gateway's process was not told yet, because its socket had no room.

use std::collections::VecDeque;

use sluice_control::message::gateway::Tell;
use sluice_sys::errno::Errno;

/// More may wait than there is to say: what was opened and shut again meanwhile.
const SPARE: usize = 4_096;

/// In the order in which it is to hear it.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: VecDeque<Tell>,
    /// The socket is watched for room.
    pub is_watched: bool,
}

impl Outbox {
    /// Something more. `all`: how much there would be to say to a process that begins.
    ///
    /// False: it takes so little that it had better begin again.
    pub fn push(&mut self, tell: Tell, all: usize) -> bool {
        self.waiting.push_back(tell);
        self.waiting.len() <= all.saturating_add(SPARE)
    }

    /// Sends what there is room for. An error: the process is gone.
    pub fn send(&mut self, mut send: impl FnMut(&Tell) -> Result<(), Errno>) -> Result<(), Errno> {
        while let Some(tell) = self.waiting.front() {
            match send(tell) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_waits_in_order_and_not_without_end() {
        let mut outbox = Outbox::default();
        let word = |service| Tell::Shut { service };
        let all = 1_000 + SPARE as u32;
        for service in 0..all {
            assert!(outbox.push(word(service), 1_000));
        }
        let mut heard = Vec::new();
        while !outbox.is_empty() {
            let mut room = 7;
            let sent = outbox.send(|tell| {
                if room == 0 {
                    return Err(Errno::AGAIN);
                }
                room -= 1;
                heard.push(*tell);
                Ok(())
            });
            assert_eq!(sent, Ok(()));
        }
        assert!(heard.iter().copied().eq((0..all).map(word)));
        for service in 0..all {
            assert!(outbox.push(word(service), 1_000));
        }
        assert!(!outbox.push(word(all), 1_000));
        let gone = Err(Errno(libc::EPIPE));
        assert_eq!(outbox.send(|_| gone), gone);
    }
}
