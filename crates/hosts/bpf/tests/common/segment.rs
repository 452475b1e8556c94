//! TCP segments on the veth pair: seen, and made by hand. IPv4 for those made by hand.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

use super::{Host, INTERFACE, PATIENCE};

pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

pub const OPTION_KIND: u8 = 253;
pub const EXID: [u8; 4] = *b"SLUC";
pub const OFFER: u8 = 0x11;
pub const ANSWER: u8 = 0x12;
pub const REPEAT: u8 = 0x13;

/// What matters here of a TCP segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
    /// As they are in the header: a multiple of 4 bytes, at most 40.
    pub options: Vec<u8>,
    pub data: Vec<u8>,
}

/// Our option with these bytes behind the ExID.
pub fn option(content: &[u8]) -> Vec<u8> {
    let mut option = vec![OPTION_KIND, 6 + content.len() as u8];
    option.extend(EXID);
    option.extend(content);
    option
}

pub fn proper(role: u8, flags: u8, value: u64) -> Vec<u8> {
    let mut content = vec![role, flags];
    content.extend(value.to_le_bytes());
    option(&content)
}

impl Segment {
    /// None: not TCP, over IPv4 without options or IPv6 without extension headers.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let kind = u16::from_be_bytes([*frame.get(12)?, *frame.get(13)?]);
        let ip = &frame[14..];
        let (source, destination, tcp): (IpAddr, IpAddr, &[u8]) = match kind {
            0x0800 if *ip.first()? == 0x45 && *ip.get(9)? == 6 => {
                let length = u16::from_be_bytes([ip[2], ip[3]]) as usize;
                let address = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).expect("four");
                (address(12).into(), address(16).into(), ip.get(20..length)?)
            }
            0x86dd if *ip.get(6)? == 6 => {
                let length = u16::from_be_bytes([ip[4], ip[5]]) as usize;
                let address = |at: usize| <[u8; 16]>::try_from(&ip[at..at + 16]).expect("sixteen");
                (
                    address(8).into(),
                    address(24).into(),
                    ip.get(40..40 + length)?,
                )
            }
            _ => return None,
        };
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let number = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().expect("four"));
        let header = usize::from(tcp.get(12)? >> 4) * 4;
        Some(Self {
            source: SocketAddr::new(source, port(0)),
            destination: SocketAddr::new(destination, port(2)),
            sequence: number(4),
            acknowledgement: number(8),
            flags: tcp[13],
            options: tcp.get(20..header)?.to_vec(),
            data: tcp[header..].to_vec(),
        })
    }

    /// All options of the header, kind first (RFC 9293 §3.1).
    pub fn all_options(&self) -> Vec<&[u8]> {
        let mut rest = &self.options[..];
        let mut found = Vec::new();
        while let [kind, ..] = rest {
            let length = match (kind, rest) {
                (0, _) => break,
                (1, _) => 1,
                (_, [_, length, ..]) => usize::from(*length),
                _ => panic!("half an option: {self:?}"),
            };
            assert!(length >= 1 && length <= rest.len(), "{self:?}");
            found.push(&rest[..length]);
            rest = &rest[length..];
        }
        found
    }

    /// What is behind the ExID of our option: role, flags, value.
    pub fn ours(&self) -> Option<(u8, u8, u64)> {
        let all = self.all_options();
        let ours = |option: &&&[u8]| option[0] == OPTION_KIND && option[2..6] == EXID;
        let mut found = all.iter().filter(ours);
        let option = found.next()?;
        assert!(found.next().is_none(), "twice: {self:?}");
        assert_eq!(option.len(), 16);
        let value = option[8..].try_into().expect("eight");
        Some((option[6], option[7], u64::from_le_bytes(value)))
    }

    /// The frame of an IPv4 segment.
    pub fn frame(&self, from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
        let (IpAddr::V4(source), IpAddr::V4(destination)) =
            (self.source.ip(), self.destination.ip())
        else {
            panic!("IPv4 only");
        };
        let mut options = self.options.clone();
        options.resize(options.len().next_multiple_of(4), 0);
        assert!(options.len() <= 40);
        let mut tcp = Vec::new();
        tcp.extend(self.source.port().to_be_bytes());
        tcp.extend(self.destination.port().to_be_bytes());
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend(self.acknowledgement.to_be_bytes());
        tcp.extend([((20 + options.len()) as u8 / 4) << 4, self.flags]);
        tcp.extend(65000_u16.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(options);
        tcp.extend(&self.data);
        let length = tcp.len() as u16;
        let sum = checksum(&[
            &source.octets(),
            &destination.octets(),
            &[0, 6],
            &length.to_be_bytes(),
            &tcp,
        ]);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut ip = vec![0x45, 0];
        ip.extend((20 + length).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        ip.extend(source.octets());
        ip.extend(destination.octets());
        let sum = checksum(&[&ip]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        [&to[..], &from, &[0x08, 0], &ip, &tcp].concat()
    }
}

/// RFC 1071, of parts of which all but the last have an even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum: u32 = 0;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        }
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Everything that passes the interface of a host, in both directions (packet(7)).
pub struct Wire {
    socket: OwnedFd,
    /// The frames that were looked at.
    pub seen: Vec<Vec<u8>>,
}

impl Wire {
    pub fn open(host: &Host) -> Self {
        let all = (libc::ETH_P_ALL as u16).to_be();
        let socket = host.enter(|| {
            let name = std::ffi::CString::new(INTERFACE).expect("no zero");
            // SAFETY: a string that ends with 0 is read.
            let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
            let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            // SAFETY: socket takes integers; the descriptor is new and nobody else's.
            let socket =
                unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_PACKET, kind, all.into())) };
            // SAFETY: zeros are a valid sockaddr_ll.
            let mut address: libc::sockaddr_ll = unsafe { core::mem::zeroed() };
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = all;
            address.sll_ifindex = index as i32;
            let size = size_of::<libc::sockaddr_ll>() as u32;
            // SAFETY: bind reads one address.
            let ret = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) };
            assert_eq!(ret, 0, "{}", io::Error::last_os_error());
            socket
        });
        Self {
            socket,
            seen: Vec::new(),
        }
    }

    fn poll(&mut self) -> Option<Segment> {
        let mut frame = vec![0u8; 65536];
        // SAFETY: recv writes at most as many bytes as the buffer has.
        let bytes = unsafe {
            libc::recv(
                self.socket.as_raw_fd(),
                frame.as_mut_ptr().cast(),
                frame.len(),
                0,
            )
        };
        if bytes <= 0 {
            return None;
        }
        frame.truncate(bytes as usize);
        let segment = Segment::parse(&frame);
        self.seen.push(frame);
        segment
    }

    /// The next segment for which this is true, within the patience of a test.
    pub fn next(&mut self, what: &str, wanted: impl Fn(&Segment) -> bool) -> Segment {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            match self.poll() {
                Some(segment) if wanted(&segment) => return segment,
                Some(_) => {}
                None => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
        panic!("waited in vain for {what}");
    }

    /// Everything until now.
    pub fn drain(&mut self) -> Vec<Segment> {
        let mut all = Vec::new();
        let mut before = usize::MAX;
        while before != self.seen.len() {
            before = self.seen.len();
            all.extend(self.poll());
        }
        all
    }

    /// Of everything until now, what went between two ends: earlier connections may still send.
    pub fn between(&mut self, a: SocketAddr, b: SocketAddr) -> Vec<Segment> {
        let mut all = self.drain();
        all.retain(|segment| {
            let ends = (segment.source, segment.destination);
            ends == (a, b) || ends == (b, a)
        });
        all
    }

    pub fn send(&self, frame: &[u8]) {
        // SAFETY: send reads the frame.
        let sent = unsafe {
            libc::send(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
            )
        };
        assert_eq!(sent, frame.len() as isize, "{}", io::Error::last_os_error());
    }
}

