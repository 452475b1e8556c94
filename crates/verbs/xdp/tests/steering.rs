//! What the program takes, and what it leaves to the kernel.
#![allow(unsafe_code)]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use common::{BLOCK, Device as _, Host, Net, QPN, can_run, check, content, headers, send, until};
use sluice_packet::{Port, Received, UdpPort};
use sluice_wire::ethernet::{self, EtherType, Mac, Vlan};
use sluice_wire::frame::Outer;
use sluice_wire::{Ecn, Ip, ipv4, ipv6};
use sluice_xdp::{ADDRESSES_MAX, Options, SteerError, Steering, XdpPort};

const ROCE_PORT: u16 = 4791;

/// A socket that sends whole frames.
struct Raw {
    socket: OwnedFd,
    address: libc::sockaddr_ll,
}

impl Raw {
    fn new(host: &Host) -> Self {
        let index = host.interface().index();
        // SAFETY: socket takes integers only.
        let fd = host.enter(|| unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) });
        assert!(fd >= 0);
        // SAFETY: integers and bytes, for which zero is valid.
        let mut address: libc::sockaddr_ll = unsafe { core::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = index as i32;
        Self {
            // SAFETY: the descriptor is new and nobody else's.
            socket: unsafe { OwnedFd::from_raw_fd(fd) },
            address,
        }
    }

    fn send(&self, frame: &[u8]) {
        // SAFETY: the kernel reads the frame and one address.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const self.address).cast(),
                size_of_val(&self.address) as u32,
            )
        };
        assert_eq!(
            sent,
            frame.len() as isize,
            "{}",
            std::io::Error::last_os_error()
        );
    }
}

/// A frame from `a` to `b`, as a peer would send it.
fn frame(net: &Net, v6: bool, vlan: Option<Vlan>, qpn: u32, number: u32) -> Vec<u8> {
    let ip = match (net.a.v4, net.b.v4, net.a.v6, net.b.v6) {
        (IpAddr::V4(source), IpAddr::V4(destination), _, _) if !v6 => Ip::V4(ipv4::Header {
            dscp: 0,
            ecn: Ecn::Capable0,
            identification: 7,
            dont_fragment: true,
            ttl: 64,
            protocol: ipv4::UDP,
            source,
            destination,
            payload_bytes: 0,
        }),
        (_, _, IpAddr::V6(source), IpAddr::V6(destination)) => Ip::V6(ipv6::Header {
            dscp: 0,
            ecn: Ecn::Capable0,
            flow_label: 0,
            payload_bytes: 0,
            next_header: ipv4::UDP,
            hop_limit: 64,
            source,
            destination,
        }),
        _ => unreachable!("one of each"),
    };
    let outer = Outer {
        ethernet: ethernet::Header {
            destination: Mac(net.b.mac),
            source: Mac(net.a.mac),
            vlan,
            ethertype: EtherType::Ipv4,
        },
        ip,
        source_port: 0xc001,
    };
    let mut buffer = vec![0; 512];
    let content: Vec<u8> = content(number, 64).collect();
    let used = outer
        .emit(&headers(qpn, number), &content, &mut buffer)
        .expect("fits");
    buffer.truncate(used);
    buffer
}

/// Sends one good packet and receives it; nothing else may have come before.
fn nothing_but_a_good_one(raw: &Raw, net: &Net, b: &mut XdpPort, what: &str) {
    let number = 0xabcdef;
    raw.send(&frame(net, false, None, QPN, number));
    let mut got = Vec::new();
    until(what, || {
        b.receive(&mut |received| got.push(check(received).0));
        !got.is_empty()
    });
    assert_eq!(got, [number], "{what}");
}

fn foreign_qp(steering: &Steering) -> u64 {
    steering.counters().expect("counters").foreign_qp
}

