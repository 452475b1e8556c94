//! Packets by way of UDP sockets: no privilege, any interface, the kernel's routes, neighbours
//! and path MTUs.
//!
//! There is a socket for IPv4 and one for IPv6, both at port 4791 ([`sluice_wire::udp::ROCE_PORT`])
//! and shared with other processes of the same user (`SO_REUSEPORT`): the kernel gives a packet to
//! one of them, by its addresses and ports, so that their owners must hand on what is another's.
//!
//! Three fields of a [`Path`] are not used here:
//!
//! - The source port: packets leave from port 4791, since a socket has only its own. Annex A17.3
//!   wants a port that is constant for a flow, which this is; routers spread flows by addresses
//!   only. Firewalls in between that let answers in see one flow with both directions.
//! - The flow label, which a program must lease from the kernel; the kernel makes one (RFC 6437).
//! - The Ethernet addresses: the kernel finds them.
//!
//! The ICRC covers the identification of the IPv4 header, which a socket can neither set nor
//! see. Leaving: Linux gives 0 to what must not be fragmented (`ip_select_ident_segs`), and counts
//! up from there over the segments of one large datagram (`inet_gso_segment`). A network interface
//! that cuts datagrams by itself (`tx-udp-segmentation` of ethtool(8)) is expected to do the same;
//! where the receivers count wrong checksums, [`Config::segmentation`] is to be off. Coming:
//! [`sluice_wire::icrc::unseen`], which is a weaker check than over IPv6; the UDP checksum, which
//! the kernel sends and checks, makes up for some of it.
//!
//! An acknowledgement and the packet that it leaves with are one datagram for a peer who
//! takes it uncut ([`Config::segmentation`]): whoever polls until its request is acknowledged has the
//! answer then. In it the acknowledgement is behind the packet, since only the last segment may be
//! shorter, and whoever takes it uncut looks at that first. Cut on the way, the answer comes before the
//! acknowledgement, as it may wherever acknowledgements are not sent at once.

mod control;
mod group;
mod members;
mod queue;
pub(crate) mod socket;

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::{error, fmt};

use sluice_sys::errno::Errno;
use sluice_sys::unix::Fd;
use sluice_wire::icrc::{self, Icrc, Unseen};
use sluice_wire::ipv4;
use sluice_wire::piggyback;
use sluice_wire::udp::ROCE_PORT;

pub use self::group::Group;
pub use self::members::Members;
use self::queue::Queue;
use self::socket::{Datagram, Incoming, Name};
use crate::{Facts, Leaving, Port, PortCounters, Received, SendError};

/// Datagrams that one system call takes in, at most.
const RECEIVE_BATCH: usize = 32;
/// The same while they are large: so many are still in the processor's cache when they are looked
/// at, and are answered while others come.
const RECEIVE_BATCH_LARGE: usize = 4;
/// Bytes of a batch from which on its datagrams count as large.
const LARGE_BYTES: usize = 96 << 10;

/// Bytes of UDP payload, most that IPv4 has room for.
const DATAGRAM_BYTES_MAX: usize = 65_507;

/// Bytes of a base transport header: no packet is shorter.
const BTH_BYTES: usize = sluice_wire::bth::Bth::BYTES;

/// `include/uapi/linux/udp.h`.
const UDP_NO_CHECK6_RX: i32 = 102;

/// How a port is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Longest packet, from base transport header to pad, bytes.
    pub packet_bytes_max: usize,
    /// Packets of one length to one peer are handed to the kernel as one datagram that it, or
    /// the network interface, cuts (udp(7), `UDP_SEGMENT`), and taken from it uncut (`UDP_GRO`).
    pub segmentation: bool,
    /// For each socket and direction, bytes that wait in the kernel. The kernel may give less
    /// (socket(7), `SO_RCVBUF`).
    pub socket_buffer_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            packet_bytes_max: 9216,
            segmentation: true,
            socket_buffer_bytes: 8 << 20,
        }
    }
}

