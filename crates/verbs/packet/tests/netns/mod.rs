//! Two hosts of the laboratory. Each test uses a part of this.
#![allow(dead_code)]

use std::net::Ipv6Addr;

use sluice_lab::link::Settings;
use sluice_lab::pair::{End, Pair, SIDES};
use sluice_lab::verdict::made;

/// Two hosts with the devices `left` and `right`. Removed on drop.
pub struct Hosts {
    pair: Pair,
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
        let end = |host: usize| End {
            device: ["left", "right"][host],
            v4: FOUR[host].parse().expect("an address"),
            v6: SIX[host].parse().expect("an address"),
            mac: Some([2, 0, 0, 0, 0, host as u8 + 1]),
            link_local: Some(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, host as u16 + 1)),
        };
        let settings = Settings {
            mtu,
            ..Settings::default()
        };
        let pair = made(test, Pair::with([end(LEFT), end(RIGHT)], settings))?;
        Some(Self { pair })
    }

    /// Runs `ip` in a host.
    pub fn ip(&self, host: usize, arguments: &str) -> String {
        let host = self.pair.host(SIDES[host]);
        host.ip(arguments).expect("ip runs")
    }

    /// Runs `work` in a host, in a thread of its own. What it opens stays there.
    pub fn within<T: Send>(&self, host: usize, work: impl FnOnce() -> T + Send) -> T {
        let host = self.pair.host(SIDES[host]);
        host.inside(|| Ok(work())).expect("may enter")
    }
}
