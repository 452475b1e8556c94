//! smoltcp as the peer: another implementation, without SACK recovery and with few gaps, on a clock
//! that is simulated.

mod sim;

use std::collections::VecDeque;

use sim::byte;
use sluice_lab::random::Random;
use sluice_tcp::{Config, Connection, End, Instant, MILLISECOND, SECOND, Segment, State, Transmit};
use sluice_wire::{ipv4, tcp};
use smoltcp::iface::{self, Interface, SocketSet};
use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::socket::tcp as smol;
use smoltcp::time::Instant as Time;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

const BYTES: u64 = 600_000;
const RING: usize = 1 << 18;
const MTU: usize = 1500;
const OURS: [u8; 4] = [10, 9, 0, 2];
const THEIRS: [u8; 4] = [10, 9, 0, 1];
const PORT: u16 = 4000;

/// Packets to smoltcp and from it.
#[derive(Default)]
struct Wire {
    there: VecDeque<Vec<u8>>,
    back: VecDeque<Vec<u8>>,
}

struct Arrived(Vec<u8>);
struct Leaving<'a>(&'a mut VecDeque<Vec<u8>>);

impl phy::RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

impl phy::TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let mut packet = vec![0; len];
        let done = fill(&mut packet);
        self.0.push_back(packet);
        done
    }
}

impl phy::Device for Wire {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _: Time) -> Option<(Arrived, Leaving<'_>)> {
        let packet = self.there.pop_front()?;
        Some((Arrived(packet), Leaving(&mut self.back)))
    }

    fn transmit(&mut self, _: Time) -> Option<Leaving<'_>> {
        Some(Leaving(&mut self.back))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        capabilities
    }
}

fn emit(sent: &Transmit, port: u16) -> Vec<u8> {
    let mut header = sent.header;
    (header.source_port, header.destination_port) = (PORT, port);
    let payload: Vec<u8> = sent.payload.clone().map(|offset| byte(0, offset)).collect();
    let (mut bytes, len) = header.emit().expect("it fits");
    let sum = tcp::checksum(&OURS, &THEIRS, &bytes[..len], &payload);
    bytes[16..18].copy_from_slice(&sum.to_be_bytes());
    let ip = ipv4::Header {
        dscp: 0,
        ecn: sent.ecn,
        identification: 0,
        dont_fragment: true,
        ttl: 64,
        protocol: tcp::TCP,
        source: OURS.into(),
        destination: THEIRS.into(),
        payload_bytes: (len + payload.len()) as u16,
    };
    [&ip.emit().expect("it fits")[..], &bytes[..len], &payload].concat()
}

fn parse(packet: &[u8]) -> (Segment, &[u8]) {
    let (ip, segment) = ipv4::Header::parse(packet).expect("an IPv4 header");
    assert_eq!(ip.protocol, tcp::TCP);
    assert_eq!(tcp::checksum(&THEIRS, &OURS, segment, &[]), 0);
    let (header, payload) = tcp::Header::parse(segment).expect("a TCP header");
    let segment = Segment {
        header,
        bytes: payload.len() as u32,
        ecn: ip.ecn,
    };
    (segment, payload)
}

/// The application behind smoltcp: sends all, then ends its stream; reads and compares all.
#[derive(Default)]
struct Theirs {
    written: u64,
    read: u64,
}

impl Theirs {
    fn work(&mut self, socket: &mut smol::Socket<'_>) {
        while self.written < BYTES && socket.can_send() {
            let some: Vec<u8> = (self.written..BYTES.min(self.written + 4096))
                .map(|offset| byte(1, offset))
                .collect();
            self.written += socket.send_slice(&some).expect("it can send") as u64;
        }
        if self.written == BYTES && socket.send_queue() == 0 {
            socket.close();
        }
        let mut some = [0; 4096];
        while socket.can_recv() {
            let len = socket.recv_slice(&mut some).expect("it can receive");
            for there in &some[..len] {
                assert_eq!(*there, byte(0, self.read), "offset {}", self.read);
                self.read += 1;
            }
        }
    }
}

