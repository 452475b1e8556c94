//! Small programs that some workloads run: hidden words of `sluice-bench` itself.

#![allow(unsafe_code)]

mod busy;
pub mod flow;
mod memcpy;
pub mod ping;
pub mod stall;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Subcommand;

/// How often a connection that is to be held is used first: enough for a lane to be worthwhile.
const HOLD_ROUNDS: usize = 20;
const HOLD_MESSAGE_BYTES: usize = 64;
const EVENTS_MAX: usize = 64;

/// What to be.
#[derive(Debug, Clone, Subcommand)]
pub enum Helper {
    /// Accepts, echoes one byte, closes; in so many threads
    #[command(hide = true)]
    EchoOnceServer { port: u16, threads: u32 },
    /// Connects, sends a byte, reads it back, closes; for so many seconds
    #[command(hide = true)]
    EchoOnceClient {
        port: u16,
        threads: u32,
        seconds: u32,
    },
    /// Echoes on any number of connections from one thread
    #[command(hide = true)]
    HoldServer {
        port: u16,
        #[arg(default_value_t = Ipv4Addr::LOCALHOST)]
        address: Ipv4Addr,
    },
    /// Opens connections when its input ends, uses each a few times, and waits for ever
    #[command(hide = true)]
    HoldClient {
        port: u16,
        connections: u32,
        #[arg(default_value_t = Ipv4Addr::LOCALHOST)]
        address: Ipv4Addr,
    },
    /// Exchanges messages with the echoing server for so many seconds, with pauses between them
    #[command(hide = true)]
    PingClient {
        port: u16,
        seconds: u32,
        pause_us: u64,
        address: Ipv4Addr,
    },
    /// Uses a processor at a nice level
    #[command(hide = true)]
    EndlessLoop { nice: u8 },
    /// Echoes on any number of connections, with a thread for each
    #[command(hide = true)]
    RoundsServer { port: u16 },
    /// Sends a message on each connection when the last one came back, with a thread for each; for so many seconds
    #[command(hide = true)]
    RoundsClient {
        port: u16,
        connections: u32,
        seconds: u32,
    },
    /// Copies so many bytes again and again, for so many seconds
    #[command(hide = true)]
    Memcpy { bytes: usize, seconds: u32 },
    /// Accepts one connection, sleeps until its input ends, and then reads everything
    #[command(hide = true)]
    StallReader {
        port: u16,
        #[arg(default_value_t = Ipv4Addr::LOCALHOST)]
        address: Ipv4Addr,
    },
    /// When its input ends, writes as fast as it can for so many seconds
    #[command(hide = true)]
    StallWriter {
        port: u16,
        seconds: u32,
        #[arg(default_value_t = Ipv4Addr::LOCALHOST)]
        address: Ipv4Addr,
    },
    /// Accepts one connection, sleeps until its input ends, reads slowly for so long, then everything
    #[command(hide = true)]
    FlowReader {
        port: u16,
        address: Ipv4Addr,
        slow_s: u32,
    },
    /// When its input ends, writes for so many seconds, with a bound for what was not read
    #[command(hide = true)]
    FlowWriter {
        port: u16,
        address: Ipv4Addr,
        seconds: u32,
        window_mib: u32,
    },
}

/// Is the helper; returns when it has failed or has nothing more to do.
pub fn run(helper: &Helper) -> ExitCode {
    let result = match *helper {
        Helper::EchoOnceServer { port, threads } => echo_once_server(port, threads),
        Helper::EchoOnceClient {
            port,
            threads,
            seconds,
        } => echo_once_client(port, threads, seconds),
        Helper::HoldServer { port, address } => hold_server((address, port)),
        Helper::HoldClient {
            port,
            connections,
            address,
        } => hold_client((address, port), connections),
        Helper::PingClient {
            port,
            seconds,
            pause_us,
            address,
        } => ping::client((address, port), seconds, Duration::from_micros(pause_us)),
        Helper::EndlessLoop { nice } => busy::endless_loop(nice),
        Helper::RoundsServer { port } => busy::server(port),
        Helper::RoundsClient {
            port,
            connections,
            seconds,
        } => busy::client(port, connections, seconds),
        Helper::Memcpy { bytes, seconds } => memcpy::run(bytes, seconds),
        Helper::StallReader { port, address } => stall::reader((address, port)),
        Helper::StallWriter {
            port,
            seconds,
            address,
        } => stall::writer((address, port), seconds),
        Helper::FlowReader {
            port,
            address,
            slow_s,
        } => flow::reader((address, port), slow_s),
        Helper::FlowWriter {
            port,
            address,
            seconds,
            window_mib,
        } => flow::writer((address, port), seconds, window_mib),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "sluice: {helper:?}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn echo_once_server(port: u16, threads: u32) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    std::thread::scope(|scope| {
        let serve = || -> io::Result<()> {
            loop {
                let (mut connection, _) = listener.accept()?;
                let mut byte = [0];
                // A client that closed without a byte is the runner's look whether we are up.
                if connection.read(&mut byte)? == 1 {
                    connection.write_all(&byte)?;
                }
            }
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(serve)).collect();
        first_failure(threads)
    })
}

