//! What `sluice status` gets to see.
#![allow(unsafe_code)]

mod common;

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::{Daemon, Program, tcp_pair};
use sluice_control::client::Client;
use sluice_control::message::ToDaemon;
use sluice_lane::end::Role;
use sluice_lane::reason::Reason;
use sluice_lane::table::{ENDS, EndTable, MAGIC, VERSION, table_bytes};
use sluice_shmem::mapping::{Access, Mapping};
use sluice_sys::memfd::{self, SEAL_FUTURE_WRITE, SEAL_GROW, SEAL_SHRINK};
use sluice_sys::unix::Fd;

/// An end table that can be written by this process, and its sealed memory.
fn live_table() -> (EndTable, Fd) {
    let memory = memfd::create(c"sluiced-test").unwrap();
    memfd::set_len(memory.raw(), table_bytes() as u64).unwrap();
    let mapping = Mapping::shared(memory.raw(), table_bytes(), Access::ReadWrite).unwrap();
    memfd::add_seals(memory.raw(), SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE).unwrap();
    // SAFETY: the mapping has that many zeroed bytes and is never unmapped.
    let table = unsafe { EndTable::from_raw(mapping.leak()) };
    table.describe(std::process::id());
    (table, memory)
}

fn start_end(table: &EndTable, local: SocketAddr, peer: SocketAddr) -> u32 {
    let (end, _) = table.take(false).unwrap();
    table.end(end).start(Role::Connected);
    table.end(end).set_addresses(&local, &peer);
    end
}

#[test]
fn programs_and_their_ends_are_listed_with_reasons() {
    let daemon = Daemon::start(&["--ring-bytes", "65536"]);
    let (table, memory) = live_table();
    let client = Program::with_table(daemon.connect(), "client", memory);
    let server = daemon.program("server");
    let (connected, accepted) = tcp_pair("127.0.0.1:0");
    let (local, peer) = (
        connected.local_addr().unwrap(),
        connected.peer_addr().unwrap(),
    );
    let quiet = start_end(&table, SocketAddr::from(([1, 2, 3, 4], 5)), peer);
    let (young, _) = table.take(false).unwrap();
    table.end(young).start(Role::Accepted);
    let lonely = start_end(&table, local, SocketAddr::from(([5, 6, 7, 8], 9)));
    table.end(lonely).set_reason(Reason::Urgent);
    let known = start_end(&table, local, peer);
    table.end(known).mark_announced();
    client.announce_life(known, table.end(known).generation(), {
        connected.as_raw_fd()
    });
    client.settle();
    let waiting = daemon.status();
    let connections = waiting["processes"][0]["connections"].as_array().unwrap();
    assert_eq!(connections.len(), 4, "{waiting}");
    assert_eq!(connections[young as usize]["local"], "-");
    assert_eq!(connections[quiet as usize]["local"], "1.2.3.4:5");
    assert_eq!(
        connections[quiet as usize]["reason"],
        Reason::FewOperations.text()
    );
    assert_eq!(
        connections[lonely as usize]["reason"],
        Reason::Urgent.text()
    );
    assert_eq!(connections[known as usize]["state"], "tcp");
    assert_eq!(connections[known as usize]["reason"], Reason::NoPeer.text());
    server.announce(0, &accepted);
    server.lane();
    let matched = daemon.status();
    let processes = matched["processes"].as_array().unwrap();
    assert_eq!(
        (
            processes[0]["program"].as_str(),
            processes[1]["program"].as_str()
        ),
        (Some("client"), Some("server"))
    );
    let connection = &processes[0]["connections"][known as usize];
    assert_eq!(connection["peer_program"], "server");
    assert_eq!(connection["peer_pid"], std::process::id());
    // This program has no table to speak of, but has announced an end.
    let connection = &processes[1]["connections"][0];
    assert_eq!(connection["state"], "lane");
    assert_eq!(connection["local"], peer.to_string());
    assert_eq!(matched["ring_bytes"], 65536);
    assert_eq!(matched["lanes"]["in_use"], 1);
    assert_eq!(matched["counters"]["matches"], 1);
}

#[test]
fn an_end_that_was_closed_without_a_word_is_released() {
    let daemon = Daemon::start(&[]);
    let (table, memory) = live_table();
    let program = Program::with_table(daemon.connect(), "busy", memory);
    let pairs = [tcp_pair("127.0.0.1:0"), tcp_pair("127.0.0.1:0")];
    let [gone, open] = pairs.each_ref().map(|(connected, _)| {
        let local = connected.local_addr().unwrap();
        let end = start_end(&table, local, connected.peer_addr().unwrap());
        table.end(end).mark_announced();
        let generation = table.end(end).generation();
        program.announce_life(end, generation, connected.as_raw_fd());
        end
    });
    program.settle();
    let record = table.end(gone);
    record.finish(record.generation());
    let released = || daemon.status()["counters"]["ends_released"].as_u64();
    let deadline = Instant::now() + Duration::from_secs(60);
    while released() != Some(1) {
        assert!(Instant::now() < deadline, "{}", daemon.status());
        std::thread::sleep(Duration::from_millis(50));
    }
    // The other one gets its lane still.
    let record = table.end(open);
    let peer = daemon.program("peer");
    peer.announce(0, &pairs[1].1);
    assert_eq!(program.lane().0.generation, record.generation());
    peer.lane();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(released(), Some(1), "the peer has no table to speak of");
}

