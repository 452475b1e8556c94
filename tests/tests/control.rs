//! Programs and daemons: one that was started again, one of a third user, and what the library
//! says of connections and statistics that are lost to it.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sluice_tests::apps::{BUILDS, apps_dir, compile};
use sluice_tests::diff::first_difference;
use sluice_tests::hosts::{Pair, Settings, Side};
use sluice_tests::job::{Job, Outcome, command, run, wait_until};
use sluice_tests::lab::{Lab, Mode};
use sluice_tests::stats::Totals;
use sluice_tests::stream;
use sluice_tests::suite::{Verdict, check, ensure, fail, skip, until};

const LIMIT: Duration = Duration::from_secs(60);
/// A user that nobody is.
const STRANGER: u32 = 54_321;

fn script(name: &str) -> PathBuf {
    apps_dir().join("scripts").join(name)
}

fn sluice(lab: &Lab) -> PathBuf {
    lab.command(Mode::Accelerated, "true").get_program().into()
}

/// A sluiced at `socket`, as `change` wants it.
fn daemon(lab: &Lab, socket: &Path, change: impl FnOnce(&mut Command)) -> Verdict<Job> {
    let beside = sluice(lab).with_file_name("sluiced");
    let program = match std::env::var_os("SLUICE_LIBDIR") {
        Some(folder) => PathBuf::from(folder).join("sluiced"),
        None => beside,
    };
    let mut command = command(program);
    command.arg("--socket").arg(socket);
    command.args(["--idle-exit", "120"]);
    change(&mut command);
    let mut job = Job::start(command, lab.path(), "another-sluiced")?;
    job.await_ready(LIMIT, "control socket", || {
        std::os::unix::net::UnixStream::connect(socket)
            .is_err_and(|error| error.raw_os_error() == Some(91))
    })?;
    Ok(job)
}

/// Starts a script that serves and prints `port NUMBER`; the number is the second value.
fn serve(lab: &Lab, mut program: Command, name: &str, way: &str) -> Verdict<(Job, String)> {
    program.arg(script(name)).arg(way);
    let mut server = Job::start(program, lab.path(), "server")?;
    let port = stream::await_port(&mut server, LIMIT)?;
    Ok((server, port.to_string()))
}

/// What the lab's daemon says in JSON; nothing if it does not answer.
fn status(lab: &Lab) -> Value {
    let all: Value = serde_json::from_str(&lab.status(&["--json"])).unwrap_or_default();
    all["daemons"][0]["status"].clone()
}

/// Whether two ends of a connection have been given a lane.
fn has_matched(status: &Value) -> bool {
    status["counters"]["matches"].as_u64() > Some(0)
}

fn stderr(outcome: &Outcome) -> String {
    String::from_utf8_lossy(&outcome.stderr).into_owned()
}

/// Connections whose ends have `copies` more descriptors wait for a lane when the daemon is killed.
/// Who talks by TCP until a lane comes may have said all by then on a busy machine.
fn announced_again(copies: &str) -> Verdict {
    until(|| announced_once(copies))
}

fn announced_once(copies: &str) -> Verdict<Verdict> {
    let mut lab = Lab::with_library()?;
    lab.announce_at_once();
    let [go, end] = ["go", "end"].map(|name| lab.path().join(name));
    let mut program = lab.command(Mode::Accelerated, "python3");
    program
        .arg(script("talk_later.py"))
        .args([&go, &end])
        .arg(copies);
    let mut talk = Job::start(program, lab.path(), "talk")?;
    wait_until(LIMIT, || Ok(talk.stdout_so_far().contains("written")))?;
    if let Some(daemon) = lab.daemon_mut() {
        daemon.signal(Signal::KILL)?;
        wait_until(LIMIT, || Ok(daemon.poll()?.is_some()))?;
    }
    let socket = lab.path().join("control.sock");
    let _next = daemon(&lab, &socket, |_| {})?;
    fs::write(&go, "")?;
    let mut shown = String::new();
    talk.await_ready(LIMIT, "lane of the next daemon", || {
        shown = lab.status(&[]);
        shown.contains("2 connections, 2 on a lane")
    })?;
    ensure(shown.contains("1 process knew an earlier daemon"), || {
        shown.clone()
    })?;
    fs::write(&end, "")?;
    talk.finish(LIMIT)?.success()?;
    Ok(lab.require_lane_bytes(1000))
}

