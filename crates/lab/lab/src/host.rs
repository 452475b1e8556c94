//! A host without a machine: a network namespace, its addresses, and what its programs find each
//! other by.

use std::ffi::OsStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::job::{command, wait_until};
use crate::link;
use crate::namespace::Namespace;
use crate::verdict::{Verdict, ensure};

/// What the kernel does by itself when a device comes up takes milliseconds. But one work queue does
/// it for all links of the machine, under a lock that is also taken to remove network namespaces.
const SETTLE_LIMIT: Duration = Duration::from_secs(120);

/// A network namespace with one device and its addresses.
#[derive(Clone, Debug)]
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
        link::require_means()?;
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

    /// Runs `ip` with the words inside; what it printed.
    pub fn ip(&self, words: &str) -> Verdict<String> {
        link::ip(&self.namespace, words)
    }

    /// What `ip link show` says of the device; nothing, if it is gone.
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
        self.ip(&format!("addr add {}/64 dev {device} nodad", self.v6))?;
        Ok(())
    }

    /// Waits until both IPv6 addresses can be used: ours, and that of the link, which the kernel gives
    /// the device by itself some time after it came up. An RDMA device has the latter in its table
    /// before those that it got from us.
    ///
    /// What is sent to an address of one's own goes nowhere before its route is there, and a work
    /// queue of the kernel's makes that (`addrconf_dad_work`), also where nothing is to be detected.
    pub fn await_addresses(&self) -> Verdict {
        let there = || {
            let (addresses, routes) = self.inside(|| {
                let table = |name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
                Ok((table("if_inet6")?, table("ipv6_route")?))
            })?;
            Ok(link_local(&addresses, &self.device)
                .is_some_and(|local| [local, self.v6].iter().all(|own| is_local(&routes, *own))))
        };
        ensure(wait_until(SETTLE_LIMIT, there)?, || {
            format!("the IPv6 addresses of {} cannot be used", self.device)
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

/// The device's address of the link in `/proc/net/if_inet6`, if nobody else can have it.
fn link_local(table: &str, device: &str) -> Option<Ipv6Addr> {
    // proc_net(5) has nothing of it: address, index, prefix, scope (0x20: of the link), flags
    // (0x40: tentative), device.
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [address, _, _, "20", flags, name] = words[..] else {
            return None;
        };
        let flags = u8::from_str_radix(flags, 16).ok()?;
        let address = u128::from_str_radix(address, 16).ok()?;
        (name == device && flags & 0x40 == 0).then_some(Ipv6Addr::from(address))
    })
}

/// Whether `/proc/net/ipv6_route` has what comes to the address stay here.
fn is_local(routes: &str, address: Ipv6Addr) -> bool {
    // Destination and its prefix first, then flags and device last (`rt6_info_route` of
    // net/ipv6/route.c); RTF_LOCAL of linux/ipv6_route.h.
    const LOCAL: u32 = 0x8000_0000;
    let wanted = format!("{:032x}", u128::from(address));
    routes.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let flags = words.iter().rev().nth(1);
        let flags = flags.and_then(|flags| u32::from_str_radix(flags, 16).ok());
        words.first() == Some(&wanted.as_str())
            && words.get(1) == Some(&"80")
            && flags.is_some_and(|flags| flags & LOCAL != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_from_the_kernels_tables() {
        let addresses = "\
fd440000000000000000000000000001 02 40 00 82     eth0
fe800000000000000000000000000001 02 40 20 c0     eth1
fe800000000000000000000000000002 02 40 20 80     eth0
";
        let local = "fe80::2".parse().expect("an address");
        assert_eq!(link_local(addresses, "eth0"), Some(local));
        assert_eq!(link_local(addresses, "eth1"), None, "tentative");
        let zero = "0".repeat(32);
        let line = |address: &str, flags: &str| {
            format!("{address} 80 {zero} 00 {zero} 00000000 00000002 00000000 {flags}     eth0\n")
        };
        let own = "fe800000000000000000000000000002";
        assert!(is_local(&line(own, "80200001"), local));
        assert!(!is_local(&line(own, "00000001"), local));
        assert!(!is_local(&line(&zero, "80200001"), local));
    }
}
