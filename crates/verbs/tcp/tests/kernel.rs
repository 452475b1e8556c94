//! The kernel's TCP as the peer, behind a tun device in a network namespace of its own.
#![allow(unsafe_code)]

mod sim;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Instant as Clock;

use sim::byte;
use sluice_lab::namespace::Namespace;
use sluice_lab::random::Random;
use sluice_lab::verdict;
use sluice_tcp::{Config, Connection, Instant, Segment, State, Transmit};
use sluice_wire::{ipv4, tcp};

const BYTES: u64 = 4_000_000;
const RING: usize = 1 << 20;

fn tun() -> io::Result<File> {
    let file = File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    let mut request = [0_u8; 40];
    request[..4].copy_from_slice(b"tcp0");
    // IFF_TUN | IFF_NO_PI.
    request[16..18].copy_from_slice(&0x1001_u16.to_ne_bytes());
    // SAFETY: TUNSETIFF reads and writes a struct ifreq, 40 bytes, which `request` is.
    if unsafe { libc::ioctl(file.as_raw_fd(), 0x4004_54ca, request.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    for words in ["addr add 10.9.0.1/24 dev tcp0", "link set tcp0 up"] {
        let done = Command::new("ip").args(words.split(' ')).status()?;
        assert!(done.success(), "ip {words}");
    }
    // SAFETY: the descriptor is open; no memory is involved.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    Ok(file)
}

fn emit(sent: &Transmit, port: u16) -> Vec<u8> {
    let mut header = sent.header;
    (header.source_port, header.destination_port) = (4000, port);
    let payload: Vec<u8> = sent.payload.clone().map(|offset| byte(0, offset)).collect();
    let (mut bytes, len) = header.emit().expect("it fits");
    let (source, destination) = ([10, 9, 0, 2], [10, 9, 0, 1]);
    let sum = tcp::checksum(&source, &destination, &bytes[..len], &payload);
    bytes[16..18].copy_from_slice(&sum.to_be_bytes());
    let ip = ipv4::Header {
        dscp: 0,
        ecn: sent.ecn,
        identification: 0,
        dont_fragment: true,
        ttl: 64,
        protocol: tcp::TCP,
        source: source.into(),
        destination: destination.into(),
        payload_bytes: (len + payload.len()) as u16,
    };
    [&ip.emit().expect("it fits")[..], &bytes[..len], &payload].concat()
}

/// Sends all and receives all, with so many of a hundred packets lost on the way, both ways.
fn exchange(loss_percent: u64, accepts: bool) -> io::Result<()> {
    let mut tun = tun()?;
    let listener = TcpListener::bind("10.9.0.1:0")?;
    let mut port = listener.local_addr()?.port();
    let kernel = std::thread::spawn(move || -> io::Result<()> {
        let mut socket = match accepts {
            true => TcpStream::connect("10.9.0.2:4000")?,
            false => listener.accept()?.0,
        };
        let mut got = Vec::new();
        socket.read_to_end(&mut got)?;
        assert_eq!(got.len() as u64, BYTES);
        assert!(
            (0..)
                .zip(&got)
                .all(|(offset, there)| *there == byte(0, offset))
        );
        socket.write_all(&(0..BYTES).map(|offset| byte(1, offset)).collect::<Vec<_>>())?;
        socket.shutdown(Shutdown::Write)
    });
    let start = Clock::now();
    let clock = || Instant(start.elapsed().as_nanos() as u64 + 1);
    let config = Config {
        time_wait: 1,
        ..Config::default()
    };
    let mut random = Random::new(loss_percent + 1);
    let sequence = u32::MAX - 100_000;
    let mut packet = [0; 2048];
    let mut connection = if accepts {
        loop {
            if let Ok(len) = tun.read(&mut packet)
                && let Ok((ip, segment)) = ipv4::Header::parse(&packet[..len])
                && ip.protocol == tcp::TCP
                && let Ok((header, _)) = tcp::Header::parse(segment)
            {
                port = header.source_port;
                let syn = Segment {
                    header,
                    bytes: 0,
                    ecn: ip.ecn,
                };
                break Connection::accept(config, &syn, sequence, 5, clock()).expect("a SYN");
            }
            std::thread::yield_now();
        }
    } else {
        Connection::connect(config, sequence, 5, clock())
    };
    connection.write(BYTES);
    let (mut ring, mut read) = (vec![0_u8; RING], 0_u64);
    let mut negotiated = None;
    while connection.state() != State::Closed {
        if connection.acknowledged() == BYTES {
            connection.shutdown();
        }
        let mut idle = true;
        while let Some(sent) = connection.transmit(clock()) {
            idle = false;
            if random.below(100) >= loss_percent {
                // What the device cannot take now is lost, as on any link.
                let _ = tun.write(&emit(&sent, port));
            }
        }
        if let Ok(len) = tun.read(&mut packet)
            && let Ok((ip, segment)) = ipv4::Header::parse(&packet[..len])
            && ip.protocol == tcp::TCP
            && random.below(100) >= loss_percent
        {
            idle = false;
            let sum = tcp::checksum(&ip.source.octets(), &ip.destination.octets(), segment, &[]);
            assert_eq!(sum, 0, "the kernel's checksum is right");
            let (header, payload) =
                tcp::Header::parse(segment).expect("the kernel's header is right");
            let segment = Segment {
                header,
                bytes: payload.len() as u32,
                ecn: ip.ecn,
            };
            let received = connection.receive(clock(), &segment);
            if let Some(place) = received.place {
                for (offset, index) in (place.offset..).zip(place.payload) {
                    ring[offset as usize % RING] = payload[index as usize];
                }
            }
            while read < received.readable {
                assert_eq!(ring[read as usize % RING], byte(1, read), "offset {read}");
                read += 1;
                connection.read(1);
            }
            if connection.state() != State::SynSent {
                negotiated.get_or_insert(connection.negotiated());
            }
        }
        if connection.timeout().is_some_and(|due| due <= clock()) {
            connection.timed_out(clock());
        }
        if idle {
            std::thread::yield_now();
        }
    }
    kernel.join().expect("no panic")?;
    assert_eq!((read, connection.acknowledged()), (BYTES, BYTES));
    let (sack, timestamps, _, _, theirs) = negotiated.expect("it was established");
    assert!(
        sack && timestamps && theirs > 0,
        "SACK, timestamps and a shift of windows"
    );
    println!(
        "{loss_percent} % lost, accepted {accepts}: {:?}",
        connection.counters()
    );
    Ok(())
}

#[test]
fn the_kernel_gets_and_sends_every_byte() {
    for (loss_percent, accepts) in [(0, false), (2, false), (0, true), (2, true)] {
        // One each: the kernel may still repeat what the last connection has not heard.
        let namespace = Namespace::new()
            .or_else(|error| verdict::skip(format!("no network namespace: {error}")));
        let Some(namespace) = verdict::made("the_kernel_gets_and_sends_every_byte", namespace)
        else {
            return;
        };
        let done = namespace.inside(|| exchange(loss_percent, accepts));
        done.expect("it works");
    }
}
