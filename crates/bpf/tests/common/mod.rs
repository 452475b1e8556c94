//! Two network namespaces joined by a veth pair, cgroups, and processes in both.
#![allow(unsafe_code, dead_code, unused_imports)]

mod agent;
pub mod pair;
pub mod segment;

use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sluice_bpf::{Cgroup, Error, Finder, FinderOptions, Rules};

pub use agent::{Agent, End, bind, connect, parse_end, run_as_agent, socket};

/// Longest time that a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn skip(test: &str, reason: &str) -> bool {
    assert!(
        std::env::var_os("SLUICE_NO_SKIP").is_none_or(|value| value != "1"),
        "SKIP {test}: {reason}"
    );
    println!("SKIP {test}: {reason}");
    false
}

/// Whether namespaces and cgroups can be made and programs be attached. If not, says so;
/// `SLUICE_NO_SKIP=1` makes it a failure.
pub fn can_run(test: &str) -> bool {
    // SAFETY: geteuid has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 || Command::new("ip").arg("-V").output().is_err() {
        return skip(
            test,
            "needs root and ip (iproute2) to make network namespaces",
        );
    }
    let Ok(mount) = Cgroup::mount_point() else {
        return skip(test, "no cgroup file system of version 2 is mounted");
    };
    let name = unique("try");
    if fs::create_dir(mount.join(&name)).is_err() {
        return skip(test, "cgroups cannot be made here");
    }
    let _ = fs::remove_dir(mount.join(name));
    let group = Group::new();
    match Finder::attach(&group.open(), &FinderOptions::default(), &Rules::none()) {
        Err(error @ (Error::NotPermitted { .. } | Error::Kernel { .. })) => {
            skip(test, &error.to_string())
        }
        _ => true,
    }
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

fn unique(what: &str) -> String {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("sluice-{what}{}-{number}", std::process::id())
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

pub fn ip(arguments: &str) -> String {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .expect("ip runs");
    assert!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

pub fn enter_namespace(path: &Path) {
    let file = File::open(path).expect("there");
    // SAFETY: setns takes integers, and changes this thread only.
    let ret = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(ret, 0, "setns: {}", std::io::Error::last_os_error());
}

/// One end.
#[derive(Clone, Debug)]
pub struct Host {
    pub namespace: String,
    pub mac: [u8; 6],
    pub v4: IpAddr,
    pub v6: IpAddr,
}

/// The name of the interface in each namespace.
pub const INTERFACE: &str = "e0";

impl Host {
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.namespace)
    }

    /// Runs something in the namespace, on a thread of its own.
    pub fn enter<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter_namespace(&self.path());
                run()
            });
            thread.join().expect("the thread ends well")
        })
    }

    pub fn ip(&self, arguments: &str) -> String {
        ip(&format!("-n {} {arguments}", self.namespace))
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
            namespace: format!("{name}-{end}"),
            mac: [2, 0, 0, 0, 0, end],
            v4: IpAddr::from([192, 0, 2, end]),
            v6: IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(end)]),
        };
        let net = Self {
            a: host(1),
            b: host(2),
        };
        let (a, b) = (&net.a.namespace, &net.b.namespace);
        ip(&format!("netns add {a}"));
        ip(&format!("netns add {b}"));
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

impl Drop for Net {
    fn drop(&mut self) {
        for host in [&self.a, &self.b] {
            let _ = Command::new("ip")
                .args(["netns", "del", &host.namespace])
                .status();
        }
    }
}
