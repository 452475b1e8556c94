//! What is said of gateways: by programs that publish ports, by the process that serves a gateway,
//! and by the command line.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::bytes::{Reader, Writer};
use super::{DecodeError, MESSAGE_BYTES_MAX};
use crate::preface::Key;

/// The name of a daemon, at most 253 bytes (RFC 1035 §2.3.4).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; Name::BYTES_MAX],
    len: u8,
}

impl Name {
    /// Longest name.
    pub const BYTES_MAX: usize = 253;

    /// `None`: empty or too long.
    pub fn new(name: &[u8]) -> Option<Name> {
        let mut bytes = [0; Name::BYTES_MAX];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        let len = u8::try_from(name.len()).ok().filter(|len| *len > 0)?;
        Some(Name { bytes, len })
    }

    /// The name; any bytes, since programs choose them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}

/// Networks of which a program is told at a time.
pub const NETWORKS_MAX: usize = 8;

/// Addresses with the same first bits; an IPv4 address is mapped into IPv6 and its prefix is 96
/// bits longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub first: Ipv6Addr,
    /// At most 128.
    pub prefix: u8,
}

impl Range {
    /// Whether the address is one of them.
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = |address: Ipv6Addr| u128::from(address);
        let host = 128 - u32::from(self.prefix.min(128));
        let mask = u128::MAX.checked_shl(host).unwrap_or(0);
        (bits(mapped(address)) ^ bits(self.first)) & mask == 0
    }
}

/// Up to [`NETWORKS_MAX`] of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    ranges: [Range; NETWORKS_MAX],
    len: u8,
}

impl Ranges {
    /// The first [`NETWORKS_MAX`] of these.
    pub fn new(all: impl IntoIterator<Item = Range>) -> Ranges {
        let nothing = Range {
            first: Ipv6Addr::UNSPECIFIED,
            prefix: 0,
        };
        let mut ranges = Ranges {
            ranges: [nothing; NETWORKS_MAX],
            len: 0,
        };
        for (place, range) in ranges.ranges.iter_mut().zip(all) {
            *place = range;
            ranges.len += 1;
        }
        ranges
    }

    /// Whether one of them has the address.
    pub fn contain(&self, address: IpAddr) -> bool {
        self.all().iter().any(|range| range.contains(address))
    }

    /// All of them.
    pub fn all(&self) -> &[Range] {
        &self.ranges[..usize::from(self.len)]
    }
}

/// Messages to sluiced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "messages live on the stack, one at a time"
)]
pub enum Ask {
    /// A TCP socket listens; it comes with this. Answered by [`Tell::Published`], when the gateway
    /// has answered or after a bounded time.
    Publish { gateway: Name },
    /// This process serves the gateway of this host: it accepts outside and connects inside.
    /// Answered by `Welcome` or `Refused`.
    Serve,
    /// The answer to [`Tell::Open`]; 0 or an errno.
    Opened { service: u32, errno: u16 },
    /// Nobody answers there.
    Unreachable { backend: u32 },
    /// A program wants to connect out. Answered by [`Tell::Way`].
    Way { gateway: Name },
    /// The answer to [`Tell::Exit`]: where the process listens; 0: it cannot.
    Exit { exit: u32, port: u16 },
    /// The node gets no new connections, or gets them again. Answered by [`Tell::Done`].
    Drain { node: Name, is_drained: bool },
}

/// Messages from sluiced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "messages live on the stack, one at a time"
)]
pub enum Tell {
    /// To a program. With `errno` 0: connections from `sources` begin with a preface with this key.
    Published {
        errno: u16,
        key: Key,
        sources: Ranges,
    },
    /// To the gateway's process: listen here.
    Open { service: u32, address: SocketAddr },
    /// Do not, any more.
    Shut { service: u32 },
    /// Connections with this service may go to `target`, from the address `source`.
    Backend {
        service: u32,
        backend: u32,
        target: SocketAddr,
        source: IpAddr,
        key: Key,
    },
    /// New ones may not, any more.
    BackendGone { service: u32, backend: u32 },
    /// To a program. With `errno` 0: connections to addresses that are not in `direct` are made by
    /// a connection with `address`, which begins with a preface with this key and number.
    Way {
        errno: u16,
        address: SocketAddr,
        exit: u32,
        key: Key,
        direct: Ranges,
    },
    /// To the gateway's process: listen here for programs of one node, at a port of your choice, and
    /// connect for them to the networks `allowed`. They come from `sources`.
    Exit {
        exit: u32,
        address: IpAddr,
        key: Key,
        allowed: Ranges,
        sources: Ranges,
    },
    /// Do not, any more.
    ExitGone { exit: u32 },
    /// All that holds was said.
    Complete,
    /// To the command line; 0 or an errno.
    Done { errno: u16 },
}

