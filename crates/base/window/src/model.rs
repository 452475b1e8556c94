//! A window for tests that does what each kind allows and nothing else.
//!
//! Writes are cut into words of eight bytes and become visible at moments and in an order that a
//! [`Chooser`] decides: by chance, or all of them in turn. What the design forbids (two writers
//! of a line, an address outside a slot) panics. It runs in one thread: as what a host reads is
//! the only thing that it learns of the other, every interleaving is one in which writes become
//! visible between two reads.
//!
//! | kind | what happens |
//! |---|---|
//! | coherent, push | words of one writer between two of its [`publish`](View::publish) calls become visible in any order; a call orders all earlier before all later ones |
//! | flush | words are in the writer's cache, line by line, until it publishes the line or the cache evicts it; lines that were read stay in the reader's cache until it refreshes them or the cache drops them; lines may be read ahead at any time |
//!
//! On the coherent and push kinds `publish` orders everything, as a store fence does. A program
//! that is right on all three needs no more than [`View`] promises.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use crate::Kind;
use crate::claim::{Table, Word};
use crate::view::{In, LINE_BYTES, Out, View};

const LINE: usize = LINE_BYTES as usize;

/// Decides what may happen either way.
#[derive(Debug)]
pub enum Chooser {
    /// By chance, from a seed.
    Random(u64),
    /// The decisions of one run: what to decide again, then 0 each time. See [`exhaust`].
    Replay { path: Vec<(u32, u32)>, at: usize },
}

impl Chooser {
    /// A number below `count`.
    pub fn choose(&mut self, count: u32) -> u32 {
        if count <= 1 {
            return 0;
        }
        match self {
            // Vigna, "An experimental exploration of Marsaglia's xorshift generators": xorshift64*.
            Chooser::Random(state) => {
                *state ^= *state >> 12;
                *state ^= *state << 25;
                *state ^= *state >> 27;
                ((state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % u64::from(count)) as u32
            }
            Chooser::Replay { path, at } => {
                if *at == path.len() {
                    path.push((0, count));
                }
                let (choice, of) = path[*at];
                assert_eq!(of, count, "a run is not repeatable");
                *at += 1;
                choice
            }
        }
    }
}

/// Runs `run` once for each sequence of decisions that it can be led through, `runs_max` at most.
/// Returns how many runs there were, and whether that is all of them.
pub fn exhaust(runs_max: u64, mut run: impl FnMut(Rc<RefCell<Chooser>>)) -> (u64, bool) {
    let mut path = Vec::new();
    for runs in 1..=runs_max {
        let chooser = Rc::new(RefCell::new(Chooser::Replay { path, at: 0 }));
        run(chooser.clone());
        let Chooser::Replay { path: taken, at } = chooser.replace(Chooser::Random(1)) else {
            unreachable!("nobody replaces the chooser");
        };
        path = taken;
        path.truncate(at);
        // The next path in the order of an odometer.
        while let Some((choice, count)) = path.pop() {
            if choice + 1 < count {
                path.push((choice + 1, count));
                break;
            }
        }
        if path.is_empty() {
            return (runs, true);
        }
    }
    (runs_max, false)
}

/// A word on its way.
#[derive(Clone, Copy, Debug)]
struct Posted {
    slot: usize,
    at: usize,
    bytes: [u8; 8],
    /// Which of the bytes were written.
    mask: u8,
}

/// What one host's caches hold of a line.
#[derive(Clone, Debug)]
struct Cached {
    bytes: [u8; LINE],
    /// Written here and not written back.
    dirty: [bool; LINE],
}

#[derive(Debug, Default)]
struct Host {
    /// Coherent, push: what was written, in groups between two publications.
    posted: VecDeque<Vec<Posted>>,
    /// Flush.
    cache: BTreeMap<(usize, usize), Cached>,
}

#[derive(Debug)]
struct Memory {
    kind: Kind,
    slots: Vec<Vec<u8>>,
    hosts: Vec<Host>,
    writers: BTreeMap<(usize, usize), usize>,
    claims: Vec<[u64; 4]>,
    cut: bool,
    chooser: Rc<RefCell<Chooser>>,
}

/// A window of some hosts.
#[derive(Clone, Debug)]
pub struct Model {
    memory: Rc<RefCell<Memory>>,
}

/// The window as one of them sees it.
#[derive(Clone, Debug)]
pub struct ModelView {
    memory: Rc<RefCell<Memory>>,
    host: usize,
}

impl Model {
    pub fn new(kind: Kind, hosts: u32, slot_bytes: u64, chooser: Rc<RefCell<Chooser>>) -> Model {
        let memory = Memory {
            kind,
            slots: vec![vec![0; slot_bytes as usize]; hosts as usize],
            hosts: (0..hosts).map(|_| Host::default()).collect(),
            writers: BTreeMap::new(),
            claims: vec![[0; 4]; hosts as usize],
            cut: false,
            chooser,
        };
        Model {
            memory: Rc::new(RefCell::new(memory)),
        }
    }

