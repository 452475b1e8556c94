//! Two hosts: network namespaces joined by a pair of virtual Ethernet devices.

use sluice_netns_testing::{Namespace, can_run, ip, unique};

/// Two namespaces with the devices `left` and `right`. Removed on drop.
pub struct Hosts {
    namespaces: [Namespace; 2],
}

/// Which host.
pub const LEFT: usize = 0;
pub const RIGHT: usize = 1;

/// Their addresses: 192.0.2.1 and .2, 2001:db8::1 and ::2.
pub const FOUR: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
pub const SIX: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

impl Hosts {
    /// None, with a line that says why, where namespaces cannot be made.
    pub fn new(test: &str, mtu: u32) -> Option<Self> {
        if !can_run(test) {
            return None;
        }
        let base = unique("");
        let names = ["left", "right"].map(|side| format!("{base}-{side}"));
        let hosts = Self {
            namespaces: names.map(Namespace::new),
        };
        let [left, right] = hosts.namespaces.each_ref().map(Namespace::name);
        let pair = format!(
            "link add left netns {left} mtu {mtu} address 02:00:00:00:00:01 type veth \
             peer name right netns {right} mtu {mtu} address 02:00:00:00:00:02"
        );
        ip(&pair);
        for (host, device) in [(LEFT, "left"), (RIGHT, "right")] {
            hosts.ip(host, "link set lo up");
            hosts.ip(host, &format!("addr add {}/24 dev {device}", FOUR[host]));
            hosts.ip(
                host,
                &format!("addr add {}/64 dev {device} nodad", SIX[host]),
            );
            hosts.ip(host, &format!("link set {device} addrgenmode none"));
            let local = format!("addr add fe80::{}/64 dev {device} nodad", host + 1);
            hosts.ip(host, &local);
            hosts.ip(host, &format!("link set {device} up"));
        }
        Some(hosts)
    }

    /// Runs `ip` in a host.
    pub fn ip(&self, host: usize, arguments: &str) -> String {
        self.namespaces[host].ip(arguments)
    }

    /// Runs `work` in a host, in a thread of its own. What it opens stays there.
    pub fn within<T: Send>(&self, host: usize, work: impl FnOnce() -> T + Send) -> T {
        self.namespaces[host].enter(work)
    }
}
