//! Taking connections of programs that cannot be preloaded, and showing them as they would be.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use sluice_sys::bpf::{AttachType, Code, Kind, Link, Map, Program, ProgramKind};
use sluice_sys::errno::Errno;

use crate::address::{self, canonical, field};
use crate::cgroup::Cgroup;
use crate::error::Error;
use crate::load::{self, Part};
use crate::rules::{PortMap, PortSet};
use crate::terms;

/// What clang made of `bpf/capture.bpf.c`, by the names of its functions.
macro_rules! parts {
    ($($name:ident: $kind:ident at $place:ident;)*) => {
        [$(Part {
            name: stringify!($name),
            code: {
                const CODE: Code =
                    include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs"));
                CODE
            },
            kind: ProgramKind::$kind,
            attach_type: AttachType::$place,
        }),*]
    };
}

/// In the order in which they are attached.
const PARTS: [Part; 6] = parts! {
    released: CgroupSocket at SocketRelease;
    follow: SocketOperations at SocketOperations;
    peer_v4: CgroupAddress at PeerName4;
    peer_v6: CgroupAddress at PeerName6;
    name_v4: CgroupAddress at SocketName4;
    name_v6: CgroupAddress at SocketName6;
};
/// Those that take connections come last, and so go first.
const TAKING: [Part; 2] = parts! {
    connect_v4: CgroupAddress at Connect4;
    connect_v6: CgroupAddress at Connect6;
};
/// The same, where the terms of a socket cannot be looked at.
const TAKING_BLINDLY: [Part; 2] = parts! {
    blind_v4: CgroupAddress at Connect4;
    blind_v6: CgroupAddress at Connect6;
};
/// Attached to nothing.
const LOOK: [Part; 1] = parts! {
    look: Classifier at Nowhere;
};

/// Sizes of structures of capture.bpf.c.
const LISTENER_BYTES: usize = 4;
const DESTINATION_BYTES: usize = 20;
const ROUTE_BYTES: usize = 16;
const ORIGINAL_BYTES: usize = 48;
const ARRIVAL_BYTES: usize = 32;
const TUPLE_BYTES: usize = 48;
const CLIENT_BYTES: usize = 20;
const NAME_BYTES: usize = 16;
/// Of a question to `look`, behind an Ethernet header.
const QUESTION_BYTES: usize = 36;
const ETHERNET_BYTES: usize = 14;
/// Of the header's two addresses nothing is said, and its type is one that nobody has (IEEE 802, for local experiments).
const ETHERNET_TYPE: [u8; 2] = [0x88, 0xb5];

/// Network namespaces with a listener.
const LISTENERS_MAX: u32 = 4096;
/// Sockets that are left alone, at once.
const EXEMPTED_MAX: u32 = 4096;
/// Processes that are left alone, at once.
const PROCESSES_MAX: u32 = 16 * 1024;
/// Programs that are chosen by name.
const NAMES_MAX: u32 = 1024;
/// Connections on behalf of clients that are not accepted yet.
const PENDING_MAX: u32 = 16 * 1024;
/// A listener has no more source ports than that: loopback's, of one destination.
const CONNECTIONS_MAX: u32 = 1 << 20;
const DESTINATIONS_MAX: u32 = 1 << 20;

/// What the programs count, in the order of capture.bpf.c.
enum Counter {
    Captured,
    Full,
    NoListener,
    Presented,
    OwnTerms,
}
const COUNTERS: u32 = 5;

/// Of `enum room` in capture.bpf.c.
const LIMIT: u32 = 0;

/// How much is kept. Kernel memory, about 200 bytes for each, is taken at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureOptions {
    /// How many captured sockets there can be at once, 1 to 1048576; those beyond go their own
    /// way. See [`Capture::set_limit`].
    pub connections_max: u32,
    /// How many destinations there can be, 1 to 1048576.
    pub destinations_max: u32,
    /// Whether to look for what programs have set for their sockets ([`Capture::sees_terms`]).
    pub sees_terms: bool,
}

impl Default for CaptureOptions {
    /// 16384 connections to 16384 destinations, and a look at what is set.
    fn default() -> Self {
        Self {
            connections_max: 16 * 1024,
            destinations_max: 16 * 1024,
            sees_terms: true,
        }
    }
}

