//! Does the operations, on the lane's connection and on the plain one, and compares.

use crate::Op;
use crate::common::process::{bounded, wait_for};
use crate::common::{
    BLOCK, DONTWAIT, PEEK, Pair, SMALL_RING, Side, WAITALL, bytes_at, check_bytes,
};
use crate::plain::Plain;
use sluice_lane::wait::{self, Announced};
use sluice_sys::errno::Errno;

/// More is not written while this is unread, so that the plain connection never blocks.
const UNREAD_MAX: u64 = 60_000;

/// One end of both connections.
struct Party {
    side: Side,
    plain: Plain,
    asleep: Vec<Announced>,
    /// Bytes that it has written and read.
    written: u64,
    read: u64,
    is_shut: bool,
    is_open: bool,
}

/// What went where, over both directions.
pub struct Counts {
    pub ring: u64,
    pub tcp: u64,
    pub switches: u64,
}

pub struct Machine {
    parties: [Party; 2],
    /// An end was reset: bytes under way may be lost, and each call may report it.
    is_reset: bool,
}

impl Machine {
    pub fn new(is_attached: bool) -> Self {
        let pair = if is_attached {
            Pair::enabled(SMALL_RING)
        } else {
            Pair::announced(SMALL_RING)
        };
        let [plain_a, plain_b] = Plain::pair();
        let party = |side, plain| Party {
            side,
            plain,
            asleep: Vec::new(),
            written: 0,
            read: 0,
            is_shut: false,
            is_open: true,
        };
        Self {
            parties: [party(pair.a, plain_a), party(pair.b, plain_b)],
            is_reset: false,
        }
    }

    /// Bytes that `end` has not read yet.
    fn due(&self, end: usize) -> u64 {
        self.parties[1 - end].written - self.parties[end].read
    }

    pub fn step(&mut self, end: usize, op: Op) {
        if !self.parties[end].is_open {
            return;
        }
        let is_whole = !self.is_reset && self.parties[1 - end].is_open;
        let party = &mut self.parties[end];
        let side = party.side;
        match op {
            Op::Write { bytes } => self.write(end, bytes),
            Op::Read { bytes } => self.read(end, bytes),
            Op::Peek { bytes } => self.peek(end, bytes),
            Op::Push { bytes, waitall } if is_whole => self.push(end, bytes, waitall),
            Op::Pull { bytes, waitall } if is_whole => self.pull(end, bytes, waitall),
            Op::Push { .. } | Op::Pull { .. } => {}
            Op::FallAsleep => party
                .asleep
                .extend(wait::announce(side.end, side.generation)),
            Op::WakeUp => party.wake_up(),
            Op::Attach => drop(side.attach()),
            Op::Look => drop(side.look()),
            Op::Pin => side
                .end
                .pin(side.generation, sluice_lane::reason::Reason::KernelCall),
            Op::PinTx => side.end.shut_tx(side.generation),
            Op::Shutdown => self.shutdown(end),
            Op::Close => self.close(end, false),
            Op::Reset => self.close(end, true),
        }
    }

    fn write(&mut self, end: usize, bytes: usize) {
        if self.due(1 - end) + bytes as u64 > UNREAD_MAX {
            return;
        }
        let has_peer = self.parties[1 - end].is_open;
        let party = &mut self.parties[end];
        let data = bytes_at(party.written, bytes);
        let got = party.side.send(&data, true);
        if !has_peer {
            // The answer to bytes that nobody will read is a reset.
            assert_eq!(party.plain.send(&data), got);
            self.is_reset |= got.is_ok();
            return;
        }
        if self.is_reset {
            return;
        }
        match got {
            Ok(count) => {
                assert_eq!(party.plain.send(&data[..count]), Ok(count));
                party.written += count as u64;
            }
            // The ring is full, and patience is not over.
            Err(Errno::AGAIN) => {}
            Err(errno) => assert_eq!(party.plain.send(&data), Err(errno)),
        }
    }

