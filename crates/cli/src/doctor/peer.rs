//! A pair of hosts: what lies between this one and another, from the route to the fabric. Each step
//! stands on the one before, and what cannot be found out without it is left out.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, ip_mtu, ipv6_mtu, set_ip_mtu_discover,
    set_ipv6_mtu_discover,
};
use sluice_peering::config::{Discovery, Network, PORT_DEFAULT};
use sluice_peering::{Config, Event, Identity, Peering};

use super::Check;
use crate::document::{Fabric, Handshakes, Peer};
use crate::error::reason;
use crate::status::Source;
use crate::units;

/// How long something on the way may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the answer to a datagram may take, and how often it is asked for.
const ANSWER: Duration = Duration::from_millis(500);
const TRIES: u32 = 3;
/// Connections that are made to learn the round trip.
const ROUNDS: u32 = 5;
/// The UDP port of RoCEv2 (IBTA annex A17.3).
const ROCE_PORT: u16 = 4791;
/// Headers of an IP packet with a datagram (RFC 791, RFC 8200, RFC 768).
const HEADERS_V4: usize = 28;
const HEADERS_V6: usize = 48;
/// What every path carries (RFC 791: 576 with its header; RFC 8200: 1,280).
const SMALL: usize = 256;
/// RoCEv2 packets of 1,024 bytes of payload, the largest that fit into Ethernet's 1,500, and of
/// 4,096 with all headers.
const MTU_OF_4096: u32 = 4096 + 98;

/// Every check of the pair. `address`: of the other host, or of its daemon with the port.
pub fn checks(address: &str, config: Option<&Path>, socket: Option<&Path>) -> Vec<Check> {
    let config = match config.map(Config::load).transpose() {
        Ok(config) => config,
        Err(error) => {
            return vec![Check::missing(
                "configuration",
                error.to_string(),
                "correct it; 'sluice up --config FILE --check' says what else is wrong",
            )];
        }
    };
    let target = match resolve(address, config.as_ref()) {
        Ok(target) => target,
        Err(check) => return vec![check],
    };
    let mut checks = Vec::new();
    match route(target.ip()) {
        Ok(check) => checks.push(check),
        Err(check) => return vec![check],
    }
    let known = known(target.ip(), socket);
    match control(target) {
        Ok((stream, check)) => {
            checks.push(check);
            checks.push(path(&stream, target.ip()));
        }
        Err(check) => checks.push(check),
    }
    checks.push(session(target, known.as_ref(), config));
    checks.push(roce(target.ip(), known.as_ref()));
    let seen = known
        .as_ref()
        .and_then(|known| known.fabric.option.as_ref());
    checks.extend(seen.map(option));
    checks
}

/// An address, a host's name, or either with a port.
fn resolve(text: &str, config: Option<&Config>) -> Result<SocketAddr, Check> {
    let named = config.and_then(|config| config.peer(text));
    if let Some(peer) = named {
        return Ok(peer.control);
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        let at = config.and_then(|config| config.peer_at(address));
        return Ok(at.map_or(SocketAddr::new(address, PORT_DEFAULT), |peer| peer.control));
    }
    let found = if let Ok(address) = text.parse::<SocketAddr>() {
        Ok(Some(address))
    } else if text.contains(':') {
        text.to_socket_addrs().map(|mut all| all.next())
    } else {
        (text, PORT_DEFAULT)
            .to_socket_addrs()
            .map(|mut all| all.next())
    };
    match found {
        Ok(Some(address)) => Ok(address),
        Ok(None) | Err(_) => Err(Check::missing(
            "address",
            format!("{text} is no address, and no host of that name is known"),
            "give the address of the other host, with the port of its sluiced if it is not 4797",
        )),
    }
}

/// Any address of the same family, and any port.
fn any(of: IpAddr) -> SocketAddr {
    match of {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0_u16; 8], 0).into(),
    }
}

fn route(peer: IpAddr) -> Result<Check, Check> {
    const NAME: &str = "route";
    let found = UdpSocket::bind(any(peer)).and_then(|socket| {
        socket.connect((peer, ROCE_PORT))?;
        socket.local_addr()
    });
    match found {
        Ok(own) if own.ip() == peer => Err(Check::missing(
            NAME,
            format!("{peer} is an address of this host"),
            "give that of another one; on one host lanes need no peer",
        )),
        Ok(own) => Ok(Check::ok(
            NAME,
            format!("{peer} is reached from {}", own.ip()),
        )),
        Err(error) => Err(Check::missing(
            NAME,
            format!("none to {peer}: {}", reason(&error)),
            "look at 'ip route get' for this address, and whether the interface is up",
        )),
    }
}

