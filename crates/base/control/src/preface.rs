//! What a gateway says first on a connection that it makes for somebody else.
//!
//! The server's preload library takes it off the connection before the program sees the
//! descriptor, so that `getpeername` can say whom the connection is for; in the other direction
//! a program's library says to the gateway where it wants to be connected to. It goes in band: the
//! daemons have no part in a connection, and one of them that has died keeps none from being
//! accepted.
//!
//! 84 bytes, numbers in network byte order:
//!
//! | offset | what |
//! |---|---|
//! | 0 | [`MAGIC`], 8 bytes |
//! | 8 | version, 2 |
//! | 9 | kind: 1 for a client, 2 for a destination, 3 for one without an answer |
//! | 10 | zero, 2 bytes |
//! | 12 | client: address (16 bytes, IPv4 mapped as in RFC 4291 §2.5.5.2), port |
//! | 30 | outside address: the same |
//! | 48 | for a destination: the number of the exit, which says whose key it is; otherwise zero; 4 bytes |
//! | 52 | HMAC-SHA-256 (RFC 2104) of all before, and of the connection's own addresses |
//!
//! The code covers the addresses and ports of the connection that carries it, so that it is worth
//! nothing on another one. It holds no time and no number that is used once: who can take over both
//! addresses and ports of the connection, while the key is in use, can say it again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// Length of the whole.
pub const PREFACE_BYTES: usize = 84;

/// How it begins. No text begins so, and no TLS record (RFC 8446 §5.1).
pub const MAGIC: [u8; 8] = [0x00, 0x0d, 0xf5, b's', b'l', b'u', b'c', 0x0a];

const VERSION: u8 = 2;
const SIGNED_BYTES: usize = PREFACE_BYTES - 32;

/// A secret of those who publish a port and the gateway.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u8; 32]);

/// Says nothing of it.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// What the connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From the gateway: a client outside has connected.
    Client,
    /// To the gateway: a program wants to be connected with [`Preface::client`], which is then
    /// the destination. It is answered by an [`Answer`].
    Destination,
    /// The same, and nothing is answered: the program does not wait.
    Unanswered,
}

/// The addresses of the connection that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// Of the end that connected.
    pub from: SocketAddr,
    /// Of the end that accepted.
    pub to: SocketAddr,
}

/// Whom a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preface {
    pub kind: Kind,
    /// Who is at the other side of the gateway.
    pub client: SocketAddr,
    /// The gateway's own address there. Unspecified where the sender cannot know it.
    pub outside: SocketAddr,
    /// For a destination: by which exit of the gateway.
    pub exit: u32,
}

/// Why bytes are no preface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefaceError {
    /// They do not begin as one.
    Magic,
    /// It is of another version, or of a kind that this one does not have.
    Version,
    /// Whoever sent it does not have the key, or meant another connection.
    Code,
}

impl Preface {
    /// As it is sent.
    pub fn encode(&self, key: &Key, carrier: &Carrier) -> [u8; PREFACE_BYTES] {
        let mut out = [0; PREFACE_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8] = VERSION;
        out[9] = match self.kind {
            Kind::Client => 1,
            Kind::Destination => 2,
            Kind::Unanswered => 3,
        };
        out[12..30].copy_from_slice(&address_bytes(self.client));
        out[30..48].copy_from_slice(&address_bytes(self.outside));
        out[48..52].copy_from_slice(&self.exit.to_be_bytes());
        let code = code(key, carrier, &out[..SIGNED_BYTES]).finalize();
        out[SIGNED_BYTES..].copy_from_slice(&code.into_bytes());
        out
    }

    /// Reads what came, and whether it is meant for this connection.
    pub fn decode(
        bytes: &[u8; PREFACE_BYTES],
        key: &Key,
        carrier: &Carrier,
    ) -> Result<Preface, PrefaceError> {
        let (signed, sent) = bytes.split_at(SIGNED_BYTES);
        if !may_begin(bytes) {
            return Err(PrefaceError::Magic);
        }
        // Compared in constant time.
        let whole = code(key, carrier, signed).verify_slice(sent);
        whole.map_err(|_| PrefaceError::Code)?;
        let kind = match (bytes[8], bytes[9]) {
            (VERSION, 1) => Kind::Client,
            (VERSION, 2) => Kind::Destination,
            (VERSION, 3) => Kind::Unanswered,
            _ => return Err(PrefaceError::Version),
        };
        Ok(Preface {
            kind,
            client: address(&bytes[12..30]),
            outside: address(&bytes[30..48]),
            exit: claimed_exit(bytes),
        })
    }
}

/// The exit of a preface whose code was not looked at yet: it says which key to look for.
pub fn claimed_exit(bytes: &[u8; PREFACE_BYTES]) -> u32 {
    let mut exit = [0; 4];
    exit.copy_from_slice(&bytes[48..52]);
    u32::from_be_bytes(exit)
}

/// Length of an [`Answer`].
pub const ANSWER_BYTES: usize = 20;

/// What became of [`Kind::Destination`]: the first bytes that come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 0, or why the gateway is not connected.
    pub errno: u16,
    /// The gateway's address, as the destination sees it.
    pub outside: SocketAddr,
}

