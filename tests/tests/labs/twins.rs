//! The kernel's RDMA talks to itself through a network in the guest, and our parser listens: what it
//! refuses, or an ICRC that it computes otherwise, is our fault.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;

use libtest_mimic::Trial;
use sluice_tests::guest::Twin;
use sluice_tests::guest::stranger::{self, Stranger};
use sluice_tests::job::{Job, run};
use sluice_tests::suite::{Verdict, ensure, fail, trial};
use sluice_wire::cm::Message;
use sluice_wire::mad::Mad;
use sluice_wire::opcode::{Operation, Service};
use sluice_wire::{Frame, Qpn};

use crate::guest::{LIMIT, check_frames, in_guest, pair};

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (family, mtu) in [(4, 1500), (6, 9000)] {
        trials.push(trial(
            format!("twins/perftest-ipv{family}-mtu-{mtu}"),
            move || perftest(family, mtu),
        ));
        trials.push(trial(format!("twins/rping-ipv{family}"), move || {
            rping(family)
        }));
    }
    trials
}

/// Programs between the twins.
const TWIN_RUNS: &[(&str, &[&str])] = &[
    ("ib_write_bw", &["-s", "10001", "-n", "20", "-t", "4"]),
    ("ib_read_lat", &["-s", "9000", "-n", "5"]),
    ("ib_atomic_lat", &["-n", "5"]),
    ("ib_send_lat", &["-s", "3", "-n", "5"]),
    ("ib_send_lat", &["-c", "UC", "-s", "9000", "-n", "5"]),
    ("ib_send_lat", &["-c", "UD", "-s", "512", "-n", "5"]),
];

/// A peer is given up after seconds, and not after the half of one that perftest chooses: one of the guest's processors
/// may stand still.
const PATIENT: [&str; 2] = ["-u", "18"];

/// What the programs must have made, whatever the MTU of the path.
const TWIN_OPCODES: &[(Service, Operation)] = &[
    (Service::Rc, Operation::WriteFirst),
    (Service::Rc, Operation::WriteMiddle),
    (Service::Rc, Operation::WriteLast),
    (Service::Rc, Operation::Acknowledge),
    (Service::Rc, Operation::ReadRequest),
    (Service::Rc, Operation::ReadResponseFirst),
    (Service::Rc, Operation::ReadResponseMiddle),
    (Service::Rc, Operation::ReadResponseLast),
    (Service::Rc, Operation::FetchAdd),
    (Service::Rc, Operation::AtomicAcknowledge),
    (Service::Rc, Operation::SendOnly),
    (Service::Uc, Operation::SendFirst),
    (Service::Uc, Operation::SendMiddle),
    (Service::Uc, Operation::SendLast),
    (Service::Ud, Operation::SendOnly),
];

/// Two devices of the kernel's with a network between them, and every packet of theirs is one that
/// our parser takes, its ICRC right.
fn perftest(family: u8, mtu: u32) -> Verdict {
    let lab = stranger::borrow()?;
    let [left, right] = lab.guest.twins(&lab.host, mtu)?;
    let left_index = gid_index(&lab, left.device, left.address(family))?;
    let right_index = gid_index(&lab, right.device, right.address(family))?;

    let capture = GuestCapture::start(&lab, [left, right], family)?;
    for (number, (program, arguments)) in (0..).zip(TWIN_RUNS) {
        let mut server = vec!["-d", right.device, "-x", &right_index];
        let mut client = vec!["-d", left.device, "-x", &left_index];
        for words in [&mut server, &mut client] {
            words.extend(*arguments);
            words.extend(PATIENT);
        }
        // Only what they agree on goes there, by TCP.
        client.push("127.0.0.1");
        let port = 18600 + number;
        pair(&lab, port, (program, &server), (program, &client))?;
    }
    let frames = capture.finish()?;
    let opcodes = check_frames(&frames)?;
    println!("{} frames: {opcodes:?}", frames.len());
    for (service, operation) in TWIN_OPCODES {
        let name = format!("{service:?} {operation:?}");
        ensure(opcodes.contains_key(&name), || {
            format!("no {name} among {opcodes:?}")
        })?;
    }
    let longest = frames.iter().map(Vec::len).max().unwrap_or(0);
    let path_mtu = if mtu == 9000 { 4096 } else { 1024 };
    ensure(longest > path_mtu && longest < path_mtu + 200, || {
        format!("the longest frame has {longest} bytes")
    })
}

