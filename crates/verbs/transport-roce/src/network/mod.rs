//! What the transport knows of the host's network: routes and neighbours, and which interfaces it
//! serves past the kernel's stack.

pub mod demand;
pub mod directions;
pub mod path;

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use sluice_packet::Path;
use sluice_packet::routes::{Hop, Interface, RouteError, Routes};
use sluice_packet::udp::{Group, Members};
use sluice_sys::clock::now_ns;
use sluice_sys::errno::Errno;
use sluice_verbs::{Error, Result};
use sluice_wire::Mtu;
use sluice_xdp::Steering;

use crate::locks::lock;
use crate::network::demand::Demand;
use crate::network::directions::Directions;
use crate::network::path::{UDP_PORT, Way};

/// Bytes of a packet besides its payload, at most: IPv6, UDP, transport headers, ICRC.
const AROUND: u32 = 40 + 8 + 40 + 4;
/// Ways that are remembered. Datagrams to more peers than that are slower.
const WAYS_MAX: usize = 4096;
/// How often the kernel is asked whether neighbours are still there, which it does not see us
/// use.
const CONFIRM_NS: u64 = 10_000_000_000;

/// The host's network, as far as the transport looks at it.
pub struct Network {
    /// The code of the device's MTU, as the interfaces are now.
    mtu: AtomicU8,
    /// Interfaces may be served by AF_XDP.
    xdp: bool,
    descriptor: Option<RawFd>,
    /// Packets that came, ever.
    came: AtomicU64,
    state: Mutex<State>,
}

struct State {
    directions: Directions,
    hops: HashMap<(IpAddr, IpAddr, u32), Hop>,
    /// Interfaces that AF_XDP was tried on.
    tried: BTreeSet<u32>,
    served: Vec<Served>,
    /// Interfaces whose link went away when the program was attached.
    without_link: BTreeSet<u32>,
    /// The UDP sockets.
    group: Option<Group>,
    /// Of the sockets at one port each that has joined gets a datagram to a group: those of the first
    /// shard are enough.
    members: Option<Members>,
    blocks: Vec<u16>,
    confirmed: u64,
    demand: Demand,
}

/// An interface whose RoCEv2 packets come past the kernel's stack.
struct Served {
    steering: Steering,
    /// The first of its ports, among the shard's.
    port: usize,
}

impl Served {
    /// Whether the program sees packets in the kernel's generic code, which costs other traffic.
    fn is_generic(&self) -> bool {
        !self.steering.mode().native
    }
}

/// The largest MTU whose packets fit IP packets of so many bytes.
fn mtu_of(ip_bytes: u32) -> Mtu {
    let fits =
        |code: &u8| Mtu::from_code(*code).is_ok_and(|mtu| mtu.bytes() as u32 + AROUND <= ip_bytes);
    let code = (1..=5).rev().find(fits);
    code.and_then(|code| Mtu::from_code(code).ok())
        .unwrap_or(Mtu::Bytes256)
}

/// The MTU of the device: what every interface with an address can carry. One that is down counts only
/// while all are, so that the MTU is the same when it comes up again; the loopback interface counts
/// where it is alone.
fn device_mtu(interfaces: &[Interface]) -> Mtu {
    let least = |fits: &dyn Fn(&Interface) -> bool| {
        let usable = interfaces.iter().filter(|each| !each.addresses.is_empty());
        usable.filter(|each| fits(each)).map(|each| each.mtu).min()
    };
    let mtu = least(&|each| each.up && !each.loopback)
        .or_else(|| least(&|each| !each.loopback))
        .or_else(|| least(&|each| each.up));
    mtu_of(mtu.unwrap_or(1500))
}

/// An error of the routing table as the verbs' error.
fn unreachable(error: RouteError) -> Error {
    Error::System(match error {
        RouteError::NoRoute => Errno(libc::ENETUNREACH),
        RouteError::Prohibited => Errno(libc::EACCES),
        RouteError::ForeignSource => Errno(libc::EADDRNOTAVAIL),
        RouteError::NoInterface => Errno(libc::ENODEV),
        RouteError::System { errno, .. } => errno,
    })
}