    fn read(&mut self, end: usize, bytes: usize) {
        if self.is_reset {
            return;
        }
        let due = self.due(end);
        let is_ended = self.parties[1 - end].is_shut;
        let party = &mut self.parties[end];
        let mut buffer = vec![0; bytes];
        if due == 0 && !is_ended {
            let nothing = party.side.recv(&mut buffer, DONTWAIT);
            assert_eq!(nothing, Err(Errno::AGAIN));
            return;
        }
        let got = until_there(|| party.side.recv(&mut buffer, DONTWAIT));
        party.check_read(due, got, &buffer);
    }

    fn peek(&mut self, end: usize, bytes: usize) {
        if self.is_reset || self.due(end) == 0 {
            return;
        }
        let wanted = self.due(end).min(bytes as u64) as usize;
        let party = &mut self.parties[end];
        let mut buffer = vec![0; bytes];
        let seen = until_there(|| party.side.recv(&mut buffer, PEEK)).unwrap();
        assert!((1..=wanted).contains(&seen), "{seen} of {wanted}");
        check_bytes(party.read, &buffer[..seen]);
        // A second look sees no less.
        let again = party.side.recv(&mut buffer, PEEK).unwrap();
        assert!(again >= seen, "{again} after {seen}");
    }

    /// A blocking write of any size, while the other end reads.
    fn push(&mut self, end: usize, bytes: usize, waitall: bool) {
        if self.parties[end].is_shut {
            return;
        }
        let position = self.parties[end].written;
        let from = self.parties[end].side;
        let writer = std::thread::spawn(move || from.send_all(&bytes_at(position, bytes)).unwrap());
        self.parties[end].written += bytes as u64;
        while self.due(1 - end) > 0 {
            let due = self.due(1 - end) as usize;
            let to = &mut self.parties[1 - end];
            let mut buffer = vec![0; due.min(7000)];
            let how = if waitall { WAITALL } else { BLOCK };
            let side = to.side;
            let count = side.recv(&mut buffer, how).unwrap();
            assert!(count > 0 && (!waitall || count == buffer.len()));
            check_bytes(to.read, &buffer[..count]);
            to.read += count as u64;
        }
        writer.join().unwrap();
        self.follow();
    }

    /// A blocking read, begun before the bytes are written.
    fn pull(&mut self, end: usize, bytes: usize, waitall: bool) {
        if self.parties[1 - end].is_shut {
            return;
        }
        let side = self.parties[end].side;
        let due = self.due(end) as usize;
        let reader = std::thread::spawn(move || {
            let mut buffer = vec![0; bytes];
            let how = if waitall { WAITALL } else { BLOCK };
            let count = side.recv(&mut buffer, how).unwrap();
            buffer.truncate(count);
            buffer
        });
        for _ in 0..bytes % 5 {
            std::thread::yield_now();
        }
        let more = bytes.saturating_sub(due);
        let from = &mut self.parties[1 - end];
        from.side.send_all(&bytes_at(from.written, more)).unwrap();
        from.written += more as u64;
        let got = bounded("a blocking read", move || reader.join().unwrap());
        let party = &mut self.parties[end];
        assert!(!got.is_empty() && (!waitall || got.len() == bytes));
        check_bytes(party.read, &got);
        party.read += got.len() as u64;
        self.follow();
    }

    /// Brings the plain connection to where the other one is.
    fn follow(&mut self) {
        let [a, b] = &mut self.parties;
        for (from, to) in [(&*a, &*b), (&*b, &*a)] {
            follow_direction(from, to);
        }
    }

    fn shutdown(&mut self, end: usize) {
        let party = &mut self.parties[end];
        let result = party.side.shutdown_write();
        if !self.is_reset {
            assert_eq!(party.plain.shutdown_write(), result);
        }
        party.is_shut = true;
    }

    fn close(&mut self, end: usize, reset: bool) {
        self.is_reset |= reset || self.due(end) > 0;
        let party = &mut self.parties[end];
        party.wake_up();
        if reset {
            party.side.reset();
        } else {
            party.side.close();
        }
        party.plain.close(reset);
        party.is_shut = true;
        party.is_open = false;
    }

