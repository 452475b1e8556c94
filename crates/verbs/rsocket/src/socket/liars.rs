//! A peer that does not keep to the protocol while it connects.

use libc::{EAGAIN, ECONNRESET, EINPROGRESS, EPIPE, EPROTO, MSG_DONTWAIT, sockaddr_in};

use std::net::Ipv4Addr;
use std::thread;

use super::*;
use crate::api::riomap;
use crate::options::rfcntl;
use crate::stream::liars::{SMALL, be_honest, say, with};
use crate::tests::{
    self, accept, connect, listener, new_socket, receive, receive_exactly, send, wait,
};
use crate::wire::{Buffer, Message};
use crate::{Kind, find, insert};
use sluice_rdmacm::c_address;

type Lie = fn(ConnData) -> Vec<u8>;

/// Private data that is not an rsocket's.
const IMPOSSIBLE: [(&str, Lie); 12] = [
    ("nothing", |_| Vec::new()),
    ("one byte", |data| data.emit()[..1].to_vec()),
    // Behind what is sent there are zeros, so up to here the table has no length.
    ("23 bytes", |data| data.emit()[..23].to_vec()),
    ("zeros", |_| vec![0; CONN_DATA_LEN]),
    ("another version", |data| with_byte(data, 0, 2)),
    ("the other byte order", |data| {
        with_byte(data, 1, data.emit()[1] ^ 1)
    }),
    ("no table", |data| with_table(data, 0, 0)),
    ("a table of one", |data| with_table(data, 0, 1)),
    ("a table of three", |data| with_table(data, 0, 3)),
    ("a table of 4 GiB", |data| with_table(data, 0, u32::MAX)),
    ("a table beyond the end", |data| {
        with_table(data, u64::MAX - 30, 2)
    }),
    ("a buffer beyond the end", |data| {
        let addr = u64::MAX - 2000;
        let first = Buffer { addr, ..data.first };
        ConnData { first, ..data }.emit().to_vec()
    }),
];

fn with_byte(data: ConnData, at: usize, byte: u8) -> Vec<u8> {
    let mut bytes = data.emit().to_vec();
    bytes[at] = byte;
    bytes
}

fn with_table(data: ConnData, addr: u64, length: u32) -> Vec<u8> {
    let key = data.table.key;
    let table = Buffer { addr, key, length };
    ConnData { table, ..data }.emit().to_vec()
}

fn socket_of(fd: RawFd) -> Arc<Socket> {
    match find(fd) {
        Some(Kind::Stream(socket)) => socket,
        _ => panic!("a stream"),
    }
}

/// From here on the calls know it.
fn in_table(liar: Arc<Socket>) -> tests::Socket {
    let fd = liar.fd();
    insert(fd, Kind::Stream(liar));
    tests::Socket(fd)
}

/// The next event of the connection manager.
fn next(liar: &Socket) -> u32 {
    let event = events::next(&liar.channel.channel).expect("it comes");
    event.owner.done();
    event.c.event
}

/// A client that asks for a connection with these bytes of private data.
fn ask(server: &sockaddr_in, data: impl FnOnce(ConnData) -> Vec<u8>) -> Arc<Socket> {
    let liar = Socket::new(libc::AF_INET).unwrap();
    // SAFETY: the address lives through the call.
    let address = unsafe { c_address::read((&raw const *server).cast()) }.unwrap();
    let mut state = liar.lock();
    let key = state.key();
    agent().unwrap().resolve_addr(key, None, address).unwrap();
    assert_eq!(next(&liar), EventKind::AddrResolved as u32);
    agent().unwrap().resolve_route(key).unwrap();
    assert_eq!(next(&liar), EventKind::RouteResolved as u32);
    state.open().unwrap();
    let data = data(state.stream.as_ref().unwrap().conn_data());
    let param = conn_param(&data);
    // SAFETY: the identifier is the socket's, and `param` lives through the call.
    unsafe { cm_calls::connect(state.id, &raw const param) }.unwrap();
    drop(state);
    liar
}

fn honest(data: ConnData) -> Vec<u8> {
    data.emit().to_vec()
}

/// Takes the answer and connects the queue pair. `agent.ready` would tell the peer.
fn connect_silently(liar: Arc<Socket>) -> tests::Socket {
    let reply = liar.channel.channel.next().expect("it comes");
    let Body::Connection { private, .. } = &reply.body else {
        panic!("{reply:?}");
    };
    let mut state = liar.lock();
    // SAFETY: the identifier is the socket's.
    qp::connect_qp(unsafe { Id::of(state.id) }).unwrap();
    let peer = ConnData::parse(private.as_slice()).expect("the server is honest");
    state.stream.as_mut().unwrap().connected(&peer);
    state.phase = Phase::Connected;
    drop(state);
    in_table(liar)
}

fn key_of(liar: &tests::Socket) -> sluice_rdmacm::channel::Key {
    socket_of(liar.0).lock().key()
}

