//! The bad path: a thread for each direction that carries frames from one device to another.
//!
//! Both devices are in a namespace between the two hosts. Segmentation and checksum offload must
//! be off at the senders, because a frame is taken here as it is.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::bottleneck::{Bottleneck, Place, Queue};
use crate::faults::{Counts, Fate, Faults, Judge, is_roce, mark};
use crate::namespace::Namespace;
use crate::packets::{Batch, PacketSocket, Role};
use crate::verdict::{Verdict, fail};

/// How often a thread without frames looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);

/// A held frame that nothing follows passes after this time at the latest.
const HOLD_MAX: Duration = Duration::from_millis(10);

/// Which way frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    LeftToRight,
    RightToLeft,
}

/// A running injector; dropping it cuts the path for good.
pub struct Injector {
    ways: [Way; 2],
    stop: Arc<AtomicBool>,
}

struct Way {
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// What a middlebox makes of a frame: nothing, to let it pass, or another one. An empty one: the
/// frame is lost.
pub type Rewrite = Box<dyn FnMut(&[u8]) -> Option<Vec<u8>> + Send>;

/// What the test and the thread share.
struct State {
    judge: Judge,
    cut: bool,
    /// Of every frame.
    delay: Duration,
    /// RoCE frames that come through wait here.
    queue: Option<Queue>,
    /// Sees frames before anything else happens to them.
    rewrite: Option<Rewrite>,
}

impl Injector {
    /// Carries frames between two devices of a namespace, faultlessly until told otherwise.
    /// `frame_bytes_max` bounds a frame, its Ethernet header included.
    pub fn start(
        namespace: &Namespace,
        left: &str,
        right: &str,
        frame_bytes_max: usize,
    ) -> io::Result<Injector> {
        let stop = Arc::new(AtomicBool::new(false));
        let way = |from: &str, to: &str| -> io::Result<Way> {
            let (source, target) = namespace.inside(|| {
                Ok((
                    PacketSocket::open(from, Role::Receive)?,
                    PacketSocket::open(to, Role::Send)?,
                ))
            })?;
            let state = Arc::new(Mutex::new(State {
                judge: Judge::new(Faults::NONE),
                cut: false,
                delay: Duration::ZERO,
                queue: None,
                rewrite: None,
            }));
            let carrier = Carrier {
                source,
                target,
                state: Arc::clone(&state),
                stop: Arc::clone(&stop),
                held: Vec::new(),
                delayed: VecDeque::new(),
            };
            let thread = thread::Builder::new()
                .name(format!("{from}-to-{to}"))
                .spawn(move || carrier.run(frame_bytes_max))?;
            Ok(Way {
                state,
                thread: Some(thread),
            })
        };
        Ok(Injector {
            ways: [way(left, right)?, way(right, left)?],
            stop,
        })
    }

    /// From the next frame on.
    pub fn set(&self, direction: Direction, faults: Faults) {
        self.state(direction).judge.set(faults);
    }

    /// Both directions; the seed of the second one is another.
    pub fn set_both(&self, faults: Faults) {
        self.set(Direction::LeftToRight, faults);
        let seed = faults.seed.wrapping_add(1);
        self.set(Direction::RightToLeft, Faults { seed, ..faults });
    }

    /// Every frame takes so much longer, from the next one on, as on a longer cable.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.state(direction).delay = delay;
    }

    /// RoCE frames that come through go over a link like that, from the next one on. Not together
    /// with a delay, and what is held to be overtaken is not held up by it.
    pub fn narrow(&self, direction: Direction, link: Bottleneck) {
        self.state(direction).queue = Some(Queue::new(link));
    }

    /// A middlebox sees every frame, from the next one on. What it makes has no further fate.
    pub fn rewrite(&self, direction: Direction, rewrite: Rewrite) {
        self.state(direction).rewrite = Some(rewrite);
    }

    /// Nothing passes any more in this direction, of whatever kind.
    pub fn cut(&self, direction: Direction) {
        self.state(direction).cut = true;
    }

    /// Undoes [`Injector::cut`].
    pub fn restore(&self, direction: Direction) {
        self.state(direction).cut = false;
    }

    /// Nothing passes in either direction while the function runs.
    pub fn while_cut<T>(&self, body: impl FnOnce() -> T) -> T {
        self.cut(Direction::LeftToRight);
        self.cut(Direction::RightToLeft);
        let result = body();
        self.restore(Direction::LeftToRight);
        self.restore(Direction::RightToLeft);
        result
    }

    pub fn counts(&self, direction: Direction) -> Counts {
        self.state(direction).judge.counts
    }

    /// Counts from zero again.
    pub fn forget_counts(&self) {
        for direction in [Direction::LeftToRight, Direction::RightToLeft] {
            self.state(direction).judge.counts = Counts::default();
        }
    }

    /// Fails when the injector lost frames that it was not told to lose, or ended.
    pub fn check(&self) -> Verdict {
        for direction in [Direction::LeftToRight, Direction::RightToLeft] {
            let counts = self.counts(direction);
            if counts.overruns > 0 {
                return fail(format!("the injector itself lost frames: {counts:?}"));
            }
        }
        self.check_running()
    }

    /// Fails when the injector has ended. For tests of what must survive any loss: without a
    /// processor for a while, the injector loses frames too.
    pub fn check_running(&self) -> Verdict {
        for direction in [Direction::LeftToRight, Direction::RightToLeft] {
            let thread = self.way(direction).thread.as_ref();
            if thread.is_none_or(JoinHandle::is_finished) {
                return fail(format!("the injector ended: {direction:?}"));
            }
        }
        Ok(())
    }

