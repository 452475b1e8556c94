//! Agreeing on a connection by MPA's frames, for both roles (RFC 5044 §7.1, RFC 6581). There is
//! no state in it: the driver collects bytes until a frame is there, which is at most
//! [`Startup::BYTES_MAX`] bytes, and gives up when it likes to.

use sluice_wire::iwarp::terminate::Mpa;
use sluice_wire::iwarp::{Cause, Enhanced, Error, Revision, Role, Startup};

/// What an end wants of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// CRCs; there are some if either end wants them (RFC 5044 §7.1).
    pub crc: bool,
    /// READs and atomics that it takes at a time, below [`Enhanced::UNSPECIFIED`].
    pub ird: u16,
    /// And as many as it could take, if the peer asks for more.
    pub ird_max: u16,
    /// How many it will have open at a time, likewise.
    pub ord: u16,
    /// Either end is to be able to send first (RFC 6581): initiators offer it, responders agree.
    pub peer_to_peer: bool,
    /// Frames longer than TCP's segments may come.
    pub long_frames: bool,
}

/// The message of no effect with which an initiator begins, so that the responder may send (RFC
/// 6581).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// An FPDU of nothing.
    Empty,
    /// A WRITE of nothing.
    Write,
    /// A READ of nothing.
    Read,
}

/// Who may send first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// This end, with that message, or with whatever there is.
    Own(Option<Rtr>),
    /// The peer: this end waits for its first FPDU (RFC 5044 §7.1.2).
    Peer,
}

/// What the ends have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// CRCs count.
    pub crc: bool,
    /// READs and atomics that this end takes at a time.
    pub ird: u16,
    /// How many it may have open at a time.
    pub ord: u16,
    /// Who may send first.
    pub first: First,
    /// The peer takes frames longer than TCP's segments.
    pub long_frames: bool,
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// What came is no frame of MPA.
    Frame(Error),
    /// The peer wants markers.
    Markers,
    /// The responder does not want it. Its private data say why.
    Rejected,
    /// The responder wants more READs at a time than this end could take.
    InsufficientIrd,
    /// The responder chose an RTR that was not offered.
    NoRtr,
}

impl Obstacle {
    /// What an initiator tells the responder, which takes the connection for made ([`terminate`]
    /// makes the FPDU). None where the responder knows, or nothing of MPA would be understood.
    ///
    /// [`terminate`]: super::terminate
    pub const fn cause(&self) -> Option<Cause> {
        match self {
            Self::Frame(_) | Self::Rejected => None,
            Self::Markers => Some(Cause::Mpa(Mpa::Startup)),
            Self::InsufficientIrd => Some(Cause::Mpa(Mpa::InsufficientIrd)),
            Self::NoRtr => Some(Cause::Mpa(Mpa::NoRtr)),
        }
    }
}

impl From<Error> for Obstacle {
    fn from(error: Error) -> Self {
        Self::Frame(error)
    }
}

/// What an initiator begins with.
pub const fn request<'a>(wishes: &Wishes, private_data: &'a [u8]) -> Startup<'a> {
    Startup {
        role: Role::Request,
        markers: false,
        crc: wishes.crc,
        reject: false,
        long_frames: wishes.long_frames,
        revision: Revision::Two(Some(Enhanced {
            ird: wishes.ird,
            ord: wishes.ord,
            peer_to_peer: wishes.peer_to_peer,
            empty_rtr: false,
            write_rtr: wishes.peer_to_peer,
            read_rtr: wishes.peer_to_peer && wishes.ord > 0,
        })),
        private_data,
    }
}

/// A frame that came in, and the bytes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived<'a> {
    /// The frame.
    pub startup: Startup<'a>,
    /// What is behind these bytes is the first FPDU.
    pub bytes: usize,
}

/// The frame at the front of the stream; None while it is not whole.
pub fn arrived(role: Role, stream: &[u8]) -> Result<Option<Arrived<'_>>, Obstacle> {
    match Startup::length(role, stream)? {
        Some(length) if length <= stream.len() => {
            let (startup, bytes) = Startup::parse(role, stream)?;
            Ok(Some(Arrived { startup, bytes }))
        }
        _ => Ok(None),
    }
}