/// Where captured connections of a network namespace arrive: ports of listeners at 127.0.0.1 and
/// `::1` in that namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listener {
    /// At 127.0.0.1. None: connections over IPv4 are left alone.
    pub v4: Option<u16>,
    /// At `::1`. None: connections over IPv6 are left alone.
    pub v6: Option<u16>,
}

/// Connections to where are captured: a peer that can do lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Its address; of a host, never one of loopback.
    pub address: IpAddr,
    /// None: all ports for which there is no destination of its own.
    pub port: Option<u16>,
    /// The address from which the kernel would connect there, which getsockname() shows instead
    /// of loopback. A UDP socket that is connected to the destination has it.
    pub source: Option<IpAddr>,
}

/// What a captured connection was to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Original {
    /// `SO_COOKIE` of the program's socket.
    pub cookie: u64,
    /// Where the program wanted to connect to.
    pub destination: SocketAddr,
    /// As the program sees its own end: the address that it has bound, or
    /// [`Destination::source`] if that was known. The port is that of the connection to the
    /// listener, and not reserved at this address.
    pub source: Option<SocketAddr>,
}

/// What the programs have done. On a busy host the numbers are of slightly different moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounters {
    /// Connections that were sent to the listener.
    pub captured: u64,
    /// Connections that were not, as there were too many already.
    pub full: u64,
    /// Connections that were not, as nobody listened.
    pub no_listener: u64,
    /// Accepted connections that show the client for whom they are.
    pub presented: u64,
    /// Connections that were not sent to the listener, as their program has set terms for them.
    pub own_terms: u64,
}

/// The attached programs. They are detached when this is dropped, and when the process ends: from
/// then on connections go their own way. Captured ones depend on who accepted them.
#[derive(Debug)]
pub struct Capture {
    /// Detached first, the last one first of all.
    links: Vec<Link>,
    listeners: Map,
    destinations: Map,
    ports: PortMap,
    processes: Map,
    names: Map,
    room: Map,
    exempted: Map,
    arrivals: Map,
    pending: Map,
    counters: Map,
    /// Looks at the terms of listening sockets. None: the kernel does not say where they are.
    look: Option<Program>,
    connections_max: u32,
    /// What the map holds.
    held: HashMap<[u8; DESTINATION_BYTES], [u8; ROUTE_BYTES]>,
    destinations_max: u32,
}

impl Drop for Capture {
    fn drop(&mut self) {
        while self.links.pop().is_some() {}
    }
}

