//! The command and the real daemon: started when it is needed, found, and ended.

mod common;

use std::os::unix::fs::symlink;
use std::process::Stdio;

use common::{Scratch, real_daemon, stderr, stdout, unwrapped, wait_for};

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
    let pid = i32::try_from(installation.daemon_pid()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_for("the end of the daemon", || {
        let output = installation.0.sluice(["status"]).output().unwrap();
        stderr(&output).contains("left over")
    });
    assert_eq!(installation.says(["run", "echo", "ran"]), "ran\n");
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
