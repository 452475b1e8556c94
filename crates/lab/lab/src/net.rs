//! Two hosts as tests of devices and programs in the kernel want them: with addresses, also of their
//! devices, that are known beforehand, and with failures that end the test.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::{Child, Command};

use crate::host::Host;
use crate::link::Settings;
use crate::pair::{End, Pair};

/// The name of the device in each of them.
pub const INTERFACE: &str = "e0";

/// One of both hosts.
#[derive(Clone, Debug)]
pub struct Node {
    host: Host,
    pub mac: [u8; 6],
    pub v4: IpAddr,
    pub v6: IpAddr,
}

/// All functions panic when the host cannot do it.
impl Node {
    /// Starts a program there; it is ended with nobody.
    pub fn spawn(&self, command: &mut Command) -> Child {
        self.host.inside(|| command.spawn()).expect("starts")
    }

    /// Calls the function there, on a thread of its own.
    pub fn enter<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        self.host.inside(|| Ok(run())).expect("may enter")
    }

    /// Runs `ip` with the words; what it printed.
    pub fn ip(&self, words: &str) -> String {
        self.host.ip(words).expect("ip runs")
    }

    /// Writes below `/proc/sys/net`.
    pub fn sysctl(&self, name: &str, value: &str) {
        let set = self.host.write_setting(name, value);
        set.expect("a setting of the namespace");
    }

    pub fn mac_text(&self) -> String {
        self.mac.map(|byte| format!("{byte:02x}")).join(":")
    }

    /// Knows from now on that an address is behind another host's device.
    pub fn neighbour(&self, address: IpAddr, other: &Node) {
        let mac = other.mac_text();
        self.ip(&format!(
            "neigh replace {address} lladdr {mac} dev {INTERFACE} nud permanent"
        ));
    }

    /// With a port of the kernel's choice.
    pub fn v4_any(&self) -> SocketAddr {
        SocketAddr::new(self.v4, 0)
    }

    /// With a port of the kernel's choice.
    pub fn v6_any(&self) -> SocketAddr {
        SocketAddr::new(self.v6, 0)
    }
}

/// Both hosts; removed when dropped.
#[derive(Debug)]
pub struct Net {
    pub a: Node,
    pub b: Node,
    _pair: Pair,
}

impl Net {
    /// With an MTU, bytes.
    ///
    /// # Panics
    /// Hosts cannot be made; see [`crate::link::require_means`].
    pub fn new(mtu: u32) -> Net {
        Net::with_queues(mtu, 1)
    }

    /// The same with devices of so many queues.
    ///
    /// # Panics
    /// As [`Net::new`].
    pub fn with_queues(mtu: u32, queues: u32) -> Net {
        let mac = |end: u8| [2, 0, 0, 0, 0, end];
        let end = |number: u8| End {
            device: INTERFACE,
            v4: Ipv4Addr::new(192, 0, 2, number),
            v6: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()),
            mac: Some(mac(number)),
            link_local: None,
        };
        let settings = Settings {
            mtu,
            queues,
            ..Settings::default()
        };
        let pair = Pair::with([end(1), end(2)], settings).expect("two hosts");
        let node = |host: &Host, number: u8| Node {
            host: host.clone(),
            mac: mac(number),
            v4: host.address(4),
            v6: host.address(6),
        };
        Net {
            a: node(&pair.left, 1),
            b: node(&pair.right, 2),
            _pair: pair,
        }
    }

    /// Neither has to ask for the other's device.
    pub fn introduce(&self) {
        for (node, other) in [(&self.a, &self.b), (&self.b, &self.a)] {
            for address in [other.v4, other.v6] {
                node.neighbour(address, other);
            }
        }
    }
}
