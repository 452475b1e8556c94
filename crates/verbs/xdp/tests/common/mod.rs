//! Two network namespaces joined by a veth pair, for tests and examples.
#![allow(dead_code, unused_imports)]

use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sluice_netns_testing::{Namespace, ip, unique};
use sluice_packet::{Ethernet, Path, Port, Received, SendError};
use sluice_wire::bth::Bth;
use sluice_wire::{Ecn, Headers, Opcode, Psn, Qpn};
use sluice_xdp::{Interface, Options, Steering, XdpPort};

pub use sluice_netns_testing::can_run;

/// Longest time that a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Block of the queue pairs that tests use.
pub const BLOCK: u16 = 0x1234;

/// One end.
#[derive(Clone, Debug)]
pub struct Host {
    pub namespace: Arc<Namespace>,
    pub mac: [u8; 6],
    pub v4: IpAddr,
    pub v6: IpAddr,
}

/// The name of the interface in each namespace.
pub const INTERFACE: &str = "e0";

impl Host {
    /// Runs something in the namespace, on a thread of its own.
    pub fn enter<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        self.namespace.enter(run)
    }

    pub fn interface(&self) -> Interface {
        self.enter(|| Interface::by_name(INTERFACE)).expect("made")
    }

    /// Opened, with the addresses and the block that tests use.
    pub fn open(&self, options: &Options) -> (Steering, Vec<XdpPort>) {
        let options = Options {
            addresses: vec![self.v4, self.v6],
            ..options.clone()
        };
        let interface = self.interface();
        let (mut steering, ports) = self.enter(|| interface.open(&options)).expect("opens");
        steering.add_block(BLOCK).expect("a block");
        (steering, ports)
    }

    /// With one queue.
    pub fn open_one(&self, options: &Options) -> (Steering, XdpPort) {
        let (steering, mut ports) = self.open(options);
        assert_eq!(ports.len(), 1);
        (steering, ports.remove(0))
    }

    /// From here to there.
    pub fn path(&self, to: &Host, v6: bool) -> Path {
        Path {
            source: if v6 { self.v6 } else { self.v4 },
            destination: if v6 { to.v6 } else { to.v4 },
            interface: self.interface().index(),
            ethernet: Some(Ethernet {
                source: self.mac,
                destination: to.mac,
            }),
            source_port: 0xc123,
            dscp: 26 << 2,
            hop_limit: 61,
            flow_label: 0xabcde,
        }
    }

    pub fn ip(&self, arguments: &str) -> String {
        self.namespace.ip(arguments)
    }

    /// What `ip link` says of an attached program: nothing, if there is none.
    pub fn attached(&self) -> bool {
        let text = self.ip(&format!("link show {INTERFACE}"));
        text.contains("xdp")
    }
}

/// Both ends; removed when dropped.
pub struct Net {
    pub a: Host,
    pub b: Host,
}

impl Net {
    pub fn new(mtu: u32) -> Self {
        Self::with_queues(mtu, 1)
    }

    pub fn with_queues(mtu: u32, queues: u32) -> Self {
        let name = unique("x");
        let host = |end: u8| Host {
            namespace: Arc::new(Namespace::new(format!("{name}-{end}"))),
            mac: [2, 0, 0, 0, 0, end],
            v4: IpAddr::from([192, 0, 2, end]),
            v6: IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(end)]),
        };
        let net = Self {
            a: host(1),
            b: host(2),
        };
        let (a, b) = (net.a.namespace.name(), net.b.namespace.name());
        ip(&format!(
            "-n {a} link add {INTERFACE} mtu {mtu} numrxqueues {queues} numtxqueues {queues} \
             type veth peer name {INTERFACE} netns {b} numrxqueues {queues} numtxqueues {queues}"
        ));
        for host in [&net.a, &net.b] {
            let mac = host.mac.map(|byte| format!("{byte:02x}")).join(":");
            host.ip(&format!("link set {INTERFACE} address {mac} mtu {mtu}"));
            host.ip(&format!("addr add {}/24 dev {INTERFACE}", host.v4));
            host.ip(&format!("addr add {}/64 dev {INTERFACE} nodad", host.v6));
            host.ip(&format!("link set {INTERFACE} up"));
        }
        net
    }
}

/// Waits for something that must come.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        thread::yield_now();
    }
}

/// Bytes of the transport packet that [`message`] makes around a payload.
pub fn message_bytes(payload: usize) -> usize {
    Bth::BYTES + payload.next_multiple_of(4)
}

/// Content that depends on every number.
pub fn content(number: u32, payload: usize) -> impl Iterator<Item = u8> {
    (0..payload as u32).map(move |at| (at.wrapping_mul(31) ^ number.wrapping_mul(0x9e37)) as u8)
}

/// An UD SEND_ONLY would need more headers; this is an UC SEND_ONLY to a queue pair.
pub fn headers(qpn: u32, number: u32) -> Headers {
    let opcode = Opcode::from_byte(0x24).expect("UC SEND_ONLY");
    Headers::new(Bth::new(
        opcode,
        Qpn::new(qpn),
        Psn::new(number & 0xff_ffff),
    ))
}

/// Sends one packet whose content is that of `number`.
pub fn send(
    port: &mut impl Port,
    path: &Path,
    qpn: u32,
    number: u32,
    payload: usize,
) -> Result<(), SendError> {
    port.send(path, Ecn::Capable0, message_bytes(payload), &mut |bytes| {
        let content: Vec<u8> = content(number, payload).collect();
        headers(qpn, number).emit(&content, bytes) == Ok(bytes.len())
    })
}

/// A queue pair of ours.
pub const QPN: u32 = (BLOCK as u32) << 8 | 0x56;

/// Number and payload of a packet that [`send`] made, all of it checked.
pub fn check(received: &Received<'_>) -> (u32, usize) {
    let packet = sluice_wire::Packet::parse(received.packet).expect("legal");
    let number = packet.bth().psn.get();
    let payload = packet.payload();
    assert!(
        payload.iter().copied().eq(content(number, payload.len())),
        "the content of {number}"
    );
    (number, payload.len())
}
