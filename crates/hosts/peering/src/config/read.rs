//! From the text to what it means.

use std::cell::RefCell;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluice_control::message::gateway::NETWORKS_MAX;
use sluice_control::ports::Ports;
use toml::Spanned;

use super::capture::{COMM_BYTES_MAX, DRAIN_S_DEFAULT, PROGRAMS_MAX, RELAY_PORT_DEFAULT};
use super::gateway::{ADDRESSES_MAX, Gateway, Node, Publishing};
use super::raw::{self, Text};
use super::window::{USERS_MAX, WINDOWS_MAX, Window, user};
use super::{
    Action, Authentication, Capture, Config, ConfigError, Device, Discovery, Fingerprint,
    LISTEN_MAX, Network, Over, PEERS_MAX, PORT_DEFAULT, Peer, Rule, Rules, THREADS_MAX, is_name,
};

/// Where unknown daemons are asked when nothing else is said: addresses that are not on the
/// internet (RFC 1918, RFC 3927, RFC 4193, RFC 6598). IPv6 link-local addresses say nothing without their link.
const DISCOVERY_NETWORKS: [&str; 6] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "100.64.0.0/10",
    "fc00::/7",
];

/// Turns places in the text into lines.
struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    /// What was found so far, so that all of it is said at once.
    problems: RefCell<Vec<ConfigError>>,
}

type Result<T> = std::result::Result<T, ConfigError>;

pub(super) fn read(path: &Path, text: &str) -> Result<Config> {
    let reader = Reader {
        path,
        text,
        problems: RefCell::default(),
    };
    let file: raw::File = toml::from_str(text).map_err(|error| reader.syntax(&error))?;
    let config = reader.config(file);
    let mut problems = reader.problems.take();
    problems.sort_by_key(|problem| problem.line);
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        _ if problems.is_empty() => Err(reader.whole("the file says what makes no sense")),
        _ => {
            let mut first = problems.remove(0);
            first.others = problems;
            Err(first)
        }
    }
}

