//! What a node's daemon and a gateway's say to each other on their control connection.
//!
//! As the words of lanes (`fabric::words`): a kind, then fields ([`crate::words`]).

use std::net::{IpAddr, SocketAddr};

use sluice_control::preface::Key;

use crate::words::{Fields, address_bytes, ip_bytes};

/// A publication, by a random number that its node has given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicationId(pub u64);

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Node to gateway: somebody listens here, and wants clients from outside.
    Publish {
        id: PublicationId,
        /// As the program has bound it; unspecified: all addresses of the node.
        listener: SocketAddr,
        /// It takes no IPv4 (`IPV6_V6ONLY`).
        only_v6: bool,
        key: Key,
    },
    /// Gateway to node: 0, or why not, as an errno. Said again when that changes.
    Published {
        id: PublicationId,
        errno: u16,
        /// Where the gateway connects from.
        source: IpAddr,
    },
    /// Node to gateway: nobody listens there any more.
    Withdraw { id: PublicationId },
    /// Gateway to node: nobody has answered there.
    Look { id: PublicationId },
    /// Gateway to node: programs connect out by a connection with this address.
    Exit {
        exit: u32,
        address: SocketAddr,
        key: Key,
    },
}

/// Words of gateways have these kinds, and others have not.
const FIRST: u8 = 64;
const PUBLISH: u8 = FIRST;
const PUBLISHED: u8 = FIRST + 1;
const WITHDRAW: u8 = FIRST + 2;
const LOOK: u8 = FIRST + 3;
const EXIT: u8 = FIRST + 4;
const LAST: u8 = FIRST + 15;

/// Whether a message between daemons is about gateways.
pub fn is_one(message: &[u8]) -> bool {
    message
        .first()
        .is_some_and(|kind| (FIRST..=LAST).contains(kind))
}

impl Word {
    /// As it is sent.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        match self {
            Self::Publish {
                id,
                listener,
                only_v6,
                key,
            } => {
                out.push(PUBLISH);
                out.extend(id.0.to_be_bytes());
                out.extend(address_bytes(*listener));
                // `::` and `0.0.0.0` are different listeners, and one address when mapped.
                out.push(u8::from(*only_v6) | u8::from(listener.is_ipv4()) << 1);
                out.extend(key.0);
            }
            Self::Published { id, errno, source } => {
                out.push(PUBLISHED);
                out.extend(id.0.to_be_bytes());
                out.extend(errno.to_be_bytes());
                out.extend(ip_bytes(*source));
            }
            Self::Withdraw { id } => {
                out.push(WITHDRAW);
                out.extend(id.0.to_be_bytes());
            }
            Self::Look { id } => {
                out.push(LOOK);
                out.extend(id.0.to_be_bytes());
            }
            Self::Exit { exit, address, key } => {
                out.push(EXIT);
                out.extend(u64::from(*exit).to_be_bytes());
                out.extend(address_bytes(*address));
                out.extend(key.0);
            }
        }
        out
    }

    /// Reads one whole message; `None` for what no daemon of this version says.
    pub fn decode(message: &[u8]) -> Option<Word> {
        let (&kind, rest) = message.split_first()?;
        let mut rest = Fields(rest);
        let id = PublicationId(rest.u64()?);
        let word = match kind {
            PUBLISH => {
                let listener = rest.address()?;
                let [flags] = rest.take()?;
                if flags > 2 || listener.is_ipv4() != (flags == 2) || listener.port() == 0 {
                    return None;
                }
                Self::Publish {
                    id,
                    listener,
                    only_v6: flags == 1,
                    key: Key(rest.take()?),
                }
            }
            PUBLISHED => Self::Published {
                id,
                errno: rest.u16()?,
                source: rest.ip()?,
            },
            WITHDRAW => Self::Withdraw { id },
            LOOK => Self::Look { id },
            EXIT => Self::Exit {
                exit: u32::try_from(id.0).ok()?,
                address: rest.address()?,
                key: Key(rest.take()?),
            },
            _ => return None,
        };
        rest.0.is_empty().then_some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::check_word;

    #[test]
    fn words_come_back_and_pieces_of_them_do_not() {
        let id = PublicationId(u64::MAX - 1);
        let key = Key([5; 32]);
        let publish = |listener: &str, only_v6| Word::Publish {
            id,
            listener: listener.parse().expect("an address"),
            only_v6,
            key,
        };
        let words = [
            publish("0.0.0.0:80", false),
            publish("[::]:80", false),
            publish("[::]:80", true),
            publish("[2001:db8::1]:443", false),
            Word::Published {
                id,
                errno: 98,
                source: "10.0.0.1".parse().expect("an address"),
            },
            Word::Withdraw { id },
            Word::Look { id },
            Word::Exit {
                exit: u32::MAX,
                address: "10.0.0.1:40000".parse().expect("an address"),
                key,
            },
        ];
        for word in words {
            let bytes = word.encode();
            assert!(is_one(&bytes));
            check_word(word, &bytes, Word::decode);
        }
        let document = include_str!("../../../../../docs/protocols.md");
        for word in words {
            let name = match word {
                Word::Publish { .. } => "publish",
                Word::Published { .. } => "published",
                Word::Withdraw { .. } => "withdraw",
                Word::Look { .. } => "look",
                Word::Exit { .. } => "exit",
            };
            let bytes = word.encode();
            let row = format!("| {} | {name} | {} |", bytes[0], bytes.len());
            assert!(document.contains(&row), "the document lacks {row}");
        }
        // An IPv4 listener that takes no IPv4, and flags that nobody knows.
        let mut bytes = publish("0.0.0.0:80", false).encode();
        for flags in [0, 1, 3, 4] {
            bytes[1 + 8 + 18] = flags;
            assert_eq!(Word::decode(&bytes), None, "{flags}");
        }
        assert!(!is_one(&[1]) && !is_one(&[]));
    }
}
