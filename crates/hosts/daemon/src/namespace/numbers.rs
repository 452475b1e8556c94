//! Where the two streams of a connection begin, by which its ends know each other.

/// What a socket knows of the beginnings of its two streams: the initial sequence numbers, each with
/// what the kernel had counted by then. As long as the socket is connected they do not change,
/// however many bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numbers {
    /// Of what it sends: the oldest number that is not acknowledged, less the bytes that are. The kernel
    /// counts the SYN of the end that connected among these, and not that of the end that accepted:
    /// it is the initial number, or the one behind it.
    pub sent: u32,
    /// Of what it receives: the next number, less the bytes that have come. It is the one behind the
    /// initial number.
    pub received: u32,
}

impl Numbers {
    /// Whether these are the numbers of one connection's two ends. Two other sockets agree by one
    /// chance in 2^62.
    pub fn agree(self, other: Numbers) -> bool {
        let is_one = |sent: u32, received: u32| received.wrapping_sub(sent) <= 1;
        is_one(self.sent, other.received) && is_one(other.sent, self.received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCEPTED: Numbers = Numbers {
        sent: 701,
        received: 101,
    };
    const CONNECTED: Numbers = Numbers {
        sent: 100,
        received: 701,
    };

    #[test]
    fn ends_of_one_connection_agree_also_across_the_wrap() {
        let moved = |it: Numbers, by: u32| Numbers {
            sent: it.sent.wrapping_add(by),
            received: it.received.wrapping_add(by),
        };
        for by in [0, u32::MAX - 100, u32::MAX - 700, u32::MAX - 50] {
            let (one, other) = (moved(CONNECTED, by), moved(ACCEPTED, by));
            assert!(one.agree(other) && other.agree(one));
        }
        // Both have connected (RFC 9293 3.5).
        let other = Numbers {
            sent: 700,
            ..ACCEPTED
        };
        assert!(CONNECTED.agree(other));
    }

    #[test]
    fn one_direction_alone_is_not_enough() {
        for other in [
            Numbers {
                sent: 699,
                ..ACCEPTED
            },
            Numbers {
                sent: 702,
                ..ACCEPTED
            },
            Numbers {
                received: 99,
                ..ACCEPTED
            },
            Numbers {
                received: 102,
                ..ACCEPTED
            },
        ] {
            assert!(
                !CONNECTED.agree(other) && !other.agree(CONNECTED),
                "{other:?}"
            );
        }
        assert!(!CONNECTED.agree(CONNECTED));
    }
}
