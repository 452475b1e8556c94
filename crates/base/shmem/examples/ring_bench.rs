//! Measures the rings between two processes, each pinned to a processor of its own, both
//! polling: latency, throughput by ring and write size, and many lanes in turn.
//!
//! `cargo run --release -p sluice-shmem --example ring_bench -- [latency|throughput|lanes|all [REPETITIONS]]`
//!
//! docs/decisions/0003 has a run of it. Every figure is the median of the less
//! disturbed half of the repetitions: those in which the kernel took a processor away least often.
#![allow(unsafe_code)]

use sluice_shmem::Producer;
use sluice_shmem::chunk::Chunk;
use sluice_shmem::direction::{Direction, Words};
use sluice_shmem::geometry::Geometry;
use sluice_shmem::handover::Receiver;
use sluice_shmem::mapping::{Access, Mapping};
use sluice_shmem::parking::{PARKING_BYTES, ParkingTable};
use sluice_sys::memfd;
use std::hint::spin_loop;
use std::time::Instant;

const KIB: usize = 1024;
/// How often the tables are measured when nobody says otherwise.
const REPETITIONS: usize = 7;
/// Epoll instance that watches every lane where a measurement uses ready lines.
const SLOT: u32 = 0;

/// One end of one lane.
struct End {
    outgoing: Direction,
    incoming: Direction,
    producer: Producer,
    receiver: Receiver,
    parking: ParkingTable,
}

impl End {
    fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            assert!(
                self.outgoing.begin_write(Some(self.parking)),
                "nobody sleeps here"
            );
            let room = self.producer.room(&self.outgoing, bytes.len()).unwrap();
            let len = room.min(bytes.len());
            if len != 0 {
                // SAFETY: there is room, and the slice is at least as long.
                unsafe {
                    self.producer.store(&self.outgoing, 0, bytes.as_ptr(), len);
                }
                self.producer.publish(&self.outgoing, len);
            }
            self.outgoing.end_write();
            bytes = &bytes[len..];
            if len == 0 {
                spin_loop();
            }
        }
    }

    /// Takes what there is, at most as much as fits.
    fn receive_some(&mut self, bytes: &mut [u8]) -> usize {
        let available = self.receiver.consumer().available(&self.incoming).unwrap();
        let len = available.min(bytes.len());
        if len != 0 {
            // SAFETY: so many are available, and the slice is at least as long.
            unsafe {
                self.receiver
                    .consumer()
                    .load(&self.incoming, 0, bytes.as_mut_ptr(), len);
            }
            self.receiver.consumer().consume(&self.incoming, len);
        }
        len
    }

    fn receive(&mut self, bytes: &mut [u8]) {
        let mut got = 0;
        while got < bytes.len() {
            match self.receive_some(&mut bytes[got..]) {
                0 => spin_loop(),
                len => got += len,
            }
        }
    }
}

/// All lanes as one side sees them.
struct Side {
    chunk: Chunk,
    side: u32,
    ends: Vec<End>,
    /// Lanes whose bit was taken and that may have more to come without a further bit.
    pending: Vec<u32>,
}

impl Side {
    fn new(chunk: Chunk, parking: ParkingTable, side: u32) -> Self {
        let end = |lane| End {
            outgoing: chunk.direction(lane, side),
            incoming: chunk.direction(lane, 1 - side),
            producer: Producer::default(),
            receiver: Receiver::default(),
            parking,
        };
        Self {
            chunk,
            side,
            ends: (0..chunk.geometry().lanes()).map(end).collect(),
            pending: Vec::new(),
        }
    }

    /// Calls `found` for lanes that may have bytes, until it returned true `count` times.
    fn serve(&mut self, mut count: usize, mut found: impl FnMut(&mut End) -> bool) {
        let ready = self.chunk.ready(self.side, SLOT);
        while count > 0 {
            let mut lanes = std::mem::take(&mut self.pending);
            ready.take(|lane| lanes.push(lane));
            for lane in lanes {
                let end = &mut self.ends[lane as usize];
                if count > 0 && found(end) {
                    count -= 1;
                }
                if end.receiver.look(&end.incoming, true).in_flight
                    || end.receiver.consumer().available(&end.incoming) != Ok(0)
                {
                    self.pending.push(lane);
                }
            }
            spin_loop();
        }
    }
}

