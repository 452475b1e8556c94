//! What the relay of one host says to that of another on a connection between them, before the bytes
//! of the two programs.
//!
//! The one who connects proves that its sluiced has a session with the other's: the [`Header`] has a
//! code (HMAC-SHA-256) by the key that was given out in this session, over everything in it, its
//! number and the addresses of the connection itself. So it is worth nothing on another connection,
//! and on the same four numbers later its number was there already ([`Numbers`]). The answer has a code too,
//! so that nobody else can take the relay's port and with it what programs say to each other.
//!
//! All numbers in network byte order; addresses are 16 bytes, IPv4 mapped into IPv6
//! (RFC 4291 §2.5.5.2), and a port.

use std::net::SocketAddr;

use ring::hmac;

use crate::words::{ADDRESS_BYTES, Fields, address_bytes};

/// The only version.
const VERSION: u8 = 1;
const CODE_BYTES: usize = 32;
/// Version, secret, number, destination, client.
const SAID_BYTES: usize = 1 + 8 + 8 + 2 * ADDRESS_BYTES;

/// Bytes of a header.
pub const HEADER_BYTES: usize = SAID_BYTES + CODE_BYTES;
/// Bytes of an answer: what it is, and the code.
pub const ANSWER_BYTES: usize = 1 + CODE_BYTES;

/// What the codes of headers and answers begin with, so that none is one of the other kind.
const HEADER_LABEL: &[u8] = b"sluice relay header";
const ANSWER_LABEL: &[u8] = b"sluice relay answer";

/// Numbers that may come late: connections overtake each other.
const WINDOW_BITS: u64 = 16 * 1024;

/// A key and its name, given to a peer for one session.
#[derive(Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Secret {
    pub id: u64,
    pub key: [u8; 32],
}

/// Without the key.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret({:016x})", self.id)
    }
}

/// The connection between the relays, as the one sees it who made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Between {
    pub from: SocketAddr,
    pub to: SocketAddr,
}

/// For what a connection between relays is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// [`Secret::id`].
    pub secret: u64,
    /// Counts from 1 for each secret; no two headers have the same.
    pub number: u64,
    /// Where the program wanted to connect to.
    pub destination: SocketAddr,
    /// The program's own end, as it sees it itself.
    pub client: SocketAddr,
}

/// What came of it at the other host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The destination has accepted: what follows are its bytes.
    Connected,
    /// It could not be reached, or may not be.
    Refused,
}

impl Header {
    /// As it is sent, on a connection between these addresses.
    pub fn seal(&self, secret: &Secret, between: &Between) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let (said, code) = out.split_at_mut(SAID_BYTES);
        said.copy_from_slice(&self.said());
        code.copy_from_slice(sign(secret, HEADER_LABEL, &self.said(), between).as_ref());
        out
    }

    /// What it says, if it is of this version; nothing of it is proven yet.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let mut fields = Fields(bytes);
        if fields.take::<1>()? != [VERSION] {
            return None;
        }
        Some(Header {
            secret: fields.u64()?,
            number: fields.u64()?,
            destination: fields.address()?,
            client: fields.address()?,
        })
    }

    /// Whether whoever has this secret has made it for this connection.
    pub fn is_proven(bytes: &[u8; HEADER_BYTES], secret: &Secret, between: &Between) -> bool {
        let (said, code) = bytes.split_at(SAID_BYTES);
        is_signed(secret, HEADER_LABEL, said, between, code)
    }

    fn said(&self) -> [u8; SAID_BYTES] {
        let mut out = [0; SAID_BYTES];
        out[0] = VERSION;
        out[1..9].copy_from_slice(&self.secret.to_be_bytes());
        out[9..17].copy_from_slice(&self.number.to_be_bytes());
        out[17..35].copy_from_slice(&address_bytes(self.destination));
        out[35..53].copy_from_slice(&address_bytes(self.client));
        out
    }
}

impl Answer {
    const fn byte(self) -> u8 {
        match self {
            Self::Connected => 1,
            Self::Refused => 2,
        }
    }

    /// As it is sent, to the header with this number.
    pub fn seal(self, secret: &Secret, number: u64, between: &Between) -> [u8; ANSWER_BYTES] {
        let mut out = [0; ANSWER_BYTES];
        let said = Self::said(self.byte(), number);
        out[0] = self.byte();
        out[1..].copy_from_slice(sign(secret, ANSWER_LABEL, &said, between).as_ref());
        out
    }

    /// None: it is not from whoever has the secret.
    pub fn open(
        bytes: &[u8; ANSWER_BYTES],
        secret: &Secret,
        number: u64,
        between: &Between,
    ) -> Option<Answer> {
        let (&[byte], code) = bytes.split_first_chunk::<1>()?;
        let said = Self::said(byte, number);
        if !is_signed(secret, ANSWER_LABEL, &said, between, code) {
            return None;
        }
        [Self::Connected, Self::Refused]
            .into_iter()
            .find(|answer| answer.byte() == byte)
    }

    fn said(byte: u8, number: u64) -> [u8; 9] {
        let mut said = [byte; 9];
        said[1..].copy_from_slice(&number.to_be_bytes());
        said
    }
}

