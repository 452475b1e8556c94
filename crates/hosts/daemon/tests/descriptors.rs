//! Descriptors that stop whoever closes them, or looks at them. A client sends them in every way that
//! there is; others are served as before, sluiced ends when it is told to, and nothing stays.

mod common;
#[path = "common/fuse.rs"]
mod fuse;

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use common::{Daemon, PATIENCE, Program, Scratch, skip, tcp_pair, wait_for};
use fuse::Fuse;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use sluice_control::client::Client;
use sluice_control::message::{Announce, MESSAGE_BYTES_MAX, Role, ToDaemon};
use sluice_sys::unix::{send_with_fds, seqpacket_pair};

const ATTACKER: u32 = 4321;
const VICTIM: u32 = 4322;

fn connect_as(daemon: &Daemon, uid: u32) -> Client {
    let connect = || {
        let uid = Uid::from_raw(uid);
        set_thread_res_uid(uid, uid, uid).unwrap();
        daemon.connect()
    };
    thread::scope(|scope| scope.spawn(connect).join().unwrap())
}

/// Its close takes an hour, as its peer reads nothing.
fn lingering() -> (OwnedFd, TcpStream) {
    let (mut socket, peer) = tcp_pair("127.0.0.1:0");
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 65_536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
    (socket.into(), peer)
}

/// A socket that nobody can ask anything: a thread sends from a page that does not come, which holds
/// its lock.
fn locked(fuse: &Fuse) -> (OwnedFd, TcpStream) {
    let (socket, peer) = tcp_pair("127.0.0.1:0");
    let (mut sender, page) = (socket.try_clone().unwrap(), fuse.page());
    let (said, id) = std::sync::mpsc::channel();
    let sending = thread::spawn(move || {
        let _ = said.send(rustix::thread::gettid());
        let _ = sender.write(page);
    });
    let status = format!(
        "/proc/self/task/{}/status",
        id.recv().unwrap().as_raw_nonzero()
    );
    // It waits for nothing before.
    wait_for("a thread that sleeps in the kernel", || {
        let status = fs::read_to_string(&status).unwrap_or_default();
        status.contains("State:\tS") || status.contains("State:\tD")
    });
    assert!(!sending.is_finished());
    (socket.into(), peer)
}

/// A Unix socket with `inner` in its queue, in flight only.
fn nested(inner: OwnedFd) -> OwnedFd {
    let (a, b) = seqpacket_pair().unwrap();
    send_with_fds(a.raw(), b"x", &[inner.as_raw_fd()]).unwrap();
    drop(inner);
    b.into()
}

fn announce(end: u32) -> ToDaemon {
    ToDaemon::Announce(Announce {
        end,
        generation: 1,
        role: Role::Connected,
    })
}

/// What a client does with a descriptor.
type Way<'a> = &'a dyn Fn(&Client, RawFd);

/// Everything that a client can do with a descriptor. What it can send is sent as the last copy,
/// unless its close would stop this test: then it is forgotten.
fn send_in_every_way(daemon: &Daemon, make: &dyn Fn() -> OwnedFd, has_to_stay: bool) {
    let (tcp, _peer) = tcp_pair("127.0.0.1:0");
    let tcp = tcp.as_raw_fd();
    let ways: [Way<'_>; 6] = [
        &|client, fd| client.send(&ToDaemon::Ping, &[fd]).unwrap(),
        &|client, fd| client.send(&announce(1), &[tcp, fd]).unwrap(),
        &|client, fd| client.send(&announce(1), &[fd]).unwrap(),
        &|client, fd| client.send(&ToDaemon::Introduce, &[fd]).unwrap(),
        // Never read: the first message is none, and ends the connection.
        &|client, fd| {
            send_with_fds(client.raw(), b"garbage", &[]).unwrap();
            let mut buffer = [0; MESSAGE_BYTES_MAX];
            let ping = ToDaemon::Ping.encode(&mut buffer);
            let _ = send_with_fds(client.raw(), ping, &[fd]);
        },
        // Or before anything is known of the client.
        &|client, fd| {
            let _ = send_with_fds(client.raw(), b"garbage", &[fd]);
        },
    ];
    for (number, way) in ways.iter().enumerate() {
        println!("way {number}");
        // Nobody receives before the last copy here is closed.
        daemon.stop();
        let client = connect_as(daemon, ATTACKER);
        if number != 5 {
            say_hello(&client);
        }
        let fd = make();
        way(&client, fd.as_raw_fd());
        if has_to_stay {
            std::mem::forget(fd);
        } else {
            drop(fd);
        }
        daemon.go_on();
    }
}

/// Without waiting for an answer, which a client whose user's process stands still does not get.
fn say_hello(client: &Client) {
    let (event_flag, parking, table) =
        (common::event_flag(), common::parking(), common::end_table());
    let fds = [event_flag.raw(), parking.raw(), table.raw()];
    client.send(&common::hello("attacker"), &fds).unwrap();
}

