//! Two hosts without a second machine, joined by a pair of virtual Ethernet devices.
//!
//! A [`Pair`] is made for one test and is gone with it; nothing of it has a name that another test
//! or the machine's own network could meet. With [`Settings::faults`] a third namespace lies
//! between the hosts, in which an [`Injector`] carries the frames.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use tempfile::TempDir;

use crate::host::Host;
use crate::injector::Injector;
use crate::link::{FRAME_OVERHEAD, Settings, ip, wire};
use crate::namespace::Namespace;
use crate::verdict::{Verdict, fail};

/// Which of two hosts. Where it matters, servers are on the right one and clients on the left one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

pub const SIDES: [Side; 2] = [Side::Left, Side::Right];

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Side::Left => "left",
            Side::Right => "right",
        }
    }

    pub fn other(self) -> Side {
        match self {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        }
    }
}

/// How one end of a pair is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The name of its device.
    pub device: &'static str,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
    /// Of the device; none for the kernel's choice.
    pub mac: Option<[u8; 6]>,
    /// Its address of the link; none for the kernel's choice.
    pub link_local: Option<Ipv6Addr>,
}

impl End {
    /// What must be done before the device is up.
    fn prepare(&self, host: &Host) -> Verdict {
        let device = self.device;
        if let Some(mac) = self.mac {
            let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
            host.ip(&format!("link set {device} address {mac}"))?;
        }
        if let Some(local) = self.link_local {
            host.ip(&format!("link set {device} addrgenmode none"))?;
            host.ip(&format!("addr add {local}/64 dev {device} nodad"))?;
        }
        Ok(())
    }
}

/// Two hosts and what joins them.
pub struct Pair {
    pub left: Host,
    pub right: Host,
    injector: Option<Injector>,
    /// Where it is.
    between: Option<Namespace>,
    dir: TempDir,
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("left", &self.left)
            .field("right", &self.right)
            .finish_non_exhaustive()
    }
}

impl Pair {
    /// Hosts with the addresses 10.44.0.1 and .2, fd44::1 and ::2, at a device `eth0` each.
    ///
    /// Skips where hosts cannot be made.
    pub fn new(settings: Settings) -> Verdict<Pair> {
        Pair::new_in(&std::env::temp_dir(), settings)
    }

    /// The same, with what belongs to them in a directory of their own in `folder`.
    pub fn new_in(folder: &Path, settings: Settings) -> Verdict<Pair> {
        let end = |last: u8| End {
            device: "eth0",
            v4: Ipv4Addr::new(10, 44, 0, last),
            v6: Ipv6Addr::new(0xfd44, 0, 0, 0, 0, 0, 0, last.into()),
            mac: None,
            link_local: None,
        };
        Pair::make(folder, [end(1), end(2)], settings)
    }

    /// Hosts that are as told, left and right.
    ///
    /// Skips where hosts cannot be made.
    pub fn with(ends: [End; 2], settings: Settings) -> Verdict<Pair> {
        Pair::make(&std::env::temp_dir(), ends, settings)
    }

    fn make(folder: &Path, ends: [End; 2], settings: Settings) -> Verdict<Pair> {
        let dir = tempfile::Builder::new()
            .prefix("sluice-hosts-")
            .tempdir_in(folder)?;
        let host = |side: Side| {
            let end = ends[side as usize];
            Host::new(dir.path(), side.name(), (end.v4, end.v6))
        };
        let mut left = host(Side::Left)?;
        let mut right = host(Side::Right)?;
        let [near, far] = ends.map(|end| end.device);
        let mut between = None;
        if settings.faults {
            let between = between.insert(Namespace::new()?);
            wire(left.namespace(), near, between, "left", settings)?;
            wire(right.namespace(), far, between, "right", settings)?;
            for port in ["left", "right"] {
                ip(between, &format!("link set {port} mtu {} up", settings.mtu))?;
            }
        } else {
            wire(left.namespace(), near, right.namespace(), far, settings)?;
        }
        for (host, end) in [(&mut left, ends[0]), (&mut right, ends[1])] {
            end.prepare(host)?;
            host.configure(end.device, settings.mtu)?;
        }
        for host in [&left, &right] {
            host.await_addresses()?;
        }
        // When every device is up: what goes to one that is not is lost.
        let longest = settings.mtu as usize + FRAME_OVERHEAD;
        let injector = between
            .as_ref()
            .map(|between| Injector::start(between, "left", "right", longest))
            .transpose()?;
        Ok(Pair {
            left,
            right,
            injector,
            between,
            dir,
        })
    }

    pub fn host(&self, side: Side) -> &Host {
        match side {
            Side::Left => &self.left,
            Side::Right => &self.right,
        }
    }

    /// A directory that is removed with the pair.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Fails when the pair was made without one.
    pub fn injector(&self) -> Verdict<&Injector> {
        match &self.injector {
            Some(injector) => Ok(injector),
            None => fail("the test made its hosts without Settings::faults"),
        }
    }

    /// The namespace between the hosts, with a device towards each, `left` and `right`.
    ///
    /// Fails when the pair was made without an injector.
    pub fn between(&self) -> Verdict<&Namespace> {
        match &self.between {
            Some(between) => Ok(between),
            None => fail("the test made its hosts without Settings::faults"),
        }
    }
}
