//! A sluiced of its own for each test, and programs that talk to it.
#![allow(dead_code)]

use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sluice_control::client::{self, Client, ClientError};
use sluice_control::message::{
    Announce, FromDaemon, Hello, Lane, ProgramName, Role, ToDaemon, hello_flag,
};
use sluice_lane::table::table_bytes;
use sluice_shmem::parking::PARKING_BYTES;
use sluice_sys::memfd::{self, SEAL_FUTURE_WRITE, SEAL_GROW, SEAL_SHRINK, SharedWord};
use sluice_sys::unix::{Fd, Received};

/// Nothing in these tests takes long; a wait that ends by this time is a failure.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Looks until `condition` holds.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A directory that is removed at the end of the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("sluiced-test-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // What is left of a process of this number that was killed.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join("run/control.sock")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running sluiced, killed at the end of the test.
pub struct Daemon {
    pub child: Child,
    pub scratch: Scratch,
}

impl Daemon {
    pub fn start(arguments: &[&str]) -> Daemon {
        Daemon::start_in(Scratch::new(), arguments)
    }

    pub fn start_in(scratch: Scratch, arguments: &[&str]) -> Daemon {
        let child = command(&scratch).args(arguments).spawn().unwrap();
        let daemon = Daemon { child, scratch };
        wait_for("the start of sluiced", || daemon.ping().is_ok());
        daemon
    }

    pub fn ping(&self) -> Result<client::Alive, ClientError> {
        client::ping(&self.scratch.socket(), PATIENCE)
    }

