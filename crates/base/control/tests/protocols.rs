//! That docs/protocols.md has the messages as they are. A message that is added needs an arm here, and a row there.

use sluice_control::message::gateway::{Ask, Name, Ranges, Tell};
use sluice_control::message::{
    Announce, FromDaemon, Hello, Lane, MAGIC, MESSAGE_BYTES_MAX, ProgramName, Reason, Role,
    ToDaemon, VERSION,
};
use sluice_control::preface::{ANSWER_BYTES, Answer, Key, NOWHERE, PREFACE_BYTES};

const DOCUMENT: &str = include_str!("../../../../docs/protocols.md");

fn requests() -> Vec<ToDaemon> {
    let gateway = Name::new(b"gw").expect("a name");
    let (end, generation) = (1, 2);
    vec![
        ToDaemon::Hello(Hello {
            pid: 1,
            program: ProgramName::new(b"p"),
            flags: 0,
        }),
        ToDaemon::Introduce,
        ToDaemon::Announce(Announce {
            end,
            generation,
            role: Role::Connected,
        }),
        ToDaemon::Release { end, generation },
        ToDaemon::AskPeer { end, generation },
        ToDaemon::Ping,
        ToDaemon::Status,
        ToDaemon::Shutdown,
        ToDaemon::Gateway(Ask::Publish { gateway }),
        ToDaemon::Gateway(Ask::Serve),
        ToDaemon::Gateway(Ask::Opened {
            service: 1,
            errno: 2,
        }),
        ToDaemon::Gateway(Ask::Unreachable { backend: 1 }),
        ToDaemon::Gateway(Ask::Way { gateway }),
        ToDaemon::Gateway(Ask::Exit { exit: 1, port: 2 }),
        ToDaemon::Gateway(Ask::Drain {
            node: gateway,
            is_drained: true,
        }),
    ]
}

fn name_of_request(message: &ToDaemon) -> &'static str {
    match message {
        ToDaemon::Hello(_) => "hello",
        ToDaemon::Introduce => "introduce",
        ToDaemon::Announce(_) => "announce",
        ToDaemon::Release { .. } => "release",
        ToDaemon::AskPeer { .. } => "ask peer",
        ToDaemon::Ping => "ping",
        ToDaemon::Status => "status",
        ToDaemon::Shutdown => "shutdown",
        ToDaemon::Gateway(Ask::Publish { .. }) => "publish",
        ToDaemon::Gateway(Ask::Serve) => "serve",
        ToDaemon::Gateway(Ask::Opened { .. }) => "opened",
        ToDaemon::Gateway(Ask::Unreachable { .. }) => "unreachable",
        ToDaemon::Gateway(Ask::Way { .. }) => "way?",
        ToDaemon::Gateway(Ask::Exit { .. }) => "exit opened",
        ToDaemon::Gateway(Ask::Drain { .. }) => "drain",
    }
}

fn answers() -> Vec<FromDaemon> {
    let (key, none) = (Key([0; 32]), Ranges::new([]));
    let (end, generation) = (1, 2);
    vec![
        FromDaemon::Welcome {
            version: 1,
            client: 2,
        },
        FromDaemon::Refused {
            reason: Reason::Full,
        },
        FromDaemon::Lane(Lane {
            end,
            generation,
            chunk: 3,
            lane: 4,
            lanes: 5,
            ring_bytes: 4096,
            side: 0,
            has_chunk_fd: false,
            has_parking_fd: false,
            is_remote: false,
            is_direct: false,
            offset: 0,
            peer: 6,
            peer_pid: 7,
            cookie: 8,
        }),
        FromDaemon::NoPeer { end, generation },
        FromDaemon::PeerGone { peer: 1 },
        FromDaemon::Pong { pid: 1, clients: 2 },
        FromDaemon::Report { bytes: 1 },
        FromDaemon::Gateway(Tell::Published {
            errno: 0,
            key,
            sources: none,
        }),
        FromDaemon::Gateway(Tell::Open {
            service: 1,
            address: NOWHERE,
        }),
        FromDaemon::Gateway(Tell::Shut { service: 1 }),
        FromDaemon::Gateway(Tell::Backend {
            service: 1,
            backend: 2,
            target: NOWHERE,
            source: NOWHERE.ip(),
            key,
        }),
        FromDaemon::Gateway(Tell::BackendGone {
            service: 1,
            backend: 2,
        }),
        FromDaemon::Gateway(Tell::Way {
            errno: 0,
            address: NOWHERE,
            exit: 1,
            key,
            direct: none,
        }),
        FromDaemon::Gateway(Tell::Exit {
            exit: 1,
            address: NOWHERE.ip(),
            key,
            allowed: none,
            sources: none,
        }),
        FromDaemon::Gateway(Tell::ExitGone { exit: 1 }),
        FromDaemon::Gateway(Tell::Complete),
        FromDaemon::Gateway(Tell::Done { errno: 0 }),
    ]
}

