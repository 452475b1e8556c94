//! `sluice verbs --trace`: what tshark makes of the files of real programs.

use std::fs;
use std::path::PathBuf;

use libtest_mimic::Trial;
use sluice_tests::job::find_program;
use sluice_tests::net::free_port;
use sluice_tests::suite::{Verdict, ensure, skip, trial};
use sluice_tests::verbs::cm;
use sluice_tests::verbs::traces::{
    CASES, Case, Packet, READ_FIRST, READ_LAST, READ_MIDDLE, READ_REQUEST, WRITE_ONLY, check,
    check_opcodes, opcode,
};

use crate::stage::{LIMIT, Stage, WAYS};

pub fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = CASES
        .iter()
        .map(|case| trial(format!("trace/{}", case.name), || perftest(case)))
        .collect();
    trials.push(trial("trace/by-the-owner", by_the_owner));
    trials.push(trial("trace/rping", rping));
    trials.push(trial("trace/udaddy", udaddy));
    trials.push(trial("trace/children-have-files-of-their-own", children));
    trials.push(trial("trace/bad-file", bad_file));
    trials
}

/// The trace that a process of these tests writes.
fn traced(stage: &Stage, name: &str) -> (PathBuf, [String; 2]) {
    let file = stage.folder().join(name);
    let options = ["--trace".to_owned(), file.display().to_string()];
    (file, options)
}

fn perftest(case: &Case) -> Verdict {
    let mut stage = Stage::new()?;
    let (server, server_options) = traced(&stage, "server.pcapng");
    let (client, client_options) = traced(&stage, "client.pcapng");
    stage.pair_with(
        case.program,
        case.arguments,
        &server_options,
        &client_options,
    )?;
    case.check([&client, &server], [case.client, case.server])
}

/// READs that the owner's thread carries out are in both files.
fn by_the_owner() -> Verdict {
    let mut stage = Stage::new()?;
    let [.., (_, by_the_owner)] = WAYS;
    stage.set(by_the_owner);
    let (server, server_options) = traced(&stage, "server.pcapng");
    let (client, client_options) = traced(&stage, "client.pcapng");
    let arguments = ["-n", "20", "-s", "4000", "-m", "1024"];
    stage.pair_with("ib_read_lat", &arguments, &server_options, &client_options)?;
    let expected = &[
        (READ_REQUEST, 20),
        (READ_FIRST, 20),
        (READ_MIDDLE, 2 * 20),
        (READ_LAST, 20),
    ];
    let mut numbers = Vec::new();
    for file in [&server, &client] {
        let packets = check(file)?;
        check_opcodes(file, &packets, expected)?;
        let psns = packets
            .iter()
            .map(|packet| packet["infiniband.bth.psn"].clone());
        numbers.push(psns.collect::<Vec<_>>());
    }
    // Nothing went past the owner: the two files have the same packets.
    ensure(numbers[0] == numbers[1], || format!("{numbers:?}"))
}

fn rping() -> Verdict {
    let mut stage = Stage::new()?;
    let port = free_port()?.to_string();
    let (server, server_options) = traced(&stage, "server.pcapng");
    let (client, client_options) = traced(&stage, "client.pcapng");
    let mut job = stage.start_with(
        "rping",
        &["-s", "-v", "-V", "-C", "10", "-p", &port],
        &server_options,
    )?;
    let arguments = ["-c", "-V", "-C", "10", "-a", "127.0.0.1", "-p", &port];
    stage.until_success("rping", &arguments, &client_options, &mut job)?;
    cm::success(job.finish(LIMIT)?)?;
    // Each round: the client's two SENDs and the server's two, a READ and a WRITE by the server.
    let sends = |packets: &[Packet]| packets.iter().filter(|p| opcode(p) == 0x04).count();
    let count = |packets: &[Packet], wanted: u8| {
        let of = packets.iter().filter(|packet| opcode(packet) == wanted);
        of.count()
    };
    let (at_server, at_client) = (check(&server)?, check(&client)?);
    ensure(sends(&at_server) >= 40 && sends(&at_client) >= 40, || {
        format!("{} and {} SENDs", sends(&at_server), sends(&at_client))
    })?;
    ensure(
        count(&at_server, READ_REQUEST) == 10 && count(&at_server, WRITE_ONLY) == 10,
        || format!("{at_server:?}"),
    )?;
    check_conversation(&at_client, &port)?;
    check_conversation(&at_server, &port)?;
    // The client's first request may overtake its RTU on the way to the server (IBTA 12.9.7.2,
    // communication established), but not the RTU's own writing.
    let first_data = at_client.iter().position(|packet| attribute(packet) == 0);
    ensure(first_data == Some(3), || {
        format!("the client's first data are packet {first_data:?}")
    })?;
    let transactions = [&at_client, &at_server].map(|packets| {
        let of = packets.iter().filter(|packet| attribute(packet) == REQ);
        of.map(|packet| packet["infiniband.mad.transactionid"].clone())
            .collect::<Vec<_>>()
    });
    ensure(transactions[0] == transactions[1], || {
        format!("{transactions:?}")
    })?;
    let loopback = |packet: &Packet| packet["ip.src"] == "127.0.0.1";
    ensure(at_server.iter().chain(&at_client).all(loopback), || {
        "GIDs are not the addresses that the programs used".to_owned()
    })
}