    fn way(&self, direction: Direction) -> &Way {
        let [left_to_right, right_to_left] = &self.ways;
        match direction {
            Direction::LeftToRight => left_to_right,
            Direction::RightToLeft => right_to_left,
        }
    }

    fn state(&self, direction: Direction) -> MutexGuard<'_, State> {
        lock(&self.way(direction).state)
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for way in &mut self.ways {
            match way.thread.take().map(JoinHandle::join) {
                Some(Ok(Err(error))) => println!("the fault injector ended early: {error}"),
                Some(Err(_)) => println!("the fault injector panicked"),
                Some(Ok(Ok(()))) | None => {}
            }
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One direction's thread.
struct Carrier {
    source: PacketSocket,
    target: PacketSocket,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    held: Vec<Held>,
    /// In the order in which they are due.
    delayed: VecDeque<(Instant, Vec<u8>)>,
}

struct Held {
    frame: Vec<u8>,
    /// How many frames have yet to pass.
    passes: u32,
    until: Instant,
}

/// A frame to be sent: of the batch, or one that was kept.
enum Ready {
    InBatch(usize),
    Kept(Vec<u8>),
}

impl Carrier {
    fn run(mut self, frame_bytes_max: usize) -> io::Result<()> {
        let mut batch = Batch::new(frame_bytes_max);
        while !self.stop.load(Ordering::Relaxed) {
            self.source.receive(&mut batch, self.wait())?;
            let now = Instant::now();
            let (ready, delay) = self.decide(&mut batch, now)?;
            let ready = if delay.is_zero() && self.delayed.is_empty() {
                ready
            } else {
                self.postpone(ready, &batch, now + delay);
                Vec::new()
            };
            let mut frames: Vec<&[u8]> = Vec::with_capacity(ready.len());
            let due = self.due(now);
            frames.extend(due.iter().map(Vec::as_slice));
            frames.extend(ready.iter().map(|ready| match ready {
                Ready::InBatch(index) => batch.frame(*index),
                Ready::Kept(frame) => frame,
            }));
            if frames.is_empty() {
                continue;
            }
            let refused = self.target.send(&frames)?;
            let counts = &mut lock(&self.state).judge.counts;
            counts.carried += frames.len() as u64 - refused;
            counts.overruns += refused;
        }
        Ok(())
    }

    /// Until the next frame is due.
    fn wait(&self) -> Duration {
        let held = self.held.iter().map(|held| held.until);
        let delayed = self.delayed.front().map(|(due, _)| *due);
        let next = held.chain(delayed).min();
        let now = Instant::now();
        next.map_or(LOOK, |next| next.saturating_duration_since(now).min(LOOK))
    }

    /// What of the batch, and of what is held, goes on now, in order.
    fn decide(&mut self, batch: &mut Batch, now: Instant) -> io::Result<(Vec<Ready>, Duration)> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let mut ready = Vec::with_capacity(batch.len());
        for index in 0..batch.len() {
            if state.cut {
                state.judge.counts.cut += 1;
                continue;
            }
            let rewrite = state.rewrite.as_mut();
            match rewrite.and_then(|rewrite| rewrite(batch.frame(index))) {
                Some(other) if other.is_empty() => continue,
                Some(other) => {
                    ready.push(Ready::Kept(other));
                    continue;
                }
                None => {}
            }
            match state.judge.judge(batch.frame_mut(index)) {
                Fate::Lose => continue,
                Fate::Hold(passes) => {
                    self.held.push(Held {
                        frame: batch.frame(index).to_vec(),
                        passes,
                        until: now + HOLD_MAX,
                    });
                    continue;
                }
                Fate::Pass => {
                    let frame = batch.frame_mut(index);
                    let queue = state.queue.as_mut().filter(|_| is_roce(frame));
                    match queue.map(|queue| queue.enter(now, frame.len())) {
                        None => ready.push(Ready::InBatch(index)),
                        Some(Place::Full) => state.judge.counts.overflowed += 1,
                        Some(Place::Until { time, mark: marks }) => {
                            state.judge.counts.marked += u64::from(marks && mark(frame));
                            self.delayed.push_back((time, frame.to_vec()));
                        }
                    }
                }
                Fate::Twice => {
                    ready.push(Ready::InBatch(index));
                    ready.push(Ready::InBatch(index));
                }
            }
            for held in &mut self.held {
                held.passes -= 1;
            }
            ready.extend(
                self.held
                    .extract_if(.., |held| held.passes == 0)
                    .map(Held::release),
            );
        }
        if !batch.is_empty() {
            state.judge.counts.overruns += self.source.dropped()?;
        }
        if state.cut {
            // What was under way when the cable was cut.
            state.judge.counts.cut += self.held.len() as u64 + self.delayed.len() as u64;
            self.held.clear();
            self.delayed.clear();
        }
        ready.extend(
            self.held
                .extract_if(.., |held| held.until <= now)
                .map(Held::release),
        );
        Ok((ready, state.delay))
    }

    /// Keeps frames for later. None overtakes an earlier one, also when the delay became shorter.
    fn postpone(&mut self, ready: Vec<Ready>, batch: &Batch, due: Instant) {
        let due = self.delayed.back().map_or(due, |(last, _)| due.max(*last));
        for ready in ready {
            let frame = match ready {
                Ready::InBatch(index) => batch.frame(index).to_vec(),
                Ready::Kept(frame) => frame,
            };
            self.delayed.push_back((due, frame));
        }
    }

    fn due(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut due = Vec::new();
        while let Some((_, frame)) = self.delayed.pop_front_if(|(time, _)| *time <= now) {
            due.push(frame);
        }
        due
    }
}

impl Held {
    fn release(self) -> Ready {
        Ready::Kept(self.frame)
    }
}
