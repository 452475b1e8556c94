//! What programs and the command line say to sluiced.

use super::bytes::{Reader, Writer};
use super::gateway::Ask;
use super::{DecodeError, MESSAGE_BYTES_MAX};

/// A program's name as `/proc/self/comm` or `argv[0]` gives it, cut to 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramName([u8; ProgramName::BYTES]);

impl ProgramName {
    /// Longest name, bytes.
    pub const BYTES: usize = 32;

    /// Takes the first [`ProgramName::BYTES`] bytes, up to the first zero byte.
    pub fn new(name: &[u8]) -> ProgramName {
        let mut bytes = [0; ProgramName::BYTES];
        for (slot, byte) in bytes.iter_mut().zip(name.iter().take_while(|b| **b != 0)) {
            *slot = *byte;
        }
        ProgramName(bytes)
    }

    /// The name without its padding; any bytes, since programs choose them.
    pub fn as_bytes(&self) -> &[u8] {
        let len = self.0.iter().position(|b| *b == 0).unwrap_or(self.0.len());
        &self.0[..len]
    }
}

/// A program introduces itself; the descriptors of [`super::hello_fd`] come with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The process id in the program's own pid namespace.
    pub pid: u32,
    pub program: ProgramName,
    /// Bits of [`super::hello_flag`]; sluiced ignores the ones that it does not know.
    pub flags: u32,
}

/// How an end came to its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Connected,
    Accepted,
    /// Inherited or passed, so this process did not see it happen.
    Unknown,
}

/// An end of a connection looks for its other end; the TCP socket comes with it as proof of
/// ownership, and its copy is closed before the next message is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announce {
    /// The program's number for this end: its record in the end table.
    pub end: u32,
    /// Tells successive uses of the same number apart.
    pub generation: u32,
    pub role: Role,
}

/// Messages to sluiced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "messages live on the stack, one at a time"
)]
pub enum ToDaemon {
    /// First message of a program. Answered by `Welcome` or `Refused`.
    Hello(Hello),
    /// Comes with one end of a `SOCK_SEQPACKET` pair, which sluiced serves as if it had been
    /// accepted. A forked child, even one that has changed its root or user, gets its own
    /// connection in this way over the one it inherited.
    Introduce,
    Announce(Announce),
    /// The end is closed, or will not use its lanes any more.
    Release {
        end: u32,
        generation: u32,
    },
    /// The end has waited for long. Answered by `NoPeer`, once everything that programs have sent
    /// so far was read and nobody has announced the other end; not answered otherwise.
    AskPeer {
        end: u32,
        generation: u32,
    },
    /// Answered by `Pong`.
    Ping,
    /// Answered by `Report` with a memfd.
    Status,
    /// Ends sluiced; answered by `Pong` before it goes. Only for its own user and root.
    Shutdown,
    /// What has to do with gateways.
    Gateway(Ask),
}

mod kind {
    pub const HELLO: u16 = 1;
    pub const INTRODUCE: u16 = 2;
    pub const ANNOUNCE: u16 = 3;
    pub const RELEASE: u16 = 4;
    pub const PING: u16 = 5;
    pub const STATUS: u16 = 6;
    pub const SHUTDOWN: u16 = 7;
    pub const ASK_PEER: u16 = 8;
}

impl ToDaemon {
    /// Writes the message into `buffer` and returns its bytes.
    pub fn encode<'a>(&self, buffer: &'a mut [u8; MESSAGE_BYTES_MAX]) -> &'a [u8] {
        match self {
            Self::Hello(hello) => {
                let mut out = Writer::new(buffer, kind::HELLO);
                out.u32(hello.pid);
                out.u32(hello.flags);
                out.bytes(&hello.program.0);
                out.finish()
            }
            Self::Introduce => Writer::new(buffer, kind::INTRODUCE).finish(),
            Self::Announce(announce) => {
                let mut out = Writer::new(buffer, kind::ANNOUNCE);
                out.u32(announce.end);
                out.u32(announce.generation);
                out.u8(match announce.role {
                    Role::Connected => 0,
                    Role::Accepted => 1,
                    Role::Unknown => 2,
                });
                out.finish()
            }
            Self::Release { end, generation } => {
                let mut out = Writer::new(buffer, kind::RELEASE);
                out.u32(*end);
                out.u32(*generation);
                out.finish()
            }
            Self::AskPeer { end, generation } => {
                let mut out = Writer::new(buffer, kind::ASK_PEER);
                out.u32(*end);
                out.u32(*generation);
                out.finish()
            }
            Self::Ping => Writer::new(buffer, kind::PING).finish(),
            Self::Status => Writer::new(buffer, kind::STATUS).finish(),
            Self::Shutdown => Writer::new(buffer, kind::SHUTDOWN).finish(),
            Self::Gateway(ask) => ask.encode(buffer),
        }
    }

    /// Reads one whole message.
    pub fn decode(message: &[u8]) -> Result<ToDaemon, DecodeError> {
        let (kind, mut body) = Reader::new(message)?;
        let value = match kind {
            kind::HELLO => {
                let pid = body.u32()?;
                let flags = body.u32()?;
                let program = ProgramName::new(&body.array::<{ ProgramName::BYTES }>()?);
                Self::Hello(Hello {
                    pid,
                    program,
                    flags,
                })
            }
            kind::INTRODUCE => Self::Introduce,
            kind::ANNOUNCE => Self::Announce(Announce {
                end: body.u32()?,
                generation: body.u32()?,
                role: match body.u8()? {
                    0 => Role::Connected,
                    1 => Role::Accepted,
                    2 => Role::Unknown,
                    _ => return Err(DecodeError::Value),
                },
            }),
            kind::RELEASE => Self::Release {
                end: body.u32()?,
                generation: body.u32()?,
            },
            kind::ASK_PEER => Self::AskPeer {
                end: body.u32()?,
                generation: body.u32()?,
            },
            kind::PING => Self::Ping,
            kind::STATUS => Self::Status,
            kind::SHUTDOWN => Self::Shutdown,
            other => Self::Gateway(Ask::decode(other, &mut body)?),
        };
        body.finish()?;
        Ok(value)
    }
}
