//! The UDP port between two network namespaces, and what its packets are on the wire.
#![allow(unsafe_code)]

mod netns;

use std::ffi::CStr;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use netns::{FOUR, Hosts, LEFT, RIGHT, SIX};
use sluice_packet::udp::{Config, OpenError};
use sluice_packet::{Kept, Leaving, Path, Port, SendError, UdpPort};
use sluice_wire::bth::Bth;
use sluice_wire::extended::{Aeth, Syndrome};
use sluice_wire::udp::ROCE_PORT;
use sluice_wire::{Ecn, Frame, Headers, Ip, Opcode, Packet, Psn, Qpn};

const WAIT_MAX: Duration = Duration::from_secs(60);

fn open(hosts: &Hosts, host: usize, config: &Config) -> UdpPort {
    hosts.within(host, || UdpPort::open(config).unwrap())
}

fn path(addresses: [&str; 2], from: usize) -> Path {
    Path {
        source: addresses[from].parse().unwrap(),
        destination: addresses[1 - from].parse().unwrap(),
        interface: 0,
        ethernet: None,
        source_port: 0xc123,
        dscp: 26 << 2,
        hop_limit: 33,
        flow_label: 0,
    }
}

/// A SEND with a payload that its number and length tell.
fn packet(number: u32, payload: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..payload)
        .map(|n| (n as u32 * 7 + number) as u8)
        .collect();
    let opcode = Opcode::from_byte(0x04).unwrap();
    let headers = Headers::new(Bth::new(opcode, Qpn::new(5), Psn::new(number)));
    let mut buffer = vec![0; payload + 16];
    let used = headers.emit(&bytes, &mut buffer).unwrap();
    buffer.truncate(used);
    buffer
}

fn send(port: &mut UdpPort, path: &Path, bytes: &[u8]) -> Result<(), SendError> {
    send_beside(port, path, bytes, None)
}

fn send_beside(
    port: &mut UdpPort,
    path: &Path,
    bytes: &[u8],
    beside: Option<&Kept>,
) -> Result<(), SendError> {
    let leaving = Leaving {
        beside,
        ..Leaving::alone(path, Ecn::Capable0, bytes.len())
    };
    port.put(&leaving, &mut |to| {
        to.copy_from_slice(bytes);
        true
    })
}

fn flush(port: &mut UdpPort) {
    let start = Instant::now();
    while !port.flush() {
        assert!(start.elapsed() < WAIT_MAX, "the kernel takes nothing");
    }
}

/// Waits for so many packets. What came, in its order.
fn receive(port: &mut UdpPort, count: usize) -> Vec<(IpAddr, IpAddr, u8, u8, Vec<u8>)> {
    let start = Instant::now();
    let mut all = Vec::new();
    while all.len() < count && start.elapsed() < WAIT_MAX {
        port.receive(&mut |got| {
            assert!(got.interface > 0);
            let (class, hops) = (got.traffic_class, got.hop_limit);
            all.push((
                got.source,
                got.destination,
                class,
                hops,
                got.packet.to_vec(),
            ));
        });
    }
    all
}

/// Waits until there is something to receive.
fn wait(port: &UdpPort) {
    let descriptors = port.descriptors().into_iter();
    let mut asked: Vec<_> = descriptors
        .map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let ms = WAIT_MAX.as_millis() as i32;
    // SAFETY: so many structures, which the kernel reads and writes.
    let ready = unsafe { libc::poll(asked.as_mut_ptr(), asked.len() as libc::nfds_t, ms) };
    assert!(ready > 0, "nothing came");
}

fn config(segmentation: bool) -> Config {
    Config {
        segmentation,
        ..Config::default()
    }
}

