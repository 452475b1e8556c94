//! Bad paths: what programs get is right all the same.

use std::time::Duration;

use libtest_mimic::Trial;
use sluice_tests::hosts::bottleneck::Bottleneck;
use sluice_tests::hosts::injector::Direction;
use sluice_tests::hosts::paths::{self, Path};
use sluice_tests::suite::{Verdict, ensure, trial};
use sluice_tests::verbs::Own;
use sluice_tests::verbs::rows::named;

use crate::programs::came;
use sluice_tests::verbs::link::{DEVICES, LIMIT, Link, Way, path_mtu};

/// Each repetition waits for a timeout of 67 ms and more, one after the other.
const SLOW: Duration = Duration::from_secs(180);

/// What is tried on each path: requests of each side of `traffic`, for a test of some seconds.
const REQUESTS: &[(Path, &str)] = &[
    (paths::LOSS_1_OF_1000, "1500"),
    (paths::LOSS_1_OF_100, "800"),
    (paths::LOSS_10_OF_100, "150"),
    (paths::DUPLICATION, "1000"),
    (paths::REORDERING, "500"),
    (paths::CORRUPTION, "800"),
    (paths::CORRUPTION_THAT_CHECKSUMS_MISS, "800"),
    (paths::CONGESTION_MARKS, "800"),
    (paths::MIXTURE, "500"),
];

/// Of reliable connections: programs that would wait for a lost datagram for ever are not here. Nor
/// are the pingpongs: who has the last message ends at once, and when the acknowledgement of it is
/// lost nobody is there to repeat it, with adapters neither. perftest says goodbye by TCP first. Its
/// `ib_send_lat -e` looks for the end of its SEND only when the answer has come, and only once, so
/// that it waits for ever when that acknowledgement comes later.
const PROGRAMS: &[(&str, &str)] = &[
    ("ib_send_lat/rc", "200"),
    ("ib_send_bw/events", "300"),
    ("ib_send_bw/shared-receive-queue", "300"),
    ("ib_send_bw/16-pairs-one-queue", "50"),
    ("ib_send_bw/xrc", "200"),
    ("ib_send_bw/both-ways", "300"),
    ("ib_write_bw/rc", "300"),
    ("ib_write_bw/16-pairs", "50"),
    ("ib_read_bw/rc", "300"),
    ("ib_read_lat/events", "100"),
    ("ib_atomic_bw/fetch-and-add", "300"),
    ("ib_atomic_lat/compare-and-swap", "100"),
];

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (number, (path, requests)) in REQUESTS.iter().enumerate() {
        for device in DEVICES {
            let way = Way {
                device,
                // Each fault meets both versions of IP, by turns.
                family: if (number + usize::from(device == "roce")) % 2 == 0 {
                    4
                } else {
                    6
                },
                mtu: if number % 2 == 0 { 1500 } else { 9000 },
            };
            let name = format!("paths/{}/traffic/{}", path.name, way.name());
            trials.push(trial(name, move || traffic(path, requests, way)));
            let name = format!("paths/{}/datagrams/{}", path.name, way.name());
            trials.push(trial(name, move || datagrams(path, way)));
        }
    }
    for (number, (row, iterations)) in PROGRAMS.iter().enumerate() {
        let way = Way {
            device: DEVICES[number % DEVICES.len()],
            family: 4,
            mtu: 1500,
        };
        let name = format!("paths/{}/{row}/{}", paths::MIXTURE.name, way.name());
        trials.push(trial(name, move || program(row, iterations, way)));
    }
    for device in DEVICES {
        let way = Way {
            device,
            family: if device == "roce" { 4 } else { 6 },
            mtu: 1500,
        };
        let name = format!("paths/bottleneck/{}", way.name());
        trials.push(trial(name, move || bottleneck(way)));
    }
    for device in DEVICES {
        let way = Way {
            device,
            family: 4,
            mtu: 1500,
        };
        let name = format!("paths/cut-for-a-second/{}", way.name());
        trials.push(trial(name, move || cut(way)));
    }
    trials
}

fn on_the_path(link: &mut Link, path: &Path, body: impl FnOnce(&mut Link) -> Verdict) -> Verdict {
    path.begin(link.injector()?);
    let result = body(link);
    path.end(link.injector()?, result)
}

