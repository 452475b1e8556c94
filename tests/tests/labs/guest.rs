//! The guest: programs run in it as they do here, its RDMA devices work, and what they put on the
//! wire is what our own parser and ICRC expect.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::guest::stranger::{self, Stranger};
use sluice_tests::guest::{RXE, Settings};
use sluice_tests::hosts::capture::Capture;
use sluice_tests::hosts::faults::Faults;
use sluice_tests::hosts::injector::Direction;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::job::{Job, Outcome, run, wait_until};
use sluice_tests::suite::{Verdict, ensure, fail, trial};
use sluice_wire::cm::{IpService, Message};
use sluice_wire::mad::Mad;
use sluice_wire::opcode::{Operation, Service};
use sluice_wire::{Error, Frame};

/// For one program in an emulated machine.
const LIMIT: Duration = Duration::from_secs(90);

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("guest/boots-with-rxe", boots),
        trial("guest/programs-run-as-here", programs),
        trial("guest/signals-and-kills-reach-programs", signals),
        trial("guest/many-programs-at-once", many),
        trial("guest/mtu", mtu),
        trial("guest/pingpong", pingpong),
    ];
    for family in [4, 6] {
        trials.push(trial(format!("guest/cm-request-ipv{family}"), move || {
            connection_request(family)
        }));
        let mtu = if family == 4 { 1500 } else { 9000 };
        let name = format!("guest/twins-ipv{family}-mtu-{mtu}");
        trials.push(trial(name, move || twins(family, mtu)));
    }
    trials.push(trial("guest/behind-the-injector", behind_the_injector));
    trials
}

/// Runs a program in the guest to its end, whatever that is.
fn in_guest(lab: &Stranger, program: &str, arguments: &[&str]) -> Verdict<Outcome> {
    let mut command = lab.guest.command(&lab.host, program);
    command.args(arguments);
    let dir = tempfile::tempdir_in(lab.path())?;
    run(command, dir.path(), program, LIMIT)
}

fn boots() -> Verdict {
    let lab = stranger::borrow()?;
    println!("booted in {:?}", lab.guest.boot_time());
    println!("{} KiB resident", resident_kib(lab.guest.process())?);
    let links = in_guest(&lab, "rdma", &["link"])?.success()?.text();
    let link = links.lines().find(|line| line.contains(RXE));
    ensure(
        link.is_some_and(|line| line.contains("ACTIVE") && line.contains("netdev eth0")),
        || links.clone(),
    )?;
    let devices = in_guest(&lab, "ibv_devinfo", &["-d", RXE])?
        .success()?
        .text();
    ensure(devices.contains("PORT_ACTIVE"), || devices.clone())
}

fn resident_kib(process: u32) -> Verdict<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/status"))?;
    let value = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let words = value.and_then(|value| value.split_whitespace().next());
    match words.and_then(|word| word.parse().ok()) {
        Some(value) => Ok(value),
        None => fail("no VmRSS"),
    }
}

/// Output, status, environment, directory and files are those of a program here.
fn programs() -> Verdict {
    let lab = stranger::borrow()?;
    let script = "pwd; echo $MARK; echo complaint >&2; test -e /sys/class/infiniband && exit 7";
    let mut command = lab.guest.command(&lab.host, "sh");
    command
        .args(["-c", script])
        .env("MARK", "a b")
        .current_dir("/usr");
    let outcome = run(command, lab.path(), "words", LIMIT)?;
    ensure(
        outcome.status.code() == Some(7)
            && outcome.stdout == b"/usr\na b\n"
            && outcome.stderr == b"complaint\n",
        || outcome.describe(),
    )?;

    let missing = in_guest(&lab, "no-such-program", &[])?;
    ensure(missing.status.code() == Some(127), || missing.describe())?;

    let own = in_guest(&lab, "head", &["-c", "3000000", "/dev/zero"])?.success()?;
    ensure(own.stdout.len() == 3_000_000, || {
        format!("{} bytes of output", own.stdout.len())
    })?;

    // The guest's files are ours until it writes to them.
    let file = lab.path().join("file");
    fs::write(&file, "ours")?;
    let name = file.to_string_lossy();
    let script = format!("cat {name}; echo theirs >{name}; cat {name}");
    let seen = lab.guest.shell(&lab.host, &script)?;
    ensure(seen == "ourstheirs\n", || format!("in the guest: {seen:?}"))?;
    let here = fs::read_to_string(&file)?;
    ensure(here == "ours", || format!("here: {here:?}"))
}