/// A connection to the daemon's port, and the round trip.
fn control(target: SocketAddr) -> Result<(TcpStream, Check), Check> {
    const NAME: &str = "control port";
    let mut fastest = Duration::MAX;
    let mut last = None;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        match TcpStream::connect_timeout(&target, PATIENCE) {
            Ok(stream) => {
                fastest = fastest.min(started.elapsed());
                last = Some(stream);
            }
            Err(error) => {
                let hint = match error.kind() {
                    io::ErrorKind::ConnectionRefused => {
                        "start sluiced there with a configuration ('sluice up --config FILE'), or \
                         look which port its `listen` has"
                    }
                    io::ErrorKind::TimedOut => {
                        "a firewall drops it, or the host is off: let TCP through to this port"
                    }
                    _ => "look at firewalls and routes on both hosts",
                };
                let found = format!("{target}: {}", reason(&error));
                return Err(Check::missing(NAME, found, hint));
            }
        }
    }
    let Some(stream) = last else {
        return Err(Check::missing(NAME, "not tried", ""));
    };
    let found = format!(
        "somebody listens at {target}; a round trip takes {} µs at best, with the kernel's TCP",
        fastest.as_micros()
    );
    Ok((stream, Check::ok(NAME, found)))
}

/// What came back for a datagram to a port where nobody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Echo {
    /// It has arrived: the host said that nobody is there (ICMP).
    Arrived,
    /// Something on the way has said that it is too large.
    TooLarge,
    Forbidden,
    Silence,
}

/// Sends datagrams of so many bytes, whole or not at all.
fn probe(peer: SocketAddr, bytes: usize) -> io::Result<Echo> {
    let socket = UdpSocket::bind(any(peer.ip()))?;
    socket.connect(peer)?;
    match peer {
        SocketAddr::V4(_) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)?,
        SocketAddr::V6(_) => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO)?,
    }
    socket.set_read_timeout(Some(ANSWER))?;
    let datagram = vec![0; bytes];
    for _ in 0..TRIES {
        // What the former one met is told by the next call.
        let met = socket.send(&datagram).err();
        let met = met.or_else(|| socket.recv(&mut [0; 16]).err());
        let Some(error) = met else {
            continue;
        };
        match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => return Ok(Echo::Arrived),
            Some(libc::EMSGSIZE) => return Ok(Echo::TooLarge),
            Some(libc::EACCES | libc::EPERM | libc::EHOSTUNREACH) => return Ok(Echo::Forbidden),
            _ => {}
        }
    }
    Ok(Echo::Silence)
}

/// Whether packets as large as this host sends get there.
fn path(stream: &TcpStream, peer: IpAddr) -> Check {
    const NAME: &str = "path MTU";
    let (mtu, headers) = match peer {
        IpAddr::V4(_) => (ip_mtu(stream), HEADERS_V4),
        IpAddr::V6(_) => (ipv6_mtu(stream), HEADERS_V6),
    };
    let mtu = match mtu {
        Ok(mtu) => mtu,
        Err(error) => {
            return Check::note(NAME, format!("not known: {}", reason(&error.into())), "");
        }
    };
    // TCP's port for the daemon is nobody's as a rule where UDP is concerned.
    let at = SocketAddr::new(peer, PORT_DEFAULT);
    let whole = probe(at, (mtu as usize).saturating_sub(headers));
    let small = probe(at, SMALL);
    match (whole, small) {
        (Ok(Echo::Arrived), _) if mtu >= MTU_OF_4096 => {
            Check::ok(NAME, format!("packets of {mtu} bytes get there"))
        }
        (Ok(Echo::Arrived), _) => Check::ok(
            NAME,
            format!(
                "packets of {mtu} bytes get there; {MTU_OF_4096} or more would let RoCEv2 carry \
                 4096 bytes in each"
            ),
        ),
        (Ok(Echo::TooLarge), _) => Check::note(
            NAME,
            format!("a packet of {mtu} bytes is too large for something on the way"),
            "set the MTU of this host's interface to what the path has: RoCEv2 packets are not cut",
        ),
        (Ok(Echo::Silence), Ok(Echo::Arrived)) => Check::missing(
            NAME,
            format!("packets of {mtu} bytes get lost on the way, small ones do not"),
            "set the MTU of the interfaces of both hosts to what the switches between them carry",
        ),
        _ => Check::note(
            NAME,
            format!("{mtu} bytes by what this host knows; nothing answers, so it was not tried"),
            "a firewall drops UDP or the answers (ICMP); see the fabric below",
        ),
    }
}

/// What this host's daemon knows of that one.
struct Known {
    fabric: Fabric,
    peer: Option<Peer>,
}