/// When a process was started, in ticks (proc_pid_stat(5)); with its number that names it. `None`: it has ended,
/// whether somebody has waited for it or not.
fn start_of(pid: u32) -> Option<String> {
    let stat = common::stat_of(pid)?;
    (stat.first()? != "Z").then(|| stat.get(19).cloned())?
}

fn assert_serves_others(daemon: &Daemon) {
    assert!(daemon.ping().is_ok());
    let programs = [(); 2].map(|()| Program::introduce_as(connect_as(daemon, VICTIM), "victim"));
    let pair = tcp_pair("127.0.0.1:0");
    programs[0].announce(0, &pair.0);
    programs[1].announce(0, &pair.1);
    programs[0].lane();
    programs[1].lane();
}

/// The attack with all descriptors; then sluiced is told to end by `signal`.
fn attack(test: &str, signal: i32) {
    // A process that is started meanwhile would have to close the files that stay.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    if !rustix::process::geteuid().is_root() {
        return skip(test, "only root can be several users");
    }
    let fuse = match Fuse::mount("file_system") {
        Ok(fuse) => fuse,
        Err(error) => return skip(test, &format!("there is no FUSE: {error}")),
    };
    let scratch = Scratch::new();
    let socket = scratch.socket();
    let mut daemon = Daemon::start_in(scratch, &["--allow-all-users"]);
    // Begun now: what is executed later would have to close the files that stay.
    let mut next = Command::new("sh")
        .args(["-c", r#"read line && exec "$0" --socket "$1""#])
        .args([common::sluiced().as_os_str(), socket.as_os_str()])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let before = daemon.open_files();
    let peers = std::cell::RefCell::new(Vec::new());
    let keep = |(socket, peer): (OwnedFd, TcpStream)| {
        peers.borrow_mut().push(peer);
        socket
    };
    let file = || OwnedFd::from(fuse.open());
    let unwritten = || OwnedFd::from(fuse.open_unwritten());
    let linger = || keep(lingering());
    let lock = || keep(locked(&fuse));
    let kinds: [(&str, &dyn Fn() -> OwnedFd, bool); 5] = [
        ("a socket that lingers", &linger, false),
        ("one in the queue of another", &|| nested(linger()), false),
        ("a socket whose lock is held", &lock, true),
        ("a file", &file, true),
        ("a file that is not written", &unwritten, true),
    ];
    for (what, make, has_to_stay) in kinds {
        println!("{what}");
        send_in_every_way(&daemon, make, has_to_stay);
        assert_serves_others(&daemon);
    }
    // Each attacker's connection may still be there, and no more.
    assert!(daemon.open_files() <= before + 40 * 4);
    let receivers: Vec<_> = common::children_of(daemon.child.id())
        .into_iter()
        .filter_map(|pid| Some((pid, start_of(pid)?)))
        .collect();
    assert!(!receivers.is_empty());
    daemon.signal(signal);
    daemon.wait();
    // The next one serves at the same place.
    next.stdin.take().unwrap().write_all(b"\n").unwrap();
    let next = Daemon {
        child: next,
        scratch: Scratch::new(),
    };
    wait_for("the next sluiced", || {
        sluice_control::client::ping(&socket, PATIENCE).is_ok()
    });
    drop((next, fuse));
    let deadline = Instant::now() + PATIENCE;
    loop {
        // On a busy machine another process may have the number by now.
        let left: Vec<_> = receivers
            .iter()
            .filter(|(pid, start)| start_of(*pid).as_ref() == Some(start))
            .collect();
        if left.is_empty() {
            return;
        }
        let tell = |(pid, _): &&(u32, String)| {
            let says = |what| fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default();
            let threads = fs::read_dir(format!("/proc/{pid}/task"))
                .into_iter()
                .flatten();
            let stacks = threads.flatten().map(|thread| {
                let says = |what| fs::read_to_string(thread.path().join(what)).unwrap_or_default();
                says("comm") + &says("stat") + &says("stack")
            });
            format!("{}{}", says("stat"), stacks.collect::<String>())
        };
        let told = || left.iter().map(tell).collect::<String>();
        assert!(Instant::now() < deadline, "these did not end:\n{}", told());
        thread::sleep(Duration::from_millis(10));
    }
}

/// In the process that [`Fuse::mount`] starts.
#[test]
fn file_system() {
    fuse::serve();
}

#[test]
fn nothing_that_a_client_sends_stops_sluiced_which_ends_when_it_is_asked_to() {
    attack("descriptors, with SIGTERM", libc::SIGTERM);
}

#[test]
fn nothing_that_a_client_sends_stops_sluiced_which_ends_when_it_is_killed() {
    attack("descriptors, with SIGKILL", libc::SIGKILL);
}
