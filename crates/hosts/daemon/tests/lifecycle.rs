//! One sluiced for a path, nothing left behind, nobody turned away in silence.

mod common;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use common::{Daemon, PATIENCE, Program, Scratch, command, wait_for};
use sluice_control::client::{self, Client, ClientError};
use sluice_control::message::{FromDaemon, Reason, ToDaemon};

const NOBODY: u32 = 65_534;

fn files(scratch: &Scratch) -> Vec<String> {
    let entries = fs::read_dir(scratch.0.join("run")).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn signals_end_it_and_its_files() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut daemon = Daemon::start(&[]);
        assert_eq!(
            files(&daemon.scratch),
            ["control.sock", "control.sock.lock"]
        );
        let mode = fs::metadata(daemon.scratch.0.join("run")).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o700);
        daemon.signal(signal);
        assert!(daemon.wait().success());
        assert!(files(&daemon.scratch).is_empty());
        assert_eq!(daemon.ping().unwrap_err(), ClientError::NotRunning);
    }
}

#[test]
fn a_second_one_is_refused_and_does_no_harm() {
    let daemon = Daemon::start(&[]);
    let output = command(&daemon.scratch).output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("another sluiced serves"), "{text}");
    assert_eq!(daemon.ping().unwrap().pid, daemon.child.id());
}

/// It has the lock a moment longer than it answers.
#[test]
fn one_that_ends_is_waited_for() {
    // It waits for ten seconds. Where this test stood still for longer, it has ended rightly.
    let daemon = (0..20)
        .find_map(|_| {
            let scratch = Scratch::new();
            let directory = scratch.0.join("run");
            fs::create_dir(&directory).unwrap();
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
            let ending = fs::File::create(scratch.0.join("run/control.sock.lock")).unwrap();
            ending.lock().unwrap();
            let begun = Instant::now();
            let child = command(&scratch).spawn().unwrap();
            let mut daemon = Daemon { child, scratch };
            // As long as one takes that gets no processor meanwhile.
            std::thread::sleep(Duration::from_secs(4));
            let waits = daemon.child.try_wait().unwrap().is_none();
            // Not only closed: another test's child may have it too.
            ending.unlock().unwrap();
            if begun.elapsed() > Duration::from_secs(9) {
                return None;
            }
            assert!(waits, "it waits");
            Some(daemon)
        })
        .expect("this test stood still each time");
    wait_for("the start of sluiced", || daemon.ping().is_ok());
}

#[test]
fn what_a_killed_one_left_is_replaced() {
    let mut daemon = Daemon::start(&[]);
    let program = daemon.program("survivor");
    daemon.child.kill().unwrap();
    daemon.wait();
    assert_eq!(files(&daemon.scratch).len(), 2);
    // A process that received for it ends behind it, and had the connection as well.
    wait_for("the end of the connection", || {
        program.client.receive().is_err()
    });
    assert_eq!(daemon.ping().unwrap_err(), ClientError::NotRunning);
    daemon.child = command(&daemon.scratch).spawn().unwrap();
    wait_for("the second start", || daemon.ping().is_ok());
}

#[test]
fn files_and_sockets_of_others_are_left_alone() {
    let scratch = Scratch::new();
    let directory = scratch.0.join("run");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
    let refused = || {
        let output = command(&scratch).output().unwrap();
        assert!(!output.status.success());
        assert_eq!(files(&scratch), ["control.sock"]);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };

    fs::write(scratch.socket(), "a letter").unwrap();
    let text = refused();
    assert!(text.contains("not a socket"), "{text}");
    assert_eq!(fs::read(scratch.socket()).unwrap(), b"a letter");

    fs::remove_file(scratch.socket()).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(scratch.socket()).unwrap();
    let text = refused();
    assert!(text.contains("the socket of another program"), "{text}");
    assert!(std::os::unix::net::UnixStream::connect(scratch.socket()).is_ok());
}

#[test]
fn what_took_its_place_outlives_it() {
    let mut daemon = Daemon::start(&[]);
    fs::remove_file(daemon.scratch.socket()).unwrap();
    fs::write(daemon.scratch.socket(), "a letter").unwrap();
    daemon.signal(libc::SIGTERM);
    assert!(daemon.wait().success());
    assert_eq!(files(&daemon.scratch), ["control.sock"]);
}

#[test]
fn it_ends_when_asked() {
    let mut daemon = Daemon::start(&[]);
    let alive = client::shutdown(&daemon.scratch.socket(), PATIENCE).unwrap();
    assert_eq!(alive.pid, daemon.child.id());
    assert!(daemon.wait().success());
    assert!(files(&daemon.scratch).is_empty());
}

#[test]
fn it_ends_when_idle_and_not_before() {
    // One that nobody came to for its second, as this test had no processor, has ended rightly.
    let (mut daemon, program) = (0..20)
        .find_map(|_| {
            let scratch = Scratch::new();
            let path = scratch.socket();
            let mut child = command(&scratch)
                .args(["--idle-exit", "1"])
                .spawn()
                .unwrap();
            let mut client = None;
            wait_for("the start of sluiced, or its end", || {
                client = Client::connect(path.as_os_str().as_bytes()).ok();
                client.is_some() || child.try_wait().unwrap().is_some()
            });
            let daemon = Daemon { child, scratch };
            Some((daemon, client?))
        })
        .map(|(daemon, client)| (daemon, Program::introduce_as(client, "busy")))
        .expect("it has ended each time");
    // Longer than the limit, with somebody there.
    std::thread::sleep(Duration::from_millis(1500));
    program.settle();
    drop(program);
    assert!(daemon.wait().success());
    assert!(files(&daemon.scratch).is_empty());
}