/// A client that lies, and the socket that accepts it.
fn lied_to(lie: Lie) -> (tests::Socket, tests::Socket) {
    let (listener, address) = listener(SMALL, Ipv4Addr::LOCALHOST);
    let liar = ask(&address, lie);
    let victim = accept(listener.0).expect("nothing is wrong yet");
    let liar = connect_silently(liar);
    agent().unwrap().ready(key_of(&liar)).unwrap();
    (liar, victim)
}

/// A server that answers the next request with these bytes of private data.
fn answer(listener: &tests::Socket, data: impl FnOnce(ConnData) -> Vec<u8>) -> tests::Socket {
    let listener = socket_of(listener.0);
    let event = events::next(&listener.channel.channel).unwrap();
    assert_eq!(event.c.event, EventKind::ConnectRequest as u32);
    let id = event.c.id;
    // SAFETY: the identifier has type RC, so these are the parameters, with so many bytes of private data.
    let peer = unsafe {
        let conn = event.c.param.conn;
        let len = usize::from(conn.private_data_len);
        std::slice::from_raw_parts(conn.private_data.cast(), len)
    };
    let peer = ConnData::parse(peer).expect("the client is honest");
    event.owner.done();
    let mut channel = ChannelObject::new().unwrap();
    // SAFETY: the event brought the identifier, and nobody else knows it.
    unsafe { cm_calls::migrate(id, &raw mut channel.c) }.unwrap();
    let sizes = listener.lock().sizes;
    let liar = Socket::with(listener.domain, channel, id, sizes);
    let mut state = liar.lock();
    state.open().unwrap();
    let stream = state.stream.as_mut().unwrap();
    stream.connected(&peer);
    let data = data(stream.conn_data());
    let param = conn_param(&data);
    // SAFETY: the identifier is the request's, and `param` lives through the call.
    unsafe { cm_calls::accept(id, &raw const param) }.unwrap();
    state.phase = Phase::Connected;
    drop(state);
    in_table(liar)
}

#[test]
fn requests_that_cannot_be_are_refused_and_the_next_one_is_accepted() {
    let (listener, address) = listener(SMALL, Ipv4Addr::LOCALHOST);
    let fd = listener.0;
    let acceptor = thread::spawn(move || accept(fd));
    for (name, lie) in IMPOSSIBLE {
        let liar = ask(&address, lie);
        assert_eq!(next(&liar), EventKind::Rejected as u32, "{name}");
    }
    let client = new_socket(SMALL);
    assert_eq!(connect(&client, &address), Ok(()));
    be_honest((client, acceptor.join().unwrap().unwrap()));
}

#[test]
fn a_request_that_was_withdrawn_is_passed_over() {
    let (listener, address) = listener(SMALL, Ipv4Addr::LOCALHOST);
    let channel = Arc::clone(&socket_of(listener.0).channel.channel);
    let liar = ask(&address, honest);
    // The request, and then its end.
    for events in 1..=2 {
        while channel.count(|_| true) < events {
            thread::yield_now();
        }
        if events == 1 {
            agent().unwrap().destroy(liar.lock().key());
        }
    }
    let client = thread::spawn(move || {
        let client = new_socket(SMALL);
        assert_eq!(connect(&client, &address), Ok(()));
        client
    });
    let server = accept(listener.0).unwrap();
    be_honest((client.join().unwrap(), server));
}

#[test]
fn answers_that_cannot_be_fail_the_connection() {
    let beside = tests::pair(SMALL);
    for (name, lie) in IMPOSSIBLE {
        let (listener, address) = listener(SMALL, Ipv4Addr::LOCALHOST);
        let client = connecting(&address);
        let liar = answer(&listener, lie);
        // It has come when the client looks at the answer.
        say(&liar, Message::Data(100).emit());
        let ready = wait(&client, libc::POLLIN);
        let end = libc::POLLIN | libc::POLLHUP | libc::POLLERR;
        assert_eq!(ready, end, "{name}");
        assert_eq!(receive(&client, 1, 0), Err(EPROTO), "{name}");
        assert_eq!(receive(&client, 1, 0), Ok(Vec::new()), "{name}");
        assert_eq!(send(&client, b"x", 0), Err(EPIPE), "{name}");
        drop(client);
        assert_eq!(wait(&liar, 0), libc::POLLHUP, "{name}");
    }
    be_honest(beside);
}

/// A client that waits for its answer and does not look.
fn connecting(server: &sockaddr_in) -> tests::Socket {
    let client = new_socket(SMALL);
    assert_eq!(rfcntl(client.0, libc::F_SETFL, libc::O_NONBLOCK.into()), 0);
    assert_eq!(connect(&client, server), Err(EINPROGRESS));
    client
}

