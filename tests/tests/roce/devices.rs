//! Programs that look at devices.

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::suite::{Verdict, ensure, fail, trial};
use sluice_tests::verbs::gid_index;

use crate::link::{DEVICES, End, LIMIT, Link, Way, path_mtu};

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for device in DEVICES {
        for mtu in [1500, 9000] {
            let way = Way {
                device,
                family: 4,
                mtu,
            };
            let name = format!("ibv_devinfo/{device}/mtu-{mtu}");
            trials.push(trial(name, move || devinfo(way)));
        }
        let way = Way::corner(device, 0);
        let name = format!("ibv_devices/{device}");
        trials.push(trial(name, move || devices(way)));
        let name = format!("ibv_asyncwatch/{device}");
        trials.push(trial(name, move || asyncwatch(way)));
    }
    trials
}

fn devices(way: Way) -> Verdict {
    let mut link = Link::new(way)?;
    let outcome = link.start(End::Left, "ibv_devices", &[])?.finish(LIMIT)?;
    let outcome = outcome.success()?;
    ensure(outcome.text().contains("sluice"), || outcome.describe())
}

/// The port's state, what its packets can carry, and an address of each version of IP.
fn devinfo(way: Way) -> Verdict {
    let mut link = Link::new(way)?;
    let job = link.start(End::Left, "ibv_devinfo", &["-v"])?;
    let outcome = job.finish(LIMIT)?.success()?;
    let squeezed: Vec<String> = outcome
        .text()
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for (name, wanted) in [
        ("state:", "PORT_ACTIVE".to_owned()),
        ("link_layer:", "Ethernet".to_owned()),
        ("active_mtu:", path_mtu(way).to_string()),
    ] {
        let line = squeezed
            .iter()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim);
        ensure(line.is_some_and(|line| line.starts_with(&wanted)), || {
            format!(
                "{name} {line:?} instead of {wanted}\n{}",
                outcome.describe()
            )
        })?;
    }
    for family in [4, 6] {
        let address = link.host(End::Left).address(family);
        if gid_index(&outcome.text(), address).is_none() {
            return fail(format!("no GID of {address}\n{}", outcome.describe()));
        }
    }
    Ok(())
}

/// It waits for events until it is told to end. What it prints goes into a buffer that only a
/// terminal would empty after each line.
fn asyncwatch(way: Way) -> Verdict {
    let mut link = Link::new(way)?;
    let mut watch = link.start(End::Left, "stdbuf", &["-oL", "ibv_asyncwatch"])?;
    let stdout = watch.stdout_path().to_owned();
    watch.await_ready(LIMIT, "line about the descriptor", || {
        std::fs::read_to_string(&stdout).is_ok_and(|text| text.contains("async event FD"))
    })?;
    watch.signal(Signal::TERM)?;
    watch.finish(LIMIT)?;
    Ok(())
}