#[test]
fn the_kernel_gets_everything_else() {
    if !can_run("the_kernel_gets_everything_else") {
        return;
    }
    let net = Net::new(1500);
    let (steering, mut b) = net.b.open_one(&Options::default());
    let (_other, _a) = net.a.open_one(&Options::default());
    for to in [net.b.v4, net.b.v6] {
        // TCP.
        let listener = net.b.enter(|| TcpListener::bind((to, 0))).expect("bound");
        let address = listener.local_addr().expect("an address");
        let sent: Vec<u8> = content(3, 300_000).collect();
        let got = std::thread::scope(|scope| {
            let accepted = scope.spawn(|| {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut got = Vec::new();
                stream.read_to_end(&mut got).expect("all of it");
                got
            });
            let mut stream = net
                .a
                .enter(|| TcpStream::connect(address))
                .expect("connects");
            stream.write_all(&sent).expect("written");
            drop(stream);
            accepted.join().expect("read")
        });
        assert!(got == sent);
        // UDP to another port, one that is near, and short ones to RoCEv2's.
        for port in [0, ROCE_PORT - 1, ROCE_PORT] {
            let socket = net.b.enter(|| UdpSocket::bind((to, port))).expect("bound");
            udp(&net, &socket, &[1, 2, 3]);
        }
    }
    assert!(ping(&net.a, net.b.v4), "ICMP");
    let raw = Raw::new(&net.a);
    nothing_but_a_good_one(&raw, &net, &mut b, "the kernel's traffic");
    assert_eq!(steering.counters().expect("counters").redirected, 1);
}

/// Sends from `a`, and waits until the socket has it.
fn udp(net: &Net, socket: &UdpSocket, message: &[u8]) {
    let address: SocketAddr = socket.local_addr().expect("an address");
    let from: IpAddr = if address.is_ipv4() {
        net.a.v4
    } else {
        net.a.v6
    };
    let sender = net.a.enter(|| UdpSocket::bind((from, 0))).expect("bound");
    sender.send_to(message, address).expect("sent");
    socket
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("set");
    let mut buffer = [0; 2048];
    let got = socket.recv(&mut buffer).expect("the kernel gives it");
    assert_eq!(&buffer[..got], message);
}

fn ping(from: &Host, to: IpAddr) -> bool {
    let IpAddr::V4(to) = to else { return false };
    // SAFETY: socket takes integers only.
    let fd =
        from.enter(|| unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP) });
    assert!(fd >= 0);
    // SAFETY: the descriptor is new. UdpSocket has the calls that datagrams of any kind need.
    let socket = unsafe { UdpSocket::from_raw_fd(fd) };
    // Echo request, its checksum, identifier 1, number 1.
    let request = [8, 0, 0xf7, 0xfd, 0, 1, 0, 1];
    socket.send_to(&request, (to, 0)).expect("sent");
    socket
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("set");
    let mut buffer = [0; 128];
    let got = socket.recv(&mut buffer).expect("an answer");
    // Behind the IP header: an echo reply.
    buffer[..got].get(20) == Some(&0)
}

