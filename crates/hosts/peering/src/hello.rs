//! How two daemons greet each other, and how one refuses.
//!
//! Their first bytes are the same in all versions, so that daemons of any two can say why they do
//! not go together. What a later version appends to a hello, earlier ones pass over.

use std::fmt;

use crate::config::{NAME_BYTES_MAX, is_name};
use crate::frame::GREETING_BYTES_MAX;
use crate::proof::PROOF_BYTES;

/// Versions of what daemons say to each other that this one speaks, frames and messages alike. Version 2 has
/// words of several queue pairs, version 3 those of initial sequence numbers.
pub const VERSIONS: Versions = Versions { first: 1, last: 3 };

/// Bytes of the random number that a daemon takes when it starts.
pub const INSTANCE_BYTES: usize = 16;

/// Bytes of the text that names the software.
pub const SOFTWARE_BYTES_MAX: usize = 64;

/// First and last version that a daemon speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub first: u16,
    pub last: u16,
}

impl Versions {
    /// The highest version that both speak.
    pub fn common(self, other: Versions) -> Option<u16> {
        let last = self.last.min(other.last);
        (last >= self.first.max(other.first)).then_some(last)
    }

    fn encode(self) -> [u8; 4] {
        let ([a, b], [c, d]) = (self.first.to_be_bytes(), self.last.to_be_bytes());
        [a, b, c, d]
    }

    fn decode(bytes: [u8; 4]) -> Versions {
        let [a, b, c, d] = bytes;
        Versions {
            first: u16::from_be_bytes([a, b]),
            last: u16::from_be_bytes([c, d]),
        }
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{} to {}", self.first, self.last)
        }
    }
}

/// Who a daemon is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub versions: Versions,
    /// Zeros where no key is used.
    pub proof: [u8; PROOF_BYTES],
    /// A daemon that was started again has another one.
    pub instance: [u8; INSTANCE_BYTES],
    pub name: String,
    /// For people.
    pub software: String,
}

/// Why bytes are no hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloError {
    /// It ends too early.
    Short,
    /// No daemon has such a name.
    Name,
    /// Too long, or not printable ASCII.
    Software,
    /// The first version is above the last.
    Versions,
}

impl fmt::Display for HelloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "a hello that ends too early",
            Self::Name => "a hello with an impossible name",
            Self::Software => "a hello with an impossible software",
            Self::Versions => "a hello with impossible versions",
        })
    }
}

impl std::error::Error for HelloError {}

const PROOF: std::ops::Range<usize> = 4..4 + PROOF_BYTES;

impl Hello {
    /// The body of the frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(GREETING_BYTES_MAX);
        bytes.extend(self.versions.encode());
        bytes.extend(self.proof);
        bytes.extend(self.instance);
        for text in [&self.name, &self.software] {
            // Both are shorter than that, as checked where they are made.
            bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
            bytes.extend(text.as_bytes().iter().take(usize::from(u8::MAX)));
        }
        bytes
    }

    /// Only the versions, which are where they are whatever follows.
    ///
    /// # Errors
    /// It ends too early, or they are impossible.
    pub fn versions_of(bytes: &[u8]) -> Result<Versions, HelloError> {
        let first = bytes.first_chunk().ok_or(HelloError::Short)?;
        let versions = Versions::decode(*first);
        if versions.first > versions.last {
            return Err(HelloError::Versions);
        }
        Ok(versions)
    }

    /// What follows the known fields does not count.
    ///
    /// # Errors
    /// A field is missing or impossible.
    pub fn decode(bytes: &[u8]) -> Result<Hello, HelloError> {
        let versions = Hello::versions_of(bytes)?;
        let rest = bytes.get(PROOF.start..).ok_or(HelloError::Short)?;
        let (proof, rest) = rest.split_first_chunk().ok_or(HelloError::Short)?;
        let (instance, rest) = rest.split_first_chunk().ok_or(HelloError::Short)?;
        let (name, rest) = text(rest)?;
        let name = std::str::from_utf8(name).map_err(|_| HelloError::Name)?;
        if name.len() > NAME_BYTES_MAX || !is_name(name) {
            return Err(HelloError::Name);
        }
        let (software, _later) = text(rest)?;
        if !is_software(software) {
            return Err(HelloError::Software);
        }
        Ok(Hello {
            versions,
            proof: *proof,
            instance: *instance,
            name: name.to_owned(),
            software: String::from_utf8_lossy(software).into_owned(),
        })
    }

    /// What the proof is made over: all bytes, with zeros in its own place.
    pub fn without_proof(bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        if let Some(proof) = bytes.get_mut(PROOF) {
            proof.fill(0);
        }
        bytes
    }
}

