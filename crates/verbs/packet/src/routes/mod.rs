//! Routes, neighbours, addresses and links, as the kernel has them (rtnetlink(7)).
//!
//! Links, addresses and neighbours are kept, as of the last [`Routes::process`]; a route is asked
//! for whenever it is looked up, so that rules, tables and metrics count. No privilege is needed.

mod message;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;
use std::{error, fmt};

use sluice_sys::errno::Errno;
use sluice_sys::netlink::{self, Message, Request, messages};
use sluice_sys::unix::{Fd, wait_readable};

use self::message::{Address, Link, Neighbour, Route};
use crate::Ethernet;
use crate::udp::socket as udp;

/// Multicast groups of rtnetlink: links, neighbours, addresses, routes, rules, next hops.
const GROUPS: u32 = (libc::RTMGRP_LINK
    | libc::RTMGRP_NEIGH
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV4_RULE
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV6_ROUTE) as u32
    | 1 << (RTNLGRP_IPV6_RULE - 1)
    | 1 << (RTNLGRP_NEXTHOP - 1);
const RTNLGRP_IPV6_RULE: u32 = 19;
const RTNLGRP_NEXTHOP: u32 = 32;

/// Longest datagram that the kernel sends is half of this.
const BUFFER_BYTES: usize = 64 << 10;

/// How long the kernel may take to answer. It answers while it is asked.
const ANSWER_MS_MAX: i32 = 2000;

/// How often a dump is repeated that changes disturbed.
const DUMPS_MAX: usize = 4;

/// Datagrams that [`Routes::process`] takes at once, most.
const EVENTS_MAX: usize = 1024;

/// An address on an interface.
type OnInterface = (u32, IpAddr);

/// Why there is no way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteError {
    /// No route, or one that says that there is none.
    NoRoute,
    /// A route forbids it.
    Prohibited,
    /// The source is not an address of this host, or of another IP version.
    ForeignSource,
    /// There is no such interface, or it went away.
    NoInterface,
    /// Rtnetlink failed.
    System {
        /// What was to be done.
        doing: &'static str,
        /// What the kernel answered.
        errno: Errno,
    },
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoute => f.write_str("no route to the destination: see `ip route get`"),
            Self::Prohibited => f.write_str("a route forbids the destination: see `ip route get`"),
            Self::ForeignSource => f.write_str("the source is not an address of this host"),
            Self::NoInterface => f.write_str("there is no such network interface"),
            Self::System { doing, errno } => write!(f, "cannot {doing}: {errno}"),
        }
    }
}

impl error::Error for RouteError {}

fn failed(doing: &'static str) -> impl Fn(Errno) -> RouteError {
    move |errno| RouteError::System { doing, errno }
}

/// The way to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// By which interface; the loopback interface for this host's own addresses.
    pub interface: u32,
    /// Longest IP packet, bytes: the interface's, or less if the route says so or a router said so.
    pub mtu: u32,
    /// The source that was asked for, or else the one that the kernel prefers.
    pub source: IpAddr,
    /// The destination is this host.
    pub local: bool,
    /// The router, if the destination is not on the interface's own network.
    pub gateway: Option<IpAddr>,
    /// None: the neighbour is not known (see [`Routes::resolve`]), or the interface is none that
    /// has Ethernet frames, such as loopback.
    pub ethernet: Option<Ethernet>,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its number in this network namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Longest IP packet, bytes.
    pub mtu: u32,
    /// Switched on, and joined to something.
    pub up: bool,
    /// This host's interface to itself.
    pub loopback: bool,
    /// Its Ethernet address; none if its frames are not Ethernet's.
    pub mac: Option<[u8; 6]>,
    /// The kernel's name for what is made of software: "veth", "bridge", "vlan".
    pub kind: Option<String>,
    /// Its addresses that may be used, with the bits of the network's prefix.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// What the kernel knows of the network.
pub struct Routes {
    events: Fd,
    requests: Fd,
    sequence: u32,
    generation: u64,
    /// Events were lost, and not everything has been read anew since.
    incomplete: bool,
    links: BTreeMap<u32, Link>,
    addresses: BTreeMap<OnInterface, u8>,
    neighbours: BTreeMap<OnInterface, [u8; 6]>,
    buffer: Vec<u8>,
}

impl Routes {
    /// Reads everything, in the network namespace of the caller.
    pub fn open() -> Result<Self, RouteError> {
        // First the events, so that none is missed.
        let events = netlink::open(libc::NETLINK_ROUTE, GROUPS).map_err(failed("watch routes"))?;
        let requests = netlink::open(libc::NETLINK_ROUTE, 0).map_err(failed("ask for routes"))?;
        // Many changes at once must not get lost; if they do, everything is read anew.
        let (level, option) = (libc::SOL_SOCKET, libc::SO_RCVBUF);
        udp::set_int(&events, level, option, 1 << 20).map_err(failed("size events"))?;
        let mut routes = Self {
            events,
            requests,
            sequence: 0,
            generation: 1,
            incomplete: false,
            links: BTreeMap::new(),
            addresses: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            buffer: vec![0; BUFFER_BYTES],
        };
        routes.read_all()?;
        Ok(routes)
    }

