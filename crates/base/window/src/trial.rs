//! Two hosts try a window: messages there and back, and streams both ways, of which every byte is looked
//! at. `sluice doctor --window` is one of them, or both.
//!
//! They find each other by the name of their claims, lend each other a ring by mailbox (`LEND`: where
//! the piece begins, bytes of its ring; then `READY`), and the one with the lower slot asks first. What
//! goes over the rings are lines of eight words: a kind, a number, and what belongs to it; behind a
//! `STREAM` so many bytes as its number says.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

#[cfg(not(test))]
use sluice_sys::clock::now_ns;
#[cfg(test)]
use tests::now_ns;

use crate::Broken;
use crate::claim::{BEAT_NS, Claim, Claimed, Hold, SILENCE_NS, Table, Watch, Word};
use crate::layout::{PAGE_BYTES, Pair};
use crate::ledger::Ledger;
use crate::link::{Ended, Event, Link, generation};
use crate::mailbox::MESSAGE_BYTES_MAX;
use crate::region::{Region, RegionView};
use crate::ring::{Consumer, InRing, OutRing, Producer};
use crate::view::{In, LINE_BYTES, Out};

/// In the claim of whoever tries a window.
pub const NAME: &str = "sluice doctor";

/// Kinds of messages. Others of the window have other upper halves (docs/windows.md).
const LEND: u32 = 0x4400_0001;
const READY: u32 = 0x4400_0002;

/// In front of a ring: at 0 how many bytes its writer has written, at 64 how many bytes its lender has read
/// of the ring that it has borrowed itself.
const CONTROL_BYTES: u64 = PAGE_BYTES;
const RING_BYTES: core::ops::RangeInclusive<u64> = PAGE_BYTES..=1 << 20;

/// Lines.
const LINE: usize = LINE_BYTES as usize;
const ECHO: u64 = 1;
const STREAM: u64 = 2;
const DONE: u64 = 3;
const BYE: u64 = 4;

/// Messages there and back, and the time in which they are sent.
const ROUNDS: core::ops::RangeInclusive<usize> = 50..=20_000;
const ROUNDS_TIME: Duration = Duration::from_millis(200);
/// Bytes of a stream, and the time in which streams are sent.
const BLOCK: usize = 16 * 1024;
const BLOCKS: u64 = 256;
const STREAMS_TIME: Duration = Duration::from_millis(200);
/// Looks at the window between two looks at the clock.
const LOOKS: u32 = 256;

/// Why there are no figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// All slots have holders that live.
    NoSlot,
    /// The slot has no room for a ring: earlier holders have lent all of it.
    NoRoom,
    /// The other host has gone.
    Ended(Ended),
    /// The other host beats, and does not go on.
    Stuck,
    /// Somebody else has taken the slot.
    Lost,
    /// The other host speaks another version.
    Version(u64),
    Broken(Broken),
    /// What came is not what was sent: so many bytes of a stream, or a message.
    Wrong(u64),
    /// The system has no random numbers.
    System,
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Self {
        Failure::Broken(broken)
    }
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Failure::NoSlot => f.write_str("all slots are held"),
            Failure::NoRoom => f.write_str("the slot has no room left for a ring"),
            Failure::Ended(why) => why.fmt(f),
            Failure::Stuck => f.write_str("the other host is there and does not answer"),
            Failure::Lost => f.write_str("somebody else has taken the slot"),
            Failure::Version(version) => write!(f, "the other host speaks version {version}"),
            Failure::Broken(broken) => broken.fmt(f),
            Failure::Wrong(count) => write!(f, "{count} bytes came that were not sent"),
            Failure::System => f.write_str("there are no random numbers"),
        }
    }
}

impl core::error::Error for Failure {}

/// What one host has measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// 64 bytes there and back: the median and the 99th percentile, nanoseconds.
    pub round_trip_ns: u64,
    pub round_trip_99_ns: u64,
    /// To the other host, which looks at every byte.
    pub bytes_per_second: u64,
}

/// Takes a slot, for up to `limit`. Another one that is held already, `beside`, is kept meanwhile.
///
/// # Errors
/// [`Failure::NoSlot`].
pub fn claim(region: &Region, limit: Duration, beside: Option<&mut Hold>) -> Result<Hold, Failure> {
    claim_napping(region, limit, beside, || {
        std::thread::sleep(Duration::from_millis(5));
        now_ns()
    })
}

