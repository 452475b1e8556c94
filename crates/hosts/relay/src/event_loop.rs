//! The loop around all pairs.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::options::Options;
use crate::pair::{End, Moved, Outcome, Pair, PairId, Side};
use crate::poll::{Interest, Poll, Readiness};
use crate::socket;

/// In the data of an event: a descriptor of the owner's, with its key below. No tag of the preload
/// library's (decision 0007) has this bit and not the one above it.
const OWN: u64 = 1 << 62;

/// For how long a listener that cannot accept is left alone.
const PAUSE: Duration = Duration::from_millis(100);
/// How often that is worth a line in a log.
const PAUSE_SAID: Duration = Duration::from_secs(60);

/// What was done since the event loop was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Pairs that there are.
    pub pairs: u64,
    /// Pairs that ended as both streams did.
    pub finished: u64,
    /// Pairs that were reset.
    pub reset: u64,
    /// Bytes taken from left and given to right, and the other way.
    pub bytes: [u64; 2],
    /// Bytes that wait in this process now.
    pub buffered_bytes: u64,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A descriptor that is watched.
    Ready {
        /// As given to [`EventLoop::watch`].
        key: u64,
        /// What is so; again at the next turn if it still is.
        readiness: Readiness,
    },
    /// A pair is no longer there, and its sockets are closed.
    Ended {
        /// Which.
        pair: PairId,
        /// How.
        end: End,
        /// From left to right, and back.
        bytes: [u64; 2],
    },
}

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    pair: Option<Pair>,
    /// It is among those that have more to do.
    again: bool,
}

/// A descriptor of the owner's.
#[derive(Debug)]
struct Watched {
    fd: RawFd,
    interest: Interest,
    said: Option<Instant>,
}

/// All pairs, and what else the owner waits for.
#[derive(Debug)]
pub struct EventLoop {
    poll: Poll,
    options: Options,
    scratch: Vec<u8>,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Pairs that had their share and have more to do.
    again: Vec<u32>,
    watched: HashMap<u64, Watched>,
    /// Keys of those that are not reported, and until when; the first first.
    paused: VecDeque<(Instant, u64)>,
    counters: Counters,
}