#[test]
fn packets_come_with_what_their_path_says() {
    let Some(hosts) = Hosts::new("packets_come_with_what_their_path_says", 9000) else {
        return;
    };
    for segmentation in [false, true] {
        let mut left = open(&hosts, LEFT, &config(segmentation));
        let mut right = open(&hosts, RIGHT, &config(segmentation));
        for addresses in [FOUR, SIX] {
            let path = path(addresses, LEFT);
            // Runs of one length, shorter ends, and longer ones behind shorter.
            let lengths = [4096, 4096, 4096, 100, 200, 0, 0, 8192, 5, 4096, 4096, 4000];
            let sent: Vec<_> = (0..).zip(lengths).map(|(n, len)| packet(n, len)).collect();
            for packet in &sent {
                send(&mut left, &path, packet).unwrap();
            }
            flush(&mut left);
            let got = receive(&mut right, sent.len());
            assert_eq!(got.len(), sent.len());
            for (packet, (source, destination, class, hops, bytes)) in sent.iter().zip(&got) {
                assert_eq!((*source, *destination), (path.source, path.destination));
                assert_eq!((*class, *hops), (26 << 2 | Ecn::Capable0 as u8, 33));
                assert_eq!(bytes, packet);
            }
        }
        let (sent, got) = (left.counters(), right.counters());
        assert_eq!((sent.sent, sent.refused), (24, 0));
        assert_eq!((got.received, got.received_bytes), (24, sent.sent_bytes));
        assert_eq!((got.bad_icrc, got.malformed), (0, 0));
    }
}

#[test]
fn link_local_addresses_need_their_interface() {
    let Some(hosts) = Hosts::new("link_local_addresses_need_their_interface", 1500) else {
        return;
    };
    let mut left = open(&hosts, LEFT, &Config::default());
    let mut right = open(&hosts, RIGHT, &Config::default());
    let mut path = path(["fe80::1", "fe80::2"], LEFT);
    path.interface = hosts.within(LEFT, || {
        // SAFETY: the name is a C string.
        unsafe { libc::if_nametoindex(c"left".as_ptr()) }
    });
    send(&mut left, &path, &packet(1, 64)).unwrap();
    flush(&mut left);
    assert_eq!(receive(&mut right, 1).len(), 1);
}

#[test]
fn many_batches_arrive_whole() {
    let Some(hosts) = Hosts::new("many_batches_arrive_whole", 9000) else {
        return;
    };
    let mut left = open(&hosts, LEFT, &Config::default());
    let mut right = open(&hosts, RIGHT, &Config::default());
    let path = path(FOUR, LEFT);
    // So short that no datagram is worth sending before the flush.
    let bytes = packet(3, 100);
    let mut got = 0;
    for _ in 0..50 {
        let room = left.room();
        for _ in 0..room {
            send(&mut left, &path, &bytes).unwrap();
        }
        assert_eq!(send(&mut left, &path, &bytes), Err(SendError::NoRoom));
        flush(&mut left);
        assert_eq!(left.room(), room);
        got += receive(&mut right, room).len();
    }
    assert_eq!(got as u64, left.counters().sent);
    // Segmentation: far fewer datagrams than packets, and few calls.
    assert!(left.counters().send_calls <= 60, "{:?}", left.counters());
}

/// What fills a datagram leaves while the next one is made.
#[test]
fn full_datagrams_leave_before_the_flush() {
    let Some(hosts) = Hosts::new("full_datagrams_leave_before_the_flush", 9000) else {
        return;
    };
    let mut left = open(&hosts, LEFT, &Config::default());
    let mut right = open(&hosts, RIGHT, &Config::default());
    for addresses in [FOUR, SIX] {
        let path = path(addresses, LEFT);
        let before = left.counters();
        let sent: Vec<_> = (0..40).map(|number| packet(number, 4096)).collect();
        for packet in &sent {
            send(&mut left, &path, packet).unwrap();
        }
        let now = left.counters();
        assert_eq!(now.sent - before.sent, 30);
        let mut got = receive(&mut right, 30);
        flush(&mut left);
        got.extend(receive(&mut right, 10));
        assert!(got.into_iter().map(|(.., bytes)| bytes).eq(sent));
        // 15 of them fit into 65507 bytes.
        assert_eq!(left.counters().send_calls - before.send_calls, 3);
    }
}

