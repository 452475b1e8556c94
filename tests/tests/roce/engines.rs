//! Several engine threads: queue pairs on each, and processes with other numbers of them.

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::suite::{Verdict, trial};
use sluice_tests::verbs::Own;

use sluice_tests::verbs::link::{DEVICES, LIMIT, Link, Running, Way};

/// Of the left end and of the right one.
const ENGINES: [[u8; 2]; 3] = [[2, 2], [1, 3], [4, 2]];

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for device in DEVICES {
        for (engines, family) in ENGINES.into_iter().zip([4, 6, 4]) {
            let way = Way {
                device,
                family,
                mtu: 1500,
            };
            let [left, right] = engines;
            let name = format!("engines/{left}-{right}/{}", way.name());
            trials.push(trial(name, move || programs(way, engines)));
        }
        let way = Way {
            device,
            family: 4,
            mtu: 1500,
        };
        let name = format!("engines/killed/{}", way.name());
        trials.push(trial(name, move || killed(way)));
    }
    trials
}

/// More queue pairs than engine threads, which poll, sleep, or leave all to the threads.
fn programs(way: Way, engines: [u8; 2]) -> Verdict {
    let mut link = Link::new(way)?;
    link.set_engines(engines);
    for more in [
        &["-q", "7", "-n", "300"][..],
        &["-q", "4", "-n", "100", "-e"],
    ] {
        let arguments = [&["-u", "18", "-s", "3000"], more].concat();
        link.pair("ib_send_bw", "-x", &arguments, LIMIT)?;
    }
    let arguments = ["-u", "18", "-s", "20000", "-q", "5", "-n", "100"];
    link.pair("ib_write_bw", "-x", &arguments, LIMIT)?;
    link.pair("ib_read_bw", "-x", &arguments, LIMIT)?;
    // Checks every byte.
    link.own(Own::Traffic, &["-n", "500", "-b", "20000"])?;
    link.own(Own::Traffic, &["-n", "200", "-e", "1", "-s", "2"])?;
    Ok(())
}

fn flowing(link: &mut Link) -> Verdict<Running> {
    let mut running = link.start_own(Own::Stream, &["-T", "20", "-R", "7", "-e", "0"])?;
    running.client.await_text("flowing", LIMIT)?;
    Ok(running)
}

/// The processes that the kernel steers for are killed, and after them some that it does not:
/// those that are left, and those that come, keep their connections.
fn killed(way: Way) -> Verdict {
    let mut link = Link::new(way)?;
    link.set_engines([2, 2]);
    let first = flowing(&mut link)?;
    link.set_engines([3, 1]);
    let second = flowing(&mut link)?;
    link.set_engines([1, 2]);
    let arguments = ["-u", "18", "-s", "2000", "-q", "6", "-D", "4"];
    let third = link.start_pair("ib_send_bw", "-x", &arguments)?;
    for running in [&first, &second] {
        for end in [&running.server, &running.client] {
            end.signal(Signal::KILL)?;
        }
    }
    let arguments = ["-u", "18", "-s", "2000", "-q", "6", "-n", "200"];
    link.pair("ib_send_bw", "-x", &arguments, LIMIT)?;
    third.finish(LIMIT)?;
    Ok(())
}
