//! A gateway with a daemon that this test plays, over the loopback interface.
#![allow(unsafe_code)]

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_control::message::gateway::{Ask, Range, Ranges, Tell};
use sluice_control::message::{FromDaemon, MESSAGE_BYTES_MAX, Reason, ToDaemon};
use sluice_control::preface::{
    ANSWER_BYTES, Answer, Carrier, Key, Kind, NOWHERE, PREFACE_BYTES, Preface,
};
use sluice_gateway::{Error, Options, Server};
use sluice_relay::socket;
use sluice_sys::errno::Errno;
use sluice_sys::unix::{self, Fd};

const LIMIT: Duration = Duration::from_secs(60);
const KEY: Key = Key([6; 32]);

/// The daemon's end of the session.
struct Daemon(Fd);

impl Daemon {
    fn tell(&self, tell: Tell) {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let message = FromDaemon::Gateway(tell);
        let bytes = message.encode(&mut buffer);
        while let Err(error) = unix::send_with_fds(self.0.raw(), bytes, &[]) {
            assert_eq!(error, Errno::AGAIN);
            assert!(unix::wait_writable(self.0.raw(), LIMIT.as_millis() as i32).unwrap());
        }
    }

    fn refuse(&self, reason: Reason) {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let refused = FromDaemon::Refused { reason };
        unix::send_with_fds(self.0.raw(), refused.encode(&mut buffer), &[]).unwrap();
    }

    fn hear(&self) -> ToDaemon {
        assert!(unix::wait_readable(self.0.raw(), LIMIT.as_millis() as i32).unwrap());
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let got = unix::receive_with_fds(self.0.raw(), &mut buffer).unwrap();
        ToDaemon::decode(&buffer[..got.len]).unwrap()
    }

    fn open(&self, service: u32, address: SocketAddr) -> u16 {
        self.tell(Tell::Open { service, address });
        match self.hear() {
            ToDaemon::Gateway(Ask::Opened { service: it, errno }) if it == service => errno,
            other => panic!("{other:?}"),
        }
    }

    fn backend(&self, service: u32, backend: u32, target: SocketAddr) {
        self.tell(Tell::Backend {
            service,
            backend,
            target,
            source: target.ip(),
            key: KEY,
        });
    }
}

struct Lab {
    // First, so that the gateway ends before the rest goes.
    stop: UnixStream,
    thread: Option<JoinHandle<Result<(), Error>>>,
    /// The thread's, for the kernel.
    id: i32,
    control: Fd,
    dir: tempfile::TempDir,
}

impl Lab {
    fn new() -> (Lab, Daemon) {
        // It may stand still itself.
        Lab::with(LIMIT, || {})
    }

    /// A node is to answer within `connect`.
    fn with(connect: Duration, ready: impl FnOnce() + Send + 'static) -> (Lab, Daemon) {
        let dir = tempfile::tempdir().unwrap();
        let control = listen(&dir.path().join("sock"));
        let (stop, stopped) = UnixStream::pair().unwrap();
        let mut options = Options::new(dir.path().join("sock"));
        options.linger = LIMIT;
        options.connect = connect;
        let (say, said) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: takes nothing and cannot fail.
            let _ = say.send(unsafe { libc::gettid() });
            Server::new(options)?.run(stopped.as_fd(), ready)
        });
        let mut lab = Lab {
            stop,
            thread: Some(thread),
            id: said.recv().unwrap(),
            control,
            dir,
        };
        let daemon = lab.session();
        (lab, daemon)
    }

    fn session(&mut self) -> Daemon {
        assert!(unix::wait_readable(self.control.raw(), LIMIT.as_millis() as i32).unwrap());
        let daemon = Daemon(unix::accept(self.control.raw()).unwrap());
        assert_eq!(daemon.hear(), ToDaemon::Gateway(Ask::Serve));
        daemon
    }

    /// The daemon ends, and another one comes.
    fn restart(&mut self, daemon: Daemon) -> Daemon {
        let path = self.dir.path().join("sock");
        std::fs::remove_file(&path).unwrap();
        self.control = listen(&path);
        drop(daemon);
        self.session()
    }

    fn end(&mut self) -> Result<(), Error> {
        self.stop.write_all(b"x").unwrap();
        self.thread.take().unwrap().join().unwrap()
    }
}

