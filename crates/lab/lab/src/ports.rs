//! Who listens on a host.

use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::time::Duration;

use crate::host::Host;
use crate::job::Job;
use crate::verdict::Verdict;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    /// Tables in `/proc/net` (proc_pid_net(5)).
    pub fn tables(self) -> [&'static str; 2] {
        match self {
            Protocol::Tcp => ["tcp", "tcp6"],
            Protocol::Udp => ["udp", "udp6"],
        }
    }

    /// The state of a socket that takes what comes from anywhere.
    fn open_state(self) -> &'static str {
        match self {
            Protocol::Tcp => "0A",
            Protocol::Udp => "07",
        }
    }
}

impl Host {
    /// Whether somebody on this host listens on the port (TCP) or has bound it and is not
    /// connected (UDP).
    pub fn is_listening(&self, protocol: Protocol, port: u16) -> io::Result<bool> {
        let mut text = String::new();
        for table in protocol.tables() {
            let path = format!("/proc/thread-self/net/{table}");
            text += &self.inside(|| std::fs::read_to_string(path))?;
        }
        Ok(listens(&text, protocol, port))
    }

    /// Waits until somebody on this host listens; fails at once when the server that should do so
    /// has ended.
    pub fn await_listener(
        &self,
        server: &mut Job,
        protocol: Protocol,
        port: u16,
        limit: Duration,
    ) -> Verdict {
        server.await_ready(limit, "listener", || {
            self.is_listening(protocol, port).unwrap_or(false)
        })
    }

    /// Whether this host takes what is sent to the multicast group.
    pub fn is_member(&self, group: IpAddr) -> io::Result<bool> {
        let table = match group {
            IpAddr::V4(_) => "igmp",
            IpAddr::V6(_) => "igmp6",
        };
        let path = format!("/proc/thread-self/net/{table}");
        let text = self.inside(|| std::fs::read_to_string(path))?;
        Ok(has_word(&text, &group_word(group)))
    }

    /// A port that was free on this host a moment ago.
    pub fn free_port(&self, protocol: Protocol) -> io::Result<u16> {
        let any = (Ipv4Addr::UNSPECIFIED, 0);
        self.inside(|| match protocol {
            Protocol::Tcp => Ok(TcpListener::bind(any)?.local_addr()?.port()),
            Protocol::Udp => Ok(UdpSocket::bind(any)?.local_addr()?.port()),
        })
    }
}

/// Looks into the text of the protocol's tables.
pub fn listens(text: &str, protocol: Protocol, port: u16) -> bool {
    text.lines().any(|line| {
        // A number, the local address and port, the remote ones, the state.
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().and_then(|address| address.rsplit(':').next());
        local.and_then(|hex| u16::from_str_radix(hex, 16).ok()) == Some(port)
            && words.nth(1) == Some(protocol.open_state())
    })
}

/// How the tables of groups in `/proc/net`, `igmp` and `igmp6`, write one (proc_pid_net(5)).
pub fn group_word(group: IpAddr) -> String {
    match group {
        // Four bytes as they lie in memory, read as a number.
        IpAddr::V4(group) => format!("{:08X}", u32::from_ne_bytes(group.octets())),
        IpAddr::V6(group) => format!("{:032x}", u128::from(group)),
    }
}

/// Whether a word is in the text, in whichever case its digits are.
pub fn has_word(text: &str, wanted: &str) -> bool {
    let mut words = text.split_whitespace();
    words.any(|word| word.eq_ignore_ascii_case(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_sockets_are_told_from_others() {
        let table = "  sl  local_address rem_address   st\n\
                     0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n\
                     1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000\n";
        assert!(listens(table, Protocol::Tcp, 8080));
        assert!(!listens(table, Protocol::Tcp, 8081), "connected");
        assert!(!listens(table, Protocol::Tcp, 8082));
    }
}