/// The attribute of a management datagram (IBTA 16.7); 0 for what is none.
fn attribute(packet: &Packet) -> u16 {
    let text = &packet["infiniband.mad.attributeid"];
    let digits = text.strip_prefix("0x").unwrap_or_default();
    u16::from_str_radix(digits, 16).unwrap_or(0)
}

const REQ: u16 = 0x10;
const REP: u16 = 0x13;
const RTU: u16 = 0x14;
const DREQ: u16 = 0x15;
const SIDR_REQ: u16 = 0x17;
const SIDR_REP: u16 = 0x18;

/// A connection is agreed on before its queue pairs talk, and ended after that.
fn check_conversation(packets: &[Packet], port: &str) -> Verdict {
    let steps: Vec<u16> = packets.iter().map(attribute).collect();
    let talk = steps.iter().filter(|step| **step != 0).copied();
    let talk: Vec<u16> = talk.collect();
    ensure(
        talk.starts_with(&[REQ, REP, RTU, DREQ]) && steps.starts_with(&talk[..2]),
        || format!("{steps:x?}"),
    )?;
    let req = &packets[0];
    let port = port
        .parse()
        .map_or_else(|_| port.to_owned(), |port: u16| format!("0x{port:04x}"));
    let fields = [
        ("infiniband.cm.req.serviceid.dport", port),
        ("infiniband.cm.req.ip_cm.sip4", "127.0.0.1".to_owned()),
        ("infiniband.cm.req.ip_cm.dip4", "127.0.0.1".to_owned()),
        ("infiniband.bth.destqp", "0x000001".to_owned()),
        ("infiniband.deth.q_key", "0x0000000080010000".to_owned()),
    ];
    for (field, value) in fields {
        ensure(req[field] == value, || {
            format!("{field} is not {value}: {req:?}")
        })?;
    }
    // The queue pair that was named is the one that gets messages.
    let qpn = &req["infiniband.cm.req.localqpn"];
    let is_used = packets
        .iter()
        .any(|packet| attribute(packet) == 0 && packet["infiniband.bth.destqp"] == *qpn);
    ensure(is_used, || format!("nobody sends to {qpn}"))
}

/// A datagram service is asked for its queue pair.
fn udaddy() -> Verdict {
    let mut stage = Stage::new()?;
    // Its port is always the same; in a directory of their own the two meet nobody else.
    let directory = stage.folder().display().to_string();
    stage.set(Box::leak(Box::new([(
        "XDG_RUNTIME_DIR",
        &*directory.leak(),
    )])));
    let (server, server_options) = traced(&stage, "server.pcapng");
    let (client, client_options) = traced(&stage, "client.pcapng");
    let mut job = stage.start_with("udaddy", &[], &server_options)?;
    let arguments = ["-s", "127.0.0.1"];
    stage.until_success("udaddy", &arguments, &client_options, &mut job)?;
    job.finish(LIMIT)?.success()?;
    for file in [&server, &client] {
        let packets = check(file)?;
        let steps: Vec<u16> = packets.iter().map(attribute).collect();
        ensure(
            steps.starts_with(&[SIDR_REQ, SIDR_REP]) && steps.len() > 2,
            || format!("{}: {steps:x?}", file.display()),
        )?;
    }
    Ok(())
}

/// Two processes of one command: the second has a file of its own.
fn children() -> Verdict {
    let mut stage = Stage::new()?;
    let (file, options) = traced(&stage, "both.pcapng");
    let port = free_port()?.to_string();
    let script = format!(
        "ib_send_lat -F -n 10 -p {port} & \
         until ib_send_lat -F -n 10 -p {port} 127.0.0.1; do sleep 0.5; done; wait"
    );
    if find_program("ib_send_lat").is_none() {
        return skip("ib_send_lat is not installed; scripts/setup test");
    }
    let job = stage.start_with("sh", &["-c", &script], &options)?;
    job.finish(LIMIT)?.success()?;
    let mut files = Vec::new();
    for entry in fs::read_dir(stage.folder())? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "pcapng")
        {
            files.push(path);
        }
    }
    ensure(files.len() >= 2 && files.contains(&file), || {
        format!("{files:?}")
    })?;
    let mut full = 0;
    for file in &files {
        full += usize::from(check(file)?.len() == 40);
    }
    ensure(full == 2, || {
        format!("{full} of {files:?} have all packets")
    })
}

fn bad_file() -> Verdict {
    let mut stage = Stage::new()?;
    let options = ["--trace".to_owned(), "/nowhere/x.pcapng".to_owned()];
    let outcome = stage.start_with("true", &[], &options)?.finish(LIMIT)?;
    ensure(outcome.status.code() == Some(125), || outcome.describe())?;
    ensure(outcome.describe().contains("/nowhere/x.pcapng"), || {
        outcome.describe()
    })
}
