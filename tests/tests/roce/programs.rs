//! Every program of the shared-memory suite between two hosts.

use std::fs;

use libtest_mimic::Trial;
use sluice_tests::hosts::Host;
use sluice_tests::suite::{Problem, Verdict, ensure, fail, trial};
use sluice_tests::verbs::Own;
use sluice_tests::verbs::rows::{self, Row};

use sluice_tests::verbs::link::{CORNERS, DEVICES, LIMIT, Link, Way, path_mtu};

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let rows = rows::all().into_iter().filter(|row| !counts_on_luck(row));
    for (number, row) in rows.enumerate() {
        for (turn, device) in DEVICES.into_iter().enumerate() {
            let corners = match row.case {
                // One row of each program has every corner, the others have one, by turns.
                "plain" | "rc" => CORNERS.len(),
                // Half a minute each, of which perftest spends most on the processor's clock: one
                // device each, by turns.
                case if case.ends_with("all-sizes") && number % 2 != turn => 0,
                _ => 1,
            };
            for step in 0..corners {
                let way = Way::corner(device, number + 2 * turn + step);
                trials.push(trial(format!("{}/{}", row.name(), way.name()), move || {
                    program(&row, way)
                }));
            }
        }
    }
    for device in DEVICES {
        for corner in 0..CORNERS.len() {
            let way = Way::corner(device, corner);
            trials.push(trial(format!("traffic/{}", way.name()), move || {
                traffic(way)
            }));
            trials.push(trial(format!("datagrams/{}", way.name()), move || {
                datagrams(way)
            }));
            trials.push(trial(format!("events-of-bulk/{}", way.name()), move || {
                events_of_bulk(way)
            }));
        }
        let corner = Way::corner(device, 2);
        trials.push(trial(format!("receiver-not-ready/{}", corner.name()), {
            move || receiver_not_ready(corner)
        }));
    }
    for (family, mtu) in CORNERS {
        let way = Way {
            device: "roce",
            family,
            mtu,
        };
        for service in ["RC", "UD"] {
            let name = format!("packets-pass-the-kernel-by/{service}/{}", way.name());
            trials.push(trial(name, move || past_the_kernel(service, way)));
        }
    }
    trials
}

/// Rows that send more without acknowledgements than a receiver can hold that gets no processor
/// for a while; perftest waits for ever for what was lost. RoCE counts on a network that stops
/// senders, which there is none here. What unreliable messages come to is [`datagrams`].
fn counts_on_luck(row: &Row) -> bool {
    row.case.starts_with("uc-all-sizes")
}

/// The same for rows where less does: of two options the last one counts.
const LESS: [&str; 4] = ["-n", "30", "-s", "1024"];

fn program(row: &Row, way: Way) -> Verdict {
    let mut link = Link::new(way)?;
    let mut arguments = row.arguments();
    let unreliable = arguments.contains(&"UC") || arguments.contains(&"UD");
    if unreliable && row.program.ends_with("_bw") && !arguments.contains(&"-a") {
        arguments.extend(LESS);
    }
    // Those that cannot be told to be more patient give up a peer that got no processor for half a second.
    const TRIES: u32 = 4;
    const GIVEN_UP: &str = "transport retry counter exceeded";
    for last in 1.. {
        match link.pair(row.program, row.gid_option(), &arguments, row.limit()) {
            Err(Problem::Failed(text))
                if last < TRIES && !row.is_patient() && text.contains(GIVEN_UP) => {}
            ended => {
                let (server, client) = ended?;
                return row.check(&server, &client, path_mtu(way));
            }
        }
    }
    unreachable!("the last try returns")
}

fn traffic(way: Way) -> Verdict {
    let mut link = Link::new(way)?;
    link.own(Own::Traffic, &["-n", "2000", "-b", "40000"])?;
    link.own(Own::Traffic, &["-n", "1000", "-e", "1", "-s", "2"])?;
    Ok(())
}

/// Fewer receives than messages: the receiver refuses, and the sender comes again.
fn receiver_not_ready(way: Way) -> Verdict {
    let mut link = Link::new(way)?;
    for events in ["0", "1"] {
        link.own(Own::Traffic, &["-n", "500", "-r", "3", "-e", events])?;
    }
    Ok(())
}

