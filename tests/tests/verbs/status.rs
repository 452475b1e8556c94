//! What `sluice status` and `sluice doctor` say of verbs programs that run, without a daemon.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::Value;
use sluice_tests::job::{Job, Outcome, command, find_program, run};
use sluice_tests::lab::find_sluice;
use sluice_tests::net::{free_port, is_listening};
use sluice_tests::suite::{Verdict, ensure, eventually, fail, skip, trial};

use crate::stage::{LIMIT, Stage};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("status/perftest", perftest),
        trial("status/roce-udp", roce_udp),
        trial("status/stopped", stopped),
        trial("status/killed", killed),
        trial("status/forked", forked),
        trial("status/hundred", hundred),
        trial("status/hostile-names", hostile_names),
    ]
}

/// Programs that meet in a directory of the test's own.
struct Meeting {
    stage: Stage,
    place: PathBuf,
    count: u32,
}

impl Meeting {
    fn new() -> Verdict<Meeting> {
        let stage = Stage::new()?;
        let place = stage.folder().join("run");
        fs::create_dir(&place)?;
        Ok(Meeting {
            stage,
            place,
            count: 0,
        })
    }

    fn label(&mut self, name: &str) -> String {
        self.count += 1;
        format!("{}-{name}", self.count)
    }

    fn dressed(&self, mut command: Command) -> Command {
        command
            .env("XDG_RUNTIME_DIR", &self.place)
            .env_remove("SLUICE_SOCKET");
        command
    }

    fn verbs(&mut self, program: &str, arguments: &[&str]) -> Verdict<Job> {
        let command = self.dressed(self.stage.verbs(program, arguments, &[])?);
        let label = self.label("program");
        Job::start(command, self.stage.folder(), &label)
    }

    /// One that has opened the device and waits for events until it is ended.
    fn waiting(&mut self) -> Verdict<Job> {
        let mut watch = self.verbs("stdbuf", &["-oL", "ibv_asyncwatch"])?;
        watch.await_text("async event FD", LIMIT)?;
        Ok(watch)
    }

    fn sluice(&mut self, arguments: &[&str]) -> Verdict<Outcome> {
        let mut sluice = self.dressed(command(find_sluice()?));
        sluice.args(arguments);
        let label = self.label("sluice");
        run(sluice, self.stage.folder(), &label, LIMIT)
    }

    /// The processes of `sluice status --json`.
    fn listed(&mut self) -> Verdict<Vec<Value>> {
        let outcome = self.sluice(&["status", "--json"])?;
        let document: Value = parsed(&outcome)?;
        let processes = document["verbs"]["processes"].as_array().cloned();
        processes.map_or_else(|| fail(outcome.describe()), Ok)
    }

    /// What is said of one process.
    fn of(&mut self, pid: u32) -> Verdict<Option<Value>> {
        let mut all = self.listed()?.into_iter();
        Ok(all.find(|process| process["pid"] == pid))
    }

