//! Several ports at one address: which of them the kernel gives a packet to.
#![allow(unsafe_code)]

mod netns;

use std::time::{Duration, Instant};

use netns::{FOUR, Hosts, LEFT, RIGHT, SIX};
use sluice_packet::udp::{Config, Group};
use sluice_packet::{Leaving, Path, Port, UdpPort};
use sluice_wire::bth::Bth;
use sluice_wire::{Ecn, Headers, Opcode, Psn, Qpn};

const WAIT_MAX: Duration = Duration::from_secs(60);
const PORTS: u32 = 3;
const BLOCK: u32 = 0x1234;

/// Each packet by itself: of several in one datagram the first would say where all go.
const SINGLE: Config = Config {
    packet_bytes_max: 9216,
    segmentation: false,
    socket_buffer_bytes: 1 << 20,
};

fn group(hosts: &Hosts, count: u32) -> (Vec<UdpPort>, Group) {
    hosts.within(RIGHT, || UdpPort::open_group(&SINGLE, count).unwrap())
}

/// Ports that are the first at their address. Those that went before may live on for a while in a child that another
/// test has just forked.
fn first_group(hosts: &Hosts, count: u32) -> (Vec<UdpPort>, Group) {
    let start = Instant::now();
    loop {
        let made = group(hosts, count);
        if made.1.is_steered() {
            return made;
        }
        assert!(start.elapsed() < WAIT_MAX, "others came first");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn packet(qpn: u32) -> Vec<u8> {
    let opcode = Opcode::from_byte(0x04).unwrap();
    let headers = Headers::new(Bth::new(opcode, Qpn::new(qpn), Psn::new(qpn)));
    let mut buffer = vec![0; 64];
    let used = headers.emit(b"payload.", &mut buffer).unwrap();
    buffer.truncate(used);
    buffer
}

/// Sends a packet for each queue pair, and gives the queue pairs of what came to each port.
fn deliver(
    hosts: &Hosts,
    to: &mut [&mut UdpPort],
    qpns: &[u32],
    addresses: [&str; 2],
) -> Vec<Vec<u32>> {
    let mut left = hosts.within(LEFT, || UdpPort::open(&SINGLE).unwrap());
    let path = Path {
        source: addresses[LEFT].parse().unwrap(),
        destination: addresses[RIGHT].parse().unwrap(),
        interface: 0,
        ethernet: None,
        source_port: 0xc123,
        dscp: 0,
        hop_limit: 64,
        flow_label: 0,
    };
    for qpn in qpns {
        let bytes = packet(*qpn);
        left.put(
            &Leaving::alone(&path, Ecn::NotCapable, bytes.len()),
            &mut |into| {
                into.copy_from_slice(&bytes);
                true
            },
        )
        .unwrap();
        while !left.flush() {}
    }
    let start = Instant::now();
    let mut came = vec![Vec::new(); to.len()];
    while came.iter().flatten().count() < qpns.len() && start.elapsed() < WAIT_MAX {
        for (port, came) in to.iter_mut().zip(&mut came) {
            port.receive(&mut |received| {
                let bytes = received.packet;
                came.push(u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]));
            });
        }
    }
    came
}

/// What each port is to get.
fn shares(qpns: &[u32], ports: u32) -> Vec<Vec<u32>> {
    let share = |port| qpns.iter().copied().filter(move |qpn| qpn % ports == port);
    (0..ports).map(|port| share(port).collect()).collect()
}

fn in_block(block: u32) -> Vec<u32> {
    (0..20)
        .map(|step| block << 8 | (step * 13) & 0xff)
        .collect()
}

#[test]
fn packets_come_to_the_port_of_their_queue_pair() {
    let Some(hosts) = Hosts::new("packets_come_to_the_port_of_their_queue_pair", 1500) else {
        return;
    };
    for ports in [1, 2, PORTS, 8] {
        let (mut all, mut group) = first_group(&hosts, ports);
        // As many as are looked through, and one more than that.
        for block in 0..65 {
            group.add_block((BLOCK + block) as u16);
        }
        assert!(group.is_steered());
        for addresses in [FOUR, SIX] {
            let mut to: Vec<&mut UdpPort> = all.iter_mut().collect();
            for block in [BLOCK, BLOCK + 31, BLOCK + 63] {
                let qpns = in_block(block);
                let came = deliver(&hosts, &mut to, &qpns, addresses);
                assert_eq!(came, shares(&qpns, ports), "{block:#x} of {ports}");
            }
            // Of connection managers, and of somebody else: all come to one.
            let came = deliver(&hosts, &mut to, &[1, 1, 1], addresses);
            assert_eq!(came[0], [1, 1, 1]);
            for foreign in [BLOCK - 1, BLOCK + 64] {
                let qpns = in_block(foreign);
                let came = deliver(&hosts, &mut to, &qpns, addresses);
                assert!(came.contains(&qpns), "{came:x?}");
            }
        }
    }
}

/// Processes come behind the first and go, in any order.
#[test]
fn who_was_first_keeps_its_packets_while_others_come_and_go() {
    let name = "who_was_first_keeps_its_packets_while_others_come_and_go";
    let Some(hosts) = Hosts::new(name, 1500) else {
        return;
    };
    let (mut first, mut steering) = group(&hosts, PORTS);
    steering.add_block(BLOCK as u16);
    let qpns = in_block(BLOCK);
    let (second, mut unsteered) = group(&hosts, 2);
    // It does not know its places.
    assert!(!unsteered.is_steered());
    unsteered.add_block(0x4321);
    let (third, _) = group(&hosts, 1);
    let mut others = vec![second, third];
    loop {
        for addresses in [FOUR, SIX] {
            let mut to: Vec<&mut UdpPort> = first.iter_mut().collect();
            let came = deliver(&hosts, &mut to, &qpns, addresses);
            assert_eq!(came, shares(&qpns, PORTS));
        }
        // A new block is steered at once.
        steering.add_block(0x4444);
        if others.is_empty() {
            break;
        }
        others.remove(0);
    }
}

/// The first has gone. What it told the kernel is nobody's harm, and nobody guesses.
#[test]
fn nothing_is_lost_when_the_first_has_gone() {
    let Some(hosts) = Hosts::new("nothing_is_lost_when_the_first_has_gone", 1500) else {
        return;
    };
    let (first, mut steering) = group(&hosts, PORTS);
    steering.add_block(BLOCK as u16);
    let (mut second, _) = group(&hosts, 2);
    drop((first, steering));
    let (mut third, later) = group(&hosts, 2);
    assert!(!later.is_steered());
    for addresses in [FOUR, SIX] {
        for block in [BLOCK, 0x777] {
            let qpns = in_block(block);
            let mut to: Vec<&mut UdpPort> = second.iter_mut().chain(&mut third).collect();
            let came = deliver(&hosts, &mut to, &qpns, addresses);
            assert_eq!(came.iter().flatten().count(), qpns.len());
        }
    }
    // All have gone: the next one is the first.
    drop((second, third));
    let (mut fourth, mut steering) = first_group(&hosts, 2);
    steering.add_block(BLOCK as u16);
    let qpns = in_block(BLOCK);
    let mut to: Vec<&mut UdpPort> = fourth.iter_mut().collect();
    let came = deliver(&hosts, &mut to, &qpns, FOUR);
    assert_eq!(came, shares(&qpns, 2));
}