/// Runs `far` in a child process and `near` here, over fresh memory; returns what `near` does.
fn between_processes(
    lanes: u32,
    ring_bytes: usize,
    watched: bool,
    near: impl FnOnce(&mut Side) -> f64,
    far: impl FnOnce(&mut Side),
) -> Sample {
    let geometry = Geometry::new(lanes, ring_bytes as u32).expect("a possible chunk");
    let chunk_memory = shared_memory(geometry.chunk_bytes() as usize);
    let parking_memory = shared_memory(PARKING_BYTES);
    // SAFETY: both stay mapped until the views are gone, at the end of this function.
    let (chunk, parking) = unsafe {
        (
            Chunk::from_raw(chunk_memory.base(), geometry),
            ParkingTable::from_raw(parking_memory.base()),
        )
    };
    for lane in 0..lanes {
        for side in 0..if watched { 2 } else { 0 } {
            chunk.direction(lane, side).watch(SLOT);
        }
    }
    // SAFETY: this process has one thread; the child runs `far` and leaves.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        // SAFETY: plain system calls.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        pin_to(1);
        far(&mut Side::new(chunk, parking, 1));
        // SAFETY: leaves without running the parent's destructors.
        unsafe { libc::_exit(0) };
    }
    pin_to(0);
    let before = involuntary_switches();
    let figure = near(&mut Side::new(chunk, parking, 0));
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "the other process failed");
    Sample {
        switches: involuntary_switches() - before,
        figure,
    }
}

/// Involuntary context switches of this process and of its ended children.
fn involuntary_switches() -> i64 {
    [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN]
        .into_iter()
        .map(|who| {
            // SAFETY: the kernel fills a zeroed structure.
            unsafe {
                let mut usage: libc::rusage = std::mem::zeroed();
                libc::getrusage(who, &mut usage);
                usage.ru_nivcsw
            }
        })
        .sum()
}

fn shared_memory(bytes: usize) -> Mapping {
    let fd = memfd::create(c"sluice-ring-bench").expect("memfd_create");
    memfd::set_len(fd.raw(), bytes as u64).expect("ftruncate");
    Mapping::shared(fd.raw(), bytes, Access::ReadWrite).expect("mmap")
}

fn pin_to(processor: usize) {
    // SAFETY: a zeroed set is an empty one, and the kernel reads it.
    let ret = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    assert_eq!(ret, 0, "this needs processors 0 and 1");
}

/// What one repetition measured, and how often the kernel interrupted it.
#[derive(Clone, Copy)]
struct Sample {
    switches: i64,
    figure: f64,
}

/// Prints a table of medians. The repetitions go round the whole table, so that a disturbance
/// of some seconds does not make one cell's figure.
fn print_table(
    repetitions: usize,
    title: &str,
    rows: &[usize],
    columns: &[usize],
    name: fn(usize) -> String,
    measure: impl Fn(usize, usize) -> Sample,
) {
    let mut cells = vec![Vec::new(); rows.len() * columns.len()];
    for _ in 0..repetitions {
        let all = rows
            .iter()
            .flat_map(|row| columns.iter().map(move |column| (row, column)));
        for (cell, (row, column)) in cells.iter_mut().zip(all) {
            cell.push(measure(*row, *column));
        }
    }
    print!("\n| {title} |");
    columns
        .iter()
        .for_each(|column| print!(" {} |", name(*column)));
    println!("\n|{}", "---|".repeat(columns.len() + 1));
    for (row, cells) in rows.iter().zip(cells.chunks_mut(columns.len())) {
        print!("| {} |", size(*row));
        for cell in cells {
            cell.sort_by_key(|sample: &Sample| sample.switches);
            let kept = &mut cell[..repetitions.div_ceil(2)];
            kept.sort_by(|a, b| a.figure.total_cmp(&b.figure));
            print!(" {:.0} |", kept[kept.len() / 2].figure);
        }
        println!();
    }
}

/// One way, nanoseconds.
fn latency_ns(bytes: usize, watched: bool) -> Sample {
    const ROUNDS: u32 = 200_000;
    let near = |side: &mut Side| {
        let mut buffer = vec![1; bytes];
        let mut start = Instant::now();
        for round in 0..ROUNDS + ROUNDS / 10 {
            if round == ROUNDS / 10 {
                start = Instant::now();
            }
            side.ends[0].send(&buffer);
            side.ends[0].receive(&mut buffer);
        }
        start.elapsed().as_nanos() as f64 / f64::from(ROUNDS) / 2.0
    };
    let far = |side: &mut Side| {
        let mut buffer = vec![1; bytes];
        for _ in 0..ROUNDS + ROUNDS / 10 {
            side.ends[0].receive(&mut buffer);
            side.ends[0].send(&buffer);
        }
    };
    between_processes(1, 256 * KIB, watched, near, far)
}

