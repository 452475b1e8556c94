//! Two hosts without a second machine: network namespaces joined by a veth pair.
//!
//! Neither namespace has a name. The kernel removes both, and the devices in them, when the last
//! process that is in them or has them open has ended, however that came.

#![allow(unsafe_code)]

pub mod twins;

use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::{BenchError, Result};
use super::machine;

/// The device in each namespace that leads to the other.
const DEVICE: &str = "eth0";

/// What `ip` and the variable in which programs look for their sockets are called.
const IP: &str = "ip";
const RUNTIME_VARIABLE: &str = "XDG_RUNTIME_DIR";

/// One of the two hosts.
#[derive(Debug)]
pub struct End {
    namespace: OwnedFd,
    address: Ipv4Addr,
    /// Processes of one host find each other by files in it; those of the other must not.
    runtime: PathBuf,
}

/// Two hosts and the veth pair between them.
#[derive(Debug)]
pub struct Network {
    pub server: End,
    pub client: End,
    folder: PathBuf,
}

/// What the kernel's own stack and its devices counted in both namespaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Received {
    /// Frames that came in by the veth pair.
    pub frames: u64,
    /// UDP datagrams that sockets were given.
    pub datagrams: u64,
}

/// Why there can be no namespaces, in a sentence; `None` if nothing is known to prevent them.
pub fn obstacle() -> Option<String> {
    if !is_root() {
        return Some("this benchmark makes network namespaces, which needs root: use sudo".into());
    }
    machine::find_program(IP).is_none().then(|| {
        "this benchmark makes network namespaces with ip, which was not found: install iproute2"
            .into()
    })
}

fn is_root() -> bool {
    // SAFETY: geteuid has no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

impl Network {
    /// Makes both, with an MTU in bytes. What belongs to them is kept in `folder`, which must not
    /// exist.
    pub fn new(mtu: u32, folder: &Path) -> Result<Self> {
        let end = |name: &str, last: u8| -> Result<End> {
            let runtime = folder.join(name);
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&runtime)
                .map_err(|error| BenchError::io(format!("make {}", runtime.display()), &error))?;
            Ok(End {
                namespace: new_namespace()?,
                address: Ipv4Addr::new(10, 44, 0, last),
                runtime,
            })
        };
        let network = Self {
            server: end("server", 1)?,
            client: end("client", 2)?,
            folder: folder.to_owned(),
        };
        // Nobody else has the descriptor's number in this process's table.
        let other = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            network.client.namespace.as_raw_fd()
        );
        network.server.ip(&format!(
            "link add {DEVICE} mtu {mtu} type veth peer name {DEVICE} netns {other}"
        ))?;
        for end in [&network.server, &network.client] {
            end.ip("link set lo up")?;
            end.ip(&format!("link set {DEVICE} mtu {mtu} up"))?;
            end.ip(&format!("addr add {}/24 dev {DEVICE}", end.address))?;
        }
        Ok(network)
    }

    /// What has come in since the namespaces were made.
    pub fn received(&self) -> Result<Received> {
        let mut sum = Received::default();
        for end in [&self.server, &self.client] {
            let (devices, protocols) = end.inside(|| {
                Ok((
                    fs::read_to_string("/proc/thread-self/net/dev")?,
                    fs::read_to_string("/proc/thread-self/net/snmp")?,
                ))
            })?;
            let counted = frames(&devices, DEVICE).zip(datagrams(&protocols));
            let (frames, datagrams) = counted.ok_or_else(|| {
                BenchError::Failed("the counters of a namespace cannot be read".to_owned())
            })?;
            sum.frames += frames;
            sum.datagrams += datagrams;
        }
        Ok(sum)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Best effort: the scratch folder, which it is in, goes at the end.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl End {
    /// Its address towards the other end.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Makes the command run on this host.
    pub fn place(&self, command: &mut Command) {
        command.env(RUNTIME_VARIABLE, &self.runtime);
        let namespace = self.namespace.as_raw_fd();
        // SAFETY: between fork and exec the closure makes one system call. The descriptor is open
        // until the command has been started, because this host is borrowed until then.
        unsafe { command.pre_exec(move || enter(namespace)) };
    }

    /// Calls the function on a thread of this host.
    pub fn inside<T: Send>(&self, body: impl FnOnce() -> io::Result<T> + Send) -> Result<T> {
        let namespace = self.namespace.as_raw_fd();
        on_thread(|| {
            enter(namespace)?;
            body()
        })
        .map_err(|error| BenchError::io("look into a network namespace", &error))
    }

    fn ip(&self, words: &str) -> Result<()> {
        let path = machine::find_program(IP).unwrap_or_else(|| IP.into());
        let mut command = Command::new(path);
        command.args(words.split_whitespace()).stdin(Stdio::null());
        self.place(&mut command);
        let output = command
            .output()
            .map_err(|error| BenchError::io("start ip", &error))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(BenchError::Failed(format!(
            "ip {words}: {}",
            said.trim_end()
        )))
    }
}

/// A namespace with nothing but a loopback device that is down.
fn new_namespace() -> Result<OwnedFd> {
    on_thread(|| {
        // SAFETY: unshare takes an integer. The thread that leaves its namespace ends here.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error());
        }
        File::open("/proc/thread-self/ns/net").map(OwnedFd::from)
    })
    .map_err(|error| BenchError::io("make a network namespace", &error))
}