#[test]
fn what_cannot_leave_is_said() {
    let Some(hosts) = Hosts::new("what_cannot_leave_is_said", 1500) else {
        return;
    };
    let mut left = open(&hosts, LEFT, &Config::default());
    let mut right = open(&hosts, RIGHT, &Config::default());
    let good = path(FOUR, LEFT);
    let long = packet(1, 9300);
    assert_eq!(send(&mut left, &good, &long), Err(SendError::TooLong));
    assert_eq!(send(&mut left, &good, &[0; 11]), Err(SendError::Nothing));
    let mixed = Path {
        destination: SIX[RIGHT].parse().unwrap(),
        ..good
    };
    assert_eq!(
        send(&mut left, &mixed, &packet(1, 4)),
        Err(SendError::Unreachable)
    );
    let declined = left.put(&Leaving::alone(&good, Ecn::NotCapable, 16), &mut |_| false);
    assert_eq!(declined, Err(SendError::Nothing));
    // What only the kernel knows: a route, the address, the MTU, alone and in a run.
    let nowhere = Path {
        destination: "198.51.100.1".parse().unwrap(),
        ..good
    };
    let stranger = Path {
        source: "192.0.2.77".parse().unwrap(),
        ..good
    };
    for _ in 0..3 {
        send(&mut left, &nowhere, &packet(1, 4)).unwrap();
        send(&mut left, &stranger, &packet(1, 4)).unwrap();
        send(&mut left, &good, &packet(1, 2000)).unwrap();
        send(&mut left, &good, &packet(1, 2000)).unwrap();
        send(&mut left, &good, &packet(1, 1024)).unwrap();
    }
    flush(&mut left);
    assert_eq!(receive(&mut right, 3).len(), 3);
    let counters = left.counters();
    assert_eq!((counters.sent, counters.refused), (3, 12));
    assert_eq!(right.counters().bad_icrc, 0);
}

#[test]
fn what_nobody_takes_is_counted() {
    let Some(hosts) = Hosts::new("what_nobody_takes_is_counted", 1500) else {
        return;
    };
    let small = Config {
        socket_buffer_bytes: 8192,
        segmentation: false,
        ..Config::default()
    };
    let mut left = open(&hosts, LEFT, &config(false));
    let mut right = open(&hosts, RIGHT, &small);
    assert_eq!(right.dropped(), 0);
    for addresses in [FOUR, SIX] {
        // More would not fit the queue of those that wait for the neighbour's address.
        for _ in 0..64 {
            send(&mut left, &path(addresses, LEFT), &packet(1, 1024)).unwrap();
        }
        flush(&mut left);
    }
    let start = Instant::now();
    let mut got = 0;
    while got + right.dropped() < left.counters().sent && start.elapsed() < WAIT_MAX {
        got += right.receive(&mut |_| {}) as u64;
    }
    assert_eq!(got + right.dropped(), left.counters().sent);
    assert!(right.dropped() > 0);
}

/// Something that is no packet, from an ordinary socket.
#[test]
fn strange_datagrams_are_counted_and_dropped() {
    let Some(hosts) = Hosts::new("strange_datagrams_are_counted_and_dropped", 9000) else {
        return;
    };
    let mut right = open(&hosts, RIGHT, &Config::default());
    let other = hosts.within(LEFT, || std::net::UdpSocket::bind("192.0.2.1:0").unwrap());
    for bytes in [&[][..], &[1], &[0; 15], &[7; 16], &[9; 8000]] {
        other.send_to(bytes, "192.0.2.2:4791").unwrap();
    }
    let start = Instant::now();
    let mut seen = 0;
    while seen < 5 && start.elapsed() < WAIT_MAX {
        seen += right.receive(&mut |_| panic!("that was no packet"));
    }
    let counters = right.counters();
    assert_eq!((counters.malformed, counters.bad_icrc), (3, 2));
}

