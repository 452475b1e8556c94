//! Those that are asked for a connection, and answer what they like.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use sluice_verbs::iw_cm::Event;
use sluice_wire::iwarp::{Enhanced, Kind, Revision, Role, Segment, Startup};

use crate::peer::{Heard, Host, Liar, is_over, parameters, read, write};

fn reply(change: impl FnOnce(&mut Startup<'static>)) -> Vec<u8> {
    let mut startup = Startup {
        role: Role::Reply,
        markers: false,
        crc: false,
        reject: false,
        long_frames: true,
        revision: Revision::Two(Some(Enhanced {
            ird: 4,
            ord: 4,
            peer_to_peer: true,
            empty_rtr: false,
            write_rtr: true,
            read_rtr: false,
        })),
        private_data: b"",
    };
    change(&mut startup);
    let mut bytes = vec![0; Startup::BYTES_MAX];
    let used = startup.emit(&mut bytes).unwrap();
    bytes.truncate(used);
    bytes
}

/// What the host makes of this answer; and who gave it.
fn answered(host: &Host, answer: &[u8]) -> (u32, Event, Liar) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let stream = host.cm().connect(from, to, 0, &parameters()).unwrap();
    let (mut tcp, _) = listener.accept().unwrap();
    let mut asked = [0; Startup::BYTES_MAX];
    assert!(tcp.read(&mut asked).unwrap() >= Startup::HEADER_BYTES);
    tcp.write_all(answer).unwrap();
    let liar = Liar::on(tcp);
    if answer.len() < Startup::HEADER_BYTES {
        liar.tcp.shutdown(std::net::Shutdown::Write).unwrap();
    }
    let (of, event) = host.event();
    assert_eq!(of, stream);
    (stream, event, liar)
}

#[test]
fn answers_that_are_none() {
    let host = Host::new(false);
    let right = reply(|_| ());
    let mut longer = right.clone();
    // More private data than there can be.
    longer[18..20].copy_from_slice(&u16::MAX.to_be_bytes());
    let mut request = right.clone();
    request[..16].copy_from_slice(b"MPA ID Req Frame");
    for answer in [
        b"".to_vec(),
        right[..7].to_vec(),
        vec![0xff; 64],
        longer,
        request,
        reply(|startup| startup.markers = true),
        // More READs at a time than anybody could take.
        reply(|startup| {
            if let Revision::Two(Some(said)) = &mut startup.revision {
                said.ord = Enhanced::UNSPECIFIED - 1;
            }
        }),
        // A first message that was not offered.
        reply(|startup| {
            if let Revision::Two(Some(said)) = &mut startup.revision {
                (said.write_rtr, said.empty_rtr) = (false, true);
            }
        }),
    ] {
        let (_, event, _liar) = answered(&host, &answer);
        assert!(matches!(event, Event::Failed(_)), "{event:?} of {answer:?}");
    }
    // The host is none the worse for it.
    let (end, mut liar) = host.join();
    liar.fetches(1, &end, 0, 1000);
}

/// A right answer with bytes behind it that are no frame.
#[test]
fn what_follows_an_answer_at_once() {
    let host = Host::new(false);
    let mut answer = reply(|_| ());
    answer.extend([0xf0; 300]);
    let (stream, event, mut liar) = answered(&host, &answer);
    assert!(matches!(event, Event::Accepted(_)), "{event:?}");
    let end = host.end(stream);
    let heard = liar.hears();
    assert!(matches!(heard, Heard::Told(_)), "{heard:?}");
    is_over(&end);
}

/// A responder that sends before the initiator has: RFC 5044 forbids it, and who does so is understood.
#[test]
fn who_speaks_too_early_is_understood() {
    let host = Host::new(false);
    let answer = reply(|_| ());
    let (stream, event, mut liar) = answered(&host, &answer);
    assert!(matches!(event, Event::Accepted(_)), "{event:?}");
    let end = host.end(stream);
    liar.sends(&[read(1, end.mr.rkey(), crate::peer::address(&end, 0), 0)]);
    // The host's first message, and the answer.
    let first = liar.next_of_any().unwrap().unwrap();
    assert_eq!(first, write(0, 0, &[]));
    let second = liar.next().unwrap().unwrap();
    let kind = Segment::parse(&second).unwrap().header().kind;
    assert!(matches!(kind, Kind::ReadResponse(_)), "{kind:?}");
}