mod kind {
    pub const PUBLISH: u16 = 32;
    pub const SERVE: u16 = 33;
    pub const OPENED: u16 = 34;
    pub const UNREACHABLE: u16 = 35;
    pub const DRAIN: u16 = 36;
    pub const ASK_WAY: u16 = 37;
    pub const EXIT_OPENED: u16 = 38;

    pub const PUBLISHED: u16 = 132;
    pub const OPEN: u16 = 133;
    pub const SHUT: u16 = 134;
    pub const BACKEND: u16 = 135;
    pub const BACKEND_GONE: u16 = 136;
    pub const COMPLETE: u16 = 137;
    pub const DONE: u16 = 138;
    pub const WAY: u16 = 139;
    pub const EXIT: u16 = 140;
    pub const EXIT_GONE: u16 = 141;
}

impl Ask {
    pub(super) fn encode<'a>(&self, buffer: &'a mut [u8; MESSAGE_BYTES_MAX]) -> &'a [u8] {
        match self {
            Self::Publish { gateway } => {
                let mut out = Writer::new(buffer, kind::PUBLISH);
                put_name(&mut out, gateway);
                out.finish()
            }
            Self::Serve => Writer::new(buffer, kind::SERVE).finish(),
            Self::Opened { service, errno } => {
                let mut out = Writer::new(buffer, kind::OPENED);
                out.u32(*service);
                out.u16(*errno);
                out.finish()
            }
            Self::Unreachable { backend } => {
                let mut out = Writer::new(buffer, kind::UNREACHABLE);
                out.u32(*backend);
                out.finish()
            }
            Self::Way { gateway } => {
                let mut out = Writer::new(buffer, kind::ASK_WAY);
                put_name(&mut out, gateway);
                out.finish()
            }
            Self::Exit { exit, port } => {
                let mut out = Writer::new(buffer, kind::EXIT_OPENED);
                out.u32(*exit);
                out.u16(*port);
                out.finish()
            }
            Self::Drain { node, is_drained } => {
                let mut out = Writer::new(buffer, kind::DRAIN);
                put_name(&mut out, node);
                out.u8(u8::from(*is_drained));
                out.finish()
            }
        }
    }

    pub(super) fn decode(kind: u16, body: &mut Reader<'_>) -> Result<Ask, DecodeError> {
        Ok(match kind {
            kind::PUBLISH => Self::Publish {
                gateway: name(body)?,
            },
            kind::SERVE => Self::Serve,
            kind::OPENED => Self::Opened {
                service: body.u32()?,
                errno: body.u16()?,
            },
            kind::UNREACHABLE => Self::Unreachable {
                backend: body.u32()?,
            },
            kind::ASK_WAY => Self::Way {
                gateway: name(body)?,
            },
            kind::EXIT_OPENED => Self::Exit {
                exit: body.u32()?,
                port: body.u16()?,
            },
            kind::DRAIN => Self::Drain {
                node: name(body)?,
                is_drained: flag(body)?,
            },
            other => return Err(DecodeError::Kind(other)),
        })
    }
}