fn known(peer: IpAddr, socket: Option<&Path>) -> Option<Known> {
    let answers = Source::new(socket, false).ok()?.ask();
    let fabrics = answers
        .into_iter()
        .filter_map(|answer| answer.document?.fabric);
    let mut known: Vec<Known> = fabrics
        .map(|fabric| {
            let is_it = |it: &&Peer| {
                let address = it.address.as_deref().map(str::parse::<SocketAddr>);
                matches!(address, Some(Ok(address)) if address.ip().to_canonical() == peer)
            };
            let peer = fabric.peers.iter().find(is_it).cloned();
            Known { fabric, peer }
        })
        .collect();
    known.sort_by_key(|known| known.peer.as_ref().is_none_or(|peer| !peer.is_up));
    known.into_iter().next()
}

/// Whether the two daemons believe each other.
fn session(target: SocketAddr, known: Option<&Known>, config: Option<Config>) -> Check {
    const NAME: &str = "session";
    if let Some(peer) = known.and_then(|known| known.peer.as_ref())
        && peer.is_up
    {
        return Check::ok(
            NAME,
            format!(
                "this host's sluiced talks to {}, {}, for {} now",
                peer.name,
                peer.software.as_deref().unwrap_or("of an unknown version"),
                units::seconds(peer.up_s.unwrap_or(0)),
            ),
        );
    }
    let Some(config) = config else {
        return Check::missing(
            NAME,
            match known {
                Some(_) => "this host's sluiced does not talk to that one",
                None => "no sluiced with a configuration runs here that may be asked",
            },
            "give the configuration with --config FILE to see what they say to each other, and \
             start sluiced with it ('sluice up --config FILE')",
        );
    };
    match handshake(target, config) {
        Ok(found) if known.is_some() => Check::note(
            NAME,
            format!("{found}; this host's sluiced does not talk to it yet"),
            "it tries again by itself, within a minute at most",
        ),
        Ok(found) => Check::missing(
            NAME,
            format!("{found}, but no sluiced with a configuration runs here"),
            "start it with 'sluice up --config FILE'",
        ),
        Err(why) => Check::missing(
            NAME,
            why,
            "'sluice up --config FILE --check' looks at a configuration; do it on both hosts",
        ),
    }
}

/// Begins a session of its own, as this host's daemon would, and ends it.
fn handshake(target: SocketAddr, mut config: Config) -> Result<String, String> {
    let identity = Identity::load(&config).map_err(|error| error.to_string())?;
    config.listen.clear();
    let ip = target.ip().to_canonical();
    config
        .peers
        .retain(|peer| peer.control == target || peer.addresses.iter().any(|it| it.contains(ip)));
    for peer in &mut config.peers {
        peer.control = target;
    }
    config.discovery = Discovery {
        enabled: config.peers.is_empty(),
        networks: vec![Network::single(ip)],
        port: target.port(),
        option: false,
        cgroup: None,
    };
    let mut peering = Peering::new(config, identity).map_err(|error| error.to_string())?;
    let started = Instant::now();
    peering.seek(ip, started);
    let mut outcome = None;
    while outcome.is_none() && started.elapsed() < PATIENCE {
        let now = Instant::now();
        peering.advance(now, &mut |event| match event {
            Event::Up { name, software, .. } => {
                outcome = Some(Ok(format!("{name} believes this host, {software}")));
            }
            Event::Unreachable { why, .. } | Event::Down { why, .. } => {
                outcome.get_or_insert(Err(why.to_string()));
            }
            Event::Address { .. } | Event::Message { .. } => {}
        });
        if outcome.is_none() {
            wait(&peering, started + PATIENCE);
        }
    }
    peering.close();
    outcome.unwrap_or_else(|| Err("the other daemon does not answer in time".to_owned()))
}

fn wait(peering: &Peering, until: Instant) {
    let due = peering.next_deadline().map_or(until, |due| due.min(until));
    let left = due.saturating_duration_since(Instant::now());
    let timeout = Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    let fd = peering.fd();
    // An interrupted wait is a short one.
    let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout));
}

/// Whether the option in handshakes does what it is for.
fn option(seen: &Handshakes) -> Check {
    const NAME: &str = "handshake option";
    if !seen.in_use {
        return Check::note(
            NAME,
            format!(
                "not used: {}",
                seen.reason.as_deref().unwrap_or("no reason is known")
            ),
            "hosts are found by asking each, which takes a connection to each; or leave option out \
             of [discovery]",
        );
    }
    let found = format!(
        "{} connections found the other end, {} did not",
        units::count(seen.can),
        units::count(seen.cannot + seen.echoed + seen.foreign + seen.unheard),
    );
    let hint = if seen.echoed > 0 {
        "something on the way sends options back that it does not know; hosts behind it are not \
         found: name them as [[peer]]"
    } else if seen.unheard > 0 {
        "something on the way may drop SYNs with options that it does not know, which costs a \
         second: 'sluice status' says how many; leave option out of [discovery] if there are more"
    } else if seen.foreign > 0 {
        "hosts with another key answer: give all the same one, or leave it at that"
    } else {
        return Check::ok(NAME, found);
    };
    Check::note(NAME, found, hint)
}

