//! Programs, daemons and gateways that are killed.

use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::fleet::LIMIT;
use sluice_tests::job::{Job, wait_until};
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::lab::{At, Lab, Met, PORT, PORT_OF_BOTH};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("killed/server", server_killed),
        trial("killed/node-daemon", node_daemon_killed),
        trial("killed/gateway-daemon", gateway_daemon_killed),
        trial("killed/gateway", gateway_killed),
        trial("ended/gateway", gateway_ended),
    ]
}

/// Enough turns for a lane.
const TURNS: usize = 40;

fn talk(lab: &Lab, met: &mut Met) -> Verdict {
    for turn in 0..TURNS {
        let size = 1 + turn * 977 % 20_000;
        if let Err(error) = met.echo(&vec![turn as u8; size]) {
            return ensure(false, || {
                format!("turn {turn}: {error}\n{}", lab.describe())
            });
        }
    }
    Ok(())
}

/// Clients of a server that dies know it, and the next ones go to the other node.
fn server_killed() -> Verdict {
    let lab = Lab::new()?;
    let first = lab.serve_who(At::NodeA, "0.0.0.0", PORT_OF_BOTH, 1)?;
    let mut met = lab.meet(4, PORT_OF_BOTH)?;
    talk(&lab, &mut met)?;
    let second = lab.serve_who(At::NodeB, "0.0.0.0", PORT_OF_BOTH, 1)?;
    lab.meet_at(At::NodeB, 4, PORT_OF_BOTH)?;
    first.signal(Signal::KILL)?;
    let _ = first.finish(LIMIT)?;
    // The kernel ends its connections as the program was at them: nothing was unread.
    let ended = std::io::Read::read(&mut met.reader, &mut [0; 1]);
    ensure(!matches!(ended, Ok(1)), || format!("{ended:?}"))?;
    // Also before the node has found out that nobody listens.
    for _ in 0..4 {
        let met = lab.try_meet(4, PORT_OF_BOTH)?;
        ensure(met.name == "b", || format!("at {}", met.name))?;
    }
    second.signal(Signal::KILL)?;
    let _ = second.finish(LIMIT)?;
    lab.await_closed(PORT_OF_BOTH)
}

/// A node without its daemon gets no clients; those that it has stay, and the next daemon knows
/// what is published.
fn node_daemon_killed() -> Verdict {
    let mut lab = Lab::new()?;
    let server = lab.serve_who(At::NodeA, "0.0.0.0", PORT, 2)?;
    let mut met = lab.meet(4, PORT)?;
    // Without a lane: what a ring has when its daemon dies is not to be had (docs/limitations.md).
    met.echo(b"before")?;
    lab.fleet.end(At::NodeA, Signal::KILL)?;
    lab.await_closed(PORT)?;
    met.echo(b"without a daemon")?;
    lab.fleet.start(At::NodeA)?;
    let mut again = lab.meet(4, PORT)?;
    talk(&lab, &mut again)?;
    met.echo(b"behind it")?;
    let _ = server.stop(LIMIT)?;
    Ok(())
}

/// Clients are accepted while the gateway's daemon is away, and after it came back.
fn gateway_daemon_killed() -> Verdict {
    let mut lab = Lab::new()?;
    let server = lab.serve_who(At::NodeA, "0.0.0.0", PORT, 1)?;
    let mut met = lab.meet(4, PORT)?;
    met.echo(b"before")?;
    lab.fleet.end(At::Gateway, Signal::KILL)?;
    let mut meanwhile = lab.try_meet(4, PORT)?;
    meanwhile.echo(b"without a daemon")?;
    met.echo(b"without a daemon")?;
    lab.fleet.start(At::Gateway)?;
    // The gateway has found it, and has all that it has.
    lab.fleet
        .await_log(At::Gateway, "the gateway's process is there")?;
    let mut again = lab.meet(4, PORT)?;
    talk(&lab, &mut again)?;
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(200));
        lab.try_meet(4, PORT)?;
    }
    let _ = server.stop(LIMIT)?;
    // The new daemon knows who has published it.
    lab.await_closed(PORT)
}

/// Both ends of every connection are reset, and everything is published again by the next one.
fn gateway_killed() -> Verdict {
    let mut lab = Lab::new()?;
    let mut server = lab.serve_who(At::NodeA, "0.0.0.0", PORT, 1)?;
    let mut met = lab.meet(4, PORT)?;
    talk(&lab, &mut met)?;
    lab.end_gateway(Signal::KILL)?;
    met.expect_reset()?;
    server.await_text("ended by reset", LIMIT)?;
    lab.start_gateway()?;
    let mut again = lab.meet(4, PORT)?;
    talk(&lab, &mut again)?;
    let _ = server.stop(LIMIT)?;
    drop(again);
    lab.end_gateway(Signal::TERM)
}

/// Told to end, it takes no more clients and lets those that it has finish. The next one serves meanwhile.
fn gateway_ended() -> Verdict {
    let mut lab = Lab::new()?;
    let server = lab.serve_who(At::NodeA, "0.0.0.0", PORT, 1)?;
    let mut met = lab.meet(4, PORT)?;
    met.echo(b"before")?;
    let gateway = lab.take_gateway()?;
    gateway.signal(Signal::TERM)?;
    lab.await_closed(PORT)?;
    lab.start_gateway()?;
    let mut again = lab.meet(4, PORT)?;
    talk(&lab, &mut again)?;
    talk(&lab, &mut met)?;
    drop((met, again));
    finish_in_time(gateway)?;
    let _ = server.stop(LIMIT)?;
    Ok(())
}

fn finish_in_time(mut gateway: Job) -> Verdict {
    let has_ended = wait_until(LIMIT, || Ok(gateway.poll()?.is_some()))?;
    ensure(has_ended, || "the gateway goes on".to_owned())?;
    gateway.finish(LIMIT)?.success()?;
    Ok(())
}