impl Reader<'_> {
    fn at(&self, place: usize, problem: impl Into<String>) -> ConfigError {
        let before = self.text.as_bytes().iter().take(place);
        ConfigError {
            path: self.path.to_owned(),
            line: Some(1 + before.filter(|byte| **byte == b'\n').count()),
            problem: problem.into(),
            others: Vec::new(),
        }
    }

    fn about<T>(&self, value: &Spanned<T>, problem: impl Into<String>) -> ConfigError {
        self.at(value.span().start, problem)
    }

    fn whole(&self, problem: impl Into<String>) -> ConfigError {
        ConfigError {
            path: self.path.to_owned(),
            line: None,
            problem: problem.into(),
            others: Vec::new(),
        }
    }

    /// What the TOML reader or serde has found.
    fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        let message = error.message();
        let problem = match message.strip_prefix("unknown field ") {
            Some(rest) => format!("unknown key {}", rest.replace(", expected", ": write")),
            None => match message.strip_prefix("missing field ") {
                Some(key) => format!("the key {key} is missing: write {key} = …"),
                None => message.to_owned(),
            },
        };
        match error.span() {
            Some(span) => self.at(span.start, problem),
            None => self.whole(problem),
        }
    }

    /// Keeps an error for the end, so that what does not hang on the value is looked at, too.
    fn note<T>(&self, result: Result<T>) -> Option<T> {
        result
            .map_err(|problem| self.problems.borrow_mut().push(problem))
            .ok()
    }

    fn config(&self, file: raw::File) -> Option<Config> {
        let name = self.note(match &file.daemon.name {
            Some(name) => self.name(name),
            None => self.host_name(),
        });
        let authentication = self.note(self.authentication(&file.daemon));
        let talks = file
            .discovery
            .as_ref()
            .is_some_and(|d| d.enabled != Some(false))
            || !file.peer.is_empty()
            || file.daemon.listen.is_some();
        if authentication == Some(None) && talks {
            let _: Option<()> = self.note(Err(self.whole(
                "nothing says how daemons prove who they are: write in [daemon] psk_file = \"…\", \
                 or certificate, private_key and ca, or authentication = \"none\"",
            )));
        }
        let listen = match &file.daemon.listen {
            Some(listen) => self.note(self.listen(listen)),
            None => Some(vec![SocketAddr::new(
                Ipv6Addr::UNSPECIFIED.into(),
                PORT_DEFAULT,
            )]),
        };
        let metrics = match &file.daemon.metrics {
            Some(text) => {
                let parsed = super::metrics_address(text.get_ref());
                self.note(
                    parsed
                        .map(Some)
                        .map_err(|problem| self.about(text, problem)),
                )
            }
            None => Some(None),
        };
        let device = file.fabric.device.as_ref();
        let device = self.note(device.map(|text| self.device(text)).transpose());
        let threads = self.note(self.threads(file.fabric.threads.as_ref()));
        let is_discovery_there = file.discovery.is_some();
        let discovery = self.note(self.discovery(file.discovery));
        let rules = self.note(self.rules(&file.rule));
        // What hangs on the rest is looked at when that is right.
        let (name, authentication, listen) = (name?, authentication?, listen?);
        let capture = file.capture.as_ref();
        let capture = self.note(
            capture
                .map(|raw| self.capture(raw, &listen, authentication.as_ref()))
                .transpose(),
        );
        let peers = self.note(self.peers(&file.peer, &name, authentication.as_ref()))?;
        let is_known =
            |name: &str| peers.iter().any(|peer| peer.name == name) || is_discovery_there;
        let gateway = file.gateway.as_ref();
        let gateway = self.note(
            gateway
                .map(|raw| self.gateway(raw, &peers, is_known))
                .transpose(),
        );
        let windows = self.note(self.windows(&file.window));
        let node = file.node.unwrap_or_default();
        let publishing = self.note(self.publishing(node, &peers, is_known));
        Some(Config {
            path: self.path.to_owned(),
            gateway: gateway?,
            windows: windows?,
            publishing: publishing?,
            peers,
            name,
            listen,
            metrics: metrics?,
            authentication,
            device: device?,
            threads: threads?,
            discovery: discovery?,
            rules: rules?,
            capture: capture?,
        })
    }

    fn name(&self, text: &Text) -> Result<String> {
        let name = text.get_ref();
        if is_name(name) {
            return Ok(name.clone());
        }
        Err(self.about(
            text,
            format!("{name:?} is no name: write letters a-z, digits, - and _, with dots between"),
        ))
    }

    fn host_name(&self) -> Result<String> {
        let system = rustix::system::uname();
        let name = system.nodename().to_string_lossy().to_lowercase();
        if is_name(&name) {
            return Ok(name);
        }
        Err(self.whole(format!(
            "the host's name, {name:?}, cannot be the daemon's: write name = \"…\" in [daemon]"
        )))
    }

    fn path_of(&self, text: &Text) -> Result<PathBuf> {
        if text.get_ref().is_empty() {
            return Err(self.about(text, "write the path of a file"));
        }
        let directory = self.path.parent().unwrap_or(Path::new("."));
        Ok(directory.join(text.get_ref()))
    }

    fn authentication(&self, daemon: &raw::Daemon) -> Result<Option<Authentication>> {
        let certificates = [&daemon.certificate, &daemon.private_key, &daemon.ca];
        let certificate = certificates.into_iter().flatten().next();
        let said = daemon.authentication.as_ref();
        match said.map(|text| text.get_ref().as_str()) {
            None | Some("psk" | "certificates" | "none") => {}
            Some(_) => {
                let problem = "write \"psk\", \"certificates\" or \"none\"";
                return Err(said.map_or_else(|| self.whole(problem), |s| self.about(s, problem)));
            }
        }
        let method = match (said, &daemon.psk_file, certificate) {
            (_, Some(psk), Some(_)) => {
                let problem = "psk_file or certificate, private_key and ca: write one of the two";
                return Err(self.about(psk, problem));
            }
            (Some(said), psk, certificate) => {
                let method = said.get_ref().as_str();
                if let Some(psk) = psk.as_ref().filter(|_| method != "psk") {
                    let problem = format!("authentication is {method:?}: leave psk_file out");
                    return Err(self.about(psk, problem));
                }
                if let Some(certificate) = certificate.filter(|_| method != "certificates") {
                    let problem = format!("authentication is {method:?}: leave this file out");
                    return Err(self.about(certificate, problem));
                }
                method
            }
            (None, Some(_), None) => "psk",
            (None, None, Some(_)) => "certificates",
            (None, None, None) => return Ok(None),
        };
        Ok(Some(match method {
            "psk" => Authentication::Psk {
                file: daemon
                    .psk_file
                    .as_ref()
                    .map(|f| self.path_of(f))
                    .transpose()?,
            },
            "certificates" => {
                let file = |key: &str, value: &Option<Text>| match (value, certificate, said) {
                    (Some(value), _, _) => self.path_of(value),
                    (None, Some(near), _) | (None, None, Some(near)) => {
                        Err(self.about(near, format!("write {key} = \"…\" as well")))
                    }
                    (None, None, None) => Err(self.whole(format!("write {key} = \"…\""))),
                };
                Authentication::Certificates {
                    certificate: file("certificate", &daemon.certificate)?,
                    private_key: file("private_key", &daemon.private_key)?,
                    ca: file("ca", &daemon.ca)?,
                }
            }
            _ => Authentication::None,
        }))
    }

    fn listen(&self, texts: &[Text]) -> Result<Vec<SocketAddr>> {
        if let Some(text) = texts.get(LISTEN_MAX) {
            return Err(self.about(text, format!("at most {LISTEN_MAX} addresses")));
        }
        texts.iter().map(|text| self.socket(text)).collect()
    }

    /// An address with or without a port.
    fn socket(&self, text: &Text) -> Result<SocketAddr> {
        let value = text.get_ref();
        if let Ok(address) = value.parse::<SocketAddr>() {
            if address.port() != 0 {
                return Ok(address);
            }
        } else if let Ok(address) = value.parse::<IpAddr>() {
            return Ok(SocketAddr::new(address, PORT_DEFAULT));
        }
        Err(self.about(
            text,
            format!(
                "{value:?} is no address: write 10.0.0.7, 10.0.0.7:{PORT_DEFAULT}, fd00::7 or \
                 [fd00::7]:{PORT_DEFAULT}"
            ),
        ))
    }

    fn threads(&self, number: Option<&Spanned<u32>>) -> Result<Option<u32>> {
        let Some(number) = number else {
            return Ok(None);
        };
        match *number.get_ref() {
            threads @ 1..=THREADS_MAX => Ok(Some(threads)),
            _ => Err(self.about(number, format!("write a number from 1 to {THREADS_MAX}"))),
        }
    }

    fn device(&self, text: &Text) -> Result<Device> {
        match text.get_ref().as_str() {
            "roce" => return Ok(Device::Roce),
            "roce-udp" => return Ok(Device::RoceUdp),
            "shm" => return Ok(Device::Shm),
            other => {
                if let Some(path) = other.strip_prefix("window:") {
                    return self.window_device(text, path);
                }
                let name = other.strip_prefix("hw:").unwrap_or_default();
                let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
                if !name.is_empty() && name.len() < 64 && name.chars().all(good) {
                    return Ok(Device::Hardware(name.to_owned()));
                }
            }
        }
        Err(self.about(
            text,
            "write \"roce\", \"roce-udp\", \"window:/PATH\", \"shm\" or \"hw:NAME\" with a name that \
             ibv_devices shows",
        ))
    }

    /// The verbs library reads a list of devices, in a process whose folder is another one.
    fn window_device(&self, text: &Text, path: &str) -> Result<Device> {
        if path.starts_with('/') && !path.contains([',', '\0']) {
            return Ok(Device::Window(path.into()));
        }
        Err(self.about(
            text,
            "write \"window:\" and an absolute path without a comma: the file that `sluice window \
             create` made and all hosts share",
        ))
    }

    fn networks(&self, texts: &[Text]) -> Result<Vec<Network>> {
        let parse = |text: &Text| {
            let parsed = text.get_ref().parse();
            parsed.map_err(|error| self.about(text, format!("{:?}: {error}", text.get_ref())))
        };
        texts.iter().map(parse).collect()
    }

    fn discovery(&self, raw: Option<raw::Discovery>) -> Result<Discovery> {
        let enabled = raw.as_ref().is_some_and(|raw| raw.enabled != Some(false));
        let networks = match raw.as_ref().and_then(|raw| raw.networks.as_ref()) {
            Some(texts) => self.networks(texts)?,
            None => {
                let parsed = DISCOVERY_NETWORKS.iter().map(|text| text.parse());
                let parsed: std::result::Result<_, _> = parsed.collect();
                parsed.map_err(|error| self.whole(format!("{error}")))?
            }
        };
        let option = raw.as_ref().and_then(|raw| raw.option) == Some(true);
        let cgroup = match raw.as_ref().and_then(|raw| raw.cgroup.as_ref()) {
            Some(text) if !option => {
                let problem = "cgroup says whose handshakes have the option: write option = true";
                return Err(self.about(text, problem));
            }
            Some(text) => Some(self.path_of(text)?),
            None => None,
        };
        let port = match raw.and_then(|raw| raw.port) {
            Some(port) if *port.get_ref() == 0 => {
                return Err(self.about(&port, "write a port from 1 to 65535"));
            }
            Some(port) => port.into_inner(),
            None => PORT_DEFAULT,
        };
        Ok(Discovery {
            enabled,
            networks,
            port,
            option: option && enabled,
            cgroup,
        })
    }

    fn peers(
        &self,
        raw: &[Spanned<raw::Peer>],
        own_name: &str,
        authentication: Option<&Authentication>,
    ) -> Result<Vec<Peer>> {
        if let Some(peer) = raw.get(PEERS_MAX) {
            return Err(self.about(peer, format!("at most {PEERS_MAX} peers")));
        }
        let mut names = HashSet::new();
        let mut peers = Vec::with_capacity(raw.len());
        for peer in raw {
            let peer = self.peer(peer.get_ref(), own_name, authentication)?;
            if !names.insert(peer.name.clone()) {
                let twice = raw.get(peers.len()).map(|peer| &peer.get_ref().name);
                let problem = format!("there is a [[peer]] {} already: join the two", peer.name);
                return Err(twice.map_or_else(
                    || self.whole(problem.clone()),
                    |name| self.about(name, problem.clone()),
                ));
            }
            peers.push(peer);
        }
        Ok(peers)
    }

    fn peer(
        &self,
        raw: &raw::Peer,
        own_name: &str,
        authentication: Option<&Authentication>,
    ) -> Result<Peer> {
        let name = self.name(&raw.name)?;
        if name == own_name {
            let problem = format!("{name} is this daemon itself: leave the [[peer]] out");
            return Err(self.about(&raw.name, problem));
        }
        let mut addresses = self.networks(raw.addresses.as_deref().unwrap_or_default())?;
        let control = match &raw.control {
            Some(control) => self.socket(control)?,
            None => {
                let single = addresses.iter().find_map(Network::as_single);
                let address = single.ok_or_else(|| {
                    let problem = "where its daemon listens is not said: write control = \
                                   \"ADDRESS\" or addresses = [\"ADDRESS\"]";
                    self.about(&raw.name, problem)
                })?;
                SocketAddr::new(address, PORT_DEFAULT)
            }
        };
        if addresses.is_empty() {
            addresses.push(Network::single(control.ip()));
        }
        let psk_file = match &raw.psk_file {
            Some(file) if !matches!(authentication, Some(Authentication::Psk { .. })) => {
                let problem = "a peer's psk_file needs authentication = \"psk\" in [daemon]";
                return Err(self.about(file, problem));
            }
            Some(file) => Some(self.path_of(file)?),
            None => None,
        };
        let fingerprint = match &raw.fingerprint {
            Some(text) if !matches!(authentication, Some(Authentication::Certificates { .. })) => {
                let problem = "a fingerprint needs certificate, private_key and ca in [daemon]";
                return Err(self.about(text, problem));
            }
            Some(text) => Some(self.fingerprint(text)?),
            None => None,
        };
        if let Some(Authentication::Psk { file: None }) = authentication
            && psk_file.is_none()
        {
            let problem = format!("{name} has no key: write psk_file here or in [daemon]");
            return Err(self.about(&raw.name, problem));
        }
        Ok(Peer {
            name,
            addresses,
            control,
            psk_file,
            fingerprint,
        })
    }

    fn fingerprint(&self, text: &Text) -> Result<Fingerprint> {
        let wrong = || {
            let problem = "write \"sha256:\" and 64 hexadecimal digits, as `openssl x509 -noout \
                           -fingerprint -sha256 -in FILE` shows them";
            self.about(text, problem)
        };
        let value = text.get_ref().to_lowercase();
        let digits = value.strip_prefix("sha256:").ok_or_else(wrong)?;
        let digits = digits.replace(':', "");
        crate::secret::from_hex(&digits)
            .map(Fingerprint)
            .ok_or_else(wrong)
    }

    fn addresses(&self, texts: &[Text]) -> Result<Vec<IpAddr>> {
        if let Some(text) = texts.get(ADDRESSES_MAX) {
            return Err(self.about(text, format!("at most {ADDRESSES_MAX} addresses")));
        }
        let parse = |text: &Text| {
            let parsed = text.get_ref().parse::<IpAddr>();
            parsed.map_err(|_| {
                let problem = format!("{:?} is no address: write 192.0.2.7 or ::", text.get_ref());
                self.about(text, problem)
            })
        };
        texts.iter().map(parse).collect()
    }

    /// What a gateway and its nodes are told of one another's addresses, that of the control
    /// connection among them, has room for [`NETWORKS_MAX`].
    fn few_addresses(&self, name: &Text, peers: &[Peer]) -> Result<()> {
        let named = |peer: &&Peer| peer.name == *name.get_ref();
        let Some(peer) = peers.iter().find(named) else {
            return Ok(());
        };
        let control = Network::single(peer.control.ip());
        let others = peer.addresses.iter().filter(|it| **it != control).count();
        if others < NETWORKS_MAX {
            return Ok(());
        }
        let problem = format!(
            "the [[peer]] {} has {} addresses, with that of control, and {NETWORKS_MAX} is the most \
             for a gateway and its nodes: write networks (10.1.0.0/28) in their place",
            peer.name,
            others + 1
        );
        Err(self.about(name, problem))
    }

    /// As many as programs are told of.
    fn few_networks(&self, texts: &[Text]) -> Result<Vec<Network>> {
        if let Some(text) = texts.get(NETWORKS_MAX) {
            return Err(self.about(text, format!("at most {NETWORKS_MAX} networks")));
        }
        self.networks(texts)
    }

    fn gateway(
        &self,
        raw: &Spanned<raw::Gateway>,
        peers: &[Peer],
        is_known: impl Fn(&str) -> bool,
    ) -> Result<Gateway> {
        let table = raw.get_ref();
        let addresses = self.addresses(&table.addresses)?;
        if addresses.is_empty() {
            return Err(self.about(raw, "write where clients connect to: addresses = [\"::\"]"));
        }
        let mut nodes: Vec<Node> = Vec::with_capacity(table.node.len());
        for node in &table.node {
            let node = node.get_ref();
            let name = self.name(&node.name)?;
            if nodes.iter().any(|other| other.name == name) {
                let problem = format!("there is a [[gateway.node]] {name} already: join the two");
                return Err(self.about(&node.name, problem));
            }
            if !is_known(&name) {
                let problem = format!("{name} is no peer: write a [[peer]] with that name");
                return Err(self.about(&node.name, problem));
            }
            self.few_addresses(&node.name, peers)?;
            let ports = node.ports.as_ref().map(|text| {
                let parsed = Ports::parse(text.get_ref());
                parsed.map_err(|error| self.about(text, error.to_string()))
            });
            let at = match &node.addresses {
                None => addresses.clone(),
                Some(texts) => {
                    let at = self.addresses(texts)?;
                    let strange = texts
                        .iter()
                        .zip(&at)
                        .find(|(_, ip)| !addresses.contains(ip));
                    if let Some((text, ip)) = strange {
                        let problem = format!("{ip} is not in the addresses of [gateway]");
                        return Err(self.about(text, problem));
                    }
                    at
                }
            };
            nodes.push(Node {
                name,
                ports: ports.transpose()?,
                addresses: at,
                connect: self.few_networks(node.connect.as_deref().unwrap_or_default())?,
            });
        }
        Ok(Gateway { addresses, nodes })
    }

    fn publishing(
        &self,
        raw: raw::Node,
        peers: &[Peer],
        is_known: impl Fn(&str) -> bool,
    ) -> Result<Publishing> {
        let mut gateways = Vec::new();
        for text in raw.gateways.as_deref().unwrap_or_default() {
            let name = self.name(text)?;
            if !is_known(&name) {
                let problem = format!("{name} is no peer: write a [[peer]] with that name");
                return Err(self.about(text, problem));
            }
            self.few_addresses(text, peers)?;
            gateways.push(name);
        }
        Ok(Publishing {
            gateways,
            direct: self.few_networks(raw.direct.as_deref().unwrap_or_default())?,
        })
    }

    fn windows(&self, raw: &[Spanned<raw::Window>]) -> Result<Vec<Window>> {
        if let Some(window) = raw.get(WINDOWS_MAX) {
            return Err(self.about(window, format!("at most {WINDOWS_MAX} windows")));
        }
        let passwd = match raw {
            [] => String::new(),
            _ => std::fs::read_to_string("/etc/passwd").unwrap_or_default(),
        };
        let mut windows: Vec<Window> = Vec::new();
        for window in raw.iter().map(Spanned::get_ref) {
            match window
                .kind
                .as_ref()
                .map(|kind| (kind, kind.get_ref().as_str()))
            {
                None | Some((_, "coherent")) => {}
                Some((kind, "flush" | "push")) => {
                    let problem = "connections can lie in memory whose caches agree only: \
                                   write \"coherent\", or leave this window out";
                    return Err(self.about(kind, problem));
                }
                Some((kind, _)) => return Err(self.about(kind, "write \"coherent\"")),
            }
            let path = self.path_of(&window.path)?;
            if windows.iter().any(|other| other.path == path) {
                return Err(self.about(&window.path, "this window is there already"));
            }
            let texts = window.users.as_deref().unwrap_or_default();
            if let Some(text) = texts.get(USERS_MAX) {
                return Err(self.about(text, format!("at most {USERS_MAX} users")));
            }
            let user = |text: &Text| {
                let name = text.get_ref();
                user(name, &passwd).ok_or_else(|| {
                    let problem =
                        format!("{name:?} is no user of /etc/passwd: write a name or a number");
                    self.about(text, problem)
                })
            };
            let users = texts.iter().map(user).collect::<Result<_>>()?;
            windows.push(Window { path, users });
        }
        Ok(windows)
    }

    fn rules(&self, raw: &[Spanned<raw::Rule>]) -> Result<Rules> {
        let rules = raw.iter().map(|rule| self.rule(rule.get_ref()));
        rules.collect::<Result<_>>().map(Rules)
    }

    fn rule(&self, raw: &raw::Rule) -> Result<Rule> {
        let action = match raw.action.get_ref().as_str() {
            "accelerate" => Action::Accelerate,
            "leave" => Action::Leave,
            _ => return Err(self.about(&raw.action, "write \"accelerate\" or \"leave\"")),
        };
        let ports = raw.ports.as_ref().map(|text| self.ports(text));
        let programs = raw.programs.as_deref().map(|names| self.programs(names));
        let networks = raw.networks.as_ref().map(|texts| self.networks(texts));
        Ok(Rule {
            action,
            ports: ports.transpose()?,
            programs: programs.transpose()?,
            networks: networks.transpose()?,
        })
    }

    fn ports(&self, text: &Text) -> Result<Ports> {
        let parsed = Ports::parse(text.get_ref());
        parsed.map_err(|error| self.about(text, error.to_string()))
    }

    fn programs(&self, texts: &[Text]) -> Result<Vec<String>> {
        let parse = |text: &Text| {
            let name = text.get_ref();
            if name.is_empty() || name.contains('/') {
                let problem = format!("{name:?}: write the last part of the program's path");
                return Err(self.about(text, problem));
            }
            Ok(name.clone())
        };
        texts.iter().map(parse).collect()
    }

    fn capture(
        &self,
        spanned: &Spanned<raw::Capture>,
        listen: &[SocketAddr],
        authentication: Option<&Authentication>,
    ) -> Result<Capture> {
        match authentication {
            Some(Authentication::Psk { .. } | Authentication::Certificates { .. }) => {}
            Some(Authentication::None) | None => {
                let problem = "capture needs daemons that prove who they are: write psk_file, or \
                               certificate, private_key and ca in [daemon]";
                return Err(self.about(spanned, problem));
            }
        }
        let raw = spanned.get_ref();
        let ports = |text: &Option<Text>| text.as_ref().map(|text| self.ports(text)).transpose();
        if let Some(program) = raw.programs.as_ref().and_then(|all| all.get(PROGRAMS_MAX)) {
            return Err(self.about(program, format!("at most {PROGRAMS_MAX} programs")));
        }
        let programs = raw.programs.as_deref().map(|names| self.programs(names));
        let programs = programs.transpose()?.map(|mut programs| {
            for name in &mut programs {
                let end = (0..=COMM_BYTES_MAX)
                    .rev()
                    .find(|at| name.is_char_boundary(*at));
                name.truncate(end.unwrap_or_default());
            }
            programs
        });
        let relay_port = match &raw.relay_port {
            Some(port) => {
                let number = *port.get_ref();
                if number == 0 || listen.iter().any(|address| address.port() == number) {
                    let problem = "write a port from 1 to 65535 that is not the daemon's";
                    return Err(self.about(port, problem));
                }
                number
            }
            None => RELAY_PORT_DEFAULT,
        };
        let over = raw.over.as_ref().map(|text| match text.get_ref().as_str() {
            "adapter" => Ok(Over::Adapter),
            "any" => Ok(Over::Any),
            other => {
                let problem = format!("{other:?}: write \"adapter\" or \"any\"");
                Err(self.about(text, problem))
            }
        });
        let cgroup = raw.cgroup.as_ref().map(|text| self.path_of(text));
        let networks = raw.networks.as_ref().map(|texts| self.networks(texts));
        Ok(Capture {
            over: over.transpose()?.unwrap_or_default(),
            cgroup: cgroup.transpose()?,
            ports: ports(&raw.ports)?,
            networks: networks.transpose()?,
            programs,
            serve_ports: ports(&raw.serve_ports)?,
            relay_port,
            drain: Duration::from_secs(raw.drain_seconds.unwrap_or(DRAIN_S_DEFAULT).into()),
        })
    }
}
