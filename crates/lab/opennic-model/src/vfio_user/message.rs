//! Messages of a client, from bytes. Every number in them is the client's and is checked here for
//! what can be checked without the device.

/// Bytes of a message's header.
pub const HEADER_LEN: usize = 16;
/// The largest message, which is a write of [`DATA_LEN_MAX`] bytes.
pub const MESSAGE_LEN_MAX: usize = HEADER_LEN + 16 + DATA_LEN_MAX;
/// What one read or write moves.
pub const DATA_LEN_MAX: usize = 1 << 16;

const FLAG_TYPE: u32 = 0xF;
const TYPE_COMMAND: u32 = 0;
const FLAG_NO_REPLY: u32 = 1 << 4;
const FLAG_ERROR: u32 = 1 << 5;
const FLAG_REPLY: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub id: u16,
    pub command: u16,
    /// Of the whole message.
    pub len: usize,
    pub no_reply: bool,
}

/// Why a client's stream cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    Length(u32),
    NotACommand(u32),
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Broken::Length(len) => write!(f, "a message of {len} bytes"),
            Broken::NotACommand(flags) => write!(f, "a message that is no command ({flags:#x})"),
        }
    }
}

impl std::error::Error for Broken {}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl Header {
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, Broken> {
        let [i0, i1, c0, c1, l0, l1, l2, l3, f0, f1, f2, f3, ..] = *bytes;
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        let flags = u32::from_le_bytes([f0, f1, f2, f3]);
        if flags & FLAG_TYPE != TYPE_COMMAND {
            return Err(Broken::NotACommand(flags));
        }
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        if !(HEADER_LEN..=MESSAGE_LEN_MAX).contains(&bytes) {
            return Err(Broken::Length(len));
        }
        Ok(Self {
            id: u16::from_le_bytes([i0, i1]),
            command: u16::from_le_bytes([c0, c1]),
            len: bytes,
            no_reply: flags & FLAG_NO_REPLY != 0,
        })
    }

    /// The answer with this behind its header.
    pub fn reply(&self, body: &[u8]) -> Vec<u8> {
        self.answer(FLAG_REPLY, 0, body)
    }

    /// The answer that it went wrong; `errno` is never 0, which would say that it did not.
    pub fn error(&self, errno: i32) -> Vec<u8> {
        self.answer(FLAG_REPLY | FLAG_ERROR, errno.max(1) as u32, &[])
    }

    fn answer(&self, flags: u32, errno: u32, body: &[u8]) -> Vec<u8> {
        let len = (HEADER_LEN + body.len()) as u32;
        let mut bytes = Vec::with_capacity(HEADER_LEN + body.len());
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.command.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(errno.to_le_bytes());
        bytes.extend(body);
        bytes
    }
}

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    Version {
        major: u16,
        minor: u16,
    },
    DmaMap {
        offset: u64,
        address: u64,
        len: u64,
    },
    /// `len` is 0 with `all`.
    DmaUnmap {
        address: u64,
        len: u64,
        all: bool,
    },
    DeviceInfo,
    RegionInfo {
        index: u32,
        room: u32,
    },
    IrqInfo {
        index: u32,
    },
    SetIrqs(SetIrqs),
    Read {
        region: u32,
        offset: u64,
        len: usize,
    },
    Write {
        region: u32,
        offset: u64,
        bytes: &'a [u8],
    },
    Reset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetIrqs {
    pub index: u32,
    pub start: u32,
    pub count: u32,
    /// Descriptors come with it.
    pub descriptors: bool,
    /// It sets or sends the interrupt itself, and not its mask.
    pub trigger: bool,
}

/// A command that is not understood, as the errno of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// ENOSYS
    Command,
    /// EINVAL
    Body,
}