impl EventLoop {
    /// Without pairs.
    pub fn new(options: Options) -> io::Result<Self> {
        if options.buffer_bytes == 0 || options.share_bytes == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a relay's buffer and share are at least one byte",
            ));
        }
        Ok(Self {
            poll: Poll::new()?,
            scratch: vec![0; options.buffer_bytes],
            options,
            places: Vec::new(),
            free: Vec::new(),
            again: Vec::new(),
            watched: HashMap::new(),
            paused: VecDeque::new(),
            counters: Counters::default(),
        })
    }

    /// Reports a descriptor of the owner's as long as it is ready. The key is below 2^62 and no
    /// other descriptor's. To be taken back with [`EventLoop::unwatch`] before the descriptor is
    /// closed or made one of a pair.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, interest: Interest, key: u64) -> io::Result<()> {
        if key >= OWN || self.watched.contains_key(&key) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        self.poll.add_level(fd, interest, OWN | key)?;
        let watched = Watched {
            fd: fd.as_raw_fd(),
            interest,
            said: None,
        };
        self.watched.insert(key, watched);
        Ok(())
    }

    /// Does not report a watched listener for a tenth of a second: it cannot accept for lack of
    /// descriptors or memory, and would be ready all the time. True: that is worth a line in a log,
    /// which it is once a minute.
    pub fn pause(&mut self, key: u64) -> bool {
        let Some(watched) = self.watched.get_mut(&key) else {
            return false;
        };
        let now = Instant::now();
        if !self.paused.iter().any(|&(_, other)| other == key)
            && self.poll.change_level(watched.fd, None, OWN | key).is_ok()
        {
            self.paused.push_back((now + PAUSE, key));
        }
        let is_new = watched.said.is_none_or(|at| now - at >= PAUSE_SAID);
        if is_new {
            watched.said = Some(now);
        }
        is_new
    }

    /// Reports again what was paused for long enough. How long the others still are.
    fn resume(&mut self) -> Option<Duration> {
        let now = Instant::now();
        loop {
            let &(until, key) = self.paused.front()?;
            if until > now {
                return Some(until - now);
            }
            self.paused.pop_front();
            if let Some(watched) = self.watched.get(&key) {
                let interest = Some(watched.interest);
                // It fails for a descriptor that its owner has closed, and for no other.
                let _ = self.poll.change_level(watched.fd, interest, OWN | key);
            }
        }
    }

    /// Events of this turn that were found already are not taken back.
    pub fn unwatch(&mut self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        let watched = self.watched.get(&key);
        if watched.is_none_or(|watched| watched.fd != fd.as_raw_fd()) {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        self.watched.remove(&key);
        self.paused.retain(|&(_, other)| other != key);
        self.poll.remove(fd)
    }

    /// Copies between two connected TCP sockets from now on, until both streams have ended or one
    /// socket fails. They are made not to delay small writes; they do not block already.
    ///
    /// A peer that has gone without a word is found out: neither of the two would hear of it
    /// otherwise, as what they ask of the connection, this end answers. There is no
    /// `TCP_USER_TIMEOUT`: it would also end a connection whose reader sleeps, and the kernel gives
    /// up bytes that nobody acknowledges by itself (`tcp_retries2`).
    ///
    /// Should this process be killed, both peers get a reset: an end of the stream would say that
    /// they have everything.
    pub fn pair(&mut self, left: OwnedFd, right: OwnedFd) -> io::Result<PairId> {
        for fd in [&left, &right] {
            socket::send_at_once(fd.as_fd())?;
            socket::reset_on_close(fd.as_fd(), true)?;
            socket::keep_alive(fd.as_fd(), self.options.idle_s)?;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.places.len())
                    .map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
                self.places.push(Place::default());
                index
            }
        };
        let added = self
            .poll
            .add_edges(left.as_fd(), data(index, Side::Left))
            .and_then(|()| {
                let added = self.poll.add_edges(right.as_fd(), data(index, Side::Right));
                if added.is_err() {
                    let _ = self.poll.remove(left.as_fd());
                }
                added
            });
        let place = self.places.get_mut(index as usize);
        let (Some(place), Ok(())) = (place, &added) else {
            self.free.push(index);
            return Err(added.err().unwrap_or(io::ErrorKind::NotFound.into()));
        };
        place.pair = Some(Pair::new(left, right));
        self.counters.pairs += 1;
        Ok(PairId {
            index,
            generation: place.generation,
        })
    }

    /// Resets both ends of a pair, without an event. False: it had ended.
    pub fn reset(&mut self, id: PairId) -> bool {
        let place = self.places.get(id.index as usize);
        let is_it = place.is_some_and(|place| place.generation == id.generation);
        is_it && self.end(id.index, End::Reset).is_some()
    }

    /// Resets all pairs, without events.
    pub fn reset_all(&mut self) {
        for index in 0..self.places.len() as u32 {
            self.end(index, End::Reset);
        }
    }

    /// What was done.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Waits until something can be done (None: for ever), does it, and adds what the owner is to
    /// know. A signal ends the wait, and the end of a pause does.
    pub fn turn(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        let again = std::mem::take(&mut self.again);
        let timeout = if again.is_empty() {
            [timeout, self.resume()].into_iter().flatten().min()
        } else {
            Some(Duration::ZERO)
        };
        for &index in &again {
            if let Some(place) = self.places.get_mut(index as usize) {
                place.again = false;
            }
        }
        let waited = self.poll.wait(timeout);
        // All is noted before anything is moved: a pair whose one end was reset is gone after it.
        for nth in 0..self.poll.found() {
            let Some((data, readiness)) = self.poll.event(nth) else {
                break;
            };
            match place_of(data) {
                Some((index, side)) => {
                    let place = self.places.get_mut(index as usize);
                    if let Some(pair) = place.and_then(|place| place.pair.as_mut()) {
                        pair.heard(side, readiness);
                    }
                }
                None => {
                    let key = data & !OWN;
                    events.push(Event::Ready { key, readiness });
                }
            }
        }
        for nth in 0..self.poll.found() {
            let named = self.poll.event(nth).and_then(|(data, _)| place_of(data));
            if let Some((index, _)) = named {
                self.go(index, events);
            }
        }
        for index in again {
            self.go(index, events);
        }
        waited
    }

    fn go(&mut self, index: u32, events: &mut Vec<Event>) {
        let Some(place) = self.places.get_mut(index as usize) else {
            return;
        };
        // What had its share in this turn waits for the next one.
        if place.again {
            return;
        }
        let Some(pair) = place.pair.as_mut() else {
            return;
        };
        let mut moved = Moved::default();
        let outcome = pair.go(&mut self.scratch, &self.options, &mut moved);
        for (total, bytes) in self.counters.bytes.iter_mut().zip(moved.bytes) {
            *total += bytes;
        }
        let buffered = &mut self.counters.buffered_bytes;
        *buffered = buffered.saturating_add_signed(moved.buffered as i64);
        match outcome {
            Outcome::Waiting => {}
            Outcome::Again => {
                place.again = true;
                self.again.push(index);
            }
            Outcome::Ended(end) => {
                let pair = PairId {
                    index,
                    generation: place.generation,
                };
                if let Some(bytes) = self.end(index, end) {
                    events.push(Event::Ended { pair, end, bytes });
                }
            }
        }
    }

    /// Closes the sockets and frees the place. None: it was free.
    fn end(&mut self, index: u32, end: End) -> Option<[u64; 2]> {
        let place = self.places.get_mut(index as usize)?;
        let pair = place.pair.take()?;
        place.generation = place.generation.wrapping_add(1);
        place.again = false;
        self.free.push(index);
        self.again.retain(|&other| other != index);
        for fd in pair.fds() {
            // A copy of the descriptor may live for a moment in another process, and with it
            // the registration.
            let _ = self.poll.remove(fd);
            if end == End::Finished {
                let _ = socket::reset_on_close(fd, false);
            }
        }
        self.counters.pairs -= 1;
        match end {
            End::Finished => self.counters.finished += 1,
            End::Reset => self.counters.reset += 1,
        }
        let buffered = &mut self.counters.buffered_bytes;
        *buffered = buffered.saturating_sub(pair.buffered() as u64);
        Some(pair.bytes())
    }
}

fn data(index: u32, side: Side) -> u64 {
    u64::from(index) << 1 | side as u64
}

/// None: a descriptor of the owner's.
fn place_of(data: u64) -> Option<(u32, Side)> {
    let side = match data & 1 {
        0 => Side::Left,
        _ => Side::Right,
    };
    (data & OWN == 0).then_some(((data >> 1) as u32, side))
}