fn signals() -> Verdict {
    let lab = stranger::borrow()?;
    let start = |label: &str, script: &str| {
        let mut command = lab.guest.command(&lab.host, "sh");
        command.args(["-c", script]);
        Job::start(command, lab.path(), label)
    };
    let began = |job: &mut Job, label: &str| {
        let output = lab.path().join(format!("{label}.stdout"));
        job.await_ready(LIMIT, "first line", || {
            fs::read(&output).is_ok_and(|text| text.ends_with(b"\n"))
        })
    };
    let script = "trap 'echo asked; exit 3' TERM; echo began; while :; do sleep 0.1; done";
    let mut asked = start("asked", script)?;
    began(&mut asked, "asked")?;
    let outcome = asked.stop(LIMIT)?;
    ensure(
        outcome.status.code() == Some(3) && outcome.stdout == b"began\nasked\n",
        || outcome.describe(),
    )?;

    let outcome = in_guest(&lab, "sh", &["-c", "kill -SEGV $$"])?;
    ensure(outcome.status.signal() == Some(11), || outcome.describe())?;

    // A sleeper that nothing but its number tells from others.
    let mut killed = start("killed", "echo began; sleep 98765; echo never")?;
    began(&mut killed, "killed")?;
    let sleepers = || -> Verdict<usize> {
        let all = "grep -lsz 98765 /proc/[0-9]*/cmdline | wc -l";
        let text = lab.guest.shell(&lab.host, all)?;
        match text.trim().parse() {
            Ok(count) => Ok(count),
            Err(_) => fail(format!("not a count: {text}")),
        }
    };
    // The shell that asks is among them.
    let before = sleepers()?;
    killed.signal(Signal::KILL)?;
    killed.finish(LIMIT)?;
    let alone = sleepers()?;
    ensure(alone < before, || {
        format!("{before} processes before the command was killed, {alone} after it")
    })
}

fn many() -> Verdict {
    let lab = stranger::borrow()?;
    let mut jobs = Vec::new();
    for number in 0..8 {
        let mut command = lab.guest.command(&lab.host, "sh");
        command.args(["-c", &format!("sleep 0.5; echo {number}")]);
        jobs.push(Job::start(command, lab.path(), &format!("many-{number}"))?);
    }
    for (number, job) in jobs.into_iter().enumerate() {
        let said = job.finish(LIMIT)?.success()?.text();
        ensure(said.trim() == number.to_string(), || said.clone())?;
    }
    Ok(())
}

fn mtu() -> Verdict {
    let lab = stranger::borrow()?;
    for (mtu, active) in [(9000, "4096"), (1500, "1024")] {
        lab.guest.set_mtu(&lab.host, mtu)?;
        let said = in_guest(&lab, "ibv_devinfo", &["-d", RXE])?
            .success()?
            .text();
        let found = said.lines().find(|line| line.contains("active_mtu"));
        ensure(found.is_some_and(|line| line.contains(active)), || {
            format!("MTU {mtu}: {found:?}")
        })?;
    }
    Ok(())
}

/// One device that talks to itself, as most people try rxe.
fn pingpong() -> Verdict {
    let lab = stranger::borrow()?;
    pair(
        &lab,
        18515,
        ("ibv_rc_pingpong", &["-d", RXE, "-g", "1", "-n", "100"]),
        (
            "ibv_rc_pingpong",
            &["-d", RXE, "-g", "1", "-n", "100", "127.0.0.1"],
        ),
    )
}

