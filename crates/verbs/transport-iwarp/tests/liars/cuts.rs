//! A network that ends a connection behind any byte, in order or by a reset: what was complete by then is
//! there, byte for byte, everything else ends with an error, and nobody waits for ever.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluice_verbs::iw_cm::Event;
use sluice_verbs::{QpState, SendWr, WcStatus, WrOpcode};
use sluice_verbs_testing::{End, Memory, pattern, request, until};
use sluice_wire::iwarp::Startup;

use crate::peer::{Host, RECEIVE, RECEIVES, REGION, SEED, address, parameters};

/// Where WRITEs go, the word of an atomic is, and what is read comes to. All in front of it stays.
const WRITTEN: usize = 1 << 19;
const WORD: usize = 2 << 19;
const FETCHED: usize = 3 << 19;
const WRITE: usize = 1500;
const SEND: usize = 300;
const READ: usize = 2000;
/// What the sending end writes has other bytes than what is there.
const SOURCE: usize = 64 << 10;
const OTHER: u8 = 0x7a;
/// Bytes of each direction behind the start: some fewer than there are.
const STREAM: usize = 2 * (WRITE + SEND) + READ + 200;

/// Carries bytes between two connections until so many have gone a way.
struct Relay {
    /// From who asks to who answers, and back.
    sockets: [TcpStream; 2],
    /// Bytes of each way that may go still; the cut is behind the last of one of them.
    left: [usize; 2],
    resets: bool,
}

impl Relay {
    /// None: there is nothing to carry.
    fn carries(&mut self, way: usize) -> std::io::Result<Option<usize>> {
        let mut bytes = [0; 4096];
        let most = bytes.len().min(self.left[way]);
        let count = match self.sockets[way].read(&mut bytes[..most]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut rest = &bytes[..count];
        while !rest.is_empty() {
            match self.sockets[1 - way].write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => return Err(error),
            }
        }
        self.left[way] -= count;
        Ok(Some(count))
    }