#[test]
fn connections_that_wait_are_announced_to_the_next_daemon() {
    check("connections_that_wait_are_announced", || {
        announced_again("0")
    });
}

#[test]
fn connections_of_several_names_are_announced_to_the_next_daemon() {
    check("connections_of_several_names_are_announced", || {
        announced_again("2")
    });
}

/// The end table of a server that forks is shared with its children, and small enough to fill.
fn records_come_back(way: &str) -> Verdict {
    const CONNECTIONS: &str = "40";
    let lab = Lab::with_library()?;
    let program = lab.command(Mode::Accelerated, "python3");
    let (server, port) = serve(&lab, program, "forks.py", way)?;
    let mut client = lab.command(Mode::Accelerated, "python3");
    client.arg(script("forks.py"));
    client.args(["client", &port, CONNECTIONS]);
    run(client, lab.path(), "client", LIMIT)?.success()?;
    let mut shown = String::new();
    let are_back = wait_until(LIMIT, || {
        shown = lab.status(&[]);
        Ok(shown.contains(&format!("(pid {}, ", server.id())) && shown.contains("no connections"))
    })?;
    server.stop(LIMIT)?;
    ensure(are_back, || shown)
}

#[test]
fn children_that_end_give_their_records_back() {
    check("children_that_end", || records_come_back("server"));
}

#[test]
fn children_that_become_another_program_give_their_records_back() {
    check("children_that_become_another_program", || {
        records_come_back("exec")
    });
}

/// What children held that were killed, or never made, comes back while the program that forked them
/// lives, and what a child holds that lives does not: `lanes` are left.
fn killed_children(way: &str, lanes: u64) -> Verdict {
    until(|| killed_once(way, lanes))
}

/// A daemon that gets no processor may hear of the connections when they have ended: that is tried again.
fn killed_once(way: &str, lanes: u64) -> Verdict<Verdict> {
    let lab = Lab::with_library()?;
    let mut program = lab.command(Mode::Accelerated, "python3");
    program.arg(script("killed_children.py")).arg(way);
    let server = Job::start(program, lab.path(), "killed_children")?;
    let mut is_over = false;
    wait_until(LIMIT, || {
        is_over = server.stdout_so_far().contains("closed");
        Ok(is_over)
    })?;
    let mut shown = Value::Null;
    let mut had_lanes = false;
    let are_back = is_over
        && wait_until(LIMIT, || {
            shown = status(&lab);
            had_lanes = has_matched(&shown);
            Ok(had_lanes && shown["lanes"]["in_use"] == lanes)
        })?;
    let outcome = server.stop(LIMIT)?;
    let verdict = ensure(are_back, || format!("{shown}\n{}", outcome.describe()));
    if is_over && !had_lanes {
        return Ok(verdict);
    }
    verdict.map(Ok)
}

#[test]
fn children_that_are_killed_give_lanes_back() {
    check("children_that_are_killed", || killed_children("killed", 0));
}

#[test]
fn children_nobody_waits_for_give_lanes_back() {
    check("children_nobody_waits_for", || {
        killed_children("ignored", 0)
    });
}

#[test]
fn forks_that_fail_keep_no_lanes() {
    check("forks_that_fail", || killed_children("failed", 0));
}

#[test]
fn children_that_were_not_seen_to_be_forked_keep_what_they_have() {
    check("children_not_seen", || killed_children("unseen", 20));
}

#[test]
fn children_keep_what_their_parent_closed_until_they_are_killed() {
    check("children_keep", || killed_children("late", 0));
}