/// A server in the guest, and its client there as soon as the server listens.
fn pair(lab: &Stranger, port: u16, server: (&str, &[&str]), client: (&str, &[&str])) -> Verdict {
    let dir = tempfile::tempdir_in(lab.path())?;
    let port_word = port.to_string();
    let command = |(program, arguments): (&str, &[&str])| {
        let mut command = lab.guest.command(&lab.host, program);
        command.args(["-p", &port_word]).args(arguments);
        command
    };
    let mut server = Job::start(command(server), dir.path(), "server")?;
    lab.guest
        .await_listener(&lab.host, &mut server, Protocol::Tcp, port, LIMIT)?;
    let client = run(command(client), dir.path(), "client", LIMIT)?;
    ensure(client.status.success(), || {
        format!("{}\n{}", client.describe(), server.describe())
    })?;
    server.finish(LIMIT)?.success()?;
    Ok(())
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
fn twins(family: u8, mtu: u32) -> Verdict {
    let lab = stranger::borrow()?;
    let [left, right] = lab.guest.twins(&lab.host, mtu)?;
    let left_index = gid_index(&lab, left.device, left.address(family))?;
    let right_index = gid_index(&lab, right.device, right.address(family))?;

    // In the guest.
    let file = format!("/run/twins-{family}-{mtu}.pcap");
    let mut capture = lab.guest.command(&lab.host, "dumpcap");
    capture.args(["-i", left.link, "-f", "udp port 4791", "-P", "-w", &file]);
    let label = format!("dumpcap-{family}-{mtu}");
    let mut capture = Job::start(capture, lab.path(), &label)?;
    let errors = lab.path().join(format!("{label}.stderr"));
    capture.await_ready(LIMIT, "capture", || {
        fs::read_to_string(&errors).is_ok_and(|text| text.contains("File: "))
    })?;
    for (number, (program, arguments)) in (0..).zip(TWIN_RUNS) {
        let mut server = vec!["-d", right.device, "-x", &right_index];
        let mut client = vec!["-d", left.device, "-x", &left_index];
        server.extend(*arguments);
        client.extend(*arguments);
        // Only what they agree on goes there, by TCP.
        client.push("127.0.0.1");
        let port = 18600 + number;
        pair(&lab, port, (program, &server), (program, &client))?;
    }
    capture.stop(LIMIT)?.success()?;

    let bytes = in_guest(&lab, "cat", &[&file])?.success()?.stdout;
    let frames = frames_of(&bytes)?;
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

/// Parses every frame, its ICRC included, and counts opcodes.
fn check_frames(frames: &[Vec<u8>]) -> Verdict<BTreeMap<String, usize>> {
    let mut opcodes = BTreeMap::new();
    for (number, bytes) in frames.iter().enumerate() {
        match Frame::parse(bytes) {
            Ok(frame) => {
                let opcode = frame.packet().bth().opcode;
                let name = format!("{:?} {:?}", opcode.service(), opcode.operation());
                *opcodes.entry(name).or_insert(0) += 1;
                // One bit less, and the ICRC must say so.
                let mut damaged = bytes.clone();
                if let Some(last) = damaged.last_mut() {
                    *last ^= 1;
                }
                ensure(Frame::parse(&damaged).is_err(), || {
                    format!("frame {number} is taken with a wrong ICRC: {bytes:02x?}")
                })?;
            }
            Err(error) => return fail(format!("frame {number}: {error}: {bytes:02x?}")),
        }
    }
    Ok(opcodes)
}

/// The guest's connection manager asks a host that has nobody who answers: its requests come over
/// the cable, MADs of queue pair 1.
fn connection_request(family: u8) -> Verdict {
    let lab = stranger::borrow()?;
    let dir = tempfile::tempdir_in(lab.path())?;
    let file = dir.path().join("pcap");
    let capture = Capture::start(lab.host.namespace(), lab.host.device(), &file)?;
    let mut client = lab.guest.command(&lab.host, "rping");
    let address = lab.host.address(family).to_string();
    client.args(["-c", "-C", "1", "-a", &address]);
    let mut client = Job::start(client, dir.path(), "rping")?;
    let is_roce = |frame: &[u8]| Frame::parse(frame) != Err(Error::NotRoce);
    wait_until(LIMIT, || {
        let came = capture.look(|frames| frames.iter().any(|frame| is_roce(frame)));
        Ok(came || client.poll()?.is_some())
    })?;
    let said = client.describe();
    drop(client);
    let mut frames = capture.finish()?;
    frames.retain(|frame| is_roce(frame));
    ensure(!frames.is_empty(), || format!("no RoCE frame came\n{said}"))?;
    check_frames(&frames)?;
    // Nobody else uses the cable for RoCE, so the first one is the request.
    let Some(Ok(frame)) = frames.first().map(|frame| Frame::parse(frame)) else {
        return fail("no frame");
    };
    ensure(
        frame.ip().source() == lab.guest.address(family)
            && frame.ip().destination() == lab.host.address(family),
        || format!("{:?}", frame.ip()),
    )?;
    let read = Mad::parse(frame.packet().payload()).and_then(|mad| {
        let (message, _) = Message::parse(&mad)?;
        let Message::Req(request) = message else {
            return Err(Error::NotRoce);
        };
        let (service, _) = IpService::parse(request.private_data)?;
        Ok(service)
    });
    let Ok(service) = read else {
        return fail(format!("not a CM REQ for an address: {read:?}: {frame:?}"));
    };
    ensure(
        service.source == lab.guest.address(family)
            && service.destination == lab.host.address(family),
        || format!("{service:?}"),
    )
}

/// A guest of its own: its frames pass the injector, and only those of RoCE have a fate.
fn behind_the_injector() -> Verdict {
    // Two guests at once would need the memory of both.
    stranger::dismiss();
    let lab = Stranger::new(Settings {
        faults: true,
        mtu: 9000,
        ..Settings::default()
    })?;
    let injector = lab.guest.injector()?;
    let all_lost = Faults {
        loss: 1.0,
        ..Faults::NONE
    };
    injector.set(Direction::RightToLeft, all_lost);
    let file = lab.path().join("pcap");
    let capture = Capture::start(lab.host.namespace(), lab.host.device(), &file)?;
    let address = lab.host.v4().to_string();
    let mut client = lab.guest.command(&lab.host, "rping");
    client.args(["-c", "-C", "1", "-a", &address]);
    let client = Job::start(client, lab.path(), "rping")?;
    let lost = wait_until(LIMIT, || {
        Ok(injector.counts(Direction::RightToLeft).lost > 0)
    })?;
    ensure(lost, || {
        format!("no RoCE frame was lost\n{}", client.describe())
    })?;
    drop(client);
    // Long frames pass too.
    let output = in_guest(&lab, "head", &["-c", "1000000", "/dev/zero"])?.success()?;
    ensure(output.stdout.len() == 1_000_000, || {
        "output is missing".into()
    })?;
    injector.check()?;
    let frames = capture.finish()?;
    let roce = frames
        .iter()
        .filter(|frame| Frame::parse(frame) != Err(Error::NotRoce))
        .count();
    let longest = frames.iter().map(Vec::len).max();
    ensure(roce == 0 && longest == Some(9014), || {
        format!("{roce} RoCE frames came, the longest frame has {longest:?} bytes")
    })
}