/// Why there is no port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Somebody else has UDP port 4791.
    PortTaken,
    /// This kernel, or this sandbox, has neither IPv4 nor IPv6.
    NoIp,
    /// A system call failed.
    System {
        /// What was to be done.
        doing: &'static str,
        /// What the kernel answered.
        errno: Errno,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortTaken => write!(
                f,
                "UDP port {ROCE_PORT} is taken by another user, by a program that does not share \
                 it, or by the kernel's rdma_rxe: see `ss -ulnp sport = :{ROCE_PORT}`, and stop \
                 it or run as the same user"
            ),
            Self::NoIp => f.write_str("neither IPv4 nor IPv6 sockets can be made here"),
            Self::System { doing, errno } => write!(f, "cannot {doing}: {errno}"),
        }
    }
}

impl error::Error for OpenError {}

fn failed(doing: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno| OpenError::System { doing, errno }
}

/// A port made of UDP sockets.
pub struct UdpPort {
    four: Option<Fd>,
    six: Option<Fd>,
    incoming: Incoming,
    queue: Queue,
    packet_bytes_max: usize,
    /// Which socket [`Port::receive`] looks at first, so that neither waits for the other's end.
    six_first: bool,
    /// Datagrams of the next batch, at most.
    batch: usize,
    peers: Peers,
    counters: PortCounters,
}

impl UdpPort {
    /// Opens the sockets, in the network namespace of the caller. A family that the kernel lacks
    /// is left out.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        let four = open(libc::AF_INET, config)?;
        let six = open(libc::AF_INET6, config)?;
        if four.is_none() && six.is_none() {
            return Err(OpenError::NoIp);
        }
        let packet_bytes_max = config
            .packet_bytes_max
            .clamp(BTH_BYTES, DATAGRAM_BYTES_MAX - icrc::BYTES);
        let one = packet_bytes_max + icrc::BYTES;
        let several = if config.segmentation {
            DATAGRAM_BYTES_MAX
        } else {
            one
        };
        Ok(Self {
            four,
            six,
            incoming: Incoming::new(RECEIVE_BATCH, several),
            queue: Queue::new(one, config.segmentation),
            packet_bytes_max,
            six_first: false,
            batch: RECEIVE_BATCH,
            peers: Peers::default(),
            counters: PortCounters::default(),
        })
    }

    /// Packets that the kernel has dropped because too many waited already
    /// ([`Config::socket_buffer_bytes`]), or because their UDP checksum was wrong.
    pub fn dropped(&self) -> u64 {
        [&self.four, &self.six]
            .into_iter()
            .flatten()
            .map(|socket| u64::from(socket::drops(socket)))
            .sum()
    }

    /// One batch from one socket. False: there is none.
    fn fetch_from(&mut self, six: bool) -> bool {
        let socket = if six { &self.six } else { &self.four };
        let Some(socket) = socket else {
            return false;
        };
        match self.incoming.receive(socket, self.batch) {
            Ok(bytes) if bytes >= LARGE_BYTES => self.batch = RECEIVE_BATCH_LARGE,
            Ok(_) => self.batch = RECEIVE_BATCH,
            // Nothing there. Other errors are those of an earlier packet to an unreachable peer,
            // which the protocol finds out by itself, or of a socket that somebody has closed.
            Err(_) => return false,
        }
        true
    }
}