#[test]
fn a_table_that_forks_share_is_listed_once() {
    let daemon = Daemon::start(&[]);
    let (table, memory) = live_table();
    let address = SocketAddr::from(([1, 2, 3, 4], 5));
    start_end(&table, address, address);
    let copy = std::os::fd::AsFd::as_fd(&memory)
        .try_clone_to_owned()
        .unwrap();
    let parent = Program::with_table(daemon.connect(), "parent", memory);
    let _child = Program::with_table(daemon.connect(), "child", copy.into());
    let status = daemon.status();
    let processes = status["processes"].as_array().unwrap();
    assert_eq!(processes[0]["connections"].as_array().unwrap().len(), 1);
    assert_eq!(processes[1]["connections"].as_array().unwrap().len(), 0);
    assert_eq!(processes[1]["shares_with"], parent.id);
}

#[test]
fn a_table_full_of_garbage_lists_nothing_and_harms_nobody() {
    let daemon = Daemon::start(&[]);
    for start in [&b"SLUICEND"[..], b"garbage!"] {
        let memory = memfd::create(c"sluiced-test").unwrap();
        memfd::set_len(memory.raw(), 8 << 20).unwrap();
        memfd::write_at(memory.raw(), &vec![0xFF; 8 << 20], 0).unwrap();
        memfd::write_at(memory.raw(), start, 0).unwrap();
        // The right version, so that the records are read.
        memfd::write_at(memory.raw(), &VERSION.to_ne_bytes(), 8).unwrap();
        memfd::add_seals(memory.raw(), SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE).unwrap();
        let _liar = Program::with_table(daemon.connect(), "liar", memory);
        let status = daemon.status();
        let processes = status["processes"].as_array().unwrap();
        let connections = processes[0]["connections"].as_array().unwrap();
        assert!(connections.is_empty(), "{connections:?}");
    }
}

/// A forking server: the parent accepts, a child, which uses the parent's table, does the work.
#[test]
fn a_child_that_works_with_a_connection_lists_it_with_its_bytes() {
    let daemon = Daemon::start(&[]);
    let (table, memory) = live_table();
    let parent = Program::with_table(daemon.connect(), "parent", memory);
    let (connected, accepted) = tcp_pair("127.0.0.1:0");
    let local = accepted.local_addr().unwrap();
    let end = start_end(&table, local, accepted.peer_addr().unwrap());
    let (ours, theirs) = sluice_sys::unix::seqpacket_pair().unwrap();
    parent
        .client
        .send(&ToDaemon::Introduce, &[theirs.raw()])
        .unwrap();
    let child = Program::forked(Client::from_socket(ours), "child");
    table.end(end).mark_announced();
    child.announce_life(end, table.end(end).generation(), accepted.as_raw_fd());
    child.settle();
    let status = daemon.status();
    let [of_parent, of_child] = [0, 1].map(|at| {
        let process = &status["processes"][at];
        process["connections"].as_array().unwrap().len()
    });
    assert_eq!((of_parent, of_child), (0, 1), "{status}");
    // It has the record's numbers, not those of an end that is known by its announcement alone.
    let connection = &status["processes"][1]["connections"][0];
    assert_eq!(connection["local"], local.to_string());
    assert_eq!(connection["reason"], Reason::NoPeer.text());
    // The record is found when the parent has gone, too.
    drop(parent);
    let deadline = Instant::now() + Duration::from_secs(60);
    let one = loop {
        let status = daemon.status();
        if status["processes"].as_array().unwrap().len() == 1 {
            break status;
        }
        assert!(Instant::now() < deadline);
    };
    table.end(end).set_reason(Reason::Urgent);
    while daemon.status()["processes"][0]["connections"][0]["reason"] != Reason::Urgent.text() {
        assert!(Instant::now() < deadline, "{one}");
    }
    drop(connected);
}

/// Free records cost as much time to look at as used ones, and a program says how many it has.
#[test]
fn tables_that_claim_many_records_are_looked_at_in_part() {
    let daemon = Daemon::start(&[]);
    let sparse = || {
        let memory = memfd::create(c"sluiced-test").unwrap();
        memfd::set_len(memory.raw(), table_bytes() as u64).unwrap();
        let word = |at, bytes: &[u8]| memfd::write_at(memory.raw(), bytes, at).unwrap();
        word(0, &MAGIC.to_ne_bytes());
        word(8, &VERSION.to_ne_bytes());
        // The number of records that were ever used.
        word(24, &ENDS.to_ne_bytes());
        memfd::add_seals(memory.raw(), SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE).unwrap();
        memory
    };
    let _many: Vec<Program> = (0..8)
        .map(|number| Program::with_table(daemon.connect(), &format!("liar{number}"), sparse()))
        .collect();
    let status = daemon.status();
    assert_eq!(status["truncated"], true, "{status}");
    assert_eq!(status["processes"].as_array().unwrap().len(), 8);
}