impl<'a> Request<'a> {
    /// From a command and what is behind its header.
    pub fn parse(command: u16, body: &'a [u8]) -> Result<Self, Unknown> {
        if !matches!(command, 1..=5 | 7..=10 | 13) {
            return Err(Unknown::Command);
        }
        Self::parse_body(command, body).ok_or(Unknown::Body)
    }

    fn parse_body(command: u16, body: &'a [u8]) -> Option<Self> {
        Some(match command {
            1 => Self::Version {
                major: u16_at(body, 0)?,
                minor: u16_at(body, 2)?,
            },
            2 => Self::DmaMap {
                offset: u64_at(body, 8)?,
                address: u64_at(body, 16)?,
                len: u64_at(body, 24)?,
            },
            3 => {
                const ALL: u32 = 1 << 2;
                Self::DmaUnmap {
                    all: u32_at(body, 4)? & ALL != 0,
                    address: u64_at(body, 8)?,
                    len: u64_at(body, 16)?,
                }
            }
            4 => Self::DeviceInfo,
            5 => Self::RegionInfo {
                room: u32_at(body, 0)?,
                index: u32_at(body, 8)?,
            },
            7 => Self::IrqInfo {
                index: u32_at(body, 8)?,
            },
            8 => {
                const EVENTFD: u32 = 1 << 2;
                const TRIGGER: u32 = 1 << 5;
                let flags = u32_at(body, 4)?;
                Self::SetIrqs(SetIrqs {
                    descriptors: flags & EVENTFD != 0,
                    trigger: flags & TRIGGER != 0,
                    index: u32_at(body, 8)?,
                    start: u32_at(body, 12)?,
                    count: u32_at(body, 16)?,
                })
            }
            9 | 10 => {
                let (offset, region) = (u64_at(body, 0)?, u32_at(body, 8)?);
                let len = usize::try_from(u32_at(body, 12)?).ok()?;
                if len > DATA_LEN_MAX {
                    return None;
                }
                if command == 9 {
                    Self::Read {
                        region,
                        offset,
                        len,
                    }
                } else {
                    let bytes = body.get(16..)?;
                    if bytes.len() != len {
                        return None;
                    }
                    Self::Write {
                        region,
                        offset,
                        bytes,
                    }
                }
            }
            13 => Self::Reset,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lengths_that_lie_break_the_stream() {
        let mut bytes = [0; HEADER_LEN];
        for len in [0_u32, 15, MESSAGE_LEN_MAX as u32 + 1, u32::MAX] {
            bytes[4..8].copy_from_slice(&len.to_le_bytes());
            assert_eq!(Header::parse(&bytes), Err(Broken::Length(len)));
        }
        bytes[4..8].copy_from_slice(&16_u32.to_le_bytes());
        assert_eq!(Header::parse(&bytes).map(|header| header.len), Ok(16));
        bytes[8] = 1;
        assert_eq!(Header::parse(&bytes), Err(Broken::NotACommand(1)));
    }

    #[test]
    fn a_write_has_as_many_bytes_as_it_says() {
        let mut body = vec![0; 20];
        body[0] = 8;
        body[12] = 4;
        let write = Request::parse(10, &body);
        assert_eq!(
            write,
            Ok(Request::Write {
                region: 0,
                offset: 8,
                bytes: &[0; 4]
            })
        );
        assert_eq!(Request::parse(10, &body[..19]), Err(Unknown::Body));
        assert_eq!(Request::parse(6, &body), Err(Unknown::Command));
    }

    #[test]
    fn an_error_never_says_that_it_is_none() {
        let header = Header {
            id: 7,
            command: 9,
            len: 16,
            no_reply: false,
        };
        let bytes = header.error(0);
        assert_eq!(&bytes[..2], [7, 0]);
        assert_ne!(&bytes[12..16], [0; 4]);
    }

    proptest! {
        #[test]
        fn any_body_is_understood_or_refused(command in 0u16..20, body: Vec<u8>) {
            let _ = Request::parse(command, &body);
        }
    }
}
