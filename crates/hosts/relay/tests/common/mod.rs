//! An event loop in a thread of its own, between connections that the test has the ends of.

#![allow(dead_code, reason = "each test uses its part")]

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_relay::{Counters, End, Event, EventLoop, Options};

/// A bound on conditions that come about in microseconds on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

enum Order {
    Pair(OwnedFd, OwnedFd),
    Count(Sender<Counters>),
    Stop,
}

pub struct Relay {
    orders: Sender<Order>,
    pub ended: Receiver<(End, [u64; 2])>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    pub fn new(options: Options) -> Self {
        let (orders, taken) = channel();
        let (tell, ended) = channel();
        let thread = std::thread::spawn(move || run(options, &taken, &tell));
        Self {
            orders,
            ended,
            thread: Some(thread),
        }
    }

    /// The two far ends of a new pair: what one writes, the other reads.
    pub fn pair(&self) -> (TcpStream, TcpStream) {
        let (left, near_left) = connection();
        let (right, near_right) = connection();
        for near in [&near_left, &near_right] {
            near.set_nonblocking(true).unwrap();
        }
        let order = Order::Pair(near_left.into(), near_right.into());
        self.orders.send(order).unwrap();
        for far in [&left, &right] {
            far.set_read_timeout(Some(PATIENCE)).unwrap();
            far.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        (left, right)
    }

    pub fn counters(&self) -> Counters {
        let (answer, counters) = channel();
        self.orders.send(Order::Count(answer)).unwrap();
        counters.recv_timeout(PATIENCE).unwrap()
    }

    pub fn until(&self, what: &str, so: impl Fn(&Counters) -> bool) -> Counters {
        let start = Instant::now();
        loop {
            let counters = self.counters();
            if so(&counters) {
                return counters;
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {counters:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn next_end(&self) -> (End, [u64; 2]) {
        self.ended.recv_timeout(PATIENCE).unwrap()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

fn run(options: Options, orders: &Receiver<Order>, tell: &Sender<(End, [u64; 2])>) {
    let mut event_loop = EventLoop::new(options).unwrap();
    let mut events = Vec::new();
    loop {
        while let Ok(order) = orders.try_recv() {
            match order {
                Order::Pair(left, right) => drop(event_loop.pair(left, right).unwrap()),
                Order::Count(answer) => drop(answer.send(event_loop.counters())),
                Order::Stop => return,
            }
        }
        let nap = Some(Duration::from_millis(2));
        event_loop.turn(nap, &mut events).unwrap();
        for event in events.drain(..) {
            if let Event::Ended { end, bytes, .. } = event {
                let _ = tell.send((end, bytes));
            }
        }
    }
}

pub fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (client, server)
}

/// The bytes of a stream, each of which depends on where it is.
pub fn pattern(seed: u64, from: usize, length: usize) -> Vec<u8> {
    (from..from + length)
        .map(|at| {
            let mixed = (at as u64 ^ seed.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed >> 56) as u8
        })
        .collect()
}
