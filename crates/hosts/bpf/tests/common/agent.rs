//! A process in a cgroup and a network namespace that makes socket calls as it is told.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use sluice_bpf::{
    Capture, CaptureOptions, Cgroup, Destination, Finder, FinderOptions, Listener, Rules,
};

use super::{Group, Host};

/// Set for a process that is to be an agent: its cgroup, or nothing.
const AGENT: &str = "SLUICE_BPF_TEST_AGENT";
/// In front of each answer, among what the test harness prints.
const MARK: &str = "@ ";

/// One end of a connection, as the agent sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub id: u32,
    pub cookie: u64,
    pub local: SocketAddr,
    pub peer: SocketAddr,
}

pub struct Agent {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub netns: u64,
}

impl Agent {
    /// `group`: None for that of the test.
    pub fn start(host: &Host, group: Option<&Group>) -> Self {
        let group = group.map_or(Path::new(""), Group::path);
        let mut command = Command::new(std::env::current_exe().expect("known"));
        command
            .args(["--exact", "agent", "--nocapture"])
            .env(AGENT, group)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = host.spawn(&mut command);
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut agent = Self {
            child,
            input,
            output,
            netns: 0,
        };
        agent.netns = agent
            .ask("netns")
            .expect("works")
            .parse()
            .expect("a number");
        agent
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("waited for");
    }

    /// The answer, or the error number of the call.
    pub fn ask(&mut self, order: &str) -> Result<String, i32> {
        self.tell(order);
        self.answer()
    }

    /// To be followed by [`Agent::answer`]: for calls that wait for somebody.
    pub fn tell(&mut self, order: &str) {
        writeln!(self.input, "{order}").expect("it reads");
    }

    pub fn answer(&mut self) -> Result<String, i32> {
        loop {
            let mut line = String::new();
            let bytes = self.output.read_line(&mut line).expect("it writes");
            assert_ne!(bytes, 0, "the agent has ended");
            // The harness does not always end its own line.
            let Some((_, answer)) = line.trim_end().split_once(MARK) else {
                continue;
            };
            return match answer.strip_prefix("error ") {
                Some(errno) => Err(errno.parse().expect("a number")),
                None => Ok(answer.to_owned()),
            };
        }
    }

    pub fn listen(&mut self, address: SocketAddr) -> End {
        parse_end(&self.ask(&format!("listen {address}")).expect("listens"))
    }

    pub fn connect(&mut self, to: SocketAddr) -> Result<End, i32> {
        self.ask(&format!("connect {to}"))
            .map(|end| parse_end(&end))
    }

    pub fn accept(&mut self, listener: u32) -> End {
        parse_end(&self.ask(&format!("accept {listener}")).expect("accepts"))
    }

    /// getsockname() and getpeername(), now.
    pub fn names(&mut self, id: u32) -> Result<End, i32> {
        self.ask(&format!("names {id}")).map(|end| parse_end(&end))
    }

    pub fn write(&mut self, id: u32, text: &str) {
        self.ask(&format!("write {id} {text}")).expect("written");
    }

    pub fn read(&mut self, id: u32, bytes: usize) -> Result<String, i32> {
        self.ask(&format!("read {id} {bytes}"))
    }

    pub fn close(&mut self, id: u32) {
        self.ask(&format!("close {id}")).expect("closed");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn parse_end(text: &str) -> End {
    let mut words = text.split(' ');
    let mut next = || words.next().expect("a word");
    End {
        id: next().parse().expect("a number"),
        cookie: next().parse().expect("a number"),
        local: next().parse().expect("an address"),
        peer: next().parse().expect("an address"),
    }
}

/// The body of the test `agent` of each file: nothing, unless the process was started for it.
pub fn run_as_agent() {
    let Some(group) = std::env::var_os(AGENT) else {
        return;
    };
    if !group.is_empty() {
        let procs = Path::new(&group).join("cgroup.procs");
        std::fs::write(procs, std::process::id().to_string()).expect("moved");
    }
    // Orders are waited for on another thread: when the test is gone the agent is too, whatever it
    // waits for.
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            tell.send(line.expect("text")).expect("obeyed");
        }
        std::process::exit(0);
    });
    let mut state = State::default();
    for line in told {
        let answer = match state.obey(&line) {
            Ok(answer) => answer,
            Err(error) => format!("error {}", error.raw_os_error().unwrap_or(0)),
        };
        println!("{MARK}{answer}");
    }
}

#[derive(Default)]
struct State {
    held: Option<(Finder, Capture)>,
    sockets: HashMap<u32, OwnedFd>,
    next: u32,
}

