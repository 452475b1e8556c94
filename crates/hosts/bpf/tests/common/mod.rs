//! Two hosts of the laboratory, cgroups, and processes in both.
#![allow(unsafe_code, dead_code, unused_imports)]

mod agent;
pub mod pair;
pub mod places;
pub mod scene;
pub mod segment;

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use sluice_bpf::{Cgroup, Error, Finder, FinderOptions, Rules};
use sluice_lab::cgroup::Cgroup as LabGroup;
use sluice_lab::link::require_means;
use sluice_lab::verdict::{Verdict, made, skip as skipped};

pub use sluice_lab::net::{INTERFACE, Net, Node as Host};

pub use agent::{Agent, End, bind, connect, parse_end, run_as_agent, socket};

/// For what takes no time, on any machine. But for the end of a connection whose FIN is acknowledged while
/// it is being closed: the kernel keeps that for a minute (`tcp_rcv_state_process`, FIN_WAIT1 of a socket
/// that somebody owns).
pub const PATIENCE: Duration = Duration::from_secs(180);

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

/// Both hosts, which know each other's devices.
pub fn net() -> Net {
    let net = Net::new(1500);
    net.introduce();
    for (host, other) in [(&net.a, &net.b), (&net.b, &net.a)] {
        // A worker of the kernel's adds the ways to and from an address of IPv6, when it gets to it.
        let from: SocketAddr = host.v6_any();
        let is_there = || UdpSocket::bind(from).and_then(|it| it.connect((other.v6, 9)));
        until("a way by IPv6", || host.enter(is_there).is_ok());
        let is_own = || UdpSocket::bind(from).and_then(|it| it.connect((host.v6, 9)));
        until("a way to itself", || host.enter(is_own).is_ok());
    }
    net
}