fn open(family: i32, config: &Config) -> Result<Option<Fd>, OpenError> {
    let socket = match socket::open(family) {
        Ok(socket) => socket,
        Err(Errno(libc::EAFNOSUPPORT)) => return Ok(None),
        Err(errno) => return Err(failed("make a UDP socket")(errno)),
    };
    let set = |level, option, value, doing| {
        socket::set_int(&socket, level, option, value).map_err(failed(doing))
    };
    let (sol, udp) = (libc::SOL_SOCKET, libc::SOL_UDP);
    set(sol, libc::SO_REUSEPORT, 1, "share the UDP port")?;
    if family == libc::AF_INET {
        let level = libc::IPPROTO_IP;
        set(level, libc::IP_PKTINFO, 1, "ask for IPv4 destinations")?;
        set(level, libc::IP_RECVTOS, 1, "ask for the type of service")?;
        set(level, libc::IP_RECVTTL, 1, "ask for the time to live")?;
        let discover = libc::IP_PMTUDISC_DO;
        set(level, libc::IP_MTU_DISCOVER, discover, "forbid fragments")?;
        set(level, libc::IP_MULTICAST_ALL, 0, "refuse others' groups")?;
    } else {
        let level = libc::IPPROTO_IPV6;
        set(level, libc::IPV6_V6ONLY, 1, "keep IPv4 apart")?;
        set(
            level,
            libc::IPV6_RECVPKTINFO,
            1,
            "ask for IPv6 destinations",
        )?;
        set(level, libc::IPV6_RECVTCLASS, 1, "ask for the traffic class")?;
        set(level, libc::IPV6_RECVHOPLIMIT, 1, "ask for the hop limit")?;
        let discover = libc::IPV6_PMTUDISC_DO;
        set(level, libc::IPV6_MTU_DISCOVER, discover, "forbid fragments")?;
        // Linux 4.20; without it groups of other programs come, too, which does no harm.
        let _ = socket::set_int(&socket, level, libc::IPV6_MULTICAST_ALL, 0);
        // Linux's rxe sends none over IPv6 (RFC 6935 allows that for tunnels); the ICRC is there.
        set(
            udp,
            UDP_NO_CHECK6_RX,
            1,
            "take packets without UDP checksums",
        )?;
    }
    if config.segmentation {
        // Linux 5.0; without it the kernel gives each packet by itself.
        let _ = socket::set_int(&socket, udp, libc::UDP_GRO, 1);
    }
    let bytes = i32::try_from(config.socket_buffer_bytes).unwrap_or(i32::MAX);
    for (force, ask, doing) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, "size what waits"),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, "size what leaves"),
    ] {
        // More than the system's limit takes CAP_NET_ADMIN.
        if socket::set_int(&socket, sol, force, bytes).is_err() {
            set(sol, ask, bytes, doing)?;
        }
    }
    let any: IpAddr = if family == libc::AF_INET {
        std::net::Ipv4Addr::UNSPECIFIED.into()
    } else {
        std::net::Ipv6Addr::UNSPECIFIED.into()
    };
    match socket::bind(&socket, &Name::new(any, ROCE_PORT, 0)) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno(libc::EADDRINUSE)) => Err(OpenError::PortTaken),
        // IPv6 is there, but switched off (net.ipv6.conf.all.disable_ipv6).
        Err(Errno(libc::EADDRNOTAVAIL)) => Ok(None),
        Err(errno) => Err(failed("bind to UDP port 4791")(errno)),
    }
}

/// Which identification the next of several packets has that came as one: they count up where
/// Linux cut them or would have, and elsewhere they may all be 0. A right guess saves
/// [`icrc::unseen`].
#[derive(Default)]
struct Numbers {
    next: u16,
    last: Option<u16>,
}

impl Numbers {
    /// A packet had that one.
    fn were(&mut self, identification: u16) {
        let step = match self.last.replace(identification) {
            None => 1,
            Some(last) => identification.wrapping_sub(last),
        };
        self.next = identification.wrapping_add(step);
    }
}

/// Who has sent last from the port that they receive at, as this port does: they take several packets as
/// one datagram, so that both come at once. Others may get them one after the other.
#[derive(Default)]
struct Peers {
    addresses: [Option<IpAddr>; 8],
    oldest: usize,
}

impl Peers {
    fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&Some(address))
    }

    fn came(&mut self, source: IpAddr, source_port: u16) {
        if source_port == ROCE_PORT && !self.has(source) {
            if let Some(place) = self.addresses.get_mut(self.oldest) {
                *place = Some(source);
            }
            self.oldest = (self.oldest + 1) % self.addresses.len();
        }
    }
}

