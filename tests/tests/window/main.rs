//! Verbs between two hosts by memory that they share: unmodified programs in two network namespaces,
//! whose queue pairs find each other by numbers over TCP, or by librdmacm over the window.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::hosts::{Host, Pair, Settings};
use sluice_tests::job::{Job, run, wait_until};
use sluice_tests::lab::find_sluice;
use sluice_tests::suite::{self, Verdict, ensure, trial};
use sluice_tests::verbs::cm::{self, PortSpace};
use sluice_tests::verbs::traces::{self, CASES, Case};
use sluice_tests::verbs::{PATIENT, finish_both, sluice_verbs};

const LIMIT: Duration = Duration::from_secs(180);

/// Programs that exchange numbers over TCP, and their options.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("ibv_rc_pingpong", &["-c"]),
    ("ibv_rc_pingpong", &["-e"]),
    ("ibv_uc_pingpong", &["-c"]),
    ("ibv_ud_pingpong", &[]),
    ("ibv_srq_pingpong", &["-c"]),
    ("ibv_xsrq_pingpong", &[]),
    ("ib_write_lat", &["-n", "2000"]),
    ("ib_send_lat", &["-n", "2000"]),
    ("ib_send_lat", &["-n", "2000", "-e"]),
    ("ib_send_lat", &["-n", "2000", "-c", "UD"]),
    ("ib_read_lat", &["-n", "1000"]),
    ("ib_atomic_lat", &["-n", "1000"]),
    ("ib_send_bw", &["-n", "2000", "-a"]),
    ("ib_send_bw", &["-n", "2000", "-c", "UC"]),
    ("ib_write_bw", &["-n", "500", "-s", "1048576", "-q", "4"]),
    ("ib_write_bw", &["-n", "500", "-b"]),
    ("ib_read_bw", &["-n", "500", "-s", "1048576"]),
    ("ib_atomic_bw", &["-n", "1000"]),
];

/// Two hosts, a window, and a folder in which programs of both meet.
struct Stage {
    pair: Pair,
    window: PathBuf,
    started: usize,
    /// Whether programs have traces.
    is_traced: bool,
    /// Whether a peer that stands still for a while is not dead.
    is_patient: bool,
}

impl Stage {
    fn new(kind: &str) -> Verdict<Stage> {
        let pair = Pair::new(Settings::default())?;
        let window = pair.path().join("window");
        let mut create = Command::new(find_sluice()?);
        create.args(["window", "create"]).arg(&window);
        create.args(["--size", "16M", "--hosts", "2", "--kind", kind]);
        run(create, pair.path(), "create", LIMIT)?.success()?;
        Ok(Stage {
            pair,
            window,
            started: 0,
            is_traced: false,
            is_patient: true,
        })
    }

    fn start(&mut self, host: fn(&Pair) -> &Host, program: &str, words: &[&str]) -> Verdict<Job> {
        let device = format!("window:{}", self.window.display());
        let mut options = vec!["--device".to_owned(), device];
        if self.is_traced {
            let file = self.trace(host);
            options.extend(["--trace".to_owned(), file.display().to_string()]);
        }
        let mut command = sluice_verbs(program, words, &options)?;
        host(&self.pair).place(&mut command);
        // As on two machines: librdmacm's processes of each host meet in a folder of their own.
        let own = host(&self.pair).runtime();
        command.env("XDG_RUNTIME_DIR", own);
        if self.is_patient {
            let (name, value) = PATIENT;
            command.env(name, value);
        }
        self.started += 1;
        let label = format!("{}-{program}", self.started);
        Job::start(command, self.pair.path(), &label)
    }

    /// The trace of a host's program.
    fn trace(&self, host: fn(&Pair) -> &Host) -> PathBuf {
        let name = format!("{}.pcapng", host(&self.pair).v4());
        self.pair.path().join(name)
    }