/// A connection by rdma_cm: asked for, accepted, used and ended, by messages that we can read.
fn rping(family: u8) -> Verdict {
    let lab = stranger::borrow()?;
    let [left, right] = lab.guest.twins(&lab.host, 1500)?;
    let port: u16 = 7200 + u16::from(family);
    let port_word = port.to_string();
    let server_address = right.address(family).to_string();
    let client_address = left.address(family).to_string();
    let common = ["-C", "3", "-p", &port_word, "-a", &server_address];
    let capture = GuestCapture::start(&lab, [left, right], family)?;
    let dir = tempfile::tempdir_in(lab.path())?;

    let mut server = lab.guest.command(&lab.host, "rping");
    server.arg("-s").args(common);
    let mut server = Job::start(server, dir.path(), "server")?;
    lab.guest
        .await_rdma_listener(&lab.host, &mut server, port, LIMIT)?;
    let mut client = lab.guest.command(&lab.host, "rping");
    client.arg("-c").args(common).args(["-I", &client_address]);
    run(client, dir.path(), "client", LIMIT)?.success()?;
    server.finish(LIMIT)?.success()?;

    let frames = capture.finish()?;
    check_frames(&frames)?;
    let mut messages = BTreeSet::new();
    for bytes in &frames {
        let Ok(frame) = Frame::parse(bytes) else {
            return fail("checked a moment ago");
        };
        if frame.packet().bth().destination != Qpn::GSI {
            continue;
        }
        let mad = Mad::parse(frame.packet().payload());
        messages.insert(match mad.and_then(|mad| Message::parse(&mad)) {
            Ok((Message::Req(_), _)) => "REQ",
            Ok((Message::Rep(_), _)) => "REP",
            Ok((Message::Rtu(_), _)) => "RTU",
            Ok((Message::Dreq(_), _)) => "DREQ",
            Ok((Message::Drep(_), _)) => "DREP",
            // The kernel sends it when its answer takes time.
            Ok((Message::Mra(_), _)) => "MRA",
            other => return fail(format!("{other:?}: {bytes:02x?}")),
        });
    }
    // The answer to DREQ may come after both programs have ended.
    let expected = ["REQ", "REP", "RTU", "DREQ"];
    ensure(expected.iter().all(|name| messages.contains(name)), || {
        format!("of {expected:?} only {messages:?}")
    })
}

/// The index of an address in a device's table.
fn gid_index(lab: &Stranger, device: &str, address: IpAddr) -> Verdict<String> {
    let gid = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let folder = format!("/sys/class/infiniband/{device}/ports/1/gids");
    let text = lab
        .guest
        .shell(&lab.host, &format!("cd {folder}; grep -s : * || true"))?;
    let found = text.lines().find_map(|line| {
        let (index, text) = line.split_once(':')?;
        (text.parse() == Ok(gid)).then(|| index.to_owned())
    });
    match found {
        Some(index) => Ok(index),
        None => fail(format!("no GID {gid} in\n{text}")),
    }
}

/// A capture of RoCE frames on the first of two twins.
struct GuestCapture<'lab> {
    lab: &'lab Stranger,
    program: Job,
    /// In the guest.
    file: String,
    /// A shell command that sends the mark of the end from one twin to the other.
    mark: String,
}

/// The last datagram that is captured. The program writes in its own time, and what it has not
/// written when it is told to end is lost.
const MARK: &str = "here the capture ends";
/// Discard (RFC 863).
const MARK_PORT: u16 = 9;

impl<'lab> GuestCapture<'lab> {
    fn start(lab: &'lab Stranger, twins: [Twin; 2], family: u8) -> Verdict<GuestCapture<'lab>> {
        let dir = tempfile::Builder::new()
            .prefix("capture-")
            .tempdir_in(lab.path())?
            .keep();
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let file = format!("/run/{name}.pcap");
        let [from, to] = twins.map(|twin| match twin.address(family) {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        });
        let mark =
            format!("printf '{MARK}' | socat -u - UDP{family}-SENDTO:{to}:{MARK_PORT},bind={from}");
        let filter = format!("udp dst port 4791 or udp dst port {MARK_PORT}");
        let mut program = lab.guest.command(&lab.host, "dumpcap");
        program.args(["-i", twins[0].link, "-f", &filter, "-P", "-w", &file]);
        let mut program = Job::start(program, &dir, "dumpcap")?;
        let errors = dir.join("dumpcap.stderr");
        program.await_ready(LIMIT, "capture", || {
            fs::read_to_string(&errors).is_ok_and(|text| text.contains("File: "))
        })?;
        Ok(GuestCapture {
            lab,
            program,
            file,
            mark,
        })
    }

    /// Ends it and fetches the frames.
    fn finish(self) -> Verdict<Vec<Vec<u8>>> {
        let (mark, file) = (&self.mark, &self.file);
        let script = format!("{mark}; until grep -q '{MARK}' {file}; do sleep 0.1; done");
        self.lab.guest.shell(&self.lab.host, &script)?;
        self.program.stop(LIMIT)?.success()?;
        let bytes = in_guest(self.lab, "cat", &[file])?.success()?.stdout;
        let mut frames = frames_of(&bytes)?;
        let last = frames.pop();
        ensure(
            last.as_ref()
                .is_some_and(|frame| frame.ends_with(MARK.as_bytes())),
            || format!("something came after the mark: {last:02x?}"),
        )?;
        Ok(frames)
    }
}

/// The frames of a pcap file.
fn frames_of(file: &[u8]) -> Verdict<Vec<Vec<u8>>> {
    let Some((header, mut rest)) = file.split_at_checked(24) else {
        return fail(format!("{} bytes of a capture", file.len()));
    };
    let magic = header.get(..4);
    ensure(magic == Some(&0xa1b2_c3d4_u32.to_le_bytes()[..]), || {
        format!("not a pcap file: {magic:?}")
    })?;
    let mut frames = Vec::new();
    while let Some((head, behind)) = rest.split_at_checked(16) {
        let length = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        let Some((frame, behind)) = behind.split_at_checked(length as usize) else {
            return fail("a frame is cut off");
        };
        frames.push(frame.to_vec());
        rest = behind;
    }
    Ok(frames)
}
