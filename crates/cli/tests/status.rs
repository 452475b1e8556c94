//! `sluice status`, `down` and `doctor` against a daemon that answers as it is told.

mod common;

use std::fs;
use std::process::Stdio;

use common::{Daemon, Manner, Scratch, real_daemon, stderr, stdout, unwrapped};

fn document(connections: usize) -> String {
    let connection = |n: usize| {
        format!(
            r#"{{"local":"127.0.0.1:6379","peer":"127.0.0.1:{}","state":"{}","reason":"{}",
            "lane_rx_bytes":2048,"lane_tx_bytes":4096,"tcp_rx_bytes":1,"tcp_tx_bytes":2,
            "switches":2,"sleeps":3,"spins":4,"peer_pid":77,"peer_program":"client"}}"#,
            40_000 + n,
            if n == 0 { "lane" } else { "tcp" },
            if n == 0 { "" } else { "too little traffic yet" },
        )
    };
    let connections: Vec<String> = (0..connections).map(connection).collect();
    format!(
        r#"{{"version":"{}","pid":5,"uptime_s":61,"ring_bytes":65536,
        "lanes":{{"in_use":1,"max":100}},"counters":{{}},
        "processes":[{{"client":1,"pid":42,"program":"server","uid":0,"connections":[{}]}}]}}"#,
        env!("CARGO_PKG_VERSION"),
        connections.join(",")
    )
}

#[test]
fn connections_are_listed_with_their_paths_and_reasons() {
    let scratch = Scratch::new();
    let _daemon = Daemon::start(&scratch.socket(), Manner::Answers(document(3)));
    let output = scratch.sluice(["status"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.contains("server (pid 42, uid 0): 3 connections, 1 on a lane"),
        "{text}"
    );
    assert!(text.contains("2 on TCP: too little traffic yet"), "{text}");
    assert!(text.contains("client[77]"), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn json_is_the_daemons_own_document() {
    let scratch = Scratch::new();
    let _daemon = Daemon::start(&scratch.socket(), Manner::Answers(document(2)));
    let output = scratch.sluice(["status", "--json"]).output().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&document(2)).unwrap();
    assert_eq!(value["daemons"][0]["status"], expected);
}

#[test]
fn no_daemon_is_said_clearly() {
    let scratch = Scratch::new();
    let output = scratch.sluice(["status"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("no daemon runs"),
        "{}",
        stderr(&output)
    );
    let output = scratch.sluice(["down"]).output().unwrap();
    assert!(output.status.success());
    assert!(stdout(&output).contains("no daemon runs"));
}

#[test]
fn a_daemon_that_talks_nonsense_is_reported() {
    let scratch = Scratch::new();
    let _daemon = Daemon::start(&scratch.socket(), Manner::Answers("{{{".to_owned()));
    let output = scratch.sluice(["status"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("not understood"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let scratch = Scratch::new();
    let _daemon = Daemon::start(&scratch.socket(), Manner::Answers(document(2000)));
    let mut child = scratch
        .sluice(["status", "--wide"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(stderr(&output), "");
}

#[test]
fn down_waits_for_the_end() {
    let scratch = Scratch::new();
    let _daemon = Daemon::start(&scratch.socket(), Manner::Answers(document(0)));
    let output = scratch.sluice(["down"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("has ended"), "{}", stdout(&output));
    assert!(!scratch.socket().exists());
}

#[test]
fn doctor_misses_the_daemons_program_where_no_daemon_runs() {
    let scratch = Scratch::new().with_library();
    let look = || {
        let output = scratch.sluice(["doctor", "--json"]).output().unwrap();
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let verdict = |name: &str| {
            let checks = value["checks"].as_array().unwrap();
            let check = checks.iter().find(|c| c["name"] == name).unwrap();
            check["verdict"].as_str().unwrap().to_owned()
        };
        let verdicts = ["LD_PRELOAD", "daemon", "control socket"].map(verdict);
        (output.status.code(), value["lanes"].clone(), verdicts)
    };
    let (status, lanes, verdicts) = look();
    assert_eq!((status, lanes), (Some(1), false.into()));
    assert_eq!(verdicts[..2], ["ok", "missing"]);
    let _daemon = Daemon::start(&scratch.socket(), Manner::Answers(document(0)));
    let (status, lanes, verdicts) = look();
    assert_eq!((status, lanes), (Some(0), true.into()));
    assert_eq!(verdicts, ["ok", "note", "ok"]);
}

#[test]
fn doctor_sees_a_library_that_does_not_load() {
    let scratch = Scratch::new();
    fs::write(scratch.path("libsluice_preload.so"), "not a library").unwrap();
    let output = scratch.sluice(["doctor", "--json"]).output().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = value["checks"].as_array().unwrap();
    let check = checks.iter().find(|c| c["name"] == "LD_PRELOAD").unwrap();
    assert_eq!(check["verdict"], "missing");
    let found = check["found"].as_str().unwrap();
    assert!(found.contains("was not loaded"), "{found}");
}

#[test]
fn doctor_sees_a_hung_daemon() {
    let scratch = Scratch::new();
    let _daemon = Daemon::start(&scratch.socket(), Manner::Hangs);
    let output = scratch.sluice(["doctor"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        unwrapped(&stdout(&output)).contains("did not answer"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn a_daemon_that_gives_no_lanes_says_why() {
    let scratch = Scratch::new();
    let why = "TCP sequence numbers cannot be read";
    let document = document(1).replacen('{', &format!("{{\"no_lanes\":\"{why}\","), 1);
    let _daemon = Daemon::start(&scratch.socket(), Manner::Answers(document));
    let status = scratch.sluice(["status"]).output().unwrap();
    let text = stdout(&status);
    assert!(
        text.contains(&format!("no connection gets a lane: {why}")),
        "{text}"
    );
    let doctor = scratch.sluice(["doctor"]).output().unwrap();
    assert_eq!(doctor.status.code(), Some(1));
    let text = unwrapped(&stdout(&doctor));
    assert!(text.contains(&format!("gives no lanes: {why}")), "{text}");
    assert!(text.contains("CAP_BPF and CAP_NET_ADMIN"), "{text}");
}

#[test]
fn man_pages_and_completions_are_written() {
    let scratch = Scratch::new();
    let pages = scratch.path("man");
    std::os::unix::fs::symlink(real_daemon(), scratch.path("sluiced")).unwrap();
    let output = scratch.sluice(["man"]).arg(&pages).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let run = fs::read_to_string(pages.join("sluice-run.1")).unwrap();
    assert!(run.contains("SLUICE_SPIN_US"), "{run}");
    assert!(pages.join("sluice.1").exists());
    // Pages that others refer to.
    let daemons = fs::read_to_string(pages.join("sluiced.8")).unwrap();
    assert!(daemons.contains("idle") && daemons.contains("SIGHUP"));
    assert!(daemons.contains("sluiced.toml(5)"), "{daemons}");
    let file = fs::read_to_string(pages.join("sluiced.toml.5")).unwrap();
    assert!(file.contains("psk_file"), "{file}");
    let output = scratch.sluice(["completions", "bash"]).output().unwrap();
    assert!(stdout(&output).contains("_sluice"));
}

#[test]
fn top_needs_a_terminal() {
    let scratch = Scratch::new();
    let output = scratch.sluice(["top"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("no terminal"),
        "{}",
        stderr(&output)
    );
}
