//! The file as it is written, with the place of every value.

use serde::Deserialize;
use toml::Spanned;

pub type Text = Spanned<String>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    #[serde(default)]
    pub daemon: Daemon,
    #[serde(default)]
    pub fabric: Fabric,
    pub discovery: Option<Discovery>,
    pub capture: Option<Spanned<Capture>>,
    #[serde(default)]
    pub peer: Vec<Spanned<Peer>>,
    #[serde(default)]
    pub rule: Vec<Spanned<Rule>>,
    pub gateway: Option<Spanned<Gateway>>,
    pub node: Option<Node>,
    #[serde(default)]
    pub window: Vec<Spanned<Window>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Daemon {
    pub name: Option<Text>,
    pub listen: Option<Vec<Text>>,
    pub metrics: Option<Text>,
    pub authentication: Option<Text>,
    pub psk_file: Option<Text>,
    pub certificate: Option<Text>,
    pub private_key: Option<Text>,
    pub ca: Option<Text>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    pub device: Option<Text>,
    pub threads: Option<Spanned<u32>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Discovery {
    pub enabled: Option<bool>,
    pub networks: Option<Vec<Text>>,
    pub port: Option<Spanned<u16>>,
    pub option: Option<bool>,
    pub cgroup: Option<Text>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    pub over: Option<Text>,
    pub cgroup: Option<Text>,
    pub ports: Option<Text>,
    pub networks: Option<Vec<Text>>,
    pub programs: Option<Vec<Text>>,
    pub serve_ports: Option<Text>,
    pub relay_port: Option<Spanned<u16>>,
    pub drain_seconds: Option<u16>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    pub name: Text,
    pub addresses: Option<Vec<Text>>,
    pub control: Option<Text>,
    pub psk_file: Option<Text>,
    pub fingerprint: Option<Text>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub action: Text,
    pub ports: Option<Text>,
    pub programs: Option<Vec<Text>>,
    pub networks: Option<Vec<Text>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gateway {
    pub addresses: Vec<Text>,
    #[serde(default)]
    pub node: Vec<Spanned<GatewayNode>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayNode {
    pub name: Text,
    pub ports: Option<Text>,
    pub addresses: Option<Vec<Text>>,
    pub connect: Option<Vec<Text>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub gateways: Option<Vec<Text>>,
    pub direct: Option<Vec<Text>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    pub path: Text,
    pub kind: Option<Text>,
    pub users: Option<Vec<Text>>,
}