#[test]
fn what_a_server_says_before_the_client_is_connected_waits() {
    let (listener, address) = listener(SMALL, Ipv4Addr::LOCALHOST);
    let client = connecting(&address);
    let server = answer(&listener, honest);
    assert_eq!(send(&server, b"early", 0), Ok(5));
    assert_eq!(receive_exactly(&client, 5), b"early");
    be_honest((client, server));

    let client = connecting(&address);
    let liar = answer(&listener, honest);
    say(&liar, 1 << 29);
    assert_eq!(receive(&client, 1, 0), Err(EPROTO));
    assert_eq!(send(&client, b"x", 0), Err(EPIPE));
}

#[test]
fn a_client_that_never_says_that_it_is_connected_may_speak_and_leave() {
    let (listener, address) = listener(SMALL, Ipv4Addr::LOCALHOST);
    for words in [&[][..], &[Message::Data(0).emit()], &[1 << 29]] {
        let liar = ask(&address, honest);
        let victim = accept(listener.0).unwrap();
        let liar = connect_silently(liar);
        for word in words {
            say(&liar, *word);
        }
        if words == [1 << 29] {
            assert_eq!(receive(&victim, 1, 0), Err(EPROTO));
            continue;
        }
        assert_eq!(send(&liar, b"early", 0), Ok(5));
        assert_eq!(receive_exactly(&victim, 5), b"early");
        assert_eq!(send(&victim, b"late", 0), Ok(4));
        assert_eq!(receive_exactly(&liar, 4), b"late");
        agent().unwrap().give_up(key_of(&liar)).unwrap();
        assert_eq!(receive(&victim, 1, 0), Err(ECONNRESET));
        assert_eq!(send(&victim, b"x", 0), Err(EPIPE));
    }
}

#[test]
fn who_offers_no_buffer_is_waited_for() {
    // Behind the table's length there are zeros.
    let (liar, victim) = lied_to(|data| data.emit()[..24].to_vec());
    assert_eq!(send(&victim, b"x", MSG_DONTWAIT), Err(EAGAIN));
    // With its first bytes it offers one.
    assert_eq!(send(&liar, b"hello", 0), Ok(5));
    assert_eq!(receive_exactly(&victim, 5), b"hello");
    assert_eq!(wait(&victim, libc::POLLOUT), libc::POLLOUT);
    assert_eq!(send(&victim, b"x", 0), Ok(1));
    assert_eq!(receive_exactly(&liar, 1).len(), 1);
}

#[test]
fn who_has_no_receives_cannot_grant_any() {
    let (liar, victim) = lied_to(|data| {
        let first = Buffer {
            length: 0,
            ..data.first
        };
        ConnData {
            credits: 0,
            first,
            ..data
        }
        .emit()
        .to_vec()
    });
    say(&liar, Message::KeepAlive.emit());
    assert_eq!(send(&victim, b"x", MSG_DONTWAIT), Err(EAGAIN));
    // An honest grant, after that lie.
    with(&liar, Stream::progress);
    assert_eq!(receive(&victim, 1, 0), Err(EPROTO));
    assert_eq!(send(&victim, b"x", 0), Err(EPIPE));
}

#[test]
fn buffers_that_are_not_the_peers_end_the_stream() {
    let beside = tests::pair(SMALL);
    let lies: [Lie; 3] = [
        |data| {
            with_first(
                data,
                Buffer {
                    length: u32::MAX,
                    ..data.first
                },
            )
        },
        |data| {
            with_first(
                data,
                Buffer {
                    key: !data.first.key,
                    ..data.first
                },
            )
        },
        |data| {
            with_first(
                data,
                Buffer {
                    addr: 8,
                    length: u32::MAX,
                    ..data.first
                },
            )
        },
    ];
    for lie in lies {
        let (_liar, victim) = lied_to(lie);
        let end = loop {
            match send(&victim, &[7; 512], MSG_DONTWAIT) {
                Ok(_) => {}
                Err(EAGAIN) => thread::yield_now(),
                Err(error) => break error,
            }
        };
        assert_eq!(end, EPIPE);
        assert_eq!(receive(&victim, 1, 0), Err(ECONNRESET));
    }
    be_honest(beside);
}

fn with_first(data: ConnData, first: Buffer) -> Vec<u8> {
    ConnData { first, ..data }.emit().to_vec()
}

#[test]
fn mappings_that_the_peer_has_no_room_for_end_the_stream() {
    let (_liar, victim) = lied_to(|data| {
        let iomap_count = u8::MAX;
        ConnData {
            iomap_count,
            ..data
        }
        .emit()
        .to_vec()
    });
    let mut mapped = vec![0_u8; 256];
    let mut map = |at: usize| {
        let buffer = (&raw mut mapped[at]).cast();
        // SAFETY: the byte lives longer than the socket.
        unsafe { riomap(victim.0, buffer, 1, libc::PROT_WRITE, 0, -1) }
    };
    for at in 0..255 {
        assert!(map(at) > 0, "{at}");
    }
    assert_eq!((map(255), errno()), (-1, libc::ENOBUFS));
    let end = loop {
        match send(&victim, b"after the mappings", MSG_DONTWAIT) {
            Ok(_) | Err(EAGAIN) => thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert_eq!(end, EPIPE);
    drop(victim);
}