/// A program that sleeps on one channel for both queues, and takes the first event behind its own message
/// for that of the acknowledgement. That comes past the kernel, and the answer, which is bulk, by a
/// socket.
fn events_of_bulk(way: Way) -> Verdict {
    let mut link = Link::new(way)?;
    let arguments = ["-u", "18", "-e", "-s", "65536", "-n", "3000"];
    link.pair("ib_send_lat", "-x", &arguments, LIMIT)?;
    Ok(())
}

fn datagrams(way: Way) -> Verdict {
    let mut link = Link::new(way)?;
    let payload = path_mtu(way).to_string();
    for (kind, longest) in [("UC", "20000"), ("UD", payload.as_str())] {
        let (server, client) = link.own(Own::Datagrams, &["-c", kind, "-b", longest])?;
        for outcome in [server, client] {
            // A receiver that gets no processor may lose some.
            let (came, of) = came(&outcome.text())?;
            ensure(came * 4 > of, || outcome.describe())?;
        }
    }
    Ok(())
}

/// How many messages came, of how many.
pub fn came(text: &str) -> Verdict<(u64, u64)> {
    let found = text.lines().find_map(|line| {
        let (came, of) = line.strip_prefix("came: ")?.split_once(" of ")?;
        Some((came.parse().ok()?, of.parse().ok()?))
    });
    match found {
        Some(found) => Ok(found),
        None => fail(format!("it does not say what came\n{text}")),
    }
}

/// With AF_XDP the UDP sockets of the kernel carry next to nothing: what comes before the neighbour
/// is known and, with datagrams, before the engine's thread has found time to open the sockets of
/// AF_XDP beside two programs that poll, which was 70 ms at times.
fn past_the_kernel(service: &str, way: Way) -> Verdict {
    let messages: u64 = if service == "UD" { 200_000 } else { 2000 };
    let mut link = Link::new(way)?;
    let before = [
        kernel_datagrams(&link.hosts().left)?,
        kernel_datagrams(&link.hosts().right)?,
    ];
    let iterations = messages.to_string();
    let arguments = ["-c", service, "-n", &iterations, "-s", "8"];
    link.pair("ib_send_lat", "-x", &arguments, LIMIT)?;
    let after = [
        kernel_datagrams(&link.hosts().left)?,
        kernel_datagrams(&link.hosts().right)?,
    ];
    for (before, after) in before.into_iter().zip(after) {
        let by_kernel = after - before;
        ensure(by_kernel < messages / 2, || {
            format!("{by_kernel} datagrams went through UDP sockets, of {messages} messages")
        })?;
    }
    Ok(())
}

/// UDP datagrams of both versions of IP that sockets of the host received and sent (proc(5),
/// RFC 4113).
fn kernel_datagrams(host: &Host) -> Verdict<u64> {
    let (v4, v6) = host.inside(|| {
        Ok((
            fs::read_to_string("/proc/thread-self/net/snmp")?,
            fs::read_to_string("/proc/thread-self/net/snmp6")?,
        ))
    })?;
    // Two lines, of names and of values.
    let mut udp = v4.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (Some(names), Some(values)) = (udp.next(), udp.next()) else {
        return fail(v4);
    };
    let pairs = names.split_whitespace().zip(values.split_whitespace());
    let wanted = ["InDatagrams", "OutDatagrams"];
    let old = pairs.filter(|(name, _)| wanted.contains(name));
    let new = v6.lines().filter_map(|line| {
        let (name, value) = line.split_once(char::is_whitespace)?;
        let known = name
            .strip_prefix("Udp6")
            .is_some_and(|name| wanted.contains(&name));
        known.then(|| (name, value.trim()))
    });
    let mut sum = 0;
    let mut found = 0;
    for (_, value) in old.chain(new) {
        let Ok(value) = value.parse::<u64>() else {
            return fail(format!("not a count: {value}"));
        };
        sum += value;
        found += 1;
    }
    ensure(found == 4, || format!("{found} counters\n{v4}\n{v6}"))?;
    Ok(sum)
}