fn listen(path: &Path) -> Fd {
    let socket = unix::seqpacket().unwrap();
    unix::bind(socket.raw(), path.as_os_str().as_bytes()).unwrap();
    unix::listen(socket.raw(), 4).unwrap();
    socket
}

/// An address where nobody listens but whom this test lets: until its process ends, a socket that is bound there and
/// no more keeps the kernel from giving the port away.
fn free(ip: &str) -> SocketAddr {
    let any = SocketAddr::new(ip.parse().unwrap(), 0);
    let held = socket::tcp(&any).unwrap();
    // So that another one may be bound there and listen (socket(7)).
    unix::set_option(
        held.as_raw_fd(),
        libc::SOL_SOCKET,
        libc::SO_REUSEADDR,
        &1_i32,
    )
    .unwrap();
    socket::bind(held.as_fd(), &any).unwrap();
    let address = socket::local_address(held.as_fd()).unwrap();
    std::mem::forget(held);
    address
}

fn node(ip: &str) -> (TcpListener, SocketAddr) {
    let ip: IpAddr = ip.parse().unwrap();
    let node = TcpListener::bind((ip, 0)).unwrap();
    let address = node.local_addr().unwrap();
    (node, address)
}

/// What the node sees: the stream behind the preface, and whom it is for.
fn accept(node: &TcpListener) -> (TcpStream, Preface) {
    let (mut stream, from) = node.accept().unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let carrier = Carrier {
        from,
        to: stream.local_addr().unwrap(),
    };
    let mut bytes = [0; PREFACE_BYTES];
    stream.read_exact(&mut bytes).unwrap();
    (stream, Preface::decode(&bytes, &KEY, &carrier).unwrap())
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

fn expect_reset(stream: &mut TcpStream) {
    let error = stream.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_node_learns_whom_it_serves_and_both_streams_end_in_order() {
    for ip in ["127.0.0.1", "::1"] {
        let (mut lab, daemon) = Lab::new();
        let (node, target) = node(ip);
        let outside = free(ip);
        assert_eq!(daemon.open(1, outside), 0);
        daemon.backend(1, 7, target);
        let mut client = connect(outside);
        let (mut served, preface) = accept(&node);
        assert_eq!(preface.kind, Kind::Client);
        assert_eq!(preface.client, client.local_addr().unwrap());
        assert_eq!(preface.outside, outside);
        client.write_all(b"question").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        served.read_to_string(&mut text).unwrap();
        assert_eq!(text, "question");
        served.write_all(b"answer").unwrap();
        drop(served);
        text.clear();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "answer");
        lab.end().unwrap();
    }
}

#[test]
fn who_does_not_answer_is_passed_over_and_told_of() {
    let (mut lab, daemon) = Lab::new();
    let (node, target) = node("127.0.0.1");
    let outside = free("127.0.0.1");
    daemon.open(1, outside);
    daemon.backend(1, 7, free("127.0.0.1"));
    let mut alone = connect(outside);
    expect_reset(&mut alone);
    let told = ToDaemon::Gateway(Ask::Unreachable { backend: 7 });
    assert_eq!(daemon.hear(), told);
    daemon.backend(1, 8, target);
    for _ in 0..4 {
        let client = connect(outside);
        let (_, preface) = accept(&node);
        assert_eq!(preface.client, client.local_addr().unwrap());
    }
    drop(node);
    expect_reset(&mut connect(outside));
    lab.end().unwrap();
}

/// A node that answers nobody, as its queue is full, until it accepts those who are in it.
fn full_node() -> (TcpListener, SocketAddr, Vec<TcpStream>) {
    let (node, target) = node("127.0.0.1");
    // SAFETY: listen takes numbers; again, for a queue of one.
    assert_eq!(unsafe { libc::listen(node.as_raw_fd(), 0) }, 0);
    (node, target, vec![connect(target)])
}

/// A client that waits in vain for the only node of a port, which has been asked for.
fn waiting_client(daemon: &Daemon, target: SocketAddr) -> TcpStream {
    let outside = free("127.0.0.1");
    assert_eq!(daemon.open(1, outside), 0);
    daemon.backend(1, 7, target);
    let client = connect(outside);
    let told = ToDaemon::Gateway(Ask::Unreachable { backend: 7 });
    assert_eq!(daemon.hear(), told);
    client
}

/// The time after which another node would be asked.
const AT_ONCE: Duration = Duration::from_millis(1);

#[test]
fn a_client_waits_for_the_only_node_until_that_has_room() {
    let (mut lab, daemon) = Lab::with(AT_ONCE, || {});
    let (node, target, filled) = full_node();
    let mut client = waiting_client(&daemon, target);
    drop(node.accept().unwrap());
    drop(filled);
    let (mut served, preface) = accept(&node);
    assert_eq!(preface.client, client.local_addr().unwrap());
    served.write_all(b"late").unwrap();
    client.read_exact(&mut [0; 4]).unwrap();
    drop((served, client));
    lab.end().unwrap();
}

#[test]
fn a_client_that_waits_is_given_to_a_node_that_comes_and_reset_if_its_own_goes() {
    let (mut lab, daemon) = Lab::with(AT_ONCE, || {});
    let (_node, target, _filled) = full_node();
    let mut client = waiting_client(&daemon, target);
    let (second, its_target) = node("127.0.0.1");
    daemon.backend(1, 8, its_target);
    let (_, preface) = accept(&second);
    assert_eq!(preface.client, client.local_addr().unwrap());
    drop(second);
    daemon.tell(Tell::Shut { service: 1 });
    client = waiting_client(&daemon, target);
    daemon.tell(Tell::BackendGone {
        service: 1,
        backend: 7,
    });
    expect_reset(&mut client);
    lab.end().unwrap();
}

#[test]
fn a_gateway_that_is_told_to_end_leaves_its_place_to_the_next_one() {
    let (mut lab, daemon) = Lab::new();
    daemon.tell(Tell::Complete);
    let (node, target) = node("127.0.0.1");
    let outside = free("127.0.0.1");
    assert_eq!(daemon.open(1, outside), 0);
    daemon.backend(1, 7, target);
    let mut client = connect(outside);
    let (mut served, _) = accept(&node);
    lab.stop.write_all(b"x").unwrap();
    assert!(unix::wait_readable(daemon.0.raw(), LIMIT.as_millis() as i32).unwrap());
    let got = unix::receive_with_fds(daemon.0.raw(), &mut [0; MESSAGE_BYTES_MAX]);
    assert_eq!(got.unwrap().len, 0, "the end of the session");
    // What it has goes on.
    served.write_all(b"goes on").unwrap();
    client.read_exact(&mut [0; 7]).unwrap();
    drop((served, client));
    lab.thread.take().unwrap().join().unwrap().unwrap();
}

#[test]
fn a_gateway_waits_for_the_end_of_another_one_and_is_ready_when_it_serves() {
    let (say, said) = std::sync::mpsc::channel();
    let (mut lab, mut daemon) = Lab::with(LIMIT, move || say.send(()).unwrap());
    for _ in 0..2 {
        daemon.refuse(Reason::Taken);
        daemon = lab.session();
    }
    assert!(said.try_recv().is_err(), "it does not serve yet");
    daemon.tell(Tell::Complete);
    said.recv().unwrap();
    lab.end().unwrap();
}

#[test]
fn connections_are_spread_and_a_node_that_goes_keeps_those_that_it_has() {
    let (mut lab, daemon) = Lab::new();
    let nodes = [node("127.0.0.1"), node("127.0.0.1")];
    let outside = free("127.0.0.1");
    daemon.open(1, outside);
    daemon.backend(1, 1, nodes[0].1);
    daemon.backend(1, 2, nodes[1].1);
    let clients: Vec<TcpStream> = (0..4).map(|_| connect(outside)).collect();
    let mut served: Vec<TcpStream> = nodes
        .iter()
        .flat_map(|(node, _)| [accept(node).0, accept(node).0])
        .collect();
    daemon.tell(Tell::BackendGone {
        service: 1,
        backend: 1,
    });
    // Said in order: what follows holds when that does.
    daemon.open(2, free("127.0.0.1"));
    let late = connect(outside);
    let (_stream, preface) = accept(&nodes[1].0);
    assert_eq!(preface.client, late.local_addr().unwrap());
    for stream in &mut served {
        stream.write_all(b"still").unwrap();
    }
    for mut client in clients {
        let mut bytes = [0; 5];
        client.read_exact(&mut bytes).unwrap();
    }
    drop((served, late, _stream));
    lab.end().unwrap();
}

#[test]
fn a_port_that_is_taken_is_said_so() {
    let (mut lab, daemon) = Lab::new();
    let (_taken, address) = node("127.0.0.1");
    assert_eq!(daemon.open(1, address), libc::EADDRINUSE as u16);
    lab.end().unwrap();
}

/// More answers than its socket takes.
#[test]
fn a_daemon_that_reads_late_hears_all_and_the_session_goes_on() {
    let (mut lab, daemon) = Lab::new();
    let (_taken, address) = node("127.0.0.1");
    let all = 1..3_000;
    for service in all.clone() {
        daemon.tell(Tell::Open { service, address });
    }
    for service in all {
        let errno = libc::EADDRINUSE as u16;
        let expected = ToDaemon::Gateway(Ask::Opened { service, errno });
        assert_eq!(daemon.hear(), expected);
    }
    assert_eq!(daemon.open(1, free("127.0.0.1")), 0);
    lab.end().unwrap();
}

#[test]
fn a_daemon_that_comes_again_finds_the_listener_open() {
    let (mut lab, daemon) = Lab::new();
    let (node, target) = node("127.0.0.1");
    let outside = free("127.0.0.1");
    daemon.open(5, outside);
    daemon.backend(5, 7, target);
    let before = connect(outside);
    let (served, _) = accept(&node);
    let daemon = lab.restart(daemon);
    // It has said nothing yet.
    let meanwhile = connect(outside);
    let (other, _) = accept(&node);
    assert_eq!(daemon.open(1, outside), 0);
    daemon.backend(1, 3, target);
    daemon.tell(Tell::Complete);
    let after = connect(outside);
    let (_stream, preface) = accept(&node);
    assert_eq!(preface.client, after.local_addr().unwrap());
    daemon.tell(Tell::Shut { service: 1 });
    // In order again.
    daemon.open(2, free("127.0.0.1"));
    assert!(TcpStream::connect(outside).is_err(), "it is shut");
    drop((before, meanwhile, after, served, other, _stream));
    lab.end().unwrap();
}

/// Its numbers are those of the former one, for something else, and it learns of nodes one by one.
#[test]
fn what_a_new_daemon_has_not_named_yet_is_served_as_before() {
    let (mut lab, daemon) = Lab::new();
    let nodes = [node("127.0.0.1"), node("127.0.0.1")];
    let outside = [free("127.0.0.1"), free("127.0.0.1")];
    for (place, service) in [1, 3].into_iter().enumerate() {
        assert_eq!(daemon.open(service, outside[place]), 0);
        daemon.backend(service, service + 1, nodes[place].1);
    }
    let serve = |place: usize| {
        let client = connect(outside[place]);
        let (served, preface) = accept(&nodes[place].0);
        assert_eq!(preface.client, client.local_addr().unwrap());
        (client, served)
    };
    let mut pairs = vec![serve(0), serve(1)];
    let daemon = lab.restart(daemon);
    daemon.tell(Tell::Complete);
    // The second one under the number of the first.
    assert_eq!(daemon.open(1, outside[1]), 0);
    pairs.extend([serve(0), serve(1)]);
    daemon.backend(1, 2, nodes[1].1);
    // A port that nobody serves yet is open: who comes waits for who is said to, for a second. On a machine that
    // stood still meanwhile another one is tried.
    let (client, served) = (0..20)
        .find_map(|attempt| {
            let number = 5 + 10 * attempt;
            let (late, target) = node("127.0.0.1");
            let new = free("127.0.0.1");
            let begun = Instant::now();
            assert_eq!(daemon.open(number, new), 0);
            let client = connect(new);
            // Told in order, so the client was there when the gateway had turned to this.
            assert_eq!(daemon.open(number + 2, free("127.0.0.1")), 0);
            daemon.backend(number, number + 1, target);
            assert_eq!(daemon.open(number + 3, free("127.0.0.1")), 0);
            if begun.elapsed() >= Duration::from_secs(1) {
                return None;
            }
            let (served, preface) = accept(&late);
            assert_eq!(preface.client, client.local_addr().unwrap());
            Some((client, served))
        })
        .expect("it stood still each time");
    pairs.extend([(client, served), serve(0), serve(1)]);
    for (client, served) in &mut pairs {
        served.write_all(b"x").unwrap();
        client.read_exact(&mut [0; 1]).unwrap();
    }
    drop(pairs);
    lab.end().unwrap();
}

/// Nodes may all be gone while it is so, and no port open.
#[test]
fn a_daemon_that_refuses_it_later_ends_no_connection() {
    let (mut lab, daemon) = Lab::new();
    daemon.tell(Tell::Complete);
    let (node, target) = node("127.0.0.1");
    let outside = free("127.0.0.1");
    assert_eq!(daemon.open(1, outside), 0);
    daemon.backend(1, 7, target);
    let mut client = connect(outside);
    let (mut served, _) = accept(&node);
    daemon.tell(Tell::Shut { service: 1 });
    let mut daemon = lab.restart(daemon);
    for reason in [Reason::Full, Reason::Protocol] {
        daemon.refuse(reason);
        daemon = lab.session();
    }
    served.write_all(b"goes on").unwrap();
    client.read_exact(&mut [0; 7]).unwrap();
    assert_eq!(daemon.open(1, outside), 0);
    drop((served, client));
    lab.end().unwrap();
}

#[test]
fn without_a_daemon_that_wants_it_it_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let missing = Server::new(Options::new(path.clone())).unwrap_err();
    assert!(matches!(missing, Error::NoDaemon(..)), "{missing}");
    let control = listen(&path);
    // It refuses at once, or when it has heard what this process is.
    for hears in [false, true] {
        let (_stop, stopped) = UnixStream::pair().unwrap();
        let options = Options::new(path.clone());
        let run = move || Server::new(options)?.run(stopped.as_fd(), || panic!("it is not"));
        let thread = std::thread::spawn(run);
        assert!(unix::wait_readable(control.raw(), LIMIT.as_millis() as i32).unwrap());
        let daemon = Daemon(unix::accept(control.raw()).unwrap());
        if hears {
            daemon.hear();
        }
        daemon.refuse(Reason::Protocol);
        drop(daemon);
        let error = thread.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("[gateway]"), "{error}");
    }
}

