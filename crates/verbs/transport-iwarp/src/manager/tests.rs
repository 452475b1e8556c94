use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use super::*;
use crate::socket::Ready;

/// A listener, and somebody who has connected and said nothing yet.
struct Taken {
    manager: Manager,
    polls: Polls,
    peer: TcpStream,
    stream: u32,
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
    let address = lock(&manager.listeners)[&listener].local().unwrap();
    let peer = TcpStream::connect(address).unwrap();
    manager.came(&polls, ready(&polls, Kind::Listener));
    let stream = *lock(&manager.streams).keys().next().unwrap();
    Taken {
        manager,
        polls,
        peer,
        stream,
    }
}

/// Its thread stood still for longer than a peer may take, and the request came meanwhile.
#[test]
fn a_request_that_came_while_nobody_looked_is_taken() {
    let mut taken = taken();
    let parameters = ConnectionParameters {
        ird: 1,
        ord: 1,
        private_data: b"hello".to_vec(),
    };
    let wishes = taken.manager.wishes(&parameters);
    let request = emit(&iwarp::request(&wishes, &parameters.private_data)).unwrap();
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
