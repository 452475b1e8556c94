//! Two hosts and the link between them.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use libtest_mimic::Trial;
use sluice_tests::hosts::capture::Capture;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::hosts::{Host, Pair, Settings};
use sluice_tests::job::{Job, find_program, run, wait_until};
use sluice_tests::suite::{Verdict, ensure, fail, skip, trial};

const LIMIT: Duration = Duration::from_secs(90);

const ETHERNET_BYTES: usize = 14;

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("hosts/programs-run-where-they-are-put", programs),
        trial("hosts/queues", queues),
        trial("hosts/captures-miss-nothing", captures),
    ];
    for mtu in [1500, 9000] {
        for faults in [false, true] {
            let name = format!("hosts/mtu-{mtu}{}", if faults { "-injector" } else { "" });
            trials.push(trial(name, move || mtu_is_honoured(mtu, faults)));
        }
    }
    trials
}

/// A socket of the host, bound to the port (0: any) of one of its addresses.
pub fn socket(host: &Host, family: u8, port: u16) -> Verdict<UdpSocket> {
    let address = SocketAddr::new(host.address(family), port);
    let socket = host.inside(|| UdpSocket::bind(address))?;
    socket.set_read_timeout(Some(LIMIT))?;
    Ok(socket)
}

/// Both know each other's devices from here on: no frame waits for an answer to who has an address, of which the kernel
/// gives up waiting after three seconds.
pub fn introduce(pair: &Pair) -> Verdict {
    for (host, other) in [(&pair.left, &pair.right), (&pair.right, &pair.left)] {
        let link = other.describe_link()?;
        let mut words = link.split_whitespace();
        let mac = words.find(|word| *word == "link/ether").and(words.next());
        let Some(mac) = mac else { return fail(link) };
        for family in [4, 6] {
            let (address, device) = (other.address(family), host.device());
            host.ip(&format!(
                "neigh replace {address} lladdr {mac} dev {device} nud permanent"
            ))?;
        }
    }
    Ok(())
}

/// A datagram and its answer, both with so many bytes of payload.
pub fn exchange(pair: &Pair, family: u8, bytes: usize) -> Verdict {
    let left = socket(&pair.left, family, 0)?;
    let right = socket(&pair.right, family, 0)?;
    let sent: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
    let mut got = vec![0; bytes + 1];
    for (from, to) in [(&left, &right), (&right, &left)] {
        from.send_to(&sent, to.local_addr()?)?;
        let count = to.recv(&mut got)?;
        ensure(got.get(..count) == Some(&sent[..]), || {
            format!("{count} bytes came of {bytes}, or others")
        })?;
    }
    Ok(())
}

fn mtu_is_honoured(mtu: usize, faults: bool) -> Verdict {
    let pair = Pair::new(Settings {
        mtu: mtu as u32,
        offloads: false,
        faults,
        ..Settings::default()
    })?;
    introduce(&pair)?;
    // IP and UDP headers.
    for (family, headers) in [(4, 20 + 8), (6, 40 + 8)] {
        exchange(&pair, family, 1)?;
        for (bytes, frames) in [(mtu - headers, 1), (mtu - headers + 1, 2)] {
            let file = pair.path().join(format!("{family}-{bytes}"));
            let capture = Capture::start(pair.right.namespace(), "eth0", &file)?;
            exchange(&pair, family, bytes)?;
            let mut seen = capture.finish()?;
            // The kernels may still talk about neighbours and groups.
            seen.retain(|frame| is_udp(frame));
            let longest = seen.iter().map(Vec::len).max();
            ensure(seen.len() == 2 * frames, || {
                let lengths: Vec<usize> = seen.iter().map(Vec::len).collect();
                format!("IPv{family}, {bytes} bytes each way: frames of {lengths:?}")
            })?;
            ensure(frames > 1 || longest == Some(mtu + ETHERNET_BYTES), || {
                format!("IPv{family}: the longest frame has {longest:?} bytes")
            })?;
            ensure(longest <= Some(mtu + ETHERNET_BYTES), || {
                format!("IPv{family}: a frame of {longest:?} bytes")
            })?;
        }
    }
    if faults {
        pair.injector()?.check()?;
    }
    Ok(())
}

/// UDP, whole or a fragment.
fn is_udp(frame: &[u8]) -> bool {
    const UDP: u8 = 17;
    const FRAGMENT: u8 = 44;
    match frame.get(12..14) {
        Some([0x08, 0x00]) => frame.get(23) == Some(&UDP),
        Some([0x86, 0xdd]) => matches!(frame.get(20), Some(&(UDP | FRAGMENT))),
        _ => false,
    }
}

