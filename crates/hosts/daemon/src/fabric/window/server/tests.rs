//! Time is the tests'; what a server says has come when it is looked at.

use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};

use super::super::fake::{self, Fake, MEMORY};
use super::*;

/// The next thing that becomes of it, when its time has come.
fn next(server: &mut Server, now: &mut Instant) -> Option<Event> {
    *now = server.next_deadline().expect("it is looked at again");
    server.turn(*now)
}

/// Looks until something has become of it.
fn until_event(server: &mut Server, now: &mut Instant) -> Event {
    for _ in 0..1000 {
        if let Some(event) = next(server, now) {
            return event;
        }
    }
    panic!("nothing becomes of it");
}

/// Milliseconds until the next attempt.
fn pause_ms(server: &Server, now: Instant) -> u128 {
    let due = server.next_deadline().expect("an attempt");
    due.duration_since(now).as_millis()
}

fn is_file(memory: &Fd, other: &Fd) -> bool {
    let inode = |fd: &Fd| sluice_sys::memfd::stat(fd.raw()).expect("a file").inode;
    inode(memory) == inode(other)
}

#[test]
fn a_server_that_is_not_there_is_asked_for_less_and_less_often() {
    let path = fake::path();
    let mut now = Instant::now();
    let mut server = Server::new(&path, now);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        assert!(matches!(
            next(&mut server, &mut now),
            Some(Event::Failed(_))
        ));
        assert_eq!(server.state(), "no server");
        pauses.push(pause_ms(&server, now));
    }
    assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 8000, 8000]);
    // Before its time it is not looked at.
    let mut there = Fake::at(&path);
    assert!(server.turn(now).is_none());
    let memory = fake::memory();
    assert!(next(&mut server, &mut now).is_none());
    there.serve(&memory);
    let Some(Event::Memory(given, Origin::Server)) = next(&mut server, &mut now) else {
        panic!("it has given its memory");
    };
    assert!(is_file(&given, &memory));
    assert_eq!(server.state(), "served");
}

#[test]
fn a_server_that_goes_is_seen_and_the_next_one_joined() {
    let path = fake::path();
    let mut now = Instant::now();
    let mut server = Server::new(&path, now);
    for _ in 0..3 {
        let mut there = Fake::at(&path);
        let memory = fake::memory();
        assert!(next(&mut server, &mut now).is_none());
        there.serve(&memory);
        let Event::Memory(given, _) = until_event(&mut server, &mut now) else {
            panic!("it has given its memory");
        };
        assert!(is_file(&given, &memory));
        let joined = now;
        while now < joined + 2 * STEADY {
            assert!(next(&mut server, &mut now).is_none(), "it is there");
        }
        drop(there);
        let before = now;
        assert!(matches!(until_event(&mut server, &mut now), Event::Gone(_)));
        assert!(now <= before + 2 * LOOK_MAX);
        assert_eq!(pause_ms(&server, now), 250, "it was there for long");
    }
}

#[test]
fn a_server_that_comes_and_goes_is_joined_less_and_less_often() {
    let path = fake::path();
    let mut now = Instant::now();
    let mut server = Server::new(&path, now);
    let memory = fake::memory();
    let mut there = Fake::at(&path);
    let mut pauses = Vec::new();
    for _ in 0..7 {
        assert!(next(&mut server, &mut now).is_none());
        there.serve(&memory);
        assert!(matches!(
            until_event(&mut server, &mut now),
            Event::Memory(..)
        ));
        there.hang_up();
        assert!(matches!(until_event(&mut server, &mut now), Event::Gone(_)));
        pauses.push(pause_ms(&server, now));
    }
    assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 8000]);
}

#[test]
fn memory_that_is_refused_is_asked_for_again_later() {
    let path = fake::path();
    let mut now = Instant::now();
    let mut server = Server::new(&path, now);
    let mut there = Fake::at(&path);
    let memory = fake::memory();
    for pause in [250, 500, 1000] {
        assert!(next(&mut server, &mut now).is_none());
        there.serve(&memory);
        assert!(matches!(
            until_event(&mut server, &mut now),
            Event::Memory(..)
        ));
        server.refuse(now);
        assert_eq!(pause_ms(&server, now), pause);
    }
}