fn traffic(path: &Path, requests: &str, way: Way) -> Verdict {
    let mut link = Link::with_injector(way)?;
    on_the_path(&mut link, path, |link| {
        let arguments = ["-n", requests, "-b", "20000", "-r", "32", "-T", "17"];
        link.start_own(Own::Traffic, &arguments)?.finish(SLOW)?;
        Ok(())
    })
}

/// Much may be missing, but what comes is right.
fn datagrams(path: &Path, way: Way) -> Verdict {
    let mut link = Link::with_injector(way)?;
    // Enough for one lost of a thousand.
    let payload = path_mtu(way).to_string();
    on_the_path(&mut link, path, |link| {
        for (kind, longest) in [("UC", "8000"), ("UD", payload.as_str())] {
            let arguments = ["-c", kind, "-b", longest, "-n", "960"];
            let (server, client) = link.own(Own::Datagrams, &arguments)?;
            for outcome in [server, client] {
                let (came, _) = came(&outcome.text())?;
                ensure(came > 0, || outcome.describe())?;
            }
        }
        Ok(())
    })
}

fn program(row: &str, iterations: &str, way: Way) -> Verdict {
    let row = named(row);
    let mut link = Link::with_injector(way)?;
    on_the_path(&mut link, &paths::MIXTURE, |link| {
        let mut arguments = row.arguments();
        // The last -n counts.
        arguments.extend(["-n", iterations]);
        let (server, client) = link.pair(row.program, row.gid_option(), &arguments, SLOW)?;
        row.check(&server, &client, path_mtu(way))
    })
}

/// Two programs over a link that is much too slow for them, once with a router that only drops, and
/// once with one that marks, so that senders slow down before packets are lost. Nobody is shut out.
/// Catches: marks that are not asked for, not seen, not told, or not heeded. How much they help
/// depends on how late a busy machine sees them (crates/verbs/protocol/tests/congestion.rs has figures).
fn bottleneck(way: Way) -> Verdict {
    const LINK: Bottleneck = Bottleneck {
        bytes_per_second: 40_000_000,
        mark_above: u64::MAX,
        drop_above: 200_000,
    };
    let mut lost = Vec::new();
    for mark_above in [u64::MAX, 20_000] {
        let mut link = Link::with_injector(way)?;
        let narrow = Bottleneck { mark_above, ..LINK };
        link.injector()?.narrow(Direction::LeftToRight, narrow);
        let arguments = ["-u", "18", "-s", "65536", "-n", "400"];
        let both = [(); 2].map(|()| link.start_pair("ib_write_bw", "-x", &arguments));
        for running in both {
            running?.finish(SLOW)?;
        }
        let counts = link.injector()?.counts(Direction::LeftToRight);
        println!("{counts:?}");
        let wrong = (mark_above == u64::MAX) != (counts.marked == 0);
        ensure(!wrong, || format!("{counts:?}"))?;
        lost.push(counts.overflowed);
    }
    ensure(lost[1] < lost[0], || {
        format!("{lost:?} frames found no place, without and with marks")
    })
}

/// The cable is out for a second, in the middle of a transfer whose queue pairs are patient for
/// two: nothing is lost and nothing comes twice.
fn cut(way: Way) -> Verdict {
    const ENOUGH: u64 = 2000;
    let mut link = Link::with_injector(way)?;
    let patient = ["-n", "3000", "-b", "20000", "-T", "16", "-R", "7"];
    let mut running = link.start_own(Own::Traffic, &patient)?;
    let injector = link.injector()?;
    let flowing = || injector.counts(Direction::LeftToRight).seen > ENOUGH;
    running.client.await_ready(LIMIT, "traffic", flowing)?;
    injector.while_cut(|| std::thread::sleep(Duration::from_secs(1)));
    let cut = injector.counts(Direction::LeftToRight).cut;
    let at_once = running.client.poll()?.is_some();
    ensure(cut > 0 && !at_once, || {
        format!("{cut} frames met the cut, {}", running.client.describe())
    })?;
    running.finish(SLOW)?;
    link.injector()?.check_running()
}
