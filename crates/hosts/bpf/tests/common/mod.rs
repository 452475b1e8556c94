//! Two hosts of the laboratory, cgroups, and processes in both.
#![allow(unsafe_code, dead_code, unused_imports)]

mod agent;
pub mod pair;
pub mod segment;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use sluice_bpf::{Cgroup, Error, Finder, FinderOptions, Rules};
use sluice_lab::cgroup::Cgroup as LabGroup;
use sluice_lab::link::{Settings, require_means};
use sluice_lab::pair::{End as Face, Pair as LabPair};
use sluice_lab::verdict::{Verdict, made, skip as skipped};

pub use agent::{Agent, End, bind, connect, parse_end, run_as_agent, socket};

/// Longest time that a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Says that a test does not run here, and why. `SLUICE_NO_SKIP=1` makes it a failure.
pub fn skip(test: &str, reason: &str) {
    made::<()>(test, skipped(reason));
}

/// Whether namespaces and cgroups can be made and programs be attached. If not, says so;
/// `SLUICE_NO_SKIP=1` makes it a failure.
pub fn can_run(test: &str) -> bool {
    let attach = || -> Verdict {
        require_means()?;
        let group = Group(LabGroup::new("try")?);
        match Finder::attach(&group.open(), &FinderOptions::default(), &Rules::none()) {
            Err(error @ (Error::NotPermitted { .. } | Error::Kernel { .. })) => {
                skipped(error.to_string())
            }
            _ => Ok(()),
        }
    };
    made(test, attach()).is_some()
}

/// Waits for something that must come.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A cgroup for a test; removed with what is in it.
pub struct Group(LabGroup);

impl Group {
    pub fn new() -> Self {
        Self(LabGroup::new("bpf").expect("a new cgroup"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn open(&self) -> Cgroup {
        Cgroup::open(self.path()).expect("it is there")
    }
}

/// One end.
#[derive(Clone, Debug)]
pub struct Host {
    host: sluice_lab::host::Host,
    pub mac: [u8; 6],
    pub v4: IpAddr,
    pub v6: IpAddr,
}

/// The name of the interface in each namespace.
pub const INTERFACE: &str = "e0";

impl Host {
    /// Starts a program there.
    pub fn spawn(&self, command: &mut Command) -> Child {
        self.host.inside(|| command.spawn()).expect("starts")
    }

    /// Runs something in the namespace, on a thread of its own.
    pub fn enter<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        self.host.inside(|| Ok(run())).expect("may enter")
    }

    pub fn ip(&self, arguments: &str) -> String {
        self.host.ip(arguments).expect("ip runs")
    }

    pub fn mac_text(&self) -> String {
        self.mac.map(|byte| format!("{byte:02x}")).join(":")
    }

    /// Knows from the beginning that an address is behind another host's interface.
    pub fn neighbour(&self, address: IpAddr, other: &Host) {
        let mac = other.mac_text();
        self.ip(&format!(
            "neigh replace {address} lladdr {mac} dev {INTERFACE} nud permanent"
        ));
    }

    pub fn sysctl(&self, name: &str, value: &str) {
        let set = self.host.write_setting(name, value);
        set.expect("a setting of the namespace");
    }

    /// With a port of the kernel's choice.
    pub fn v4_any(&self) -> SocketAddr {
        SocketAddr::new(self.v4, 0)
    }

    pub fn v6_any(&self) -> SocketAddr {
        SocketAddr::new(self.v6, 0)
    }
}

/// Both ends; removed when dropped.
pub struct Net {
    pub a: Host,
    pub b: Host,
    _pair: LabPair,
}

impl Net {
    pub fn new() -> Self {
        let face = |end: u8| Face {
            device: INTERFACE,
            v4: Ipv4Addr::new(192, 0, 2, end),
            v6: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, end.into()),
            mac: Some([2, 0, 0, 0, 0, end]),
            link_local: None,
        };
        let pair = LabPair::with([face(1), face(2)], Settings::default()).expect("two hosts");
        let host = |host: &sluice_lab::host::Host, end: u8| Host {
            host: host.clone(),
            mac: [2, 0, 0, 0, 0, end],
            v4: host.address(4),
            v6: host.address(6),
        };
        let net = Self {
            a: host(&pair.left, 1),
            b: host(&pair.right, 2),
            _pair: pair,
        };
        for (host, other) in [(&net.a, &net.b), (&net.b, &net.a)] {
            for address in [other.v4, other.v6] {
                host.neighbour(address, other);
            }
        }
        net
    }
}