/// Gives the good packets of a datagram to `each`; how many there were, good and bad.
fn take(
    datagram: &Datagram<'_>,
    peers: &mut Peers,
    counters: &mut PortCounters,
    each: &mut dyn FnMut(&Received<'_>),
) -> usize {
    let beside = control::parse(datagram.control);
    let (Some((source, source_port)), Some(destination), false) =
        (datagram.name.parse(), beside.destination, datagram.cut)
    else {
        counters.malformed += 1;
        return 1;
    };
    if datagram.bytes.is_empty() {
        counters.malformed += 1;
        return 1;
    }
    let before = counters.received;
    let mut numbers = Numbers::default();
    let mut one = |bytes: &[u8], numbers: &mut Numbers| {
        let Some((packet, found)) = bytes.split_last_chunk() else {
            counters.malformed += 1;
            return;
        };
        let likely = Unseen {
            identification: numbers.next,
            dont_fragment: true,
        };
        let Some(expected) = checksum(source, destination, source_port, likely, packet) else {
            counters.malformed += 1;
            return;
        };
        if expected == *found {
            numbers.were(likely.identification);
        } else if destination.is_ipv4()
            && let Some(unseen) = icrc::unseen(expected, *found, packet.len())
        {
            // How it differs from what was expected with.
            numbers.were(likely.identification ^ unseen.identification);
        } else {
            counters.bad_icrc += 1;
            return;
        }
        counters.received += 1;
        counters.received_bytes += packet.len() as u64;
        each(&Received {
            source,
            destination,
            interface: beside.interface,
            source_port,
            traffic_class: beside.traffic_class,
            hop_limit: beside.hop_limit,
            packet,
        });
    };
    let segment = beside.segment_bytes.unwrap_or(datagram.bytes.len());
    let count = datagram.bytes.len().div_ceil(segment);
    let carrier = count
        .checked_sub(2)
        .filter(|_| ends_with_piggyback(datagram.bytes, segment));
    let mut segments = datagram.bytes.chunks(segment);
    for segment in segments.by_ref().take(carrier.unwrap_or(count)) {
        one(segment, &mut numbers);
    }
    if let (Some(carrier), Some(piggyback)) = (segments.next(), segments.next()) {
        let next = numbers.next;
        numbers.next = next.wrapping_add(1);
        one(piggyback, &mut numbers);
        numbers.next = next;
        one(carrier, &mut numbers);
    }
    if counters.received > before {
        peers.came(source, source_port);
    }
    count
}

/// Whether the last segment is an acknowledgement behind a packet that is none. It was sent before that:
/// programs that sleep until their request is acknowledged do not expect the peer's answer sooner.
fn ends_with_piggyback(bytes: &[u8], segment: usize) -> bool {
    let is_ack = |bytes: &[u8]| {
        let packet = bytes.len().checked_sub(icrc::BYTES);
        packet.is_some_and(|packet| bytes.get(..packet).is_some_and(piggyback::may_piggyback))
    };
    let mut segments = bytes.chunks(segment);
    let (last, before) = (segments.next_back(), segments.next_back());
    last.is_some_and(is_ack) && before.is_some_and(|before| !is_ack(before))
}

/// The ICRC of a packet from port `source_port` to port 4791. None when it is too short or too
/// long, or when the addresses are of different versions.
fn checksum(
    source: IpAddr,
    destination: IpAddr,
    source_port: u16,
    unseen: Unseen,
    packet: &[u8],
) -> Option<[u8; icrc::BYTES]> {
    let (bth, rest) = packet.split_first_chunk::<BTH_BYTES>()?;
    let udp_bytes = u16::try_from(packet.len() + icrc::BYTES + 8).ok()?;
    let [u0, u1] = udp_bytes.to_be_bytes();
    let [s0, s1] = source_port.to_be_bytes();
    let [d0, d1] = ROCE_PORT.to_be_bytes();
    let udp = [s0, s1, d0, d1, u0, u1, 0, 0];
    // Zero where the ICRC does not look.
    let start = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let [l0, l1] = udp_bytes.checked_add(20)?.to_be_bytes();
            let [i0, i1, f0, f1] = unseen.bytes();
            let [sa, sb, sc, sd] = source.octets();
            let [da, db, dc, dd] = destination.octets();
            let ip = [
                0x45,
                0,
                l0,
                l1,
                i0,
                i1,
                f0,
                f1,
                0,
                ipv4::UDP,
                0,
                0,
                sa,
                sb,
                sc,
                sd,
                da,
                db,
                dc,
                dd,
            ];
            Icrc::ipv4(&ip, &udp)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut ip = [0; 40];
            let (front, addresses) = ip.split_at_mut(8);
            front.copy_from_slice(&[0x60, 0, 0, 0, u0, u1, ipv4::UDP, 0]);
            let (from, to) = addresses.split_at_mut(16);
            from.copy_from_slice(&source.octets());
            to.copy_from_slice(&destination.octets());
            Icrc::ipv6(&ip, &udp)
        }
        _ => return None,
    };
    Some(start.of(bth, &[rest]))
}

