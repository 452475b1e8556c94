//! A driver over a socket of the kernel's, as plain as one can be: it blocks, and its memory are
//! vectors. It shows what a driver has to do, and lets the state machine talk to anybody.

// The example and the tests use parts of it.
#![allow(dead_code)]

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use sluice_protocol::iwarp::{
    self, Config, Connection, Frame, Memory, Payload, Place, Refusal, Settings, Stream, Wishes,
};
use sluice_protocol::{
    Access, Atomic, Completion, Instant, Operation, Received, Remote, Request, Status, TakeError,
};
use sluice_wire::iwarp::{Role, Startup, fpdu};

/// A key for the region; and where that begins, in the peer's counting.
pub const KEY: u32 = 0x51_1ce0;
pub const BASE: u64 = 0x1000_0000;
const RECEIVE_BYTES: usize = 4096;
/// Nobody is waited for longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// A peer that has not answered for so long is sent something.
const KEEPALIVE: Duration = Duration::from_millis(200);

pub fn wishes(crc: bool) -> Wishes {
    Wishes {
        crc,
        ird: 4,
        ird_max: 16,
        ord: 4,
        peer_to_peer: true,
        long_frames: false,
    }
}

fn is_timeout(error: &io::Error) -> bool {
    // The kernel says the one, and the library of some systems the other.
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn bad(text: impl std::fmt::Debug) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{text:?}"))
}

#[derive(Default)]
struct Plain {
    region: Vec<u8>,
    receives: usize,
    current: Vec<u8>,
    messages: VecDeque<Vec<u8>>,
    /// The bytes of requests, or of their answers.
    requests: BTreeMap<u64, Vec<u8>>,
}

impl Plain {
    fn region(&mut self, remote: Remote, length: usize) -> Result<&mut [u8], Refusal> {
        if remote.rkey != KEY {
            return Err(Refusal::InvalidStag);
        }
        let start = remote.address.checked_sub(BASE).ok_or(Refusal::Bounds)?;
        let start = usize::try_from(start).map_err(|_| Refusal::Bounds)?;
        let end = start.checked_add(length).ok_or(Refusal::Bounds)?;
        self.region.get_mut(start..end).ok_or(Refusal::Bounds)
    }

    fn place(&mut self, place: Place, length: usize) -> Result<&mut [u8], Refusal> {
        let (bytes, offset) = match place {
            Place::Region(remote) => return self.region(remote, length),
            Place::Receive { offset } => (&mut self.current, offset),
            Place::Request { seq, offset } => {
                let bytes = self.requests.get_mut(&seq).ok_or(Refusal::Local)?;
                (bytes, offset)
            }
        };
        bytes
            .get_mut(offset as usize..)
            .and_then(|bytes| bytes.get_mut(..length))
            .ok_or(Refusal::Local)
    }

    fn gather(&mut self, payload: Payload) -> Result<Vec<u8>, Refusal> {
        match payload {
            Payload::None => Ok(Vec::new()),
            Payload::Request {
                seq,
                offset,
                length,
            } => {
                let place = Place::Request { seq, offset };
                self.place(place, length as usize)
                    .map(|bytes| bytes.to_vec())
            }
            Payload::Region { remote, length } => self
                .region(remote, length as usize)
                .map(|bytes| bytes.to_vec()),
        }
    }
}

impl Memory for Plain {
    fn check(&mut self, _: Access, remote: Remote, length: u32) -> Result<(), Refusal> {
        self.region(remote, length as usize).map(|_| ())
    }

    fn put(&mut self, place: Place, bytes: &[u8]) -> Result<(), Refusal> {
        self.place(place, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(&mut self, remote: Remote, atomic: Atomic) -> Result<u64, Refusal> {
        let place = self.region(remote, 8)?;
        let place = place.first_chunk_mut().ok_or(Refusal::Bounds)?;
        let original = u64::from_ne_bytes(*place);
        let value = match atomic {
            Atomic::FetchAdd(add) => original.wrapping_add(add),
            Atomic::CompareSwap { compare, swap } if compare == original => swap,
            Atomic::CompareSwap { .. } => original,
        };
        *place = value.to_ne_bytes();
        Ok(original)
    }

    fn take_receive(&mut self) -> Result<u32, TakeError> {
        self.receives = self.receives.checked_sub(1).ok_or(TakeError::Empty)?;
        self.current = vec![0; RECEIVE_BYTES];
        Ok(RECEIVE_BYTES as u32)
    }

    fn invalidate(&mut self, _: u32) -> Result<(), Refusal> {
        Err(Refusal::CannotInvalidate)
    }

    fn complete_receive(&mut self, received: &Received) {
        let mut bytes = std::mem::take(&mut self.current);
        if received.status == Status::Success {
            bytes.truncate(received.length as usize);
            self.messages.push_back(bytes);
        }
    }
}

pub struct Driver {
    tcp: TcpStream,
    pub connection: Connection,
    memory: Plain,
    staged: Vec<u8>,
    begun: std::time::Instant,
    next: u64,
}

/// Reads a frame of the start, and gives it to `use_it` with what came behind it.
fn start<T>(
    tcp: &mut TcpStream,
    role: Role,
    use_it: impl FnOnce(&Startup<'_>) -> Result<T, iwarp::Obstacle>,
) -> io::Result<(T, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(arrived) = iwarp::arrived(role, &bytes).map_err(bad)? {
            let made = use_it(&arrived.startup).map_err(bad)?;
            let used = arrived.bytes;
            return Ok((made, bytes.split_off(used)));
        }
        let mut more = [0; 64];
        match tcp.read(&mut more)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => bytes.extend(&more[..count]),
        }
    }
}

fn send(tcp: &mut TcpStream, frame: &Startup<'_>) -> io::Result<()> {
    let mut buffer = [0; Startup::BYTES_MAX];
    let used = frame.emit(&mut buffer).map_err(bad)?;
    tcp.write_all(&buffer[..used])
}

impl Driver {
    pub fn connect(mut tcp: TcpStream, wishes: &Wishes, region: usize) -> io::Result<Self> {
        tcp.set_read_timeout(Some(PATIENCE))?;
        send(&mut tcp, &iwarp::request(wishes, b""))?;
        let (settings, rest) = start(&mut tcp, Role::Reply, |reply| {
            iwarp::established(wishes, reply)
        })?;
        Self::new(tcp, settings, region, rest)
    }

