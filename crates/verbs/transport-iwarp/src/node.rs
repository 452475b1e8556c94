//! A process's share: its streams, its queue pairs, and the threads that work when nobody polls
//! ([`sluice_transport::worker`]). What has come leaves its socket readable, and threads that only watch
//! do not wait for sockets.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use sluice_sys::at_exit::AtExit;
use sluice_sys::clock::now_ns;
use sluice_sys::errno::Errno;
use sluice_sys::local_fd::LocalFd;
use sluice_sys::wake::{drain, eventfd, ring};
use sluice_transport::worker::{self, Control, Look, Manner, WATCH_NS, Woken, Work};
use sluice_verbs::locks::lock;
use sluice_verbs::transport::{ArmedQueues, QpParams};
use sluice_verbs::with_aftermath;

use crate::completions::{Completions, Member, join, leave};
use crate::manager::{self, Kind, Manager, token};
use crate::part::{Helper, Part};
use crate::socket::{Interest, Polls, Ready, Socket};

/// How long a process that ends waits for its peers to close.
const FAREWELL: Duration = Duration::from_millis(300);
/// Numbers of queue pairs: 24 bits, neither 0 nor 1.
const NUMBERS: core::ops::Range<u32> = 2..0x0100_0000;

/// One of the threads.
struct Worker {
    /// What wakes it; the sockets of its queue pairs only when it listens.
    polls: Polls,
    kick: LocalFd,
    /// It sleeps, and sockets wake it.
    listens: AtomicBool,
    /// Queue pairs that are to be looked at.
    called: Mutex<Vec<u32>>,
    /// When one of its queue pairs is to be looked at, nanoseconds.
    due_ns: AtomicU64,
}

/// One transport's share of the process.
pub struct Node {
    pub manager: Manager,
    pub completions: Completions,
    workers: Vec<Worker>,
    parts: Mutex<HashMap<u32, Arc<Part>>>,
    last: AtomicU32,
    /// Frames that programs have taken by polling.
    polled: AtomicU64,
    control: Control,
}

