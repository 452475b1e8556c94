//! Two hosts: network namespaces joined by a pair of virtual Ethernet devices.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Two namespaces with the devices `left` and `right`. Removed on drop.
pub struct Hosts {
    names: [String; 2],
}

/// Which host.
pub const LEFT: usize = 0;
pub const RIGHT: usize = 1;

/// Their addresses: 192.0.2.1 and .2, 2001:db8::1 and ::2.
pub const FOUR: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
pub const SIX: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

fn ip(arguments: &str) -> Result<String, String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("ip cannot be run: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(format!("ip {arguments}: {said}"))
    }
}

impl Hosts {
    /// None, with a line that says why, where namespaces cannot be made.
    pub fn new(test: &str, mtu: u32) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let base = format!("sluice-{}-{number}", std::process::id());
        let hosts = Self {
            names: [format!("{base}-left"), format!("{base}-right")],
        };
        for name in &hosts.names {
            if let Err(reason) = ip(&format!("netns add {name}")) {
                let forbidden = std::env::var_os("SLUICE_NO_SKIP").is_some_and(|v| v == "1");
                assert!(!forbidden, "skips are forbidden here: {reason}");
                println!("SKIP {test}: {}", reason.trim());
                return None;
            }
        }
        let [left, right] = &hosts.names;
        let pair = format!(
            "link add left netns {left} mtu {mtu} address 02:00:00:00:00:01 type veth \
             peer name right netns {right} mtu {mtu} address 02:00:00:00:00:02"
        );
        ip(&pair).unwrap();
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
        ip(&format!("-n {} {arguments}", self.names[host])).unwrap()
    }

    /// Runs `work` in a host, in a thread of its own. What it opens stays there.
    pub fn within<T: Send>(&self, host: usize, work: impl FnOnce() -> T + Send) -> T {
        let place = File::open(format!("/run/netns/{}", self.names[host])).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: setns takes integers only, and changes only this thread.
                let entered = unsafe { libc::setns(place.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(entered, 0, "{}", std::io::Error::last_os_error());
                work()
            });
            thread.join().unwrap()
        })
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}