const EXIT: u32 = 5;
/// Who has connected has three seconds to say what for.
const SAYS_IN: Duration = Duration::from_secs(2);

/// Where the gateway connects out to for the programs of one node, this host.
fn open_exit(daemon: &Daemon) -> SocketAddr {
    let everything = Range {
        first: "::".parse().unwrap(),
        prefix: 0,
    };
    let node = Range {
        first: "::ffff:127.0.0.1".parse().unwrap(),
        prefix: 128,
    };
    daemon.tell(Tell::Exit {
        exit: EXIT,
        address: "127.0.0.1".parse().unwrap(),
        key: KEY,
        allowed: Ranges::new([everything]),
        sources: Ranges::new([node]),
    });
    let ToDaemon::Gateway(Ask::Exit { exit: EXIT, port }) = daemon.hear() else {
        panic!("no port");
    };
    SocketAddr::from(([127, 0, 0, 1], port))
}

extern "C" fn stand_still(_: i32) {
    std::thread::sleep(Duration::from_secs(4));
}

/// A gateway that gets no processor for longer than whoever connects may say nothing.
#[test]
fn who_speaks_in_time_is_heard_by_a_gateway_that_stands_still() {
    let (mut lab, daemon) = Lab::new();
    let at = open_exit(&daemon);
    // SAFETY: zeroes are a valid sigaction, and the handler does nothing but sleep.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = stand_still as *const () as usize;
        let set = libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut());
        assert_eq!(set, 0);
    }
    loop {
        let begun = Instant::now();
        let mut program = connect(at);
        // In order: it has been accepted when this is done.
        assert_eq!(daemon.open(1, free("127.0.0.1")), 0);
        daemon.tell(Tell::Shut { service: 1 });
        // In the middle of its wait.
        let stat = format!("/proc/self/task/{}/stat", lab.id);
        let is_asleep = || std::fs::read_to_string(&stat).unwrap().contains(") S ");
        while !is_asleep() && begun.elapsed() < SAYS_IN {
            std::thread::yield_now();
        }
        // SAFETY: a signal to a thread of this process, which is joined later.
        let sent =
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), lab.id, libc::SIGUSR2) };
        assert_eq!(sent, 0);
        let carrier = Carrier {
            from: program.local_addr().unwrap(),
            to: at,
        };
        let preface = Preface {
            kind: Kind::Destination,
            client: "127.0.0.1:1".parse().unwrap(),
            outside: NOWHERE,
            exit: EXIT,
        };
        let said = program.write_all(&preface.encode(&KEY, &carrier));
        let is_in_time = begun.elapsed() < SAYS_IN;
        let mut bytes = [0; ANSWER_BYTES];
        let answered = program.read_exact(&mut bytes);
        // Else it was this test that stood still.
        if is_in_time {
            said.and(answered).unwrap();
            assert_eq!(Answer::decode(&bytes).errno, libc::EACCES as u16);
            break;
        }
    }
    lab.end().unwrap();
}

