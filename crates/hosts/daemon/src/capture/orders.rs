//! What sluiced and its relay say to each other, on a socket that both were given: JSON, one
//! message each.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::header::Secret;

/// Bytes of a message at most: an order with [`ADDRESSES_MAX`](super::advertisement::ADDRESSES_MAX) addresses
/// has some 3,000.
const MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// From sluiced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Connections to these addresses go to this peer's relay, and no longer to where an order with
    /// the same number said. Without addresses: they go their own way.
    Reach {
        peer: u64,
        addresses: Vec<IpAddr>,
        port_v4: u16,
        port_v6: u16,
        secret: Secret,
    },
    /// Whoever has this secret may connect.
    Admit(Secret),
    /// Not any more.
    Expel { secret: u64 },
    /// A program that has lanes of its own: its connections are left alone.
    Leave { pid: u32 },
    /// It is gone.
    Forget { pid: u32 },
    /// Take no new connections, and end with the last one, or after so long.
    Drain { seconds: u64 },
}

/// From the relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// It captures, and peers' relays can connect to these ports.
    Ready {
        port_v4: u16,
        port_v6: u16,
        addresses: Vec<IpAddr>,
    },
    /// It cannot, and ends.
    Failed { why: String },
    /// What it has done until now.
    Counts(Counts),
}

/// What a relay has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Captured connections of programs here that are open, by the relays.
    pub open: u64,
    /// Connections that were captured.
    pub captured: u64,
    /// Connections that were reset, as nobody knew where they were to go.
    #[serde(default)]
    pub lost: u64,
    /// Of the captured ones, such as went to their destination by TCP.
    pub direct: u64,
    /// Open connections of peers' programs to programs here.
    pub served_open: u64,
    /// Connections that were made for peers' programs.
    pub served: u64,
    /// Such as were refused.
    pub refused: u64,
    /// Of what did not go by relays, how often which reason was the one.
    #[serde(default)]
    pub reasons: Reasons,
}

/// How often something was not done as it was meant, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reasons {
    /// Not captured: its program has set a key, a TTL or IP options for it, or is the kernel.
    pub left_terms: u64,
    /// Not captured: there were as many as there may be.
    pub left_full: u64,
    /// Not captured: nobody listened any more.
    pub left_no_listener: u64,
    /// Captured, and direct: the peer's relay did not answer.
    pub direct_unreached: u64,
    /// Captured, and direct: the peer's relay refused it.
    pub direct_refused: u64,
    /// Captured, and direct: the relay had no room for more.
    pub direct_full: u64,
    /// Captured, and direct: what is wanted had changed meanwhile.
    pub direct_unwanted: u64,
    /// A peer's, refused: nothing proved that it was one.
    pub refused_unproven: u64,
    /// A peer's, refused: to a port that is not for peers.
    pub refused_port: u64,
    /// A peer's, refused: the program here is not in the cgroup, and would not see the client.
    pub refused_cgroup: u64,
    /// A peer's, refused: the program here has set a key or a TTL, by which it tells its clients.
    pub refused_terms: u64,
    /// A peer's, refused: the program here did not accept it, or nobody listened.
    pub refused_unaccepted: u64,
    /// A peer's, refused: the relay had no room for more.
    pub refused_full: u64,
}

impl Reasons {
    /// Each, with its name.
    pub const fn all(&self) -> [(&'static str, u64); 13] {
        [
            ("left_terms", self.left_terms),
            ("left_full", self.left_full),
            ("left_no_listener", self.left_no_listener),
            ("direct_unreached", self.direct_unreached),
            ("direct_refused", self.direct_refused),
            ("direct_full", self.direct_full),
            ("direct_unwanted", self.direct_unwanted),
            ("refused_unproven", self.refused_unproven),
            ("refused_port", self.refused_port),
            ("refused_cgroup", self.refused_cgroup),
            ("refused_terms", self.refused_terms),
            ("refused_unaccepted", self.refused_unaccepted),
            ("refused_full", self.refused_full),
        ]
    }

    /// Those of both.
    #[must_use]
    pub const fn plus(&self, other: &Reasons) -> Reasons {
        Reasons {
            left_terms: self.left_terms + other.left_terms,
            left_full: self.left_full + other.left_full,
            left_no_listener: self.left_no_listener + other.left_no_listener,
            direct_unreached: self.direct_unreached + other.direct_unreached,
            direct_refused: self.direct_refused + other.direct_refused,
            direct_full: self.direct_full + other.direct_full,
            direct_unwanted: self.direct_unwanted + other.direct_unwanted,
            refused_unproven: self.refused_unproven + other.refused_unproven,
            refused_port: self.refused_port + other.refused_port,
            refused_cgroup: self.refused_cgroup + other.refused_cgroup,
            refused_terms: self.refused_terms + other.refused_terms,
            refused_unaccepted: self.refused_unaccepted + other.refused_unaccepted,
            refused_full: self.refused_full + other.refused_full,
        }
    }
}

/// Sends without waiting.
pub fn tell(socket: impl AsFd, message: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// What hearing came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard<T> {
    Message(T),
    /// Nothing more for now.
    Nothing,
    /// The other one is gone.
    End,
}

/// The next message, without waiting.
pub fn hear<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Heard<T>> {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    match recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
        Ok((0, _)) | Err(Errno::CONNRESET) => Ok(Heard::End),
        Ok((length, _)) => {
            let bytes = buffer.get(..length).unwrap_or_default();
            Ok(Heard::Message(serde_json::from_slice(bytes)?))
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(Heard::Nothing),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::capture::advertisement::ADDRESSES_MAX;

    #[test]
    fn the_longest_message_arrives() {
        let (near, far) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let longest = Order::Reach {
            peer: u64::MAX,
            addresses: vec![IpAddr::from([0xffff; 8]); ADDRESSES_MAX],
            port_v4: u16::MAX,
            port_v6: u16::MAX,
            secret: Secret {
                id: u64::MAX,
                key: [255; 32],
            },
        };
        assert_eq!(hear::<Order>(&far).unwrap(), Heard::Nothing);
        tell(&near, &longest).unwrap();
        assert_eq!(hear(&far).unwrap(), Heard::Message(longest));
        tell(&near, &"garbage").unwrap();
        assert!(hear::<Order>(&far).is_err());
        drop(near);
        assert_eq!(hear::<Order>(&far).unwrap(), Heard::End);
    }
}