    /// Slots that somebody has.
    fn held(&self) -> Verdict<usize> {
        let mut show = Command::new(find_sluice()?);
        show.args(["window", "show", "--json"]).arg(&self.window);
        let shown = run(show, self.pair.path(), "show", LIMIT)?.success()?;
        // A holder without a processor gives no sign of life, and has its slot.
        let states = ["\"held\"", "\"silent\""];
        let text = shown.text();
        Ok(states.map(|state| text.matches(state).count()).iter().sum())
    }

    fn meeting(&self) -> &Path {
        self.pair.right.runtime()
    }

    /// A server at the right, and its client at the left once it listens.
    fn both(&mut self, program: &str, words: &[&str]) -> Verdict<[Job; 2]> {
        let number = self.pair.right.free_port(Protocol::Tcp)?;
        let (port, address) = (number.to_string(), self.pair.right.v4().to_string());
        let mut all = vec!["-p", &port];
        all.extend(words);
        let mut server = self.start(|pair| &pair.right, program, &all)?;
        let right = &self.pair.right;
        right.await_listener(&mut server, Protocol::Tcp, number, LIMIT)?;
        all.push(&address);
        let client = self.start(|pair| &pair.left, program, &all)?;
        Ok([server, client])
    }
}

fn pair_of(kind: &str, program: &str, words: &[&str]) -> Verdict {
    finish_both(Stage::new(kind)?.both(program, words)?, LIMIT)
}

/// Connected by librdmacm, to an address of the other host.
fn by_cm(program: &str, server: &[&str], client: &[&str]) -> Verdict {
    meet(&mut Stage::new("coherent")?, program, server, client)
}

fn meet(stage: &mut Stage, program: &str, server: &[&str], client: &[&str]) -> Verdict {
    let number = stage.pair.right.free_port(Protocol::Tcp)?;
    let (port, address) = (number.to_string(), stage.pair.right.v4().to_string());
    let fill = |own: &[&str]| -> Vec<String> {
        let all = own.iter().map(|word| match *word {
            "PORT" => port.clone(),
            "ADDRESS" => address.clone(),
            word => word.to_owned(),
        });
        all.collect()
    };
    let (server, client) = (fill(server), fill(client));
    let server: Vec<&str> = server.iter().map(String::as_str).collect();
    let client: Vec<&str> = client.iter().map(String::as_str).collect();
    let mut server = stage.start(|pair| &pair.right, program, &server)?;
    let meeting = stage.meeting().to_owned();
    server.await_ready(LIMIT, "rdma_cm listener", || {
        cm::listens(&meeting, PortSpace::Tcp, number)
    })?;
    let client = stage.start(|pair| &pair.left, program, &client)?;
    cm::success(client.finish(LIMIT)?)?;
    cm::success(server.finish(LIMIT)?)?;
    Ok(())
}

/// Both ends' files have all packets, and tshark finds nothing wrong with them.
fn traced(case: &Case) -> Verdict {
    let mut stage = Stage::new("coherent")?;
    stage.is_traced = true;
    let pair = stage.both(case.program, case.arguments)?;
    finish_both(pair, LIMIT)?;
    let [at_client, at_server] = [
        stage.trace(|pair| &pair.left),
        stage.trace(|pair| &pair.right),
    ];
    let expected = case.both.unwrap_or(case.client);
    case.check([&at_client, &at_server], [expected; 2])
}

