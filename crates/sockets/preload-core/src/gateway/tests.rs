use super::daemon::testing::Daemon;
use super::*;
use sluice_control::message::gateway::{Range, Ranges};
use sluice_control::preface::Key;
use std::io::{Read, Write};
use std::net::Ipv6Addr;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};

const KEY: Key = Key([4; 32]);
/// Nobody stands still for so long.
const LONG: Duration = Duration::from_secs(60);

fn preface_of(client: &str) -> Preface {
    Preface {
        kind: Kind::Client,
        client: client.parse().unwrap(),
        outside: "192.0.2.1:80".parse().unwrap(),
        exit: 0,
    }
}

/// A listener that counts as published, with this host as the gateway.
fn listener(address: &str) -> TcpListener {
    let listener = TcpListener::bind(address).unwrap();
    client_addresses::init();
    listeners::init();
    let everybody = Range {
        first: Ipv6Addr::UNSPECIFIED,
        prefix: 0,
    };
    let known = Known::Published(Listener {
        key: KEY,
        sources: Ranges::new([everybody]),
    });
    listeners::put(tcp::cookie(listener.as_raw_fd()).unwrap(), known);
    listener
}

fn connect(listener: &TcpListener, key: &Key, preface: &Preface) -> TcpStream {
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let carrier = Carrier {
        from: stream.local_addr().unwrap(),
        to: stream.peer_addr().unwrap(),
    };
    stream.write_all(&preface.encode(key, &carrier)).unwrap();
    stream
}

fn accepted(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    let mut address = [0_u64; 4];
    let mut len = size_of_val(&address) as socklen_t;
    let out = address.as_mut_ptr().cast();
    // SAFETY: room and its length; the descriptor is new.
    let fd = unsafe { accept(listener.as_raw_fd(), out, &raw mut len, libc::SOCK_CLOEXEC) };
    assert!(fd >= 0);
    let bytes: Vec<u8> = address.iter().flat_map(|word| word.to_ne_bytes()).collect();
    // SAFETY: nobody else has it.
    let stream = unsafe { TcpStream::from_raw_fd(fd) };
    (stream, tcp::parse_address(&bytes[..len as usize]).unwrap())
}

fn names(stream: &TcpStream) -> (SocketAddr, SocketAddr) {
    let addresses = client_addresses::get(stream.as_raw_fd()).unwrap();
    (addresses.client, addresses.outside)
}

#[test]
fn the_client_is_seen_and_its_bytes_follow() {
    for (at, client) in [
        ("127.0.0.1:0", "203.0.113.5:77"),
        ("[::1]:0", "[2001:db8::5]:77"),
    ] {
        let listener = listener(at);
        let mut outside = connect(&listener, &KEY, &preface_of(client));
        outside.write_all(b"hello").unwrap();
        let (mut stream, from) = accepted(&listener);
        assert_eq!(from, client.parse().unwrap());
        assert_eq!(names(&stream), (from, "192.0.2.1:80".parse().unwrap()));
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
        // The number's next life is another socket's.
        let fd = stream.as_raw_fd();
        // SAFETY: both are this test's.
        assert_eq!(unsafe { libc::dup2(listener.as_raw_fd(), fd) }, fd);
        assert_eq!(client_addresses::get(fd), None);
    }
}

/// Between the kernel's answer and the look at the addresses, or long ago: the gateway's address is not the client's.
#[test]
fn a_connection_that_was_reset_is_still_its_clients() {
    let listener = listener("127.0.0.1:0");
    let outside = connect(&listener, &KEY, &preface_of("203.0.113.5:77"));
    let (stream, _) = accepted(&listener);
    let before = names(&stream);
    unix::reset_at_close(outside.as_raw_fd()).unwrap();
    drop(outside);
    while stream.peer_addr().is_ok() {
        std::thread::yield_now();
    }
    assert_eq!(names(&stream), before);
}