#[test]
fn packets_with_any_identification_are_taken() {
    let Some(hosts) = Hosts::new("packets_with_any_identification_are_taken", 9000) else {
        return;
    };
    let mut right = open(&hosts, RIGHT, &Config::default());
    let raw = hosts.within(LEFT, || Raw::open(c"left"));
    for identification in [0, 1, 2, 255, 256, 0x1234, 0xffff] {
        for dont_fragment in [true, false] {
            let mut frame = frame(identification, dont_fragment);
            raw.send(&frame);
            let last = frame.len() - 1;
            frame[last] ^= 0x10;
            raw.send(&frame);
        }
    }
    let start = Instant::now();
    let (mut seen, mut good) = (0, 0);
    while seen < 28 && start.elapsed() < WAIT_MAX {
        seen += right.receive(&mut |got| {
            assert_eq!(got.source_port, 0xc000);
            good += 1;
        });
    }
    let counters = right.counters();
    assert_eq!((good, counters.received, counters.bad_icrc), (14, 14, 14));
}

/// Everything that leaves is a good frame for somebody who sees the whole header.
#[test]
fn the_icrc_of_what_leaves_is_right() {
    let Some(hosts) = Hosts::new("the_icrc_of_what_leaves_is_right", 9000) else {
        return;
    };
    // The device must cut large datagrams as one would that has a wire.
    hosts.ip(LEFT, "link set left gso_max_segs 1");
    for segmentation in [false, true] {
        let mut left = open(&hosts, LEFT, &config(segmentation));
        for addresses in [FOUR, SIX] {
            let raw = hosts.within(RIGHT, || Raw::open(c"right"));
            let path = path(addresses, LEFT);
            let lengths = [1024, 1024, 1024, 100, 200, 200, 3, 4096, 4096];
            let sent: Vec<_> = (0..).zip(lengths).map(|(n, len)| packet(n, len)).collect();
            for packet in &sent {
                send(&mut left, &path, packet).unwrap();
            }
            flush(&mut left);
            let mut identifications = Vec::new();
            let start = Instant::now();
            while identifications.len() < sent.len() && start.elapsed() < WAIT_MAX {
                let Some(bytes) = raw.receive() else { continue };
                // Neighbour discovery is there, too.
                let frame = match Frame::parse(&bytes) {
                    Err(sluice_wire::Error::NotRoce) => continue,
                    frame => frame.unwrap(),
                };
                let expected = Packet::parse(&sent[identifications.len()]).unwrap();
                assert_eq!(*frame.packet(), expected);
                assert_eq!(frame.ip().source(), path.source);
                assert_eq!(frame.ip().destination(), path.destination);
                assert_eq!(frame.ip().ecn(), Ecn::Capable0);
                identifications.push(match frame.ip() {
                    Ip::V4(header) => {
                        assert!(header.dont_fragment);
                        assert_eq!((header.dscp, header.ttl), (26, 33));
                        header.identification
                    }
                    Ip::V6(header) => {
                        assert_eq!((header.dscp, header.hop_limit), (26, 33));
                        0
                    }
                });
            }
            assert_eq!(identifications.len(), sent.len());
            let counts = segmentation && path.source.is_ipv4();
            let expected = if counts {
                [0, 1, 2, 3, 0, 1, 2, 0, 1]
            } else {
                [0; 9]
            };
            assert_eq!(identifications, expected);
        }
        assert_eq!(left.counters().refused, 0);
    }
}