/// A program shares its connection with a child when its lane comes, and has it alone later.
/// `client_turns`: those after which the client is announced.
fn lane_when_alone(way: &str, client_turns: u32) -> Verdict {
    let lab = Lab::with_library()?;
    let [alone, end] = ["alone", "end"].map(|name| lab.path().join(name));
    let mut program = lab.command(Mode::Accelerated, "python3");
    program.arg(script("fork_before_lane.py")).arg(way);
    program.args([&alone, &end]);
    let mut server = Job::start(program, lab.path(), "server")?;
    let port = stream::await_port(&mut server, LIMIT)?.to_string();
    let mut client = lab.command(Mode::Accelerated, "python3");
    client.arg(script("fork_before_lane.py"));
    client.args(["client", &port]);
    client.env("SLUICE_MIN_OPS", client_turns.to_string());
    let mut client = Job::start(client, lab.path(), "client")?;
    client.await_ready(LIMIT, "match", || has_matched(&status(&lab)))?;
    client.await_ready(LIMIT, "refusal of the lane", || {
        lab.status(&[]).contains("descriptor shared")
    })?;
    fs::write(&alone, "")?;
    client.await_ready(LIMIT, "lane", || {
        let shown = lab.status(&[]);
        shown.matches("1 connection, 1 on a lane").count() == 2
    })?;
    fs::write(&end, "")?;
    server.finish(LIMIT)?.success()?;
    client.finish(LIMIT)?.success()?;
    lab.require_lane_bytes(64)
}

/// As redis has it that begins to save.
#[test]
fn who_has_a_child_when_the_lane_comes_gets_it_later() {
    check("a_child_when_the_lane_comes", || {
        lane_when_alone("has a child", 100)
    });
}

/// As redis has it that saves for long.
#[test]
fn who_has_a_child_for_long_gets_a_lane_later() {
    check("a_child_for_long", || lane_when_alone("had a child", 4));
}

#[test]
fn a_child_that_goes_on_with_a_connection_gets_a_lane_of_its_own() {
    check("a_child_that_goes_on", || lane_when_alone("leaves it", 100));
}

/// Where sock_diag does not see the peer's socket, nothing says that the peer is gone.
#[test]
fn a_half_closed_peer_in_another_network_namespace_is_not_gone() {
    check("a_half_closed_peer_in_another_namespace", || {
        let pair = Pair::new(Settings::default())?;
        until(|| {
            let lab = Lab::with_library()?;
            let mut program = lab.command(Mode::Accelerated, "python3");
            pair.host(Side::Left).place(&mut program);
            let (server, port) = serve(&lab, program, "half_closed_elsewhere.py", "serve")?;
            let mut client = lab.command(Mode::Accelerated, "python3");
            pair.host(Side::Right).place(&mut client);
            client.arg(script("half_closed_elsewhere.py"));
            client.args(["talk", &pair.host(Side::Left).v4().to_string(), &port]);
            run(client, lab.path(), "client", LIMIT)?.success()?;
            server.finish(LIMIT)?.success()?;
            Ok(lab.require_lanes())
        })
    });
}

#[test]
fn a_daemon_of_a_third_user_gets_no_sockets() {
    check("a_daemon_of_a_third_user", || {
        if !rustix::process::geteuid().is_root() {
            return skip("only root can be several users");
        }
        let mut lab = Lab::with_library()?;
        lab.announce_at_once();
        let theirs = tempfile::tempdir()?;
        chown(theirs.path(), Some(STRANGER), Some(STRANGER))?;
        let socket = theirs.path().join("control.sock");
        let _daemon = daemon(&lab, &socket, |command| {
            command.uid(STRANGER).gid(STRANGER).current_dir("/");
        })?;
        let mut program = lab.command(Mode::Accelerated, "python3");
        program.arg(script("self_talk.py"));
        program
            .env("SLUICE_SOCKET", &socket)
            .env("SLUICE_LOG", "warn");
        let outcome = run(program, lab.path(), "talk", LIMIT)?.success()?;
        let totals = lab.totals()?;
        ensure(totals.lane_bytes() == 0 && totals.connections == 2, || {
            format!("{totals:?}")
        })?;
        ensure(
            stderr(&outcome).contains(&format!("served by uid {STRANGER}")),
            || outcome.describe(),
        )
    });
}

