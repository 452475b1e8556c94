use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use super::*;
use crate::socket::Ready;

/// A listener, and somebody who has connected and said nothing yet.
struct Taken {
    manager: Manager,
    polls: Polls,
    listener: u32,
    peer: TcpStream,
    stream: u32,
}

impl Taken {
    fn request(&self) -> Vec<u8> {
        let parameters = ConnectionParameters {
            ird: 1,
            ord: 1,
            private_data: b"hello".to_vec(),
        };
        let wishes = self.manager.wishes(&parameters);
        emit(&iwarp::request(&wishes, &parameters.private_data)).unwrap()
    }
}

/// Waits until something of the kind is ready; its number.
fn ready(polls: &Polls, kind: Kind) -> u32 {
    let mut all: Vec<Ready> = Vec::new();
    loop {
        for ready in polls.wait(&mut all, false, -1) {
            let (is, number) = parse(ready.token);
            if is == kind {
                return number;
            }
        }
    }
}

fn taken() -> Taken {
    let (manager, polls) = (Manager::new(false), Polls::new().unwrap());
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let listener = manager.listen(&polls, any, true).unwrap();
    let address = lock(&manager.listeners)[&listener].socket.local().unwrap();
    let peer = TcpStream::connect(address).unwrap();
    manager.came(&polls, ready(&polls, Kind::Listener));
    let stream = *lock(&manager.streams).keys().next().unwrap();
    Taken {
        manager,
        polls,
        listener,
        peer,
        stream,
    }
}

/// Its thread stood still for longer than a peer may take, and the request came meanwhile.
#[test]
fn a_request_that_came_while_nobody_looked_is_taken() {
    let mut taken = taken();
    let request = taken.request();
    taken.peer.write_all(&request).unwrap();
    let late = Instant::now() + 2 * REQUEST_WAIT;
    let again = taken.manager.expire(late);
    assert!(again.is_some_and(|again| again < late), "it looks at once");
    assert_eq!(ready(&taken.polls, Kind::Stream), taken.stream);
    taken.manager.ready(&taken.polls, taken.stream);
    taken.manager.expire(late);
    assert!(taken.manager.is_requested(taken.stream));
}

#[test]
fn who_says_nothing_is_left() {
    let mut taken = taken();
    let late = Instant::now() + 2 * REQUEST_WAIT;
    taken.manager.expire(late);
    assert_eq!(taken.manager.expire(late), None);
    assert_eq!(taken.peer.read(&mut [0; 8]).unwrap(), 0);
}

/// A listener with a connection that cannot be taken is ready without end: its thread is to sleep in between.
#[test]
fn a_listener_without_descriptors_rests_and_takes_the_connection_later() {
    let (manager, polls) = (Manager::new(false), Polls::new().unwrap());
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let listener = manager.listen(&polls, any, true).unwrap();
    let address = lock(&manager.listeners)[&listener].socket.local().unwrap();
    let _peer = TcpStream::connect(address).unwrap();
    assert_eq!(ready(&polls, Kind::Listener), listener);
    for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS] {
        let now = Instant::now();
        let fails = |_: &Socket| Err(io::Error::from_raw_os_error(errno));
        manager.take(&polls, listener, now, fails);
        let mut none = Vec::new();
        assert!(polls.wait(&mut none, true, 0).is_empty(), "{errno}");
        assert!(polls.wait(&mut none, false, 0).is_empty(), "{errno}");
        let until = manager.resume(&polls, now).unwrap();
        assert!(until > now);
        // Nobody else has to come for it to be looked at again.
        assert_eq!(manager.resume(&polls, until), None);
        assert_eq!(ready(&polls, Kind::Listener), listener);
    }
    manager.came(&polls, listener);
    assert_eq!(manager.count(), 1);
}

#[test]
fn who_connects_without_end_leaves_a_turn_to_others() {
    let (manager, polls) = (Manager::new(false), Polls::new().unwrap());
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let listener = manager.listen(&polls, any, true).unwrap();
    let address = lock(&manager.listeners)[&listener].socket.local().unwrap();
    let taken = core::cell::Cell::new(0);
    // As if another one had always connected and gone.
    let accept = |_: &Socket| {
        taken.set(taken.get() + 1);
        assert!(taken.get() <= ACCEPTS_MAX, "it takes them without end");
        Socket::connecting(address, address, 0)
    };
    manager.take(&polls, listener, Instant::now(), accept);
    assert!(taken.get() > 0);
}

/// Who says what he wants is served however many say nothing.
#[test]
fn of_those_who_say_nothing_the_oldest_gives_way() {
    let (manager, polls) = (Manager::new(false), Polls::new().unwrap());
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let listener = manager.listen(&polls, any, true).unwrap();
    let address = lock(&manager.listeners)[&listener].socket.local().unwrap();
    let began = Instant::now();
    let max = STRANGERS_MAX.min(descriptors_max() / STRANGERS_PART);
    let accept = |_: &Socket| Socket::connecting(address, address, 0);
    for turn in 0..3 * max.div_ceil(ACCEPTS_MAX) as u32 {
        let now = began + turn * Duration::from_millis(1);
        manager.take(&polls, listener, now, accept);
        let deadlines = lock(&manager.streams).values().map(|it| it.deadline).max();
        assert_eq!(
            deadlines.flatten(),
            Some(now + REQUEST_WAIT),
            "the last is there"
        );
        assert!(manager.count() <= max);
    }
    assert_eq!(manager.count(), max);
}

/// A peer that has sent nothing, or half of its request, gets the end of the stream when the listener ends. An event of
/// the kernel that comes later changes nothing.
#[test]
fn a_listener_goes_while_a_connection_waits_for_its_request() {
    for half in [false, true] {
        let mut taken = taken();
        let request = taken.request();
        if half {
            taken.peer.write_all(&request[..9]).unwrap();
            assert_eq!(ready(&taken.polls, Kind::Stream), taken.stream);
            taken.manager.ready(&taken.polls, taken.stream);
        }
        taken.manager.end_listening(taken.listener);
        assert_eq!(taken.manager.count(), 0);
        assert_eq!(taken.peer.read(&mut [0; 8]).unwrap(), 0);
        taken.manager.ready(&taken.polls, taken.stream);
        taken.manager.came(&taken.polls, taken.listener);
        taken.manager.end_listening(taken.listener);
        assert!(!taken.manager.is_requested(taken.stream));
        assert_eq!(taken.manager.count(), 0);
    }
}

/// Connections of another listener stay, and so do requests that the program knows of.
#[test]
fn a_listener_goes_while_the_program_has_a_request() {
    let mut taken = taken();
    taken.peer.write_all(&taken.request()).unwrap();
    assert_eq!(ready(&taken.polls, Kind::Stream), taken.stream);
    taken.manager.end_listening(taken.listener + 1);
    assert_eq!(taken.manager.count(), 1);
    taken.manager.ready(&taken.polls, taken.stream);
    taken.manager.end_listening(taken.listener);
    assert!(taken.manager.is_requested(taken.stream));
    let parameters = ConnectionParameters::default();
    let accepted = taken
        .manager
        .accept(&taken.polls, taken.stream, &parameters);
    assert!(accepted.is_ok_and(|made| made.is_none()));
    let mut reply = [0; Startup::BYTES_MAX];
    let bytes = taken.peer.read(&mut reply).unwrap();
    assert!(matches!(arrived(Role::Reply, &reply[..bytes]), Ok(Some(_))));
}