/// When the first packet of a batch is given the batch is complete: packets of other ports belong in front
/// of what comes behind that.
#[test]
fn what_comes_while_a_batch_is_given_is_not_given_with_it() {
    let name = "what_comes_while_a_batch_is_given_is_not_given_with_it";
    let Some(hosts) = Hosts::new(name, 1500) else {
        return;
    };
    let mut left = open(&hosts, LEFT, &Config::default());
    let mut right = open(&hosts, RIGHT, &Config::default());
    for addresses in [FOUR, SIX] {
        let path = path(addresses, LEFT);
        let mut put = |number| {
            send(&mut left, &path, &packet(number, 64)).unwrap();
            flush(&mut left);
        };
        put(1);
        wait(&right);
        let mut came = Vec::new();
        right.receive(&mut |got| {
            came.push(got.packet.to_vec());
            put(2);
            put(3);
        });
        assert_eq!(came, [packet(1, 64)]);
        wait(&right);
        let came = receive(&mut right, 2);
        assert!(
            came.into_iter()
                .map(|(.., bytes)| bytes)
                .eq([packet(2, 64), packet(3, 64)])
        );
        assert_eq!(right.receive(&mut |_| panic!("there is no more")), 0);
    }
}

/// An acknowledgement, and what leaves with it: how the packets come, and in how many datagrams.
#[test]
fn an_acknowledgement_comes_with_the_end_of_what_follows() {
    let Some(hosts) = Hosts::new(
        "an_acknowledgement_comes_with_the_end_of_what_follows",
        9000,
    ) else {
        return;
    };
    let ack = |number| acknowledgement(number);
    let data = |number, bytes| packet(number, bytes);
    // What is sent; the order in which it comes; the bytes of the datagrams that it is in. An
    // acknowledgement has 20 with its ICRC, others have 16 beside their payload.
    type Row = (Vec<Vec<u8>>, Vec<usize>, Vec<usize>);
    let rows: [Row; 7] = [
        (vec![ack(1)], vec![0], vec![20]),
        (vec![ack(1), data(2, 8)], vec![0, 1], vec![24 + 20]),
        // As long as the one before, and shorter.
        (
            vec![ack(1), data(2, 1024), data(3, 1024)],
            vec![1, 0, 2],
            vec![2 * 1040 + 20],
        ),
        (
            vec![ack(1), data(2, 1024), data(3, 1024), data(4, 100)],
            vec![1, 2, 0, 3],
            vec![2 * 1040, 116 + 20],
        ),
        // It is longer than what follows, and is no last segment.
        (vec![ack(1), data(2, 0)], vec![0, 1], vec![20 + 16]),
        (
            vec![ack(1), ack(2), data(3, 8)],
            vec![0, 1, 2],
            vec![20, 24 + 20],
        ),
        (
            vec![ack(1), data(2, 8), ack(3), data(4, 9)],
            vec![0, 1, 2, 3],
            vec![24 + 20, 28 + 20],
        ),
    ];
    for addresses in [FOUR, SIX] {
        let mut left = open(&hosts, LEFT, &Config::default());
        let mut right = open(&hosts, RIGHT, &Config::default());
        let (there, back) = (path(addresses, LEFT), path(addresses, RIGHT));
        // Nothing is known of the peer: nothing waits.
        send_all(&mut left, &there, &[ack(1), data(2, 8)]);
        assert_eq!(left.counters().sent, 0);
        flush(&mut left);
        assert_eq!(left.counters().sent, 2);
        assert_eq!(receive(&mut right, 2).len(), 2);
        send(&mut right, &back, &data(0, 8)).unwrap();
        flush(&mut right);
        assert_eq!(receive(&mut left, 1).len(), 1);
        let raw = hosts.within(RIGHT, || Raw::open(c"right"));
        for (sent, order, lengths) in &rows {
            send_all(&mut left, &there, sent);
            flush(&mut left);
            let came: Vec<_> = receive(&mut right, sent.len())
                .into_iter()
                .map(|(.., bytes)| bytes)
                .collect();
            let expected: Vec<_> = order.iter().map(|at| sent[*at].clone()).collect();
            assert_eq!(came, expected, "{lengths:?}");
            let mut seen = Vec::new();
            let start = Instant::now();
            while seen.len() < lengths.len() && start.elapsed() < WAIT_MAX {
                let Some(bytes) = raw.receive() else { continue };
                seen.extend(udp_payload_bytes(&bytes));
            }
            assert_eq!(seen, *lengths);
        }
        assert_eq!(right.counters().bad_icrc, 0);
        // On another path it stays in front, whoever follows.
        let other = path(if addresses == FOUR { SIX } else { FOUR }, LEFT);
        send_beside(&mut left, &other, &data(2, 8), Some(&kept(&there, &ack(1)))).unwrap();
        send(&mut left, &there, &data(3, 8)).unwrap();
        flush(&mut left);
        let came = receive(&mut right, 3);
        let from_there = came.iter().filter(|came| came.0 == there.source);
        let numbers: Vec<_> = from_there.map(|(.., bytes)| bytes[11]).collect();
        assert_eq!(numbers, [1, 3]);
    }
}

