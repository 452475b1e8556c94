//! What a relay needs before it begins: the programs in the kernel, its listeners, and then no
//! privileges any more.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use sluice_bpf::{Capture as Programs, CaptureOptions, Cgroup};
use sluice_peering::config::{Capture as Choice, Config};
use sluice_relay::{EventLoop, Interest, Options, socket};
use sluice_sys::capability::{Capability, keep_only};

use super::room::Room;
use super::seldom::Seldom;
use super::shown::Shown;
use super::wanted::Wanted;
use super::{
    FIRST_TASK, PEERS_V4, PEERS_V6, PROGRAMS_V4, PROGRAMS_V6, Relay, SLUICED, connections_max,
    listener_of,
};
use crate::capture::advertisement::ADDRESSES_MAX;
use crate::capture::orders::{Counts, Notice, tell};
use crate::config::raise_soft_limits;

/// Connections that wait to be accepted.
pub(super) const BACKLOG: i32 = 4096;
/// For the port, which a former relay may be about to give up.
const LISTEN_LIMIT: Duration = Duration::from_secs(5);
const LISTEN_INTERVAL: Duration = Duration::from_millis(50);

type Failure = Box<dyn std::error::Error>;

/// Is the relay of the sluiced at the other end of `sluiced`, until that ends and all connections
/// have ended.
pub fn serve(config: Config, sluiced: OwnedFd) -> Result<(), Failure> {
    let Some(choice) = config.capture.clone() else {
        return Err("the configuration has no [capture]".into());
    };
    match begin(config, choice, &sluiced) {
        Ok(mut relay) => {
            relay
                .event_loop
                .watch(sluiced.as_fd(), Interest::Readable, SLUICED)?;
            relay.sluiced = Some(sluiced);
            Ok(relay.run()?)
        }
        Err(error) => {
            let why = error.to_string();
            tell(&sluiced, &Notice::Failed { why })?;
            Err(error)
        }
    }
}

fn begin(config: Config, choice: Choice, sluiced: &OwnedFd) -> Result<Relay, Failure> {
    raise_soft_limits();
    let connections_max = connections_max();
    let cgroup = match &choice.cgroup {
        Some(path) => Cgroup::open(path)?,
        None => Cgroup::root()?,
    };
    let defaults = CaptureOptions::default();
    let options = CaptureOptions {
        // Each takes a place, and there are those of peers besides.
        connections_max: u32::try_from(connections_max / 2)
            .unwrap_or(u32::MAX)
            .clamp(1, defaults.connections_max),
        ..defaults
    };
    let programs = Programs::attach(&cgroup, &options)?;
    if let Some(names) = &choice.programs {
        programs.set_programs(names)?;
    }
    if !programs.sees_terms() {
        tracing::warn!(
            "connections with a key (TCP-MD5, TCP-AO) or a TTL of their own are not recognised, and captured as others are: \
             the kernel has no BTF (CONFIG_DEBUG_INFO_BTF); leave their ports out of `ports` and `serve_ports`"
        );
    }
    let mut event_loop = EventLoop::new(Options::default())?;
    let listeners = listen(&choice)?;
    for (key, listener) in &listeners {
        event_loop.watch(listener.as_fd(), Interest::Readable, *key)?;
    }
    let any = listeners.values().next().ok_or("nothing to listen at")?;
    let netns = sluice_sys::tcp::netns_cookie(any.as_raw_fd())?;
    let shown = match choice.cgroup {
        Some(_) => Shown::to_those_of(cgroup)?,
        None => Shown::to_all(),
    };
    drop_capabilities()?;
    let for_peers = listener_of(&listeners, PEERS_V4, PEERS_V6)?;
    let for_programs = listener_of(&listeners, PROGRAMS_V4, PROGRAMS_V6)?;
    // Nothing is captured yet: there are no destinations.
    programs.set_listener(netns, for_programs)?;
    let daemons = config.peers.iter().map(|peer| peer.control.port());
    let own = config.listen.iter().map(SocketAddr::port);
    let relays = [for_peers.v4, for_peers.v6, for_programs.v4, for_programs.v6];
    let own_ports = daemons.chain(own).chain(relays.into_iter().flatten());
    let own_ports = BTreeSet::from_iter(own_ports.chain([choice.relay_port]));
    let own_ports: Vec<u16> = own_ports.into_iter().collect();
    let ready = Notice::Ready {
        port_v4: for_peers.v4.unwrap_or(0),
        port_v6: for_peers.v6.unwrap_or(0),
        addresses: own_addresses()?,
    };
    tell(sluiced, &ready)?;
    Ok(Relay {
        event_loop,
        programs,
        shown,
        netns,
        wanted: Wanted::new(config, choice.clone(), &own_ports),
        choice,
        room: Room::default(),
        // At once.
        look_at: Instant::now(),
        sluiced: None,
        listeners,
        own_ports,
        peers: HashMap::new(),
        peers_changed: false,
        admitted: HashMap::new(),
        tasks: HashMap::new(),
        deadlines: BTreeSet::new(),
        unproven: BTreeSet::new(),
        refusals: Seldom::default(),
        losses: Seldom::default(),
        next_task: FIRST_TASK,
        pairs: HashMap::new(),
        connections_max,
        counts: Counts::default(),
        told: Counts::default(),
        tell_at: None,
        draining: None,
    })
}

