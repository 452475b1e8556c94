//! A writer that pushes as hard as it can, and a reader that sleeps meanwhile.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{HOLD_MESSAGE_BYTES, HOLD_ROUNDS, expect_echo};
use crate::signals;

/// What both say when the connection was used often enough to be worth a lane.
pub const OPEN: &str = "open";
pub const LISTENING: &str = "listening";

/// One write. Small, because what a call that blocks has taken already is not counted.
const BLOCK_BYTES: usize = 4_096;
/// What a sleeping reader is given at most: without backpressure this stops the writer before
/// the machine's memory does.
const UNREAD_BYTES_MAX: u64 = 1 << 30;
/// Sent after the reader has woken up, to see that the connection still carries bytes.
const AFTERWARDS_BYTES: u64 = 16 << 20;

/// What the writer found; a line of JSON on its standard output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Pushed {
    pub bytes: u64,
    pub checksum: u64,
    /// How long its longest write took.
    pub blocked_s: f64,
    /// User and system time of the process in that write.
    pub blocked_cpu_s: f64,
    /// Bytes that all writes before that one took.
    pub accepted_bytes: u64,
    /// It was never stopped: it gave up after so many bytes that it would endanger the machine.
    pub endless: bool,
}

/// What the reader got; a line of JSON on its standard output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Received {
    pub bytes: u64,
    pub checksum: u64,
}

/// Accepts one connection, which is used until it is worth a lane, and waits for the end of its
/// standard input.
pub(super) fn accept_used(at: (Ipv4Addr, u16)) -> io::Result<TcpStream> {
    let listener = TcpListener::bind(at)?;
    say(LISTENING)?;
    let (mut connection, _) = listener.accept()?;
    for _ in 0..HOLD_ROUNDS {
        let mut message = [0; HOLD_MESSAGE_BYTES];
        connection.read_exact(&mut message)?;
        connection.write_all(&message)?;
    }
    say(OPEN)?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(connection)
}

/// The other end of [`accept_used`], which waits likewise.
pub(super) fn connect_used(at: (Ipv4Addr, u16)) -> io::Result<TcpStream> {
    let mut connection = TcpStream::connect(at)?;
    for round in 0..HOLD_ROUNDS {
        expect_echo(&mut connection, round)?;
    }
    say(OPEN)?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(connection)
}

/// Accepts one connection, sleeps until its standard input ends, then reads everything.
pub(super) fn reader(at: (Ipv4Addr, u16)) -> io::Result<()> {
    let mut connection = accept_used(at)?;
    let mut received = Received {
        bytes: 0,
        checksum: Checksum::START,
    };
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = connection.read(&mut buffer)?;
        if length == 0 {
            return say_json(&received);
        }
        received.bytes += length as u64;
        received.checksum = Checksum::after(received.checksum, &buffer[..length]);
    }
}

/// Connects, waits for the end of its standard input, and pushes for so many seconds.
pub(super) fn writer(at: (Ipv4Addr, u16), seconds: u32) -> io::Result<()> {
    let mut connection = connect_used(at)?;
    let pushed = push(&mut connection, Duration::from_secs(u64::from(seconds)))?;
    connection.shutdown(std::net::Shutdown::Write)?;
    say_json(&pushed)
}

