//! Two network namespaces joined by a veth pair, cgroups, and processes in both.
#![allow(unsafe_code, dead_code, unused_imports)]

mod agent;
pub mod pair;
pub mod segment;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sluice_bpf::{Cgroup, Error, Finder, FinderOptions, Rules};

use sluice_netns_testing::{Namespace, ip, unique};
pub use sluice_netns_testing::{enter as enter_namespace, skip};

pub use agent::{Agent, End, bind, connect, parse_end, run_as_agent, socket};

/// Longest time that a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Whether namespaces and cgroups can be made and programs be attached. If not, says so;
/// `SLUICE_NO_SKIP=1` makes it a failure.
pub fn can_run(test: &str) -> bool {
    if !sluice_netns_testing::can_run(test) {
        return false;
    }
    let skip = |reason: &str| {
        skip(test, reason);
        false
    };
    let Ok(mount) = Cgroup::mount_point() else {
        return skip("no cgroup file system of version 2 is mounted");
    };
    let name = unique("try");
    if fs::create_dir(mount.join(&name)).is_err() {
        return skip("cgroups cannot be made here");
    }
    let _ = fs::remove_dir(mount.join(name));
    let group = Group::new();
    match Finder::attach(&group.open(), &FinderOptions::default(), &Rules::none()) {
        Err(error @ (Error::NotPermitted { .. } | Error::Kernel { .. })) => {
            skip(&error.to_string())
        }
        _ => true,
    }
}

/// Waits for something that must come.
pub fn until(what: &str, done: impl FnMut() -> bool) {
    until_within(PATIENCE, what, done);
}

pub fn until_within(patience: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + patience;
    while !done() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A cgroup for a test; removed when dropped, which waits for the end of the processes in it.
pub struct Group {
    pub path: PathBuf,
}

impl Group {
    pub fn new() -> Self {
        let path = Cgroup::mount_point().expect("mounted").join(unique("test"));
        fs::create_dir(&path).expect("a new cgroup");
        Self { path }
    }

    pub fn open(&self) -> Cgroup {
        Cgroup::open(&self.path).expect("it is there")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let end = Instant::now() + PATIENCE;
        while self.path.exists() && fs::remove_dir(&self.path).is_err() && Instant::now() < end {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// One end.
#[derive(Clone, Debug)]
pub struct Host {
    pub namespace: Arc<Namespace>,
    pub mac: [u8; 6],
    pub v4: IpAddr,
    pub v6: IpAddr,
}

/// The name of the interface in each namespace.
pub const INTERFACE: &str = "e0";

impl Host {
    pub fn path(&self) -> PathBuf {
        self.namespace.path()
    }

    /// Runs something in the namespace, on a thread of its own.
    pub fn enter<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        self.namespace.enter(run)
    }

    pub fn ip(&self, arguments: &str) -> String {
        self.namespace.ip(arguments)
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
        let path = Path::new("/proc/sys/net").join(name);
        self.enter(|| fs::write(path, value).expect("a setting of the namespace"));
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
}

impl Net {
    pub fn new() -> Self {
        let name = unique("b");
        let host = |end: u8| Host {
            namespace: Arc::new(Namespace::new(format!("{name}-{end}"))),
            mac: [2, 0, 0, 0, 0, end],
            v4: IpAddr::from([192, 0, 2, end]),
            v6: IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(end)]),
        };
        let net = Self {
            a: host(1),
            b: host(2),
        };
        let (a, b) = (net.a.namespace.name(), net.b.namespace.name());
        ip(&format!(
            "-n {a} link add {INTERFACE} type veth peer name {INTERFACE} netns {b}"
        ));
        for host in [&net.a, &net.b] {
            host.ip("link set lo up");
            host.ip(&format!("link set {INTERFACE} address {}", host.mac_text()));
            host.ip(&format!("addr add {}/24 dev {INTERFACE}", host.v4));
            host.ip(&format!("addr add {}/64 dev {INTERFACE} nodad", host.v6));
            host.ip(&format!("link set {INTERFACE} up"));
        }
        for (host, other) in [(&net.a, &net.b), (&net.b, &net.a)] {
            // Until then packets are dropped, and a SYN that is lost is repeated. One work queue
            // does it for all links of the machine, under a lock that is also taken to remove
            // network namespaces.
            until_within(4 * PATIENCE, "the link is up", || {
                host.ip(&format!("link show {INTERFACE}"))
                    .contains("state UP")
            });
            for address in [other.v4, other.v6] {
                host.neighbour(address, other);
            }
        }
        net
    }
}