    /// Readable when something may have changed (level-triggered).
    pub fn descriptor(&self) -> RawFd {
        self.events.raw()
    }

    /// Takes note of what has changed. True if something did that may change what
    /// [`Routes::lookup`] or [`Routes::interfaces`] say.
    pub fn process(&mut self) -> bool {
        let mut changed = false;
        let mut buffer = std::mem::take(&mut self.buffer);
        for _ in 0..EVENTS_MAX {
            match netlink::receive(&self.events, &mut buffer) {
                Ok(length) => {
                    for message in messages(buffer.get(..length).unwrap_or_default()) {
                        changed |= self.take(&message);
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno(libc::ENOBUFS | libc::EMSGSIZE)) => self.incomplete = true,
                Err(_) => break,
            }
        }
        self.buffer = buffer;
        if self.incomplete {
            changed = true;
            // If it fails, the next call tries again.
            self.incomplete = self.read_all().is_err();
        }
        self.generation += u64::from(changed);
        changed
    }

    /// Another number whenever [`Routes::process`] has said true.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// All interfaces, by their index.
    pub fn interfaces(&self) -> Vec<Interface> {
        let all = self.links.values();
        all.map(|link| Interface {
            index: link.index,
            name: link.name.clone(),
            mtu: link.mtu,
            up: has(link, libc::IFF_UP | libc::IFF_RUNNING),
            loopback: has(link, libc::IFF_LOOPBACK),
            mac: ethernet_of(link),
            kind: link.kind.clone(),
            addresses: {
                let own = self.addresses.iter();
                let own = own.filter(|((interface, _), _)| *interface == link.index);
                own.map(|((_, address), bits)| (*address, *bits)).collect()
            },
        })
        .collect()
    }

    /// How to reach a destination, from a source if one is given, by an interface unless it is 0.
    /// Link-local destinations need the interface.
    pub fn lookup(
        &mut self,
        source: Option<IpAddr>,
        destination: IpAddr,
        interface: u32,
    ) -> Result<Hop, RouteError> {
        if source.is_some_and(|source| source.is_ipv4() != destination.is_ipv4()) {
            return Err(RouteError::ForeignSource);
        }
        // IPv4's sources are the kernel's to check, IPv6's it takes as they are.
        if let Some(six @ IpAddr::V6(_)) = source
            && !self.addresses.keys().any(|(_, own)| *own == six)
        {
            return Err(RouteError::ForeignSource);
        }
        let route = match self.ask_route(source, destination, interface) {
            Err(error) => return Err(self.blame_source(source).unwrap_or(error)),
            Ok(route) => route,
        };
        match route.kind {
            libc::RTN_UNICAST | libc::RTN_LOCAL | libc::RTN_BROADCAST | libc::RTN_MULTICAST => {}
            libc::RTN_PROHIBIT => return Err(RouteError::Prohibited),
            _ => return Err(RouteError::NoRoute),
        }
        // An interface that came after the last `process`.
        if !self.links.contains_key(&route.interface) {
            self.read_links()?;
        }
        let link = self.links.get(&route.interface);
        let link = link.ok_or(RouteError::NoInterface)?;
        let next = route.gateway.unwrap_or(destination);
        let to = match (route.kind, next) {
            (libc::RTN_BROADCAST, _) => Some([0xff; 6]),
            (_, next) if next.is_multicast() => Some(group_mac(next)),
            (_, next) => self.neighbours.get(&(route.interface, next)).copied(),
        };
        let local = route.kind == libc::RTN_LOCAL;
        let ethernet = ethernet_of(link).zip(to).filter(|_| !local);
        Ok(Hop {
            interface: route.interface,
            mtu: route.mtu.map_or(link.mtu, |mtu| mtu.min(link.mtu)),
            source: source.or(route.source).ok_or(RouteError::NoRoute)?,
            local,
            gateway: route.gateway,
            ethernet: ethernet.map(|(source, destination)| Ethernet {
                source,
                destination,
            }),
        })
    }

    /// The kernel says of a source that is not this host's that there is no route.
    fn blame_source(&mut self, source: Option<IpAddr>) -> Option<RouteError> {
        let own = self.ask_route(None, source?, 0);
        let foreign = own.is_ok_and(|route| route.kind != libc::RTN_LOCAL);
        foreign.then_some(RouteError::ForeignSource)
    }

    fn ask_route(
        &mut self,
        source: Option<IpAddr>,
        destination: IpAddr,
        interface: u32,
    ) -> Result<Route, RouteError> {
        let bits = if destination.is_ipv4() { 32 } else { 128 };
        // struct rtmsg: family, bits of destination and source, then what the kernel finds.
        let mut header = [0; 12];
        let source_bits = if source.is_some() { bits } else { 0 };
        for (to, from) in header
            .iter_mut()
            .zip([family(destination), bits, source_bits])
        {
            *to = from;
        }
        let mut request = self.request(libc::RTM_GETROUTE, 0, &header);
        request.address(libc::RTA_DST, destination);
        if let Some(source) = source {
            request.address(libc::RTA_SRC, source);
        }
        if interface != 0 {
            request.attribute(libc::RTA_OIF, &interface.to_ne_bytes());
        }
        let mut found = None;
        let asked = self.ask(&request, |message| {
            if message.kind == libc::RTM_NEWROUTE {
                found = Route::parse(message.body);
            }
        });
        match asked {
            Ok(_) => found.ok_or(RouteError::NoRoute),
            Err(Errno(libc::ENETUNREACH | libc::EHOSTUNREACH)) => Err(RouteError::NoRoute),
            Err(Errno(libc::EACCES)) => Err(RouteError::Prohibited),
            Err(Errno(libc::ENODEV)) => Err(RouteError::NoInterface),
            Err(errno) => Err(failed("ask for a route")(errno)),
        }
    }

    /// Makes the kernel look for a neighbour, or find out whether one that has not been heard of
    /// for a while is still there. It answers with an event, if at all.
    ///
    /// With `CAP_NET_ADMIN` the kernel is told so; otherwise an empty datagram goes to the
    /// neighbour's discard port (RFC 863). An AF_XDP port must call this now and then for each
    /// neighbour that it uses, since the kernel does not see its packets; a UDP port need not.
    pub fn resolve(&mut self, interface: u32, neighbour: IpAddr) -> Result<(), RouteError> {
        // struct ndmsg: family, pad, interface, state, flags, type.
        let mut header = [0; 12];
        header[0] = family(neighbour);
        header[4..8].copy_from_slice(&interface.to_ne_bytes());
        header[10] = libc::NTF_USE;
        let flags = libc::NLM_F_CREATE | libc::NLM_F_ACK;
        let mut request = self.request(libc::RTM_NEWNEIGH, flags, &header);
        request.address(libc::NDA_DST, neighbour);
        if self.ask(&request, |_| {}).is_ok() {
            return Ok(());
        }
        let to_neighbour = failed("send to the neighbour");
        let socket = udp::open(i32::from(family(neighbour))).map_err(&to_neighbour)?;
        udp::send_empty(&socket, neighbour, DISCARD_PORT, interface).map_err(to_neighbour)
    }

    fn request(&mut self, kind: u16, flags: i32, header: &[u8]) -> Request {
        self.sequence = self.sequence.wrapping_add(1);
        Request::new(kind, flags | libc::NLM_F_REQUEST, self.sequence, header)
    }

    /// Sends a request and gives its answers to `each`. True if they are a dump that changes
    /// disturbed.
    fn ask(
        &mut self,
        request: &Request,
        mut each: impl FnMut(&Message<'_>),
    ) -> Result<bool, Errno> {
        netlink::send(&self.requests, request.bytes())?;
        let mut disturbed = false;
        // Ends with the answer's last message, or when the kernel has nothing more to say.
        loop {
            let length = match netlink::receive(&self.requests, &mut self.buffer) {
                Err(Errno::AGAIN) => {
                    if wait_readable(self.requests.raw(), ANSWER_MS_MAX) == Ok(false) {
                        return Err(Errno(libc::ETIMEDOUT));
                    }
                    continue;
                }
                other => other?,
            };
            for message in messages(self.buffer.get(..length).unwrap_or_default()) {
                // What is left of a question whose answer was given up.
                if message.sequence != self.sequence {
                    continue;
                }
                disturbed |= i32::from(message.flags) & libc::NLM_F_DUMP_INTR != 0;
                let several = i32::from(message.flags) & libc::NLM_F_MULTI != 0;
                match i32::from(message.kind) {
                    libc::NLMSG_DONE => return Ok(disturbed),
                    libc::NLMSG_ERROR => {
                        let code = netlink::u32_at(message.body, 0).unwrap_or_default() as i32;
                        return match code.checked_neg() {
                            Some(0) => Ok(disturbed),
                            code => Err(Errno(code.unwrap_or(libc::EPROTO))),
                        };
                    }
                    _ => each(&message),
                }
                if !several {
                    return Ok(disturbed);
                }
            }
        }
    }

    /// All objects of a kind; `header` is the length of its fixed part.
    fn dump<T>(
        &mut self,
        kind: u16,
        header: usize,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, RouteError> {
        let mut all = Vec::new();
        for _ in 0..DUMPS_MAX {
            all.clear();
            let header = vec![0; header];
            let request = self.request(kind, libc::NLM_F_DUMP, &header);
            let disturbed = self
                .ask(&request, |message| all.extend(parse(message.body)))
                .map_err(failed("read the network's state"))?;
            if !disturbed {
                break;
            }
        }
        // Still disturbed: the events say what is missing.
        Ok(all)
    }

    fn read_links(&mut self) -> Result<(), RouteError> {
        let links = self.dump(libc::RTM_GETLINK, 16, Link::parse)?;
        self.links = links.into_iter().map(|link| (link.index, link)).collect();
        Ok(())
    }

    fn read_all(&mut self) -> Result<(), RouteError> {
        self.read_links()?;
        let addresses = self.dump(libc::RTM_GETADDR, 8, Address::parse)?;
        let neighbours = self.dump(libc::RTM_GETNEIGH, 12, Neighbour::parse)?;
        self.addresses.clear();
        for address in addresses {
            self.note_address(&address, address.usable);
        }
        self.neighbours.clear();
        for neighbour in neighbours {
            self.note_neighbour(&neighbour, neighbour.mac);
        }
        Ok(())
    }

    /// Takes an event. Whether it changes anything.
    fn take(&mut self, message: &Message<'_>) -> bool {
        match message.kind {
            libc::RTM_NEWLINK => Link::parse(message.body).is_some_and(|link| {
                let old = self.links.insert(link.index, link.clone());
                old != Some(link)
            }),
            libc::RTM_DELLINK => Link::parse(message.body).is_some_and(|link| {
                // The next one may get the same number.
                self.addresses.retain(|(index, _), _| *index != link.index);
                self.neighbours.retain(|(index, _), _| *index != link.index);
                self.links.remove(&link.index).is_some()
            }),
            libc::RTM_NEWADDR | libc::RTM_DELADDR => {
                Address::parse(message.body).is_some_and(|address| {
                    let there = message.kind == libc::RTM_NEWADDR && address.usable;
                    self.note_address(&address, there)
                })
            }
            libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => {
                Neighbour::parse(message.body).is_some_and(|neighbour| {
                    let there = message.kind == libc::RTM_NEWNEIGH;
                    self.note_neighbour(&neighbour, neighbour.mac.filter(|_| there))
                })
            }
            // A cloned route is one path's state, which the kernel notes for itself.
            libc::RTM_NEWROUTE | libc::RTM_DELROUTE => Route::parse(message.body)
                .is_some_and(|route| route.flags & libc::RTM_F_CLONED == 0),
            // Rules and next hops.
            _ => i32::from(message.kind) > libc::NLMSG_DONE,
        }
    }

    fn note_address(&mut self, address: &Address, there: bool) -> bool {
        let key = (address.interface, address.address);
        if there {
            let bits = address.prefix_bits;
            self.addresses.insert(key, bits) != Some(bits)
        } else {
            self.addresses.remove(&key).is_some()
        }
    }

    fn note_neighbour(&mut self, neighbour: &Neighbour, mac: Option<[u8; 6]>) -> bool {
        let key = (neighbour.interface, neighbour.address);
        match mac {
            Some(mac) => self.neighbours.insert(key, mac) != Some(mac),
            None => self.neighbours.remove(&key).is_some(),
        }
    }
}

/// Where datagrams go that nobody wants (RFC 863).
const DISCARD_PORT: u16 = 9;

const fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

const fn has(link: &Link, flags: i32) -> bool {
    link.flags & flags as u32 == flags as u32
}

fn ethernet_of(link: &Link) -> Option<[u8; 6]> {
    link.mac.filter(|_| link.hardware == libc::ARPHRD_ETHER)
}

/// The Ethernet address of a multicast group (RFC 1112 §6.4, RFC 2464 §7).
fn group_mac(group: IpAddr) -> [u8; 6] {
    match group {
        IpAddr::V4(group) => {
            let [_, b, c, d] = Ipv4Addr::octets(&group);
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(group) => {
            let [.., a, b, c, d] = Ipv6Addr::octets(&group);
            [0x33, 0x33, a, b, c, d]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_their_ethernet_addresses() {
        let mac = |group: &str| group_mac(group.parse().unwrap());
        assert_eq!(mac("239.129.2.3"), [0x01, 0x00, 0x5e, 1, 2, 3]);
        assert_eq!(mac("ff02::1:ff00:2"), [0x33, 0x33, 0xff, 0, 0, 2]);
    }
}
