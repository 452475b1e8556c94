//! A client that sends a message, sleeps in epoll until the answer is there, and pauses.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Epoll, HOLD_MESSAGE_BYTES};

/// Before anything is counted: enough for a lane.
const WARM_UP: Duration = Duration::from_millis(300);

/// What it found; a line of JSON on its standard output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Pinged {
    /// There and back.
    pub p50_us: f64,
    pub p99_us: f64,
    /// Messages that were answered, the warm-up included.
    pub rounds: u64,
}

/// Sends to the echoing server for so many seconds, pausing behind each answer.
pub(super) fn client(at: (Ipv4Addr, u16), seconds: u32, pause: Duration) -> io::Result<()> {
    let mut connection = TcpStream::connect(at)?;
    connection.set_nodelay(true)?;
    connection.set_nonblocking(true)?;
    let epoll = Epoll::new()?;
    epoll.add(connection.as_raw_fd())?;
    let start = Instant::now();
    let counted_from = start + WARM_UP;
    let until = counted_from + Duration::from_secs(u64::from(seconds));
    let mut times_us = Vec::new();
    let mut rounds: u64 = 0;
    while Instant::now() < until {
        let sent = Instant::now();
        exchange(&mut connection, &epoll, rounds)?;
        if sent > counted_from {
            times_us.push(sent.elapsed().as_secs_f64() * 1e6);
        }
        rounds += 1;
        std::thread::sleep(pause);
    }
    let pinged = summary(times_us, rounds).ok_or_else(|| io::Error::other("nothing came back"))?;
    writeln!(io::stdout(), "{}", serde_json::to_string(&pinged)?)
}

fn exchange(connection: &mut TcpStream, epoll: &Epoll, round: u64) -> io::Result<()> {
    let message = [round as u8; HOLD_MESSAGE_BYTES];
    connection.write_all(&message)?;
    let mut answer = [0; HOLD_MESSAGE_BYTES];
    let mut have = 0;
    while have < answer.len() {
        match connection.read(&mut answer[have..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => have += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                epoll.wait()?;
            }
            Err(error) => return Err(error),
        }
    }
    if answer == message {
        Ok(())
    } else {
        Err(io::Error::other("the echo differs"))
    }
}

fn summary(mut times_us: Vec<f64>, rounds: u64) -> Option<Pinged> {
    times_us.sort_by(f64::total_cmp);
    let at = |hundredths: usize| times_us.get(times_us.len() * hundredths / 100).copied();
    Some(Pinged {
        p50_us: at(50)?,
        p99_us: at(99)?,
        rounds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_rounds_were_faster_than_the_median() {
        let times = (0..100).rev().map(f64::from).collect();
        let pinged = summary(times, 7).expect("a hundred rounds");
        assert_eq!(
            (pinged.p50_us, pinged.p99_us, pinged.rounds),
            (50.0, 99.0, 7)
        );
        assert!(summary(Vec::new(), 7).is_none());
    }
}
