//! A relay that the test gives orders to, and whoever connects to it.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sluice_daemon::capture::header::{ANSWER_BYTES, Answer, Between, HEADER_BYTES, Header, Secret};
use sluice_daemon::capture::orders::{Counts, Heard, Notice, Order, hear, tell};
use sluice_daemon::capture::relay;
use sluice_netns_testing::{Namespace, can_run, skip, unique};
use sluice_peering::config::Config;

const PATIENCE: Duration = Duration::from_secs(60);

const SECRET: Secret = Secret {
    id: 7,
    key: [9; 32],
};

/// The host's own address, at its loopback.
const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 1));
const OWN_V6: IpAddr = IpAddr::V6(std::net::Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1));

/// An empty cgroup; none where they cannot be made.
fn make_group() -> Option<PathBuf> {
    let mount = sluice_bpf::Cgroup::mount_point().ok()?;
    let path = mount.join(unique("relay"));
    fs::create_dir(&path).ok()?;
    Some(path)
}

/// A relay in a thread and namespace of its own.
struct Scene {
    namespace: Namespace,
    group: PathBuf,
    orders: OwnedFd,
    ports: [u16; 2],
    counts: Counts,
    number: u64,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Scene {
    fn new(test: &str, choice: &str) -> Option<Scene> {
        if !can_run(test) {
            return None;
        }
        let Some(group) = make_group() else {
            skip(test, "cgroups of version 2 cannot be made here");
            return None;
        };
        let namespace = Namespace::new(unique("rl"));
        namespace.ip("link set lo up");
        namespace.ip(&format!("addr add {OWN}/32 dev lo"));
        namespace.ip(&format!("addr add {OWN_V6}/128 dev lo nodad"));
        let text = format!(
            "[daemon]\nname='a'\npsk_file='k'\n[capture]\ncgroup='{}'\n{choice}\n",
            group.display()
        );
        let config = Config::parse(Path::new("/a.toml"), &text).expect("a configuration");
        let (orders, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("sockets");
        // Its privileges are those of its thread, and gone afterwards.
        let thread = namespace.enter(move || {
            std::thread::spawn(move || relay::serve(config, theirs).expect("serves"))
        });
        let mut scene = Scene {
            namespace,
            group,
            orders,
            ports: [0; 2],
            counts: Counts::default(),
            number: 0,
            thread: Some(thread),
        };
        match scene.notice() {
            Notice::Ready {
                port_v4,
                port_v6,
                addresses,
            } => {
                assert!(addresses.contains(&OWN) && addresses.contains(&OWN_V6));
                assert!(!addresses.contains(&"127.0.0.1".parse().expect("one")));
                scene.ports = [port_v4, port_v6];
            }
            other => panic!("{other:?}"),
        }
        scene.order(&Order::Admit(SECRET));
        Some(scene)
    }

    fn order(&self, order: &Order) {
        tell(&self.orders, order).expect("it listens");
    }

    fn notice(&mut self) -> Notice {
        let end = Instant::now() + PATIENCE;
        loop {
            match hear(&self.orders).expect("sense") {
                Heard::Message(notice) => return notice,
                Heard::Nothing => assert!(Instant::now() < end, "it says nothing"),
                Heard::End => panic!("it has ended"),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn await_counts(&mut self, so: impl Fn(&Counts) -> bool) {
        while !so(&self.counts) {
            match self.notice() {
                Notice::Counts(counts) => self.counts = counts,
                other => panic!("{other:?}"),
            }
        }
    }

    fn at(&self, ip: IpAddr) -> SocketAddr {
        SocketAddr::new(ip, self.ports[usize::from(ip.is_ipv6())])
    }

    fn listen(&self, ip: IpAddr) -> TcpListener {
        self.namespace
            .enter(|| TcpListener::bind((ip, 0)).expect("bound"))
    }

    /// A connection to the relay, and the addresses that it has.
    fn connect(&self, ip: IpAddr) -> (TcpStream, Between) {
        let at = self.at(ip);
        let stream = self
            .namespace
            .enter(|| TcpStream::connect(at).expect("connected"));
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        let between = Between {
            from: stream.local_addr().expect("a name"),
            to: at,
        };
        (stream, between)
    }

    fn header(&mut self, destination: SocketAddr) -> Header {
        self.number += 1;
        Header {
            secret: SECRET.id,
            number: self.number,
            destination,
            client: "192.0.2.1:1234".parse().expect("an address"),
        }
    }

    /// What the relay answers to this.
    fn ask(&mut self, destination: SocketAddr) -> (TcpStream, Option<Answer>) {
        let header = self.header(destination);
        let ip = if destination.is_ipv6() { OWN_V6 } else { OWN };
        let (mut stream, between) = self.connect(ip);
        stream
            .write_all(&header.seal(&SECRET, &between))
            .expect("said");
        let mut answer = [0; ANSWER_BYTES];
        stream.read_exact(&mut answer).expect("an answer");
        let answer = Answer::open(&answer, &SECRET, header.number, &between);
        (stream, answer)
    }

    /// It gets no answer, and is counted.
    fn is_turned_away(&mut self, what: &str, mut stream: TcpStream, bytes: &[u8; HEADER_BYTES]) {
        let refused = self.counts.refused;
        stream.write_all(bytes).expect("said");
        let mut answer = Vec::new();
        // The connection ends, by a reset as a rule.
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, Vec::<u8>::new(), "{what}");
        self.await_counts(|counts| counts.refused == refused + 1);
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Gone already, perhaps.
        let _ = tell(&self.orders, &Order::Drain { seconds: 0 });
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        let _ = fs::remove_dir(&self.group);
        if !std::thread::panicking() {
            ended.expect("once").expect("ends well");
        }
    }
}

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
        let again = scene.namespace.enter(|| TcpStream::connect(at));
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
