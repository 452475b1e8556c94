//! Two hosts without a second machine: network namespaces joined by a veth pair.
//!
//! A [`Pair`] is made for one test and is gone with it; nothing of it has a name that another test
//! or the machine's own network could meet. With [`Settings::faults`] a third namespace lies
//! between the hosts, in which an [`injector::Injector`] carries the frames.

pub mod bottleneck;
pub mod capture;
pub mod faults;
pub mod injector;
pub mod namespace;
pub mod options;
pub mod packets;
pub mod paths;
pub mod ports;

use std::ffi::OsStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::hosts::injector::Injector;
use crate::hosts::namespace::Namespace;
use crate::job::{command, find_program, wait_until};
use crate::suite::{Verdict, ensure, fail, skip};

/// Ethernet header, a VLAN tag, and some room.
pub(crate) const FRAME_OVERHEAD: usize = 64;

/// What the kernel does by itself when a device comes up takes milliseconds.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);

/// How a link is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Of both ends, in bytes (IP packet).
    pub mtu: u32,
    /// Receive and transmit queues of both ends.
    pub queues: u32,
    /// Segmentation, checksum and receive offload, which veth has by default: frames then cross it
    /// with checksums that are not filled in, and longer than the MTU. Always off with an injector.
    pub offloads: bool,
    /// Whether a fault injector lies between the ends.
    pub faults: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            mtu: 1500,
            queues: 1,
            offloads: true,
            faults: false,
        }
    }
}

/// A network namespace with one device and its addresses.
pub struct Host {
    namespace: Namespace,
    device: String,
    v4: Ipv4Addr,
    v6: Ipv6Addr,
    /// For what programs of one host find each other by.
    runtime: PathBuf,
}

impl Host {
    /// A host without devices besides its loopback. `dir` gets what belongs to it.
    ///
    /// Skips for other users than root.
    pub fn new(dir: &Path, name: &str, addresses: (Ipv4Addr, Ipv6Addr)) -> Verdict<Host> {
        require_root()?;
        let namespace = Namespace::new()?;
        let runtime = dir.join(format!("{name}-run"));
        std::fs::create_dir_all(&runtime)?;
        let host = Host {
            namespace,
            device: "eth0".into(),
            v4: addresses.0,
            v6: addresses.1,
            runtime,
        };
        // Addresses can be used at once: nobody else has them.
        host.write_setting("ipv6/conf/all/accept_dad", "0")?;
        host.write_setting("ipv6/conf/default/accept_dad", "0")?;
        host.ip("link set lo up")?;
        Ok(host)
    }

    /// Writes below `/proc/sys/net`.
    pub fn write_setting(&self, name: &str, value: &str) -> io::Result<()> {
        let path = Path::new("/proc/sys/net").join(name);
        self.namespace.inside(|| std::fs::write(path, value))
    }

    /// Runs `ip` with the words inside.
    pub fn ip(&self, words: &str) -> Verdict {
        ip(&self.namespace, words)
    }

    /// What `ip link show` says of the device.
    pub fn describe_link(&self) -> io::Result<String> {
        let mut command = self.command("ip");
        command.args(["link", "show", "dev", &self.device]);
        let output = command.output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Gives the device its MTU and this host's addresses, and takes it up.
    pub fn configure(&mut self, device: &str, mtu: u32) -> Verdict {
        self.device = device.to_owned();
        self.ip(&format!("link set {device} mtu {mtu} up"))?;
        self.ip(&format!("addr add {}/24 dev {device}", self.v4))?;
        self.ip(&format!("addr add {}/64 dev {device} nodad", self.v6))
    }

    /// Waits for the address that the kernel gives the device by itself, some time after it came
    /// up: an RDMA device has it in its table, before those that it got from us.
    fn await_link_local(&self) -> Verdict {
        // proc_net(5) has nothing of it: address, index, prefix, scope (0x20: of the link), flags
        // (0x40: tentative), device.
        let there = || {
            let table =
                self.inside(|| std::fs::read_to_string("/proc/thread-self/net/if_inet6"))?;
            Ok(table.lines().any(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let flags = words
                    .get(4)
                    .and_then(|flags| u8::from_str_radix(flags, 16).ok());
                words.get(3) == Some(&"20")
                    && words.get(5) == Some(&self.device())
                    && flags.is_some_and(|flags| flags & 0x40 == 0)
            }))
        };
        ensure(wait_until(SETTLE_LIMIT, there)?, || {
            format!("{} has no link-local address", self.device)
        })
    }

