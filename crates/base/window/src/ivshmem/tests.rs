use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

const VECTORS: u32 = 3;
const BYTES: u64 = 1 << 16;

/// A server in a thread of its own, until it is dropped.
struct Running {
    path: PathBuf,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    counts: mpsc::Receiver<usize>,
}

impl Running {
    fn new(name: &str) -> Running {
        let path =
            std::env::temp_dir().join(format!("sluice-ivshmem-{}-{name}", std::process::id()));
        let memory = sluice_sys::memfd::create(c"ivshmem-test").unwrap();
        sluice_sys::memfd::set_len(memory.raw(), BYTES).unwrap();
        let mut server = Server::new(&path, OwnedFd::from(memory), VECTORS).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let (count, counts) = mpsc::channel();
        let thread = thread::spawn(move || {
            use std::os::fd::AsFd;
            let report = |peers| count.send(peers).unwrap_or(());
            server.run(stopped.as_fd(), report).unwrap();
        });
        Running {
            path,
            stop: Some(stop),
            thread: Some(thread),
            counts,
        }
    }

    /// Waits until there are so many peers.
    fn wait_for(&self, peers: usize) {
        while self.counts.recv_timeout(Duration::from_secs(120)).unwrap() != peers {}
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            ended.unwrap().unwrap();
            assert!(!self.path.exists());
        }
    }
}

/// Takes changes until `until` holds.
fn follow(client: &mut Client, until: impl Fn(&Client, Option<Change>) -> bool) {
    let start = Instant::now();
    let mut last = None;
    while !until(client, last) {
        assert!(start.elapsed() < Duration::from_secs(120));
        last = client.change().unwrap();
        if last.is_none() {
            thread::yield_now();
        }
    }
}

fn has_all_bells(client: &Client, peer: u16) -> bool {
    client.bell(peer, VECTORS as usize - 1).is_some()
}

fn is_readable(fd: std::os::fd::BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut polled, Some(&now)).unwrap() == 1
}

#[test]
fn peers_share_memory_ring_each_other_and_hear_of_an_end() {
    let server = Running::new("peers");
    let mut first = Client::connect(&server.path).unwrap();
    let mut second = Client::connect(&server.path).unwrap();
    assert_ne!(first.number(), second.number());
    let (one, two) = (first.number(), second.number());
    for client in [&mut first, &mut second] {
        follow(client, |client, _| {
            has_all_bells(client, one) && has_all_bells(client, two)
        });
    }
    sluice_sys::memfd::write_at(first.memory().as_raw_fd(), b"window", 8).unwrap();
    let mut bytes = [0; 6];
    sluice_sys::memfd::read_at(second.memory().as_raw_fd(), &mut bytes, 8).unwrap();
    assert_eq!(&bytes, b"window");

    let own = second.bell(two, 1).unwrap();
    assert!(!is_readable(own));
    sluice_sys::wake::ring(first.bell(two, 1).unwrap().as_raw_fd());
    assert!(is_readable(own));
    assert!(!is_readable(second.bell(two, 0).unwrap()));

    drop(second);
    follow(&mut first, |_, change| change == Some(Change::Gone(two)));
    assert!(first.bell(two, 0).is_none());
    // The number is free again.
    let third = Client::connect(&server.path).unwrap();
    assert_eq!(third.number(), two);
}

#[test]
fn a_peer_that_speaks_is_turned_out_and_the_others_stay() {
    let server = Running::new("speaks");
    let first = Client::connect(&server.path).unwrap();
    server.wait_for(1);
    let mut stranger = UnixStream::connect(&server.path).unwrap();
    server.wait_for(2);
    stranger.write_all(&[0; 8]).unwrap();
    server.wait_for(1);
    let mut second = Client::connect(&server.path).unwrap();
    let one = first.number();
    follow(&mut second, |client, _| has_all_bells(client, one));
}