impl Answer {
    /// As it is sent: two bytes, an address, a port.
    pub fn encode(&self) -> [u8; ANSWER_BYTES] {
        let mut out = [0; ANSWER_BYTES];
        out[..2].copy_from_slice(&self.errno.to_be_bytes());
        out[2..].copy_from_slice(&address_bytes(self.outside));
        out
    }

    /// Any bytes are one.
    pub fn decode(bytes: &[u8; ANSWER_BYTES]) -> Answer {
        Answer {
            errno: u16::from_be_bytes([bytes[0], bytes[1]]),
            outside: address(&bytes[2..]),
        }
    }
}

/// Whether these first bytes of a connection, any number of them, can be those of a preface.
pub fn may_begin(bytes: &[u8]) -> bool {
    let len = bytes.len().min(MAGIC.len());
    bytes[..len] == MAGIC[..len]
}

fn code(key: &Key, carrier: &Carrier, signed: &[u8]) -> Hmac<Sha256> {
    // A key shorter than a block counts as if zeros followed (RFC 2104 §2).
    let mut block = [0; 64];
    block[..32].copy_from_slice(&key.0);
    let mut mac = <Hmac<Sha256> as Mac>::new(&block.into());
    mac.update(signed);
    mac.update(&address_bytes(carrier.from));
    mac.update(&address_bytes(carrier.to));
    mac
}

fn address_bytes(address: SocketAddr) -> [u8; 18] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut out = [0; 18];
    out[..16].copy_from_slice(&ip.octets());
    out[16..].copy_from_slice(&address.port().to_be_bytes());
    out
}

/// `bytes` are 18.
fn address(bytes: &[u8]) -> SocketAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[..16]);
    let port = u16::from_be_bytes([bytes[16], bytes[17]]);
    SocketAddr::new(Ipv6Addr::from(octets).to_canonical(), port)
}

/// An address for a place where there is none.
pub const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key([7; 32]);

    fn carrier() -> Carrier {
        Carrier {
            from: "10.0.0.1:40000".parse().unwrap(),
            to: "[fd00::2]:80".parse().unwrap(),
        }
    }

    fn preface() -> Preface {
        Preface {
            kind: Kind::Client,
            client: "203.0.113.9:5555".parse().unwrap(),
            outside: "[2001:db8::1]:443".parse().unwrap(),
            exit: 9,
        }
    }

    #[test]
    fn prefaces_come_back() {
        for kind in [Kind::Client, Kind::Destination, Kind::Unanswered] {
            let preface = Preface { kind, ..preface() };
            let bytes = preface.encode(&KEY, &carrier());
            assert_eq!(Preface::decode(&bytes, &KEY, &carrier()), Ok(preface));
            assert_eq!(claimed_exit(&bytes), preface.exit);
            assert!((0..bytes.len()).all(|len| may_begin(&bytes[..len])));
        }
    }

    #[test]
    fn the_bytes_are_what_the_table_says() {
        let bytes = preface().encode(&KEY, &carrier());
        let mapped = |ip: &[u8]| [&[0; 10][..], &[0xff; 2], ip].concat();
        let outside: Ipv6Addr = "2001:db8::1".parse().unwrap();
        let signed = [
            &MAGIC[..],
            &[2, 1, 0, 0],
            &mapped(&[203, 0, 113, 9]),
            &5555_u16.to_be_bytes(),
            &outside.octets(),
            &443_u16.to_be_bytes(),
            &9_u32.to_be_bytes(),
        ]
        .concat();
        assert_eq!(bytes[..52], signed);
        assert_eq!(bytes.len(), 52 + 32);
    }

    #[test]
    fn answers_come_back() {
        let answer = Answer {
            errno: 111,
            outside: "[2001:db8::1]:443".parse().unwrap(),
        };
        assert_eq!(Answer::decode(&answer.encode()), answer);
    }

    #[test]
    fn no_bit_can_be_changed() {
        let bytes = preface().encode(&KEY, &carrier());
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes;
            other[bit / 8] ^= 1 << (bit % 8);
            let error = Preface::decode(&other, &KEY, &carrier()).unwrap_err();
            let expected = if bit < 64 {
                PrefaceError::Magic
            } else {
                PrefaceError::Code
            };
            assert_eq!(error, expected, "bit {bit}");
        }
    }

    #[test]
    fn it_is_worth_nothing_elsewhere_or_without_the_key() {
        let bytes = preface().encode(&KEY, &carrier());
        let there = |change: fn(&mut Carrier)| {
            let mut carrier = carrier();
            change(&mut carrier);
            Preface::decode(&bytes, &KEY, &carrier)
        };
        for result in [
            there(|it| it.from.set_port(40_001)),
            there(|it| it.to.set_port(81)),
            there(|it| it.from.set_ip("10.0.0.2".parse().unwrap())),
            there(|it| (it.from, it.to) = (it.to, it.from)),
            Preface::decode(&bytes, &Key([8; 32]), &carrier()),
        ] {
            assert_eq!(result, Err(PrefaceError::Code));
        }
    }

    #[test]
    fn what_programs_say_first_is_no_preface() {
        for text in [
            &b"GET / HTTP/1.1"[..],
            b"\x16\x03\x01\x02\x00",
            b"PRI * HTTP/2.0",
            b"*1\r\n$4\r\nPING",
            b"SSH-2.0-",
        ] {
            assert!(!may_begin(text));
        }
    }
}
