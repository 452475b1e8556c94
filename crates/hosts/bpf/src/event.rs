//! What the program says of connections.

use std::net::SocketAddr;

use crate::address::{self, field};

/// What the handshake has shown of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// It answered nothing: no Sluice is there, or something in between drops options, or there
    /// was no room for ours.
    Cannot,
    /// It has the same key, and is about to ask its own daemon for a lane.
    Can,
    /// What we sent came back. A middlebox that echoes options it does not know is in between.
    Echoed,
    /// It answered with our option, but not as our key and version have it.
    Foreign,
    /// The SYN got no answer until it was repeated, which is without our option; so was the
    /// answer. If that happens again and again, something on the way drops SYNs with options that
    /// it does not know, which costs each connection a second: the network is to be left alone
    /// ([`crate::Rules::networks`]).
    Unheard,
}

impl Peer {
    /// Every one, in the order of `enum peer` of finder.bpf.c, which begins with 1.
    pub const ALL: [Self; 5] = [
        Self::Cannot,
        Self::Can,
        Self::Echoed,
        Self::Foreign,
        Self::Unheard,
    ];

    fn parse(number: u8) -> Option<Self> {
        let place = usize::from(number).checked_sub(1)?;
        Self::ALL.get(place).copied()
    }
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// The other end. The end that accepts takes the word of the one that connects, as an echo can
    /// only come back to where it started, and may be wrong if its answer was lost.
    pub peer: Peer,
    /// This end connected.
    pub active: bool,
    /// The number by which both ends know this connection, whoever has changed its addresses on
    /// the way. At the active end always, at the passive one if the peer can. Anybody on the way
    /// has seen it.
    pub nonce: u64,
}

/// Bytes of `struct verdict` of finder.bpf.c.
pub(crate) const VERDICT_BYTES: usize = 16;

impl Verdict {
    pub(crate) fn parse(value: &[u8; VERDICT_BYTES]) -> Option<Self> {
        Some(Self {
            nonce: u64::from_ne_bytes(field(value, 0)?),
            peer: Peer::parse(value[8])?,
            active: value[9] != 0,
        })
    }
}

/// An established connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// `SO_COOKIE` of this end's socket ([`sluice_sys::tcp::cookie`]).
    pub cookie: u64,
    /// `SO_NETNS_COOKIE` of its network namespace.
    pub netns: u64,
    /// This end. IPv4 is IPv4 whatever the family of the socket.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// What is known of it.
    pub verdict: Verdict,
}

/// What has happened to a connection for which the rules choose the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Its handshake is over.
    Established(Connection),
    /// The kernel has closed the socket; its number never comes again.
    Closed {
        /// As [`Connection::cookie`].
        cookie: u64,
    },
}

/// Bytes of `struct event` of finder.bpf.c.
const EVENT_BYTES: usize = 64;
const ESTABLISHED: u8 = 1;
const CLOSED: u8 = 2;

impl Event {
    /// None: not a record of the program's.
    pub(crate) fn parse(record: &[u8]) -> Option<Self> {
        let record: &[u8; EVENT_BYTES] = record.try_into().ok()?;
        let cookie = u64::from_ne_bytes(field(record, 0)?);
        let end = |address_at, port_at| {
            let port = u16::from_ne_bytes(field(record, port_at)?);
            let address = address::parse(field(record, address_at)?);
            Some(SocketAddr::new(address, port))
        };
        match record[60] {
            ESTABLISHED => Some(Self::Established(Connection {
                cookie,
                netns: u64::from_ne_bytes(field(record, 8)?),
                remote: end(24, 56)?,
                local: end(40, 58)?,
                verdict: Verdict {
                    nonce: u64::from_ne_bytes(field(record, 16)?),
                    peer: Peer::parse(record[61])?,
                    active: record[62] != 0,
                },
            })),
            CLOSED => Some(Self::Closed { cookie }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_no_event() {
        assert_eq!(Event::parse(&[]), None);
        assert_eq!(Event::parse(&[0; 64]), None);
        assert_eq!(Event::parse(&[1; 63]), None);
        let mut record = [0; 64];
        record[60] = ESTABLISHED;
        assert_eq!(Event::parse(&record), None, "a peer of kind 0");
        record[60] = CLOSED;
        assert_eq!(Event::parse(&record), Some(Event::Closed { cookie: 0 }));
    }
}
