//! One of two programs on two hosts is killed (SIGKILL) at a random moment: the other must end after
//! what its queue pair's attributes say, nothing may stay behind on either host, and the next two
//! must meet as if nothing had happened.
//!
//! `SLUICE_KILLS` and `SLUICE_SEED`: see [`Kills::from_environment`].
//!
//! Nothing on a network says that a peer has died. Who has a request on its way learns it when the
//! repetitions are used up; who only waits for messages never does, with adapters neither. The rows
//! are those of survivors that have requests on their way.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::job::{Job, wait_until};
use sluice_tests::random::{Kills, Random};
use sluice_tests::suite::{Problem, Verdict, ensure, fail, trial};
use sluice_tests::verbs::cm;

use sluice_tests::verbs::link::{DEVICES, End, LIMIT, Link, Way, packets_sent};

/// The victim is killed up to this long after the client was started: about half of that is what
/// starting takes.
const MOMENT_MAX_US: u64 = 800_000;
/// Packets of a host that mean that its program does what it is for.
const FLOWING: u64 = 500;
/// A client that was killed before it met the server is replaced, this often at most.
const CLIENTS_MAX: u32 = 3;
/// How long a server that has a client may listen on, before another client comes.
const MEETING_LIMIT: Duration = Duration::from_secs(10);
/// For what the kernel takes back of the dead.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);
/// What stays for good: the directory where processes are asked what they do and librdmacm's listeners
/// are, and the files that locks are taken on.
const PERMANENT: [&str; 3] = [
    "sluice-verbs",
    "sluice-verbs/numbers",
    "sluice-verbs/cm.lock",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Server,
    Client,
}

/// Each runs far longer than anybody waits here, unless it is killed.
struct Case {
    name: &'static str,
    program: &'static str,
    options: &'static [&'static str],
    victims: &'static [Victim],
    /// They meet by librdmacm: a client whose server dies before it has answered asks for another
    /// minute and more, as any client does. Both are left alone until the packets flow.
    by_cm: bool,
}

const BOTH: &[Victim] = &[Victim::Server, Victim::Client];
const SERVER: &[Victim] = &[Victim::Server];

const fn case(
    name: &'static str,
    program: &'static str,
    options: &'static [&'static str],
    victims: &'static [Victim],
) -> Case {
    Case {
        name,
        program,
        options,
        victims,
        by_cm: false,
    }
}

const CASES: &[Case] = &[
    case("send-both-ways", "ib_send_bw", &["-b", "-D", "120"], BOTH),
    case("write-both-ways", "ib_write_bw", &["-b", "-D", "120"], BOTH),
    case(
        "send-events",
        "ib_send_bw",
        &["-e", "-n", "5000000"],
        SERVER,
    ),
    case(
        "16-pairs",
        "ib_write_bw",
        &["-q", "16", "-D", "120"],
        SERVER,
    ),
    case("read", "ib_read_bw", &["-D", "120"], SERVER),
    case("atomic", "ib_atomic_bw", &["-D", "120"], SERVER),
    Case {
        by_cm: true,
        ..case("write-cm", "ib_write_bw", &["-R", "-D", "120"], SERVER)
    },
];

pub fn trials() -> Vec<Trial> {
    let rows = CASES.iter().flat_map(|case| {
        let victims = case.victims.iter();
        victims.flat_map(move |victim| DEVICES.map(|device| (case, *victim, device)))
    });
    let rows: Vec<_> = rows.collect();
    let kills = Kills::from_environment(rows.len());
    rows.into_iter()
        .enumerate()
        .map(|(index, (case, victim, device))| {
            let mut way = Way::corner(device, index / DEVICES.len());
            if case.by_cm {
                // perftest connects to no other addresses then.
                way.family = 4;
            }
            let name = format!("kill/{}/{victim:?}/{}", case.name, way.name());
            let mut random = kills.moments(index);
            trial(name, move || {
                kill_often(case, victim, way, kills.each, &mut random)
                    .inspect_err(|_| kills.say_seed())
            })
        })
        .collect()
}

/// Kills, looks, and lets two others meet, `times` times between the same hosts, so that what one
/// leaves is in the way of the next.
fn kill_often(case: &Case, victim: Victim, way: Way, times: u64, random: &mut Random) -> Verdict {
    let mut link = Link::new(way)?;
    for turn in 0..times {
        let moment = Duration::from_micros(random.below(MOMENT_MAX_US));
        let context = |problem: Problem| match problem {
            Problem::Failed(text) => Problem::Failed(format!(
                "turn {turn}, {victim:?} killed after {moment:?}: {text}"
            )),
            skipped => skipped,
        };
        match victim {
            Victim::Server => kill_server(&mut link, case, moment),
            Victim::Client => kill_client(&mut link, case, moment),
        }
        .map_err(context)?;
        nothing_attached(&link).map_err(context)?;
        meet(&mut link).map_err(context)?;
        nothing_left(&link).map_err(context)?;
    }
    Ok(())
}

/// Pairs that nobody kills. By librdmacm they find whatever is left of names, and the last one takes
/// back everything of its own.
fn meet(link: &mut Link) -> Verdict {
    cm::named("ucmatose/ten").run(link, &[])?;
    link.pair("ib_send_bw", "-x", &["-u", "18", "-n", "100"], LIMIT)?;
    Ok(())
}

