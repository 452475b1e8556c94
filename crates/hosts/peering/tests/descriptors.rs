//! No descriptor left. Alone in its process, whose limit it changes.

use std::net::TcpStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

mod common;

use common::{DISCOVERY, Lab, address, run};

fn limit(descriptors: Option<u64>) {
    let current = descriptors.or(getrlimit(Resource::Nofile).current);
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

#[test]
fn a_connection_waits_until_there_is_a_descriptor_and_nobody_spins() {
    let lab = Lab::new();
    let mut alpha = lab.node(
        "alpha",
        address(),
        &format!("{}{DISCOVERY}", lab.psk("key")),
    );
    alpha.turn();
    let before = getrlimit(Resource::Nofile).current;
    let _client = TcpStream::connect(alpha.listens_at()).unwrap();
    // The last packet of the handshake may come to the listener behind its client's return.
    let patience = Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::from_borrowed_fd(alpha.get().fd(), PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&patience)), Ok(1));
    limit(Some(0));
    alpha.turn();
    assert_eq!(alpha.get().counters().accepted, 0);
    limit(before);
    // It is still there, but does not keep the thread awake.
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::from_borrowed_fd(alpha.get().fd(), PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&at_once)), Ok(0));
    assert!(alpha.get().next_deadline().is_some());
    alpha.wait(Duration::from_secs(1));
    run([&mut alpha], "the connection", |[alpha]| {
        alpha.get().counters().accepted == 1
    });
}