fn queues() -> Verdict {
    let pair = Pair::new(Settings {
        queues: 4,
        ..Settings::default()
    })?;
    for host in [&pair.left, &pair.right] {
        let Some(ip) = find_program("ip") else {
            return skip("ip is not installed; scripts/setup test");
        };
        let mut command = host.command(ip);
        command.args(["-d", "link", "show", host.device()]);
        let text = run(command, pair.path(), "ip", LIMIT)?.success()?.text();
        ensure(
            text.contains("numtxqueues 4") && text.contains("numrxqueues 4"),
            || text.clone(),
        )?;
    }
    exchange(&pair, 4, 100)
}

/// A server on one host is found by its client on the other and by nobody else.
fn programs() -> Verdict {
    let Some(nc) = find_program("nc") else {
        return skip("nc is not installed; scripts/setup test");
    };
    let pair = Pair::new(Settings::default())?;
    let port = pair.right.free_port(Protocol::Tcp)?;
    ensure(!pair.right.is_listening(Protocol::Tcp, port)?, || {
        "somebody listens before the server was started".into()
    })?;
    let mut server = pair.right.command(&nc);
    server.args(["-l", "-N", "-p", &port.to_string()]);
    let mut server = Job::start(server, pair.path(), "server")?;
    pair.right
        .await_listener(&mut server, Protocol::Tcp, port, LIMIT)?;
    ensure(!pair.left.is_listening(Protocol::Tcp, port)?, || {
        "the server of one host listens on the other".into()
    })?;

    let script = format!("echo $XDG_RUNTIME_DIR | nc -N {} {port}", pair.right.v4());
    let mut client = pair.left.command("sh");
    client.args(["-c", &script]);
    run(client, pair.path(), "client", LIMIT)?.success()?;
    let said = server.finish(LIMIT)?.success()?.text();
    let mut other = pair.right.command("sh");
    other.args(["-c", "echo $XDG_RUNTIME_DIR"]);
    let other = run(other, pair.path(), "other", LIMIT)?.success()?.text();
    ensure(!said.trim().is_empty() && said != other, || {
        format!("runtime directories {said:?} and {other:?}")
    })?;

    let bound = socket(&pair.left, 6, 0)?;
    let port = bound.local_addr()?.port();
    let seen = pair.left.is_listening(Protocol::Udp, port)?;
    ensure(
        seen && !pair.right.is_listening(Protocol::Udp, port)?,
        || format!("UDP port {port} of one host: found {seen}, or on the other"),
    )
}

fn captures() -> Verdict {
    const DATAGRAMS: u32 = 3000;
    let pair = Pair::new(Settings::default())?;
    exchange(&pair, 4, 1)?;
    let file = pair.path().join("pcap");
    let capture = Capture::start(pair.right.namespace(), "eth0", &file)?;
    let (from, to) = (socket(&pair.left, 4, 0)?, socket(&pair.right, 4, 0)?);
    for number in 0..DATAGRAMS {
        from.send_to(&number.to_be_bytes(), to.local_addr()?)?;
    }
    let is_datagram = |frame: &&Vec<u8>| frame.get(23) == Some(&17);
    let live = wait_until(LIMIT, || {
        let count = |frames: &[Vec<u8>]| frames.iter().filter(is_datagram).count();
        Ok(capture.look(count) >= DATAGRAMS as usize)
    })?;
    ensure(live, || {
        "the capture does not show frames as they come".into()
    })?;
    let frames = capture.finish()?;
    let numbers: Vec<&[u8]> = frames
        .iter()
        .filter(is_datagram)
        .filter_map(|frame| frame.get(42..46))
        .collect();
    let expected: Vec<[u8; 4]> = (0..DATAGRAMS).map(u32::to_be_bytes).collect();
    ensure(numbers == expected, || {
        format!("{} datagrams", numbers.len())
    })?;

    let Some(tshark) = find_program("tshark") else {
        return skip("tshark is not installed; scripts/setup test");
    };
    let mut command = sluice_tests::job::command(tshark);
    command.arg("-n").arg("-r").arg(&file).args(["-Y", "udp"]);
    let text = run(command, pair.path(), "tshark", 3 * LIMIT)?
        .success()?
        .text();
    let lines = text.lines().count();
    ensure(lines == DATAGRAMS as usize, || {
        format!("tshark finds {lines} datagrams in the file")
    })
}