impl Capture {
    /// Attaches the programs to a cgroup. Nothing is captured before there are a listener and
    /// destinations. Attach before opening the listeners: descriptors of a process that dies are
    /// closed in the order of their numbers, so the programs go before the listeners do.
    pub fn attach(cgroup: &Cgroup, options: &CaptureOptions) -> Result<Self, Error> {
        if !(1..=CONNECTIONS_MAX).contains(&options.connections_max)
            || !(1..=DESTINATIONS_MAX).contains(&options.destinations_max)
        {
            return Err(Error::Invalid {
                why: "connections_max and destinations_max must be from 1 to 1048576",
            });
        }
        let connections = options.connections_max;
        let originals = load::map(
            "sluice_originals",
            Kind::Hash,
            8,
            ORIGINAL_BYTES,
            connections,
        )?;
        let clients = load::map(
            "sluice_clients",
            Kind::LruHash,
            8,
            CLIENT_BYTES,
            connections,
        )?;
        let mut capture = Self {
            links: Vec::new(),
            listeners: load::map(
                "sluice_listeners",
                Kind::Hash,
                8,
                LISTENER_BYTES,
                LISTENERS_MAX,
            )?,
            destinations: load::map(
                "sluice_destinations",
                Kind::Hash,
                DESTINATION_BYTES,
                ROUTE_BYTES,
                options.destinations_max,
            )?,
            ports: PortMap::new()?,
            processes: load::map("sluice_processes", Kind::LruHash, 4, 1, PROCESSES_MAX)?,
            names: load::map("sluice_names", Kind::Hash, NAME_BYTES, 1, NAMES_MAX + 1)?,
            room: load::map("sluice_room", Kind::Array, 4, 8, 2)?,
            exempted: load::map("sluice_exempted", Kind::LruHash, 8, 1, EXEMPTED_MAX)?,
            arrivals: load::map(
                "sluice_arrivals",
                Kind::LruHash,
                ARRIVAL_BYTES,
                ORIGINAL_BYTES,
                // The kernel may begin to forget before such a map is full.
                connections.saturating_mul(2),
            )?,
            pending: load::map(
                "sluice_pending",
                Kind::LruHash,
                TUPLE_BYTES,
                CLIENT_BYTES,
                PENDING_MAX,
            )?,
            counters: load::counters(COUNTERS)?,
            look: None,
            connections_max: connections,
            held: HashMap::new(),
            destinations_max: options.destinations_max,
        };
        capture.ports.set(&PortSet::all())?;
        capture.set_limit(connections)?;
        let places = options.sees_terms.then(terms::places).flatten();
        let terms = load::map(
            "sluice_terms",
            Kind::Array,
            4,
            terms::TERM_BYTES,
            terms::TERMS_MAX,
        )?;
        for (index, place) in (0_u32..).zip(places.iter().flatten()) {
            terms
                .set(&index.to_ne_bytes(), place)
                .map_err(Error::system("bpf(BPF_MAP_UPDATE_ELEM), a term"))?;
        }
        let maps = [
            ("listeners", &capture.listeners),
            ("destinations", &capture.destinations),
            ("ports", capture.ports.map()),
            ("processes", &capture.processes),
            ("names", &capture.names),
            ("terms", &terms),
            ("room", &capture.room),
            ("exempted", &capture.exempted),
            ("originals", &originals),
            ("arrivals", &capture.arrivals),
            ("pending", &capture.pending),
            ("clients", &clients),
            ("counters", &capture.counters),
        ];
        let taking = if places.is_some() {
            &TAKING
        } else {
            &TAKING_BLINDLY
        };
        let look = match places {
            Some(_) => Some(load::load(&LOOK[0], 0, &maps)?),
            None => None,
        };
        let mut links = Vec::new();
        for part in PARTS.iter().chain(taking) {
            links.push(load::attach(cgroup, part, &maps)?);
        }
        capture.look = look;
        capture.links = links;
        Ok(capture)
    }

    /// Whether connections and listeners are recognised for which a program has set terms of its own: keys (TCP-MD5,
    /// TCP-AO), a TTL or the lowest that it takes (RFC 5082), IP options. If not, the kernel has no BTF
    /// (CONFIG_DEBUG_INFO_BTF); then such a connection is captured as others are.
    pub const fn sees_terms(&self) -> bool {
        self.look.is_some()
    }

    /// Whether the socket in the calling thread's network namespace that would accept a connection `from` one address `to`
    /// another one has such terms: the daemon must not connect there in a client's place. False if nobody listens, and
    /// where [`Capture::sees_terms`] is.
    pub fn has_terms(&self, from: SocketAddr, to: SocketAddr) -> Result<bool, Error> {
        let Some(look) = &self.look else {
            return Ok(false);
        };
        let (from, to) = (canonical(from), canonical(to));
        let mut asked = [0; ETHERNET_BYTES + QUESTION_BYTES];
        let (header, question) = asked.split_at_mut(ETHERNET_BYTES);
        header[12..].copy_from_slice(&ETHERNET_TYPE);
        question[..16].copy_from_slice(&address::bytes(from.ip()));
        question[16..32].copy_from_slice(&address::bytes(to.ip()));
        question[32..34].copy_from_slice(&from.port().to_be_bytes());
        question[34..].copy_from_slice(&to.port().to_be_bytes());
        look.run(&asked)
            .map(|found| found != 0)
            .map_err(Error::system("bpf(BPF_PROG_TEST_RUN)"))
    }

    /// Of captured sockets there can be so many at once from now on, in all network namespaces, and no more than the options
    /// say. Those beyond go their own way. All connections to a listener share the ephemeral ports of one address
    /// (ip_local_port_range of ip(7)), and connect() fails for who finds none: keep well below.
    pub fn set_limit(&self, connections: u32) -> Result<(), Error> {
        let limit = u64::from(connections.min(self.connections_max));
        self.room
            .set(&LIMIT.to_ne_bytes(), &limit.to_ne_bytes())
            .map_err(Error::system("bpf(BPF_MAP_UPDATE_ELEM), the limit"))
    }

