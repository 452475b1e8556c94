//! What sluiced says to programs and to the command line.

use core::fmt;

use super::bytes::{Reader, Writer};
use super::gateway::Tell;
use super::{DecodeError, MESSAGE_BYTES_MAX};

/// Why sluiced does not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The program speaks another protocol version.
    Version,
    /// The process belongs to another user, whom this sluiced does not serve.
    User,
    /// sluiced has as many clients as it can hold descriptors for.
    Full,
    /// A descriptor is missing, or is not what the message needs.
    Descriptors,
    /// The message is malformed or comes at a wrong time.
    Protocol,
    /// Another process is what this one wants to be; it may end.
    Taken,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => "sluiced speaks another protocol version; restart it",
            Self::User => "sluiced serves another user; start one of your own",
            Self::Full => {
                "sluiced has no room for more programs; raise its limits of open files and of processes, or its \
                 --user-share"
            }
            Self::Descriptors => "sluiced did not get the descriptors that it needs",
            Self::Protocol => "sluiced did not understand the message",
            Self::Taken => "another process does that for sluiced already",
        })
    }
}

/// A lane for an end: where it lies and who is at the other side.
///
/// Before a program enables a lane it checks that its descriptor still is the socket `cookie` and
/// that TCP is still connected. sluiced keeps no copy of the socket, so an end may have been
/// closed, and its addresses used by another connection, since it was announced; only an end
/// that has passed this check, while its peer was announced later, is sure to be that peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    pub end: u32,
    pub generation: u32,
    /// Which chunk: a number that sluiced gives out once in its life.
    pub chunk: u32,
    /// Which lane of the chunk, below `lanes`.
    pub lane: u32,
    /// Lanes of the chunk, and bytes of each ring: the chunk's geometry.
    pub lanes: u32,
    pub ring_bytes: u32,
    /// 0 for the program with the lower client number, 1 for the other: a program has one side in
    /// all the lanes that it shares with another. Within one program, 0 for the end that was
    /// announced first.
    pub side: u8,
    /// The chunk's memfd comes with this message, as the first descriptor.
    pub has_chunk_fd: bool,
    /// The peer's parking table comes with this message, as the last descriptor. Never so for a
    /// connection of a program to itself.
    pub has_parking_fd: bool,
    /// The other process of the lane is sluiced itself, for a peer on another host.
    pub is_remote: bool,
    /// The peer is a program on another host, and the chunk a piece of a window that both hosts
    /// share (docs/decisions/0041). Never so together with `is_remote`, nor with a parking table.
    pub is_direct: bool,
    /// Where the chunk begins in the memory that comes with this message, bytes; 0 but for a direct
    /// lane.
    pub offset: u64,
    /// The peer's client number, and its process id as sluiced sees it.
    pub peer: u32,
    pub peer_pid: u32,
    /// `SO_COOKIE` of the socket that was announced.
    pub cookie: u64,
}

impl Lane {
    /// How many descriptors come with the message.
    pub fn fd_count(&self) -> usize {
        usize::from(self.has_chunk_fd) + usize::from(self.has_parking_fd)
    }
}

/// Messages from sluiced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "messages live on the stack, one at a time"
)]
pub enum FromDaemon {
    /// The program is known; `client` is its number among all programs of this sluiced's life.
    Welcome {
        version: u16,
        client: u32,
    },
    /// The request failed; after `Hello` the connection is closed too.
    Refused {
        reason: Reason,
    },
    Lane(Lane),
    /// The answer to `AskPeer`: nobody has announced the other end, and sluiced has forgotten this
    /// one.
    NoPeer {
        end: u32,
        generation: u32,
    },
    /// The peer process has ended. No lane will be given in chunks shared with it any more; a
    /// chunk can be unmapped as soon as the program's own ends do not use it.
    PeerGone {
        peer: u32,
    },
    /// sluiced is alive: its process id and the clients it has.
    Pong {
        pid: u32,
        clients: u32,
    },
    /// One JSON document of `bytes` bytes lies in the memfd that comes with this message.
    Report {
        bytes: u64,
    },
    /// What has to do with gateways.
    Gateway(Tell),
}

mod kind {
    pub const WELCOME: u16 = 101;
    pub const REFUSED: u16 = 102;
    pub const LANE: u16 = 103;
    pub const PEER_GONE: u16 = 104;
    pub const PONG: u16 = 105;
    pub const REPORT: u16 = 106;
    pub const NO_PEER: u16 = 107;
}

const HAS_CHUNK_FD: u8 = 1;
const HAS_PARKING_FD: u8 = 2;
const IS_REMOTE: u8 = 4;
const IS_DIRECT: u8 = 8;