struct Meeting {
    port: u16,
    words: Vec<String>,
}

impl Meeting {
    fn new(link: &Link, case: &Case) -> Verdict<Meeting> {
        let port = link.hosts().right.free_port(Protocol::Tcp)?;
        let words = ["-p".to_owned(), port.to_string()];
        let options = case.options.iter().map(|word| (*word).to_owned());
        Ok(Meeting {
            port,
            words: words.into_iter().chain(options).collect(),
        })
    }

    fn start(&self, link: &mut Link, case: &Case, end: End) -> Verdict<Job> {
        let mut words = self.words.clone();
        if !case.by_cm {
            words.extend(["-x".to_owned(), link.gid_index(end).to_owned()]);
        }
        if end == End::Left {
            words.push(link.hosts().right.v4().to_string());
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        link.start(end, case.program, &words)
    }

    fn server(&self, link: &mut Link, case: &Case) -> Verdict<Job> {
        let mut server = self.start(link, case, End::Right)?;
        let host = &link.hosts().right;
        server.await_ready(LIMIT, "listener", || match case.by_cm {
            true => cm::listens(host.runtime(), cm::PortSpace::Tcp, self.port),
            false => host.is_listening(Protocol::Tcp, self.port).unwrap_or(false),
        })?;
        Ok(server)
    }

    fn client(&self, link: &mut Link, case: &Case) -> Verdict<Job> {
        let before = packets_sent(&link.hosts().left)?;
        let mut client = self.start(link, case, End::Left)?;
        if case.by_cm {
            let host = &link.hosts().left;
            client.await_ready(LIMIT, "packets", || {
                packets_sent(host).is_ok_and(|now| now > before + FLOWING)
            })?;
        }
        Ok(client)
    }
}

fn kill_server(link: &mut Link, case: &Case, moment: Duration) -> Verdict {
    let meeting = Meeting::new(link, case)?;
    let server = meeting.server(link, case)?;
    let client = meeting.client(link, case)?;
    std::thread::sleep(moment);
    server.signal(Signal::KILL)?;
    // Reaped, so that it is over.
    drop(server);
    survives(client)
}

/// A client that dies before it has met the server is nothing that the server could hear of. It
/// goes on to wait, and must serve another client; that one dies too, later.
fn kill_client(link: &mut Link, case: &Case, moment: Duration) -> Verdict {
    let meeting = Meeting::new(link, case)?;
    let mut server = meeting.server(link, case)?;
    let mut moment = moment;
    for _ in 0..CLIENTS_MAX {
        let client = meeting.client(link, case)?;
        std::thread::sleep(moment);
        client.signal(Signal::KILL)?;
        drop(client);
        // What the client had begun is in the queue of the listener, if it came that far: a server
        // that got processor time has taken it.
        let host = &link.hosts().right;
        let met = wait_until(MEETING_LIMIT, || {
            Ok(!host.is_listening(Protocol::Tcp, meeting.port)? || server.poll()?.is_some())
        })?;
        if met {
            return survives(server);
        }
        moment += Duration::from_micros(MOMENT_MAX_US);
    }
    fail(format!(
        "{CLIENTS_MAX} clients did not meet the server\n{}",
        server.describe()
    ))
}

/// Waits for the end of the survivor. However it ends, it must not be by a signal.
fn survives(job: Job) -> Verdict {
    let outcome = job.finish(LIMIT)?;
    ensure(outcome.status.signal().is_none(), || outcome.describe())
}

/// Nobody lives, so nobody's program may be on a device.
fn nothing_attached(link: &Link) -> Verdict {
    for host in [&link.hosts().left, &link.hosts().right] {
        let gone = || Ok(!host.describe_link()?.contains("xdp"));
        if !wait_until(SETTLE_LIMIT, gone)? {
            return fail(format!("an XDP program is left\n{}", host.describe_link()?));
        }
    }
    Ok(())
}

/// Neither names nor processes.
fn nothing_left(link: &Link) -> Verdict {
    for host in [&link.hosts().left, &link.hosts().right] {
        let names = entries(host.runtime());
        ensure(names.is_empty(), || {
            format!("left in the rendezvous directories: {names:?}")
        })?;
        let processes = processes(host.runtime());
        ensure(processes.is_empty(), || {
            format!("processes left: {processes:?}")
        })?;
    }
    Ok(())
}

/// What lies in the directory and in those inside, also directories: that of a network namespace
/// goes with its last user.
fn entries(runtime: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![runtime.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path.clone());
            }
            let name = path.strip_prefix(runtime).unwrap_or(&path);
            if !PERMANENT.iter().any(|it| name == Path::new(it)) {
                found.insert(path.display().to_string());
            }
        }
    }
    found
}

/// Those that were started with the runtime directory and still are there.
fn processes(runtime: &Path) -> Vec<u32> {
    let wanted = format!("XDG_RUNTIME_DIR={}", runtime.display());
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
                let mut variables = environment.split(|byte| *byte == 0);
                variables.any(|variable| variable == wanted.as_bytes())
            })
        })
        .collect()
}