#[test]
fn a_server_that_stops_in_its_greeting_holds_nobody_up() {
    for words in 0..3 {
        let path = fake::path();
        let begun = Instant::now();
        let mut now = begun;
        let mut server = Server::new(&path, now);
        let mut there = Fake::at(&path);
        assert!(next(&mut server, &mut now).is_none());
        assert!(there.is_asked());
        for number in [0, 3].into_iter().take(words) {
            there.say(number, &[]);
        }
        let mut looks = 0;
        let event = loop {
            looks += 1;
            if let Some(event) = next(&mut server, &mut now) {
                break event;
            }
        };
        assert!(matches!(event, Event::Failed(_)), "{event:?}");
        assert_eq!(now, begun + GREETING);
        assert!(looks < 40, "{looks}");
    }
}

#[test]
fn a_server_that_lies_is_left() {
    let memory = fake::memory();
    let fd = memory.raw();
    let lies: [&[(i64, &[RawFd])]; 7] = [
        &[(1, &[])],
        &[(i64::MIN, &[])],
        &[(0, &[fd])],
        &[(0, &[]), (i64::MAX, &[])],
        &[(0, &[]), (3, &[fd])],
        &[(0, &[]), (3, &[]), (4, &[fd])],
        &[(0, &[]), (3, &[]), (MEMORY, &[])],
    ];
    for lie in lies {
        let path = fake::path();
        let mut now = Instant::now();
        let mut server = Server::new(&path, now);
        let mut there = Fake::at(&path);
        assert!(next(&mut server, &mut now).is_none());
        assert!(there.is_asked());
        for (number, fds) in lie {
            there.say(*number, fds);
        }
        assert!(
            matches!(next(&mut server, &mut now), Some(Event::Failed(_))),
            "{lie:?}"
        );
        assert_eq!(pause_ms(&server, now), 250);
    }
}

/// What it says of peers is read in pieces, none of which takes long, and without keeping a descriptor.
#[test]
fn a_server_that_never_stops_talking_is_heard_in_pieces() {
    let path = fake::path();
    let mut now = Instant::now();
    let mut server = Server::new(&path, now);
    let mut there = Fake::at(&path);
    let memory = fake::memory();
    assert!(next(&mut server, &mut now).is_none());
    there.serve(&memory);
    assert!(matches!(
        until_event(&mut server, &mut now),
        Event::Memory(..)
    ));
    there.stream().set_nonblocking(true).expect("a socket");
    assert!(next(&mut server, &mut now).is_none());
    for _ in 0..50 {
        let raw = there.stream().as_raw_fd();
        while sluice_sys::unix::send_with_fds(raw, &[7; 8], &[memory.raw()]).is_ok() {}
        while there.stream().write(&[0; 4096]).is_ok() {}
        let before = now;
        assert!(next(&mut server, &mut now).is_none());
        assert!(now > before);
        assert_eq!(pause_ms(&server, now), LOOK.as_millis());
    }
    // Once it is silent, it is looked at as rarely as ever.
    let rarely = 2 * LOOK_MAX.as_millis();
    while pause_ms(&server, now) < rarely {
        assert!(next(&mut server, &mut now).is_none());
    }
}

#[test]
fn a_file_or_device_is_opened_once() {
    let memory = fake::memory();
    let path = PathBuf::from(format!("/proc/self/fd/{}", memory.raw()));
    let now = Instant::now();
    let mut server = Server::new(&path, now);
    let Some(Event::Memory(given, Origin::Path)) = server.turn(now) else {
        panic!("the file is there");
    };
    assert!(is_file(&given, &memory));
    assert_eq!((server.next_deadline(), server.state()), (None, "device"));
    assert!(server.turn(now + STEADY).is_none());
    // Unless it is of no use.
    server.refuse(now);
    assert_eq!(pause_ms(&server, now), 250);
}
