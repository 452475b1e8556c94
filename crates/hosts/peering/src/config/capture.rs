//! Connections of programs that cannot be preloaded.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::network::Network;
use sluice_control::ports::Ports;

/// Where relays of other hosts connect to when nothing else is said: below
/// [`PORT_DEFAULT`](super::PORT_DEFAULT), in the same unassigned range.
pub const RELAY_PORT_DEFAULT: u16 = 4796;

/// BGP (RFC 4271 §8.2.1): left alone unless the configuration names it. Its sessions are worth more than what they carry,
/// and are told from others by keys and TTLs (RFC 2385, RFC 5082).
pub const BGP_PORT: u16 = 179;

/// How long running connections may go on after the clean end of sluiced when nothing is said.
pub const DRAIN_S_DEFAULT: u16 = 30;

/// Programs named at most.
pub const PROGRAMS_MAX: usize = 1_024;

/// Bytes of a program's name as the kernel has it (`comm`, proc_pid_comm(5)): a longer name is known
/// by its first 15.
pub const COMM_BYTES_MAX: usize = 15;

/// Over which devices captured connections go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Over {
    /// RDMA adapters: over software RDMA two relays cost more than it gives, so TCP is the faster path.
    #[default]
    Adapter,
    Any,
}

/// Connections of programs that cannot be preloaded: which are taken to the relay, and which a peer's
/// relay may make here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    pub over: Over,
    /// Programs in this cgroup and below; `None`: all.
    pub cgroup: Option<PathBuf>,
    /// Connections to these ports are captured; `None`: to all but [`BGP_PORT`].
    pub ports: Option<Ports>,
    /// Connections to peers' addresses in these networks; `None`: to all that peers have.
    pub networks: Option<Vec<Network>>,
    /// Of programs with these names; `None`: of all. At most [`COMM_BYTES_MAX`] bytes each.
    pub programs: Option<Vec<String>>,
    /// The ports of this host that relays of peers may connect to; `None`: all but [`BGP_PORT`].
    pub serve_ports: Option<Ports>,
    /// Where relays of peers connect to.
    pub relay_port: u16,
    /// What is left of captured connections so long after the clean end of sluiced is reset.
    pub drain: Duration,
}

impl Capture {
    /// Whether connections are to be captured over a device of this kind. If not, they are left to TCP.
    pub fn is_for(&self, is_adapter: bool) -> bool {
        is_adapter || self.over == Over::Any
    }

    /// Whether connections to this address and port are to be captured, as far as this says.
    pub fn wants(&self, address: IpAddr, port: u16) -> bool {
        let inside = |network: &Network| network.contains(address);
        let networks = self.networks.as_ref();
        networks.is_none_or(|networks| networks.iter().any(inside)) && self.takes(port)
    }

    /// Whether connections to this port are to be captured, as far as `ports` says.
    pub fn takes(&self, port: u16) -> bool {
        chosen(self.ports, port)
    }

    /// Whether a peer's relay may connect to this port here.
    pub fn serves(&self, port: u16) -> bool {
        chosen(self.serve_ports, port)
    }
}

fn chosen(ports: Option<Ports>, port: u16) -> bool {
    ports.map_or(port != BGP_PORT, |ports| ports.contains(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture() -> Capture {
        Capture {
            over: Over::default(),
            cgroup: None,
            ports: Some(Ports::parse("80,8000-8080").unwrap()),
            networks: Some(vec!["10.0.0.0/8".parse().unwrap()]),
            programs: None,
            serve_ports: None,
            relay_port: RELAY_PORT_DEFAULT,
            drain: Duration::from_secs(1),
        }
    }

    fn capture_of_all() -> Capture {
        Capture {
            ports: None,
            networks: None,
            ..capture()
        }
    }

    #[test]
    fn address_and_port_both_count() {
        let capture = capture();
        for (address, port, wanted) in [
            ("10.1.1.1", 80, true),
            ("10.1.1.1", 81, false),
            ("192.0.2.1", 80, false),
            ("::1", 80, false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(capture.wants(address, port), wanted, "{address} {port}");
        }
        assert!(capture.serves(1));
        let all = Capture {
            ports: None,
            networks: None,
            serve_ports: Some(Ports::parse("22").unwrap()),
            ..capture
        };
        assert!(all.wants("::1".parse().unwrap(), 1));
        assert!(all.serves(22) && !all.serves(23));
        assert!(!all.takes(BGP_PORT) && !capture_of_all().serves(BGP_PORT));
        let named = Capture {
            ports: Some(Ports::parse("179").unwrap()),
            ..capture_of_all()
        };
        assert!(named.takes(BGP_PORT));
    }
}