/// Whether a responder can do what is asked for; if not, it is to send [`reject`].
pub const fn acceptable(request: &Startup<'_>) -> Result<(), Obstacle> {
    if request.markers {
        Err(Obstacle::Markers)
    } else {
        Ok(())
    }
}

/// The responder's answer that there is a connection, and what that is like. Numbers of READs are
/// the smaller ones of both ends' wishes, where the request has any.
pub fn accept<'a>(
    request: &Startup<'_>,
    wishes: &Wishes,
    private_data: &'a [u8],
) -> (Startup<'a>, Settings) {
    let (mut ird, mut ord) = (wishes.ird, wishes.ord);
    let revision = match request.revision {
        Revision::Two(Some(asked)) => {
            if asked.ord != Enhanced::UNSPECIFIED {
                ird = ird.min(asked.ord);
            }
            if asked.ird != Enhanced::UNSPECIFIED {
                ord = ord.min(asked.ird);
            }
            // One of those that are offered; a WRITE takes nothing of the responder. An initiator
            // that offers none is taken for one that can do that (so does siw).
            let read = asked.read_rtr && !asked.write_rtr && ird > 0;
            let empty = asked.empty_rtr && !asked.write_rtr && !read;
            Revision::Two(Some(Enhanced {
                ird,
                ord,
                peer_to_peer: asked.peer_to_peer,
                empty_rtr: asked.peer_to_peer && empty,
                write_rtr: asked.peer_to_peer && !read && !empty,
                read_rtr: asked.peer_to_peer && read,
            }))
        }
        revision => revision,
    };
    let crc = wishes.crc || request.crc;
    let reply = Startup {
        role: Role::Reply,
        markers: false,
        crc,
        reject: false,
        long_frames: wishes.long_frames,
        revision,
        private_data,
    };
    let settings = Settings {
        crc,
        ird,
        ord,
        first: First::Peer,
        long_frames: request.long_frames,
    };
    (reply, settings)
}

/// The responder's answer that there is none.
pub const fn reject<'a>(request: &Startup<'_>, private_data: &'a [u8]) -> Startup<'a> {
    Startup {
        role: Role::Reply,
        markers: false,
        crc: request.crc,
        reject: true,
        long_frames: false,
        // In a rejection, as in the request, so that the initiator understands its length (RFC
        // 6581 has the responder repeat the revision).
        revision: request.revision,
        private_data,
    }
}

/// What an initiator with these wishes has, by the reply to [`request`].
pub fn established(wishes: &Wishes, reply: &Startup<'_>) -> Result<Settings, Obstacle> {
    if reply.reject {
        return Err(Obstacle::Rejected);
    }
    if reply.markers {
        return Err(Obstacle::Markers);
    }
    let mut settings = Settings {
        crc: wishes.crc || reply.crc,
        ird: wishes.ird,
        ord: wishes.ord,
        first: First::Own(None),
        long_frames: reply.long_frames,
    };
    // A responder that speaks RFC 5044 only leaves these numbers to the programs.
    let Revision::Two(Some(said)) = reply.revision else {
        return Ok(settings);
    };
    if said.ird != Enhanced::UNSPECIFIED {
        settings.ord = wishes.ord.min(said.ird);
    }
    if said.ord != Enhanced::UNSPECIFIED {
        if said.ord > wishes.ird.max(wishes.ird_max) {
            return Err(Obstacle::InsufficientIrd);
        }
        settings.ird = said.ord.max(wishes.ird);
    }
    if wishes.peer_to_peer && said.peer_to_peer {
        let rtr = if said.write_rtr {
            Rtr::Write
        } else if said.read_rtr && settings.ord > 0 {
            Rtr::Read
        } else {
            // An empty FPDU was not offered.
            return Err(Obstacle::NoRtr);
        };
        settings.first = First::Own(Some(rtr));
    }
    Ok(settings)
}