/// A text after the byte that says how long it is.
fn text(bytes: &[u8]) -> Result<(&[u8], &[u8]), HelloError> {
    let (length, rest) = bytes.split_first().ok_or(HelloError::Short)?;
    rest.split_at_checked(usize::from(*length))
        .ok_or(HelloError::Short)
}

fn is_software(text: &[u8]) -> bool {
    let good = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    text.len() <= SOFTWARE_BYTES_MAX && text.iter().all(good)
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// No version that both speak.
    Version = 1,
    /// The proof is that of another key.
    Key = 2,
    /// The certificate is not that of the daemon with this name.
    Name = 3,
    /// The configuration names no such peer, and does not ask for others.
    Unknown = 4,
    /// A daemon has reached itself.
    Itself = 5,
    /// Two daemons have the same name.
    SameName = 6,
    /// As many sessions as there can be.
    Full = 7,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 7] = [
        Reason::Version,
        Reason::Key,
        Reason::Name,
        Reason::Unknown,
        Reason::Itself,
        Reason::SameName,
        Reason::Full,
    ];
}

/// The body of [`Kind::Refuse`](crate::frame::Kind::Refuse).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// `None`: a reason that a later version has.
    pub reason: Option<Reason>,
    /// Of the daemon that refuses.
    pub versions: Versions,
}

impl Refusal {
    /// The body of the frame.
    pub fn encode(reason: Reason) -> [u8; 5] {
        let [a, b, c, d] = VERSIONS.encode();
        [reason as u8, a, b, c, d]
    }

    /// `None`: it ends too early.
    pub fn decode(bytes: &[u8]) -> Option<Refusal> {
        let [reason, versions @ ..] = *bytes.first_chunk::<5>()?;
        Some(Refusal {
            reason: Reason::ALL.into_iter().find(|r| *r as u8 == reason),
            versions: Versions::decode(versions),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            versions: Versions { first: 1, last: 3 },
            proof: [1; PROOF_BYTES],
            instance: [2; INSTANCE_BYTES],
            name: "alpha.example".into(),
            software: "sluiced 0.1.0".into(),
        }
    }

    #[test]
    fn a_hello_is_read_as_it_was_written_and_later_fields_are_passed_over() {
        let mut bytes = hello().encode();
        assert_eq!(Hello::decode(&bytes), Ok(hello()));
        for length in 0..bytes.len() {
            assert!(Hello::decode(&bytes[..length]).is_err(), "{length}");
        }
        bytes.extend([9; 100]);
        assert_eq!(Hello::decode(&bytes), Ok(hello()));
        let stripped = Hello::without_proof(&bytes);
        assert_eq!(Hello::decode(&stripped).unwrap().proof, [0; PROOF_BYTES]);
        assert_eq!(stripped.len(), bytes.len());
    }

    #[test]
    fn impossible_fields_are_refused() {
        let with = |change: fn(&mut Hello)| {
            let mut hello = hello();
            change(&mut hello);
            Hello::decode(&hello.encode())
        };
        assert_eq!(with(|h| h.name = "A".into()), Err(HelloError::Name));
        assert_eq!(with(|h| h.name = String::new()), Err(HelloError::Name));
        assert_eq!(with(|h| h.name = "a\n".into()), Err(HelloError::Name));
        assert_eq!(
            with(|h| h.software = "\x1b[2J".into()),
            Err(HelloError::Software)
        );
        assert_eq!(
            with(|h| h.software = "x".repeat(65)),
            Err(HelloError::Software)
        );
        let reversed = Versions { first: 2, last: 1 };
        let mut bytes = hello().encode();
        bytes[..4].copy_from_slice(&reversed.encode());
        assert_eq!(Hello::decode(&bytes), Err(HelloError::Versions));
    }

    #[test]
    fn the_highest_version_of_both_is_taken() {
        let range = |first, last| Versions { first, last };
        assert_eq!(range(1, 3).common(range(2, 9)), Some(3));
        assert_eq!(range(2, 9).common(range(1, 3)), Some(3));
        assert_eq!(range(1, 1).common(range(2, 9)), None);
        assert_eq!(range(5, 5).common(range(1, 4)), None);
        assert_eq!(range(4, 7).common(range(4, 7)), Some(7));
    }

    #[test]
    fn refusals_are_read_even_of_later_versions() {
        for reason in Reason::ALL {
            let read = Refusal::decode(&Refusal::encode(reason)).unwrap();
            assert_eq!(read.reason, Some(reason));
            assert_eq!(read.versions, VERSIONS);
        }
        let later = Refusal::decode(&[200, 0, 7, 0, 9, 1, 2, 3]).unwrap();
        assert_eq!(later.reason, None);
        assert_eq!(later.versions, Versions { first: 7, last: 9 });
        assert_eq!(Refusal::decode(&[1, 0, 0, 0]), None);
    }
}
