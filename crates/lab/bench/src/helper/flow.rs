//! A writer that pushes as hard as it can for a while, and a reader that may sleep first, and then
//! may be slow.
//!
//! They agree on the last byte within the stream and not by its end: proxies that take bytes out of a
//! connection may let the end overtake them.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::stall::{accept_used, connect_used, say_json};

/// What is written at once. It begins with its number, or with [`LAST`].
pub const BLOCK_BYTES: usize = 128 << 10;
const STAMP_BYTES: usize = 8;
const LAST: u64 = u64::MAX;

/// The reader says with one byte that it has read so many blocks more.
const ACKNOWLEDGED_BLOCKS: u64 = 8;
/// Between two blocks, when the reader is slow: 6.25 MiB a second.
const SLOW_PAUSE: Duration = Duration::from_millis(20);
/// The writer notes so often how far it is.
const NOTE_EVERY: Duration = Duration::from_millis(50);
/// Between two attempts when the kernel has no memory for what is written.
const RETRY: Duration = Duration::from_millis(1);

/// What the writer found; a line of JSON on its standard output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Flowed {
    pub bytes: u64,
    /// How far it was: seconds since its start, and bytes.
    pub progress: Vec<(f64, u64)>,
    /// When it first had so many bytes unread that it waited by itself.
    pub window_full_s: Option<f64>,
    /// How often a write failed because the kernel had no memory left (ENOMEM).
    pub refused: u64,
}

/// What the reader got; a line of JSON on its standard output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Drained {
    pub bytes: u64,
    /// From its first read to the last block.
    pub seconds: f64,
}

/// Accepts one connection, sleeps until its standard input ends, reads slowly for so long, then
/// everything, and waits to be ended.
pub(super) fn reader(at: (Ipv4Addr, u16), slow_s: u32) -> io::Result<()> {
    let mut connection = accept_used(at)?;
    say_json(&drain(
        &mut connection,
        Duration::from_secs(u64::from(slow_s)),
    )?)?;
    loop {
        std::thread::park();
    }
}

fn drain(connection: &mut (impl Read + Write), slow: Duration) -> io::Result<Drained> {
    let (start, expected) = (Instant::now(), block(0));
    let mut bytes = 0;
    let mut found = vec![0; BLOCK_BYTES];
    for number in 0.. {
        connection.read_exact(&mut found)?;
        bytes += BLOCK_BYTES as u64;
        let (stamp, rest) = found.split_at(STAMP_BYTES);
        if rest != &expected[STAMP_BYTES..] {
            return Err(io::Error::other(format!("block {number} is damaged")));
        }
        match stamp.try_into().map(u64::from_le_bytes) {
            Ok(LAST) => break,
            Ok(stamp) if stamp == number => {}
            _ => return Err(io::Error::other(format!("not block {number}, but another"))),
        }
        if (number + 1).is_multiple_of(ACKNOWLEDGED_BLOCKS) {
            connection.write_all(b"+")?;
        }
        if start.elapsed() < slow {
            std::thread::sleep(SLOW_PAUSE);
        }
    }
    connection.write_all(b".")?;
    Ok(Drained {
        bytes,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Connects, waits for the end of its standard input, and pushes for so many seconds, with at most
/// `window_mib` that the reader has not read.
pub(super) fn writer(at: (Ipv4Addr, u16), seconds: u32, window_mib: u32) -> io::Result<()> {
    let mut connection = connect_used(at)?;
    let window = u64::from(window_mib) << 20;
    say_json(&push(
        &mut connection,
        Duration::from_secs(u64::from(seconds)),
        window,
    )?)
}

fn push(connection: &mut TcpStream, duration: Duration, window: u64) -> io::Result<Flowed> {
    let mut flowed = Flowed {
        bytes: 0,
        progress: vec![(0.0, 0)],
        window_full_s: None,
        refused: 0,
    };
    let (start, mut noted) = (Instant::now(), Instant::now());
    let mut content = block(0);
    let (mut number, mut read) = (0_u64, 0_u64);
    while start.elapsed() < duration {
        let so_far = |bytes| (start.elapsed().as_secs_f64(), bytes);
        let before = so_far(flowed.bytes);
        if number.is_multiple_of(ACKNOWLEDGED_BLOCKS) {
            read += arrived(connection)?;
        }
        let unread = flowed.bytes - read * ACKNOWLEDGED_BLOCKS * BLOCK_BYTES as u64;
        if unread + BLOCK_BYTES as u64 > window {
            flowed
                .window_full_s
                .get_or_insert_with(|| start.elapsed().as_secs_f64());
            std::thread::sleep(RETRY);
            read += arrived(connection)?;
        } else {
            content[..STAMP_BYTES].copy_from_slice(&number.to_le_bytes());
            write(connection, &content, &mut flowed)?;
            number += 1;
        }
        if noted.elapsed() >= NOTE_EVERY {
            noted = Instant::now();
            // Before a write that was held up, and behind it.
            flowed.progress.extend([before, so_far(flowed.bytes)]);
        }
    }
    content[..STAMP_BYTES].copy_from_slice(&LAST.to_le_bytes());
    write(connection, &content, &mut flowed)?;
    let mut answer = [0];
    while answer != *b"." {
        connection.read_exact(&mut answer)?;
    }
    Ok(flowed)
}

/// Writes all of it.
fn write(connection: &mut impl Write, bytes: &[u8], flowed: &mut Flowed) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match connection.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(length) => rest = &rest[length..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                flowed.refused += 1;
                std::thread::sleep(RETRY);
            }
            Err(error) => return Err(error),
        }
    }
    flowed.bytes += bytes.len() as u64;
    Ok(())
}