#[test]
fn only_our_queue_pairs_addresses_and_tags_are_taken() {
    if !can_run("only_our_queue_pairs_addresses_and_tags_are_taken") {
        return;
    }
    let net = Net::new(1500);
    let (mut steering, mut b) = net.b.open_one(&Options::default());
    let raw = Raw::new(&net.a);
    let kernel = net
        .b
        .enter(|| UdpSocket::bind((net.b.v4, ROCE_PORT)))
        .expect("bound");
    kernel
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("set");
    let kernel_gets = |frame: &[u8], what: &str| {
        raw.send(frame);
        let mut buffer = [0; 2048];
        let got = kernel.recv(&mut buffer).expect(what);
        // Ethernet, IP and UDP headers are in front of it.
        assert_eq!(buffer[..got], frame[frame.len() - got..], "{what}");
    };
    // Queue pairs: general services, and neighbours of the block.
    let block = u32::from(BLOCK) << 8;
    let foreign = [0, 1, 2, block - 1, block + 256, 0xff_ffff];
    for qpn in foreign {
        kernel_gets(&frame(&net, false, None, qpn, 1), &format!("QP {qpn:#x}"));
    }
    assert_eq!(foreign_qp(&steering), foreign.len() as u64);
    nothing_but_a_good_one(&raw, &net, &mut b, "foreign queue pairs");
    // Both ends of the block, both versions, and with a tag that has only a priority.
    let priority = Some(Vlan {
        priority: 5,
        drop_eligible: true,
        id: 0,
    });
    let mut number = 100;
    for qpn in [block, block + 255] {
        for vlan in [None, priority] {
            for v6 in [false, true] {
                number += 1;
                raw.send(&frame(&net, v6, vlan, qpn, number));
                let mut got = None;
                until("ours", || {
                    b.receive(&mut |received| got = Some(check(received).0));
                    got.is_some()
                });
                assert_eq!(got, Some(number));
            }
        }
    }
    // Another network's, whose interface would be e0.5.
    let network = Some(Vlan {
        id: 5,
        ..Vlan::default()
    });
    raw.send(&frame(&net, false, network, QPN, 1));
    nothing_but_a_good_one(&raw, &net, &mut b, "a tag with an id");
    // Block by block; block 0 leaves 0 and 1 to the kernel.
    for block in [0, 63, 64, u16::MAX] {
        steering.add_block(block).expect("a block");
        let qpn = u32::from(block) << 8 | 9;
        raw.send(&frame(&net, false, None, qpn, 7));
        let mut got = 0;
        until("the new block's", || {
            b.receive(&mut |received| got = check(received).0);
            got == 7
        });
        kernel_gets(&frame(&net, false, None, 1, 1), "QP 1");
        steering.remove_block(block).expect("a block");
        kernel_gets(&frame(&net, false, None, qpn, 1), "a removed block");
    }
    // Addresses.
    let other = IpAddr::from([192, 0, 2, 77]);
    steering.set_addresses(&[other, net.b.v6]).expect("set");
    kernel_gets(&frame(&net, false, None, QPN, 1), "not our address");
    assert_eq!(steering.counters().expect("counters").foreign_address, 1);
    let mapped = match net.b.v4 {
        IpAddr::V4(address) => IpAddr::V6(address.to_ipv6_mapped()),
        v6 => v6,
    };
    steering.set_addresses(&[mapped]).expect("set");
    nothing_but_a_good_one(&raw, &net, &mut b, "addresses");
    let many: Vec<IpAddr> = (0..=ADDRESSES_MAX)
        .map(|n| IpAddr::from(n.to_be_bytes()))
        .collect();
    assert_eq!(
        steering.set_addresses(&many),
        Err(SteerError::TooManyAddresses)
    );
    steering
        .set_addresses(&many[1..])
        .expect("as many as there may be");
    steering.set_addresses(&[net.b.v4]).expect("set");
    nothing_but_a_good_one(&raw, &net, &mut b, "many addresses");
    // Without a socket the kernel gets it. A child that another test is starting may have the socket until its exec.
    let redirected = steering.counters().expect("counters").redirected;
    drop(b);
    let last = frame(&net, false, None, QPN, 1);
    let mut sent = 0;
    until("no socket", || {
        raw.send(&last);
        sent += 1;
        steering.counters().expect("counters").no_socket > 0
    });
    let mut found = steering.counters().expect("counters");
    until("the last of them", || {
        found = steering.counters().expect("counters");
        found.no_socket + found.redirected - redirected == sent
    });
    for _ in 0..found.no_socket {
        let mut buffer = [0; 2048];
        let got = kernel.recv(&mut buffer).expect("no socket");
        assert_eq!(buffer[..got], last[last.len() - got..], "no socket");
    }
    assert_eq!(
        kernel
            .set_nonblocking(true)
            .map(|()| kernel.recv(&mut [0; 9]).unwrap_err().kind())
            .expect("set"),
        ErrorKind::WouldBlock
    );
}