/// Where connections out are to be; this host itself, in any case, is not outside.
#[test]
fn programs_that_may_not_connect_out_are_refused_or_reset() {
    let (mut lab, daemon) = Lab::new();
    let at = open_exit(&daemon);
    let (server, inside) = self::node("127.0.0.1");
    server.set_nonblocking(true).unwrap();
    // Who has said nothing for three seconds is turned away; here that is this test, standing still.
    let ask = |kind, key: Key, exit| loop {
        let begun = Instant::now();
        let mut stream = connect(at);
        let carrier = Carrier {
            from: stream.local_addr().unwrap(),
            to: at,
        };
        let preface = Preface {
            kind,
            client: inside,
            outside: NOWHERE,
            exit,
        };
        let said = stream.write_all(&preface.encode(&key, &carrier));
        if begun.elapsed() < SAYS_IN {
            said.unwrap();
            return stream;
        }
    };
    let mut bytes = [0; ANSWER_BYTES];
    let mut waits = ask(Kind::Destination, KEY, EXIT);
    waits.read_exact(&mut bytes).unwrap();
    assert_eq!(Answer::decode(&bytes).errno, libc::EACCES as u16);
    for mut stream in [
        // Does not wait for an answer.
        ask(Kind::Unanswered, KEY, EXIT),
        // A forged one, one that is for another exit, and one that is for a server.
        ask(Kind::Destination, Key([7; 32]), EXIT),
        ask(Kind::Destination, KEY, EXIT + 1),
        ask(Kind::Client, KEY, EXIT),
    ] {
        expect_reset(&mut stream);
    }
    // Not the node's address.
    let stranger = socket::tcp(&at).unwrap();
    socket::bind(stranger.as_fd(), &"127.0.0.2:0".parse().unwrap()).unwrap();
    assert!(socket::connect(stranger.as_fd(), &at).is_ok());
    let mut stranger = TcpStream::from(stranger);
    stranger.set_nonblocking(false).unwrap();
    stranger.set_read_timeout(Some(LIMIT)).unwrap();
    let carrier = Carrier {
        from: stranger.local_addr().unwrap(),
        to: at,
    };
    let preface = Preface {
        kind: Kind::Destination,
        client: inside,
        outside: NOWHERE,
        exit: EXIT,
    };
    // It is reset before it has said that, or then.
    let _ = stranger.write_all(&preface.encode(&KEY, &carrier));
    let mut answer = Vec::new();
    let _ = stranger.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{answer:?}");
    let mut garbage = connect(at);
    // As above, when this test stands still before it has said that.
    if garbage.write_all(&[b'x'; PREFACE_BYTES]).is_ok() {
        expect_reset(&mut garbage);
    }
    let late = server.accept().map(drop).map_err(|error| error.kind());
    assert_eq!(late, Err(ErrorKind::WouldBlock), "it was connected to");
    daemon.tell(Tell::ExitGone { exit: EXIT });
    // In order.
    daemon.open(1, free("127.0.0.1"));
    assert!(TcpStream::connect(at).is_err(), "it is shut");
    lab.end().unwrap();
}