/// Which numbers were there.
#[derive(Debug)]
pub struct Numbers {
    /// The greatest; 0: none.
    greatest: u64,
    /// A bit for each of the last [`WINDOW_BITS`], by its remainder.
    seen: Box<[u64]>,
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            greatest: 0,
            seen: vec![0; (WINDOW_BITS / 64) as usize].into(),
        }
    }
}

impl Numbers {
    /// Notes a number. False: it was there, or is too old to say.
    pub fn take(&mut self, number: u64) -> bool {
        if number == 0 || number.saturating_add(WINDOW_BITS) <= self.greatest {
            return false;
        }
        if number > self.greatest {
            // Those between were not there; no more of them than there are bits.
            let forgotten = (number - self.greatest).min(WINDOW_BITS);
            for fresh in 0..forgotten {
                self.set(number - fresh, false);
            }
            self.greatest = number;
        }
        let bit = number % WINDOW_BITS;
        let word = self.seen.get((bit / 64) as usize).copied();
        let is_new = word.is_some_and(|word| word >> (bit % 64) & 1 == 0);
        self.set(number, true);
        is_new
    }

    fn set(&mut self, number: u64, seen: bool) {
        let bit = number % WINDOW_BITS;
        if let Some(word) = self.seen.get_mut((bit / 64) as usize) {
            let mask = 1 << (bit % 64);
            *word = if seen { *word | mask } else { *word & !mask };
        }
    }
}

fn sign(secret: &Secret, label: &[u8], said: &[u8], between: &Between) -> hmac::Tag {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &secret.key);
    hmac::sign(&key, &signed(label, said, between))
}

fn is_signed(secret: &Secret, label: &[u8], said: &[u8], between: &Between, code: &[u8]) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &secret.key);
    hmac::verify(&key, &signed(label, said, between), code).is_ok()
}

/// All parts have a fixed length for each label.
fn signed(label: &[u8], said: &[u8], between: &Between) -> Vec<u8> {
    let mut all = Vec::with_capacity(label.len() + said.len() + 2 * ADDRESS_BYTES);
    all.extend(label);
    all.extend(said);
    all.extend(address_bytes(between.from));
    all.extend(address_bytes(between.to));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: Secret = Secret {
        id: 0x0123_4567_89ab_cdef,
        key: [7; 32],
    };

    fn between() -> Between {
        Between {
            from: "10.0.0.1:40000".parse().unwrap(),
            to: "10.0.0.2:4796".parse().unwrap(),
        }
    }

    fn header() -> Header {
        Header {
            secret: SECRET.id,
            number: 3,
            destination: "10.0.0.2:80".parse().unwrap(),
            client: "[2001:db8::1]:50000".parse().unwrap(),
        }
    }

    #[test]
    fn a_header_says_what_was_meant() {
        let bytes = header().seal(&SECRET, &between());
        assert_eq!(Header::parse(&bytes), Some(header()));
        assert!(Header::is_proven(&bytes, &SECRET, &between()));
        let mut other_version = bytes;
        other_version[0] = 2;
        assert_eq!(Header::parse(&other_version), None);
    }

    #[test]
    fn no_bit_of_a_header_can_be_changed() {
        let bytes = header().seal(&SECRET, &between());
        for bit in 0..HEADER_BYTES * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!Header::is_proven(&changed, &SECRET, &between()), "{bit}");
        }
    }

    #[test]
    fn a_header_is_worth_nothing_with_another_key_or_on_another_connection() {
        let bytes = header().seal(&SECRET, &between());
        let other = Secret {
            key: [8; 32],
            ..SECRET
        };
        assert!(!Header::is_proven(&bytes, &other, &between()));
        let mirrored = Between {
            from: between().to,
            to: between().from,
        };
        let mut other_port = between();
        other_port.from.set_port(40001);
        let mut other_host = between();
        other_host.to.set_ip("10.0.0.3".parse().unwrap());
        for wrong in [mirrored, other_port, other_host] {
            assert!(!Header::is_proven(&bytes, &SECRET, &wrong), "{wrong:?}");
        }
    }

    #[test]
    fn an_answer_belongs_to_its_header() {
        for answer in [Answer::Connected, Answer::Refused] {
            let bytes = answer.seal(&SECRET, 3, &between());
            let open = |number| Answer::open(&bytes, &SECRET, number, &between());
            assert_eq!(open(3), Some(answer));
            assert_eq!(open(4), None);
            let mut changed = bytes;
            changed[0] ^= 3;
            assert_eq!(Answer::open(&changed, &SECRET, 3, &between()), None);
        }
    }

    #[test]
    fn each_number_counts_once() {
        let mut numbers = Numbers::default();
        assert!(!numbers.take(0));
        for (number, is_new) in [
            (1, true),
            (1, false),
            (5, true),
            (3, true),
            (3, false),
            (5, false),
            (4, true),
            (WINDOW_BITS + 5, true),
            (5, false),
            (6, true),
            (6, false),
            (3 * WINDOW_BITS, true),
            (3 * WINDOW_BITS - 1, true),
            (2 * WINDOW_BITS, false),
            (2 * WINDOW_BITS + 1, true),
            (u64::MAX, true),
            (u64::MAX, false),
            (7, false),
        ] {
            assert_eq!(numbers.take(number), is_new, "{number}");
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{SECRET:?}"), "Secret(0123456789abcdef)");
    }
}
