//! The kernel's part: which connections are taken, and where their messages go.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;

use sluice_sys::bpf::{AttachType, Code, Kind, Link, Load, Map, Program, ProgramKind, RingBuffer};
use sluice_sys::errno::Errno;

const PAIR: Code = include!(concat!(env!("OUT_DIR"), "/pair.rs"));
const REDIRECT: Code = include!(concat!(env!("OUT_DIR"), "/redirect.rs"));

/// Connections that are taken, one after the other or at once; those after them stay as they are.
const POOL: u32 = 64;
const SOCKETS_MAX: u32 = 2 * POOL;
const ARRIVALS_BYTES: u32 = 4096;

/// `struct ends` of steer.bpf.c, and `struct arrival`.
const ENDS_BYTES: usize = 16;
const ARRIVAL_BYTES: usize = ENDS_BYTES + 4;

/// A socket as both ends of its connection name it, seen from one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    own: SocketAddrV4,
    other: SocketAddrV4,
}

impl Ends {
    pub const BYTES: usize = ENDS_BYTES;

    fn of(socket: &TcpStream) -> io::Result<Self> {
        match (socket.local_addr()?, socket.peer_addr()?) {
            (SocketAddr::V4(own), SocketAddr::V4(other)) => Ok(Self { own, other }),
            _ => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }

    /// The same connection from its other end.
    pub fn turned(self) -> Self {
        Self {
            own: self.other,
            other: self.own,
        }
    }

    pub fn to_bytes(self) -> [u8; ENDS_BYTES] {
        let mut bytes = [0; ENDS_BYTES];
        bytes[..4].copy_from_slice(&self.own.ip().octets());
        bytes[4..8].copy_from_slice(&self.other.ip().octets());
        bytes[8..12].copy_from_slice(&u32::from(self.own.port()).to_ne_bytes());
        bytes[12..].copy_from_slice(&u32::from(self.other.port()).to_ne_bytes());
        bytes
    }

    /// None: no ports are like that.
    pub fn from_bytes(bytes: &[u8; ENDS_BYTES]) -> Option<Self> {
        let word = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let end = |address: usize, port: usize| {
            let number = u32::from_ne_bytes(word(port));
            let port = u16::try_from(number).ok()?;
            Some(SocketAddrV4::new(Ipv4Addr::from(word(address)), port))
        };
        Some(Self {
            own: end(0, 8)?,
            other: end(4, 12)?,
        })
    }
}

/// A program's connection that was taken, as that program sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub program: Ends,
    /// Which socket of the pool it has.
    pub socket: usize,
}

impl Arrival {
    fn from_record(record: &[u8]) -> Option<Self> {
        let record: &[u8; ARRIVAL_BYTES] = record.get(..ARRIVAL_BYTES)?.try_into().ok()?;
        let (ends, socket) = record.split_at(ENDS_BYTES);
        Some(Self {
            program: Ends::from_bytes(ends.try_into().ok()?)?,
            socket: usize::try_from(u32::from_ne_bytes(socket.try_into().ok()?)).ok()?,
        })
    }
}

/// What stays as long as connections are to be taken.
#[derive(Debug)]
pub struct Kept {
    _programs: Link,
    _maps: [Map; 4],
    /// The other ends of the pool, which nobody uses.
    _others: Vec<TcpStream>,
}

/// The proxy's sockets, and word of the connections that they are for.
#[derive(Debug)]
pub struct Steering {
    pub pool: Vec<TcpStream>,
    pub arrivals: RingBuffer,
    pub kept: Kept,
}