impl Tell {
    pub(super) fn encode<'a>(&self, buffer: &'a mut [u8; MESSAGE_BYTES_MAX]) -> &'a [u8] {
        match self {
            Self::Published {
                errno,
                key,
                sources,
            } => {
                let mut out = Writer::new(buffer, kind::PUBLISHED);
                out.u16(*errno);
                out.bytes(&key.0);
                put_ranges(&mut out, sources);
                out.finish()
            }
            Self::Way {
                errno,
                address,
                exit,
                key,
                direct,
            } => {
                let mut out = Writer::new(buffer, kind::WAY);
                out.u16(*errno);
                put_address(&mut out, *address);
                out.u32(*exit);
                out.bytes(&key.0);
                put_ranges(&mut out, direct);
                out.finish()
            }
            Self::Exit {
                exit,
                address,
                key,
                allowed,
                sources,
            } => {
                let mut out = Writer::new(buffer, kind::EXIT);
                out.u32(*exit);
                out.bytes(&mapped(*address).octets());
                out.bytes(&key.0);
                put_ranges(&mut out, allowed);
                put_ranges(&mut out, sources);
                out.finish()
            }
            Self::ExitGone { exit } => {
                let mut out = Writer::new(buffer, kind::EXIT_GONE);
                out.u32(*exit);
                out.finish()
            }
            Self::Open { service, address } => {
                let mut out = Writer::new(buffer, kind::OPEN);
                out.u32(*service);
                put_address(&mut out, *address);
                out.finish()
            }
            Self::Shut { service } => {
                let mut out = Writer::new(buffer, kind::SHUT);
                out.u32(*service);
                out.finish()
            }
            Self::Backend {
                service,
                backend,
                target,
                source,
                key,
            } => {
                let mut out = Writer::new(buffer, kind::BACKEND);
                out.u32(*service);
                out.u32(*backend);
                put_address(&mut out, *target);
                out.bytes(&mapped(*source).octets());
                out.bytes(&key.0);
                out.finish()
            }
            Self::BackendGone { service, backend } => {
                let mut out = Writer::new(buffer, kind::BACKEND_GONE);
                out.u32(*service);
                out.u32(*backend);
                out.finish()
            }
            Self::Complete => Writer::new(buffer, kind::COMPLETE).finish(),
            Self::Done { errno } => {
                let mut out = Writer::new(buffer, kind::DONE);
                out.u16(*errno);
                out.finish()
            }
        }
    }

    pub(super) fn decode(kind: u16, body: &mut Reader<'_>) -> Result<Tell, DecodeError> {
        Ok(match kind {
            kind::PUBLISHED => Self::Published {
                errno: body.u16()?,
                key: Key(body.array()?),
                sources: ranges(body)?,
            },
            kind::OPEN => Self::Open {
                service: body.u32()?,
                address: address(body)?,
            },
            kind::SHUT => Self::Shut {
                service: body.u32()?,
            },
            kind::BACKEND => Self::Backend {
                service: body.u32()?,
                backend: body.u32()?,
                target: address(body)?,
                source: Ipv6Addr::from(body.array::<16>()?).to_canonical(),
                key: Key(body.array()?),
            },
            kind::BACKEND_GONE => Self::BackendGone {
                service: body.u32()?,
                backend: body.u32()?,
            },
            kind::WAY => Self::Way {
                errno: body.u16()?,
                address: address(body)?,
                exit: body.u32()?,
                key: Key(body.array()?),
                direct: ranges(body)?,
            },
            kind::EXIT => Self::Exit {
                exit: body.u32()?,
                address: Ipv6Addr::from(body.array::<16>()?).to_canonical(),
                key: Key(body.array()?),
                allowed: ranges(body)?,
                sources: ranges(body)?,
            },
            kind::EXIT_GONE => Self::ExitGone { exit: body.u32()? },
            kind::COMPLETE => Self::Complete,
            kind::DONE => Self::Done { errno: body.u16()? },
            other => return Err(DecodeError::Kind(other)),
        })
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

fn put_name(out: &mut Writer<'_>, name: &Name) {
    out.u8(name.len);
    out.bytes(&name.bytes);
}

fn name(body: &mut Reader<'_>) -> Result<Name, DecodeError> {
    let len = usize::from(body.u8()?);
    let bytes = body.array::<{ Name::BYTES_MAX }>()?;
    let (name, rest) = bytes.split_at_checked(len).ok_or(DecodeError::Value)?;
    if rest.iter().any(|byte| *byte != 0) {
        return Err(DecodeError::Value);
    }
    Name::new(name).ok_or(DecodeError::Value)
}

fn put_address(out: &mut Writer<'_>, address: SocketAddr) {
    out.bytes(&mapped(address.ip()).octets());
    out.u16(address.port());
}

fn put_ranges(out: &mut Writer<'_>, ranges: &Ranges) {
    out.u8(ranges.len);
    for range in &ranges.ranges {
        out.bytes(&range.first.octets());
        out.u8(range.prefix);
    }
}

fn address(body: &mut Reader<'_>) -> Result<SocketAddr, DecodeError> {
    let ip = Ipv6Addr::from(body.array::<16>()?).to_canonical();
    Ok(SocketAddr::new(ip, body.u16()?))
}

fn flag(body: &mut Reader<'_>) -> Result<bool, DecodeError> {
    match body.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Value),
    }
}