/// A health check of a load balancer: the program reads nothing of what the gateway has said.
#[test]
fn a_connection_that_was_reset_before_it_was_accepted_is_still_its_clients() {
    let listener = listener("127.0.0.1:0");
    let outside = connect(&listener, &KEY, &preface_of("203.0.113.5:77"));
    unix::reset_at_close(outside.as_raw_fd()).unwrap();
    drop(outside);
    let (mut stream, from) = accepted(&listener);
    assert_eq!(from, "203.0.113.5:77".parse().unwrap());
    let error = stream.read(&mut [0; 100]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

/// All connections out have the same peer.
#[test]
fn a_number_that_names_another_socket_has_no_client_addresses() {
    client_addresses::init();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let streams = [
        connect_by_loopback(&listener),
        connect_by_loopback(&listener),
    ];
    let addresses = ClientAddresses {
        carrier: listener.local_addr().unwrap(),
        client: "203.0.113.5:77".parse().unwrap(),
        outside: "192.0.2.1:80".parse().unwrap(),
    };
    let [first, second] = streams.each_ref().map(|stream| stream.as_raw_fd());
    set_client_addresses(first, &addresses);
    duplicated(first, first);
    assert_eq!(client_addresses::get(first), Some(addresses));
    // The number changes by no way that anybody hears of.
    // SAFETY: both are this test's.
    assert_eq!(unsafe { libc::dup2(second, first) }, first);
    assert_eq!(client_addresses::get(first), None);
}

#[test]
fn who_comes_past_the_gateway_is_left_alone() {
    let listener = listener("127.0.0.1:0");
    let mut direct = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    direct.write_all(b"GET /").unwrap();
    let (mut stream, from) = accepted(&listener);
    assert_eq!(from, direct.local_addr().unwrap());
    let mut bytes = [0; 5];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"GET /");
}

/// A preface in two pieces is waited for asleep, and the socket is the program's as it was.
#[test]
fn the_rest_of_a_preface_is_not_polled_for() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut outside = connect_by_loopback(&listener);
    let (mut inside, from) = listener.accept().unwrap();
    let fd = inside.as_raw_fd();
    let to = listener.local_addr().unwrap();
    let whole = preface_of("203.0.113.5:77").encode(&KEY, &Carrier { from, to });
    outside.write_all(&whole[..1]).unwrap();
    std::thread::scope(|scope| {
        let mut bytes = [0; PREFACE_BYTES];
        let waiting = scope.spawn(move || await_preface(fd, &mut bytes, LONG).map(|()| bytes));
        while low_water(fd) != Some(PREFACE_BYTES as c_int) {
            assert!(!waiting.is_finished(), "it did not wait");
            std::thread::yield_now();
        }
        assert_eq!(unix::wait_readable(fd, 0), Ok(false));
        outside.write_all(&whole[1..]).unwrap();
        assert!(waiting.join().unwrap().is_ok_and(|bytes| bytes == whole));
    });
    assert_eq!(low_water(fd), Some(1));
    let mut bytes = [0; PREFACE_BYTES];
    inside.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, whole);
}

