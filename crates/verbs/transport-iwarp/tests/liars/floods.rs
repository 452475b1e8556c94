//! Peers that ask without end, and peers that do not listen.

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluice_verbs::{QpState, WcStatus, WrOpcode};
use sluice_verbs_testing::{End, PATIENCE, request, until};
use sluice_wire::iwarp::Cause;
use sluice_wire::iwarp::terminate::UntaggedError;

use crate::peer::{Heard, Host, IRD, REGION, address, is_over, read, write};

/// Bytes that may be on their way between two sockets, and wait in the transport, at most: far less than
/// what is sent here, and more than any kernel takes.
const ON_THE_WAY_MAX: u64 = 64 << 20;

/// One READ more than was agreed on, at once.
#[test]
fn more_reads_than_agreed() {
    for crc in [false, true] {
        let host = Host::new(crc);
        let (other, mut neighbour) = host.join();
        let (end, mut liar) = host.join();
        // Long ones, so that none is answered wholly before the last is there.
        let length = REGION as u32;
        let ask = |msn| read(msn, end.mr.rkey(), address(&end, 0), length);
        let asks: Vec<_> = (1..=4 * u32::from(IRD)).map(ask).collect();
        liar.sends(&asks);
        let told = Heard::Told(Cause::Untagged(UntaggedError::NoBuffer));
        assert_eq!(liar.hears(), told);
        is_over(&end);
        neighbour.fetches(1, &other, 0, 10_000);
    }
}

/// READs of nothing, as fast as they can be said, from a peer that reads no answer: it is reset when the
/// answers have no more room, and nothing of it stays.
#[test]
fn reads_of_nothing_without_listening() {
    let host = Host::new(false);
    let (other, mut neighbour) = host.join();
    let (end, mut liar) = host.join();
    let mut said = 0;
    let mut number = 1;
    let broken = loop {
        let asks: Vec<u8> = (0..1000)
            .flat_map(|ask| liar.framed(&read(number + ask, 0, 0, 0)))
            .collect();
        number += 1000;
        match liar.tcp.write_all(&asks) {
            Ok(()) => said += asks.len() as u64,
            Err(error) => break error.kind(),
        }
    };
    assert!(
        matches!(broken, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        "{broken:?} after {said} bytes"
    );
    is_over(&end);
    neighbour.fetches(1, &other, 0, 10_000);
}

/// As many as agreed on, always, of many bytes and of none, and all answers are read: that is allowed, and
/// keeps nobody else waiting.
#[test]
fn reads_at_full_rate_beside_others() {
    for length in [0, REGION as u32] {
        let host = Host::new(false);
        let (other, mut neighbour) = host.join();
        let (end, mut liar) = host.join();
        let over = AtomicBool::new(false);
        let asked = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let (over, asked) = (&over, &asked);
            let (rkey, start) = (end.mr.rkey(), address(&end, 0));
            let flood = scope.spawn(move || {
                let mut number = 0;
                let mut ask = |liar: &mut crate::peer::Liar| {
                    number += 1;
                    liar.sends(&[read(number, rkey, start, length)]);
                    asked.fetch_add(1, Ordering::Relaxed);
                };
                (0..IRD).for_each(|_| ask(&mut liar));
                while !over.load(Ordering::Relaxed) {
                    // One more for each that is answered.
                    loop {
                        let answer = liar.next().unwrap().expect("answers end");
                        if sluice_wire::iwarp::Segment::parse(&answer)
                            .unwrap()
                            .header()
                            .last
                        {
                            break;
                        }
                    }
                    ask(&mut liar);
                }
            });
            until("a flood", || {
                asked.load(Ordering::Relaxed) > 4 * u64::from(IRD)
            });
            for number in 1..=50 {
                neighbour.fetches(number, &other, 8, 20_000);
            }
            assert_eq!(end.qp.state(), QpState::Rts);
            over.store(true, Ordering::Relaxed);
            flood.join().unwrap();
        });
    }
}

/// A program WRITEs to a peer that reads nothing: what waits, waits in the program's own memory; others go
/// on; and the end of the queue pair waits for nobody.
#[test]
fn writes_to_one_that_does_not_listen() {
    let host = Host::new(false);
    let (other, mut neighbour) = host.join();
    let (end, mut liar) = host.join();
    liar.sends(&[write(0, 0, &[])]);
    let sges = [end.sge(0, 1 << 20)];
    let mut posted = 0u64;
    // Until the queue is full, of which nothing ends.
    while posted < 256 {
        end.qp
            .post_send(&request(WrOpcode::RdmaWrite, 100 + posted, &sges, 0, 0))
            .unwrap();
        posted += 1;
    }
    for number in 1..=20 {
        neighbour.fetches(number, &other, 8, 20_000);
    }
    let mut ended = 0u64;
    while let Some(wc) = end.cq.poll_one() {
        assert_eq!(wc.status, WcStatus::Success as u32, "{wc:?}");
        ended += 1;
    }
    assert!(
        ended << 20 < ON_THE_WAY_MAX,
        "{ended} of {posted} have left"
    );
    end.to_state(QpState::Err);
    until("all flushed", || {
        while let Some(wc) = end.cq.poll_one() {
            ended += u64::from(wc.wr_id >= 100);
        }
        ended == posted
    });
    drop(end);
    neighbour.fetches(21, &other, 8, 20_000);
}

/// A region that a peer is reading goes: half an answer cannot be finished, nor can it be said why. The
/// program finds out by a post of its own, and then sleeps.
#[test]
fn a_region_goes_while_it_is_read() {
    let host = Host::new(false);
    let (end, mut liar) = host.join();
    // More than two sockets hold.
    let ask = |number| read(number, end.mr.rkey(), address(&end, 0), REGION as u32);
    let asks: Vec<_> = (1..=u32::from(IRD)).map(ask).collect();
    liar.sends(&asks);
    // The answers have begun, and cannot end, for nobody reads them.
    assert!(liar.tcp.peek(&mut [0; 64]).unwrap() > 0);
    until("a socket that is full", || is_stuck(&liar));
    let End {
        qp, cq: _cq, mr, ..
    } = end;
    // The last who has it.
    drop(mr);
    let empty = request(WrOpcode::RdmaWrite, 1, &[], 0, 0);
    qp.post_send(&empty).unwrap();
    // Nobody polls. The rest of what the kernel has comes, and then the end.
    liar.tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = vec![0; 1 << 20];
    let ended = loop {
        match liar.tcp.read(&mut bytes) {
            Ok(0) => break ErrorKind::UnexpectedEof,
            Ok(_) => {}
            Err(error) => break error.kind(),
        }
    };
    assert!(
        matches!(ended, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset),
        "{ended:?}"
    );
}

/// Nothing more comes: as many bytes wait to be read as a moment before.
fn is_stuck(liar: &crate::peer::Liar) -> bool {
    let waiting = || {
        let mut bytes = vec![0; 16 << 20];
        liar.tcp.peek(&mut bytes).unwrap()
    };
    let before = waiting();
    std::thread::sleep(std::time::Duration::from_millis(100));
    before == waiting()
}
