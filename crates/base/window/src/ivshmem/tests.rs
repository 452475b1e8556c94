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

#[test]
fn a_server_that_lies_is_an_error() {
    let lies: [&[i64]; 5] = [&[1], &[0, 1 << 20], &[0, -5], &[0, 3, 4], &[0]];
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