/// Each acknowledgement beside the last of the packets that follow it.
fn send_all(port: &mut UdpPort, path: &Path, all: &[Vec<u8>]) {
    let is_ack = |at: usize| all.get(at).is_none_or(|bytes| bytes[0] == 0x11);
    let mut beside = None;
    for (at, bytes) in all.iter().enumerate() {
        let is_last = is_ack(at + 1);
        if is_ack(at) && !is_last {
            beside = Some(kept(path, bytes));
            continue;
        }
        let beside = beside.take_if(|_| is_last);
        let room = port.room() - 1 - usize::from(beside.is_some());
        send_beside(port, path, bytes, beside.as_ref()).unwrap();
        assert_eq!(port.room(), room);
    }
}

fn kept(path: &Path, bytes: &[u8]) -> Kept {
    let mut fill = |to: &mut [u8]| {
        to.copy_from_slice(bytes);
        true
    };
    Kept::new(path, Ecn::Capable0, bytes.len(), &mut fill).unwrap()
}

fn acknowledgement(number: u32) -> Vec<u8> {
    let opcode = Opcode::from_byte(0x11).unwrap();
    let mut headers = Headers::new(Bth::new(opcode, Qpn::new(5), Psn::new(number)));
    headers.aeth = Some(Aeth {
        syndrome: Syndrome::Ack(None),
        msn: Psn::new(3),
    });
    let mut buffer = vec![0; 16];
    assert_eq!(headers.emit(&[], &mut buffer), Ok(16));
    buffer
}

/// Of a frame to the port of RoCEv2.
fn udp_payload_bytes(frame: &[u8]) -> Option<usize> {
    let udp = match *frame.get(12..15)? {
        [8, 0, version] => 14 + 4 * usize::from(version & 0xf),
        [0x86, 0xdd, _] => 14 + 40,
        _ => return None,
    };
    let port = frame.get(udp + 2..udp + 4)?;
    (port == ROCE_PORT.to_be_bytes()).then_some(frame.len() - udp - 8)
}

/// A run that the kernel refuses as a whole leaves packet by packet, each with its own checksum.
#[test]
fn the_icrc_is_right_where_a_run_was_refused() {
    let Some(hosts) = Hosts::new("the_icrc_is_right_where_a_run_was_refused", 1500) else {
        return;
    };
    let mut left = open(&hosts, LEFT, &Config::default());
    let raw = hosts.within(RIGHT, || Raw::open(c"right"));
    for addresses in [FOUR, SIX] {
        let sent = packet(1, 1024);
        for bytes in [&packet(0, 2000), &packet(0, 2000), &sent] {
            send(&mut left, &path(addresses, LEFT), bytes).unwrap();
        }
        flush(&mut left);
        let start = Instant::now();
        let mut came = false;
        while !came && start.elapsed() < WAIT_MAX {
            let Some(bytes) = raw.receive() else { continue };
            came = match Frame::parse(&bytes) {
                Err(sluice_wire::Error::NotRoce) => false,
                frame => *frame.unwrap().packet() == Packet::parse(&sent).unwrap(),
            };
        }
        assert!(came);
    }
    assert_eq!((left.counters().sent, left.counters().refused), (2, 4));
}

