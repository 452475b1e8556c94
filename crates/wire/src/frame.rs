//! One whole RoCEv2 frame, from Ethernet to ICRC (annex A17.3).

use core::net::IpAddr;

use crate::bth::Bth;
use crate::error::{Error, Result};
use crate::ethernet::{self, EtherType};
use crate::icrc::{self, Icrc};
use crate::ipv4::UDP;
use crate::number::Ecn;
use crate::packet::{Headers, Packet};
use crate::udp::{self, ROCE_PORT};
use crate::{ipv4, ipv6};

/// An IP header of either version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ip {
    /// IPv4.
    V4(ipv4::Header),
    /// IPv6.
    V6(ipv6::Header),
}

impl Ip {
    /// From whom.
    pub const fn source(&self) -> IpAddr {
        match self {
            Self::V4(header) => IpAddr::V4(header.source),
            Self::V6(header) => IpAddr::V6(header.source),
        }
    }

    /// To whom.
    pub const fn destination(&self) -> IpAddr {
        match self {
            Self::V4(header) => IpAddr::V4(header.destination),
            Self::V6(header) => IpAddr::V6(header.destination),
        }
    }

    /// Congestion notification.
    pub const fn ecn(&self) -> Ecn {
        match self {
            Self::V4(header) => header.ecn,
            Self::V6(header) => header.ecn,
        }
    }
}

/// Bytes that a frame has besides the packet's headers, payload and pad, at most.
pub const OVERHEAD_MAX: usize =
    ethernet::Header::BYTES_MAX + ipv6::Header::BYTES + udp::Header::BYTES + icrc::BYTES;

/// A frame that came in, checked: lengths agree, the packet is legal, and the ICRC is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    ethernet: ethernet::Header,
    ip: Ip,
    udp: udp::Header,
    transport: &'a [u8],
    packet: Packet<'a>,
}

/// A frame whose checksum nobody has looked at.
struct Unchecked<'a> {
    frame: Frame<'a>,
    found: [u8; icrc::BYTES],
    expected: [u8; icrc::BYTES],
}

impl<'a> Frame<'a> {
    /// Looks at a frame. What pads it behind the IP packet is left out.
    ///
    /// [`Error::NotRoce`] for frames that are somebody else's: other protocols and ports, IPv4
    /// options and fragments, IPv6 extension headers. [`Error::Checksum`] for a wrong ICRC (or
    /// IPv4 header checksum).
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let unchecked = unchecked(bytes)?;
        if unchecked.found == unchecked.expected {
            Ok(unchecked.frame)
        } else {
            Err(Error::Checksum)
        }
    }

    /// The Ethernet header.
    pub const fn ethernet(&self) -> &ethernet::Header {
        &self.ethernet
    }

    /// The IP header.
    pub const fn ip(&self) -> &Ip {
        &self.ip
    }

    /// The UDP header.
    pub const fn udp(&self) -> &udp::Header {
        &self.udp
    }

    /// The bytes of the transport packet, from base transport header to pad.
    pub const fn transport(&self) -> &'a [u8] {
        self.transport
    }

    /// The transport packet.
    pub const fn packet(&self) -> &Packet<'a> {
        &self.packet
    }
}

fn unchecked(bytes: &[u8]) -> Result<Unchecked<'_>> {
    let (ethernet, rest) = ethernet::Header::parse(bytes)?;
    let (ip, start, datagram) = match ethernet.ethertype {
        EtherType::Ipv4 => {
            let (header, payload) = ipv4::Header::parse(rest)?;
            if header.protocol != UDP {
                return Err(Error::NotRoce);
            }
            let raw = rest.first_chunk().ok_or(Error::Truncated)?;
            let udp = payload.first_chunk().ok_or(Error::Truncated)?;
            (Ip::V4(header), Icrc::ipv4(raw, udp), payload)
        }
        EtherType::Ipv6 => {
            let (header, payload) = ipv6::Header::parse(rest)?;
            if header.next_header != UDP {
                return Err(Error::NotRoce);
            }
            let raw = rest.first_chunk().ok_or(Error::Truncated)?;
            let udp = payload.first_chunk().ok_or(Error::Truncated)?;
            (Ip::V6(header), Icrc::ipv6(raw, udp), payload)
        }
        _ => return Err(Error::NotRoce),
    };
    let (udp, payload) = udp::Header::parse(datagram)?;
    if udp.destination_port != ROCE_PORT {
        return Err(Error::NotRoce);
    }
    let (transport, found) = payload.split_last_chunk().ok_or(Error::Truncated)?;
    let (bth, behind) = transport.split_first_chunk().ok_or(Error::Truncated)?;
    let expected = start.of(bth, &[behind]);
    Ok(Unchecked {
        frame: Frame {
            ethernet,
            ip,
            udp,
            transport,
            packet: Packet::parse(transport)?,
        },
        found: *found,
        expected,
    })
}

