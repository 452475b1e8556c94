//! What goes through the connection: frames of one byte for the kind, three for the length of what
//! follows (big endian), and that.

use std::fmt;

/// Bytes of kind and length.
pub const HEADER_BYTES: usize = 4;

/// Bytes of one message at most.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Bytes that follow the header of any other frame at most.
pub const GREETING_BYTES_MAX: usize = 1 << 10;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Who the sender is; the first frame in each direction.
    Hello = 1,
    /// The dialer wants this connection to be the session.
    Take = 2,
    /// The dialer has a session with this daemon already, and wanted to know where it is.
    Known = 3,
    /// The acceptor agrees: this is the session.
    Taken = 4,
    /// The acceptor has a session with this daemon already, and keeps that.
    Duplicate = 5,
    /// No session, and why: see [`Refusal`](crate::hello::Refusal).
    Refuse = 6,
    /// Nothing else to say for a while.
    Alive = 7,
    /// What the user of this crate sends.
    Message = 8,
    /// The session ends, on purpose.
    Bye = 9,
}

impl Kind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Kind; 9] = [
        Kind::Hello,
        Kind::Take,
        Kind::Known,
        Kind::Taken,
        Kind::Duplicate,
        Kind::Refuse,
        Kind::Alive,
        Kind::Message,
        Kind::Bye,
    ];

    fn from_byte(byte: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Bytes that follow the header at most.
    fn length_max(self) -> usize {
        match self {
            Kind::Hello | Kind::Refuse => GREETING_BYTES_MAX,
            Kind::Message => MESSAGE_BYTES_MAX,
            Kind::Take | Kind::Known | Kind::Taken | Kind::Duplicate | Kind::Alive | Kind::Bye => 0,
        }
    }
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// No kind has this number.
    Kind(u8),
    /// More bytes than a frame of this kind can have.
    Length(Kind, usize),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(byte) => write!(f, "a frame of the unknown kind {byte}"),
            Self::Length(kind, length) => write!(f, "a frame {kind:?} of {length} bytes"),
        }
    }
}

impl std::error::Error for FrameError {}

/// A frame among bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: Kind,
    pub body: &'a [u8],
}

impl Frame<'_> {
    /// Bytes that it takes, with its header.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }
}

/// The first frame of `bytes`; `None` when more must come. That it is none is said as soon as its
/// header is there.
///
/// # Errors
/// No such frame exists; nothing behind it can be understood.
pub fn split(bytes: &[u8]) -> Result<Option<Frame<'_>>, FrameError> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let [kind, length @ ..] = *header;
    let kind = Kind::from_byte(kind).ok_or(FrameError::Kind(kind))?;
    let [high, middle, low] = length.map(usize::from);
    let length = high << 16 | middle << 8 | low;
    if length > kind.length_max() {
        return Err(FrameError::Length(kind, length));
    }
    Ok(rest.get(..length).map(|body| Frame { kind, body }))
}

/// Appends a frame. `body` is not longer than the kind allows: callers have checked it.
pub fn append(to: &mut Vec<u8>, kind: Kind, body: &[u8]) {
    debug_assert!(body.len() <= kind.length_max(), "{kind:?} {}", body.len());
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes();
    to.push(kind as u8);
    to.extend_from_slice(&length[1..]);
    to.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in() {
        let mut bytes = Vec::new();
        append(&mut bytes, Kind::Take, &[]);
        append(&mut bytes, Kind::Message, &vec![7; MESSAGE_BYTES_MAX]);
        let frame = split(&bytes).unwrap().unwrap();
        assert_eq!((frame.kind, frame.body), (Kind::Take, &[][..]));
        assert_eq!(frame.bytes(), HEADER_BYTES);
        let frame = split(&bytes[HEADER_BYTES..]).unwrap().unwrap();
        assert_eq!(frame.kind, Kind::Message);
        assert_eq!(frame.body, vec![7; MESSAGE_BYTES_MAX]);
        assert_eq!(frame.bytes(), bytes.len() - HEADER_BYTES);
        for length in 0..HEADER_BYTES {
            assert_eq!(split(&bytes[..length]), Ok(None));
        }
        assert_eq!(split(&bytes[HEADER_BYTES..bytes.len() - 1]), Ok(None));
    }

    #[test]
    fn what_cannot_become_a_frame_is_refused_at_its_header() {
        assert_eq!(split(&[0, 0, 0, 0]), Err(FrameError::Kind(0)));
        assert_eq!(split(&[10, 0, 0, 0]), Err(FrameError::Kind(10)));
        assert_eq!(split(b"GET / HTTP/1.1"), Err(FrameError::Kind(b'G')));
        let over = FrameError::Length(Kind::Message, MESSAGE_BYTES_MAX + 1);
        assert_eq!(split(&[8, 1, 0, 1]), Err(over));
        assert_eq!(split(&[8, 1, 0, 0]), Ok(None));
        assert_eq!(
            split(&[7, 0, 0, 1]),
            Err(FrameError::Length(Kind::Alive, 1))
        );
        let long = FrameError::Length(Kind::Hello, GREETING_BYTES_MAX + 1);
        assert_eq!(split(&[1, 0, 4, 1]), Err(long));
    }

    #[test]
    fn the_document_has_each_frame() {
        let document = include_str!("../../../../docs/protocols.md");
        for kind in Kind::ALL {
            let name = format!("{kind:?}").to_lowercase();
            let row = format!("| {} | {name} | {} |", kind as u8, kind.length_max());
            assert!(document.contains(&row), "the document lacks {row}");
        }
        let port = format!("TCP port {}", crate::PORT_DEFAULT);
        let label = String::from_utf8_lossy(crate::proof::EXPORTER_LABEL).into_owned();
        let crate::Versions { first, last } = crate::VERSIONS;
        let versions = format!("({first} and {last})");
        for text in [port, label, versions] {
            assert!(document.contains(&text), "the document lacks {text}");
        }
    }
}