#[test]
fn users_of_one_host_are_told_apart() {
    let Some(hosts) = Hosts::new("users_of_one_host_are_told_apart", 1500) else {
        return;
    };
    let first = hosts.within(LEFT, || UdpPort::open(&Config::default()));
    assert_eq!(first.as_ref().unwrap().descriptors().len(), 2);
    let again = hosts.within(LEFT, || UdpPort::open(&Config::default()));
    assert!(again.is_ok(), "one user shares the port");
    let other = hosts.within(LEFT, || {
        // SAFETY: the raw call changes the user of this thread only, unlike libc's function.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) };
        assert_eq!(changed, 0);
        UdpPort::open(&Config::default()).err()
    });
    assert_eq!(other, Some(OpenError::PortTaken));
    assert!(other.unwrap().to_string().contains("4791"));
}

#[test]
fn a_port_that_is_not_shared_is_taken() {
    let Some(hosts) = Hosts::new("a_port_that_is_not_shared_is_taken", 1500) else {
        return;
    };
    hosts.within(LEFT, || {
        let other = std::net::UdpSocket::bind("0.0.0.0:4791").unwrap();
        let refused = UdpPort::open(&Config::default()).err();
        assert_eq!(refused, Some(OpenError::PortTaken));
        drop(other);
        // A child that another test starts at this moment may have it too.
        let opens = |_| UdpPort::open(&Config::default()).is_ok();
        assert!((0..1_000_000).any(opens));
    });
}

/// What comes goes to one of the ports of a user, all of a flow to the same.
#[test]
fn a_flow_goes_to_one_of_several_ports() {
    let Some(hosts) = Hosts::new("a_flow_goes_to_one_of_several_ports", 1500) else {
        return;
    };
    let mut left = open(&hosts, LEFT, &Config::default());
    let mut all = [(); 3].map(|()| open(&hosts, RIGHT, &Config::default()));
    for addresses in [FOUR, SIX] {
        for _ in 0..10 {
            send(&mut left, &path(addresses, LEFT), &packet(1, 64)).unwrap();
            flush(&mut left);
        }
        let mut got = [0; 3];
        let start = Instant::now();
        while got.iter().sum::<usize>() < 10 && start.elapsed() < WAIT_MAX {
            for (port, got) in all.iter_mut().zip(&mut got) {
                *got += port.receive(&mut |_| {});
            }
        }
        got.sort_unstable();
        assert_eq!(got, [0, 0, 10]);
    }
}

/// Whichever interface the path names: that of the address, the one to itself, or none.
#[test]
fn a_host_reaches_itself() {
    let Some(hosts) = Hosts::new("a_host_reaches_itself", 1500) else {
        return;
    };
    let mut left = open(&hosts, LEFT, &Config::default());
    let index = |name: &CStr| {
        // SAFETY: the name is a C string.
        hosts.within(LEFT, || unsafe { libc::if_nametoindex(name.as_ptr()) })
    };
    for own in [FOUR[LEFT], SIX[LEFT]] {
        for (what, interface) in [("none", 0), ("left", index(c"left")), ("lo", index(c"lo"))] {
            let path = Path {
                interface,
                ..path([own, own], LEFT)
            };
            let before = left.counters();
            for _ in 0..3 {
                send(&mut left, &path, &packet(1, 1024)).unwrap();
            }
            flush(&mut left);
            let got = receive(&mut left, 3);
            assert_eq!(got.len(), 3, "{own} by {what}");
            assert_eq!(left.counters().refused, before.refused);
        }
    }
}