impl State {
    fn keep(&mut self, socket: impl Into<OwnedFd>) -> u32 {
        self.next += 1;
        self.sockets.insert(self.next, socket.into());
        self.next
    }

    fn raw(&self, id: &str) -> RawFd {
        self.sockets[&id.parse::<u32>().expect("a number")].as_raw_fd()
    }

    fn stream(&self, id: &str) -> TcpStream {
        let id: u32 = id.parse().expect("a number");
        self.sockets[&id].try_clone().expect("a copy").into()
    }

    fn describe(&self, id: u32, peer: SocketAddr) -> io::Result<String> {
        let raw = self.sockets[&id].as_raw_fd();
        let local = sluice_sys::tcp::local_address(raw)?;
        let cookie = sluice_sys::tcp::cookie(raw)?;
        Ok(format!("{id} {cookie} {local} {peer}"))
    }

    fn obey(&mut self, order: &str) -> io::Result<String> {
        let words: Vec<&str> = order.split(' ').collect();
        let address = |at: usize| words[at].parse::<SocketAddr>().expect("an address");
        match words[0] {
            "netns" => {
                let socket = TcpListener::bind("127.0.0.1:0")?;
                Ok(sluice_sys::tcp::netns_cookie(socket.as_raw_fd())?.to_string())
            }
            "listen" => {
                let listener = TcpListener::bind(address(1))?;
                let local = listener.local_addr()?;
                let id = self.keep(listener);
                self.describe(id, local)
            }
            "connect" => {
                let stream = TcpStream::connect(address(1))?;
                let peer = stream.peer_addr()?;
                let id = self.keep(stream);
                self.describe(id, peer)
            }
            // A socket, and an option of it: socket FAMILY LEVEL NAME VALUE.
            "socket" => {
                let numbers: Vec<i32> = words[1..]
                    .iter()
                    .map(|word| word.parse().expect("a number"))
                    .collect();
                let options: Vec<_> = numbers[1..]
                    .chunks_exact(3)
                    .map(|option| (option[0], option[1], option[2]))
                    .collect();
                let socket = socket(numbers[0], &options);
                Ok(self.keep(socket).to_string())
            }
            "bind" => call(self.raw(words[1]), address(2), libc::bind),
            "join" => call(self.raw(words[1]), address(2), libc::connect),
            // key ID ADDRESS: the peer there has to have it.
            "key" => set_key(self.raw(words[1]), words[2].parse().expect("an address")),
            "unjoin" => {
                // SAFETY: zeros are a valid sockaddr, of AF_UNSPEC, and connect reads its size.
                check(unsafe {
                    let none: libc::sockaddr = core::mem::zeroed();
                    libc::connect(self.raw(words[1]), &raw const none, 16)
                })
            }
            "listen-on" => {
                // SAFETY: listen takes integers.
                check(unsafe { libc::listen(self.raw(words[1]), 16) })
            }
            "accept" => {
                // What accept() itself says of the peer, which the library asks the kernel for.
                let listener: TcpListener = self.sockets
                    [&words[1].parse::<u32>().expect("a number")]
                    .try_clone()?
                    .into();
                let (stream, peer) = listener.accept()?;
                let id = self.keep(stream);
                self.describe(id, peer)
            }
            "names" => {
                let id = words[1].parse().expect("a number");
                let peer = sluice_sys::tcp::peer_address(self.raw(words[1]))?;
                self.describe(id, peer)
            }
            // getsockname() only.
            "own" => {
                let raw = self.raw(words[1]);
                let local = sluice_sys::tcp::local_address(raw)?;
                let id = words[1];
                Ok(format!("{id} {} {local}", sluice_sys::tcp::cookie(raw)?))
            }
            // A daemon: hold CGROUP DESTINATION.
            "hold" => {
                let cgroup = Cgroup::open(Path::new(words[1])).expect("a cgroup");
                let options = FinderOptions::default();
                let finder = Finder::attach(&cgroup, &options, &Rules::all()).expect("attaches");
                let options = CaptureOptions::default();
                let mut capture = Capture::attach(&cgroup, &options).expect("attaches");
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let ports = Listener {
                    v4: Some(listener.local_addr()?.port()),
                    v6: None,
                };
                let netns = sluice_sys::tcp::netns_cookie(listener.as_raw_fd())?;
                capture.set_listener(netns, ports).expect("set");
                let destination = Destination {
                    address: words[2].parse().expect("an address"),
                    port: None,
                    source: None,
                };
                capture.add_destination(&destination).expect("set");
                std::thread::spawn(move || {
                    while let Ok((stream, _)) = listener.accept() {
                        drop(stream);
                    }
                });
                self.held = Some((finder, capture));
                Ok("ok".into())
            }
            // How many of so many connections fail: hammer ADDRESS COUNT.
            "hammer" => {
                let count: u32 = words[2].parse().expect("a number");
                let connect = |_: &u32| TcpStream::connect(address(1)).is_err();
                Ok((0..count).filter(connect).count().to_string())
            }
            "write" => {
                self.stream(words[1]).write_all(words[2].as_bytes())?;
                Ok("ok".into())
            }
            "read" => {
                let mut bytes = vec![0; words[2].parse().expect("a number")];
                self.stream(words[1]).read_exact(&mut bytes)?;
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            "close" => {
                self.sockets
                    .remove(&words[1].parse().expect("a number"))
                    .expect("there");
                Ok("ok".into())
            }
            other => panic!("no such order: {other}"),
        }
    }
}

/// `struct tcp_md5sig` of `include/uapi/linux/tcp.h`.
#[repr(C)]
struct Key {
    peer: libc::sockaddr_storage,
    flags: u8,
    prefix: u8,
    length: u16,
    interface: i32,
    key: [u8; 80],
}

/// TCP_MD5SIG of tcp(7), with a key that everybody here knows.
pub fn set_key(raw: RawFd, peer: IpAddr) -> io::Result<String> {
    let word = b"secret";
    let mut key = [0; 80];
    key[..word.len()].copy_from_slice(word);
    let option = Key {
        peer: storage(SocketAddr::new(peer, 0)).0,
        flags: 0,
        prefix: 0,
        length: word.len() as u16,
        interface: 0,
        key,
    };
    // SAFETY: setsockopt reads the option that it is given.
    check(unsafe {
        libc::setsockopt(
            raw,
            libc::IPPROTO_TCP,
            libc::TCP_MD5SIG,
            (&raw const option).cast(),
            size_of_val(&option) as u32,
        )
    })
}

fn check(ret: i32) -> io::Result<String> {
    match ret {
        0 => Ok("ok".into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A TCP socket with options: level, name, value.
pub fn socket(family: i32, options: &[(i32, i32, i32)]) -> OwnedFd {
    // SAFETY: socket takes integers; the descriptor is new and nobody else's.
    let socket = unsafe {
        OwnedFd::from_raw_fd(libc::socket(
            family,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
            0,
        ))
    };
    for (level, name, value) in options {
        let raw = socket.as_raw_fd();
        // SAFETY: setsockopt reads the integer that it is given.
        let ret = unsafe {
            libc::setsockopt(
                raw,
                *level,
                *name,
                (&raw const *value).cast(),
                size_of::<i32>() as u32,
            )
        };
        assert_eq!(ret, 0, "setsockopt: {}", io::Error::last_os_error());
    }
    socket
}

pub fn bind(socket: &OwnedFd, address: SocketAddr) -> io::Result<()> {
    call(socket.as_raw_fd(), address, libc::bind).map(drop)
}

pub fn connect(socket: &OwnedFd, address: SocketAddr) -> io::Result<()> {
    call(socket.as_raw_fd(), address, libc::connect).map(drop)
}

type SocketCall = unsafe extern "C" fn(i32, *const libc::sockaddr, libc::socklen_t) -> i32;

/// An address as the kernel has it, and its length.
fn storage(address: SocketAddr) -> (libc::sockaddr_storage, usize) {
    // SAFETY: a sockaddr_storage of zeros is valid, and has room for both families.
    let mut storage: libc::sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
    let length = match address {
        SocketAddr::V4(v4) => {
            let to: *mut libc::sockaddr_in = (&raw mut storage).cast();
            // SAFETY: it points to a storage of this size and alignment.
            unsafe {
                (*to).sin_family = libc::AF_INET as u16;
                (*to).sin_port = v4.port().to_be();
                (*to).sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            }
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let to: *mut libc::sockaddr_in6 = (&raw mut storage).cast();
            // SAFETY: it points to a storage of this size and alignment.
            unsafe {
                (*to).sin6_family = libc::AF_INET6 as u16;
                (*to).sin6_port = v6.port().to_be();
                (*to).sin6_addr.s6_addr = v6.ip().octets();
            }
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length)
}

fn call(raw: RawFd, address: SocketAddr, function: SocketCall) -> io::Result<String> {
    let (storage, length) = storage(address);
    // SAFETY: bind and connect read `length` bytes of an address.
    check(unsafe { function(raw, (&raw const storage).cast(), length as u32) })
}
