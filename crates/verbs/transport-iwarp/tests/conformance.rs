//! The conformance suite, over TCP within this host: with CRCs and without, and with several
//! threads.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use sluice_transport_iwarp::IwarpTransport;
use sluice_verbs::iw_cm::{ConnectionParameters, Event, EventSink, IwCm};
use sluice_verbs::{Device, Error, Transport};
use sluice_verbs_testing::{PATIENCE, Row, Side, Site, Thread, rows};

/// What a transport says of its streams.
struct Sink(Mutex<Sender<(u32, Event)>>);

impl EventSink for Sink {
    fn happened(&self, stream: u32, event: Event) {
        // A test that has ended does not listen.
        let _ = self.0.lock().unwrap().send((stream, event));
    }
}

/// A thread that connects, or is connected to.
struct Connected {
    thread: Thread,
    transport: Arc<IwarpTransport>,
    events: Receiver<(u32, Event)>,
    asks: bool,
}

impl Connected {
    fn new(thread: Thread, transport: Arc<IwarpTransport>, asks: bool) -> Self {
        let (sender, events) = channel();
        transport.set_sink(Arc::new(Sink(Mutex::new(sender))));
        // Who gets no processor between connecting and asking is not turned away.
        transport.set_request_wait(PATIENCE);
        Self {
            thread,
            transport,
            events,
            asks,
        }
    }

    fn event(&self, wanted: impl Fn(&Event) -> bool) -> (u32, Event) {
        loop {
            let event = self.events.recv_timeout(PATIENCE).expect("nothing happens");
            // An earlier connection may end any time.
            if wanted(&event.1) {
                return event;
            }
        }
    }
}

fn parameters() -> ConnectionParameters {
    ConnectionParameters {
        ird: 16,
        ord: 16,
        private_data: b"conformance".to_vec(),
    }
}

/// A port of this host that nobody has.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap()
}

impl Site for Connected {
    fn swap(&mut self, words: [u64; 4]) -> [u64; 4] {
        self.thread.swap(words)
    }

    fn stream(&mut self, _device: &Device) -> Option<u32> {
        let cm: &dyn IwCm = &*Arc::clone(&self.transport);
        if self.asks {
            let port = self.swap([0; 4])[0] as u16;
            let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let stream = cm.connect(from, to, 0, &parameters()).unwrap();
            let answer = self.event(|event| !matches!(event, Event::Closed));
            assert_eq!(answer, (stream, Event::Accepted(parameters())));
            return Some(stream);
        }
        // Somebody else may take the port that was free.
        let (address, listener) = loop {
            let address = free_address();
            match cm.listen(address, false) {
                Ok(listener) => break (address, listener),
                Err(Error::System(errno)) if errno.0 == libc::EADDRINUSE => {}
                Err(why) => panic!("{address}: {why}"),
            }
        };
        self.swap([u64::from(address.port()), 0, 0, 0]);
        let (stream, event) = self.event(|event| !matches!(event, Event::Closed));
        match event {
            Event::Requested {
                listener: of,
                parameters: theirs,
                local,
                ..
            } => {
                assert_eq!((of, theirs, local), (listener, parameters(), address));
            }
            other => panic!("{other:?}"),
        }
        cm.end_listening(listener);
        cm.accept(stream, &parameters()).unwrap();
        Some(stream)
    }
}

fn run(row: &Row, threads: usize, crc: bool) {
    let program = |name: &'static str, asks: bool| {
        move |thread| {
            let transport = IwarpTransport::over_tcp(threads, crc).unwrap();
            let device = Device::new(name, transport.clone());
            Side::new(device, Connected::new(thread, transport, asks))
        }
    };
    row.in_threads(program("left", true), program("right", false));
}

mod plain {
    sluice_verbs_testing::conformance!(|_, row| super::run(row, 1, false));
}

mod crc {
    sluice_verbs_testing::conformance!(|_, row| super::run(row, 1, true));
}

mod threads {
    sluice_verbs_testing::conformance!(|_, row| super::run(row, 3, false));
}

/// Whoever counts holds a queue pair for a moment: what is posted then leaves all the same, though
/// both programs sleep.
#[test]
fn who_asks_for_counts_holds_up_nobody() {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let program = |name: &'static str, asks: bool| {
            let over = &over;
            move |thread| {
                let transport = IwarpTransport::over_tcp(1, false).unwrap();
                let asked = transport.clone();
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        asked.counters();
                    }
                });
                let device = Device::new(name, transport.clone());
                Side::new(device, Connected::new(thread, transport, asks))
            }
        };
        let row = rows::completions::those_who_sleep_miss_nothing();
        let ends = std::panic::AssertUnwindSafe(|| {
            row.in_threads(program("left", true), program("right", false));
        });
        let ended = std::panic::catch_unwind(ends);
        over.store(true, Ordering::Relaxed);
        if let Err(why) = ended {
            std::panic::resume_unwind(why);
        }
    });
}

#[test]
fn what_is_left_out_is_what_streams_do_not_have() {
    let caps = IwarpTransport::over_tcp(1, false).unwrap().caps();
    let left_out = rows::left_out(&caps);
    for row in [
        "datagrams_arrive_or_are_dropped",
        "unreliable_connections_carry_sends_and_writes",
        "extended_connections_name_a_shared_receive_queue",
        "immediate_data_arrives",
    ] {
        assert!(left_out.contains(&row), "{row}");
    }
    assert!(!left_out.contains(&"atomics_are_atomic"));
}
