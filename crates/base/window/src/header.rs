//! The first page of a region: what window this is. Written once, by who made it.

use crate::Kind;
use crate::layout::{Geometry, GeometryError, HEADER_BYTES};
use crate::view::LINE_BYTES;

/// "SLUICEWN".
const MAGIC: u64 = u64::from_le_bytes(*b"SLUICEWN");
/// The version of the layout of a region.
pub const VERSION: u64 = 1;

/// Bytes of the header's first line.
pub const BYTES: usize = LINE_BYTES as usize;

/// Where the line of a slot's claim lies.
pub const fn claim_at(slot: u32) -> u64 {
    LINE_BYTES * (1 + slot as u64)
}

const _: () = assert!(claim_at(crate::layout::HOSTS_MAX) <= HEADER_BYTES);

/// What a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    pub geometry: Geometry,
    /// Random: two windows are told apart by it.
    pub id: [u64; 2],
}

/// Why memory is no window that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Nothing or something else lies there.
    NoWindow,
    /// Every byte is ones: the device is gone or its memory is not enabled.
    AllOnes,
    /// A version that this program does not know.
    Version(u64),
    /// A kind that does not exist, or [`Kind::Push`], which has no region.
    Kind(u64),
    Geometry(GeometryError),
    /// The window is longer than the memory: `window`, `memory`, bytes.
    Longer {
        window: u64,
        memory: u64,
    },
}

impl core::fmt::Display for HeaderError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            HeaderError::NoWindow => {
                f.write_str("there is no window here; `sluice window create` makes one")
            }
            HeaderError::AllOnes => f.write_str(
                "every byte reads as ones: the device is gone, or its memory is not enabled",
            ),
            HeaderError::Version(version) => write!(
                f,
                "the window has layout {version}, and this program knows layout {VERSION} only: \
                 use one version of Sluice on all of its hosts"
            ),
            HeaderError::Kind(code) => write!(f, "the window is of an unknown kind, {code}"),
            HeaderError::Geometry(error) => write!(f, "the window's header is broken: {error}"),
            HeaderError::Longer { window, memory } => write!(
                f,
                "the window has {window} bytes, and the memory only {memory}"
            ),
        }
    }
}

impl core::error::Error for HeaderError {}

impl Header {
    pub fn emit(&self) -> [u8; BYTES] {
        let words = [
            MAGIC,
            VERSION,
            self.kind.code(),
            u64::from(self.geometry.hosts()),
            self.geometry.slot_bytes(),
            self.id[0],
            self.id[1],
            0,
        ];
        let mut bytes = [0; BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `memory` is how many bytes there are in all.
    pub fn parse(bytes: &[u8; BYTES], memory: u64) -> Result<Header, HeaderError> {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * index..8 * index + 8]);
            u64::from_le_bytes(word)
        };
        if bytes.iter().all(|byte| *byte == 0xff) {
            return Err(HeaderError::AllOnes);
        }
        if word(0) != MAGIC {
            return Err(HeaderError::NoWindow);
        }
        if word(1) != VERSION {
            return Err(HeaderError::Version(word(1)));
        }
        let kind = match Kind::from_code(word(2)) {
            Some(kind @ (Kind::Coherent | Kind::Flush)) => kind,
            Some(Kind::Push) | None => return Err(HeaderError::Kind(word(2))),
        };
        let hosts = u32::try_from(word(3)).unwrap_or(u32::MAX);
        let geometry = Geometry::new(hosts, word(4)).map_err(HeaderError::Geometry)?;
        if geometry.region_bytes() > memory {
            return Err(HeaderError::Longer {
                window: geometry.region_bytes(),
                memory,
            });
        }
        Ok(Header {
            kind,
            geometry,
            id: [word(5), word(6)],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> Header {
        Header {
            kind: Kind::Flush,
            geometry: Geometry::of_region(4, 1 << 22).unwrap(),
            id: [1, 2],
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let header = header();
        assert_eq!(Header::parse(&header.emit(), 1 << 22), Ok(header));
    }

    #[test]
    fn each_fault_has_its_name() {
        let good = header().emit();
        let with = |word: usize, value: u64| {
            let mut bytes = good;
            bytes[8 * word..8 * word + 8].copy_from_slice(&value.to_le_bytes());
            Header::parse(&bytes, 1 << 22)
        };
        assert_eq!(with(0, 0), Err(HeaderError::NoWindow));
        assert_eq!(with(1, 2), Err(HeaderError::Version(2)));
        assert_eq!(with(2, 3), Err(HeaderError::Kind(3)));
        assert_eq!(with(2, 9), Err(HeaderError::Kind(9)));
        assert!(matches!(with(3, 1 << 40), Err(HeaderError::Geometry(_))));
        assert!(matches!(with(4, u64::MAX), Err(HeaderError::Geometry(_))));
        assert!(matches!(
            Header::parse(&good, 1 << 20),
            Err(HeaderError::Longer { .. })
        ));
        assert_eq!(Header::parse(&[0xff; BYTES], 1), Err(HeaderError::AllOnes));
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_window_that_does_not_fit(
            words in proptest::array::uniform8(prop_oneof![0..40u64, any::<u64>()]),
            memory in any::<u64>(),
        ) {
            let mut bytes = [0; BYTES];
            for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[8..16].copy_from_slice(&VERSION.to_le_bytes());
            if let Ok(header) = Header::parse(&bytes, memory) {
                prop_assert!(header.geometry.region_bytes() <= memory);
                prop_assert_eq!(Header::parse(&header.emit(), memory), Ok(header));
            }
        }
    }
}