/// A program that runs in a container of its own (a mount and a pid namespace), which has the directory of
/// sluiced's socket; `mounted` as options of mount(8).
fn contained(lab: &Lab, socket: &Path, mounted: &str) -> Verdict<Outcome> {
    let contained = r#"mount --bind "$1" "$1" && mount -o "$2" "$1" && shift 2 && exec "$@""#;
    let mut program = lab.command(Mode::Accelerated, "unshare");
    program.args([
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "sh",
        "-c",
        contained,
        "sh",
    ]);
    program
        .arg(socket.parent().unwrap_or(lab.path()))
        .arg(mounted);
    program.arg("python3").arg(script("self_talk.py"));
    program
        .env("SLUICE_SOCKET", socket)
        .env("SLUICE_LOG", "warn");
    run(program, lab.path(), "contained", LIMIT)?.success()
}

#[test]
fn a_socket_that_another_container_can_replace_is_given_nothing() {
    check("a_socket_that_another_container", || {
        if !rustix::process::geteuid().is_root() {
            return skip("only root can make containers here");
        }
        let mut lab = Lab::with_library()?;
        lab.announce_at_once();
        let directory = lab.path().join("run");
        fs::create_dir(&directory)?;
        let socket = directory.join("control.sock");
        let honest = daemon(&lab, &socket, |_| {})?;
        until(|| {
            let outcome = contained(&lab, &socket, "remount,bind,ro")?;
            let used = lab.totals()?.lane_bytes() > 0;
            Ok(ensure(used, || outcome.describe()))
        })?;
        lab.reset_totals()?;
        let mut foreign = command("unshare");
        foreign.args(["--pid", "--fork", "--kill-child", "python3"]);
        foreign.arg(script("foreign_daemon.py")).arg(&socket);
        let foreign = Job::start(foreign, lab.path(), "foreign")?;
        wait_until(LIMIT, || Ok(foreign.stdout_so_far().contains("listens")))?;
        let outcome = contained(&lab, &socket, "remount,bind,rw")?;
        let said = stderr(&outcome);
        ensure(
            said.contains("another container may have put it there"),
            || said,
        )?;
        // It is asked by `sluice run` and by the program, and may come to it when both have ended.
        let mut asked = String::new();
        let is_through = wait_until(LIMIT, || {
            asked = foreign.stdout_so_far();
            let times = asked.matches("asked\n").count();
            Ok(times > 1 && asked.matches("answered\n").count() == times)
        })?;
        // `sluice run`, outside of the container, says what it does not keep for itself.
        let mut given = asked.lines().filter(|line| line.starts_with("given"));
        let is_nothing = given.all(|line| line.ends_with(" 0 descriptors"));
        ensure(is_nothing && is_through, || asked)?;
        ensure(lab.totals()?.lane_bytes() == 0, || outcome.describe())?;
        drop((foreign, honest));
        Ok(())
    });
}

#[test]
fn unread_bytes_go_to_no_stranger_and_come_from_none() {
    check("pass_to_stranger", || {
        let lab = Lab::with_library()?;
        let mut program = command(sluice(&lab));
        program.args(["run", "--min-ops", "1", "--log", "warn", "python3"]);
        program.arg(script("pass_to_stranger.py"));
        program.env("SLUICE_SOCKET", lab.path().join("control.sock"));
        let outcome = run(program, lab.path(), "passes", LIMIT)?.success()?;
        let printed = String::from_utf8_lossy(&outcome.stdout);
        let expected = [
            "refused 16",
            "read 5000 True",
            "stranger: family AF_INET",
            "then 2",
            "lie 0 /dev/null",
            "lie 1 socket 104",
            "lie 2 socket 107",
            "lie 3 socket nothing",
            "lie 4 socket nothing",
            "own b'sluice: passed 2' 1",
        ];
        let lines: Vec<_> = printed.lines().map(str::trim).collect();
        ensure(lines == expected, || outcome.describe())
    });
}