/// Gigabits per second of one direction.
fn throughput_gbps(ring_bytes: usize, write_bytes: usize) -> Sample {
    const READ_BYTES: usize = 128 * KIB;
    // Small writes take longer for the same bytes.
    let writes = (128 << 20) / write_bytes.max(512);
    let near = move |side: &mut Side| {
        let buffer = vec![1; write_bytes];
        let end = &mut side.ends[0];
        for _ in 0..writes / 8 {
            end.send(&buffer);
        }
        let start = Instant::now();
        for _ in 0..writes {
            end.send(&buffer);
        }
        end.receive(&mut [0]);
        (writes * write_bytes * 8) as f64 / start.elapsed().as_nanos() as f64
    };
    let far = move |side: &mut Side| {
        let mut buffer = vec![0; READ_BYTES];
        let mut left = (writes + writes / 8) * write_bytes;
        while left > 0 {
            match side.ends[0].receive_some(&mut buffer) {
                0 => spin_loop(),
                len => left -= len,
            }
        }
        side.ends[0].send(&[0]);
    };
    between_processes(1, ring_bytes, false, near, far)
}

/// Nanoseconds a request and its answer, 2 KiB each, with one outstanding on every lane.
fn exchange_ns(lanes: usize, ring_bytes: usize) -> Sample {
    const MESSAGE: usize = 2 * KIB;
    let rounds = 200_000 / lanes;
    let near = move |side: &mut Side| {
        let request = vec![1; MESSAGE];
        let mut answer = vec![0; MESSAGE];
        let mut exchange = |count: usize| {
            for end in &mut side.ends {
                end.send(&request);
            }
            side.serve(count - lanes, |end| {
                let got = end.receive_some(&mut answer) != 0;
                if got {
                    end.send(&request);
                }
                got
            });
            side.serve(lanes, |end| end.receive_some(&mut answer) != 0);
        };
        // The first laps take the page faults.
        exchange(lanes * (ring_bytes / MESSAGE + 1));
        let start = Instant::now();
        exchange(lanes * rounds);
        start.elapsed().as_nanos() as f64 / (lanes * rounds) as f64
    };
    let far = move |side: &mut Side| {
        let mut message = vec![0; MESSAGE];
        side.serve(lanes * (rounds + ring_bytes / MESSAGE + 1), |end| {
            let got = end.receive_some(&mut message) != 0;
            if got {
                end.send(&message);
            }
            got
        });
    };
    between_processes(lanes as u32, ring_bytes, true, near, far)
}

fn size(bytes: usize) -> String {
    match bytes {
        0..KIB => format!("{bytes} B"),
        _ => format!("{} KiB", bytes / KIB),
    }
}

fn main() {
    const WRITES: [usize; 7] = [64, 512, 2 * KIB, 8 * KIB, 16 * KIB, 64 * KIB, 128 * KIB];
    const RINGS: [usize; 7] = [
        16 * KIB,
        32 * KIB,
        64 * KIB,
        128 * KIB,
        256 * KIB,
        512 * KIB,
        1024 * KIB,
    ];
    let wanted = std::env::args().nth(1).unwrap_or("all".to_owned());
    let is_wanted = |name| wanted == "all" || wanted == name;
    let repetitions = match std::env::args().nth(2) {
        Some(count) => count.parse().expect("REPETITIONS is a number from 1"),
        None => REPETITIONS,
    };
    if is_wanted("latency") {
        let name = |watched: usize| ["not watched", "watched"][watched].to_owned();
        print_table(
            repetitions,
            "ns one way",
            &[8, 64, 2 * KIB],
            &[0, 1],
            name,
            |bytes, watched| latency_ns(bytes, watched == 1),
        );
    }
    if is_wanted("throughput") {
        let title = "Gb/s by ring and write size";
        print_table(repetitions, title, &RINGS, &WRITES, size, throughput_gbps);
    }
    if is_wanted("lanes") {
        let title = "ns an exchange by ring size and lanes";
        let name = |lanes: usize| lanes.to_string();
        print_table(
            repetitions,
            title,
            &RINGS,
            &[1, 10, 50, 500],
            name,
            |ring, lanes| exchange_ns(lanes, ring),
        );
    }
}