/// More strangers than there are places, none of which reads anything.
#[test]
fn a_full_server_hangs_up_and_has_room_again() {
    let server = Running::new("full");
    let silent: Vec<UnixStream> = (0..PEERS_MAX + 10)
        .map(|_| UnixStream::connect(&server.path).unwrap())
        .collect();
    server.wait_for(PEERS_MAX);
    assert!(matches!(
        Client::connect(&server.path),
        Err(ClientError::Gone)
    ));
    drop(silent);
    server.wait_for(0);
    let mut client = Client::connect(&server.path).unwrap();
    let number = client.number();
    follow(&mut client, |client, _| has_all_bells(client, number));
}

#[test]
fn one_server_at_a_socket_and_a_dead_ones_socket_is_taken() {
    let server = Running::new("taken");
    let memory = || OwnedFd::from(sluice_sys::memfd::create(c"ivshmem-test").unwrap());
    assert!(matches!(
        Server::new(&server.path, memory(), 1),
        Err(ServerError::Taken(_))
    ));
    let left = server.path.with_extension("left");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    drop(Server::new(&left, memory(), 1).unwrap());
    assert!(!left.exists());
    for vectors in [0, VECTORS_MAX + 1] {
        assert!(matches!(
            Server::new(&left, memory(), vectors),
            Err(ServerError::Vectors(_))
        ));
    }
}

/// A client that only watches reads what the server says of others, keeps none of their doorbells, and sees the end.
#[test]
fn a_client_that_watches_is_kept_and_sees_the_server_go() {
    let server = Running::new("watches");
    let (memory, presence) = Client::connect(&server.path).unwrap().into_memory();
    server.wait_for(1);
    // Each that comes and goes is four messages, and a peer may leave 4096 unread.
    for _ in 0..1200 {
        let client = Client::connect(&server.path).unwrap();
        server.wait_for(2);
        drop(client);
        server.wait_for(1);
        presence.check(usize::MAX).unwrap();
    }
    let stat = sluice_sys::memfd::stat(memory.as_raw_fd()).unwrap();
    assert_eq!(stat.bytes, BYTES);
    drop(server);
    assert!(matches!(presence.check(usize::MAX), Err(ClientError::Gone)));
}

#[test]
fn a_greeting_never_waits_for_a_server() {
    let name = format!("sluice-ivshmem-{}-greeting", std::process::id());
    let path = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&path);
    assert!(matches!(
        Greeting::begin(&path),
        Err(ClientError::Connect(..))
    ));
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mut greeting = Greeting::begin(&path).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    // One message at a time, each of them complete.
    for number in [VERSION, 3] {
        let Ok(Greeted::Waits(next)) = greeting.advance() else {
            panic!("the server has not said all of it");
        };
        greeting = next;
        stream.write_all(&number.to_le_bytes()).unwrap();
    }
    let Ok(Greeted::Waits(greeting)) = greeting.advance() else {
        panic!("the server has not given its memory");
    };
    // A piece of a message.
    stream.write_all(&[0; 3]).unwrap();
    assert!(matches!(greeting.advance(), Err(ClientError::Protocol(_))));
    // A server that accepts nobody, and has few places for those who wait.
    rustix::net::listen(&listener, 1).unwrap();
    let mut waiting = Vec::new();
    let full = loop {
        match Greeting::begin(&path) {
            Ok(greeting) => waiting.push(greeting),
            Err(error) => break error,
        }
    };
    let is_full = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    assert!(
        matches!(&full, ClientError::Connect(_, error) if is_full(error)),
        "{full}"
    );
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_server_that_lies_is_an_error() {
    let lies: [&[i64]; 6] = [
        &[1],
        &[0, 1 << 20],
        &[0, -5],
        &[0, 3, 4],
        &[0, 3, MEMORY],
        &[0],
    ];
    for (index, lie) in lies.iter().enumerate() {
        let name = format!("sluice-ivshmem-{}-lie{index}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let numbers = lie.to_vec();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for number in numbers {
                // The client may have gone after the first lie.
                let _ = stream.write_all(&number.to_le_bytes());
            }
        });
        assert!(Client::connect(&path).is_err(), "{lie:?}");
        server.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
