//! Programs that look at devices.

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::suite::{Verdict, ensure, fail, trial};
use sluice_tests::verbs::{Own, gid_index};

use sluice_tests::verbs::link::{DEVICES, End, LIMIT, Link, Way, path_mtu};

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
    trials.push(trial("refused/roce", || refused(Way::corner("roce", 0))));
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

/// An interface that AF_XDP cannot be had on is no obstacle, and the user learns why it is so.
fn refused(way: Way) -> Verdict {
    const WHY: &str = "no AF_XDP on eth0, packets go through UDP sockets: another XDP program";
    let mut link = Link::new(way)?;
    // Who is first has the interfaces.
    let mut first = link.start_own(Own::Stream, &["-T", "20", "-R", "7"])?;
    first.client.await_text("flowing", LIMIT)?;
    let (server, client) = link.pair("ib_send_bw", "-x", &["-u", "18", "-n", "100"], LIMIT)?;
    for outcome in [server, client] {
        let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
        ensure(said.matches(WHY).count() == 1, || outcome.describe())?;
    }
    Ok(())
}

/// It waits for events until it is told to end. What it prints goes into a buffer that only a
/// terminal would empty after each line.
fn asyncwatch(way: Way) -> Verdict {
    let mut link = Link::new(way)?;
    let mut watch = link.start(End::Left, "stdbuf", &["-oL", "ibv_asyncwatch"])?;
    watch.await_text("async event FD", LIMIT)?;
    watch.signal(Signal::TERM)?;
    watch.finish(LIMIT)?;
    Ok(())
}
