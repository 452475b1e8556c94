//! A program that takes processors from others, and a ping-pong whose threads block.

use std::convert::Infallible;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::join;

const MESSAGE_BYTES: usize = 100;
/// Before anything is counted: enough for a lane, even where each round takes a turn of the scheduler.
const WARM_UP: Duration = Duration::from_millis(300);

pub(super) fn endless_loop(nice: u8) -> io::Result<()> {
    rustix::process::nice(i32::from(nice))?;
    writeln!(io::stdout(), "running")?;
    let mut turns = 0_u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}

pub(super) fn server(port: u16) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    loop {
        let (connection, _) = listener.accept()?;
        // A connection that ends badly is its client's failure.
        std::thread::spawn(move || echo(connection));
    }
}

fn echo(mut connection: TcpStream) -> io::Result<Infallible> {
    connection.set_nodelay(true)?;
    let mut message = [0; MESSAGE_BYTES];
    loop {
        connection.read_exact(&mut message)?;
        connection.write_all(&message)?;
    }
}

/// Says `N rounds in S seconds`, of all connections together.
pub(super) fn client(port: u16, connections: u32, seconds: u32) -> io::Result<()> {
    let counted_from = Instant::now() + WARM_UP;
    let until = counted_from + Duration::from_secs(u64::from(seconds));
    let rounds = || -> io::Result<u64> {
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        connection.set_nodelay(true)?;
        let (mut all, mut counted) = (0_u64, 0);
        loop {
            round(&mut connection, all)?;
            let now = Instant::now();
            if now >= until {
                return Ok(counted);
            }
            all += 1;
            counted += u64::from(now >= counted_from);
        }
    };
    let rounds = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..connections).map(|_| scope.spawn(rounds)).collect();
        threads.into_iter().map(join).sum::<io::Result<u64>>()
    })?;
    writeln!(io::stdout(), "{rounds} rounds in {seconds} seconds")
}

fn round(connection: &mut TcpStream, number: u64) -> io::Result<()> {
    let mut message = [number as u8; MESSAGE_BYTES];
    message[..8].copy_from_slice(&number.to_le_bytes());
    connection.write_all(&message)?;
    let mut answer = [0; MESSAGE_BYTES];
    connection.read_exact(&mut answer)?;
    if answer == message {
        Ok(())
    } else {
        Err(io::Error::other("the echo differs"))
    }
}
