//! How many requests a second bare AF_XDP carries between two network namespaces joined by a veth
//! pair: no verbs, no acknowledgements, no repetition, no daemon, one thread on each side that polls.
//! Whatever carries sockets over AF_XDP here is below that.
//!
//! ```text
//! cargo run --release -p sluice-xdp --example requests [clients] [ask answer] [work] [seconds]
//! ```
//!
//! Each of the clients (10) asks with a packet, and again when the answer is there. `ask` and `answer`
//! are bytes (40 and 2,048), in packets of 1,024 at most; `work` is the processor time, nanoseconds,
//! that each side needs for a request beside the packets (0). Needs root and two processors that are
//! free. Compare with `sluice bench fabric --only redis --clients N`.

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Device as _, Net, QPN, headers, message_bytes};
use sluice_packet::{Leaving, Path, Port};
use sluice_wire::Ecn;
use sluice_xdp::{Options, XdpPort};

const PIECE_BYTES: usize = 1024;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| {
        let given = arguments.next().map(|text| text.parse());
        given.map_or(default, |number| number.expect("a number"))
    };
    let clients = number(10);
    let (ask, answer) = (number(40) as usize, number(2048) as usize);
    let work = Duration::from_nanos(number(0));
    let time = Duration::from_secs(number(3));
    if !common::can_run("requests") {
        return;
    }
    let net = Net::new(1500);
    let (steering, mut a) = net.a.open_one(&Options::default());
    let (_steering, mut b) = net.b.open_one(&Options::default());
    let mode = steering.mode();
    let (there, back) = (net.a.path(&net.b, false), net.b.path(&net.a, false));
    let stop = AtomicBool::new(false);
    let done = thread::scope(|scope| {
        scope.spawn(|| serve(&mut b, &back, [ask, answer], work, &stop));
        let done = request(&mut a, &there, clients, [ask, answer], work, time);
        stop.store(true, Ordering::Relaxed);
        done
    });
    let rate = done as f64 / time.as_secs_f64();
    println!(
        "{mode}, {clients} clients, {ask} B and {answer} B, {} ns of work on each side: \
         {rate:.0} requests/s",
        work.as_nanos()
    );
}

/// How many packets so many bytes are.
fn pieces(bytes: usize) -> usize {
    bytes.div_ceil(PIECE_BYTES).max(1)
}

/// Answers until told to stop.
fn serve(
    port: &mut XdpPort,
    path: &Path,
    [ask, answer]: [usize; 2],
    work: Duration,
    stop: &AtomicBool,
) {
    let (mut came, per_request) = (0, pieces(ask));
    while !stop.load(Ordering::Relaxed) {
        port.receive(&mut |_| came += 1);
        while came >= per_request {
            came -= per_request;
            pass(work);
            put(port, path, answer);
        }
        port.flush();
    }
}

/// Asks for as long as it is told; how many answers came.
fn request(
    port: &mut XdpPort,
    path: &Path,
    clients: u64,
    [ask, answer]: [usize; 2],
    work: Duration,
    time: Duration,
) -> u64 {
    let start = Instant::now();
    for _ in 0..clients {
        put(port, path, ask);
    }
    let (mut came, mut done, per_answer) = (0, 0, pieces(answer));
    while start.elapsed() < time {
        port.receive(&mut |_| came += 1);
        while came >= per_answer {
            came -= per_answer;
            done += 1;
            pass(work);
            put(port, path, ask);
        }
        port.flush();
    }
    done
}

fn put(port: &mut XdpPort, path: &Path, bytes: usize) {
    let payload = [7; PIECE_BYTES];
    let mut left = bytes;
    loop {
        let piece = &payload[..left.min(PIECE_BYTES)];
        let length = message_bytes(piece.len());
        // A lost packet would end the run early: there is room for all that is ever under way.
        port.put(&Leaving::alone(path, Ecn::Capable0, length), &mut |bytes| {
            headers(QPN, 1).emit(piece, bytes).is_ok()
        })
        .expect("room for a packet");
        left -= piece.len();
        if left == 0 {
            return;
        }
    }
}

fn pass(work: Duration) {
    let start = Instant::now();
    while start.elapsed() < work {
        std::hint::spin_loop();
    }
}