#[test]
fn forged_replayed_and_unfinished_prefaces_are_reset_and_the_next_is_served() {
    let listener = listener("127.0.0.1:0");
    let mut bad = vec![connect(
        &listener,
        &Key([5; 32]),
        &preface_of("203.0.113.5:77"),
    )];
    // What was right on another connection.
    let mut replayed = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let carrier = Carrier {
        from: "127.0.0.1:1".parse().unwrap(),
        to: listener.local_addr().unwrap(),
    };
    let bytes = preface_of("203.0.113.5:77").encode(&KEY, &carrier);
    replayed.write_all(&bytes).unwrap();
    bad.push(replayed);
    let mut unfinished = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    unfinished.write_all(&bytes[..20]).unwrap();
    bad.push(unfinished);
    // Says nothing at all.
    bad.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
    let to_gateway = Preface {
        kind: Kind::Destination,
        ..preface_of("203.0.113.5:77")
    };
    bad.push(connect(&listener, &KEY, &to_gateway));
    let good = connect(&listener, &KEY, &preface_of("203.0.113.6:78"));
    let (_stream, from) = accepted(&listener);
    assert_eq!(from, "203.0.113.6:78".parse().unwrap());
    for mut stream in bad {
        let error = stream.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    drop(good);
}

#[test]
fn an_ipv4_client_of_an_ipv6_socket_is_mapped() {
    let listener = listener("[::]:0");
    let port = listener.local_addr().unwrap().port();
    let mut outside = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let carrier = Carrier {
        from: outside.local_addr().unwrap(),
        to: outside.peer_addr().unwrap(),
    };
    let bytes = preface_of("203.0.113.5:77").encode(&KEY, &carrier);
    outside.write_all(&bytes).unwrap();
    let mut address = [0_u8; 28];
    let mut len = 28;
    let out = address.as_mut_ptr().cast();
    // SAFETY: room and its length.
    let fd = unsafe { accept(listener.as_raw_fd(), out, &raw mut len, 0) };
    assert_eq!(len, 28);
    assert_eq!(address[..2], (libc::AF_INET6 as u16).to_ne_bytes());
    assert_eq!(address[18..24], [0xff, 0xff, 203, 0, 113, 5]);
    unix::close(fd).unwrap();
}

/// A listener that came through exec, as one of a program with an earlier key.
fn inherited() -> TcpListener {
    client_addresses::init();
    listeners::init();
    TcpListener::bind("0.0.0.0:0").unwrap()
}

fn connect_by_loopback(listener: &TcpListener) -> TcpStream {
    TcpStream::connect(("127.0.0.1", listener.local_addr().unwrap().port())).unwrap()
}

fn published(errno: u16) -> Tell {
    let everybody = Range {
        first: Ipv6Addr::UNSPECIFIED,
        prefix: 0,
    };
    Tell::Published {
        errno,
        key: KEY,
        sources: Ranges::new([everybody]),
    }
}

/// Connects and says for whom.
fn gateway_connects(listener: &TcpListener) -> TcpStream {
    let mut stream = connect_by_loopback(listener);
    let carrier = Carrier {
        from: stream.local_addr().unwrap(),
        to: stream.peer_addr().unwrap(),
    };
    let bytes = preface_of("203.0.113.5:77").encode(&KEY, &carrier);
    stream.write_all(&bytes).unwrap();
    stream
}

#[test]
fn nobody_is_asked_about_a_client_that_comes_past_the_gateway_and_speaks() {
    let daemon = Daemon::new();
    let listener = inherited();
    let mut speaks = connect_by_loopback(&listener);
    speaks.write_all(b"GET /").unwrap();
    assert_eq!(accepted(&listener).1, speaks.local_addr().unwrap());
    assert_eq!(daemon.asked(), 0);
}

/// haproxy and nginx set `TCP_DEFER_ACCEPT` of a listener that they take over to 0.
#[test]
fn a_connection_of_an_inherited_listener_is_asked_about_before_it_says_anything() {
    let daemon = Daemon::answering();
    let listener = inherited();
    std::thread::scope(|scope| {
        let mut outside = connect_by_loopback(&listener);
        let asking = scope.spawn(|| accepted(&listener));
        daemon.answer(published(0));
        let carrier = Carrier {
            from: outside.local_addr().unwrap(),
            to: outside.peer_addr().unwrap(),
        };
        let bytes = preface_of("203.0.113.5:77").encode(&KEY, &carrier);
        outside.write_all(&bytes).unwrap();
        let (_stream, from) = asking.join().unwrap();
        assert_eq!(from, "203.0.113.5:77".parse().unwrap());
    });
}

#[test]
fn a_listener_that_came_through_exec_is_asked_about_once() {
    let daemon = Daemon::answering();
    let listener = inherited();
    std::thread::scope(|scope| {
        let outside = [gateway_connects(&listener), gateway_connects(&listener)];
        let asking = scope.spawn(|| [accepted(&listener), accepted(&listener)]);
        daemon.answer(published(0));
        for (_stream, from) in asking.join().unwrap() {
            assert_eq!(from, "203.0.113.5:77".parse().unwrap());
        }
        drop(outside);
    });
    assert_eq!(daemon.asked(), 0);
}

#[test]
fn a_daemon_that_does_not_answer_holds_up_one_accept() {
    let daemon = Daemon::new();
    let listeners = [inherited(), inherited()];
    for listener in &listeners {
        let refused: Vec<_> = (0..3).map(|_| gateway_connects(listener)).collect();
        let mut direct = connect_by_loopback(listener);
        direct.write_all(b"GET /").unwrap();
        assert_eq!(accepted(listener).1, direct.local_addr().unwrap());
        for mut stream in refused {
            let error = stream.read(&mut [0; 1]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
    }
    assert_eq!(daemon.asked(), 1);
}

#[test]
fn what_is_refused_is_not_asked_for_at_each_accept() {
    let daemon = Daemon::answering();
    let listener = inherited();
    std::thread::scope(|scope| {
        let refused: Vec<_> = (0..3).map(|_| gateway_connects(&listener)).collect();
        let mut direct = connect_by_loopback(&listener);
        direct.write_all(b"GET /").unwrap();
        let asking = scope.spawn(|| accepted(&listener).1);
        daemon.answer(published(libc::EACCES as u16));
        assert_eq!(asking.join().unwrap(), direct.local_addr().unwrap());
        drop(refused);
    });
    assert_eq!(daemon.asked(), 0);
}

#[test]
fn a_socket_that_listened_without_a_daemon_is_published_when_there_is_one() {
    let daemon = Daemon::answering();
    let listener = inherited();
    let cookie = tcp::cookie(listener.as_raw_fd()).unwrap();
    let not = Known::Not {
        again_at_ns: 0,
        is_wanted: true,
    };
    listeners::put(cookie, not);
    std::thread::scope(|scope| {
        let mut direct = connect_by_loopback(&listener);
        direct.write_all(b"GET /").unwrap();
        let asking = scope.spawn(|| accepted(&listener).1);
        daemon.answer(published(0));
        assert_eq!(asking.join().unwrap(), direct.local_addr().unwrap());
    });
    let known = listeners::find(cookie);
    assert!(matches!(known, Some(Known::Published(_))), "{known:?}");
}
