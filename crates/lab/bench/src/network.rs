//! Two hosts of the laboratory, and what their devices count.

pub mod twins;

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use sluice_lab::host::Host;
use sluice_lab::link::{Settings, require_means};
use sluice_lab::pair::Pair;

use super::error::{BenchError, Result};
use super::machine;

/// What `ip` is called.
const IP: &str = "ip";

/// One of the two hosts.
#[derive(Debug)]
pub struct End(Host);

/// Two hosts and the veth pair between them.
#[derive(Debug)]
pub struct Network {
    pub server: End,
    pub client: End,
    /// Has what belongs to them; gone with this.
    _pair: Pair,
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
    let problem = require_means().err()?;
    Some(format!("this benchmark makes hosts of its own: {problem}"))
}

impl Network {
    /// Makes both, with an MTU in bytes. What belongs to them is kept in `folder`.
    pub fn new(mtu: u32, folder: &Path) -> Result<Self> {
        let settings = Settings {
            mtu,
            ..Settings::default()
        };
        let pair = Pair::new_in(folder, settings)?;
        Ok(Self {
            server: End(pair.left.clone()),
            client: End(pair.right.clone()),
            _pair: pair,
        })
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
            let counted = frames(&devices, end.0.device()).zip(datagrams(&protocols));
            let (frames, datagrams) = counted.ok_or_else(|| {
                BenchError::Failed("the counters of a namespace cannot be read".to_owned())
            })?;
            sum.frames += frames;
            sum.datagrams += datagrams;
        }
        Ok(sum)
    }
}

impl End {
    /// Its address towards the other end.
    pub fn address(&self) -> Ipv4Addr {
        self.0.v4()
    }

    /// Makes the command run on this host, with files of its own by which processes of one host
    /// find each other.
    pub fn place(&self, command: &mut Command) {
        self.0.place(command);
    }

    /// Calls the function on a thread of this host.
    pub fn inside<T: Send>(&self, body: impl FnOnce() -> io::Result<T> + Send) -> Result<T> {
        self.0
            .inside(body)
            .map_err(|error| BenchError::io("look into a network namespace", &error))
    }
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
        assert_eq!(frames(devices, "eth0"), Some(42));
        assert_eq!(frames("lo: 1 2", "eth0"), None);
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
        fs::create_dir(&folder).expect("made");
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
        // Nothing is left in it.
        fs::remove_dir(&folder).expect("empty");
    }
}