    /// Ends both directions and reads both to their ends.
    pub fn finish(mut self) -> Counts {
        let counts = self.counts();
        for end in 0..2 {
            self.parties[end].wake_up();
            if self.parties[end].is_open && !self.parties[end].is_shut {
                self.shutdown(end);
            }
        }
        for end in 0..2 {
            if self.parties[end].is_open {
                self.read_to_end(end);
            }
        }
        for end in 0..2 {
            if self.parties[end].is_open {
                self.check_counters(end);
                self.close(end, false);
            }
        }
        counts
    }

    fn read_to_end(&mut self, end: usize) {
        let mut buffer = vec![0; 9000];
        loop {
            let due = self.due(end);
            let is_reset = self.is_reset;
            let party = &mut self.parties[end];
            let got = until_there(|| party.side.recv(&mut buffer, DONTWAIT));
            match got {
                Ok(0) if !is_reset => assert_eq!(due, 0, "the end came early"),
                Ok(0) => {}
                Ok(count) => {
                    assert!(count as u64 <= due);
                    check_bytes(party.read, &buffer[..count]);
                    party.read += count as u64;
                    continue;
                }
                Err(errno) => assert!(is_reset, "{errno} without a reset"),
            }
            let plain = loop {
                match until_there(|| party.plain.recv(&mut buffer)) {
                    Ok(1..) => {}
                    end => break end,
                }
            };
            assert_eq!(got, plain, "how the stream ends");
            return;
        }
    }

    fn check_counters(&self, end: usize) {
        let party = &self.parties[end];
        let seen = party.side.snapshot();
        assert_eq!(seen.ring_rx_bytes + seen.tcp_rx_bytes, party.read);
        if !self.is_reset && self.parties[1 - end].is_open {
            assert_eq!(seen.ring_tx_bytes + seen.tcp_tx_bytes, party.written);
        }
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts {
            ring: 0,
            tcp: 0,
            switches: 0,
        };
        for party in self.parties.iter().filter(|party| party.is_open) {
            let seen = party.side.snapshot();
            counts.ring += seen.ring_tx_bytes;
            counts.tcp += seen.tcp_tx_bytes;
            counts.switches += u64::from(seen.switches);
        }
        counts
    }
}

impl Party {
    fn wake_up(&mut self) {
        for asleep in self.asleep.drain(..) {
            wait::withdraw(self.side.end, asleep);
        }
    }

    /// Checks what a read gave, and does the same on the plain connection.
    fn check_read(&mut self, due: u64, got: Result<usize, Errno>, buffer: &[u8]) {
        match got {
            Ok(0) => {
                assert_eq!(due, 0, "the end came early");
                let plain = until_there(|| self.plain.recv(&mut [0; 10]));
                assert_eq!(plain, Ok(0));
            }
            Ok(count) => {
                assert!(count as u64 <= due, "{count} bytes of {due}");
                check_bytes(self.read, &buffer[..count]);
                self.read += count as u64;
                read_exactly(&self.plain, count);
            }
            Err(errno) => {
                assert_eq!(due, 0, "{errno} instead of bytes");
                let plain = until_there(|| self.plain.recv(&mut [0; 10]));
                assert_eq!(plain, Err(errno));
            }
        }
    }
}

fn follow_direction(from: &Party, to: &Party) {
    while from.plain.sent.get() < from.written || to.plain.read.get() < to.read {
        let more = (from.written - from.plain.sent.get()).min(30_000) as usize;
        if more > 0 {
            let _ = from.plain.send(&vec![0; more]);
        }
        let less = (to.read - to.plain.read.get()).min(30_000) as usize;
        if less > 0 {
            let _ = to.plain.recv(&mut vec![0; less]);
        }
    }
}

fn read_exactly(plain: &Plain, bytes: usize) {
    let mut buffer = vec![0; bytes];
    let mut done = 0;
    while done < bytes {
        done += until_there(|| plain.recv(&mut buffer[done..])).unwrap();
    }
}

/// Repeats a call that does not block until it gives anything else than `EAGAIN`.
fn until_there(mut call: impl FnMut() -> Result<usize, Errno>) -> Result<usize, Errno> {
    let mut result = Err(Errno::AGAIN);
    wait_for("what is due", || {
        result = call();
        result != Err(Errno::AGAIN)
    });
    result
}
