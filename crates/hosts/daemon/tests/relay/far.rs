//! Whoever connects to a relay, and what it connects to then.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sluice_daemon::capture::header::{ANSWER_BYTES, Answer, Between, HEADER_BYTES, Header, Secret};
use sluice_daemon::capture::orders::Order;

use crate::scene::{OWN, OWN_V6, PATIENCE, SECRET, Scene};

#[test]
fn a_proven_connection_reaches_the_program() {
    let Some(mut scene) = Scene::new("a_proven_connection_reaches_the_program", "") else {
        return;
    };
    for ip in [OWN, OWN_V6] {
        let listener = scene.listen(ip);
        let to = listener.local_addr().expect("a name");
        let (mut stream, answer) = scene.ask(to);
        assert_eq!(answer, Some(Answer::Connected));
        let (mut program, _) = listener.accept().expect("accepted");
        stream.write_all(b"question").expect("said");
        let mut question = [0; 8];
        program.read_exact(&mut question).expect("heard");
        assert_eq!(&question, b"question");
        program.write_all(b"answer").expect("said");
        drop(program);
        let mut all = String::new();
        stream.read_to_string(&mut all).expect("heard");
        assert_eq!(all, "answer");
    }
    scene.await_counts(|counts| counts.served == 2 && counts.served_open == 0);
    assert_eq!(scene.counts.refused, 0);
}

#[test]
fn who_proves_nothing_gets_no_answer() {
    let Some(mut scene) = Scene::new("who_proves_nothing_gets_no_answer", "") else {
        return;
    };
    let listener = scene.listen(OWN);
    let to = listener.local_addr().expect("a name");

    let header = scene.header(to);
    let (stream, between) = scene.connect(OWN);
    let mut forged = header.seal(&SECRET, &between);
    forged[18] ^= 1;
    scene.is_turned_away("forged", stream, &forged);

    let header = scene.header(to);
    let (stream, between) = scene.connect(OWN);
    let wrong = Secret {
        key: [8; 32],
        ..SECRET
    };
    scene.is_turned_away("a wrong key", stream, &header.seal(&wrong, &between));

    let header = Header {
        secret: 8,
        ..scene.header(to)
    };
    let (stream, between) = scene.connect(OWN);
    scene.is_turned_away("nobody's", stream, &header.seal(&SECRET, &between));

    // What was said on one connection is said on another.
    let header = scene.header(to);
    let (mut first, between) = scene.connect(OWN);
    let bytes = header.seal(&SECRET, &between);
    first.write_all(&bytes).expect("said");
    let mut answer = [0; ANSWER_BYTES];
    first.read_exact(&mut answer).expect("an answer");
    let (second, other) = scene.connect(OWN);
    scene.is_turned_away("on another connection", second, &bytes);
    // By whoever has the key, with a number that was there.
    let (third, _) = scene.connect(OWN);
    let other = Between {
        from: third.local_addr().expect("a name"),
        ..other
    };
    scene.is_turned_away("an old number", third, &header.seal(&SECRET, &other));

    // Whoever does not come to the end has his time, and no more.
    let header = scene.header(to);
    let (stream, between) = scene.connect(OWN);
    let half = header.seal(&SECRET, &between);
    scene.is_turned_away("half", stream, &half[..HEADER_BYTES / 2]);

    // The session is over.
    scene.order(&Order::Expel { secret: SECRET.id });
    let header = scene.header(to);
    let (stream, between) = scene.connect(OWN);
    scene.is_turned_away("too late", stream, &header.seal(&SECRET, &between));
    listener.set_nonblocking(true).expect("set");
    listener.accept().expect("the one that was let in");
    assert!(listener.accept().is_err(), "nobody else was");
}

#[test]
fn who_speaks_in_time_is_heard_by_a_relay_that_stands_still() {
    let test = "who_speaks_in_time_is_heard_by_a_relay_that_stands_still";
    let Some(mut scene) = Scene::new(test, "") else {
        return;
    };
    let listener = scene.listen(OWN);
    let to = listener.local_addr().expect("a name");
    loop {
        // Of the five seconds that it has.
        let in_time = Instant::now() + Duration::from_secs(4);
        let header = scene.header(to);
        let (mut stream, between) = scene.connect(OWN);
        // For the relay to accept it. Too short, this shows nothing; it cannot fail.
        std::thread::sleep(Duration::from_millis(50));
        scene.stand_still(in_time);
        let said = stream.write_all(&header.seal(&SECRET, &between));
        let is_in_time = Instant::now() < in_time;
        let mut answer = [0; ANSWER_BYTES];
        let answered = stream.read_exact(&mut answer);
        // Else it was this test that stood still.
        if is_in_time {
            said.and(answered).expect("an answer");
            let answer = Answer::open(&answer, &SECRET, header.number, &between);
            assert_eq!(answer, Some(Answer::Connected));
            break;
        }
    }
}