/// A TCP end that is no socket: at an address of its own behind `host`, whose kernel ignores it.
pub struct Puppet {
    pub wire: Wire,
    pub address: Ipv4Addr,
    macs: ([u8; 6], [u8; 6]),
}

impl Puppet {
    /// Behind `host`, for the kernel of `peer` to talk to.
    pub fn new(host: &Host, peer: &Host) -> Self {
        let address = Ipv4Addr::new(192, 0, 2, 77);
        peer.neighbour(address.into(), host);
        Self {
            wire: Wire::open(host),
            address,
            macs: (host.mac, peer.mac),
        }
    }

    /// The next segment that comes to this port with exactly these of SYN and ACK.
    pub fn receive(&mut self, port: u16, flags: u8) -> Segment {
        let own = SocketAddr::new(self.address.into(), port);
        let wanted = |segment: &Segment| {
            segment.destination == own && segment.flags & (SYN | ACK | RST) == flags
        };
        self.wire.next("a segment", wanted)
    }

    pub fn send(&self, segment: &Segment) {
        self.wire.send(&segment.frame(self.macs.0, self.macs.1));
    }

    /// Back to where a segment came from, acknowledging all of it.
    pub fn answer(&self, to: &Segment, flags: u8, sequence: u32, options: Vec<u8>) {
        let control = u32::from(to.flags & SYN != 0);
        self.send(&Segment {
            source: to.destination,
            destination: to.source,
            sequence,
            acknowledgement: to.sequence + control + to.data.len() as u32,
            flags,
            options,
            data: Vec::new(),
        });
    }
}