#[test]
fn groups_come_to_those_who_joined() {
    let Some(hosts) = Hosts::new("groups_come_to_those_who_joined", 1500) else {
        return;
    };
    let mut left = open(&hosts, LEFT, &Config::default());
    let mut right = open(&hosts, RIGHT, &Config::default());
    let index = |host, name: &std::ffi::CStr| {
        // SAFETY: the name is a C string.
        hosts.within(host, || unsafe { libc::if_nametoindex(name.as_ptr()) })
    };
    let (from, to) = (index(LEFT, c"left"), index(RIGHT, c"right"));
    for (source, group) in [(FOUR[LEFT], "239.1.2.3"), (SIX[LEFT], "ff15::1234")] {
        let path = Path {
            source: source.parse().unwrap(),
            destination: group.parse().unwrap(),
            interface: from,
            ..path(FOUR, LEFT)
        };
        let members = right.members().unwrap();
        members.join(path.destination, to, true).unwrap();
        // The kernel makes an interface ready for groups a while after it is up.
        let start = Instant::now();
        let mut got = Vec::new();
        while got.is_empty() && start.elapsed() < WAIT_MAX {
            send(&mut left, &path, &packet(1, 64)).unwrap();
            flush(&mut left);
            std::thread::sleep(Duration::from_millis(20));
            right.receive(&mut |packet| got.push(packet.destination));
        }
        assert_eq!(got.first(), Some(&path.destination));
        // One more may be under way.
        std::thread::sleep(Duration::from_millis(20));
        while right.receive(&mut |_| {}) > 0 {}
        members.join(path.destination, to, false).unwrap();
        assert!(members.join(path.destination, to, false).is_err());
    }
}

fn frame(identification: u16, dont_fragment: bool) -> Vec<u8> {
    use sluice_wire::{ethernet, frame::Outer, ipv4};
    let outer = Outer {
        ethernet: ethernet::Header {
            destination: ethernet::Mac([2, 0, 0, 0, 0, 2]),
            source: ethernet::Mac([2, 0, 0, 0, 0, 1]),
            vlan: None,
            ethertype: ethernet::EtherType::Ipv4,
        },
        ip: Ip::V4(ipv4::Header {
            dscp: 0,
            ecn: Ecn::NotCapable,
            identification,
            dont_fragment,
            ttl: 64,
            protocol: ipv4::UDP,
            source: FOUR[LEFT].parse().unwrap(),
            destination: FOUR[RIGHT].parse().unwrap(),
            payload_bytes: 0,
        }),
        source_port: 0xc000,
    };
    let opcode = Opcode::from_byte(0x04).unwrap();
    let headers = Headers::new(Bth::new(opcode, Qpn::new(5), Psn::new(1)));
    let mut buffer = vec![0; 2000];
    let used = outer.emit(&headers, &[0x5a; 1024], &mut buffer).unwrap();
    buffer.truncate(used);
    buffer
}

/// A packet socket on a device: sends and sees whole frames.
struct Raw(OwnedFd);

impl Raw {
    fn open(device: &CStr) -> Self {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: socket takes integers only, what it gives is nobody else's; the name is a
        // C string, the address a whole one.
        unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK;
            let socket = libc::socket(libc::AF_PACKET, kind, i32::from(protocol));
            assert!(socket >= 0, "{}", std::io::Error::last_os_error());
            let socket = OwnedFd::from_raw_fd(socket);
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = libc::if_nametoindex(device.as_ptr()) as i32;
            let bytes = size_of_val(&address) as u32;
            let bound = libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes);
            assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
            Self(socket)
        }
    }

    fn send(&self, frame: &[u8]) {
        // SAFETY: the pointer and length are a slice's.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize);
    }

    fn receive(&self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 70_000];
        // SAFETY: the pointer and length are a slice's.
        let got = unsafe {
            libc::recv(
                self.0.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                0,
            )
        };
        buffer.truncate(usize::try_from(got).ok()?);
        Some(buffer)
    }
}
