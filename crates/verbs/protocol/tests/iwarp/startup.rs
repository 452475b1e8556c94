//! Agreeing on a connection.

use sluice_protocol::iwarp::{
    self, First, Obstacle, Rtr, Settings, Wishes, accept, acceptable, arrived, established,
};
use sluice_wire::iwarp::terminate::Mpa;
use sluice_wire::iwarp::{Cause, Enhanced, Error, Revision, Role, Startup};

use super::harness::meet;

const WISHES: Wishes = Wishes {
    crc: false,
    ird: 8,
    ird_max: 16,
    ord: 4,
    peer_to_peer: true,
    long_frames: false,
};

#[test]
fn the_smaller_numbers_count() {
    let other = Wishes {
        ird: 2,
        ord: 30,
        ..WISHES
    };
    let [a, b] = meet([WISHES, other]);
    assert_eq!((a.ord, b.ird), (2, 2));
    assert_eq!((a.ird, b.ord), (8, 8));
}

#[test]
fn either_end_can_have_crcs() {
    for (one, two) in [(false, false), (false, true), (true, false), (true, true)] {
        let wishes = [one, two].map(|crc| Wishes { crc, ..WISHES });
        let [a, b] = meet(wishes);
        assert_eq!((a.crc, b.crc), (one || two, one || two));
    }
}

#[test]
fn whoever_offers_an_rtr_sends_it() {
    let [a, b] = meet([WISHES, WISHES]);
    assert_eq!(a.first, First::Own(Some(Rtr::Write)));
    assert_eq!(b.first, First::Peer);
    let plain = Wishes {
        peer_to_peer: false,
        ..WISHES
    };
    assert_eq!(meet([plain, WISHES])[0].first, First::Own(None));
}

fn enhanced(ird: u16, ord: u16) -> Enhanced {
    Enhanced {
        ird,
        ord,
        peer_to_peer: true,
        empty_rtr: false,
        write_rtr: false,
        read_rtr: false,
    }
}

fn frame(role: Role, revision: Revision) -> Startup<'static> {
    Startup {
        role,
        markers: false,
        crc: false,
        reject: false,
        long_frames: false,
        revision,
        private_data: &[],
    }
}

fn reply(enhanced: Enhanced) -> Startup<'static> {
    frame(Role::Reply, Revision::Two(Some(enhanced)))
}

/// The responder's choice of what is offered, and that it is one.
#[test]
fn one_rtr_is_chosen() {
    for bits in 0..8 {
        let asked = Enhanced {
            empty_rtr: bits & 1 != 0,
            write_rtr: bits & 2 != 0,
            read_rtr: bits & 4 != 0,
            ..enhanced(1, 1)
        };
        let request = frame(Role::Request, Revision::Two(Some(asked)));
        let (reply, _) = accept(&request, &WISHES, &[]);
        let Revision::Two(Some(said)) = reply.revision else {
            panic!("the same revision");
        };
        assert!(said.peer_to_peer);
        let chosen = [said.empty_rtr, said.write_rtr, said.read_rtr];
        assert_eq!(chosen.iter().filter(|chosen| **chosen).count(), 1);
        if bits != 0 {
            let offered = [asked.empty_rtr, asked.write_rtr, asked.read_rtr];
            assert!(
                chosen
                    .iter()
                    .zip(offered)
                    .all(|(chosen, offered)| !chosen || offered)
            );
        }
    }
}

#[test]
fn a_responder_may_ask_for_more_reads_than_was_offered() {
    let said = Enhanced {
        write_rtr: true,
        ..enhanced(4, 16)
    };
    assert_eq!(established(&WISHES, &reply(said)).unwrap().ird, 16);
    let said = Enhanced { ord: 17, ..said };
    let obstacle = established(&WISHES, &reply(said)).unwrap_err();
    assert_eq!(obstacle, Obstacle::InsufficientIrd);
    assert_eq!(obstacle.cause(), Some(Cause::Mpa(Mpa::InsufficientIrd)));
    // Or not say.
    let said = Enhanced {
        ird: Enhanced::UNSPECIFIED,
        ord: Enhanced::UNSPECIFIED,
        ..said
    };
    let settings = established(&WISHES, &reply(said)).unwrap();
    assert_eq!((settings.ird, settings.ord), (8, 4));
}

#[test]
fn an_rtr_that_was_not_offered() {
    let said = Enhanced {
        empty_rtr: true,
        ..enhanced(4, 4)
    };
    assert_eq!(established(&WISHES, &reply(said)), Err(Obstacle::NoRtr));
}

/// RFC 5044 alone: numbers of READs are the programs' own.
#[test]
fn the_first_revision() {
    let request = frame(Role::Request, Revision::One);
    let (answer, settings) = accept(&request, &WISHES, b"hi");
    assert_eq!(answer.revision, Revision::One);
    let wanted = Settings {
        crc: false,
        ird: 8,
        ord: 4,
        first: First::Peer,
        long_frames: false,
    };
    assert_eq!(settings, wanted);
    let settings = established(&WISHES, &answer).unwrap();
    assert_eq!(settings.first, First::Own(None));
    assert_eq!((settings.ird, settings.ord), (8, 4));
}

#[test]
fn refusals() {
    let markers = Startup {
        markers: true,
        ..frame(Role::Request, Revision::One)
    };
    assert_eq!(acceptable(&markers), Err(Obstacle::Markers));
    let no = iwarp::reject(&markers, b"no");
    assert!(no.reject && !no.markers);
    assert_eq!(established(&WISHES, &no), Err(Obstacle::Rejected));
    let markers = Startup {
        markers: true,
        ..reply(enhanced(1, 1))
    };
    assert_eq!(established(&WISHES, &markers), Err(Obstacle::Markers));
}

#[test]
fn garbage_and_pieces() {
    let mut buffer = [0; Startup::BYTES_MAX];
    let used = iwarp::request(&WISHES, b"hello").emit(&mut buffer).unwrap();
    for cut in 0..used {
        assert_eq!(arrived(Role::Request, &buffer[..cut]), Ok(None));
    }
    assert!(arrived(Role::Request, &buffer[..used]).unwrap().is_some());
    // "MPA ID Re" begins both.
    for cut in 10..used {
        let wrong = arrived(Role::Reply, &buffer[..cut]);
        assert_eq!(wrong, Err(Obstacle::Frame(Error::Key)));
    }
    assert_eq!(
        arrived(Role::Request, b"GET / HTTP/1.1"),
        Err(Obstacle::Frame(Error::Key))
    );
}
