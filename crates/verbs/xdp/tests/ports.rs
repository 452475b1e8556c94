//! Packets between two ports: every size, both IP versions, full rings.

mod common;

use common::{Device as _, Net, QPN, can_run, check, message_bytes, send, send_beside, until};
use sluice_packet::{Kept, Leaving, Path, Port, SendError};
use sluice_wire::bth::Bth;
use sluice_wire::extended::{Aeth, Syndrome};
use sluice_wire::{Ecn, Headers, Opcode, Packet, Psn, Qpn};
use sluice_xdp::{Options, XdpPort};

fn flush(port: &mut XdpPort) {
    until("everything to be sent", || port.flush());
}

#[test]
fn every_size_over_both_ip_versions() {
    if !can_run("every_size_over_both_ip_versions") {
        return;
    }
    let cases = [(1500, 1440), (4200, 4096), (9000, 4096)];
    for (native, (mtu, payload_max)) in [false, true]
        .into_iter()
        .flat_map(|native| cases.map(|case| (native, case)))
    {
        let net = Net::new(mtu);
        let options = Options {
            native: Some(native),
            ..Options::default()
        };
        let (steering, mut a) = net.a.open_one(&options);
        let (_steering, mut b) = net.b.open_one(&options);
        assert_eq!(steering.mode().native, native, "{}", steering.mode());
        let interface = net.b.interface().index();
        for v6 in [false, true] {
            let path = net.a.path(&net.b, v6);
            let overhead = if v6 { 40 } else { 20 } + 8 + 12 + 4;
            let payload_max = payload_max.min((mtu as usize).min(4300) - overhead) & !3;
            let step = match (mtu, native) {
                (1500, true) => 1,
                (_, true) => 7,
                (_, false) => 13,
            };
            let sizes = (0..=payload_max).step_by(step);
            for payload in sizes.chain([payload_max]) {
                let number = payload as u32;
                send(&mut a, &path, QPN, number, payload).expect("sent");
                flush(&mut a);
                let mut got = None;
                until("the packet", || {
                    b.receive(&mut |received| {
                        assert_eq!(received.source, path.source);
                        assert_eq!(received.destination, path.destination);
                        assert_eq!(received.interface, interface);
                        assert_eq!(received.source_port, path.source_port);
                        assert_eq!(received.traffic_class, 26 << 2 | Ecn::Capable0 as u8);
                        assert_eq!(received.hop_limit, 61);
                        assert_eq!(received.packet.len(), message_bytes(payload));
                        assert!(got.is_none(), "twice");
                        got = Some(check(received));
                    });
                    got.is_some()
                });
                assert_eq!(got, Some((number, payload)));
            }
            let long = a.packet_bytes_max() + 4 - overhead;
            assert_eq!(
                send(&mut a, &path, QPN, 1, long),
                Err(SendError::TooLong),
                "mtu {mtu}"
            );
        }
    }
}

/// An acknowledgement and a packet behind it. What comes of it: `true` for each packet that is an
/// acknowledgement.
fn both(from: &mut XdpPort, to: &mut XdpPort, path: &Path, number: u32) -> Vec<bool> {
    // What comes last is none.
    behind(from, to, path, number, &[8, 20], 0)
}

/// The same with packets of these payloads, of which it goes with that one; the last one is not told of.
fn behind(
    from: &mut XdpPort,
    to: &mut XdpPort,
    path: &Path,
    number: u32,
    payloads: &[usize],
    with: usize,
) -> Vec<bool> {
    let opcode = Opcode::from_byte(0x11).expect("RC ACKNOWLEDGE");
    let mut acknowledgement = Headers::new(Bth::new(opcode, Qpn::new(QPN), Psn::new(number)));
    acknowledgement.aeth = Some(Aeth {
        syndrome: Syndrome::Ack(None),
        msn: Psn::new(number),
    });
    let bytes = acknowledgement.bytes();
    let mut fill = |into: &mut [u8]| acknowledgement.emit(&[], into) == Ok(bytes);
    let kept = Kept::new(path, Ecn::NotCapable, bytes, &mut fill).expect("short");
    for (nth, payload) in payloads.iter().enumerate() {
        let beside = (nth == with).then_some(&kept);
        send_beside(from, path, QPN, number + nth as u32, *payload, beside).expect("sent");
    }
    flush(from);
    let last = number + payloads.len() as u32 - 1;
    let (mut came, mut end) = (Vec::new(), false);
    until("the packets", || {
        to.receive(&mut |received| {
            let packet = Packet::parse(received.packet).expect("legal");
            if *packet.headers() == acknowledgement {
                came.push(true);
            } else if check(received).0 == last {
                end = true;
            } else {
                came.push(false);
            }
        });
        end
    });
    came
}