fn errno(error: std::io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

impl Worker {
    fn new() -> Result<Self, Errno> {
        let polls = Polls::new().map_err(errno)?;
        let kick = LocalFd::own(eventfd()?);
        let input = Interest {
            input: true,
            ..Interest::default()
        };
        polls
            .add(kick.raw(), input, token(Kind::Kick, 0))
            .map_err(errno)?;
        Ok(Self {
            polls,
            kick,
            listens: AtomicBool::new(false),
            called: Mutex::default(),
            due_ns: AtomicU64::new(u64::MAX),
        })
    }
}

impl Node {
    /// With so many threads, which end when it is gone or told to stop.
    pub fn start(threads: usize, crc: bool) -> Result<Arc<Self>, Errno> {
        let workers = (0..threads.max(1)).map(|_| Worker::new());
        let node = Arc::new(Self {
            manager: Manager::new(crc),
            completions: Completions::default(),
            workers: workers.collect::<Result<_, _>>()?,
            parts: Mutex::default(),
            last: AtomicU32::new(NUMBERS.start - 1),
            polled: AtomicU64::new(0),
            control: Control::default(),
        });
        for number in 0..node.workers.len() {
            let work = Streams {
                number,
                ready: Vec::new(),
                next: Vec::new(),
                called: Vec::new(),
            };
            worker::start(&node, format!("sluice-iwarp-{number}"), work).inspect_err(|_| {
                // Those that run must not stay.
                node.stop();
            })?;
        }
        Ok(node)
    }

    pub fn stop(&self) {
        self.control.stop();
        for worker in &self.workers {
            ring(worker.kick.raw());
        }
    }

    /// Where streams are waited for that no queue pair has, and listeners. None: there are no
    /// threads.
    pub fn startups(&self) -> Option<&Polls> {
        self.workers.first().map(|worker| &worker.polls)
    }

    pub fn new_part(self: &Arc<Self>, params: &QpParams) -> Result<Arc<Part>, Errno> {
        let mut parts = lock(&self.parts);
        if parts.len() >= NUMBERS.len() / 2 {
            return Err(Errno(libc::ENOMEM));
        }
        let number = loop {
            let next = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            let number = NUMBERS.start + next % NUMBERS.len() as u32;
            if !parts.contains_key(&number) {
                break number;
            }
        };
        let worker = number as usize % self.workers.len();
        let sources = self.completions.of([params.send_cq, params.recv_cq]);
        let helper: Weak<Self> = Arc::downgrade(self);
        let part = Part::new(number, worker, helper, sources, params);
        parts.insert(number, Arc::clone(&part));
        drop(parts);
        let member: Arc<dyn Member> = part.clone();
        join(part.sources(), &member);
        Ok(part)
    }

    pub fn remove_part(&self, part: &Arc<Part>) {
        let member: Arc<dyn Member> = part.clone();
        leave(part.sources(), &member);
        self.manager.unbind(part);
        lock(&self.parts).remove(&part.qpn);
    }

    pub fn parts(&self) -> Vec<Arc<Part>> {
        lock(&self.parts).values().cloned().collect()
    }

    /// A program has taken so many frames by polling.
    pub fn note_polled(&self, frames: u64) {
        self.polled.fetch_add(frames, Ordering::Relaxed);
    }

    pub fn armed_queues(&self) -> &Arc<ArmedQueues> {
        self.control.armed_queues()
    }

    /// Somebody waits for an event, and is counted. A thread that listens needs not hear of it; one that
    /// is about to rest has looked at the count in front of saying how.
    pub fn armed(&self) {
        for worker in &self.workers {
            if !worker.listens.load(Ordering::SeqCst) {
                ring(worker.kick.raw());
            }
        }
    }
}

impl Helper for Node {
    fn watch(&self, part: &Part, socket: &Socket, interest: Option<Interest>) {
        let Some(worker) = self.workers.get(part.worker) else {
            return;
        };
        let (raw, token) = (socket.raw(), part.token());
        match interest {
            Some(interest) => {
                if worker
                    .polls
                    .listening()
                    .change(raw, interest, token)
                    .is_err()
                {
                    // Not there yet. Without room in the kernel only polls find what comes.
                    let _ = worker.polls.listening().add(raw, interest, token);
                }
            }
            None => worker.polls.listening().remove(raw),
        }
    }

    fn call(&self, part: &Part) {
        if let Some(worker) = self.workers.get(part.worker) {
            lock(&worker.called).push(part.qpn);
            ring(worker.kick.raw());
        }
    }

    fn call_at(&self, part: &Part, when_ns: u64) {
        if let Some(worker) = self.workers.get(part.worker)
            && worker.due_ns.fetch_min(when_ns, Ordering::SeqCst) > when_ns
        {
            ring(worker.kick.raw());
        }
    }

    fn ended(&self, stream: u32, still: bool) {
        if let Some(polls) = self.startups() {
            self.manager.ended(polls, stream, still);
        }
    }
}

impl AtExit for Node {
    fn leave(&self) {
        self.manager.leave(FAREWELL);
    }
}

/// What a thread does ([`sluice_transport::worker`]).
struct Streams {
    number: usize,
    ready: Vec<Ready>,
    /// Queue pairs to look at, and whether the kernel says that their connection is over.
    next: Vec<(u32, bool)>,
    /// Queue pairs that this thread was called for.
    called: Vec<u32>,
}

impl Streams {
    fn worker<'a>(&self, node: &'a Node) -> &'a Worker {
        &node.workers[self.number]
    }

    /// Sees to what is ready; queue pairs are looked at behind it.
    fn take_ready(&mut self, node: &Node) {
        let worker = &node.workers[self.number];
        for ready in self.ready.drain(..) {
            match manager::parse(ready.token) {
                (Kind::Part, part) => self.next.push((part, ready.hung)),
                (Kind::Listener, listener) => node.manager.came(&worker.polls, listener),
                (Kind::Stream, stream) => node.manager.ready(&worker.polls, stream),
                (Kind::Kick, _) => drain(worker.kick.raw()),
            }
        }
    }
}

impl Work<1> for Streams {
    type Node = Node;

    const MANNER: Manner = Manner::HEARD;