impl FromDaemon {
    /// Writes the message into `buffer` and returns its bytes.
    pub fn encode<'a>(&self, buffer: &'a mut [u8; MESSAGE_BYTES_MAX]) -> &'a [u8] {
        match self {
            Self::Welcome { version, client } => {
                let mut out = Writer::new(buffer, kind::WELCOME);
                out.u16(*version);
                out.u32(*client);
                out.finish()
            }
            Self::Refused { reason } => {
                let mut out = Writer::new(buffer, kind::REFUSED);
                out.u8(match reason {
                    Reason::Version => 1,
                    Reason::User => 2,
                    Reason::Full => 3,
                    Reason::Descriptors => 4,
                    Reason::Protocol => 5,
                    Reason::Taken => 6,
                });
                out.finish()
            }
            Self::Lane(lane) => {
                let mut out = Writer::new(buffer, kind::LANE);
                out.u32(lane.end);
                out.u32(lane.generation);
                out.u32(lane.chunk);
                out.u32(lane.lane);
                out.u32(lane.lanes);
                out.u32(lane.ring_bytes);
                out.u8(lane.side);
                let chunk = if lane.has_chunk_fd { HAS_CHUNK_FD } else { 0 };
                let parking = if lane.has_parking_fd {
                    HAS_PARKING_FD
                } else {
                    0
                };
                let remote = if lane.is_remote { IS_REMOTE } else { 0 };
                let direct = if lane.is_direct { IS_DIRECT } else { 0 };
                out.u8(chunk | parking | remote | direct);
                out.u32(lane.peer);
                out.u32(lane.peer_pid);
                out.u64(lane.cookie);
                out.u64(lane.offset);
                out.finish()
            }
            Self::NoPeer { end, generation } => {
                let mut out = Writer::new(buffer, kind::NO_PEER);
                out.u32(*end);
                out.u32(*generation);
                out.finish()
            }
            Self::PeerGone { peer } => {
                let mut out = Writer::new(buffer, kind::PEER_GONE);
                out.u32(*peer);
                out.finish()
            }
            Self::Pong { pid, clients } => {
                let mut out = Writer::new(buffer, kind::PONG);
                out.u32(*pid);
                out.u32(*clients);
                out.finish()
            }
            Self::Report { bytes } => {
                let mut out = Writer::new(buffer, kind::REPORT);
                out.u64(*bytes);
                out.finish()
            }
            Self::Gateway(tell) => tell.encode(buffer),
        }
    }

    /// Reads one whole message.
    pub fn decode(message: &[u8]) -> Result<FromDaemon, DecodeError> {
        let (kind, mut body) = Reader::new(message)?;
        let value = match kind {
            kind::WELCOME => Self::Welcome {
                version: body.u16()?,
                client: body.u32()?,
            },
            kind::REFUSED => Self::Refused {
                reason: match body.u8()? {
                    1 => Reason::Version,
                    2 => Reason::User,
                    3 => Reason::Full,
                    4 => Reason::Descriptors,
                    5 => Reason::Protocol,
                    6 => Reason::Taken,
                    _ => return Err(DecodeError::Value),
                },
            },
            kind::LANE => Self::Lane(decode_lane(&mut body)?),
            kind::NO_PEER => Self::NoPeer {
                end: body.u32()?,
                generation: body.u32()?,
            },
            kind::PEER_GONE => Self::PeerGone { peer: body.u32()? },
            kind::PONG => Self::Pong {
                pid: body.u32()?,
                clients: body.u32()?,
            },
            kind::REPORT => Self::Report { bytes: body.u64()? },
            other => Self::Gateway(Tell::decode(other, &mut body)?),
        };
        body.finish()?;
        Ok(value)
    }
}

fn decode_lane(body: &mut Reader<'_>) -> Result<Lane, DecodeError> {
    let end = body.u32()?;
    let generation = body.u32()?;
    let chunk = body.u32()?;
    let lane = body.u32()?;
    let lanes = body.u32()?;
    let ring_bytes = body.u32()?;
    let side = body.u8()?;
    let flags = body.u8()?;
    const KNOWN: u8 = HAS_CHUNK_FD | HAS_PARKING_FD | IS_REMOTE | IS_DIRECT;
    if side > 1 || flags & !KNOWN != 0 || lane >= lanes {
        return Err(DecodeError::Value);
    }
    let is_direct = flags & IS_DIRECT != 0;
    if is_direct && flags & (HAS_PARKING_FD | IS_REMOTE) != 0 {
        return Err(DecodeError::Value);
    }
    let (peer, peer_pid) = (body.u32()?, body.u32()?);
    let (cookie, offset) = (body.u64()?, body.u64()?);
    if offset != 0 && !is_direct {
        return Err(DecodeError::Value);
    }
    Ok(Lane {
        end,
        generation,
        chunk,
        lane,
        lanes,
        ring_bytes,
        side,
        has_chunk_fd: flags & HAS_CHUNK_FD != 0,
        has_parking_fd: flags & HAS_PARKING_FD != 0,
        is_remote: flags & IS_REMOTE != 0,
        is_direct,
        offset,
        peer,
        peer_pid,
        cookie,
    })
}