/// Writes until `duration` is over, so that the last write is one that the reader's sleep held
/// up; then some more.
fn push(connection: &mut impl Write, duration: Duration) -> io::Result<Pushed> {
    let mut pushed = Pushed {
        bytes: 0,
        checksum: Checksum::START,
        blocked_s: 0.0,
        blocked_cpu_s: 0.0,
        accepted_bytes: 0,
        endless: false,
    };
    let mut content = Content(1);
    let (start, own) = (Instant::now(), std::process::id().cast_signed());
    let cpu_ns = || signals::process_cpu_ns(own).unwrap_or(0);
    let (mut call_start, mut call_cpu_ns) = (start, cpu_ns());
    while start.elapsed() < duration {
        if pushed.bytes >= UNREAD_BYTES_MAX {
            pushed.endless = true;
            break;
        }
        let block = content.next_block();
        let mut rest = &block[..];
        while !rest.is_empty() {
            let accepted = pushed.bytes + (block.len() - rest.len()) as u64;
            let length = write(connection, rest)?;
            rest = &rest[length..];
            let (call_end, cpu_end_ns) = (Instant::now(), cpu_ns());
            let took_s = (call_end - call_start).as_secs_f64();
            if took_s > pushed.blocked_s {
                pushed.blocked_s = took_s;
                pushed.blocked_cpu_s = cpu_end_ns.saturating_sub(call_cpu_ns) as f64 / 1e9;
                pushed.accepted_bytes = accepted;
            }
            (call_start, call_cpu_ns) = (call_end, cpu_end_ns);
        }
        pushed.bytes += block.len() as u64;
        pushed.checksum = Checksum::after(pushed.checksum, &block);
    }
    let until = pushed.bytes + AFTERWARDS_BYTES;
    while pushed.bytes < until {
        let block = content.next_block();
        connection.write_all(&block)?;
        pushed.bytes += block.len() as u64;
        pushed.checksum = Checksum::after(pushed.checksum, &block);
    }
    Ok(pushed)
}

fn write(connection: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match connection.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            other => return other,
        }
    }
}

/// Bytes that do not repeat within any run: a 64-bit linear congruential generator.
struct Content(u64);

impl Content {
    fn next_block(&mut self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        for word in block.chunks_exact_mut(8) {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&self.0.to_le_bytes());
        }
        block
    }
}

/// FNV-1a, 64 bits: lost, doubled and exchanged bytes change it.
struct Checksum;

impl Checksum {
    const START: u64 = 0xcbf2_9ce4_8422_2325;

    fn after(sum: u64, bytes: &[u8]) -> u64 {
        bytes.iter().fold(sum, |sum, byte| {
            (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

pub(super) fn say(line: &str) -> io::Result<()> {
    let mut output = io::stdout();
    writeln!(output, "{line}")?;
    output.flush()
}

pub(super) fn say_json(result: &impl Serialize) -> io::Result<()> {
    say(&serde_json::to_string(result)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes, then makes one call wait.
    struct Sink {
        room_bytes: usize,
        waits: bool,
        taken: Vec<u8>,
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.waits && self.taken.len() + bytes.len() > self.room_bytes {
                self.waits = false;
                std::thread::sleep(Duration::from_millis(300));
            }
            self.taken.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Attempts that are made: in one that gets no processor for long another write is the longest.
    const ATTEMPTS: usize = 50;
    const ROOM_BYTES: usize = 10 * BLOCK_BYTES;

    #[test]
    fn what_was_accepted_before_the_longest_write_is_counted() {
        let pushed = (0..ATTEMPTS)
            .map(|_| push_to_a_sink())
            .find(|pushed| pushed.accepted_bytes == ROOM_BYTES as u64);
        let pushed = pushed.expect("the write that waited");
        assert!(pushed.blocked_s >= 0.3 && !pushed.endless, "{pushed:?}");
    }

    fn push_to_a_sink() -> Pushed {
        let mut sink = Sink {
            room_bytes: ROOM_BYTES,
            waits: true,
            taken: Vec::new(),
        };
        let pushed = push(&mut sink, Duration::from_millis(200)).expect("nothing fails");
        assert_eq!(pushed.bytes, sink.taken.len() as u64);
        assert_eq!(
            pushed.checksum,
            Checksum::after(Checksum::START, &sink.taken)
        );
        pushed
    }

    #[test]
    fn exchanged_bytes_have_another_checksum() {
        let sum = |bytes: &[u8]| Checksum::after(Checksum::START, bytes);
        // The published value of the empty and of a short text.
        assert_eq!(sum(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(sum(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_ne!(sum(b"ab"), sum(b"ba"));
    }
}
