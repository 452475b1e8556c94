//! The guest: programs run in it as they do here, its RDMA devices work, and what they put on the
//! wire is what our own parser and ICRC expect.

use std::collections::BTreeMap;
use std::fs;
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
use sluice_tests::suite::{Problem, Verdict, ensure, eventually, fail, trial};
use sluice_wire::cm::{IpService, Message};
use sluice_wire::mad::Mad;
use sluice_wire::{Error, Frame};

/// For one program in an emulated machine.
pub const LIMIT: Duration = Duration::from_secs(150);

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
    }
    trials
}

/// Ends the shared guest.
pub fn last() -> Trial {
    trial("guest/behind-the-injector", behind_the_injector)
}

/// Runs a program in the guest to its end, whatever that is.
pub fn in_guest(lab: &Stranger, program: &str, arguments: &[&str]) -> Verdict<Outcome> {
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
    // The guest hears of it by the connection.
    eventually(LIMIT, || {
        let alone = sleepers()?;
        ensure(alone < before, || {
            format!("{before} processes before the command was killed, {alone} after it")
        })
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
    // It gives up a peer that gets no processor for half a second, and cannot be told to be more patient.
    const TRIES: u16 = 4;
    const GIVEN_UP: &str = "transport retry counter exceeded";
    let lab = stranger::borrow()?;
    let server = ("ibv_rc_pingpong", &["-d", RXE, "-g", "1", "-n", "100"][..]);
    let client = [server.1, &["127.0.0.1"]].concat();
    let mut result = Ok(());
    for port in 18515..18515 + TRIES {
        result = pair(&lab, port, server, (server.0, &client));
        match &result {
            Err(Problem::Failed(text)) if text.contains(GIVEN_UP) => {}
            _ => break,
        }
    }
    result
}

/// A server in the guest, and its client there as soon as the server listens.
pub fn pair(
    lab: &Stranger,
    port: u16,
    server: (&str, &[&str]),
    client: (&str, &[&str]),
) -> Verdict {
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

/// Parses every frame, its ICRC included, and counts opcodes.
pub fn check_frames(frames: &[Vec<u8>]) -> Verdict<BTreeMap<String, usize>> {
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
    // The kernel asks again and again, also for the other family's test when it has ended.
    let source = lab.guest.address(family);
    let is_ours =
        |bytes: &[u8]| Frame::parse(bytes).is_ok_and(|frame| frame.ip().source() == source);
    wait_until(LIMIT, || {
        let came = capture.look(|frames| frames.iter().any(|frame| is_ours(frame)));
        Ok(came || client.poll()?.is_some())
    })?;
    let said = client.describe();
    drop(client);
    let mut frames = capture.finish()?;
    frames.retain(|frame| Frame::parse(frame) != Err(Error::NotRoce));
    check_frames(&frames)?;
    let request = frames.iter().find(|frame| is_ours(frame));
    let Some(Ok(frame)) = request.map(|frame| Frame::parse(frame)) else {
        return fail(format!("no RoCE frame from {source} came\n{said}"));
    };
    ensure(frame.ip().destination() == lab.host.address(family), || {
        format!("{:?}", frame.ip())
    })?;
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