#[test]
fn fragments_options_and_extension_headers_are_left_alone() {
    if !can_run("fragments_options_and_extension_headers_are_left_alone") {
        return;
    }
    let net = Net::new(1500);
    let (steering, mut b) = net.b.open_one(&Options::default());
    let raw = Raw::new(&net.a);
    let v4 = frame(&net, false, None, QPN, 1);
    let v6 = frame(&net, true, None, QPN, 1);
    let change = |frame: &[u8], at: usize, byte: u8| {
        let mut frame = frame.to_vec();
        frame[at] = byte;
        frame
    };
    for (frame, what) in [
        (change(&v4, 14, 0x46), "IPv4 options"),
        (change(&v4, 14, 0x65), "version 6 in IPv4"),
        (change(&v4, 20, 0x20), "more fragments"),
        (change(&v4, 21, 1), "a later fragment"),
        (change(&v4, 23, 6), "TCP"),
        (change(&v4, 36, 0), "another port"),
        (change(&v6, 20, 0), "hop-by-hop options"),
        (change(&v6, 20, 44), "a fragment header"),
        (change(&v6, 14, 0x45), "version 4 in IPv6"),
        (change(&v4, 12, 0x88), "another type"),
    ] {
        raw.send(&frame);
        nothing_but_a_good_one(&raw, &net, &mut b, what);
    }
    // Cut anywhere before the queue pair's number is known.
    for end in 14..34 + 8 + 8 {
        raw.send(&v4[..end]);
    }
    nothing_but_a_good_one(&raw, &net, &mut b, "short frames");
    let counters = b.counters();
    assert_eq!((counters.malformed, counters.bad_icrc), (0, 0));
    let redirected = steering.counters().expect("counters").redirected;
    assert_eq!(redirected, counters.received, "nothing else was steered");
}

