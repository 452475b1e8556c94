//! The command and the real daemon: started when it is needed, found, and ended.

#![allow(unsafe_code)]

mod common;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Scratch, compile, real_daemon, stderr, stdout, unwrapped, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use sluice_control::message::{FromDaemon, VERSION};
use sluice_sys::unix;

/// Set for a process that is to be a daemon of another version: its socket.
const OTHER_DAEMON: &str = "SLUICE_TEST_OTHER_DAEMON";

/// An installation with the real daemon. Ends the daemon when the test ends.
struct Installation(Scratch);

impl Installation {
    fn new() -> Self {
        let scratch = Scratch::new().with_library();
        symlink(real_daemon(), scratch.path("sluiced")).unwrap();
        Self(scratch)
    }

    fn says<const N: usize>(&self, arguments: [&str; N]) -> String {
        let output = self.0.sluice(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert_eq!(stderr(&output), "", "{arguments:?}");
        stdout(&output)
    }

    fn daemon_pid(&self) -> u64 {
        let text = self.says(["status", "--json"]);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        value["daemons"][0]["status"]["pid"].as_u64().unwrap()
    }
}

impl Installation {
    fn daemon(&self) -> Pid {
        let pid = i32::try_from(self.daemon_pid()).unwrap();
        Pid::from_raw(pid).unwrap()
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        let _ = self.0.sluice(["down"]).output();
    }
}

#[test]
fn run_starts_a_daemon_and_the_next_run_uses_it() {
    let installation = Installation::new();
    assert_eq!(installation.says(["run", "echo", "one"]), "one\n");
    let first = installation.daemon_pid();
    assert_eq!(installation.says(["run", "echo", "two"]), "two\n");
    assert_eq!(installation.daemon_pid(), first);
    // It has a session of its own: what ends the one of the terminal does not reach it.
    let stat = std::fs::read_to_string(format!("/proc/{first}/stat")).unwrap();
    let behind_name: Vec<_> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    assert_eq!(
        behind_name[2..5],
        [&*first.to_string(), &*first.to_string(), "0"]
    );
    assert!(installation.says(["down"]).contains("has ended"));
    assert!(!installation.0.socket().exists());
}

#[test]
fn a_started_daemon_does_not_hold_the_callers_pipes() {
    let installation = Installation::new();
    // output() waits for the end of both pipes, which a daemon that kept them would put off
    // for a minute; so a reader with its own descriptor beside them is watched too.
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let mut command = installation
        .0
        .sluice(["run", "--log", "info", "echo", "ran"]);
    let output = command.stderr(Stdio::piped()).output().unwrap();
    assert_eq!(stdout(&output), "ran\n");
    drop(writer);
    let mut byte = [0; 1];
    assert_eq!(rustix::io::read(&reader, &mut byte).unwrap(), 0);
    // The daemon still runs: the pipes did not end because it did.
    installation.daemon_pid();
}

#[test]
fn many_starts_at_once_end_with_one_daemon() {
    let installation = Installation::new();
    let children: Vec<_> = (0..8)
        .map(|_| {
            let mut command = installation
                .0
                .sluice(["run", "--log", "warn", "echo", "ran"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!(stdout(&output), "ran\n");
        assert_eq!(stderr(&output), "");
    }
    installation.daemon_pid();
}

#[test]
fn what_was_named_and_cannot_be_had_is_an_error() {
    let installation = Installation::new();
    let file = installation.0.path("file");
    std::fs::write(&file, "").unwrap();
    let below = file.join("control.sock");
    let run = |arguments: &[&str]| {
        let mut command = installation.0.sluice(["run"]);
        let output = command.args(arguments).args(["echo", "ran"]);
        let output = output.output().unwrap();
        (output.status.code(), stdout(&output), stderr(&output))
    };
    let below = below.to_str().unwrap();
    let (status, said, why) = run(&["--socket", below]);
    assert_eq!((status, said.as_str()), (Some(125), ""), "{why}");
    assert!(why.contains(file.to_str().unwrap()), "{why}");
    let (status, said, why) = run(&["--gateway", "nobody"]);
    assert_eq!((status, said.as_str()), (Some(125), ""), "{why}");
    assert!(why.contains("no gateway 'nobody'"), "{why}");
    // Nothing was promised here, so it is said and the program runs.
    let (status, said, why) = run(&["--no-daemon", "--socket", below]);
    assert_eq!((status, said.as_str()), (Some(0), "ran\n"), "{why}");
    assert_eq!(why.matches("warning").count(), 1, "{why}");
    let mut command = installation.0.sluice(["run", "echo", "ran"]);
    let output = command.env("SLUICE_LOG", "bogus").output().unwrap();
    assert_eq!(stdout(&output), "ran\n");
    let why = stderr(&output);
    assert_eq!(why.matches("warning: SLUICE_LOG").count(), 1, "{why}");
}

#[test]
fn a_stale_socket_is_replaced() {
    let installation = Installation::new();
    installation.says(["run", "true"]);
    kill_process(installation.daemon(), Signal::KILL).unwrap();
    wait_for("the end of the daemon", || {
        let output = installation.0.sluice(["status"]).output().unwrap();
        stderr(&output).contains("left over")
    });
    assert_eq!(installation.says(["run", "echo", "ran"]), "ran\n");
    installation.daemon_pid();
}

#[test]
fn a_stopped_daemon_is_named_at_once_and_can_be_ended() {
    let installation = Installation::new();
    installation.says(["up"]);
    let daemon = installation.daemon();
    kill_process(daemon, Signal::STOP).unwrap();
    let output = installation.0.sluice(["run", "echo", "ran"]);
    let output = { output }.output().unwrap();
    assert_eq!(stdout(&output), "ran\n");
    let text = stderr(&output);
    let named = format!(
        "warning: the daemon, pid {}, is stopped",
        daemon.as_raw_pid()
    );
    assert!(text.contains(&named), "{text}");
    assert_eq!(
        installation.says(["down"]),
        format!("sluiced, pid {}, has ended\n", daemon.as_raw_pid())
    );
    assert!(installation.says(["down"]).contains("no daemon runs"));
}

/// The body of a daemon of another version: nothing, unless the process was started for it.
#[test]
fn other_daemon() {
    let Some(path) = std::env::var_os(OTHER_DAEMON) else {
        return;
    };
    let socket = unix::seqpacket().unwrap();
    let before = Path::new(&path).with_extension("new");
    unix::bind(socket.raw(), before.as_os_str().as_bytes()).unwrap();
    unix::listen(socket.raw(), 8).unwrap();
    // Who sees it can connect.
    std::fs::rename(&before, &path).unwrap();
    loop {
        unix::wait_readable(socket.raw(), 60_000).unwrap();
        let client = unix::accept(socket.raw()).unwrap();
        let mut buffer = [0; 512];
        let pong = FromDaemon::Pong { pid: 1, clients: 0 };
        let mut bytes = pong.encode(&mut buffer).to_vec();
        bytes[2..4].copy_from_slice(&(VERSION + 1).to_le_bytes());
        unix::send_with_fds(client.raw(), &bytes, &[]).unwrap();
        // Until the client has gone.
        unix::wait_readable(client.raw(), 60_000).unwrap();
        while unix::receive_with_fds(client.raw(), &mut buffer).is_ok_and(|it| it.len > 0) {}
    }
}

fn start_other_daemon(program: &Path, socket: &Path) -> Child {
    let mut command = Command::new(program);
    command.args(["--exact", "other_daemon"]);
    command.env(OTHER_DAEMON, socket).stdout(Stdio::null());
    let child = command.spawn().unwrap();
    wait_for("the daemon of another version", || socket.exists());
    child
}

#[test]
fn a_daemon_of_another_version_is_named_and_can_be_ended_and_replaced() {
    let installation = Installation::new();
    let folder = installation.0.path("other");
    std::fs::create_dir(&folder).unwrap();
    let program = folder.join("sluiced");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let socket = installation.0.socket();
    for command in ["down", "up"] {
        let mut other = start_other_daemon(&program, &socket);
        let run = installation.0.sluice(["run", "echo", "ran"]);
        let run = { run }.output().unwrap();
        assert_eq!(stdout(&run), "ran\n");
        let text = stderr(&run);
        let named = format!("warning: the daemon there, pid {}, speaks", other.id());
        assert!(text.contains(&named), "{text}");
        let said = installation.says([command]);
        let named = format!("pid {}, has ended", other.id());
        assert!(said.contains(&named), "{said}");
        other.wait().unwrap();
        match command {
            "up" => assert!(said.contains("sluiced runs, pid "), "{said}"),
            // It has no signal handler that would do so.
            _ => std::fs::remove_file(&socket).unwrap(),
        }
    }
}

/// What waits for all its children waits for its own alone, although the daemon that is started for it is an orphan.
#[test]
fn a_program_that_takes_orphans_has_no_child_that_it_has_not_made() {
    let installation = Installation::new();
    let source = installation.0.path("waits.c");
    let program = installation.0.path("waits");
    std::fs::write(
        &source,
        "#include <stdio.h>\n#include <sys/prctl.h>\n#include <sys/wait.h>\n#include <unistd.h>\n\
         int main(void) { int takes = 0, count = 0; if (!fork()) _exit(3);\n\
         while (wait(NULL) != -1) count++; prctl(PR_GET_CHILD_SUBREAPER, &takes, 0, 0, 0);\n\
         printf(\"%d children, takes orphans: %d\\n\", count, takes); return 7; }\n",
    )
    .unwrap();
    compile(&[], &source, &program);
    let mut command = installation.0.sluice(["run"]);
    command.arg(&program);
    // SAFETY: the closure makes one system call.
    unsafe {
        command.pre_exec(|| Ok(rustix::process::set_child_subreaper(Some(Pid::INIT))?));
    }
    let output = command.output().unwrap();
    assert_eq!(stdout(&output), "1 children, takes orphans: 1\n");
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    // The daemon has gone elsewhere, and serves others.
    installation.daemon_pid();
}

#[test]
fn up_keeps_its_settings_and_down_ends_it() {
    let installation = Installation::new();
    let text = installation.says(["up", "--ring-bytes", "16384", "--max-lanes", "77"]);
    assert!(text.contains("sluiced runs, pid "), "{text}");
    let status = installation.says(["status"]);
    assert!(
        status.contains("0 of 77 lanes in use, rings of 16K"),
        "{status}"
    );
    assert!(installation.says(["up"]).contains("already runs"));
    assert!(installation.says(["down"]).contains("has ended"));
    assert!(installation.says(["down"]).contains("no daemon runs"));
}

#[test]
fn up_replaces_the_daemon_of_a_run_and_says_where_one_that_stays_differs() {
    let installation = Installation::new();
    installation.says(["run", "true"]);
    let first = installation.daemon_pid();
    let text = installation.says(["up", "--ring-bytes", "16384"]);
    assert!(text.contains("sluiced runs, pid "), "{text}");
    assert_ne!(installation.daemon_pid(), first);
    let options = || {
        let text = installation.says(["status", "--json"]);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        value["daemons"][0]["status"]["options"].clone()
    };
    assert_eq!(options()["ring_bytes"], 16384);
    assert!(options().get("idle_exit").is_none(), "{}", options());
    // As it is, or nothing else wanted.
    for given in [&["up"][..], &["up", "--ring-bytes", "16384"]] {
        let output = installation.0.sluice([]).args(given).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{given:?}");
        assert!(stdout(&output).contains("already runs"));
    }
    for (given, named) in [
        (&["up", "--ring-bytes", "32768"][..], "--ring-bytes 16384"),
        (&["up", "--log", "debug"], "--log warn"),
        (&["up", "--metrics", "9797"], "no --metrics"),
        (&["up", "--foreground"], "already runs"),
    ] {
        let output = installation.0.sluice([]).args(given).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{given:?}");
        let text = stderr(&output);
        assert!(text.contains(named), "{given:?}: {text}");
    }
}

/// The names of all fields, however deep.
fn names(value: &serde_json::Value, into: &mut std::collections::BTreeSet<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                into.insert(name.clone());
                names(value, into);
            }
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| names(value, into)),
        _ => {}
    }
}

#[test]
fn every_field_of_the_status_is_in_its_reference() {
    let installation = Installation::new();
    let file = installation.0.path("sluiced.log");
    installation.says(["up", "--log-file", file.to_str().unwrap()]);
    let text = installation.says(["status", "--json"]);
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    // Verbs programs that others run on this machine are not this test's.
    value["verbs"]["processes"] = serde_json::Value::Null;
    assert_eq!(
        (&value["format"], &value["daemons"][0]["status"]["format"]),
        (&1.into(), &1.into())
    );
    let mut found = std::collections::BTreeSet::new();
    names(&value, &mut found);
    assert!(found.len() > 40, "{found:?}");
    let reference = include_str!("../../../docs/json.md");
    for name in found {
        assert!(
            reference.contains(&format!("`{name}`")),
            "{name} is not in docs/json.md"
        );
    }
}

#[test]
fn settings_that_the_daemon_refuses_are_reported_in_its_words() {
    let installation = Installation::new();
    let mut command = installation.0.sluice(["up", "--ring-bytes", "1000"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("power of two"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    // No directory for its log.
    let nowhere = installation.0.path("nowhere/log");
    let mut command = installation.0.sluice(["up", "--log-file"]);
    let output = command.arg(&nowhere).output().unwrap();
    let text = stderr(&output);
    let what = format!("cannot write the log {}: No such file", nowhere.display());
    assert!(text.contains(&what), "{text}");
    // No directory for its socket.
    let file = installation.0.path("file");
    std::fs::write(&file, "").unwrap();
    let mut command = installation.0.sluice(["up", "--socket"]);
    let output = command.arg(file.join("control.sock")).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("cannot be used: File exists;"), "{text}");
}

#[test]
fn up_says_what_is_wrong_with_a_configuration() {
    let installation = Installation::new();
    let file = installation.0.path("sluiced.toml");
    let name = file.to_str().unwrap();
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let output = installation.0.sluice(["up", "--config", name, "--check"]);
        let output = { output }.output().unwrap();
        (output.status.code(), stdout(&output))
    };
    let (status, said) = check("[daemon]\nname = 'a'\nauthentication = 'none'\n");
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("warning: authentication"), "{said}");
    assert!(said.ends_with("can be used\n"), "{said}");
    let (status, said) = check("[daemon]\nname = 'a'\nlisten = 7\n");
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.starts_with("error: ") && said.contains("sluiced.toml:3"),
        "{said}"
    );
    let (status, said) = check("[daemon]\nname = 'a'\npsk_file = 'nowhere'\n");
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("nowhere"), "{said}");
    // Three faults are told at once, and an RDMA device is looked for.
    let (status, said) = check(
        "[daemon]\nname = 'A b'\nauthentication = 'none'\nlisten = ['x']\n[fabric]\ndevice = 'y'\n",
    );
    assert_eq!(status, Some(1), "{said}");
    assert_eq!(said.matches("error: ").count(), 3, "{said}");
    for line in [2, 4, 6] {
        assert!(said.contains(&format!("sluiced.toml:{line}: ")), "{said}");
    }
    let (status, said) =
        check("[daemon]\nname = 'a'\nauthentication = 'none'\n[fabric]\ndevice = 'hw:none_0'\n");
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("no RDMA device none_0"), "{said}");
}