fn echo_once_client(port: u16, threads: u32, seconds: u32) -> io::Result<()> {
    let start = Instant::now();
    let until = start + Duration::from_secs(u64::from(seconds));
    let connect_again = || -> io::Result<u64> {
        let mut connections = 0;
        while Instant::now() < until {
            let mut connection = TcpStream::connect(("127.0.0.1", port))?;
            connection.write_all(b"?")?;
            let mut answer = Vec::new();
            connection.read_to_end(&mut answer)?;
            if answer != b"?" {
                return Err(io::Error::other(format!("the echo was {answer:?}")));
            }
            connections += 1;
        }
        Ok(connections)
    };
    let total = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(connect_again)).collect();
        threads.into_iter().map(join).sum::<io::Result<u64>>()
    })?;
    let elapsed_s = start.elapsed().as_secs_f64();
    writeln!(io::stdout(), "{total} connections in {elapsed_s} seconds")
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

fn first_failure(
    threads: Vec<std::thread::ScopedJoinHandle<'_, io::Result<()>>>,
) -> io::Result<()> {
    threads.into_iter().try_for_each(join)
}

fn hold_server(at: (Ipv4Addr, u16)) -> io::Result<()> {
    let listener = TcpListener::bind(at)?;
    let epoll = Epoll::new()?;
    epoll.add(listener.as_raw_fd())?;
    // Indexed by descriptor, which the kernel keeps small.
    let mut connections: Vec<Option<TcpStream>> = Vec::new();
    loop {
        for fd in epoll.wait()? {
            if fd == listener.as_raw_fd() {
                let (connection, _) = listener.accept()?;
                epoll.add(connection.as_raw_fd())?;
                put(&mut connections, connection);
                continue;
            }
            let slot = usize::try_from(fd)
                .ok()
                .and_then(|index| connections.get_mut(index));
            let Some(slot) = slot else { continue };
            let Some(connection) = slot else { continue };
            let mut bytes = [0; HOLD_MESSAGE_BYTES];
            match connection.read(&mut bytes)? {
                0 => *slot = None,
                length => connection.write_all(&bytes[..length])?,
            }
        }
    }
}

/// One of the [`HOLD_ROUNDS`] of a connection.
fn expect_echo(connection: &mut TcpStream, round: usize) -> io::Result<()> {
    let message = [u8::try_from(round).unwrap_or(0); HOLD_MESSAGE_BYTES];
    connection.write_all(&message)?;
    let mut echo = [0; HOLD_MESSAGE_BYTES];
    connection.read_exact(&mut echo)?;
    if echo == message {
        Ok(())
    } else {
        Err(io::Error::other("the echo differs"))
    }
}

fn put(connections: &mut Vec<Option<TcpStream>>, connection: TcpStream) {
    let Ok(index) = usize::try_from(connection.as_raw_fd()) else {
        return;
    };
    if connections.len() <= index {
        connections.resize_with(index + 1, || None);
    }
    connections[index] = Some(connection);
}

fn hold_client(at: (Ipv4Addr, u16), connections: u32) -> io::Result<()> {
    let mut output = io::stdout();
    writeln!(output, "waiting")?;
    io::stdin().read_to_end(&mut Vec::new())?;
    let epoll = Epoll::new()?;
    let mut held = Vec::new();
    for _ in 0..connections {
        let connection = TcpStream::connect(at)?;
        epoll.add(connection.as_raw_fd())?;
        held.push(connection);
    }
    for round in 0..HOLD_ROUNDS {
        for connection in &mut held {
            expect_echo(connection, round)?;
        }
    }
    writeln!(output, "open")?;
    output.flush()?;
    loop {
        let ready = epoll.wait()?;
        if !ready.is_empty() {
            return Err(io::Error::other("an idle connection became readable"));
        }
    }
}

/// A level-triggered epoll instance whose events carry descriptors.
struct Epoll(OwnedFd);

impl Epoll {
    fn new() -> io::Result<Self> {
        // SAFETY: the call takes flags and returns a new descriptor or -1.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn add(&self, fd: RawFd) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN.cast_unsigned(),
            u64: u64::from(fd.cast_unsigned()),
        };
        // SAFETY: the kernel only reads the event, which outlives the call.
        let status =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        if status == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Blocks until something is readable; an interrupted wait returns nothing.
    fn wait(&self) -> io::Result<Vec<RawFd>> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        // SAFETY: the kernel writes at most the number of events that the array has.
        let count = unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                EVENTS_MAX as i32,
                -1,
            )
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::Interrupted => Ok(Vec::new()),
                _ => Err(error),
            };
        }
        let count = usize::try_from(count).unwrap_or(0);
        let ready = events.iter().take(count);
        Ok(ready
            .filter_map(|event| RawFd::try_from(event.u64).ok())
            .collect())
    }
}
