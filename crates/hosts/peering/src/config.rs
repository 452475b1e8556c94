//! The configuration file of sluiced.
//!
//! One TOML file; `crates/hosts/peering/sluiced.toml` is an example with every key. Unknown keys are
//! errors, and each error says its file, its line, and what to write instead.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

pub mod capture;
pub(crate) mod cgroup;
mod changes;
pub mod gateway;
pub mod network;
mod raw;
mod read;
pub mod rules;
#[cfg(test)]
mod tests;
pub mod window;

pub use capture::{Capture, Over};
pub use changes::Changes;
pub use network::{Network, NetworkError};
pub use rules::{Action, Candidate, Rule, Rules};
pub use sluice_control::ports::Ports;

/// The TCP port of control connections when nothing else is said. It lies in the middle of a range
/// (4793 to 4799) that IANA has not assigned, below the ports that Linux gives to outgoing
/// connections (32768 and up, ip(7)), and near RoCEv2's UDP port 4791.
pub const PORT_DEFAULT: u16 = 4797;

/// Bytes of a configuration file at most.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Peers in one file at most.
pub const PEERS_MAX: usize = 1_024;

/// Listening addresses at most.
pub const LISTEN_MAX: usize = 16;

/// Threads of the fabric.
pub const THREADS_MAX: u32 = 8;

/// Threads of the fabric where nothing is said, at most.
const THREADS_DEFAULT_MAX: u32 = 4;

/// Bytes of a daemon's name: those of a DNS name (RFC 1035 2.3.4).
pub const NAME_BYTES_MAX: usize = 253;

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where it was read from.
    pub path: PathBuf,
    /// This daemon's; by default the name of the host, in lower case.
    pub name: String,
    /// Where control connections are accepted. `[::]` also takes IPv4.
    pub listen: Vec<SocketAddr>,
    /// Where figures are served.
    pub metrics: Option<SocketAddr>,
    /// How daemons prove who they are. `None`: nothing was said, and neither peers, discovery nor
    /// a listening address: then there are no control connections at all.
    pub authentication: Option<Authentication>,
    /// What the fabric runs on; `None`: nothing was said.
    pub device: Option<Device>,
    /// How many threads carry its bytes, 1 to [`THREADS_MAX`]; `None`: nothing was said.
    pub threads: Option<u32>,
    pub peers: Vec<Peer>,
    pub discovery: Discovery,
    pub rules: Rules,
    /// `None`: nothing is captured.
    pub capture: Option<Capture>,
    /// This host is a gateway.
    pub gateway: Option<gateway::Gateway>,
    /// Memory that this host shares with others.
    pub windows: Vec<window::Window>,
    /// Programs of this host may use gateways.
    pub publishing: gateway::Publishing,
}

/// How daemons prove who they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// All have one key, or each two of them have one of their own. `None`: peers that have no
    /// key of their own are neither asked nor served.
    Psk { file: Option<PathBuf> },
    /// Certificates that one authority has signed; PEM files.
    Certificates {
        certificate: PathBuf,
        private_key: PathBuf,
        ca: PathBuf,
    },
    /// Nobody proves anything. Connections are still encrypted.
    None,
}

/// What the fabric runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// RoCEv2 on AF_XDP, or on UDP sockets where that is not possible.
    Roce,
    /// RoCEv2 on UDP sockets.
    RoceUdp,
    /// Shared memory, for daemons on one host.
    Shm,
    /// Memory that the hosts share: the window in this file.
    Window(PathBuf),
    /// An RDMA device of the system, by its name.
    Hardware(String),
}

/// As it is written.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Roce => f.write_str("roce"),
            Self::RoceUdp => f.write_str("roce-udp"),
            Self::Shm => f.write_str("shm"),
            Self::Window(path) => write!(f, "window:{}", path.display()),
            Self::Hardware(name) => write!(f, "hw:{name}"),
        }
    }
}

/// Another host's daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// What it calls itself, and what its certificate says.
    pub name: String,
    /// Connections with these addresses end at that host.
    pub addresses: Vec<Network>,
    /// Where its daemon listens.
    pub control: SocketAddr,
    /// A key that only the two have.
    pub psk_file: Option<PathBuf>,
    /// What its certificate must be, besides being signed by the authority.
    pub fingerprint: Option<Fingerprint>,
}

/// SHA-256 of a certificate (DER).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

/// As `openssl x509 -noout -fingerprint -sha256` writes it, without its colons and in lower case,
/// after `sha256:`.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether daemons are asked that the file does not name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovery {
    pub enabled: bool,
    /// Where: others are neither asked nor served.
    pub networks: Vec<Network>,
    pub port: u16,
    /// Whether an option in the handshakes of programs' connections says whom to ask.
    pub option: bool,
    /// Of programs in this cgroup and below; `None`: of all.
    pub cgroup: Option<PathBuf>,
}