    /// Captured connections of programs in the network namespace `netns`
    /// ([`sluice_sys::tcp::netns_cookie`] of a socket there) go to this listener, or to another
    /// one than before.
    pub fn set_listener(&self, netns: u64, listener: Listener) -> Result<(), Error> {
        let port = |port: Option<u16>| port.unwrap_or(0).to_be_bytes();
        let [a, b] = port(listener.v4);
        let [c, d] = port(listener.v6);
        let set = self.listeners.set(&netns.to_ne_bytes(), &[a, b, c, d]);
        set.map_err(|errno| match errno.0 {
            libc::E2BIG => Error::Full {
                what: "network namespaces with a listener",
                limit: LISTENERS_MAX,
            },
            _ => Error::system("bpf(BPF_MAP_UPDATE_ELEM), a listener")(errno),
        })
    }

    /// Leaves new connections in this network namespace alone.
    pub fn remove_listener(&self, netns: u64) -> Result<(), Error> {
        gone(self.listeners.remove(&netns.to_ne_bytes()))
    }

    /// Captures connections to these destinations and to no others. Those that stay do so without
    /// a gap. On an error some of the changes are made; calling it again goes on.
    pub fn set_destinations(&mut self, destinations: &[Destination]) -> Result<(), Error> {
        let mut wanted = HashMap::new();
        for destination in destinations {
            let (key, route) = parse(destination)?;
            wanted.insert(key, route);
        }
        if wanted.len() > self.destinations_max as usize {
            return Err(self.full());
        }
        let stale = |key: &&[u8; DESTINATION_BYTES]| !wanted.contains_key(*key);
        let stale: Vec<_> = self.held.keys().filter(stale).copied().collect();
        for key in stale {
            gone(self.destinations.remove(&key))?;
            self.held.remove(&key);
        }
        for (key, route) in wanted {
            self.put(key, route)?;
        }
        Ok(())
    }

    /// Captures connections to this destination too; one that is there gets this source.
    pub fn add_destination(&mut self, destination: &Destination) -> Result<(), Error> {
        let (key, route) = parse(destination)?;
        self.put(key, route)
    }

    /// Leaves new connections to this destination alone. False: there was no such destination.
    pub fn remove_destination(
        &mut self,
        address: IpAddr,
        port: Option<u16>,
    ) -> Result<bool, Error> {
        let key = destination_key(address, port);
        gone(self.destinations.remove(&key))?;
        Ok(self.held.remove(&key).is_some())
    }

    /// Of connections to the destinations, captures those to these ports; all, at first.
    pub fn set_ports(&mut self, ports: &PortSet) -> Result<(), Error> {
        self.ports.set(ports)
    }

    /// Of connections to the destinations, captures those of programs with these names only: as the
    /// kernel has them (proc_pid_comm(5)), 1 to 15 bytes each, 1024 at most. To be called once.
    pub fn set_programs(&self, names: &[String]) -> Result<(), Error> {
        if names.len() > NAMES_MAX as usize {
            return Err(Error::Full {
                what: "programs that are chosen by name",
                limit: NAMES_MAX,
            });
        }
        let mut keys = vec![[0; NAME_BYTES]];
        for name in names {
            let mut key = [0; NAME_BYTES];
            match key.get_mut(..name.len()) {
                Some(bytes) if (1..NAME_BYTES).contains(&name.len()) => {
                    bytes.copy_from_slice(name.as_bytes());
                }
                _ => {
                    return Err(Error::Invalid {
                        why: "the kernel's name of a program has 1 to 15 bytes",
                    });
                }
            }
            keys.push(key);
        }
        for key in keys {
            self.names
                .set(&key, &[1])
                .map_err(Error::system("bpf(BPF_MAP_UPDATE_ELEM), a name"))?;
        }
        Ok(())
    }

    /// Leaves all connections of a process alone, by its number in the first PID namespace; of as
    /// many as there can be, the last 16384 are remembered.
    pub fn leave_process(&self, process: u32) -> Result<(), Error> {
        self.processes
            .set(&process.to_ne_bytes(), &[1])
            .map_err(Error::system("bpf(BPF_MAP_UPDATE_ELEM), a process"))
    }

    /// Captures its connections, as all others'.
    pub fn forget_process(&self, process: u32) -> Result<(), Error> {
        gone(self.processes.remove(&process.to_ne_bytes()))
    }