impl UdpPort {
    /// Why a packet cannot be put into the queue, whatever room that has.
    fn refusal(&self, packet: &Leaving<'_>) -> Option<SendError> {
        let path = packet.path;
        let reachable = match (path.source, path.destination) {
            (IpAddr::V4(_), IpAddr::V4(_)) => self.four.is_some(),
            (IpAddr::V6(_), IpAddr::V6(_)) => self.six.is_some(),
            _ => false,
        };
        if packet.length > self.packet_bytes_max {
            Some(SendError::TooLong)
        } else if !reachable || path.source.is_unspecified() {
            // The ICRC covers the source address: the kernel must not choose it.
            Some(SendError::Unreachable)
        } else if packet.length < BTH_BYTES {
            Some(SendError::Nothing)
        } else {
            None
        }
    }

    /// Puts a packet into the queue.
    fn enqueue(
        &mut self,
        packet: &Leaving<'_>,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError> {
        if let Some(refusal) = self.refusal(packet) {
            return Err(refusal);
        }
        if self.queue.is_ripe_before(packet) {
            // What the kernel does not take now goes with the next flush.
            let (four, six) = (self.four.as_ref(), self.six.as_ref());
            self.queue.flush(four, six, &mut self.counters);
        }
        self.queue.put(packet, fill)
    }

    /// Every descriptor: readable when something has come.
    pub fn descriptors(&self) -> Vec<RawFd> {
        [&self.four, &self.six]
            .into_iter()
            .flatten()
            .map(Fd::raw)
            .collect()
    }

    /// What has happened so far.
    pub fn counters(&self) -> PortCounters {
        PortCounters {
            socket_drops: self.dropped(),
            ..self.counters
        }
    }
}

impl Port for UdpPort {
    fn receive(&mut self, each: &mut dyn FnMut(&Received<'_>)) -> usize {
        let first = self.six_first;
        let mut sockets = [first, !first].into_iter();
        let Some(six) = sockets.find(|six| self.fetch_from(*six)) else {
            return 0;
        };
        self.six_first = !six;
        let mut packets = 0;
        for datagram in self.incoming.datagrams() {
            packets += take(&datagram, &mut self.peers, &mut self.counters, each);
        }
        packets
    }

    fn put(
        &mut self,
        packet: &Leaving<'_>,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError> {
        let Some(kept) = packet.beside else {
            return self.enqueue(packet, fill);
        };
        if self.queue.room() < 2 {
            return Err(SendError::NoRoom);
        }
        let rides =
            self.peers.has(packet.path.destination) && self.queue.takes_behind(packet, kept);
        if !rides {
            let _ = self.enqueue(&kept.leaving(), &mut |into| kept.put(into));
        }
        let put = self.enqueue(packet, fill);
        match put {
            Ok(()) if rides => self.queue.put_behind(kept),
            Err(_) if rides => {
                let _ = self.enqueue(&kept.leaving(), &mut |into| kept.put(into));
            }
            _ => {}
        }
        put
    }

    fn flush(&mut self) -> bool {
        let (four, six) = (self.four.as_ref(), self.six.as_ref());
        self.queue.flush(four, six, &mut self.counters)
    }

    fn room(&self) -> usize {
        self.queue.room()
    }

    fn facts(&self) -> Facts {
        Facts {
            descriptors: self.descriptors(),
            counters: self.counters(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_identification_is_guessed() {
        let guesses = |found: &[u16]| {
            let mut numbers = Numbers::default();
            let guess = |found: &u16| {
                let guess = numbers.next;
                numbers.were(*found);
                guess
            };
            found.iter().map(guess).collect::<Vec<_>>()
        };
        assert_eq!(guesses(&[0, 1, 2, 3]), [0, 1, 2, 3]);
        assert_eq!(guesses(&[0, 0, 0, 0]), [0, 1, 0, 0]);
        assert_eq!(guesses(&[65534, 65535, 0]), [0, 65535, 0]);
        assert_eq!(guesses(&[5, 3, 1, 65535]), [0, 6, 1, 65535]);
    }
}
