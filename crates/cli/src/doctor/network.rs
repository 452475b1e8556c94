//! What verbs programs have for a network: the UDP port of RoCEv2, and AF_XDP. Nothing is attached
//! to an interface that nobody has named: some drivers take their link down for a moment when it is.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::geteuid;
use sluice_xdp::{Interface, Mode, OpenError, Options};

use super::Check;
use crate::error::reason;

/// The UDP port of RoCEv2 (IBTA annex A17.3).
const ROCE_PORT: u16 = 4791;
/// `ARPHRD_ETHER`.
const ETHERNET: &str = "1";
/// What AF_XDP needs, and its bit (capabilities(7)).
const CAPABILITIES: [(&str, u32); 4] = [
    ("CAP_NET_ADMIN", 12),
    ("CAP_NET_RAW", 13),
    ("CAP_PERFMON", 38),
    ("CAP_BPF", 39),
];

/// Every check of the network, in the order of the report.
pub fn checks() -> Vec<Check> {
    vec![port(), xdp()]
}

/// A socket of somebody's, as `/proc/net/udp` has it.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    uid: u32,
    /// 0: the kernel's own.
    inode: u64,
}

/// The sockets on a port, of a table like `/proc/net/udp`.
fn holders(table: &str, port: u16) -> Vec<Holder> {
    let wanted = format!(":{port:04X}");
    let lines = table.lines().skip(1);
    lines
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.get(1)?.ends_with(&wanted).then_some(())?;
            Some(Holder {
                uid: fields.get(7)?.parse().ok()?,
                inode: fields.get(9)?.parse().ok()?,
            })
        })
        .collect()
}

/// The name and number of the process with a socket, among those that may be looked at.
fn process_with(inode: u64) -> Option<String> {
    let wanted = format!("socket:[{inode}]");
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(descriptors) = fs::read_dir(entry.path().join("fd")) else {
            continue;
        };
        let has =
            |fd: fs::DirEntry| fs::read_link(fd.path()).is_ok_and(|to| to == Path::new(&wanted));
        if descriptors.flatten().any(has) {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            return Some(format!("{} (pid {pid})", name.trim_end()));
        }
    }
    None
}

fn port() -> Check {
    const NAME: &str = "RoCEv2 port";
    let mut found = Vec::new();
    for table in ["/proc/self/net/udp", "/proc/self/net/udp6"] {
        found.extend(holders(
            &fs::read_to_string(table).unwrap_or_default(),
            ROCE_PORT,
        ));
    }
    let own = geteuid().as_raw();
    let Some(holder) = found
        .iter()
        .find(|holder| holder.inode == 0 || holder.uid != own)
        .or(found.first())
    else {
        return match UdpSocket::bind((Ipv4Addr::UNSPECIFIED, ROCE_PORT)) {
            Ok(_) => Check::ok(NAME, format!("UDP port {ROCE_PORT} is free")),
            Err(error) => Check::note(
                NAME,
                format!("UDP port {ROCE_PORT}: {}", reason(&error)),
                "'sluice verbs --device roce' does not work here; over shared memory verbs do",
            ),
        };
    };
    if holder.inode == 0 {
        return Check::note(
            NAME,
            format!("UDP port {ROCE_PORT} is the kernel's: rdma_rxe has a device here"),
            "remove it with 'rdma link delete' for 'sluice verbs --device roce', or use another \
             network namespace",
        );
    }
    let who =
        process_with(holder.inode).unwrap_or_else(|| format!("a process of uid {}", holder.uid));
    if holder.uid == own {
        return Check::ok(
            NAME,
            format!("UDP port {ROCE_PORT} is used by {who}; verbs programs of one user share it"),
        );
    }
    Check::note(
        NAME,
        format!("UDP port {ROCE_PORT} is taken by {who}, uid {}", holder.uid),
        "verbs programs over RoCEv2 share it among one user only: run as that user, stop it, or \
         use another network namespace",
    )
}

/// Those of [`CAPABILITIES`] that `/proc/self/status` does not show as effective.
fn missing_capabilities(status: &str) -> Vec<&'static str> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    let effective = effective.unwrap_or_default();
    let lacks = |(name, bit): &(&'static str, u32)| (effective >> bit & 1 == 0).then_some(*name);
    CAPABILITIES.iter().filter_map(lacks).collect()
}

/// Ethernet interfaces that are up, with their drivers.
fn interfaces() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten();
    let mut found: Vec<String> = entries
        .filter_map(|entry| {
            let (name, path) = (entry.file_name().into_string().ok()?, entry.path());
            let read = |file: &str| fs::read_to_string(path.join(file)).ok();
            let ethernet = read("type")?.trim() == ETHERNET;
            let up = read("operstate")?.trim() != "down";
            let driver = fs::read_link(path.join("device/driver")).ok();
            let driver = driver.and_then(|link| Some(link.file_name()?.to_str()?.to_owned()));
            let driver = driver.unwrap_or_else(|| "software".to_owned());
            (ethernet && up).then(|| format!("{name} ({driver})"))
        })
        .collect();
    found.sort();
    found
}