    fn control(node: &Node) -> &Control {
        &node.control
    }

    fn polled(&self, node: &Node) -> [u64; 1] {
        [node.polled.load(Ordering::Relaxed)]
    }

    /// What was left wakes it: a kick is not taken back before the look behind it.
    fn awakes(&mut self, node: &Node) {
        self.worker(node).listens.store(false, Ordering::SeqCst);
    }

    fn look(&mut self, node: &Node, look: Look<1>) -> Option<[usize; 1]> {
        let worker = &node.workers[self.number];
        if matches!(look, Look::Again { .. }) {
            worker.polls.wait(&mut self.ready, true, 0);
            self.take_ready(node);
        }
        self.called.append(&mut lock(&worker.called));
        self.called.sort_unstable();
        self.called.dedup();
        let mut found = 0;
        for part in self.called.drain(..) {
            let Some(known) = lock(&node.parts).get(&part).cloned() else {
                continue;
            };
            if let Some(worked) = with_aftermath(|after| known.work_when_called(after)) {
                if worked.more {
                    self.next.push((part, false));
                }
                found += worked.frames as usize;
            }
        }
        node.add_due(worker, self.number, &mut self.next);
        self.next.sort_unstable();
        // Of one queue pair the word that it is over comes last, and stays.
        self.next.reverse();
        self.next.dedup_by_key(|(part, _)| *part);
        let looks = core::mem::take(&mut self.next);
        for (part, hung) in looks {
            let Some(known) = lock(&node.parts).get(&part).cloned() else {
                continue;
            };
            // Whoever is at it does everything.
            let Some(worked) = with_aftermath(|after| known.work(hung, after)) else {
                continue;
            };
            if worked.more {
                self.next.push((part, false));
            }
            found += worked.frames as usize;
        }
        Some([found])
    }

    /// What has come leaves its socket readable.
    fn announce(&mut self, node: &Node, sleeps: bool) -> bool {
        self.worker(node).listens.store(sleeps, Ordering::SeqCst);
        false
    }

    fn until(&mut self, node: &Node, sleeps: bool, now: u64) -> Option<u64> {
        if !self.next.is_empty() {
            return Some(now);
        }
        let worker = self.worker(node);
        let startups = match self.number {
            0 => {
                let now = Instant::now();
                let late = node.manager.expire(now);
                let rested = node.manager.resume(&worker.polls, now);
                late.into_iter().chain(rested).min()
            }
            _ => None,
        };
        let startups = startups.map_or(u64::MAX, |when| {
            let left = when.saturating_duration_since(Instant::now());
            now.saturating_add(left.as_nanos() as u64)
        });
        let until = startups.min(worker.due_ns.load(Ordering::SeqCst));
        Some(match sleeps {
            true => until,
            false => until.min(now + WATCH_NS),
        })
    }

    fn wait(&mut self, node: &Node, sleeps: bool, timeout_ns: Option<u64>) -> Woken {
        // Rounded up, so that it is due when the thread looks.
        let timeout = timeout_ns.map_or(-1, |ns| {
            i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX)
        });
        let worker = &node.workers[self.number];
        let ready = worker.polls.wait(&mut self.ready, sleeps, timeout);
        let is_work = |ready: &Ready| manager::parse(ready.token).0 == Kind::Part;
        Woken {
            count: ready.len(),
            by_work: ready.iter().any(is_work),
        }
    }

    fn events(&mut self, node: &Node, _woken: Woken) {
        self.take_ready(node);
    }
}

impl Node {
    /// Adds the worker's queue pairs whose time has come.
    fn add_due(&self, worker: &Worker, number: usize, into: &mut Vec<(u32, bool)>) {
        let now = now_ns();
        if worker.due_ns.load(Ordering::SeqCst) > now {
            return;
        }
        worker.due_ns.store(u64::MAX, Ordering::SeqCst);
        for part in self.parts() {
            let due = part.due_ns();
            if part.worker != number || due == u64::MAX {
                continue;
            }
            if due <= now {
                into.push((part.qpn, false));
            } else {
                worker.due_ns.fetch_min(due, Ordering::SeqCst);
            }
        }
    }
}