/// An acknowledgement rides with the packet behind it, with a frame of its own besides until the peer has
/// shown that it sees piggybacked acknowledgements.
#[test]
fn acknowledgements_ride() {
    if !can_run("acknowledgements_ride") {
        return;
    }
    for native in [false, true] {
        let net = Net::new(1500);
        let options = Options {
            native: Some(native),
            ..Options::default()
        };
        let (_steering, mut a) = net.a.open_one(&options);
        let (_steering, mut b) = net.b.open_one(&options);
        for v6 in [false, true] {
            let (there, back) = (net.a.path(&net.b, v6), net.b.path(&net.a, v6));
            let twice = [true, true, false];
            for number in 0..20 {
                let came = both(&mut a, &mut b, &there, 3 * number);
                assert_eq!(came, twice, "b has said nothing");
            }
            // This says that b has got piggybacked acknowledgements, and this that a has.
            assert_eq!(both(&mut b, &mut a, &back, 100), twice);
            for number in 0..16 {
                assert_eq!(both(&mut a, &mut b, &there, 3 * number), [true, false]);
            }
            assert_eq!(both(&mut a, &mut b, &there, 200), twice, "b is silent");
            for number in 0..40 {
                assert_eq!(both(&mut b, &mut a, &back, 3 * number), [true, false]);
                assert_eq!(both(&mut a, &mut b, &there, 3 * number), [true, false]);
            }
            let other = Path {
                source_port: there.source_port + 1,
                ..there
            };
            assert_eq!(both(&mut a, &mut b, &other, 300), twice, "another flow");
        }
    }
}

/// It is with the packet that it was put beside, in front of which it has a frame of its own until the peer has
/// shown that it sees piggybacked acknowledgements, and where there is no padding.
#[test]
fn acknowledgements_ride_behind_long_packets() {
    if !can_run("acknowledgements_ride_behind_long_packets") {
        return;
    }
    let net = Net::new(1500);
    let (_steering, mut a) = net.a.open_one(&Options::default());
    let (_steering, mut b) = net.b.open_one(&Options::default());
    for v6 in [false, true] {
        let (there, back) = (net.a.path(&net.b, v6), net.b.path(&net.a, v6));
        let full = a.packet_bytes_max() - if v6 { 48 } else { 28 } - 4 - 12;
        // The last one, which is not told of, is taken in behind what rides with it.
        let long = [1024; 4];
        assert_eq!(
            behind(&mut a, &mut b, &there, 0, &long, 3),
            [false, false, false, true, true]
        );
        assert_eq!(
            behind(&mut b, &mut a, &back, 10, &long, 3),
            [false, false, false, true, true]
        );
        assert_eq!(
            behind(&mut a, &mut b, &there, 20, &long, 3),
            [false, false, false, true]
        );
        assert_eq!(
            behind(&mut a, &mut b, &there, 30, &[1024, 1024, 8], 2),
            [false, false, true]
        );
        assert_eq!(
            behind(&mut a, &mut b, &there, 40, &[1024, full], 1),
            [false, true]
        );
        assert_eq!(
            behind(&mut a, &mut b, &there, 50, &[full, 8], 0),
            [true, false]
        );
    }
}