/// Whether it means somebody else on each interface: link-local addresses, and groups, which need no
/// route.
fn is_of_interface(address: IpAddr) -> bool {
    address.is_multicast() || is_link_local(address)
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

impl Network {
    /// Looks at the network of the calling thread's namespace. `xdp`: interfaces are served by
    /// AF_XDP where that is possible.
    pub fn open(xdp: bool) -> core::result::Result<Self, RouteError> {
        let routes = Routes::open()?;
        Ok(Self::with(Directions::Kernel(Box::new(routes)), xdp))
    }

    /// A network that the first port reaches all of, in IP packets of so many bytes.
    pub fn everywhere(ip_bytes: u32) -> Self {
        Self::with(Directions::Everywhere { mtu: ip_bytes }, false)
    }

    fn with(directions: Directions, xdp: bool) -> Self {
        Self {
            mtu: AtomicU8::new(device_mtu(&directions.interfaces()).code()),
            xdp,
            descriptor: directions.descriptor(),
            state: Mutex::new(State {
                directions,
                hops: HashMap::new(),
                tried: BTreeSet::new(),
                served: Vec::new(),
                without_link: BTreeSet::new(),
                group: None,
                members: None,
                blocks: Vec::new(),
                confirmed: 0,
                demand: Demand::from_environment(),
            }),
            came: AtomicU64::new(0),
        }
    }

    /// Readable when something has changed. None: nothing ever changes.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.descriptor
    }

    /// Takes in what has changed. True: ways are to be looked up anew.
    pub fn process(&self) -> bool {
        let mut state = lock(&self.state);
        if !state.directions.process() {
            return false;
        }
        state.hops.clear();
        let mtu = device_mtu(&state.directions.interfaces());
        self.mtu.store(mtu.code(), Ordering::Relaxed);
        let own = state.own_addresses();
        for served in &mut state.served {
            // Addresses that cannot be steered come by the kernel.
            let _ = served.steering.set_addresses(&own);
        }
        true
    }

    /// Packets that the kernel takes come by these sockets, and datagrams to groups by those. In front of
    /// the first block.
    pub fn steer(&self, group: Group, members: Members) {
        let mut state = lock(&self.state);
        state.group = Some(group);
        state.members = Some(members);
    }

    /// A block of queue pair numbers is this process's now.
    pub fn add_block(&self, block: u16) {
        let mut state = lock(&self.state);
        state.blocks.push(block);
        if let Some(group) = &mut state.group {
            group.add_block(block);
        }
        for served in &mut state.served {
            // Packets that are not steered come by the kernel.
            let _ = served.steering.add_block(block);
        }
    }

    /// The port's MTU.
    pub fn mtu(&self) -> Mtu {
        Mtu::from_code(self.mtu.load(Ordering::Relaxed)).unwrap_or(Mtu::Bytes256)
    }

    /// The way of a path. `mtu`: the path MTU's code, or 0.
    pub fn way(&self, path: &Path, mtu: u32) -> Result<Way> {
        let mut state = lock(&self.state);
        let hop = state.hop(path).map_err(unreachable)?;
        if let Ok(mtu) = Mtu::from_code(mtu as u8)
            && mtu.bytes() as u32 + AROUND > hop.mtu
        {
            return Err(Error::BadValue);
        }
        Ok(state.way(path, &hop))
    }

    /// The way after a change. The old one, if there is none now: there may be one again soon.
    pub fn way_again(&self, way: &Way) -> Way {
        let mut state = lock(&self.state);
        match state.hop(&way.path) {
            Ok(hop) => state.way(&way.path, &hop),
            Err(_) => *way,
        }
    }

    /// Joins a group, or leaves it, on all interfaces that take part in multicast. Whether one did.
    pub fn join(&self, group: IpAddr, join: bool) -> bool {
        let state = lock(&self.state);
        let interfaces = state.directions.interfaces();
        let usable = interfaces
            .iter()
            .filter(|interface| interface.up && !interface.addresses.is_empty());
        let joined = usable.filter(|interface| match &state.members {
            Some(members) => members.join(group, interface.index, join).is_ok(),
            // Ports of somebody's own bring what they bring.
            None => true,
        });
        joined.count() > 0
    }

    /// The interface of a path, if it could be served by AF_XDP and nobody has tried.
    pub fn untried(&self, path: &Path) -> Option<u32> {
        if !self.xdp {
            return None;
        }
        let mut state = lock(&self.state);
        let hop = state.hop(path).ok().filter(|hop| !hop.local)?;
        let index = hop.interface;
        if !state.tried.insert(index) {
            return None;
        }
        let interfaces = state.directions.interfaces();
        let interface = interfaces.iter().find(|each| each.index == index)?;
        (interface.mac.is_some() && !interface.loopback).then_some(index)
    }

    /// An interface is served now, by ports from that one on.
    pub fn serve(&self, mut steering: Steering, port: usize) {
        let mut state = lock(&self.state);
        let _ = steering.set_addresses(&state.own_addresses());
        for block in &state.blocks {
            let _ = steering.add_block(*block);
        }
        state.demand.start(now_ns());
        state.served.push(Served { steering, port });
    }

    /// The link of an interface that is served has gone away with the program, or is there again.
    pub fn note_link(&self, interface: u32, is_there: bool) {
        let mut state = lock(&self.state);
        match is_there {
            true => state.without_link.remove(&interface),
            false => state.without_link.insert(interface),
        };
    }

    /// The interface of a way, if its link went away with the program.
    pub fn without_link(&self, way: &Way) -> Option<u32> {
        let index = way.path.interface;
        let state = lock(&self.state);
        state.without_link.contains(&index).then_some(index)
    }

    /// Somebody is about to send, or to receive: [`Network::steer_on_demand`] is to be called soon.
    pub fn expect_packets(&self) {
        lock(&self.state).demand.start(now_ns());
    }

    /// So many packets have come, by whatever port, that the XDP program would steer.
    pub fn note_came(&self, packets: usize) {
        self.came.fetch_add(packets as u64, Ordering::Relaxed);
    }

    /// Now and then: steers packets past the kernel's stack where that is worth what it costs others. By
    /// a thread of the namespace that this was opened in.
    /// When to look again at the latest; `u64::MAX`: when packets come.
    pub fn steer_on_demand(&self, now: u64) -> u64 {
        let mut state = lock(&self.state);
        if !state.served.iter().any(Served::is_generic) {
            return u64::MAX;
        }
        let until = state.demand.look(now, self.came.load(Ordering::Relaxed));
        let is_wanted = now < until;
        for served in state.served.iter().filter(|each| each.is_generic()) {
            served.steering.want(is_wanted);
        }
        if is_wanted { until } else { u64::MAX }
    }

    /// The interfaces that are served by AF_XDP, by their numbers.
    pub fn served(&self) -> Vec<u32> {
        let state = lock(&self.state);
        let each = state.served.iter();
        each.map(|served| served.steering.interface()).collect()
    }

    /// Now and then: has the kernel find out whether neighbours are still there.
    pub fn confirm(&self, now: u64) {
        let mut state = lock(&self.state);
        if state.served.is_empty() || now < state.confirmed + CONFIRM_NS {
            return;
        }
        state.confirmed = now;
        let neighbours: BTreeSet<(u32, IpAddr)> = state
            .hops
            .iter()
            .filter(|(_, hop)| hop.ethernet.is_some())
            .map(|((_, destination, _), hop)| (hop.interface, hop.gateway.unwrap_or(*destination)))
            .collect();
        for (interface, neighbour) in neighbours {
            state.directions.resolve(interface, neighbour);
        }
    }
}

