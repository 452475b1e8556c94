//! How much of everything a node has.

use crate::error::Error;

/// The longest message of [`Node::send`](crate::Node::send), and the size of a receive buffer.
pub const MESSAGE_BYTES_MAX: usize = 4096;

/// No node needs more; what follows from them stays far below what numbers can hold.
const LINKS_MAX: u16 = 4096;
const DEPTH_MAX: u32 = 1 << 15;

/// How much of everything a node has. What is not touched is address space only, except with an
/// adapter, which pins registered memory: then a node pins
/// 4 KiB · (`receive_depth` + `links_max` · `messages_max`), and where the device has no shared receive
/// queue 4 KiB · (`links_max` · `messages_max`) and for each link 4 KiB · `link_receive_depth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Links at one time, at most 4096. One that was destroyed counts until
    /// [`poll`](crate::Node::poll) has found its last completion.
    pub links_max: u16,
    /// Requests of a link that are not done, at most 32768; one more is
    /// [`PostError::Full`](crate::PostError::Full).
    pub send_depth: u32,
    /// Receive buffers, shared by all links, at most 32768. A write with a number takes one until
    /// it was polled, and so does a message.
    pub receive_depth: u32,
    /// Receive buffers of one link where the device has no shared receive queue, at most 32768. A peer
    /// with as many requests under way never has to ask again.
    pub link_receive_depth: u32,
    /// Messages of a link that are not done, at most `send_depth`; one more is
    /// [`PostError::Full`](crate::PostError::Full).
    pub messages_max: u32,
    /// Payloads up to so many bytes go along with the request, if the device can do that: an
    /// adapter saves a read of memory for each.
    pub inline_bytes: u32,
    /// The local ACK timeout is 4.096 µs · 2^this, 1 to 31 (IBTA 9.7.6.1.3).
    pub ack_timeout: u8,
    /// Repetitions after a timeout, 0 to 6, before a link has failed. 7 would be one more by IBTA
    /// 9.7.6.1.3, but Linux's rxe repeats without an end then.
    pub retries: u8,
}

impl Default for Limits {
    /// Twice as many requests made bandwidth by RoCEv2 no better than these, and half as many made
    /// it worse. A dead peer is known after 7 · 268 ms; adapters may take up to four times as long (IBTA
    /// C9-141).
    fn default() -> Self {
        Self {
            links_max: 64,
            send_depth: 256,
            receive_depth: 1024,
            link_receive_depth: 256,
            messages_max: 16,
            inline_bytes: 128,
            ack_timeout: 16,
            retries: 6,
        }
    }
}

impl Limits {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let depth = 1..=DEPTH_MAX;
        let wrong = if !(1..=LINKS_MAX).contains(&self.links_max) {
            "links_max is 1 to 4096"
        } else if !depth.contains(&self.send_depth) {
            "send_depth is 1 to 32768"
        } else if !depth.contains(&self.receive_depth) {
            "receive_depth is 1 to 32768"
        } else if !depth.contains(&self.link_receive_depth) {
            "link_receive_depth is 1 to 32768"
        } else if !(1..=self.send_depth).contains(&self.messages_max) {
            "messages_max is 1 to send_depth"
        } else if !(1..=31).contains(&self.ack_timeout) || self.retries > 6 {
            "ack_timeout is 1 to 31, retries 0 to 6"
        } else {
            return Ok(());
        };
        Err(Error::Limits(wrong))
    }

    /// Requests that a queue pair has room for: the caller's, a marker, and the marker that is the
    /// last request of a link.
    pub(crate) fn queue_depth(&self) -> u32 {
        self.send_depth + 2
    }

    /// Receive buffers that a link has for itself. `is_shared`: the links share theirs.
    pub(crate) fn own_receives(&self, is_shared: bool) -> u32 {
        match is_shared {
            true => 0,
            false => self.link_receive_depth,
        }
    }

    /// Every request of every link and every receive buffer can have a completion at one time.
    pub(crate) fn completions(&self, is_shared: bool) -> u32 {
        let of_links =
            u32::from(self.links_max) * (self.queue_depth() + self.own_receives(is_shared));
        match is_shared {
            true => of_links + self.receive_depth,
            false => of_links,
        }
    }

    /// The message buffers of all links, in bytes.
    pub(crate) fn message_pool_bytes(&self) -> usize {
        usize::from(self.links_max) * self.messages_max as usize * MESSAGE_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(Limits::default().check().is_ok());
        let default = Limits::default();
        for wrong in [
            Limits {
                links_max: 0,
                ..default
            },
            Limits {
                links_max: LINKS_MAX + 1,
                ..default
            },
            Limits {
                send_depth: 0,
                ..default
            },
            Limits {
                send_depth: DEPTH_MAX + 1,
                ..default
            },
            Limits {
                receive_depth: 0,
                ..default
            },
            Limits {
                receive_depth: u32::MAX,
                ..default
            },
            Limits {
                link_receive_depth: 0,
                ..default
            },
            Limits {
                messages_max: 0,
                ..default
            },
            Limits {
                messages_max: 257,
                ..default
            },
            Limits {
                ack_timeout: 0,
                ..default
            },
            Limits {
                ack_timeout: 32,
                ..default
            },
            Limits {
                retries: 7,
                ..default
            },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_greatest_limits_do_not_overflow() {
        let greatest = Limits {
            links_max: LINKS_MAX,
            send_depth: DEPTH_MAX,
            receive_depth: DEPTH_MAX,
            link_receive_depth: DEPTH_MAX,
            messages_max: DEPTH_MAX,
            ..Limits::default()
        };
        assert!(greatest.check().is_ok());
        assert_eq!(greatest.completions(true), 4096 * 32770 + 32768);
        assert_eq!(greatest.completions(false), 4096 * (32770 + 32768));
        assert_eq!(greatest.message_pool_bytes(), 4096 * 32768 * 4096);
    }
}