    /// By chance, from a seed.
    pub fn random(kind: Kind, hosts: u32, slot_bytes: u64, seed: u64) -> Model {
        let chooser = Rc::new(RefCell::new(Chooser::Random(seed | 1)));
        Model::new(kind, hosts, slot_bytes, chooser)
    }

    pub fn view(&self, host: u32) -> ModelView {
        ModelView {
            memory: self.memory.clone(),
            host: host as usize,
        }
    }

    /// Cuts the way between the hosts, or heals it. What is on its way when it is cut is lost.
    /// While it is cut, writes are lost, and a region's words read as ones; what a host behind a
    /// bridge reads is its own memory, and stays as it is.
    pub fn set_cut(&self, cut: bool) {
        let mut memory = self.memory.borrow_mut();
        memory.cut = cut;
        for host in &mut memory.hosts {
            host.posted.clear();
            host.cache.clear();
        }
    }

    /// A host ends without a word: a part of what it wrote last is seen, and its caches are gone.
    pub fn kill(&self, host: u32) {
        let mut memory = self.memory.borrow_mut();
        memory.deliver_some(host as usize);
        memory.evict_some(host as usize);
        let host = &mut memory.hosts[host as usize];
        host.posted.clear();
        host.cache.clear();
    }

    /// A stranger's pen: bytes change under everybody, whatever the rules are.
    pub fn scribble(&self, slot: u32, at: u64, bytes: &[u8]) {
        let mut memory = self.memory.borrow_mut();
        let at = at as usize;
        memory.slots[slot as usize][at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Memory {
    fn choose(&self, count: u32) -> u32 {
        self.chooser.borrow_mut().choose(count)
    }

    fn apply(&mut self, word: Posted) {
        for index in (0..8).filter(|index| word.mask >> index & 1 == 1) {
            self.slots[word.slot][word.at + index] = word.bytes[index];
        }
    }

    /// Some of what a host posted becomes visible: all of its older groups up to one that is
    /// chosen, and of that one some words in any order.
    fn deliver_some(&mut self, host: usize) {
        while !self.hosts[host].posted.is_empty() {
            if self.hosts[host].posted[0].is_empty() {
                self.hosts[host].posted.pop_front();
                continue;
            }
            let waiting = self.hosts[host].posted[0].len() as u32;
            // The last choice is that no more become visible now. So is the first, in replays:
            // a path of zeros ends.
            let choice = self.choose(waiting + 1);
            let Some(index) = choice.checked_sub(1) else {
                return;
            };
            let word = self.hosts[host].posted[0].remove(index as usize);
            // Two words for the same place stay in order.
            let earlier = self.hosts[host].posted[0][..index as usize]
                .iter()
                .position(|other| (other.slot, other.at) == (word.slot, word.at));
            match earlier {
                Some(first) => {
                    let older = std::mem::replace(&mut self.hosts[host].posted[0][first], word);
                    self.apply(older);
                }
                None => self.apply(word),
            }
        }
    }

    fn write_back(&mut self, host: usize, line: (usize, usize)) {
        let Some(cached) = self.hosts[host].cache.get_mut(&line) else {
            return;
        };
        for (index, dirty) in cached.dirty.iter_mut().enumerate() {
            if std::mem::take(dirty) {
                self.slots[line.0][line.1 * LINE + index] = cached.bytes[index];
            }
        }
    }

    /// Caches write back and drop lines as they like.
    fn evict_some(&mut self, host: usize) {
        let lines: Vec<_> = self.hosts[host].cache.keys().copied().collect();
        for line in lines {
            let dirty = self.hosts[host].cache[&line].dirty.contains(&true);
            match (dirty, self.choose(2)) {
                (_, 0) => {}
                (true, _) => self.write_back(host, line),
                (false, _) => {
                    self.hosts[host].cache.remove(&line);
                }
            }
        }
    }

    fn fetch(&mut self, host: usize, line: (usize, usize)) {
        let bytes = &self.slots[line.0][line.1 * LINE..(line.1 + 1) * LINE];
        let mut copy = [0; LINE];
        copy.copy_from_slice(bytes);
        self.hosts[host].cache.entry(line).or_insert(Cached {
            bytes: copy,
            dirty: [false; LINE],
        });
    }

    /// Before a host reads, anything may have happened.
    fn settle(&mut self, reader: usize) {
        for host in 0..self.hosts.len() {
            if host != reader {
                self.deliver_some(host);
            }
            self.evict_some(host);
        }
    }

    fn read_byte(&mut self, host: usize, at: usize) -> u8 {
        if self.cut && self.kind != Kind::Push {
            return 0xff;
        }
        if self.kind == Kind::Flush {
            let line = (host, at / LINE);
            self.fetch(host, line);
            return self.hosts[host].cache[&line].bytes[at % LINE];
        }
        self.slots[host][at]
    }

    fn write_word(&mut self, host: usize, word: Posted) {
        let line = (word.slot, word.at / LINE);
        let writer = *self.writers.entry(line).or_insert(host);
        assert_eq!(writer, host, "line {line:?} has two writers");
        assert!(word.at + 8 <= self.slots[word.slot].len());
        if self.cut {
            return;
        }
        if self.kind == Kind::Flush {
            self.fetch(host, line);
            let cached = self.hosts[host].cache.get_mut(&line).expect("fetched");
            for index in (0..8).filter(|index| word.mask >> index & 1 == 1) {
                cached.bytes[word.at % LINE + index] = word.bytes[index];
                cached.dirty[word.at % LINE + index] = true;
            }
        } else {
            let posted = &mut self.hosts[host].posted;
            if posted.is_empty() {
                posted.push_back(Vec::new());
            }
            posted.back_mut().expect("not empty").push(word);
        }
    }
}

fn lines(at: u64, bytes: u64) -> std::ops::RangeInclusive<usize> {
    (at as usize / LINE)..=((at + bytes.max(1) - 1) as usize / LINE)
}

impl View for ModelView {
    fn load(&self, at: In) -> u64 {
        let mut bytes = [0; 8];
        assert!(at.0.is_multiple_of(8));
        self.read(at, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    unsafe fn copy_out(&self, at: In, to: *mut u8, len: usize) {
        let mut memory = self.memory.borrow_mut();
        for index in 0..len {
            let from = at.0 as usize + index;
            // What is seen of a word is seen at once.
            if index == 0 || from.is_multiple_of(8) {
                memory.settle(self.host);
            }
            let byte = memory.read_byte(self.host, from);
            // SAFETY: the caller's promise.
            unsafe { to.add(index).write(byte) };
        }
    }

    fn store(&self, at: Out, value: u64) {
        assert!(at.at.is_multiple_of(8));
        self.write(at, &value.to_le_bytes());
    }

    unsafe fn copy_in(&self, at: Out, from: *const u8, len: usize) {
        let mut memory = self.memory.borrow_mut();
        let (mut place, end) = (at.at as usize, at.at as usize + len);
        let mut taken = 0;
        while place < end {
            let word_at = place & !7;
            let mut word = Posted {
                slot: at.slot as usize,
                at: word_at,
                bytes: [0; 8],
                mask: 0,
            };
            while place < end && place < word_at + 8 {
                // SAFETY: the caller's promise; `taken` is below `len`.
                word.bytes[place - word_at] = unsafe { from.add(taken).read() };
                word.mask |= 1 << (place - word_at);
                place += 1;
                taken += 1;
            }
            memory.write_word(self.host, word);
        }
    }

    fn publish(&self, from: Out, bytes: u64) {
        let mut memory = self.memory.borrow_mut();
        if memory.kind == Kind::Flush {
            for line in lines(from.at, bytes) {
                memory.write_back(self.host, (from.slot as usize, line));
            }
        } else {
            memory.hosts[self.host].posted.push_back(Vec::new());
        }
    }

    fn refresh(&self, from: In, bytes: u64) {
        let mut memory = self.memory.borrow_mut();
        if memory.kind != Kind::Flush {
            return;
        }
        for line in lines(from.0, bytes) {
            memory.hosts[self.host].cache.remove(&(self.host, line));
        }
    }
}

/// Claims are seen at once: their protocol is about time, and its tests move the clock between
/// any two of these calls.
impl Table for ModelView {
    fn hosts(&self) -> u32 {
        self.memory.borrow().slots.len() as u32
    }

    fn look(&self, slot: u32, word: Word) -> u64 {
        let memory = self.memory.borrow();
        if memory.cut {
            return u64::MAX;
        }
        memory.claims[slot as usize][word as usize]
    }

    fn say(&self, slot: u32, word: Word, value: u64) {
        let mut memory = self.memory.borrow_mut();
        if !memory.cut {
            memory.claims[slot as usize][word as usize] = value;
        }
    }

    fn exchange(&self, slot: u32, from: u64, to: u64) -> Option<bool> {
        let mut memory = self.memory.borrow_mut();
        match memory.kind {
            Kind::Flush | Kind::Push => None,
            Kind::Coherent => {
                let generation = &mut memory.claims[slot as usize][Word::Generation as usize];
                let same = *generation == from;
                if same {
                    *generation = to;
                }
                Some(same)
            }
        }
    }
}