/// Moves the calling thread into a network namespace.
fn enter(namespace: RawFd) -> io::Result<()> {
    // SAFETY: setns takes two integers and changes nothing but this thread's namespace.
    if unsafe { libc::setns(namespace, libc::CLONE_NEWNET) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Calls the function on a thread of its own, whose namespace ends with it.
fn on_thread<T: Send>(body: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let ended = scope.spawn(body).join();
        ended.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
    })
}

/// Packets that the device received, by the table of `/proc/net/dev`.
fn frames(devices: &str, device: &str) -> Option<u64> {
    let fields = devices
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    fields.split_whitespace().nth(1)?.parse().ok()
}

/// `InDatagrams` of `/proc/net/snmp`, which has a line of names and a line of numbers.
fn datagrams(protocols: &str) -> Option<u64> {
    let mut lines = protocols
        .lines()
        .filter_map(|line| line.strip_prefix("Udp:"));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let index = names
        .split_whitespace()
        .position(|name| name == "InDatagrams")?;
    numbers.split_whitespace().nth(index)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let devices = "Inter-|   Receive                |  Transmit\n \
                       face |bytes    packets errs drop|bytes packets\n    \
                       lo:       1       2    0    0    1    2\n  \
                       eth0: 5000      42    0    0    7    8\n";
        assert_eq!(frames(devices, DEVICE), Some(42));
        assert_eq!(frames("lo: 1 2", DEVICE), None);
        let protocols = "Tcp: InSegs\nTcp: 9\nUdp: NoPorts InDatagrams\nUdp: 1 77\n";
        assert_eq!(datagrams(protocols), Some(77));
        assert_eq!(datagrams("Udp: NoPorts\nUdp: 1\n"), None);
    }

    #[test]
    fn ends_reach_each_other_and_are_gone_afterwards() {
        if let Some(obstacle) = obstacle() {
            let strict = std::env::var_os("SLUICE_NO_SKIP").is_some_and(|value| value == "1");
            assert!(!strict, "SKIP ends_reach_each_other: {obstacle}");
            println!("SKIP ends_reach_each_other: {obstacle}");
            return;
        }
        let name = format!("sluice-bench-network-test.{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let network = Network::new(9000, &folder).expect("made");
        let address = network.server.address();
        let server = network
            .server
            .inside(|| std::net::UdpSocket::bind((address, 0)))
            .expect("bound");
        let to = server.local_addr().expect("an address");
        network
            .client
            .inside(|| std::net::UdpSocket::bind("0.0.0.0:0")?.send_to(&[7; 8000], to))
            .expect("sent");
        let patience = Some(std::time::Duration::from_secs(30));
        server.set_read_timeout(patience).expect("set");
        let mut bytes = [0; 9000];
        assert_eq!(server.recv(&mut bytes).expect("received"), 8000);
        let received = network.received().expect("counted");
        assert_eq!(received.datagrams, 1);
        assert!(received.frames >= 1, "{received:?}");
        drop(network);
        assert!(!folder.exists());
    }
}