/// Both send all and receive all, with so many of a hundred packets lost on the way, both ways.
fn exchange(loss_percent: u64, accepts: bool, sack: bool) {
    let mut random = Random::new(loss_percent + 1);
    let mut now = Instant(SECOND);
    let time = |now: Instant| Time::from_micros((now.0 / 1000).cast_signed());
    let mut wire = Wire::default();
    let mut config = iface::Config::new(HardwareAddress::Ip);
    config.random_seed = 5;
    let mut interface = Interface::new(config, &mut wire, time(now));
    interface.update_ip_addrs(|addresses| {
        let address = IpAddress::v4(THEIRS[0], THEIRS[1], THEIRS[2], THEIRS[3]);
        addresses
            .push(IpCidr::new(address, 24))
            .expect("room for one");
    });
    let mut sockets = SocketSet::new(Vec::new());
    let buffer = || smol::SocketBuffer::new(vec![0; RING]);
    let handle = sockets.add(smol::Socket::new(buffer(), buffer()));
    let port = 5000;
    {
        let socket = sockets.get_mut::<smol::Socket<'_>>(handle);
        if accepts {
            let ours = (IpAddress::v4(OURS[0], OURS[1], OURS[2], OURS[3]), PORT);
            socket
                .connect(interface.context(), ours, port)
                .expect("a SYN is due");
        } else {
            socket.listen(port).expect("it listens");
        }
    }
    let ours = Config {
        receive_buffer: RING as u32,
        sack,
        time_wait: MILLISECOND,
        ..Config::default()
    };
    let mut connection = (!accepts).then(|| Connection::connect(ours, u32::MAX - 100_000, 5, now));
    let (mut ring, mut read, mut started) = (vec![0_u8; RING], 0_u64, false);
    let mut theirs = Theirs::default();
    for step in 0.. {
        assert!(
            step < 4_000_000,
            "no end: {:?}",
            connection.map(|c| c.counters())
        );
        interface.poll(time(now), &mut wire, &mut sockets);
        theirs.work(sockets.get_mut::<smol::Socket<'_>>(handle));
        while let Some(packet) = wire.back.pop_front() {
            if random.below(100) < loss_percent {
                continue;
            }
            let (segment, payload) = parse(&packet);
            let Some(known) = &mut connection else {
                connection = Connection::accept(ours, &segment, u32::MAX - 9, 5, now);
                continue;
            };
            let received = known.receive(now, &segment);
            if let Some(place) = received.place {
                for (offset, index) in (place.offset..).zip(place.payload) {
                    ring[offset as usize % RING] = payload[index as usize];
                }
            }
            for offset in read..received.readable {
                assert_eq!(ring[offset as usize % RING], byte(1, offset), "{offset}");
            }
            known.read(received.readable - read);
            read = received.readable;
        }
        if let Some(known) = &mut connection {
            if !core::mem::replace(&mut started, true) {
                known.write(BYTES);
            }
            if known.acknowledged() == BYTES {
                known.shutdown();
            }
            if known.timeout().is_some_and(|due| due <= now) {
                known.timed_out(now);
            }
            while let Some(sent) = known.transmit(now) {
                if random.below(100) >= loss_percent {
                    wire.there.push_back(emit(&sent, port));
                }
            }
            if known.state() == State::Closed {
                break;
            }
        }
        now = now.after(MILLISECOND);
    }
    let connection = connection.expect("it was opened");
    assert_eq!(connection.end(), Some(End::Finished));
    assert_eq!((read, connection.acknowledged()), (BYTES, BYTES));
    assert_eq!((theirs.read, theirs.written), (BYTES, BYTES));
    println!(
        "{loss_percent} % lost, accepted {accepts}, SACK {sack}: {:?} after {} ms",
        connection.counters(),
        now.0 / MILLISECOND
    );
}

#[test]
fn smoltcp_gets_and_sends_every_byte() {
    for loss_percent in [0, 1, 10] {
        for accepts in [false, true] {
            exchange(loss_percent, accepts, true);
        }
    }
}

#[test]
fn smoltcp_gets_and_sends_every_byte_without_sack() {
    exchange(0, false, false);
    exchange(3, false, false);
    exchange(3, true, false);
}
