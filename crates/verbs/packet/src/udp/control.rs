//! Control messages (cmsg(3)) as bytes: what the kernel says of a datagram beside its payload,
//! and what it is told (ip(7), ipv6(7), udp(7)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes for the control messages of one datagram, in either direction.
pub const BYTES: usize = 128;

const WORD: usize = size_of::<usize>();
const HEADER: usize = WORD + 8;

/// Room for control messages, aligned as the kernel's header is.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct Control(pub [u8; BYTES]);

/// What came beside a datagram. What did not come is zero or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// The destination address of the IP header.
    pub destination: Option<IpAddr>,
    /// On which interface it came.
    pub interface: u32,
    /// IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit.
    pub hop_limit: u8,
    /// Several datagrams came as one, each of this length but the last, which may be shorter.
    pub segment_bytes: Option<usize>,
}

/// Reads control messages. Unknown ones, and everything behind a damaged one, are left out.
pub fn parse(mut control: &[u8]) -> Beside {
    let mut beside = Beside::default();
    // Bounded: each turn takes at least a header away.
    while let Some((header, _)) = control.split_first_chunk::<HEADER>() {
        let (length, kind) = header.split_at(WORD);
        let length = length.try_into().map_or(0, usize::from_ne_bytes);
        let Some(data) = control.get(HEADER..length) else {
            break;
        };
        if let &[l0, l1, l2, l3, t0, t1, t2, t3] = kind {
            let level = i32::from_ne_bytes([l0, l1, l2, l3]);
            take(
                &mut beside,
                level,
                i32::from_ne_bytes([t0, t1, t2, t3]),
                data,
            );
        }
        let next = length.checked_next_multiple_of(WORD).unwrap_or(usize::MAX);
        control = control.get(next..).unwrap_or_default();
    }
    beside
}

fn take(beside: &mut Beside, level: i32, kind: i32, data: &[u8]) {
    match (level, kind) {
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            // struct in_pktinfo: interface, local address, address of the header.
            if let &[i0, i1, i2, i3, _, _, _, _, a, b, c, d] = data {
                beside.interface = u32::from_ne_bytes([i0, i1, i2, i3]);
                beside.destination = Some(Ipv4Addr::new(a, b, c, d).into());
            }
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            // struct in6_pktinfo: address of the header, interface.
            if let Some((address, rest)) = data.split_first_chunk::<16>() {
                beside.destination = Some(Ipv6Addr::from(*address).into());
                beside.interface = integer(rest).unwrap_or_default();
            }
        }
        // One byte over IPv4, an int over IPv6.
        (libc::IPPROTO_IP, libc::IP_TOS) => {
            beside.traffic_class = data.first().copied().unwrap_or_default();
        }
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            beside.traffic_class = integer(data).unwrap_or_default() as u8;
        }
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
            beside.hop_limit = integer(data).unwrap_or_default() as u8;
        }
        (libc::SOL_UDP, libc::UDP_GRO) => {
            let bytes = integer(data).and_then(|bytes| usize::try_from(bytes).ok());
            beside.segment_bytes = bytes.filter(|bytes| *bytes > 0);
        }
        _ => {}
    }
}

fn integer(data: &[u8]) -> Option<u32> {
    data.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// What the kernel is told beside a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Telling {
    /// The source address of the IP header, which also says which version it is.
    pub source: IpAddr,
    /// By which interface it leaves; 0 leaves that to the routes.
    pub interface: u32,
    /// IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit, not 0.
    pub hop_limit: u8,
    /// Cut the payload into datagrams of this length.
    pub segment_bytes: Option<u16>,
}

