//! The proxy's part: what arrives at its sockets goes to the other proxy, and what comes from there
//! to its sockets.

#![allow(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use sluice_sys::bpf::RingBuffer;

use crate::say;
use crate::steering::{Ends, Steering};

/// A frame between proxies: whose bytes, as the program that wrote them sees its connection; how
/// many; the bytes.
const HEADER_BYTES: usize = Ends::BYTES + 4;
const PAYLOAD_BYTES_MAX: usize = 256 << 10;

/// How long a connection may take to be established at both ends.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two attempts when the kernel has no memory for a queue.
const RETRY: Duration = Duration::from_millis(1);

/// What the threads of both directions use.
struct Proxy {
    link: TcpStream,
    pool: Vec<TcpStream>,
    known: Mutex<Known>,
    grown: Condvar,
}

/// Which connection has which socket of the pool, both ways.
#[derive(Default)]
struct Known {
    sockets: HashMap<Ends, usize>,
    programs: HashMap<usize, Ends>,
}

/// Carries both ways until the other proxy has ended. Each direction has a thread, so that neither
/// can hold the other up.
pub fn run(steering: Steering, link: TcpStream) -> io::Result<()> {
    let Steering {
        pool,
        mut arrivals,
        kept: _kept,
    } = steering;
    let proxy = Arc::new(Proxy {
        link,
        pool,
        known: Mutex::default(),
        grown: Condvar::new(),
    });
    let other = Arc::clone(&proxy);
    std::thread::spawn(move || {
        if let Err(error) = other.give_out(&mut arrivals) {
            let _ = writeln!(io::stderr(), "sluice-skmsg: {error}");
        }
        // That ends the other direction.
        let _ = other.link.shutdown(Shutdown::Both);
    });
    // The thread, which may be waiting for programs, ends with the process.
    proxy.take_in()
}

impl Proxy {
    /// Sends what programs write to the other proxy.
    fn give_out(&self, arrivals: &mut RingBuffer) -> io::Result<()> {
        let mut frame = vec![0; HEADER_BYTES + PAYLOAD_BYTES_MAX];
        let mut carried = HashSet::new();
        loop {
            let (new, readable) = self.wait(arrivals)?;
            // First, as what is readable may be of a connection that is new.
            if new {
                self.learn(arrivals);
            }
            for socket in readable {
                let length = (&self.pool[socket]).read(&mut frame[HEADER_BYTES..])?;
                let program = self.known().programs.get(&socket).copied();
                let program = program.ok_or_else(|| broken("bytes of no connection"))?;
                let header = header(program, length);
                frame[..HEADER_BYTES].copy_from_slice(&header);
                (&self.link).write_all(&frame[..HEADER_BYTES + length])?;
                if carried.insert(socket) {
                    say("carries")?;
                }
            }
        }
    }

    /// Gives programs what the other proxy sends.
    fn take_in(&self) -> io::Result<()> {
        let mut link = BufReader::with_capacity(PAYLOAD_BYTES_MAX, &self.link);
        let mut payload = vec![0; PAYLOAD_BYTES_MAX];
        loop {
            if link.fill_buf()?.is_empty() {
                return Ok(());
            }
            let mut header = [0; HEADER_BYTES];
            link.read_exact(&mut header)?;
            let (program, length) = parsed(&header).ok_or_else(|| broken("not a frame"))?;
            let payload = payload.get_mut(..length);
            let payload = payload.ok_or_else(|| broken("a frame that is too long"))?;
            link.read_exact(payload)?;
            let socket = self.socket_of(program.turned());
            let socket = socket.ok_or_else(|| broken("bytes for no connection"))?;
            give(&self.pool[socket], payload)?;
        }
    }

    /// Waits until there are new connections, or bytes at sockets: which.
    fn wait(&self, arrivals: &RingBuffer) -> io::Result<(bool, Vec<usize>)> {
        // SAFETY: the ring is open as long as it is borrowed.
        let ring = unsafe { BorrowedFd::borrow_raw(arrivals.map().raw()) };
        let mut set = vec![PollFd::new(&ring, PollFlags::IN)];
        let sockets = self.pool.iter();
        set.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN)));
        poll(&mut set, None)?;
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let ready = set[1..].iter().enumerate();
        let readable = ready.filter(|(_, fd)| is_ready(fd)).map(|(index, _)| index);
        Ok((is_ready(&set[0]), readable.collect()))
    }

    fn learn(&self, arrivals: &mut RingBuffer) {
        let mut known = self.known();
        Steering::new_arrivals(arrivals, |arrival| {
            known.sockets.insert(arrival.program, arrival.socket);
            known.programs.insert(arrival.socket, arrival.program);
        });
        self.grown.notify_all();
    }

    /// The socket of a connection, for which it waits a while.
    fn socket_of(&self, program: Ends) -> Option<usize> {
        let unknown = |known: &mut Known| !known.sockets.contains_key(&program);
        let waited = self
            .grown
            .wait_timeout_while(self.known(), PATIENCE, unknown);
        let (known, _) = waited.unwrap_or_else(PoisonError::into_inner);
        known.sockets.get(&program).copied()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes all of it. A queue of incoming messages takes what it is given until the kernel has no
/// memory for sockets left.
fn give(mut socket: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => std::thread::sleep(RETRY),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn header(program: Ends, length: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..Ends::BYTES].copy_from_slice(&program.to_bytes());
    // At most PAYLOAD_BYTES_MAX.
    header[Ends::BYTES..].copy_from_slice(&(length as u32).to_ne_bytes());
    header
}

fn parsed(header: &[u8; HEADER_BYTES]) -> Option<(Ends, usize)> {
    let ends = header.first_chunk()?;
    let length = u32::from_ne_bytes(*header.last_chunk()?);
    Some((Ends::from_bytes(ends)?, usize::try_from(length).ok()?))
}

fn broken(what: &str) -> io::Error {
    io::Error::other(what)
}