/// What a lane consists of comes as descriptors.
#[test]
fn a_program_at_its_limit_of_open_files_says_so() {
    check("few_files", || {
        until(|| {
            let lab = Lab::with_library()?;
            let mut program = command(sluice(&lab));
            program.args(["run", "--min-ops", "1", "--log", "debug", "python3"]);
            program.arg(script("few_files.py"));
            program.env("SLUICE_SOCKET", lab.path().join("control.sock"));
            let outcome = run(program, lab.path(), "few", LIMIT)?.success()?;
            let said = stderr(&outcome);
            let says_so = said.contains("on TCP: program at its limit of open files");
            Ok(ensure(says_so, || outcome.describe()))
        })
    });
}

/// The user named the wrapper, and meant what it becomes. What it starts beside itself he may not know at all.
#[test]
fn a_wrapper_that_cleans_the_environment_says_so() {
    check("wrappers", || {
        let lab = Lab::with_library()?;
        for (command_line, warns) in [
            ("env -i true", true),
            ("sh -c 'exec env -i true'", true),
            ("env true", false),
            ("sh -c 'env -i true; true'", false),
        ] {
            let mut shell = command("sh");
            let sluice = sluice(&lab);
            let run_it = format!("exec {} run --no-daemon {command_line}", sluice.display());
            shell.arg("-c").arg(run_it);
            let outcome = run(shell, lab.path(), "wrapper", LIMIT)?.success()?;
            let has_warned = stderr(&outcome).contains("without LD_PRELOAD");
            ensure(has_warned == warns, || outcome.describe())?;
        }
        Ok(())
    });
}

/// Handlers and threads of a library that a program closes are not where nothing is mapped.
#[test]
fn a_library_that_is_closed_stays() {
    check("dlclose", || {
        let lab = Lab::with_library()?;
        for name in ["libsluice_preload.so", "libsluice_ibverbs.so"] {
            let mut python = command("python3");
            python.arg(script("dlclose.py"));
            python.arg(sluice(&lab).with_file_name(name));
            let outcome = run(python, lab.path(), name, LIMIT)?.success()?;
            let said = String::from_utf8_lossy(&outcome.stdout);
            ensure(said.ends_with("mapped True\n"), || outcome.describe())?;
        }
        Ok(())
    });
}

#[test]
fn each_connection_says_why_it_had_no_lane() {
    check("each_connection_says_why", || {
        let lab = Lab::with_library()?;
        let mut program = command(sluice(&lab));
        program.args(["run", "--log", "debug", "--min-ops", "1000", "python3"]);
        program.arg(script("self_talk.py"));
        program.env("SLUICE_SOCKET", lab.path().join("control.sock"));
        let outcome = run(program, lab.path(), "talk", LIMIT)?.success()?;
        let said = stderr(&outcome);
        let lines = said
            .matches("closed on TCP: too little traffic yet")
            .count();
        ensure(lines == 2, || outcome.describe())
    });
}

#[test]
fn excluded_ports_have_no_lanes() {
    check("excluded_ports", || {
        let lab = Lab::with_library()?;
        let socket = lab.path().join("control.sock");
        let talk = |policy: &str, label: &str| -> Verdict<(u64, String)> {
            lab.reset_totals()?;
            // As `Lab::command`, with a flag.
            let mut program = command(sluice(&lab));
            let flags = ["run", "--log", "debug", "--min-ops", "0", policy, "python3"];
            program.args(flags).arg(script("self_talk.py"));
            program.env("SLUICE_SOCKET", &socket);
            program.env("SLUICE_STATS_FILE", lab.path().join("stats"));
            let outcome = run(program, lab.path(), label, LIMIT)?.success()?;
            Ok((lab.totals()?.lane_bytes(), stderr(&outcome)))
        };
        until(|| {
            let (bytes, said) = talk("--only-ports=1-65535", "only-all")?;
            Ok(ensure(bytes > 0, || said))
        })?;
        for (policy, label) in [("--only-ports=1", "only"), ("--not-ports=2-65535", "not")] {
            let (bytes, said) = talk(policy, label)?;
            ensure(bytes == 0 && said.contains("excluded by policy"), || {
                format!("{policy}: {bytes} bytes by lane\n{said}")
            })?;
        }
        Ok(())
    });
}

