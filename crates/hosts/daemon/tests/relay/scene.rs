//! A relay that the test gives orders to.
#![allow(unsafe_code)]

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sluice_daemon::capture::header::{ANSWER_BYTES, Answer, Between, Header, Secret};
use sluice_daemon::capture::orders::{Counts, Heard, Notice, Order, hear, tell};
use sluice_daemon::capture::relay;
use sluice_lab::cgroup::Cgroup;
use sluice_lab::link::{ip, require_means};
use sluice_lab::namespace::Namespace;
use sluice_lab::verdict::{Verdict, made};
use sluice_peering::config::Config;
use sluice_sys::unix;

pub const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than whoever connects may take to say what for.
const STANDS_STILL: Duration = Duration::from_secs(6);

pub const SECRET: Secret = Secret {
    id: 7,
    key: [9; 32],
};

/// The host's own address, at its loopback.
pub const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 1));
pub const OWN_V6: IpAddr = IpAddr::V6(std::net::Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1));

/// A host that has its addresses at its loopback.
fn make_host() -> Verdict<Namespace> {
    require_means()?;
    let namespace = Namespace::new()?;
    ip(&namespace, "link set lo up")?;
    ip(&namespace, &format!("addr add {OWN}/32 dev lo"))?;
    ip(&namespace, &format!("addr add {OWN_V6}/128 dev lo nodad"))?;
    // A worker of the kernel's adds the way to an address of IPv6, when it gets to it.
    let end = Instant::now() + PATIENCE;
    let is_there = || UdpSocket::bind((OWN_V6, 0)).and_then(|it| it.connect((OWN_V6, 9)));
    while let Err(error) = within(&namespace, is_there) {
        assert!(Instant::now() < end, "no way to {OWN_V6}: {error}");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(namespace)
}

fn within<T: Send>(namespace: &Namespace, body: impl FnOnce() -> T + Send) -> T {
    namespace.inside(|| Ok(body())).expect("may enter")
}

/// A relay in a thread and namespace of its own.
pub struct Scene {
    pub namespace: Namespace,
    pub group: Cgroup,
    pub orders: OwnedFd,
    pub ports: [u16; 2],
    pub counts: Counts,
    number: u64,
    pub thread: Option<std::thread::JoinHandle<()>>,
    /// The thread's, for the kernel.
    id: i32,
}

extern "C" fn stand_still(_: i32) {
    std::thread::sleep(STANDS_STILL);
}

impl Scene {
    pub fn new(test: &str, choice: &str) -> Option<Scene> {
        let namespace = made(test, make_host())?;
        let group = made(test, Cgroup::new("relay"))?;
        let text = format!(
            "[daemon]\nname='a'\npsk_file='k'\n[capture]\nover='any'\ncgroup='{}'\n{choice}\n",
            group.path().display()
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
        let (say, said) = std::sync::mpsc::channel();
        let thread = within(&namespace, move || {
            std::thread::spawn(move || {
                // SAFETY: takes nothing and cannot fail.
                let _ = say.send(unsafe { libc::gettid() });
                relay::serve(config, theirs).expect("serves");
            })
        });
        let mut scene = Scene {
            namespace,
            group,
            orders,
            ports: [0; 2],
            counts: Counts::default(),
            number: 0,
            thread: Some(thread),
            id: said.recv().expect("it has begun"),
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

    pub fn order(&self, order: &Order) {
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

    pub fn await_counts(&mut self, so: impl Fn(&Counts) -> bool) {
        while !so(&self.counts) {
            match self.notice() {
                Notice::Counts(counts) => self.counts = counts,
                other => panic!("{other:?}"),
            }
        }
    }

    /// What it has counted as far as it has said so; without waiting.
    pub fn hear_counts(&mut self) -> Counts {
        while let Heard::Message(Notice::Counts(counts)) = hear(&self.orders).expect("sense") {
            self.counts = counts;
        }
        self.counts
    }

    /// Runs something on the host, on a thread of its own.
    pub fn within<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        within(&self.namespace, body)
    }

    /// A script for bash in the namespace and the cgroup of which connections are captured.
    pub fn program(&self, script: &str) -> Command {
        let processes = self.group.processes();
        let enter = format!("echo $$ > {} || exit 1", processes.display());
        let mut command = Command::new("nsenter");
        let namespace = format!("--net={}", self.namespace.path());
        command.args([&namespace, "bash", "-c"]);
        command.arg(format!("{enter}\n{script}"));
        command
    }

    pub fn at(&self, ip: IpAddr) -> SocketAddr {
        SocketAddr::new(ip, self.ports[usize::from(ip.is_ipv6())])
    }

    /// A listener of a program in the cgroup of which connections are captured: a socket belongs to that of its process.
    pub fn listen(&self, ip: IpAddr) -> TcpListener {
        let (ours, theirs) = unix::seqpacket_pair().expect("sockets");
        let processes = self.group.processes();
        self.within(|| {
            let mut command = Command::new("true");
            let listen = move || {
                std::fs::write(&processes, "0")?;
                let listener = TcpListener::bind((ip, 0))?;
                unix::send_with_fds(theirs.raw(), b"x", &[listener.as_raw_fd()])
                    .map(drop)
                    .map_err(|errno| Error::from_raw_os_error(errno.0))
            };
            // SAFETY: it opens files, and takes memory, which the C library's fork allows.
            unsafe { command.pre_exec(listen) };
            assert!(command.status().expect("it runs").success());
        });
        let got = unix::receive_with_fds(ours.raw(), &mut [0]);
        let listener = got.expect("a message").take_fd(0).expect("a listener");
        TcpListener::from(OwnedFd::from(listener))
    }

    /// A connection to the relay, and the addresses that it has.
    pub fn connect(&self, ip: IpAddr) -> (TcpStream, Between) {
        let at = self.at(ip);
        let stream = self.within(|| TcpStream::connect(at).expect("connected"));
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        let between = Between {
            from: stream.local_addr().expect("a name"),
            to: at,
        };
        (stream, between)
    }

    /// The relay's thread stands still for [`STANDS_STILL`], from where it waits; or from where it is, if it does
    /// not wait before `end`.
    pub fn stand_still(&self, end: Instant) {
        // SAFETY: zeroes are a valid sigaction, and the handler does nothing but sleep.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = stand_still as *const () as usize;
            let set = libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut());
            assert_eq!(set, 0);
        }
        let stat = format!("/proc/self/task/{}/stat", self.id);
        let is_asleep = || {
            let stat = std::fs::read_to_string(&stat).expect("it is there");
            stat.contains(") S ")
        };
        while !is_asleep() && Instant::now() < end {
            std::thread::yield_now();
        }
        // SAFETY: a signal to a thread of this process, which is joined later.
        let sent =
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.id, libc::SIGUSR2) };
        assert_eq!(sent, 0);
    }

    pub fn header(&mut self, destination: SocketAddr) -> Header {
        self.number += 1;
        Header {
            secret: SECRET.id,
            number: self.number,
            destination,
            client: "192.0.2.1:1234".parse().expect("an address"),
        }
    }

    /// What the relay answers to this.
    pub fn ask(&mut self, destination: SocketAddr) -> (TcpStream, Option<Answer>) {
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
    pub fn is_turned_away(&mut self, what: &str, mut stream: TcpStream, bytes: &[u8]) {
        let refused = self.counts.refused;
        stream.write_all(bytes).expect("said");
        let mut answer = Vec::new();
        // The connection ends, by a reset as a rule; that nothing comes for a long time is no end.
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{what}: {error}");
        }
        assert_eq!(answer, Vec::<u8>::new(), "{what}");
        self.await_counts(|counts| counts.refused == refused + 1);
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Gone already, perhaps.
        let _ = tell(&self.orders, &Order::Drain { seconds: 0 });
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        if !std::thread::panicking() {
            ended.expect("once").expect("ends well");
        }
    }
}
