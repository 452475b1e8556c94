//! Sockets between two hosts that share a window: direct lanes, with no daemon on the path
//! (docs/decisions/0041). The hosts are network namespaces with a `sluiced` each.

mod anew;
mod late;
mod scripts;
mod stage;

use std::process::ExitCode;

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::hosts::{SIDES, Side};
use sluice_tests::programs::between::{self, Churn};
use sluice_tests::programs::{iperf, require};
use sluice_tests::stream::{self, Ends, KILLS, Kill, SERVERS, Transfer};
use sluice_tests::suite::{self, Verdict, ensure, trial};

use stage::{CONNECTIONS, RECORDS, Stage};

fn main() -> ExitCode {
    let mut trials: Vec<Trial> = Vec::new();
    for server in SERVERS {
        for kill in KILLS {
            // The kinds of servers differ in how they end, and hardly in how others do.
            if kill == Kill::Nobody || server == "thread" {
                let name = format!("stream/{server}/kill-{kill:?}").to_lowercase();
                trials.push(trial(name, move || stream(server, kill)));
            }
        }
    }
    for side in SIDES {
        let name = format!("daemon-killed/{side:?}").to_lowercase();
        trials.push(trial(name, move || daemon_killed(side)));
    }
    for side in SIDES {
        let name = format!("child-goes-on/{side:?}").to_lowercase();
        trials.push(trial(name, move || late::child(side)));
    }
    for side in SIDES {
        let name = format!("served-anew/{side:?}").to_lowercase();
        trials.push(trial(name, move || anew::served(side)));
    }
    trials.push(trial("half-close".to_owned(), || {
        scripts::both(scripts::HALF_CLOSE)
    }));
    trials.push(trial("reset".to_owned(), || scripts::both(scripts::RESET)));
    trials.push(trial("users/nobody".to_owned(), nobody));
    trials.push(trial("churn".to_owned(), churn));
    trials.push(trial("cut-and-healed".to_owned(), cut_and_healed));
    trials.push(trial("scribbler".to_owned(), scribbler));
    trials.push(trial("redis".to_owned(), redis));
    trials.push(trial("iperf3".to_owned(), iperf));
    // One at a time: programs poll.
    suite::run(trials, 1).exit_code()
}

/// Every byte is what it must be, whoever is killed.
fn stream(server: &'static str, kill: Kill) -> Verdict {
    let stage = Stage::new(&["root"])?;
    let transfer = Transfer {
        server,
        connections: CONNECTIONS,
        records: kill.records(RECORDS),
    };
    let run = || stage.flow(transfer)?.judge(kill, LIMIT);
    // A server's children end by themselves, and are counted by nobody who waits for them.
    if kill == Kill::Nobody && server == "thread" {
        stage.two.run_until_ring_bytes(run)?;
        stage.require_direct()?;
    } else {
        run()?;
    }
    stage.await_all_back()
}

/// Lanes go on without the daemon that made them. Its successor lends none of their pages, and makes
/// lanes as before.
fn daemon_killed(side: Side) -> Verdict {
    let mut stage = Stage::new(&["root"])?;
    let transfer = |records| Transfer {
        server: "thread",
        connections: CONNECTIONS,
        records,
    };
    let Ends { client, server, .. } = stage.flow(transfer(0))?;
    stage.await_lanes(side, CONNECTIONS as u64)?;
    stage.two.end(side, Signal::KILL)?;
    stage.two.start(side)?;
    stage.await_window()?;
    // The old connections are there still, and in use, beside new ones.
    let before = stage.lent(side)?;
    stage.flow(transfer(RECORDS))?.check_complete(LIMIT)?;
    ensure(stage.lent(side)? >= before, || {
        "a page of an old lane was taken back".into()
    })?;
    let _ = client.signal(Signal::KILL);
    let _ = client.finish(LIMIT)?;
    stream::check_cut(&server.finish(LIMIT)?.success()?, CONNECTIONS)?;
    stage.require_direct()
}

/// Programs of users whom the configuration does not name never get the memory.
fn nobody() -> Verdict {
    let stage = Stage::new(&["65533"])?;
    stage
        .flow(Transfer {
            server: "thread",
            connections: CONNECTIONS,
            records: RECORDS,
        })?
        .check_complete(LIMIT)?;
    for side in SIDES {
        let lent = stage.lent(side)?;
        ensure(lent == 0, || format!("{side:?} has lent {lent} bytes"))?;
    }
    Ok(())
}

/// Many connections that come and go at random, every byte checked, and nothing stays lent.
fn churn() -> Verdict {
    // Room for all of them in one host's slot: half a MiB each.
    let stage = Stage::with(&["root"], "1G")?;
    // All of it may be over before the first lane if sluiced gets no processor.
    stage.two.run_until_ring_bytes(|| {
        Churn::start(&stage.two, 2_000, 4, false)?.end(&stage.two, LIMIT)
    })?;
    stage.require_direct()?;
    stage.await_all_back()
}