/// Tables and rings are not worth the address space of a program that may have little.
#[test]
fn a_program_with_little_address_space_keeps_it() {
    check("a_program_with_little_address_space", || {
        let talk = |kib: &str| -> Verdict<Totals> {
            let lab = Lab::with_library()?;
            let inner = lab.command(Mode::Accelerated, "python3");
            let mut program = command("sh");
            program.args(["-c", "ulimit -v $0 && exec \"$@\"", kib]);
            program.arg(inner.get_program()).args(inner.get_args());
            program.arg(script("self_talk.py"));
            for (name, value) in inner.get_envs() {
                program.env(name, value.unwrap_or_default());
            }
            run(program, lab.path(), "talk", LIMIT)?.success()?;
            let totals = lab.totals()?;
            ensure(totals.connections == 2, || format!("{kib} KiB: {totals:?}"))?;
            Ok(totals)
        };
        let little = talk("200000")?;
        ensure(little.lane_bytes() == 0, || format!("little: {little:?}"))?;
        until(|| {
            let enough = talk("2000000")?;
            let used = enough.lane_bytes() > 0;
            Ok(ensure(used, || format!("enough: {enough:?}")))
        })
    });
}

/// What a program moves on a connection that it got from another is counted once, whoever holds the
/// connection in the end.
#[test]
fn bytes_of_a_connection_that_is_handed_on_are_counted_once() {
    check("bytes_of_a_connection_that_is_handed_on", || {
        const BYTES: u64 = 100 * 8;
        for (fork, turns) in [(None, 3), (Some("fork"), 4)] {
            let lab = Lab::with_library()?;
            let (server, port) = serve(&lab, command("python3"), "alone.py", "server")?;
            let mut client = lab.command(Mode::Accelerated, "python3");
            client.arg(script("handed_on.py")).args(["first", &port]);
            client.args(fork);
            run(client, lab.path(), "client", LIMIT)?.success()?;
            let totals = lab.totals()?;
            let counted = (totals.tcp_tx_bytes, totals.tcp_rx_bytes);
            let moved = turns * BYTES;
            let is_once = match fork {
                None => counted == (moved, moved),
                // What the parent moves behind a connection that was left to the kernel and then
                // given away is not known.
                Some(_) => (3 * BYTES..=moved).contains(&counted.0),
            };
            ensure(is_once, || {
                format!("{counted:?} of {moved} bytes, {fork:?}")
            })?;
            server.stop(LIMIT)?;
        }
        Ok(())
    });
}

#[test]
fn statistics_reach_any_path_or_are_said_to_be_lost() {
    check("statistics_reach_any_path", || {
        let lab = Lab::with_library()?;
        let deep = lab.path().join("d".repeat(200)).join("e".repeat(200));
        fs::create_dir_all(&deep)?;
        let file = deep.join("stats");
        fs::write(&file, "")?;
        let mut program = lab.command(Mode::Accelerated, "python3");
        program.arg(script("self_talk.py"));
        program.env("SLUICE_STATS_FILE", &file);
        run(program, lab.path(), "deep", LIMIT)?.success()?;
        if fs::read_to_string(&file)?.lines().count() == 0 {
            return fail("there is no line in the file with the long path");
        }
        if !rustix::process::geteuid().is_root() {
            return skip("only root can change its root");
        }
        let mut program = lab.command(Mode::Accelerated, "python3");
        let empty = lab.path().join("empty");
        fs::create_dir(&empty)?;
        program.args(["-c", "import os, sys; os.chroot(sys.argv[1])"]);
        program.arg(&empty).env("SLUICE_LOG", "warn");
        let outcome = run(program, lab.path(), "chroot", LIMIT)?.success()?;
        ensure(stderr(&outcome).contains("statistics are lost"), || {
            outcome.describe()
        })
    });
}

/// The bytes that `alone.py` sends, and gets back.
const ALONE_BYTES: u64 = 8 * (500 + 100 + 200 + 1) + 3 * 3;