/// How many bytes the reader has sent since the last call. Does not wait.
fn arrived(connection: &TcpStream) -> io::Result<u64> {
    let mut bytes = [0; 64];
    // SAFETY: the kernel writes at most the bytes of the array. By the C library, so that a library
    // that was preloaded sees it.
    let length = unsafe {
        libc::recv(
            connection.as_raw_fd(),
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT,
        )
    };
    match u64::try_from(length) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(length) => Ok(length),
        Err(_) => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            error => Err(error),
        },
    }
}

/// Bytes that do not repeat within a block; all blocks differ by their stamps only, so that making
/// and comparing them takes little time.
fn block(stamp: u64) -> Vec<u8> {
    let mut word = 1_u64;
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    block.extend(stamp.to_le_bytes());
    while block.len() < BLOCK_BYTES {
        // A 64-bit linear congruential generator.
        word = word
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        block.extend(word.to_le_bytes());
    }
    block
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Reads what is prepared, and keeps what is written.
    struct Pipe {
        incoming: io::Cursor<Vec<u8>>,
        outgoing: Vec<u8>,
    }

    impl Read for Pipe {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.incoming.read(buffer)
        }
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.outgoing.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn drained(blocks: &[Vec<u8>]) -> io::Result<(Drained, Vec<u8>)> {
        let mut pipe = Pipe {
            incoming: io::Cursor::new(blocks.concat()),
            outgoing: Vec::new(),
        };
        drain(&mut pipe, Duration::ZERO).map(|drained| (drained, pipe.outgoing))
    }

    #[test]
    fn every_block_in_its_order_is_taken() {
        let mut blocks: Vec<Vec<u8>> = (0..ACKNOWLEDGED_BLOCKS).map(block).collect();
        blocks.push(block(LAST));
        let (drained, said) = drained(&blocks).expect("nothing is wrong");
        assert_eq!(drained.bytes, (blocks.len() * BLOCK_BYTES) as u64);
        assert_eq!(said, b"+.");
    }

    #[test]
    fn lost_exchanged_and_damaged_blocks_are_found() {
        let mut damaged = block(0);
        damaged[BLOCK_BYTES - 1] ^= 1;
        for blocks in [
            vec![block(1), block(LAST)],
            vec![block(0), block(0), block(LAST)],
            vec![damaged, block(LAST)],
            vec![block(0), block(1)],
        ] {
            assert!(drained(&blocks).is_err());
        }
    }

    /// Attempts that are made: in one whose writer gets no processor for its time nothing is full.
    const ATTEMPTS: usize = 50;

    #[test]
    fn writer_stops_at_its_window_and_at_its_time() {
        let flowed = (0..ATTEMPTS).map(|_| flow()).find(|flowed| {
            let last = flowed.progress.last().map(|(_, bytes)| *bytes);
            flowed.bytes == WINDOW + BLOCK_BYTES as u64 && last == Some(WINDOW)
        });
        let flowed = flowed.expect("a window that is full for most of the time");
        assert!(flowed.window_full_s.is_some(), "{flowed:?}");
    }

    const WINDOW: u64 = 2 * BLOCK_BYTES as u64;

    /// Writes for a tenth of a second to a reader that comes later.
    fn flow() -> Flowed {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
        let mut end =
            TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
        let (mut other, _) = listener.accept().expect("the other end");
        let reader = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drain(&mut other, Duration::ZERO)
        });
        let flowed = push(&mut end, Duration::from_millis(100), WINDOW).expect("nothing fails");
        let drained = reader.join().expect("no panic").expect("nothing fails");
        assert_eq!(drained.bytes, flowed.bytes);
        assert!(flowed.bytes <= WINDOW + BLOCK_BYTES as u64, "{flowed:?}");
        let order = |pair: &[(f64, u64)]| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1;
        assert!(flowed.progress.windows(2).all(order), "{flowed:?}");
        flowed
    }
}