    fn put(&mut self, key: [u8; DESTINATION_BYTES], route: [u8; ROUTE_BYTES]) -> Result<(), Error> {
        if self.held.get(&key) == Some(&route) {
            return Ok(());
        }
        match self.destinations.set(&key, &route) {
            Ok(()) => {
                self.held.insert(key, route);
                Ok(())
            }
            Err(Errno(libc::E2BIG)) => Err(self.full()),
            Err(errno) => Err(Error::system("bpf(BPF_MAP_UPDATE_ELEM), a destination")(
                errno,
            )),
        }
    }

    const fn full(&self) -> Error {
        Error::Full {
            what: "destinations",
            limit: self.destinations_max,
        }
    }

    /// Leaves a socket alone, by its cookie ([`sluice_sys::tcp::cookie`]): for the daemon's own
    /// connections, where it is in the cgroup itself. To be called right before connect(); the
    /// last 4096 are remembered.
    pub fn exempt(&self, cookie: u64) -> Result<(), Error> {
        self.exempted
            .set(&cookie.to_ne_bytes(), &[1])
            .map_err(Error::system("bpf(BPF_MAP_UPDATE_ELEM), a socket"))
    }

    /// What an accepted connection was to be: `remote` and `local` are getpeername() and
    /// getsockname() of the socket that the listener in the network namespace `netns` gave. It is told
    /// once. None: it was not captured (somebody has connected to the listener itself), or so many were
    /// meanwhile that this one was forgotten.
    pub fn take_original(
        &self,
        netns: u64,
        remote: SocketAddr,
        local: SocketAddr,
    ) -> Result<Option<Original>, Error> {
        let (remote, local) = (canonical(remote), canonical(local));
        let mut key = [0; ARRIVAL_BYTES];
        key[..8].copy_from_slice(&netns.to_ne_bytes());
        key[8..24].copy_from_slice(&address::bytes(remote.ip()));
        key[24..26].copy_from_slice(&remote.port().to_be_bytes());
        key[26..28].copy_from_slice(&local.port().to_be_bytes());
        let mut value = [0; ORIGINAL_BYTES];
        let found = self
            .arrivals
            .get(&key, &mut value)
            .map_err(Error::system("bpf(BPF_MAP_LOOKUP_ELEM)"))?;
        if found {
            // The next connection from that port may be to the listener itself.
            let _ = self.arrivals.remove(&key);
        }
        Ok(found.then(|| parse_original(&value, remote)).flatten())
    }

    /// Has the program that accepts the connection from `from` to `to`, in the network namespace
    /// `netns`, see `client` as its peer. To be called between bind() and connect() of a socket of
    /// the daemon's, which gives its own address as `from`. The server's cgroup must be below that
    /// of this object. An IPv4 client is shown by sockets of both families, an IPv6 client only
    /// by those of IPv6.
    pub fn present(
        &self,
        netns: u64,
        from: SocketAddr,
        to: SocketAddr,
        client: SocketAddr,
    ) -> Result<(), Error> {
        let client = canonical(client);
        let mut value = [0; CLIENT_BYTES];
        value[..16].copy_from_slice(&address::bytes(client.ip()));
        value[16..18].copy_from_slice(&client.port().to_be_bytes());
        self.pending
            .set(&tuple(netns, from, to), &value)
            .map_err(Error::system("bpf(BPF_MAP_UPDATE_ELEM), a client"))
    }

    /// Takes back what [`Capture::present`] said, if no connection has come of it. To be called
    /// when connect() has failed, or the connection has ended.
    pub fn withdraw(&self, netns: u64, from: SocketAddr, to: SocketAddr) -> Result<(), Error> {
        gone(self.pending.remove(&tuple(netns, from, to)))
    }

    /// What the programs have done since they were attached.
    pub fn counters(&self) -> Result<CaptureCounters, Error> {
        let sum = |counter: Counter| load::counter(&self.counters, counter as u32);
        Ok(CaptureCounters {
            captured: sum(Counter::Captured)?,
            full: sum(Counter::Full)?,
            no_listener: sum(Counter::NoListener)?,
            presented: sum(Counter::Presented)?,
            own_terms: sum(Counter::OwnTerms)?,
        })
    }
}

/// A key that was not there is as good as one that was removed.
fn gone(removed: Result<(), Errno>) -> Result<(), Error> {
    match removed {
        Ok(()) | Err(Errno(libc::ENOENT)) => Ok(()),
        Err(errno) => Err(Error::system("bpf(BPF_MAP_DELETE_ELEM)")(errno)),
    }
}