    pub fn socket(&self) -> PathBuf {
        self.scratch.socket()
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.scratch.socket().as_os_str().as_bytes()).unwrap()
    }

    pub fn program(&self, name: &str) -> Program {
        Program::introduce_as(self.connect(), name)
    }

    pub fn status(&self) -> serde_json::Value {
        let document = client::status(&self.scratch.socket(), PATIENCE).unwrap();
        serde_json::from_slice(&document).unwrap()
    }

    pub fn counter(&self, name: &str) -> u64 {
        self.status()["counters"][name].as_u64().unwrap()
    }

    /// Descriptors that sluiced has open.
    pub fn open_files(&self) -> usize {
        let path = format!("/proc/{}/fd", self.child.id());
        fs::read_dir(path).unwrap().count()
    }

    pub fn signal(&self, signal: i32) {
        send_signal(self.child.id(), signal).unwrap();
    }

    /// Stops sluiced and its receiving processes. A signal is on its way when kill(2) returns; they stand still when this
    /// does.
    pub fn stop(&self) {
        let own = self.child.id();
        stop_process(own);
        for child in children_of(own) {
            stop_process(child);
        }
    }

    /// Lets them run again, those that have not ended.
    pub fn go_on(&self) {
        let own = self.child.id();
        for pid in children_of(own).into_iter().chain([own]) {
            let _ = send_signal(pid, libc::SIGCONT);
        }
    }

    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_for("the end of sluiced", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

fn send_signal(pid: u32, signal: i32) -> rustix::io::Result<()> {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
    rustix::process::kill_process(pid, signal)
}

fn stop_process(pid: u32) {
    send_signal(pid, libc::SIGSTOP).unwrap();
    wait_for("a stop", || {
        // It has ended, and nobody has waited for it; or it does what nothing interrupts, and stops before it returns from that.
        state_of(pid).is_none_or(|state| "TZXD".contains(&state))
    });
}

/// The fields behind the name (`proc_pid_stat(5)`), of which the state is the first. `None`: there is no such process.
pub fn stat_of(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = stat.rsplit_once(") ")?.1.split_whitespace();
    Some(fields.map(str::to_owned).collect())
}

/// What a process's first thread does.
pub fn state_of(pid: u32) -> Option<String> {
    stat_of(pid)?.first().cloned()
}

pub fn children_of(pid: u32) -> Vec<u32> {
    let own = pid.to_string();
    let is_child = |child: &u32| stat_of(*child).is_some_and(|stat| stat.get(1) == Some(&own));
    let names = fs::read_dir("/proc").unwrap().flatten();
    names
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(is_child)
        .collect()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // A receiving process that stands still would not see its end.
        if let Ok(None) = self.child.try_wait() {
            self.go_on();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The sluiced of this build: cargo tells tests where it is, and examples lie beside it.
pub fn sluiced() -> PathBuf {
    option_env!("CARGO_BIN_EXE_sluiced").map_or_else(
        || {
            std::env::current_exe()
                .unwrap()
                .with_file_name("../sluiced")
        },
        PathBuf::from,
    )
}

/// The command that serves the socket of `scratch`.
pub fn command(scratch: &Scratch) -> Command {
    let mut command = Command::new(sluiced());
    command.arg("--socket").arg(scratch.socket());
    command.stdin(Stdio::null());
    command
}

/// Executes a file that was just written: a child that another test starts meanwhile has it open for that, too, until it
/// executes its own program (`ETXTBSY`).
pub fn execute_copy<T>(mut execute: impl FnMut() -> std::io::Result<T>) -> T {
    let mut executed = None;
    wait_for("the end of all writers", || {
        let tried = execute();
        let is_busy = matches!(&tried, Err(error) if error.kind() == ErrorKind::ExecutableFileBusy);
        executed = (!is_busy).then_some(tried);
        executed.is_some()
    });
    executed.unwrap().unwrap()
}

/// Sealed memory, as programs bring it.
pub fn memory(bytes: u64, seals: u32) -> Fd {
    let fd = memfd::create(c"sluiced-test").unwrap();
    memfd::set_len(fd.raw(), bytes).unwrap();
    memfd::add_seals(fd.raw(), seals).unwrap();
    fd
}

pub fn event_flag() -> Fd {
    memory(4096, SEAL_SHRINK | SEAL_GROW)
}

pub fn parking() -> Fd {
    memory(
        PARKING_BYTES as u64,
        SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE,
    )
}

pub fn end_table() -> Fd {
    memory(
        table_bytes() as u64,
        SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE,
    )
}

pub fn hello(name: &str) -> ToDaemon {
    ToDaemon::Hello(Hello {
        pid: std::process::id(),
        program: ProgramName::new(name.as_bytes()),
        flags: 0,
    })
}

/// A program that has been welcomed.
pub struct Program {
    pub client: Client,
    pub id: u32,
    pub event_flag: SharedWord,
    pub end_table: Fd,
}

impl Program {
    pub fn introduce_as(client: Client, name: &str) -> Program {
        Program::with_table(client, name, end_table())
    }

    pub fn with_table(client: Client, name: &str, end_table: Fd) -> Program {
        Program::with(client, &hello(name), end_table)
    }

    /// A fork, which uses the end table of whoever introduced it.
    pub fn forked(client: Client, name: &str) -> Program {
        let hello = ToDaemon::Hello(Hello {
            pid: std::process::id(),
            program: ProgramName::new(name.as_bytes()),
            flags: hello_flag::SHARED,
        });
        Program::with(client, &hello, end_table())
    }

    fn with(client: Client, hello: &ToDaemon, end_table: Fd) -> Program {
        let (event_flag, parking) = (event_flag(), parking());
        let fds = [event_flag.raw(), parking.raw(), end_table.raw()];
        client.send(hello, &fds).unwrap();
        let (answer, _) = next(&client);
        let FromDaemon::Welcome { client: id, .. } = answer else {
            panic!("not welcome: {answer:?}");
        };
        let event_flag = SharedWord::map(event_flag.raw()).unwrap();
        let program = Program {
            client,
            id,
            event_flag,
            end_table,
        };
        program.wait_for_ring();
        program
    }

    /// The event flag is set, and cleared again. sluiced sets it after it has sent.
    pub fn wait_for_ring(&self) {
        wait_for("the ring of the event flag", || {
            self.event_flag.swap(0) == 1
        });
    }

    pub fn announce(&self, end: u32, socket: &impl AsRawFd) {
        self.announce_life(end, 1, socket.as_raw_fd());
    }

    pub fn announce_life(&self, end: u32, generation: u32, socket: RawFd) {
        let announce = ToDaemon::Announce(Announce {
            end,
            generation,
            role: Role::Unknown,
        });
        self.client.send(&announce, &[socket]).unwrap();
    }

    pub fn release(&self, end: u32) {
        let release = ToDaemon::Release { end, generation: 1 };
        self.client.send(&release, &[]).unwrap();
        self.settle();
    }

    /// Waits until sluiced has done all that this program has sent; no other message may come
    /// before the answer.
    pub fn settle(&self) {
        wait_for("room for a ping", || {
            self.client.send(&ToDaemon::Ping, &[]).is_ok()
        });
        let (answer, _) = next(&self.client);
        assert!(matches!(answer, FromDaemon::Pong { .. }), "{answer:?}");
    }

    /// The next message must be a lane.
    pub fn lane(&self) -> (Lane, Received) {
        let (answer, received) = next(&self.client);
        let FromDaemon::Lane(lane) = answer else {
            panic!("no lane but {answer:?}");
        };
        assert_eq!(received.fd_count(), lane.fd_count());
        (lane, received)
    }

    /// No message waits.
    pub fn assert_quiet(&self) {
        if let Some((message, _)) = self.client.receive().unwrap() {
            panic!("unexpected {message:?}");
        }
    }
}

/// The next message from sluiced, within the patience.
pub fn next(client: &Client) -> (FromDaemon, Received) {
    client.receive_until(Instant::now() + PATIENCE).unwrap()
}

/// Both ends of a connection through a listener at `address`: connected, accepted.
pub fn tcp_pair(address: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).unwrap();
    let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    (connected, accepted)
}

/// Says that a test cannot run here; with `SLUICE_NO_SKIP=1` that is a failure.
pub fn skip(test: &str, reason: &str) {
    let forbidden = std::env::var_os("SLUICE_NO_SKIP").is_some_and(|value| value == "1");
    assert!(!forbidden, "{test} cannot run: {reason}");
    println!("SKIP {test}: {reason}");
}