impl Telling {
    /// Writes the control messages; how many bytes they have.
    pub fn write(&self, control: &mut Control) -> usize {
        let mut used = 0;
        let class = i32::from(self.traffic_class).to_ne_bytes();
        let hops = i32::from(self.hop_limit).to_ne_bytes();
        match self.source {
            IpAddr::V4(source) => {
                let level = libc::IPPROTO_IP;
                let mut info = [0; 12];
                let (interface, addresses) = info.split_at_mut(4);
                interface.copy_from_slice(&self.interface.to_ne_bytes());
                for (to, from) in addresses.iter_mut().zip(source.octets()) {
                    *to = from;
                }
                put(control, &mut used, level, libc::IP_PKTINFO, &info);
                put(control, &mut used, level, libc::IP_TOS, &class);
                put(control, &mut used, level, libc::IP_TTL, &hops);
            }
            IpAddr::V6(source) => {
                let level = libc::IPPROTO_IPV6;
                let mut info = [0; 20];
                let (address, interface) = info.split_at_mut(16);
                address.copy_from_slice(&source.octets());
                interface.copy_from_slice(&self.interface.to_ne_bytes());
                put(control, &mut used, level, libc::IPV6_PKTINFO, &info);
                put(control, &mut used, level, libc::IPV6_TCLASS, &class);
                put(control, &mut used, level, libc::IPV6_HOPLIMIT, &hops);
            }
        }
        if let Some(bytes) = self.segment_bytes {
            let (level, kind) = (libc::SOL_UDP, libc::UDP_SEGMENT);
            put(control, &mut used, level, kind, &bytes.to_ne_bytes());
        }
        used
    }
}

/// Adds a message. [`BYTES`] has room for all that [`Telling::write`] adds.
fn put(control: &mut Control, used: &mut usize, level: i32, kind: i32, data: &[u8]) {
    let length = HEADER + data.len();
    let end = *used + length.next_multiple_of(WORD);
    let Some(place) = control.0.get_mut(*used..end) else {
        return;
    };
    let (length, level, kind) = (
        length.to_ne_bytes(),
        level.to_ne_bytes(),
        kind.to_ne_bytes(),
    );
    let all = length.iter().chain(&level).chain(&kind).chain(data);
    let all = all.copied().chain(std::iter::repeat(0));
    for (to, from) in place.iter_mut().zip(all) {
        *to = from;
    }
    *used = end;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round(source: &str, segment_bytes: Option<u16>) -> Beside {
        let telling = Telling {
            source: source.parse().unwrap(),
            interface: 7,
            traffic_class: 0xb9,
            hop_limit: 63,
            segment_bytes,
        };
        let mut control = Control([0xee; BYTES]);
        let used = telling.write(&mut control);
        parse(&control.0[..used])
    }

    #[test]
    fn what_is_told_can_be_read() {
        let six = round("2001:db8::1", Some(4124));
        assert_eq!(six.destination, Some("2001:db8::1".parse().unwrap()));
        assert_eq!((six.interface, six.traffic_class), (7, 0xb9));
        assert_eq!(six.hop_limit, 63);
        // The numbers of what is told and what comes differ only for segments.
        assert_eq!(six.segment_bytes, None);
        let four = round("192.0.2.1", None);
        assert_eq!((four.interface, four.traffic_class), (7, 0xb9));
        assert_eq!(four.hop_limit, 63);
        // The kernel has the destination behind the local address.
        assert_eq!(four.destination, Some("0.0.0.0".parse().unwrap()));
    }

    #[test]
    fn a_length_that_goes_backwards_ends_the_reading() {
        for length in [0, 1, HEADER - 1, usize::MAX, usize::MAX - 3, 1000] {
            let mut control = [0; 64];
            control[..WORD].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(parse(&control), Beside::default());
        }
    }

    proptest! {
        #[test]
        fn damaged_bytes_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..160),
            at in 0..100_usize,
            to: u8,
        ) {
            parse(&bytes);
            let telling = Telling {
                source: "2001:db8::1".parse().unwrap(),
                interface: 1,
                traffic_class: 2,
                hop_limit: 3,
                segment_bytes: Some(4),
            };
            let mut control = Control([0; BYTES]);
            let used = telling.write(&mut control);
            control.0[at] = to;
            parse(&control.0[..used]);
            parse(&control.0[..at]);
        }
    }
}