#[test]
fn whoever_connects_while_it_ends_is_refused_or_served() {
    let mut served = 0;
    for _ in 0..30 {
        let scratch = Scratch::new();
        let path = scratch.socket();
        let mut child = command(&scratch)
            .args(["--idle-exit", "0"])
            .spawn()
            .unwrap();
        wait_for("the end of sluiced", || {
            if let Ok(client) = Client::connect(path.as_os_str().as_bytes()) {
                client.send(&ToDaemon::Ping, &[]).unwrap();
                let (answer, _) = common::next(&client);
                assert!(matches!(answer, FromDaemon::Pong { .. }));
                served += 1;
            }
            child.try_wait().unwrap().is_some()
        });
        assert!(files(&scratch).is_empty());
    }
    println!("{served} connections were served");
}

#[test]
fn in_the_background_it_serves_when_the_command_returns() {
    let scratch = Scratch::new();
    let output = command(&scratch).arg("--daemonize").output().unwrap();
    // `output` has waited for the end of the pipes, so the daemon holds neither.
    assert!(output.status.success(), "{output:?}");
    let alive = client::ping(&scratch.socket(), PATIENCE).unwrap();
    let again = command(&scratch).arg("--daemonize").output().unwrap();
    assert!(!again.status.success());
    let text = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(text.contains("another sluiced serves"), "{text}");
    client::shutdown(&scratch.socket(), PATIENCE).unwrap();
    let process = format!("/proc/{}", alive.pid);
    wait_for("the end of sluiced", || {
        // As a child of nobody who waits it may stay as a zombie.
        let state = fs::read_to_string(format!("{process}/stat")).unwrap_or_default();
        state.is_empty() || state.contains(") Z ")
    });
    assert!(files(&scratch).is_empty());
}

#[test]
fn a_directory_open_to_others_is_refused() {
    let scratch = Scratch::new();
    let directory = scratch.0.join("run");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
    let output = command(&scratch).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && text.contains("open to other users"),
        "{text}"
    );
}

#[test]
fn other_users_are_refused_unless_all_are_allowed() {
    const NAME: &str = "other_users_are_refused_unless_all_are_allowed";
    // The same test in a process of another user is the one that asks.
    if let Some(path) = std::env::var_os("SLUICED_TEST_ASK") {
        match client::ping(path.as_ref(), PATIENCE) {
            Ok(_) => std::process::exit(10),
            Err(ClientError::Refused(Reason::User)) => std::process::exit(11),
            Err(error) => panic!("{error:?}"),
        }
    }
    if !rustix::process::geteuid().is_root() {
        return common::skip(NAME, "needs root to become another user");
    }
    let program = std::env::temp_dir().join(format!("sluiced-ask-{}", std::process::id()));
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let ask = |daemon: &Daemon| {
        use std::os::unix::process::CommandExt;
        let mut ask = std::process::Command::new(&program);
        ask.args(["--exact", NAME]).uid(NOBODY);
        ask.env("SLUICED_TEST_ASK", daemon.scratch.socket());
        common::execute_copy(|| ask.output()).status.code()
    };
    let private = Daemon::start(&[]);
    // Even if somebody opened the way to the socket.
    for (file, mode) in [("run", 0o755), ("run/control.sock", 0o666)] {
        let file = private.scratch.0.join(file);
        fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
    }
    let private = ask(&private);
    let public = ask(&Daemon::start(&["--allow-all-users"]));
    let _ = fs::remove_file(&program);
    assert_eq!((private, public), (Some(11), Some(10)));
}

#[test]
fn a_directory_that_was_there_keeps_its_mode() {
    let mode_of =
        |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    for mode in [0o1777, 0o700, 0o755] {
        let scratch = Scratch::new();
        let directory = scratch.0.join("run");
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
        let _daemon = Daemon::start_in(scratch, &["--allow-all-users"]);
        assert_eq!(mode_of(&directory), mode);
    }
    // One that it makes is open to those whom it serves.
    let daemon = Daemon::start(&["--allow-all-users"]);
    assert_eq!(mode_of(&daemon.scratch.0.join("run")), 0o755);
}

/// Where everybody can make files, somebody else was faster.
#[test]
fn a_lock_file_of_somebody_elses_is_named_and_not_waited_for() {
    const NAME: &str = "a_lock_file_of_somebody_elses_is_named_and_not_waited_for";
    if !rustix::process::geteuid().is_root() {
        return common::skip(NAME, "needs root to make files of another user's");
    }
    let start = |make: &dyn Fn(&std::path::Path)| {
        let scratch = Scratch::new();
        let directory = scratch.0.join("run");
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o1777)).unwrap();
        make(&directory.join("control.sock.lock"));
        let mut child = command(&scratch);
        let output = child.stderr(std::process::Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = start(&|lock| {
        fs::write(lock, "").unwrap();
        std::os::unix::fs::chown(lock, Some(NOBODY), Some(NOBODY)).unwrap();
    });
    let named = said.contains("belongs to uid 65534") || said.contains("Permission denied");
    assert!(named && said.contains("--socket"), "{said}");
    let said = start(&|lock| {
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(rustix::fs::CWD, lock, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    });
    assert!(said.contains("cannot be used"), "{said}");
}