#[test]
fn a_relay_connects_to_its_own_host_only() {
    let test = "a_relay_connects_to_its_own_host_only";
    let Some(mut scene) = Scene::new(test, "serve_ports = \"10000-65535\"") else {
        return;
    };
    let loopback = scene.listen("127.0.0.1".parse().expect("one"));
    let loopback_v6 = scene.listen("::1".parse().expect("one"));
    let any = scene.listen("0.0.0.0".parse().expect("one"));
    let port = |listener: &TcpListener| listener.local_addr().expect("a name").port();
    let relay = scene.at(OWN).port();
    let closed = {
        let listener = scene.listen(OWN);
        port(&listener)
    };
    let to = |ip: &str, port: u16| SocketAddr::new(ip.parse().expect("an address"), port);
    let own = OWN.to_string();
    // A child that another test starts has the listener too, until it executes its program.
    let end = Instant::now() + PATIENCE;
    while scene.within(|| TcpStream::connect((OWN, closed))).is_ok() {
        assert!(Instant::now() < end, "it still listens");
    }
    for (what, to) in [
        ("loopback", to("127.0.0.1", port(&loopback))),
        ("more of loopback", to("127.7.7.7", port(&any))),
        ("loopback over IPv6", to("::1", port(&loopback_v6))),
        ("no address", to("0.0.0.0", port(&any))),
        ("another host", to("10.77.0.2", port(&any))),
        ("another host over IPv6", to("fd77::2", port(&any))),
        ("a group", to("224.0.0.1", port(&any))),
        ("a port that is not served", to(&own, 22)),
        ("itself", to(&own, relay)),
        ("nobody", to(&own, closed)),
        ("no port", to(&own, 0)),
    ] {
        let (mut stream, answer) = scene.ask(to);
        assert_eq!(answer, Some(Answer::Refused), "{what}");
        assert_eq!(stream.read(&mut [0; 1]).expect("the end"), 0, "{what}");
    }
    let (_stream, answer) = scene.ask(to(&own, port(&any)));
    assert_eq!(answer, Some(Answer::Connected));
    for listener in [&loopback, &loopback_v6] {
        listener.set_nonblocking(true).expect("set");
        assert!(listener.accept().is_err());
    }
    scene.await_counts(|counts| counts.refused == 11 && counts.served == 1);
}

#[test]
fn a_relay_that_is_left_alone_finishes_what_it_has() {
    let Some(mut scene) = Scene::new("a_relay_that_is_left_alone_finishes_what_it_has", "") else {
        return;
    };
    let listener = scene.listen(OWN);
    let to = listener.local_addr().expect("a name");
    let (mut stream, answer) = scene.ask(to);
    assert_eq!(answer, Some(Answer::Connected));
    let (mut program, _) = listener.accept().expect("accepted");
    // As when sluiced is killed.
    let (_, nobody) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("sockets");
    drop(std::mem::replace(&mut scene.orders, nobody));
    let at = scene.at(OWN);
    let end = Instant::now() + PATIENCE;
    let is_refused = || {
        let again = scene.within(|| TcpStream::connect(at));
        again.is_err()
    };
    while !is_refused() {
        assert!(Instant::now() < end, "it still listens");
    }
    stream.write_all(b"still here").expect("said");
    let mut words = [0; 10];
    program.read_exact(&mut words).expect("heard");
    assert_eq!(&words, b"still here");
    drop((stream, program));
    // And ends by itself, for which the scene waits.
    let thread = scene.thread.take().expect("once");
    thread.join().expect("ends well");
    scene.thread = Some(std::thread::spawn(|| {}));
}

#[test]
fn a_peer_is_let_in_however_many_strangers_say_nothing() {
    let test = "a_peer_is_let_in_however_many_strangers_say_nothing";
    let Some(mut scene) = Scene::new(test, "") else {
        return;
    };
    let listener = scene.listen(OWN);
    let to = listener.local_addr().expect("a name");
    // More than it hears at a time.
    let at = scene.at(OWN);
    let strangers: Vec<TcpStream> = scene.within(|| {
        let connect = |_| TcpStream::connect(at).expect("connected");
        (0..1100).map(connect).collect()
    });
    scene.await_counts(|counts| counts.refused > 0);
    let (_stream, answer) = scene.ask(to);
    assert_eq!(answer, Some(Answer::Connected));
    // Those who were left are turned away as well, in time.
    drop(listener);
    scene.await_counts(|counts| counts.refused == 1100);
    drop(strangers);
}