/// What a frame has in front of its transport packet. Lengths and the UDP checksum are filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// Addresses and tag; the type becomes that of the IP header.
    pub ethernet: ethernet::Header,
    /// The IP header; protocol and length are set.
    pub ip: Ip,
    /// One of [`udp::ENTROPY_PORTS`], the same for all packets of a flow.
    pub source_port: u16,
}

impl Outer {
    /// How many bytes of a frame are in front of the transport packet.
    pub const fn bytes(&self) -> usize {
        let ip = match self.ip {
            Ip::V4(_) => ipv4::Header::BYTES,
            Ip::V6(_) => ipv6::Header::BYTES,
        };
        self.ethernet.len() + ip + udp::Header::BYTES
    }

    /// Writes a whole frame to the front of `buffer` and says how long it is.
    ///
    /// Errors are those of [`Headers::emit`] and [`Outer::wrap`].
    pub fn emit(&self, headers: &Headers, payload: &[u8], buffer: &mut [u8]) -> Result<usize> {
        let body = buffer.get_mut(self.bytes()..).ok_or(Error::NoRoom)?;
        let packet = headers.emit(payload, body)?;
        self.wrap(packet, buffer)
    }

    /// Makes a frame of a transport packet of `packet` bytes (base transport header to pad) that
    /// stands in `buffer` already, [`Outer::bytes`] behind its front: writes what belongs in
    /// front of it, and the ICRC behind it. Says how long the frame is.
    ///
    /// Over IPv6 the UDP checksum is computed, because RFC 8200 §8.1 wants one; over IPv4 it is
    /// zero, as the annex recommends. [`Error::NoRoom`] when the frame does not fit the buffer or
    /// has no base transport header, [`Error::Length`] when it does not fit an IP packet.
    pub fn wrap(&self, packet: usize, buffer: &mut [u8]) -> Result<usize> {
        let front = self.bytes();
        let (head, body) = buffer.split_at_mut_checked(front).ok_or(Error::NoRoom)?;
        let behind_udp = packet.checked_add(icrc::BYTES).ok_or(Error::Length)?;
        let behind_udp = u16::try_from(behind_udp).map_err(|_| Error::Length)?;
        let payload_bytes = behind_udp
            .checked_add(udp::Header::BYTES as u16)
            .ok_or(Error::Length)?;
        let mut udp = udp::Header {
            source_port: self.source_port,
            destination_port: ROCE_PORT,
            payload_bytes: behind_udp,
            checksum: 0,
        };
        let (transport, rest) = body.split_at_mut_checked(packet).ok_or(Error::NoRoom)?;
        let place = rest.first_chunk_mut().ok_or(Error::NoRoom)?;
        let (bth, behind) = transport
            .split_first_chunk::<{ Bth::BYTES }>()
            .ok_or(Error::NoRoom)?;
        let mut writer = crate::bytes::Writer::new(head);
        let ethertype = match self.ip {
            Ip::V4(_) => EtherType::Ipv4,
            Ip::V6(_) => EtherType::Ipv6,
        };
        let mut ethernet = [0; ethernet::Header::BYTES_MAX];
        let header = ethernet::Header {
            ethertype,
            ..self.ethernet
        };
        let used = header.emit(&mut ethernet)?;
        writer.put(ethernet.get(..used).unwrap_or_default());
        match self.ip {
            Ip::V4(header) => {
                let ip = ipv4::Header {
                    protocol: UDP,
                    payload_bytes,
                    ..header
                }
                .emit()?;
                let udp = udp.emit()?;
                *place = Icrc::ipv4(&ip, &udp).of(bth, &[behind]);
                writer.put(&ip);
                writer.put(&udp);
            }
            Ip::V6(header) => {
                let ip = ipv6::Header {
                    next_header: UDP,
                    payload_bytes,
                    ..header
                };
                let bytes = ip.emit();
                *place = Icrc::ipv6(&bytes, &udp.emit()?).of(bth, &[behind]);
                let whole = body.get(..packet + icrc::BYTES).unwrap_or_default();
                let (source, destination) = (ip.source.octets(), ip.destination.octets());
                udp.checksum = udp::checksum(&source, &destination, &udp, whole);
                writer.put(&bytes);
                writer.put(&udp.emit()?);
            }
        }
        writer.finish()?;
        Ok(front + packet + icrc::BYTES)
    }
}