/// What a client of `alone.py`, run in this way beside a plain server, said and counted.
fn alone(way: &str) -> Verdict<(String, Totals)> {
    let lab = Lab::with_library()?;
    let (server, port) = serve(&lab, command("python3"), "alone.py", "server")?;
    let mut client = lab.command(Mode::Accelerated, "python3");
    client.arg(script("alone.py")).args([way, &port]);
    client.env("SLUICE_LOG", "debug");
    let outcome = run(client, lab.path(), "client", LIMIT)?.success()?;
    let totals = lab.totals()?;
    server.stop(LIMIT)?;
    Ok((stderr(&outcome), totals))
}

/// A connection whose other end nobody announces costs nothing after a while, and is all the same
/// counted.
#[test]
fn connections_without_a_peer_are_left_to_the_kernel() {
    check("connections_without_a_peer_are_left_to_the_kernel", || {
        until(|| {
            let (said, totals) = alone("client")?;
            // The parent, whose descriptor is the last, counts for its child, too.
            let counted = (totals.tcp_tx_bytes, totals.tcp_rx_bytes);
            ensure(counted == (ALONE_BYTES, ALONE_BYTES), || {
                format!("{counted:?} of {ALONE_BYTES} bytes counted\n{said}")
            })?;
            Ok(ensure(said.contains("bypassed, on TCP"), || said))
        })
    });
}

/// One that another process holds when nobody announces its other end is not forgotten: it is
/// announced again once it is held by one process alone.
#[test]
fn connections_shared_when_they_would_be_left_are_announced_again() {
    check("connections_shared_when_they_would_be_left", || {
        until(|| {
            let (said, _) = alone("shared")?;
            let (shared, alone) = said.split_once("still shared").unwrap_or((&said, ""));
            ensure(!shared.contains("bypassed, on TCP"), || said.clone())?;
            let is_left = alone.contains("bypassed, on TCP");
            Ok(ensure(is_left, || said.clone()))
        })
    });
}

/// While one thread waits or reads, another one finds the connection left to the kernel; then the
/// number and its place in an epoll instance belong to the next connection.
#[test]
fn connections_are_left_while_other_threads_use_them() {
    check("connections_are_left_while_other_threads_use_them", || {
        until(|| {
            let (said, totals) = alone("threads")?;
            let counted = (totals.tcp_tx_bytes, totals.tcp_rx_bytes);
            ensure(counted == (5 * 200 * 8, 5 * 200 * 8), || {
                format!("{counted:?}")
            })?;
            Ok(ensure(said.contains("bypassed, on TCP"), || said))
        })
    });
}

/// sluiced has a socket that it was given open for as long as it takes to look at it, and its
/// program may have closed it by then: neither its epoll instance nor its peer can tell.
#[test]
fn a_closed_connection_is_closed_while_sluiced_has_its_socket() {
    check("a_closed_connection_is_closed", || {
        let lab = Lab::with_library()?;
        let binary = compile(&apps_dir().join("closed_given.c"), BUILDS[0], lab.path())?;
        let Some(daemon) = lab.daemon() else {
            return skip("there is no sluiced of this build");
        };
        let run = |mode, label| {
            let mut program = lab.command(mode, &binary);
            program.arg(daemon.id().to_string());
            let outcome = run(program, lab.path(), label, LIMIT);
            // It has done so itself, if it got so far.
            let id = daemon.id();
            let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
            for child in children.split_whitespace() {
                if let Some(child) = child.parse().ok().and_then(Pid::from_raw) {
                    kill_process(child, Signal::CONT).map_err(std::io::Error::from)?;
                }
            }
            daemon.signal(Signal::CONT)?;
            outcome?.success()
        };
        let plain = run(Mode::Plain, "plain")?;
        let outcome = run(Mode::Accelerated, "closed-given")?;
        let difference = first_difference(&plain.stdout, &outcome.stdout);
        ensure(difference.is_none(), || {
            format!("{difference:?}\n{}", outcome.describe())
        })
    });
}