#[test]
fn doctor_looks_where_the_daemon_would_be_and_at_interfaces_that_exist() {
    let installation = Installation::new();
    let file = installation.0.path("file");
    std::fs::write(&file, "").unwrap();
    let mut command = installation.0.sluice(["doctor", "--socket"]);
    let output = command.arg(file.join("control.sock")).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let mut command = installation
        .0
        .sluice(["doctor", "--interface", "no-such-if"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = unwrapped(&stdout(&output));
    assert!(text.contains("no network interface no-such-if"), "{text}");
    // As in a container that has the library mounted and the socket of a daemon elsewhere.
    installation.says(["up"]);
    std::fs::remove_file(installation.0.path("sluiced")).unwrap();
    let output = installation.0.sluice(["doctor"]).output().unwrap();
    let text = unwrapped(&stdout(&output));
    assert!(output.status.success(), "{text}");
    assert!(text.contains("is enough"), "{text}");
}

#[test]
fn doctor_tries_the_daemon_and_leaves_nothing_running() {
    let installation = Installation::new();
    let output = installation.0.sluice(["doctor"]).output().unwrap();
    let text = unwrapped(&stdout(&output));
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("'sluice run' starts one (tried, works)"),
        "{text}"
    );
    let left: Vec<_> = std::fs::read_dir(&installation.0.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("sluice-doctor"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let output = installation.0.sluice(["status"]).output().unwrap();
    assert!(stderr(&output).contains("no daemon runs"));
}