    fn runs(mut self, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) && self.left.iter().all(|left| *left > 0) {
            let mut carried = 0;
            for way in [0, 1] {
                match self.carries(way) {
                    Ok(count) => carried += count.unwrap_or(0),
                    // The ends know already.
                    Err(_) => return,
                }
            }
            if carried == 0 {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        if self.resets {
            for socket in self.sockets {
                let socket = socket2::Socket::from(socket);
                socket.set_linger(Some(Duration::ZERO)).unwrap();
            }
        }
    }
}

/// A relay's address; it carries as many bytes behind the start of each way.
fn relay(
    to: SocketAddr,
    left: [usize; 2],
    resets: bool,
    over: &Arc<AtomicBool>,
) -> (SocketAddr, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let over = Arc::clone(over);
    let thread = std::thread::spawn(move || {
        let (asks, _) = listener.accept().unwrap();
        let sockets = [asks, TcpStream::connect(to).unwrap()];
        for socket in &sockets {
            socket.set_nonblocking(true).unwrap();
            socket.set_nodelay(true).unwrap();
        }
        Relay {
            sockets,
            left,
            resets,
        }
        .runs(&over);
    });
    (address, thread)
}

/// Posts one of each, behind each other. Their numbers.
fn posts(end: &End, peer: &End) -> u64 {
    let at = |place: usize| address(peer, place);
    let rkey = peer.mr.rkey();
    let written: Vec<_> = (0..2)
        .map(|n| [end.sge(SOURCE + n * WRITE, WRITE)])
        .collect();
    let sent: Vec<_> = (0..2).map(|n| [end.sge(SOURCE + n * SEND, SEND)]).collect();
    let fetched = [end.sge(FETCHED, READ)];
    let before = [end.sge(FETCHED + READ, 8)];
    let all = [
        request(WrOpcode::RdmaWrite, 10, &written[0], at(WRITTEN), rkey),
        request(WrOpcode::Send, 11, &sent[0], 0, 0),
        request(WrOpcode::RdmaRead, 12, &fetched, at(0), rkey),
        request(
            WrOpcode::RdmaWrite,
            13,
            &written[1],
            at(WRITTEN + WRITE),
            rkey,
        ),
        SendWr {
            compare_add: 5,
            ..request(WrOpcode::AtomicFetchAndAdd, 14, &before, at(WORD), rkey)
        },
        request(WrOpcode::Send, 15, &sent[1], 0, 0),
    ];
    for (posted, wr) in all.iter().enumerate() {
        // The connection may have ended already.
        if end.qp.post_send(wr).is_err() {
            return 10 + posted as u64;
        }
    }
    16
}

/// What an end has of everything: all statuses, once each.
fn drains(end: &End, posted: u64, into: &mut BTreeMap<u64, u32>) -> bool {
    while let Some(wc) = end.cq.poll_one() {
        assert_eq!(
            into.insert(wc.wr_id, wc.status),
            None,
            "{wc:?}, a second time"
        );
    }
    into.len() as u64 == 2 + posted - 10
}

fn good(all: &BTreeMap<u64, u32>, number: u64) -> bool {
    all.get(&number) == Some(&(WcStatus::Success as u32))
}

/// What has to be there at an end, by what is complete there and at its peer.
fn checks(end: &End, own: &BTreeMap<u64, u32>) {
    let source = |n: usize, bytes: usize| -> Vec<u8> {
        (0..bytes)
            .map(|index| pattern(n * bytes + index, OTHER))
            .collect()
    };
    for n in 0..2 {
        if good(own, n as u64) {
            let at = RECEIVES + n * RECEIVE;
            assert_eq!(end.memory.bytes(at, SEND), source(n, SEND), "receive {n}");
            // What was written before it was sent.
            let at = WRITTEN + n * WRITE;
            assert_eq!(end.memory.bytes(at, WRITE), source(n, WRITE), "written {n}");
        }
    }
    if good(own, 12) {
        let wanted: Vec<u8> = (0..READ).map(|index| pattern(index, SEED)).collect();
        assert_eq!(end.memory.bytes(FETCHED, READ), wanted, "fetched");
    }
    if good(own, 14) {
        assert_eq!(end.memory.word(FETCHED + READ), 100, "what an atomic found");
    }
    assert!([100, 105].contains(&end.memory.word(WORD)));
    end.memory.check(0, SOURCE, SEED);
    // Requests that are good come before those that are not.
    let statuses: Vec<bool> = (10..16)
        .filter(|number| own.contains_key(number))
        .map(|number| good(own, number))
        .collect();
    assert!(statuses.is_sorted_by(|a, b| a >= b), "{own:?}");
}

fn cut(hosts: &[(Host, Memory); 2], left: [usize; 2], resets: bool) {
    let [(asks, _), (answers, _)] = hosts;
    let over = Arc::new(AtomicBool::new(false));
    // What the start needs goes through in any case: without private data as many bytes each way.
    let start = Startup::HEADER_BYTES + 4;
    let left = left.map(|bytes| bytes.saturating_add(start));
    let (to, thread) = relay(answers.address(), left, resets, &over);
    let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let number = asks.cm().connect(from, to, 0, &parameters()).unwrap();
    let (requested, event) = answers.event();
    assert!(matches!(event, Event::Requested { .. }), "{event:?}");
    answers.cm().accept(requested, &parameters()).unwrap();
    let (accepted, event) = asks.event();
    assert_eq!(accepted, number);
    assert!(matches!(event, Event::Accepted(_)), "{event:?}");
    let ends = [(&hosts[0], accepted), (&hosts[1], requested)].map(|((host, memory), stream)| {
        for (at, bytes) in [
            (WRITTEN, 2 * WRITE),
            (FETCHED, READ + 8),
            (RECEIVES, 2 * RECEIVE),
        ] {
            memory.put(at, &vec![0; bytes]);
        }
        memory.set_word(WORD, 100);
        // It may be over before a queue pair has come for it.
        host.end_if(stream, *memory)
    });
    let [Some(one), Some(two)] = &ends else {
        over.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        return;
    };
    let posted = [posts(one, two), posts(two, one)];
    let mut all = [BTreeMap::new(), BTreeMap::new()];
    until("the end of everything", || {
        // Not `&&`: both are to go on.
        drains(one, posted[0], &mut all[0]) & drains(two, posted[1], &mut all[1])
    });
    over.store(true, Ordering::Relaxed);
    until("the ends of both", || {
        for end in [one, two] {
            assert!(end.cq.poll_one().is_none());
        }
        [one, two].iter().all(|end| end.qp.state() == QpState::Err)
    });
    thread.join().unwrap();
    for (end, own) in [(one, &all[0]), (two, &all[1])] {
        checks(end, own);
    }
}

fn at_any_byte(crc: bool, resets: bool) {
    let hosts = [(); 2].map(|()| {
        let memory = Memory::new(REGION);
        memory.fill(0, SOURCE, SEED);
        memory.fill(SOURCE, 2 * WRITE, OTHER);
        (Host::new(crc), memory)
    });
    for way in [0, 1] {
        for cut_at in (1..90).chain((90..STREAM).step_by(71)) {
            let mut left = [usize::MAX; 2];
            left[way] = cut_at;
            cut(&hosts, left, resets);
        }
    }
    // And not at all.
    cut(&hosts, [usize::MAX; 2], resets);
}

#[test]
fn reset_at_any_byte() {
    at_any_byte(false, true);
}

#[test]
fn closed_at_any_byte() {
    at_any_byte(false, false);
}

#[test]
fn reset_at_any_byte_with_crcs() {
    at_any_byte(true, true);
}