fn destination_key(address: IpAddr, port: Option<u16>) -> [u8; DESTINATION_BYTES] {
    let mut key = [0; DESTINATION_BYTES];
    key[..16].copy_from_slice(&address::bytes(address));
    key[16..18].copy_from_slice(&port.unwrap_or(0).to_be_bytes());
    key
}

fn parse(destination: &Destination) -> Result<([u8; DESTINATION_BYTES], [u8; ROUTE_BYTES]), Error> {
    let address = destination.address.to_canonical();
    // The daemon's listener is at loopback, and so is whatever programs of a host say to each
    // other there.
    if address.is_loopback() || address.is_unspecified() {
        return Err(Error::Invalid {
            why: "the address of a destination must be that of a host, not of loopback",
        });
    }
    let source = destination.source.map(|source| source.to_canonical());
    if source.is_some_and(|source| source.is_ipv4() != address.is_ipv4()) {
        return Err(Error::Invalid {
            why: "the source of a destination must be of the family of its address",
        });
    }
    let route = source.map_or([0; ROUTE_BYTES], address::bytes);
    Ok((destination_key(address, destination.port), route))
}

fn tuple(netns: u64, from: SocketAddr, to: SocketAddr) -> [u8; TUPLE_BYTES] {
    let (from, to) = (canonical(from), canonical(to));
    let mut key = [0; TUPLE_BYTES];
    key[..8].copy_from_slice(&netns.to_ne_bytes());
    key[8..24].copy_from_slice(&address::bytes(from.ip()));
    key[24..40].copy_from_slice(&address::bytes(to.ip()));
    key[40..42].copy_from_slice(&from.port().to_be_bytes());
    key[42..44].copy_from_slice(&to.port().to_be_bytes());
    key
}

fn parse_original(value: &[u8; ORIGINAL_BYTES], remote: SocketAddr) -> Option<Original> {
    let address = address::parse(field(value, 8)?);
    let route = address::parse(field(value, 24)?);
    let source = if remote.ip().is_loopback() {
        (!route.is_unspecified()).then(|| SocketAddr::new(route, remote.port()))
    } else {
        // The program has bound its socket.
        Some(remote)
    };
    Some(Original {
        cookie: u64::from_ne_bytes(field(value, 0)?),
        destination: SocketAddr::new(address, u16::from_be_bytes(field(value, 40)?)),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_without_sense_are_refused() {
        let destination = |address: &str, source: Option<&str>| Destination {
            address: address.parse().unwrap(),
            port: None,
            source: source.map(|text| text.parse().unwrap()),
        };
        for wrong in [
            destination("127.0.0.1", None),
            destination("::1", None),
            destination("::ffff:127.0.0.1", None),
            destination("0.0.0.0", None),
            destination("10.0.0.1", Some("2001:db8::1")),
            destination("2001:db8::1", Some("10.0.0.1")),
        ] {
            assert!(
                matches!(parse(&wrong), Err(Error::Invalid { .. })),
                "{wrong:?}"
            );
        }
        let mapped = parse(&destination("::ffff:10.0.0.1", Some("10.0.0.2")));
        assert_eq!(mapped, parse(&destination("10.0.0.1", Some("10.0.0.2"))));
    }

    #[test]
    fn an_original_is_read() {
        let mut value = [0; ORIGINAL_BYTES];
        value[..8].copy_from_slice(&7_u64.to_ne_bytes());
        value[8..24].copy_from_slice(&address::bytes("10.0.0.1".parse().unwrap()));
        value[40..42].copy_from_slice(&[0, 80]);
        let without = Original {
            cookie: 7,
            destination: "10.0.0.1:80".parse().unwrap(),
            source: None,
        };
        let remote = "127.0.0.1:4000".parse().unwrap();
        assert_eq!(parse_original(&value, remote), Some(without));
        let bound = "10.0.0.3:4000".parse().unwrap();
        let source = Some(bound);
        let with = Original { source, ..without };
        assert_eq!(parse_original(&value, bound), Some(with));
        value[24..40].copy_from_slice(&address::bytes("10.0.0.2".parse().unwrap()));
        let source = Some("10.0.0.2:4000".parse().unwrap());
        let with = Original { source, ..without };
        assert_eq!(parse_original(&value, remote), Some(with));
    }
}