#[test]
fn rings_go_around_many_times() {
    if !can_run("rings_go_around_many_times") {
        return;
    }
    const PACKETS: u32 = 100_000;
    const BATCH: u32 = 20;
    let net = Net::new(9000);
    let small = Options {
        receive_chunks: 64,
        send_packets: 64,
        ..Options::default()
    };
    let (_steering, mut a) = net.a.open_one(&small);
    let (_steering, mut b) = net.b.open_one(&small);
    let paths = [net.a.path(&net.b, false), net.a.path(&net.b, true)];
    let mut next = 0;
    for first in (0..PACKETS).step_by(BATCH as usize) {
        for number in first..first + BATCH {
            // Mostly small ones, in every alignment; some take two chunks.
            let payload = if number % 16 == 0 { 4000 } else { number % 64 };
            let path = &paths[number as usize % 2];
            send(&mut a, path, QPN, number, payload as usize).expect("sent");
        }
        flush(&mut a);
        until("the batch", || {
            b.receive(&mut |received| {
                let (number, payload) = check(received);
                assert_eq!(number, next, "in order, once");
                let expected = if number % 16 == 0 { 4000 } else { number % 64 };
                assert_eq!(payload, expected as usize);
                next += 1;
            });
            next == first + BATCH
        });
    }
    assert_eq!(a.counters().sent, u64::from(PACKETS));
    assert_eq!(b.counters().received, u64::from(PACKETS));
    assert_eq!((b.counters().malformed, b.counters().bad_icrc), (0, 0));
}

#[test]
fn a_full_ring_has_room_again_after_flush() {
    if !can_run("a_full_ring_has_room_again_after_flush") {
        return;
    }
    let net = Net::new(1500);
    let small = Options {
        send_packets: 64,
        ..Options::default()
    };
    let (_steering, mut a) = net.a.open_one(&small);
    let (_steering, mut b) = net.b.open_one(&Options::default());
    let path = net.a.path(&net.b, false);
    for round in 0..5 {
        until("room for all", || {
            a.flush();
            a.room() == 64
        });
        for number in 0..64 {
            assert_eq!(send(&mut a, &path, QPN, round * 64 + number, 100), Ok(()));
        }
        assert_eq!(a.room(), 0);
        assert_eq!(
            send(&mut a, &path, QPN, 9999, 100),
            Err(SendError::NoRoom),
            "round {round}"
        );
        let mut got = 0;
        assert_eq!(b.receive(&mut |_| got += 1), 0, "nothing before flush");
        flush(&mut a);
        until("all of them", || {
            b.receive(&mut |received| {
                assert_eq!(check(received).0, round * 64 + got);
                got += 1;
            });
            got == 64
        });
    }
    // One call of the kernel sends a batch, where it can be told to (Linux 6.17), and 32
    // packets otherwise.
    assert!(a.counters().send_calls <= 5 * 3, "{:?}", a.counters());
}

#[test]
fn what_does_not_fit_is_lost_and_counted() {
    if !can_run("what_does_not_fit_is_lost_and_counted") {
        return;
    }
    let net = Net::new(1500);
    let small = Options {
        receive_chunks: 64,
        ..Options::default()
    };
    let (_steering, mut a) = net.a.open_one(&Options::default());
    let (_steering, mut b) = net.b.open_one(&small);
    let path = net.a.path(&net.b, true);
    for number in 0..200 {
        send(&mut a, &path, QPN, number, 64).expect("sent");
    }
    flush(&mut a);
    // All have come, by whichever of its threads the kernel had work for it: room that was given back meanwhile would
    // be used.
    until("136 that are lost and counted", || {
        let lost = b.statistics().expect("statistics");
        lost.no_memory + lost.ring_full + lost.dropped >= 136
    });
    let mut numbers = Vec::new();
    while b.receive(&mut |received| numbers.push(check(received).0)) > 0 {}
    assert_eq!(
        numbers,
        (0..64).collect::<Vec<_>>(),
        "those that came first"
    );
    // And it goes on.
    send(&mut a, &path, QPN, 1000, 64).expect("sent");
    flush(&mut a);
    until("another", || {
        b.receive(&mut |received| assert_eq!(check(received).0, 1000)) > 0
    });
}