    pub fn accept(mut tcp: TcpStream, wishes: &Wishes, region: usize) -> io::Result<Self> {
        tcp.set_read_timeout(Some(PATIENCE))?;
        let mut answer = tcp.try_clone()?;
        let (settings, rest) = start(&mut tcp, Role::Request, |request| {
            iwarp::acceptable(request)?;
            let (reply, settings) = iwarp::accept(request, wishes, b"");
            Ok(send(&mut answer, &reply).map(|()| settings))
        })?;
        Self::new(tcp, settings?, region, rest)
    }

    fn new(tcp: TcpStream, settings: Settings, region: usize, rest: Vec<u8>) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        let memory = Plain {
            region: vec![0; region],
            receives: 8,
            ..Plain::default()
        };
        let mut driver = Self {
            tcp,
            connection: Connection::new(&Config {
                settings,
                mulpdu: fpdu::mulpdu(1448),
                depth: 16,
                receive_wait: PATIENCE,
                close_wait: Duration::from_secs(1),
                keepalive: KEEPALIVE,
            }),
            memory,
            staged: rest,
            begun: std::time::Instant::now(),
            next: 0,
        };
        driver.take()?;
        driver.flush()?;
        Ok(driver)
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.begun.elapsed().as_nanos() as u64)
    }

    pub fn region(&mut self) -> &mut [u8] {
        &mut self.memory.region
    }

    /// Asks for something; `bytes` are those that go, or the place of those that come.
    pub fn post(&mut self, operation: Operation, bytes: Vec<u8>) -> io::Result<u64> {
        let seq = self.next;
        self.next += 1;
        let request = Request {
            seq,
            operation,
            length: bytes.len() as u32,
            solicited: false,
            srq: None,
        };
        self.memory.requests.insert(seq, bytes);
        self.connection.post(request).map_err(bad)?;
        self.flush()?;
        Ok(seq)
    }

    /// Waits until that request is done; the bytes that came.
    pub fn wait(&mut self, seq: u64) -> io::Result<Vec<u8>> {
        loop {
            while let Some(Completion {
                seq: done, status, ..
            }) = self.connection.completion()
            {
                if status != Status::Success {
                    return Err(bad((done, status, self.connection.failure())));
                }
                if done == seq {
                    return Ok(self.memory.requests.remove(&seq).unwrap_or_default());
                }
            }
            self.turn()?;
        }
    }

    /// Waits for a message.
    pub fn message(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(message) = self.memory.messages.pop_front() {
                self.memory.receives += 1;
                return Ok(message);
            }
            self.turn()?;
        }
    }

    /// Goes on until the peer closes; whether that is in order.
    pub fn finish(&mut self, close: bool) -> io::Result<bool> {
        if close {
            self.connection.close();
        }
        loop {
            if self.connection.stream() == Stream::Finish {
                self.tcp.shutdown(std::net::Shutdown::Write)?;
                let mut rest = [0; 64];
                // What an end that has given up still says.
                while self.tcp.read(&mut rest)? > 0 {}
                return Ok(self.connection.failure().is_none());
            }
            match self.turn() {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(self.connection.failure().is_none());
                }
                turn => turn?,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while let Some(frame) = self.connection.transmit() {
            self.write(&frame)?;
        }
        let now = self.now();
        self.connection.sent(now);
        Ok(())
    }

    fn write(&mut self, frame: &Frame) -> io::Result<()> {
        match self.memory.gather(frame.payload) {
            Ok(payload) => {
                let mut sum = frame.sum();
                if frame.has_crc() {
                    sum.update(&payload);
                }
                let trailer = frame.trailer(sum);
                let bytes = [frame.head(), &payload, trailer.bytes()].concat();
                self.tcp.write_all(&bytes)?;
                self.connection.released(frame.end);
            }
            Err(refusal) => {
                let now = self.now();
                self.connection
                    .fail_gather(now, frame, refusal, &mut self.memory);
            }
        }
        Ok(())
    }

    /// Waits until there is something to read, and sees to what is due meanwhile.
    fn await_input(&mut self) -> io::Result<()> {
        let begun = std::time::Instant::now();
        loop {
            self.tcp.set_read_timeout(Some(KEEPALIVE))?;
            let there = self.tcp.peek(&mut [0]);
            self.tcp.set_read_timeout(Some(PATIENCE))?;
            match there {
                Err(error) if is_timeout(&error) && begun.elapsed() < PATIENCE => {
                    let now = self.now();
                    self.connection.expire(now, &mut self.memory);
                    self.flush()?;
                }
                there => return there.map(drop),
            }
        }
    }

    /// Reads once, and writes what follows from that.
    fn turn(&mut self) -> io::Result<()> {
        self.await_input()?;
        let mut buffer = [0; 2048];
        let direct = if self.staged.is_empty() {
            self.connection.expected()
        } else {
            None
        };
        let (count, placed) = match direct {
            Some(direct) => {
                let place = self.memory.place(direct.place, direct.length);
                let place = place.map_err(bad)?;
                let mut places = [IoSliceMut::new(place), IoSliceMut::new(&mut buffer)];
                let count = self.tcp.read_vectored(&mut places)?;
                (count, count.min(direct.length))
            }
            None => (self.tcp.read(&mut buffer)?, 0),
        };
        if count == 0 {
            self.connection.peer_closed(&mut self.memory);
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.connection.placed(placed);
        self.staged.extend(&buffer[..count - placed]);
        self.take()?;
        self.flush()
    }

    fn take(&mut self) -> io::Result<()> {
        let now = self.now();
        let used = self.connection.receive(now, &self.staged, &mut self.memory);
        self.staged.drain(..used);
        Ok(())
    }
}

/// What rping's ends tell each other of memory (rdma-core, `librdmacm/examples/rping.c`).
fn info(remote: Remote, size: u32) -> Vec<u8> {
    let mut bytes = remote.address.to_be_bytes().to_vec();
    bytes.extend(remote.rkey.to_be_bytes());
    bytes.extend(size.to_be_bytes());
    bytes
}

fn parse_info(bytes: &[u8]) -> io::Result<(Remote, u32)> {
    let fields = (bytes.get(..8), bytes.get(8..12), bytes.get(12..16));
    let (Some(address), Some(rkey), Some(size), 16) = (fields.0, fields.1, fields.2, bytes.len())
    else {
        return Err(bad("no information of rping's"));
    };
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let remote = Remote {
        address: number(address),
        rkey: number(rkey) as u32,
    };
    Ok((remote, number(size) as u32))
}

/// rping's server: reads what the client names, and writes it where the client then says. Until
/// the client closes the connection; how often.
pub fn serve(mut driver: Driver) -> io::Result<usize> {
    for count in 0.. {
        let message = match driver.message() {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return match driver.connection.failure() {
                    None => Ok(count),
                    Some(failure) => Err(bad(failure)),
                };
            }
            message => message?,
        };
        let (source, size) = parse_info(&message)?;
        let read = driver.post(Operation::Read(source), vec![0; size as usize])?;
        let bytes = driver.wait(read)?;
        driver.post(Operation::Send, message)?;
        let message = driver.message()?;
        let (sink, _) = parse_info(&message)?;
        driver.post(Operation::Write(sink), bytes)?;
        let send = driver.post(Operation::Send, message)?;
        driver.wait(send)?;
    }
    Ok(0)
}

/// rping's client: so often so many bytes there and back.
pub fn ping(driver: &mut Driver, count: usize, size: usize) -> io::Result<()> {
    let at = |offset: usize| Remote {
        address: BASE + offset as u64,
        rkey: KEY,
    };
    for round in 0..count {
        // A server of rdma-core's writes back as much as is a string, with its end.
        for (place, byte) in driver.region().iter_mut().zip(0..size) {
            *place = b'A' + ((byte + round) % 58) as u8;
        }
        driver.region()[size - 1] = 0;
        driver.region()[size..2 * size].fill(0);
        for offset in [0, size] {
            let send = driver.post(Operation::Send, info(at(offset), size as u32))?;
            driver
                .wait(send)
                .map_err(|e| bad(("wait", round, offset, e)))?;
            driver
                .message()
                .map_err(|e| bad(("message", round, offset, e)))?;
        }
        let (sent, came) = driver.region().split_at(size);
        if sent != &came[..size] {
            return Err(bad(("other bytes came back", round)));
        }
    }
    match driver.finish(true)? {
        true => Ok(()),
        false => Err(bad(driver.connection.failure())),
    }
}