    /// The same, as soon as it is as wanted.
    fn await_of(
        &mut self,
        pid: u32,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Verdict<Value> {
        let start = Instant::now();
        loop {
            let found = self.of(pid)?.unwrap_or(Value::Null);
            if wanted(&found) {
                return Ok(found);
            }
            ensure(start.elapsed() < LIMIT, || {
                format!("{pid} is not {what} but {found:#}")
            })?;
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The line of `sluice doctor`.
    fn doctor(&mut self) -> Verdict<String> {
        let outcome = self.sluice(&["doctor", "--json"])?;
        let document: Value = parsed(&outcome)?;
        let checks = document["checks"].as_array().cloned().unwrap_or_default();
        let line = checks
            .iter()
            .find(|check| check["name"] == "verbs programs");
        let found = line.and_then(|check| check["found"].as_str());
        found.map_or_else(|| fail(outcome.describe()), |text| Ok(text.to_owned()))
    }

    /// The same, as soon as it has that.
    fn await_doctor(&mut self, wanted: &str) -> Verdict {
        eventually(LIMIT, || {
            let doctor = self.doctor()?;
            ensure(doctor.contains(wanted), || doctor)
        })
    }

    /// The names that processes have in the directory.
    fn names(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.place.join("sluice-verbs"));
        let entries = entries.into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter(|name| name.starts_with('r') && name.ends_with(".sock"))
            .collect()
    }
}

fn parsed(outcome: &Outcome) -> Verdict<Value> {
    serde_json::from_str(&outcome.text())
        .or_else(|error| fail(format!("{error}\n{}", outcome.describe())))
}

fn make_fifo(path: &Path, folder: &Path) -> Verdict {
    let mut mkfifo = command("mkfifo");
    mkfifo.arg(path);
    run(mkfifo, folder, "mkfifo", LIMIT)?.success()?;
    Ok(())
}

fn device(process: &Value) -> &Value {
    &process["report"]["devices"][0]
}

/// A pair at work, its client killed, its server ended.
fn perftest() -> Verdict {
    let mut meeting = Meeting::new()?;
    let number = free_port()?;
    let port = number.to_string();
    // Longer than the test; no end comes by itself.
    let arguments = ["-D", "600", "-p", &port];
    let mut server = meeting.verbs("ib_write_bw", &arguments)?;
    server.await_ready(LIMIT, "listening socket", || is_listening(number))?;
    let client = meeting.verbs("ib_write_bw", &[&arguments[..], &["127.0.0.1"]].concat())?;
    let (server_pid, client_pid) = (server.id(), client.id());
    let busy = meeting.await_of(client_pid, "sending", |process| {
        device(process)["sends"].as_u64() > Some(0)
            && device(process)["send_bytes"].as_u64() > Some(0)
    })?;
    ensure(busy["program"] == "ib_write_bw", || busy.to_string())?;
    ensure(busy["state"] == "answers", || busy.to_string())?;
    ensure(device(&busy)["name"] == "sluice0", || busy.to_string())?;
    ensure(device(&busy)["transport"] == "shm", || busy.to_string())?;
    ensure(device(&busy)["queue_pairs"]["RTS"] == 1, || {
        busy.to_string()
    })?;
    let is_peer = |of: &Value, pid: u32| {
        let peers = device(of)["peers"].as_array().cloned().unwrap_or_default();
        peers.iter().any(|peer| *peer == pid)
    };
    ensure(is_peer(&busy, server_pid), || busy.to_string())?;
    meeting.await_of(server_pid, "its peer", |of| is_peer(of, client_pid))?;
    // It counts while nobody but the program touches the queue pair.
    let before = device(&busy)["send_bytes"].as_u64();
    meeting.await_of(client_pid, "going on", |process| {
        device(process)["send_bytes"].as_u64() > before
    })?;

    // Whoever gets no processor does not answer in time.
    eventually(LIMIT, || {
        let table = meeting.sluice(&["status", "--wide"])?.success()?;
        let line = |pid: u32| {
            let text = table.text();
            let mut lines = text.lines().map(str::to_owned);
            let own = move |line: &String| line.split_whitespace().next() == Some(&pid.to_string());
            lines.find(own).unwrap_or_default()
        };
        for pid in [server_pid, client_pid] {
            let line = line(pid);
            let says = |part| line.contains(part);
            ensure(
                says("ib_write_bw") && says("sluice0 shared memory") && says("1 RT"),
                || table.describe(),
            )?;
        }
        Ok(())
    })?;
    let named = format!("ib_write_bw[{client_pid}] sluice0 by shared memory, 1 RTS");
    meeting.await_doctor(&named)?;

    // One that is killed is not listed, and no error either.
    client.signal(Signal::KILL)?;
    client.finish(LIMIT)?;
    ensure(meeting.of(client_pid)?.is_none(), || {
        "it is listed after its end".to_owned()
    })?;
    drop(server);
    ensure(meeting.of(server_pid)?.is_none(), || {
        "it is listed after its end".to_owned()
    })?;
    let doctor = meeting.doctor()?;
    ensure(!doctor.contains(&format!("[{client_pid}]")), || doctor)
}

/// In a network namespace with nothing but a loopback interface.
fn roce_udp() -> Verdict {
    let mut meeting = Meeting::new()?;
    let Some(unshare) = find_program("unshare") else {
        return skip("unshare is not installed");
    };
    let mut trial = command(&unshare);
    trial.args(["-rn", "ip", "link", "set", "lo", "up"]);
    let label = meeting.label("unshare");
    if !run(trial, meeting.stage.folder(), &label, LIMIT)?
        .status
        .success()
    {
        return skip("no user and network namespace can be made here");
    }
    // Skips without the program.
    let inner = meeting
        .stage
        .verbs("rping", &[], &["--device=roce-udp".to_owned()])?;
    let words: Vec<String> = std::iter::once(inner.get_program())
        .chain(inner.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let rping = words.join(" ");
    let script = format!(
        "ip link set lo up && ip addr add 10.77.0.1/32 dev lo\n\
         {rping} -s -a 10.77.0.1 -P & \n\
         until {rping} -c -a 10.77.0.1 -C 100000000; do sleep 0.2; done"
    );
    let mut both = meeting.dressed(command(unshare));
    both.args(["-rn", "--", "sh", "-c", &script]);
    let label = meeting.label("both");
    let both = Job::start(both, meeting.stage.folder(), &label)?;
    let start = Instant::now();
    let found = loop {
        let all = meeting.listed()?;
        let mut with_traffic = all.into_iter().filter(|process| {
            device(process)["counters"]["sent_pkts"].as_u64() > Some(10)
                && device(process)["queue_pairs"]["RTS"].as_u64() > Some(0)
                && process["program"] == "rping"
        });
        if let Some(found) = with_traffic.next() {
            break found;
        }
        ensure(start.elapsed() < LIMIT, || both.describe())?;
        std::thread::sleep(Duration::from_millis(100));
    };
    ensure(device(&found)["transport"] == "roce", || found.to_string())?;
    let list = |name: &str| device(&found)[name].as_array().cloned().unwrap_or_default();
    ensure(list("ways") == ["UDP"], || found.to_string())?;
    ensure(list("addresses").contains(&"10.77.0.1".into()), || {
        found.to_string()
    })?;
    ensure(found["same_network"] == false, || found.to_string())?;
    eventually(LIMIT, || {
        let table = meeting.sluice(&["status", "--wide"])?.success()?;
        ensure(table.text().contains("other network namespace"), || {
            table.describe()
        })
    })
}

fn stopped() -> Verdict {
    let mut meeting = Meeting::new()?;
    let watch = meeting.waiting()?;
    meeting.await_of(watch.id(), "answering", |it| it["state"] == "answers")?;
    watch.signal(Signal::STOP)?;
    // The signal is on its way when the call returns.
    meeting.await_of(watch.id(), "stopped", |it| it["state"] == "stopped")?;
    meeting.await_doctor(&format!("[{}] is stopped", watch.id()))?;
    watch.signal(Signal::CONT)?;
    meeting.await_of(watch.id(), "answering", |it| it["state"] == "answers")?;
    Ok(())
}

fn killed() -> Verdict {
    let mut meeting = Meeting::new()?;
    let watch = meeting.waiting()?;
    let pid = watch.id();
    meeting.await_of(pid, "answering", |it| it["state"] == "answers")?;
    let left = meeting.names();
    ensure(left.len() == 1, || format!("{left:?}"))?;
    watch.signal(Signal::KILL)?;
    watch.finish(LIMIT)?;
    ensure(meeting.of(pid)?.is_none(), || "it is listed".to_owned())?;
    ensure(meeting.names() == left, || "status removed it".to_owned())?;
    let outcome = meeting.sluice(&["doctor"])?;
    ensure(outcome.text().contains("verbs leftovers"), || {
        outcome.describe()
    })?;
    let next = meeting.waiting()?;
    let now = meeting.names();
    ensure(now.len() == 1 && now.is_disjoint(&left), || {
        format!("{now:?} after {left:?}")
    })?;
    // One that ends takes its name away by itself.
    next.signal(Signal::TERM)?;
    next.finish(LIMIT)?;
    Ok(())
}

/// A child that lives on is not its parent; neither is the program that it executes.
fn forked() -> Verdict {
    const SCRIPT: &str = "
import ctypes, os, sys, time
verbs = ctypes.CDLL('libibverbs.so.1')
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_open_device.argtypes = [ctypes.c_void_p]
verbs.ibv_open_device.restype = ctypes.c_void_p
assert verbs.ibv_open_device(verbs.ibv_get_device_list(None)[0])
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
sys.stdin.readline()
os.execvp('sleep', ['sleep', '600'])
";
    let mut meeting = Meeting::new()?;
    let program = meeting.dressed(meeting.stage.verbs("python3", &["-c", SCRIPT], &[])?);
    let mut opener = Opener::start(program, meeting.stage.folder())?;
    let pid = opener.job.id();
    meeting.await_of(pid, "answering", |it| it["state"] == "answers")?;
    let mut child = String::new();
    let stdout = opener.job.stdout_path().to_owned();
    opener.job.await_ready(LIMIT, "child", || {
        child = fs::read_to_string(&stdout).unwrap_or_default();
        child.ends_with('\n')
    })?;
    let Ok(child) = child.trim().parse::<u32>() else {
        return fail(child);
    };
    ensure(meeting.of(child)?.is_none(), || {
        "a child is listed as what it is not".to_owned()
    })?;
    ensure(meeting.of(pid)?.is_some(), || {
        "the parent is gone".to_owned()
    })?;
    opener.go_on()?;
    meeting.await_of(pid, "another program", Value::is_null)?;
    Ok(())
}

/// A program that waits for a line.
struct Opener {
    job: Job,
    pipe: PathBuf,
}

impl Opener {
    fn start(mut program: Command, folder: &Path) -> Verdict<Opener> {
        let pipe = folder.join("go");
        make_fifo(&pipe, folder)?;
        // For both, so that neither side waits for the other one to open it.
        let both = fs::OpenOptions::new().read(true).write(true).open(&pipe)?;
        program.stdin(both);
        let job = Job::start(program, folder, "opener")?;
        Ok(Opener { job, pipe })
    }

    fn go_on(&self) -> Verdict {
        Ok(fs::write(&self.pipe, b"\n")?)
    }
}

fn hundred() -> Verdict {
    const COUNT: usize = 100;
    let mut meeting = Meeting::new()?;
    let mut jobs = Vec::new();
    for _ in 0..COUNT {
        jobs.push(meeting.verbs("ibv_asyncwatch", &[])?);
    }
    let wanted: BTreeSet<u64> = jobs.iter().map(|job| u64::from(job.id())).collect();
    let start = Instant::now();
    loop {
        let listed: BTreeSet<u64> = meeting
            .listed()?
            .iter()
            .filter(|process| process["state"] == "answers")
            .filter_map(|process| process["pid"].as_u64())
            .collect();
        let missing = wanted.difference(&listed).count();
        if missing == 0 {
            break;
        }
        ensure(start.elapsed() < LIMIT, || {
            format!("{missing} of {COUNT} are not listed")
        })?;
        std::thread::sleep(Duration::from_millis(200));
    }
    meeting.await_doctor("more")
}

/// What another program of the same user, or with root's eyes of any, puts beside them.
fn hostile_names() -> Verdict {
    let mut meeting = Meeting::new()?;
    let watch = meeting.waiting()?;
    let folder = meeting.place.join("sluice-verbs");
    let name = |number: u32| folder.join(format!("r{number}.sock"));
    std::os::unix::fs::symlink("/dev/zero", name(1))?;
    make_fifo(&name(2), meeting.stage.folder())?;
    fs::File::create(name(3))?.set_len(1 << 40)?;
    fs::create_dir(name(4))?;
    // Of a stream, which verbs programs do not have, with nobody to accept.
    let _silent = std::os::unix::net::UnixListener::bind(name(5))?;
    meeting.await_of(watch.id(), "answering", |it| it["state"] == "answers")?;
    meeting.await_doctor(&format!("[{}]", watch.id()))
}