    /// A command that runs on this host. It ends with the thread that starts it at the latest.
    /// `XDG_RUNTIME_DIR` is the host's own, so that names of one host are not seen on another.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = command(program);
        command.env("XDG_RUNTIME_DIR", &self.runtime);
        self.namespace.enter(&mut command);
        command
    }

    /// Makes a command that was built elsewhere run on this host.
    pub fn place(&self, command: &mut Command) {
        command.env("XDG_RUNTIME_DIR", &self.runtime);
        self.namespace.enter(command);
    }

    /// Calls the function on a thread of this host; see [`Namespace::inside`].
    pub fn inside<T: Send>(&self, body: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        self.namespace.inside(body)
    }

    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// What its programs have as `XDG_RUNTIME_DIR`.
    pub fn runtime(&self) -> &Path {
        &self.runtime
    }

    /// The device that leads to the other host.
    pub fn device(&self) -> &str {
        &self.device
    }

    pub fn v4(&self) -> Ipv4Addr {
        self.v4
    }

    pub fn v6(&self) -> Ipv6Addr {
        self.v6
    }

    /// The address of the family, 4 or 6.
    pub fn address(&self, family: u8) -> IpAddr {
        if family == 6 {
            self.v6.into()
        } else {
            self.v4.into()
        }
    }
}

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

/// Two hosts and what joins them.
pub struct Pair {
    pub left: Host,
    pub right: Host,
    injector: Option<Injector>,
    /// Where it is.
    between: Option<Namespace>,
    dir: TempDir,
}

impl Pair {
    /// Skips for other users than root.
    pub fn new(settings: Settings) -> Verdict<Pair> {
        let dir = tempfile::Builder::new().prefix("sluice-hosts-").tempdir()?;
        let address = |last: u8| {
            (
                Ipv4Addr::new(10, 44, 0, last),
                Ipv6Addr::new(0xfd44, 0, 0, 0, 0, 0, 0, last.into()),
            )
        };
        let mut left = Host::new(dir.path(), "left", address(1))?;
        let mut right = Host::new(dir.path(), "right", address(2))?;
        let mut between = None;
        if settings.faults {
            let between = between.insert(Namespace::new()?);
            wire(&left.namespace, "eth0", between, "left", settings)?;
            wire(&right.namespace, "eth0", between, "right", settings)?;
            for port in ["left", "right"] {
                ip(between, &format!("link set {port} mtu {} up", settings.mtu))?;
            }
        } else {
            wire(&left.namespace, "eth0", &right.namespace, "eth0", settings)?;
        }
        left.configure("eth0", settings.mtu)?;
        right.configure("eth0", settings.mtu)?;
        for host in [&left, &right] {
            host.await_link_local()?;
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
}

impl Pair {
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

/// Skips for other users than root.
pub fn require_root() -> Verdict {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        skip("network namespaces and their devices need root")
    }
}

/// Makes a veth pair with an end in each namespace.
pub fn wire(
    near: &Namespace,
    near_name: &str,
    far: &Namespace,
    far_name: &str,
    settings: Settings,
) -> Verdict {
    let queues = format!("numrxqueues {0} numtxqueues {0}", settings.queues.max(1));
    ip(
        near,
        &format!(
            "link add {near_name} {queues} type veth peer name {far_name} {queues} netns {}",
            far.path()
        ),
    )?;
    if settings.faults || !settings.offloads {
        disable_offloads(near, near_name)?;
        disable_offloads(far, far_name)?;
    }
    Ok(())
}

/// Makes a device send whole frames with all checksums, and deliver them one by one.
pub fn disable_offloads(namespace: &Namespace, device: &str) -> Verdict {
    run_inside(
        namespace,
        "ethtool",
        &format!("-K {device} rx off tx off sg off tso off gso off gro off"),
    )
}

/// Runs `ip` with the words in the namespace.
pub(crate) fn ip(namespace: &Namespace, words: &str) -> Verdict {
    run_inside(namespace, "ip", words)
}

fn run_inside(namespace: &Namespace, program: &str, words: &str) -> Verdict {
    let Some(path) = find_program(program) else {
        return skip(format!("{program} is not installed; scripts/setup test"));
    };
    let mut command = command(path);
    command.args(words.split_whitespace());
    namespace.enter(&mut command);
    let output = command.output()?;
    if output.status.success() {
        Ok(())
    } else {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        fail(format!("{program} {words}: {}: {said}", output.status))
    }
}