/// What the hosts say to each other in the window reads as ones for a while, as behind a link that is cut. Connections
/// that are in it go on, those that come then have other ways, and later ones are in it again.
fn cut_and_healed() -> Verdict {
    const FEW: u32 = 1000;
    let stage = Stage::new(&["root"])?;
    let transfer = |records| Transfer {
        server: "thread",
        connections: CONNECTIONS,
        records,
    };
    let Ends { client, server, .. } = stage.flow(transfer(0))?;
    let old = CONNECTIONS as u64;
    for side in SIDES {
        stage.await_lanes(side, old)?;
    }
    let healed = stage.two.dir().join("healed");
    let words = [&*healed.to_string_lossy()];
    let cutter = stage.script(Side::Right, false, scripts::CUTTER, &words)?;
    let cutter = stage.two.start_program(cutter, "cutter")?;
    stage.await_cut()?;
    let lent = SIDES.map(|side| stage.lent(side).ok());
    stage.flow(transfer(FEW))?.check_complete(LIMIT)?;
    for side in SIDES {
        let lanes = stage.lanes(side)?;
        ensure(lanes == old, || {
            format!("{lanes} lanes of {side:?} while it is cut")
        })?;
    }
    ensure(lent == SIDES.map(|side| stage.lent(side).ok()), || {
        "memory was lent while it was cut".into()
    })?;
    std::fs::write(&healed, "")?;
    let _ = cutter.finish(LIMIT)?.success()?;
    stage.await_window()?;
    let fabric = || SIDES.map(|side| stage.fabric_bytes(side).ok());
    let before = fabric();
    stage.flow(transfer(FEW))?.check_complete(LIMIT)?;
    ensure(before == fabric(), || {
        "bytes by the fabric when it is healed".into()
    })?;
    // Nothing of the old ones is lost, and they were in use all the time.
    let _ = client.signal(Signal::KILL);
    let _ = client.finish(LIMIT)?;
    stream::check_cut(&server.finish(LIMIT)?.success()?, CONNECTIONS)?;
    stage.two.require_ring_bytes()?;
    stage.await_all_back()
}

/// A process that has the window writes anything anywhere in it. Connections in it may break, and what
/// they carry is what it wrote; nothing crashes, and daemons make other connections afterwards.
fn scribbler() -> Verdict {
    let stage = Stage::new(&["root"])?;
    let Ends { client, server, .. } = stage.flow(Transfer {
        server: "thread",
        connections: CONNECTIONS,
        records: 0,
    })?;
    stage.await_lanes(Side::Left, CONNECTIONS as u64)?;
    let command = stage.script(Side::Right, false, scripts::SCRIBBLER, &["3"])?;
    stage.two.run_program(command, "scribbler")?;
    for end in [client, server] {
        let _ = end.signal(Signal::TERM);
        let outcome = end.finish(LIMIT)?;
        // Only by what this test sends.
        use std::os::unix::process::ExitStatusExt;
        let signal = outcome.status.signal();
        ensure(matches!(signal, None | Some(15)), || outcome.describe())?;
    }
    for side in SIDES {
        stage.two.status(side)?;
    }
    // By the window again, or otherwise: complete.
    stage
        .flow(Transfer {
            server: "thread",
            connections: CONNECTIONS,
            records: RECORDS,
        })?
        .check_complete(LIMIT)
}

fn redis() -> Verdict {
    let stage = Stage::new(&["root"])?;
    stage
        .two
        .run_until_ring_bytes(|| between::redis(&stage.two))?;
    stage.require_direct()?;
    stage.await_all_back()
}

/// Several streams both ways; iperf3 counts what arrived.
fn iperf() -> Verdict {
    let stage = Stage::new(&["root"])?;
    let two = &stage.two;
    let program = require("iperf3")?;
    let number = two.host(Side::Right).free_port(Protocol::Tcp)?;
    let (address, port) = (two.address(Side::Right).to_string(), number.to_string());
    let mut command = two.program(Side::Right, true, &program);
    command.args(["-s", "-B", &address, "-p", &port]);
    let mut server = two.start_program(command, "iperf3-server")?;
    let host = two.host(Side::Right);
    host.await_listener(&mut server, Protocol::Tcp, number, LIMIT)?;
    for more in [&[][..], &["-R"]] {
        let client = || {
            let mut command = two.program(Side::Left, true, &program);
            command.args(["-c", &address, "-p", &port, "-P", "4", "-n", "200M", "-J"]);
            command.args(more);
            let job = two.start_program(command, "iperf3")?;
            job.finish(LIMIT)?.success()
        };
        two.run_until_ring_bytes(|| iperf::received(&iperf::run(client)?).map(drop))?;
    }
    let _ = server.stop(LIMIT)?;
    stage.require_direct()?;
    stage.await_all_back()
}