fn name_of_answer(message: &FromDaemon) -> &'static str {
    match message {
        FromDaemon::Welcome { .. } => "welcome",
        FromDaemon::Refused { .. } => "refused",
        FromDaemon::Lane(_) => "lane",
        FromDaemon::NoPeer { .. } => "no peer",
        FromDaemon::PeerGone { .. } => "peer gone",
        FromDaemon::Pong { .. } => "pong",
        FromDaemon::Report { .. } => "report",
        FromDaemon::Gateway(Tell::Published { .. }) => "published",
        FromDaemon::Gateway(Tell::Open { .. }) => "open",
        FromDaemon::Gateway(Tell::Shut { .. }) => "shut",
        FromDaemon::Gateway(Tell::Backend { .. }) => "backend",
        FromDaemon::Gateway(Tell::BackendGone { .. }) => "backend gone",
        FromDaemon::Gateway(Tell::Way { .. }) => "way",
        FromDaemon::Gateway(Tell::Exit { .. }) => "exit",
        FromDaemon::Gateway(Tell::ExitGone { .. }) => "exit gone",
        FromDaemon::Gateway(Tell::Complete) => "complete",
        FromDaemon::Gateway(Tell::Done { .. }) => "done",
    }
}

/// The rows of the table whose second column has this head.
fn rows(head: &str) -> Vec<&'static str> {
    let head = format!("| kind | {head} |");
    let lines = DOCUMENT.lines().skip_while(|line| !line.starts_with(&head));
    let lines = lines.skip(2);
    lines.take_while(|line| line.starts_with('|')).collect()
}

#[test]
fn the_document_has_each_message_and_no_other() {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let check = |head: &str, messages: Vec<(&'static str, Vec<u8>)>| {
        let rows = rows(head);
        for (name, bytes) in &messages {
            let kind = u16::from_le_bytes([bytes[4], bytes[5]]);
            let row = format!("| {kind} | {name} | {} |", bytes.len());
            assert!(rows.iter().any(|it| it.starts_with(&row)), "no row {row}");
        }
        assert_eq!(rows.len(), messages.len(), "{head}");
    };
    let asked = requests()
        .iter()
        .map(|it| (name_of_request(it), it.encode(&mut buffer).to_vec()))
        .collect();
    check("to sluiced", asked);
    let told = answers()
        .iter()
        .map(|it| (name_of_answer(it), it.encode(&mut buffer).to_vec()))
        .collect();
    check("from sluiced", told);
}

#[test]
fn the_document_has_the_numbers_of_headers_and_prefaces() {
    for text in [
        format!("magic 16 (`0x{MAGIC:X}`), version 16 ({VERSION})"),
        format!("at most {MESSAGE_BYTES_MAX} bytes"),
        format!("a preface of {PREFACE_BYTES} bytes"),
        format!("answered by {ANSWER_BYTES} bytes"),
    ] {
        assert!(DOCUMENT.contains(&text), "the document lacks: {text}");
    }
    let answer = Answer {
        errno: 1,
        outside: NOWHERE,
    };
    assert_eq!(answer.encode().len(), ANSWER_BYTES);
}