#[test]
fn garbage_for_us_is_dropped_and_counted() {
    if !can_run("garbage_for_us_is_dropped_and_counted") {
        return;
    }
    let net = Net::new(9000);
    let (_steering, mut b) = net.b.open_one(&Options::default());
    let raw = Raw::new(&net.a);
    let good = frame(&net, false, None, QPN, 1);
    let mut icrc = good.clone();
    *icrc.last_mut().expect("long") ^= 1;
    let mut payload = good.clone();
    payload[60] ^= 0x80;
    for frame in [&icrc, &payload] {
        raw.send(frame);
    }
    let counted = |b: &mut XdpPort, bad_icrc, malformed, what: &str| {
        until(what, || {
            b.receive(&mut |_| panic!("{what}"));
            let counters = b.counters();
            (counters.bad_icrc, counters.malformed) == (bad_icrc, malformed)
        });
    };
    counted(&mut b, 2, 0, "wrong ICRCs");
    // Cut short behind the queue pair; lengths that say more; larger than any packet.
    let mut malformed = 0;
    for end in 34 + 8 + 12..good.len() {
        raw.send(&good[..end]);
        malformed += 1;
    }
    counted(&mut b, 2, malformed, "cut short");
    let mut long = good.clone();
    long.resize(8900, 0x55);
    let total = (long.len() - 14) as u16;
    long[16..18].copy_from_slice(&total.to_be_bytes());
    long[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    raw.send(&long);
    until("the long one", || {
        b.receive(&mut |_| panic!("the long one"));
        let counters = b.counters();
        counters.bad_icrc + counters.malformed == 3 + malformed
    });
    nothing_but_a_good_one(&raw, &net, &mut b, "garbage");
    assert_eq!(b.counters().received, 1);
    // Random bytes behind good addresses.
    let mut seed = 1u64;
    for _ in 0..2000 {
        let mut frame = good.clone();
        for byte in &mut frame[44..] {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (seed >> 33) as u8;
        }
        frame[47..50].copy_from_slice(&QPN.to_be_bytes()[1..]);
        raw.send(&frame);
        b.receive(&mut |_| panic!("garbage"));
    }
    nothing_but_a_good_one(&raw, &net, &mut b, "random bytes");
}

#[test]
fn the_other_way_of_sending_is_understood_by_the_kernel() {
    if !can_run("the_other_way_of_sending_is_understood_by_the_kernel") {
        return;
    }
    // What a port sends, a UDP socket of the peer's kernel gets: IP and UDP checksums are right.
    let net = Net::new(1500);
    let (_steering, mut a) = net.a.open_one(&Options::default());
    for v6 in [false, true] {
        let to = if v6 { net.b.v6 } else { net.b.v4 };
        let socket = net
            .b
            .enter(|| UdpSocket::bind((to, ROCE_PORT)))
            .expect("bound");
        socket
            .set_read_timeout(Some(Duration::from_secs(30)))
            .expect("set");
        let path = net.a.path(&net.b, v6);
        for payload in [0, 1, 2, 3, 1001] {
            send(&mut a, &path, 5, 9, payload).expect("sent");
            until("sent", || a.flush());
            let mut buffer = [0; 2048];
            let (got, from) = socket.recv_from(&mut buffer).expect("it comes");
            assert_eq!(got, common::message_bytes(payload) + 4);
            assert_eq!((from.ip(), from.port()), (path.source, path.source_port));
        }
    }
}

#[test]
fn what_udp_sockets_send_is_taken_where_it_comes_packet_by_packet() {
    if !can_run("what_udp_sockets_send_is_taken_where_it_comes_packet_by_packet") {
        return;
    }
    // A veth pair carries what a socket sends as it is, many packets in one, unless a driver's
    // program wants them singly.
    const PACKETS: u32 = 30;
    for native in [false, true] {
        let net = Net::new(9000);
        let options = Options {
            native: Some(native),
            ..Options::default()
        };
        let (steering, mut b) = net.b.open_one(&options);
        let config = sluice_packet::udp::Config::default();
        let open = |host: &Host| host.enter(|| UdpPort::open(&config)).expect("sockets");
        let (mut socket, mut peer) = (open(&net.b), open(&net.a));
        for v6 in [false, true] {
            let path = net.a.path(&net.b, v6);
            let before = steering.counters().expect("counters");
            for number in 0..PACKETS {
                send(&mut peer, &path, QPN, number, 2000).expect("sent");
            }
            until("everything to be sent", || peer.flush());
            let mut numbers = Vec::new();
            until("all packets", || {
                let take = &mut |received: &Received<'_>| numbers.push(check(received).0);
                if native {
                    b.receive(take);
                } else {
                    socket.receive(take);
                }
                numbers.len() as u32 == PACKETS
            });
            assert!(numbers.into_iter().eq(0..PACKETS));
            let after = steering.counters().expect("counters");
            let (taken, left) = (
                after.redirected - before.redirected,
                after.of_socket - before.of_socket,
            );
            if native {
                assert_eq!((taken, left), (u64::from(PACKETS), 0));
            } else {
                // Uncut, so that the program has seen fewer.
                assert!(
                    taken == 0 && (1..u64::from(PACKETS) / 2).contains(&left),
                    "{left}"
                );
            }
        }
    }
}

#[test]
fn who_polls_knows_what_was_left_to_sockets() {
    if !can_run("who_polls_knows_what_was_left_to_sockets") {
        return;
    }
    let net = Net::new(1500);
    let (steering, mut b) = net.b.open_one(&Options::default());
    let raw = Raw::new(&net.a);
    assert_eq!(b.left().get(), Some(0));
    nothing_but_a_good_one(&raw, &net, &mut b, "a packet of ours");
    assert_eq!(b.left().get(), Some(0), "it came by the ring");
    raw.send(&frame(&net, false, None, 1, 0));
    raw.send(&frame(&net, true, None, QPN ^ 0xff00, 0));
    // The kernels' own neighbour discovery may come between.
    until("two packets for sockets", || b.left().get() >= Some(2));
    let left = b.left().get();
    net.b.enter(|| steering.want(false));
    until("detached, everything is left", || b.left().get().is_none());
    // A child that another test starts may still have the old one, and then it is refused once.
    until("attached again", || {
        net.b.enter(|| steering.want(true));
        b.left().get() >= left
    });
}