fn xdp() -> Check {
    const NAME: &str = "AF_XDP";
    let by_udp = "'sluice verbs --device roce' goes by UDP, which works and is slower";
    let missing =
        missing_capabilities(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    match socket(AddressFamily::XDP, SocketType::RAW, None) {
        Ok(_) => {}
        Err(Errno::AFNOSUPPORT) => {
            return Check::note(
                NAME,
                "not in this kernel (CONFIG_XDP_SOCKETS)",
                format!("{by_udp}; Linux 5.9 or newer has it in most distributions"),
            );
        }
        // Said below.
        Err(Errno::PERM) if !missing.is_empty() => {}
        Err(errno) => {
            return Check::note(
                NAME,
                format!("a socket cannot be made: {}", reason(&errno.into())),
                format!("{by_udp}; a sandbox may forbid it"),
            );
        }
    }
    if !missing.is_empty() {
        return Check::note(
            NAME,
            format!("this process lacks {}", missing.join(", ")),
            format!("{by_udp}; root has them, and 'setpriv' or a service manager can give them"),
        );
    }
    let interfaces = interfaces();
    if interfaces.is_empty() {
        return Check::note(NAME, "no Ethernet interface is up", by_udp);
    }
    Check::ok(
        NAME,
        format!(
            "may be used on {}; whether the driver helps (native, zero-copy) 'sluice doctor \
             --interface NAME' tries",
            interfaces.join(", ")
        ),
    )
}

/// Tries AF_XDP on an interface as a verbs program would, and gives it back at once.
pub fn trial(name: &str) -> Check {
    const NAME: &str = "AF_XDP trial";
    let interface = Interface::by_name(name);
    // Not by /sys, which may be another namespace's.
    if let Err(error @ OpenError::NoInterface { .. }) = &interface {
        let hint = "'ip link' shows those that there are";
        return Check::missing(NAME, error.to_string(), hint);
    }
    if fs::read_to_string(format!("/sys/class/net/{name}/type"))
        .is_ok_and(|kind| kind.trim() != ETHERNET)
    {
        return Check::note(
            NAME,
            format!("not tried on {name}, which is no Ethernet interface"),
            "'sluice verbs --device roce' goes by UDP there",
        );
    }
    // No address is steered, so that no packet is taken from anybody.
    let options = Options {
        queues: Some(1),
        receive_chunks: 64,
        send_packets: 64,
        ..Options::default()
    };
    let opened = interface.and_then(|interface| {
        let had_link = interface.has_link();
        let (steering, ports) = interface.open(&options)?;
        let loses_link = had_link && !interface.has_link();
        drop(ports);
        Ok((interface, steering.mode(), loses_link))
    });
    match opened {
        Ok((interface, mode, false)) => Check::ok(NAME, described(&interface, mode)),
        Ok((interface, mode, true)) => Check::note(
            NAME,
            format!(
                "{}; its link went away when the program was attached",
                described(&interface, mode)
            ),
            "its driver starts it anew whenever a verbs program begins and ends, and all of its traffic waits \
             for the link",
        ),
        Err(error) => Check::note(
            NAME,
            format!("not on {name}: {error}"),
            "'sluice verbs --device roce' goes by UDP there, which works and is slower",
        ),
    }
}

fn described(interface: &Interface, mode: Mode) -> String {
    let driver = match mode.native {
        true => "native: the driver runs the program",
        false => "generic: its driver runs no XDP programs, the kernel does that later",
    };
    let copies = match mode.zero_copy {
        true => "zero-copy: it reads and writes packet memory itself",
        false => "copy: the kernel copies each packet",
    };
    format!(
        "{} works, {driver}; {copies}; IP packets up to {} of its MTU's {} bytes; {} receive {}",
        interface.name(),
        mode.packet_bytes_max,
        interface.mtu(),
        interface.queues(),
        if interface.queues() == 1 {
            "queue"
        } else {
            "queues"
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_of_a_port_are_found() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
                     \x20 1: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4711 2 0 0\n\
                     \x20 2: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 0 2 0 0\n\
                     \x20 3: 00000000:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 9 2 0 0\n";
        let holder = |uid, inode| Holder { uid, inode };
        assert_eq!(holders(table, 4791), [holder(1000, 4711), holder(0, 0)]);
        assert_eq!(holders("", 4791), []);
        assert_eq!(holders("head\nnonsense :12B7", 4791), []);
    }

    #[test]
    fn a_socket_of_this_process_is_its_own() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        let table = fs::read_to_string("/proc/self/net/udp").unwrap();
        let found = holders(&table, port);
        assert!(!found.is_empty());
        let who = found.iter().find_map(|holder| process_with(holder.inode));
        let pid = format!("(pid {})", std::process::id());
        assert!(who.is_some_and(|who| who.ends_with(&pid)));
    }

    #[test]
    fn an_interface_that_is_not_there_is_missing_and_one_without_ethernet_a_note() {
        let check = trial("sluice-none0");
        assert_eq!(check.verdict, super::super::Verdict::Missing);
        assert!(check.found.contains("no network interface"), "{check:?}");
        assert!(check.hint.contains("ip link"));
        let check = trial("lo");
        assert_eq!(check.verdict, super::super::Verdict::Note);
        assert!(check.found.contains("no Ethernet"), "{check:?}");
    }

    #[test]
    fn missing_capabilities_are_named() {
        assert_eq!(missing_capabilities("CapEff:\t000001ffffffffff\n").len(), 0);
        assert_eq!(
            missing_capabilities("CapPrm:\tff\nCapEff:\t0000000000003000\n"),
            ["CAP_PERFMON", "CAP_BPF"]
        );
        assert_eq!(missing_capabilities("").len(), 4);
    }
}