impl Steering {
    /// Takes the connections of the programs in the cgroup from now on.
    pub fn start(cgroup: &Path) -> io::Result<Self> {
        let cgroup = File::open(cgroup).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", cgroup.display()))
        })?;
        let map = |title, kind, key, value, entries| {
            Map::new(title, kind, key, value, entries).map_err(called("bpf(BPF_MAP_CREATE)"))
        };
        let sockets = map(
            "skmsg_sockets",
            Kind::SocketHash,
            ENDS_BYTES,
            4,
            SOCKETS_MAX,
        )?;
        let peers = map(
            "skmsg_peers",
            Kind::Hash,
            ENDS_BYTES,
            ENDS_BYTES,
            SOCKETS_MAX,
        )?;
        let pool = map("skmsg_pool", Kind::Array, 4, ENDS_BYTES, POOL)?;
        let taken = map("skmsg_taken", Kind::Array, 4, 4, 1)?;
        let arrivals = RingBuffer::new("skmsg_arrivals", ARRIVALS_BYTES)
            .map_err(called("bpf(BPF_MAP_CREATE), a ring"))?;
        // Sockets get the program that their map has when they come.
        let message = load(
            ("skmsg_redirect", REDIRECT),
            ProgramKind::SocketMessage,
            AttachType::SocketMessage,
            &[("sockets", &sockets), ("peers", &peers)],
        )?;
        message
            .attach_to_map(&sockets)
            .map_err(called("bpf(BPF_PROG_ATTACH)"))?;
        let (own, others) = loopback_connections()?;
        for (index, socket) in (0_u32..).zip(&own) {
            let ends = Ends::of(socket)?.to_bytes();
            sockets
                .set(&ends, &socket.as_raw_fd().to_ne_bytes())
                .map_err(called("bpf(BPF_MAP_UPDATE_ELEM), a socket"))?;
            pool.set(&index.to_ne_bytes(), &ends)
                .map_err(called("bpf(BPF_MAP_UPDATE_ELEM)"))?;
        }
        let maps: [(&str, &Map); 5] = [
            ("sockets", &sockets),
            ("peers", &peers),
            ("pool", &pool),
            ("taken", &taken),
            ("arrivals", arrivals.map()),
        ];
        let programs = load(
            ("skmsg_pair", PAIR),
            ProgramKind::SocketOperations,
            AttachType::SocketOperations,
            &maps,
        )?
        .attach_to_cgroup(cgroup.as_raw_fd())
        .map_err(called("bpf(BPF_LINK_CREATE), a cgroup"))?;
        Ok(Self {
            pool: own,
            arrivals,
            kept: Kept {
                _programs: programs,
                _maps: [sockets, peers, pool, taken],
                _others: others,
            },
        })
    }

    /// Gives connections that were taken since the last call to `each`.
    pub fn new_arrivals(arrivals: &mut RingBuffer, mut each: impl FnMut(Arrival)) {
        arrivals.read(&mut |record| {
            if let Some(arrival) = Arrival::from_record(record) {
                each(arrival);
            }
        });
    }
}

/// Both ends of [`POOL`] connections of this process with itself.
fn loopback_connections() -> io::Result<(Vec<TcpStream>, Vec<TcpStream>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let at = listener.local_addr()?;
    let connection = |_| Ok((TcpStream::connect(at)?, listener.accept()?.0));
    let pairs: io::Result<Vec<_>> = (0..POOL).map(connection).collect();
    Ok(pairs?.into_iter().unzip())
}

fn load(
    (title, code): (&str, Code),
    kind: ProgramKind,
    attach_type: AttachType,
    maps: &[(&str, &Map)],
) -> io::Result<Program> {
    let load = Load {
        title,
        // The licences of the source, in the word that the kernel has for them.
        license: c"Dual MIT/GPL",
        kind,
        attach_type,
        fragments: false,
        target: 0,
    };
    Program::load(&load, code, maps).map_err(|refusal| {
        let error = called("bpf(BPF_PROG_LOAD)")(refusal.errno);
        io::Error::new(error.kind(), format!("{title}: {error}\n{}", refusal.log))
    })
}

fn called(what: &'static str) -> impl Fn(Errno) -> io::Error {
    move |errno| {
        let error = io::Error::from_raw_os_error(errno.0);
        io::Error::new(error.kind(), format!("{what}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_what_was_written() {
        let end = |text: &str| text.parse().expect("an address");
        let ends = Ends {
            own: end("10.44.0.1:80"),
            other: end("10.44.0.2:40000"),
        };
        assert_eq!(Ends::from_bytes(&ends.to_bytes()), Some(ends));
        assert_eq!(ends.turned().turned(), ends);
        assert_ne!(ends.turned(), ends);
        assert_eq!(Ends::from_bytes(&[0xff; ENDS_BYTES]), None);
    }

    #[test]
    fn short_record_is_none() {
        assert_eq!(Arrival::from_record(&[0; ARRIVAL_BYTES - 1]), None);
        let arrival = Arrival::from_record(&[0; ARRIVAL_BYTES]).expect("long enough");
        assert_eq!(arrival.socket, 0);
    }
}