#[test]
fn what_cannot_be_sent_is_refused_and_takes_no_room() {
    if !can_run("what_cannot_be_sent_is_refused_and_takes_no_room") {
        return;
    }
    let net = Net::new(1500);
    let (_steering, mut a) = net.a.open_one(&Options::default());
    let good = net.a.path(&net.b, false);
    let room = a.room();
    let no_neighbour = Path {
        ethernet: None,
        ..good
    };
    let elsewhere = Path {
        interface: good.interface + 1,
        ..good
    };
    let mixed = Path {
        destination: net.b.v6,
        ..good
    };
    for path in [no_neighbour, elsewhere, mixed] {
        assert_eq!(send(&mut a, &path, QPN, 1, 8), Err(SendError::Unreachable));
    }
    let mut called = 0;
    let mut nothing = |_: &mut [u8]| {
        called += 1;
        false
    };
    let refused = a.put(&Leaving::alone(&good, Ecn::Capable0, 40), &mut nothing);
    assert_eq!(refused, Err(SendError::Nothing));
    let refused = a.put(&Leaving::alone(&good, Ecn::Capable0, 11), &mut nothing);
    assert_eq!(refused, Err(SendError::Nothing), "less than a header");
    for length in [1500 - 31, 65536, usize::MAX] {
        let refused = a.put(&Leaving::alone(&good, Ecn::Capable0, length), &mut nothing);
        assert_eq!(refused, Err(SendError::TooLong), "{length}");
    }
    assert_eq!(called, 1);
    assert_eq!(a.room(), room);
    assert_eq!(a.counters().sent, 0);
    assert!(a.flush());
    assert_eq!(a.counters().send_calls, 0, "nothing to call for");
}

#[test]
fn the_descriptor_is_readable_while_something_waits() {
    if !can_run("the_descriptor_is_readable_while_something_waits") {
        return;
    }
    let net = Net::new(1500);
    let (_steering, mut a) = net.a.open_one(&Options::default());
    let (_steering, mut b) = net.b.open_one(&Options::default());
    let [descriptor] = b.facts().descriptors[..] else {
        panic!("one socket");
    };
    let readable = |milliseconds| sluice_sys::unix::wait_readable(descriptor, milliseconds);
    assert_eq!(readable(0), Ok(false));
    let path = net.a.path(&net.b, false);
    for number in 0..2 {
        send(&mut a, &path, QPN, number, 8).expect("sent");
    }
    flush(&mut a);
    assert_eq!(readable(30_000), Ok(true));
    assert_eq!(readable(0), Ok(true), "still");
    let mut got = 0;
    until("both", || {
        b.receive(&mut |_| got += 1);
        got == 2
    });
    // The kernel is told with the next call.
    assert!(b.flush());
    assert_eq!(readable(0), Ok(false));
    send(&mut a, &path, QPN, 2, 8).expect("sent");
    flush(&mut a);
    assert_eq!(readable(30_000), Ok(true));
    until("the third", || b.receive(&mut |_| ()) == 1);
    assert_eq!(b.receive(&mut |_| ()), 0);
    assert_eq!(readable(0), Ok(false));
}

#[test]
fn several_queues_and_the_mode_that_is_better() {
    if !can_run("several_queues_and_the_mode_that_is_better") {
        return;
    }
    let net = Net::with_queues(1500, 3);
    assert!(net.a.interface().is_veth());
    let (steering, ports) = net.a.open(&Options::default());
    assert_eq!(
        steering.mode().to_string(),
        "generic, copy, IP packets up to 1500 bytes"
    );
    drop((steering, ports));
    let native = Options {
        native: Some(true),
        ..Options::default()
    };
    let (steering, ports) = net.a.open(&native);
    assert_eq!(ports.len(), 3);
    assert_eq!(
        steering.mode().to_string(),
        "native, copy, IP packets up to 1500 bytes"
    );
    assert_eq!(
        ports.iter().map(XdpPort::queue).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    let generic = Options {
        native: Some(false),
        queues: Some(2),
        ..Options::default()
    };
    let (steering, mut b) = net.b.open(&generic);
    assert_eq!((b.len(), steering.mode().native), (2, false));
    let path = net.a.path(&net.b, false);
    // A veth pair keeps the queue.
    let mut ports = ports;
    for (queue, port) in ports.iter_mut().enumerate() {
        send(port, &path, QPN, queue as u32, 64).expect("sent");
        flush(port);
    }
    let mut numbers = Vec::new();
    until("those of two queues", || {
        for port in &mut b {
            port.receive(&mut |received| numbers.push(check(received).0));
        }
        steering.counters().expect("counters").no_socket > 0 || numbers.len() == 3
    });
    until("all are counted", || {
        for port in &mut b {
            port.receive(&mut |received| numbers.push(check(received).0));
        }
        let counters = steering.counters().expect("counters");
        counters.redirected + counters.no_socket == 3 && numbers.len() as u64 == counters.redirected
    });
}