/// A file that cannot be used. Its text has the place, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub path: PathBuf,
    /// From 1; `None`: it is about the whole file.
    pub line: Option<usize>,
    pub problem: String,
    /// What else is wrong with the file.
    pub others: Vec<ConfigError>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.problem)?;
        self.others
            .iter()
            .try_for_each(|other| write!(f, "\n{other}"))
    }
}

impl std::error::Error for ConfigError {}

fn threads_for(processors: usize) -> u32 {
    let half = u32::try_from(processors / 2).unwrap_or(u32::MAX);
    half.clamp(1, THREADS_DEFAULT_MAX)
}

impl Config {
    /// Reads the file. The keys and certificates that it names are not opened; that is
    /// [`Identity::load`](crate::Identity::load).
    ///
    /// # Errors
    /// It cannot be read, is longer than [`FILE_BYTES_MAX`], is not TOML, or says what makes no
    /// sense.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let error = |problem| ConfigError {
            path: path.to_owned(),
            line: None,
            problem,
            others: Vec::new(),
        };
        let length = std::fs::metadata(path).map(|meta| meta.len());
        match length {
            Ok(length) if length > FILE_BYTES_MAX => {
                let most = FILE_BYTES_MAX >> 20;
                return Err(error(format!("a configuration has at most {most} MiB")));
            }
            _ => {}
        }
        let text = std::fs::read_to_string(path).map_err(|cause| error(cause.to_string()))?;
        Config::parse(path, &text)
    }

    /// The same for a text; `path` is what errors name, and paths in the text are relative to its
    /// directory.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
        read::read(path, text)
    }

    /// The peer with that name.
    pub fn peer(&self, name: &str) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.name == name)
    }

    /// The peer at whose host connections with that address end.
    pub fn peer_at(&self, address: IpAddr) -> Option<&Peer> {
        let here = |peer: &&Peer| peer.addresses.iter().any(|net| net.contains(address));
        self.peers.iter().find(here)
    }

    /// Whether a daemon at that address may be talked to although the file does not name it.
    pub fn is_discovered(&self, address: IpAddr) -> bool {
        self.discovery.enabled
            && self
                .discovery
                .networks
                .iter()
                .any(|network| network.contains(address))
    }

    /// Whether the device is an RDMA adapter, as far as its name says: what the kernel emulates
    /// has such a name, too.
    #[must_use]
    pub fn names_adapter(&self) -> bool {
        matches!(self.device, Some(Device::Hardware(_)))
    }

    /// How many threads carry the fabric's bytes: as the file says, or else with an adapter one for every two
    /// processors that this process may use, at most 4, as programs need the others. Devices in software take
    /// turns at one thing or another (decision 0089), and have one.
    #[must_use]
    pub fn fabric_threads(&self) -> u32 {
        let allowed = || match self.names_adapter() {
            true => std::thread::available_parallelism().map_or(1, usize::from),
            false => 1,
        };
        self.threads.unwrap_or_else(|| threads_for(allowed()))
    }

    /// Whether connections are to be captured, as far as the device's name says.
    #[must_use]
    pub fn captures(&self) -> bool {
        let is_adapter = self.names_adapter();
        let capture = self.capture.as_ref();
        capture.is_some_and(|capture| capture.is_for(is_adapter))
    }

    /// What to say to who wants to capture, and has TCP instead, with a device of this kind.
    #[must_use]
    pub fn capture_remark(&self, is_adapter: bool) -> Option<String> {
        if self.capture.as_ref()?.is_for(is_adapter) {
            return None;
        }
        let device = self.device.as_ref().unwrap_or(&Device::Roce);
        Some(format!(
            "[capture] leaves connections to TCP, which is faster than a relay on each host without an \
             RDMA adapter (docs/limitations.md), and device = \"{device}\" is none; what can be preloaded is \
             faster still under 'sluice run'; over = \"any\" in [capture] captures all the same"
        ))
    }
}

/// One thing that [`Config::check`] has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// sluiced would not start.
    pub is_error: bool,
    pub text: String,
}

/// Where figures are to be served: an address and a port, or a port of this host alone
/// (127.0.0.1), which is all that anybody needs who does not say more.
///
/// # Errors
/// It is neither; the text says what to write.
pub fn metrics_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    text.parse().map_err(|_| {
        format!(
            "{text:?} is no address: write a port (9797) or an address and a port (10.0.0.1:9797)"
        )
    })
}

/// Whether a text can be a daemon's name: the labels of a DNS name, in lower case, with `_`,
/// and no address.
pub fn is_name(text: &str) -> bool {
    let label = |label: &str| {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
        !label.is_empty()
            && label.len() <= 63
            && label.chars().all(good)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= NAME_BYTES_MAX && text.parse::<IpAddr>().is_err() && text.split('.').all(label)
}