impl State {
    fn own_addresses(&self) -> Vec<IpAddr> {
        let interfaces = self.directions.interfaces();
        let each = interfaces.iter().flat_map(|each| each.addresses.iter());
        each.map(|(address, _)| *address).collect()
    }

    fn hop(&mut self, path: &Path) -> core::result::Result<Hop, RouteError> {
        // Other addresses mean the same on every interface.
        let interface = match is_of_interface(path.destination) {
            true => path.interface,
            false => 0,
        };
        let key = (path.source, path.destination, interface);
        if let Some(hop) = self.hops.get(&key) {
            return Ok(*hop);
        }
        let hop = self
            .directions
            .lookup(path.source, path.destination, interface)?;
        if self.hops.len() >= WAYS_MAX {
            self.hops.clear();
        }
        self.hops.insert(key, hop);
        Ok(hop)
    }

    fn way(&self, path: &Path, hop: &Hop) -> Way {
        let interface = match hop.local {
            // To ourselves the kernel finds the way; a link-local address is of one interface.
            true => path.interface,
            false => hop.interface,
        };
        let mut way = Way {
            path: Path {
                interface,
                ethernet: None,
                ..*path
            },
            port: UDP_PORT,
            bulk: UDP_PORT,
        };
        let served = self
            .served
            .iter()
            .find(|served| !hop.local && served.steering.interface() == hop.interface);
        // Until the neighbour is known the kernel sends, and so finds it.
        if let (Some(served), Some(_)) = (served, hop.ethernet) {
            way.path.ethernet = hop.ethernet;
            way.port = served.port;
            // Where the kernel copies each packet, it does better with many at a time.
            if served.steering.mode().zero_copy {
                way.bulk = served.port;
            }
        }
        way
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_those_that_everybody_uses() {
        for (ip, wanted) in [
            (1500, Mtu::Bytes1024),
            (9000, Mtu::Bytes4096),
            (4200, Mtu::Bytes4096),
            (4187, Mtu::Bytes2048),
            (576, Mtu::Bytes256),
            (68, Mtu::Bytes256),
        ] {
            assert_eq!(mtu_of(ip), wanted, "{ip}");
        }
    }

    #[test]
    fn a_device_promises_what_its_smallest_interface_carries() {
        let interface = |mtu, loopback| Interface {
            index: 1,
            name: String::new(),
            mtu,
            up: true,
            loopback,
            mac: None,
            kind: None,
            addresses: vec![("192.0.2.1".parse().unwrap(), 24)],
        };
        let (lo, small, large) = (
            interface(65536, true),
            interface(1500, false),
            interface(9000, false),
        );
        let of =
            |list: &[&Interface]| device_mtu(&list.iter().copied().cloned().collect::<Vec<_>>());
        assert_eq!(of(&[&lo]), Mtu::Bytes4096);
        assert_eq!(of(&[&lo, &large]), Mtu::Bytes4096);
        assert_eq!(of(&[&lo, &large, &small]), Mtu::Bytes1024);
        let down = Interface { up: false, ..small };
        assert_eq!(of(&[&lo, &large, &down]), Mtu::Bytes4096);
        assert_eq!(of(&[&lo, &down]), Mtu::Bytes1024);
    }
}