/// What librdmacm says over the window is in the files.
fn traced_by_cm() -> Verdict {
    const TURNS: usize = 10;
    /// ConnectRequest, ConnectReply and ReadyToUse (IBTA 12.6).
    const TALK: [&str; 3] = ["0x0010", "0x0013", "0x0014"];
    let mut stage = Stage::new("coherent")?;
    stage.is_traced = true;
    let turns = TURNS.to_string();
    let common = ["-V", "-C", &turns, "-p", "PORT"];
    meet(
        &mut stage,
        "rping",
        &[&["-s"], &common[..]].concat(),
        &[&["-c", "-a", "ADDRESS"], &common[..]].concat(),
    )?;
    for file in [
        stage.trace(|pair| &pair.left),
        stage.trace(|pair| &pair.right),
    ] {
        let packets = traces::check(&file)?;
        let count = |wanted: u8| {
            let of = packets
                .iter()
                .filter(|packet| traces::opcode(packet) == wanted);
            of.count()
        };
        let talk = TALK.map(|wanted| {
            packets
                .iter()
                .any(|packet| packet["infiniband.mad.attributeid"] == wanted)
        });
        let data = [count(traces::READ_REQUEST), count(traces::WRITE_ONLY)];
        ensure(talk == [true; 3] && data == [TURNS; 2], || {
            let opcodes: Vec<u8> = packets.iter().map(traces::opcode).collect();
            format!("{}: {talk:?}, {data:?}: {opcodes:?}", file.display())
        })?;
    }
    Ok(())
}

/// Doctors of two hosts meet in the window and measure; one alone says what it did instead, and that there is no
/// slot for both of its ends where somebody has the other one.
fn doctor() -> Verdict {
    let stage = Stage::new("coherent")?;
    let start = |host: &Host, label: &str, words: &[&str]| -> Verdict<Job> {
        let mut command = Command::new(find_sluice()?);
        command.args(["doctor", "--json", "--window"]);
        command.arg(&stage.window).args(words);
        host.place(&mut command);
        Job::start(command, stage.pair.path(), label)
    };
    let said = |job: Job| -> Verdict<(bool, String)> {
        let outcome = job.finish(LIMIT)?;
        let text = outcome.text();
        Ok((outcome.status.success(), text))
    };
    // An end that stands still for three seconds is dead for the other one.
    suite::until(|| {
        let both = [
            start(&stage.pair.left, "doctor-left", &["--wait", "50"])?,
            start(&stage.pair.right, "doctor-right", &["--wait", "50"])?,
        ];
        let [left, right] = both.map(said);
        let all = [left?, right?];
        let met =
            |text: &str| text.contains("another doctor") && text.contains("every byte checked");
        let good = all.iter().all(|(good, text)| *good && met(text));
        Ok(ensure(good, || format!("{all:?}")))
    })?;
    suite::until(|| {
        let (good, text) = said(start(&stage.pair.left, "doctor", &[])?)?;
        Ok(ensure(good && text.contains("both ends are here"), || text))
    })?;
    let mut stage = stage;
    suite::until(|| Ok(no_room_for_a_doctor(&mut stage)))
}

/// A verbs program has one of the two slots.
fn no_room_for_a_doctor(stage: &mut Stage) -> Verdict {
    let holder = stage.start(|pair| &pair.left, "ibv_rc_pingpong", &[])?;
    let is_held = wait_until(LIMIT, || Ok(stage.held().unwrap_or(0) > 0))?;
    ensure(is_held, || holder.describe())?;
    let mut command = Command::new(find_sluice()?);
    command.args(["doctor", "--window"]).arg(&stage.window);
    let outcome = run(command, stage.pair.path(), "doctor-alone", LIMIT)?;
    holder.signal(Signal::KILL)?;
    let _ = holder.finish(LIMIT)?;
    ensure(
        outcome.status.code() == Some(1) && outcome.text().contains("all slots are held"),
        || outcome.describe(),
    )
}

/// A program whose peer is killed says so and ends, and the next pair finds both slots.
fn killed() -> Verdict {
    let mut stage = Stage::new("coherent")?;
    stage.is_patient = false;
    let [server, client] = stage.both("ib_write_bw", &["-D", "40", "-s", "65536"])?;
    let is_full = wait_until(LIMIT, || Ok(stage.held().unwrap_or(0) == 2))?;
    ensure(is_full, || client.describe())?;
    // Any moment after that will do.
    std::thread::sleep(Duration::from_millis(1000));
    server.signal_group(Signal::KILL);
    let client = client.finish(LIMIT)?;
    ensure(!client.status.success(), || {
        format!("it has noticed nothing\n{}", client.describe())
    })?;
    let _ = server.finish(LIMIT)?;
    stage.is_patient = true;
    finish_both(stage.both("ibv_rc_pingpong", &[])?, LIMIT)
}

