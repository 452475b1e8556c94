//! Backpressure, half-closed connections and resets, from one end to the other.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use sluice_tests::fleet::LIMIT;
use sluice_tests::job::wait_until;
use sluice_tests::suite::{Verdict, ensure, fail, trial};

use crate::lab::{At, Lab, PORT};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("slow-client", slow_client),
        trial("half-close", half_close),
        trial("reset", reset),
        trial("flood", flood),
    ]
}

/// More than all buffers on the way there and back have: the kernel's of six sockets at 10 MB, four
/// rings, and the gateway's.
const BOUND_BYTES: usize = 128 << 20;
/// The gateway itself holds one read for each direction, and what its allocator keeps.
const GATEWAY_GROWTH_KB_MAX: u64 = 16 << 10;

fn byte(at: usize) -> u8 {
    ((at * 31) >> 3) as u8
}

/// Connections that say nothing, and as many again that are reset at once.
const FLOOD: usize = 400;
/// Descriptors of the gateway beside those of connections.
const OTHERS_MAX: usize = 16;

/// Many that want nothing keep nobody waiting, and leave nothing behind.
fn flood() -> Verdict {
    let lab = Lab::new()?;
    let server = lab.serve_who(At::NodeA, "0.0.0.0", PORT, 1)?;
    let told = || format!("{}\n{}", server.describe(), lab.describe());
    flooded(&lab).map_err(|problem| problem.with(told))?;
    server.stop(LIMIT).map(drop)
}

fn flooded(lab: &Lab) -> Verdict {
    let mut met = lab.meet(4, PORT)?;
    met.echo(b"before")?;
    let (files, memory) = (lab.gateway_files()?, lab.gateway_memory_kb()?);
    let mut silent = Vec::new();
    for number in 0..FLOOD {
        silent.push(lab.connect(4, PORT)?);
        let passing = lab.connect(4, PORT)?;
        rustix::net::sockopt::set_socket_linger(&passing, Some(Duration::ZERO))
            .map_err(std::io::Error::from)?;
        drop(passing);
        if number % 50 == 0 {
            met.echo(b"and those who speak are served")?;
        }
    }
    let mut late = lab.try_meet(4, PORT)?;
    late.echo(b"who comes later, too")?;
    drop((silent, late));
    let mut left = 0;
    let is_over = wait_until(LIMIT, || {
        left = lab.gateway_files().unwrap_or(usize::MAX);
        Ok(left <= files + OTHERS_MAX)
    })?;
    ensure(is_over, || format!("{left} files open, and {files} before"))?;
    let grown = lab.gateway_memory_kb()?.saturating_sub(memory);
    ensure(grown < GATEWAY_GROWTH_KB_MAX, || {
        format!("the gateway has grown by {grown} kB")
    })?;
    Ok(met.echo(b"after")?)
}

/// A client that does not read stops the server, and gets everything when it does.
fn slow_client() -> Verdict {
    let lab = Lab::new()?;
    let server = lab.serve_who(At::NodeA, "0.0.0.0", PORT, 1)?;
    let mut met = lab.meet(4, PORT)?;
    met.echo(b"warm")?;
    let before = lab.gateway_memory_kb()?;
    let stream = met.reader.get_mut();
    stream.set_nonblocking(true)?;
    let mut sent = 0;
    let mut moved_at = Instant::now();
    while sent < BOUND_BYTES && moved_at.elapsed() < Duration::from_secs(2) {
        let piece: Vec<u8> = (sent..sent + 65_536).map(byte).collect();
        match stream.write(&piece) {
            Ok(count) => {
                sent += count;
                moved_at = Instant::now();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
    ensure(sent < BOUND_BYTES, || {
        "nothing stops a client that does not read".to_owned()
    })?;
    let grown = lab.gateway_memory_kb()?.saturating_sub(before);
    ensure(grown < GATEWAY_GROWTH_KB_MAX, || {
        format!("the gateway has grown by {grown} kB")
    })?;
    stream.set_nonblocking(false)?;
    let mut buffer = vec![0; 1 << 16];
    let mut got = 0;
    while got < sent {
        let count = met.reader.read(&mut buffer)?;
        if count == 0 {
            return fail(format!("{got} of {sent} bytes came back"));
        }
        let wrong = buffer[..count]
            .iter()
            .enumerate()
            .find(|(at, it)| **it != byte(got + at));
        ensure(wrong.is_none(), || format!("another byte behind {got}"))?;
        got += count;
    }
    met.echo(b"and it goes on")?;
    let _ = server.stop(LIMIT)?;
    Ok(())
}

/// The end of one stream leaves the other one open.
fn half_close() -> Verdict {
    let lab = Lab::new()?;
    let mut server = lab.serve_who(At::NodeA, "0.0.0.0", PORT, 1)?;
    let mut met = lab.meet(4, PORT)?;
    let text: Vec<u8> = (0..300_000).map(byte).collect();
    let mut sender = met.reader.get_ref().try_clone()?;
    let sent = text.clone();
    let writer = std::thread::spawn(move || {
        sender.write_all(&sent)?;
        sender.shutdown(Shutdown::Write)
    });
    let mut got = Vec::new();
    met.reader.read_to_end(&mut got)?;
    writer
        .join()
        .map_err(|_| std::io::Error::other("the writer panicked"))??;
    ensure(got == text, || format!("{} bytes came back", got.len()))?;
    server.await_text("ended by eof", LIMIT)?;
    let _ = server.stop(LIMIT)?;
    Ok(())
}

/// A client that resets its connection resets the server's.
fn reset() -> Verdict {
    let lab = Lab::new()?;
    let mut server = lab.serve_who(At::NodeA, "0.0.0.0", PORT, 1)?;
    let mut met = lab.meet(4, PORT)?;
    met.echo(b"before")?;
    rustix::net::sockopt::set_socket_linger(met.reader.get_ref(), Some(Duration::ZERO))
        .map_err(std::io::Error::from)?;
    drop(met);
    server.await_text("ended by reset", LIMIT)?;
    let _ = server.stop(LIMIT)?;
    Ok(())
}
