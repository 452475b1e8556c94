//! Who may publish what, and what a program is told.

use std::io;
use std::net::TcpListener;

use libtest_mimic::Trial;
use sluice_tests::fleet::LIMIT;
use sluice_tests::job::wait_until;
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::lab::{At, FORBIDDEN_PORT, LOW_PORT, Lab, PORT, PORT_OF_BOTH, outside};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("addresses", addresses),
        trial("refused", refused),
        trial("two-nodes/drain", drain),
        trial("privileges", privileges),
        trial("no-local-ports", no_local_ports),
    ]
}

/// The program sees client and gateway as they see each other, whatever it listens at.
fn addresses() -> Verdict {
    let lab = Lab::new()?;
    let node = (lab.host(At::NodeA).v4(), lab.host(At::NodeA).v6());
    for (address, families) in [
        ("0.0.0.0".to_owned(), &[4][..]),
        (node.0.to_string(), &[4]),
        ("::".to_owned(), &[4, 6]),
        (node.1.to_string(), &[6]),
    ] {
        let server = lab.serve_who(At::NodeA, &address, PORT, 2)?;
        for family in families {
            let mut met = lab.meet(*family, PORT)?;
            let stream = met.reader.get_ref();
            let (own, peer) = (stream.local_addr()?, stream.peer_addr()?);
            ensure(met.peer == own && met.own == peer, || {
                format!(
                    "{address}: {own} to {peer} is {} to {} there",
                    met.peer, met.own
                )
            })?;
            met.echo(b"and bytes")?;
        }
        let _ = server.stop(LIMIT)?;
        lab.await_closed(PORT)?;
    }
    Ok(())
}

/// The gateway's errors are those of listen.
fn refused() -> Verdict {
    let lab = Lab::new()?;
    let at = (outside(4), PORT);
    let taken = lab.host(At::Gateway).inside(|| TcpListener::bind(at))?;
    for (node, gateway, port, errno) in [
        (At::NodeA, "gw", FORBIDDEN_PORT, libc::EACCES),
        (At::NodeB, "gw", PORT, libc::EACCES),
        (At::NodeA, "gw", PORT, libc::EADDRINUSE),
    ] {
        let server = lab.who(node, gateway, "0.0.0.0", port, 1)?;
        let outcome = server.finish(LIMIT)?;
        let expected = format!("listen {errno}\n");
        ensure(outcome.text() == expected, || {
            format!("{node:?} {gateway} {port}: {}", outcome.describe())
        })?;
        if errno == libc::EACCES {
            ensure(port == PORT || !lab.is_open(port)?, || {
                format!("{port} is open")
            })?;
        }
    }
    // A gateway that the node's configuration does not have is not begun with.
    let unknown = lab.who(At::NodeA, "nobody", "0.0.0.0", PORT, 1)?;
    let outcome = unknown.finish(LIMIT)?.describe();
    ensure(
        outcome.contains("status: 125") && outcome.contains("no gateway 'nobody'"),
        || outcome.clone(),
    )?;
    // What only its own host can reach is not published, and nobody's error.
    let local = lab.serve_who(At::NodeA, "127.0.0.1", FORBIDDEN_PORT, 1)?;
    let _ = local.stop(LIMIT)?;
    drop(taken);
    let server = lab.serve_who(At::NodeA, "0.0.0.0", PORT, 1)?;
    lab.meet(4, PORT)?;
    let _ = server.stop(LIMIT)?;
    Ok(())
}

/// Clients go to both nodes by turns, and to one while the other is drained.
fn drain() -> Verdict {
    let lab = Lab::new()?;
    let servers = [
        lab.serve_who(At::NodeA, "0.0.0.0", PORT_OF_BOTH, 1)?,
        lab.serve_who(At::NodeB, "0.0.0.0", PORT_OF_BOTH, 1)?,
    ];
    for node in [At::NodeA, At::NodeB] {
        lab.meet_at(node, 4, PORT_OF_BOTH)?;
    }
    let mut open = Vec::new();
    for _ in 0..10 {
        open.push(lab.meet(4, PORT_OF_BOTH)?);
    }
    let at_a = open.iter().filter(|met| met.name == "a").count();
    ensure(at_a == 5, || format!("{at_a} of 10 are at a"))?;
    let said = lab.ask_gateway(&["drain", "a"])?;
    ensure(said.contains("no new connections"), || said)?;
    // The process hears of it a moment later than we do.
    let is_drained = || {
        for _ in 0..4 {
            let met = lab.try_meet(4, PORT_OF_BOTH)?;
            if met.name != "b" {
                return Ok(false);
            }
        }
        Ok::<_, io::Error>(true)
    };
    ensure(wait_until(LIMIT, is_drained)?, || {
        "a is not drained".to_owned()
    })?;
    for met in &mut open {
        met.echo(b"goes on")?;
    }
    lab.ask_gateway(&["resume", "a"])?;
    let is_back = || Ok(lab.try_meet(4, PORT_OF_BOTH)?.name == "a");
    ensure(wait_until(LIMIT, is_back)?, || {
        "a gets no connections".to_owned()
    })?;
    let nobody = lab.ask_gateway(&["drain", "nobody"]);
    ensure(nobody.is_err(), || "nobody is drained".to_owned())?;
    for server in servers {
        let _ = server.stop(LIMIT)?;
    }
    Ok(())
}

/// Of root's rights the process that talks to strangers has one, which it uses.
fn privileges() -> Verdict {
    const NET_BIND_SERVICE: u64 = 1 << 10;
    let lab = Lab::new()?;
    for set in ["CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb"] {
        let has = lab.gateway_status(set)?;
        let has = u64::from_str_radix(&has, 16).map_err(io::Error::other)?;
        ensure(has & !NET_BIND_SERVICE == 0, || format!("{set} {has:x}"))?;
    }
    let new = lab.gateway_status("NoNewPrivs")?;
    ensure(new == "1", || format!("NoNewPrivs {new}"))?;
    let server = lab.serve_who(At::NodeA, "0.0.0.0", LOW_PORT, 1)?;
    lab.meet(4, LOW_PORT)?.echo(b"served")?;
    let _ = server.stop(LIMIT)?;
    lab.await_closed(LOW_PORT)
}

/// A gateway that has no port left for a node does not say that the node is not there, and serves by others.
fn no_local_ports() -> Verdict {
    const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
    let lab = Lab::new()?;
    let first = lab.serve_who(At::NodeA, "0.0.0.0", PORT_OF_BOTH, 1)?;
    lab.await_open(PORT_OF_BOTH)?;
    lab.host(At::Gateway)
        .inside(|| std::fs::write(RANGE, "50000 50000"))?;
    let mut served = lab.try_meet(4, PORT_OF_BOTH)?;
    ensure(lab.try_meet(4, PORT_OF_BOTH).is_err(), || {
        "there was a port".to_owned()
    })?;
    let second = lab.serve_who(At::NodeB, "0.0.0.0", PORT_OF_BOTH, 1)?;
    // Until it is published there is no port for anybody.
    let other = lab.meet_at(At::NodeB, 4, PORT_OF_BOTH)?;
    served.echo(b"still")?;
    let said = lab.describe();
    ensure(!said.contains("is not reached"), || said)?;
    drop((served, other));
    let _ = first.stop(LIMIT)?;
    let _ = second.stop(LIMIT)?;
    Ok(())
}