/// What comes needs descriptors only, from Linux 5.19 on: before, using a BPF map by its descriptor
/// needed CAP_BPF where `kernel.unprivileged_bpf_disabled` is set.
fn drop_capabilities() -> io::Result<()> {
    let kept = if uses_maps_freely() {
        0
    } else {
        Capability::Bpf.bit()
    };
    keep_only(kept).map_err(|error| io::Error::from_raw_os_error(error.0))?;
    Ok(())
}

fn uses_maps_freely() -> bool {
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (5, 19),
        _ => false,
    }
}

/// All listeners that this host can have; one of each kind at least.
fn listen(choice: &Choice) -> Result<HashMap<u64, OwnedFd>, Failure> {
    let v4 = |ip: Ipv4Addr, port| SocketAddr::new(ip.into(), port);
    let v6 = |ip: Ipv6Addr, port| SocketAddr::new(ip.into(), port);
    let port = choice.relay_port;
    let places = [
        (PROGRAMS_V4, v4(Ipv4Addr::LOCALHOST, 0)),
        (PROGRAMS_V6, v6(Ipv6Addr::LOCALHOST, 0)),
        (PEERS_V4, v4(Ipv4Addr::UNSPECIFIED, port)),
        (PEERS_V6, v6(Ipv6Addr::UNSPECIFIED, port)),
    ];
    let mut listeners = HashMap::new();
    let limit = Instant::now() + LISTEN_LIMIT;
    for (key, place) in places {
        let listener = loop {
            match socket::listen(&place, BACKLOG) {
                Ok(listener) => break Some(listener),
                Err(error) => match error.raw_os_error() {
                    // A host without one of the two.
                    Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL) => break None,
                    Some(libc::EADDRINUSE) if Instant::now() < limit => {
                        std::thread::sleep(LISTEN_INTERVAL);
                    }
                    _ => return Err(format!("cannot listen at {place}: {error}").into()),
                },
            }
        };
        listeners.extend(listener.map(|listener| (key, listener)));
    }
    Ok(listeners)
}

/// Those of this host that others can reach.
fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let mut addresses = sluice_relay::host::addresses()?;
    addresses.retain(|address| {
        let is_of_link = match address {
            IpAddr::V4(address) => address.is_link_local(),
            // Says nothing without its link.
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        !address.is_loopback() && !is_of_link
    });
    addresses.truncate(ADDRESSES_MAX);
    Ok(addresses)
}