/// The same; `nap` passes a moment, and says what time it is then.
fn claim_napping(
    region: &Region,
    limit: Duration,
    mut beside: Option<&mut Hold>,
    mut nap: impl FnMut() -> u64,
) -> Result<Hold, Failure> {
    let mut claim = Claim::new(generation().map_err(|_| Failure::System)?, NAME, None);
    let mut now = now_ns();
    let mut watch = Watch::new(now);
    loop {
        match claim.poll(region, now) {
            Claimed::Held(hold) => return Ok(hold),
            Claimed::Wait { .. } if u128::from(watch.look(now)) < limit.as_nanos() => {
                if let Some(hold) = &mut beside {
                    hold.beat(region).map_err(|_| Failure::Lost)?;
                }
                now = nap();
            }
            Claimed::Wait { .. } => return Err(Failure::NoSlot),
        }
    }
}

/// Waits for somebody else who tries the window, up to `limit`.
///
/// # Errors
/// The slot is lost meanwhile.
pub fn partner(region: &Region, hold: &mut Hold, limit: Duration) -> Result<Option<u32>, Failure> {
    let own = hold.slot();
    let mut first = vec![None; region.hosts() as usize];
    let begun = Instant::now();
    let mut beaten = begun;
    loop {
        for slot in (0..region.hosts()).filter(|slot| *slot != own) {
            let words = [Word::NameLow, Word::NameHigh].map(|word| region.look(slot, word));
            let name: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let held = region.look(slot, Word::Generation) != 0;
            if !held || !name.starts_with(NAME.as_bytes()) {
                first[slot as usize] = None;
                continue;
            }
            let beat = region.look(slot, Word::Beat);
            // One that was killed does not beat.
            if *first[slot as usize].get_or_insert(beat) != beat {
                return Ok(Some(slot));
            }
        }
        if beaten.elapsed() >= Duration::from_nanos(BEAT_NS / 2) {
            beaten = Instant::now();
            hold.beat(region).map_err(|_| Failure::Lost)?;
        }
        if begun.elapsed() >= limit {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Measures with the other host, and lets go of the slot: what this one has found, and the other.
/// `patience`: how long the other may say nothing.
///
/// # Errors
/// See [`Failure`]; the slot is free again in any case.
pub fn measure(
    region: &Region,
    hold: Hold,
    peer: u32,
    patience: Duration,
) -> Result<[Figures; 2], Failure> {
    let own = hold.slot();
    let mut host = Host::new(region, hold, peer, patience)?;
    let figures = host.meet().and_then(|mut rings| {
        let first = own < peer;
        let mut all = [None; 2];
        for mine in [first, !first] {
            all[usize::from(!mine)] = Some(match mine {
                true => rings.ask(&mut host)?,
                false => rings.answer(&mut host)?,
            });
        }
        Ok(all)
    });
    host.leave();
    match figures? {
        [Some(own), Some(others)] => Ok([own, others]),
        _ => Err(Failure::Stuck),
    }
}

/// A host of the window with a link to one other.
struct Host<'a> {
    region: &'a Region,
    view: RegionView<'a>,
    hold: Hold,
    link: Link,
    ledger: Ledger,
    piece: In,
    ring_bytes: u64,
    peer: u32,
    patience_ns: u64,
    beaten_ns: u64,
    /// When the other host did something the last time.
    heard_ns: u64,
}

impl<'a> Host<'a> {
    fn new(
        region: &'a Region,
        hold: Hold,
        peer: u32,
        patience: Duration,
    ) -> Result<Host<'a>, Failure> {
        let view = region.view(hold.slot());
        let mut ledger = Ledger::open(&view, region.header(), hold.slot());
        let mut ring_bytes = *RING_BYTES.end();
        let piece = loop {
            if let Some(piece) = ledger.lend(&view, peer, CONTROL_BYTES + ring_bytes) {
                break piece;
            }
            ring_bytes /= 2;
            if !RING_BYTES.contains(&ring_bytes) {
                hold.release(region);
                return Err(Failure::NoRoom);
            }
        };
        let Ok(generation) = generation() else {
            hold.release(region);
            return Err(Failure::System);
        };
        let link = Link::new(Pair::new(hold.slot(), peer), generation, &view);
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        Ok(Host {
            region,
            view,
            hold,
            link,
            ledger,
            piece,
            ring_bytes,
            peer,
            patience_ns,
            beaten_ns: 0,
            heard_ns: now_ns(),
        })
    }

    /// Gives everything back.
    fn leave(self) {
        let Host {
            view, mut ledger, ..
        } = self;
        self.link.leave(&view);
        // The other host has no use for it any more, whether it knows or not.
        ledger.take_back(
            &view,
            self.peer,
            self.piece,
            CONTROL_BYTES + self.ring_bytes,
        );
        self.hold.release(self.region);
    }

    /// Gives signs of life and looks for the other's; what has happened to the link.
    fn look(&mut self) -> Result<Option<Event>, Failure> {
        let now = now_ns();
        if now.saturating_sub(self.beaten_ns) >= BEAT_NS / 2 {
            self.beaten_ns = now;
            self.hold.beat(self.region).map_err(|_| Failure::Lost)?;
            self.link.beat(&self.view);
        }
        match self.link.poll(&self.view, now) {
            Some(Event::Down(why)) => Err(Failure::Ended(why)),
            Some(Event::OtherVersion(version)) => Err(Failure::Version(version)),
            _ if now.saturating_sub(self.heard_ns) > self.patience_ns => Err(Failure::Stuck),
            event => Ok(event),
        }
    }

    fn heard(&mut self) {
        self.heard_ns = now_ns();
    }

    fn tell(&mut self, kind: u32, numbers: [u64; 2]) -> Result<(), Failure> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.link.sender.send(&self.view, kind, &bytes)?;
        Ok(())
    }

    /// Two words of a message of that kind, once it is there.
    fn hear(&mut self, wanted: u32) -> Result<[u64; 2], Failure> {
        loop {
            let mut buffer = [0; MESSAGE_BYTES_MAX];
            while let Some((kind, bytes)) = self.link.receiver.receive(&self.view, &mut buffer)? {
                if kind == wanted {
                    let word = |at: usize| {
                        let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
                        word.map(u64::from_le_bytes)
                    };
                    return match (word(0), word(8)) {
                        (Some(one), Some(other)) => Ok([one, other]),
                        _ => Err(Broken("has sent a message that is too short").into()),
                    };
                }
            }
            self.look()?;
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the link is up, and for the other's ring.
    fn meet(&mut self) -> Result<Rings, Failure> {
        while !self.link.is_up() {
            self.look()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        self.heard();
        self.tell(LEND, [self.piece.0, self.ring_bytes])?;
        let [at, bytes] = self.hear(LEND)?;
        let (start, heap) = self.region.header().geometry.heap();
        let end = at.checked_add(CONTROL_BYTES + bytes.min(*RING_BYTES.end()));
        let fits = at.is_multiple_of(PAGE_BYTES)
            && at >= start
            && end.is_some_and(|end| end <= start + heap)
            && bytes.is_power_of_two()
            && RING_BYTES.contains(&bytes);
        if !fits {
            return Err(Broken("has lent what cannot be").into());
        }
        let theirs = Out {
            slot: self.peer,
            at,
        };
        let rings = Rings {
            out: Producer::new(OutRing {
                data: theirs.add(CONTROL_BYTES),
                tail: theirs,
                head: self.piece.add(LINE_BYTES),
                capacity: bytes,
            }),
            incoming: Consumer::new(InRing {
                data: self.piece.add(CONTROL_BYTES),
                tail: self.piece,
                head: theirs.add(LINE_BYTES),
                capacity: self.ring_bytes,
            }),
        };
        rings.out.reset(&self.view);
        rings.incoming.reset(&self.view);
        self.tell(READY, [0; 2])?;
        self.hear(READY)?;
        self.heard();
        Ok(rings)
    }
}

/// The two rings of a pair of hosts.
struct Rings {
    out: Producer,
    incoming: Consumer,
}

impl Rings {
    /// Sends bytes, as soon as there is room.
    fn send(&mut self, host: &mut Host<'_>, mut bytes: &[u8]) -> Result<(), Failure> {
        let mut looks = 0;
        while !bytes.is_empty() {
            let wanted = bytes.len().min(BLOCK) as u64;
            let room = self.out.room(&host.view, wanted)?.min(bytes.len() as u64);
            if room == 0 {
                pause(host, &mut looks)?;
                continue;
            }
            let (now, later) = bytes.split_at(room as usize);
            // SAFETY: a slice is readable for its length, and there is room for it.
            unsafe { self.out.put(&host.view, now.as_ptr(), now.len()) };
            self.out.publish(&host.view);
            bytes = later;
        }
        Ok(())
    }

    /// Takes bytes, as soon as they are there.
    fn take(&mut self, host: &mut Host<'_>, bytes: &mut [u8]) -> Result<(), Failure> {
        let mut looks = 0;
        let mut done = 0;
        while done < bytes.len() {
            let left = (bytes.len() - done) as u64;
            let there = self.incoming.available(&host.view, 1)?.min(left) as usize;
            if there == 0 {
                pause(host, &mut looks)?;
                continue;
            }
            let to = &mut bytes[done..done + there];
            // SAFETY: a slice is writable for its length, and so many bytes are there.
            unsafe { self.incoming.copy(&host.view, 0, to.as_mut_ptr(), to.len()) };
            self.incoming.take(there as u64);
            self.incoming.give_back(&host.view);
            done += there;
        }
        host.heard();
        Ok(())
    }

    fn send_line(&mut self, host: &mut Host<'_>, words: [u64; 8]) -> Result<(), Failure> {
        let mut line = [0; LINE];
        for (to, word) in line.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        self.send(host, &line)
    }

    fn take_line(&mut self, host: &mut Host<'_>) -> Result<[u64; 8], Failure> {
        let mut line = [0; LINE];
        self.take(host, &mut line)?;
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(line.chunks_exact(8)) {
            *word = bytes
                .iter()
                .rev()
                .fold(0, |all, byte| all << 8 | u64::from(*byte));
        }
        Ok(words)
    }

    /// Measures, and says what it has found.
    fn ask(&mut self, host: &mut Host<'_>) -> Result<Figures, Failure> {
        let mut times: Vec<u64> = Vec::new();
        let begun = Instant::now();
        while times.len() < *ROUNDS.start()
            || times.len() < *ROUNDS.end() && begun.elapsed() < ROUNDS_TIME
        {
            let number = times.len() as u64;
            let line = [ECHO, number, !number, number << 32, 4, 5, 6, number];
            let sent = Instant::now();
            self.send_line(host, line)?;
            let answer = self.take_line(host)?;
            times.push(u64::try_from(sent.elapsed().as_nanos()).unwrap_or(u64::MAX));
            if answer != line {
                return Err(Failure::Wrong(LINE_BYTES));
            }
        }
        times.sort_unstable();
        let mut block = pattern();
        let mut sent = 0_u64;
        let begun = Instant::now();
        while sent == 0 || begun.elapsed() < STREAMS_TIME {
            self.send_line(host, [STREAM, BLOCKS, 0, 0, 0, 0, 0, 0])?;
            for number in 0..BLOCKS {
                block[..8].copy_from_slice(&number.to_le_bytes());
                self.send(host, &block)?;
            }
            let [kind, wrong, ..] = self.take_line(host)?;
            if kind != DONE {
                return Err(Broken("has answered what was not asked").into());
            }
            if wrong > 0 {
                return Err(Failure::Wrong(wrong));
            }
            sent += BLOCKS * BLOCK as u64;
        }
        let figures = Figures {
            round_trip_ns: times[times.len() / 2],
            round_trip_99_ns: times[times.len() * 99 / 100],
            bytes_per_second: (sent as f64 / begun.elapsed().as_secs_f64()) as u64,
        };
        let Figures {
            round_trip_ns: median,
            round_trip_99_ns: most,
            bytes_per_second: rate,
        } = figures;
        self.send_line(host, [BYE, median, most, rate, 0, 0, 0, 0])?;
        // So that whoever leaves first leaves nothing behind.
        self.take_line(host)?;
        Ok(figures)
    }

    /// Does what the other host asks for, until it says what it has found.
    fn answer(&mut self, host: &mut Host<'_>) -> Result<Figures, Failure> {
        let mut bytes = vec![0; BLOCK];
        let mut block = pattern();
        loop {
            let line = self.take_line(host)?;
            match line {
                [ECHO, ..] => self.send_line(host, line)?,
                [STREAM, BLOCKS, ..] => {
                    let mut wrong = 0;
                    for number in 0..BLOCKS {
                        self.take(host, &mut bytes)?;
                        block[..8].copy_from_slice(&number.to_le_bytes());
                        if bytes != block {
                            let pairs = bytes.iter().zip(&block);
                            wrong += pairs.filter(|(one, other)| one != other).count() as u64;
                        }
                    }
                    self.send_line(host, [DONE, wrong, 0, 0, 0, 0, 0, 0])?;
                }
                [BYE, round_trip_ns, round_trip_99_ns, bytes_per_second, ..] => {
                    self.send_line(host, line)?;
                    return Ok(Figures {
                        round_trip_ns,
                        round_trip_99_ns,
                        bytes_per_second,
                    });
                }
                _ => return Err(Broken("has asked for what there is not").into()),
            }
        }
    }
}

/// A block of a stream, but for the eight bytes of its number in front.
fn pattern() -> Vec<u8> {
    (0..BLOCK).map(|at| (at * 167 + (at >> 8)) as u8).collect()
}

/// Nothing is there yet.
fn pause(host: &mut Host<'_>, looks: &mut u32) -> Result<(), Failure> {
    core::hint::spin_loop();
    *looks += 1;
    if (*looks).is_multiple_of(LOOKS) {
        host.look()?;
        std::thread::yield_now();
    }
    Ok(())
}

/// How long a claim may take: a slot whose holder was killed is free when it was silent for so long.
pub const CLAIM_LIMIT: Duration = Duration::from_nanos(SILENCE_NS + 4 * BEAT_NS);

#[cfg(test)]
mod tests;