/// Whether the fabric gets through.
fn roce(peer: IpAddr, known: Option<&Known>) -> Check {
    const NAME: &str = "fabric";
    if let Some(Known {
        fabric,
        peer: Some(peer),
    }) = known
        && peer.is_up
    {
        let how = by_what(&fabric.device, &fabric.address);
        return match peer.link.as_str() {
            "up" => Check::ok(
                NAME,
                format!(
                    "messages get through, {how}; {}, {} sent, {} received, {} failures so far",
                    units::plural(peer.lanes, "lane"),
                    units::bytes(peer.sent_bytes),
                    units::bytes(peer.received_bytes),
                    peer.link_losses,
                ),
            ),
            _ => Check::missing(
                NAME,
                format!(
                    "no message gets through, {how}{}{}",
                    if peer.link_failure.is_some() {
                        ": "
                    } else {
                        ""
                    },
                    peer.link_failure.as_deref().unwrap_or_default(),
                ),
                "let UDP port 4791 through in both directions; sluiced tries again by itself",
            ),
        };
    }
    // Without the daemons' word only a refusal says something.
    match probe(SocketAddr::new(peer, ROCE_PORT), SMALL) {
        Ok(Echo::Arrived) => Check::missing(
            NAME,
            "nobody has UDP port 4791 there, so there is no RoCEv2",
            "start sluiced there with a configuration whose device is roce or roce-udp",
        ),
        Ok(Echo::Forbidden) => Check::missing(
            NAME,
            "UDP port 4791 is refused on the way",
            "let it through in both directions",
        ),
        Ok(Echo::Silence | Echo::TooLarge) => Check::note(
            NAME,
            "nothing refuses UDP port 4791; whether anything answers takes two daemons that talk",
            "see the session above",
        ),
        Err(error) => Check::note(NAME, reason(&error), ""),
    }
}

fn by_what(device: &str, address: &str) -> String {
    match device {
        "roce" => format!(
            "RoCEv2 from {address}, past the kernel's stack where AF_XDP works ('sluice doctor \
             --interface NAME' tries it) and by UDP sockets elsewhere"
        ),
        "roce-udp" => format!(
            "RoCEv2 from {address} by UDP sockets (device roce, and root, would use AF_XDP)"
        ),
        other => format!("device {other}, from {address}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn addresses_come_with_and_without_ports() {
        let of = |text: &str| resolve(text, None).map(|address| address.to_string());
        assert_eq!(of("10.0.0.1").unwrap(), "10.0.0.1:4797");
        assert_eq!(of("10.0.0.1:5000").unwrap(), "10.0.0.1:5000");
        assert_eq!(of("fd00::1").unwrap(), "[fd00::1]:4797");
        assert_eq!(of("[fd00::1]:99").unwrap(), "[fd00::1]:99");
        assert!(of("10.0.0.1:x").is_err());
        let text = "[daemon]\nauthentication = 'none'\n\
                    [[peer]]\nname = 'beta'\naddresses = ['10.9.0.0/16']\ncontrol = '10.9.0.2:77'\n";
        let config = Config::parse(Path::new("x.toml"), text).unwrap();
        let of = |text: &str| resolve(text, Some(&config)).map(|address| address.to_string());
        assert_eq!(of("beta").unwrap(), "10.9.0.2:77");
        assert_eq!(of("10.9.3.3").unwrap(), "10.9.0.2:77");
    }

    #[test]
    fn a_port_where_nobody_listens_is_missing_and_says_what_to_do() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let check = control(address).err().unwrap();
        assert_eq!(check.verdict, Verdict::Missing);
        assert!(check.hint.contains("sluice up --config"), "{check:?}");
        assert_eq!(route(address.ip()).unwrap_err().verdict, Verdict::Missing);
    }

    #[test]
    fn a_datagram_to_nobody_comes_back_as_a_refusal() {
        let free = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        assert_eq!(probe(address, SMALL).unwrap(), Echo::Silence);
        drop(free);
        assert_eq!(probe(address, SMALL).unwrap(), Echo::Arrived);
    }

    #[test]
    fn a_link_that_is_not_proven_is_missing() {
        let known = |link: &str| Known {
            fabric: Fabric {
                device: "roce-udp".to_owned(),
                ..Fabric::default()
            },
            peer: Some(Peer {
                is_up: true,
                link: link.to_owned(),
                ..Peer::default()
            }),
        };
        let peer = "192.0.2.1".parse().unwrap();
        assert_eq!(roce(peer, Some(&known("up"))).verdict, Verdict::Ok);
        let trying = roce(peer, Some(&known("trying")));
        assert_eq!(trying.verdict, Verdict::Missing);
        assert!(trying.hint.contains("4791"));
    }
}