/// A host that stands still for longer than the usual silence is not dead where programs were told so.
fn stands_still() -> Verdict {
    /// Longer than the three seconds.
    const STANDSTILL: Duration = Duration::from_secs(5);
    let mut stage = Stage::new("coherent")?;
    let [server, client] = stage.both("ib_write_bw", &["-D", "7", "-s", "65536"])?;
    let is_full = wait_until(LIMIT, || Ok(stage.held().unwrap_or(0) == 2))?;
    ensure(is_full, || client.describe())?;
    std::thread::sleep(Duration::from_millis(1000));
    server.signal_group(Signal::STOP);
    std::thread::sleep(STANDSTILL);
    server.signal_group(Signal::CONT);
    finish_both([server, client], LIMIT)
}

/// What is no window, and one that is full.
fn refused() -> Verdict {
    let mut stage = Stage::new("coherent")?;
    let window = std::mem::replace(&mut stage.window, PathBuf::from("/nowhere/window"));
    let program = stage.start(|pair| &pair.left, "ibv_devinfo", &[])?;
    let outcome = program.finish(LIMIT)?;
    let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
    ensure(said.contains("/nowhere/window"), || outcome.describe())?;
    stage.window = window;
    suite::until(|| {
        let [mut first, mut second] = stage.both("ib_write_bw", &["-D", "10"])?;
        let mut is_over =
            || -> std::io::Result<bool> { Ok(first.poll()?.is_some() || second.poll()?.is_some()) };
        let is_full = || Ok(stage.held().unwrap_or(0) == 2 || is_over()?);
        ensure(wait_until(LIMIT, is_full)?, || "slots are free".into())?;
        stage.is_patient = false;
        let third = stage.start(|pair| &pair.left, "ibv_devinfo", &[])?;
        stage.is_patient = true;
        let outcome = third.finish(LIMIT)?;
        let had_room = first.poll()?.is_some() || second.poll()?.is_some();
        let ended = finish_both([first, second], LIMIT);
        let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
        let refused = ensure(said.contains("all 2 slots"), || outcome.describe());
        // One of the two had ended, or was taken for dead, before the third one, which had no processor for so long, came.
        if refused.is_err() && (had_room || ended.is_err()) {
            return Ok(refused);
        }
        refused.and(ended).map(Ok)
    })
}

fn main() -> ExitCode {
    let mut trials: Vec<Trial> = Vec::new();
    for kind in ["coherent", "flush"] {
        for (program, words) in PROGRAMS {
            let name = format!("{program}/{kind}{}", words.concat().replace('-', "/"));
            trials.push(trial(name, move || pair_of(kind, program, words)));
        }
    }
    trials.push(trial("rping/cm".to_owned(), || {
        by_cm(
            "rping",
            &["-s", "-C", "20", "-V", "-p", "PORT"],
            &["-c", "-C", "20", "-V", "-p", "PORT", "-a", "ADDRESS"],
        )
    }));
    trials.push(trial("ib_send_lat/cm".to_owned(), || {
        by_cm(
            "ib_send_lat",
            &["-R", "-n", "500", "-p", "PORT"],
            &["-R", "-n", "500", "-p", "PORT", "ADDRESS"],
        )
    }));
    for case in CASES {
        let name = format!("trace/{}", case.name);
        trials.push(trial(name, || traced(case)));
    }
    trials.push(trial("trace/rping".to_owned(), traced_by_cm));
    trials.push(trial("doctor".to_owned(), doctor));
    trials.push(trial("killed".to_owned(), killed));
    trials.push(trial("stands-still".to_owned(), stands_still));
    trials.push(trial("refused".to_owned(), refused));
    // One at a time: each pair polls and can use every core.
    suite::run(trials, 1).exit_code()
}
