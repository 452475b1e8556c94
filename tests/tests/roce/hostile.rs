//! Programs that check what they get, while strangers on the path send what they like.

use libtest_mimic::Trial;
use sluice_tests::suite::{Verdict, trial};
use sluice_tests::verbs::Own;
use sluice_tests::verbs::rows::named;

use crate::attacks::{ATTACKS, Attack, everything, under_attack};
use sluice_tests::verbs::link::{DEVICES, LIMIT, Link, Way};

/// Timeout of the queue pairs, half a second: the flood and a busy machine together may keep a
/// socket full for longer than eight short ones.
const PATIENT: &str = "17";

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (number, device) in DEVICES.into_iter().enumerate() {
        for (turn, (name, attack)) in ATTACKS.iter().enumerate() {
            let way = Way {
                device,
                family: if (number + turn) % 2 == 0 { 4 } else { 6 },
                mtu: 1500,
            };
            let name = format!("hostile/{name}/{}", way.name());
            trials.push(trial(name, move || traffic(way, *attack)));
        }
        let way = Way {
            device,
            family: 4,
            mtu: 1500,
        };
        trials.push(trial(
            format!("hostile/everything/programs/{}", way.name()),
            move || programs(way),
        ));
    }
    trials
}

fn traffic(way: Way, attack: Attack) -> Verdict {
    let mut link = Link::with_injector(way)?;
    let program = Own::Traffic.compile(link.hosts().path())?;
    let program = program.to_string_lossy().into_owned();
    let between = link.hosts().between()?.clone();
    under_attack(&between, attack, || {
        let arguments = ["-n", "2000", "-b", "12000", "-T", PATIENT];
        link.pair(&program, "-g", &arguments, 2 * LIMIT)?;
        Ok(())
    })
}

fn programs(way: Way) -> Verdict {
    let mut link = Link::with_injector(way)?;
    let between = link.hosts().between()?.clone();
    under_attack(&between, everything, || {
        for (row, iterations) in [
            // Not those that a lost acknowledgement stops: see paths.rs.
            ("ib_send_lat/rc", "500"),
            ("ib_send_bw/events", "300"),
            ("ib_send_bw/rc", "300"),
            ("ib_write_bw/rc", "300"),
            ("ib_read_bw/rc", "50"),
        ] {
            let row = named(row);
            let mut arguments = row.arguments();
            arguments.extend(["-n", iterations]);
            let (server, client) =
                link.pair(row.program, row.gid_option(), &arguments, 2 * LIMIT)?;
            row.check(&server, &client, sluice_tests::verbs::link::path_mtu(way))?;
        }
        Ok(())
    })
}