fn ranges(body: &mut Reader<'_>) -> Result<Ranges, DecodeError> {
    let len = body.u8()?;
    let mut ranges = Ranges::new([]);
    for place in &mut ranges.ranges {
        *place = Range {
            first: Ipv6Addr::from(body.array::<16>()?),
            prefix: body.u8()?,
        };
    }
    ranges.len = len;
    let is_legal =
        usize::from(len) <= NETWORKS_MAX && ranges.ranges.iter().all(|r| r.prefix <= 128);
    is_legal.then_some(ranges).ok_or(DecodeError::Value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{FromDaemon, ToDaemon};

    fn range(text: &str, prefix: u8) -> Range {
        Range {
            first: mapped(text.parse().unwrap()),
            prefix,
        }
    }

    fn examples() -> (Vec<Ask>, Vec<Tell>) {
        let node = Name::new(&[b'x'; 253]).unwrap();
        let target = "[fd00::1]:80".parse().unwrap();
        let asks = vec![
            Ask::Publish { gateway: node },
            Ask::Serve,
            Ask::Opened {
                service: 7,
                errno: 98,
            },
            Ask::Unreachable { backend: 1 << 31 },
            Ask::Way { gateway: node },
            Ask::Exit {
                exit: 3,
                port: 65_535,
            },
            Ask::Drain {
                node,
                is_drained: true,
            },
        ];
        let tells = vec![
            Tell::Published {
                errno: 13,
                key: Key([3; 32]),
                sources: Ranges::new([range("10.0.0.0", 104), range("fd00::", 64)]),
            },
            Tell::Open {
                service: 1,
                address: target,
            },
            Tell::Shut { service: 2 },
            Tell::Backend {
                service: 1,
                backend: 2,
                target,
                source: "10.0.0.1".parse().unwrap(),
                key: Key([9; 32]),
            },
            Tell::BackendGone {
                service: 3,
                backend: 3,
            },
            Tell::Way {
                errno: 0,
                address: target,
                exit: 9,
                key: Key([8; 32]),
                direct: Ranges::new([range("10.0.0.0", 104)]),
            },
            Tell::Exit {
                exit: 9,
                address: target.ip(),
                key: Key([8; 32]),
                allowed: Ranges::new([range("::", 0)]),
                sources: Ranges::new([range("10.0.0.2", 128)]),
            },
            Tell::ExitGone { exit: 9 },
            Tell::Complete,
            Tell::Done { errno: 2 },
        ];
        (asks, tells)
    }

    #[test]
    fn all_come_back_and_pieces_of_them_do_not() {
        let (asks, tells) = examples();
        let mut buffer = [0xAA; MESSAGE_BYTES_MAX];
        for ask in asks {
            let message = ToDaemon::Gateway(ask);
            let whole = message.encode(&mut buffer).to_vec();
            assert_eq!(ToDaemon::decode(&whole), Ok(message));
            for len in 0..whole.len() {
                assert_eq!(ToDaemon::decode(&whole[..len]), Err(DecodeError::Length));
            }
        }
        for tell in tells {
            let message = FromDaemon::Gateway(tell);
            let whole = message.encode(&mut buffer).to_vec();
            assert_eq!(FromDaemon::decode(&whole), Ok(message));
            for len in 0..whole.len() {
                assert_eq!(FromDaemon::decode(&whole[..len]), Err(DecodeError::Length));
            }
        }
    }

    #[test]
    fn ranges_have_their_addresses_in_both_spellings() {
        let ranges = Ranges::new([range("10.1.0.0", 112), range("fd00::7", 128)]);
        for (address, is_in) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("10.2.0.1", false),
            ("fd00::7", true),
            ("fd00::8", false),
        ] {
            assert_eq!(ranges.contain(address.parse().unwrap()), is_in, "{address}");
        }
        assert!(!Ranges::new([]).contain("10.1.2.3".parse().unwrap()));
        assert!(range("::", 0).contains("8.8.8.8".parse().unwrap()));
    }

    #[test]
    fn lengths_and_prefixes_that_cannot_be_are_refused() {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let (_, tells) = examples();
        let whole = FromDaemon::Gateway(tells[0]).encode(&mut buffer).to_vec();
        // The number of ranges, and the first prefix.
        for (at, value) in [(8 + 2 + 32, 9), (8 + 2 + 32 + 1 + 16, 129)] {
            let mut wrong = whole.clone();
            wrong[at] = value;
            assert_eq!(FromDaemon::decode(&wrong), Err(DecodeError::Value), "{at}");
        }
        let ask = Ask::Publish {
            gateway: Name::new(b"gw").unwrap(),
        };
        let whole = ToDaemon::Gateway(ask).encode(&mut buffer).to_vec();
        for length in [0, 254, 1] {
            let mut wrong = whole.clone();
            wrong[8] = length;
            assert_eq!(
                ToDaemon::decode(&wrong),
                Err(DecodeError::Value),
                "{length}"
            );
        }
        assert_eq!(Name::new(b""), None);
        assert_eq!(Name::new(&[b'x'; 254]), None);
    }
}
